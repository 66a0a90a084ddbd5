"""What a plan moves, counted on its transfers: by link, node and region, and its longest chain.

``sizes`` is always the bytes of the whole exchanged vector: a number, or for each slot a number
or a mapping from the sending node to a number. A transfer moves its share of the vector's parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import get_args

import numba
import numpy as np

from slowlink.methods.exchange import Plan, PlanPart, Topology
from slowlink.testbed.network.routing import Paths, routes

Sizes = float | Mapping[str, float | Mapping[int, float]]


@dataclass(frozen=True)
class RegionTraffic:
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
    share = (plan.hi - plan.lo) / plan.units * (plan.src != plan.dst)
    if not isinstance(sizes, Mapping):
        return share * _size(plan, sizes, "the vector")
    unknown = sorted(set(sizes) - set(plan.slots))
    if unknown:
        raise ValueError(f"{plan.name}: no slot {unknown[0]!r}; its slots are {list(plan.slots)}")
    if sizes.keys() == set(plan.slots) and not any(isinstance(s, Mapping) for s in sizes.values()):
        return share * np.array([_size(plan, sizes[slot], slot) for slot in plan.slots])[plan.slot]
    whole = np.zeros(len(plan))
    for index, slot in enumerate(plan.slots):
        uses = (share > 0) & (plan.slot == index)
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


def complete(plan: Plan, sizes: Sizes) -> Sizes:
    """Sizes for every slot of ``plan`` and no other; a slot that is missing sends nothing."""
    if not isinstance(sizes, Mapping):
        return sizes
    return {slot: sizes.get(slot, 0.0) for slot in plan.slots}


def _size(plan: Plan, size: float, what: str) -> float:
    if not isinstance(size, Real) or not math.isfinite(size) or size < 0:
        raise ValueError(f"{plan.name}: size of {what} must be bytes, finite and >= 0, not {size}")
    return float(size)


def link_traffic(
    plan: Plan, topology: Topology, sizes: Sizes = 1.0, paths: Paths = Paths()
) -> np.ndarray:
    """Bytes that the plan sends over each directed link, (n_links,)."""
    return spread(topology, *plan_routes(plan, topology, paths), transfer_bytes(plan, sizes))


def plan_routes(
    plan: Plan, topology: Topology, paths: Paths = Paths()
) -> tuple[np.ndarray, np.ndarray]:
    """Links of every transfer as ``(ptr, links)``; see :func:`testbed.network.routing.routes`."""
    return routes(topology, np.stack([plan.src, plan.dst], axis=1), paths)


def spread(
    topology: Topology, ptr: np.ndarray, links: np.ndarray, nbytes: np.ndarray
) -> np.ndarray:
    """Sum what transfers move over the links of their routes, (n_links,)."""
    return np.bincount(links, np.repeat(nbytes, np.diff(ptr)), minlength=topology.n_links)


def node_traffic(plan: Plan, topology: Topology, sizes: Sizes = 1.0) -> RegionTraffic:
    """Bytes that each node sends and receives."""
    nbytes = transfer_bytes(plan, sizes)
    return RegionTraffic(
        np.bincount(plan.src, nbytes, minlength=topology.n_nodes),
        np.bincount(plan.dst, nbytes, minlength=topology.n_nodes),
    )


def region_traffic(plan: Plan, topology: Topology, sizes: Sizes = 1.0) -> dict[str, RegionTraffic]:
    """Bytes out of and into every region of every layer.

    A transfer leaves a region if it begins in the region and ends outside it.
    """
    return between_regions(topology, plan.src, plan.dst, transfer_bytes(plan, sizes))


def between_regions(
    topology: Topology, src: np.ndarray, dst: np.ndarray, nbytes: np.ndarray
) -> dict[str, RegionTraffic]:
    """Sum what moves from ``src`` to ``dst`` over the regions that it leaves and enters."""
    traffic = {}
    for layer, region in zip(topology.layers, topology.regions, strict=True):
        here, there = region[src], region[dst]
        out, into = (here >= 0) & (here != there), (there >= 0) & (here != there)
        count = int(region.max(initial=-1)) + 1
        traffic[layer] = RegionTraffic(
            np.bincount(here[out], nbytes[out], minlength=count),
            np.bincount(there[into], nbytes[into], minlength=count),
        )
    return traffic


def least_egress(topology: Topology, members: Sequence[int] | None = None) -> dict[str, float]:
    """What the busiest region of each layer sends in any all-reduce, at the least, in vectors.

    ``2 (R - 1) / R`` for ``R`` regions with members (worker node ids; all workers if None),
    whatever their sizes. Take one element of the vector, and a message to be what carries a
    partial sum of it into another region. Until some region first knows the whole sum, each of the
    others has sent a message: ``R - 1``. That message told one region only, so each of the others
    has yet to get one: ``R - 1`` more. Over all elements regions send ``2 (R - 1)`` vectors, and
    the busiest no less than the mean; so it is attained only where they share evenly. (A helper
    outside these regions that sums for all of them would leave each of them one vector to send.)

    Source: RAT, section 3 (least traffic across regions) and Table 1.
    """
    nodes = topology.workers if members is None else np.asarray(members, dtype=np.int64)
    counts = [len(np.unique(region[nodes])) for region in topology.regions]
    return {
        layer: 2 * (count - 1) / count for layer, count in zip(topology.layers, counts, strict=True)
    }


def longest_chain(plan: Plan, part: PlanPart = "all") -> int:
    """Transfers between different nodes on the plan's longest chain of dependencies.

    ``part`` counts all of them, or only those of ``push/*`` slots (partial sums: the reduce half)
    or of ``pull/*`` slots (finished sums: the broadcast half).
    """
    if part not in get_args(PlanPart):
        raise ValueError(f"{plan.name}: part must be one of {get_args(PlanPart)}, not {part!r}")
    slots = [part == "all" or slot.startswith(f"{part}/") for slot in plan.slots]
    counts = (plan.src != plan.dst) & np.array(slots, dtype=np.bool_)[plan.slot]
    return int(_depth(counts, plan.dep_ptr, plan.dep_idx))


@numba.njit(cache=True)
def _depth(counts, dep_ptr, dep_idx):
    depth = np.zeros(len(counts), dtype=np.int32)
    deepest = 0
    for t in range(len(counts)):
        for i in range(dep_ptr[t], dep_ptr[t + 1]):
            depth[t] = max(depth[t], depth[dep_idx[i]])
        depth[t] += counts[t]
        deepest = max(deepest, depth[t])
    return deepest
