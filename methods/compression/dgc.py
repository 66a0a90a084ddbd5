"""Deep gradient compression: sparse gradients with four remedies against their staleness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

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
from slowlink.methods.compression.pieces.threads import one_call


@dataclass
class Dgc(Compressor):
    """Deep gradient compression.

    Each step the gradient is clipped, momentum-corrected (``u = momentum·u + g; v = v + u``) and
    the values of ``v`` at or above a threshold are sent with their indices, at most
    k = ⌈ratio·n⌉ of them. Where sent, ``v`` is zeroed and, with ``masking``, ``u`` too. Because the
    momentum is here, the optimiser that applies the sum must have none.

    The threshold is the ⌈ratio·m⌉-th largest magnitude of a sample of at least
    m = max(⌈sample_rate·n⌉, ⌈2/ratio⌉) values, at one stride or (``strided`` false) drawn at random
    with repetition. While it keeps fewer than ``lower``·k values it is
    multiplied by ``lower``. If it keeps more than ``upper``·k, the k largest of them are chosen
    (``resample``), or it is multiplied by ``upper``; at most ``adaptations`` times in all. What
    still exceeds k is cut in index order.

    Tensors of fewer than ``lower_bound`` values send their whole velocity ``u`` as float32.

    Body (``pairs``): the values as float32, then their indices as int32, ascending; 8 bytes a
    pair. With ``halves`` values are float16, those beyond its range its ends, 6 bytes a pair, and
    what rounding loses is lost. Merging adds the values of equal indices.

    Parameters
    ----------
    ratio: share of values sent after warm-up, in (0, 1].
    momentum: in [0, 1); 0 leaves plain error feedback.
    nesterov: use Nesterov's momentum.
    masking: zero the velocity where values were sent (momentum factor masking).
    clip: largest 2-norm of a tensor's gradient summed over the parties, 0 for none; each of N
        ``parties`` clips to ``clip``/√N. Each tensor by itself: a codec sees one at a time.
    parties: N.
    warmup: number of warm-up epochs, whose ratios fall geometrically from 1 to ``ratio``, or the
        ratio of each.
    steps_per_epoch: steps of one warm-up epoch.
    sample_rate: least share of values sampled for the threshold, in (0, 1].
    lower, upper: bounds on the share kept, relative to k.
    adaptations: times the threshold is changed at most.
    resample: choose the largest exactly where the threshold keeps too many.
    lower_bound: tensors with fewer values travel dense (DDS: 0; the paper leaves it open).
    strided: whether the sample lies at one stride.
    halves: send the values as float16.
    seed: of the samples.
    """

    summary: ClassVar[str] = "largest values, with momentum correction, clipping and warm-up"
    source: ClassVar[str] = (
        "Lin et al. [@lin2018deep] (GeoMX [10]); DDS, DGCompressor, DGCSGDMemory"
    )
    combine: ClassVar[Combine] = "merge"
    encode_work: ClassVar[Work] = Work(passes=2, kernels=40, selections=1)
    decode_work: ClassVar[Work] = Work(passes=1.2, kernels=10)
    exact_bytes: ClassVar[bool] = False

    ratio: float = 0.001
    momentum: float = 0.9
    nesterov: bool = False
    masking: bool = True
    clip: float = 0.0
    parties: int = 1
    warmup: int | tuple[float, ...] = 0
    steps_per_epoch: int = 1
    sample_rate: float = 0.01
    lower: float = 0.8
    upper: float = 1.3
    adaptations: int = 10
    resample: bool = True
    lower_bound: int = 1_000
    strided: bool = True
    halves: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        self._require("ratio", float, "a number in (0, 1]", lambda x: 0 < x <= 1)
        self._require("momentum", float, "a number in [0, 1)", lambda x: 0 <= x < 1)
        self._require("clip", float, "a number >= 0", lambda x: x >= 0)
        self._require("sample_rate", float, "a number in (0, 1]", lambda x: 0 < x <= 1)
        self._require("lower", float, "a number in (0, 1)", lambda x: 0 < x < 1)
        self._require("upper", float, "a number > 1", lambda x: x > 1)
        for name in ("nesterov", "masking", "resample", "strided", "halves"):
            self._require(name, bool, "true or false")
        for name in ("parties", "steps_per_epoch"):
            self._require(name, int, "a whole number >= 1", lambda x: x >= 1)
        for name in ("adaptations", "lower_bound"):
            self._require(name, int, "a whole number >= 0", lambda x: x >= 0)
        self._require("seed", int, "a whole number")
        if isinstance(self.warmup, Sequence) and not isinstance(self.warmup, str):
            self.warmup = tuple(self.warmup)
            self._require(
                "warmup", tuple, "ratios in (0, 1]", lambda ratios: all(0 < r <= 1 for r in ratios)
            )
        else:
            self._require("warmup", int, "epochs >= 0, or a list of ratios", lambda x: x >= 0)

    def ratio_at(self, step: int) -> float:
        """Share of values sent at ``step`` (from 0)."""
        return memory.scheduled_ratio(step, self.ratio, self._warmup(), self.steps_per_epoch)

    def sparse(self, n: int) -> bool:
        """Whether a tensor of ``n`` values travels sparse."""
        return n >= max(self.lower_bound, 1)

    def work(self, values: int) -> tuple[Work, Work]:
        if self.sparse(values):
            return super().work(values)
        return Work(passes=2.4, kernels=8), COPY  # momentum is kept

    def payload_bytes(self, shape: Sequence[int]) -> tuple[int, ...]:
        n = math.prod(shape)
        if not self.sparse(n):
            return (4 * n,)
        return (self._pair * sampling.ceil_share(n, max(self.ratio, *self._warmup(), 0)),)

    @property
    def _pair(self) -> int:
        """Bytes of a value and its index."""
        return 6 if self.halves else 8

    def answer_bytes(self, shape: Sequence[int], parties: int) -> tuple[int, ...]:
        n, (sent,) = math.prod(shape), self.payload_bytes(shape)
        if not self.sparse(n):
            return (sent,)
        return (self._pair * sampling.union(n, sent // self._pair, parties),)

    def compress(self, tensor: torch.Tensor, key: Key) -> Payload:
        flat = self._flat(tensor, key)
        if self.clip:
            flat = memory.clip_by_norm(flat, self.clip, self.parties)
        if not self.sparse(flat.numel()):
            velocity = self._memory(key, flat, "velocity")["velocity"]
            everything = torch.zeros_like(flat)
            memory.momentum_correct(flat, velocity, everything, self.momentum, self.nesterov)
            return self._dense(everything, tensor.shape)
        state = self._memory(key, flat, "velocity", "accumulated")
        take = self._take_near if one_call(flat) else self._take
        pairs = take(flat, key, state)
        state["step"] += 1
        return self._sparse(pairs, tensor.shape)

    def decompress(self, payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
        n = self._check(payload)
        if payload.form == "dense":
            return self._read_dense(payload, device).view(payload.shape)
        return packing.scatter(self._pairs(payload), n, device).view(payload.shape)

    def merge(self, payloads: Sequence[Payload], key: Key = None) -> Payload:
        first = alike(payloads)
        self._check(first)
        if first.form == "dense":
            return add_payloads(payloads)
        return self._sparse(packing.union_sum([self._pairs(p) for p in payloads]), first.shape)

    def _warmup(self) -> tuple[float, ...]:
        """Ratios of the warm-up epochs."""
        if isinstance(self.warmup, tuple):
            return self.warmup
        return memory.warmup_ratios(self.ratio, self.warmup)

    def _take(self, flat: torch.Tensor, key: Key, state: dict) -> packing.Pairs:
        """What is sent, which is no longer there then."""
        velocity, accumulated = state["velocity"], state["accumulated"]
        sent = self._select(flat, key, state)
        values = memory.take(accumulated, sent)
        memory.mask(sent, accumulated, *([velocity] if self.masking else []))
        return values.cpu().numpy(), sent.cpu().numpy()

    def _select(self, flat: torch.Tensor, key: Key, state: dict) -> torch.Tensor:
        """Ascending indices of about the k largest ``|v|``, never more; corrects the momentum."""
        velocity, accumulated = state["velocity"], state["accumulated"]
        n, ratio = flat.numel(), self.ratio_at(state["step"])
        k = sampling.ceil_share(n, ratio)

        # The sample's values, before all the others become what they will be.
        at = self._sampled(n, ratio, key, state["step"]).to(flat.device)
        gradient, fast, sample = (memory.take(x, at) for x in (flat, velocity, accumulated))
        memory.momentum_correct(gradient, fast, sample, self.momentum, self.nesterov)
        rank = sampling.ceil_share(sample.numel(), ratio)
        threshold = sampling.kth_largest(sample.abs_(), rank)
        kept = memory.correct_and_find(
            flat, velocity, accumulated, self.momentum, threshold, self.nesterov
        )
        for _ in range(self.adaptations):
            if kept.numel() < self.lower * k:
                threshold = threshold * self.lower
            elif kept.numel() > self.upper * k:
                if self.resample:
                    return sampling.largest_of(accumulated, kept, k)
                threshold = threshold * self.upper
            else:
                break
            kept = sampling.indices_at_least(accumulated, threshold)
        return kept[:k]

    def _take_near(self, flat: torch.Tensor, key: Key, state: dict) -> packing.Pairs:
        """:meth:`_take` from a small tensor, by one kernel: calls would cost more than the work."""
        n, ratio = flat.numel(), self.ratio_at(state["step"])
        at = self._sampled(n, ratio, key, state["step"])
        return memory.correct_and_take(
            flat.numpy(),
            state["velocity"].numpy(),
            state["accumulated"].numpy(),
            at.numpy(),
            sampling.ceil_share(len(at), ratio),
            sampling.ceil_share(n, ratio),
            np.float32(self.momentum),
            self.nesterov,
            self.lower,
            self.upper,
            self.adaptations,
            self.resample,
            self.masking,
        )

    def _sampled(self, n: int, ratio: float, key: Key, step: int) -> torch.Tensor:
        """Positions of the sample: all of a small tensor."""
        least = math.ceil(2 / ratio)
        m = n if n <= least else max(sampling.ceil_share(n, self.sample_rate), least)
        draw = sampling.strided_positions if self.strided else sampling.random_positions
        return draw(n, m, partial(sampling.generator, self.seed, key, step))

    def _sparse(self, pairs: packing.Pairs, shape: Sequence[int]) -> Payload:
        if self.halves:
            return self._payload(packing.write_halved_pairs(*pairs), shape, "pairs", "float16")
        return self._payload(packing.write_pairs(*pairs), shape, "pairs")

    def _check(self, payload: Payload) -> int:
        """The number of values, of a payload that this configuration could have made."""
        n = self._expect(
            payload, {"dense": ("float32",), "pairs": ("float16" if self.halves else "",)}
        )
        if (payload.form == "dense") == self.sparse(n):
            raise ValueError(
                f"dgc: a tensor of {n} values does not travel as {payload.form} with "
                f"lower_bound={self.lower_bound}; all parties need one configuration"
            )
        return n

    def _pairs(self, payload: Payload) -> packing.Pairs:
        if not payload.body:  # an empty body must not be able to ask for a huge tensor
            raise ValueError("dgc pairs: body is empty")
        read = packing.read_halved_pairs if self.halves else packing.read_pairs
        return read(payload.body, payload.numel, "dgc pairs")
