"""Which tensors travel together: groupings by layer sizes, backward times and cost callables."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slowlink.methods import room

Cost = Callable[[int, int], float]
"""Seconds for a message, or for coding one, of the tensors from the first number up to the second,
that one left out."""


@dataclass(frozen=True)
class Costs:
    """What a grouping costs; knows nothing of networks or devices.

    Attributes
    ----------
    backward_s: seconds of backward computation that end with each tensor's gradient, in the order
        in which backward produces them.
    encode, communicate, decode: seconds for one message.
    forward_s: seconds before backward begins.
    at_once: whether these three take arrays of tensor numbers as well, and asking for all messages
        costs little.
    """

    backward_s: Sequence[float]
    encode: Cost
    communicate: Cost
    decode: Cost
    forward_s: float = 0.0
    at_once: bool = False

    @classmethod
    def by_values(
        cls,
        sizes: Sequence[int],
        backward_s: Sequence[float],
        encode: Callable[[int], float],
        communicate: Callable[[int], float],
        decode: Callable[[int], float],
        forward_s: float = 0.0,
    ) -> Costs:
        """The costs where nothing but the number of its values decides what a message costs."""
        of_messages = (by_values(sizes, cost) for cost in (encode, communicate, decode))
        return cls(backward_s, *of_messages, forward_s=forward_s)


@dataclass(frozen=True)
class Fusion:
    """Base of every fusion; calling one groups tensors into messages.

    ``needs_costs`` says whether the grouping depends on the costs; if not, they may be left out.
    """

    summary: ClassVar[str]
    source: ClassVar[str]
    needs_costs: ClassVar[bool] = False

    def __call__(self, sizes: Sequence[int], costs: Costs | None = None) -> list[list[int]]:
        """Group tensors ``0 … n-1`` (in the order backward produces them) into messages.

        Parameters
        ----------
        sizes: values of each tensor.
        costs: of this model, codec, exchange and device.

        Returns
        -------
        Groups of tensor numbers, contiguous and in order.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Timeline:
    """When each message of one iteration is coded and sent, seconds from the start of forward.

    Attributes
    ----------
    encode, communicate, decode: (groups, 2) start and end of each. A message is encoded as soon
        as the last of its gradients is ready, so ``encode[:, 0]`` is also when it was.
    iteration_s: end of the last decode.
    exposed_communication_s: how long the compute stream stands idle for the network.
    """

    encode: np.ndarray
    communicate: np.ndarray
    decode: np.ndarray
    iteration_s: float
    exposed_communication_s: float


def timeline(sizes: Sequence[int], groups: Sequence[Sequence[int]], costs: Costs) -> Timeline:
    """The iteration that ``groups`` give; what fusions minimise (Sketch-Fusion, equation 7).

    One compute stream runs forward, then backward, tensor by tensor, and encodes a group when its
    last gradient is there, which holds up the rest of backward. The network takes one group at a
    time, in order. Decoding follows all backward and encoding, in order, each group once it came.

    Parameters
    ----------
    sizes: values of each tensor, in the order backward produces them.
    groups: tensor numbers of each message, contiguous and in order.

    Raises
    ------
    ValueError: costs of another number of tensors, negative or not finite; groups that are no
        contiguous partition.
    """
    costs = checked("timeline", sizes, costs)
    if [i for group in groups for i in group] != list(range(len(sizes))) or not all(groups):
        raise ValueError(
            f"timeline: groups must hold tensors 0 … {len(sizes) - 1} once, in order, none empty"
        )
    now, sent, encode, communicate, decode = costs.forward_s, 0.0, [], [], []
    messages = [(group[0], group[-1] + 1) for group in groups]
    for group, message in zip(groups, messages, strict=True):
        now += sum(costs.backward_s[i] for i in group)
        encode.append((now, now := now + costs.encode(*message)))
        sent = max(now, sent)
        communicate.append((sent, sent := sent + costs.communicate(*message)))
    busy = now
    for (_, arrived), message in zip(communicate, messages, strict=True):
        took = costs.decode(*message)
        now = max(now, arrived)
        decode.append((now, now := now + took))
        busy += took
    spans = (np.array(span, dtype=float).reshape(-1, 2) for span in (encode, communicate, decode))
    return Timeline(*spans, iteration_s=now, exposed_communication_s=now - busy)


def checked(name: str, sizes: Sequence[int], costs: Costs | None) -> Costs:
    """``costs`` as fusion ``name`` can use them: whole, checked, each asked once a message.

    Raises ValueError where they are missing, of another number of tensors, negative or not finite;
    for the callables, when they are asked.
    """
    if costs is None:
        raise ValueError(f"{name}: needs costs (backward times; encode, communicate and decode)")
    if len(costs.backward_s) != len(sizes):
        raise ValueError(
            f"{name}: costs have {len(costs.backward_s)} backward times, there are "
            f"{len(sizes)} tensors"
        )

    def seconds(what: str, value: float) -> float:
        value = float(value)
        if not 0 <= value < math.inf:
            raise ValueError(f"{name}: {what} must be finite seconds and at least 0, not {value}")
        return value

    def once(what: str) -> Cost:
        cost = getattr(costs, what)

        @functools.cache
        def one(begin: int, end: int) -> float:
            return seconds(f"{what}({begin}, {end})", cost(begin, end))

        def several(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
            found = np.asarray(cost(begin, end), float)
            for at in np.flatnonzero(~((found >= 0) & (found < math.inf)))[:1]:
                seconds(f"{what}({begin[at]}, {end[at]})", found[at])
            return found

        if not costs.at_once:
            return one
        return lambda begin, end: (several if isinstance(begin, np.ndarray) else one)(begin, end)

    return dataclasses.replace(
        costs,
        backward_s=[seconds(f"backward_s[{i}]", s) for i, s in enumerate(costs.backward_s)],
        forward_s=seconds("forward_s", costs.forward_s),
        **{what: once(what) for what in ("encode", "communicate", "decode")},
    )


def every_message(costs: Costs) -> np.ndarray:
    """(3, n + 1, n + 1) seconds of encoding, sending and decoding, by the first tensor of a message
    and the one after its last; not a number where there is no message."""
    n = len(costs.backward_s)
    begin, end = _ends(n)
    table = np.full((3, n + 1, n + 1), np.nan)
    for of_all, cost in zip(table, (costs.encode, costs.communicate, costs.decode), strict=True):
        if costs.at_once:
            of_all[begin, end] = cost(begin, end)
        else:
            of_all[begin, end] = list(map(cost, begin.tolist(), end.tolist()))
    return table


@functools.cache
def _ends(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The first tensor of every message of ``n``, and the one after its last."""
    return np.triu_indices(n + 1, 1)


def by_values(sizes: Sequence[int], cost: Callable[[int], float]) -> Cost:
    """``cost`` of so many values as that of a message of tensors of these ``sizes``."""
    before, asked = list(itertools.accumulate(sizes, initial=0)), functools.cache(cost)
    return lambda begin, end: asked(before[end] - before[begin])


def between(ends: Sequence[int]) -> list[list[int]]:
    """Groups that end before tensors ``ends``, the last of which is the number of tensors."""
    return [list(range(a, b)) for a, b in itertools.pairwise([0, *ends])]


names, load = room("slowlink.methods.fusion", Fusion)
