"""Training over DDS (documentation of distributed-dds-ai-infra): its figures and tables.

Colour says which mode or case. All eight pictures are lost in the stored text; their numbers, from
the plotting scripts and logs of the document's public repository, stand beside ours as diamonds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from reports import figures
from reports.book import Estimate, number, t_interval
from reports.claims import Claim
from reports.figures import INK, PALETTE
from reports.papers import Shown

DENSE = "fp32_dense"
"""The mode that the others are held against."""
_MODES = {
    "fp32_dense": "vermillion",
    "int8_dense": "orange",
    "fp32_sparse": "blue",
    "int8_sparse": "green",
    "fp32_sparse from model": "blue",
    "int8_sparse from model": "green",
    "fp32_sparse EF": "blue",
    "int8_sparse EF": "green",
}
_CASES = {
    "fp32": "orange",
    "baseline": "vermillion",
    "DGC": "blue",
    "DGC momentum": "green",
    "centralised": "purple",
}
_WAYS = {"raw dds": "vermillion", "dds": "blue", "gloo": "purple"}
_DOING = {"compute": "sky", "compress": "orange", "wait": "vermillion", "other": "purple"}
_LAYOUT = {
    "fp32_dense": "4 D",
    "int8_dense": "20 + D + 4 ⌈D / C⌉",
    "fp32_sparse": "12 + 8 k",
    "int8_sparse": "20 + 5 k + 4 ⌈k / C⌉",
}
_PARTS = {"indices": "purple", "values": "blue", "scales and head": "orange"}
_PRINTED = {"linestyle": "", "marker": "D", "markersize": 6, "markeredgewidth": 1.4}
_PRINTED |= {"markerfacecolor": "none", "markeredgecolor": INK}
_LIVE = {"linestyle": "", "marker": "s", "markersize": 6.5, "markeredgewidth": 1.3}
_LIVE |= {"markerfacecolor": "none"}
_DASHED = (0, (4, 2))
_FEEDBACK, _CONTROL = " EF", " from model"
"""Ends of the names of modes with error feedback, and of the same modes without it."""
_MIB, _MS = 2.0**-20, 1e3
_TARGET = 0.7
"""Of raw DDS writes' throughput, what ours should reach."""


def ddp_figure1(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Data parallel, Figure 1: bytes a step, counted as the document counts, and one way."""
    counted = _rows(results, "ddp", "bytes_counted_as_printed", "", _CASES)
    one_way = _rows(results, "ddp", "bytes_per_step", "", _CASES)
    labels = [label for label in _ordered(counted, _CASES) if _mean(counted, label) > 0]
    with figures.style():
        fig = Figure(figsize=(7.4, 0.42 * len(labels) + 1.5), layout="constrained")
        ax = fig.subplots()
        for y, label in enumerate(labels):
            colour = PALETTE[_CASES[label]]
            ax.plot(_MIB * _mean(one_way, label), y, color=colour, **_LIVE)
        _dots(ax, counted, labels, _CASES, _MIB, _ddp_printed(claims, 1))
        figures.log_axis(ax, "MiB a step")
        _name_rows(ax, labels)
        _legend(fig, "counted as there", "one way")
    return fig


def ddp_figure2(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Data parallel, Figure 2: accuracy by step, and at the end."""
    return _learning(results, "ddp", _CASES, "step", _ddp_printed(claims, 2), "judged_accuracy")


def ddp_figure3(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Data parallel, Figure 3: the longest wait."""
    return _waits(results, "max_wait", _ddp_printed(claims, 3), "longest wait, ms")


def ddp_figure4(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Data parallel, Figure 4: the mean wait."""
    return _waits(results, "mean_wait", _ddp_printed(claims, 4), "mean wait, ms")


def profile(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """What a data-parallel step is made of, and how the longest wait compares with the mean."""
    step = _rows(results, "ddp", "step_time", "", _CASES)
    waits = {
        "mean wait": _rows(results, "ddp", "mean_wait", "", _CASES),
        "longest wait": _rows(results, "ddp", "max_wait", "", _CASES),
        "longest after 100 steps": _rows(results, "ddp", "warm_max_wait", "", _CASES, needed=False),
    }
    doing = {name: _rows(results, "ddp", f"{name}_time", "", _CASES) for name in list(_DOING)[:2]}
    doing["wait"] = waits["mean wait"]
    labels = _ordered(step, _CASES)
    marks = dict(zip(waits, "o^s", strict=True))
    with figures.style():
        fig = Figure(figsize=(9.2, 0.42 * len(labels) + 1.6), layout="constrained")
        left, right = fig.subplots(1, 2, sharey=True, width_ratios=[1.25, 1])
        for y, label in enumerate(labels):
            parts = {name: _mean(rows, label) for name, rows in doing.items()}
            parts["other"] = max(0.0, _mean(step, label) - sum(parts.values()))
            begin = 0.0
            for name, seconds in parts.items():
                left.barh(y, _MS * seconds, 0.66, begin, color=PALETTE[_DOING[name]],
                          edgecolor=INK, linewidth=0.3)  # fmt: skip
                begin += _MS * seconds
            for name, rows in waits.items():
                value = _mean(rows, label)
                if value > 0:
                    right.plot(_MS * value, y, marks[name], color=PALETTE[_CASES[label]],
                               markersize=6)  # fmt: skip
        left.set_xlabel("ms a step")
        figures.despine(left)
        left.set_title("a  a step, in the mean")
        figures.log_axis(right, "ms")
        right.set_title("b  waiting")
        _name_rows(left, labels)
        _name_rows(right, labels)
        handles: list[Line2D | Patch] = [
            Patch(facecolor=PALETTE[colour], edgecolor=INK, linewidth=0.3, label=name)
            for name, colour in _DOING.items()
        ]
        handles += [
            Line2D([], [], linestyle="", marker=mark, color=INK, markersize=6, label=name)
            for name, mark in marks.items()
        ]
        figures.legend(fig, handles, columns=4)
    return fig


def fl_figure1(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Federated, Figure 1: what a client sends a round, and what is put on the wire for it."""
    sent = _rows(results, "federated", "uplink_bytes", "", _MODES)
    wire = _rows(results, "federated", "link_bytes", "", _MODES)
    labels = _ordered(sent, _MODES)
    with figures.style():
        fig = Figure(figsize=(7.4, 0.4 * len(labels) + 1.4), layout="constrained")
        ax = fig.subplots()
        for y, label in enumerate(labels):
            ax.plot(_MIB * _mean(wire, label), y, color=PALETTE[_MODES[label]], **_LIVE)
        _dots(ax, sent, labels, _MODES, _MIB, _fl_printed(claims, "MB"))
        figures.despine(ax)
        ax.set_xlim(left=0)
        ax.set_xlabel("MiB a client and round")
        _name_rows(ax, labels)
        _legend(fig, "payload", "with all heads, on the link")
    return fig


def fl_figure2(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Federated, Figure 2: how long an update of each client is under way."""
    clients = ["client0", "client1"]
    times = {c: _rows(results, "federated", "communication_time", c, _MODES) for c in clients}
    labels = _ordered(pd.concat(times.values()), _MODES)
    with figures.style():
        fig = Figure(figsize=(9.0, 0.4 * len(labels) + 1.4), layout="constrained")
        axes = fig.subplots(1, 2, sharex=True, sharey=True)
        for ax, client in zip(axes, clients, strict=True):
            printed = _fl_printed(claims, f"c{client[-1]}")
            _dots(ax, times[client], labels, _MODES, _MS, printed)
            ax.set_title(client)
        for ax in axes:
            figures.log_axis(ax, "ms")
            _name_rows(ax, labels)
        _legend(fig, "ours")
    return fig


def fl_figure3(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Federated, Figure 3: how long a round takes, and the training in it."""
    times = _rows(results, "federated", "round_time", "", _MODES)
    train = _rows(results, "federated", "train_time", "", _MODES, needed=False)
    labels = _ordered(times, _MODES)
    with figures.style():
        fig = Figure(figsize=(7.4, 0.4 * len(labels) + 1.4), layout="constrained")
        ax = fig.subplots()
        for y, label in enumerate(labels):
            if label in set(train["case"]):
                ax.plot(_mean(train, label), y, color=PALETTE[_MODES[label]], **_LIVE)
        _dots(ax, times, labels, _MODES, 1.0, _fl_printed(claims, "rt", 1 / _MS))
        figures.despine(ax)
        ax.set_xlim(left=0)
        ax.set_xlabel("seconds a round")
        _name_rows(ax, labels)
        _legend(fig, "ours", "of which a client trains")
    return fig


def fl_figure4(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Federated, Figure 4: accuracy by round, and after the last."""
    return _learning(results, "federated", _MODES, "round", _fl_printed(claims, "acc"))


def sizes(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """What a payload is made of, and how much of a round's traffic compression touches."""
    rows = _rows(results, "federated_bytes", "uplink_bytes", "", _LAYOUT)
    up = rows.set_index("case")["value"]
    rows = _rows(results, "federated_bytes", "downlink_bytes", "", _LAYOUT)
    down = rows.set_index("case")["value"]
    labels = [label for label in _LAYOUT if label in up]
    with figures.style():
        fig = Figure(figsize=(9.4, 0.5 * len(labels) + 1.5), layout="constrained")
        left, right = fig.subplots(1, 2, sharey=True)
        for y, label in enumerate(labels):
            begin = 0.0
            for name, nbytes in _made_of(label, up).items():
                left.barh(y, _MIB * nbytes, 0.62, begin, color=PALETTE[_PARTS[name]], linewidth=0)
                begin += _MIB * nbytes
            both = up[label] + down[label]
            for begin, nbytes, alpha in ((0, up[label], 1.0), (up[label], down[label], 0.35)):
                right.barh(y, _MIB * nbytes, 0.62, _MIB * begin, color=PALETTE["green"],
                           alpha=alpha, linewidth=0)  # fmt: skip
            if DENSE in up:
                shares = up[label] / up[DENSE], both / (up[DENSE] + down[DENSE])
                for ax, end, share in zip((left, right), (up[label], both), shares, strict=True):
                    ax.text(_MIB * end, y, f"  {share:.3f}", va="center", fontsize=8.5)
        names = [f"{label}\n{_LAYOUT[label]}" for label in labels]
        for ax, title, most in (
            (left, "a  up: the payload", up.max()),
            (right, "b  up and down", (up + down).max()),
        ):
            figures.despine(ax)
            _name_rows(ax, names)
            ax.set_xlabel("MiB a client and round")
            ax.set_xlim(0, 1.18 * _MIB * most)
            ax.set_title(title)
        handles = [
            *(Patch(color=PALETTE[colour], label=name) for name, colour in _PARTS.items()),
            Patch(color=PALETTE["green"], linewidth=0, label="up"),
            Patch(color=PALETTE["green"], alpha=0.35, linewidth=0, label="down, always fp32"),
        ]
        figures.legend(fig, handles, columns=5)
    return fig


def transport(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Throughput of an all-gather over DDS beside raw writes and gloo, by size and ranks."""
    rows = figures.rows(results, "transport", "throughput")
    rows = rows.assign(mib=rows["case"].str.extract(r"^(\d+) MiB$")[0].astype(float))
    ranks = sorted(rows["workers"].unique())
    with figures.style():
        fig = Figure(figsize=(max(5.4, 3.4 * len(ranks)), 3.2), layout="constrained")
        axes = fig.subplots(1, len(ranks), sharey=True, squeeze=False).ravel()
        for ax, size in zip(axes, ranks, strict=True):
            here = rows[rows["workers"] == size]
            for way, colour in _WAYS.items():
                one = here[here["variant"] == way].sort_values("mib")
                ax.plot(one["mib"], one["value"], "o-", color=PALETTE[colour], markersize=4.5,
                        linewidth=1.6)  # fmt: skip
            raw = here[here["variant"] == "raw dds"].sort_values("mib")
            ax.plot(raw["mib"], _TARGET * raw["value"], color=INK, linestyle=_DASHED, linewidth=1)
            figures.log_axis(ax, "MiB of each process")
            ax.set_xticks(sorted(here["mib"].unique()))
            ax.xaxis.set_minor_locator(NullLocator())
            ax.set_title(f"{size} processes")
        axes[0].set_ylim(bottom=0)
        axes[0].set_ylabel("GB/s put in by all")
        handles = [
            Line2D([], [], color=PALETTE[colour], marker="o", markersize=4.5, label=way)
            for way, colour in _WAYS.items()
            if way in set(rows["variant"])
        ]
        target = f"{_TARGET:.0%} of raw"
        handles.append(Line2D([], [], color=INK, linestyle=_DASHED, linewidth=1, label=target))
        figures.legend(fig, handles, columns=4)
    return fig


def non_iid(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Accuracy after the last round where clients have unlike data, beside alike ones."""
    rows = figures.rows(results, "non_iid", "final_accuracy")
    labels = _ordered(rows, _MODES)
    alike = _rows(results, "federated_seeds", "final_accuracy", "", _MODES, needed=False)
    panels = {"alike": alike[alike["case"].isin(labels)]}
    panels |= dict(tuple(rows.groupby("variant", sort=False)))
    panels = {title: one for title, one in panels.items() if len(one)}
    with figures.style():
        fig = Figure(figsize=(9.0, 0.42 * len(labels) + 1.4), layout="constrained")
        axes = fig.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False).ravel()
        for ax, (title, one) in zip(axes, panels.items(), strict=True):
            _dots(ax, one, labels, _MODES)
            figures.despine(ax)
            _name_rows(ax, labels)
            ax.set_xlabel("%")
            ax.set_title(title)
        _legend(fig, "ours")
    return fig


def _waits(results: pd.DataFrame, metric: str, printed: Mapping[str, float], label: str) -> Figure:
    rows = _rows(results, "ddp", metric, "", _CASES)
    later = _rows(results, "ddp", f"warm_{metric}", "", _CASES, needed=False)
    labels = [case for case in _ordered(rows, _CASES) if _mean(rows, case) > 0]
    with figures.style():
        fig = Figure(figsize=(7.4, 0.42 * len(labels) + 1.5), layout="constrained")
        ax = fig.subplots()
        for y, case in enumerate(labels):
            if case in set(later["case"]):
                ax.plot(_MS * _mean(later, case), y, color=PALETTE[_CASES[case]], **_LIVE)
        _dots(ax, rows, labels, _CASES, _MS, printed)
        figures.log_axis(ax, label)
        _name_rows(ax, labels)
        _legend(fig, "ours", "ours without the first 100 steps")
    return fig


def _learning(
    results: pd.DataFrame,
    experiment: str,
    colours: Mapping[str, str],
    x: str,
    printed: Mapping[str, float],
    end: str = "final_accuracy",
) -> Figure:
    """Accuracy of the runs on real processes as they go on; at the ``end``, also that of seeds."""
    curves = _rows(results, experiment, "test_accuracy", "", colours)
    live = _rows(results, experiment, end, "", colours)
    final = _rows(results, f"{experiment}_seeds", "final_accuracy", "", colours)
    labels = _ordered(pd.concat([live, final]), colours)
    with figures.style():
        fig = Figure(figsize=(9.4, max(3.3, 0.42 * len(labels) + 1.5)), layout="constrained")
        left, right = fig.subplots(1, 2, width_ratios=[1.35, 1])
        lines = []
        for label in _ordered(curves, colours):
            one = curves[curves["case"] == label]
            table = one.pivot_table("value", "round", "seed").dropna()
            look = {"color": PALETTE[colours[label]], "linewidth": 1.7}
            look["linestyle"] = _DASHED if label.endswith(_FEEDBACK) else "-"
            left.plot(table.index, table.mean(axis=1), **look)
            if table.shape[1] > 2:
                band = np.array([t_interval(values) for values in table.to_numpy()]).T
                left.fill_between(table.index, *band, color=look["color"], alpha=0.13, linewidth=0)
            lines.append(Line2D([], [], label=label, **look))
        # The end of training is what is compared: leave the first steep points out.
        late = curves.loc[curves["round"] >= 0.3 * curves["round"].max(), "value"]
        margin = 0.08 * (late.max() - late.min())
        left.set_ylim(late.min() - margin, late.max() + margin)
        left.set(xlabel=x, ylabel="test accuracy, %")
        figures.despine(left)
        left.set_title("a  on real processes")
        for y, label in enumerate(labels):
            if label in set(live["case"]):
                right.plot(_mean(live, label), y, color=PALETTE[colours[label]], **_LIVE)
        _dots(right, final, labels, colours, 1.0, printed)
        figures.despine(right)
        _name_rows(right, labels)
        right.set_xlabel("test accuracy, %")
        right.set_title("b  at the end")
        other = set(final["model"]) - set(live["model"])
        seeds = ", ".join(["seeds in one process", *sorted(other)])
        _legend(fig, seeds, "on real processes", lines)
    return fig


def _dots(
    ax: Axes,
    rows: pd.DataFrame,
    labels: Sequence[str],
    colours: Mapping[str, str],
    times: float = 1.0,
    printed: Mapping[str, float] | None = None,
) -> None:
    """A row a label: each run small, their mean with its interval, the printed number."""
    for y, label in enumerate(labels):
        one = rows[rows["case"] == label]
        if len(one):
            colour, ours = PALETTE[colours[label]], _estimate(one, times)
            ax.plot(times * one["value"], [y] * len(one), "o", color=colour, markersize=3.5,
                    alpha=0.5)  # fmt: skip
            if math.isfinite(ours.interval.low):
                ax.plot([ours.interval.low, ours.interval.high], [y, y], color=colour, linewidth=2,
                        solid_capstyle="butt")  # fmt: skip
            ax.plot(ours.mean, y, "o", color=colour, markersize=6.5)
        if label in (printed or {}):
            ax.plot(printed[label], y, **_PRINTED)


def _legend(fig: Figure, ours: str, hollow: str = "", first: Iterable[Line2D] = ()) -> None:
    """Our dots, the hollow squares where there are any, and the printed diamonds."""
    drawn = {line.get_marker() for ax in fig.axes for line in ax.lines}
    handles = [*first, Line2D([], [], color=INK, marker="o", linestyle="", label=ours)]
    if "s" in drawn:
        handles.append(Line2D([], [], label=hollow, **(_LIVE | {"markeredgecolor": INK})))
    if "D" in drawn:
        handles.append(Line2D([], [], label="recovered from the document's logs", **_PRINTED))
    figures.legend(fig, handles, columns=3 if len(handles) < 7 else 4)


def _name_rows(ax: Axes, names: Sequence[str]) -> None:
    """Name the rows of a chart, the first on top."""
    ax.set_yticks(range(len(names)), list(names), fontsize=8.5)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)


def _rows(
    results: pd.DataFrame,
    experiment: str,
    metric: str,
    variant: str | None,
    labels: Iterable[str],
    needed: bool = True,
) -> pd.DataFrame:
    """Rows of one metric and variant (any if None), of these labels."""
    rows = figures.rows(results, experiment, metric, needed)
    if variant is not None:
        rows = rows[rows["variant"] == variant]
    rows = rows[rows["case"].isin(list(labels))]
    if needed and rows.empty:
        raise ValueError(f"no results of experiment {experiment!r} with metric {metric!r}")
    return rows


def _ordered(rows: pd.DataFrame, labels: Iterable[str]) -> list[str]:
    return [label for label in labels if label in set(rows["case"])]


def _mean(rows: pd.DataFrame, label: str) -> float:
    return float(rows.loc[rows["case"] == label, "value"].mean())


def _estimate(rows: pd.DataFrame, times: float = 1.0) -> Estimate:
    """The mean over seeds with its interval."""
    values = times * rows.set_index("seed")["value"]
    return Estimate.of(values.iloc[0] if list(values.index) == [-1] else values)


def _made_of(label: str, up: pd.Series) -> dict[str, float]:
    """The parts of a payload, in bytes, by its layout; D and k follow from what is sent."""
    dense, total = up[DENSE] / 4, up[label]
    kept = (up["fp32_sparse"] - 12) / 8
    parts = {
        "fp32_dense": {"values": total},
        "int8_dense": {"values": dense},
        "fp32_sparse": {"indices": 4 * kept, "values": 4 * kept},
        "int8_sparse": {"indices": 4 * kept, "values": kept},
    }[label]
    return parts | {"scales and head": total - sum(parts.values())}


def _ddp_printed(claims: Iterable[Claim], figure: int) -> dict[str, float]:
    """Numbers of a data-parallel figure, by case."""
    return _of({c.id: c.printed for c in claims}, _ddp_ids(figure))


def _fl_printed(claims: Iterable[Claim], what: str, times: float = 1.0) -> dict[str, float]:
    """Numbers of a federated figure, by mode."""
    found = _of({c.id: c.printed for c in claims}, _fl_ids(what))
    return {label: times * value for label, value in found.items()}


def _ddp_ids(figure: int) -> dict[str, str]:
    return {"baseline": f"DDS-F0{figure}-base", "DGC": f"DDS-F0{figure}-dgc"}


def _fl_ids(what: str) -> dict[str, str]:
    return {label: f"DDS-FL-{label}-{what}" for label in _LAYOUT}


def _of(printed: Mapping[str, str], ids: Mapping[str, str]) -> dict[str, float]:
    return {label: float(printed[name]) for label, name in ids.items() if name in printed}


def _table(
    labels: Iterable[str], printed: Mapping[str, str], columns: Iterable[tuple]
) -> pd.DataFrame:
    """A line a label; columns are (name, rows, factor, ids of printed numbers or None)."""
    lines = []
    for label in labels:
        line: dict[str, object] = {}
        for name, rows, times, ids in columns:
            one = rows[rows["case"] == label]
            line[name] = str(_estimate(one, times)) if len(one) else ""
            if ids is not None:
                line[f"{name}: there"] = printed.get(ids.get(label, ""), "")
        lines.append({"": label} | line)
    return pd.DataFrame(lines)


def _federated_table(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """The four modes on real processes, and their accuracy over seeds."""
    printed = dict(zip(verdicts["id"], verdicts["printed"], strict=True))
    final = _rows(results, "federated_seeds", "final_accuracy", "", _MODES)

    def live(metric: str, variant: str = "") -> pd.DataFrame:
        return _rows(results, "federated", metric, variant, _MODES, needed=metric == "uplink_bytes")

    columns = [("payload, B", live("uplink_bytes"), 1.0, _fl_ids("bytes"))]
    columns += [
        (f"client{i}, ms", live("communication_time", f"client{i}"), _MS, _fl_ids(f"c{i}"))
        for i in (0, 1)
    ]
    columns += [
        ("round, ms", live("round_time"), _MS, _fl_ids("rt")),
        ("training, ms", live("train_time"), _MS, None),
        ("accuracy, %", final, 1.0, _fl_ids("acc")),
        ("of the live run, %", live("final_accuracy"), 1.0, None),
    ]
    table = _table(_ordered(final, _MODES), printed, columns)
    apart = _apart(results, "federated_seeds", _MODES)
    table["apart from one process"] = [_checked(apart, label) for label in table[""]]
    gained = [_gained(final, label) for label in table[""]]
    at = list(table).index("of the live run, %")
    table.insert(at, "more by feedback, points", gained)
    models = ", ".join(sorted(set(final["model"])))
    names = {"": "mode", "accuracy, %": f"accuracy of {models}, %"}
    return table.rename(columns=names)


def _checked(apart: pd.DataFrame, label: str) -> str:
    """A difference with the model and the rounds that it is of, which are not the accuracy's."""
    rows = apart[apart["case"] == label]
    return "; ".join(
        f"{number(one.value)} ({one.model} after round {one.round})" for one in rows.itertuples()
    )


def _gained(final: pd.DataFrame, label: str) -> str:
    """What error feedback adds to a mode, seed by seed; empty for modes without it."""
    if not label.endswith(_FEEDBACK):
        return ""
    plain = label.removesuffix(_FEEDBACK) + _CONTROL
    with_it, without = (
        final[final["case"] == one].set_index("seed")["value"] for one in (label, plain)
    )
    gain = (with_it - without).dropna()
    return str(Estimate.of(gain)) if len(gain) else ""


def _ddp_table(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """The data-parallel cases on real processes, and their accuracy over seeds."""
    printed = dict(zip(verdicts["id"], verdicts["printed"], strict=True))
    final = _rows(results, "ddp_seeds", "final_accuracy", "", _CASES)

    def live(metric: str) -> pd.DataFrame:
        return _rows(results, "ddp", metric, "", _CASES, needed=metric == "bytes_per_step")

    counted = live("bytes_counted_as_printed")
    columns = [
        ("one way, B", live("bytes_per_step"), 1.0, None),
        ("received in frames, B", live("received_bytes"), 1.0, None),
        ("counted as there, MiB", counted, _MIB, _ddp_ids(1)),
        ("accuracy, %", final, 1.0, _ddp_ids(2)),
        ("of the live run, %", live("judged_accuracy"), 1.0, None),
        ("apart from one process", _apart(results, "ddp_seeds", _CASES), 1.0, None),
        ("longest wait, ms", live("max_wait"), _MS, _ddp_ids(3)),
        ("the same after 100 steps, ms", live("warm_max_wait"), _MS, None),
        ("mean wait, ms", live("mean_wait"), _MS, _ddp_ids(4)),
        ("mean after 100 steps, ms", live("warm_mean_wait"), _MS, None),
        ("step, ms", live("step_time"), _MS, None),
        ("computing, ms", live("compute_time"), _MS, None),
        ("compressing, ms", live("compress_time"), _MS, None),
    ]
    labels = _ordered(pd.concat([counted, final]), _CASES)
    return _table(labels, printed, columns).rename(columns={"": "case"})


def _apart(results: pd.DataFrame, experiment: str, labels: Iterable[str]) -> pd.DataFrame:
    """Largest difference of a parameter between real processes and one process."""
    return _rows(results, experiment, "live_difference", "", labels, needed=False)


def _bytes_table(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Bytes by mode and chunk: payload, what the wire adds, and shares of fp32's."""
    figures.rows(results, "federated_bytes", "uplink_bytes")
    printed = dict(zip(verdicts["id"], verdicts["printed"], strict=True))
    rows = results[(results["experiment"] == "federated_bytes") & (results["status"] == "ok")]
    cells = rows.pivot_table("value", "case", "metric", sort=False)
    lines = []
    for label, one in cells.iterrows():
        plain = label.split(" ")[0]
        lines.append(
            {
                "mode": label,
                "layout, B": _LAYOUT.get(plain, ""),
                "payload, B": number(one["uplink_bytes"]),
                "there": printed.get(f"DDS-FL-{label}-bytes", ""),
                "in segments, B": number(one["frame_bytes"]),
                "on the link, B": number(one["link_bytes"]),
                "answer, B": number(one["downlink_bytes"]),
                "up, of fp32": one["uplink_bytes"] / cells.loc[DENSE, "uplink_bytes"],
                "up and down, of fp32": one["up_and_down_ratio"],
            }
        )
    return pd.DataFrame(lines)


def _transport_table(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """An all-gather of the same payload over DDS, as raw writes and over gloo."""
    figures.rows(results, "transport", "throughput")
    rows = results[(results["experiment"] == "transport") & (results["status"] == "ok")]
    keys = ["workers", "case", "variant"]
    cells = rows.pivot_table("value", keys, "metric", sort=False).reset_index()
    table = pd.DataFrame({"processes": cells["workers"], "of each": cells["case"]})
    table["over"] = cells["variant"]
    table["ms"] = _MS * cells["time"]
    table["GB/s"] = cells["throughput"]
    table["of raw DDS"] = cells["share_of_raw"]
    reached = np.where(cells["share_of_raw"] >= _TARGET, "reached", "missed")
    table[f"target, {_TARGET:.0%} of raw"] = np.where(cells["variant"] == "dds", reached, "")
    return table


FIGURES = {
    "ddp_figure1": ddp_figure1,
    "ddp_figure2": ddp_figure2,
    "ddp_figure3": ddp_figure3,
    "ddp_figure4": ddp_figure4,
    "profile": profile,
    "fl_figure1": fl_figure1,
    "fl_figure2": fl_figure2,
    "fl_figure3": fl_figure3,
    "fl_figure4": fl_figure4,
    "bytes": sizes,
    "non_iid": non_iid,
    "transport": transport,
}
TABLES = {
    "federated": _federated_table,
    "ddp": _ddp_table,
    "bytes": _bytes_table,
    "transport": _transport_table,
}
_RECOVERED = (
    "The picture is lost in the stored text; diamonds are the numbers of the plotting script in "
    "the document's public repository, one run each. "
)
_LIVE_RUN = (
    "Real processes of this machine over Cyclone DDS, every segment authenticated with a fresh "
    "key, one run a row; absolute times are this machine's. "
)
_SEEDS = "each seed small, their mean large with its 95 % interval if there are three. "
_DOTS = "A small dot is one run, a large one the mean with its 95 % interval if there are three. "
PAGE = (
    Shown(
        "figure",
        "ddp_figure1",
        "Data parallel, Figure 1: bytes a step",
        _LIVE_RUN + "Counted as the document counts: what a worker sends, and what both deliver to "
        "it, its own included, which is computed. Squares: what it sends, once. After the warm-up. "
        "The baseline that "
        "is plotted sends eight bits a value, so fp32 stands beside it.",
        _RECOVERED + "Baseline 1.165 MiB, DGC 0.010 MiB. What the baseline sends is not said.",
        "ddp",
    ),
    Shown(
        "figure",
        "ddp_figure2",
        "Data parallel, Figure 2: accuracy",
        "MNIST, after 2,700 steps as there. Lines and squares are the run on real processes; dots "
        "are the same steps in one process, " + _SEEDS + "The two workers train on disjoint halves "
        "of 36,000 images; in the document's code both draw from all of them. DGC is the plotted "
        "one, whose memory has no momentum; DGC momentum corrects the momentum, as the text "
        "describes. Centralised is one process with the batches "
        "of both workers.",
        _RECOVERED + "Baseline 98.07 %, DGC 98.11 %, at step 2699 counted from 0.",
        "ddp_seeds ddp",
    ),
    Shown(
        "figure",
        "ddp_figure3",
        "Data parallel, Figure 3: the longest wait",
        _LIVE_RUN + "The longest wait for other workers' gradients in any step; squares without "
        "the first 100 steps. Before each run its processes take some steps that do not count. The "
        "longest wait is one event of a run, whose cause is not recorded.",
        _RECOVERED + "Baseline 3025 ms, DGC 414 ms, of 2,810 steps.",
        "ddp",
    ),
    Shown(
        "figure",
        "ddp_figure4",
        "Data parallel, Figure 4: the mean wait",
        _LIVE_RUN + "Waiting for other workers' gradients, the mean over steps and workers; "
        "squares without the first 100 steps.",
        _RECOVERED + "Baseline 25.5 ms, DGC 20.8 ms: the bandwidth is not used up.",
        "ddp",
    ),
    Shown(
        "figure",
        "profile",
        "What a data-parallel step is made of",
        _LIVE_RUN + "a, means over steps and workers; waiting is only what is left after "
        "computing. b, mean and longest waits.",
        "",
        "ddp",
    ),
    Shown(
        "table",
        "ddp",
        "Data parallel in numbers",
        _LIVE_RUN
        + "Accuracies are after 2,700 steps, over seeds in one process. Apart: the largest "
        "difference of a parameter when the first steps are repeated in one process, past the "
        "first epoch where DGC warms up; anything but 0 stops the run. Columns "
        '"there" are recovered from the document\'s repository.',
        "",
        "ddp ddp_seeds",
    ),
    Shown(
        "figure",
        "fl_figure1",
        "Federated, Figure 1: bytes a round",
        _LIVE_RUN + "Payloads really sent; squares add the heads of messages, DDS, UDP, IP and "
        "Ethernet, which are computed. This is the way up alone.",
        _RECOVERED + "4.58, 1.15, 0.92 and 0.57 MiB.",
        "federated",
    ),
    Shown(
        "figure",
        "bytes",
        "What is in a payload, and what compression leaves",
        "a, payloads by their layout, with their share of fp32's. Sparse modes still send four "
        "bytes of index a value, so int8_sparse is 12.5 % and not a quarter of 20 %. b, the "
        "controller answers with the whole model in fp32 in every mode.",
        "About 1/4 for eight bits, 20 % for the largest tenth; for both together nothing is said.",
        "federated_bytes",
    ),
    Shown(
        "table",
        "bytes",
        "Bytes in numbers",
        "D = 1,199,882 values, k = ⌊D / 10⌋, chunks of C = 1,024 unless said otherwise. Payloads "
        'are encoded for this; "there" is what the logs of the document\'s repository have.',
        "C = 8,192 by the text. The logged bytes need 1,024.",
        "federated_bytes",
    ),
    Shown(
        "figure",
        "fl_figure2",
        "Federated, Figure 2: communication time",
        _LIVE_RUN + _DOTS + "From a client's publishing its update until the controller has all of "
        "it, by one clock, the mean over rounds.",
        _RECOVERED + "Two machines, of which Client0 takes some 420 ms whatever it sends.",
        "federated",
    ),
    Shown(
        "figure",
        "fl_figure3",
        "Federated, Figure 3: round time",
        _LIVE_RUN + _DOTS + "From the command to train until the next model is on disk and handed "
        "to the senders, the mean over rounds; squares are the training in it. One run does not "
        "tell modes apart that differ by less than rounds do.",
        _RECOVERED + "10.5, 10.0, 9.4 and 9.6 s. By the logs rounds vary by 0.5 to 0.8 s "
        "(standard deviation), more than most of these differ.",
        "federated",
    ),
    Shown(
        "figure",
        "fl_figure4",
        "Federated, Figure 4: accuracy",
        "MNIST. Lines and squares are the run on real processes; dots are rounds in one process, "
        + _SEEDS
        + "Where these name another model, it is a smaller one with as many samples and rounds, "
        "and they compare with each other only. One process is a loop without clock, "
        "network or policy, not the engine on virtual time; its first rounds equal those of the "
        "real processes to the bit, on the document's model and, with feedback, on that of the "
        "seeds, which each run checks. When a round ends is up to the "
        "controller's policy (fedavg). EF feeds back what was not sent, which the document does "
        "not; from model is the same without it. Both send in round 1 what changed from the model, "
        "where the document's sparse modes send a tenth of the weights themselves.",
        _RECOVERED + "98.31, 98.21, 98.12 and 98.17 % after ten rounds. The log has the 98.12 % of "
        "fp32_sparse after nine, and 98.05 % after ten.",
        "federated_seeds federated",
    ),
    Shown(
        "table",
        "federated",
        "Federated in numbers",
        _LIVE_RUN
        + "Accuracies over seeds are of rounds in one process, of the model that is named. More by "
        "feedback: EF less from model, seed by seed. Apart: the largest difference of a parameter "
        "when a few rounds on real processes, of the model in brackets, are repeated in one "
        "process; anything but 0 stops the run. One mode with feedback is checked on the model of "
        "the seeds. Columns "
        '"there" are recovered from the document\'s repository.',
        "",
        "federated federated_seeds",
    ),
    Shown(
        "figure",
        "non_iid",
        "Clients with unlike data",
        _DOTS + "Accuracy after the last round where each client has some labels only, or labels "
        "in shares drawn from a Dirichlet distribution; alike, they draw from all data, as in "
        "Figure 4. From model and EF: without and with error feedback.",
        "Data of clients is not alike, the document says, and tries none.",
        "non_iid federated_seeds",
    ),
    Shown(
        "figure",
        "transport",
        "The transport beside others",
        "Every process sends the same payload to all others on one machine; medians. Raw DDS is "
        "Cyclone writing samples of the same size, which are counted and dropped. Ours "
        "authenticates every segment with a shared secret; without one it does the same work, with "
        "a key that everybody can derive. It is to reach 70 % of raw (dashed); the table says "
        "where it does. Gloo neither authenticates nor finds its peers.",
        "",
        "transport",
    ),
    Shown(
        "table",
        "transport",
        "The transport in numbers",
        "Medians; shares of raw DDS are of throughput, for ours held against the target of 70 %, "
        "with a secret or without.",
        "",
        "transport",
    ),
)
