"""Eight-bit values, scaled a chunk at a time."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from slowlink.methods.compression import MAX_VALUES, Combine, Compressor, Key, Payload, Work
from slowlink.methods.compression.pieces import memory, packing, quantising

MAGIC, HEAD = b"Q8\x00\x01", struct.Struct("<4siqi")


@dataclass
class Int8Blocks(Compressor):
    """Each value as the nearest multiple, of at most ±127, of its chunk's largest magnitude / 127.

    Rounding is off by half a scale at most, and not random. Of two equally near multiples it takes
    the even one.

    Body (``q8``), little-endian: "Q8", 0, 1, the chunk as int32, the number of values as int64,
    the number of chunks as int32; a float32 scale a chunk; an int8 a value:
    20 + n + 4·⌈n/chunk⌉ bytes. The decoder takes the chunk from there.

    Parameters
    ----------
    chunk: values that share a scale.
    error_feedback: add what rounding lost to the next gradient (DDS does not).
    """

    summary: ClassVar[str] = "eight bits a value, scaled by each chunk's largest"
    source: ClassVar[str] = "DDS, INT8 quantisation; head from its code"
    combine: ClassVar[Combine] = "gather"

    chunk: int = 1024
    error_feedback: bool = False

    def __post_init__(self) -> None:
        self._require(
            "chunk", int, f"a whole number in 1…{MAX_VALUES}", lambda c: 1 <= c <= MAX_VALUES
        )
        self._require("error_feedback", bool, "true or false")

    @property
    def encode_work(self) -> Work:
        return Work(passes=2.9, kernels=21) if self.error_feedback else Work(passes=1.7, kernels=19)

    @property
    def decode_work(self) -> Work:
        return Work(passes=1.2, kernels=17)

    def payload_bytes(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (HEAD.size + quantising.blocks_bytes(math.prod(shape), self.chunk),)

    def compress(self, tensor: torch.Tensor, key: Key) -> Payload:
        flat = self._flat(tensor, key)
        if self.error_feedback:
            flat = memory.accumulate(flat, self._memory(key, flat, "residual")["residual"])
        scales, codes = quantising.to_blocks(flat, self.chunk)
        if self.error_feedback:
            flat.sub_(quantising.from_blocks(scales, codes, self.chunk))
        head = HEAD.pack(MAGIC, self.chunk, flat.numel(), scales.numel())
        body = packing.join((scales, "float32"), (codes, "int8"), head=head)
        return self._payload(body, tensor.shape, "q8")

    def decompress(self, payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
        n, what = self._expect(payload, {"q8": ("",)}), "int8_blocks q8"
        chunk, values, chunks = packing.read_head(HEAD, payload.body, MAGIC, what)
        if values != n or chunk < 1 or chunks != -(-n // chunk):
            raise ValueError(
                f"{what}: head says {values} values in {chunks} chunks of {chunk}, the shape has "
                f"{n} values"
            )
        packing.check_length(payload.body, HEAD.size + quantising.blocks_bytes(n, chunk), what)
        rest = memoryview(payload.body)[HEAD.size :]
        return quantising.read_blocks(rest, n, chunk, what, device).view(payload.shape)
