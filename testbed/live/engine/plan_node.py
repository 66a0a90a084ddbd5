"""One node of a plan that runs alone, against the clock; :mod:`testbed.live.engine.plan_run` starts
a process for each.

A plan's chunk is a share of the vector, and pieces go on as soon as what they need is there; to
each other node over the one connection of the wire, in the order in which they become ready. So
that adding overlaps receiving, chunks are cut into slices, each a travel of its own, and a piece
leaves when all of its slices can. The processes of all nodes start with this file, so it imports
little.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slowlink.methods.exchange import Plan
from slowlink.testbed.live.engine.delivery import Delivery, Tag, along
from slowlink.testbed.live.engine.flow import Due, Given, Part, Sent, Sums
from slowlink.testbed.live.processes import Line
from slowlink.testbed.live.wire import ZmqWire
from slowlink.testbed.training.allocator import keep_freed_memory

BLOCK = 65_521
"""Elements drawn for a node; repeated, they are its vector. A prime: no shift goes unseen."""
LARGEST = 8
"""Values drawn are whole numbers up to this, so that sums are exact in every order."""
MOST_BYTES = 2**40
"""No body is larger: all nodes are ours."""
TELL_S = 0.5
"""A node says how far it is so often, if it got any further."""


@dataclass(frozen=True)
class Job:
    """What all nodes know: the plan, and of each rank its node, that node's name and address.

    Float32 vectors of ``size`` elements are added up; where that is None, bodies are given. Each
    chunk is cut into ``slices``.
    """

    plan: Plan
    nodes: tuple[int, ...]
    names: tuple[str, ...]
    addresses: tuple[str, ...]
    repeats: int
    timeout_s: float
    size: int | None = None
    slices: int = 1

    @property
    def travels(self) -> int:
        """Slices of all chunks."""
        return self.plan.chunks * self.slices

    def shares(self, size: int) -> list[tuple[int, int]]:
        """Where each slice begins and ends in so many elements or bytes."""
        cuts = [number * size // self.travels for number in range(self.travels + 1)]
        return list(zip(cuts[:-1], cuts[1:], strict=True))


@dataclass
class Outcome:
    """A node's record of one run: times in seconds from the common start on.

    Attributes
    ----------
    starts, ends, received: by transfer, when its first piece left, when its last one was here, and
        its bytes.
    done_s: when all had been added and copied here.
    sent_bytes: of payload.
    cpu_s: processor time until all nodes were done.
    """

    starts: dict[int, float]
    ends: dict[int, float]
    received: dict[int, int]
    done_s: float = 0.0
    sent_bytes: int = 0
    cpu_s: float = 0.0


# What is exchanged --------------------------------------------------------------------------------


class Vectors:
    """Float32 vectors, drawn for each contributor, whose sum every receiver must end with."""

    def __init__(self, job: Job, node: int) -> None:
        self.job, self.node = job, node
        self.part, self.limit = Part(job.plan, node), max(4 * job.size, 1)
        self.own = np.resize(drawn(node), job.size) if node in job.plan.contributors else None

    def deliver(self) -> Delivery:
        """A travel a slice, which adds up what comes."""
        delivery = Delivery()
        for number, (begin, end) in enumerate(self.job.shares(self.job.size)):
            sums = Sums(self.part, Due("identity", self.limit))
            own = None if self.own is None else sums.own_vector(self.own[begin:end])
            delivery.running[number] = along(tag(number), self.part, sums, own)
        return delivery

    def check(self, ended: Mapping[int, Any], expected: None = None) -> None:
        """Compare what a receiver has ended with, by slice."""
        if self.node not in self.job.plan.receivers:
            return
        total = sum(drawn(node) for node in self.job.plan.contributors.tolist())
        total = np.concatenate([total, total])
        for number, (at, end) in enumerate(self.job.shares(self.job.size)):
            for segment in sorted(ended[number]):
                item = ended[number][segment]
                for i in range(0, len(item), BLOCK):
                    piece, first = item[i : i + BLOCK], at % BLOCK
                    if not np.array_equal(piece, total[first : first + len(piece)]):
                        raise ValueError(f"it ended with another sum than expected, slice {number}")
                    at += len(piece)
            if at != end:
                raise ValueError(f"it ended without the last {end - at} elements of slice {number}")


class Bodies:
    """Bodies of bytes by slot, of which transfers carry their shares, and which must not change."""

    def __init__(self, job: Job, node: int, bodies: Mapping[int, bytes]) -> None:
        self.job, self.part, self.bodies = job, Part(job.plan, node), bodies
        self.given: list[Given] = []

    def deliver(self) -> Delivery:
        """A travel a slice."""
        cuts = {slot: self.job.shares(len(body)) for slot, body in self.bodies.items()}
        views = {slot: memoryview(body) for slot, body in self.bodies.items()}
        self.given = [
            Given(self.part, {slot: view[slice(*cuts[slot][i])] for slot, view in views.items()})
            for i in range(self.job.travels)
        ]
        travels = (along(tag(i), self.part, given, None) for i, given in enumerate(self.given))
        return Delivery(running=dict(enumerate(travels)))

    def check(self, ended: Mapping[int, Any], expected: Mapping[tuple[int, int], int]) -> None:
        """Compare what has arrived, by the check sum of each transfer's slices."""
        for (t, number), due in expected.items():
            if zlib.crc32(self.given[number].came.pop(t)) != due:
                raise ValueError(f"transfer {t} from node {self.job.plan.src[t]} arrived changed")


def drawn(node: int) -> np.ndarray:
    """A block of whole numbers."""
    random = np.random.default_rng(node)
    return random.integers(-LARGEST, LARGEST + 1, BLOCK).astype(np.float32)


def tag(number: int) -> Tag:
    """Under which a slice travels."""
    return "all", number, 0


# The node -----------------------------------------------------------------------------------------


def take_part(
    job: Job,
    given: tuple[Mapping[int, bytes], Mapping[tuple[int, int], int]] | None,
    rank: int,
    line: Line,
) -> list[Outcome]:
    """Take part in ``job`` as one node; ``given`` are its bodies by slot number, if there are any,
    and the check sums of what it gets."""
    keep_freed_memory()  # that of a message, for the next one
    node = job.nodes[rank]
    line(f"node {node} ({job.names[rank]}), preparing")
    bodies, expected = given or (None, None)
    work = Vectors(job, node) if bodies is None else Bodies(job, node, bodies)
    wire = ZmqWire(
        job.names[rank],
        f"tcp://{job.addresses[rank]}:0",
        job.names,
        timeout_s=job.timeout_s,
        limit_bytes=MOST_BYTES,
        queue_bytes=MOST_BYTES,
    )
    try:
        return _Node(job, rank, work, wire, line).run(expected)
    finally:
        wire.close(0.0)


class _Node:
    """A node and its two lines: the wire to the others, and one to the parent past the network."""

    def __init__(
        self, job: Job, rank: int, work: Vectors | Bodies, wire: ZmqWire, line: Line
    ) -> None:
        self.job, self.work, self.wire, self.line = job, work, wire, line
        self.number = job.nodes[rank]
        self.me = f"node {self.number} ({job.names[rank]})"
        self.names = dict(zip(job.nodes, job.names, strict=True))
        plan, part = job.plan, work.part
        phases = np.zeros(len(plan), int)
        if not plan.overlap and len(plan):
            phases = np.unique(plan.phase, return_inverse=True)[1].reshape(-1)
        self.phases = phases.tolist()
        self.due = np.bincount(phases[part.arriving], minlength=int(phases.max(initial=0)) + 1)
        self.answers: queue.SimpleQueue[tuple[list, float]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open = 0
        """How many phases are over on all nodes."""
        self._back: list[list[tuple[Tag, Sent]]] = []
        """Pieces that are held back until their phase begins."""
        threading.Thread(target=self._listen, name="line", daemon=True).start()

    def run(self, expected: Any) -> list[Outcome]:
        self._greet()
        outcomes = []
        for _ in range(self.job.repeats):
            delivery = self.work.deliver()
            self.missing = dict.fromkeys(self.work.part.arriving, self.job.travels)
            self.left = self.job.travels * self.due  # by phase
            self.pieces: dict[tuple[int, int], list[tuple[Tag, Sent]]] = defaultdict(list)
            self.over = self._open = 0
            _, start = self._meet()
            time.sleep(max(0.0, start - time.monotonic()))
            began = time.process_time()
            outcome = self._once(delivery, start)
            self._meet(outcome.done_s)
            # The wire sends on its own, so only now all is done.
            outcome.cpu_s = time.process_time() - began
            outcomes.append(outcome)
            # Checking waits until everybody is done, because the others still need the processor.
            self.line(f"{self.me}, checking")
            self.work.check(delivery.results, expected)
        self._meet()
        return outcomes

    def _greet(self) -> None:
        """Connect with all whom this node sends to, and wait for those who send to it."""
        part = self.work.part
        addresses, _ = self._meet(self.wire.address)
        at = dict(zip(self.job.nodes, addresses, strict=True))
        to = sorted({part.dst[t] for t in part.leaving} - {self.number})
        self.wire.connect({self.names[node]: at[node] for node in to})
        for node in to:
            self.wire.send(self.names[node], dict(kind="hello"))
        silent = {self.names[part.src[t]] for t in part.arriving}
        while silent:
            self.line(f"{self.me}, waiting for a connection of {', '.join(sorted(silent))}")
            while (received := self.wire.receive(self.job.timeout_s)) is None:
                pass  # saying it again would look like progress
            silent.discard(received.sender)

    def _meet(self, value: Any = None) -> tuple[list, float]:
        """Wait until all nodes are here: what each of them brought, and when to go on."""
        self.line.post(("here", value))
        return self.answers.get()

    def _listen(self) -> None:
        """Hear the parent."""
        try:
            while True:
                match self.line.receive():
                    case "all here", values, start:
                        self.answers.put((values, start))
                    case "phase", over:
                        self._begin(over)
        except BrokenPipeError:
            os._exit(1)

    # One run --------------------------------------------------------------------------------------

    def _once(self, delivery: Delivery, start: float) -> Outcome:
        self.start, self.outcome = start, Outcome({}, {}, defaultdict(int))
        self._tell_phase()
        for which in list(delivery.running):
            self._send(delivery.go_on(which))
        self.line(self._doing())
        told = time.monotonic()
        while delivery.running:
            received = self.wire.receive(TELL_S)
            now = time.monotonic()
            if now - told > TELL_S and max(self.wire.heard.values(), default=0.0) > told:
                self.line(self._doing())
                told = now
            if received is None or received.kind != "slice":
                continue
            head, t = received.head, received.head["t"]
            self.outcome.ends[t] = now - start
            self.outcome.received[t] += len(received.body)
            arrival = t, head, received.body
            which = delivery.take(tuple(head["tag"]), arrival)
            if which is not None:
                self._send(delivery.go_on(which, arrival))
            self.missing[t] -= 1
            self.left[self.phases[t]] -= 1
            self._tell_phase()
        self.outcome.done_s = time.monotonic() - start
        return self.outcome

    def _send(self, leaving: Iterable[tuple[Tag, Sent]]) -> None:
        """Send pieces whose slices are all there, if their phase has begun."""
        for tag, sent in leaving:
            self.outcome.sent_bytes += len(sent.body)
            which = sent.t, tag[1] // self.job.slices
            self.pieces[which].append((tag, sent))
            if len(self.pieces[which]) < self.job.slices:
                continue
            piece = self.pieces.pop(which)
            with self._lock:
                if self.phases[sent.t] > self._open:
                    self._back.append(piece)
                else:
                    self._hand_over(piece)

    def _hand_over(self, piece: list[tuple[Tag, Sent]]) -> None:
        for tag, sent in piece:
            self.outcome.starts.setdefault(sent.t, time.monotonic() - self.start)
            head = dict(kind="slice", tag=list(tag), t=sent.t, **sent.head)
            self.wire.send(self.names[sent.to], head, sent.body)

    def _tell_phase(self) -> None:
        """Tell the parent which phases are over here."""
        over = self.over
        while over < len(self.left) and not self.left[over]:
            over += 1
        if over > self.over and len(self.left) > 1:
            self.line.post(("phase", over))
        self.over = over

    def _begin(self, over: int) -> None:
        """Send what waited for the first ``over`` phases."""
        with self._lock:
            self._open = over
            back, self._back = self._back, []
            for piece in back:
                _, sent = piece[0]
                if self.phases[sent.t] > over:
                    self._back.append(piece)
                else:
                    self._hand_over(piece)

    def _doing(self) -> str:
        """What this node waits for, in words."""
        for t, left in self.missing.items():
            if left:
                source, slices = self.work.part.src[t], f"{left} of {self.job.travels} slices"
                return f"{self.me}, waiting for {slices} of transfer {t} from node {source}"
        return f"{self.me}, sending"
