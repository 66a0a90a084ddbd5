"""DDS results of about the right size, for tests of the report only.

Bytes are those of the formats; times and accuracies are those of a world in which the document is
right, three runs of each.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from testbed.results import Row, frame

# The recipe with everything as DDS prints it.
FILE = Path(__file__).parents[2] / "workflow" / "config" / "papers" / "dds.yaml"
RECIPE = yaml.safe_load(FILE.read_text(encoding="utf-8"))
D, K = 1_199_882, 119_988
UPLINK = {
    "fp32_dense": 4 * D,
    "int8_dense": 20 + D + 4 * 1172,
    "fp32_sparse": 12 + 8 * K,
    "int8_sparse": 20 + 5 * K + 4 * 118,
    "fp32_sparse from model": 12 + 8 * K,
    "int8_sparse from model": 20 + 5 * K + 4 * 118,
    "fp32_sparse EF": 12 + 8 * K,
    "int8_sparse EF": 20 + 5 * K + 4 * 118,
    "int8_dense C=8192": 20 + D + 4 * 147,
    "int8_sparse C=8192": 20 + 5 * K + 4 * 15,
}
# Communication time of the clients and time of a round, s; accuracy after ten rounds, %.
FEDERATED = {
    "fp32_dense": (0.5473, 0.1939, 10.4848, 98.31),
    "int8_dense": (0.5057, 0.0920, 9.9822, 98.21),
    "fp32_sparse": (0.4502, 0.0665, 9.4327, 98.12),
    "int8_sparse": (0.4297, 0.0651, 9.5890, 98.17),
    "fp32_sparse from model": (0.4502, 0.0665, 9.4327, 98.15),
    "int8_sparse from model": (0.4297, 0.0651, 9.5890, 98.20),
    "fp32_sparse EF": (0.4502, 0.0665, 9.4327, 98.20),
    "int8_sparse EF": (0.4297, 0.0651, 9.5890, 98.25),
}
PARAMETERS = [401_408, 512, 5_120, 10]
# Payload of a worker and step; longest and mean wait, computing and compressing, s; accuracy, %.
DDP = {
    "baseline": (sum(PARAMETERS) + 24 * 4, 3.02549, 0.02554, 0.004, 0.001, 98.07),
    "DGC": (8 * (402 + 1 + 6 + 1), 0.41415, 0.02083, 0.004, 0.003, 98.11),
    "DGC momentum": (8 * (402 + 1 + 6 + 1), 0.45, 0.021, 0.004, 0.003, 98.15),
    "fp32": (4 * sum(PARAMETERS), 3.5, 0.032, 0.004, 0.0002, 98.08),
    "centralised": (0, 0.0, 0.0, 0.008, 0.0, 98.10),
}
TRANSPORT = {"dds": 0.8, "raw dds": 1.0, "gloo": 1.4}
NON_IID = {"fp32_dense": 93.0, "int8_sparse": 88.0, "int8_sparse EF": 91.5}
SEEDS = (1, 2, 3)


def results(scale: str = "desk", live: tuple[int, ...] = SEEDS) -> pd.DataFrame:
    """Every row that DDS's experiments write; ``live``: seeds of the runs on real processes."""
    rows: list[Row] = []

    def add(experiment: str, case: str, metric: str, value: float, unit: str = "1", **more) -> None:
        base = {"evidence": "measured", "scale": scale, "workers": 2, "dataset": "mnist"}
        rows.append(Row(paper="dds", experiment=experiment, case=case, metric=metric,
                        value=float(value), unit=unit, **(base | more)))  # fmt: skip

    for label, up in UPLINK.items():
        place = {"model": "mnist_cnn", "evidence": "computed", "dataset": ""}
        _bytes(add, "federated_bytes", label, up, place)
        add("federated_bytes", label, "downlink_bytes", 4 * D, "B", **place)
        add("federated_bytes", label, "uplink_mib", up / 2**20, **place)
        add("federated_bytes", label, "up_and_down_ratio", (up + 4 * D) / (8 * D), **place)
    for label, (*_, accuracy) in FEDERATED.items():
        place = {"model": "mnist_cnn"}
        if " " not in label:
            _federated(add, label, place, live)
        for seed in SEEDS:
            simulated = place | {"evidence": "simulated", "seed": seed}
            _accuracies(add, "federated_seeds", label, accuracy, seed, 10, 1, simulated)
        if " " not in label:
            add("federated_seeds", label, "live_difference", 0, seed=1, round=1, **place)
    for label in ("int8_dense C=8192", "int8_sparse C=8192"):
        _bytes(add, "federated", label, UPLINK[label], {"model": "mnist_cnn"})
    for label, values in DDP.items():
        _data_parallel(add, label, values, live)
    for ranks in (2, 4):
        for size in (1, 16, 64):
            for way, factor in TRANSPORT.items():
                rate = factor * 1.2 * size / (size + 2) / (1 + ranks / 8)  # GB/s
                place = {"variant": way, "workers": ranks, "dataset": ""}
                add("transport", f"{size} MiB", "time", size / 1024 * ranks / rate, "s", **place)
                add("transport", f"{size} MiB", "throughput", rate, "GB/s", **place)
                add("transport", f"{size} MiB", "share_of_raw", factor, **place)
    for label, accuracy in NON_IID.items():
        for split, loss in (("by label", 3.0), ("dirichlet 0.1", 1.0)):
            for seed in SEEDS:
                value = accuracy - loss + np.random.default_rng(seed).normal(0, 0.8)
                add("non_iid", label, "final_accuracy", value, "%", variant=split, seed=seed,
                    model="mnist_cnn", evidence="simulated")  # fmt: skip
    return frame(rows)


def _bytes(add, experiment: str, label: str, up: int, place: dict) -> None:
    add(experiment, label, "uplink_bytes", up, "B", **place)
    computed = place | {"evidence": "computed"}
    add(experiment, label, "frame_bytes", up + 98 * math.ceil(up / 2**20), "B", **computed)
    add(experiment, label, "link_bytes", up + 90 * math.ceil(up / 1400), "B", **computed)


def _federated(add, label: str, place: dict, seeds: tuple[int, ...]) -> None:
    first, second, round_s, accuracy = FEDERATED[label]
    _bytes(add, "federated", label, UPLINK[label], place)
    for seed in seeds:
        shift = np.random.default_rng(seed).normal(1, 0.001)
        of = place | {"seed": seed}
        for client, seconds in (("client0", first), ("client1", second)):
            add("federated", label, "communication_time", seconds * shift, "s",
                variant=client, **of)  # fmt: skip
        add("federated", label, "round_time", round_s * shift, "s", **of)
        add("federated", label, "round_time_sd", 0.06 * round_s, "s", **of)
        add("federated", label, "train_time", 0.9 * round_s * shift, "s", **of)
        ends = ("final_accuracy", "judged_accuracy")
        _accuracies(add, "federated", label, accuracy, seed, 10, round_s, of, ends)


def _data_parallel(add, label: str, values: tuple, seeds: tuple[int, ...]) -> None:
    payload, longest, mean, compute, compress, accuracy = values
    place = {"model": "mlp"} | ({"workers": 1} if label == "centralised" else {})
    add("ddp", label, "bytes_per_step", payload, "B", **place)
    computed = place | {"evidence": "computed"}
    add("ddp", label, "bytes_counted_as_printed", 3 * payload, "B", **computed)
    add("ddp", label, "received_bytes", payload and payload + 4 * 93, "B", **place)
    add("ddp", label, "bytes_per_step_with_warm_up", 20 * payload, "B", **place)
    for seed in seeds:
        shift = np.random.default_rng(seed).normal(1, 0.001)
        of = place | {"seed": seed}
        for metric, seconds in (
            ("max_wait", longest),
            ("mean_wait", mean),
            ("compute_time", compute),
            ("compress_time", compress),
            ("step_time", mean + compute + compress + 0.001),
        ):
            add("ddp", label, metric, seconds * shift, "s", **of)
            if "wait" in metric:
                add("ddp", label, f"warm_{metric}", 0.9 * seconds * shift, "s", **of)
        ends = ("final_accuracy", "judged_accuracy")
        _accuracies(add, "ddp", label, accuracy, seed, 2800, 0.03, of, ends)
    if label != "centralised":
        add("ddp_seeds", label, "live_difference", 0, seed=1, round=20, **place)
    for seed in SEEDS:
        of = place | {"seed": seed, "evidence": "simulated"}
        _accuracies(add, "ddp_seeds", label, accuracy, seed, 2800, 0.03, of)


def _accuracies(
    add,
    experiment: str,
    label: str,
    final: float,
    seed: int,
    rounds: int,
    step_s: float,
    of: dict,
    ends: tuple[str, ...] = ("final_accuracy",),
) -> None:
    own = np.random.default_rng([seed, len(label)]).normal(0, 0.02)
    shift = np.random.default_rng(seed).normal(0, 0.05)  # the same for all of a seed
    of = of | {"seed": seed}
    for step in range(1, 11):
        at = step * rounds // 10
        value = final + shift + own - 6 * (math.exp(-step / 2) - math.exp(-5))
        add(experiment, label, "test_accuracy", value, "%", round=at, time_s=at * step_s, **of)
    for end in ends:
        add(experiment, label, end, final + shift + own, "%", **of)
