"""One bit a value: scaled signs with error feedback."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from slowlink.methods.compression import Combine, Compressor, Key, Payload, Work
from slowlink.methods.compression.pieces import quantising

SIGNS = torch.tensor([1.0, -1.0])


@dataclass
class EfSignSgd(Compressor):
    """Signs times the mean magnitude of the tensor; what was not sent is added to the next one.

    Each step p = gradient + residual; sent is mean|p|·sign(p), 0 as +, and the residual is p
    less what was sent. Its squared norm is (1 - ‖p‖₁²/(n·‖p‖²))·‖p‖², so less than p's. Kept are p
    (``sum``) and the mean (``scale``), which are the residual in one pass fewer.

    Body (``scaled``): the scale as float32, then a bit a value, 1 for negative, the first value
    in the highest bit: 4 + ⌈n/8⌉ bytes. All parties' payloads are decoded and added.
    """

    summary: ClassVar[str] = "scaled signs with error feedback"
    source: ClassVar[str] = "Karimireddy et al. [@karimireddy2019error], algorithm 1 (EF-SignSGD)"
    combine: ClassVar[Combine] = "gather"
    encode_work: ClassVar[Work] = Work(passes=1.9, kernels=10)
    decode_work: ClassVar[Work] = Work(passes=1.9, kernels=22)

    def compress(self, tensor: torch.Tensor, key: Key) -> Payload:
        flat = self._unchecked(tensor, key)
        state = self._memory(key, flat, "sum")
        total, sent = state["sum"], state.get("scale", 0.0)
        body, state["scale"] = quantising.scaled_signs(flat, total, sent, self._what(key))
        return self._payload(body, tensor.shape, "scaled")

    def decompress(self, payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
        n = self._expect(payload, {"scaled": ("",)})
        flat = quantising.read_scaled(payload.body, 1, SIGNS, n, "ef_sign_sgd scaled", device)
        return flat.view(payload.shape)

    def payload_bytes(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (quantising.scaled_bytes(math.prod(shape), 1),)
