"""Multi-level Local SGD: hubs average often, all of them together now and then."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

from slowlink.methods import method_name
from slowlink.methods.synchronization import Continue, SetTimer, Sync, Timer, Wait
from slowlink.methods.synchronization._local import Local, check_whole, squads


@dataclass
class MLLSGD(Local):
    """Workers of a hub average after ``local_iterations`` (tau), all hubs at each
    ``hub_rounds``-th (q) of these rounds (LPSP §4.1; Castiglia et al., ICLR 2021).

    A hub's average is a synchronization of level 0, the global one of level -1; with one hub, or
    ``hub_rounds`` 1, every one is global.

    Parameters
    ----------
    group_size: workers a hub, by rank; None takes the sites.
    rounds: with ``barrier`` a round ends when all have done their local iterations: with one hub
        this is BSP Local SGD. With ``slots``, its authors' way, it lasts tau time slots, however
        far slow workers have come: a slot is an iteration of the fastest, so that all hubs' rounds
        end when somebody has done tau since the averages came. Who is in the middle of an iteration
        brings those before, and computes on; who has finished none only takes the average.
    step_probability: with which a worker takes each of its local steps, with barriers. One it does
        not take costs no time, and one who took none brings no change. With slots, speeds decide.
    seed: of these draws.
    """

    summary = "Averages in hubs after every few iterations, over all hubs every few rounds"
    source = "LPSP §4.1 (MLLSGD [18], [@castiglia2021multilevel])"
    travels = "delta"

    hub_rounds: int = 1
    group_size: int | None = 4
    rounds: Literal["barrier", "slots"] = "barrier"
    step_probability: float = 1.0
    seed: int = 0

    _hub: list[int] = field(default_factory=list, init=False, repr=False)
    _done: set[int] = field(default_factory=set, init=False, repr=False)
    _met: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    _round: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    _steps: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    _meeting: set[int] = field(default_factory=set, init=False, repr=False)
    """The members of synchronizations under way, with slots."""
    _ended: int = field(default=0, init=False, repr=False)
    """The number of rounds that are over, with slots."""
    _slots: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    """The iterations that ended since the last average came to all, with slots."""

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
        if self.rounds not in ("barrier", "slots"):
            raise ValueError(
                f"{method_name(self)}: rounds must be barrier or slots, not {self.rounds!r}"
            )
        if self.rounds == "slots" and self.step_probability < 1:
            raise ValueError(f"{method_name(self)}: with slots, step_probability must be 1")

    @property
    def continues_after_upload(self):
        return self.rounds == "slots"

    @property
    def averages_inside(self):
        return self.hub_rounds > 1

    @property
    def together(self):
        return self.hub_rounds == 1 and self.rounds == "barrier" and self.step_probability == 1

    def begin(self, groups):
        decisions = super().begin(groups)
        self._hub = squads(groups, self.group_size)
        self._done, self._round = set(), {}
        self._met = dict.fromkeys(self._hub, 0)
        self._meeting, self._ended, self._slots = set(), 0, {}
        return decisions if self.rounds == "slots" else self.released(range(len(groups)), 0.0)

    def on(self, event):
        if isinstance(event, Timer):
            return self._end() if event.name == self._timer() else []
        return super().on(event)

    def released(self, workers, t):
        if self.rounds == "slots":
            self._came(workers)
            return [Continue(worker) for worker in workers if worker not in self._started]
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
        if self.rounds == "slots":
            if not self._meeting:
                self._slots[worker] = self._slots.get(worker, 0) + 1
            if self._slots.get(worker, 0) < self.local_iterations:
                return [Continue(worker)]
            # A timer comes after all that finish at the same time.
            return [Wait(worker), SetTimer(self._timer(), t)]
        if self._since[worker] < self._steps[worker]:
            return [Continue(worker)]
        return self.arrived(worker, t)

    def arrived(self, worker, t):
        self._done.add(worker)
        return [Wait(worker), *self._meet(self._hub[worker])]

    def left(self, worker, t):
        if self.rounds == "slots":
            self._slots.pop(worker, None)
            self._came([worker])
            return []
        self._done.discard(worker)
        return self._meet(self._hub[worker])

    def _timer(self) -> str:
        return f"slots of round {self._ended + 1}"

    def _came(self, workers) -> None:
        """An average has come to ``workers``, or they are gone."""
        if self._meeting:
            self._meeting -= set(workers)
            if not self._meeting:
                self._slots = {}

    def _end(self) -> list:
        """End the round of all hubs."""
        if not self._since:
            return []
        self._ended += 1
        self._meeting = set(self._since)
        self._slots = {}
        self._since = dict.fromkeys(self._since, 0)
        if self._ended % self.hub_rounds == 0 or len(set(self._hub)) == 1:
            return [Sync(tuple(sorted(self._meeting)))]
        hubs = sorted({self._hub[worker] for worker in self._meeting})
        members = [[w for w in sorted(self._meeting) if self._hub[w] == hub] for hub in hubs]
        return [Sync(tuple(hub), level=0) for hub in members]

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
