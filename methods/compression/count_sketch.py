"""Count-sketch: parties add small sketches, and read from the sum which values to send exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from slowlink.methods.compression import COPY, Compressor, Encoding, Key, Payload, Work
from slowlink.methods.compression.pieces import memory, packing, sampling
from slowlink.methods.compression.pieces import sketch as sketching
from slowlink.methods.compression.pieces.threads import each_block

SAMPLE = 2**16
"""Estimates looked at for a first guess of the threshold that the largest reach."""


@dataclass
class CountSketch(Compressor):
    """Count-sketch with HEAVYMIX, or with the largest estimates.

    Round 1 adds the parties' sketches, ``rows`` × columns of float32, which makes the sketch of the
    sum; its hashing is drawn anew each step from (seed, key, step), since error feedback would
    otherwise make what is sketched depend on how it is sketched. All parties read the same
    estimates from it (medians round nothing) and so choose the same positions. Round 2 adds the
    exact values there. The result holds k = max(1, ⌈ratio·n⌉) of the exact sums, 0 elsewhere.

    ``heavymix`` chooses k: the heavy values, whose squared estimate is at least 1/k of the sketch's
    estimate of the sum of squares; if these are more than k, the k of the largest estimates; if
    fewer, others at random fill up, each with the same chance. ``top_pk`` fetches the pool·k
    largest estimates exactly and keeps the k largest of the exact sums.

    Sketch-Fusion prints no sizes. Four columns for each of the k values are the default because a
    row's error has the standard deviation ‖g‖/√c, half of the heavy threshold ‖g‖/√k at c = 4k, and
    the median of 5 rows 0.27 of it. Of a million normal values, none heavy, 5 in 10,000 then pass
    for heavy, a twentieth of k at ratio 1 %; at c = 2k it is 1 in 100, all of k. Bytes: 4·rows·c
    and 4k, 21 % of dense at ratio 1 %, and in proportion.

    Tensors of fewer than ``lower_bound`` values, and those whose rounds would need no fewer bytes
    than the tensor has, travel dense in one round.

    Parameters
    ----------
    ratio: share of values in the result, in (0, 1].
    rows: of the sketch; odd, since either middle of an even number is biased as a median.
    width: columns for each of the k values.
    columns: of every sketch; 0 for width·k.
    selection: ``heavymix`` (Ivkin et al., algorithm 1) or ``top_pk`` (their algorithm 3).
    pool: P, candidates of ``top_pk`` for each value kept.
    exact: fetch exact values (Sketch-Fusion §4.1 in prose); false leaves out round 2 and returns
        the estimates (its Algorithm 1 to the letter), of the k largest for ``top_pk``.
    error_feedback: add what was not sent to the next gradient; needs ``exact``. Sketch-Fusion's
        Algorithm 1 has none.
    momentum: u = momentum·u + g is accumulated instead of g and zeroed where sent, so that the
        optimiser must have none; in [0, 1), needs ``error_feedback``. Dense tensors send u.
    lower_bound: tensors with fewer values travel dense.
    seed: of the hashing and the filling; one for all parties.
    """

    summary: ClassVar[str] = "sketches that add, then exact values at the heavy positions"
    source: ClassVar[str] = (
        "Sketch-Fusion [@dai2024sketchfusion] Algorithm 1; "
        "Ivkin et al. 2019 [@ivkin2019communication], Algorithms 1 and 3"
    )
    one_shot: ClassVar[bool] = False

    ratio: float = 0.01
    rows: int = 5
    width: int = 4
    columns: int = 0
    selection: Literal["heavymix", "top_pk"] = "heavymix"
    pool: int = 4
    exact: bool = True
    error_feedback: bool = False
    momentum: float = 0.0
    lower_bound: int = 1_000
    seed: int = 0

    def __post_init__(self) -> None:
        self._require("ratio", float, "a number in (0, 1]", lambda x: 0 < x <= 1)
        self._require(
            "rows",
            int,
            "an odd number >= 1 (either middle of an even number is biased as a median)",
            lambda x: x >= 1 and x % 2 == 1,
        )
        for name in ("width", "pool"):
            self._require(name, int, "a whole number >= 1", lambda x: x >= 1)
        for name in ("columns", "lower_bound"):
            self._require(name, int, "a whole number >= 0", lambda x: x >= 0)
        self._require("selection", str, "heavymix or top_pk", ("heavymix", "top_pk").__contains__)
        for name in ("exact", "error_feedback"):
            self._require(name, bool, "true or false")
        self._require("momentum", float, "a number in [0, 1)", lambda x: 0 <= x < 1)
        self._require("seed", int, "a whole number")
        if self.error_feedback and not self.exact:
            raise ValueError(
                "count_sketch: error_feedback needs exact=true; what an estimate misses of one "
                "party's values is not known"
            )
        if self.momentum and not self.error_feedback:
            raise ValueError("count_sketch: momentum needs error_feedback=true, which holds it")

    @property
    def encode_work(self) -> Work:
        passes = 3 + 0.55 * self.rows + 0.5 * self.error_feedback + 0.8 * bool(self.momentum)
        return Work(passes=passes, kernels=95, selections=1)

    @property
    def decode_work(self) -> Work:
        if self.selection == "top_pk":
            return Work(passes=1.8, kernels=15)
        return Work(passes=0.9, kernels=13)

    def work(self, values: int) -> tuple[Work, Work]:
        if self.sketched(values):
            return super().work(values)
        return Work(passes=2.4, kernels=8) if self.momentum else COPY, COPY

    def layout(self, n: int) -> tuple[int, int, int]:
        """k, the columns c, and how many exact values round 2 carries (0: no such round)."""
        k = max(1, sampling.ceil_share(n, self.ratio))
        fetched = min(n, self.pool * k) if self.selection == "top_pk" else k
        return k, self.columns or self.width * k, fetched if self.exact else 0

    def sketched(self, n: int) -> bool:
        """Whether a tensor of ``n`` values travels as a sketch."""
        _, columns, fetched = self.layout(n)
        return n >= self.lower_bound and self.rows * columns + fetched < n

    def payload_bytes(self, shape: Sequence[int]) -> tuple[int, ...]:
        n = math.prod(shape)
        _, columns, fetched = self.layout(n)
        if n < self.lower_bound or self.rows * columns + fetched >= n:  # not sketched
            return (4 * n,)
        table = 4 * self.rows * columns
        return (table, 4 * fetched) if fetched else (table,)

    def encode(self, tensor: torch.Tensor, key: Key) -> Encoding:
        flat, shape, device = self._flat(tensor, key), tensor.shape, tensor.device
        n = flat.numel()
        values, state = self._remember(flat, key)
        if not self.sketched(n):
            combined = yield self._dense(values, shape), "sum"
            return self._read(combined, "dense", n, device).view(shape)

        draw = sampling.digest(self.seed, key, state["step"])
        state["step"] += 1
        k, columns, fetched = self.layout(n)
        hashing = sketching.draw(n, self.rows, columns, int(draw, 16))
        table = sketching.sketch(values, hashing)
        form = f"sketch_{draw}"
        combined = yield self._floats(table, shape, form), "sum"
        table = self._read(combined, form, self.rows * columns, device).view(self.rows, columns)
        estimates = sketching.estimates(table, hashing, n)
        if self.selection == "top_pk":
            at = _largest(estimates, fetched or k)
        else:
            at = heavymix(estimates, sketching.norm(table), k, sampling.from_digest(draw))
        if not self.exact:
            return _spread(estimates[at], at, n).view(shape)

        form = f"values_{draw}"
        combined = yield self._floats(memory.take(values, at), shape, form), "sum"
        total = self._read(combined, form, at.numel(), device)
        if self.selection == "top_pk":
            kept = _largest(total, k)
            total, at = total[kept], at[kept]
        memory.mask(at, *(state[name] for name in ("residual", "velocity") if name in state))
        return _spread(total, at, n).view(shape)

    def _remember(self, flat: torch.Tensor, key: Key) -> tuple[torch.Tensor, dict[str, Any]]:
        """The values to send, with the residual of earlier steps, and this key's state."""
        n, buffers = flat.numel(), []
        if self.momentum:
            buffers.append("velocity")
        if self.error_feedback and self.sketched(n):
            buffers.append("residual")
        state = self._memory(key, flat, *buffers)
        if not buffers:
            return flat, state
        # Dense tensors leave nothing: what they accumulate starts from 0 each step.
        target = state["residual"] if "residual" in state else torch.zeros_like(flat)

        def update(i: int, j: int) -> None:
            if self.momentum:
                velocity = state["velocity"][i:j]
                memory.momentum_correct(flat[i:j], velocity, target[i:j], self.momentum)
            else:
                memory.accumulate(flat[i:j], target[i:j])

        if flat.device.type == "cpu":
            each_block(n, update)
        else:  # other threads have other streams
            update(0, n)
        return target, state

    def _floats(self, values: torch.Tensor, shape: Sequence[int], form: str) -> Payload:
        return self._payload(packing.to_bytes(values, "float32"), shape, form, "float32")

    def _read(
        self, payload: Payload, form: str, count: int, device: torch.device | str
    ) -> torch.Tensor:
        self._expect(payload, {form: ("float32",)})
        return packing.from_bytes(payload.content, "float32", count, f"{self.name} {form}", device)


def heavymix(estimates: torch.Tensor, norm: float, k: int, random: torch.Generator) -> torch.Tensor:
    """(k,) ascending positions by HEAVYMIX (Ivkin et al. 2019, Algorithm 1).

    The positions whose |estimate| is at least ``norm``/√k, the largest k of them if they are more,
    and others at ``random`` if they are fewer. Their algorithm compares the estimate's square.
    """
    threshold = max(norm / math.sqrt(k), sampling.TINIEST)  # nothing is heavy among zeros
    heavy = sampling.largest_of(estimates, sampling.indices_at_least(estimates, threshold), k)
    missing, others = k - heavy.numel(), estimates.numel() - heavy.numel()
    if not missing:
        return heavy
    # Equal parts from a random start: distinct, and each other position has the same chance.
    start = int(torch.randint(others, (1,), generator=random))
    rank = (sampling.scattered_positions(others, missing, random).to(heavy.device) + start) % others
    # The heavy position j (from 0) has h_j - j others before it.
    before = heavy - torch.arange(heavy.numel(), device=heavy.device)
    filled = rank + torch.searchsorted(before, rank, right=True)
    chosen = torch.cat((heavy, filled))
    if chosen.device.type != "cpu":
        return chosen.sort().values
    return torch.from_numpy(np.sort(chosen.numpy(), kind="stable"))  # merges what ascends already


def _largest(values: torch.Tensor, k: int) -> torch.Tensor:
    """Ascending positions of the k largest ``|values|``."""
    n = values.numel()
    sample = values[:: max(1, n // SAMPLE)]
    return sampling.largest(values, k, sampling.threshold_for(sample, n, k))


def _spread(values: torch.Tensor, at: torch.Tensor, n: int) -> torch.Tensor:
    if values.device.type == "cpu":
        return packing.scatter((values.numpy(), at.numpy()), n)
    result = values.new_zeros(n)
    result[at] = values
    return result
