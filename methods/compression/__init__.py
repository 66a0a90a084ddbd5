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
import numbers
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from slowlink.methods import method_name, room
from slowlink.methods.compression.pieces.frame import ADDABLE, Frame, Payload
from slowlink.methods.compression.pieces.packing import (
    check_finite,
    check_length,
    from_bytes,
    to_bytes,
    write_halves,
)

__all__ = [
    "Combine",
    "Compressor",
    "Encoding",
    "Frame",
    "Key",
    "Payload",
    "Work",
    "add_payloads",
    "aggregate",
    "alike",
    "combine_payloads",
    "load",
    "names",
    "untouched",
]

Combine = Literal["sum", "merge", "gather"]
Key = Hashable

MAX_VALUES = 2**31 - 1
"""Values a tensor may have: indices travel as int32."""

LARGEST_HALF = torch.finfo(torch.float16).max

Encoding = Generator[tuple[Payload, Combine], Any, torch.Tensor]


@dataclass(frozen=True)
class Work:
    """What coding one tensor does to memory, for devices to price without knowing the codec.

    Attributes
    ----------
    passes: operations over all values, each as long as a copy of the tensor; 0.5 is half a copy.
    kernels: operations that a tensor library launches, whatever the tensor's size.
    selections: searches for the largest among all values.
    draws: random numbers for each value.
    products: multiply-adds for each value in products of matrices.
    """

    passes: float = 0.0
    kernels: int = 0
    selections: float = 0.0
    draws: float = 0.0
    products: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.passes or self.kernels or self.selections or self.draws or self.products)


COPY = Work(passes=1, kernels=6)
"""What a codec does, either way, to a tensor that it sends as it is beside others."""


@dataclass
class Compressor:
    """Base of every compressor. State is per key; one instance serves one worker.

    One-shot codecs implement ``compress`` and ``decompress`` (and ``merge`` where ``combine`` is
    ``merge``); codecs with several rounds override ``encode``. ``adds`` is false where the
    aggregate is a vote of signs, not a sum: such a codec sends no zeros. ``elementwise`` is true
    where a value's bytes depend on nothing else, so that tensors may be coded as one; ``compress``
    then takes a ``factor`` of at most 1, too, and codes so many times the values in the same pass.

    ``encode_work`` and ``decode_work`` say what coding a tensor does, decoding by what one payload
    takes; a property where parameters decide, and :meth:`work` where a tensor's size does. A test
    holds them against the clock, and ``python -m slowlink.testbed.measuring <name>`` says what to
    write. What sends values from where they lie does no work.
    """

    summary: ClassVar[str]
    source: ClassVar[str]
    combine: ClassVar[Combine] = "sum"
    one_shot: ClassVar[bool] = True
    exact_bytes: ClassVar[bool] = True
    adds: ClassVar[bool] = True
    elementwise: ClassVar[bool] = False
    encode_work: ClassVar[Work]
    decode_work: ClassVar[Work]

    state: dict[Key, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def name(self) -> str:
        return method_name(self)

    def work(self, values: int) -> tuple[Work, Work]:
        """What encoding and decoding do to a tensor of so many values: the same to all, unless a
        codec sends some of them as they are."""
        return self.encode_work, self.decode_work

    def compress(self, tensor: torch.Tensor, key: Key) -> Payload:
        """Encode ``tensor`` (any shape, floating point, CPU or CUDA); update this key's state.

        Raises
        ------
        ValueError
            Not floating point, NaN or infinity among the values, or a key known with another
            size; names the key, and leaves the state as it was.
        """
        raise NotImplementedError

    def decompress(self, payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
        """The float32 tensor that ``payload`` stands for. Raises ValueError on malformed bodies."""
        raise NotImplementedError

    def merge(self, payloads: Sequence[Payload], key: Key = None) -> Payload:
        """Combine payloads where an exchange aggregates; the result decodes to their sum."""
        raise NotImplementedError

    def payload_bytes(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Bytes of each round's payload for a tensor of ``shape``, from the published formula.

        Exact; where ``exact_bytes`` is false the data decide, and this is the most it can be.
        """
        raise NotImplementedError

    def answer_bytes(self, shape: Sequence[int], parties: int) -> tuple[int, ...]:
        """Bytes of what comes back to a party each round, if a server combines so many payloads.

        Codecs that merge say how large the merged payload is; where the data decide, of payloads
        that are sparse at independent places. As it stands, the most: all of them side by side.
        """
        times = 1 if self.combine == "sum" else parties
        return tuple(times * nbytes for nbytes in self.payload_bytes(shape))

    def encode(self, tensor: torch.Tensor, key: Key, **factor: float) -> Encoding:
        """Yield ``(payload, combine)`` each round; return the sum over all parties."""
        combined = yield self.compress(tensor, key, **factor), self.combine
        if self.combine == "gather":
            total = self.decompress(combined[0], tensor.device)
            for payload in combined[1:]:
                total += self.decompress(payload, tensor.device)
            return check_finite(total, f"{self.name}: sum of tensor {key!r}")
        return self.decompress(combined, tensor.device)

    def state_dict(self) -> dict[Key, Any]:
        """A copy of all state, for checkpoints."""
        return copy.deepcopy(self.state)

    def load_state_dict(self, state: dict[Key, Any]) -> None:
        """Go on from a copy of ``state``; what follows is bit-equal."""
        self.state = copy.deepcopy(state)

    # Helpers that codecs share; callers do not use them.

    def _require(
        self, name: str, kind: type, allowed: str, holds: Callable[[Any], bool] = lambda _: True
    ) -> None:
        """Refuse a parameter that is not of ``kind`` (float, int, bool or str) or out of range."""
        value = getattr(self, name)
        abstract = {float: numbers.Real, int: numbers.Integral}.get(kind, kind)
        right = isinstance(value, abstract) and (kind is bool or not isinstance(value, bool))
        if right and kind is float:
            right = math.isfinite(value)
        if not (right and holds(value)):
            raise ValueError(f"{self.name}: {name} must be {allowed}, not {value!r}")

    def _flat(self, tensor: torch.Tensor, key: Key) -> torch.Tensor:
        """``tensor`` as a checked flat float32 tensor; shares memory where it already is one."""
        return check_finite(self._unchecked(tensor, key), self._what(key))

    def _unchecked(self, tensor: torch.Tensor, key: Key) -> torch.Tensor:
        """:meth:`_flat` without a pass to find what is not finite, for who finds it in another."""
        what = self._what(key)
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            raise ValueError(f"{what} must be a floating-point torch tensor")
        if tensor.numel() > MAX_VALUES:
            raise ValueError(f"{what} has {tensor.numel()} values, at most {MAX_VALUES} fit; split")
        return tensor.detach().to(torch.float32).reshape(-1)

    def _what(self, key: Key) -> str:
        return f"{self.name}: tensor {key!r}"

    def _memory(self, key: Key, flat: torch.Tensor, *names: str) -> dict[str, Any]:
        """This key's state: a ``step`` counter and zero-initialised buffers like ``flat``."""
        state = self.state.setdefault(key, {"step": 0, "size": flat.numel()})
        if state["size"] != flat.numel():
            raise ValueError(
                f"{self.name}: tensor {key!r} has {flat.numel()} values, had {state['size']} "
                f"before; use one key a tensor"
            )
        for name in names:
            buffer = state.get(name)
            state[name] = torch.zeros_like(flat) if buffer is None else buffer.to(flat.device)
        return state

    def _payload(
        self, body: bytes | torch.Tensor, tensor_shape: Sequence[int], form: str, dtype: str = ""
    ) -> Payload:
        return Payload(body, self.name, tuple(tensor_shape), form, dtype)

    def _dense(self, flat: torch.Tensor, shape: Sequence[int], dtype: str = "float32") -> Payload:
        """A payload of plain values; what float16 cannot hold saturates at ±65504."""
        if dtype == "float16":
            body, _ = write_halves(flat, self.name, LARGEST_HALF)
            return self._payload(body, shape, "dense", dtype)
        return self._payload(to_bytes(flat, dtype), shape, "dense", dtype)

    def _read_dense(self, payload: Payload, device: torch.device | str) -> torch.Tensor:
        """The flat float32 values of a :meth:`_dense` payload."""
        what = f"{self.name} {payload.form}"
        return from_bytes(payload.content, payload.dtype, payload.numel, what, device)

    def _expect(self, payload: Payload, forms: dict[str, tuple[str, ...]]) -> int:
        """Check codec, form with its dtypes, and shape; return the number of values."""
        if payload.codec != self.name:
            raise ValueError(f"{self.name}: cannot decode a payload of {payload.codec!r}")
        if payload.dtype not in forms.get(payload.form, ()):
            known = ", ".join(f"{form} {'/'.join(dtypes)}" for form, dtypes in forms.items())
            raise ValueError(
                f"{self.name}: form {payload.form!r} with dtype {payload.dtype!r} is not one of "
                f"{known}"
            )
        sizes = payload.shape
        if not all(isinstance(s, numbers.Integral) and s >= 0 for s in sizes):
            raise ValueError(f"{self.name}: shape {sizes} is not of whole sizes >= 0")
        if max(sizes, default=0) > MAX_VALUES or payload.numel > MAX_VALUES:
            raise ValueError(f"{self.name}: shape {sizes} has more than {MAX_VALUES} values")
        return payload.numel


def untouched(codec: Compressor) -> bool:
    """Whether a codec sends values from where they lie, so that they need not become bytes. What
    only stands for a codec, to keep its bytes, is none."""
    kind = type(codec)
    if not issubclass(kind, Compressor) or codec.encode_work or codec.decode_work:
        return False
    return kind.encode is Compressor.encode and codec.combine == "sum"


def alike(payloads: Sequence[Payload]) -> Payload:
    """The first of ``payloads``, which must stand for one tensor in one form.

    Raises
    ------
    ValueError
        None at all, or payloads that differ in codec, shape, form or dtype.
    """
    if not payloads:
        raise ValueError("no payloads to combine")
    first = payloads[0]
    mine = (first.codec, first.shape, first.form, first.dtype)
    for p in payloads[1:]:
        if (p.codec, p.shape, p.form, p.dtype) != mine:
            raise ValueError(
                f"payloads differ in codec, shape, form or dtype: {mine} and "
                f"{(p.codec, p.shape, p.form, p.dtype)}; all parties need one configuration"
            )
    return first


def add_payloads(payloads: Sequence[Payload]) -> Payload:
    """Sum payloads whose bodies add elementwise (``combine == "sum"``).

    Half-precision bodies are summed in float32 and rounded once; sums beyond ±65504 saturate.
    """
    first = alike(payloads)
    if not first.dtype:
        raise ValueError(f"payloads of {first.codec} do not add; it combines by merging")
    if first.dtype not in ADDABLE:
        raise ValueError(f"{first.codec}: dtype {first.dtype!r} is not one of {', '.join(ADDABLE)}")
    dtype = np.dtype(first.dtype)
    if first.nbytes % dtype.itemsize:
        raise ValueError(f"{first.codec}: body of {first.nbytes} bytes is not whole {first.dtype}")
    wide = np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind == "f" else dtype
    total = first.elements.astype(wide)
    for payload in payloads[1:]:
        if payload.nbytes != first.nbytes:
            check_length(payload.body, first.nbytes, first.codec)
        total += payload.elements
    if wide != dtype:
        most = np.finfo(dtype).max
        np.clip(total, -most, most, out=total)
    body = total.astype(dtype.newbyteorder("<"), copy=False).tobytes()
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
    everyone: bool = True,
    inside: Sequence[Sequence[Sequence[int]]] = (),
) -> tuple[list[torch.Tensor], list[list[int]], list[int]]:
    """Drive the generators of all parties through one aggregation in this process.

    Parameters
    ----------
    at: the aggregator's own instance (the first party's if None).
    everyone: decodes what comes back; else, of codecs that keep nothing of it, one party for all.
    inside: of payloads that add, level by level, the positions of those that a server adds before
        their sum goes on as one payload.

    Returns
    -------
    the aggregated tensor as each party decodes it; bytes sent up by each party, a list a party
    with an entry a round; bytes that each party gets back, an entry a round.
    """
    encodings = [codec.encode(tensor, key) for codec, tensor in zip(codecs, tensors, strict=True)]
    asked = [next(encoding) for encoding in encodings]
    up: list[list[int]] = [[] for _ in codecs]
    down: list[int] = []
    if not everyone and all(type(codec).encode is Compressor.encode for codec in codecs):
        encodings = encodings[:1]
    while True:
        payloads = [payload for payload, _ in asked]
        for sent, payload in zip(up, payloads, strict=True):
            sent.append(payload.nbytes)
        for groups in inside:
            payloads = [add_payloads([payloads[one] for one in group]) for group in groups]
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


names, load = room("slowlink.methods.compression", Compressor)
