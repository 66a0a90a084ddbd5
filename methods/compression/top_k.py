"""Top-k: the values of largest magnitude, exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from slowlink.methods.compression import Combine, Compressor, Key, Payload, Work, alike
from slowlink.methods.compression.pieces import memory, packing, sampling


@dataclass
class TopK(Compressor):
    """Sends the k = max(1, ⌈ratio·n⌉) values of largest magnitude; of equal ones, the first.

    With error feedback ``r += g``, the largest of ``r`` are sent and zeroed there.

    Body (``pairs``): the values as float32, then their indices as int32, ascending; 8k bytes.
    Merging adds the values of equal indices.

    Parameters
    ----------
    ratio: share of values sent, in (0, 1].
    error_feedback: add what was not sent to the next gradient.
    """

    summary: ClassVar[str] = "exactly the k values of largest magnitude"
    source: ClassVar[str] = (
        "Aji, Heafield [@aji2017sparse]; Stich, Cordonnier, Jaggi [@stich2018sparsified] "
        "(Sketch-Fusion §5)"
    )
    combine: ClassVar[Combine] = "merge"

    ratio: float = 0.01
    error_feedback: bool = True

    def __post_init__(self) -> None:
        self._require("ratio", float, "a number in (0, 1]", lambda x: 0 < x <= 1)
        self._require("error_feedback", bool, "true or false")

    @property
    def encode_work(self) -> Work:
        passes, kernels = (1.5, 35) if self.error_feedback else (0.7, 29)
        return Work(passes=passes, kernels=kernels, selections=1)

    @property
    def decode_work(self) -> Work:
        return Work(passes=1.3, kernels=9)

    def payload_bytes(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (8 * sampling.ceil_share(math.prod(shape), self.ratio),)

    def answer_bytes(self, shape: Sequence[int], parties: int) -> tuple[int, ...]:
        n = math.prod(shape)
        return (8 * sampling.union(n, sampling.ceil_share(n, self.ratio), parties),)

    def compress(self, tensor: torch.Tensor, key: Key) -> Payload:
        flat = self._unchecked(tensor, key)
        k = sampling.ceil_share(flat.numel(), self.ratio)
        residual = self._memory(key, flat, "residual")["residual"] if self.error_feedback else None
        values, sent = memory.take_largest(flat, k, self._what(key), residual)
        return self._sparse((values.cpu().numpy(), sent.cpu().numpy()), tensor.shape)

    def decompress(self, payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
        return packing.scatter(self._pairs(payload), payload.numel, device).view(payload.shape)

    def merge(self, payloads: Sequence[Payload], key: Key = None) -> Payload:
        shape = alike(payloads).shape
        return self._sparse(packing.union_sum([self._pairs(p) for p in payloads]), shape)

    def _sparse(self, pairs: packing.Pairs, shape: Sequence[int]) -> Payload:
        return self._payload(packing.write_pairs(*pairs), shape, "pairs")

    def _pairs(self, payload: Payload) -> packing.Pairs:
        """The pairs of a payload: k of a party, or more of several."""
        n = self._expect(payload, {"pairs": ("",)})
        (least,) = self.payload_bytes(payload.shape)
        if payload.nbytes < least:  # a short body must not be able to ask for a huge tensor
            raise ValueError(
                f"top_k pairs: body has {payload.nbytes} bytes, its shape needs at least {least}"
            )
        return packing.read_pairs(payload.body, n, "top_k pairs")
