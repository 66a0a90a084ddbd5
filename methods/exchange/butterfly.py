"""Butterfly, a full mix: everybody swaps the whole vector with one partner a stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slowlink.methods.exchange import REDUCE, Exchange, Plan, PlanBuilder, PlanPart, Topology
from slowlink.methods.exchange._members import participants, whole_only
from slowlink.methods.exchange._regions import power_of


@dataclass(frozen=True)
class Butterfly(Exchange):
    """In stage s, ranks that differ in bit s swap the sums they have, so both have the sum of two.

    A power of two workers; log2 n stages, a phase each, all of them of partial sums.

    This is the full mix: all stages run, and then everybody has the sum. Butterfly *mixing*
    [@zhao2013butterfly] is another algorithm, whose point is not to do that: one stage follows each
    gradient step, so that models are only partly mixed when the next step begins. It is measured
    there against this full mix, and changes what is learned, which no exchange does here.

    Its closed form: log2 n messages one after the other, log2 n vectors out of every worker
    (recursive doubling in [@thakur2005optimization]).
    """

    summary: ClassVar[str] = "full mix: log2 n stages of swapping whole vectors with a partner"
    source: ClassVar[str] = (
        "the full mix that butterfly mixing [@zhao2013butterfly] is compared with (RAT, section "
        "2.3, names butterfly mixing)"
    )
    whole: ClassVar[bool] = True

    def __call__(
        self, topology: Topology, members: Sequence[int] | None = None, part: PlanPart = "all"
    ) -> Plan:
        whole_only("butterfly", part)
        nodes = np.array(participants("butterfly", topology, members))
        ranks = np.arange(len(nodes))
        builder = PlanBuilder("butterfly", 1, ("push/0", "pull/0"))
        arrived = np.empty((len(nodes), 0), int)
        for stage in range(power_of("butterfly", len(nodes), 2)):
            partner = ranks ^ (1 << stage)
            sent = builder.extend(nodes, nodes[partner], "push/0", REDUCE, arrived, phase=stage)
            arrived = np.column_stack([arrived, sent[partner]])
        return builder.build(nodes, nodes, chunks=self.chunks, overlap=self.overlap)
