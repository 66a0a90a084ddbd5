"""Uneven workers: how long each iteration of each worker takes.

A model of stragglers is a callable ``(worker, iteration, t) -> s``: the seconds that iteration
number ``iteration`` (from 1) of ``worker`` (by rank) takes if it starts at ``t``. All draws come
from a seed and these three numbers, so they do not depend on who asks first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

Stragglers = Callable[[int, int, float], float]


@dataclass(frozen=True)
class Fixed:
    """Every iteration of worker i takes ``times[i]`` seconds."""

    times: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_times("Fixed", self.times)

    def __call__(self, worker: int, iteration: int, t: float) -> float:
        return self.times[worker]


def uniform(workers: int, base_s: float = 1.0, highest: float = 2.5, seed: int = 0) -> Fixed:
    """Fixed heterogeneity: ``base_s`` times a factor drawn evenly from 1 to ``highest`` a worker.

    LPSP §4.1: iteration times are uniform within 2.5 times the initial one.
    """
    _check_range("highest", highest)
    factors = np.random.default_rng(seed).uniform(1, highest, workers)
    return Fixed(tuple((base_s * factors).tolist()))


@dataclass(frozen=True)
class Drawn:
    """Every iteration of worker i takes ``base_s`` times a factor of its own, drawn evenly from 1
    to ``highest[i]``."""

    base_s: float
    highest: tuple[float, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        _check_times("Drawn", (self.base_s,))
        for factor in self.highest:
            _check_range("Drawn: highest", factor)

    def __call__(self, worker: int, iteration: int, t: float) -> float:
        draw = _draw(self.seed, 2, worker, iteration)
        return self.base_s * (1 + (self.highest[worker] - 1) * draw)


@dataclass(frozen=True)
class Jitter:
    """``of`` times a factor drawn evenly from 1 - ``share`` to 1 + ``share`` each iteration."""

    of: Stragglers
    share: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ValueError(f"Jitter: share must be at least 0 and below 1, not {self.share}")

    def __call__(self, worker: int, iteration: int, t: float) -> float:
        draw = _draw(self.seed, 0, worker, iteration)
        return self.of(worker, iteration, t) * (1 + self.share * (2 * draw - 1))


@dataclass(frozen=True)
class Varying:
    """``of`` times a factor from 1 to ``highest``, drawn evenly for each worker and ``period_s``.

    An iteration takes the factor of the moment it starts.
    """

    of: Stragglers
    period_s: float
    highest: float = 2.5
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.period_s < math.inf:
            raise ValueError(f"Varying: period_s must be above 0 s, not {self.period_s}")
        _check_range("Varying: highest", self.highest)

    def __call__(self, worker: int, iteration: int, t: float) -> float:
        level = _draw(self.seed, 1, worker, math.floor(t / self.period_s))
        return self.of(worker, iteration, t) * (1 + (self.highest - 1) * level)


@dataclass(frozen=True)
class Trace:
    """The recorded seconds of each worker's iterations, from the first again after the last."""

    times: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        for worker, times in enumerate(self.times):
            _check_times(f"Trace: worker {worker}", times)

    def __call__(self, worker: int, iteration: int, t: float) -> float:
        times = self.times[worker]
        return times[(iteration - 1) % len(times)]


def removable(times: Sequence[float]) -> float:
    """Iterations a second without any waiting, over those of BSP: max(t) mean(1/t).

    Parameters
    ----------
    times: (n,) each worker's seconds an iteration; communication costs nothing.
    """
    _check_times("removable", times)
    return max(times) * math.fsum(1 / t for t in times) / len(times)


def removable_draws(workers: int, draws: int, highest: float = 2.5, seed: int = 0) -> np.ndarray:
    """:func:`removable` of so many draws of :func:`uniform` times: (draws,), in no order."""
    _check_range("highest", highest)
    times = np.random.default_rng(seed).uniform(1, highest, (draws, workers))
    return times.max(axis=1) * (1 / times).mean(axis=1)


@lru_cache(maxsize=1 << 16)  # policies that are compared meet the same ones
def _draw(seed: int, *key: int) -> float:
    """A number from 0 to 1 that belongs to ``key``."""
    return float(np.random.default_rng((seed, *key)).random())


def _check_times(what: str, times: Sequence[float]) -> None:
    if not len(times) or not all(0 < t < math.inf for t in times):
        raise ValueError(f"{what}: times must be finite, above 0 s and at least one, not {times}")


def _check_range(what: str, highest: float) -> None:
    if not 1 <= highest < math.inf:
        raise ValueError(f"{what} must be a factor of at least 1, not {highest}")
