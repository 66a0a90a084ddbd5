"""All-gather: every worker sends its own payload to every other, and everybody adds them up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slowlink.methods.exchange import REDUCE, Exchange, Plan, PlanBuilder, PlanPart, Topology
from slowlink.methods.exchange._members import participants, whole_only


@dataclass(frozen=True)
class Allgather(Exchange):
    """n - 1 steps, a phase each: in step s, rank i sends its own payload, whole, to rank i + s.

    Nothing is summed on the way, so payloads that do not add are carried as they are; the price is
    n - 1 whole payloads through every card. What arrives is added on arrival where it can be.

    Its closed form: n - 1 payloads through every card, and n - 1 latencies where steps wait (the
    all-gathers of [@thakur2005optimization]; payloads of all workers as they are).
    """

    summary: ClassVar[str] = "everybody sends its own payload whole to everybody else"
    source: ClassVar[str] = (
        "Sketch-Fusion §4.1 (its [46], Thakur et al., IJHPCA 2005 [@thakur2005optimization]); DDS "
        "document, sparse gradients"
    )
    combines: ClassVar[frozenset[str]] = frozenset({"sum", "merge", "gather"})
    whole: ClassVar[bool] = True

    def __call__(
        self, topology: Topology, members: Sequence[int] | None = None, part: PlanPart = "all"
    ) -> Plan:
        whole_only("allgather", part)
        nodes = np.array(participants("allgather", topology, members))
        rank, n = np.arange(len(nodes)), len(nodes)
        # No sums are sent back: pull/0 stays empty.
        builder = PlanBuilder("allgather", 1, ("push/0", "pull/0"))
        step = np.arange(1, n)[:, None]
        builder.extend(nodes, nodes[(rank + step) % n], "push/0", REDUCE, phase=step - 1)
        return builder.build(nodes, nodes, chunks=self.chunks, overlap=self.overlap)
