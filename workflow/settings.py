"""Settings of a run: the recipes of all wings at a scale, validated.

A recipe is ``recipe.yaml`` in a wing's folder. Any mapping in it may have keys ``smoke``, ``desk``
and ``paper``, whose values are laid over the mapping at that scale.

    python -m slowlink.workflow.settings desk    makes all methods and models that recipes name
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from slowlink.testbed.cache import cached, sources
from slowlink.testbed.given import Loader
from slowlink.testbed.results import Scale
from slowlink.workflow import documents, matrix
from slowlink.workflow.closure import ROOMS, ROOT
from slowlink.workflow.experiment import Settings as Recipe
from slowlink.workflow.named import Named, known, named, parameters
from slowlink.workflow.wing import Wing

SCALES = get_args(Scale)
RECIPE = "recipe.yaml"


class SettingsError(ValueError):
    """A setting that does not fit: names the file, the key and what is allowed."""


@dataclass(frozen=True)
class Settings:
    """The scale, the recipe of every wing by its name, and the only method that is to be made of
    the matrix, if not all."""

    scale: Scale
    recipes: dict[str, Recipe]
    only: str | None = None


def wing_of(name: str) -> Wing:
    """A document, or the matrix."""
    return matrix.load() if name == "matrix" else documents.load(name)


def wings() -> dict[str, Wing]:
    """All documents and the matrix, by name."""
    there = [*documents.names(), *(["matrix"] if (matrix.FOLDER / RECIPE).is_file() else [])]
    return {name: wing_of(name) for name in there}


def load(
    command_line: dict[str, Any] | None = None,
    folders: dict[str, Path] | None = None,
    names: bool = True,
) -> Settings:
    """Settings for a scale, from ``--config`` and the recipes of all wings.

    Parameters
    ----------
    folders: where recipes lie that are not in their wing's folder, by wing.
    names: whether named methods, models, data sets and devices are looked up; the jobs of a run
        need not repeat it.

    Raises
    ------
    SettingsError
        An unknown key, a wrong type, an unknown name or a value that is not allowed, with file and
        key. Values that only a method itself can judge are left to :func:`make_all`.
    """
    given = dict(command_line or {})
    scale = given.pop("scale", "desk")
    only = given.pop("only", None)
    if given:
        raise SettingsError(
            f"--config: unknown key {', '.join(map(repr, sorted(given)))}; allowed: scale, only"
        )
    if scale not in SCALES:
        raise SettingsError(f"--config: scale={scale!r}; allowed: {', '.join(SCALES)}")
    recipes = {}
    for name, wing in wings().items():
        file = (folders or {}).get(name, wing.folder) / RECIPE
        recipes[name] = recipe_of(wing, file, scale, names)
    if only is not None:
        try:
            recipes["matrix"] = matrix.with_method(recipes["matrix"], str(only))
        except ValueError as error:
            raise SettingsError(f"--config: {error}") from None
    return Settings(scale, recipes, None if only is None else str(only))


def recipe_of(wing: Wing, file: Path, scale: Scale, names: bool = True) -> Recipe:
    """One wing's recipe at a scale. Raises SettingsError as :func:`load`."""
    raw = at_scale(_read(file), scale)
    check = Check(file)
    try:
        recipe = wing.schema(**raw)
    except ValidationError as error:
        raise SettingsError("\n".join(check.explain(one, wing) for one in error.errors())) from None
    if names:
        for one in named(recipe):
            check.named(one)
        recipe.check(check)
    return recipe


def make_all(settings: Settings) -> None:
    """Make every method and model that the recipes name once, before the first job runs.

    Raises
    ------
    SettingsError
        A value that the method or the model refuses, with file and key.
    """
    for name, wing in wings().items():
        check = Check(wing.folder / RECIPE)
        for one in named(settings.recipes[name]):
            check.make(one)
        settings.recipes[name].check_made(check)


def make_all_apart(scale: Scale) -> None:
    """The same in a process of its own, for one that plans and has not imported what it takes; not
    again until a recipe, a method or the models change."""
    recipes = [wing.folder / RECIPE for wing in wings().values()]
    files = [*recipes, *sorted(ROOT.glob("methods/**/*.py")), ROOT / "testbed/training/models.py"]

    def make() -> bool:
        command = [sys.executable, "-m", "slowlink.workflow.settings", scale]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise SettingsError(done.stderr.strip().rpartition("\n")[2])
        return True

    cached(f"made {scale} {sources(*files)}", make)


def at_scale(value: Any, scale: Scale) -> Any:
    """``value`` with what its mappings change at ``scale`` laid over them."""
    if isinstance(value, list):
        return [at_scale(one, scale) for one in value]
    if not isinstance(value, dict):
        return value
    plain = {key: at_scale(one, scale) for key, one in value.items() if key not in SCALES}
    changed = at_scale(value.get(scale) or {}, scale) if scale in value else {}
    return changed if "name" in changed else merge(plain, changed)


def merge(base: dict, override: dict) -> dict:
    """``override`` laid over ``base``, key by key; a mapping with a ``name`` replaces the whole."""
    merged = dict(base)
    for key, value in override.items():
        nested = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if nested and "name" not in value else value
    return merged


class Check:
    """Settings against what is there; errors say where the setting stands."""

    def __init__(self, file: Path) -> None:
        self.file = _shown(file)

    def fail(self, key: str, why: object) -> None:
        """Raise SettingsError for the setting ``key`` (a dotted path)."""
        raise SettingsError(f"{self.file}: {key}: {why}") from None

    def need(self, key: str, name: object, known: Iterable) -> None:
        """Fail where ``name`` is not among the known ones."""
        if name not in known:
            self.fail(key, f"{name!r}; allowed: {', '.join(map(str, sorted(known)))}")

    def attempt(self, key: str, make: Callable, *given: Any, **named: Any) -> Any:
        """What ``make`` returns; a setting that it refuses fails."""
        try:
            return make(*given, **named)
        except (TypeError, ValueError) as error:
            self.fail(key, error)

    def named(self, one: Named) -> None:
        """A method, model, data set or device that is there and has the given parameters."""
        self.need(one.key, one.name, known(one.kind))
        if unknown := sorted(one.parameters.keys() - parameters(one.kind, one.name)):
            allowed = ", ".join(sorted(parameters(one.kind, one.name))) or "none"
            given = ", ".join(map(repr, unknown))
            self.fail(one.key, f"{one.name}: unknown parameter {given}; it takes: {allowed}")

    def make(self, one: Named) -> None:
        """The method or the model itself; weights of models are not drawn."""
        from importlib import import_module

        if one.kind == "model":
            import torch

            from slowlink.testbed.training import models

            with torch.device("meta"):
                self.attempt(one.key, models.make, one.name, **one.parameters)
        elif one.kind in ROOMS:
            load = import_module(f"slowlink.methods.{one.kind}").load
            self.attempt(one.key, load, one.name, **one.parameters)

    def explain(self, error: dict[str, Any], wing: Wing) -> str:
        """A validation error as one line."""
        path = [str(step) for step in error["loc"]]
        given = f" (given: {error['input']!r})" if error["type"] != "missing" else ""
        line = f"{self.file}: {'.'.join(path)}: {error['msg']}{given}"
        if error["type"] == "extra_forbidden":
            line += f"; allowed here: {', '.join(_allowed(wing.schema, path[:-1])) or 'nothing'}"
        return line


def _allowed(schema: Any, path: list[str]) -> list[str]:
    for step in path:
        field = getattr(schema, "model_fields", {}).get(step)
        if field is None:
            return []
        choices = (field.annotation, *get_args(field.annotation))
        schema = next((choice for choice in choices if hasattr(choice, "model_fields")), None)
    return sorted(getattr(schema, "model_fields", {}))


def _read(file: Path) -> dict:
    try:
        return yaml.load(file.read_text(), Loader) or {}
    except FileNotFoundError:
        raise SettingsError(f"{_shown(file)}: file is missing") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"{_shown(file)}: not valid YAML: {error}") from None


def _shown(file: Path) -> str:
    """The path as a user would type it from the repository's root."""
    return str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else str(file)


if __name__ == "__main__":
    try:
        make_all(load({"scale": sys.argv[1]}))
    except SettingsError as error:
        sys.exit(str(error))
