"""LPSP results of about the right size, for tests of the report only.

Times and accuracies of training are those of a world in which the document is right.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pandas as pd

from testbed.results import Row, frame
from workflow import settings

# The recipe with everything as LPSP prints it.
RECIPE = settings.load({"scale": "paper"}, names=False).recipes["lpsp"].model_dump(mode="json")
POLICY = {"BSP": "bsp", "ASP": "asp", "SSP": "ssp", "GSSP": "gssp", "MLL-SGD": "mll_sgd"}
POLICY["GSSP static"] = "gssp"
TIMES, H, C = (1.8, 3.6, 2.5, 1.5), 3, 0.5
# The schedules of §1: members' iterations, arrival of each, and when it is decided.
SCHEDULES = {
    "BSP": [([3, 3, 3, 3], [5.4, 10.8, 7.5, 4.5], 10.8)],
    "drawn": [([2, 1], [3.6, 3.6], 3.6), ([2, 3], [5.0, 4.5], 5.0),
              ([2, 1, 1], [7.7, 7.7, 8.0], 8.0)],
    "Algorithm 1": [([2, 1], [3.6, 3.6], 4.5), ([2, 3], [5.0, 4.5], 8.6),
                    ([2, 1], [8.6, 8.6], 13.6)],
    "on arrival": [([2, 1], [3.6, 3.6], 3.6), ([2, 3], [5.0, 4.5], 5.0),
                   ([2, 1], [7.7, 7.7], 7.7)],
}  # fmt: skip
# Iterations a second over BSP's, wait for a decision in s, members of n, local iterations.
WAITING = {
    "BSP": (1.0, 1.2, 1.0, 3.0),
    "ASP": (1.43, 0.0, 0.0, 3.0),
    "SSP": (1.01, 1.1, 0.0, 3.0),
    "GSSP": (1.2, 0.6, 0.0, 3.0),
    "GSSP static": (1.08, 0.9, 0.0, 3.0),
    "MLL-SGD": (1.1, 0.8, 0.4, 3.0),
    "LPSP": (0.85, 1.6, 0.4, 2.3),
    "p_min=1": (0.8, 1.5, 0.4, 1.6),
    "p_min=3": (1.2, 0.7, 0.9, 3.2),
    "s=0": (1.28, 0.3, 0.1, 2.3),
    "s=0.4": (0.82, 1.7, 0.5, 2.3),
    "s=10": (1.05, 1.1, 1.0, 2.5),
    "mean-normalised": (0.8, 1.6, 0.4, 2.8),
    "limit over all": (0.84, 1.6, 0.4, 2.3),
    "decided on arrival": (1.1, 0.6, 0.3, 2.3),
    "mean-normalised, cap 6": (0.8, 1.6, 0.4, 2.9),
}
METHODS = ["BSP", "ASP", "SSP", "GSSP", "GSSP static", "MLL-SGD", "LPSP"]
VARIANTS = {
    "fixed": 1.0,
    "jitter": 1.1,
    "varying": 1.15,
    "trace": 1.1,
    "no communication": 1.02,
    "constant 0.5 s": 0.97,
    "slow server": 0.8,
}
# Times to the target over LPSP's with 12 workers, then with 16; accuracies in %; oscillation.
MNIST = {
    "LPSP": (1.0, 1.05, 99.06, 0.05),
    "SSP": (0.98, 0.9, 98.52, 0.50),
    "MLL-SGD": (1.4, 1.5, 98.80, 0.07),
    "GSSP": (1.7, 2.26 * 1.05, 98.65, 0.45),
    "BSP": (2.17, 1.9, 98.93, 0.06),
    "ASP": (1.1, 1.1, 98.40, 0.60),
}
STATIC = {"GSSP static": (1.8, 2.0, 98.60, 0.3)}
CIFAR = {
    "LPSP": (1.0, 1.03, 65.25, 0.3),
    "MLL-SGD": (1.3, 1.1, 63.5, 0.4),
    "SSP": (1.5, 1.3, 60.11, 1.5),
    "BSP": (1.7, 1.6, 64.0, 0.4),
    "GSSP": (1.87, 1.75 * 1.03, 61.5, 1.2),
    "ASP": (1.2, 1.1, 61.0, 1.8),
    "p_min=1": (1.2, 1.2, 64.5, 0.4),
    "p_min=3": (1.5, 1.5, 63.0, 0.8),
    "s=0": (1.02, 1.0, 64.8, 0.6),
    "s=0.4": (1.2, 1.2, 65.0, 0.3),
    "s=10": (1.6, 1.6, 64.2, 0.3),
}
# What is trained at which scale.
SIZES = {
    "paper": {"mnist": [8, 12, 16], "cifar10": [8, 12, 16]},
    "desk": {"mnist": [12, 16], "cifar10": [12]},
}
SIZES["smoke"] = SIZES["desk"]
SEEDS = DRAWS = (1, 2, 3)


def results(scale: str = "desk") -> pd.DataFrame:
    """Every row that LPSP's experiments write, but for those of Ray."""
    rows: list[Row] = []

    def add(experiment: str, case: str, metric: str, value: float, unit: str = "1", **more) -> None:
        base = {"evidence": "simulated", "scale": scale}
        rows.append(Row(paper="lpsp", experiment=experiment, case=case, metric=metric,
                        value=float(value), unit=unit, **(base | more)))  # fmt: skip

    _example(add)
    for n in RECIPE["waiting"]["workers"]:
        _waiting(add, n)
        _bound(add, n)
    limit = 2.5 * math.log(2.5) / 1.5
    add("bound", "many workers", "removable", limit, variant="limit", evidence="computed")
    for model in ("lenet5", "cnn3"):
        for metric, value, unit in (
            ("one_by_one", 0.08, "s"),
            ("channels_last", 0.05, "s"),
            ("vmap", 0.04, "s"),
            ("gain", 2, "1"),
        ):
            add("batching", model, metric, value, unit, variant="n=8 batch=16", model=model,
                workers=8, evidence="measured")  # fmt: skip
    for label, part in RECIPE["methods"].items():
        for metric, value, unit in (
            ("iterations_per_s", 30, "1/s"),
            ("waiting_share", 20, "%"),
            ("staleness", 1, "1"),
            ("final_accuracy", 90, "%"),
            ("replayed", 100, "%"),
            ("events", 500, "1"),
        ):
            add("ray", label, metric, value, unit, workers=4, evidence="recorded",
                synchronization=part["name"])  # fmt: skip
    for n in SIZES[scale]["mnist"]:
        _training(add, "mnist", n, MNIST)
    for n in SIZES[scale]["cifar10"]:
        _training(add, "cifar10", n, CIFAR)
    controls = RECIPE["controls"]
    _training(add, "control_static", controls["workers"], STATIC)
    for experiment, control in controls["experiments"].items():
        if experiment == "control_static":
            continue
        of = {name: MNIST[name] for name in control["cases"]}
        _training(add, experiment, controls["workers"], of)
    return frame(rows)


def _example(add) -> None:
    for worker, seconds in enumerate(TIMES, 1):
        add("example", "BSP", "local_time", H * seconds, "s", variant=f"w{worker}", workers=4,
            evidence="computed")  # fmt: skip
    for case, meetings in SCHEDULES.items():
        for number, (work, arrived, decided) in enumerate(meetings, 1):
            for metric, value, unit in (
                ("sync_point", max(arrived), "s"),
                ("decided", decided, "s"),
                ("sync_wait", sum(max(arrived) - t for t in arrived), "s"),
                ("delay", sum(decided - t for t in arrived), "s"),
                ("members", len(work), "1"),
            ):
                add("example", case, metric, value, unit, variant=str(number), workers=4)
        waits = sum(max(at) - t for _, at, _ in meetings for t in at)
        delays = sum(decided - t for _, at, decided in meetings for t in at)
        add("example", case, "total_wait", waits, "s", workers=4)
        add("example", case, "total_delay", delays, "s", workers=4)
        add("example", case, "iterations", sum(map(sum, (m[0] for m in meetings))), workers=4)
        for worker, seconds in enumerate(TIMES, 1):
            _spans(add, "example", f"{case} w{worker}", seconds, 3)


def _spans(add, experiment: str, case: str, seconds: float, rounds: int) -> None:
    """Compute, wait, push and pull, over and over."""
    t = 0.0
    for number in range(1, rounds + 1):
        parts = {"compute": H * seconds, "wait": 0.4, "push": C / 2, "pull": C / 2}
        for kind, lasts in parts.items():
            add(experiment, case, "begin", t, "s", variant=f"{kind} {number}")
            add(experiment, case, "end", t + lasts, "s", variant=f"{kind} {number}")
            t += lasts


def _waiting(add, n: int) -> None:
    ablated = n == RECIPE["cifar10"]["ablated_workers"]
    labels = [label for label in WAITING if ablated or label in METHODS]
    for label, (variant, factor) in product(labels, VARIANTS.items()):
        over, delay, share, local = WAITING[label]
        over = 1.0 if label == "BSP" else over * factor ** (label in ("SSP", "LPSP"))
        size = max(1.0, share * n)
        for draw in DRAWS:
            place = {"variant": variant, "model": "lenet5", "workers": n, "seed": draw}
            place["synchronization"] = POLICY.get(label, "lpsp")
            vary = 1 if label == "BSP" else np.random.default_rng([n, draw]).normal(1, 0.005)
            for metric, value, unit in (
                ("iterations_per_s", 1.2 * n * over * vary, "1/s"),
                ("over_bsp", over * vary, "1"),
                ("waiting_share", 25 * delay, "%"),
                ("sync_wait", 0.3 * delay, "s"),
                ("delay", delay, "s"),
                ("staleness", 0 if size == n else (n - 1) / size, "1"),
                ("staleness_max", 0 if size == n else 3 * n / size, "1"),
                ("local_iterations", local, "1"),
                ("meeting_size", size, "1"),
                ("sync_interval", 2.0 * size / n, "s"),
            ):
                add("waiting", f"{label} on {n}", metric, value, unit, **place)
    for label in labels:
        stale = 1 if WAITING[label][2] == 1 else 6
        shares = np.exp(-0.5 * np.arange(stale))
        for value, share in enumerate(100 * shares / shares.sum()):
            add("staleness", f"{label} on {n}", "share", share, "%", variant=str(value), workers=n,
                model="lenet5")  # fmt: skip
    if n == RECIPE["waiting"]["shown"]:
        for label, worker in product(METHODS, range(1, n + 1)):
            _spans(add, "gantt", f"{label} w{worker}", 0.5 + worker / n / 2, 3)


def _bound(add, n: int) -> None:
    place = {"workers": n, "evidence": "computed"}
    for draw in DRAWS:
        value = 1.45 + np.random.default_rng([n, draw]).normal(0, 0.08)
        for variant in ("", "trained"):
            add("bound", f"{n} workers", "removable", value, seed=draw, variant=variant, **place)
    several = {"5 %": 1.25, "50 %": 1.45, "95 %": 1.64, "99.9 %": 1.85, "highest": 1.98}
    several["supremum"] = 1 / n + 2.5 * (n - 1) / n
    for variant, value in several.items():
        add("bound", f"{n} workers", "removable", value, variant=variant, **place)
    for ratio, share in ((1.75, 0.8), (1.87, 0.1), (2.17, 0.0), (2.26, 0.0)):
        add("bound", f"{n} workers", "share", share, "%", variant=f"at least {ratio}", **place)


def _training(add, experiment: str, n: int, methods: dict[str, tuple]) -> None:
    data = "cifar10" if experiment == "cifar10" else "mnist"
    seconds, target = RECIPE[data]["seconds"], RECIPE[data]["target"]
    window = RECIPE[data]["window"]
    for label, (at_12, at_16, final, swing) in methods.items():
        if "=" in label and n != RECIPE["cifar10"]["ablated_workers"]:
            continue
        reached = 0.3 * seconds * (at_16 if n == 16 else at_12) * (1.1 if n == 8 else 1)
        for seed in SEEDS:
            shift = np.random.default_rng(seed).normal(0, 0.01)  # the same for all of a seed
            own = np.random.default_rng([n, seed, len(label)]).normal(0, 0.001)
            place = {"seed": seed, "workers": n, "dataset": data, "evidence": "measured",
                     "model": RECIPE[data]["model"]["name"], "exchange": "parameter_server",
                     "compression": "identity",
                     "synchronization": POLICY.get(label, "lpsp")}  # fmt: skip
            case = f"{label} on {n}"
            for step in range(0, 41, 2):
                t = seconds * step / 40
                wave = swing * (-1) ** (step // 2)
                value = final * (1 - math.exp(-4 * t / reached)) + wave
                at = place | {"round": 10 * step, "time_s": t}
                add(experiment, case, "test_accuracy", min(max(value, 0), 100), "%", **at)
                add(experiment, case, "test_loss", 2.3 * math.exp(-3 * t / reached), "", **at)
                add(experiment, case, "bytes_sent", 1e6 * step, "B", **at)
            simulated = place | {"evidence": "simulated"}
            add(experiment, case, "staleness", WAITING[label][1], **simulated)
            add(experiment, case, "mean_round_time", 1.0, "s", **simulated)
            add(experiment, case, "final_accuracy", final + shift + own, "%", **place)
            add(experiment, case, "target_accuracy", target, "%", **place)
            add(experiment, case, "oscillation", swing + shift / 10, "%", **place)
            add(experiment, case, "rounds", 400 / window, "rounds", **place)
            add(experiment, case, "time_to_target", reached * (1 + shift + own), "s", **simulated)
