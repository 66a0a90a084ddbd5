"""Bulk synchronous parallel: everybody waits for everybody, every round."""

from __future__ import annotations

from dataclasses import dataclass, field

from methods.synchronization import (
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
class BSP(Policy):
    """All workers synchronize after each local iteration (GeoMX §2, full synchronization)."""

    summary = "All workers meet after every iteration"
    source = "GeoMX §2 (full synchronization)"
    clock_free = True

    _present: set[int] = field(default_factory=set, init=False, repr=False)
    _done: set[int] = field(default_factory=set, init=False, repr=False)

    def begin(self, groups):
        self._present, self._done = set(range(len(groups))), set()
        return super().begin(groups)

    def on(self, event: Event) -> list[Decision]:
        match event:
            case Finished(worker=worker):
                self._done.add(worker)
                return [Wait(worker), *self._meet()]
            case Synced(members=members):
                return [Continue(worker) for worker in members if worker in self._present]
            case Joined(worker=worker):
                self._present.add(worker)
                return [Continue(worker)]
            case Left(worker=worker):
                self._present.discard(worker)
                self._done.discard(worker)
                return self._meet()
        return []

    def _meet(self) -> list[Decision]:
        if not self._present or self._done != self._present:
            return []
        members, self._done = tuple(sorted(self._done)), set()
        return [Sync(members)]
