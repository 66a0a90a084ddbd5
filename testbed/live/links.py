"""Rate and latency between two hosts, over the TCP connections that live plans use.

One host listens (:class:`Listener`), the other measures (:func:`measure`): round trips of small
messages, and messages of several sizes each way. All is timed by the one that measures: a message
that is sent is over when the other end says that all of it has arrived, one that is asked for when
it is here. So clocks need not agree, and either takes a round trip besides its bytes: the rate is
that of the largest messages, less a round trip. What a shaper lets through at once, and what it
holds back of the last segment, is little of these, but much of small ones.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import zmq

from slowlink.testbed import given
from slowlink.testbed.network.cluster import Cluster, Link, Quartiles, Rack, Site, quartiles

GREETING = b"slowlink links 1"
FRAME_BYTES = 1 << 18
"""Bytes of a part of a message, at most."""
QUEUED = 2
"""Parts that ZeroMQ holds for a connection at either end."""
SMALL = 64
"""Bytes of a message whose round trip is timed."""
PINGS = 50
LARGEST = 1 << 28
"""Bytes of a message, at most."""
ANSWER_S = 10.0
"""How long an answer is waited for, beside what its message takes."""
BUSY_S = 2.0
"""A listener belongs to whom it last heard of less than this ago."""
TRIPS = 10
"""The largest message takes at least so many round trips."""
SIZES = (1 / 16, 1 / 4, 1.0)
"""Messages beside the largest, over its bytes."""


@dataclass(frozen=True)
class Size:
    """Seconds of messages of ``nbytes`` one ``way`` (``up``: to the other host)."""

    way: str
    nbytes: int
    seconds: Quartiles

    @property
    def rate(self) -> float:
        """bit/s, what both ends spend on any message included."""
        return 8 * self.nbytes / self.seconds.median


@dataclass(frozen=True)
class Path:
    """What was measured to another host.

    Attributes
    ----------
    up, down: bit/s of payload to it, and from it.
    rtt: seconds of a round trip of a small message.
    sizes: all messages that were timed.
    """

    up: Quartiles
    down: Quartiles
    rtt: Quartiles
    sizes: tuple[Size, ...]


class _End:
    """A socket of either end."""

    def __init__(self, kind: int) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(kind)
        for option, value in ((zmq.LINGER, 0), (zmq.SNDHWM, QUEUED), (zmq.RCVHWM, QUEUED)):
            self.socket.setsockopt(option, value)

    def close(self) -> None:
        self.socket.close()
        self._context.term()


class Listener(_End):
    """The end that answers. One host at a time measures; others are told to come back.

    Raises
    ------
    ValueError
        The port cannot be had.
    """

    def __init__(self, port: int, address: str = "*") -> None:
        super().__init__(zmq.ROUTER)
        self.socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES + 1024)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.SNDTIMEO, round(1e3 * ANSWER_S))
        try:
            if port:
                self.socket.bind(f"tcp://{address}:{port}")
                self.port = port
            else:
                self.port = self.socket.bind_to_random_port(f"tcp://{address}")
        except zmq.ZMQError as error:
            self.close()
            raise ValueError(f"port {port}: {error}; choose another") from None
        self._client, self._heard, self._left = b"", 0.0, 0

    def serve(self, say: Callable[[str], None] = lambda text: None, once: bool = False) -> None:
        """Answer until interrupted, or until one host has said that it is done if ``once``."""
        while True:
            sender, *parts = self.socket.recv_multipart(copy=False)
            sender = sender.bytes
            # Who has not asked for anything, or breaks off, must not stop the others.
            with contextlib.suppress(zmq.ZMQError, ValueError, IndexError):
                if self._answer(sender, parts, say) and once:
                    return

    def _answer(self, sender: bytes, parts: list[zmq.Frame], say: Callable[[str], None]) -> bool:
        """Answer one message; whether its sender is done."""
        now = time.monotonic()
        if sender != self._client:
            if now - self._heard < BUSY_S or len(parts) != 2 or parts[0].bytes != GREETING:
                self.socket.send_multipart([sender, b"busy"])
                return False
            self._client, self._left = sender, 0
            say(f"{parts[1].bytes[:80].decode(errors='replace')} measures")
        self._heard = now
        word = parts[0].bytes if len(parts[0]) < 64 else b""
        if word == b"data":
            self._left -= len(parts[1])
            if self._left <= 0:
                self.socket.send_multipart([sender, b"done"])
        elif word == b"put":
            self._left = _bytes(parts)
        elif word == b"get":
            for size in _frames(_bytes(parts)):
                self.socket.send_multipart([sender, b"data", bytes(size)], copy=False)
        elif word in (GREETING, b"ping"):
            self.socket.send_multipart([sender, GREETING])
        elif word == b"bye":
            self._client, self._heard = b"", 0.0
            return True
        return False


def _bytes(parts: list[zmq.Frame]) -> int:
    nbytes = int(parts[1].bytes)
    if not 0 < nbytes <= LARGEST:
        raise ValueError(f"{nbytes} bytes")
    return nbytes


def _frames(nbytes: int) -> Iterator[int]:
    yield from (min(FRAME_BYTES, nbytes - begin) for begin in range(0, nbytes, FRAME_BYTES))


class _Speaker(_End):
    """The end that measures."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(zmq.DEALER)
        self.name = f"{host}:{port}"
        self.wait_s(ANSWER_S)
        try:
            self.socket.connect(f"tcp://{host}:{port}")
        except zmq.ZMQError as error:
            self.close()
            raise ValueError(f"{self.name}: {error}; say HOST:PORT") from None
        self._frame = memoryview(bytes(FRAME_BYTES))

    def wait_s(self, seconds: float) -> None:
        for option in (zmq.SNDTIMEO, zmq.RCVTIMEO):
            self.socket.setsockopt(option, round(1e3 * seconds))

    def ask(self, *parts: bytes) -> float:
        """Seconds until the answer to a message of a frame."""
        begin = time.perf_counter()
        self._send(*parts)
        if self._receive()[0].bytes == b"busy":
            raise ConnectionError(f"{self.name} is measuring with another host; try again later")
        return time.perf_counter() - begin

    def put(self, nbytes: int) -> float:
        """Seconds until so many bytes have arrived there, and that is known here."""
        begin = time.perf_counter()
        self._send(b"put", str(nbytes).encode())
        for size in _frames(nbytes):
            self._send(b"data", self._frame[:size])
        self._receive()
        return time.perf_counter() - begin

    def get(self, nbytes: int) -> float:
        """Seconds until so many bytes that are asked for are here."""
        begin, left = time.perf_counter(), nbytes
        self._send(b"get", str(nbytes).encode())
        while left > 0:
            left -= len(self._receive()[-1])
        return time.perf_counter() - begin

    def _send(self, *parts: bytes | memoryview) -> None:
        with self._reached():
            self.socket.send_multipart(parts, copy=False)

    def _receive(self) -> list[zmq.Frame]:
        with self._reached():
            return self.socket.recv_multipart(copy=False)

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except zmq.Again:
            raise ConnectionError(
                f"no answer from {self.name}; run slowlink links --listen "
                f"{self.name.rpartition(':')[2]} there, and let firewalls pass it"
            ) from None


def measure(
    host: str,
    port: int,
    repeats: int = 7,
    seconds: float = 0.5,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Round trips and rates to a host that listens.

    Parameters
    ----------
    repeats: of every size and way, after some that warm the connection up and are not counted.
    seconds: about what the largest message takes, or :data:`TRIPS` round trips if that is more;
        smaller ones are :data:`SIZES` of it.

    Raises
    ------
    ConnectionError
        Nobody answers there, or is measuring with another.
    """
    speaker = _Speaker(host, port)
    try:
        speaker.ask(GREETING, socket.gethostname().encode())
        say(f"{speaker.name}: round trips")
        trips = [speaker.ask(b"ping", bytes(SMALL)) for _ in range(2 * PINGS)][PINGS:]
        rtt = quartiles(trips)
        seconds = max(seconds, TRIPS * rtt.median)
        ways = {"up": speaker.put, "down": speaker.get}
        sizes = {}
        for way, send in ways.items():
            say(f"{speaker.name}: warming up")
            largest = _warmed(send, seconds)
            sizes[way] = [max(1, round(share * largest)) for share in SIZES]
        speaker.wait_s(ANSWER_S + 20 * seconds)
        took: dict[tuple[str, int], list[float]] = {}
        for number in range(repeats):
            for way, send in ways.items():
                say(f"{speaker.name}: {way}, {number + 1} of {repeats}")
                for nbytes in sizes[way]:
                    took.setdefault((way, nbytes), []).append(send(nbytes))
        speaker._send(b"bye", b"")
        # A farewell that is still in the queue would be lost with the socket.
        speaker.socket.setsockopt(zmq.LINGER, 1000)
    finally:
        speaker.close()
    up, down = (
        quartiles([8 * sizes[way][-1] / (s - rtt.low) for s in took[way, sizes[way][-1]]])
        for way in ways
    )
    timed = (Size(way, nbytes, quartiles(s)) for (way, nbytes), s in took.items())
    return Path(up, down, rtt, tuple(timed))


def _warmed(send: Callable[[int], float], seconds: float) -> int:
    """Bytes that take about ``seconds``, found by sending ever more."""
    nbytes = FRAME_BYTES
    while (took := send(nbytes)) < seconds / 4 and nbytes < LARGEST:
        nbytes = min(2 * nbytes, LARGEST)
    took = min(took, send(nbytes))  # the second time the window is open
    return int(min(LARGEST, max(nbytes * seconds / took, 1024)))


# Into a cluster file ------------------------------------------------------------------------------


def charged(
    cluster: Cluster | None, here: str, paths: Mapping[str, Path], repeats: int, flat: bool = False
) -> Cluster:
    """A cluster with what was measured from ``here`` to other hosts, by their names.

    A path's rate is charged to its far end, and this end gets the best that it reached. Half of
    the shortest path's latency is this end's. The hosts are sites: those of ``cluster`` of the same
    names get new links, others are added with one worker; or, if ``flat``, they are workers around
    one switch, and ``cluster`` must be None.

    Raises
    ------
    ValueError
        ``flat`` with a cluster.
    """
    efficiency = cluster.efficiency if cluster else 1.0
    near = min(path.rtt.median for path in paths.values()) / 4

    def link(up: Quartiles, down: Quartiles, latency: Quartiles) -> Link:
        # Payload was measured, and links of a file have room for headers as well.
        return Link(up=up.times(1 / efficiency), down=down.times(1 / efficiency), latency=latency)

    def best(way: str) -> Quartiles:
        return max((getattr(path, way) for path in paths.values()), key=lambda one: one.median)

    links = {here: link(best("up"), best("down"), Quartiles(low=near, median=near, high=near))}
    for name, path in paths.items():
        low, median, high = (max(0.0, value / 2 - near) for value in path.rtt.values)
        latency = Quartiles(low=low, median=median, high=high)
        links[name] = link(path.down, path.up, latency)
    measured = given.here(repeats, f"from {here} to {', '.join(paths)}", pyzmq=zmq.__version__)
    told = {"measured": measured, "source": "slowlink links: payload over one TCP connection"}
    if flat:
        if cluster:
            raise ValueError("--flat makes a new cluster file; name one that is not there yet")
        rack = Rack(workers=len(links), card=tuple(links.values()))
        return Cluster(title=" ".join(links), sites=(Site(racks=(rack,)),), efficiency=1.0, **told)
    sites = {site.name: site for site in (cluster.sites if cluster else ())}
    for name, wan in links.items():
        racks = sites[name].racks if name in sites else (Rack(workers=1, card=(wan,)),)
        sites[name] = Site(name=name, wan=wan, racks=racks)
    kept = ("title", "center", "overhead_s", "pieces") if cluster else ()
    base = {name: getattr(cluster, name) for name in kept}
    return Cluster(**base | told, efficiency=efficiency, sites=tuple(sites.values()))
