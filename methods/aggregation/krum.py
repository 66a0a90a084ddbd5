"""Krum: the update, or the mean of those, that have the closest neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slowlink.methods.aggregation import Aggregation


@dataclass(frozen=True)
class Krum(Aggregation):
    """Of n updates with f bad ones, each is scored by the sum of its squared distances to its
    n - f - 2 closest; the mean of the ``keep`` with the lowest scores is taken, of equal scores
    those of the first members.

    Parameters
    ----------
    byzantine: f, for how many bad members it is made; it needs n ≥ 2f + 3.
    keep: 1 is Krum, more is Multi-Krum.
    """

    summary = "The updates with the closest neighbours"
    source = "Blanchard et al. 2017 [@blanchard2017machine], §4 (Krum), §6 (Multi-Krum)"
    bounded = "the result is updates, or a mean of updates, that lie close to n - f - 2 others"

    byzantine: int = 1
    keep: int = 1

    def __post_init__(self) -> None:
        for name, least in (("byzantine", 0), ("keep", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"krum: {name} must be a whole number of at least {least}")

    @property
    def least(self):
        return max(2 * self.byzantine + 3, self.byzantine + self.keep)

    def combine(self, updates, weights, origin):
        return updates[self.chosen(updates)].mean(dim=0)

    def chosen(self, updates: torch.Tensor) -> list[int]:
        """The members whose updates are taken, in their order."""
        # In double precision: an update of 1e30 has a squared norm that float32 does not hold.
        n, wide = len(updates), updates.double()
        squares = torch.cdist(wide, wide, compute_mode="donot_use_mm_for_euclid_dist").square()
        others = squares[~torch.eye(n, dtype=torch.bool)].view(n, n - 1)
        scores = others.sort(dim=1).values[:, : n - self.byzantine - 2].sum(dim=1)
        return sorted(scores.argsort(stable=True)[: self.keep].tolist())
