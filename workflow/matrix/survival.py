"""What live runs survive: systems on real processes that are disturbed at random moments.

The record holds all trials, a file a system; it goes on where it was::

    make record-survival     runs what is not recorded, or was recorded with other settings
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from slowlink.reports.charts import Missing, table
from slowlink.testbed.results import Row
from slowlink.testbed.training.recipe import Exchange, Level, Link, Policy
from slowlink.workflow.experiment import PLANNING, Section, experiment
from slowlink.workflow.matrix.experiments import Bench

if not PLANNING:
    import random
    import tempfile
    import time
    from concurrent.futures import ThreadPoolExecutor
    from dataclasses import fields
    from importlib import metadata

    from slowlink.testbed.live.engine import launch
    from slowlink.testbed.live.engine.disturbed import (
        FAULTS,
        OWN,
        Disturbance,
        How,
        Model,
        clocks_that_step,
        disturbed,
        model_of,
    )
    from slowlink.testbed.live.engine.settings import COORDINATOR, LiveSettings, parse
    from slowlink.workflow.kept import keep, kept

if TYPE_CHECKING:
    import pandas as pd

RECORD = "data/recorded/matrix_survival"
COMMAND = "make record-survival"
STEP_S = 3600.0
"""The longest step of a clock, ahead or back."""


class Disturbed(Section):
    """A system on real processes: ``wire`` is tcp, tcp on links that are ``shaped``, where the
    coordinator is a process of its own, or dds."""

    exchange: Exchange
    levels: Annotated[list[Level], Field(min_length=1)]
    synchronization: Policy
    optimizer_at: Literal["worker", "server"] = "worker"
    on_loss: Literal["stop", "continue", "replace"]
    wire: Literal["tcp", "shaped", "dds"]
    kills: NonNegativeInt = 0
    holds: NonNegativeInt = 0
    cuts: NonNegativeInt = 0
    fills: NonNegativeInt = 0
    steps: NonNegativeInt = 0

    @property
    def counts(self) -> dict[How, int]:
        """How many trials there are of each kind."""
        return {how: getattr(self, f"{how}s") for how in get_args(How)}


class Waits(Section):
    """Seconds until members are missed: before the start, silent, in a meeting."""

    join_s: PositiveFloat
    silence_s: PositiveFloat
    meeting_s: PositiveFloat


class Survival(Section):
    """Runs of ``rounds``, of ``iteration_s`` each at least, in sites of ``workers``.

    What does not kill a member lasts for up to ``longest`` times the silence after which members
    count as lost; its clock steps by up to :data:`STEP_S`. A run is over the limit after
    ``limit_s``. ``at_once`` run beside each other, since they mostly wait.
    """

    workers: Annotated[list[PositiveInt], Field(min_length=1)]
    rounds: PositiveInt
    iteration_s: PositiveFloat
    snapshot_every: PositiveInt
    limits: Waits
    longest: PositiveFloat
    limit_s: PositiveFloat
    at_once: PositiveInt
    links: Link
    systems: dict[str, Disturbed]


@experiment(methods=(), files=(f"{RECORD}/*.json",), minutes=2)
def survived(bench: Bench, survival: Survival) -> Iterator[Row]:
    """The record's trials, counted; a failed row for each system without any of these settings."""
    for label, system in survival.systems.items():
        row = dict(case=label, exchange=system.exchange.name, evidence="recorded")
        row |= dict(synchronization=system.synchronization.name)
        trials = _there(survival, label).get("trials", [])
        if not trials:
            at = dict(system=label, wire=system.wire)
            lost = dict(status="failed", reason=f"not recorded with these settings; {COMMAND} does")
            yield bench.row("trials", math.nan, "1", at=at, **row, **lost)
        counted: dict[tuple[str, str, str], list[float]] = {}
        for trial in trials:
            key = trial["how"], trial["role"], trial["outcome"]
            counted.setdefault(key, []).append(trial["seconds"])
        for (how, role, outcome), seconds in sorted(counted.items()):
            at = dict(system=label, wire=system.wire, how=how, role=role, outcome=outcome)
            at["fault"] = float(outcome in FAULTS)
            yield bench.row("trials", len(seconds), "1", at=at, **row)
            yield bench.row("longest", max(seconds), "s", at=at, **row)


# The record ---------------------------------------------------------------------------------------


def record() -> None:
    """Run and keep, trial by trial, what is not recorded yet.

    Raises RuntimeError where clocks are to step, and cannot.
    """
    from slowlink.workflow import settings

    survival: Survival = settings.load({"scale": "desk"}).recipes["matrix"].survival
    left = {}
    for label in survival.systems:
        known = {trial["trial"] for trial in _there(survival, label).get("trials", [])}
        drawn = [one for one in trials_of(survival, label, 1.0) if one["trial"] not in known]
        print(f"{label}: {len(drawn)} trials to record", flush=True)
        left |= {label: drawn} if drawn else {}
    if any(trial["how"] == "step" for drawn in left.values() for trial in drawn):
        clocks_that_step()
    for label in left:
        _record(survival, label)


def _there(survival: Survival, label: str) -> dict[str, Any]:
    return kept(RECORD, label, _setting(survival, label))


def trials_of(survival: Survival, label: str, run_s: float) -> list[dict[str, Any]]:
    """The trials of a system whose run takes ``run_s``: whom they disturb, how, when, how long; the
    same whenever they are drawn, but for the time."""
    system = survival.systems[label]
    given = _settings(survival, system, Path("."), 0)
    members = [one for one in given.members if one != COORDINATOR or given.network]
    numbers = {how: range(1, count + 1) for how, count in system.counts.items()}
    names = [(how, f"{how} {n}") for how, its in numbers.items() for n in its]
    sites = [f"site{number}/worker0" for number in range(1, len(survival.workers) + 1)]
    found = []
    for how, name in names:
        draw = random.Random(f"{label}, {name}")
        member = draw.choice(sites if how == "cut" else members)
        role = "site" if how == "cut" else member.partition("/")[2].rstrip("0123456789") or member
        role = "central server" if member == "central/server" else role
        at, length = draw.uniform(0, 1), draw.uniform(0.1, survival.longest)
        for_s = math.inf if how == "kill" else length * survival.limits.silence_s
        trial = dict(trial=name, member=member, role=role, how=how, at_s=at * run_s, for_s=for_s)
        by_s = draw.uniform(-STEP_S, STEP_S)
        found.append(trial | dict(by_s=by_s) if how == "step" else trial)
    return found


def _record(survival: Survival, label: str) -> None:
    system, there = survival.systems[label], _there(survival, label)
    begun, before = time.monotonic(), there.get("seconds", 0)
    with tempfile.TemporaryDirectory() as folder:
        whole, run_s = _undisturbed(survival, system, Path(folder))
        done = {trial["trial"]: trial for trial in there.get("trials", [])}
        drawn = trials_of(survival, label, run_s)
        order = [trial["trial"] for trial in drawn]

        def one(trial: dict[str, Any]) -> None:
            name = trial["trial"]
            given = _settings(survival, system, Path(folder), 1 + order.index(name))
            known = {field.name for field in fields(Disturbance)}
            what = Disturbance(**{key: value for key, value in trial.items() if key in known})
            outcome = disturbed(given, whole, what, survival.limit_s)
            told = {key: _short(value) for key, value in trial.items()}
            told |= dict(outcome=outcome.kind, seconds=round(outcome.seconds, 2), said=outcome.said)
            done[name] = told
            print(f"{label}: {json.dumps(told)}", flush=True)
            keep(
                RECORD,
                label,
                _setting(survival, label),
                COMMAND,
                versions={name: metadata.version(name) for name in ("torch", "pyzmq")},
                seconds=round(before + time.monotonic() - begun),
                undisturbed_s=round(run_s, 2),
                trials=[done[one] for one in order if one in done],
            )

        left = [trial for trial in drawn if trial["trial"] not in done]
        with ThreadPoolExecutor(survival.at_once) as pool:
            list(pool.map(one, left))


def _undisturbed(survival: Survival, system: Disturbed, folder: Path) -> tuple[Model, float]:
    """The model that a system comes to, and the seconds of its run once all are started, where
    what is slow for the first time has been done."""
    given = _settings(survival, system, folder, 0)
    for output in ("first", "second"):
        given = given.model_copy(update=dict(output=folder / output, state=None))
        with launch.Launched(given) as run:
            begun = time.monotonic()
            run.run()
            seconds = time.monotonic() - begun
    return model_of(given), seconds


def _settings(survival: Survival, system: Disturbed, folder: Path, number: int) -> LiveSettings:
    """A run of a system; those of different numbers do not meet."""
    given = dict(
        training=dict(
            exchange=system.exchange.model_dump(),
            levels=[level.model_dump(exclude_none=True) for level in system.levels],
            synchronization=system.synchronization.model_dump(),
            optimizer_at=system.optimizer_at,
            workers=survival.workers,
            rounds=survival.rounds,
            evaluate_every=survival.rounds,
        ),
        own=OWN,
        order="rank",
        on_loss=system.on_loss,
        iteration_s=[[survival.iteration_s]] * sum(survival.workers),
        limits=survival.limits.model_dump(),
        output=str(folder / f"run{number}"),
    )
    if system.wire == "shaped":
        given["network"] = survival.links.model_dump()
    if system.wire == "dds":
        given["dds"] = {}
    if system.on_loss == "stop":
        state = str(folder / f"state{number}")
        given |= dict(state=state, snapshot_every=survival.snapshot_every)
    return parse(given)


def _setting(survival: Survival, label: str) -> dict[str, Any]:
    """What the trials of a system depend on."""
    shared = survival.model_dump(mode="json", exclude={"systems", "at_once"})
    numbers = {f"{how}s" for how in get_args(How)}
    own = survival.systems[label].model_dump(mode="json", exclude=numbers)
    return shared | own


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else None
    return value


# What of it is shown ------------------------------------------------------------------------------


@table(
    title="What live runs survive",
    shows="Real processes on this machine, disturbed at random moments: a member is killed, or for "
    "up to twice the silence after which it counts as lost it is held (SIGSTOP), its site is cut "
    "off, its files can grow no more (fill), or its clock is up to an hour ahead or back (step). "
    "Systems that stop at a loss keep snapshots: after an error that names the member, "
    "the same command must resume and come to the bits of a run that nobody disturbed, and so must "
    "runs that outlast the disturbance. The others go on without the member, or replace it, and "
    "end with an error only where a server is lost, or anybody before the start. "
    "Faults are runs over the limit, models that are not the same, errors that blame "
    "another, and processes that stay. Times are of the first "
    f"run. “{COMMAND}” recorded them.",
    of=[survived],
)
def survival_table(rows: pd.DataFrame, verdicts: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row a system and way to disturb it."""
    import pandas as pd

    done = rows[(rows["experiment"] == "survived") & (rows["status"] == "ok")]
    if done.empty:
        raise Missing(f"nothing is recorded; {COMMAND} does")
    right = list(dict.fromkeys(done.loc[done["fault"] == 0, "outcome"]))
    made = []
    for (label, wire, how), some in done.groupby(["system", "wire", "how"], sort=False):
        trials = some[some["metric"] == "trials"]
        counts = trials.groupby("outcome")["value"].sum()
        longest = some.loc[some["metric"] == "longest", "value"].max()
        line = {"system": label, "wire": wire, "disturbed": how, "trials": int(counts.sum())}
        line |= {kind: int(counts.get(kind, 0)) for kind in right}
        line |= {"faults": int((trials["value"] * trials["fault"]).sum())}
        made.append(line | {"longest (s)": round(longest, 1)})
    return pd.DataFrame(made)
