"""What a plan moves, counted on its transfers: by link, node and region, and its longest chain.

``sizes`` is always the bytes of the whole exchanged vector: a number, or for each slot a number
or a mapping from the sending node to a number. A transfer moves its share of the vector's parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

import numpy as np

from methods.exchange import Plan, Topology
from testbed.network.routing import routes

Sizes = float | Mapping[str, float | Mapping[int, float]]


@dataclass(frozen=True)
class Traffic:
    """Bytes out of and into each region (or node), by its number."""

    egress: np.ndarray
    ingress: np.ndarray


def transfer_bytes(plan: Plan, sizes: Sizes) -> np.ndarray:
    """Bytes that each transfer moves, (n,) float64; 0 for local transfers.

    Raises
    ------
    ValueError
        A slot or sender without a size, a slot the plan does not have, a size that is not a
        finite number >= 0.
    """
    share = (plan.hi - plan.lo) / plan.units
    moves = plan.src != plan.dst
    if not isinstance(sizes, Mapping):
        return np.where(moves, share * _size(plan, sizes, "the vector"), 0.0)
    unknown = sorted(set(sizes) - set(plan.slots))
    if unknown:
        raise ValueError(f"{plan.name}: no slot {unknown[0]!r}; its slots are {list(plan.slots)}")
    whole = np.zeros(len(plan))
    for index, slot in enumerate(plan.slots):
        uses = moves & (plan.slot == index)
        if not uses.any():
            continue
        if slot not in sizes:
            raise ValueError(f"{plan.name}: slot {slot!r} has no size")
        size = sizes[slot]
        if not isinstance(size, Mapping):
            whole[uses] = _size(plan, size, slot)
            continue
        for source in np.unique(plan.src[uses]).tolist():
            if source not in size:
                raise ValueError(f"{plan.name}: slot {slot!r} has no size for sender {source}")
            whole[uses & (plan.src == source)] = _size(plan, size[source], slot)
    return share * whole


def _size(plan: Plan, size: float, what: str) -> float:
    if not isinstance(size, Real) or not math.isfinite(size) or size < 0:
        raise ValueError(f"{plan.name}: size of {what} must be bytes, finite and >= 0, not {size}")
    return float(size)


def link_traffic(plan: Plan, topology: Topology, sizes: Sizes = 1.0) -> np.ndarray:
    """Bytes that the plan sends over each directed link, (n_links,)."""
    return spread(topology, *plan_routes(plan, topology), transfer_bytes(plan, sizes))


def plan_routes(plan: Plan, topology: Topology) -> tuple[np.ndarray, np.ndarray]:
    """Links of every transfer as ``(ptr, links)``; see :func:`testbed.network.routing.routes`."""
    return routes(topology, np.stack([plan.src, plan.dst], axis=1))


def spread(
    topology: Topology, ptr: np.ndarray, links: np.ndarray, nbytes: np.ndarray
) -> np.ndarray:
    """Sum what transfers move over the links of their routes, (n_links,)."""
    return np.bincount(links, np.repeat(nbytes, np.diff(ptr)), minlength=topology.n_links)


def node_traffic(plan: Plan, topology: Topology, sizes: Sizes = 1.0) -> Traffic:
    """Bytes that each node sends and receives."""
    nbytes = transfer_bytes(plan, sizes)
    return Traffic(
        np.bincount(plan.src, nbytes, minlength=topology.n_nodes),
        np.bincount(plan.dst, nbytes, minlength=topology.n_nodes),
    )


def region_traffic(plan: Plan, topology: Topology, sizes: Sizes = 1.0) -> dict[str, Traffic]:
    """Bytes out of and into every region of every layer.

    A transfer leaves a region if it begins in the region and ends outside it.
    """
    return between_regions(topology, plan.src, plan.dst, transfer_bytes(plan, sizes))


def between_regions(
    topology: Topology, src: np.ndarray, dst: np.ndarray, nbytes: np.ndarray
) -> dict[str, Traffic]:
    """Sum what moves from ``src`` to ``dst`` over the regions that it leaves and enters."""
    traffic = {}
    for layer, region in zip(topology.layers, topology.regions, strict=True):
        here, there = region[src], region[dst]
        out, into = (here >= 0) & (here != there), (there >= 0) & (here != there)
        count = int(region.max(initial=-1)) + 1
        traffic[layer] = Traffic(
            np.bincount(here[out], nbytes[out], minlength=count),
            np.bincount(there[into], nbytes[into], minlength=count),
        )
    return traffic


def longest_chain(plan: Plan) -> int:
    """Transfers between different nodes on the plan's longest chain of dependencies."""
    depth: list[int] = []
    moves = (plan.src != plan.dst).tolist()
    ptr, idx = plan.dep_ptr.tolist(), plan.dep_idx.tolist()
    for t, move in enumerate(moves):
        before = max((depth[d] for d in idx[ptr[t] : ptr[t + 1]]), default=0)
        depth.append(before + move)
    return max(depth, default=0)
