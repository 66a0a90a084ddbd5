"""The fusions that look at costs, against brute force, closed forms and the printed algorithm."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slowlink.methods.fusion import Costs, by_values, checked, every_message, load, timeline
from slowlink.methods.fusion import layer_fusion as layer_fusion_module
from slowlink.methods.fusion import optimal as optimal_module
from slowlink.methods.fusion.layer_fusion import Search
from slowlink.methods.fusion.mg_wfbp import startup_and_rate


def nothing(values):
    return 0.0


def affine(alpha, beta):
    return lambda values: alpha + beta * values


def seconds(name, sizes, costs, **parameters):
    return timeline(sizes, load(name, **parameters)(sizes, costs), costs).iteration_s


# --- optimal


@st.composite
def cases(draw, largest=16):
    """Sizes and costs: affine, concave, nothing, in steps or without any order."""
    n = draw(st.integers(1, largest))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = rng.integers(1, 13, n).tolist()
    values = np.arange(sum(sizes) + 1)

    def cost():
        kind = draw(st.sampled_from(["nothing", "affine", "concave", "steps", "any"]))
        alpha, beta = rng.exponential([draw(st.sampled_from([0.0, 0.1, 1.0])), 0.1])
        table = {
            "nothing": 0.0 * values,
            "affine": alpha + beta * values,
            "concave": alpha + 3 * beta * values**0.6,
            "steps": alpha + beta * np.maximum(8, -(-values // 16) * 16),
            "any": rng.exponential(alpha + 10 * beta, len(values)),
        }[kind]
        return lambda size: float(table[size])

    backward = rng.exponential(draw(st.sampled_from([0.01, 0.3, 2.0])), n).tolist()
    waited = float(rng.exponential())
    return sizes, Costs.by_values(sizes, backward, cost(), cost(), cost(), forward_s=waited)


def iteration_of_all_groupings(sizes, costs):
    """Seconds of all 2^(n-1) groupings: groups end at the bits of the grouping's number."""
    n = len(sizes)
    number = np.arange(2 ** (n - 1))
    begin = np.zeros(len(number), int)
    now, sent, arrived, begins = np.full(len(number), costs.forward_s), 0.0, [], []

    def of(cost, end):
        return np.array([cost(first, end) for first in range(end)])[begin]

    ends = [(number >> i & 1 == 1) | (i == n - 1) for i in range(n)]
    for i in range(n):
        now = now + costs.backward_s[i]
        now = np.where(ends[i], now + of(costs.encode, i + 1), now)
        sent = np.where(ends[i], np.maximum(now, sent) + of(costs.communicate, i + 1), sent)
        arrived.append(sent)
        begins.append(begin)
        begin = np.where(ends[i], i + 1, begin)
    for i in range(n):
        begin = begins[i]
        now = np.where(ends[i], np.maximum(now, arrived[i]) + of(costs.decode, i + 1), now)
    return now


@given(cases(largest=6))
@settings(max_examples=10, deadline=None)
def test_brute_force_counts_as_the_timeline_does(case):
    sizes, costs = case
    n = len(sizes)
    for number, took in enumerate(iteration_of_all_groupings(sizes, costs)):
        ends = [i + 1 for i in range(n - 1) if number >> i & 1]
        groups = [list(range(a, b)) for a, b in itertools.pairwise([0, *ends, n])]
        assert timeline(sizes, groups, costs).iteration_s == pytest.approx(took, rel=1e-12)


@given(cases(), st.sampled_from([1, optimal_module.WIDTH]))
@settings(max_examples=80, deadline=None)
def test_optimal_is_the_best_of_all_groupings(case, width):
    sizes, costs = case
    best = iteration_of_all_groupings(sizes, costs).min()
    with pytest.MonkeyPatch.context() as patch:  # at width 1 the second sweep does the work
        patch.setattr(optimal_module, "WIDTH", width)
        assert seconds("optimal", sizes, costs) == pytest.approx(best, rel=1.1e-9, abs=1e-12)


@given(cases(), st.sampled_from([1e-3, 0.05, 0.5]))
@settings(max_examples=20, deadline=None)
def test_tolerance_bounds_what_the_result_takes_longer(case, tolerance):
    sizes, costs = case
    best = iteration_of_all_groupings(sizes, costs).min()
    took = seconds("optimal", sizes, costs, tolerance=tolerance)
    assert best * (1 - 1e-12) <= took <= best * (1 + tolerance) * (1 + 1e-12)


@given(cases(largest=8))
@settings(max_examples=40, deadline=None)
def test_bounds_of_the_optimum_hold_and_raising_changes_nothing(case):
    sizes, costs = case
    bounds = optimal_module._Bounds(*optimal_module._segments(costs))
    rng = np.random.default_rng(sum(sizes))
    i = int(rng.integers(len(sizes)))
    state = rng.exponential(3, (4, 1))

    def finish(state):
        """The end of the iteration for all groupings of tensors i … n-1, after ``state``."""
        c, m, d, w = state[:, 0]
        rest = sizes[i:]
        times = []
        for number in range(2 ** (len(rest) - 1)):
            cut = [a + 1 for a in range(len(rest) - 1) if number >> a & 1]
            now, sent, decoded, work = c, m, d, w
            for a, b in itertools.pairwise([0, *cut, len(rest)]):
                message = i + a, i + b
                compute = sum(costs.backward_s[i + a : i + b]) + costs.encode(*message)
                now, work = now + compute, work + compute + costs.decode(*message)
                sent = max(now, sent) + costs.communicate(*message)
                decoded = max(decoded, sent) + costs.decode(*message)
            times.append(max(work, decoded))
        return np.array(times)

    times = finish(state)
    raised = bounds.raised(state, i)
    assert np.all(raised >= state)
    assert finish(raised) == pytest.approx(times, rel=1e-12)
    assert bounds.least(state, i)[0] <= times.min() * (1 + 1e-12)
    assert bounds.least(raised, i)[0] <= times.min() * (1 + 1e-12)


def test_optimum_of_many_tensors_without_start_up_is_the_closed_form():
    rng = np.random.default_rng(0)
    sizes, backward = rng.integers(1, 10**6, 161), rng.exponential(1e-3, 161)
    rest = dict(encode=nothing, communicate=affine(0.0, 2e-9), decode=nothing, forward_s=0.1)
    costs = Costs.by_values(sizes.tolist(), backward.tolist(), **rest)
    # Nothing is won by waiting, so each tensor goes by itself; some tensor is sent as soon as it
    # is ready, and the network is busy from then on.
    ready, left = 0.1 + np.cumsum(backward), np.cumsum(sizes[::-1])[::-1]
    closed = (ready + 2e-9 * left).max()
    assert seconds("optimal", sizes.tolist(), costs) == pytest.approx(closed, rel=2e-9)


def test_one_group_where_only_calls_cost():
    sizes, alone = [5, 1, 8, 3], [[0, 1, 2, 3]]
    backward, coding = [1.0, 2.0, 3.0, 4.0], (affine(1.0, 0.1), affine(1.0, 0.2))
    costs = Costs.by_values(sizes, backward, coding[0], nothing, coding[1])
    assert load("optimal")(sizes, costs) == load("layer_fusion")(sizes, costs) == alone
    assert load("mg_wfbp")(sizes, costs) == load("layer_wise")(sizes)  # blind to what coding costs


def test_optimal_gives_up_aloud(monkeypatch):
    monkeypatch.setattr(optimal_module, "LIMIT", 2)
    sizes, each = [3, 1, 4, 1, 5, 9, 2, 6], (affine(0.1, 0.01), affine(0.2, 0.1), affine(0.1, 0.02))
    costs = Costs.by_values(sizes, [0.1] * 8, *each)
    with pytest.raises(ValueError, match=r"optimal: more than 2 states after \d of 8 tensors"):
        load("optimal", tolerance=1e-12)(sizes, costs)


@pytest.mark.parametrize("tolerance", [0.0, -1e-9, 1.0, float("nan")])
def test_optimal_refuses_a_tolerance_that_is_none(tolerance):
    with pytest.raises(ValueError, match="tolerance must be above 0 and below 1"):
        load("optimal", tolerance=tolerance)


# --- layer_fusion


@given(cases(), st.sampled_from([0.0, 0.001, 0.5]))
@settings(max_examples=40, deadline=None)
def test_layer_fusion_lies_between_the_optimum_and_the_whole_model(case, epsilon):
    sizes, costs = case
    took = seconds("layer_fusion", sizes, costs, epsilon=epsilon)
    assert took <= seconds("whole_model", sizes, costs) * (1 + 1e-12)
    assert took >= iteration_of_all_groupings(sizes, costs).min() * (1 - 1e-12)


@given(cases())
@settings(max_examples=20, deadline=None)
def test_the_search_reads_the_clock_of_the_timeline(case):
    sizes, costs = case
    search = Search(checked("test", sizes, costs))
    for middle in range(1, len(sizes)):
        ends = sorted({middle, (middle + len(sizes)) // 2, len(sizes)})
        groups = [list(range(a, b)) for a, b in itertools.pairwise([0, *ends])]
        took = timeline(sizes, groups, costs).iteration_s
        assert search(layer_fusion_module._whole, ends)[0] == pytest.approx(took, rel=1e-12)


@given(
    st.lists(st.tuples(st.integers(1, 100), st.floats(0.01, 10)), min_size=2, max_size=60),
    st.floats(0, 5),
    st.floats(0.001, 1),
)
@settings(max_examples=40, deadline=None)
def test_two_groups_are_the_best_two_where_time_has_one_valley(tensors, alpha, beta):
    # Uncoded messages of α + β·n: of two groups, a later split makes the first wait longer and
    # what is left after backward shorter.
    sizes, backward = zip(*tensors, strict=True)
    costs = Costs.by_values(sizes, backward, nothing, affine(alpha, beta), nothing)
    n = len(sizes)
    two = min(
        timeline(sizes, [list(range(i)), list(range(i, n))], costs).iteration_s for i in range(1, n)
    )
    took = seconds("layer_fusion", sizes, costs, epsilon=0.0)
    assert took <= two * (1 + 1e-12)


def in_64ths(costs, at_once=False):
    """Costs whose sums are exact in any order, so that two searches see the same ties."""

    def rounded(seconds):
        return np.round(np.asarray(seconds) * 64) / 64

    asked = (lambda a, b, table=table: table[a, b] for table in rounded(every_message(costs)))
    backward, forward = rounded(costs.backward_s).tolist(), float(rounded(costs.forward_s))
    return Costs(backward, *asked, forward_s=forward, at_once=at_once)


def plain_layer_fusion(sizes, costs, epsilon):
    """The search as its docstring tells it, on the clock of the timeline."""
    n = len(sizes)

    def timed(ends):
        groups = [list(range(a, b)) for a, b in itertools.pairwise([0, *ends])]
        return timeline(sizes, groups, costs).iteration_s, ends

    def valley(others, free):
        here = [timed(tuple(sorted((*others, end)))) for end in free]
        low, high, seen = 0, len(free) - 1, {0}
        while low < high:
            middle = (low + high) // 2
            seen |= {middle, middle + 1}
            falls = here[middle][0] > here[middle + 1][0]
            low, high = (middle + 1, high) if falls else (low, middle)
        return min(here[i] for i in seen)

    def settled(found):
        while True:
            before = found
            for i in range(len(found[1]) - 1):
                ends = found[1]
                free = range((ends[i - 1] if i else 0) + 1, ends[i + 1])
                found = min(found, valley(ends[:i] + ends[i + 1 :], free))
            if found == before:
                return found

    best = before = timed((n,))
    for _ in range(2, n + 1):
        tried = []
        for a, b in itertools.pairwise((0, *before[1])):
            for free in (range(a + 1, b), [(a + b) // 2] if b - a > 1 else []):
                tried += [settled(valley(before[1], free))] if len(free) else []
        now = min(tried)
        best = min(best, now)
        if now[0] > before[0] or before[0] - now[0] < epsilon * before[0]:
            break
        before = now
    return best


@given(cases(), st.sampled_from([0.0, 0.001, 0.5]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_layer_fusion_is_the_search_that_it_tells(case, epsilon, at_once):
    sizes, costs = case
    costs = in_64ths(costs, at_once)
    took, _ = plain_layer_fusion(sizes, costs, epsilon)
    assert seconds("layer_fusion", sizes, costs, epsilon=epsilon) == took


# Stages of a residual network: values of its tensors, in the order of backward.
STAGES = [2_000_000] + [c for n in (3, 6, 4, 3) for c in [2048 * n, 500_000 // n, 256] * (6 * n)]


@pytest.mark.slow
@pytest.mark.parametrize("coding", [(2e-4, 1e-10), (1e-3, 1e-9)])
@pytest.mark.parametrize("sending", [(1e-4, 1e-9), (2e-4, 8e-9), (2e-3, 2e-9)])
@pytest.mark.parametrize("backward_s", [0.02, 0.2])
def test_layer_fusion_is_within_two_per_cent_of_the_optimum(coding, sending, backward_s):
    n = len(STAGES)
    coded, sent = affine(*coding), affine(*sending)
    costs = Costs.by_values(STAGES, [backward_s / n] * n, coded, sent, coded)
    best = seconds("optimal", STAGES, costs)
    assert seconds("layer_fusion", STAGES, costs) <= 1.02 * best


def test_layer_fusion_leaves_a_plateau():
    # After the best two groups, splitting either brings next to nothing unless both ends move.
    n = 120
    sizes = [1] * 40 + [40] * 40 + [1] * 40
    coded = affine(0.5, 0.0)
    costs = Costs.by_values(sizes, [1.0] * n, coded, affine(10.0, 0.06), coded)
    assert len(load("optimal")(sizes, costs)) > 2
    assert seconds("layer_fusion", sizes, costs) <= 1.02 * seconds("optimal", sizes, costs)


def test_layer_fusion_stops_where_a_group_brings_less_than_epsilon():
    # Sending is half as long as backward, so two groups hide nearly half of it.
    sizes = [1] * 30
    costs = Costs.by_values(sizes, [1.0] * 30, nothing, affine(0.0, 0.5), nothing)
    counts = [len(load("layer_fusion", epsilon=e)(sizes, costs)) for e in (0.9, 0.1, 0.0)]
    assert counts[0] == 2  # X_2 is looked at, better by less than ε, and returned
    assert counts == sorted(counts) and counts[2] > counts[1]


def as_told(sizes, costs, epsilon):
    """Sketch-Fusion §4.3 word for word: another group a step, where a binary search over the ends
    that are free puts it; X_y is returned once it is worse, or not better by ε."""
    n, looked_at = len(sizes), set()
    clock = checked("test", sizes, costs)

    def iteration_s(ends):
        looked_at.add(tuple(sorted(ends)))
        groups = [list(range(a, b)) for a, b in itertools.pairwise([0, *sorted(ends)])]
        return timeline(sizes, groups, clock).iteration_s

    ends, before = {n}, iteration_s({n})
    while len(ends) < n:
        free = [end for end in range(1, n) if end not in ends]
        seen = {free[0]: iteration_s(ends | {free[0]})}
        while len(free) > 1:
            half = (len(free) - 1) // 2
            for end in free[half : half + 2]:
                seen[end] = iteration_s(ends | {end})
            left = seen[free[half]] <= seen[free[half + 1]]
            free = free[: half + 1] if left else free[half + 1 :]
        # Of equally good ones the grouping that ends first.
        ends = min((took, tuple(sorted(ends | {end}))) for end, took in seen.items())[1]
        now, ends = iteration_s(ends), set(ends)
        if now > before or before - now < epsilon * before:
            break
        before = now
    return sorted(ends), len(looked_at)


@given(cases(), st.sampled_from([0.0, 0.001, 0.5]))
@settings(max_examples=40, deadline=None)
def test_layer_fusion_to_the_letter(case, epsilon):
    sizes, costs = case
    costs = in_64ths(costs)
    groups = load("layer_fusion", epsilon=epsilon, literal=True)(sizes, costs)
    ends, looked_at = as_told(sizes, costs, epsilon)
    assert groups == [list(range(a, b)) for a, b in itertools.pairwise([0, *ends])]
    n = len(sizes)
    assert looked_at <= n * (2 * np.ceil(np.log2(n + 1)) + 2)  # O(N log N)


def test_the_letter_returns_a_grouping_that_is_worse():
    # Each message costs more than all that overlapping it could hide.
    sizes = [1] * 8
    costs = Costs.by_values(sizes, [0.01] * 8, affine(1.0, 0.0), nothing, nothing)
    assert len(load("layer_fusion")(sizes, costs)) == 1
    assert len(load("layer_fusion", literal=True)(sizes, costs)) == 2


def test_literal_is_true_or_false():
    with pytest.raises(ValueError, match="layer_fusion: literal must be true or false, not 1"):
        load("layer_fusion", literal=1)


@pytest.mark.parametrize("epsilon", [-0.1, 1.0, float("nan")])
def test_layer_fusion_refuses_an_epsilon_that_is_none(epsilon):
    with pytest.raises(ValueError, match="epsilon must be at least 0 and below 1"):
        load("layer_fusion", epsilon=epsilon)


# --- mg_wfbp


def as_printed(sizes, backward, alpha, beta):
    """Layers that merge with their successor, all start times made anew after each merge."""
    values, n = list(sizes), len(sizes)
    ready = np.cumsum(backward)
    sending = [alpha + beta * size for size in sizes]
    merged = []
    for layer in range(n - 1):
        starts = [ready[0]]
        for i in range(1, n):
            starts.append(max(starts[-1] + sending[i - 1], ready[i]))
        if ready[layer + 1] < starts[layer] + alpha:
            values[layer + 1] += values[layer]
            sending[layer], sending[layer + 1] = 0.0, alpha + beta * values[layer + 1]
            merged.append(layer)
    return merged


@pytest.mark.parametrize("seed", range(30))
def test_mg_wfbp_merges_as_printed(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 40))
    sizes, backward = rng.integers(1, 1000, n).tolist(), rng.exponential(1.0, n).tolist()
    alpha, beta = rng.exponential([1.0, 0.003])
    each = affine(9.0, 9.0), affine(alpha, beta), nothing
    costs = Costs.by_values(sizes, backward, *each, forward_s=3.0)
    groups = load("mg_wfbp")(sizes, costs)
    ends = {group[-1] for group in groups}
    assert sorted(set(range(n)) - ends) == as_printed(sizes, backward, alpha, beta)


def test_start_up_and_rate_of_an_affine_cost_are_its_own():
    for alpha, beta in [(1e-3, 2e-9), (0.0, 1e-9), (5e-4, 0.0), (0.0, 0.0)]:
        sizes = [64, 1000, 2_359_296, 1000]
        fit = startup_and_rate(sizes, by_values(sizes, affine(alpha, beta)))
        assert fit == pytest.approx((alpha, beta), rel=1e-6, abs=1e-15)
    fit = startup_and_rate([0, 0], by_values([0, 0], affine(1.0, 1.0)))
    assert fit == pytest.approx((1.0, 0.0))


def test_mg_wfbp_waits_for_all_or_none():
    sizes = [10] * 6
    dear = Costs.by_values(sizes, [0.1] * 6, nothing, affine(1.0, 0.001), nothing)
    assert load("mg_wfbp")(sizes, dear) == load("whole_model")(sizes)
    cheap = Costs.by_values(sizes, [1.0] * 6, nothing, affine(0.5, 0.001), nothing)
    assert load("mg_wfbp")(sizes, cheap) == load("layer_wise")(sizes)
