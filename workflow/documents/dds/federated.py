"""DDS's federated experiments: bytes, training on real processes over DDS, further seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from slowlink.testbed.results import Row
from slowlink.testbed.training.recipe import Aggregation, Codec, Dataset, Model, Part
from slowlink.workflow.documents.dds.settings import MIB, Bench, Momentum, need
from slowlink.workflow.experiment import PLANNING, Section, Seeds, experiment

if not PLANNING:
    import itertools
    import math
    import secrets
    import tempfile
    import time
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
    from functools import partial
    from importlib import metadata
    from itertools import accumulate
    from multiprocessing import get_context
    from pathlib import Path
    from statistics import mean, stdev

    import torch
    from torch import Tensor

    from slowlink.testbed.live import identity
    from slowlink.testbed.live.dds.domain import draw
    from slowlink.testbed.live.dds.federated import (
        ControllerSettings,
        Data,
        Round,
        Sent,
        Task,
        messages,
        run_live,
        simulate,
    )
    from slowlink.testbed.live.dds.federated.attacks import spoiled
    from slowlink.testbed.live.dds.federated.training import Examiner
    from slowlink.testbed.live.one_process import same
    from slowlink.workflow.kept import keep, kept

DENSE = "fp32_dense"
"""The mode that the others are held against."""
SIZES = {
    "payload_bytes": "uplink_bytes",
    "frame_bytes": "frame_bytes",
    "link_bytes": "link_bytes",
}
"""What a client sends in a round: the fields of :class:`Sent`, and their metrics. All but the
first are counted by the formats, whether anything was sent or not."""
FEW = 100
"""Test images where the accuracy is of no interest."""
UNTIMED = 2
"""Live runs at the same time where nobody times them: they mostly start and wait."""
NOBODY = "none"
"""The attack of nobody."""
RECORD = "data/recorded/dds_federated"
COMMAND = "make record-federated"
START_S = 60.0
"""Allowed for processes to start and to find each other."""
ROUND = ("rounds", "subset", "epochs", "lr")
"""What the controller says of its rounds."""
Live = dict[str, tuple[list["Round"], "Tensor"]]
"""The rounds of a run on real processes and its final (n,) weights, by mode."""


# What is trained ----------------------------------------------------------------------------------


class Mode(Section):
    """A codec, and whether clients send ``weights`` or their change in the round (``delta``); in
    round 1 this is a change from the initial ``model`` or from ``zero``."""

    codec: Codec
    sends: Literal["weights", "delta"] = "delta"
    first_baseline: Literal["model", "zero"] = "model"

    @model_validator(mode="after")
    def _baseline_of_changes(self) -> Mode:
        if self.sends == "weights" and self.first_baseline == "zero":
            raise ValueError("first_baseline: this mode sends weights, not changes")
        return self


class Federated(Section):
    """``subset`` samples of each client a round; ``lr`` and ``momentum`` of a client's own SGD.

    Of the test images, ``round_test_limit`` are looked at after each round of a live run.
    ``variants`` are modes of which bytes alone matter. ``live``: the modes that run on real
    processes, one after the other if they are ``timed``; ``checked_rounds`` of ``checked_subset``
    samples, also of variants, are repeated in one process.
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


class Repeated(Section):
    """Modes repeated in one process on other seeds; with another ``model`` and with ``subset``
    samples, if they are given."""

    modes: list[str]
    seeds: Seeds
    model: Model | None
    subset: PositiveInt | None
    test_limit: PositiveInt | None

    @property
    def changed(self) -> dict[str, Any]:
        """What is other than in the live runs, which may be nothing."""
        given = dict(model=self.model, subset=self.subset)
        given = {name: value for name, value in given.items() if value is not None}
        return given | dict(test_limit=self.test_limit)

    def repeats(self, live: Federated, label: str) -> bool:
        """Whether the live run of a mode is repeated as it is, with other seeds."""
        of_live = dict(model=live.model, subset=live.subset, test_limit=live.test_limit)
        return label in live.live and label in self.modes and of_live == of_live | self.changed


class FederatedSeeds(Repeated):
    """``recorded``: they are read from :data:`RECORD`, where ``make record-federated`` keeps
    them."""

    recorded: bool = False


class Split(Part):
    """One of :mod:`testbed.training.splits`, with its parameters; or ``anew``, an even one that is
    drawn in each round."""

    name: Literal["even", "by_label", "dirichlet", "anew"]


class NonIid(Repeated):
    """The same on unlike clients: how the data set is split, by label."""

    splits: dict[str, Split]


class Spoiled(Section):
    """What an attacker sends, see :func:`testbed.live.dds.federated.attacks.spoiled`."""

    factor: float
    noise: NonNegativeFloat = 0.0


class Attacked(Section):
    """``attackers`` of ``clients`` send what one of ``attacks`` makes of what they learned, and the
    server combines all by one of ``rules``; and the same without attackers."""

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
    attacks: dict[str, Spoiled]

    @model_validator(mode="after")
    def _fits(self) -> Attacked:
        if 2 * self.attackers >= self.clients:
            raise ValueError(f"attackers: must be fewer than half of {self.clients} clients")
        need("attacks", [name for name in self.attacks if name == NOBODY], [])
        return self


def _settings(
    bench: Bench, chosen: Federated, mode: Mode, seed: int, **changed: Any
) -> ControllerSettings:
    """Of a mode's training; ``changed`` are ``model``, ``rounds``, ``subset``, ``test_limit`` and
    ``split``."""
    own = dict(model=chosen.model, rounds=chosen.rounds, subset=chosen.subset)
    own |= dict(test_limit=chosen.round_test_limit, split=Part(name="anew")) | changed
    task = Task(
        model=own["model"],
        data=Data(name=chosen.dataset, test_limit=own["test_limit"]),
        clients=chosen.clients,
        split=own["split"],
        seed=seed,
        batch=chosen.batch,
        momentum=chosen.momentum,
        codec=mode.codec,
        sends=mode.sends,
        first_baseline=mode.first_baseline,
        torch_threads=bench.settings.threads,
    )
    return ControllerSettings(
        task=task,
        domain=draw(),
        run=secrets.token_hex(),
        rounds=own["rounds"],
        subset=own["subset"],
        epochs=chosen.epochs,
        lr=chosen.lr,
        min_clients=chosen.min_clients,
        timeout_s=chosen.timeout_s,
        worst=None,  # as the document's controller, which looks at a model after it is out
        state=Path("model"),
    )


def _feeds_back(codec: Part) -> bool:
    return codec.parameters.get("error_feedback", False)


def _row(
    bench: Bench, label: str, settings: ControllerSettings, at: dict | None = None, **fields: Any
) -> Callable[..., Row]:
    """Rows of a mode, with the choices that modes of one codec differ in."""
    task = settings.task
    choices = dict(
        first_baseline=task.first_baseline, feedback="on" if _feeds_back(task.codec) else "off"
    )
    own = dict(
        case=label,
        at=dict(mode=label) | choices | (at or {}),
        exchange="parameter_server",
        compression=task.codec.name,
        synchronization="fedavg",
        model=task.model.name,
        dataset=task.data.name,
        workers=task.clients,
        seed=task.seed,
    )
    return partial(bench.row, **own | fields)


def _sizes(row: Callable[..., Row], sent: Sent) -> Iterator[Row]:
    """Bytes, which no seed changes."""
    for name, metric in SIZES.items():
        counted = {} if name == "payload_bytes" else {"evidence": "computed"}
        yield row(metric, getattr(sent, name), "B", **({"seed": -1} | counted))


def _accuracies(
    row: Callable[..., Row], rounds: Sequence[Round], final: float | None = None
) -> Iterator[Row]:
    times = accumulate(one.round_s for one in rounds)
    for one, time_s in zip(rounds, times, strict=True):
        yield row("test_accuracy", one.accuracy, "%", round=one.number, time_s=time_s)
    yield row("final_accuracy", rounds[-1].accuracy if final is None else final, "%")


@experiment(minutes=30)
def federated_bytes(bench: Bench, federated: Federated) -> Iterator[Row]:
    """What a client sends in a round, of an update that was really trained, for a step, and
    encoded."""
    short = dict(rounds=1, subset=federated.batch, test_limit=FEW)
    # Neither feedback nor what changes start from alters the bytes of the modes that run live.
    modes = {label: federated.modes[label] for label in federated.live} | federated.variants
    settings = {
        label: _settings(bench, federated, mode, federated.seed, **short)
        for label, mode in modes.items()
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
        row = _row(bench, label, of, seed=-1, evidence="computed")
        yield from _sizes(row, sent)
        yield row("downlink_bytes", down, "B")
        yield row("uplink_mib", sent.payload_bytes / MIB, "1")
        yield row("up_and_down_ratio", (sent.payload_bytes + down) / whole, "1")


@experiment(alone=True, memory_mb=6000, makes=("federated_seeds",))
def federated(bench: Bench, federated: Federated, federated_seeds: FederatedSeeds) -> Iterator[Row]:
    """Modes on real processes; and a few short rounds of each, of variants, and of error feedback
    on the model of further seeds, beside the same in one process.

    A run has one seed and measures each of its rounds: what was timed has a row a round, whose
    number stands in the place of the seed.
    """
    of_seed = partial(_settings, bench, federated, seed=federated.seed)
    modes = {label: federated.modes[label] for label in federated.live}
    settings = {label: of_seed(mode) for label, mode in modes.items()}
    few = dict(rounds=federated.checked_rounds, subset=federated.checked_subset)
    alike = few == dict(rounds=federated.rounds, subset=federated.subset)
    short = {
        label: of_seed(mode, test_limit=FEW, **few)
        for label, mode in (({} if alike else modes) | federated.variants).items()
    }
    model = federated_seeds.model or federated.model
    others = {label: mode for label, mode in federated.modes.items() if label not in modes}
    for label in [label for label, mode in others.items() if _feeds_back(mode.codec)][-1:]:
        short[label] = of_seed(others[label], model=model, test_limit=FEW, **few)
    timed = _all_live(bench, settings, 1) if federated.timed else {}

    def live() -> tuple[Live, Live, dict[str, float]]:
        """The modes, what is repeated in one process, and the modes' final accuracies."""
        done = timed or _all_live(bench, settings, UNTIMED)
        again = (done if alike else {}) | _all_live(bench, short, UNTIMED)
        tests = Data(name=federated.dataset, test_limit=federated.test_limit).load()
        finals = {
            label: Examiner(settings[label].task, tests).accuracy(weights)
            for label, (_, weights) in done.items()
        }
        return done, again, finals

    threads = dict(initializer=torch.set_num_threads, initargs=(bench.settings.threads,))
    with ThreadPoolExecutor(1, **threads) as pool:
        beside = pool.submit(live)
        bench.say("federated: the same in one process")
        checked = (settings if alike else {}) | short
        loaded = {data: data.load() for data in {of.task.data for of in checked.values()}}
        repeated = {label: simulate(of, loaded[of.task.data])[1] for label, of in checked.items()}
        done, again, finals = beside.result()
    for label, (rounds, _) in done.items():
        row = _row(bench, label, settings[label], evidence="measured")
        sent = [[one.sent[client] for one in rounds] for client in range(federated.clients)]
        yield from _sizes(row, _alike(label, rounds))
        for client, its in enumerate(sent):
            own = _row(bench, label, settings[label], dict(client=client), evidence="measured")
            for number, one in enumerate(its, start=1):
                yield own("communication_time", one.communication_s, "s", seed=number)
        for number, one in enumerate(rounds, start=1):
            trained = mean(sent.train_s for sent in one.sent.values())
            yield row("round_time", one.round_s, "s", seed=number)
            yield row("train_time", trained, "s", seed=number)
        yield row("round_time_sd", stdev([one.round_s for one in rounds]), "s", seed=-1)
        yield from _accuracies(row, rounds, finals[label])
        if not federated_seeds.repeats(federated, label):
            yield row("judged_accuracy", finals[label], "%")
    for label, (rounds, weights) in again.items():
        row = _row(bench, label, (settings | short)[label], evidence="measured")
        if label in federated.variants:
            yield from _sizes(row, _alike(label, rounds))
        apart = same([weights], [repeated[label]], label)
        fields = dict(experiment="federated_seeds", round=federated.checked_rounds)
        yield row("live_difference", apart, "1", **fields)


def _alike(label: str, rounds: Sequence[Round]) -> Sent:
    """What each client sent in each round. Raises RuntimeError where sizes differ."""
    every = [sent for one in rounds for sent in one.sent.values()]
    sizes = {tuple(getattr(sent, name) for name in SIZES) for sent in every}
    if len(sizes) > 1:
        raise RuntimeError(f"{label}: updates of different sizes: {sorted(sizes)}")
    return every[0]


def _all_live(bench: Bench, settings: dict[str, ControllerSettings], at_once: int) -> Live:
    def run(label: str) -> tuple[list[Round], Tensor]:
        of = settings[label]
        bench.say(f"federated: {label} on {of.task.clients} clients, {of.rounds} rounds")
        return _live(of, START_S + of.timeout_s)

    with ThreadPoolExecutor(at_once) as pool:
        return dict(zip(settings, pool.map(run, settings), strict=True))


def _live(settings: ControllerSettings, timeout_s: float) -> tuple[list[Round], Tensor]:
    """On real processes with fresh identities; fails if no round ends for ``timeout_s``."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        identity.make(keys, messages.members(settings.task.clients))
        here = dict(state=Path(folder) / settings.state, keys=keys)
        return run_live(settings.model_copy(update=here), timeout_s)


@experiment(
    minutes=30,
    makes=("federated",),
    parts=lambda recipe: map(str, recipe.federated_seeds.seeds),
    files=(f"{RECORD}/*.json",),
)
def federated_seeds(
    bench: Bench, part: str, federated: Federated, federated_seeds: FederatedSeeds
) -> Iterator[Row]:
    """Every mode in one process; those that train as the live runs are what these are judged by."""
    made = _recorded if federated_seeds.recorded else _in_one_process
    for label in federated_seeds.modes:
        for row in made(bench, federated, label, int(part), federated_seeds.changed):
            yield row
            if row.metric == "final_accuracy" and federated_seeds.repeats(federated, label):
                judged = dict(experiment="federated", metric="judged_accuracy")
                yield row.model_copy(update=judged)


@experiment(minutes=30, parts=lambda recipe: map(str, recipe.non_iid.seeds))
def non_iid(bench: Bench, part: str, federated: Federated, non_iid: NonIid) -> Iterator[Row]:
    """Modes in one process, on clients that have different labels."""
    for label in non_iid.modes:
        for name, split in non_iid.splits.items():
            changed = non_iid.changed | dict(split=split)
            yield from _in_one_process(bench, federated, label, int(part), changed, split=name)


def _in_one_process(
    bench: Bench, chosen: Federated, label: str, seed: int, changed: dict[str, Any], **at: str
) -> Iterator[Row]:
    settings = _settings(bench, chosen, chosen.modes[label], seed, **changed)
    bench.say(" ".join([f"{bench.experiment}: {label}", *at.values(), f"seed {seed}"]))
    rounds, _ = simulate(settings)
    yield from _accuracies(_row(bench, label, settings, at, evidence="simulated"), rounds)


def _recorded(
    bench: Bench, chosen: Federated, label: str, seed: int, changed: dict[str, Any]
) -> Iterator[Row]:
    """What is kept of a mode and seed; a failed row where nothing is, with these settings."""
    settings = _settings(bench, chosen, chosen.modes[label], seed, **changed)
    row = _row(bench, label, settings, evidence="recorded")
    runs = {run["seed"]: run for run in kept(RECORD, label, _setting(settings)).get("runs", [])}
    if seed not in runs:
        lost = dict(status="failed", reason=f"not recorded with these settings; {COMMAND} does")
        yield row("final_accuracy", math.nan, "%", **lost)
        return
    *_, final = accuracies = runs[seed]["accuracies"]
    for number, accuracy in enumerate(accuracies, start=1):
        yield row("test_accuracy", accuracy, "%", round=number)
    yield row("final_accuracy", final, "%")


def _setting(settings: ControllerSettings) -> dict[str, Any]:
    """What a run depends on besides its seed."""
    task = settings.task.model_dump(mode="json", exclude={"seed"})
    return dict(task=task) | {key: getattr(settings, key) for key in ROUND}


def record() -> None:
    """Run and keep, one on each core, what is not recorded yet of every mode and seed."""
    from slowlink.workflow import settings

    recipe = settings.load({"scale": "desk"}).recipes["dds"]
    bench, repeated = Bench("dds", "federated_seeds", recipe, "desk"), recipe.federated_seeds
    done: dict[str, dict[int, dict[str, Any]]] = {}
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        left = {}
        for label, seed in itertools.product(repeated.modes, repeated.seeds):
            mode = recipe.federated.modes[label]
            its = _settings(bench, recipe.federated, mode, seed, **repeated.changed)
            known = kept(RECORD, label, _setting(its)).get("runs", [])
            done[label] = {run["seed"]: run for run in known}
            if seed not in done[label]:
                left[pool.submit(_timed, its)] = label, seed, _setting(its)
        print(f"{len(left)} runs to record", flush=True)
        for future in as_completed(left):
            label, seed, setting = left[future]
            done[label][seed] = dict(seed=seed) | future.result()
            print(f"{label}, seed {seed}: {done[label][seed]}", flush=True)
            runs = [done[label][one] for one in sorted(done[label])]
            versions = {name: metadata.version(name) for name in ("torch", "torchvision")}
            keep(RECORD, label, setting, COMMAND, versions=versions, runs=runs)


def _timed(settings: ControllerSettings) -> dict[str, Any]:
    """The accuracies of a run in this process, and how long it took."""
    begun = time.monotonic()
    rounds, _ = simulate(settings)
    accuracies = [round(one.accuracy, 4) for one in rounds]
    return dict(accuracies=accuracies, seconds=round(time.monotonic() - begun))


@experiment(minutes=10)
def attack(bench: Bench, attack: Attacked) -> Iterator[Row]:
    """Every rule under every attack, in one process."""
    data = Data(name=attack.dataset, test_limit=attack.test_limit)
    task = Task(
        model=attack.model,
        data=data,
        clients=attack.clients,
        batch=attack.batch,
        momentum=attack.momentum,
        torch_threads=bench.settings.threads,
    )
    loaded = data.load()
    for label, rule in attack.rules.items():
        for seed in attack.seeds:
            settings = ControllerSettings(
                task=task.model_copy(update=dict(seed=seed)),
                domain=1,
                run="attack",
                rounds=attack.rounds,
                subset=attack.subset,
                lr=attack.lr,
                min_clients=attack.clients,
                aggregation=rule,
                state=Path("model"),
            )
            for name, how in {NOBODY: None, **attack.attacks}.items():
                bench.say(f"attack: {label}, {name}, seed {seed}")
                script = how and spoiled(how.factor, how.noise)
                scripts = dict.fromkeys(range(attack.attackers), script) if how else {}
                rounds, _ = simulate(settings, loaded, scripts)
                at = dict(rule=label, attack=name, attackers=len(scripts))
                yield bench.row(
                    "final_accuracy",
                    rounds[-1].accuracy,
                    "%",
                    case=label,
                    at=at,
                    exchange="parameter_server",
                    compression=task.codec.name,
                    synchronization="fedavg",
                    model=task.model.name,
                    dataset=task.data.name,
                    workers=task.clients,
                    seed=seed,
                    evidence="simulated",
                )
