"""Differential gradient transmission: blocks that matter travel reliably, others as they may."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from slowlink.methods.compression import Combine, Compressor, Key, Payload, Work, alike
from slowlink.methods.compression.pieces import buffers, memory, packing, sampling
from slowlink.methods.compression.pieces.threads import BLOCK

RELIABLE, ARRIVED, LOST, INT4 = range(4)
LEVELS = torch.tensor([torch.nan, *range(-7, 8)])
"""The values of the sixteen 4-bit codes, in units of the scale."""
LARGEST_SCALE = torch.finfo(torch.float32).max / 7


@dataclass
class Dgt(Compressor):
    """Contribution-aware transmission in blocks.

    A tensor is cut into blocks of ``block_size`` values. A block's contribution is
    ``c = alpha·c + (1 - alpha)·mean|g|``, from 0. The ⌊share·blocks + ½⌋ blocks of largest
    contribution, and always the last block, travel reliably as float32. The others travel

    - ``drop``: as float32 over unreliable channels that lose each block with probability ``loss``;
      a lost block counts its bytes and arrives as zeros;
    - ``int4``: as 4-bit integers with a scale a block, s = max|g|/7: the error is at most s/2.

    The published protocol keeps no residual; ``error_feedback`` adds one (``int4`` only: a sender
    never learns what was lost).

    Body (``blocks``): the kind of each block in 2 bits, four to a byte from the highest
    (0 reliable, 1 arrived, 2 lost, 3 int4); the float32 values of all blocks but the int4 ones, in
    order; the float32 scales of the int4 blocks; their values as q + 8 in 4 bits, -7 <= q <= 7,
    two to a byte from the highest. The server decodes and sums, and answers in dense float32.

    Parameters
    ----------
    block_size: values of a block, even. GeoMX's 4096 bytes are 1024 values.
    share: K, of blocks that travel reliably, in [0, 1].
    alpha: weight of the past in a block's contribution, in [0, 1).
    lossy: what happens to the other blocks, ``drop`` or ``int4``.
    loss: probability that an unreliable block is lost, in [0, 1].
    error_feedback: add what quantisation lost to the next gradient.
    seed: of the losses of blocks; parties with one seed lose the same blocks.
    """

    summary: ClassVar[str] = "important blocks exact, the others lossy"
    source: ClassVar[str] = "GeoMX §2 [11]; Zhou, Li, Yu [@zhou2019dgt]; INET-RC/GeoMX kv_app.h"
    combine: ClassVar[Combine] = "merge"

    block_size: int = 1024
    share: float = 0.8
    alpha: float = 0.3
    lossy: Literal["drop", "int4"] = "int4"
    loss: float = 0.0
    error_feedback: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        self._require("block_size", int, "an even number >= 2", lambda x: x >= 2 and x % 2 == 0)
        self._require("share", float, "a number in [0, 1]", lambda x: 0 <= x <= 1)
        self._require("alpha", float, "a number in [0, 1)", lambda x: 0 <= x < 1)
        self._require("lossy", str, "drop or int4", ("drop", "int4").__contains__)
        self._require("loss", float, "a number in [0, 1]", lambda x: 0 <= x <= 1)
        self._require("error_feedback", bool, "true or false")
        self._require("seed", int, "a whole number")
        if self.loss and self.lossy != "drop":
            raise ValueError("dgt: loss > 0 needs lossy='drop'; int4 blocks are not lost")
        if self.error_feedback and self.lossy != "int4":
            raise ValueError("dgt: error_feedback needs lossy='int4'; lost blocks stay unknown")

    @property
    def encode_work(self) -> Work:
        if self.lossy == "drop":
            return Work(passes=1.9, kernels=64)
        return Work(passes=8.4, kernels=85) if self.error_feedback else Work(passes=4.1, kernels=60)

    @property
    def decode_work(self) -> Work:
        return Work(passes=3.1, kernels=50)

    def payload_bytes(self, shape: Sequence[int]) -> tuple[int, ...]:
        n, size = math.prod(shape), self.block_size
        count = -(-n // size)
        rough = max(0, count - 1 - self._reliable(count)) if self.lossy == "int4" else 0
        return (-(-count // 4) + 4 * (n - rough * size) + rough * (4 + size // 2),)

    def answer_bytes(self, shape: Sequence[int], parties: int) -> tuple[int, ...]:
        return (4 * math.prod(shape),)

    def compress(self, tensor: torch.Tensor, key: Key) -> Payload:
        flat = self._flat(tensor, key)
        n = flat.numel()
        state = self._memory(key, flat, *(["residual"] if self.error_feedback else []))
        if self.error_feedback:
            flat = memory.accumulate(flat, state["residual"])
        whole = n // self.block_size * self.block_size
        rows = flat[:whole].view(-1, self.block_size)
        kinds = self._classify(rows, flat[whole:], key, state)
        state["step"] += 1
        rough = kinds[: len(rows)] == INT4
        exact = flat if not rough.any() else torch.cat((rows[~rough].view(-1), flat[whole:]))
        scales, codes = quantise(rows[rough])
        if self.error_feedback:
            residual = torch.zeros_like(flat)
            decoded = (codes.float() - 8) * scales[:, None]
            residual[:whole].view_as(rows)[rough] = rows[rough] - decoded
            state["residual"] = residual
        body = packing.join(
            (packing.pack(kinds, 2), "uint8"),
            (exact, "float32"),
            (scales, "float32"),
            (packing.pack(codes.view(-1), 4), "uint8"),
        )
        return self._payload(body, tensor.shape, "blocks")

    def decompress(self, payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
        n = self._expect(payload, {"blocks": ("",), "dense": ("float32",)})
        if payload.form == "dense":
            return self._read_dense(payload, device).view(payload.shape)
        what, size = "dgt blocks", self.block_size
        count, whole = -(-n // size), n // size * size
        body = memoryview(payload.body)
        at = -(-count // 4)
        kinds = packing.from_bytes(body[:at], "uint8", at, what, device)
        kinds = packing.unpack(kinds, 2, count, what)
        if count and kinds[-1] != RELIABLE:
            raise ValueError(f"{what}: the last block does not travel reliably")
        rough = kinds[: whole // size] == INT4
        n_rough = int(rough.sum())
        n_exact = n - n_rough * size
        packing.check_length(body, at + 4 * n_exact + n_rough * (4 + size // 2), what)
        ends = [at, at + 4 * n_exact, at + 4 * (n_exact + n_rough), len(body)]
        parts = [body[start:end] for start, end in zip(ends, ends[1:], strict=False)]
        exact = packing.from_bytes(parts[0], "float32", n_exact, what, device)
        scales = packing.from_bytes(parts[1], "float32", n_rough, what, device)
        codes = packing.from_bytes(parts[2], "uint8", n_rough * size // 2, what, device)
        steps = packing.unpack_levels(codes, 4, LEVELS.to(device), n_rough * size, what)
        if ((scales < 0) | (scales > LARGEST_SCALE)).any():
            raise ValueError(f"{what}: a scale is negative or too large")
        flat = buffers.empty(n, "float32", device)
        rows = flat[:whole].view(-1, size)
        rows[~rough] = exact[: whole - n_rough * size].view(-1, size)
        rows[rough] = steps.view(-1, size) * scales[:, None]
        rows.index_fill_(0, (kinds[: len(rows)] == LOST).nonzero().view(-1), 0)
        flat[whole:] = exact[whole - n_rough * size :]
        return flat.view(payload.shape)

    def merge(self, payloads: Sequence[Payload], key: Key = None) -> Payload:
        shape = alike(payloads).shape
        total = self.decompress(payloads[0])
        for payload in payloads[1:]:
            total += self.decompress(payload)
        return self._dense(total, shape)

    def _reliable(self, count: int) -> int:
        """⌊share·blocks + ½⌋ of ``count`` blocks."""
        return int(self.share * count + 0.5)

    def _classify(
        self, rows: torch.Tensor, tail: torch.Tensor, key: Key, state: dict
    ) -> torch.Tensor:
        """(blocks,) uint8 kinds; updates the contributions."""
        # Some rows at a time, whose magnitudes stay in cache.
        some = rows.split(max(1, BLOCK // self.block_size))
        means = [part.abs().mean(1) for part in some]
        means = torch.cat((*means, tail.abs().mean().view(-1)[: tail.numel()]))
        past = state.get("contribution", torch.zeros_like(means)).to(means.device)
        state["contribution"] = contribution = past * self.alpha + means * (1 - self.alpha)
        count = contribution.numel()
        ranked = contribution[: max(count - 1, 0)].sort(descending=True, stable=True).indices
        if self.lossy == "int4":
            kinds = torch.full((count,), INT4, dtype=torch.uint8, device=means.device)
        else:
            random = sampling.generator(self.seed, key, state["step"])
            lost = torch.rand(count, generator=random, dtype=torch.float64) < self.loss
            kinds = torch.where(lost.to(means.device), LOST, ARRIVED).to(torch.uint8)
        kinds[ranked[: self._reliable(count)]] = RELIABLE
        kinds[count - 1 :] = RELIABLE
        return kinds


def quantise(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(r,) scales max|row|/7, and (r, c) uint8 codes q + 8 of the nearest q, -7 <= q <= 7."""
    scales = rows.abs().amax(1) / 7
    steps = torch.where(scales > 0, scales, 1.0)
    return scales, (rows / steps[:, None]).round_().clamp_(-7, 7).add_(8).to(torch.uint8)
