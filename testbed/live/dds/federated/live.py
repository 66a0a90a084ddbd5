"""A whole federated training on this machine: a controller and its clients as processes."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel
from torch import Tensor

from slowlink.testbed.live import fork_server
from slowlink.testbed.live.dds.federated import checkpoint
from slowlink.testbed.live.dds.federated.controller import read_log
from slowlink.testbed.live.dds.federated.settings import ClientSettings, ControllerSettings
from slowlink.testbed.live.dds.federated.training import Round
from slowlink.testbed.live.fork_server import Child

PACKAGE = "slowlink.testbed.live.dds.federated"
POLL_S = 0.05
SHARED = ("task", "domain", "run", "keys", "interface", "peers", "lease_s", "wait_s")


class Failed(RuntimeError):
    """The controller or a client ended with an error, or no round does; tells what it said last."""


def run_live(settings: ControllerSettings, timeout_s: float) -> tuple[list[Round], Tensor]:
    """Train with as many client processes as the task has.

    Parameters
    ----------
    settings: ``state`` must not exist yet; without ``log``, one beside it is written.
    timeout_s: longest time without a round that ends.

    Returns
    -------
    the rounds, and the final (n,) weights.

    Raises
    ------
    Failed
        See there.

    Nothing is left running, however this ends, and be it that this process is killed.
    """
    if settings.state.exists():
        raise ValueError(f"{settings.state} exists: a new training needs a place of its own")
    if settings.log is None:
        settings = settings.model_copy(update={"log": settings.state.with_suffix(".log")})
    shared = {name: getattr(settings, name) for name in SHARED}
    logged, since = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        processes = {"controller": stack.enter_context(process(settings, Path(folder)))}
        for client in range(settings.task.clients):
            its = ClientSettings(client=client, **shared)
            processes[f"client {client}"] = stack.enter_context(process(its, Path(folder)))
        while any(its.poll() is None for its in processes.values()):
            if (length := _length(settings.log)) != logged:
                logged, since = length, time.monotonic()
            _check(processes, Path(folder), time.monotonic() - since > timeout_s)
            time.sleep(POLL_S)
        _check(processes, Path(folder), late=False)
    return read_log(settings.log), checkpoint.load(settings.state, settings.task)[1]


@contextlib.contextmanager
def process(settings: BaseModel, folder: Path) -> Iterator[Child]:
    """A controller or client with its configuration and what it says (``*.txt``) in ``folder``;
    killed at the end, and gone, too, when this process is killed."""
    is_client = isinstance(settings, ClientSettings)
    role = "client" if is_client else "controller"
    name = f"client {settings.client}" if is_client else role
    file = folder / f"{name}.json"
    file.write_text(settings.model_dump_json())
    running = fork_server.shared().start(
        name,
        f"{PACKAGE}.__main__",
        [role, str(file), "--attached"],
        folder / f"{name}.txt",
        warm=[f"{PACKAGE}.warm"],
    )
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        running.stdin.close()


def _length(log: Path) -> int:
    """Length of the log in bytes, which grows with each round."""
    return log.stat().st_size if log.exists() else 0


def _check(processes: dict[str, Child], folder: Path, late: bool) -> None:
    for name, its in processes.items():
        if its.poll() or late and its.poll() is None:
            how = (
                f"ended with status {its.poll()}"
                if its.poll()
                else "is not done, and no round ends"
            )
            said = (folder / f"{name}.txt").read_text(errors="replace").strip()
            raise Failed(f"{name} {how}: {said[-2000:]}")
