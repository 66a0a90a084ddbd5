"""Random-k: values at random positions that all parties draw alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from slowlink.methods.compression import Combine, Compressor, Key, Payload, Work
from slowlink.methods.compression.pieces import memory, packing, sampling


@dataclass
class RandomK(Compressor):
    """Sends k = max(1, ⌈ratio·n⌉) values at positions drawn anew each step.

    The positions depend on (seed, key, step) only, so that parties with one seed send the same
    ones and need no indices: bodies are k float32 values, 4k bytes, and add elementwise. The form
    of a payload, ``random_`` and 16 hexadecimal digits, names the draw, so that who did not draw
    can decode and values of different positions never add.

    One position is drawn from each of k equal parts of the tensor, laid out from a random start:
    distinct, and each value has chance k/n exactly, which is what both guarantees rest on: with
    ``scale`` the values are unbiased, without it the expected error is (1 - k/n)·|g|².

    Parameters
    ----------
    ratio: share of values sent, in (0, 1].
    error_feedback: add what was not sent to the next gradient.
    scale: multiply what is sent by n/k; not with error feedback, which needs a contraction.
    seed: of the positions; one for all parties.
    """

    summary: ClassVar[str] = "values at shared random positions, without indices"
    source: ClassVar[str] = "Stich, Cordonnier, Jaggi [@stich2018sparsified] (Sketch-Fusion §5)"
    combine: ClassVar[Combine] = "sum"

    ratio: float = 0.01
    error_feedback: bool = True
    scale: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        self._require("ratio", float, "a number in (0, 1]", lambda x: 0 < x <= 1)
        self._require("error_feedback", bool, "true or false")
        self._require("scale", bool, "true or false")
        self._require("seed", int, "a whole number")
        if self.scale and self.error_feedback:
            raise ValueError("random_k: scale needs error_feedback=false; n/k times is no part")

    @property
    def encode_work(self) -> Work:
        return Work(passes=1.6, kernels=30) if self.error_feedback else Work(passes=0.8, kernels=30)

    @property
    def decode_work(self) -> Work:
        return Work(passes=1.8, kernels=21)

    def payload_bytes(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (4 * sampling.ceil_share(math.prod(shape), self.ratio),)

    def compress(self, tensor: torch.Tensor, key: Key) -> Payload:
        flat = self._flat(tensor, key)
        n = flat.numel()
        state = self._memory(key, flat, *(["residual"] if self.error_feedback else []))
        draw = sampling.digest(self.seed, key, state["step"])
        state["step"] += 1
        at = self._positions(n, draw).to(flat.device)
        if not self.error_feedback:
            k = max(at.numel(), 1)
            values = memory.take(flat, at)
            values = values * (n / k) if self.scale else values
        else:
            residual = memory.accumulate(flat, state["residual"])
            values = memory.take(residual, at)
            memory.mask(at, residual)
        body = packing.to_bytes(values, "float32")
        return self._payload(body, tensor.shape, f"random_{draw}", "float32")

    def decompress(self, payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
        prefix, _, draw = payload.form.partition("_")
        drawn = prefix == "random" and len(draw) == 16 and set(draw) <= set("0123456789abcdef")
        form = payload.form if drawn else "random_ and 16 hexadecimal digits,"
        n = self._expect(payload, {form: ("float32",)})
        k = sampling.ceil_share(n, self.ratio)
        values = packing.from_bytes(payload.content, "float32", k, "random_k values")
        pairs = values.numpy(), self._positions(n, draw).numpy()
        return packing.scatter(pairs, n, device).view(payload.shape)

    def _positions(self, n: int, draw: str) -> torch.Tensor:
        """(k,) distinct positions below ``n``; every one has the same chance."""
        random = sampling.from_digest(draw)
        start = int(torch.randint(max(n, 1), (1,), generator=random))
        k = sampling.ceil_share(n, self.ratio)
        return (sampling.scattered_positions(n, k, random) + start) % max(n, 1)
