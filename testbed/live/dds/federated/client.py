"""A client: trains when it is asked to, and sends what it learned."""

from __future__ import annotations

import queue
import sys
import time

import torch
from cyclonedds.domain import DomainParticipant

from testbed.live.dds import segments
from testbed.live.dds.channel import Channel, Message
from testbed.live.dds.domain import connect
from testbed.live.dds.federated import messages, store
from testbed.live.dds.federated.messages import COMMANDS, CONTROLLER, MODELS, UPDATES
from testbed.live.dds.federated.settings import ClientSettings, load_script
from testbed.live.dds.federated.training import Participant
from testbed.training.datasets import Dataset

TICK_S = 0.05


def run(settings: ClientSettings, data: Dataset | None = None) -> None:
    """Serve until the controller says that there is nothing more to do.

    Raises
    ------
    ConnectionError
        No controller for ``wait_s``; or see :func:`testbed.live.dds.domain.connect`.
    ValueError
        The controller's task is another one.
    testbed.training.learner.Diverged
        The training did.
    """
    data = data or settings.task.data.load()
    participant = Participant(settings.task, settings.client, data, load_script(settings.script))
    client = Client(settings, participant, connect(settings.domain, settings.network))
    try:
        client.serve()
    finally:
        client.close()


class Client:
    """Trains on the thread that serves; channels put what they hear into ``heard``."""

    def __init__(
        self, settings: ClientSettings, participant: Participant, entered: DomainParticipant
    ) -> None:
        self.settings, self.task, self.participant = settings, settings.task, participant
        self.heard: queue.Queue[Message | None] = queue.Queue()
        self.round, self.weights = -1, torch.empty(0)
        """The latest model, and the round that made it."""
        self.life = self.greeted = 0
        """Of the controller that was heard last, and of the one that knows of this client."""
        self.hello = 0
        self.command: messages.Command | None = None
        if settings.init_path is not None:
            self.round, self.weights = store.load(settings.init_path, self.task)
            self.greeted = -1  # no need to hear a model first
        number, topic = settings.client + 1, UPDATES.format(settings.client)
        limit = messages.longest(self.task.values, 0)
        put = self.heard.put
        self.updates = Channel(
            entered,
            topic,
            number,
            settings.key(topic),
            lambda message: None,
            lambda member: put(None),
            limit=segments.LIMIT,
            kept=1,
        )
        self.models = Channel(
            entered, MODELS, number, settings.key(MODELS), put, limit=limit, kept=1
        )
        self.commands = Channel(
            entered, COMMANDS, number, settings.key(COMMANDS), put, limit=limit, kept=1
        )

    def close(self) -> None:
        for channel in (self.updates, self.models, self.commands):
            channel.close(self.settings.lease_s)

    def serve(self) -> None:
        alone = time.monotonic()
        while True:
            if CONTROLLER in self.updates.members():
                alone = time.monotonic()
                if self.life != self.greeted:
                    self._greet()
            elif time.monotonic() - alone > self.settings.wait_s:
                raise ConnectionError(f"no controller for {self.settings.wait_s:g} s")
            try:
                message = self.heard.get(timeout=TICK_S)
            except queue.Empty:
                continue
            if message is None:
                self.greeted = 0  # if it only seems dead, it will have to hear that we are here
            elif message.sender == CONTROLLER and self._take(message):
                return
            if self.command is not None and self.round == self.command.round - 1:
                self._train()

    def _greet(self) -> None:
        self.hello = max(self.hello + 1, time.time_ns())
        hello = messages.Hello(self.settings.client, self.hello, self.task.fingerprint)
        self.updates.send(messages.pack(hello), "hello")
        self.greeted = self.life

    def _take(self, message: Message) -> bool:
        """Whether this is the end."""
        if message.label == "model":
            number, weights = store.decode(message.payload, self.task)
            if self.hello and not self.life:
                self.greeted = message.life
            if message.life > self.life or number >= self.round:
                self.life = message.life
                self.round, self.weights = number, weights
                if self.settings.model_path is not None:
                    self.settings.model_path.parent.mkdir(parents=True, exist_ok=True)
                    store.save(self.settings.model_path, bytes(message.payload))
        elif message.label == "command":
            head, _ = messages.unpack("command", message.payload)
            if head.end:
                return True
            if (self.settings.client, self.hello) in zip(head.clients, head.hellos, strict=True):
                self.command = head
        return False

    def _train(self) -> None:
        command, self.command = self.command, None
        self._say(f"round {command.round}")
        for head, frame in self.participant.updates(command, self.weights):
            body = frame.to_bytes()
            head.published = time.monotonic()
            self.updates.send(messages.pack(head, body), "update")

    def _say(self, what: str) -> None:
        print(f"client {self.settings.client}: {what}", file=sys.stderr, flush=True)
