"""Parameter server: every worker pushes to a server, which sums, and pulls the sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from methods.exchange import COPY, REDUCE, Exchange, Part, Plan, PlanBuilder, Topology
from methods.exchange._members import central_server, check_part, participants

PUSH, PULL = "push/0", "pull/0"


@dataclass(frozen=True)
class ParameterServer(Exchange):
    """One level of push and pull.

    Parameters
    ----------
    shards: ``central``: the topology's first server holds the whole vector. ``colocated``: every
        worker also serves an equal shard of it.
    """

    summary: ClassVar[str] = "workers push to a server, which sums, and pull the sum"
    source: ClassVar[str] = "Li et al., OSDI 2014 (GeoMX [12], its control MXNET, section 3)"
    combines: ClassVar[frozenset[str]] = frozenset({"sum", "merge", "gather"})

    shards: Literal["central", "colocated"] = "central"

    def __post_init__(self) -> None:
        if self.shards not in ("central", "colocated"):
            raise ValueError(
                f"parameter_server: shards must be central or colocated, not {self.shards!r}"
            )

    def __call__(
        self, topology: Topology, members: Sequence[int] | None = None, part: Part = "all"
    ) -> Plan:
        check_part("parameter_server", part)
        nodes = participants("parameter_server", topology, members)
        plan = self._central if self.shards == "central" else self._colocated
        return plan(topology, nodes, part)

    def _central(self, topology: Topology, nodes: list[int], part: Part) -> Plan:
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

    def _colocated(self, topology: Topology, nodes: list[int], part: Part) -> Plan:
        if part != "all":
            raise ValueError(
                f"parameter_server: colocated shards have no {part} fragment, because no node "
                f"holds the whole sum in between; ask for part 'all' or use shards 'central'"
            )
        n = len(nodes)
        builder = PlanBuilder("parameter_server", n, (PUSH, PULL))
        # Rank i sends to i + 1, i + 2, …, so that no two ranks start with the same target.
        pushes: list[list[int]] = [[] for _ in nodes]
        for step in range(1, n):
            for rank, node in enumerate(nodes):
                shard = (rank + step) % n
                push = builder.add(node, nodes[shard], PUSH, REDUCE, parts=(shard, shard + 1))
                pushes[shard].append(push)
        summed = [
            builder.join(node, PULL, pushes[shard], parts=(shard, shard + 1), phase=1)
            for shard, node in enumerate(nodes)
        ]
        for step in range(1, n):
            for shard, node in enumerate(nodes):
                target = nodes[(shard + step) % n]
                builder.add(
                    node, target, PULL, COPY, [summed[shard]], parts=(shard, shard + 1), phase=1
                )
        return builder.build(nodes, nodes, chunks=self.chunks, overlap=self.overlap)
