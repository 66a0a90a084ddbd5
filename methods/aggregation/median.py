"""The median of each coordinate."""

from __future__ import annotations

from dataclasses import dataclass

from slowlink.methods.aggregation import Aggregation


@dataclass(frozen=True)
class Median(Aggregation):
    """Each value is the median of what members bring for it; of an even number the mean of the
    middle two."""

    summary = "Median of each coordinate"
    source = "Yin et al. 2018 [@yin2018byzantine], Definition 1"
    bounded = "each value lies among those of the others, as long as they are the majority"

    def combine(self, updates, weights, origin):
        order = updates.sort(dim=0).values
        low, high = (len(updates) - 1) // 2, len(updates) // 2
        return order[low] if low == high else (order[low] + order[high]) / 2
