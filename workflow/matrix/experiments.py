"""The matrix: what a round costs in every cell, and how many rounds training needs."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from slowlink.testbed.results import Row, row_of
from slowlink.testbed.training.recipe import (
    Dataset,
    Device,
    Exchange,
    Fusion,
    How,
    Level,
    Link,
    Model,
    Part,
    Recipe,
    Uneven,
)
from slowlink.workflow import experiment as declarations
from slowlink.workflow.experiment import PLANNING, Experiment, Section, Seeds, distinct, experiment
from slowlink.workflow.matrix import systems
from slowlink.workflow.matrix.systems import BetweenSites, LocalSteps, System
from slowlink.workflow.named import kept_momentum, known
from slowlink.workflow.recorded import ended

if TYPE_CHECKING:
    from slowlink.workflow.settings import Check

if not PLANNING:
    import itertools
    import os
    import time
    from concurrent.futures import ProcessPoolExecutor
    from functools import lru_cache, partial
    from multiprocessing import get_context
    from tempfile import TemporaryDirectory

    import numpy as np
    import pandas as pd

    from slowlink.methods import fusion, synchronization
    from slowlink.methods.synchronization import Policy
    from slowlink.testbed import matrix
    from slowlink.testbed.cache import VARIABLE
    from slowlink.testbed.matrix import in_lockstep
    from slowlink.testbed.prices import among
    from slowlink.testbed.training import device, pipeline
    from slowlink.testbed.training.datasets import load_dataset
    from slowlink.testbed.training.pipeline import layers
    from slowlink.testbed.training.summary import arrival, reached
    from slowlink.testbed.training.trainer import train
    from slowlink.workflow.matrix import own
    from slowlink.workflow.matrix.curves import timed_curves
    from slowlink.workflow.matrix.ranking import (
        close_model,
        close_workers,
        condense,
        said_network,
    )
    from slowlink.workflow.matrix.robust import asked
    from slowlink.workflow.matrix.rounds import clusters, methods_of, said
    from slowlink.workflow.matrix.worth import answered

PARTS = {
    "round_time": ("round_s", "s"),
    "compute_time": ("compute_s", "s"),
    "compress_time": ("compress_s", "s"),
    "exchange_time": ("exchange_s", "s"),
    "wait_time": ("wait_s", "s"),
    "bytes_per_round": ("sent_bytes", "B"),
    "wan_bytes": ("wan_bytes", "B"),
    "scaling_efficiency": ("scaling_efficiency", "1"),
}


class Networks(Section):
    efficiency: Annotated[float, Field(gt=0, le=1)]
    overhead_s: NonNegativeFloat
    pieces: PositiveInt
    latency: NonNegativeFloat
    wan_latency: NonNegativeFloat
    lan: PositiveFloat
    per_site: dict[PositiveInt, PositiveInt]


class Taught(Section):
    """What is trained, and how, to see how many rounds each method needs.

    ``grid``: learning rates, tried with ``tuning_seed`` on ``validation`` images that no run trains
    on, by successive halving (Jamieson, Talwalkar, AISTATS 2016): for each of ``rungs`` rounds, of
    which the better half goes on to the next. The best one trains with every seed, and accuracies
    are compared after ``rounds``. ``window``: evaluations whose mean is the final accuracy, and is
    held against the target. ``bandwidth``: bit/s, of those in lockstep.

    Policies that look at the clock are trained on a flat cluster with ``speeds``, at ``ratios``: so
    many times as long as the fastest worker computes an iteration, both ways of the model take on
    a link of its own. Their rates are tried at the middle one.
    """

    model: Model
    dataset: Dataset
    gradients: How
    workers: PositiveInt
    momentum: Annotated[float, Field(ge=0, lt=1)]
    grid: Annotated[list[PositiveFloat], Field(min_length=1), AfterValidator(distinct)]
    rungs: Annotated[list[PositiveInt], Field(min_length=1)]
    rounds: PositiveInt
    evaluate_every: PositiveInt
    test_limit: PositiveInt | None
    limit: PositiveInt | None
    validation: PositiveInt
    seeds: Seeds
    window: PositiveInt
    tuning_seed: int
    bandwidth: PositiveFloat
    speeds: str
    ratios: Annotated[list[PositiveFloat], Field(min_length=1), AfterValidator(distinct)]

    def ratios_of(self, system: System) -> list[float | None]:
        """Those at which a system is trained, the middle one first; None where all meet in
        lockstep."""
        if in_lockstep(system.synchronization):
            return [None]
        below = sorted(self.ratios)
        middle = below.pop(len(below) // 2)
        return [middle, *below]

    def tried_for(self) -> list[int]:
        """Rounds for which the rates of the grid are tried, the best one first."""
        tried = [0] * len(self.grid)
        count = len(tried)
        for rung in self.rungs:
            tried[:count] = [rung] * count
            count = math.ceil(count / 2)
        return tried


class Training(Taught):
    """What has not reached ``target`` (%) after ``rounds`` goes on, for ``most_rounds`` at most."""

    most_rounds: PositiveInt
    target: PositiveFloat

    @model_validator(mode="after")
    def _long_enough(self) -> Training:
        if self.most_rounds < self.rounds:
            raise ValueError(f"most_rounds must be at least rounds, {self.rounds}")
        return self


class Residual(Taught):
    """What is recorded of a residual network.

    ``grids`` has other rates for some methods, as many. ``classes``: methods, the most informative
    first; all with the first seed come before any with the second. The target is a ``share`` of
    what the first of them reaches on the validation images, with the tuning seed.
    """

    grids: dict[str, Annotated[list[PositiveFloat], AfterValidator(distinct)]] = {}

    share: Annotated[float, Field(gt=0, le=1)]
    classes: Annotated[list[str], Field(min_length=1), AfterValidator(distinct)]

    @model_validator(mode="after")
    def _one_budget(self) -> Residual:
        for label, rates in self.grids.items():
            if label not in self.classes or len(rates) != len(self.grid):
                raise ValueError(f"grids: {label} is no class, or has not as many rates as grid")
        return self


class Matrix(declarations.Settings):
    """Models, networks and methods. A job gets ``only``, those methods alone that it needs."""

    device: Device
    accelerator: Literal["auto", "cpu", "cuda"]
    models: dict[str, PositiveInt]
    bandwidths: Annotated[list[PositiveFloat], AfterValidator(distinct)]
    workers: Annotated[list[PositiveInt], AfterValidator(distinct)]
    networks: Networks
    speeds: dict[str, Annotated[float, Field(ge=1)]]
    most_played: PositiveInt
    labels: list[str] | None = None
    fusion: Fusion
    systems: dict[str, System] = {}
    combinations: dict[str, System] = {}
    baselines: list[str] = []
    options: dict[str, dict[str, Any]] = {}
    exchanges: dict[str, Exchange] = {}
    local_steps: LocalSteps
    between_sites: BetweenSites
    carriers: dict[str, str] = {}
    only: dict[str, System] | None = None

    def part(self, name: str) -> Part:
        """A file of the rooms with what the options give it."""
        return Part(name=name, **self.options.get(name, {}))

    def found(self) -> dict[str, System]:
        """Every method by its label: the recipe's, and all that the rooms hold."""
        if self.only is not None:
            return self.only
        made = systems.found(self)
        return {label: made[label] for label in self.labels or made}

    def trained_as(self) -> dict[str, str]:
        """By method whose class is trained, the label under which."""
        return systems.trained_as(self.found())

    def recorded_as(self, residual: Residual) -> dict[str, str]:
        """By method whose class is recorded, or may be, the label under which."""
        return systems.recorded_as(self.found(), self.every(), residual.classes)

    def every(self) -> dict[str, System]:
        """Every method by its label, of ``labels`` or not; in a job, those it knows."""
        rooms = self.model_copy(update={"labels": None, "only": None}).found()
        return rooms | (self.only or {})

    def needed(self) -> dict[str, set[str]]:
        """By method of :meth:`every`: its own name, and those of the files that it needs."""
        return {label: {label, *(p.name for p in one.parts)} for label, one in self.every().items()}

    def served(self, experiment: Experiment) -> dict[str, list[set[str]]]:
        """By part of an experiment, of every method that its rows are of, what it needs: methods
        that train alike share the training."""
        needed, found = self.needed(), self.found()
        made = (
            self.trained_as()
            if experiment.name == "training"
            else {label: label for label in found}
        )
        parts: dict[str, list[set[str]]] = {}
        for label, under in made.items():
            parts.setdefault(under, []).append(needed[label])
        return parts

    def narrowed(
        self,
        plain: dict[str, Any],
        experiment: Experiment,
        part: str | None,
        sections: dict[str, Section],
    ) -> dict[str, Any]:
        """The method that a part is, of those that there are; else those that the experiment names,
        or all, as they were found."""
        found = self.found()
        alone = part in found
        chosen = {part: found[part]} if alone else found
        if experiment.methods is not None:
            chosen = {label: found[label] for label in experiment.methods}
        if experiment.name == "residual":
            every = self.every()
            chosen = {label: every[label] for label in sections["residual"].classes}
        if experiment.name in ("training", "residual"):
            # Whichever exchange carries it, one is enough.
            chosen = {
                label: one.model_copy(update={"exchange": one.exchange[:1]})
                for label, one in chosen.items()
            }
        spelt = dict(systems={}, combinations={}, baselines=[], labels=None)
        if alone:
            spelt |= dict(options={}, exchanges={}, carriers={})
        only = {label: one.model_dump(mode="json") for label, one in chosen.items()}
        return plain | spelt | {"only": only}

    def check(self, check: Check) -> None:
        how: Training = self.training
        for name in [*self.models, how.model.name]:
            check.need("models", name, known("model"))
        check.need("training.model.name", how.model.name, self.models)
        check.need("training.workers", how.workers, self.workers)
        check.need("training.bandwidth", how.bandwidth, self.bandwidths)
        check.need("training.speeds", how.speeds, self.speeds)
        for workers in self.workers:
            check.need("networks.per_site", workers, self.networks.per_site)
        rooms = ("exchange", "compression", "synchronization", "fusion")
        names = {name for room in rooms for name in known(room)}
        for section in ("options", "carriers"):
            for name in getattr(self, section):
                check.need(section, name, names)
        for name, carrier in self.carriers.items():
            check.need(f"carriers.{name}", carrier, known("exchange"))
        trained = {"between_sites.trained": self.between_sites.trained}
        trained |= {f"local_steps.{every}": one for every, one in self.local_steps.items()}
        for key, codecs in trained.items():
            for name in codecs:
                check.need(key, name, known("compression"))
        labels = [label for label, _ in systems.in_rooms(self)]
        labels += [*self.systems, *self.combinations]
        if len(set(labels)) < len(labels):
            twice = sorted({label for label in labels if labels.count(label) > 1})
            check.fail("systems", f"two methods are called {', '.join(twice)}")
        for name in ("labels", "baselines"):
            for label in getattr(self, name) or ():
                check.need(name, label, labels)
        taught: Residual = self.residual
        check.need("residual.model.name", taught.model.name, self.models)
        check.need("residual.workers", taught.workers, self.workers)
        check.need("residual.bandwidth", taught.bandwidth, self.bandwidths)
        every = self.every()
        for label in taught.classes:
            check.need("residual.classes", label, every)


Bench = declarations.Bench[Matrix]


# What a round costs -------------------------------------------------------------------------------


@experiment(parts=lambda recipe: recipe.found(), memory_mb=3000, priority=2)
def cells(bench: Bench, part: str) -> Iterator[Row]:
    """What a round of one method costs, for every model on every cluster, by the fastest of its
    exchanges; failed rows where it cannot run."""
    settings = bench.settings
    methods, machine = methods_of(part, settings.only[part]), device.profile(settings.device)
    played = not in_lockstep(methods[0].synchronization)
    tensors = {name: layers(Part(name=name)) for name in settings.models}
    for speeds, cluster in clusters(settings):
        place = said_network(cluster.kind, speeds)
        bench.say(f"{part}: {cluster.workers} workers, {place}, {cluster.bandwidth / 1e6:g} Mbit/s")
        for model, batch in settings.models.items():
            row = partial(
                Row,
                document=bench.document,
                experiment=bench.experiment,
                case=part,
                at=dict(method=part, network=cluster.kind, speeds=speeds),
                compression=methods[0].levels[-1].up.name,
                synchronization=methods[0].synchronization.name,
                fusion=methods[0].fusion.name,
                model=model,
                workers=cluster.workers,
                bandwidth=cluster.bandwidth,
                scale=bench.scale,
                device=settings.device,
                evidence="simulated",
            )
            try:
                if played and cluster.workers > settings.most_played:
                    raise ValueError(
                        "what sends changes or looks at the clock is not played with more than "
                        f"{settings.most_played} workers"
                    )
                chosen, made = matrix.best_round(methods, tensors[model], cluster, machine, batch)
            except ValueError as error:
                reason = str(error)
                yield row(metric="round_time", unit="s", status="failed", reason=reason)
                continue
            row = partial(row, exchange=said(chosen.exchange))
            for metric, (name, unit) in PARTS.items():
                if metric != "wan_bytes" or cluster.kind == "sites":
                    yield row(metric=metric, value=getattr(made, name), unit=unit)
            if made.guessed:
                yield row(metric="guessed_price", value=1.0, unit="1")


# How many rounds it needs -------------------------------------------------------------------------


def trained_at(found: Mapping[str, System], training: Training) -> dict[str, tuple[str, str]]:
    """By method, the network and the speeds with which alone the rounds of its training hold; empty
    of those in lockstep, which hold with all."""
    return {
        label: ("", "")
        if in_lockstep(system.synchronization)
        else ("sites" if len(system.levels) > 1 else "flat", training.speeds)
        for label, system in found.items()
    }


def run(
    bench: Bench,
    training: Taught,
    label: str,
    lr: float,
    seed: int,
    rounds: int,
    experiment: str,
    system: System | None = None,
    ratio: float | None = None,
) -> Recipe:
    """One training run of a method, of the settings if no ``system`` is given; at the training's
    bandwidth if no ``ratio`` is."""
    settings = bench.settings
    system, links = system or settings.found()[label], settings.networks
    part = system.synchronization
    policy: Policy = synchronization.load(part.name, **part.parameters)
    lockstep = in_lockstep(part)
    several, carrier = len(system.levels) > 1, system.exchange[0]
    workers = (training.workers // 2,) * 2 if several else (training.workers,)
    batch = max(1, settings.models[training.model.name] // training.workers)
    levels = [level.model_dump() for level in system.levels]
    codec, momentum = system.levels[-1].up, training.momentum
    if policy.travels == "gradient" and "momentum" not in codec.parameters:
        codec, momentum = kept_momentum(codec, training.momentum)
    levels[-1]["up"] = among(codec, 2 if several else training.workers)
    # Else what travels together does not change what a codec makes of a layer.
    fused = lockstep and system.blended
    grouping = system.fusion if fused else Part(name="layer_wise")
    overlap = fusion.load(grouping.name, **grouping.parameters).needs_costs
    bandwidth = training.bandwidth if ratio is None else bandwidth_at(ratio, settings, training)
    link = Link(
        lan=links.lan if several else bandwidth,
        wan=bandwidth,
        lan_latency=links.latency,
        wan_latency=links.wan_latency if several else links.latency,
        efficiency=links.efficiency,
    )
    options: dict[str, Any] = {}
    if overlap:
        options = dict(overlap=True, overhead_s=links.overhead_s)
    if not lockstep:
        options = dict(
            uneven=Uneven(highest=settings.speeds[training.speeds]),
            compute_s=computing_s(settings, training),
        )
    if policy.asynchronous and policy.travels == "gradient":
        options["optimizer_at"] = "server"
    return Recipe(
        document=bench.document,
        experiment=experiment,
        system=label,
        at=dict(method=label) | ({} if ratio is None else dict(ratio=ratio)),
        exchange=carrier,
        levels=tuple(Level(**level) for level in levels),
        synchronization=system.synchronization,
        fusion=grouping,
        codec_scope=system.codec_scope if fused else "layer",
        model=training.model,
        dataset=training.dataset,
        gradients=training.gradients,
        limit=training.limit,
        test_limit=training.test_limit,
        validation=training.validation,
        workers=workers,
        cluster="sites" if several else "star",
        batch=batch,
        lr=lr,
        momentum=momentum,
        rounds=rounds,
        evaluate_every=training.evaluate_every,
        seed=seed,
        scale=bench.scale,
        device=settings.device,
        networks={label: link},
        accelerator=settings.accelerator,
        **options,
    )


@experiment(
    parts=lambda recipe: sorted(set(recipe.trained_as().values())),
    makes=("tuning",),
    memory_mb=3000,
    priority=2,
    gpu=True,
)
def training(bench: Bench, part: str, training: Training) -> Iterator[Row]:
    """Curves of the best learning rate of the grid, what they arrive at, and the whole grid."""
    load = lru_cache(maxsize=1)(load_dataset)  # all runs have the same data
    one = partial(run, bench, training, part)
    ratios = training.ratios_of(bench.settings.found()[part])
    runs: dict[float, tuple[Iterator[Row], list[Row]]] = {}
    for lr in training.grid:
        recipe = one(lr, training.tuning_seed, training.rungs[-1], "tuning", ratio=ratios[0])
        recipe = recipe.model_copy(update=dict(judged_on="validation"))
        runs[lr] = train(recipe, bench.say, load), []
    rates, ended = training.grid, {}
    for rung in training.rungs:
        for lr in rates:
            going_on, curve = runs[lr]
            curve += until(going_on, rung)
            arrived = arrivals(curve, training.target, rung, training.window)
            (ended[lr],) = (row for row in arrived if row.metric == "final_accuracy")
        ends = {lr: ended[lr] for lr in rates}
        rates = better_half(
            {lr: row.value if row.status == "ok" else -math.inf for lr, row in ends.items()}
        )
    runs.clear()  # whoever did not go on still holds its workers
    for lr, row in ended.items():
        yield row.model_copy(update=dict(at=row.at | dict(lr=lr)))
    best = rates[0]
    bench.say(f"{part}: learning rate {best:g}")
    for ratio in ratios:
        curves: list[Row] = []
        for seed in training.seeds:
            recipe = one(best, seed, training.most_rounds, bench.experiment, ratio=ratio)
            run_of = train(recipe, bench.say, load)
            curves += until_target(run_of, training.target, training.rounds, training.window)
        yield from curves
        chosen = dict(metric="chosen_lr", value=best, unit="1", evidence="computed", seed=-1)
        yield _summary(curves[0], **chosen, status="ok", reason="")
        yield from arrivals(curves, training.target, training.rounds, training.window)


def until(run: Iterator[Row], rounds: int) -> Iterator[Row]:
    """The evaluations of ``run``, which can go on, until it has had ``rounds``."""
    for row in run:
        if row.round < 0 and row.status == "ok":
            continue
        yield row
        # The last row of an evaluation.
        if row.metric == "bytes_sent" and row.round >= rounds:
            return


def better_half(tried: Mapping[float, float]) -> list[float]:
    """The half of the rates that ended higher, or one more, the best first; of equal ones the first
    are better."""
    return sorted(tried, key=lambda lr: -tried[lr])[: math.ceil(len(tried) / 2)]


def until_target(run: Iterable[Row], target: float, rounds: int, window: int) -> Iterator[Row]:
    """The evaluations of ``run`` until it has had ``rounds``, has reached the target (%), and has
    been evaluated ``window`` times more, which shows whether it holds it."""
    seen: list[float] = []
    for row in run:
        if row.round < 0 and row.status == "ok":
            continue
        yield row
        if row.metric == "test_accuracy":
            seen.append(row.value)
        # The last row of an evaluation: nothing more is trained.
        if row.metric == "bytes_sent" and row.round >= rounds:
            at = arrival(np.array(seen), target, window, least=1)
            if at is not None and len(_after(seen, at)) >= window:
                return


def _after(values: Sequence[float], at: float) -> Sequence[float]:
    """The evaluations after the one by which the target was reached."""
    return values[math.ceil(at) + 1 :]


def arrivals(curves: Sequence[Row], target: float, rounds: int, window: int) -> Iterator[Row]:
    """The accuracy at ``rounds``, and the round that reached the target (%), a row a seed; and the
    mean of the ``window`` evaluations after that, or of as many as there are: the first ones that
    were not looked at to find it.

    A policy whose rounds come several at a time is judged at its first evaluation from ``rounds``
    on. What diverges later keeps what it had reached.
    """
    by_seed: dict[int, list[Row]] = {}
    for row in curves:
        if row.metric == "test_accuracy":
            by_seed.setdefault(row.seed, []).append(row)
    for points in by_seed.values():
        broken = next((point for point in points if point.status == "failed"), None)
        points = [point for point in points if point.status == "ok"]
        values = np.array([point.value for point in points])
        judged = next((i for i, point in enumerate(points) if point.round >= rounds), None)
        if judged is None and broken is None:
            judged = len(points) - 1
        if judged is None:
            yield _summary(broken, metric="final_accuracy", unit="%")
        else:
            value = float(values[: judged + 1][-window:].mean())
            done = dict(metric="final_accuracy", value=value, unit="%", round=points[judged].round)
            yield _summary(points[judged], **done)
            goal = dict(metric="target_accuracy", value=target, unit="%", evidence="computed")
            yield _summary(points[judged], **goal)
        done = dict(metric="rounds_to_target", unit="rounds")
        at = arrival(values, target, window, least=1) if points else None
        if at is not None:
            axis = [point.round for point in points]
            at_round = reached(axis, values, target, window, least=1)
            yield _summary(points[-1], **done, value=at_round)
            after = _after(values, at)[:window]
            if len(after):
                held = dict(metric="held_accuracy", value=float(after.mean()), unit="%")
                yield _summary(points[-1], **held)
        elif broken is not None:
            yield _summary(broken, **done)
        else:
            reason = f"never reached {target:g} % within {points[-1].round} rounds"
            late = dict(status="late", reason=reason, value=math.nan)
            yield _summary(points[-1], **done, **late)


def _summary(point: Row, **fields) -> Row:
    return point.model_copy(update=dict(round=-1, time_s=math.nan) | fields)


def computing_s(settings: Matrix, training: Taught) -> float:
    """Seconds of an iteration of the fastest worker."""
    batch = max(1, settings.models[training.model.name] // training.workers)
    machine, tensors = device.profile(settings.device), pipeline.layers(training.model)
    return pipeline.single_gpu_s(machine, tensors, batch)


def bandwidth_at(ratio: float, settings: Matrix, training: Taught) -> float:
    """bit/s of a link on which plain values take so many times an iteration, there and back."""
    nbytes = 2 * 4 * sum(pipeline.layers(training.model).sizes)
    return 8 * nbytes / (settings.networks.efficiency * ratio * computing_s(settings, training))


# A residual network, whose training is recorded ---------------------------------------------------

RESIDUAL, RATES, GOAL = "residual", "residual_rates", "residual_goal"
"""The experiments whose rows are of methods, of rates that were tried, and of the run that sets the
target."""


def at_residual_target(curves: pd.DataFrame, recipe: Any) -> Iterator[Row]:
    """What every recorded run arrived at, against the target; the rate, and how all rates ended."""
    taught: Residual = recipe.residual
    runs: dict[tuple, list[Row]] = {}
    for record in curves[curves["metric"] == "test_accuracy"].to_dict("records"):
        row = row_of(record)
        runs.setdefault((row.experiment, row.seed, *row.at.values()), []).append(row)
    # What is not recorded has no evaluation, and is no seed that failed.
    there = [run for run in runs.values() if any(row.status == "ok" for row in run)]
    yield from (_summary(run[-1], metric="final_accuracy") for run in _of(RATES, there))
    goals = [row.value for run in _of(GOAL, there) for row in run[-taught.window :]]
    if not goals or not all(map(math.isfinite, goals)):
        return
    target = taught.share * float(np.mean(goals))
    by_class: dict[tuple, list[Row]] = {}
    for run in _of(RESIDUAL, there):
        by_class.setdefault((run[0].at["method"], run[0].at.get("ratio")), []).extend(run)
    for made in by_class.values():
        chosen = dict(metric="chosen_lr", value=made[0].at["lr"], unit="1", evidence="computed")
        yield _summary(made[0], **chosen, seed=-1)
        yield from arrivals(made, target, taught.rounds, taught.window)


def _of(experiment: str, runs: Iterable[list[Row]]) -> Iterator[list[Row]]:
    return (run for run in runs if run[0].experiment == experiment)


@declarations.training(summarise=at_residual_target, recorded=True, apart=True, makes=(RATES, GOAL))
def residual(bench: Bench, residual: Residual) -> Iterator[Recipe]:
    """Methods on a residual network with BatchNorm, at the best rate of the same search for each.

    What comes next follows from how recorded runs ended, so that these are all that are known.
    """
    every = bench.settings.every()
    for seed in residual.seeds:
        for label in residual.classes:
            lr = yield from halved(bench, residual, label, every[label])
            if lr is None:
                continue
            goal = lr, residual.tuning_seed, residual.rounds, GOAL, every[label]
            if label == residual.classes[0]:
                yield on_validation(run(bench, residual, label, *goal))
            whole = lr, seed, residual.rounds, RESIDUAL, every[label]
            for ratio in residual.ratios_of(every[label]):
                yield recorded_under(run(bench, residual, label, *whole, ratio=ratio))


def halved(
    bench: Bench, residual: Residual, label: str, system: System
) -> Generator[Recipe, None, float | None]:
    """The runs of the search for a method's rate that are known; returns the rate at its end."""
    rates = residual.grids.get(label, residual.grid)
    ratio, *_ = residual.ratios_of(system)
    for rounds in residual.rungs:
        short = residual.tuning_seed, rounds, RATES, system, ratio
        made = {lr: run(bench, residual, label, lr, *short) for lr in rates}
        runs = {lr: on_validation(one) for lr, one in made.items()}
        yield from runs.values()
        ends = {lr: ended(bench.document, RESIDUAL, one) for lr, one in runs.items()}
        if None in ends.values():
            return None
        rates = better_half(ends)
    return rates[0]


def on_validation(one: Recipe) -> Recipe:
    """A run that is judged on the images held out of training."""
    one = recorded_under(one)
    name = f"{one.system} at {one.lr:g}, {one.rounds} rounds"
    at = one.at | dict(rung=float(one.rounds))
    return one.model_copy(update=dict(system=name, at=at, judged_on="validation"))


def recorded_under(one: Recipe) -> Recipe:
    """A run that names its rate; its file has the ratio in its name."""
    name = f"{one.system} at {one.at['ratio']:g} to 1" if "ratio" in one.at else one.system
    return one.model_copy(update=dict(system=name, at=one.at | dict(lr=one.lr)))


# What pages need of it ----------------------------------------------------------------------------


@experiment(
    after=[cells, training, residual],
    makes=("round_times", "closeup", "arrived", "tried", "methods", "lengths", "cannot_run"),
    minutes=15,
    memory_mb=3000,
)
def condensed(
    bench: Bench, rows: pd.DataFrame, training: Training, residual: Residual
) -> Iterator[Row]:
    """The rows that pages, figures and tables are made from, a sixth of all."""
    found = bench.settings.found()
    yield from condense(
        rows,
        groups={label: system.group for label, system in found.items()},
        trained_as=bench.settings.trained_as(),
        residual_as=bench.settings.recorded_as(residual),
        trained_at=trained_at(found, training),
        dense=[label for label, system in found.items() if system.dense],
        rounds=training.rounds,
        most_rounds=training.most_rounds,
        grid=training.grid,
        steady=[label for label, one in found.items() if one.synchronization == systems.BSP],
    )


@experiment(after=[condensed], makes=("worth", "beyond"), minutes=4, memory_mb=3000)
def answers(bench: Bench, rows: pd.DataFrame) -> Iterator[Row]:
    """What each answer of the fastest method is worth, in the cells that are shown from near, with
    even speeds."""
    yield from answered(bench, rows)


@experiment(parts=lambda recipe: recipe.models, after=[condensed], minutes=4, memory_mb=3000)
def robust(bench: Bench, rows: pd.DataFrame, part: str) -> Iterator[Row]:
    """Whether the first in a cell of one model stays first if prices are off, with even speeds."""
    yield from asked(bench, rows, part)


@experiment(alone=True, minutes=3, memory_mb=3000)
def effort(bench: Bench) -> Iterator[Row]:
    """How many systems and classes there are, and in how much processor time all methods are timed
    on the cluster that is shown from near: at first, and when that is asked again."""
    settings, found = bench.settings, bench.settings.found()
    every = itertools.product(settings.models, settings.workers)
    places = pd.DataFrame(every, columns=["model", "workers"])
    model, workers = close_model(places), close_workers(places)
    there = next(c for _, c in clusters(settings) if (c.kind, c.workers) == ("sites", workers))
    machine = device.profile(settings.device)
    asked = own.Asked(model, layers(Part(name=model)), settings.models[model], there, machine, "")
    counts = {
        "systems": sum(len(one.exchange) for one in found.values()),
        "classes": len({systems.class_of(one) for one in found.values()}),
        "systems_beyond": len(systems.beyond(settings)),
    }
    for name, count in counts.items():
        yield bench.row(name, count, "1", evidence="computed")
    with TemporaryDirectory() as folder:
        for cache in ("cold", "warm"):
            with ProcessPoolExecutor(1, get_context("fork")) as fresh:
                told = fresh.submit(spent_s, found, asked, f"{folder}/cache", settings.most_played)
                there = dict(model=model, workers=workers, evidence="measured")
                spent = told.result()
                yield bench.row("processor_time", spent, "s", at=dict(cache=cache), **there)


def spent_s(found: Mapping[str, System], asked: own.Asked, cache: str, most_played: int) -> float:
    """Processor seconds in which all methods are timed, with what is kept in ``cache``."""
    os.environ[VARIABLE] = cache
    begun = time.process_time()
    own.predict(found, asked, most_played)
    return time.process_time() - begun


class Advice(Section):
    """Between two bandwidths of the matrix, a gap is halved (of the logarithm) so many times at
    most."""

    halvings: NonNegativeInt


@experiment(after=[cells], memory_mb=4000, priority=2)
def advice(bench: Bench, rows: pd.DataFrame, advice: Advice) -> Iterator[Row]:
    """Round times for the report's form."""
    yield from timed_curves(bench, rows, advice.halvings)
