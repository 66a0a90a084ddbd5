"""The controller: asks clients for rounds as the policy decides, and keeps the model."""

from __future__ import annotations

import dataclasses
import heapq
import json
import math
import queue
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import torch
from cyclonedds.idl import IdlStruct
from torch import Tensor

from slowlink.methods import synchronization
from slowlink.methods.aggregation import Aggregation
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
)
from slowlink.testbed.live.dds.channel import Channel, Delivery
from slowlink.testbed.live.dds.domain import connect
from slowlink.testbed.live.dds.federated import checkpoint, messages, training
from slowlink.testbed.live.dds.federated.board import Board
from slowlink.testbed.live.dds.federated.messages import (
    CONTROLLER,
    TOPIC,
    Announcement,
    Command,
    Hello,
    Update,
    Wanted,
)
from slowlink.testbed.live.dds.federated.settings import ControllerSettings
from slowlink.testbed.live.dds.federated.training import Contribution, Round, Sent
from slowlink.testbed.live.dds.segments import Refused
from slowlink.testbed.training.datasets import Dataset

TICK_S = 0.1
TRIES = 3
"""How often a client that is needed may send what is refused, in a round."""

UNTOLD = 8
"""Messages of a client that wait to be looked at, besides the packets of a round; it sends more to
no avail."""

TOLD = 50
"""Refusals of a round that are told one by one."""


def run(settings: ControllerSettings, data: Dataset | None = None) -> torch.Tensor:
    """Train; returns the final (n,) weights when all rounds are done.

    Goes on from ``settings.state`` if that exists.

    Raises
    ------
    ConnectionError
        Fewer than ``min_clients`` for ``wait_s``, by number and with what became of them; or see
        :func:`testbed.live.dds.domain.connect`.
    OSError
        State or log cannot be written.
    ValueError
        A state of another task or damaged.
    """
    data = data or settings.task.data.load()
    torch.set_num_threads(settings.task.torch_threads)
    with _Controller(settings, data) as controller:
        return controller.train()


class _Controller:
    """The controller decides on one thread; channels put what they hear into ``events`` as calls.

    It sends on a thread for each client, so that one that takes nothing delays nobody else.
    """

    def __init__(self, settings: ControllerSettings, data: Dataset) -> None:
        self.settings, self.task = settings, settings.task
        self.examiner, self.rule = training.Examiner(self.task, data), settings.rule()
        self.shares = training.shares(self.task, data.train_y)
        settings.state.parent.mkdir(parents=True, exist_ok=True)
        if settings.state.exists():
            self.done, self.weights = checkpoint.load(settings.state, self.task)
        else:
            self.done, self.weights = 0, training.initial(settings)
        self.policy = synchronization.load(
            "fedavg",
            min_clients=settings.min_clients,
            timeout_s=float("inf") if settings.timeout_s is None else settings.timeout_s,
            late=settings.late,
        )
        self.events: queue.Queue[Callable[[], object]] = queue.Queue()
        self.session = secrets.randbits(64)
        self.present: dict[int, int] = {}
        """The latest hello of each client that is here."""
        self.examined: tuple[float, float] | None = None
        """Accuracy and loss of the weights, where they are known, and those of a model to come."""
        self.next: tuple[float, float] | None = None
        self.barred: dict[int, int] = {}
        """Clients whose update was refused, and the last round in which they are therefore not
        asked, unless too few others are there."""
        self.tries: Counter[int] = Counter()
        """How often each client's update was refused in this round."""
        self.lost: dict[int, int] = {}
        """Clients without tries left, and their latest hello; they are out until the round ends."""
        self.asked: dict[int, Command] = {}
        self.since: dict[int, float] = {}
        """When each client was asked for what it has not brought yet."""
        self.unseen: Counter[int] = Counter()
        """Messages of each client that wait to be looked at."""
        self.brought: dict[int, Contribution] = {}
        self.timers: list[tuple[float, str]] = []
        self.refused: list[str] = []
        self.given: set[int] = set()
        """Clients that did not get what was posted last, and were sent it."""
        self.fate: dict[int, str] = {}
        """What became of clients that are not here."""
        self.begun = False
        self.start = self.round_start = self.enough = time.monotonic()
        self._mend_log()
        self._connect()

    def _connect(self) -> None:
        settings, task = self.settings, self.task
        keys = settings.identity(messages.CONTROLLER_NAME)
        participant = connect(settings.domain, settings.network)
        # Before any channel: who is heard on one is then known to read the board.
        self.board = Board(participant, messages.longest(task.values, 0))
        self.channels: dict[int, Channel] = {}
        self.senders: dict[int, ThreadPoolExecutor] = {}
        self.latest: dict[int, Future] = {}
        for client in range(task.clients):
            topic = TOPIC.format(client)
            most = task.make_codec(client).payload_bytes((task.values,))
            self.channels[client] = Channel(
                participant,
                topic,
                CONTROLLER,
                messages.access(settings.run, client, keys),
                partial(self._hand, client),
                lambda member, client=client: (
                    self._put(self._leave, client) if member == client + 1 else None
                ),
                lambda error: self._put(_raise, error),
                limit=messages.longest(task.values, *most),
            )
            self.senders[client] = ThreadPoolExecutor(1, f"sender {client}")
            self._announce(client)

    def _put(self, do: Callable, *arguments) -> None:
        self.events.put(partial(do, *arguments))

    def _hand(self, client: int, message: Delivery) -> None:
        """On the channel's thread: who says more than can be looked at fills no memory."""
        if self.unseen[client] >= self.task.packets + UNTOLD:
            raise Refused("flood", f"{self.unseen[client]} messages of client {client} wait")
        self.unseen[client] += 1
        self._put(self._take, client, message, time.monotonic())

    def __enter__(self) -> _Controller:
        return self

    def __exit__(self, kind, *_) -> None:
        # Who is here has to hear of the end, however slow its link is: each send to it gives up by
        # itself. Announcements to the others never do.
        told = self.present if kind is None else {}
        wait([self.latest[client] for client in told])
        self.board.close()
        for client, channel in self.channels.items():
            channel.close(self.settings.wait_s if client in told else 0.0)
            self.senders[client].shutdown(cancel_futures=True)

    # The course of things -----------------------------------------------------------------------

    def train(self) -> torch.Tensor:
        self._say(f"round {self.done} of {self.settings.rounds} is done")
        everyone = set(range(self.task.clients))
        until = time.monotonic() + self.settings.wait_s
        while self.present.keys() != everyone and time.monotonic() < until:
            self._hear(TICK_S)
        if self.done < self.settings.rounds:
            self._check_enough()
            self.begun, self.start = True, time.monotonic()
            self.round_start = self.start
            decisions = self.policy.begin([0] * self.task.clients)
            for missing in sorted(everyone - self.present.keys()):
                decisions += self.policy.on(Left(missing, 0.0))
            self._carry_out(decisions)
        while self.done < self.settings.rounds:
            self._hear(TICK_S)
            self._go_on()
        self._end()
        return self.weights

    def _end(self) -> None:
        """Tell all who are here, and who are about to say hello."""
        until = time.monotonic() + self.settings.lease_s
        told: dict[int, int] = {}
        while True:
            for client, hello in self.present.items() - told.items():
                self._send(client, Command(self.done, hello, 0, 0, 0.0, 0, zero=False, end=True))
                told[client] = hello
            here = {n for n, channel in self.channels.items() if n + 1 in channel.members()}
            if here <= self.present.keys() or time.monotonic() > until:
                return
            self._hear(TICK_S)

    def _go_on(self) -> None:
        """What time brings about: somebody is asked, a clock runs, or the run ends."""
        self._ring()
        for client, since in sorted(self.since.items()):
            if time.monotonic() - since > self.settings.late_s:
                late_s = self.settings.late_s
                self._leave(client, f"counts as gone: it was asked {late_s:g} s ago")
        # Of those who are barred, who is needed is asked again, a few times.
        while self.barred and self._few():
            self._readmit(min(self.barred, key=lambda client: (self.tries[client], client)))
        self._check_enough()

    def _few(self) -> bool:
        return len(self.present.keys() - self.barred.keys()) < self.settings.min_clients

    def _check_enough(self) -> None:
        missing = sorted(set(range(self.task.clients)) - self.present.keys())
        if len(self.present) >= self.settings.min_clients:
            self.enough = time.monotonic()
        elif time.monotonic() - self.enough > self.settings.wait_s:
            fates = [f"{n} ({self.fate[n]})" if n in self.fate else str(n) for n in missing]
            raise ConnectionError(
                f"{len(self.present)} clients for {self.settings.wait_s:g} s, needs "
                f"{self.settings.min_clients}; missing: {', '.join(fates)}"
            )

    def _now(self) -> float:
        return time.monotonic() - self.start

    # What is heard ------------------------------------------------------------------------------

    def _hear(self, timeout_s: float) -> None:
        try:
            do = self.events.get(timeout=timeout_s)
        except queue.Empty:
            return
        do()

    def _take(self, client: int, message: Delivery, arrived: float) -> None:
        """What a client said: the channel hands on nothing of which it did not prove to be the
        sender, so that whatever is wrong with it is the client's own."""
        self.unseen[client] -= 1
        try:
            head, frame = messages.unpack(message.label, message.payload)
            if not isinstance(head, Hello | Update | Wanted) or head.client != client:
                raise ValueError(f"{message.label} that is not of this client")
            if isinstance(head, Hello):
                if head.task != self.task.fingerprint:
                    self._announce(client)  # which tells it so
                    return self._refuse(client, "its task differs from the controller's")
                return self._greet(client, head)
            if isinstance(head, Wanted):
                return self._give(client, head)
            asked = self.asked.get(client)
            if asked is None or (head.round, head.hello) != (asked.round, self.present[client]):
                return self._refuse(client, f"update of round {head.round}, not asked for (now)")
            if asked.zero and self.done:
                raise ValueError("comes late with changes from zero, which count in round 1 only")
            self.brought[client].add(head, frame, asked, arrived)
        except ValueError as error:
            self._refuse(client, str(error))
            return self._bar(client)
        if self.brought[client].complete:
            del self.asked[client], self.since[client]
            self._tell(Finished(client, head.round, self._now()))

    def _greet(self, client: int, head: Hello) -> None:
        """Let the client join; one that has another session in mind first has to hear of this."""
        if head.session != self.session:
            return self._announce(client, head.hello)
        if client in self.lost:
            self.lost[client] = head.hello
            return None
        if client in self.present:
            self._drop(client)
        self._say(f"client {client} is here")
        self.present[client] = head.hello
        self.fate.pop(client, None)
        if head.has != checkpoint.digest(self.done, self.weights):
            self._send(client, *checkpoint.message(self.done, self.task, self.weights, head.hello))
        if self.begun and client not in self.barred:
            self._tell(Joined(client, self._now()))

    def _give(self, client: int, head: Wanted) -> None:
        """Send the model to a client that could not read it on the board, once."""
        if (head.round, head.hello) != (self.done, self.present.get(client)):
            return
        if client in self.given:
            raise ValueError("asks more than once for a model")
        self.given.add(client)
        self._send(client, *checkpoint.message(self.done, self.task, self.weights, head.hello))

    def _leave(self, client: int, why: str = "is gone") -> None:
        """Go on without ``client``, which should say hello if it is there after all."""
        if client in self.present:
            hello = self.present[client]
            self._drop(client, why)
            self._announce(client, hello)

    def _drop(self, client: int, why: str = "is gone") -> None:
        self._say(f"client {client} {why}")
        self.fate[client] = why
        del self.present[client]
        for kept in (self.asked, self.since, self.brought):
            kept.pop(client, None)
        if self.begun and client not in self.barred:  # of whom the policy knows already
            self._tell(Left(client, self._now()))

    def _refuse(self, client: int, why: str) -> None:
        if len(self.refused) < TOLD:
            self.refused.append(f"client {client}: {why}")
            self._say(f"refused, {self.refused[-1]}")
        elif len(self.refused) == TOLD:
            self.refused.append("and more")

    def _bar(self, client: int) -> None:
        """Let the round go on without ``client``, whose update was refused; where too few are left
        it is asked again, a few times."""
        if client not in self.asked:
            return
        self.tries[client] += 1
        if self.tries[client] == TRIES:
            self.lost[client] = self.present[client]
            return self._drop(client, f"counts as gone for this round: refused {TRIES} times")
        del self.asked[client], self.since[client], self.brought[client]
        self._quarantine(client)

    def _quarantine(self, client: int) -> None:
        self.barred[client] = self.done + 1 + self.settings.quarantine
        self._tell(Left(client, self._now()))

    def _readmit(self, client: int) -> None:
        del self.barred[client]
        if client in self.present:
            self._tell(Joined(client, self._now()))

    def _ring(self) -> None:
        while self.timers and self.timers[0][0] <= self._now():
            t, name = heapq.heappop(self.timers)
            self._tell(Timer(name, max(t, self._now())))

    # What the policy wants ------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        if self.done < self.settings.rounds:
            self._carry_out(self.policy.on(event))

    def _carry_out(self, decisions: list[Decision]) -> None:
        continued = [d.worker for d in decisions if isinstance(d, Continue)]
        asked = [client for client in continued if client in self.present]
        for decision in decisions:
            if isinstance(decision, SetTimer):
                heapq.heappush(self.timers, (decision.t, decision.name))
        for client in asked:
            command = training.command(self.settings, self.done + 1, self.present[client])
            self.asked[client], self.since[client] = command, time.monotonic()
            own, largest = self.shares[client], self.settings.largest
            self.brought[client] = Contribution(self.task, client, own, largest)
            self._send(client, command)
        for decision in decisions:
            if isinstance(decision, Sync):
                self._synchronize(decision)

    def _synchronize(self, sync: Sync) -> None:
        weights = sync.weights or (1.0,) * len(sync.members)
        brought = {
            client: self.brought[client]
            for client, weight in zip(sync.members, weights, strict=True)
            if weight > 0
        }
        made = self._made_of(brought)
        if made is not self.weights:
            self.weights, self.examined = made, self.next
        self.next = None
        self.done += 1
        head, body = checkpoint.message(self.done, self.task, self.weights)
        # The model is saved first: no client may hold one that a restarted controller lacks.
        checkpoint.save(self.settings.state, messages.pack(head, body), self.settings.kept)
        self.given.clear()
        if self.done < self.settings.rounds:
            posted = self.board.post(self.done, messages.pack(head, body))
            for client, hello in sorted(self.present.items()):
                self._send(client, dataclasses.replace(posted, hello=hello))
        else:  # to each on its own topic, on which the end follows it
            for client, hello in sorted(self.present.items()):
                self._send(client, dataclasses.replace(head, hello=hello), body)
        seconds = time.monotonic() - self.round_start
        self._log({client: its.sent for client, its in brought.items()}, seconds)
        for client in sync.members:
            self.brought.pop(client, None)
        self.tries.clear()
        for client, hello in self.lost.items():
            self._announce(client, hello)
        self.lost.clear()
        if self.done == self.settings.rounds:
            return
        self.round_start = time.monotonic()
        self._tell(Synced(sync.members, self._now()))
        for client in [one for one, last in sorted(self.barred.items()) if last <= self.done]:
            self._readmit(client)

    def _made_of(self, brought: dict[int, Contribution]) -> Tensor:
        """The new model, of all that was brought but what by itself makes one that is too bad, and
        which leaves ``brought``; the old one if there is no other."""
        made = self._aggregate(brought, self.rule)
        if self._good(made):
            return made
        alone = {one: self._aggregate({one: its}, training.MEAN) for one, its in brought.items()}
        for client in [one for one, its in alone.items() if not self._good(its)]:
            self._refuse(client, "its update alone makes a model that is too bad to take")
            del brought[client]
            self._quarantine(client)
        if brought and self._good(rest := self._aggregate(brought, self.rule)):
            return rest
        brought.clear()
        self.refused.append("the new model: it is too bad to take, and the old one stays")
        self._say(self.refused[-1])
        return self.weights

    def _aggregate(self, brought: dict[int, Contribution], rule: Aggregation) -> Tensor:
        zero = training.command(self.settings, self.done + 1).zero
        return training.aggregate(self.task, self.weights, brought, zero, rule)

    def _good(self, made: Tensor) -> bool:
        """Whether a new model is one to take, see ``worst`` of the settings."""
        if not bool(torch.isfinite(made).all()):
            return False
        if self.settings.worst is None:
            return True
        if self.examined is None:
            self.examined = self.examiner.examine(self.weights)
        most = self.settings.worst * max(self.examined[1], self.examiner.clueless)
        found = self.examiner.examine(made)
        if not found[1] <= most:
            return False
        self.next = found
        return True

    def _announce(self, client: int, hello: int = 0) -> None:
        """Waits, where nobody else has to, until a client that is not here takes it."""
        announcement = Announcement(self.session, hello, self.task.fingerprint)
        self._send(client, announcement, timeout_s=None if client in self.present else math.inf)

    def _send(
        self, client: int, head: IdlStruct, body: bytes = b"", timeout_s: float | None = None
    ) -> None:
        """Send in the background; who takes nothing for ``wait_s`` unless told counts as gone."""
        limit_s = self.settings.wait_s if timeout_s is None else timeout_s

        def send() -> None:
            message, label = messages.pack(head, body), messages.label(head)
            try:
                self.channels[client].send(message, label, timeout_s=limit_s)
            except TimeoutError as error:
                self._put(self._leave, client, f"counts as gone: {error}")
            except Exception as error:
                self._put(_raise, error)

        self.latest[client] = self.senders[client].submit(send)

    def _log(self, sent: dict[int, Sent], seconds: float) -> None:
        self.examined = self.examined or self.examiner.examine(self.weights)
        accuracy = self.examined[0]
        refused, self.refused = tuple(self.refused), []
        done = Round(self.done, accuracy, sent, 4 * self.task.values, seconds, refused)
        self._say(f"round {self.done}: {len(sent)} clients, {seconds:.2f} s, {accuracy:.2f} %")
        if self.settings.log is not None:
            try:
                with self.settings.log.open("a") as file:
                    file.write(json.dumps(dataclasses.asdict(done)) + "\n")
            except OSError as error:
                why = f"cannot be written: {error.strerror}; the state of round {self.done} is kept"
                raise OSError(error.errno, why, str(self.settings.log)) from error

    def _mend_log(self) -> None:
        """Make good what a killed controller left: drop a line that it did not finish, and log the
        round that it did not; of that, who sent what and how long it took is not known."""
        if self.settings.log is None or not self.done:
            return
        with self.settings.log.open("ab+") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
        if self.done not in [one.number for one in read_log(self.settings.log)]:
            self._log({}, math.nan)

    def _say(self, what: str) -> None:
        print(f"controller: {what}", file=sys.stderr, flush=True)


def _raise(error: Exception) -> None:
    raise error


def read_log(path: Path) -> list[Round]:
    """The rounds of a log, in order; of a round that went twice, the last."""
    rounds = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        sent = {int(client): Sent(**its) for client, its in entry.pop("sent").items()}
        refused = tuple(entry.pop("refused"))
        rounds[entry["number"]] = Round(**entry, sent=sent, refused=refused)
    return [rounds[number] for number in sorted(rounds)]
