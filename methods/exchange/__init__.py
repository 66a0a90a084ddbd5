"""Who sends to whom: topologies, plans and the exchanges that make plans.

An exchange looks at a :class:`Topology` and returns a :class:`Plan`. A plan is data: what is sent
in which order and what must have arrived first. Four executors run the same plan: exact execution
on arrays, the fluid simulator, a packet simulator and real processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from methods import room

REDUCE, COPY = 0, 1
"""What a transfer does on arrival: add to what the receiver has, or stand in its place."""

Part = Literal["all", "push", "pull"]


@dataclass(frozen=True)
class Topology:
    """A network: nodes joined by directed links. Read-only data.

    Nodes are numbered from 0; a node is a worker, a server (any helper that holds payloads) or a
    switch. Links are directed, so a full-duplex cable is two links.

    Attributes
    ----------
    node_names: name of each node, length ``n_nodes``.
    workers: node ids of the workers, in rank order.
    servers: node ids of helper nodes, the central one first.
    link_src, link_dst: (n_links,) node ids.
    link_rate: (n_links,) bit/s; ``inf`` for a link that never constrains.
    link_latency: (n_links,) seconds a message spends on the link whatever its size.
    regions: for each layer (innermost first, e.g. site), (n_nodes,) region id, -1 for none.
    layers: name of each layer of ``regions``.
    """

    node_names: tuple[str, ...]
    workers: np.ndarray
    servers: np.ndarray
    link_src: np.ndarray
    link_dst: np.ndarray
    link_rate: np.ndarray
    link_latency: np.ndarray
    regions: tuple[np.ndarray, ...] = ()
    layers: tuple[str, ...] = ()
    name: str = "topology"

    def __post_init__(self) -> None:
        ints = ("workers", "servers", "link_src", "link_dst")
        for attribute in (*ints, "link_rate", "link_latency"):
            dtype = np.int32 if attribute in ints else np.float64
            array = np.array(getattr(self, attribute), dtype=dtype)
            array.setflags(write=False)
            object.__setattr__(self, attribute, array)
        regions = tuple(np.array(layer, dtype=np.int32) for layer in self.regions)
        for layer in regions:
            layer.setflags(write=False)
        object.__setattr__(self, "regions", regions)
        if len(self.regions) != len(self.layers):
            raise ValueError(f"{self.name}: {len(self.regions)} regions, {len(self.layers)} layers")
        if not (len(self.link_src) == len(self.link_dst) == len(self.link_rate)):
            raise ValueError(f"{self.name}: link arrays differ in length")
        if np.any(~(self.link_rate > 0)) or np.any(~(self.link_latency >= 0)):
            raise ValueError(f"{self.name}: link rates must be > 0 bit/s and latencies >= 0 s")

    @property
    def n_nodes(self) -> int:
        return len(self.node_names)

    @property
    def n_links(self) -> int:
        return len(self.link_src)


@dataclass(frozen=True)
class Plan:
    """Transfers in issue order: parallel arrays, one entry a transfer, and their dependencies.

    The vector that is exchanged is cut into ``units`` equal parts; transfer ``t`` carries the
    parts ``lo[t]:hi[t]`` of it from ``src[t]`` to ``dst[t]``. What it carries is fixed by data
    flow, not by timing: the sender's own value plus every REDUCE that it directly depends on and
    that arrived at the sender, or the value of a COPY it directly depends on. So a transfer lists
    all arrivals that it includes. A local transfer (``src == dst``) takes no time and joins
    arrivals, so that n pulls after n pushes need 2n dependencies and not n².

    A node ends with, for each part, what the last COPY brought it, or else its own value plus
    every REDUCE that arrived.

    Attributes
    ----------
    src, dst: (n,) int32 node ids.
    lo, hi: (n,) int32 range of parts, ``0 <= lo < hi <= units``.
    slot: (n,) int16 index into ``slots``: which message this is, for binding its size.
    op: (n,) int8 ``REDUCE`` or ``COPY``.
    phase: (n,) int16; where ``overlap`` is false, no transfer starts before all of the phases
        below its own are over.
    dep_ptr, dep_idx: dependencies of ``t`` are ``dep_idx[dep_ptr[t]:dep_ptr[t + 1]]``, each < t.
    slots: names of message slots, e.g. ``("push/0", "pull/0")``: direction and level.
    units: number of equal parts the vector is cut into.
    chunks: every transfer is sent as so many pieces, pipelined piece by piece.
    overlap: whether phases may overlap.
    window: transfers a node sends at once, 0 for no limit. Among those that may start, a node
        starts the lowest-numbered first.
    contributors: (k,) node ids whose own values enter the sum; other nodes start from nothing.
    receivers: (m,) node ids that must end with the whole sum.
    """

    src: np.ndarray
    dst: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    slot: np.ndarray
    op: np.ndarray
    phase: np.ndarray
    dep_ptr: np.ndarray
    dep_idx: np.ndarray
    slots: tuple[str, ...]
    units: int
    contributors: np.ndarray
    receivers: np.ndarray
    chunks: int = 1
    overlap: bool = True
    window: int = 0
    name: str = "plan"

    def __post_init__(self) -> None:
        types = dict(src=np.int32, dst=np.int32, lo=np.int32, hi=np.int32, slot=np.int16)
        types |= dict(op=np.int8, phase=np.int16, dep_ptr=np.int64, dep_idx=np.int32)
        types |= dict(contributors=np.int32, receivers=np.int32)
        for attribute, dtype in types.items():
            array = np.array(getattr(self, attribute), dtype=dtype)
            array.setflags(write=False)
            object.__setattr__(self, attribute, array)
        if self.chunks < 1:
            raise ValueError(f"{self.name}: chunks must be at least 1, not {self.chunks}")

    def __len__(self) -> int:
        return len(self.src)

    def dependencies(self, transfer: int) -> np.ndarray:
        return self.dep_idx[self.dep_ptr[transfer] : self.dep_ptr[transfer + 1]]


class PlanBuilder:
    """Collects transfers and makes the :class:`Plan`; the one way exchanges write plans."""

    def __init__(self, name: str, units: int, slots: Sequence[str]) -> None:
        self.name, self.units, self.slots = name, units, tuple(slots)
        self._rows: list[tuple[int, int, int, int, int, int, int]] = []
        self._deps: list[Sequence[int]] = []

    def add(
        self,
        src: int,
        dst: int,
        slot: str,
        op: int,
        after: Sequence[int] = (),
        parts: tuple[int, int] | None = None,
        phase: int = 0,
    ) -> int:
        """Append a transfer and return its number."""
        lo, hi = parts if parts is not None else (0, self.units)
        self._rows.append((src, dst, lo, hi, self.slots.index(slot), op, phase))
        self._deps.append(tuple(after))
        return len(self._rows) - 1

    def join(self, node: int, slot: str, after: Sequence[int], **kwargs) -> int:
        """A local step at ``node`` that stands for everything in ``after``; takes no time."""
        return self.add(node, node, slot, COPY, after, **kwargs)

    def build(self, contributors: Sequence[int], receivers: Sequence[int], **options) -> Plan:
        columns = np.array(self._rows, dtype=np.int64).reshape(-1, 7).T
        counts = np.array([len(d) for d in self._deps], dtype=np.int64)
        return Plan(
            *columns,
            dep_ptr=np.concatenate([[0], np.cumsum(counts)]),
            dep_idx=np.concatenate([np.asarray(d, np.int64) for d in self._deps] or [[]]),
            slots=self.slots,
            units=self.units,
            contributors=np.asarray(contributors),
            receivers=np.asarray(receivers),
            name=self.name,
            **options,
        )


@dataclass(frozen=True)
class Exchange:
    """Base of every exchange; calling one with a topology returns a :class:`Plan`.

    Parameters
    ----------
    overlap: whether later phases may begin while earlier ones run (full-duplex pipelining).
    chunks: pieces that each message is cut into for pipelining.
    """

    summary: ClassVar[str]
    source: ClassVar[str]
    combines: ClassVar[frozenset[str]] = frozenset({"sum"})
    """Ways of combining payloads this exchange can carry: ``sum``, ``merge``, ``gather``."""

    overlap: bool = field(default=True, kw_only=True)
    chunks: int = field(default=1, kw_only=True)

    def __call__(
        self, topology: Topology, members: Sequence[int] | None = None, part: Part = "all"
    ) -> Plan:
        """Plan the exchange among ``members`` (worker node ids; all workers if None).

        ``part`` asks for the whole all-reduce, or only its push or its pull fragment.
        """
        raise NotImplementedError

    def groups(
        self, topology: Topology, members: Sequence[int] | None = None
    ) -> list[list[list[int]]]:
        """Where payloads combine, level by level, innermost first.

        Level 0 lists groups of worker nodes; each group is one party of level 1, and so on. The
        slots ``push/0``, ``pull/0``, ``push/1`` … of the plan carry the payloads of the levels. A
        flat exchange has one level with one group.
        """
        return [[[int(n) for n in (topology.workers if members is None else members)]]]


names, load = room("methods.exchange", Exchange)
