"""Whether Sketch-Fusion converges: training, and theorems on a quadratic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, computed_field

from slowlink.testbed.results import Row
from slowlink.testbed.training.recipe import Dataset, Level, Link, Model, Part, Recipe
from slowlink.workflow.documents.sketch_fusion.experiments import (
    Cluster,
    Fusions,
    Grouping,
    Method,
    ModelName,
)
from slowlink.workflow.experiment import (
    PLANNING,
    Bench,
    Section,
    Seeds,
    Sizes,
    experiment,
    training,
)
from slowlink.workflow.named import kept_momentum

if not PLANNING:
    import numpy as np
    import pandas as pd

    from slowlink.testbed.results import row_of
    from slowlink.testbed.training import quadratic
    from slowlink.testbed.training.summary import summarise


# Training -----------------------------------------------------------------------------------------

IMAGES = {"cifar10": 50_000}
"""Of them, those for training."""


class Case(Section):
    """A method of the recipe, with ``options`` of its codec changed."""

    method: str
    fusion: Grouping
    options: dict[str, Any] = {}

    def codec(self, method: Method, momentum: float) -> tuple[Part, float]:
        """The codec, and the momentum that is left to the optimizer."""
        options = method.codec.parameters | self.options
        return kept_momentum(Part(name=method.codec.name, **options), momentum)


class Curves(Section):
    """Curves of one model. Smaller models keep the times of ``stands_for`` as Table 3 trains it.

    ``lr_steps``: from so many rounds on, the learning rate is multiplied by so much.
    """

    dataset: Dataset
    model: Model
    stands_for: ModelName
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

    @computed_field
    @property
    def epochs(self) -> float | None:
        """How often each sample is trained on, as Table 3 has it; to three digits, since rounds are
        whole. None of a whole text, which has as many windows as its reader makes."""
        if (samples := self.limit or IMAGES.get(self.dataset)) is None:
            return None
        return float(f"{self.rounds * self.workers * self.batch / samples:.3g}")


def _runs(bench: Bench, cluster: Cluster, fusion: Fusions, curves: Curves) -> Iterator[Recipe]:
    same = ("test_limit", "words", "augment", "batch", "lr", "lr_steps", "clip_norm", "rounds")
    same += ("dataset", "limit", "model", "evaluate_every")
    link = Link(
        lan=cluster.rate,
        wan=cluster.rate,
        lan_latency=cluster.latency,
        wan_latency=cluster.latency,
        efficiency=cluster.efficiency,
    )
    for label, case in curves.cases.items():
        method = bench.settings.methods[case.method]
        codec, momentum = case.codec(method, curves.momentum)
        for seed in curves.seeds:
            yield Recipe(
                document=bench.document,
                experiment=bench.experiment,
                system=label,
                at=dict(method=label),
                exchange=Part(name=method.exchange),
                levels=(Level(up=codec),),
                synchronization=Part(name="bsp"),
                fusion=getattr(fusion, case.fusion),
                stands_for=Part(name=curves.stands_for),
                overlap=True,
                overhead_s=cluster.overhead_s,
                timed_workers=max(cluster.workers),
                timed_batch=bench.settings.models[curves.stands_for].batch,
                workers=(curves.workers,),
                momentum=momentum,
                seed=seed,
                scale=bench.scale,
                device=cluster.device,
                networks={label: link},
                accelerator=bench.settings.accelerator,
                **{name: getattr(curves, name) for name in same},
            )


def final(curves: pd.DataFrame, recipe: Any) -> Iterator[Row]:
    """Final accuracies, and what reaching the target costs."""
    yield from summarise(curves, recipe.below_dense)


@training(summarise=final)
def figure6(bench: Bench, cluster: Cluster, fusion: Fusions, figure6: Curves) -> Iterator[Recipe]:
    """Accuracy over time (Figure 6), and variants of the sketch."""
    yield from _runs(bench, cluster, fusion, figure6)


@training(summarise=final, recorded=True)
def figure6_recorded(
    bench: Bench, cluster: Cluster, fusion: Fusions, figure6_recorded: Curves
) -> Iterator[Recipe]:
    """The same with the document's network, data and workers, and smaller batches."""
    yield from _runs(bench, cluster, fusion, figure6_recorded)


class Judged(Section):
    """What Figure 6 is judged by."""

    training: Literal["figure6", "figure6_recorded"]


@experiment(after=[figure6, figure6_recorded], methods=())
def convergence(bench: Bench, rows: pd.DataFrame, convergence: Judged) -> Iterator[Row]:
    """Final accuracies, and what reaching the target costs, of the training that is judged."""
    told = rows[rows["experiment"].eq(convergence.training) & rows["round"].eq(-1)]
    yield from (row_of(one, experiment=bench.experiment) for one in told.to_dict("records"))


@training(summarise=final)
def lstm(bench: Bench, cluster: Cluster, fusion: Fusions, lstm: Curves) -> Iterator[Recipe]:
    """Perplexity over time and bytes, of which the document prints nothing."""
    yield from _runs(bench, cluster, fusion, lstm)


# Theorems -----------------------------------------------------------------------------------------


class Theory(Section):
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


@experiment(methods=())
def theory(bench: Bench, theory: Theory) -> Iterator[Row]:
    """Mean square gradient on a quadratic, beside what Theorems 1 and 2 allow it."""
    problem = quadratic.Quadratic(
        curvatures=np.linspace(theory.flattest, 1.0, theory.size),
        start=np.ones(theory.size),
        optimum=np.zeros(theory.size),
        variance=theory.variance,
        workers=theory.workers,
        batch=theory.batch,
    )
    methods = {(1, 1): quadratic.Sparse(theory.period)}
    methods |= {(2, y): quadratic.Quantised(theory.levels, y) for y in theory.groups}
    for (theorem, groups), method in methods.items():
        bench.say(f"Theorem {theorem}, {groups} groups")
        about = dict(theorem=theorem, groups=groups)
        same = dict(workers=theory.workers, evidence="measured")
        reached = {}
        for steps in theory.iterations:
            at = about | dict(iterations=steps)
            limit = quadratic.bound(problem, method, steps, theory.alpha)
            yield bench.row("bound", limit, "1", at=at, **same | dict(evidence="computed"))
            values = []
            for seed in theory.seeds:
                values.append(quadratic.run(problem, method, steps, theory.alpha, seed))
                here = dict(at=at, seed=seed, **same)
                yield bench.row("mean_square_gradient", values[-1], "1", **here)
            reached[steps] = float(np.mean(values))
        fit = quadratic.slope(list(reached), list(reached.values()))
        yield bench.row("slope", fit, "1", at=about, **same)
