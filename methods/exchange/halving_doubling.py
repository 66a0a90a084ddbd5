"""Recursive halving and doubling: swap halves of what is left, then gather it back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from methods.exchange import COPY, REDUCE, Exchange, Plan, PlanBuilder, PlanPart, Topology
from methods.exchange._members import participants, whole_only
from methods.exchange._regions import power_of


@dataclass(frozen=True)
class HalvingDoubling(Exchange):
    """Reduce-scatter by halving, then all-gather by doubling, log2 n steps each, a phase each.

    In each step of the halving, partners split the range of parts that both still sum: each sends
    the other's half. The doubling takes the same steps in reverse with finished sums. A power of
    two workers.

    Parameters
    ----------
    first: ``far``: the first halves, which are the largest, go to ranks n/2 apart. ``near``: to
        neighbouring ranks, so that they stay inside racks.
    """

    summary: ClassVar[str] = "swap halves with partners to reduce, doubled back to gather"
    source: ClassVar[str] = (
        "RAT, section 2.3 (recursive halving and doubling; its [20], [@goyal2017accurate])"
    )

    first: Literal["far", "near"] = "far"

    def __post_init__(self) -> None:
        if self.first not in ("far", "near"):
            raise ValueError(f"halving_doubling: first must be far or near, not {self.first!r}")

    def __call__(
        self, topology: Topology, members: Sequence[int] | None = None, part: PlanPart = "all"
    ) -> Plan:
        whole_only("halving_doubling", part)
        nodes = np.array(participants("halving_doubling", topology, members))
        n = len(nodes)
        steps = power_of("halving_doubling", n, 2)
        ranks = np.arange(n)
        # The near steps are the far steps among ranks whose bits are reversed.
        if self.first == "near":
            bits = [(ranks >> bit & 1) << (steps - 1 - bit) for bit in range(steps)]
            nodes = nodes[sum(bits, start=np.zeros_like(ranks))]

        builder = PlanBuilder("halving_doubling", n, ("push/0", "pull/0"))
        arrived = np.empty((n, 0), int)
        for step, half in enumerate(n >> np.arange(1, steps + 1)):
            partner = ranks ^ half
            lo = partner & -half
            sent = builder.extend(
                nodes, nodes[partner], "push/0", REDUCE, arrived, lo, lo + half, step
            )
            arrived = np.column_stack([arrived, sent[partner]])
        if steps:
            join = builder.extend(nodes, nodes, "pull/0", COPY, arrived, ranks, ranks + 1, steps)
            arrived = join[:, None]
        for step, half in enumerate(1 << np.arange(steps)):
            partner = ranks ^ half
            lo = ranks & -half
            sent = builder.extend(
                nodes, nodes[partner], "pull/0", COPY, arrived, lo, lo + half, steps + step
            )
            arrived = np.column_stack([arrived, sent[partner]])
        return builder.build(nodes, nodes, chunks=self.chunks, overlap=self.overlap)
