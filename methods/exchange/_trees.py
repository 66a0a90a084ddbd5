"""All-reduce over trees of aggregators, one rooted at each worker; trees share messages on shared
edges."""

from __future__ import annotations

import numpy as np

from slowlink.methods.exchange import COPY, REDUCE, Plan, PlanBuilder
from slowlink.methods.exchange._regions import Groups


def in_tree_order(layers: list[Groups]) -> np.ndarray:
    """Ranks of the roots in the order in which their trees share out the vector, (n,).

    By the root's position in its rack, then that of its rack in its pod, and so on: so the trees
    that share an edge are next to each other, on every level, where regions are equal.
    """
    return np.lexsort(_Regions(layers).places()[::-1])


def tree_all_reduce(name: str, layers: list[Groups], cuts: np.ndarray, **options) -> Plan:
    """Reduce up the trees, and broadcast back along the same edges.

    In a tree, every region of layer i has one aggregator of level i, chosen among those of level
    i - 1 inside: the one at the root's position (modulo the size, where regions differ). The root
    is the last. What a worker sends to one other on a level is one message, of all trees in which
    it does so, as far as their parts of the vector are next to each other.

    Within a level, a party first sends to the next one in its region, then to the one after that,
    and so on: those that begin together have different receivers. There is a phase a level,
    ``2 len(layers)`` in all.

    Parameters
    ----------
    layers: as :func:`methods.exchange._regions.hierarchy` gives them.
    cuts: tree ``t`` of :func:`in_tree_order` carries the parts ``cuts[t]:cuts[t + 1]``, (n + 1,); a
        tree with none is left out.
    options: for :meth:`PlanBuilder.build`.
    """
    nodes, top = np.array(layers[-1][0]), len(layers) - 1
    n, regions = len(nodes), _Regions(layers)
    trees = np.flatnonzero(np.diff(cuts))
    roots = in_tree_order(layers)[trees]
    # An entry is a worker in a tree: entry e is worker e % n in the tree with the root e // n.
    parent, level = regions.trees(roots)
    worker, tree = np.arange(len(parent)) % n, np.repeat(np.arange(len(roots)), n)
    kids = np.argsort(np.where(level <= top, parent, -1), kind="stable")[len(roots) :]
    n_kids = np.bincount(parent[kids], minlength=len(parent))
    first_kid = np.cumsum(n_kids) - n_kids

    slots = [f"push/{i}" for i in range(top + 1)] + [f"pull/{i}" for i in range(top + 1)]
    builder = PlanBuilder(name, int(cuts[-1]), slots)
    # Numbers of the transfers that carry what an entry sends up, and later of those it gets.
    number, most = np.full(len(parent), -1), 3 * len(parent)

    def bundles(these: np.ndarray, i: int, sign: int) -> tuple[np.ndarray, np.ndarray]:
        """The entries of a level in issue order, and which bundle each is in."""
        a, b = worker[these], worker[parent[these]]
        step = sign * regions.step(a, b, i)
        these = these[np.lexsort((tree[these], b, a, step))]
        a, b, t = worker[these], worker[parent[these]], tree[these]
        new = (np.diff(a) != 0) | (np.diff(b) != 0) | (np.diff(t) != 1)
        return these, np.cumsum(np.concatenate([[0], new])) if len(these) else these

    def add(these, bundle, slot, op, phase, before, back=False) -> None:
        """A transfer a bundle, after what was noted down for ``before`` (bundle, entry)."""
        first = np.flatnonzero(np.diff(bundle, prepend=-1))
        last = np.append(first, len(these))[1:] - 1
        up, down = nodes[worker[these[first]]], nodes[worker[parent[these[first]]]]
        src, dst = (down, up) if back else (up, down)
        of, number_of = np.divmod(np.unique(before[0] * most + number[before[1]]), most)
        ptr = np.searchsorted(of, np.arange(len(first) + 1))
        lo, hi = cuts[trees[tree[these[first]]]], cuts[trees[tree[these[last]]] + 1]
        number[these] = builder.extend(src, dst, slot, op, (ptr, number_of), lo, hi, phase)[bundle]

    def arrived(these: np.ndarray, bundle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the entries get on the way up, by bundle."""
        counts = n_kids[these]
        ptr = np.concatenate([[0], np.cumsum(counts)])
        entry = kids[np.repeat(first_kid[these] - ptr[:-1], counts) + np.arange(ptr[-1])]
        return np.repeat(bundle, counts), entry

    for i in range(top + 1):
        these, bundle = bundles(np.flatnonzero(level == i), i, +1)
        add(these, bundle, slots[i], REDUCE, i, arrived(these, bundle))
    these = np.flatnonzero(level > top)
    each = np.arange(len(these))
    add(these, each, slots[-1], COPY, top + 1, arrived(these, each))
    for i in reversed(range(top + 1)):
        these, bundle = bundles(np.flatnonzero(level == i), i, -1)
        phase = 2 * top + 1 - i
        add(these, bundle, f"pull/{i}", COPY, phase, (bundle, parent[these]), back=True)
    return builder.build(nodes, nodes, **options)


class _Regions:
    """Where each worker of the last layer's order stands, on every layer.

    Region ``region[j][v]`` of worker ``v`` among all of layer ``j``, where layer 0 is the workers
    themselves; of a region, its first party (``first[j]``) and how many there are (``count[j]``).
    """

    def __init__(self, layers: list[Groups]) -> None:
        workers = np.arange(len(layers[-1][0]))
        ends = [workers + 1] + [np.cumsum([len(group) for group in groups]) for groups in layers]
        self.region = [np.searchsorted(end, workers, side="right") for end in ends]
        self.first, self.count = [], []
        for inner, outer in zip(ends[:-1], ends[1:], strict=True):
            begin = np.concatenate([[0], outer[:-1]])
            self.first.append(np.searchsorted(inner, begin, side="right"))
            self.count.append(np.diff(self.first[-1], append=len(inner)))

    def places(self) -> list[np.ndarray]:
        """The place of every worker in its rack, that of its rack in its pod, …"""
        return [self.region[j] - first[self.region[j + 1]] for j, first in enumerate(self.first)]

    def step(self, a: np.ndarray, b: np.ndarray, layer: int) -> np.ndarray:
        """How many parties of their region on ``layer`` worker ``b`` is after ``a``, cyclically."""
        size = self.count[layer][self.region[layer + 1][a]]
        return (self.region[layer][b] - self.region[layer][a]) % size

    def trees(self, roots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Parent entry and level of every worker in every tree, each (len(roots) * n,).

        A worker sends at level i if it aggregates in its regions of all layers below i, and not of
        layer i. The root aggregates in all of them: its level is the number of layers, its parent
        itself.
        """
        workers = np.arange(len(self.region[0]))
        place = [of[roots, None] for of in self.places()]
        parent = np.broadcast_to(workers, (len(roots), len(workers)))
        level = np.full(parent.shape, -1)
        for layer in range(len(self.first)):
            climbs = parent == workers
            head = self.region[layer + 1]
            for j in range(layer, -1, -1):
                head = self.first[j][head] + place[j] % self.count[j][head]
            parent = np.where(climbs, head, parent)
            level += climbs
        level += parent == workers
        return (np.arange(len(roots))[:, None] * len(workers) + parent).ravel(), level.ravel()
