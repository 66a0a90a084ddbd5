"""Which tensors travel together: groupings by layer sizes, backward times and cost callables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from methods import room

Cost = Callable[[int], float]
"""Seconds for a message (or for coding one) of so many values."""


@dataclass(frozen=True)
class Costs:
    """What a grouping costs; knows nothing of networks or devices.

    Attributes
    ----------
    backward_s: seconds of backward computation that end with each tensor's gradient, in the order
        in which backward produces them.
    encode, communicate, decode: seconds for one message of so many values.
    forward_s: seconds before backward begins.
    """

    backward_s: Sequence[float]
    encode: Cost
    communicate: Cost
    decode: Cost
    forward_s: float = 0.0


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


names, load = room("methods.fusion", Fusion)
