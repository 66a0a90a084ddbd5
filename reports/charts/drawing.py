"""Drawing what figures declare: ``draw(figure, rows, claims)``."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Polygon, Rectangle

from slowlink.reports import charts
from slowlink.reports.charts import (
    INK,
    Band,
    Bars,
    Chart,
    Dots,
    Heat,
    Layer,
    Line,
    Lines,
    Missing,
    Printed,
    Rows,
    Scatter,
    Tiles,
    Timeline,
    look,
    units,
)
from slowlink.reports.charts.data import (
    Chosen,
    Data,
    chosen,
    curve,
    groups,
    keys,
    left_out,
    means,
    name_of,
    ordered,
    title_of,
    unit_of,
)
from slowlink.reports.charts.look import DASHES, PALETTE, Looks, colour
from slowlink.reports.evidence import number

_WIDTH, _NARROW, _LANE, _TALL = 8.6, 6.4, 0.27, 3.4
"""Widths of a figure and of one with a single panel; heights of a row of names and of a chart
without such rows. Inches."""
_POINTS = 16
"""Places up to which the points of a line are marked."""
_LATE = {"late": "never", "failed": "failed"}


def draw(figure: charts.Figure, rows: pd.DataFrame, claims: Iterable[Any] = ()) -> Figure:
    """Draw a figure of the rows of its experiments and the claims of its document.

    Raises
    ------
    Missing
        Rows that its first layers need were not run.
    ValueError
        The declaration does not fit the rows; the text names the figure and the coordinate.
    """
    data = Data(figure, rows, claims)
    with look.style():
        return _Drawing(data).draw()


@dataclass
class _Series:
    """The rows of one layer, and how it is drawn."""

    layer: Layer
    chosen: Chosen

    def at(self, here: Mapping[str, Any]) -> _Series:
        """The rows of it that have these coordinates."""
        return _Series(self.layer, self.chosen.at(**here))

    def telling(self, names: Iterable[str]) -> list[str]:
        """Those of the names that its rows have, each once."""
        return [name for name in dict.fromkeys(names) if name in self.chosen.table]


@dataclass
class _Plot:
    """A chart with its rows chosen, before it has axes."""

    chart: Chart
    series: list[_Series]
    panels: list[Any]
    places: dict[str, list[Any]] = field(default_factory=dict)
    unit: str = ""
    x_unit: str = ""
    axes: list[Axes] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def main(self) -> _Series:
        return self.series[0]

    @property
    def beside(self) -> bool:
        """Whether something that the legend names stands beside its own rows."""
        return any(one.layer.name for one in self.series[1:])

    @property
    def factor(self) -> float:
        return units.factor(self.unit)


class _Drawing:
    def __init__(self, data: Data) -> None:
        self.data, self.figure = data, data.figure
        self.style = data.figure.style
        self.looks = Looks(self.style)
        self.handles: dict[str, Any] = {}
        # Values by what they choose and coordinate, of all panels.
        self.told: dict[tuple[str, str], set[Any]] = {}

    # Layout --------------------------------------------------------------------------------------

    def draw(self) -> Figure:
        given = self.figure.chart
        lines = [given] if isinstance(given, Chart) else list(given)
        if isinstance(given, Chart) or all(isinstance(one, Chart) for one in lines):
            lines = [lines]
        plots = [[self._plot(chart) for chart in line] for line in lines]
        self._give_looks([plot for line in plots for plot in line])
        cells = []
        for line in plots:
            every = [(plot, panel) for plot in line for panel in plot.panels]
            most = (len(line) == 1 and line[0].chart.columns) or len(every)
            cells += [every[i : i + most] for i in range(0, len(every), most)]
        columns = max(map(len, cells))
        heights = [max(self._height(plot) for plot, _ in line) for line in cells]
        width = _NARROW if columns == 1 and len(cells) == 1 else _WIDTH
        fig = Figure(figsize=(width, sum(heights)))
        widths = [plot.chart.width for plot, _ in max(cells, key=len)]
        grid = fig.add_gridspec(len(cells), columns, width_ratios=widths, height_ratios=heights)
        for y, line in enumerate(cells):
            for x, (plot, panel) in enumerate(line):
                self._panel(fig.add_subplot(grid[y, x], **self._shared(plot)), plot, panel)
        for line in plots:
            for plot in line:
                self._finish(plot)
        self._labels(cells)
        self._texts(fig, [plot for line in plots for plot in line])
        return fig

    def _height(self, plot: _Plot) -> float:
        if plot.chart.height:
            return plot.chart.height
        lanes = max((len(self._lanes(plot, panel)) for panel in plot.panels), default=0)
        return max(1.9, _LANE * self._room(plot) * lanes + 1.1) if lanes else _TALL

    def _room(self, plot: _Plot) -> float:
        """How many times as high as usual its rows are, where colours are moved apart in them."""
        return 1 + 0.3 * (len(plot.places["colour"]) - 1) if _step(plot) else 1.0

    def _lanes(self, plot: _Plot, panel: Any) -> list[Any]:
        """The rows of a panel: those of all, unless panels do not share them."""
        lanes, chart = plot.places.get("y", []), plot.chart
        if not chart.panels or "y" in chart.share:
            return lanes
        here = [one.at({chart.panels: panel}) for one in plot.series]
        found = set(_values(here, _axis(chart.y)))
        return self._by_value([lane for lane in lanes if lane in found], chart, here[0].chosen)

    def _shared(self, plot: _Plot) -> dict[str, Axes]:
        first = plot.axes[0] if plot.axes else None
        return {f"share{way}": first for way in plot.chart.share} if first else {}

    def _panel(self, ax: Axes, plot: _Plot, panel: Any) -> None:
        chart = plot.chart
        here = {chart.panels: panel} if chart.panels else {}
        series = [one.at(here) for one in plot.series]
        plot.extra["lanes"] = self._lanes(plot, panel)
        _DRAW[type(chart)](self, ax, plot, series)
        for line in chart.lines:
            self._line(ax, plot, line, here)
        title = name_of(panel, chart.panels, self.style) if chart.panels else ""
        if callable(chart.title):
            title = chart.title(series[0].chosen.table)
        elif chart.title and not plot.axes:
            title = f"{chart.title}: {title}" if title else chart.title
        ax.set_title(title)
        plot.axes.append(ax)

    def _labels(self, cells: list[list[tuple[_Plot, Any]]]) -> None:
        """Axes are named where they are not the same as their neighbours'."""
        for y, line in enumerate(cells):
            seen: dict[int, int] = {}
            for x, (plot, _) in enumerate(line):
                at = seen[id(plot)] = seen.get(id(plot), -1) + 1
                ax = plot.axes[sum(p is plot for before in cells[:y] for p, _ in before) + at]
                same = x and self._same_lanes(line[x - 1][0], plot)
                if (at and "y" in plot.chart.share) or same:
                    ax.tick_params(labelleft=False)
                    ax.set_ylabel("")
                below = y + 1 < len(cells) and x < len(cells[y + 1])
                if below and cells[y + 1][x][0] is plot and "x" in plot.chart.share:
                    ax.tick_params(labelbottom=False)
                    ax.set_xlabel("")
                wide = sum(p is plot for p, _ in line)
                if wide > 3 and at != wide // 2:
                    ax.set_xlabel("")

    def _same_lanes(self, one: _Plot, other: _Plot) -> bool:
        mine, its = one.places.get("y"), other.places.get("y")
        return one is not other and bool(mine) and mine == its

    def _texts(self, fig: Figure, plots: Sequence[_Plot]) -> None:
        cells = [self._label(p) for p in plots if isinstance(p.chart, Heat) and not p.chart.title]
        told = [f"Cells: {'; '.join(dict.fromkeys(cells))}"] * bool(cells)
        told += left_out(one.chosen for plot in plots for one in plot.series)
        look.legend(fig, list(self.handles.values()), told)

    # Rows ----------------------------------------------------------------------------------------

    def _plot(self, chart: Chart) -> _Plot:
        by = _coordinates(chart)
        main = Layer(chart.rows, mark="")
        if isinstance(chart, Timeline):
            series = [_Series(main, self._spans(chart, by))]
        else:
            series = [_Series(main, self.data.choose(chart.rows, by))]
            needed = [name for name in by if name in _flat(chart.x) + _flat(chart.y)]
            for layer in chart.also:
                try:
                    known = [] if isinstance(layer.rows, Printed) else needed
                    found = self.data.choose(
                        layer.rows,
                        known,
                        [name for name in by if name not in known],
                        several=layer.mark == "span",
                    )
                except Missing:  # what stands beside need not have been run
                    continue
                if len(found.table):
                    series.append(_Series(layer, found))
        for one in series:
            for name in ("x", "y"):
                several = getattr(chart, name)
                if isinstance(several, tuple):
                    self._join(one.chosen, several)
        panels = [None]
        if chart.panels:
            panels = ordered(_values(series[:1], chart.panels), chart.panels, self.style)
        plot = _Plot(chart, series, panels)
        self._order(plot)
        self._units(plot)
        return plot

    def _join(self, chosen: Chosen, several: tuple[str, ...]) -> None:
        for table in (chosen.table, chosen.left):
            if set(several) <= set(table.columns):
                table[_axis(several)] = [
                    tuple(name_of(v, n, self.style) for v, n in zip(row, several, strict=True))
                    for row in keys(table, several)
                ]

    def _spans(self, chart: Timeline, by: list[str]) -> Chosen:
        """Begins and ends of the same coordinates as a row each, the end as ``until``."""
        ends = {}
        for name in ("begin", "end"):
            what = chart.rows if isinstance(chart.rows, Rows) else Rows("")
            what = Rows(getattr(chart, name), what.where, what.experiment, prepare=what.prepare)
            rows = self.data._of(what)
            rows = rows[rows["metric"] == what.metric]
            others = rows.columns.difference(
                ["metric", "value", "unit", "status", "reason", "experiment"], sort=False
            )
            place = [name for name in others if rows[name].nunique(dropna=False) > 1]
            ends[name] = self.data.choose(what, list(dict.fromkeys([*by, *place])))
        begin, end = ends["begin"].table, ends["end"].table
        on = [one for one in begin.columns if one not in ("value", "metric")]
        both = begin.merge(end[[*on, "value"]].rename(columns={"value": "until"}), on=on)
        return Chosen(both, ends["begin"].left, ends["begin"].unit)

    def _order(self, plot: _Plot) -> None:
        """The values of every categorical axis, in order."""
        chart = plot.chart
        axes = {Dots: "y", Bars: "y", Timeline: "y", Heat: "xy", Tiles: "xy"}.get(type(chart), "")
        for way in axes:
            name = _axis(getattr(chart, way))
            plot.places[way] = ordered(_values(plot.series, name), name, self.style)
            if isinstance(getattr(chart, way), tuple):
                plot.places[way] = self._ordered_together(plot, getattr(chart, way))
        if "y" in plot.places:
            plot.places["y"] = self._by_value(plot.places["y"], chart, plot.main.chosen)
        for what in ("colour", "marker", "style"):
            name = getattr(chart, what)
            if name:
                plot.places[what] = ordered(_values(plot.series, name), name, self.style)
        if chart.shade:
            plot.places["shade"] = ordered(
                plot.main.chosen.table[chart.shade], chart.shade, self.style
            )

    def _by_value(self, lanes: list[Any], chart: Chart, chosen: Chosen) -> list[Any]:
        """Rows of a chart by their means, if it wants them so."""
        if not chart.order:
            return lanes
        name = _axis(chart.y)
        means = chosen.table.groupby(name)["value"].mean()
        if isinstance(chart, Heat):  # by the last column, then by those before
            wide = chosen.table.pivot_table("value", name, _flat(chart.x)[0])
            wide = wide.sort_values(list(wide.columns[::-1]), na_position="last")
            means = pd.Series(range(len(wide)), wide.index)
        sign = -1 if chart.order.startswith("-") else 1
        return sorted(lanes, key=lambda v: sign * means.get(v, math.inf))

    def _give_looks(self, plots: Sequence[_Plot]) -> None:
        """Choose the looks of all values before any is drawn, in the order of legends."""
        for what, kinds in (("colour", ("colour", "marker", "dashes")), ("marker", ("marker",)),
                            ("style", ("style",))):  # fmt: skip
            values = dict.fromkeys(v for plot in plots for v in plot.places.get(what, ()))
            for kind in kinds:
                self.looks.give(kind, values)
            for plot in plots:
                told = self.told.setdefault((what, getattr(plot.chart, what)), set())
                told.update(plot.places.get(what, ()))

    def _ordered_together(self, plot: _Plot, several: tuple[str, ...]) -> list[Any]:
        """Places of several coordinates: in the order of the first, then of the second, …"""
        name = _axis(several)
        parts = [t for one in plot.series for t in (one.chosen.table, one.chosen.left)]
        table = pd.concat([part for part in parts if name in part and len(part)])
        table = table.drop_duplicates(name)
        orders = {name: ordered(table[name], name, self.style) for name in several}
        for name in reversed(several):
            rank = {v: i for i, v in enumerate(orders[name])}
            table = table.sort_values(name, key=lambda c, rank=rank: c.map(rank), kind="stable")
        return list(table[_axis(several)])

    def _units(self, plot: _Plot) -> None:
        chart = plot.chart
        tables = [one.chosen.table for one in plot.series]
        values = [v for t in tables for v in t["value"]]
        if isinstance(chart, Timeline):
            values = list(tables[0]["until"])
        log = ("x" if isinstance(chart, Dots | Bars) else "y") in chart.log
        known = plot.main.chosen.unit
        plot.unit = chart.unit or units.fitting(known, values, log)
        if isinstance(chart, Lines | Scatter):
            name = _flat(chart.x)[0]
            unit = self._x_unit(name)
            scale = units.base(unit)[1]
            for one in plot.series:
                if name in one.chosen.table and scale != 1:
                    one.chosen.table[name] *= scale
            xs = [v for t in tables if name in t for v in t[name]]
            plot.x_unit = units.fitting(units.base(unit)[0], xs, "x" in chart.log)

    def _x_unit(self, name: str) -> str:
        rows = self.data.rows
        if name not in rows and (rows["metric"] == name).any():
            return units.base(rows.loc[rows["metric"] == name, "unit"].iloc[0])[0]
        return unit_of(name, self.style)

    # Marks ---------------------------------------------------------------------------------------

    def _look(self, chart: Chart, layer: Layer, place: dict[str, Any]) -> dict[str, Any]:
        """Colour, marker, dashes, width and paleness of what has these coordinates."""
        found = {"color": PALETTE["blue"], "marker": "o", "linestyle": "-", "width": 2.0}
        value = place.get(chart.colour)
        if chart.colour and value is not None and value == value:
            own = self.looks.known(value)
            found["color"] = colour(self.looks.of(value, "colour"))
            found["marker"] = self.looks.of(value, "marker")
            found["width"] = own.width
            found["linestyle"] = DASHES[self.looks.of(value, "dashes")]
        elif chart.colour:
            found["color"] = look.INK
        if chart.marker in place:
            found["marker"] = self.looks.of(place[chart.marker], "marker")
        if chart.style in place:
            value = place[chart.style]
            found["linestyle"] = DASHES[self.looks.of(value, "style")]
            found["width"] *= self.looks.known(value).width / 2
        if layer.colour or isinstance(layer.rows, Printed):
            found["color"] = colour(layer.colour)
        if layer.mark == "line":
            found["linestyle"] = DASHES[layer.style]
            found["width"] = 1.2
        return found

    def _legends(self, plot: _Plot, kind: str, skip: Sequence[str] = ()) -> None:
        """Entries for the values of colour, marker and style, and for layers that have names."""
        chart = plot.chart
        for what in ("colour", "marker", "style"):
            name = getattr(chart, what)
            values = plot.places.get(what, [])
            alone = len(self.told[what, name]) < 2
            if not name or name in skip or (alone and not plot.beside):
                continue
            if what != "colour" and name == chart.colour:
                continue
            for value in values:
                label = name_of(value, name, self.style)
                ink = look.INK if what != "colour" else colour(self.looks.of(value, "colour"))
                drawn = self._look(chart, plot.main.layer, {name: value})
                # A shape in the legend is one of the markers, where these mean something else.
                plain = kind == "dot" and chart.marker not in ("", name)
                if what == "colour" and (kind == "patch" or plain):
                    entry: Any = Patch(facecolor=ink, edgecolor=look.INK, linewidth=0.3)
                elif kind == "line":
                    marked = what == "colour" and plot.extra.get("marked", True)
                    entry = Line2D([], [], color=ink, linewidth=min(drawn["width"], 2.4),
                                   linestyle=drawn["linestyle"], markersize=6,
                                   marker=drawn["marker"] if marked else None)  # fmt: skip
                else:
                    entry = Line2D([], [], color=ink, linestyle="", markersize=6,
                                   marker=drawn["marker"])  # fmt: skip
                self._entry(entry, label)
        told = chart.colour and chart.colour not in skip  # by its entries above
        if plot.beside and not told and isinstance(chart, Lines | Dots):
            drawn = self._look(chart, plot.main.layer, {})
            line = drawn["linestyle"] if kind == "line" else ""
            entry = Line2D([], [], color=drawn["color"], linestyle=line, marker=drawn["marker"])
            self._entry(entry, chart.name)
        for one in plot.series[1:]:
            if one.layer.name:
                self._entry(_sample(one.layer), one.layer.name)

    def _entry(self, entry: Any, label: str) -> None:
        """What the legend shows; of entries with the same label the first."""
        entry.set_label(label)
        self.handles.setdefault(label, entry)

    def _line(self, ax: Axes, plot: _Plot, line: Line | Band, here: dict[str, Any]) -> None:
        across = isinstance(plot.chart, Lines | Scatter)
        if isinstance(line, Band):
            span = ax.axhspan if across else ax.axvspan
            low, high = plot.factor * line.low, plot.factor * line.high
            span(low, high, color=look.INK, alpha=0.1, linewidth=0, zorder=0)
            if line.name:
                entry = Rectangle((0, 0), 1, 1, color=look.INK, alpha=0.1, linewidth=0)
                self._entry(entry, line.name)
            return
        draw = ax.axhline if across else ax.axvline
        drawn = {"linewidth": 1.2, "linestyle": DASHES[line.style]}
        for value, ink in self._levels(plot, line, here):
            draw(plot.factor * value, color=ink, **drawn)
            text = line.text.format(number(float(f"{plot.factor * value:.6g}")))
            if text and across:
                ax.text(1.02, plot.factor * value, text, va="center", fontsize=8, color=ink,
                        transform=ax.get_yaxis_transform())  # fmt: skip
            elif text:
                ax.text(plot.factor * value, 1.0, text, ha="center", va="bottom", fontsize=8,
                        color=ink, transform=ax.get_xaxis_transform())  # fmt: skip
            if line.name:
                label = line.name.format(number(float(f"{plot.factor * value:.6g}")))
                self._entry(Line2D([], [], color=colour(line.colour), **drawn), label)

    def _levels(self, plot: _Plot, line: Line, here: dict[str, Any]) -> list[tuple[float, str]]:
        """Where a line lies in a panel, and in which colour."""
        ink = colour(line.colour)
        if isinstance(line.at, int | float):
            return [(float(line.at), ink)]
        if isinstance(line.at, str):
            value = self.data.value(line.at)
            return [] if value is None else [(value, ink)]
        try:
            optional = [*here, *_telling(plot.chart)]
            some = self.data.choose(line.at, [], optional, several=True)
            times = self._mean(line.times, here) if line.times else 1.0
        except Missing:
            return []
        found = some.at(**here).table
        if line.colour:
            return [(times * value, ink) for value in found["value"].unique()]
        layer = Layer("")  # which has the looks of the chart's own rows
        return [
            (times * one["value"], self._look(plot.chart, layer, one)["color"])
            for one in found.drop_duplicates("value").to_dict("records")
        ]

    def _mean(self, rows: Rows, here: dict[str, Any]) -> float:
        """Over the seeds of a panel. Raises Missing where a run was late or failed."""
        found = self.data.choose(rows, [], [*here]).at(**here)
        if len(found.left) or found.table.empty:
            raise Missing("not all of it arrived")
        return found.estimate(found.table).mean

    # Kinds ---------------------------------------------------------------------------------------

    def lines(self, ax: Axes, plot: _Plot, series: list[_Series]) -> None:
        chart: Any = plot.chart
        x, (x_factor, factor) = _flat(chart.x)[0], (units.factor(plot.x_unit), plot.factor)
        places = {v for one in series if x in one.chosen.table for v in one.chosen.table[x]}
        plot.extra.setdefault("marked", chart.marks or len(places) <= _POINTS)
        named: list[tuple[float, float, str, str]] = []
        curves: list[tuple[np.ndarray, np.ndarray]] = []
        for one in series:
            layer = one.layer
            telling = one.telling(_telling(chart))
            for place, rows in _in_order(one.chosen.table, telling, plot):
                at = dict(zip(telling, place, strict=True))
                drawn = self._look(chart, layer, at)
                at_x, values = curve(rows, x, chart.smooth)
                shown = at_x > 0 if "x" in chart.log else slice(None)
                at_x = x_factor * at_x[shown]
                ends = [factor * one[shown] for one in means(values, one.chosen.geometric)]
                if chart.shade in at:
                    shades = plot.places["shade"]
                    steps = np.linspace(0.4, 1, len(shades))
                    drawn["alpha"] = float(steps[shades.index(at[chart.shade])])
                self._curve(ax, at_x, ends, layer, drawn, plot)
                curves.append((at_x, ends[0]))
                if chart.direct and not layer.mark:
                    told = " ".join(name_of(v, n, self.style) for n, v in at.items())
                    named.append((at_x[-1], ends[0][-1], told, drawn["color"]))
        look.despine(ax)
        look.scale(ax, "x", "x" in chart.log, [x_factor * v for v in places])
        if chart.after:
            self._after(ax, plot, curves)
        if named:
            plot.extra.setdefault("ends", []).append((ax, named))
        ax.set_xlabel(units.heading(title_of(x, self.style), plot.x_unit))
        ax.set_ylabel(self._label(plot))
        telling = _telling(chart) if chart.direct else []
        self._legends(plot, "dot" if chart.marks else "line", telling)

    def _curve(
        self,
        ax: Axes,
        x: np.ndarray,
        ends: Sequence[np.ndarray],
        layer: Layer,
        drawn: dict[str, Any],
        plot: _Plot,
    ) -> None:
        """The mean over seeds, and its interval as a band."""
        chart: Any = plot.chart
        mean, low, high = ends
        if layer.mark and layer.mark != "line":
            ax.plot(x, mean, linestyle="", **_hollow(layer, drawn["color"]))
            return
        marked = plot.extra["marked"] and layer.mark != "line"
        joined = not chart.marks or layer.mark == "line"
        ax.plot(
            x, mean, color=drawn["color"], alpha=drawn.get("alpha"), linewidth=drawn["width"],
            linestyle=drawn["linestyle"] if joined else "", markeredgewidth=0,
            marker=drawn["marker"] if marked else None, markersize=4 + drawn["width"],
            drawstyle="steps-post" if chart.steps else "default",
        )  # fmt: skip
        if chart.bands and np.isfinite(low).any():
            ax.fill_between(x, low, high, color=drawn["color"], alpha=0.18, linewidth=0)

    def _after(self, ax: Axes, plot: _Plot, drawn: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """Let the axes show the later part of every curve of all panels."""
        chart: Any = plot.chart
        plot.extra.setdefault("drawn", []).extend(drawn)
        drawn = plot.extra["drawn"]
        late = np.concatenate([y[x >= chart.after * x.max()] for x, y in drawn])
        room = 0.06 * (late.max() - late.min()) or 0.5
        low = late.min() - room
        ax.set_ylim(low, late.max() + room)
        if "x" in chart.log:  # the steep beginning would leave most of the axis empty
            ax.set_xlim(left=min(x[y >= low].min() for x, y in drawn) / 1.1)

    def dots(self, ax: Axes, plot: _Plot, series: list[_Series]) -> None:
        chart: Any = plot.chart
        y, lanes = _axis(chart.y), plot.extra["lanes"]
        self._name_lanes(ax, plot)
        for one in sorted(series, key=lambda one: one.layer.mark == ""):
            self._dots(ax, plot, one, y, lanes)
        self._late(ax, plot, series[0].chosen, y)
        look.scale(ax, "x", "x" in chart.log)
        ax.set_xlabel(self._label(plot))
        self._legends(plot, "dot", [y])

    def _late(self, ax: Axes, plot: _Plot, chosen: Chosen, y: str) -> None:
        """Beside a row, how many of the runs have no value."""
        chart, left = plot.chart, chosen.left
        telling = [n for n in dict.fromkeys([*_telling(chart), y]) if n in left]
        for place, gone in groups(left, telling) if y in left else ():
            at = dict(zip(telling, place, strict=True))
            of = len(gone) + len(chosen.at(**at).table)
            word = _LATE[gone["status"].iloc[0]]
            told = f"→ {word}" if len(gone) == of else f"→ {len(gone)} of {of} {word}"
            ink = self._look(chart, plot.main.layer, at)["color"] if _step(plot) else look.INK
            ax.text(1.01, _place(plot, at, y), told, va="center", fontsize=8, color=ink,
                    transform=ax.get_yaxis_transform())  # fmt: skip

    def _name_lanes(self, ax: Axes, plot: _Plot) -> None:
        coordinate = _axis(plot.chart.y)
        names = [name_of(value, coordinate, self.style) for value in plot.extra["lanes"]]
        look.lanes(ax, names, max(len(self._lanes(plot, panel)) for panel in plot.panels))

    def _dots(self, ax: Axes, plot: _Plot, one: _Series, y: str, lanes: list[Any]) -> None:
        chart: Any = plot.chart
        layer, factor, table = one.layer, plot.factor, one.chosen.table
        if y not in table:
            return
        telling = one.telling([*_telling(chart), y])
        for place, rows, own in one.chosen.places(telling):
            at = dict(zip(telling, place, strict=True))
            if at[y] not in lanes:
                continue
            where = _place(plot, at, y)
            drawn = self._look(chart, layer, at)
            if layer.mark == "span":
                values = factor * rows["value"]
                ax.plot([values.min(), values.max()], [where] * 2, color=drawn["color"],
                        linewidth=4, alpha=0.4, solid_capstyle="butt")  # fmt: skip
                continue
            if isinstance(chart, Dots) and chart.seeds and not layer.mark:
                ax.plot(factor * rows["value"], [where] * len(rows), "o", color=drawn["color"],
                        markersize=3.5, alpha=0.5, markeredgewidth=0)  # fmt: skip
            if own is None:
                continue
            mean, low, high = own
            if layer.mark:
                ax.plot(factor * mean, where, linestyle="", zorder=3,
                        **_hollow(layer, drawn["color"]))  # fmt: skip
                continue
            ends = factor * np.array([[mean - low], [high - mean]])
            ax.errorbar(
                factor * mean, where, xerr=ends if math.isfinite(low) else None,
                fmt=drawn["marker"], color=drawn["color"], markersize=6.5, elinewidth=2.4,
                markeredgewidth=0, zorder=3,
            )  # fmt: skip

    def bars(self, ax: Axes, plot: _Plot, series: list[_Series]) -> None:
        chart: Any = plot.chart
        y, lanes = _axis(chart.y), plot.extra["lanes"]
        self._name_lanes(ax, plot)
        telling = [n for n in dict.fromkeys([y, chart.colour]) if n]
        found = series[0].chosen.estimates(telling)
        found["mean"] *= plot.factor
        begin = dict.fromkeys(lanes, 0.0)
        totals = found.groupby(y)["mean"].sum() if chart.stacked else found["mean"]
        most = min(totals.max(), chart.cut * totals.median()) if chart.cut else math.inf
        height = _step(plot) or 0.72
        for value in plot.places.get("colour") or [None]:
            some = found[found[chart.colour] == value] if value is not None else found
            for _, own in some.iterrows():
                at = {name: own[name] for name in telling}
                where, start = _place(plot, at, y), begin[own[y]] if chart.stacked else 0.0
                begin[own[y]] = start + own["mean"]
                start, end = min(start, most), min(begin[own[y]], most)
                ax.barh(where, end - start, height * 0.94, start, linewidth=0,
                        color=self._look(chart, series[0].layer, at)["color"])  # fmt: skip
                if chart.written and not chart.stacked:
                    self._written(ax, end, where, own["mean"], most)
        if chart.written and chart.stacked:
            for place, total in begin.items():
                self._written(ax, min(total, most), lanes.index(place), total, most)
        if chart.written:
            ax.margins(x=0.18)
        for one in series[1:]:
            self._dots(ax, plot, one, y, lanes)
        look.scale(ax, "x", "x" in chart.log)
        ax.set_xlabel(self._label(plot))
        self._legends(plot, "patch", [y])

    def _written(self, ax: Axes, end: float, where: float, value: float, most: float) -> None:
        text = f"{number(float(f'{value:.3g}'))}{' →' * bool(value > most)}"
        ax.annotate(text, (end, where), (3, 0), textcoords="offset points", va="center",
                    fontsize=8)  # fmt: skip

    def heat(self, ax: Axes, plot: _Plot, series: list[_Series]) -> None:
        chart: Any = plot.chart
        x, y = _axis(chart.x), _axis(chart.y)
        rows, columns = plot.places["y"], plot.places["x"]
        wide = self._wide(series[0].chosen, plot) * plot.factor
        everywhere = plot.main.chosen.table["value"] * plot.factor
        low, high = everywhere.min(), everywhere.max()
        norm = (LogNorm if low > 0 else Normalize)(low, high if high > low else low + 1)
        texts = wide.map(lambda v: f"{v:.3g}" if math.isfinite(v) else "–").to_numpy()
        shown = wide.fillna(low)
        ink = to_rgb(PALETTE["blue"])
        ends = [(*ink, 0.04), (*ink, 0.54)]
        if low < 0 < high:  # two colours, as far on both sides
            norm = Normalize(-max(high, -low), max(high, -low))
            ends = [(*to_rgb(PALETTE["vermillion"]), 0.54), (1, 1, 1, 0), ends[1]]
        tint = LinearSegmentedColormap.from_list("tint", ends)
        sns.heatmap(shown, ax=ax, cmap=tint, norm=norm, cbar=False, annot=texts, fmt="",
                    annot_kws={"fontsize": 8, "color": look.INK})  # fmt: skip
        ax.set_xticks(np.arange(len(columns)) + 0.5, [name_of(v, x, self.style) for v in columns],
                      rotation=0)  # fmt: skip
        ax.set_yticks(np.arange(len(rows)) + 0.5, [name_of(v, y, self.style) for v in rows],
                      rotation=0)  # fmt: skip
        ax.tick_params(length=0)
        self._outlines(ax, plot)
        if chart.mark:
            self._marked(ax, plot, chart.mark)
        named = all(isinstance(value, str) for value in rows)  # names say themselves what they are
        ax.set_xlabel(title_of(x, self.style))
        ax.set_ylabel("" if named else title_of(y, self.style))

    def tiles(self, ax: Axes, plot: _Plot, series: list[_Series]) -> None:
        chart = plot.chart
        x, y = (_axis(getattr(chart, way)) for way in "xy")
        rows, columns = plot.places["y"], plot.places["x"]
        everywhere = plot.main.chosen.table
        counts = everywhere[chart.colour].value_counts()

        def standing(table: pd.DataFrame, by: list[str]) -> dict[tuple, list[Any]]:
            return {place: list(some[chart.colour]) for place, some in groups(table, by)}

        all_places = standing(everywhere, [n for n in (chart.panels, x, y) if n]).values()
        numbers = _numbers(all_places, counts)
        here = standing(series[0].chosen.table, [x, y])
        sure = series[0].chosen.table.groupby([x, y])["value"].min()
        for at in ((i, j) for i in range(len(columns)) for j in range(len(rows))):
            place = columns[at[0]], rows[at[1]]
            names, doubt = here.get(place, []), not sure.get(place, 1)
            _tile(ax, *at, [numbers[name] for name in names[:2]], PALE if doubt else CLEAR)
            said = [name_of(name, chart.colour, self.style) for name in names[:2]]
            text = "\n= ".join("\n".join(textwrap.wrap(name, LINE)) for name in said)
            text += " +" * (len(names) > 2) + " ?" * doubt
            size = min(9, 27.5 / len(columns))
            ax.text(*at, text or "–", ha="center", va="center", fontsize=size, linespacing=1.05)
        ax.set(xlim=(-0.5, len(columns) - 0.5), ylim=(-0.5, len(rows) - 0.5))
        ax.set_xticks(range(len(columns)), [name_of(v, x, self.style) for v in columns])
        ax.set_yticks(range(len(rows)), [name_of(v, y, self.style) for v in rows])
        ax.tick_params(length=0)
        sns.despine(ax=ax, left=True, bottom=True)
        ax.set_xlabel(title_of(x, self.style))
        ax.set_ylabel(title_of(y, self.style))
        for name, code in numbers.items():
            label = name_of(name, chart.colour, self.style)
            self._entry(Patch(**_paint(code)), label)

    def _wide(self, chosen: Chosen, plot: _Plot) -> pd.DataFrame:
        x, y = (_axis(getattr(plot.chart, way)) for way in "xy")
        found = chosen.estimates([y, x]).pivot(index=y, columns=x, values="mean")
        return found.reindex(index=plot.places["y"], columns=plot.places["x"])

    def _outlines(self, ax: Axes, plot: _Plot) -> None:
        chart: Any = plot.chart
        for i, one in enumerate(chart.outlines):
            value = self.data.value(one.printed)
            if value is None:
                continue
            chosen = self.data.choose(one.rows or chart.rows, _coordinates(chart))
            inside = (np.abs(self._wide(chosen, plot) / value - 1) <= one.within).to_numpy()
            outline(ax, inside, colour(one.colour), inset=0.035 + 0.07 * i)
            if not inside.any():
                continue
            label = one.name.format(number(value)) or f"within {one.within:.0%} of {number(value)}"
            self._entry(Line2D([], [], color=colour(one.colour), linewidth=2.2), label)

    def _marked(self, ax: Axes, plot: _Plot, layer: Layer) -> None:
        try:
            found = self.data.choose(layer.rows, _coordinates(plot.chart)).table
        except Missing:
            return
        x, y = (_flat(getattr(plot.chart, way))[0] for way in "xy")
        drawn = {"marker": layer.mark, "markerfacecolor": "none", "markeredgecolor": look.INK,
                 "markeredgewidth": 1.6}  # fmt: skip
        for place in found[[x, y]].drop_duplicates().itertuples(index=False):
            at = plot.places["x"].index(place[0]) + 0.5, plot.places["y"].index(place[1]) + 0.5
            ax.plot(*at, markersize=20, **drawn)
        if layer.name:
            self._entry(Line2D([], [], linestyle="", markersize=9, **drawn), layer.name)

    def timeline(self, ax: Axes, plot: _Plot, series: list[_Series]) -> None:
        chart = plot.chart
        y, lanes = _axis(chart.y), plot.extra["lanes"]
        self._name_lanes(ax, plot)
        table = series[0].chosen.table
        table = table[table["value"] < (chart.limits[1] or math.inf)]
        edge = 0.3 if len(table) < 400 else 0
        for value in plot.places.get("colour", [None]):
            one = table[table[chart.colour] == value] if value is not None else table
            begin, end = plot.factor * one["value"], plot.factor * one["until"]
            ink = colour(self.looks.of(value, "colour")) if value is not None else PALETTE["blue"]
            # Where no limit is set nothing is cut off, and a chart of many bars is smaller.
            cut = chart.limits[1] is not None
            lane = np.array([lanes.index(v) for v in one[y]])
            x, side = np.stack([begin, end, end, begin], 1), np.array([-0.36, -0.36, 0.36, 0.36])
            bars = np.stack([x, lane[:, None] + side], 2)
            ax.add_collection(PolyCollection(bars, facecolor=ink, edgecolor=look.INK,
                                             linewidth=edge, clip_on=cut))  # fmt: skip
        for one in series[1:]:
            self._dots(ax, plot, one, y, lanes)
        ax.set_xlim(left=0)
        look.scale(ax, "x", False)
        ax.set_xlabel(units.heading(chart.label or "time", plot.unit))
        self._legends(plot, "patch", [y])

    def scatter(self, ax: Axes, plot: _Plot, series: list[_Series]) -> None:
        chart: Any = plot.chart
        x, (x_factor, factor) = _flat(chart.x)[0], (units.factor(plot.x_unit), plot.factor)
        telling = [n for n in dict.fromkeys([*_telling(chart), x, *_flat(chart.y)]) if n]
        points = series[0].chosen.estimates(telling)
        for place, rows in _in_order(points, [n for n in _telling(chart) if n in points], plot):
            drawn = self._look(chart, series[0].layer, dict(zip(_telling(chart), place)))  # noqa: B905
            known = rows["low"].notna()
            ax.vlines(
                x_factor * rows[x][known],
                factor * rows["low"][known],
                factor * rows["high"][known],
                color=look.INK,
                alpha=0.4,
                linewidth=1,
            )
            sns.scatterplot(x=x_factor * rows[x], y=factor * rows["mean"], ax=ax, legend=False,
                            color=drawn["color"], marker=drawn["marker"], s=45)  # fmt: skip
        if chart.equal is not None:
            self._equal(ax, points, x, x_factor, factor, chart.equal)
        look.despine(ax)
        look.scale(ax, "x", "x" in chart.log)
        if chart.named:
            some = chosen(points, chart.named)
            texts = [name_of(v, chart.y, self.style) for v in some[_axis(chart.y)]]
            ends = zip(x_factor * some[x], factor * some["mean"], texts, strict=True)
            plot.extra.setdefault("named", []).append((ax, list(ends)))
        ax.set_xlabel(units.heading(title_of(x, self.style), plot.x_unit))
        ax.set_ylabel(self._label(plot))
        self._legends(plot, "dot")

    def _equal(
        self, ax: Axes, points: pd.DataFrame, x: str, x_factor: float, factor: float, share: float
    ) -> None:
        """Where the values of ``points`` are their x, and a band around it."""
        both = np.concatenate([points[x], points["mean"]])
        ends = np.array([0.9 * both.min(), 1.1 * both.max()])
        ax.plot(x_factor * ends, factor * ends, color=look.INK, linewidth=1.2, zorder=0)
        low, high = factor * ends * (1 - share), factor * ends * (1 + share)
        ax.fill_between(
            x_factor * ends, low, high, color=look.INK, alpha=0.1, linewidth=0, zorder=0
        )
        entry = Line2D([], [], color=look.INK, linewidth=1.2)
        self._entry(entry, f"equal, ± {number(100 * share)} %")

    # When all panels of a chart are drawn -------------------------------------------------------

    def _finish(self, plot: _Plot) -> None:
        chart, first = plot.chart, plot.axes[0]
        values = "x" if isinstance(chart, Dots | Bars | Timeline) else "y"
        low, high = (None if v is None else plot.factor * v for v in chart.limits)
        for ax in plot.axes if values not in chart.share else [first]:
            if not isinstance(chart, Heat) and (low is not None or high is not None):
                most = high
                if high is None and values not in chart.log:  # room in the share of the whole axis
                    drawn = plot.axes if values in chart.share else [ax]
                    most = max(getattr(one.dataLim, f"{values}1") for one in drawn)
                    most = most + 0.05 * (most - low) if math.isfinite(most) else None
                ax.set(**{f"{values}lim": (low, most)})
            if isinstance(chart, Lines | Scatter) and not plot.extra.get("drawn"):
                look.scale(ax, "y", "y" in chart.log)
            elif isinstance(chart, Dots | Bars):
                look.scale(ax, "x", "x" in chart.log)
        for ax, ends in plot.extra.get("ends", ()):
            _end_labels(ax, ends)
        for ax, named in plot.extra.get("named", ()):
            _name_points(ax, named)

    def _label(self, plot: _Plot) -> str:
        chart = plot.chart
        what = chart.rows if isinstance(chart.rows, Rows) else Rows(str(chart.rows))
        name = chart.label
        if not name and what.relative_to is not None:
            to = " ".join(name_of(v, n, self.style) for n, v in what.relative_to.items()
                          if n != "metric")  # fmt: skip
            name = f"times that of {to}"
        if not name and isinstance(what.metric, str):
            name = title_of(what.metric, self.style)
        return units.heading(name, plot.unit)


_DRAW: dict[type, Callable[[_Drawing, Axes, _Plot, list[_Series]], None]] = {
    Lines: _Drawing.lines,
    Dots: _Drawing.dots,
    Bars: _Drawing.bars,
    Heat: _Drawing.heat,
    Tiles: _Drawing.tiles,
    Timeline: _Drawing.timeline,
    Scatter: _Drawing.scatter,
}


CLEAR, PALE = 0.55, 0.15
"""How opaque tiles are, those that are not sure, too."""

LINE = 13
"""Characters of a name that fit beside each other in a tile."""


def _numbers(places: Collection[list[Any]], counts: pd.Series) -> dict[Any, int]:
    """Numbers of those who are first somewhere, the most frequent first, then of those who only
    ever are second."""
    firsts = {names[0] for names in places}
    shown = {name for names in places for name in names[:2]}
    ordered = sorted(shown, key=lambda name: (name not in firsts, -counts[name], name))
    return {name: code for code, name in enumerate(ordered, 1)}


def _tile(ax: Axes, x: int, y: int, codes: Sequence[int], alpha: float) -> None:
    """A square in the look of the first; the second has a corner."""
    left, right, low, high = x - 0.48, x + 0.48, y - 0.48, y + 0.48
    whole = [(left, low), (right, low), (right, high), (left, high)]
    if codes[1:]:
        whole[1:3] = [(x, low), (right, high)]
        corner = [(x + 0.03, low), (right, low), (right, high - 0.06)]
        ax.add_patch(Polygon(corner, **_paint(codes[1], alpha)))
    if codes:
        ax.add_patch(Polygon(whole, **_paint(codes[0], alpha)))


def _paint(code: int, alpha: float = CLEAR) -> dict[str, Any]:
    """The look of a number: the palette in turn, then in turn hatched."""
    inks = list(PALETTE.values())
    # Lines: dots would make the figure's file many times as large.
    hatch = [None, "////", "\\\\\\\\", "xxxx"][min((code - 1) // len(inks), 3)]
    return {"facecolor": inks[(code - 1) % len(inks)], "alpha": alpha, "edgecolor": look.INK,
            "hatch": hatch, "linewidth": 0}  # fmt: skip


def outline(ax: Axes, inside: np.ndarray, ink: str, inset: float = 0.0) -> None:
    """Lines around the cells of a region, a little inside it, so that several can be told apart."""
    padded = np.pad(inside, 1)

    def end(y: int, x: int, along: tuple[int, int], out: tuple[int, int]) -> float:
        """How far the line on one side of a cell goes from its middle along that side."""
        goes_on = padded[y + 1 + along[0], x + 1 + along[1]]
        turns_out = padded[y + 1 + along[0] + out[0], x + 1 + along[1] + out[1]]
        return 0.5 + inset * (turns_out if goes_on else -1)

    for y, x in np.argwhere(inside):
        for out in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            if not padded[y + 1 + out[0], x + 1 + out[1]]:
                along = abs(out[1]), abs(out[0])
                back = -along[0], -along[1]
                ends = -end(y, x, back, out), end(y, x, along, out)
                middle = [place + 0.5 + (0.5 - inset) * way for place, way in zip((y, x), out)]  # noqa: B905
                ys, xs = ([at + way * end for end in ends] for at, way in zip(middle, along))  # noqa: B905
                ax.plot(xs, ys, color=ink, linewidth=2.2, solid_capstyle="projecting",
                        clip_on=False)  # fmt: skip


def _flat(coordinate: charts.Coordinate) -> list[str]:
    several = coordinate if isinstance(coordinate, tuple) else (coordinate,)
    return [name for name in several if name]


def _axis(coordinate: charts.Coordinate) -> str:
    """The column of an axis, which has the values of several coordinates together."""
    return "/".join(_flat(coordinate))


def _values(series: Iterable[_Series], name: str) -> list[Any]:
    """All values of a coordinate, those included of rows that are left out."""
    tables = [table for one in series for table in (one.chosen.table, one.chosen.left)]
    return [value for table in tables if name in table for value in table[name]]


def _step(plot: _Plot) -> float:
    """How far colours are moved apart in a row; 0 if they are not."""
    chart, count = plot.chart, len(plot.places.get("colour", ()))
    if count < 2 or chart.colour in _flat(chart.y):
        return 0.0
    if isinstance(chart, Bars):
        return 0.0 if chart.stacked else 0.8 / count
    return min(0.28, 0.8 / count) if isinstance(chart, Dots) and chart.dodge else 0.0


def _place(plot: _Plot, at: Mapping[str, Any], y: str) -> float:
    """Where in the rows of a chart something stands."""
    where, inks = float(plot.extra["lanes"].index(at[y])), plot.places.get("colour", [])
    if at.get(plot.chart.colour) in inks:
        where += _step(plot) * (inks.index(at[plot.chart.colour]) - (len(inks) - 1) / 2)
    return where


def _telling(chart: Chart) -> list[str]:
    """Coordinates, besides those of the axes, that tell the marks of a chart apart."""
    names = [chart.colour, chart.marker, chart.style, chart.shade]
    return [name for name in dict.fromkeys(names) if name]


def _coordinates(chart: Chart) -> list[str]:
    """Every coordinate that a chart uses."""
    names = [chart.panels, *_flat(chart.x), *_flat(chart.y), *_telling(chart)]
    named = list(getattr(chart, "named", ()))
    return [name for name in dict.fromkeys([*names, *named]) if name]


def _in_order(
    table: pd.DataFrame, telling: list[str], plot: _Plot
) -> Iterable[tuple[tuple, pd.DataFrame]]:
    """Rows by what tells them apart, in the order of the legend."""
    places = {getattr(plot.chart, what): plot.places.get(what, []) for what in
              ("colour", "marker", "style", "shade")}  # fmt: skip

    def rank(place: tuple) -> list[int]:
        known = zip(telling, place, strict=True)
        return [places[n].index(v) if v in places[n] else len(places[n]) for n, v in known]

    return sorted(groups(table, telling), key=lambda one: rank(one[0]))


def _sample(layer: Layer) -> Line2D:
    """A layer's mark, as the legend shows it."""
    ink = colour(layer.colour or INK)
    if layer.mark == "line":
        return Line2D([], [], color=ink, linewidth=1.2, linestyle=DASHES[layer.style])
    if layer.mark == "span":
        return Line2D([], [], color=ink, linewidth=4, alpha=0.4)
    return Line2D([], [], linestyle="", **_hollow(layer, ink))


def _hollow(layer: Layer, ink: str) -> dict[str, Any]:
    size = 12 if layer.mark == "|" else 6.5
    return {
        "marker": layer.mark,
        "markersize": size,
        "markeredgewidth": 2 if layer.mark == "|" else 1.4,
        "markeredgecolor": ink,
        "markerfacecolor": "none",
    }


def _end_labels(ax: Axes, ends: list[tuple[float, float, str, str]]) -> None:
    """Names at the ends of lines, moved apart where they would overlap."""
    log = ax.get_yscale() == "log"
    there, back = (np.log, np.exp) if log else (np.asarray, np.asarray)
    low, high = there(ax.get_ylim())
    left, right = ax.get_xlim()
    x = max(end[0] for end in ends)
    widest = max(len(end[2]) for end in ends)
    if ax.get_xscale() == "log":
        reach = (right / left) ** (0.03 + 0.022 * widest)
        ax.set_xlim(left, x * reach)
        beside = x * reach**0.12
    else:
        reach = (right - left) * (0.03 + 0.022 * widest)
        ax.set_xlim(left, x + reach)
        beside = x + 0.12 * reach
    ends = sorted(ends, key=lambda end: end[1])
    step = (high - low) / 19
    at = there([end[1] for end in ends]).astype(float)
    for i in range(1, len(at)):
        at[i] = max(at[i], at[i - 1] + step)
    middle = np.mean(at) - np.mean(there([end[1] for end in ends]))
    at -= max(middle, at[-1] - high)
    at += max(0.0, low - at[0])
    for (end, y, text, ink), place in zip(ends, back(at), strict=True):
        ax.plot([end, beside], [y, place], color=ink, linewidth=0.5)
        ax.annotate(text, (beside, place), (2, 0), textcoords="offset points", va="center",
                    fontsize=8, color=ink)  # fmt: skip


def _name_points(ax: Axes, named: list[tuple[float, float, str]]) -> None:
    """Names beside points, from the highest on, where they hide no other name."""
    ax.margins(x=0.15)
    placed: list[np.ndarray] = []
    for x, y, text in sorted(named, key=lambda one: -one[1]):
        here = ax.transAxes.inverted().transform(ax.transData.transform((x, y)))
        if all(abs(here[0] - at[0]) > 0.25 or abs(here[1] - at[1]) > 0.05 for at in placed):
            placed.append(here)
            ax.annotate(text, (x, y), (6, 5), textcoords="offset points", fontsize=8)
