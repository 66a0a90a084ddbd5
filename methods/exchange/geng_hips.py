"""HiPS of Geng et al.: synchronization stage by stage, along the dimensions of a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import ClassVar, Literal

import numpy as np

from slowlink.methods.exchange import Exchange, Plan, PlanPart, Topology
from slowlink.methods.exchange._grid import grid_all_reduce, levels, nested_grid
from slowlink.methods.exchange._members import participants, whole_only
from slowlink.methods.exchange._regions import equal, hierarchy, split


@dataclass(frozen=True)
class GengHips(Exchange):
    """One stage a dimension of the network, among those that differ in that dimension only.

    Every stage reduces what the one before left: its ``g`` workers each end with the sum of
    ``1/g`` of it. Gathers follow in reverse.

    Where regions cross, as on BCube, a stage's groups are the regions of its layer. Every worker
    has a cable a dimension there, so the vector is cut into as many parts, and part ``p`` begins
    with stage ``p``: all cables are busy at once. That is inferred: over one cable at a time
    stages send as much as a flat ring does, and the paper's abstract claims a quarter of its time.

    Where regions nest, as in a tree, the stages run between equal positions in racks, of racks in
    pods, …, innermost first for the whole vector: there is one cable, and to begin between racks
    would send everything across.

    Its closed form on BCube of k dimensions: 2 (n - 1)/n vectors over k cards at once, so a k-th of
    a flat ring's time.

    Parameters
    ----------
    mode: ``ps``: every worker of a group sends to each other one what that one sums. ``ring``:
        they reduce around a ring.
    """

    summary: ClassVar[str] = "a stage along each dimension of a server-centric network"
    source: ClassVar[str] = "Geng et al., NetAI 2018 [@geng2018hips] (RAT [22], section 2.3)"
    whole: ClassVar[bool] = True

    mode: Literal["ps", "ring"] = "ps"

    def __post_init__(self) -> None:
        if self.mode not in ("ps", "ring"):
            raise ValueError(f"geng_hips: mode must be ps or ring, not {self.mode!r}")

    def __call__(
        self, topology: Topology, members: Sequence[int] | None = None, part: PlanPart = "all"
    ) -> Plan:
        whole_only("geng_hips", part)
        grid, crossing = _grid(topology, members)
        stages = range(grid.ndim)
        return grid_all_reduce(
            "geng_hips",
            grid,
            orders=[np.roll(stages, -first) for first in (stages if crossing else [0])],
            ring=self.mode == "ring",
            chunks=self.chunks,
            overlap=self.overlap,
        )

    def groups(
        self, topology: Topology, members: Sequence[int] | None = None
    ) -> list[list[list[int]]]:
        """One level a stage; where regions cross, in the order of the vector's first part."""
        return levels(_grid(topology, members)[0])


def _grid(topology: Topology, members: Sequence[int] | None) -> tuple[np.ndarray, bool]:
    """The members, one axis a stage, and whether the topology's regions cross."""
    nodes = participants("geng_hips", topology, members)
    lines = [split(nodes, region) for region in topology.regions]
    if not _crossing(lines):
        return nested_grid("geng_hips", hierarchy("geng_hips", topology, nodes)), False
    sizes = [equal("geng_hips", groups) for groups in lines]
    places = [[_place(node, groups) for node in nodes] for groups in lines]
    grid = np.full(sizes, -1)
    grid[tuple(places)] = nodes
    straight = all(
        {frozenset(line) for line in np.moveaxis(grid, axis, -1).reshape(-1, size).tolist()}
        == {frozenset(line) for line in groups}
        for axis, (size, groups) in enumerate(zip(sizes, lines, strict=True))
    )
    if prod(sizes) != len(nodes) or not straight:
        raise ValueError(
            f"geng_hips: needs members that fill a grid over the dimensions of {topology.name}, "
            f"such as all of its workers; these {len(nodes)} do not"
        )
    return grid, True


def _crossing(lines: list[list[list[int]]]) -> bool:
    """Whether some group of a layer is not inside one group of the next."""
    return any(
        not any(set(group) <= set(outer) for outer in further)
        for inner, further in pairwise(lines)
        for group in inner
    )


def _place(node: int, groups: list[list[int]]) -> int:
    return next(group.index(node) for group in groups if node in group)
