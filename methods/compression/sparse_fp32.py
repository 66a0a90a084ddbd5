"""The largest values of a model's change, with their indices."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from slowlink.methods.compression import Combine, Compressor, Key, Payload, Work
from slowlink.methods.compression.pieces import memory, packing, sampling

MAGIC, HEAD = b"S4\x00\x01", struct.Struct("<4sii")


@dataclass
class SparseFp32(Compressor):
    """Sends the k = ⌊ratio·n⌋ values of largest magnitude, at least 1; of equal ones, the first.

    Body (``s4``), little-endian: "S4", 0, 1, n and k as int32; the indices as int32, ascending;
    the values as float32: 12 + 8k bytes. The decoder takes more pairs than k too, but not fewer:
    DDS's clients send all that equal the least.

    Parameters
    ----------
    ratio: share of values sent, in (0, 1].
    error_feedback: add what was not sent to the next gradient (DDS does not).
    """

    summary: ClassVar[str] = "exactly the k largest values, all parties' decoded by the server"
    source: ClassVar[str] = "DDS [@dds], FP32 sparse (S4)"
    combine: ClassVar[Combine] = "gather"

    ratio: float = 0.1
    error_feedback: bool = False

    def __post_init__(self) -> None:
        self._require("ratio", float, "a number in (0, 1]", lambda x: 0 < x <= 1)
        self._require("error_feedback", bool, "true or false")

    @property
    def encode_work(self) -> Work:
        passes, kernels = (1.7, 31) if self.error_feedback else (0.6, 28)
        return Work(passes=passes, kernels=kernels, selections=1)

    @property
    def decode_work(self) -> Work:
        return Work(passes=2, kernels=16)

    def payload_bytes(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (HEAD.size + 8 * sampling.share_of_any(math.prod(shape), self.ratio),)

    def compress(self, tensor: torch.Tensor, key: Key) -> Payload:
        flat = self._unchecked(tensor, key)
        n, k = flat.numel(), sampling.share_of_any(flat.numel(), self.ratio)
        residual = self._memory(key, flat, "residual")["residual"] if self.error_feedback else None
        values, sent = memory.take_largest(flat, k, self._what(key), residual)
        head = HEAD.pack(MAGIC, n, k)
        body = packing.join((sent, "int32"), (values, "float32"), head=head)
        return self._payload(body, tensor.shape, "s4")

    def decompress(self, payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
        n, what = self._expect(payload, {"s4": ("",)}), "sparse_fp32 s4"
        values, k = packing.read_head(HEAD, payload.body, MAGIC, what)
        least = sampling.share_of_any(n, self.ratio)
        if values != n or k < least:  # a short body must not be able to ask for a huge tensor
            raise ValueError(
                f"{what}: head says {k} of {values} values, the shape needs {least} or more of {n}"
            )
        packing.check_length(payload.body, HEAD.size + 8 * k, what)
        at, body = HEAD.size + 4 * k, memoryview(payload.body)
        indices = packing.read_indices(body[HEAD.size : at], k, n, what)
        found = packing.from_bytes(body[at:], "float32", k, what)
        return packing.scatter((found.numpy(), indices), n, device).view(payload.shape)
