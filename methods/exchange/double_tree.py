"""Two binary trees, each for half of the vector, so that every worker is a leaf of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from slowlink.methods.exchange import COPY, REDUCE, Exchange, Plan, PlanBuilder, PlanPart, Topology
from slowlink.methods.exchange._members import whole_only
from slowlink.methods.exchange._regions import hierarchy

PUSH, PULL = "push/0", "pull/0"


@dataclass(frozen=True)
class DoubleTree(Exchange):
    """Reduce to the root of each tree and broadcast from it, both trees at once.

    Workers are numbered from 1 in the order of their regions, so that neighbours share one wherever
    they can, and stand in the first tree as in a search tree: odd numbers are leaves, and the
    parent of a number differs from it in its lowest bit that is set and in the next. In the second
    tree everybody takes the place of its successor. Whoever has children in one tree is a leaf in
    the other (all but one worker, where their number is odd), so that of each half every card
    carries little more than its share.

    It is what NCCL takes between machines for messages for which a ring would have too many steps.

    Its closed form: chains of floor(log2 n) each way, or one more; with messages in many pieces,
    about one vector through every card each way, where a single tree has one or two
    ([@sanders2009two], section 3).
    """

    summary: ClassVar[str] = "reduce and broadcast along two binary trees, each for half"
    source: ClassVar[str] = (
        "Sanders, Speck, Träff 2009 [@sanders2009two]; NCCL's double binary tree"
    )
    whole: ClassVar[bool] = True

    def __call__(
        self, topology: Topology, members: Sequence[int] | None = None, part: PlanPart = "all"
    ) -> Plan:
        whole_only("double_tree", part)
        nodes = hierarchy("double_tree", topology, members)[-1][0]
        builder = PlanBuilder("double_tree", 2, (PUSH, PULL))
        for half in (0, 1):
            _tree(builder, [*nodes[half:], *nodes[:half]], (half, half + 1))
        return builder.build(nodes, nodes, chunks=self.chunks, overlap=self.overlap)


def _tree(builder: PlanBuilder, nodes: Sequence[int], parts: tuple[int, int]) -> None:
    """Up and down one tree, in which place i + 1 is that of ``nodes[i]``."""
    count = len(nodes)
    upward = sorted(range(1, count + 1), key=_height)
    root = upward.pop()
    top = _height(root)
    arrived: dict[int, list[int]] = {place: [] for place in range(1, count + 1)}
    for place in upward:
        to = _parent(place, count)
        ends = nodes[place - 1], nodes[to - 1]
        sent = builder.add(*ends, PUSH, REDUCE, arrived[place], parts=parts, phase=_height(place))
        arrived[to].append(sent)
    if not arrived[root]:
        return
    got = {root: builder.join(nodes[root - 1], PULL, arrived[root], parts=parts, phase=top)}
    for place in reversed(upward):
        source = _parent(place, count)
        ends, phase = (nodes[source - 1], nodes[place - 1]), 2 * top - _height(place)
        got[place] = builder.add(*ends, PULL, COPY, [got[source]], parts=parts, phase=phase)


def _height(place: int) -> int:
    """The height of a place above the leaves: the zeros at the end of its number."""
    return (place & -place).bit_length() - 1


def _parent(place: int, count: int) -> int:
    """The place above, among so many; nothing is above the largest power of two."""
    bit = place & -place
    above = place - bit | 2 * bit
    return above if above <= count else place - bit
