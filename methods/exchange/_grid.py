"""All-reduce over a grid of workers: stage by stage, among those that differ in one coordinate."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from slowlink.methods.exchange import COPY, REDUCE, Plan, PlanBuilder
from slowlink.methods.exchange._regions import Groups, equal


def nested_grid(name: str, layers: list[Groups]) -> np.ndarray:
    """The members of nested ``layers``, by position: in the rack, of the rack in its pod, …

    Parameters
    ----------
    layers: as :func:`methods.exchange._regions.hierarchy` gives them.

    Returns
    -------
    Node ids, one axis a layer, innermost first. Raises ValueError where a layer's groups differ
    in size.
    """
    sizes = [equal(name, groups) for groups in layers]
    counts = [size // inner for inner, size in zip([1, *sizes], sizes, strict=False)]
    (everybody,) = layers[-1]
    return np.reshape(everybody, counts[::-1]).T


def levels(grid: np.ndarray) -> list[Groups]:
    """What combines along each axis of ``grid``, as :meth:`Exchange.groups` lists it."""
    found = []
    for size in grid.shape:
        found.append(grid.T.reshape(-1, size).tolist())
        grid = grid[0]  # the first member stands for its group along the next axis
    return found


def grid_all_reduce(
    name: str, grid: np.ndarray, orders: Sequence[Sequence[int]], ring: bool, **options
) -> Plan:
    """Reduce-scatter along one axis after the other, then all-gathers in reverse.

    Parameters
    ----------
    grid: node ids of the workers, one axis a stage.
    orders: the vector is divided equally over so many orders of the axes; each part takes its
        stages in its own order.
    ring: whether a line of ``g`` workers reduces around a ring, in ``g - 1`` steps, or every
        worker sends to each other one what that one is to sum, in one step.
    options: for :meth:`PlanBuilder.build`.
    """
    h = grid.ndim
    slots = [f"push/{stage}" for stage in range(h)] + [f"pull/{stage}" for stage in range(h)]
    builder = PlanBuilder(name, len(orders) * grid.size, slots)
    for index, order in enumerate(orders):
        _add_part(builder, grid.transpose(order), index * grid.size, ring)
    everybody = np.sort(grid, axis=None)
    return builder.build(everybody, everybody, **options)


def _add_part(builder: PlanBuilder, nodes: np.ndarray, first: int, ring: bool) -> None:
    """The units ``first:first + nodes.size``, with the axes of ``nodes`` as the order of stages.

    Before stage ``s`` a worker is responsible for ``nodes.size / (g_0 … g_{s-1})`` units, and
    keeps one in ``g_s`` of them: that of its own coordinate.
    """
    h, places = nodes.ndim, np.indices(nodes.shape)
    lo = np.full(nodes.shape, first)
    sums: list[np.ndarray] = []  # for every worker, the arrivals that its partial sum includes
    for stage, size in enumerate(nodes.shape):
        place, width = places[stage], nodes.size // prod(nodes.shape[: stage + 1])
        arrived: list[np.ndarray] = []
        for step in range(1, size):
            shift = 1 if ring else step
            begin = lo + width * ((place - step if ring else place + step) % size)
            sent = builder.extend(
                nodes,
                np.roll(nodes, -shift, stage),
                f"push/{stage}",
                REDUCE,
                _stack(sums + arrived[-1:] if ring else sums),
                begin,
                begin + width,
                phase=stage,
            )
            arrived.append(np.roll(sent, shift, stage))
        sums += arrived[-1:] if ring else arrived
        lo = lo + width * place
    summed = builder.extend(nodes, nodes, f"pull/{h - 1}", COPY, _stack(sums), lo, lo + 1, phase=h)
    held = [summed]
    for stage, size in reversed(list(enumerate(nodes.shape))):
        place, width = places[stage], nodes.size // prod(nodes.shape[: stage + 1])
        arrived = []
        for step in range(1, size):
            shift = 1 if ring else step
            begin = lo + width * ((place - step + 1) % size - place if ring else 0)
            sent = builder.extend(
                nodes,
                np.roll(nodes, -shift, stage),
                f"pull/{stage}",
                COPY,
                _stack(arrived[-1:] if ring and arrived else held),
                begin,
                begin + width,
                phase=2 * h - 1 - stage,
            )
            arrived.append(np.roll(sent, shift, stage))
        held += arrived
        lo = lo - width * place


def _stack(arrivals: list[np.ndarray]) -> np.ndarray | tuple[()]:
    return np.stack(arrivals, axis=-1) if arrivals else ()
