"""Mixed synchronization: BSP inside a site, asynchronous between sites."""

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
class Mixed(Policy):
    """Workers of a site meet after each iteration; their site exchanges with the global server
    without waiting for other sites (GeoMX §2, mixed synchronization)."""

    summary = "BSP inside a site, asynchronous between sites"
    source = "GeoMX §2 (mixed synchronization)"
    asynchronous = True

    _present: dict[int, set[int]] = field(default_factory=dict, init=False, repr=False)
    _done: dict[int, set[int]] = field(default_factory=dict, init=False, repr=False)

    def begin(self, groups):
        decisions = super().begin(groups)
        self._present, self._done = {}, {}
        for worker, site in enumerate(groups):
            self._present.setdefault(site, set()).add(worker)
            self._done[site] = set()
        return decisions

    def on(self, event: Event) -> list[Decision]:
        match event:
            case Finished(worker=worker):
                site = self.groups[worker]
                self._done[site].add(worker)
                return [Wait(worker), *self._meet(site)]
            case Synced(members=members):
                return [
                    Continue(worker)
                    for worker in members
                    if worker in self._present[self.groups[worker]]
                ]
            case Joined(worker=worker):
                self._present[self.groups[worker]].add(worker)
                return [Continue(worker)]
            case Left(worker=worker):
                site = self.groups[worker]
                self._present[site].discard(worker)
                self._done[site].discard(worker)
                return self._meet(site)
        return []

    def _meet(self, site: int) -> list[Decision]:
        done = self._done[site]
        if not done or done != self._present[site]:
            return []
        self._done[site] = set()
        return [Sync(tuple(sorted(done)))]
