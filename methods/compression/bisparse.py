"""BiSparse: the largest values both ways, over a sampled threshold, with momentum correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from slowlink.methods.compression import (
    COPY,
    Combine,
    Compressor,
    Key,
    Payload,
    Work,
    add_payloads,
    alike,
)
from slowlink.methods.compression.pieces import memory, packing, sampling

DENSE = {"fp32": "float32", "fp16": "float16"}


@dataclass
class BiSparse(Compressor):
    """Bidirectional sparse transmission of GeoMX.

    Tensors of ``lower_bound`` values or more are sparse. Each step the velocity is
    ``v = momentum·v + g``, the position ``u = u + v``; the values of ``u`` at or above a threshold
    T are sent with their indices, at most k = ⌊ratio·n⌋ of them, and both ``u`` and ``v`` are
    zeroed there. T is the ⌊ratio·m⌋-th largest magnitude of a random sample of m = ⌊sample_rate·n⌋
    values, or of ⌊10/ratio⌋ where the rank would be below 10 (of all n where there are fewer).

    The server adds the values of equal indices and answers with the union. Smaller tensors (and
    those with ⌊ratio·n⌋ = 0) travel whole, without momentum, and add elementwise.

    How many are sent: at least the ⌊ratio·m⌋ sampled ones and never more than k; the share above T
    is Beta(j, m-j+1)-distributed with j = ⌊ratio·m⌋, so its relative deviation is about 1/√j.

    Bodies: the values as float32, then their indices, ascending.

    - ``padded``, as GeoMX sends it: indices as float32; exactly k pairs up and parties·k down,
      filled up with (-65530, -1). 8k and 8·parties·k bytes; tensors of up to 2²⁴ values.
    - ``tight``: indices as int32, only the pairs there are.
    - ``dense``: all values as float32 or float16.

    Parameters
    ----------
    ratio: share of values sent, k in the paper, in (0, 1].
    sample_rate: share of values sampled for the threshold, s in the paper, in (0, 1].
    momentum: damping of the velocity, m in the paper, in [0, 1).
    lower_bound: tensors with fewer values travel dense.
    dense: ``fp32`` or ``fp16``, the format of dense tensors.
    format: ``padded`` or ``tight``.
    parties: how many payloads the server merges; sizes the padded answer.
    selection: where more than k values reach T, the ``first`` k by index, as GeoMX's code has it,
        or the ``largest`` k.
    seed: of the samples.
    """

    summary: ClassVar[str] = "largest values both ways over a sampled threshold"
    source: ClassVar[str] = "GeoMX §4; INET-RC/GeoMX gradient_compression.cc"
    combine: ClassVar[Combine] = "merge"
    encode_work: ClassVar[Work] = Work(passes=2, kernels=41, selections=1)
    decode_work: ClassVar[Work] = Work(passes=1.2, kernels=12)

    ratio: float = 0.01
    sample_rate: float = 0.005
    momentum: float = 0.9
    lower_bound: int = 200_000
    dense: Literal["fp32", "fp16"] = "fp32"
    format: Literal["padded", "tight"] = "padded"
    parties: int = 2
    selection: Literal["first", "largest"] = "first"
    seed: int = 0

    def __post_init__(self) -> None:
        self._require("ratio", float, "a number in (0, 1]", lambda x: 0 < x <= 1)
        self._require("sample_rate", float, "a number in (0, 1]", lambda x: 0 < x <= 1)
        self._require("momentum", float, "a number in [0, 1)", lambda x: 0 <= x < 1)
        self._require("lower_bound", int, "a whole number >= 0", lambda x: x >= 0)
        self._require("dense", str, "fp32 or fp16", DENSE.__contains__)
        self._require("format", str, "padded or tight", ("padded", "tight").__contains__)
        self._require("parties", int, "a whole number >= 1", lambda x: x >= 1)
        self._require("selection", str, "first or largest", ("first", "largest").__contains__)
        self._require("seed", int, "a whole number")

    def sparse(self, n: int) -> bool:
        """Whether a tensor of ``n`` values travels sparse."""
        return n >= max(self.lower_bound, 1) and self.most(n) >= 1

    def work(self, values: int) -> tuple[Work, Work]:
        return super().work(values) if self.sparse(values) else (COPY, COPY)

    def most(self, n: int) -> int:
        """k = ⌊ratio·n⌋: pairs that one party sends at most."""
        return sampling.floor_share(n, self.ratio)

    def sample_size(self, n: int) -> int:
        """m: values sampled of ``n``."""
        m = sampling.floor_share(n, self.sample_rate)
        return m if sampling.floor_share(m, self.ratio) >= 10 else min(n, int(10 / self.ratio))

    def least(self, n: int) -> int:
        """j = ⌊ratio·m⌋: the sample's rank of T, and pairs that one party sends at least."""
        return max(1, sampling.floor_share(self.sample_size(n), self.ratio))

    @property
    def exact_bytes(self) -> bool:
        return self.format == "padded"

    def payload_bytes(self, shape: Sequence[int]) -> tuple[int, ...]:
        n = math.prod(shape)
        if self.sparse(n):
            return (8 * self.most(n),)
        return (n * (4 if self.dense == "fp32" else 2),)

    def answer_bytes(self, shape: Sequence[int], parties: int) -> tuple[int, ...]:
        n, (sent,) = math.prod(shape), self.payload_bytes(shape)
        if not self.sparse(n):
            return (sent,)
        return (
            (8 * self.most(n) * self.parties,)
            if self.format == "padded"
            else (8 * sampling.union(n, self.most(n), parties),)
        )

    def compress(self, tensor: torch.Tensor, key: Key) -> Payload:
        flat = self._flat(tensor, key)
        n = flat.numel()
        if not self.sparse(n):
            return self._dense(flat, tensor.shape, DENSE[self.dense])
        self._fits(n)
        state = self._memory(key, flat, "velocity", "position")
        velocity, position = state["velocity"], state["position"]
        threshold = self._threshold(key, state, flat)
        sent = memory.correct_and_find(flat, velocity, position, self.momentum, threshold)
        k = self.most(n)
        sent = sent[:k] if self.selection == "first" else sampling.largest_of(position, sent, k)
        values = memory.take(position, sent)
        memory.mask(sent, velocity, position)
        state["step"] += 1
        return self._sparse(values.cpu().numpy(), sent.cpu().numpy(), tensor.shape, k)

    def decompress(self, payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
        n = self._check(payload)
        if payload.form == "dense":
            return self._read_dense(payload, device).view(payload.shape)
        return packing.scatter(self._pairs(payload), n, device).view(payload.shape)

    def merge(self, payloads: Sequence[Payload], key: Key = None) -> Payload:
        first = alike(payloads)
        n = self._check(first)
        if first.form == "dense":
            return add_payloads(payloads)
        room = sum(payload.nbytes // 8 for payload in payloads)
        if self.format == "padded" and room > self.parties * self.most(n):
            raise ValueError(
                f"bisparse padded: {len(payloads)} payloads of {room} pairs to merge, but "
                f"parties={self.parties}; set parties to all of them, or format='tight'"
            )
        union = packing.union_sum([self._pairs(payload) for payload in payloads])
        return self._sparse(*union, first.shape, self.parties * self.most(n))

    def _threshold(self, key: Key, state: dict, flat: torch.Tensor) -> torch.Tensor:
        """T, from what velocity and position are about to become at the sampled positions."""
        n = flat.numel()
        random = sampling.generator(self.seed, key, state["step"])
        at = sampling.scattered_positions(n, self.sample_size(n), random).to(flat.device)
        of_sample = (memory.take(x, at) for x in (flat, state["velocity"], state["position"]))
        gradient, velocity, position = of_sample
        memory.momentum_correct(gradient, velocity, position, self.momentum)
        return sampling.kth_largest(position.abs_(), self.least(n))

    def _sparse(
        self, values: np.ndarray, indices: np.ndarray, shape: Sequence[int], pairs: int
    ) -> Payload:
        padded_to = pairs if self.format == "padded" else None
        return self._payload(packing.write_pairs(values, indices, padded_to), shape, self.format)

    def _check(self, payload: Payload) -> int:
        """The number of values, of a payload that this configuration could have made."""
        n = self._expect(payload, {"dense": (DENSE[self.dense],), self.format: ("",)})
        if (payload.form == "dense") == self.sparse(n):
            raise ValueError(
                f"bisparse: a tensor of {n} values does not travel {payload.form} with "
                f"ratio={self.ratio:g} and lower_bound={self.lower_bound}; all parties need one "
                f"configuration"
            )
        return n

    def _fits(self, n: int) -> None:
        if self.format == "padded" and n > packing.FLOAT_INDEX_LIMIT:
            raise ValueError(
                f"bisparse: indices of a tensor of {n} values are not exact as float32 (beyond "
                f"{packing.FLOAT_INDEX_LIMIT}); use format='tight'"
            )

    def _pairs(self, payload: Payload) -> packing.Pairs:
        """The pairs of a sparse payload, as many as a party or the server can have sent."""
        n, padded = payload.numel, self.format == "padded"
        what, k, room = f"bisparse {self.format}", self.most(n), payload.nbytes // 8
        self._fits(n)
        if padded and room not in (k, self.parties * k):
            raise ValueError(
                f"{what}: {room} pairs, but {n} values make {k} from a party or "
                f"{self.parties * k} from the server of {self.parties} parties"
            )
        pairs = packing.read_pairs(payload.body, n, what, padded)
        # A short body must not be able to ask for a huge tensor.
        if len(pairs[0]) < self.least(n):
            raise ValueError(
                f"{what}: {len(pairs[0])} pairs, but {n} values make at least {self.least(n)}"
            )
        return pairs
