"""LayerFusion: more and more groups, boundaries by binary search, until it no longer pays."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from slowlink.methods.fusion import Costs, Fusion, between, checked

Ends = tuple[int, ...]


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
        seconds = stopwatch(costs)
        one_more = _one_cut if self.literal else _one_more
        best = now = before = (seconds((n,)), (n,))
        for _ in range(2, n + 1):
            now = one_more(seconds, before[1])
            best = min(best, now)
            if now[0] > before[0] or before[0] - now[0] < self.epsilon * before[0]:
                break
            before = now
        return between(now[1] if self.literal else best[1])


def stopwatch(costs: Costs) -> Callable[[Ends], float]:
    """``iteration_s`` of :func:`methods.fusion.timeline`, fast, of groups that end at ``ends``.

    Groupings that a search compares begin alike, and are not timed from the beginning again.
    """
    gradients = list(itertools.accumulate(costs.backward_s, initial=costs.forward_s))
    # Of the first groups: seconds of encoding, when the last is sent and when decoded, seconds of
    # decoding.
    known = {(): (0.0, 0.0, 0.0, 0.0)}

    def iteration_s(ends: Ends) -> float:
        first = len(ends)
        while ends[:first] not in known:
            first -= 1
        encoding, sent, decoded, decoding = known[ends[:first]]
        begin = ends[first - 1] if first else 0
        for i in range(first, len(ends)):
            end = ends[i]
            encoding += costs.encode(begin, end)
            sent = max(sent, gradients[end] + encoding) + costs.communicate(begin, end)
            took = costs.decode(begin, end)
            # This takes the compute stream as free, which it is once everything is encoded.
            decoded = max(decoded, sent) + took
            decoding += took
            begin = end
            known[ends[: i + 1]] = encoding, sent, decoded, decoding
        return max(decoded, gradients[-1] + encoding + decoding)

    return iteration_s


def _one_more(seconds: Callable[[Ends], float], ends: Ends) -> tuple[float, Ends]:
    """The best grouping found with one group more than ``ends``."""
    found = []
    for i, (begin, stop) in enumerate(itertools.pairwise((0, *ends))):
        if stop - begin > 1:
            halved = (*ends[:i], (begin + stop) // 2, *ends[i:])
            found.append(_moved(seconds, _search(seconds, ends[:i], ends[i:])))
            found.append(_moved(seconds, (seconds(halved), halved)))
    return min(found)


def _one_cut(seconds: Callable[[Ends], float], ends: Ends) -> tuple[float, Ends]:
    """``ends`` and one more, which a single binary search over all other places finds."""
    free = sorted(set(range(1, ends[-1])) - set(ends))

    def at(index: int) -> tuple[float, Ends]:
        cut = tuple(sorted((*ends, free[index])))
        return seconds(cut), cut

    return _valley(at, 0, len(free) - 1)


def _moved(seconds: Callable[[Ends], float], found: tuple[float, Ends]) -> tuple[float, Ends]:
    """``found`` with each end in turn where binary search between its neighbours puts it."""
    before = None
    while found != before:
        before = found
        for i in range(len(found[1]) - 1):
            found = min(found, _search(seconds, found[1][:i], found[1][i + 1 :]))
    return found


def _search(seconds: Callable[[Ends], float], left: Ends, right: Ends) -> tuple[float, Ends]:
    """The end that binary search puts between ``left`` and ``right``."""

    def at(end: int) -> tuple[float, Ends]:
        ends = (*left, end, *right)
        return seconds(ends), ends

    return _valley(at, (left[-1] if left else 0) + 1, right[0] - 1)


def _valley(at: Callable[[int], tuple[float, Ends]], low: int, high: int) -> tuple[float, Ends]:
    """The best that binary search for a valley between two indices looks at."""
    best = at(low)
    while low < high:
        middle = (low + high) // 2
        here, after = at(middle), at(middle + 1)
        best = min(best, here, after)
        if here[0] <= after[0]:
            high = middle
        else:
            low = middle + 1
    return best
