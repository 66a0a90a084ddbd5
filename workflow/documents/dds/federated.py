"""DDS's federated experiments: bytes, training on real processes over DDS, further seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from slowlink.testbed.results import Row, row_of
from slowlink.testbed.training.recipe import (
    Aggregation,
    Codec,
    Dataset,
    Level,
    Link,
    Model,
    Part,
    Recipe,
    Spoiled,
)
from slowlink.workflow.documents.dds import recorded
from slowlink.workflow.documents.dds.settings import MIB, Bench, Momentum, need
from slowlink.workflow.experiment import PLANNING, Section, Seeds, experiment, training

if TYPE_CHECKING:
    import pandas as pd

if not PLANNING:
    import math
    import tempfile
    from concurrent.futures import ThreadPoolExecutor
    from functools import partial
    from itertools import accumulate, pairwise
    from pathlib import Path
    from statistics import mean, stdev

    import torch
    from torch import Tensor

    from slowlink.methods.synchronization import Sync
    from slowlink.testbed.live import identity
    from slowlink.testbed.live.dds import segments
    from slowlink.testbed.live.engine import launch
    from slowlink.testbed.live.engine.settings import parse
    from slowlink.testbed.live.one_process import evaluated, same, trained
    from slowlink.testbed.training.pipeline import layers
    from slowlink.testbed.training.trainer import train

DENSE = "fp32_dense"
"""The mode that the others are held against."""
FEW = 100
"""Test images where the accuracy is of no interest."""
UNTIMED = 2
"""Live runs at the same time where nobody times them: they mostly start and wait."""
HEAD = 200
"""Bytes of a message beside its payload: what it is, as JSON, to a few."""
NOBODY = "none"
"""The attack of nobody."""
RECORD = recorded.FOLDER.format("federated_recorded")

# What is trained ----------------------------------------------------------------------------------


class Mode(Section):
    """A codec, and what clients send: their ``weights``, the ``change`` of them in the round, or in
    round 1 the weights and then changes (``weights_first``), as a change from zero is."""

    codec: Codec
    sends: Literal["change", "weights", "weights_first"] = "change"


class Federated(Section):
    """``subset`` samples of each client a round; ``lr`` and ``momentum`` of a client's own SGD.

    Of the test images, ``round_test_limit`` are looked at after each round of a live run.
    ``variants`` are modes of which bytes alone matter. ``live``: the modes that run on real
    processes, one after the other if they are ``timed``; ``checked_rounds`` of ``checked_subset``
    samples, also of variants, are repeated in one process. A run in which no round ends for
    ``timeout_s`` has failed.
    """

    dataset: Dataset
    model: Model
    clients: PositiveInt
    rounds: Annotated[int, Field(ge=2)]
    subset: PositiveInt
    batch: PositiveInt
    epochs: PositiveInt
    lr: PositiveFloat
    momentum: Momentum
    min_clients: PositiveInt
    timeout_s: PositiveFloat
    round_test_limit: PositiveInt | None
    test_limit: PositiveInt | None
    seed: int
    modes: dict[str, Mode]
    variants: dict[str, Mode]
    live: list[str]
    timed: bool
    checked_rounds: PositiveInt
    checked_subset: PositiveInt

    @model_validator(mode="after")
    def _fits(self) -> Federated:
        need("modes", [DENSE], self.modes)
        need("live", self.live, self.modes)
        if self.min_clients > self.clients:
            raise ValueError(f"min_clients: there are {self.clients} clients")
        return self


class FederatedSeeds(Section):
    """Modes on further seeds, in one process; so many ``rounds`` of ``subset`` samples."""

    modes: list[str]
    seeds: Seeds
    rounds: PositiveInt
    subset: PositiveInt


class FederatedRecorded(FederatedSeeds):
    """The same on real processes, one run at a time."""

    round_test_limit: PositiveInt


class Split(Part):
    """One of :mod:`testbed.training.splits`, with its parameters. An even one is dealt anew in each
    round, as the document's is."""

    name: Literal["even", "by_label", "dirichlet"]


class NonIid(Section):
    """Modes on unlike clients: how the data set is split, by label; with another ``model`` if it is
    given."""

    modes: list[str]
    splits: dict[str, Split]
    seeds: Seeds
    rounds: PositiveInt
    model: Model | None
    test_limit: PositiveInt | None


class Poison(Section):
    """What an attacker brings, see :class:`testbed.training.recipe.Spoiled`."""

    factor: float
    noise: NonNegativeFloat = 0.0


class Attacked(Section):
    """``attackers`` of ``clients`` bring what one of ``attacks`` makes of what they learned, and
    the server combines all by one of ``rules``; and the same without attackers."""

    dataset: Dataset
    model: Model
    clients: PositiveInt
    attackers: PositiveInt
    rounds: PositiveInt
    subset: PositiveInt
    batch: PositiveInt
    lr: PositiveFloat
    momentum: Momentum
    test_limit: PositiveInt | None
    seeds: Seeds
    rules: dict[str, Aggregation]
    attacks: dict[str, Poison]

    @model_validator(mode="after")
    def _fits(self) -> Attacked:
        if 2 * self.attackers >= self.clients:
            raise ValueError(f"attackers: must be fewer than half of {self.clients} clients")
        need("attacks", [name for name in self.attacks if name == NOBODY], [])
        return self


EVEN = Split(name="even")


def _recipe(
    bench: Bench, chosen: Federated, label: str, seed: int, split: Split = EVEN, **changed: Any
) -> Recipe:
    """The training of a mode or variant, of so many ``rounds`` of ``subset`` samples; ``changed``
    are fields of the section."""
    chosen = chosen.model_copy(update=changed)
    mode = (chosen.modes | chosen.variants)[label]
    feedback = "on" if mode.codec.parameters.get("error_feedback") else "off"
    return _described(
        bench,
        chosen,
        label,
        at=dict(mode=label, sends=mode.sends, feedback=feedback),
        codec=mode.codec,
        sends=mode.sends,
        epochs=chosen.epochs,
        min_clients=chosen.min_clients,
        split=split,
        seed=seed,
    )


def _described(
    bench: Bench,
    chosen: Federated | Attacked,
    system: str,
    *,
    codec: Part,
    seed: int,
    split: Split = EVEN,
    epochs: int = 1,
    min_clients: int = 1,
    **more: Any,
) -> Recipe:
    """Clients around a server that asks for so many ``epochs`` of a part of their data a round, in
    each of which their momentum begins anew."""
    steps = epochs * -(-chosen.subset // chosen.batch)
    policy = dict(local_iterations=steps, min_clients=min_clients)
    return Recipe(
        document=bench.document,
        experiment=bench.experiment,
        scale=bench.scale,
        system=system,
        exchange=Part(name="parameter_server"),
        levels=(Level(up=codec),),
        synchronization=Part(name="fedavg", **policy),
        fusion=Part(name="whole_model"),
        model=chosen.model,
        dataset=chosen.dataset,
        test_limit=chosen.test_limit,
        workers=(chosen.clients,),
        cluster="star",
        split=Part(**split.model_dump()),
        deal="each_round" if split.name == EVEN.name else "once",
        subset=chosen.subset,
        batch=chosen.batch,
        lr=chosen.lr,
        momentum=chosen.momentum,
        momentum_lasts="round",
        rounds=steps * chosen.rounds,
        evaluate_every=steps,
        seed=seed,
        device="v100_matrix",  # of whose time nobody asks, as of the link's
        accelerator="cpu",
        networks={system: Link(lan=1.0, wan=1.0)},
        gradients="channels_last",
        torch_threads=bench.settings.threads,
        **more,
    )


def _row(bench: Bench, recipe: Recipe, **fields: Any) -> Callable[..., Row]:
    """Rows of a run."""
    told = recipe.told | dict(case=recipe.system, document=bench.document, fusion="", device="")
    return partial(bench.row, **told | dict(experiment=bench.experiment) | fields)


def _ends(
    row: Callable[..., Row], accuracies: Sequence[float], times: Sequence[float], final: float
) -> Iterator[Row]:
    """The curve of a run, of which each round is tested, and its end."""
    for number, (accuracy, time_s) in enumerate(zip(accuracies, times, strict=True), start=1):
        yield row("test_accuracy", accuracy, "%", round=number, time_s=time_s)
    yield row("final_accuracy", final, "%")


def _curve(rows: Sequence[Row]) -> list[float]:
    """Test accuracies after each round."""
    return [one.value for one in rows if one.metric == "test_accuracy" and one.round > 0]


# Bytes ------------------------------------------------------------------------------------------


def _sizes(row: Callable[..., Row], payload: float) -> Iterator[Row]:
    """Bytes that a client sends in a round: of the payload; and counted by the formats, whether
    anything was sent or not, with the heads of messages and segments, and with all heads of the
    link. No seed changes them."""
    yield row("uplink_bytes", payload, "B", seed=-1)
    message, counted = int(payload) + HEAD, dict(seed=-1, evidence="computed")
    yield row("frame_bytes", segments.wire_bytes(message), "B", **counted)
    yield row("link_bytes", segments.link_bytes(message), "B", **counted)


def _down(recipe: Recipe) -> int:
    """Bytes of the model, which the server answers with in every mode."""
    return 4 * sum(layers(recipe.model).sizes)


@experiment(minutes=30)
def federated_bytes(bench: Bench, federated: Federated) -> Iterator[Row]:
    """What a client sends in a round, of an update that was really trained, for a step, and
    encoded."""
    short = dict(rounds=1, subset=federated.batch, epochs=1, test_limit=FEW)
    # Neither feedback nor what changes start from alters the bytes of the modes that run live.
    up, recipes = {}, {}
    for label in (*federated.live, *federated.variants):
        bench.say(f"bytes: {label}")
        recipes[label] = _recipe(bench, federated, label, federated.seed, **short)
        *_, (_, both) = _carried(list(train(recipes[label])))
        up[label] = both - _down(recipes[label])
    whole = up[DENSE] + _down(recipes[DENSE])
    for label, recipe in recipes.items():
        row, down = _row(bench, recipe, evidence="computed", seed=-1), _down(recipe)
        yield from _sizes(row, up[label])
        yield row("downlink_bytes", down, "B")
        yield row("uplink_mib", up[label] / MIB, "1")
        yield row("up_and_down_ratio", (up[label] + down) / whole, "1")


def _carried(rows: Sequence[Row]) -> list[tuple[int, float]]:
    """By round that was tested, the payload bytes that a client has sent and received so far."""
    return [(one.round, one.value) for one in rows if one.metric == "bytes_sent"]


def _up(rows: Sequence[Row], down: int) -> float:
    """Bytes that a client sends in each round. Raises RuntimeError where rounds differ."""
    total = [nbytes for _, nbytes in _carried(rows)]
    found = {after - before - down for before, after in pairwise(total)}
    if len(found) != 1:
        raise RuntimeError(f"{rows[0].case}: updates of different sizes: {sorted(found)}")
    return found.pop()


# On real processes --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Live:
    """A run on real processes.

    Attributes
    ----------
    rows: of the engine.
    round_s: of every round.
    train_s, upload_s: by client, of every round.
    weights: at the end.
    """

    rows: list[Row]
    round_s: list[float]
    train_s: list[list[float]]
    upload_s: list[list[float]]
    weights: list[Tensor]


@experiment(alone=True, memory_mb=6000, makes=("federated_seeds",))
def federated(bench: Bench, federated: Federated) -> Iterator[Row]:
    """Modes on real processes; and a few short rounds of each, of variants, and of error feedback,
    beside the same in one process.

    A run has one seed and measures each of its rounds: what was timed has a row a round, whose
    number stands in the place of the seed.
    """
    of_seed = partial(_recipe, bench, federated, seed=federated.seed)
    limited = dict(test_limit=federated.round_test_limit)
    whole = {label: of_seed(label, **limited) for label in federated.live}
    few = dict(rounds=federated.checked_rounds, subset=federated.checked_subset)
    alike = few == dict(rounds=federated.rounds, subset=federated.subset)
    labels = [*([] if alike else federated.live), *federated.variants]
    fed_back = [label for label in federated.modes if _feeds_back(federated.modes[label])]
    labels += [label for label in fed_back[-1:] if label not in federated.live]
    short = {label: of_seed(label, test_limit=FEW, **few) for label in labels}
    run = partial(_live, bench, federated.timeout_s)
    timed = _all(run, whole, 1) if federated.timed else {}

    def live() -> tuple[dict[str, Live], dict[str, Live]]:
        """The modes, and what is repeated in one process."""
        done = timed or _all(run, whole, UNTIMED)
        return done, (done if alike else {}) | _all(run, short, UNTIMED)

    threads = dict(initializer=torch.set_num_threads, initargs=(bench.settings.threads,))
    with ThreadPoolExecutor(1, **threads) as pool:
        beside = pool.submit(live)
        bench.say("federated: the same in one process")
        checked = (whole if alike else {}) | short
        repeated = {label: trained(recipe) for label, recipe in checked.items()}
        done, again = beside.result()
    for label, its in done.items():
        recipe = whole[label]
        row = _row(bench, recipe, evidence="measured")
        yield from _sizes(row, _up(its.rows, _down(recipe)))
        for client, seconds in enumerate(its.upload_s):
            own = _row(bench, recipe, evidence="measured", at=recipe.at | dict(client=client))
            for number, one in enumerate(seconds, start=1):
                yield own("communication_time", one, "s", seed=number)
        for number, one in enumerate(its.round_s, start=1):
            yield row("round_time", one, "s", seed=number)
        for number, one in enumerate(zip(*its.train_s, strict=True), start=1):
            yield row("train_time", mean(one), "s", seed=number)
        final = _tested(recipe, its, federated.test_limit)
        yield from _ends(row, _curve(its.rows), list(accumulate(its.round_s)), final)
    for label, its in again.items():
        row = _row(bench, checked[label], evidence="measured")
        if label in federated.variants:
            yield from _sizes(row, _up(its.rows, _down(checked[label])))
        apart = same(its.weights, repeated[label], label)
        fields = dict(experiment="federated_seeds", round=federated.checked_rounds)
        yield row("live_difference", apart, "1", **fields)


def _tested(recipe: Recipe, live: Live, limit: int | None) -> float:
    """Accuracy (%) of a run's model on so many images."""
    return evaluated(recipe.model_copy(update=dict(test_limit=limit)), live.weights)


def _feeds_back(mode: Mode) -> bool:
    return bool(mode.codec.parameters.get("error_feedback"))


def _all(
    run: Callable[[Recipe], Live], recipes: dict[str, Recipe], at_once: int
) -> dict[str, Live]:
    with ThreadPoolExecutor(at_once) as pool:
        return dict(zip(recipes, pool.map(run, recipes.values()), strict=True))


def _live(bench: Bench, timeout_s: float, recipe: Recipe) -> Live:
    """On real processes with fresh identities; fails if no round ends for ``timeout_s``."""
    clients, steps = sum(recipe.workers), recipe.evaluate_every
    bench.say(f"federated: {recipe.system} on {clients} clients, {recipe.rounds // steps} rounds")
    with tempfile.TemporaryDirectory() as folder:
        output, keys = Path(folder) / "run", Path(folder) / "keys"
        limits = dict(compute_s=timeout_s, meeting_s=timeout_s)
        told = dict(training=recipe.model_dump(exclude={"networks"}), dds={}, limits=limits)
        settings = parse(told | dict(output=str(output), keys=str(keys)))
        identity.make(keys, settings.members)
        ended = launch.run_all(settings)
        weights = list(torch.load(output / "model.pt").values())
    record = ended.record
    # A round is over when the server has the new model.
    called = [told.t for told in record.told if any(isinstance(d, Sync) for d in told.decisions)]
    ends = [t + push for t, (push, _) in zip(called, record.meetings, strict=True)]
    return Live(
        ended.rows,
        [after - before for before, after in pairwise([0.0, *ends])],
        [[sum(its[i : i + steps]) for i in range(0, len(its), steps)] for its in record.iterations],
        [[its[client] for its in record.uploads] for client in range(clients)],
        weights,
    )


# The record of real processes ---------------------------------------------------------------------


def _recorded(
    bench: Bench, federated: Federated, chosen: FederatedRecorded
) -> dict[int, dict[str, Recipe]]:
    """By seed, the run of each mode."""
    length = dict(rounds=chosen.rounds, subset=chosen.subset, test_limit=chosen.round_test_limit)
    one = partial(_recipe, bench, federated, **length)
    return {seed: {label: one(label, seed) for label in chosen.modes} for seed in chosen.seeds}


@experiment(files=(f"{RECORD}/*.json",), minutes=2)
def federated_recorded(
    bench: Bench, federated: Federated, federated_recorded: FederatedRecorded
) -> Iterator[Row]:
    """Runs as they were recorded, whose times are means over their rounds.

    Modes of a seed ran one after the other, in minutes in which the machine may become slower, and
    train alike: ``round_time_alike`` has the mean time of training of all these runs in the place
    of a run's own.
    """
    for recipes in _recorded(bench, federated, federated_recorded).values():
        told = {label: recorded.run_of(recipe) for label, recipe in recipes.items()}
        there = {label: run for label, run in told.items() if run}
        slowest = {
            label: mean(map(max, zip(*run["train_s"], strict=True))) for label, run in there.items()
        }
        for label, recipe in recipes.items():
            row = _row(bench, recipe, evidence="recorded")
            if (run := there.get(label)) is None:
                failed = dict(status="failed", reason=recorded.LACKS)
                yield row("round_time", math.nan, "s", **failed)
                continue
            for client, seconds in enumerate(run["upload_s"]):
                at = recipe.at | dict(client=client)
                own = _row(bench, recipe, evidence="recorded", at=at)
                yield own("communication_time", mean(seconds), "s")
            round_s = mean(run["round_s"])
            yield row("round_time", round_s, "s")
            alike = round_s - slowest[label] + mean(slowest.values())
            yield row("round_time_alike", alike, "s")
            yield row("round_time_sd", stdev(run["round_s"]), "s")
            yield row("train_time", mean(map(mean, run["train_s"])), "s")
            yield from _ends(row, run["accuracies"], list(accumulate(run["round_s"])), run["final"])


def record(bench: Bench, federated: Federated, federated_recorded: FederatedRecorded) -> None:
    """Run and keep what is not recorded yet, one run at a time, all modes with a seed before the
    next."""
    torch.set_num_threads(bench.settings.threads)
    runs = _recorded(bench, federated, federated_recorded)
    for number, recipes in enumerate(runs.values()):
        for label in recorded.turned(list(recipes), number):
            recipe = recipes[label]
            if recorded.run_of(recipe) is None:
                live = _live(bench, federated.timeout_s, recipe)
                told = dict(round_s=live.round_s, train_s=live.train_s, upload_s=live.upload_s)
                told |= dict(accuracies=_curve(live.rows), final=_tested(recipe, live, None))
                recorded.add(recipe, told)


# In one process -----------------------------------------------------------------------------------


def _summary(curves: pd.DataFrame, recipe: Any) -> Iterator[Row]:
    """How every run ended."""
    by_run = curves[curves["metric"] == "test_accuracy"].groupby(["case", "seed"], sort=False)
    for _, run in by_run:
        last = row_of(run.iloc[-1].to_dict())
        yield last.model_copy(update=dict(metric="final_accuracy", round=-1, time_s=math.nan))


@training(summarise=_summary, recorded=True)
def federated_seeds(
    bench: Bench, federated: Federated, federated_seeds: FederatedSeeds
) -> Iterator[Recipe]:
    """Every mode on the document's own model, with other seeds."""
    own = dict(rounds=federated_seeds.rounds, subset=federated_seeds.subset, test_limit=None)
    for seed in federated_seeds.seeds:
        for label in federated_seeds.modes:
            yield _recipe(bench, federated, label, seed, **own)


@experiment(minutes=30, parts=lambda recipe: map(str, recipe.non_iid.seeds))
def non_iid(bench: Bench, part: str, federated: Federated, non_iid: NonIid) -> Iterator[Row]:
    """Modes in one process, on clients that have different labels."""
    changed = dict(rounds=non_iid.rounds, test_limit=non_iid.test_limit)
    changed |= dict(model=non_iid.model or federated.model)
    for label in non_iid.modes:
        for name, split in non_iid.splits.items():
            bench.say(f"non_iid: {label} {name} seed {part}")
            recipe = _recipe(bench, federated, label, int(part), split, **changed)
            row = _row(bench, recipe, evidence="simulated", at=recipe.at | dict(split=name))
            curve = _curve(list(train(recipe)))
            yield from _ends(row, curve, [math.nan] * len(curve), curve[-1])


@experiment(minutes=10)
def attack(bench: Bench, attack: Attacked) -> Iterator[Row]:
    """Every rule under every attack, in one process."""
    for label, rule in attack.rules.items():
        for seed in attack.seeds:
            for name, how in {NOBODY: None, **attack.attacks}.items():
                bench.say(f"attack: {label}, {name}, seed {seed}")
                at = dict(rule=label, attack=name, attackers=attack.attackers if how else 0)
                spoiled = how and Spoiled(workers=attack.attackers, **how.model_dump())
                given = dict(codec=Part(name="identity"), at=at, seed=seed)
                given |= dict(aggregation=rule, spoiled=spoiled)
                recipe = _described(bench, attack, label, **given, min_clients=attack.clients)
                final = _curve(list(train(recipe)))[-1]
                yield _row(bench, recipe, evidence="simulated")("final_accuracy", final, "%")
