"""Sketch-Fusion (Dai, Gong, An, Xu and Diao, 2023): its figures and tables.

With eleven compressors, rows and labels say which is which; colour says what is done to them. The
pictures of Figures 1 and 3 to 6 are lost in the stored text, so what it says of them is marked.
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
from matplotlib.ticker import FuncFormatter, NullLocator

from reports import figures, tables
from reports.book import number, t_interval
from reports.claims import Claim
from reports.figures import INK, PALETTE
from reports.papers import Shown

MAIN, CPU = "flat", "flat, this CPU"
"""The way of modelling whose numbers are ours, and this machine beside it."""
_MODELS = {"resnet20": "ResNet-20", "vgg16": "VGG-16", "resnet50": "ResNet-50", "lstm": "LSTM"}
_OTHERS = {"resnet101": "ResNet-101", "densenet121": "DenseNet-121", "mobilenet_v2": "MobileNetV2"}
_METHODS = ["Baseline", "FP16", "Top-k", "DGC", "Rand-k", "QSGD", "EFSignSGD", "SignSGD"]
_METHODS += ["TernGrad", "PowerSGD", "Sketch-Fusion", "2-bit", "BiSparse", "DGT"]
_FAMILY = {
    "dense": ("sky", ["Baseline", "FP16"]),
    "sparse": ("vermillion", ["Top-k", "DGC", "Rand-k", "BiSparse", "DGT"]),
    "quantised": ("blue", ["QSGD", "TernGrad", "2-bit"]),
    "signs": ("purple", ["EFSignSGD", "SignSGD"]),
    "low rank": ("green", ["PowerSGD"]),
    "sketch": ("orange", ["Sketch-Fusion"]),
}
_FUSION = {
    "layer_wise": ("vermillion", "s"),
    "whole_model": ("orange", "D"),
    "mg_wfbp": ("purple", "^"),
    "layer_fusion": ("blue", "o"),
}
_STREAM = {"compute": "sky", "encode": "orange", "network": "blue", "decode": "green"}
_CURVE = {
    "Baseline": "vermillion",
    "DGC": "blue",
    "Sketch-Fusion": "green",
    "Sketch-Fusion no EF": "orange",
    "Sketch-Fusion HEAVYMIX": "purple",
}
_DOTTED, _DASHED = (0, (1, 2)), (0, (4, 2))
_SCALING = r"(?P<method>.+) (?P<way>LW|LF) (?P<gpus>\d+)"
_PRINTED = {"linestyle": "", "markerfacecolor": "none", "markeredgecolor": INK}
_PRINTED |= {"marker": "D", "markersize": 5.5, "markeredgewidth": 1.3}


def figure1(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Figure 1: layer-wise scaling factors, time against tensor size, tensors of models."""
    scaling = _scaling(results, "scaling_factor", "resnet20", MAIN)
    most = scaling["gpus"].max()
    factors = scaling[scaling["gpus"] == most].query("way == 'LW'").set_index("method")["value"]
    sizes = _split(
        figures.rows(results, "sizes", "compression_time"), r"(?P<method>.+) n=(?P<n>\d+)"
    )
    tensors = figures.rows(results, "tensors", "tensors").set_index("case")["value"].sort_values()
    with figures.style():
        fig = Figure(figsize=(9.4, 3.9), layout="constrained")
        left, middle, right = fig.subplots(1, 3, width_ratios=[1, 1.5, 0.9])
        names = _ordered(factors.index)
        left.barh(range(len(names)), factors[names], 0.66, color=PALETTE["blue"], linewidth=0)
        if "Baseline" in factors:
            left.axvline(factors["Baseline"], color=INK, linewidth=1.2, linestyle=_DASHED)
        _bars(left, names, "scaling factor")
        left.set_title(f"a  ResNet-20, {most} GPUs")
        ends = {}
        for method, one in sizes.groupby("method", sort=False):
            one = one.sort_values("n")
            middle.plot(one["n"], one["value"], color=_family(method), linewidth=1.5)
            ends[method] = one["value"].iloc[-1]
        middle.set_yscale("log")
        figures.log_axis(middle, "values in the tensor")
        figures.log_ticks(middle.yaxis, *middle.get_ylim())
        ticks = {4: "2⁴", 12: "2¹²", 20: "2²⁰", 26: "2²⁶"}
        middle.set_xticks([2**power for power in ticks], list(ticks.values()))
        middle.xaxis.set_minor_locator(NullLocator())
        middle.set_ylabel("seconds")
        _end_labels(middle, sizes["n"].max(), ends)
        middle.set_title("b  one tensor, this CPU")
        right.barh(range(len(tensors)), tensors, 0.66, color=PALETTE["blue"], linewidth=0)
        for y, value in enumerate(tensors):
            right.text(value, y, f" {value:g}", va="center", fontsize=8)
        right.set_xlim(0, 1.2 * tensors.max())
        _bars(right, [(_MODELS | _OTHERS).get(name, name) for name in tensors.index], "tensors")
        right.set_title("c  tensors to send")
        shown = [name for name, (_, methods) in _FAMILY.items() if set(methods) & set(ends)]
        handles = [Line2D([], [], color=PALETTE[_FAMILY[name][0]], label=name) for name in shown]
        handles.append(Line2D([], [], color=INK, linewidth=1.2, linestyle=_DASHED,
                              label="baseline (a)"))  # fmt: skip
        figures.legend(fig, handles, columns=7)
    return fig


def figure2(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Figure 2: what one iteration does when, for three ways of grouping its tensors."""
    pattern = r"(?P<grouping>\w+) (?P<stream>\w+) (?P<i>\d+)"
    spans = [_split(figures.rows(results, "timeline", end), pattern) for end in ("begin", "end")]
    spans = spans[0].merge(spans[1], on=["grouping", "stream", "i"], suffixes=("", "_end"))
    groupings = list(dict.fromkeys(spans["grouping"]))
    with figures.style():
        fig = Figure(figsize=(8.2, 1.15 * len(groupings) + 0.5), layout="constrained")
        axes = fig.subplots(len(groupings), 1, sharex=True, squeeze=False).ravel()
        for ax, grouping in zip(axes, groupings, strict=True):
            one = spans[spans["grouping"] == grouping]
            for y, (stream, colour) in enumerate(_STREAM.items()):
                part = one[one["stream"] == stream]
                begin, end = 1e3 * part["value"], 1e3 * part["value_end"]
                ax.barh([y] * len(part), end - begin, 0.7, begin, color=PALETTE[colour],
                        edgecolor=INK, linewidth=0.4 if len(part) < 20 else 0)  # fmt: skip
            total = 1e3 * one["value_end"].max()
            ax.axvline(total, color=INK, linewidth=1, linestyle=_DOTTED)
            _bars(ax, list(_STREAM), "")
            groups = one["i"].nunique()
            plural = "s" * (groups > 1)
            ax.set_title(f"{_plain(grouping)}: {groups} message{plural}, {total:.3g} ms")
        axes[-1].set_xlabel("ms since the iteration began")
    return fig


def figure3(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Figure 3: scaling factors of ResNet-20."""
    return _factors(results, "resnet20", {})


def figure4(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Figure 4: scaling factors of ResNet-50, with the two that the text prints."""
    names = {"FP16 with LayerFusion": "FP16", "baseline": "Baseline"}
    parts = [part for part in _parts(claims, "SKF-F4a") if part.label in names]
    said = {names[part.label]: float(part.printed) / 100 for part in parts}
    return _factors(results, "resnet50", said)


def figure5(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Figure 5: scaling factors of the LSTM."""
    return _factors(results, "lstm", {})


def gains(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """LayerFusion over layer-wise: ours over the GPUs, Table 4's and the text's."""
    least, largest = (_main(results, "gains", f"{end}_gain") for end in ("least", "largest"))
    spans = least.merge(largest, on=["case", "model"], suffixes=("", "_largest"))
    spans = spans[
        (spans["case"] != "Baseline") & spans["model"].isin(["resnet20", "resnet50", "lstm"])
    ]
    models = [model for model in _MODELS if model in set(spans["model"])]
    names = _ordered(set(spans["case"]))
    table4 = figures.printed_cells(claims, "Table 4", "throughput")
    ranges = _ranges(claims)
    with figures.style():
        fig = Figure(figsize=(8.8, 0.27 * len(names) + 1.5), layout="constrained")
        axes = fig.subplots(1, len(models), sharex=True, sharey=True, squeeze=False).ravel()
        for ax, model in zip(axes, models, strict=True):
            for row in spans[spans["model"] == model].itertuples():
                y = names.index(row.case)
                ax.plot([row.value, row.value_largest], [y, y], "|-", color=PALETTE["blue"],
                        linewidth=3, markersize=9, markeredgewidth=2)  # fmt: skip
            for y, name in enumerate(names):
                if (name, model) in ranges:
                    said = ranges[name, model]
                    ax.plot(said, [y + 0.3] * len(said), "|-", color=PALETTE["orange"],
                            linewidth=2, markersize=7, markeredgewidth=2)  # fmt: skip
                both = [table4.get((model, f"{name} {way} 16")) for way in ("LF", "LW")]
                if all(both):
                    ax.plot(both[0] / both[1], y, **_PRINTED)
            ax.axvline(1, color=INK, linewidth=0.9, alpha=0.6)
            _bars(ax, names, "times layer-wise")
            ax.set_title(_MODELS[model])
        handles = [Line2D([], [], color=PALETTE["blue"], linewidth=3, label="ours, 2 to 16 GPUs")]
        if table4:
            handles.append(Line2D([], [], label="Table 4, 16 GPUs", **_PRINTED))
        if ranges:
            handles.append(Line2D([], [], color=PALETTE["orange"], linewidth=2,
                                  label="the text: a range, or the largest"))  # fmt: skip
        figures.legend(fig, handles, columns=3)
    return fig


def figure6(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Figure 6: accuracy over virtual time, and Sketch-Fusion's variants."""
    curves = figures.rows(results, "figure6", "test_accuracy")
    curves = curves.assign(x=curves["time_s"] / 3600)
    target = figures.rows(results, "figure6", "target_accuracy", needed=False)["value"]
    panels = {
        "three methods": ["Baseline", "DGC", "Sketch-Fusion"],
        "Sketch-Fusion's variants": [
            "Sketch-Fusion",
            "Sketch-Fusion no EF",
            "Sketch-Fusion HEAVYMIX",
        ],
    }
    with figures.style():
        fig = Figure(figsize=(8.4, 3.6), layout="constrained")
        for ax, (title, cases) in zip(fig.subplots(1, 2, sharey=True), panels.items(), strict=True):
            _curves(ax, curves[curves["case"].isin(cases)])
            for value in target.unique():
                ax.axhline(value, color=INK, linewidth=1, linestyle=_DOTTED)
            ax.set_xlabel("simulated hours")
            ax.set_title(title)
        fig.axes[0].set_ylabel("test accuracy, %")
        handles = _curve_handles(curves)
        if len(target):
            handles.append(
                Line2D([], [], color=INK, linewidth=1, linestyle=_DOTTED, label="target")
            )
        figures.legend(fig, handles, columns=3)
    return fig


def lstm(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Perplexity of the LSTM over virtual time and over what a worker has sent and received."""
    point = ["case", "seed", "round"]
    curves = figures.rows(results, "lstm", "test_perplexity")
    sent = figures.rows(results, "lstm", "bytes_sent")[[*point, "value"]]
    by_bytes = curves.merge(sent.rename(columns={"value": "x"}), on=point)
    with figures.style():
        fig = Figure(figsize=(8.4, 3.5), layout="constrained")
        left, right = fig.subplots(1, 2, sharey=True)
        _curves(left, curves.assign(x=curves["time_s"] / 3600))
        left.set(xlabel="simulated hours", ylabel="test perplexity")
        _curves(right, by_bytes.assign(x=by_bytes["x"] / 1e9).query("x > 0"))
        figures.log_axis(right, "GB sent and received by one worker")
        left.set_yscale("log")
        figures.log_ticks(left.yaxis, *left.get_ylim())
        figures.legend(fig, _curve_handles(curves), columns=3)
    return fig


def fusion(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Every way of grouping over the best possible one, by model, method and collective."""
    gaps = figures.rows(results, "fusion", "gap")
    gaps = gaps[gaps["variant"].isin(_FUSION)]
    models = [model for model in _MODELS if model in set(gaps["model"])]
    names = sorted(set(gaps["case"]), key=lambda case: (_rank(case.rpartition(" ")[0]), case))
    with figures.style():
        fig = Figure(figsize=(9.2, 0.22 * len(names) + 1.4), layout="constrained")
        axes = fig.subplots(1, len(models), sharex=True, sharey=True, squeeze=False).ravel()
        for ax, model in zip(axes, models, strict=True):
            for kind, (colour, marker) in _FUSION.items():
                one = gaps[(gaps["model"] == model) & (gaps["variant"] == kind)]
                ax.plot(one["value"].clip(lower=0), [names.index(case) for case in one["case"]],
                        marker, color=PALETTE[colour], markersize=5)  # fmt: skip
            ax.axvline(2, color=INK, linewidth=1, linestyle=_DOTTED)
            ax.set_xscale("symlog", linthresh=1)
            ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
            _bars(ax, [_plain(name) for name in names], "% over the least")
            ax.set_title(_MODELS[model])
        axes[0].set_xlim(-0.3, 1.6 * max(2, gaps["value"].max()))
        handles = [
            Line2D([], [], linestyle="", marker=marker, color=PALETTE[colour], label=_plain(kind))
            for kind, (colour, marker) in _FUSION.items()
        ]
        handles.append(Line2D([], [], color=INK, linewidth=1, linestyle=_DOTTED, label="2 %"))
        figures.legend(fig, handles, columns=5)
    return fig


def theory(results: pd.DataFrame, claims: Sequence[Claim] = ()) -> Figure:
    """Theorems 1 and 2: the mean squared gradient and its bound against the iterations."""
    measured, bounds = _theorems(results)
    numbers = sorted(measured["theorem"].unique())
    with figures.style():
        fig = Figure(figsize=(4.1 * len(numbers), 3.5), layout="constrained")
        axes = fig.subplots(1, len(numbers), squeeze=False).ravel()
        for ax, theorem in zip(axes, numbers, strict=True):
            groups = sorted(measured.loc[measured["theorem"] == theorem, "y"].unique())
            for y, shade in zip(groups, np.linspace(1, 0.4, len(groups)), strict=True):
                for table, look in ((measured, "o-"), (bounds, "--")):
                    one = table[(table["theorem"] == theorem) & (table["y"] == y)]
                    one = one.groupby("t")["value"].mean()
                    colour = PALETTE["blue" if table is measured else "vermillion"]
                    ax.plot(one.index, one, look, color=colour, alpha=shade, linewidth=1.8,
                            markersize=5)  # fmt: skip
                    if len(groups) > 1 and table is bounds:
                        ax.annotate(f"y = {y}", (one.index[-1], one.iloc[-1]), (5, 0), va="center",
                                    textcoords="offset points", fontsize=8)  # fmt: skip
            ax.set_yscale("log")
            room = 3.2 if len(groups) > 1 else 1.3
            ax.set_xlim(measured["t"].min() / 1.3, measured["t"].max() * room)
            figures.log_axis(ax, "iterations T")
            ax.set_xticks(sorted(measured["t"].unique()))
            ax.xaxis.set_minor_locator(NullLocator())
            figures.log_ticks(ax.yaxis, *ax.get_ylim())
            ax.set_title(f"Theorem {theorem}")
        axes[0].set_ylabel("mean squared gradient")
        handles = [
            Line2D([], [], color=PALETTE["blue"], marker="o", label="measured"),
            Line2D([], [], color=PALETTE["vermillion"], linestyle="--", label="bound"),
        ]
        figures.legend(fig, handles, columns=2)
    return fig


def _table1(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Table 1 on this machine, layer by layer and as one tensor, beside the printed V100's."""
    ms = {}
    for metric in ("compression_time", "encode_time", "decode_time"):
        rows = figures.rows(results, "compression", metric)
        ms[metric] = 1e3 * rows.pivot_table("value", "case", "variant")
    whole = ms["compression_time"]
    names = _ordered(whole.index)
    table = pd.DataFrame({"method": names}, index=names)
    table["layer-wise, ms"] = whole["layer-wise"]
    table["of it compressing"] = ms["encode_time"]["layer-wise"]
    table["of it decompressing"] = ms["decode_time"]["layer-wise"]
    table["whole model, ms"] = whole["whole model"]
    table["printed for a V100, ms"] = pd.Series(
        {case: value for (_, case), value in _cells(verdicts, "Table 1").items()}, dtype=float
    )
    table["layer-wise / printed"] = table["layer-wise, ms"] / table["printed for a V100, ms"]
    return table.reset_index(drop=True)


def _table4(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Table 4 as simulated on the document's V100 and on this CPU, beside the printed numbers."""
    printed = _cells(verdicts, "Table 4")
    speeds = {variant: _scaling(results, "throughput", None, variant) for variant in (MAIN, CPU)}
    main = speeds[MAIN]
    most = main["gpus"].max()
    keys = ["model", "method", "way", "gpus"]
    values = {variant: rows.set_index(keys)["value"].to_dict() for variant, rows in speeds.items()}
    lines = []
    for model in (model for model in _MODELS if model in set(main["model"])):
        for method in _ordered(main.loc[main["model"] == model, "method"].unique()):
            line = {"model": _MODELS[model], "method": method}
            for way, name in (("LW", "layer-wise"), ("LF", "LayerFusion")):
                ours = values[MAIN].get((model, method, way, most), math.nan)
                said = printed.get((model, f"{method} {way} 16"), math.nan)
                line |= {f"{name}, 1/s": ours, f"{name} printed": said}
                line[f"{name} / printed"] = ours / said
            line["gain"] = line["LayerFusion, 1/s"] / line["layer-wise, 1/s"]
            line["gain printed"] = line["LayerFusion printed"] / line["layer-wise printed"]
            for way, name in (("LW", "layer-wise"), ("LF", "LayerFusion")):
                line[f"{name}, this CPU"] = values[CPU].get((model, method, way, most), math.nan)
            lines.append(line)
    return pd.DataFrame(lines)


def _fusion_table(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """How far every way of grouping is from the best one, and what the searches take."""
    found = {
        metric: figures.rows(results, "fusion", metric).pivot_table(
            "value", ["model", "case"], "variant"
        )
        for metric in ("gap", "groups", "iteration_time", "search_time")
    }
    cells = sorted(
        found["gap"].index, key=lambda cell: (_model_rank(cell[0]), _rank(_method(cell[1])), cell)
    )
    index = pd.MultiIndex.from_tuples(cells)
    gap, groups, seconds, search = (table.reindex(index) for table in found.values())
    table = pd.DataFrame({"model": [_MODELS.get(m, m) for m, _ in cells]}, index=index)
    table["method"] = [_method(case) for _, case in cells]
    table["collective"] = [_plain(case.rpartition(" ")[2]) for _, case in cells]
    table["best possible, ms"] = 1e3 * seconds["optimal"]
    for kind in _FUSION:
        table[f"{_plain(kind)}, % over"] = gap.get(kind)
    for kind, name in (("layer_fusion", "LayerFusion"), ("optimal", "the best")):
        table[f"groups of {name}"] = groups.get(kind)
    for kind, name in (
        ("mg_wfbp", "MG-WFBP"),
        ("layer_fusion", "LayerFusion"),
        ("optimal", "the best"),
    ):
        table[f"{name} found in, ms"] = 1e3 * search.get(kind)
    return table.reset_index(drop=True)


def _speed(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """GB/s of float32 input, beside a copy in the same run and what PyTorch brings."""
    figures.rows(results, "speed", "encode_speed")
    rows = results[(results["experiment"] == "speed") & (results["status"] == "ok")]
    ours = rows.pivot_table("value", "case", "metric", sort=False)
    named = {
        "copy_speed": "copy, GB/s",
        "encode_speed": "compress, GB/s",
        "decode_speed": "decompress, GB/s",
        "query_speed": "query, GB/s",
        "total_speed": "whole, layer by layer, GB/s",
    }
    table = ours[[metric for metric in named if metric in ours]].rename(columns=named)
    if "copy_speed" in ours:
        table["compress / copy"] = ours["encode_speed"] / ours["copy_speed"].max()
    table = table.loc[_ordered(table.index)].rename_axis("method").rename_axis(columns=None)
    return table.reset_index()


def _live(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Real processes: bytes, time, agreement with the virtual-time trainer, overlap."""
    figures.rows(results, "live", "payload_bytes")
    rows = _split(results[results["experiment"] == "live"], r"(?P<method>.+) x(?P<processes>\d+)")
    rows = rows[rows["status"] == "ok"]
    keys = ["method", "processes", "variant"]
    cells = rows.pivot_table("value", keys, "metric", sort=False)
    named = {
        "payload_bytes": "bytes a step",
        "messages": "messages a step",
        "step_time": "a step, ms",
        "launched_early": "sent during backward, %",
        "difference": "largest difference",
    }
    table = cells[[metric for metric in named if metric in cells]]
    if "step_time" in table:
        table = table.assign(step_time=1e3 * table["step_time"])
    table = table.rename(columns=named).rename_axis(columns=None).reset_index()
    return table.rename(columns={"variant": "communication"})


def _theory_table(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """The theorems' left and right sides, and how fast the left one falls."""
    measured, bounds = _theorems(results)
    keys = ["theorem", "y", "t"]
    table = measured.groupby(keys)["value"].agg(["mean", "count"])
    table["bound"] = bounds.groupby(keys)["value"].mean()
    table["measured / bound"] = table["mean"] / table["bound"]
    slopes = figures.rows(results, "theory", "slope", needed=False)
    slopes = _with_groups(_split(slopes, r"Theorem (?P<theorem>\d)"))
    slopes = slopes.groupby(["theorem", "y"])["value"].mean().rename("slope")
    table = table.reset_index().join(slopes, ["theorem", "y"])
    named = {"theorem": "theorem", "y": "groups y", "t": "iterations T", "mean": "measured"}
    named |= {"count": "seeds", "slope": "slope of log measured over log T"}
    return table.rename(columns=named)


def _factors(results: pd.DataFrame, model: str, printed: Mapping[str, float]) -> Figure:
    """Scaling factors of one model: a panel a number of GPUs, a row a method."""
    rows = _scaling(results, "scaling_factor", model, MAIN)
    here = _scaling(results, "scaling_factor", model, CPU)
    rows, here = rows[rows["gpus"] > 1], here[here["gpus"] > 1]  # one alone sends nothing
    counts, names = sorted(rows["gpus"].unique()), _ordered(rows["method"].unique())
    limit = max(1.0, rows["value"].max(), here["value"].max() if len(here) else 0)
    with figures.style():
        fig = Figure(figsize=(9.4, 0.25 * len(names) + 1.5), layout="constrained")
        axes = fig.subplots(1, len(counts), sharex=True, sharey=True, squeeze=False).ravel()
        for ax, gpus in zip(axes, counts, strict=True):
            one = rows[rows["gpus"] == gpus].pivot_table("value", "method", "way").reindex(names)
            for y, name in enumerate(names):
                plain, fused = one["LW"][name], one["LF"].get(name, math.nan)
                colour = PALETTE["vermillion" if name == "Sketch-Fusion" else "blue"]
                if name == "Baseline":
                    ax.barh(y, plain, 0.66, color=INK, alpha=0.4, linewidth=0)
                    continue
                ax.barh(y, plain, 0.66, color=colour, linewidth=0)
                if fused > plain:
                    ax.barh(y, fused - plain, 0.66, plain, color=colour, alpha=0.4, linewidth=0)
                elif fused < plain:
                    ax.plot(fused, y, "|", color=INK, markersize=9, markeredgewidth=1.5)
            cpu = here[
                (here["gpus"] == gpus) & (here["way"] == "LF") & (here["method"] != "Baseline")
            ]
            cpu = cpu.set_index("method")["value"]
            ax.plot(cpu, [names.index(name) for name in cpu.index], "o", markersize=4,
                    markerfacecolor="none", markeredgecolor=INK, alpha=0.8)  # fmt: skip
            if gpus == max(counts):
                for name, value in printed.items():
                    ax.plot(value, names.index(name), **_PRINTED)
            if "Baseline" in one.index:
                ax.axvline(one["LW"]["Baseline"], color=INK, linewidth=1.1, linestyle=_DASHED)
            _bars(ax, names, "")
            ax.set_title(f"{gpus} GPUs")
        axes[0].set_xlim(0, 1.03 * limit)
        axes[0].set_xticks([0, 0.5, 1])
        axes[len(axes) // 2].set_xlabel("scaling factor")
        blue = PALETTE["blue"]
        handles = [
            Patch(color=blue, linewidth=0, label="layer-wise"),
            Patch(color=blue, alpha=0.4, linewidth=0, label="more with LayerFusion"),
            Line2D([], [], color=INK, linewidth=1.1, linestyle=_DASHED, label="baseline"),
        ]
        if len(here):
            handles.append(Line2D([], [], linestyle="", marker="o", markerfacecolor="none",
                                  markersize=4, markeredgecolor=INK,
                                  label="LayerFusion, compressing on this CPU"))  # fmt: skip
        if printed:
            handles.append(Line2D([], [], label="printed", **_PRINTED))
        figures.legend(fig, handles, columns=5)
    return fig


def _curves(ax: Axes, curves: pd.DataFrame) -> None:
    """One line a case, the mean over seeds; the band is the interval of three or more."""
    for case, rows in curves.groupby("case", sort=False):
        table = rows.pivot_table("value", "round", "seed").dropna()
        x = rows.groupby("round")["x"].mean()[table.index]
        colour = PALETTE[_CURVE.get(case, "sky")]
        ax.plot(x, table.mean(axis=1), color=colour, linewidth=1.9)
        if table.shape[1] > 2:
            low, high = np.array([t_interval(values) for _, values in table.iterrows()]).T
            ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    figures.despine(ax)


def _curve_handles(curves: pd.DataFrame) -> list[Line2D]:
    cases = [case for case in _CURVE if case in set(curves["case"])]
    return [Line2D([], [], color=PALETTE[_CURVE[c]], linewidth=1.9, label=c) for c in cases]


def _scaling(results: pd.DataFrame, metric: str, model: str | None, variant: str) -> pd.DataFrame:
    """Rows of the scaling experiment with ``method``, ``way`` (LW or LF) and ``gpus`` apart."""
    rows = figures.rows(results, "scaling", metric)
    rows = rows[(rows["variant"] == variant) & ((model is None) | (rows["model"] == model))]
    if rows.empty and variant == MAIN:
        raise ValueError(f"no results of experiment 'scaling' with {model}, {variant}")
    return _split(rows, _SCALING)


def _main(results: pd.DataFrame, experiment: str, metric: str) -> pd.DataFrame:
    rows = figures.rows(results, experiment, metric)
    return rows[rows["variant"] == MAIN]


def _theorems(results: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measured and bounding rows with ``theorem``, ``t`` and ``y`` (1 if not said) apart."""
    made = []
    for metric in ("mean_square_gradient", "bound"):
        rows = figures.rows(results, "theory", metric)
        made.append(_with_groups(_split(rows, r"Theorem (?P<theorem>\d) T=(?P<t>\d+)")))
    return made[0], made[1]


def _with_groups(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with the number of groups ``y`` that their variant says."""
    y = rows["variant"].str.extract(r"y=(\d+)")[0]
    return rows.assign(y=pd.to_numeric(y).fillna(1).astype(int))


def _split(rows: pd.DataFrame, pattern: str) -> pd.DataFrame:
    """Rows whose case matches, with its parts as columns, numbers as numbers."""
    parts = rows["case"].str.extract(f"^{pattern}$").dropna()
    for column in parts:
        if parts[column].str.fullmatch(r"\d+").all():
            parts[column] = pd.to_numeric(parts[column])
    return rows.drop(columns=parts.columns, errors="ignore").join(parts, how="inner")


def _cells(verdicts: pd.DataFrame | None, where: str) -> dict[tuple[str, str], float]:
    """Printed values of one table by (model, case)."""
    if verdicts is None:
        return {}
    rows = tables.cells(verdicts, where)
    return {(row.model, row.case): float(row.printed) for row in rows.itertuples()}


def _parts(claims: Sequence[Claim], name: str) -> Iterable:
    return (part for claim in claims if claim.id == name for part in claim.statements())


def _ranges(claims: Sequence[Claim]) -> dict[tuple[str, str], list[float]]:
    """Gains over layer-wise in the text by (method, model): least and largest, or the largest."""
    signs = ["SignSGD", "EFSignSGD"]
    said = {
        "SKF-F3a": (["Top-k"], "resnet20", ["least", "largest"]),
        "SKF-F3c": (signs, "resnet20", ["over layer-wise by up to"]),
        "SKF-F4b": (signs, "resnet50", ["over layer-wise by up to"]),
        "SKF-F5a": (signs, "lstm", ["over layer-wise by up to"]),
    }
    ranges = {}
    for name, (methods, model, labels) in said.items():
        ends = [float(part.printed) for part in _parts(claims, name) if part.label in labels]
        ranges |= {(method, model): ends for method in methods if ends}
    return ranges


def _rank(method: str) -> int:
    return _METHODS.index(method) if method in _METHODS else len(_METHODS)


def _model_rank(model: str) -> int:
    return list(_MODELS).index(model) if model in _MODELS else len(_MODELS)


def _ordered(methods: Iterable[str]) -> list[str]:
    """Methods in the document's order, others after them."""
    return sorted(methods, key=_rank)


def _method(case: str) -> str:
    return case.rpartition(" ")[0]


def _plain(name: str) -> str:
    """A name of ours in words."""
    named = {"layer_wise": "layer-wise", "layer_fusion": "LayerFusion", "mg_wfbp": "MG-WFBP"}
    return named.get(name, name.replace("_", " "))


def _family(method: str) -> str:
    return next((PALETTE[c] for c, methods in _FAMILY.values() if method in methods), INK)


def _bars(ax: Axes, names: Sequence[str], label: str) -> None:
    """Name the rows of horizontal bars, the first on top."""
    figures.despine(ax)
    ax.set_yticks(range(len(names)), list(names), fontsize=8.5)
    ax.set_ylim(len(names) - 0.5, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(label)


def _end_labels(ax: Axes, x: float, ends: Mapping[str, float]) -> None:
    """Names at the ends of lines on a logarithmic axis, moved apart where they would overlap."""
    low, high = np.log(ax.get_ylim())
    step = (high - low) / 19
    names = sorted(ends, key=ends.__getitem__)
    at = np.log([ends[name] for name in names])
    for i in range(1, len(at)):
        at[i] = max(at[i], at[i - 1] + step)
    at -= max(np.mean(at) - np.mean(np.log([ends[name] for name in names])), at[-1] - high)
    left, _ = ax.get_xlim()
    ax.set(xlim=(left, x * (x / left) ** 0.42), ylim=np.exp([low, high]))
    beside = x * (x / left) ** 0.05
    for name, y in zip(names, np.exp(at), strict=True):
        ax.plot([x, beside], [ends[name], y], color=_family(name), linewidth=0.5)
        ax.text(beside, y, f" {name}", va="center", fontsize=8, color=_family(name))


FIGURES = {
    "figure1": figure1,
    "figure2": figure2,
    "figure3": figure3,
    "figure4": figure4,
    "figure5": figure5,
    "gains": gains,
    "figure6": figure6,
    "lstm": lstm,
    "fusion": fusion,
    "theory": theory,
}
TABLES = {
    "table1": _table1,
    "table4": _table4,
    "fusion": _fusion_table,
    "speed": _speed,
    "live": _live,
    "theory": _theory_table,
}
_V100 = (
    "Computing and compressing take what Tables 1 and 4 imply for a V100, a sketch what SignSGD "
    "does; the network is simulated with the exact bytes."
)
PAGE = (
    Shown(
        "figure",
        "figure1",
        "Figure 1: why layer by layer does not scale",
        "a, scaling factors of ResNet-20 when every tensor is compressed alone, the baseline "
        "dashed. b, time to compress and decompress one tensor on this machine's CPU; PowerSGD "
        "sends flat tensors of fewer than 16,384 values as they are, so that its growth compares "
        "two ways. c, gradient tensors of common models. " + _V100,
        "Compressors scale worse than the baseline, Top-k and DGC by more than 40 %; from 2^4 to "
        "2^20 values the time of most does not double. The pictures are lost in the stored text.",
        "scaling sizes tensors",
    ),
    Shown(
        "table",
        "table1",
        "Table 1: time to compress and decompress ResNet-50's gradient",
        "Measured on this machine's CPU with our kernels, tensor by tensor and as one tensor, "
        "beside the printed numbers of a V100. The absolute numbers do not compare.",
        "SignSGD is fastest with 13 ms, DGC slowest with 242 ms, and most take more than 100 ms. "
        "DGC takes twice as long as Top-k, yet is four times as fast in Table 4.",
        "compression",
    ),
    Shown(
        "table",
        "speed",
        "How fast the compressors are here",
        "GB of float32 input a second for 25.6 million values on this machine, residual and "
        "momentum update included, beside a plain copy in the same run. PowerSGD is timed besides "
        "layer by layer and as a whole, as PyTorch's communication hook for it can only be. The "
        "baseline and FP16 write the most bytes; what they take varies several times over with "
        "how the system hands out fresh memory, so that alone in a process FP16 is much faster.",
        "",
        "speed",
    ),
    Shown(
        "table",
        "table4",
        "Table 4: throughput on 16 GPUs",
        "Samples a second of all workers, simulated at 20 Gbit/s, beside the printed ones; gain is "
        "LayerFusion to layer-wise. Last, the same with compression and computing as timed on this "
        "CPU. " + _V100 + " Sketch-Fusion and PowerSGD, which send twice, are charged for all of "
        "their compressing before the first message, a simplification that flatters them slightly. "
        "After an all-gather every worker's payload is decompressed.",
        "Sketch-Fusion is far ahead of every other, every compressor gains by LayerFusion, DGC on "
        "ResNet-20 most. It counts images a second for the LSTM too.",
        "scaling",
    ),
    Shown(
        "figure",
        "figure2",
        "Figure 2: one iteration in three groupings",
        "When one of 16 workers computes, compresses, sends and decompresses VGG-16 with sketches, "
        "as simulated on the document's V100. The dotted line ends the iteration.",
        "Layer-wise starts often, the whole model at once cannot overlap; LayerFusion is between.",
        "timeline",
    ),
    *(
        Shown(
            "figure",
            name,
            f"Figure {name[-1]}: {model}, scaling factors",
            "Throughput of n GPUs over n times that of one alone, at 20 Gbit/s. A tick marks where "
            "LayerFusion is below layer-wise. " + _V100,
            says,
            "scaling",
        )
        for name, model, says in (
            (
                "figure3",
                "ResNet-20",
                "LayerFusion improves Top-k 1.58 to 2.51 times, SignSGD and EFSignSGD up to 1.40 "
                "to 2.47 times (over the baseline and over layer-wise, as we read it).",
            ),
            (
                "figure4",
                "ResNet-50",
                "On 16 GPUs FP16 with LayerFusion reaches about 50 %, the baseline about 35 %.",
            ),
            (
                "figure5",
                "LSTM",
                "SignSGD and EFSignSGD are up to 1.41 to 2.87 times above the baseline and "
                "layer-wise compression: 1.41 and 2.87 times, as we read it.",
            ),
        )
    ),
    Shown(
        "figure",
        "gains",
        "What LayerFusion gains",
        "Scaling factor with LayerFusion over layer-wise. At one number of GPUs this is also the "
        "ratio of throughputs, so Table 4's must lie within the range that the text prints for "
        "Top-k, and below the largest gain that it prints for the signs.",
        "Top-k gains 1.58 to 2.51 times on ResNet-20 in the text and 1.10 times in Table 4.",
        "gains scaling",
    ),
    Shown(
        "table",
        "fusion",
        "How near the searches come to the best grouping",
        "Iteration time over that of the best of all groupings of consecutive tensors, found "
        "exactly, for 16 workers on the document's V100; groups, and the time to search here.",
        "Its search is heuristic, in O(N log N), and stops where another group gains little.",
        "fusion",
    ),
    Shown(
        "figure",
        "fusion",
        "How near the searches come, drawn",
        "How far each way of grouping is from the best one, a row a method and its collective. The "
        "axis is linear below 1 %.",
        "",
        "fusion",
    ),
    Shown(
        "figure",
        "figure6",
        "Figure 6: accuracy over time",
        "Trained for real, with time simulated for 16 V100 at 20 Gbit/s. Bands are 95 % intervals. "
        "Right, Sketch-Fusion with errors fed back, without (Algorithm 1 as printed), and with "
        "HEAVYMIX choosing what is sent. ImageNet is not to be had.",
        "Sketch-Fusion converges in 5.2 to 18.6 % less time than the baseline and in 20 % less "
        "than DGC, which fails on ImageNet.",
        "figure6",
    ),
    Shown(
        "figure",
        "lstm",
        "The LSTM on Penn Treebank",
        "Perplexity over simulated time and over the bytes that one worker sent and received.",
        "Nothing: only its throughput is printed.",
        "lstm",
    ),
    Shown(
        "figure",
        "theory",
        "Theorems 1 and 2",
        "Mean squared gradient over T iterations of a quadratic with known constants, and the "
        "bound; y (paler lines) is the number of groups, with which Theorem 2's bound grows.",
        "Both fall as 1/√(BT).",
        "theory",
    ),
    Shown(
        "table",
        "theory",
        "Theorems 1 and 2, in numbers",
        "Means over seeds. The slope is fitted over all T and should be near -0.5 where the "
        "bound's first term rules.",
        "",
        "theory",
    ),
    Shown(
        "table",
        "live",
        "Real processes",
        "The same compressors in processes that talk over the loopback device with gloo, messages "
        "started while the backward pass runs. The difference is the largest of any parameter to "
        "the virtual-time trainer; ordered sums in rank order, native as gloo does.",
        "",
        "live",
    ),
)
