"""LPSP's experiments without training: who waits for whom on uneven workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from slowlink.testbed.results import Row
from slowlink.testbed.training.recipe import Dataset, Model, Part, slug
from slowlink.workflow.closure import ROOT
from slowlink.workflow.documents.lpsp.settings import (
    BSP,
    LPSP,
    Bench,
    Settings,
    Share,
    Sizes,
    Workload,
    coordinates_of,
)
from slowlink.workflow.experiment import PLANNING, Section, experiment

if not PLANNING:
    import functools
    import itertools
    import math
    import tempfile
    from collections import Counter
    from dataclasses import replace

    import numpy as np
    import torch

    from slowlink.methods import exchange, synchronization
    from slowlink.methods.synchronization import Finished, Policy
    from slowlink.testbed.live.engine import on_ray
    from slowlink.testbed.live.engine.coordinator import Ended
    from slowlink.testbed.live.engine.settings import parse
    from slowlink.testbed.live.replay import Record, replayed, summary
    from slowlink.testbed.network import Network, star
    from slowlink.testbed.training import batching as gradients
    from slowlink.testbed.training import models, stragglers
    from slowlink.testbed.training.stragglers import (
        Drawn,
        Fixed,
        Jitter,
        Stragglers,
        Trace,
        Varying,
    )
    from slowlink.testbed.training.summary import reached
    from slowlink.testbed.training.virtual_time import (
        Communication,
        Log,
        Meeting,
        OnNetwork,
        Scripted,
        play,
    )

RECORDED = "data/recorded/ray_*.json"
"""Runs on real workers, which Ray placed, that are kept in the repository."""
SERVER = "parameter_server"
MAIN = "fixed"
"""The variant that the document describes."""
BESIDE_DRAWS = 5
"""Variants that take long, and stand beside the main one, make do with so many draws."""
WARM_UP = 0.3
"""The first iterations are left out, by this share: who may run ahead does so in them, once."""
QUANTILES = 0.05, 0.5, 0.95, 0.999, 1.0


# What experiments share ---------------------------------------------------------------------------


def _row(
    bench: Bench, metric: str, value: float, unit: str, part: Part | None = None, **fields
) -> Row:
    """A row of the policy ``part``, which its coordinate ``method`` names."""
    own = dict(case=" ".join(map(str, fields.get("at", {}).values())), evidence="simulated")
    if part is not None:
        own |= dict(exchange=SERVER, compression="identity", synchronization=part.name)
    return bench.row(metric, value, unit, **own | fields)


def _policy(part: Part, **changes: object) -> Policy:
    return synchronization.load(part.name, **part.parameters | changes)


def _times(bench: Bench, mnist: Workload, workers: int, draw: int) -> Fixed:
    """The speeds of a draw; training's seeds are draws, too."""
    return stragglers.uniform(workers, mnist.base_s, bench.settings.stragglers.highest, draw)


def _spans(row: Callable[..., Row], at: dict, log: Log) -> Iterator[Row]:
    """What each worker does from when to when."""
    numbers: Counter[tuple[int, str]] = Counter()
    for span in log.spans:
        numbers[span.worker, span.kind] += 1
        number = numbers[span.worker, span.kind]
        here = at | dict(worker=span.worker + 1, activity=span.kind, number=number)
        yield row("begin", span.start, "s", at=here)
        yield row("end", span.end, "s", at=here)


# The worked example -------------------------------------------------------------------------------


class Example(Section):
    """§1: seconds an iteration of each worker; ``drawn`` are the iterations that the members of
    each synchronization bring, by worker."""

    times: list[PositiveFloat]
    local_iterations: PositiveInt
    communication: NonNegativeFloat
    drawn: list[dict[int, PositiveInt]]
    seconds: PositiveFloat

    @model_validator(mode="after")
    def _has_its_workers(self) -> Example:
        for number, meeting in enumerate(self.drawn):
            for worker in meeting:
                if not 0 <= worker < len(self.times):
                    raise ValueError(f"drawn.{number}: there is no worker {worker}")
        return self


@experiment(methods=(BSP, LPSP), minutes=5, memory_mb=1000)
def example(bench: Bench, example: Example) -> Iterator[Row]:
    """Figure 1: its BSP, the schedule it draws, and what Algorithm 1 does, in all readings."""
    bsp = bench.settings.methods[BSP]
    local, workers = example.local_iterations, len(example.times)
    schedules = {
        BSP: (dict(method=BSP), bsp, _policy(bsp, local_iterations=local)),
        "drawn": (dict(method="drawn"), None, Scripted(example.drawn)),
    }
    for label, part in _readings(bench.settings).items():
        schedules[label] = coordinates_of(LPSP, part, label), part, _policy(part)
    for worker, seconds in enumerate(example.times, 1):
        at = dict(method=BSP, worker=worker)
        here = dict(at=at, part=bsp, workers=workers, evidence="computed")
        yield _row(bench, "local_time", local * seconds, "s", **here)
    for method, (at, part, policy) in schedules.items():
        bench.say(f"example: {method}")
        log = play(
            policy,
            Fixed(tuple(example.times)),
            example.communication,
            groups=[0] * workers,
            seconds=example.seconds,
        )
        row = functools.partial(_row, bench, part=part, workers=workers)
        yield from _meetings(row, at, log, 1 if method == BSP else 3)
        yield from _spans(row, dict(method=method), log)


def _readings(settings: Settings) -> dict[str, Part]:
    """LPSP in all readings, the literal one first."""
    return {LPSP: settings.methods[LPSP]} | settings.readings


def _meetings(row: Callable[..., Row], at: dict, log: Log, counted: int) -> Iterator[Row]:
    """The first three synchronizations one by one; totals of as many as are ``counted``."""
    for number, meeting in enumerate(log.meetings[:3], 1):
        here = at | dict(meeting=number)
        yield row("sync_point", max(meeting.arrived), "s", at=here)
        yield row("decided", meeting.decided, "s", at=here)
        yield row("sync_wait", math.fsum(meeting.waits), "s", at=here)
        yield row("delay", math.fsum(meeting.delays), "s", at=here)
        yield row("members", len(meeting.arrived), "1", at=here)
    first = log.meetings[:counted]
    yield row("total_wait", math.fsum(w for m in first for w in m.waits), "s", at=at)
    yield row("total_delay", math.fsum(d for m in first for d in m.delays), "s", at=at)
    yield row("iterations", sum(len(work) for m in first for work in m.work), "1", at=at)


# Who waits for whom -------------------------------------------------------------------------------


class Waiting(Section):
    """``iterations`` of each worker, in the mean; ``constant``, ``slow_rate``: other networks."""

    workers: Sizes
    draws: Annotated[int, Field(ge=3)]
    iterations: PositiveInt
    constant: PositiveFloat
    slow_rate: PositiveFloat


@dataclass(frozen=True)
class _Variant:
    """Speeds of the workers by draw, and the network of one run."""

    speeds: Callable[[int], Stragglers]
    communication: Callable[[], float | Communication]
    draws: int
    bandwidth: float = float("nan")
    at: tuple[tuple[str, float], ...] = ()


def _variants(bench: Bench, workers: int, waiting: Waiting, mnist: Workload) -> dict[str, _Variant]:
    uneven, base = bench.settings.stragglers, mnist.base_s
    draws, few = waiting.draws, min(waiting.draws, BESIDE_DRAWS)
    rate, slow, constant = bench.settings.network.rate, waiting.slow_rate, waiting.constant
    network = _network(bench, mnist, workers, rate)
    fixed = functools.partial(_times, bench, mnist, workers)

    def jitter(draw: int) -> Stragglers:
        return Jitter(fixed(draw), uneven.jitter, draw)

    def varying(draw: int) -> Stragglers:
        alike = Fixed((base,) * workers)
        return Varying(alike, uneven.period * base, uneven.highest, seed=draw)

    return {
        MAIN: _Variant(fixed, network, draws, rate),
        "jitter": _Variant(jitter, network, few, rate),
        "varying": _Variant(varying, network, few, rate),
        "trace": _Variant(_traces(base, workers), network, few, rate),
        "no communication": _Variant(fixed, lambda: 0.0, draws),
        "constant": _Variant(fixed, lambda: constant, draws, at=(("seconds", constant),)),
        "slow server": _Variant(fixed, _network(bench, mnist, workers, slow), few, slow),
    }


def _traces(base_s: float, workers: int) -> Callable[[int], Stragglers]:
    """Recorded iteration times of real workers, in units that make the fastest one's mean the
    shortest iteration; which worker has whose is drawn."""
    records = [Record.load(path) for path in sorted(ROOT.glob(RECORDED))]
    recorded = [np.array(times) for record in records for times in record.iterations]
    if len(recorded) < workers:
        raise ValueError(f"{RECORDED}: {len(recorded)} recorded workers, {workers} are needed")
    unit = base_s / min(times.mean() for times in recorded)

    def drawn(draw: int) -> Stragglers:
        chosen = np.random.default_rng(draw).permutation(len(recorded))[:workers]
        return Trace(tuple(tuple((unit * recorded[i]).tolist()) for i in chosen))

    return drawn


def _network(
    bench: Bench, mnist: Workload, workers: int, server_rate: float
) -> Callable[[], OnNetwork]:
    """Makes a star in which the server's link is shared; the model travels there and back."""
    network, model = bench.settings.network, mnist.model
    topology = star(workers, network.rate, server_rate=server_rate, latency=network.latency)
    server, nodes = exchange.load("parameter_server"), topology.workers.tolist()
    made = models.make(model.name, **model.parameters)
    nbytes = 4 * models.count(models.gradient_shapes(made))

    @functools.cache
    def plan(members: tuple[int, ...], phase: str) -> exchange.Plan:
        return server(topology, [nodes[rank] for rank in members], phase)

    def fresh() -> OnNetwork:
        return OnNetwork(
            Network(topology, efficiency=network.efficiency), plan, lambda sync, phase: nbytes
        )

    return fresh


@experiment(
    parts=lambda recipe: map(str, recipe.waiting.workers),
    makes=("staleness",),
    files=(RECORDED,),
    minutes=30,
)
def waiting(
    bench: Bench, part: str, waiting: Waiting, mnist: Workload, cifar10: Workload
) -> Iterator[Row]:
    """Every policy on so many uneven workers."""
    workers, policies = int(part), dict(bench.settings.methods)
    if workers == cifar10.ablated_workers:
        policies |= bench.settings.ablations["formula"]
    # All others are held against BSP.
    policies = {BSP: policies[BSP]} | policies
    for name, variant in _variants(bench, workers, waiting, mnist).items():
        bench.say(f"waiting: {workers} workers, {name}")
        row = functools.partial(
            _row, bench, model=mnist.model.name, workers=workers, bandwidth=variant.bandwidth
        )
        yield from _on_uneven(row, workers, policies, name, variant, waiting.iterations)


def _on_uneven(
    row: Callable[..., Row],
    n: int,
    policies: dict[str, Part],
    name: str,
    variant: _Variant,
    each: int,
) -> Iterator[Row]:
    """All policies in one variant; in the main one also their staleness over all draws."""
    histograms: dict[str, Counter[int]] = {label: Counter() for label in policies}
    for draw in range(1, variant.draws + 1):
        speeds = variant.speeds(draw)
        bsp = math.nan
        for label, part in policies.items():
            log = play(
                _policy(part), speeds, variant.communication(), groups=[0] * n, iterations=each * n
            )
            steady = _steady(log, round(WARM_UP * each * n))
            stale = [value for meeting in steady.meetings for value in meeting.staleness or ()]
            if not stale:
                raise ValueError(
                    f"waiting.iterations: {each} of each worker are too few, {label} brings "
                    "nothing to the model"
                )
            histograms[label].update(stale)
            bsp = steady.iterations / steady.seconds if label == BSP else bsp
            at = dict(method=label, **dict(variant.at))
            for metric, (value, unit) in _metrics(steady, n, bsp, stale).items():
                yield row(metric, value, unit, part=part, at=at, variant=name, seed=draw)
    if name != MAIN:
        return
    for label, histogram in histograms.items():
        for value, count in sorted(histogram.items()):
            at = dict(method=label, staleness=value)
            here = dict(experiment="staleness", part=policies[label], at=at)
            yield row("share", 100 * count / histogram.total(), "%", **here)


@dataclass(frozen=True)
class _Steady:
    """A run without its beginning: seconds, and iterations and meetings that ended in them."""

    seconds: float
    waited: float
    iterations: int
    meetings: list[Meeting]


def _steady(log: Log, skipped: int) -> _Steady:
    """``log`` from the end of the iteration number ``skipped``, of all workers, on."""
    finished = [told.t for told in log.told if isinstance(told.event, Finished)]
    since = finished[skipped - 1] if skipped else 0.0
    return _Steady(
        seconds=log.end - since,
        waited=math.fsum(
            max(0.0, span.end - max(span.start, since)) for span in log.spans if span.kind == "wait"
        ),
        iterations=sum(t > since for t in finished),
        meetings=[meeting for meeting in log.meetings if since < meeting.received <= log.end],
    )


def _metrics(run: _Steady, n: int, bsp: float, stale: list[int]) -> dict[str, tuple[float, str]]:
    """What a run comes to; ``bsp`` is BSP's iterations a second.

    Means over contributions (a member of a synchronization each) but for the size of
    synchronizations and the time from one to the next. Who only pulls adds its wait to ``delay``.
    """
    meetings = [meeting for meeting in run.meetings if meeting.sync.bringing]
    members = sum(len(meeting.sync.bringing) for meeting in meetings)
    brought = sum(len(work) for meeting in meetings for work in meeting.work)
    waits = math.fsum(wait for meeting in meetings for wait in meeting.waits)
    delays = math.fsum(delay for meeting in run.meetings for delay in meeting.delays)
    rate = run.iterations / run.seconds
    return {
        "iterations_per_s": (rate, "1/s"),
        "over_bsp": (rate / bsp, "1"),
        "waiting_share": (100 * run.waited / (n * run.seconds), "%"),
        "sync_wait": (waits / members, "s"),
        "delay": (delays / members, "s"),
        "staleness": (sum(stale) / len(stale), "1"),
        "staleness_max": (max(stale), "1"),
        "local_iterations": (brought / members, "1"),
        "meeting_size": (members / len(meetings), "1"),
        "sync_interval": (run.seconds / len(meetings), "s"),
    }


class ByReading(Section):
    """``iterations`` of each worker, in the mean."""

    workers: Sizes
    draws: Annotated[int, Field(ge=3)]
    iterations: PositiveInt


SPEEDS = MAIN, "drawn", "alike", "trace"
"""Models of speed: constant a worker, each iteration drawn up to the worker's own factor, each
iteration drawn alike for all, recorded."""


@experiment(
    parts=lambda recipe: map(str, recipe.by_reading.workers),
    methods=(BSP, "ASP", "SSP", LPSP),
    files=(RECORDED,),
    minutes=20,
)
def by_reading(
    bench: Bench, part: str, by_reading: ByReading, mnist: Workload, cifar10: Workload
) -> Iterator[Row]:
    """LPSP in every reading on so many uneven workers, without communication."""
    n, settings = int(part), bench.settings
    readings = _readings(settings)
    policies = [({"method": label}, settings.methods[label]) for label in (BSP, "ASP", "SSP")]
    policies += [(coordinates_of(LPSP, one, label), one) for label, one in readings.items()]
    if n == cifar10.ablated_workers:
        for reading, group in itertools.product(readings, cifar10.ablations):
            changed = settings.lpsp(settings.ablations[group], reading)
            policies += [(coordinates_of(k, one, reading), one) for k, one in changed.items()]
    base, each, highest = mnist.base_s, by_reading.iterations, settings.stragglers.highest
    traces = _traces(base, n)
    for draw in range(1, by_reading.draws + 1):
        bench.say(f"by_reading: {n} workers, draw {draw}")
        fixed = _times(bench, mnist, n, draw)
        own = tuple(t / base for t in fixed.times)
        models = fixed, Drawn(base, own, draw), Drawn(base, (highest,) * n, draw), traces(draw)
        for name, speeds in zip(SPEEDS, models, strict=True):
            bsp = math.nan
            for at, one in policies:
                log = play(_policy(one), speeds, groups=[0] * n, iterations=each * n)
                steady = _steady(log, round(WARM_UP * each * n))
                stale = [s for meeting in steady.meetings for s in meeting.staleness or ()] or [0]
                bsp = steady.iterations / steady.seconds if at["method"] == BSP else bsp
                for metric, (value, unit) in _metrics(steady, n, bsp, stale).items():
                    if metric in READ:
                        place = dict(part=one, at=at, workers=n, variant=name, seed=draw)
                        yield _row(bench, metric, value, unit, **place)


READ = "over_bsp", "delay", "meeting_size", "staleness"
"""What of a run in a reading is kept."""


class Gantt(Section):
    """The time that the slowest worker takes for so many iterations."""

    workers: PositiveInt
    iterations: PositiveInt


@experiment(minutes=5)
def gantt(bench: Bench, gantt: Gantt, mnist: Workload) -> Iterator[Row]:
    """What each worker does when, on the speeds of the first draw."""
    rate, workers = bench.settings.network.rate, gantt.workers
    speeds, network = _times(bench, mnist, workers, 1), _network(bench, mnist, workers, rate)
    for label, part in bench.settings.methods.items():
        bench.say(f"gantt: {label}")
        seconds = gantt.iterations * max(speeds.times)
        log = play(_policy(part), speeds, network(), groups=[0] * workers, seconds=seconds)
        same = dict(part=part, model=mnist.model.name, workers=workers, bandwidth=rate)
        yield from _spans(functools.partial(_row, bench, **same), dict(method=label), log)


# What there is to gain ----------------------------------------------------------------------------


class Bound(Section):
    """``ratios`` of which the share of draws that reach them is counted."""

    draws: PositiveInt
    ratios: list[PositiveFloat]


@experiment(minutes=10)
def bound(
    bench: Bench, bound: Bound, waiting: Waiting, mnist: Workload, cifar10: Workload
) -> Iterator[Row]:
    """Iterations a second without any waiting over those of BSP: of the draws used, and of many."""
    highest = bench.settings.stragglers.highest
    used = {"waiting": {*range(1, waiting.draws + 1)}, "trained": {*mnist.seeds, *cifar10.seeds}}
    row = functools.partial(_row, bench, evidence="computed")
    for n in waiting.workers:
        bench.say(f"bound: {n} workers")
        for draws, seeds in used.items():
            for draw in sorted(seeds):
                value = stragglers.removable(_times(bench, mnist, n, draw).times)
                yield row("removable", value, "1", at=dict(draws=draws), workers=n, seed=draw)
        drawn = stragglers.removable_draws(n, bound.draws, highest)
        for quantile, value in zip(QUANTILES, np.quantile(drawn, QUANTILES), strict=True):
            yield row("removable", value, "1", at=dict(quantile=quantile), workers=n)
        # One worker is the slowest there can be, and all others the fastest.
        yield row("removable_supremum", (1 + highest * (n - 1)) / n, "1", workers=n)
        for ratio in bound.ratios:
            share = 100 * np.mean(drawn >= ratio)
            yield row("share", share, "%", at=dict(ratio=ratio), workers=n)
    # E(1/t) for even t; no time differs if the highest factor is 1.
    limit = highest * math.log(highest) / (highest - 1) if highest > 1 else 1.0
    yield row("removable_limit", limit, "1", case="many workers")


# Gradients of all workers at once -----------------------------------------------------------------


class Batching(Section):
    workers: Sizes
    batches: Sizes
    repeats: PositiveInt


@experiment(alone=True, memory_mb=6000)
def batching(bench: Bench, batching: Batching, mnist: Workload, cifar10: Workload) -> Iterator[Row]:
    """The ways to compute the workers' gradients, timed on the device that trains."""
    cuda = bench.settings.accelerator != "cpu" and torch.cuda.is_available()
    for workload in (mnist, cifar10):
        name = workload.model.name
        model = models.make(name, **workload.model.parameters).to("cuda" if cuda else "cpu")
        for n in batching.workers:
            for batch in batching.batches:
                bench.say(f"batching: {name}, {n} workers, {batch} samples each")
                seconds = gradients.measure(
                    model, models.sample_shape(name), n, batch, batching.repeats
                )
                here = dict(
                    case=name,
                    at=dict(batch=batch),
                    model=name,
                    workers=n,
                    device="this_gpu" if cuda else "this_cpu",
                    evidence="measured",
                )
                for how, value in seconds.items():
                    yield _row(bench, how, value, "s", **here)
                yield _row(bench, "gain", seconds["one_by_one"] / seconds["vmap"], "1", **here)


# Real workers -------------------------------------------------------------------------------------


class Ray(Section):
    """``slow``: how many times as long an iteration of each worker takes; ``group_size``: of
    policies with groups; ``rounds``: as many iterations as there are workers each; ``target``: an
    accuracy (%)."""

    methods: list[str]
    readings: list[str]
    address: str | None
    group_size: PositiveInt
    model: Model
    dataset: Dataset
    slow: Annotated[list[Annotated[float, Field(ge=1)]], Field(min_length=2)]
    rounds: PositiveInt
    evaluate_every: PositiveInt
    target: PositiveFloat
    batch: PositiveInt
    lr: PositiveFloat
    momentum: Share
    limit: PositiveInt | None
    test_limit: PositiveInt | None
    seed: int


@experiment(optional=True, alone=True, memory_mb=6000)
def ray(bench: Bench, ray: Ray) -> Iterator[Row]:
    """Every policy on real workers that Ray places, now."""
    for label, ended in _live(bench, ray):
        yield from _run(bench, label, ended.record, "measured")
        yield from _arrived(bench, label, ray, ended.rows)


def _live(bench: Bench, ray: Ray) -> Iterator[tuple[str, Ended]]:
    """What every policy came to on real workers, by its label."""
    workers = len(ray.slow)
    told = ray.model_dump(
        exclude={"methods", "readings", "address", "group_size", "slow", "target"}
    )
    told |= dict(exchange={"name": SERVER}, levels=[{"up": {"name": "identity"}}])
    told |= dict(workers=[1] * workers, uneven={"sites": ray.slow})
    with on_ray.cluster(ray.address, workers) as cluster:
        for label in [*ray.methods, *ray.readings]:
            part = bench.settings.policies[label]
            sized = {"group_size": ray.group_size} if "group_size" in part.parameters else {}
            told |= dict(synchronization=part.model_dump() | sized)
            told |= dict(averaged_over=bench.settings.averaged_over)
            bench.say(f"ray: {label} on {workers} workers")
            with tempfile.TemporaryDirectory() as output:
                given = parse(dict(training=told, output=output))
                with on_ray.Placed(given, cluster) as placed:
                    ended = placed.run(bench.say)
            yield label, ended


def _arrived(bench: Bench, label: str, ray: Ray, rows: Sequence[Row]) -> Iterator[Row]:
    """When the server's model reached the target, interpolated between evaluations."""
    curve = [row for row in rows if row.metric == "test_accuracy"]
    times = [row.time_s for row in curve]
    part = bench.settings.policies[label]
    fields = dict(at=dict(method=label), part=part, evidence="measured", workers=len(ray.slow))
    yield _row(bench, "target_accuracy", ray.target, "%", **fields)
    value = reached(times, [row.value for row in curve], ray.target, window=1)
    if value is None:
        reason = f"never reached {ray.target:g} % within {times[-1]:.0f} s"
        fields |= dict(status="late", reason=reason)
    yield _row(bench, "time_to_target", math.nan if value is None else value, "s", **fields)


def record(command: str) -> None:
    """Keep what every policy was told on real workers in the repository, and the ``command``."""
    from slowlink.workflow import settings

    recipe = settings.load({"scale": "desk"}).recipes["lpsp"]
    bench = Bench("lpsp", "ray", recipe, "desk")
    for label, ended in _live(bench, recipe.ray):
        about = ended.record.about | dict(command=command)
        path = ROOT / RECORDED.replace("*", slug(label))
        replace(ended.record, about=about).save(path)


@experiment(makes=("ray",), files=(RECORDED,), minutes=10)
def recorded(bench: Bench) -> Iterator[Row]:
    """Runs on real workers, which Ray placed, that are kept in the repository."""
    for path in sorted(ROOT.glob(RECORDED)):
        record = Record.load(path)
        yield from _run(bench, _label(bench.settings, record), record, "recorded")


def _label(settings: Settings, record: Record) -> str:
    """The method that was recorded: the first with its policy and parameters, but for the size of
    groups, which so few workers do not have."""
    for label, part in settings.policies.items():
        policy = synchronization.load(part.name, **part.parameters)
        same = all(
            record.parameters.get(name, getattr(type(policy), name)) == value
            for name, value in part.parameters.items()
            if name != "group_size"
        )
        if part.name == record.policy and same:
            return label
    raise ValueError(f"{RECORDED}: no method of the recipe is {record.policy} {record.parameters}")


def _run(bench: Bench, label: str, record: Record, evidence: str) -> Iterator[Row]:
    """What a run came to, and the share of its events and decisions, in their order and at their
    times, that the virtual-time engine repeats."""
    row = functools.partial(
        _row,
        bench,
        at=dict(method=label),
        part=bench.settings.policies[label],
        experiment="ray",
        evidence=evidence,
        workers=len(record.groups),
    )
    told, again = summary(record), replayed(record)
    yield row("iterations_per_s", told["iterations_per_s"], "1/s")
    yield row("capacity", told["capacity"], "1/s")
    yield row("capacity_used", 100 * told["iterations_per_s"] / told["capacity"], "%")
    yield row("waiting_share", 100 * told["waited_share"], "%")
    yield row("staleness", told["staleness"], "1")
    yield row("final_accuracy", told["accuracy"], "%")
    yield row("replayed", again, "%")
    yield row("events", len(record.told), "1")
