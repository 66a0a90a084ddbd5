"""The server of real workers: lets a policy run them, and keeps the global model.

A meeting is what it is in :mod:`testbed.training.virtual_time`: members push, the server applies
what came, the model of that moment is pulled. What is ready together happens at one time, in that
engine's order: pushes and pulls in the order in which they started, iterations by rank, deaths by
rank. So :func:`testbed.live.replay.again` repeats a run exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from slowlink.methods.synchronization import (
    Continue,
    Decision,
    Event,
    Finished,
    Left,
    Policy,
    Sync,
    Synced,
    Wait,
)
from slowlink.testbed.live.replay import TICK_S, Record
from slowlink.testbed.training.virtual_time import Told

AveragedOver = Literal["members", "all"]

SILENCE_S = 120.0
"""A run fails when nothing at all has happened for so long."""


class Team(Protocol):
    """Workers that the driver calls; each has at most one call under way."""

    def call(self, ranks: Sequence[int], method: str, *arguments: Any) -> None:
        """Start ``method`` at each of ``ranks``."""

    def wait(self, until: float) -> tuple[float, dict[int, Any], list[int]]:
        """Wait for anything to happen, at most until that time (s); say the time, in whole ticks
        and later than the last, the results that came, by rank, and who died."""


class Server:
    """The global model, and what meetings make of it."""

    def __init__(
        self,
        model: nn.Module,
        workers: int,
        travels: str,
        averaged_over: AveragedOver,
        lr: float,
        momentum: float,
    ) -> None:
        self.workers, self.travels, self.averaged_over = workers, travels, averaged_over
        self.model = nn.Parameter(parameters_to_vector(model.parameters()).detach().clone())
        self.optimizer = torch.optim.SGD([self.model], lr, momentum)

    def apply(self, sync: Sync, brought: dict[int, np.ndarray]) -> np.ndarray:
        """What the members of ``sync`` go on with, (n,), given the (n,) that each brought.

        Who died before its push came brought nothing, and the mean is over the others. Only a
        global meeting, of level -1, changes the model.
        """
        weights = sync.weights or (1.0,) * len(sync.members)
        weight = {rank: w for rank, w in zip(sync.members, weights, strict=True) if rank in brought}
        if not weight:
            return self._copy()
        mean = sum(w * torch.tensor(brought[r]) for r, w in weight.items()) / sum(weight.values())
        if sync.level != -1:
            return mean.numpy()
        if self.averaged_over == "all" and sync.weights is None:
            mean *= len(weight) / self.workers
        if self.travels == "gradient":
            self.model.grad = mean
            self.optimizer.step()
        else:
            self.model.data += mean
        return self._copy()

    def _copy(self) -> np.ndarray:
        return self.model.detach().numpy().copy()


@dataclass
class _Transfer:
    """A push or a pull under way: whom it waits for, and what came."""

    meeting: int
    sync: Sync
    phase: int  # 0 pushes, 1 pulls
    since: float
    missing: set[int]
    brought: dict[int, Any] = field(default_factory=dict)


def drive(
    policy: Policy,
    team: Team,
    server: Server,
    groups: Sequence[int],
    *,
    iterations: int | None = None,
    seconds: float | None = None,
) -> Record:
    """Let ``policy`` run ``team``, with ``server`` applying what it brings; see
    :func:`testbed.live.actors.run`."""
    return _Driver(policy, team, server, groups).run(
        math.inf if iterations is None else iterations,
        math.inf if seconds is None else math.floor(seconds / TICK_S) * TICK_S,
    )


class _Driver:
    def __init__(self, policy: Policy, team: Team, server: Server, groups: Sequence[int]) -> None:
        self.policy, self.team, self.server, self.groups = policy, team, server, tuple(groups)
        self.doing = ["idle"] * len(groups)  # the other states are computing, meeting and away
        self.begun = [0.0] * len(groups)
        self.iterations: list[list[float]] = [[] for _ in groups]
        self.meetings: list[list[float]] = []
        self.transfers: list[_Transfer] = []  # in the order in which they started
        self.told: list[Told] = []

    def run(self, target: float, end: float) -> Record:
        self._carry_out(None, self.policy.begin(self.groups), 0.0)
        last = 0.0
        while True:
            t, results, gone = self.team.wait(min(end, last + self._patience()))
            if t > end:
                break
            if not (results or gone or any(not x.missing for x in self.transfers)):
                if t < last + SILENCE_S:
                    continue
                raise RuntimeError(f"{name_of(self.policy)}: nothing happened for {SILENCE_S:g} s")
            self._happen(results, gone, t)
            last = t
            if sum(map(len, self.iterations)) >= target:
                end = t
                break
        return Record(
            policy=name_of(self.policy),
            parameters={
                f.name: getattr(self.policy, f.name) for f in fields(self.policy) if f.init
            },
            groups=self.groups,
            told=self.told,
            iterations=self.iterations,
            meetings=[tuple(times) for times in self.meetings],
            end=end,
        )

    def _patience(self) -> float:
        """Seconds within which something must happen."""
        if any(not transfer.missing for transfer in self.transfers):
            return 0.0  # the last worker that it waited for has died
        if "computing" not in self.doing and not self.transfers:
            alive = any(doing != "away" for doing in self.doing)
            why = "nobody computes and nobody meets" if alive else "all workers died"
            raise RuntimeError(f"{name_of(self.policy)}: {why}")
        return SILENCE_S

    def _happen(self, results: dict[int, Any], gone: Sequence[int], t: float) -> None:
        """All that is ready at ``t``, in the order of the virtual-time engine."""
        finished = sorted(rank for rank in results if self.doing[rank] == "computing")
        for transfer in self.transfers:
            came = transfer.missing & results.keys()
            transfer.brought.update({rank: results[rank] for rank in came})
            transfer.missing -= came
        for transfer in [x for x in self.transfers if not x.missing]:
            self.transfers.remove(transfer)
            self._arrive(transfer, t)
        for rank in finished:
            self.doing[rank] = "idle"
            self.iterations[rank].append(t - self.begun[rank])
            self._tell(Finished(rank, len(self.iterations[rank]), t))
        for rank in sorted(gone):
            self.doing[rank] = "away"
            for transfer in self.transfers:
                transfer.missing.discard(rank)
            self._tell(Left(rank, t))

    def _arrive(self, done: _Transfer, t: float) -> None:
        self.meetings[done.meeting][done.phase] = t - done.since
        here = [rank for rank in done.sync.members if self.doing[rank] != "away"]
        if done.phase == 0:
            values = self.server.apply(done.sync, done.brought)
            self.transfers.append(_Transfer(done.meeting, done.sync, 1, t, set(here)))
            self.team.call(here, "take", values, done.sync.level)
            return
        for rank in here:
            self.doing[rank] = "idle"
        self._tell(Synced(tuple(here), t))

    def _tell(self, event: Event) -> None:
        self._carry_out(event, self.policy.on(event), event.t)

    def _carry_out(self, event: Event | None, decisions: Sequence[Decision], t: float) -> None:
        self.told.append(Told(event, tuple(decisions), t))
        for decision in decisions:
            match decision:
                case Continue(worker=rank):
                    self._idle(decision, [rank])
                    self.doing[rank], self.begun[rank] = "computing", t
                    self.team.call([rank], "compute")
                case Sync(members=members):
                    self._idle(decision, members)
                    for rank in members:
                        self.doing[rank] = "meeting"
                    push = _Transfer(len(self.meetings), decision, 0, t, set(decision.bringing))
                    self.meetings.append([math.nan, math.nan])
                    if push.missing:
                        self.transfers.append(push)
                        self.team.call(decision.bringing, "give", decision.level)
                    else:
                        self._arrive(push, t)
                case Wait(worker=rank):
                    self._idle(decision, [rank])
                case _:
                    raise RuntimeError(f"{name_of(self.policy)}: {decision}: no timers here")

    def _idle(self, decision: Decision, ranks: Sequence[int]) -> None:
        for rank in ranks:
            doing = self.doing[rank] if 0 <= rank < len(self.doing) else "unknown"
            if doing != "idle":
                raise RuntimeError(
                    f"{name_of(self.policy)}: {decision}, but worker {rank} is {doing}"
                )


def name_of(policy: Policy) -> str:
    """The file name of the policy."""
    return type(policy).__module__.rpartition(".")[2]
