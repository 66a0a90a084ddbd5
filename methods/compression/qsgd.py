"""Quantisation to a few levels a bucket, unbiased by random rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from slowlink.methods.compression import Combine, Compressor, Key, Payload, Work
from slowlink.methods.compression.pieces import memory, packing, quantising


@dataclass
class Qsgd(Compressor):
    """Each value as its sign and a level of its bucket's norm, rounded at random without bias.

    With s = 2^(bits-1) - 1 levels, |v|·s/norm is rounded up with the probability of its fraction;
    2 bits are ternary. The error is at most min(d/s², √d/s)·‖v‖² on average for a bucket of d
    values and the ``l2`` norm, and never more than norm/s a value.

    Body (``levels``): one float32 norm a bucket, then ``bits`` a value, the sign highest, as one
    stream of bits: 4·⌈n/bucket⌉ + ⌈n·bits/8⌉ bytes. (The paper's Elias code is not used.)

    Parameters
    ----------
    bits: of a value, sign included, 2…8.
    bucket: values that share a norm, 0 for the whole tensor.
    norm: ``l2`` or ``max`` (smaller errors, more values sent).
    error_feedback: add what was not sent to the next gradient. Helps only where the error stays
        below ‖v‖ (for l2, √bucket < s); with fewer levels the residual grows without bound.
    seed: of the rounding.
    party: which party this is; parties of one seed must differ in it to round independently.
    """

    summary: ClassVar[str] = "random rounding to a few levels of each bucket's norm"
    source: ClassVar[str] = "Alistarh et al. 2017 [@alistarh2017qsgd], §3 (Sketch-Fusion [3])"
    combine: ClassVar[Combine] = "gather"

    bits: int = 2
    bucket: int = 512
    norm: str = "l2"
    error_feedback: bool = False
    seed: int = 0
    party: int = 0

    def __post_init__(self) -> None:
        self._require("bits", int, "a whole number in 2…8", lambda b: 2 <= b <= 8)
        self._require("bucket", int, "a whole number >= 0", lambda b: b >= 0)
        self._require("norm", str, "l2 or max", lambda name: name in ("l2", "max"))
        self._require("error_feedback", bool, "true or false")
        for name in ("seed", "party"):
            self._require(name, int, "a whole number")

    @property
    def levels(self) -> int:
        """s, of the magnitudes above 0."""
        return 2 ** (self.bits - 1) - 1

    @property
    def encode_work(self) -> Work:
        passes, kernels = (5.1, 48) if self.error_feedback else (1.1, 10)
        return Work(passes=passes, kernels=kernels, draws=1)

    @property
    def decode_work(self) -> Work:
        return Work(passes=2.6, kernels=24)

    def compress(self, tensor: torch.Tensor, key: Key) -> Payload:
        flat = self._unchecked(tensor, key)
        bucket = self._bucket(flat.numel())
        at_once = flat.device.type == "cpu" and self.bits == 2 and bucket % 4 == 0
        if self.error_feedback or not at_once:
            packing.check_finite(flat, self._what(key))
        state = self._memory(key, flat, *(["residual"] if self.error_feedback else []))
        if self.error_feedback:
            flat = memory.accumulate(flat, state["residual"])
        draw = quantising.stream(self.seed, self.party, key, state["step"])
        if at_once:
            body = quantising.ternary_buckets(flat, bucket, self.norm, draw, self._what(key))
        else:
            norms = quantising.bucket_norms(flat, bucket, self.norm)
            codes = quantising.stochastic_codes(flat, norms, bucket, self.levels, draw)
            body = packing.join((norms, "float32"), (packing.pack(codes, self.bits), "uint8"))
        payload = self._payload(body, tensor.shape, "levels")
        if self.error_feedback:
            flat.sub_(self.decompress(payload, flat.device).view(-1))
        state["step"] += 1
        return payload

    def decompress(self, payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
        n, what = self._expect(payload, {"levels": ("",)}), "qsgd levels"
        bucket = self._bucket(n)
        at = 4 * -(-n // bucket)
        packing.check_length(payload.body, *self.payload_bytes(payload.shape), what)
        body = memoryview(payload.body)
        norms = packing.from_bytes(body[:at], "float32", at // 4, what, device)
        quantising.check_norms(norms, what)
        packed = packing.from_bytes(body[at:], "uint8", len(body) - at, what, device)
        table = quantising.signed_levels(self.levels).to(device)
        scale = partial(quantising.scale_buckets, norms=norms, bucket=bucket)
        values = packing.unpack_levels(packed, self.bits, table, n, what, scale)
        return values.view(payload.shape)

    def payload_bytes(self, shape: Sequence[int]) -> tuple[int, ...]:
        n = math.prod(shape)
        return (4 * -(-n // self._bucket(n)) + -(-n * self.bits // 8),)

    def _bucket(self, n: int) -> int:
        return self.bucket or max(n, 1)
