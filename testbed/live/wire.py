"""Carries messages between the members of a run: the contract, and ZeroMQ over TCP.

Every member listens at one socket (ROUTER) and has another (DEALER) for each member it sends to,
over which receipts come back. TCP loses nothing while a connection lasts; when one breaks, all that
has no receipt yet is sent again, and what arrives twice is dropped. Bodies are cut into slices, so
that no message of ZeroMQ is large.

With keys (:mod:`testbed.live.identity`) every connection is encrypted and authenticated at both
ends by CURVE, ZeroMQ's own (https://rfc.zeromq.org/spec/26): a member knows the public keys of all
others, and who sends is told by the key of the connection, so that nobody can speak for another. A
stranger gets no further than the handshake, and its address and key are logged. A member that is
struck off the list is no longer heard, and counts as lost.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from slowlink.testbed.live.identity import Keys

VERSION = 1
MAX_HEAD = 2**20
"""Bytes of a message without its body."""

OWN = ("v", "sender", "stream", "dial", "number", "at", "size", "beat", "board")
"""Fields of a head that the wire fills in."""

WAITING = 64
"""Pieces of one connection that ZeroMQ holds until they are read; TCP slows the sender then."""

ENTRY_BYTES = 1024
"""What a message without a body counts for among those that wait to be received."""

ZAP = "inproc://zeromq.zap.01"
"""Where ZeroMQ asks whether a key may come in (https://rfc.zeromq.org/spec/27)."""

FUTURE_NS = 3600 * 10**9
"""A stream is named by the time at which it began; clocks may be wrong by so much."""

RETRY_MS = 100
CONNECT_MS = 2000
FLUSH_S = 2.0
BATCH = 64
"""Pieces that are read in a row, so that heartbeats do not wait for the end of a stream."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Received:
    """A message as it arrived.

    Attributes
    ----------
    sender: the member that sent it.
    head: its ``kind``, and other small data that JSON can carry.
    body: bytes, of at most the wire's limit.
    head_bytes: what the head held as it came; what a member fills others' memory with counts whole.
    """

    sender: str
    head: dict[str, Any]
    body: bytes = b""
    head_bytes: int = field(default=0, compare=False)

    @property
    def kind(self) -> Any:
        return self.head.get("kind")

    @property
    def size(self) -> int:
        """Bytes that it counts for while it waits."""
        return self.head_bytes + len(self.body) + ENTRY_BYTES


class Unreadable(ValueError):
    """What a member sent and cannot be taken; names the sender."""

    def __init__(self, sender: str, why: str) -> None:
        super().__init__(f"message of {sender} refused: {why}")
        self.sender = sender


class Wire(Protocol):
    """Carries messages between named members: each whole, once, and in order.

    A member with nothing else to send is heard of by ``heartbeat``, and ``left`` is what who
    watches the others receives when one is gone.

    Attributes
    ----------
    name: of this member.
    address: at which others connect with it.
    members: whom it listens to.
    heard: by member, the monotonic time (s) at which anything last came from it.
    """

    name: str
    address: str
    members: frozenset[str]
    heard: Mapping[str, float]

    def connect(self, addresses: Mapping[str, str]) -> None:
        """Connect with members at these addresses; drop what is still unsent from before."""

    def forget(self, names: Iterable[str]) -> None:
        """Send these members nothing any more."""

    def send(self, to: str, head: Mapping[str, Any], body: bytes = b"") -> None:
        """Send once, in order; does not wait. Raises ValueError where the message is too large."""

    def send_all(self, to: Mapping[str, Mapping[str, Any]], body: bytes) -> None:
        """Send several members the same body, each with a head of its own, as :meth:`send` does.

        Nobody is sent anything where one of the messages is too large.
        """

    def receive(self, timeout_s: float) -> Received | None:
        """The next message of anybody, None if there is none in time.

        Raises
        ------
        Unreadable
            What came from a member cannot be taken. The message will not come again, so who waits
            for it would wait for ever.
        Exception
            Whatever went wrong in a thread of the wire.
        """

    def close(self, flush_s: float = FLUSH_S) -> None:
        """Wait until what was sent has arrived, at most ``flush_s``; then end."""


class Inbox:
    """What has arrived and waits for the member's own thread.

    Parameters
    ----------
    queue_bytes: of one member's messages that wait; who sends more is ``barred``.
    """

    def __init__(self, queue_bytes: int) -> None:
        self.queue_bytes, self.barred = queue_bytes, set[str]()
        self._queue: queue.SimpleQueue[Received | Exception] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting: dict[str, int] = {}
        """Bytes by sender."""

    def put(self, message: Received) -> None:
        if self.admit(message.sender, message.size):
            self.hand_on(message)

    def admit(self, sender: str, size: int) -> bool:
        """Whether this member's message, of this :attr:`Received.size`, may wait here; it is then
        to be handed on or left out."""
        with self._lock:
            waiting = self._waiting.get(sender, 0) + size
            self._waiting[sender] = waiting
        if waiting <= self.queue_bytes + ENTRY_BYTES * WAITING:
            return True
        self.barred.add(sender)
        self.refuse(sender, f"{waiting} bytes wait to be received, at most {self.queue_bytes}")
        return False

    def hand_on(self, message: Received) -> None:
        """Let the member's own thread have a message that was admitted."""
        self._queue.put(message)

    def leave_out(self, sender: str, size: int) -> None:
        """Wait no more for a message that was admitted."""
        with self._lock:
            self._waiting[sender] -= size

    def refuse(self, sender: str, why: str) -> None:
        self.fail(Unreadable(sender, why))

    def fail(self, error: Exception) -> None:
        """Let the member's own thread meet ``error``."""
        self._queue.put(error)

    def get(self, timeout_s: float) -> Received | None:
        """See :meth:`Wire.receive`."""
        try:
            found = self._queue.get(timeout=timeout_s) if timeout_s > 0 else self._queue.get(False)
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            raise found
        self.leave_out(found.sender, found.size)
        return found


def check_message(to: str, head: Mapping[str, Any], body: bytes, limit_bytes: int) -> None:
    """Raises ValueError for a message that no wire carries."""
    if len(body) > limit_bytes + MAX_HEAD:
        raise ValueError(
            f"{head['kind']} to {to}: {len(body)} bytes, at most {limit_bytes} fit; raise "
            "limit_bytes"
        )
    if taken := [name for name in OWN if name in head]:
        raise ValueError(f"{head['kind']} to {to}: the wire itself fills in {taken[0]}")
    if len(json.dumps(head)) > MAX_HEAD - 1000:
        raise ValueError(f"{head['kind']} to {to}: body of over {MAX_HEAD} bytes")


@dataclass
class _Channel:
    """The messages to one node. ``stream`` tells them from those of earlier channels, and ``dial``
    their pieces from those that an earlier connection may still bring."""

    address: str
    stream: int = field(default_factory=time.time_ns)
    dial: int = 0
    number: int = 0
    unconfirmed: deque[tuple[int, dict, bytes]] = field(default_factory=deque)
    connected: bool = False
    met: bool = False
    """Whether the node was once there and is not known to be gone."""
    key: bytes = b""
    """The node's public key for CURVE."""
    socket: zmq.Socket | None = None
    monitor: zmq.Socket | None = None


@dataclass
class _Incoming:
    """The messages from one node: the stream, the number that is due, and its slices so far."""

    stream: int
    due: int
    dial: int
    head: dict | None = None
    head_bytes: int = 0
    slices: list[bytes] = field(default_factory=list)
    nbytes: int = 0


class ZmqWire:
    """One member's sockets.

    Parameters
    ----------
    name: of this node.
    bind: ``tcp://host:port`` to listen at; port 0 for any.
    members: whom to listen to; what others send is dropped.
    keys: encrypt and authenticate all connections; None for neither.
    watches: whether this is the coordinator: it sends heartbeats to all it is connected with, and
        hears ``left`` from those whose process is seen to be gone.
    above: whom any other node sends heartbeats to, its coordinator.
    heartbeat_s: time between two.
    timeout_s: a connection on which nothing is confirmed for so long is made anew.
    stall_s: after so long without a call by the node's own thread heartbeats pause, for it may
        hang though this thread goes on; they come again with the next call.
    slice_bytes: at most so much of a payload in one piece.
    limit_bytes: longest body to take.
    queue_bytes: of one member's messages that wait to be received; who sends more is barred.

    Raises
    ------
    OSError
        The address cannot be listened at; names it.
    """

    def __init__(
        self,
        name: str,
        bind: str,
        members: Collection[str],
        *,
        keys: Keys | None = None,
        watches: bool = False,
        above: str = "",
        heartbeat_s: float = 1.0,
        timeout_s: float = 5.0,
        stall_s: float = math.inf,
        slice_bytes: int = 2**20,
        limit_bytes: int = 2**30,
        queue_bytes: int = 2**33,
    ) -> None:
        self.name, self.members = name, frozenset(members)
        self.watches, self.above = watches, above
        self.heartbeat_s, self.timeout_s, self.stall_s = heartbeat_s, timeout_s, stall_s
        self._called = time.monotonic()
        self.slice_bytes, self.limit_bytes = slice_bytes, limit_bytes
        self.keys = keys
        self.heard: dict[str, float] = {}
        self._inbox = Inbox(queue_bytes)
        self._older: set[str] = set()
        """Who was once not heard because of the time at which its stream began; it is said once."""
        self._todo: deque[tuple] = deque()
        self._bell, self._ring = socket.socketpair()
        self._bell.setblocking(False)
        self._ring.setblocking(False)
        self._context = zmq.Context()
        self._listener = self._context.socket(zmq.ROUTER)
        self._options(self._listener)
        self._gate: zmq.Socket | None = None
        if keys:
            self._gate = self._context.socket(zmq.REP)
            self._gate.bind(ZAP)
            self._listener.curve_server = True
            self._listener.curve_publickey, self._listener.curve_secretkey = keys.curve()
        self._listener.setsockopt(zmq.MAXMSGSIZE, max(slice_bytes, MAX_HEAD))
        try:
            self._listener.bind(bind)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise OSError(f"{name}: cannot listen at {bind}: {error}") from None
        self.address = self._listener.getsockopt_string(zmq.LAST_ENDPOINT)
        self._channels: dict[str, _Channel] = {}
        self._incoming: dict[str, _Incoming] = {}
        self._poller = zmq.Poller()
        self._closing: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"wire of {name}", daemon=True)
        self._thread.start()

    # For the node's own thread ---------------------------------------------------------------

    def connect(self, addresses: Mapping[str, str]) -> None:
        self._do("connect", dict(addresses))

    def forget(self, names: Iterable[str]) -> None:
        self._do("forget", list(names))

    def send(self, destination: str, head: Mapping[str, Any], body: bytes = b"") -> None:
        check_message(destination, head, body, self.limit_bytes)
        self._do("send", destination, dict(head, sender=self.name, size=len(body)), body)

    def send_all(self, to: Mapping[str, Mapping[str, Any]], body: bytes) -> None:
        for name, head in to.items():
            check_message(name, head, body, self.limit_bytes)
        for name, head in to.items():
            self.send(name, head, body)

    def receive(self, timeout_s: float) -> Received | None:
        self._called = time.monotonic()
        return self._inbox.get(timeout_s)

    def close(self, flush_s: float = FLUSH_S) -> None:
        self._do("close", flush_s)
        self._thread.join()

    def _do(self, *what: Any) -> None:
        self._called = time.monotonic()
        self._todo.append(what)
        # A full pipe wakes the thread just as well.
        with contextlib.suppress(BlockingIOError, OSError):
            self._ring.send(b"!")

    # In the thread of the wire --------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop()
        except Exception as error:
            log.exception("wire")
            self._inbox.fail(error)
        finally:
            self._context.destroy(linger=0)
            self._bell.close()
            self._ring.close()

    def _loop(self) -> None:
        poller, bell = self._poller, self._bell.fileno()
        poller.register(bell, zmq.POLLIN)
        poller.register(self._listener, zmq.POLLIN)
        if self._gate:
            poller.register(self._gate, zmq.POLLIN)
        beat = time.monotonic()
        while not self._over():
            wait = beat - time.monotonic() if self._closing is None else 0.01
            ready = dict(poller.poll(max(0, 1000 * wait)))
            if bell in ready:
                with contextlib.suppress(BlockingIOError):
                    self._bell.recv(4096)
            while self._todo:
                what, *arguments = self._todo.popleft()
                getattr(self, f"_{what}")(*arguments)
            if self._gate in ready:
                self._admit()
            if self._listener in ready:
                self._drain()
            for name, channel in self._channels.items():
                if channel.monitor in ready:
                    self._watch(name, channel)
                if channel.socket in ready:
                    self._confirmed(name, channel)
            if time.monotonic() >= beat:
                beat = time.monotonic() + self.heartbeat_s
                self._revoke()
                self._beat()

    def _revoke(self) -> None:
        """Cut off who was struck off the list since; what still comes from it is dropped."""
        if self.keys and (gone := self._channels.keys() - self.keys.allowed().keys()):
            log.warning("%s: no longer allowed to take part", ", ".join(sorted(gone)))
            self._forget(sorted(gone))

    def _over(self) -> bool:
        if self._closing is None or self._todo:
            return False
        waiting = any(channel.unconfirmed for channel in self._channels.values())
        return not waiting or time.monotonic() >= self._closing

    def _close(self, flush_s: float) -> None:
        self._closing = time.monotonic() + flush_s

    def _options(self, its: zmq.Socket) -> None:
        its.setsockopt(zmq.LINGER, 0)
        its.setsockopt(zmq.SNDHWM, 0)  # what is queued is bounded by a round's payloads
        its.setsockopt(zmq.RCVHWM, WAITING)
        its.setsockopt(zmq.TCP_MAXRT, round(1000 * self.timeout_s))

    def _connect(self, addresses: dict[str, str]) -> None:
        for name, address in addresses.items():
            self._forget([name])
            channel = _Channel(address)
            if self.keys:
                if name not in self.keys.allowed():
                    log.warning("%s is not allowed to take part, and hears nothing", name)
                    continue
                channel.key = self.keys.curve_of(name)
            self._channels[name] = channel
            # Most members say nothing to most others: the rest is dialled when there is something.
            if self.watches or name == self.above:
                self._dial(channel)

    def _forget(self, names: list[str]) -> None:
        for name in names:
            if name in self._channels:
                self._hang_up(self._channels.pop(name))

    def _dial(self, channel: _Channel) -> None:
        channel.socket = self._context.socket(zmq.DEALER)
        self._options(channel.socket)
        channel.socket.setsockopt(zmq.RECONNECT_IVL, RETRY_MS)
        channel.socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
        channel.socket.setsockopt(zmq.MAXMSGSIZE, MAX_HEAD)
        if self.keys:
            channel.socket.curve_publickey, channel.socket.curve_secretkey = self.keys.curve()
            channel.socket.curve_serverkey = channel.key
        channel.monitor = channel.socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
        )
        channel.connected = False
        channel.dial += 1
        channel.socket.connect(channel.address)
        self._poller.register(channel.socket, zmq.POLLIN)
        self._poller.register(channel.monitor, zmq.POLLIN)

    def _hang_up(self, channel: _Channel) -> None:
        if channel.socket is None:
            return
        self._poller.unregister(channel.socket)
        self._poller.unregister(channel.monitor)
        channel.socket.disable_monitor()
        channel.monitor.close(0)
        channel.socket.close(0)

    def _watch(self, name: str, channel: _Channel) -> None:
        while channel.monitor.poll(0):
            event = recv_monitor_message(channel.monitor)["event"]
            channel.connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            channel.met |= channel.connected
            # A process that dies may close this connection first and refuse others a little later.
            gone = self.watches and channel.met and not channel.connected
            if gone and _refused(channel.address):
                channel.met = False
                reason = "its process is gone"
                self._inbox.put(Received(name, {"kind": "left", "reason": reason}))
            if event == zmq.EVENT_DISCONNECTED:
                self._hang_up(channel)
                self._dial(channel)
                for number, head, frame in channel.unconfirmed:
                    self._transmit(channel, number, head, frame)
                return

    def _send(self, destination: str, head: dict, frame: bytes) -> None:
        channel = self._channels.get(destination)
        if channel is None:
            log.info("%s to %s, who is not there: dropped", head["kind"], destination)
            return
        if channel.socket is None:
            self._dial(channel)
        channel.unconfirmed.append((channel.number, head, frame))
        self._transmit(channel, channel.number, head, frame)
        channel.number += 1

    def _transmit(self, channel: _Channel, number: int, head: dict, frame: bytes) -> None:
        view, size = memoryview(frame), self.slice_bytes
        for at in range(0, max(1, len(frame)), size):
            place = dict(v=VERSION, sender=self.name, stream=channel.stream, dial=channel.dial)
            place |= dict(number=number, at=at)
            text = json.dumps(place if at else head | place).encode()
            channel.socket.send(text, zmq.SNDMORE)
            channel.socket.send(view[at : at + size], copy=False)

    def _beat(self) -> None:
        if time.monotonic() - self._called > self.stall_s:
            return
        fields = dict(v=VERSION, sender=self.name, beat=True, address=self.address)
        beat = json.dumps(fields).encode()
        for name, channel in self._channels.items():
            if channel.connected and (self.watches or name == self.above):
                channel.socket.send_multipart([beat, b""])

    def _confirmed(self, name: str, channel: _Channel) -> None:
        while channel.socket.poll(0):
            try:
                stream, number = (int(word) for word in channel.socket.recv_multipart()[0].split())
            except ValueError:
                log.warning("dropped a receipt of %s", name)
                continue
            self.heard[name] = time.monotonic()
            if stream == channel.stream:
                while channel.unconfirmed and channel.unconfirmed[0][0] <= number:
                    channel.unconfirmed.popleft()

    def _admit(self) -> None:
        """Answer whether the key of a new connection may come in; its user is the member."""
        version, request, _, address, _, mechanism, *credentials = self._gate.recv_multipart()
        owner = None
        if mechanism == b"CURVE" and len(credentials) == 1:
            owner = self.keys.owner(credentials[0])
        if owner is None:
            key = z85.encode(credentials[0]).decode() if credentials else "no key"
            where = address.decode(errors="replace")
            log.warning("refused a stranger from %s: no member has the key %s", where, key)
        status, text = (b"200", b"OK") if owner else (b"400", b"unknown key")
        user = (owner or "").encode()
        self._gate.send_multipart([version, request, status, text, user, b""])

    def _drain(self) -> None:
        for _ in range(BATCH):
            if not self._listener.poll(0):
                return
            identity, *parts = self._listener.recv_multipart(copy=False)
            try:
                if len(parts) != 2:
                    raise ValueError(f"{len(parts)} parts")
                text = parts[0].bytes
                head = _head(text)
                if self.keys and parts[0].get("User-Id") != head["sender"]:
                    user, sender = parts[0].get("User-Id"), head["sender"]
                    raise ValueError(f"{user} has spoken as {sender!r}")
                if self.keys and head["sender"] not in self.keys.allowed():
                    raise ValueError(f"{head['sender']} is no longer allowed to take part")
                self._take(identity.bytes, head, len(text), parts[1])
            except ValueError as error:
                log.warning("dropped a message: %s", error)

    def _take(self, identity: bytes, head: dict, head_bytes: int, body: zmq.Frame) -> None:
        sender = head["sender"]
        if sender not in self.members:
            raise ValueError(f"from {sender!r}, who is no node of this cluster")
        if sender in self._inbox.barred:
            return
        self.heard[sender] = time.monotonic()
        if head.get("beat"):
            beat = {"kind": "heartbeat", "address": head.get("address")}
            self._inbox.put(Received(sender, beat))
            return
        stream, dial, number, at = (whole(head, n) for n in ("stream", "dial", "number", "at"))
        coming = self._incoming.get(sender)
        if stream > time.time_ns() + FUTURE_NS:  # would shut out all that come after it
            raise ValueError(f"from {sender}, in a stream that begins in the future")
        if coming is None or stream > coming.stream:
            coming = self._incoming[sender] = _Incoming(stream, number, dial)
        if stream < coming.stream or dial < coming.dial or number > coming.due:
            if stream < coming.stream and number == at == 0 and sender not in self._older:
                self._older.add(sender)
                before = f"began {(coming.stream - stream) / 1e9:.0f} s before its last process"
                log.warning("%s is not heard: it %s; was its clock set back?", sender, before)
            return  # this belongs to a channel or a connection that is gone
        # Every message without a receipt is sent again, from its first slice.
        if dial > coming.dial:
            coming.dial, coming.head, coming.slices = dial, None, []
        if number == coming.due:
            if at == 0:
                coming.head, coming.head_bytes = head, head_bytes
                coming.slices, coming.nbytes = [], 0
            if coming.head is None or at != coming.nbytes:
                return
            size = whole(coming.head, "size")
            if size > self.limit_bytes + MAX_HEAD or coming.nbytes + len(body) > size:
                coming.due, coming.head, coming.slices = number + 1, None, []
                self._receipt(identity, stream, number)
                why = f"payload of {size} bytes, at most {self.limit_bytes} fit"
                self._inbox.refuse(sender, why)
                return
            coming.slices.append(body)
            coming.nbytes += len(body)
            if coming.nbytes < size:
                return
            head, slices = coming.head, coming.slices
            coming.due, coming.head, coming.slices = number + 1, None, []
            self._receipt(identity, stream, number)
            head = {name: value for name, value in head.items() if name not in OWN}
            body = b"".join(piece.buffer for piece in slices)
            self._inbox.put(Received(sender, head, body, coming.head_bytes))
        else:
            self._receipt(identity, stream, coming.due - 1)

    def _receipt(self, identity: bytes, stream: int, number: int) -> None:
        self._listener.send_multipart([identity, b"%d %d" % (stream, number)])


def _refused(address: str) -> bool:
    """Whether the host answers but nobody listens at this address."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), 0.2).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False


def _head(text: bytes) -> dict:
    if len(text) > MAX_HEAD:
        raise ValueError(f"head of {len(text)} bytes, at most {MAX_HEAD} fit")
    try:
        head = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("head is not JSON") from None
    if not isinstance(head, dict) or head.get("v") != VERSION:
        raise ValueError(f"not of version {VERSION} of this protocol")
    if not isinstance(head.get("sender"), str):
        raise ValueError("names no sender")
    return head


def whole(head: dict, name: str) -> int:
    value = head.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} must be a whole number from 0, not {value!r}")
    return value
