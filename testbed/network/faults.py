"""What goes wrong in a network: data, so that a faulty run is as repeatable as any other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Faults:
    """Nodes that pause.

    Attributes
    ----------
    pauses: ``(node, begin, end)``, seconds. From ``begin`` until ``end`` the node starts no
        transfer and those it is sending stand still; it goes on receiving. Sorted, and pauses of
        one node that touch are one.
    """

    pauses: tuple[tuple[int, float, float], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "pauses", tuple(_merged(self.pauses)))


def _merged(pauses: Iterable[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    merged: list[tuple[int, float, float]] = []
    for node, begin, end in sorted((int(n), float(b), float(e)) for n, b, e in pauses):
        if not (0 <= begin < end and math.isfinite(end)):
            raise ValueError(
                f"pause of node {node} from {begin} s to {end} s: needs 0 <= begin < end, finite"
            )
        if merged and merged[-1][0] == node and begin <= merged[-1][2]:
            begin, end = merged[-1][1], max(end, merged[-1][2])
            merged.pop()
        merged.append((node, begin, end))
    return merged
