"""How every figure looks: palette, fonts, axes, legends, and the file it is kept in."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from slowlink.reports.charts import Look, Style
from slowlink.reports.evidence import number

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
DASHES: dict[str, Any] = {
    "solid": "-",
    "dotted": (0, (1, 2)),
    "dashed": (0, (4, 2)),
    "dashdot": (0, (5, 1.5, 1, 1.5)),
    "dashdotdot": (0, (5, 1.2, 1, 1.2, 1, 1.2)),
}
MARKERS = "os^DvPX"
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
_LETTERS = 15
"""Small letters to an inch."""
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_FEW, _APART = 9, 1.1
"""Places on a logarithmic axis that are all named, where no more than these have values, each so
many times the one before."""


def style() -> AbstractContextManager:
    """Draw inside this, so that every figure looks the same."""
    return mpl.rc_context(_STYLE)


def colour(name: str) -> str:
    """A colour of the palette by its name; ink by any other."""
    return PALETTE.get(name, INK)


class Looks:
    """The looks of a figure's values. What the style leaves open is chosen once for all panels,
    first what no other value of the figure has; ``dashes`` tell apart values of the same colour."""

    _KINDS: ClassVar = {"colour": list(PALETTE), "marker": list(MARKERS), "style": list(DASHES)}

    def __init__(self, style: Style) -> None:
        looks = style.looks.items()
        self._given = {v: Look(one) if isinstance(one, str) else one for v, one in looks}
        self._chosen: dict[tuple[Any, str], str] = {}

    def known(self, value: Any) -> Look:
        """What the style says of a value."""
        return self._given.get(value, Look())

    def of(self, value: Any, kind: str) -> str:
        """The colour, marker, style or dashes of a value."""
        return self._told(value, kind) or self._chosen[value, kind]

    def _told(self, value: Any, kind: str) -> str:
        return getattr(self.known(value), "style" if kind == "dashes" else kind)

    def give(self, kind: str, values: Iterable[Any]) -> None:
        """Choose what the style leaves open."""
        values = list(values)
        used = {self._told(value, kind) for value in values}
        values = [value for value in values if not self._told(value, kind)]
        if kind == "dashes":
            for value in values:
                same = [one for one, of in self._chosen if of == kind
                        and self.of(one, "colour") == self.of(value, "colour")]  # fmt: skip
                self._chosen[value, kind] = list(DASHES)[len(same) % len(DASHES)]
            return
        free = [one for one in self._KINDS[kind] if one not in used] or self._KINDS[kind]
        for value, one in zip(values, itertools.cycle(free)):  # noqa: B905
            self._chosen.setdefault((value, kind), one)


# Axes --------------------------------------------------------------------------------------------


def power(value: float) -> str:
    """A number on a logarithmic axis: large and small ones as powers of ten."""
    if 1e-3 <= value < 1e5:
        return number(value)
    mantissa, exponent = f"{value:.3e}".split("e")
    times = "" if float(mantissa) == 1 else f"{float(mantissa):g}·"
    return f"{times}10{str(int(exponent)).translate(_RAISED)}"


def log_ticks(axis: Axis, low: float, high: float) -> None:
    """Round numbers on a logarithmic axis: even steps within a factor of five, where only one of
    1, 2, 5 may fit; these within two decades, with 3 while they are few; else powers of ten."""
    if high < 5 * low:
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    else:
        steps = (1, 2, 3, 5) if high < 20 * low else (1, 2, 5) if high < 160 * low else (1,)
        axis.set_major_locator(LogLocator(subs=steps, numticks=7))
    axis.set_major_formatter(FuncFormatter(lambda value, _: power(value)))
    axis.set_minor_formatter(NullFormatter())


def scale(ax: Axes, way: str, log: bool, places: Iterable[float] = ()) -> None:
    """Make the axis ``way`` (x or y) linear or logarithmic, once everything is drawn. Where few
    ``places`` have values they are the ticks of a logarithmic one."""
    axis = ax.xaxis if way == "x" else ax.yaxis
    if not log:
        axis.set_major_formatter(FuncFormatter(lambda value, _: number(float(f"{value:.12g}"))))
        return
    ax.set(**{f"{way}scale": "log"})
    log_ticks(axis, *(ax.get_xlim() if way == "x" else ax.get_ylim()))
    few = sorted({place for place in places if place > 0})
    apart = all(after > _APART * before for before, after in itertools.pairwise(few))
    if 0 < len(few) <= _FEW and apart:
        axis.set_ticks(few, [power(float(f"{one:.9g}")) for one in few])
    axis.set_minor_locator(NullLocator())


def despine(ax: Axes) -> None:
    sns.despine(ax=ax)
    ax.grid(True)
    ax.set_axisbelow(True)


def lanes(ax: Axes, names: Sequence[str], room: int) -> None:
    """Name the rows of a chart, the first on top, where there is ``room`` for so many."""
    despine(ax)
    ax.set_yticks(range(len(names)), list(names), fontsize=8.5)
    ax.set_ylim(room - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)


def legend(fig: Figure, handles: Sequence[Any], notes: Sequence[str] = ()) -> None:
    """Below all axes, in as many columns as fit, with notes above it."""
    if not handles and not notes:
        return
    widest = 0.5 + 0.075 * max((len(handle.get_label()) for handle in handles), default=1)
    columns = int(min(len(handles), max(1, fig.get_figwidth() // widest))) or 1
    lines = -(-len(handles) // columns) or 1
    fig.legend(
        handles=handles,
        loc="outside lower center",
        ncols=-(-len(handles) // lines) or 1,
        handlelength=2.8,
        title="\n".join(textwrap.fill(note, int(_LETTERS * fig.get_figwidth())) for note in notes),
        title_fontsize=8,
    )


# Files -------------------------------------------------------------------------------------------


def lay_out(fig: Figure) -> None:
    """Place what a figure has, for a canvas in which letters are as wide as in the file.

    With a layout of its own, it would be drawn twice to be saved.
    """
    FigureCanvasSVG(fig)
    fig.set_dpi(72)
    ConstrainedLayoutEngine().execute(fig)
    # The solver's last digit varies, and names of clips with it.
    for ax in fig.axes:
        ax.set_position(np.round(ax.get_position(original=True).bounds, 9), which="original")
        ax.set_in_layout(True)


def save(fig: Figure, path: str | Path) -> Path:
    """Write a figure as lean SVG; the same figure gives the same bytes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with style():
        lay_out(fig)
        fig.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    path.write_text(lean(path.read_text(encoding="utf-8")), encoding="utf-8")
    return path


def lean(svg: str) -> str:
    """The same picture in fewer bytes: coordinates to a hundredth of a point, no names that nothing
    refers to, no groups of nothing or of one, one family of letters, no spaces between tags."""

    def rounded(number: re.Match[str]) -> str:
        text = f"{float(number.group()):.2f}".rstrip("0").rstrip(".")
        return "0" if text == "-0" else text

    def shorter(attribute: re.Match[str]) -> str:
        text = re.sub(r"-?\d+\.\d{3,}", rounded, attribute.group())
        return re.sub(r"\s*([MLCQz])\s*", r"\1", text.replace("\n", " "))

    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg))
    svg = re.sub(r' id="([^"]+)"', lambda name: name.group() * (name.group(1) in used), svg)
    svg = re.sub(r'\s(?:d|x|y)="[^"]*"', shorter, svg)
    svg = re.sub(r' transform="rotate\(-?0 [^"]*"', "", svg)
    svg = re.sub(r"font-family: [^;\"]*sans-serif", "font-family: sans-serif", svg)
    svg = re.sub(r">\s+<", "><", svg).replace("<g/>", "")
    return re.sub(r"<g>(<(?:path|use)[^<>]*/>|<text[^<>]*>[^<]*</text>)</g>", r"\1", svg)
