"""A worker or server of a live run: computes, meets, keeps snapshots, as the coordinator says.

What the members tell each other (``head["kind"]``)::

    node -> coordinator   hello     address, rounds it has snapshots of, each with the updates that
                                    count as done, run, and a digest of the parameters that it
                                    begins with
    coordinator -> node   begin     addresses of all, round to go on from (0: anew), and the updates
                                    that a worker who comes later counts as done
                          compute   a worker's next iteration
                          step      by what it has computed, where workers compute on while they
                                    meet: what comes before is about the model as it was
                          over      meeting: all members hold the result, which takes effect; told
                                    only there
                          meet      meeting, attempt, level, members and weights by rank, brings,
                                    whether these bring their models and not changes (whole), and
                                    the version of the server's model that was seen so far
                          drop      meeting: that meeting is off, its members hold what they held;
                                    of a server that keeps the model, unless it has been applied
                          evaluate  round
                          weigh     round: tell what you have sent and received of payloads
                          keep      round: write a snapshot
                          whom      tell whom you wait for
                          moved     addresses of members that others have replaced
                          stop      reason, empty at the end; final: write the model, as it was in
                                    this version, and evaluate it as that of a round, or of none
    node -> coordinator   begins    left: batches of before the snapshot that it has yet to draw
                                    anew; 0 when it can compute
                          finished  an iteration
                          applied   meeting: the server's model has what the meeting brought, and
                                    is of this version; by rank, how long what came from workers
                                    was on its way
                          dropped   meeting: the server's model does not have it, and will not
                          synced    meeting: this worker holds the result
                          rows      round, metrics by name
                          carried   round, nbytes: of the central server, to weigh
                          kept      round
                          waiting   names
                          bad       member, why: it has sent what cannot be
                          done      digest of the parameters, bytes sent
                          failed    reason
    node -> node          data      meeting, attempt, tag and transfer of an exchange; of what a
                                    worker brings, when it began to send

A result is held back until the coordinator says what comes next, so that a meeting in which a
member was lost can be dropped and held anew among the others.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from slowlink.testbed import files
from slowlink.testbed.live.engine import tasks
from slowlink.testbed.live.engine.delivery import Arrival, Delivery, Tag, Which
from slowlink.testbed.live.engine.exchange import STATISTICS, Meeting, Place, as_vector
from slowlink.testbed.live.engine.flow import Refused
from slowlink.testbed.live.engine.settings import COORDINATOR, LiveSettings
from slowlink.testbed.live.snapshots import Snapshots
from slowlink.testbed.live.wire import Received, Unreadable, Wire
from slowlink.testbed.training.learner import Diverged, clipped, digest, unfused
from slowlink.testbed.training.trainer import GLOBAL

IDLE_S = 0.5

JUDGED = 2
"""Models that may wait to be evaluated while the server goes on."""

MAX_STEPS = 16
"""More rounds of communication than any codec has."""

COMMANDS = ("compute", "step", "meet", "over", "drop", "evaluate", "weigh", "keep", "whom", "moved")

log = logging.getLogger(__name__)


FAILURES = (Exception, SystemExit)
"""What a user's function may end with, one that parses arguments or gives up included."""


def fail(wire: Wire, error: BaseException) -> None:
    """Tell the coordinator that this member ends with an error, and log where it came from."""
    reason = tasks.described(error)
    log.error("%s", reason, exc_info=error)
    wire.send(COORDINATOR, dict(kind="failed", reason=reason))


class Stopped(RuntimeError):
    """The run ended before its time; says why."""


@dataclass(kw_only=True)
class _Held(Delivery):
    """A meeting under way, its travels by phase and key."""

    number: int
    attempt: int
    meeting: Meeting
    members: Sequence[int]
    weights: Sequence[float] | None
    level: int
    brings: int
    scale: float
    whole: bool
    """Whether its members bring their models, of which the server's new one is made."""
    origin: list[Tensor] | None
    """At the server the model that it had when such a meeting was called, else None."""
    since: float | None = None
    """When this worker began to send what it brings, on this machine's clock."""
    uploads: dict[int, float] = field(default_factory=dict)
    """By rank of those who send to this server, seconds until it had all that they bring."""
    seen: set[tuple[Tag, int]] = field(default_factory=set)
    """Transfers that have come, each of which comes once."""
    before: dict | None = None
    """The codecs as they were, to go back to."""
    applied: bool = False
    """Whether the server's model has what was brought."""
    refused: bool = False
    """Whether that would have made too bad a model, and the coordinator knows whose fault it is."""

    @property
    def shares(self) -> list[float]:
        """The weight of each who brings something."""
        if self.weights is None:
            return [1 / len(self.members)] * len(self.members)
        return [weight for weight in self.weights if weight]

    def taking(self, phase: str) -> Sequence[int]:
        """The workers among whom this phase of the plan is."""
        return self.meeting.members if phase == "pull" else self.meeting.bringing


class Node:
    """One node.

    Parameters
    ----------
    wire: connected with the coordinator.
    """

    def __init__(self, settings: LiveSettings, name: str, wire: Wire) -> None:
        self.settings, self.name, self.wire = settings, name, wire
        names = settings.topology.node_names
        self.number = names.index(name)
        self.partners = settings.partners(self.number)
        self.names = dict(enumerate(names))
        rank = {node: rank for rank, node in enumerate(settings.workers)}
        self.rank = rank.get(self.number)
        self.centre = self.number == settings.servers[0] if settings.servers else False
        self.task = tasks.make(settings, self.rank)
        keeps = settings.mode == "model" and self.task.statistics()
        if keeps and settings.statistics == "own":
            raise ValueError(
                "statistics: own leaves the server's model, which is evaluated and kept, with "
                "running statistics that nobody has trained; give mean"
            )
        self.place = Place(
            self.number,
            settings.topology,
            settings.exchange,
            self.task.codec,
            self.task.groups,
            self.task.shapes,
            settings.order,
            settings.limits.tensor_bytes,
            settings.limits.largest,
            settings.rule,
            settings.apart,
        )
        policy = settings.policy()
        self.changes = policy.travels == "delta"
        self.computes_on = policy.continues_after_upload
        """Whether workers compute while they meet; what happens is then in the coordinator's order:
        an iteration changes the model when it says step, a meeting when it says over."""
        self.came_with: dict[int, list[Tensor]] = {}
        """The model that this worker had when a meeting was decided, there."""
        self.beside = ThreadPoolExecutor(1)
        self.iteration: Future | None = None
        """The gradient that is computed beside all else, there."""
        self.computing = Lock()
        """Whoever computes holds it: the model changes before or after."""
        self.snapshots = None
        if settings.state is not None:
            self.snapshots = Snapshots(settings.state, settings.run, name)
        self.base = self.task.values()
        """The global model as this worker last got it."""
        self.met = self.base
        """The model that its last meeting gave it, of whatever level."""
        self.given: dict[int, list[Tensor]] = {}
        """The model that each worker, by rank, last got from this server."""
        self.last: list[Tensor] | None = None
        """The gradient of the last iteration, where gradients travel."""
        self.held: dict[int, _Held] = {}
        self.commit: tuple[int, Callable[[], None], dict | None] | None = None
        """The last meeting, what its result does, and the codecs as they were before it."""
        self.strays: dict[tuple[int, int], list[tuple[Received, float]]] = defaultdict(list)
        """What came for meetings before these were called, and when."""
        self.stray_bytes = 0
        self.later: list[tuple[str, dict[str, Any]]] = []
        """Commands for when this worker has the model that it begins with."""
        self.brought = self.evaluated = self.computed = 0
        self.updates = 0
        """Iterations that count as done, those of earlier processes and of others included."""
        self.began = self.finished = False
        self.told = 0.0
        """When it last said how far it is with what was before a snapshot."""
        self.judge = None
        if self.centre and settings.mode == "model":
            self.judge = ThreadPoolExecutor(1)
        self.judged: deque[Future] = deque(maxlen=JUDGED)
        self.guards = self.centre and settings.worst is not None
        self.guess = self.loss = self._loss() if self.guards else math.nan
        """The loss of the initial model and of the present one, where new ones are looked at."""
        self.sent_bytes = self.carried = 0
        """Of bodies; ``carried``, both ways, and not of running statistics."""
        self.version = 0
        self.models: dict[int, list[Tensor]] = {}
        """The server's latest models by version, as far back as the coordinator may ask."""
        self.statistics: dict[int, list[Tensor]] = {}
        """The running statistics of each, which do not go out with it."""

    def run(self) -> None:
        """Take part until told to stop; raises Stopped where that is an error."""
        found = self.snapshots.load() if self.snapshots else {}
        self.tell(
            "hello",
            address=self.wire.address,
            rounds=[[number, found[number]["updates"]] for number in sorted(found)],
            run=self.settings.run,
            model=digest(self.task.values()).hex(),
        )
        begun = time.monotonic()
        while True:
            try:
                received = self.wire.receive(IDLE_S)
            except Unreadable as error:
                self.tell("bad", member=error.sender, why=str(error))
                continue
            heard = self.wire.heard.get(COORDINATOR)
            limits = self.settings.limits
            allowed = limits.silence_s if self.began else limits.join_s
            if time.monotonic() - (heard or begun) > allowed:
                raise Stopped(f"the coordinator was silent for {allowed:g} s")
            if received is None or received.kind in ("heartbeat", "left"):
                continue
            head = received.head
            try:
                if received.kind == "data":
                    self._arrived(received, time.monotonic())
                elif received.sender != COORDINATOR:
                    log.warning("dropped %s of %s", received.kind, received.sender)
                elif received.kind == "stop":
                    if head["reason"]:
                        raise Stopped(head["reason"])
                    self._end(head["final"])
                    return
                elif received.kind == "begin":
                    self._begin(head["addresses"], found.get(head["round"]), head["updates"])
                    if self.snapshots and not (found or self.updates):
                        self._save(0)  # else who dies before its next one would stop all others
                elif received.kind in COMMANDS:
                    self._obey(**head)
            except Refused as error:
                who = self.names.get(error.node, str(error.node))
                self.tell("bad", member=who, why=str(error))
            except Stopped:
                raise
            except FAILURES as error:
                fail(self.wire, error)
                raise

    def tell(self, kind: str, **fields: Any) -> None:
        """Send the coordinator something."""
        self.wire.send(COORDINATOR, dict(kind=kind, **fields))

    # What the coordinator says -------------------------------------------------------------------

    def _obey(self, kind: str, **fields: Any) -> None:
        begins = any(number < 0 for number in self.held)
        waits = begins or (self.held and not self.computes_on)
        if self.rank is not None and waits and kind in ("compute", "meet"):
            self.later.append((kind, fields))
        else:
            getattr(self, f"_{kind}")(**fields)

    def _moved(self, addresses: dict[str, str]) -> None:
        # With everybody there would be more connections than messages in a large run.
        self.wire.connect({name: at for name, at in addresses.items() if name in self.partners})

    def _begin(self, addresses: dict[str, str], state: dict[str, Any] | None, updates: int) -> None:
        self._moved(addresses)
        if state is not None:
            self.task.restore(state["task"], self._restores)
            self.task.codec.load(state["codecs"])
            self.brought, self.evaluated = state["brought"], state["evaluated"]
            self.carried, self.sent_bytes = state["carried"], state["sent_bytes"]
            self.updates = state["updates"]
            self.loss = self._loss() if self.guards else math.nan
        if updates:
            self.task.begin_at(updates)
            self.updates = updates
        self.base = [value.clone() for value in self.task.values()]
        self.met, self.models, self.began = self.base, {0: self.base}, True
        self.statistics = {0: [value.clone() for value in self.task.statistics()]}
        self.given = dict.fromkeys(range(len(self.settings.workers)), self.base)
        self.tell("begins", left=0)

    def _restores(self, left: int) -> None:
        if time.monotonic() - self.told > IDLE_S:
            self.told = time.monotonic()
            self.tell("begins", left=left)

    def _settle(self) -> None:
        """What comes next is said, so the last meeting counts."""
        if self.commit and not self.computes_on:
            self._take_effect()

    def _take_effect(self) -> None:
        _, act, _ = self.commit
        self.commit = None
        with self.computing:
            act()

    def _over(self, meeting: int) -> None:
        if self.commit and self.commit[0] == meeting:
            self._take_effect()

    def _compute(self) -> None:
        self._settle()
        if self.computes_on:
            self.computing.acquire()  # here, for what comes next must not be before
            self.iteration = self.beside.submit(self._iterate)
            return
        start = time.perf_counter()
        gradient = self._gradient()
        if self.changes:
            self.task.step(gradient)
        else:
            self.last = gradient
        self._finished(start)

    def _iterate(self) -> list[Tensor]:
        try:
            torch.set_num_threads(self.settings.training.torch_threads)
            start = time.perf_counter()
            try:
                gradient = self._gradient()
            finally:
                self.computing.release()
            self._finished(start)
            return gradient
        except FAILURES as error:
            fail(self.wire, error)
            raise

    def _step(self) -> None:
        self.task.step(self.iteration.result())

    def _gradient(self) -> list[Tensor]:
        gradient = self.task.gradient()
        clip = self.settings.training.clip_norm
        if clip and self.settings.own:
            gradient = clipped(gradient, clip)
        for number, part in enumerate(gradient):
            if not part.isfinite().all():
                raise ArithmeticError(f"the gradient of tensor {number} is not finite; lower lr")
        if not self.computed and self.settings.mode == "model" and (odd := self.task.changed()):
            raise ValueError(
                f"own.model: its buffers {', '.join(odd)} change with the batches, and would not "
                f"reach the model that the server keeps; only {', '.join(tasks.RUNNING)} do"
            )
        return gradient

    def _finished(self, start: float) -> None:
        self.computed += 1
        self.updates += 1
        took = time.perf_counter() - start
        time.sleep(self.settings.pause_s(self.rank, self.computed, took))
        self.tell("finished")

    def _meet(
        self,
        meeting: int,
        attempt: int,
        members: list[int],
        weights: list[float] | None,
        brings: int,
        whole: bool,
        seen: int,
        level: int,
    ) -> None:
        self._settle()
        for by_version in (self.models, self.statistics):
            for old in [version for version in by_version if version < seen]:
                del by_version[old]
        settings = self.settings
        bringing = [w for i, w in enumerate(members) if weights is None or weights[i]]
        nodes = settings.workers
        scale = 1.0
        over_all = settings.training.averaged_over == "all" and level == GLOBAL and not whole
        if not settings.stepwise and weights is None and over_all:
            scale = len(members) / len(nodes)
        held = self.held[meeting] = _Held(
            number=meeting,
            attempt=attempt,
            meeting=Meeting(
                self.place,
                settings.mode,
                [nodes[rank] for rank in bringing],
                [nodes[rank] for rank in members],
            ),
            members=members,
            weights=weights,
            level=level,
            brings=brings,
            scale=scale,
            whole=whole,
            origin=self.models[seen] if whole and self.centre else None,
        )
        if settings.on_loss != "stop":
            held.before = self.task.codec.states()
        travels = held.meeting
        if self.computes_on and self.rank in members:
            # Held anew among fewer, it brings the same.
            self.came_with.setdefault(meeting, [value.clone() for value in self.task.values()])
        own = self._brings(held) if self.rank in bringing else None
        for key in range(len(self.place.groups)):
            if own is not None:
                weight = held.shares[bringing.index(self.rank)]
                held.running["push", key] = travels.bring(own, weight, key)
            elif self.centre and bringing:
                held.running["push", key] = travels.serve(key)
            elif self.rank is None and bringing and self._passes_on(travels.bringing):
                held.running["push", key] = travels.relay(0, key)
        if settings.mode == "model":
            for index in range(len(self.place.shapes)):
                if self.rank in members:
                    held.running["pull", index] = travels.take(index)
                elif self.rank is None and not self.centre and self._passes_on(travels.members):
                    held.running["pull", index] = travels.pass_down(0, index)
        if settings.statistics == "mean" and self.task.statistics() and bringing:
            vector = as_vector(self.task.statistics()) if self.rank in bringing else None
            held.running["mean", STATISTICS] = travels.mean(vector)
        for which in list(held.running):
            self._go_on(held, which)
        if self.centre and settings.mode == "model" and not bringing:
            model = self.models[seen] if level == GLOBAL else self.given[members[0]]
            self._hand_out(held, model)
        for key in [key for key in self.strays if key[0] == meeting and key[1] <= attempt]:
            strays = self.strays.pop(key)
            self.stray_bytes -= sum(stray.size for stray, _ in strays)
            for stray, at in strays if key[1] == attempt else ():
                self._arrived(stray, at)
        self._close(held)

    def _passes_on(self, workers: Sequence[int]) -> bool:
        """Whether this site's server stands between the centre and one of these workers."""
        levels = self.settings.exchange.groups(self.settings.topology, list(workers))
        return any(self.number in group for level in levels[1:] for group in level)

    def _brings(self, held: _Held) -> list[Tensor]:
        if not self.changes:
            return self.last
        before = self.base if held.level == GLOBAL else self.met
        now = self.came_with.get(held.number, self.task.values())
        if held.whole:
            return now
        return [new - old for new, old in zip(now, before, strict=True)]

    def _drop(self, meeting: int) -> None:
        held = self.held.get(meeting)
        if self.judge:
            if held is None or held.applied:
                return  # it has been told
            self.tell("dropped", meeting=meeting, attempt=held.attempt)
        self.held.pop(meeting, None)
        before = held and held.before
        if self.commit and self.commit[0] == meeting:
            before, self.commit = self.commit[2], None
        if before is not None:
            self.task.codec.load(before)

    def _evaluate(self, round: int) -> None:
        self._settle()
        evaluation = self.task.evaluation()
        if self.judge is None:
            self.tell("rows", round=round, metrics=evaluation())
            return
        # The server goes on meanwhile, since policies never stand still together.
        if len(self.judged) == JUDGED:
            self.judged.popleft().result()
        self.judged.append(self.judge.submit(self._judge, round, evaluation))

    def _judge(self, round: int, evaluation: Callable[[], tasks.Metrics]) -> None:
        try:
            torch.set_num_threads(self.settings.training.torch_threads)
            self.tell("rows", round=round, metrics=evaluation())
        except FAILURES as error:
            fail(self.wire, error)
            raise

    def _weigh(self, round: int) -> None:
        self.tell("carried", round=round, nbytes=self.carried)

    def _keep(self, round: int) -> None:
        self._settle()
        # The run that goes on from here evaluates none of those again.
        for evaluated in self.judged:
            evaluated.result()
        self._save(round)
        self.tell("kept", round=round)

    def _save(self, round: int) -> None:
        state = dict(task=self.task.state(), codecs=self.task.codec.states())
        state |= dict(brought=self.brought, evaluated=self.evaluated)
        state |= dict(carried=self.carried, sent_bytes=self.sent_bytes, updates=self.updates)
        self.snapshots.save(round, state, self.settings.kept)

    def _whom(self) -> None:
        waited = {
            self.names[src]
            for held in self.held.values()
            for tag in held.waiting
            for src in self._sources(held, tag)
        }
        self.tell("waiting", names=sorted(waited))

    def _sources(self, held: _Held, tag: Tag) -> set[int]:
        phase, *slots = tag[0].split(":")
        part = self.place.part(held.taking(phase), phase, tuple(slots) or None)
        return {part.src[t] for t in part.arriving}

    def _end(self, final: dict[str, Any] | None) -> None:
        self._settle()
        # What came or was computed since the coordinator let the run end is no part of it.
        if self.judge and final:
            self.task.adopt(self.models[final["version"]])
            kept = self.statistics[final["version"]]
            for value, its in zip(self.task.statistics(), kept, strict=True):
                value.copy_(its)
        elif self.settings.mode == "sum" and self.changes:
            self.task.adopt(self.base)
        if final and final["evaluate"] is not None:
            self._evaluate(final["evaluate"])
        if self.judge:
            self.judge.shutdown()
        if final:
            files.save(self.settings.output / "model.pt", self.task.model())
        self.tell("done", digest=digest(self.task.values()).hex(), sent_bytes=self.sent_bytes)

    # Meetings ------------------------------------------------------------------------------------

    def _arrived(self, received: Received, at: float) -> None:
        """Take what has come of an exchange at this time."""
        head = received.head

        def refused(why: str) -> Refused:
            return Refused(self.settings.topology.node_names.index(received.sender), why)

        try:
            number, attempt = int(head["meeting"]), int(head["attempt"])
            fragment, key, step = head["tag"]
            tag, t = (str(fragment), int(key), int(step)), int(head["t"])
        except (KeyError, TypeError, ValueError):
            raise refused("a message of no exchange") from None
        held = self.held.get(number)
        if held is None or attempt > held.attempt:
            self.strays[number, attempt].append((received, at))
            self.stray_bytes += received.size
            if self.stray_bytes > self.settings.limits.queue_bytes:
                raise refused("it sends for meetings that nobody has called")
            return
        if attempt < held.attempt:
            return
        node = self._sender_of(held, tag, t)
        if self.names[node] != received.sender:
            raise refused(f"it sent what {self.names[node]} should have sent")
        known = -1 <= tag[1] < len(self.place.shapes) and 0 <= tag[2] < MAX_STEPS
        if not known or (tag, t) in held.seen:
            raise refused(f"{tag} is not of this meeting, or came before")
        held.seen.add((tag, t))
        self.carried += len(received.body) * (tag[1] != STATISTICS)
        if self.centre and node in held.meeting.bringing and tag[1] != STATISTICS:
            self._time(held, node, head.get("since"), at)
        arrival = t, head, received.body
        which = held.take(tag, arrival)
        if which is not None:
            self._go_on(held, which, arrival)
            self._close(held)

    def _sender_of(self, held: _Held, tag: Tag, t: int) -> int:
        phase = tag[0].partition(":")[0]
        if phase not in ("all", "push", "pull"):
            raise ValueError(f"no fragment is called {tag[0]!r}")
        plan = self.place.plan(held.taking(phase), phase)
        if not 0 <= t < len(plan):
            raise ValueError(f"{plan.name} has no transfer {t}")
        return int(plan.src[t])

    def _time(self, held: _Held, node: int, since: Any, at: float) -> None:
        """Note how long what a worker brings to this server was on its way until now."""
        if isinstance(since, float) and 0 <= at - since < math.inf:
            rank = self.settings.workers.index(node)
            held.uploads[rank] = max(at - since, held.uploads.get(rank, 0.0))

    def _go_on(self, held: _Held, which: Which, arrival: Arrival | None = None) -> None:
        heads: dict[str, dict[str, Any]] = {}
        body: bytes | memoryview = b""
        for tag, sent in held.go_on(which, arrival):
            name = self.names[sent.to]
            if heads and (name in heads or sent.body != body):
                self._send(heads, body)
                heads = {}
            head = dict(kind="data", meeting=held.number, attempt=held.attempt)
            head |= dict(tag=list(tag), t=sent.t, **sent.head)
            if self.rank is not None and which[0] == "push" and self.settings.mode == "model":
                held.since = held.since or time.monotonic()
                head["since"] = held.since
            heads[name], body = head, sent.body
            if which[0] != "pull":  # only answers are the same for many, others need not wait
                self._send(heads, body)
                heads = {}
            self.sent_bytes += len(sent.body)
            self.carried += len(sent.body) * (tag[1] != STATISTICS)
        if heads:
            self._send(heads, body)
        if which in held.results and self._all_brought(held, which):
            self._apply(held)

    def _send(self, heads: dict[str, dict[str, Any]], body: bytes | memoryview) -> None:
        """Send one body to one member or to several, each with its head."""
        if len(heads) > 1:
            self.wire.send_all(heads, body)
            return
        ((name, head),) = heads.items()
        self.wire.send(name, head, body)

    def _all_brought(self, held: _Held, which: Which) -> bool:
        """Whether with this the server has all of a meeting: running statistics, too, which belong
        to the model that it looks at, evaluates and keeps."""
        brings = "push", "mean"
        if not self.centre or self.settings.mode != "model" or which[0] not in brings:
            return False
        return not any(phase in brings for phase, _ in held.running)

    def _apply(self, held: _Held) -> None:
        """The server's model takes what was brought, and goes out."""
        task = self.task
        if self.finished:
            return
        if self.settings.rule is None:
            total = self._pushed(held)
        else:
            total = held.meeting.by_rule(held.shares, held.origin)
        if held.scale != 1.0:
            total = [part * held.scale for part in total]
        if held.whole:  # pieces of one vector, which would be held as long as any of them
            total = [part.clone() for part in total]
        if held.level != GLOBAL:
            model = list(torch._foreach_add(self._begun_with(held), total))
        else:
            good = not self.guards or self._good(held, total)
            if held.refused:
                return
            if good:
                self._change(held, total, held.results.get(("mean", STATISTICS)))
            self.brought += held.brings
            self.version += 1
            model = self.models[self.version] = [value.clone() for value in task.values()]
            self.statistics[self.version] = [value.clone() for value in task.statistics()]
        held.applied = True
        place = dict(meeting=held.number, attempt=held.attempt)
        uploads = [[rank, seconds] for rank, seconds in sorted(held.uploads.items())]
        self.tell("applied", **place, version=self.version, uploads=uploads)
        self._hand_out(held, model)
        self._count()

    def _pushed(self, held: _Held) -> list[Tensor]:
        """The sums of what was brought, by parameter."""
        total: list[Any] = [None] * len(self.place.shapes)
        for key, group in enumerate(self.place.groups):
            pieces = unfused(held.results["push", key], group, self.place.shapes)
            for i, piece in pieces.items():
                total[i] = piece
        return total

    def _change(self, held: _Held, total: Sequence[Tensor], statistics: Tensor | None) -> None:
        """Let the server's model be what the meeting makes of it, with these running statistics."""
        if held.whole:
            self.task.adopt(total)
        elif self.changes:
            self.task.adopt(torch._foreach_add(self.task.values(), total))
        else:
            self.task.step(total)
        if statistics is not None:
            self._take_statistics(statistics)

    def _good(self, held: _Held, total: Sequence[Tensor]) -> bool:
        """Whether the server's model with this change is one to take; if not, who is to blame."""
        before, most = copy.deepcopy(self.task.state()), self.settings.worst
        most *= max(self.loss, self.guess)

        def loss(brought: Sequence[Tensor], statistics: Tensor | None) -> float:
            self._change(held, brought, statistics)
            found = self._loss()
            self.task.restore(copy.deepcopy(before))
            return found

        if (found := loss(total, held.results.get(("mean", STATISTICS)))) <= most:
            self.loss = found
            return True
        for node, share in zip(held.meeting.bringing, held.shares, strict=True):
            vector = held.meeting.brought(node)
            if self.settings.rule is None:  # it came weighed
                vector = vector / share
            own = held.meeting.statistics.get(node)
            if not loss(held.meeting.unfused(vector), own) <= most:
                held.refused = True
                what = "model" if held.whole else "change"
                why = f"its {what} alone makes a model that is too bad to take"
                self.tell("bad", member=self.names[node], why=why)
        if not held.refused:
            log.warning("a new model is too bad to take: its loss is %.3g, of %.3g", found, most)
        return False

    def _loss(self) -> float:
        try:
            found = self.task.evaluation()()
        except Diverged:
            return math.inf
        if not (named := [name for name in ("test_loss", "loss") if name in found]):
            raise ValueError("worst: own.evaluate has to give a loss, by this name")
        return found[named[0]][0]

    def _begun_with(self, held: _Held) -> list[Tensor]:
        """What those who meet inside began with, in their mean; as the trainer has it."""
        weights = held.weights or [1 / len(held.members)] * len(held.members)
        pairs = [(w, self.given[rank]) for rank, w in zip(held.members, weights, strict=True) if w]
        first = self.given[held.members[0]]
        if all(model is first for _, model in pairs):
            return first
        parts = zip(*(model for _, model in pairs), strict=True)
        shares = [weight for weight, _ in pairs]
        return [sum(w * own for w, own in zip(shares, part, strict=True)) for part in parts]

    def _hand_out(self, held: _Held, model: list[Tensor]) -> None:
        self.given.update(dict.fromkeys(held.members, model))
        for index, parameter in enumerate(model):
            which = "pull", index
            held.running[which] = held.meeting.hand_out(parameter, index)
            self._go_on(held, which)

    def _count(self) -> None:
        """Evaluate the server's model when it has come so far."""
        recipe, workers = self.settings.training, len(self.settings.workers)
        rounds = self.brought // workers
        # The run is over with the last round; meetings under way bring nothing any more.
        self.finished = recipe.rounds is not None and rounds >= recipe.rounds
        every = recipe.evaluate_every
        if rounds // every > self.evaluated // every or self.finished:
            self._evaluate(rounds)
            self._weigh(rounds)
            self.evaluated = rounds

    def _close(self, held: _Held) -> None:
        """Report a meeting whose generators have all ended."""
        if held.running or held.refused or held.number not in self.held:
            return
        del self.held[held.number]
        results = held.results
        mean = results.get(("mean", STATISTICS))
        if self.rank is None:
            return
        if self.settings.mode == "model":
            values = [results["pull", i] for i in range(len(self.place.shapes))]

            def act() -> None:
                self._adopt(values, held)
        else:
            total = self._pushed(held)

            def act() -> None:
                if not self.changes:
                    self.task.step(total)
                    return
                scaled = total if held.scale == 1.0 else [part * held.scale for part in total]
                self._adopt(torch._foreach_add(self.base, scaled), held)

        def settle() -> None:
            act()
            if mean is not None:
                self._take_statistics(mean)

        self.commit = held.number, settle, held.before
        self.tell("synced", meeting=held.number, attempt=held.attempt)
        if held.number < 0:
            self._take_effect()
        later, self.later = self.later, []
        for kind, fields in later:
            self._obey(kind, **fields)

    def _adopt(self, values: Sequence[Tensor], held: _Held) -> None:
        self.met = [value.clone() for value in values]
        if before := self.came_with.pop(held.number, None):
            since = torch._foreach_sub(self.task.values(), before)
            values = torch._foreach_add(values, since)
        self.task.adopt(values)
        if held.level == GLOBAL:
            self.base = self.met

    def _take_statistics(self, vector: Tensor) -> None:
        own = self.task.statistics()
        pieces = vector.split([value.numel() for value in own])
        for value, piece in zip(own, pieces, strict=True):
            value.copy_(piece.view(value.shape))
