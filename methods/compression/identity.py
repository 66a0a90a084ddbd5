"""No compression: the values themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from slowlink.methods.compression import Combine, Compressor, Key, Payload, Work


@dataclass
class Identity(Compressor):
    """Every value as little-endian float32: 4n bytes. Bodies add elementwise."""

    summary: ClassVar[str] = "no compression, float32"
    source: ClassVar[str] = "baseline"
    combine: ClassVar[Combine] = "sum"
    elementwise: ClassVar[bool] = True
    encode_work: ClassVar[Work] = Work()
    decode_work: ClassVar[Work] = Work()

    def compress(self, tensor: torch.Tensor, key: Key, factor: float = 1.0) -> Payload:
        flat = self._flat(tensor, key)
        return self._dense(flat if factor == 1 else flat * factor, tensor.shape)

    def decompress(self, payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
        self._expect(payload, {"dense": ("float32",)})
        return self._read_dense(payload, device).view(payload.shape)

    def payload_bytes(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (4 * math.prod(shape),)
