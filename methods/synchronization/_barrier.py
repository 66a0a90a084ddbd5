"""The barrier that policies share: a group meets when everyone present in it has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slowlink.methods.synchronization import Decision, Sync, Wait
from slowlink.methods.synchronization._local import Local


@dataclass
class Barrier(Local):
    """Workers of one group meet after each round of ``local_iterations``; groups do not wait for
    each other."""

    _group: tuple[int, ...] = field(default=(), init=False, repr=False)
    _done: dict[int, set[int]] = field(default_factory=dict, init=False, repr=False)

    @property
    def travels(self):
        """One iteration's gradient, or what several have changed."""
        return "gradient" if self.local_iterations == 1 else "delta"

    def barriers(self, groups: Sequence[int]) -> Sequence[int]:
        """Which barrier each worker meets at, given its site."""
        return groups

    def begin(self, groups: Sequence[int]) -> list[Decision]:
        self._group = tuple(self.barriers(groups))
        self._done = {group: set() for group in self._group}
        return super().begin(groups)

    def arrived(self, worker: int, t: float) -> list[Decision]:
        self._done[self._group[worker]].add(worker)
        return [Wait(worker), *self._meet(self._group[worker])]

    def left(self, worker: int, t: float) -> list[Decision]:
        self._done[self._group[worker]].discard(worker)
        return self._meet(self._group[worker])

    def _meet(self, group: int) -> list[Decision]:
        done = self._done[group]
        if not done or done != {w for w in self._since if self._group[w] == group}:
            return []
        self._done[group] = set()
        return [Sync(tuple(sorted(done)))]
