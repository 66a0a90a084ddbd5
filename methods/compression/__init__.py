"""What is sent: payloads, the compressor contract, and how payloads combine.

A compressor turns a tensor into payloads whose ``body`` holds exactly the bytes of its published
format. :meth:`Compressor.encode` is a generator, so that one contract serves one-shot codecs and
codecs with several rounds of communication::

    rounds = codec.encode(gradient, key="conv1.weight")
    payload, how = next(rounds)              # what to send, and how payloads combine
    while True:
        combined = ...                       # the transport combines the parties' payloads
        try:
            payload, how = rounds.send(combined)
        except StopIteration as stop:
            aggregate = stop.value           # the aggregated tensor
            break
"""

from __future__ import annotations

import copy
import math
from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from methods import room

Combine = Literal["sum", "merge", "gather"]
Key = Hashable


@dataclass(frozen=True)
class Payload:
    """One encoded tensor: exactly the bytes of the published format, and how to read them.

    Attributes
    ----------
    body: the bytes.
    codec: name of the compressor that can decode them.
    shape: shape of the tensor they stand for.
    form: which of the codec's formats this is (a codec may answer in another than it asked in).
    dtype: element type of ``body`` where bodies add elementwise, else empty.
    """

    body: bytes
    codec: str
    shape: tuple[int, ...]
    form: str = ""
    dtype: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the body: the number that papers print."""
        return len(self.body)

    @property
    def numel(self) -> int:
        """Values of the tensor this stands for."""
        return math.prod(self.shape)


Encoding = Generator[tuple[Payload, Combine], Any, torch.Tensor]


@dataclass
class Compressor:
    """Base of every compressor. State is per key; one instance serves one worker.

    One-shot codecs implement ``compress`` and ``decompress`` (and ``merge`` where ``combine`` is
    ``merge``); codecs with several rounds override ``encode``.
    """

    summary: ClassVar[str]
    source: ClassVar[str]
    combine: ClassVar[Combine] = "sum"
    one_shot: ClassVar[bool] = True

    state: dict[Key, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    def compress(self, tensor: torch.Tensor, key: Key) -> Payload:
        """Encode ``tensor`` (any shape, floating point, CPU or CUDA) and update this key's state."""
        raise NotImplementedError

    def decompress(self, payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
        """The float32 tensor that ``payload`` stands for. Raises ValueError on malformed bodies."""
        raise NotImplementedError

    def merge(self, payloads: Sequence[Payload], key: Key = None) -> Payload:
        """Combine payloads where an exchange aggregates; the result decodes to their sum."""
        raise NotImplementedError

    def encode(self, tensor: torch.Tensor, key: Key) -> Encoding:
        """Yield ``(payload, combine)`` each round; return the sum over all parties."""
        combined = yield self.compress(tensor, key), self.combine
        if self.combine == "gather":
            total = self.decompress(combined[0], tensor.device)
            for payload in combined[1:]:
                total += self.decompress(payload, tensor.device)
            return total
        return self.decompress(combined, tensor.device)

    def state_dict(self) -> dict[Key, Any]:
        """A copy of all state, for checkpoints."""
        return copy.deepcopy(self.state)

    def load_state_dict(self, state: dict[Key, Any]) -> None:
        self.state = copy.deepcopy(state)


def add_payloads(payloads: Sequence[Payload]) -> Payload:
    """Sum payloads whose bodies add elementwise (``combine == "sum"``).

    Half-precision bodies are summed in float32 and rounded once.
    """
    first = payloads[0]
    if not first.dtype:
        raise ValueError(f"payloads of {first.codec} do not add; it combines by merging")
    if any((p.codec, p.shape, p.form, p.dtype) != (first.codec, first.shape, first.form, first.dtype) for p in payloads):
        raise ValueError(f"payloads of {first.codec} differ in codec, shape or form: cannot be added")
    dtype = np.dtype(first.dtype)
    wide = np.float32 if dtype == np.float16 else dtype
    total = np.frombuffer(first.body, dtype).astype(wide)
    for payload in payloads[1:]:
        total += np.frombuffer(payload.body, dtype)
    body = total.astype(dtype, copy=False).tobytes()
    return Payload(body, first.codec, first.shape, first.form, first.dtype)


def combine_payloads(
    codec: Compressor, payloads: Sequence[Payload], how: Combine, key: Key = None
) -> Payload | list[Payload]:
    """What comes back to every party: the sum, the codec's merge, or all of the payloads."""
    if how == "sum":
        return add_payloads(payloads)
    if how == "merge":
        return codec.merge(payloads, key)
    return list(payloads)


def aggregate(
    codecs: Sequence[Compressor],
    tensors: Sequence[torch.Tensor],
    key: Key,
    at: Compressor | None = None,
) -> tuple[list[torch.Tensor], list[list[int]], list[int]]:
    """Drive the generators of all parties through one aggregation in this process.

    ``at`` is the aggregator's own instance (the first party's if None).

    Returns
    -------
    the aggregated tensor as each party decodes it; bytes sent up by each party, a list a party
    with an entry a round; bytes that each party gets back, an entry a round.
    """
    encodings = [codec.encode(tensor, key) for codec, tensor in zip(codecs, tensors, strict=True)]
    asked = [next(encoding) for encoding in encodings]
    up: list[list[int]] = [[] for _ in codecs]
    down: list[int] = []
    while True:
        payloads = [payload for payload, _ in asked]
        for sent, payload in zip(up, payloads, strict=True):
            sent.append(payload.nbytes)
        combined = combine_payloads(at or codecs[0], payloads, asked[0][1], key)
        answer = combined if isinstance(combined, list) else [combined]
        down.append(sum(payload.nbytes for payload in answer))
        asked, results = [], []
        for encoding in encodings:
            try:
                asked.append(encoding.send(combined))
            except StopIteration as stop:
                results.append(stop.value)
        if not asked:
            return results, up, down
        if results:
            raise RuntimeError(f"{codecs[0].name}: parties disagree on the number of rounds")


names, load = room("methods.compression", Compressor)
