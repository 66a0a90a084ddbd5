"""Settings of a run: the recipes of the documents with the overrides of a scale, validated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from testbed.results import Scale
from workflow.recipes import Check, PaperRecipe, SettingsError, papers, schema

CONFIG = Path(__file__).parent / "config"
PAPERS = papers()
SCALES = get_args(Scale)


@dataclass(frozen=True)
class Settings:
    """The scale, the recipe of every document by its name, and the only method that is to be made
    of the matrix, if not all."""

    scale: Scale
    recipes: dict[str, PaperRecipe]
    only: str | None = None


def load(
    command_line: dict[str, Any] | None = None, config: Path = CONFIG, names: bool = True
) -> Settings:
    """Settings for a scale, from ``--config`` and the files in ``workflow/config``.

    ``names=False`` skips the check that named methods, models and devices exist, which imports
    them: the jobs of a run need not repeat it.

    Raises
    ------
    SettingsError
        An unknown key, a wrong type or a value that is not allowed, with file and key.
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
    overrides_file = config / f"{scale}.yaml"
    overrides = _read(overrides_file)
    unknown = sorted(set(overrides) - set(PAPERS))
    if unknown:
        raise SettingsError(
            f"{_shown(overrides_file)}: unknown key {', '.join(map(repr, unknown))}; "
            f"allowed: {', '.join(PAPERS)}"
        )
    recipes = {}
    for paper in PAPERS:
        recipe_file = config / "papers" / f"{paper}.yaml"
        if not recipe_file.is_file() and (config / f"{paper}.yaml").is_file():
            recipe_file = config / f"{paper}.yaml"  # no document's
        recipe = _read(recipe_file)
        changed = overrides.get(paper) or {}
        try:
            recipes[paper] = schema(paper)(**merge(recipe, changed))
        except ValidationError as error:
            raise SettingsError(
                _explain(error, paper, recipe_file, overrides_file, changed)
            ) from None
        if names:

            def shown(key: str, recipe_file=recipe_file, changed=changed) -> str:
                path = key.split(".")
                return _shown(overrides_file if _reaches(changed, path) else recipe_file)

            recipes[paper].check(Check(shown))
    if only is not None:
        recipes["matrix"] = _with(recipes["matrix"], str(only))
    return Settings(scale, recipes, None if only is None else str(only))


def _with(matrix: Any, only: str) -> Any:
    """The matrix with the method ``only``, which a scale may leave out."""
    needed = matrix.needed()
    using = [label for label, names in needed.items() if only in names]
    if not using:
        raise SettingsError(
            f"--config: only={only!r} is no method: neither a file of methods/ nor one of the "
            f"matrix; allowed: {', '.join(sorted(set().union(*needed.values())))}"
        )
    if matrix.labels is None or set(using) & set(matrix.labels):
        return matrix
    return matrix.model_copy(update={"labels": [*matrix.labels, *using]})


def merge(base: dict, override: dict) -> dict:
    """``override`` laid over ``base``, key by key; a mapping with a ``name`` replaces the whole."""
    merged = dict(base)
    for key, value in override.items():
        nested = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if nested and "name" not in value else value
    return merged


def _explain(
    error: ValidationError, paper: str, recipe_file: Path, overrides_file: Path, changed: dict
) -> str:
    lines = []
    for problem in error.errors():
        path = [str(part) for part in problem["loc"]]
        file = overrides_file if _reaches(changed, path) else recipe_file
        given = f" (given: {problem['input']!r})" if problem["type"] != "missing" else ""
        lines.append(f"{_shown(file)}: {'.'.join(path)}: {problem['msg']}{given}")
        if problem["type"] == "extra_forbidden":
            lines[-1] += f"; allowed here: {', '.join(_allowed(paper, path[:-1])) or 'nothing'}"
    return "\n".join(lines)


def _reaches(changed: Any, path: list[str]) -> bool:
    for part in path:
        if not isinstance(changed, dict) or part not in changed:
            return False
        changed = changed[part]
    return True


def _allowed(paper: str, path: list[str]) -> list[str]:
    model: Any = schema(paper)
    for part in path:
        field = getattr(model, "model_fields", {}).get(part)
        if field is None:
            return []
        choices = (field.annotation, *get_args(field.annotation))
        model = next((choice for choice in choices if hasattr(choice, "model_fields")), None)
    return sorted(getattr(model, "model_fields", {}))


def _read(file: Path) -> dict:
    try:
        return yaml.safe_load(file.read_text()) or {}
    except FileNotFoundError:
        raise SettingsError(f"{_shown(file)}: file is missing") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"{_shown(file)}: not valid YAML: {error}") from None


def _shown(file: Path) -> str:
    """The path as a user would type it from the repository's root."""
    root = CONFIG.parents[1]
    return str(file.relative_to(root)) if file.is_relative_to(root) else str(file)
