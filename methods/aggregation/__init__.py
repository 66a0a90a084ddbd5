"""How a server combines what the members of a meeting bring: the mean, or a rule that some of them
cannot spoil.

An option of the meeting, not a fifth question: where there is a server that has every member's
vector, it may use any of these; an exchange that adds up on its way has the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from slowlink.methods import method_name, room


@dataclass(frozen=True)
class Aggregation:
    """Base of every rule.

    ``bounded`` says what one member that sends anything at all can do to the result.
    """

    summary: ClassVar[str]
    source: ClassVar[str]
    bounded: ClassVar[str]
    weighted: ClassVar[bool] = False
    """Whether weights of the members count; if not, all count alike, so that nobody gains by
    claiming more samples."""

    @property
    def least(self) -> int:
        """The fewest members that it takes."""
        return 1

    def __call__(
        self, updates: Tensor, weights: Sequence[float], origin: Tensor | None = None
    ) -> Tensor:
        """Combine ``updates``, (members, values) of finite float32, into (values,).

        Parameters
        ----------
        weights: one a member, above 0; their sum is 1.
        origin: (values,), what the updates are changes from, where they are no changes themselves.

        Raises
        ------
        ValueError
            Fewer than :attr:`least` members.
        """
        if len(updates) < self.least:
            raise ValueError(
                f"{method_name(self)}: {len(updates)} members bring something, needs {self.least}"
            )
        return self.combine(updates, weights, torch.zeros(()) if origin is None else origin)

    def combine(self, updates: Tensor, weights: Sequence[float], origin: Tensor) -> Tensor:
        """Combine as :meth:`__call__` does, knowing that members are enough."""
        raise NotImplementedError


names, load = room("slowlink.methods.aggregation", Aggregation)
