"""Round times for the report's form: the matrix's curves over bandwidth, with more points wherever
a straight line between two of them would mislead."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd

from slowlink.testbed.matrix import Cluster, Method, best_round
from slowlink.testbed.results import Row, coordinates, row_of
from slowlink.testbed.training import device
from slowlink.testbed.training.device import Device
from slowlink.testbed.training.pipeline import Layers, layers
from slowlink.testbed.training.recipe import Part
from slowlink.workflow.experiment import Bench
from slowlink.workflow.matrix.ranking import EVEN
from slowlink.workflow.matrix.rounds import clusters, methods_of

SHOWN = ("round", "compress", "exchange")
"""Times behind the form."""

BENT = 0.02
"""Points are added where the line between two may be off by more."""

MOST = 64
"""Workers; larger clusters, whose simulation takes seconds, keep the matrix's own bandwidths."""

Times = Sequence[float]


def timed_curves(bench: Bench, cells: pd.DataFrame, halvings: int) -> Iterator[Row]:
    """Round times with their parts over bandwidth, of workers that are all alike; a failed row
    where a method cannot run.

    Parameters
    ----------
    bench: with the settings of the matrix.
    cells: results of its experiment ``cells``.
    """
    settings = bench.settings
    machine = device.profile(settings.device)
    found = settings.found()
    methods = {label: methods_of(label, system) for label, system in found.items()}
    tensors = {name: layers(Part(name=name)) for name in settings.models}
    alike = [cluster for speeds, cluster in clusters(settings) if speeds == EVEN]
    networks = {(cluster.kind, cluster.workers): cluster for cluster in alike}
    metrics = [f"{part}_time" for part in SHOWN]
    keys = ["method", "network", "model", "workers"]
    at = coordinates(cells[cells["experiment"] == "cells"])
    at = at[at["speeds"] == EVEN]
    done = at[(at["status"] == "ok") & at["metric"].isin(metrics)]
    known = done.pivot(index=[*keys, "bandwidth"], columns="metric", values="value")[metrics]
    for key, curve in known.groupby(level=keys):
        label, network, model, workers = key
        timed = partial(
            _times,
            methods[label],
            tensors[model],
            networks[network, workers],
            machine,
            settings.models[model],
        )
        points = {
            index[-1]: tuple(times)
            for index, times in zip(curve.index, curve.to_numpy(), strict=True)
        }
        full = refined(points, timed, halvings) if workers <= MOST else points
        added = len(full) - len(points)
        bench.say(f"{label}, {model}, {workers} workers, {network}: {added} points more")
        row = partial(
            bench.row,
            unit="s",
            case=label,
            at=dict(method=label, network=network, speeds=EVEN),
            model=model,
            workers=workers,
            device=settings.device,
            evidence="simulated",
        )
        for bandwidth, times in sorted(full.items()):
            for metric, value in zip(metrics, times, strict=True):
                yield row(metric, value, bandwidth=bandwidth)
    failed = at[at["status"] == "failed"].drop_duplicates(keys)
    for cell in cells.loc[failed.index].to_dict("records"):
        yield row_of(cell, experiment=bench.experiment)


def between(curve: Mapping[float, Sequence[float]], bandwidth: float) -> np.ndarray:
    """Times at a bandwidth from those at others: straight lines over 1 / bandwidth, along which
    messages of fixed bytes grow."""
    known = sorted(curve)
    right = min(max(bisect_left(known, bandwidth), 1), len(known) - 1)
    low, high = known[right - 1], known[right]
    share = (1 / bandwidth - 1 / high) / (1 / low - 1 / high)
    return share * np.asarray(curve[low]) + (1 - share) * np.asarray(curve[high])


def refined(
    points: Mapping[float, Times], timed: Callable[[float], Times], halvings: int
) -> dict[float, Times]:
    """Times by bandwidth with further points where lines between those given would mislead, and
    without those that lines tell.

    A round is the longest of many chains of steps, each of which grows along a line over
    1 / bandwidth: it is convex over that, and between two points not below the lines through
    their neighbours. Where these and the line between the two part, the round is timed.
    """
    full = dict(points)

    def split(low: float, high: float, halvings: int) -> None:
        middle = math.sqrt(low * high)
        if halvings and _unsure(full, middle):
            full[middle] = timed(middle)
            split(low, middle, halvings - 1)
            split(middle, high, halvings - 1)

    for low, high in pairwise(sorted(points)):
        split(low, high, halvings)
    for bandwidth in sorted(full)[1:-1]:
        others = {b: times for b, times in full.items() if b != bandwidth}
        if np.allclose(between(others, bandwidth)[0], full[bandwidth][0], rtol=BENT / 10):
            full = others
    return full


def _unsure(curve: Mapping[float, Times], bandwidth: float) -> bool:
    """Whether lines through neighbours tell another round time than the line between."""
    known = sorted(curve)
    right = bisect_left(known, bandwidth)
    sides = (known[right - 2 : right] if right >= 2 else [], known[right : right + 2])
    guesses = [between({b: curve[b] for b in side}, bandwidth)[0] for side in sides if side[1:]]
    line = between(curve, bandwidth)[0]
    return not guesses or abs(line - max(guesses)) > BENT * line


def _times(
    methods: Sequence[Method],
    tensors: Layers,
    cluster: Cluster,
    machine: Device,
    batch: int,
    bandwidth: float,
) -> Times:
    there = replace(cluster, bandwidth=bandwidth)
    _, made = best_round(methods, tensors, there, machine, batch)
    return tuple(getattr(made, f"{part}_s") for part in SHOWN)
