"""Tables of absolute numbers, fitted: what other machines explain of them, and what they do not.

A time or a rate on machines that we do not have neither agrees nor disagrees by itself, but a table
of them does. All its numbers are fitted together by a few rates that they share,

    printed ≈ Σ θ · term,   θ ≥ 0,

over the terms that a cell has, in relative errors; throughputs as the time of an item, 1/printed. A
cell is judged by the fit on the *other* cells, so that nothing is chosen from the number that it is
judged by. Where the printed numbers, dealt out to the cells at random, fit our terms as well, no
cell of the table is judged: agreement would be luck, and a factor means nothing. So it would be if
they do with any one of our seeds left out: one run then tells the cells apart. Nor is one where a
constant tells a cell better than our terms do, each from the other cells: then ours is no measure
of the document's. Where the fit is neither and most cells are off all the same, that others agree
may be luck: they count if seldom as many do of numbers dealt out at random. Where a set-up or a
rate of its own already tells groups of cells from each other, numbers are dealt within each group
only, and each has its constant.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from slowlink.reports.evidence import ROUNDING, number

LUCK = 0.05
"""Share of random deals that may fit as well as the table does before it counts as luck."""
DEALS, DEALS_TO_OTHERS = 999, 199
"""Of deals that are fitted whole, and of those whose cells are each held against the others, where
there are more than ``FEW``, so that they are drawn."""
FEW = math.factorial(7)
"""Deals of which each is tried: a share of them is exact, and no draw has a say in it."""


@dataclass(frozen=True)
class Fit:
    """The shared rates of a table.

    Attributes
    ----------
    rates: θ over all cells, by term.
    others: by cell, θ over the other cells, by term; without cells of which one of its terms is in
        no other.
    constants: by cell, the constant that is nearest to the others of its group, as printed; without
        cells that are alone in theirs.
    correlation: Spearman's, of printed numbers with the predicted ones.
    cells, ours, said: what was fitted: names of cells, our terms, cells × rates, and the printed
        numbers, as times.
    groups: of cells among which numbers may be dealt, by their places.
    error: the sum of squared relative errors over all cells.
    near: what part of a printed number a cell may be off and agree. inverse: these were rates.
    """

    rates: Mapping[str, float]
    others: Mapping[str, Mapping[str, float]]
    constants: Mapping[str, float]
    correlation: float
    cells: Sequence[str]
    ours: np.ndarray
    said: np.ndarray
    groups: Sequence[np.ndarray]
    error: float
    near: float
    inverse: bool

    @functools.cached_property
    def p(self) -> float:
        """The share of random deals of the printed numbers that fit at least as well."""
        # The order of summing makes errors that are equal differ in their last bits.
        same = self.error * (1 + ROUNDING) + ROUNDING**2
        return self._share(lambda said: _solved(self.ours, said)[1] <= same, DEALS)

    @functools.cached_property
    def p_near(self) -> float:
        """The share of random deals of which as many cells agree with what the others say; 0 where
        most cells do."""
        there = self._agreeing(self.said)
        if 2 * there >= len(self.said):
            return 0.0
        return self._share(lambda said: self._agreeing(said) >= there, DEALS_TO_OTHERS)

    def _share(self, as_well: Callable[[np.ndarray], bool], draws: int) -> float:
        """The share of all deals that do as well as the printed one, which is one of them, or of
        so many draws and the printed one."""
        if math.prod(math.factorial(len(places)) for places in self.groups) <= FEW:
            deals = list(self._all_deals())
        else:
            deal = np.random.default_rng(0)
            deals = [self.said, *(self._dealt(deal) for _ in range(draws))]
        return sum(map(as_well, deals)) / len(deals)

    def _all_deals(self) -> Iterator[np.ndarray]:
        for orders in itertools.product(*map(itertools.permutations, self.groups)):
            said = self.said.copy()
            for places, order in zip(self.groups, orders, strict=True):
                said[places] = self.said[list(order)]
            yield said

    def _agreeing(self, said: np.ndarray) -> int:
        """How many cells are near to what the fit on the others says."""
        found = np.array([self.ours[n] @ without for n, without in _without(self.ours, said)])
        return int((abs(found - said) <= self.near * (found if self.inverse else said)).sum())

    def _dealt(self, deal: np.random.Generator) -> np.ndarray:
        said = self.said.copy()
        for places in self.groups:
            said[places] = deal.permutation(said[places])
        return said

    @property
    def lucky(self) -> bool:
        """Whether agreement may be chance."""
        return self.p >= LUCK

    @functools.cached_property
    def beaten(self) -> bool:
        """Whether constants tell cells better than our terms do, by the sum of squared relative
        errors, of times, over the cells of which both tell something."""
        ours = others = 0.0
        for n, without in _without(self.ours, self.said):
            cell = self.cells[n]
            if cell in self.others and cell in self.constants:
                constant = self.constants[cell]
                constant = 1 / constant if self.inverse else constant
                ours += (self.ours[n] @ without / self.said[n] - 1) ** 2
                others += (constant / self.said[n] - 1) ** 2
        return ours > others

    def __str__(self) -> str:
        rates = ", ".join(f"{name} × {number(value)}" for name, value in self.rates.items())
        told = f"{len(self.said)} cells, rank correlation {self.correlation:.2f}, p {self.p:.2g}"
        return f"{rates}; {told}"


def fit(
    printed: Mapping[str, float],
    terms: Mapping[str, Mapping[str, float]],
    near: float,
    inverse: bool = False,
    within: Mapping[str, str] = {},
) -> Fit | None:
    """Fit a table.

    Parameters
    ----------
    printed: by cell. terms: by cell, our value of each of its terms, by name. near: see
        :class:`Fit`. inverse: the printed numbers are rates, and the terms are times of an item.
        within: by cell, its group, see above.

    Returns
    -------
    None where cells are too few: two more than rates are needed.
    """
    told = tuple((cell, tuple(inner.items())) for cell, inner in terms.items())
    return _fit(tuple(printed.items()), told, near, inverse, tuple(within.items()))


@functools.lru_cache(maxsize=64)  # all claims of a table have one, with whatever else is changed
def _fit(
    said_of: tuple[tuple[str, float], ...],
    terms_of: tuple[tuple[str, tuple[tuple[str, float], ...]], ...],
    near: float,
    inverse: bool,
    within_of: tuple[tuple[str, str], ...],
) -> Fit | None:
    printed, within = dict(said_of), dict(within_of)
    terms = {cell: dict(inner) for cell, inner in terms_of}
    cells = [cell for cell in printed if cell in terms]
    names = list(dict.fromkeys(name for cell in cells for name in terms[cell]))
    if len(cells) < len(names) + 2:
        return None
    said = np.array([printed[cell] for cell in cells], dtype=float)
    said = 1 / said if inverse else said
    ours = np.array([[terms[cell].get(name, 0.0) for name in names] for cell in cells])
    rates, error = _solved(ours, said)
    others, predicted = {}, []
    for cell, (index, without) in zip(cells, _without(ours, said), strict=True):
        predicted.append(ours[index] @ without)
        if np.delete(ours, index, 0).any(0)[ours[index] != 0].all():
            others[cell] = dict(zip(names, without, strict=True))
    group = np.array([within.get(cell, "") for cell in cells])
    groups = [np.flatnonzero(group == one) for one in dict.fromkeys(group)]
    constants = {}
    for places in groups:
        for n, without in _without(np.ones((len(places), 1)), said[places]):
            if len(places) > 1:
                constants[cells[places[n]]] = float(1 / without[0] if inverse else without[0])
    alike = np.ptp(said) == 0 or np.ptp(predicted) == 0
    return Fit(
        rates=dict(zip(names, rates, strict=True)),
        others=others,
        constants=constants,
        correlation=math.nan if alike else float(stats.spearmanr(predicted, said)[0]),
        cells=cells,
        ours=ours,
        said=said,
        groups=groups,
        error=error,
        near=near,
        inverse=inverse,
    )


def _without(ours: np.ndarray, said: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each cell's place, and the rates of all others."""
    for index in range(len(said)):
        yield index, _solved(np.delete(ours, index, 0), np.delete(said, index))[0]


def _solved(ours: np.ndarray, said: np.ndarray) -> tuple[np.ndarray, float]:
    """Rates with the least sum of squared relative errors, and that sum."""
    rates, norm = optimize.nnls(ours / said[:, None], np.ones(len(said)))
    return rates, float(norm**2)
