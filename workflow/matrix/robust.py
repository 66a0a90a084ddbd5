"""Whether who is first in a cell stays first if prices are off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

import pandas as pd

from slowlink.methods.compression import Compressor
from slowlink.reports.evidence import Estimate
from slowlink.testbed.matrix import Cluster, Method, best_round, least_s
from slowlink.testbed.results import Row, coordinates
from slowlink.testbed.training import device
from slowlink.testbed.training.device import Device
from slowlink.testbed.training.pipeline import Layers, layers
from slowlink.testbed.training.recipe import Part
from slowlink.workflow.experiment import Bench
from slowlink.workflow.matrix.ranking import (
    EVEN,
    duration,
    first,
    holds_not,
    metric,
    qualified,
    times_to_target,
    trained_models,
)
from slowlink.workflow.matrix.rounds import clusters, methods_of

if TYPE_CHECKING:
    from slowlink.workflow.matrix.experiments import Matrix

OFF = 2.0
"""By so many times what coding and latency cost may be off, and bandwidth by less."""
ROUND, TARGET = "round", "target"
"""Who is first: by the time of a round, or by that to the target."""


class Dearer(Device):
    """A device on which coding costs so many ``times`` as much."""

    times: float

    def encode_s(self, codec: Compressor, nbytes: float) -> float:
        return self.times * super().encode_s(codec, nbytes)

    def decode_s(self, codec: Compressor, nbytes: float) -> float:
        return self.times * super().decode_s(codec, nbytes)


def changes(cluster: Cluster, machine: Device) -> dict[str, tuple[Cluster, Device]]:
    """The cluster and the device with one price off, by what is."""

    def slower(times: float) -> Cluster:
        latency, wan = times * cluster.latency, times * cluster.wan_latency
        return replace(cluster, latency=latency, wan_latency=wan)

    def dearer(times: float) -> Device:
        return Dearer(**machine.model_dump(), times=times)

    def faster(times: float) -> Cluster:
        return replace(cluster, bandwidth=times * cluster.bandwidth)

    return {
        "coding twice as dear": (cluster, dearer(OFF)),
        "coding half as dear": (cluster, dearer(1 / OFF)),
        "latency twice as long": (slower(OFF), machine),
        "latency half as long": (slower(1 / OFF), machine),
        "bandwidth 20 % higher": (faster(1.2), machine),
        "bandwidth 20 % lower": (faster(0.8), machine),
    }


@dataclass(frozen=True)
class Rounds:
    """Rounds of methods somewhere, each timed once: on each exchange that may carry it."""

    methods: Mapping[str, list[Method]]
    where: tuple[Layers, Cluster, Device, int]
    timed: dict[str, float] = field(default_factory=dict)

    def seconds(self, label: str) -> float:
        if label not in self.timed:
            self.timed[label] = best_round(self.methods[label], *self.where)[1].round_s
        return self.timed[label]

    def least_s(self, label: str) -> float:
        """What a round takes at least, without timing it anew."""
        if label in self.timed:
            return self.timed[label]
        found = []
        for method in self.methods[label]:
            with suppress(ValueError):
                found.append(least_s(method, *self.where))
        return min(found)


def ahead(
    leader: str, seconds: Mapping[str, Estimate], round_s: Mapping[str, float], there: Rounds
) -> tuple[str, float]:
    """Who is first elsewhere, and how many times as long as they the ``leader`` then takes; the
    leader itself and 1 where none is surely faster.

    Parameters
    ----------
    seconds: by method, what is compared here: of a round, or of all to the target. round_s: of a
        round.
    there: where prices are off by :data:`OFF` at most.
    """

    def then(label: str, anew_s: float) -> Estimate:
        one, times = seconds[label], anew_s / round_s[label]
        return duration(times * (one.mean if one.by_seed is None else one.by_seed))

    found = {leader: then(leader, there.seconds(leader))}
    for label, one in seconds.items():
        # No price that is off by a factor changes a round by more than that.
        if label == leader or one.mean > OFF * seconds[leader].mean:
            continue
        if then(label, there.least_s(label)).mean < found[leader].mean:
            found[label] = then(label, there.seconds(label))
    faster = first(found)
    if leader in faster:
        return leader, 1.0
    return faster[0], found[leader].mean / found[faster[0]].mean


def asked(bench: Bench[Matrix], rows: pd.DataFrame, model: str) -> Iterator[Row]:
    """Who is first with each price off, in every cell of a model with even speeds: by rounds, and
    of a trained model by the time to the target.

    Parameters
    ----------
    rows: what the matrix condenses of its results.
    """
    settings, rows = bench.settings, coordinates(rows)
    machine, found = device.profile(settings.device), settings.found()
    sizes = layers(Part(name=model))
    times, known = metric(rows, "round_time"), qualified(rows, model)
    trained = model in trained_models(rows)
    doubtful = holds_not(rows, model) if trained else set()
    to_target = cache(lambda workers: times_to_target(rows, workers, model))
    for speeds, cluster in clusters(settings):
        place = cluster.kind, speeds, cluster.bandwidth
        key = (model, cluster.kind, speeds, cluster.workers, cluster.bandwidth)
        if speeds != EVEN or key not in times.index:
            continue
        round_s = times.loc[key].dropna().sort_values(kind="stable").to_dict()
        compared = {ROUND: {k: Estimate.of(s) for k, s in round_s.items() if k in known}}
        if trained:
            known_there = to_target(cluster.workers).get(place, {})
            compared[TARGET] = {k: s for k, s in known_there.items() if k not in doubtful}
        bench.say(f"{model}, {cluster.workers} workers, {cluster.kind}: prices off by a factor")
        leaders = {by: first(seconds)[:1] for by, seconds in compared.items()}
        methods = {label: methods_of(label, found[label]) for label in round_s}
        for change, (other, device_there) in changes(cluster, machine).items():
            there = Rounds(methods, (sizes, other, device_there, settings.models[model]))
            for by, leader in ((by, label) for by, labels in leaders.items() for label in labels):
                faster, longer = ahead(leader, compared[by], round_s, there)
                at = dict(method=leader, by=by, change=change, first=faster)
                yield bench.row(
                    "times_the_best",
                    longer,
                    "1",
                    case=change,
                    at=at | dict(network=cluster.kind, speeds=speeds),
                    model=model,
                    workers=cluster.workers,
                    bandwidth=cluster.bandwidth,
                    device=settings.device,
                    evidence="simulated",
                )
