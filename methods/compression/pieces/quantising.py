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

from slowlink.methods.compression.pieces import buffers, packing, vectors
from slowlink.methods.compression.pieces.threads import BLOCK, NEAR, each_block

LARGEST = torch.finfo(torch.float32).max

TOP = 127
"""Largest magnitude of an int8 code; -128 is never one, so that codes are symmetric."""

LARGEST_SCALE = float(np.nextafter(np.float32(LARGEST / TOP), np.float32(0)))
"""The largest scale of int8 codes: 127 times the next float32 would be infinite."""

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


def scaled_signs(
    gradient: torch.Tensor, total: torch.Tensor, sent: float, what: str
) -> tuple[bytes, float]:
    """Scaled signs of a sum: its mean magnitude as float32, then a bit a value (EF-SignSGD).

    ``total`` is the last step's sum, of which ±``sent`` left, and becomes this one's: the gradient
    and what was not sent. To subtract that before the next sum, and not once the scale is known,
    spares a pass. Nothing is written before all of the gradient is found finite.

    Returns the body and the scale, ``sent`` of the next step.
    """
    packing.check_finite(gradient, what)
    if gradient.device.type != "cpu":
        negative = add_to_rest_torch(gradient, total, sent)
        magnitude = float(total.abs().sum(dtype=torch.float64))
        scale = min(magnitude / max(total.numel(), 1), LARGEST)
        return write_scaled(scale, negative, 1), scale
    g, t = gradient.contiguous().numpy(), total.numpy()
    made, memory = buffers.body(scaled_bytes(g.size, 1))
    packed, last = memory[4:], np.float32(sent)

    def write(i: int, j: int) -> float:
        return _scaled_signs(g[i:j], t[i:j], last, packed[i // 8 : -(-j // 8)])

    scale = min(math.fsum(each_block(g.size, write)) / max(g.size, 1), LARGEST)
    memory[:4] = np.frombuffer(np.float32(scale).tobytes(), np.uint8)
    return made, scale


def add_to_rest_torch(gradient: torch.Tensor, total: torch.Tensor, sent: float) -> torch.Tensor:
    """Of a sum's values subtract what was sent of them, ±``sent``, and add the gradient's.

    Returns (n,) uint8, 1 where the new sum is negative.
    """
    total.add_((total < 0).float() * 2 - 1, alpha=sent).add_(gradient)
    return (total < 0).view(torch.uint8)


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


def clipped_largest(values: torch.Tensor, clip: float, what: str) -> float:
    """The largest magnitude, cut to ``clip`` standard deviations if there is any (0: never).

    A float32; ValueError, naming ``what``, where a value is not finite.
    """
    if values.device.type != "cpu":
        largest = float(packing.check_finite(values, what).abs().amax()) if values.numel() else 0.0
        between = None
    else:
        v = values.contiguous().numpy()
        bits = v.view(np.int32)
        parts = each_block(v.size, lambda i, j: (vectors.largest(bits[i:j]), *_moments(v[i:j])))
        worst, sums, squares = zip(*parts, strict=True) if parts else ((np.int32(0),), (), ())
        if max(worst) >= vectors.INFINITE:
            packing.refuse(values, what)
        largest = float(np.int32(max(worst)).view(np.float32))
        mean, square = (math.fsum(part) / max(v.size, 1) for part in (sums, squares))
        # The squares' mean less the mean's square is off by less than this, from rounding.
        variance, slack = square - mean * mean, 1e-9 * square
        between = [math.sqrt(max(variance + off, 0.0)) for off in (-slack, slack)]
    if not clip:
        return largest
    # As a float32 it hardly ever matters; where it might, a second pass takes distances.
    cut = {float(np.float32(min(largest, clip * one))) for one in between or ()}
    if len(cut) == 1 and between[0] > 0:
        return cut.pop()
    exact = deviation(values)
    return float(np.float32(min(largest, clip * exact))) if exact else largest


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


def ternary_buckets(values: torch.Tensor, bucket: int, norm: str, draw: Stream, what: str) -> bytes:
    """The norms, then :func:`stochastic_codes` of one level packed, in one pass; all is finite.

    The same bytes as by :func:`bucket_norms` and :func:`packing.pack`. For CPUs, and buckets of
    whole octets.
    """
    v = values.contiguous().numpy()
    count = -(-v.size // bucket)
    made, memory = buffers.body(4 * count + -(-v.size // 4))
    norms, packed = memory[: 4 * count].view(np.float32), memory[4 * count :]
    first, second = map(np.uint32, draw)

    def quantise(i: int, j: int) -> np.int32:
        start, stop = i * bucket, min(j * bucket, v.size)
        into = packed[start // 4 : -(-stop // 4)]
        return _ternary_buckets(
            v[start:stop], start, bucket, norm == "l2", norms[i:j], first, second, into
        )

    worst = each_block(count, quantise, max(1, BLOCK // bucket))
    if max(worst, default=0) >= vectors.INFINITE:
        packing.refuse(values, what)
    return made


def ternary(values: torch.Tensor, scale: float, draw: Stream) -> bytes:
    """``scale`` as float32, then :func:`stochastic_codes` of one level packed, in one pass."""
    if values.device.type != "cpu":
        scales = torch.tensor([scale], dtype=torch.float32, device=values.device)
        return write_scaled(scale, stochastic_codes(values, scales, values.numel(), 1, draw), 2)
    v = values.contiguous().numpy()
    made, memory = buffers.body(scaled_bytes(v.size, 2))
    memory[:4] = np.frombuffer(np.float32(scale).tobytes(), np.uint8)
    packed = memory[4:]
    first, second = map(np.uint32, draw)

    def quantise(i: int, j: int) -> None:
        _ternary(v[i:j], i, np.float32(scale), first, second, packed[i // 4 : -(-j // 4)])

    each_block(v.size, quantise)
    return made


def scale_buckets(
    values: torch.Tensor, norms: torch.Tensor, bucket: int, start: int = 0
) -> torch.Tensor:
    """Multiply ``values``, which begin at the ``start``-th, by their buckets' norms, in place."""
    if values.device.type == "cpu":
        _scale(values.numpy(), start, norms.numpy(), bucket)
        return values
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
    if norms.numel() and float(norms.amin()) < 0:
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
def _magnitude(values):
    total = 0.0
    for i in range(values.size):
        total += abs(np.float64(values[i]))
    return total


@_kernel
def _scaled_signs(gradient, total, sent, packed):
    magnitude = 0.0
    for at in range(0, total.size, NEAR):
        piece, more = total[at : at + NEAR], gradient[at : at + NEAR]
        for i in range(piece.size):
            piece[i] = piece[i] + (sent if piece[i] < 0 else -sent) + more[i]
        packing.pack_signs(piece.view(np.int32), packed[at // 8 : (at + piece.size + 7) // 8])
        magnitude += _magnitude(piece)
    return magnitude


@_sum_kernel
def _moments(values):
    total = squares = 0.0
    for i in range(values.size):
        value = np.float64(values[i])
        total += value
        squares += value * value
    return total, squares


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
def _ternary(values, start, norm, first, second, packed):
    """Codes of one level, four to an octet, of values that share a norm."""
    counters, codes = np.arange(NEAR).astype(np.uint32), np.zeros(NEAR, np.uint8)
    _ternary_piece(values, start, norm, first, second, counters, codes, packed)


@_kernel
def _ternary_buckets(values, start, bucket, squared, norms, first, second, packed):
    counters, codes = np.arange(NEAR).astype(np.uint32), np.zeros(NEAR, np.uint8)
    worst = np.int32(0)
    for b in range(norms.size):
        at = b * bucket
        piece = values[at : at + bucket]
        worst = max(worst, vectors.largest(piece.view(np.int32)))
        _norms(piece, bucket, squared, norms[b : b + 1])
        into = packed[at // 4 : (at + piece.size + 3) // 4]
        _ternary_piece(piece, start + at, norms[b], first, second, counters, codes, into)
    return worst


@_kernel
def _ternary_piece(values, start, norm, first, second, counters, codes, packed):
    for at in range(0, values.size, NEAR):
        piece = values[at : at + NEAR]
        if norm == 0:
            codes[: piece.size] = 0
        else:
            _ternary_codes(piece, counters, np.uint32(start + at), norm, first, second, codes)
        codes[piece.size : -(-piece.size // 4) * 4] = 0
        words, into = codes.view(np.uint32), packed[at // 4 : (at + piece.size + 3) // 4]
        for octet in range(into.size):
            # Four codes, the first in the highest bits: no two of the products' terms overlap.
            into[octet] = np.uint8(np.uint32(words[octet] * np.uint32(0x40100401)) >> np.uint32(24))


@_kernel
def _ternary_codes(values, counters, start, norm, first, second, codes):
    """What :func:`_stochastic` does for one level, which compares once: lanes stay of 32 bits."""
    for i in range(values.size):
        h = np.uint32(counters[i] + start) ^ first
        h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)) ^ second
        h = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
        drawn = np.int32(np.uint32(h ^ (h >> np.uint32(16))) >> np.uint32(8))
        up = np.float32(drawn) < abs(values[i]) / norm * np.float32(2.0**24)
        codes[i] = np.uint8(up) | np.uint8((values[i] < 0) & up) * np.uint8(2)


@_kernel
def _scale(values, start, norms, bucket):
    """Multiply values, the first of which is the ``start``-th, by their buckets' norms."""
    at = 0
    while at < values.size:
        b = (start + at) // bucket
        piece, norm = values[at : (b + 1) * bucket - start], norms[b]
        for i in range(piece.size):
            piece[i] *= norm
        at += piece.size


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
