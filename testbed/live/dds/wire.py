"""The engine's messages over DDS: a topic for each pair of members, sealed as all on DDS is here.

A message waits until its receiver hears this member, and then DDS loses nothing as long as the two
hear each other. Whoever is out of reach for longer than the lease counts as gone; if it comes back,
what was under way is lost, which the numbers of the messages show, and the next one is refused.
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
from typing import Any

from slowlink.testbed.live.dds.channel import TICK_S, Channel, Delivery
from slowlink.testbed.live.dds.domain import DomainConfig, connect
from slowlink.testbed.live.dds.segments import Refused
from slowlink.testbed.live.dds.sessions import Access
from slowlink.testbed.live.identity import Keys
from slowlink.testbed.live.wire import (
    FLUSH_S,
    MAX_HEAD,
    OWN,
    Inbox,
    Received,
    check_message,
    whole,
)

LENGTH = struct.Struct("<I")
"""Bytes of the head, which comes before the body."""


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
        self.participant = connect(domain, network)
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
            self._lines[to].put(dict(head), body)

    def receive(self, timeout_s: float) -> Received | None:
        self.called = time.monotonic()
        return self.inbox.get(timeout_s)

    def close(self, flush_s: float = FLUSH_S) -> None:
        until = time.monotonic() + flush_s
        for line in self._lines.values():
            line.end()
        for line in self._lines.values():
            line.close(max(0.0, until - time.monotonic()))
        self._lines.clear()
        self.participant = None  # its network is left with the object


class _Line:
    """The topic that is shared with one other member, and a thread that sends what waits for it."""

    def __init__(self, wire: DdsWire, name: str) -> None:
        self.wire, self.name = wire, name
        mine, self.number = wire.numbers[wire.name], wire.numbers[name]
        self.beats = wire.watches or name == wire.above
        self._queue: deque[tuple[dict, bytes]] = deque()
        self._changed = threading.Condition()
        self._stream = self._sent = 0
        self._muted = self._ended = False
        self._life, self._heard_stream, self._due = -1, 0, 0
        """The process and the stream that messages come from, and the number that is due."""
        low, high = sorted((mine, self.number))
        self.channel = Channel(
            wire.participant,
            f"slowlink/{low}/{high}",
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

    def put(self, head: dict[str, Any], body: bytes) -> None:
        with self._changed:
            if not self._muted:
                self._queue.append((head, body))
                self._changed.notify()

    def renew(self, muted: bool = False) -> None:
        """Drop what is unsent, and begin to count anew; muted, until the next time."""
        with self._changed:
            self._queue.clear()
            self._stream, self._sent, self._muted = self._stream + 1, 0, muted

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

    # On the thread that sends ---------------------------------------------------------------------

    def _run(self) -> None:
        with suppress(ConnectionError):  # the channel is closed, or has failed and said so
            while True:
                with self._changed:
                    self._changed.wait_for(self._called, self.wire.heartbeat_s)
                    if self._ended and not self._queue:
                        return
                if self.channel.wait_for({self.number}, TICK_S):
                    continue  # nobody is there yet
                with self._changed:
                    if self._queue:
                        head, body = self._queue.popleft()
                        head |= dict(stream=self._stream, number=self._sent)
                        self._sent += 1
                    elif self.beats and time.monotonic() - self.wire.called <= self.wire.stall_s:
                        head, body = dict(beat=True), b""
                    else:
                        continue
                text = json.dumps(head).encode()
                message = b"".join((LENGTH.pack(len(text)), text, body))
                self.channel.send(message, timeout_s=math.inf)

    def _called(self) -> bool:
        return bool(self._queue) or self._ended

    # On the thread that receives ------------------------------------------------------------------

    def _take(self, message: Delivery) -> None:
        inbox = self.wire.inbox
        if self.name in inbox.barred:
            return
        head, body = _parts(message.payload)
        self.wire.heard[self.name] = time.monotonic()
        if head.get("beat"):
            inbox.put(Received(self.name, {"kind": "heartbeat", "address": self.wire.address}))
            return
        try:
            stream, number = whole(head, "stream"), whole(head, "number")
        except ValueError as error:
            raise Refused("form", str(error)) from None
        if message.life != self._life:  # what it sent to an earlier process of this member is lost
            self._life, self._heard_stream, self._due = message.life, stream, number
        elif stream != self._heard_stream:
            self._heard_stream, self._due = stream, 0
        due, self._due = self._due, number + 1
        if number != due:
            inbox.refuse(self.name, f"messages {due} to {number - 1} before it are lost")
            return
        if len(body) > self.wire.limit_bytes + MAX_HEAD:
            why = f"payload of {len(body)} bytes, at most {self.wire.limit_bytes} fit"
            inbox.refuse(self.name, why)
            return
        head = {name: value for name, value in head.items() if name not in OWN}
        inbox.put(Received(self.name, head, body))

    def _left(self, _: int) -> None:
        # Where another process is in the place of the one that is gone, nobody has left.
        if self.wire.watches and self.number not in self.channel.members():
            reason = f"its process is gone, or out of reach for {self.wire.lease_s:g} s"
            self.wire.inbox.put(Received(self.name, {"kind": "left", "reason": reason}))


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
