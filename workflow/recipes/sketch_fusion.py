"""Sketch-Fusion: what its recipe may say."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from testbed.results import Scale
from testbed.training.recipe import Level, Link, Part, Recipe
from workflow.recipes import Check, PaperRecipe, Strict, distinct, kept_momentum, slug

Sizes = Annotated[list[PositiveInt], Field(min_length=1)]
Seeds = Annotated[list[int], Field(min_length=1), AfterValidator(distinct)]


class Cluster(Strict):
    """``per_server`` and ``inner_rate`` are for hierarchical communication."""

    device: str
    workers: Sizes
    rate: PositiveFloat
    latency: NonNegativeFloat
    efficiency: Annotated[float, Field(gt=0, le=1)]
    overhead_s: NonNegativeFloat
    per_server: Sizes
    inner_rate: PositiveFloat


class Setup(Strict):
    """A model whose iterations are timed, with its samples a worker (Table 3)."""

    dataset: str
    batch: PositiveInt


class Method(Strict):
    codec: Part
    exchange: str


class Measured(Strict):
    """``tensors``: so many of ResNet-50's; ``sizes``: powers of two; ``batch``: what is timed."""

    threads: PositiveInt
    repeats: PositiveInt
    tensors: PositiveInt | None
    sizes: Sizes
    others: dict[str, Part]
    batch: dict[str, PositiveInt]


class Case(Strict):
    """A method of the recipe, with ``options`` of its codec changed."""

    method: str
    fusion: str
    options: dict[str, Any] = {}


class Training(Strict):
    """Curves of one model. Smaller models keep the times of ``stands_for`` as Table 3 trains it.

    ``lr_steps``: from so many rounds on, the learning rate is multiplied by so much.
    """

    dataset: str
    model: Part
    stands_for: str
    cases: dict[str, Case]
    workers: PositiveInt
    batch: PositiveInt
    lr: PositiveFloat
    lr_steps: dict[PositiveInt, PositiveFloat] = {}
    momentum: Annotated[float, Field(ge=0, lt=1)]
    clip_norm: PositiveFloat | None = None
    rounds: PositiveInt
    evaluate_every: PositiveInt
    augment: bool = False
    seeds: Seeds
    limit: PositiveInt | None
    test_limit: PositiveInt | None = None
    words: PositiveInt | None = None


class Target(Strict):
    below_dense: PositiveFloat


class Theory(Strict):
    """A quadratic of ``size`` coordinates with curvatures from ``flattest`` to 1.

    ``period`` is p of Theorem 1, ``levels`` the quantiser's of Theorem 2, ``groups`` its y.
    """

    size: PositiveInt
    flattest: PositiveFloat
    variance: NonNegativeFloat
    workers: PositiveInt
    batch: PositiveInt
    alpha: PositiveFloat
    period: PositiveInt
    levels: PositiveInt
    iterations: Sizes
    groups: Sizes
    seeds: Seeds


class Live(Strict):
    methods: list[str]
    processes: Sizes
    model: Part
    dataset: str
    batch: PositiveInt
    lr: PositiveFloat
    rate: PositiveFloat
    steps: Annotated[int, Field(ge=2)]
    limit: PositiveInt | None
    seed: int


TRAININGS = ("figure6", "lstm")


class SketchFusion(PaperRecipe):
    """The recipe ``papers/sketch_fusion.yaml``."""

    paper: Literal["sketch_fusion"]
    accelerator: Literal["auto", "cpu", "cuda"]
    cluster: Cluster
    models: dict[str, Setup]
    methods: dict[str, Method]
    exchanges: list[str]
    fusion: dict[str, Part]
    # A job gets only those that it needs.
    tensors: list[str] | None = None
    measured: Measured | None = None
    figure6: Training | None = None
    lstm: Training | None = None
    target: Target | None = None
    theory: Theory | None = None
    live: Live | None = None

    def only(self, *sections: str) -> dict[str, Any]:
        """The recipe as plain data with these optional sections alone."""
        optional = {n for n, field in type(self).model_fields.items() if not field.is_required()}
        return self.model_dump(mode="json", exclude=optional - set(sections))

    def codec(self, training: Training, case: Case) -> tuple[Part, float]:
        """The codec of a case, and the momentum that is left to the optimizer."""
        method = self.methods[case.method]
        part = Part(name=method.codec.name, **(method.codec.parameters | case.options))
        return kept_momentum(part, training.momentum)

    def runs(self, scale: Scale) -> dict[str, Recipe]:
        """Every training run by its id."""
        return {
            slug(f"{name}-{case}-seed{seed}"): self._run(name, case, seed, scale)
            for name in TRAININGS
            for case in getattr(self, name).cases
            for seed in getattr(self, name).seeds
        }

    def _run(self, name: str, case_name: str, seed: int, scale: Scale) -> Recipe:
        training: Training = getattr(self, name)
        case = training.cases[case_name]
        codec, momentum = self.codec(training, case)
        cluster = self.cluster
        link = Link(
            lan=cluster.rate,
            wan=cluster.rate,
            lan_latency=cluster.latency,
            wan_latency=cluster.latency,
            efficiency=cluster.efficiency,
        )
        return Recipe(
            paper=self.paper,
            experiment=name,
            system=case_name,
            exchange=Part(name=self.methods[case.method].exchange),
            levels=(Level(up=codec),),
            synchronization=Part(name="bsp"),
            fusion=self.fusion[case.fusion],
            model=training.model,
            stands_for=Part(name=training.stands_for),
            overlap=True,
            overhead_s=cluster.overhead_s,
            timed_workers=max(cluster.workers),
            timed_batch=self.models[training.stands_for].batch,
            dataset=training.dataset,
            limit=training.limit,
            test_limit=training.test_limit,
            words=training.words,
            workers=(training.workers,),
            augment=training.augment,
            batch=training.batch,
            lr=training.lr,
            lr_steps=training.lr_steps,
            momentum=momentum,
            clip_norm=training.clip_norm,
            rounds=training.rounds,
            evaluate_every=training.evaluate_every,
            seed=seed,
            scale=scale,
            device=cluster.device,
            networks={case_name: link},
            accelerator=self.accelerator,
        )

    def check(self, check: Check) -> None:
        from methods import compression, exchange, fusion
        from testbed.training import device, models

        for name, value in self:
            if value is None:
                check.fail(name, "is missing")
        check.need("cluster.device", self.cluster.device, device.profiles())
        check.need("models", "vgg16", self.models)
        for name in [*self.models, *self.tensors]:
            check.need("models" if name in self.models else "tensors", name, models.MODELS)
        codecs = {f"methods.{name}.codec": method.codec for name, method in self.methods.items()}
        codecs |= {f"measured.others.{name}": part for name, part in self.measured.others.items()}
        for key, part in codecs.items():
            check.need(f"{key}.name", part.name, compression.names())
            check.make(key, compression.load, part.name, **part.parameters)
        for name, method in self.methods.items():
            check.need(f"methods.{name}.exchange", method.exchange, exchange.names())
        for name in ("Baseline", "Top-k", "Sketch-Fusion"):
            check.need("methods", name, self.methods)
        for name in self.exchanges:
            check.need("exchanges", name, exchange.names())
        for power in (4, 20):
            if power not in self.measured.sizes:
                check.fail("measured.sizes", f"{power} is needed for the growth from 2^4 to 2^20")
        for name, part in self.fusion.items():
            check.need(f"fusion.{name}.name", part.name, fusion.names())
            check.make(f"fusion.{name}", fusion.load, part.name, **part.parameters)
        for name in ("layer_wise", "whole_model", "layer_fusion", "optimal"):
            check.need("fusion", name, self.fusion)
        for name in self.measured.batch:
            check.need("measured.batch", name, self.models)
        for experiment in TRAININGS:
            training = getattr(self, experiment)
            check.need(f"{experiment}.stands_for", training.stands_for, self.models)
            check.need(f"{experiment}.cases", "Baseline", training.cases)
            for name, case in training.cases.items():
                key = f"{experiment}.cases.{name}"
                check.need(f"{key}.method", case.method, self.methods)
                check.need(f"{key}.fusion", case.fusion, self.fusion)
                check.make(f"{key}.options", self.codec, training, case)
        for name in self.live.methods:
            check.need("live.methods", name, self.methods)
        check.need("live.model.name", self.live.model.name, models.MODELS)
