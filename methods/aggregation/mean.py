"""The weighted mean, as federated averaging and all gradient descent have it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slowlink.methods.aggregation import Aggregation


@dataclass(frozen=True)
class Mean(Aggregation):
    """Σ wᵢ xᵢ, added in the order of the members."""

    summary = "Weighted mean of all"
    source = "McMahan et al. 2017 [@mcmahan2017communication], Algorithm 1"
    bounded = "nothing bounds it: one member can move the result anywhere"
    weighted = True

    def combine(self, updates, weights, origin):
        total = torch.zeros_like(updates[0])
        for update, weight in zip(updates, weights, strict=True):
            total.add_(update, alpha=weight)
        return total
