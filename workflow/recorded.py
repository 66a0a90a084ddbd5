"""Trainings that take hours: run once, kept under ``data/recorded``, and read by every run since.

    python -m slowlink.workflow.recorded geomx residual [--jobs 2]

trains what is not there yet of the training ``residual`` of GeoMX's recipe, run by run. Whatever
ends it, it goes on where it was: a run that ended is kept, and one that did not has its checkpoint,
if its policy does not look at the clock. Which runs there are may depend on how earlier ones ended,
as in a search for the learning rate, so that it asks anew after each.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from importlib import metadata
from pathlib import Path
from typing import Any

from slowlink.testbed import files, results
from slowlink.testbed.given import processor
from slowlink.testbed.results import Row, row_of
from slowlink.testbed.training.recipe import Recipe
from slowlink.workflow.closure import ROOT
from slowlink.workflow.jobs import recorded_in

CHECKPOINTS = Path("results/recorded")
FREE = {"scale", "accelerator", "torch_threads"}
"""What of a recipe may differ between a record and the run that it stands for."""


def read(wing: str, experiment: str, runs: Sequence[Recipe]) -> Iterator[Row]:
    """Rows of runs as they were recorded, with the scale of ``runs`` and evidence *recorded*.

    A run that is not there, or was made with other settings, gives a failed row that says so.

    Raises
    ------
    ValueError
        A file is not the one that was recorded.
    """
    for run in runs:
        file, note = _paths(wing, experiment, run)
        told = dict(scale=run.scale, evidence="recorded")
        if why := _unfit(wing, experiment, run):
            failed = dict(value=math.nan, status="failed", reason=why)
            for case, link in run.networks.items():
                place = dict(case=case, bandwidth=link.wan, metric="test_accuracy", unit="%")
                yield Row(**run.told | place | told | failed)
            continue
        if _digest(file) != json.loads(note.read_text())["sha256"]:
            raise ValueError(f"{file} is not the file that {note} tells of")
        for record in results.records(file):
            yield row_of(record, **told)


def _unfit(wing: str, experiment: str, run: Recipe) -> str:
    """Why a record does not stand for a run; empty if it does."""
    file, note = _paths(wing, experiment, run)
    if not (file.is_file() and note.is_file()):
        return f"not recorded yet ({_command(wing, experiment)} does)"
    # Read as a recipe of today, what was added since with a default is no difference.
    kept = Recipe(**json.loads(note.read_text())["recipe"])
    names = sorted(Recipe.model_fields.keys() - FREE)
    other = [name for name in names if getattr(kept, name) != getattr(run, name)]
    return f"recorded with another {', '.join(other)}" if other else ""


def ended(wing: str, experiment: str, run: Recipe) -> float | None:
    """The test accuracy (%) with which a recorded run ended; minus infinity if it diverged, None if
    it is not there or has other settings."""
    if _unfit(wing, experiment, run):
        return None
    found = json.loads(_paths(wing, experiment, run)[1].read_text())["ended"]
    return -math.inf if found is None else found


def record(wing: str, experiment: str, runs: Callable[[], Sequence[Recipe]], jobs: int) -> None:
    """Train and keep those of ``runs()`` that are not there, in their order, ``jobs`` at a time."""
    context = multiprocessing.get_context("spawn")
    begun: set[str] = set()
    with ProcessPoolExecutor(jobs, context, max_tasks_per_child=1) as pool:
        busy: set[Future[str]] = set()
        while True:
            every = runs()
            todo = [one for one in every if one.id not in begun and _unfit(wing, experiment, one)]
            print(f"{len(todo)} of {len(every)} runs to record", flush=True)
            for run in todo[: jobs - len(busy)]:
                begun.add(run.id)
                busy.add(pool.submit(_record, wing, experiment, run.model_dump_json()))
            if not busy:
                return
            done, busy = wait(busy, return_when=FIRST_COMPLETED)
            for one in done:
                print(one.result(), flush=True)


def _record(wing: str, experiment: str, told: str) -> str:
    import torch

    from slowlink.testbed.training.trainer import train

    run = Recipe.model_validate_json(told)
    file, note = _paths(wing, experiment, run)
    checkpoint = ROOT / CHECKPOINTS / file.parent.name / f"{run.id}.pt"
    spent = checkpoint.with_suffix(".json")
    before = json.loads(spent.read_text()) if spent.is_file() and checkpoint.is_file() else 0.0
    begun = time.monotonic()

    def seconds() -> float:
        return before + time.monotonic() - begun

    def say(message: str) -> None:
        # A checkpoint follows each evaluation, of which this is the line.
        with files.whole(spent) as part:
            part.write_text(json.dumps(seconds()))
        print(message, flush=True)

    rows = list(train(run, say, checkpoint=checkpoint))
    results.write(rows, file)
    broken = any(row.status == "failed" for row in rows)
    accuracies = [row.value for row in rows if row.metric == "test_accuracy"]
    # Which of torch's kernels computed: with others, the same run ends a little elsewhere.
    capability = torch.backends.cpu.get_cpu_capability()
    gpu = run.accelerator != "cpu" and torch.cuda.is_available()
    about = dict(
        command=_command(wing, experiment),
        sha256=_digest(file),
        ended=None if broken else round(accuracies[-1], 4),
        seconds=round(seconds()),
        machine=f"{processor()}, {capability}, {run.torch_threads} thread"
        + (f", {torch.cuda.get_device_name()}" if gpu else ""),
        versions={"python": platform.python_version()}
        | {name: metadata.version(name) for name in ("torch", "numpy", "numba")},
        recipe=run.model_dump(mode="json"),
    )
    with files.whole(note) as part:
        part.write_text(json.dumps(about, indent=1) + "\n")
    checkpoint.unlink(missing_ok=True)
    spent.unlink()
    return f"{file.relative_to(ROOT)}: {about['seconds']} s"


def _paths(wing: str, experiment: str, run: Recipe) -> tuple[Path, Path]:
    file = ROOT / recorded_in(wing, experiment) / f"{run.id}.parquet"
    return file, file.with_suffix(".json")


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _command(wing: str, experiment: str) -> str:
    return f"python -m slowlink.workflow.recorded {wing} {experiment}"


def runs_of(wing_name: str, name: str, config: Mapping[str, Any]) -> list[Recipe]:
    """The runs of a training that is recorded."""
    from slowlink.workflow import settings
    from slowlink.workflow.experiment import Bench, Training

    chosen = settings.load(config)
    wing, recipe = settings.wings()[wing_name], chosen.recipes[wing_name]
    one = wing.experiments[name]
    if not (isinstance(one, Training) and one.recorded):
        raise SystemExit(f"{wing_name} {name} is not a training that is recorded")
    bench = Bench(wing_name, name, recipe, chosen.scale)
    return list(one.runs(bench, {key: getattr(recipe, key) for key in one.sections}).values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train what is not recorded yet, and keep it.")
    parser.add_argument("wing", help="a document, or the matrix")
    parser.add_argument("experiment", help="a training that its Python files declare as recorded")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args()
    names = given.wing, given.experiment
    record(*names, lambda: runs_of(*names, {"scale": "desk"}), given.jobs)
