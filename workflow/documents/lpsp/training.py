"""LPSP's training: MNIST and CIFAR-10 under every policy, on uneven workers in virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import PositiveFloat, PositiveInt

from testbed.results import Row
from testbed.training.recipe import Level, Link, Part, Recipe, Uneven
from workflow.documents.lpsp.settings import LPSP, Average, Bench, Workload, coordinates_of
from workflow.experiment import PLANNING, Section, training

if not PLANNING:
    import pandas as pd

    from testbed.training.summary import summarise_in_time


class Control(Section):
    """Another choice of what is not printed; ``lr`` is the workload's if null."""

    workers: PositiveInt
    averaged_over: Average
    lr: PositiveFloat | None = None
    methods: list[str]


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
    for reading, workers in itertools.product(workload.readings, workload.readings_on):
        read = {LPSP: settings.readings[reading]}
        yield from _runs(bench, workload, read, workers, average, reading)
    for reading in (LPSP, *workload.ablated_readings):
        for group in workload.ablations:
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
