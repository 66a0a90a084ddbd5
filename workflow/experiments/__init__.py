"""From a recipe to result rows: a file a document, with one function ``rows``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module

from testbed.results import Row, Scale
from workflow.recipes import schema


def rows(
    paper: str, recipe: dict, scale: Scale, experiment: str, say: Callable[[str], None] = print
) -> Iterator[Row]:
    """Run one experiment of a document's recipe, given as plain data."""
    module = import_module(f"workflow.experiments.{paper}")
    return module.rows(schema(paper)(**recipe), scale, experiment, say)
