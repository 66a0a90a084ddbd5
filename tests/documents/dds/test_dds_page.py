"""DDS's figures and tables show what its experiments make, beside what the document prints."""

from __future__ import annotations

import dds_results
import numpy as np
import pandas as pd
import pytest

from slowlink.reports.charts import Missing
from slowlink.reports.charts.drawing import draw
from slowlink.reports.verdicts import judge
from slowlink.testbed.results import coordinates

MODES = list(dds_results.MODES)
FEEDBACK = list(dds_results.ALONE)


def lanes(ax) -> list[str]:
    """Names of a panel's lanes, which stand at the first panel that shares them."""
    found = [label.get_text() for label in ax.get_yticklabels()]
    return found if any(found) else lanes(ax.figure.axes[0])


def marked(ax, marker: str) -> dict[str, float]:
    """Lane -> value of what is drawn large with one marker."""
    found = {}
    for line in ax.lines:
        large = line.get_markersize() > 4 and len(line.get_xdata()) == 1
        if line.get_marker() == marker and large:
            found[lanes(ax)[round(line.get_ydata()[0])]] = line.get_xdata()[0]
    return found


def bars(ax) -> dict[str, list[float]]:
    """Lane -> widths of its bars, in the order drawn."""
    found: dict[str, list[float]] = {}
    for bar in ax.patches:
        lane = lanes(ax)[round(bar.get_y() + bar.get_height() / 2)]
        found.setdefault(lane, []).append(bar.get_width())
    return found


def of(*values: float) -> dict[str, float]:
    return dict(zip(MODES, values, strict=True))


PRINTED = {
    "ddp_figure1": [{"baseline": 1.165, "DGC": 0.01}],
    "ddp_figure2": [{}, {"baseline": 98.07, "DGC": 98.11}],
    "ddp_figure3": [{"baseline": 3025.49, "DGC": 414.15}],
    "ddp_figure4": [{"baseline": 25.54, "DGC": 20.83}],
    "fl_figure1": [of(4.58, 1.15, 0.92, 0.57)],
    "fl_figure2": [of(547.3, 505.7, 450.2, 429.7), of(193.9, 92.0, 66.5, 65.1)],
    "fl_figure3": [of(10.4848, 9.9822, 9.4327, 9.5890)],
    "fl_figure4": [{}, of(98.31, 98.21, 98.12, 98.17)],
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_documents_numbers_stand_beside_ours(name, wing, dds_claims, one_run):
    fig = draw(wing.figures[name], one_run, dds_claims)
    for ax, printed in zip(fig.axes, PRINTED[name], strict=True):
        if printed:
            assert marked(ax, "D") == pytest.approx(printed)
            ours = marked(ax, "o")
            # In this world ours are the document's: lanes and units are right.
            for lane, value in printed.items():
                assert ours[lane] == pytest.approx(value, rel=0.07 if "1" in name else 0.01)
    plain = draw(wing.figures[name], one_run)
    told = [text.get_text() for text in plain.legends[0].get_texts()] if plain.legends else []
    assert "recovered from the document's logs" not in told


def test_every_figure_and_table_says_what_was_not_run(wing, dds_claims, dds_rows):
    assert wing.figures.keys() - PRINTED.keys() == {
        *("profile", "federated_bytes", "non_iid", "attack", "transport")
    }
    none = dds_rows[dds_rows["experiment"] == "nothing"]
    for figure in wing.figures.values():
        with pytest.raises(Missing, match="no results of experiment '"):
            draw(figure, none, dds_claims)


def test_bytes_are_drawn_as_counted_there_and_one_way(wing, dds_rows):
    (ax,) = draw(wing.figures["ddp_figure1"], dds_rows).axes
    counted, one_way = marked(ax, "o"), marked(ax, "s")
    assert lanes(ax) == ["fp32", "baseline", "DGC", "DGC momentum"]  # one process sends nothing
    heads = {lane: dds_results.HEADS[lane] / 2**20 for lane in one_way}
    assert counted == pytest.approx({lane: 3 * (one_way[lane] + heads[lane]) for lane in one_way})
    assert one_way["DGC"] == pytest.approx(dds_results.SPARSE_STEP / 2**20)


def test_payloads_are_the_sum_of_their_parts(wing, dds_rows):
    up, both = (bars(ax) for ax in draw(wing.figures["federated_bytes"], dds_rows).axes)
    mib = 2.0**-20
    for mode in MODES:
        assert sum(up[mode]) == pytest.approx(mib * dds_results.UPLINK[mode])
        assert sum(both[mode]) == pytest.approx(sum(up[mode]) + 4 * mib * dds_results.D)
    d, k = mib * dds_results.D, mib * dds_results.K
    parts = {mode: [width for width in widths if width > 1e-9] for mode, widths in up.items()}
    assert parts["fp32_dense"] == pytest.approx([4 * d])
    assert parts["int8_dense"] == pytest.approx([d, mib * (20 + 4 * 1172)])
    assert parts["fp32_sparse"] == pytest.approx([4 * k, 4 * k, mib * 12])
    assert parts["int8_sparse"] == pytest.approx([4 * k, k, mib * (20 + 4 * 118)])


def test_a_step_is_the_sum_of_what_is_done(wing, one_run):
    left, right = draw(wing.figures["profile"], one_run).axes
    timed = "experiment == 'ddp_recorded' and metric == 'step_time'"
    step = coordinates(one_run.query(timed)).set_index("method")["value"]
    for method, widths in bars(left).items():
        assert sum(widths) == pytest.approx(1e3 * step[method])
    longest, later = marked(right, "^"), marked(right, "s")
    assert later == pytest.approx({lane: 0.9 * value for lane, value in longest.items()})
    assert all(marked(right, "o")[lane] < value for lane, value in later.items())


def test_learning_has_a_line_for_every_live_run_and_a_lane_for_all(wing, dds_rows, one_run):
    left, right = draw(wing.figures["fl_figure4"], dds_rows).axes
    assert lanes(right) == MODES + FEEDBACK
    # Intervals take three runs.
    assert len(left.lines) == len(left.collections) == len(MODES)
    single = draw(wing.figures["fl_figure4"], one_run).axes[0]
    assert len(single.lines) == len(MODES) and not single.collections
    final = dds_rows.query("experiment == 'federated_seeds' and metric == 'final_accuracy'")
    means = coordinates(final).groupby("mode")["value"].mean()
    assert marked(right, "o") == pytest.approx(means.to_dict())
    assert set(marked(right, "s")) == set(MODES)  # what ran on real processes
    assert right.get_title("left") == "at the end; seeds: mnist_cnn"


def test_unlike_data_stand_beside_alike(wing, dds_rows):
    axes = draw(wing.figures["non_iid"], dds_rows).axes
    assert [ax.get_title("left") for ax in axes] == ["alike", "by label", "dirichlet 0.1"]
    assert lanes(axes[0]) == list(dds_results.NON_IID)
    for ax, value in zip(axes, (93, 90, 92), strict=True):
        first = next(line for line in ax.lines if line.get_markersize() > 4)
        assert first.get_xdata()[0] == pytest.approx(value, abs=1)


def test_rules_stand_in_a_panel_an_attack(wing, dds_rows, dds_claims):
    axes = draw(wing.figures["attack"], dds_rows).axes
    assert len(axes) == 3 and lanes(axes[0]) == dds_results.RULES
    assert axes[0].get_title("left") == "none"
    none, *attacked = (marked(ax, "o") for ax in axes)
    assert none["mean"] == pytest.approx(89.2) and none["Krum"] == pytest.approx(89.2)
    assert all(one["mean"] == pytest.approx(10.2) and one["Krum"] > 80 for one in attacked)
    rows = coordinates(dds_rows[dds_rows["experiment"] == "attack"])
    table = wing.tables["attack_table"].make(rows, None)
    assert list(table.columns) == ["rule", "none, %", "turned around, %", "noise, %"]
    assert list(table["rule"]) == dds_results.RULES


def test_throughputs_stand_beside_their_target(wing, dds_rows):
    axes = draw(wing.figures["transport"], dds_rows).axes
    assert [ax.get_title("left") for ax in axes] == ["2 processes", "4 processes"]
    assert lanes(axes[0]) == ["1 MiB", "16 MiB", "64 MiB"]
    for ax in axes:
        raw, target = marked(ax, "s"), marked(ax, "|")
        assert len(raw) == 3
        assert target == pytest.approx({size: 0.7 * value for size, value in raw.items()})


@pytest.fixture(scope="module")
def make(wing, dds_claims, one_run):
    judged = judge(dds_claims, one_run, dds_results.RECIPE, "desk")
    return lambda name, rows=one_run: wing.tables[name].make(
        coordinates(rows[rows["experiment"].isin(wing.tables[name].experiments)]), judged
    )


def test_the_table_of_modes_has_ours_and_theirs(make):
    table = make("federated_table").set_index("mode")
    assert list(table.index) == MODES + FEEDBACK
    for column in ("payload, B", "client0, ms", "client1, ms", "round, ms"):
        ours = table.loc[MODES, column].str.split().str[0].astype(float)
        theirs = table.loc[MODES, f"{column}: there"].astype(float)
        assert np.allclose(ours, theirs, rtol=2e-3)
    assert list(table.loc[MODES, "payload, B"]) == ["4799528", "1204590", "959916", "600432"]
    accuracy = "accuracy of mnist_cnn, %"
    assert list(table[f"{accuracy}: there"]) == ["98.31", "98.21", "98.12", "98.17", *[""] * 4]
    assert set(table.loc[MODES, "apart from one process"]) == {"0 (mnist_cnn after round 2)"}
    assert set(table.loc[FEEDBACK, "apart from one process"]) == {""}
    # Its gain is over the same mode without it, seed by seed; in this world 0.05 points.
    gained = table["more by feedback, points"]
    assert (gained[[mode for mode in gained.index if "EF" not in mode]] == "").all()
    for mode in ("fp32_sparse EF", "int8_sparse EF"):
        assert float(gained[mode].split()[0]) == pytest.approx(0.05, abs=0.03)


def test_a_check_names_its_own_model(make, one_run):
    check = one_run.query("experiment == 'federated_seeds' and metric == 'live_difference'")[:1]
    place = one_run.loc[one_run["at"].str.contains("int8_sparse EF"), "at"].iloc[0]
    rows = pd.concat([one_run, check.assign(at=place, model="mlp", round=1)], ignore_index=True)
    table = make("federated_table", rows).set_index("mode")
    assert table.loc["int8_sparse EF", "apart from one process"] == "0 (mlp after round 1)"
    assert "accuracy of mnist_cnn, %" in table


def test_the_table_of_methods_has_ours_and_theirs(make):
    table = make("ddp_table").set_index("method")
    assert list(table.index) == ["fp32", "baseline", "DGC", "DGC momentum", "centralised"]
    received = table.loc["baseline", "received in frames, B"]
    assert int(received) > int(table.loc["baseline", "one way, B"]) == 407146
    assert list(table["longest wait, ms: there"]) == ["", "3025.49", "414.15", "", ""]
    assert table.loc["fp32", "counted as there, MiB"] == "4.659"


def test_bytes_in_the_table_follow_from_the_layout(make):
    table = make("federated_bytes_table").set_index("mode")
    assert table.loc["int8_dense C=8192", ["payload, B", "there"]].tolist() == ["1200490", ""]
    assert table.loc["int8_dense", ["payload, B", "there"]].tolist() == ["1204590"] * 2
    assert np.allclose((table["up, of fp32"] + 1) / 2, table["up and down, of fp32"])


@pytest.mark.parametrize(("share", "told"), [(0.8, "reached"), (0.7, "reached"), (0.69, "missed")])
def test_ours_reaches_its_share_of_raw_or_misses_it(make, one_run, share, told):
    ours = (one_run["metric"] == "share_of_raw") & one_run["at"].str.contains('"dds"')
    table = make("transport_table", one_run.assign(value=one_run["value"].mask(ours, share)))
    assert table["of each, MiB"].drop_duplicates().tolist() == [1, 16, 64]
    column = table.set_index("over")["target, 70% of raw"]
    assert set(column["dds"]) == {told} and set(column[["raw dds", "gloo"]]) == {""}
