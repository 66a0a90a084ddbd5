"""Live runs that take too long for every report: a file a method, with a run a seed.

``make record-dds`` runs what is not recorded, or was recorded with other settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slowlink.testbed.training.recipe import Recipe
from slowlink.workflow.documents.dds.settings import Bench
from slowlink.workflow.kept import keep, kept

FOLDER = "data/recorded/dds_{}"
"""Of an experiment."""
COMMAND = "make record-dds"
LACKS = f"not recorded with these settings; {COMMAND} does"
DIGITS = 5
"""Significant ones of seconds and accuracies."""


def record() -> None:
    """Run and keep, one by one, what is not recorded yet."""
    from slowlink.workflow import settings
    from slowlink.workflow.documents.dds import data_parallel, federated

    chosen = settings.load({"scale": "desk"})
    its = chosen.recipes["dds"]
    for name, run, sections in (
        ("ddp_recorded", data_parallel.record, (its.ddp, its.ddp_recorded)),
        ("federated_recorded", federated.record, (its.federated, its.federated_recorded)),
    ):
        run(Bench("dds", name, its, chosen.scale), *sections)


def run_of(recipe: Recipe) -> dict[str, Any] | None:
    """What was kept of a run; None if it is not there."""
    return next((run for run in _runs(recipe) if run["seed"] == recipe.seed), None)


def add(recipe: Recipe, found: dict[str, Any]) -> None:
    """Keep a run beside those with other seeds."""
    runs = [run for run in _runs(recipe) if run["seed"] != recipe.seed]
    runs.append(dict(seed=recipe.seed) | _short(found))
    runs.sort(key=lambda run: run["seed"])
    keep(_folder(recipe), recipe.system, _setting(recipe), COMMAND, runs=runs)


def turned(labels: Sequence[str], number: int) -> list[str]:
    """Who is first goes round, so that no method always runs after the same one."""
    by = number % max(1, len(labels))
    return [*labels[by:], *labels[:by]]


def _runs(recipe: Recipe) -> list[dict[str, Any]]:
    return kept(_folder(recipe), recipe.system, _setting(recipe)).get("runs", [])


def _folder(recipe: Recipe) -> str:
    return FOLDER.format(recipe.experiment)


def _setting(recipe: Recipe) -> dict[str, Any]:
    """What all seeds share; a field of later days with a default is no other setting."""
    return recipe.model_dump(mode="json", exclude={"seed", "scale"}, exclude_defaults=True)


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_short(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
