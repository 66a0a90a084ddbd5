"""What the figures of all documents share: palette, style, axes, legends and rows.

The figures themselves live with their document in ``reports.papers``. Each is one function
``(results, claims) -> Figure``: ``results`` is the tidy table of one paper and scale, ``claims``
its claims, of which the printed values are marked. Bands and bars are 95 % intervals of the mean
over seeds (Student's t); a line without a band has fewer than three seeds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from reports.book import number
from reports.claims import Claim

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


def style() -> AbstractContextManager:
    """Draw inside this, so that every figure looks the same."""
    return mpl.rc_context(_STYLE)


class _Layout(ConstrainedLayoutEngine):
    """Constrained layout, rounded: its solver's last digit varies, and names of clips with it."""

    def execute(self, fig: Figure) -> None:
        super().execute(fig)
        for ax in fig.axes:
            ax.set_position(np.round(ax.get_position(original=True).bounds, 9), which="original")
            ax.set_in_layout(True)


def save(fig: Figure, path: str | Path) -> Path:
    """Write a figure as SVG; the same figure gives the same bytes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.set_layout_engine(_Layout())
    with style():
        fig.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    return path


def rows(results: pd.DataFrame, experiment: str, metric: str, needed: bool = True) -> pd.DataFrame:
    rows = results[
        (results["experiment"] == experiment)
        & (results["metric"] == metric)
        & (results["status"] == "ok")
    ]
    if needed and rows.empty:
        raise ValueError(f"no results of experiment {experiment!r} with metric {metric!r}")
    return rows


def printed(claims: Sequence[Claim], where: str, metric: str, model: str = "") -> dict[str, float]:
    cells = printed_cells(claims, where, metric)
    return {case: value for (name, case), value in cells.items() if not model or name == model}


def printed_cells(claims: Sequence[Claim], where: str, metric: str) -> dict[tuple[str, str], float]:
    """Printed values of one quantity by (model, case)."""
    return {
        (claim.model, claim.ours.case or ""): float(claim.printed)
        for claim in claims
        if claim.kind == "value" and claim.where == where and claim.ours.metric == metric
    }


def legend(fig: Figure, handles: list[Line2D], columns: int) -> None:
    fig.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=2.8)


def log_axis(ax: Axes, label: str) -> None:
    ax.set_xscale("log")
    ax.set_xlabel(label)
    log_ticks(ax.xaxis, *ax.get_xlim())
    despine(ax)


def log_ticks(axis: Axis, low: float, high: float) -> None:
    """Round numbers on a logarithmic axis: even steps within a factor of five, where only one of
    1, 2, 5 may fit; these within two decades; else powers of ten."""
    if high < 5 * low:
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    else:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 160 * low else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.set_minor_formatter(NullFormatter())


def despine(ax: Axes) -> None:
    sns.despine(ax=ax)
    ax.grid(True)
    ax.set_axisbelow(True)


def model_name(model: str) -> str:
    """A model as documents write it: ``resnet50_v1`` is ResNet-50."""
    match = re.fullmatch(r"resnet(\d+)_v\d", model)
    return f"ResNet-{match.group(1)}" if match else model
