"""Packet simulation: a plan over TCP in ns-3 [@riley2010ns3], to check the fluid one.

Topology, paths, dependencies, chunks, phases, windows and pauses mean what they mean to the fluid
simulator. A plan's window is the number of TCP connections from one node to another, one as all
exchanges make plans, which carry all that the one has for the other, each a message after another;
without a window, every transfer has its own. They open before the plan starts and stay open. All
connections of a pair take the pair's path.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from slowlink.methods.exchange import Plan, Topology
from slowlink.testbed.live.fork_server import ForkServer
from slowlink.testbed.network.counting import Sizes, transfer_bytes
from slowlink.testbed.network.execution import check_structure
from slowlink.testbed.network.faults import Faults
from slowlink.testbed.network.fluid import TIMELINE, tcp_efficiency
from slowlink.testbed.network.routing import Paths, routes

RUNNER = "slowlink.testbed.network._ns3"
HEADERS, ETHERNET = 52, 38
"""Bytes of IPv4 and TCP with timestamps in a packet, and of Ethernet around it."""
LAST_LINES = 12
"""Lines of what ns-3 printed that an error repeats."""
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
    for module in ("ns3", "cppyy"):
        if importlib.util.find_spec(module) is None:
            return f"no module {module}: `make ns3` installs it (Linux on x86-64, a C++ compiler)"
    return ""


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
        ns-3 is missing, or failed: with the last lines it printed.
    """
    missing = available()
    if missing:
        raise RuntimeError(f"packet simulation: {missing}")
    check_structure(plan)
    scene = _scene(plan, topology, nbytes, faults or Faults(), paths)
    with tempfile.TemporaryDirectory(prefix="slowlink-ns3-") as folder:
        np.savez(Path(folder, "scene.npz"), tcp=json.dumps(dataclasses.asdict(tcp)), **scene)
        _run(plan.name, folder, timeout_s, progress or (lambda line: None))
        with np.load(Path(folder, "result.npz")) as result:
            times, counts = result["times"], json.loads(str(result["counts"]))
    transfers = np.zeros(len(plan), TIMELINE)
    for column in ("src", "dst", "slot"):
        transfers[column] = getattr(plan, column)
    transfers["nbytes"] = scene["nbytes"]
    transfers["start_s"], transfers["end_s"] = times
    return PacketResult(float(transfers["end_s"].max(initial=0.0)), transfers, **counts)


def _scene(
    plan: Plan, topology: Topology, nbytes: Sizes, faults: Faults, paths: Paths
) -> dict[str, np.ndarray]:
    """Everything ns-3 has to know, as arrays."""
    if faults.rates or faults.bursts:
        raise ValueError("faults: the packet simulator knows pauses only, no rates and no bursts")
    for node, _, _ in faults.pauses:
        if not 0 <= node < topology.n_nodes:
            raise ValueError(f"faults: {topology.name} has no node {node} to pause")
    moves = plan.src != plan.dst
    there = np.stack([plan.src, plan.dst], axis=1)[moves]
    # Paths of the plan first, so that they are the fluid simulator's; then acknowledgements'.
    pairs = np.concatenate([there, there[:, ::-1]])
    ptr, links = routes(topology, pairs, paths)
    pairs, first = np.unique(pairs, axis=0, return_index=True)
    path = [links[ptr[i] : ptr[i + 1]] for i in first]
    phase = np.zeros(len(plan), np.int64)
    if not plan.overlap:
        phase = np.unique(plan.phase, return_inverse=True)[1].reshape(-1)
    finite = topology.link_rate[np.isfinite(topology.link_rate)]
    return dict(
        n_nodes=np.array(topology.n_nodes),
        chunks=np.array(plan.chunks),
        window=np.array(plan.window),
        hosts=np.unique([*topology.workers, *topology.servers, *plan.src, *plan.dst]),
        link_src=topology.link_src,
        link_dst=topology.link_dst,
        link_rate=np.minimum(topology.link_rate, 100 * (finite.max() if len(finite) else 1e10)),
        link_latency=topology.link_latency,
        pairs=pairs,
        path_ptr=np.cumsum([0, *map(len, path)]),
        path_links=np.concatenate([*path, []]).astype(np.int64),
        src=plan.src,
        dst=plan.dst,
        nbytes=transfer_bytes(plan, nbytes),
        phase=phase,
        dep_ptr=plan.dep_ptr,
        dep_idx=plan.dep_idx,
        pauses=np.array(faults.pauses, np.float64).reshape(-1, 3),
    )


@cache
def _starter(pid: int) -> ForkServer:
    """What starts ns-3 for the process ``pid``, which is this one: it is compiled there once."""
    return ForkServer()


def _run(name: str, folder: str, timeout_s: float, progress: Callable[[str], None]) -> None:
    """Run ns-3 on ``scene.npz`` of ``folder``; it leaves ``result.npz`` there."""
    deadline, said, lines = time.monotonic() + timeout_s, Path(folder, "said"), []
    said.touch()
    child = _starter(os.getpid()).start("ns-3", RUNNER, [folder], said)
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
