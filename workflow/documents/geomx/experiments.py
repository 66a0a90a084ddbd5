"""GeoMX's tables of one round and its trainings, from its recipe."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from slowlink.testbed.results import Row
from slowlink.testbed.training.recipe import (
    Codec,
    Dataset,
    Device,
    How,
    Level,
    Link,
    Model,
    Of,
    Part,
    Policy,
    Recipe,
    Uneven,
)
from slowlink.workflow import experiment as declarations
from slowlink.workflow.experiment import PLANNING, Section, Seeds, experiment, training

if TYPE_CHECKING:
    from slowlink.workflow.settings import Check

if not PLANNING:
    import pandas as pd

    from slowlink.methods import exchange
    from slowlink.testbed.network import geo_sites
    from slowlink.testbed.prices import load_codec
    from slowlink.testbed.results import row_of
    from slowlink.testbed.rounds import Timing, byte_rows, costs, real_traffic, time_rows
    from slowlink.testbed.training import models
    from slowlink.testbed.training.summary import summarise

IMAGES = 4
"""Images a worker for gradients whose sizes alone matter."""
TIME = "communication_time"
BSP = Part(name="bsp")

Sites = Annotated[list[PositiveInt], Field(min_length=1)]
"""Workers of each site."""


class Cluster(Section):
    device: Device
    servers_per_site: list[PositiveInt]
    gpus_per_server: PositiveInt
    lan: PositiveFloat
    lan_latency: NonNegativeFloat
    wan_latency: NonNegativeFloat


class BiSparse(Section):
    ratio: Annotated[float, Field(gt=0, le=1)]
    sample_rate: Annotated[float, Field(gt=0, le=1)]
    momentum: Annotated[float, Field(ge=0, lt=1)]
    lower_bound: PositiveInt
    format: Literal["padded", "tight"]


class System(Section):
    exchange: Annotated[str, Of("exchange")]
    levels: list[Level]


class Variant(Section):
    """A way of modelling communication: options of the exchange, hosts and links."""

    overlap: bool = False
    chunks: PositiveInt = 1
    colocated: bool = False
    efficiency: Annotated[float, Field(gt=0, le=1)] = 1.0

    @property
    def exchange(self) -> dict[str, Any]:
        return dict(overlap=self.overlap, chunks=self.chunks)


class Case(Section):
    """``slowness``: how many times the device's time an iteration takes in each site, if not 1."""

    system: str
    wan: PositiveFloat
    synchronization: Annotated[str, Of("synchronization")] = "bsp"
    slowness: tuple[PositiveFloat, ...] = ()


class Cases(Section):
    """Systems at bandwidths, on sites of so many workers."""

    workers: Sites
    cases: dict[str, Case]

    @property
    def systems(self) -> list[str]:
        return list(dict.fromkeys(case.system for case in self.cases.values()))


class Table(Cases):
    """The same for every model."""

    models: list[Model]


class Settings(declarations.Settings):
    """What all experiments share: the data, the cluster, the systems, the ways of modelling."""

    dataset: Dataset
    limit: PositiveInt | None
    test_limit: PositiveInt | None
    sampler: Literal["random", "sequential"]
    augment: bool
    colour: Annotated[float, Field(ge=0, le=1)]
    batch: PositiveInt
    seeds: Seeds
    gradients: How
    accelerator: Literal["auto", "cpu", "cuda"]
    cluster: Cluster
    bisparse: BiSparse
    systems: dict[str, System]
    variants: Annotated[dict[str, Variant], Field(min_length=1)]

    @property
    def variant(self) -> str:
        """The way of modelling whose numbers are ours."""
        return next(iter(self.variants))

    def narrowed(self, plain, experiment, part, sections) -> dict[str, Any]:
        """These settings with only those systems that the sections name."""
        used = {name for one in sections.values() for name in getattr(one, "systems", ())}
        return plain | {"systems": {n: s for n, s in plain["systems"].items() if n in used}}

    def link(self, wan: float, workers: Sequence[int], variant: str = "") -> Link:
        """The network of sites of ``workers``, modelled as ``variant`` says."""
        chosen = self.variants[variant or self.variant]
        machines = self.cluster.servers_per_site[1:]
        # A site's server shares its host with the workers that each machine has at least.
        shared = min(n // m for n, m in zip(workers, machines, strict=True))
        return Link(
            lan=self.cluster.lan,
            wan=wan,
            lan_latency=self.cluster.lan_latency,
            wan_latency=self.cluster.wan_latency,
            colocated=shared if chosen.colocated else 0,
            efficiency=chosen.efficiency,
        )

    def levels(self, system: str, parties: int, **bisparse: Any) -> tuple[Level, ...]:
        """The codecs of ``system`` with the recipe's BiSparse filled in.

        ``bisparse`` has other parameters of it: a lower bound where a smaller model is trained than
        the document's.
        """
        filled = self.bisparse.model_dump() | dict(parties=parties) | bisparse

        def fill(part: Codec | None) -> Codec | None:
            if part is None or part.name != "bisparse":
                return part
            return Part(name=part.name, **(filled | part.parameters))

        levels = self.systems[system].levels
        return tuple(Level(up=fill(one.up), down=fill(one.down)) for one in levels)

    def check(self, check: Check) -> None:
        for name in ("table1", "table2", "figure4", "mixed", "residual"):
            for label, case in getattr(self, name).cases.items():
                check.need(f"{name}.cases.{label}.system", case.system, self.systems)
        for name in self.live.systems:
            check.need("live.systems", name, self.systems)
        for name in ("table1", "table2"):
            chosen, table = getattr(self.emulated, name), getattr(self, name)
            for model in chosen.models or ():
                check.need(f"emulated.{name}.models", model, [m.name for m in table.models])
            for label in chosen.cases or ():
                check.need(f"emulated.{name}.cases", label, table.cases)

    def check_made(self, check: Check) -> None:
        sites = geo_sites([1, 1])
        for name, system in self.systems.items():
            depth = len(exchange.load(system.exchange).groups(sites))
            if (given := len(system.levels)) != depth:
                check.fail(
                    f"systems.{name}.levels",
                    f"{system.exchange} has {depth} levels, {given} given",
                )
        for name, one in self.agreement.cases.items():
            key = f"agreement.cases.{name}"
            network = check.attempt(f"{key}.network", one.topology)
            check.attempt(f"{key}.exchange", one.plan, network)


Bench = declarations.Bench[Settings]


# What experiments share ---------------------------------------------------------------------------


def a_run(
    bench: Bench,
    system: str,
    workers: Sequence[int],
    networks: Mapping[str, Link],
    *,
    lower_bound: int | None = None,
    bisparse: Mapping[str, Any] = {},
    policy: Policy = BSP,
    **fields: Any,
) -> Recipe:
    """Training of ``system``, with the other fields of a recipe as given."""
    settings = bench.settings
    options = settings.variants[settings.variant].exchange
    smaller = {"lower_bound": lower_bound} if lower_bound else {}
    shared = dict(
        document=bench.document,
        experiment=bench.experiment,
        system=f"{system} {policy.name}",
        at=dict(system=system),
        exchange=Part(name=settings.systems[system].exchange, **options),
        levels=settings.levels(system, len(workers), **smaller, **bisparse),
        synchronization=policy,
        dataset=settings.dataset,
        limit=settings.limit,
        test_limit=settings.test_limit,
        workers=tuple(workers),
        sampler=settings.sampler,
        augment=settings.augment,
        colour=settings.colour,
        gradients=settings.gradients,
        batch=settings.batch,
        seed=settings.seeds[0],
        scale=bench.scale,
        device=settings.cluster.device,
        networks=networks,
        accelerator=settings.accelerator,
    )
    return Recipe(**shared | fields)


def full_size(bench: Bench, table: Table, model: Part, systems: Sequence[str]) -> dict[str, Recipe]:
    """One round of each system on a table's own model, whatever this scale trains."""
    case = next(iter(table.cases.values()))
    links = {"any": bench.settings.link(case.wan, table.workers)}
    one = dict(model=model, norm=False, batch=IMAGES, lr=1.0, rounds=1, evaluate_every=1)
    return {name: a_run(bench, name, table.workers, links, **one) for name in sorted(systems)}


def a_cell(bench: Bench, run: Recipe, label: str, case: Case, **fields: Any) -> Row:
    """What all rows of a cell of a table share."""
    place = dict(case=label, bandwidth=case.wan, seed=-1, evidence="computed", metric="")
    return Row(**run.told | place | dict(value=0.0, unit="") | fields)


# One round ----------------------------------------------------------------------------------------


class Host(Section):
    s_per_gb: list[NonNegativeFloat]


@experiment(memory_mb=9000, makes=("host",))
def table1(bench: Bench, table1: Table, host: Host) -> Iterator[Row]:
    """One round of every cell on full-size models; and what servers may spend on merging."""
    for rows, _ in _rounds(bench, table1):
        yield from rows
        ours = next(row for row in rows if row.metric == TIME)
        values = next(row.value for row in rows if row.metric == "parameters")
        # A server merges the gradients of its workers one after the other, and so does that of
        # the centre with those of sites, where there are any.
        depth = len(bench.settings.systems[ours.at["system"]].levels)
        merged = sum(table1.workers) if depth == 1 else max(table1.workers) + len(table1.workers)
        for seconds in host.s_per_gb:
            update = dict(
                experiment="host",
                variant="",
                at=ours.at | dict(host_s_per_gb=seconds),
                value=ours.value + seconds * merged * 4 * values / 1e9,
            )
            yield ours.model_copy(update=update)


class Sensitivity(Section):
    compute_s: list[NonNegativeFloat]


@experiment(memory_mb=9000, makes=("sensitivity",))
def table2(bench: Bench, table2: Table, sensitivity: Sensitivity) -> Iterator[Row]:
    """The same, with the bytes of every worker's own gradient; and what computing may take."""
    for rows, compression_s in _rounds(bench, table2):
        yield from rows
        ours = next(row for row in rows if row.metric == TIME)
        for compute_s in sensitivity.compute_s:
            update = dict(
                experiment="sensitivity",
                variant="",
                at=ours.at | dict(compute_s=compute_s),
                metric="round_time",
                value=ours.value + compression_s + compute_s,
            )
            yield ours.model_copy(update=update)


def _rounds(bench: Bench, table: Table) -> Iterator[tuple[list[Row], float]]:
    """Rows of every cell, and the seconds that compressing takes in its round."""
    settings = bench.settings
    for model in table.models:
        runs = full_size(bench, table, model, table.systems)
        bench.say(f"{bench.experiment}: bytes of {model.name} through {', '.join(runs)}")
        traffic = real_traffic(runs)
        for label, case in table.cases.items():
            bench.say(f"{bench.experiment}: {model.name}, {label}")
            run, sent = runs[case.system], traffic[case.system]
            row = a_cell(bench, run, label, case)
            timings = {
                name: Timing(settings.link(case.wan, table.workers, name), variant.exchange)
                for name, variant in settings.variants.items()
            }
            ideal = dict(colocated=settings.cluster.gpus_per_server, efficiency=1.0)
            best = settings.link(case.wan, table.workers).model_copy(update=ideal)
            whole = run.model_copy(update=dict(batch=settings.batch))
            compute_s, compression_s = costs(whole, sent)
            spent = compute_s, compression_s
            rows = [
                *byte_rows(row, len(run.levels), sent),
                *time_rows(row, run.exchange, table.workers, timings, best, sent, *spent),
            ]
            yield rows, compression_s


# Trained ------------------------------------------------------------------------------------------


class Optimizer(Section):
    name: Literal["sgd"]
    lr: PositiveFloat
    momentum: Annotated[float, Field(ge=0, lt=1)]


class Training(Section):
    """The target lies ``below_dense`` points under the final accuracy of uncompressed runs."""

    model: Model
    stands_for: Model | None
    lower_bound: PositiveInt | None
    optimizer: Optimizer
    rounds: PositiveInt
    rounds_beside: PositiveInt
    evaluate_every: PositiveInt
    below_dense: PositiveFloat


def at_target(curves: pd.DataFrame, recipe: Settings) -> Iterator[Row]:
    """Final accuracies, and what reaching the target takes."""
    return summarise(curves, recipe.training.below_dense)


@training(summarise=at_target)
def figure4(bench: Bench, training: Training, figure4: Cases) -> Iterator[Recipe]:
    """GeoMX and MXNET at two bandwidths."""
    return _runs(bench, training, figure4)


@training(summarise=at_target)
def figure6(bench: Bench, training: Training, table2: Table) -> Iterator[Recipe]:
    """The settings of Table 2."""
    return _runs(bench, training, table2, rounds=training.rounds_beside)


@training(summarise=at_target)
def mixed(bench: Bench, training: Training, mixed: Cases) -> Iterator[Recipe]:
    """Full and mixed synchronization, whose optimizer is at the global server."""
    rounds = training.rounds_beside
    return _runs(bench, training, mixed, rounds=rounds, optimizer_at="server")


class Controlled(Section):
    """A system, with ``momentum`` in its optimizer, and in BiSparse in place of the recipe's."""

    system: str
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    bisparse_momentum: Annotated[float, Field(ge=0, lt=1)] | None = None


class Residual(Section):
    """Cases that train a residual network; the target is as in :class:`Training`."""

    dataset: Dataset
    model: Model
    stands_for: Model
    workers: Sites
    batch: PositiveInt
    wan: PositiveFloat
    lower_bound: PositiveInt
    lr: PositiveFloat
    rounds: PositiveInt
    evaluate_every: PositiveInt
    test_limit: PositiveInt | None
    below_dense: PositiveFloat
    seeds: Seeds
    cases: dict[str, Controlled]

    @property
    def systems(self) -> list[str]:
        return list(dict.fromkeys(case.system for case in self.cases.values()))


def at_residual_target(curves: pd.DataFrame, recipe: Settings) -> Iterator[Row]:
    """Final accuracies, and what reaching the target takes."""
    return summarise(curves, recipe.residual.below_dense)


@training(summarise=at_residual_target, recorded=True)
def residual(bench: Bench, residual: Residual) -> Iterator[Recipe]:
    """Table 2's systems on a residual network with BatchNorm, as many rounds as the document's
    longest run; and what momentum does without sparsification, and sparsification without it."""
    link = bench.settings.link(residual.wan, residual.workers)
    shared = residual.model_dump(
        include={"dataset", "batch", "lower_bound", "lr", "rounds", "evaluate_every", "test_limit"}
    )
    # Seed by seed, so that a record that is not whole yet can compare the cases.
    for seed in residual.seeds:
        for label, case in residual.cases.items():
            momentum = case.bisparse_momentum
            yield a_run(
                bench,
                case.system,
                residual.workers,
                {label: link},
                bisparse={} if momentum is None else {"momentum": momentum},
                at=dict(system=label),
                model=residual.model,
                stands_for=residual.stands_for,
                limit=None,
                sampler="random",
                augment=False,
                momentum=case.momentum,
                seed=seed,
                **shared,
            ).model_copy(update=dict(system=label))


CONVERGED = {"final_accuracy", "target_accuracy", "rounds_to_target", "time_to_target"}
"""What of a training's summary Table 2 prints, and the target it is measured by."""


@experiment(after=[table2, figure6, residual])
def convergence(
    bench: Bench, rows: pd.DataFrame, training: Training, table2: Table, residual: Residual
) -> Iterator[Row]:
    """Table 2's accuracies, rounds and hours by the nearest to its network that was trained.

    That is the document's own where Figure 6 trains it, else the residual one, whose rounds take as
    long as Table 2's are simulated to take. Who adds dense gradients up makes no difference to a
    model, so that MXNET's rounds are GeoMX's.
    """
    own = training.stands_for is None
    nearest = training if own else residual
    yield _sampled(bench, nearest.model, nearest.lower_bound or bench.settings.bisparse.lower_bound)
    told = rows[rows["experiment"].eq("figure6" if own else "residual")]
    told = told[told["metric"].isin(CONVERGED)].to_dict("records")
    trained = [row_of(one, experiment=bench.experiment) for one in told]
    if own:
        yield from trained
        return
    priced = rows[rows["metric"].eq("round_time") & rows["variant"].eq(bench.settings.variant)]
    round_s = priced[priced["experiment"].eq("table2")].set_index("case")["value"]
    for label, case in table2.cases.items():
        alike = "GeoMX" if case.system == "MXNET" else case.system
        here = dict(
            case=label,
            at=dict(system=case.system),
            exchange=bench.settings.systems[case.system].exchange,
            bandwidth=case.wan,
        )
        for row in trained:
            if row.at["system"] != alike or row.metric == "time_to_target":
                continue
            yield row.model_copy(update=here)
            if row.metric == "rounds_to_target":
                hours = dict(metric="time_to_target", unit="h")
                hours["value"] = row.value * round_s[label] / 3600
                # As in any training, a run that is late in rounds tells nothing of its hours.
                if row.status == "late":
                    hours |= dict(status="failed", value=math.nan)
                yield row.model_copy(update=here | hours)


def _sampled(bench: Bench, model: Part, lower_bound: int) -> Row:
    """The share of the values of sparse tensors that BiSparse samples for its thresholds: of small
    tensors more than the recipe's, as a threshold needs so many sampled values above it."""
    options = bench.settings.bisparse.model_dump() | dict(lower_bound=lower_bound)
    codec = load_codec(Part(name="bisparse", **options))
    shapes = models.gradient_shapes(models.make(model.name, **model.parameters))
    sparse = [n for n in map(math.prod, shapes.values()) if codec.sparse(n)]
    share = sum(map(codec.sample_size, sparse)) / sum(sparse)
    return bench.row("sampled", 100 * share, "%", case=model.name, model=model.name,
                     compression="bisparse", evidence="computed")  # fmt: skip


def _runs(bench: Bench, training: Training, table: Cases, **fields: Any) -> Iterator[Recipe]:
    """Cases that train alike share a run and differ in links."""
    shared: dict[tuple, dict[str, Link]] = {}
    for label, case in table.cases.items():
        networks = shared.setdefault((case.system, case.synchronization, case.slowness), {})
        networks[label] = bench.settings.link(case.wan, table.workers)
    apart = any(case.slowness for case in table.cases.values())
    for (system, policy, slowness), networks in shared.items():
        # How much slower the slowest site is than the fastest, where some cases' sites differ.
        uneven = dict(slowest=max(slowness or [1.0]) / min(slowness or [1.0])) if apart else {}
        for seed in bench.settings.seeds:
            run = a_run(
                bench,
                system,
                table.workers,
                networks,
                at=dict(system=system, **uneven),
                uneven=Uneven(sites=slowness) if slowness else None,
                policy=Part(name=policy),
                lower_bound=training.lower_bound,
                model=training.model,
                stands_for=training.stands_for,
                lr=training.optimizer.lr,
                momentum=training.optimizer.momentum,
                evaluate_every=training.evaluate_every,
                seed=seed,
                **dict(rounds=training.rounds) | fields,
            )
            told = f"{run.system} uneven" if slowness else run.system
            yield run.model_copy(update=dict(system=told))
