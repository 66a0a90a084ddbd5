"""DDS results of about the right size, for tests of its page and its claims only.

Bytes are those of the formats; times and accuracies are those of a world in which the document is
right, three runs of each.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pandas as pd

from slowlink.testbed.results import Row, frame
from slowlink.workflow import settings

# The recipe with everything as DDS prints it.
RECIPE = settings.load({"scale": "paper"}, names=False).recipes["dds"].model_dump(mode="json")
D, K = 1_199_882, 119_988
DENSE, INT8 = 4 * D, 20 + D + 4 * 1172
SPARSE, SPARSE_INT8 = 12 + 8 * K, 20 + 5 * K + 4 * 118
# Payload, B; communication time of the clients and time of a round, s; accuracy after ten, %.
MODES = {
    "fp32_dense": (DENSE, 0.5473, 0.1939, 10.4848, 98.31),
    "int8_dense": (INT8, 0.5057, 0.0920, 9.9822, 98.21),
    "fp32_sparse": (SPARSE, 0.4502, 0.0665, 9.4327, 98.12),
    "int8_sparse": (SPARSE_INT8, 0.4297, 0.0651, 9.5890, 98.17),
}
CHUNK = {"int8_dense C=8192": 20 + D + 4 * 147, "int8_sparse C=8192": 20 + 5 * K + 4 * 15}
UPLINK = {mode: values[0] for mode, values in MODES.items()} | CHUNK
# Accuracies of modes that run in one process only.
ALONE = {
    "fp32_sparse from model": 98.15,
    "int8_sparse from model": 98.20,
    "fp32_sparse EF": 98.20,
    "int8_sparse EF": 98.25,
}
PARAMETERS = [401_408, 512, 5_120, 10]
# DGC sends at most 410 pairs of 8 bytes, and in the mean somewhat less.
SPARSE_STEP = 8 * 404
# Bytes of the document's heads for a worker and step.
HEADS = {"baseline": 224, "DGC": 424, "DGC momentum": 424, "fp32": 224, "centralised": 0}
# Payload of a worker and step; longest and mean wait, computing and compressing, s; accuracy, %.
METHODS = {
    "baseline": (sum(PARAMETERS) + 24 * 4, 3.02549, 0.02554, 0.004, 0.001, 98.07),
    "DGC": (SPARSE_STEP, 0.41415, 0.02083, 0.004, 0.003, 98.11),
    "DGC momentum": (SPARSE_STEP, 0.45, 0.021, 0.004, 0.003, 98.15),
    "fp32": (4 * sum(PARAMETERS), 3.5, 0.032, 0.004, 0.0002, 98.08),
    "centralised": (0, 0.0, 0.0, 0.008, 0.0, 98.10),
}
WAYS = {"dds": 0.8, "raw dds": 1.0, "gloo": 1.4}
NON_IID = {"fp32_dense": 93.0, "int8_sparse": 88.0, "int8_sparse EF": 91.5}
SEEDS = (1, 2, 3)
APART = 0.002
"""Points, the standard deviation of what tells a method's seeds from another's: small beside any
difference that is printed."""
CODECS = {
    "fp32_dense": "identity",
    "int8_dense": "int8_blocks",
    "fp32_sparse": "sparse_fp32",
    "int8_sparse": "sparse_int8",
}
RULES = ["mean", "median", "Krum"]
ATTACKS = {"none": 89.0, "turned around": 87.0, "noise": 88.0}


def results(live: tuple[int, ...] = SEEDS) -> pd.DataFrame:
    """Every row that DDS's experiments write; ``live``: seeds of the recorded runs on real
    processes."""
    rows: list[Row] = []

    def add(experiment: str, at: dict, metric: str, value: float, unit: str = "1", **more) -> None:
        base = dict(evidence="measured", scale="desk", workers=2, dataset="mnist")
        rows.append(Row(document="dds", experiment=experiment, at=at, metric=metric,
                        value=float(value), unit=unit, **(base | more)))  # fmt: skip

    for mode, up in UPLINK.items():
        place = dict(model="mnist_cnn", evidence="computed", compression=CODECS[mode.split(" ")[0]])
        _bytes(add, "federated_bytes", mode, **place)
        add("federated_bytes", _of(mode), "downlink_bytes", 4 * D, "B", **place)
        add("federated_bytes", _of(mode), "uplink_mib", up / 2**20, **place)
        add("federated_bytes", _of(mode), "up_and_down_ratio", (up + 4 * D) / (8 * D), **place)
        if mode in CHUNK:
            _bytes(add, "federated", mode)
    for mode in MODES:
        _live(add, mode, live)
    finals = {mode: one[-1] for mode, one in MODES.items()} | ALONE
    for mode, accuracy in finals.items():
        for seed in SEEDS:
            place = dict(
                model="mnist_cnn", evidence="recorded", compression=CODECS[mode.split(" ")[0]]
            )
            _accuracies(add, "federated_seeds", _of(mode), accuracy, seed, 10, 1, **place)
    for method, values in METHODS.items():
        _data_parallel(add, method, values, live)
    for ranks, size, (way, share) in product((2, 4), (1, 16, 64), WAYS.items()):
        rate = share * 1.2 * size / (size + 2) / (1 + ranks / 8)  # GB/s
        at, place = dict(nbytes=float(size * 2**20), way=way), dict(workers=ranks, dataset="")
        add("transport", at, "time", size / 1024 * ranks / rate, "s", **place)
        add("transport", at, "throughput", rate, "GB/s", **place)
        add("transport", at, "share_of_raw", share, **place)
    for mode, (split, loss), seed in product(
        NON_IID, {"alike": 0.0, "by label": 3.0, "dirichlet 0.1": 1.0}.items(), SEEDS
    ):
        value = NON_IID[mode] - loss + np.random.default_rng(seed).normal(0, 0.8)
        add("non_iid", _of(mode) | dict(split=split), "final_accuracy", value, "%", seed=seed,
            model="mnist_cnn", evidence="simulated")  # fmt: skip
    for rule, (name, value), seed in product(RULES, ATTACKS.items(), SEEDS):
        at = dict(rule=rule, attack=name, attackers=0.0 if name == "none" else 2.0)
        spoiled = 10.0 if rule == "mean" and name != "none" else value
        add("attack", at, "final_accuracy", spoiled + seed / 10, "%", seed=seed, model="mlp",
            workers=10, evidence="simulated")  # fmt: skip
    return frame(rows)


def _of(mode: str) -> dict[str, str]:
    """The coordinates of a mode."""
    sends = "weights" if "dense" in mode else "weights_first"
    if mode.endswith(("from model", "EF")):
        sends = "change"
    return dict(mode=mode, feedback="on" if mode.endswith("EF") else "off", sends=sends)


def _bytes(add, experiment: str, mode: str, **more) -> None:
    up, place = UPLINK[mode], dict(model="mnist_cnn") | more
    add(experiment, _of(mode), "uplink_bytes", up, "B", **place)
    place |= dict(evidence="computed")
    add(experiment, _of(mode), "frame_bytes", up + 98 * math.ceil(up / 2**20), "B", **place)
    add(experiment, _of(mode), "link_bytes", up + 90 * math.ceil(up / 1400), "B", **place)


def _live(add, mode: str, seeds: tuple[int, ...]) -> None:
    _, *clients, round_s, accuracy = MODES[mode]
    _bytes(add, "federated", mode)
    # The run of a report takes twice as long, and its rounds stand where seeds do.
    for experiment, took, numbers in (("federated", 2, (1, 2)), ("federated_recorded", 1, seeds)):
        for number in numbers:
            shift = took * np.random.default_rng(number).normal(1, 0.001)
            place = dict(model="mnist_cnn", seed=number)
            place |= dict(evidence="recorded") if took == 1 else {}
            for client, seconds in enumerate(clients):
                at = _of(mode) | dict(client=float(client))
                add(experiment, at, "communication_time", seconds * shift, "s", **place)
            add(experiment, _of(mode), "round_time", round_s * shift, "s", **place)
            add(experiment, _of(mode), "train_time", 0.9 * round_s * shift, "s", **place)
    place = dict(model="mnist_cnn", evidence="recorded")
    for seed in seeds:
        shift, own = np.random.default_rng(seed).normal(1, 0.001), place | dict(seed=seed)
        alike = dict(round_time_alike=round_s * shift, round_time_sd=0.06 * round_s)
        for metric, seconds in alike.items():
            add("federated_recorded", _of(mode), metric, seconds, "s", **own)
        _accuracies(add, "federated_recorded", _of(mode), accuracy, seed, 10, round_s, **place)
    _accuracies(add, "federated", _of(mode), accuracy - 2, 1, 10, round_s, model="mnist_cnn")
    add("federated_seeds", _of(mode), "live_difference", 0, seed=1, round=2, model="mnist_cnn")


def _data_parallel(add, method: str, values: tuple, seeds: tuple[int, ...]) -> None:
    payload, longest, mean, compute, compress, accuracy = values
    at, place = dict(method=method), dict(model="mlp", workers=1 if payload == 0 else 2)
    computed = place | dict(evidence="computed")
    add("ddp", at, "bytes_per_step", payload, "B", **place)
    counted = 3 * (payload + HEADS[method])
    add("ddp", at, "bytes_counted_as_printed", counted, "B", **computed)
    add("ddp", at, "received_bytes", payload and payload + 4 * 93, "B", **place)
    ends = ("final_accuracy",)
    # The run of a report takes twice as long.
    for experiment, took, numbers in (("ddp", 2, (1,)), ("ddp_recorded", 1, seeds)):
        place |= dict(evidence="recorded") if took == 1 else {}
        ends += ("judged_accuracy",) if took == 1 else ()
        for seed in numbers:
            shift, own = took * np.random.default_rng(seed).normal(1, 0.001), dict(seed=seed)
            doing = dict(max_wait=longest, mean_wait=mean)
            doing |= dict(compute_time=compute, compress_time=compress)
            doing |= dict(step_time=mean + compute + compress + 0.001)
            for metric, seconds in doing.items():
                add(experiment, at, metric, seconds * shift, "s", **place | own)
                if "wait" in metric:
                    warm = 0.9 * seconds * shift
                    add(experiment, at, f"warm_{metric}", warm, "s", **place | own)
            _accuracies(add, experiment, at, accuracy, seed, 2800, 0.03, ends, **place)
    place |= dict(evidence="measured")
    add("ddp", at, "live_difference", 0, seed=1, round=20, **place)


def _accuracies(
    add,
    experiment: str,
    at: dict[str, str],
    final: float,
    seed: int,
    rounds: int,
    step_s: float,
    ends: tuple[str, ...] = ("final_accuracy",),
    **place,
) -> None:
    label = at.get("mode") or at["method"]
    own = np.random.default_rng([seed, len(label)]).normal(0, APART)
    final += np.random.default_rng(seed).normal(0, 0.05) + own  # the first is all of a seed's
    for step in range(1, 11):
        round_ = step * rounds // 10
        value = final - 6 * (math.exp(-step / 2) - math.exp(-5))
        add(experiment, at, "test_accuracy", value, "%", round=round_, time_s=round_ * step_s,
            seed=seed, **place)  # fmt: skip
    for end in ends:
        add(experiment, at, end, final, "%", seed=seed, **place)
