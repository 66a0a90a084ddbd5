"""Values to small codes: thresholds, scaled signs, stochastic levels; and scaled bodies.

On a CPU these are kernels on several threads. The functions that end in ``_torch`` say the same in
plain torch, for other devices and as the kernels' reference: equal to the last bit, except that
:func:`bucket_norms` may round sums of squares the other way.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable
from functools import cache

import numba
import numpy as np
import torch

from methods.compression.pieces import packing
from methods.compression.pieces.threads import BLOCK, each_block

LARGEST = torch.finfo(torch.float32).max

TOP = 127
"""Largest magnitude of an int8 code; -128 is never one, so that codes are symmetric."""

LARGEST_SCALE = float(np.nextafter(np.float32(LARGEST / TOP), np.float32(0)))
"""Of int8 codes: 127 times the next float32 would be infinite."""

Stream = tuple[int, int]
"""Two 32-bit words that select a stream of random numbers."""


def stream(seed: int, party: int, key: Hashable, step: int) -> Stream:
    """The stream of one tensor at one step; ``party`` keeps equally seeded parties independent."""
    text = repr((int(seed), int(party), key, int(step)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def threshold_codes(
    gradient: torch.Tensor, residual: torch.Tensor, threshold: float, codes: tuple[int, int]
) -> torch.Tensor:
    """Add ``gradient`` to ``residual``; subtract ±``threshold`` where the sum reaches it.

    Returns (n,) uint8: ``codes[0]`` where it was added, ``codes[1]`` where subtracted, 0 elsewhere.
    """
    if gradient.device.type != "cpu":
        return threshold_codes_torch(gradient, residual, threshold, codes)
    low, high = map(np.uint8, codes)
    g, r, limit = gradient.contiguous().numpy(), residual.numpy(), np.float32(threshold)
    found = np.empty(g.size, np.uint8)
    each_block(g.size, lambda i, j: _threshold(g[i:j], r[i:j], limit, low, high, found[i:j]))
    return torch.from_numpy(found)


def threshold_codes_torch(
    gradient: torch.Tensor, residual: torch.Tensor, threshold: float, codes: tuple[int, int]
) -> torch.Tensor:
    """:func:`threshold_codes` on any device."""
    residual.add_(gradient)
    up = (residual >= threshold).to(torch.uint8)
    down = (residual <= -threshold).to(torch.uint8)
    residual.sub_(up.float() - down.float(), alpha=threshold)
    return down * codes[0] + up * codes[1]


def accumulate_magnitude(gradient: torch.Tensor, residual: torch.Tensor) -> float:
    """Add ``gradient`` to ``residual``; return the sum of the magnitudes there, in float64."""
    if gradient.device.type != "cpu":
        return float(residual.add_(gradient).abs().sum(dtype=torch.float64))
    g, r = gradient.contiguous().numpy(), residual.numpy()
    return math.fsum(each_block(g.size, lambda i, j: _accumulate(g[i:j], r[i:j])))


def scaled_signs(values: torch.Tensor, scale: float) -> torch.Tensor:
    """(n,) uint8, 1 where ``values`` is negative; subtracts what is sent, ±``scale``, from it."""
    if values.device.type != "cpu":
        return scaled_signs_torch(values, scale)
    v, codes = values.numpy(), np.empty(values.numel(), np.uint8)
    each_block(v.size, lambda i, j: _signs(v[i:j], np.float32(scale), codes[i:j]))
    return torch.from_numpy(codes)


def scaled_signs_torch(values: torch.Tensor, scale: float) -> torch.Tensor:
    """:func:`scaled_signs` on any device."""
    negative = values < 0
    values.add_(negative.float() * 2 - 1, alpha=scale)
    return negative.view(torch.uint8)


def bucket_norms(values: torch.Tensor, bucket: int, norm: str) -> torch.Tensor:
    """(⌈n/bucket⌉,) float32 norms, ``l2`` or ``max``, of ``bucket`` consecutive values each.

    The last bucket may be shorter. Sums are in float64; a norm beyond float32 is its largest value.
    """
    if values.device.type != "cpu":
        return bucket_norms_torch(values, bucket, norm)
    v = values.contiguous().numpy()
    norms = np.empty(-(-v.size // bucket), np.float32)
    each_block(
        norms.size,
        lambda i, j: _norms(v[i * bucket : j * bucket], bucket, norm == "l2", norms[i:j]),
        max(1, BLOCK // bucket),
    )
    return torch.from_numpy(norms)


def bucket_norms_torch(values: torch.Tensor, bucket: int, norm: str) -> torch.Tensor:
    """:func:`bucket_norms` on any device."""
    rows = torch.nn.functional.pad(values, (0, -values.numel() % bucket)).view(-1, bucket)
    if norm == "max":
        return rows.abs().amax(1)
    squares = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return squares.clamp(max=LARGEST).float()


def deviation(values: torch.Tensor) -> float:
    """Standard deviation of the values about their mean, 0 of none; in float64."""
    if not values.numel():
        return 0.0
    if values.device.type != "cpu":
        return float(values.double().std(correction=0))
    v = values.contiguous().numpy()

    def moment(centre: float, power: int) -> float:
        return math.fsum(each_block(v.size, lambda i, j: _moment(v[i:j], centre, power))) / v.size

    return math.sqrt(moment(moment(0.0, 1), 2))


def stochastic_codes(
    values: torch.Tensor, norms: torch.Tensor, bucket: int, levels: int, draw: Stream
) -> torch.Tensor:
    """Round ``levels``·|value|/norm up or down at random so that the mean is kept (QSGD, §3.1).

    Returns (n,) uint8: the rounded level, plus ``levels`` + 1 (the sign bit, ``levels`` + 1 being
    a power of 2) where negative and not 0. Magnitudes above the norm count as the norm; a bucket
    of norm 0 is all 0. The random number of a value depends on ``draw`` and its index only.
    """
    if values.device.type != "cpu":
        return stochastic_codes_torch(values, norms, bucket, levels, draw)
    v, scale, codes = values.contiguous().numpy(), norms.numpy(), np.empty(values.numel(), np.uint8)
    first, second = map(np.uint32, draw)
    each_block(
        v.size,
        lambda i, j: _stochastic(v[i:j], i, scale, bucket, levels, first, second, codes[i:j]),
    )
    return torch.from_numpy(codes)


def stochastic_codes_torch(
    values: torch.Tensor, norms: torch.Tensor, bucket: int, levels: int, draw: Stream
) -> torch.Tensor:
    """:func:`stochastic_codes` on any device."""
    n, device = values.numel(), values.device
    norm = norms.repeat_interleave(bucket)[:n]
    x = torch.where(norm > 0, (values.abs() / norm * levels).clamp(max=levels), 0)
    level = x.floor()
    drawn = _random_torch(torch.arange(n, device=device), *draw) >> 8
    level += drawn.float() * 2**-24 < x - level
    sign = (values < 0) & (level > 0)
    return level.to(torch.uint8) + sign.to(torch.uint8) * (levels + 1)


def scale_buckets(values: torch.Tensor, norms: torch.Tensor, bucket: int) -> torch.Tensor:
    """Multiply each bucket of ``values`` by its norm, in place."""
    whole = values.numel() // bucket
    values[: whole * bucket].view(whole, bucket).mul_(norms[:whole, None])
    values[whole * bucket :].mul_(norms[whole:])
    return values


def to_blocks(values: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``block`` consecutive values each to int8 multiples of a scale, rounded to the nearest.

    Returns the (⌈n/block⌉,) float32 scales, each its block's largest magnitude over 127, and the
    (n,) int8 codes, of two equally near ones the even. DDS, INT8 quantisation.
    """
    scales = (bucket_norms(values, block, "max") / TOP).clamp_(max=LARGEST_SCALE)
    if values.device.type != "cpu":
        return scales, nearest_codes_torch(values, scales, block)
    v, s, codes = values.contiguous().numpy(), scales.numpy(), np.empty(values.numel(), np.int8)

    def round_off(i: int, j: int) -> None:
        of = slice(i * block, j * block)
        _nearest(v[of], block, s[i:j], codes[of])

    each_block(s.size, round_off, max(1, BLOCK // block))
    return scales, torch.from_numpy(codes)


def nearest_codes_torch(values: torch.Tensor, scales: torch.Tensor, block: int) -> torch.Tensor:
    """The codes of :func:`to_blocks` on any device."""
    scale = scales.repeat_interleave(block)[: values.numel()]
    nearest = (values / scale).round().clamp(-TOP, TOP)
    return torch.where(scale > 0, nearest, 0).to(torch.int8)


def from_blocks(scales: torch.Tensor, codes: torch.Tensor, block: int) -> torch.Tensor:
    """(n,) float32 values that :func:`to_blocks` made these of."""
    if codes.device.type != "cpu":
        return scale_buckets(codes.float(), scales, block)
    c, s, values = codes.contiguous().numpy(), scales.numpy(), np.empty(codes.numel(), np.float32)

    def multiply(i: int, j: int) -> None:
        of = slice(i * block, j * block)
        _multiples(c[of], block, s[i:j], values[of])

    each_block(s.size, multiply, max(1, BLOCK // block))
    return torch.from_numpy(values)


def blocks_bytes(n: int, block: int) -> int:
    """Bytes of the scales and codes of ``n`` values: 4·⌈n/block⌉ + n."""
    return 4 * -(-n // block) + n


def read_blocks(
    body: memoryview, n: int, block: int, what: str, device: torch.device | str
) -> torch.Tensor:
    """(n,) float32 values of scales as float32, then codes as int8, from exactly their bytes."""
    at = 4 * -(-n // block)
    scales = check_norms(packing.from_bytes(body[:at], "float32", at // 4, what, device), what)
    codes = packing.from_bytes(body[at:], "int8", n, what, device)
    if (scales > LARGEST_SCALE).any():
        raise ValueError(f"{what}: {TOP} times a scale is infinite")
    if n and codes.amin() < -TOP:
        raise ValueError(f"{what}: a code is below -{TOP}")
    return from_blocks(scales, codes, block)


@cache
def signed_levels(levels: int) -> torch.Tensor:
    """(2·levels + 2,) float32 that :func:`stochastic_codes` stand for; NaN for a negative 0."""
    magnitudes = torch.arange(levels + 1, dtype=torch.float32) / levels
    return torch.cat([magnitudes, torch.tensor([torch.nan]), -magnitudes[1:]])


def scaled_bytes(n: int, bits: int) -> int:
    """Bytes of a scaled body: 4 + ⌈n·bits/8⌉."""
    return 4 + -(-n * bits // 8)


def write_scaled(scale: float, codes: torch.Tensor, bits: int) -> bytes:
    """A scaled body: ``scale`` as float32, then the packed ``codes``."""
    return packing.join((torch.tensor([scale]), "float32"), (packing.pack(codes, bits), "uint8"))


def read_scaled(
    body: bytes, bits: int, levels: torch.Tensor, n: int, what: str, device: torch.device | str
) -> torch.Tensor:
    """(n,) float32 scale·levels[code] of a scaled body; a NaN level is a forbidden code."""
    packing.check_length(body, scaled_bytes(n, bits), what)
    head, rest = memoryview(body)[:4], memoryview(body)[4:]
    scale = float(check_norms(packing.from_bytes(head, "float32", 1, what), what))
    packed = packing.from_bytes(rest, "uint8", len(rest), what, device)
    return packing.unpack_levels(packed, bits, levels.to(device) * scale, n, what)


def check_norms(norms: torch.Tensor, what: str) -> torch.Tensor:
    """``norms`` if none is negative, else ValueError."""
    if (norms < 0).any():
        raise ValueError(f"{what}: a scale is negative")
    return norms


def _random_torch(index: torch.Tensor, first: int, second: int) -> torch.Tensor:
    """:func:`_random` of int64 indices; only the low 32 bits of products count."""
    low = 2**32 - 1
    h = index ^ first
    h = (((h ^ (h >> 16)) * 0x85EBCA6B) & low) ^ second
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & low
    return h ^ (h >> 16)


_kernel = numba.njit(nogil=True, cache=True, error_model="numpy")
# Sums may be split over vector lanes; NaN and infinity keep their meaning.
_sum_kernel = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc"})


@_kernel
def _threshold(gradient, residual, limit, low, high, codes):
    for i in range(gradient.size):
        sum_ = residual[i] + gradient[i]
        up, down = sum_ >= limit, sum_ <= -limit
        codes[i] = np.uint8(up) * high + np.uint8(down) * low
        residual[i] = sum_ - limit * (np.float32(up) - np.float32(down))


@_sum_kernel
def _accumulate(gradient, residual):
    total = 0.0
    for i in range(gradient.size):
        residual[i] += gradient[i]
        total += abs(np.float64(residual[i]))
    return total


@_kernel
def _signs(values, scale, codes):
    for i in range(values.size):
        negative = values[i] < 0
        codes[i] = negative
        values[i] += scale if negative else -scale


@_sum_kernel
def _moment(values, centre, power):
    total = 0.0
    for i in range(values.size):
        distance = np.float64(values[i]) - centre
        total += distance if power == 1 else distance * distance
    return total


@_sum_kernel
def _norms(values, bucket, squared, norms):
    for b in range(norms.size):
        piece = values[b * bucket : (b + 1) * bucket]
        if squared:
            total = 0.0
            for i in range(piece.size):
                total += np.float64(piece[i]) * np.float64(piece[i])
            norms[b] = min(math.sqrt(total), LARGEST)
        else:
            # Magnitudes order as their bits do, and integers compare on vector lanes.
            patterns, largest = piece.view(np.int32), np.int32(0)
            for i in range(piece.size):
                largest = max(largest, patterns[i] & np.int32(0x7FFFFFFF))
            norms.view(np.int32)[b] = largest


@_kernel
def _random(index, first, second):
    """A 32-bit hash: murmur3's finaliser with a second key word in its middle."""
    h = np.uint32(index) ^ first
    h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)) ^ second
    h = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(h ^ (h >> np.uint32(16)))


@_kernel
def _stochastic(values, start, norms, bucket, levels, first, second, codes):
    top, sign = np.float32(levels), np.uint8(levels + 1)
    at = 0
    while at < values.size:
        b = (start + at) // bucket
        norm, stop = norms[b], min(values.size, (b + 1) * bucket - start)
        piece, found = values[at:stop], codes[at:stop]
        if norm == 0:
            found[:] = 0
        else:
            for i in range(piece.size):
                x = min(abs(piece[i]) / norm * top, top)
                level = np.int32(x)
                drawn = np.int32(_random(start + at + i, first, second) >> np.uint32(8))
                level += np.int32(np.float32(drawn) * np.float32(2.0**-24) < x - np.float32(level))
                negative = (piece[i] < 0) & (level > 0)
                found[i] = np.uint8(level) | (sign if negative else np.uint8(0))
        at = stop


@_kernel
def _nearest(values, block, scales, codes):
    top = np.float32(TOP)
    for b in range(scales.size):
        piece, found = values[b * block : (b + 1) * block], codes[b * block : (b + 1) * block]
        if scales[b] == 0:
            found[:] = 0
        else:
            for i in range(piece.size):
                found[i] = np.int8(max(-top, min(np.rint(piece[i] / scales[b]), top)))


@_kernel
def _multiples(codes, block, scales, values):
    for b in range(scales.size):
        piece, into = codes[b * block : (b + 1) * block], values[b * block : (b + 1) * block]
        for i in range(piece.size):
            into[i] = np.float32(piece[i]) * scales[b]
