"""LPSP's experiments without training, from its recipe: who waits for whom on uneven workers."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from methods import exchange, synchronization
from methods.synchronization import Finished, Policy
from testbed.live.replay import Record, replayed, summary
from testbed.network import Network, star
from testbed.results import Row, Scale
from testbed.training import batching, models, stragglers
from testbed.training.datasets import load_dataset
from testbed.training.recipe import Part
from testbed.training.stragglers import Fixed, Jitter, Stragglers, Trace, Varying
from testbed.training.virtual_time import Communication, Log, Meeting, OnNetwork, Scripted, play
from workflow.experiments._bench import Bench, Say
from workflow.recipes.lpsp import LPSP, LpspRecipe

ROOT = Path(__file__).parents[2]
BSP, SERVER = "BSP", "parameter_server"
MAIN = "fixed"
"""The variant that the document describes."""
BESIDE_DRAWS = 5
"""Variants that take long, and stand beside the main one, make do with so many draws."""
PRINTED = 1.75, 1.87, 2.17, 2.26
"""How many times as fast as others the document calls LPSP (§4.2, §4.3)."""
WARM_UP = 0.3
"""The first iterations are left out, by this share: who may run ahead does so in them, once."""
PERCENTILES = 5, 50, 95, 99.9


class _Bench(Bench[LpspRecipe]):
    def row(self, case: str, metric: str, value: float, unit: str, **fields) -> Row:
        """``part``: the policy."""
        part = fields.pop("part", None)
        if part is not None:
            fields |= dict(exchange=SERVER, compression="identity", synchronization=part.name)
        return super().row(case, metric, value, unit, **dict(evidence="simulated") | fields)

    def times(self, workers: int, draw: int) -> Fixed:
        """The speeds of a draw; training's seeds are draws too."""
        return stragglers.uniform(
            workers, self.recipe.mnist.base_s, self.recipe.stragglers.highest, draw
        )


def rows(recipe: LpspRecipe, scale: Scale, experiment: str, say: Say = print) -> Iterator[Row]:
    """Rows of one job: example, waiting (also of one size alone: ``waiting-12``), bound, batching,
    recorded or ray."""
    name, _, size = experiment.partition("-")
    jobs = dict(example=_example, waiting=_waiting, bound=_bound, batching=_batching)
    jobs |= dict(recorded=_recorded, ray=_ray)
    bench = _Bench(recipe, scale, name, say)
    yield from jobs[name](bench, int(size)) if size else jobs[name](bench)


def _changed(recipe: LpspRecipe, label: str, changes: dict) -> Part:
    part = recipe.methods[label]
    return Part(name=part.name, **(part.parameters | changes))


def _policy(part: Part) -> Policy:
    return synchronization.load(part.name, **part.parameters)


# The worked example ------------------------------------------------------------------------------


def _example(bench: _Bench) -> Iterator[Row]:
    """Figure 1: its BSP, the schedule it draws, and what Algorithm 1 does, in both readings."""
    recipe, example = bench.recipe, bench.recipe.example
    local = example.local_iterations
    parts = {
        BSP: _changed(recipe, BSP, dict(local_iterations=local)),
        "drawn": None,
        "Algorithm 1": _changed(recipe, LPSP, dict(decision="next")),
        "on arrival": _changed(recipe, LPSP, dict(decision="arrival")),
    }
    workers = len(example.times)
    for worker, seconds in enumerate(example.times, 1):
        fields = dict(variant=f"w{worker}", workers=workers, evidence="computed", part=parts[BSP])
        yield bench.row(BSP, "local_time", local * seconds, "s", **fields)
    for case, part in parts.items():
        bench.say(f"example: {case}")
        log = play(
            _policy(part) if part else Scripted(example.drawn),
            Fixed(tuple(example.times)),
            example.communication,
            groups=[0] * workers,
            seconds=example.seconds,
        )
        row = functools.partial(bench.row, workers=workers, part=part)
        yield from _meetings(row, case, log, 1 if case == BSP else 3)
        yield from _spans(row, case, log)


def _meetings(row: Callable[..., Row], case: str, log: Log, counted: int) -> Iterator[Row]:
    """The first three synchronizations one by one; totals of as many as are ``counted``."""
    for number, meeting in enumerate(log.meetings[:3], 1):
        variant = str(number)
        yield row(case, "sync_point", max(meeting.arrived), "s", variant=variant)
        yield row(case, "decided", meeting.decided, "s", variant=variant)
        yield row(case, "sync_wait", math.fsum(meeting.waits), "s", variant=variant)
        yield row(case, "delay", math.fsum(meeting.delays), "s", variant=variant)
        yield row(case, "members", len(meeting.arrived), "1", variant=variant)
    first = log.meetings[:counted]
    yield row(case, "total_wait", math.fsum(w for m in first for w in m.waits), "s")
    yield row(case, "total_delay", math.fsum(d for m in first for d in m.delays), "s")
    yield row(case, "iterations", sum(len(work) for m in first for work in m.work), "1")


def _spans(row: Callable[..., Row], case: str, log: Log) -> Iterator[Row]:
    """What each worker does from when to when."""
    numbers: Counter[tuple[int, str]] = Counter()
    for span in log.spans:
        numbers[span.worker, span.kind] += 1
        variant = f"{span.kind} {numbers[span.worker, span.kind]}"
        yield row(f"{case} w{span.worker + 1}", "begin", span.start, "s", variant=variant)
        yield row(f"{case} w{span.worker + 1}", "end", span.end, "s", variant=variant)


# Who waits for whom ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Variant:
    """Speeds of the workers by draw, and the network of one run."""

    speeds: Callable[[int], Stragglers]
    communication: Callable[[], float | Communication]
    draws: int
    bandwidth: float = math.nan


def _variants(bench: _Bench, workers: int) -> dict[str, _Variant]:
    recipe = bench.recipe
    uneven, waiting, base = recipe.stragglers, recipe.waiting, recipe.mnist.base_s
    draws, few = waiting.draws, min(waiting.draws, BESIDE_DRAWS)
    rate, slow = recipe.network.rate, waiting.slow_rate
    network = _network(bench, workers, rate)
    fixed = functools.partial(bench.times, workers)

    def jitter(draw: int) -> Stragglers:
        return Jitter(fixed(draw), uneven.jitter, draw)

    def varying(draw: int) -> Stragglers:
        alike = Fixed((base,) * workers)
        return Varying(alike, uneven.period * base, uneven.highest, seed=draw)

    return {
        MAIN: _Variant(fixed, network, draws, rate),
        "jitter": _Variant(jitter, network, few, rate),
        "varying": _Variant(varying, network, few, rate),
        "trace": _Variant(_traces(bench, workers), network, few, rate),
        "no communication": _Variant(fixed, lambda: 0.0, draws),
        f"constant {waiting.constant:g} s": _Variant(fixed, lambda: waiting.constant, draws),
        "slow server": _Variant(fixed, _network(bench, workers, slow), few, slow),
    }


def _traces(bench: _Bench, workers: int) -> Callable[[int], Stragglers]:
    """Recorded iteration times of real workers, in units that make the fastest one's mean the
    shortest iteration; which worker has whose is drawn."""
    pattern, base = bench.recipe.waiting.trace, bench.recipe.mnist.base_s
    records = [Record.load(path) for path in sorted(ROOT.glob(pattern))]
    recorded = [np.array(times) for record in records for times in record.iterations]
    if len(recorded) < workers:
        raise ValueError(f"{pattern}: {len(recorded)} recorded workers, {workers} are needed")
    unit = base / min(times.mean() for times in recorded)

    def drawn(draw: int) -> Stragglers:
        chosen = np.random.default_rng(draw).permutation(len(recorded))[:workers]
        return Trace(tuple(tuple((unit * recorded[i]).tolist()) for i in chosen))

    return drawn


def _network(bench: _Bench, workers: int, server_rate: float) -> Callable[[], OnNetwork]:
    """Makes a star in which the server's link is shared; the model travels there and back."""
    network, model = bench.recipe.network, bench.recipe.mnist.model
    topology = star(workers, network.rate, server_rate=server_rate, latency=network.latency)
    server, nodes = exchange.load(SERVER), topology.workers.tolist()
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


def _waiting(bench: _Bench, workers: int | None = None) -> Iterator[Row]:
    """Every policy on uneven workers, and Gantt charts of a few iterations."""
    recipe, waiting = bench.recipe, bench.recipe.waiting
    for n in waiting.workers if workers is None else [workers]:
        parts = {BSP: recipe.methods[BSP]} | recipe.methods  # the others are held against it
        if n == recipe.cifar10.ablated_workers:
            parts |= recipe.ablated(*recipe.ablations)
        for name, variant in _variants(bench, n).items():
            bench.say(f"waiting: {n} workers, {name}")
            yield from _on_uneven(bench, n, parts, name, variant)
        if n == waiting.shown:
            yield from _gantt(bench, n)


def _on_uneven(
    bench: _Bench, n: int, parts: dict[str, Part], name: str, variant: _Variant
) -> Iterator[Row]:
    """All policies in one variant; in the main one also their staleness over all draws."""
    histograms: dict[str, Counter[int]] = {label: Counter() for label in parts}
    fields = dict(model=bench.recipe.mnist.model.name, workers=n, bandwidth=variant.bandwidth)
    iterations = bench.recipe.waiting.iterations * n
    for draw in range(1, variant.draws + 1):
        speeds = variant.speeds(draw)
        bsp = math.nan
        for label, part in parts.items():
            log = play(
                _policy(part),
                speeds,
                variant.communication(),
                groups=[0] * n,
                iterations=iterations,
            )
            steady = _steady(log, round(WARM_UP * iterations))
            stale = [value for meeting in steady.meetings for value in meeting.staleness or ()]
            if not stale:
                raise ValueError(
                    f"waiting.iterations: {bench.recipe.waiting.iterations} of each worker are "
                    f"too few, {label} brings nothing to the model"
                )
            histograms[label].update(stale)
            bsp = steady.iterations / steady.seconds if label == BSP else bsp
            for metric, (value, unit) in _metrics(steady, n, bsp, stale).items():
                yield bench.row(
                    f"{label} on {n}", metric, value, unit,
                    variant=name, part=part, seed=draw, **fields,
                )  # fmt: skip
    if name != MAIN:
        return
    for label, histogram in histograms.items():
        for value, count in sorted(histogram.items()):
            yield bench.row(
                f"{label} on {n}", "share", 100 * count / histogram.total(), "%",
                experiment="staleness", variant=str(value), part=parts[label], **fields,
            )  # fmt: skip


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


def _gantt(bench: _Bench, n: int) -> Iterator[Row]:
    """The first draw, as long as the slowest worker takes for the iterations shown."""
    speeds, network = bench.times(n, 1), _network(bench, n, bench.recipe.network.rate)
    for label, part in bench.recipe.methods.items():
        bench.say(f"gantt: {label}")
        seconds = bench.recipe.waiting.shown_iterations * max(speeds.times)
        log = play(_policy(part), speeds, network(), groups=[0] * n, seconds=seconds)
        row = functools.partial(
            bench.row,
            experiment="gantt",
            part=part,
            model=bench.recipe.mnist.model.name,
            workers=n,
            bandwidth=bench.recipe.network.rate,
        )
        yield from _spans(row, label, log)


# What there is to gain ---------------------------------------------------------------------------


def _bound(bench: _Bench) -> Iterator[Row]:
    """Iterations a second without any waiting over those of BSP: of the draws used, and of many."""
    recipe = bench.recipe
    highest, draws = recipe.stragglers.highest, recipe.waiting.bound_draws
    used = {*range(1, recipe.waiting.draws + 1)}
    trained = {*recipe.mnist.seeds, *recipe.cifar10.seeds}
    for n in recipe.waiting.workers:
        bench.say(f"bound: {n} workers")
        row = functools.partial(bench.row, f"{n} workers", workers=n, evidence="computed")
        for draw in sorted(used | trained):
            value = stragglers.removable(bench.times(n, draw).times)
            for variant, chosen in (("", used), ("trained", trained)):
                if draw in chosen:
                    yield row("removable", value, "1", variant=variant, seed=draw)
        drawn = stragglers.removable_draws(n, draws, highest)
        for percent, value in zip(PERCENTILES, np.percentile(drawn, PERCENTILES), strict=True):
            yield row("removable", value, "1", variant=f"{percent:g} %")
        yield row("removable", drawn.max(), "1", variant="highest")
        # One worker is the slowest there can be, and all others the fastest.
        yield row("removable", (1 + highest * (n - 1)) / n, "1", variant="supremum")
        for ratio in PRINTED:
            share = 100 * np.mean(drawn >= ratio)
            yield row("share", share, "%", variant=f"at least {ratio}")
    # E(1/t) for even t; no time differs if the highest factor is 1.
    limit = highest * math.log(highest) / (highest - 1) if highest > 1 else 1.0
    yield bench.row("many workers", "removable", limit, "1", variant="limit", evidence="computed")


# Gradients of all workers at once ----------------------------------------------------------------


def _batching(bench: _Bench) -> Iterator[Row]:
    """The ways to compute the workers' gradients, timed on the device that trains."""
    recipe, chosen = bench.recipe, bench.recipe.batching
    cuda = recipe.accelerator != "cpu" and torch.cuda.is_available()
    for training in (recipe.mnist, recipe.cifar10):
        name = training.model.name
        model = models.make(name, **training.model.parameters).to("cuda" if cuda else "cpu")
        for n in chosen.workers:
            for batch in chosen.batches:
                bench.say(f"batching: {name}, {n} workers, {batch} samples each")
                seconds = batching.measure(
                    model, models.sample_shape(name), n, batch, chosen.repeats
                )
                row = functools.partial(
                    bench.row,
                    name,
                    variant=f"n={n} batch={batch}",
                    model=name,
                    workers=n,
                    device="this_gpu" if cuda else "this_cpu",
                    evidence="measured",
                )
                for how, value in seconds.items():
                    yield row(how, value, "s")
                yield row("gain", seconds["one_by_one"] / seconds["vmap"], "1")


# Real workers -------------------------------------------------------------------------------------


def _ray(bench: _Bench) -> Iterator[Row]:
    """Every policy on Ray actors, now."""
    from testbed.live import actors

    recipe, chosen = bench.recipe, bench.recipe.ray
    dataset = load_dataset(chosen.dataset, limit=chosen.limit)
    for label in chosen.methods:
        part = recipe.methods[label]
        sized = {"group_size": chosen.group_size} if "group_size" in part.parameters else {}
        bench.say(f"ray: {label} on {len(chosen.slow)} actors")
        record = actors.run(
            synchronization.load(part.name, **part.parameters | sized),
            models.make(chosen.model.name, chosen.seed, **chosen.model.parameters),
            dataset,
            slow=chosen.slow,
            lr=chosen.lr,
            batch=chosen.batch,
            momentum=chosen.momentum,
            iterations=chosen.iterations,
            averaged_over=recipe.averaged_over,
            address=chosen.address,
            seed=chosen.seed,
        )
        yield from _run(bench, label, record, "measured")


def _recorded(bench: _Bench) -> Iterator[Row]:
    """The runs on Ray actors that are kept in the repository."""
    # Of several that share a policy the first, which is the document's.
    labels = {part.name: label for label, part in reversed(bench.recipe.methods.items())}
    for path in sorted(ROOT.glob("data/recorded/ray_*.json")):
        record = Record.load(path)
        yield from _run(bench, labels[record.policy], record, "recorded")


def _run(bench: _Bench, label: str, record: Record, evidence: str) -> Iterator[Row]:
    """What a run came to, and the share of its events and decisions, in their order and at their
    times, that the virtual-time engine repeats."""
    again = replayed(record)
    row = functools.partial(
        bench.row,
        label,
        part=bench.recipe.methods[label],
        experiment="ray",
        evidence=evidence,
        workers=len(record.groups),
    )
    told = summary(record)
    yield row("iterations_per_s", told["iterations_per_s"], "1/s")
    yield row("waiting_share", 100 * told["waited_share"], "%")
    yield row("staleness", told["staleness"], "1")
    yield row("final_accuracy", told["accuracy"], "%")
    yield row("replayed", again, "%")
    yield row("events", len(record.told), "1")
