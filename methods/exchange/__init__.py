"""Who sends to whom: topologies, plans and the exchanges that make plans.

An exchange looks at a :class:`Topology` and returns a :class:`Plan`. A plan is data: what is sent
in which order and what must have arrived first. Four executors run the same plan: exact execution
on arrays, the fluid simulator, a packet simulator and real processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from slowlink.methods import room

REDUCE, COPY = 0, 1
"""What a transfer does on arrival: add to what the receiver has, or stand in its place."""

PlanPart = Literal["all", "push", "pull"]


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
        columns = (self.link_src, self.link_dst, self.link_rate, self.link_latency)
        if len(set(map(len, columns))) > 1:
            raise ValueError(f"{self.name}: link arrays differ in length")
        if any(len(layer) != self.n_nodes for layer in self.regions):
            raise ValueError(f"{self.name}: every layer of regions needs an entry a node")
        for attribute in ints:
            named = getattr(self, attribute)
            if len(named) and not 0 <= named.min() <= named.max() < self.n_nodes:
                raise ValueError(f"{self.name}: {attribute} names a node that is not there")
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
    window: pieces that a node sends to one other at once, 0 for no limit. At 1, as in all plans
        that exchanges make, they go one after the other, over the one connection that a pair of
        nodes keeps. Whoever may start first does; of those that may at once, the first chunk of any
        transfer goes before the second of any, and among equals the lowest-numbered transfer.
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
    window: int = 1
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


def in_pieces(plan: Plan, pieces: int) -> Plan:
    """The plan with messages cut so that nothing larger than 1/``pieces`` of the vector is waited
    for: in as many chunks as the largest message needs that any other waits for.

    One rule for exchanges with messages of all sizes, from the whole vector (a server's) to 1/n of
    it (a ring's). Where phases do not overlap, what has not arrived in full is not passed on, and
    plans stay as they are.
    """
    if pieces < 1:
        raise ValueError(f"{plan.name}: pieces must be at least 1, not {pieces}")
    waited = np.zeros(len(plan), bool)
    waited[plan.dep_idx] = True
    largest = int((plan.hi - plan.lo)[waited & (plan.src != plan.dst)].max(initial=0))
    chunks = max(1, -(-pieces * largest // plan.units))
    return replace(plan, chunks=chunks) if plan.overlap else plan


class PlanBuilder:
    """Collects transfers and makes the :class:`Plan`; the one way exchanges write plans."""

    def __init__(self, name: str, units: int, slots: Sequence[str]) -> None:
        self.name, self.units, self.slots = name, units, tuple(slots)
        self._length = 0
        self._columns: list[np.ndarray] = []
        self._counts: list[np.ndarray] = []
        self._deps: list[np.ndarray] = []
        # Single transfers wait here, as lists, until a block of them is worth an array.
        self._rows: list[tuple[int, int, int, int, int, int, int]] = []
        self._after: list[Sequence[int]] = []

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
        self._after.append(tuple(after))
        self._length += 1
        return self._length - 1

    def join(self, node: int, slot: str, after: Sequence[int], **kwargs) -> int:
        """A local step at ``node`` that stands for everything in ``after``; takes no time."""
        return self.add(node, node, slot, COPY, after, **kwargs)

    def extend(
        self,
        src: ArrayLike,
        dst: ArrayLike,
        slot: str,
        op: int,
        after: ArrayLike | tuple[ArrayLike, ArrayLike] = (),
        lo: ArrayLike = 0,
        hi: ArrayLike | None = None,
        phase: ArrayLike = 0,
    ) -> np.ndarray:
        """Append many transfers at once and return their numbers.

        ``src``, ``dst``, ``lo``, ``hi`` (None: ``units``) and ``phase`` are broadcast to one
        shape; transfers are numbered along it in C order, and their numbers have that shape.

        ``after`` holds equally many dependencies for every transfer, in the order of the
        transfers: any array with a multiple of their number of entries, as ``(*shape, d)`` has.
        An entry of -1 is none. Where the counts differ much, ``after`` is a tuple ``(ptr, idx)``,
        as ``dep_ptr`` and ``dep_idx`` of a :class:`Plan`.
        """
        hi = self.units if hi is None else hi
        columns = np.broadcast_arrays(src, dst, lo, hi, self.slots.index(slot), op, phase)
        shape, n = columns[0].shape, columns[0].size
        if isinstance(after, tuple) and len(after):
            counts, deps = np.diff(after[0]), np.asarray(after[1])
        elif np.size(after) and n:
            table = np.asarray(after).reshape(n, -1)
            counts, deps = (table >= 0).sum(axis=1), table[table >= 0]
        else:
            counts, deps = np.zeros(n, np.int64), np.empty(0, np.int64)
        if len(counts) != n or counts.sum() != len(deps):
            raise ValueError(f"{self.name}: dependencies do not fit {n} transfers")
        self._flush()
        self._append(np.stack([column.ravel() for column in columns]), counts, deps)
        self._length += n
        return np.arange(self._length - n, self._length).reshape(shape)

    def build(self, contributors: Sequence[int], receivers: Sequence[int], **options) -> Plan:
        self._flush()
        self._append(np.empty((7, 0)), np.empty(0), np.empty(0))
        return Plan(
            *np.concatenate(self._columns, axis=1),
            dep_ptr=np.concatenate([[0], np.cumsum(np.concatenate(self._counts), dtype=np.int64)]),
            dep_idx=np.concatenate(self._deps),
            slots=self.slots,
            units=self.units,
            contributors=np.asarray(contributors),
            receivers=np.asarray(receivers),
            name=self.name,
            **options,
        )

    def _flush(self) -> None:
        if self._rows:
            counts = [len(after) for after in self._after]
            deps = [dep for after in self._after for dep in after]
            self._append(np.array(self._rows).T, np.array(counts), np.array(deps))
            self._rows, self._after = [], []

    def _append(self, columns: np.ndarray, counts: np.ndarray, deps: np.ndarray) -> None:
        self._columns.append(columns.astype(np.int32))
        self._counts.append(counts.astype(np.int32))
        self._deps.append(deps.astype(np.int32))


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
    whole: ClassVar[bool] = False
    """Whether no node holds the whole sum in between, so that there is no push or pull fragment and
    nobody can keep a model for the others. One instance may answer other than its class, by its
    parameters."""

    overlap: bool = field(default=True, kw_only=True)
    chunks: int = field(default=1, kw_only=True)

    def __call__(
        self, topology: Topology, members: Sequence[int] | None = None, part: PlanPart = "all"
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


names, load = room("slowlink.methods.exchange", Exchange)
