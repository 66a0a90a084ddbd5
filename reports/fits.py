"""Tables of absolute numbers, fitted: what other machines explain of them, and what they do not.

A time or a rate on machines that we do not have neither agrees nor disagrees by itself, but a table
of them does. All its numbers are fitted together by a few rates that they share,

    printed ≈ Σ θ · term,   θ ≥ 0,

in relative errors; throughputs as the time of an item, 1/printed. A cell is judged by the fit on
the *other* cells, so that nothing is chosen from the number that it is judged by. Where the printed
numbers, dealt out to the cells at random, fit our terms as well, no cell of the table is judged:
agreement would be luck, and a factor means nothing. Where a set-up or a rate of its own already
tells groups of cells from each other, numbers are dealt within each group only.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from slowlink.reports.evidence import ROUNDING, number

LUCK = 0.05
"""Share of random deals that may fit as well as the table does before it counts as luck."""
DEALS = 999


@dataclass(frozen=True)
class Fit:
    """The shared rates of a table.

    Attributes
    ----------
    terms: names of the rates. rates: θ over all cells, by term.
    others: by cell, θ over the other cells.
    correlation: Spearman's, of printed numbers with the predicted ones.
    ours, said: what was fitted: our terms, cells × rates, and the printed numbers, as times.
    groups: of cells among which numbers may be dealt, by their places.
    error: the sum of squared relative errors over all cells.
    """

    terms: tuple[str, ...]
    rates: Mapping[str, float]
    others: Mapping[str, np.ndarray]
    correlation: float
    ours: np.ndarray
    said: np.ndarray
    groups: Sequence[np.ndarray]
    error: float

    @functools.cached_property
    def p(self) -> float:
        """The share of random deals of the printed numbers that fit at least as well."""
        deal = np.random.default_rng(0)
        deals = (_solved(self.ours, self._dealt(deal))[1] for _ in range(DEALS))
        # The order of summing makes errors that are equal differ in their last bits.
        same = self.error * (1 + ROUNDING) + ROUNDING**2
        return (1 + sum(error <= same for error in deals)) / (1 + DEALS)

    def _dealt(self, deal: np.random.Generator) -> np.ndarray:
        said = self.said.copy()
        for places in self.groups:
            said[places] = deal.permutation(said[places])
        return said

    @property
    def lucky(self) -> bool:
        """Whether agreement may be chance."""
        return self.p >= LUCK

    def __str__(self) -> str:
        rates = ", ".join(f"{name} × {number(value)}" for name, value in self.rates.items())
        return f"{rates}; {len(self.others)} cells, rank correlation {self.correlation:.2f}"


def fit(
    printed: Mapping[str, float],
    terms: Mapping[str, Sequence[float]],
    names: Sequence[str],
    inverse: bool = False,
    within: Mapping[str, str] = {},
) -> Fit | None:
    """Fit a table.

    Parameters
    ----------
    printed: by cell. terms: by cell, our value of each of ``names``. inverse: the printed numbers
        are rates, and the terms are times of an item. within: by cell, its group, see above.

    Returns
    -------
    None where cells are too few: two more than rates are needed.
    """
    cells = [cell for cell in printed if cell in terms]
    if len(cells) < len(names) + 2:
        return None
    said = np.array([printed[cell] for cell in cells], dtype=float)
    said = 1 / said if inverse else said
    ours = np.array([terms[cell] for cell in cells], dtype=float)
    rates, error = _solved(ours, said)
    others, predicted = {}, []
    for index, cell in enumerate(cells):
        rest = np.arange(len(cells)) != index
        others[cell] = _solved(ours[rest], said[rest])[0]
        predicted.append(ours[index] @ others[cell])
    group = np.array([within.get(cell, "") for cell in cells])
    alike = np.ptp(said) == 0 or np.ptp(predicted) == 0
    return Fit(
        terms=tuple(names),
        rates=dict(zip(names, rates, strict=True)),
        others=others,
        correlation=math.nan if alike else float(stats.spearmanr(predicted, said)[0]),
        ours=ours,
        said=said,
        groups=[np.flatnonzero(group == one) for one in dict.fromkeys(group)],
        error=error,
    )


def _solved(ours: np.ndarray, said: np.ndarray) -> tuple[np.ndarray, float]:
    """Rates with the least sum of squared relative errors, and that sum."""
    rates, norm = optimize.nnls(ours / said[:, None], np.ones(len(said)))
    return rates, float(norm**2)
