"""The common part of Local SGD policies: who is there, and how far each has come on its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slowlink.methods import method_name
from slowlink.methods.synchronization import (
    Continue,
    Decision,
    Event,
    Finished,
    Joined,
    Left,
    Policy,
    Sync,
    Synced,
    Wait,
)


@dataclass
class Counting(Policy):
    """Keeps who is present, the iterations of each since it last synchronized, and their times.

    Policies fill in :meth:`computed`, and :meth:`joined` and :meth:`left` where they keep more.
    """

    _since: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    """Iterations since the last synchronization, of all who are present."""
    _lasted: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    """Seconds that the last iteration took, of those present who have finished one."""
    _started: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    """When whoever computes began its iteration."""

    def begin(self, groups: Sequence[int]) -> list[Decision]:
        decisions = super().begin(groups)
        self._since = dict.fromkeys(range(len(groups)), 0)
        self._lasted = {}
        self._started = dict.fromkeys(self._since, 0.0)
        return decisions

    def on(self, event: Event) -> list[Decision]:
        decisions = self._decide(event)
        for decision in decisions:
            if isinstance(decision, Continue):
                self._started[decision.worker] = event.t
        return decisions

    def _decide(self, event: Event) -> list[Decision]:
        match event:
            case Finished(worker=worker, t=t) if worker in self._since:
                self._since[worker] += 1
                self._lasted[worker] = t - self._started.pop(worker, 0.0)
                return self.computed(worker, t)
            case Synced(members=members, t=t):
                return self.released([w for w in members if w in self._since], t)
            case Joined(worker=worker, t=t):
                self._since[worker] = 0
                self.joined(worker)
                return self.released([worker], t)
            case Left(worker=worker, t=t) if worker in self._since:
                for kept in (self._since, self._lasted, self._started):
                    kept.pop(worker, None)
                return self.left(worker, t)
        return []

    def computed(self, worker: int, t: float) -> list[Decision]:
        """Say what follows from ``worker`` having finished an iteration."""
        raise NotImplementedError

    def released(self, workers: Sequence[int], t: float) -> list[Decision]:
        """``workers``, who are all present, hold a new model."""
        self._since.update(dict.fromkeys(workers, 0))
        return [Continue(worker) for worker in workers]

    def joined(self, worker: int) -> None:
        """``worker`` takes part from now on and is already counted."""

    def left(self, worker: int, t: float) -> list[Decision]:
        """``worker`` is gone and no longer counted; say which others may now go on."""
        return []


@dataclass
class Local(Counting):
    """Each worker computes ``local_iterations`` on its own and then comes to meet."""

    local_iterations: int = 1

    def __post_init__(self) -> None:
        check_whole(self, "local_iterations", 1)

    def computed(self, worker: int, t: float) -> list[Decision]:
        if self._since[worker] < self.local_iterations:
            return [Continue(worker)]
        return self.arrived(worker, t)

    def arrived(self, worker: int, t: float) -> list[Decision]:
        """Say what follows from ``worker`` having done its local iterations."""
        raise NotImplementedError


@dataclass
class Bounded(Local):
    """A worker may start a round only ``staleness`` rounds ahead of the slowest whom it keeps pace
    with.

    The clock of a worker is the number of rounds (of ``local_iterations``) that it has brought.
    Its push never waits, only its next round does (Ho et al., NeurIPS 2013); who had to wait pulls
    once more before it starts, so that the model it reads holds what it waited for.
    """

    staleness: int = 2

    _clock: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    _pushing: set[int] = field(default_factory=set, init=False, repr=False)
    _held: list[int] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, "staleness", 0)

    def begin(self, groups: Sequence[int]) -> list[Decision]:
        decisions = super().begin(groups)
        self._clock, self._pushing, self._held = dict(self._since), set(), []
        return decisions

    def pace(self, worker: int) -> Sequence[int]:
        """The workers with a clock, itself among them, whose slowest holds ``worker`` back."""
        raise NotImplementedError

    def arrived(self, worker: int, t: float) -> list[Decision]:
        self._pushing.add(worker)
        return [Sync((worker,))]

    def released(self, workers: Sequence[int], t: float) -> list[Decision]:
        ready = []
        for worker in workers:
            if worker in self._pushing:
                self._pushing.remove(worker)
                self.ticked(worker)
                self._held.append(worker)
            else:
                ready.append(worker)
        freed = self.freed()
        ready += [worker for worker in freed if worker in workers]
        waits = [Wait(worker) for worker in workers if worker not in ready]
        return [
            *super().released(ready, t),
            *waits,
            *(refresh(worker) for worker in freed if worker not in workers),
        ]

    def ticked(self, worker: int) -> None:
        """Count one more round that ``worker`` has brought to the server."""
        self._clock[worker] += 1

    def freed(self) -> list[int]:
        """The workers that need not wait any longer, in the order in which they came."""
        slowest = {w: min(self._clock[v] for v in self.pace(w)) for w in self._held}
        freed = [w for w in self._held if self._clock[w] - slowest[w] <= self.staleness]
        self._held = [w for w in self._held if w not in freed]
        return freed

    def joined(self, worker: int) -> None:
        """A newcomer holds nobody back, because its clock starts at the slowest one's."""
        self._clock[worker] = min((self._clock[w] for w in self.pace(worker)), default=0)

    def left(self, worker: int, t: float) -> list[Decision]:
        del self._clock[worker]
        self._pushing.discard(worker)
        self._held = [w for w in self._held if w != worker]
        return [*map(refresh, self.freed())]


def refresh(worker: int) -> Sync:
    """``worker`` brings nothing and pulls."""
    return Sync((worker,), weights=(0.0,))


def check_whole(policy: Policy, name: str, least: int) -> None:
    """Raise ValueError unless the parameter ``name`` is a whole number, at least ``least``."""
    value = getattr(policy, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(
            f"{method_name(policy)}: {name} must be a whole number of at least {least}, "
            f"not {value!r}"
        )


def squads(groups: Sequence[int], size: int | None) -> list[int]:
    """The group of each worker: ``size`` of them by rank, or the given ones (sites) if None."""
    return list(groups) if size is None else [rank // size for rank in range(len(groups))]
