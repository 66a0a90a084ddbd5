"""The virtual-time trainer: real gradients, simulated time.

Gradients are computed by torch on real data; what computing and compressing cost comes from a
device profile, what communicating costs from the network simulator for the bytes that the payloads
really have. One seed gives bit-equal results on one machine.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slowlink.methods import exchange, fusion
from slowlink.methods.exchange import Plan, Topology
from slowlink.methods.fusion import Costs
from slowlink.methods.synchronization import Continue, Finished, Policy, Sync, Synced
from slowlink.testbed import files
from slowlink.testbed.network import Network, geo_sites, star
from slowlink.testbed.network.counting import complete, transfer_bytes
from slowlink.testbed.prices import Step, coding_s, exchange_s, load_system
from slowlink.testbed.results import Row
from slowlink.testbed.training import models, pipeline
from slowlink.testbed.training.allocator import keep_freed_memory
from slowlink.testbed.training.datasets import Dataset, held_out, load_dataset
from slowlink.testbed.training.device import Device, profile
from slowlink.testbed.training.learner import Diverged, Learner, Replica, Sizes, Traffic, spoil
from slowlink.testbed.training.recipe import Link, Part, Recipe
from slowlink.testbed.training.stragglers import Fixed, Jitter, Stragglers, uniform
from slowlink.testbed.training.virtual_time import (
    Applied,
    Begun,
    Computed,
    Decided,
    Meeting,
    OnNetwork,
    Phase,
    Received,
    happenings,
)

Progress = Callable[[str], None]

GLOBAL = -1
"""The level of meetings that reach the server's model."""

LARGEST_LOSS = 700.0
"""The perplexity of a larger loss does not fit a float."""


def train_all(recipes: Sequence[Recipe], progress: Progress | None = None) -> Iterator[Row]:
    """:func:`train` one after the other; what the same data are is loaded once."""
    load = functools.lru_cache(maxsize=1)(load_dataset)
    for recipe in recipes:
        yield from train(recipe, progress, load)


def train(
    recipe: Recipe,
    progress: Progress | None = None,
    load: Callable[..., Dataset] | None = None,
    checkpoint: Path | None = None,
    ended: Callable[[list[torch.Tensor]], Any] | None = None,
) -> Iterator[Row]:
    """Run ``recipe`` and yield its result rows.

    For every network of the recipe: ``test_accuracy`` (%), ``test_loss``, for text
    ``test_perplexity`` (exp of the loss), and ``bytes_sent`` (B, payload bytes that one outermost
    party has sent and received so far), each with its round and virtual time; then
    ``mean_round_time`` (s), and ``staleness`` (updates) for policies that look at the clock. A run
    that diverges ends with a failed row a network.

    checkpoint: a file that holds the run as it was at its last evaluation. Where it is there, the
        run goes on from it, to the same rows. Only runs whose policies do not look at the clock
        make one; others begin anew.
    ended: called with the parameters of the model, when it is trained.
    """
    keep_freed_memory()
    torch.set_num_threads(recipe.torch_threads)
    torch.set_deterministic_debug_mode("warn")  # the longer name also imports the compiler
    torch.utils.deterministic.fill_uninitialized_memory = False  # which costs, and nothing reads it
    session = _Session(recipe, progress or (lambda message: None), load or load_dataset)
    policy = recipe.policy()
    gradients = policy.travels == "gradient"
    if policy.asynchronous and gradients and recipe.optimizer_at != "server":
        raise ValueError(
            f"{recipe.synchronization.name} needs optimizer_at: server; without an optimizer the "
            "global server would hand each site only its own gradient"
        )
    if policy.continues_after_upload and gradients:
        raise ValueError(
            f"{recipe.synchronization.name}: workers that compute on send changes, not gradients"
        )
    lockstep = policy.clock_free and gradients and not recipe.uneven and not recipe.seconds
    if not lockstep and (len(recipe.networks) != 1 or recipe.overlap):
        raise ValueError(
            f"{recipe.synchronization.name}: policies that look at the clock or send changes, "
            "uneven workers and runs of so many seconds take one network a run, "
            f"not {len(recipe.networks)}, and no overlap"
        )
    session.system.check_meetings(policy)
    try:
        if lockstep:
            yield from _lockstep(session, policy, checkpoint)
        else:
            yield from _event_driven(session, policy)
        if ended:
            ended(session.learner.server.parameters)
    except Diverged as error:
        reason = f"diverged with lr {recipe.lr}: {error}"
        failed = dict(status="failed", reason=reason, evidence="measured")
        for clock in session.clocks:
            yield session.row(clock, "test_accuracy", math.nan, "%", **failed)


@dataclass
class _Clock:
    """Virtual time on one network."""

    case: str
    link: Link
    topology: Topology
    now: float = 0.0
    iteration_s: float = math.nan
    memo: dict[Any, float] = field(default_factory=dict)

    def exchange(self, plan: Plan, rounds: Sequence[Sizes]) -> float:
        """Seconds that one aggregation takes on an idle network."""
        key = (id(plan), repr(rounds))
        if key not in self.memo:
            self.memo[key] = exchange_s(plan, self.topology, rounds, self.link.efficiency)
        return self.memo[key]


def data_of(recipe: Recipe, load: Callable[..., Dataset] = load_dataset) -> Dataset:
    """What a run trains on, and is judged on."""
    limits = dict(limit=recipe.limit, test_limit=recipe.test_limit)
    dataset = load(recipe.dataset, **limits, steps=recipe.steps, words=recipe.words)
    if not recipe.validation:
        return dataset
    return held_out(dataset, recipe.validation)[recipe.judged_on == "validation"]


class _Session:
    """Everything that both engines need: the learner, the clocks, costs and rows."""

    def __init__(self, recipe: Recipe, progress: Progress, load: Callable[..., Dataset]) -> None:
        self.recipe, self.progress = recipe, progress
        dataset = data_of(recipe, load)
        part = fitting(recipe.model, dataset)
        model = models.make(part.name, recipe.seed, **part.parameters)
        stood = recipe.stands_for or part
        image = models.image_shape(stood.parameters, dataset.shape)
        self.shrink = 1.0
        if recipe.stands_for:
            own = models.count(models.gradient_shapes(model, norm=False))
            self.shrink = own / sum(pipeline.layers(stood, image, norm=False).sizes)
        self.compute_s = recipe.compute_s
        if recipe.compute_s is None:
            flops = pipeline.layers(stood, image, recipe.norm).flops
            self.compute_s = self.device.compute_s(flops, recipe.batch, stood.name)
        self.speeds = speeds(recipe, self.compute_s)
        self.exchange = exchange.load(recipe.exchange.name, **recipe.exchange.parameters)
        costs = None
        scale = 1.0 if recipe.overlap else self.shrink
        self.clocks = [
            _Clock(case, link, self._topology(link, scale))
            for case, link in recipe.networks.items()
        ]
        if recipe.overlap:
            costs = self._overlap(part, stood, dataset.shape)
        self.learner = Learner(
            recipe, model, dataset, self.exchange, self.clocks[0].topology, costs
        )
        self.system = load_system(recipe.exchange, recipe.levels, self.clocks[0].topology)
        self.sites = self._sites()
        self._plans: dict[tuple, Plan] = {}
        self._moved: dict[tuple, float] = {}
        self.bytes_sent = 0.0

    @functools.cached_property
    def device(self) -> Device:
        """Only asked for where it tells a time: ``this_cpu`` takes seconds to measure."""
        return profile(self.recipe.device)

    def _topology(self, link: Link, scale: float) -> Topology:
        recipe = self.recipe
        alone = recipe.overlap and len(recipe.workers) == 1
        if alone or recipe.cluster == "star":
            return flat(sum(recipe.workers), link, scale)
        return topology(recipe.workers, link, scale)

    def _overlap(self, part: Part, stood: Part, shape: tuple[int, ...]) -> Costs:
        """Time an iteration on every network; return the costs by which the learner groups."""
        recipe = self.recipe
        batch = recipe.timed_batch or recipe.batch
        original, own = (
            pipeline.layers(p, models.image_shape(p.parameters, shape), recipe.norm)
            for p in (stood, part)
        )
        if recipe.compute_s is not None:
            original = replace(original, sample_s=recipe.compute_s / batch)
        grouping = fusion.load(recipe.fusion.name, **recipe.fusion.parameters)

        def costs(layers: pipeline.Layers, clock: _Clock) -> Costs:
            timed = clock.topology
            if recipe.timed_workers:
                timed = flat(recipe.timed_workers, clock.link)
            network = (timed, clock.link.efficiency, recipe.overhead_s)
            system = load_system(recipe.exchange, recipe.levels, *network)
            alone = pipeline.single_gpu_s(self.device, layers, batch)
            return system.costs(self.device, layers, alone, recipe.codec_scope)

        for clock in self.clocks:
            timing = pipeline.overlapped(original, grouping, costs(original, clock))
            clock.iteration_s = timing.iteration_s
        return costs(own.standing_for(original), self.clocks[0])

    def _sites(self) -> list[int]:
        groups = enumerate(self.system.groups[0])
        site = {node: number for number, group in groups for node in group}
        return [site[node] for node in self.learner.nodes]

    def plan(self, members: Sequence[int], part: str = "all") -> Plan | None:
        """What a meeting of these workers runs, or one phase of it; see :meth:`System.phase`."""
        key = (tuple(members), part)
        if key not in self._plans:
            nodes = [self.learner.nodes[rank] for rank in members]
            if part == "all":
                self._plans[key] = self.exchange(self.clocks[0].topology, nodes)
            else:
                self._plans[key] = self.system.phase(nodes, part)
        return self._plans[key]

    def coding_s(self, steps: Sequence[Step], values: Sequence[int]) -> float:
        """Seconds of coding messages of so many values each, as large as they stand for."""
        working = [step for step in steps if step.work]
        if not working:  # no device need be measured
            return 0.0
        return coding_s(self.device, working, [count / self.shrink for count in values])

    def push_s(self, members: Sequence[int], traffic: Traffic) -> float:
        """Seconds of coding what these bring to a server that keeps the model, or that decodes what
        each has sent in a codec of its own: it waits for whose codec takes longest."""
        if not self.recipe.codecs:
            return self.coding_s(self.system.model(traffic.groups or None)[0], traffic.values)
        codecs = [self.learner.codec.up(0, self.learner.nodes[rank]) for rank in members]
        encoded, decoded = (
            [self.coding_s([Step(place, what, codec)], traffic.values) for codec in codecs]
            for place, what in (("worker", "encode"), ("centre", "decode"))
        )
        return max(encoded, default=0.0) + sum(decoded)

    def sum_s(self, members: Sequence[int], traffic: Traffic) -> float:
        """Seconds of coding what these bring and the sum that all of them get."""
        if self.recipe.codecs:  # the answer is dense
            return self.push_s(members, traffic)
        return self.coding_s(self.system.gradient(traffic.groups), traffic.values)

    def spend(self, clock: _Clock, members: Sequence[int], traffic: Traffic) -> None:
        """Let the time of a round go by on ``clock``."""
        if self.recipe.overlap:
            clock.now += clock.iteration_s
            return
        if self.recipe.optimizer_at == "server":
            _, pull = self.system.model(traffic.groups)
            coding = self.push_s(members, traffic) + self.coding_s(pull, self.learner.sizes)
        else:
            coding = self.sum_s(members, traffic)
        clock.now += self.compute_s + coding
        clock.now += clock.exchange(self.plan(members), self.sent(traffic))

    def sent(self, traffic: Traffic) -> list[Sizes]:
        """The bytes of all who send, as plans ask for them."""
        return traffic.by_sender() if self.exchange.whole else traffic.rounds

    def count_bytes(self, members: Sequence[int], traffic: Traffic, listening: int = 0) -> None:
        """Add what an outermost party sent and received, in the mean over all of them; so many
        others pull the last round's answer without pushing."""
        if self.passed_on:
            self.bytes_sent += self._passed_on(self.plan(members), self.sent(traffic))
            return
        outer, rounds = len(self.recipe.levels) - 1, traffic.rounds
        for number, sizes in enumerate(rounds, start=1):
            pushed = sizes.get(f"push/{outer}", {})
            pulling = len(pushed) + (listening if number == len(rounds) else 0)
            pulled = sizes.get(f"pull/{outer}", 0.0) * pulling
            self.bytes_sent += (sum(pushed.values()) + pulled) / self.system.parties

    @functools.cached_property
    def passed_on(self) -> bool:
        """Whether workers add up or pass on what others bring, so that one moves more, or less,
        than a payload each way."""
        return self.exchange.whole or bool({*self.system.holders} & {*self.learner.nodes})

    def _passed_on(self, plan: Plan, rounds: Sequence[Sizes]) -> float:
        """What a party sends to others and gets from them, in the mean over all."""
        key = (id(plan), repr(rounds))
        if key not in self._moved:
            nbytes = sum(transfer_bytes(plan, complete(plan, sizes)) for sizes in rounds)
            src, dst = self._party[plan.src], self._party[plan.dst]
            ends = (src >= 0).astype(int) + (dst >= 0)
            moved = float((nbytes * ends)[src != dst].sum())
            self._moved[key] = moved / self.system.parties
        return self._moved[key]

    @functools.cached_property
    def _party(self) -> np.ndarray:
        """By node, the node by which its outermost party is named; -1 for servers of all."""
        groups = self.system.groups
        of = {node: node for group in groups[0] for node in group}
        for inner, outer in itertools.pairwise(groups):
            named = zip(inner, itertools.chain.from_iterable(outer), strict=True)
            above = {node: name for group, name in named for node in group}
            of = {node: above[party] for node, party in of.items()} | {n: n for n in above.values()}
        return np.array([of.get(node, -1) for node in range(self.clocks[0].topology.n_nodes)])

    def save(self, file: Path, told: Sequence[Row], *where: Any) -> None:
        """Write the run's state, the rows it has told so far, and where in its loop it is."""
        learner = self.learner
        state = dict(
            told=[row.model_dump() for row in told],
            where=where,
            replicas=(learner.server, learner.replicas),
            codecs=learner.codec.states(),
            clocks=[clock.now for clock in self.clocks],
            bytes_sent=self.bytes_sent,
        )
        files.save(file, state)

    def restore(self, file: Path) -> tuple[list[Row], int, list[int], Policy, list[Any]]:
        """What :meth:`save` was given; this session is then as that one was."""
        learner = self.learner
        state = torch.load(file, weights_only=False, map_location=learner.home)
        rounds, iteration, policy, decisions = state["where"]
        for rank, batches in enumerate(iteration):
            learner.rewind(rank, batches)
        learner.server, learner.replicas = state["replicas"]
        for replica in (learner.server, *learner.replicas):
            replica.buffers = [buffer.to(learner.device) for buffer in replica.buffers]
        learner.codec.load(state["codecs"])
        for clock, now in zip(self.clocks, state["clocks"], strict=True):
            clock.now = now
        self.bytes_sent = state["bytes_sent"]
        return [Row(**row) for row in state["told"]], rounds, iteration, policy, decisions

    def row(self, clock: _Clock, metric: str, value: float, unit: str, **fields) -> Row:
        place = dict(case=clock.case, bandwidth=clock.link.wan)
        return Row(**self.recipe.told, **place, metric=metric, value=value, unit=unit, **fields)

    def evaluate(self, replica, round_: int) -> Iterator[Row]:
        accuracy, loss = self.learner.evaluate(replica)
        if not math.isfinite(loss):
            raise Diverged(f"test loss is {loss}; lower lr")
        recipe, now = self.recipe, self.clocks[0].now
        end = f"/{recipe.rounds}" if recipe.rounds else f", {now:.0f}/{recipe.seconds:.0f} s"
        self.progress(
            f"{recipe.experiment} {recipe.system} seed {recipe.seed}: round {round_}{end}, "
            f"test accuracy {accuracy:.2f} %"
        )
        for clock in self.clocks:
            point = dict(round=round_, time_s=clock.now, evidence="measured")
            yield self.row(clock, "test_accuracy", accuracy, "%", **point)
            yield self.row(clock, "test_loss", loss, "", **point)
            if self.learner.text:
                perplexity = math.exp(min(loss, LARGEST_LOSS))
                yield self.row(clock, "test_perplexity", perplexity, "", **point)
            point["evidence"] = "computed"
            yield self.row(clock, "bytes_sent", self.bytes_sent / self.shrink, "B", **point)


def speeds(recipe: Recipe, compute_s: float) -> Stragglers:
    """The seconds of each worker's iterations, where one of an even worker takes ``compute_s``."""
    uneven, seed = recipe.uneven, recipe.seed
    if uneven is None:
        return lambda worker, iteration, t: compute_s
    its = uniform(sum(recipe.workers), compute_s, uneven.highest, seed)
    if uneven.sites:
        sites = zip(uneven.sites, recipe.workers, strict=True)
        times = ([factor * compute_s] * workers for factor, workers in sites)
        its = Fixed(tuple(itertools.chain(*times)))
    return Jitter(its, uneven.jitter, seed) if uneven.jitter else its


def topology(workers: Sequence[int], link: Link, scale: float = 1.0) -> Topology:
    """The sites of a recipe on the links of a case, rates times ``scale``."""
    return geo_sites(
        list(workers),
        lan=link.lan * scale,
        wan=link.wan * scale,
        lan_latency=link.lan_latency,
        wan_latency=link.wan_latency,
        colocated=link.colocated,
    )


def flat(workers: int, link: Link, scale: float = 1.0) -> Topology:
    """One cluster around a switch, by a case's ``lan``: its rate times ``scale``, its latency."""
    return star(workers, link.lan * scale, latency=link.lan_latency)


def fitting(part: Part, dataset: Dataset) -> Part:
    """A language model for the words of its text; anything else as it is."""
    if dataset.train_y.ndim == 1:
        return part
    words = part.parameters.get("words", dataset.n_classes)
    if words != dataset.n_classes:
        raise ValueError(
            f"model {part.name}: words is {words}, {dataset.name} has {dataset.n_classes}"
        )
    return Part(name=part.name, **(part.parameters | {"words": words}))


def _lockstep(session: _Session, policy: Policy, checkpoint: Path | None = None) -> Iterator[Row]:
    """Policies that do not look at the clock: train once, keep time on every network."""
    recipe, learner = session.recipe, session.learner
    kept = recipe.optimizer_at == "server" and not session.exchange.whole
    iteration = [0] * len(learner.nodes)
    gradients: dict[int, list[torch.Tensor]] = {}
    if checkpoint and checkpoint.is_file():
        told, rounds, iteration, policy, decisions = session.restore(checkpoint)
    else:
        told, rounds, decisions = [], 0, list(policy.begin(session.sites))
        told += session.evaluate(learner.server, 0)
    yield from told
    while rounds < recipe.rounds:
        pending: list[Sync] = []
        workers = [d.worker for d in decisions if isinstance(d, Continue)]
        if workers:
            gradients |= learner.gradients(workers)
        for worker in workers:
            iteration[worker] += 1
            gradients[worker] = spoil(recipe, worker, iteration[worker], gradients[worker])
            done = Finished(worker, iteration[worker], session.clocks[0].now)
            pending += [d for d in policy.on(done) if isinstance(d, Sync)]
        if not pending:
            raise RuntimeError(f"{recipe.synchronization.name}: nobody computes and nobody meets")
        decisions = []
        for sync in pending:
            total, traffic = learner.aggregate(sync.members, gradients, sync.weights, not kept)
            held = learner.replicas[sync.members[0]]
            if recipe.optimizer_at == "server":
                learner.server = learner.update(learner.server, total)
                learner.server.buffers = held.buffers
                held, pulled = learner.broadcast(learner.server)
                traffic.rounds[-1] |= pulled
            else:
                learner.server = held = learner.update(held, total)
            for rank in sync.members:
                learner.replicas[rank] = held
            session.count_bytes(sync.members, traffic)
            for clock in session.clocks:
                session.spend(clock, sync.members, traffic)
            decisions += policy.on(Synced(sync.members, session.clocks[0].now))
        rounds += 1
        if rounds % recipe.evaluate_every == 0 or rounds == recipe.rounds:
            new = list(session.evaluate(learner.server, rounds))
            if checkpoint:
                told += new
                session.save(checkpoint, told, rounds, iteration, policy, decisions)
            yield from new
    for clock in session.clocks:
        mean = clock.now / rounds
        yield session.row(clock, "mean_round_time", mean, "s", evidence="simulated")


def _event_driven(session: _Session, policy: Policy) -> Iterator[Row]:
    """Policies that look at the clock or send changes, and uneven workers: one network, and a
    server that keeps the model, or everybody where an exchange has none or each worker its
    optimizer.

    A round of the results is as many iterations as there are workers, so that curves of policies
    compare at equal work.
    """
    recipe, learner, clock = session.recipe, session.learner, session.clocks[0]
    server, sent = _Server(session, policy), _Sent()

    def plan(members: tuple[int, ...], phase: Phase) -> Plan | None:
        """The sum comes back with what is pushed, and only a model that a server keeps apart."""
        if server.kept:
            return session.plan(members, phase)
        return session.plan(members) if phase == "push" else None

    carrier = OnNetwork(
        Network(clock.topology, efficiency=clock.link.efficiency),
        plan,
        lambda sync, phase: sent.rounds,
        lambda sync, phase: sent.delay_s,
    )
    iterations = rounds = evaluated = 0
    staleness: list[int] = []
    yield from session.evaluate(learner.server, 0)
    for happening in happenings(policy, session.speeds, carrier, groups=session.sites):
        if recipe.seconds and happening.t > recipe.seconds:
            clock.now = recipe.seconds
            break
        clock.now = happening.t
        match happening:
            case Begun(worker=worker):
                server.begun.append(worker)
            case Computed(worker=worker):
                server.computed(worker)
            case Decided(meeting=meeting):
                traffic = server.collect(meeting)
                coding_s = session.push_s if server.kept else session.sum_s
                sent = _Sent(session.sent(traffic), coding_s(meeting.sync.bringing, traffic))
            case Applied(meeting=meeting):
                _, pull = session.system.model()
                sent = _Sent(server.answer(meeting), session.coding_s(pull, learner.sizes))
                iterations += server.arrived(meeting)
                staleness += meeting.staleness or ()
            case Received(meeting=meeting, members=members):
                server.release(meeting, members)
        before, rounds = rounds, iterations // len(learner.nodes)
        if rounds // recipe.evaluate_every > before // recipe.evaluate_every:
            evaluated = rounds
            yield from session.evaluate(learner.server, rounds)
        if recipe.rounds and max(rounds, server.apart // len(learner.nodes)) >= recipe.rounds:
            break
    if not iterations and server.apart:  # hubs met, and never all of them
        iterations, rounds = server.apart, server.apart // len(learner.nodes)
        learner.server = server.mean()
    if rounds > evaluated:
        yield from session.evaluate(learner.server, rounds)
    mean = clock.now * len(learner.nodes) / max(iterations, 1)
    yield session.row(clock, "mean_round_time", mean, "s", evidence="simulated")
    stale = sum(staleness) / max(1, len(staleness))
    yield session.row(clock, "staleness", stale, "", evidence="simulated")


@dataclass
class _Sent:
    """What the next transfer carries, round by round, and how long coding it delays it."""

    rounds: list[Sizes] = field(default_factory=list)
    delay_s: float = 0.0


class _Server:
    """The model at the server, and what meetings bring to it: gradients, to which its optimizer
    answers, changes, which it adds, or models, whose mean is the new one."""

    def __init__(self, session: _Session, policy: Policy) -> None:
        self.session, self.learner = session, session.learner
        self.policy, self.changes = policy, policy.travels == "delta"
        at_worker = session.recipe.optimizer_at == "worker" and policy.clock_free
        self.kept = not session.exchange.whole and (self.changes or not at_worker)
        """Whether a server hands out its model. Else all take the same step by the sum they get."""
        self.begun: list[int] = []
        self.gradients: dict[int, list[torch.Tensor]] = {}
        # Each worker's model as it was after its last meeting, and after its last global one.
        self.last, self.last_global = list(self.learner.replicas), list(self.learner.replicas)
        self.done: Counter[int] = Counter()  # iterations since the last global meeting
        self.apart = 0  # iterations that meetings have brought as long as none was global
        self.joined = False
        # By meeting, what its members have brought, and whether that is the server's new model.
        self.brought: dict[int, tuple[list[torch.Tensor], Traffic, bool]] = {}
        self.answers: dict[int, Replica] = {}
        # By meeting and member, the model that it met with.
        self.met: dict[int, dict[int, Replica]] = {}

    def computed(self, worker: int) -> None:
        """Compute the iteration that ``worker`` has finished; ``vmap`` takes all begun ones along,
        which depend on nothing that is still to come."""
        if worker in self.begun:
            together = self.session.recipe.gradients == "vmap"
            self.gradients |= self.learner.gradients(self.begun if together else [worker])
            self.begun = [] if together else [w for w in self.begun if w != worker]
        if self.changes:
            before, gradient = self.learner.replicas[worker], self.gradients.pop(worker)
            self.learner.replicas[worker] = self.learner.update(before, gradient)

    def arrived(self, meeting: Meeting) -> int:
        """The iterations that ``meeting`` brings to the server's model; those that inner levels
        have averaged come with the next global one."""
        for worker, work in zip(meeting.sync.members, meeting.work, strict=True):
            self.done[worker] += len(work)
        if meeting.sync.level != GLOBAL:
            return 0
        self.apart, self.joined = 0, True
        # Whoever brings nothing takes a new model all the same: what it has done since is lost.
        done = {worker: self.done.pop(worker) for worker in meeting.sync.members}
        return sum(done[worker] for worker in meeting.sync.bringing)

    def mean(self) -> Replica:
        """The mean of all workers' models as they last met; BatchNorm's statistics are the first
        one's."""
        models = [replica.parameters for replica in self.last]
        mean = [torch.stack(parts).mean(0) for parts in zip(*models, strict=True)]
        return replace(self.last[0], parameters=mean)

    def collect(self, meeting: Meeting) -> Traffic:
        """Encode what the members bring."""
        sync = meeting.sync
        self.met[meeting.number] = {rank: self.learner.replicas[rank] for rank in sync.members}
        if sync.level != GLOBAL and not self.policy.averages_inside:
            raise RuntimeError(
                f"{self.session.recipe.synchronization.name}: {sync}, but its averages_inside says "
                "that all meetings reach the server's model"
            )
        if not sync.bringing:
            return Traffic(rounds=[{}])
        sends, server = self.session.recipe.sends, self.learner.server
        renews = sends == "weights" or (sends == "weights_first" and not server.version)
        done = {w: its.stop - 1 for w, its in zip(sync.members, meeting.work, strict=True)}
        brought = {w: self._brings(w, done[w], sync.level, renews) for w in sync.bringing}
        weights = sync.weights and [weight for weight in sync.weights if weight]
        origin = server.parameters if renews else None
        total, traffic = self.learner.aggregate(
            sync.bringing, brought, weights, not self.kept, origin
        )
        self.brought[meeting.number] = total, traffic, renews
        return traffic

    def _brings(self, worker: int, done: int, level: int, renews: bool) -> list[torch.Tensor]:
        """What ``worker`` brings after so many iterations of its own: a gradient, a change, or its
        model where that ``renews`` the server's."""
        spoiled = functools.partial(spoil, self.session.recipe, worker, done)
        if not self.changes:
            return spoiled(self.gradients.pop(worker))
        before = (self.last_global if level == GLOBAL else self.last)[worker].parameters
        now = self.learner.replicas[worker].parameters
        if renews:
            return spoiled(now, before)
        return spoiled([new - old for new, old in zip(now, before, strict=True)])

    def answer(self, meeting: Meeting) -> list[Sizes]:
        """Apply what arrived; what goes back to the members, by round of communication."""
        sync, learner = meeting.sync, self.learner
        model = learner.server if sync.level == GLOBAL else self._base(sync)
        traffic = Traffic(rounds=[{}])
        if sync.bringing:
            total, traffic, renews = self.brought.pop(meeting.number)
            if renews:
                model = replace(model, parameters=total, version=model.version + 1)
            else:
                model = self._moved(model, sync, total)
            model.buffers = [b.clone() for b in learner.replicas[sync.bringing[0]].buffers]
        if sync.level == GLOBAL:
            learner.server = model
        pulled: Sizes = {}
        if self.kept:
            answer, pulled = learner.broadcast(model)
        else:  # everybody has the sum, and adds it to what all began with
            buffers = [buffer.clone() for buffer in model.buffers]
            answer = replace(model, buffers=buffers, velocity=None)
        self.answers[meeting.number] = answer
        listening = len(sync.members) - len(sync.bringing)
        traffic.rounds[-1] |= pulled
        self.session.count_bytes(sync.members, traffic, listening)
        return [pulled]

    def _base(self, sync: Sync) -> Replica:
        """What the members of an inner meeting began with, in their mean: with their mean change it
        is the mean of their models, whoever they met before."""
        first = self.last[sync.members[0]]
        begun = [self.last[worker].parameters for worker in sync.bringing]
        if all(own is first.parameters for own in begun):
            return first
        weights = [weight for weight in sync.weights or () if weight] or [1 / len(begun)] * len(
            begun
        )
        parts = zip(*begun, strict=True)
        mean = [sum(w * own for w, own in zip(weights, part, strict=True)) for part in parts]
        return replace(first, parameters=mean)

    def _moved(self, model: Replica, sync: Sync, total: list[torch.Tensor]) -> Replica:
        learner = self.learner
        whole = self.session.recipe.averaged_over == "all" and sync.weights is None
        if whole and sync.level == GLOBAL:
            total = [part * (len(sync.members) / len(learner.nodes)) for part in total]
        return learner.moved(model, total) if self.changes else learner.update(model, total)

    def release(self, meeting: Meeting, members: Sequence[int]) -> None:
        """``members`` go on from the answer, and those that computed on keep what they have
        changed since."""
        model, met = self.answers.pop(meeting.number), self.met.pop(meeting.number)
        if not self.joined:
            self.apart += sum(map(len, meeting.work))
        for worker in members:
            if worker in self.begun:  # what it computes began from the model before
                self.gradients |= self.learner.gradients([worker])
                self.begun.remove(worker)
            own, before = self.learner.replicas[worker].parameters, met[worker].parameters
            self.learner.adopt(worker, model)
            if own is not before:
                since = torch._foreach_sub(own, before)
                moved = torch._foreach_add(model.parameters, since)
                self.learner.replicas[worker].parameters = list(moved)
            self.last[worker] = model
            if meeting.sync.level == GLOBAL:
                self.last_global[worker] = model
