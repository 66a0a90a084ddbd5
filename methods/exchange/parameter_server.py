"""Parameter server: every worker pushes to a server, which sums, and pulls the sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from slowlink.methods.exchange import COPY, REDUCE, Exchange, Plan, PlanBuilder, PlanPart, Topology
from slowlink.methods.exchange._members import central_server, check_part, participants, whole_only

PUSH, PULL = "push/0", "pull/0"


@dataclass(frozen=True)
class ParameterServer(Exchange):
    """One level of push and pull.

    Its closed forms, of n workers: n vectors into the central server's card and n out of it; or,
    colocated, 2(n - 1)/n vectors through every card. Either way chains of two messages. The paper
    has no formula for time; GeoMX and RAT, which compare with it, derive these.

    Parameters
    ----------
    shards: ``central``: the topology's first server holds the whole vector. ``colocated``: every
        worker also serves an equal shard of it.
    """

    summary: ClassVar[str] = "workers push to a server, which sums, and pull the sum"
    source: ClassVar[str] = (
        "Li et al., OSDI 2014 [@li2014scaling] (GeoMX [12], its control MXNET [@chen2015mxnet], "
        "section 3)"
    )
    combines: ClassVar[frozenset[str]] = frozenset({"sum", "merge", "gather"})

    shards: Literal["central", "colocated"] = "central"

    def __post_init__(self) -> None:
        if self.shards not in ("central", "colocated"):
            raise ValueError(
                f"parameter_server: shards must be central or colocated, not {self.shards!r}"
            )

    @property
    def whole(self) -> bool:
        return self.shards == "colocated"

    def __call__(
        self, topology: Topology, members: Sequence[int] | None = None, part: PlanPart = "all"
    ) -> Plan:
        check_part("parameter_server", part)
        nodes = participants("parameter_server", topology, members)
        plan = self._central if self.shards == "central" else self._colocated
        return plan(topology, nodes, part)

    def _central(self, topology: Topology, nodes: list[int], part: PlanPart) -> Plan:
        server = central_server("parameter_server", topology)
        builder = PlanBuilder("parameter_server", 1, (PUSH, PULL))
        summed: list[int] = []
        if part != "pull":
            pushes = [builder.add(node, server, PUSH, REDUCE) for node in nodes]
            summed = [builder.join(server, PULL, pushes, phase=1)] if part == "all" else []
        if part != "push":
            for node in nodes:
                builder.add(server, node, PULL, COPY, summed, phase=1)
        return builder.build(
            contributors=[server] if part == "pull" else nodes,
            receivers=[server] if part == "push" else nodes,
            chunks=self.chunks,
            overlap=self.overlap,
        )

    def _colocated(self, topology: Topology, nodes: list[int], part: PlanPart) -> Plan:
        whole_only("colocated parameter_server", part, " or use shards 'central'")
        order, n = np.array(nodes), len(nodes)
        builder = PlanBuilder("parameter_server", n, (PUSH, PULL))
        # Rank i sends to i + 1, i + 2, …, so that no two ranks start with the same target.
        ranks, steps = np.arange(n), np.arange(1, n)[:, None]
        target = (ranks + steps) % n
        push = builder.extend(order, order[target], PUSH, REDUCE, lo=target, hi=target + 1)
        arrived = push[steps - 1, (ranks - steps) % n].T
        summed = builder.extend(order, order, PULL, COPY, arrived, ranks, ranks + 1, phase=1)
        after = np.broadcast_to(summed, target.shape)
        builder.extend(order, order[target], PULL, COPY, after, ranks, ranks + 1, phase=1)
        return builder.build(nodes, nodes, chunks=self.chunks, overlap=self.overlap)
