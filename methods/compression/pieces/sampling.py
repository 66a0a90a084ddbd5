"""Choosing the largest values of a tensor by a threshold estimated on a sample.

Sorting a whole gradient costs more than sending it, so the k-th largest magnitude is estimated on
a small sample (Lin et al. 2018, §3 and appendix; GeoMX §4). Positions are drawn from a generator
of their own, derived from (seed, key, step): new ones each step, never the global generator.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Iterator
from fractions import Fraction

import numpy as np
import torch

BLOCK = 2**18
"""Values handled at once on a CPU, so that a block stays in cache between passes over it."""


def floor_share(n: int, share: float) -> int:
    """⌊n·share⌋ with ``share`` taken as the decimal it is written as (0.29·100 is 29)."""
    return math.floor(n * Fraction(repr(float(share))))


def ceil_share(n: int, share: float) -> int:
    """⌈n·share⌉ with ``share`` taken as the decimal it is written as."""
    return math.ceil(n * Fraction(repr(float(share))))


def generator(seed: int, key: Hashable, step: int) -> torch.Generator:
    """A CPU generator that depends on (seed, key, step) only; keys are text, numbers or tuples."""
    digest = hashlib.blake2b(repr((int(seed), key, int(step))).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def scattered_positions(n: int, m: int, random: torch.Generator) -> torch.Tensor:
    """(m,) distinct ascending positions below ``n >= m``, one drawn from each of m equal parts."""
    edges = torch.arange(m + 1, dtype=torch.int64) * n // max(m, 1)
    width = edges.diff()
    drawn = torch.rand(m, generator=random, dtype=torch.float64)
    return edges[:-1] + torch.minimum((drawn * width).long(), width - 1)


def strided_positions(n: int, m: int, random: torch.Generator) -> torch.Tensor:
    """At least m and about m of n >= m positions, at one odd stride from a random start.

    Odd, so that a stride does not keep to a few columns of a tensor whose sizes are powers of 2.
    """
    stride = max(1, (n // max(m, 1) - 1) | 1)
    start = int(torch.randint(stride, (1,), generator=random))
    return torch.arange(start, n, stride)


def kth_largest(magnitudes: torch.Tensor, k: int) -> torch.Tensor:
    """The k-th largest (from 1) of ``magnitudes``, as a 0-dimensional tensor."""
    return torch.topk(magnitudes, k, sorted=False).values.min()


def blocks(flat: torch.Tensor) -> Iterator[slice]:
    """Slices that cover ``flat`` in order: cache-sized on a CPU, a single one elsewhere."""
    size = BLOCK if flat.device.type == "cpu" else max(flat.numel(), 1)
    for start in range(0, flat.numel(), size):
        yield slice(start, start + size)


def indices_at_least(values: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """(m,) int64 ascending indices of ``values`` whose magnitude is ``threshold`` or more."""
    found = []
    for block in blocks(values):
        mask = values[block].abs() >= threshold
        if mask.device.type == "cpu":  # numpy's search is about twice as fast as torch's
            index = torch.from_numpy(np.flatnonzero(mask.numpy()))
        else:
            index = mask.nonzero().view(-1)
        found.append(index.add_(block.start))
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64, device=values.device)


def largest_of(values: torch.Tensor, indices: torch.Tensor, k: int) -> torch.Tensor:
    """The ``k`` of ``indices`` with the largest ``|values|``, ascending."""
    if indices.numel() <= k:
        return indices
    best = torch.topk(values[indices].abs(), k, sorted=False).indices
    return indices[best].sort().values
