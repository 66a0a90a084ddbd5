"""Every way of an all-gather is timed in every round, between real processes."""

from testbed.live.dds import throughput


def test_all_ways_take_turns():
    took = throughput.measure(ranks=2, nbytes=3_000_000, rounds=2, timeout_s=60.0)
    assert set(took) == {"raw dds", "dds", "gloo"}
    for rounds in took.values():
        assert len(rounds) == 2 and min(rounds) > 0
