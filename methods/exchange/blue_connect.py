"""BlueConnect: one ring over everybody taken apart into rings along the network's layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slowlink.methods.exchange import Exchange, Plan, PlanPart, Topology
from slowlink.methods.exchange._grid import grid_all_reduce, levels, nested_grid
from slowlink.methods.exchange._members import whole_only
from slowlink.methods.exchange._regions import hierarchy


@dataclass(frozen=True)
class BlueConnect(Exchange):
    """Rings inside every rack, then between racks, then between pods, and back.

    A ring reduce-scatter in the rack leaves each of its ``w`` workers with ``1/w`` of the vector;
    workers of equal position in the racks of a pod form the next rings, on that share, and so on
    outwards. Ring all-gathers follow in reverse. Every region must have equally many workers.

    Its closed form, of rings of p_0, p_1, …: at layer i, 2 (p_i - 1)/p_i of 1/(p_0 … p_(i-1)) of
    the vector at that layer's rate, in 2 (p_i - 1) messages one after the other; summed over
    layers, or the slowest of them where pieces overlap.
    """

    summary: ClassVar[str] = "rings in racks, then between racks on the shares, and back"
    source: ClassVar[str] = "Cho et al., SysML 2019 [@cho2019blueconnect] (RAT [21], section 2.3)"
    whole: ClassVar[bool] = True

    def __call__(
        self, topology: Topology, members: Sequence[int] | None = None, part: PlanPart = "all"
    ) -> Plan:
        whole_only("blue_connect", part)
        grid = self._grid(topology, members)
        return grid_all_reduce(
            "blue_connect",
            grid,
            orders=[range(grid.ndim)],
            ring=True,
            chunks=self.chunks,
            overlap=self.overlap,
        )

    def groups(
        self, topology: Topology, members: Sequence[int] | None = None
    ) -> list[list[list[int]]]:
        """Level 0: racks; level ``i``: the regions that share a region of the next layer."""
        return levels(self._grid(topology, members))

    def _grid(self, topology: Topology, members: Sequence[int] | None) -> np.ndarray:
        return nested_grid("blue_connect", hierarchy("blue_connect", topology, members))
