"""What one round costs: any method on any model, network and cluster size, on one footing.

A :class:`Method` is four answers, a :class:`Cluster` the machines and their links; what its parts
cost is asked of :mod:`testbed.prices`. Where workers meet after every iteration, a round is the
timeline of :mod:`methods.fusion`, in which backward, coding and communication overlap. Where they
all meet after several, it is their share of one exchange of what the model has changed. Where the
policy looks at the clock, it is what the event engine of :mod:`testbed.training.virtual_time` takes
for as many iterations as there are workers. The network is the fluid simulator's in all.
"""

from __future__ import annotations

import hashlib
import math
import pickle
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from slowlink.methods import fusion, synchronization
from slowlink.methods.exchange import Plan, Topology
from slowlink.methods.fusion import timeline
from slowlink.methods.synchronization import Policy, Sync
from slowlink.testbed.cache import cached, sources
from slowlink.testbed.network import Network, geo_sites, node_traffic, region_traffic, star
from slowlink.testbed.network.counting import complete
from slowlink.testbed.prices import Sizes, System, coding_s, load_system
from slowlink.testbed.training.device import Device
from slowlink.testbed.training.pipeline import Layers, single_gpu_s
from slowlink.testbed.training.recipe import CodecScope, Level, Part
from slowlink.testbed.training.stragglers import Fixed, Jitter, Stragglers
from slowlink.testbed.training.virtual_time import Meeting, OnNetwork, Phase, play

WARM, ROUNDS = 15, 25
"""Rounds for which a policy is played before it is timed, and those that are timed."""

JITTER = 0.1
"""Share by which iterations of asynchronous policies vary: workers that never do can stay in step
for ever, as real ones do not."""


@dataclass(frozen=True)
class Method:
    """Four answers by name, and what codecs see of a message. ``levels`` as in a training recipe,
    innermost first; where an exchange finds more levels in a network, the last one's codecs stand
    for the rest."""

    label: str
    exchange: Part
    levels: tuple[Level, ...]
    synchronization: Part = Part(name="bsp")
    fusion: Part = Part(name="layer_wise")
    group: str = "system"
    codec_scope: CodecScope = "layer"


@dataclass(frozen=True)
class Cluster:
    """Workers and their links.

    Attributes
    ----------
    kind: ``flat``: everyone, a server included, around one switch; ``sites``: ``per_site`` workers
        and a server in each site, a central site with one more server, wide-area links between.
    bandwidth: bit/s of every card (flat), or of every site's wide-area link each way (sites).
    lan: bit/s of the cards inside of sites.
    latency, wan_latency: seconds on each card, and on each wide-area link.
    uneven: iterations take workers from 1 to so many times the least, in equal steps, dealt out
        over the workers by chance, always alike.
    efficiency: share of the links' rates that payload gets.
    overhead_s: seconds of each message besides its transfers.
    pieces: nothing larger than 1/``pieces`` of a message is waited for before it is passed on.
    """

    kind: Literal["flat", "sites"]
    workers: int
    bandwidth: float
    per_site: int = 1
    lan: float = math.inf
    latency: float = 0.0
    wan_latency: float = 0.0
    uneven: float = 1.0
    efficiency: float = 1.0
    overhead_s: float = 0.0
    pieces: int = 1

    def __post_init__(self) -> None:
        if self.kind == "sites" and self.workers % self.per_site:
            raise ValueError(f"{self.workers} workers do not fill sites of {self.per_site}")

    @cached_property
    def topology(self) -> Topology:
        if self.kind == "flat":
            return star(self.workers, self.bandwidth, latency=self.latency)
        return geo_sites(
            [self.per_site] * (self.workers // self.per_site),
            lan=self.lan,
            wan=self.bandwidth,
            site_wan=self.bandwidth,
            lan_latency=self.latency,
            wan_latency=self.wan_latency,
        )

    def seconds(self, compute_s: float) -> tuple[float, ...]:
        """What an iteration takes each worker, if the fastest takes ``compute_s``."""
        return tuple((compute_s * self._factors).tolist())

    @cached_property
    def _factors(self) -> np.ndarray:
        steps = np.linspace(0, 1, self.workers)
        return 1 + (self.uneven - 1) * np.random.default_rng(0).permutation(steps)


@dataclass(frozen=True)
class Round:
    """A round is as many iterations as there are workers, and the sum of its four parts, seconds.

    Attributes
    ----------
    compute_s: what workers compute, in the mean.
    compress_s: what they encode and decode.
    exchange_s: how long the network, and servers that code on the way, hold them up.
    wait_s: for slower workers, in the mean.
    sent_bytes: payload that a worker sends and receives, in the mean.
    wan_bytes: payload that leaves all sites together; 0 of a flat cluster.
    alone_s: seconds in which one worker alone computes the global batch.
    guessed: whether a price of coding is a guess, see :meth:`testbed.prices.System.guessed`.
    """

    workers: int
    compute_s: float
    compress_s: float
    exchange_s: float
    wait_s: float
    sent_bytes: float
    wan_bytes: float
    alone_s: float
    guessed: bool = False

    @property
    def round_s(self) -> float:
        return self.compute_s + self.compress_s + self.exchange_s + self.wait_s

    @property
    def scaling_efficiency(self) -> float:
        """Speed over ``workers`` times that of one worker with the whole batch, of whose time only
        the part that grows with the batch can be shared."""
        return self.alone_s / (self.workers * self.round_s)


def best_round(
    methods: Iterable[Method], layers: Layers, cluster: Cluster, device: Device, global_batch: int
) -> tuple[Method, Round]:
    """The method with the shortest round, and that; the first of equal ones.

    Methods are timed in the order of :func:`least_s`, until what is left cannot be faster.

    Raises
    ------
    ValueError
        None can run; says why, of the first.
    """
    where = layers, cluster, device, global_batch
    able, reasons = [], []
    for method in methods:
        try:
            able.append((least_s(method, *where), method))
        except ValueError as error:
            reasons.append(error)
    if not able:
        raise reasons[0]
    best: tuple[Method, Round] | None = None
    for least, method in sorted(able, key=lambda pair: pair[0]):
        if best and least >= best[1].round_s:
            break
        made = time_round(method, *where)
        if not best or made.round_s < best[1].round_s:
            best = method, made
    return best


def least_s(
    method: Method, layers: Layers, cluster: Cluster, device: Device, global_batch: int
) -> float:
    """Seconds that a round of ``method`` takes at least, without a search for groups.

    No grouping of layers codes less, and none sends the same bytes in less time than one message
    that leaves when the first gradient is there: a message's start-up is paid once or more often.
    0 where nothing so simple can be said.

    Raises
    ------
    ValueError
        The cell cannot run; says why.
    """
    system, policy, times = _set_up(method, layers, cluster, device, global_batch)
    if cluster.workers == 1:
        return times[0]
    if not policy.together or method.codec_scope == "group":
        return 0.0
    if policy.travels == "delta":
        return sum(_local_steps(system, policy, layers, device, times)[:4])
    slowest, every = max(times), (0, len(layers.sizes))
    costs = system.costs(device, layers, slowest, method.codec_scope)
    coding = costs.encode(*every) + costs.decode(*every)
    alone = costs.forward_s + costs.backward_s[0] + costs.communicate(*every)
    return max(slowest + coding, alone)


def time_round(
    method: Method, layers: Layers, cluster: Cluster, device: Device, global_batch: int
) -> Round:
    """What a round of ``method`` costs.

    Parameters
    ----------
    layers: the model, see :func:`testbed.training.pipeline.layers`.
    global_batch: samples of a round, shared evenly by the workers.

    Raises
    ------
    ValueError
        The cell cannot run; says why.
    """
    system, policy, times = _set_up(method, layers, cluster, device, global_batch)
    if cluster.workers == 1:  # neither codes nor sends
        spent = *times, 0, 0, 0, 0, 0
    elif policy.together and policy.travels == "gradient":
        spent = _lockstep(system, method, layers, device, times)
    elif policy.together:
        spent = _local_steps(system, policy, layers, device, times)
    else:
        spent = _played(system, policy, layers, device, times)
    return Round(
        cluster.workers,
        *map(float, spent),
        alone_s=single_gpu_s(device, layers, global_batch),
        guessed=cluster.workers > 1 and system.guessed(device),
    )


def computing_s(
    layers: Layers, cluster: Cluster, device: Device, global_batch: int
) -> tuple[float, ...]:
    """What an iteration takes each worker, whichever the method.

    Raises
    ------
    ValueError
        There are fewer samples than workers, or the device does not know how long the model takes.
    """
    if global_batch < cluster.workers:
        raise ValueError(f"{cluster.workers} workers share only {global_batch} samples a round")
    return cluster.seconds(single_gpu_s(device, layers, global_batch / cluster.workers))


def _set_up(
    method: Method, layers: Layers, cluster: Cluster, device: Device, global_batch: int
) -> tuple[System, Policy, tuple[float, ...]]:
    """The system, its policy, and how long an iteration takes each worker."""
    times = computing_s(layers, cluster, device, global_batch)
    system = _system(method.exchange, method.levels, cluster)
    policy = synchronization.load(method.synchronization.name, **method.synchronization.parameters)
    system.check_meetings(policy)
    return system, policy, times


@lru_cache(maxsize=64)
def _system(part: Part, levels: tuple[Level, ...], cluster: Cluster) -> System:
    network = cluster.topology, cluster.efficiency, cluster.overhead_s, cluster.pieces
    return load_system(part, levels, *network)


def _lockstep(
    system: System, method: Method, layers: Layers, device: Device, times: Sequence[float]
) -> tuple[float, ...]:
    """The four parts (s) and the bytes of a round in which everyone meets."""
    slowest = max(times)
    costs = system.costs(device, layers, slowest, method.codec_scope)
    grouping = fusion.load(method.fusion.name, **method.fusion.parameters)
    groups = grouping(layers.sizes, costs)
    spans = timeline(layers.sizes, groups, costs)
    coding = float(np.diff(spans.encode).sum() + np.diff(spans.decode).sum())
    totals: Counter[str] = Counter()
    message = system.messages(layers, method.codec_scope)
    for group in groups:
        for sizes in message(group[0], group[-1] + 1):
            totals.update(sizes)
    sent, wan = _moved(system.topology, system.plan, totals)
    computes, waits = _in_the_mean(times)
    exposed = spans.exposed_communication_s
    return computes, coding, exposed, waits, sent / len(times), wan


def _local_steps(
    system: System, policy: Policy, layers: Layers, device: Device, times: Sequence[float]
) -> tuple[float, ...]:
    """The same of a round in which everyone meets after several iterations with what they have
    changed, layer by layer in one message. A server hands out its model; where there is none, the
    sum of all changes reaches everybody."""
    topology, count = system.topology, len(layers.tensors)
    if system.exchange.whole:
        rounds = system.messages(layers, "layer")(0, count)
        sent_s = sum(map(system.communicate_s, rounds))
        moved = sum(_moved(topology, system.plan, sizes) for sizes in rounds)
        steps = system.gradient()
    else:
        sizes, moved, sent_s = system.whole_model(layers), np.zeros(2), 0.0
        for part in ("push", "pull"):
            carried = system.transfers_of(part)
            sent_s += carried.seconds(sizes) + system.overhead_s
            moved += _moved(topology, carried.plan, sizes)
        steps = [step for phase in system.model() for step in phase]
    own = [step for step in steps if step.place == "worker"]
    coding = coding_s(device, own, layers.sizes)
    elsewhere = coding_s(device, steps, layers.sizes) - coding
    (computes, waits), iterations = _in_the_mean(times), policy.local_iterations
    sent, wan = moved / iterations
    exchange_s = (sent_s + elsewhere) / iterations
    return computes, coding / iterations, exchange_s, waits, sent / len(times), wan


def _in_the_mean(times: Sequence[float]) -> tuple[float, float]:
    """What workers compute and what they wait for the slowest, in the mean. Rounding must not make
    a wait of times that are equal, or one below zero."""
    slowest = max(times)
    mean = slowest if min(times) == slowest else min(float(np.mean(times)), slowest)
    return mean, slowest - mean


def _moved(topology: Topology, plan: Plan, sizes: Sizes) -> np.ndarray:
    """Bytes that all workers send and receive, and bytes that leave the sites."""
    sizes, wan = complete(plan, sizes), 0.0
    nodes = node_traffic(plan, topology, sizes)
    if topology.layers:
        wan = region_traffic(plan, topology, sizes)[topology.layers[0]].egress.sum()
    return np.array([(nodes.egress + nodes.ingress)[topology.workers].sum(), wan])


def _played(
    system: System, policy: Policy, layers: Layers, device: Device, times: Sequence[float]
) -> tuple[float, ...]:
    """:func:`_play`, which is kept for whoever asks again."""
    # What codecs send and take may be edited while their names and parameters stay.
    codecs = *system.up, *system.model_down
    coding = [coding_s(device, steps, layers.sizes) for steps in system.model()]
    priced = system.whole_model(layers), coding
    known = system.exchange, codecs, system.pieces, policy
    more = layers.sizes, device, times, system.efficiency, system.overhead_s
    names = [type(part).__module__ for part in (system.exchange, policy, *codecs)]
    name = hashlib.blake2b(repr((names, known, priced, more)).encode(), digest_size=16)
    name.update(pickle.dumps(system.topology))
    return tuple(
        cached(
            f"played {_engine()} {name.hexdigest()}",
            lambda: [float(part) for part in _play(system, policy, layers, device, times)],
        )
    )


@cache
def _engine() -> str:
    """What a played number depends on besides what was asked for."""
    root = Path(__file__).parents[1]
    folders = ("testbed/network", "methods/synchronization", "methods/exchange")
    files = [file for folder in folders for file in (root / folder).glob("*.py")]
    mine = ("matrix", "prices", "training/virtual_time", "training/stragglers")
    return sources(*sorted(files), *(root / "testbed" / f"{name}.py" for name in mine))


def _play(
    system: System, policy: Policy, layers: Layers, device: Device, times: Sequence[float]
) -> tuple[float, ...]:
    """The same of a policy that looks at the clock, in the mean over a stretch in which work
    reaches the server. Whole models travel, coded tensor by tensor; they come back dense unless the
    method names a codec for that."""
    topology = system.topology
    speeds: Stragglers = Fixed(tuple(times))
    if policy.asynchronous:
        speeds = Jitter(speeds, JITTER)
    sent = system.whole_model(layers)
    coded_by: dict[tuple, tuple[float, float]] = {}

    def nodes(members: Sequence[int]) -> list[int]:
        return [int(topology.workers[member]) for member in members]

    @cache
    def plan(members: tuple[int, ...], phase: Phase) -> Plan:
        return system.phase(nodes(members), phase)

    @cache
    def traffic(members: tuple[int, ...], phase: Phase) -> np.ndarray:
        return _moved(topology, plan(members, phase), sent) if members else np.zeros(2)

    @cache
    def coding(members: tuple[int, ...], phase: Phase) -> tuple[float, float]:
        """Seconds of everyone who codes, and of a worker alone."""
        groups = system.exchange.groups(topology, nodes(members))
        # Only how many there are in each group counts.
        alike = phase, tuple(tuple(map(len, level)) for level in groups)
        if alike not in coded_by:
            push, pull = system.model(groups)
            steps = push if phase == "push" else pull
            own = [step for step in steps if step.place == "worker"]
            both = (coding_s(device, one, layers.sizes) for one in (steps, own))
            coded_by[alike] = tuple(both)
        return coded_by[alike]

    def delay_s(sync: Sync, phase: Phase) -> float:
        members = sync.bringing if phase == "push" else sync.members
        return coding(members, phase)[0] + system.overhead_s

    idle = Network(topology, efficiency=system.efficiency)
    carrier = OnNetwork(idle, plan, lambda sync, phase: sent, delay_s)
    ranks = {node: rank for rank, node in enumerate(nodes(range(len(times))))}
    site = {ranks[n]: number for number, group in enumerate(system.groups[0]) for n in group}
    log = play(
        policy,
        speeds,
        carrier,
        groups=[site[rank] for rank in sorted(site)],
        iterations=(WARM + ROUNDS) * len(times),
    )
    applied = sorted((m for m in log.meetings if m.applied <= log.end), key=lambda m: m.applied)
    work = np.cumsum([_brought(meeting) for meeting in applied])
    first = int(np.searchsorted(work, WARM * len(times)))
    begin, end, done = applied[first].applied, applied[-1].applied, work[-1] - work[first]
    spent: Counter[str] = Counter()
    for span in log.spans:
        spent[span.kind] += max(0.0, min(span.end, end) - max(span.start, begin))
    coded, moved = 0.0, np.zeros(2)
    for meeting in applied[first + 1 :]:
        bringing, members = meeting.sync.bringing, meeting.sync.members
        moved += traffic(bringing, "push") + traffic(members, "pull")
        if bringing:
            coded += coding(bringing, "push")[1] * len(bringing)
        coded += coding(members, "pull")[1] * len(members)
    parts = (spent["compute"], coded, spent["push"] + spent["pull"] - coded, spent["wait"])
    return (*(part / done for part in parts), moved[0] / done, moved[1] * len(times) / done)


def _brought(meeting: Meeting) -> int:
    """Iterations that count: who brings nothing loses its own."""
    work = dict(zip(meeting.sync.members, meeting.work, strict=True))
    return sum(len(work[member]) for member in meeting.sync.bringing)


def in_lockstep(part: Part) -> bool:
    """Whether all workers meet in every round, whatever the clock says."""
    return synchronization.load(part.name, **part.parameters).together
