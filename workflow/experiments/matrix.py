"""The matrix: what a round costs in every cell, and how many rounds training needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial

import numpy as np

from testbed import matrix
from testbed.results import Row, Scale
from testbed.training import device, train
from testbed.training.datasets import load_dataset
from testbed.training.pipeline import layers
from testbed.training.recipe import Part
from testbed.training.summary import arrival
from workflow.recipes.matrix import Matrix

Say = Callable[[str], None]

PARTS = {
    "round_time": ("round_s", "s"),
    "compute_time": ("compute_s", "s"),
    "compress_time": ("compress_s", "s"),
    "exchange_time": ("exchange_s", "s"),
    "wait_time": ("wait_s", "s"),
    "bytes_per_round": ("sent_bytes", "B"),
    "wan_bytes": ("wan_bytes", "B"),
    "scaling_efficiency": ("scaling_efficiency", "1"),
}


def rows(recipe: Matrix, scale: Scale, experiment: str, say: Say = print) -> Iterator[Row]:
    """Rows of a job for the one method that ``recipe`` has: ``cells/…`` or ``training/…``."""
    (label,) = recipe.found()
    jobs = {"cells": cells, "training": training}
    yield from jobs[experiment.partition("/")[0]](recipe, label, scale, say)


def cells(recipe: Matrix, label: str, scale: Scale, say: Say = print) -> Iterator[Row]:
    """What a round costs, for every model on every cluster; failed rows where it cannot run."""
    method, machine = recipe.method(label), device.profile(recipe.device)
    played = not matrix.in_lockstep(method.synchronization)
    tensors = {name: layers(Part(name=name)) for name in recipe.models}
    for where, cluster in recipe.clusters():
        say(f"{label}: {cluster.workers} workers, {where}, {cluster.bandwidth / 1e6:g} Mbit/s")
        for model, batch in recipe.models.items():
            row = partial(
                Row,
                paper=recipe.paper,
                experiment="cells",
                case=label,
                variant=where,
                exchange=method.exchange.name,
                compression=method.levels[-1].up.name,
                synchronization=method.synchronization.name,
                fusion=method.fusion.name,
                model=model,
                workers=cluster.workers,
                bandwidth=cluster.bandwidth,
                scale=scale,
                device=recipe.device,
                evidence="simulated",
            )
            try:
                if played and cluster.workers > recipe.most_played:
                    raise ValueError(
                        "what sends changes or looks at the clock is not played with more than "
                        f"{recipe.most_played} workers"
                    )
                made = matrix.time_round(method, tensors[model], cluster, machine, batch)
            except ValueError as error:
                reason = str(error)
                yield row(metric="round_time", unit="s", status="failed", reason=reason)
                continue
            for metric, (name, unit) in PARTS.items():
                if metric != "wan_bytes" or cluster.kind == "sites":
                    yield row(metric=metric, value=getattr(made, name), unit=unit)


def training(recipe: Matrix, label: str, scale: Scale, say: Say = print) -> Iterator[Row]:
    """Curves of the best learning rate of the grid, what they arrive at, and the whole grid."""
    how = recipe.training
    load = lru_cache(maxsize=1)(load_dataset)  # all runs have the same data
    tried: dict[float, float] = {}
    for lr in how.grid:
        run = recipe.run(label, lr, how.tuning_seed, how.tuning_rounds, scale, "tuning")
        curve = list(train(run, say, load))
        (final,) = (
            row
            for row in arrivals(curve, how.target, how.tuning_rounds, how.window)
            if row.metric == "final_accuracy"
        )
        tried[lr] = final.value if final.status == "ok" else -math.inf
        yield final.model_copy(update=dict(variant=f"lr={lr:g}"))
    best = max(tried, key=tried.__getitem__)
    say(f"{label}: learning rate {best:g}")
    curves: list[Row] = []
    for seed in how.seeds:
        run = recipe.run(label, best, seed, how.most_rounds, scale, "training")
        curves += until_target(train(run, say, load), how.target, how.rounds, how.window)
    yield from curves
    chosen = dict(metric="chosen_lr", value=best, unit="1", evidence="computed", seed=-1)
    yield _summary(curves[0], **chosen, status="ok", reason="")
    yield from arrivals(curves, how.target, how.rounds, how.window)


def until_target(run: Iterable[Row], target: float, rounds: int, window: int) -> Iterator[Row]:
    """The evaluations of ``run`` until it has had ``rounds`` and reached the target (%)."""
    seen: list[float] = []
    for row in run:
        if row.round < 0 and row.status == "ok":
            continue
        yield row
        if row.metric == "test_accuracy":
            seen.append(row.value)
        # The last row of an evaluation: nothing more is trained.
        enough = row.metric == "bytes_sent" and row.round >= rounds
        if enough and arrival(np.array(seen), target, window) is not None:
            return


def arrivals(curves: Sequence[Row], target: float, rounds: int, window: int) -> Iterator[Row]:
    """The accuracy at ``rounds``, and the round that reached the target (%), a row a seed.

    A policy whose rounds come several at a time is judged at its first evaluation from ``rounds``
    on. What diverges later keeps what it had reached.
    """
    by_seed: dict[int, list[Row]] = {}
    for row in curves:
        if row.metric == "test_accuracy":
            by_seed.setdefault(row.seed, []).append(row)
    for points in by_seed.values():
        broken = next((point for point in points if point.status == "failed"), None)
        points = [point for point in points if point.status == "ok"]
        values = np.array([point.value for point in points])
        judged = next((i for i, point in enumerate(points) if point.round >= rounds), None)
        if judged is None and broken is None:
            judged = len(points) - 1
        if judged is None:
            yield _summary(broken, metric="final_accuracy", unit="%")
        else:
            value = float(values[: judged + 1][-window:].mean())
            done = dict(metric="final_accuracy", value=value, unit="%", round=points[judged].round)
            yield _summary(points[judged], **done)
            goal = dict(metric="target_accuracy", value=target, unit="%", evidence="computed")
            yield _summary(points[judged], **goal)
        done = dict(metric="rounds_to_target", unit="rounds")
        at = arrival(values, target, window) if points else None
        if at is not None:
            at_round = np.interp(at, np.arange(len(points)), [point.round for point in points])
            yield _summary(points[-1], **done, value=float(at_round))
        elif broken is not None:
            yield _summary(broken, **done)
        else:
            reason = f"never reached {target:g} % within {points[-1].round} rounds"
            failed = dict(status="failed", reason=reason, value=math.nan)
            yield _summary(points[-1], **done, **failed)


def _summary(point: Row, **fields) -> Row:
    return point.model_copy(update=dict(round=-1, time_s=math.nan) | fields)
