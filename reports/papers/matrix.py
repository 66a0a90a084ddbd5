"""The matrix: every method on the same models, networks and cluster sizes. No document's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Polygon

from reports import figures, matrix
from reports.book import Estimate, number
from reports.claims import Claim
from reports.figures import INK, PALETTE
from reports.matrix import model_name, rate
from reports.papers import Shown
from testbed.training import device

TITLE = "The matrix: every method on one footing"

_PARTS = {
    "compute_time": ("sky", "compute"),
    "compress_time": ("orange", "compress"),
    "exchange_time": ("blue", "exchange"),
    "wait_time": ("purple", "wait"),
}
_MOST = 8
"""Lines in one panel."""
_DASHED, _DOTTED = (0, (4, 2)), (0, (1, 2))


# Maps of winners ---------------------------------------------------------------------------------


def winners(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Which method has the shortest round, by bandwidth and workers, for one model."""
    model = matrix.close_model(results)
    return _maps(results, [model], list(matrix.WHERE))


def winners_models(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """The same of every model, with even speeds."""
    times = matrix.metric(results, "round_time")
    models = set(times.index.get_level_values("model"))
    known = [name for name in matrix.MODELS if name in models]
    return _maps(results, known + sorted(models - set(known)), ["flat/even", "sites/even"])


def winners_target(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Which method reaches the target accuracy first, by network and bandwidth."""
    places = _places(results)
    wheres = [where for where in matrix.WHERE if any(where == one for one, _ in places)]
    bandwidths = sorted({bandwidth for _, bandwidth in places})
    firsts = {
        (bandwidth, where): matrix.first(places[where, bandwidth]) for where, bandwidth in places
    }
    codes, counts = _codes([names for names in firsts.values() if names])
    with figures.style():
        fig = Figure(figsize=(8.2, 0.42 * len(bandwidths) + 1.9), layout="constrained")
        ax = fig.subplots()
        _tiles(ax, firsts, bandwidths, wheres, codes, counts)
        ax.set_xticklabels([matrix.WHERE[where].replace(", ", "\n") for where in wheres])
        ax.set_xlabel("network and speeds of workers")
        ax.set_ylabel("bandwidth")
        _codes_legend(fig, codes)
    return fig


def _maps(results: pd.DataFrame, models: list[str], wheres: list[str]) -> Figure:
    times = matrix.metric(results, "round_time")
    times = times[matrix.qualified(results)]
    first = matrix.best(times)
    index = times.index
    wheres = [where for where in wheres if where in set(index.get_level_values("variant"))]
    bandwidths = sorted(set(index.get_level_values("bandwidth")))
    sizes = sorted(set(index.get_level_values("workers")))
    shown = index.get_level_values("model").isin(models)
    shown &= index.get_level_values("variant").isin(wheres)
    columns = len(wheres)
    if len(models) == 1 and columns == 4:
        columns = 2
    panels = [(model, where) for model in models for where in wheres]
    lines = math.ceil(len(panels) / columns)
    firsts = {cell: list(first.columns[row]) for cell, row in
              zip(index[shown], first[shown].to_numpy(), strict=True)}  # fmt: skip
    codes, counts = _codes([names for names in firsts.values() if names])
    with figures.style():
        height = lines * (0.24 * len(bandwidths) + 0.45) + 0.4 + 0.2 * math.ceil(len(codes) / 4)
        fig = Figure(figsize=(8.2, height), layout="constrained")
        axes = fig.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
        for ax, (model, where) in zip(axes.ravel(), panels, strict=False):
            mine = {
                (bandwidth, workers): firsts.get((model, where, workers, bandwidth), [])
                for bandwidth in bandwidths
                for workers in sizes
            }
            _tiles(ax, mine, bandwidths, sizes, codes, counts)
            name = matrix.WHERE.get(where, where)
            ax.set_title(
                f"{model_name(model)}, {name}" if len(models) > 1 or ax is axes[0, 0] else name
            )
        for ax in axes[-1]:
            ax.set_xlabel("workers")
        _codes_legend(fig, codes)
    return fig


def _codes(firsts: list[list[str]]) -> tuple[dict[str, int], pd.Series]:
    """Winners by how often they are first, each with its number; those that only ever share a place
    with a more frequent one have none."""
    counts = pd.Series([name for names in firsts for name in names], dtype=object).value_counts()
    lead = {min(names, key=lambda name: (-counts[name], name)) for names in firsts}
    second = {
        sorted(names, key=lambda name: (-counts[name], name))[1] for names in firsts if names[1:]
    }
    ordered = sorted(counts.index, key=lambda name: (name not in lead, -counts[name], name))
    shown = [name for name in ordered if name in lead | second]
    return {name: i for i, name in enumerate(shown, 1)}, counts


def _tiles(
    ax: Axes, firsts: dict, rows: list, columns: list, codes: dict[str, int], counts: pd.Series
) -> None:
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            names = sorted(firsts.get((row, column), []), key=lambda n: (-counts[n], n))
            if not names:
                ax.text(x, y, "–", ha="center", va="center", fontsize=7)
                continue
            low, left, high, right = y - 0.48, x - 0.48, y + 0.48, x + 0.48
            whole = [(left, low), (right, low), (right, high), (left, high)]
            if names[1:]:  # the second has a corner
                whole[1:3] = [(x, low), (right, high)]
                corner = [(x + 0.03, low), (right, low), (right, high - 0.06)]
                ax.add_patch(Polygon(corner, **_paint(codes[names[1]])))
            ax.add_patch(Polygon(whole, **_paint(codes[names[0]])))
            text = "=".join(str(codes[name]) for name in names[:2])
            ax.text(x, y, text + "+" * (len(names) > 2), ha="center", va="center", fontsize=7.5)
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.set_ylim(-0.5, len(rows) - 0.5)
    ax.set_xticks(range(len(columns)), [str(column) for column in columns])
    ax.set_yticks(range(len(rows)), [rate(row) for row in rows])
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _paint(code: int) -> dict[str, Any]:
    """Of a number: the palette in turn, then in turn hatched."""
    colours = list(PALETTE.values())
    colour = colours[(code - 1) % len(colours)]
    # Lines: dots would make the figure's file many times as large.
    hatch = [None, "////", "\\\\\\\\", "xxxx"][min((code - 1) // len(colours), 3)]
    return {"facecolor": colour, "alpha": 0.55, "edgecolor": INK, "hatch": hatch, "linewidth": 0}


def _codes_legend(fig: Figure, codes: dict[str, int]) -> None:
    handles = [Patch(**_paint(code), label=f"{code}  {name}") for name, code in codes.items()]
    fig.legend(handles=handles, loc="outside lower center", ncols=4, handlelength=1.6)


# Profiles ----------------------------------------------------------------------------------------


def profiles(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Performance profiles of the methods that reach the target over all cells, by group."""
    times = matrix.metric(results, "round_time")[matrix.qualified(results)]
    factors = np.geomspace(1, 100, 121)
    shares = matrix.profile(times, factors)
    panels = _panels(results, matrix.score(times))
    columns = 2 if len(panels) > 1 else 1
    lines = math.ceil(len(panels) / columns)
    with figures.style():
        fig = Figure(figsize=(8.6, 2.75 * lines), layout="constrained")
        axes = fig.subplots(lines, columns, sharey=True, squeeze=False).ravel()
        for ax, (title, labels) in zip(axes, panels, strict=False):
            for i, label in enumerate(labels):
                ax.plot(factors, shares[label], label=label, drawstyle="steps-post", **_line(i))
            figures.log_axis(ax, "times the best of the cell")
            ax.set_xlim(factors[0], factors[-1])
            ax.set_ylim(0, 1)
            ax.set_title(title)
            ax.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8, handlelength=2.2)
        for ax in axes[::columns]:
            ax.set_ylabel("share of cells")
        for ax in axes[len(panels) :]:
            ax.remove()
    return fig


def _panels(results: pd.DataFrame, score: pd.Series) -> list[tuple[str, list[str]]]:
    """Groups of methods, best first, in as many panels as it takes for few lines in each."""
    groups = matrix.info(results)["variant"]
    made = []
    for group, title in matrix.GROUPS.items():
        labels = [name for name in groups.index[groups == group] if name in score]
        labels.sort(key=lambda name: -score[name])
        pieces = math.ceil(len(labels) / _MOST)
        size = math.ceil(len(labels) / max(pieces, 1))
        for i in range(pieces):
            some = f" ({i + 1} of {pieces})" if pieces > 1 else ""
            made.append((title + some, labels[i * size : (i + 1) * size]))
    return made


def _line(i: int) -> dict[str, Any]:
    colours = list(PALETTE.values())
    style = ["-", _DASHED, _DOTTED][(i // len(colours)) % 3]
    return {"color": colours[i % len(colours)], "linestyle": style, "linewidth": 1.6}


# Time, accuracy and bytes ------------------------------------------------------------------------


def pareto(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Accuracy of the trained model against the time and the bytes of a round."""
    points = _points(results)
    with figures.style():
        fig = Figure(figsize=(8.6, 3.9 * len(points)), layout="constrained")
        axes = fig.subplots(len(points), 2, sharey="row", squeeze=False)
        for (left, right), (where, table) in zip(axes, points.items(), strict=True):
            at = rate(table["bandwidth"].iloc[0])
            whose = "leave the sites" if _sites(where) else "a worker sends and receives"
            sides = (
                (left, "time", "ms a round"),
                (right, "bytes", f"kB a round that {whose}"),
            )
            for ax, name, label in sides:
                scale = 1e3 if name == "time" else 1e-3
                _scatter(ax, table, scale * table[name])
                figures.log_axis(ax, label)
            left.set_ylabel(_accuracy(results))
            left.set_title(f"{matrix.WHERE.get(where, where)}, {at}")
        handles = [
            Line2D([], [], **_FRONT, label="on the front of time, accuracy and bytes"),
            Line2D([], [], **_BEHIND, label="another is as good in all three and better in one"),
        ]
        figures.legend(fig, handles, columns=2)
    return fig


_FRONT = {"linestyle": "", "marker": "o", "markersize": 7, "color": PALETTE["blue"]}
_BEHIND = {"linestyle": "", "marker": "o", "markersize": 4.5, "markerfacecolor": "none"}
_BEHIND |= {"markeredgecolor": INK, "alpha": 0.7}


def _scatter(ax: Axes, table: pd.DataFrame, x: pd.Series) -> None:
    """Points with their 95 % intervals; names of those on the front where they do not overlap."""
    named: list[tuple[float, float]] = []
    low, high = math.log(x.min()), math.log(max(x.max(), 1.01 * x.min()))
    span = max(table["accuracy"].max() - table["accuracy"].min(), 1e-9)
    for label in table.index[table["front"].to_numpy().argsort(kind="stable")]:
        row = table.loc[label]
        style = _FRONT if row["front"] else _BEHIND
        if math.isfinite(row["low"]):
            ax.vlines(x[label], row["low"], row["high"], color=INK, alpha=0.4, linewidth=1)
        ax.plot(x[label], row["accuracy"], **style)
    for label in table.index[table["front"]]:
        here = (math.log(x[label]) - low) / (high - low), table.at[label, "accuracy"] / span
        if all(abs(here[0] - a) > 0.25 or abs(here[1] - b) > 0.05 for a, b in named):
            named.append(here)
            ax.annotate(label, (x[label], table.at[label, "accuracy"]), (6, 5),
                        textcoords="offset points", fontsize=8)  # fmt: skip
    ax.margins(x=0.15)
    # Wide intervals of a few must not press the points together.
    room = 0.1 * span + 0.1
    ax.set_ylim(table["accuracy"].min() - room, table["accuracy"].max() + room)


def _points(results: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Time, accuracy and bytes of every method whose training holds on a network, and which are on
    the front: by network, those of even speeds and those where policies were trained. Between
    sites, bytes are what leaves them."""
    accuracy = {
        label: one
        for label, one in matrix.arrived(results, "final_accuracy").items()
        if not one.never
    }
    if not accuracy:
        raise ValueError("no method of the matrix was trained")
    training = results[results["experiment"] == "training"]
    trained = training.iloc[0]
    times = matrix.metric(results, "round_time")
    made = {}
    for cell in matrix.closeups(results):
        where = cell["variant"]
        key = (cell["model"], where, trained["workers"], cell["bandwidth"])
        if cell["model"] != trained["model"] or key not in times.index:
            continue
        named = (training["variant"] == where) & (training["bandwidth"] == cell["bandwidth"])
        if not where.endswith("/even") and not named.any():
            continue
        holds = matrix.holding(results, where, cell["bandwidth"])
        row = times.loc[key].dropna()
        labels = [label for label in accuracy if label in row and label in holds]
        if not labels:
            continue
        sent = matrix.metric(results, "wan_bytes" if _sites(where) else "bytes_per_round")
        table = pd.DataFrame(
            {
                "time": row[labels],
                "bytes": sent.loc[key].reindex(labels),
                "accuracy": [accuracy[label].mean for label in labels],
                "low": [accuracy[label].interval.low for label in labels],
                "high": [accuracy[label].interval.high for label in labels],
                "bandwidth": cell["bandwidth"],
            },
            index=labels,
        )
        lost = table[["time", "bytes"]].assign(lost=-table["accuracy"])
        made[where] = table.assign(front=matrix.front(lost))
    if not made:
        raise ValueError("no round was timed on as many workers as were trained")
    return made


def _sites(where: str) -> bool:
    return where.startswith("sites")


def _accuracy(results: pd.DataFrame) -> str:
    return f"accuracy after {matrix.rounds(results)[0]} rounds (%)"


# One cell in parts -------------------------------------------------------------------------------


def parts(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """What a round is made of: systems and combinations, and the fastest of the other groups."""
    model, workers = matrix.close_model(results), matrix.close_workers(results)
    cells = [cell for cell in matrix.closeups(results) if cell["model"] == model]
    times = matrix.metric(results, "round_time")
    by_part = {name: matrix.metric(results, name) for name in matrix.PARTS}
    chosen = []
    for cell in cells:
        key = (model, cell["variant"], workers, cell["bandwidth"])
        if key in times.index:
            chosen.append((cell, key, _shown(results, times.loc[key].dropna())))
    if not chosen:
        raise ValueError(f"no round of {model_name(model)} on {workers} workers could be timed")
    columns = min(2, len(chosen))
    lines = math.ceil(len(chosen) / columns)
    with figures.style():
        height = max(len(labels) for *_, labels in chosen) * 0.19 + 0.7
        fig = Figure(figsize=(8.6, height * lines + 0.3), layout="constrained")
        axes = fig.subplots(lines, columns, squeeze=False).ravel()
        for ax, (cell, key, labels) in zip(axes, chosen, strict=False):
            wide = {name: by_part[name].loc[key, labels].to_numpy(dtype=float) for name in _PARTS}
            totals = sum(wide.values())
            # A bar many times as long as the middle one would leave nothing of the others.
            most = min(totals.max(), 4 * float(np.median(totals)))
            begin = np.zeros(len(labels))
            for name, (colour, _) in _PARTS.items():
                end = np.minimum(begin + wide[name], most)
                ax.barh(range(len(labels)), end - begin, 0.72, begin, color=PALETTE[colour],
                        linewidth=0)  # fmt: skip
                begin = end
            ax.set_xlim(0, 1.22 * most)
            for y, total in enumerate(totals):
                cut = " →" if total > most else ""
                text = f" {number(_rounded(total))}{cut}"
                ax.text(min(total, most), y, text, va="center", fontsize=7.5)
            ax.set_yticks(range(len(labels)), labels, fontsize=8)
            ax.invert_yaxis()
            ax.set_xlabel("seconds a round")
            ax.set_title(f"{matrix.WHERE.get(cell['variant'], cell['variant'])}, "
                         f"{rate(cell['bandwidth'])}")  # fmt: skip
            figures.despine(ax)
        for ax in axes[len(chosen) :]:
            ax.remove()
        fig.suptitle(f"{model_name(model)}, {workers} workers", x=0.01, ha="left", fontsize=10)
        handles = [Patch(color=PALETTE[colour], label=name) for colour, name in _PARTS.values()]
        figures.legend(fig, handles, columns=4)
    return fig


def _shown(results: pd.DataFrame, times: pd.Series, others: int = 3) -> list[str]:
    """Systems, combinations and the fastest of the other groups, fastest first."""
    groups = matrix.info(results)["variant"]
    ordered = times.sort_values(kind="stable").index
    kept, seen = [], dict.fromkeys(matrix.GROUPS, 0)
    for label in ordered:
        group = groups[label]
        seen[group] += 1
        if group in ("system", "combination") or seen[group] <= others:
            kept.append(label)
    return kept


def scaling(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Scaling efficiency by workers: the systems, and the fastest of every other group."""
    model, workers = matrix.close_model(results), matrix.close_workers(results)
    made = matrix.metric(results, "scaling_efficiency")
    groups = matrix.info(results)["variant"]
    cells = [
        cell
        for cell in matrix.closeups(results)
        if cell["model"] == model
        and cell["variant"].endswith("/even")
        and (model, cell["variant"], workers, cell["bandwidth"]) in made.index
    ]
    if not cells:
        raise ValueError(f"no round of {model_name(model)} on {workers} workers could be timed")
    with figures.style():
        fig = Figure(figsize=(8.6, 3.3 * len(cells)), layout="constrained")
        axes = fig.subplots(len(cells), 2, sharey=True, squeeze=False)
        for pair, cell in zip(axes, cells, strict=True):
            table = made.loc[(model, cell["variant"])].xs(cell["bandwidth"], level="bandwidth")
            ordered = table.loc[workers].dropna().sort_values(ascending=False, kind="stable").index
            systems = [label for label in ordered if groups[label] == "system"][:_MOST]
            fastest: dict[str, str] = {}
            for label in ordered:
                if groups[label] != "system":
                    fastest.setdefault(groups[label], label)
            for ax, labels in zip(pair, (systems, list(fastest.values())), strict=True):
                for i, label in enumerate(labels):
                    line = table[label].dropna()
                    ax.plot(line.index, line, label=label, marker="o", markersize=3.5, **_line(i))
                ax.set_xscale("log")
                ax.minorticks_off()
                ax.set_xticks(table.index, [str(size) for size in table.index])
                ax.set_xlabel("workers")
                figures.despine(ax)
                if labels:
                    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8, handlelength=2.2)
            pair[0].set_ylim(bottom=0)
            pair[0].set_ylabel("scaling efficiency")
            where = (
                f"{matrix.WHERE.get(cell['variant'], cell['variant'])}, {rate(cell['bandwidth'])}"
            )
            pair[0].set_title(f"{model_name(model)}, {where}")
            pair[1].set_title("fastest of each other group")
    return fig


# Tables ------------------------------------------------------------------------------------------


def _ranking(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    table = matrix.ranking(results)
    _, most = matrix.rounds(results)
    made = {
        "method": table["method"],
        "group": table["group"],
        "cells": table["cells"],
        "score (%)": [round(100 * one, 1) for one in table["score"]],
        "fastest alone": table["wins alone"],
        "tied for fastest": table["ties for first"],
        "times the best (mean)": table["times the best"].map(_rounded),
        "times the best (worst)": table["worst"].map(_rounded),
        _accuracy(results): [_told(one, "diverged") for one in table["accuracy"]],
        f"rounds to target (at most {most})": [_told(one) for one in table["rounds"]],
    }
    for name, what, where in (
        ("bytes_per_round", "bytes a round and worker", "flat/even"),
        ("wan_bytes", "bytes a round between sites", "sites/even"),
    ):
        place, sent = _sent(results, name, where)
        made[f"{what} ({place})"] = [
            f"{sent[label]:.0f}" if label in sent else "" for label in table["method"]
        ]
    return pd.DataFrame(made)


def _sent(results: pd.DataFrame, name: str, where: str) -> tuple[str, dict[str, float]]:
    """Bytes by method in one cell, and that in words."""
    model, workers = matrix.close_model(results), matrix.close_workers(results)
    rows = results[
        (results["experiment"] == "closeup")
        & (results["metric"] == name)
        & (results["model"] == model)
        & (results["variant"] == where)
        & (results["workers"] == workers)
    ]
    at = f", {rate(rows['bandwidth'].iloc[0])}" if len(rows) else ""
    place = f"{model_name(model)}, {workers} workers, {where.partition('/')[0]}{at}"
    return place, rows.set_index("case")["value"].to_dict()


def standing(results: pd.DataFrame) -> pd.DataFrame:
    """How each method came out, for its card: its label, its four answers, and where it wins."""
    info = matrix.info(results)
    table = _ranking(pd.DataFrame(), results).rename(columns={"method": "label"})
    there = matrix.strongholds(results)
    answers = info.loc[table["label"], matrix.ROOMS].reset_index(drop=True)
    most = pd.Series([there.get(label, "nowhere") for label in table["label"]])
    return pd.concat([table, answers, most.rename("most often fastest")], axis=1)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _told(one: Estimate | None, lost: str = "never") -> str:
    """An estimate in words; ``lost`` is what seeds did that have no value."""
    if not isinstance(one, Estimate):
        return "not trained"
    return f"{one.never} of {one.seeds} seeds {lost}" if one.never else str(one)


def _target_table(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Who reaches the target first on every network, and when the others do."""
    _, most = matrix.rounds(results)
    plain = set(matrix.dense(results))
    rows = []
    for (where, bandwidth), times in _places(results).items():
        first = matrix.first(times)
        ordered = sorted(times, key=lambda label: times[label].mean)
        later = [name for name in ordered if name not in first and not times[name].never]
        whole = min((times[label].mean for label in times if label in plain), default=math.inf)
        least = min((times[label].mean for label in first), default=math.nan)
        rows.append(
            {
                "network": matrix.WHERE.get(where, where),
                "bandwidth": rate(bandwidth),
                "first": ", ".join(first[:4]) + f" and {len(first) - 4} more" * (len(first) > 4),
                "seconds": _told(times[first[0]]) if first else "never",
                "next": f"{later[0]}: {_told(times[later[0]])}" if later else "",
                "sending everything takes": f"{number(_rounded(whole / least))} times as long"
                if math.isfinite(whole / least)
                else "",
                f"not by round {most}": sum(one.never > 0 for one in times.values()),
                "seconds of all": "; ".join(f"{name}: {_told(times[name])}" for name in ordered),
            }
        )
    return pd.DataFrame(rows)


def _places(results: pd.DataFrame) -> dict[tuple[str, float], dict[str, Estimate]]:
    places = matrix.times_to_target(results)
    if not places:
        raise ValueError("no method of the matrix was trained")
    return places


def _rates_table(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Final accuracies of the grid of learning rates, and which was chosen."""
    tried = results[results["experiment"] == "tuning"]
    if tried.empty:
        raise ValueError("no learning rate of the matrix was tried")
    lr = tried["variant"].str.removeprefix("lr=").astype(float)
    told = tried["value"].map("{:.2f}".format).where(tried["status"] == "ok", "diverged")
    table = tried.assign(lr=lr, told=told).pivot(index="case", columns="lr", values="told")
    chosen = results[(results["experiment"] == "training") & (results["metric"] == "chosen_lr")]
    chosen = chosen.drop_duplicates("case").set_index("case")["value"]
    shown = table.loc[list(dict.fromkeys(tried["case"]))].fillna("–")
    made = {"method": shown.index}
    for rate_ in shown:
        made[f"lr {rate_:g}: accuracy (%)"] = list(shown[rate_])
    made["chosen"] = [f"{chosen[label]:g}" if label in chosen else "" for label in shown.index]
    return pd.DataFrame(made)


def _reasons_table(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Cells that cannot run, counted by reason."""
    rows = results[results["experiment"] == "cannot_run"]
    made = [
        {"reason": reason, "methods": ", ".join(dict.fromkeys(some["case"])),
         "networks": ", ".join(dict.fromkeys(w.partition("/")[0] for w in some["variant"])),
         "cells": int(some["value"].sum())}
        for reason, some in rows.groupby("reason", sort=False)
    ]  # fmt: skip
    table = pd.DataFrame(made, columns=["reason", "methods", "networks", "cells"])
    return table.sort_values("cells", ascending=False, kind="stable", ignore_index=True)


headline = matrix.headline

FIGURES = {
    "winners": winners,
    "winners_models": winners_models,
    "winners_target": winners_target,
    "profiles": profiles,
    "pareto": pareto,
    "parts": parts,
    "scaling": scaling,
}
TABLES = {
    "ranking": _ranking,
    "target": _target_table,
    "learning_rates": _rates_table,
    "cannot_run": _reasons_table,
}
DEVICE = device.profile("v100_matrix")
_FIXED = f"{1000 * DEVICE.round_overhead_s:g} ms"
_QUALIFIED = (
    "Among methods that bring the trained model to the target accuracy with every seed: a round is "
    "soon over that teaches little. "
)
_FOOTING = (
    "One device profile computes and compresses for all, a V100 as Sketch-Fusion's numbers imply "
    f"it; an iteration costs {_FIXED} besides its samples, an assumption. Codecs that Table 1 does "
    "not print cost what the most alike of its methods does: FP16 and EFSignSGD as SignSGD, "
    "int8_blocks and two_bit as TernGrad, bisparse, dgt, sparse_fp32 and sparse_int8 as Top-k, the "
    "count-sketch as QSGD for each row of its table, and any other as DGC, the slowest. Unless a "
    "method names its own fusion, LayerFusion groups dense tensors, and codecs get one tensor at a "
    "time, as they do in training. The global batch is the same on every cluster. "
)
_POLICIES = (
    "Policies that send changes or look at the clock send whole models, grouped by no fusion, and "
    "a round of theirs is as many iterations as there are workers. "
)
_TRAINED = (
    "Every method was trained with the same data order and initial weights, at the best learning "
    "rate of one grid; methods of the same arithmetic share a run. Accuracies are compared after "
    "the same number of rounds, or at the first evaluation after it; methods that have not reached "
    "the target by then train on, up to a most, and may reach it later (both numbers head the "
    "table of all methods). The rounds that a method in lockstep needs are the same on any "
    "network. Those of policies that send changes or look at the clock are not, so that they are "
    "compared only where they were trained. Intervals are 95 % of the mean over seeds. "
)
PAGE = (
    Shown(
        "figure",
        "winners",
        "Who has the shortest round",
        _QUALIFIED + "A number names the fastest; of two within 2 % both are named and the corner "
        "has the second's colour, + marks further ones. Uneven: the slowest worker takes twice as "
        "long as the fastest, others in between. What a round teaches still differs; time to "
        "a target, below, counts that too. " + _FOOTING,
        "",
        "cells training",
    ),
    Shown(
        "figure",
        "winners_models",
        "Who has the shortest round, by model",
        "As above with even speeds. " + _QUALIFIED + "A dash marks cells where none can run, as "
        "with fewer samples a round than workers.",
        "",
        "cells training",
    ),
    Shown(
        "table",
        "ranking",
        "All methods",
        "In the order of the score: the share of all cells in which a method's round takes at most "
        "so many times the shortest, in the mean over 1 to 10 times (evenly on a log scale); cells "
        "in which it cannot run are lost. Over the cells in which it runs: how often its round is "
        "the shortest, alone or within 2 % of the best, and how many times the best it takes, in "
        "the geometric mean and at worst. "
        + _QUALIFIED
        + "The others come last, held against the best of those. Bytes are payload, exactly as the "
        "formats have it: what a worker sends and receives, and what leaves all sites together. "
        "Accuracies are compared after the same number of rounds for all; what has not reached "
        "the target by then trains on. " + _FOOTING,
        "",
        "cells closeup training methods",
    ),
    Shown(
        "figure",
        "winners_target",
        "Who reaches the target accuracy first",
        _TRAINED
        + "Methods are tied whose difference, seed by seed, may be zero, or is below 2 %. Colours, "
        "numbers and corners as above.",
        "",
        "training cells",
    ),
    Shown(
        "table",
        "target",
        "Time to the target accuracy",
        "Rounds that training needs times the seconds of a round on that network. "
        + _TRAINED
        + "Next is the first that is surely later. Methods that did not get there with every seed "
        "are counted, and come last in the list of all.",
        "",
        "training cells",
    ),
    Shown(
        "figure",
        "profiles",
        "Performance profiles",
        "The share of all cells in which a method's round takes at most so many times the "
        "shortest (Dolan and Moré, 2002). Where a line ends below one, the method cannot run in "
        "the rest of the cells: HiPS needs sites. " + _QUALIFIED,
        "",
        "cells training",
    ),
    Shown(
        "figure",
        "pareto",
        "Time, accuracy and bytes",
        "Each point is a method; bars are 95 % intervals of its accuracy, cut at the frame. On the "
        "front are means that no other method equals in all three and betters in one. Bytes "
        "between sites are those that leave all of them together. " + _TRAINED,
        "",
        "training cells closeup",
    ),
    Shown(
        "figure",
        "parts",
        "What a round is made of",
        "All systems and combinations and the three fastest of every other group. Compressing "
        "and exchanging count where they are not hidden behind computing. "
        + _POLICIES
        + "An arrow marks bars that are cut off.",
        "",
        "closeup",
    ),
    Shown(
        "figure",
        "scaling",
        "Scaling efficiency",
        "Speed over that of one worker with the whole batch, times the number of workers. The "
        f"batch is shared, so that workers compute less, the more they are; the {_FIXED} that an "
        "iteration costs besides its samples do not shrink with it, so that efficiency falls with "
        "more workers even where nobody communicates or waits.",
        "",
        "closeup",
    ),
    Shown(
        "table",
        "learning_rates",
        "Learning rates",
        "Accuracy after the tuning rounds, one seed, with the rates that all methods were given; "
        "the best one trains with every seed.",
        "",
        "tuning training",
    ),
    Shown(
        "table",
        "cannot_run",
        "Cells that cannot run",
        "Counted by reason, over models, bandwidths, cluster sizes and speeds. Pairs that can run "
        "nowhere are not among the methods: RAT and the ring only sum, so that they cannot carry "
        "a codec whose payloads are gathered, such as EFSignSGD.",
        "",
        "cannot_run",
    ),
)
