"""The members of an exchange, grouped layer by layer by the regions that they share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slowlink.methods.exchange import Topology
from slowlink.methods.exchange._members import participants

Groups = list[list[int]]


def hierarchy(name: str, topology: Topology, members: Sequence[int] | None) -> list[Groups]:
    """``members`` (all workers if None) grouped by region, innermost layer first.

    One entry a layer of ``topology.regions`` and a last one with everybody in one group; without
    regions, the last one only. Groups nest: a group is what shares its layer's region and all
    outer ones. Every layer lists the members in the same order: ranks, as far as nesting allows.

    Raises ValueError, beginning with ``name``, for members that are not distinct workers.
    """
    layers = [[participants(name, topology, members)]]
    for region in topology.regions[::-1]:
        layers.append([part for group in layers[-1] for part in split(group, region)])
    order = [node for group in layers[-1] for node in group]
    return [_cut(order, groups) for groups in reversed(layers)]


def parties(layers: list[Groups]) -> list[Groups]:
    """The levels of :meth:`Exchange.groups`: a group's first member stands for it further out."""
    levels = [layers[0]]
    for inner, outer in zip(layers[:-1], layers[1:], strict=True):
        heads = {group[0] for group in inner}
        levels.append([[node for node in group if node in heads] for group in outer])
    return levels


def equal(name: str, groups: Groups) -> int:
    """The size that all ``groups`` have. Raises ValueError where sizes differ."""
    sizes = [len(group) for group in groups]
    if len(set(sizes)) > 1:
        raise ValueError(
            f"{name}: needs equally many workers in every region, "
            f"and these {len(sizes)} have {', '.join(map(str, sizes))}"
        )
    return sizes[0]


def power_of(name: str, n: int, k: int) -> int:
    """The exponent ``e`` of ``n == k**e``. Raises ValueError where there is none."""
    exponent = 0
    while k**exponent < n:
        exponent += 1
    if k**exponent != n:
        below, above = k ** (exponent - 1), k**exponent
        raise ValueError(
            f"{name}: needs a power of {k} workers, such as {below} or {above}, and not {n}"
        )
    return exponent


def split(group: list[int], region: np.ndarray) -> Groups:
    """The members of ``group`` by their ``region``, in order of first appearance."""
    parts: dict[int, list[int]] = {}
    for node in group:
        parts.setdefault(int(region[node]), []).append(node)
    return list(parts.values())


def _cut(order: list[int], groups: Groups) -> Groups:
    ends = np.cumsum([len(group) for group in groups])
    return [order[end - len(group) : end] for group, end in zip(groups, ends, strict=True)]
