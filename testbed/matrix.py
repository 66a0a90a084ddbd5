"""What one round costs: any method on any model, network and cluster size, on one footing.

A :class:`Method` is four answers, a :class:`Cluster` the machines and their links. Where workers
meet in lockstep, a round is the timeline of :mod:`methods.fusion`, in which backward, coding and
communication overlap. Where the policy looks at the clock or sends changes, it is what the event
engine of :mod:`testbed.training.virtual_time` takes for as many iterations as there are workers,
and whole models travel. The network is the fluid simulator's in both.
"""

from __future__ import annotations

import hashlib
import math
import pickle
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from methods import compression, exchange, fusion, synchronization
from methods.compression import Compressor
from methods.exchange import Exchange, Plan, Topology
from methods.fusion import Costs, timeline
from methods.synchronization import Policy, Sync
from testbed import network
from testbed.kept import kept, sources
from testbed.network import Network, geo_sites, node_traffic, region_traffic, simulate, star
from testbed.training.device import Device
from testbed.training.learner import check_pair, default_down
from testbed.training.pipeline import Layers, single_gpu_s
from testbed.training.recipe import Level, Part
from testbed.training.stragglers import Fixed, Jitter, Stragglers
from testbed.training.virtual_time import Meeting, OnNetwork, Phase, play

STEP = 64.0
"""Plans are simulated for messages of STEP ** 0, 1, 2 … bytes and interpolated between, with more
sizes wherever a line is off by more than BENT: other links can limit small messages than large."""

BENT = 1e-3

RATE = 1e9
"""bit/s at which flat clusters are simulated: at others, time is that of more or fewer bytes."""

WARM, ROUNDS = 15, 25
"""Rounds for which a policy is played before it is timed, and those that are timed."""

JITTER = 0.1
"""Share by which iterations of asynchronous policies vary: workers that never do can stay in step
for ever, as real ones do not."""

MERGED = 1 << 16
"""Values of the tensors on which merging is tried."""

DENSE = Part(name="identity")

Sizes = dict[str, float]


@dataclass(frozen=True)
class Method:
    """Four answers by name. ``levels`` as in a training recipe, innermost first; where an exchange
    finds more levels in a network, the last one's codecs stand for the rest."""

    label: str
    exchange: Part
    levels: tuple[Level, ...]
    synchronization: Part = Part(name="bsp")
    fusion: Part = Part(name="layer_wise")
    group: str = "system"


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
        steps = (np.arange(self.workers) + 0.5) / self.workers
        factors = 1 + (self.uneven - 1) * np.random.default_rng(0).permutation(steps)
        return tuple((compute_s * factors).tolist())


@dataclass(frozen=True)
class Round:
    """As many iterations as there are workers. The round is the sum of its four parts, seconds.

    Attributes
    ----------
    compute_s: what workers compute, in the mean.
    compress_s: what they encode and decode.
    exchange_s: how long the network, and servers that code on the way, hold them up.
    wait_s: for slower workers, in the mean.
    sent_bytes: payload that a worker sends and receives, in the mean.
    wan_bytes: payload that leaves all sites together; 0 of a flat cluster.
    alone_s: seconds in which one worker alone computes the global batch.
    """

    workers: int
    compute_s: float
    compress_s: float
    exchange_s: float
    wait_s: float
    sent_bytes: float
    wan_bytes: float
    alone_s: float

    @property
    def round_s(self) -> float:
        return self.compute_s + self.compress_s + self.exchange_s + self.wait_s

    @property
    def scaling_efficiency(self) -> float:
        """Speed over ``workers`` times that of one worker with the whole batch, of whose time only
        the part that grows with the batch can be shared."""
        return self.alone_s / (self.workers * self.round_s)


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
    if global_batch < cluster.workers:
        raise ValueError(f"{cluster.workers} workers share only {global_batch} samples a round")
    system = _System(method, cluster)
    policy = synchronization.load(method.synchronization.name, **method.synchronization.parameters)
    times = cluster.seconds(single_gpu_s(device, layers, global_batch / cluster.workers))
    if in_lockstep(method.synchronization):
        spent = _lockstep(system, method.fusion, layers, device, times)
    else:
        spent = _played(system, policy, layers, device, times)
    return Round(
        cluster.workers, *map(float, spent), alone_s=single_gpu_s(device, layers, global_batch)
    )


class _Transfers:
    """How long one exchange's plan takes on one network that is otherwise idle."""

    def __init__(self, exchanger: Exchange, cluster: Cluster) -> None:
        self.topology, self.efficiency = cluster.topology, cluster.efficiency
        self.plan = exchanger(cluster.topology)
        used = (self.plan.slots[slot] for slot in np.unique(self.plan.slot))
        self.pulls = any(slot.startswith("pull") for slot in used)
        self.name = _digest(self.plan, self.topology, self.efficiency, _simulator())
        self._at, self._straight = cache(self._simulate), cache(self._is_straight)

    def seconds(self, sizes: Sizes, scale: float = 1.0) -> float:
        """Of messages of these sizes by slot, each times ``scale``.

        Slots of one size travel as they please. Of different sizes, one comes after the other, as
        it does in the exchanges whose servers answer in another size.
        """
        if len(set(sizes.values())) == 1:
            return self._between("", scale * next(iter(sizes.values())))
        idle = self._at("", 0.0)
        each = (self._between(slot, scale * nbytes) - idle for slot, nbytes in sizes.items())
        return idle + sum(each)

    def _between(self, slot: str, nbytes: float) -> float:
        power = math.floor(math.log(nbytes, STEP)) if nbytes >= 1 else -1
        low, high = (STEP**power if nbytes >= 1 else 0.0), STEP ** (power + 1)
        while not self._straight(slot, low, high):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if nbytes < middle else (middle, high)
        return self._line(slot, low, high, nbytes)

    def _is_straight(self, slot: str, low: float, high: float) -> bool:
        middle = math.sqrt(low * high)
        found, guess = self._at(slot, middle), self._line(slot, low, high, middle)
        return low == 0 or math.isclose(found, guess, rel_tol=BENT)

    def _line(self, slot: str, low: float, high: float, nbytes: float) -> float:
        begin, end = self._at(slot, low), self._at(slot, high)
        return begin + (end - begin) * (nbytes - low) / (high - low)

    def _simulate(self, slot: str, nbytes: float) -> float:
        def completion_s() -> float:
            sizes = {name: nbytes if slot in ("", name) else 0.0 for name in self.plan.slots}
            done = simulate(self.plan, self.topology, sizes, efficiency=self.efficiency)
            return done.completion_s

        return kept(f"{self.name} {slot} {nbytes!r}", completion_s)


def _digest(*values: object) -> str:
    return hashlib.blake2b(pickle.dumps(values), digest_size=16).hexdigest()


@cache
def _simulator() -> str:
    """What a simulated number depends on besides the plan and the network."""
    return sources(*sorted(Path(network.__file__).parent.glob("*.py")))


@cache
def _transfers(exchange_part: str, cluster: Cluster) -> _Transfers:
    return _Transfers(_exchange(Part.model_validate_json(exchange_part)), cluster)


class _System:
    """An exchange with its codecs on a network: bytes and seconds of a message."""

    def __init__(self, method: Method, cluster: Cluster) -> None:
        self.cluster, self.part = cluster, method.exchange.model_dump_json()
        self.exchange = _exchange(method.exchange)
        self.groups = self.exchange.groups(cluster.topology)
        self.parties = sum(map(len, self.groups[-1]))
        depth, levels = len(self.groups), list(method.levels)
        if len(levels) > depth:
            raise ValueError(
                f"{method.exchange.name} has {depth} level{'s' * (depth > 1)} on this network, "
                f"the method codecs for {len(levels)}"
            )
        levels += levels[-1:] * (depth - len(levels))
        self.up = [load_codec(level.up, self.parties) for level in levels]
        self.outer = levels[-1].up.model_dump_json()
        self.down = [load_codec(level.down or default_down(level)) for level in levels[:-1]]
        self.model_down = [load_codec(level.down or DENSE) for level in levels]
        check_pair(self.exchange, self.up[-1])
        # Payloads that add, in one codec all the way, are decoded by the workers only.
        self.passes = self.up[-1].combine == "sum" and all(c == self.up[-1] for c in self.up)
        if not self.passes and not all(codec.one_shot for codec in self.up[:-1]):
            raise ValueError(f"{self.up[0].name} needs several rounds: outermost level only")

    @cached_property
    def transfers(self) -> _Transfers:
        rate = RATE if self.cluster.kind == "flat" else self.cluster.bandwidth
        alike = replace(self.cluster, bandwidth=rate, uneven=1.0, overhead_s=0.0)
        return _transfers(self.part, alike)

    @property
    def plan(self) -> Plan:
        return self.transfers.plan

    def sizes(self, shape: Sequence[int]) -> list[Sizes]:
        """Bytes by slot of the message for a tensor, a mapping a round of communication."""
        outer, last = self.up[-1], f"pull/{len(self.up) - 1}"
        grown = _growth(self.outer, self.parties) if self.transfers.pulls else 1.0
        rounds = []
        for nbytes in outer.payload_bytes(shape):
            sizes = {slot: float(nbytes) for slot in self.plan.slots}
            rounds.append(sizes | {last: float(grown * nbytes)})
        for level, down in enumerate(self.down if not self.passes else ()):
            for sizes in rounds:
                sizes[f"push/{level}"] = sizes[f"pull/{level}"] = 0.0
            rounds[0][f"push/{level}"] = float(sum(self.up[level].payload_bytes(shape)))
            rounds[-1][f"pull/{level}"] = float(sum(down.payload_bytes(shape)))
        return rounds

    def communicate_s(self, sizes: Sizes) -> float:
        scale = RATE / self.cluster.bandwidth if self.cluster.kind == "flat" else 1.0
        return self.transfers.seconds(sizes, scale) + self.cluster.overhead_s

    def costs(self, device: Device, layers: Layers, compute_s: float) -> Costs:
        """What computing, coding and sending cost a worker whose iteration takes ``compute_s``.

        As :func:`testbed.training.pipeline.costs` has it, for exchanges of several levels too:
        what servers code on the way counts as communication.
        """
        shapes = {tensor.values: tensor.shape for tensor in layers.tensors}
        backward_s = [tensor.backward * compute_s for tensor in layers.tensors]
        front, back = self.up[0], self.up[0] if self.passes else ([*self.down, self.up[-1]])[0]
        pulled = self.transfers.pulls
        gathers = front.combine == "gather" or (front.combine == "merge" and not pulled)
        payloads = self.parties if gathers and len(self.up) == 1 else 1

        def communicate(values: int) -> float:
            rounds = self.sizes(shapes.get(values, (values,)))
            sent = sum(self.communicate_s(sizes) for sizes in rounds if any(sizes.values()))
            return sent + self.server_s(device, 4 * values)

        return Costs(
            backward_s,
            encode=lambda values: device.encode_s(front.name, 4 * values),
            communicate=communicate,
            decode=lambda values: payloads * device.decode_s(back.name, 4 * values),
            forward_s=max(compute_s - sum(backward_s), 0.0),
        )

    def server_s(self, device: Device, nbytes: float) -> float:
        """Seconds of coding on the way: between two levels, a server decodes what its group sent,
        encodes the sum, decodes the answer and encodes it for its group; the last one merges."""
        outer = self.up[-1]
        # Who merges for all decodes every party's payload.
        merged = outer.combine != "sum" and self.transfers.pulls
        total = self.parties * device.decode_s(outer.name, nbytes) if merged else 0.0
        for level, down in enumerate(self.down if not self.passes else ()):
            inner, above = self.up[level].name, self.up[level + 1].name
            total += max(map(len, self.groups[level])) * device.decode_s(inner, nbytes)
            total += device.encode_s(above, nbytes) + device.decode_s(above, nbytes)
            total += device.encode_s(down.name, nbytes)
        return total

    def traffic(self, plan: Plan, sizes: Sizes) -> np.ndarray:
        """Bytes that all workers send and receive, and bytes that leave the sites."""
        topology = self.cluster.topology
        nodes, wan = node_traffic(plan, topology, sizes), 0.0
        if topology.layers:
            wan = region_traffic(plan, topology, sizes)[topology.layers[0]].egress.sum()
        return np.array([(nodes.egress + nodes.ingress)[topology.workers].sum(), wan])


@cache
def _growth(codec_part: str, parties: int) -> float:
    """How many times one party's payload comes back where those of so many are merged: of payloads
    of different random tensors, for how much sparse ones overlap depends on the data."""
    part = Part.model_validate_json(codec_part)
    tensors = torch.randn(parties, MERGED, generator=torch.Generator().manual_seed(0))
    codecs = [load_codec(part, parties) for _ in range(parties)]
    if codecs[0].combine != "merge":
        return 1.0 if codecs[0].combine == "sum" else float(parties)
    payloads = [codec.compress(x, 0) for codec, x in zip(codecs, tensors, strict=True)]
    return codecs[0].merge(payloads, 0).nbytes / payloads[0].nbytes


def _lockstep(
    system: _System, grouping: Part, layers: Layers, device: Device, times: Sequence[float]
) -> tuple[float, ...]:
    """The four parts (s) and the bytes of a round in which everyone meets."""
    slowest = max(times)
    costs = system.costs(device, layers, slowest)
    groups = fusion.load(grouping.name, **grouping.parameters)(layers.sizes, costs)
    spans = timeline(layers.sizes, groups, costs)
    coding = float(np.diff(spans.encode).sum() + np.diff(spans.decode).sum())
    shapes = {tensor.values: tensor.shape for tensor in layers.tensors}
    totals: Counter[str] = Counter()
    for group in groups:
        values = sum(layers.sizes[i] for i in group)
        for sizes in system.sizes(shapes.get(values, (values,))):
            totals.update(sizes)
    sent, wan = system.traffic(system.plan, totals)
    mean = float(np.mean(times))
    exposed = spans.exposed_communication_s
    return mean, coding, exposed, slowest - mean, sent / len(times), wan


def _played(
    system: _System, policy: Policy, layers: Layers, device: Device, times: Sequence[float]
) -> tuple[float, ...]:
    """The same of a policy that looks at the clock or sends changes, in the mean over a stretch in
    which work reaches the server. Whole models travel, coded tensor by tensor; they come back dense
    unless the method names a codec for that."""
    cluster, topology = system.cluster, system.cluster.topology
    speeds: Stragglers = Fixed(tuple(times))
    if policy.asynchronous:
        speeds = Jitter(speeds, JITTER)
    sizes: dict[str, Counter[str]] = {"push": Counter(), "pull": Counter()}
    coding_s = 0.0
    for tensor in layers.tensors:
        for level, codec in enumerate(system.up):
            sizes["push"][f"push/{level}"] += sum(codec.payload_bytes(tensor.shape))
            coding_s += device.compression_s(codec.name, 4 * tensor.values)
        for level, codec in enumerate(system.model_down):
            sizes["pull"][f"pull/{level}"] += sum(codec.payload_bytes(tensor.shape))

    @cache
    def plan(members: tuple[int, ...], phase: Phase) -> Plan:
        return system.exchange(topology, [int(topology.workers[m]) for m in members], phase)

    def bound(members: Sequence[int], phase: Phase) -> tuple[Plan, Sizes]:
        sent = plan(tuple(members), phase)
        return sent, {slot: float(sizes[phase][slot]) for slot in sent.slots}

    @cache
    def traffic(members: tuple[int, ...], phase: Phase) -> np.ndarray:
        return system.traffic(*bound(members, phase)) if members else np.zeros(2)

    class Coded(OnNetwork):
        def start(self, phase: Phase, sync: Sync, t: float) -> Hashable:
            coded = coding_s if phase == "push" else 0.0
            return super().start(phase, sync, t + coded + cluster.overhead_s)

    carrier = Coded(
        Network(topology, efficiency=cluster.efficiency),
        plan,
        lambda sync, phase: bound(sync.bringing if phase == "push" else sync.members, phase)[1],
    )
    ranks = {int(node): rank for rank, node in enumerate(topology.workers)}
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
    timed = applied[first + 1 :]
    spent: Counter[str] = Counter()
    for span in log.spans:
        spent[span.kind] += max(0.0, min(span.end, end) - max(span.start, begin))
    coded = coding_s * sum(len(meeting.sync.bringing) for meeting in timed)
    moved = sum(
        (
            traffic(meeting.sync.bringing, "push") + traffic(meeting.sync.members, "pull")
            for meeting in timed
        ),
        start=np.zeros(2),
    )
    parts = (spent["compute"], coded, spent["push"] + spent["pull"] - coded, spent["wait"])
    return (*(part / done for part in parts), moved[0] / done, moved[1] * len(times) / done)


def _brought(meeting: Meeting) -> int:
    """Iterations that count: who brings nothing loses its own."""
    work = dict(zip(meeting.sync.members, meeting.work, strict=True))
    return sum(len(work[member]) for member in meeting.sync.bringing)


def _exchange(part: Part) -> Exchange:
    return exchange.load(part.name, **part.parameters)


def in_lockstep(part: Part) -> bool:
    """Whether every worker sends its gradient in every round, whatever the clock says."""
    policy = synchronization.load(part.name, **part.parameters)
    return policy.clock_free and policy.travels == "gradient"


def load_codec(part: Part, parties: int | None = None) -> Compressor:
    """The codec ``part``, among ``parties`` if their number is given."""
    part = part if parties is None else among(part, parties)
    return compression.load(part.name, **part.parameters)


def among(part: Part, parties: int) -> Part:
    """The codec ``part``; one that must know how many parties merge is told."""
    if not hasattr(load_codec(part), "parties"):
        return part
    return Part(name=part.name, **({"parties": parties} | part.parameters))
