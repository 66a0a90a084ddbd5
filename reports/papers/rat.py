"""RAT (Wan, Hu and Zhang, 2020): its figures and tables.

Colour and marker say which exchange. The document's Figures 6 and 7 are not available as numbers,
so what its text says of them is marked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from reports import figures
from reports.book import Estimate, number
from reports.claims import Claim
from reports.figures import INK, PALETTE
from reports.papers import Shown

_LOOK = {
    "PS": (PALETTE["vermillion"], "s"),
    "Ring": (PALETTE["blue"], "o"),
    "RAT": (PALETTE["green"], "^"),
    "RAT barrier": (PALETTE["orange"], "D"),
}
_OTHER = (PALETTE["sky"], "o")
_DOTTED = (0, (1, 2))
_DASHED = (0, (4, 2))
_CELL = r"(?P<method>.+) (?P<o>[\d.]+):1 (?P<g>[\d.]+)G"
_PAUSED = r"(?P<method>.+) k=(?P<k>\d+) d=(?P<d>[\d.]+)ms"
_TOLERANCE = 0.10
"""What is within this share of a printed ratio agrees with it, as in the rules of the verdicts."""


def figure6(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Figure 6: completion time against oversubscription, and the ratios that the text prints."""
    cells = _split(figures.rows(results, "figure6", "completion_time"), _CELL)
    main = cells[cells["variant"] == "balanced"]
    rates = sorted(cells["g"].unique())
    with figures.style():
        fig = Figure(figsize=(8.6, 3.7), layout="constrained")
        *axes, last = fig.subplots(1, len(rates) + 1, width_ratios=[1] * len(rates) + [1.15])
        low, high = cells["value"].min() / 1.4, cells["value"].max() * 1.4
        for ax, rate in zip(axes, rates, strict=True):
            for variant, one in cells[cells["g"] == rate].groupby("variant", sort=False):
                solid = variant == "balanced"
                _lines(ax, one, "o", style="-" if solid else _DOTTED, marked=solid)
            ax.set_ylim(low, high)
            _log_log(ax, "oversubscription, n:1", "seconds" if ax is axes[0] else "")
            _ticks(ax, cells["o"])
            ax.set_title(f"{rate:g} Gbit/s")
        ratios = main[main["g"] == rates[-1]].pivot_table("value", "o", "method")
        ratios = ratios.div(ratios["RAT"], axis=0).melt(ignore_index=False).reset_index()
        _lines(last, ratios[ratios["method"] != "RAT"], "o")
        for name, text in (("RAT-F6a", "PS"), ("RAT-F6b", "Ring")):
            value = _printed(claims, name)
            if value is not None:
                last.axhline(value, color=_LOOK[text][0], linewidth=1.2, linestyle=_DASHED)
                text_at = f"{number(value)}\nprinted,\non average"
                last.text(1.02, value, text_at, va="center", fontsize=8,
                          color=_LOOK[text][0], transform=last.get_yaxis_transform())  # fmt: skip
        last.set_ylim(min(0.8, ratios["value"].min() / 1.1), 40)
        _log_log(last, "oversubscription, n:1", "")
        _ticks(last, cells["o"])
        last.set_title("times RAT's")
        handles = _handles(dict.fromkeys(main["method"]))
        handles.append(Line2D([], [], color=INK, linewidth=1.2, linestyle=_DOTTED,
                              label="hashed paths (ECMP)"))  # fmt: skip
        figures.legend(fig, handles, columns=5)
    return fig


def pipelining(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """RAT's completion time against the chunks that its vector is cut into."""
    pattern = r"RAT chunks=(?P<chunks>\d+)"
    ours = _split(figures.rows(results, "pipelining", "normalised_time"), pattern)
    formula = figures.rows(results, "pipelining", "fill_formula", needed=False)
    formula = _split(formula, pattern)
    limits = figures.rows(results, "pipelining", "limit").groupby("variant")["value"].first()
    colours = dict(zip(ours["variant"].unique(), itertools.cycle(PALETTE.values()), strict=False))
    with figures.style():
        fig = Figure(figsize=(5.6, 3.4), layout="constrained")
        ax = fig.subplots()
        handles = []
        for variant, colour in colours.items():
            one = ours[ours["variant"] == variant].sort_values("chunks")
            ax.plot(one["chunks"], one["value"], "o", color=colour, markersize=6)
            line = formula[formula["variant"] == variant].sort_values("chunks")
            ax.plot(line["chunks"], line["value"], color=INK, linewidth=1, linestyle=_DASHED)
            ax.axhline(limits[variant], color=colour, linewidth=1, linestyle=_DOTTED)
            handles += [
                Line2D([], [], color=colour, marker="o", linestyle="", label=f"RAT at {variant}"),
                Line2D([], [], color=colour, linewidth=1, linestyle=_DOTTED,
                       label="its most loaded link"),
            ]  # fmt: skip
        if len(formula):
            handles.append(Line2D([], [], color=INK, linewidth=1, linestyle=_DASHED,
                                  label="with the pipeline's filling"))  # fmt: skip
        figures.log_axis(ax, "chunks")
        _ticks(ax, ours["chunks"])
        ax.set_ylabel("time, vector / card's rate")
        figures.legend(fig, handles, columns=2)
    return fig


def latency(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """The latency of a message at which Ring is as much slower as printed, and what less does."""
    needed = _split(figures.rows(results, "latency", "needed_latency"), _CELL.split(") ", 1)[1])
    ratios = figures.rows(results, "latency", "ring_over_rat", needed=False)
    ratios = _split(ratios, _CELL.split(") ", 1)[1])
    printed = _printed(claims, "RAT-F6b")
    with figures.style():
        fig = Figure(figsize=(7.6, 3.5), layout="constrained")
        left, right = fig.subplots(1, 2)
        looks = dict(zip(sorted(needed["g"].unique()), ["blue", "orange", "green"], strict=False))
        for rate, colour in looks.items():
            one = needed[needed["g"] == rate].sort_values("workers")
            left.plot(one["workers"], 1e6 * one["value"], "o-", color=PALETTE[colour], linewidth=2)
        _log_log(left, "workers", "µs a message")
        _ticks(left, needed["workers"])
        left.set_title(f"Ring to RAT is {number(printed)}" if printed else "")
        fastest = ratios[ratios["g"] == ratios["g"].max()]
        hops = sorted(fastest["variant"].unique(), key=_microseconds)
        shades = np.linspace(0.35, 1, max(len(hops), 1))
        for hop, shade in zip(hops, shades, strict=False):
            one = fastest[fastest["variant"] == hop].sort_values("workers")
            right.plot(one["workers"], one["value"], "o-", color=PALETTE["purple"], alpha=shade,
                       linewidth=2)  # fmt: skip
            right.annotate(f"{_microseconds(hop):g} µs", one[["workers", "value"]].iloc[-1], (6, 0),
                           textcoords="offset points", va="center", fontsize=8)  # fmt: skip
        if printed is not None:
            right.axhline(printed, color=INK, linewidth=1.1, linestyle=_DASHED)
        if hops:
            right.set_xlim(fastest["workers"].min() / 1.2, fastest["workers"].max() * 2)
        figures.log_axis(right, "workers")
        _ticks(right, needed["workers"])
        right.set_title(f"Ring to RAT at {fastest['g'].max():g} Gbit/s" if hops else "")
        handles = [
            Line2D([], [], color=PALETTE[colour], marker="o", label=f"{rate:g} Gbit/s")
            for rate, colour in looks.items()
        ]
        if printed is not None:
            handles.append(Line2D([], [], color=INK, linewidth=1.1, linestyle=_DASHED,
                                  label=f"printed: {number(printed)}"))  # fmt: skip
        figures.legend(fig, handles, columns=3)
    return fig


def figure7(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Figure 7 over the grid of k and d: Ring's slowdown and Ring to RAT, what fits outlined."""
    slowdowns = _split(figures.rows(results, "figure7", "slowdown"), _PAUSED)
    ring = _means(slowdowns[slowdowns["method"] == "Ring"])
    nodes = slowdowns["workers"].iloc[0]
    times = _split(figures.rows(results, "figure7", "completion_time"), _PAUSED).dropna(subset="k")
    times = times.pivot_table("value", ["d", "k", "seed"], "method")
    ratio = _means((times["Ring"] / times["RAT"]).rename("value").reset_index())
    near = {
        "Ring's slowdown": (ring, _printed(claims, "RAT-F7a"), PALETTE["orange"]),
        "Ring to RAT": (ratio, _printed(claims, "RAT-F7b"), PALETTE["vermillion"]),
    }
    inside = {
        title: (np.abs(table / value - 1) <= _TOLERANCE).to_numpy()
        for title, (table, value, _) in near.items()
        if value is not None
    }
    chosen = figures.rows(results, "figure7_joint", "paused_nodes", needed=False)["value"]
    period = figures.rows(results, "figure7_joint", "redraw_period", needed=False)["value"]
    with figures.style():
        fig = Figure(figsize=(8.6, 0.34 * len(ring) + 1.7), layout="constrained")
        axes = fig.subplots(1, 2, sharey=True)
        handles = []
        for ax, (title, (table, value, colour)) in zip(axes, near.items(), strict=True):
            _heat(ax, table)
            ax.set(title=title, xlabel=f"k, nodes paused of {nodes}", ylabel="")
            if value is not None:
                _outline(ax, inside[title], colour, 2.2)
                handles.append(Line2D([], [], color=colour, linewidth=2.2,
                                      label=f"within 10 % of {number(value)}"))  # fmt: skip
            if len(inside) == 2:
                _outline(ax, np.logical_and(*inside.values()), INK, 3.2)
            if len(chosen) and len(period):
                x = list(table.columns).index(chosen.iloc[0])
                y = int(np.argmin(np.abs(table.index - 1e3 * period.iloc[0])))
                ax.plot(x, y, marker="s", markersize=20, markerfacecolor="none",
                        markeredgecolor=INK, markeredgewidth=1.6)  # fmt: skip
        axes[0].set_ylabel("d, ms between draws")
        if len(inside) == 2:
            handles.append(Line2D([], [], color=INK, linewidth=3.2, label="both"))
        if len(chosen):
            handles.append(Line2D([], [], marker="s", linestyle="", markersize=9,
                                  markerfacecolor="none", markeredgecolor=INK,
                                  label="nearest to both"))  # fmt: skip
        if handles:
            figures.legend(fig, handles, columns=4)
    return fig


def exchanges(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Every exchange against oversubscription, the fastest at the highest first."""
    rows = figures.rows(results, "exchanges", "normalised_time")
    rows = _split(rows, r"(?P<method>.+) (?P<o>[\d.]+):1")
    table = rows.pivot_table("value", "method", "o")
    table = table.sort_values(list(table.columns[::-1]))
    with figures.style():
        fig = Figure(figsize=(5.8, 0.3 * len(table) + 1), layout="constrained")
        ax = fig.subplots()
        _heat(ax, table)
        ax.set(xlabel="oversubscription, n:1", ylabel="")
    return fig


def survival(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """How much pausing nodes slow every exchange."""
    rows = figures.rows(results, "survival", "slowdown")
    ours = {case: _estimate(one) for case, one in rows.groupby("case")}
    ours = dict(sorted(ours.items(), key=lambda item: item[1].mean))
    with figures.style():
        fig = Figure(figsize=(6.4, 0.3 * len(ours) + 1), layout="constrained")
        ax = fig.subplots()
        for y, (case, one) in enumerate(ours.items()):
            _dot(ax, one, y, *_LOOK.get(case, _OTHER))
        figures.log_axis(ax, "times its own time without pauses")
        _rows_of(ax, ours)
    return fig


def packet(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """ns-3 to fluid simulation, cell by cell, with 10 % marked."""
    cells = _packet_cells(results)
    faults = list(dict.fromkeys(cells["faults"]))
    with figures.style():
        tallest = cells["faults"].value_counts().max()
        fig = Figure(figsize=(8.2, 0.24 * tallest + 1.3), layout="constrained")
        axes = fig.subplots(1, len(faults), sharex=True, squeeze=False).ravel()
        for ax, fault in zip(axes, faults, strict=True):
            shown = cells[cells["faults"] == fault]
            ax.axvspan(1 - _TOLERANCE, 1 + _TOLERANCE, color=INK, alpha=0.1, linewidth=0)
            ax.axvline(1, color=INK, linewidth=0.9, alpha=0.6)
            for y, one in enumerate(shown.itertuples()):
                _dot(ax, one.ratio, y, *_LOOK.get(one.method, _OTHER))
            figures.despine(ax)
            _rows_of(ax, [f"{one.method} {one.o:g}:1" for one in shown.itertuples()])
            ax.set_ylim(tallest - 0.5, -0.5)
            ax.set_title({"free": "no faults", "paused": "nodes pausing"}.get(fault, fault))
            ax.set_xlabel("ns-3 / fluid")
        band = Rectangle((0, 0), 1, 1, color=INK, alpha=0.1, linewidth=0, label="within 10 %")
        figures.legend(fig, [band, *_handles(dict.fromkeys(cells["method"]))], columns=6)
    return fig


def disturbances(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """What a failed uplink, a burst and higher-priority traffic cost."""
    rows = figures.rows(results, "disturbances", "slowdown")
    kinds = ["failed link", "burst", "priority"]
    looks = dict(zip(kinds, [("vermillion", "s"), ("orange", "o"), ("blue", "D")], strict=True))
    rows = _split(rows, rf"(?P<method>.+) (?P<kind>{'|'.join(kinds)})")
    methods = list(dict.fromkeys(rows["method"]))
    with figures.style():
        fig = Figure(figsize=(6.4, 0.4 * len(methods) + 1.4), layout="constrained")
        ax = fig.subplots()
        for (method, kind), one in rows.groupby(["method", "kind"], sort=False):
            colour, marker = looks[kind]
            y = methods.index(method) + 0.2 * (kinds.index(kind) - 1)
            _dot(ax, _estimate(one), y, PALETTE[colour], marker)
        ax.axvline(1, color=INK, linewidth=0.9, alpha=0.6)
        figures.despine(ax)
        ax.set_xlabel("times its own time without")
        _rows_of(ax, methods)
        figures.legend(fig, _handles(kinds, {k: (PALETTE[c], m) for k, (c, m) in looks.items()}), 3)
    return fig


def asymmetric(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Even and weighted loads over RAT's trees where the network is not symmetric."""
    pattern = r"(?P<split>even|weighted) (?P<scenario>.+)"
    times = _split(figures.rows(results, "asymmetric", "completion_time"), pattern)
    bounds = _split(figures.rows(results, "asymmetric", "bound_time"), pattern)
    scenarios = list(dict.fromkeys(times["scenario"]))
    looks = {"even": (PALETTE["orange"], "o"), "weighted": (PALETTE["blue"], "^")}
    with figures.style():
        fig = Figure(figsize=(6.4, 0.55 * len(scenarios) + 1.4), layout="constrained")
        ax = fig.subplots()
        for rows, tick in ((bounds, True), (times, False)):
            for one in rows.itertuples():
                colour, marker = looks[one.split]
                y = scenarios.index(one.scenario) + (0.14 if one.split == "weighted" else -0.14)
                size = {"markersize": 12, "markeredgewidth": 2} if tick else {"markersize": 6.5}
                ax.plot(1e3 * one.value, y, "|" if tick else marker, color=colour, **size)
        figures.despine(ax)
        ax.set_xlim(left=0)
        ax.set_xlabel("ms")
        _rows_of(ax, scenarios)
        handles = _handles(["even", "weighted"], looks)
        handles.append(Line2D([], [], marker="|", linestyle="", color=INK, markersize=11,
                              markeredgewidth=2, label="least for these loads"))  # fmt: skip
        figures.legend(fig, handles, columns=3)
    return fig


def scale(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """What simulating one exchange costs as workers grow."""
    cells = _scale_cells(results)
    with figures.style():
        fig = Figure(figsize=(7.6, 3.5), layout="constrained")
        left, right = fig.subplots(1, 2)
        for ax, column, label in (
            (left, "wall_time", "seconds to simulate"),
            (right, "speed", "transfers a second"),
        ):
            _lines(ax, cells.assign(value=cells[column]), "workers")
            _log_log(ax, "workers", "")
            _ticks(ax, cells["workers"])
            ax.set_title(label)
        figures.legend(fig, _handles(dict.fromkeys(cells["method"])), columns=3)
    return fig


def _table1(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Table 1 as counted on the plans, beside the inferred formulas, for every shape."""
    schemes = dict.fromkeys(figures.rows(results, "table1", "chain")["case"])
    found = results[(results["experiment"] == "table1") & (results["status"] == "ok")]
    shapes = dict.fromkeys(found["variant"])
    found = found.pivot_table("value", ["variant", "case"], "metric")
    layers = [layer for layer in ("rack", "pod", "zone") if f"egress_{layer}" in found]
    counted = {layer: f"egress_{layer}" for layer in layers} | {"chain": "chain"}
    lines = []
    for shape in shapes:
        here = found.loc[shape]
        least = {layer: here[f"least_{layer}"].max() for layer in layers}
        lines.append({"exchange": "least possible", "shape": shape} | least)
        for scheme in schemes:
            if scheme not in here.index:
                continue
            one, line, differs = here.loc[scheme], {"exchange": scheme, "shape": shape}, []
            for name, metric in counted.items():
                line[name], formula = one[metric], one.get(f"{metric}_formula", math.nan)
                line[f"{name} formula"] = formula
                if math.isfinite(formula) and not math.isclose(line[name], formula, rel_tol=1e-6):
                    differs.append(name)
            line |= {"whole chain": one["chain_whole"], "card": one["node_egress"]}
            lines.append(line | {"differs": ", ".join(differs) or "no"})
    pairs = [column for name in counted for column in (name, f"{name} formula")]
    columns = ["exchange", "shape", *pairs, "whole chain", "card", "differs"]
    return pd.DataFrame(lines, columns=columns).fillna({"differs": ""})


def _packet(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Fluid simulation beside ns-3, with the reason where they differ, and what each costs."""
    cells = _packet_cells(results)
    wall = figures.rows(results, "packet", "wall_time", needed=False)
    wall = wall.pivot_table("value", "case", "variant").reindex(cells["case"])
    wall = wall.reindex(columns=["fluid", "ns-3"]).reset_index(drop=True)
    return pd.DataFrame(
        {
            "exchange": cells["method"],
            "oversubscription": [f"{o:g}:1" for o in cells["o"]],
            "faults": cells["faults"],
            "fluid, s": cells["fluid"],
            "ns-3, s": cells["ns-3"],
            "ns-3 / fluid": [one.mean for one in cells["ratio"]],
            "reason": cells["reason"],
            "fluid takes, s": wall["fluid"],
            "ns-3 takes, s": wall["ns-3"],
            "times faster": wall["ns-3"] / wall["fluid"],
        }
    )


def _scale(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """What simulating one exchange costs."""
    cells = _scale_cells(results)
    named = {
        "method": "exchange",
        "workers": "workers",
        "transfers": "transfers",
        "plan_time": "to plan, s",
        "wall_time": "to simulate, s",
        "speed": "transfers a second",
        "peak_memory": "memory, MB",
    }
    return cells[[name for name in named if name in cells]].rename(columns=named)


def _packet_cells(results: pd.DataFrame) -> pd.DataFrame:
    """One row a cell: fluid and ns-3 seconds (means), their ratio as an Estimate, the reason."""
    rows = figures.rows(results, "packet", "completion_time")
    lines = []
    for case, one in rows.groupby("case", sort=False):
        by_kind = {kind: part.set_index("seed") for kind, part in one.groupby("evidence")}
        if {"simulated", "packet"} <= by_kind.keys():
            fluid, packets = by_kind["simulated"]["value"], by_kind["packet"]["value"]
            why = by_kind["packet"]["reason"]
            lines.append(
                {
                    "case": case,
                    "fluid": fluid.mean(),
                    "ns-3": packets.mean(),
                    "ratio": _estimate((packets / fluid).rename("value").reset_index()),
                    "reason": "; ".join(dict.fromkeys(why[why != ""])),
                }
            )
    if not lines:
        raise ValueError("no cell that both ns-3 and the fluid simulator ran")
    return _split(pd.DataFrame(lines), r"(?P<method>.+) (?P<o>[\d.]+):1 (?P<faults>\w+)")


def _scale_cells(results: pd.DataFrame) -> pd.DataFrame:
    rows = figures.rows(results, "scale", "wall_time")
    rows = results[(results["experiment"] == "scale") & (results["status"] == "ok")]
    cells = rows.pivot_table("value", ["case", "workers"], "metric", sort=False).reset_index()
    cells = _split(cells, r"(?P<method>.+) n=\d+").rename_axis(columns=None)
    return cells.assign(speed=cells["transfers"] / cells["wall_time"])


def _split(rows: pd.DataFrame, pattern: str) -> pd.DataFrame:
    """Rows with the parts of their case as columns, numbers as numbers."""
    parts = rows["case"].str.extract(f"^{pattern}$")
    for column in parts:
        try:
            parts[column] = pd.to_numeric(parts[column])
        except ValueError:
            continue
    return rows.join(parts)


def _estimate(rows: pd.DataFrame) -> Estimate:
    """The mean over seeds of ratios with its interval."""
    if list(rows["seed"]) == [-1]:
        return Estimate.of(rows["value"].iloc[0])
    return Estimate.of(rows.set_index("seed")["value"], "ratio")


def _means(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over draws of ratios: a row a period, a column a number of paused nodes."""
    logs = rows.assign(value=np.log(rows["value"])).pivot_table("value", "d", "k")
    return np.exp(logs)


def _printed(claims: Sequence[Claim], name: str) -> float | None:
    """The first number that a claim prints."""
    for claim in claims:
        if claim.id == name:
            return float(claim.statements()[0].printed)
    return None


def _microseconds(variant: str) -> float:
    return float(variant.removeprefix("hop=").removesuffix("us"))


def _lines(ax: Axes, rows: pd.DataFrame, x: str, style="-", marked: bool = True) -> None:
    for method, one in rows.groupby("method", sort=False):
        colour, marker = _LOOK.get(method, _OTHER)
        one = one.sort_values(x)
        # Ring and RAT often coincide: one is drawn broad, the other fine upon it.
        width = {"Ring": 3.6, "RAT": 1.4}.get(method, 2) if marked else 1.2
        ax.plot(one[x], one["value"], color=colour, linewidth=width, linestyle=style,
                marker=marker if marked else None, markersize=4 + width)  # fmt: skip


def _log_log(ax: Axes, x: str, y: str) -> None:
    ax.set_yscale("log")
    ax.set_ylabel(y)
    figures.log_ticks(ax.yaxis, *ax.get_ylim())
    figures.log_axis(ax, x)


def _ticks(ax: Axes, values: pd.Series) -> None:
    """Ticks of a logarithmic axis where there are values."""
    ax.set_xticks(sorted(set(values)))
    ax.xaxis.set_minor_locator(NullLocator())
    if values.nunique() > 6:
        ax.tick_params(axis="x", labelsize=8)


def _dot(ax: Axes, one: Estimate, y: float, colour: str, marker: str) -> None:
    low, high = one.interval.low, one.interval.high
    if math.isfinite(low) and high > low:
        ax.plot([low, high], [y, y], color=colour, linewidth=2.4)
    ax.plot(one.mean, y, marker=marker, markersize=6.5, color=colour)


def _rows_of(ax: Axes, names: Sequence[str] | Mapping[str, object]) -> None:
    """Name the rows of a dot plot, the first on top."""
    ax.set_yticks(range(len(names)), list(names), fontsize=8.5)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)


def _heat(ax: Axes, table: pd.DataFrame) -> None:
    """Numbers on a tint that grows with their logarithm; rows and columns as in ``table``."""
    logs = np.log(table.to_numpy(dtype=float))
    span = np.nanmax(logs) - np.nanmin(logs) or 1.0
    for (y, x), value in np.ndenumerate(table.to_numpy(dtype=float)):
        if math.isfinite(value):
            tint = 0.04 + 0.5 * (logs[y, x] - np.nanmin(logs)) / span
            ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=PALETTE["blue"],
                                   edgecolor="none", alpha=tint))  # fmt: skip
        text = f"{value:.3g}" if math.isfinite(value) else "–"
        ax.text(x, y, text, ha="center", va="center", fontsize=8)
    ax.set_xlim(-0.5, table.shape[1] - 0.5)
    ax.set_ylim(table.shape[0] - 0.5, -0.5)
    ax.set_xticks(range(table.shape[1]), [_name(one) for one in table.columns])
    ax.set_yticks(range(table.shape[0]), [_name(one) for one in table.index])
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _outline(ax: Axes, inside: np.ndarray, colour: str, width: float) -> None:
    """Lines around the cells of a region."""
    padded = np.pad(inside, 1)
    for y, x in np.argwhere(inside):
        for dy, dx in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            if not padded[y + 1 + dy, x + 1 + dx]:
                ends_x = [x + dx / 2] * 2 if dx else [x - 0.5, x + 0.5]
                ends_y = [y + dy / 2] * 2 if dy else [y - 0.5, y + 0.5]
                ax.plot(ends_x, ends_y, color=colour, linewidth=width, solid_capstyle="projecting",
                        clip_on=False)  # fmt: skip


def _name(one: object) -> str:
    return one if isinstance(one, str) else f"{one:g}"


def _handles(
    names: Sequence[str] | Mapping[str, object], looks: Mapping[str, tuple[str, str]] = _LOOK
) -> list[Line2D]:
    handles = []
    for name in names:
        colour, marker = looks.get(name, _OTHER)
        line = 2 if looks is _LOOK else 0
        handles.append(Line2D([], [], color=colour, marker=marker, linewidth=line, markersize=6,
                              label=name))  # fmt: skip
    return handles


FIGURES = {
    "figure6": figure6,
    "latency": latency,
    "pipelining": pipelining,
    "exchanges": exchanges,
    "figure7": figure7,
    "survival": survival,
    "disturbances": disturbances,
    "asymmetric": asymmetric,
    "packet": packet,
    "scale": scale,
}
TABLES = {"table1": _table1, "packet": _packet, "scale": _scale}
PAGE = (
    Shown(
        "table",
        "table1",
        "Table 1: traffic between regions and chains, counted",
        "Counted on the plans of every exchange, in vectors out of the busiest rack, pod and zone "
        "(reduction and broadcast together) and in dependent transfers of the reduction, beside "
        "formulas inferred from the text. A shape is workers a rack x racks a pod x …; the whole "
        "chain is there and back, and a card is the busiest worker's. The formula of an oblivious "
        "ring is the mean over orders, of which one is counted.",
        "Only Ring, BlueConnect and RAT minimise the traffic between regions, and only PS has a "
        "shorter chain than RAT. The table itself is lost in the stored text.",
        "table1",
    ),
    Shown(
        "figure",
        "figure6",
        "Figure 6: oversubscription",
        "Completion time of one exchange of 97 MB on 4 racks under 2 spines, from 4 to 64 workers "
        "a rack. Right, the same relative to RAT at the higher rate, with the printed ratios.",
        "PS is about 25 times worse than RAT, on average over all bandwidths; Ring is 1.16 times "
        "worse in many. The figure itself is lost in the stored text.",
        "figure6",
    ),
    Shown(
        "figure",
        "latency",
        "How slow must a message be for 1.16?",
        "Left, the latency of every message at which Ring takes 1.16 times as long as RAT, on the "
        "network of Figure 6. Right, Ring to RAT at the latencies written beside the lines. They "
        "are those of a message wherever it goes; Figure 6 has its latency at every cable.",
        "Ring's long chain is thought to add a delay at every hop.",
        "latency",
    ),
    Shown(
        "figure",
        "pipelining",
        "RAT in chunks",
        "Completion time of RAT against the number of chunks in which a tree's share travels, so "
        "that its levels overlap; one chunk waits for every level.",
        "",
        "pipelining",
    ),
    Shown(
        "figure",
        "exchanges",
        "All exchanges against oversubscription",
        "Completion time in units of vector over a card's rate, on the network of Figure 6 at 40 "
        "Gbit/s. A dash: the exchange refuses that network.",
        "",
        "exchanges",
    ),
    Shown(
        "figure",
        "figure7",
        "Figure 7: pausing nodes",
        "64 servers in 2 racks at 40 Gbit/s; from the start k random nodes stop sending, redrawn "
        "every d. Left, Ring relative to itself without pauses. Right, Ring relative to RAT under "
        "the same pauses. Means over draws.",
        "Ring is 12 times slower on average in the worst case, RAT 5.7 times as fast as Ring. It "
        "prints neither k nor d, and the figure itself is lost in the stored text.",
        "figure7",
    ),
    Shown(
        "figure",
        "survival",
        "All exchanges with pausing nodes",
        "Slowdown of every exchange on the network of Figure 7 for one k and d of its grid (see "
        "the recipe under Parameters), each against itself without pauses: what is slow anyway, as "
        "Butterfly and k-nomial trees, has less to lose. Only workers pause, ParameterHub's boxes "
        "do not. Bars are 95 % intervals over draws.",
        "A chain blocks everyone behind the paused node; PS and RAT have short ones.",
        "survival",
    ),
    Shown(
        "figure",
        "disturbances",
        "Failed links, bursts and priorities",
        "Slowdown when, for a while, one uplink of a rack fails, bursts of background flows fill "
        "its uplinks, or traffic of higher priority takes most of them (see the recipe). Flows "
        "share links evenly, so many flows of an exchange leave little to a burst; a slowdown just "
        "under 1 is another order of sharing.",
        "All three are named as what goes wrong in data centres; none is simulated.",
        "disturbances",
    ),
    Shown(
        "figure",
        "asymmetric",
        "Uneven networks, uneven loads",
        "RAT with its vector spread over the trees evenly, and as a linear program does that "
        "unloads the slowest link. Ticks are the least time that each spread allows.",
        "Left to future work.",
        "asymmetric",
    ),
    Shown(
        "table",
        "packet",
        "Packets and fluid",
        "The same plan on the same network of 16 hosts in ns-3 and in the fluid simulator, and the "
        "time that each needs. Transport, buffers and message size are in the recipe.",
        "Everything in it was simulated with ns-3.",
        "packet",
    ),
    Shown(
        "figure",
        "packet",
        "Packets and fluid, cell by cell",
        "Completion time in ns-3 relative to the fluid simulation. The grey band is 10 %.",
        "",
        "packet",
    ),
    Shown(
        "figure",
        "scale",
        "What the simulator costs",
        "One symmetric exchange, after compilation, in a process of its own on the machine named "
        "under Provenance. Every message is one transfer.",
        "",
        "scale",
    ),
    Shown(
        "table",
        "scale",
        "What the simulator costs, in numbers",
        "Memory is the largest that the process held.",
        "",
        "scale",
    ),
)
