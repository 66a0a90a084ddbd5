"""The mean of changes, none of which is longer than a bound."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slowlink.methods.aggregation import Aggregation


@dataclass(frozen=True)
class NormBound(Aggregation):
    """Σ wᵢ xᵢ min(1, M / ‖xᵢ‖): who sends more than M is scaled down to it.

    Parameters
    ----------
    times: M over the median of the members' norms; Sun et al. take a fixed M.
    """

    summary = "Weighted mean of changes, none longer than a bound"
    source = "Sun et al. 2019 [@sun2019can], §4.2 (norm thresholding)"
    bounded = "one member moves the result by no more than its weight times the bound"
    weighted = True

    times: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.times < float("inf"):
            raise ValueError(f"norm_bound: times must be above 0, not {self.times}")

    def combine(self, updates, weights, origin):
        changes = updates - origin
        # In double precision: an update of 1e30 has a squared norm that float32 does not hold.
        norms = changes.double().norm(dim=1)
        order = norms.sort().values
        bound = self.times * (order[(len(order) - 1) // 2] + order[len(order) // 2]) / 2
        factors = torch.where(norms > bound, bound / norms, torch.ones_like(norms))
        total = torch.zeros_like(updates[0])
        for change, weight, factor in zip(changes, weights, factors.tolist(), strict=True):
            total.add_(change, alpha=weight * factor)
        return total + origin
