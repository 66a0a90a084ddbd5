"""PLink: aggregation on two levels, in racks and between all racks, whatever layers there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slowlink.methods.exchange import Exchange, Plan, PlanPart, Topology
from slowlink.methods.exchange._members import participants, whole_only
from slowlink.methods.exchange._regions import Groups, parties, split
from slowlink.methods.exchange._trees import tree_all_reduce


@dataclass(frozen=True)
class Plink(Exchange):
    """Every rack's master sums for its rack, one of the masters sums for all, and back.

    The vector is cut into one part a worker, and that worker sums the part for all; masters of the
    part are the workers with its position in the other racks (modulo the size, where racks differ).
    So the work is spread evenly; the document says only that there are two levels, and one master
    for all that its rack has would receive and send the vector ``w - 1`` times. Parts with the same
    master go in one message. On one layer of racks these are RAT's trees.

    Its closed form: chains of two a half, and on one layer 2(r - 1)/r vectors out of each of r
    racks; its own paper measures a cloud, whose network it has no formula for.
    """

    summary: ClassVar[str] = "masters in racks, then all masters together, whatever lies between"
    source: ClassVar[str] = "Luo et al., MLSys 2020 [@luo2020plink] (RAT [24], section 2.3)"
    whole: ClassVar[bool] = True

    def __call__(
        self, topology: Topology, members: Sequence[int] | None = None, part: PlanPart = "all"
    ) -> Plan:
        whole_only("plink", part)
        levels = _levels(topology, members)
        cuts = np.arange(len(levels[-1][0]) + 1)
        return tree_all_reduce("plink", levels, cuts, chunks=self.chunks, overlap=self.overlap)

    def groups(self, topology: Topology, members: Sequence[int] | None = None) -> list[Groups]:
        """Level 0: the racks; level 1: one party a rack, named by its first worker."""
        return parties(_levels(topology, members))


def _levels(topology: Topology, members: Sequence[int] | None) -> list[Groups]:
    """The racks, and one group of everybody; the layers between them do not matter."""
    nodes = participants("plink", topology, members)
    racks = split(nodes, topology.regions[0]) if topology.regions else [nodes]
    return [racks, [sum(racks, [])]]
