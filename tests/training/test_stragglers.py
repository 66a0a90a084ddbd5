"""Models of uneven workers: their ranges, their independence of call order, closed forms."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slowlink.testbed.training.stragglers import (
    Drawn,
    Fixed,
    Jitter,
    Trace,
    Varying,
    removable,
    removable_draws,
    uniform,
)

BASE = Fixed((1.0, 2.0))
MODELS = [
    BASE,
    uniform(2, 0.1, seed=3),
    Drawn(0.5, (1.0, 2.5), seed=1),
    Jitter(BASE, 0.1, seed=1),
    Varying(BASE, 5.0, seed=1),
    Trace(((1.0, 2.0), (3.0,))),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_the_order_of_asking_does_not_matter(model):
    asked = [(w, k, 0.7 * k) for w in (0, 1) for k in range(1, 20)]
    forwards = {key: model(*key) for key in asked}
    assert forwards == {key: model(*key) for key in reversed(asked)}
    assert all(0 < seconds < math.inf for seconds in forwards.values())


def test_fixed_factors_are_uniform_from_one_to_the_highest():
    times = np.array(uniform(20_000, 0.5, 2.5, seed=1).times)
    assert 0.5 <= times.min() < 0.51 and 1.24 < times.max() <= 1.25
    assert times.mean() == pytest.approx(0.5 * 1.75, rel=0.01)
    assert uniform(8, seed=1) == uniform(8, seed=1) != uniform(8, seed=2)


def test_drawn_times_are_uniform_up_to_ones_own():
    model = Drawn(0.5, (1.0, 2.5), seed=2)
    times = [model(1, k, 0.0) for k in range(1, 2001)]
    assert 0.5 <= min(times) < 0.51 and 1.24 < max(times) <= 1.25
    assert np.mean(times) == pytest.approx(0.5 * 1.75, rel=0.02)
    assert {model(0, k, 0.0) for k in range(1, 20)} == {0.5}
    with pytest.raises(ValueError, match="Drawn: highest must be a factor of at least 1"):
        Drawn(0.5, (0.9,))


def test_jitter_keeps_to_its_share_and_to_the_mean():
    jittered = [Jitter(BASE, 0.1, seed=2)(1, k, 0.0) for k in range(1, 2001)]
    assert 1.8 <= min(jittered) < 1.81 and 2.19 < max(jittered) <= 2.2
    assert np.mean(jittered) == pytest.approx(2.0, rel=0.01)
    assert Jitter(BASE, 0.0)(1, 5, 9.0) == 2.0


def test_speed_varies_by_the_moment_alone():
    steps = Varying(BASE, 5.0, 3.0, seed=4)
    first = {steps(0, k, t) for k in (1, 2) for t in (0.0, 2.5, 4.999)}
    assert len(first) == 1 and first != {steps(0, 1, 5.0)}
    assert steps(0, 1, 1.0) != steps(1, 1, 1.0) / 2


def test_a_trace_starts_again_after_its_end():
    trace = Trace(((1.0, 2.0, 3.0), (4.0,)))
    assert [trace(0, k, 0.0) for k in range(1, 6)] == [1.0, 2.0, 3.0, 1.0, 2.0]
    assert [trace(1, k, 0.0) for k in (1, 2)] == [4.0, 4.0]


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=20))
def test_nothing_can_be_removed_from_equals_and_never_less_than_nothing(times):
    assert removable(times) >= 1 - 1e-12
    assert removable([times[0]] * 5) == pytest.approx(1)
    assert removable([t * 7 for t in times]) == pytest.approx(removable(times))


@pytest.mark.parametrize(("workers", "median"), [(8, 1.41), (12, 1.45), (16, 1.47)])
def test_what_removing_all_waiting_gives_over_uniform_draws(workers, median):
    draws = removable_draws(workers, 50_000, seed=5)
    assert np.median(draws) == pytest.approx(median, abs=0.006)
    # One straggler at 2.5 and everybody else at 1 is the most there can be.
    most = removable([2.5] + [1.0] * (workers - 1))
    assert most == pytest.approx(1 / workers + 2.5 * (workers - 1) / workers)
    assert draws.max() < most
    assert np.percentile(draws, 95) == pytest.approx(1.64, abs=0.012)


def test_many_workers_come_to_the_limit_of_the_uniform_law():
    assert np.median(removable_draws(5000, 20)) == pytest.approx(
        2.5 * math.log(2.5) / 1.5, rel=0.01
    )


def test_a_draw_is_that_of_its_seed():
    assert removable_draws(4, 3, seed=9).tolist() == removable_draws(4, 3, seed=9).tolist()
    assert removable_draws(4, 1, seed=9)[0] == pytest.approx(
        removable(np.random.default_rng(9).uniform(1, 2.5, 4).tolist())
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Fixed((1.0, 0.0)), "times must be finite, above 0 s"),
        (lambda: Fixed(()), "at least one"),
        (lambda: Trace(((1.0,), ())), "worker 1: times"),
        (lambda: Jitter(BASE, 1.0), "share must be at least 0 and below 1"),
        (lambda: Varying(BASE, 0.0), "period_s must be above 0 s"),
        (lambda: Varying(BASE, 1.0, 0.5), "highest must be a factor of at least 1"),
        (lambda: uniform(4, highest=math.inf), "highest must be a factor of at least 1"),
        (lambda: removable([1.0, math.nan]), "removable: times"),
    ],
)
def test_bad_input_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()
