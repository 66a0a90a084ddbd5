"""GeoMX on real processes over emulated links: cells of its tables, other exchanges, the system;
and the record of such cells."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import PositiveFloat, PositiveInt, model_validator

from slowlink.testbed.results import Row
from slowlink.testbed.training.recipe import Exchange, Model, Part
from slowlink.workflow.documents.geomx.experiments import (
    TIME,
    Bench,
    Case,
    Table,
    a_cell,
    a_run,
    full_size,
    table1,
    table2,
)
from slowlink.workflow.experiment import PLANNING, Section, experiment

if TYPE_CHECKING:
    from slowlink.methods.exchange import Plan, Topology
    from slowlink.testbed.network.counting import Sizes
    from slowlink.testbed.rounds import Bodies
    from slowlink.testbed.training.recipe import Recipe

if not PLANNING:
    import tempfile

    import pandas as pd

    from slowlink.methods import exchange
    from slowlink.testbed import rounds
    from slowlink.testbed.given import processor
    from slowlink.testbed.live.agreement import compare, pairs
    from slowlink.testbed.live.engine import launch
    from slowlink.testbed.live.engine.settings import parse
    from slowlink.testbed.network import topology
    from slowlink.testbed.network.emulated import Measured, available
    from slowlink.testbed.results import read, row_of
    from slowlink.testbed.training import models, trainer

RECORD = "data/recorded/geomx_emulated.json"
RECORDED = (TIME, "emulated_over_simulated", "cpu_share", "busy_share")
"""What a record is shown with, of what was emulated when it was made."""
STALE = 0.01
"""Share by which a simulation may have changed since it was recorded: a table's links have latency,
which is not emulated."""


UNLIKE = "running statistics (BatchNorm) are the workers' mean, not as in virtual time"
"""A note on live rows of models that have some."""


class Links(Section):
    """Each pair of nodes is measured for ``measured_s`` before, and a round in which nothing
    happens for ``timeout_s`` has failed."""

    measured_s: PositiveFloat
    timeout_s: PositiveFloat


# Cells of the tables ------------------------------------------------------------------------------


class Cells(Section):
    """Which cells of a table: ``models`` and ``cases`` by name, null for all of them."""

    models: list[str] | None = None
    cases: list[str] | None = None

    def of(self, table: Table) -> Iterator[tuple[Part, dict[str, Case]]]:
        """The chosen cases of ``table``, by model."""
        wanted = {n: c for n, c in table.cases.items() if self.cases is None or n in self.cases}
        for model in table.models:
            if wanted and (self.models is None or model.name in self.models):
                yield model, wanted


class Emulated(Section):
    table1: Cells = Cells()
    table2: Cells = Cells()


@experiment(alone=True, memory_mb=12000, makes=("table1", "table2"))
def emulated(
    bench: Bench, table1: Table, table2: Table, links: Links, emulated: Emulated
) -> Iterator[Row]:
    """The cells that this scale chooses; their times again beside the table's simulated ones."""
    chosen = {"table1": (table1, emulated.table1), "table2": (table2, emulated.table2)}
    for name, (table, cells) in chosen.items():
        for model, cases in cells.of(table):
            for row in _cells(bench, name, table, model, cases, links):
                yield row
                if (row.metric, row.status, row.evidence) == (TIME, "ok", "emulated"):
                    yield _beside(row, bench.settings.variant)


def _beside(row: Row, variant: str) -> Row:
    """A cell's time, as evidence of the number that its table has."""
    at = dict(row.at)
    table = at.pop("table")
    return row.model_copy(update=dict(experiment=table, variant=variant, at=at, reason=""))


def _cells(
    bench: Bench,
    name: str,
    table: Table,
    model: Part,
    cases: Mapping[str, Case],
    links: Links,
) -> Iterator[Row]:
    settings = bench.settings
    systems = list(dict.fromkeys(case.system for case in cases.values()))
    runs = full_size(bench, table, model, systems)
    for system, sizes, bodies in _sent(bench, runs):
        for label, case in cases.items():
            if case.system != system:
                continue
            bench.say(f"emulated: {name}, {model.name}, {label}")
            link = settings.link(case.wan, table.workers)
            bare = dict(lan_latency=0.0, wan_latency=0.0)  # none is emulated
            sites = trainer.topology(table.workers, link.model_copy(update=bare))
            chosen = runs[system].exchange
            plan = exchange.load(chosen.name, **chosen.parameters)(sites)
            at = dict(table=name, system=system)
            yield from _compared(
                bench,
                a_cell(bench, runs[system], label, case, at=at),
                TIME,
                plan,
                sites,
                sizes,
                links,
                bodies=bodies and rounds.bound(plan, bodies),
                efficiency=link.efficiency,
            )


def _sent(bench: Bench, runs: Mapping[str, Recipe]) -> Iterator[tuple[str, Sizes, Bodies | None]]:
    """What each system sends in one round: a dense vector, or the payloads of real gradients."""
    coded = {}
    for system, run in runs.items():
        if any(level.up.name != "identity" for level in run.levels):
            coded[system] = run.model_copy(update=dict(accelerator="cpu"))  # a few images
            continue
        network = models.make(run.model.name, **run.model.parameters)
        yield system, 4.0 * models.count(models.gradient_shapes(network, norm=run.norm)), None
    if coded:
        bench.say(f"emulated: real gradients of {run.model.name} through {', '.join(coded)}")
        for system, traffic, bodies in rounds.real_payloads(coded):
            yield system, traffic.rounds[0], bodies


def _compared(
    bench: Bench,
    row: Row,
    metric: str,
    plan: Plan,
    network: Topology,
    sizes: Sizes,
    links: Links,
    **options: Any,
) -> Iterator[Row]:
    """``row`` with ``metric`` (s), simulated and emulated, and what tells why they differ.

    ``emulated_over_simulated`` with what was measured where it is more than 10 % off;
    ``cpu_share``, ``busy_share`` and ``held_share``, % of all processors' time that the exchange
    took, that anything took, and that a quota withheld, as far as known; and of each pair of nodes
    that was measured before, the coordinate ``ends``, ``link_rate`` and ``link_rate_expected``,
    bit/s of payload, and ``round_trip``, s.
    Where links cannot be emulated or the run fails, one failed row.

    ``options`` are those of :func:`testbed.live.agreement.compare`.
    """

    def made(metric: str, value: float, unit: str, **fields: Any) -> Row:
        update = dict(metric=metric, value=float(value), unit=unit, evidence="emulated")
        return row.model_copy(update=update | fields)

    try:
        if why := available():
            raise RuntimeError(why)
        limits = dict(measured_s=links.measured_s, timeout_s=links.timeout_s)
        both = compare(plan, network, sizes, say=bench.say, **limits, **options)
    except (RuntimeError, OSError) as error:
        bench.say(f"{row.case}: {error}")
        yield made(metric, math.nan, "s", status="failed", reason=str(error))
        return
    seconds = f"{both.emulated_s:.3f} s, simulated {both.simulated_s:.3f} s"
    bench.say(f"{row.case}: {seconds}; {both.why}")
    yield made(metric, both.simulated_s, "s", evidence="simulated")
    yield made(metric, both.emulated_s, "s")
    yield made("emulated_over_simulated", both.ratio, "1", reason=both.why)
    for share in ("cpu_share", "busy_share", "held_share"):
        if math.isfinite(value := getattr(both, share)):
            yield made(share, 100 * value, "%")
    yield from _carried(row.model_copy(update=dict(evidence="emulated")), network, both.links)


def _carried(row: Row, network: Topology, links: Sequence[Measured]) -> Iterator[Row]:
    """``row`` with what was measured on each pair of nodes."""
    for one in links:
        ends = " to ".join(network.node_names[node] for node in (one.src, one.dst))
        place = dict(case=f"{row.case}: {ends}", at=row.at | dict(ends=ends))
        for metric, value, unit in (
            ("link_rate", one.rate, "bit/s"),
            ("link_rate_expected", one.expected, "bit/s"),
            ("round_trip", one.rtt_s, "s"),
        ):
            update = dict(metric=metric, value=float(value), unit=unit)
            yield row.model_copy(update=place | update)


# The record ---------------------------------------------------------------------------------------


def record(results: str | Path, path: str | Path, command: str) -> None:
    """Keep the emulated cells of a result file in a JSON file, with the command that made them.

    Raises
    ------
    ValueError
        A row failed: only what ran is kept.
    """
    table = read([results])
    rows = [row_of(one) for one in table[table["experiment"] == emulated.name].to_dict("records")]
    if failed := [row.case for row in rows if row.status == "failed"]:
        raise ValueError(f"{results}: {failed[0]!r} failed; a record has no gaps")
    about = {"command": command, "processor": processor(), "cores": len(os.sched_getaffinity(0))}
    head = json.dumps(about, indent=1)[:-2]
    lines = ",\n".join(json.dumps(_said(row)) for row in rows)
    Path(path).write_text(f'{head},\n "rows": [\n{lines}\n]}}\n')


def _said(row: Row) -> dict[str, Any]:
    """What a row says, without NaN, which JSON lacks."""
    told = row.model_dump(exclude_defaults=True)
    return {name: value for name, value in told.items() if value == value}


def _kept(path: str | Path) -> list[Row]:
    try:
        return [Row(**row) for row in json.loads(Path(path).read_text())["rows"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a record of rows ({error!r})") from error


@experiment(
    after=(table1, table2), makes=("emulated", "table1", "table2"), files=(RECORD,), minutes=5
)
def recorded(bench: Bench, rows: pd.DataFrame) -> Iterator[Row]:
    """What :func:`record` kept of cells that are in today's tables, as rows of this scale; and its
    times again as further evidence beside the tables' simulated ones.

    Where a cell is simulated otherwise than when it was recorded, its ratio says ``stale``, and its
    time is evidence of nothing.

    Raises
    ------
    ValueError
        The record is another file.
    """
    variant = bench.settings.variant
    simulated = rows[(rows["metric"] == TIME) & (rows["variant"] == variant)]
    today = [row_of(one) for one in simulated.to_dict("records")]
    now = {_cell(row, row.experiment): row.value for row in today}
    kept = [(_cell(row, str(row.at["table"])), row) for row in _kept(RECORD)]
    then = {cell: row.value for cell, row in kept if row.evidence == "simulated"}
    for cell, row in kept:
        if row.metric not in RECORDED or row.evidence != "emulated" or cell not in now:
            continue
        was = then.get(cell, math.nan)
        row = row.model_copy(update=dict(scale=bench.scale, evidence="recorded"))
        stale = not abs(now[cell] / was - 1) <= STALE
        if stale and row.metric == "emulated_over_simulated":
            told = f"stale: simulated {was:.4g} s then, {now[cell]:.4g} s today"
            row = row.model_copy(update=dict(reason="; ".join(filter(None, (told, row.reason)))))
        yield row
        if row.metric == TIME and not stale:
            yield _beside(row, variant)


def _cell(row: Row, table: str) -> tuple[str, str, str, float]:
    return table, row.model, str(row.at["system"]), row.bandwidth


# Other exchanges ----------------------------------------------------------------------------------


class Network(Part):
    """Networks that may be emulated: those without loops (``testbed.network.topology``)."""

    name: Literal["star", "tree", "geo_sites"]


class Compared(Section):
    """One exchange on emulated links; those that are not ``fair`` have one queue for all."""

    exchange: Exchange
    network: Network
    nbytes: PositiveFloat
    fair: bool = True

    def topology(self) -> Topology:
        return getattr(topology, self.network.name)(**self.network.parameters)

    def plan(self, network: Topology) -> Plan:
        return exchange.load(self.exchange.name, **self.exchange.parameters)(network)


class Agreement(Section):
    """``chosen``: cases by name, null for all."""

    repeats: PositiveInt
    chosen: list[str] | None = None
    cases: dict[str, Compared]

    @model_validator(mode="after")
    def _there_are(self) -> Agreement:
        for name in self.chosen or ():
            if name not in self.cases:
                raise ValueError(f"chosen: {name!r}; allowed: {', '.join(self.cases)}")
        return self


@experiment(alone=True, memory_mb=12000)
def agreement(bench: Bench, links: Links, agreement: Agreement) -> Iterator[Row]:
    """Exchanges on real processes against the simulator."""
    settings = bench.settings
    for name in agreement.chosen or agreement.cases:
        bench.say(f"agreement: {name}")
        one = agreement.cases[name]
        network = one.topology()
        row = bench.row(
            "vector",
            one.nbytes / 1e6,
            "MB",
            case=name,
            at=dict(setting=name),
            exchange=one.exchange.name,
            compression="identity",
            workers=len(network.workers),
            bandwidth=float(network.link_rate.min()),
            evidence="computed",
        )
        yield row
        yield from _compared(
            bench,
            row,
            "completion_time",
            one.plan(network),
            network,
            one.nbytes,
            links,
            efficiency=settings.variants[settings.variant].efficiency,
            fair=one.fair,
            repeats=agreement.repeats,
        )


# The system ---------------------------------------------------------------------------------------


class Live(Section):
    """What processes train over emulated links, and the trainer in virtual time."""

    systems: list[str]
    workers: list[PositiveInt]
    wan: PositiveFloat
    model: Model
    lower_bound: PositiveInt
    batch: PositiveInt
    lr: PositiveFloat
    rounds: PositiveInt
    evaluate_every: PositiveInt
    limit: PositiveInt | None
    test_limit: PositiveInt | None
    seed: int
    timeout_s: PositiveFloat


@experiment(alone=True, memory_mb=12000)
def system(bench: Bench, links: Links, live: Live) -> Iterator[Row]:
    """Training by processes over emulated links and in virtual time: variants ``live`` and
    ``virtual``; ``live_difference`` is the largest one of test losses between them.

    Raises
    ------
    RuntimeError
        They differ, and the run does not say why it may (as ``reason`` of its rows).
    """
    for name in live.systems:
        networks = {name: bench.settings.link(live.wan, live.workers)}
        shared = live.model_dump(exclude={"systems", "workers", "wan", "model", "timeout_s"})
        run = a_run(
            bench, name, live.workers, networks, model=live.model, accelerator="cpu", **shared
        )
        bench.say(f"system: {name}, in virtual time")
        virtual = list(trainer.train(run, bench.say))
        yield from (row.model_copy(update=dict(variant="virtual")) for row in virtual)
        bench.say(f"system: {name}, live")
        real = _lived(bench, run, links.measured_s, live.timeout_s)
        yield from real
        losses = [{r.round: r.value for r in rows if r.metric == "test_loss"}
                  for rows in (virtual, real)]  # fmt: skip
        if shown := losses[0].keys() & losses[1].keys():
            apart = max(abs(losses[0][n] - losses[1][n]) for n in shown)
            if apart != 0 and not real[0].reason:
                raise RuntimeError(
                    f"{name}: test losses of real processes and of the trainer are {apart:g} "
                    "apart, not 0"
                )
            update = dict(metric="live_difference", value=apart, unit="1", round=max(shown))
            yield real[0].model_copy(update=update | dict(time_s=math.nan))


def _lived(bench: Bench, run: Recipe, measured_s: float, timeout_s: float) -> list[Row]:
    """Rows of ``run`` by real processes over links as its one network has them, variant ``live``.

    With them, of pairs of nodes that its exchange uses, what their links carried for
    ``measured_s`` (s) each before the run: metrics and coordinate as of :func:`_compared`. A failed
    row where links cannot be emulated, or the run fails, or the start, an iteration or a meeting
    takes longer than ``timeout_s`` (s).
    """
    ((case, link),) = run.networks.items()
    place = dict(case=case, variant="live", bandwidth=link.wan, evidence="emulated")
    network = models.make(run.model.name, **run.model.parameters)
    if any(buffer.is_floating_point() for buffer in network.buffers()):
        place["reason"] = UNLIKE
    sites = trainer.topology(run.workers, link)
    plan = exchange.load(run.exchange.name, **run.exchange.parameters)(sites)
    nothing = Row(**run.told | place | dict(metric="test_accuracy", value=0.0, unit="%"))
    try:
        if why := available():
            raise RuntimeError(why)
        with tempfile.TemporaryDirectory() as folder:
            told = run.model_dump(mode="json", exclude={"networks"})
            # Real nodes send each tensor whole, as soon as they can: no barrier, and no chunks.
            told["exchange"] = dict(name=run.exchange.name)
            limits = dict.fromkeys(("join_s", "compute_s", "meeting_s"), timeout_s)
            shaped = dict(network=link.model_dump(mode="json"), output=folder, limits=limits)
            given = parse(dict(training=told, **shaped))
            ended = launch.run_all(given, bench.say, pairs=pairs(plan), measured_s=measured_s)
    except (RuntimeError, OSError) as error:
        bench.say(f"{case}: {error}")
        failed = dict(value=math.nan, status="failed", reason=str(error))
        return [nothing.model_copy(update=failed)]
    made = [row.model_copy(update=place) for row in ended.rows if "member" not in row.at]
    return [*made, *_carried(nothing, sites, ended.links)]
