"""One bit a value: the sign, and the majority's where parties meet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from slowlink.methods.compression import Combine, Compressor, Key, Payload, Work, alike
from slowlink.methods.compression.pieces import packing

SIGNS = torch.tensor([1.0, -1.0])


@dataclass
class SignSgd(Compressor):
    """The sign of each value, 0 as +; where payloads meet, the majority of them votes, a tie is +.

    The aggregate is the vote's ±1, not a sum, and a vote over votes counts each as one party. The
    format has no zero and no scale: the learning rate alone sets the step.

    Body (``signs``): a bit a value, 1 for negative, the first value in the highest bit: ⌈n/8⌉
    bytes, up and down.
    """

    summary: ClassVar[str] = "signs, and a majority vote"
    source: ClassVar[str] = "Bernstein et al. [@bernstein2018signsgd], alg. 3 (Sketch-Fusion [7])"
    combine: ClassVar[Combine] = "merge"
    encode_work: ClassVar[Work] = Work(passes=0.5, kernels=7)
    decode_work: ClassVar[Work] = Work(passes=1.8, kernels=12)
    adds: ClassVar[bool] = False

    def compress(self, tensor: torch.Tensor, key: Key) -> Payload:
        flat = self._unchecked(tensor, key)
        return self._signs(packing.write_signs(flat, self._what(key)), tensor.shape)

    def decompress(self, payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
        n, what = self._expect(payload, {"signs": ("",)}), "sign_sgd signs"
        packed = packing.from_bytes(payload.body, "uint8", -(-n // 8), what, device)
        return packing.unpack_levels(packed, 1, SIGNS.to(device), n, what).view(payload.shape)

    def merge(self, payloads: Sequence[Payload], key: Key = None) -> Payload:
        n, what = self._expect(alike(payloads), {"signs": ("",)}), "sign_sgd signs"
        against = np.zeros(n, np.min_scalar_type(2 * len(payloads)))
        for payload in payloads:
            packed = packing.from_bytes(payload.body, "uint8", -(-n // 8), what)
            against += packing.unpack(packed, 1, n, what).numpy()
        outvoted = torch.from_numpy((2 * against > len(payloads)).view(np.uint8))
        return self._signs(packing.to_bytes(packing.pack(outvoted, 1), "uint8"), payloads[0].shape)

    def payload_bytes(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (-(-math.prod(shape) // 8),)

    def answer_bytes(self, shape: Sequence[int], parties: int) -> tuple[int, ...]:
        return self.payload_bytes(shape)  # a vote is as long as a ballot

    def _signs(self, body: bytes, shape: Sequence[int]) -> Payload:
        return self._payload(body, shape, "signs")
