"""Multi-level Local SGD: hubs average often, all of them together now and then."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from methods.synchronization import Continue, Sync, Wait
from methods.synchronization._local import Local, check_whole, method_name, squads


@dataclass
class MLLSGD(Local):
    """Workers of a hub average after ``local_iterations`` (tau), all hubs at each
    ``hub_rounds``-th (q) of these rounds (LPSP §4.1; Castiglia et al., ICLR 2021).

    Both are barriers. A hub's average is a synchronization of level 0, the global one of level -1;
    with one hub, or ``hub_rounds`` 1, every one is global and this is BSP Local SGD.

    Parameters
    ----------
    group_size: workers a hub, by rank; None takes the sites.
    step_probability: with which a worker takes each of its local steps. One it does not take
        costs no time, and one who took none brings no change.
    seed: of these draws.
    """

    summary = "Averages in hubs after every few iterations, over all hubs every few rounds"
    source = "LPSP §4.1 (MLLSGD [18], [@castiglia2021multilevel])"
    travels = "delta"

    hub_rounds: int = 1
    group_size: int | None = 4
    step_probability: float = 1.0
    seed: int = 0

    _hub: list[int] = field(default_factory=list, init=False, repr=False)
    _done: set[int] = field(default_factory=set, init=False, repr=False)
    _met: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    _round: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    _steps: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, "hub_rounds", 1)
        if self.group_size is not None:
            check_whole(self, "group_size", 1)
        if not 0 < self.step_probability <= 1:
            raise ValueError(
                f"{method_name(self)}: step_probability must be above 0 and at most 1, "
                f"not {self.step_probability}"
            )

    def begin(self, groups):
        super().begin(groups)
        self._hub = squads(groups, self.group_size)
        self._done, self._round = set(), {}
        self._met = dict.fromkeys(self._hub, 0)
        return self.released(range(len(groups)), 0.0)

    def released(self, workers, t):
        super().released(workers, t)
        decisions = []
        for worker in workers:
            self._steps[worker] = self._draw(worker)
            if self._steps[worker]:
                decisions.append(Continue(worker))
            else:
                decisions += self.arrived(worker, t)
        return decisions

    def _draw(self, worker: int) -> int:
        """How many of the local steps of its next round ``worker`` takes."""
        self._round[worker] = number = self._round.get(worker, 0) + 1
        if self.step_probability == 1:
            return self.local_iterations
        rng = random.Random(f"{self.seed}/{worker}/{number}")
        return sum(rng.random() < self.step_probability for _ in range(self.local_iterations))

    def computed(self, worker, t):
        if self._since[worker] < self._steps[worker]:
            return [Continue(worker)]
        return self.arrived(worker, t)

    def arrived(self, worker, t):
        self._done.add(worker)
        return [Wait(worker), *self._meet(self._hub[worker])]

    def left(self, worker, t):
        self._done.discard(worker)
        return self._meet(self._hub[worker])

    def _meet(self, hub: int) -> list:
        here = {w for w in self._since if self._hub[w] == hub}
        local = len(self._met) > 1 and self._met[hub] + 1 < self.hub_rounds
        if local and here and here <= self._done:
            self._met[hub] += 1
            self._done -= here
            return [Sync(tuple(sorted(here)), level=0)]
        if not self._done or self._done != set(self._since):
            return []
        everyone = tuple(sorted(self._done))
        self._done = set()
        self._met = dict.fromkeys(self._met, 0)
        return [Sync(everyone)]
