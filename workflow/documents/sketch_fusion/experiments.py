"""What Sketch-Fusion's iterations cost: simulated, timed on this machine, and in real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from slowlink.testbed.results import Row
from slowlink.testbed.training.recipe import (
    Codec,
    Dataset,
    Device,
    Fusion,
    Level,
    Link,
    Model,
    Of,
    Part,
    Recipe,
)
from slowlink.workflow import experiment as declarations
from slowlink.workflow.experiment import PLANNING, Section, Sizes, experiment
from slowlink.workflow.named import Named, known

if TYPE_CHECKING:
    from slowlink.workflow.settings import Check

if not PLANNING:
    import math
    import time
    from functools import partial

    import numpy as np
    import pandas as pd
    import torch

    from slowlink.methods import compression as codecs
    from slowlink.methods import exchange as exchanges
    from slowlink.methods import fusion as fusions
    from slowlink.testbed import measuring
    from slowlink.testbed.live import data_parallel
    from slowlink.testbed.live.one_process import difference, simulated
    from slowlink.testbed.network import star
    from slowlink.testbed.prices import System
    from slowlink.testbed.results import coordinates
    from slowlink.testbed.training import device, models, pipeline
    from slowlink.testbed.training.datasets import load_dataset

LAYER_WISE, LAYER_FUSION = "layer_wise", "layer_fusion"
HERE = "this_cpu"
SMALL, LARGE = 4, 20
"""Powers of two between whose sizes of a tensor the document says how much longer coding takes."""

FLAT, SHARED = "flat", "b of all GPUs"
"""The way of modelling whose numbers are ours, and Table 3's batch read as that of all GPUs."""

Grouping = Literal[
    "layer_wise", "whole_model", "mg_wfbp", "layer_fusion_printed", "layer_fusion", "optimal"
]
ModelName = Annotated[str, Of("model")]


class Setup(Section):
    """A model whose iterations are timed, with its samples a worker (Table 3)."""

    dataset: str
    batch: PositiveInt


class Method(Section):
    codec: Codec
    exchange: Annotated[str, Of("exchange")]


class Settings(declarations.Settings):
    """What all experiments share: models to time, and compressors.

    ``printed``: models that Table 4 and Figures 3 to 5 are about. ``below_dense``: points that the
    target accuracy lies under the uncompressed one.
    """

    accelerator: Literal["auto", "cpu", "cuda"]
    models: dict[str, Setup]
    printed: list[ModelName]
    methods: dict[str, Method]
    below_dense: PositiveFloat

    def check(self, check: Check) -> None:
        for name in self.models:
            check.need("models", name, known("model"))
        for label in ("Baseline", "Top-k", "SignSGD", "PowerSGD", "Sketch-Fusion"):
            check.need("methods", label, self.methods)
        for name in ("timeline", "live"):
            for label in getattr(self, name).methods:
                check.need(f"{name}.methods", label, self.methods)
        check.need("timeline.model", self.timeline.model, self.models)
        for label in self.sketch_cost.rivals:
            check.need("sketch_cost.rivals", label, self.methods)
        for name in self.printed:
            check.need("printed", name, self.models)
        for name in self.scaling_here.batch:
            check.need("scaling_here.batch", name, self.models)
        for name in ("figure6", "lstm"):
            curves = getattr(self, name)
            check.need(f"{name}.stands_for", curves.stands_for, self.models)
            for label, case in curves.cases.items():
                key = f"{name}.cases.{label}"
                check.need(f"{key}.method", case.method, self.methods)
                codec, _ = case.codec(self.methods[case.method], curves.momentum)
                check.named(Named(f"{key}.options", "compression", codec.name, codec.parameters))


Bench = declarations.Bench[Settings]


# What experiments share ---------------------------------------------------------------------------


class Cluster(Section):
    """``per_server`` and ``inner_rate`` are for hierarchical communication."""

    device: Device
    workers: Sizes
    rate: PositiveFloat
    latency: NonNegativeFloat
    efficiency: Annotated[float, Field(gt=0, le=1)]
    overhead_s: NonNegativeFloat
    per_server: Sizes
    inner_rate: PositiveFloat


class Fusions(Section):
    """Every way of grouping a model's tensors."""

    layer_wise: Fusion
    whole_model: Fusion
    mg_wfbp: Fusion
    layer_fusion_printed: Fusion
    layer_fusion: Fusion
    optimal: Fusion

    def load(self, name: Grouping) -> fusions.Fusion:
        part = getattr(self, name)
        return fusions.load(part.name, **part.parameters)


@dataclass(frozen=True)
class Way:
    """How communication and computing are modelled, and what of the document is read how.

    Attributes
    ----------
    per_server: workers a server; 1 where all communicate alike.
    shared: whether Table 3's batch is that of all GPUs, not of each.
    baseline: what groups the tensors of the baseline.
    search: what groups those that LayerFusion groups.
    reading: whether it reads the document otherwise.
    """

    variant: str
    device_name: str
    device: device.Device
    per_server: int = 1
    shared: bool = False
    baseline: Grouping = LAYER_WISE
    search: Grouping = LAYER_FUSION
    reading: bool = False

    def batch(self, setup: Setup, workers: int) -> float:
        """Samples of a worker's iteration."""
        return setup.batch / workers if self.shared else setup.batch


def _row(
    bench: Bench, metric: str, value: float, unit: str, method: str = "", **fields: Any
) -> Row:
    """A row of a method by its label in the document."""
    at = ({"method": method} if method else {}) | fields.pop("at", {})
    chosen = bench.settings.methods.get(method)
    mine = dict(
        case=" ".join(map(str, at.values())),
        compression=chosen.codec.name if chosen else "",
        evidence="simulated",
    )
    return bench.row(metric, value, unit, at=at, **mine | fields)


def _flat(cluster: Cluster) -> Way:
    return Way(FLAT, cluster.device, device.profile(cluster.device))


def _readings(bench: Bench, flat: Way) -> list[Way]:
    """What the document leaves open, each taken otherwise: whose batch b is, whether the baseline's
    tensors are fused (as well as our search can), how LayerFusion searches, and what a sketch
    costs, from SignSGD's in Table 1 to Top-k's."""
    fused, flat = dict(baseline=LAYER_FUSION), replace(flat, reading=True)
    ways = [
        replace(flat, variant="fused baseline", **fused),
        replace(flat, variant=SHARED, shared=True),
        replace(flat, variant=f"fused baseline and {SHARED}", shared=True, **fused),
        replace(flat, variant="LayerFusion to the letter", search="layer_fusion_printed"),
    ]
    for label in ("SignSGD", "Top-k"):
        known = flat.device.known[bench.settings.methods[label].codec.name]
        priced = _with_sketch(bench, flat, known)
        ways.append(replace(flat, variant=f"a sketch costs what {label} does", device=priced))
    return ways


def _with_sketch(bench: Bench, way: Way, cost: device.Cost) -> device.Device:
    """The device of a way, if a sketch cost so much on it."""
    sketch = bench.settings.methods["Sketch-Fusion"].codec
    coding = device.Coding(rate=cost.rate, fixed_s=cost.fixed_s, parameters=sketch.parameters)
    told = way.device.model_dump()
    return device.Device(**told | {"known": told["known"] | {sketch.name: coding.model_dump()}})


def _codec(part: Part) -> codecs.Compressor:
    return codecs.load(part.name, **part.parameters)


def _costs(
    bench: Bench,
    cluster: Cluster,
    way: Way,
    layers: pipeline.Layers,
    method: Method,
    workers: int,
) -> fusions.Costs | None:
    """What a message costs; None where so many workers do not fill their servers."""
    inside = min(way.per_server, workers)
    if workers % inside:
        return None
    system = System(
        exchanges.load(method.exchange),
        [_codec(method.codec)],
        star(workers // inside, cluster.rate, latency=cluster.latency),
        efficiency=cluster.efficiency,
        overhead_s=cluster.overhead_s,
        inner=star(inside, cluster.inner_rate, latency=cluster.latency) if inside > 1 else None,
    )
    return system.costs(way.device, layers, _alone(bench, way, layers, workers))


def _alone(bench: Bench, way: Way, layers: pipeline.Layers, workers: int) -> float:
    """Seconds in which one of so many workers computes an iteration."""
    batch = way.batch(bench.settings.models[layers.model], workers)
    return pipeline.single_gpu_s(way.device, layers, batch)


# Throughput ---------------------------------------------------------------------------------------


class Tensors(Section):
    models: list[ModelName]


@experiment(methods=(), minutes=5)
def tensors(bench: Bench, tensors: Tensors) -> Iterator[Row]:
    """How many tensors, and values, a model has to synchronise (Figure 1c)."""
    for name in tensors.models:
        shapes = models.gradient_shapes(models.make(name))
        same = dict(case=name, model=name, evidence="computed")
        yield bench.row("tensors", len(shapes), "1", **same)
        yield bench.row("parameters", models.count(shapes), "values", **same)


@experiment(makes=("baseline",), memory_mb=3000)
def scaling(bench: Bench, cluster: Cluster, fusion: Fusions) -> Iterator[Row]:
    """Scaling factor and throughput by workers (Figures 1a, 3 to 5, Table 4): on the document's
    V100 as the document can be read, in every way of communicating, and with one flop rate for all
    models."""
    flat = _flat(cluster)
    ways = [flat, *_readings(bench, flat)]
    ways += [Way(f"{n} a server", flat.device_name, flat.device, n) for n in cluster.per_server]
    ways += [Way("flat, one flop rate", "v100_flops", device.profile("v100_flops"))]
    layers = {name: pipeline.layers(Part(name=name)) for name in bench.settings.models}
    for way in ways:
        for name, model in layers.items():
            if not way.reading or name in bench.settings.printed:
                yield from _scaling(bench, cluster, fusion, way, model)


def _scaling(
    bench: Bench, cluster: Cluster, fusion: Fusions, way: Way, layers: pipeline.Layers
) -> Iterator[Row]:
    bench.say(f"scaling: {layers.model}, {way.variant}")
    most = max(cluster.workers)
    groupings = {LAYER_WISE: fusion.load(LAYER_WISE), LAYER_FUSION: fusion.load(way.search)}
    for label, method in bench.settings.methods.items():
        for workers in cluster.workers:
            costs = _costs(bench, cluster, way, layers, method, workers)
            if costs is None:
                continue
            same = dict(
                method=label,
                at=dict(per_server=way.per_server),
                variant=way.variant,
                exchange=method.exchange,
                model=layers.model,
                workers=workers,
                bandwidth=cluster.rate,
                device=way.device_name,
            )
            for name, grouping in groupings.items() if workers > 1 else ():
                told = same | dict(experiment="scaling", fusion=name)
                yield from _iteration(bench, way, layers, grouping, costs, most, told)
            if label == "Baseline":
                told = same | dict(experiment="baseline", fusion=way.baseline)
                grouping = fusion.load(way.baseline)
                yield from _iteration(bench, way, layers, grouping, costs, most, told)


def _iteration(
    bench: Bench,
    way: Way,
    layers: pipeline.Layers,
    grouping: fusions.Fusion,
    costs: fusions.Costs,
    most: int,
    told: dict[str, Any],
) -> Iterator[Row]:
    """How well it scales, and on the most GPUs, Table 4's, where its time goes."""
    workers = told["workers"]
    spans = pipeline.overlapped(layers, grouping, costs)
    coding = float(np.diff(spans.encode).sum() + np.diff(spans.decode).sum())
    samples = workers * way.batch(bench.settings.models[layers.model], workers)
    row = partial(_row, bench, **told)
    alone = _alone(bench, way, layers, workers)
    yield row("scaling_factor", alone / spans.iteration_s, "1")
    if workers in (1, most):
        yield row("throughput", samples / spans.iteration_s, "1/s")
    if workers == most:
        yield row("iteration_time", spans.iteration_s, "s")
        yield row("exposed_communication", spans.exposed_communication_s, "s")
        yield row("compression_time", coding, "s")


class SketchCost(Section):
    """``rivals``: methods of Table 4. ``steps``: costs between SignSGD's and Top-k's, both in."""

    rivals: list[str]
    steps: Annotated[int, Field(ge=2)]


@experiment(memory_mb=3000)
def sketch_cost(
    bench: Bench, cluster: Cluster, fusion: Fusions, sketch_cost: SketchCost
) -> Iterator[Row]:
    """By how much Sketch-Fusion leads Table 4's others, by what a sketch costs; and the cost, in
    SignSGD's of Table 1, at which it no longer does."""
    methods, workers = bench.settings.methods, max(cluster.workers)
    flat = _flat(cluster)
    low, high = (flat.device.known[methods[label].codec.name] for label in ("SignSGD", "Top-k"))
    search = fusion.load(LAYER_FUSION)
    for way in (flat, replace(flat, variant=SHARED, shared=True)):
        for name in bench.settings.printed:
            bench.say(f"cost of a sketch: {name}, {way.variant}")
            layers = pipeline.layers(Part(name=name))

            def seconds(label: str, way: Way, layers: pipeline.Layers = layers) -> float:
                costs = _costs(bench, cluster, way, layers, methods[label], workers)
                return pipeline.overlapped(layers, search, costs).iteration_s

            best = min(seconds(label, way) for label in sketch_cost.rivals)

            def lead(times: float, way: Way = way, best: float = best, seconds=seconds) -> float:
                cost = device.Cost(rate=low.rate / times, fixed_s=times * low.fixed_s)
                priced = replace(way, device=_with_sketch(bench, way, cost))
                return best / seconds("Sketch-Fusion", priced)

            same = dict(method="Sketch-Fusion", model=name, variant=way.variant)
            same |= dict(workers=workers, device=way.device_name, fusion=LAYER_FUSION)
            most = high.fixed_s / low.fixed_s
            for times in np.geomspace(1.0, most, sketch_cost.steps):
                at = dict(sketch_cost=round(float(times), 6))
                yield _row(bench, "lead", lead(times), "1", at=at, **same)
            if lead(1.0) > 1 > lead(most):
                crossing = _crossing(lead, 1.0, most)
                yield _row(bench, "crossover", crossing, "1", **same)
            # Priced by what it does to memory, as the profile has it.
            by_work, signs = (_cost(way, methods[it], name) for it in ("Sketch-Fusion", "SignSGD"))
            at, value = dict(sketch_cost=by_work / signs), best / seconds("Sketch-Fusion", way)
            yield _row(bench, "lead_by_work", value, "1", at=at, **same)
            yield _row(bench, "cost_by_work", by_work / signs, "1", **same)


def _cost(way: Way, method: Method, model: str) -> float:
    """Seconds to encode and decode a model's tensors, one by one."""
    codec, sizes = _codec(method.codec), pipeline.layers(Part(name=model)).sizes
    return sum(way.device.encode_s(codec, 4 * n) + way.device.decode_s(codec, 4 * n) for n in sizes)


def _crossing(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that falls from above 1 to below it is 1, by bisection, to four digits."""
    while high / low > 1 + 1e-4:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if falling(middle) > 1 else (low, middle)
    return low


class Timeline(Section):
    model: str
    methods: list[str]
    fusions: list[Grouping]


@experiment(minutes=5)
def timeline(bench: Bench, cluster: Cluster, fusion: Fusions, timeline: Timeline) -> Iterator[Row]:
    """What one iteration does when, for some groupings (Figure 2)."""
    layers, way = pipeline.layers(Part(name=timeline.model)), _flat(cluster)
    for label in timeline.methods:
        method = bench.settings.methods[label]
        costs = _costs(bench, cluster, way, layers, method, max(cluster.workers))
        for name in timeline.fusions:
            spans = pipeline.overlapped(layers, fusion.load(name), costs)
            streams = dict(encode=spans.encode, network=spans.communicate, decode=spans.decode)
            # Computing is what the compute stream does between encodings.
            ends = spans.encode[:, 0]
            begins = np.concatenate([[0.0], spans.encode[:-1, 1]])
            streams["compute"] = np.stack([begins, ends], axis=1)
            same = dict(method=label, model=layers.model, fusion=name, device=way.device_name)
            for stream, times in streams.items():
                for number, span in enumerate(times):
                    at = dict(stream=stream, number=number)
                    for metric, value in zip(("begin", "end"), span, strict=True):
                        yield _row(bench, metric, value, "s", at=at, **same)


# Searching for groups -----------------------------------------------------------------------------


class Searches(Section):
    exchanges: list[Annotated[str, Of("exchange")]]


@experiment(alone=True, memory_mb=6000)
def fusion(bench: Bench, cluster: Cluster, fusion: Fusions, searches: Searches) -> Iterator[Row]:
    """Every fusion's iteration time over the best possible one, and what finding it took."""
    way, workers = _flat(cluster), max(cluster.workers)
    for model in bench.settings.models:
        layers = pipeline.layers(Part(name=model))
        for label, method in bench.settings.methods.items():
            combine = _codec(method.codec).combine
            for name in searches.exchanges:
                if combine not in exchanges.load(name).combines:
                    continue
                bench.say(f"fusion: {model}, {label} over {name}")
                carried = method.model_copy(update={"exchange": name})
                costs = _costs(bench, cluster, way, layers, carried, workers)
                found = {}
                for kind in Fusions.model_fields:
                    search = fusion.load(kind)
                    start = time.perf_counter()
                    groups = search(layers.sizes, costs)
                    took = time.perf_counter() - start
                    spans = fusions.timeline(layers.sizes, groups, costs)
                    found[kind] = spans.iteration_s, len(groups), took
                best = found["optimal"][0]
                for kind, (seconds, groups, took) in found.items():
                    same = dict(
                        method=label,
                        exchange=name,
                        fusion=kind,
                        model=model,
                        workers=workers,
                        device=way.device_name,
                    )
                    yield _row(bench, "iteration_time", seconds, "s", **same)
                    yield _row(bench, "gap", round(100 * (seconds / best - 1), 6), "%", **same)
                    yield _row(bench, "groups", groups, "1", **same)
                    yield _row(bench, "search_time", took, "s", evidence="measured", **same)


# This machine -------------------------------------------------------------------------------------


class Measured(Section):
    """How compression is timed, and the codecs besides the methods'."""

    threads: PositiveInt
    repeats: PositiveInt
    others: dict[str, Codec]


def _codecs(bench: Bench, measured: Measured) -> dict[str, Part]:
    """Codecs to be timed, by label; sets torch's number of threads."""
    torch.set_num_threads(measured.threads)
    return {label: one.codec for label, one in bench.settings.methods.items()} | measured.others


class Compression(Section):
    """``tensors``: so many of the model's, all if None."""

    model: ModelName
    tensors: PositiveInt | None


@experiment(makes=("speed",), alone=True, memory_mb=6000)
def compression(bench: Bench, measured: Measured, compression: Compression) -> Iterator[Row]:
    """Coding of a model's tensors one by one and as one (Table 1), and its speed beside others'."""
    timed, model, repeats = _codecs(bench, measured), compression.model, measured.repeats
    shapes = models.gradient_shapes(models.make(model)).values()
    random = torch.Generator().manual_seed(0)
    given = [torch.randn(one, generator=random) for one in [*shapes][: compression.tensors]]
    whole = torch.cat([tensor.flatten() for tensor in given])
    gigabytes = 4 * whole.numel() / 1e9
    here = dict(device=HERE, evidence="measured")

    def speed(label: str, metric: str, seconds: float) -> Row:
        told = here | dict(experiment="speed")
        return _row(bench, f"{metric}_speed", gigabytes / seconds, "GB/s", label, **told)

    for label, part in timed.items():
        bench.say(f"coding {model}'s gradient: {label}")
        for variant, some in (("layer-wise", given), ("whole model", [whole])):
            times = measuring.coding(partial(_codec, part), some, repeats)
            told = here | dict(variant=variant, model=model, compression=part.name)
            yield _row(bench, "compression_time", times.total_s, "s", label, **told)
            yield _row(bench, "encode_time", times.encode_s, "s", label, **told)
            yield _row(bench, "decode_time", times.decode_s, "s", label, **told)
        if part.name == "count_sketch":
            yield speed(label, "encode", times.first_s)
            yield speed(label, "query", times.further_s)
        else:
            yield speed(label, "encode", times.encode_s)
        yield speed(label, "decode", times.decode_s)
    bench.say(f"coding {model}'s gradient: what to hold it against")
    yield speed("copy", "copy", measuring.copy_s(whole, repeats))
    kept = math.ceil(timed["Top-k"].parameters["ratio"] * whole.numel())
    yield speed("torch.topk", "encode", measuring.torch_topk_s(whole, kept, repeats))
    power_sgd = timed["PowerSGD"]
    ours = measuring.coding(partial(_codec, power_sgd), given, repeats)
    yield speed("PowerSGD", "total", ours.total_s)
    rank = power_sgd.parameters["rank"]
    seconds = measuring.torch_power_sgd_s(given, rank, repeats)
    yield speed("torch PowerSGD hook", "total", seconds)


class Errors(Section):
    """``side``: of the square matrix that is coded. ``others``: codecs besides the methods'."""

    side: PositiveInt
    others: dict[str, Codec]


@experiment(memory_mb=1000)
def errors(bench: Bench, errors: Errors) -> Iterator[Row]:
    """What one coding of normal values loses, as a share of their squares, and the bytes it takes.
    What a codec keeps for later counts as lost."""
    methods = {label: one.codec for label, one in bench.settings.methods.items()}
    shape = (errors.side, errors.side)
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for label, part in (methods | errors.others).items():
        codec = _codec(part)
        (decoded, *_), _, _ = codecs.aggregate([codec], [values], "values")
        lost = float((decoded - values).square().sum() / values.square().sum())
        told = dict(compression=part.name, evidence="measured")
        yield _row(bench, "relative_error", lost, "1", label, **told)
        nbytes = sum(codec.payload_bytes(shape)) / values.numel()
        yield _row(bench, "bytes_a_value", nbytes, "B", label, **told | {"evidence": "computed"})


def _with_growth(powers: list[int]) -> list[int]:
    if missing := {SMALL, LARGE} - set(powers):
        raise ValueError(f"{min(missing)} is needed for the growth from 2^{SMALL} to 2^{LARGE}")
    return powers


class TensorSizes(Section):
    """``powers``: of two, sizes of a tensor."""

    powers: Annotated[list[PositiveInt], AfterValidator(_with_growth)]


@experiment(alone=True, memory_mb=6000)
def sizes(bench: Bench, measured: Measured, sizes: TensorSizes) -> Iterator[Row]:
    """Coding time against the size of a tensor (Figure 1b), and how much it grows."""
    random = torch.Generator().manual_seed(0)
    largest = torch.randn(2 ** max(sizes.powers), generator=random)
    for label, part in _codecs(bench, measured).items():
        bench.say(f"coding tensors of 2^{sizes.powers[0]} to 2^{sizes.powers[-1]}: {label}")
        same = dict(method=label, compression=part.name, device=HERE, evidence="measured")
        seconds = {}
        for power in sizes.powers:
            # Small tensors take microseconds: many of them make a time that can be read.
            many = max(1, min(64, 2**16 >> power))
            given = [largest[: 2**power]] * many
            times = measuring.coding(partial(_codec, part), given, measured.repeats)
            seconds[power] = times.total_s / many
            at = dict(n=2**power)
            yield _row(bench, "compression_time", seconds[power], "s", at=at, **same)
        yield _row(bench, "growth", seconds[LARGE] / seconds[SMALL], "1", **same)


class ScalingHere(Section):
    """``batch``: samples that iterations of a model are timed with."""

    batch: dict[str, PositiveInt]


@experiment(makes=("scaling", "baseline"), alone=True, memory_mb=6000)
def scaling_here(
    bench: Bench,
    cluster: Cluster,
    fusion: Fusions,
    measured: Measured,
    scaling_here: ScalingHere,
) -> Iterator[Row]:
    """The same cluster of machines like this one."""
    torch.set_num_threads(measured.threads)
    layers = []
    for model, batch in scaling_here.batch.items():
        bench.say(f"{model}: forward and backward of {batch} samples")
        part = Part(name=model)
        layers.append(pipeline.measured_layers(part, batch, repeats=measured.repeats))
    way = Way("flat, this CPU", HERE, _this_machine(bench))
    for one in layers:
        yield from _scaling(bench, cluster, fusion, way, one)


def _this_machine(bench: Bench) -> device.Device:
    """This machine's own profile, for the codecs as the recipe has them."""
    bench.say("timing every codec of the recipe")
    given = [method.codec for method in bench.settings.methods.values()]
    return device.measure({codec.name: codec.parameters for codec in given})


@experiment(after=[scaling, scaling_here], minutes=5, memory_mb=1000)
def gains(bench: Bench, rows: pd.DataFrame) -> Iterator[Row]:
    """The least and the largest factor by which LayerFusion raises the scaling factor."""
    factors = coordinates(rows[rows["metric"] == "scaling_factor"])
    # Inside of one server nothing is compressed.
    factors = factors[factors["workers"] > factors["per_server"]]
    places = ["variant", "model", "device"]
    baselines = factors[factors["experiment"] == "baseline"]
    baselines = baselines.set_index([*places, "workers"])["value"].sort_index()
    for place, here in factors[factors["experiment"] == "scaling"].groupby(places, sort=False):
        found = here.pivot(index="workers", columns=["fusion", "method"], values="value")
        for label in here["method"].unique():
            bases = {"gain": found[LAYER_WISE, label], "gain_over_baseline": baselines.loc[place]}
            for metric, base in bases.items():
                ratios = found[LAYER_FUSION, label] / base
                for end, value in (("least", ratios.min()), ("largest", ratios.max())):
                    told = dict(zip(places, place, strict=True))
                    yield _row(bench, f"{end}_{metric}", value, "1", label, **told)


# Real processes -----------------------------------------------------------------------------------


class Live(Section):
    methods: list[str]
    processes: Sizes
    model: Model
    dataset: Dataset
    batch: PositiveInt
    lr: PositiveFloat
    rate: PositiveFloat
    steps: Annotated[int, Field(ge=2)]
    limit: PositiveInt | None
    seed: int


@experiment(alone=True, memory_mb=6000)
def live(bench: Bench, cluster: Cluster, fusion: Fusions, live: Live) -> Iterator[Row]:
    """The same compressors in real processes, beside the virtual-time trainer's learner."""
    torch.set_num_threads(1)
    dataset = load_dataset(live.dataset, limit=live.limit)
    layers = pipeline.measured_layers(live.model, live.batch)
    variants = {
        "native": fusion.layer_fusion,
        "ordered": fusion.layer_fusion,
        "ddp hook": fusion.whole_model,
    }
    for processes in live.processes:
        cases = {}
        for label in live.methods:
            for variant, part in variants.items():
                run = _live_recipe(bench, live, label, processes, part)
                system = System(
                    exchanges.load(run.exchange.name),
                    [_codec(run.levels[0].up)],
                    star(processes, live.rate),
                    overhead_s=cluster.overhead_s,
                )
                here = device.profile(HERE)
                alone = pipeline.single_gpu_s(here, layers, run.batch)
                costs = system.costs(here, layers, alone)
                options = dict(ordered=variant == "ordered", ddp=variant == "ddp hook", costs=costs)
                cases[label, variant] = data_parallel.LiveRun(run, live.steps, **options)
        bench.say(f"live: {', '.join(live.methods)} on {processes} processes")
        runs = data_parallel.measure_all(list(cases.values()), dataset=dataset)
        for (label, variant), case, run in zip(cases, cases.values(), runs, strict=True):
            same = dict(
                method=label,
                variant=variant,
                exchange=case.recipe.exchange.name,
                fusion=case.recipe.fusion.name,
                model=live.model.name,
                dataset=live.dataset,
                workers=processes,
                seed=case.recipe.seed,
                evidence="measured",
            )
            bench.say(f"live: {label} {variant}, {processes} processes, against the learner")
            alone = simulated(case.recipe, run.groups, case.steps, dataset)
            apart = difference(run.parameters.values(), alone)
            nbytes = run.payload_bytes.sum(axis=2).mean()
            yield _row(bench, "payload_bytes", nbytes, "B", **same)
            yield _row(bench, "messages", len(run.groups), "1", **same)
            yield _row(bench, "step_time", np.median(run.step_s[:, 1:]), "s", **same)
            yield _row(bench, "launched_early", 100 * run.launched_early, "%", **same)
            yield _row(bench, "difference", apart, "1", **same)


def _live_recipe(bench: Bench, live: Live, label: str, processes: int, fusion: Part) -> Recipe:
    method = bench.settings.methods[label]
    return Recipe(
        document=bench.document,
        experiment=bench.experiment,
        system=label,
        exchange=Part(name=method.exchange),
        levels=(Level(up=method.codec),),
        synchronization=Part(name="bsp"),
        fusion=fusion,
        model=live.model,
        overlap=True,
        dataset=live.dataset,
        limit=live.limit,
        workers=(processes,),
        batch=live.batch,
        lr=live.lr,
        rounds=live.steps,
        evaluate_every=live.steps,
        seed=live.seed,
        scale=bench.scale,
        device=HERE,
        networks={label: Link(lan=live.rate, wan=live.rate)},
        accelerator="cpu",
    )
