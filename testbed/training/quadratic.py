"""Theorems 1 and 2 of Sketch-Fusion, checked where every constant in them is known.

The problem is f(x) = ½ Σ_j λ_j (x_j - x*_j)². Its gradients are Lipschitz with L = max λ, n workers
share it, and a sample's gradient has normal noise of total variance σ² (assumptions 1-3). A step of
γ = α√(B/T) uses B samples, B/n a worker. Both theorems bound the mean over T steps of ‖∇f‖² at the
workers' mean model, started alike at x_0.

How they are read. Theorem 1 restates Corollary 1 of Jiang and Agrawal 2018 (its [19]), where X_t
are local *models*, not gradients as the text has it: each worker steps by itself, then a part of
the coordinates is averaged over the workers, each within any p consecutive steps (assumption 4).
Here step t averages the coordinates j with j + t divisible by p. Theorem 2 restates their
Corollary 2, for one model and an unbiased quantiser with E‖Q(g) - g‖² ≤ q‖g‖²; the theorem adds
that error feedback is applied, which neither corollary nor proof uses, and it is left out. Each of
y groups of coordinates is quantised by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Quadratic:
    """A problem and who works on it.

    Attributes
    ----------
    curvatures: (d,) λ > 0.
    start, optimum: (d,) x_0 and x*.
    variance: σ², of one sample's gradient, over all coordinates.
    workers: n.
    batch: B, samples a step over all workers.
    """

    curvatures: np.ndarray
    start: np.ndarray
    optimum: np.ndarray
    variance: float
    workers: int = 1
    batch: int = 1

    def __post_init__(self) -> None:
        if not len(self.curvatures) == len(self.start) == len(self.optimum) > 0:
            raise ValueError("quadratic: curvatures, start and optimum need one size, not 0")
        if not (np.min(self.curvatures) > 0 and self.variance >= 0):
            raise ValueError("quadratic: needs curvatures > 0 and a variance >= 0")
        if self.workers < 1 or self.batch < 1 or self.batch % self.workers:
            raise ValueError(
                f"quadratic: batch must be a multiple of the workers, "
                f"not {self.batch} over {self.workers}"
            )

    @property
    def smoothness(self) -> float:
        """L."""
        return float(np.max(self.curvatures))

    @property
    def gap(self) -> float:
        """f(x_0) - f*."""
        return float(self.curvatures @ (self.start - self.optimum) ** 2) / 2

    def step(self, alpha: float, steps: int) -> float:
        """γ = α√(B/T)."""
        return alpha * (self.batch / steps) ** 0.5


@dataclass(frozen=True)
class Sparse:
    """Coordinates are averaged in turn, each every ``period`` (p) steps; 1 is plain SGD."""

    period: int = 1


@dataclass(frozen=True)
class Quantised:
    """QSGD: stochastic rounding to ``levels`` (s) of the 2-norm, in ``groups`` (y) of equal size.

    Alistarh et al. 2017, Lemma 3.1: unbiased, q = min(size/s², √size/s) for groups of ``size``.
    """

    levels: int
    groups: int = 1

    def error(self, size: int) -> float:
        """q for a gradient of ``size`` values."""
        each = size / self.groups
        return min(each / self.levels**2, each**0.5 / self.levels)


def run(
    problem: Quadratic, method: Sparse | Quantised, steps: int, alpha: float, seed: int
) -> float:
    """The mean of ‖∇f‖² at the mean model before each of T = ``steps`` steps.

    Raises
    ------
    ValueError
        No steps, a period below 1, no levels, or groups that do not divide the coordinates.
    """
    n, d = problem.workers, len(problem.start)
    if steps < 1:
        raise ValueError(f"quadratic: needs steps >= 1, not {steps}")
    _check(method, d)
    random = np.random.default_rng(seed)
    step = problem.step(alpha, steps)
    deviation = (problem.variance / d * n / problem.batch) ** 0.5  # of a worker's coordinate
    models = np.tile(np.asarray(problem.start, float), (n, 1))
    total = 0.0
    for t in range(steps):
        full = problem.curvatures * (models - problem.optimum)
        total += float((full.mean(0) ** 2).sum())
        gradients = full + deviation * random.standard_normal((n, d))
        if isinstance(method, Sparse):
            models -= step * gradients
            part = slice(-t % method.period, None, method.period)
            models[:, part] = models[:, part].mean(0)
        else:
            models -= step * quantise(gradients, method, random).mean(0)
    return total / steps


def quantise(gradients: np.ndarray, method: Quantised, random: np.random.Generator) -> np.ndarray:
    """(n, d) quantised gradients, unbiased."""
    groups = gradients.reshape(len(gradients), method.groups, -1)
    norms = np.sqrt((groups**2).sum(2, keepdims=True))
    unit = np.divide(norms, method.levels, out=np.ones_like(norms), where=norms > 0)
    levels = np.floor(np.abs(groups) / unit + random.random(groups.shape))
    return (np.sign(groups) * levels * unit).reshape(gradients.shape)


def least_steps(problem: Quadratic, method: Sparse | Quantised, alpha: float) -> float:
    """The T from which the method's theorem holds.

    Theorem 1: 12nBα²p²L² (which implies Lγ ≤ 1 and 6np²L²γ² < 1). Theorem 2: Bα²L²(1 + q/n)²
    (which implies (1 + q/n)Lγ < 2).
    """
    n, d = problem.workers, len(problem.start)
    _check(method, d)
    common = problem.batch * alpha**2 * problem.smoothness**2
    if isinstance(method, Sparse):
        return 12 * n * common * method.period**2
    return common * (1 + method.error(d) / n) ** 2


def bound(problem: Quadratic, method: Sparse | Quantised, steps: int, alpha: float) -> float:
    """What :func:`run` is at most, in expectation: equation 6 (sparse) or A.3 (quantised).

    Raises
    ------
    ValueError
        Fewer steps than :func:`least_steps`.
    """
    if steps < (least := least_steps(problem, method, alpha)):
        raise ValueError(f"quadratic: the theorem needs T >= {least:g}, not {steps}")
    n, smooth, variance = problem.workers, problem.smoothness, problem.variance
    root = (problem.batch * steps) ** 0.5
    if isinstance(method, Sparse):
        first = (4 / alpha * problem.gap + 2 * alpha * smooth * variance) / root
        return first + 2 * method.period * n**2 * alpha**2 * smooth**2 * variance / steps
    noise = (1 + method.error(len(problem.start))) * alpha * smooth * variance * method.groups
    return (2 / alpha * problem.gap + noise) / root


def slope(steps: list[int], values: list[float]) -> float:
    """Slope of ``values`` over ``steps``, both in logarithms, by least squares."""
    return float(np.polyfit(np.log(steps), np.log(values), 1)[0])


def _check(method: Sparse | Quantised, size: int) -> None:
    if isinstance(method, Sparse):
        if method.period < 1:
            raise ValueError(f"quadratic: period must be >= 1, not {method.period}")
    elif method.levels < 1 or method.groups < 1 or size % method.groups:
        raise ValueError(
            f"quadratic: needs levels >= 1 and groups that divide {size} coordinates, not "
            f"{method.levels} and {method.groups}"
        )
