"""GeoMX (Li et al., 2020): its figures and tables.

Colour says what is sent, dashes say over which bandwidth.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from reports import claims as printed_claims
from reports import figures, tables
from reports.book import Estimate, t_interval
from reports.claims import Claim
from reports.figures import INK, PALETTE
from reports.papers import Shown
from testbed.training.summary import WINDOW

MAIN_VARIANT = "testbed"
"""The way of modelling communication whose numbers are ours; results hold others beside it."""
POINTS_SHOWN = 30
"""Accuracy axes show this many percentage points below the best value."""
_METHOD = {
    "MXNET": "vermillion",
    "": "blue",
    "FP16": "green",
    "BiSparse": "purple",
    "BiSparse+FP16": "orange",
    "full-sync": "blue",
    "mixed": "orange",
}
_DASHES = {
    "1G": "",
    "155M": (5, 2),
    "100M": (5, 1.5, 1, 1.5),
    "50M": (1.5, 1.5),
    "10M": (5, 1.2, 1, 1.2, 1, 1.2),
}

_AGREES = 0.1
_EMULATED = dict(marker="o", linestyle="", markersize=6, color=PALETTE["blue"])
_RECORDED = dict(marker="D", linestyle="", markersize=5.5, markerfacecolor="none",
                 markeredgecolor=INK, markeredgewidth=1.1)  # fmt: skip
_LINK_COLUMNS = {
    "simulated": "simulated, s",
    "emulated": "emulated, s",
    "ratio": "emulated / simulated",
    "cpu": "exchange, %",
    "busy": "processors, %",
    "rate": "links, %",
    "recorded": "recorded, s",
    "recorded_ratio": "recorded / simulated",
    "why": "remark",
}
_DATA = Path(__file__).parents[2] / "data"
_CLAIMS = _DATA / "claims" / "geomx.yaml"
_RECORD = _DATA / "recorded" / "geomx_emulated.json"

_SHORT = {
    "converged accuracy": "accuracy",
    "convergence time": "time",
    "rounds to converge": "rounds",
    "communication time of a round": "a round's latency",
    "raw upload of a node and round": "raw up",
    "raw download of a node and round": "raw down",
    "compressed upload of a node and round": "sent up",
    "compressed download of a node and round": "sent down",
}


def figure4(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Figure 4 of GeoMX: test accuracy against time, GeoMX and MXNET at two bandwidths."""
    printed = figures.printed(claims, "Table 1", "communication_time", model="resnet50_v1")
    return _race(results, "figure4", "MXNET-1G", printed, "printed (Table 1)")


def figure6(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Figure 6 of GeoMX: test accuracy against time by compression and WAN bandwidth."""
    printed = figures.printed(claims, "Table 2", "convergence_time")
    return _race(results, "figure6", "GeoMX-1G", printed, "printed (Table 2)")


def mixed(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Full against mixed synchronisation: test accuracy against time."""
    return _race(results, "mixed", "full-sync", {}, "")


def table1(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Table 1 of GeoMX as dots: printed time, least physical time and ours, cell by cell."""
    rows = figures.rows(results, "table1", "communication_time")
    rows = rows[rows["evidence"] == "simulated"]
    times = rows.pivot_table("value", ["model", "case"], "variant", sort=False)
    bounds = figures.rows(results, "table1", "bound_time").pivot_table(
        "value", ["model", "case"], "variant", sort=False
    )
    printed = figures.printed_cells(claims, "Table 1", "communication_time")
    models = list(dict.fromkeys(model for model, _ in times.index))
    y = {cell: n + 0.9 * models.index(cell[0]) for n, cell in enumerate(times.index)}
    with figures.style():
        fig = Figure(figsize=(7.2, 5.4), layout="constrained")
        ax = fig.subplots()
        blue, red = PALETTE["blue"], PALETTE["vermillion"]
        for cell, at in y.items():
            ours = times.loc[cell]
            ax.plot([ours.min(), ours.max()], [at, at], color=blue, linewidth=3, alpha=0.35,
                    solid_capstyle="butt", zorder=2)  # fmt: skip
            ax.plot(bounds.loc[cell, "duplex"], at, "|", markersize=11, markeredgewidth=2,
                    color=red, zorder=3)  # fmt: skip
            ax.plot(ours[MAIN_VARIANT], at, "o", markersize=6, color=blue, zorder=4)
            if cell in printed:
                ax.plot(printed[cell], at, "D", markersize=5.5, markerfacecolor="none",
                        markeredgecolor=INK, markeredgewidth=1.3, zorder=5)  # fmt: skip
        figures.log_axis(ax, "seconds a round communicates")
        ax.set_yticks(list(y.values()), [case for _, case in y])
        ax.invert_yaxis()
        ax.tick_params(axis="y", length=0)
        for model in models:
            top = min(at for cell, at in y.items() if cell[0] == model)
            ax.text(1.015, top + 1.5, figures.model_name(model), transform=ax.get_yaxis_transform(),
                    va="center", fontweight="bold", fontsize=9)  # fmt: skip
        ax.grid(axis="y", visible=False)
        handles = [
            Line2D([], [], marker="D", linestyle="", markerfacecolor="none", markeredgecolor=INK,
                   label="printed"),
            Line2D([], [], marker="|", linestyle="", markersize=11, markeredgewidth=2,
                   color=red, label="least possible (full duplex)"),
            Line2D([], [], marker="o", linestyle="", color=blue, label="ours"),
            Line2D([], [], color=blue, linewidth=3, alpha=0.35,
                   label="ours, modelled in other ways"),
        ]  # fmt: skip
        figures.legend(fig, handles, columns=2)
    return fig


def sensitivity(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Round time against the computing time it contains; the printed round time as a line."""
    rows = figures.rows(results, "sensitivity", "round_time")
    rows = rows.assign(compute=[_compute(variant) for variant in rows["variant"]])
    printed = figures.printed(claims, "Table 2", "communication_time")
    cases = list(dict.fromkeys(rows["case"]))
    with figures.style():
        fig = Figure(figsize=(7.2, 1.9 * math.ceil(len(cases) / 3) + 0.8), layout="constrained")
        axes = fig.subplots(
            math.ceil(len(cases) / 3), 3, sharex=True, sharey=True, squeeze=False
        ).ravel()
        for ax, case in zip(axes, cases, strict=False):
            colour, _ = _look(case)
            one = rows[rows["case"] == case]
            sns.lineplot(one, x="compute", y="value", ax=ax, color=colour, linewidth=2,
                         marker="o", markersize=5, markeredgewidth=0,
                         errorbar=t_interval)  # fmt: skip
            if case in printed:
                ax.axhline(printed[case], color=INK, linewidth=1.1, linestyle=(0, (3, 2)))
            ax.set_title(case, fontsize=8.5)
            ax.set(xlabel="", ylabel="")
            figures.despine(ax)
        for ax in axes[len(cases) :]:
            ax.set_visible(False)
        axes[0].set_ylim(0, 1.05 * max(rows["value"].max(), *printed.values(), 0))
        axes[min(3 * ((len(cases) - 1) // 3) + 1, len(cases) - 1)].set_xlabel(
            "seconds of computing"
        )
        axes[3 * (len(cases) // 6)].set_ylabel("seconds a round")
        handles = [
            Line2D([], [], color=INK, marker="o", markersize=5, linewidth=2, label="ours"),
            Line2D([], [], color=INK, linewidth=1.1, linestyle=(0, (3, 2)),
                   label="printed in Table 2"),
        ]  # fmt: skip
        figures.legend(fig, handles, columns=2)
    return fig


def accuracy_bytes(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Test accuracy against what one node has sent and received (curves of Figure 6)."""
    point = ["case", "seed", "round"]
    sent = figures.rows(results, "figure6", "bytes_sent")[[*point, "value"]]
    curves = figures.rows(results, "figure6", "test_accuracy")[[*point, "value"]]
    curves = curves.merge(sent.rename(columns={"value": "x"}), on=point)
    curves["x"] /= 1e9
    # The same bytes travel whatever the bandwidth: one curve for each compression is enough.
    chosen: dict[str, str] = {}
    for case in dict.fromkeys(curves["case"]):
        chosen.setdefault(case.partition(" ")[2], case)
    names = {case: codec or "dense" for codec, case in chosen.items()}
    curves = curves[curves["case"].isin(names)].replace({"case": names})
    with figures.style():
        fig = Figure(figsize=(7.2, 3.7), layout="constrained")
        ax = fig.subplots()
        _curves(ax, curves, "x")
        figures.log_axis(ax, "GB sent and received by a node, whole training so far")
        ax.set_ylabel("test accuracy, %")
        figures.legend(fig, _handles(list(dict.fromkeys(curves["case"]))), columns=4)
    return fig


def emulated(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Emulated to simulated time: the cells of Tables 1 and 2, and other exchanges."""
    parts = {
        "Tables 1 and 2": _links(results, "emulated", "communication_time"),
        "exchanges": _links(results, "agreement", "completion_time"),
    }
    why = " ".join(dict.fromkeys(r for cells in parts.values() for r in cells["failed"] if r))
    tallest = max(1, *map(len, parts.values()))
    with figures.style():
        fig = Figure(figsize=(8.6, 0.22 * tallest + 1.4), layout="constrained")
        axes = fig.subplots(1, 2, sharex=True)
        for ax, (title, cells) in zip(axes, parts.items(), strict=True):
            ax.axvspan(1 - _AGREES, 1 + _AGREES, color=INK, alpha=0.1, linewidth=0)
            ax.axvline(1, color=INK, linewidth=0.9, alpha=0.6)
            for y, one in enumerate(cells.itertuples()):
                for ratio, look in ((one.recorded_ratio, _RECORDED), (one.ratio, _EMULATED)):
                    if math.isfinite(ratio):
                        ax.plot(ratio, y, **look)
            figures.despine(ax)
            names = [
                f"T{one.variant[-1]} {figures.model_name(one.model)} {one.case}"
                if one.variant
                else one.case
                for one in cells.itertuples()
            ]
            ax.set_yticks(range(len(cells)), names, fontsize=7.5)
            ax.set_ylim(tallest - 0.5, -0.5)
            ax.tick_params(axis="y", length=0)
            ax.grid(axis="y", visible=False)
            ax.set_xlabel("emulated / simulated")
            ax.set_title(
                f"{title}: not run here" if why and cells["emulated"].isna().all() else title
            )
        low, high = axes[0].get_xlim()
        axes[0].set_xlim(min(low, 1 - 2 * _AGREES), max(high, 1 + 2 * _AGREES))
        band = Rectangle((0, 0), 1, 1, color=INK, alpha=0.1, linewidth=0, label="within 10 %")
        handles = [Line2D([], [], label="emulated here", **_EMULATED),
                   Line2D([], [], label="recorded", **_RECORDED), band]  # fmt: skip
        figures.legend(fig, handles, columns=3)
    return fig


def system(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Test loss by round: the trainer in virtual time as lines, real processes as dots."""
    rows = figures.rows(results, "system", "test_loss")
    cases = list(dict.fromkeys(rows["case"]))
    live = set(rows.loc[rows["variant"] == "live", "case"])
    colours = {case: PALETTE[_METHOD[case.removeprefix("GeoMX").strip()]] for case in cases}
    with figures.style():
        fig = Figure(figsize=(7.2, 3.6), layout="constrained")
        ax = fig.subplots()
        for (case, variant), one in rows.groupby(["case", "variant"], sort=False):
            how = dict(marker="o", linestyle="") if variant == "live" else dict(linewidth=1.8)
            ax.plot(one["round"], one["value"], color=colours[case], markersize=5, **how)
        figures.despine(ax)
        ax.set_xlabel("rounds")
        ax.set_ylabel("test loss")
        handles = [Line2D([], [], color=colours[case], linewidth=2, label=case) for case in cases]
        handles.append(Line2D([], [], color=INK, marker="o", linestyle="", markersize=5,
                              label="real processes" if live else "real processes: not run here")
        )  # fmt: skip
        figures.legend(fig, handles, columns=3)
    return fig


def _race(
    results: pd.DataFrame,
    experiment: str,
    reference: str,
    printed: dict[str, float],
    printed_name: str,
) -> Figure:
    """Accuracy against time, and beside it the time to the target relative to one case."""
    curves = figures.rows(results, experiment, "test_accuracy")
    curves = curves.assign(x=curves["time_s"] / 3600)
    cases = list(dict.fromkeys(curves["case"]))
    with figures.style():
        fig = Figure(figsize=(7.6, 3.4 + 0.16 * len(cases)), layout="constrained")
        left, right = fig.subplots(1, 2, width_ratios=[1.55, 1])
        _curves(left, curves, "x")
        target = figures.rows(results, experiment, "target_accuracy", needed=False)["value"]
        for value in target.unique():
            left.axhline(value, color=INK, linewidth=1, linestyle=(0, (1, 2)))
        figures.log_axis(left, "simulated hours")
        left.set_ylabel("test accuracy, %")
        left.set_title("accuracy over time")
        _relative(right, results, experiment, cases, reference, printed)
        handles = _handles(cases)
        if len(target):
            style = (0, (1, 2))
            handles.append(Line2D([], [], color=INK, linewidth=1, linestyle=style, label="target"))
        if printed:
            handles.append(
                Line2D([], [], marker="D", linestyle="", markerfacecolor="none",
                       markeredgecolor=INK, label=printed_name)
            )  # fmt: skip
        figures.legend(fig, handles, columns=2 if len(cases) < 5 else 3)
    return fig


def _curves(ax: Axes, curves: pd.DataFrame, x: str) -> None:
    """One line a case: running means on a shared grid of ``x``; its band: the seeds' interval."""
    for case, rows in curves.groupby("case", sort=False):
        colour, dashes = _look(case)
        seeds = [_smooth(one.sort_values(x)) for _, one in rows.groupby("seed")]
        # Only where every seed has values: no seed is extrapolated.
        low, high = max(one[x].min() for one in seeds), min(one[x].max() for one in seeds)
        grid = np.unique(np.concatenate([one[x] for one in seeds]))
        grid = grid[(grid >= low) & (grid <= high) & (grid > 0)]
        table = pd.concat(
            pd.DataFrame({x: grid, "value": np.interp(grid, one[x], one["value"])}) for one in seeds
        )
        sns.lineplot(table, x=x, y="value", ax=ax, color=colour, linewidth=1.9,
                     dashes=False, linestyle=(0, dashes) if dashes else "-",
                     errorbar=t_interval if len(seeds) > 2 else None,
                     err_kws={"alpha": 0.2, "linewidth": 0})  # fmt: skip
    figures.despine(ax)
    # The end of training is what is compared: leave the first steep points out.
    shown = curves[curves[x] > 0]
    top = shown["value"].max()
    shown = shown[shown["value"] >= top - POINTS_SHOWN]
    margin = 0.04 * (top - shown["value"].min())
    ax.set_ylim(shown["value"].min() - margin, top + margin)
    ax.set_xlim(shown[x].min() / 1.1, shown[x].max() * 1.1)


def _smooth(curve: pd.DataFrame) -> pd.DataFrame:
    """The running mean that is held against the target, and that a reader can follow."""
    return curve.assign(value=curve["value"].rolling(WINDOW, min_periods=1).mean())


def _relative(
    ax: Axes,
    results: pd.DataFrame,
    experiment: str,
    cases: Sequence[str],
    reference: str,
    printed: dict[str, float],
) -> None:
    times = figures.rows(results, experiment, "time_to_target", needed=False)
    by_seed = {case: rows.set_index("seed")["value"] for case, rows in times.groupby("case")}
    for index, case in enumerate(cases):
        colour, _ = _look(case)
        if case in by_seed and reference in by_seed:
            ratio = (by_seed[case] / by_seed[reference]).dropna()
            if len(ratio):
                ours = Estimate.of(ratio, "ratio")
                low, high = ours.interval.low, ours.interval.high
                if math.isfinite(low):
                    ax.plot([low, high], [index, index], color=colour, linewidth=2.4)
                ax.plot(ours.mean, index, marker="o", markersize=6.5, color=colour)
        if case in printed and reference in printed:
            ax.plot(printed[case] / printed[reference], index, marker="D", markersize=6,
                    markerfacecolor="none", markeredgecolor=INK, markeredgewidth=1.2)  # fmt: skip
    ax.axvline(1, color=INK, linewidth=0.9, alpha=0.6)
    figures.log_axis(ax, f"times that of {reference}")
    ax.set_yticks(range(len(cases)), cases, fontsize=8)
    ax.set_ylim(len(cases) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    ax.set_title("time to the target")


def _look(case: str) -> tuple[str, tuple[float, ...] | str]:
    """Colour and dashes of a case such as ``GeoMX-155M BiSparse``."""
    system, _, rest = case.partition("-")
    link, _, codec = rest.partition(" ")
    for name in (case, system, codec if link in _DASHES else case):
        if name in _METHOD:
            return PALETTE[_METHOD[name]], _DASHES.get(link, "")
    return PALETTE["blue" if case == "dense" else "sky"], ""


def _handles(cases: Sequence[str]) -> list[Line2D]:
    handles = []
    for case in cases:
        colour, dashes = _look(case)
        style = (0, dashes) if dashes else "-"
        handles.append(Line2D([], [], color=colour, linewidth=2, linestyle=style, label=case))
    return handles


def _compute(variant: str) -> float:
    match = re.fullmatch(r"compute=([0-9.eE+-]+)", variant)
    if match is None:
        raise ValueError(f"sensitivity: variant {variant!r} is not compute=<seconds>")
    return float(match.group(1))


def _table1(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Table 1, one row a cell: ``row`` is the model, ``quantity`` the column."""
    cells = tables.cells(verdicts, "Table 1")
    cells["row"] = cells["model"].map(figures.model_name)
    cells["quantity"] = cells["case"].where(cells["case"] != "", cells["metric"])
    return cells[tables.COLUMNS].reset_index(drop=True)


def _table2(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Table 2, one row a cell: ``row`` is the setting, ``quantity`` the column."""
    cells = tables.cells(verdicts, "Table 2")
    cells["row"], cells["quantity"] = cells["case"], cells["metric"].replace(_SHORT)
    return cells[tables.COLUMNS].reset_index(drop=True)


def _emulated(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Tables 1 and 2 printed, simulated and emulated, one row a cell."""
    printed = printed_claims.load(_CLAIMS)
    cell = ["variant", "model", "case"]
    real = _links(results, "emulated", "communication_time").set_index(cell)
    parts = []
    for name, where in (("table1", "Table 1"), ("table2", "Table 2")):
        rows = figures.rows(results, name, "communication_time")
        rows = rows[(rows["variant"] == MAIN_VARIANT) & (rows["evidence"] == "simulated")]
        theirs = figures.printed_cells(printed, where, "communication_time")
        keys = list(zip(rows["model"], rows["case"], strict=True))
        ours = real.reindex([(name, *key) for key in keys]).reset_index(drop=True)
        parts.append(
            pd.DataFrame(
                {
                    "table": where,
                    "model": rows["model"].map(figures.model_name).to_numpy(),
                    "setting": rows["case"].to_numpy(),
                    "printed, s": [theirs.get(key, math.nan) for key in keys],
                    "simulated, s": rows["value"].to_numpy(),
                }
            ).join(ours[list(_LINK_COLUMNS)[1:]])
        )
    return pd.concat(parts, ignore_index=True).rename(columns=_LINK_COLUMNS).fillna({"remark": ""})


def _agreement(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Exchanges on real processes beside their simulation."""
    cells = _links(results, "agreement", "completion_time")
    size = figures.rows(results, "agreement", "vector", needed=False).set_index("case")["value"]
    cells.insert(1, "MB", cells["case"].map(size))
    told = [name for name in _LINK_COLUMNS if not name.startswith("recorded")]
    return cells[["case", "MB", "workers", *told]].rename(
        columns={"case": "exchange"} | _LINK_COLUMNS
    )


def _system(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """The system as processes beside the trainer in virtual time, one row a system."""
    rows = results[results["experiment"] == "system"]
    if rows.empty:
        raise ValueError("no results of experiment 'system'")
    lines = []
    for case, one in rows.groupby("case", sort=False):
        last = one.sort_values("round").groupby(["variant", "metric"])["value"].last()
        failed = one.loc[one["status"] == "failed", "reason"]
        lines.append(
            {
                "system": case,
                "rounds": int(one["round"].max()),
                "accuracy live, %": last.get(("live", "test_accuracy"), math.nan),
                "accuracy virtual, %": last.get(("virtual", "test_accuracy"), math.nan),
                "losses differ by": last.get(("live", "live_difference"), math.nan),
                "a round live, s": last.get(("live", "mean_round_time"), math.nan),
                "a round virtual, s": last.get(("virtual", "mean_round_time"), math.nan),
                "remark": "; ".join(map(_not_run, failed.unique())),
            }
        )
    return pd.DataFrame(lines)


def _kept() -> str:
    """Which cells are recorded, in words; empty if none are."""
    if not _RECORD.is_file():
        return ""
    record = json.loads(_RECORD.read_text())
    cores = f"{record['cores']} core{'s' * (record['cores'] > 1)}"
    return (
        f"Recorded cells ran once, at full size, by “{record['command']}” on {cores} of "
        f"{record['processor']}, and are kept in the repository; a record is stale where the "
        "simulation has changed by more than 1 % since. "
    )


def _not_run(why: str) -> str:
    """What could not be tried is told from what was and failed."""
    return f"{'not run here' if why.startswith('cannot emulate links') else 'failed'}: {why}"


def _links(results: pd.DataFrame, experiment: str, metric: str) -> pd.DataFrame:
    """One row a cell over emulated links: seconds simulated, emulated (nan if not run here) and
    recorded, ratios of the latter to the first, the exchange's share of the processors' time, how
    busy they were and the least link rate (%), why it did not run (``failed``), and that or what
    was measured where times differ (``why``)."""
    rows = results[results["experiment"] == experiment]
    if rows.empty:
        raise ValueError(f"no results of experiment {experiment!r}")
    # Rows of a cell's links are told by their ends after the cell's own name.
    rows = rows.assign(case=rows["case"].str.split(": ").str[0])
    lines = []
    for (variant, model, case), one in rows.groupby(["variant", "model", "case"], sort=False):
        good = one[one["status"] == "ok"]

        def values(metric: str, evidence: str, good: pd.DataFrame = good) -> np.ndarray:
            chosen = (good["metric"] == metric) & (good["evidence"] == evidence)
            return good.loc[chosen, "value"].to_numpy()

        def value(metric: str, evidence: str) -> float:
            found = values(metric, evidence)
            return float(found[0]) if len(found) else math.nan

        rates = values("link_rate", "emulated") / values("link_rate_expected", "emulated")
        failed = "; ".join(dict.fromkeys(one.loc[one["status"] == "failed", "reason"]))
        told = one.loc[one["reason"] != "", ["evidence", "reason"]].drop_duplicates()
        ran = {"emulated": "", "recorded": "recorded: "}
        why = [f"{ran[row.evidence]}{row.reason}" for row in told.itertuples()]
        lines.append(
            {
                "variant": variant,
                "model": model,
                "case": case,
                "workers": int(one["workers"].iloc[0]),
                "simulated": value(metric, "simulated"),
                "emulated": value(metric, "emulated"),
                "ratio": value("emulated_over_simulated", "emulated"),
                "cpu": value("cpu_share", "emulated"),
                "busy": value("busy_share", "emulated"),
                "rate": 100 * float(rates.min()) if len(rates) else math.nan,
                "recorded": value(metric, "recorded"),
                "recorded_ratio": value("emulated_over_simulated", "recorded"),
                "failed": failed,
                "why": _not_run(failed) if failed else "; ".join(why),
            }
        )
    return pd.DataFrame(lines)


FIGURES = {
    "table1": table1,
    "figure4": figure4,
    "figure6": figure6,
    "accuracy_bytes": accuracy_bytes,
    "sensitivity": sensitivity,
    "mixed": mixed,
    "emulated": emulated,
    "system": system,
}
TABLES = {
    "table1": _table1,
    "table2": _table2,
    "emulated": _emulated,
    "agreement": _agreement,
    "system": _system,
}
PAGE = (
    Shown(
        "table",
        "table1",
        "Table 1: communication time of a round",
        "Least possible: full-duplex links used without pause. Ours: the fluid simulation of "
        "push, then pull, on the machines and links of the document.",
        "GeoMX at 155 Mbit/s takes 78 to 87 % of MXNET's time at 1 Gbit/s.",
        "table1",
    ),
    Shown(
        "table",
        "table2",
        "Table 2: compression and bandwidth",
        "Bytes are those of the real tensors; times are simulated; accuracy, rounds and hours "
        "come from training (below paper scale of a small stand-in, for fewer rounds), with "
        "95 % intervals in brackets.",
        "BiSparse with FP16 converges in 5.8 h over the WAN, MXNET in 22.8 h in the LAN.",
        "table2",
    ),
    Shown(
        "figure",
        "table1",
        "Table 1 as a picture",
        "Time a round communicates, by model, system and bandwidth. Diamonds are printed, red "
        "ticks the least that full-duplex links allow, dots ours; the pale bar spans our other "
        "ways of modelling: phases overlapped or not, ideal links, servers on their own hosts.",
        "GeoMX at 155 Mbit/s communicates faster than MXNET at 1 Gbit/s for every model.",
        "table1",
    ),
    Shown(
        "figure",
        "figure4",
        "Figure 4: GeoMX and MXNET",
        "Left, test accuracy over simulated time (mean of five evaluations). Right, time to "
        "the target accuracy relative "
        "to MXNET-1G; diamonds are the printed round times in the same proportion.",
        "GeoMX is faster at equal bandwidth, and slightly faster over the WAN than MXNET in "
        "the LAN. The printed curves are not available as numbers.",
        "figure4",
    ),
    Shown(
        "figure",
        "figure6",
        "Figure 6: compression and bandwidth",
        "Left, test accuracy over simulated time (mean of five evaluations). Right, time to "
        "the target accuracy relative "
        "to GeoMX-1G; diamonds are the printed convergence times in the same proportion.",
        "Sparsification and half precision each shorten training, sparsification more; both "
        "together take another 40 % off.",
        "figure6",
    ),
    Shown(
        "figure",
        "accuracy_bytes",
        "Accuracy against bytes",
        "Test accuracy (mean of five evaluations) over what one node has sent and received "
        "since training began.",
        "BiSparse saves 90 % of the data and BiSparse with FP16 nearly 95 %, with at most "
        "0.2 points of accuracy lost.",
        "figure6",
    ),
    Shown(
        "figure",
        "sensitivity",
        "How much of a round is computing?",
        "Time of a round against the computing time it contains, for each row of Table 2. "
        "Where our line crosses the dashed one, that computing time explains what is printed.",
        "Table 2 prints one time a round and calls it communication.",
        "sensitivity",
    ),
    Shown(
        "figure",
        "mixed",
        "Full and mixed synchronisation",
        "Left, test accuracy over simulated time (mean of five evaluations). Right, time to "
        "the target accuracy relative "
        "to full synchronisation.",
        "Mixed synchronisation is offered for uneven clusters; no numbers are printed.",
        "mixed",
    ),
    Shown(
        "table",
        "emulated",
        "Real links: Tables 1 and 2",
        "One round of a cell with a process a node, its real bytes over real sockets and through "
        "links that the kernel shapes, beside the simulation of the same messages: dense vectors "
        "of full size that are really added, or the payloads of real gradients. Exchange is the "
        "share of all processors' time that its processes took, processors how busy these were "
        "with anything, the kernel's work for links included; links the least share of its rate "
        "that a link carried before the round. Computing and compressing are not in these times. "
        "Part of the agreement is built in: pairs of nodes that wait for a link take turns, which "
        "is the simulator's max-min sharing. Windows are held to what queues can take, so that TCP "
        "loses nothing, as in the simulator; the exchanges below also have cells without either. "
        + _kept(),
        "The document shaped its testbed's links with Wondershaper.",
        "emulated",
    ),
    Shown(
        "figure",
        "emulated",
        "Real links: emulated over simulated",
        "Emulated to simulated time, of the cells of Tables 1 and 2 and of other exchanges.",
        "",
        "emulated agreement",
    ),
    Shown(
        "table",
        "agreement",
        "Real links: other exchanges",
        "Exchanges on real processes over shaped links, whose sums were checked, beside the "
        "simulation of the same plans. Emulated is the median of the repeats. “One queue a link” "
        "is TCP as it comes: nothing shares a link evenly or limits windows, and full queues drop.",
        "",
        "agreement",
    ),
    Shown(
        "figure",
        "system",
        "Real links: the system trains",
        "Test loss of one small model without BatchNorm, trained by workers, site servers, a "
        "global server, a master and schedulers as processes over shaped links (dots), and by the "
        "trainer in virtual time (lines) with the same seeds.",
        "",
        "system",
    ),
    Shown(
        "table",
        "system",
        "Real links: the system beside virtual time",
        "Losses differ by is the largest difference between test losses of the same round. "
        "A live round takes this machine's processors for computing and compressing, a virtual one "
        "those that the document names.",
        "",
        "system",
    ),
)
