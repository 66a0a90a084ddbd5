"""A member's board: a topic on which it publishes once what several others are to have.

DDS takes what is written there to everybody who reads it, in one datagram for all where the network
has multicast. Who is to read it is told its name beforehand; and, on its own topic, with each
message whose body is there, the key that the body is sealed with, drawn anew for each, and a digest
(:class:`Posted`): the key is known to all who may read, so that only the digest proves that a body
is the sender's. A reader takes whatever comes, and the newest parts displace the oldest, so that
one that does nothing with them holds nobody up; who misses a part asks for the body on its own
topic.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cyclonedds.core import DDSException, GuardCondition, ReadCondition, WaitSet
from cyclonedds.domain import DomainParticipant
from cyclonedds.internal import InvalidSample
from cyclonedds.pub import DataWriter
from cyclonedds.qos import Policy, Qos
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration

from slowlink.testbed.live.dds import domain, segments
from slowlink.testbed.live.dds.segments import CUT, Refused, Segment
from slowlink.testbed.live.dds.sessions import Seal
from slowlink.testbed.live.wire import ENTRY_BYTES, whole

TOPIC = "slowlink/board"
"""What the names of all boards begin with."""

KEY = 16
BATCH = 32
TICK_S = 0.05
"""How often is looked whether something has come or is due, while it is awaited."""

WAKE_S = 60.0
"""A reader looks up so often at least, though nothing comes."""

JOIN_S = 2.0
"""What is posted waits at most so long for those who were just asked to read; who then does not
is sent it."""

REST_S = 60.0
"""After some reader has taken nothing for too long all are sent what is for them, for so long."""

ANSWER_S = 60.0
SLOWEST = 125_000
"""Bytes in a second at which a body comes at least that was asked for, after those seconds."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Posted:
    """What a receiver has to know of a body that is on a board.

    Attributes
    ----------
    board: the last part of the topic's name, new in each process of a sender.
    number: counted by the sender within its board, from 0.
    size: of the body, in bytes.
    key: that it is sealed with, as hexadecimal digits.
    digest: by which it is known for the sender's.
    """

    board: str
    number: int
    size: int
    key: str
    digest: str

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Posted:
        """Of fields that came; raises ValueError."""
        number, size = whole(dict(fields), "number"), whole(dict(fields), "size")
        key, proof = _hexadecimal(fields, "key", KEY), _hexadecimal(fields, "digest", DIGEST)
        return cls(board_of(fields), number, size, key, proof)


DIGEST = 32
BOARD = 8


def board_of(fields: Mapping[str, Any]) -> str:
    """The board that is named there; raises ValueError."""
    return _hexadecimal(fields, "board", BOARD)


def _hexadecimal(fields: Mapping[str, Any], name: str, length: int) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not re.fullmatch(f"[0-9a-f]{{{2 * length}}}", value):
        raise ValueError(f"{name} must be {length} bytes as hexadecimal digits, not {value!r:.99}")
    return value


def digest(body: bytes) -> str:
    """By which a posted body is known for its sender's."""
    return hashlib.blake2b(body, digest_size=DIGEST).hexdigest()


# Who posts ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class Post:
    """A body on its way to several.

    Attributes
    ----------
    names: whom it is for.
    owed: those of them who may still ask for it.
    read_by: those who read the board it was published on; nobody until it is ``settled``.
    """

    number: int
    names: tuple[str, ...]
    body: bytes
    key: bytes
    digest: str = ""
    owed: set[str] = field(default_factory=set)
    read_by: frozenset[str] = frozenset()
    settled: bool = False


@dataclass
class _Reader:
    invited: float
    place: bytes = b""
    """Its process in the network, once it reads."""
    matched: bool = False
    """Whether what is written reaches it."""


class Board:
    """The sender's end.

    Parameters
    ----------
    room: bytes of what is kept for those who may ask; the oldest goes first.
    patience_s: so long a reader may take nothing.
    present: whether a member is there now.
    settled: told, on the board's thread, of each post that was published or will not be.
    """

    def __init__(
        self,
        participant: DomainParticipant,
        room: int,
        patience_s: float,
        present: Callable[[str], bool],
        settled: Callable[[Post], object],
    ) -> None:
        self.board = secrets.token_hex(BOARD)
        self._room, self._patience_s = room, patience_s
        self._present, self._settled = present, settled
        self._count, self._rests_until = 0, 0.0
        self._kept: dict[int, Post] = {}
        self._readers: dict[str, _Reader] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._buffer = bytearray()
        topic = Topic(participant, f"{TOPIC}/{self.board}", Segment)
        self._writer = DataWriter(participant, topic, _written())
        self._thread = ThreadPoolExecutor(1, "board")

    def invite(self, name: str) -> bool:
        """Whether this member has yet to be told that it is to read this board."""
        with self._changed:
            if name in self._readers:
                return False
            self._readers[name] = _Reader(time.monotonic())
            return True

    def reads(self, name: str, place: bytes) -> None:
        """This member reads from now on, at this place of the network."""
        with self._changed:
            reader = self._readers.setdefault(name, _Reader(time.monotonic()))
            reader.place, reader.matched = place, False
            self._changed.notify_all()

    def post(self, names: Iterable[str], body: bytes) -> Post | None:
        """Publish in the background; None where that does not work at present."""
        if time.monotonic() < self._rests_until:
            return None
        with self._changed:
            key, names = secrets.token_bytes(KEY), tuple(names)
            post = Post(self._count, names, body, key, owed=set(names))
            self._kept[self._count] = post
            self._count += 1
        self._thread.submit(self._publish, post)
        return post

    def posted(self, post: Post, name: str) -> Posted | None:
        """What this member has to know of what was published; None where it has to be sent it,
        and then it will not ask."""
        with self._changed:
            if name in post.read_by and name in post.owed and post.number in self._kept:
                key = post.key.hex()
                return Posted(self.board, post.number, len(post.body), key, post.digest)
        self.has(post.number, name)
        return None

    def asked(self, number: int, name: str) -> bytes | None:
        """What this member has missed, once; None where it is not kept for it any more."""
        with self._changed:
            post = self._kept.get(number)
            body = post.body if post and name in post.owed else None
        self.has(number, name)
        return body

    def has(self, number: int, name: str) -> None:
        """This member has that, and will not ask for it."""
        with self._changed:
            if post := self._kept.get(number):
                self._release([post], name)

    def forget(self, name: str) -> None:
        """This member is gone: another process may come in its place."""
        with self._changed:
            self._readers.pop(name, None)
            self._release(list(self._kept.values()), name)

    def flush(self, timeout_s: float) -> None:
        """Wait until all have what was posted."""
        with self._changed:
            self._changed.wait_for(lambda: not self._kept, timeout_s)

    def close(self) -> None:
        """Publish nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.shutdown(cancel_futures=True)
        self._writer = None

    def _release(self, posts: Iterable[Post], name: str) -> None:
        for post in posts:
            post.owed.discard(name)
            if not post.owed:
                self._kept.pop(post.number, None)
        self._changed.notify_all()

    # On the board's thread ------------------------------------------------------------------------

    def _publish(self, post: Post) -> None:
        read_by = set[str]()
        try:
            read_by = self._readers_of(post)
            if len(read_by) < 2 or not self._write(post):
                read_by = set()
        except Exception:  # they are sent it, then
            log.exception("board")
            read_by = set()
        with self._changed:
            post.read_by, post.settled = frozenset(read_by), True
            for name in set(post.owed) - read_by:
                self._release([post], name)
            kept = [number for number, its in self._kept.items() if its.settled]
            nbytes = sum(len(self._kept[number].body) for number in kept)
            for number in sorted(kept):
                if nbytes > self._room:
                    nbytes -= len(self._kept.pop(number).body)
            self._changed.notify_all()
        self._settled(post)

    def _readers_of(self, post: Post) -> set[str]:
        """Who of those whom it is for reads; waits for those who are about to."""
        with self._changed:
            while True:
                self._match(post.owed)
                now, read_by, due = time.monotonic(), set(), False
                for name in post.owed:
                    reader = self._readers.get(name)
                    if reader and reader.matched:
                        read_by.add(name)
                    elif reader and now < reader.invited + JOIN_S and self._present(name):
                        due = True
                if not due or self._closed:
                    return read_by
                self._changed.wait(TICK_S)

    def _match(self, names: Iterable[str]) -> None:
        """Look which of those who say that they read are known to DDS here."""
        readers = [self._readers[name] for name in names if name in self._readers]
        if all(reader.matched or not reader.place for reader in readers):
            return
        places = set()
        for handle in domain.matched(self._writer.get_matched_subscriptions) or ():
            # A stranger may describe itself so that Cyclone's wrapper trips; who goes is none.
            with suppress(Exception):
                found = self._writer.get_matched_subscription_data(handle)
                places.add(found.participant_key.bytes)
        for reader in readers:
            reader.matched |= bool(reader.place) and reader.place in places

    def _write(self, post: Post) -> bool:
        post.digest = digest(post.body)
        seal = Seal(0, 0, 1, AESGCM(post.key), [], self._buffer)
        for part in seal.cut(post.number, post.body):
            begun = time.monotonic()
            while not self._tries(part):
                if self._closed or not post.owed:
                    return False
                if time.monotonic() > begun + self._patience_s:
                    log.warning("some reader takes nothing of what is posted for all: each is sent")
                    self._rests_until = time.monotonic() + REST_S
                    return False
        return True

    def _tries(self, part: Segment) -> bool:
        """Whether the part went out, within :data:`domain.BLOCK_S`."""
        try:
            self._writer.write(part)
        except DDSException as error:
            if error.code != DDSException.DDS_RETCODE_TIMEOUT:
                raise
            return False
        return True


# Who reads ----------------------------------------------------------------------------------------


class Receiver(Protocol):
    """Hears, on the reader's thread, what becomes of what it awaits."""

    def fill(self, posted: Posted, body: bytes) -> None:
        """It is there."""

    def ask(self, posted: Posted) -> None:
        """Not all of it comes: ask the sender for it."""

    def lose(self, posted: Posted, why: str) -> None:
        """Nor has the sender answered."""


@dataclass(eq=False)
class _Awaited:
    posted: Posted
    receiver: Receiver
    since: float
    seal: AESGCM
    pieces: dict[int, bytes] | None = field(default_factory=dict)
    """What is opened, by where it starts; None where it is not what was posted."""
    nbytes: int = 0
    asked: float | None = None


@dataclass(eq=False)
class _Followed:
    """A board that is read, if any yet."""

    board: str
    reader: DataReader | None = None
    condition: ReadCondition | None = None
    reads: Callable[[], object] | None = None
    """To be called when it is read, until it was."""
    latest: int = -1
    """The last post that was for this member."""
    progress: float = -1.0
    """When anything last came of what is awaited."""


@dataclass(eq=False)
class _Unknown:
    """Parts of a post that may be for this member, or for others only."""

    parts: list[Segment] = field(default_factory=list)
    nbytes: int = 0
    latest: float = 0.0


class Reading:
    """A member's end: one thread for all boards that it reads.

    Parameters
    ----------
    limit: bytes of the longest body.
    room: bytes of the parts that are kept of what is not known yet; the oldest go first.
    patience_s: when so long nothing has come of what is awaited, some is missed; and of what is
        not known yet, it is for others.
    failed: is told of an error that ended it.
    """

    def __init__(
        self,
        participant: DomainParticipant,
        limit: int,
        room: int,
        patience_s: float,
        failed: Callable[[Exception], object],
    ) -> None:
        self._participant, self._limit, self._room = participant, limit, room
        self._patience_s, self._failed = patience_s, failed
        self._followed: dict[str, _Followed] = {}
        self._awaited: dict[tuple[str, int], _Awaited] = {}
        self._unknown: dict[tuple[str, int], _Unknown] = {}
        """By board and number; of which a part came last, last."""
        self._unknown_bytes = 0
        self._todo: deque[tuple[Callable, tuple]] = deque()
        self._ended = False
        self._arrived = WaitSet(participant)
        self._called = GuardCondition(participant)
        self._arrived.attach(self._called)
        self._thread = threading.Thread(target=self._run, name="board reader", daemon=True)
        self._thread.start()

    def follow(self, whose: str, board: str, reads: Callable[[], object]) -> None:
        """Read this board of a member, and no earlier one; ``reads`` is called once it does."""
        self._do(self._follow, whose, board, reads)

    def expect(self, whose: str, posted: Posted, receiver: Receiver) -> None:
        """Look for what this member has posted."""
        self._do(self._expect, whose, posted, receiver)

    def drop(self, posted: Posted) -> None:
        """Look for it no more."""
        self._do(self._drop, posted)

    def close(self) -> None:
        """Read nothing more."""
        self._ended = True
        self._called.set(True)
        self._thread.join()
        self._followed.clear()
        self._arrived = self._called = None

    def _do(self, *what: Any) -> None:
        self._todo.append((what[0], what[1:]))
        self._called.set(True)

    # On the thread that reads ---------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ended:
                self._arrived.wait(duration(seconds=self._pause_s()))
                self._called.set(False)
                while self._todo:
                    act, arguments = self._todo.popleft()
                    act(*arguments)
                for its in list(self._followed.values()):
                    self._take(its)
                self._look()
        except Exception as error:
            log.exception("board reader")
            self._failed(error)

    def _pause_s(self) -> float:
        if self._awaited or any(its.reads for its in self._followed.values()):
            return TICK_S
        return self._patience_s if self._unknown else WAKE_S

    def _follow(self, whose: str, board: str, reads: Callable[[], object] | None) -> None:
        its = self._followed.get(whose)
        if its is None or its.board != board:
            if its is not None:
                self._arrived.detach(its.condition)
                for one in [one for one in self._unknown if one[0] == its.board]:
                    self._lose(*one)
            its = self._followed[whose] = _Followed(board)
            topic = Topic(self._participant, f"{TOPIC}/{board}", Segment)
            its.reader = DataReader(self._participant, topic, _read(self._limit))
            its.condition = ReadCondition(its.reader, domain.ANY)
            self._arrived.attach(its.condition)
        its.reads = reads

    def _expect(self, whose: str, posted: Posted, receiver: Receiver) -> None:
        followed = self._followed.get(whose)
        is_read = followed is not None and followed.board == posted.board
        if not is_read:
            self._follow(whose, posted.board, None)
        its = self._followed[whose]
        its.latest = max(its.latest, posted.number)
        seal = AESGCM(bytes.fromhex(posted.key))
        awaited = _Awaited(posted, receiver, time.monotonic(), seal)
        self._awaited[posted.board, posted.number] = awaited
        if not is_read:
            self._ask(awaited)
        for board, number in list(self._unknown):
            if board == posted.board and number <= its.latest:
                parts = self._lose(board, number)
                for part in parts if number == posted.number else ():
                    self._open(its, awaited, part)

    def _drop(self, posted: Posted) -> None:
        self._awaited.pop((posted.board, posted.number), None)

    def _take(self, its: _Followed) -> None:
        for part in its.reader.take(BATCH):
            try:
                if isinstance(part, InvalidSample):
                    continue
                segments.check(part, self._limit)
            except Refused:
                continue
            if awaited := self._awaited.get((its.board, part.number)):
                self._open(its, awaited, part)
            elif part.number > its.latest:
                self._keep(its.board, part)

    def _keep(self, board: str, part: Segment) -> None:
        its = self._unknown.pop((board, part.number), None) or _Unknown()
        self._unknown[board, part.number] = its
        nbytes = len(part.body) + ENTRY_BYTES
        its.parts.append(part)
        its.nbytes, its.latest = its.nbytes + nbytes, time.monotonic()
        self._unknown_bytes += nbytes
        while self._unknown_bytes > self._room:
            self._lose(*next(iter(self._unknown)))

    def _lose(self, board: str, number: int) -> list[Segment]:
        its = self._unknown.pop((board, number))
        self._unknown_bytes -= its.nbytes
        return its.parts

    def _open(self, its: _Followed, awaited: _Awaited, part: Segment) -> None:
        posted, pieces = awaited.posted, awaited.pieces
        if pieces is None or part.start in pieces or part.total != posted.size:
            return
        place = segments.nonce(part.number, part.start)
        try:
            piece = awaited.seal.decrypt(place, part.body, segments.head(part))
        except InvalidTag:
            return  # of somebody else
        pieces[part.start] = piece
        awaited.nbytes += len(piece)
        its.progress = time.monotonic()
        if awaited.nbytes < posted.size:
            return
        body = b"".join(pieces[start] for start in sorted(pieces))
        if digest(body) == posted.digest:
            self._drop(posted)
            awaited.receiver.fill(posted, body)
            return
        awaited.pieces = None  # of another who has the key
        if awaited.asked is None:
            self._ask(awaited)

    def _ask(self, awaited: _Awaited) -> None:
        awaited.asked = time.monotonic()
        awaited.receiver.ask(awaited.posted)

    def _look(self) -> None:
        """See whether a board is read by now, and what has not come."""
        for its in self._followed.values():
            if its.reads and domain.matched(its.reader.get_matched_publications):
                reads, its.reads = its.reads, None
                reads()
        now = time.monotonic()
        while self._unknown:
            which, its = next(iter(self._unknown.items()))
            if now <= its.latest + self._patience_s:
                break
            self._lose(*which)
        progress = {its.board: its.progress for its in self._followed.values()}
        for awaited in list(self._awaited.values()):
            posted = awaited.posted
            since = max(awaited.since, progress.get(posted.board, -1.0))
            if awaited.asked is None:
                if now > since + self._patience_s:
                    self._ask(awaited)
            elif now > awaited.asked + ANSWER_S + posted.size / SLOWEST:
                self._drop(posted)
                why = f"{posted.size} bytes that it had posted for all did not come, nor an answer"
                awaited.receiver.lose(posted, why)


def _written() -> Qos:
    """The writer waits for the acknowledgements of all, which need not have taken anything."""
    return Qos(*domain.RELIABLE, Policy.History.KeepAll)


def _read(limit: int) -> Qos:
    """The newest parts displace the oldest, so that the reader always takes more."""
    return Qos(*domain.RELIABLE, Policy.History.KeepLast(min(domain.UNREAD, 2 * -(-limit // CUT))))
