"""A client: trains when it is asked to, and sends what it learned."""

from __future__ import annotations

import math
import queue
import secrets
import sys
import threading
import time

import torch
from cyclonedds.domain import DomainParticipant
from cyclonedds.idl import IdlStruct

from slowlink.testbed.live.dds.channel import Channel, Delivery
from slowlink.testbed.live.dds.domain import connect
from slowlink.testbed.live.dds.federated import checkpoint, messages
from slowlink.testbed.live.dds.federated.board import Reading
from slowlink.testbed.live.dds.federated.messages import CONTROLLER, TOPIC
from slowlink.testbed.live.dds.federated.settings import ClientSettings, load_script
from slowlink.testbed.live.dds.federated.training import Participant
from slowlink.testbed.training.datasets import Dataset

TICK_S = 0.05
NEWS = "news"
"""Heard of the board."""


def run(settings: ClientSettings, data: Dataset | None = None) -> None:
    """Serve until the controller says that there is nothing more to do.

    Raises
    ------
    ConnectionError
        No controller for ``wait_s``; or see :func:`testbed.live.dds.domain.connect`.
    ValueError
        The controller's task is another one.
    slowlink.testbed.training.learner.Diverged
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
    """A client trains on the thread that serves; the channel puts what it hears into ``heard``."""

    def __init__(
        self, settings: ClientSettings, participant: Participant, entered: DomainParticipant
    ) -> None:
        self.settings, self.task, self.participant = settings, settings.task, participant
        self.heard: queue.Queue[Delivery | str | None] = queue.Queue()
        self.round, self.weights = -1, torch.empty(0)
        """The latest model, and the round that made it."""
        self.session = self.hello = 0
        """The session of the controller that announced itself last, and the last hello to it."""
        self.greeted = False
        self.command: messages.Command | None = None
        self.posted: messages.Posted | None = None
        """A model that is on the board and not read yet."""
        self.parts, self.due = 0, math.inf
        """How many parts of it are here, and until when the next is waited for."""
        self.news = threading.Event()
        if settings.init_path is not None:
            self.round, self.weights = checkpoint.load(settings.init_path, self.task)
        keys = settings.identity(messages.CLIENT_NAME.format(settings.client))
        topic = TOPIC.format(settings.client)
        most = self.task.make_codec(settings.client).payload_bytes((self.task.values,))
        # Before the channel, see the controller.
        self.board = Reading(entered, self._look_up, messages.longest(self.task.values, 0))
        self.channel = Channel(
            entered,
            topic,
            settings.client + 1,
            messages.access(settings.run, settings.client, keys),
            self.heard.put,
            lambda member: self.heard.put(None) if member == CONTROLLER else None,
            limit=messages.longest(self.task.values, *most),
        )

    def close(self) -> None:
        self.board.close()
        self.channel.close(self.settings.lease_s)

    def serve(self) -> None:
        alone = time.monotonic()
        while True:
            if CONTROLLER in self.channel.members():
                alone = time.monotonic()
                if not self.greeted:
                    self._greet()
            elif time.monotonic() - alone > self.settings.wait_s:
                raise ConnectionError(f"no controller for {self.settings.wait_s:g} s")
            if time.monotonic() > self.due:
                self._ask()
            try:
                message = self.heard.get(timeout=TICK_S)
            except queue.Empty:
                continue
            if message == NEWS:
                self.news.clear()
                self._look()
            elif message is None:
                self.greeted = False  # a controller that only seems dead must be greeted
            elif message.sender == CONTROLLER and self._take(message):
                return
            if self.command is not None and self.round == self.command.round - 1:
                self._train()

    def _greet(self) -> None:
        self.hello = secrets.randbits(64) or 1
        self.posted, self.due = None, math.inf
        has = checkpoint.digest(self.round, self.weights)
        whose = (self.settings.client, self.hello, self.session, self.task.fingerprint)
        self._send(messages.Hello(*whose, has))
        self.greeted = True

    def _take(self, message: Delivery) -> bool:
        """Handle one message; return whether the training is over."""
        head, _ = messages.unpack(message.label, message.payload)
        if isinstance(head, messages.Model):
            # Not that of an earlier hello, which somebody may have recorded. Of one hello the
            # channel lets no older message through.
            if head.hello == self.hello:
                self._adopt(message.payload)
        elif isinstance(head, messages.Posted) and head.hello == self.hello:
            self.posted, self.parts = head, -1
            self._look()
        elif isinstance(head, messages.Announcement):
            if head.task != self.task.fingerprint:
                raise ValueError("the controller's task is another one: both need the same")
            if head.session != self.session or head.hello == self.hello:
                self.session = head.session
                self._greet()
        elif isinstance(head, messages.Command) and head.hello == self.hello:
            if head.end:
                return True
            self.command = head
        return False

    def _look_up(self) -> None:
        """On the board's thread: at most one word of it waits to be heard."""
        if not self.news.is_set():
            self.news.set()
            self.heard.put(NEWS)

    def _look(self) -> None:
        """Take the model that is awaited from the board, if it is there."""
        if self.posted is None:
            return
        parts, message = self.board.find(self.posted)
        if message is not None:
            self._adopt(message)
        elif parts > self.parts:
            self.parts, self.due = parts, time.monotonic() + self.settings.lease_s

    def _ask(self) -> None:
        """Nothing more of it comes to the board: let the controller send it."""
        self._send(messages.Wanted(self.settings.client, self.hello, self.posted.round))
        self.parts = self.due = math.inf  # once, whatever comes meanwhile

    def _adopt(self, message: bytes | memoryview) -> None:
        self.posted, self.due = None, math.inf
        self.round, self.weights = checkpoint.decode(message, self.task)
        if self.settings.model_path is not None:
            self.settings.model_path.parent.mkdir(parents=True, exist_ok=True)
            checkpoint.save(self.settings.model_path, bytes(message))

    def _send(self, head: IdlStruct, body: bytes = b"") -> None:
        data = messages.pack(head, body)
        self.channel.send(data, messages.label(head), timeout_s=self.settings.wait_s)

    def _train(self) -> None:
        command, self.command = self.command, None
        self._say(f"round {command.round}")
        for head, frame in self.participant.updates(command, self.weights):
            body = frame.to_bytes()
            head.published = time.monotonic()
            self._send(head, body)

    def _say(self, what: str) -> None:
        print(f"client {self.settings.client}: {what}", file=sys.stderr, flush=True)
