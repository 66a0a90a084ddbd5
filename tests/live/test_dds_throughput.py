"""Every way of an all-gather is timed in every round, between real processes."""

import pytest
from cyclonedds.core import DDSException

from slowlink.testbed.live.dds import throughput
from slowlink.testbed.live.dds.domain import draw

pytestmark = pytest.mark.slow


def test_all_ways_take_turns():
    took = throughput.measure(ranks=2, nbytes=3_000_000, rounds=2, timeout_s=60.0)
    assert set(took) == {"raw dds", "dds", "gloo"}
    for rounds in took.values():
        assert len(rounds) == 2 and min(rounds) > 0


class Busy:
    """A writer whose readers take nothing for some tries."""

    def __init__(self, tries):
        self.tries, self.written = tries, []

    def write(self, segment):
        if self.tries:
            self.tries -= 1
            raise DDSException(DDSException.DDS_RETCODE_TIMEOUT)
        self.written.append(bytes(segment.body))


def test_raw_writes_wait_for_slow_readers_but_not_for_ever():
    raw = throughput._Raw(draw(), 0, 0, 60.0)
    payload = bytes(throughput.CUT) + b"rest"
    raw.writer = Busy(tries=3)
    raw.exchange(memoryview(payload))
    assert b"".join(raw.writer.written) == payload
    raw.writer, raw.timeout_s = Busy(tries=-1), 0.1
    with pytest.raises(ConnectionError, match="raw writes: .*TIMEOUT"):
        raw.exchange(memoryview(payload))
