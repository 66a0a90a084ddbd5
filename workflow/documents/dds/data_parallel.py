"""DDS's data-parallel training on real processes, and the transport below it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from slowlink.testbed.results import Row
from slowlink.testbed.training.recipe import Codec, Dataset, Level, Link, Model, Part, Recipe
from slowlink.workflow.documents.dds import recorded
from slowlink.workflow.documents.dds.settings import MIB, Bench, Momentum
from slowlink.workflow.experiment import PLANNING, Section, Seeds, distinct, experiment

if not PLANNING:
    import math
    import tempfile
    from concurrent.futures import ThreadPoolExecutor
    from functools import partial
    from pathlib import Path
    from statistics import median

    import numpy as np

    from slowlink.testbed.live import data_parallel, documents, identity
    from slowlink.testbed.live.dds import data_parallel as over_dds
    from slowlink.testbed.live.dds import throughput
    from slowlink.testbed.live.dds.collectives import RANK
    from slowlink.testbed.live.one_process import same, simulated
    from slowlink.testbed.training import datasets

WARM = 100
"""Steps after which every kernel has been compiled and every buffer has its size."""
RECORD = recorded.FOLDER.format("ddp_recorded")


# Training -----------------------------------------------------------------------------------------


class Method(Section):
    """A codec, and an optimizer's momentum if that is another; ``alone`` trains one process with
    the batches of all workers together. ``heads``: bytes of the document's own heads that a rank
    would send with a step's payloads, which its counts hold."""

    codec: Codec
    momentum: Momentum | None = None
    alone: bool = False
    heads: NonNegativeInt = 0


class DataParallel(Section):
    """``images``, the first of the data set, split over ``workers``; ``steps`` of an epoch are as
    many as one worker alone would take. ``checked_steps`` of each method are repeated in one
    process, and an epoch more where a codec warms up by epochs.
    """

    dataset: Dataset
    model: Model
    workers: PositiveInt
    batch: PositiveInt
    images: PositiveInt
    epochs: PositiveInt
    evaluate_every: PositiveInt
    lr: PositiveFloat
    momentum: Momentum
    test_limit: PositiveInt | None
    methods: dict[str, Method]
    seed: int
    checked_steps: PositiveInt

    @property
    def steps_per_epoch(self) -> int:
        return self.images // self.batch

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def warmup_steps(self, label: str) -> int:
        return self.methods[label].codec.parameters.get("warmup", 0) * self.steps_per_epoch

    def checked(self, label: str) -> int:
        """How many steps of a method are repeated."""
        return self.checked_steps + bool(self.warmup_steps(label)) * self.steps_per_epoch

    @property
    def alone(self) -> list[str]:
        """Methods of one process."""
        return [label for label, method in self.methods.items() if method.alone]

    @model_validator(mode="after")
    def _fits(self) -> DataParallel:
        if max(self.checked(label) for label in self.methods) > self.steps:
            raise ValueError(f"checked_steps: there are {self.steps} steps")
        return self


class DataParallelRecorded(Section):
    """``methods`` of ``ddp`` with every one of ``seeds``, at the document's length at every scale.
    ``judged_steps``: after how many it gives its accuracy."""

    methods: list[str]
    seeds: Seeds
    batch: PositiveInt
    images: PositiveInt
    epochs: PositiveInt
    evaluate_every: PositiveInt
    judged_steps: PositiveInt
    test_limit: PositiveInt | None

    def of(self, ddp: DataParallel) -> DataParallel:
        """``ddp`` at this length, of these methods."""
        own = {name: value for name, value in self if name in DataParallel.model_fields}
        methods = {label: ddp.methods[label] for label in self.methods}
        return ddp.model_copy(update=own | dict(methods=methods))

    @model_validator(mode="after")
    def _fits(self) -> DataParallelRecorded:
        steps = self.epochs * (self.images // self.batch)
        if self.judged_steps > steps or self.judged_steps % self.evaluate_every:
            every = f"every {self.evaluate_every}th is tested"
            raise ValueError(f"judged_steps: of {steps} steps, {every}")
        return self


def _recipe(bench: Bench, ddp: DataParallel, label: str, seed: int) -> Recipe:
    """The training of a method."""
    method = ddp.methods[label]
    codec = method.codec.parameters
    if "warmup" in codec:
        codec |= dict(steps_per_epoch=ddp.steps_per_epoch)
    return Recipe(
        **documents.USUAL | dict(document=bench.document, seed=seed, scale=bench.scale),
        experiment=bench.experiment,
        system=label,
        at=dict(method=label),
        exchange=Part(name="allgather"),
        levels=(Level(up=Part(name=method.codec.name, **codec)),),
        synchronization=Part(name="bsp"),
        model=ddp.model,
        dataset=ddp.dataset,
        limit=ddp.images,
        test_limit=ddp.test_limit,
        workers=(1 if method.alone else ddp.workers,),
        cluster="star",
        batch=ddp.batch * (ddp.workers if method.alone else 1),
        lr=ddp.lr,
        momentum=ddp.momentum if method.momentum is None else method.momentum,
        rounds=ddp.steps,
        evaluate_every=ddp.evaluate_every,
        networks={label: Link(lan=1.0, wan=1.0)},  # whose time nobody asks for
        torch_threads=bench.settings.threads,
    )


@experiment(alone=True, memory_mb=6000)
def ddp(bench: Bench, ddp: DataParallel) -> Iterator[Row]:
    """Every method on real processes with fresh identities; before it its first steps alone,
    beside one process, so that no run pays for the start of its processes."""
    dataset = _dataset(ddp)
    with ThreadPoolExecutor(1) as pool:
        together = partial(_live, bench, ddp, dataset, seed=ddp.seed)
        several = together([label for label in ddp.methods if label not in ddp.alone])
        # One process, of whose times nobody asks, beside the steps that are repeated here.
        single = pool.submit(together, ddp.alone)
        yield from _rows(bench, ddp, dataset, several)
        yield from _rows(bench, ddp, dataset, single.result())


def _dataset(ddp: DataParallel) -> datasets.Dataset:
    return datasets.load_dataset(ddp.dataset, limit=ddp.images, test_limit=ddp.test_limit)


def _live(
    bench: Bench, ddp: DataParallel, dataset: datasets.Dataset, labels: Sequence[str], seed: int
) -> dict[str, tuple[data_parallel.Run, data_parallel.Run]]:
    """The first steps of every method, and all of them."""
    if not labels:
        return {}
    bench.say(f"ddp: {', '.join(labels)}, seed {seed}")
    runs: list[data_parallel.LiveRun] = []
    for label in labels:
        one = partial(data_parallel.LiveRun, _recipe(bench, ddp, label, seed), ordered=True)
        runs += [one(steps=ddp.checked(label)), one(steps=ddp.steps, evaluate=True)]
    with tempfile.TemporaryDirectory() as keys:
        identity.make(Path(keys), [RANK.format(rank) for rank in range(ddp.workers)])
        done = iter(over_dds.measure_all(runs, dataset=dataset, keys=keys))
    return dict(zip(labels, zip(done, done, strict=True), strict=True))


def _row(bench: Bench, recipe: Recipe, evidence: str) -> Callable[..., Row]:
    """Rows of a run."""
    told = dict(case=recipe.system, fusion="", device="", evidence=evidence)
    return partial(bench.row, **recipe.told | told)


def _rows(
    bench: Bench,
    ddp: DataParallel,
    dataset: datasets.Dataset,
    done: dict[str, tuple[data_parallel.Run, data_parallel.Run]],
) -> Iterator[Row]:
    for label, (short, whole) in done.items():
        recipe = _recipe(bench, ddp, label, ddp.seed)
        row = _row(bench, recipe, "measured")
        yield from _ran(row, _told(whole))
        yield from _bytes(row, whole, ddp.warmup_steps(label), ddp.methods[label].heads)
        steps = ddp.checked(label)
        repeated = simulated(recipe, short.groups, steps, dataset)
        apart = same(short.parameters.values(), repeated, label)
        yield row("live_difference", apart, "1", round=steps)


def _told(live: data_parallel.Run) -> dict[str, Any]:
    """Of each test of a run the step, seconds until then and the accuracy (%); and seconds by
    metric, over all steps and ranks."""
    steps = live.wait_s.shape[1]
    seconds = {}
    for start, since in {"": 0, "warm_": min(WARM, steps - 1)}.items():
        seconds[f"{start}max_wait"] = float(live.wait_s[:, since:].max())
        seconds[f"{start}mean_wait"] = float(live.wait_s[:, since:].mean())
    for metric in ("step", "compute", "compress"):
        seconds[f"{metric}_time"] = float(getattr(live, f"{metric}_s").mean())
    return dict(tests=live.tests, seconds=seconds)


def _ran(row: Callable[..., Row], told: dict[str, Any]) -> Iterator[Row]:
    """How a run learned, and how long it took."""
    for step, seconds, accuracy in told["tests"]:
        yield row("test_accuracy", accuracy, "%", round=step, time_s=seconds)
    yield row("final_accuracy", told["tests"][-1][2], "%")
    for metric, seconds in told["seconds"].items():
        yield row(metric, seconds, "s")


def _bytes(
    row: Callable[..., Row], live: data_parallel.Run, warmup: int, heads: int
) -> Iterator[Row]:
    """What a run sent, after the codec's warm-up; of no seed, for what changes it is the codec.

    What is received is in the frames of the wire. What is counted as printed has the document's
    ``heads``.
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
        yield row(f"bytes_counted_as_printed{end}", (1 + ranks) * (each + heads), "B", **counted)
        yield row(f"frame_bytes{end}", framed[:, since:].mean(), "B", **counted)
        yield row(f"received_bytes{end}", received[:, since:].mean(), "B", seed=-1)


# The record ---------------------------------------------------------------------------------------


@experiment(files=(f"{RECORD}/*.json",), minutes=2)
def ddp_recorded(
    bench: Bench, ddp: DataParallel, ddp_recorded: DataParallelRecorded
) -> Iterator[Row]:
    """Every method with every seed, as they were recorded."""
    whole = ddp_recorded.of(ddp)
    for label in whole.methods:
        for seed in ddp_recorded.seeds:
            recipe = _recipe(bench, whole, label, seed)
            row = _row(bench, recipe, "recorded")
            told = recorded.run_of(recipe)
            if told is None:
                failed = dict(status="failed", reason=recorded.LACKS)
                yield row("judged_accuracy", math.nan, "%", **failed)
                continue
            yield from _ran(row, told)
            accuracies = {step: accuracy for step, _, accuracy in told["tests"]}
            yield row("judged_accuracy", accuracies[ddp_recorded.judged_steps], "%")


def record(bench: Bench, ddp: DataParallel, ddp_recorded: DataParallelRecorded) -> None:
    """Run and keep what is not recorded yet, all methods of a seed on the same processes."""
    whole = ddp_recorded.of(ddp)
    dataset = _dataset(whole)
    for number, seed in enumerate(ddp_recorded.seeds):
        recipes = {label: _recipe(bench, whole, label, seed) for label in whole.methods}
        todo = [label for label, one in recipes.items() if recorded.run_of(one) is None]
        several = recorded.turned([one for one in todo if one not in whole.alone], number)
        for labels in several, [one for one in todo if one in whole.alone]:
            for label, (_, live) in _live(bench, whole, dataset, labels, seed).items():
                recorded.add(recipes[label], _told(live))


# The transport -----------------------------------------------------------------------------------


class Transport(Section):
    """``sizes`` in MiB, of each rank's payload."""

    sizes: Annotated[list[PositiveInt], Field(min_length=1), AfterValidator(distinct)]
    ranks: Annotated[list[Annotated[int, Field(ge=2)]], Field(min_length=1)]
    rounds: PositiveInt


@experiment(alone=True, memory_mb=6000)
def transport(bench: Bench, transport: Transport) -> Iterator[Row]:
    """The same payload over DDS, as raw writes and over gloo, in turns: medians of the rounds."""
    for ranks in transport.ranks:
        for size in transport.sizes:
            bench.say(f"transport: {size} MiB of each of {ranks}")
            nbytes = size * MIB
            took = throughput.measure(ranks, nbytes, transport.rounds)
            seconds = {way: median(rounds) for way, rounds in took.items()}
            for way, value in seconds.items():
                row = partial(
                    bench.row,
                    case=f"{way}, {size} MiB",
                    at=dict(nbytes=nbytes, way=way),
                    workers=ranks,
                    evidence="measured",
                )
                yield row("time", value, "s")
                # What all put in: each of them receives it but for its own.
                yield row("throughput", ranks * nbytes / value / 1e9, "GB/s")
                yield row("share_of_raw", seconds[throughput.RAW] / value, "1")
