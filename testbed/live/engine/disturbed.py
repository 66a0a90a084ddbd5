"""A live run that is disturbed on purpose, and what becomes of it.

A member is killed or held (SIGSTOP) for a while, or a site is cut off, at any moment. Right is what
ends in time and is one of :data:`RIGHT`; everything else is a fault of the engine.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from slowlink.testbed.live.engine.coordinator import Failed
from slowlink.testbed.live.engine.launch import Launched
from slowlink.testbed.live.engine.settings import COORDINATOR, LiveSettings

How = Literal["kill", "hold", "cut"]

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
    """What happens to ``member`` at ``at_s`` seconds of the run, and for how long."""

    member: str
    how: How
    at_s: float
    for_s: float = math.inf


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

    with Launched(given) as run, contextlib.ExitStack() as timers:

        def give_up() -> None:
            hung.set()
            for process in run.processes.values():
                process.kill()

        timers.enter_context(_after(limit_s, give_up))
        if disturbance:
            at_s, for_s = disturbance.at_s, disturbance.for_s
            timers.enter_context(_after(at_s, partial(_disturb, run, disturbance)))
            timers.enter_context(_after(at_s + for_s, partial(_relieve, run, disturbance)))
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


def _disturb(run: Launched, what: Disturbance) -> None:
    if what.how == "cut":
        run.links.cut(*_cable(run, what.member))
    else:
        number = signal.SIGKILL if what.how == "kill" else signal.SIGSTOP
        run.processes[what.member].send_signal(number)


def _relieve(run: Launched, what: Disturbance) -> None:
    if what.how == "cut":
        run.links.mend(*_cable(run, what.member))
    else:
        run.processes[what.member].send_signal(signal.SIGCONT)


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
