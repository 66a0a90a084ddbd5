"""Carries messages between nodes over ZeroMQ, from a thread of its own.

Every node listens at one socket (ROUTER) and has another (DEALER) for each node it sends to, over
which receipts come back. TCP loses nothing while a connection lasts; when one breaks, all that has
no receipt yet is sent again, and what arrives twice is dropped. A payload travels as its frame
(:class:`methods.compression.Frame`), cut into slices, so that no message of ZeroMQ is large.
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
from dataclasses import dataclass, field, replace
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from slowlink.testbed.live.hips.messages import CONTROL, DATA, Message

VERSION = 1
MAX_HEAD = 2**20
"""Bytes of a message without its payload."""

FUTURE_NS = 3600 * 10**9
"""A stream is named by the time at which it began; clocks may be wrong by so much."""

RETRY_MS = 100
CONNECT_MS = 2000
FLUSH_S = 2.0
BATCH = 64
"""Pieces that are read in a row, so that heartbeats do not wait for the end of a stream."""

log = logging.getLogger(__name__)


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
    socket: zmq.Socket | None = None
    monitor: zmq.Socket | None = None


@dataclass
class _Incoming:
    """The messages from one node: the stream, the number that is due, and its slices so far."""

    stream: int
    due: int
    dial: int
    head: dict | None = None
    slices: list[bytes] = field(default_factory=list)
    nbytes: int = 0


class ZmqTransport:
    """One node's sockets.

    Parameters
    ----------
    name: of this node.
    bind: ``tcp://host:port`` to listen at; port 0 for any.
    nodes: whom to listen to; what others send is dropped.
    watches: whether this is a scheduler: it sends heartbeats to all it is connected with, and hears
        ``left`` from those whose process is seen to be gone.
    above: whom any other node sends heartbeats to, its scheduler.
    heartbeat_s: time between two.
    timeout_s: a connection on which nothing is confirmed for so long is made anew.
    stall_s: after so long without a call by the node's own thread heartbeats pause, for it may
        hang though this thread goes on; they come again with the next call.
    slice_bytes: at most so much of a payload in one piece.
    limit_bytes: largest tensor to take, in bytes of float32.

    Raises
    ------
    OSError
        The address cannot be listened at; names it.
    """

    def __init__(
        self,
        name: str,
        bind: str,
        nodes: Collection[str],
        *,
        watches: bool = False,
        above: str = "",
        heartbeat_s: float = 1.0,
        timeout_s: float = 5.0,
        stall_s: float = math.inf,
        slice_bytes: int = 2**20,
        limit_bytes: int = 2**30,
    ) -> None:
        self.name, self.nodes = name, frozenset(nodes)
        self.watches, self.above = watches, above
        self.heartbeat_s, self.timeout_s, self.stall_s = heartbeat_s, timeout_s, stall_s
        self._called = time.monotonic()
        self.slice_bytes, self.limit_bytes = slice_bytes, limit_bytes
        self.heard: dict[str, float] = {}
        self._inbox: queue.SimpleQueue[Message | Exception] = queue.SimpleQueue()
        self._todo: deque[tuple] = deque()
        self._bell, self._ring = socket.socketpair()
        self._bell.setblocking(False)
        self._ring.setblocking(False)
        self._encoded: tuple[Any, bytes] = (None, b"")
        self._context = zmq.Context()
        self._listener = self._context.socket(zmq.ROUTER)
        self._options(self._listener)
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
        self._thread = threading.Thread(target=self._run, name=f"transport of {name}", daemon=True)
        self._thread.start()

    # For the node's own thread ---------------------------------------------------------------

    def connect(self, addresses: Mapping[str, str]) -> None:
        """Connect with nodes at these addresses; drop what is still unsent from before."""
        self._do("connect", dict(addresses))

    def forget(self, names: Iterable[str]) -> None:
        """Send these nodes nothing any more."""
        self._do("forget", list(names))

    def send(self, destination: str, message: Message) -> None:
        """Send once, in order; raises ValueError where the message is too large."""
        payload, frame = message.payload, b""
        if payload is not None:
            if max(payload.nbytes, 4 * payload.numel) > self.limit_bytes:
                raise ValueError(
                    f"{message.kind} to {destination}: payload of {payload.nbytes} bytes and shape "
                    f"{payload.shape}, at most {self.limit_bytes} bytes fit; raise limit_bytes"
                )
            if payload is not self._encoded[0]:  # one answer goes to many nodes
                from slowlink.methods.compression import Frame

                self._encoded = payload, Frame(payload).to_bytes()
            frame = self._encoded[1]
        fields = vars(message) | dict(sender=self.name)
        del fields["payload"]
        head = dict(fields, size=len(frame))
        if len(json.dumps(head)) > MAX_HEAD - 1000:
            raise ValueError(f"{message.kind} to {destination}: body of over {MAX_HEAD} bytes")
        self._do("send", destination, head, frame)

    def receive(self, timeout_s: float) -> Message | None:
        """The next message, None if there is none in time.

        Raises
        ------
        ValueError
            What came from a node of the cluster cannot be read; names it. The message will not come
            again, so who waits for it would wait for ever.
        Exception
            Whatever went wrong in the transport.
        """
        self._called = time.monotonic()
        try:
            found = self._inbox.get(timeout=timeout_s) if timeout_s > 0 else self._inbox.get(False)
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            raise found
        return found

    def close(self, flush_s: float = FLUSH_S) -> None:
        """Wait until what was sent has arrived, at most ``flush_s``; then close all sockets."""
        self._do("close", flush_s)
        self._thread.join()

    def _do(self, *what: Any) -> None:
        self._called = time.monotonic()
        self._todo.append(what)
        # A full pipe wakes the thread just as well.
        with contextlib.suppress(BlockingIOError, OSError):
            self._ring.send(b"!")

    # In the thread of the transport --------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop()
        except Exception as error:
            log.exception("transport")
            self._inbox.put(error)
        finally:
            self._context.destroy(linger=0)
            self._bell.close()
            self._ring.close()

    def _loop(self) -> None:
        poller, bell = self._poller, self._bell.fileno()
        poller.register(bell, zmq.POLLIN)
        poller.register(self._listener, zmq.POLLIN)
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
            if self._listener in ready:
                self._drain()
            for name, channel in self._channels.items():
                if channel.monitor in ready:
                    self._watch(name, channel)
                if channel.socket in ready:
                    self._confirmed(name, channel)
            if time.monotonic() >= beat:
                beat = time.monotonic() + self.heartbeat_s
                self._beat()

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
        its.setsockopt(zmq.RCVHWM, 0)
        its.setsockopt(zmq.TCP_MAXRT, round(1000 * self.timeout_s))

    def _connect(self, addresses: dict[str, str]) -> None:
        for name, address in addresses.items():
            self._forget([name])
            self._channels[name] = channel = _Channel(address)
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
        channel.monitor = channel.socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
        )
        channel.connected = False
        channel.dial += 1
        channel.socket.connect(channel.address)
        self._poller.register(channel.socket, zmq.POLLIN)
        self._poller.register(channel.monitor, zmq.POLLIN)

    def _hang_up(self, channel: _Channel) -> None:
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
                self._inbox.put(Message("left", name, body={"reason": reason}))
            if event == zmq.EVENT_DISCONNECTED:
                self._hang_up(channel)
                self._dial(channel)
                for number, head, frame in channel.unconfirmed:
                    self._transmit(channel, number, head, frame)
                return

    def _send(self, destination: str, head: dict, frame: bytes) -> None:
        channel = self._channels.get(destination)
        if channel is None:
            log.info("%s to %s, which is not there: dropped", head["kind"], destination)
            return
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

    def _drain(self) -> None:
        for _ in range(BATCH):
            if not self._listener.poll(0):
                return
            identity, *parts = self._listener.recv_multipart(copy=False)
            try:
                if len(parts) != 2:
                    raise ValueError(f"{len(parts)} parts")
                self._take(identity.bytes, _head(parts[0].bytes), parts[1])
            except ValueError as error:
                log.warning("dropped a message: %s", error)

    def _take(self, identity: bytes, head: dict, body: zmq.Frame) -> None:
        sender = head["sender"]
        if sender not in self.nodes:
            raise ValueError(f"from {sender!r}, who is no node of this cluster")
        self.heard[sender] = time.monotonic()
        if head.get("beat"):
            self._inbox.put(Message("heartbeat", sender, body={"address": head.get("address")}))
            return
        place = (_whole(head, name) for name in ("stream", "dial", "number", "at"))
        stream, dial, number, at = place
        coming = self._incoming.get(sender)
        if stream > time.time_ns() + FUTURE_NS:  # would shut out all that come after it
            raise ValueError(f"from {sender}, in a stream that begins in the future")
        if coming is None or stream > coming.stream:
            coming = self._incoming[sender] = _Incoming(stream, number, dial)
        if stream < coming.stream or dial < coming.dial or number > coming.due:
            return  # this belongs to a channel or a connection that is gone
        # Every message without a receipt is sent again, from its first slice.
        if dial > coming.dial:
            coming.dial, coming.head, coming.slices = dial, None, []
        if number == coming.due:
            if at == 0:
                coming.head, coming.slices, coming.nbytes = head, [], 0
            if coming.head is None or at != coming.nbytes:
                return
            whole = _whole(coming.head, "size")
            if whole > self.limit_bytes + MAX_HEAD or coming.nbytes + len(body) > whole:
                coming.due, coming.head, coming.slices = number + 1, None, []
                self._receipt(identity, stream, number)
                self._refuse(sender, f"payload of {whole} bytes, at most {self.limit_bytes} fit")
                return
            coming.slices.append(body)
            coming.nbytes += len(body)
            if coming.nbytes < whole:
                return
            head, slices = coming.head, coming.slices
            coming.due, coming.head, coming.slices = number + 1, None, []
            self._receipt(identity, stream, number)
            try:
                self._inbox.put(self._read(head, slices))
            except ValueError as error:
                self._refuse(sender, str(error))
        else:
            self._receipt(identity, stream, coming.due - 1)

    def _refuse(self, sender: str, why: str) -> None:
        self._inbox.put(ValueError(f"message of {sender} refused: {why}"))

    def _receipt(self, identity: bytes, stream: int, number: int) -> None:
        self._listener.send_multipart([identity, b"%d %d" % (stream, number)])

    def _read(self, head: dict, slices: list[zmq.Frame]) -> Message:
        message = _message(head)
        if not head["size"]:
            return message
        from slowlink.methods.compression import Frame

        data = b"".join(piece.buffer for piece in slices)
        return replace(message, payload=Frame.from_bytes(data, limit=self.limit_bytes).payload)


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


def _whole(head: dict, name: str, least: int = 0) -> int:
    value = head.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number from {least}, not {value!r}")
    return value


def _message(head: dict) -> Message:
    kind, body = head.get("kind"), head.get("body")
    if kind not in (*DATA, *CONTROL) or not isinstance(body, dict):
        raise ValueError(f"kind {kind!r} with body {type(body).__name__}")
    numbers = {name: _whole(head, name, -1) for name in ("epoch", "round", "key", "step")}
    return Message(kind, head["sender"], **numbers, body=body)
