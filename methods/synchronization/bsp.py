"""Bulk synchronous parallel: everybody waits for everybody, every round."""

from __future__ import annotations

from dataclasses import dataclass

from slowlink.methods.synchronization._barrier import Barrier


@dataclass
class BSP(Barrier):
    """All workers synchronize after ``local_iterations`` (GeoMX §2, full synchronization)."""

    summary = "All workers meet after every round of local iterations"
    source = "GeoMX §2 (full synchronization)"
    clock_free = together = True

    def barriers(self, groups):
        return [0] * len(groups)
