"""Faults of a network as data, so that a faulty run can be repeated like any other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index

import numpy as np

from slowlink.methods.exchange import Topology


@dataclass(frozen=True)
class Faults:
    """Nodes that pause, links that lose capacity, and foreign traffic; ``a | b`` has both.

    All times are seconds from the network's start; a fault lasts from ``begin`` until ``end``,
    which is finite.

    Attributes
    ----------
    pauses: ``(node, begin, end)``. The node starts no transfer and those it is sending stand
        still; it goes on receiving. Sorted, and pauses of one node that touch are one.
    rates: ``(link, begin, end, bit_s)``. The link has at most so much capacity; at 0, transfers
        that cross it stand still. Of several at once on one link the smallest holds. Sorted.
    bursts: ``(link, begin, end, flows)``. So many flows that always have something to send share
        the link max-min fairly; several bursts at once on one link add up. Sorted.

    Raises
    ------
    ValueError
        A time, rate or number of flows that makes no sense.
    """

    pauses: tuple[tuple[int, float, float], ...] = ()
    rates: tuple[tuple[int, float, float, float], ...] = ()
    bursts: tuple[tuple[int, float, float, int], ...] = ()

    def __post_init__(self) -> None:
        pauses = (_timed("pause of node", *pause) for pause in self.pauses)
        rates, bursts = [], []
        for link, begin, end, bit_s in self.rates:
            if not 0 <= bit_s < math.inf:
                raise ValueError(f"rate of link {link}: needs 0 <= bit/s, finite, not {bit_s}")
            rates.append((*_timed("rate of link", link, begin, end), float(bit_s)))
        for link, begin, end, flows in self.bursts:
            if not (flows == int(flows) and flows > 0):
                raise ValueError(f"burst on link {link}: needs a number of flows, not {flows}")
            bursts.append((*_timed("burst on link", link, begin, end), int(flows)))
        object.__setattr__(self, "pauses", tuple(_merged(pauses)))
        object.__setattr__(self, "rates", tuple(sorted(rates)))
        object.__setattr__(self, "bursts", tuple(sorted(bursts)))

    def __or__(self, other: Faults) -> Faults:
        return Faults(
            self.pauses + other.pauses, self.rates + other.rates, self.bursts + other.bursts
        )


def random_pauses(
    nodes: Sequence[int],
    k: int,
    every_s: float,
    until_s: float,
    seed: int,
    begin_s: float = 0.0,
) -> Faults:
    """At any time ``k`` of ``nodes`` are paused; which ones is drawn anew every ``every_s``.

    From ``begin_s`` until ``until_s``, seconds. A node drawn twice in a row stays paused. With the
    same seed a later end repeats the earlier draws, and a larger ``k`` adds nodes to each draw.

    Raises
    ------
    ValueError
        More nodes to pause than there are, or times out of order.

    Source: RAT, section 5.1 (k random nodes stop sending, the set redrawn every d).
    """
    if not 0 <= k <= len(nodes):
        raise ValueError(f"random_pauses: k must be 0 to {len(nodes)} nodes, not {k}")
    if not (every_s > 0 and 0 <= begin_s <= until_s < math.inf):
        raise ValueError(
            f"random_pauses: needs every_s > 0 and 0 <= begin_s <= until_s, finite, "
            f"not {every_s}, {begin_s} and {until_s} s"
        )
    draws = math.ceil((until_s - begin_s) / every_s)
    edges = np.minimum(begin_s + every_s * np.arange(draws + 1), until_s)
    chosen = np.random.default_rng(seed).random((draws, len(nodes))).argsort(axis=1)[:, :k]
    return Faults(
        pauses=[
            (nodes[i], begin, end)
            for begin, end, row in zip(edges[:-1], edges[1:], chosen, strict=True)
            for i in row
            if begin < end
        ]
    )


def failed_links(links: Iterable[int], begin_s: float, end_s: float) -> Faults:
    """Directed ``links`` that carry nothing meanwhile; a cable is two of them."""
    return Faults(rates=[(link, begin_s, end_s, 0.0) for link in links])


def priority(
    topology: Topology, links: Iterable[int], rate: float, begin_s: float, end_s: float
) -> Faults:
    """Traffic of strictly higher priority, ``rate`` bit/s on each of ``links``: the rest is left.

    Several at once on one link do not add up: give their sum.
    """
    if not rate >= 0:
        raise ValueError(f"priority: rate must be 0 bit/s or more, not {rate}")
    links = list(links)
    for link in links:
        if not 0 <= link < topology.n_links:
            raise ValueError(f"priority: {topology.name} has no link {link}")
    left = np.maximum(topology.link_rate - rate, 0.0)
    return Faults(rates=[(link, begin_s, end_s, left[link]) for link in links])


def link_changes(
    faults: Faults, topology: Topology
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """``times, links, rates, flows``: from each time on, that link has that rate and background.

    In order of time; rates in bit/s. A link is as the topology has it until its first entry.

    Raises
    ------
    ValueError
        A node or link that the topology does not have, or a link without a rate to lose.
    """
    for node, _, _ in faults.pauses:
        if not 0 <= node < topology.n_nodes:
            raise ValueError(f"faults: {topology.name} has no node {node} to pause")
    by_link: dict[int, list[tuple[float, float, float, int]]] = {}
    for link, begin, end, rate in faults.rates:
        by_link.setdefault(link, []).append((begin, end, rate, 0))
    for link, begin, end, flows in faults.bursts:
        by_link.setdefault(link, []).append((begin, end, math.inf, flows))
    changes = []
    for link, several in by_link.items():
        if not 0 <= link < topology.n_links:
            raise ValueError(f"faults: {topology.name} has no link {link}")
        whole = float(topology.link_rate[link])
        if whole == math.inf:
            raise ValueError(f"faults: link {link} of {topology.name} never constrains: no rate")
        for time in sorted({edge for begin, end, _, _ in several for edge in (begin, end)}):
            now = [fault for fault in several if fault[0] <= time < fault[1]]
            rate = min([whole, *(rate for _, _, rate, _ in now)])
            changes.append((time, link, rate, sum(flows for _, _, _, flows in now)))
    times, links, rates, flows = np.array(sorted(changes), dtype=np.float64).reshape(-1, 4).T
    return times, links.astype(np.int64), rates, flows.astype(np.int64)


def _timed(what: str, item: int, begin: float, end: float) -> tuple[int, float, float]:
    if not (0 <= begin < end and math.isfinite(end)):
        raise ValueError(f"{what} {item} from {begin} s to {end} s: needs 0 <= begin < end, finite")
    return index(item), float(begin), float(end)


def _merged(pauses: Iterable[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    merged: list[tuple[int, float, float]] = []
    for node, begin, end in sorted(pauses):
        if merged and merged[-1][0] == node and begin <= merged[-1][2]:
            begin, end = merged[-1][1], max(end, merged[-1][2])
            merged.pop()
        merged.append((node, begin, end))
    return merged
