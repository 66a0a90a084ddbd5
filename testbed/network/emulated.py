"""A topology as real links: network namespaces, cables and rate limits of the Linux kernel.

Every worker and server is a network namespace, every switch a bridge and every cable a pair of
virtual Ethernet cards; each directed link is shaped at its sender's end. A packet that waits for a
link queues with its own (source, destination) pair, and the pairs that wait take turns byte by
byte, so that busy pairs share a link max-min fairly, as the fluid simulator has it; what a
connection has under way is limited to what the queue holds, so that nothing is lost. Links that
are not ``fair`` have one queue for all, and TCP is as it comes, losses included. Rates count
what the kernel counts: IP packets and their 14-byte Ethernet header, which leaves TCP the share
:func:`testbed.network.fluid.tcp_efficiency` of the rate.

Nothing outlives its user. All namespaces belong to one holder process and to a mount namespace of
its own, so the host never sees them. The holder waits for the end of a pipe that only its user
holds, whichever way the user ends; then it kills whatever still runs in its namespaces and ends,
and the kernel frees the rest.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slowlink.methods.exchange import Topology
from slowlink.testbed.network.fluid import tcp_efficiency
from slowlink.testbed.network.routing import routes

TOOLS = ("ip", "tc", "unshare", "nsenter", "mount")
CONGESTION_CONTROL = "cubic"
MAX_ENDPOINTS = 254
MAX_LATENCY_S = 1e-3
"""Latencies up to this are left out: the kernel's own few tens of microseconds stand for them."""

SEGMENT_S = 1e-3
"""TCP hands over segments of this time at a middling link's rate, between 4 and 64 KiB."""
BURST_S = 2e-3
"""An idle link may send at once what its rate carries in this time, at least two packets."""
SEGMENTS = 8
"""Segments that a connection has under way at most; more would only lengthen the queues."""
CONNECTIONS = 4
"""A pair's queue at a link has room for what so many connections have under way."""
QUEUE_S = 0.05
"""The one queue of a link that is not fair: so long of its rate, and at least 64 KiB."""

CANNOT = "cannot emulate links: "
PERMISSION = (
    "run it as root (a container needs the capabilities SYS_ADMIN and NET_ADMIN), or allow user "
    "namespaces (sysctl kernel.unprivileged_userns_clone=1, on Ubuntu "
    "kernel.apparmor_restrict_unprivileged_userns=0)"
)

HOLDER = """
trap '' INT TERM HUP
mount -t tmpfs tmpfs /run && mkdir /run/netns && echo up
read end
while
    left=$(for node in $(ls /run/netns); do ip netns pids $node; done)
    [ -n "$left" ]
do
    kill -KILL $left
    sleep 0.02
done
"""

# Class 1:(source, destination), a byte each, of an IPv4 packet: Ethernet type, then the last
# bytes of both addresses. Anything else gets a class that is not there, so the default one.
CLASSIFIER = ",".join(
    ["9", "40 0 0 12", "21 0 6 2048", "48 0 0 29", "100 0 0 8", "7 0 0 0", "48 0 0 33"]
    + ["76 0 0 0", "68 0 0 65536", "22 0 0 0"]
)
LINK, OTHERS = "1:ffff", "1:fffe"


@dataclass(frozen=True)
class Measured:
    """What TCP got from ``src`` to ``dst``: payload bit/s, and seconds there and back when idle.

    ``expected`` is the rate of the slowest link on the way times TCP's share of it.
    """

    src: int
    dst: int
    rate: float
    expected: float
    rtt_s: float


@functools.cache
def available() -> str:
    """Why links cannot be emulated here and what to do about it; empty if they can."""
    pair = Topology(("a", "b"), [0, 1], [], [0, 1], [1, 0], [1e6, 1e6], [0, 0])
    try:
        with Emulated(pair):
            return ""
    except RuntimeError as error:
        why = str(error).removeprefix(CANNOT)
        return f"{CANNOT}{why}"


class Emulated:
    """``with Emulated(topology) as links``: the topology's nodes and links, in the kernel.

    Latencies are those of the kernel. TCP uses cubic, whatever the host's default is. A class of
    traffic is a pair, so several connections of one pair share what the pair has.

    Parameters
    ----------
    fair: whether pairs of nodes share a link evenly; else all wait in its one queue, which drops
        what it cannot hold, and TCP finds its own window.

    Raises
    ------
    ValueError
        A topology that cannot be built so: loops, parallel cables, a worker or server with
        several cables, links one way only, latencies above 1 ms a link.
    RuntimeError
        On entry: links cannot be emulated here, says what is missing; or these links cannot.
    """

    def __init__(self, topology: Topology, fair: bool = True) -> None:
        self.topology = topology
        self.fair = fair
        self._ends = np.union1d(topology.workers, topology.servers).tolist()
        self._link = _checked(topology, self._ends)
        self._holder: subprocess.Popen | None = None
        self._user: list[str] = []

    def __enter__(self) -> Emulated:
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if missing:
            raise RuntimeError(
                f"{CANNOT}no command {', '.join(missing)}; install iproute2 and util-linux"
            )
        try:
            self._hold()
            self._shell(_script(self.topology, self._ends, self._link, self.fair))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def address(self, node: int) -> str:
        """IPv4 address of a worker or server."""
        return _address(self._end(node))

    def card(self, node: int) -> str:
        """Name of the one network card of a worker or server, but for the loopback."""
        self._end(node)
        return next(f"l{link}" for (src, _), link in self._link.items() if src == node)

    def command(self, node: int, argv: Sequence[str]) -> list[str]:
        """What to run for ``argv`` to run in the network of a worker or server.

        The process started is the one that becomes ``argv``; files and environment stay as they
        are. It is killed, and all it started there, when the links close or their user is gone.
        """
        return [*self._enter(), f"--net={self.namespaces(node)[-1]}", "--", *argv]

    def namespaces(self, node: int) -> list[str]:
        """Files of what a process has to enter for the network of a worker or server: for an
        ordinary user, one of users before that of the network."""
        self._end(node)
        # The path leads through the holder's mount namespace, but who enters stays in ours.
        return [*self._user, f"/proc/{self._pid()}/root/run/netns/n{node}"]

    def cut(self, a: int, b: int) -> None:
        """Take the cable between two neighbours down: what is sent or waits there is lost."""
        self._set(a, b, "down")

    def mend(self, a: int, b: int) -> None:
        """Bring the cable between two neighbours up again."""
        self._set(a, b, "up")

    def measure(
        self, pairs: Sequence[tuple[int, int]] | None = None, seconds: float = 0.5
    ) -> list[Measured]:
        """Send over TCP for some seconds from ``src`` to ``dst``, one pair after the other.

        If ``pairs`` is None, from each worker and server to the next: that crosses every link.
        """
        if pairs is None:
            pairs = zip(self._ends, [*self._ends[1:], *self._ends[:1]], strict=True)
        pairs = [(int(src), int(dst)) for src, dst in pairs]
        for src, dst in pairs:
            if self._end(src) == self._end(dst):
                raise ValueError(f"measure: nothing lies between node {src} and itself")
        ptr, links = routes(self.topology, pairs)
        slowest = [self.topology.link_rate[links[i:j]].min() for i, j in itertools.pairwise(ptr)]
        expected = np.array(slowest) * tcp_efficiency()
        return [
            Measured(src, dst, rate, float(most), rtt)
            for (src, dst), most in zip(pairs, expected, strict=True)
            for rate, rtt in [self._probe(src, dst, seconds)]
        ]

    def close(self) -> None:
        """End every process in the namespaces and the namespaces; may be called twice."""
        if self._holder is not None:
            self._holder.stdin.close()
            self._holder.stdout.close()
            self._holder.wait()
            self._holder.stderr.close()
            self._holder = None

    def _hold(self) -> None:
        own = ["--user", "--map-root-user"]
        privileged = not subprocess.run(
            ["unshare", "--net", "--mount", "true"], stderr=subprocess.DEVNULL
        ).returncode
        self._holder = subprocess.Popen(
            ["unshare", *([] if privileged else own), "--net", "--mount", "sh", "-c", HOLDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt from the terminal is not for the holder
        )
        if self._holder.stdout.readline() != "up\n":
            self._holder.stdin.close()
            why = self._holder.stderr.read().strip()
            raise RuntimeError(f"{CANNOT}no network namespaces ({why}); {PERMISSION}")
        self._user = [] if privileged else [f"/proc/{self._holder.pid}/ns/user"]

    def _enter(self) -> list[str]:
        """The beginning of a command that enters namespaces, that of an ordinary user first."""
        user = [f"--user={file}" for file in self._user]
        return ["nsenter", *user, *["--preserve-credentials"] * len(user)]

    def _shell(self, script: str) -> None:
        """Run a script in the holder's namespaces."""
        at = f"/proc/{self._pid()}/ns"
        enter = [*self._enter(), f"--mount={at}/mnt", f"--net={at}/net", "--"]
        run = subprocess.run([*enter, "sh", "-e"], input=script, capture_output=True, text=True)
        if run.returncode:
            why = next(iter(run.stderr.splitlines()), f"exit status {run.returncode}")
            raise RuntimeError(
                f"links of {self.topology.name} failed: {why}; the kernel needs veth, "
                f"bridge, sch_htb, cls_bpf and tcp_{CONGESTION_CONTROL}"
            )

    def _pid(self) -> int:
        if self._holder is None:
            raise RuntimeError(f"{self.topology.name}: the links are not up; use them in a with")
        return self._holder.pid

    def _end(self, node: int) -> int:
        if node not in self._ends:
            raise ValueError(f"{self.topology.name}: node {node} is no worker and no server")
        return self._ends.index(node)

    def _set(self, a: int, b: int, state: str) -> None:
        if (a, b) not in self._link:
            raise ValueError(f"{self.topology.name}: no cable between nodes {a} and {b}")
        # A switch's end is set if there is one: a host whose card goes down forgets its routes.
        near, far = sorted((a, b), key=lambda node: (node in self._ends, node))
        card = f"l{self._link[near, far]}"
        if near not in self._ends:
            self._shell(f"ip link set {card} {state}")
        else:
            route = f"ip -n n{near} route replace {_route(self.topology, card, self.fair)}"
            route = route if state == "up" else ""
            self._shell(f"ip -n n{near} link set {card} {state}\n{route}")

    def _probe(self, src: int, dst: int, seconds: float) -> tuple[float, float]:
        """Payload rate in bit/s and idle round trip in seconds, measured by two processes."""

        def start(node: int, code: str, *arguments: str) -> subprocess.Popen:
            argv = [sys.executable, "-I", "-S", "-c", code, self.address(dst), *arguments]
            pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            process = stack.enter_context(subprocess.Popen(self.command(node, argv), **pipes))
            stack.callback(process.kill)
            return process

        with contextlib.ExitStack() as stack:
            receiver = start(dst, RECEIVE, str(seconds))
            port = receiver.stdout.readline().strip()
            sender = start(src, SEND, port)
            rtt, trouble = sender.communicate()
            if sender.returncode:
                why = trouble.strip().splitlines()[-1:]
                raise RuntimeError(f"measure: node {src} to node {dst}: {' '.join(why)}")
            return float(receiver.communicate()[0]), float(rtt)


RECEIVE = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
line, _ = listener.accept()
line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while line.recv(1) == b"?":
    line.send(b"!")
into, at, seconds = bytearray(1 << 22), [(time.perf_counter(), 0)], float(sys.argv[2])
while at[-1][0] < at[0][0] + seconds and (got := line.recv_into(into)):
    at.append((time.perf_counter(), at[-1][1] + got))
# The first third is for slow start and full buckets.
begin = next(x for x in at if x[0] >= at[0][0] + seconds / 3)
print(8 * (at[-1][1] - begin[1]) / (at[-1][0] - begin[0]))
"""

SEND = """
import socket, sys, time
line = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
trips = []
for _ in range(20):
    begin = time.perf_counter()
    line.send(b"?")
    line.recv(1)
    trips.append(time.perf_counter() - begin)
line.send(b".")
try:
    while True:
        line.send(bytes(1 << 16))
except ConnectionError:  # the receiver has seen enough
    print(sorted(trips)[len(trips) // 2])
"""


def _checked(topology: Topology, ends: Sequence[int]) -> dict[tuple[int, int], int]:
    """The link of each (source, destination), if the topology can be built."""
    name, label = topology.name, topology.node_names
    pairs = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    link = {pair: number for number, pair in enumerate(pairs)}
    if len(link) < len(pairs):
        a, b = next(pair for number, pair in enumerate(pairs) if link[pair] != number)
        raise ValueError(f"{name}: cannot emulate parallel cables, as {label[a]} to {label[b]}")
    for a, b in pairs:
        if (b, a) not in link:
            raise ValueError(
                f"{name}: a cable has both ways, but {label[b]} to {label[a]} has no link"
            )
    for node in ends:
        if (cables := int(np.sum(topology.link_src == node))) > 1:
            raise ValueError(
                f"{name}: cannot emulate {label[node]} with {cables} cables; workers and servers "
                "have one each, only switches more"
            )
    group = list(range(topology.n_nodes))
    for a, b in pairs:
        if a < b:
            if group[a] == group[b]:
                raise ValueError(
                    f"{name}: cannot emulate loops, as by the cable {label[a]} to {label[b]}; "
                    "bridges need a tree"
                )
            group = [group[a] if x == group[b] else x for x in group]
    if len({group[node] for node in ends}) > 1:
        raise ValueError(f"{name}: some workers or servers have no path to others")
    if len(ends) > MAX_ENDPOINTS:
        raise ValueError(
            f"{name}: can emulate {MAX_ENDPOINTS} workers and servers, not {len(ends)}"
        )
    if len(late := np.flatnonzero(topology.link_latency > MAX_LATENCY_S)):
        raise ValueError(
            f"{name}: cannot emulate latencies above {MAX_LATENCY_S:g} s; link {late[0]} has "
            f"{topology.link_latency[late[0]]:g} s"
        )
    return link


def _script(
    topology: Topology, ends: Sequence[int], link: dict[tuple[int, int], int], fair: bool
) -> str:
    """Shell commands that build everything; the card at the sender's end of link 7 is ``l7``."""
    number = {node: i for i, node in enumerate(ends)}
    segment = _segment(topology)

    # For every link, the pairs of ends that cross it.
    pairs = list(itertools.permutations(ends, 2))
    ptr, crossed = routes(topology, pairs)
    which = np.repeat(np.arange(len(pairs)), np.diff(ptr))
    order = np.argsort(crossed, kind="stable")
    users = np.split(which[order], np.cumsum(np.bincount(crossed, minlength=topology.n_links))[:-1])

    devices = [f"netns add n{node}" for node in ends]
    for node in np.setdiff1d(np.arange(topology.n_nodes), ends):
        devices.append(f"link add b{node} type bridge forward_delay 0 mcast_snooping 0")
        devices.append(f"link set b{node} up addrgenmode none")
    # What ip and tc have to do in each namespace; all switches are in the holder's own, "".
    within: dict[str, tuple[list[str], list[str]]] = {}
    for (a, b), there in link.items():
        if a < b:
            near, far = (f"netns n{node}" if node in number else "" for node in (a, b))
            devices.append(f"link add l{there} {near} type veth peer name l{link[b, a]} {far}")
        ip, tc = within.setdefault(f"-n n{a}" if a in number else "", ([], []))
        card = f"dev l{there}"
        ip.append(f"link set {card} up addrgenmode none gso_max_size {segment}")
        if a in number:
            ip.append("link set dev lo up")
            ip.append(f"address add {_address(number[a])}/24 {card} noprefixroute")
            ip.append(f"route add {_route(topology, f'l{there}', fair)}")
        else:
            ip.append(f"link set {card} master b{a}")
        if math.isfinite(rate := topology.link_rate[there]):
            both = (pairs[i] for i in users[there])
            classes = [f"{number[src] + 1:02x}{number[dst] + 1:02x}" for src, dst in both]
            tc += _shaped(card, rate, segment, classes) if fair else _plain(card, rate)

    lines = _batch("ip", devices)
    for where, (ip, tc) in within.items():
        lines += _batch(f"ip {where}", ip) + _batch(f"tc {where}", tc)
    return "\n".join(lines) + "\n"


def _batch(command: str, lines: Sequence[str]) -> list[str]:
    return [f"{command} -batch - <<'END'", *lines, "END"] if lines else []


def _segment(topology: Topology) -> int:
    """Bytes that TCP hands over at once."""
    finite = topology.link_rate[np.isfinite(topology.link_rate)] / 8
    # Segments are large where links are fast, to spare the processor, and small where slow.
    middle = math.sqrt(finite.min() * finite.max()) if len(finite) else math.inf
    return int(np.clip(middle * SEGMENT_S, 2**12, 2**16))


def _shaped(card: str, rate: float, segment: int, classes: Sequence[str]) -> list[str]:
    """Traffic control of one card: its whole rate, and a class that borrows from it a pair."""
    bit, burst = f"{round(rate)}bit", _burst(rate)
    # Turns of whole packets are fair only if a turn is worth the largest packet with its headers.
    turn = round(1.1 * segment)
    whole = f"rate {bit} burst {burst} cburst {burst} quantum {turn}"
    leaf = f"rate 8kbit burst 2000 ceil {bit} cburst {burst} quantum {turn}"
    lines = [
        f"qdisc add {card} root handle 1: htb default {OTHERS[2:]}",
        f"class add {card} parent 1: classid {LINK} htb {whole}",
        f'filter add {card} parent 1: protocol all prio 1 bpf bytecode "{CLASSIFIER}"',
    ]
    for name in (*classes, OTHERS[2:]):
        lines += [
            f"class add {card} parent {LINK} classid 1:{name} htb {leaf}",
            f"qdisc add {card} parent 1:{name} bfifo limit {CONNECTIONS * SEGMENTS * segment}",
        ]
    return lines


def _plain(card: str, rate: float) -> list[str]:
    """Traffic control of one card: its whole rate, and one queue."""
    bit, burst = f"{round(rate)}bit", _burst(rate)
    return [
        f"qdisc add {card} root handle 1: htb default {LINK[2:]}",
        f"class add {card} parent 1: classid {LINK} htb rate {bit} burst {burst} cburst {burst} "
        f"quantum {2**16}",
        f"qdisc add {card} parent {LINK} bfifo limit {max(2**16, round(rate / 8 * QUEUE_S))}",
    ]


def _burst(rate: float) -> int:
    return max(3028, round(rate / 8 * BURST_S))


def _address(end: int) -> str:
    return f"10.77.0.{end + 1}"


def _route(topology: Topology, card: str, fair: bool) -> str:
    # By route, for the default of a namespace may only be what the host allows all users.
    window = f" cwnd lock {SEGMENTS * _segment(topology) // 1448}" if fair else ""
    return f"{_address(-1)}/24 dev {card} congctl {CONGESTION_CONTROL}{window}"
