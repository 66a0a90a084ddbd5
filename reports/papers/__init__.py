"""The documents, a file each: their figures, their tables, and what the page says about them.

A document's module offers ``FIGURES``, name -> function ``(results, claims) -> Figure``;
``TABLES``, name -> function ``(verdicts, results) -> DataFrame``; and ``PAGE``, which of them the
page shows, in order, with their words. A module is found because its file is there, and a document
without one still has its claims judged and listed.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pandas as pd
from matplotlib.figure import Figure


@dataclass(frozen=True)
class Shown:
    """A table or figure on the page: what it shows, what the document says about it (if anything).

    ``experiment`` names the results behind it, several apart by spaces; ``name`` is also that of
    the target that makes it again.
    """

    kind: Literal["table", "figure"]
    name: str
    title: str
    shows: str
    says: str
    experiment: str


class Paper(Protocol):
    """What a document's module offers."""

    FIGURES: dict[str, Callable[..., Figure]]
    TABLES: dict[str, Callable[[pd.DataFrame, pd.DataFrame], pd.DataFrame]]
    PAGE: Sequence[Shown]


def names() -> list[str]:
    """Names of the documents that have a module here, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(paper: str) -> Paper:
    """The module of a document.

    Raises
    ------
    ValueError
        There is none by this name; says which there are.
    """
    if paper not in names():
        raise ValueError(f"no figures or tables of {paper!r}; there are: {', '.join(names())}")
    module: Any = importlib.import_module(f"{__name__}.{paper}")
    return module
