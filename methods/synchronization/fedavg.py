"""Federated averaging: rounds that end when all who were asked have come, or when time is up."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Literal

from slowlink.methods.synchronization import Continue, SetTimer, Sync, Synced, Timer, Wait
from slowlink.methods.synchronization._local import Local, check_whole


@dataclass
class FedAvg(Local):
    """A server asks clients for ``local_iterations`` and averages what comes in time (DDS,
    federated learning; McMahan et al., AISTATS 2017).

    A round asks clients that are there and idle. It ends when all of them have come, or at its
    time-out, but never with fewer than ``min_clients``: it goes on waiting for these. Its one
    synchronization takes the new model to every idle client, asked or not, so that all start the
    next round from it. A client that only listens has weight 0.

    A client that still computes at the time-out is left out and computes on, from the old model.
    When it comes, it idles until that round ends; ``late`` says whether its update is dropped or
    counts there. It also counts where ``min_clients`` cannot be reached otherwise. (A client that
    comes while a result is on its way comes in the next round.)

    A client that joins brings the current model and takes part at once; one that leaves is not
    waited for. If fewer than ``min_clients`` remain, idle clients are asked; if there are none,
    the round waits for somebody to join.

    DDS's controller does not wait for more than ``min_clients``, which is ``timeout_s`` 0 here.
    (On a time-out it goes on with whoever has come; here the round waits for ``min_clients``.)

    Parameters
    ----------
    min_clients: least number of clients whose updates end a round.
    timeout_s: seconds from a round's start to its time-out, as the policy sees them: uploads
        come after it. Infinite for no time-out; with all clients asked, this is BSP.
    fraction: share of the idle clients that a round asks, drawn anew each round; at least
        ``min_clients``.
    samples: number of samples of each worker, by rank; its share is its weight. None for equal
        weights.
    late: whether a late update is ``drop``ped or counts in the ``next`` round.
    seed: seed of the draws.
    """

    summary = "Rounds with a time-out and a least number of clients, weighted by samples"
    source = "DDS, federated learning (Controller); McMahan et al. 2017 [@mcmahan2017communication]"
    travels = "delta"

    min_clients: int = 1
    timeout_s: float = math.inf
    fraction: float = 1.0
    samples: tuple[int, ...] | None = None
    late: Literal["drop", "next"] = "drop"
    seed: int = 0

    _round: int = field(default=0, init=False, repr=False)
    _open: bool = field(default=False, init=False, repr=False)
    """Whether a round is under way; if not, its synchronization is."""
    _overdue: bool = field(default=False, init=False, repr=False)
    _role: dict[int, str] = field(default_factory=dict, init=False, repr=False)
    """What each member present is: ``asked`` and computing, ``here`` with an update that counts,
    ``late`` with one that does not, ``free`` and idle, or ``behind``: computing, asked in an
    earlier round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, "min_clients", 1)
        if not self.timeout_s >= 0:
            raise ValueError(f"fedavg: timeout_s must be at least 0, not {self.timeout_s}")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fedavg: fraction must be above 0 and at most 1, not {self.fraction}")
        if self.late not in ("drop", "next"):
            raise ValueError(f"fedavg: late must be drop or next, not {self.late!r}")
        if self.samples is not None:
            self.samples = tuple(self.samples)
            if not all(type(count) is int and count >= 1 for count in self.samples):
                raise ValueError(
                    f"fedavg: samples must be whole numbers of at least 1, not {self.samples}"
                )

    @property
    def clock_free(self):
        """Without a time-out, rounds are the same whatever the clock says."""
        return self.timeout_s == math.inf

    @property
    def together(self):
        return self.clock_free and self.fraction == 1

    def begin(self, groups):
        if self.samples is not None and len(self.samples) != len(groups):
            raise ValueError(
                f"fedavg: samples has {len(self.samples)} counts for {len(groups)} workers"
            )
        super().begin(groups)
        self._round, self._role = 0, dict.fromkeys(self._since, "free")
        return self._start(0.0)

    def _decide(self, event):
        match event:
            case Synced(t=t):
                return self._start(t)
            case Timer(name=name) if name == self._timer:
                self._overdue = True
                return self._end()
        return super()._decide(event)

    def arrived(self, worker, t):
        counts = self._role[worker] == "asked" or self.late == "next"
        self._role[worker] = "here" if counts else "late"
        return [Wait(worker), *self._end()]

    def joined(self, worker):
        self._role[worker] = "asked"

    def left(self, worker, t):
        del self._role[worker]
        return self._end()

    @property
    def _timer(self) -> str:
        return f"round {self._round}"

    def _who(self, role: str) -> list[int]:
        return sorted(worker for worker, its in self._role.items() if its == role)

    def _start(self, t: float) -> list:
        self._round += 1
        self._open, self._overdue = True, False
        count = round(self.fraction * len(self._who("free")))
        decisions = self._ask(max(count, self.min_clients))
        if self.timeout_s < math.inf:
            decisions.append(SetTimer(self._timer, t + self.timeout_s))
        return [*decisions, *self._end()]

    def _ask(self, count: int) -> list:
        """Let ``count`` of the idle compute, or all if they are fewer."""
        asked = self._who("free")
        if count < len(asked):
            draw = random.Random(f"{self.seed}/{self._round}")
            asked = sorted(draw.sample(asked, count))
        self._role.update(dict.fromkeys(asked, "asked"))
        self._since.update(dict.fromkeys(asked, 0))
        return [Continue(worker) for worker in asked]

    def _end(self) -> list:
        """Synchronize if the round under way is over; ask others if it cannot end so."""
        if not self._open:
            return []
        here, asked, late = self._who("here"), self._who("asked"), self._who("late")
        missing = self.min_clients - len(here) - len(asked)
        if missing > 0 and (more := self._ask(missing)):
            return more
        if missing > 0 and not asked:
            here += late
        if len(here) < self.min_clients or (asked and not self._overdue):
            return []
        members = tuple(sorted({*here, *late, *self._who("free")}))
        self._role.update(dict.fromkeys(members, "free"))
        self._role.update(dict.fromkeys(asked, "behind"))
        self._open = False
        return [Sync(members, weights=self._weights(members, set(here)))]

    def _weights(self, members: tuple[int, ...], here: set[int]) -> tuple[float, ...] | None:
        """Shares of the samples, 0 of who only listens; None where all workers count alike."""
        if self.samples is None and len(here) == len(self.groups):
            return None
        counts = self.samples or (1,) * len(self.groups)
        total = sum(counts[worker] for worker in here)
        return tuple(counts[w] / total if w in here else 0.0 for w in members)
