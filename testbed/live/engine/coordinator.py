"""Lets a policy decide what the members of a live run do, watches them, and keeps the rows.

A meeting is what it is in :mod:`testbed.training.virtual_time`. Everything that happens gets a time
of its own, in whole ticks, so that the virtual-time engine, given the recorded durations, repeats a
run event by event, and the trainer comes to the same model.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from pydantic import BaseModel, ValidationError, create_model

from slowlink.methods.synchronization import (
    Continue,
    Decision,
    Event,
    Finished,
    Joined,
    Left,
    SetTimer,
    Sync,
    Synced,
    Timer,
    Wait,
)
from slowlink.testbed import files
from slowlink.testbed.live.engine.settings import LiveSettings
from slowlink.testbed.live.replay import TICK_S, Record
from slowlink.testbed.live.wire import Received, Unreadable, Wire
from slowlink.testbed.results import Row
from slowlink.testbed.training.trainer import GLOBAL
from slowlink.testbed.training.virtual_time import Told

if TYPE_CHECKING:
    from slowlink.testbed.network.emulated import Measured

GRACE_S = 3.0
"""How long members may take to say whom they wait for, or that they are done."""

QUIET_S = 5.0
"""Progress is told at least so often."""

ROWS = "rows.jsonl"

LOSSES = ("loss", "train_loss", "test_loss")
"""Metrics without which nothing goes on."""


def _said(**fields: Any) -> type[BaseModel]:
    return create_model("Said", **{name: (its, ...) for name, its in fields.items()})


SAID = dict(
    hello=_said(address=str, rounds=list[tuple[int, int]], run=str, model=str),
    begins=_said(left=int),
    applied=_said(meeting=int, attempt=int, version=int, uploads=list[tuple[int, float]]),
    dropped=_said(meeting=int, attempt=int),
    synced=_said(meeting=int, attempt=int),
    rows=_said(round=int, metrics=dict[str, tuple[float, str]]),
    carried=_said(round=int, nbytes=int),
    waiting=_said(names=list[str]),
    bad=_said(member=str, why=str),
    done=_said(digest=str, sent_bytes=int),
    left=_said(reason=str),
    failed=_said(reason=str),
)
"""What a member's message has by its kind; who takes part may run other code than this."""

Say = Callable[[str], None]

log = logging.getLogger(__name__)


class Failed(RuntimeError):
    """The run ended with an error; says who and why."""


@dataclass
class _Meeting:
    """``missing`` are members that do not hold the result yet, ``lost`` those who left. ``number``
    is that of the decision, or negative where a new worker takes the model that it begins with."""

    number: int
    sync: Sync
    since: float
    brings: dict[int, int]
    """Iterations by worker."""
    missing: set[int]
    whole: bool = False
    """Whether its members bring their models, and not changes."""
    lost: set[int] = field(default_factory=set)
    attempt: int = 0
    applied: float = math.nan
    pulled: float = math.nan

    @property
    def times(self) -> tuple[float, float]:
        return self.applied - self.since, self.pulled - self.applied


@dataclass(frozen=True)
class Ended:
    """What a run came to.

    Attributes
    ----------
    record: what the policy was told, to be repeated in virtual time; None where the coordinator
        was another process, or an earlier one was told the beginning.
    digests: of the final parameters, by member; empty likewise.
    rows: what was measured.
    links: what shaped links carried before.
    """

    record: Record | None
    digests: dict[str, str]
    rows: list[Row]
    links: Sequence[Measured] = ()


@dataclass
class _Rows:
    """The rows of a run, written as they come, so that a failure leaves those before it."""

    settings: LiveSettings
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.file = self.settings.output / ROWS

    def resume(self, round_: int) -> float:
        """Keep what an earlier process wrote up to this round; the time of the latest."""
        kept = written(self.settings.output) if round_ and self.file.is_file() else []
        self.rows = [row for row in kept if 0 <= row.round <= round_]
        with files.whole(self.file) as part:
            part.write_text("".join(self._line(row) for row in self.rows))
        return max((row.time_s for row in self.rows if row.time_s == row.time_s), default=0.0)

    def add(self, metric: str, value: float, unit: str, **more: Any) -> None:
        settings, recipe = self.settings, self.settings.training
        alone = settings.exchange.whole or not settings.servers  # else a server adds
        variant = "payloads side by side" if alone and settings.order == "rank" else ""
        (case,) = recipe.networks
        fields = dict(evidence="measured", variant=variant, case=case)
        if settings.network is not None:
            fields |= dict(evidence="emulated", bandwidth=settings.network.wan)
        fields |= more
        if settings.dds:
            fields["at"] = fields.get("at", recipe.at) | dict(wire="dds")
        row = Row(**recipe.told | fields, metric=metric, value=value, unit=unit)
        self.rows.append(row)
        files.append(self.file, self._line(row))

    @staticmethod
    def _line(row: Row) -> str:
        record = row.model_dump(mode="json")
        # JSON has no NaN; a field that is left out is NaN by default.
        kept = {k: v for k, v in record.items() if v is not None and v == v}
        return json.dumps(kept) + "\n"


def written(output: Path) -> list[Row]:
    """The rows that a run has written to its output folder."""
    return [Row(**json.loads(line)) for line in (output / ROWS).read_text().splitlines()]


def _bad(culprit: str, told: str, head: Mapping[str, Any]) -> str:
    if culprit != head["member"]:
        return f"it says that {head['member']} sent what cannot be: {head['why']}"
    return f"it sent what cannot be ({told}): {head['why']}"


class Coordinator:
    """The coordinator of one run.

    Parameters
    ----------
    wire: of the member :data:`.settings.COORDINATOR`; it watches the others.
    say: called with a line of progress now and then.
    here: whether all members run on this machine, so that one clock tells how long what they send
        is on its way.
    check: called often while members are awaited; raises where one cannot come.
    restart: ends the process of a worker and starts another; by default somebody else does.
    recorded: whether somebody wants the record, which a run that goes on from snapshots lacks.
    """

    def __init__(
        self,
        settings: LiveSettings,
        wire: Wire,
        say: Say = lambda line: None,
        check: Callable[[], None] = lambda: None,
        restart: Callable[[str], None] = lambda name: None,
        here: bool = False,
        recorded: bool = False,
    ) -> None:
        self.settings, self.wire, self.here = settings, wire, here
        self.recorded = recorded
        self.say, self.check, self.restart = say, check, restart
        self.policy, self.limits = settings.policy(), settings.limits
        names = settings.topology.node_names
        self.workers = [names[node] for node in settings.workers]
        self.servers = [names[node] for node in settings.servers]
        self.rank = {name: rank for rank, name in enumerate(self.workers)}
        self.addresses: dict[str, str] = {}
        self.gone: dict[str, str] = {}
        self.absent: dict[str, str] = {}
        """Workers that cannot begin where the others do, and why."""
        self.awaited: dict[str, float] = {}
        """Until when a worker's replacement must be there."""
        self.replaced: Counter[str] = Counter()
        self.joins = 0
        self.doing = ["idle"] * len(self.workers)
        self.expecting: set[int] = set()
        """Who computes on while it meets."""
        self.begun = [0.0] * len(self.workers)
        self.due: dict[str, float] = {}
        """Until when a worker must have finished its iteration, or what else is named."""
        self.judges: Counter[str] = Counter()
        """Workers that evaluate before they compute on, each with how often."""
        self.keeping = 0
        """Snapshots that the central server has been told to write and has not written."""
        self.times: list[list[float]] = [[] for _ in self.workers]
        self.since_met = [0] * len(self.workers)
        self.meetings: dict[int, _Meeting] = {}
        self.past: list[tuple[float, float]] = []
        self.uploads: list[dict[int, float]] = []
        self.timers: list[tuple[float, int, str]] = []
        self.told: list[Told] = []
        self.rounds = self.brought = self.first = self.version = self.evaluated = 0
        outermost = settings.exchange.groups(settings.topology)[-1]
        self.parties = sum(map(len, outermost))
        self.ended, self.evaluating = 0.0, False
        """When the last round was over, and whether the model is evaluated during this one."""
        self.seconds: dict[bool, list[float]] = {False: [], True: []}
        """What rounds took, by whether the model was evaluated meanwhile."""
        self.reached: dict[int, float] = {}
        """When rounds were over after which the model is evaluated."""
        self.rows = _Rows(settings)
        self.before, self.updates = 0.0, 0
        """Seconds that earlier processes took for the rounds that this one goes on from, and how
        many iterations of each worker."""
        self.later: deque[Received] = deque()
        """What came while a late meeting's members were asked, or as the run ended."""
        self.asked: dict[str, Any] = {}
        """Whom members wait for, where they were asked because a meeting is late."""
        self.over = False
        self.spoke = time.monotonic()

    def run(self) -> Ended:
        """Run it; raises Failed."""
        try:
            self._gather()
            self._drive()
            return self._finish()
        except BaseException as error:
            for name in (*self.workers, *self.servers):  # who is not here yet may still come
                self._send(name, "stop", reason=str(error) or type(error).__name__, final=None)
            raise

    # The beginning ---------------------------------------------------------------------------

    def _gather(self) -> None:
        """Wait for all members, or as many as are needed, and let them begin at the latest round
        that they can."""
        everybody, end = {*self.workers, *self.servers}, time.monotonic() + self.limits.join_s
        rounds: dict[str, dict[int, int]] = {}
        hellos: dict[str, Received] = {}
        first: tuple[str, str] | None = None
        while missing := everybody - rounds.keys():
            if missing <= self.rank.keys() and len(missing) <= self.settings.spare:
                break
            self.check()
            self._progress(f"waiting for {', '.join(sorted(missing))}")
            received = self._receive(0.2)
            if time.monotonic() > end:
                names = ", ".join(sorted(missing))
                raise Failed(f"{names} did not come within {self.limits.join_s:g} s")
            if received is None:
                continue
            head = received.head
            if received.kind == "failed":
                raise Failed(f"{received.sender}: {head['reason']}")
            if received.kind != "hello" or received.sender not in everybody:
                continue
            if head["run"] != self.settings.run:
                raise Failed(f"{received.sender} has other settings than the coordinator")
            first = first or (received.sender, head["model"])
            if head["model"] != first[1]:
                raise Failed(
                    f"{received.sender} begins with other parameters than {first[0]}; own.model "
                    "must give the same model wherever it is called"
                )
            self.addresses[received.sender] = head["address"]
            self.wire.connect({received.sender: head["address"]})
            rounds[received.sender] = dict(head["rounds"])
            hellos[received.sender] = received
        self.first = self.rounds = self._latest(rounds)
        for name in [name for name in rounds if self.first and self.first not in rounds[name]]:
            self.absent[name] = f"it has no snapshot of round {self.first}"
            del rounds[name]
            if self.settings.on_loss == "replace":  # then it takes part as one that comes later
                del self.addresses[name]
                self.later.append(hellos[name])
        self.updates = max((its.get(self.first, 0) for its in rounds.values()), default=0)
        if self.first and self.recorded:
            raise Failed(
                f"the run goes on from round {self.first}, and what the policy was told before is "
                "lost; leave out --record, or begin anew with another state"
            )
        self.brought = self.first * len(self.workers)
        self.before = self.rows.resume(self.first)
        for name in rounds:
            self._send(name, "begin", addresses=self.addresses, round=self.first, updates=0)
        if self.first:
            here = "" if self.absent else "all here, "
            self.say(f"{here}going on from round {self.first}")
            self._await_restored(set(rounds))
        else:
            self._evaluate(0)
        self.clock, self.ticks = time.monotonic(), 0
        self.ends = self.clock + (self.settings.training.seconds or math.inf)

    def _latest(self, rounds: Mapping[str, Mapping[int, int]]) -> int:
        """The latest round of which all members have snapshots; where a run does without a worker
        that is lost, all servers and workers enough: who was still there when the run was cut is
        one snapshot behind the others at most."""
        having = Counter(number for name in self.rank.keys() & rounds for number in rounds[name])
        common = set(having).intersection(*(rounds[name] for name in self.servers))
        if self.settings.on_loss == "stop":
            common = common.intersection(*rounds.values())
        if not common and any(max(its, default=0) for its in rounds.values()):
            odd = min(sorted(rounds), key=lambda name: max(rounds[name], default=-1))
            raise Failed(
                f"{odd} has no snapshot of a round that others have; give it back or delete theirs"
            )
        return max(sorted(common)[-2:], key=lambda number: (having[number], number), default=0)

    def _await_restored(self, names: set[str]) -> None:
        """Let these draw their batches anew: no iteration begins before, and no limit of one."""
        until = dict.fromkeys(names, time.monotonic() + self.limits.compute_s)
        while until:
            self.check()
            received = self._receive(0.2)
            for name in [name for name, end in until.items() if time.monotonic() > end]:
                within = f"within {self.limits.compute_s:g} s"
                raise Failed(f"{name}: it drew none of the batches before its snapshot {within}")
            if received is None or received.kind == "heartbeat":
                continue
            name, head = received.sender, received.head
            match received.kind:
                case "begins" if name in until and head["left"]:
                    until[name] = time.monotonic() + self.limits.compute_s
                    self._progress(f"{name} draws {head['left']} batches anew")
                case "begins":
                    until.pop(name, None)
                case "left" | "failed":
                    raise Failed(f"{name}: {head['reason']}")
                case "bad" if culprit := self._culprit_by(name, head["member"]):
                    raise Failed(f"{culprit}: {_bad(culprit, name, head)}")
                case _:
                    self.later.append(received)

    def _receive(self, timeout_s: float) -> Received | None:
        """The next message, of which all is there that its kind has."""
        try:
            received = self.wire.receive(timeout_s)
            if received is not None and received.kind in SAID:
                SAID[received.kind].model_validate(received.head)
        except Unreadable as error:
            return Received(error.sender, dict(kind="failed", reason=str(error)))
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            why = f"it said {received.kind!r} with {where}: {error.errors()[0]['msg']}"
            return Received(received.sender, dict(kind="failed", reason=why))
        return received

    def _progress(self, line: str) -> None:
        """Say it, if nothing has been said for a while."""
        if time.monotonic() - self.spoke > QUIET_S:
            self.spoke = time.monotonic()
            self.say(line)

    # Time ----------------------------------------------------------------------------------------

    def _now(self) -> float:
        """Seconds since the beginning: whole ticks, later than all before, and before any timer.

        A timer that would not be later any more goes off first; so all must be as the policy has
        been told.
        """
        self._let_timers_go_off()
        self.ticks = self._next()
        return self.ticks * TICK_S

    def _next(self) -> int:
        now = math.floor((time.monotonic() - self.clock) / TICK_S)
        if self.timers:
            now = min(now, math.ceil(self.timers[0][0] / TICK_S) - 1)
        return max(self.ticks + 1, now)

    def _let_timers_go_off(self, until: float = 0.0) -> None:
        """Those that are due by then, or by the next tick."""
        while self.timers and not self.over:
            when, _, name = self.timers[0]
            if when > max(until, self._next() * TICK_S):
                return
            self.timers.pop(0)
            self.ticks = max(self.ticks, math.ceil(when / TICK_S))
            self._tell(Timer(name, when))

    # The run -----------------------------------------------------------------------------------

    def _drive(self) -> None:
        self._carry_out(None, self.policy.begin(self.settings.groups), 0.0)
        for name in self.workers:
            if name in self.absent or name not in self.addresses:
                self._lose(name, self.absent.get(name, "it has not come yet"))
        while not self.over:
            self._check_alive()
            self._progress(f"{self._round(self.rounds)} ({time.monotonic() - self.clock:.1f} s)")
            received = self._following(self._patience())
            self._let_timers_go_off(time.monotonic() - self.clock)
            self.over = self.over or time.monotonic() >= self.ends
            if received is not None and self.over:
                self.later.appendleft(received)  # it may be rows
            elif received is not None:
                self._take(received)

    def _following(self, timeout_s: float) -> Received | None:
        return self.later.popleft() if self.later else self._receive(timeout_s)

    def _round(self, number: int) -> str:
        rounds = self.settings.training.rounds
        return f"round {number} of {rounds}" if rounds else f"round {number}"

    def _patience(self) -> float:
        now = time.monotonic()
        ends = [*self.due.values(), self.ends, now + 0.5]
        if self.timers:
            ends.append(self.clock + self.timers[0][0])
        return max(0.0, min(ends) - now)

    def _take(self, received: Received) -> None:
        name, head = received.sender, received.head
        rank = self.rank.get(name)
        if received.kind == "hello" and rank is not None and self.settings.on_loss == "replace":
            self._join(name, head)
            return
        if name in self.gone or received.kind == "heartbeat":
            return
        match received.kind:
            case "finished" if rank is not None and self.doing[rank] == "computing":
                t = self._now()
                self.due.pop(name, None)
                self.doing[rank] = "idle"
                self.times[rank].append(t - self.begun[rank])
                self.since_met[rank] += 1
                if self.policy.continues_after_upload:
                    self._send(name, "step")
                self._tell(Finished(rank, len(self.times[rank]), t))
            case "applied" if rank is None:
                self.version = head["version"]
                self._applied(head["meeting"], head["attempt"], head["uploads"])
            case "dropped" if rank is None:
                meeting = self.meetings.get(head["meeting"])
                if meeting and head["attempt"] == meeting.attempt:
                    self._again(meeting)
            case "synced" if rank is not None:
                self._synced(rank, head["meeting"], head["attempt"])
            case "rows" if self._evaluates(name):
                self._note(head["round"], head["metrics"])
                if self.judges[name] > 1:
                    self.judges[name] -= 1
                elif rank is not None:
                    self._judged(name)
            case "carried" if rank is None:
                self._weigh(head["round"], head["nbytes"])
            case "kept" if self.keeping and name == self.servers[0]:
                self.keeping -= 1
                end = time.monotonic() + self.limits.meeting_s
                self.due |= {f"meeting {number}": end for number in self.meetings}
            case "kept" | "done" | "begins":
                pass
            case "waiting":
                self.asked[name] = head["names"]
            case "left":
                self._lose(name, head["reason"], replace=True)
            case "bad":
                if culprit := self._culprit_by(name, head["member"]):
                    self._lose(culprit, _bad(culprit, name, head))
            case "failed":
                self._lose(name, head["reason"])
            case _:
                log.warning("dropped %r of %s", received.kind, name)

    # Meetings ------------------------------------------------------------------------------------

    def _carry_out(self, event: Event | None, decisions: Sequence[Decision], t: float) -> None:
        self.told.append(Told(event, tuple(decisions), t))
        for decision in decisions:
            if self.over:
                return
            match decision:
                case Continue(worker=rank):
                    self._idle(decision, [rank])
                    self.doing[rank], self.begun[rank] = "computing", t
                    name = self.workers[rank]
                    if not self.judges[name]:  # else from when it has evaluated
                        self.due[name] = time.monotonic() + self.limits.compute_s
                    self._send(name, "compute")
                case Sync(members=members):
                    computing = {rank for rank in members if self._computes_on(rank)}
                    self._idle(decision, [rank for rank in members if rank not in computing])
                    self.expecting |= computing
                    brings = {}
                    if decision.level == GLOBAL:  # of what inner levels have averaged, too
                        brings = {rank: self.since_met[rank] for rank in decision.bringing}
                        for rank in members:
                            self.since_met[rank] = 0
                    for rank in set(members) - computing:
                        self.doing[rank] = "meeting"
                    number = len(self.past)
                    self.past.append((math.nan, math.nan))
                    self.uploads.append({})
                    whole = self._brings_models(decision)
                    meeting = _Meeting(number, decision, t, brings, set(members), whole)
                    if not decision.bringing:  # its members take the model of this moment
                        meeting.applied = t
                    self.meetings[number] = meeting
                    self._call(meeting)
                case SetTimer(name=name, t=when):
                    self.timers.append((max(when, t), len(self.told), name))
                    self.timers.sort()
                case Wait(worker=rank):
                    self._idle(decision, [rank])

    def _brings_models(self, sync: Sync) -> bool:
        """Whether the members of a meeting that is decided now bring their models; held anew, they
        bring the same."""
        sends = self.settings.training.sends
        if sends == "weights_first" and (self.version or self.first):
            return False  # the first meeting of all is over, maybe in an earlier process
        return sends != "change" and sync.level == GLOBAL

    def _computes_on(self, rank: int) -> bool:
        """Whether this worker may meet although it computes."""
        on = self.policy.continues_after_upload and 0 <= rank < len(self.doing)
        return on and self.doing[rank] == "computing" and rank not in self.expecting

    def _idle(self, decision: Decision, ranks: Sequence[int]) -> None:
        for rank in ranks:
            doing = self.doing[rank] if 0 <= rank < len(self.doing) else "unknown"
            if doing != "idle":
                raise Failed(f"{decision}, but worker {rank} is {doing}")

    def _call(self, meeting: _Meeting) -> None:
        """Let the members meet, for the first time or anew."""
        sync = meeting.sync
        fields = dict(
            meeting=meeting.number,
            attempt=meeting.attempt,
            level=sync.level,
            members=list(sync.members),
            weights=sync.weights and list(sync.weights),
            brings=sum(meeting.brings.values()),
            whole=meeting.whole,
            seen=self.version,
        )
        for name in self._involved(sync):
            self._send(name, "meet", **fields)
        self.due[f"meeting {meeting.number}"] = time.monotonic() + self.limits.meeting_s

    def _involved(self, sync: Sync) -> list[str]:
        return [*(self.workers[rank] for rank in sync.members), *self.servers]

    def _applied(self, number: int, attempt: int, uploads: Sequence[tuple[int, float]]) -> None:
        meeting = self.meetings.get(number)
        if meeting is None or attempt != meeting.attempt or not meeting.sync.bringing:
            return
        meeting.applied = self._now()
        self.uploads[number] = dict(uploads) if self.here else {}
        self._count(meeting)
        if not meeting.missing:
            self._close(meeting)

    def _synced(self, rank: int, number: int, attempt: int) -> None:
        meeting = self.meetings.get(number)
        if meeting is None or attempt != meeting.attempt:
            return
        meeting.missing.discard(rank)
        by_server = self.settings.mode == "model"
        if not meeting.missing and not (by_server and math.isnan(meeting.applied)):
            self._close(meeting)

    def _close(self, meeting: _Meeting) -> None:
        """All members hold the result."""
        t = math.nan if meeting.number < 0 else self._now()
        self.due.pop(f"meeting {meeting.number}", None)
        del self.meetings[meeting.number]
        if meeting.number < 0:
            return
        if self.settings.mode == "sum":
            meeting.applied = t
            self._count(meeting)
        meeting.pulled = t
        self.past[meeting.number] = meeting.times
        here = [rank for rank in meeting.sync.members if rank not in meeting.lost]
        for rank in here:
            if self.doing[rank] == "meeting":
                self.doing[rank] = "idle"
            if self.policy.continues_after_upload:
                self._send(self.workers[rank], "over", meeting=meeting.number)
        self.expecting -= set(here)
        if not self.over:
            self._keep()
            self._tell(Synced(tuple(here), t))

    def _count(self, meeting: _Meeting) -> None:
        """Count the rounds that a meeting completes; the run is over with the last one."""
        recipe = self.settings.training
        self.brought += sum(meeting.brings.values())
        before, self.rounds = self.rounds, self.brought // len(self.workers)
        self.past[meeting.number] = (meeting.applied - meeting.since, math.nan)
        if done := self.rounds - before:
            seconds = (meeting.applied - self.ended) / done
            self.seconds[self.evaluating] += [seconds] * done
            self.ended, self.evaluating = meeting.applied, False
        every = recipe.evaluate_every
        last = recipe.rounds is not None and self.rounds >= recipe.rounds
        if self.rounds // every > before // every or last:
            self.evaluating, self.evaluated = True, self.rounds
            self.reached[self.rounds] = meeting.applied
            if self.settings.mode == "sum":  # else the server sees for itself that it is time
                self._evaluate(self.rounds)
        self.over = last

    def _evaluate(self, round_: int) -> None:
        self.evaluating = True
        keeper = self.servers[0] if self.settings.mode == "model" else self._first()
        self._send(keeper, "evaluate", round=round_)
        if keeper in self.rank:
            self.judges[keeper] += 1
            self.due[f"evaluation {keeper}"] = time.monotonic() + self.limits.evaluate_s
        self._ask_weight(round_)

    def _ask_weight(self, round_: int) -> None:
        if self.servers and not self.settings.exchange.whole:  # else none sees all that is sent
            self._send(self.servers[0], "weigh", round=round_)

    def _evaluates(self, name: str) -> bool:
        """Whether this member was asked what the model is worth: nobody else writes the scores."""
        if self.settings.mode == "model":  # the server sees for itself when it is time
            return name == self.servers[0]
        return bool(self.judges[name])

    def _judged(self, name: str) -> None:
        """A worker has evaluated, or is gone."""
        del self.judges[name]
        self.due.pop(f"evaluation {name}", None)
        if self.doing[self.rank[name]] == "computing":
            self.due[name] = time.monotonic() + self.limits.compute_s

    def _first(self) -> str:
        return next(name for name in self.workers if name not in self.gone)

    def _note(self, round_: int, metrics: dict[str, list]) -> None:
        t = self._when(round_)
        words = []
        for metric, (value, unit) in metrics.items():
            place = dict(round=round_, time_s=t)
            if math.isfinite(value):
                self.rows.add(metric, value, unit, **place)
            elif metric in LOSSES:
                raise Failed(f"round {round_}: {metric} is {value}; lower the learning rate")
            else:  # a ratio of nothing, for instance, which says nothing of the training
                why = f"own.evaluate gave {value}"
                self.rows.add(metric, math.nan, unit, **place, status="failed", reason=why)
            words.append(f"{metric.replace('_', ' ')} {value:.4g}{' %' if unit == '%' else ''}")
        recipe, left = self.settings.training, ""
        if round_ > self.first and not self.over:
            rounds, seconds = recipe.rounds, recipe.seconds
            each = (t - self.before) / (round_ - self.first)
            rest = (rounds - round_) * each if rounds else seconds - t
            left = f", about {rest:.0f} s left"
        self.spoke = time.monotonic()
        words = ", ".join(words) or "no metrics"
        self.say(f"{self._round(round_)}: {words} ({t:.1f} s{left})")

    def _when(self, round_: int) -> float:
        """The time of the model that the server had after this round."""
        if not round_:
            return 0.0
        return self.before + self.reached.get(round_, time.monotonic() - self.clock)

    def _weigh(self, round_: int, nbytes: int) -> None:
        """Note what one outermost party has sent and received, in the mean over all of them."""
        share = nbytes / self.parties
        self.rows.add("bytes_sent", share, "B", round=round_, time_s=self._when(round_))

    def _keep(self) -> None:
        every = self.settings.snapshot_every
        whole = self.brought % len(self.workers) == 0 and not self.meetings
        if self.settings.state is None or not whole or self.rounds % every:
            return
        members = [name for name in (*self.workers, *self.servers) if name not in self.gone]
        for name in members:
            self._send(name, "keep", round=self.rounds)
        # The server that keeps the model evaluates first what waits for that, and does not meet.
        self.keeping += self.settings.mode == "model"

    def _tell(self, event: Event) -> None:
        self._carry_out(event, self.policy.on(event), event.t)

    # Loss ----------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        now = time.monotonic()
        for name, at in list(self.addresses.items()):
            silent = now - self.wire.heard.get(name, now)
            if name not in self.gone and at and silent > self.limits.silence_s:
                self._lose(name, f"silent for {silent:.0f} s", replace=True)
        late = [what for what, due in self.due.items() if now > due]
        for what in late:
            if what in self.rank:
                why = f"no iteration finished within {self.limits.compute_s:g} s"
                self._lose(what, why, replace=True)
            elif what.startswith("evaluation") and what in self.due:
                why = f"its evaluation was not over within {self.limits.evaluate_s:g} s"
                self._lose(what.removeprefix("evaluation "), why, replace=True)
            elif what in self.due and not self.keeping:
                number = int(what.removeprefix("meeting "))
                why = f"meeting {number} was not over within {self.limits.meeting_s:g} s"
                self._lose(self._culprit(self.meetings[number]), why, replace=True)
        for name in [name for name, until in self.awaited.items() if now > until]:
            del self.awaited[name]
            self.say(f"goes on without {name}: no other came within {self.limits.join_s:g} s")
        busy = set(self.doing) & {"computing", "meeting"} or self.meetings or self.awaited
        if not (busy or self.timers or self.over):
            alive = any(doing != "away" for doing in self.doing)
            why = (
                "nobody computes, nobody meets and no timer runs" if alive else "no worker is left"
            )
            gone = ", ".join(f"{name} ({its})" for name, its in sorted(self.gone.items()))
            why += f"; gone: {gone}" if gone else ""
            raise Failed(f"{self.settings.training.synchronization.name}: {why}")

    def _culprit(self, meeting: _Meeting) -> str:
        """Whom a late meeting waits for: who does not answer, or else who most others name."""
        asked = [name for name in self._involved(meeting.sync) if name not in self.gone]
        self.asked = {}
        for name in asked:
            self._send(name, "whom")
        end = time.monotonic() + GRACE_S
        while len(self.asked) < len(asked) and time.monotonic() < end:
            received = self._receive(0.1)
            if received is not None and received.kind == "waiting":
                self.asked[received.sender] = received.head["names"]
            elif received is not None and received.kind in ("left", "failed"):
                return received.sender
            elif received is not None and received.kind == "bad":
                if culprit := self._culprit_by(received.sender, received.head["member"]):
                    return culprit
            elif received is not None:
                self.later.append(received)
        if silent := [name for name in asked if name not in self.asked]:
            return silent[0]
        named = [name for names in self.asked.values() for name in set(names) & set(asked)]
        return max(set(named), key=lambda name: (named.count(name), name), default=asked[0])

    def _culprit_by(self, name: str, accused: str) -> str | None:
        """Who is lost where a member says of another that it sent what cannot be.

        A server's word counts, as it keeps the model anyway. A worker's counts of a worker that it
        meets with; it cannot put out others, and if it can take nothing from a server, it goes.
        """
        known = accused in self.rank or accused in self.servers
        if name not in self.rank or self.settings.on_loss == "stop":
            return accused if known else name
        if accused not in self.rank:
            return name
        both = {self.rank[name], self.rank[accused]}
        meet = any(both <= set(meeting.sync.members) for meeting in self.meetings.values())
        node = self.settings.workers[self.rank[name]]
        if meet and accused in self.settings.partners(node):
            return accused
        log.warning("%s says that %s sent what cannot be, and has no part with it", name, accused)
        return None

    def _lose(self, name: str, why: str, replace: bool = False) -> None:
        """Go on without ``name``, for ever or until another process takes its part, or end."""
        if name in self.gone:
            return
        if self.settings.on_loss == "stop" or name not in self.rank:
            raise Failed(f"{name}: {why}")
        t = self._now()
        self.gone[name] = why
        self.say(f"goes on without {name}: {why}")
        log.warning("%s is lost: %s", name, why)
        rank = self.rank[name]
        if name in self.addresses:
            self._send(name, "stop", reason=f"the run goes on without {name}: {why}", final=None)
            self.wire.forget([name])
        self.doing[rank] = "away"
        self._judged(name)
        self.due.pop(name, None)
        self.expecting.discard(rank)
        # First the policy hears of it, as in virtual time; what it met for is over later.
        self._tell(Left(rank, t))
        for meeting in list(self.meetings.values()):
            if rank in set(meeting.sync.members) - meeting.lost:
                self._meet_without(meeting, rank)
        most = self.limits.replacements
        if replace and self.settings.on_loss == "replace" and self.replaced[name] < most:
            self.replaced[name] += 1
            self.awaited[name] = time.monotonic() + self.limits.join_s
            self.restart(name)

    def _join(self, name: str, head: dict[str, Any]) -> None:
        """Let a new process of a worker take part: it takes the server's present model first."""
        if head["run"] != self.settings.run:
            log.warning("dropped %s, who has other settings", name)
            return
        if name not in self.gone:
            self._lose(name, "another process has taken its part")
        del self.gone[name]
        self.awaited.pop(name, None)
        self.say(f"goes on with {name} again")
        self.addresses[name] = head["address"]
        self.wire.connect({name: head["address"]})
        here = {its: at for its, at in self.addresses.items() if its not in self.gone}
        for other in here.keys() - {name}:
            self._send(other, "moved", addresses={name: head["address"]})
        done = max(len(self.times[self.rank[its]]) for its in here.keys() & self.rank.keys())
        self._send(name, "begin", addresses=here, round=0, updates=self.updates + done)
        rank, t = self.rank[name], self._now()
        self.doing[rank], self.since_met[rank] = "idle", 0
        self.joins += 1
        meeting = _Meeting(-self.joins, Sync((rank,), weights=(0.0,)), t, {}, {rank}, applied=t)
        self.meetings[meeting.number] = meeting
        self._call(meeting)
        self._tell(Joined(rank, t))

    def _meet_without(self, meeting: _Meeting, rank: int) -> None:
        meeting.missing.discard(rank)
        meeting.lost.add(rank)
        if self.settings.mode == "model" and not math.isnan(meeting.applied):
            if not meeting.missing:
                self._close(meeting)
            return
        if self.settings.mode == "sum":
            self._again(meeting)
        else:  # it knows whether its model has what they brought
            self._send(self.servers[0], "drop", meeting=meeting.number)

    def _again(self, meeting: _Meeting) -> None:
        """Hold a meeting that brought nothing yet anew, among those who are left."""
        members = tuple(w for w in meeting.sync.members if w not in meeting.lost)
        for other in self._involved(Sync(members)):
            self._send(other, "drop", meeting=meeting.number)
        meeting.brings = {rank: n for rank, n in meeting.brings.items() if rank in members}
        if not members:
            meeting.applied = self._now()
            self._close(meeting)
            return
        weights = meeting.sync.weights
        if weights is not None:
            pairs = zip(meeting.sync.members, weights, strict=True)
            left = [weight for worker, weight in pairs if worker in members]
            total = sum(left)
            weights = tuple(weight / total for weight in left) if total else tuple(left)
        sync = Sync(members, meeting.sync.level, weights)
        if not sync.bringing:  # they take the model of this moment
            meeting.applied = self._now()
        meeting.sync = sync
        meeting.attempt += 1
        meeting.missing = set(members)
        self._call(meeting)

    # The end -------------------------------------------------------------------------------------

    def _finish(self) -> Ended:
        """Let everybody end; the member that holds the model writes it."""
        end = self._now()
        keeper = self.servers[0] if self.settings.mode == "model" else self._first()
        waiting = {name for name in self.addresses if name not in self.gone}
        for meeting in self.meetings.values():
            for name in self._involved(meeting.sync):
                self._send(name, "drop", meeting=meeting.number)
        last = self.rounds if self.evaluated < self.rounds else None
        if last is not None:
            self._ask_weight(last)
        for name in waiting:
            final = dict(version=self.version, evaluate=last) if name == keeper else None
            self._send(name, "stop", reason="", final=final)
        digests: dict[str, str] = {}
        sent: dict[str, int] = {}
        allowed = max(self.limits.compute_s, self.limits.evaluate_s)
        goes_on, needed = self.settings.on_loss != "stop", {keeper, *self.servers}
        until = time.monotonic() + allowed
        while waiting - digests.keys():
            received = self._following(max(0.0, until - time.monotonic()))
            if received is None:
                raise Failed(f"{', '.join(sorted(waiting - digests.keys()))} did not end")
            match received.kind:
                case "rows" | "carried" if received.head["round"] > self.rounds:
                    pass  # the server applied a meeting that was heard of too late to count
                case "rows" if received.sender == keeper or self._evaluates(received.sender):
                    self._note(received.head["round"], received.head["metrics"])
                    until = time.monotonic() + allowed
                case "carried" if received.sender not in self.rank:
                    self._weigh(received.head["round"], received.head["nbytes"])
                case "done":
                    digests[received.sender] = received.head["digest"]
                    sent[received.sender] = received.head["sent_bytes"]
                case "left" | "failed" if goes_on and received.sender not in needed:
                    waiting.discard(received.sender)
                case "failed":
                    raise Failed(f"{received.sender}: {received.head['reason']}")
                case "bad" if not goes_on or received.sender in needed:
                    head = received.head
                    raise Failed(f"{head['member']}: {_bad(head['member'], received.sender, head)}")
        if self.settings.mode == "sum":
            odd = {name: digests[name] for name in self.workers if name in digests}
            if len(set(odd.values())) > 1:
                raise Failed(f"workers end with different models: {odd}")
        recipe = self.settings.training
        # Evaluation is no part of a round, but it holds up the one that follows.
        if rounds := self.seconds[False] or self.seconds[True]:
            self.rows.add("mean_round_time", fmean(rounds), "s")
        for name, nbytes in sorted(sent.items()):
            self.rows.add("sent_bytes", nbytes, "B", at=dict(recipe.at, member=name))
        for meeting in self.meetings.values():
            if meeting.number >= 0:
                self.past[meeting.number] = (meeting.applied - meeting.since, math.nan)
        scores = [row.value for row in self.rows.rows if row.metric == "test_accuracy"]
        record = Record(
            policy=recipe.synchronization.name,
            parameters={
                f.name: getattr(self.policy, f.name) for f in fields(self.policy) if f.init
            },
            groups=tuple(self.settings.groups),
            told=self.told,
            iterations=self.times,
            meetings=self.past,
            uploads=self.uploads,
            end=end,
            accuracy=scores[-1] if scores else math.nan,
            digest=digests[keeper],
            about=dict(
                training=recipe.model_dump(mode="json", exclude={"networks"}),
                iteration_s=self.settings.iteration_s,
                torch=str(torch.__version__),
            ),
        )
        return Ended(None if self.first else record, digests, self.rows.rows)

    def _send(self, name: str, kind: str, **fields: Any) -> None:
        # Who comes later begins with what it is told then; but that the run has failed concerns it.
        if name in self.addresses or kind == "stop":
            self.wire.send(name, dict(kind=kind, **fields))
