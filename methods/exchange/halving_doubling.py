"""Recursive halving and doubling: swap halves of what is left, then gather it back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np

from slowlink.methods.exchange import COPY, REDUCE, Exchange, Plan, PlanBuilder, PlanPart, Topology
from slowlink.methods.exchange._members import participants, whole_only


@dataclass(frozen=True)
class HalvingDoubling(Exchange):
    """Reduce-scatter by halving, then all-gather by doubling, floor(log2 n) steps each.

    In each step of the halving, partners split the range of parts that both still sum: each sends
    the other's half. The doubling takes the same steps in reverse with finished sums, a phase each.

    Neighbours begin: the halves of the vector go to the next rank, and with every step the distance
    doubles while the message halves, so that what crosses the network is small. So does Gloo, the
    library of [@goyal2017accurate] (its docs/algorithms.md: ranks 0 and 1, 2 and 3, … swap first).

    Numbers of workers that are no power of two are taken apart into binary blocks, powers of two,
    the largest with the lowest ranks [@thakur2005optimization]. Each block halves by itself; then
    each hands its sums to the next larger one, from the smallest up, and gets finished ones back.

    Their closed form, for n = 2^k: 2 log2 n messages one after the other, 2 (n - 1)/n vectors out
    of every worker (Rabenseifner's algorithm in [@thakur2005optimization]).

    Parameters
    ----------
    first: ``near``: the first halves, which are the largest, go to neighbouring ranks. ``far``: to
        ranks half a block apart, as in the textbook order (distance halving).
    """

    summary: ClassVar[str] = "swap halves with partners to reduce, doubled back to gather"
    source: ClassVar[str] = (
        "Goyal et al. 2017 [@goyal2017accurate] and its library Gloo; binary blocks: Thakur et "
        "al., IJHPCA 2005 [@thakur2005optimization] (RAT [20], section 2.3)"
    )
    whole: ClassVar[bool] = True

    first: Literal["near", "far"] = "near"

    def __post_init__(self) -> None:
        if self.first not in ("near", "far"):
            raise ValueError(f"halving_doubling: first must be near or far, not {self.first!r}")

    def __call__(
        self, topology: Topology, members: Sequence[int] | None = None, part: PlanPart = "all"
    ) -> Plan:
        whole_only("halving_doubling", part)
        nodes = participants("halving_doubling", topology, members)
        blocks = [self._in_order(block) for block in _binary_blocks(nodes)]
        units = len(blocks[0])
        last = 2 * (units.bit_length() - 1) - 1  # phase; those of the doubling mirror the halving's
        builder = PlanBuilder("halving_doubling", units, ("push/0", "pull/0"))

        # By block, what arrived at each of its workers, a column a message.
        arrived = [_halve(builder, block, units) for block in blocks]
        for smaller in range(len(blocks) - 1, 0, -1):
            few, many = blocks[smaller], blocks[smaller - 1]
            part_of, owner, phase = _handed_over(few, many)
            lo = part_of * (units // len(many))
            sent = builder.extend(
                few[owner],
                many,
                "push/0",
                REDUCE,
                arrived[smaller][owner],
                lo,
                lo + units // len(many),
                phase,
            )
            arrived[smaller - 1] = np.column_stack([arrived[smaller - 1], sent])
        held = arrived
        if len(nodes) > 1:
            ranks = np.arange(units)
            summed = builder.extend(
                blocks[0], blocks[0], "pull/0", COPY, arrived[0], ranks, ranks + 1, last // 2 + 1
            )
            held[0] = summed[:, None]
        for smaller, (many, few) in enumerate(pairwise(blocks), start=1):
            part_of, owner, phase = _handed_over(few, many)
            lo = part_of * (units // len(many))
            sent = builder.extend(
                many,
                few[owner],
                "pull/0",
                COPY,
                held[smaller - 1],
                lo,
                lo + units // len(many),
                last - phase,
            )
            held[smaller] = sent.reshape(len(few), -1)
        for block, have in zip(blocks, held, strict=True):
            _double(builder, block, units, have, last)
        return builder.build(nodes, nodes, chunks=self.chunks, overlap=self.overlap)

    def _in_order(self, block: list[int]) -> np.ndarray:
        """The block so that far steps among its places are the steps that are wanted.

        Near steps among ranks are far steps among places whose bits are the rank's in reverse.
        """
        ranks, steps = np.arange(len(block)), len(block).bit_length() - 1
        if self.first == "near":
            bits = [(ranks >> bit & 1) << (steps - 1 - bit) for bit in range(steps)]
            ranks = sum(bits, start=np.zeros_like(ranks))
        return np.array(block)[ranks]


def _binary_blocks(nodes: list[int]) -> list[list[int]]:
    """``nodes`` in blocks of distinct powers of two, the largest first."""
    blocks, begin = [], 0
    while begin < len(nodes):
        size = 1 << (len(nodes) - begin).bit_length() - 1
        blocks.append(nodes[begin : begin + size])
        begin += size
    return blocks


def _handed_over(few: np.ndarray, many: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Parts of the larger block, the place in the smaller one that sums each, and the phase.

    The smaller block hands over when it has halved; the larger one then still halves.
    """
    part_of = np.arange(len(many))
    return part_of, part_of // (len(many) // len(few)), len(few).bit_length() - 1


def _halve(builder: PlanBuilder, block: np.ndarray, units: int) -> np.ndarray:
    """Reduce-scatter in the block: place ``v`` ends with part ``v``, of as many as workers."""
    places, width = np.arange(len(block)), units // len(block)
    arrived = np.empty((len(block), 0), int)
    for step in range(len(block).bit_length() - 1):
        half = len(block) >> step + 1
        partner = places ^ half
        lo = (partner & -half) * width
        sent = builder.extend(
            block, block[partner], "push/0", REDUCE, arrived, lo, lo + half * width, step
        )
        arrived = np.column_stack([arrived, sent[partner]])
    return arrived


def _double(
    builder: PlanBuilder, block: np.ndarray, units: int, held: np.ndarray, last: int
) -> None:
    """All-gather in the block, by the steps of the halving in reverse."""
    places, width = np.arange(len(block)), units // len(block)
    for step in reversed(range(len(block).bit_length() - 1)):
        half = len(block) >> step + 1
        partner = places ^ half
        lo = (places & -half) * width
        sent = builder.extend(
            block, block[partner], "pull/0", COPY, held, lo, lo + half * width, last - step
        )
        held = np.column_stack([held, sent[partner]])
