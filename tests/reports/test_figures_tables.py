from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from geomx_results import RECIPE
from matplotlib.backends.backend_agg import FigureCanvasAgg

from reports import figures, tables
from reports.book import t_interval
from reports.verdicts import VERDICTS, detail

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def judged(geomx_claims, desk_results):
    return detail(geomx_claims, desk_results, RECIPE, "desk", {})


@pytest.mark.parametrize("name", figures.FIGURES)
def test_every_figure_is_deterministic_svg_that_reads_on_any_background(
    name, desk_results, geomx_claims, tmp_path
):
    draw = figures.FIGURES[name]
    first, second = (
        figures.save(draw(desk_results, geomx_claims), tmp_path / file / "f.svg").read_bytes()
        for file in "ab"
    )
    assert first == second
    text = first.decode()
    assert "<dc:date>" not in text and "http://" not in re.sub(
        r'xmlns[^"]*"[^"]*"|<!DOCTYPE[^>]*>|<rdf:RDF.*?</rdf:RDF>', "", text, flags=re.DOTALL
    )
    tree = ET.fromstring(first)
    assert tree.findall(f".//{SVG}text"), "text must stay text"
    # No patch of background colour: every filled shape is ink, a palette colour or nothing.
    fills = set(re.findall(r"fill: (#[0-9a-f]{6})", text))
    assert fills <= {figures.INK, *figures.PALETTE.values(), "#000000"}


@pytest.mark.parametrize("name", figures.FIGURES)
def test_axes_are_labelled_and_no_legend_lies_on_the_data(name, desk_results, geomx_claims):
    fig = figures.FIGURES[name](desk_results, geomx_claims)
    renderer = FigureCanvasAgg(fig).get_renderer()
    fig.draw_without_rendering()
    shown = [ax for ax in fig.axes if ax.get_visible()]
    assert any(ax.get_xlabel() for ax in shown) and len(shown) in (1, 2, 9)
    for ax in shown:
        # Nothing that was drawn for a case lies outside its axes.
        (left, right), (low, high) = sorted(ax.get_xlim()), sorted(ax.get_ylim())
        marked = [line for line in ax.lines if line.get_marker() in ("o", "D", "|")]
        for x, y in (point for line in marked for point in line.get_xydata()):
            assert left <= x <= right and low <= y <= high
    assert all(ax.get_legend() is None for ax in shown)
    for legend in fig.legends:
        box = legend.get_window_extent(renderer)
        assert not any(box.overlaps(ax.get_window_extent(renderer)) for ax in shown)
        assert box.x0 >= 0 and box.x1 <= fig.bbox.width


def test_figure_without_results_says_what_is_missing(desk_results):
    few = desk_results[desk_results["experiment"] != "figure4"]
    with pytest.raises(ValueError, match="no results of experiment 'figure4'"):
        figures.figure4(few)


def test_bands_are_the_intervals_of_the_verdicts(desk_results):
    fig = figures.figure4(desk_results)
    ax = fig.axes[0]
    rows = desk_results.query(
        "experiment == 'figure4' and metric == 'test_accuracy' and case == 'GeoMX-1G'"
    )
    # Curves are drawn as the means of five evaluations that are held against the target.
    tail = rows.sort_values("round").groupby("seed").tail(5)
    last = tail.groupby("seed").agg(value=("value", "mean"), time_s=("time_s", "max"))
    low, high = t_interval(last["value"])
    band = ax.collections[0].get_paths()[0].vertices
    end = band[band[:, 0] == band[:, 0].max()][:, 1]
    assert (end.min(), end.max()) == pytest.approx((low, high))
    line = ax.lines[0].get_xydata()
    assert line[-1] == pytest.approx((last["time_s"].iloc[0] / 3600, last["value"].mean()))


def test_printed_values_are_marked_where_the_document_has_them(desk_results, geomx_claims):
    ax = figures.table1(desk_results, geomx_claims).axes[0]
    diamonds = sorted(line.get_xdata()[0] for line in ax.lines if line.get_marker() == "D")
    cells = [c for c in geomx_claims if c.where == "Table 1" and c.quantity == "latency"]
    assert diamonds == sorted(float(claim.printed) for claim in cells) and len(diamonds) == 16
    assert not [x for x in figures.table1(desk_results).axes[0].lines if x.get_marker() == "D"]


def test_tables_have_every_cell_of_the_document(judged):
    first, second = tables.table1(judged), tables.table2(judged)
    assert list(first.columns) == list(second.columns) == tables.COLUMNS
    assert len(first) == 4 * 5 and len(second) == 9 * 6 + 6 * 2
    assert set(first["row"]) == {"ResNet-18", "ResNet-34", "ResNet-50", "ResNet-101"}
    cell = first.set_index(["row", "quantity"]).loc[("ResNet-18", "MXNET-155M")]
    assert (cell["printed"], cell["verdict"]) == ("6.70", "impossible as printed")
    assert cell["bound"] == pytest.approx(12 * 4 * 11_168_832 * 8 / 155e6)
    assert not first.duplicated(["row", "quantity"]).any()
    assert not second.duplicated(["row", "quantity"]).any()
    with pytest.raises(ValueError, match="no verdicts on values of Table 1 of nobody"):
        tables.table1(judged, "nobody")


def test_scoreboard_counts_every_claim_once(judged):
    board = tables.scoreboard(judged)
    assert board.loc["geomx"].sum() == 123
    assert [verdict for verdict in VERDICTS if verdict in board] == list(board.columns)
    assert len(tables.parameters(judged)) == 16 and len(tables.algorithms(judged)) == 5
