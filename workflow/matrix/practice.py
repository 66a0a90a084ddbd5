"""How advice holds up in practice: figures and tables of the steps that were predicted and run."""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from slowlink.reports.charts import Figure, Heat, Lines, Missing, Rows, Scatter, Style, table
from slowlink.workflow.experiment import PLANNING
from slowlink.workflow.matrix.checked import COMMAND, PARTS, RECORD, checked, checked_recorded

if not PLANNING or TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from slowlink.workflow.matrix.ranking import rounded

STYLE = Style(
    names={
        "predicted_time": "predicted step",
        "step_time": "measured step",
        "step_error": "predicted over measured, less 1",
        "off": "error, either way",
        "share": "cells within",
    },
    units={"predicted_time": "s", "off": "%"},
)
MEASURED = {"variant": "measured"}
NEAR = 0.1
"""As :mod:`slowlink.testbed.live.checked` has it, which is slow to import."""
SURE = 0.02
"""Steps this close to the shortest are as good a pick."""


def _recorded() -> str:
    """How the record was made, in words."""
    files = sorted((Path(__file__).parents[2] / RECORD).glob("*.json"))
    if not files:
        return f"Nothing is recorded yet; “{COMMAND}” does."
    kept = [json.loads(file.read_text()) for file in files]
    machines = ", ".join(dict.fromkeys(one["machine"] for one in kept))
    minutes = sum(one["seconds"] for one in kept) / 60
    busy = statistics.median(
        cell["found"]["busy_share"] or 0.0 for one in kept for cell in one["cells"].values()
    )
    return (
        f"Recorded cells ran by “{COMMAND}” in {minutes:.0f} minutes on {machines}, whose "
        f"processors were {100 * busy:.0f} % busy in the middle one of all cells. "
    )


_HOW = (
    "Each worker is a process in a network of its own, gloo joins them over links that the kernel "
    "shapes, and codecs code real gradients. Before each cell its parts are measured alone, by all "
    "workers at once: an iteration without exchange, the codec on messages of two sizes, the "
    "smallest message and a single large one. From these and the rates of the links the price "
    "list predicts the step; a step itself is never looked at. Networks are named by workers × the "
    "rate of each one's links. Where they do not say real, computing is replayed: in every step "
    "one real gradient arrives tensor by tensor, at the paces of one process alone, while the "
    "worker sleeps, since more workers than processors would wait for each other. A time is that "
    "of the middle step. Links have no latency of their own beside the kernel's, for this kernel "
    "cannot delay packets. "
)


def _cells(rows: pd.DataFrame) -> pd.DataFrame:
    """A line a cell that ran: its place, predicted and measured seconds, error (%), reason."""
    there = rows[(rows["experiment"] == "checked") & (rows["status"] == "ok")]
    place = ["run", "network", "method"]
    errors = there[there["metric"] == "step_error"].set_index(place)
    if errors.empty:
        raise Missing(f"no cell was run, and none is recorded; {COMMAND} does")
    found = errors[["value", "reason"]].rename(columns={"value": "error"})
    for (metric, variant), some in there.groupby(["metric", "variant"]):
        name = f"{metric}/{variant}" if variant else metric
        if name != "step_error":
            found[name] = some.set_index(place)["value"]
    return found.reset_index()


def _within(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of ``share`` (%): of the cells of a run, those whose error is at most ``off`` (%)."""
    cells, template = _cells(rows), rows.iloc[0]

    def made() -> Iterator[dict]:
        for run, some in cells.groupby("run", sort=False):
            off = np.sort(some["error"].abs())
            for count, error in enumerate(off, start=1):
                value = 100 * count / len(off)
                yield template.to_dict() | dict(
                    metric="share", value=value, unit="%", off=error, run=run, status="ok",
                    reason="", variant="", seed=-1,
                )  # fmt: skip

    return pd.DataFrame(made())


def _narrow(rows: pd.DataFrame) -> pd.DataFrame:
    """Names of networks in short lines, for columns; errors with a digit behind the point."""
    names = {
        name: textwrap.fill(name, 6, break_long_words=False)
        for name in rows["network"].dropna().unique()
    }
    networks = rows["network"].replace(names)
    return rows.assign(network=networks, value=rows["value"].round(1))


predicted = Figure(
    title="Predicted and measured steps",
    shows=_HOW + "Left, every cell; right, how many cells have at most so large an error. "
    "“Live” ran with this report. " + _recorded(),
    of=[checked, checked_recorded],
    style=STYLE,
    chart=[
        Scatter(
            Rows("step_time", MEASURED, experiment="checked"),
            x="predicted_time",
            y=("method", "network"),
            colour="bandwidth",
            marker="workers",
            panels="run",
            log="xy",
            equal=NEAR,
            width=1.4,
        ),
        Lines(
            Rows("share", prepare=_within),
            x="off",
            colour="run",
            steps=True,
            limits=(0, 100),
            width=0.7,
        ),
    ],
)

predicted_errors = Figure(
    title="Error of the predicted step",
    shows="How much longer (+) or shorter (−) the step was predicted than it was, in % of what it "
    "was, recorded. Reasons are in the table of all cells.",
    of=[checked_recorded],
    style=STYLE,
    chart=Heat(
        Rows("step_error", {"run": "recorded"}, experiment="checked", prepare=_narrow),
        x="network",
        y="method",
    ),
)


@table(
    title="Was the method ranked first the fastest?",
    shows="By network: the method with the shortest predicted step, the one with the shortest "
    "measured step, and how much longer the pick took than that; a pick within 2 % of the "
    "shortest is as good. Then how the predicted order of all methods agrees with the measured one "
    "(Kendall's τ: 1 is the same order, 0 none), and the errors. Steps only: what a step teaches "
    "differs between methods.",
    of=[checked, checked_recorded],
)
def picks(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """A line a run and network, and one for all networks of a run."""
    cells, made = _cells(rows), []
    for run, of_run in cells.groupby("run", sort=False):
        lines = [
            {"run": run, "network": network} | picked(some)
            for network, some in of_run.groupby("network", sort=False)
        ]
        costs = [line["pick took longer by, %"] for line in lines]
        right = sum(cost <= 100 * SURE for cost in costs)
        made += lines
        made.append(
            {
                "run": run,
                "network": f"all {len(lines)}",
                "ranked first": "",
                "was first": f"the pick, {right} of {len(lines)} times",
                "pick took longer by, %": f"{np.mean(costs):.1f} in the mean, "
                f"{max(costs):.1f} at most",
                "Kendall's τ": rounded(np.mean([line["Kendall's τ"] for line in lines])),
            }
            | _errors(of_run)
        )
    return pd.DataFrame(made)


def picked(cells: pd.DataFrame) -> dict[str, object]:
    """Of the cells of one network: which was predicted first, which was, and what that cost."""
    predicted = cells.set_index("method")["predicted_time/measured"]
    measured = cells.set_index("method")["step_time/measured"]
    pick, best = predicted.idxmin(), measured.idxmin()
    return {
        "ranked first": pick,
        "was first": best,
        "pick took longer by, %": rounded(100 * (measured[pick] / measured[best] - 1)),
        "Kendall's τ": rounded(tau(predicted.to_numpy(), measured.to_numpy())),
    } | _errors(cells)


def tau(one: np.ndarray, other: np.ndarray) -> float:
    """Kendall's τ of two rankings: pairs in the same order less those in the other, over all."""
    first, second = np.triu_indices(len(one), 1)
    agree = np.sign(one[first] - one[second]) * np.sign(other[first] - other[second])
    return float(agree.mean()) if len(agree) else 1.0


def _errors(cells: pd.DataFrame) -> dict[str, object]:
    off = cells["error"].abs()
    return {
        "cells": len(cells),
        "error, middle cell, %": rounded(off.median()),
        "error, 9 of 10 cells below, %": rounded(off.quantile(0.9)),
        f"within {100 * NEAR:.0f} %": int((off <= 100 * NEAR).sum()),
    }


@table(
    title="Predicted and measured steps: all cells",
    shows="Milliseconds of a step, predicted → measured, whole and in parts: computing, coding and "
    "exchange as they follow on each other, and what of the messages was hidden behind computing. "
    "Measured coding is encoding and the decoding that the step waited for; what is hidden has the "
    "rest of decoding in it. Carried: the share of the rate that TCP can get, which gloo got for "
    "a single message. Processors: how busy they were with anything, and with these workers. An "
    f"error above {100 * NEAR:.0f} % has its reason, counted. " + _recorded(),
    of=[checked, checked_recorded],
)
def predicted_table(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """A line a cell, failed ones too."""
    cells = _cells(rows)

    def both(metric: str) -> list[str]:
        pairs = zip(cells[f"{metric}/predicted"], cells[f"{metric}/measured"], strict=True)
        return [f"{1e3 * one:.1f} → {1e3 * other:.1f}" for one, other in pairs]

    made = {
        "run": cells["run"],
        "network": cells["network"],
        "method": cells["method"],
        "messages": cells["messages"].astype(int),
        **{metric.removesuffix("_time").replace("compress", "coding"): both(metric)
           for metric in PARTS},
        "error, %": [f"{error:+.1f}" for error in cells["error"]],
        "carried, %": cells["carried_share"].round(0),
        "processors, %": [
            f"{busy:.0f}, {own:.0f}"
            for busy, own in zip(cells["busy_share"], cells["own_share"], strict=True)
        ],
        "reason": cells["reason"],
    }  # fmt: skip
    failed = rows[(rows["experiment"] == "checked") & (rows["status"] == "failed")]
    lost = failed[["run", "network", "method", "reason"]]
    every = pd.concat([pd.DataFrame(made).astype(object), lost], ignore_index=True)
    return every.fillna("")
