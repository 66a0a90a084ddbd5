"""Choosing the largest values of a tensor by a threshold estimated on a sample.

Sorting a whole gradient costs more than sending it, so the k-th largest magnitude is estimated on
a small sample (Lin et al. 2018, §3 and appendix; GeoMX §4). Positions are drawn from a generator
of their own, derived from (seed, key, step): new ones each step, never the global generator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from fractions import Fraction
from functools import cache

import numba
import numpy as np
import torch

from slowlink.methods.compression.pieces import vectors
from slowlink.methods.compression.pieces.threads import each_block

TINIEST = 2.0**-149
"""The least positive float32."""


def floor_share(n: int, share: float) -> int:
    """⌊n·share⌋ with ``share`` taken as the decimal it is written as (0.29·100 is 29)."""
    over, under = _fraction(share)
    return n * over // under


def ceil_share(n: int, share: float) -> int:
    """⌈n·share⌉ with ``share`` taken as the decimal it is written as."""
    over, under = _fraction(share)
    return -(-n * over // under)


def union(n: int, k: int, parties: int) -> int:
    """Places of n that any of the parties names, each k independent ones, on average."""
    return round(n * (1 - (1 - k / n) ** parties)) if n else 0


def share_of_any(n: int, share: float) -> int:
    """⌊n·share⌋, but at least 1 of any: what DDS keeps of ``n`` values."""
    return max(floor_share(n, share), min(n, 1))


@cache
def _fraction(share: float) -> tuple[int, int]:
    return Fraction(repr(float(share))).as_integer_ratio()


def generator(seed: int, key: Hashable, step: int) -> torch.Generator:
    """A CPU generator that depends on (seed, key, step) only; keys are text, numbers or tuples."""
    return from_digest(digest(seed, key, step))


def digest(seed: int, key: Hashable, step: int) -> str:
    """16 hexadecimal digits that stand for (seed, key, step)."""
    return hashlib.blake2b(repr((int(seed), key, int(step))).encode(), digest_size=8).hexdigest()


def from_digest(digits: str) -> torch.Generator:
    """:func:`generator` from :func:`digest`'s digits."""
    number = int.from_bytes(bytes.fromhex(digits), "little")
    return torch.Generator().manual_seed(number >> 1)


def scattered_positions(n: int, m: int, random: torch.Generator) -> torch.Tensor:
    """(m,) distinct ascending positions below ``n >= m``, one drawn from each of m equal parts."""
    edges = torch.arange(m + 1, dtype=torch.int64) * n // max(m, 1)
    width = edges.diff()
    drawn = torch.rand(m, generator=random, dtype=torch.float64)
    return edges[:-1] + torch.minimum((drawn * width).long(), width - 1)


def strided_positions(n: int, m: int, random: Callable[[], torch.Generator]) -> torch.Tensor:
    """At least m and about m of n >= m positions, at one odd stride from a random start.

    Odd, so that a stride does not keep to a few columns of a tensor whose sizes are powers of 2.
    """
    stride = max(1, (n // max(m, 1) - 1) | 1)
    start = int(torch.randint(stride, (1,), generator=random())) if stride > 1 else 0
    return torch.arange(start, n, stride)


def random_positions(n: int, m: int, random: Callable[[], torch.Generator]) -> torch.Tensor:
    """m of n positions, each drawn by itself, so that some may come twice."""
    return torch.randint(n, (m,), generator=random())


def kth_largest(magnitudes: torch.Tensor, k: int) -> torch.Tensor:
    """The k-th largest (from 1) of ``magnitudes``, as a 0-dimensional tensor."""
    if magnitudes.device.type != "cpu":
        return torch.topk(magnitudes, k, sorted=False).values.min()
    place = magnitudes.numel() - k
    return torch.tensor(np.partition(magnitudes.numpy(), place)[place])


def indices_at_least(values: torch.Tensor, threshold: torch.Tensor | float) -> torch.Tensor:
    """(m,) int64 ascending indices of ``values`` whose magnitude is ``threshold`` or more."""
    if values.device.type != "cpu":
        return (values.abs() >= float(threshold)).nonzero().view(-1)
    bits, bound = values.numpy().view(np.int32), bits_of_magnitude(threshold)
    return in_blocks(len(bits), lambda start, stop: _at_least(bits[start:stop], bound, start))


def bits_of_magnitude(threshold: torch.Tensor | float) -> np.int32:
    """What the bits of a magnitude are at least: nothing is below 0, and magnitudes order as their
    bits do."""
    return max(np.float32(float(threshold)), np.float32(0)).view(np.int32)


def in_blocks(n: int, find: Callable[[int, int], np.ndarray]) -> torch.Tensor:
    """What ``find(start, stop)`` finds in every block of ``0 … n``, as one tensor of int64."""
    return torch.from_numpy(np.concatenate([np.empty(0, np.int64), *each_block(n, find)]))


def largest_of(values: torch.Tensor, indices: torch.Tensor, k: int) -> torch.Tensor:
    """The ``k`` of ascending ``indices`` with the largest ``|values|``; of equals, the first.

    NaN is larger than anything.
    """
    if indices.numel() <= k or k == 0:
        return indices[:k]
    if values.device.type != "cpu":
        magnitudes = values[indices].abs_().nan_to_num_(nan=torch.inf)
        least = kth_largest(magnitudes, k)
        kept = magnitudes > least
        ties = (magnitudes == least).nonzero().view(-1)
        kept[ties[: k - int(kept.sum())]] = True
        return indices[kept]
    found = indices.numpy()
    magnitudes = _magnitudes(values.numpy().view(np.int32), found)
    least = np.partition(magnitudes, len(found) - k)[len(found) - k]
    return torch.from_numpy(_largest(magnitudes, found, least, k))


def threshold_for(sample: torch.Tensor, n: int, k: int) -> float:
    """A threshold that k of ``n`` values, or a few more, nearly always reach.

    The magnitude in the ``sample`` whose rank is four standard deviations beyond the expected one.
    """
    expected = k * sample.numel() / max(n, 1)
    rank = int(expected + 4 * expected**0.5 + 4)
    return float(kth_largest(sample.abs(), rank)) if rank <= sample.numel() else 0.0


def largest(
    values: torch.Tensor,
    k: int,
    guess: float,
    find: Callable[[float], torch.Tensor] | None = None,
) -> torch.Tensor:
    """(k,) ascending indices of exactly the k largest ``|values|``; of equals, the first.

    ``guess`` is a threshold that should keep k or a few more; any gives the same result, but a
    value too high costs another pass, and one too low a larger selection. ``find``, if given, is
    asked once for the indices that reach a threshold, before ``values`` are looked at.
    """
    threshold = max(guess, TINIEST)
    found = find(threshold) if find else indices_at_least(values, threshold)
    if found.numel() < k and guess > TINIEST:
        found = indices_at_least(values, TINIEST)
    # Zeros are taken too; as many as are missing lie among the first k values.
    if found.numel() < k:
        zeros = (values[:k] == 0).nonzero().view(-1)
        return torch.cat((found, zeros[: k - found.numel()])).sort().values
    return largest_of(values, found, k)


@numba.njit(nogil=True, cache=True)
def _at_least(bits: np.ndarray, threshold: np.int32, offset: int) -> np.ndarray:
    """Indices, plus ``offset``, of the values whose magnitude is at least ``threshold``.

    Both by their bits. A word of hits at a time is visited hit by hit.
    """
    found = np.empty(bits.size, np.int64)
    return found[: append_at_least(bits, threshold, offset, found, 0)].copy()


@numba.njit(nogil=True, cache=True)
def append_at_least(
    bits: np.ndarray, threshold: np.int32, offset: int, found: np.ndarray, at: int
) -> int:
    """Write what :func:`_at_least` finds into ``found`` from ``at`` on; returns where it ends."""
    words = bits.size // vectors.LANES
    for word in range(words):
        hits = vectors.reaching(bits, word * vectors.LANES, threshold)
        while hits:
            found[at] = offset + word * vectors.LANES + vectors.lowest(hits)
            at += 1
            hits &= hits - np.uint64(1)
    for i in range(words * vectors.LANES, bits.size):
        if bits[i] & vectors.MAGNITUDE >= threshold:
            found[at] = offset + i
            at += 1
    return at


@numba.njit(nogil=True, cache=True)
def _magnitudes(bits: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """The bits of the magnitudes at ``indices``."""
    found = np.empty(indices.size, np.int32)
    for i in range(indices.size):
        found[i] = bits[indices[i]] & vectors.MAGNITUDE
    return found


@numba.njit(nogil=True, cache=True)
def _kth(values: np.ndarray, place: int) -> np.int32:
    """What would stand at ``place`` if ``values`` ascended; reorders them.

    Hoare's selection; numpy's would take seconds to compile.
    """
    low, high = 0, values.size - 1
    while low < high:
        first, middle, last = values[low], values[(low + high) // 2], values[high]
        pivot = max(min(first, middle), min(max(first, middle), last))
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i, j = i + 1, j - 1
        if j < place < i:
            break
        if place <= j:
            high = j
        else:
            low = i
    return values[place]


@numba.njit(nogil=True, cache=True)
def _largest(magnitudes: np.ndarray, indices: np.ndarray, least: np.int32, k: int) -> np.ndarray:
    """The k ``indices`` of the largest magnitudes, of which ``least`` is the smallest."""
    ties = k
    for i in range(magnitudes.size):
        ties -= np.int64(magnitudes[i] > least)
    # One place to spare, because the loop writes without a branch.
    kept, at = np.empty(k + 1, np.int64), 0
    for i in range(magnitudes.size):
        tie = magnitudes[i] == least and ties > 0
        ties -= np.int64(tie)
        kept[at] = indices[i]
        at += np.int64(tie or magnitudes[i] > least)
    return kept[:k]


@numba.njit(nogil=True, cache=True)
def about_k(
    bits: np.ndarray,
    at: np.ndarray,
    rank: int,
    k: int,
    lower: float,
    upper: float,
    adaptations: int,
    resample: bool,
) -> np.ndarray:
    """Ascending indices of about the k largest magnitudes of float32 values, given by their bits.

    The threshold is the ``rank``-th largest of those ``at`` some places; ``lower`` and what follows
    are the codec ``dgc``'s.
    """
    if not at.size:  # of an empty tensor
        return np.empty(0, np.int64)
    sample = _magnitudes(bits, at)
    bound = np.empty(1, np.int32)
    bound[0] = _kth(sample, len(at) - rank)
    threshold = bound.view(np.float32)
    kept = _at_least(bits, bound[0], 0)
    for _ in range(adaptations):
        if len(kept) < lower * k:
            threshold[0] *= np.float32(lower)
        elif len(kept) > upper * k:
            if resample:
                magnitudes = _magnitudes(bits, kept)
                least = _kth(magnitudes.copy(), len(kept) - k)
                return _largest(magnitudes, kept, least, k)
            threshold[0] *= np.float32(upper)
        else:
            break
        kept = _at_least(bits, bound[0], 0)
    return kept[:k].copy()


@numba.njit(nogil=True, cache=True)
def largest_near(bits: np.ndarray, k: int, stride: int) -> np.ndarray:
    """:func:`largest` of float32 values, given by their bits, in one call; the guess is that of
    every ``stride``-th value."""
    sample = bits[::stride] & vectors.MAGNITUDE
    expected = k * len(sample) / max(bits.size, 1)
    rank, bound = int(expected + 4 * expected**0.5 + 4), np.int32(1)
    if rank <= len(sample):
        bound = max(bound, _kth(sample, len(sample) - rank))
    found = _at_least(bits, bound, 0)
    if len(found) < k and bound > 1:
        found = _at_least(bits, np.int32(1), 0)
    if len(found) < k:
        found = _with_zeros(bits, found, k)
    elif len(found) > k > 0:
        magnitudes = _magnitudes(bits, found)
        least = _kth(magnitudes.copy(), len(found) - k)
        found = _largest(magnitudes, found, least, k)
    return found[:k]


@numba.njit(nogil=True, cache=True)
def _with_zeros(bits: np.ndarray, found: np.ndarray, k: int) -> np.ndarray:
    """``found``, which ascend and are all that is not 0, and the first zeros: k together."""
    every, at, zeros = np.empty(k, np.int64), 0, k - len(found)
    for i in range(bits.size):
        if at == k:
            break
        zero = bits[i] & vectors.MAGNITUDE == 0
        if not zero or zeros > 0:
            every[at] = i
            at += 1
            zeros -= np.int64(zero)
    return every
