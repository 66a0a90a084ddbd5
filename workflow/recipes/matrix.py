"""The matrix: what its recipe may say, and the methods that it finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from methods.synchronization import Policy
from testbed import lineup
from testbed.lineup import Fusions, System
from testbed.matrix import Cluster, Method, among, in_lockstep, load_codec
from testbed.results import Scale
from testbed.training.recipe import How, Level, Link, Part, Recipe, Uneven
from workflow.recipes import Check, PaperRecipe, Strict, distinct, kept_momentum


class Networks(Strict):
    efficiency: Annotated[float, Field(gt=0, le=1)]
    overhead_s: NonNegativeFloat
    latency: NonNegativeFloat
    wan_latency: NonNegativeFloat
    lan: PositiveFloat
    per_site: dict[PositiveInt, PositiveInt]


class Training(Strict):
    """Curves that say how many rounds each method needs.

    ``grid``: learning rates, tried for ``tuning_rounds`` with ``tuning_seed``; the best one trains
    with every seed for ``rounds``, where accuracies are compared; what has not reached ``target``
    (%) by then goes on, for ``most_rounds`` at most. ``window``: evaluations whose mean is the
    final accuracy, and is held against the target. ``bandwidth`` (bit/s), ``speeds``: where
    policies that look at the clock are trained, on a flat cluster.
    """

    model: Part
    dataset: str
    gradients: How
    workers: PositiveInt
    momentum: Annotated[float, Field(ge=0, lt=1)]
    grid: Annotated[list[PositiveFloat], Field(min_length=1), AfterValidator(distinct)]
    tuning_rounds: PositiveInt
    rounds: PositiveInt
    most_rounds: PositiveInt
    evaluate_every: PositiveInt
    test_limit: PositiveInt | None
    limit: PositiveInt | None
    seeds: Annotated[list[int], Field(min_length=1), AfterValidator(distinct)]
    target: PositiveFloat
    window: PositiveInt
    tuning_seed: int
    bandwidth: PositiveFloat
    speeds: str


class Matrix(PaperRecipe):
    """The recipe ``matrix.yaml``. A job gets it with ``methods``, those alone that it needs."""

    paper: Literal["matrix"]
    device: str
    accelerator: Literal["auto", "cpu", "cuda"]
    models: dict[str, PositiveInt]
    bandwidths: Annotated[list[PositiveFloat], AfterValidator(distinct)]
    workers: Annotated[list[PositiveInt], AfterValidator(distinct)]
    networks: Networks
    speeds: dict[str, Annotated[float, Field(ge=1)]]
    most_played: PositiveInt
    labels: list[str] | None = None
    fusion: Fusions
    systems: dict[str, System] = {}
    combinations: dict[str, System] = {}
    options: dict[str, dict[str, Any]] = {}
    carriers: dict[str, str] = {}
    training: Training
    halvings: NonNegativeInt
    methods: dict[str, System] | None = None

    def only(self, label: str) -> dict[str, Any]:
        """The recipe as plain data with one method."""
        found = {"systems": {}, "combinations": {}, "options": {}, "carriers": {}, "labels": None}
        return (
            self.model_dump(mode="json")
            | found
            | {"methods": {label: self.found()[label].model_dump(mode="json")}}
        )

    # Methods -------------------------------------------------------------------------------------

    def found(self) -> dict[str, System]:
        """Every method by its label: the recipe's, and all that the rooms hold."""
        if self.methods is not None:
            return self.methods
        made = lineup.found(
            self.systems, self.combinations, self.fusion, self.options, self.carriers
        )
        return {label: made[label] for label in self.labels or made}

    def needed(self) -> dict[str, set[str]]:
        """By method, of ``labels`` or not: its own name, and those of the files that it needs."""
        every = self.model_copy(update={"labels": None}).found()
        made = {}
        for label, system in every.items():
            codecs = [codec for level in system.levels for codec in (level.up, level.down)]
            parts = [system.exchange, system.synchronization, system.fusion, *codecs]
            made[label] = {label} | {part.name for part in parts if part}
        return made

    def method(self, label: str) -> Method:
        return self.found()[label].method(label)

    def clusters(self) -> Iterator[tuple[str, Cluster]]:
        """Every network with every size, bandwidth and speeds, and its name: ``sites/uneven``."""
        networks = self.networks
        for kind in ("flat", "sites"):
            for speeds, highest in self.speeds.items():
                for workers in self.workers:
                    for bandwidth in self.bandwidths:
                        yield (
                            f"{kind}/{speeds}",
                            Cluster(
                                kind,
                                workers,
                                bandwidth,
                                per_site=networks.per_site[workers],
                                lan=networks.lan,
                                latency=networks.latency,
                                wan_latency=networks.wan_latency,
                                uneven=highest,
                                efficiency=networks.efficiency,
                                overhead_s=networks.overhead_s,
                            ),
                        )

    # Training ------------------------------------------------------------------------------------

    def trained_as(self) -> dict[str, str]:
        """By method, the label under which it is trained."""
        return lineup.trained_as(self.found())

    def trained_at(self) -> dict[str, str]:
        """By method, the network where alone the rounds of its training hold; empty of those in
        lockstep, which hold on all."""
        return {
            label: ""
            if in_lockstep(system.synchronization)
            else f"{'sites' if len(system.levels) > 1 else 'flat'}/{self.training.speeds}"
            for label, system in self.found().items()
        }

    def _policy(self, system: System) -> Policy:
        from methods import synchronization

        part = system.synchronization
        return synchronization.load(part.name, **part.parameters)

    def run(
        self, label: str, lr: float, seed: int, rounds: int, scale: Scale, experiment: str
    ) -> Recipe:
        """One training run of a method."""
        from methods import fusion
        from testbed.training import device, pipeline

        training, system, links = self.training, self.found()[label], self.networks
        policy = self._policy(system)
        lockstep = in_lockstep(system.synchronization)
        several = len(system.levels) > 1
        workers = (training.workers // 2,) * 2 if several else (training.workers,)
        batch = max(1, self.models[training.model.name] // training.workers)
        levels = [level.model_dump() for level in system.levels]
        codec, momentum = system.levels[-1].up, training.momentum
        if policy.travels == "gradient" and "momentum" not in codec.parameters:
            codec, momentum = kept_momentum(codec, training.momentum)
        levels[-1]["up"] = among(codec, 2 if several else training.workers)
        grouping = system.fusion if lockstep and system.coded else Part(name="layer_wise")
        overlap = fusion.load(grouping.name, **grouping.parameters).needs_costs
        link = Link(
            lan=links.lan if several else training.bandwidth,
            wan=training.bandwidth,
            lan_latency=links.latency,
            wan_latency=links.wan_latency if several else links.latency,
            efficiency=links.efficiency,
        )
        options: dict[str, Any] = {}
        if overlap:
            options = dict(overlap=True, overhead_s=links.overhead_s)
        if not lockstep:
            machine, tensors = device.profile(self.device), pipeline.layers(training.model)
            options = dict(
                uneven=Uneven(highest=self.speeds[training.speeds]),
                compute_s=pipeline.single_gpu_s(machine, tensors, batch),
            )
        if policy.asynchronous and policy.travels == "gradient":
            options["optimizer_at"] = "server"
        return Recipe(
            paper=self.paper,
            experiment=experiment,
            system=label,
            exchange=system.exchange,
            levels=tuple(Level(**level) for level in levels),
            synchronization=system.synchronization,
            fusion=grouping,
            model=training.model,
            dataset=training.dataset,
            gradients=training.gradients,
            limit=training.limit,
            test_limit=training.test_limit,
            workers=workers,
            cluster="sites" if several else "star",
            batch=batch,
            lr=lr,
            momentum=momentum,
            rounds=rounds,
            evaluate_every=training.evaluate_every,
            seed=seed,
            scale=scale,
            device=self.device,
            networks={label: link},
            accelerator=self.accelerator,
            **options,
        )

    def check(self, check: Check) -> None:
        from methods import compression, exchange, fusion, synchronization
        from testbed.training import device, models

        check.need("device", self.device, device.profiles())
        for name in [*self.models, self.training.model.name]:
            check.need("models", name, models.MODELS)
        check.need("training.model.name", self.training.model.name, self.models)
        if self.training.most_rounds < self.training.rounds:
            check.fail("training.most_rounds", f"must be at least rounds, {self.training.rounds}")
        check.need("training.workers", self.training.workers, self.workers)
        check.need("training.bandwidth", self.training.bandwidth, self.bandwidths)
        check.need("training.speeds", self.training.speeds, self.speeds)
        for kind, part in self.fusion:
            check.need(f"fusion.{kind}.name", part.name, fusion.names())
            check.make(f"fusion.{kind}", fusion.load, part.name, **part.parameters)
        for workers in self.workers:
            check.need("networks.per_site", workers, self.networks.per_site)
        rooms = dict(exchange=exchange, synchronization=synchronization, fusion=fusion)
        for section in ("systems", "combinations"):
            for label, system in getattr(self, section).items():
                key = f"{section}.{label}"
                for room, module in rooms.items():
                    if part := getattr(system, room):
                        check.need(f"{key}.{room}.name", part.name, module.names())
                        check.make(f"{key}.{room}", module.load, part.name, **part.parameters)
                for level in system.levels:
                    for part in filter(None, (level.up, level.down)):
                        check.need(f"{key}.levels", part.name, compression.names())
                        check.make(f"{key}.levels", load_codec, part)
        names = {name for module in (compression, *rooms.values()) for name in module.names()}
        for section in ("options", "carriers"):
            for name in getattr(self, section):
                check.need(section, name, names)
        for name, carrier in self.carriers.items():
            check.need(f"carriers.{name}", carrier, exchange.names())
        labels = [label for label, _ in lineup.in_rooms(self.options, self.carriers)] + [
            *self.systems,
            *self.combinations,
        ]
        if len(set(labels)) < len(labels):
            twice = sorted({label for label in labels if labels.count(label) > 1})
            check.fail("systems", f"two methods are called {', '.join(twice)}")
