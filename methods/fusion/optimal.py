"""The best of all contiguous groupings, as the yardstick of the searches."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from slowlink.methods.fusion import Costs, Fusion, between, checked, every_message

WIDTH = 32
"""States a prefix in the first sweep, which only finds a grouping to beat."""

LIMIT = 200_000
"""States of all prefixes before the second sweep gives up."""


@dataclass(frozen=True)
class Optimal(Fusion):
    """The grouping of shortest iteration, by dynamic programming over prefixes of the tensors.

    A grouping of the first i tensors leaves behind four times: C, when the compute stream has
    encoded it; M, when the network has sent it; D, when it would be decoded if the compute stream
    did nothing else; and W, the forward, backward, encoding and decoding it cost in all. The
    iteration takes max(W, D) of all tensors. Each next time grows with the last ones and never
    faster than they do, so of two states of a prefix, one that is nowhere later is enough.

    Parameters
    ----------
    tolerance: the result takes at most this share longer than the best; above 0 to absorb
        rounding. Larger is faster.

    Raises
    ------
    ValueError: more than 200,000 states are left, as costs without any regularity can bring about
        for many tensors.
    """

    summary = "Exact optimum of the iteration time over all contiguous groupings"
    source = "none: yardstick for Sketch-Fusion §4.3"
    needs_costs = True

    tolerance: float = 1e-9

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise ValueError(
                f"optimal: tolerance must be above 0 and below 1, not {self.tolerance}"
            )

    def __call__(self, sizes, costs=None):
        costs = checked("optimal", sizes, costs)
        if not len(sizes):
            return []
        bounds = _Bounds(*_segments(costs))
        start = np.array([[costs.forward_s, 0.0, 0.0, costs.forward_s]]).T
        slack = self.tolerance * float(bounds.least(start, 0)[0]) / (len(sizes) + 1)
        seconds, ends = _sweep(bounds, start, slack, np.inf, WIDTH)
        better = _sweep(bounds, start, slack, seconds - slack, None)
        return between(better[1] or ends)


def _segments(costs: Costs) -> list[np.ndarray]:
    """Backward, encode, communicate and decode seconds of tensors ``a … b-1`` as group, [a, b].

    Infinite where there is no such group.
    """
    done = np.concatenate([[0.0], np.cumsum(costs.backward_s)])
    tables = np.stack([done - done[:, None], *every_message(costs)])
    return list(np.where(np.isnan(tables[-1]), np.inf, tables))


class _Bounds:
    """What any grouping of the tensors from i on adds at least, for each i: shortest paths.

    States are (4, s) arrays: C, M, D and W.
    """

    def __init__(self, backward, encode, communicate, decode) -> None:
        self.n = n = len(encode) - 1
        self.backward, self.encode = backward, encode
        self.communicate, self.decode = communicate, decode
        compute = backward + encode
        to_end = np.arange(n + 1) == n
        last_sent = np.where(to_end, communicate + decode, 0)
        self.compute, self.most_compute = _shortest(compute), -_shortest(_negative(compute))
        self.work, self.decoding = _shortest(compute + decode), _shortest(decode)
        self.sending = _shortest(communicate + np.where(to_end, decode, 0))
        self.computing = _shortest(compute + last_sent)
        self.first_compute, self.first_sent = compute.min(1), (compute + communicate).min(1)
        self.first_sending = communicate.min(1)
        self.through = (compute + communicate + np.where(to_end, decode, self.sending)).min(1)
        # Least of sending minus computing: up to when the network was busy before any group …
        lead = np.full(n + 1, np.inf)
        for i in range(n - 1, -1, -1):
            step = communicate[i, i + 1 :] + lead[i + 1 :]
            lead[i] = (np.minimum(step, 0) - compute[i, i + 1 :]).min()
        self.lead = lead
        # … and over all groups, until the last is decoded.
        rest = communicate - np.where(np.isinf(compute), 0, compute)
        self.lag = _shortest(rest - np.where(to_end | np.isinf(decode), 0, decode))

    def least(self, state: np.ndarray, i: int) -> np.ndarray:
        """No grouping that begins with ``state`` of i tensors ends before this."""
        c, m, d, w = state
        ends = [w + self.work[i], d + self.decoding[i], m + self.sending[i]]
        ends += [c + self.computing[i], c + self.through[i]] if i < self.n else []
        return np.maximum.reduce(ends)

    def raised(self, state: np.ndarray, i: int) -> np.ndarray:
        """``state`` with each time as late as makes no difference to any grouping that follows.

        States that differ in nothing that matters then become alike.
        """
        c, m, d, w = state
        if i == self.n:
            w = np.maximum(w, d)
            return np.stack([w, w, w, w])
        # The network waits for the next group anyway.
        m = np.maximum(m, c + self.first_compute[i])
        # All groups to come are encoded before the network is free for them.
        c = np.maximum(c, m + self.lead[i])
        # The next group arrives, or the compute stream is free, only after that.
        d = np.maximum(d, np.maximum(m + self.first_sending[i], c + self.first_sent[i]))
        d = np.maximum(d, w + self.compute[i])
        # The network, or decoding, is still at work when the compute stream would be done.
        w = np.maximum(w, np.maximum(m + self.lag[i], d - self.most_compute[i]))
        return np.stack([c, m, d, w])


def _shortest(edges: np.ndarray) -> np.ndarray:
    """Length of the shortest path from each i to the last, over ``edges`` [i, j > i]."""
    length = np.zeros(len(edges))
    for i in range(len(edges) - 2, -1, -1):
        length[i] = (edges[i, i + 1 :] + length[i + 1 :]).min()
    return length


def _negative(edges: np.ndarray) -> np.ndarray:
    return np.where(np.isinf(edges), np.inf, -edges)


def _sweep(bounds, start, slack, to_beat, width):
    """Least iteration below ``to_beat`` and its ends; ``(to_beat, None)`` if there is none.

    Exact to ``slack`` a tensor where ``width`` is None; otherwise only the ``width`` most
    promising states of a prefix are kept.
    """
    # States of all prefixes so far; the one each came from; the prefix each belongs to.
    states, parent, length = [start], [np.array([-1])], [np.array([0])]
    for j in range(1, bounds.n + 1):
        c, m, d, w = np.concatenate(states, axis=1)
        i = np.concatenate(length)
        encode, decode = bounds.encode[i, j], bounds.decode[i, j]
        compute = bounds.backward[i, j] + encode
        c = c + compute
        m = np.maximum(c, m) + bounds.communicate[i, j]
        d = np.maximum(d, m) + decode
        state = bounds.raised(np.stack([c, m, d, w + compute + decode]), j)
        least = bounds.least(state, j)
        keep = np.flatnonzero(least < to_beat)
        keep = keep[np.argsort(state[:, keep].sum(0), kind="stable")]
        keep = keep[_front(np.ascontiguousarray(state[:, keep].T), slack)]
        if width is not None:
            keep = keep[np.argsort(least[keep], kind="stable")[:width]]
        elif len(i) + len(keep) > LIMIT:
            raise ValueError(
                f"optimal: more than {LIMIT} states after {j} of {bounds.n} tensors; these costs "
                "need a larger tolerance"
            )
        states.append(state[:, keep])
        parent.append(keep)
        length.append(np.full(len(keep), j))
    if not len(parent[-1]):
        return to_beat, None
    parent, length = np.concatenate(parent), np.concatenate(length)
    # Only one state is left for the whole model.
    ends, at = [], len(parent) - 1
    while length[at]:
        ends.append(int(length[at]))
        at = parent[at]
    return float(states[-1][3, -1]), ends[::-1]


@numba.njit(nogil=True, cache=True)
def _front(points, slack):
    """Which ``points`` (n, 4), in order of their sums, no earlier one is below, to ``slack``."""
    front = np.empty(len(points), np.int64)
    size = 0
    for p in range(len(points)):
        beaten = False
        for q in range(size):
            other = front[q]
            if (
                points[other, 0] <= points[p, 0] + slack
                and points[other, 1] <= points[p, 1] + slack
                and points[other, 2] <= points[p, 2] + slack
                and points[other, 3] <= points[p, 3] + slack
            ):
                beaten = True
                break
        if not beaten:
            front[size] = p
            size += 1
    return front[:size]
