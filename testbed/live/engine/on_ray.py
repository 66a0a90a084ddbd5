"""A live run whose members are where Ray places them; Ray starts and ends them, and that is all.

They are the same nodes, on the same wire, under the same coordinator as without Ray, which is an
optional dependency (the extra ``ray``).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slowlink.testbed.live.engine import settings as live
from slowlink.testbed.live.engine.coordinator import Ended
from slowlink.testbed.live.engine.launch import Launched, Say, run_node, set_up_logs
from slowlink.testbed.live.engine.settings import LiveSettings

END_S = 30.0
"""How long a process may take to end, once Ray has been told to kill it."""


@contextlib.contextmanager
def cluster(address: str | None, workers: int) -> Iterator[Any]:
    """The module ``ray``, connected, for one run or several after each other.

    Parameters
    ----------
    address: of a Ray cluster, ``auto`` for the one that this machine is in; None starts one here.
        Its nodes need this package and the data, and a free processor for each worker.

    Raises
    ------
    ModuleNotFoundError: Ray is not installed.
    ValueError: too few processors.
    """
    ray = prepare(address)
    ours = not ray.is_initialized()
    if ours:
        where: dict[str, Any] = dict(address=address)
        if address is None:  # without "local", Ray would join a cluster that is already running
            where = dict(address="local", num_cpus=workers, include_dashboard=False)
            where["_node_ip_address"] = "127.0.0.1"
        ray.init(**where, log_to_driver=False, logging_level="ERROR")
    try:
        # Ray would start only as many as there are processors.
        processors = ray.cluster_resources().get("CPU", 0)
        if processors < workers:
            raise ValueError(f"{workers} workers need as many processors; Ray has {processors:g}")
        yield ray
    finally:
        if ours:
            ray.shutdown()


def run_all(
    settings: LiveSettings,
    say: Say = lambda line: None,
    address: str | None = None,
    recorded: bool = False,
) -> Ended:
    """Run all members where Ray places them; see :func:`cluster` and :class:`Placed`."""
    with cluster(address, len(settings.workers)) as ray, Placed(settings, ray) as placed:
        return placed.run(say, recorded)


class Placed(Launched):
    """``with Placed(settings, ray) as run``: all members but the coordinator, which is here.
    Servers are on this machine, too, and workers spread over Ray's nodes, with a processor each.

    Parameters
    ----------
    ray: as :func:`cluster` gives it.

    Raises
    ------
    ValueError: shaped links, or no keys where Ray's nodes are on several hosts.
    """

    here = False

    def __init__(self, settings: LiveSettings, ray: Any) -> None:
        super().__init__(settings)
        self.ray = ray
        if settings.network is not None:
            raise ValueError("network: must be null, for Ray's processes have links as they are")
        if len({node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}) > 1:
            if settings.keys is None:
                raise ValueError("keys: name a folder, since Ray's nodes are on several hosts")
            if settings.dds and not settings.dds.interface:
                raise ValueError("dds.interface: give it, since Ray's nodes are on several hosts")
            self.host = ray.util.get_node_ip_address()

    def start(self, name: str) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        here = On(self.ray.get_runtime_context().get_node_id(), soft=False)
        worker = self.given.topology.node_names.index(name) in self.given.workers
        where = dict(num_cpus=int(worker), scheduling_strategy="SPREAD" if worker else here)
        self.processes[name] = Process(self.ray, where, self.file.read_text(), name)

    def _last(self, name: str) -> str:
        return self.processes[name].error

    @staticmethod
    def _end(process: Process) -> None:
        process.kill()
        process.wait()


class Process:
    """A node's process, which Ray places by ``where``, under the names of a ``Popen``."""

    def __init__(self, ray: Any, where: dict[str, Any], text: str, name: str) -> None:
        self.ray, self.error = ray, ""
        self.actor = ray.remote(_Node).options(**where).remote()
        self.running = self.actor.run.remote(text, name, os.getcwd())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and self.ray.wait([self.running], timeout=0)[0]:
            try:
                self.ray.get(self.running)
                self.returncode = 0
            except self.ray.exceptions.RayError as error:
                self.error, self.returncode = str(getattr(error, "cause", error)), 1
        return self.returncode

    def wait(self) -> None:
        self.ray.wait([self.running], timeout=END_S)

    def kill(self) -> None:
        self.ray.kill(self.actor)


class _Node:
    """Where a node runs; Ray has a process for it."""

    def run(self, text: str, name: str, folder: str) -> None:
        if Path(folder).is_dir():
            os.chdir(folder)  # paths in the settings may begin there
        set_up_logs()
        run_node(live.parse(json.loads(text)), name)


def prepare(address: str | None) -> Any:
    """Ray's package, with the environment in which a cluster is to start or to be joined."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Workers are as urgent as the servers that they meet at, where Ray would let them wait for all.
    os.environ.setdefault("RAY_worker_niceness", "0")
    if address is None:  # a single machine needs no authentication
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray

    return ray
