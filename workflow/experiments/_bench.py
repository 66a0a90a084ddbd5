"""What the documents' experiments share: where their rows belong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from testbed.results import Row, Scale
from workflow.recipes import PaperRecipe

R = TypeVar("R", bound=PaperRecipe)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Bench(Generic[R]):
    """One experiment at one scale."""

    recipe: R
    scale: Scale
    experiment: str
    say: Say

    def row(self, case: str, metric: str, value: float, unit: str, **fields) -> Row:
        """Of this experiment, unless ``fields`` say otherwise."""
        mine = dict(paper=self.recipe.paper, experiment=self.experiment, scale=self.scale)
        given = dict(case=case, metric=metric, value=float(value), unit=unit)
        return Row(**mine | given | fields)
