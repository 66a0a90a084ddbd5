"""Workers, servers and the master worker: state machines that know no socket.

A round: workers push gradients, a site's server adds them and pushes the sum, the global server
adds those and answers, and the answer goes back the same way (GeoMX §3). What is added where and
through which codec is :mod:`testbed.live.hips.party`; here is who tells whom when.

An ``epoch`` (see :mod:`testbed.live.hips.messages`) sends every node to the beginning of a round:
by a snapshot of its own and of the same lineage, or else with configuration and model of its
parent, which it asks with a ``config`` without body. In mixed mode the global server never goes
back: a site that repeats a round whose push is already in the model gets the same answer again. In
full-synchronous mode the last model is evaluated when ``done`` has come from everybody below who
has it.

Differs from the trainer: BatchNorm's running statistics are those of the first worker alone.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from slowlink.methods import compression
from slowlink.methods.compression import Encoding, Payload
from slowlink.testbed.live.hips.messages import (
    GLOBAL_SERVER,
    MASTER,
    Message,
    Sends,
    site_of,
    succeeding,
)
from slowlink.testbed.live.hips.party import (
    DENSE,
    Combined,
    Listener,
    Party,
    advanced,
    pack,
    unpack,
)
from slowlink.testbed.live.hips.party import make as make_party
from slowlink.testbed.live.hips.settings import ClusterSettings
from slowlink.testbed.live.snapshots import Snapshots
from slowlink.testbed.results import Evidence, Row
from slowlink.testbed.training.learner import Diverged, Replica
from slowlink.testbed.training.recipe import Recipe
from slowlink.testbed.training.trainer import LARGEST_LOSS

Sending = Iterator[tuple[str, Message]]
Build = Callable[[Recipe], Party]

MODEL = ("parameters", "velocity", "buffers")
"""The parts of a whole model, in the messages that carry one (body: ``model``)."""

UNLIKE = "running statistics (BatchNorm) are those of the first worker alone, not as in training"
"""A note on the results of models that have BatchNorm."""

log = logging.getLogger(__name__)


class Node:
    """What all roles share: epochs, snapshots of the last two rounds, and whole models.

    Parameters
    ----------
    name: of the node.
    parent: whom it pushes to; who gives it configuration and model.
    build: makes the party; from the recipe, which is part of the configuration.
    snapshots: kept on disk, too.
    """

    def __init__(
        self, name: str, parent: str, build: Build, snapshots: Snapshots | None = None
    ) -> None:
        self.name, self.parent, self.build, self.snapshots = name, parent, build, snapshots
        self.finished = False
        self.epoch = self.round = 0
        self.lineage = ""
        """The lineage of the state at the beginning of the round."""
        self.members: dict[str, list[str]] = {}
        self.kept = snapshots.load() if snapshots else {}
        self.party: Party | None = None
        self.replica: Replica | None = None
        """The model of the workers below (of a worker: its own) at the beginning of the round."""
        self._begun = False
        self._early: list[Message] = []
        self._incoming: dict[str, Any] = {}

    # What carries the messages calls these.

    def on(self, message: Message) -> Sending:
        """Take a message in; iterate to the end: what is ready leaves before the rest is made."""
        return self._on(message)

    def tick(self, now: float) -> Sends:
        return []

    @property
    def rounds(self) -> dict[int, str]:
        return {number: state["lineage"] for number, state in sorted(self.kept.items())}

    def snapshot(self) -> dict[str, Any]:
        recipe = self.party.recipe.model_dump_json()
        codecs = self.party.codec.states()
        own = dict(round=self.round, lineage=self.lineage, recipe=recipe, codecs=codecs)
        return own | dict(replica=pack(self.replica)) | self._own_state()

    def restore(self, state: dict[str, Any]) -> None:
        self.party = self.party or self.build(Recipe.model_validate_json(state["recipe"]))
        self.party.codec.load(state["codecs"])
        self.round, self.lineage = state["round"], state["lineage"]
        self.replica = unpack(state["replica"])
        self._restore_own(state)

    # What roles add.

    def _own_state(self) -> dict[str, Any]:
        return {}

    def _restore_own(self, state: dict[str, Any]) -> None:
        pass

    def _takes_part(self) -> bool:
        return True

    def _begin(self) -> Sending:
        """Begin the present round."""
        raise NotImplementedError

    def _pushed(self, message: Message) -> Sending:
        raise NotImplementedError

    def _pulled(self, message: Message) -> Sending:
        raise NotImplementedError

    def _done(self, message: Message) -> Sending:
        """Note that the sender, and all nodes below it, have the last model."""
        raise NotImplementedError

    # Epochs --------------------------------------------------------------------------------------

    @property
    def _recipe(self) -> Recipe:
        return self.party.recipe

    @property
    def _mixed(self) -> bool:
        return self._recipe.synchronization.name == "mixed"

    def _workers(self, site: str | None = None) -> list[str]:
        """Members that compute, of one site or of all, in the order in which they are added."""
        present = {name for names in self.members.values() for name in names}
        ordered = [name for name in self.party.worker_names if name in present]
        return [name for name in ordered if site in (None, site_of(name))]

    def _on(self, message: Message) -> Sending:
        if message.kind == "epoch":
            if message.epoch > self.epoch:
                yield from self._enter(message)
        elif message.epoch >= self.epoch:
            own_model = "model" in message.body and message.sender == self.parent
            if message.epoch > self.epoch or not (self._begun or own_model):
                self._early.append(message)
            else:
                yield from self._take(message)

    def _enter(self, message: Message) -> Sending:
        self.epoch, self.members = message.epoch, message.body["members"]
        self.round, self.lineage = message.body["round"], message.body["lineage"]
        self._incoming, self._begun, self.finished = {}, False, False
        if not self._takes_part():
            return
        if self.rounds.get(self.round) == self.lineage:
            self.restore(self.kept[self.round])
            yield from self._start()
        else:
            yield self.parent, Message("config", epoch=self.epoch, round=self.round)

    def _start(self) -> Sending:
        self._begun = True
        yield from self._begin()
        early, self._early = self._early, []
        for message in early:
            yield from self._on(message)

    def _advance(self) -> None:
        """End the round and go on to the next."""
        self.round += 1
        self.lineage = succeeding(self.lineage, self.epoch, self.members)

    def _keep(self) -> None:
        """Remember the beginning of this round, and of the one before."""
        state = self.snapshot()
        self.kept = {n: s for n, s in self.kept.items() if n == self.round - 1}
        self.kept[self.round] = state
        if self.snapshots:
            self.snapshots.save(self.round, state)

    def _take(self, message: Message) -> Sending:
        if "model" in message.body:
            yield from self._collect(message)
        elif message.kind == "config":
            yield from self._give(message)
        elif message.kind == "done":
            yield from self._done(message)
        elif message.round != self.round and not self._mixed:
            raise ValueError(
                f"{self.name}: {message.kind} of round {message.round} from {message.sender} in "
                f"round {self.round}"
            )
        elif message.kind == "push":
            yield from self._pushed(message)
        else:
            yield from self._pulled(message)

    # Whole models --------------------------------------------------------------------------------

    def _give(self, message: Message) -> Sending:
        recipe = self._recipe.model_dump_json()
        yield from self._transfer(message.sender, self.replica, recipe=recipe)

    def _transfer(self, to: str, replica: Replica, **body: Any) -> Sending:
        """A whole model, after a ``config`` with ``body``."""
        parts = {name: getattr(replica, name) or [] for name in MODEL}
        head = dict(model="head", version=replica.version)
        head["parts"] = {name: len(tensors) for name, tensors in parts.items()}
        yield to, Message("config", epoch=self.epoch, round=self.round, body=head | body)
        for name, tensors in parts.items():
            for number, tensor in enumerate(tensors):
                payload = DENSE.compress(tensor.float(), number)
                yield self._data("pull", to, number, payload, model=name)

    def _collect(self, message: Message) -> Sending:
        if message.body["model"] == "head":
            self._incoming = dict(message.body, **{name: {} for name in MODEL})
            return
        parts = self._incoming[message.body["model"]]
        parts[message.key] = DENSE.decompress(message.payload)
        if any(len(self._incoming[name]) < n for name, n in self._incoming["parts"].items()):
            return
        head, self._incoming = self._incoming, {}
        if self.party is None:
            self.party = self.build(Recipe.model_validate_json(head["recipe"]))
        yield from self._received(message, self._assembled(head), head)

    def _assembled(self, head: dict[str, Any]) -> Replica:
        device = self.party.device
        parameters, velocity, buffers = (
            [tensor.to(device) for _, tensor in sorted(head[name].items())] for name in MODEL
        )
        types = [buffer.dtype for buffer in self.party.initial.buffers]
        buffers = [buffer.to(dtype) for buffer, dtype in zip(buffers, types, strict=True)]
        return Replica(parameters, buffers, velocity or None, head["version"])

    def _received(self, message: Message, replica: Replica, head: dict[str, Any]) -> Sending:
        """Begin with a model that another node has sent."""
        self.party.codec.load({})
        self.replica = replica
        self._restore_own({})
        yield from self._start()

    # Messages ------------------------------------------------------------------------------------

    def _data(self, kind: str, to: str, key: int, payload: Payload, step: int = 0, **body: Any):
        place = dict(epoch=self.epoch, round=self.round, key=key, step=step)
        return to, Message(kind, **place, payload=payload, body=body)


class _Pusher(Node):
    """A node below a server: gets parameters, or the aggregate by which it updates its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open: dict[int, Encoding] = {}
        self._answers: dict[tuple[int, int], dict[int, Payload]] = {}
        self._arrived: dict[int, Tensor] = {}

    def _begin(self) -> Sending:
        self._open, self._answers, self._arrived = {}, {}, {}
        self._keep()
        self.finished = not self._mixed and self.round >= self._recipe.rounds
        yield from ()

    def _received(self, message: Message, replica: Replica, head: dict[str, Any]) -> Sending:
        part = self._recipe.levels[-1].up
        party_of_outermost = self.parent == self._top()
        one_shot = compression.load(part.name, **part.parameters).one_shot
        if message.round > 0 and party_of_outermost and not one_shot:
            raise ValueError(
                f"{self.name} has no state of round {message.round}, and {part.name} cannot go on "
                "without: give the run a state folder"
            )
        yield from super()._received(message, replica, head)

    def _top(self) -> str:
        return self.party.topology.node_names[self.party.topology.servers[0]]

    def _ask(self, key: int, tensor: Tensor) -> Sending:
        """Push as a party of the outermost level."""
        encoding = self.party.up(self.party.outermost, self.name).encode(tensor, key)
        self._open[key] = encoding
        payload, how = next(encoding)
        yield self._data("push", self.parent, key, payload, how=how)

    def _told(self, message: Message):
        """Go on with :meth:`_ask`; returns the aggregate once it is complete."""
        parts = self._answers.setdefault((message.key, message.step), {})
        parts[message.body.get("part", 0)] = message.payload
        if len(parts) < message.body.get("parts", 1):
            return None
        gathered = [parts[i] for i in range(len(parts))]
        combined: Combined = gathered if "parts" in message.body else gathered[0]
        asked, total = advanced(self._open[message.key], combined)
        if asked:
            payload, how = asked
            yield self._data("push", self.parent, message.key, payload, message.step + 1, how=how)
        return total

    def _next(self, key: int, tensor: Tensor) -> Sending:
        """Note a tensor that goes into the model; with the last one the round is over."""
        self._arrived[key] = tensor
        old, at_server = self.replica, self.party.at_server
        if len(self._arrived) < len(self.party.parameters if at_server else self.party.groups):
            return
        if at_server:
            parameters = [self._arrived[i] for i in range(len(self._arrived))]
            self.replica = Replica(parameters, old.buffers, None, old.version + 1)
        else:
            self.replica = self.party.update(old, self.party.unfused(self._arrived))
        self._advance()
        yield from self._begin()


class Worker(_Pusher):
    """Computes gradients on its share of the data."""

    def _takes_part(self) -> bool:
        return self.name in self.members.get(site_of(self.name), [])

    def _restore_own(self, state: dict[str, Any]) -> None:
        self._rank = self.party.worker_names.index(self.name)
        self.party.rewind(self._rank, self.round)

    def _begin(self) -> Sending:
        yield from super()._begin()
        party = self.party
        if self.finished:
            yield self.parent, Message("done", epoch=self.epoch)
            return
        party.replicas[self._rank] = self.replica
        gradient = party.gradient(self._rank)
        workers = self._workers(site_of(self.name) if self._mixed else None)
        if self.name == workers[0]:
            for number, buffer in enumerate(self.replica.buffers):
                payload = DENSE.compress(buffer.float(), number)
                yield self._data("push", self.parent, number, payload, buffers=True)
        for key, tensor in enumerate(party.fused(gradient, 1 / len(workers))):
            if party.outermost == 0:
                yield from self._ask(key, tensor)
            else:
                payload = party.up(0, self.name).compress(tensor, key)
                yield self._data("push", self.parent, key, payload)

    def _pulled(self, message: Message) -> Sending:
        key, payload, party = message.key, message.payload, self.party
        if party.at_server:
            yield from self._next(key, party.lifted(0, payload))
        elif party.outermost:
            yield from self._next(key, party.heard(payload, key))
        else:
            total = yield from self._told(message)
            if total is not None:
                yield from self._next(key, total)


class SiteServer(_Pusher):
    """Adds what the workers of its site push, and passes on what comes back."""

    def _takes_part(self) -> bool:
        return any("/worker" in name for name in self.members.get(site_of(self.name), []))

    def _begin(self) -> Sending:
        self._inbox: dict[int, dict[str, Payload]] = defaultdict(dict)
        self._over: set[str] = set()
        yield from super()._begin()

    def _pushed(self, message: Message) -> Sending:
        key = message.key
        if message.body.get("buffers"):
            yield self._data("push", self.parent, key, message.payload, buffers=True)
            return
        workers = self._workers(site_of(self.name))
        box = self._inbox[key]
        box[message.sender] = message.payload
        if box.keys() == set(workers):
            payloads = [box[worker] for worker in workers]
            yield from self._ask(key, self.party.summed(self.name, payloads, key))

    def _pulled(self, message: Message) -> Sending:
        key, party = message.key, self.party
        if party.at_server:
            payload = party.lowered(0, party.lifted(1, message.payload), key)
            read = party.lifted(0, payload)
        else:
            total = yield from self._told(message)
            if total is None:
                return
            payload, read = party.answered(total, key)
        for worker in self._workers(site_of(self.name)):
            yield self._data("pull", worker, key, payload)
        yield from self._next(key, read)

    def _done(self, message: Message) -> Sending:
        self._over.add(message.sender)
        if self._over == set(self._workers(site_of(self.name))):
            yield self.parent, Message("done", epoch=self.epoch)


class GlobalServer(Node):
    """Adds what sites push (with a flat exchange: what workers push) and answers; keeps the model.

    ``clock`` gives seconds; the round times of the results are by it.
    """

    def __init__(
        self,
        name: str,
        parent: str,
        build: Build,
        snapshots: Snapshots | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, parent, build, snapshots)
        self.clock = clock
        self.model: Replica | None = None
        self._since: float | None = None

    def _own_state(self) -> dict[str, Any]:
        return dict(
            model=pack(self.model),
            answered={child: pack(replica) for child, replica in self.answered.items()},
            bytes=self.bytes,
            elapsed=self.clock() - self._since,
            first_s=self.first_s,
            applied=dict(self.applied),
            iterations=self.iterations,
            report=self.report and self.report | {"model": pack(self.report["model"])},
        )

    def _restore_own(self, state: dict[str, Any]) -> None:
        self.model = unpack(state["model"]) if state else self.replica
        self.answered = {name: unpack(its) for name, its in state.get("answered", {}).items()}
        """In mixed mode, by site's server, the model that it was given last."""
        self.bytes = state.get("bytes", 0)
        self.applied = dict(state.get("applied", {}))
        """In mixed mode, by site's server, the rounds that went into the model."""
        self.iterations = state.get("iterations", 0)
        report = state.get("report")
        self.report = report and report | {"model": unpack(report["model"])}
        """The model for the master to evaluate; a new epoch may cut it off, so it is sent again."""
        self.first_s = state.get("first_s")
        """When the first round was over; before it everybody gets the model."""
        if self._since is None:
            self._since = self.clock() - state.get("elapsed", 0.0)

    def _enter(self, message: Message) -> Sending:
        self._numbers = message.body["rounds"]
        yield from super()._enter(message)

    def _children(self) -> list[str]:
        workers = self._workers()
        if self.party.outermost == 0:
            return workers
        return list(dict.fromkeys(f"{site_of(worker)}/server" for worker in workers))

    def _give(self, message: Message) -> Sending:
        replica, recipe = self.replica, self._recipe.model_dump_json()
        if message.sender in self.answered:
            replica = yield from self._lower([], self.answered[message.sender])
        yield from self._transfer(message.sender, replica, recipe=recipe)

    def _start(self) -> Sending:
        if self.report and (self._mixed or self.report["number"] < self._recipe.rounds):
            yield from self._tell_master()
        yield from super()._start()

    # Rounds --------------------------------------------------------------------------------------

    def _begin(self) -> Sending:
        self._inbox: dict[Any, dict[Any, Message]] = defaultdict(dict)
        self._listeners: dict[int, Listener] = {}
        self._totals: dict[int, Tensor] = {}
        self._buffers: dict[int, Tensor] = {}
        self._over: set[str] = set()
        number = self.round
        if self._mixed:
            number = self.iterations // len(self.party.nodes)
            for child in self._children():
                # A site may repeat its last round, or begin anew.
                if self.applied.get(child, 0) != self._numbers[site_of(child)] + 1:
                    self.applied[child] = self._numbers[site_of(child)]
        yield from self._close(number)

    def _close(self, number: int) -> Sending:
        """After so many rounds: remember all, and let the master evaluate where it is time."""
        now = self.clock() - self._since
        if number > 0 and self.first_s is None:
            self.first_s = now
        told = -1 if self.report is None else self.report["number"]
        every, ended = self._recipe.evaluate_every, number >= self._recipe.rounds
        due = number // every > told // every or (ended and number > told)
        if due:
            outer = len(self.party.exchange.groups(self.party.topology)[-1][0])
            point = dict(time_s=now, first_s=self.first_s, bytes=self.bytes / outer)
            self.report = dict(number=number, model=self.model, **point)
        self._keep()
        if due and (self._mixed or not ended):
            yield from self._tell_master()
        self.finished = ended

    def _done(self, message: Message) -> Sending:
        self._over.add(message.sender)
        if self._over == set(self._children()):
            yield from self._tell_master()

    def _tell_master(self) -> Sending:
        point = {name: value for name, value in self.report.items() if name != "model"}
        yield from self._transfer(MASTER, self.report["model"], **point)

    def _pushed(self, message: Message) -> Sending:
        if message.body.get("buffers"):
            types = [buffer.dtype for buffer in self.model.buffers]
            tensor = DENSE.decompress(message.payload, self.party.device)
            self._buffers[message.key] = tensor.to(types[message.key])
        elif self._mixed:
            yield from self._pushed_alone(message)
        else:
            yield from self._pushed_together(message)

    def _pushed_together(self, message: Message) -> Sending:
        key, children = message.key, self._children()
        box = self._inbox[key, message.step]
        box[message.sender] = message
        if box.keys() != set(children):
            return
        combined = self._combined([box[child] for child in children])
        if not self.party.at_server:
            for child in children:
                yield from self._answer(child, key, message.step, combined)
        total = self._heard(key, combined)
        if total is None:
            return
        self._totals[key] = total
        if len(self._totals) == len(self.party.groups):
            self._update(self._totals)
            if self.party.at_server:
                self.replica = yield from self._lower(children, self.model)
            else:
                self.replica = self.model
            self._advance()
            yield from self._begin()

    def _pushed_alone(self, message: Message) -> Sending:
        """Mixed mode: a site's push, as soon as it is complete, is a round by itself."""
        site = message.sender
        box = self._inbox[site]
        box[message.key] = message
        if len(box) < len(self.party.groups) or self.finished:
            return
        del self._inbox[site]
        if message.round == self.applied.get(site, 0):
            workers = self._workers(site_of(site))
            share = len(workers) / len(self.party.nodes)
            totals = {key: self._heard(key, self._combined([one])) for key, one in box.items()}
            if self._recipe.averaged_over == "all":
                totals = {key: total * share for key, total in totals.items()}
            self._update(totals)
            self.iterations += len(workers)
            self.applied[site], self.answered[site] = message.round + 1, self.model
        self.replica = yield from self._lower([site], self.answered[site])
        self.round = self.model.version
        yield from self._close(self.iterations // len(self.party.nodes))

    def _combined(self, pushes: Sequence[Message]) -> Combined:
        """The aggregate of the parties' payloads; counts the bytes of the pushes."""
        ways = {push.body["how"] for push in pushes}
        if len(ways) > 1 or not ways <= {"sum", "merge", "gather"}:
            raise ValueError(f"{self.name}: payloads that combine by {sorted(ways)}")
        self.bytes += sum(push.payload.nbytes for push in pushes)
        centre = self.party.up(self.party.outermost, self.name)
        payloads = [push.payload for push in pushes]
        return compression.combine_payloads(centre, payloads, ways.pop(), pushes[0].key)

    def _answer(self, child: str, key: int, step: int, combined: Combined) -> Sending:
        parts = combined if isinstance(combined, list) else [combined]
        for number, payload in enumerate(parts):
            body = dict(part=number, parts=len(parts)) if isinstance(combined, list) else {}
            self.bytes += payload.nbytes
            yield self._data("pull", child, key, payload, step, **body)

    def _heard(self, key: int, combined: Combined) -> Tensor | None:
        """The aggregate as workers read it, once it is complete."""
        listener = self._listeners.setdefault(key, self.party.listen(key))
        total = listener.hear(combined)
        if total is not None and self.party.outermost:
            _, total = self.party.answered(total, key)
        return total

    def _update(self, totals: dict[int, Tensor]) -> None:
        self.model = self.party.update(self.model, self.party.unfused(totals))
        for number, buffer in self._buffers.items():
            self.model.buffers[number] = buffer

    def _lower(self, children: Sequence[str], model: Replica):
        """Send the parameters; returns what workers below will hold."""
        held, party = [], self.party
        for key, parameter in enumerate(model.parameters):
            payload = party.lowered(party.outermost, parameter, key)
            self.bytes += payload.nbytes * len(children)
            for child in children:
                yield self._data("pull", child, key, payload)
            read = party.lifted(party.outermost, payload)
            held.append(party.lifted(0, party.lowered(0, read, key)) if party.outermost else read)
        return Replica(held, [buffer.clone() for buffer in model.buffers], None, model.version)


class Master(Node):
    """The master worker: hands initial model and configuration to the global server, evaluates."""

    def __init__(
        self,
        name: str,
        recipe: Recipe,
        build: Build,
        snapshots: Snapshots | None = None,
        evidence: Evidence = "measured",
    ) -> None:
        super().__init__(name, GLOBAL_SERVER, build, snapshots)
        self.evidence = evidence
        self.party = build(recipe)
        self.replica = self.model = self.party.initial
        """The model with which the run begins, and the one that was evaluated last."""
        self.results: dict[int, dict[str, float | None]] = {}
        """By round: ``accuracy`` (%), ``loss``, ``time_s``, ``first_s`` and ``bytes``."""
        self.notes: list[str] = [UNLIKE] if self.replica.buffers else []
        """The rows' ``reason``: how the run differs from one without losses."""
        if self.kept:
            self.restore(self.kept.pop(0))
        elif self.notes:
            log.warning("%s", UNLIKE)
        self._begun = True

    def snapshot(self) -> dict[str, Any]:
        results = {number: dict(point) for number, point in self.results.items()}
        return {"results": results, "notes": list(self.notes)}

    def restore(self, state: dict[str, Any]) -> None:
        self.results = {number: dict(point) for number, point in state["results"].items()}
        self.notes = list(state["notes"])

    def _enter(self, message: Message) -> Sending:
        self.epoch, self.round, self._incoming = message.epoch, message.body["round"], {}
        self.finished = False
        if not self._mixed:
            self.results = {n: point for n, point in self.results.items() if n <= self.round}
        for node in message.body["anew"]:
            note = f"{node} began anew at round {message.body['rounds'][site_of(node)]}"
            log.warning("%s", note)
            if note not in self.notes:
                self.notes.append(note)
        if self.snapshots:
            self.snapshots.save(0, self.snapshot())
        yield from self._start()

    def _begin(self) -> Sending:
        yield from ()

    def _give(self, message: Message) -> Sending:
        if message.round > 0:
            raise ValueError(f"{message.sender} has no model of round {message.round}; begin anew")
        yield from super()._give(message)

    def _received(self, message: Message, replica: Replica, head: dict[str, Any]) -> Sending:
        accuracy, loss = self.party.evaluate(replica)
        if not math.isfinite(loss):
            raise Diverged(f"test loss is {loss}; lower lr")
        point = {name: head[name] for name in ("time_s", "first_s", "bytes")}
        self.results[head["number"]] = dict(accuracy=accuracy, loss=loss, **point)
        self.model = replica
        if self.snapshots:
            self.snapshots.save(0, self.snapshot())
        if head["number"] >= self._recipe.rounds:
            self.finished = True
        yield from ()

    @property
    def rows(self) -> list[Row]:
        """Result rows, as the trainer's; times are seconds of the real run since its first epoch,
        ``mean_round_time`` is over all rounds but the first, which waits for the model."""
        recipe = self._recipe
        case, link = next(iter(recipe.networks.items()))
        fields = recipe.told | dict(
            case=case,
            bandwidth=link.wan,
            evidence=self.evidence,
            reason="; ".join(self.notes),
        )
        rows = []
        for number, point in sorted(self.results.items()):
            values = [("test_accuracy", point["accuracy"], "%"), ("test_loss", point["loss"], "")]
            if self.party.text:
                perplexity = math.exp(min(point["loss"], LARGEST_LOSS))
                values.append(("test_perplexity", perplexity, ""))
            values.append(("bytes_sent", point["bytes"], "B"))
            place = dict(round=number, time_s=point["time_s"])
            rows += [Row(metric=m, value=v, unit=u, **place, **fields) for m, v, u in values]
        last = max(self.results, default=0)
        if last > 1:
            point = self.results[last]
            mean = (point["time_s"] - point["first_s"]) / (last - 1)
            rows.append(Row(metric="mean_round_time", value=mean, unit="s", **fields))
        return rows


def make(cluster: ClusterSettings, name: str) -> Node:
    """The role of a worker, server or master of ``cluster``; with its data already loaded."""
    recipe, snapshots = cluster.training, None
    if cluster.state:
        run = hashlib.blake2b(recipe.model_dump_json().encode(), digest_size=8).hexdigest()
        snapshots = Snapshots(cluster.state, run, name)
    own = make_party(recipe)

    def build(asked: Recipe) -> Party:
        return own if asked == recipe else make_party(asked)

    if name == MASTER:
        evidence = "emulated" if cluster.network else "measured"
        return Master(name, recipe, build, snapshots, evidence)
    if name == GLOBAL_SERVER:
        return GlobalServer(name, MASTER, build, snapshots)
    if name.endswith("/server"):
        return SiteServer(name, GLOBAL_SERVER, build, snapshots)
    server = f"{site_of(name)}/server"
    return Worker(name, server if server in cluster.nodes else GLOBAL_SERVER, build, snapshots)
