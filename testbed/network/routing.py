"""Which links a message takes: shortest paths by hops, and a choice among equal ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np

from slowlink.methods.exchange import Topology

FIRST, ECMP, BALANCED = range(3)
CHOICES = {"first": FIRST, "ecmp": ECMP, "balanced": BALANCED}


@dataclass(frozen=True)
class Paths:
    """How a pair of nodes gets one of its equal shortest paths, and keeps it as a connection would.

    Parameters
    ----------
    choice: ``first``: the lowest-numbered link at every node that offers several.
        ``ecmp``: every node hashes source, destination and ``seed``, as switches hash addresses
        and ports; independent at every node.
        ``balanced``: at every node, the pairs that are bound for nodes behind the same switch, or
        the same switches, take turns over the links that lead there, in the order in which the
        pairs first appear. So the links of one rack carry equal numbers of pairs to any other
        rack, give or take one. Nodes that share some of their switches and not all take turns
        apart.
    seed: of the hash; unused otherwise.
    """

    choice: str = "balanced"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.choice not in CHOICES:
            raise ValueError(f"paths: choice must be one of {list(CHOICES)}, not {self.choice!r}")


def route(topology: Topology, src: int, dst: int, paths: Paths = Paths()) -> list[int]:
    """Links from ``src`` to ``dst`` in order, were they alone; none if they are the same node."""
    return routes(topology, [(src, dst)], paths)[1].tolist()


def routes(
    topology: Topology, pairs: Sequence[tuple[int, int]] | np.ndarray, paths: Paths = Paths()
) -> tuple[np.ndarray, np.ndarray]:
    """Links of every ``(source, destination)`` of ``pairs``: a shortest path by hops.

    Equal pairs take the same path. Only switches forward: workers and servers begin and end
    paths.

    Returns
    -------
    ptr, links: path ``i`` is ``links[ptr[i]:ptr[i + 1]]``, in order.

    Raises
    ------
    ValueError
        A node that the topology does not have, or a pair that no path joins.
    """
    pairs = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    outside = (pairs < 0) | (pairs >= topology.n_nodes)
    if outside.any():
        raise ValueError(f"{topology.name}: there is no node {pairs[outside][0]}")
    # Distinct pairs in the order in which they first appear.
    _, first, which = np.unique(
        pairs[:, 0] * topology.n_nodes + pairs[:, 1], return_index=True, return_inverse=True
    )
    order = np.argsort(first)
    which, src, dst = np.argsort(order)[which], *pairs[first[order]].T

    forwards = np.ones(topology.n_nodes, dtype=np.bool_)
    forwards[topology.workers] = forwards[topology.servers] = False
    links_in = _grouped(topology.link_dst, topology.n_nodes)
    onward = np.flatnonzero(forwards[topology.link_dst])
    out_ptr, out_idx = _grouped(topology.link_src[onward], topology.n_nodes)
    links_out = out_ptr, onward[out_idx]

    group, distance = _distances(topology, dst, forwards, links_in)
    hops = np.where(src == dst, 0, distance[group, src])
    if len(hops) and hops.min() < 0:
        a, b = (topology.node_names[ends[np.argmin(hops)]] for ends in (src, dst))
        raise ValueError(f"{topology.name}: no path from {a} to {b}")
    ptr = np.concatenate([[0], np.cumsum(hops)])
    links = np.empty(ptr[-1], dtype=np.int64)
    how = CHOICES[paths.choice], np.uint64(int(paths.seed) % 2**64)
    ends = topology.link_src, topology.link_dst
    _walk(src, dst, group, distance, links_in, links_out, ends, how, ptr, links)

    counts = hops[which]
    every = np.concatenate([[0], np.cumsum(counts)])
    return every, links[np.arange(every[-1]) + np.repeat(ptr[which] - every[:-1], counts)]


def _grouped(keys: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of each key below ``n``, ascending: those of ``k`` are ``idx[ptr[k]:ptr[k+1]]``."""
    idx = np.argsort(keys, kind="stable")
    return np.searchsorted(keys[idx], np.arange(n + 1)), idx


def _distances(
    topology: Topology, dst: np.ndarray, forwards: np.ndarray, links_in: tuple
) -> tuple[np.ndarray, np.ndarray]:
    """Hops to each destination from every other node, -1 for no path.

    Destinations behind the same switch (or switches) are equally far from everywhere else, so
    they share a row: ``distance[group[i], v]`` is from ``v`` to ``dst[i]``.
    """
    ptr, idx = links_in
    rows: dict[tuple[int, ...], int] = {}
    row_of = np.zeros(topology.n_nodes, dtype=np.int64)
    for node in np.unique(dst).tolist():
        doors = np.unique(topology.link_src[idx[ptr[node] : ptr[node + 1]]]).tolist()
        row_of[node] = rows.setdefault(tuple(doors), len(rows))
    distance = np.full((len(rows), topology.n_nodes), -1, dtype=np.int32)
    for doors, row in rows.items():
        _spread(np.array(doors, np.int64), ptr, idx, topology.link_src, forwards, distance[row])
    return row_of[dst], distance


@numba.njit(cache=True)
def _spread(doors, ptr, idx, link_src, forwards, distance):
    """Breadth first against the links, from the nodes one hop away."""
    frontier = np.empty(len(distance), dtype=np.int64)
    tail = len(doors)
    for n in range(tail):  # what assigns to a slice takes seconds to compile, for its errors' words
        frontier[n] = doors[n]
        distance[doors[n]] = 1
    head = 0
    while head < tail:
        node = frontier[head]
        head += 1
        if not forwards[node]:
            continue
        for i in range(ptr[node], ptr[node + 1]):
            source = link_src[idx[i]]
            if distance[source] < 0:
                distance[source] = distance[node] + 1
                frontier[tail] = source
                tail += 1


@numba.njit(cache=True)
def _walk(src, dst, group, distance, links_in, links_out, ends, how, ptr, links):
    """Write the path of every pair. ``links_out`` are those to nodes that forward."""
    (in_ptr, in_idx), (out_ptr, out_idx), (link_src, link_dst) = links_in, links_out, ends
    choice, seed = how
    n_nodes = len(out_ptr) - 1
    turns = np.zeros((n_nodes, len(distance)), dtype=np.int32)
    last_turns = np.zeros(n_nodes, dtype=np.int32)
    options = np.empty(len(link_src), dtype=np.int64)
    for i in range(len(src)):
        node, row = src[i], group[i]
        for at in range(ptr[i], ptr[i + 1]):
            n, last = 0, at + 1 == ptr[i + 1]
            if last:
                for k in range(in_ptr[dst[i]], in_ptr[dst[i] + 1]):
                    if link_src[in_idx[k]] == node:
                        options[n] = in_idx[k]
                        n += 1
            else:
                for k in range(out_ptr[node], out_ptr[node + 1]):
                    if distance[row, link_dst[out_idx[k]]] == distance[row, node] - 1:
                        options[n] = out_idx[k]
                        n += 1
            pick = 0
            if n > 1 and choice == ECMP:
                word = mixed(seed)
                for number in (node, src[i], dst[i]):
                    word = mixed(word ^ np.uint64(number))
                pick = np.int64(((word >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))
            elif n > 1 and choice == BALANCED and last:
                pick = last_turns[dst[i]] % n
                last_turns[dst[i]] += 1
            elif n > 1 and choice == BALANCED:
                # Where turns do not come out even, nodes and rows begin with different links.
                pick = (turns[node, row] + node + row) % n
                turns[node, row] += 1
            links[at] = options[pick]
            node = link_dst[links[at]]


@numba.njit(cache=True)
def mixed(word):
    """A step of splitmix64 (Steele, Lea and Flood, OOPSLA 2014): every bit depends on all."""
    word = word + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
