"""Fluid simulation: transfers are flows that share links max-min fairly.

A message first spends the latency of its route, then streams at the rate that progressive filling
gives it: all rates rise together, and a flow stops rising at its first full link. Links are
directed, so a full-duplex cable carries both ways at once. Any number of plans share the network.

What a message costs besides its bytes, and what adding it up costs, is nothing unless a network is
told so (``message_s``, ``sum_rate``).
"""

from __future__ import annotations

import hashlib
import math
import pickle
import weakref
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import TypeVar

import numpy as np

from slowlink.methods.exchange import COPY, REDUCE, Plan, Topology
from slowlink.testbed.network import _engine as engine
from slowlink.testbed.network import symmetry
from slowlink.testbed.network.counting import (
    Sizes,
    plan_routes,
    spread,
    transfer_bytes,
)
from slowlink.testbed.network.execution import check_structure
from slowlink.testbed.network.faults import Faults, link_changes
from slowlink.testbed.network.routing import Paths
from slowlink.testbed.network.symmetry import Flows

TIMELINE = np.dtype(
    [("src", "i4"), ("dst", "i4"), ("slot", "i2"), ("nbytes", "f8")]
    + [("start_s", "f8"), ("end_s", "f8")]
)

REMEMBERED = 256
"""Plans of which networks of one topology keep what they computed."""
NETWORKS = 4
"""Topologies, but for their rates, of which plans with few transfers are kept …"""
FEW = 1024
"""… so many at most: what is kept of each takes about 200 bytes."""


def tcp_efficiency(mtu: int = 1500, framing: str = "shaper") -> float:
    """Payload share of full TCP segments over Ethernet, with IPv4 and TCP timestamps.

    Parameters
    ----------
    mtu: bytes of an IP packet.
    framing: ``shaper``: a kernel shaper counts the 14-byte Ethernet header, and neither preamble,
        check sequence nor gap. ``wire``: all 38 bytes around a packet count.
    """
    around = {"shaper": 14, "wire": 38}
    if framing not in around:
        raise ValueError(f"tcp_efficiency: framing must be shaper or wire, not {framing!r}")
    headers = 20 + 20 + 12
    if mtu <= headers:
        raise ValueError(f"tcp_efficiency: mtu must exceed {headers} bytes of headers, not {mtu}")
    return (mtu - headers) / (mtu + around[framing])


@dataclass(eq=False)
class Result:
    """One plan on a network: what :meth:`Network.start` returns, filled in when it completes.

    Attributes
    ----------
    start_s: when it was started.
    completion_s: when its last transfer arrived; nan until then.
    """

    plan: Plan
    topology: Topology
    start_s: float
    _nbytes: np.ndarray = field(repr=False)
    completion_s: float = math.nan
    _times: np.ndarray | float = field(default=math.nan, repr=False)
    _static: SimpleNamespace = field(default_factory=SimpleNamespace, repr=False)

    @property
    def done(self) -> bool:
        return not math.isnan(self.completion_s)

    @cached_property
    def transfers(self) -> np.ndarray:
        """A record a transfer: ``src, dst, slot, nbytes, start_s, end_s``; the last two are nan
        until completion."""
        kind = self._static.kind
        records = np.zeros(len(self.plan), TIMELINE)
        for column in ("src", "dst", "slot"):
            records[column] = getattr(self.plan, column)
        records["nbytes"] = self._nbytes[kind]
        shown = np.broadcast_to(self._times, (2, len(self._nbytes)))
        records["start_s"], records["end_s"] = shown[:, kind]
        return records

    @cached_property
    def link_bytes(self) -> np.ndarray:
        """Bytes on each link, (n_links,): payload over the network's efficiency."""
        static = self._static
        return spread(self.topology, static.route_ptr, static.route, self.transfers["nbytes"])


def simulate(
    plan: Plan,
    topology: Topology,
    nbytes: Sizes,
    faults: Faults | None = None,
    **network_options: float | Paths,
) -> Result:
    """Run one plan alone from time 0; see :class:`Network` for sizes and options.

    Of transfers that nothing tells apart, one is simulated (:mod:`testbed.network.symmetry`).
    """
    network = Network(topology, faults, **network_options)
    by_sender = isinstance(nbytes, Mapping) and any(
        isinstance(size, Mapping) for size in nbytes.values()
    )
    result = network._start(plan, nbytes, alone=not faults and not by_sender)
    network.advance()
    return result


class Alone:
    """How long one plan takes on an idle network, asked for one set of sizes after the other.

    A network is set up once, and then put back to time 0 for each; see :class:`Network` for
    ``network_options``.
    """

    def __init__(self, plan: Plan, topology: Topology, **network_options: float | Paths) -> None:
        network = Network(topology, **network_options)
        started = network._start(plan, dict.fromkeys(plan.slots, 0.0), alone=True)
        shown = started._static.shown
        self._slots, self._slot = plan.slots, plan.slot[shown]
        self._share, self._chunks = transfer_bytes(plan, 1.0)[shown], plan.chunks
        self._efficiency = network.efficiency
        engine.narrow(network._state)
        self._state, self._memory = engine.packed(network._state)
        self._begin, n = self._memory.copy(), len(shown)
        rows, flows = self._state.transfers[:n], self._state.flows[:n]
        self._nbytes, self._nothing, self._end_s = rows["nbytes"], flows["nothing"], rows["end_s"]

    def completion_s(self, sizes: Mapping[str, float]) -> float:
        """When the last transfer arrives; ``sizes``: payload bytes of the vector in each slot."""
        if not len(self._share):
            return 0.0
        whole = np.array([sizes[slot] for slot in self._slots], np.float64)
        if not (np.isfinite(whole) & (whole >= 0)).all():
            raise ValueError(f"sizes must be bytes, finite and >= 0, not {sizes}")
        pieces = self._share * whole[self._slot] / self._efficiency / self._chunks
        self._memory[:] = self._begin
        self._nbytes[:], self._nothing[:] = pieces, engine.SAME_SIZE * pieces
        engine.advance(self._state.address, math.inf, True)
        if not self._state.count[engine.DONE]:
            raise RuntimeError("a plan is running but nothing can happen")
        return float(self._end_s.max())


class Network:
    """A network in which plans run.

    Parameters
    ----------
    topology: its links, bit/s and seconds.
    faults: what goes wrong and when.
    paths: which of its equal shortest paths a pair of nodes takes; within each plan by itself.
    efficiency: payload share of what links carry, e.g. :func:`tcp_efficiency`.
    flow_cap: highest rate of a single transfer, bit/s, as links count.
    message_s: seconds that a message takes its sender's software before its first byte leaves, for
        each of the pieces that a plan cuts it into (``o`` of the LogP model). A node's software
        does one after the other, whoever they are for, in the order in which their values are
        there, of those at once first the earlier piece, then the transfer that comes first in its
        plan; what it has done leaves meanwhile. While a node pauses it begins none.
    sum_rate: payload bytes/s that a node adds up of all that reaches it with REDUCE, as it comes in
        (the inverse of ``gamma`` in the usual cost model); what is copied costs nothing.

    Where a plan has a send window, a message takes its place in it until its last byte left, which
    is the message's latency before it arrives.
    """

    def __init__(
        self,
        topology: Topology,
        faults: Faults | None = None,
        *,
        paths: Paths = Paths(),
        efficiency: float = 1.0,
        flow_cap: float = math.inf,
        message_s: float = 0.0,
        sum_rate: float = math.inf,
    ) -> None:
        if not 0 < efficiency <= 1:
            raise ValueError(f"efficiency must be above 0 and at most 1, not {efficiency}")
        if not flow_cap > 0:
            raise ValueError(f"flow_cap must be a rate above 0 bit/s, not {flow_cap}")
        if not 0 <= message_s < math.inf:
            raise ValueError(f"message_s must be finite and >= 0, not {message_s}")
        if not sum_rate > 0:
            raise ValueError(f"sum_rate must be a rate above 0 bytes/s, not {sum_rate}")
        if not np.isfinite(topology.link_latency).all():
            raise ValueError(f"{topology.name}: link latencies must be finite")
        self.topology, self.paths, self.efficiency = topology, paths, efficiency
        self.message_s, self.sum_rate = message_s, sum_rate
        # Where sums take time, what a node adds up also crosses a link that it alone has.
        links = topology.n_links + (topology.n_nodes if sum_rate < math.inf else 0)
        self._live: dict[int, Result] = {}
        self._small, self._large, self._seen = _known(topology, (paths, sum_rate < math.inf))
        self._pools = _Pools()
        self._blocks: dict[int, tuple[engine.Blocks, engine.Blocks]] = {}
        # How many flows each link may have to list.
        self._room = np.zeros(links, np.int64)
        faults = faults or Faults()
        times, altered, rates, flows = link_changes(faults, topology)
        events = 2 * len(faults.pauses)
        self._state = engine.empty_state(topology.n_nodes, links, events, len(times))
        self._state.links["rate"] = sum_rate / efficiency
        self._state.links["rate"][: topology.n_links] = topology.link_rate / 8
        self._state.clock[1:] = flow_cap / 8, message_s
        changes = self._state.changes
        changes["link"], changes["rate"], changes["foreign"] = altered, rates / 8, flows
        nodes, begins, ends = np.array(faults.pauses, dtype=np.float64).reshape(-1, 3).T
        self._push(begins, engine.PAUSE, nodes.astype(np.int64))
        self._push(ends, engine.RESUME, nodes.astype(np.int64))
        self._push(times, engine.ALTER, np.arange(len(times)))

    @property
    def now(self) -> float:
        """Virtual time, seconds."""
        return float(self._state.clock[0])

    @property
    def running(self) -> list[Result]:
        """Plans started and not complete."""
        return list(self._live.values())

    @property
    def link_bytes(self) -> np.ndarray:
        """Bytes that each link has delivered so far: those of all messages that arrived."""
        return self._state.links["bytes"][: self.topology.n_links].copy()

    def start(
        self,
        plan: Plan,
        sizes: Sizes,
        at: float | None = None,
        ready: Mapping[int, float] | None = None,
    ) -> Result:
        """Start ``plan`` at time ``at`` (now if None, not before).

        Parameters
        ----------
        sizes: payload bytes of the whole vector: a number, or for each slot a number or a mapping
            from the sending node to a number.
        ready: for contributors, the earliest time at which their own value exists.

        Raises
        ------
        ValueError
            A plan that does not fit the topology, missing or invalid sizes, a time in the past.
        """
        return self._start(plan, sizes, at, ready)

    def _start(
        self,
        plan: Plan,
        sizes: Sizes,
        at: float | None = None,
        ready: Mapping[int, float] | None = None,
        alone: bool = False,
    ) -> Result:
        """:meth:`start`. ``alone``: nothing else ever happens in this network, and each slot has
        one size for all, so that one transfer of each kind stands for all. Not where messages take
        software time: what one node sends waits for each other, so that it is not of one kind."""
        at = self.now if at is None else float(at)
        if not self.now <= at < math.inf:
            raise ValueError(f"{plan.name}: cannot start at {at} s, it is {self.now} s")
        ready = dict(ready or {})
        strangers = sorted(set(ready) - set(plan.contributors.tolist()))
        if strangers:
            raise ValueError(f"{plan.name}: ready names node {strangers[0]}, no contributor")
        if not all(0 <= time < math.inf for time in ready.values()):
            raise ValueError(f"{plan.name}: ready times must be finite and >= 0")
        static = self._compiled(plan, alone and not self.message_s)
        result = Result(plan, self.topology, at, self._bytes(plan, static, sizes), _static=static)
        self._launch(result, ready)
        return result

    def _bytes(self, plan: Plan, static: SimpleNamespace, sizes: Sizes) -> np.ndarray:
        """What each transfer that is simulated puts on links. Most plans start with the sizes that
        they had before."""
        given, nbytes = static.sized  # read at once: other threads may set it
        if given == (self.efficiency, sizes):
            return nbytes
        nbytes = transfer_bytes(plan, sizes)[static.shown] / self.efficiency
        if isinstance(sizes, Mapping) and not any(isinstance(s, Mapping) for s in sizes.values()):
            static.sized = (self.efficiency, dict(sizes)), nbytes
        return nbytes

    def advance(self, until: float | None = None, *, first: bool = False) -> list[Result]:
        """Let time pass; return the plans that completed, in the order in which they did.

        To the next completion if ``until`` is None (nothing if no plan runs); else to the time
        ``until``, or with ``first`` to the next completion if that comes before.
        """
        if until is None and not self._live:
            return []
        if until is not None and not self.now <= until < math.inf:
            raise ValueError(f"cannot advance to {until} s, it is {self.now} s")
        end = math.inf if until is None else float(until)
        engine.advance(self._state.address, end, first or until is None)
        count = self._state.count
        done = self._state.done[: count[engine.DONE]].tolist()
        count[engine.DONE] = 0
        if until is None and not done:
            raise RuntimeError("plans are running but nothing can happen")
        return [self._finish(instance) for instance in done]

    def _compiled(self, plan: Plan, alone: bool) -> SimpleNamespace:
        """What the engine needs to know of a plan, computed once for all plans equal to it."""
        if (id(plan), alone) in self._seen:
            return self._seen[id(plan), alone][1]
        digest = hashlib.blake2b(repr((plan.units, plan.overlap, plan.slots)).encode())
        for name in ("src", "dst", "lo", "hi", "slot", "op", "phase"):
            digest.update(getattr(plan, name).tobytes())
        for array in (plan.dep_ptr, plan.dep_idx, plan.contributors, plan.receivers):
            digest.update(len(array).to_bytes(8, "little") + array.tobytes())
        # Which transfers are of one kind depends on rates, too.
        key = digest.digest(), alone and self.topology.link_rate.tobytes()
        plans = self._small if len(plan) <= FEW else self._large
        if key not in plans:
            _forget(plans, REMEMBERED)
            plans[key] = _compile(plan, self.topology, self.paths, self.sum_rate < math.inf, alone)
        _forget(self._seen, REMEMBERED)
        self._seen[id(plan), alone] = plan, plans[key]
        return plans[key]

    def _launch(self, result: Result, ready: Mapping[int, float]) -> None:
        plan, static = result.plan, result._static
        flows, course = static.flows, static.course
        n, chunks, lanes = len(flows.src), plan.chunks, len(flows.lane_node)
        of_plan = len(flows.hops), len(course.successors), len(course.phase_ptr)
        sizes = engine.Blocks(n, n, n * chunks, *of_plan, lanes, lanes * plan.window, 1)
        at = self._pools.take(sizes)
        if self._pools.moved:
            engine.grow(self._state, self._pools.arrays)
            self._pools.moved = False
        self._room += static.crossings
        engine.make_room(self._state, self._room)
        self._blocks[at.instances], self._live[at.instances] = (sizes, at), result

        begin = np.full(n, result.start_s)
        latest = max([result.start_s, *ready.values()])
        if ready:
            own = np.full(self.topology.n_nodes, result.start_s)
            for node, time in ready.items():
                own[node] = max(time, result.start_s)
            begin = np.where(static.sends_own, own[flows.src], result.start_s)
        given = flows, course, result._nbytes, begin
        engine.place(self._state.address, at, (chunks, plan.window), *given)
        if not n:
            self._push(np.array([latest]), engine.CLOSE, np.array([at.instances]))

    def _finish(self, instance: int) -> Result:
        result = self._live.pop(instance)
        sizes, at = self._blocks.pop(instance)
        rows = self._state.transfers[at.transfers : at.transfers + sizes.transfers]
        local = result._static.local
        result._times = times = np.array([rows["start_s"], rows["end_s"]])
        times[0, local] = times[1, local]
        vars(result).pop("transfers", None)
        result.completion_s = float(times[1].max()) if len(rows) else self.now
        self._room -= result._static.crossings
        self._pools.give(sizes, at)
        return result

    def _push(self, times: np.ndarray, kind: int, items: np.ndarray) -> None:
        count, codes = self._state.count, (kind << engine.KIND_SHIFT) | items
        events = count[engine.EVENTS]
        count[engine.EVENTS] = engine.push_events(self._state.events, events, times, codes)


class _Pools:
    """Arrays that hand out blocks of themselves to plans, and grow; some ``moved`` then."""

    def __init__(self) -> None:
        self.arrays = {name: np.zeros(0, dtype) for name, dtype in engine.POOLS.items()}
        self.moved = False
        self._used = dict.fromkeys(self.arrays, 0)
        self._free: dict[engine.Blocks, list[engine.Blocks]] = {}

    def take(self, sizes: engine.Blocks) -> engine.Blocks:
        """Where blocks of these sizes begin; their contents are whatever the last user left."""
        if free := self._free.get(sizes):
            return free.pop()
        at = engine.Blocks(**self._used)
        for name, size in sizes._asdict().items():
            self._used[name] = used = self._used[name] + size
            if used >= 2**31:
                raise ValueError(f"plans that run at once need {used} {name}, more than 2^31 - 1")
            array = self.arrays[name]
            if used > len(array):
                self.arrays[name] = engine.longer(array, max(used, 2 * len(array)))
                self.moved = True
        return at

    def give(self, sizes: engine.Blocks, at: engine.Blocks) -> None:
        self._free.setdefault(sizes, []).append(at)


Columns = TypeVar("Columns", Flows, engine.Course)

_Plans = dict[Hashable, SimpleNamespace]
_Known = tuple[_Plans, _Plans, dict[Hashable, tuple[Plan, SimpleNamespace]]]
_known_of: dict[int, dict[Hashable, _Known]] = {}
_small_plans: dict[Hashable, _Plans] = {}


def _known(topology: Topology, options: Hashable) -> _Known:
    """What was computed of plans, of small and of large ones by content and of all by id, for a
    topology and options of its networks.

    Policies are played anew on the same links many times, and on links of other rates, which what
    is known by content does not depend on: that of small plans stays for these, all else goes when
    the topology goes. The id is the plan's, which no other plan gets while this one is held.
    """
    if id(topology) not in _known_of:
        _known_of[id(topology)] = {}
        weakref.finalize(topology, _known_of.pop, id(topology))
    of_these = _known_of[id(topology)]
    if options not in of_these:
        alike = topology.link_src, topology.link_dst, topology.link_latency, topology.workers
        alike += topology.servers, np.isfinite(topology.link_rate)
        digest = hashlib.blake2b(pickle.dumps((topology.n_nodes, *alike)), digest_size=16).digest()
        if (digest, options) not in _small_plans:
            _forget(_small_plans, NETWORKS)
        of_these[options] = _small_plans.setdefault((digest, options), {}), {}, {}
    return of_these[options]


def _forget(kept: dict, most: int) -> None:
    """Make room in ``kept`` for one more."""
    if len(kept) >= most:
        kept.pop(next(iter(kept)))


def _compile(
    plan: Plan, topology: Topology, paths: Paths, adds: bool, alone: bool
) -> SimpleNamespace:
    """Routes, successors and phases of ``plan`` as arrays; all numbered from 0 within the plan.

    Where sums take time (``adds``), ``hops`` are the routes and, after the last link, that of the
    node which adds up: number ``n_links`` and the node's. ``alone``: one transfer of each kind
    is in the place of all; these are ``shown``, and ``kind`` says of which each transfer is.
    """
    check_structure(plan)
    n = len(plan)
    route_ptr, route = plan_routes(plan, topology, paths)
    owner = np.repeat(np.arange(n), np.diff(route_ptr))
    lag = np.bincount(owner, topology.link_latency[route], minlength=n)
    added = np.flatnonzero((plan.op == REDUCE) & adds)
    hops = np.insert(route, route_ptr[added + 1], topology.n_links + plan.dst[added])
    extra = np.cumsum(np.bincount(added, minlength=n))
    hop_ptr = route_ptr + np.concatenate([[0], extra])
    rates = np.concatenate([topology.link_rate, np.zeros(adds * topology.n_nodes)])
    owner = np.repeat(np.arange(n), np.diff(hop_ptr))
    pairs = plan.src.astype(np.int64) * topology.n_nodes + plan.dst
    lanes, lane = np.unique(pairs, return_inverse=True)
    rank = np.zeros(n, np.int64)
    if not plan.overlap:
        rank = np.unique(plan.phase, return_inverse=True)[1].reshape(n)
    flows = Flows(
        plan.src,
        plan.dst,
        lag,
        np.bincount(owner, np.isfinite(rates)[hops], minlength=n) > 0,
        rank,
        lane.reshape(n),
        lanes // topology.n_nodes,
        hop_ptr,
        hops,
        np.ones(len(hops), np.int64),
        plan.dep_ptr,
        plan.dep_idx,
    )
    kind = shown = np.arange(n)
    waiter = np.repeat(kind, np.diff(plan.dep_ptr))
    copies = np.bincount(waiter, plan.op[plan.dep_idx] == COPY, minlength=n) > 0
    if alone and n:
        shares = (plan.slot, plan.hi - plan.lo)
        found = symmetry.kinds(flows, shares, rates)
        flows, shown = symmetry.one_of_each(flows, found)
        kind = found.flows
    n = len(shown)
    waiter = np.repeat(np.arange(n), np.diff(flows.dep_ptr))
    course = engine.Course(
        next_ptr=np.concatenate([[0], np.cumsum(np.bincount(flows.dep_idx, minlength=n))]),
        successors=waiter[np.argsort(flows.dep_idx, kind="stable")],
        order=np.argsort(flows.rank, kind="stable"),
        phase_ptr=np.concatenate([[0], np.cumsum(np.bincount(flows.rank, minlength=1))]),
    )
    return SimpleNamespace(
        route_ptr=route_ptr,
        route=route,
        kind=kind,
        shown=shown,
        flows=_of_one_type(flows),
        course=_of_one_type(course),
        crossings=np.bincount(flows.hops, minlength=len(rates)),
        local=np.flatnonzero((plan.src == plan.dst)[shown]),
        sized=(None, None),
        sends_own=(np.isin(plan.src, plan.contributors) & ~copies)[shown],
    )


def _of_one_type(columns: Columns) -> Columns:
    """Columns as the engine is compiled for: int64, but for seconds."""
    types = (np.float64 if column.dtype.kind == "f" else np.int64 for column in columns)
    return type(columns)(*map(np.array, columns, types))
