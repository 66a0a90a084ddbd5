"""What a scale costs, estimated from its recipes: GPU-hours, core-hours, bytes of results.

    python -m slowlink.workflow.cost --scale paper

An estimate is no measurement. Training counts operations of gradients and evaluations at the speed
of one device profile, and what codecs do to every payload on the host at the prices of another; all
other jobs are counted by how long such jobs took here.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from slowlink.methods import compression
from slowlink.testbed.matrix import in_lockstep
from slowlink.testbed.training import device, models
from slowlink.testbed.training.recipe import Part, Recipe
from slowlink.workflow import settings
from slowlink.workflow.experiment import Bench
from slowlink.workflow.jobs import Job, Jobs
from slowlink.workflow.matrix import experiments as matrix
from slowlink.workflow.matrix.rounds import clusters

DEVICE = "v100_flops"
HOST = "geomx_k40m"
"""Its coding is that of one thread of a processor."""
ITERATION_S = 3e-3
"""Seconds that an iteration takes at least: small models are limited by starting kernels."""
TESTED = 10_000
"""Samples of a test set, where a recipe does not limit it."""
CELL_S = 0.06
"""Core-seconds of a cell of the matrix, on the two cores this was developed on."""
JOB_S = 60.0
"""Core-seconds of a job that does not train, where none has been timed: a guess."""
ROW_BYTES = 85.0
"""Bytes of a result row on the disk, of the training curves at desk scale."""
POINT_ROWS = 8
"""Rows of a point of a curve, a network."""
CELL_ROWS = 8

_SAMPLES = {"mnist": (1, 28, 28), "fashion_mnist": (1, 28, 28), "cifar10": (3, 32, 32)}


@dataclass(frozen=True)
class Cost:
    """A line of the estimate. ``basis``: what it is computed from."""

    what: str
    jobs: int
    gpu_hours: float = 0.0
    core_hours: float = 0.0
    result_bytes: float = 0.0
    basis: str = ""


def estimate(jobs: Jobs, timed: Mapping[str, float]) -> list[Cost]:
    """Costs a wing and kind of job; the last line is their sum. What runs only when it is asked for
    by name does not count.

    Parameters
    ----------
    timed: core-seconds that a job took before, in the mean by wing, where that is known.
    """
    lines: list[Cost] = []
    for name in jobs.wings:
        mine = [
            j for (wing, _), j in jobs.all.items() if wing == name and not j.experiment.optional
        ]
        training = [job for job in mine if job.runs and not job.recorded]
        recipes = [run for job in training for run in job.runs]
        cells: list[Job] = []
        if name == "matrix":
            cells = [job for job in mine if job.experiment is matrix.cells]
            training = [job for job in mine if job.experiment is matrix.training]
            recipe = jobs.settings.recipes[name]
            recipes = list(searched(recipe, jobs.settings.scale, [job.part for job in training]))
        if training:
            lines.append(_trained(f"{name}: training", len(training), recipes))
        if cells:
            lines.append(_cells(recipe, len(cells)))
        others = len(mine) - len(training) - len(cells)
        if others:
            known = name in timed
            seconds = timed.get(name, JOB_S)
            basis = "as such jobs took at desk scale" if known else "a guess"
            basis = f"{seconds:.0f} core-seconds a job, {basis}"
            hours = others * seconds / 3600
            lines.append(Cost(f"{name}: other jobs", others, 0.0, hours, 0.0, basis))
    sums = {
        field.name: sum(getattr(line, field.name) for line in lines)
        for field in fields(Cost)
        if field.name not in ("what", "basis")
    }
    return [*lines, Cost("all", **sums, basis="an estimate")]


def _cells(recipe: Any, jobs: int) -> Cost:
    cells = jobs * len(list(clusters(recipe))) * len(recipe.models)
    return Cost(
        "matrix: cells",
        jobs,
        core_hours=cells * CELL_S / 3600,
        result_bytes=cells * CELL_ROWS * ROW_BYTES,
        basis=f"{cells} cells of {CELL_S:g} core-seconds",
    )


def gpu_s(recipe: Recipe) -> float:
    """Seconds of a run on one device, which computes the gradients of all workers in turn."""
    profile = device.profile(DEVICE)
    flops = _flops(recipe.model.model_dump_json(), recipe.dataset, recipe.steps)
    rounds = _rounds(recipe)
    iteration_s = max(profile.compute_s(flops, recipe.batch), ITERATION_S)
    tested = recipe.test_limit or TESTED
    evaluation_s = profile.compute_s(flops / 3, tested)  # forward is a third
    return (
        rounds * sum(recipe.workers) * iteration_s + rounds / recipe.evaluate_every * evaluation_s
    )


def coding_s(recipe: Recipe) -> float:
    """Seconds in which the host encodes and decodes the payloads of a run, each once, while the
    device waits: of every worker, and of every site where sites exchange what theirs bring."""
    profile, sizes = device.profile(HOST), _sizes(recipe.model.model_dump_json(), recipe.norm)
    payloads = (sum(recipe.workers), len(recipe.workers))
    total = 0.0
    for level, number in zip(recipe.levels, payloads, strict=False):
        for part in filter(None, (level.up, level.down)):
            codec = compression.load(part.name, **part.parameters)
            times = (profile.encode_s(codec, 4 * n) + profile.decode_s(codec, 4 * n) for n in sizes)
            total += number * sum(times)
    return _rounds(recipe) * total


def said(lines: Iterable[Cost]) -> str:
    """The estimate as text."""
    made = [f"{'':28}{'jobs':>6}{'GPU-hours':>11}{'core-hours':>12}{'results':>10}  basis"]
    for line in lines:
        made.append(
            f"{line.what:28}{line.jobs:6d}{line.gpu_hours:11.3g}{line.core_hours:12.3g}"
            f"{line.result_bytes / 1e6:7.3g} MB  {line.basis}"
        )
    return "\n".join(made)


def write(lines: Iterable[Cost], path: str | Path) -> None:
    """The estimate as CSV."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(lines).to_csv(path, index=False)


def timed(folder: Path, jobs: Iterable[Job]) -> dict[str, float]:
    """Core-seconds of a job that does not train, in the mean by wing, from the files
    beside their logs."""
    found: dict[str, list[float]] = {}
    for job in jobs:
        file = folder / job.wing.name / f"{job.name}.tsv"
        counted = job.experiment not in (matrix.cells, matrix.training)
        if counted and not job.runs and file.is_file():
            took = pd.read_csv(file, sep="\t")["cpu_s"].mean()
            found.setdefault(job.wing.name, []).append(float(took))
    return {name: sum(times) / len(times) for name, times in found.items()}


def _trained(what: str, jobs: int, recipes: list[Recipe]) -> Cost:
    coding = sum(map(coding_s, recipes))
    seconds = sum(map(gpu_s, recipes)) + coding
    points = sum(_rounds(r) / r.evaluate_every * len(r.networks) for r in recipes)
    names = ", ".join(sorted({recipe.model.name for recipe in recipes}))
    return Cost(
        what,
        jobs,
        seconds / 3600,
        seconds / 3600,  # a core feeds the device
        points * POINT_ROWS * ROW_BYTES,
        f"{len(recipes)} runs of {names} on {DEVICE}, {coding / 3600:.3g} hours of them coding"
        if recipes
        else "",
    )


def searched(recipe: Any, scale: str, labels: Iterable[str]) -> Iterator[Recipe]:
    """Every run behind the matrix's training: the grid, then the seeds."""
    how, bench = recipe.training, Bench("matrix", "training", recipe, scale)
    for label in labels:
        for lr, rounds in zip(how.grid, how.tried_for(), strict=True):
            yield matrix.run(bench, how, label, lr, how.tuning_seed, rounds, "tuning")
        places = 1 if in_lockstep(recipe.found()[label].synchronization) else len(how.ratios)
        for seed in how.seeds * places:
            yield matrix.run(bench, how, label, how.grid[0], seed, how.most_rounds, "training")


def _rounds(recipe: Recipe) -> float:
    """Rounds of a run; of one that ends by the clock the most, with every worker as the fastest."""
    if recipe.rounds is not None:
        return recipe.rounds
    compute_s = recipe.compute_s
    if not compute_s:
        flops = _flops(recipe.model.model_dump_json(), recipe.dataset, recipe.steps)
        compute_s = device.profile(recipe.device).compute_s(flops, recipe.batch, recipe.model.name)
    return recipe.seconds / compute_s


@cache
def _sizes(model: str, norm: bool) -> list[int]:
    part = Part.model_validate_json(model)
    with torch.device("meta"):
        shapes = models.gradient_shapes(models.make(part.name, **part.parameters), norm)
    return [math.prod(shape) for shape in shapes.values()]


@cache
def _flops(model: str, dataset: str, steps: int) -> float:
    part = Part.model_validate_json(model)
    text = models.sample_shape(part.name) == (35,)
    sample = (steps,) if text else _SAMPLES.get(dataset, models.sample_shape(part.name))
    with torch.device("meta"):
        return models.flops_per_sample(models.make(part.name, **part.parameters), sample)


def of_scale(scale: str) -> list[Cost]:
    """The estimate of a scale, with what jobs took at desk scale where that is known."""
    jobs = Jobs(settings.load({"scale": scale}, names=False), settings.wings())
    return estimate(jobs, timed(settings.ROOT / "logs/desk", jobs.all.values()))


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m slowlink.workflow.cost", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--scale", default="desk", choices=settings.SCALES)
    print(said(of_scale(parser.parse_args().scale)))


if __name__ == "__main__":
    main()
