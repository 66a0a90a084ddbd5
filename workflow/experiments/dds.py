"""DDS's experiments, from its recipe: bytes, training on real processes over DDS, the transport."""

from __future__ import annotations

import random
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import mean, median, stdev

import numpy as np
from torch import Tensor

from testbed.live import data_parallel
from testbed.live.dds import data_parallel as dds_data_parallel
from testbed.live.dds import throughput
from testbed.live.dds.domain import LAST_DOMAIN
from testbed.live.dds.federated import (
    ControllerSettings,
    Data,
    Round,
    Sent,
    Task,
    run_live,
    simulate,
)
from testbed.live.dds.federated.training import Examiner
from testbed.results import Row, Scale
from testbed.training.datasets import load_dataset
from testbed.training.recipe import Part
from workflow.experiments._simulated import difference, simulated
from workflow.recipes.dds import DENSE, DdsRecipe, FederatedSeeds

Say = Callable[[str], None]

MIB = 2**20
SIZES = {
    "payload_bytes": "uplink_bytes",
    "frame_bytes": "frame_bytes",
    "link_bytes": "link_bytes",
}
"""Of what a client sends in a round: the fields of :class:`Sent`, and their metrics."""

FEW = 100
"""Test images where the accuracy is of no interest."""

START_S = 60.0
"""Allowed for processes to start and to find each other."""

WARM = 100
"""Steps after which every kernel has been compiled and every buffer has its size."""


@dataclass(frozen=True)
class _Bench:
    """One experiment at one scale."""

    recipe: DdsRecipe
    scale: Scale
    experiment: str
    say: Say

    def row(self, case: str, metric: str, value: float, unit: str, **fields) -> Row:
        return Row(
            paper=self.recipe.paper,
            experiment=fields.pop("experiment", self.experiment),
            case=case,
            scale=self.scale,
            metric=metric,
            value=float(value),
            unit=unit,
            **fields,
        )


def rows(recipe: DdsRecipe, scale: Scale, experiment: str, say: Say = print) -> Iterator[Row]:
    """Rows of one job: bytes, federated, federated_seeds-1 and non_iid-1 (of seed 1), ddp or
    transport."""
    name, _, seed = experiment.partition("-")
    jobs = dict(bytes=_bytes, federated=_federated, ddp=_ddp, transport=_transport)
    seeds = dict(federated_seeds=_federated_seeds, non_iid=_non_iid)
    bench = _Bench(recipe, scale, name, say)
    yield from seeds[name](bench, int(seed)) if seed else jobs[name](bench)


# Federated training ------------------------------------------------------------------------------


def _settings(bench: _Bench, label: str, codec: Part, seed: int, **changed) -> ControllerSettings:
    """Of a mode's training; ``changed``: ``rounds``, ``subset``, ``test_limit`` and ``split``."""
    chosen = bench.recipe.federated
    weights = label in chosen.weights
    test_limit = changed.get("test_limit", chosen.round_test_limit)
    task = Task(
        model=chosen.model,
        data=Data(name=chosen.dataset, test_limit=test_limit),
        clients=chosen.clients,
        split=changed.get("split", Part(name="anew")),
        seed=seed,
        batch=chosen.batch,
        momentum=chosen.momentum,
        codec=codec,
        sends="weights" if weights else "delta",
        first_baseline="zero" if chosen.from_zero and not weights else "model",
        torch_threads=bench.recipe.threads,
    )
    return ControllerSettings(
        task=task,
        domain=random.SystemRandom().randint(1, LAST_DOMAIN),
        run=secrets.token_hex(),
        rounds=changed.get("rounds", chosen.rounds),
        subset=changed.get("subset") or chosen.subset,
        epochs=chosen.epochs,
        lr=chosen.lr,
        min_clients=chosen.min_clients,
        timeout_s=chosen.timeout_s,
        state=Path("model"),
    )


def _bytes(bench: _Bench) -> Iterator[Row]:
    """What a client sends in a round, of an update that was really trained, for a step, and
    encoded."""
    chosen = bench.recipe.federated
    short = dict(rounds=1, subset=chosen.batch, test_limit=FEW)
    settings = {
        label: _settings(bench, label, codec, chosen.seed, **short)
        for label, codec in (chosen.modes | chosen.variants).items()
    }
    data = settings[DENSE].task.data.load()
    done = {}
    for label, of in settings.items():
        bench.say(f"bytes: {label}")
        (done[label],), _ = simulate(of, data)
    dense = done[DENSE]
    whole = dense.sent[0].payload_bytes + dense.downlink_bytes
    for label, of in settings.items():
        sent, down = done[label].sent[0], done[label].downlink_bytes
        row = partial(
            bench.row,
            label,
            experiment="federated_bytes",
            compression=of.task.codec.name,
            model=chosen.model.name,
            workers=chosen.clients,
            evidence="computed",
        )
        yield from _sizes(row, sent)
        yield row("downlink_bytes", down, "B")
        yield row("uplink_mib", sent.payload_bytes / MIB, "1")
        yield row("up_and_down_ratio", (sent.payload_bytes + down) / whole, "1")


def _sizes(row: Callable[..., Row], sent: Sent) -> Iterator[Row]:
    """Bytes, which no seed changes."""
    for name, metric in SIZES.items():
        yield row(metric, getattr(sent, name), "B", seed=-1)


def _federated(bench: _Bench) -> Iterator[Row]:
    """Modes on real processes; and a few short rounds of each, beside one process."""
    chosen = bench.recipe.federated
    timeout_s = START_S + chosen.rounds * chosen.timeout_s
    tests = Data(name=chosen.dataset, test_limit=chosen.test_limit).load()
    for label in chosen.live:
        codec = chosen.modes[label]
        bench.say(f"federated: {label} on {chosen.clients} clients")
        settings = _settings(bench, label, codec, chosen.seed)
        rounds, weights = _live(settings, timeout_s)
        row = _row(bench, label, settings, evidence="measured")
        sent = [[one.sent[client] for one in rounds] for client in range(chosen.clients)]
        sizes = {tuple(getattr(s, name) for name in SIZES) for client in sent for s in client}
        if len(sizes) > 1:
            raise RuntimeError(f"{label}: updates of different sizes: {sorted(sizes)}")
        yield from _sizes(row, sent[0][0])
        for client, its in enumerate(sent):
            seconds = mean(one.communication_s for one in its)
            yield row("communication_time", seconds, "s", variant=f"client{client}")
        yield row("round_time", mean(one.round_s for one in rounds), "s")
        yield row("round_time_sd", stdev([one.round_s for one in rounds]), "s")
        yield row("train_time", mean(one.train_s for client in sent for one in client), "s")
        final = Examiner(settings.task, tests).accuracy(weights)
        yield from _accuracies(row, rounds, final)
        bench.say(f"federated: {label}, against one process")
        if (chosen.checked_rounds, chosen.checked_subset) != (chosen.rounds, chosen.subset):
            few = dict(rounds=chosen.checked_rounds, subset=chosen.checked_subset)
            settings = _settings(bench, label, codec, chosen.seed, test_limit=FEW, **few)
            _, weights = _live(settings, timeout_s)
        apart = difference([weights], [simulate(settings)[1]])
        fields = dict(experiment="federated_seeds", round=chosen.checked_rounds)
        yield row("live_difference", apart, "1", **fields)


def _live(settings: ControllerSettings, timeout_s: float) -> tuple[list[Round], Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / settings.state
        return run_live(settings.model_copy(update=dict(state=state)), timeout_s)


def _row(bench: _Bench, label: str, settings: ControllerSettings, **fields) -> Callable[..., Row]:
    task = settings.task
    return partial(
        bench.row,
        label,
        exchange="parameter_server",
        compression=task.codec.name,
        synchronization="fedavg",
        model=task.model.name,
        dataset=task.data.name,
        workers=task.clients,
        seed=task.seed,
        **fields,
    )


def _accuracies(
    row: Callable[..., Row], rounds: Sequence[Round], final: float | None = None
) -> Iterator[Row]:
    times = accumulate(one.round_s for one in rounds)
    for one, time_s in zip(rounds, times, strict=True):
        yield row("test_accuracy", one.accuracy, "%", round=one.number, time_s=time_s)
    yield row("final_accuracy", rounds[-1].accuracy if final is None else final, "%")


def _federated_seeds(bench: _Bench, seed: int) -> Iterator[Row]:
    """Every mode in one process."""
    chosen = bench.recipe.federated_seeds
    for label in chosen.modes:
        yield from _simulated(bench, label, seed, chosen)


def _non_iid(bench: _Bench, seed: int) -> Iterator[Row]:
    """Modes in one process, on clients that have different labels."""
    chosen = bench.recipe.non_iid
    for label in chosen.modes:
        for variant, split in chosen.splits.items():
            yield from _simulated(bench, label, seed, chosen, variant=variant, split=split)


def _simulated(
    bench: _Bench, label: str, seed: int, chosen: FederatedSeeds, variant: str = "", **changed
) -> Iterator[Row]:
    codec = bench.recipe.federated.modes[label]
    changed |= dict(subset=chosen.subset, test_limit=chosen.test_limit)
    settings = _settings(bench, label, codec, seed, **changed)
    bench.say(f"{bench.experiment}: {label} {variant}, seed {seed}")
    rounds, _ = simulate(settings)
    row = _row(bench, label, settings, evidence="simulated", variant=variant)
    yield from _accuracies(row, rounds)


# Data-parallel training --------------------------------------------------------------------------


def _ddp(bench: _Bench) -> Iterator[Row]:
    """Every case on real processes, and the first steps once more, beside one process.

    A run is the simulated one of its seed, too, where that is not simulated.
    """
    recipe, ddp = bench.recipe, bench.recipe.ddp
    dataset = load_dataset(ddp.dataset, limit=ddp.images, test_limit=ddp.test_limit)
    for labels in ([label for label in ddp.cases if label != ddp.centralised], [ddp.centralised]):
        bench.say(f"ddp: {', '.join(labels)}")
        runs = {label: recipe.run(label, ddp.seed, bench.scale) for label in labels}
        cases = [
            data_parallel.Case(run, steps, ordered=True, evaluate=steps == ddp.steps)
            for run in runs.values()
            for steps in (ddp.steps, ddp.checked_steps)
        ]
        done = dds_data_parallel.measure_all(cases, dataset=dataset)
        for (label, run), live, short in zip(runs.items(), done[::2], done[1::2], strict=True):
            row = partial(
                bench.row,
                label,
                exchange=run.exchange.name,
                compression=run.levels[0].up.name,
                synchronization=run.synchronization.name,
                model=ddp.model.name,
                dataset=ddp.dataset,
                workers=sum(run.workers),
                seed=run.seed,
                evidence="measured",
            )
            yield from _tests(row, live)
            if label not in ddp.simulated or ddp.seed not in ddp.seeds:
                yield from _tests(partial(row, experiment="ddp_seeds"), live)
            warmup = run.levels[0].up.parameters.get("warmup", 0) * ddp.steps_per_epoch
            yield from _profile(row, live, warmup)
            alone = simulated(run, short.groups, ddp.checked_steps, dataset)
            apart = difference(short.parameters.values(), alone)
            fields = dict(experiment="ddp_seeds", round=ddp.checked_steps)
            yield row("live_difference", apart, "1", **fields)


def _tests(row: Callable[..., Row], live: data_parallel.Run) -> Iterator[Row]:
    for step, seconds, accuracy in live.tests:
        yield row("test_accuracy", accuracy, "%", round=step, time_s=seconds)
    yield row("final_accuracy", live.tests[-1][2], "%")


def _profile(row: Callable[..., Row], live: data_parallel.Run, warmup: int) -> Iterator[Row]:
    """What a run sent, and how long it took.

    Bytes are those after the codec's warm-up, and of no seed: what changes them is the codec. Times
    are over all steps and ranks.
    """
    sent, framed = live.payload_bytes.sum(axis=2), live.frame_bytes
    ranks, steps = sent.shape
    if ranks == 1:  # whose payloads reach nobody
        sent, framed = np.zeros_like(sent), np.zeros_like(framed)
    for end, since in {"": min(warmup, steps - 1), "_with_warm_up": 0}.items():
        each = sent[:, since:].mean()
        yield row(f"bytes_per_step{end}", each, "B", seed=-1)
        # What every rank receives there includes its own payload.
        yield row(f"bytes_counted_as_printed{end}", (1 + ranks) * each, "B", seed=-1)
        yield row(f"frame_bytes{end}", framed[:, since:].mean(), "B", seed=-1)
    for start, since in {"": 0, "warm_": min(WARM, steps - 1)}.items():
        yield row(f"{start}max_wait", live.wait_s[:, since:].max(), "s")
        yield row(f"{start}mean_wait", live.wait_s[:, since:].mean(), "s")
    for metric in ("step", "compute", "compress"):
        yield row(f"{metric}_time", getattr(live, f"{metric}_s").mean(), "s")


# The transport -----------------------------------------------------------------------------------


def _transport(bench: _Bench) -> Iterator[Row]:
    """The same payload over DDS, as raw writes and over gloo, in turns: medians of the rounds."""
    chosen = bench.recipe.transport
    for ranks in chosen.ranks:
        for size in chosen.sizes:
            bench.say(f"transport: {size} MiB of each of {ranks}")
            nbytes = size * MIB
            took = throughput.measure(ranks, nbytes, chosen.rounds)
            seconds = {way: median(rounds) for way, rounds in took.items()}
            for way, value in seconds.items():
                row = partial(
                    bench.row, f"{size} MiB", variant=way, workers=ranks, evidence="measured"
                )
                yield row("time", value, "s")
                # What all put in: each of them receives it but for its own.
                yield row("throughput", ranks * nbytes / value / 1e9, "GB/s")
                yield row("share_of_raw", seconds[throughput.RAW] / value, "1")
