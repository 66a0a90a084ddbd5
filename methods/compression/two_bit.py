"""Two bits a value: threshold quantisation with a residual."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from slowlink.methods.compression import Combine, Compressor, Key, Payload, Work, alike
from slowlink.methods.compression.pieces import packing, quantising

NEGATIVE, POSITIVE = 0b10, 0b11
PER_WORD = 16


@dataclass
class TwoBit(Compressor):
    """Sends +threshold, 0 or -threshold; what was not sent stays in the residual.

    Each step ``r += g``; values of ``r`` at or above the threshold are sent as 11 (binary), those
    at or below its negative as 10, others as 00, and what was sent is subtracted from ``r``. Four
    codes make a byte, the first in its highest bits; sixteen make a 32-bit word, so a body has
    4·⌈n/16⌉ bytes. The server decodes and sums, and answers in dense float32.

    Parameters
    ----------
    threshold: magnitude of the values sent, > 0.
    """

    summary: ClassVar[str] = "threshold quantisation to 2 bits with a residual"
    source: ClassVar[str] = (
        "GeoMX §2 [9]; Strom [@strom2015scalable]; MXNet gradient_compression-inl.h"
    )
    combine: ClassVar[Combine] = "merge"
    encode_work: ClassVar[Work] = Work(passes=2.1, kernels=14)
    decode_work: ClassVar[Work] = Work(passes=1.5, kernels=22)

    threshold: float = 0.5

    def __post_init__(self) -> None:
        self._require(
            "threshold",
            float,
            "a number > 0 that float32 holds",
            lambda t: 0 < torch.tensor(float(t), dtype=torch.float32).item() < math.inf,
        )

    def compress(self, tensor: torch.Tensor, key: Key) -> Payload:
        flat = self._flat(tensor, key)
        residual = self._memory(key, flat, "residual")["residual"]
        codes = quantising.threshold_codes(flat, residual, self.threshold, (NEGATIVE, POSITIVE))
        packed = packing.pack(codes, 2)
        missing = -packed.numel() % 4
        packed = torch.nn.functional.pad(packed, (0, missing)) if missing else packed
        return self._payload(packing.to_bytes(packed, "uint8"), tensor.shape, "2bit")

    def decompress(self, payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
        n = self._expect(payload, {"2bit": ("",), "dense": ("float32",)})
        if payload.form == "dense":
            return self._read_dense(payload, device).view(payload.shape)
        size = self.payload_bytes(payload.shape)[0]
        packed = packing.from_bytes(payload.body, "uint8", size, "two_bit 2bit", device)
        levels = torch.tensor([0.0, torch.nan, -self.threshold, self.threshold], device=device)
        return packing.unpack_levels(packed, 2, levels, n, "two_bit 2bit").view(payload.shape)

    def merge(self, payloads: Sequence[Payload], key: Key = None) -> Payload:
        shape = alike(payloads).shape
        return self._dense(sum(self.decompress(payload) for payload in payloads), shape)

    def payload_bytes(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (-(-math.prod(shape) // PER_WORD) * 4,)

    def answer_bytes(self, shape: Sequence[int], parties: int) -> tuple[int, ...]:
        return (4 * math.prod(shape),)
