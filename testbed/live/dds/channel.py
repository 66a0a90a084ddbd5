"""Messages of any length from every member of a topic to every other.

A member is a number, unique on the topic. One thread receives; who sends does so on a thread of
its own choice and is held up when a reader is slow.
"""

from __future__ import annotations

import contextlib
import hmac
import struct
import threading
import time
import uuid
import weakref
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

from slowlink.testbed.live.dds import domain, segments
from slowlink.testbed.live.dds.segments import Refused, Segment

TICK_S = 0.05
"""How often the receiving thread looks who is there when nothing arrives."""

SEND_S = 60.0
"""How long a message may take to send, unless told otherwise."""

IDLE = 256 << 20
"""Bytes of memory that a process keeps for the messages to come."""

BATCH = 32
MEMBER = struct.Struct("<16sIQ32s")
"""The identity that a member publishes: a mark, its number, its life and a signature of these."""

MARK = b"slowlink member\0"


@dataclass(frozen=True)
class Delivery:
    """A whole message, as received.

    Attributes
    ----------
    sender: member that sent it.
    life: when that member started, ns since 1970.
    number: counted by the sender within its life, from 0.
    label: what the sender calls it.
    payload: its bytes, read only; a view where it came in several segments.
    frame_bytes: bytes of its segments, tags included, without those of DDS and UDP.
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

    def add(self, segment: Segment) -> Delivery | None:
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
            payload = bytes(segment.body) if whole else _memory.take(segment.total)
            partial = _Partial(*this, False, segment.label, payload)
            self._senders[segment.sender] = partial
        if (segment.total, segment.label) != (len(partial.payload), partial.label):
            raise Refused("parts", f"length or label of message {segment.number} changes")
        start, end = segment.start, segment.start + len(segment.body)
        if partial.ends.get(start) == end:
            return None  # the same segment came before
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
        return Delivery(segment.sender, *this, segment.label, payload, partial.frame_bytes)


class _Memory:
    """Memory of messages, which the next ones get once nothing refers to it any more: the first
    write to fresh pages costs more than all else that is done for a message.

    Not of bytearrays: NumPy asks for huge pages, which makes that first write 5 times faster.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._idle: list[np.ndarray] = []
        # Memory may come back on any thread, and while this one looks for some.
        self._lock = threading.RLock()

    def take(self, length: int) -> memoryview:
        """``length`` bytes, of any value."""
        base = self._find(length)
        # Whatever is made of the answer refers to ``view``: of a view of an array NumPy would make
        # views that refer to ``base`` instead, but a memoryview between the two keeps it from that.
        view = np.frombuffer(memoryview(base), np.uint8, length)
        weakref.finalize(view, self._give_back, base).atexit = False
        return memoryview(view)

    def _find(self, length: int) -> np.ndarray:
        with self._lock:
            for place, base in enumerate(self._idle):
                if length <= len(base) <= 2 * length:
                    return self._idle.pop(place)
        return np.empty(length, np.uint8)

    def _give_back(self, base: np.ndarray) -> None:
        with self._lock:
            self._idle.append(base)
            while sum(map(len, self._idle)) > self._most:
                del self._idle[0]


_memory = _Memory(IDLE)


class Channel:
    """One topic, as one member sees it.

    Parameters
    ----------
    participant: see :func:`testbed.live.dds.domain.connect`.
    topic: its name, alike for all members.
    member: number of this one, unique on the topic.
    key: see :func:`testbed.live.dds.segments.run_key`; the topic's own.
    deliver: is handed each message on the receiving thread, those of one sender in order; it
        should be quick, and may raise :class:`segments.Refused`. Bring them elsewhere with
        ``queue.Queue().put``.
    left: is told, on the same thread, of each member that closed or died, once everything that it
        sent and that arrived has been delivered.
    limit: longest message taken, bytes.
    kept: latest segments that members receive that come later than they were sent.

    failed: is told, on the same thread, of what ended it: of an error of ``deliver``, for instance.
        The member is then gone for the others, and its operations raise ConnectionError.

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
        deliver: Callable[[Delivery], object],
        left: Callable[[int], object] = lambda member: None,
        failed: Callable[[ConnectionError], object] = lambda error: None,
        *,
        limit: int = segments.LIMIT,
        kept: int = 0,
    ) -> None:
        self.member = member
        self.refused: Counter[str] = Counter()
        self._key, self._limit = key, limit
        self._deliver, self._left, self._failed = deliver, left, failed
        self._error: ConnectionError | None = None
        self._life, self._number = time.time_ns(), 0
        self._assembly = Assembly(key, limit)
        # The member behind each matched endpoint; None for a stranger's.
        self._writers: dict[int, int | None] = {}
        self._readers: dict[int, int | None] = {}
        self._closed = False
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._topic = topic
        place = self._place(participant.guid, member, self._life)
        card = MEMBER.pack(MARK, member, self._life, key.sign(place))
        qos = domain.qos(card, kept)
        described = Topic(participant, topic, Segment)
        self._reader = DataReader(participant, described, qos)
        self._writer = DataWriter(participant, described, qos)
        self._arrived = WaitSet(participant)
        self._arrived.attach(
            ReadCondition(self._reader, SampleState.Any | ViewState.Any | InstanceState.Any)
        )
        self._thread = threading.Thread(target=self._receive, name=f"{topic} receiver", daemon=True)
        self._thread.start()

    def send(
        self,
        payload: bytes | bytearray | memoryview,
        label: str = "",
        timeout_s: float = SEND_S,
    ) -> None:
        """Send a message to all who are there.

        Blocks while a reader that is alive takes no more, be it a stranger's: DDS lets everybody
        on the network read along, and Cyclone's Python layer offers no means to turn them away.

        Parameters
        ----------
        timeout_s: how long nothing of it may go out, give or take :data:`domain.BLOCK_S`; so a slow
            link has its time. Later messages may go through.

        Raises
        ------
        ValueError
            A label or payload that does not fit.
        TimeoutError
            Some reader does not take the message, which is then lost to those that miss a part;
            names the members that may be to blame, and says how many strangers are.
        ConnectionError
            The channel was closed meanwhile, or receives no more.
        """
        view = memoryview(payload).cast("B")
        if len(view) > self._limit:
            raise ValueError(f"message {label!r}: {len(view)} bytes, at most {self._limit} fit")
        with self._sending:  # segments of one sender's messages never mix
            parts = segments.cut(self._key, self.member, self._life, self._number, view, label)
            self._number += 1
            for segment in parts:
                self._write(segment, timeout_s)

    def members(self) -> set[int]:
        """Other members that hear this one and are heard; raises as :meth:`wait_for`."""
        with self._changed:
            if self._error is not None:
                raise self._error
            return (set(self._writers.values()) & set(self._readers.values())) - {None}

    def wait_for(self, members: set[int], timeout_s: float) -> set[int]:
        """Wait until ``members`` hear this one and are heard; returns those that are missing.

        Raises ConnectionError if this one receives no more.
        """
        with self._changed:
            self._changed.wait_for(lambda: members <= self.members(), timeout_s)
            return members - self.members()

    def close(self, linger_s: float = 2.0) -> None:
        """Leave, after waiting up to ``linger_s`` for the others to have what was sent."""
        if self._closed:
            return
        # Cyclone's wrapper means to return False when time is up and trips over a wrong name.
        with contextlib.suppress(DDSException, AttributeError):
            if self._error is None:
                self._writer.wait_for_acks(duration(seconds=linger_s))
        self._closed = True
        self._thread.join()
        with self._sending:
            # Cyclone's objects end when they are collected; the order matters.
            self._arrived = self._writer = self._reader = None

    def _write(self, segment: Segment, timeout_s: float = SEND_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._closed:
            if self._error is not None:
                raise self._error
            try:
                return self._writer.write(segment)
            except DDSException as error:
                if error.code != DDSException.DDS_RETCODE_TIMEOUT:
                    raise ConnectionError(f"cannot send: {error}") from error
            if time.monotonic() > deadline:
                why = f"nothing of message {segment.label!r} went out for {timeout_s:g} s"
                raise TimeoutError(f"{why}, held up by {self._suspects()}")
        raise ConnectionError("cannot send: the channel is closed")

    def _suspects(self) -> str:
        with self._changed:
            readers = Counter(self._readers.values())
        strangers = readers.pop(None, 0)
        who = [f"member {member}" for member in sorted(readers)]
        who += [f"a reader that is not a member ({strangers} here)"] if strangers else []
        return " or ".join(who) or "a reader that is gone now"

    def _receive(self) -> None:
        try:
            self._receive_until_closed()
        except BaseException as error:
            why = f"member {self.member} of {self._topic} receives no more: "
            self._error = ConnectionError(f"{why}{type(error).__name__}: {error}")
            self._error.__cause__ = error
            # A reader that nobody empties would hold up everybody.
            self._arrived = self._reader = None
            with self._changed:
                self._changed.notify_all()
            self._failed(self._error)

    def _receive_until_closed(self) -> None:
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
                if message is not None:
                    self._deliver(message)
            except Refused as error:
                self.refused[error.kind] += 1
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
            gone.discard(None)
            if (writers, readers) != (self._writers, self._readers):
                self._writers, self._readers = writers, readers
                self._changed.notify_all()
        return gone

    def _matched(self, handles, describe, known: dict[int, int | None]) -> dict[int, int | None]:
        """Member behind each endpoint; None of a stranger's."""
        now = domain.matched(handles)
        if now is None:
            return known
        found = {}
        for handle in now:
            found[handle] = known.get(handle)
            # It is looked at again later, for Cyclone may not know the endpoint yet.
            if found[handle] is None:
                found[handle] = self._member(describe, handle)
        return found

    def _member(self, describe, handle: int) -> int | None:
        """The member that an endpoint claims and proves to be, or None."""
        try:
            endpoint = describe(handle)
        except Exception:  # a stranger may describe itself so that Cyclone's wrapper trips
            return None
        # None says that it is gone meanwhile.
        policy = endpoint and endpoint.qos[domain.Policy.Userdata]
        if not policy or len(policy.data) != MEMBER.size:
            return None
        mark, member, life, signature = MEMBER.unpack(policy.data)
        signed = self._key.sign(self._place(endpoint.participant_key, member, life))
        proven = mark == MARK and hmac.compare_digest(signature, signed)
        return member if proven else None

    def _place(self, participant: uuid.UUID, member: int, life: int) -> bytes:
        """The bytes that a member signs; they name the participant, so a copy proves nothing."""
        return participant.bytes + struct.pack("<IQ", member, life) + self._topic.encode()
