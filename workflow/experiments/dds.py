"""DDS's experiments, from its recipe: bytes, training on real processes over DDS, the transport."""

from __future__ import annotations

import random
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import mean, median, stdev

import numpy as np
import torch
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
from testbed.training.datasets import Dataset, load_dataset
from testbed.training.recipe import Part
from workflow.experiments._bench import Bench, Say
from workflow.experiments._simulated import same, simulated
from workflow.recipes.dds import DENSE, DdsRecipe, FederatedSeeds

MIB = 2**20
SIZES = {
    "payload_bytes": "uplink_bytes",
    "frame_bytes": "frame_bytes",
    "link_bytes": "link_bytes",
}
"""Of what a client sends in a round: the fields of :class:`Sent`, and their metrics. All but the
first are counted by the formats, whether anything was sent or not."""

FEW = 100
"""Test images where the accuracy is of no interest."""

UNTIMED = 2
"""Live runs at the same time where nobody times them: they mostly start and wait."""

START_S = 60.0
"""Allowed for processes to start and to find each other."""

WARM = 100
"""Steps after which every kernel has been compiled and every buffer has its size."""


_Bench = Bench[DdsRecipe]


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
    """Of a mode's training, or a variant's (its name with more behind); ``changed``: ``model``,
    ``rounds``, ``subset``, ``test_limit`` and ``split``."""
    chosen = bench.recipe.federated
    mode = label.split(" ")[0] if label in chosen.variants else label
    test_limit = changed.get("test_limit", chosen.round_test_limit)
    task = Task(
        model=changed.get("model") or chosen.model,
        data=Data(name=chosen.dataset, test_limit=test_limit),
        clients=chosen.clients,
        split=changed.get("split", Part(name="anew")),
        seed=seed,
        batch=chosen.batch,
        momentum=chosen.momentum,
        codec=codec,
        sends="weights" if mode in chosen.weights else "delta",
        first_baseline="zero" if mode in chosen.from_zero else "model",
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
    # Neither feedback nor what changes start from alters the bytes of the modes that run live.
    modes = {label: chosen.modes[label] for label in chosen.live}
    settings = {
        label: _settings(bench, label, codec, chosen.seed, **short)
        for label, codec in (modes | chosen.variants).items()
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
        counted = {} if name == "payload_bytes" else {"evidence": "computed"}
        yield row(metric, getattr(sent, name), "B", **({"seed": -1} | counted))


def _federated(bench: _Bench) -> Iterator[Row]:
    """Modes on real processes; and a few short rounds of each, of variants, and of error feedback
    on the model of further seeds, beside one process."""
    chosen = bench.recipe.federated
    modes = {label: chosen.modes[label] for label in chosen.live}
    settings = {label: _settings(bench, label, part, chosen.seed) for label, part in modes.items()}
    few = dict(rounds=chosen.checked_rounds, subset=chosen.checked_subset)
    alike = few == dict(rounds=chosen.rounds, subset=chosen.subset)
    short = {
        label: _settings(bench, label, part, chosen.seed, test_limit=FEW, **few)
        for label, part in (({} if alike else modes) | chosen.variants).items()
    }
    if (seeds := bench.recipe.federated_seeds) is not None:
        of = dict(model=seeds.model, test_limit=FEW, **few)
        others = {label: part for label, part in chosen.modes.items() if label not in modes}
        feedback = [label for label, part in others.items() if "error_feedback" in part.parameters]
        for label in feedback[-1:]:
            short[label] = _settings(bench, label, others[label], chosen.seed, **of)
    done = _all_live(bench, settings, 1 if chosen.timed else UNTIMED)
    again = (done if alike else {}) | _all_live(bench, short, UNTIMED)
    tests = Data(name=chosen.dataset, test_limit=chosen.test_limit).load()
    examiners = [(Examiner(settings[label].task, tests), of[1]) for label, of in done.items()]
    threads = dict(initializer=torch.set_num_threads, initargs=(bench.recipe.threads,))
    with ThreadPoolExecutor(1, **threads) as pool:
        accuracies = pool.map(lambda each: each[0].accuracy(each[1]), examiners)
        # Beside it, on the other core; models are made in this thread alone.
        bench.say("federated: the same in one process")
        repeated = {label: simulate((settings | short)[label])[1] for label in again}
        finals = dict(zip(done, accuracies, strict=True))
    for label, (rounds, _) in done.items():
        row = _row(bench, label, settings[label], evidence="measured")
        sent = [[one.sent[client] for one in rounds] for client in range(chosen.clients)]
        yield from _sizes(row, _alike(label, rounds))
        for client, its in enumerate(sent):
            seconds = mean(one.communication_s for one in its)
            yield row("communication_time", seconds, "s", variant=f"client{client}")
        yield row("round_time", mean(one.round_s for one in rounds), "s")
        yield row("round_time_sd", stdev([one.round_s for one in rounds]), "s")
        yield row("train_time", mean(one.train_s for client in sent for one in client), "s")
        yield from _accuracies(row, rounds, finals[label])
        if not _further_seeds(bench, label):
            yield row("judged_accuracy", finals[label], "%")
    for label, (rounds, weights) in again.items():
        row = _row(bench, label, of := (settings | short)[label], evidence="measured")
        if label in chosen.variants:
            yield from _sizes(row, _alike(label, rounds))
        apart = same([weights], [repeated[label]], label)
        fields = dict(experiment="federated_seeds", round=chosen.checked_rounds)
        yield row("live_difference", apart, "1", **fields)


def _alike(label: str, rounds: Sequence[Round]) -> Sent:
    """What each client sent in each round. Raises RuntimeError where sizes differ."""
    every = [sent for one in rounds for sent in one.sent.values()]
    sizes = {tuple(getattr(sent, name) for name in SIZES) for sent in every}
    if len(sizes) > 1:
        raise RuntimeError(f"{label}: updates of different sizes: {sorted(sizes)}")
    return every[0]


def _all_live(
    bench: _Bench, settings: dict[str, ControllerSettings], at_once: int
) -> dict[str, tuple[list[Round], Tensor]]:
    chosen = bench.recipe.federated

    def run(label: str) -> tuple[list[Round], Tensor]:
        of = settings[label]
        bench.say(f"federated: {label} on {of.task.clients} clients, {of.rounds} rounds")
        return _live(of, START_S + chosen.timeout_s)

    with ThreadPoolExecutor(at_once) as pool:
        return dict(zip(settings, pool.map(run, settings), strict=True))


def _live(settings: ControllerSettings, timeout_s: float) -> tuple[list[Round], Tensor]:
    """On real processes that share a fresh secret; fails if no round ends for ``timeout_s``."""
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        secret.write_text(secrets.token_hex())
        here = dict(state=Path(folder) / settings.state, secret_file=secret)
        return run_live(settings.model_copy(update=here), timeout_s)


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
    """Every mode in one process; those that train as the live runs are what these are judged by."""
    chosen = bench.recipe.federated_seeds
    for label in chosen.modes:
        for row in _simulated(bench, label, seed, chosen):
            yield row
            if row.metric == "final_accuracy" and _further_seeds(bench, label):
                judged = dict(experiment="federated", metric="judged_accuracy")
                yield row.model_copy(update=judged)


def _further_seeds(bench: _Bench, label: str) -> bool:
    """Whether the live run of a mode is repeated in one process, as it is, with other seeds."""
    live, seeds = bench.recipe.federated, bench.recipe.federated_seeds
    return (
        seeds is not None
        and label in live.live
        and label in seeds.modes
        and seeds.model in (None, live.model)
        and seeds.subset in (None, live.subset)
        and seeds.test_limit == live.test_limit
    )


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
    changed |= dict(model=chosen.model, subset=chosen.subset, test_limit=chosen.test_limit)
    settings = _settings(bench, label, codec, seed, **changed)
    bench.say(f"{bench.experiment}: {label} {variant}, seed {seed}")
    rounds, _ = simulate(settings)
    row = _row(bench, label, settings, evidence="simulated", variant=variant)
    yield from _accuracies(row, rounds)


# Data-parallel training --------------------------------------------------------------------------


def _ddp(bench: _Bench) -> Iterator[Row]:
    """Every case on real processes that share a fresh secret; before it its first steps alone,
    beside one process, so that no run pays for the start of its processes.

    A run is the simulated one of its seed, too, where that is not simulated.
    """
    ddp = bench.recipe.ddp
    dataset = load_dataset(ddp.dataset, limit=ddp.images, test_limit=ddp.test_limit)
    with ThreadPoolExecutor(1) as pool:
        together = partial(_ddp_live, bench, dataset)
        several = together([label for label in ddp.cases if label != ddp.centralised])
        # One process, of whose times nobody asks, beside the steps that are repeated here.
        alone = pool.submit(together, [ddp.centralised])
        yield from _ddp_rows(bench, dataset, several)
        yield from _ddp_rows(bench, dataset, alone.result())


Live = tuple[data_parallel.Run, data_parallel.Run]
"""A case's first steps, and all of them."""


def _ddp_live(bench: _Bench, dataset: Dataset, labels: Sequence[str]) -> dict[str, Live]:
    ddp = bench.recipe.ddp
    bench.say(f"ddp: {', '.join(labels)}")
    cases = [
        data_parallel.Case(
            bench.recipe.run(label, ddp.seed, bench.scale), steps, ordered=True, evaluate=evaluate
        )
        for label in labels
        for steps, evaluate in ((ddp.checked(label), False), (ddp.steps, True))
    ]
    secret = secrets.token_bytes(32)
    done = dds_data_parallel.measure_all(cases, dataset=dataset, secret=secret)
    return dict(zip(labels, zip(done[::2], done[1::2], strict=True), strict=True))


def _ddp_rows(bench: _Bench, dataset: Dataset, done: dict[str, Live]) -> Iterator[Row]:
    ddp = bench.recipe.ddp
    for label, (short, live) in done.items():
        run = bench.recipe.run(label, ddp.seed, bench.scale)
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
        yield from _tests(row, live.tests)
        judged = [test for test in live.tests if test[0] <= ddp.judged_steps]
        yield row("judged_accuracy", judged[-1][2], "%", round=ddp.judged_steps)
        if label not in ddp.simulated or ddp.seed not in ddp.seeds:
            yield from _tests(partial(row, experiment="ddp_seeds"), judged)
        yield from _profile(row, live, ddp.warmup_steps(label))
        steps = ddp.checked(label)
        repeated = simulated(run, short.groups, steps, dataset)
        apart = same(short.parameters.values(), repeated, label)
        yield row("live_difference", apart, "1", experiment="ddp_seeds", round=steps)


def _tests(row: Callable[..., Row], tests: Sequence[tuple[int, float, float]]) -> Iterator[Row]:
    for step, seconds, accuracy in tests:
        yield row("test_accuracy", accuracy, "%", round=step, time_s=seconds)
    yield row("final_accuracy", tests[-1][2], "%")


def _profile(row: Callable[..., Row], live: data_parallel.Run, warmup: int) -> Iterator[Row]:
    """What a run sent, and how long it took.

    Bytes are those after the codec's warm-up, and of no seed: what changes them is the codec; those
    received are in the frames of the wire. Times are over all steps and ranks.
    """
    sent, framed, received = live.payload_bytes.sum(axis=2), live.frame_bytes, live.received_bytes
    ranks, steps = sent.shape
    if ranks == 1:  # whose payloads reach nobody
        sent, framed = np.zeros_like(sent), np.zeros_like(framed)
    counted = dict(seed=-1, evidence="computed")
    for end, since in {"": min(warmup, steps - 1), "_with_warm_up": 0}.items():
        each = sent[:, since:].mean()
        yield row(f"bytes_per_step{end}", each, "B", seed=-1)
        # What every rank receives there includes its own payload.
        yield row(f"bytes_counted_as_printed{end}", (1 + ranks) * each, "B", **counted)
        yield row(f"frame_bytes{end}", framed[:, since:].mean(), "B", **counted)
        yield row(f"received_bytes{end}", received[:, since:].mean(), "B", seed=-1)
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
