"""The topic on which the controller publishes each new model once, for all clients.

DDS takes what is written there to everybody who reads it, in one datagram for all where the network
has multicast. What the controller says to one client alone (:class:`.messages.Posted`) has the key
that the model is sealed with, drawn anew for each, and a digest: the key is known to all clients,
so that only the digest proves that a model is the controller's. The newest parts displace the
oldest, so that a reader that takes nothing holds nobody up; whoever misses a part asks for the
model on its own topic.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cyclonedds.core import (
    DDSException,
    GuardCondition,
    InstanceState,
    ReadCondition,
    SampleState,
    ViewState,
    WaitSet,
)
from cyclonedds.domain import DomainParticipant
from cyclonedds.internal import InvalidSample
from cyclonedds.pub import DataWriter
from cyclonedds.qos import Policy, Qos
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration

from slowlink.testbed.live.dds import domain, segments
from slowlink.testbed.live.dds.federated.messages import CONTROLLER, Posted
from slowlink.testbed.live.dds.segments import CUT, VERSION, Refused, Segment

TOPIC = "slowlink_models"
KEY = 16
BATCH = 32
WAKE_S = 60.0
"""A reader looks up so often at least, though nothing comes."""


class Board:
    """The controller's end.

    Parameters
    ----------
    limit: bytes of the longest model.
    """

    def __init__(self, participant: DomainParticipant, limit: int) -> None:
        self._writer = DataWriter(participant, Topic(participant, TOPIC, Segment), _qos(limit))
        self._thread = ThreadPoolExecutor(1, "board")

    def post(self, number: int, message: bytes) -> Posted:
        """Publish the model after round ``number`` in the background; what clients have to know."""
        key = secrets.token_bytes(KEY)
        self._thread.submit(self._write, number, message, key)
        return Posted(number, 0, key.hex(), digest(message))

    def _write(self, number: int, message: bytes, key: bytes) -> None:
        seal, view = AESGCM(key), memoryview(message)
        for start in range(0, len(view) or 1, CUT):
            part = Segment(VERSION, CONTROLLER, 0, 1, number, start, len(view), b"", "model", b"")
            place = segments.nonce(number, start)
            part.body = seal.encrypt(place, view[start : start + CUT], segments.head(part))
            try:
                self._writer.write(part)
            except DDSException:
                return  # a reader that takes no more; who misses the rest asks for it

    def close(self) -> None:
        """Publish nothing more."""
        self._thread.shutdown(cancel_futures=True)
        self._writer = None


class Reading:
    """A client's end.

    Parameters
    ----------
    news: called on a thread of its own when something has come.
    limit: bytes of the longest model; of unknown parts no more are kept than two models have.
    """

    def __init__(
        self, participant: DomainParticipant, news: Callable[[], object], limit: int
    ) -> None:
        self._limit, self._news = limit, news
        self._parts: deque[Segment] = deque(maxlen=2 * _parts(limit))
        self._key, self._total = "", 0
        self._opened: dict[int, bytes] = {}
        """Parts of what is read now, by where they start: each is opened once."""
        self._reader = DataReader(participant, Topic(participant, TOPIC, Segment), _qos(limit))
        self._arrived = WaitSet(participant)
        self._arrived.attach(
            ReadCondition(self._reader, SampleState.Any | ViewState.Any | InstanceState.Any)
        )
        self._ends = GuardCondition(participant)
        self._arrived.attach(self._ends)
        self._thread = threading.Thread(target=self._read, name="board reader", daemon=True)
        self._thread.start()

    def find(self, posted: Posted) -> tuple[int, bytes | None]:
        """How many parts of what was posted are here, and the message once all are."""
        if posted.key != self._key:
            self._key, self._opened = posted.key, {}
        seal, opened = AESGCM(bytes.fromhex(posted.key)), self._opened
        for _ in range(len(self._parts)):
            part = self._parts.popleft()
            if part.number > posted.round:
                self._parts.append(part)
            elif part.number == posted.round and part.start not in opened:
                place = segments.nonce(part.number, part.start)
                # Else it is of somebody else, or of a controller that is gone.
                with contextlib.suppress(InvalidTag):
                    opened[part.start] = seal.decrypt(place, part.body, segments.head(part))
                    self._total = part.total
        if not opened or sum(map(len, opened.values())) != self._total:
            return len(opened), None
        message = b"".join(opened[start] for start in sorted(opened))
        if digest(message) != posted.digest:
            return len(opened), None
        self._opened = {}
        return len(opened), message

    def close(self) -> None:
        """Read nothing more."""
        self._ends.set(True)
        self._thread.join()
        self._arrived = self._reader = self._ends = None

    def _read(self) -> None:
        while not self._ends.read():
            self._arrived.wait(duration(seconds=WAKE_S))
            while samples := self._reader.take(BATCH):
                for sample in samples:
                    if not isinstance(sample, InvalidSample) and self._fits(sample):
                        self._parts.append(sample)
                self._news()

    def _fits(self, part: Segment) -> bool:
        try:
            segments.check(part, self._limit)
        except Refused:
            return False
        return True


def digest(message: bytes) -> str:
    """By which a posted message is known for the controller's."""
    return hashlib.blake2b(message, digest_size=32).hexdigest()


def _parts(limit: int) -> int:
    return -(-limit // CUT)


def _qos(limit: int) -> Qos:
    return Qos(
        Policy.Reliability.Reliable(duration(seconds=domain.BLOCK_S)),
        Policy.History.KeepLast(2 * _parts(limit)),
        Policy.IgnoreLocal.Participant,
    )
