"""FedAvg: rounds worked out by hand, and what holds whoever comes, goes, or is late."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slowlink.methods import synchronization
from slowlink.methods.synchronization import (
    Continue,
    Finished,
    Joined,
    Left,
    SetTimer,
    Sync,
    Synced,
    Timer,
)
from slowlink.testbed.training.stragglers import Fixed
from slowlink.testbed.training.virtual_time import play

load = synchronization.load


def fedavg(**parameters):
    return load("fedavg", **parameters)


def run(policy, times, c=0.0, **end):
    return play(policy, Fixed(tuple(times)), c, groups=[0] * len(times), **end)


def meetings(log):
    return [(m.decided, m.sync.members, m.sync.weights) for m in log.meetings]


def near(*rows):
    return [(pytest.approx(t), who, weights and pytest.approx(weights)) for t, who, weights in rows]


THREE = (1.0, 1.2, 3.0)  # seconds an iteration; the last is too slow for a time-out of 2 s


def test_who_is_late_is_left_out_and_listens_to_the_round_it_comes_in():
    # Rounds begin at 0, 2.5, 4.2 and 6.7. The late one comes at 3 and 7.2.
    log = run(fedavg(timeout_s=2.0), THREE, 0.5, seconds=8.0)
    assert meetings(log) == near(
        (2.0, (0, 1), (0.5, 0.5)),
        (3.7, (0, 1, 2), (0.5, 0.5, 0.0)),
        (6.2, (0, 1), (0.5, 0.5)),
        (7.9, (0, 1, 2), (0.5, 0.5, 0.0)),
    )
    begun = [d for told in log.told for d in told.decisions if d == Continue(2)]
    assert len(begun) == 2 and log.iterations[2] == 2


def test_or_its_update_counts_in_the_next_round():
    log = run(fedavg(timeout_s=2.0, late="next"), THREE, 0.5, seconds=8.0)
    assert meetings(log) == near(
        (2.0, (0, 1), (0.5, 0.5)),
        (3.7, (0, 1, 2), None),
        (6.2, (0, 1), (0.5, 0.5)),
        (7.9, (0, 1, 2), None),
    )
    assert [m.staleness for m in log.meetings[:3]] == [(0, 0), (0, 0, 1), (0, 0)]


def test_weights_are_shares_of_the_samples():
    log = run(fedavg(timeout_s=2.0, samples=(100, 300, 600)), THREE, 0.5, seconds=4.0)
    assert [m.sync.weights for m in log.meetings] == [(0.25, 0.75), (0.25, 0.75, 0.0)]
    (met,) = run(fedavg(samples=[100, 300, 600]), THREE, seconds=3.0).meetings
    assert met.sync == Sync((0, 1, 2), weights=(0.1, 0.3, 0.6))


def test_at_the_time_out_is_in_time():
    log = run(fedavg(timeout_s=3.0), THREE, seconds=3.0)
    assert meetings(log) == [(3.0, (0, 1, 2), None)]


def test_without_enough_a_round_waits_on():
    log = run(fedavg(timeout_s=2.0, min_clients=3), THREE, seconds=6.0)
    assert meetings(log) == [(3.0, (0, 1, 2), None), (6.0, (0, 1, 2), None)]


def test_no_time_at_all_is_the_controller_that_goes_on_with_min_clients():
    log = run(fedavg(timeout_s=0.0, min_clients=2), (1.0, 2.0, 3.5), seconds=4.0)
    assert meetings(log) == [(2.0, (0, 1), (0.5, 0.5)), (4.0, (0, 1, 2), (0.5, 0.5, 0.0))]


def test_local_iterations_are_an_epoch():
    log = run(fedavg(local_iterations=3, timeout_s=4.0), THREE, seconds=10.0)
    # The slow one's three end at 9, in the round from 7.6 to 11.2, and not at its first iteration.
    assert meetings(log) == near((4.0, (0, 1), (0.5, 0.5)), (7.6, (0, 1), (0.5, 0.5)))
    assert log.iterations == [6 + 2, 6 + 2, 3]


def test_who_dies_is_not_waited_for():
    log = run(fedavg(min_clients=2), (1.0, 1.0, 9.0), changes=[Left(2, 1.5)], seconds=2.0)
    assert meetings(log) == [(1.5, (0, 1), (0.5, 0.5))]


def test_where_too_few_are_left_the_round_waits_for_someone_to_join():
    changes = [Left(2, 0.5), Joined(2, 5.0)]
    log = run(fedavg(min_clients=3, timeout_s=2.0), (1.0, 1.0, 1.5), changes=changes, seconds=7.0)
    assert meetings(log) == [(6.5, (0, 1, 2), None)]


def test_a_late_update_counts_where_the_round_cannot_end_without():
    # The late one comes at 3, another dies at 3.2, the last of the round comes at 3.5.
    policy = fedavg(timeout_s=2.0, min_clients=2)
    log = run(policy, (1.0, 1.0, 3.0), 0.5, changes=[Left(1, 3.2)], seconds=3.5)
    assert meetings(log)[1:] == [(3.5, (0, 2), (0.5, 0.5))]


def test_an_idle_client_stands_in_for_one_that_died():
    policy = fedavg(fraction=0.5, min_clients=2)
    first, second = (d.worker for d in policy.begin([0] * 4))
    spare = min({0, 1, 2, 3} - {first, second})
    (stand_in,) = policy.on(Left(first, 0.5))
    assert isinstance(stand_in, Continue) and stand_in.worker not in (first, second)
    policy.on(Finished(second, 1, 1.0))
    *_, sync = policy.on(Finished(stand_in.worker, 1, 1.5))
    weights = dict(zip(sync.members, sync.weights, strict=True))
    assert weights[second] == weights[stand_in.worker] == 0.5
    assert sorted(weights) == sorted({0, 1, 2, 3} - {first}) and spare in weights


def test_old_timers_mean_nothing():
    policy = fedavg(timeout_s=2.0)
    assert policy.begin([0, 0])[-1] == SetTimer("round 1", 2.0)
    policy.on(Finished(0, 1, 1.0))
    assert isinstance(policy.on(Finished(1, 1, 1.5))[-1], Sync)
    assert policy.on(Timer("round 1", 2.0)) == []  # the result is on its way
    assert policy.on(Synced((0, 1), 2.5))[-1] == SetTimer("round 2", 4.5)
    policy.on(Finished(0, 2, 3.5))
    assert policy.on(Timer("round 1", 4.0)) == []
    assert policy.on(Timer("round 2", 4.5)) == [Sync((0,), weights=(1.0,))]


@pytest.mark.parametrize("asking", [dict(fraction=0.4), dict(fraction=0.1, min_clients=2)])
def test_a_draw_takes_everyone_as_often(asking):
    rounds, n = 400, 5
    log = run(fedavg(**asking, seed=3), [1.0] * n, seconds=rounds)
    asked = [sum(m.sync.weights[w] > 0 for m in log.meetings) for w in range(n)]
    assert sum(asked) == 2 * rounds and all(len(m.sync.members) == n for m in log.meetings)
    # Binomial(rounds, 0.4), four standard deviations.
    assert all(abs(k - 0.4 * rounds) < 4 * math.sqrt(rounds * 0.4 * 0.6) for k in asked)
    other = run(fedavg(**asking, seed=4), [1.0] * n, seconds=rounds)
    assert meetings(other) != meetings(log)


speeds = st.lists(st.floats(1, 4), min_size=2, max_size=6)
parameters = st.fixed_dictionaries(
    {
        "local_iterations": st.integers(1, 3),
        "min_clients": st.integers(1, 2),
        "timeout_s": st.sampled_from([0.0, 1.5, 4.0, math.inf]),
        "fraction": st.sampled_from([0.3, 0.7, 1.0]),
        "late": st.sampled_from(["drop", "next"]),
        "seed": st.integers(0, 3),
    }
)
c = st.sampled_from([0.0, 0.3, 2.0])


@st.composite
def comings_and_goings(draw, stay=2):
    """Workers and changes before 40 s, in which the first ``stay`` of them stay."""
    times, changes = draw(speeds), []
    for worker in range(stay, len(times)):
        when = sorted(draw(st.lists(st.floats(0.1, 40), max_size=4, unique=True)))
        changes += [(Joined if i % 2 else Left)(worker, t) for i, t in enumerate(when)]
    return times, changes


def counted(sync):
    weights = sync.weights or [1.0] * len(sync.members)
    return [w for w, weight in zip(sync.members, weights, strict=True) if weight]


@settings(max_examples=60, deadline=None)
@given(comings_and_goings(), parameters, c)
def test_rounds_follow_each_other_with_enough_clients_whoever_comes_and_goes(case, given_, c):
    times, changes = case
    log = run(fedavg(**given_), times, c, changes=changes, seconds=150.0)
    syncs = [m.sync for m in log.meetings]
    assert all(len(counted(sync)) >= given_["min_clients"] for sync in syncs)
    assert all(math.fsum(s.weights) == pytest.approx(1) for s in syncs if s.weights)
    for before, after in zip(log.meetings, log.meetings[1:], strict=False):
        assert after.decided >= before.received  # one at a time
    timers = [d.name for told in log.told for d in told.decisions if isinstance(d, SetTimer)]
    if given_["timeout_s"] < math.inf:
        assert timers == [f"round {k + 1}" for k in range(len(timers))]
    # Once nobody comes or goes any more, a round takes an epoch of the slowest, or two where it
    # began with somebody who is late.
    longest = 2 * given_["local_iterations"] * max(times) + c
    decided = [40.0, *[m.decided for m in log.meetings if m.decided > 40]]
    assert len(decided) > 2
    assert max(b - a for a, b in zip(decided, decided[1:], strict=False)) <= longest + 1e-9


@settings(max_examples=40, deadline=None)
@given(speeds, parameters, c)
def test_without_changes_a_late_update_is_dropped_or_counts_once(times, given_, c):
    log = run(fedavg(**given_ | {"min_clients": 1}), times, c, seconds=60.0)
    done = [m for m in log.meetings if m.applied <= log.end]
    stale = {
        (w, m.number): s for m in done for w, s in zip(m.sync.bringing, m.staleness, strict=True)
    }
    if given_["late"] == "drop" or given_["timeout_s"] == math.inf:
        assert not any(stale.values())
    if given_["late"] == "next":
        for m in done:
            for w, work in zip(m.sync.members, m.work, strict=True):
                assert (len(work) == given_["local_iterations"]) == (w in counted(m.sync))


@settings(max_examples=40, deadline=None)
@given(speeds, st.integers(1, 3), c)
def test_without_a_time_out_it_is_bsp(times, h, c):
    logs = [run(load(k, local_iterations=h), times, c, seconds=30.0) for k in ("bsp", "fedavg")]
    assert repr(logs[0]) == repr(logs[1])


@settings(max_examples=40, deadline=None)
@given(comings_and_goings(stay=1), st.integers(1, 3), c)
def test_so_it_is_when_workers_come_and_go(case, h, c):
    times, changes = case
    bsp, mine = (
        run(load(name, local_iterations=h), times, c, changes=changes, seconds=50.0)
        for name in ("bsp", "fedavg")
    )
    assert bsp.spans == mine.spans
    for a, b in zip(bsp.meetings, mine.meetings, strict=True):
        assert set(b.sync.weights or ()) <= {1 / len(b.sync.members)}
        assert repr(a) == repr(dataclasses.replace(b, sync=a.sync))
        assert a.sync.members == b.sync.members


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (dict(min_clients=0), "min_clients must be a whole number of at least 1, not 0"),
        (dict(timeout_s=-1.0), "timeout_s must be at least 0, not -1.0"),
        (dict(timeout_s=math.nan), "timeout_s must be at least 0, not nan"),
        (dict(fraction=0.0), "fraction must be above 0 and at most 1, not 0.0"),
        (dict(samples=(3, 0)), "samples must be whole numbers of at least 1, not \\(3, 0\\)"),
        (dict(late="never"), "late must be drop or next, not 'never'"),
    ],
)
def test_bad_parameters_are_refused(parameters, said):
    with pytest.raises(ValueError, match=f"^fedavg: {said}"):
        fedavg(**parameters)


def test_samples_are_for_every_worker():
    with pytest.raises(ValueError, match="^fedavg: samples has 2 counts for 3 workers"):
        fedavg(samples=(1, 2)).begin([0, 0, 0])
