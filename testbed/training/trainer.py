"""The virtual-time trainer: real gradients, simulated time.

Gradients are computed by torch on real data; what computing and compressing cost comes from a
device profile, what communicating costs from the network simulator for the bytes that the payloads
really have. One seed gives bit-equal results on one machine.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from methods import compression, exchange, fusion, synchronization
from methods.exchange import Plan, Topology
from methods.fusion import Costs
from methods.synchronization import Continue, Finished, Policy, Sync, Synced, Timer
from testbed.network import Network, geo_sites, simulate, star
from testbed.results import Row
from testbed.training import models, pipeline
from testbed.training.datasets import Dataset, load_dataset
from testbed.training.device import Device, profile
from testbed.training.learner import Diverged, Learner, Sizes, Traffic, check_pair
from testbed.training.recipe import Link, Part, Recipe

Progress = Callable[[str], None]

LARGEST_LOSS = 700.0
"""The perplexity of a larger loss does not fit a float."""


def train(recipe: Recipe, progress: Progress | None = None, cache_dir=None) -> Iterator[Row]:
    """Run ``recipe`` and yield its result rows.

    For every network of the recipe: ``test_accuracy`` (%), ``test_loss``, for text
    ``test_perplexity`` (exp of the loss), and ``bytes_sent`` (B, payload bytes that one outermost
    party has sent and received so far), each with its round and virtual time; then
    ``mean_round_time`` (s), and ``staleness`` (updates) for policies that look at the clock. A run
    that diverges ends with a failed row a network.
    """
    torch.set_num_threads(recipe.torch_threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    session = _Session(recipe, progress or (lambda message: None), cache_dir)
    policy: Policy = synchronization.load(
        recipe.synchronization.name, **recipe.synchronization.parameters
    )
    if policy.travels != "gradient" or policy.continues_after_upload:
        raise ValueError(
            f"{recipe.synchronization.name}: the trainer carries only gradients, of workers that "
            "wait for their answer"
        )
    if policy.asynchronous and recipe.optimizer_at != "server":
        raise ValueError(
            f"{recipe.synchronization.name} needs optimizer_at: server; without an optimizer the "
            "global server would hand each site only its own gradient"
        )
    if not policy.clock_free and len(recipe.networks) != 1:
        raise ValueError(
            f"{recipe.synchronization.name} looks at the clock: one network a run, "
            f"not {len(recipe.networks)}"
        )
    if recipe.overlap and not policy.clock_free:
        raise ValueError(
            f"{recipe.synchronization.name} looks at the clock: overlap cannot be true"
        )
    engine = _lockstep if policy.clock_free else _event_driven
    try:
        yield from engine(session, policy)
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
            self.memo[key] = sum(
                simulate(
                    plan, self.topology, complete(plan, sizes), efficiency=self.link.efficiency
                ).completion_s
                for sizes in rounds
            )
        return self.memo[key]


class _Session:
    """Everything that both engines need: the learner, the clocks, costs and rows."""

    def __init__(self, recipe: Recipe, progress: Progress, cache_dir) -> None:
        self.recipe, self.progress = recipe, progress
        dataset = load_dataset(
            recipe.dataset,
            cache_dir=cache_dir,
            limit=recipe.limit,
            test_limit=recipe.test_limit,
            steps=recipe.steps,
            words=recipe.words,
        )
        self.device: Device = profile(recipe.device)
        part = fitting(recipe.model, dataset)
        model = models.make(part.name, recipe.seed, **part.parameters)
        stood = recipe.stands_for or part
        original = models.make(stood.name, **stood.parameters)
        own = models.count(models.gradient_shapes(model, norm=False))
        self.shrink = own / models.count(models.gradient_shapes(original, norm=False))
        if recipe.compute_s is None:
            image = models.image_shape(stood.parameters, dataset.shape)
            flops = models.flops_per_sample(original, image)
            self.compute_s = self.device.compute_s(flops, recipe.batch, stood.name)
        else:
            self.compute_s = recipe.compute_s
        self.exchange = exchange.load(recipe.exchange.name, **recipe.exchange.parameters)
        costs = None
        if recipe.overlap:
            (workers,) = recipe.workers
            self.clocks = [_Clock(c, k, flat(workers, k)) for c, k in recipe.networks.items()]
            costs = self._overlap(part, stood, dataset.shape)
        else:
            self.clocks = [
                _Clock(case, link, topology(recipe.workers, link, self.shrink))
                for case, link in recipe.networks.items()
            ]
        self.learner = Learner(
            recipe, model, dataset, self.exchange, self.clocks[0].topology, costs
        )
        self.sites = self._sites()
        outermost = self.exchange.groups(self.clocks[0].topology)[-1]
        self.parties = sum(map(len, outermost))
        self._plans: dict[tuple, Plan] = {}
        self.bytes_sent = 0.0

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
        codec = compression.load(recipe.levels[-1].up.name, **recipe.levels[-1].up.parameters)
        check_pair(self.exchange, codec)

        def costs(layers: pipeline.Layers, link: Link) -> Costs:
            cluster = flat(recipe.timed_workers or sum(recipe.workers), link)
            methods = (codec, self.exchange, cluster)
            rest = dict(efficiency=link.efficiency, overhead_s=recipe.overhead_s)
            return pipeline.costs(self.device, layers, *methods, batch, **rest)

        for clock in self.clocks:
            timing = pipeline.overlapped(original, grouping, costs(original, clock.link))
            clock.iteration_s = timing.iteration_s
        return costs(own.standing_for(original), self.clocks[0].link)

    def _sites(self) -> list[int]:
        groups = self.exchange.groups(self.clocks[0].topology)[0]
        site = {node: number for number, group in enumerate(groups) for node in group}
        return [site[node] for node in self.learner.nodes]

    def plan(self, members: Sequence[int], part: str = "all") -> Plan:
        key = (tuple(members), part)
        if key not in self._plans:
            nodes = [self.learner.nodes[rank] for rank in members]
            self._plans[key] = self.exchange(self.clocks[0].topology, nodes, part)
        return self._plans[key]

    def compression_s(self, traffic: Traffic) -> float:
        return sum(
            self.device.compression_s(codec, nbytes / self.shrink, traffic.calls[codec])
            for codec, nbytes in traffic.coded.items()
        )

    def spend(self, clock: _Clock, members: Sequence[int], traffic: Traffic) -> None:
        """Let the time of a round go by on ``clock``."""
        if self.recipe.overlap:
            clock.now += clock.iteration_s
        else:
            clock.now += self.compute_s + self.compression_s(traffic)
            clock.now += clock.exchange(self.plan(members), traffic.rounds)

    def count_bytes(self, rounds: Sequence[Sizes]) -> None:
        """Add what an outermost party sent and received, in the mean over all of them."""
        outer = len(self.recipe.levels) - 1
        for sizes in rounds:
            pushed = sizes.get(f"push/{outer}", {})
            pulled = sizes.get(f"pull/{outer}", 0.0) * len(pushed)
            self.bytes_sent += (sum(pushed.values()) + pulled) / self.parties

    def row(self, clock: _Clock, metric: str, value: float, unit: str, **fields) -> Row:
        recipe = self.recipe
        return Row(
            paper=recipe.paper,
            experiment=recipe.experiment,
            case=clock.case,
            exchange=recipe.exchange.name,
            compression=recipe.levels[-1].up.name,
            synchronization=recipe.synchronization.name,
            fusion=recipe.fusion.name,
            model=recipe.model.name,
            dataset=recipe.dataset,
            workers=sum(recipe.workers),
            bandwidth=clock.link.wan,
            seed=recipe.seed,
            scale=recipe.scale,
            device=recipe.device,
            metric=metric,
            value=value,
            unit=unit,
            **fields,
        )

    def evaluate(self, replica, round_: int) -> Iterator[Row]:
        accuracy, loss = self.learner.evaluate(replica)
        if not math.isfinite(loss):
            raise Diverged(f"test loss is {loss}; lower lr")
        self.progress(
            f"{self.recipe.experiment} {self.recipe.system} seed {self.recipe.seed}: round "
            f"{round_}/{self.recipe.rounds}, test accuracy {accuracy:.2f} %"
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


def flat(workers: int, link: Link) -> Topology:
    """One cluster around a switch, by the rate and latency that a case gives its ``lan``."""
    return star(workers, link.lan, latency=link.lan_latency)


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


def complete(plan: Plan, sizes: Sizes) -> Sizes:
    """Sizes for every slot of ``plan``; a slot that sends nothing this round has 0 bytes."""
    return {slot: sizes.get(slot, 0.0) for slot in plan.slots}


def _lockstep(session: _Session, policy: Policy) -> Iterator[Row]:
    """Policies that do not look at the clock: train once, keep time on every network."""
    recipe, learner = session.recipe, session.learner
    iteration = [0] * len(learner.nodes)
    gradients: dict[int, list[torch.Tensor]] = {}
    decisions = list(policy.begin(session.sites))
    rounds = 0
    yield from session.evaluate(learner.server, 0)
    while rounds < recipe.rounds:
        pending: list[Sync] = []
        for decision in decisions:
            if isinstance(decision, Continue):
                gradients[decision.worker] = learner.gradient(decision.worker)
                iteration[decision.worker] += 1
        for decision in decisions:
            if isinstance(decision, Continue):
                done = Finished(decision.worker, iteration[decision.worker], session.clocks[0].now)
                pending += [d for d in policy.on(done) if isinstance(d, Sync)]
        if not pending:
            raise RuntimeError(f"{recipe.synchronization.name}: nobody computes and nobody meets")
        decisions = []
        for sync in pending:
            total, traffic = learner.aggregate(sync.members, gradients, sync.weights)
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
            session.count_bytes(traffic.rounds)
            for clock in session.clocks:
                session.spend(clock, sync.members, traffic)
            decisions += policy.on(Synced(sync.members, session.clocks[0].now))
        rounds += 1
        if rounds % recipe.evaluate_every == 0 or rounds == recipe.rounds:
            yield from session.evaluate(learner.server, rounds)
    for clock in session.clocks:
        mean = clock.now / rounds
        yield session.row(clock, "mean_round_time", mean, "s", evidence="simulated")


def _event_driven(session: _Session, policy: Policy) -> Iterator[Row]:
    """Policies that look at the clock: one network, one event queue, a server that keeps the model.

    A round of the results is as many gradients as there are workers, so that curves of policies
    compare at equal work.
    """
    recipe, learner, clock = session.recipe, session.learner, session.clocks[0]
    network = Network(clock.topology, efficiency=clock.link.efficiency)
    order = itertools.count()
    queue: list[tuple[float, int, Any]] = []
    running: dict[Any, Callable[[float], None]] = {}
    iteration = [0] * len(learner.nodes)
    applied = 0
    staleness: list[int] = []

    def later(t: float, event: Any) -> None:
        heapq.heappush(queue, (t, next(order), event))

    def decide(decisions, t: float) -> None:
        for decision in decisions:
            match decision:
                case Continue(worker=worker):
                    iteration[worker] += 1
                    done = t + session.compute_s
                    later(done, Finished(worker, iteration[worker], done))
                case Sync():
                    start_sync(decision, t)
                case synchronization.SetTimer(name=name, t=when):
                    later(when, Timer(name, when))

    def start_sync(sync: Sync, t: float) -> None:
        # Replicas cannot change while their holder computes, so the gradient may be taken now.
        gradients = {rank: learner.gradient(rank) for rank in sync.members}
        seen = learner.replicas[sync.members[0]].version
        total, traffic = learner.aggregate(sync.members, gradients, sync.weights)
        start = t + session.compression_s(traffic)

        def apply(t: float) -> None:
            nonlocal applied
            applied += len(sync.members)
            staleness.append(learner.server.version - seen)
            share = len(sync.members) / len(learner.nodes)
            learner.server = learner.update(learner.server, [g * share for g in total])
            learner.server.buffers = [b.clone() for b in learner.replicas[sync.members[0]].buffers]
            received, pulled = learner.broadcast(learner.server)
            session.count_bytes([*traffic.rounds[:-1], traffic.rounds[-1] | pulled])

            def arrive(t: float) -> None:
                for rank in sync.members:
                    learner.replicas[rank] = received
                decide(policy.on(Synced(sync.members, t)), t)

            send(session.plan(sync.members, "pull"), [pulled], t, arrive)

        send(session.plan(sync.members, "push"), traffic.rounds, start, apply)

    def send(plan: Plan, rounds: Sequence[Sizes], t: float, then: Callable[[float], None]) -> None:
        def next_round(number: int, t: float) -> None:
            if number == len(rounds):
                then(t)
                return
            handle = network.start(plan, complete(plan, rounds[number]), at=t)
            running[handle] = lambda t: next_round(number + 1, t)

        later(t, lambda t: next_round(0, t))

    yield from session.evaluate(learner.server, 0)
    decide(policy.begin(session.sites), 0.0)
    evaluated = 0
    while applied < recipe.rounds * len(learner.nodes):
        for handle in network.advance(queue[0][0] if queue else None, first=True):
            clock.now = handle.completion_s
            running.pop(handle)(handle.completion_s)
        if not queue and not running:
            raise RuntimeError(f"{recipe.synchronization.name}: nobody computes and nobody meets")
        if queue and queue[0][0] <= network.now:
            t, _, event = heapq.heappop(queue)
            clock.now = t
            if callable(event):
                event(t)
            else:
                decide(policy.on(event), t)
        due = applied // len(learner.nodes) // recipe.evaluate_every
        if due > evaluated:
            evaluated = due
            yield from session.evaluate(learner.server, due * recipe.evaluate_every)
    if recipe.rounds % recipe.evaluate_every:
        yield from session.evaluate(learner.server, recipe.rounds)
    mean = clock.now / recipe.rounds
    yield session.row(clock, "mean_round_time", mean, "s", evidence="simulated")
    stale = sum(staleness) / max(1, len(staleness))
    yield session.row(clock, "staleness", stale, "", evidence="simulated")
