"""Advice that is checked: steps on shaped links against what the price list says of them.

Each network's cells run one after the other on one set of processes. The record holds all of them,
a file a network; a run of the workflow reads it, and runs a few cells live beside it::

    make record-checked     runs what is not recorded, or was recorded with other settings
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from slowlink.testbed.results import Row
from slowlink.testbed.training.recipe import Codec, Dataset, Fusion, Level, Link, Model, Part, slug
from slowlink.workflow.experiment import PLANNING, Section, experiment
from slowlink.workflow.matrix.experiments import Bench

if TYPE_CHECKING:
    from slowlink.testbed.live.checked import Checked as Cell

if not PLANNING:
    import platform
    from importlib import metadata

    from slowlink.testbed import files
    from slowlink.testbed.live import checked as live
    from slowlink.testbed.live.data_parallel import LiveRun
    from slowlink.testbed.prices import among
    from slowlink.testbed.training.recipe import Recipe
    from slowlink.workflow.provenance import processor

RECORD = "data/recorded/matrix_checked"
COMMAND = "make record-checked"
RUNS = {"emulated": "live", "recorded": "recorded"}
"""Coordinate ``run`` of rows by their evidence: a cell may be there twice."""

RUNS_AT_MOST = 2

PARTS = {
    "step_time": "step_s",
    "compute_time": "compute_s",
    "compress_time": "coding_s",
    "exchange_time": "exchange_s",
    "hidden_time": "hidden_s",
}
"""Metrics of the variants ``predicted`` and ``measured``, seconds."""


class Tried(Section):
    """A codec and what travels together."""

    codec: Codec
    fusion: Fusion


class Shaped(Section):
    """Workers around a switch; ``rate`` and ``up`` (from a worker; ``rate`` if null) in bit/s.

    ``computing``: ``real``, or ``replayed`` at the paces of one process alone, so that workers of
    one machine do not wait for each other's processors.
    """

    workers: PositiveInt
    rate: PositiveFloat
    up: PositiveFloat | None = None
    computing: Literal["real", "replayed"]


class Chosen(Section):
    """What a run of the workflow itself runs, by name."""

    networks: Annotated[list[str], Field(min_length=1)]
    methods: Annotated[list[str], Field(min_length=1)]
    steps: PositiveInt


class Checked(Section):
    """What is predicted and run: all ``networks`` and ``methods`` are recorded, those ``chosen``
    run with every report. The first ``warm`` of so many ``steps`` do not count."""

    model: Model
    dataset: Dataset
    limit: PositiveInt
    batch: PositiveInt
    lr: PositiveFloat
    seed: int
    steps: PositiveInt
    warm: PositiveInt
    measured_s: PositiveFloat
    timeout_s: PositiveFloat
    networks: dict[str, Shaped]
    methods: dict[str, Tried]
    chosen: Chosen

    @model_validator(mode="after")
    def _there_are(self) -> Checked:
        for key in ("networks", "methods"):
            there = getattr(self, key)
            for name in getattr(self.chosen, key):
                if name not in there:
                    raise ValueError(f"chosen.{key}: {name!r}; allowed: {', '.join(there)}")
        if min(self.steps, self.chosen.steps) <= self.warm:
            raise ValueError(f"steps must be more than warm, {self.warm}")
        return self

    @property
    def setting(self) -> dict[str, Any]:
        """What all cells share that their times depend on."""
        names = ("model", "dataset", "limit", "batch", "lr", "seed", "steps", "warm")
        return self.model_dump(mode="json", include=set(names))


@experiment(alone=True, methods=(), minutes=5, memory_mb=6000)
def checked(bench: Bench, checked: Checked) -> Iterator[Row]:
    """The cells that this scale chooses, on links of this machine."""
    chosen = checked.chosen
    methods = {name: checked.methods[name] for name in chosen.methods}
    for name in chosen.networks:
        try:
            network = checked.networks[name]
            cells = _run(bench, checked, network, methods, chosen.steps)
        except (RuntimeError, OSError) as error:
            bench.say(f"{name}: {error}")
            told = dict(value=math.nan, status="failed", reason=str(error))
            for label, one in methods.items():
                row = _place(bench, checked, name, label, one).model_copy(update=told)
                yield row.model_copy(update=dict(metric="step_time", variant="measured"))
            continue
        for label, one in methods.items():
            yield from rows_of(_place(bench, checked, name, label, one), cells[label])


@experiment(makes=("checked",), methods=(), files=(f"{RECORD}/*.json",), minutes=2)
def checked_recorded(bench: Bench, checked: Checked) -> Iterator[Row]:
    """The record's cells; a failed row for each that is not there, or is of other settings."""
    for name, network in checked.networks.items():
        kept = _kept(name)
        for label, one in checked.methods.items():
            row = _place(bench, checked, name, label, one, "recorded")
            if why := _unfit(kept, checked, network, label):
                told = dict(value=math.nan, status="failed", reason=why)
                told |= dict(metric="step_time", variant="measured")
                yield row.model_copy(update=told)
                continue
            yield from rows_of(row, live.cell_of(kept["cells"][label]["found"]))


def rows_of(place: Row, cell: Cell) -> Iterator[Row]:
    """A cell as rows.

    The ``step_time`` of the variant ``measured`` has ``predicted_time`` beside it. Of no variant:
    ``step_error`` (%), with its reason; ``busy_share``, ``own_share``, ``link_share`` (of TCP) and
    ``carried_share`` (of one message, %),
    ``step_spread`` (%), ``queued_time`` (s), ``messages`` of a step, ``payload`` (B), measured and
    predicted.
    """

    def made(metric: str, value: float, unit: str, **fields: Any) -> Row:
        return place.model_copy(update=dict(metric=metric, value=value, unit=unit) | fields)

    for metric, part in PARTS.items():
        predicted, found = (getattr(one, part) for one in (cell.predicted.parts, cell.measured))
        yield made(metric, predicted, "s", variant="predicted", evidence="simulated")
        yield made(metric, found, "s", variant="measured")
    step_s = cell.predicted.parts.step_s
    yield made("predicted_time", step_s, "s", variant="measured", evidence="simulated")
    yield made("step_error", 100 * cell.error, "%", reason=cell.why)
    yield made("step_spread", 100 * cell.spread, "%")
    yield made("link_share", 100 * cell.link_share, "%")
    yield made("carried_share", 100 * cell.predicted.carried, "%")
    yield made("messages", len(cell.predicted.groups), "1")
    yield made("payload", cell.payload_bytes, "B", variant="measured")
    payload = cell.predicted.payload_bytes
    yield made("payload", payload, "B", variant="predicted", evidence="computed")
    for metric, share in (("busy_share", cell.busy_share), ("own_share", cell.cpu_share)):
        if math.isfinite(share):
            yield made(metric, 100 * share, "%")
    if math.isfinite(cell.queued_s):
        yield made("queued_time", cell.queued_s, "s")


def _place(
    bench: Bench,
    checked: Checked,
    network: str,
    label: str,
    one: Tried,
    evidence: Literal["emulated", "recorded"] = "emulated",
) -> Row:
    shaped, run = checked.networks[network], RUNS[evidence]
    return bench.row(
        "step_time",
        0.0,
        "s",
        experiment="checked",
        case=f"{label}, {network}",
        at=dict(method=label, network=network, computing=shaped.computing, run=run),
        compression=one.codec.name,
        synchronization="bsp",
        fusion=one.fusion.name,
        model=checked.model.name,
        dataset=checked.dataset,
        workers=shaped.workers,
        bandwidth=min(shaped.rate, shaped.up or shaped.rate),
        evidence=evidence,
    )


# What is run --------------------------------------------------------------------------------------


def _run(
    bench: Bench,
    checked: Checked,
    network: Shaped,
    methods: Mapping[str, Tried],
    steps: int,
    keep: Callable[[str, Cell], None] = lambda label, cell: None,
) -> dict[str, Cell]:
    """Cells of ``methods`` on one network, by label; ``keep`` is told of each as it comes."""
    cases = {label: _recipe(checked, network, label, one) for label, one in methods.items()}
    paces = None
    if network.computing == "replayed":
        paces = _paces(next(iter(cases.values())).model_copy(update=dict(workers=(1,))))

    def done(case: LiveRun, cell: Cell) -> None:
        bench.say(f"{case.recipe.system}: {cell.told}")
        keep(case.recipe.system, cell)

    found = live.check_all(
        [LiveRun(case, steps, paces=paces) for case in cases.values()],
        live.flat(network.workers, network.rate, network.up),
        warm=checked.warm,
        measured_s=checked.measured_s,
        timeout_s=checked.timeout_s,
        done=done,
    )
    return dict(zip(cases, found, strict=True))


def _recipe(checked: Checked, network: Shaped, label: str, one: Tried) -> Recipe:
    codec = among(one.codec, network.workers)
    link = Link(lan=network.rate, wan=network.rate)
    return Recipe(
        document="matrix",
        experiment="checked",
        system=label,
        exchange=Part(name="allgather"),  # gloo's own; any codec may say this
        levels=(Level(up=codec),),
        synchronization=Part(name="bsp"),
        fusion=one.fusion,
        model=checked.model,
        dataset=checked.dataset,
        limit=checked.limit,
        test_limit=1,
        workers=(network.workers,),
        cluster="star",
        batch=checked.batch,
        lr=checked.lr,
        rounds=checked.steps,
        evaluate_every=checked.steps,
        seed=checked.seed,
        scale="desk",
        device="this_cpu",
        networks={"shaped": link},
        overlap=True,
        accelerator="cpu",
    )


# The record ---------------------------------------------------------------------------------------


def record(again: Sequence[str] = ()) -> None:
    """Run and keep, cell by cell, what is not recorded yet; what was unsteady once more; all of the
    networks ``again`` anew."""
    from slowlink.workflow import settings

    recipe = settings.load({"scale": "desk"}).recipes["matrix"]
    bench = Bench("matrix", "checked", recipe, "desk")
    for name in recipe.checked.networks:
        _record(bench, recipe.checked, name, {} if name in again else _kept(name))


def _record(bench: Bench, checked: Checked, name: str, kept: Mapping[str, Any]) -> None:
    """Add to what is ``kept`` of a network. Cells whose steps vary much were disturbed: they are
    run once more, and the steadier run is kept, whatever its error."""
    network, methods = checked.networks[name], checked.methods
    same = bool(kept) and _same(kept, checked, network)
    cells, seconds = (dict(kept["cells"]), kept["seconds"]) if same else ({}, 0)
    about = dict(
        command=COMMAND,
        machine=f"{processor()}, {len(os.sched_getaffinity(0))} cores",
        versions={"python": platform.python_version()}
        | {package: metadata.version(package) for package in ("torch", "numpy", "numba")},
        setting=checked.setting,
        network=network.model_dump(mode="json"),
    )
    begun = time.monotonic()

    def spread(label: str) -> float:
        return live.cell_of(cells[label]["found"]).spread

    def keep(label: str, cell: Cell) -> None:
        runs = cells[label]["runs"] + 1 if label in unsteady else 1
        if label not in unsteady or cell.spread < spread(label):
            method = methods[label].model_dump(mode="json")
            cells[label] = dict(method=method, found=_plain(asdict(cell)))
        cells[label] |= dict(runs=runs)
        spent = dict(seconds=round(seconds + time.monotonic() - begun))
        in_order = {label: cells[label] for label in methods if label in cells}
        _write(_file(name), about | spent, in_order)

    unsteady: dict[str, Tried] = {}
    left = {label: one for label, one in methods.items() if _unfit(kept, checked, network, label)}
    bench.say(f"{name}: {len(left)} of {len(methods)} cells to record")
    if left:
        _run(bench, checked, network, left, checked.steps, keep)
    unsteady |= {
        label: one
        for label, one in methods.items()
        if cells[label]["runs"] < RUNS_AT_MOST and spread(label) > live.UNSTEADY
    }
    if unsteady:
        bench.say(f"{name}: {len(unsteady)} unsteady cells to run once more")
        _run(bench, checked, network, unsteady, checked.steps, keep)


def _plain(value: Any) -> Any:
    """Numbers with six digits, without NaN, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _write(file: Path, about: Mapping[str, Any], cells: Mapping[str, Any]) -> None:
    head = json.dumps(about, indent=1)[:-2]
    lines = ",\n".join(f"{json.dumps(label)}: {json.dumps(cell)}" for label, cell in cells.items())
    with files.whole(file) as part:
        part.write_text(f'{head},\n "cells": {{\n{lines}\n}}}}\n')


def _file(network: str) -> Path:
    return Path(RECORD) / f"{slug(network)}.json"


def _kept(network: str) -> dict[str, Any]:
    """What is recorded of a network; empty if nothing is."""
    file = _file(network)
    if not file.is_file():
        return {}
    try:
        kept = json.loads(file.read_text())
        return {name: kept[name] for name in ("setting", "network", "cells", "seconds", "machine")}
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"{file}: not a record of cells ({error!r}); {COMMAND} makes it"
        ) from error


def _same(kept: Mapping[str, Any], checked: Checked, network: Shaped) -> bool:
    return kept["setting"] == checked.setting and kept["network"] == network.model_dump(mode="json")


def _unfit(kept: Mapping[str, Any], checked: Checked, network: Shaped, label: str) -> str:
    """Why a record does not stand for a cell; empty if it does."""
    if label not in kept.get("cells", {}):
        return f"not recorded yet; {COMMAND} does"
    told = checked.methods[label].model_dump(mode="json")
    if not _same(kept, checked, network) or kept["cells"][label]["method"] != told:
        return f"recorded with other settings; {COMMAND} does it anew"
    return ""


def _paces(recipe: Recipe) -> list[float]:
    """Measured once for all networks of a run."""
    key = recipe.model_dump_json(include={"model", "dataset", "limit", "batch", "seed"})
    if key not in _measured:
        _measured[key] = live.paces(recipe)
    return _measured[key]


_measured: dict[str, list[float]] = {}
