"""LPSP's training: MNIST and CIFAR-10 under every policy, on uneven workers in virtual time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt

from slowlink.testbed.results import Row
from slowlink.testbed.training.recipe import Level, Link, Part, Recipe, Uneven
from slowlink.workflow.documents.lpsp.settings import LPSP, Average, Bench, Workload, coordinates_of
from slowlink.workflow.experiment import PLANNING, Section, distinct, training
from slowlink.workflow.recorded import ended

if not PLANNING:
    import pandas as pd

    from slowlink.testbed.results import frame, row_of
    from slowlink.testbed.training.summary import summarise_in_time


RATES = "mnist_rates"
"""The experiment whose rows are of rates that were tried."""
COMMAND = "python -m slowlink.workflow.recorded lpsp mnist"


class Control(Section):
    """Another choice of what is not printed; ``lr`` is the workload's if null."""

    workers: PositiveInt
    averaged_over: Average
    lr: PositiveFloat | None = None
    methods: list[str]


class Rates(Section):
    """Learning rates that every method tries, on so many ``workers`` and with ``seed``, for so many
    ``seconds``; the best is that of the highest accuracy on ``validation`` images, which these runs
    do not train on."""

    grid: Annotated[list[PositiveFloat], Field(min_length=1), AfterValidator(distinct)]
    workers: PositiveInt
    seconds: PositiveFloat
    seed: int
    validation: PositiveInt


class Recorded(Section):
    """Whether a workload is read as it was recorded, and not trained."""

    used: bool


def _mnist_12_summary(curves: pd.DataFrame, recipe: Any) -> Iterator[Row]:
    return summarise_in_time(curves, recipe.mnist_12.target, recipe.mnist_12.window)


def _mnist_summary(curves: pd.DataFrame, recipe: Any) -> Iterator[Row]:
    """What runs at full length came to, and how every rate that was tried ended and when it got to
    the target that those are compared by."""
    curves = curves[curves["metric"] == "test_accuracy"]
    tried = curves["experiment"] == RATES
    whole = curves[~tried]
    if lost := list(_unknown(curves[tried], whole, recipe)):
        whole = pd.concat([whole, frame(lost)]) if len(whole) else frame(lost)
    yield from summarise_in_time(whole, recipe.mnist.target, recipe.mnist.window)
    for _, curve in curves[tried].groupby("at", sort=False):
        yield row_of(curve.iloc[-1].to_dict(), metric="final_accuracy")
        for row in summarise_in_time(curve, recipe.mnist.target, recipe.mnist.window):
            if row.metric in ("target_accuracy", "time_to_target"):
                yield row


def _unknown(tried: pd.DataFrame, known: pd.DataFrame, recipe: Any) -> Iterator[Row]:
    """Failed rows in the place of the runs of methods whose rate is not known."""
    cases = set(known["case"])
    for record in tried.drop_duplicates("case").to_dict("records"):
        row = row_of(record)
        at = {name: value for name, value in row.at.items() if name != "lr"}
        for workers, seed in itertools.product(recipe.mnist.workers, recipe.mnist.seeds):
            place = dict(case=f"{at['method']} on {workers}", workers=workers, seed=seed)
            failed = dict(status="failed", reason=f"not recorded yet; {COMMAND} does")
            if place["case"] not in cases:
                lost = dict(experiment="mnist", at=at, value=math.nan) | place | failed
                yield row.model_copy(update=lost)


def _cifar10_summary(curves: pd.DataFrame, recipe: Any) -> Iterator[Row]:
    return summarise_in_time(curves, recipe.cifar10.target, recipe.cifar10.window)


@training(summarise=_mnist_summary, recorded=True, apart=True, makes=(RATES,))
def mnist(bench: Bench, mnist: Workload, mnist_rates: Rates) -> Iterator[Recipe]:
    """Table 3, Figures 3 and 4, every method at the best rate of the same search.

    What comes after a search follows from how its recorded runs ended, so that these are all that
    are known.
    """
    every = list(_all(bench, mnist.model_copy(update={"lr": mnist_rates.grid[0]})))
    tried = {one.at["method"]: one for one in every if one.workers == (mnist_rates.workers,)}
    best = {}
    for method, one in tried.items():
        best[method] = yield from _searched(one, mnist_rates)
    for one in every:
        if lr := best[one.at["method"]]:
            yield one.model_copy(update={"lr": lr})


def _searched(one: Recipe, rates: Rates) -> Generator[Recipe, None, float | None]:
    """The runs of the search for a method's rate; returns the best where all are recorded."""
    ends: dict[float, float | None] = {}
    for lr in rates.grid:
        short = dict(experiment=RATES, system=f"{one.system} at {lr:g}", at=one.at | dict(lr=lr))
        short |= dict(lr=lr, seed=rates.seed, seconds=rates.seconds)
        short |= dict(validation=rates.validation, judged_on="validation")
        run = one.model_copy(update=short)
        yield run
        ends[lr] = ended(one.document, one.experiment, run)
    return None if None in ends.values() else max(ends, key=ends.get)


@training(summarise=_mnist_12_summary, recorded=True)
def mnist_12(bench: Bench, mnist_12: Workload) -> Iterator[Recipe]:
    """MNIST on 12 workers, for a shorter time."""
    yield from _all(bench, mnist_12)


@training(summarise=_cifar10_summary)
def cifar10(bench: Bench, cifar10: Workload, cifar10_recorded: Recorded) -> Iterator[Recipe]:
    """Table 4, Figures 5, 6 and 7, where they are trained."""
    if not cifar10_recorded.used:
        yield from _all(bench, cifar10)


@training(summarise=_cifar10_summary, recorded=True, makes=("cifar10",))
def cifar10_recorded(
    bench: Bench, cifar10: Workload, cifar10_recorded: Recorded
) -> Iterator[Recipe]:
    """Table 4, Figures 5, 6 and 7, where they are recorded."""
    if cifar10_recorded.used:
        yield from _all(replace(bench, experiment="cifar10"), cifar10)


@training(summarise=_mnist_12_summary, recorded=True)
def control(bench: Bench, mnist_12: Workload, control: Control) -> Iterator[Recipe]:
    """The server averages over the members of a meeting."""
    yield from _controlled(bench, mnist_12, control)


@training(summarise=_mnist_12_summary, recorded=True)
def control_rivals(bench: Bench, mnist_12: Workload, control_rivals: Control) -> Iterator[Recipe]:
    """GSSP's groups are natural breaks, MLL-SGD's rounds end with barriers."""
    yield from _controlled(bench, mnist_12, control_rivals)


@training(summarise=_mnist_12_summary, recorded=True)
def control_rate(bench: Bench, mnist_12: Workload, control_rate: Control) -> Iterator[Recipe]:
    """The server averages over members, with a lower learning rate."""
    yield from _controlled(bench, mnist_12, control_rate)


def _all(bench: Bench, workload: Workload) -> Iterator[Recipe]:
    settings, average = bench.settings, bench.settings.averaged_over
    policies = {label: settings.methods[label] for label in workload.methods}
    for workers in workload.workers:
        yield from _runs(bench, workload, policies, workers, average)
    for reading, workers in itertools.product(workload.readings, workload.readings_on):
        read = {LPSP: settings.readings[reading]}
        yield from _runs(bench, workload, read, workers, average, reading)
    for reading, group in itertools.product(workload.ablated_readings, workload.ablations):
        changed = settings.lpsp(settings.ablations[group], reading)
        yield from _runs(bench, workload, changed, workload.ablated_workers, average, reading)


def _controlled(bench: Bench, workload: Workload, control: Control) -> Iterator[Recipe]:
    workload = workload.model_copy(update={"lr": control.lr or workload.lr})
    policies = {label: bench.settings.methods[label] for label in control.methods}
    yield from _runs(bench, workload, policies, control.workers, control.averaged_over)


def _runs(
    bench: Bench,
    workload: Workload,
    policies: Mapping[str, Part],
    workers: int,
    average: Average,
    reading: str = LPSP,
) -> Iterator[Recipe]:
    network = bench.settings.network
    link = Link(
        lan=network.rate,
        wan=network.rate,
        lan_latency=network.latency,
        efficiency=network.efficiency,
    )
    for (label, policy), seed in itertools.product(policies.items(), workload.seeds):
        at = coordinates_of(label, policy, reading)
        case = f"{at['method']} on {workers}"
        yield Recipe(
            document=bench.document,
            experiment=bench.experiment,
            system=case,
            at=at,
            exchange=Part(name="parameter_server"),
            levels=(Level(up=Part(name="identity")),),
            synchronization=policy,
            fusion=Part(name="whole_model"),
            model=workload.model,
            dataset=workload.dataset,
            limit=workload.images,
            test_limit=workload.test_limit,
            workers=(workers,),
            cluster="star",
            uneven=Uneven(highest=bench.settings.stragglers.highest),
            averaged_over=average,
            gradients=workload.gradients,
            batch=workload.batch,
            lr=workload.lr,
            momentum=workload.momentum,
            seconds=workload.seconds,
            evaluate_every=workload.rounds_between(workers),
            seed=seed,
            scale=bench.scale,
            device="this_cpu",
            compute_s=workload.base_s,
            networks={case: link},
            accelerator=bench.settings.accelerator,
        )
