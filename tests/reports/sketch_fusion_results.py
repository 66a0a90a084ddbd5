"""Sketch-Fusion results in closed form, of about the right size, for tests of the report only."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pandas as pd

from testbed.results import Row, frame
from workflow import settings

# The recipe with everything as Sketch-Fusion prints it.
RECIPE = settings.load({"scale": "paper"}, names=False).recipes["sketch_fusion"]
RECIPE = RECIPE.model_dump(mode="json")
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
OURS = ["2-bit", "BiSparse", "DGT"]
FUSIONS = {"layer_wise": 1.8, "whole_model": 1.3, "mg_wfbp": 1.04, "layer_fusion": 1.01}
FUSIONS |= {"optimal": 1.0}
SETTINGS = {
    "flat": ("v100_document", 1.0),
    "4 a server": ("v100_document", 0.8),
    "8 a server": ("v100_document", 0.7),
    "flat, one flop rate": ("v100_flops", 1.2),
    "flat, this CPU": ("this_cpu", 3.0),
}


def iteration(label: str, model: str, fused: bool, workers: int, factor: float = 1.0) -> float:
    """Seconds of an iteration."""
    compute, tensors, values, _ = MODELS[model]
    share, start_ms, rate, gathers = CODECS[label]
    calls = 4 if fused and label != "Baseline" else tensors
    coding = calls * start_ms * 1e-3 + 4 * values / (rate * 2e11)
    sends = (workers - 1) if gathers else 2 * (workers - 1) / workers
    return compute + factor * (coding + sends * share * 4 * values * 8 / 20e9)


def results(scale: str = "desk") -> pd.DataFrame:
    """Every row that Sketch-Fusion's experiments write."""
    rows: list[Row] = []

    def add(experiment: str, case: str, metric: str, value: float, unit: str = "1", **more) -> None:
        base = {"evidence": "simulated", "scale": scale}
        rows.append(Row(paper="sketch_fusion", experiment=experiment, case=case, metric=metric,
                        value=float(value), unit=unit, **(base | more)))  # fmt: skip

    for model, (_, tensors, values, _) in MODELS.items():
        place = {"model": model, "evidence": "computed"}
        add("tensors", model, "tensors", tensors, **place)
        add("tensors", model, "parameters", values, "values", **place)
    for model, n in (("resnet101", 314), ("densenet121", 364), ("mobilenet_v2", 158)):
        add("tensors", model, "tensors", n, model=model, evidence="computed")
    for model, (variant, (device, factor)) in product(MODELS, SETTINGS.items()):
        _scaling(add, model, factor, {"model": model, "variant": variant, "device": device})
    _measured(add)
    _fusion(add)
    _timeline(add)
    _training(add)
    for theorem, t in product((1, 2), (256, 1024, 4096, 16384)):
        for groups in [""] if theorem == 1 else ["y=1", "y=4", "y=16"]:
            y = int(groups[2:] or 1)
            case = f"Theorem {theorem} T={t}"
            add("theory", case, "bound", 40 * y / math.sqrt(t), variant=groups, evidence="computed")
            for seed in (1, 2, 3):
                add("theory", case, "mean_square_gradient", (4 + seed / 5) / math.sqrt(t),
                    variant=groups, seed=seed, evidence="measured")  # fmt: skip
    for theorem, groups in ((1, ""), (2, "y=1"), (2, "y=4"), (2, "y=16")):
        slope = -0.5 + 0.01 * int(groups[2:] or 0)
        add("theory", f"Theorem {theorem}", "slope", slope, variant=groups, evidence="measured")
    for label, n, variant in product(RECIPE["live"]["methods"], (2, 4), ("native", "ordered")):
        place = {"variant": variant, "model": "lenet5", "workers": n, "evidence": "measured"}
        for metric, value, unit in (
            ("payload_bytes", 1e5, "B"),
            ("step_time", 0.03, "s"),
            ("difference", 0.0 if variant == "ordered" else 1e-7, "1"),
            ("launched_early", 60.0, "%"),
            ("messages", 4, "1"),
        ):
            add("live", f"{label} x{n}", metric, value, unit, **place)
    return frame(rows)


def _scaling(add, model: str, factor: float, place: dict) -> None:
    compute, _, _, batch = MODELS[model]
    inside = {"4 a server": 4, "8 a server": 8}.get(place["variant"], 1)
    factors = {}
    for label, fused, n in product(CODECS, (False, True), (1, 2, 4, 8, 16)):
        case = f"{label} {'LF' if fused else 'LW'} {n}"
        here = place | {"fusion": "layer_fusion" if fused else "layer_wise", "workers": n}
        seconds = iteration(label, model, fused, n, factor)
        factors[label, fused, n] = compute / seconds
        add("scaling", case, "scaling_factor", compute / seconds, **here)
        add("scaling", case, "throughput", n * batch / seconds, "1/s", **here)
        add("scaling", case, "iteration_time", seconds, "s", **here)
    for label in CODECS:
        for name, base in (("gain", label), ("gain_over_baseline", "Baseline")):
            many = [n for n in (2, 4, 8, 16) if n > inside]
            ratios = [factors[label, True, n] / factors[base, False, n] for n in many]
            add("gains", label, f"least_{name}", min(ratios), **place)
            add("gains", label, f"largest_{name}", max(ratios), **place)


def _measured(add) -> None:
    place = {"device": "this_cpu", "evidence": "measured"}
    for label in [*CODECS, *OURS]:
        _, start, rate, _ = CODECS.get(label, (0.1, 1.0, 2.0, False))
        rate = min(rate, 9.0)
        for variant, calls in (("layer-wise", 161), ("whole model", 1)):
            encode = 0.1024 / rate + calls * start * 1e-5
            for metric, value in (("encode", encode), ("decode", encode / 2)):
                add("compression", label, f"{metric}_time", value, "s", model="resnet50",
                    variant=variant, **place)  # fmt: skip
            add("compression", label, "compression_time", 1.5 * encode, "s", model="resnet50",
                variant=variant, **place)  # fmt: skip
        for power in range(4, 28, 2):
            seconds = start * 2e-5 + 4 * 2**power / (rate * 1e9)
            add("sizes", f"{label} n={2**power}", "compression_time", seconds, "s", **place)
        growth = 1 + 4 * 2**20 / (rate * 1e9) / (start * 2e-5)
        add("sizes", label, "growth", growth, variant="2^4 to 2^20", **place)
        add("speed", label, "encode_speed", rate, "GB/s", **place)
        add("speed", label, "decode_speed", 2 * rate, "GB/s", **place)
    add("speed", "copy", "copy_speed", 10, "GB/s", **place)
    add("speed", "torch.topk", "encode_speed", 0.2, "GB/s", **place)
    add("speed", "PowerSGD", "total_speed", 0.95, "GB/s", **place)
    add("speed", "torch PowerSGD hook", "total_speed", 0.9, "GB/s", **place)
    add("speed", "Sketch-Fusion", "query_speed", 0.4, "GB/s", **place)


def _fusion(add) -> None:
    for model, (label, codec) in product(MODELS, CODECS.items()):
        case = f"{label} {'allgather' if codec[3] else 'ring'}"
        best = iteration(label, model, True, 16)
        for number, (fusion, factor) in enumerate(FUSIONS.items()):
            place = {"variant": fusion, "fusion": fusion, "model": model, "workers": 16}
            add("fusion", case, "iteration_time", best * factor, "s", **place)
            add("fusion", case, "gap", 100 * (factor - 1), "%", **place)
            add("fusion", case, "groups", 1 + number, **place)
            add("fusion", case, "search_time", 1e-3 * 4**number, "s", evidence="measured", **place)


def _timeline(add) -> None:
    for fusion, groups in (("layer_wise", 8), ("whole_model", 1), ("layer_fusion", 3)):
        for stream, offset in (("compute", 0), ("encode", 1), ("network", 2), ("decode", 3)):
            for i in range(groups):
                begin = 0.1 * (i + 0.25 * offset) / groups
                place = {"model": "resnet20", "compression": "top_k", "fusion": fusion}
                for metric, value in (("begin", begin), ("end", begin + 0.02 / groups)):
                    add("timeline", f"{fusion} {stream} {i}", metric, value, "s", **place)


def _training(add) -> None:
    """Curves that rise to a final accuracy, and what the summaries make of them."""
    hours = {"Baseline": 1.0, "DGC": 1.25, "Sketch-Fusion": 0.85}
    hours |= {"Sketch-Fusion no EF": 0.84, "Sketch-Fusion HEAVYMIX": 0.9}
    for experiment, model, cases in (
        ("figure6", "resnet8", list(hours)),
        ("lstm", "lstm", list(hours)[:3]),
    ):
        for case, seed in product(cases, (1, 2, 3)):
            compression = {"Baseline": "identity", "DGC": "dgc"}.get(case, "count_sketch")
            place = {"model": model, "dataset": getattr(_DATA, experiment), "seed": seed,
                     "compression": compression, "workers": 4, "evidence": "measured",
                     "synchronization": "bsp"}  # fmt: skip
            random = np.random.default_rng([len(case), seed])
            final = (60.0 if "no EF" in case else 80.0) + random.normal(0, 0.1)
            for step in range(0, 101, 5):
                accuracy = final * (1 - math.exp(-step / 20))
                point = place | {"round": step, "time_s": 36.0 * step * hours[case]}
                add(experiment, case, "test_accuracy", accuracy, "%", **point)
                add(experiment, case, "test_loss", 3 - accuracy / 50, "", **point)
                add(experiment, case, "bytes_sent", 1e6 * step, "B", **point)
                if experiment == "lstm":
                    add(experiment, case, "test_perplexity", math.exp(7 - accuracy / 40), "",
                        **point)  # fmt: skip
            add(experiment, case, "final_accuracy", final, "%", **place)
            add(experiment, case, "target_accuracy", 79.5, "%", **place)
            at = place | {"evidence": "simulated"}
            add(experiment, case, "time_to_target", hours[case] * (0.9 + seed / 100), "h", **at)
            add(experiment, case, "rounds_to_target", 90 + seed, "rounds", **at)


class _DATA:
    figure6, lstm = "cifar10", "penn_treebank"
