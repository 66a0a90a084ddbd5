"""LPSP: the paper's worked example, Algorithm 1 step by step, and both ends of s."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slowlink.methods import synchronization
from slowlink.methods.synchronization import Continue, Finished, Joined, Left, Sync, Synced, Wait
from slowlink.methods.synchronization.lpsp import average_wait
from slowlink.testbed.training.stragglers import Fixed
from slowlink.testbed.training.virtual_time import Scripted, play

TIMES = (1.8, 3.6, 2.5, 1.5)  # LPSP §1


def lpsp(**parameters):
    return synchronization.load("lpsp", **parameters)


def run(policy, times=TIMES, communication=0.5, **end):
    return play(policy, Fixed(tuple(times)), communication, groups=[0] * len(times), **end)


def meetings(log):
    return [(m.decided, m.sync.members) for m in log.meetings]


def sync_waits(log):
    return [math.fsum(m.waits) for m in log.meetings]


def test_the_schedule_that_the_paper_draws():
    script = Scripted(meetings=[{0: 2, 1: 1}, {2: 2, 3: 3}, {0: 2, 1: 1, 2: 1}])
    log = run(script, seconds=8.0)
    assert [m.decided for m in log.meetings] == pytest.approx([3.6, 5.0, 8.0])
    assert sync_waits(log) == pytest.approx([0.0, 0.5, 0.6])
    # Each schedule has twelve local iterations in all; w4 is in its second when this one ends.
    assert sum(sum(map(len, m.work)) for m in log.meetings) == 12
    # Nothing but the members' waits for each other is waited for.
    assert sum(sum(m.delays) for m in log.meetings) == pytest.approx(1.1)


def test_bsp_on_the_same_workers():
    log = run(synchronization.load("bsp", local_iterations=3), seconds=10.8)
    assert meetings(log) == [(pytest.approx(10.8), (0, 1, 2, 3))]
    assert sync_waits(log) == pytest.approx([15.0])
    assert log.waited() == pytest.approx(15.0)
    assert sum(log.iterations) == 12


def test_what_the_average_wait_and_its_limit_are():
    at = [[3.6, 3.6], [5.0, 4.5], [7.7, 7.7, 8.0]]
    assert [average_wait(arrivals) for arrivals in at] == pytest.approx([0, 0.25, 0.20])
    policy = lpsp()
    policy.begin([0] * 4)
    for worker, t in enumerate(TIMES):
        policy.on(Finished(worker, 1, t))
    limits = [policy._limit(members) for members in ([0, 1], [2, 3], [0, 1, 2])]
    assert limits == pytest.approx([0.54, 0.40, 0.2 * 7.9 / 3])
    everyone = lpsp(limit_over="all")
    everyone._lasted = dict(enumerate(TIMES))
    assert everyone._limit([0]) == pytest.approx(0.2 * sum(TIMES) / 4)


def test_the_index_lets_exactly_the_iterations_of_the_example_through():
    for normalise, allowed in [
        ("min", [{2}, {1}, {2}, {3}]),
        ("mean", [{3, 4}, {2}, {2, 3}, {4, 5}]),
    ]:
        policy = lpsp(normalise=normalise, cap=100)
        policy._lasted = dict(enumerate(TIMES))
        for worker in range(4):
            found = {h for h in range(1, 20) if policy._branch(worker, h) == "candidate"}
            assert found == allowed[worker]


def test_algorithm_1_to_the_letter_waits_for_the_candidate_that_breaks_the_limit():
    # The paper's first two groups, but decided when the next candidate comes: 4.5 and 8.6.
    log = run(lpsp(), seconds=9.0)
    assert meetings(log) == [(pytest.approx(4.5), (0, 1)), (pytest.approx(8.6), (2, 3))]
    assert sync_waits(log) == pytest.approx([0.0, 0.5])
    assert [sum(m.delays) for m in log.meetings] == pytest.approx([1.8, 7.7])


def test_decided_on_arrival_its_points_are_those_of_the_example():
    log = run(lpsp(decision="arrival"), seconds=5.0)
    assert meetings(log) == [(pytest.approx(3.6), (0, 1)), (pytest.approx(5.0), (2, 3))]
    assert [sum(m.delays) for m in log.meetings] == pytest.approx([0.0, 0.5])


def test_by_the_clock_a_gathering_ends_when_its_mean_wait_reaches_the_limit():
    # D_s is 0.54 for w1 and w2, who arrive at 3.6; 0.3 for w4 at 4.5 and 0.5 for w3 at 5.0.
    log = run(lpsp(decision="clock"), seconds=5.6)
    assert meetings(log) == [
        (pytest.approx(4.14), (0, 1)),
        (pytest.approx(4.8), (3,)),
        (pytest.approx(5.5), (2,)),
    ]


def test_by_the_clock_no_tolerance_is_asp():
    """§4.2.3: among candidates s = 0 uses ASP."""
    asp = run(synchronization.load("asp", local_iterations=2), (1.0, 1.5), 0.3, seconds=40.0)
    for decision in ("clock", "arrival"):
        log = run(lpsp(s=0.0, p_min=1.6, decision=decision), (1.0, 1.5), 0.3, seconds=40.0)
        assert [m.sync.members for m in log.meetings] == [m.sync.members for m in asp.meetings]
        assert [m.decided for m in log.meetings] == pytest.approx(
            [m.decided for m in asp.meetings], rel=1e-6
        )


def test_candidates_that_compute_on_wait_for_nobody_until_they_are_forced():
    log = run(lpsp(computes_on=True), seconds=7.4)
    assert meetings(log) == [(pytest.approx(4.5), (0, 1)), (pytest.approx(7.2), (2, 3))]
    # w1 and w2 bring what they had at 3.6, and the iterations under way count for the next time;
    # w4 has done a fourth by 6.0, which forces it, so that it idles until 7.2.
    assert [[len(work) for work in m.work] for m in log.meetings] == [[2, 1], [2, 4]]
    assert [sum(m.delays) for m in log.meetings] == pytest.approx([0, 1.2])
    assert log.waited() == pytest.approx(1.2)
    ends = sorted(s.end for s in log.spans if (s.worker, s.kind) == (0, "compute"))
    assert ends[:4] == pytest.approx([1.8, 3.6, 5.4, 7.2])  # without a break


def test_who_comes_to_its_limit_during_a_meeting_is_forced_into_the_next():
    policy = lpsp(p_min=0.5, p_max=1.9, s=0.1, computes_on=True)
    policy.begin([0, 0])
    assert policy.on(Finished(0, 1, 1.0)) == [Continue(0)]
    # D = 0.25 is above D_s = 0.125: worker 0 meets, in its second iteration.
    assert policy.on(Finished(1, 1, 1.5)) == [Continue(1), Sync((0,))]
    assert policy.on(Finished(0, 2, 2.0)) == [Continue(0)]  # its first since
    assert policy.on(Finished(1, 2, 3.0)) == [Wait(1)]  # p = 3: forced
    assert policy.on(Finished(0, 3, 3.0)) == [Wait(0)]  # p = 2, but its meeting is not over
    assert policy.on(Synced((0,), 3.5)) == [Sync((0, 1))]
    assert policy.on(Synced((0, 1), 4.0)) == [Continue(0), Continue(1)]


@pytest.mark.slow
@pytest.mark.parametrize("c", [0.0, 0.01, 0.3])
@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.5, 0.7, 1.0])
@pytest.mark.parametrize(
    "reading",
    [{}, dict(decision="arrival"), dict(decision="clock"), dict(s=0.0), dict(normalise="mean")],
    ids=str,
)
def test_equal_workers_are_bsp(reading, seconds, c):
    """Their index is the number of their iterations: at 2 they go on, at 3 all are candidates. A
    last bit of the clock must not part them."""
    times = (seconds,) * 8
    bsp = run(synchronization.load("bsp", local_iterations=3), times, c, seconds=400 * seconds)
    log = run(lpsp(**reading), times, c, seconds=400 * seconds)
    assert meetings(log) == meetings(bsp)
    assert log.iterations == bsp.iterations


def test_algorithm_1_step_by_step():
    policy = lpsp(p_min=1, p_max=2, cap=9)
    policy.begin([0, 0, 0])
    assert policy.on(Finished(0, 1, 1.0)) == [Continue(0)]  # p = 1 = p_min
    assert policy.on(Finished(0, 2, 2.0)) == [Wait(0)]  # p = 2 = p_max: a candidate
    # p = 3: forced, and no partial synchronization comes of that.
    assert policy.on(Finished(1, 1, 3.0)) == [Wait(1)]
    # p = 3.5: forced. Now all have uploaded and nobody has met.
    assert policy.on(Finished(2, 1, 3.5)) == [Wait(2), Sync((0, 1, 2))]
    assert policy.on(Synced((0, 1, 2), 4.0)) == [Continue(0), Continue(1), Continue(2)]


def test_the_forced_join_the_next_partial_synchronization():
    policy = lpsp(p_min=0.5, p_max=2, s=0.1)
    policy.begin([0] * 4)
    assert policy.on(Finished(0, 1, 1.0)) == [Wait(0)]
    assert policy.on(Finished(1, 1, 2.5)) == [Wait(1)]
    # D = 0.45 is above D_s = 0.145: worker 2 stays behind, worker 1, forced, goes along.
    assert policy.on(Finished(2, 1, 1.9)) == [Wait(2), Sync((0, 1))]


def test_at_p_max_a_worker_is_still_a_candidate():
    policy = lpsp(p_min=1, p_max=2)
    policy.begin([0, 0, 0])
    policy.on(Finished(0, 1, 1.0))
    assert policy.on(Finished(1, 1, 1.1)) == [Wait(1)]
    # p = 2; D = 0.45 is above D_s = 0.21. A forced worker would have ended no gathering.
    assert policy.on(Finished(0, 2, 2.0)) == [Wait(0), Sync((1,))]


def test_on_arrival_who_synchronizes_is_expected_after_all_its_iterations():
    policy = lpsp(p_min=1.5, p_max=9, s=0.3, decision="arrival")
    policy.begin([0, 0])
    policy.on(Finished(0, 1, 1.0))
    assert policy.on(Finished(0, 2, 2.0)) == [Wait(0)]  # worker 1 may come any moment
    # D = 0.7 is above D_s = 0.66. Worker 0 needs two iterations again, so it comes at 5.4 at the
    # earliest: D would be 1.
    assert policy.on(Finished(1, 1, 3.4)) == [Wait(1), Sync((0,)), Sync((1,))]


def test_on_arrival_decides_anew_when_what_it_expects_changes():
    policy = lpsp(p_min=1.5, p_max=9, s=0.32, decision="arrival")
    policy.begin([0, 0])
    policy.on(Finished(0, 1, 0.6))
    policy.on(Finished(0, 2, 1.2))
    # Worker 0 would come at 4.6, for D = 0.6 within D_s = 0.64; but synchronizing takes it longer.
    assert policy.on(Finished(1, 1, 3.4)) == [Wait(1), Sync((0,))]
    assert policy.on(Synced((0,), 4.0)) == [Continue(0), Sync((1,))]

    policy = lpsp(p_min=2.5, p_max=9, s=0.4, decision="arrival")
    policy.begin([0, 0])
    policy.on(Finished(0, 1, 1.0))
    policy.on(Finished(1, 1, 2.0))
    policy.on(Finished(0, 2, 2.0))
    # Worker 1 would come at 4, for D = 0.5 within D_s = 0.6; but its iteration takes only 1.2 s,
    # so that it needs another one, until 4.4.
    assert policy.on(Finished(0, 3, 3.0)) == [Wait(0)]
    assert policy.on(Finished(1, 2, 3.2)) == [Continue(1), Sync((0,))]


def test_at_the_cap_a_worker_is_forced():
    policy = lpsp(p_min=9, p_max=9, cap=2)
    policy.begin([0, 0])
    assert policy.on(Finished(0, 1, 1.0)) == [Continue(0)]
    assert policy.on(Finished(0, 2, 2.0)) == [Wait(0)]
    assert policy.on(Finished(1, 1, 2.5)) == [Continue(1)]
    assert policy.on(Finished(1, 2, 5.0)) == [Wait(1), Sync((0, 1))]


def test_whoever_left_is_not_waited_for_and_who_joined_is():
    policy = lpsp(p_min=0.5, p_max=9)
    policy.begin([0, 0, 0])
    policy.on(Finished(0, 1, 1.0))
    policy.on(Finished(1, 1, 1.0))
    assert policy.on(Left(2, 1.1)) == [Sync((0, 1))]
    assert policy.on(Joined(2, 1.2)) == [Continue(2)]
    assert policy.on(Finished(2, 1, 2.2)) == [Wait(2)]  # the others are synchronizing
    assert policy.on(Synced((0, 1), 2.5)) == [Continue(0), Continue(1)]


speeds = st.lists(st.floats(1, 2.5), min_size=2, max_size=8)


@settings(max_examples=40, deadline=None)
@given(speeds, st.sampled_from(["next", "arrival"]), st.floats(0, 1))
def test_without_a_limit_all_candidates_wait_for_each_other(times, decision, c):
    log = run(lpsp(s=math.inf, decision=decision), times, c, seconds=40.0)
    everyone = tuple(range(len(times)))
    assert log.meetings
    assert all(m.sync.members == everyone for m in log.meetings)
    assert all(m.decided == max(m.arrived) for m in log.meetings)


@settings(max_examples=40, deadline=None)
@given(speeds, st.floats(0, 1))
def test_with_no_tolerance_the_next_candidate_ends_every_gathering(times, c):
    """With s = 0 the limit is 0, and the average wait of candidates who arrived at different times
    is above it. So those gathered have all come at one time, the next one to come at another
    ends their gathering at that moment, and stays. A lone candidate has D = 0 and waits for the
    next: that is where it differs from ASP, in which it would synchronize on its arrival. (Forced
    workers, who wait for any partial synchronization, are kept out of this by p_max.)"""
    log = run(lpsp(s=0.0, p_max=math.inf, cap=100), times, c, seconds=40.0)
    arrivals = sorted(
        told.t
        for told in log.told
        if isinstance(told.event, Finished) and Wait(told.event.worker) in told.decisions
    )
    assert log.meetings
    for meeting in log.meetings:
        arrived = max(meeting.arrived)
        # Up to rounding, by which nobody is parted from who comes at the same time.
        assert meeting.arrived == pytest.approx([arrived] * len(meeting.arrived), rel=1e-9)
        if len(meeting.sync.members) == len(times):
            assert meeting.decided == arrived
        else:
            assert meeting.decided == min(t for t in arrivals if t > arrived * (1 + 1e-9))


def test_no_tolerance_is_not_asp():
    # The fast worker's second iteration ends at 2; it idles until the slow one comes at 2.5.
    log = run(lpsp(s=0.0, p_min=1.0), (1.0, 2.5), 0.0, seconds=2.4)
    assert log.meetings == []
    log = run(synchronization.load("asp", local_iterations=2), (1.0, 2.5), 0.0, seconds=2.4)
    assert meetings(log) == [(2.0, (0,))]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (dict(p_min=4.0), "needs 0 <= p_min <= p_max, not p_min 4.0, p_max 3.5"),
        (dict(s=-0.1), "s must be at least 0"),
        (dict(s=math.nan), "s must be at least 0"),
        (dict(cap=0), "cap must be a whole number of at least 1, not 0"),
        (dict(normalise="max"), "normalise must be min or mean, not 'max'"),
        (dict(limit_over="some"), "limit_over must be candidates or all"),
        (dict(decision="now"), "decision must be next or arrival or clock"),
        (dict(computes_on="yes"), "computes_on must be False or True"),
    ],
)
def test_bad_parameters_are_refused(parameters, said):
    with pytest.raises(ValueError, match=f"^lpsp: {said}"):
        lpsp(**parameters)
