"""Messages of any length from every member of a topic to every other.

A member is a number, unique on the topic. One thread receives; who sends does so on a thread of
its own choice and is held up when a reader is slow.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from cyclonedds.core import (
    DDSException,
    InstanceState,
    ReadCondition,
    SampleState,
    ViewState,
    WaitSet,
)
from cyclonedds.domain import DomainParticipant
from cyclonedds.internal import InvalidSample
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration

from testbed.live.dds import domain, segments
from testbed.live.dds.segments import Refused, Segment

TICK_S = 0.05
"""How often the receiving thread looks who is there when nothing arrives."""

BATCH = 32
MEMBER = b"slowlink member "


@dataclass(frozen=True)
class Message:
    """A whole message, as received.

    Attributes
    ----------
    sender: member that sent it.
    life: when that member started, ns since 1970.
    number: counted by the sender within its life, from 0.
    label: what the sender calls it.
    payload: its bytes, read only; a view where it came in several segments.
    frame_bytes: bytes of its segments on the wire, without those of DDS and UDP.
    """

    sender: int
    life: int
    number: int
    label: str
    payload: bytes | memoryview
    frame_bytes: int


@dataclass
class _Partial:
    life: int = 0
    number: int = -1
    complete: bool = True
    label: str = ""
    payload: bytes | memoryview = b""
    ends: dict[int, int] = field(default_factory=dict)
    frame_bytes: int = 0


class Assembly:
    """Whole messages from checked segments, in whatever order those of one message come.

    A sender's messages come one after the other; ``(life, number)`` only ever goes up. Nothing is
    allocated for a segment that is refused.
    """

    def __init__(self, key: segments.Key, limit: int = segments.LIMIT) -> None:
        self._key, self._limit = key, limit
        self._senders: dict[int, _Partial] = {}

    def add(self, segment: Segment) -> Message | None:
        """The message that ``segment`` completes, if it does.

        Raises
        ------
        Refused
            See :func:`segments.check`; a segment of a message that was already complete or is
            older; parts of a message that contradict each other.
        """
        segments.check(segment, self._key, self._limit)
        partial = self._senders.setdefault(segment.sender, _Partial())
        this, latest = (segment.life, segment.number), (partial.life, partial.number)
        if this < latest or this == latest and partial.complete:
            raise Refused(
                "replay",
                f"message {segment.number} of member {segment.sender} comes after {partial.number}",
            )
        if this > latest:
            whole = len(segment.body) == segment.total
            payload = bytes(segment.body) if whole else _buffer(segment.total)
            partial = _Partial(*this, False, segment.label, payload)
            self._senders[segment.sender] = partial
        if (segment.total, segment.label) != (len(partial.payload), partial.label):
            raise Refused("parts", f"length or label of message {segment.number} changes")
        start, end = segment.start, segment.start + len(segment.body)
        if partial.ends.get(start) == end:
            return None  # the same once more
        if any(start < e and s < end for s, e in partial.ends.items()):
            raise Refused("parts", f"parts of message {segment.number} overlap")
        if isinstance(partial.payload, memoryview):
            partial.payload[start:end] = segment.body
        partial.ends[start] = end
        partial.frame_bytes += segment.nbytes
        if sum(e - s for s, e in partial.ends.items()) < segment.total:
            return None
        payload, partial.payload, partial.complete = partial.payload, b"", True
        payload = payload.toreadonly() if isinstance(payload, memoryview) else payload
        partial.ends.clear()
        return Message(segment.sender, *this, segment.label, payload, partial.frame_bytes)


def _buffer(length: int) -> memoryview:
    """Not a bytearray: NumPy asks for huge pages, which makes the first write 5 times faster."""
    return memoryview(np.empty(length, np.uint8))


class Channel:
    """One topic, as one member sees it.

    Parameters
    ----------
    participant: see :func:`testbed.live.dds.domain.connect`.
    topic: its name, alike for all members.
    member: number of this one, unique on the topic.
    key: see :func:`testbed.live.dds.segments.run_key`.
    deliver: is handed each message on the receiving thread, those of one sender in order; it
        should be quick. Bring them elsewhere with ``queue.Queue().put``.
    left: is told, on the same thread, of each member that closed or died, once everything that it
        sent and that arrived has been delivered.
    limit: longest message taken, bytes.
    kept: latest segments that members receive that come later than they were sent.

    Attributes
    ----------
    refused: how many segments were dropped, by the kind of :class:`segments.Refused`.
    """

    def __init__(
        self,
        participant: DomainParticipant,
        topic: str,
        member: int,
        key: segments.Key,
        deliver: Callable[[Message], object],
        left: Callable[[int], object] = lambda member: None,
        *,
        limit: int = segments.LIMIT,
        kept: int = 0,
    ) -> None:
        self.member = member
        self.refused: Counter[str] = Counter()
        self._key, self._deliver, self._left, self._limit = key, deliver, left, limit
        self._life, self._number = time.time_ns(), 0
        self._assembly = Assembly(key, limit)
        self._writers: dict[int, int] = {}
        self._readers: dict[int, int] = {}
        self._closed = False
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        qos = domain.qos(MEMBER + str(member).encode(), kept)
        described = Topic(participant, topic, Segment)
        self._reader = DataReader(participant, described, qos)
        self._writer = DataWriter(participant, described, qos)
        self._arrived = WaitSet(participant)
        self._arrived.attach(
            ReadCondition(self._reader, SampleState.Any | ViewState.Any | InstanceState.Any)
        )
        self._thread = threading.Thread(target=self._receive, name=f"{topic} receiver", daemon=True)
        self._thread.start()

    def send(self, payload: bytes | bytearray | memoryview, label: str = "") -> None:
        """Send a message to all who are there.

        Blocks while a reader that is alive takes no more.

        Raises
        ------
        ValueError
            A label or payload that does not fit.
        ConnectionError
            The channel was closed meanwhile.
        """
        view = memoryview(payload).cast("B")
        if len(view) > self._limit:
            raise ValueError(f"message {label!r}: {len(view)} bytes, at most {self._limit} fit")
        with self._sending:  # segments of one sender's messages never mix
            parts = segments.cut(self._key, self.member, self._life, self._number, view, label)
            self._number += 1
            for segment in parts:
                self._write(segment)

    def members(self) -> set[int]:
        """Other members that hear this one and are heard."""
        with self._changed:
            return set(self._writers.values()) & set(self._readers.values())

    def wait_for(self, members: set[int], timeout_s: float) -> set[int]:
        """Wait until ``members`` hear this one and are heard; returns those that are missing."""
        with self._changed:
            self._changed.wait_for(lambda: members <= self.members(), timeout_s)
            return members - self.members()

    def close(self, linger_s: float = 2.0) -> None:
        """Leave, after waiting up to ``linger_s`` for the others to have what was sent."""
        if self._closed:
            return
        with contextlib.suppress(DDSException):
            self._writer.wait_for_acks(duration(seconds=linger_s))
        self._closed = True
        self._thread.join()
        with self._sending:
            # Cyclone's objects end when they are collected; the order matters.
            self._arrived = self._writer = self._reader = None

    def _write(self, segment: Segment) -> None:
        while not self._closed:
            try:
                return self._writer.write(segment)
            except DDSException as error:
                if error.code != DDSException.DDS_RETCODE_TIMEOUT:
                    raise ConnectionError(f"cannot send: {error}") from error
        raise ConnectionError("cannot send: the channel is closed")

    def _receive(self) -> None:
        seen, gone = 0.0, set()
        while not self._closed:
            self._arrived.wait(duration(seconds=TICK_S))
            while self._take():
                pass
            if time.monotonic() - seen > TICK_S:
                # A tick late: what a member sent before it left must be delivered first.
                for member in gone:
                    self._left(member)
                seen, gone = time.monotonic(), self._observe()

    def _take(self) -> bool:
        samples = self._reader.take(BATCH)
        for sample in samples:
            if isinstance(sample, InvalidSample):
                continue
            try:
                message = self._assembly.add(sample)
            except Refused as error:
                self.refused[error.kind] += 1
                continue
            if message is not None:
                self._deliver(message)
        return len(samples) == BATCH

    def _observe(self) -> set[int]:
        writers = self._matched(
            self._reader.get_matched_publications,
            self._reader.get_matched_publication_data,
            self._writers,
        )
        readers = self._matched(
            self._writer.get_matched_subscriptions,
            self._writer.get_matched_subscription_data,
            self._readers,
        )
        with self._changed:
            gone = set(self._writers.values()) - set(writers.values())
            gone |= set(self._readers.values()) - set(readers.values())
            if (writers, readers) != (self._writers, self._readers):
                self._writers, self._readers = writers, readers
                self._changed.notify_all()
        return gone

    @staticmethod
    def _matched(handles, describe, known: dict[int, int]) -> dict[int, int]:
        """Member behind each endpoint; endpoints of strangers are left out."""
        try:
            now = handles()
        except IndexError:  # Cyclone's wrapper trips over one more that comes while it counts
            return known
        found = {}
        for handle in now:
            member = known.get(handle)
            if member is None:
                member = _member(describe(handle))
            if member is not None:
                found[handle] = member
        return found


def _member(endpoint) -> int | None:
    if endpoint is None:  # gone meanwhile
        return None
    policy = endpoint.qos[domain.Policy.Userdata]
    data = policy.data if policy else b""
    digits = data.removeprefix(MEMBER)
    return int(digits) if data.startswith(MEMBER) and digits.isdigit() else None
