"""Half precision on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from methods.compression import LARGEST_HALF, Combine, Compressor, Key, Payload


@dataclass
class Fp16(Compressor):
    """Every value rounded to the nearest float16: 2n bytes. Bodies add in float32, rounded once.

    Values beyond ±65504 saturate instead of becoming infinite; ``state[key]["saturated"]`` counts
    them. Values below 2⁻²⁵ in magnitude become 0.
    """

    summary: ClassVar[str] = "half-precision values"
    source: ClassVar[str] = "GeoMX §4 [8]; Narang et al. 2018"
    combine: ClassVar[Combine] = "sum"

    def compress(self, tensor: torch.Tensor, key: Key) -> Payload:
        flat = self._flat(tensor, key)
        if flat.numel() and max(map(abs, flat.aminmax())) > LARGEST_HALF:
            state = self._memory(key, flat)
            beyond = int((flat.abs() > LARGEST_HALF).sum())
            state["saturated"] = state.get("saturated", 0) + beyond
        return self._dense(flat, tensor.shape, "float16")

    def decompress(self, payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
        self._expect(payload, {"dense": ("float16",)})
        return self._read_dense(payload, device).view(payload.shape)
