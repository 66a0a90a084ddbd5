"""Tensors to bytes and back: plain arrays, packed small codes, (value, index) pairs.

Everything is little-endian. Readers take bytes from strangers: what is not exactly right is a
ValueError that names ``what`` was read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

PAD_VALUE, PAD_INDEX = -65530.0, -1
"""What fills unused pairs of a padded body (GeoMX, gradient_compression.cc)."""

FLOAT_INDEX_LIMIT = 2**24
"""Values a tensor may have where indices travel as float32: beyond, they are not exact."""


def to_bytes(tensor: torch.Tensor, dtype: str) -> bytes:
    """The elements of ``tensor`` as little-endian ``dtype`` (cast where it differs)."""
    little = np.dtype(dtype).newbyteorder("<")
    return tensor.cpu().numpy().astype(little, copy=False).tobytes()


def from_bytes(
    body: bytes | memoryview, dtype: str, count: int, what: str, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """(count,) tensor read from exactly its bytes; floats must be finite."""
    array = np.frombuffer(check_length(body, count * np.dtype(dtype).itemsize, what), _wire(dtype))
    tensor = torch.from_numpy(array.astype(np.dtype(dtype))).to(device)
    return check_finite(tensor, what)


def check_length(body: bytes | memoryview, expected: int, what: str) -> bytes | memoryview:
    """``body`` if it has ``expected`` bytes, else ValueError."""
    if len(body) != expected:
        raise ValueError(f"{what}: body has {len(body)} bytes, its shape needs {expected}")
    return body


def check_finite(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """``tensor`` if all of it is finite, else ValueError."""
    # One sum is much faster than isfinite, and not finite wherever a term is not.
    if tensor.is_floating_point() and not tensor.sum(dtype=_summing(tensor)).isfinite():
        bad = int((~tensor.isfinite()).sum())
        if bad:
            raise ValueError(f"{what}: {bad} of {tensor.numel()} values are NaN or infinite")
    return tensor


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """(n,) uint8 codes below 2**bits to ⌈n·bits/8⌉ uint8, the first code in the highest bits.

    ``bits`` divides 8; unused bits of the last byte are 0.
    """
    per_byte = 8 // bits
    missing = -codes.numel() % per_byte
    if missing:
        codes = torch.nn.functional.pad(codes, (0, missing))
    columns = codes.view(-1, per_byte)
    packed = columns[:, 0] << (8 - bits)
    for column in range(1, per_byte):
        packed |= columns[:, column] << (8 - bits * (column + 1))
    return packed


def unpack(packed: torch.Tensor, bits: int, n: int, what: str) -> torch.Tensor:
    """(n,) uint8 codes from :func:`pack`'s bytes; bits beyond the n-th code must be 0."""
    per_byte = 8 // bits
    columns = [(packed >> (8 - bits * (c + 1))) & (2**bits - 1) for c in range(per_byte)]
    codes = torch.stack(columns, dim=1).view(-1)
    if codes[n:].any():
        raise ValueError(f"{what}: bits beyond the last code are not 0")
    return codes[:n]


def unpack_levels(
    packed: torch.Tensor, bits: int, levels: torch.Tensor, n: int, what: str
) -> torch.Tensor:
    """(n,) float32 ``levels[code]`` of :func:`pack`'s codes; a NaN level is a forbidden code.

    Equals ``levels[unpack(...)]``, a byte at a time by a table of all 256.
    """
    per_byte = 8 // bits
    every = torch.arange(256, dtype=torch.uint8, device=packed.device)
    table = levels[unpack(every, bits, 256 * per_byte, what).int()].view(256, per_byte)
    last = n // per_byte
    unpack(packed[last:], bits, n - last * per_byte, what)
    if table.isnan().any(1)[packed.int()].any():
        raise ValueError(f"{what}: a {bits}-bit code stands for nothing")
    return table.index_select(0, packed.int()).view(-1)[:n]


Pairs = tuple[np.ndarray, np.ndarray]
"""(m,) float32 values and (m,) int64 indices, ascending without repeats."""


def write_pairs(values: np.ndarray, indices: np.ndarray, padded_to: int | None = None) -> bytes:
    """Pairs as bytes: all values as float32, then all indices.

    ``padded_to`` fills up with (PAD_VALUE, PAD_INDEX) to that many pairs and writes indices as
    float32, which is GeoMX's form; otherwise indices are int32 and there is no padding.
    """
    if padded_to is None:
        return values.astype("<f4").tobytes() + indices.astype("<i4").tobytes()
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
    if len(indices) and not (indices.min() >= 0 and indices.max() < n):
        raise ValueError(f"{what}: an index lies outside 0…{n - 1}")
    indices = indices.astype(np.int64)
    if (np.diff(indices) <= 0).any():
        raise ValueError(f"{what}: indices do not ascend")
    if not np.isfinite(values).all():
        raise ValueError(f"{what}: a value is NaN or infinite")
    return values, indices


def scatter(pairs: Pairs, n: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """(n,) float32 tensor that holds the pairs, 0 elsewhere."""
    dense = torch.zeros(n, dtype=torch.float32, device=device)
    values, indices = (torch.tensor(part, device=device) for part in pairs)
    dense[indices] = values.to(torch.float32)
    return dense


def union_sum(parties: Sequence[Pairs]) -> Pairs:
    """Pairs over the union of the parties' indices; values of one index add in party order."""
    values = np.concatenate([values for values, _ in parties])
    union, place = np.unique(np.concatenate([i for _, i in parties]), return_inverse=True)
    total = np.zeros(len(union), np.float32)
    np.add.at(total, place, values)
    return total, union


def _wire(dtype: str) -> np.dtype:
    return np.dtype(dtype).newbyteorder("<")


def _summing(tensor: torch.Tensor) -> torch.dtype:
    return torch.float32 if tensor.dtype == torch.float16 else tensor.dtype
