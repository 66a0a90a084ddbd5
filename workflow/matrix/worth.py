"""What each answer of a system is worth: the same system with one of the four changed at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from slowlink.testbed.matrix import Method, best_round, time_round
from slowlink.testbed.results import Row, coordinates
from slowlink.testbed.training import device
from slowlink.testbed.training.pipeline import layers
from slowlink.testbed.training.recipe import Level, Part
from slowlink.workflow.experiment import Bench
from slowlink.workflow.matrix import systems
from slowlink.workflow.matrix.ranking import (
    EVEN,
    Place,
    close_workers,
    closeups,
    comparable,
    first,
    holding,
    holds_not,
    of,
    rounds_at,
    times_to_target,
    trained_models,
    trainings,
)
from slowlink.workflow.matrix.rounds import clusters, methods_of, said
from slowlink.workflow.matrix.systems import BSP, DENSE, SITES, WHOLE, System, of_changes
from slowlink.workflow.named import known

if TYPE_CHECKING:
    from slowlink.workflow.matrix.experiments import Matrix

EVERY = "every round"
PLAIN = {"exchange": "ring", "codec": DENSE.name, "fusion": "layer_wise", "meetings": EVERY}
"""What people have who chose nothing."""


@dataclass(frozen=True)
class Choice:
    """A system's answer to one question, and the seconds of others to the same: of a round, or of
    all rounds to a target."""

    question: str
    chosen: str
    seconds: float
    others: dict[str, float]

    @property
    def next(self) -> tuple[str, float] | None:
        """The best other answer, and how many times as long it then takes."""
        if not self.others:
            return None
        best = min(self.others, key=self.others.__getitem__)
        return best, self.others[best] / self.seconds

    @property
    def plain(self) -> tuple[str, float] | None:
        """The same of the plain answer, if it can run and was not chosen."""
        plain = PLAIN[self.question]
        return (plain, self.others[plain] / self.seconds) if plain in self.others else None


def slower(other: tuple[str, float] | None) -> str:
    """An answer and how much longer it takes with it, in words."""
    if other is None:
        return ""
    name, times = other
    longer = f"{times:.3g} times as long" if times >= 2 else f"{100 * (times - 1):+z.1f} %"
    return f"{name}: {longer}"


def choices(matrix: Matrix, method: Method, timed: Callable[[Method], float]) -> Iterator[Choice]:
    """A choice a question; answers that cannot run are left out.

    Parameters
    ----------
    timed: the seconds of a method; a ValueError where it cannot run.
    """
    seconds_of_it = timed(method)
    for question, (chosen, others) in _answers(matrix, method).items():
        seconds = {}
        for name, other in others.items():
            try:
                seconds[name] = timed(other)
            except ValueError:
                continue
        yield Choice(question, chosen, seconds_of_it, seconds)


def _answers(matrix: Matrix, method: Method) -> dict[str, tuple[str, dict[str, Method]]]:
    """By question, the answer of ``method`` and the methods with another one."""
    codec, local = method.levels[-1].up, method.synchronization != BSP

    def coded(codec: Part) -> tuple[Level, ...]:
        return (*method.levels[:-1], Level(up=codec))

    exchanges = {said(one): one for one in matrix.exchanges.values()}
    exchanges |= {name: matrix.part(name) for name in known("exchange") if name != SITES}
    others = [(name, matrix.part(name)) for name in known("compression") if name != codec.name]
    others = [(name, of_changes(one) if local else one) for name, one in others]
    found = {
        "exchange": (
            said(method.exchange),
            {
                name: replace(method, exchange=one)
                for name, one in exchanges.items()
                if one != method.exchange and len(method.levels) == 1
            },
        ),
        "codec": (codec.name, {name: replace(method, levels=coded(one)) for name, one in others}),
    }
    if method.synchronization.name != BSP.name:
        return found
    if not local:
        names = [name for name in known("fusion") if name != method.fusion.name]
        fused = {name: replace(method, fusion=matrix.part(name)) for name in names}
        found["fusion"] = method.fusion.name, fused
    meetings = {}
    if local:
        gradients = coded(matrix.part(codec.name))
        every = dict(synchronization=BSP, fusion=matrix.fusion, levels=gradients)
        meetings[EVERY] = replace(method, **every)
    changes = coded(of_changes(codec))
    for iterations in matrix.local_steps:
        meeting = Part(name=BSP.name, local_iterations=iterations)
        other = replace(method, synchronization=meeting, fusion=WHOLE, levels=changes)
        meetings[_every(meeting)] = other
    chosen = _every(method.synchronization)
    found["meetings"] = chosen, {name: one for name, one in meetings.items() if name != chosen}
    return found


def _every(meeting: Part) -> str:
    """How often all workers meet, in words."""
    iterations = meeting.parameters.get("local_iterations", 1)
    return EVERY if iterations == 1 else f"every {iterations} iterations"


def answered(bench: Bench, rows: pd.DataFrame) -> Iterator[Row]:
    """The rounds of the fastest method, of those that reach the target, with each answer changed,
    and of a trained model the time to the target of who is first there (``worth``); and how near
    to the fastest comes what is no row of the matrix (``beyond``).

    Parameters
    ----------
    rows: what the matrix condenses of its results.
    """
    settings, rows = bench.settings, coordinates(rows)
    beyond = systems.beyond(settings)
    machine, found = device.profile(settings.device), settings.found()
    times = comparable(rows)
    networks = {
        (one.kind, speeds, one.workers, one.bandwidth): one for speeds, one in clusters(settings)
    }
    near = closeups(of(rows, "round_times"), of(rows, "arrived"))
    for model, network, speeds, bandwidth in (cell.values() for cell in near):
        if speeds != EVEN:
            continue
        for workers in _sizes(rows, model):
            key = model, network, speeds, workers, bandwidth
            if key not in times.index or times.loc[key].isna().all():
                continue
            ahead = times.loc[key].dropna().sort_values(kind="stable")
            label, cluster = ahead.index[0], networks[key[1:]]
            bench.say(f"{label}: {model}, {workers} workers, {network}")
            here = dict(network=network, speeds=speeds)
            told = dict(model=model, workers=workers, bandwidth=bandwidth)
            row = partial(bench.row, device=settings.device, evidence="simulated", **told)
            batch = settings.models[model]
            given = layers(Part(name=model)), cluster, machine, batch
            method, made = best_round(methods_of(label, found[label]), *given)

            def round_s(method: Method, given: Any = given) -> float:
                return time_round(method, *given).round_s

            yield from _worth(row, here, settings, method, "round_time", round_s)
            if model in trained_models(rows):
                needed = _rounds_by_class(rows, found, model, (network, speeds, bandwidth))
                there = times_to_target(rows, workers, model)[network, speeds, bandwidth]
                for winner in first(there, holds_not(rows, model))[:1]:
                    best, _ = best_round(methods_of(winner, found[winner]), *given)

                    def all_s(method: Method, needed: Any = needed, timed: Any = round_s) -> float:
                        return needs(method, needed) * timed(method)

                    yield from _worth(row, here, settings, best, "time_to_target", all_s)
            others = [m for name, one in beyond.items() for m in methods_of(name, one)]
            for group in dict.fromkeys(one.group for one in others):
                mine = [one for one in others if one.group == group]
                try:
                    best, ahead_of = best_round(mine, *given)
                except ValueError:
                    continue
                at = dict(
                    method=label, group=group, best=best.label, systems=float(len(mine)), **here
                )
                times_it = ahead_of.round_s / made.round_s
                yield row("times_the_best", times_it, "1", experiment="beyond", case=group, at=at)


def _worth(
    row: Callable[..., Row],
    here: Mapping[str, str],
    settings: Matrix,
    method: Method,
    metric: str,
    timed: Callable[[Method], float],
) -> Iterator[Row]:
    """The seconds of a method and of those with one answer changed."""
    for choice in choices(settings, method, timed):
        for answer, value in ({choice.chosen: choice.seconds} | choice.others).items():
            at = dict(method=method.label, question=choice.question, answer=answer, **here)
            at["chosen"] = choice.chosen
            name = f"{choice.question}: {answer}"
            yield row(metric, value, "s", experiment="worth", case=name, at=at)


def _rounds_by_class(
    rows: pd.DataFrame, found: Mapping[str, System], model: str, place: Place
) -> dict[str, float]:
    """Rounds to the target, in the mean over seeds, of the classes that reach and hold it there."""
    holds = holding(rows, *place, model) - holds_not(rows, model)
    needed = {label: rounds_at(rows, label, place[-1], model) for label in holds}
    return {
        systems.class_of(found[label]): one.mean for label, one in needed.items() if not one.never
    }


def system_of(method: Method) -> System:
    """The system of one method."""
    return System(
        exchange=[method.exchange],
        levels=list(method.levels),
        synchronization=method.synchronization,
        fusion=method.fusion,
        codec_scope=method.codec_scope,
    )


def needs(method: Method, by_class: Mapping[str, float]) -> float:
    """The rounds of a method by its class. Raises ValueError where that has none."""
    rounds = by_class.get(systems.class_of(system_of(method)))
    if rounds is None:
        raise ValueError("it was not trained so, or does not reach the target")
    return rounds


def _sizes(rows: pd.DataFrame, model: str) -> list[int]:
    """The trained number of workers of a model that was trained; else that of close-ups."""
    if model in trained_models(rows):
        return [int(trainings(rows, model)["workers"].iloc[0])]
    return [close_workers(of(rows, "round_times"))]
