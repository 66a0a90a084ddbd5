"""GeoMX (Li et al., 2020): its figures and tables.

Colour says what is sent, dashes say over which bandwidth.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

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


FIGURES = {
    "table1": table1,
    "figure4": figure4,
    "figure6": figure6,
    "accuracy_bytes": accuracy_bytes,
    "sensitivity": sensitivity,
    "mixed": mixed,
}
TABLES = {"table1": _table1, "table2": _table2}
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
)
