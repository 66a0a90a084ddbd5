"""Which method for my cluster? Predicted round times of all of them, ranked, with the reason.

    slowlink advise --model resnet50 --workers 16 --wan 155M --lan 1G
    slowlink advise --model-file model.yaml --device-file device.yaml --cluster-file cluster.yaml

Nothing need have been run: rounds are timed as in the matrix (:mod:`testbed.matrix`), with its
methods, batches and latencies from its recipe at desk scale where no others are given. With
``--target``, rounds are counted in the training runs of the matrix, if they are there.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from slowlink.testbed import units
from slowlink.testbed.matrix import Cluster, Method, Round, in_lockstep
from slowlink.testbed.results import Scale, coordinates, read
from slowlink.testbed.terminal import show
from slowlink.testbed.training import device, models
from slowlink.testbed.training.summary import reached
from slowlink.testbed.units import said_rate, said_s
from slowlink.workflow import matrix, settings
from slowlink.workflow.matrix import own, systems
from slowlink.workflow.matrix.curves import SHOWN
from slowlink.workflow.matrix.experiments import RESIDUAL
from slowlink.workflow.matrix.own import Asked, BreakEven, Interval
from slowlink.workflow.matrix.ranking import (
    TIE,
    arrived,
    arrives,
    arriving,
    duration,
    guessed,
    holding,
    of,
    target,
    trained_models,
)
from slowlink.workflow.matrix.rounds import said
from slowlink.workflow.matrix.systems import System
from slowlink.workflow.matrix.worth import Choice, choices, needs, slower, system_of
from slowlink.workflow.named import known

if TYPE_CHECKING:
    from slowlink.testbed.training.recipe import Part
    from slowlink.workflow.matrix.experiments import Matrix, Networks

LEARNED = settings.ROOT / "data" / "recorded" / "matrix_trained.csv"
"""What training of the matrix's desk run arrived at; made with the front page."""

TRAINED = settings.ROOT / "results" / "desk" / "matrix" / "training"
RECORDED = settings.ROOT / "data" / "recorded" / "matrix_residual"
"""Curves of the model that every run trains, and of the one whose training is recorded."""

PARTS = {
    "compute_s": "computing",
    "compress_s": "coding",
    "exchange_s": "exchanging",
    "wait_s": "waiting for slower workers",
}

USUAL = "torch DDP"
"""What somebody has who did not ask for advice."""

LESS = 0.9995
"""Of a time, what is told as less."""

SHORT = 5
"""Methods that are told where not all are asked for."""

QUESTIONS = ("exchange", "codec", "fusion", "synchronization")

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
STEPS, LEAST = 3600, 1e-7
"""Numbers in the page are logarithms in three digits: so many steps to a power of ten, from the
least on; 000 is 0."""

EXAMPLES = """examples:
  {program} --model resnet50 --workers 16 --wan 155M --lan 1G
  {program} --model resnet50 --workers 8 --lan 10G --device a100 --all
  {program} --model-file model.yaml --device-file device.yaml --cluster-file cluster.yaml"""

_ELSEWHERE = f"{own.PLAYED}: its rounds hold only where it was trained"


@dataclass(frozen=True)
class Offer:
    """One method on the cluster in question.

    ``rounds``: to the target, in the mean over seeds; None where nobody asks. ``method``: by the
    fastest of its exchanges.
    """

    label: str
    round: Round
    rounds: float | None = None
    method: Method | None = None

    @property
    def seconds(self) -> float:
        """What methods are ranked by: a round, or all rounds to the target."""
        return self.round.round_s * (1 if self.rounds is None else self.rounds)


@dataclass(frozen=True)
class Trained:
    """What a method arrived at with a model: rounds to the target and accuracy (%), NaN where
    ``late`` seeds never reached it or ``diverged`` ones have none. Its ``status`` is ``ok``,
    ``late`` or, where it may not hold the target, ``unsure``."""

    status: str
    rounds: float
    accuracy: float
    late: int
    diverged: int
    seeds: float

    def needs(self) -> str:
        if self.late:
            return f"never with {self.late} of {self.seeds:.0f} seeds"
        return f"{self.rounds:.0f} rounds"

    def reaches(self) -> str:
        if self.diverged:
            return f"diverges with {self.diverged} of {self.seeds:.0f} seeds"
        return f"{self.accuracy:.1f} %"


@cache
def recipe(scale: Scale = "desk") -> Any:
    """The matrix's recipe at a scale."""
    wing = matrix.load()
    return settings.recipe_of(wing, wing.folder / settings.RECIPE, scale)


def rounds_to(
    target: float,
    curves: pd.DataFrame,
    window: int,
    within: float = math.inf,
    experiment: str = "training",
) -> dict[str, float | None]:
    """Rounds until the mean of ``window`` test accuracies is ``target`` %, by trained label; in the
    mean over the seeds of an experiment's curves.

    None where a seed does not arrive ``within`` so many rounds, or before it diverges. Raises
    ValueError where one is there before the first round.
    """
    points = coordinates(of(curves, experiment, "test_accuracy"))
    found: dict[str, list[float | None]] = {}
    for (label, _), curve in points.groupby(["method", "seed"]):
        good = (curve["status"] == "ok") & (curve["round"] <= within)
        curve = curve[good].sort_values("round")
        at = reached(curve["round"], curve["value"], target, window, least=1)
        if at == 0:
            raise ValueError(
                f"--target: {target:g} % is met before the first round, by chance; ask for more"
            )
        found.setdefault(label, []).append(at)
    return {
        label: None if None in seeds else duration(pd.Series(seeds)).mean
        for label, seeds in found.items()
    }


Place = tuple[int | None, Offer]
"""An offer and its rank, None where it has no place among those that are compared."""


def ranked(offers: Sequence[Offer]) -> list[Place]:
    """Offers from the best with their ranks. Those within :data:`TIE` of the first of a rank share
    it, and the rank after them counts them all."""
    made: list[tuple[int, Offer]] = []
    best = 0.0
    for place, offer in enumerate(sorted(offers, key=lambda o: o.seconds), 1):
        if not made or offer.seconds > best * (1 + TIE):
            rank, best = place, offer.seconds
        made.append((rank, offer))
    return made


def counting(
    offers: Sequence[Offer], model: str, taught: Mapping[str, Mapping[str, Trained]]
) -> dict[str, float]:
    """Rounds to the target by label, of offers that have them or that arrived there in training
    of this model. Where a policy looks at the clock, rounds hold only where it was trained."""
    made = {}
    for offer in offers:
        one = taught.get(offer.label, {}).get(model)
        if offer.rounds is not None:
            made[offer.label] = offer.rounds
        elif one and not one.late and in_lockstep(offer.method.synchronization):
            made[offer.label] = one.rounds
    return made


def reason(places: Sequence[Place]) -> str:
    """In a sentence, why the first is first: against the first offer that does not tie with it."""
    first = places[0][1]
    tied = [offer.label for rank, offer in places[1:] if rank == 1]
    tie = f", tied with {' and '.join(tied)}" if tied else ""
    rest = [offer for rank, offer in places if rank > 1]
    if not rest:
        took = said_s(first.round.round_s)
        return f"{first.label} takes {took} a round{tie}: nothing sets it apart."
    second = rest[0]
    lead = f"{first.label}{tie}, is first" if tied else f"{first.label} is first"
    gains = {part: getattr(second.round, part) - getattr(first.round, part) for part in PARTS}
    most = max(gains, key=gains.__getitem__)
    least = min(gains, key=gains.__getitem__)
    text = f"{lead}: "
    if first.rounds is not None:
        text += (
            f"{said_s(first.seconds)} to the target ({first.rounds:.0f} rounds) against "
            f"{said_s(second.seconds)} ({second.rounds:.0f} rounds) of {second.label}; "
            "a round takes "
        )
    text += f"{said_s(first.round.round_s)} against {said_s(second.round.round_s)}"
    text += f" of {second.label}" if first.rounds is None else ""
    if gains[most] > 0:
        here, there = getattr(first.round, most), getattr(second.round, most)
        more = f"{said_s(gains[most])} longer {PARTS[most]}"
        text += f", which is {more} ({said_s(there)}, not {said_s(here)})"
    if -gains[least] > 0.1 * abs(first.round.round_s - second.round.round_s):
        text += f"; it is itself {said_s(-gains[least])} longer {PARTS[least]}"
    return text + "."


def several(places: Sequence[Place], count: int) -> list[Place]:
    """The best that differ in what is sent or when workers meet, and what torch does by itself."""
    kinds, chosen = set(), []
    for rank, offer in places:
        method = offer.method
        meetings = method.synchronization
        local = "local_iterations" in meetings.parameters
        kind = method.levels[-1].up.name, meetings.name, local
        if len(chosen) < count and kind not in kinds:
            kinds.add(kind)
            chosen.append((rank, offer))
    plain = [place for place in places if place[1].label == USUAL and place not in chosen]
    return [*chosen, *plain]


def worth(found: Sequence[Choice]) -> pd.DataFrame:
    """What each answer of the first method is worth, in times of its round."""
    rows = [
        {
            "question": one.question,
            "answer": one.chosen,
            "next best": slower(one.next),
            "the plain one": "the same" if one.next == one.plain is not None else slower(one.plain),
        }
        for one in found
    ]
    return pd.DataFrame(rows)


def table(
    places: Sequence[Place],
    taught: Mapping[str, Mapping[str, Trained]] | None = None,
    within_s: Mapping[str, Interval] | None = None,
    below: Mapping[str, BreakEven] | None = None,
    rounds: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Offers with the parts of their rounds, seconds, what a worker sends and receives; between
    what rounds may lie, below which rate a codec is worth it, and what :func:`learned` tells."""
    rows = []
    shown = [(taught or {}).get(offer.label, {}) for _, offer in places]
    trained = dict.fromkeys(model for one in shown for model in one)
    for (rank, offer), arrived_at in zip(places, shown, strict=True):
        made = offer.round
        row = {"rank": rank or "", "method": offer.label + (" *" if made.guessed else "")}
        if offer.method is not None:
            row["over"] = said(offer.method.exchange)
        if rounds:
            count = rounds.get(offer.label)
            row["to target"] = "" if count is None else said_s(count * made.round_s)
            row["rounds"] = "" if count is None else f"{count:.0f}"
        row |= {"round": said_s(made.round_s)}
        if within_s:
            low, high = within_s[offer.label].low, within_s[offer.label].high
            row["within"] = f"{said_s(low)} to {said_s(high)}"
        row |= {part.removesuffix("_s"): said_s(getattr(made, part)) for part in PARTS}
        row |= {"MB a worker": f"{made.sent_bytes / 1e6:.3g}"}
        if below:
            row["worth it"] = str(below.get(offer.label, ""))
        for model in trained:
            one = arrived_at.get(model)
            row[f"needs, {model}"] = one.needs() if one else "not trained"
            row[f"reaches, {model}"] = one.reaches() if one else ""
        rows.append(row)
    return pd.DataFrame(rows).fillna("")


# The form ---------------------------------------------------------------------------------------


def packed(value: float) -> str:
    """A number in three characters, to 0.03 %."""
    code = 0 if value <= 0 else max(1, round(STEPS * np.log10(value / LEAST)))
    if code >= 36**3:
        raise ValueError(f"{value:g} is too large for the page")
    return DIGITS[code // 36**2] + DIGITS[code // 36 % 36] + DIGITS[code % 36]


def page(results: pd.DataFrame) -> dict[str, Any] | None:
    """What the page with the form needs, of the matrix's rows; None without those of ``advice``.

    ``data`` is the text of a JSON object. Its ``curves`` has a list a method, with a text for
    every model, kind of network and number of workers (the last change first): of every point of
    the curve, each packed: bandwidth (Gbit/s), coding, exchanging, and the rest of the round (s).
    The text is empty where the method cannot run; ``reasons`` says why, by method and kind.
    ``trained`` names the model that was trained, and ``rounds`` tells in how many rounds a method
    that was reached the matrix's target; ``to_target`` has their number, of methods that reach it
    with every seed and whose rounds hold anywhere, and ``late`` why the other trained ones have
    none. ``compared`` has by model the methods that are compared by the time of a round.
    """
    rows = of(results, "advice")
    if rows.empty:
        return None
    done, failed = rows["status"] == "ok", rows["status"] == "failed"
    keys = ["method", "model", "network", "workers", "bandwidth"]
    names = [f"{part}_time" for part in SHOWN]
    times = rows[done].pivot(index=keys, columns="metric", values="value")[names]
    curves: dict[tuple, str] = {}
    for (*key, bandwidth), values in zip(times.index, times.to_numpy(), strict=True):
        round_s, compress_s, exchange_s = values
        rest_s = round_s - compress_s - exchange_s
        text = "".join(map(packed, (bandwidth / 1e9, compress_s, exchange_s, rest_s)))
        curves[*key] = curves.get((*key,), "") + text
    models_there = list(rows["model"].unique())
    kinds = [name for name in ("flat", "sites") if (rows["network"] == name).any()]
    workers = sorted(map(int, rows["workers"].unique()))
    spans = rows.loc[done, "bandwidth"]
    reasons: dict[str, dict[str, str]] = {}
    for label, network, why in zip(
        *(rows.loc[failed, name] for name in ("method", "network", "reason")), strict=True
    ):
        reasons.setdefault(label, {}).setdefault(network, why)
    given = recipe(rows["scale"].iloc[0])
    rounds = arrived(results, "rounds_to_target")
    anywhere = holding(results, "", "", 0.0)
    trained = next(iter(trained_models(results)), "")
    to_target = {k: one.mean for k, one in rounds.items() if not one.never and k in anywhere}
    worth, there = arriving(results), trained_models(results)
    compared = {
        model: sorted(
            label
            for label, its in worth.items()
            if label in anywhere and arrives(its, model, there)
        )
        for model in models_there
    }
    data = {
        "models": models_there,
        "kinds": kinds,
        "workers": workers,
        "span": [float(spans.min()), float(spans.max())],
        "tie": TIE,
        "steps": STEPS,
        "least": LEAST,
        "curves": {
            label: [curves.get((label, *key), "") for key in product(models_there, kinds, workers)]
            for label in rows["method"].unique()
        },
        "reasons": reasons,
        "rounds": {
            label: str(one) if one.never else f"{one.mean:.0f}" for label, one in rounds.items()
        },
        "guessed": sorted(guessed(results)),
        "target": target(results) if rounds else None,
        "trained": trained,
        "to_target": to_target,
        "compared": compared,
        "late": {
            label: f"{one} reached the target" if one.never else _ELSEWHERE
            for label, one in rounds.items()
            if label not in to_target
        },
    }
    networks = given.networks
    return {
        "data": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        "models": {name: given.models.get(name) for name in models_there},
        "kinds": kinds,
        "workers": {count: networks.per_site.get(count) for count in workers},
        "device": device.profile(given.device).title,
        "trained": trained,
        "trained_workers": given.training.workers,
        "target": target(results),
        "guessed": data["guessed"],
        "ranks_targets": bool(to_target),
        "networks": networks.model_dump() | {"lan": said_rate(networks.lan)},
        "span": [said_rate(value) for value in data["span"]],
    }


# The command ------------------------------------------------------------------------------------


def rate(text: str) -> float:
    """bit/s of ``155M``, ``1G``, ``2.5Gbit/s`` or ``1e9``."""
    try:
        return units.bits_per_s(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _number(
    least: float, what: str, kind: Callable = float, most: float = math.inf
) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most or value == math.inf:
            to = "" if most == math.inf else f", at most {most:g}"
            raise argparse.ArgumentTypeError(f"{text!r} is no {what}; at least {least:g}{to}")
        return value

    return parse


def parser(given: Any, program: str = "slowlink advise") -> argparse.ArgumentParser:
    networks = given.networks
    made = argparse.ArgumentParser(
        program,
        description=__doc__.split("\n")[0],
        epilog=EXAMPLES.format(program=program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    count = _number(1, "number of them", int)
    seconds = _number(0, "time in seconds, such as 5ms or 0.005", units.seconds, most=3600)
    named = made.add_mutually_exclusive_group(required=True)
    named.add_argument("--model", choices=sorted(models.MODELS))
    named.add_argument("--model-file", type=Path, help="of slowlink measure")
    add("--workers", type=count)
    add("--lan", type=rate, help="rate of every worker's card, such as 1G (bit/s)")
    add("--wan", type=rate, help="rate of every site's or rack's link to the others, such as 155M")
    grouped = made.add_mutually_exclusive_group()
    add_group = grouped.add_argument
    add_group(
        "--sites", type=count, help="into which workers divide; as in the matrix if not given"
    )
    add_group("--racks", type=count, help="the same with a card's latency between them")
    add("--latency", type=seconds, help=f"of each card, 5ms or in s; {networks.latency:g}")
    add("--wan-latency", type=seconds, help=f"the same between sites; {networks.wan_latency:g}")
    add(
        "--device",
        choices=["this_cpu", *sorted(device.profiles())],
        help=f"what computes and codes; {given.device}",
    )
    own.add_options(add)
    add("--batch", type=count, help="samples of a round, over all workers")
    add("--uneven", type=_number(1, "ratio", most=1e6), help="slowest over fastest worker; 1")
    percentage = _number(0, "percentage", most=100)
    add("--target", type=percentage, help="rank by time to this test accuracy, %%")
    add("--trained", type=Path, default=TRAINED, help="folder of the matrix's training results")
    add("--all", action="store_true", help="every method, not the best of a kind")
    add("--json", action="store_true", help="all of it as JSON")
    add(
        "--only",
        type=partial(_restriction, given),
        default={},
        help="what you can run: codec=fp16|identity,exchange=ring|rat; also fusion, "
        "synchronization",
    )
    return made


def _restriction(given: Matrix, text: str) -> dict[str, set[str]]:
    """Names by question of ``codec=fp16|identity,exchange=ring``; an exchange also by its label in
    the recipe, such as sharded PS."""
    made: dict[str, set[str]] = {}
    for one in text.split(","):
        question, _, names = one.partition("=")
        if question not in QUESTIONS:
            raise argparse.ArgumentTypeError(f"{question!r} is none of {', '.join(QUESTIONS)}")
        if question in made:
            raise argparse.ArgumentTypeError(f"{question} is given twice; say {question}=a|b")
        there = known("compression" if question == "codec" else question)
        there += tuple(given.exchanges) if question == "exchange" else ()
        made[question] = set(names.split("|"))
        if strange := made[question] - set(there):
            raise argparse.ArgumentTypeError(
                f"{question}: {', '.join(sorted(strange))!r} is none of {', '.join(there)}"
            )
    return made


def _sharing(given: Matrix, space: Mapping[str, System]) -> dict[str, dict[str, str]]:
    """By trained model and label of every system of the space that shares a class of training,
    under which label that was trained. A class has its name by all of the space, however few of it
    somebody can run."""
    training, residual = given.training, given.residual
    return {
        training.model.name: systems.trained_as(space),
        residual.model.name: systems.recorded_as(space, given.every(), residual.classes),
    }


def learned(given: Any, space: Mapping[str, System]) -> dict[str, dict[str, Trained]]:
    """By label of every system of the space whose class was trained when the front page was made,
    what it arrived at with each model."""
    kept = pd.read_csv(LEARNED).set_index(["model", "method"])
    sharing = _sharing(given, space)
    made: dict[str, dict[str, Trained]] = {}
    for model, same in sharing.items():
        for label, under in same.items():
            if (model, under) in kept.index:
                made.setdefault(label, {})[model] = Trained(**kept.loc[(model, under)])
    return made


def fused(space: Mapping[str, System], given: Matrix, names: set[str]) -> dict[str, System]:
    """The systems of the space with those fusions that somebody asks for by name, without those
    that are there already: many rows have no other answers but their fusion."""
    made, there = {}, {str(system.answers) for system in space.values()}
    for label, system in space.items():
        if not system.grouped:
            continue
        for name in sorted(names - {system.fusion.name}):
            changed = system.model_copy(update={"fusion": given.part(name), "trained": False})
            if (answers := str(changed.answers)) not in there:
                made[f"{label} with {name}"] = changed
                there.add(answers)
    return made


def restricted(
    found: Mapping[str, System],
    only: Mapping[str, set[str]],
    exchanges: Mapping[str, Part] = {},
) -> dict[str, System]:
    """The systems whose answers are all among those that are allowed, on such exchanges, which may
    also have labels. Any fusion will do where it has no say."""
    made = {}
    labelled = [exchanges[name] for name in only.get("exchange", ()) if name in exchanges]
    for label, system in found.items():
        answers = {
            "codec": {level.up.name for level in system.levels},
            "fusion": {system.fusion.name} if system.grouped else set(),
            "synchronization": {system.synchronization.name},
        }
        if not all(answers[q] <= names for q, names in only.items() if q != "exchange"):
            continue
        allowed = only.get("exchange")
        carriers = [
            p for p in system.exchange if allowed is None or p.name in allowed or p in labelled
        ]
        if carriers:
            made[label] = system.model_copy(update={"exchange": carriers})
    return made


def cluster(options: argparse.Namespace, networks: Networks) -> Cluster:
    """The cluster that the options describe.

    Raises
    ------
    ValueError
        Options that do not go together.
    """
    groups = options.sites or options.racks
    latency = networks.latency if options.latency is None else options.latency
    far = networks.wan_latency if options.wan_latency is None else options.wan_latency
    flat = Cluster(
        "flat",
        options.workers,
        options.lan or options.wan or 0.0,
        latency=latency,
        uneven=options.uneven or 1.0,
        efficiency=networks.efficiency,
        overhead_s=networks.overhead_s,
        pieces=networks.pieces,
    )
    if options.wan_latency is not None and (options.wan is None or options.racks):
        raise ValueError("--wan-latency is between sites, and needs --wan without --racks")
    if options.wan is None:
        if groups:
            raise ValueError("--sites and --racks need --wan, the rate of the links between them")
        if options.lan is None:
            raise ValueError("say how fast the links are: --lan, --wan or both, such as --lan 1G")
        return flat
    if groups is None:
        if options.workers not in networks.per_site:
            raise ValueError(f"into how many do {options.workers} workers divide? say --sites")
        groups = options.workers // networks.per_site[options.workers]
    if options.workers % groups:
        raise ValueError(f"{options.workers} workers do not divide into {groups} equal groups")
    return replace(
        flat,
        kind="sites",
        bandwidth=options.wan,
        per_site=options.workers // groups,
        lan=options.lan or networks.lan,
        wan_latency=latency if options.racks else far,
    )


def _counted(
    target: float, given: Matrix, asked: Asked, folder: Path, space: Mapping[str, System]
) -> tuple[dict[str, float | None], int]:
    """Rounds to the target by label, of systems of the space whose training is there and holds
    anywhere; and within how many it had to be reached. ``folder`` has the training of every run.

    Raises ValueError for a model of which no training is known.
    """
    training, residual, model = given.training, given.residual, asked.counted
    if model == training.model.name:
        # Who reached the matrix's target stopped at these rounds; others were trained for longer.
        within = training.rounds if target > training.target else training.most_rounds
        window, name = training.window, "training"
    elif model == residual.model.name:
        folder, within, window, name = RECORDED, residual.rounds, residual.window, RESIDUAL
    else:
        raise ValueError(
            f"--target: rounds were counted with {training.model.name} and {residual.model.name}, "
            f"and those of {asked.model} are unknown; without it, methods are ranked by the time "
            "of a round"
        )
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise ValueError(
            f"no training results in {folder}, so rounds to {target:g} % are unknown; make them "
            "with: snakemake --cores 2 matrix"
        )
    by_run = rounds_to(target, read(files), window, within, name)
    same = _sharing(given, space)[model]
    counted = {
        label: by_run[same[label]]
        for label, system in space.items()
        if same.get(label) in by_run and in_lockstep(system.synchronization)
    }
    return counted, within


def answer(options: argparse.Namespace, given: Any) -> str:
    """The answer as text."""
    asked = own.asked(options, given, cluster)
    # What nobody trained is not among the first: it is timed for who wants all, or names it.
    space = given.found() | (systems.beyond(given) if options.all or options.only else {})
    space |= fused(space, given, options.only.get("fusion", set()))
    found = restricted(space, options.only, given.exchanges)
    reasons: dict[str, str] = {}
    counted: dict[str, float | None] = {}
    if options.target is not None:
        counted, within = _counted(options.target, given, asked, options.trained, space)
        for label, system in found.items():
            if not in_lockstep(system.synchronization):
                reasons[label] = _ELSEWHERE
            elif label not in counted:
                reasons[label] = "was not trained"
            elif counted[label] is None:
                reasons[label] = f"did not reach {options.target:g} % within {within} rounds"
        found = {label: system for label, system in found.items() if label not in reasons}
    rounds, failed = own.predict(found, asked, given.most_played)
    reasons |= failed
    setting, by = _setting(asked, options), _ranked_by(options.target, given, asked)
    if not rounds:
        why = "No method can run there." if reasons else "No method has all of these answers."
        if reasons and not found:  # all that have these answers were left out by the target
            late = any(counted.get(label, 0) is None for label in reasons)
            told = "reaches" if late else "is ranked by the time to"
            why = f"No method {told} {options.target:g} %."
        if options.json:
            return _json(why, setting, reasons)
        return "\n\n".join([setting, why, by, *_not_ranked(reasons)])
    offers = [
        Offer(label, made, counted.get(label), method) for label, (method, made) in rounds.items()
    ]
    taught = learned(given, space)
    trained = {model for its in taught.values() for model in its}
    compared = [
        offer
        for offer in offers
        if options.target is not None
        or in_lockstep(offer.method.synchronization)
        and arrives(
            {model: one.status == "ok" for model, one in taught.get(offer.label, {}).items()},
            asked.counted,
            trained,
        )
    ]
    places = ranked(compared or offers)
    first = places[0][1]
    placed = {offer.label for _, offer in places}
    rest = [(None, offer) for _, offer in ranked([o for o in offers if o.label not in placed])]
    every, short = [*places, *rest], several(places, SHORT)
    shown = every if options.all else short
    to_target = counting(offers, asked.counted, taught)
    show("timing what each answer is worth")
    counts = {
        systems.class_of(found[offer.label]): offer.rounds or 1 for offer in compared or offers
    }

    def seconds(method: Method) -> float:
        """What it would be ranked by, if it were among those that are."""
        if not restricted({"": system_of(method)}, options.only, given.exchanges):
            raise ValueError("has an answer that is not allowed")
        return needs(method, counts) * asked.timed(method).round_s

    found_worth = list(choices(given, first.method, seconds))
    show("timing both ends of what was measured")
    told = {offer.label: rounds[offer.label] for _, offer in [*short, *shown]}
    within_s, corners = own.intervals(asked, told, {offer.label for _, offer in short})
    show("looking for rates below which codecs are worth it")
    # Each rate that is tried is another network: of hundreds of methods, that takes minutes.
    methods = {offer.label: offer.method for _, offer in short}
    carriers = {q: names for q, names in options.only.items() if q == "exchange"}
    plain = restricted(given.found(), carriers, given.exchanges)
    below = dict(own.break_evens(asked, methods, plain))
    show("")
    trained_on = _trained_on(given, asked)
    if options.json:
        return _json(
            reason(places),
            setting,
            reasons,
            every,
            found_worth,
            within_s,
            corners,
            below,
            to_target,
            {label: one[asked.counted] for label, one in taught.items() if asked.counted in one},
            trained_on,
            "round_s" if options.target is None else "to_target_s",
        )
    text = [reason(places), setting]
    if corners:
        text.append(_firsts(corners, {offer.label: rank for rank, offer in short}))
    text.append(table(shown, taught, within_s, below, to_target).to_string(index=False))
    training, residual = given.training, given.residual
    text.append(
        f"Times within {TIE:.0%} of the first of a rank share it. Needs: rounds to the target, "
        f"{training.target:g} % of {training.model.name} on {training.dataset}, "
        f"{100 * residual.share:g} % of what plain values reach of {residual.model.name} on "
        f"{residual.dataset}; reaches: accuracy after {training.rounds} and {residual.rounds} "
        f"rounds. {trained_on} Another model has others."
    )
    if below:
        text[-1] += (
            f" Worth it: the rate of the slowest link between {asked.links}, now "
            f"{said_rate(asked.rate)}, below which the method is faster than the same with "
            "plain values on their fastest exchange."
        )
    if any(offer.round.guessed for _, offer in shown):
        text[-1] += (
            f" * What coding costs is a guess for {asked.machine_name}, by what the codec does."
        )
    if not options.all:
        text[-1] += (
            f" The best of at most {SHORT} kinds, and {USUAL} as it comes; --all lists all "
            f"{len(every)} methods, and why {len(reasons)} others cannot run."
        )
    less = [offer.label for _, offer in rest if offer.seconds < first.seconds]
    if less:
        text[-1] += (
            f" {len(less)} have shorter rounds and no rank: they were not trained to a target, "
            "never reach it, or have rounds that hold only where they were trained: "
            f"{', '.join(less[:SHORT])}{', …' if len(less) > SHORT else '.'}"
        )
    text.append(_worth_said(first.label, found_worth, options.target))
    text.append(worth(found_worth).to_string(index=False))
    return "\n\n".join([*text, by, *(_not_ranked(reasons) if options.all else [])])


def _worth_said(label: str, found: Sequence[Choice], target: float | None) -> str:
    """What the table says that follows."""
    of_what = "a round" if target is None else f"the time to {target:g} %"
    text = f"What each answer of {label} is worth in {of_what}, the other three as they are, among "
    text += "what is allowed and ranked:"
    if any(one.next and one.next[1] < LESS for one in found):
        text += " it may be less (-) with an answer that no method here has beside these three."
    return text


def _ranked_by(target: float | None, given: Matrix, asked: Asked) -> str:
    if target is None:
        return (
            "By the time of a round, among methods that reached a target when they were trained; "
            "those that lose information may need more rounds, as told."
        )
    training, residual = given.training, given.residual
    used = residual if asked.counted == residual.model.name else training
    text = f"Rounds to {target:g} % were counted with {asked.model} on {used.dataset}, "
    text += f"{used.workers} workers."
    if used is training and target > training.target:
        text += (
            f" Above the matrix's target of {training.target:g} % only the first {training.rounds} "
            "rounds count, which all methods were trained for."
        )
    return text


def _not_ranked(reasons: Mapping[str, str]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for label, why in reasons.items():
        by_reason.setdefault(why, []).append(label)
    lines = [f"  {', '.join(labels)}: {why}" for why, labels in by_reason.items()]
    return ["\n".join(["Not ranked:", *lines])] if lines else []


def _firsts(corners: Mapping[str, str], ranks: Mapping[str, int]) -> str:
    """Whether the first of those shown stays first wherever measurements lie."""
    others = {where: label for where, label in corners.items() if ranks[label] > 1}
    if not others:
        return "It stays first, or ties with the first, at both quartiles of all that was measured."
    ends = "; ".join(f"{label} is first with {where}" for where, label in others.items())
    return f"What was measured varies, and may change that: {ends}."


def _trained_on(given: Matrix, asked: Asked) -> str:
    """On how many workers and samples rounds were counted."""
    there = sorted({given.training.workers, given.residual.workers})
    told, others = f"Trained on {' and '.join(map(str, there))} workers", []
    if there != [asked.cluster.workers]:
        others.append(f"not on {asked.cluster.workers}")
    samples = given.models.get(asked.counted)
    if samples is not None and samples != asked.batch:
        others.append(f"with {samples} samples a round, not {asked.batch}")
    return f"{', '.join([told, *others])}{': a guess' * bool(others)}."


def _json(
    sentence: str,
    setting: str,
    reasons: Mapping[str, str],
    places: Sequence[Place] = (),
    found: Sequence[Choice] = (),
    within_s: Mapping[str, Interval] = {},
    corners: Mapping[str, str] = {},
    below: Mapping[str, BreakEven] = {},
    rounds: Mapping[str, float] = {},
    taught: Mapping[str, Trained] = {},
    trained_on: str = "",
    measure: str = "round_s",
) -> str:
    def told(rank: int | None, offer: Offer) -> dict[str, Any]:
        method, interval = offer.method, within_s.get(offer.label)
        even, count, one = (kept.get(offer.label) for kept in (below, rounds, taught))
        return {
            "rank": rank,
            "method": offer.label,
            "exchange": said(method.exchange),
            "codecs": [said(level.up) for level in method.levels],
            # None of what sends one message.
            "fusion": said(method.fusion) if system_of(method).grouped else None,
            "synchronization": said(method.synchronization),
            "round_s": offer.round.round_s,
            "round_s_within": interval and [interval.low, interval.high],
            **{part: getattr(offer.round, part) for part in PARTS},
            "sent_bytes": offer.round.sent_bytes,
            "wan_bytes": offer.round.wan_bytes,
            "guessed_price": offer.round.guessed,
            "worth_it": even and str(even),
            "worth_below_bit_s": even.below if even and math.isfinite(even.below) else None,
            "rounds_to_target": count,
            "to_target_s": None if count is None else count * offer.round.round_s,
            "accuracy": None if one is None or one.diverged else one.accuracy,
        }

    answers = [
        {"question": one.question, "answer": one.chosen, measure: one.others} for one in found
    ]
    made = {
        "answer": sentence,
        "setting": setting,
        "rounds_counted": trained_on,
        "methods": [told(*place) for place in places],
        "first_at": dict(corners),
        "answers_of_the_first": answers,
        "not_ranked": dict(reasons),
    }
    return json.dumps(made, indent=2, allow_nan=False)


def _setting(asked: Asked, options: argparse.Namespace) -> str:
    where, head = asked.cluster, f"{asked.model}, {asked.batch} samples a round"
    if not isinstance(where, Cluster):
        title = f"{where.title}: " * bool(where.title)
        return f"{head}, {title}{where} ({asked.machine_name})."
    links = f"links of {said_rate(where.bandwidth)}"
    if where.kind == "sites":
        kind = units.counted(where.workers // where.per_site, "rack" if options.racks else "site")
        links = (
            f"{kind} of {where.per_site}, "
            f"{said_rate(where.lan)} inside, {said_rate(where.bandwidth)} between"
        )
    return f"{head}, {units.counted(where.workers, 'worker')} ({asked.machine_name}), {links}."


def main(arguments: Sequence[str] | None = None, program: str = "slowlink advise") -> None:
    given = recipe()
    made = parser(given, program)
    options = made.parse_args(arguments)
    try:
        print(answer(options, given))
    except ValueError as error:
        show("")
        made.exit(2, f"{made.prog}: {error}\n")
