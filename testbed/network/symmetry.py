"""What a simulation cannot tell apart: transfers of a plan that start and end together.

Workers around one switch, or sites that are alike, do the same at the same time. Colours say what
could tell transfers apart; they are refined until transfers of one colour share links of the same
colours with equally many transfers of each other colour, wait for the same colours, and stand at
the same place in lanes of the same colours (a coarsest equitable partition, as McKay's programs for
isomorphism begin with it). Max-min fair rates, and with them all times, are then the same for a
colour, so that one of each is simulated in the place of all.

Colours are random numbers of 64 bits, that of several the sum of theirs. That two differ and have
one colour would take some 2^32 kinds of transfers.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from slowlink.testbed.network.routing import mixed


class Flows(NamedTuple):
    """Transfers as the simulator knows them, numbered from 0; ``(n,)`` unless said otherwise.

    Attributes
    ----------
    src, dst: nodes.
    lag: seconds before what left arrives.
    limited: whether one of its links has a rate.
    rank: of its phase, where phases wait for each other.
    lane: number of the queue in which it waits to be sent; it goes in the order of numbers.
    lane_node: (lanes,) who sends from it.
    hop_ptr, hops, weight: it crosses the links ``hops[hop_ptr[t]:hop_ptr[t + 1]]``, and as many of
        its kind as ``weight`` says share each.
    dep_ptr, dep_idx: what it waits for.
    """

    src: np.ndarray
    dst: np.ndarray
    lag: np.ndarray
    limited: np.ndarray
    rank: np.ndarray
    lane: np.ndarray
    lane_node: np.ndarray
    hop_ptr: np.ndarray
    hops: np.ndarray
    weight: np.ndarray
    dep_ptr: np.ndarray
    dep_idx: np.ndarray


class Kinds(NamedTuple):
    """Of which kind each transfer, link and lane is, numbered from 0 in the order of first ones."""

    flows: np.ndarray
    links: np.ndarray
    lanes: np.ndarray


def kinds(flows: Flows, shares: tuple[np.ndarray, ...], rates: np.ndarray) -> Kinds:
    """What cannot be told apart. Each is of its own kind where little would be spared: where there
    are more than half as many kinds as transfers.

    Parameters
    ----------
    shares: (n,) each; those with the same numbers carry equally many bytes.
    rates: (links,) of links.
    """
    n, lanes = len(flows.src), len(flows.lane_node)
    moves = flows.src != flows.dst
    colours = _first_colours(
        *shares, moves, flows.lag, flows.limited, flows.rank, np.where(moves, _places(flows), 0)
    )
    link_colours, lane_colours = _first_colours(rates), np.zeros(lanes, np.uint64)
    columns = flows.hop_ptr, flows.hops, flows.dep_ptr, flows.dep_idx, flows.lane
    found, now = -1, len(np.unique(colours))
    while found < now:
        found = now
        _refine(colours, link_colours, lane_colours, *columns)
        now = len(np.unique(colours))
        if 2 * now > n:
            return Kinds(np.arange(n), np.arange(len(rates)), np.arange(lanes))
    return Kinds(_numbered(colours), _numbered(link_colours), _numbered(lane_colours))


def one_of_each(flows: Flows, kinds: Kinds) -> tuple[Flows, np.ndarray]:
    """One transfer of each kind in the place of all, and which these are, (kinds,)."""
    count, first = kinds.flows.max(initial=-1) + 1, _firsts(kinds.flows)
    # A link of each kind stands for all; so many transfers of each kind cross it.
    shown = _firsts(kinds.links)
    owner = kinds.flows[np.repeat(np.arange(len(kinds.flows)), np.diff(flows.hop_ptr))]
    crossed = np.isin(flows.hops, shown)
    crossings = np.stack([owner[crossed], flows.hops[crossed]])
    (owner, hops), weight = np.unique(crossings, axis=1, return_counts=True)
    waiter = np.repeat(np.arange(len(kinds.flows)), np.diff(flows.dep_ptr))
    waiting = np.isin(waiter, first)
    waits = np.stack([kinds.flows[waiter[waiting]], kinds.flows[flows.dep_idx[waiting]]])
    waiter, dep_idx = np.unique(waits, axis=1)
    made = Flows(
        *(column[first] for column in flows[:5]),
        lane=kinds.lanes[flows.lane[first]],
        lane_node=flows.lane_node[_firsts(kinds.lanes)],
        hop_ptr=_pointers(owner, count),
        hops=hops,
        weight=weight,
        dep_ptr=_pointers(waiter, count),
        dep_idx=dep_idx,
    )
    return made, first


def _places(flows: Flows) -> np.ndarray:
    """The place of every transfer among those of its lane."""
    order = np.argsort(flows.lane, kind="stable")
    sizes = np.bincount(flows.lane)
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places


def _first_colours(*columns: np.ndarray) -> np.ndarray:
    """A colour for each different row."""
    colours = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        _mix(colours, column.astype(np.float64).view(np.uint64))
    return colours


def _numbered(colours: np.ndarray) -> np.ndarray:
    """Colours as numbers in the order of their first appearance."""
    _, first, number = np.unique(colours, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number.reshape(len(colours))]


def _firsts(numbers: np.ndarray) -> np.ndarray:
    """The first one of each kind."""
    return np.unique(numbers, return_index=True)[1]


def _pointers(owner: np.ndarray, count: int) -> np.ndarray:
    """Where the entries of each of ``count`` owners begin, and the last ones end."""
    return np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=count))])


@numba.njit(cache=True)
def _mix(colours, words):
    for i in range(len(colours)):
        colours[i] = mixed(colours[i] ^ words[i])


@numba.njit(cache=True)
def _refine(colours, links, lanes, hop_ptr, hops, dep_ptr, dep_idx, lane):
    """Tell apart, once, by what is next to each. What a transfer waits for comes before it, so that
    a single pass carries differences along chains of any length."""
    met = np.zeros(len(links), np.uint64)
    lanes[:] = np.uint64(0)
    for t in range(len(colours)):
        own = mixed(colours[t])
        lanes[lane[t]] += own
        for h in range(hop_ptr[t], hop_ptr[t + 1]):
            met[hops[h]] += own
    for i in range(len(links)):
        links[i] = mixed(links[i] ^ met[i])
    for t in range(len(colours)):
        around = mixed(lanes[lane[t]])
        for h in range(hop_ptr[t], hop_ptr[t + 1]):
            around += mixed(links[hops[h]] ^ np.uint64(1))
        for d in range(dep_ptr[t], dep_ptr[t + 1]):
            around += mixed(colours[dep_idx[d]] ^ np.uint64(2))
        colours[t] = mixed(colours[t] ^ around)
