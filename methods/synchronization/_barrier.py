"""The barrier that policies share: a group meets when everyone present in it has finished."""

from __future__ import annotations

from collections.abc import Sequence
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
class Barrier(Policy):
    """Workers of one group meet after each iteration; groups do not wait for each other."""

    _group: tuple[int, ...] = field(default=(), init=False, repr=False)
    _present: dict[int, set[int]] = field(default_factory=dict, init=False, repr=False)
    _done: dict[int, set[int]] = field(default_factory=dict, init=False, repr=False)

    def barriers(self, groups: Sequence[int]) -> Sequence[int]:
        """Which barrier each worker meets at, given its site."""
        return groups

    def begin(self, groups: Sequence[int]) -> list[Decision]:
        self._group = tuple(self.barriers(groups))
        self._present = {group: set() for group in self._group}
        self._done = {group: set() for group in self._group}
        for worker, group in enumerate(self._group):
            self._present[group].add(worker)
        return super().begin(groups)

    def on(self, event: Event) -> list[Decision]:
        match event:
            case Finished(worker=worker):
                self._done[self._group[worker]].add(worker)
                return [Wait(worker), *self._meet(self._group[worker])]
            case Synced(members=members):
                return [Continue(w) for w in members if w in self._present[self._group[w]]]
            case Joined(worker=worker):
                self._present[self._group[worker]].add(worker)
                return [Continue(worker)]
            case Left(worker=worker):
                group = self._group[worker]
                self._present[group].discard(worker)
                self._done[group].discard(worker)
                return self._meet(group)
        return []

    def _meet(self, group: int) -> list[Decision]:
        done = self._done[group]
        if not done or done != self._present[group]:
            return []
        self._done[group] = set()
        return [Sync(tuple(sorted(done)))]
