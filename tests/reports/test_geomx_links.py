"""Emulated beside simulated: tables, figure and verdicts of GeoMX with and without links."""

import json

import geomx_results
import numpy as np
import pandas as pd
import pytest

from reports.papers import geomx
from reports.verdicts import detail

WHY = "cannot emulate links: no right to make namespaces"


@pytest.fixture(scope="module")
def not_here(desk_results):
    """The same where no link can be emulated, and nothing is recorded."""
    rows = desk_results[~desk_results["evidence"].isin(["emulated", "recorded"])]
    links = rows["experiment"].isin(["emulated", "agreement"])
    # One failed row a cell that would have run.
    failed = desk_results[
        (desk_results["evidence"] == "emulated")
        & desk_results["experiment"].isin(["emulated", "agreement"])
        & desk_results["metric"].isin(["communication_time", "completion_time"])
    ].assign(status="failed", reason=WHY, value=np.nan)
    return pd.concat([rows[~links | (rows["metric"] == "vector")], failed], ignore_index=True)


def judged(claims, results, ids):
    table = detail(claims, results, geomx_results.RECIPE, "desk", {}, only=ids)
    return table.set_index("id")


def test_table_has_every_cell_with_what_was_run(desk_results, geomx_claims):
    table = geomx.TABLES["emulated"](pd.DataFrame(), desk_results)
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
    said = sorted(float(c.printed) for c in geomx_claims
                  if c.kind == "value" and c.quantity == "latency")  # fmt: skip
    assert sorted(table["printed, s"]) == said and len(said) == 25
    assert (table["remark"] == "").all()


def test_a_cell_that_is_off_says_why(desk_results):
    table = geomx.TABLES["agreement"](pd.DataFrame(), desk_results).set_index("exchange")
    assert table.loc["HiPS, WAN 155M", "remark"] == "processors 90 % busy"
    assert table.loc["ring, 8 on 100M", ["MB", "remark"]].tolist() == [10.0, ""]
    assert table["simulated, s"].tolist() == [1.5, 1.5]
    assert (table["processors, %"] > table["exchange, %"]).all()


def test_without_links_the_page_says_so(not_here, desk_results):
    emulated = geomx.TABLES["emulated"](pd.DataFrame(), not_here)
    assert len(emulated) == 25 and emulated["emulated, s"].isna().all()
    remarks = emulated.set_index(["model", "table"]).loc[("ResNet-18", "Table 1"), "remark"]
    assert set(remarks) == {f"not run here: {WHY}"}
    agreement = geomx.TABLES["agreement"](pd.DataFrame(), not_here)
    assert set(agreement["remark"]) == {f"not run here: {WHY}"}
    titles = [ax.get_title(loc="left") for ax in geomx.emulated(not_here).axes]
    assert titles == ["Tables 1 and 2: not run here", "exchanges: not run here"]
    titles = [ax.get_title(loc="left") for ax in geomx.emulated(desk_results).axes]
    assert titles == ["Tables 1 and 2", "exchanges"]


def test_what_was_tried_and_failed_is_told_apart(not_here):
    tried = not_here.assign(reason=not_here["reason"].replace(WHY, "node site1/server died"))
    remarks = set(geomx.TABLES["agreement"](pd.DataFrame(), tried)["remark"])
    assert remarks == {"failed: node site1/server died"}


def test_a_stale_record_says_so(desk_results):
    kept = (desk_results["evidence"] == "recorded") & (desk_results["model"] == "resnet101_v1")
    beside = kept & (desk_results["experiment"] == "table1")
    ratio = kept & (desk_results["metric"] == "emulated_over_simulated")
    told = desk_results["reason"].mask(ratio, "stale: simulated 1 s then, 2 s today")
    table = geomx.TABLES["emulated"](pd.DataFrame(), desk_results.assign(reason=told)[~beside])
    remarks = table.set_index("model").loc["ResNet-101", "remark"]
    assert set(remarks) == {"recorded: stale: simulated 1 s then, 2 s today"}


def test_the_page_names_what_made_the_record(monkeypatch, tmp_path):
    monkeypatch.setattr(geomx, "_RECORD", tmp_path / "kept.json")
    assert geomx._kept() == ""
    about = {"command": "make this", "processor": "Chip 9000", "cores": 2, "rows": []}
    (tmp_path / "kept.json").write_text(json.dumps(about))
    assert "“make this” on 2 cores of Chip 9000" in geomx._kept()


def test_figure_marks_every_ratio(desk_results):
    left, right = geomx.emulated(desk_results).axes
    shown = [line.get_xdata()[0] for line in right.lines if line.get_marker() == "o"]
    assert shown == [1.01, 1.3]
    markers = [line.get_marker() for line in left.lines if line.get_marker() in "oD"]
    assert (markers.count("o"), markers.count("D")) == (4 + 9, 4 + 4)


def test_table1_figure_shows_simulated_times(desk_results, not_here, geomx_claims):
    with_links, without = (
        [line.get_xdata()[0] for line in geomx.table1(rows, geomx_claims).axes[0].lines
         if line.get_marker() == "o"]
        for rows in (desk_results, not_here)
    )  # fmt: skip
    assert with_links == without and len(without) == 16


def test_emulated_times_stand_beside_and_never_decide(desk_results, not_here, geomx_claims):
    ids = [c.id for c in geomx_claims if c.kind == "value" and c.quantity == "latency"]
    both, alone = (judged(geomx_claims, rows, ids) for rows in (desk_results, not_here))
    assert list(both["ours"]) == list(alone["ours"])
    assert list(both["verdict"]) == list(alone["verdict"])
    said = "GeoMX-155M: emulated is 1.02 times simulated"
    assert said in both.loc["GEO-T1-18-G155", "reason"]
    assert "; GeoMX-155M: recorded is 1.02 times simulated" in both.loc["GEO-T1-101-G155", "reason"]
    assert both.loc["GEO-T1-18-G155", "kinds_of_evidence"] == 2
    assert both.loc["GEO-T1-101-G155", "kinds_of_evidence"] == 2
    assert both.loc["GEO-T1-34-G155", "kinds_of_evidence"] == 1
    assert not alone["reason"].str.contains("times simulated|runs failed").any()


def test_a_headline_with_a_second_kind_says_how_they_agree(desk_results, not_here, geomx_claims):
    row = judged(geomx_claims, desk_results, ["GEO-T1-R"]).loc["GEO-T1-R"]
    assert "emulated is 1.02 times simulated" in row["reason"]
    assert "one kind of evidence only" in row["reason"], "of ResNet-34 and -50 there is one"
    assert (
        "one kind of evidence only"
        in (judged(geomx_claims, not_here, ["GEO-T1-R"]).loc["GEO-T1-R", "reason"])
    )


def test_the_system_stands_beside_virtual_time(desk_results):
    table = geomx.TABLES["system"](pd.DataFrame(), desk_results).set_index("system")
    assert table["rounds"].tolist() == [40] * 3 and set(table["losses differ by"]) == {0.0}
    assert table["accuracy live, %"].tolist() == table["accuracy virtual, %"].tolist() == [50.0] * 3
    (ax,) = geomx.system(desk_results).axes
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    assert len(dots) == 3 and len(ax.lines) == 6
    lives = (desk_results["experiment"] == "system") & (desk_results["variant"] == "live")
    failed = desk_results[lives & (desk_results["metric"] == "test_accuracy")].head(1)
    failed = failed.assign(status="failed", reason=WHY, value=np.nan, round=-1)
    without = pd.concat([desk_results[~lives], failed], ignore_index=True)
    row = geomx.TABLES["system"](pd.DataFrame(), without).set_index("system").loc["GeoMX"]
    assert row["remark"] == f"not run here: {WHY}" and np.isnan(row["accuracy live, %"])
    assert row["accuracy virtual, %"] == 50.0
    legend = [text.get_text() for text in geomx.system(without).legends[0].get_texts()]
    assert legend[-1] == "real processes: not run here"
