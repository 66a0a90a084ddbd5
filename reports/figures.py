"""The documents' figures, redrawn from our results with what the documents print marked in them.

Each figure is one function ``(results, claims) -> Figure``: ``results`` is the tidy table of one
paper and scale, ``claims`` its claims, of which the printed values are marked. Bands and bars
are 95 % intervals of the mean over seeds (Student's t); a line without a band has fewer than three
seeds. Colour says what is sent, dashes say over which bandwidth.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from reports.book import Estimate, number, t_interval
from reports.claims import Claim
from testbed.training.summary import WINDOW

# The colours of Okabe and Ito, which colour-blind readers can tell apart. The page gives each a
# lighter twin on dark backgrounds, and draws INK in the colour of its text.
INK = "#1f2328"
PALETTE = {
    "blue": "#0072b2",
    "orange": "#d98c00",
    "green": "#009e73",
    "vermillion": "#d55e00",
    "purple": "#b5679a",
    "sky": "#3d9fd6",
}
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
_STYLE = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.linewidth": 0.8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "grid.color": INK,
    "grid.alpha": 0.14,
    "grid.linewidth": 0.7,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "slowlink",
}


def save(fig: Figure, path: str | Path) -> Path:
    """Write a figure as SVG; the same figure gives the same bytes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_STYLE):
        fig.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    return path


def figure4(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Figure 4 of GeoMX: test accuracy against time, GeoMX and MXNET at two bandwidths."""
    printed = _printed(claims, "Table 1", "communication_time", model="resnet50_v1")
    return _race(results, "figure4", "MXNET-1G", printed, "printed (Table 1)")


def figure6(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Figure 6 of GeoMX: test accuracy against time by compression and WAN bandwidth."""
    printed = _printed(claims, "Table 2", "convergence_time")
    return _race(results, "figure6", "GeoMX-1G", printed, "printed (Table 2)")


def mixed(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Full against mixed synchronisation: test accuracy against time."""
    return _race(results, "mixed", "full-sync", {}, "")


def table1(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Table 1 of GeoMX as dots: printed time, least physical time and ours, cell by cell."""
    rows = _rows(results, "table1", "communication_time")
    times = rows.pivot_table("value", ["model", "case"], "variant", sort=False)
    bounds = _rows(results, "table1", "bound_time").pivot_table(
        "value", ["model", "case"], "variant", sort=False
    )
    printed = _printed_cells(claims, "Table 1", "communication_time")
    models = list(dict.fromkeys(model for model, _ in times.index))
    y = {cell: n + 0.9 * models.index(cell[0]) for n, cell in enumerate(times.index)}
    with mpl.rc_context(_STYLE):
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
        _log_axis(ax, "seconds a round communicates")
        ax.set_yticks(list(y.values()), [case for _, case in y])
        ax.invert_yaxis()
        ax.tick_params(axis="y", length=0)
        for model in models:
            top = min(at for cell, at in y.items() if cell[0] == model)
            ax.text(1.015, top + 1.5, model_name(model), transform=ax.get_yaxis_transform(),
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
        _legend(fig, handles, columns=2)
    return fig


def sensitivity(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Round time against the computing time it contains; the printed round time as a line."""
    rows = _rows(results, "sensitivity", "round_time")
    rows = rows.assign(compute=[_compute(variant) for variant in rows["variant"]])
    printed = _printed(claims, "Table 2", "communication_time")
    cases = list(dict.fromkeys(rows["case"]))
    with mpl.rc_context(_STYLE):
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
            _despine(ax)
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
        _legend(fig, handles, columns=2)
    return fig


def accuracy_bytes(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Test accuracy against what one node has sent and received (curves of Figure 6)."""
    point = ["case", "seed", "round"]
    sent = _rows(results, "figure6", "bytes_sent")[[*point, "value"]]
    curves = _rows(results, "figure6", "test_accuracy")[[*point, "value"]]
    curves = curves.merge(sent.rename(columns={"value": "x"}), on=point)
    curves["x"] /= 1e9
    # The same bytes travel whatever the bandwidth: one curve for each compression is enough.
    chosen: dict[str, str] = {}
    for case in dict.fromkeys(curves["case"]):
        chosen.setdefault(case.partition(" ")[2], case)
    names = {case: codec or "dense" for codec, case in chosen.items()}
    curves = curves[curves["case"].isin(names)].replace({"case": names})
    with mpl.rc_context(_STYLE):
        fig = Figure(figsize=(7.2, 3.7), layout="constrained")
        ax = fig.subplots()
        _curves(ax, curves, "x")
        _log_axis(ax, "GB sent and received by a node, whole training so far")
        ax.set_ylabel("test accuracy, %")
        _legend(fig, _handles(list(dict.fromkeys(curves["case"]))), columns=4)
    return fig


FIGURES: dict[str, Callable[..., Figure]] = {
    "table1": table1,
    "figure4": figure4,
    "figure6": figure6,
    "accuracy_bytes": accuracy_bytes,
    "sensitivity": sensitivity,
    "mixed": mixed,
}


def _race(
    results: pd.DataFrame,
    experiment: str,
    reference: str,
    printed: dict[str, float],
    printed_name: str,
) -> Figure:
    """Accuracy against time, and beside it the time to the target relative to one case."""
    curves = _rows(results, experiment, "test_accuracy")
    curves = curves.assign(x=curves["time_s"] / 3600)
    cases = list(dict.fromkeys(curves["case"]))
    with mpl.rc_context(_STYLE):
        fig = Figure(figsize=(7.6, 3.4 + 0.16 * len(cases)), layout="constrained")
        left, right = fig.subplots(1, 2, width_ratios=[1.55, 1])
        _curves(left, curves, "x")
        target = _rows(results, experiment, "target_accuracy", needed=False)["value"]
        for value in target.unique():
            left.axhline(value, color=INK, linewidth=1, linestyle=(0, (1, 2)))
        _log_axis(left, "simulated hours")
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
        _legend(fig, handles, columns=2 if len(cases) < 5 else 3)
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
    _despine(ax)
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
    times = _rows(results, experiment, "time_to_target", needed=False)
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
    _log_axis(ax, f"times that of {reference}")
    ax.set_yticks(range(len(cases)), cases, fontsize=8)
    ax.set_ylim(len(cases) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    ax.set_title("time to the target")


def _rows(results: pd.DataFrame, experiment: str, metric: str, needed: bool = True) -> pd.DataFrame:
    rows = results[
        (results["experiment"] == experiment)
        & (results["metric"] == metric)
        & (results["status"] == "ok")
    ]
    if needed and rows.empty:
        raise ValueError(f"no results of experiment {experiment!r} with metric {metric!r}")
    return rows


def _printed(claims: Sequence[Claim], where: str, metric: str, model: str = "") -> dict[str, float]:
    cells = _printed_cells(claims, where, metric)
    return {case: value for (name, case), value in cells.items() if not model or name == model}


def _printed_cells(
    claims: Sequence[Claim], where: str, metric: str
) -> dict[tuple[str, str], float]:
    """Printed values of one quantity by (model, case)."""
    return {
        (claim.model, claim.ours.case or ""): float(claim.printed)
        for claim in claims
        if claim.kind == "value" and claim.where == where and claim.ours.metric == metric
    }


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


def _legend(fig: Figure, handles: list[Line2D], columns: int) -> None:
    fig.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=2.8)


def _log_axis(ax: Axes, label: str) -> None:
    ax.set_xscale("log")
    ax.set_xlabel(label)
    _log_ticks(ax.xaxis, *ax.get_xlim())
    _despine(ax)


def _log_ticks(axis: Axis, low: float, high: float) -> None:
    """Round numbers on a logarithmic axis: 1, 2, 5 within two decades, else powers of ten."""
    decades = math.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.2 else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.set_minor_formatter(NullFormatter())


def _despine(ax: Axes) -> None:
    sns.despine(ax=ax)
    ax.grid(True)
    ax.set_axisbelow(True)


def _compute(variant: str) -> float:
    match = re.fullmatch(r"compute=([0-9.eE+-]+)", variant)
    if match is None:
        raise ValueError(f"sensitivity: variant {variant!r} is not compute=<seconds>")
    return float(match.group(1))


def model_name(model: str) -> str:
    """A model as documents write it: ``resnet50_v1`` is ResNet-50."""
    match = re.fullmatch(r"resnet(\d+)_v\d", model)
    return f"ResNet-{match.group(1)}" if match else model
