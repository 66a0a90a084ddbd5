"""LayerFusion: more and more groups, boundaries by binary search, until it no longer pays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numba
import numpy as np

from slowlink.methods.fusion import Costs, Fusion, between, checked, every_message

Timed = tuple[float, tuple[int, ...]]
"""Seconds of an iteration, and where its groups end."""


@dataclass(frozen=True)
class LayerFusion(Fusion):
    """Heuristic search for the grouping with the shortest iteration.

    X_1 is the whole model as one group. X_y comes from X_{y-1}: each group in turn is split where
    binary search puts the split, and also in its middle, since on a plateau the search slides to an
    end; then each boundary is moved to where binary search between its neighbours puts it, until
    none moves; the best of these groupings is X_y. Binary search compares an index with the next
    one and goes on in the half that falls, as if time had one valley; where it has several, the
    result may be some per cent off the optimum. For y = 2 this is the search of MergeComp, the
    document's forerunner; for y > 2 the document prints none. A pass over all boundaries, for all y
    - 1, looks at O(y² log N) groupings. (The document's O(N log N) for up to N groups leaves O(log
    N) for each number of groups: one split and no more.)

    The search ends at the first y that is worse than y - 1, or better by less than ``epsilon`` of
    it. Returned is the best grouping seen, where the document returns X_y even if worse. Where
    coding costs nothing, many small messages may be best and each gains less than ``epsilon``.

    With ``literal`` it does what the document prints and no more: X_y is X_{y-1} with one more
    boundary, which one binary search over all places that are left puts, and the last X_y that was
    looked at is returned. That is O(N log N) groupings for up to N groups.

    Parameters
    ----------
    epsilon: least relative gain of a further group. The document names it and prints no value; at
        0.01 the search now and then ends many small gains short of the optimum.
    literal: search as printed.
    """

    summary = "Groups added one by one, boundaries by binary search on the iteration time"
    source = "Sketch-Fusion §4.3, equation 7; MergeComp [@wang2021mergecomp]"
    needs_costs = True

    epsilon: float = 0.001
    literal: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < 1:
            raise ValueError(
                f"layer_fusion: epsilon must be at least 0 and below 1, not {self.epsilon}"
            )
        if not isinstance(self.literal, bool):
            raise ValueError(f"layer_fusion: literal must be true or false, not {self.literal!r}")

    def __call__(self, sizes, costs=None):
        costs = checked("layer_fusion", sizes, costs)
        n = len(sizes)
        if not n:
            return []
        one_more = _one_cut if self.literal else _one_more
        search = Search(costs)
        best = now = before = search(_whole, [n])
        for _ in range(2, n + 1):
            now = one_more(search, before[1])
            best = min(best, now)
            if now[0] > before[0] or before[0] - now[0] < self.epsilon * before[0]:
                break
            before = now
        return between(now[1] if self.literal else best[1])


class Search:
    """Groupings and how long an iteration takes with them; asks for a price when it is needed."""

    def __init__(self, costs: Costs) -> None:
        self.costs, n = costs, len(costs.backward_s)
        self.gradients = np.array(
            [*itertools.accumulate(costs.backward_s, initial=costs.forward_s)]
        )
        self.prices = every_message(costs) if costs.at_once else np.full((3, n + 1, n + 1), np.nan)
        """Seconds of encoding, sending and decoding a message, by its ends; not a number for those
        that nobody has asked for."""

    def __call__(self, look: Callable, ends: Sequence[int], free: Sequence[int] = ()) -> Timed:
        """The grouping that ``look``, a kernel below, makes of ``ends`` and what is ``free``."""
        given = np.array(free, np.int64), np.array(ends, np.int64)
        while True:
            seconds, found, begin, stop = look(*given, self.gradients, self.prices)
            if not stop:
                return seconds, tuple(found.tolist())
            costs = self.costs.encode, self.costs.communicate, self.costs.decode
            self.prices[:, begin, stop] = [cost(begin, stop) for cost in costs]


def _one_more(search: Search, ends: Sequence[int]) -> Timed:
    """The best grouping found with one group more than ``ends``."""
    found = []
    for begin, stop in itertools.pairwise((0, *ends)):
        if stop - begin > 1:
            found.append(search(_grown, ends, np.arange(begin + 1, stop)))
            found.append(search(_grown, ends, [(begin + stop) // 2]))
    return min(found)


def _one_cut(search: Search, ends: Sequence[int]) -> Timed:
    """``ends`` and one more, which a single binary search over all other places finds."""
    return search(_split, ends, sorted(set(range(1, ends[-1])) - set(ends)))


# Kernels return the seconds of an iteration, the ends of its groups, and the message whose price
# they lack, which ends at 0 if there is none; else what they return first means nothing.

_kernel = numba.njit(nogil=True, cache=True)


@_kernel
def _whole(_, ends, gradients, prices):
    """``ends`` as they are."""
    seconds, begin, stop = _timed(ends[:-1], ends[-1], gradients, prices)
    return seconds, ends, begin, stop


@_kernel
def _grown(free, ends, gradients, prices):
    """``ends`` and one of the ``free``, then each in turn where binary search between its
    neighbours puts it, until none moves."""
    seconds, found, begin, stop = _split(free, ends, gradients, prices)
    moves = not stop
    while moves:
        moves = False
        for i in range(len(found) - 1):
            within = np.arange((found[i - 1] if i else 0) + 1, found[i + 1])
            others = np.concatenate((found[:i], found[i + 1 :]))
            tried, made, begin, stop = _split(within, others, gradients, prices)
            if stop:
                return tried, made, begin, stop
            if _before(tried, made, seconds, found):
                seconds, found, moves = tried, made, True
    return seconds, found, begin, stop


@_kernel
def _before(seconds, ends, others_seconds, others_ends):
    """Whether a grouping is faster than another, or as fast and its first ends come first."""
    if seconds != others_seconds:
        return seconds < others_seconds
    for one, other in zip(ends, others_ends):  # noqa: B905 - numba knows no strict
        if one != other:
            return one < other
    return False


@_kernel
def _split(free, ends, gradients, prices):
    """``ends`` and the best one of those that binary search among the ``free`` looks at: it
    compares an index with the next one, and goes on in the half that falls."""
    low, high = 0, len(free) - 1
    best, begin, stop = _timed(ends, free[low], gradients, prices)
    end = free[low]
    while low < high and not stop:
        middle = (low + high) // 2
        here, begin, stop = _timed(ends, free[middle], gradients, prices)
        if stop:
            break
        after, begin, stop = _timed(ends, free[middle + 1], gradients, prices)
        if here < best or (here == best and free[middle] < end):
            best, end = here, free[middle]
        if after < best or (after == best and free[middle + 1] < end):
            best, end = after, free[middle + 1]
        if here <= after:
            high = middle
        else:
            low = middle + 1
    # Where a kernel copies one slice into another, half of its compilation is for an error's words.
    made, passed = np.empty(len(ends) + 1, np.int64), 0
    for i in range(len(made)):
        if i == passed and (i == len(ends) or end < ends[i]):
            made[i] = end
        else:
            made[i] = ends[passed]
            passed += 1
    return best, made, begin, stop


@_kernel
def _timed(others, more, gradients, prices):
    """``iteration_s`` of :func:`methods.fusion.timeline`, of groups that end at ``others`` and at
    ``more``; without the ends."""
    encoding = sent = decoded = decoding = 0.0
    begin = passed = 0
    for i in range(len(others) + 1):
        if i == passed and (i == len(others) or more < others[i]):
            end = more
        else:
            end = others[passed]
            passed += 1
        if np.isnan(prices[0, begin, end]):
            return 0.0, begin, end
        encoding += prices[0, begin, end]
        sent = max(sent, gradients[end] + encoding) + prices[1, begin, end]
        # This takes the compute stream as free, which it is once everything is encoded.
        decoded = max(decoded, sent) + prices[2, begin, end]
        decoding += prices[2, begin, end]
        begin = end
    return max(decoded, gradients[-1] + encoding + decoding), 0, 0
