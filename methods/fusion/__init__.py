"""Which tensors travel together: groupings by layer sizes, backward times and cost callables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from methods import room

Cost = Callable[[int], float]
"""Seconds for a message (or a compression) of so many values."""


@dataclass(frozen=True)
class Fusion:
    """Base of every fusion; calling one groups tensors into messages."""

    summary: ClassVar[str]
    source: ClassVar[str]

    def __call__(
        self,
        sizes: Sequence[int],
        backward_s: Sequence[float] | None = None,
        compression: Cost | None = None,
        communication: Cost | None = None,
    ) -> list[list[int]]:
        """Group tensors ``0 … n-1`` (in the order backward produces them) into messages.

        Parameters
        ----------
        sizes: values of each tensor.
        backward_s: seconds of backward computation that end with each tensor's gradient.
        compression, communication: cost callables; None where a method does not need them.

        Returns
        -------
        Groups of tensor numbers, contiguous and in order.
        """
        raise NotImplementedError


names, load = room("methods.fusion", Fusion)
