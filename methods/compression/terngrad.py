"""Three levels a tensor, unbiased by random rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from slowlink.methods.compression import Combine, Compressor, Key, Payload, Work
from slowlink.methods.compression.pieces import quantising

BITS, LEVELS = 2, 1


@dataclass
class Terngrad(Compressor):
    """Sends ±s with probability |g|/s, else 0, where s is the tensor's largest magnitude.

    First, magnitudes above ``clip`` standard deviations of the tensor's values (about their mean)
    are cut to that, which makes s and the error smaller and the result biased. A tensor of equal
    values is not clipped; one of nearly equal values is cut to nearly nothing, as the rule has it.
    Each party has its own s (the paper's scaler sharing is left out).

    Body (``ternary``): s as float32, then two bits a value (00 is 0, 01 is s, 11 is -s), the first
    value in the highest bits: 4 + ⌈n/4⌉ bytes. All parties' payloads are decoded and added.

    Parameters
    ----------
    clip: standard deviations kept, 0 for no clipping.
    seed: of the rounding.
    party: which party this is; parties of one seed must differ in it to round independently.
    """

    summary: ClassVar[str] = "random rounding to three levels, after clipping"
    source: ClassVar[str] = "Wen et al. 2017 [@wen2017terngrad], §3"
    combine: ClassVar[Combine] = "gather"
    encode_work: ClassVar[Work] = Work(passes=0.8, kernels=16, draws=1)
    decode_work: ClassVar[Work] = Work(passes=2.6, kernels=24)

    clip: float = 2.5
    seed: int = 0
    party: int = 0

    def __post_init__(self) -> None:
        self._require("clip", float, "a number >= 0", lambda c: c >= 0)
        for name in ("seed", "party"):
            self._require(name, int, "a whole number")

    def compress(self, tensor: torch.Tensor, key: Key) -> Payload:
        flat = self._unchecked(tensor, key)
        scale = quantising.clipped_largest(flat, self.clip, self._what(key))
        state = self._memory(key, flat)
        draw = quantising.stream(self.seed, self.party, key, state["step"])
        state["step"] += 1
        # Magnitudes above the scale count as the scale, so this clips too.
        return self._payload(quantising.ternary(flat, scale, draw), tensor.shape, "ternary")

    def decompress(self, payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
        n = self._expect(payload, {"ternary": ("",)})
        levels = quantising.signed_levels(LEVELS)
        flat = quantising.read_scaled(payload.body, BITS, levels, n, "terngrad ternary", device)
        return flat.view(payload.shape)

    def payload_bytes(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (quantising.scaled_bytes(math.prod(shape), BITS),)
