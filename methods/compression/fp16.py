"""Half precision on the wire."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from slowlink.methods.compression import LARGEST_HALF, Combine, Compressor, Key, Payload, Work
from slowlink.methods.compression.pieces import packing


@dataclass
class Fp16(Compressor):
    """Every value rounded to the nearest float16: 2n bytes. Bodies add in float32, rounded once.

    Values beyond ±65504 saturate instead of becoming infinite; ``state[key]["saturated"]`` counts
    them. Values up to 2⁻²⁵ in magnitude become 0.
    """

    summary: ClassVar[str] = "half-precision values"
    source: ClassVar[str] = "GeoMX §4 [8]; Narang et al. 2018 [@micikevicius2018mixed]"
    combine: ClassVar[Combine] = "sum"
    elementwise: ClassVar[bool] = True
    encode_work: ClassVar[Work] = Work(passes=0.9, kernels=8)
    decode_work: ClassVar[Work] = Work(passes=1, kernels=7)

    def compress(self, tensor: torch.Tensor, key: Key, factor: float = 1.0) -> Payload:
        flat = self._unchecked(tensor, key)
        body, beyond = packing.write_halves(flat, self._what(key), LARGEST_HALF, factor)
        if beyond:
            state = self._memory(key, flat)
            state["saturated"] = state.get("saturated", 0) + beyond
        return self._payload(body, tensor.shape, "dense", "float16")

    def decompress(self, payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
        self._expect(payload, {"dense": ("float16",)})
        return self._read_dense(payload, device).view(payload.shape)

    def payload_bytes(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (2 * math.prod(shape),)
