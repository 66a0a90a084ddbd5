"""Ring all-reduce: everybody sends to its neighbour, and no link carries more than another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from slowlink.methods.exchange import COPY, REDUCE, Exchange, Plan, PlanBuilder, PlanPart, Topology
from slowlink.methods.exchange._members import participants, whole_only
from slowlink.methods.exchange._regions import hierarchy


@dataclass(frozen=True)
class Ring(Exchange):
    """Reduce-scatter and all-gather around a ring, n - 1 steps each.

    Of the n parts of the vector, each starts its way one worker further on; after n - 1 steps it
    is the whole sum at its last worker, and goes round once more. Two phases.

    Its closed form: 2(n - 1) messages of 1/n of the vector one after the other, so 2(n - 1)/n
    vectors through every card, the least of any all-reduce (the lower bound of
    [@patarasuk2009bandwidth]).

    Parameters
    ----------
    order: ``rack``: neighbours share a region wherever they can, so that one edge leaves each.
        ``oblivious``: a random order, as where nobody looked at the network.
    seed: of the random order.
    """

    summary: ClassVar[str] = "partial sums, then the sum, go round a ring of all workers"
    source: ClassVar[str] = "RAT, section 2.2 (its [16], [17]; [@patarasuk2009bandwidth])"
    whole: ClassVar[bool] = True

    order: Literal["rack", "oblivious"] = "rack"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.order not in ("rack", "oblivious"):
            raise ValueError(f"ring: order must be rack or oblivious, not {self.order!r}")

    def __call__(
        self, topology: Topology, members: Sequence[int] | None = None, part: PlanPart = "all"
    ) -> Plan:
        whole_only("ring", part)
        nodes = np.array(self._in_order(topology, members))
        n = len(nodes)
        builder = PlanBuilder("ring", n, ("push/0", "pull/0"))
        # In every step everybody sends on what came from its neighbour in the step before.
        for slot, op, begin in [("push/0", REDUCE, 0), ("pull/0", COPY, n - 1)]:
            step, rank = np.ogrid[begin : begin + n - 1, :n]
            share = (rank - 1 - step) % n
            after = np.where(step, (step - 1) * n + (rank - 1) % n, -1)
            to = np.roll(nodes, -1)
            builder.extend(nodes, to, slot, op, after, share, share + 1, phase=int(op == COPY))
        return builder.build(nodes, nodes, chunks=self.chunks, overlap=self.overlap)

    def _in_order(self, topology: Topology, members: Sequence[int] | None) -> list[int]:
        if self.order == "rack":
            return hierarchy("ring", topology, members)[-1][0]
        nodes = participants("ring", topology, members)
        return np.random.default_rng(self.seed).permutation(nodes).tolist()
