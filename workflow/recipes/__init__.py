"""What a document's recipe may say: a file a document, with one subclass of ``PaperRecipe``.

A recipe is read from ``config/papers/<paper>.yaml`` with the overrides of a scale over it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict

from testbed.training.recipe import Part


class SettingsError(ValueError):
    """A setting that does not fit: names the file, the key and what is allowed."""


class Strict(BaseModel):
    """Data without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PaperRecipe(Strict):
    """Base of every recipe."""

    paper: str

    def check(self, check: Check) -> None:
        """Make every method, model and device that the recipe names, once."""


class Check:
    """Names against what is there; errors say where the name stands."""

    def __init__(self, shown: Callable[[str], str]) -> None:
        self._shown = shown

    def fail(self, key: str, why: object) -> None:
        """Raise SettingsError for the setting ``key`` (a dotted path)."""
        raise SettingsError(f"{self._shown(key)}: {key}: {why}") from None

    def need(self, key: str, name: object, known: Iterable) -> None:
        if name not in known:
            self.fail(key, f"{name!r}; allowed: {', '.join(map(str, sorted(known)))}")

    def make(self, key: str, build: Callable, *args: Any, **parameters: Any) -> Any:
        try:
            return build(*args, **parameters)
        except (TypeError, ValueError) as error:
            self.fail(key, error)

    def model(self, key: str, part: Part) -> None:
        """A model that can be made; weights are not drawn."""
        import torch

        from testbed.training import models

        self.need(f"{key}.name", part.name, models.MODELS)
        with torch.device("meta"):
            self.make(key, models.make, part.name, **part.parameters)


def papers() -> list[str]:
    """Names of all documents."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def schema(paper: str) -> type[PaperRecipe]:
    """The recipe schema of a document."""
    module = importlib.import_module(f"{__name__}.{paper}")
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, PaperRecipe)
        and value.__module__ == module.__name__
    )
    return found


def distinct(values: list[int]) -> list[int]:
    if len(set(values)) < len(values):
        raise ValueError(f"must differ from each other, not {values}")
    return values


def kept_momentum(part: Part, momentum: float) -> tuple[Part, float]:
    """A codec with a momentum that keeps what it does not send, and what is left to the optimizer.

    Momentum is kept where what is not sent is kept, so that it is corrected for the delay.
    """
    from methods import compression

    codec = compression.load(part.name, **part.parameters)
    if hasattr(codec, "momentum") and getattr(codec, "error_feedback", True):
        return Part(name=part.name, **(part.parameters | {"momentum": momentum})), 0.0
    return part, momentum


def slug(text: str) -> str:
    """``text`` as part of a file name."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in text)
