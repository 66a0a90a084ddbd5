"""RAT: resilient all-reduce trees, one rooted at each worker, that follow the network's regions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slowlink.methods.exchange import Exchange, Plan, PlanPart, Topology
from slowlink.methods.exchange._members import whole_only
from slowlink.methods.exchange._regions import hierarchy, parties
from slowlink.methods.exchange._trees import tree_all_reduce

UNITS = 1_000
"""Parts a tree that the vector is cut into where the trees have weights."""


@dataclass(frozen=True)
class Rat(Exchange):
    """n trees, each rooted at one worker and carrying its share of the vector.

    In a tree, every rack has an aggregator of level 0; every region of layer i has one of level i,
    chosen among those of level i - 1 inside; the root is the last. Level L of the tree is what the
    region's parties send to its aggregator of level L; the broadcast takes the same edges back.

    Aggregators stand where the root stands: at the root's position in its rack, in the rack that
    has the position of the root's rack in its pod, and so on (modulo the size, where regions
    differ). So in equal regions each worker aggregates equally often. Trees whose roots have the
    same position in their racks then share every edge inside of racks, and one message carries
    their parts: ``n`` times the sum over layers of (parties of a region - 1) messages a half, and
    not n (n - 1). The trees' parts of the vector lie in the order of those positions, innermost
    first, so that what is sent together is next to each other.

    Without ``overlap`` there is a barrier after every level, 2 (layers + 1) in all.

    Its closed forms: 2(R - 1)/R vectors out of each of R regions of any layer, a chain of layers +
    1 (section 3.3, Table 1); in time, :func:`testbed.network.closed_forms.pipelined_rat`. On equal
    nested regions these are the transfers of Geng's HiPS in ps mode, and with one layer PLink's.

    Parameters
    ----------
    weights: the trees' loads, one a member in the order of the trees, >= 0 and not all 0; None for
        equal ones. The vector is cut into 1,000 parts a member for it; a tree whose share rounds to
        none is left out.
    """

    summary: ClassVar[str] = "a tree of rack and region aggregators for every worker as the root"
    source: ClassVar[str] = "RAT [@wan2020rat], sections 3.1 and 3.2 (figure 5)"
    whole: ClassVar[bool] = True

    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.weights is None:
            return
        weights = tuple(float(weight) for weight in self.weights)
        if not all(0 <= weight < math.inf for weight in weights) or not sum(weights) > 0:
            raise ValueError(f"rat: weights must be finite, >= 0 and not all 0, not {weights}")
        object.__setattr__(self, "weights", weights)

    def __call__(
        self, topology: Topology, members: Sequence[int] | None = None, part: PlanPart = "all"
    ) -> Plan:
        whole_only("rat", part)
        layers = hierarchy("rat", topology, members)
        cuts = self._cuts(len(layers[-1][0]))
        return tree_all_reduce("rat", layers, cuts, chunks=self.chunks, overlap=self.overlap)

    def groups(
        self, topology: Topology, members: Sequence[int] | None = None
    ) -> list[list[list[int]]]:
        """Level 0: workers of each rack; then each layer's regions; last, who meets at the root.

        A party of an outer level is named by its first worker: its aggregator differs by tree.
        """
        return parties(hierarchy("rat", topology, members))

    def _cuts(self, members: int) -> np.ndarray:
        """Tree ``t`` carries the parts ``cuts[t]:cuts[t + 1]``."""
        if self.weights is None:
            return np.arange(members + 1)
        if len(self.weights) != members:
            raise ValueError(
                f"rat: needs one weight for each of the {members} members, not {len(self.weights)}"
            )
        ends = np.cumsum(self.weights)
        return np.concatenate([[0], np.rint(UNITS * members * ends / ends[-1])]).astype(np.int64)
