from __future__ import annotations

import dds_results
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from reports import html
from reports.papers import dds
from reports.verdicts import detail

MODES = ["fp32_dense", "int8_dense", "fp32_sparse", "int8_sparse"]
FEEDBACK = ["fp32_sparse from model", "int8_sparse from model", "fp32_sparse EF", "int8_sparse EF"]


@pytest.fixture(scope="module")
def one_run():
    """One live run of each mode and case, as at desk scale."""
    return dds_results.results(live=(1,))


def names(ax) -> list[str]:
    """Names of rows; of panels that share them the first has them."""
    ax = ax if any(label.get_text() for label in ax.get_yticklabels()) else ax.figure.axes[0]
    return [label.get_text().split("\n")[0] for label in ax.get_yticklabels()]


def marked(ax, marker: str, larger_than: float = 4) -> dict[str, float]:
    """Row -> value of what is drawn with one marker; small dots are left out."""
    lines = [line for line in ax.lines if line.get_marker() == marker]
    lines = [line for line in lines if line.get_markersize() > larger_than]
    rows = names(ax)
    return {rows[round(line.get_ydata()[0])]: line.get_xdata()[0] for line in lines}


def bars(ax) -> dict[str, list[float]]:
    """Row -> widths of its bars, in the order drawn."""
    found: dict[str, list[float]] = {}
    for bar in ax.patches:
        row = names(ax)[round(bar.get_y() + bar.get_height() / 2)]
        found.setdefault(row, []).append(bar.get_width())
    return found


PRINTED = {
    "ddp_figure1": [{"baseline": 1.165, "DGC": 0.01}],
    "ddp_figure2": [{}, {"baseline": 98.07, "DGC": 98.11}],
    "ddp_figure3": [{"baseline": 3025.49, "DGC": 414.15}],
    "ddp_figure4": [{"baseline": 25.54, "DGC": 20.83}],
    "fl_figure1": [dict(zip(MODES, (4.58, 1.15, 0.92, 0.57), strict=True))],
    "fl_figure2": [
        dict(zip(MODES, (547.3, 505.7, 450.2, 429.7), strict=True)),
        dict(zip(MODES, (193.9, 92.0, 66.5, 65.1), strict=True)),
    ],
    "fl_figure3": [dict(zip(MODES, (10.4848, 9.9822, 9.4327, 9.5890), strict=True))],
    "fl_figure4": [{}, dict(zip(MODES, (98.31, 98.21, 98.12, 98.17), strict=True))],
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_document_s_numbers_stand_beside_ours(name, dds_claims, one_run):
    fig = dds.FIGURES[name](one_run, dds_claims)
    for ax, printed in zip(fig.axes, PRINTED[name], strict=True):
        assert marked(ax, "D") == pytest.approx(printed)
        ours = marked(ax, "o")
        # In this world ours are the document's: rows and units are right.
        for label, value in printed.items():
            assert ours[label] == pytest.approx(value, rel=0.07 if name == "ddp_figure1" else 0.01)
    plain = dds.FIGURES[name](one_run)
    assert not any(marked(ax, "D") for ax in plain.axes)
    told = [text.get_text() for text in plain.legends[0].get_texts()]
    assert "recovered from the document's logs" not in told


def test_bytes_are_drawn_as_counted_there_and_one_way(dds_rows):
    (ax,) = dds.ddp_figure1(dds_rows).axes
    counted, one_way = marked(ax, "o"), marked(ax, "s")
    assert names(ax) == ["fp32", "baseline", "DGC", "DGC momentum"]  # one process sends nothing
    assert counted == pytest.approx({label: 3 * value for label, value in one_way.items()})
    assert one_way["DGC"] == pytest.approx(8 * 410 / 2**20)


def test_payloads_are_the_sum_of_their_parts(dds_rows):
    fig = dds.sizes(dds_rows)
    up, both = (bars(ax) for ax in fig.axes)
    for label in MODES:
        assert sum(up[label]) == pytest.approx(dds_results.UPLINK[label] / 2**20)
        assert sum(both[label]) == pytest.approx(sum(up[label]) + 4 * dds_results.D / 2**20)
    d, k = dds_results.D / 2**20, dds_results.K / 2**20
    assert up["fp32_dense"][0] == pytest.approx(4 * d)
    assert up["int8_dense"][0] == pytest.approx(d)
    assert up["fp32_sparse"][:2] == pytest.approx([4 * k, 4 * k])
    assert up["int8_sparse"][:2] == pytest.approx([4 * k, k])
    shares = [[text.get_text().strip() for text in ax.texts] for ax in fig.axes]
    assert shares[0] == ["1.000", "0.251", "0.200", "0.125"]
    assert shares[1] == ["1.000", "0.625", "0.600", "0.563"]


def test_a_step_is_the_sum_of_what_is_done(one_run):
    left, right = dds.profile(one_run).axes
    step = one_run.query("experiment == 'ddp' and metric == 'step_time'").set_index("case")
    for label, widths in bars(left).items():
        assert sum(widths) == pytest.approx(1e3 * step.loc[label, "value"])
    longest, later = marked(right, "^"), marked(right, "s")
    assert later == pytest.approx({label: 0.9 * value for label, value in longest.items()})
    assert all(marked(right, "o")[label] < value for label, value in later.items())


def test_learning_has_a_line_for_every_live_run_and_a_row_for_all(dds_rows, one_run):
    fig = dds.fl_figure4(dds_rows)
    left, right = fig.axes
    assert names(right) == MODES + FEEDBACK
    # Intervals take three runs.
    assert len(left.lines) == len(left.collections) == len(MODES)
    single = dds.fl_figure4(one_run).axes[0]
    assert len(single.lines) == len(MODES) and not single.collections
    for line, mode in zip(single.lines, MODES, strict=True):
        curve = one_run.query(
            f"experiment == 'federated' and metric == 'test_accuracy' and case == '{mode}'"
        )
        assert line.get_xydata() == pytest.approx(curve[["round", "value"]].to_numpy())
    final = dds_rows.query("experiment == 'federated_seeds' and metric == 'final_accuracy'")
    means = final.groupby("case")["value"].mean()
    assert marked(right, "o") == pytest.approx(means.to_dict())
    assert set(marked(right, "s")) == set(MODES)  # what ran on real processes


def test_unlike_data_stand_beside_alike(dds_rows):
    fig = dds.non_iid(dds_rows)
    assert [ax.get_title("left") for ax in fig.axes] == ["alike", "by label", "dirichlet 0.1"]
    values = [marked(ax, "o") for ax in fig.axes]
    assert all(set(one) == set(dds_results.NON_IID) for one in values)
    assert values[1]["fp32_dense"] == pytest.approx(90, abs=1)
    alone = dds_rows[dds_rows["experiment"] == "non_iid"]
    assert len(dds.non_iid(alone).axes) == 2


def test_throughput_has_a_line_for_every_way_and_a_panel_for_every_number(dds_rows):
    fig = dds.transport(dds_rows)
    assert [ax.get_title("left") for ax in fig.axes] == ["2 processes", "4 processes"]
    for ax in fig.axes:
        assert len(ax.lines) == 4 and [tick.get_text() for tick in ax.get_xticklabels()] == [
            "1", "16", "64"
        ]  # fmt: skip


@pytest.fixture(scope="module")
def made(dds_claims, one_run):
    judged = detail(dds_claims, one_run, dds_results.RECIPE, "desk", {})
    return {name: table(judged, one_run) for name, table in dds.TABLES.items()}


def test_tables_have_ours_and_theirs(made):
    federated = made["federated"].set_index("mode")
    assert list(federated.index) == MODES + FEEDBACK
    for column in ("payload, B", "client0, ms", "client1, ms", "round, ms"):
        ours = federated.loc[MODES, column].str.split().str[0].astype(float)
        theirs = federated.loc[MODES, f"{column}: there"].astype(float)
        assert np.allclose(ours, theirs, rtol=2e-3)
    assert list(federated.loc[MODES, "payload, B"]) == ["4799528", "1204590", "959916", "600432"]
    assert set(federated.loc[FEEDBACK, "accuracy, %: there"]) == {""}
    assert "accuracy of mnist_cnn, %" in federated
    assert set(federated.loc[MODES, "apart from one process"]) == {"0 (mnist_cnn after round 1)"}
    assert set(federated.loc[FEEDBACK, "apart from one process"]) == {""}
    # Its gain is over the same mode without it, seed by seed; in this world 0.05 points.
    gained = federated["more by feedback, points"]
    assert (gained[[m for m in gained.index if "EF" not in m]] == "").all()
    for mode in ("fp32_sparse EF", "int8_sparse EF"):
        assert float(gained[mode].split()[0]) == pytest.approx(0.05, abs=0.03)
    ddp = made["ddp"].set_index("case")
    received = ddp.loc["baseline", "received in frames, B"]
    assert int(received) > int(ddp.loc["baseline", "one way, B"])
    assert list(ddp["longest wait, ms: there"]) == ["", "3025.49", "414.15", "", ""]
    assert ddp.loc["baseline", "one way, B"] == "407146"
    assert ddp.loc["fp32", "counted as there, MiB"] == "4.658"


def test_a_check_names_its_own_model(dds_claims, one_run):
    check = one_run.query("experiment == 'federated_seeds' and metric == 'live_difference'")[:1]
    check = check.assign(case="int8_sparse EF", model="mlp", round=2)
    results = pd.concat([one_run, check])
    judged = detail(dds_claims, results, dds_results.RECIPE, "desk", {})
    table = dds.TABLES["federated"](judged, results).set_index("mode")
    assert table.loc["int8_sparse EF", "apart from one process"] == "0 (mlp after round 2)"
    assert "accuracy of mnist_cnn, %" in table


def test_bytes_in_the_table_follow_from_the_layout(made):
    table = made["bytes"].set_index("mode")
    assert table.loc["int8_dense C=8192", ["payload, B", "there"]].tolist() == ["1200490", ""]
    assert table.loc["int8_dense", ["payload, B", "there"]].tolist() == ["1204590"] * 2
    both = (table["up, of fp32"] + 1) / 2
    assert np.allclose(both, table["up and down, of fp32"])


def test_shares_of_raw_are_quotients_of_throughputs(made):
    table = made["transport"].set_index(["processes", "of each", "over"])
    raw = table.xs("raw dds", level="over")["GB/s"]
    ours = table.xs("dds", level="over")
    assert np.allclose(ours["GB/s"] / raw, ours["of raw DDS"])
    assert set(ours["target, 70% of raw"]) == {"reached"}
    assert set(table.xs("raw dds", level="over")["target, 70% of raw"]) == {""}


def test_a_transport_below_its_target_misses_it(dds_rows):
    slow = dds_rows.copy()
    slow.loc[(slow["metric"] == "share_of_raw") & (slow["variant"] == "dds"), "value"] = 0.69
    table = dds.TABLES["transport"](None, slow)
    assert set(table.loc[table["over"] == "dds", "target, 70% of raw"]) == {"missed"}


def test_missing_results_are_named(dds_claims, dds_rows):
    none = dds_rows[dds_rows["experiment"] == "nothing"]
    judged = detail(dds_claims, dds_rows, dds_results.RECIPE, "desk", {}, only={"DDS-P01"})
    for draw in dds.FIGURES.values():
        with pytest.raises(ValueError, match="no results of experiment '"):
            draw(none)
    for make in dds.TABLES.values():
        with pytest.raises(ValueError, match="no results of experiment '"):
            make(judged, none)


def test_dds_fills_its_page(dds_claims, dds_rows, tmp_path, monkeypatch):
    # What is drawn is tested with the figures of all documents.
    monkeypatch.setattr(dds, "FIGURES", {name: lambda *_: Figure() for name in dds.FIGURES})
    recipe = dds_results.RECIPE
    judged = detail(dds_claims, dds_rows, recipe, "desk", {})
    provenance = {"scale": "desk", "seeds": [1, 2, 3], "versions": {}, "durations": {}}
    path = html.build(dds_rows, judged, {"dds": recipe}, provenance, tmp_path / "r")
    text = (path.parent / "papers" / "dds.html").read_text(encoding="utf-8")
    assert text.count("<svg") == len(dds.FIGURES)
    assert "Not drawn" not in text and "Not made" not in text
    for name in dds.TABLES:
        assert f"tables/dds_{name}.csv" in text
    assert "snakemake --cores 2 dds_fl_figure1<" in text
