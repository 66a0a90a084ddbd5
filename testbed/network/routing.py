"""Which links a message takes: shortest paths by hops, found once a source."""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np

from methods.exchange import Topology


def route(topology: Topology, src: int, dst: int) -> list[int]:
    """Links from ``src`` to ``dst`` in order; none where they are the same node."""
    return routes(topology, [(src, dst)])[1].tolist()


def routes(
    topology: Topology, pairs: Sequence[tuple[int, int]] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Links of every ``(source, destination)`` of ``pairs``.

    A shortest path by hops. Only switches forward: workers and servers begin and end paths.

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
    forwards = np.ones(topology.n_nodes, dtype=np.bool_)
    forwards[topology.workers] = forwards[topology.servers] = False

    by_source = np.argsort(topology.link_src, kind="stable")
    starts = np.searchsorted(topology.link_src[by_source], np.arange(topology.n_nodes + 1))
    sources, which = np.unique(pairs[:, 0], return_inverse=True)
    trees = np.empty((len(sources), topology.n_nodes), dtype=np.int64)
    for row, source in enumerate(sources):
        _tree(source, starts, by_source, topology.link_dst, forwards, trees[row])

    link_src = topology.link_src
    hops = np.empty(len(pairs), dtype=np.int64)
    _walk(pairs, which, trees, link_src, hops, np.empty(0, np.int64), np.empty(0, np.int64))
    if len(pairs) and hops.min() < 0:
        a, b = pairs[np.argmin(hops)]
        names = topology.node_names
        raise ValueError(f"{topology.name}: no path from {names[a]} to {names[b]}")
    ptr = np.concatenate([[0], np.cumsum(hops)])
    links = np.empty(ptr[-1], dtype=np.int64)
    _walk(pairs, which, trees, link_src, hops, ptr, links)
    return ptr, links


@numba.njit(cache=True)
def _tree(source, starts, by_source, link_dst, forwards, parent):
    """Breadth-first tree: the link that enters each node, -1 where none does.

    Of several shortest paths the lowest-numbered links win. Where paths are to be spread over
    equal ones, this is the one place that chooses.
    """
    parent[:] = -1
    frontier = np.empty(len(parent), dtype=np.int64)
    frontier[0], head, tail = source, 0, 1
    while head < tail:
        node = frontier[head]
        head += 1
        if node != source and not forwards[node]:
            continue
        for i in range(starts[node], starts[node + 1]):
            link = by_source[i]
            target = link_dst[link]
            if target != source and parent[target] < 0:
                parent[target] = link
                frontier[tail] = target
                tail += 1


@numba.njit(cache=True)
def _walk(pairs, which, trees, link_src, hops, ptr, links):
    """Walk every path back to its source: count hops if ``ptr`` is empty, else write links."""
    for i in range(len(pairs)):
        source, node = pairs[i, 0], pairs[i, 1]
        count = 0
        while node != source:
            link = trees[which[i], node]
            if link < 0:
                count = -1
                break
            count += 1
            if len(ptr):
                links[ptr[i + 1] - count] = link
            node = link_src[link]
        hops[i] = count
