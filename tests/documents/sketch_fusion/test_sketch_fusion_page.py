"""Sketch-Fusion's figures and tables say what its rows and claims say."""

from __future__ import annotations

import math

import pytest
from sketch_fusion_results import CODECS, FUSIONS, RECIPE, iteration, spent

from slowlink.reports.charts import Missing
from slowlink.reports.charts.drawing import draw
from slowlink.reports.verdicts import judge
from slowlink.testbed.results import coordinates


@pytest.fixture(scope="module")
def table(wing, skf_claims, skf_rows):
    """Makes a table by name."""
    only = {claim.id for claim in skf_claims if claim.kind == "value"}
    judged = judge(skf_claims, skf_rows, RECIPE, "desk", only=only)

    def make(name):
        one = wing.tables[name]
        rows = skf_rows[skf_rows["experiment"].isin(one.experiments)]
        return one.make(coordinates(rows), judged)

    return make


def drawn(wing, name, rows, claims=()):
    return draw(wing.figures[name], rows, claims)


def lanes(ax) -> list[str]:
    """Names of rows; of panels that share them the first has them."""
    return [text.get_text() for text in ax.figure.axes[0].get_yticklabels()]


def marked(ax, marker: str) -> list[tuple[str, float]]:
    """Names of rows, and where they have this mark, which is hollow beside ours."""
    lines = [line for line in ax.lines if line.get_marker() == marker]
    lines = [line for line in lines if line.get_markerfacecolor() == "none"]
    names = lanes(ax)
    found = [(names[round(line.get_ydata()[0])], round(line.get_xdata()[0], 9)) for line in lines]
    return sorted(found, key=lambda one: (names.index(one[0]), one[1]))


@pytest.mark.slow
def test_every_figure_is_drawn(wing, skf_claims, skf_rows):
    for name in wing.figures:
        fig = drawn(wing, name, skf_rows, skf_claims)
        assert all(ax.get_xlabel() or ax.get_title("left") for ax in fig.axes), name


@pytest.mark.parametrize(
    ("name", "experiment"),
    [
        ("figure1", "tensors"),
        ("figure3", "scaling"),
        ("figure2", "timeline"),
        ("theory", "theory"),
        ("lstm", "lstm"),
    ],
)
def test_a_figure_without_results_says_what_is_missing(name, experiment, wing, skf_rows):
    few = skf_rows[skf_rows["experiment"] != experiment]
    with pytest.raises(Missing, match=f"no results of experiment .*'{experiment}'"):
        drawn(wing, name, few)


def test_scaling_factors_stand_beside_printed_ones(wing, skf_claims, skf_rows):
    fig = drawn(wing, "figure4", skf_rows, skf_claims)
    assert [ax.get_title("left") for ax in fig.axes] == ["2 GPUs", "4 GPUs", "8 GPUs", "16 GPUs"]
    # The text prints 35 % for the baseline and 50 % for FP16 on 16 GPUs.
    printed = [[], [], [], [("Baseline", 0.35), ("FP16", 0.5)]]
    assert [marked(ax, "D") for ax in fig.axes] == printed
    assert len(marked(fig.axes[-1], "|")) == 10  # this CPU, all but the baseline
    assert not any(marked(ax, "D") for ax in drawn(wing, "figure3", skf_rows, skf_claims).axes)


@pytest.mark.slow
def test_gains_stand_beside_table_4_and_the_text(wing, skf_claims, skf_rows):
    left, _, last = drawn(wing, "gains", skf_rows, skf_claims).axes
    printed = dict(marked(left, "D"))
    assert len(printed) == 7 and printed["EFSignSGD"] == pytest.approx(3418 / 3294)
    assert printed["DGC"] == pytest.approx(4716 / 3416)
    text = [("Top-k", 1.58), ("Top-k", 2.51), ("EFSignSGD", 2.47), ("SignSGD", 2.47)]
    assert marked(left, "P") == text
    # Over layer-wise; the 1.41 are over the baseline.
    assert marked(last, "P") == [("EFSignSGD", 2.87), ("SignSGD", 2.87)]
    assert not marked(drawn(wing, "gains", skf_rows).axes[0], "P")


def test_an_iteration_is_titled_by_what_it_sends(wing, skf_rows):
    fig = drawn(wing, "figure2", skf_rows)
    titles = [ax.get_title("left") for ax in fig.axes]
    # Of m messages the last begins to decode at 0.1 (m - 1/4) / m s and takes 0.02 / m s.
    ends = {m: 1e3 * (0.1 * (m - 0.25) + 0.02) / m for m in (8, 1, 3)}
    assert titles == [
        f"layer-wise: 8 messages, {ends[8]:.3g} ms",
        f"whole model: 1 message, {ends[1]:.3g} ms",
        f"LayerFusion: 3 messages, {ends[3]:.3g} ms",
    ]
    assert fig.axes[-1].get_xlabel() == "since the iteration began, ms"


def test_table_1_stands_beside_the_printed_one(table):
    made = table("table1").set_index("method")
    printed = made["printed for a V100, ms"].dropna()
    assert printed["DGC"] == 242 and printed["Top-k"] == 122 and len(printed) == 7
    assert "DGT" in made.index
    ratio = made["layer-wise, ms"] / made["printed for a V100, ms"]
    assert ratio["QSGD"] == made.loc["QSGD", "layer-wise / printed"]


def test_table_4_stands_beside_the_printed_one(table):
    made = table("table4").set_index(["model", "method"])
    assert made.loc[("ResNet-20", "DGC"), "gain printed"] == pytest.approx(4716 / 3416)
    assert made.loc[("LSTM", "Sketch-Fusion"), "LayerFusion printed"] == 9864
    assert math.isnan(made.loc[("LSTM", "Sketch-Fusion"), "layer-wise printed"])
    assert made["LayerFusion printed"].notna().sum() == 3 * 8
    assert not made.index.duplicated().any() and len(made) == 4 * 11
    ours = 16 * 128 / iteration("DGC", "resnet20", True, 16)
    assert made.loc[("ResNet-20", "DGC"), "LayerFusion, 1/s"] == pytest.approx(ours)
    here = 16 * 128 / iteration("DGC", "resnet20", False, 16, 3.0)
    assert made.loc[("ResNet-20", "DGC"), "layer-wise, this CPU"] == pytest.approx(here)


def test_speeds_are_held_against_a_copy(table):
    made = table("speed").set_index("method")
    assert made.loc["DGC", "compress / copy"] == pytest.approx(0.12)
    assert made.loc["copy", "copy, GB/s"] == 10 and made.loc["torch.topk"].notna().sum() == 2
    whole = made["whole, layer by layer, GB/s"].dropna()
    assert whole.to_dict() == {"PowerSGD": 0.95, "torch PowerSGD hook": 0.9}


def test_searches_are_held_against_the_best(table):
    made = table("fusion_table")
    assert set(made["LayerFusion, % over"].round(9)) == {1.0}
    assert list(made["model"].unique()) == ["ResNet-20", "VGG-16", "ResNet-50", "LSTM"]
    assert set(made["groups of the best"]) == {len(FUSIONS)}
    assert set(made["LayerFusion found in, ms"]) == {256.0}
    assert set(made["LayerFusion to the letter, % over"].round(9)) == {2.0}


def test_readings_of_b_stand_beside_each_other(table):
    made = table("readings_table").set_index(["model", "Table 3's b"])
    assert len(made) == 3 * 2
    for read, shared in (("of each GPU", 1), ("of all", 16)):
        compute, coding, sending = spent("Baseline", "resnet50", False, 16)
        alone = compute / shared
        baseline = 100 * alone / (alone + coding + sending)
        assert made.loc[("ResNet-50", read), "baseline, %"] == pytest.approx(baseline)
        # 128 images of each of 16 GPUs, or of all, at Table 4's 1,768 a second.
        took = made.loc[("ResNet-50", read), "DGC's iteration by Table 4, ms"]
        assert took == pytest.approx(1e3 * 16 * 128 / shared / 1768)
    assert made["of it coding by Table 1, ms"].dropna().tolist() == [242, 242]


def test_the_lead_ends_where_a_sketch_costs_too_much(table):
    made = table("sketch_cost_table").set_index(["model", "Table 3's b"])
    assert made.loc[("LSTM", "of all"), "at SignSGD's cost"] == pytest.approx(8**0.1)
    assert made.loc[("LSTM", "of all"), "at Top-k's cost"] == pytest.approx((8 / 9) ** 0.1)
    assert (made.loc["ResNet-50", "best up to, times SignSGD's"] == 8).all()
    assert made.loc["ResNet-20", "best up to, times SignSGD's"].isna().all()
    (here,) = made["on this CPU, times SignSGD's"].dropna().unique()
    sketch, sign = (
        (0.1024 / rate + 161 * start * 1e-5) for rate, start in ((0.7, 0.7), (2.5, 0.6))
    )
    assert here == pytest.approx(sketch / sign)


def test_errors_have_a_line_each(table):
    made = table("errors").set_index("method")
    assert len(made) == len(CODECS) + 1 and made.loc["FP16", "error / values"] == 0.5


def test_theorems_are_held_against_their_bounds(table):
    made = table("theory_table").set_index(["theorem", "groups y", "iterations T"])
    assert made.loc[(2, 4, 1024), "bound"] == pytest.approx(40 * 4 / 32)
    assert made.loc[(1, 1, 256), "measured"] == pytest.approx(4.4 / 16)
    assert set(made["seeds"]) == {3} and len(made) == 8
    slopes = made["slope of log measured over log T"].groupby(["theorem", "groups y"]).unique()
    expected = {(1, 1): -0.49, (2, 1): -0.49, (2, 4): -0.46, (2, 16): -0.34}
    assert {key: list(one) for key, one in slopes.items()} == {
        key: [pytest.approx(one)] for key, one in expected.items()
    }


def test_real_processes_have_a_line_each(table):
    made = table("live").set_index(["method", "processes", "communication"])
    assert len(made) == 2 * 2 * 2 and set(made["a step, ms"]) == {30.0}
    assert made.loc[("DGC", 4, "ordered"), "largest difference"] == 0
