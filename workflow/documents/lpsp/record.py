"""Trains what desk scale leaves out of LPSP's readings, and keeps it with the repository.

    python -m workflow.documents.lpsp.record        what is already kept with the same recipe stays

It takes ten minutes of one core, may be interrupted, and goes on where it was. The rows are those
that the summary of the trained curves has.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

from testbed.results import Row
from testbed.training.recipe import Recipe
from workflow.documents.lpsp import training
from workflow.documents.lpsp.settings import Bench, Settings, Workload

ROOT = Path(__file__).parents[3]
FILE = "data/recorded/lpsp_readings.json"
SCALE = "desk"
COMMAND = "python -m workflow.documents.lpsp.record"
TRAININGS = {"mnist": training.mnist, "cifar10": training.cifar10}
FIELDS = "metric", "value", "unit", "status", "reason"


def left_out(name: str, settings: Settings, workload: Workload, scale: str) -> dict[str, Recipe]:
    """The runs, by their id, that all readings on all sizes, and the first one with other options,
    would have beside those that ``workload`` trains."""
    bench = Bench("lpsp", name, settings, scale)
    more = dict(readings_on=workload.workers, ablated_readings=workload.readings[:1])
    every, trained = (
        TRAININGS[name].runs(bench, {name: one})
        for one in (workload.model_copy(update=more), workload)
    )
    return {key: run for key, run in every.items() if key not in trained}


def digest(recipe: Recipe) -> str:
    """What tells a recipe from any other; fields that are at their defaults do not count."""
    plain = recipe.model_dump(mode="json", exclude_defaults=True)
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def kept(name: str, settings: Settings, workload: Workload) -> Iterator[Row]:
    """Rows of the runs that are left out at the scale of the record, as far as they are kept."""
    record = load()
    for run in left_out(name, settings, workload, SCALE).values():
        found = record["runs"].get(digest(run))
        for values in found["rows"] if found else ():
            told = dict(zip(FIELDS, values, strict=True))
            told["value"] = float("nan") if told["value"] is None else told["value"]
            (case,) = run.networks
            yield Row(**run.told, case=case, evidence="recorded", **told)


def load() -> dict:
    """The record; an empty one if there is none."""
    path = ROOT / FILE
    return json.loads(path.read_text()) if path.is_file() else {"runs": {}}


def main() -> None:
    import torch

    from testbed.results import frame
    from testbed.training.trainer import train
    from workflow.settings import load as load_settings

    settings = load_settings({"scale": SCALE}).recipes["lpsp"]
    record = load()
    todo = {
        (name, digest(run)): run
        for name in TRAININGS
        for run in left_out(name, settings, getattr(settings, name), SCALE).values()
    }
    runs = {key: record["runs"][key] for _, key in todo if key in record["runs"]}
    for (name, key), run in todo.items():
        if key in runs:
            continue
        began = time.process_time()
        curves = frame(list(train(run)))
        rows = TRAININGS[name].summarise(curves, settings)
        told = [[None if v != v else v for v in (getattr(r, f) for f in FIELDS)] for r in rows]
        seconds = round(time.process_time() - began, 1)
        runs[key] = dict(experiment=name, run=run.id, cpu_seconds=seconds, rows=told)
        print(f"{len(runs)} of {len(todo)}: {name} {run.id}, {seconds} s", flush=True)
        text = dict(
            command=COMMAND,
            python=platform.python_version(),
            torch=str(torch.__version__),
            runs=runs,
        )
        beside = (ROOT / FILE).with_suffix(".partial")
        beside.write_text(json.dumps(text, indent=0) + "\n")
        os.replace(beside, ROOT / FILE)


if __name__ == "__main__":
    main()
