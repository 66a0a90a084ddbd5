"""Merged-gradient wait-free backpropagation: wait for the next tensor if that saves a start-up."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slowlink.methods.fusion import Cost, Fusion, between, checked


@dataclass(frozen=True)
class MgWfbp(Fusion):
    """One scan in the order of backward, for messages that take α + β·values seconds.

    A group takes in the next tensor if that tensor's gradient is ready before the group could
    start on the network, or less than α later: the wait then costs less than a message of its
    own. Otherwise the group is sent.

    α and β come from ``costs.communicate`` (:func:`startup_and_rate`). What encoding and decoding
    cost is not looked at: it was made for gradients that travel as they are. Compressed ones get
    more and smaller groups than they should, and later starts than the scan believes.
    """

    summary = "Merge while waiting for the next tensor costs less than a message's start-up"
    source = "Shi et al. 2019 [@shi2019mgwfbp], algorithm 1 (Sketch-Fusion §4.3, its [41])"
    needs_costs = True

    def __call__(self, sizes, costs=None):
        costs = checked("mg_wfbp", sizes, costs)
        if not len(sizes):
            return []
        alpha, beta = startup_and_rate(sizes, costs.communicate)
        ready = list(itertools.accumulate(costs.backward_s))
        ends, waiting, sent = [], 0, 0.0
        for i, (size, at) in enumerate(zip(sizes, ready, strict=True), start=1):
            waiting += size
            start = max(sent, at)
            if i == len(sizes) or ready[i] >= start + alpha:
                ends.append(i)
                waiting, sent = 0, start + alpha + beta * waiting
        return between(ends)


def startup_and_rate(sizes: Sequence[int], communicate: Cost) -> tuple[float, float]:
    """α in seconds, at least 0, and β in seconds a value, of a message's time α + β·values.

    Least squares of the relative error over the messages of single tensors and that of them all;
    tensors of one size count once.
    """
    alone = {size: (i, i + 1) for i, size in enumerate(sizes)}
    messages = alone | {sum(sizes): (0, len(sizes))}
    at = np.array(list(messages))
    took = np.array([communicate(*message) for message in messages.values()])
    weight = 1 / np.maximum(took, took.max() * 1e-9) if took.any() else np.ones_like(took)
    table = np.stack([weight, weight * at], axis=1)
    alpha, beta = np.linalg.lstsq(table, weight * took)[0]
    return max(float(alpha), 0.0), float(beta)
