"""What every policy promises, whichever files are there, over random speeds."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slowlink.methods import synchronization
from slowlink.methods.synchronization import Finished, Joined, Left, SetTimer, Sync, Wait
from slowlink.testbed.training.stragglers import Fixed, Jitter
from slowlink.testbed.training.virtual_time import play

SLOWEST, LATEST = 2.5, 0.5

VARIANTS = [
    *[(name, {}) for name in synchronization.names()],
    *[
        (name, dict(local_iterations=3))
        for name in synchronization.names()
        if "local_iterations" in {f.name for f in dataclasses.fields(synchronization.load(name))}
    ],
    ("ssp", dict(staleness=0)),
    ("gssp", dict(grouping="static", staleness=0)),
    ("gssp", dict(group_size=2, staleness=1)),
    ("gssp", dict(group_size=None)),
    ("gssp", dict(grouping="by_time", group_size=2)),
    ("mll_sgd", dict(hub_rounds=3, group_size=2)),
    ("mll_sgd", dict(local_iterations=2, hub_rounds=2, group_size=2, step_probability=0.6)),
    ("mll_sgd", dict(local_iterations=2, hub_rounds=2, group_size=2, rounds="slots")),
    ("mll_sgd", dict(rounds="slots", group_size=None)),
    ("fedavg", dict(timeout_s=1.5)),
    ("fedavg", dict(timeout_s=1.5, late="next", local_iterations=2)),
    ("fedavg", dict(timeout_s=0.0)),
    ("fedavg", dict(fraction=0.5, timeout_s=2.0)),
    ("lpsp", dict(decision="arrival")),
    ("lpsp", dict(normalise="mean", limit_over="all", cap=3)),
    ("lpsp", dict(s=0.0, p_min=1.0, decision="arrival")),
    ("lpsp", dict(decision="clock")),
    ("lpsp", dict(computes_on=True)),
    ("lpsp", dict(computes_on=True, decision="arrival", p_min=1.0)),
    ("lpsp", dict(computes_on=True, decision="clock", s=0.0)),
]
every = pytest.mark.parametrize(
    ("name", "parameters"), VARIANTS, ids=lambda value: getattr(value, "__str__", str)()
)
speeds = st.lists(st.floats(1, SLOWEST), min_size=1, max_size=7)
jitters = st.integers(0, 3).map(lambda seed: lambda of: Jitter(of, 0.1, seed) if seed else of)
latencies = st.sampled_from([0.0, 0.1, LATEST])


def sites(n):
    return [2 * rank // n for rank in range(n)]


def run(name, parameters, times, stragglers=lambda of: of, c=0.1, changes=(), seconds=60.0):
    return play(
        synchronization.load(name, **parameters),
        stragglers(Fixed(tuple(times))),
        c,
        groups=sites(len(times)),
        seconds=seconds,
        changes=changes,
    )


@every
@settings(max_examples=8, deadline=None)
@given(times=speeds, stragglers=jitters, c=latencies)
def test_each_iteration_is_brought_once_and_nobody_starves(name, parameters, times, stragglers, c):
    log = run(name, parameters, times, stragglers, c)
    cap = parameters.get("local_iterations", 1) * parameters.get("hub_rounds", 1)
    patience = 3 * (max(cap, 4) * 1.1 * SLOWEST + 2 * LATEST)
    for rank in range(len(times)):
        mine = [m for m in log.meetings if rank in m.sync.members]
        work = [k for m in mine for k in m.work[m.sync.members.index(rank)]]
        assert work == list(range(1, len(work) + 1))
        assert len(work) <= log.iterations[rank]
        met = [0.0, *[m.decided for m in mine], log.end]
        assert max(later - before for before, later in zip(met, met[1:], strict=False)) < patience
    assert all(stale >= 0 for stale in log.staleness())


@every
@settings(max_examples=5, deadline=None)
@given(times=speeds, stragglers=jitters, c=latencies)
def test_a_worker_does_one_thing_at_a_time_and_never_stops(name, parameters, times, stragglers, c):
    log = run(name, parameters, times, stragglers, c, seconds=30.0)
    for rank in range(len(times)):
        spans = [span for span in log.spans if span.worker == rank]
        ends = [span.end for span in spans]
        assert [span.start for span in spans] == [0.0, *ends[:-1]]
        assert ends[-1] == log.end == 30.0
        computing = sum(span.end - span.start for span in spans if span.kind == "compute")
        assert log.iterations[rank] <= computing / (0.9 * times[rank])


@every
@settings(max_examples=5, deadline=None)
@given(times=speeds, stragglers=jitters, c=latencies)
def test_the_same_events_bring_the_same_decisions(name, parameters, times, stragglers, c):
    log = run(name, parameters, times, stragglers, c, seconds=20.0)
    again = run(name, parameters, times, stragglers, c, seconds=20.0)
    assert repr(log) == repr(again)
    policy = synchronization.load(name, **parameters)
    first, *rest = log.told
    assert tuple(policy.begin(sites(len(times)))) == first.decisions
    for told in rest:
        assert tuple(policy.on(told.event)) == told.decisions


@every
def test_nobody_waits_for_the_gone_and_who_returns_takes_part(name, parameters):
    times = [1.0, 1.3, 1.7, 2.1, 2.3]
    for seconds in (0.5, 3.3, 4.0, 7.7):
        gone = [Left(rank, seconds + 0.2 * rank) for rank in (4, 2, 0, 1)]
        back = [Joined(1, seconds + 20.0), Joined(4, seconds + 21.0)]
        log = run(name, parameters, times, changes=[*gone, *back], seconds=100.0)
        alone = [m for m in log.meetings if seconds + 10 < m.decided < seconds + 20]
        assert alone and all(m.sync.members == (3,) for m in alone)
        assert all(m.sync.members for m in log.meetings)
        at_last = {w for m in log.meetings if m.decided > 80 for w in m.sync.members}
        assert at_last == {1, 3, 4}


@every
def test_who_leaves_in_the_middle_of_a_meeting_is_not_sent_on(name, parameters):
    times = [1.0, 1.0, 1.0, 1.0]
    log = run(name, parameters, times, c=0.5)
    during = (log.meetings[0].decided + log.meetings[0].received) / 2
    changes = [Left(0, during), Joined(0, during + 0.05)]
    again = run(name, parameters, times, c=0.5, changes=changes)
    assert max(m.decided for m in again.meetings if 0 in m.sync.members) > 50


@every
def test_synchronizations_name_each_present_worker_once(name, parameters):
    log = run(name, parameters, [1.0, 1.3, 1.7, 2.1, 2.3])
    for told in log.told:
        for sync in (d for d in told.decisions if isinstance(d, Sync)):
            assert list(sync.members) == sorted(set(sync.members)) != []
            assert sync.weights is None or len(sync.weights) == len(sync.members)


@every
def test_whoever_finished_is_told_what_to_do(name, parameters):
    log = run(name, parameters, [1.0, 1.3, 1.7, 2.1, 2.3])
    for told in log.told:
        if isinstance(told.event, Finished):
            decisions = [d for d in told.decisions if not isinstance(d, SetTimer)]
            named = [getattr(d, "members", None) or (d.worker,) for d in decisions]
            assert any(told.event.worker in workers for workers in named)
            waits = [d.worker for d in told.decisions if isinstance(d, Wait)]
            assert waits in ([], [told.event.worker])


@every
def test_what_travels_fits_the_local_iterations(name, parameters):
    policy = synchronization.load(name, **parameters)
    log = run(name, parameters, [1.0, 1.4, 2.0, 2.5])
    several = any(len(work) > 1 for m in log.meetings for work in m.work)
    assert policy.travels == "delta" or (policy.travels == "gradient" and not several)


@every
def test_a_clock_free_policy_decides_alike_at_any_speed(name, parameters):
    if not synchronization.load(name, **parameters).clock_free:
        return
    slow, fast = (
        run(name, parameters, times, c=c, seconds=30.0)
        for times, c in ([[1.0, 2.0, 1.5], 0.5], [[0.9, 0.3, 0.8], 0.0])
    )
    syncs = [[m.sync for m in log.meetings] for log in (slow, fast)]
    assert len(syncs[0]) > 2 and syncs[0] == syncs[1][: len(syncs[0])]


@pytest.mark.parametrize("name", synchronization.names())
def test_no_local_iterations_are_refused(name):
    fields = {f.name for f in dataclasses.fields(synchronization.load(name))}
    field = "local_iterations" if "local_iterations" in fields else "cap"
    for bad in (0, 1.5, True):
        with pytest.raises(ValueError, match=f"^{name}: {field} must be a whole number of at"):
            synchronization.load(name, **{field: bad})


@every
def test_together_means_that_all_meet_with_equally_many_iterations(name, parameters):
    policy = synchronization.load(name, **parameters)
    log = run(name, parameters, [1.0, 1.7, 2.4, 1.2])
    syncs = [meeting.sync for meeting in log.meetings]
    everyone = all(sync.level == -1 and sync.bringing == (0, 1, 2, 3) for sync in syncs)
    brought = {len(work) for meeting in log.meetings for work in meeting.work}
    assert len(syncs) > 2
    assert policy.together == (everyone and len(brought) == 1)
    assert not policy.together or brought == {policy.local_iterations}
