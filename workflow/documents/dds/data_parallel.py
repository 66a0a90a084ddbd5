"""DDS's data-parallel training on real processes, and the transport below it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

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
from slowlink.workflow.documents.dds.settings import MIB, Bench, Momentum, need
from slowlink.workflow.experiment import PLANNING, Section, Seeds, distinct, experiment

if not PLANNING:
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

BASELINE = "baseline"
"""The method that the others are held against."""
WARM = 100
"""Steps after which every kernel has been compiled and every buffer has its size."""


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
    many as one worker alone would take.

    ``repeated``: methods that run with every one of ``seeds``; others have the first alone.
    ``judged_steps``: after how many the document gives its accuracy. ``checked_steps`` of each
    method are repeated in one process, and an epoch more where a codec warms up by epochs.
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
    seeds: Seeds
    repeated: list[str]
    judged_steps: PositiveInt
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

    def seeds_of(self, label: str) -> list[int]:
        """The seeds of a method's runs."""
        return self.seeds if label in self.repeated else self.seeds[:1]

    @model_validator(mode="after")
    def _fits(self) -> DataParallel:
        need("methods", [BASELINE], self.methods)
        need("repeated", self.repeated, self.methods)
        if max(self.checked(label) for label in self.methods) > self.steps:
            raise ValueError(f"checked_steps: there are {self.steps} steps")
        tested = self.judged_steps % self.evaluate_every == 0 or self.judged_steps == self.steps
        if self.judged_steps > self.steps or not tested:
            every = f"every {self.evaluate_every}th is tested, and the last"
            raise ValueError(f"judged_steps: of {self.steps} steps, {every}")
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
    dataset = datasets.load_dataset(ddp.dataset, limit=ddp.images, test_limit=ddp.test_limit)
    alone = [label for label, method in ddp.methods.items() if method.alone]
    with ThreadPoolExecutor(1) as pool:
        together = partial(_ddp_live, bench, ddp, dataset)
        several = together([label for label in ddp.methods if label not in alone])
        # One process, of whose times nobody asks, beside the steps that are repeated here.
        single = pool.submit(together, alone) if alone else None
        yield from _ddp_rows(bench, ddp, dataset, several)
        yield from _ddp_rows(bench, ddp, dataset, single.result() if single else {})


def _ddp_live(
    bench: Bench, ddp: DataParallel, dataset: datasets.Dataset, labels: Sequence[str]
) -> dict[str, tuple[data_parallel.Run, list[data_parallel.Run]]]:
    """The first steps of every method with the first seed, and all of them with each of its own."""
    bench.say(f"ddp: {', '.join(labels)}")

    def one(label: str, seed: int, steps: int, evaluate: bool) -> data_parallel.LiveRun:
        recipe = _recipe(bench, ddp, label, seed)
        return data_parallel.LiveRun(recipe, steps, ordered=True, evaluate=evaluate)

    runs: list[data_parallel.LiveRun] = []
    for label in labels:
        runs.append(one(label, ddp.seeds[0], ddp.checked(label), False))
        runs += [one(label, seed, ddp.steps, True) for seed in ddp.seeds_of(label)]
    with tempfile.TemporaryDirectory() as keys:
        identity.make(Path(keys), [RANK.format(rank) for rank in range(ddp.workers)])
        done = iter(over_dds.measure_all(runs, dataset=dataset, keys=keys))
    return {label: (next(done), [next(done) for _ in ddp.seeds_of(label)]) for label in labels}


def _ddp_rows(
    bench: Bench,
    ddp: DataParallel,
    dataset: datasets.Dataset,
    done: dict[str, tuple[data_parallel.Run, list[data_parallel.Run]]],
) -> Iterator[Row]:
    for label, (short, whole) in done.items():
        for seed, live in zip(ddp.seeds_of(label), whole, strict=True):
            told = _recipe(bench, ddp, label, seed).told
            row = partial(
                bench.row, **told | dict(case=label, fusion="", device="", evidence="measured")
            )
            for step, seconds, accuracy in live.tests:
                yield row("test_accuracy", accuracy, "%", round=step, time_s=seconds)
                if step == ddp.judged_steps:
                    yield row("judged_accuracy", accuracy, "%", round=step)
            yield row("final_accuracy", live.tests[-1][2], "%")
            yield from _times(row, live)
            if live is whole[0]:
                yield from _bytes(row, live, ddp.warmup_steps(label), ddp.methods[label].heads)
                steps, run = ddp.checked(label), _recipe(bench, ddp, label, seed)
                repeated = simulated(run, short.groups, steps, dataset)
                apart = same(short.parameters.values(), repeated, label)
                yield row("live_difference", apart, "1", round=steps)


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


def _times(row: Callable[..., Row], live: data_parallel.Run) -> Iterator[Row]:
    """How long a run took, over all steps and ranks."""
    steps = live.wait_s.shape[1]
    for start, since in {"": 0, "warm_": min(WARM, steps - 1)}.items():
        yield row(f"{start}max_wait", live.wait_s[:, since:].max(), "s")
        yield row(f"{start}mean_wait", live.wait_s[:, since:].mean(), "s")
    for metric in ("step", "compute", "compress"):
        yield row(f"{metric}_time", getattr(live, f"{metric}_s").mean(), "s")


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
