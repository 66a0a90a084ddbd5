"""Packet simulation: a plan over TCP in ns-3 [@riley2010ns3], to check the fluid one.

Topology, paths, dependencies, chunks, phases, windows and pauses mean what they mean to the fluid
simulator. A plan's window is the number of TCP connections from one node to another, one as all
exchanges make plans, which carry all that the one has for the other, each a message after another;
without a window, every transfer has its own. They open before the plan starts and stay open. All
connections of a pair take the pair's path.

ns-3 keeps its clock and defaults for a whole process, and a failed assertion ends it, so that every
simulation is a process of its own, of a program in C++ that is compiled once and kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib.util
import math
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from slowlink.methods.exchange import Plan, Topology
from slowlink.testbed.cache import folder as caches
from slowlink.testbed.cache import sources
from slowlink.testbed.network.counting import Sizes, transfer_bytes
from slowlink.testbed.network.execution import check_structure
from slowlink.testbed.network.faults import Faults
from slowlink.testbed.network.fluid import TIMELINE, tcp_efficiency
from slowlink.testbed.network.routing import Paths, routes

LIBRARIES = ("core", "network", "stats", "bridge", "traffic-control", "point-to-point", "internet")
"""Of ns-3: what the simulation is linked with."""
COMPILE = ("-std=c++20", "-O2")
HEADERS, ETHERNET = 52, 38
"""Bytes of IPv4 and TCP with timestamps in a packet, and of Ethernet around it."""
LAST_LINES = 12
"""Lines of what ns-3 or a compiler printed that an error repeats."""
LOOK_S = 1.0
"""After so long what it has printed is looked at again."""


@dataclass(frozen=True)
class Tcp:
    """TCP and switches as data centres set them; ns-3's own defaults are a wide area's.

    Attributes
    ----------
    mtu: bytes of an IP packet: jumbo frames, as large messages want. 38 bytes of Ethernet are
        around it and 52 of headers, timestamps included, in it.
    initial_window: segments (RFC 6928, and Linux).
    min_rto_s: what a retransmission timeout is at least above the smoothed round trip, which it so
        follows: Linux's 200 ms (TCP_RTO_MIN, and net.ipv4.tcp_rto_min_us in newer kernels; there,
        too, it is the least of the deviation that is added to the round trip). Where data centres
        set it to a few milliseconds it must still exceed what a full queue lets a packet wait (4 MB
        at 625 Mbit/s: 51 ms), or every packet that waits is sent twice.
    buffer_bytes: of each socket to send and to receive: more than rate times round trip, so that
        neither limits.
    unsent_bytes: how much of a message a socket holds that is not sent yet (TCP_NOTSENT_LOWAT).
        What a node has written still leaves when it pauses; this keeps it little.
    queue_bytes: of each port; what shallow switches with shared memory let one port have.
    mark_bytes: a packet that finds more in a port's queue is marked: 65 packets of 1500 bytes
        (Linux, documentation of DCTCP, for 10 Gbit/s).

    Fixed: congestion control is DCTCP (RFC 8257) with windows of at least a segment, as in Linux.
    Queues are first in first out, but a host sends acknowledgements ahead of data, as the fq_codel
    of a Linux host does with sparse flows. Every segment is acknowledged, because of fewer ns-3's
    DCTCP makes duplicates that its sender takes for losses. No selective acknowledgement, which
    fails in this version of ns-3, and no slow start after idling, which data centres turn off.
    """

    mtu: int = 9000
    initial_window: int = 10
    min_rto_s: float = 0.2
    buffer_bytes: int = 4 << 20
    unsent_bytes: int = 64 << 10
    queue_bytes: int = 4_000_000
    mark_bytes: int = 100_000

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not 0 < value < math.inf:
                raise ValueError(f"tcp: {field.name} must be above 0 and finite, not {value}")
        tcp_efficiency(self.mtu, "wire")

    @property
    def efficiency(self) -> float:
        """Payload share of what a link carries where as much flows against it as along it.

        Every full frame along it then goes with one frame that acknowledges one against it.
        """
        alone = tcp_efficiency(self.mtu, "wire")
        payload = self.mtu - HEADERS
        return payload / (payload / alone + HEADERS + ETHERNET)


@dataclass(frozen=True, eq=False)
class PacketResult:
    """One plan in ns-3.

    Attributes
    ----------
    completion_s: when the last transfer arrived.
    transfers: a record a transfer, as :class:`testbed.network.fluid.Result` has: ``nbytes`` is
        payload; ``start_s`` is when its first byte was written, ``end_s`` when its last arrived.
    drops: packets that found a full queue.
    timeouts, recoveries: how often a connection's retransmission timer fired, and how often
        duplicate acknowledgements made it send again.
    events, wall_s: of the simulation alone, start-up not counted.
    """

    completion_s: float
    transfers: np.ndarray
    drops: int
    timeouts: int
    recoveries: int
    events: int
    wall_s: float


def available() -> str:
    """Why packet simulation cannot run here; empty if it can."""
    if importlib.util.find_spec("ns3") is None:
        return "no module ns3: `make ns3` installs it (Linux on x86-64)"
    return "" if _compiles() else f"no C++ compiler: {_compiler()[0]} (CXX) compiles nothing"


def packet_simulate(
    plan: Plan,
    topology: Topology,
    nbytes: Sizes,
    faults: Faults | None = None,
    *,
    paths: Paths = Paths(),
    tcp: Tcp = Tcp(),
    timeout_s: float = 3600.0,
    progress: Callable[[str], None] | None = None,
) -> PacketResult:
    """Run one plan alone from time 0, packet by packet, in a process of its own.

    Parameters
    ----------
    nbytes: payload as for :func:`testbed.network.fluid.simulate`; transfers move whole bytes, and
        an empty one moves one.
    faults: pauses only. A paused node writes nothing to its connections and acknowledges what
        arrives.
    timeout_s: wall seconds after which to give up.
    progress: called with a line every few wall seconds.

    Links without a limit have a hundred times the highest rate. Acknowledgements take the path of
    the opposite pair.

    Raises
    ------
    ValueError
        A plan, sizes or faults that do not fit.
    RuntimeError
        ns-3 is missing, or failed: with the last lines it printed; or not all arrived.
    """
    missing = available()
    if missing:
        raise RuntimeError(f"packet simulation: {missing}")
    check_structure(plan)
    faults = faults or Faults()
    if faults.rates or faults.bursts:
        raise ValueError("faults: the packet simulator knows pauses only, no rates and no bursts")
    for node, _, _ in faults.pauses:
        if not 0 <= node < topology.n_nodes:
            raise ValueError(f"faults: {topology.name} has no node {node} to pause")
    sizes = transfer_bytes(plan, nbytes)
    with tempfile.TemporaryDirectory(prefix="slowlink-ns3-") as folder:
        with Path(folder, "scene").open("w") as scene:
            for line in _scene(plan, topology, sizes, faults, paths, tcp):
                print(*line, file=scene)
        _run(plan.name, Path(folder), timeout_s, progress or (lambda line: None))
        with Path(folder, "result").open() as result:
            drops, timeouts, recoveries, events, wall_s = result.readline().split()
            times = np.array(result.read().split(), np.float64).reshape(-1, 2)
    transfers = np.zeros(len(plan), TIMELINE)
    for column in ("src", "dst", "slot"):
        transfers[column] = getattr(plan, column)
    transfers["nbytes"] = sizes
    transfers["start_s"], transfers["end_s"] = times.T
    moved = transfers[plan.src != plan.dst]
    if lost := int((moved["end_s"] <= moved["start_s"]).sum()):
        raise RuntimeError(f"{plan.name}: ns-3 ended before {lost} of {len(moved)} had arrived")
    return PacketResult(
        float(transfers["end_s"].max(initial=0.0)),
        transfers,
        *map(int, (drops, timeouts, recoveries, events)),
        float(wall_s),
    )


def _scene(
    plan: Plan, topology: Topology, sizes: np.ndarray, faults: Faults, paths: Paths, tcp: Tcp
) -> Iterator[Iterable[object]]:
    """Everything ns-3 has to know, as lines that ``packet.cc`` reads."""
    moves = plan.src != plan.dst
    there = np.stack([plan.src, plan.dst], axis=1)[moves]
    # Paths of the plan first, so that they are the fluid simulator's; then acknowledgements'.
    pairs = np.concatenate([there, there[:, ::-1]])
    ptr, links = routes(topology, pairs, paths)
    pairs, first = np.unique(pairs, axis=0, return_index=True)
    phase = np.zeros(len(plan), np.int64)
    if not plan.overlap:
        phase = np.unique(plan.phase, return_inverse=True)[1].reshape(-1)
    finite = topology.link_rate[np.isfinite(topology.link_rate)]
    rates = np.minimum(topology.link_rate, 100 * (finite.max() if len(finite) else 1e10))

    yield *dataclasses.astuple(tcp), ETHERNET
    yield topology.n_nodes, plan.chunks, phase.max(initial=0) + 1, plan.window
    for node in np.unique([*topology.workers, *topology.servers, *plan.src, *plan.dst]):
        yield "host", node
    ends = topology.link_src.tolist(), topology.link_dst.tolist()
    for link in zip(*ends, rates.tolist(), topology.link_latency.tolist(), strict=True):
        yield "link", *link
    for pair, i in zip(pairs.tolist(), first, strict=True):
        yield "path", *pair, ptr[i + 1] - ptr[i], *links[ptr[i] : ptr[i + 1]].tolist()
    for pause in faults.pauses:
        yield "pause", *pause
    after = plan.dep_ptr, plan.dep_ptr[1:]
    columns = (column.tolist() for column in (plan.src, plan.dst, sizes, phase, *after))
    for *transfer, begin, end in zip(*columns, strict=False):
        yield "transfer", *transfer, end - begin, *plan.dep_idx[begin:end].tolist()
    yield ("end",)


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX", "")) or ["c++"]


@cache
def _compiles() -> bool:
    """Whether the compiler makes a program of the least there is."""
    command = [*_compiler(), *COMPILE, "-x", "c++", "-o", os.devnull, "-"]
    try:
        return not subprocess.run(command, input=b"int main() {}", capture_output=True).returncode
    except OSError:
        return False


@cache
def _program() -> Path:
    """The program that simulates, compiled where it is not among the caches (several seconds)."""
    (root,) = map(Path, importlib.util.find_spec("ns3").submodule_search_locations)
    source, lib = Path(__file__).with_name("packet.cc"), root / "lib64"
    linked = [path for name in LIBRARIES for path in lib.glob(f"libns3.[0-9]*[0-9]-{name}.so")]
    command = [*_compiler(), *COMPILE, f"-I{root / 'include'}", source, *linked]
    command += [f"-Wl,-rpath,{lib}"]
    # The libraries' names have ns-3's version.
    program = caches() / f"packet-{sources(source, text=shlex.join(map(str, command)))}"
    program.parent.mkdir(parents=True, exist_ok=True)
    with program.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            made = program.with_suffix(".made")
            done = subprocess.run([*command, "-o", made], capture_output=True, text=True)
            if done.returncode:
                first = "\n".join(done.stderr.splitlines()[:LAST_LINES])
                raise RuntimeError(f"packet simulation: {command[0]} did not compile it:\n{first}")
            made.replace(program)
    return program


def _run(name: str, folder: Path, timeout_s: float, progress: Callable[[str], None]) -> None:
    """Run ns-3 on ``scene`` of ``folder``; it leaves ``result`` there."""
    program = _program()
    deadline, said, lines = time.monotonic() + timeout_s, folder / "said", []
    with (
        (folder / "scene").open() as scene,
        (folder / "result").open("w") as result,
        said.open("w") as errors,
    ):
        child = subprocess.Popen([program], stdin=scene, stdout=result, stderr=errors)
    try:
        with said.open(errors="replace") as file:
            while True:
                left = deadline - time.monotonic()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(max(min(LOOK_S, left), 0.0))
                for line in file:
                    lines = [*lines[1 - LAST_LINES :], line.rstrip()]
                    progress(line.rstrip())
                if child.returncode is not None:
                    break
                if left < 0:
                    raise RuntimeError(
                        f"{name}: ns-3 took more than {timeout_s:g} s; {_last(lines)}"
                    )
    finally:
        child.kill()
        child.wait()
    if code := child.returncode:
        what = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        raise RuntimeError(f"{name}: ns-3 {what}; {_last(lines)}")


def _last(lines: list[str]) -> str:
    return "its last lines:\n" + "\n".join(lines) if lines else "it printed nothing"
