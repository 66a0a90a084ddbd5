"""One node of a plan on real processes: what it holds, sends and receives, over ZeroMQ.

:mod:`testbed.live.plan_runner` starts a process for each node, which imports this file; so it
imports little. A chunk of a transfer is the same fraction of each of its parts, so that it needs
that chunk of what the transfer depends on and nothing else.
"""

from __future__ import annotations

import heapq
import struct
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import zmq

from slowlink.methods.exchange import COPY, Plan
from slowlink.testbed.live.processes import Line

HEAD = struct.Struct("<IIQ")
"""The head of a frame: its transfer and chunk, and the byte at which it begins."""
HELLO = HEAD.pack(2**32 - 1, 0, 0)
FRAME_BYTES = 1 << 18
"""Bytes that are sent, added and copied at once, so that adding overlaps receiving; they fit a
cache."""
QUEUED = 2
"""Frames that ZeroMQ holds for a connection at either end."""
TELL_S = 0.5
"""A node says how far it is so often, if it got any further."""

OWN, HOME = 0, 1
"""Stores of :class:`Values`: the node's own value, and what copies bring; then sums."""


@dataclass(frozen=True)
class Job:
    """What all nodes know: the plan, and of each rank its node, that node's name and address.

    ``ranges`` has, for transfers of opaque bodies, the (n, 2) bytes of its body that each carries;
    None where float32 vectors of ``size`` elements are added up.
    """

    plan: Plan
    nodes: tuple[int, ...]
    names: tuple[str, ...]
    addresses: tuple[str, ...]
    repeats: int
    size: int = 0
    ranges: np.ndarray | None = None


class Values:
    """A node's work on vectors: it adds pieces as they arrive, and sends from where the sums lie.

    All stores have the offsets of the exchanged vector. What a transfer carries is fixed by what
    it depends on: for each part a copy (then it is in ``HOME``), nothing (``OWN``) or a set of
    reductions. A part has a store for each such set, so that nothing that is being sent changes;
    the sum that a local transfer waits for is made in ``HOME``, where it shall be in the end.
    """

    def __init__(self, job: Job, node: int, own: np.ndarray | None) -> None:
        self.plan, self.size = job.plan, job.size
        plan = self.plan
        self.cuts = (np.arange(plan.units + 1) * job.size // plan.units).tolist()
        arriving = np.flatnonzero((plan.dst == node) & (plan.src != node)).tolist()
        copies = np.flatnonzero((plan.dst == node) & (plan.op == COPY)).tolist()
        copied = np.zeros(plan.units, int)
        for t in copies:
            copied[plan.lo[t] : plan.hi[t]] += 1
        self.sums: list[dict[frozenset[int], int]] = [{} for _ in range(plan.units)]

        leaving = np.flatnonzero(plan.src == node).tolist()
        local = [t for t in leaving if plan.dst[t] == node]
        for t in local:
            for part, terms in self._terms(t):
                if terms and copied[part] == 1:
                    self.sums[part][terms] = HOME
        self.stores_of = {
            t: [self._store(part, terms) for part, terms in self._terms(t)] for t in leaving
        }
        self.final: list[int] = []
        if node in plan.receivers:
            reduced = [t for t in arriving if plan.op[t] != COPY]
            for part in range(plan.units):
                terms = frozenset(t for t in reduced if plan.lo[t] <= part < plan.hi[t])
                self.final.append(HOME if copied[part] else self._store(part, terms))
        self.targets: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for part, sums in enumerate(self.sums):
            for terms, store in sums.items():
                for t in terms:
                    self.targets[t].append((store, self.cuts[part], self.cuts[part + 1]))

        count = 1 + max([HOME, *(store for sums in self.sums for store in sums.values())])
        self.own = np.zeros(job.size, np.float32) if own is None else np.resize(own, job.size)
        self.stores = [self.own, *(np.empty_like(self.own) for _ in range(HOME, count))]
        self.copied = bool(copies)

    def _terms(self, t: int) -> Iterator[tuple[int, frozenset[int] | None]]:
        """For each part of a transfer the reductions that it carries; None where it is a copy."""
        plan, after = self.plan, self.plan.dependencies(t).tolist()
        for part in range(plan.lo[t], plan.hi[t]):
            covering = [d for d in after if plan.lo[d] <= part < plan.hi[d]]
            copy = any(plan.op[d] == COPY for d in covering)
            yield part, None if copy else frozenset(covering)

    def _store(self, part: int, terms: frozenset[int] | None) -> int:
        if terms is None:
            return HOME
        sums = self.sums[part]
        if terms and terms not in sums:
            sums[terms] = HOME + 1 + sum(store != HOME for store in sums.values())
        return sums[terms] if terms else OWN

    def reset(self) -> None:
        """Put everything back to the start; touches all memory, so that it is there."""
        if self.copied:
            self.stores[HOME].fill(0)
        for part, sums in enumerate(self.sums):
            span = slice(self.cuts[part], self.cuts[part + 1])
            for store in sums.values():
                self.stores[store][span] = self.own[span]

    def _spans(self, t: int, chunk: int, stores: list[int]) -> Iterator[tuple[int, int, int]]:
        """A piece as ``(store, begin, end)``, elements."""
        chunks, part = self.plan.chunks, int(self.plan.lo[t])
        for store, run in groupby(stores):
            last = part + len(list(run))
            # Whole parts of one store lie side by side; fractions of them do not.
            steps = [(part, last)] if chunks == 1 else [(p, p + 1) for p in range(part, last)]
            for first, end in steps:
                begin, length = self.cuts[first], self.cuts[end] - self.cuts[first]
                ends = (begin + (chunk + i) * length // chunks for i in (0, 1))
                yield store, *ends
            part = last

    def nbytes(self, t: int, chunk: int) -> int:
        parts = [OWN] * int(self.plan.hi[t] - self.plan.lo[t])
        return 4 * sum(end - begin for _, begin, end in self._spans(t, chunk, parts))

    def views(self, t: int, chunk: int) -> Iterator[tuple[int, memoryview]]:
        """A piece that leaves, as offsets and bytes."""
        for store, begin, end in self._spans(t, chunk, self.stores_of[t]):
            yield 4 * begin, memoryview(self.stores[store][begin:end]).cast("B")

    def arrive(self, t: int, chunk: int, offset: int, frame: memoryview) -> None:
        values, begin = np.frombuffer(frame, np.float32), offset // 4
        end = begin + len(values)
        if self.plan.op[t] == COPY:
            self.stores[HOME][begin:end] = values
            return
        for store, first, last in self.targets[t]:
            a, b = max(begin, first), min(end, last)
            if a < b:
                self.stores[store][a:b] += values[a - begin : b - begin]

    def local(self, t: int, chunk: int) -> None:
        for store, begin, end in self._spans(t, chunk, self.stores_of[t]):
            if store != HOME:
                self.stores[HOME][begin:end] = self.stores[store][begin:end]

    def check(self, expected: list[int]) -> None:
        """Compare what a receiver ends with, by the check sum of each part."""
        for part, store in enumerate(self.final):
            held = self.stores[store][self.cuts[part] : self.cuts[part + 1]]
            if zlib.crc32(held) != expected[part]:
                raise ValueError(f"it ended with another sum than expected in part {part}")


class Bodies:
    """Opaque bytes: a transfer carries its share of its sender's body for its slot, by number.

    What arrives is not kept, only its check sums.
    """

    def __init__(self, job: Job, bodies: dict[int, bytes]) -> None:
        self.plan, self.ranges, self.bodies = job.plan, job.ranges.tolist(), bodies
        self.sums: dict[tuple[int, int], int] = {}

    def reset(self) -> None:
        self.sums.clear()

    def _span(self, t: int, chunk: int) -> tuple[int, int]:
        (begin, end), chunks = self.ranges[t], self.plan.chunks
        length = end - begin
        return begin + chunk * length // chunks, begin + (chunk + 1) * length // chunks

    def nbytes(self, t: int, chunk: int) -> int:
        begin, end = self._span(t, chunk)
        return end - begin

    def views(self, t: int, chunk: int) -> Iterator[tuple[int, memoryview]]:
        begin, end = self._span(t, chunk)
        yield begin, memoryview(self.bodies[int(self.plan.slot[t])])[begin:end]

    def arrive(self, t: int, chunk: int, offset: int, frame: memoryview) -> None:
        self.sums[t, chunk] = zlib.crc32(frame, self.sums.get((t, chunk), 0))

    def local(self, t: int, chunk: int) -> None:
        pass

    def check(self, expected: dict[tuple[int, int], int]) -> None:
        for (t, chunk), value in expected.items():
            if self.sums.get((t, chunk)) != value:
                raise ValueError(f"transfer {t} from node {self.plan.src[t]} arrived changed")


@dataclass
class Outcome:
    """A node's record of one run: times by transfer, in seconds from the common start on.

    ``received`` has bytes by transfer; ``sent_bytes`` counts payload, without the heads of frames.
    """

    starts: dict[int, float]
    ends: dict[int, float]
    received: dict[int, int]
    sent_bytes: int = 0
    cpu_s: float = 0.0


class Lane:
    """A connection to another node, and the queue of pieces that it shares with its like."""

    def __init__(self, socket: zmq.Socket, waiting: list[tuple[int, int]]) -> None:
        self.socket, self.waiting = socket, waiting
        self.piece: tuple[int, int] | None = None
        self.frames: deque[tuple[int, memoryview]] = deque()

    @property
    def busy(self) -> bool:
        return bool(self.piece or self.waiting)


def run_node(
    job: Job, own: tuple[np.ndarray | dict[int, bytes] | None, object], rank: int, line: Line
) -> list[Outcome]:
    """Take part in ``job`` as one node; ``own`` is what it contributes and what to expect."""
    given, expected = own
    node = job.nodes[rank]
    line(f"node {node} ({job.names[rank]}), preparing")
    work = Values(job, node, given) if job.ranges is None else Bodies(job, given)
    context = zmq.Context()
    try:
        return _Node(job, rank, work, line, context).run(expected)
    finally:
        context.destroy(linger=0)


class _Node:
    """The pieces that leave a node and arrive there, and the connections that carry them."""

    def __init__(
        self, job: Job, rank: int, work: Values | Bodies, line: Line, context: zmq.Context
    ) -> None:
        self.job, self.plan, self.work, self.line = job, job.plan, work, line
        self.node, self.me = job.nodes[rank], f"node {job.nodes[rank]} ({job.names[rank]})"
        plan, node = self.plan, self.node
        self.src, self.dst = plan.src.tolist(), plan.dst.tolist()
        self.leaving = np.flatnonzero(plan.src == node).tolist()
        self.arriving = np.flatnonzero(plan.dst == node).tolist()
        self.next: dict[int, list[int]] = defaultdict(list)
        for t in self.leaving:
            for d in plan.dependencies(t).tolist():
                self.next[d].append(t)
        self.phase = np.zeros(len(plan), int)
        if not plan.overlap and len(plan):
            self.phase = np.unique(plan.phase, return_inverse=True)[1].reshape(-1)
        self._connect(job, rank, context)

    def meet(self, value: object = None) -> tuple[list, float]:
        """Wait until all nodes are here: what each of them brought, and when to go on."""
        self.line.post(("here", value))
        while (answer := self.line.receive())[0] != "all here":
            pass  # this node had nothing to do in that phase
        return answer[1:]

    def _connect(self, job: Job, rank: int, context: zmq.Context) -> None:
        """A connection for each place in the window; without one, for each transfer."""
        window = self.plan.window
        context.max_sockets = 1 + len(self.leaving) * max(window, 1)
        self.inbox = context.socket(zmq.PULL)
        self.inbox.rcvhwm = QUEUED
        self.inbox.bind(f"tcp://{job.addresses[rank]}:*")
        self.poller = zmq.Poller()
        self.poller.register(self.inbox, zmq.POLLIN)
        self.poller.register(self.line.fileno(), zmq.POLLIN)
        endpoints, _ = self.meet(self.inbox.last_endpoint)
        self.lanes: list[Lane] = []
        self.polled: set[Lane] = set()  # lanes with something to send
        self.queues: dict[int, list[tuple[int, int]]] = {}  # of each transfer
        to: dict[int, list[tuple[int, int]]] = {}
        for t in self.leaving:
            peer = self.dst[t]
            if peer == self.node:
                continue
            if not window or peer not in to:
                to[peer] = []
                for _ in range(window or 1):
                    socket = context.socket(zmq.PUSH)
                    socket.sndhwm = QUEUED
                    socket.connect(endpoints[job.nodes.index(peer)])
                    socket.send_multipart([HELLO, b""])
                    self.lanes.append(Lane(socket, to[peer]))
            self.queues[t] = to[peer]
        coming = [self.src[t] for t in self.arriving if self.src[t] != self.node]
        greetings = len(set(coming)) * window if window else len(coming)
        for count in range(greetings):
            self.line(f"{self.me}, has {count} of {greetings} connections")
            if self.line.fileno() in dict(self.poller.poll()):
                self.line.receive()  # the parent is gone, since nothing else is due
            self.inbox.recv_multipart()

    def run(self, expected: object) -> list[Outcome]:
        outcomes = []
        for _ in range(self.job.repeats):
            self.work.reset()
            _, start = self.meet()
            time.sleep(max(0.0, start - time.monotonic()))
            outcomes.append(self._once(start))
            self.meet(max(outcomes[-1].ends.values(), default=0.0))
            # Checking waits until everybody is done, because the others still need the processor.
            if expected is not None:
                self.line(f"{self.me}, checking")
                self.work.check(expected)
        self.meet()
        return outcomes

    def _once(self, start: float) -> Outcome:
        """One run. A piece is ready when it lacks nothing of what its dependencies bring, the
        piece before it has left and, where phases do not overlap, earlier ones are over."""
        plan, chunks, work = self.plan, self.plan.chunks, self.work
        self.start, self.outcome = start, Outcome({}, {}, defaultdict(int))
        cpu = time.process_time()
        self.pending: dict[tuple[int, int], int] = {}
        for t in self.leaving:
            need = int(plan.dep_ptr[t + 1] - plan.dep_ptr[t])
            self.pending[t, 0] = need + int(self.phase[t] > 0)
            for chunk in range(1, chunks):
                self.pending[t, chunk] = need + 1  # the piece before it
        self.missing = {
            (t, chunk): work.nbytes(t, chunk) for t in self.arriving for chunk in range(chunks)
        }
        self.unwritten = chunks * len(self.leaving)
        self.phase_left = (
            np.bincount(self.phase[self.arriving], minlength=int(self.phase.max(initial=0)) + 1)
            * chunks
        )
        self.over = self.open = 0  # how many phases are over on this node, and on all nodes
        self.ready = deque(piece for piece, need in self.pending.items() if not need)
        self._settle()

        told, moved = 0.0, True
        while self.missing or self.unwritten:
            now = time.monotonic()
            if moved and now - told > TELL_S:
                self.line(self._doing())
                told, moved = now, False
            for lane in self.lanes:
                if lane.busy:
                    self._pump(lane)
                if lane.busy and lane not in self.polled:
                    self.polled.add(lane)
                    self.poller.register(lane.socket, zmq.POLLOUT)
                elif not lane.busy and lane in self.polled:
                    self.polled.remove(lane)
                    self.poller.unregister(lane.socket)
            idle = not self.ready and (self.missing or self.unwritten)
            ready = dict(self.poller.poll(1000 if idle else 0))
            moved |= bool(ready)
            if self.inbox in ready:
                self._take()
            if self.line.fileno() in ready:
                _, phase = self.line.receive()
                self._open(phase)
            self._settle()
        self.outcome.cpu_s = time.process_time() - cpu
        return self.outcome

    def _settle(self) -> None:
        """Queue what is ready to leave; do what is local, and what follows from it."""
        while self.ready:
            t, chunk = self.ready.popleft()
            if self.dst[t] != self.node:
                heapq.heappush(self.queues[t], (chunk, t))
                continue
            self.work.local(t, chunk)
            self._arrived(t, chunk)
            self._written(t, chunk)
        self._tell_phase()

    def _need(self, t: int, chunk: int) -> None:
        self.pending[t, chunk] -= 1
        if not self.pending[t, chunk]:
            self.ready.append((t, chunk))

    def _arrived(self, t: int, chunk: int) -> None:
        del self.missing[t, chunk]
        for other in self.next[t]:
            self._need(other, chunk)
        self.phase_left[self.phase[t]] -= 1
        self.outcome.ends[t] = time.monotonic() - self.start

    def _written(self, t: int, chunk: int) -> None:
        self.unwritten -= 1
        if chunk + 1 < self.plan.chunks:
            self._need(t, chunk + 1)

    def _tell_phase(self) -> None:
        """Tell the parent which phases are over here."""
        over = self.over
        while over < len(self.phase_left) and not self.phase_left[over]:
            over += 1
        if over > self.over and len(self.phase_left) > 1:
            self.line.post(("phase", over))
        self.over = over

    def _open(self, phase: int) -> None:
        """Go on, now that all phases below ``phase`` are over on every node."""
        for t in self.leaving:
            if self.open < self.phase[t] <= phase:
                self._need(t, 0)
        self.open = phase

    def _pump(self, lane: Lane) -> None:
        """Hand over frames, as many as are taken, at most one piece's."""
        if lane.piece is None:
            chunk, t = heapq.heappop(lane.waiting)
            lane.piece = t, chunk
            for offset, view in self.work.views(t, chunk):
                for begin in range(0, len(view), FRAME_BYTES):
                    lane.frames.append((offset + begin, view[begin : begin + FRAME_BYTES]))
            if not lane.frames:
                lane.frames.append((0, memoryview(b"")))  # so that its arrival is seen
            self.outcome.starts.setdefault(t, time.monotonic() - self.start)
        t, chunk = lane.piece
        while lane.frames:
            offset, view = lane.frames[0]
            try:
                lane.socket.send_multipart(
                    [HEAD.pack(t, chunk, offset), view], zmq.NOBLOCK, copy=False
                )
            except zmq.Again:
                return
            self.outcome.sent_bytes += len(view)
            lane.frames.popleft()
        lane.piece = None
        self._written(t, chunk)

    def _take(self) -> None:
        """Take what has arrived; not for ever, as connections may be free again."""
        for _ in range(16):
            try:
                head, body = self.inbox.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            t, chunk, offset = HEAD.unpack(head.buffer)
            self.work.arrive(t, chunk, offset, body.buffer)
            self.outcome.received[t] += len(body)
            self.missing[t, chunk] -= len(body)
            if not self.missing[t, chunk]:
                self._arrived(t, chunk)

    def _doing(self) -> str:
        """What this node waits for, in words."""
        coming = [t for t, _ in self.missing if self.src[t] != self.node]
        if not coming:
            return f"{self.me}, sending"
        t = max(coming, key=lambda t: (self.outcome.received[t], -t))
        left = sum(self.missing.get((t, chunk), 0) for chunk in range(self.plan.chunks))
        return f"{self.me}, waiting for {left} more bytes of transfer {t} from node {self.src[t]}"
