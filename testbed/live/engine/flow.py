"""A plan at one of its nodes: what it sends as soon as it can, and what it ends with.

As in :func:`testbed.network.execution.execute`, what a transfer carries follows from the plan's
dependencies alone: sums are taken in the plan's order, whatever arrives first. Values are either
bodies that add (:class:`Sums`) or contributions side by side (:class:`Bundles`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from slowlink.methods.exchange import COPY, Plan

if TYPE_CHECKING:
    from slowlink.methods.compression import Payload

ANSWER = -1
"""Stands for the contributor of what is no contribution: an answer to all."""

ANSWERED = frozenset({ANSWER})

FINITE = float(np.finfo(np.float32).max)

Item = Any
"""What one segment of the vector holds, as its algebra has it."""

Value = dict[int, Item]
"""Items by segment."""

Carried = Mapping[int, Mapping[int, frozenset[int]]]
"""The contributors of what a transfer carries, by transfer and segment."""


class Refused(ValueError):
    """A member sent what cannot be; names the node of the plan that sent it."""

    def __init__(self, node: int, why: str) -> None:
        super().__init__(why)
        self.node = node


@dataclass(frozen=True)
class Due:
    """What payloads that arrive may be: described otherwise, they are refused.

    Attributes
    ----------
    codec: name of the codec whose payloads these are.
    limit: largest tensor, in bytes of float32.
    shape: of the tensor that they stand for; None for any.
    most: bytes that a contribution has at most; None for any number within the limit.
    largest: of the values, by magnitude.
    """

    codec: str
    limit: int
    shape: tuple[int, ...] | None = None
    most: int | None = None
    largest: float = FINITE

    def described(self, sender: int, its: Any) -> tuple[str, str, tuple[int, ...], int]:
        """Form, dtype, shape and size of a payload, as a message of ``sender`` says them."""
        if not isinstance(its, Mapping):
            raise Refused(sender, "its message does not say what it carries")
        form, dtype, shape, size = (its.get(name) for name in ("form", "dtype", "shape", "size"))
        names = isinstance(form, str) and isinstance(dtype, str) and isinstance(shape, list)
        whole = names and all(type(n) is int and n >= 0 for n in (*shape, size))
        if not whole or len(shape) > 8:
            what = f"form {form!r}, dtype {dtype!r}, shape {shape!r}"
            raise Refused(sender, f"no payload is of {what:.200}")
        if 4 * prod(shape) > self.limit or size > 2 * self.limit:
            raise Refused(sender, f"a tensor of shape {shape} and size {size} is over the limit")
        if self.shape is not None and tuple(shape) != self.shape:
            raise Refused(sender, f"a tensor of shape {shape}, where {list(self.shape)} is due")
        return form, dtype, tuple(shape), size

    def check_bytes(self, sender: int, nbytes: int) -> None:
        """Refuse a contribution that is larger than its codec makes any."""
        if self.most is not None and nbytes > self.most:
            raise Refused(sender, f"a payload of {nbytes} bytes, where {self.most} are the most")

    def check_values(self, sender: int, values: np.ndarray) -> None:
        """Refuse numbers that are not finite, or too large."""
        if values.dtype.kind == "f" and values.size:
            check_range(sender, float(values.min()), float(values.max()), self.largest)


def check_range(sender: int, low: float, high: float, largest: float) -> None:
    """Refuse values of ``sender`` from ``low`` to ``high``, NaN if one is, that are too large."""
    if -largest <= low <= high <= largest:
        return
    if not -FINITE <= low <= high <= FINITE:
        raise Refused(sender, "NaN or infinity among the values that it sent")
    raise Refused(sender, f"values from {low:.3g} to {high:.3g}, of at most {largest:g} (largest)")


class Part:
    """The transfers of ``plan`` in ``slots`` (None: all) that touch ``node``.

    Attributes
    ----------
    edges: units of the plan at which any transfer begins or ends; segments lie between them.
    """

    def __init__(self, plan: Plan, node: int, slots: Sequence[str] | None = None) -> None:
        self._plan, self._whole = plan, slots is None
        self._carried: dict[bool, Carried] = {}
        numbers = [i for i, slot in enumerate(plan.slots) if slots is None or slot in slots]
        wanted = self._wanted = np.isin(plan.slot, numbers)
        mine = np.flatnonzero(wanted & ((plan.src == node) | (plan.dst == node))).tolist()
        self.units = plan.units
        self.edges = np.unique(np.concatenate([[0, plan.units], plan.lo, plan.hi])).tolist()
        self.segments = {t: self._segments(t) for t in mine}
        self.src = {t: int(plan.src[t]) for t in mine}
        self.dst = {t: int(plan.dst[t]) for t in mine}
        self.copies = {t: bool(plan.op[t] == COPY) for t in mine}
        self.slots = {t: int(plan.slot[t]) for t in mine}
        self.leaving = [t for t in mine if self.src[t] == node]
        self.arriving = [t for t in mine if self.src[t] != node]
        self.ending = [t for t in mine if self.dst[t] == node]
        self.after = {t: self._after(t) for t in self.leaving}

    def __bool__(self) -> bool:
        return bool(self.segments)

    def _segments(self, t: int) -> range:
        return range(*(bisect_left(self.edges, edge[t]) for edge in (self._plan.lo, self._plan.hi)))

    def _after(self, t: int) -> list[int]:
        return [d for d in self._plan.dependencies(t).tolist() if self._wanted[d]]

    def carried(self, merges: bool) -> Carried:
        """Whose contributions arrive, as :func:`flow` joins them on their way.

        Parameters
        ----------
        merges: whether who brings nothing makes one answer to all of what came.
        """
        if merges not in self._carried:
            self._carried[merges] = self._origins(merges) if self.arriving else {}
        return self._carried[merges]

    def _origins(self, merges: bool) -> Carried:
        plan, transfers = self._plan, np.flatnonzero(self._wanted).tolist()
        after = {t: self._after(t) for t in transfers}
        first = (int(plan.src[t]) for t in transfers if not after[t])
        bring = frozenset(plan.contributors.tolist() if self._whole else first)
        found: dict[int, dict[int, frozenset[int]]] = {}
        for t in transfers:
            src, found[t] = int(plan.src[t]), {}
            joins = merges and plan.dst[t] == src and src not in bring
            for segment in self._segments(t):
                here = [d for d in after[t] if segment in found[d]]
                copied = [d for d in here if plan.op[d] == COPY][-1:]
                own = frozenset() if copied else bring & {src}
                of = own.union(*(found[d][segment] for d in copied or here))
                found[t][segment] = ANSWERED if joins else of
        return {t: found[t] for t in self.arriving}

    @property
    def answered(self) -> Carried:
        """What arrives where an answer to all goes its way."""
        return {t: dict.fromkeys(self.segments[t], ANSWERED) for t in self.arriving}

    def cuts(self, size: int) -> list[int]:
        """Where segments begin and end in a vector of so many elements or bytes."""
        return [edge * size // self.units for edge in self.edges]


@dataclass(frozen=True)
class Sent:
    """Transfer ``t`` leaves for ``to``; ``head`` says how to read ``body``."""

    t: int
    to: int
    head: dict[str, Any]
    body: bytes | memoryview


class Sums:
    """Payloads whose bodies add elementwise, as :func:`methods.compression.add_payloads` adds.

    Sums of half precision are rounded once a node, and saturate.
    """

    def __init__(self, part: Part, due: Due) -> None:
        self.part, self.due = part, due
        self.like: tuple[str, str, tuple[int, ...]] | None = None  # form, dtype, shape
        self.size = 0

    def own(self, payload: Payload) -> Value:
        self._know(payload.form, payload.dtype, payload.shape, payload.nbytes)
        return self._cut(np.frombuffer(payload.body, self._dtype))

    def own_vector(self, vector: np.ndarray) -> Value:
        """As :meth:`own` of the dense payload of a float32 vector."""
        self._know("dense", "float32", vector.shape, vector.nbytes)
        return self._cut(vector)

    def _know(self, form: str, dtype: str, shape: Sequence[int], nbytes: int) -> None:
        self.like = form, dtype, tuple(shape)
        self.size = nbytes // self._dtype.itemsize

    @property
    def _dtype(self) -> np.dtype:
        return np.dtype(self.like[1]).newbyteorder("<")

    def _cut(self, array: np.ndarray) -> Value:
        cuts = self.part.cuts(self.size)
        return {i: array[a:b] for i, (a, b) in enumerate(zip(cuts, cuts[1:], strict=False))}

    def total(self, items: Sequence[Item]) -> Item:
        """The sum of arrays, in this order."""
        if len(items) == 1:
            return items[0]
        dtype = items[0].dtype
        wide = np.dtype(np.float32) if dtype.kind == "f" and dtype.itemsize == 2 else dtype
        total = items[0].astype(wide)
        for item in items[1:]:
            total += item
        if wide != dtype:
            most = np.finfo(dtype).max
            np.clip(total, -most, most, out=total)
        return total.astype(dtype, copy=False)

    def pack(self, t: int, value: Value) -> tuple[dict[str, Any], bytes | memoryview]:
        form, dtype, shape = self.like
        head = dict(form=form, dtype=dtype, shape=list(shape), size=self.size)
        items = list(value.values())
        # Nothing changes an item, so a single one need not be copied.
        body = items[0].view(np.uint8).data if len(items) == 1 else b"".join(items)
        return {"sum": head}, body

    def unpack(self, t: int, head: Mapping[str, Any], body: bytes) -> Value:
        sender = self.part.src[t]
        form, dtype, shape, size = self.due.described(sender, head.get("sum"))
        if self.like is None:
            if dtype not in ("float16", "float32", "float64", "int8", "int16", "int32", "int64"):
                raise Refused(sender, f"elements of {dtype!r} do not add")
            self.due.check_bytes(sender, size * np.dtype(dtype).itemsize)
            self._know(form, dtype, shape, size * np.dtype(dtype).itemsize)
        if (form, dtype, shape) != self.like or size != self.size:
            mine, its = (*self.like, self.size), (form, dtype, shape, size)
            raise Refused(sender, f"it sent {its} where others have {mine}")
        cuts, segments = self.part.cuts(self.size), self.part.segments[t]
        first = cuts[segments.start]
        nbytes = (cuts[segments.stop] - first) * self._dtype.itemsize
        if len(body) != nbytes:
            raise Refused(sender, f"it sent {len(body)} bytes, and not {nbytes}")
        array = np.frombuffer(body, self._dtype)
        self.due.check_values(sender, array)
        return {i: array[cuts[i] - first : cuts[i + 1] - first] for i in segments}

    def payload(self, value: Value) -> Payload:
        """What a whole value stands for."""
        from slowlink.methods.compression import Payload  # here: with it comes torch

        form, dtype, shape = self.like
        body = b"".join(value[i] for i in range(len(self.part.edges) - 1))
        return Payload(body, self.due.codec, shape, form, dtype)


class Bundles:
    """Payloads by contributor, side by side; of an opaque body a segment is a range of bytes.

    What arrives is refused if it is of others than those ``carried`` has.

    Parameters
    ----------
    own: by contributor, what is due of it instead of ``due``.
    """

    def __init__(
        self, part: Part, due: Due, carried: Carried, own: Mapping[int, Due] | None = None
    ) -> None:
        self.part, self.due, self.carried, self.dues = part, due, carried, own or {}
        self.known: dict[int, tuple[str, str, tuple[int, ...], int]] = {}

    def _due(self, contributor: int) -> Due:
        return self.dues.get(contributor, self.due)

    def own(self, payload: Payload, contributor: int) -> Value:
        self.known[contributor] = payload.form, payload.dtype, payload.shape, payload.nbytes
        cuts, view = self.part.cuts(payload.nbytes), memoryview(payload.body)
        pairs = enumerate(zip(cuts, cuts[1:], strict=False))
        return {i: {contributor: view[a:b]} for i, (a, b) in pairs}

    def total(self, items: Sequence[Item]) -> Item:
        """All contributions of all items."""
        joined: dict[int, memoryview] = {}
        for item in items:
            joined |= item
        return joined

    def pack(self, t: int, value: Value) -> tuple[dict[str, Any], bytes]:
        of = sorted({contributor for item in value.values() for contributor in item})
        described = []
        for contributor in of:
            form, dtype, shape, size = self.known[contributor]
            its = dict(form=form, dtype=dtype, shape=list(shape), size=size)
            described.append(its | dict(codec=self._due(contributor).codec))
        parts = [[of.index(contributor) for contributor in item] for item in value.values()]
        body = b"".join(piece for item in value.values() for piece in item.values())
        return {"of": of, "as": described, "parts": parts}, body

    def unpack(self, t: int, head: Mapping[str, Any], body: bytes) -> Value:
        sender, segments = self.part.src[t], self.part.segments[t]
        of, described, parts = head.get("of"), head.get("as"), head.get("parts")
        lists = isinstance(of, list) and isinstance(described, list) and isinstance(parts, list)
        if not lists or len(of) != len(described) or len(parts) != len(segments):
            raise Refused(sender, "its message does not say whose contributions it carries")
        carried = self.carried[t]
        awaited = frozenset().union(*carried.values())
        for contributor, its in zip(of, described, strict=True):
            if type(contributor) is not int or contributor not in awaited:
                raise Refused(sender, f"it sent what is of {contributor!r:.50}, which is not due")
            due = self._due(contributor)
            known = due.described(sender, its)
            if (codec := its.get("codec")) != due.codec:
                raise Refused(sender, f"it sent {codec!r:.50}, where {due.codec!r} is due")
            if contributor != ANSWER:
                due.check_bytes(sender, known[3])
            if self.known.setdefault(contributor, known) != known:
                raise Refused(sender, f"it describes the payload of {contributor} otherwise")
        value: Value = {}
        at, view = 0, memoryview(body)
        for segment, members in zip(segments, parts, strict=True):
            if not isinstance(members, list) or not all(
                type(i) is int and 0 <= i < len(of) for i in members
            ):
                raise Refused(sender, "its message names contributions that it does not carry")
            named = [of[i] for i in members]
            if sorted(named) != sorted(carried[segment]):
                whose = sorted(carried[segment])
                raise Refused(sender, f"it sent what is of {named!s:.200}, where {whose} is due")
            value[segment] = {}
            for contributor in named:
                cuts = self.part.cuts(self.known[contributor][3])
                length = cuts[segment + 1] - cuts[segment]
                value[segment][contributor] = view[at : at + length]
                at += length
        if at != len(body):
            raise Refused(sender, f"it sent {len(body)} bytes, and its message says {at}")
        return value

    def payloads(self, value: Value) -> dict[int, Payload]:
        """The whole payloads of a whole value, by contributor."""
        from slowlink.methods.compression import Payload  # here: with it comes torch

        found = {}
        for contributor in sorted({c for item in value.values() for c in item}):
            form, dtype, shape, _ = self.known[contributor]
            pieces = [value[i][contributor] for i in range(len(self.part.edges) - 1)]
            codec = self._due(contributor).codec
            found[contributor] = Payload(b"".join(pieces), codec, shape, form, dtype)
        return found


class Given:
    """Bodies that are given, by slot, whatever arrives: a transfer carries its share of its
    sender's. Keeps what has come, by transfer."""

    def __init__(self, part: Part, bodies: Mapping[int, bytes]) -> None:
        self.part, self.bodies = part, bodies
        self.came: dict[int, bytes] = {}

    def total(self, items: Sequence[Item]) -> Item:
        return None

    def pack(self, t: int, value: Value) -> tuple[dict[str, Any], memoryview]:
        body = memoryview(self.bodies[self.part.slots[t]])
        cuts, segments = self.part.cuts(len(body)), self.part.segments[t]
        return {}, body[cuts[segments.start] : cuts[segments.stop]]

    def unpack(self, t: int, head: Mapping[str, Any], body: bytes) -> Value:
        self.came[t] = body
        return dict.fromkeys(self.part.segments[t])


Algebra = Sums | Bundles | Given


def flow(
    part: Part, algebra: Algebra, own: Value | None, turn: Callable[[Value], Value] | None = None
) -> Generator[Sent | None, tuple[int, Mapping[str, Any], bytes] | None, Value]:
    """Run a node's part: yields what leaves, and None to be sent the next arrival ``(t, head,
    body)``; returns what the node ends with.

    Parameters
    ----------
    own: what it contributes, None for nothing.
    turn: makes the answer of what has been joined, where the plan joins it (local transfers).

    Raises
    ------
    Refused: an arrival that cannot be.
    """
    arrived: dict[int, Value] = {}
    todo, missing = list(part.leaving), set(part.arriving)

    def value(transfers: Sequence[int], segments: Sequence[int]) -> Value:
        made = {}
        for segment in segments:
            here = [t for t in transfers if segment in part.segments[t]]
            copied = [t for t in here if part.copies[t]]
            if copied:
                made[segment] = arrived[copied[-1]][segment]
                continue
            items = [arrived[t][segment] for t in here]
            items = items if own is None else [own[segment], *items]
            if items:
                made[segment] = algebra.total(items)
        return made

    while todo or missing:
        waiting = []
        for t in todo:
            if not all(d in arrived for d in part.after[t]):
                waiting.append(t)
                continue
            carried = value(part.after[t], part.segments[t])
            if part.dst[t] == part.src[t]:
                arrived[t] = carried if turn is None else turn(carried)
            else:
                yield Sent(t, part.dst[t], *algebra.pack(t, carried))
        if len(waiting) == len(todo):
            t, head, body = yield None
            if t not in missing:
                raise ValueError(f"transfer {t} came twice, or is not of this exchange")
            arrived[t] = algebra.unpack(t, head, body)
            missing.remove(t)
        todo = waiting
    return value(part.ending, range(len(part.edges) - 1))
