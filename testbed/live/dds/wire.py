"""The engine's messages over DDS: a topic for each pair of members, sealed as all on DDS is here.

A message waits until its receiver hears this member, and then DDS loses nothing as long as the two
hear each other. Whoever is out of reach for longer than the lease counts as gone; if it comes back,
what was under way is lost, which the numbers of the messages show, and the next one is refused.

A body that is for several is published once, on a board (:mod:`.board`), and what goes over the
topic of each pair is its head. It arrives when both are there, in the order of its sender's
messages, of which later ones wait.

Of ``head["board"]``, which tells what of a board a message is about, ``what`` is one of::

    sender -> receiver   open    board: read this one
                         post    board, number, size, key, digest of the body of this message
                         gives   board, number: the body is here
                         gone    board, number: it is not kept any more
    receiver -> sender   reads   board, place in the network: what is posted comes here
                         wants   board, number: it has not come
                         has     board, number: it has
"""

from __future__ import annotations

import json
import math
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from slowlink.testbed.live.dds.board import Board, Post, Posted, Reading, board_of
from slowlink.testbed.live.dds.channel import TICK_S, Channel, Delivery
from slowlink.testbed.live.dds.domain import DomainConfig, connect
from slowlink.testbed.live.dds.segments import Refused
from slowlink.testbed.live.dds.sessions import Access
from slowlink.testbed.live.identity import Keys
from slowlink.testbed.live.wire import (
    ENTRY_BYTES,
    FLUSH_S,
    MAX_HEAD,
    OWN,
    Inbox,
    Received,
    check_message,
    whole,
)

TOPIC = "slowlink/{}/{}"
"""Of what two members say to each other, by their numbers."""

LENGTH = struct.Struct("<I")
"""Bytes of the head, which comes before the body."""

PAYS = 1 << 16
"""Bytes of the shortest body that is published once instead of sent to each.

To publish takes longer by what is said beside it: on two cores 1 ms with two receivers and 3 ms
with eight, where a link of 100 Mbit/s takes 5 ms for each copy of so many bytes.
"""


class DdsWire:
    """One member's topics.

    Parameters
    ----------
    name: of this member.
    domain, network: where the others are, see :func:`testbed.live.dds.domain.connect`.
    run: name that no other run in the domain has.
    members: all of them, in the order in which each one has them.
    keys: identities; None for none, see :mod:`testbed.live.dds.sessions`.
    watches, above, heartbeat_s, stall_s, limit_bytes, queue_bytes: see
        :class:`testbed.live.wire.ZmqWire`.

    Raises
    ------
    ConnectionError
        The network cannot be entered.
    """

    def __init__(
        self,
        name: str,
        domain: int,
        network: DomainConfig,
        run: str,
        members: Sequence[str],
        *,
        keys: Keys | None = None,
        watches: bool = False,
        above: str = "",
        heartbeat_s: float = 1.0,
        stall_s: float = math.inf,
        limit_bytes: int = 2**30,
        queue_bytes: int = 2**33,
    ) -> None:
        self.name, self.members = name, frozenset(members)
        self.address = f"dds://{domain}"
        self.heard: dict[str, float] = {}
        self.run, self.keys, self.lease_s = run, keys, network.lease_s
        self.watches, self.above = watches, above
        self.heartbeat_s, self.stall_s, self.limit_bytes = heartbeat_s, stall_s, limit_bytes
        self.numbers = {member: number for number, member in enumerate(members)}
        self.inbox = Inbox(queue_bytes)
        self.called = time.monotonic()
        """When the member's own thread last came by."""
        self._lines: dict[str, _Line] = {}
        self.board: Board | None = None
        self._reading: Reading | None = None
        self._making = threading.Lock()
        self.participant = connect(domain, network, run)
        if watches:  # who watches must be there for all who come
            self.connect(dict.fromkeys(self.members - {name}, self.address))

    def connect(self, addresses: Mapping[str, str]) -> None:
        for name in addresses:
            if name in self._lines:
                self._lines[name].renew()
            else:
                self._lines[name] = _Line(self, name)

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._lines:
                self._lines[name].renew(muted=True)

    def send(self, to: str, head: Mapping[str, Any], body: bytes = b"") -> None:
        check_message(to, head, body, self.limit_bytes)
        self.called = time.monotonic()
        if to in self._lines:
            self._lines[to].put(_Message(dict(head), body))

    def send_all(self, to: Mapping[str, Mapping[str, Any]], body: bytes) -> None:
        for name, head in to.items():
            check_message(name, head, body, self.limit_bytes)
        self.called = time.monotonic()
        lines = {name: self._lines[name] for name in to if name in self._lines}
        post = self._post([name for name, line in lines.items() if not line.muted], body)
        for name, line in lines.items():
            line.put(_Message(dict(to[name]), body, post))

    def _post(self, names: Sequence[str], body: bytes) -> Post | None:
        """Publish it for these members, where that pays."""
        if len(names) < 2 or len(body) < PAYS:
            return None
        if self.board is None:
            room = self.inbox.queue_bytes
            self.board = Board(self.participant, room, self.lease_s, self._present, self._settled)
        for name in names:
            if self.board.invite(name):
                self._lines[name].say("open", self.board.board)
        return self.board.post(names, body)

    def _present(self, name: str) -> bool:
        line = self._lines.get(name)
        return line is not None and line.present

    def _settled(self, post: Post) -> None:
        for name in post.names:
            if line := self._lines.get(name):
                line.look_up()

    def reading(self) -> Reading:
        """What this member reads the boards of others with; any line's thread may be the first."""
        with self._making:
            if self._reading is None:
                longest = self.limit_bytes + MAX_HEAD
                room = min(self.inbox.queue_bytes, 2 * longest)
                of = self.participant, longest, room, self.lease_s, self.inbox.fail
                self._reading = Reading(*of)
            return self._reading

    def receive(self, timeout_s: float) -> Received | None:
        self.called = time.monotonic()
        return self.inbox.get(timeout_s)

    def close(self, flush_s: float = FLUSH_S) -> None:
        until = time.monotonic() + flush_s
        if self.board:
            self.board.flush(flush_s)
        for line in self._lines.values():
            line.end()
        for line in self._lines.values():
            line.close(max(0.0, until - time.monotonic()))
        for its in (self.board, self._reading):
            if its:
                its.close()
        self.board = self._reading = None
        self._lines.clear()
        self.participant = None  # its network is left with the object


@dataclass(eq=False)
class _Message:
    """What is to be sent; its body perhaps on the board, once the ``post`` is settled."""

    head: dict[str, Any]
    body: bytes = b""
    post: Post | None = None


@dataclass(eq=False)
class _Waiting:
    """What has come and waits for its body, or for messages before it."""

    head: dict[str, Any]
    head_bytes: int
    body_bytes: int
    body: bytes | None = None
    posted: Posted | None = None

    @property
    def size(self) -> int:
        """As :attr:`Received.size`."""
        return self.head_bytes + self.body_bytes + ENTRY_BYTES


class _Line:
    """The topic that is shared with one other member, and a thread that sends what waits for it."""

    def __init__(self, wire: DdsWire, name: str) -> None:
        self.wire, self.name = wire, name
        mine, self.number = wire.numbers[wire.name], wire.numbers[name]
        self.beats = wire.watches or name == wire.above
        self._queue: deque[_Message] = deque()
        self._own: deque[_Message] = deque()
        """What the wire itself says, which goes first."""
        self._changed = threading.Condition()
        self._stream = self._sent = 0
        self.muted = self._ended = False
        self._life, self._heard_stream, self._due = -1, 0, 0
        """The process and the stream that messages come from, and the number that is due."""
        self._posted: tuple[str, int] | None = None
        """The board that the other has posted on last, and the number of the post."""
        self._held: deque[_Waiting] = deque()
        self._holding = threading.Lock()
        low, high = sorted((mine, self.number))
        self.channel = Channel(
            wire.participant,
            TOPIC.format(low, high),
            mine,
            Access(wire.run, {mine: wire.name, self.number: name}, wire.keys),
            self._take,
            self._left,
            wire.inbox.fail,
            limit=wire.limit_bytes + 2 * MAX_HEAD,
        )
        self._thread = threading.Thread(target=self._run, name=f"to {name}", daemon=True)
        self._thread.start()

    # On the member's own thread -------------------------------------------------------------------

    def put(self, message: _Message) -> None:
        with self._changed:
            if not self.muted:
                self._queue.append(message)
                self._changed.notify()

    def renew(self, muted: bool = False) -> None:
        """Drop what is unsent, and begin to count anew; muted, until the next time."""
        with self._changed:
            self._queue.clear()
            # What is said of the other's board is of what comes from there, which goes on.
            self._own = deque(own for own in self._own if not own.body and not muted)
            self._stream, self._sent, self.muted = self._stream + 1, 0, muted
            self._changed.notify()
        self._forget()
        if muted:
            self._drop()

    def end(self) -> None:
        """End as soon as all is sent."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def close(self, flush_s: float) -> None:
        begun = time.monotonic()
        self._thread.join(flush_s)
        self.renew(muted=True)
        self.channel.close(max(0.0, flush_s - (time.monotonic() - begun)))
        self._thread.join()

    # On any thread --------------------------------------------------------------------------------

    def say(self, what: str, board: str, body: bytes = b"", **fields: Any) -> None:
        """Say something about a board."""
        with self._changed:
            if not self.muted:
                its = dict(what=what, board=board, **fields)
                self._own.append(_Message(dict(board=its), body))
                self._changed.notify()

    def look_up(self) -> None:
        """See whether what waits may go now."""
        with self._changed:
            self._changed.notify()

    @property
    def present(self) -> bool:
        """Whether the other is there now."""
        with suppress(ConnectionError):  # which has been told
            return self.number in self.channel.members()
        return False

    def _forget(self) -> None:
        """Nothing that is on this member's board is for the other any more."""
        if self.wire.board:
            self.wire.board.forget(self.name)

    # On the thread that sends ---------------------------------------------------------------------

    def _run(self) -> None:
        with suppress(ConnectionError):  # the channel is closed, or has failed and said so
            while True:
                with self._changed:
                    self._changed.wait_for(self._called, self.wire.heartbeat_s)
                    if self._ended and not self._queue and not self._own:
                        return
                if self.channel.wait_for({self.number}, TICK_S):
                    continue  # nobody is there yet
                with self._changed:
                    if (due := self._due_queue()) is not None:
                        message = due.popleft()
                        message.head |= dict(stream=self._stream, number=self._sent)
                        self._sent += 1
                    elif self.beats and time.monotonic() - self.wire.called <= self.wire.stall_s:
                        message = _Message(dict(beat=True))
                    else:
                        continue
                self._send(message)

    def _called(self) -> bool:
        done = self._ended and not self._queue and not self._own
        return done or self._due_queue() is not None

    def _due_queue(self) -> deque[_Message] | None:
        """Where the next message is; None where there is none, or it is about to be published."""
        if self._own:
            return self._own
        its = self._queue
        return its if its and (its[0].post is None or its[0].post.settled) else None

    def _send(self, message: _Message) -> None:
        head, body = message.head, message.body
        if message.post and (posted := self.wire.board.posted(message.post, self.name)):
            head, body = head | dict(board=dict(what="post") | asdict(posted)), b""
        text = json.dumps(head).encode()
        data = b"".join((LENGTH.pack(len(text)), text, body))
        self.channel.send(data, timeout_s=math.inf)

    # On the thread that receives ------------------------------------------------------------------

    def _take(self, message: Delivery) -> None:
        inbox = self.wire.inbox
        if self.name in inbox.barred:
            return
        head, body = _parts(message.payload)
        head_bytes = len(message.payload) - len(body)
        self.wire.heard[self.name] = time.monotonic()
        if head.get("beat"):
            inbox.put(Received(self.name, {"kind": "heartbeat", "address": self.wire.address}))
            return
        try:
            stream, number = whole(head, "stream"), whole(head, "number")
        except ValueError as error:
            raise Refused("form", str(error)) from None
        if message.life != self._life:  # what it sent to an earlier process of this member is lost
            self._drop()
            self._life, self._heard_stream, self._due = message.life, stream, number
        elif stream != self._heard_stream:
            self._drop()
            self._heard_stream, self._due = stream, 0
        due, self._due = self._due, number + 1
        if number != due:
            inbox.refuse(self.name, f"messages {due} to {number - 1} before it are lost")
            return
        if len(body) > self.wire.limit_bytes + MAX_HEAD:
            why = f"payload of {len(body)} bytes, at most {self.wire.limit_bytes} fit"
            inbox.refuse(self.name, why)
            return
        its = head.get("board")
        head = {name: value for name, value in head.items() if name not in OWN}
        if its is None:
            self._hold(_Waiting(head, head_bytes, len(body), body))
            return
        try:
            self._hear(its, head, head_bytes, body)
        except ValueError as error:
            inbox.refuse(self.name, f"of a board: {error}")

    def _hear(self, its: Any, head: dict[str, Any], head_bytes: int, body: bytes) -> None:
        """What the other says of a board; raises ValueError."""
        if not isinstance(its, dict):
            raise ValueError(f"board must be an object, not {its!r:.99}")
        what, board, own = its.get("what"), board_of(its), self.wire.board
        if what == "open":

            def reads() -> None:
                self.say("reads", board, place=self.wire.participant.guid.bytes.hex())

            self.wire.reading().follow(self.name, board, reads)
        elif what == "post":
            posted = Posted.of(its)
            if posted.size > self.wire.limit_bytes + MAX_HEAD:
                most = self.wire.limit_bytes
                raise ValueError(f"payload of {posted.size} bytes, at most {most} fit")
            if self._posted and self._posted[0] == board and posted.number <= self._posted[1]:
                raise ValueError(f"post {posted.number} comes after {self._posted[1]}")
            self._posted = board, posted.number
            if self._hold(_Waiting(head, head_bytes, posted.size, None, posted)):
                self.wire.reading().expect(self.name, posted, self)
        elif what in ("gives", "gone"):
            number = whole(its, "number")
            with self._holding:
                awaited = [one.posted for one in self._held if one.posted and one.body is None]
            for posted in awaited:
                if (posted.board, posted.number) == (board, number):
                    self.wire.reading().drop(posted)
                    if what == "gives" and len(body) == posted.size:
                        self.fill(posted, body)
                    else:
                        self.lose(posted, "what it had posted for all is lost, and not there anew")
        elif own is None or own.board != board:
            return  # of an earlier process
        elif what == "reads":
            own.reads(self.name, bytes.fromhex(str(its.get("place"))))
        elif what == "has":
            own.has(whole(its, "number"), self.name)
        elif what == "wants":
            number = whole(its, "number")
            body = own.asked(number, self.name)
            if body is None:
                self.say("gone", board, number=number)
            else:
                self.say("gives", board, body, number=number)
        else:
            raise ValueError(f"nothing is called {what!r:.99}")

    def _left(self, _: int) -> None:
        self._forget()
        # Where another process is in the place of the one that is gone, nobody has left.
        if self.wire.watches and self.number not in self.channel.members():
            reason = f"its process is gone, or out of reach for {self.wire.lease_s:g} s"
            self.wire.inbox.put(Received(self.name, {"kind": "left", "reason": reason}))

    # On the thread that receives, and that of the boards ------------------------------------------

    def _hold(self, message: _Waiting) -> bool:
        """Take a message; False where no more of them are."""
        with self._holding:
            if self.wire.inbox.admit(self.name, message.size):
                self._held.append(message)
                self._hand_on()
                return True
        self._drop()
        return False

    def _hand_on(self) -> None:
        while self._held and (body := self._held[0].body) is not None:
            its = self._held.popleft()
            self.wire.inbox.hand_on(Received(self.name, its.head, body, its.head_bytes))

    def _drop(self) -> None:
        """Wait for nothing of what was under way."""
        with self._holding:
            dropped = list(self._held)
            self._held.clear()
        for one in dropped:
            self.wire.inbox.leave_out(self.name, one.size)
            if one.posted and one.body is None:
                self.wire.reading().drop(one.posted)

    def fill(self, posted: Posted, body: bytes) -> None:
        with self._holding:
            for one in self._held:
                if one.posted == posted and one.body is None:
                    one.body = body
                    break
            self._hand_on()
        self.say("has", posted.board, number=posted.number)

    def ask(self, posted: Posted) -> None:
        self.say("wants", posted.board, number=posted.number)

    def lose(self, posted: Posted, why: str) -> None:
        with self._holding:
            for one in self._held:
                if one.posted == posted and one.body is None:
                    self._held.remove(one)
                    self.wire.inbox.leave_out(self.name, one.size)
                    if self.present:  # else it is known to be gone
                        self.wire.inbox.refuse(self.name, why)
                    break
            self._hand_on()


def _parts(payload: bytes | memoryview) -> tuple[dict[str, Any], bytes]:
    """Head and body of a message. Raises Refused."""
    try:
        (length,) = LENGTH.unpack_from(payload)
        end = LENGTH.size + length
        if end > len(payload) or length > MAX_HEAD:
            raise ValueError(f"head of {length} bytes in {len(payload)}")
        head = json.loads(bytes(payload[LENGTH.size : end]))
        if not isinstance(head, dict):
            raise ValueError("head is no object")
    except (struct.error, ValueError, RecursionError) as error:
        raise Refused("form", str(error)) from None
    return head, bytes(payload[end:])
