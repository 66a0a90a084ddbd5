"""Messages of any length from every member of a topic to every other.

A member is a number, unique on the topic. One thread receives; who sends does so on a thread of
its own choice and is held up when a reader is slow.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from cryptography.exceptions import InvalidTag
from cyclonedds.core import DDSException, ReadCondition, WaitSet
from cyclonedds.domain import DomainParticipant
from cyclonedds.internal import InvalidSample
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration

from slowlink.testbed.live.dds import domain, segments
from slowlink.testbed.live.dds.segments import TAG, Refused, Segment
from slowlink.testbed.live.dds.sessions import Access, Sessions

log = logging.getLogger(__name__)

TICK_S = 0.05
"""How often the receiving thread looks who is there when nothing arrives."""

SEND_S = 60.0
"""How long a message may take to send, unless told otherwise."""

IDLE = 256 << 20
"""Bytes of memory that a process keeps for the messages to come."""

BATCH = 32
PATIENCE = 20
"""Ticks after which a message of the handshake is said once more, at most."""


@dataclass(frozen=True)
class Delivery:
    """A whole message, as received.

    Attributes
    ----------
    sender: member that sent it.
    life: that the member drew when it started.
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
    life: int
    number: int
    label: str
    total: int
    payload: bytes | memoryview
    parts: int
    """How many the message has; 0 once it is complete."""
    starts: set[int] = field(default_factory=set)
    frame_bytes: int = 0


class Assembly:
    """Whole messages from segments, in whatever order those of one message come.

    A sender's messages come one after the other; within its life ``number`` only ever goes up.
    Nothing is kept of a segment that is refused. Of each member no more is kept than one message,
    of at most ``limit`` bytes, and memory is touched as its parts arrive.

    Parameters
    ----------
    sessions: whose members are listened to.
    size: see :func:`segments.check`.
    """

    def __init__(
        self, sessions: Sessions, limit: int = segments.LIMIT, size: int = segments.CUT
    ) -> None:
        self._sessions, self._limit, self._size = sessions, limit, size
        self._senders: dict[int, _Partial] = {}

    def add(self, segment: Segment) -> Delivery | None:
        """The message that ``segment`` completes, if it does.

        Raises
        ------
        Refused
            See :func:`segments.check` and :meth:`.Sessions.authenticate`; a segment of a message
            that was already complete or is older; parts of a message that contradict each other.
        """
        segments.check(segment, self._limit, self._size)
        key = self._sessions.authenticate(segment)
        sender, life, number, start = segment.sender, segment.life, segment.number, segment.start
        partial = self._senders.get(sender)
        if partial is None or partial.life != life or number > partial.number:
            parts = max(1, -(-segment.total // self._size))
            payload = _memory.take(segment.total) if parts > 1 else b""
            partial = _Partial(life, number, segment.label, segment.total, payload, parts)
        elif number < partial.number or not partial.parts:
            why = f"message {number} of member {sender} comes after {partial.number}"
            raise Refused("replay", why)
        elif (partial.label, partial.total) != (segment.label, segment.total):
            raise Refused("parts", f"length or label of message {number} changes")
        elif start in partial.starts:
            return None  # the same segment came before
        sealed = segments.nonce(number, start), segment.body, segments.head(segment)
        try:
            if partial.parts == 1:
                partial.payload = key.decrypt(*sealed)
            else:
                end = start + len(segment.body) - TAG
                key.decrypt_into(*sealed, partial.payload[start:end])
        except InvalidTag:
            raise Refused("tag", f"of member {sender} is changed") from None
        self._senders[sender] = partial
        partial.starts.add(start)
        partial.frame_bytes += segment.nbytes
        if len(partial.starts) < partial.parts:
            return None
        payload, partial.payload, partial.parts = partial.payload, b"", 0
        partial.starts.clear()
        payload = payload.toreadonly() if isinstance(payload, memoryview) else payload
        return Delivery(sender, life, number, segment.label, payload, partial.frame_bytes)

    def forget(self, member: int, life: int) -> None:
        """Drop what is kept of a member's process that is gone; another may be there already."""
        kept = self._senders.get(member)
        if kept is not None and kept.life == life:
            del self._senders[member]


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
    access: who else may be there, and this one's identity; nobody else is heard or told anything.
    deliver: is handed each message on the receiving thread, those of one sender in order; it
        should be quick, and may raise :class:`segments.Refused`. Bring them elsewhere with
        ``queue.Queue().put``.
    left: is told, on the same thread, of each member that closed, died or was revoked, once
        everything that it sent and that arrived has been delivered.
    failed: is told, on the same thread, of what ended it: of an error of ``deliver``, for instance.
        The member is then gone for the others, and its operations raise ConnectionError.
    limit: longest message taken, bytes.

    Attributes
    ----------
    refused: how many segments were dropped, by the kind of :class:`segments.Refused`.
    """

    def __init__(
        self,
        participant: DomainParticipant,
        topic: str,
        member: int,
        access: Access,
        deliver: Callable[[Delivery], object],
        left: Callable[[int], object] = lambda member: None,
        failed: Callable[[ConnectionError], object] = lambda error: None,
        *,
        limit: int = segments.LIMIT,
    ) -> None:
        self.member = member
        self.refused: Counter[str] = Counter()
        self._limit, self._topic, self._number = limit, topic, 0
        self._deliver, self._left, self._failed = deliver, left, failed
        self._error: ConnectionError | None = None
        self._sessions = Sessions(access, topic, member, participant.guid.bytes)
        self._assembly = Assembly(self._sessions, limit)
        # The member and its life behind each matched endpoint; None for a stranger's.
        self._writers: dict[int, tuple[int, int] | None] = {}
        self._readers: dict[int, tuple[int, int] | None] = {}
        self._cards: dict[int, bytes] = {}
        """What a stranger's endpoint published when it was looked at."""
        self._present: set[tuple[int, int]] = set()
        self._gone: set[tuple[int, int]] = set()
        self._wait, self._ticks = 1, 0
        self._closed = False
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        qos = domain.qos(self._sessions.card)
        described = Topic(participant, topic, Segment)
        self._reader = DataReader(participant, described, qos)
        self._writer = DataWriter(participant, described, qos)
        self._arrived = WaitSet(participant)
        self._arrived.attach(ReadCondition(self._reader, domain.ANY))
        self._thread = threading.Thread(target=self._receive, name=f"{topic} receiver", daemon=True)
        self._thread.start()

    def send(
        self,
        payload: bytes | bytearray | memoryview,
        label: str = "",
        timeout_s: float = SEND_S,
    ) -> None:
        """Send a message to all members who are there.

        Blocks while a reader that is alive takes no more, be it a stranger's: DDS lets everybody
        on the network take what is sent, sealed as it is, and Cyclone's Python layer offers no
        means to turn them away.

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
            first, seal = self._sessions.seal()
            number, self._number = self._number, self._number + 1
            for segment in chain(first, seal.cut(number, view, label)):
                self._write(segment, timeout_s)

    def members(self) -> set[int]:
        """Other members that hear this one and are heard; raises as :meth:`wait_for`."""
        with self._changed:
            if self._error is not None:
                raise self._error
            return {member for member, _ in self._present}

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
            if self._tries(segment):
                return
            if time.monotonic() > deadline:
                why = f"nothing of message {segment.label!r} went out for {timeout_s:g} s"
                raise TimeoutError(f"{why}, held up by {self._suspects()}")
        raise ConnectionError("cannot send: the channel is closed")

    def _tries(self, segment: Segment) -> bool:
        """Whether the segment went out, within :data:`domain.BLOCK_S`."""
        try:
            self._writer.write(segment)
        except DDSException as error:
            if error.code != DDSException.DDS_RETCODE_TIMEOUT:
                raise ConnectionError(f"cannot send: {error}") from error
            return False
        return True

    def _suspects(self) -> str:
        with self._changed:
            readers = Counter(self._readers.values())
        strangers = readers.pop(None, 0)
        who = [f"member {member}" for member, _ in sorted(readers)]
        who += [f"a reader that is not a member ({strangers} here)"] if strangers else []
        return " or ".join(who) or "a reader that is gone now"

    # On the receiving thread --------------------------------------------------------------------

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
        seen = 0.0
        while not self._closed:
            self._arrived.wait(duration(seconds=TICK_S))
            while self._take():
                pass
            if time.monotonic() - seen > TICK_S:
                # A tick late: what a member sent before it left must be delivered first. Who is
                # there anew by then has not left, but one process in the place of another has.
                gone, self._gone = self._gone - self._present, set()
                for member, life in gone:
                    self._assembly.forget(member, life)
                    self._left(member)
                seen = time.monotonic()
                self._observe()

    def _take(self) -> bool:
        samples = self._reader.take(BATCH)
        for sample in samples:
            if isinstance(sample, InvalidSample):
                continue
            try:
                if sample.version == segments.VERSION and not sample.epoch:
                    # The answer goes out first: who is told of a member may send to it at once.
                    if (answer := self._sessions.hear(sample)) is not None:
                        self._tries(answer)
                    self._look()
                elif message := self._assembly.add(sample):
                    self._deliver(message)
            except Refused as error:
                self.refused[error.kind] += 1
        return len(samples) == BATCH

    def _observe(self) -> None:
        """Look who is there, and go on with the handshakes."""
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
        if (revoked := self._sessions.revoked()) is not None:
            self._cards.clear()  # another list: who was a stranger may be none now
            for ends in (writers, readers):
                ends.update({end: None for end, who in ends.items() if who and who[0] in revoked})
        with self._changed:
            self._writers, self._readers = writers, readers
        self._cards = {end: self._cards[end] for end in self._cards if end in (writers | readers)}
        self._look()
        self._ticks += 1
        waiting = self._sessions.waiting()
        # At once, and then ever more seldom: a member may be there and hang.
        if not waiting:
            self._wait, self._ticks = 1, 0
        elif self._ticks >= self._wait:
            self._wait, self._ticks = min(2 * self._wait, PATIENCE), 0
            for segment in waiting:
                self._tries(segment)

    def _look(self) -> None:
        """Note who hears whom, and who does no more."""
        with self._changed:
            both = (set(self._writers.values()) & set(self._readers.values())) - {None}
            present = {who for who in both if self._sessions.hears(*who)}
            if present != self._present:
                self._gone |= self._present - present
                self._present = present
                self._changed.notify_all()

    def _matched(self, handles, describe, known: dict) -> dict[int, tuple[int, int] | None]:
        """Member and life behind each endpoint; None of a stranger's."""
        now = domain.matched(handles)
        if now is None:
            return known
        found = {}
        for handle in now:
            found[handle] = known.get(handle)
            # It is looked at again later, for Cyclone may not know the endpoint yet.
            if found[handle] is None:
                found[handle] = self._who(describe, handle)
        return found

    def _who(self, describe, handle: int) -> tuple[int, int] | None:
        """Member and life that an endpoint claims and proves to be, or None."""
        try:
            endpoint = describe(handle)
        except Exception:  # a stranger may describe itself so that Cyclone's wrapper trips
            return None
        # None says that it is gone meanwhile.
        policy = endpoint and endpoint.qos[domain.Policy.Userdata]
        card = bytes(policy.data) if policy else b""
        if self._cards.get(handle) == card:
            return None
        who = self._sessions.read_card(card, endpoint.participant_key.bytes) if card else None
        if who is None:
            # A stranger writes and reads, with one card. Without a word, both would but wait.
            if (name := self._sessions.claimed(card)) and card not in self._cards.values():
                log.warning(
                    "refused a stranger on %s: it says that it is %s, and does not prove it; its "
                    "key is not the one listed for %s here, or it is of another run",
                    self._topic,
                    name,
                    name,
                )
            self._cards[handle] = card
        else:
            self._sessions.meet(card)
        return who
