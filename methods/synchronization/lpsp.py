"""LPSP: those who arrive close together synchronize, however many iterations each has done."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from slowlink.methods.synchronization import Continue, SetTimer, Sync, Timer, Wait
from slowlink.methods.synchronization._local import Counting, check_whole

ROUNDING = 1e-9
"""Indices and waits this close, relative to an index or to the time of an iteration, are equal:
times are differences of clock readings, and rounding must not part workers that are alike."""


@dataclass
class LPSP(Counting):
    """Dynamic partial synchronization of Local SGD (LPSP §2 and §3, Algorithm 1).

    After H_i iterations of t'_i seconds (its last one's time) worker i has the index p_i (eq. 3).
    Up to ``p_min`` it computes on; up to ``p_max`` it becomes a candidate; beyond, or when it
    would compute on after ``cap`` iterations, it is forced into the next synchronization.
    Both upload, and the server gathers candidates while their average wait D (eq. 4) is at most
    D_s (eq. 5); the one who breaks this stays for the next time, the others and all forced ones
    synchronize. When all have uploaded, all synchronize (§3.2).

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
        ``clock`` synchronizes when the candidates' average wait so far reaches the limit, which
        §3.2 calls the largest that is tolerated, whether another one comes or not.
    computes_on: whether candidates compute on until they are forced, and bring what they have
        finished, or idle until the server answers. §1's example and eq. (4) count their wait; that
        many iterations without a synchronization force a worker (§2.2), and that the index grows
        while it waits (definition 1), takes candidates that compute. The forced idle in any case.
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
    decision: Literal["next", "arrival", "clock"] = "next"
    computes_on: bool = False

    _candidates: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    """W'0 in order of arrival, with the times of arrival."""
    _forced: set[int] = field(default_factory=set, init=False, repr=False)
    _meeting: set[int] = field(default_factory=set, init=False, repr=False)
    """Who was computing when its synchronization was decided, until the answer."""
    _gathering: int = field(default=0, init=False, repr=False)
    """Counts the changes of W'0, so that timers set before are known."""

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
                    f"lpsp: {name} must be {' or '.join(map(str, allowed))}, "
                    f"not {getattr(self, name)!r}"
                )

    @property
    def continues_after_upload(self):
        return self.computes_on

    def begin(self, groups):
        self._candidates, self._forced, self._meeting = {}, set(), set()
        self._gathering = 0
        return super().begin(groups)

    def on(self, event):
        if isinstance(event, Timer):
            return self._sync() if event.name == self._timer() else []
        return super().on(event)

    def computed(self, worker, t):
        branch = self._branch(worker, self._since[worker])
        if worker in self._meeting:
            return [Wait(worker) if branch == "forced" else Continue(worker)]
        match branch:
            case "continue":
                return [Continue(worker), *self._early(t)]
            case "forced":
                self._candidates.pop(worker, None)
                self._forced.add(worker)
                return [Wait(worker), *(self._all() or self._early(t))]
        goes = Continue(worker) if self.computes_on else Wait(worker)
        if self.computes_on:
            self._started[worker] = t
        known = worker in self._candidates
        self._candidates[worker] = t
        self._gathering += 1
        if known:  # nobody new to decide about (§3.2)
            return [goes, *self._early(t)]
        if average_wait(self._candidates.values()) <= self._limit(self._candidates):
            return [goes, *(self._all() or self._early(t))]
        del self._candidates[worker]
        sync = self._sync()
        self._candidates[worker] = t
        return [goes, *sync, *self._early(t)]

    def released(self, workers, t):
        idle = [worker for worker in workers if worker not in self._started]
        # Who came to its limit during the meeting waits for the next.
        forced = {w for w in idle if w in self._meeting and self._since[w]}
        self._forced |= forced
        self._meeting -= set(workers)
        going = super().released([w for w in idle if w not in forced], t)
        return [*going, *(self._all() or self._early(t))]

    def left(self, worker, t):
        self._candidates.pop(worker, None)
        self._forced.discard(worker)
        self._meeting.discard(worker)
        self._gathering += 1
        return self._all() or self._early(t)

    def _branch(self, worker: int, iterations: int) -> str:
        """What Algorithm 1's worker does after so many local iterations."""
        index, least = self._index(worker, iterations), self.p_min * (1 + ROUNDING)
        if index <= least and iterations < self.cap:
            return "continue"
        return "candidate" if least < index <= self.p_max * (1 + ROUNDING) else "forced"

    def _index(self, worker: int, iterations: int) -> float:
        times = self._lasted.values()
        unit = min(times) if self.normalise == "min" else math.fsum(times) / len(times)
        return iterations * self._lasted[worker] / unit

    def _limit(self, candidates) -> float:
        over = candidates if self.limit_over == "candidates" else self._lasted
        times = [self._lasted[w] for w in over if w in self._lasted]
        return (self.s + ROUNDING) * math.fsum(times) / len(times)

    def _all(self) -> list:
        """Everyone, once all have uploaded."""
        idle = self._candidates.keys() | self._forced
        return self._sync() if idle == self._since.keys() else []

    def _sync(self) -> list:
        members = sorted(self._candidates.keys() | self._forced)
        self._candidates, self._forced = {}, set()
        self._gathering += 1
        self._since.update(dict.fromkeys(members, 0))
        self._meeting |= self._started.keys() & set(members)
        return [Sync(tuple(members))] if members else []

    def _timer(self) -> str:
        return f"gathering {self._gathering}"

    def _early(self, t: float) -> list:
        """With ``arrival``: synchronize now if waiting for the next candidate breaks the limit.
        With ``clock``: when the limit is reached."""
        if self.decision == "next" or not self._candidates:
            return []
        if self.decision == "clock":
            arrivals, limit = self._candidates.values(), self._limit(self._candidates)
            if limit == math.inf:
                return []
            return [SetTimer(self._timer(), math.fsum(arrivals) / len(arrivals) + limit)]
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
    "decision": ("next", "arrival", "clock"),
    "computes_on": (False, True),
}


def average_wait(arrivals) -> float:
    """D of eq. (4): the mean wait for the last to arrive, of those who did at ``arrivals`` (s)."""
    arrivals = list(arrivals)
    last = max(arrivals)
    return math.fsum(last - t for t in arrivals) / len(arrivals)
