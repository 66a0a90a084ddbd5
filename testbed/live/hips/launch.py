"""All nodes of a cluster as processes on this machine, over its loopback or emulated links."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slowlink.testbed.live.fork_server import Child, ForkServer, environment
from slowlink.testbed.live.hips import node as nodes
from slowlink.testbed.live.hips.messages import (
    GLOBAL_SCHEDULER,
    GLOBAL_SERVER,
    MASTER,
    Role,
    scheduler_of,
    site_of,
)
from slowlink.testbed.live.hips.scheduler import GlobalScheduler, SiteScheduler
from slowlink.testbed.live.hips.settings import ClusterSettings
from slowlink.testbed.live.hips.zmq_transport import ZmqTransport
from slowlink.testbed.live.identity import Keys
from slowlink.testbed.live.wire import FLUSH_S

if TYPE_CHECKING:
    from slowlink.testbed.network.emulated import Measured

COMMAND, ROLES = "slowlink.testbed.live.hips", ["slowlink.testbed.live.hips.roles"]
POLL_S = 0.05
PORT = 5570
"""Schedulers listen here on emulated links, where every host has all ports to itself."""

Say = Callable[[str], None]


class Failed(RuntimeError):
    """The cluster ended with an error, or too late; says why."""


# One node -----------------------------------------------------------------------------------------


def run_node(cluster: ClusterSettings, name: str, attached: bool = False) -> None:
    """Be the node ``name`` until the run is over.

    SIGTERM makes a worker or server leave in order. ``attached``: end when standard input does,
    as it does when whoever holds the other end dies.

    Raises
    ------
    ValueError
        No such node, or no address for a scheduler that it needs.
    Stopped, OSError
        The run ended with an error; this node's address cannot be listened at.
    """
    if name not in cluster.everybody:
        raise ValueError(f"no node {name!r}; there are: {', '.join(cluster.everybody)}")
    scheduler = name in cluster.schedulers
    above = GLOBAL_SCHEDULER if scheduler else scheduler_of(name)
    for needed in (above, name) if scheduler else (above,):
        if needed not in cluster.addresses:
            raise ValueError(f"addresses: give that of {needed}, as {needed}: tcp://host:port")
    if attached:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts for all nodes
        threading.Thread(target=_end_with_parent, daemon=True).start()
    leaving = threading.Event()
    if not scheduler:
        signal.signal(signal.SIGTERM, lambda *_: leaving.set())
    role = make_scheduler(cluster, name) if scheduler else make_role(cluster, name)
    transport = ZmqTransport(
        name,
        cluster.addresses.get(name) or f"tcp://{_own_host(cluster.addresses[above])}:0",
        nodes=cluster.everybody,
        keys=cluster.keys and Keys(cluster.keys, name),
        watches=scheduler,
        above=above,
        heartbeat_s=cluster.heartbeat_timeout_s / 5,
        timeout_s=cluster.heartbeat_timeout_s,
        stall_s=cluster.stall_s,
        slice_bytes=cluster.slice_bytes,
        limit_bytes=cluster.limit_bytes,
    )
    try:
        if name != above:
            transport.connect({above: cluster.addresses[above]})
        if scheduler:
            nodes.run_scheduler(role, transport)
            return
        limits = dict(start_s=cluster.start_s, timeout_s=cluster.heartbeat_timeout_s)
        nodes.run(role, transport, **limits, leaving=leaving)
    finally:
        transport.close(FLUSH_S)
    if name == MASTER:
        from slowlink.testbed import results

        results.write(role.rows, cluster.output / "rows.parquet")


def make_scheduler(cluster: ClusterSettings, name: str) -> SiteScheduler | GlobalScheduler:
    """The scheduler of a site, or the global one."""
    timeout_s, start_s = cluster.heartbeat_timeout_s, cluster.start_s
    if name != GLOBAL_SCHEDULER:
        patience_s = timeout_s if cluster.on_loss == "stop" else cluster.rejoin_s
        return SiteScheduler(name, timeout_s, start_s, patience_s)
    return GlobalScheduler(
        cluster.nodes,
        [node for node in cluster.nodes if node not in cluster.late],
        cluster.servers,
        cluster.on_loss,
        cluster.mixed,
        timeout_s,
        start_s,
        cluster.rejoin_s,
    )


def make_role(cluster: ClusterSettings, name: str) -> Role:
    """The role of a worker or server."""
    from slowlink.testbed.live.hips import roles  # only here: schedulers need not wait for torch

    return roles.make(cluster, name)


def _end_with_parent() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    os._exit(3)


def _own_host(address: str) -> str:
    """This machine's address on the way to ``address``."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return probe.getsockname()[0]


# All of them --------------------------------------------------------------------------------------


class Launched:
    """``with Launched(cluster) as it``: all nodes but late ones, started; killed at the end.

    Parameters
    ----------
    pairs: of nodes of the links' topology, between which to measure before any node starts;
        nothing is measured without links.
    measured_s: seconds a pair.

    Attributes
    ----------
    links: the emulated links, None without.
    measured: what was, a pair each.
    processes: by node, the latest.

    Raises
    ------
    RuntimeError
        Links cannot be emulated here; says why.
    """

    def __init__(
        self,
        cluster: ClusterSettings,
        pairs: Sequence[tuple[int, int]] = (),
        measured_s: float = 0.5,
    ) -> None:
        self.given = cluster
        self.pairs, self.measured_s = pairs, measured_s
        self.links = None
        self.measured: list[Measured] = []
        self.processes: dict[str, subprocess.Popen | Child] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Launched:
        self.given.output.mkdir(parents=True, exist_ok=True)
        logs = map(self._log, self.given.everybody)
        for old in (*logs, self.given.output / "rows.parquet"):
            old.unlink(missing_ok=True)
        try:
            if self.given.network is not None:
                from slowlink.testbed.network.emulated import Emulated
                from slowlink.testbed.training.trainer import topology

                self._topology = topology(self.given.training.workers, self.given.network)
                self.links = self._stack.enter_context(Emulated(self._topology))
                if self.pairs:
                    self.measured = self.links.measure(self.pairs, self.measured_s)
            self._fork_server = self._stack.enter_context(
                contextlib.closing(ForkServer(COMMAND, ROLES))
            )
            addresses = self._addresses() | self.given.addresses
            self.cluster = self.given.model_copy(update={"addresses": addresses})
            fields = self.cluster.model_dump(mode="json", exclude={"training": {"networks"}})
            self.file = self.cluster.output / "cluster.json"
            self.file.write_text(json.dumps(fields, indent=1) + "\n")
            for name in self.cluster.everybody:
                if name not in self.cluster.late:
                    self.start(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
            process.stdin.close()
        self._stack.close()

    def start(self, name: str) -> None:
        """Start a node, for the first time or again."""
        if name in self.processes:
            self.processes[name].stdin.close()
        self._log(name).touch()  # the file may be read before the node has made it
        argv = [str(self.file), "--node", name, "--attached"]
        namespace = ""
        if self.links is not None:
            python = [sys.executable, "-m", "slowlink.testbed.live.hips", *argv]
            enter = self.links.command(self._host(name), python)
            options = enter[1 : enter.index("--")]
            if len(options) > 1:  # links of an ordinary user, into whose namespaces nobody forks
                self.processes[name] = self._fresh(name, enter)
                return
            namespace = options[0].removeprefix("--net=")
        self.processes[name] = self._fork_server.start(name, argv, self._log(name), namespace)

    def _fresh(self, name: str, argv: list[str]) -> subprocess.Popen:
        with self._log(name).open("ab") as said:
            files = dict(stdin=subprocess.PIPE, stdout=said, stderr=said)
            return subprocess.Popen(argv, **files, env=environment(), start_new_session=True)

    def kill(self, *names: str) -> None:
        """Send SIGKILL to all of them before waiting for any."""
        for name in names:
            self.processes[name].kill()
        for name in names:
            self.processes[name].wait()

    def said(self, name: str) -> str:
        """The log of a node."""
        return self._log(name).read_text(errors="replace")

    def wait(self, timeout_s: float) -> None:
        """Until the run is over; raises Failed where that comes as an error, or too late."""
        deadline = time.monotonic() + timeout_s
        decides, starting = self.processes[GLOBAL_SCHEDULER], True
        while decides.poll() is None:
            if time.monotonic() > deadline:
                raise Failed(f"not done in {timeout_s:g} s: {self._last(GLOBAL_SCHEDULER)}")
            starting = starting and "epoch 1," not in self.said(GLOBAL_SERVER)
            if starting and (dead := [n for n, its in self.processes.items() if its.poll()]):
                raise Failed(f"{dead[0]} ended before the start: {self._last(dead[0])}")
            time.sleep(POLL_S)
        if decides.returncode:
            raise Failed(self._last(GLOBAL_SCHEDULER) or f"{GLOBAL_SCHEDULER} died")
        master = self.processes[MASTER]
        with contextlib.suppress(subprocess.TimeoutExpired):
            master.wait(max(0.0, deadline - time.monotonic()))
        if master.poll() != 0:
            raise Failed(f"{MASTER} ended with status {master.poll()}: {self._last(MASTER)}")

    def _last(self, name: str) -> str:
        lines = self.said(name).strip().split("\n")
        return lines[-1]

    def _log(self, name: str) -> Path:
        return self.given.output / f"{name.replace('/', '-')}.log"

    def _host(self, name: str) -> int:
        """The node of the topology on which ``name`` runs: schedulers and the master are with the
        server."""
        names = self._topology.node_names
        site = "central" if site_of(name) == "global" else site_of(name)
        return names.index(name if name in names else f"{site}/server")

    def _addresses(self) -> dict[str, str]:
        if self.links is not None:
            return {
                name: f"tcp://{self.links.address(self._host(name))}:{PORT + number}"
                for number, name in enumerate(self.given.schedulers)
            }
        with contextlib.ExitStack() as stack:
            free = [stack.enter_context(socket.socket()) for _ in self.given.schedulers]
            for its in free:
                its.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                its.bind(("127.0.0.1", 0))
            ports = [its.getsockname()[1] for its in free]
        return {
            name: f"tcp://127.0.0.1:{port}"
            for name, port in zip(self.given.schedulers, ports, strict=True)
        }


def run_all(
    cluster: ClusterSettings,
    timeout_s: float,
    say: Say = lambda line: None,
    pairs: Sequence[tuple[int, int]] = (),
    measured_s: float = 0.5,
) -> list[Measured]:
    """Run a whole cluster on this machine; its rows are in ``output`` then.

    ``timeout_s`` may be infinite; ``pairs`` and ``measured_s`` (s) are those of :class:`Launched`,
    whose measurements are returned.

    Raises
    ------
    Failed
        See there; nothing is left running.
    RuntimeError
        Links cannot be emulated here; says why.
    """
    with Launched(cluster, pairs, measured_s) as launched:
        say(f"{len(launched.processes)} nodes started, logs in {cluster.output}")
        launched.wait(timeout_s)
        return launched.measured


def set_up_logs() -> None:
    """Log time and text to standard error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
