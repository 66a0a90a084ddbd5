"""Rows of plans on real processes over emulated links, and a record of such rows."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from methods import exchange
from methods.exchange import Plan, Topology
from testbed.live import agreement
from testbed.network import emulated
from testbed.network.counting import Sizes
from testbed.results import Row, Scale, read
from testbed.training.recipe import Recipe
from workflow.provenance import processor

if TYPE_CHECKING:
    import pandas as pd

NOTHING_YET = dict(evidence="computed", metric="", value=0.0, unit="")
"""For a row from which others are made."""
TIME = "communication_time"
RECORDED = (TIME, "emulated_over_simulated", "cpu_share", "busy_share")
"""What a record is shown with, of what was emulated when it was made."""
STALE = 0.01
"""Share by which a simulation may have changed since it was recorded: a table's links have latency,
which is not emulated."""


def compared(
    row: Row,
    metric: str,
    plan: Plan,
    topology: Topology,
    sizes: Sizes,
    say: Callable[[str], None],
    **options: object,
) -> Iterator[Row]:
    """``row`` with ``metric`` (s), simulated and emulated, and what tells why they differ.

    ``emulated_over_simulated`` with what was measured where it is more than 10 % off;
    ``cpu_share``, ``busy_share`` and ``held_share``, % of all processors' time that the exchange
    took, that anything took, and that a quota withheld, as far as known; and of each pair of nodes
    that was measured before, told by its nodes' names as the case, ``link_rate`` and
    ``link_rate_expected``, bit/s of payload, and ``round_trip``, s.
    Where links cannot be emulated or the run fails, one failed row.

    ``options`` are those of :func:`testbed.live.agreement.compare`.
    """

    def made(metric: str, value: float, unit: str, **fields: object) -> Row:
        update = dict(metric=metric, value=float(value), unit=unit, evidence="emulated")
        return row.model_copy(update=update | fields)

    try:
        if why := emulated.available():
            raise RuntimeError(why)
        both = agreement.compare(plan, topology, sizes, say=say, **options)
    except (RuntimeError, OSError) as error:
        say(f"{row.case}: {error}")
        yield made(metric, float("nan"), "s", status="failed", reason=str(error))
        return
    say(f"{row.case}: {both.emulated_s:.3f} s, simulated {both.simulated_s:.3f} s; {both.why}")
    yield made(metric, both.simulated_s, "s", evidence="simulated")
    yield made(metric, both.emulated_s, "s")
    yield made("emulated_over_simulated", both.ratio, "1", reason=both.why)
    for share in ("cpu_share", "busy_share", "held_share"):
        if math.isfinite(value := getattr(both, share)):
            yield made(share, 100 * value, "%")
    for ends, metric, value, unit in _carried(topology, both.links):
        yield made(metric, value, unit, case=f"{row.case}: {ends}")


def _carried(
    topology: Topology, links: Sequence[emulated.Measured]
) -> Iterator[tuple[str, str, float, str]]:
    """Names of both ends, metric, value and unit of what was measured."""
    for one in links:
        ends = " to ".join(topology.node_names[node] for node in (one.src, one.dst))
        yield ends, "link_rate", one.rate, "bit/s"
        yield ends, "link_rate_expected", one.expected, "bit/s"
        yield ends, "round_trip", one.rtt_s, "s"


def lived(
    run: Recipe, measured_s: float, timeout_s: float, say: Callable[[str], None]
) -> list[Row]:
    """Rows of ``run`` by real processes over links as its one network has them, variant ``live``.

    With them, of pairs of nodes that its exchange uses, what their links carried for
    ``measured_s`` (s) each before the run: metrics as of :func:`compared`, the pair told by the
    variant. A failed row where links cannot be emulated, or the run fails or takes longer than
    ``timeout_s`` (s).
    """
    from testbed.live.hips.launch import run_all
    from testbed.live.hips.settings import parse
    from testbed.training.trainer import topology

    ((case, link),) = run.networks.items()
    place = dict(case=case, variant="live", bandwidth=link.wan, evidence="emulated")
    sites = topology(run.workers, link)
    plan = exchange.load(run.exchange.name, **run.exchange.parameters)(sites)
    try:
        if why := emulated.available():
            raise RuntimeError(why)
        with tempfile.TemporaryDirectory() as folder:
            training = run.model_dump(mode="json", exclude={"networks"})
            network = link.model_dump(mode="json")
            cluster = parse(dict(training=training, network=network, output=folder))
            links = run_all(cluster, timeout_s, say, agreement.pairs(plan), measured_s)
            rows = read([Path(folder) / "rows.parquet"])
    except (RuntimeError, OSError) as error:
        say(f"{case}: {error}")
        failed = dict(metric="test_accuracy", unit="%", status="failed", reason=str(error))
        return [Row(**run.told | place | failed)]
    made = [Row(**row | place) for row in rows.to_dict("records")]
    for ends, metric, value, unit in _carried(sites, links):
        what = dict(variant=f"live: {ends}", metric=metric, value=value, unit=unit)
        made.append(Row(**run.told | place | what))
    return made


def record(results: str | Path, path: str | Path, command: str) -> None:
    """Keep the rows of the experiment that a result file is named after in a JSON file, with the
    command that made them.

    Raises
    ------
    ValueError
        A row failed: only what ran is kept.
    """
    rows = read([results])
    rows = rows[rows["experiment"] == Path(results).stem].to_dict("records")
    if failed := [row["case"] for row in rows if row["status"] == "failed"]:
        raise ValueError(f"{results}: {failed[0]!r} failed; a record has no gaps")
    kept = [
        {name: value for name, value in row.items() if value == value and value not in ("", -1)}
        for row in rows
        if row["evidence"] in ("emulated", "simulated")
    ]
    about = {"command": command, "processor": processor(), "cores": len(os.sched_getaffinity(0))}
    head = json.dumps(about, indent=1)[:-2]
    lines = ",\n".join(json.dumps(row) for row in kept)
    Path(path).write_text(f'{head},\n "rows": [\n{lines}\n]}}\n')


def recorded(path: str | Path, tables: pd.DataFrame, scale: Scale) -> Iterator[Row]:
    """What :func:`record` kept of cells that are in ``tables``, as rows of ``scale``; and its times
    again as further evidence beside the tables' simulated ones.

    ``tables`` has today's rows of Tables 1 and 2. Where a cell is simulated otherwise than when it
    was recorded, its ratio says ``stale``, and its time is evidence of nothing.

    Raises
    ------
    ValueError
        Another file.
    """
    try:
        kept = [Row(**row) for row in json.loads(Path(path).read_text())["rows"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a record of rows ({error!r})") from error
    today = tables[(tables["metric"] == TIME) & (tables["evidence"] == "simulated")]
    today = today.drop_duplicates(["experiment", "model", "case"])  # the first variant is ours
    now = {(row.experiment, row.model, row.case): row for row in today.itertuples()}
    then = {_cell(r): r.value for r in kept if (r.metric, r.evidence) == (TIME, "simulated")}
    for row in kept:
        if row.metric not in RECORDED or row.evidence != "emulated" or _cell(row) not in now:
            continue
        row = row.model_copy(update=dict(scale=scale, evidence="recorded"))
        same, was = now[_cell(row)], then.get(_cell(row), math.nan)
        stale = not abs(same.value / was - 1) <= STALE
        if stale and row.metric == "emulated_over_simulated":
            told = f"stale: simulated {was:.4g} s then, {same.value:.4g} s today"
            row = row.model_copy(update=dict(reason="; ".join(filter(None, (told, row.reason)))))
        yield row
        if row.metric == TIME and not stale:
            update = dict(experiment=row.variant, variant=same.variant, reason="")
            yield row.model_copy(update=update)


def _cell(row: Row) -> tuple[str, str, str]:
    """Table, model and case: rows of cells have their table as variant."""
    return row.variant, row.model, row.case
