"""DDS's data-parallel training on real processes, and the transport below it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from slowlink.testbed.results import Row
from slowlink.testbed.training.recipe import (
    Codec,
    Dataset,
    Device,
    Level,
    Link,
    Model,
    Part,
    Recipe,
)
from slowlink.workflow.documents.dds.settings import MIB, Bench, Momentum, Seeds, need
from slowlink.workflow.experiment import PLANNING, Section, distinct, experiment, training

if not PLANNING:
    import tempfile
    from concurrent.futures import ThreadPoolExecutor
    from functools import partial
    from pathlib import Path
    from statistics import median

    import numpy as np

    from slowlink.testbed.live import data_parallel, identity
    from slowlink.testbed.live.dds import data_parallel as over_dds
    from slowlink.testbed.live.dds import throughput
    from slowlink.testbed.live.dds.collectives import RANK
    from slowlink.testbed.live.one_process import same, simulated
    from slowlink.testbed.training import datasets
    from slowlink.testbed.training.summary import summarise_in_time

if TYPE_CHECKING:
    import pandas as pd

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

    ``seed`` is that of the live runs; ``seeds`` are simulated, of ``simulated`` methods.
    ``judged_steps``: after how many the document gives its accuracy, which is where the simulated
    runs end. ``checked_steps`` of each live run are repeated in one process, and an epoch more
    where a codec warms up by epochs.
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
    rate: PositiveFloat
    latency: NonNegativeFloat
    device: Device
    compute_s: PositiveFloat
    target: PositiveFloat
    methods: dict[str, Method]
    seed: int
    seeds: Seeds
    simulated: list[str]
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

    @model_validator(mode="after")
    def _fits(self) -> DataParallel:
        need("methods", [BASELINE], self.methods)
        need("simulated", self.simulated, self.methods)
        if max(self.checked(label) for label in self.methods) > self.steps:
            raise ValueError(f"checked_steps: there are {self.steps} steps")
        tested = self.judged_steps % self.evaluate_every == 0 or self.judged_steps == self.steps
        if self.judged_steps > self.steps or not tested:
            every = f"every {self.evaluate_every}th is tested, and the last"
            raise ValueError(f"judged_steps: of {self.steps} steps, {every}")
        return self


def _recipe(bench: Bench, ddp: DataParallel, label: str, seed: int) -> Recipe:
    """The training of a method, up to where the document gives its accuracy."""
    method = ddp.methods[label]
    codec = method.codec.parameters
    if "warmup" in codec:
        codec |= dict(steps_per_epoch=ddp.steps_per_epoch)
    return Recipe(
        document=bench.document,
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
        rounds=ddp.judged_steps,
        evaluate_every=ddp.evaluate_every,
        seed=seed,
        scale=bench.scale,
        device=ddp.device,
        compute_s=ddp.compute_s,
        networks={label: Link(lan=ddp.rate, wan=ddp.rate, lan_latency=ddp.latency)},
        torch_threads=bench.settings.threads,
        accelerator="cpu",
    )


def _arrived(curves: pd.DataFrame, recipe: Any) -> Iterator[Row]:
    yield from summarise_in_time(curves, recipe.ddp.target, window=1)


@training(summarise=_arrived)
def ddp_seeds(bench: Bench, ddp: DataParallel) -> Iterator[Recipe]:
    """Further seeds, simulated."""
    for label in ddp.simulated:
        for seed in ddp.seeds:
            yield _recipe(bench, ddp, label, seed)


@experiment(alone=True, memory_mb=6000, makes=("ddp_seeds",))
def ddp(bench: Bench, ddp: DataParallel) -> Iterator[Row]:
    """Every method on real processes with fresh identities; before it its first steps alone,
    beside one process, so that no run pays for the start of its processes.

    A run is the simulated one of its seed, too, where that is not simulated.
    """
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
) -> dict[str, tuple[data_parallel.Run, data_parallel.Run]]:
    """The first steps of every method, and all of them."""
    bench.say(f"ddp: {', '.join(labels)}")
    runs = [
        data_parallel.LiveRun(
            _recipe(bench, ddp, label, ddp.seed), steps, ordered=True, evaluate=evaluate
        )
        for label in labels
        for steps, evaluate in ((ddp.checked(label), False), (ddp.steps, True))
    ]
    with tempfile.TemporaryDirectory() as keys:
        identity.make(Path(keys), [RANK.format(rank) for rank in range(ddp.workers)])
        done = over_dds.measure_all(runs, dataset=dataset, keys=keys)
    return dict(zip(labels, zip(done[::2], done[1::2], strict=True), strict=True))


def _ddp_rows(
    bench: Bench,
    ddp: DataParallel,
    dataset: datasets.Dataset,
    done: dict[str, tuple[data_parallel.Run, data_parallel.Run]],
) -> Iterator[Row]:
    for label, (short, live) in done.items():
        run = _recipe(bench, ddp, label, ddp.seed)
        told = run.told | dict(case=label, fusion="", device="", evidence="measured")
        row = partial(bench.row, **told)
        yield from _tests(row, live.tests)
        judged = [test for test in live.tests if test[0] <= ddp.judged_steps]
        yield row("judged_accuracy", judged[-1][2], "%", round=ddp.judged_steps)
        if label not in ddp.simulated or ddp.seed not in ddp.seeds:
            yield from _tests(partial(row, experiment="ddp_seeds"), judged)
        yield from _profile(row, live, ddp.warmup_steps(label), ddp.methods[label].heads)
        steps = ddp.checked(label)
        repeated = simulated(run, short.groups, steps, dataset)
        apart = same(short.parameters.values(), repeated, label)
        yield row("live_difference", apart, "1", experiment="ddp_seeds", round=steps)


def _tests(row: Callable[..., Row], tests: Sequence[tuple[int, float, float]]) -> Iterator[Row]:
    for step, seconds, accuracy in tests:
        yield row("test_accuracy", accuracy, "%", round=step, time_s=seconds)
    yield row("final_accuracy", tests[-1][2], "%")


def _profile(
    row: Callable[..., Row], live: data_parallel.Run, warmup: int, heads: int
) -> Iterator[Row]:
    """What a run sent, and how long it took.

    Bytes are those after the codec's warm-up, and of no seed: what changes them is the codec; those
    received are in the frames of the wire. Those counted as printed have the document's ``heads``.
    Times are over all steps and ranks.
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
