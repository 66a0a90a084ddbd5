"""Advice on one's own numbers: a model, a device and a cluster from files, how far a round may be
off by what was measured, and below which rate a codec is worth it."""

from __future__ import annotations

import argparse
import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slowlink.testbed import matrix, units
from slowlink.testbed.cache import cached, sources
from slowlink.testbed.matrix import Method, Round, best_round, in_lockstep, time_round
from slowlink.testbed.network import cluster as clusters
from slowlink.testbed.terminal import show
from slowlink.testbed.training import device, models, own
from slowlink.testbed.training.device import Device
from slowlink.testbed.training.pipeline import Layers, layers
from slowlink.testbed.training.recipe import Level, Part
from slowlink.workflow.matrix.rounds import methods_of
from slowlink.workflow.matrix.systems import DENSE, SITES, System, coded
from slowlink.workflow.named import ROOT

if TYPE_CHECKING:
    from slowlink.workflow.matrix.experiments import Matrix

PLAYED = "looks at the clock"

ENDS = ("fast", "slow")

SPAN = 1e6, 1e12
"""bit/s between which a codec's break-even is looked for."""

STRIDE = 8.0
"""By so many times rates change until a codec is worth it no more, or again."""

EXACT = 0.01
"""A break-even is told to this share of it."""


@dataclass(frozen=True)
class Asked:
    """What advice is asked about.

    ``model``, ``machine_name``: as they are called where it is given.
    """

    model: str
    tensors: Layers
    batch: int
    cluster: matrix.Cluster | clusters.Cluster
    machine: Device
    machine_name: str

    def timed(self, method: Method) -> Round:
        """A round of the method. Raises ValueError if it cannot run there."""
        return self.best([method])[1]

    def best(self, methods: Sequence[Method]) -> tuple[Method, Round]:
        """The fastest of the methods and its round, which is kept for whoever asks again.

        Raises
        ------
        ValueError
            None can run there; says why, of the first.
        """
        where = self.tensors, self.cluster, self.machine, self.batch

        def found() -> tuple[int, dict[str, Any]]:
            if len(methods) == 1:
                return 0, asdict(time_round(methods[0], *where))
            chosen, made = best_round(methods, *where)
            return methods.index(chosen), asdict(made)

        asked = hashlib.blake2b(repr((methods, where)).encode(), digest_size=16).hexdigest()
        place, made = cached(f"round {_prices()} {asked}", found)
        return methods[place], Round(**made)

    @property
    def counted(self) -> str:
        """The known model that this one is, whose rounds are its; empty if it is none."""
        if self.model not in models.MODELS:
            return ""
        shapes, its = (
            [tensor.shape for tensor in one.tensors]
            for one in (self.tensors, layers(Part(name=self.model)))
        )
        return self.model if shapes == its else ""

    @property
    def links(self) -> str:
        """Between what the links are that :attr:`rate` is of: sites, racks or workers."""
        if isinstance(self.cluster, clusters.Cluster):
            return self.cluster.slow
        return "sites" if self.cluster.kind == "sites" else "workers"

    @property
    def rate(self) -> float:
        """bit/s of the slowest link between them."""
        of_file = isinstance(self.cluster, clusters.Cluster)
        return self.cluster.slow_rate if of_file else self.cluster.bandwidth

    def with_rate(self, rate: float) -> Asked:
        """The same if that link had this rate, and its likes as many times theirs."""
        of_file = isinstance(self.cluster, clusters.Cluster)
        changed = self.cluster.with_slow(rate) if of_file else replace(self.cluster, bandwidth=rate)
        return replace(self, cluster=changed)

    def corners(self) -> dict[str, Asked]:
        """Both ends of what was measured of the device, with both of the links, by what they are;
        none where nothing has a spread."""
        machines = {end: self.machine.at(end) for end in ENDS}
        networks: dict[str, Any] = dict.fromkeys(ENDS, self.cluster)
        if isinstance(self.cluster, clusters.Cluster):
            networks = {end: self.cluster.at(end) for end in ENDS}
        made = {}
        for (computes, machine), (sends, network) in product(machines.items(), networks.items()):
            ends = {f"{computes} computing and coding": machines, f"{sends} links": networks}
            names = [name for name, both in ends.items() if both["fast"] != both["slow"]]
            made[", ".join(names)] = replace(self, machine=machine, cluster=network)
        return made if len(made) > 1 else {}


@cache
def _prices() -> str:
    """What a round depends on besides what was asked for."""
    rooms = ("methods", "testbed")
    return sources(*(file for room in rooms for file in sorted((ROOT / room).rglob("*.py"))))


# What is asked ------------------------------------------------------------------------------------


def add_options(add: Callable[..., Any]) -> None:
    """Options of the command that name files."""
    add("--device-file", type=Path, help="of slowlink measure, instead of --device")
    add(
        "--cluster-file",
        type=Path,
        help="of slowlink links, or as docs/measuring.md shows, instead of --workers and links",
    )


def asked(
    options: argparse.Namespace,
    given: Matrix,
    described: Callable[[argparse.Namespace, Any], matrix.Cluster],
) -> Asked:
    """What the options ask about; ``described``: the cluster that options without a file describe.

    Raises
    ------
    ValueError
        Options that do not go together, files that do not fit; with the remedy.
    """
    where = _cluster(options, given) if options.cluster_file else None
    if where is None:
        if options.workers is None:
            raise ValueError("how many workers are there? say --workers 8, or give --cluster-file")
        where = described(options, given.networks)
    if options.model_file:
        file = own.load(options.model_file)
        model, tensors = file.model, file.layers
        batch = options.batch or file.batch * where.workers
    else:
        model, tensors = options.model, layers(Part(name=options.model))
        batch = options.batch or given.models.get(model)
        if batch is None:
            raise ValueError(f"{model}: how many samples has a round? say --batch")
    name, machine = options.device, None
    if options.device_file:
        if options.device:
            raise ValueError("--device-file or --device, not both")
        name, machine = device.load(options.device_file)
    name = name or given.device
    machine = machine or device.profile(name)
    matrix.computing_s(tensors, where, machine, batch)  # of any method, or refuses for all
    return Asked(model, tensors, batch, where, machine, name)


def _cluster(options: argparse.Namespace, given: Matrix) -> clusters.Cluster:
    """Of the file; what it leaves open is the matrix's."""
    stated = ("workers", "lan", "wan", "sites", "racks", "latency", "wan_latency", "uneven")
    if also := [name for name in stated if getattr(options, name) is not None]:
        raise ValueError(
            f"--{also[0].replace('_', '-')}: --cluster-file says what the cluster is; leave it out"
        )
    found, open_ = clusters.load(options.cluster_file), {}
    for name in ("overhead_s", "pieces"):
        if getattr(found, name) is None:
            open_[name] = getattr(given.networks, name)
    return clusters.Cluster(**dict(found) | open_)


# What it takes ------------------------------------------------------------------------------------


def predict(
    systems: Mapping[str, System], asked: Asked, most_played: float = math.inf
) -> tuple[dict[str, tuple[Method, Round]], dict[str, str]]:
    """By label, each method on the fastest of its exchanges and its round; and the reasons of those
    that cannot run there. Policies that look at the clock are not played with more than
    ``most_played`` workers."""
    rounds, reasons = {}, {}
    for number, (label, system) in enumerate(systems.items()):
        show(f"timing {label} ({number} of {len(systems)} done)")
        try:
            if asked.cluster.workers > most_played and not in_lockstep(system.synchronization):
                raise ValueError(f"{PLAYED}: not played with more than {most_played} workers")
            rounds[label] = asked.best(methods_of(label, system))
        except ValueError as error:
            reasons[label] = str(error)
    show("")
    return rounds, reasons


# How far it may be off ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    """Seconds of a round at the best and the worst corner of what was measured."""

    low: float
    high: float


def intervals(
    asked: Asked, rounds: Mapping[str, tuple[Method, Round]], among: Collection[str]
) -> tuple[dict[str, Interval], dict[str, str]]:
    """By label, between what a round may lie; and by corner, which of some labels is first there.

    At a corner, all that was measured of the device is at one of its quartiles, and all that was
    measured of the links at one of theirs. Every method stays on its exchange. Both are empty where
    nothing was measured.
    """
    corners = {
        where: {label: changed.timed(method).round_s for label, (method, _) in rounds.items()}
        for where, changed in asked.corners().items()
    }
    if not corners:
        return {}, {}
    found = {}
    for label, (_, made) in rounds.items():
        every = [made.round_s, *(seconds[label] for seconds in corners.values())]
        found[label] = Interval(min(every), max(every))
    return found, {where: min(among, key=s.__getitem__) for where, s in corners.items()}


# When a codec is worth it -------------------------------------------------------------------------


@dataclass(frozen=True)
class BreakEven:
    """The rate (bit/s, of :attr:`Asked.rate`'s link) below which a method is faster than the same
    with plain values: 0 if it never is, infinite if always, within :data:`SPAN`."""

    below: float
    links: str

    def __str__(self) -> str:
        if self.below == 0:
            return "never"
        if math.isinf(self.below):
            return f"up to {units.said_rate(SPAN[1])}"
        return f"below {units.said_rate(self.below)}"


def plain_methods(method: Method, among: Mapping[str, System]) -> list[Method]:
    """The same with plain values, on every exchange of some systems."""
    exchanges = {str(p): p for one in among.values() for p in one.exchange}
    made = []
    for exchange in exchanges.values():
        depth = 2 if exchange.name == SITES else 1
        levels = (Level(up=DENSE),) * depth
        made.append(replace(method, exchange=exchange, levels=levels, codec_scope="layer"))
    return made


def break_evens(
    asked: Asked, methods: Mapping[str, Method], among: Mapping[str, System]
) -> Iterator[tuple[str, BreakEven]]:
    """Of the methods that send anything but plain values, by label. Both sides stay on the exchange
    that is fastest on the links as they are; plain values on one of those that systems ``among``
    which they are have."""
    known: dict[str, tuple[Method, Callable[[float], float]]] = {}
    for label, method in methods.items():
        if not coded(method):
            continue
        kind = f"{method.synchronization} {method.fusion}"
        if kind not in known:
            plain, _ = asked.best(plain_methods(method, among))
            known[kind] = plain, cache(lambda rate, p=plain: asked.with_rate(rate).timed(p).round_s)
        _, plain_s = known[kind]
        coded_s = cache(lambda rate, m=method: asked.with_rate(rate).timed(m).round_s)
        below = crossing(lambda rate, c=coded_s, p=plain_s: math.log(c(rate) / p(rate)), asked.rate)
        yield label, BreakEven(below, asked.links)


def crossing(difference: Callable[[float], float], start: float) -> float:
    """Where a function of the rate is 0: below it negative, above it not.

    Rates go up from ``start`` while it is negative and down while it is not, by :data:`STRIDE`, and
    then the crossing is closed in on. 0 where it is negative neither at ``start`` nor at the lower
    end of :data:`SPAN`, infinite where it is both at ``start`` and at the upper one.
    """
    rate = min(max(start, SPAN[0]), SPAN[1])
    value = difference(rate)
    won = value < 0
    end = SPAN[1] if won else SPAN[0]
    if rate == end or (difference(end) < 0) == won:
        return math.inf if won else 0.0
    while True:
        beyond = min(rate * STRIDE, end) if won else max(rate / STRIDE, end)
        there = difference(beyond)
        if (there < 0) != won:
            break
        rate, value = beyond, there
    (low, at_low), (high, at_high) = sorted([(rate, value), (beyond, there)])
    side = 0
    while high / low > 1 + EXACT:
        # Regula falsi on the logarithm of the rate, the stale end halved; and well inside.
        share = at_low / (at_low - at_high) if at_high > at_low else 0.5
        width = math.log(high / low)
        margin = min(0.1, 0.4 * EXACT / width)
        middle = low * math.exp(width * min(max(share, margin), 1 - margin))
        value = difference(middle)
        if value < 0:
            low, at_low = middle, value
            at_high, side = (at_high / 2 if side == -1 else at_high), -1
        else:
            high, at_high = middle, value
            at_low, side = (at_low / 2 if side == 1 else at_low), 1
    return math.sqrt(low * high)
