"""LPSP: what its recipe may say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from testbed.results import Scale
from testbed.training.recipe import How, Level, Link, Part, Recipe, Uneven
from workflow.recipes import Check, PaperRecipe, Strict, distinct, slug

Sizes = Annotated[list[PositiveInt], Field(min_length=1), AfterValidator(distinct)]
Seeds = Annotated[list[int], Field(min_length=1), AfterValidator(distinct)]
Average = Literal["members", "all"]
Share = Annotated[float, Field(ge=0, lt=1)]

LPSP = "LPSP"
"""The document's own method."""
FIGURES = {"p_min": "figure6", "s": "figure7"}
"""Ablations that are trained."""


class Stragglers(Strict):
    highest: Annotated[float, Field(ge=1)]
    jitter: Share
    period: PositiveFloat


class Network(Strict):
    rate: PositiveFloat
    latency: NonNegativeFloat
    efficiency: Annotated[float, Field(gt=0, le=1)]


class Example(Strict):
    times: list[PositiveFloat]
    local_iterations: PositiveInt
    communication: NonNegativeFloat
    drawn: list[dict[int, PositiveInt]]
    seconds: PositiveFloat


class Waiting(Strict):
    """``iterations`` of each worker in the mean; ``shown``, ``shown_iterations``: Gantt charts.

    ``trace``: recorded runs (``testbed.live.replay``), below the repository's root.
    """

    trace: str

    workers: Sizes
    draws: Annotated[int, Field(ge=3)]
    iterations: PositiveInt
    constant: PositiveFloat
    slow_rate: PositiveFloat
    shown: PositiveInt
    shown_iterations: PositiveInt
    bound_draws: PositiveInt


class Batching(Strict):
    workers: Sizes
    batches: Sizes
    repeats: PositiveInt


class Training(Strict):
    """``images`` to train on; ``evaluate_every`` in epochs of all workers together.

    ``ablated_workers``: the cluster on which the ablations of FIGURES are trained, too.
    """

    dataset: str
    model: Part
    workers: Sizes
    cases: list[str]
    gradients: How
    ablated_workers: PositiveInt | None = None
    base_s: PositiveFloat
    seconds: PositiveFloat
    target: PositiveFloat
    window: PositiveInt
    batch: PositiveInt
    lr: PositiveFloat
    momentum: Share
    evaluate_every: PositiveFloat
    seeds: Seeds
    images: PositiveInt
    test_limit: PositiveInt | None

    def rounds_between(self, workers: int) -> int:
        """Rounds from one evaluation to the next."""
        return max(1, round(self.evaluate_every * self.images / (self.batch * workers)))


class Control(Strict):
    """``lr`` is that of MNIST if null."""

    averaged_over: Average
    lr: PositiveFloat | None = None
    cases: list[str]


class Controls(Strict):
    """MNIST on a cluster of so many workers, once more with other choices, by experiment."""

    workers: PositiveInt
    experiments: dict[str, Control]


class Ray(Strict):
    methods: list[str]
    address: str | None
    group_size: PositiveInt
    model: Part
    dataset: str
    slow: Annotated[list[Annotated[float, Field(ge=1)]], Field(min_length=2)]
    iterations: PositiveInt
    batch: PositiveInt
    lr: PositiveFloat
    momentum: Share
    limit: PositiveInt | None
    seed: int


class LpspRecipe(PaperRecipe):
    """The recipe ``papers/lpsp.yaml``."""

    paper: Literal["lpsp"]
    accelerator: Literal["auto", "cpu", "cuda"]
    averaged_over: Average
    methods: dict[str, Part]
    ablations: dict[str, dict[str, dict[str, Any]]]
    stragglers: Stragglers
    network: Network
    # A job gets only those that it needs.
    example: Example | None = None
    waiting: Waiting | None = None
    batching: Batching | None = None
    mnist: Training | None = None
    cifar10: Training | None = None
    controls: Controls | None = None
    ray: Ray | None = None

    def only(self, *sections: str) -> dict[str, Any]:
        """The recipe as plain data with these optional sections alone."""
        optional = {n for n, field in type(self).model_fields.items() if not field.is_required()}
        return self.model_dump(mode="json", exclude=optional - set(sections))

    def ablated(self, *groups: str) -> dict[str, Part]:
        """LPSP with its options changed, by label."""
        base = self.methods[LPSP]
        return {
            label: Part(name=base.name, **(base.parameters | changed))
            for group in groups
            for label, changed in self.ablations[group].items()
        }

    def runs(self, scale: Scale) -> dict[str, Recipe]:
        """Every training run by its id."""
        every = self._every_run(scale)
        return {slug(f"{run.experiment}-{run.system}-seed{run.seed}"): run for run in every}

    def summaries(self) -> dict[str, dict[str, float]]:
        """By experiment, what its curves are held against."""
        held = {name: getattr(self, name) for name in ("mnist", "cifar10")}
        held |= dict.fromkeys(self.controls.experiments, self.mnist)
        return {name: dict(target=one.target, window=one.window) for name, one in held.items()}

    def _every_run(self, scale: Scale) -> Iterator[Recipe]:
        every = [(self.mnist, self._cases(self.mnist), n) for n in self.mnist.workers]
        every += [(self.cifar10, self._cases(self.cifar10), n) for n in self.cifar10.workers]
        every.append((self.cifar10, self.ablated(*FIGURES), self.cifar10.ablated_workers))
        for training, cases, workers in every:
            experiment = training.dataset
            yield from self._runs(experiment, training, cases, workers, self.averaged_over, scale)
        for experiment, control in self.controls.experiments.items():
            training = self.mnist.model_copy(update={"lr": control.lr or self.mnist.lr})
            rest = self._cases(control), self.controls.workers, control.averaged_over, scale
            yield from self._runs(experiment, training, *rest)

    def _cases(self, of: Training | Control) -> dict[str, Part]:
        return {label: self.methods[label] for label in of.cases}

    def _runs(
        self,
        experiment: str,
        training: Training,
        cases: dict[str, Part],
        workers: int,
        average: Average,
        scale: Scale,
    ) -> Iterator[Recipe]:
        network = self.network
        link = Link(
            lan=network.rate,
            wan=network.rate,
            lan_latency=network.latency,
            efficiency=network.efficiency,
        )
        for (label, method), seed in itertools.product(cases.items(), training.seeds):
            case = f"{label} on {workers}"
            yield Recipe(
                paper=self.paper,
                experiment=experiment,
                system=case,
                exchange=Part(name="parameter_server"),
                levels=(Level(up=Part(name="identity")),),
                synchronization=method,
                fusion=Part(name="whole_model"),
                model=training.model,
                dataset=training.dataset,
                limit=training.images,
                test_limit=training.test_limit,
                workers=(workers,),
                cluster="star",
                uneven=Uneven(highest=self.stragglers.highest),
                averaged_over=average,
                gradients=training.gradients,
                batch=training.batch,
                lr=training.lr,
                momentum=training.momentum,
                seconds=training.seconds,
                evaluate_every=training.rounds_between(workers),
                seed=seed,
                scale=scale,
                device="this_cpu",
                compute_s=training.base_s,
                networks={case: link},
                accelerator=self.accelerator,
            )

    def check(self, check: Check) -> None:
        from methods import synchronization

        for name, value in self:
            if value is None:
                check.fail(name, "is missing")
        for label in ("BSP", LPSP):
            check.need("methods", label, self.methods)
        if self.cifar10.ablated_workers not in self.cifar10.workers:
            check.fail("cifar10.ablated_workers", "must be one of cifar10.workers")
        if not {self.cifar10.ablated_workers, self.waiting.shown} <= {*self.waiting.workers}:
            check.fail("waiting.workers", "needs waiting.shown and cifar10.ablated_workers")
        for group in FIGURES:
            check.need("ablations", group, self.ablations)
        parts = {f"methods.{label}": part for label, part in self.methods.items()}
        parts |= {f"ablations: {k}": part for k, part in self.ablated(*self.ablations).items()}
        for key, part in parts.items():
            check.need(f"{key}.name", part.name, synchronization.names())
            check.make(key, synchronization.load, part.name, **part.parameters)
        named = {"mnist.cases": self.mnist.cases, "cifar10.cases": self.cifar10.cases}
        named["ray.methods"] = self.ray.methods
        for name, control in self.controls.experiments.items():
            named[f"controls.experiments.{name}.cases"] = control.cases
        for key, labels in named.items():
            for label in labels:
                check.need(key, label, self.methods)
        for name in ("mnist", "cifar10", "ray"):
            check.model(f"{name}.model", getattr(self, name).model)
        for number, meeting in enumerate(self.example.drawn):
            for worker in meeting:
                if worker >= len(self.example.times):
                    check.fail(f"example.drawn.{number}", f"there is no worker {worker}")
