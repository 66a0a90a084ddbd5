"""LPSP's training: MNIST and CIFAR-10 under every policy, on uneven workers in virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import PositiveFloat, PositiveInt

from slowlink.testbed.results import Row
from slowlink.testbed.training.recipe import Level, Link, Part, Recipe, Uneven
from slowlink.workflow.documents.lpsp.settings import LPSP, Average, Bench, Workload, coordinates_of
from slowlink.workflow.experiment import PLANNING, Section, training

if not PLANNING:
    import pandas as pd

    from slowlink.testbed.training.summary import summarise_in_time


class Control(Section):
    """Another choice of what is not printed; ``lr`` is the workload's if null."""

    workers: PositiveInt
    averaged_over: Average
    lr: PositiveFloat | None = None
    methods: list[str]


class Recorded(Section):
    """What is recorded of a workload, since desk scale leaves it out: LPSP's readings on so many
    workers, and readings with options changed."""

    readings_on: list[PositiveInt] = []
    ablated_readings: list[str] = []


def _mnist_summary(curves: pd.DataFrame, recipe: Any) -> Iterator[Row]:
    return summarise_in_time(curves, recipe.mnist.target, recipe.mnist.window)


def _cifar10_summary(curves: pd.DataFrame, recipe: Any) -> Iterator[Row]:
    return summarise_in_time(curves, recipe.cifar10.target, recipe.cifar10.window)


@training(summarise=_mnist_summary)
def mnist(bench: Bench, mnist: Workload) -> Iterator[Recipe]:
    """Table 3, Figures 3 and 4."""
    yield from _all(bench, mnist)


@training(summarise=_cifar10_summary)
def cifar10(bench: Bench, cifar10: Workload) -> Iterator[Recipe]:
    """Table 4, Figures 5, 6 and 7."""
    yield from _all(bench, cifar10)


@training(summarise=_mnist_summary, recorded=True, makes=("mnist",))
def mnist_recorded(bench: Bench, mnist: Workload, mnist_recorded: Recorded) -> Iterator[Recipe]:
    """More of LPSP's readings."""
    yield from _readings(replace(bench, experiment="mnist"), mnist, mnist_recorded)


@training(summarise=_cifar10_summary, recorded=True, makes=("cifar10",))
def cifar10_recorded(
    bench: Bench, cifar10: Workload, cifar10_recorded: Recorded
) -> Iterator[Recipe]:
    """More of LPSP's readings."""
    yield from _readings(replace(bench, experiment="cifar10"), cifar10, cifar10_recorded)


@training(summarise=_mnist_summary)
def control(bench: Bench, mnist: Workload, control: Control) -> Iterator[Recipe]:
    """The server averages over the members of a meeting."""
    yield from _controlled(bench, mnist, control)


@training(summarise=_mnist_summary)
def control_rivals(bench: Bench, mnist: Workload, control_rivals: Control) -> Iterator[Recipe]:
    """GSSP's groups are natural breaks, MLL-SGD's rounds end with barriers."""
    yield from _controlled(bench, mnist, control_rivals)


@training(summarise=_mnist_summary)
def control_rate(bench: Bench, mnist: Workload, control_rate: Control) -> Iterator[Recipe]:
    """The server averages over members, with a lower learning rate."""
    yield from _controlled(bench, mnist, control_rate)


def _all(bench: Bench, workload: Workload) -> Iterator[Recipe]:
    settings, average = bench.settings, bench.settings.averaged_over
    policies = {label: settings.methods[label] for label in workload.methods}
    for workers in workload.workers:
        yield from _runs(bench, workload, policies, workers, average)
    yield from _ablated(bench, workload, LPSP)
    yield from _readings(bench, workload, workload)


def _readings(bench: Bench, workload: Workload, which: Workload | Recorded) -> Iterator[Recipe]:
    settings, average = bench.settings, bench.settings.averaged_over
    for reading, workers in itertools.product(workload.readings, which.readings_on):
        read = {LPSP: settings.readings[reading]}
        yield from _runs(bench, workload, read, workers, average, reading)
    for reading in which.ablated_readings:
        yield from _ablated(bench, workload, reading)


def _ablated(bench: Bench, workload: Workload, reading: str) -> Iterator[Recipe]:
    settings = bench.settings
    for group in workload.ablations:
        changed = settings.lpsp(settings.ablations[group], reading)
        workers, average = workload.ablated_workers, settings.averaged_over
        yield from _runs(bench, workload, changed, workers, average, reading)


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
