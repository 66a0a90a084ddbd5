"""PLink: two levels of aggregation, in racks and between all racks, whatever layers there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from methods.exchange import COPY, REDUCE, Exchange, Plan, PlanBuilder, PlanPart, Topology
from methods.exchange._members import participants, whole_only
from methods.exchange._regions import Groups, parties, split


@dataclass(frozen=True)
class Plink(Exchange):
    """Every rack's master sums for its rack, one of the masters sums for all, and back.

    The vector is cut into one chunk a worker, and that worker sums the chunk for all; masters of
    the chunk are the workers with its position in the other racks (modulo the size, where racks
    differ). So the work is spread evenly; the document says only that there are two levels, and
    one master for all that its rack has would receive and send the vector ``w - 1`` times. On one
    layer of racks these are RAT's trees.

    Issue order: within a level, rank i first reduces the chunk of rank i + 1, then that of
    i + 2, …, and first receives that of i - 1, i - 2, …; masters do so by racks.
    """

    summary: ClassVar[str] = "masters in racks, then all masters together, whatever lies between"
    source: ClassVar[str] = "Luo et al., MLSys 2020 [@luo2020plink] (RAT [24], section 2.3)"

    def __call__(
        self, topology: Topology, members: Sequence[int] | None = None, part: PlanPart = "all"
    ) -> Plan:
        whole_only("plink", part)
        racks, (ranks,) = _levels(topology, members)
        nodes, n, r = np.array(ranks), len(ranks), len(racks)
        sizes = np.array([len(rack) for rack in racks])
        starts = np.cumsum(sizes) - sizes
        rack = np.repeat(np.arange(r), sizes)
        place = np.arange(n) - starts[rack]
        column = np.arange(sizes.max())
        inside = np.where(column < sizes[:, None], starts[:, None] + column, n)  # n: nobody
        master = starts[:, None] + place % sizes[:, None]  # by rack and chunk
        slots = ("push/0", "push/1", "pull/1", "pull/0")
        builder = PlanBuilder("plink", n, slots)

        def leaves(sign: int) -> tuple[np.ndarray, np.ndarray]:
            """Ranks and chunks that they do not sum, in issue order."""
            step, rank = np.ogrid[1:n, :n]
            rank, chunk = np.broadcast_arrays(rank, (rank + sign * step) % n)
            leaf = master[rack[rank], chunk] != rank
            return rank[leaf], chunk[leaf]

        # Numbers of transfers, -1 for none: those that a rank or a rack sends up, and that it gets.
        pushed, climbed = np.full((n + 1, n), -1), np.full((r, n), -1)
        rank, chunk = leaves(+1)
        src, dst = nodes[rank], nodes[master[rack[rank], chunk]]
        pushed[rank, chunk] = builder.extend(src, dst, "push/0", REDUCE, (), chunk, chunk + 1)

        step, chunk = np.ogrid[1:r, :n]
        b = (rack[chunk] - step) % r
        src, dst, after = nodes[master[b, chunk]], nodes[chunk], pushed[inside[b], chunk[..., None]]
        climbed[b, chunk] = builder.extend(
            src, dst, "push/1", REDUCE, after, chunk, chunk + 1, phase=1
        )
        every = np.arange(n)
        after = np.hstack([pushed[inside[rack], every[:, None]], climbed.T])
        summed = builder.extend(nodes, nodes, "pull/1", COPY, after, every, every + 1, phase=2)

        held = np.tile(summed, (r, 1))  # in the root's rack, the transfers that are summed there
        b = (rack[chunk] + step) % r
        src, dst, after = nodes[chunk], nodes[master[b, chunk]], held[b, chunk]
        held[b, chunk] = builder.extend(src, dst, "pull/1", COPY, after, chunk, chunk + 1, phase=2)
        rank, chunk = leaves(-1)
        src, after = nodes[master[rack[rank], chunk]], held[rack[rank], chunk]
        builder.extend(src, nodes[rank], "pull/0", COPY, after, chunk, chunk + 1, phase=3)
        return builder.build(nodes, nodes, chunks=self.chunks, overlap=self.overlap)

    def groups(self, topology: Topology, members: Sequence[int] | None = None) -> list[Groups]:
        """Level 0: the racks; level 1: one party a rack, named by its first worker."""
        return parties(_levels(topology, members))


def _levels(topology: Topology, members: Sequence[int] | None) -> list[Groups]:
    """The racks, and one group of everybody; the layers between them do not matter."""
    nodes = participants("plink", topology, members)
    racks = split(nodes, topology.regions[0]) if topology.regions else [nodes]
    return [racks, [sum(racks, [])]]
