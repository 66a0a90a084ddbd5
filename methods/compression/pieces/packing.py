"""Tensors to bytes and back: plain arrays, packed small codes, (value, index) pairs.

Everything is little-endian. Readers take bytes from strangers: what is not exactly right is a
ValueError that names ``what`` was read.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Sequence
from functools import cache, reduce

import numba
import numpy as np
import torch

from slowlink.methods.compression.pieces import buffers, vectors
from slowlink.methods.compression.pieces.threads import BLOCK, each_block

PAD_VALUE, PAD_INDEX = -65530.0, -1
"""What fills unused pairs of a padded body (GeoMX, gradient_compression.cc)."""

EXPONENTS, ONES, SIGNS = (np.uint64(bits * 0x1000100010001) for bits in (0x7C00, 0x0400, 0x8000))
"""Masks of four float16 in a word: the exponents' bits, the last of each, and the signs'."""

SMALL = 2**12
"""Bytes, or values, up to which the plainest way is the fastest, since calls take longest."""

FLOAT_INDEX_LIMIT = 2**24
"""Values a tensor may have where indices travel as float32: beyond, they are not exact."""


def to_bytes(tensor: torch.Tensor, dtype: str) -> bytes | torch.Tensor:
    """A body: the elements of ``tensor`` as little-endian ``dtype`` (cast where it differs).

    On another device than the processor it is a tensor of ``dtype`` there.
    """
    if tensor.device.type != "cpu":
        return tensor.detach().to(getattr(torch, dtype), copy=True).contiguous().view(-1)
    return join((tensor, dtype))


def join(*parts: tuple[torch.Tensor | np.ndarray, str], head: bytes = b"") -> bytes | torch.Tensor:
    """A body: ``head``, then the elements of each part as little-endian ``dtype``, copied once.

    Where a part lies on another device than the processor, it is a tensor of uint8 there.
    """
    for part, _ in parts:
        if isinstance(part, torch.Tensor) and part.device.type != "cpu":
            return join_on(part.device, *parts, head=head)
    sizes = [np.dtype(dtype).itemsize * math.prod(part.shape) for part, dtype in parts]
    if sum(sizes) < SMALL:
        arrays = [np.asarray(part, _wire(dtype)) for part, dtype in parts]
        return head + b"".join([array.tobytes() for array in arrays])
    made, memory = buffers.body(len(head) + sum(sizes))
    memory[: len(head)] = np.frombuffer(head, np.uint8)
    at = len(head)
    for (part, dtype), size in zip(parts, sizes, strict=True):
        array = part.cpu().numpy() if isinstance(part, torch.Tensor) else part
        into = np.ndarray(array.shape, _wire(dtype), memory[at : at + size])
        np.copyto(into, array, casting="unsafe")
        at += size
    return made


def join_on(
    device: torch.device, *parts: tuple[torch.Tensor | np.ndarray, str], head: bytes = b""
) -> torch.Tensor:
    """:func:`join` as a (bytes,) tensor of uint8 on ``device``."""
    made = [torch.tensor(list(head), dtype=torch.uint8, device=device)]
    for part, dtype in parts:
        elements = torch.as_tensor(part).to(device, getattr(torch, dtype)).contiguous()
        made.append(elements.view(-1).view(torch.uint8))
    return torch.cat(made)


def read_head(layout: struct.Struct, body: bytes, magic: bytes, what: str) -> tuple[int, ...]:
    """The fields at the beginning of ``body`` but the first, which must be ``magic``."""
    if len(body) < layout.size or not body.startswith(magic):
        raise ValueError(f"{what}: body does not begin with {magic!r} and a head of {layout.size}")
    return layout.unpack_from(body)[1:]


def from_bytes(
    body: bytes | memoryview | torch.Tensor,
    dtype: str,
    count: int,
    what: str,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """(count,) tensor read from exactly its bytes, or from a tensor that stands for them; floats
    must be finite. Halves become float32."""
    if isinstance(body, torch.Tensor):
        if body.device.type != "cpu":
            check_length(body.view(torch.uint8), count * np.dtype(dtype).itemsize, what)
            values = body.view(getattr(torch, dtype)).to(device)
            values = values.to(torch.float32) if dtype == "float16" else values
            return check_finite(values.clone() if values is body else values, what)
        body = memoryview(body.view(torch.uint8).numpy())
    source = np.frombuffer(check_length(body, count * np.dtype(dtype).itemsize, what), _wire(dtype))
    if source.nbytes < SMALL:
        wide = source.astype("float32" if dtype == "float16" else dtype)
        if wide.dtype.kind == "f" and not np.isfinite(wide).all():
            refuse(torch.from_numpy(wide), what)
        return torch.from_numpy(wide).to(device)
    if dtype not in ("float16", "float32") or sys.byteorder != "little":
        wide = source.astype("float32" if dtype == "float16" else dtype)
        return check_finite(torch.from_numpy(wide).to(device), what)
    values = buffers.empty(count, "float32")
    array, bits = buffers.alias(body).view(dtype), bits_of(values)
    given, words = torch.from_numpy(array), array.view(np.uint16)

    def read(start: int, stop: int) -> np.int32:
        rest, largest = start, np.int32(0)
        if dtype == "float16" and vectors.HALVES:
            rest = stop - (stop - start) % vectors.LANES
            largest = vectors.to_floats(words[start:rest], bits[start:rest])
        values[rest:stop].copy_(given[rest:stop])
        return max(largest, vectors.largest(bits[rest:stop]))

    if max(each_block(count, read), default=0) >= vectors.INFINITE:
        refuse(values, what)
    return values.to(device)


def check_length(body: bytes | memoryview, expected: int, what: str) -> bytes | memoryview:
    """``body`` if it has ``expected`` bytes, else ValueError."""
    if len(body) != expected:
        raise ValueError(f"{what}: body has {len(body)} bytes, its shape needs {expected}")
    return body


def check_finite(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """``tensor`` if all of it is finite, else ValueError."""
    if tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.is_contiguous():
        bits = bits_of(tensor)
        worst = each_block(len(bits), lambda i, j: vectors.largest(bits[i:j]))
        finite = max(worst, default=0) < vectors.INFINITE
    else:
        # The extremes take one fast pass, and are NaN wherever a value is.
        extremes = tensor.aminmax() if tensor.is_floating_point() and tensor.numel() else ()
        finite = all(math.isfinite(float(value)) for value in extremes)
    if not finite:
        refuse(tensor, what)
    return tensor


def scale(tensor: torch.Tensor, factor: float, what: str) -> torch.Tensor:
    """``tensor`` times ``factor`` of at most 1, in its own memory; ValueError if not finite.

    One pass over it.
    """
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return check_finite(tensor.mul_(factor), what)
    flat = tensor.view(-1).detach().numpy()
    some = each_block(len(flat), lambda i, j: _scale(flat[i:j], np.float32(factor)))
    if max(some, default=0) >= vectors.INFINITE:
        refuse(tensor, what)
    return tensor


@numba.njit(nogil=True, cache=True)
def _scale(values: np.ndarray, factor: np.float32) -> np.int32:
    """The bits of the largest magnitude that the products have."""
    found = np.int32(0)
    for i in range(values.size):
        value = np.float32(values[i] * factor)
        values[i] = value
        found = max(found, value.view(np.int32) & vectors.MAGNITUDE)
    return found


def saturate(halves: torch.Tensor, most: float) -> torch.Tensor:
    """Sums of finite float16, whose own memory gets those beyond ±``most`` as that."""
    if halves.device.type == "cpu" and halves.is_contiguous():
        whole = halves.numel() // 4 * 4
        if not halves.numel():
            return halves
        words = halves[:whole].view(torch.uint8).numpy().view(np.uint64)
        found = any(each_block(len(words), lambda i, j: _infinite(words[i:j])))
        if not found and bool(halves[whole:].isfinite().all()):
            return halves
    return halves.clamp_(-most, most)


@numba.njit(nogil=True, cache=True)
def _infinite(words: np.ndarray) -> bool:
    """Whether one of the four float16 in any word is not finite: its exponent is all ones then, and
    one more in the last place carries into the sign's bit."""
    carried = np.uint64(0)
    for i in range(words.size):
        carried |= (words[i] & EXPONENTS) + ONES
    return (carried & SIGNS) != 0


def refuse(tensor: torch.Tensor, what: str) -> None:
    """ValueError that says how many of the values are not finite."""
    bad = int((~tensor.isfinite()).sum())
    raise ValueError(f"{what}: {bad} of {tensor.numel()} values are NaN or infinite")


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    """The (n,) int32 bits of a contiguous float32 CPU tensor, in its own memory."""
    return tensor.detach().view(-1).numpy().view(np.int32)


def write_signs(values: torch.Tensor, what: str) -> bytes:
    """A bit a value, 1 where it is negative, the first highest; all are finite."""
    if values.device.type != "cpu":
        negative = (check_finite(values, what) < 0).view(torch.uint8)
        return join((pack(negative, 1), "uint8"))
    bits = bits_of(values.contiguous())
    made, packed = buffers.body(-(-len(bits) // 8))
    worst = each_block(len(bits), lambda i, j: pack_signs(bits[i:j], packed[i // 8 : -(-j // 8)]))
    if max(worst, default=0) >= vectors.INFINITE:
        refuse(values, what)
    return made


def write_halves(
    values: torch.Tensor, what: str, most: float, factor: float = 1.0
) -> tuple[torch.Tensor, int]:
    """``factor`` times the values as float16, those beyond ±``most`` as that; how many they are."""
    if values.device.type != "cpu":
        values = check_finite(values, what) * factor
        beyond = int((values.abs() > most).sum())
        return values.clamp_(-most, most).to(torch.float16), beyond
    flat = values.contiguous()
    halves, bits = buffers.empty(flat.numel(), "float16"), bits_of(flat)
    words, times = halves.numpy().view(np.uint16), np.float32(factor)

    def write(start: int, stop: int) -> np.int32:
        rest, largest = start, np.int32(0)
        if vectors.HALVES:
            rest = stop - (stop - start) % vectors.LANES
            largest = vectors.to_halves(bits[start:rest], times, words[start:rest])
        products = flat[rest:stop] * factor
        halves[rest:stop].copy_(products)
        return max(largest, vectors.largest(bits_of(products)))

    largest = max(each_block(len(bits), write), default=0)
    if largest >= vectors.INFINITE:
        refuse(values, what)
    if largest <= np.float32(most).view(np.int32):
        return halves, 0
    halves.clamp_(-most, most)
    return halves, int(((flat * factor).abs() > most).sum())


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """(n,) uint8 codes below 2**bits to ⌈n·bits/8⌉ uint8: a stream of bits, the first highest.

    ``bits`` is 1…8, so a code may lie in two bytes; unused bits of the last byte are 0.
    """
    n, used = codes.numel(), -(-codes.numel() * bits // 8)
    if codes.device.type != "cpu":
        return pack_torch(codes, bits)
    source, packed = codes.contiguous().numpy(), np.empty(-(-n // 8) * bits, np.uint8)
    each_block(
        n // 8, lambda i, j: _pack(source[8 * i : 8 * j], bits, packed[bits * i : bits * j]), GROUPS
    )
    if n % 8:
        last = np.zeros(8, np.uint8)
        last[: n % 8] = source[-(n % 8) :]
        _pack(last, bits, packed[-bits:])
    return torch.from_numpy(packed)[:used]


def pack_torch(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """:func:`pack` on any device: eight codes make one word of ``bits`` bytes."""
    n, device = codes.numel(), codes.device
    groups = torch.nn.functional.pad(codes, (0, -n % 8)).view(-1, 8).long()
    words = (groups << torch.arange(7 * bits, -1, -bits, device=device)).sum(1, keepdim=True)
    octets = (words >> torch.arange(8 * bits - 8, -1, -8, device=device)) & 255
    return octets.to(torch.uint8).view(-1)[: -(-n * bits // 8)]


def unpack(packed: torch.Tensor, bits: int, n: int, what: str) -> torch.Tensor:
    """(n,) uint8 codes from :func:`pack`'s bytes; bits beyond the n-th code must be 0."""
    every = torch.arange(2**bits, dtype=torch.uint8, device=packed.device)
    return _look_up(packed, bits, every, n, what)


def unpack_levels(
    packed: torch.Tensor,
    bits: int,
    levels: torch.Tensor,
    n: int,
    what: str,
    then: Callable[..., object] = lambda values, start: None,
) -> torch.Tensor:
    """(n,) float32 ``levels[code]`` of :func:`pack`'s codes; a NaN level is a forbidden code.

    ``then(values, start=start)`` may change those from the ``start``-th on, which are in cache.
    """
    values = _look_up(packed, bits, levels, n, what, then)
    if 0 < n <= SMALL and packed.device.type == "cpu":
        if vectors.largest(bits_of(values)) > vectors.INFINITE:
            raise ValueError(f"{what}: a {bits}-bit code stands for nothing")
    elif n and levels.isnan().any():
        if packed.device.type == "cpu" and bits in OCTET:
            # Bits beyond the last code are 0, and code 0 may stand for nothing.
            whole = packed.numpy()[: n * bits // 8]
            suspect = _any(whole, octets_of(levels.isnan().numpy(), bits).any(1))
            suspect = suspect or bool(values[8 * len(whole) // bits :].isnan().any())
        else:
            suspect = bool(values.sum().isnan())  # faster than isnan, and NaN wherever a term is
        if suspect and values.isnan().any():
            raise ValueError(f"{what}: a {bits}-bit code stands for nothing")
    return values


OCTET = (1, 2, 4)
"""Bits of codes that fill octets, and less than one each."""


def octets_of(levels: np.ndarray, bits: int) -> np.ndarray:
    """(256, 8/bits) what the codes of each octet stand for; ``bits`` divides 8."""
    return levels[_codes_of_octets(bits)]


@cache
def _codes_of_octets(bits: int) -> np.ndarray:
    shifts = np.arange(8 - bits, -1, -bits)
    return (np.arange(256)[:, None] >> shifts) & (2**bits - 1)


def unpack_torch(packed: torch.Tensor, bits: int, table: torch.Tensor, n: int) -> torch.Tensor:
    """(n,) ``table[code]`` on any device, the inverse of :func:`pack_torch`."""
    device, groups = packed.device, -(-n // 8)
    missing = max(groups * bits - packed.numel(), 0)
    octets = torch.nn.functional.pad(packed, (0, missing))[: groups * bits].view(-1, bits).long()
    words = (octets << torch.arange(8 * bits - 8, -1, -8, device=device)).sum(1, keepdim=True)
    codes = (words >> torch.arange(7 * bits, -1, -bits, device=device)) & (2**bits - 1)
    return table[codes.view(-1)[:n]]


def _look_up(
    packed: torch.Tensor,
    bits: int,
    table: torch.Tensor,
    n: int,
    what: str,
    then: Callable[..., object] = lambda values, start: None,
) -> torch.Tensor:
    whole, rest = divmod(n * bits, 8)
    if 8 * packed.numel() < n * bits:
        raise ValueError(f"{what}: {packed.numel()} bytes do not hold {n} codes of {bits} bits")
    near = packed.device.type == "cpu"
    if near and n <= SMALL:
        source, result = packed.contiguous().numpy(), torch.empty(n, dtype=table.dtype)
        unused = _unpack_few(source, bits, table.numpy(), result.numpy())
    else:
        first, *more = packed[whole:].tolist() or [0]
        unused = first & (255 >> rest) or any(more)
    if unused:
        raise ValueError(f"{what}: bits beyond the last code are not 0")
    if near and n <= SMALL:
        then(result, start=0)
        return result
    if not near:
        values = unpack_torch(packed, bits, table, n)
        then(values, start=0)
        return values
    source, entries, groups = packed.contiguous().numpy(), table.numpy(), n // 8
    result = buffers.empty(n, entries.dtype.name)
    values = result.numpy()
    if bits in OCTET and entries.dtype == np.float32:
        each, full = octets_of(entries, bits), 8 * whole // bits
        words, into = each.view(np.uint64), values[:full].view(np.uint64)
        wide = words.shape[1]

        def look_up(i: int, j: int) -> None:
            spread(source[i:j], words, into[wide * i : wide * j])
            then(result[8 * i // bits : 8 * j // bits], start=8 * i // bits)

        each_block(whole, look_up, BLOCK * bits // 8)
        if full < n:
            values[full:] = each[source[whole], : n - full]
            then(result[full:], start=full)
        return result
    each_block(
        groups,
        lambda i, j: _unpack(source[bits * i : bits * j], bits, entries, values[8 * i : 8 * j]),
        GROUPS,
    )
    if n % 8:
        last, found = np.zeros(bits, np.uint8), np.empty(8, entries.dtype)
        octets = source[bits * groups :][:bits]
        last[: len(octets)] = octets
        _unpack(last, bits, entries, found)
        values[8 * groups :] = found[: n % 8]
    then(result, start=0)
    return result


GROUPS = BLOCK // 8
"""Groups of eight codes handled at once."""


@numba.njit(nogil=True, cache=True)
def pack_signs(bits: np.ndarray, packed: np.ndarray) -> np.int32:
    """The signs of the values whose ``bits`` these are; returns the largest magnitude's bits."""
    worst, words = np.int32(0), bits.size // vectors.LANES
    octets = packed[: 8 * words].view(np.uint64)
    for word in range(words):
        octets[word] = vectors.negative(bits, word * vectors.LANES)
        worst = max(worst, vectors.largest_of(bits, word * vectors.LANES))
    rest = bits[words * vectors.LANES :]
    for octet in range(8 * words, packed.size):
        signs = np.uint64(0)
        first = 8 * octet - vectors.LANES * words
        for i in range(first, min(first + 8, rest.size)):
            below = rest[i] < 0 and rest[i] != np.int32(-(2**31))
            signs |= np.uint64(below) << np.uint64(7 - i % 8)
        packed[octet] = np.uint8(signs)
    return max(worst, vectors.largest(rest))


@numba.njit(nogil=True, cache=True)
def _pack(codes: np.ndarray, bits: int, packed: np.ndarray) -> None:
    wide = np.uint64(bits)
    for group in range(codes.size // 8):
        word = np.uint64(0)
        for code in range(8):
            word = (word << wide) | np.uint64(codes[8 * group + code])
        for octet in range(bits):
            packed[bits * group + octet] = (word >> np.uint64(8 * (bits - 1 - octet))) & 255


@numba.njit(nogil=True, cache=True)
def _unpack_few(packed: np.ndarray, bits: int, table: np.ndarray, values: np.ndarray) -> bool:
    """Set ``values`` to the table's entries; whether a bit beyond the last code is set."""
    end = values.size * bits
    for i in range(values.size):
        octet, at = divmod(i * bits, 8)
        word = np.int64(packed[octet]) << 8
        if at + bits > 8:
            word |= np.int64(packed[octet + 1])
        values[i] = table[(word >> (16 - at - bits)) & ((1 << bits) - 1)]
    unused = False
    for octet in range(end // 8, packed.size):
        unused |= (packed[octet] & (255 >> (end % 8 if octet == end // 8 else 0))) != 0
    return unused


@numba.njit(nogil=True, cache=True)
def _unpack(packed: np.ndarray, bits: int, table: np.ndarray, values: np.ndarray) -> None:
    wide, mask = np.uint64(bits), np.uint64((1 << bits) - 1)
    for group in range(values.size // 8):
        word = np.uint64(0)
        for octet in range(bits):
            word = (word << np.uint64(8)) | np.uint64(packed[bits * group + octet])
        for code in range(8):
            values[8 * group + code] = table[(word >> (wide * np.uint64(7 - code))) & mask]


@numba.njit(nogil=True, cache=True)
def spread(packed: np.ndarray, words: np.ndarray, values: np.ndarray) -> None:
    """What each octet stands for, (256, 1, 2 or 4) ``words`` of two float32, side by side."""
    if words.shape[1] == 4:
        for octet in range(packed.size):
            for word in range(4):
                values[4 * octet + word] = words[packed[octet], word]
    elif words.shape[1] == 2:
        for octet in range(packed.size):
            for word in range(2):
                values[2 * octet + word] = words[packed[octet], word]
    else:
        for octet in range(packed.size):
            values[octet] = words[packed[octet], 0]


@numba.njit(nogil=True, cache=True)
def _any(packed: np.ndarray, flagged: np.ndarray) -> bool:
    found = False
    for octet in range(packed.size):
        found |= flagged[packed[octet]]
    return found


Pairs = tuple[np.ndarray, np.ndarray]
"""(m,) float32 values and (m,) int64 indices, ascending without repeats."""


def write_halved_pairs(values: np.ndarray, indices: np.ndarray) -> bytes:
    """Pairs as bytes: all values as float16, those beyond its range as its ends, then all indices
    as int32."""
    most = np.finfo(np.float16).max
    return join((np.clip(values, -most, most), "float16"), (indices, "int32"))


def read_halved_pairs(body: bytes, n: int, what: str) -> Pairs:
    """Pairs of a tensor of ``n`` values from :func:`write_halved_pairs`'s bytes."""
    if len(body) % 6:
        raise ValueError(f"{what}: body of {len(body)} bytes is not whole pairs of 6")
    count = len(body) // 6
    values = np.frombuffer(body, "<f2", count).astype(np.float32)
    if not np.isfinite(values).all():
        raise ValueError(f"{what}: a value is NaN or infinite")
    return values, read_indices(body[2 * count :], count, n, what)


def write_pairs(values: np.ndarray, indices: np.ndarray, padded_to: int | None = None) -> bytes:
    """Pairs as bytes: all values as float32, then all indices.

    ``padded_to`` fills up with (PAD_VALUE, PAD_INDEX) to that many pairs and writes indices as
    float32, which is GeoMX's form; otherwise indices are int32 and there is no padding.
    """
    if padded_to is None:
        return join((values, "float32"), (indices, "int32"))
    if len(values) > padded_to:
        raise ValueError(f"{len(values)} pairs do not fit into a body of {padded_to}")
    body = np.empty(2 * padded_to, "<f4")
    body[:padded_to] = PAD_VALUE
    body[padded_to:] = PAD_INDEX
    body[: len(values)] = values
    body[padded_to : padded_to + len(indices)] = indices
    return body.tobytes()


def read_pairs(body: bytes, n: int, what: str, padded: bool = False) -> Pairs:
    """Pairs of a tensor of ``n`` values from :func:`write_pairs`'s bytes."""
    if len(body) % 8:
        raise ValueError(f"{what}: body of {len(body)} bytes is not whole pairs of 8")
    count = len(body) // 8
    values = np.frombuffer(body, "<f4", count)
    indices = np.frombuffer(body, "<f4" if padded else "<i4", count, offset=4 * count)
    if padded:
        if not np.isfinite(indices).all() or (indices != np.trunc(indices)).any():
            raise ValueError(f"{what}: an index is not a whole number")
        used = count - int(np.count_nonzero(indices == PAD_INDEX))
        if (indices[used:] != PAD_INDEX).any() or (values[used:] != PAD_VALUE).any():
            raise ValueError(f"{what}: padding is not ({PAD_VALUE:g}, {PAD_INDEX}) at the end")
        values, indices = values[:used], indices[:used]
    indices = _check_indices(indices, n, what)
    if not np.isfinite(values).all():
        raise ValueError(f"{what}: a value is NaN or infinite")
    return values.astype(np.float32), indices


def read_indices(body: bytes | memoryview, count: int, n: int, what: str) -> np.ndarray:
    """(count,) int64 ascending indices below ``n`` from exactly their bytes as int32."""
    return _check_indices(np.frombuffer(check_length(body, 4 * count, what), "<i4"), n, what)


def _check_indices(indices: np.ndarray, n: int, what: str) -> np.ndarray:
    inside, ascending = _placed(indices, n)
    if not inside:
        raise ValueError(f"{what}: an index lies outside 0…{n - 1}")
    if not ascending:
        raise ValueError(f"{what}: indices do not ascend")
    return indices.astype(np.int64)


@numba.njit(nogil=True, cache=True)
def _placed(indices: np.ndarray, n: int) -> tuple[bool, bool]:
    """Whether all are in 0 … n - 1, and whether they ascend."""
    inside, ascending = True, True
    for i in range(indices.size):
        inside &= 0 <= indices[i] < n
        ascending &= i == 0 or indices[i - 1] < indices[i]
    return inside, ascending


def scatter(pairs: Pairs, n: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """(n,) float32 tensor that holds the pairs, 0 elsewhere."""
    values, indices = pairs
    dense = buffers.zeros(n)
    _put(dense.numpy(), indices, values)
    return dense.to(device)


@numba.njit(nogil=True, cache=True)
def _put(dense: np.ndarray, indices: np.ndarray, values: np.ndarray) -> None:
    for i in range(indices.size):
        dense[indices[i]] = values[i]


def union_sum(parties: Sequence[Pairs]) -> Pairs:
    """Pairs over the union of the parties' indices; values of one index add in party order."""
    return reduce(lambda so_far, party: _add_pairs(*so_far, *party), parties)


@numba.njit(nogil=True, cache=True)
def _add_pairs(values: np.ndarray, indices: np.ndarray, more: np.ndarray, at: np.ndarray) -> Pairs:
    total = np.empty(len(values) + len(more), np.float32)
    union = np.empty(len(total), np.int64)
    i = j = size = 0
    while i < len(values) and j < len(more):
        if indices[i] < at[j]:
            total[size], union[size] = values[i], indices[i]
            i += 1
        elif indices[i] > at[j]:
            total[size], union[size] = more[j], at[j]
            j += 1
        else:
            total[size], union[size] = values[i] + more[j], at[j]
            i, j = i + 1, j + 1
        size += 1
    for left in range(i, len(values)):
        total[size], union[size] = values[left], indices[left]
        size += 1
    for left in range(j, len(more)):
        total[size], union[size] = more[left], at[left]
        size += 1
    return total[:size], union[:size]


def _wire(dtype: str) -> np.dtype:
    return np.dtype(dtype).newbyteorder("<")
