from __future__ import annotations

import functools
import itertools
import re
import xml.etree.ElementTree as ET

import geomx_results
import matrix_results
import numpy as np
import pytest
import sketch_fusion_results
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reports import figures, matrix, papers, tables
from reports.book import t_interval
from reports.papers import geomx, rat, sketch_fusion
from reports.verdicts import VERDICTS, detail
from testbed import results

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = [(paper, name) for paper in papers.names() for name in papers.load(paper).FIGURES]


@pytest.mark.parametrize("low", [0.013, 0.97, 2.1, 51, 600])
@pytest.mark.parametrize("factor", [1.03, 1.5, 3, 4.9, 5.1, 20, 150, 2000])
def test_logarithmic_axes_name_at_least_two_places(low, factor):
    ax = Figure().subplots()
    ax.set_xscale("log")
    ax.set_xlim(low, factor * low)
    figures.log_axis(ax, "x")
    shown = [at for at in ax.xaxis.get_majorticklocs() if low <= at <= factor * low]
    names = {label for label in ax.xaxis.get_major_formatter().format_ticks(shown) if label}
    assert 2 <= len(names) == len(shown) <= 10


@pytest.fixture(scope="module")
def judged(geomx_claims, desk_results):
    return detail(geomx_claims, desk_results, geomx_results.RECIPE, "desk", {})


@pytest.fixture(scope="module")
def draw(
    geomx_claims,
    desk_results,
    rat_claims,
    rat_rows,
    skf_claims,
    skf_rows,
    lpsp_claims,
    lpsp_desk,
    dds_claims,
    dds_rows,
):
    """Draws a figure of a document from synthetic results."""
    sources = {"geomx": (desk_results, geomx_claims), "rat": (rat_rows, rat_claims)}
    sources |= {"sketch_fusion": (skf_rows, skf_claims), "lpsp": (lpsp_desk, lpsp_claims)}
    sources["dds"] = (dds_rows, dds_claims)
    cells = matrix.condense(matrix_results.made(), *matrix_results.PLACES)
    sources["matrix"] = (results.frame(cells), [])
    return lambda paper, name: papers.load(paper).FIGURES[name](*sources[paper])


@pytest.fixture(scope="module")
def drawn(draw):
    return functools.cache(draw)


def test_documents_are_found_by_their_files():
    assert papers.names() == ["dds", "geomx", "lpsp", "matrix", "rat", "sketch_fusion"]
    with pytest.raises(
        ValueError, match="no figures or tables of 'nobody'; there are: dds, geomx, lpsp,"
    ):
        papers.load("nobody")


@pytest.mark.parametrize("paper", papers.names())
def test_the_page_shows_every_figure_and_table_once(paper):
    module = papers.load(paper)
    for kind, made in (("figure", module.FIGURES), ("table", module.TABLES)):
        assert sorted(one.name for one in module.PAGE if one.kind == kind) == sorted(made)


@pytest.mark.parametrize(("paper", "name"), DRAWN)
def test_every_figure_is_deterministic_svg_that_reads_on_any_background(
    paper, name, draw, drawn, tmp_path
):
    first, second = (
        figures.save(make(paper, name), tmp_path / file / "f.svg").read_bytes()
        for make, file in ((drawn, "a"), (draw, "b"))
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


@pytest.mark.parametrize(("paper", "name"), DRAWN)
def test_axes_are_labelled_and_no_legend_lies_on_the_data(paper, name, drawn):
    fig = drawn(paper, name)
    renderer = FigureCanvasAgg(fig).get_renderer()
    fig.draw_without_rendering()
    shown = [ax for ax in fig.axes if ax.get_visible()]
    assert any(ax.get_xlabel() for ax in shown) and len(shown) in (1, 2, 3, 4, 6, 7, 9)
    for ax in shown:
        # Nothing that was drawn for a case lies outside its axes.
        (left, right), (low, high) = sorted(ax.get_xlim()), sorted(ax.get_ylim())
        marked = [line for line in ax.lines if line.get_marker() in ("o", "D", "|", "s", "^")]
        for x, y in (point for line in marked for point in line.get_xydata()):
            assert left <= x <= right and low <= y <= high
    for legend in [*fig.legends, *filter(None, (ax.get_legend() for ax in shown))]:
        box = legend.get_window_extent(renderer)
        assert not any(box.overlaps(ax.get_window_extent(renderer)) for ax in shown)
        assert box.x0 >= 0 and box.x1 <= fig.bbox.width


def test_figure_without_results_says_what_is_missing(desk_results):
    few = desk_results[desk_results["experiment"] != "figure4"]
    with pytest.raises(ValueError, match="no results of experiment 'figure4'"):
        geomx.figure4(few)


def test_bands_are_the_intervals_of_the_verdicts(desk_results):
    fig = geomx.figure4(desk_results)
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
    ax = geomx.table1(desk_results, geomx_claims).axes[0]
    diamonds = sorted(line.get_xdata()[0] for line in ax.lines if line.get_marker() == "D")
    cells = [c for c in geomx_claims if c.where == "Table 1" and c.quantity == "latency"]
    assert diamonds == sorted(float(claim.printed) for claim in cells) and len(diamonds) == 16
    assert not [x for x in geomx.table1(desk_results).axes[0].lines if x.get_marker() == "D"]


def test_tables_have_every_cell_of_the_document(judged):
    first, second = (geomx.TABLES[name](judged, None) for name in ("table1", "table2"))
    assert list(first.columns) == list(second.columns) == tables.COLUMNS
    assert len(first) == 4 * 5 and len(second) == 9 * 6 + 6 * 2
    assert set(first["row"]) == {"ResNet-18", "ResNet-34", "ResNet-50", "ResNet-101"}
    cell = first.set_index(["row", "quantity"]).loc[("ResNet-18", "MXNET-155M")]
    assert (cell["printed"], cell["verdict"]) == ("6.70", "impossible as printed")
    assert cell["bound"] == pytest.approx(12 * 4 * 11_168_832 * 8 / 155e6)
    assert not first.duplicated(["row", "quantity"]).any()
    assert not second.duplicated(["row", "quantity"]).any()
    with pytest.raises(ValueError, match="no verdicts on values of Table 1"):
        geomx.TABLES["table1"](judged[judged["where"] == "Table 2"], None)


def test_scoreboard_counts_every_claim_once(judged):
    board = tables.scoreboard(judged)
    assert board.loc["geomx"].sum() == 123
    assert [verdict for verdict in VERDICTS if verdict in board] == list(board.columns)
    assert len(tables.parameters(judged)) == 16 and len(tables.algorithms(judged)) == 5


# RAT


def test_ratios_that_the_text_prints_are_marked(rat_rows, rat_claims):
    def levels(fig: Figure) -> list[float]:
        lines = [line for ax in fig.axes for line in ax.lines]
        return sorted({y[0] for y in (line.get_ydata() for line in lines) if list(y) == [y[0]] * 2})

    assert levels(rat.figure6(rat_rows, rat_claims)) == [1.16, 25]
    assert levels(rat.figure6(rat_rows)) == []
    assert levels(rat.latency(rat_rows, rat_claims)) == [1.16]


def test_the_outline_runs_between_cells_inside_and_outside():
    ax = Figure().subplots()
    inside = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 1]], bool)
    rat._outline(ax, inside, "red", 1)
    edges = {tuple(sorted(zip(*line.get_data(), strict=True))) for line in ax.lines}
    assert len(edges) == len(ax.lines) == 8 + 4
    for (x0, y0), (x1, y1) in edges:
        # Every edge has a cell inside on one side of its middle only.
        x, y = (x0 + x1) / 2, (y0 + y1) / 2
        step = (0.5, 0) if x0 == x1 else (0, 0.5)
        sides = [(x + s * step[0], y + s * step[1]) for s in (-1, 1)]
        within = [bool(0 <= b < 3 and 0 <= a < 3 and inside[int(b), int(a)]) for a, b in sides]
        assert sum(within) == 1


def test_the_heat_map_outlines_what_agrees_with_the_printed_ratios(rat_rows, rat_claims):
    fig = rat.figure7(rat_rows, rat_claims)
    left, right = fig.axes
    slowed = rat_rows.query("experiment == 'figure7' and metric == 'slowdown'")
    cells = slowed[slowed["case"].str.startswith("Ring")].groupby("case")["value"]
    mean = np.exp(cells.apply(lambda values: np.log(values).mean()))
    printed = [text.get_text() for text in left.texts]
    assert sorted(printed) == sorted(f"{value:.3g}" for value in mean)
    outlined = [line for line in left.lines if line.get_color() == figures.PALETTE["orange"]]
    near = (abs(mean / 12 - 1) <= 0.1).sum()
    assert near and near <= len(outlined) <= 4 * near
    assert [line.get_marker() for ax in fig.axes for line in ax.lines].count("s") == 2


def test_table_1_lists_every_plan_and_names_what_differs_from_its_formula(rat_rows):
    table = rat.TABLES["table1"](None, rat_rows)
    assert set(table["differs"]) == {"", "no"}
    counted = table[table["exchange"] != "least possible"].set_index(["exchange", "shape"])
    ok = rat_rows.query("experiment == 'table1' and status == 'ok' and metric == 'chain'")
    assert set(counted.index) == set(zip(ok["case"], ok["variant"], strict=True))
    assert not counted.index.duplicated().any()
    assert ("Butterfly", "6x4") not in counted.index  # refused
    assert (
        counted.loc[("RAT", "4x4x4"), "pod"] == 1.5 and counted.loc[("RAT", "4x4x4"), "chain"] == 3
    )
    least = table[table["exchange"] == "least possible"].set_index("shape")
    assert least.loc["4x2x2x2", "zone"] == 1.0 and np.isnan(least.loc["4x4", "pod"])
    wrong = rat_rows.copy()
    cell = (wrong["metric"] == "egress_pod") & (wrong["case"] == "PLink")
    wrong.loc[cell, "value"] *= 2
    table = rat.TABLES["table1"](None, wrong)
    assert set(table.loc[table["differs"] == "pod", "exchange"]) == {"PLink"}


def test_packets_stand_beside_fluid_with_the_reason_where_they_differ(rat_rows):
    table = rat.TABLES["packet"](None, rat_rows)
    assert not table.duplicated(["exchange", "oversubscription", "faults"]).any()
    assert np.allclose(table["ns-3, s"] / table["fluid, s"], table["ns-3 / fluid"], rtol=1e-2)
    assert (table["times faster"] == 2000).all()
    far = table["ns-3 / fluid"] > 1.1
    assert far.any() and (table["reason"] != "").equals(far)
    alone = rat_rows[rat_rows["evidence"] != "packet"]
    for make in (lambda: rat.TABLES["packet"](None, alone), lambda: rat.packet(alone)):
        with pytest.raises(ValueError, match="no cell that both"):
            make()


def test_speed_is_transfers_over_time(rat_rows):
    table = rat.TABLES["scale"](None, rat_rows)
    assert list(table["exchange"].unique()) == ["PS", "Ring", "RAT"] and len(table) == 3 * 7
    assert np.allclose(table["transfers"] / table["to simulate, s"], table["transfers a second"])


def test_a_part_of_the_results_draws_without_what_is_missing(rat_rows, rat_claims):
    fig = rat.figure7(rat_rows[rat_rows["experiment"] == "figure7"], rat_claims)
    assert not [line for ax in fig.axes for line in ax.lines if line.get_marker() == "s"]
    with pytest.raises(ValueError, match="no results of experiment 'survival'"):
        rat.survival(rat_rows[rat_rows["experiment"] != "survival"])


# Sketch-Fusion


def diamonds(ax) -> list[float]:
    return sorted(line.get_xdata()[0] for line in ax.lines if line.get_marker() == "D")


def test_scaling_factors_stack_layer_fusion_on_layer_wise(skf_rows, skf_claims):
    fig = sketch_fusion.figure4(skf_rows, skf_claims)
    assert [ax.get_title("left") for ax in fig.axes] == ["2 GPUs", "4 GPUs", "8 GPUs", "16 GPUs"]
    ends = {round(bar.get_x() + bar.get_width(), 9) for bar in fig.axes[-1].patches}
    rows = skf_rows.query(
        "experiment == 'scaling' and metric == 'scaling_factor' and model == 'resnet50' "
        "and variant == 'flat' and workers == 16"
    )
    baseline_fused = rows["case"] == "Baseline LF 16"
    assert ends == {round(value, 9) for value in rows.loc[~baseline_fused, "value"]}
    # The text prints 50 % for FP16 and 35 % for the baseline on 16 GPUs.
    assert [diamonds(ax) for ax in fig.axes] == [[], [], [], [0.35, 0.5]]
    assert not diamonds(sketch_fusion.figure3(skf_rows, skf_claims).axes[-1])


def test_gains_stand_beside_table_4_and_the_text(skf_rows, skf_claims):
    fig = sketch_fusion.gains(skf_rows, skf_claims)
    left, _, last = fig.axes
    assert diamonds(left)[0] == pytest.approx(3418 / 3294) and len(diamonds(left)) == 7
    assert diamonds(left)[-1] == pytest.approx(4716 / 3416)
    orange = figures.PALETTE["orange"]
    said = [list(line.get_xdata()) for line in last.lines if line.get_color() == orange]
    assert said == [[2.87]] * 2  # over layer-wise; the 1.41 are over the baseline
    top_k = [list(line.get_xdata()) for line in left.lines if line.get_color() == orange]
    assert top_k == [[1.58, 2.51], [2.47], [2.47]]
    bare = sketch_fusion.gains(skf_rows)
    assert not any(diamonds(ax) for ax in bare.axes)


def test_printed_numbers_stand_beside_ours_in_tables(skf_rows, skf_claims):
    recipe = sketch_fusion_results.RECIPE
    only = {claim.id for claim in skf_claims if claim.kind == "value"}
    judged = detail(skf_claims, skf_rows, recipe, "desk", {}, only=only)
    first = sketch_fusion.TABLES["table1"](judged, skf_rows).set_index("method")
    assert first["printed for a V100, ms"].dropna().to_dict()["DGC"] == 242
    assert first["printed for a V100, ms"].notna().sum() == 7 and "2-bit" in first.index
    ratio = first["layer-wise, ms"] / first["printed for a V100, ms"]
    assert ratio["QSGD"] == pytest.approx(first.loc["QSGD", "layer-wise / printed"])
    fourth = sketch_fusion.TABLES["table4"](judged, skf_rows).set_index(["model", "method"])
    assert fourth.loc[("ResNet-20", "DGC"), "gain printed"] == pytest.approx(4716 / 3416)
    assert fourth.loc[("LSTM", "Sketch-Fusion"), "LayerFusion printed"] == 9864
    assert fourth["LayerFusion printed"].notna().sum() == 3 * 8
    assert not fourth.index.duplicated().any() and len(fourth) == 4 * 11


def test_tables_of_sketch_fusion_say_what_rows_say(skf_rows):
    make = {name: table(None, skf_rows) for name, table in sketch_fusion.TABLES.items()}
    speed = make["speed"].set_index("method")
    assert speed.loc["DGC", "compress / copy"] == pytest.approx(0.12)
    assert speed.loc["copy", "copy, GB/s"] == 10 and speed.loc["torch.topk"].notna().sum() == 2
    whole = speed["whole, layer by layer, GB/s"].dropna()
    assert whole.to_dict() == {"PowerSGD": 0.95, "torch PowerSGD hook": 0.9}
    assert speed.loc["torch PowerSGD hook"].notna().sum() == 1
    assert speed.loc["torch.topk", "compress / copy"] == pytest.approx(0.02)
    assert set(make["fusion"]["LayerFusion, % over"].round(9)) == {1.0}
    assert list(make["fusion"]["model"].unique()) == ["ResNet-20", "VGG-16", "ResNet-50", "LSTM"]
    assert len(make["live"]) == 5 * 2 * 2 and set(make["live"]["a step, ms"]) == {30.0}
    theory = make["theory"].set_index(["theorem", "groups y", "iterations T"])
    assert theory.loc[(2, 4, 1024), "bound"] == pytest.approx(40 * 4 / 32)
    assert theory.loc[(1, 1, 256), "measured"] == pytest.approx(4.4 / 16)
    slopes = theory["slope of log measured over log T"].groupby(["theorem", "groups y"]).unique()
    expected = {(1, 1): -0.5, (2, 1): -0.49, (2, 4): -0.46, (2, 16): -0.34}
    assert {key: list(one) for key, one in slopes.items()} == {
        key: [pytest.approx(one)] for key, one in expected.items()
    }


def test_axes_of_sketch_fusion_say_what_they_count(skf_rows):
    assert sketch_fusion.figure2(skf_rows).axes[-1].get_xlabel() == "ms since the iteration began"
    assert "sent and received by one worker" in sketch_fusion.lstm(skf_rows).axes[1].get_xlabel()


def test_end_labels_do_not_overlap(skf_rows):
    fig = sketch_fusion.figure1(skf_rows)
    renderer = FigureCanvasAgg(fig).get_renderer()
    fig.draw_without_rendering()
    boxes = sorted(
        (text.get_window_extent(renderer) for text in fig.axes[1].texts), key=lambda b: b.y0
    )
    assert len(boxes) == 14
    assert all(low.y0 + 0.7 * low.height < high.y0 for low, high in itertools.pairwise(boxes))


def test_sketch_fusion_without_results_says_what_is_missing(skf_rows):
    for experiment, names in {
        "scaling": ["figure1", "figure3"],
        "gains": ["gains"],
        "timeline": ["figure2"],
        "theory": ["theory"],
        "lstm": ["lstm"],
    }.items():
        few = skf_rows[skf_rows["experiment"] != experiment]
        for name in names:
            with pytest.raises(ValueError, match=f"no results of experiment '{experiment}'"):
                sketch_fusion.FIGURES[name](few)
