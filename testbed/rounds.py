"""One round of a system on full-size models: real payload bytes, simulated communication time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from methods import exchange
from testbed.network import bounds, simulate
from testbed.results import Row
from testbed.training import models
from testbed.training.datasets import load_dataset
from testbed.training.device import profile
from testbed.training.learner import Learner, Traffic
from testbed.training.recipe import Link, Part, Recipe
from testbed.training.trainer import complete, topology


@dataclass(frozen=True)
class Timing:
    """How one case's round is modelled: the links, and options of the exchange."""

    link: Link
    exchange: Mapping[str, object]


def real_traffic(recipes: Mapping[str, Recipe], distinct: bool = True) -> dict[str, Traffic]:
    """Bytes of one round of each system, counted on payloads of real gradients.

    All ``recipes`` name the same model, data and workers; the gradients are computed once.
    ``distinct=False`` gives every worker the same gradient: enough where sizes depend on shapes.
    """
    first = next(iter(recipes.values()))
    dataset = load_dataset(first.dataset, limit=first.limit)
    gradients: dict[int, list] = {}
    traffic = {}
    for name, recipe in recipes.items():
        model = models.make(recipe.model.name, recipe.seed, **recipe.model.parameters)
        system = exchange.load(recipe.exchange.name, **recipe.exchange.parameters)
        sites = topology(recipe.workers, next(iter(recipe.networks.values())))
        learner = Learner(recipe, model, dataset, system, sites)
        members = range(len(learner.nodes))
        if not gradients:
            for rank in members:
                gradients[rank] = gradients[0] if rank and not distinct else learner.gradient(rank)
        _, traffic[name] = learner.aggregate(members, gradients)
    return traffic


def byte_rows(row: Row, model: Part, levels: int, traffic: Traffic) -> Iterator[Row]:
    """``parameters``, and the MB (1e6 B) that one outermost party sends and receives."""
    network = models.make(model.name, **model.parameters)
    values = models.count(models.gradient_shapes(network, norm=False))
    outer = levels - 1
    pushed = [sum(sizes[f"push/{outer}"].values()) for sizes in traffic.rounds]
    parties = max(len(sizes[f"push/{outer}"]) for sizes in traffic.rounds)
    pulled = [sizes[f"pull/{outer}"] for sizes in traffic.rounds]
    figures = [
        ("parameters", values, "1"),
        ("upload_raw", 4 * values / 1e6, "MB"),
        ("download_raw", 4 * values / 1e6, "MB"),
        ("upload", sum(pushed) / parties / 1e6, "MB"),
        ("download", sum(pulled) / 1e6, "MB"),
    ]
    for metric, value, unit in figures:
        yield row.model_copy(
            update=dict(metric=metric, value=float(value), unit=unit, evidence="computed")
        )


def time_rows(
    row: Row,
    system: Part,
    workers: Sequence[int],
    timings: Mapping[str, Timing],
    best: Link,
    traffic: Traffic,
    compute_s: float,
    compression_s: float,
) -> Iterator[Row]:
    """``communication_time`` and ``round_time`` a variant, and the two lower bounds, in seconds.

    The bounds hold for ``best``, the most favourable placement and ideal links: ``duplex`` for any
    schedule, ``serial`` for any without overlap of phases.
    """

    def made(variant: str, metric: str, value: float, evidence: str) -> Row:
        update = dict(variant=variant, metric=metric, value=float(value), unit="s")
        return row.model_copy(update=update | dict(evidence=evidence))

    for variant, timing in timings.items():
        sites = topology(workers, timing.link)
        plan = exchange.load(system.name, **(system.parameters | dict(timing.exchange)))(sites)
        seconds = sum(
            simulate(
                plan, sites, complete(plan, sizes), efficiency=timing.link.efficiency
            ).completion_s
            for sizes in traffic.rounds
        )
        yield made(variant, "communication_time", seconds, "simulated")
        yield made(variant, "round_time", seconds + compute_s + compression_s, "simulated")
    sites = topology(workers, best)
    plan = exchange.load(system.name)(sites)
    for name, duplex in (("duplex", True), ("serial", False)):
        seconds = sum(
            bounds.bound(plan, sites, complete(plan, sizes), duplex=duplex)
            for sizes in traffic.rounds
        )
        yield made(name, "bound_time", seconds, "computed")


def costs(recipe: Recipe, traffic: Traffic) -> tuple[float, float]:
    """Seconds a round that computing and compressing take on the recipe's device."""
    device = profile(recipe.device)
    model = models.make(recipe.model.name, **recipe.model.parameters)
    shape = load_dataset(recipe.dataset, limit=recipe.limit).shape
    image = models.image_shape(recipe.model.parameters, shape)
    compute_s = device.compute_s(models.flops_per_sample(model, image), recipe.batch)
    coded = (
        device.compression_s(codec, nbytes, traffic.calls[codec])
        for codec, nbytes in traffic.coded.items()
    )
    return compute_s, sum(coded)
