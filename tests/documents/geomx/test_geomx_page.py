"""GeoMX's page from made-up results: what it draws, what its tables hold, what stands beside."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests" / "reports"))

import geomx_results  # noqa: E402

from slowlink.reports import claims, tables  # noqa: E402
from slowlink.reports.charts import Missing, items, look  # noqa: E402
from slowlink.reports.charts.drawing import draw  # noqa: E402
from slowlink.reports.evidence import t_interval  # noqa: E402
from slowlink.reports.verdicts import judge  # noqa: E402
from slowlink.testbed.results import coordinates  # noqa: E402
from slowlink.workflow.documents.geomx import page  # noqa: E402

SHOWN = items(page)
FIGURES = [name for name, item in SHOWN.items() if item.kind == "figure"]
WHY = "cannot emulate links: no right to make namespaces"


@pytest.fixture(scope="module")
def rows():
    return geomx_results.results("desk", model="strided_cnn")


@pytest.fixture(scope="module")
def printed():
    return claims.load(ROOT / "workflow" / "documents" / "geomx" / "claims.yaml")


@pytest.fixture(scope="module")
def judged(rows, printed):
    return judge(printed, rows, geomx_results.RECIPE, "desk")


@pytest.fixture(scope="module")
def not_here(rows):
    """The same where no link can be emulated, and nothing is recorded: a failed row a cell."""
    kept = rows[~rows["evidence"].isin(["emulated", "recorded"])]
    links = kept["experiment"].isin(["emulated", "agreement"])
    failed = rows[
        (rows["evidence"] == "emulated")
        & rows["experiment"].isin(["emulated", "agreement"])
        & rows["metric"].isin(["communication_time", "completion_time"])
    ].assign(status="failed", reason=WHY, value=np.nan)
    return pd.concat([kept[~links | (kept["metric"] == "vector")], failed], ignore_index=True)


def make(name, rows, judged):
    item = SHOWN[name]
    return item.make(coordinates(rows[rows["experiment"].isin(item.experiments)]), judged)


def marked(ax, *markers):
    return [line for line in ax.lines if line.get_marker() in markers]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_from_what_its_experiments_make(name, rows, printed):
    fig = draw(SHOWN[name], rows, printed)
    named = [ax for ax in fig.axes if ax.get_xlabel()]
    assert named and all(ax.get_ylabel() or len(ax.get_yticks()) for ax in named)
    for ax in fig.axes:
        (left, right), (low, high) = sorted(ax.get_xlim()), sorted(ax.get_ylim())
        for x, y in (point for line in marked(ax, *"oDs^v|") for point in line.get_xydata()):
            assert left <= x <= right and low <= y <= high


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_without_results_says_what_is_missing(name, rows, printed):
    few = rows[~rows["experiment"].isin(SHOWN[name].experiments)]
    with pytest.raises(Missing, match="no results of experiment"):
        draw(SHOWN[name], few, printed)


def test_bands_are_the_intervals_of_the_verdicts(rows):
    ax = draw(page.figure4, rows).axes[0]
    mine = coordinates(rows.query("experiment == 'figure4' and metric == 'test_accuracy'"))
    mine = mine[(mine["system"] == "GeoMX") & (mine["bandwidth"] == 1e9)]
    # Curves are drawn as the means of five evaluations that are held against the target.
    tail = mine.sort_values("round").groupby("seed").tail(5)
    last = tail.groupby("seed").agg(value=("value", "mean"), time_s=("time_s", "max"))
    band = ax.collections[0].get_paths()[0].vertices
    end = band[band[:, 0] == band[:, 0].max()][:, 1]
    assert (end.min(), end.max()) == pytest.approx(t_interval(last["value"]))
    line = ax.lines[0].get_xydata()
    assert line[-1] == pytest.approx((last["time_s"].iloc[0] / 3600, last["value"].mean()))


def test_printed_values_are_marked_where_the_document_has_them(rows, printed):
    def diamonds(fig):
        return sorted(line.get_xdata()[0] for ax in fig.axes for line in marked(ax, "D"))

    cells = [c for c in printed if c.where == "Table 1" and c.quantity == "latency"]
    shown = diamonds(draw(page.table1_picture, rows, printed))
    assert shown == sorted(float(claim.printed) for claim in cells) and len(shown) == 16
    assert diamonds(draw(page.table1_picture, rows)) == []
    times = {claim.id: float(claim.printed) for claim in printed if claim.where == "Table 2"
             and claim.quantity == "hours"}  # fmt: skip
    ratios = [value / times["GEO-T2-G1-h"] for value in times.values()]
    # GeoMX at 1 Gbit/s also has a diamond of its own; others have other markers.
    right = draw(page.figure6, rows, printed).axes[1]
    assert {round(x, 6) for x in ratios} <= {
        round(float(line.get_xdata()[0]), 6) for line in marked(right, "D")
    }


def test_which_host_would_explain_table_1(rows, printed):
    """With t and T the times of links, S the GB of ResNet-50 and p the printed ratio, lines cross
    where (t + 8 h S) / (T + 12 h S) = p."""
    slow = draw(page.host, rows, printed).axes[1]
    flat = {line.get_color(): line.get_ydata()[0] for line in slow.lines
            if list(line.get_xdata()) == [0, 1]}  # fmt: skip
    assert flat[look.PALETTE["blue"]] == pytest.approx(36.56 / 42.49)
    ours = next(line for line in slow.lines if line.get_color() == look.PALETTE["blue"]
                and len(line.get_xdata()) == 3)  # fmt: skip
    size = 4 * 23_488_010 / 1e9
    links = {"GeoMX": 2 * 6 * size / 0.125 + 4 * size / 0.019375, "MXNET": 24 * size / 0.125}
    assert list(ours.get_ydata()) == pytest.approx([
        (links["GeoMX"] + 8 * h * size) / (links["MXNET"] + 12 * h * size) for h in (0, 10, 50)
    ])  # fmt: skip


def test_computing_that_explains_what_is_printed_is_where_lines_of_a_colour_cross(rows, printed):
    wide = draw(page.sensitivity, rows, printed).axes[1]
    flat = {line.get_color(): line.get_ydata()[0] for line in wide.lines
            if list(line.get_xdata()) == [0, 1]}  # fmt: skip
    assert flat == {
        look.PALETTE[colour]: value
        for colour, value in dict(blue=25.45, green=13.09, purple=6.58, orange=3.88).items()
    }


def test_tables_have_every_cell_of_the_document(rows, judged):
    first, second = (make(name, rows, judged) for name in ("table1", "table2"))
    assert list(first.columns) == list(second.columns) == tables.COLUMNS
    assert len(first) == 4 * 5 and len(second) == 9 * 6 + 6 * 2
    assert set(first["row"]) == {"ResNet-18", "ResNet-34", "ResNet-50", "ResNet-101"}
    cell = first.set_index(["row", "quantity"]).loc[("ResNet-18", "MXNET-155M")]
    assert (cell["printed"], cell["verdict"]) == ("6.70", "impossible as printed")
    assert cell["bound"] == pytest.approx(12 * 4 * 11_168_832 * 8 / 155e6)
    assert not first.duplicated(["row", "quantity"]).any()
    assert not second.duplicated(["row", "quantity"]).any()
    with pytest.raises(ValueError, match="no verdicts on values of Table 1"):
        make("table1", rows, judged[judged["where"] == "Table 2"])


@pytest.mark.parametrize("name", ["table1", "table2", "emulated_table"])
def test_a_table_is_judged_by_its_own_experiments(name, printed):
    """As its target makes it, without the results of others."""
    known = {claim.id: claim for claim in printed}
    place = {"table1": ["Table 1"], "table2": ["Table 2"], "emulated_table": ["Table 1", "Table 2"]}
    cells = [c for c in printed if c.kind == "value" and c.where in place[name]]
    if name == "emulated_table":
        cells = [c for c in cells if c.quantity == "latency"]
    assert cells
    for claim in cells:
        assert claim.experiments(known) <= set(SHOWN[name].experiments), claim.id


def test_the_table_of_links_has_every_cell_with_what_was_run(rows, judged):
    table = make("emulated_table", rows, judged)
    assert table.groupby("table").size().to_dict() == {"Table 1": 16, "Table 2": 9}
    cells = table.set_index(["table", "model", "setting"])
    one = cells.loc["Table 1", "ResNet-18", "MXNET-155M"]
    assert one["printed, s"] == 6.70 and one["links, %"] == pytest.approx(95)
    assert one["emulated, s"] == pytest.approx(1.02 * one["simulated, s"])
    assert one["emulated / simulated"] == one["recorded / simulated"] == 1.02
    kept = cells.loc["Table 1", "ResNet-101", "GeoMX-1G"]
    assert np.isnan(kept["emulated, s"]) and kept["recorded, s"] > 0
    assert table.loc[table["model"] == "ResNet-34", "recorded, s"].isna().all()
    # Printed are the cells of the claims, each once.
    said = judged[(judged["kind"] == "value") & judged["metric"].str.startswith("communication")]
    assert sorted(table["printed, s"]) == sorted(said["printed"].astype(float)) and len(said) == 25
    assert (table["remark"] == "").all()


def test_a_cell_that_is_off_says_why(rows, judged):
    table = make("agreement_table", rows, judged).set_index("exchange")
    assert table.loc["HiPS, WAN 155M", "remark"] == "processors 90 % busy"
    assert table.loc["ring, 8 on 100M", ["MB", "remark"]].tolist() == [10.0, ""]
    assert table["simulated, s"].tolist() == [1.5, 1.5]
    assert (table["processors, %"] > table["exchange, %"]).all()


def test_without_links_the_page_says_so(not_here, judged):
    emulated = make("emulated_table", not_here, judged)
    assert len(emulated) == 25 and emulated["emulated, s"].isna().all()
    remarks = emulated.set_index(["model", "table"]).loc[("ResNet-18", "Table 1"), "remark"]
    assert set(remarks) == {WHY}
    assert set(make("agreement_table", not_here, judged)["remark"]) == {WHY}
    with pytest.raises(Missing, match="emulated_over_simulated"):
        draw(page.agreement, not_here)


def test_what_is_recorded_is_shown_where_links_cannot_be_emulated(rows, not_here):
    recorded = rows[rows["evidence"] == "recorded"]
    fig = draw(page.emulated, pd.concat([not_here, recorded], ignore_index=True))
    assert len(marked(fig.axes[0], "D")) == 8 and not marked(fig.axes[0], "o")


def test_a_stale_record_says_so(rows, judged):
    kept = (rows["evidence"] == "recorded") & (rows["model"] == "resnet101_v1")
    ratio = kept & (rows["metric"] == "emulated_over_simulated")
    told = rows["reason"].mask(ratio, "stale: simulated 1 s then, 2 s today")
    table = make("emulated_table", rows.assign(reason=told), judged)
    remarks = table.loc[table["model"] == "ResNet-101", "remark"]
    assert set(remarks) == {"recorded: stale: simulated 1 s then, 2 s today"}


def test_the_page_names_what_made_the_record(monkeypatch, tmp_path):
    about = {"command": "make this", "processor": "Chip 9000", "cores": 2, "rows": []}
    (tmp_path / "kept.json").write_text(json.dumps(about))
    monkeypatch.setattr(page.links, "RECORD", str(tmp_path / "kept.json"))
    assert "“make this” on 2 cores of Chip 9000" in page._record()


def test_figure_marks_every_ratio(rows):
    fig = draw(page.emulated, rows)
    assert [len(marked(fig.axes[0], one)) for one in "oD"] == [4 + 9, 4 + 4]
    (ax,) = draw(page.agreement, rows).axes
    assert sorted(line.get_xdata()[0] for line in marked(ax, "o")) == [1.01, 1.3]


def test_emulated_times_stand_beside_and_never_decide(rows, not_here, printed):
    ids = [c.id for c in printed if c.kind == "value" and c.quantity == "latency"]
    both, alone = (
        judge(printed, one, geomx_results.RECIPE, "desk", only=ids).set_index("id")
        for one in (rows, not_here)
    )
    assert list(both["ours"]) == list(alone["ours"])
    assert list(both["verdict"]) == list(alone["verdict"])
    said = "GeoMX, 155 Mbit/s: emulated is 1.02 times simulated"
    assert said in both.loc["GEO-T1-18-G155", "reason"]
    said = "; GeoMX, 155 Mbit/s: recorded is 1.02 times simulated"
    assert said in both.loc["GEO-T1-101-G155", "reason"]
    kinds = both["kinds_of_evidence"]
    assert kinds["GEO-T1-18-G155"] == kinds["GEO-T1-101-G155"] == 2
    assert kinds["GEO-T1-34-G155"] == 1
    assert not alone["reason"].str.contains("times simulated|without a result").any()


def test_a_headline_with_a_second_kind_says_how_they_agree(rows, not_here, printed):
    with_links, without = (
        judge(printed, one, geomx_results.RECIPE, "desk", only=["GEO-T1-R"])["reason"].iloc[0]
        for one in (rows, not_here)
    )
    assert "emulated is 1.02 times simulated" in with_links
    assert "one kind of evidence only" in with_links, "of ResNet-34 and -50 there is one"
    assert "one kind of evidence only" in without


def test_the_system_stands_beside_virtual_time(rows, judged):
    table = make("system_table", rows, judged).set_index("system")
    assert table["rounds"].tolist() == [40] * 3 and set(table["losses differ by"]) == {0.0}
    assert table["accuracy live, %"].tolist() == table["accuracy virtual, %"].tolist() == [50.0] * 3
    lives = (rows["experiment"] == "system") & (rows["variant"] == "live")
    failed = rows[lives & (rows["metric"] == "test_accuracy")].head(1)
    failed = failed.assign(status="failed", reason=WHY, value=np.nan, round=-1)
    without = pd.concat([rows[~lives], failed], ignore_index=True)
    row = make("system_table", without, judged).set_index("system").loc["GeoMX"]
    assert row["remark"] == WHY and np.isnan(row["accuracy live, %"])
    assert row["accuracy virtual, %"] == 50.0
    (ax,) = draw(page.system, rows).axes
    (alone,) = draw(page.system, without).axes
    assert len(ax.lines) == 2 * 3 and len(alone.lines) == 3


def test_any_single_round_of_table_2_says_that_pull_follows_push():
    """So that no row proves nothing because the set-up was chosen from it."""
    desk = pd.read_csv(ROOT / "data/recorded/desk_verdicts.csv", dtype=str).set_index("id")
    rows = desk[desk.index.str.fullmatch("GEO-T2-.*-lat")]
    ours = rows["ours"].astype(float) / rows["printed"].astype(float)
    others = {
        name: rows["reason"].str.extract(rf"\b{name} ([\d.]+)", expand=False).astype(float)
        for name in ("serial", "overlapped")
    }
    away = pd.DataFrame(others | {"ours": ours}).map(lambda ratio: abs(np.log(ratio)))
    assert len(away) == 9 and away.notna().all(axis=None)
    assert (away["ours"] < away["overlapped"]).all()
    assert (away["serial"] < away["overlapped"]).all()
