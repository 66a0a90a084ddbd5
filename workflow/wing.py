"""A wing of the report: a document, or the matrix; one folder of declarations."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from pydantic import create_model

from slowlink.reports.charts import Figure, Table, target
from slowlink.workflow import closure
from slowlink.workflow.experiment import Experiment, Settings, Training

if TYPE_CHECKING:
    import pandas as pd

    from slowlink.reports.html import Matrix

BESIDE = "beside"
"""The function by which a wing says more than its figures and tables do."""


@dataclass(frozen=True)
class Wing:
    """What the Python files of a folder declare.

    Attributes
    ----------
    shown: figures and tables by name, in the order of the page.
    places: the module that declares each of them, and ``beside``.
    beside: what the report says besides, from all rows that its page reads; None of a document.
    """

    name: str
    folder: Path
    settings: type[Settings]
    experiments: dict[str, Experiment]
    shown: dict[str, Figure | Table]
    places: dict[str, str]
    beside: Callable[[pd.DataFrame], Matrix] | None = None

    @classmethod
    def read(cls, package: str, folder: Path) -> Wing:
        """Import the Python files of the folder that declare something, and collect it.

        Raises
        ------
        ValueError
            Not exactly one subclass of Settings, or a name declared twice.
        """
        files = [file.stem for file in sorted(folder.glob("*.py")) if closure.declares(file)]
        modules = [importlib.import_module(f"{package}.{stem}") for stem in files]
        settings = [
            one
            for module in modules
            for one in vars(module).values()
            if isinstance(one, type) and issubclass(one, Settings) and _own(one, module)
        ]
        if len(settings) != 1:
            raise ValueError(f"{folder}: needs one subclass of Settings, has {len(settings)}")
        experiments = _declared(modules, Experiment)
        first = sorted(modules, key=lambda one: one.__name__ != f"{package}.page")
        shown = _declared(first, (Figure, Table))
        places = {
            name: module.__name__
            for module in modules
            for name in (*shown, BESIDE)
            if name in vars(module) and vars(module)[name] is shown.get(name, vars(module)[name])
        }
        beside = next((vars(m)[BESIDE] for m in modules if BESIDE in vars(m)), None)
        own = {one.name: one for one in experiments.values()}
        return cls(folder.name, folder, settings[0], own, shown, places, beside)

    @cached_property
    def sections(self) -> dict[str, type]:
        """Schema by key of every section that an experiment reads."""
        found: dict[str, type] = {}
        for one in self.experiments.values():
            for key, schema in one.sections.items():
                if found.setdefault(key, schema) is not schema:
                    raise ValueError(f"{self.name}: section {key!r} has two schemas")
        return found

    @cached_property
    def schema(self) -> type[Settings]:
        """The whole recipe: settings and sections."""
        fields = {key: (schema, ...) for key, schema in self.sections.items()}
        return create_model(self.settings.__name__, __base__=self.settings, **fields)

    @property
    def figures(self) -> dict[str, Figure]:
        return {name: one for name, one in self.shown.items() if isinstance(one, Figure)}

    @property
    def tables(self) -> dict[str, Table]:
        return {name: one for name, one in self.shown.items() if isinstance(one, Table)}

    @property
    def trainings(self) -> dict[str, Training]:
        return {n: one for n, one in self.experiments.items() if isinstance(one, Training)}

    @property
    def claims(self) -> Path | None:
        """The file of what the document prints; None of a wing that is no document."""
        file = self.folder / "claims.yaml"
        return file if file.is_file() else None

    @property
    def targets(self) -> dict[str, list[str]]:
        """Names of figures and tables by target: ``packet`` and ``packet_table`` are one."""
        found: dict[str, list[str]] = {}
        for name in self.shown:
            found.setdefault(target(name), []).append(name)
        return found

    def code(self, name: str) -> tuple[frozenset[str], str]:
        """The files that a figure or table, or ``beside``, uses, and a digest of its declaration,
        with what that uses in files of the wing; nothing where none is called so."""
        if name not in self.places:
            return frozenset(), ""
        return closure.of_function(self.places[name], name)

    def makers(self, experiment: str) -> list[Experiment]:
        """Who makes rows of an experiment: itself, and others that say so."""
        return [one for one in self.experiments.values() if experiment in (one.name, *one.makes)]


def _own(one: object, module: ModuleType) -> bool:
    return getattr(one, "__module__", "") == module.__name__


def _declared(modules: list[ModuleType], kind: type | tuple[type, ...]) -> dict:
    """Declarations of a kind by the names that modules give them, in order of definition."""
    found: dict[str, object] = {}
    for module in modules:
        for name, one in vars(module).items():
            if isinstance(one, kind) and not name.startswith("_"):
                if found.get(name, one) is not one:
                    raise ValueError(f"{module.__name__}: {name} is declared twice")
                found[name] = one
    return found
