"""ASP, SSP, GSSP and MLL-SGD: closed forms, invariants and the cases where one is another."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slowlink.methods import synchronization
from slowlink.methods.synchronization import Joined, Left, Sync
from slowlink.methods.synchronization.gssp import in_squads, natural_breaks
from slowlink.testbed.training.stragglers import Fixed, Jitter, Varying, removable, uniform
from slowlink.testbed.training.virtual_time import Begun, Computed, happenings, play

load = synchronization.load
speeds = st.lists(st.floats(1, 2.5), min_size=2, max_size=8)
rounds = st.integers(1, 3)


def run(policy, stragglers, c=0.0, n=None, **end):
    n = len(stragglers.times) if n is None else n
    return play(policy, stragglers, c, groups=[0] * n, **end)


def meetings(log):
    return [(m.decided, m.sync) for m in log.meetings]


@settings(max_examples=25, deadline=None)
@given(speeds, rounds, st.floats(0, 1))
def test_bsp_waits_exactly_for_the_slowest(times, h, c):
    log = run(load("bsp", local_iterations=h), Fixed(tuple(times)), c, seconds=30.0)
    period = h * max(times) + c
    assert [m.decided + c for m in log.meetings] == pytest.approx(
        [(k + 1) * period for k in range(len(log.meetings))]
    )
    wait = h * sum(max(times) - t for t in times)
    assert [sum(m.waits) for m in log.meetings] == pytest.approx(
        [wait] * len(log.meetings), abs=1e-9
    )
    assert not any(log.staleness())


@settings(max_examples=25, deadline=None)
@given(speeds, rounds, st.floats(0, 1))
def test_asp_never_waits(times, h, c):
    log = run(load("asp", local_iterations=h), Fixed(tuple(times)), c, seconds=30.0)
    assert log.waited() == 0
    for rank, t in enumerate(times):
        mine = [m.decided for m in log.meetings if m.sync.members == (rank,)]
        assert mine == pytest.approx([k * (h * t + c) - c for k in range(1, len(mine) + 1)])
        assert log.iterations[rank] == pytest.approx(30 * h / (h * t + c), abs=h)


def test_asp_runs_max_t_mean_one_over_t_times_as_fast_as_bsp():
    fixed = uniform(12, seed=4)
    fast, slow = (run(load(name), fixed, seconds=1000.0) for name in ("asp", "bsp"))
    gain = fast.iterations_per_s / slow.iterations_per_s
    assert gain == pytest.approx(removable(fixed.times), rel=3e-3)


@pytest.mark.parametrize("n", [8, 12, 16])
def test_ssp_is_hardly_faster_than_bsp_when_the_slow_stay_slow(n):
    # It runs ahead once by its bound, and then the slowest paces everybody.
    fixed = uniform(n, seed=n)
    slowest = 200
    seconds = slowest * max(fixed.times) * (1 + 1e-9)
    bsp, ssp = (run(load(name), fixed, 0.0, seconds=seconds) for name in ("bsp", "ssp"))
    gain = ssp.iterations_per_s / bsp.iterations_per_s
    assert sum(bsp.iterations) == n * slowest
    # Fast workers: 2 rounds ahead, and in the middle of the third.
    assert 1 < gain <= 1 + 3 / slowest
    assert gain == pytest.approx(1.01, abs=0.005)


def test_ssp_gains_where_speeds_change():
    varying = Varying(Fixed((1.0,) * 8), 10.0, seed=1)
    ssp, bsp = (run(load(name), varying, 0.0, 8, seconds=1000.0) for name in ("ssp", "bsp"))
    assert ssp.iterations_per_s > 1.05 * bsp.iterations_per_s


@settings(max_examples=25, deadline=None)
@given(speeds, st.integers(0, 3), rounds, st.integers(0, 2), st.sampled_from([0.0, 0.3]))
def test_ssp_never_exceeds_its_staleness(times, staleness, h, seed, c):
    policy = load("ssp", staleness=staleness, local_iterations=h)
    done = [0] * len(times)
    most = 0
    run = happenings(policy, Jitter(Fixed(tuple(times)), 0.3, seed), c, groups=[0] * len(times))
    for happening in itertools.takewhile(lambda happening: happening.t < 40, run):
        if isinstance(happening, Computed):
            done[happening.worker] += 1
        if isinstance(happening, Begun) and done[happening.worker] % h == 0:
            lead = done[happening.worker] // h - min(done) // h
            assert lead <= staleness
            most = max(most, lead)
    # The bound is met, not merely kept, where one worker is much faster than another.
    if max(times) > 2.2 * min(times):
        assert most == staleness


def test_ssp_does_not_wait_for_who_comes_anew_to_catch_up():
    changes = [Left(2, 10.5), Joined(2, 20.5)]
    log = run(load("ssp"), Fixed((1.0, 1.0, 1.0)), seconds=40.0, changes=changes)
    assert log.waited() == 0
    assert log.iterations == [40, 40, 10 + 19]


@settings(max_examples=15, deadline=None)
@given(speeds, rounds)
def test_without_staleness_ssp_starts_and_waits_as_bsp(times, h):
    logs = [
        run(load(name, local_iterations=h, **more), Fixed(tuple(times)), seconds=20.0)
        for name, more in (("bsp", {}), ("ssp", dict(staleness=0)))
    ]
    assert logs[0].iterations == logs[1].iterations
    assert logs[0].waited() == pytest.approx(logs[1].waited())


def test_ssp_pushes_at_once_and_who_was_held_reads_once_more():
    """Without staleness, iterations of 1 and 3 s, a quarter of a second each way: the fast worker's
    push arrives at 1.25 s; the slow one is back at 3.5 s, and then the fast one pulls."""
    log = run(load("ssp", staleness=0), Fixed((1.0, 3.0)), 0.5, seconds=4.0)
    first, slow, again = log.meetings
    assert [m.sync.bringing for m in log.meetings] == [(0,), (1,), ()]
    assert [(m.decided, m.applied, m.received) for m in log.meetings] == [
        (1.0, 1.25, 1.5),
        (3.0, 3.25, 3.5),
        (3.5, 3.5, 3.75),
    ]
    assert (first.staleness, slow.staleness, again.staleness) == ((0,), (1,), ())
    assert [(s.start, s.end) for s in log.spans if s.worker == 0 and s.kind == "wait"] == [
        (1.5, 3.5)
    ]


@settings(max_examples=15, deadline=None)
@given(speeds, rounds)
def test_with_endless_staleness_ssp_is_asp(times, h):
    logs = [
        run(load(name, local_iterations=h, **more), Fixed(tuple(times)), 0.25, seconds=20.0)
        for name, more in (("asp", {}), ("ssp", dict(staleness=10**6)))
    ]
    assert meetings(logs[0]) == meetings(logs[1])


@settings(max_examples=15, deadline=None)
@given(speeds, rounds, st.integers(0, 2))
def test_gssp_with_one_group_is_ssp_and_with_groups_of_one_asp(times, h, staleness):
    def those(name, **more):
        policy = load(name, local_iterations=h, **more)
        return meetings(run(policy, Fixed(tuple(times)), 0.25, seconds=20.0))

    bound = dict(staleness=staleness)
    static = dict(grouping="static")
    assert those("gssp", group_size=len(times), **bound) == those("ssp", **bound)
    assert those("gssp", group_size=1, **static, **bound) == those("asp")


def test_gssp_finds_the_groups_of_similar_speed():
    # Interleaved by rank, so that groups by rank would put a slow one into each.
    times = (1.0, 2.5, 1.05, 2.4, 1.02, 2.45, 1.01, 2.48)
    policies = [load("gssp", staleness=1, grouping=g) for g in ("natural_breaks", "static")]
    natural, static = (run(policy, Fixed(times), seconds=500.0) for policy in policies)
    groups = [{w for w in range(8) if policies[0]._group[w] == g} for g in (0, 1)]
    assert groups == [{0, 2, 4, 6}, {1, 3, 5, 7}]
    assert min(natural.iterations[0::2]) > 2.3 * max(natural.iterations[1::2])
    assert max(static.iterations) <= min(static.iterations) + 3
    for members in groups:
        counts = [natural.iterations[w] for w in members]
        assert max(counts) - min(counts) <= 2


def test_gssp_in_fours_by_time_has_groups_of_one_size():
    # By natural breaks three are fast and five are slow; the fourth fastest is slow.
    times = (2.2, 1.0, 2.0, 1.02, 2.3, 1.04, 2.4, 2.1)
    policy = load("gssp", staleness=1, grouping="by_time")
    log = run(policy, Fixed(times), seconds=500.0)
    groups = [{w for w in range(8) if policy._group[w] == g} for g in (0, 1)]
    assert groups == [{1, 3, 5, 2}, {7, 0, 4, 6}]
    for members in groups:  # each goes at the pace of its slowest
        counts = [log.iterations[w] for w in members]
        slowest = max(times[w] for w in members)
        assert max(counts) - min(counts) <= 2
        assert min(counts) == pytest.approx(500 / slowest, rel=0.05)


@given(st.lists(st.floats(0.5, 5) | st.sampled_from([1.0, 2.0]), max_size=9), st.integers(1, 4))
def test_squads_by_size_are_full_and_in_order(values, size):
    labels = in_squads(values, size)
    classes = [
        [v for v, label in zip(values, labels, strict=True) if label == k]
        for k in sorted(set(labels))
    ]
    assert all(len(members) == size for members in classes[:-1])
    assert sum(classes[:-1], []) == [] or len(classes[-1]) <= size
    assert all(max(a) <= min(b) for a, b in itertools.pairwise(classes))


def test_gssp_lets_no_one_wait_for_its_new_group_to_catch_up():
    # At 200 s a fast worker, some 200 rounds along, becomes a slow one, and the other way round.
    def stragglers(worker, iteration, t):
        fast = worker < 4 if t < 200 else worker in (1, 2, 3, 4)
        return (1.0 if fast else 2.4) + worker / 100

    policy = load("gssp")
    log = run(policy, stragglers, n=8, seconds=600.0)
    assert {w for w in range(8) if policy._group[w] == 0} == {1, 2, 3, 4}
    assert max(span.end - span.start for span in log.spans if span.kind == "wait") < 2.5
    assert log.iterations[4] > 1.5 * log.iterations[5]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.5, 5) | st.sampled_from([1.0, 2.0]), min_size=1, max_size=8),
    st.integers(1, 4),
)
def test_natural_breaks_against_every_partition(values, count):
    def spread(classes):
        means = [math.fsum(c) / len(c) for c in classes]
        return math.fsum((v - m) ** 2 for c, m in zip(classes, means, strict=True) for v in c)

    ordered = sorted(values)
    best = math.inf
    for cuts in range(min(count, len(values))):
        for places in itertools.combinations(range(1, len(values)), cuts):
            edges = [0, *places, len(values)]
            best = min(best, spread([ordered[a:b] for a, b in itertools.pairwise(edges)]))
    labels = natural_breaks(values, count)
    classes = [
        [v for v, label in zip(values, labels, strict=True) if label == k]
        for k in sorted(set(labels))
    ]
    assert spread(classes) == pytest.approx(best, abs=1e-12)
    assert sorted(set(labels)) == list(range(len(classes))) and len(classes) <= count
    assert all(max(a) <= min(b) for a, b in itertools.pairwise(classes))


def test_natural_breaks_separate_no_equals():
    assert natural_breaks([3.0, 3.0, 3.0], 2) == [0, 0, 0]
    assert natural_breaks([2.0, 1.0, 2.0, 1.0], 3) == [1, 0, 1, 0]
    assert natural_breaks([], 3) == []


@settings(max_examples=15, deadline=None)
@given(speeds, rounds, st.floats(0, 1), st.sampled_from([dict(hub_rounds=1), dict(group_size=8)]))
def test_mll_sgd_at_one_level_is_bsp_local_sgd(times, h, c, level):
    logs = [
        run(load(name, local_iterations=h, **more), Fixed(tuple(times)), c, seconds=30.0)
        for name, more in (("bsp", {}), ("mll_sgd", dict(hub_rounds=3) | level))
    ]
    assert logs[0].told == logs[1].told
    assert repr(logs[0]) == repr(logs[1])


def test_mll_sgd_meets_in_hubs_and_every_third_time_at_the_top():
    times = (1.0, 2.0, 1.5, 3.0, 2.5)
    policy = load("mll_sgd", local_iterations=2, hub_rounds=3, group_size=2)
    log = run(policy, Fixed(times), seconds=42.0)
    hubs = [(0, 1), (2, 3), (4,)]
    for hub, slowest in zip(hubs, (2.0, 3.0, 2.5), strict=True):
        inner = [m.decided for m in log.meetings if m.sync == Sync(hub, level=0)]
        cycle = 6 * 3.0  # three rounds of two iterations of the slowest of all
        expected = [k * cycle + r * 2 * slowest for k in range(3) for r in (1, 2)]
        assert inner == pytest.approx([t for t in expected if t <= 42])
    assert [m.decided for m in log.meetings if m.sync == Sync((0, 1, 2, 3, 4))] == [18.0, 36.0]
    assert all(m.staleness is None for m in log.meetings if m.sync.level == 0)
    assert not any(log.staleness())


def test_a_round_of_time_slots_waits_for_nobody():
    """tau = 2 slots of the fastest's 1.0 s: hubs average at 2, 6, 10 s, all of them at 4, 8, 12."""
    times = (1.0, 2.0, 2.5, 4.0)
    policy = load("mll_sgd", local_iterations=2, hub_rounds=2, group_size=2, rounds="slots")
    log = run(policy, Fixed(times), seconds=12.5)
    hubs = [Sync((0, 1), level=0), Sync((2, 3), level=0)]
    expected = [(t, sync) for t in (2, 6, 10) for sync in hubs]
    expected += [(t, Sync((0, 1, 2, 3))) for t in (4, 8, 12)]
    met = [(m.decided, m.sync) for m in log.meetings]
    assert sorted(met, key=repr) == sorted(((float(t), sync) for t, sync in expected), key=repr)
    by_round = {}
    for meeting in log.meetings:
        pairs = zip(meeting.sync.members, meeting.work, strict=True)
        by_round.setdefault(meeting.decided, {}).update({w: len(work) for w, work in pairs})
    assert [by_round[t] for t in (2.0, 4.0, 6.0)] == [
        {0: 2, 1: 1, 2: 0, 3: 0},
        {0: 2, 1: 1, 2: 1, 3: 1},  # iterations that end at that moment are in time
        {0: 2, 1: 1, 2: 1, 3: 0},
    ]
    assert log.waited() == 0
    assert log.iterations == [math.floor(12.5 / t) for t in times]


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), rounds, st.integers(1, 3), st.floats(0, 1))
def test_of_equal_workers_time_slots_are_barriers(n, h, q, c):
    same = dict(local_iterations=h, hub_rounds=q, group_size=2)
    barrier, slots = (
        run(load("mll_sgd", rounds=how, **same), Fixed((1.0,) * n), c, seconds=30.0)
        for how in ("barrier", "slots")
    )
    assert [(m.decided, m.sync, m.work) for m in slots.meetings] == [
        (m.decided, m.sync, m.work) for m in barrier.meetings
    ]


def test_the_next_round_of_slots_starts_when_averages_have_come():
    # The average of 2 s comes at 5, and the fastest needs two seconds from there.
    policy = load("mll_sgd", local_iterations=2, group_size=4, rounds="slots")
    log = run(policy, Fixed((1.0, 1.5)), 3.0, seconds=12.0)
    assert [(m.decided, m.received) for m in log.meetings[:2]] == [(2.0, 5.0), (7.0, 10.0)]
    # Two that it has finished meanwhile, at 3 and 4.5, and one since.
    assert [len(m.work[1]) for m in log.meetings[:2]] == [1, 3]
    assert log.waited() == 0


def test_sites_are_hubs_where_asked():
    policy = load("mll_sgd", hub_rounds=2, group_size=None)
    log = play(policy, Fixed((1.0, 1.0, 1.0)), groups=[0, 1, 0], seconds=1.0)
    assert [m.sync for m in log.meetings] == [Sync((1,), level=0), Sync((0, 2), level=0)]


def test_a_probability_thins_the_steps_of_mll_sgd():
    policy = load("mll_sgd", local_iterations=10, step_probability=0.3, seed=1)
    log = run(policy, Fixed((1.0,) * 4), 1.0, seconds=2000.0)
    steps = [len(work) for m in log.meetings for work in m.work]
    assert min(steps) < 2 and max(steps) <= 10
    mean = sum(steps) / len(steps)
    # Binomial(10, 0.3); four standard deviations of the mean.
    assert mean == pytest.approx(3, abs=4 * math.sqrt(10 * 0.3 * 0.7 / len(steps)))
    other = run(
        load("mll_sgd", local_iterations=10, step_probability=0.3, seed=2),
        Fixed((1.0,) * 4),
        1.0,
        seconds=2000.0,
    )
    assert [m.work for m in other.meetings] != [m.work for m in log.meetings]


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("ssp", dict(staleness=-1), "staleness must be a whole number of at least 0, not -1"),
        ("gssp", dict(group_size=0), "group_size must be a whole number of at least 1, not 0"),
        ("gssp", dict(grouping="by eye"), "natural_breaks, by_time or static, not 'by eye'"),
        ("gssp", dict(grouping="by_time", group_size=None), "grouping by_time needs a group_size"),
        ("mll_sgd", dict(rounds="long"), "rounds must be barrier or slots, not 'long'"),
        (
            "mll_sgd",
            dict(rounds="slots", step_probability=0.5),
            "with slots, step_probability must be 1",
        ),
        ("gssp", dict(momentum=1.0), "momentum must be at least 0 and below 1, not 1.0"),
        ("mll_sgd", dict(hub_rounds=0), "hub_rounds must be a whole number of at least 1"),
        ("mll_sgd", dict(step_probability=0.0), "step_probability must be above 0 and at most 1"),
    ],
)
def test_bad_parameters_are_refused(name, parameters, said):
    with pytest.raises(ValueError, match=f"^{name}: .*{said}"):
        load(name, **parameters)
