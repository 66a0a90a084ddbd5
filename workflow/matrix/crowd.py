"""How many members a live run takes on one machine: what they and the centre cost, recorded::

make record-crowd     runs what is not recorded, or was recorded with other settings
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from slowlink.reports.charts import Missing, table
from slowlink.testbed.results import Row
from slowlink.testbed.training.recipe import Dataset, Exchange, Level, Model, Policy
from slowlink.workflow.experiment import PLANNING, Section, experiment
from slowlink.workflow.matrix.experiments import Bench

if not PLANNING:
    import os
    import re
    import tempfile
    import time
    from collections.abc import Callable
    from dataclasses import asdict, dataclass

    import psutil

    from slowlink.testbed.live import fork_server
    from slowlink.testbed.live.engine import launch
    from slowlink.testbed.live.engine.settings import COORDINATOR
    from slowlink.workflow.kept import keep, kept

if TYPE_CHECKING:
    import pandas as pd

RECORD = "data/recorded/matrix_crowd"
COMMAND = "make record-crowd"
LOOK_S = 0.2
WARM = 2
"""Rounds that do not count."""


class Crowded(Section):
    """A system and how many ``members`` it is tried with, in as many ``sites``."""

    wire: Literal["tcp", "dds"]
    members: Annotated[list[PositiveInt], Field(min_length=1)]
    sites: PositiveInt = 1
    exchange: Exchange
    levels: list[Level]
    synchronization: Policy


class Crowd(Section):
    """Runs of ``rounds`` with one ``model``, ``batch`` samples a member and round."""

    model: Model
    dataset: Dataset
    limit: PositiveInt
    test_limit: PositiveInt
    batch: PositiveInt
    lr: PositiveFloat
    rounds: PositiveInt
    timeout_s: PositiveFloat
    systems: dict[str, Crowded]


METRICS = {
    "round_time": ("round_s", "s"),
    "centre_cpu": ("centre_cpu_s", "s"),
    "members_cpu": ("members_cpu_s", "s"),
    "busy_share": ("busy", "%"),
    "centre_memory": ("centre_bytes", "B"),
    "member_memory": ("member_bytes", "B"),
    "start_time": ("start_s", "s"),
}


@experiment(methods=(), files=(f"{RECORD}/*.json",), minutes=2)
def crowded(bench: Bench, crowd: Crowd) -> Iterator[Row]:
    """The record's runs; a failed row for each that is not there with these settings."""
    for label, system in crowd.systems.items():
        there = kept(RECORD, label, _setting(crowd, label)).get("runs", {})
        at = dict(system=label, wire=system.wire)
        for members in system.members:
            row = dict(case=label, at=at, workers=members, evidence="recorded")
            found = there.get(str(members))
            if found is None:
                why = f"not recorded with these settings; {COMMAND} does"
                yield bench.row("round_time", math.nan, "s", status="failed", reason=why, **row)
                continue
            for metric, (name, unit) in METRICS.items():
                yield bench.row(metric, found[name] * (100 if unit == "%" else 1), unit, **row)


# The record ---------------------------------------------------------------------------------------


def record() -> None:
    """Run and keep, one by one, what is not recorded yet."""
    from slowlink.workflow import settings

    crowd: Crowd = settings.load({"scale": "desk"}).recipes["matrix"].crowd
    for label, system in crowd.systems.items():
        runs = dict(kept(RECORD, label, _setting(crowd, label)).get("runs", {}))
        for members in system.members:
            if str(members) in runs:
                continue
            print(f"{label}: {members} members", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                load = _run(crowd, system, members, Path(folder))
            runs[str(members)] = {name: float(f"{x:.4g}") for name, x in asdict(load).items()}
            print(runs[str(members)], flush=True)
            keep(RECORD, label, _setting(crowd, label), COMMAND, runs=runs)


if not PLANNING:

    @dataclass(frozen=True)
    class Load:
        """What a run takes: seconds of a round, and of it processor time of the centre and of all
        members together; the share of the processors' time in which these ran; memory, where what
        is shared counts in parts; and seconds until the first round was over."""

        round_s: float
        centre_cpu_s: float
        members_cpu_s: float
        busy: float
        centre_bytes: float
        member_bytes: float
        start_s: float


def _run(crowd: Crowd, system: Crowded, members: int, folder: Path) -> Load:
    """A live run, whose coordinator is a process of its own here."""
    given = dict(
        training=dict(
            exchange=system.exchange.model_dump(),
            levels=[level.model_dump(exclude_none=True) for level in system.levels],
            synchronization=system.synchronization.model_dump(),
            workers=[members // system.sites] * system.sites,
            rounds=crowd.rounds,
            evaluate_every=1,
            **crowd.model_dump(
                mode="json", include={"model", "dataset", "limit", "test_limit", "batch", "lr"}
            ),
        ),
        limits=dict(join_s=crowd.timeout_s, meeting_s=crowd.timeout_s, silence_s=60.0),
        output=str(folder / "out"),
        keys=str(folder / "keys"),
        dds={} if system.wire == "dds" else None,
    )
    file, said = folder / "run.json", folder / "said.txt"
    file.write_text(json.dumps(given))
    module = f"{launch.PACKAGE}.__main__"
    arguments = [str(file), "--attached"]
    keys = fork_server.shared().start("keys", module, [*arguments, "--make-keys"], said)
    if keys.wait(60):
        raise RuntimeError(said.read_text())
    keys.stdin.close()
    run = fork_server.shared().start(COORDINATOR, module, arguments, said)
    try:
        return _watched(
            lambda: run.poll() is None,
            lambda: int(([0, *re.findall(r"^round (\d+) of", said.read_text(), re.M)])[-1]),
            COORDINATOR,
            crowd,
        )
    finally:
        run.kill()
        if run.wait():
            raise RuntimeError(said.read_text().strip().split("\n")[-1])
        run.stdin.close()


def _watched(alive: Callable[[], bool], done: Callable[[], int], centre: str, crowd: Crowd) -> Load:
    """Look at a run's processes, all of which are named, until it is over."""
    begun = time.monotonic()
    seen: list[tuple[float, int, float, float]] = []
    memory: tuple[float, float] = (math.nan, math.nan)
    start_s = math.nan
    while alive():
        rounds = done()
        if rounds and math.isnan(start_s):
            start_s = time.monotonic() - begun
        if WARM <= rounds < crowd.rounds:
            its = _processes()
            cpu = {name: _cpu_s(one) for name, one in its.items()}
            own_s = cpu.pop(centre, math.nan)
            look = time.monotonic(), rounds, own_s, sum(cpu.values())
            if all(map(math.isfinite, look)):  # else some have ended
                seen.append(look)
            if rounds >= crowd.rounds // 2 and math.isnan(sum(memory)):
                used = {name: _bytes(one) for name, one in its.items()}
                own = used.pop(centre, math.nan)
                memory = own, sum(used.values()) / max(1, len(used))
        time.sleep(LOOK_S)
    if len(seen) < 2 or seen[-1][1] == seen[0][1] or math.isnan(sum(memory)):
        raise RuntimeError(f"of {crowd.rounds} rounds too few were seen: {seen}")
    first, last = seen[0], seen[-1]
    rounds = last[1] - first[1]
    whole_s, centre_s, members_s = (last[i] - first[i] for i in (0, 2, 3))
    busy = (centre_s + members_s) / (whole_s * len(os.sched_getaffinity(0)))
    spent = (seconds / rounds for seconds in (whole_s, centre_s, members_s))
    return Load(*spent, min(1.0, busy), *memory, start_s)


def _processes() -> dict[str, psutil.Process]:
    """The members of the run that this process has started, by name."""
    found = {}
    for one in psutil.Process().children(recursive=True):
        try:
            name = one.name()
        except psutil.NoSuchProcess:
            continue
        if not name.startswith("python"):
            found[name] = one
    return found


def _cpu_s(one: psutil.Process) -> float:
    try:
        times = one.cpu_times()
    except psutil.NoSuchProcess:
        return math.nan
    return times.user + times.system


def _bytes(one: psutil.Process) -> float:
    """Memory, of which what is shared counts in parts; NaN of a process that has ended."""
    try:
        return one.memory_full_info().pss
    except psutil.NoSuchProcess:
        return math.nan


def _setting(crowd: Crowd, label: str) -> dict[str, Any]:
    """What the runs of a system depend on."""
    shared = crowd.model_dump(mode="json", exclude={"systems"})
    return shared | crowd.systems[label].model_dump(mode="json", exclude={"members"})


# What of it is shown ------------------------------------------------------------------------------


@table(
    title="How many members a live run takes",
    shows="All members are processes of one machine. A round is one iteration of everybody, with a "
    "meeting of all; of it, what the coordinator and all other members together spend of processor "
    "time. "
    "Memory that processes share counts in parts. The nearer the processors are to being busy all "
    f"the time, the more they are the limit; the rest is waiting. “{COMMAND}” recorded it.",
    of=[crowded],
)
def crowd_table(rows: pd.DataFrame, verdicts: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row a system and number of members."""
    import pandas as pd

    done = rows[(rows["experiment"] == "crowded") & (rows["status"] == "ok")]
    if done.empty:
        raise Missing(f"nothing is recorded; {COMMAND} does")
    made = []
    for (label, wire, members), some in done.groupby(["system", "wire", "workers"], sort=False):
        value = some.set_index("metric")["value"]
        made.append(
            {
                "system": label,
                "wire": wire,
                "members": int(members),
                "round (s)": float(f"{value['round_time']:.3g}"),
                "centre's processor time (ms)": round(1e3 * value["centre_cpu"], 1),
                "all others' (s)": float(f"{value['members_cpu']:.3g}"),
                "centre's memory (MB)": round(value["centre_memory"] / 1e6),
                "a member's (MB)": round(value["member_memory"] / 1e6),
                "processors busy (%)": round(value["busy_share"]),
            }
        )
    return pd.DataFrame(made)
