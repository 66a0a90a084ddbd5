"""Theorems 1 and 2 on a quadratic: closed forms, worked bounds, conditions, and that they hold."""

from __future__ import annotations

import numpy as np
import pytest

from slowlink.testbed.training.quadratic import (
    Quadratic,
    Quantised,
    Sparse,
    bound,
    least_steps,
    quantise,
    run,
    slope,
)


def problem(size: int = 12, variance: float = 6.0, workers: int = 3, batch: int = 6) -> Quadratic:
    random = np.random.default_rng(1)
    curvatures = np.geomspace(0.1, 2, size)
    return Quadratic(
        curvatures,
        random.standard_normal(size),
        random.standard_normal(size),
        variance,
        workers,
        batch,
    )


def closed_form(given: Quadratic, steps: int, alpha: float) -> float:
    """Expected mean square gradient of plain SGD: each coordinate is a first-order recursion."""
    gamma = alpha * np.sqrt(given.batch / steps)
    keep = 1 - gamma * given.curvatures
    noise = gamma**2 * given.variance / (len(keep) * given.batch)
    square, total = (given.start - given.optimum) ** 2, 0.0
    for _ in range(steps):
        total += float((given.curvatures**2 * square).sum())
        square = keep**2 * square + noise
    return total / steps


@pytest.mark.parametrize("method", [Sparse(1), Sparse(5), Sparse(100)])
def test_without_noise_it_is_gradient_descent(method):
    given = problem(variance=0)
    gamma = 0.1 * (6 / 50) ** 0.5
    ratio = (1 - gamma * given.curvatures) ** 2
    gradients = (given.curvatures * (given.start - given.optimum)) ** 2
    expected = (gradients * (1 - ratio**50) / (1 - ratio)).sum() / 50
    assert run(given, method, 50, 0.1, seed=0) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("workers", "batch"), [(1, 1), (1, 6), (3, 6)])
def test_noise_leaves_the_expected_mean_square(workers, batch):
    given = problem(workers=workers, batch=batch)
    values = [run(given, Sparse(), 100, 0.2, seed) for seed in range(150)]
    error = np.std(values) / len(values) ** 0.5
    assert abs(np.mean(values) - closed_form(given, 100, 0.2)) < 4 * error


@pytest.mark.parametrize("period", [1, 3, 4])
def test_sparse_averaging_equals_a_naive_one(period):
    given, steps, alpha = problem(), 40, 0.3
    random = np.random.default_rng(9)
    gamma = alpha * (given.batch / steps) ** 0.5
    models = [given.start.copy() for _ in range(3)]
    total, averaged = 0.0, []
    for t in range(steps):
        mean = sum(models) / 3
        total += sum((given.curvatures * (mean - given.optimum)) ** 2)
        noise = random.standard_normal((3, 12)) * (6.0 / 12 / 2) ** 0.5  # 2 samples a worker
        for model, deviation in zip(models, noise, strict=True):
            model -= gamma * (given.curvatures * (model - given.optimum) + deviation)
        averaged.append({j for j in range(12) if (j + t) % period == 0})
        for j in averaged[-1]:
            mean_j = sum(model[j] for model in models) / 3
            for model in models:
                model[j] = mean_j
    assert run(given, Sparse(period), steps, alpha, seed=9) == pytest.approx(
        total / steps, rel=1e-10
    )
    for t in range(steps - period + 1):  # assumption 4
        assert set.union(*averaged[t : t + period]) == set(range(12))


@pytest.mark.parametrize(("levels", "groups"), [(1, 1), (2, 3), (4, 12), (16, 1)])
def test_the_quantiser_is_unbiased_within_its_error_bound(levels, groups):
    method, draws = Quantised(levels, groups), 20_000
    values = np.random.default_rng(3).standard_normal(12)
    sent = quantise(np.tile(values, (draws, 1)), method, np.random.default_rng(4))
    norms = np.sqrt((values.reshape(groups, -1) ** 2).sum(1)).repeat(12 // groups)
    whole = sent * levels / norms
    np.testing.assert_allclose(whole, np.round(whole), atol=1e-9)
    # Rounding x·s/norm up with the chance of its fraction has this variance.
    fraction = np.abs(values) * levels / norms % 1
    variance = fraction * (1 - fraction) * (norms / levels) ** 2
    assert (abs(sent.mean(0) - values) <= 5 * (variance / draws) ** 0.5 + 1e-9).all()
    assert variance.sum() <= method.error(12) * (values**2).sum()
    squares = ((sent - values) ** 2).sum(1)
    assert abs(squares.mean() - variance.sum()) <= 5 * squares.std() / draws**0.5 + 1e-9


def test_zeros_quantise_to_zeros():
    assert not quantise(np.zeros((2, 6)), Quantised(3, 2), np.random.default_rng(0)).any()


def worked() -> Quadratic:
    """L = 1, f(x_0) - f* = ½(1·4 + ½·4) = 3, σ² = 4, n = 2, B = 4."""
    return Quadratic(np.array([1, 0.5]), np.array([3.0, 1]), np.array([1.0, 3]), 4.0, 2, 4)


@pytest.mark.parametrize(
    ("method", "least", "expected"),
    [
        # 12·2·4·¼·2² ; (4/½·3 + 2·½·4)/40 + 2·2·2²·¼·4/400
        (Sparse(2), 96, 28 / 40 + 16 / 400),
        (Sparse(1), 24, 28 / 40 + 8 / 400),
        # q = min(2/4, √2/2) = ½: 4·¼·(1 + ½/2)² ; (2/½·3 + 1½·½·4)/40
        (Quantised(2), 1.5625, 15 / 40),
        # q = min(¼, ½) = ¼: 4·¼·(1 + ¼/2)² ; (12 + 1¼·½·4·2)/40
        (Quantised(2, groups=2), 1.265625, 17 / 40),
    ],
)
def test_bounds_by_hand(method, least, expected):
    given = worked()
    assert (given.smoothness, given.gap) == (1, 3)
    assert least_steps(given, method, 0.5) == least
    assert bound(given, method, 400, 0.5) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("method", [Sparse(2), Quantised(1)])
def test_a_bound_below_its_least_steps_is_refused(method):
    given = problem()
    least = least_steps(given, method, 0.5)
    gamma = given.step(0.5, least)
    n, q = given.workers, 0 if isinstance(method, Sparse) else method.error(12)
    assert gamma * given.smoothness <= 1 and (1 + q / n) * gamma * given.smoothness < 2
    if isinstance(method, Sparse):
        assert 6 * n * method.period**2 * given.smoothness**2 * gamma**2 < 1
    bound(given, method, int(least) + 1, 0.5)
    with pytest.raises(ValueError, match=r"quadratic: the theorem needs T >= [\d.]+, not "):
        bound(given, method, int(least) - 1, 0.5)


@pytest.mark.parametrize("method", [Sparse(1), Sparse(4), Quantised(2, 1), Quantised(2, 6)])
@pytest.mark.parametrize("steps", [2000, 4000])
def test_the_theorems_hold(method, steps):
    given = problem()
    values = [run(given, method, steps, 0.2, seed) for seed in range(3)]
    assert np.mean(values) <= bound(given, method, steps, 0.2)


def test_more_groups_raise_the_bound_but_not_what_it_bounds():
    """Groups share σ² and each rounds to a smaller norm, so y is a factor of the bound alone."""
    given, alpha, steps = problem(), 0.2, 2000
    means, bounds = [], []
    for groups in (1, 12):
        method = Quantised(1, groups)
        means.append(np.mean([run(given, method, steps, alpha, seed) for seed in range(3)]))
        bounds.append(bound(given, method, steps, alpha))
    assert bounds[1] > bounds[0] and means[1] < means[0]


def test_slope_of_a_power():
    steps = [10, 100, 1000]
    assert slope(steps, [3 * t**-0.5 for t in steps]) == pytest.approx(-0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 7}, "batch must be a multiple of the workers, not 7 over 3"),
        ({"variance": -1.0}, "variance >= 0"),
        ({"size": 0}, "one size, not 0"),
    ],
)
def test_bad_problems_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"quadratic: .*{message}"):
        problem(**changes)


@pytest.mark.parametrize(
    ("method", "steps", "message"),
    [
        (Sparse(0), 10, "period must be >= 1, not 0"),
        (Quantised(0), 10, "levels >= 1"),
        (Quantised(2, 5), 10, "groups that divide 12 coordinates, not 2 and 5"),
        (Sparse(), 0, "needs steps >= 1, not 0"),
    ],
)
def test_bad_runs_are_refused(method, steps, message):
    with pytest.raises(ValueError, match=f"quadratic: .*{message}"):
        run(problem(), method, steps, 0.1, seed=0)
