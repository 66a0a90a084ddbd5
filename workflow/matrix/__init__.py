"""The matrix: every system in every cell, what its rounds cost, and the training that it needs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from slowlink.workflow.wing import Wing

if TYPE_CHECKING:
    from slowlink.workflow.matrix.experiments import Matrix

FOLDER = Path(__file__).parent


@cache
def load() -> Wing:
    """What the matrix declares."""
    return Wing.read(__name__, FOLDER)


def with_method(recipe: Matrix, only: str) -> Matrix:
    """The recipe with the methods that use ``only``, which a scale may leave out.

    Parameters
    ----------
    only: a method of the matrix, or a file of the rooms.

    Raises
    ------
    ValueError
        Neither is called so.
    """
    needed = recipe.needed()
    using = [label for label, names in needed.items() if only in names]
    if not using:
        raise ValueError(
            f"only={only!r} is no method: neither a file of methods/ nor one of the matrix; "
            f"allowed: {', '.join(sorted(set().union(*needed.values())))}"
        )
    if recipe.labels is None or set(using) & set(recipe.labels):
        return recipe
    return recipe.model_copy(update={"labels": [*recipe.labels, *using]})
