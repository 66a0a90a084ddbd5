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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from slowlink.methods.synchronization import (
    Continue,
    Decision,
    Event,
    Finished,
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

Say = Callable[[str], None]

log = logging.getLogger(__name__)


class Failed(RuntimeError):
    """The run ended with an error; says who and why."""


@dataclass
class _Meeting:
    """``missing`` are workers that do not hold the result yet."""

    number: int
    sync: Sync
    since: float
    brings: int
    missing: set[int]
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
        was another process.
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

    def resume(self, round_: int) -> None:
        """Keep what an earlier process wrote up to this round."""
        kept = written(self.settings.output) if round_ and self.file.is_file() else []
        self.rows = [row for row in kept if 0 <= row.round <= round_]
        with files.whole(self.file) as part:
            part.write_text("".join(self._line(row) for row in self.rows))

    def add(self, metric: str, value: float, unit: str, **more: Any) -> None:
        settings, recipe = self.settings, self.settings.training
        variant = "" if settings.order == "plan" else "payloads side by side"
        (case,) = recipe.networks
        fields = dict(evidence="measured", variant=variant, case=case)
        if settings.network is not None:
            fields |= dict(evidence="emulated", bandwidth=settings.network.wan)
        fields |= more
        row = Row(**recipe.told | fields, metric=metric, value=value, unit=unit)
        self.rows.append(row)
        with self.file.open("a") as file:
            file.write(self._line(row))
            file.flush()

    @staticmethod
    def _line(row: Row) -> str:
        record = row.model_dump(mode="json")
        # JSON has no NaN; a field that is left out is NaN by default.
        kept = {k: v for k, v in record.items() if v is not None and v == v}
        return json.dumps(kept) + "\n"


def written(output: Path) -> list[Row]:
    """The rows that a run has written to its output folder."""
    return [Row(**json.loads(line)) for line in (output / ROWS).read_text().splitlines()]


class Coordinator:
    """The coordinator of one run.

    Parameters
    ----------
    wire: of the member :data:`COORDINATOR`; it watches the others.
    say: called with a line of progress now and then.
    check: called often while members are awaited; raises where one cannot come.
    """

    def __init__(
        self,
        settings: LiveSettings,
        wire: Wire,
        say: Say = lambda line: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings, self.wire, self.say, self.check = settings, wire, say, check
        self.policy, self.limits = settings.policy(), settings.limits
        names = settings.topology.node_names
        self.workers = [names[node] for node in settings.workers]
        self.servers = [names[node] for node in settings.servers]
        self.rank = {name: rank for rank, name in enumerate(self.workers)}
        self.addresses: dict[str, str] = {}
        self.gone: dict[str, str] = {}
        self.doing = ["idle"] * len(self.workers)
        self.begun = [0.0] * len(self.workers)
        self.due: dict[str, float] = {}
        """Until when a worker must have finished its iteration."""
        self.times: list[list[float]] = [[] for _ in self.workers]
        self.since_met = [0] * len(self.workers)
        self.meetings: dict[int, _Meeting] = {}
        self.past: list[tuple[float, float]] = []
        self.timers: list[tuple[float, int, str]] = []
        self.told: list[Told] = []
        self.rounds = self.brought = self.first = self.version = 0
        outermost = settings.exchange.groups(settings.topology)[-1]
        self.parties = sum(map(len, outermost))
        self.ended, self.evaluating = 0.0, False
        """When the last round was over, and whether the model is evaluated during this one."""
        self.seconds: dict[bool, list[float]] = {False: [], True: []}
        """What rounds took, by whether the model was evaluated meanwhile."""
        self.rows = _Rows(settings)
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
            for name in self.addresses:
                self._send(name, "stop", reason=str(error) or type(error).__name__, final=False)
            raise

    # The beginning ---------------------------------------------------------------------------

    def _gather(self) -> None:
        """Wait for all members, and let them begin at the latest round that all can."""
        everybody, end = {*self.workers, *self.servers}, time.monotonic() + self.limits.join_s
        rounds: dict[str, set[int]] = {}
        while missing := everybody - rounds.keys():
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
            self.addresses[received.sender] = head["address"]
            self.wire.connect({received.sender: head["address"]})
            rounds[received.sender] = set(head["rounds"])
        common = set.intersection(*rounds.values())
        if not common and any(rounds.values()):
            odd = next(name for name, its in sorted(rounds.items()) if not its)
            raise Failed(f"{odd} has no snapshot, others have; give it back or delete theirs")
        self.first = self.rounds = max(common, default=0)
        self.brought = self.first * len(self.workers)
        self.rows.resume(self.first)
        for name in everybody:
            self._send(name, "begin", addresses=self.addresses, round=self.first)
        if self.first:
            self.say(f"all here, going on from round {self.first}")
        else:
            self._evaluate(0)
        self.clock, self.ticks = time.monotonic(), 0

    def _receive(self, timeout_s: float) -> Received | None:
        try:
            return self.wire.receive(timeout_s)
        except Unreadable as error:
            return Received(error.sender, dict(kind="failed", reason=str(error)))

    def _progress(self, line: str) -> None:
        """Say it, if nothing has been said for a while."""
        if time.monotonic() - self.spoke > QUIET_S:
            self.spoke = time.monotonic()
            self.say(line)

    # Time ----------------------------------------------------------------------------------------

    def _now(self) -> float:
        """Seconds since the beginning: whole ticks, and later than anything before."""
        now = math.floor((time.monotonic() - self.clock) / TICK_S)
        self.ticks = max(self.ticks + 1, now)
        return self.ticks * TICK_S

    def _stamp(self, t: float) -> None:
        self.ticks = max(self.ticks, math.ceil(t / TICK_S))

    # The run -----------------------------------------------------------------------------------

    def _drive(self) -> None:
        self._carry_out(None, self.policy.begin(self.settings.groups), 0.0)
        while not self.over:
            self._check_alive()
            recipe, t = self.settings.training, time.monotonic() - self.clock
            self._progress(f"round {self.rounds} of {recipe.rounds} ({t:.1f} s)")
            received = self._receive(self._patience())
            while self.timers and not self.over:
                when, _, name = self.timers[0]
                if when > time.monotonic() - self.clock:
                    break
                self.timers.pop(0)
                self._stamp(when)
                self._tell(Timer(name, when))
            if received is not None and not self.over:
                self._take(received)

    def _patience(self) -> float:
        now = time.monotonic()
        ends = [*self.due.values(), now + 0.5]
        if self.timers:
            ends.append(self.clock + self.timers[0][0])
        return max(0.0, min(ends) - now)

    def _take(self, received: Received) -> None:
        name, head = received.sender, received.head
        if name in self.gone or received.kind == "heartbeat":
            return
        rank = self.rank.get(name)
        match received.kind:
            case "finished" if rank is not None and self.doing[rank] == "computing":
                t = self._now()
                self.due.pop(name, None)
                self.doing[rank] = "idle"
                self.times[rank].append(t - self.begun[rank])
                self.since_met[rank] += 1
                self._tell(Finished(rank, len(self.times[rank]), t))
            case "applied" if rank is None:
                self._applied(head["meeting"], head["attempt"])
            case "synced" if rank is not None:
                self._synced(rank, head["meeting"], head["attempt"])
            case "rows":
                self._note(head["round"], head["metrics"])
            case "carried":
                self._weigh(head["round"], head["nbytes"])
            case "kept" | "done":
                pass
            case "waiting":
                self.asked[name] = head["names"]
            case "left":
                self._lose(name, head["reason"])
            case "bad":
                self._lose(head["member"], f"it sent what cannot be ({name}): {head['why']}")
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
                    self.due[name] = time.monotonic() + self.limits.compute_s
                    self._send(name, "compute")
                case Sync(members=members):
                    self._idle(decision, members)
                    brings = 0
                    if decision.level == GLOBAL:  # of what inner levels have averaged, too
                        brings = sum(self.since_met[rank] for rank in decision.bringing)
                        for rank in members:
                            self.since_met[rank] = 0
                    for rank in members:
                        self.doing[rank] = "meeting"
                    number = len(self.past)
                    self.past.append((math.nan, math.nan))
                    meeting = _Meeting(number, decision, t, brings, set(members))
                    if not decision.bringing:  # its members take the model of this moment
                        meeting.applied = t
                    self.meetings[number] = meeting
                    self._call(meeting)
                case SetTimer(name=name, t=when):
                    self.timers.append((max(when, t), len(self.told), name))
                    self.timers.sort()
                case Wait(worker=rank):
                    self._idle(decision, [rank])

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
            brings=meeting.brings,
            seen=self.version,
        )
        for name in self._involved(sync):
            self._send(name, "meet", **fields)
        self.due[f"meeting {meeting.number}"] = time.monotonic() + self.limits.meeting_s

    def _involved(self, sync: Sync) -> list[str]:
        return [*(self.workers[rank] for rank in sync.members), *self.servers]

    def _applied(self, number: int, attempt: int) -> None:
        meeting = self.meetings.get(number)
        if meeting is None or attempt != meeting.attempt or not meeting.sync.bringing:
            return
        meeting.applied = self._now()
        self.version += meeting.sync.level == GLOBAL
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
        t = self._now()
        if self.settings.mode == "sum":
            meeting.applied = t
            self._count(meeting)
        meeting.pulled = t
        self.past[meeting.number] = meeting.times
        del self.meetings[meeting.number]
        self.due.pop(f"meeting {meeting.number}", None)
        here = [rank for rank in meeting.sync.members if self.doing[rank] == "meeting"]
        for rank in here:
            self.doing[rank] = "idle"
        if not self.over:
            self._keep()
            self._tell(Synced(tuple(here), t))

    def _count(self, meeting: _Meeting) -> None:
        """Count the rounds that a meeting completes; the run is over with the last one."""
        recipe = self.settings.training
        self.brought += meeting.brings
        before, self.rounds = self.rounds, self.brought // len(self.workers)
        self.past[meeting.number] = (meeting.applied - meeting.since, math.nan)
        if done := self.rounds - before:
            seconds = (meeting.applied - self.ended) / done
            self.seconds[self.evaluating] += [seconds] * done
            self.ended, self.evaluating = meeting.applied, False
        every = recipe.evaluate_every
        last = self.rounds >= recipe.rounds
        if self.rounds // every > before // every or last:
            self.evaluating = True
            if self.settings.mode == "sum":  # else the server sees for itself that it is time
                self._evaluate(self.rounds)
        self.over = last

    def _evaluate(self, round_: int) -> None:
        self.evaluating = True
        keeper = self.servers[0] if self.settings.mode == "model" else self._first()
        self._send(keeper, "evaluate", round=round_)
        if self.servers:
            self._send(self.servers[0], "weigh", round=round_)

    def _first(self) -> str:
        return next(name for name in self.workers if name not in self.gone)

    def _note(self, round_: int, metrics: dict[str, list]) -> None:
        t = time.monotonic() - self.clock if round_ else 0.0
        words = []
        for metric, (value, unit) in metrics.items():
            if math.isfinite(value):
                self.rows.add(metric, value, unit, round=round_, time_s=t)
            else:
                raise Failed(f"round {round_}: {metric} is {value}; lower lr")
            words.append(f"{metric.replace('_', ' ')} {value:.4g}{' %' if unit == '%' else ''}")
        done = f"round {round_} of {self.settings.training.rounds}"
        left = ""
        if round_ > self.first and not self.over:
            rest = (self.settings.training.rounds - round_) * t / (round_ - self.first)
            left = f", about {rest:.0f} s left"
        self.spoke = time.monotonic()
        self.say(f"{done}: {', '.join(words) or 'no metrics'} ({t:.1f} s{left})")

    def _weigh(self, round_: int, nbytes: int) -> None:
        """Note what one outermost party has sent and received, in the mean over all of them."""
        t = time.monotonic() - self.clock if round_ else 0.0
        self.rows.add("bytes_sent", nbytes / self.parties, "B", round=round_, time_s=t)

    def _keep(self) -> None:
        every = self.settings.snapshot_every
        whole = self.brought % len(self.workers) == 0 and not self.meetings
        if self.settings.state is None or not whole or self.rounds % every:
            return
        members = [name for name in (*self.workers, *self.servers) if name not in self.gone]
        for name in members:
            self._send(name, "keep", round=self.rounds)

    def _tell(self, event: Event) -> None:
        self._carry_out(event, self.policy.on(event), event.t)

    # Loss ----------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        now = time.monotonic()
        for name, at in list(self.addresses.items()):
            silent = now - self.wire.heard.get(name, now)
            if name not in self.gone and at and silent > self.limits.silence_s:
                self._lose(name, f"silent for {silent:.0f} s")
        late = [what for what, due in self.due.items() if now > due]
        for what in late:
            if what in self.rank:
                self._lose(what, f"no iteration finished within {self.limits.compute_s:g} s")
            elif what in self.due:
                number = int(what.removeprefix("meeting "))
                self._lose(self._culprit(self.meetings[number]), self._too_long(number))
        stuck = not (set(self.doing) & {"computing", "meeting"} or self.timers or self.over)
        if stuck:
            alive = any(doing != "away" for doing in self.doing)
            why = (
                "nobody computes, nobody meets and no timer runs" if alive else "no worker is left"
            )
            raise Failed(f"{self.settings.training.synchronization.name}: {why}")

    def _too_long(self, number: int) -> str:
        return f"meeting {number} was not over within {self.limits.meeting_s:g} s"

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
            elif received is not None and received.kind in ("left", "bad", "failed"):
                return received.head.get("member", received.sender)
        if silent := [name for name in asked if name not in self.asked]:
            return silent[0]
        named = [name for names in self.asked.values() for name in names]
        return max(set(named), key=lambda name: (named.count(name), name), default=asked[0])

    def _lose(self, name: str, why: str) -> None:
        """Go on without ``name``, or end."""
        if name in self.gone:
            return
        if self.settings.on_loss == "stop" or name not in self.rank:
            raise Failed(f"{name}: {why}")
        self.gone[name] = why
        self.say(f"goes on without {name}: {why}")
        log.warning("%s is lost: %s", name, why)
        rank = self.rank[name]
        self._send(name, "stop", reason=f"the run goes on without {name}: {why}", final=False)
        self.wire.forget([name])
        self.due.pop(name, None)
        self.doing[rank] = "away"
        for meeting in list(self.meetings.values()):
            if rank in meeting.sync.members:
                self._meet_without(meeting, rank)
        self._tell(Left(rank, self._now()))

    def _meet_without(self, meeting: _Meeting, rank: int) -> None:
        meeting.missing.discard(rank)
        if self.settings.mode == "model" and not math.isnan(meeting.applied):
            if not meeting.missing:
                self._close(meeting)
            return
        for other in self._involved(meeting.sync):
            if other not in self.gone:
                self._send(other, "drop", meeting=meeting.number)
        members = tuple(w for w in meeting.sync.members if w != rank)
        if not members:
            self.past[meeting.number] = (math.nan, math.nan)
            del self.meetings[meeting.number]
            self.due.pop(f"meeting {meeting.number}", None)
            return
        weights = meeting.sync.weights
        if weights is not None:
            pairs = zip(meeting.sync.members, weights, strict=True)
            left = [weight for worker, weight in pairs if worker != rank]
            total = sum(left)
            weights = tuple(weight / total for weight in left) if total else tuple(left)
        meeting.sync = Sync(members, meeting.sync.level, weights)
        meeting.attempt += 1
        meeting.missing = set(members)
        self._call(meeting)

    # The end -------------------------------------------------------------------------------------

    def _finish(self) -> Ended:
        """Let everybody end; the member that holds the model writes it."""
        end = self._now()
        keeper = self.servers[0] if self.settings.mode == "model" else self._first()
        waiting = {name for name in self.addresses if name not in self.gone}
        for name in waiting:
            self._send(name, "stop", reason="", final=name == keeper)
        digests: dict[str, str] = {}
        sent: dict[str, int] = {}
        until = time.monotonic() + self.limits.compute_s
        while waiting - digests.keys():
            received = self._receive(max(0.0, until - time.monotonic()))
            if received is None:
                raise Failed(f"{', '.join(sorted(waiting - digests.keys()))} did not end")
            match received.kind:
                case "rows":
                    self._note(received.head["round"], received.head["metrics"])
                case "carried":
                    self._weigh(received.head["round"], received.head["nbytes"])
                case "done":
                    digests[received.sender] = received.head["digest"]
                    sent[received.sender] = received.head["sent_bytes"]
                case "failed" | "bad":
                    raise Failed(f"{received.sender}: {received.head}")
        if self.settings.mode == "sum":
            odd = {name: digests[name] for name in self.workers if name in digests}
            if len(set(odd.values())) > 1:
                raise Failed(f"workers end with different models: {odd}")
        recipe = self.settings.training
        # Evaluation is no part of a round, but it holds up the one that follows.
        self.rows.add("mean_round_time", fmean(self.seconds[False] or self.seconds[True]), "s")
        for name, nbytes in sorted(sent.items()):
            self.rows.add("sent_bytes", nbytes, "B", at=dict(recipe.at, member=name))
        for meeting in self.meetings.values():
            self.past[meeting.number] = (meeting.applied - meeting.since, math.nan)
        record = Record(
            policy=recipe.synchronization.name,
            parameters={
                f.name: getattr(self.policy, f.name) for f in fields(self.policy) if f.init
            },
            groups=tuple(self.settings.groups),
            told=self.told,
            iterations=self.times,
            meetings=self.past,
            end=end,
        )
        return Ended(record, digests, self.rows.rows)

    def _send(self, name: str, kind: str, **fields: Any) -> None:
        self.wire.send(name, dict(kind=kind, **fields))
