"""Grouping stale synchronous parallel: SSP among workers of similar speed, ASP between groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from slowlink.methods.synchronization._local import Bounded, check_whole, squads


@dataclass
class GSSP(Bounded):
    """SSP inside a group, nobody waits for other groups (LPSP §4.1; Sun et al., TCC 2021).

    One global model stands for its authors' group servers: a worker's push reaches everybody at
    once. A synchronization has one member.

    Parameters
    ----------
    group_size: workers a group, by rank; None takes the sites. ``natural_breaks`` makes as many
        groups from it, of any size.
    grouping: by the observed iteration times, anew whenever everyone has computed another round:
        ``natural_breaks``, its authors' way, or ``by_time``, the fastest ``group_size`` workers,
        then the next ones. Until the first time, and with ``static`` always, groups are by rank.
        Who then changes groups gets the clock of the slowest of those who stay in its new one.
    momentum: of the observed times: the share that the past keeps when an iteration ends.
    """

    summary = "SSP inside groups of similar speed, ASP between groups"
    source = "LPSP §4.1 (GSSP [13])"
    travels = "delta"
    asynchronous = True
    alone = True

    group_size: int | None = 4
    grouping: Literal["natural_breaks", "by_time", "static"] = "natural_breaks"
    momentum: float = 0.9

    _group: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    _smooth: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    _fresh: set[int] = field(default_factory=set, init=False, repr=False)
    """Workers that have computed a round since the last grouping."""
    _grouped: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_size is not None:
            check_whole(self, "group_size", 1)
        if self.grouping not in ("natural_breaks", "by_time", "static"):
            raise ValueError(
                f"gssp: grouping must be natural_breaks, by_time or static, not {self.grouping!r}"
            )
        if self.grouping == "by_time" and self.group_size is None:
            raise ValueError("gssp: grouping by_time needs a group_size")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"gssp: momentum must be at least 0 and below 1, not {self.momentum}")

    def begin(self, groups):
        self._group = dict(enumerate(squads(groups, self.group_size)))
        self._smooth, self._fresh, self._grouped = {}, set(), False
        return super().begin(groups)

    def pace(self, worker):
        return [w for w in self._clock if self._group[w] == self._group[worker]]

    def computed(self, worker, t):
        last = self._lasted[worker]
        before = self._smooth.get(worker, last)
        self._smooth[worker] = self.momentum * before + (1 - self.momentum) * last
        return super().computed(worker, t)

    def ticked(self, worker):
        super().ticked(worker)
        self._fresh.add(worker)

    def joined(self, worker):
        self._smooth.pop(worker, None)
        self._fresh.discard(worker)
        super().joined(worker)

    def freed(self):
        everyone = self._since.keys()
        if self.grouping != "static" and everyone and everyone <= self._fresh:
            self._regroup(sorted(everyone))
            self._fresh.clear()
        return super().freed()

    def _regroup(self, workers: list[int]) -> None:
        times = [self._smooth[w] for w in workers]
        if self.grouping == "by_time":
            labels = in_squads(times, self.group_size)
        else:
            labels = natural_breaks(times, len(set(squads(self.groups, self.group_size))))
        now = dict(zip(workers, labels, strict=True))
        if self._grouped:  # if not, all clocks began together and can be compared
            stay = {w for w in workers if now[w] == self._group[w]}
            slowest = {
                group: min((self._clock[w] for w in stay if now[w] == group), default=0)
                for group in labels
            }
            self._clock.update({w: slowest[now[w]] for w in workers if w not in stay})
        self._group.update(now)
        self._grouped = True


def in_squads(values: Sequence[float], size: int) -> list[int]:
    """The class (from 0, by size) of each value: the ``size`` smallest, the next ones, and so on;
    equal ones in their order."""
    labels = [0] * len(values)
    for place, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        labels[index] = place // size
    return labels


def natural_breaks(values: Sequence[float], count: int) -> list[int]:
    """The class (from 0, by size) of each value: at most ``count`` classes with the least sum of
    squared deviations from their means (Jenks, Fisher), exact by dynamic programming, O(count n²);
    of equally good ones the fewest classes.

    Parameters
    ----------
    values: (n,) finite numbers.
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    least = values[order[0]] if order else 0.0
    x = [values[i] - least for i in order]  # equal values become exact zeros
    n = len(x)

    # best[j]: least sum for the first j values in the classes so far; cost of i..j by Welford.
    cost = [[0.0] * (n + 1) for _ in range(n + 1)]
    for i in range(n):
        mean = spread = 0.0
        for j in range(i, n):
            step = x[j] - mean
            mean += step / (j - i + 1)
            spread += step * (x[j] - mean)
            cost[i][j + 1] = spread
    best, cuts = [cost[0]], []
    for _ in range(min(count, n) - 1):
        last = best[-1]
        cut = [min(range(j + 1), key=lambda i, j=j: last[i] + cost[i][j]) for j in range(n + 1)]
        best.append([last[i] + cost[i][j] for j, i in enumerate(cut)])
        cuts.append(cut)
    classes = min(range(len(best)), key=lambda k: best[k][n], default=0)
    labels, end = [0] * n, n
    for number in range(classes, 0, -1):
        begin = cuts[number - 1][end]
        for i in range(begin, end):
            labels[order[i]] = number
        end = begin
    return labels
