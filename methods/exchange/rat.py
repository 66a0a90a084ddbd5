"""RAT: resilient all-reduce trees, one rooted at each worker, that follow the network's regions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from methods.exchange import COPY, REDUCE, Exchange, Plan, PlanBuilder, PlanPart, Topology
from methods.exchange._members import participants, whole_only
from methods.exchange._regions import Groups, hierarchy, parties

UNITS = 1_000
"""Parts a tree that the vector is cut into where the trees have weights."""


@dataclass(frozen=True)
class Rat(Exchange):
    """n trees, each rooted at one worker and carrying its share of the vector.

    In a tree, every rack has an aggregator of level 0; every region of layer i has one of level i,
    chosen among those of level i - 1 inside; the root is the last. Level L of the tree is what the
    region's parties send to its aggregator of level L; the broadcast takes the same edges back.

    Aggregators stand where the root stands: at the root's position in its rack, in the rack that
    has the position of the root's rack in its pod, and so on (modulo the size, where regions
    differ). So in equal regions each worker aggregates equally often.

    Issue order: levels upwards, then downwards; within a level, a worker of rank i first reduces to
    the tree with root i + 1, then i + 2, …, and first receives from root i - 1, i - 2, …. So the
    racks' workers that begin together have different receivers. Without ``overlap`` there is a
    barrier after every level, 2 (layers + 1) in all.

    Parameters
    ----------
    weights: the trees' loads, one a member in rank order, >= 0 and not all 0; None for equal ones.
        The vector is cut into 1,000 parts a member for it; a tree whose share rounds to none is
        left out.
    """

    summary: ClassVar[str] = "a tree of rack and region aggregators for every worker as the root"
    source: ClassVar[str] = "RAT [@wan2020rat], sections 3.1 and 3.2 (figure 5)"

    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.weights is None:
            return
        weights = tuple(float(weight) for weight in self.weights)
        if not all(0 <= weight < math.inf for weight in weights) or not sum(weights) > 0:
            raise ValueError(f"rat: weights must be finite, >= 0 and not all 0, not {weights}")
        object.__setattr__(self, "weights", weights)

    def __call__(
        self, topology: Topology, members: Sequence[int] | None = None, part: PlanPart = "all"
    ) -> Plan:
        whole_only("rat", part)
        layers = hierarchy("rat", topology, members)
        nodes, top = np.array(layers[-1][0]), len(layers) - 1
        n = len(nodes)
        cuts = self._cuts(participants("rat", topology, members), nodes)
        roots = np.flatnonzero(np.diff(cuts))
        # An entry is a worker in a tree: entry e is worker e % n in the tree of roots[e // n].
        parent, level = _trees(layers, roots)
        worker, root = np.arange(len(parent)) % n, np.repeat(roots, n)
        kids = np.argsort(np.where(level <= top, parent, -1), kind="stable")[len(roots) :]
        n_kids = np.bincount(parent[kids], minlength=len(parent))
        first_kid = np.cumsum(n_kids) - n_kids

        slots = [f"push/{i}" for i in range(top + 1)] + [f"pull/{i}" for i in range(top + 1)]
        builder = PlanBuilder("rat", int(cuts[-1]), slots)
        # Numbers of the transfers that an entry sends up, and later of those that it gets.
        number = np.full(len(parent), -1)

        def ordered(i: int, sign: int) -> np.ndarray:
            these = np.flatnonzero(level == i)
            step = sign * (root[these] - worker[these]) % n
            return these[np.lexsort((worker[these], step))]

        def sums(these: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """What the entries receive on the way up, as dependencies."""
            ptr = np.concatenate([[0], np.cumsum(n_kids[these])])
            shift = np.repeat(first_kid[these] - ptr[:-1], n_kids[these])
            return ptr, number[kids[shift + np.arange(ptr[-1])]]

        def parts(these: np.ndarray) -> dict[str, np.ndarray]:
            return dict(lo=cuts[root[these]], hi=cuts[root[these] + 1])

        for i in range(top + 1):
            e = ordered(i, +1)
            src, dst = nodes[worker[e]], nodes[worker[parent[e]]]
            number[e] = builder.extend(src, dst, f"push/{i}", REDUCE, sums(e), phase=i, **parts(e))
        e = np.flatnonzero(level > top)
        src, phase = nodes[worker[e]], top + 1
        number[e] = builder.extend(src, src, slots[-1], COPY, sums(e), phase=phase, **parts(e))
        for i in reversed(range(top + 1)):
            e = ordered(i, -1)
            src, dst, phase = nodes[worker[parent[e]]], nodes[worker[e]], 2 * top + 1 - i
            after = number[parent[e]]
            number[e] = builder.extend(src, dst, f"pull/{i}", COPY, after, phase=phase, **parts(e))
        return builder.build(nodes, nodes, chunks=self.chunks, overlap=self.overlap)

    def groups(
        self, topology: Topology, members: Sequence[int] | None = None
    ) -> list[list[list[int]]]:
        """Level 0: workers of each rack; then each layer's regions; last, who meets at the root.

        A party of an outer level is named by its first worker: its aggregator differs by tree.
        """
        return parties(hierarchy("rat", topology, members))

    def _cuts(self, ranked: list[int], nodes: np.ndarray) -> np.ndarray:
        """Tree of ``nodes[i]`` carries the parts ``cuts[i]:cuts[i + 1]``."""
        if self.weights is None:
            return np.arange(len(nodes) + 1)
        if len(self.weights) != len(ranked):
            raise ValueError(
                f"rat: needs one weight for each of the {len(ranked)} members, "
                f"not {len(self.weights)}"
            )
        of = dict(zip(ranked, self.weights, strict=True))
        ends = np.cumsum([of[int(node)] for node in nodes])
        units = UNITS * len(nodes)
        return np.concatenate([[0], np.rint(units * ends / ends[-1])]).astype(np.int64)


def _trees(layers: list[Groups], roots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Parent entry and level of every worker in every tree, each (len(roots) * n,).

    A worker sends at level i if it aggregates in its regions of all layers below i, and not of
    layer i. The root aggregates in all of them: its level is len(layers), its parent itself.
    """
    n = len(layers[-1][0])
    workers = np.arange(n)
    ends = [workers + 1] + [np.cumsum([len(group) for group in groups]) for groups in layers]
    region = [np.searchsorted(end, workers, side="right") for end in ends]
    # Of a region: its first party and how many there are; of a root: its place among them.
    first, count = [], []
    for inner, outer in zip(ends[:-1], ends[1:], strict=True):
        begin = np.concatenate([[0], outer[:-1]])
        first.append(np.searchsorted(inner, begin, side="right"))
        count.append(np.diff(first[-1], append=len(inner)))
    place = [(region[j] - first[j][region[j + 1]])[roots, None] for j in range(len(layers))]

    parent = np.broadcast_to(workers, (len(roots), n))
    level = np.full(parent.shape, -1)
    for layer in range(len(layers)):
        climbs = parent == workers
        head = region[layer + 1]
        for j in range(layer, -1, -1):
            head = first[j][head] + place[j] % count[j][head]
        parent = np.where(climbs, head, parent)
        level += climbs
    level += parent == workers
    return (np.arange(len(roots))[:, None] * n + parent).ravel(), level.ravel()
