"""LPSP: those who arrive close together synchronize, however many iterations each has done."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from methods.synchronization import Continue, Sync, Wait
from methods.synchronization._local import Counting, check_whole


@dataclass
class LPSP(Counting):
    """Dynamic partial synchronization of Local SGD (LPSP §2 and §3, Algorithm 1).

    After H_i iterations of t'_i seconds (its last one's time) worker i has the index p_i (eq. 3).
    Up to ``p_min`` it computes on; up to ``p_max`` it becomes a candidate; beyond, or when it
    would compute on after ``cap`` iterations, it is forced into the next synchronization.
    Candidates and forced ones upload and idle until the server answers: the example of §1 counts
    their wait, and the rule of §3.2 would mean nothing otherwise. The server gathers candidates
    while their average wait D (eq. 4) is at most D_s (eq. 5); the one who breaks this stays for
    the next time, the others and all forced ones synchronize. When all have uploaded, all
    synchronize (§3.2).

    Not printed are the equations (3) to (5), whose forms here agree with the worked example of
    §1 and with what their symbols are said to be, and the cap. Where ``cap`` meets
    p_i <= ``p_min``, which the algorithm tests first, the cap wins: it could never act otherwise.

    Parameters
    ----------
    p_min, p_max: of the index.
    s: tolerated average wait as a share of an iteration's time; may be infinite.
    cap: local iterations at most.
    normalise: the index is H_i t'_i over the ``min`` or the ``mean`` of all workers' times.
    limit_over: D_s averages the times of the ``candidates`` or of ``all`` workers.
    decision: ``next`` as in the algorithm, where only the arrival of the next candidate ends the
        gathering, so that all others wait for it. ``arrival`` synchronizes as soon as the next
        candidate, expected from everyone's last iteration time, would break the limit; §1's
        example has its points there. Of whom no iteration is known, it expects one any moment.
    """

    summary = "Dynamic groups of workers that arrive close together"
    source = "LPSP [@wei2023lpsp] §2-3, Algorithm 1; eq. (3)-(5) inferred"
    travels = "delta"
    asynchronous = True

    p_min: float = 2.0
    p_max: float = 3.5
    s: float = 0.2
    cap: int = 4
    normalise: Literal["min", "mean"] = "min"
    limit_over: Literal["candidates", "all"] = "candidates"
    decision: Literal["next", "arrival"] = "next"

    _candidates: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    """W'0 in order of arrival, with the times of arrival."""
    _forced: set[int] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        check_whole(self, "cap", 1)
        if not 0 <= self.p_min <= self.p_max:
            raise ValueError(
                f"lpsp: needs 0 <= p_min <= p_max, not p_min {self.p_min}, p_max {self.p_max}"
            )
        if not self.s >= 0:
            raise ValueError(f"lpsp: s must be at least 0, not {self.s}")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"lpsp: {name} must be {' or '.join(allowed)}, not {getattr(self, name)!r}"
                )

    def begin(self, groups):
        self._candidates, self._forced = {}, set()
        return super().begin(groups)

    def computed(self, worker, t):
        match self._branch(worker, self._since[worker]):
            case "continue":
                return [Continue(worker), *self._early(t)]
            case "forced":
                self._forced.add(worker)
                return [Wait(worker), *(self._all() or self._early(t))]
        self._candidates[worker] = t
        if average_wait(self._candidates.values()) <= self._limit(self._candidates):
            return [Wait(worker), *(self._all() or self._early(t))]
        del self._candidates[worker]
        sync = self._sync()
        self._candidates[worker] = t
        return [Wait(worker), *sync, *self._early(t)]

    def released(self, workers, t):
        return [*super().released(workers, t), *self._early(t)]

    def left(self, worker, t):
        self._candidates.pop(worker, None)
        self._forced.discard(worker)
        return self._all() or self._early(t)

    def _branch(self, worker: int, iterations: int) -> str:
        """What Algorithm 1's worker does after so many local iterations."""
        index = self._index(worker, iterations)
        if index <= self.p_min and iterations < self.cap:
            return "continue"
        return "candidate" if self.p_min < index <= self.p_max else "forced"

    def _index(self, worker: int, iterations: int) -> float:
        times = self._lasted.values()
        unit = min(times) if self.normalise == "min" else math.fsum(times) / len(times)
        return iterations * self._lasted[worker] / unit

    def _limit(self, candidates) -> float:
        over = candidates if self.limit_over == "candidates" else self._lasted
        times = [self._lasted[w] for w in over if w in self._lasted]
        return self.s * math.fsum(times) / len(times)

    def _all(self) -> list:
        """Everyone, once all have uploaded."""
        idle = self._candidates.keys() | self._forced
        return self._sync() if idle == self._since.keys() else []

    def _sync(self) -> list:
        members = sorted(self._candidates.keys() | self._forced)
        self._candidates, self._forced = {}, set()
        self._since.update(dict.fromkeys(members, 0))
        return [Sync(tuple(members))] if members else []

    def _early(self, t: float) -> list:
        """With ``arrival``: synchronize now if waiting for the next candidate breaks the limit."""
        if self.decision == "next" or not self._candidates:
            return []
        coming = [
            (expected, worker)
            for worker in self._since.keys() - self._candidates.keys() - self._forced
            if (expected := self._expected(worker, t)) is not None
        ]
        if not coming:
            return self._sync() if self.s < math.inf else []
        when, worker = min(coming)
        wait = average_wait([*self._candidates.values(), when])
        return self._sync() if wait > self._limit([*self._candidates, worker]) else []

    def _expected(self, worker: int, t: float) -> float | None:
        """When ``worker`` may become a candidate; None if it will be forced."""
        if worker not in self._lasted:
            return t
        iterations = self._since[worker] + 1
        while self._branch(worker, iterations) == "continue":
            iterations += 1
        if self._branch(worker, iterations) == "forced":
            return None
        # A worker that is still synchronizing starts no sooner than now.
        start = self._started.get(worker, t)
        return max(t, start + (iterations - self._since[worker]) * self._lasted[worker])


CHOICES = {
    "normalise": ("min", "mean"),
    "limit_over": ("candidates", "all"),
    "decision": ("next", "arrival"),
}


def average_wait(arrivals) -> float:
    """D of eq. (4): the mean wait for the last to arrive, of those who did at ``arrivals`` (s)."""
    arrivals = list(arrivals)
    last = max(arrivals)
    return math.fsum(last - t for t in arrivals) / len(arrivals)
