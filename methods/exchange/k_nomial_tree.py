"""k-nomial tree: reduce to the first worker along a tree, and broadcast back along it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from slowlink.methods.exchange import COPY, REDUCE, Exchange, Plan, PlanBuilder, PlanPart, Topology
from slowlink.methods.exchange._members import check_part, participants

PUSH, PULL = "push/0", "pull/0"


@dataclass(frozen=True)
class KNomialTree(Exchange):
    """Write ranks in base k: a worker's parent has its lowest non-zero digit cleared.

    Everybody sends the whole vector once towards rank 0 and receives it once; a parent may receive
    from its children at once. A phase is a digit: lowest first on the way up, last on the way down.

    Its closed form, of n = k^m: chains of m each way, and (k - 1) m vectors into the root's card
    and out of it (binomial: [@thakur2005optimization]).

    Parameters
    ----------
    k: the base, at least 2; 2 is the binomial tree.
    """

    summary: ClassVar[str] = "reduce along a k-nomial tree of ranks, broadcast back along it"
    source: ClassVar[str] = "RAT, section 2.3 (its [18], [@mai2015optimizing])"

    k: int = 2

    def __post_init__(self) -> None:
        if self.k < 2:
            raise ValueError(f"k_nomial_tree: k must be at least 2, not {self.k}")

    def __call__(
        self, topology: Topology, members: Sequence[int] | None = None, part: PlanPart = "all"
    ) -> Plan:
        check_part("k_nomial_tree", part)
        nodes = participants("k_nomial_tree", topology, members)
        digit = [0] + [_lowest_digit(rank, self.k) for rank in range(1, len(nodes))]
        parent = [rank - rank % self.k ** (d + 1) for rank, d in enumerate(digit)]
        upward = sorted(range(1, len(nodes)), key=digit.__getitem__)
        digits = max(digit) + 1

        builder = PlanBuilder("k_nomial_tree", 1, (PUSH, PULL))
        arrived: list[list[int]] = [[] for _ in nodes]
        if part != "pull":
            for rank in upward:
                to, d = parent[rank], digit[rank]
                push = builder.add(nodes[rank], nodes[to], PUSH, REDUCE, arrived[rank], phase=d)
                arrived[to].append(push)
        got = {0: []}
        if part == "all" and arrived[0]:
            got[0] = [builder.join(nodes[0], PULL, arrived[0], phase=digits)]
        if part != "push":
            for rank in reversed(upward):
                source, phase = parent[rank], 2 * digits - 1 - digit[rank]
                pull = builder.add(nodes[source], nodes[rank], PULL, COPY, got[source], phase=phase)
                got[rank] = [pull]
        return builder.build(
            contributors=nodes[:1] if part == "pull" else nodes,
            receivers=nodes[:1] if part == "push" else nodes,
            chunks=self.chunks,
            overlap=self.overlap,
        )


def _lowest_digit(rank: int, k: int) -> int:
    """Place of the lowest non-zero digit of ``rank`` > 0 in base ``k``."""
    place = 0
    while rank % k ** (place + 1) == 0:
        place += 1
    return place
