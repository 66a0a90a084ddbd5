"""The largest values of a model's change as eight bits each, with their indices."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from slowlink.methods.compression import MAX_VALUES, Combine, Compressor, Key, Payload, Work
from slowlink.methods.compression.pieces import memory, packing, quantising, sampling

MAGIC, HEAD = b"SQ\x00\x01", struct.Struct("<4siiii")


@dataclass
class SparseInt8(Compressor):
    """The k = ⌊ratio·n⌋ values of largest magnitude, at least 1, quantised ``chunk`` at a time.

    A chunk is of values sent, in the order of their indices; each becomes the nearest multiple, of
    at most ±127, of the chunk's largest magnitude / 127.

    Body (``sq8``), little-endian: "SQ", 0, 1, n, k, the chunk and the number of chunks as int32;
    the indices as int32, ascending; a float32 scale a chunk; an int8 a value:
    20 + 5k + 4·⌈k/chunk⌉ bytes. The decoder takes the chunk from there, and more pairs than k, but
    not fewer: DDS's clients send all that equal the least.

    Parameters
    ----------
    ratio: share of values sent, in (0, 1].
    chunk: values that share a scale.
    error_feedback: add what was not sent, and what rounding lost, to the next gradient (DDS does
        not).
    """

    summary: ClassVar[str] = "the k largest values, eight bits each"
    source: ClassVar[str] = "DDS, sq8 (SQ8); head from its code"
    combine: ClassVar[Combine] = "gather"

    ratio: float = 0.1
    chunk: int = 1024
    error_feedback: bool = False

    def __post_init__(self) -> None:
        self._require("ratio", float, "a number in (0, 1]", lambda x: 0 < x <= 1)
        self._require(
            "chunk", int, f"a whole number in 1…{MAX_VALUES}", lambda c: 1 <= c <= MAX_VALUES
        )
        self._require("error_feedback", bool, "true or false")

    @property
    def encode_work(self) -> Work:
        passes, kernels = (2, 38) if self.error_feedback else (0.6, 34)
        return Work(passes=passes, kernels=kernels, selections=1)

    @property
    def decode_work(self) -> Work:
        return Work(passes=2, kernels=23)

    def payload_bytes(self, shape: Sequence[int]) -> tuple[int, ...]:
        k = sampling.share_of_any(math.prod(shape), self.ratio)
        return (HEAD.size + 4 * k + quantising.blocks_bytes(k, self.chunk),)

    def compress(self, tensor: torch.Tensor, key: Key) -> Payload:
        flat = self._unchecked(tensor, key)
        n, k = flat.numel(), sampling.share_of_any(flat.numel(), self.ratio)
        residual = self._memory(key, flat, "residual")["residual"] if self.error_feedback else None
        values, sent = memory.take_largest(flat, k, self._what(key), residual)
        scales, codes = quantising.to_blocks(values, self.chunk)
        if residual is not None:
            residual[sent] = values - quantising.from_blocks(scales, codes, self.chunk)
        head = HEAD.pack(MAGIC, n, k, self.chunk, scales.numel())
        body = packing.join((sent, "int32"), (scales, "float32"), (codes, "int8"), head=head)
        return self._payload(body, tensor.shape, "sq8")

    def decompress(self, payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
        n, what = self._expect(payload, {"sq8": ("",)}), "sparse_int8 sq8"
        values, k, chunk, chunks = packing.read_head(HEAD, payload.body, MAGIC, what)
        least = sampling.share_of_any(n, self.ratio)
        # A short body must not be able to ask for a huge tensor.
        if values != n or k < least or chunk < 1 or chunks != -(-k // chunk):
            raise ValueError(
                f"{what}: head says {k} of {values} values in {chunks} chunks of {chunk}, the "
                f"shape needs {least} or more of {n}"
            )
        at = HEAD.size + 4 * k
        packing.check_length(payload.body, at + quantising.blocks_bytes(k, chunk), what)
        body = memoryview(payload.body)
        indices = packing.read_indices(body[HEAD.size : at], k, n, what)
        found = quantising.read_blocks(body[at:], k, chunk, what, "cpu")
        return packing.scatter((found.numpy(), indices), n, device).view(payload.shape)
