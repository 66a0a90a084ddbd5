"""GeoMX: what its recipe may say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt

from testbed.results import Scale
from testbed.training.recipe import How, Level, Link, Part, Recipe
from workflow.recipes import Check, PaperRecipe, Strict, distinct, slug

if TYPE_CHECKING:
    from methods.exchange import Topology

NETWORKS = ("star", "tree", "geo_sites")
"""Networks that may be emulated: those without loops."""


def network_of(part: Part) -> Topology:
    """A network by name, from ``testbed.network.topology``."""
    from testbed.network import topology

    return getattr(topology, part.name)(**part.parameters)


class Cluster(Strict):
    device: str
    servers_per_site: list[PositiveInt]
    gpus_per_server: PositiveInt
    lan: PositiveFloat
    lan_latency: Annotated[float, Field(ge=0)]
    wan_latency: Annotated[float, Field(ge=0)]


class Optimizer(Strict):
    name: Literal["sgd"]
    lr: PositiveFloat
    momentum: Annotated[float, Field(ge=0, lt=1)]


class Target(Strict):
    below_dense: PositiveFloat


class BiSparse(Strict):
    ratio: Annotated[float, Field(gt=0, le=1)]
    sample_rate: Annotated[float, Field(gt=0, le=1)]
    momentum: Annotated[float, Field(ge=0, lt=1)]
    lower_bound: PositiveInt
    format: Literal["padded", "tight"]
    stand_in_lower_bound: PositiveInt | None = None


class System(Strict):
    exchange: str
    levels: list[Level]


class Variant(Strict):
    exchange: dict[str, Any] = {}
    colocated: bool = False
    efficiency: Annotated[float, Field(gt=0, le=1)] = 1.0


class Case(Strict):
    system: str
    wan: PositiveFloat
    synchronization: str = "bsp"


class Experiment(Strict):
    workers: list[PositiveInt]
    cases: dict[str, Case]
    models: dict[str, dict[str, Any]] = {}
    model: Part | None = None


class Sensitivity(Strict):
    compute_s: list[Annotated[float, Field(ge=0)]]


class Cells(Strict):
    """Which cells of a table: ``models`` and ``cases`` by name, null for all of them."""

    models: list[str] | None = None
    cases: list[str] | None = None


class Emulated(Strict):
    """Rounds on real processes: each pair of nodes is measured for ``measured_s`` before, and a
    round in which nothing happens for ``timeout_s`` has failed."""

    measured_s: PositiveFloat
    timeout_s: PositiveFloat
    table1: Cells = Cells()
    table2: Cells = Cells()


class Compared(Strict):
    """One exchange on emulated links; those that are not ``fair`` have one queue for all."""

    exchange: Part
    network: Part
    nbytes: PositiveFloat
    fair: bool = True


class Agreement(Strict):
    repeats: PositiveInt
    chosen: list[str] | None = None
    cases: dict[str, Compared]


class Live(Strict):
    """The system itself: processes that train one model over emulated links."""

    systems: list[str]
    workers: list[PositiveInt]
    wan: PositiveFloat
    model: Part
    batch: PositiveInt
    lr: PositiveFloat
    rounds: PositiveInt
    evaluate_every: PositiveInt
    limit: PositiveInt | None
    test_limit: PositiveInt | None
    seed: int
    timeout_s: PositiveFloat


class GeoMX(PaperRecipe):
    """The recipe ``papers/geomx.yaml``."""

    paper: Literal["geomx"]
    dataset: Literal["mnist", "fashion_mnist", "cifar10"]
    sampler: Literal["random", "sequential"]
    augment: bool
    gradients: How
    cluster: Cluster
    model: Part
    stands_for: Part | None
    optimizer: Optimizer
    batch: PositiveInt
    rounds: PositiveInt
    evaluate_every: PositiveInt
    seeds: Annotated[list[int], Field(min_length=1), AfterValidator(distinct)]
    limit: PositiveInt | None
    accelerator: Literal["auto", "cpu", "cuda"]
    target: Target
    bisparse: BiSparse
    systems: dict[str, System]
    variants: dict[str, Variant]
    table1: Experiment
    figure4: Experiment
    table2: Experiment
    mixed: Experiment
    sensitivity: Sensitivity
    emulated: Emulated
    agreement: Agreement
    live: Live

    def networks(self, table: Literal["table1", "table2"]) -> list[Part]:
        """The models of a table."""
        experiment = getattr(self, table)
        if experiment.model:
            return [experiment.model]
        return [Part(name=name, **options) for name, options in experiment.models.items()]

    def cells(self, table: Literal["table1", "table2"]) -> Iterator[tuple[Part, dict[str, Case]]]:
        """By model, the cases of ``table`` that are emulated at this scale."""
        chosen, cases = getattr(self.emulated, table), getattr(self, table).cases
        wanted = {n: c for n, c in cases.items() if chosen.cases is None or n in chosen.cases}
        for network in self.networks(table):
            if wanted and (chosen.models is None or network.name in chosen.models):
                yield network, wanted

    def colocated(self, workers: list[int]) -> int:
        """Workers that share a host with their site's server: what each machine has at least."""
        machines = self.cluster.servers_per_site[1:]
        return min(n // m for n, m in zip(workers, machines, strict=True))

    def link(self, case: Case, workers: list[int], variant: Variant | None = None) -> Link:
        """The network of ``case`` for sites of ``workers``, modelled as ``variant`` says."""
        variant = variant or self.default_variant
        return Link(
            lan=self.cluster.lan,
            wan=case.wan,
            lan_latency=self.cluster.lan_latency,
            wan_latency=self.cluster.wan_latency,
            colocated=self.colocated(workers) if variant.colocated else 0,
            efficiency=variant.efficiency,
        )

    @property
    def default_variant(self) -> Variant:
        return next(iter(self.variants.values()))

    def levels(
        self, system: System, workers: list[int], full_size: bool = False
    ) -> tuple[Level, ...]:
        """The codecs of ``system`` with the recipe's BiSparse settings filled in.

        ``full_size`` asks for the document's own model whatever this scale trains.
        """
        filled = self.bisparse.model_dump() | {"parties": len(workers)}
        smaller = filled.pop("stand_in_lower_bound")
        if self.stands_for and smaller and not full_size:
            filled["lower_bound"] = smaller

        def fill(part: Part | None) -> Part | None:
            if part is None or part.name != "bisparse":
                return part
            return Part(name="bisparse", **(filled | part.parameters))

        return tuple(Level(up=fill(lv.up), down=fill(lv.down)) for lv in system.levels)

    def runs(self, scale: Scale) -> dict[str, Recipe]:
        """Every training run by its id. Cases that train alike share a run and differ in links."""
        found: dict[str, Recipe] = {}
        experiments = {"figure4": self.figure4, "figure6": self.table2, "mixed": self.mixed}
        for name, experiment in experiments.items():
            shared: dict[tuple[str, str], dict[str, Link]] = {}
            for case_name, case in experiment.cases.items():
                networks = shared.setdefault((case.system, case.synchronization), {})
                networks[case_name] = self.link(case, experiment.workers)
            for (system_name, policy), networks in shared.items():
                for seed in self.seeds:
                    run = f"{name}-{system_name}-{policy}-seed{seed}"
                    found[slug(run)] = self._recipe(
                        name, experiment, system_name, policy, networks, seed, scale
                    )
        return found

    def live_run(self, system_name: str, scale: Scale) -> Recipe:
        """What ``system`` trains for real, and the trainer in virtual time."""
        live, system = self.live, self.systems[system_name]
        link = self.link(Case(system=system_name, wan=live.wan), live.workers)
        return Recipe(
            paper=self.paper,
            experiment="system",
            system=system_name,
            exchange=Part(name=system.exchange, **self.default_variant.exchange),
            levels=self.levels(system, live.workers),
            synchronization=Part(name="bsp"),
            model=live.model,
            dataset=self.dataset,
            limit=live.limit,
            test_limit=live.test_limit,
            workers=tuple(live.workers),
            gradients=self.gradients,
            batch=live.batch,
            lr=live.lr,
            rounds=live.rounds,
            evaluate_every=live.evaluate_every,
            seed=live.seed,
            scale=scale,
            device=self.cluster.device,
            networks={system_name: link},
            accelerator="cpu",
        )

    def _recipe(self, name, experiment, system_name, policy, networks, seed, scale) -> Recipe:
        system = self.systems[system_name]
        levels = self.levels(system, experiment.workers)
        return Recipe(
            paper=self.paper,
            experiment=name,
            system=system_name,
            exchange=Part(name=system.exchange, **self.default_variant.exchange),
            levels=levels,
            synchronization=Part(name=policy),
            model=self.model,
            stands_for=self.stands_for,
            dataset=self.dataset,
            limit=self.limit,
            workers=tuple(experiment.workers),
            sampler=self.sampler,
            augment=self.augment,
            gradients=self.gradients,
            batch=self.batch,
            lr=self.optimizer.lr,
            momentum=self.optimizer.momentum,
            optimizer_at="server" if name == "mixed" else "worker",
            rounds=self.rounds,
            evaluate_every=self.evaluate_every,
            seed=seed,
            scale=scale,
            device=self.cluster.device,
            networks=networks,
            accelerator=self.accelerator,
        )

    def check(self, check: Check) -> None:
        self._check_links(check)
        from methods import compression, exchange, synchronization
        from testbed.network import geo_sites
        from testbed.training import device

        check.need("cluster.device", self.cluster.device, device.profiles())
        networks = {"model": self.model, "stands_for": self.stands_for}
        networks["table2.model"] = self.table2.model
        networks |= {f"table1.models.{n}": Part(name=n, **p) for n, p in self.table1.models.items()}
        for key, part in networks.items():
            if part is not None:
                check.model(key, part)
        sites = geo_sites([1, 1])
        for name, system in self.systems.items():
            check.need(f"systems.{name}.exchange", system.exchange, exchange.names())
            for variant, options in self.variants.items():
                key = f"variants.{variant}.exchange"
                check.make(key, exchange.load, system.exchange, **options.exchange)
            key = f"systems.{name}.levels"
            depth = len(exchange.load(system.exchange).groups(sites))
            if len(system.levels) != depth:
                given = len(system.levels)
                check.fail(key, f"{system.exchange} has {depth} levels, {given} given")
            for number, level in enumerate(self.levels(system, self.table2.workers)):
                for direction, part in (("up", level.up), ("down", level.down)):
                    if part is not None:
                        where = f"{key}.{number}.{direction}"
                        check.need(where, part.name, compression.names())
                        check.make(where, compression.load, part.name, **part.parameters)
        for experiment in ("table1", "figure4", "table2", "mixed"):
            for name, case in getattr(self, experiment).cases.items():
                key = f"{experiment}.cases.{name}"
                check.need(f"{key}.system", case.system, self.systems)
                check.need(f"{key}.synchronization", case.synchronization, synchronization.names())

    def _check_links(self, check: Check) -> None:
        from methods import exchange
        from testbed.training import models

        for table in ("table1", "table2"):
            chosen = getattr(self.emulated, table)
            for name in chosen.models or ():
                known = [network.name for network in self.networks(table)]
                check.need(f"emulated.{table}.models", name, known)
            for name in chosen.cases or ():
                check.need(f"emulated.{table}.cases", name, getattr(self, table).cases)
        for name in self.live.systems:
            check.need("live.systems", name, self.systems)
        check.need("live.model.name", self.live.model.name, models.MODELS)
        for name in self.agreement.chosen or ():
            check.need("agreement.chosen", name, self.agreement.cases)
        for name, case in self.agreement.cases.items():
            key = f"agreement.cases.{name}"
            check.need(f"{key}.exchange.name", case.exchange.name, exchange.names())
            check.need(f"{key}.network.name", case.network.name, NETWORKS)
            made = check.make(f"{key}.network", network_of, case.network)
            options = case.exchange.parameters
            system = check.make(f"{key}.exchange", exchange.load, case.exchange.name, **options)
            check.make(key, system, made)
