"""Parameter Hub: a server with many network cards in every rack sums what the rack pushes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slowlink.methods.exchange import COPY, REDUCE, Exchange, Plan, PlanBuilder, PlanPart, Topology
from slowlink.methods.exchange._members import participants, whole_only


@dataclass(frozen=True)
class ParameterHub(Exchange):
    """Workers push to their rack's helper (PBox); the helpers all-reduce; workers pull.

    Each of ``R`` helpers sums ``1/R`` of the vector for all racks, whatever layers lie above the
    racks, so ``2(R-1)/R`` of the vector leaves a rack, the least possible. A rack's helper is the
    first server in its region of the innermost layer; racks without members take no part. Without
    regions there is one rack, and its helper is the first server.

    The box gives each of its cards an equal share of the chunks of every key, so that all of them
    work for every worker: a helper's cards are one cable of their common rate (``helpers`` of
    :func:`testbed.network.topology.tree`), and messages should go in fine ``chunks``.

    Its closed form, where uplinks do not limit: with ``c`` cards for ``w`` workers of a rack,
    ``max(1, (w + 2(R-1)/R)/c)`` times a card's time for the vector, as pushes and pulls overlap.
    Such a box for a rack is the paper's design (PBox; hierarchical reduction between racks).
    """

    summary: ClassVar[str] = "a helper with many cards sums for its rack, then the helpers sum"
    source: ClassVar[str] = "Luo et al., SoCC 2018 [@luo2018parameter] (RAT [23], section 2.3)"
    whole: ClassVar[bool] = True

    def __call__(
        self, topology: Topology, members: Sequence[int] | None = None, part: PlanPart = "all"
    ) -> Plan:
        whole_only("parameter_hub", part)
        racks = _racks(topology, members)
        helpers, n = list(racks), len(racks)
        slots = ("push/0", "push/1", "pull/1", "pull/0")
        builder = PlanBuilder("parameter_hub", n, slots)
        pushes = [
            [builder.add(node, helper, "push/0", REDUCE) for node in nodes]
            for helper, nodes in racks.items()
        ]
        # Helper i sends to i + 1, i + 2, …, so that no two start with the same target.
        sums = [list(arrived) for arrived in pushes]
        for step in range(1, n):
            for i, helper in enumerate(helpers):
                to = (i + step) % n
                unit = dict(parts=(to, to + 1), phase=1)
                sums[to].append(
                    builder.add(helper, helpers[to], "push/1", REDUCE, pushes[i], **unit)
                )
        held = [
            [builder.join(helper, "pull/1", sums[i], parts=(i, i + 1), phase=2)]
            for i, helper in enumerate(helpers)
        ]
        summed = [arrived[0] for arrived in held]
        for step in range(1, n):
            for i, helper in enumerate(helpers):
                to = (i + step) % n
                unit = dict(parts=(i, i + 1), phase=2)
                held[to].append(
                    builder.add(helper, helpers[to], "pull/1", COPY, [summed[i]], **unit)
                )
        for arrived, (helper, nodes) in zip(held, racks.items(), strict=True):
            for node in nodes:
                builder.add(helper, node, "pull/0", COPY, arrived, phase=3)
        workers = sum(racks.values(), [])
        return builder.build(workers, workers, chunks=self.chunks, overlap=self.overlap)

    def groups(
        self, topology: Topology, members: Sequence[int] | None = None
    ) -> list[list[list[int]]]:
        """Level 0: the workers of each rack; level 1: the helpers that take part."""
        racks = _racks(topology, members)
        return [list(racks.values()), [list(racks)]]


def _racks(topology: Topology, members: Sequence[int] | None) -> dict[int, list[int]]:
    """The workers that take part by their rack's helper."""
    region = topology.regions[0] if topology.regions else np.zeros(topology.n_nodes, np.int32)
    helpers: dict[int, int] = {}
    for server in topology.servers.tolist():
        helpers.setdefault(int(region[server]), server)
    racks: dict[int, list[int]] = {}
    for node in participants("parameter_hub", topology, members):
        rack = int(region[node])
        if rack not in helpers:
            raise ValueError(
                f"parameter_hub: {topology.node_names[node]} has no helper server in its rack "
                f"(region {rack}); use a topology with a server in every rack"
            )
        racks.setdefault(helpers[rack], []).append(node)
    return racks
