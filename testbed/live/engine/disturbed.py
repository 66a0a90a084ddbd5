"""A live run that is disturbed on purpose, and what becomes of it.

A member is killed, or for a while it is held (SIGSTOP), its files cannot grow, as on a full disk,
its clock is set to another time, or its site is cut off; at any moment. Right is what ends in time
and is one of :data:`RIGHT`; everything else is a fault of the engine.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from slowlink.testbed.live import fork_server
from slowlink.testbed.live.engine.coordinator import Failed
from slowlink.testbed.live.engine.launch import Launched
from slowlink.testbed.live.engine.settings import COORDINATOR, LiveSettings
from slowlink.testbed.live.fork_server import Child

How = Literal["kill", "hold", "cut", "fill", "step"]

OUTLASTED = "outlasted it"
WITHOUT = "went on without it"
RESUMED = "named it, then resumed"
NAMED = "named it"
RIGHT = (OUTLASTED, WITHOUT, RESUMED, NAMED)
HUNG = "over the limit"
WRONG = "wrong model"
BLAMED = "another was named"
LEFT = "processes stayed"
FAULTS = (HUNG, WRONG, BLAMED, LEFT)

LEAVE_S = 10.0
"""How long members may take to end, beyond the silence after which they notice."""


@dataclass(frozen=True)
class Disturbance:
    """What happens to ``member`` at ``at_s`` seconds of the run, and for how long; a clock steps
    ``by_s`` seconds ahead, and back."""

    member: str
    how: How
    at_s: float
    for_s: float = math.inf
    by_s: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What became of a run: one of :data:`RIGHT` or :data:`FAULTS`, after how many seconds, and the
    words of the error or of the loss, if there was one."""

    kind: str
    seconds: float
    said: str = ""


Model = Mapping[str, Tensor]


def model_of(given: LiveSettings) -> Model:
    """The final model of a run."""
    return torch.load(given.output / "model.pt", weights_only=True)


def disturbed(
    given: LiveSettings, whole: Model, disturbance: Disturbance, limit_s: float
) -> Outcome:
    """Run ``given`` and disturb it.

    Parameters
    ----------
    given: with snapshots, a run that ends with an error is begun again, and must resume. Of a site
        that is cut off, the links are shaped.
    whole: the model that it comes to undisturbed.
    limit_s: for the whole run; the resumed one has as long.
    """
    begun = time.monotonic()
    fault, error, lost = _once(given, disturbance, limit_s)
    seconds, said = time.monotonic() - begun, error or "; ".join(lost)
    if fault:
        return Outcome(fault, seconds, said)
    if said and not _names(said, disturbance, given):
        return Outcome(BLAMED, seconds, said)
    if not error:
        return Outcome(_kind(given, whole, bool(lost)), seconds, said)
    if given.state is None:
        return Outcome(NAMED, seconds, said)
    fault, error, _ = _once(given, None, limit_s)
    if fault or error:
        return Outcome(fault or WRONG, seconds, f"{said}; begun again: {error}")
    kind = _kind(given, whole, lost=False)
    return Outcome(RESUMED if kind == OUTLASTED else kind, seconds, said)


def _once(
    given: LiveSettings, disturbance: Disturbance | None, limit_s: float
) -> tuple[str, str, list[str]]:
    """A run's fault, its error and whom it went on without; empty for none."""
    lost: list[str] = []
    error, hung = "", threading.Event()

    def heard(line: str) -> None:
        if line.startswith("goes on without "):
            lost.append(line.removeprefix("goes on without "))

    clocks = _clocks(given) if disturbance and disturbance.how == "step" else {}
    with Launched(given, environment=clocks) as run, contextlib.ExitStack() as timers:

        def give_up() -> None:
            hung.set()
            for process in run.processes.values():
                process.kill()

        timers.enter_context(_after(limit_s, give_up))
        if disturbance:
            at_s, for_s = disturbance.at_s, disturbance.for_s
            timers.enter_context(_after(at_s, partial(_disturb, run, disturbance)))
            timers.enter_context(
                _after(at_s + for_s, partial(_disturb, run, disturbance, on=False))
            )
        try:
            run.run(heard)
        except Failed as failed:
            error = str(failed)
        if hung.is_set():
            return HUNG, error, lost
        member = disturbance.member if disturbance else ""
        limits = given.limits  # who has not met the coordinator yet waits for it to come
        if left := _left(run, member, max(limits.silence_s, limits.join_s) + LEAVE_S):
            return LEFT, f"{error}; {', '.join(left)} did not end", lost
    return "", error, lost


@contextlib.contextmanager
def _after(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """``act`` after so many seconds, on another thread, unless the block is left before."""
    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), act)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _disturb(run: Launched, what: Disturbance, on: bool = True) -> None:
    """Begin with a disturbance, or end it."""
    process = run.processes[what.member]
    match what.how:
        case "kill":
            process.kill()
        case "hold":
            process.send_signal(signal.SIGSTOP if on else signal.SIGCONT)
        case "cut":
            (run.links.cut if on else run.links.mend)(*_cable(run, what.member))
        case "fill":
            _limit_files(process, 0 if on else resource.RLIM_INFINITY)
        case "step":
            _clock(run.given, what.member).write_text(f"{what.by_s * on:+.3f}\n")


def _limit_files(process: Child, most: int) -> None:
    """Let a process write no file beyond so many bytes: what it tries fails as on a full disk."""
    with contextlib.suppress(ProcessLookupError):
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, hard))


def clocks_that_step() -> None:
    """Let the clocks of all processes that are started from now on be set one by one, by
    libfaketime. Raises RuntimeError where it is not installed, or it is too late."""
    if (library := faketime()) is None:
        raise RuntimeError("clocks cannot be set without libfaketime; Debian's package is faketime")
    if fork_server.there():
        raise RuntimeError("processes have been started with the machine's own clock before")
    # Only the time of day steps, and waiting takes as long as ever. A process that looks for steps
    # every ten seconds hands that down to its forks, whatever these are told.
    steady = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_FORCE_MONOTONIC_FIX": "0"}
    os.environ |= {"LD_PRELOAD": str(library), "FAKETIME_NO_CACHE": "1"} | steady


def faketime() -> Path | None:
    """Debian's libfaketime, where it is installed."""
    return next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


def _clocks(given: LiveSettings) -> dict[str, dict[str, str]]:
    """Where each member finds by how much its clock is off."""
    return {name: {"FAKETIME_TIMESTAMP_FILE": str(_clock(given, name))} for name in given.members}


def _clock(given: LiveSettings, member: str) -> Path:
    return given.output.absolute() / f"{member.replace('/', '-')}.clock"


def _cable(run: Launched, member: str) -> tuple[int, int]:
    """Between the member's site and the others."""
    names = run.links.topology.node_names
    return names.index(f"{member.partition('/')[0]}/switch"), names.index("core")


def _left(run: Launched, disturbed: str, most_s: float) -> list[str]:
    """Members that do not end by themselves, but whoever is disturbed."""
    end = time.monotonic() + most_s
    others = {name: its for name, its in run.processes.items() if name != disturbed}
    while left := [name for name, its in others.items() if its.poll() is None]:
        if time.monotonic() > end:
            return left
        time.sleep(0.05)
    return []


def _names(said: str, what: Disturbance, given: LiveSettings) -> bool:
    """Whether somebody to blame is named: the member, anybody of a site that is cut off, and where
    the coordinator is disturbed, whoever it missed."""
    if what.how == "step":
        return False  # nothing depends on the time of day
    if what.how == "fill":
        found = what.member == COORDINATOR or what.member in said
        return found and "cannot be written" in said
    if what.member == COORDINATOR:
        return any(name in said for name in given.members)
    if what.how == "cut":
        site = what.member.partition("/")[0]
        return any(name in said for name in given.members if name.startswith(f"{site}/"))
    return what.member in said


def _kind(given: LiveSettings, whole: Model, lost: bool) -> str:
    found = model_of(given)
    if not all(bool(value.isfinite().all()) for value in found.values()):
        return WRONG
    if lost:
        return WITHOUT
    policy = given.policy()
    if not (policy.clock_free and policy.together):
        return OUTLASTED if found.keys() == whole.keys() else WRONG
    same = all(torch.equal(found[name], value) for name, value in whole.items())
    return OUTLASTED if same else WRONG


# What is trained ----------------------------------------------------------------------------------

if "libfaketime" in os.environ.get("LD_PRELOAD", ""):  # in a member whose clock may step
    # libfaketime takes the steady time until which Python sleeps for a time of day.
    time.sleep = partial(select.select, (), (), ())


def make_model() -> nn.Module:
    layers = nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4)
    return nn.Sequential(*layers)


def batches(site: str, worker: int) -> list[tuple[Tensor, Tensor]]:
    """Samples of a class each: the largest of their first four values."""
    generator = torch.Generator().manual_seed(1000 * sum(site.encode()) + worker)
    x = torch.randn((64, 16), generator=generator)
    return list(zip(x.split(8), x[:, :4].argmax(1).split(8), strict=True))


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


OWN = dict(
    model=f"{__name__}:make_model",
    data=f"{__name__}:batches",
    loss="torch.nn.functional:cross_entropy",
    optimizer=f"{__name__}:make_optimizer",
)
"""A small training of one's own, for settings."""
