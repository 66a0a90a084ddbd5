"""The mean of each coordinate without its extremes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from slowlink.methods.aggregation import Aggregation


@dataclass(frozen=True)
class TrimmedMean(Aggregation):
    """Each value is the mean of what members bring for it, without the ⌊βm⌋ largest and the ⌊βm⌋
    smallest of m.

    Parameters
    ----------
    trim: β, at least 0 and below 1/2.
    """

    summary = "Mean of each coordinate without its extremes"
    source = "Yin et al. 2018 [@yin2018byzantine], Definition 2"
    bounded = "each value lies among those of the others, as long as fewer than βm are bad"

    trim: float = 0.25

    def __post_init__(self) -> None:
        if not 0 <= self.trim < 0.5:
            raise ValueError(f"trimmed_mean: trim must be from 0 to below 0.5, not {self.trim}")

    def combine(self, updates, weights, origin):
        cut = int(Fraction(repr(self.trim)) * len(updates))  # β is the decimal it is written as
        return updates.sort(dim=0).values[cut : len(updates) - cut].mean(dim=0)
