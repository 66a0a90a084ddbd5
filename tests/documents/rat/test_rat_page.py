from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests" / "reports"))

import rat_results  # noqa: E402

from slowlink.reports import claims, tables  # noqa: E402
from slowlink.reports.charts import Missing, items, look  # noqa: E402
from slowlink.reports.charts.drawing import draw  # noqa: E402
from slowlink.testbed.results import coordinates  # noqa: E402
from slowlink.workflow.documents.rat import page  # noqa: E402

SHOWN = items(page)
FIGURES = [name for name, item in SHOWN.items() if item.kind == "figure"]


@pytest.fixture(scope="module")
def rows():
    return rat_results.results()


@pytest.fixture(scope="module")
def printed():
    return claims.load(ROOT / "workflow" / "documents" / "rat" / "claims.yaml")


def make(name, rows):
    """One of the tables, without verdicts."""
    mine = rows[rows["experiment"].isin(SHOWN[name].experiments)]
    return SHOWN[name].make(coordinates(mine), None)


def levels(fig):
    """Values of horizontal lines across a whole panel."""
    lines = [line for ax in fig.axes for line in ax.lines]
    flat = [line.get_ydata() for line in lines if list(line.get_xdata()) == [0, 1]]
    return sorted(values[0] for values in flat)


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_from_what_its_experiments_make(name, rows, printed):
    fig = draw(SHOWN[name], rows, printed)
    assert all(ax.get_xlabel() for ax in fig.axes)
    for ax in fig.axes:
        (left, right), (low, high) = sorted(ax.get_xlim()), sorted(ax.get_ylim())
        marked = [line for line in ax.lines if line.get_marker() not in ("None", "", None)]
        for x, y in (point for line in marked for point in line.get_xydata()):
            assert left <= x <= right and low <= y <= high


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_without_results_says_what_is_missing(name, rows, printed):
    few = rows[rows["experiment"] != SHOWN[name].experiments[0]]
    with pytest.raises(Missing, match=f"no results of experiment '{SHOWN[name].experiments[0]}'"):
        draw(SHOWN[name], few, printed)


def test_ratios_that_the_text_prints_are_marked(rows, printed):
    assert levels(draw(page.figure6, rows, printed)) == [1.16, 25]
    assert levels(draw(page.figure6, rows)) == []
    assert levels(draw(page.latency, rows, printed)) == [1.16]


def test_the_heat_map_outlines_what_agrees_with_the_printed_ratios(rows, printed):
    left, right = draw(page.figure7, rows, printed).axes
    cells = coordinates(rows[(rows["experiment"] == "figure7") & (rows["metric"] == "slowdown")])
    logs = np.log(cells[cells["method"] == "Ring"].set_index(["d", "k"])["value"])
    mean = np.exp(logs.groupby(level=["d", "k"]).mean())
    assert [text.get_text() for text in left.texts] == [f"{value:.3g}" for value in mean]
    near = (abs(mean / 12 - 1) <= 0.1).sum()
    orange = [line for line in left.lines if line.get_color() == look.PALETTE["orange"]]
    assert near and near <= len(orange) <= 4 * near
    for ax in (left, right):
        assert [line.get_marker() for line in ax.lines].count("s") == 1


def test_figure_7_is_drawn_without_the_cell_that_fits_best(rows, printed):
    alone = rows[rows["experiment"] != "joint"]
    fig = draw(page.figure7, alone, printed)
    assert "s" not in [line.get_marker() for ax in fig.axes for line in ax.lines]


def test_table_1_lists_every_plan_and_names_what_differs_from_its_formula(rows):
    table = make("table1", rows)
    assert set(table["differs"]) == {"", "no"}
    counted = table[table["exchange"] != "least possible"].set_index(["exchange", "shape"])
    ok = rows.query("experiment == 'table1' and status == 'ok' and metric == 'chain'")
    ok = coordinates(ok)
    assert set(counted.index) == set(zip(ok["method"], ok["shape"], strict=True))
    assert not counted.index.duplicated().any()
    assert ("Butterfly full mix", "6x4") not in counted.index  # refused
    assert (
        counted.loc[("RAT", "4x4x4"), "pod"] == 1.5 and counted.loc[("RAT", "4x4x4"), "chain"] == 3
    )
    least = table[table["exchange"] == "least possible"].set_index("shape")
    assert least.loc["4x2x2x2", "zone"] == 1.0 and np.isnan(least.loc["4x4", "pod"])
    wrong = rows.copy()
    cell = (wrong["metric"] == "egress_pod") & wrong["at"].str.contains('"PLink"')
    wrong.loc[cell, "value"] *= 2
    table = make("table1", wrong)
    assert set(table.loc[table["differs"] == "pod", "exchange"]) == {"PLink"}


def test_packets_stand_beside_fluid_with_the_reason_where_they_differ(rows):
    table = make("packet_table", rows)
    assert not table.duplicated(["hosts", "exchange", "oversubscription", "faults"]).any()
    assert set(table["hosts"]) == {16, 64}
    assert np.allclose(table["ns-3, s"] / table["fluid, s"], table["ns-3 / fluid"], rtol=1e-2)
    assert np.allclose(table["times faster"], 2000)
    far = table["ns-3 / fluid"] > 1.1
    assert far.any() and (table["reason"] != "").equals(far)
    alone = rows[rows["evidence"] != "packet"]
    with pytest.raises(tables.Missing, match="no cell that both"):
        make("packet_table", alone)
    with pytest.raises(Missing, match="evidence packet"):
        draw(page.packet, alone)


def test_speed_is_transfers_over_time(rows):
    table = make("scale_table", rows)
    assert list(table["exchange"].unique()) == ["PS", "Ring", "RAT"] and len(table) == 3 * 7
    assert np.allclose(table["transfers"] / table["to simulate, s"], table["transfers a second"])
