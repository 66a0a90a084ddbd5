"""Sketch-Fusion's figures and tables, from its recipe; training runs go their own way."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from methods import compression, exchange, fusion
from methods.compression import Compressor
from methods.fusion import Costs, timeline
from testbed import measuring
from testbed.live import data_parallel
from testbed.network import star
from testbed.results import Row, Scale
from testbed.training import device, models, pipeline, quadratic
from testbed.training.datasets import load_dataset
from testbed.training.recipe import Level, Link, Part, Recipe
from workflow.experiments._bench import Bench, Say
from workflow.experiments._simulated import difference, simulated
from workflow.recipes.sketch_fusion import Method, SketchFusion

LAYER_WISE, LAYER_FUSION = "layer_wise", "layer_fusion"
HERE = "this_cpu"
LIVE_VARIANTS = {"native": LAYER_FUSION, "ordered": LAYER_FUSION, "ddp hook": "whole_model"}
Groups = Sequence[Sequence[int]]
SHORT = {LAYER_WISE: "LW", LAYER_FUSION: "LF"}
DRAWN = "vgg16", "Sketch-Fusion"
"""Figure 2: the model and the method whose iteration is drawn."""


class _Bench(Bench[SketchFusion]):
    def row(self, case: str, metric: str, value: float, unit: str, **fields) -> Row:
        """``label``: of the method."""
        method = self.recipe.methods.get(fields.pop("label", ""))
        if method:
            fields.setdefault("compression", method.codec.name)
        return super().row(case, metric, value, unit, **dict(evidence="simulated") | fields)


def rows(recipe: SketchFusion, scale: Scale, experiment: str, say: Say = print) -> Iterator[Row]:
    """Rows of one job: scaling, fusion, measured, theory or live."""
    jobs = dict(
        scaling=_scaling,
        fusion=_fusion,
        measured=_measured,
        theory=_theory,
        live=_live,
    )
    yield from jobs[experiment](_Bench(recipe, scale, experiment, say))


# Models ------------------------------------------------------------------------------------------


def _models(bench: _Bench) -> Iterator[Row]:
    """How many tensors, and values, a model has to synchronise (Figure 1c)."""
    for name in bench.recipe.tensors:
        shapes = models.gradient_shapes(models.make(name))
        row = partial(bench.row, name, experiment="tensors", model=name, evidence="computed")
        yield row("tensors", len(shapes), "1")
        yield row("parameters", models.count(shapes), "values")


# Throughput --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Setting:
    """How communication and computing are modelled: flat, or ``per_server`` workers a server."""

    variant: str
    device: device.Device
    device_name: str
    layers: dict[str, pipeline.Layers]
    per_server: int = 1


def _settings(bench: _Bench) -> list[_Setting]:
    """The document's V100 in every way of communicating, and with one flop rate for all models."""
    layers = {name: pipeline.layers(Part(name=name)) for name in bench.recipe.models}
    document = bench.recipe.cluster.device
    made = [("flat", document, 1)]
    made += [(f"{n} a server", document, n) for n in bench.recipe.cluster.per_server]
    made += [("flat, one flop rate", "v100_flops", 1)]
    return [_Setting(v, device.profile(name), name, layers, n) for v, name, n in made]


def _scaling(bench: _Bench) -> Iterator[Row]:
    """Scaling factor and throughput by workers, and LayerFusion's gains (Figures 1a, 3 to 5)."""
    yield from _models(bench)
    for setting in _settings(bench):
        for model in bench.recipe.models:
            bench.say(f"scaling: {model}, {setting.variant}")
            yield from _scaling_of(bench, setting, model)
    yield from _timelines(bench)


def _scaling_of(bench: _Bench, setting: _Setting, model: str) -> Iterator[Row]:
    recipe = bench.recipe
    layers = setting.layers[model]
    batch = recipe.models[model].batch
    alone = pipeline.single_gpu_s(setting.device, layers, batch)
    factors: dict[tuple[str, str, int], float] = {}
    for label, method in recipe.methods.items():
        for chosen in (LAYER_WISE, LAYER_FUSION):
            grouping = fusion.load(**_part(recipe.fusion[chosen]))
            for workers in recipe.cluster.workers:
                costs = _costs(bench, setting, model, method, workers)
                if costs is None:
                    continue
                spans = pipeline.overlapped(layers, grouping, costs)
                factor = alone / spans.iteration_s
                factors[label, chosen, workers] = factor
                row = partial(
                    bench.row,
                    f"{label} {SHORT[chosen]} {workers}",
                    experiment="scaling",
                    variant=setting.variant,
                    label=label,
                    exchange=method.exchange,
                    fusion=chosen,
                    model=model,
                    workers=workers,
                    bandwidth=recipe.cluster.rate,
                    device=setting.device_name,
                )
                coding = float(np.diff(spans.encode).sum() + np.diff(spans.decode).sum())
                yield row("scaling_factor", factor, "1")
                yield row("throughput", workers * batch / spans.iteration_s, "1/s")
                yield row("iteration_time", spans.iteration_s, "s")
                yield row("exposed_communication", spans.exposed_communication_s, "s")
                yield row("compression_time", coding, "s")
    yield from _gains(bench, setting, model, factors)


def _gains(bench: _Bench, setting: _Setting, model: str, factors: dict) -> Iterator[Row]:
    """The least and the largest factor by which LayerFusion raises the scaling factor."""
    # Inside of one server nothing is compressed.
    many = sorted({workers for _, _, workers in factors if workers > setting.per_server})
    for label in bench.recipe.methods:
        fused = [factors.get((label, LAYER_FUSION, n)) for n in many]
        if not many or None in fused:
            continue
        for metric, base in (("gain", label), ("gain_over_baseline", "Baseline")):
            ratios = [f / factors[base, LAYER_WISE, n] for f, n in zip(fused, many, strict=True)]
            for end, value in (("least", min(ratios)), ("largest", max(ratios))):
                yield bench.row(
                    label,
                    f"{end}_{metric}",
                    value,
                    "1",
                    experiment="gains",
                    variant=setting.variant,
                    label=label,
                    model=model,
                    device=setting.device_name,
                )


def _costs(
    bench: _Bench, setting: _Setting, model: str, method: Method, workers: int
) -> Costs | None:
    """What a message costs; None where so many workers do not fill their servers."""
    cluster = bench.recipe.cluster
    inside = min(setting.per_server, workers)
    if workers % inside:
        return None
    return pipeline.costs(
        setting.device,
        setting.layers[model],
        _codec(method.codec),
        exchange.load(method.exchange),
        star(workers // inside, cluster.rate, latency=cluster.latency),
        bench.recipe.models[model].batch,
        efficiency=cluster.efficiency,
        overhead_s=cluster.overhead_s,
        inner=star(inside, cluster.inner_rate, latency=cluster.latency) if inside > 1 else None,
    )


def _timelines(bench: _Bench) -> Iterator[Row]:
    """What one iteration does when, for three groupings (Figure 2)."""
    recipe = bench.recipe
    setting = _settings(bench)[0]
    model, label = DRAWN
    sizes = setting.layers[model].sizes
    costs = _costs(bench, setting, model, recipe.methods[label], max(recipe.cluster.workers))
    for name in (LAYER_WISE, "whole_model", LAYER_FUSION):
        groups = fusion.load(**_part(recipe.fusion[name]))(sizes, costs)
        spans = timeline(sizes, groups, costs)
        streams = dict(encode=spans.encode, network=spans.communicate, decode=spans.decode)
        # Computing is what the compute stream does between encodings.
        ends = spans.encode[:, 0]
        begins = np.concatenate([[0.0], spans.encode[:-1, 1]])
        streams["compute"] = np.stack([begins, ends], axis=1)
        for stream, times in streams.items():
            for number, span in enumerate(times):
                for metric, value in zip(("begin", "end"), span, strict=True):
                    yield bench.row(
                        f"{name} {stream} {number}",
                        metric,
                        value,
                        "s",
                        experiment="timeline",
                        label=label,
                        model=model,
                        fusion=name,
                        device=setting.device_name,
                    )


# Searching for groups ----------------------------------------------------------------------------


def _fusion(bench: _Bench) -> Iterator[Row]:
    """Every fusion's iteration time over the best possible one, and what finding it took."""
    recipe, setting = bench.recipe, _settings(bench)[0]
    workers = max(recipe.cluster.workers)
    for model in recipe.models:
        sizes = setting.layers[model].sizes
        for label, method in recipe.methods.items():
            codec = _codec(method.codec)
            carried = [n for n in recipe.exchanges if codec.combine in exchange.load(n).combines]
            for name in carried:
                bench.say(f"fusion: {model}, {label} over {name}")
                other = method.model_copy(update={"exchange": name})
                costs = _costs(bench, setting, model, other, workers)
                found = {}
                for kind, part in recipe.fusion.items():
                    start = time.perf_counter()
                    groups = fusion.load(**_part(part))(sizes, costs)
                    took = time.perf_counter() - start
                    found[kind] = timeline(sizes, groups, costs).iteration_s, len(groups), took
                best = found["optimal"][0]
                for kind, (seconds, groups, took) in found.items():
                    row = partial(
                        bench.row,
                        f"{label} {name}",
                        variant=kind,
                        fusion=kind,
                        label=label,
                        exchange=name,
                        model=model,
                        workers=workers,
                        device=setting.device_name,
                    )
                    yield row("iteration_time", seconds, "s")
                    yield row("gap", round(100 * (seconds / best - 1), 6), "%")
                    yield row("groups", groups, "1")
                    yield row("search_time", took, "s", evidence="measured")


# This machine ------------------------------------------------------------------------------------


def _measured(bench: _Bench) -> Iterator[Row]:
    """Compression as timed here (Table 1, Figure 1b, speed), and the scaling that it would give."""
    measured = bench.recipe.measured
    torch.set_num_threads(measured.threads)
    codecs = {label: method.codec for label, method in bench.recipe.methods.items()}
    codecs |= measured.others
    shapes = list(models.gradient_shapes(models.make("resnet50")).values())[: measured.tensors]
    random = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=random) for shape in shapes]
    yield from _table1(bench, codecs, tensors)
    yield from _sizes(bench, codecs, random)
    yield from _here(bench)


def _table1(bench: _Bench, codecs: dict[str, Part], tensors: list[torch.Tensor]) -> Iterator[Row]:
    """Coding of ResNet-50's tensors one by one and as one, and its speed beside others'."""
    repeats = bench.recipe.measured.repeats
    whole = torch.cat([tensor.flatten() for tensor in tensors])
    gigabytes = 4 * whole.numel() / 1e9

    def speed(case: str, metric: str, seconds: float, label: str = "") -> Row:
        fields = dict(experiment="speed", label=label, device=HERE, evidence="measured")
        return bench.row(case, f"{metric}_speed", gigabytes / seconds, "GB/s", **fields)

    for label, part in codecs.items():
        bench.say(f"coding ResNet-50's gradient: {label}")
        for variant, given in (("layer-wise", tensors), ("whole model", [whole])):
            times = measuring.coding(partial(_codec, part), given, repeats)
            fields = dict(variant=variant, model="resnet50", device=HERE, evidence="measured")
            row = partial(
                bench.row, label, experiment="compression", compression=part.name, **fields
            )
            yield row("compression_time", times.total_s, "s")
            yield row("encode_time", times.encode_s, "s")
            yield row("decode_time", times.decode_s, "s")
        if part.name == "count_sketch":
            yield speed(label, "encode", times.first_s, label)
            yield speed(label, "query", times.further_s, label)
        else:
            yield speed(label, "encode", times.encode_s, label)
        yield speed(label, "decode", times.decode_s, label)
    bench.say("coding ResNet-50's gradient: what to hold it against")
    yield speed("copy", "copy", measuring.copy_s(whole, repeats))
    share = codecs["Top-k"].parameters["ratio"] if "Top-k" in codecs else 0.01
    kept = math.ceil(share * whole.numel())
    yield speed("torch.topk", "encode", measuring.torch_topk_s(whole, kept, repeats))
    if "PowerSGD" in codecs:
        ours = measuring.coding(partial(_codec, codecs["PowerSGD"]), tensors, repeats)
        yield speed("PowerSGD", "total", ours.total_s, "PowerSGD")
        rank = codecs["PowerSGD"].parameters["rank"]
        seconds = measuring.torch_power_sgd_s(tensors, rank, repeats)
        yield speed("torch PowerSGD hook", "total", seconds)


def _sizes(bench: _Bench, codecs: dict[str, Part], random: torch.Generator) -> Iterator[Row]:
    """Coding time against the size of a tensor (Figure 1b), and its growth from 2^4 to 2^20."""
    measured = bench.recipe.measured
    largest = torch.randn(2 ** max(measured.sizes), generator=random)
    for label, part in codecs.items():
        bench.say(f"coding tensors of 2^{measured.sizes[0]} to 2^{measured.sizes[-1]}: {label}")
        row = partial(
            bench.row,
            experiment="sizes",
            compression=part.name,
            device=HERE,
            evidence="measured",
        )
        seconds = {}
        for power in measured.sizes:
            # Small tensors take microseconds: many of them make a time that can be read.
            many = max(1, min(64, 2**16 >> power))
            tensors = [largest[: 2**power]] * many
            times = measuring.coding(partial(_codec, part), tensors, measured.repeats)
            seconds[power] = times.total_s / many
            yield row(f"{label} n={2**power}", "compression_time", seconds[power], "s")
        yield row(label, "growth", seconds[20] / seconds[4], "1", variant="2^4 to 2^20")


def _here(bench: _Bench) -> Iterator[Row]:
    """The same cluster of machines like this one."""
    batches = bench.recipe.measured.batch
    repeats = bench.recipe.measured.repeats
    layers = {}
    for model, batch in batches.items():
        bench.say(f"{model}: forward and backward of {batch} samples")
        layers[model] = pipeline.measured_layers(Part(name=model), batch, repeats=repeats)
    setting = _Setting("flat, this CPU", _this_machine(bench), HERE, layers)
    for model in layers:
        bench.say(f"scaling: {model}, {setting.variant}")
        yield from _scaling_of(bench, setting, model)


def _this_machine(bench: _Bench) -> device.Device:
    """This machine's own profile, for the codecs as the recipe has them."""
    bench.say("timing every codec of the recipe")
    codecs = {m.codec.name: m.codec.parameters for m in bench.recipe.methods.values()}
    return device.measure(codecs)


# Theorems ----------------------------------------------------------------------------------------


def _theory(bench: _Bench) -> Iterator[Row]:
    """Mean square gradient on a quadratic, beside what Theorems 1 and 2 allow it."""
    theory = bench.recipe.theory
    size = theory.size
    problem = quadratic.Quadratic(
        curvatures=np.linspace(theory.flattest, 1.0, size),
        start=np.ones(size),
        optimum=np.zeros(size),
        variance=theory.variance,
        workers=theory.workers,
        batch=theory.batch,
    )
    methods = {("Theorem 1", ""): quadratic.Sparse(theory.period)}
    for y in theory.groups:
        methods["Theorem 2", f"y={y}" if y > 1 else ""] = quadratic.Quantised(theory.levels, y)
    for (theorem, variant), method in methods.items():
        bench.say(f"{theorem} {variant}".strip())
        row = partial(bench.row, variant=variant, workers=theory.workers)
        reached = {}
        for steps in theory.iterations:
            case = f"{theorem} T={steps}"
            limit = quadratic.bound(problem, method, steps, theory.alpha)
            yield row(case, "bound", limit, "1", evidence="computed")
            values = []
            for seed in theory.seeds:
                values.append(quadratic.run(problem, method, steps, theory.alpha, seed))
                yield row(
                    case, "mean_square_gradient", values[-1], "1", seed=seed, evidence="measured"
                )
            reached[steps] = float(np.mean(values))
        fit = quadratic.slope(list(reached), list(reached.values()))
        yield row(theorem, "slope", fit, "1", evidence="measured")


# Real processes ----------------------------------------------------------------------------------


def _live(bench: _Bench) -> Iterator[Row]:
    """The same compressors in real processes, beside the virtual-time trainer's learner."""
    live = bench.recipe.live
    torch.set_num_threads(1)
    dataset = load_dataset(live.dataset, limit=live.limit)
    layers = pipeline.measured_layers(live.model, live.batch)
    here = _this_machine(bench)
    for processes in live.processes:
        cases = {}
        for label in live.methods:
            for variant, kind in LIVE_VARIANTS.items():
                run = _live_recipe(bench, label, processes, kind)
                costs = _live_costs(bench, run, layers, here)
                options = dict(ordered=variant == "ordered", ddp=variant == "ddp hook", costs=costs)
                cases[label, variant] = data_parallel.Case(run, live.steps, **options)
        bench.say(f"live: {', '.join(live.methods)} on {processes} processes")
        runs = data_parallel.measure_all(list(cases.values()), dataset=dataset)
        for (label, variant), case, run in zip(cases, cases.values(), runs, strict=True):
            row = partial(
                bench.row,
                f"{label} x{processes}",
                variant=variant,
                label=label,
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
            yield row("payload_bytes", run.payload_bytes.sum(axis=2).mean(), "B")
            yield row("messages", len(run.groups), "1")
            yield row("step_time", float(np.median(run.step_s[:, 1:])), "s")
            yield row("launched_early", 100 * run.launched_early, "%")
            yield row("difference", apart, "1")


def _live_recipe(bench: _Bench, label: str, processes: int, kind: str) -> Recipe:
    recipe, live = bench.recipe, bench.recipe.live
    method = recipe.methods[label]
    link = Link(lan=live.rate, wan=live.rate)
    return Recipe(
        paper=recipe.paper,
        experiment=bench.experiment,
        system=label,
        exchange=Part(name=method.exchange),
        levels=(Level(up=method.codec),),
        synchronization=Part(name="bsp"),
        fusion=recipe.fusion[kind],
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
        networks={label: link},
        accelerator="cpu",
    )


def _live_costs(bench: _Bench, run: Recipe, layers: pipeline.Layers, here: device.Device) -> Costs:
    cluster = star(run.workers[0], bench.recipe.live.rate)
    codec, carrier = _codec(run.levels[0].up), exchange.load(run.exchange.name)
    return pipeline.costs(
        device.profile(run.device), layers, codec, carrier, cluster, run.batch,
        overhead_s=bench.recipe.cluster.overhead_s,
    )  # fmt: skip


def _part(part: Part) -> dict:
    return dict(name=part.name, **part.parameters)


def _codec(part: Part) -> Compressor:
    return compression.load(**_part(part))
