"""Figures and tables as declarations over tidy rows: which rows, what stands on which axis.

A page is a Python file whose variables are the figures and tables that it shows, in their order::

    STYLE = Style(looks={"RAT": "green"}, units={"d": "s"})

    figure6 = Figure(
        title="Figure 6: oversubscription", shows="…", says="…", of=[experiments.figure6],
        chart=Lines(Rows("completion_time"), x="oversubscription", colour="method",
                    panels="bandwidth", log="xy"),
        style=STYLE,
    )

    @table(title="Table 1", shows="…", says="…", of=[experiments.table1])
    def table1(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame: ...

Whatever names a column of the rows is a *coordinate*: a field of :class:`testbed.results.Row`, a
key of its ``at``, ``metric``, or the name of another metric, whose value at the same place it is.
Labels, units, ticks, legends, intervals over seeds, colours and what was left out follow from the
rows (``reports.charts.drawing``). This module only declares, and imports nothing that draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas as pd

Where = Mapping[str, Any]
"""Coordinate -> the value that rows must have: one, several in a list or a set, or a function of
the list of all values that returns one or several (``max``)."""
Coordinate = str | tuple[str, ...]
"""One coordinate, or several whose values are named together."""
INK = "ink"


class Missing(ValueError):
    """What a figure or table needs was not run; the text says what. The page shows it instead."""


class Named(Protocol):
    """An experiment, as a page refers to it."""

    @property
    def name(self) -> str: ...


# What is drawn -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Which rows are drawn.

    Attributes
    ----------
    metric: one, or several, which the coordinate ``metric`` tells apart.
    where: what their coordinates must be.
    experiment: its name, or several; any of the figure's if empty.
    relative_to: rows are divided, seed by seed, by those that have these coordinates instead and
        are equal in every other coordinate that the chart uses. Ratios are averaged as logarithms.
    geometric: the rows are ratios already, averaged as such.
    prepare: arithmetic that goes before: takes the rows of the experiments, a column a coordinate,
        and returns such rows.
    """

    metric: str | Sequence[str]
    where: Where = field(default_factory=dict)
    experiment: str | Sequence[str] = ""
    relative_to: Where | None = None
    geometric: bool = False
    prepare: Callable[[pd.DataFrame], pd.DataFrame] | None = None


@dataclass(frozen=True)
class Printed:
    """Numbers that the document prints, as rows: the cells of one of its tables (``place``, such
    as "Table 2", and the metric), with the coordinates that the claims give, or single ones by
    ``ids``: claim, or claim/label of its part -> coordinates. Numbers by ``ids`` are multiplied by
    ``times``, such as 0.01 where percents stand beside shares."""

    place: str = ""
    metric: str = ""
    ids: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    times: float = 1.0
    where: Where = field(default_factory=dict)
    relative_to: Where | None = None


@dataclass(frozen=True)
class Line:
    """A line across the axis of values, at a number (in the unit of the rows), at what a claim
    prints (its id, or id/label of its part), or at the values of rows, which may differ by panel
    and, without a ``colour`` of their own, have that of the chart's rows; ratios count from the
    mean of the rows ``times``. ``text`` stands at its end, ``name`` in the legend; {} in them is
    the number."""

    at: float | str | Rows | Printed
    name: str = ""
    text: str = ""
    colour: str = INK
    style: str = "dashed"
    times: Rows | None = None


@dataclass(frozen=True)
class Band:
    """A pale band between two numbers on the axis of values."""

    low: float
    high: float
    name: str = ""


@dataclass(frozen=True)
class Layer:
    """More rows on the same axes, with another mark.

    ``mark`` is a marker of matplotlib, drawn hollow; ``line``; or ``span``, a bar from the least to
    the largest of the rows at one place. ``colour`` stands in for the chart's.
    """

    rows: Rows | Printed
    mark: str = "s"
    name: str = ""
    colour: str = ""
    style: str = "solid"


@dataclass(frozen=True)
class Chart:
    """What all kinds have.

    Attributes
    ----------
    rows: what is drawn; a text is a metric.
    colour: a coordinate whose values differ in colour and marker. marker, style: one whose values
        differ in the marker, or in the dashes, only. shade: one with paler and darker lines.
    panels: a coordinate, a panel for each of its values, ``columns`` in a line (0: all).
    title: over the first panel (over all, if panels do not say what they are): a text, or a
        function of the rows of a panel.
    label: of the axis of values; the metric's name if empty. unit: the one to show values in, such
        as "MiB", where the fitting one is not wanted.
    log: "x", "y" or "xy". limits: of the axis of values, in the unit of the rows.
    also, lines: what else is drawn.
    name: of its own marks in the legend, where other layers have names and colours none.
    order: values of ``y`` by rising ("value") or falling ("-value") means instead of the style's.
    share: the axes that panels have in common: "xy", "x", "y" or ""; where not y, each has its own
        rows, in their own order.
    """

    rows: Rows | Printed | str = ""
    x: Coordinate = ""
    y: Coordinate = ""
    colour: str = ""
    marker: str = ""
    style: str = ""
    shade: str = ""
    panels: str = ""
    columns: int = 0
    title: str | Callable[[pd.DataFrame], str] = ""
    label: str = ""
    unit: str = ""
    log: str = ""
    limits: tuple[float | None, float | None] = (None, None)
    also: Sequence[Layer] = ()
    lines: Sequence[Line | Band] = ()
    name: str = "ours"
    order: str = ""
    share: str = "xy"
    width: float = 1.0
    height: float = 0.0


@dataclass(frozen=True)
class Lines(Chart):
    """Values over a number ``x``, with the intervals of their means as ``bands``.

    Runs whose ``x`` was measured, as time or bytes were, are compared at the same ``x`` between
    their points, where all seeds have values. ``smooth`` is the width of a running mean over
    points; ``after`` is the share of a curve's x from which on the axes show all values, as the
    first steep points of a training are not what is compared. ``direct`` names lines at
    their ends instead of in the legend. ``marks`` are points only, without lines.
    """

    smooth: int = 1
    after: float = 0.0
    direct: bool = False
    marks: bool = False
    steps: bool = False
    bands: bool = True


@dataclass(frozen=True)
class Dots(Chart):
    """A row for every value of ``y``, a dot for its mean, with intervals; ``seeds`` as small dots.

    Where a run was late or failed, no mean is drawn: that of the others would flatter.
    ``dodge`` moves colours apart within a row.
    """

    seeds: bool = False
    dodge: bool = True


@dataclass(frozen=True)
class Bars(Chart):
    """A row for every value of ``y``, with bars beside each other for colours, or ``stacked``.

    ``written`` writes each bar's value, or the sum of a stack, at its end. A bar of more than
    ``cut`` times the middle one ends there with an arrow.
    """

    stacked: bool = False
    written: bool = False
    cut: float = 0.0


@dataclass(frozen=True)
class Heat(Chart):
    """Values written on tints, a row for every ``y`` and a column for every ``x``.

    ``outlines`` are lines around the cells near to a printed number; ``mark`` are rows at whose
    cells a square stands.
    """

    outlines: Sequence[Outline] = ()
    mark: Layer | None = None


@dataclass(frozen=True)
class Tiles(Chart):
    """Who stands where: a tile for every ``x`` and ``y`` with the value of ``colour`` that its rows
    have. Of several, the first row's comes first, the second has a corner, and + marks further
    ones. A pale tile with a question mark: rows whose value is 0, which are not sure. A
    dash: only rows that were late or failed, or none."""


@dataclass(frozen=True)
class Outline:
    """Around the cells whose values (the chart's own, if no rows are given) are within a share of
    what a claim prints."""

    printed: str
    within: float
    colour: str
    name: str = ""
    rows: Rows | None = None


@dataclass(frozen=True)
class Timeline(Chart):
    """Who does what when: a lane for every ``y``, a bar from ``begin`` to ``end`` (metrics of the
    same coordinates) for everything done, in the colour of what it is."""

    begin: str = "begin"
    end: str = "end"


@dataclass(frozen=True)
class Scatter(Chart):
    """A point for every place, ``x`` a number; those that have ``named`` coordinates are named by
    their ``y`` coordinate, where there is room. Where x and value are the same quantity, ``equal``
    draws where they are equal, with a band of this share on both sides."""

    named: Where = field(default_factory=dict)
    equal: float | None = None


# How it looks ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """How a value of a coordinate is drawn; what is empty is chosen."""

    colour: str = ""
    marker: str = ""
    style: str = ""
    width: float = 2.0


@dataclass(frozen=True)
class Style:
    """What the figures of a page have in common.

    Attributes
    ----------
    looks: value of a coordinate -> its colour or :class:`Look`.
    names: coordinate, metric or value -> how it is written.
    units: coordinate -> the unit of its values in the rows.
    forms: coordinate -> how a value is written, such as "{}:1".
    order: coordinate -> its values in order; numbers rise and others come as in the rows.
    """

    looks: Mapping[Any, str | Look] = field(default_factory=dict)
    names: Mapping[Any, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    forms: Mapping[str, str] = field(default_factory=dict)
    order: Mapping[str, Sequence[Any]] = field(default_factory=dict)


# What a page shows -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Item:
    """A figure or table on a page: what it shows, and what the document says about it."""

    title: str
    shows: str
    says: str = ""
    of: Sequence[Named]

    @property
    def experiments(self) -> list[str]:
        """Names of the experiments that its rows have."""
        return [name for one in self.of for name in (one.name, *getattr(one, "makes", ()))]


@dataclass(frozen=True, kw_only=True)
class Figure(Item):
    """A chart, several in a line, or several lines of them."""

    chart: Chart | Sequence[Chart | Sequence[Chart]]
    style: Style = Style()
    kind = "figure"


@dataclass(frozen=True, kw_only=True)
class Table(Item):
    """``make`` takes the rows of the experiments, a column a coordinate, and the verdicts."""

    make: Callable[[pd.DataFrame, pd.DataFrame], pd.DataFrame]
    kind = "table"


def table(
    *, title: str, shows: str, says: str = "", of: Sequence[Named]
) -> Callable[[Callable[[pd.DataFrame, pd.DataFrame], pd.DataFrame]], Table]:
    """Declare the function below as a table."""
    return lambda make: Table(title=title, shows=shows, says=says, of=of, make=make)


def items(page: Any) -> dict[str, Item]:
    """The figures and tables of a module by their names, in the order of their definitions."""
    return {name: one for name, one in vars(page).items() if isinstance(one, Item)}


def target(name: str) -> str:
    """The target that makes a figure or table: ``packet`` and ``packet_table`` are one."""
    return name.removesuffix("_table")
