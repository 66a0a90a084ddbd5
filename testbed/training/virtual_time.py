"""Virtual time: a policy, uneven workers and a network play, without a model.

:func:`happenings` is the engine: an iterator of what happens, in order of time, to which a caller
hangs its own work (a gradient when an iteration is :class:`Computed`, an update of the server's
model when a meeting is :class:`Applied`). :func:`play` only keeps a :class:`Log`.

A :class:`Sync` is a meeting. What its members hold is pushed, applied to the model at the server,
and the model of that moment is pulled; members idle throughout, but for those that were computing
when it was decided (:attr:`Policy.continues_after_upload`). Members of weight 0 push nothing, and
where all are, the pull starts at once.

What happens at one time happens in this order: pushes and pulls that arrive, in the order in which
their network reports them (for constant times, the order in which they started); iterations that
finish, by rank; workers that join or leave, in the order given; timers, in the order set.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from slowlink.methods import method_name
from slowlink.methods.exchange import Plan
from slowlink.methods.synchronization import (
    Continue,
    Decision,
    Event,
    Finished,
    Joined,
    Left,
    Policy,
    SetTimer,
    Sync,
    Synced,
    Timer,
    Wait,
)
from slowlink.testbed.network import Network, Result
from slowlink.testbed.network.counting import complete
from slowlink.testbed.training.stragglers import Stragglers

Phase = Literal["push", "pull"]


class Communication(Protocol):
    """Carries pushes and pulls; the engine never starts one in the past."""

    def start(self, phase: Phase, sync: Sync, t: float) -> Hashable:
        """Start at ``t``; the handle names this transfer."""

    def advance(self, until: float | None) -> tuple[float, Hashable] | None:
        """The next transfer to arrive, with its time: none after ``until``, if that is given."""


class Seconds:
    """Meetings take given times and do not slow each other down.

    Parameters
    ----------
    per_sync: seconds a meeting takes, or a callable of its members and the time; half of them to
        the server and half back, each as it is when it starts.
    """

    def __init__(self, per_sync: float | Callable[[tuple[int, ...], float], float]) -> None:
        self.per_sync = per_sync if callable(per_sync) else lambda members, t: per_sync
        self._order = itertools.count()
        self._arrivals: list[tuple[float, int]] = []

    def seconds(self, phase: Phase, sync: Sync, t: float) -> float:
        """Seconds that this phase of the meeting takes."""
        return self.per_sync(sync.members, t) / 2

    def start(self, phase: Phase, sync: Sync, t: float) -> int:
        seconds = self.seconds(phase, sync, t)
        if not 0 <= seconds < math.inf:
            raise ValueError(f"communication must take at least 0 s, and not {seconds} s")
        number = next(self._order)
        heapq.heappush(self._arrivals, (t + seconds, number))
        return number

    def advance(self, until: float | None) -> tuple[float, int] | None:
        if not self._arrivals or (until is not None and self._arrivals[0][0] > until):
            return None
        return heapq.heappop(self._arrivals)


class OnNetwork:
    """Meetings share the links of a simulated network.

    Parameters
    ----------
    plan: what a phase of a meeting of these workers runs; None if that takes no time.
    sizes: of a phase of a meeting, as :meth:`Network.start` takes them, or a list of those, an
        entry a round of communication; slots that send nothing may be missing. Asked when the
        phase starts, so that a caller may encode then.
    delay_s: seconds before the first round, such as coding takes.
    """

    def __init__(
        self,
        network: Network,
        plan: Callable[[tuple[int, ...], Phase], Plan | None],
        sizes: Callable[[Sync, Phase], Any],
        delay_s: Callable[[Sync, Phase], float] = lambda sync, phase: 0.0,
    ) -> None:
        self.network, self.plan, self.sizes, self.delay_s = network, plan, sizes, delay_s
        self._order = itertools.count()
        self._under_way: dict[Result, tuple[int, Plan, deque]] = {}
        self._arrived: deque[tuple[float, int]] = deque()

    def start(self, phase: Phase, sync: Sync, t: float) -> int:
        plan = self.plan(sync.bringing if phase == "push" else sync.members, phase)
        number = next(self._order)
        if plan is None:
            self._arrived.append((t, number))
            return number
        sizes = self.sizes(sync, phase)
        rounds = deque(sizes if isinstance(sizes, list) else [sizes])
        self._send(number, plan, rounds, t + self.delay_s(sync, phase))
        return number

    def _send(self, number: int, plan: Plan, rounds: deque, t: float) -> None:
        sent = self.network.start(plan, complete(plan, rounds.popleft()), at=t)
        self._under_way[sent] = number, plan, rounds

    def advance(self, until: float | None) -> tuple[float, int] | None:
        while not self._arrived:
            done = self.network.advance(until, first=True)
            if not done:
                return None
            for sent in done:
                number, plan, rounds = self._under_way.pop(sent)
                if rounds:
                    self._send(number, plan, rounds, sent.completion_s)
                else:
                    self._arrived.append((sent.completion_s, number))
        return self._arrived.popleft()


@dataclass
class Meeting:
    """One :class:`Sync`, as it comes about; times in seconds, NaN until known.

    Attributes
    ----------
    number: from 0, in the order of the decisions.
    arrived: when each member had finished its last iteration (or, without one, began to idle).
    computing: whether each member computes on, and so waits for nobody.
    work: the iterations of each member that it brings: all since its last meeting.
    staleness: updates of the global model since each member that brings something last pulled it,
        counted when this one is applied. None for meetings of inner levels.
    """

    number: int
    sync: Sync
    arrived: tuple[float, ...]
    computing: tuple[bool, ...]
    work: tuple[range, ...]
    decided: float
    applied: float = math.nan
    received: float = math.nan
    staleness: tuple[int, ...] | None = None

    @property
    def waits(self) -> tuple[float, ...]:
        """Seconds that each member waits for the last one to arrive (LPSP §1)."""
        return self._until(max(self.arrived))

    @property
    def delays(self) -> tuple[float, ...]:
        """Seconds that each member waits for the decision that lets it meet."""
        return self._until(self.decided)

    def _until(self, end: float) -> tuple[float, ...]:
        pairs = zip(self.arrived, self.computing, strict=True)
        return tuple(0.0 if computing else end - t for t, computing in pairs)


@dataclass(frozen=True)
class Told:
    """The policy answered ``event`` (None at the beginning) with ``decisions``."""

    event: Event | None
    decisions: tuple[Decision, ...]
    t: float


@dataclass(frozen=True)
class Begun:
    """``worker`` starts its iteration number ``iteration`` (from 1)."""

    worker: int
    iteration: int
    t: float


@dataclass(frozen=True)
class Computed:
    """``worker`` has finished its iteration number ``iteration``, begun at ``start``."""

    worker: int
    iteration: int
    start: float
    t: float


@dataclass(frozen=True)
class Decided:
    """The push of ``meeting`` starts."""

    meeting: Meeting
    t: float


@dataclass(frozen=True)
class Applied:
    """The model now includes what the members of ``meeting`` brought."""

    meeting: Meeting
    t: float


@dataclass(frozen=True)
class Received:
    """``members`` hold the model as it was when ``meeting`` was applied; who left does not."""

    meeting: Meeting
    members: tuple[int, ...]
    t: float


@dataclass(frozen=True)
class Changed:
    """A worker joined or left."""

    event: Joined | Left
    t: float


Happening = Told | Begun | Computed | Decided | Applied | Received | Changed


def happenings(
    policy: Policy,
    stragglers: Stragglers,
    communication: float | Callable[[tuple[int, ...], float], float] | Communication = 0.0,
    *,
    groups: Sequence[int],
    changes: Sequence[Joined | Left] = (),
) -> Iterator[Happening]:
    """Let ``policy`` run the workers from time 0, without end.

    What happens is yielded before the policy hears of it, so a caller has done its part of an
    iteration before the meeting that takes it starts.

    Parameters
    ----------
    communication: seconds a meeting takes, a callable of its members and the time that says so
        (both as :class:`Seconds`), or a :class:`Communication`.
    groups: the group (site) of each worker, by rank; all are there at the beginning.
    changes: workers that leave, and that come back with the current model. An iteration cut off
        by leaving is lost, and so is what its worker had not pushed.

    Raises
    ------
    RuntimeError: a decision that cannot be carried out, or no event left (a deadlock).
    """
    if not hasattr(communication, "advance"):
        communication = Seconds(communication)
    return _Engine(policy, stragglers, communication, groups, changes).run()


@dataclass
class _Worker:
    """``doing`` is computing, idle, meeting or away; who computes on may be ``expecting`` the
    answer of a meeting."""

    doing: str = "idle"
    expecting: bool = False
    since: float = 0.0
    finished: float = 0.0
    iteration: int = 0
    brought: int = 0
    version: int = 0
    presence: int = 0
    """How often it has left; what it began before that is void."""


class _Engine:
    def __init__(self, policy, stragglers, communication, groups, changes) -> None:
        self.policy, self.stragglers, self.communication = policy, stragglers, communication
        self.groups = groups
        self.workers = [_Worker() for _ in groups]
        self.version = 0
        self.numbers, self.order = itertools.count(), itertools.count()
        self.queue: list[tuple] = []
        self.under_way: dict[Hashable, tuple[Phase, Meeting, list[int]]] = {}
        for change in changes:
            self._later(change, 2)

    def _later(self, event: Event, kind: int, rank: int = 0, presence: int = 0) -> None:
        heapq.heappush(self.queue, (event.t, kind, rank, next(self.order), presence, event))

    def run(self) -> Iterator[Happening]:
        yield from self._carry_out(None, self.policy.begin(self.groups), 0.0)
        while True:
            arrival = self.communication.advance(self.queue[0][0] if self.queue else None)
            if arrival is not None:
                yield from self._arrive(*arrival)
                continue
            if not self.queue:
                raise RuntimeError(f"{method_name(self.policy)}: nobody computes and nobody meets")
            *_, presence, event = heapq.heappop(self.queue)
            match event:
                case Finished(worker=rank, iteration=iteration, t=t):
                    worker = self.workers[rank]
                    if presence != worker.presence:
                        continue
                    start, worker.since, worker.finished = worker.since, t, t
                    worker.doing, worker.iteration = "idle", iteration
                    yield Computed(rank, iteration, start, t)
                case Joined() | Left():
                    self._change(event)
                    yield Changed(event, event.t)
            yield from self._tell(event)

    def _tell(self, event: Event) -> Iterator[Happening]:
        yield from self._carry_out(event, self.policy.on(event), event.t)

    def _carry_out(self, event, decisions, t: float) -> Iterator[Happening]:
        yield Told(event, tuple(decisions), t)
        for decision in decisions:
            match decision:
                case Continue(worker=rank):
                    worker = self._idle(rank, decision)
                    worker.doing, worker.since = "computing", t
                    number = worker.iteration + 1
                    seconds = self.stragglers(rank, number, t)
                    self._later(Finished(rank, number, t + seconds), 1, rank, worker.presence)
                    yield Begun(rank, number, t)
                case Sync(members=members):
                    workers = [self._free(rank, decision) for rank in members]
                    on = tuple(w.doing == "computing" for w in workers)
                    arrived = tuple(
                        w.finished if w.doing == "computing" else w.since for w in workers
                    )
                    work = tuple(range(w.brought + 1, w.iteration + 1) for w in workers)
                    meeting = Meeting(next(self.numbers), decision, arrived, on, work, t)
                    for worker in workers:
                        worker.brought = worker.iteration
                        worker.expecting = worker.doing == "computing"
                        worker.doing = "computing" if worker.expecting else "meeting"
                    yield Decided(meeting, t)
                    presence = [w.presence for w in workers]
                    if decision.bringing:
                        self._start("push", meeting, presence, t)
                    else:
                        yield from self._apply(meeting, presence, t)
                case SetTimer(name=name, t=when):
                    self._later(Timer(name, max(when, t)), 3)
                case Wait(worker=rank):
                    self._idle(rank, decision)

    def _idle(self, rank: int, decision: Decision) -> _Worker:
        known = 0 <= rank < len(self.workers)
        if not known or self.workers[rank].doing != "idle":
            doing = self.workers[rank].doing if known else "unknown"
            raise RuntimeError(
                f"{method_name(self.policy)}: {decision}, but worker {rank} is {doing}"
            )
        return self.workers[rank]

    def _free(self, rank: int, decision: Decision) -> _Worker:
        """A worker that may meet."""
        on = self.policy.continues_after_upload and 0 <= rank < len(self.workers)
        if on and self.workers[rank].expecting:
            raise RuntimeError(
                f"{method_name(self.policy)}: {decision}, but worker {rank} is meeting"
            )
        if on and self.workers[rank].doing == "computing":
            return self.workers[rank]
        return self._idle(rank, decision)

    def _start(self, phase: Phase, meeting: Meeting, presence: list[int], t: float) -> None:
        handle = self.communication.start(phase, meeting.sync, t)
        self.under_way[handle] = phase, meeting, presence

    def _arrive(self, t: float, handle: Hashable) -> Iterator[Happening]:
        phase, meeting, presence = self.under_way.pop(handle)
        here = self._here(meeting, presence)
        if phase == "push":
            yield from self._apply(meeting, presence, t)
            return
        meeting.received = t
        for worker in (self.workers[rank] for rank in here):
            if worker.doing == "meeting":
                worker.doing, worker.since = "idle", t
            worker.expecting = False
        yield Received(meeting, tuple(here), t)
        yield from self._tell(Synced(tuple(here), t))

    def _here(self, meeting: Meeting, presence: list[int]) -> list[int]:
        """The members who have not left since the decision."""
        pairs = zip(meeting.sync.members, presence, strict=True)
        return [rank for rank, before in pairs if self.workers[rank].presence == before]

    def _apply(self, meeting: Meeting, presence: list[int], t: float) -> Iterator[Happening]:
        meeting.applied = t
        if meeting.sync.level == -1:
            bringing = meeting.sync.bringing
            meeting.staleness = tuple(self.version - self.workers[w].version for w in bringing)
            self.version += bool(bringing)
            for rank in self._here(meeting, presence):
                self.workers[rank].version = self.version
        yield Applied(meeting, t)
        self._start("pull", meeting, presence, t)

    def _change(self, event: Joined | Left) -> None:
        worker = self.workers[event.worker]
        if isinstance(event, Joined) != (worker.doing == "away"):
            raise RuntimeError(f"{event}, but worker {event.worker} is {worker.doing}")
        worker.since = event.t
        if isinstance(event, Joined):
            worker.doing, worker.version = "idle", self.version
        else:
            worker.doing, worker.expecting = "away", False
            worker.presence += 1
            worker.brought = worker.iteration


@dataclass(frozen=True)
class Span:
    """One kind of activity of a worker, from ``start`` to ``end`` (s)."""

    worker: int
    kind: Literal["compute", "wait", "push", "pull"]
    start: float
    end: float


@dataclass
class Log:
    """The record of a run until ``end`` (s).

    Attributes
    ----------
    spans: in order of their ends; those open at ``end`` are cut there.
    meetings: in the order of the decisions; those under way have NaN times, or later ones.
    iterations: finished ones of each worker.
    told: every event that the policy saw, with its decisions.
    """

    spans: list[Span] = field(default_factory=list)
    meetings: list[Meeting] = field(default_factory=list)
    iterations: list[int] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    end: float = 0.0

    @property
    def iterations_per_s(self) -> float:
        """Iterations a second of all workers together."""
        return sum(self.iterations) / self.end

    def waited(self, worker: int | None = None) -> float:
        """Seconds that ``worker`` (all of them if None) idled, for whatever reason."""
        return math.fsum(
            span.end - span.start
            for span in self.spans
            if span.kind == "wait" and worker in (None, span.worker)
        )

    def staleness(self) -> list[int]:
        """The staleness of every contribution that was applied to the global model."""
        applied = [meeting for meeting in self.meetings if meeting.applied <= self.end]
        return [stale for meeting in applied for stale in meeting.staleness or ()]


def play(
    policy: Policy,
    stragglers: Stragglers,
    communication: float | Callable[[tuple[int, ...], float], float] | Communication = 0.0,
    *,
    groups: Sequence[int],
    iterations: int | None = None,
    seconds: float | None = None,
    changes: Sequence[Joined | Left] = (),
) -> Log:
    """Run :func:`happenings` and log it.

    Parameters
    ----------
    iterations: ends with all that happens at the time when so many iterations, of all workers
        together, are finished.
    seconds: ends at this time, all that happens at it included. The earlier end counts.

    Raises
    ------
    ValueError: neither end is given.
    """
    if iterations is None and seconds is None:
        raise ValueError("play needs an end: iterations or seconds")
    end = math.inf if seconds is None else seconds
    target = math.inf if iterations is None else iterations
    log = Log(iterations=[0] * len(groups))
    opened: dict[int, tuple[str, float]] = dict.fromkeys(range(len(groups)), ("wait", 0.0))

    def turn(rank: int, t: float, kind: str | None) -> None:
        """End the open span of ``rank`` and let it begin one of ``kind``."""
        before, start = opened.pop(rank, ("", t))
        if t > start:
            log.spans.append(Span(rank, before, start, t))
        if kind is not None:
            opened[rank] = kind, t

    for happening in happenings(policy, stragglers, communication, groups=groups, changes=changes):
        t = happening.t
        if t > end:
            break
        log.end = t
        match happening:
            case Told():
                log.told.append(happening)
            case Begun(worker=worker):
                turn(worker, t, "compute")
            case Computed(worker=worker):
                turn(worker, t, "wait")
                log.iterations[worker] += 1
                if sum(log.iterations) >= target:
                    end = min(end, t)
            case Decided(meeting=meeting):
                log.meetings.append(meeting)
                for worker, on in zip(meeting.sync.members, meeting.computing, strict=True):
                    if not on:
                        turn(worker, t, "push" if meeting.sync.bringing else "pull")
            case Applied(meeting=meeting):
                for worker in meeting.sync.members:
                    if opened.get(worker, ("",))[0] == "push":
                        turn(worker, t, "pull")
            case Received(members=members):
                for worker in members:
                    if opened.get(worker, ("",))[0] == "pull":
                        turn(worker, t, "wait")
            case Changed(event=event):
                turn(event.worker, t, "wait" if isinstance(event, Joined) else None)
    log.end = end
    for rank in sorted(opened):
        turn(rank, end, None)
    return log


@dataclass
class Scripted(Policy):
    """Meetings that are given: for charts of schedules that no rule produces, as LPSP's Fig. 1.

    Parameters
    ----------
    meetings: in order, the local iterations that each member brings to it; a worker with no
        meeting left computes on.
    """

    summary: ClassVar[str] = "Meetings given in advance"
    source: ClassVar[str] = "LPSP §1 (worked example)"
    travels: ClassVar = "delta"

    meetings: Sequence[dict[int, int]] = ()
    _next: dict[int, list[int]] = field(default_factory=dict, init=False, repr=False)
    _done: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    _here: set[int] = field(default_factory=set, init=False, repr=False)

    def begin(self, groups: Sequence[int]) -> list[Decision]:
        ranks = range(len(groups))
        self._next = {w: [k for k, m in enumerate(self.meetings) if w in m] for w in ranks}
        self._done, self._here = dict.fromkeys(ranks, 0), set()
        return super().begin(groups)

    def on(self, event: Event) -> list[Decision]:
        if isinstance(event, Synced):
            return [Continue(worker) for worker in event.members]
        if not isinstance(event, Finished):
            return []
        if not self._next[event.worker]:
            return [Continue(event.worker)]
        self._done[event.worker] += 1
        number = self._next[event.worker][0]
        meeting = self.meetings[number]
        if self._done[event.worker] < meeting[event.worker]:
            return [Continue(event.worker)]
        self._here.add(event.worker)
        if not all(w in self._here and self._next[w][0] == number for w in meeting):
            return [Wait(event.worker)]
        for worker in meeting:
            self._next[worker].pop(0)
            self._done[worker] = 0
        self._here -= meeting.keys()
        return [Sync(tuple(sorted(meeting)))]
