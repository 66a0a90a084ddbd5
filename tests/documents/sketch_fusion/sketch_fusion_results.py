"""Sketch-Fusion results in closed form, of about the right size, for tests of the report only."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pandas as pd

from slowlink.testbed.results import Row, frame
from slowlink.workflow import settings
from slowlink.workflow.documents.sketch_fusion import experiments
from slowlink.workflow.experiment import Bench

# The recipe with everything as Sketch-Fusion prints it.
SETTINGS = settings.load({"scale": "paper"}, names=False).recipes["sketch_fusion"]
RECIPE = SETTINGS.model_dump(mode="json")
# Seconds to compute an iteration, tensors, values and samples of an iteration.
MODELS = {
    "resnet20": (0.10, 65, 0.27e6, 128),
    "vgg16": (0.12, 32, 15e6, 128),
    "resnet50": (0.34, 161, 25.6e6, 128),
    "lstm": (0.05, 11, 20e6, 32),
}
# Bytes of a message as a share of float32's, milliseconds of a tensor, GB/s, all-gathered or not.
CODECS = {
    "Baseline": (1.0, 0.3, math.inf, False),
    "FP16": (0.5, 0.4, 5.0, False),
    "Top-k": (0.02, 2.0, 0.8, True),
    "DGC": (0.02, 2.4, 1.2, True),
    "Rand-k": (0.01, 2.2, 1.5, False),
    "QSGD": (0.1, 0.9, 2.2, True),
    "EFSignSGD": (1 / 32, 0.8, 2.1, True),
    "SignSGD": (1 / 32, 0.6, 2.5, True),
    "TernGrad": (1 / 16, 1.0, 2.0, True),
    "PowerSGD": (0.02, 1.8, 1.0, False),
    "Sketch-Fusion": (0.02, 0.7, 0.7, False),
}
FUSIONS = {"layer_wise": 1.8, "whole_model": 1.3, "mg_wfbp": 1.04}
FUSIONS |= {"layer_fusion_printed": 1.02, "layer_fusion": 1.01}
FUSIONS |= {"optimal": 1.0}
# Device, slowness and workers a server of every way of modelling.
WAYS = {
    "flat": ("v100_document", 1.0, 1),
    "4 a server": ("v100_document", 0.8, 4),
    "8 a server": ("v100_document", 0.7, 8),
    "flat, one flop rate": ("v100_flops", 1.2, 1),
    "flat, this CPU": ("this_cpu", 3.0, 1),
}
# What the document leaves open, read otherwise: how many GPUs share b, whether the tensors of the
# baseline are fused, and how much more sketches take to code.
READINGS = {
    "fused baseline": (1, True, 1.0),
    "b of all GPUs": (16, False, 1.0),
    "fused baseline and b of all GPUs": (16, True, 1.0),
    "LayerFusion to the letter": (1, False, 1.0),
    "a sketch costs what SignSGD does": (1, False, 0.8),
    "a sketch costs what Top-k does": (1, False, 4.0),
}
WAYS |= dict.fromkeys(READINGS, ("v100_document", 1.0, 1))
FUSED = 0.5  # of the time that sending takes without fusing
# Rounds to the target, in thousands.
ROUNDS = {"Baseline": 1.0, "DGC": 1.25, "Sketch-Fusion": 0.85}
ROUNDS |= {"Sketch-Fusion no EF": 0.84, "Sketch-Fusion HEAVYMIX": 0.9}
HERE = {"device": "this_cpu", "evidence": "measured"}


def row(experiment: str, metric: str, value: float, unit: str = "1", **told) -> Row:
    """A row; what is no field of one is a coordinate."""
    fields = {name: told.pop(name) for name in list(told) if name in Row.model_fields}
    base = dict(document="sketch_fusion", scale="desk", evidence="simulated", at=told)
    told = dict(experiment=experiment, metric=metric, value=float(value), unit=unit)
    return Row(**base | told | fields)


def iteration(method: str, model: str, fused: bool, workers: int, factor: float = 1.0) -> float:
    """Seconds of an iteration."""
    return sum(spent(method, model, fused, workers, factor))


def spent(
    method: str, model: str, fused: bool, workers: int, factor: float = 1.0
) -> tuple[float, float, float]:
    """Seconds of an iteration that go to computing, coding and sending, which overlaps nothing."""
    compute, tensors, values, _ = MODELS[model]
    share, start_ms, rate, gathers = CODECS[method]
    calls = 4 if fused and method != "Baseline" else tensors
    coding = calls * start_ms * 1e-3 + 4 * values / (rate * 2e11)
    sends = (workers - 1) if gathers else 2 * (workers - 1) / workers
    return compute, factor * coding, factor * sends * share * 4 * values * 8 / 20e9


def results(readings: dict[str, tuple[int, bool, float]] | None = None) -> pd.DataFrame:
    """Every row that Sketch-Fusion's experiments write; ``readings`` in place of ``READINGS``."""
    scaling = frame(_scaling(READINGS if readings is None else readings))
    bench = Bench("sketch_fusion", "gains", SETTINGS, "desk")
    others = [*experiments.gains(bench, scaling), *_measured(), *_fusion(), *_timeline()]
    others += [*_training(), *_theory(), *_live(), *_sketch_cost(), *_errors()]
    for model, (_, tensors, _, _) in MODELS.items():
        others.append(row("tensors", "tensors", tensors, model=model, evidence="computed"))
    return pd.concat([scaling, frame(others)], ignore_index=True)


def _scaling(readings):
    for (variant, (device, factor, per_server)), model in product(WAYS.items(), MODELS):
        if variant in READINGS and model not in SETTINGS.printed:
            continue
        shared, fuses, sketches = readings.get(variant, (1, False, 1.0))
        for method, fused, n in product(CODECS, (False, True), (1, 2, 4, 8, 16)):
            if n == 1 and (fused or method != "Baseline"):
                continue
            compute, coding, sending = spent(method, model, fused, n, factor)
            coding *= sketches if method == "Sketch-Fusion" else 1.0
            place = dict(method=method, per_server=per_server, model=model, variant=variant)
            place |= dict(
                device=device, fusion="layer_fusion" if fused else "layer_wise", workers=n
            )
            took = compute / min(shared, n), coding, sending
            if n > 1:
                yield from _iteration("scaling", model, shared, took, place)
            if method == "Baseline" and not fused:
                took = *took[:2], took[2] * (FUSED if fuses else 1.0)
                place["fusion"] = "layer_fusion" if fuses else "layer_wise"
                yield from _iteration("baseline", model, shared, took, place)


def _iteration(experiment, model, shared, took, place):
    (compute, coding, sending), seconds = took, sum(took)
    n = place["workers"]
    samples = n * MODELS[model][3] / min(shared, n)
    yield row(experiment, "scaling_factor", compute / seconds, **place)
    if n in (1, 16):
        yield row(experiment, "throughput", samples / seconds, "1/s", **place)
    if n == 16:
        yield row(experiment, "iteration_time", seconds, "s", **place)
        yield row(experiment, "compression_time", coding, "s", **place)
        yield row(experiment, "exposed_communication", sending, "s", **place)


def _sketch_cost():
    """The lead falls as a sketch costs more, to nothing at eight times SignSGD's cost, or never."""
    for model, variant in product(("resnet20", "resnet50", "lstm"), ("flat", "b of all GPUs")):
        place = dict(method="Sketch-Fusion", model=model, variant=variant)
        lead = 0.95 if model == "resnet20" else 8**0.1
        for times in (1.0, 3.0, 9.0):
            value = lead / times**0.1
            yield row("sketch_cost", "lead", value, sketch_cost=times, **place)
        yield row("sketch_cost", "lead_by_work", lead / 12**0.1, sketch_cost=12.0, **place)
        yield row("sketch_cost", "cost_by_work", 12.0, **place)
        if lead > 1:
            yield row("sketch_cost", "crossover", 8.0, **place)


def _errors():
    for number, method in enumerate([*CODECS, "QSGD, max norm"]):
        place = dict(method=method, evidence="measured")
        yield row("errors", "relative_error", 2.0**-number, **place)
        yield row("errors", "bytes_a_value", 4.0 / (1 + number), "B", **place)


def _measured():
    for method in [*CODECS, "DGT"]:
        _, start, rate, _ = CODECS.get(method, (0.1, 1.0, 2.0, False))
        rate = min(rate, 9.0)
        for variant, calls in (("layer-wise", 161), ("whole model", 1)):
            encode = 0.1024 / rate + calls * start * 1e-5
            place = HERE | dict(method=method, model="resnet50", variant=variant)
            for metric, value in (("encode", 1), ("decode", 0.5), ("compression", 1.5)):
                yield row("compression", f"{metric}_time", value * encode, "s", **place)
        for n in (2**4, 2**12, 2**20):
            seconds = start * 2e-5 + 4 * n / (rate * 1e9)
            yield row("sizes", "compression_time", seconds, "s", method=method, n=n, **HERE)
        growth = 1 + 4 * 2**20 / (rate * 1e9) / (start * 2e-5)
        yield row("sizes", "growth", growth, method=method, **HERE)
        yield row("speed", "encode_speed", rate, "GB/s", method=method, **HERE)
        yield row("speed", "decode_speed", 2 * rate, "GB/s", method=method, **HERE)
    for method, metric, value in (
        ("copy", "copy", 10),
        ("torch.topk", "encode", 0.2),
        ("PowerSGD", "total", 0.95),
        ("torch PowerSGD hook", "total", 0.9),
        ("Sketch-Fusion", "query", 0.4),
    ):
        yield row("speed", f"{metric}_speed", value, "GB/s", method=method, **HERE)


def _fusion():
    for model, (method, codec) in product(MODELS, CODECS.items()):
        best = iteration(method, model, True, 16)
        for number, (fusion, factor) in enumerate(FUSIONS.items()):
            place = dict(method=method, fusion=fusion, model=model, workers=16)
            place |= dict(exchange="allgather" if codec[3] else "ring")
            yield row("fusion", "iteration_time", best * factor, "s", **place)
            yield row("fusion", "gap", 100 * (factor - 1), "%", **place)
            yield row("fusion", "groups", 1 + number, **place)
            yield row("fusion", "search_time", 1e-3 * 4**number, "s", **place)


def _timeline():
    """Every stream of every message begins a quarter of its share after the one before."""
    for fusion, groups in (("layer_wise", 8), ("whole_model", 1), ("layer_fusion", 3)):
        for number, stream in enumerate(("compute", "encode", "network", "decode")):
            for i in range(groups):
                begin = 0.1 * (i + 0.25 * number) / groups
                place = dict(method="Sketch-Fusion", stream=stream, number=i, fusion=fusion)
                for metric, value in (("begin", begin), ("end", begin + 0.02 / groups)):
                    yield row("timeline", metric, value, "s", model="vgg16", **place)


def _training():
    """Curves that rise to a final accuracy, and what the summaries make of them."""
    for experiment, model, methods in (
        ("figure6", "resnet8", list(ROUNDS)),
        ("figure6_recorded", "resnet20", list(ROUNDS)),
        ("convergence", "resnet20", list(ROUNDS)),
        ("lstm", "lstm", list(ROUNDS)[:3]),
    ):
        for method, seed in product(methods, (1, 2, 3)):
            place = dict(method=method, model=model, seed=seed, evidence="measured")
            random = np.random.default_rng([len(method), seed])
            final = (60.0 if "no EF" in method else 80.0) + random.normal(0, 0.1)
            for step in range(0, 101, 10):
                accuracy = final * (1 - math.exp(-step / 20))
                point = place | dict(round=step, time_s=36.0 * step * ROUNDS[method])
                yield row(experiment, "test_accuracy", accuracy, "%", **point)
                yield row(experiment, "bytes_sent", 1e6 * step, "B", **point)
                if experiment == "lstm":
                    perplexity = math.exp(7 - accuracy / 40)
                    yield row(experiment, "test_perplexity", perplexity, "", **point)
            yield row(experiment, "final_accuracy", final, "%", **place)
            yield row(experiment, "target_accuracy", 79.5, "%", **place)
            place["evidence"] = "simulated"
            rounds = 1000 * ROUNDS[method] * (0.9 + seed / 100)
            yield row(experiment, "rounds_to_target", rounds, "rounds", **place)


def _theory():
    for theorem, y in ((1, 1), (2, 1), (2, 4), (2, 16)):
        about = dict(theorem=theorem, groups=y)
        for steps in (256, 1024):
            bound = 40 * y / math.sqrt(steps)
            yield row("theory", "bound", bound, iterations=steps, evidence="computed", **about)
            for seed in (1, 2, 3):
                value = (4 + seed / 5) / math.sqrt(steps)
                place = about | dict(iterations=steps, seed=seed, evidence="measured")
                yield row("theory", "mean_square_gradient", value, **place)
        yield row("theory", "slope", -0.5 + 0.01 * y, evidence="measured", **about)


def _live():
    for method, n, variant in product(("DGC", "Baseline"), (2, 4), ("native", "ordered")):
        place = dict(method=method, variant=variant, workers=n, evidence="measured")
        for metric, value, unit in (
            ("payload_bytes", 1e5, "B"),
            ("step_time", 0.03, "s"),
            ("difference", 0.0 if variant == "ordered" else 1e-7, "1"),
            ("launched_early", 60.0, "%"),
            ("messages", 4, "1"),
        ):
            yield row("live", metric, value, unit, **place)
