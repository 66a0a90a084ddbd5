"""Whether who is first in a cell stays first if prices are off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

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
class Timed:
    """Methods that are compared in a cell: on what, and their seconds there, of a round and to
    where they are compared."""

    methods: Mapping[str, list[Method]]
    layers: Layers
    batch: int
    round_s: Mapping[str, float]
    seconds: Mapping[str, Estimate]

    def ahead(self, leader: str, cluster: Cluster, machine: Device) -> tuple[str, float]:
        """Who is first on another cluster or device, and how many times as long as they the
        ``leader`` then takes; the leader itself and 1 where none is surely faster."""
        where = self.layers, cluster, machine, self.batch

        def then(label: str, round_s: float) -> Estimate:
            one, times = self.seconds[label], round_s / self.round_s[label]
            return Estimate.of(times * (one.mean if one.by_seed is None else one.by_seed))

        def made(label: str) -> Estimate:
            return then(label, best_round(self.methods[label], *where)[1].round_s)

        found = {leader: made(leader)}
        for label in self.seconds:
            # No price that is off by a factor changes a round by more than that.
            near = self.seconds[label].mean <= OFF * self.seconds[leader].mean
            if label == leader or not near:
                continue
            if then(label, self._least_s(label, *where)).mean < found[leader].mean:
                found[label] = made(label)
        ahead = first(found)
        if leader in ahead:
            return leader, 1.0
        return ahead[0], found[leader].mean / found[ahead[0]].mean

    def _least_s(self, label: str, *where: Any) -> float:
        """What a round takes at least, by any of the exchanges that can carry it."""
        found = []
        for method in self.methods[label]:
            with suppress(ValueError):
                found.append(least_s(method, *where))
        return min(found)


def asked(bench: Bench[Matrix], rows: pd.DataFrame, model: str) -> Iterator[Row]:
    """Who is first with each price off, in every cell of a model with even speeds: by rounds, and
    of a trained model by the time to the target.

    Parameters
    ----------
    rows: what the matrix condenses of its results.
    """
    settings, rows = bench.settings, coordinates(rows)
    machine, found = device.profile(settings.device), settings.found()
    given = layers(Part(name=model)), settings.models[model]
    times, known = metric(rows, "round_time"), qualified(rows)
    doubtful = holds_not(rows, model) if model in trained_models(rows) else set()
    for speeds, cluster in clusters(settings):
        place = cluster.kind, speeds, cluster.bandwidth
        key = (model, cluster.kind, speeds, cluster.workers, cluster.bandwidth)
        if speeds != EVEN or key not in times.index:
            continue
        round_s = times.loc[key].dropna().sort_values(kind="stable").to_dict()
        compared = {ROUND: {k: Estimate.of(s) for k, s in round_s.items() if k in known}}
        if model in trained_models(rows):
            there = times_to_target(rows, cluster.workers, model).get(place, {})
            compared[TARGET] = {k: one for k, one in there.items() if k not in doubtful}
        bench.say(f"{model}, {cluster.workers} workers, {cluster.kind}: prices off by a factor")
        for by, seconds in compared.items():
            leader, *_ = first(seconds) or [None]
            if leader is None:
                continue
            methods = {label: methods_of(label, found[label]) for label in seconds}
            timed = Timed(methods, *given, round_s, seconds)
            for change, (there, machine_there) in changes(cluster, machine).items():
                ahead, longer = timed.ahead(leader, there, machine_there)
                at = dict(method=leader, by=by, change=change, first=ahead)
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
