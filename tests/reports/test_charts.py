from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import FillBetweenPolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as Canvas

from slowlink.reports import artifacts, tables
from slowlink.reports.charts import (
    Band,
    Bars,
    Dots,
    Figure,
    Heat,
    Layer,
    Line,
    Lines,
    Look,
    Missing,
    Outline,
    Printed,
    Rows,
    Scatter,
    Style,
    Tiles,
    Timeline,
    data,
    items,
    look,
    table,
    units,
)
from slowlink.reports.charts.drawing import draw, outline
from slowlink.reports.claims import Claim
from slowlink.reports.evidence import Estimate
from slowlink.testbed.results import Row, frame

RACE = SimpleNamespace(name="race", makes=("heat",))
SVG = "{http://www.w3.org/2000/svg}"
T_2, T_4 = 4.3027, 2.7764
"""97.5 % points of Student's t with 2 and 4 degrees of freedom, from a printed table."""


def row(metric="time", value=1.0, unit="s", experiment="race", seed=-1, **more):
    fields = {k: v for k, v in more.items() if k in Row.model_fields}
    at = {k: v for k, v in more.items() if k not in Row.model_fields}
    base = {"document": "made", "scale": "desk", "evidence": "simulated", "at": at}
    if fields.get("status", "ok") != "ok":
        value = float("nan")
    return Row(experiment=experiment, metric=metric, value=value, unit=unit, seed=seed,
               **(base | fields))  # fmt: skip


PLAIN = Style()


def figure(chart, style=PLAIN, title="A race"):
    return Figure(title=title, shows="", of=[RACE], chart=chart, style=style)


def drawn(chart, rows, claims=(), style=PLAIN):
    return draw(figure(chart, style), frame(rows), claims)


def claim(name, printed, ours="race/A/time", where="Table 1", unit="s", **more):
    return Claim(
        id=name, where=where, kind="value", setting="", metric="time", printed=printed, unit=unit,
        quantity="latency", ours=ours, axes={"race": ("method", "k")}, **more,
    )  # fmt: skip


def texts(fig):
    """Everything that stands in the legend, and under the figure."""
    found = [text.get_text() for legend in fig.legends for text in legend.get_texts()]
    return found + [text.get_text() for text in fig.texts]


def note(fig):
    told = " ".join(legend.get_title().get_text() for legend in fig.legends)
    return told.replace("\n", " ")


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def points(ax, marker="o"):
    """Marked points, in the order in which they were drawn."""
    lines = [line for line in ax.lines if line.get_marker() == marker]
    return [tuple(point) for line in lines for point in line.get_xydata()]


SPEEDS = [
    row(value=v * factor, method=method, k=k)
    for method, factor in (("A", 1), ("B", 3))
    for k, v in ((1, 2e-3), (2, 4e-3), (4, 8e-3))
]


# Units -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "values", "shown_as"),
    [
        ("s", [1e-6, 9e-6], "µs"),
        ("s", [0.002, 0.25], "ms"),
        ("s", [0.5, 1.5], "s"),
        ("s", [3600, 7199], "s"),
        ("s", [7200, 90000], "h"),
        ("B", [12, 4.8e6], "MB"),
        ("bit/s", [155e6], "Mbit/s"),
        ("bit/s", [4e10], "Gbit/s"),
        ("", [5e9], ""),
        ("%", [80.0], "%"),
        ("s", [0.0], "s"),
    ],
)
def test_numbers_are_shown_in_the_unit_that_fits_the_largest(unit, values, shown_as):
    assert units.fitting(unit, values) == shown_as


def test_a_logarithmic_axis_takes_the_unit_of_its_middle():
    assert units.fitting("s", [1e-3, 10.0]) == "s"
    assert units.fitting("s", [1e-3, 10.0], log=True) == "ms"


def test_units_of_claims_and_rows_come_to_one():
    assert units.base("MiB") == ("B", 1048576) and units.base("h") == ("s", 3600)
    assert units.written(155e6, "bit/s") == "155 Mbit/s" and units.written(0.003, "s") == "3 ms"
    assert units.written(8, "") == "8"
    assert units.written(16 * 2**20, "B") == "16 MiB" and units.written(16e6, "B") == "16 MB"


def test_small_and_large_numbers_on_logarithmic_axes_are_powers_of_ten():
    shown_as = [look.power(value) for value in (1e5, 2e6, 1e-4, 0.002, 10000)]
    assert shown_as == ["10⁵", "2·10⁶", "10⁻⁴", "0.002", "10000"]


# Lines -------------------------------------------------------------------------------------------


def test_lines_have_labelled_axes_in_readable_units_and_a_legend():
    fig = drawn(Lines("time", x="k", colour="method"), SPEEDS)
    (ax,) = fig.axes
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("k", "time, ms")
    assert [list(line.get_ydata()) for line in ax.lines] == [[2, 4, 8], [6, 12, 24]]
    assert texts(fig) == ["A", "B"]
    first, second = ax.lines
    assert first.get_color() != second.get_color() and first.get_marker() != second.get_marker()


def test_a_line_alone_in_its_panel_is_named_where_others_have_several():
    of = [
        Lines(Rows("time", {"method": some}), x="k", colour="method") for some in ("A", ["A", "B"])
    ]
    assert texts(drawn(of, SPEEDS)) == ["A", "B"]
    other = Lines(Rows("time", {"method": "B"}), x="k", colour="method")
    assert texts(drawn([of[0], other], SPEEDS)) == ["A", "B"]
    assert texts(drawn([of[0], of[0]], SPEEDS)) == []


def test_a_declared_unit_and_label_are_used():
    rows = [row("sent", 3 * 2.0**20, "B", k=1), row("sent", 5 * 2.0**20, "B", k=2)]
    ax = drawn(Lines("sent", x="k", unit="MiB", label="sent by a worker"), rows).axes[0]
    assert ax.get_ylabel() == "sent by a worker, MiB"
    assert list(ax.lines[0].get_ydata()) == [3, 5]


def test_coordinates_are_scaled_and_named_with_their_units():
    rows = [row(value=1, bandwidth=b, d=d) for b in (1e9, 1e10) for d in (0.002, 0.02)]
    style = Style(units={"d": "s"}, names={"d": "between draws"})
    fig = drawn(Lines("time", x="d", panels="bandwidth"), rows, style=style)
    assert [ax.get_title("left") for ax in fig.axes] == ["1 Gbit/s", "10 Gbit/s"]
    assert fig.axes[0].get_xlabel() == "between draws, ms"
    assert list(fig.axes[0].lines[0].get_xdata()) == [2, 20]
    assert fig.axes[1].get_ylabel() == ""  # the panels share it


def test_bands_are_students_t_intervals_over_seeds():
    values = {1: (1.0, 2.0, 3.0), 2: (10.0, 10.0, 13.0)}
    rows = [row("loss", v, "1", k=k, seed=s) for k, vs in values.items() for s, v in enumerate(vs)]
    ax = drawn(Lines("loss", x="k"), rows).axes[0]
    assert list(ax.lines[0].get_ydata()) == pytest.approx([2, 11])
    (band,) = (one for one in ax.collections if isinstance(one, FillBetweenPolyCollection))
    half = {1: T_2 * 1 / 3**0.5, 2: T_2 * 3**0.5 / 3**0.5}  # standard deviations are 1 and √3
    outline_of = band.get_paths()[0].vertices
    for k, mean in ((1, 2), (2, 11)):
        at = outline_of[outline_of[:, 0] == k, 1]
        assert (at.min(), at.max()) == pytest.approx((mean - half[k], mean + half[k]), rel=1e-4)
    bare = drawn(Lines("loss", x="k", bands=False), rows).axes[0]
    assert not bare.collections and list(bare.lines[0].get_ydata()) == pytest.approx([2, 11])


def test_two_seeds_have_no_band():
    rows = [row("loss", v, "1", k=k, seed=s) for k in (1, 2) for s, v in enumerate((1.0, 2.0))]
    ax = drawn(Lines("loss", x="k"), rows).axes[0]
    drawn_bands = [p for one in ax.collections for p in one.get_paths() if len(p.vertices)]
    assert not any(np.isfinite(p.vertices).all() for p in drawn_bands)
    assert list(ax.lines[0].get_ydata()) == [1.5, 1.5]


def test_seeds_measured_at_other_times_are_compared_between_their_points():
    first = [row("loss", v, "1", seed=0, time_s=t, round=i) for i, (t, v) in
             enumerate([(0, 0.0), (10, 10.0)])]  # fmt: skip
    second = [row("loss", v, "1", seed=1, time_s=t, round=i) for i, (t, v) in
              enumerate([(4, 20.0), (8, 40.0), (12, 60.0)])]  # fmt: skip
    ax = drawn(Lines("loss", x="time_s"), first + second).axes[0]
    x, y = ax.lines[0].get_data()
    # The line of the first is t, that of the second 5 t; both have values from 4 to 10.
    assert (x.min(), x.max()) == (4, 10)
    assert list(y) == pytest.approx([3 * t for t in x])


def test_a_common_start_alone_does_not_make_places_common():
    rows = [row("loss", v, "1", seed=seed, time_s=t, round=i)
            for seed, pace in ((0, 1), (1, 2)) for i, (t, v) in
            enumerate([(0, 1.0), (4 * pace, 5.0), (6 * pace, 7.0)])]  # fmt: skip
    x, y = drawn(Lines("loss", x="time_s"), rows).axes[0].lines[0].get_data()
    # The line of the first is 1 + t, that of the second 1 + t / 2; both have values up to 6.
    assert x.max() == 6 and list(y) == pytest.approx([1 + 0.75 * t for t in x])


def test_only_rounds_that_all_seeds_have_are_drawn():
    rows = [row("loss", i + s, "1", seed=s, round=i) for s in (0, 2) for i in range(3 + s)]
    ax = drawn(Lines("loss", x="round"), rows).axes[0]
    assert [list(one) for one in ax.lines[0].get_data()] == [[0, 1, 2], [1, 2, 3]]


@pytest.mark.parametrize("quantity", ["", "ratio"])
@pytest.mark.parametrize("seeds", [1, 2, 3, 5])
def test_many_intervals_at_once_are_those_of_single_estimates(quantity, seeds):
    values = np.random.default_rng(seeds).uniform(1, 9, (4, seeds))
    found = np.array(data.means(values, quantity == "ratio")).T
    for (mean, low, high), line in zip(found, values, strict=True):
        one = Estimate.of(pd.Series(line), quantity)
        assert mean == pytest.approx(one.mean)
        ends = [one.interval.low, one.interval.high]
        assert [low, high] == pytest.approx(ends) if seeds > 2 else np.isnan([low, high]).all()


def test_another_metric_of_the_same_place_can_be_the_x_axis():
    rows = []
    for i, (loss, sent) in enumerate([(3.0, 1e6), (2.0, 2e6), (1.0, 4e6)]):
        rows += [row("loss", loss, "1", seed=0, round=i, method="A")]
        rows += [row("sent", sent, "B", seed=0, round=i, method="A")]
    ax = drawn(Lines("loss", x="sent", colour="method"), rows).axes[0]
    assert ax.get_xlabel() == "sent, MB"
    assert list(ax.lines[0].get_xdata()) == [1, 2, 4] and list(ax.lines[0].get_ydata()) == [3, 2, 1]


def test_running_means_and_the_end_of_a_curve():
    values = [0.0, 60.0, 90.0, 93.0, 96.0]
    rows = [row("accuracy", v, "%", round=i) for i, v in enumerate(values, 1)]
    ax = drawn(Lines("accuracy", x="round", smooth=2), rows).axes[0]
    assert list(ax.lines[0].get_ydata()) == [0, 30, 75, 91.5, 94.5]
    low, high = drawn(Lines("accuracy", x="round", after=0.6), rows).axes[0].get_ylim()
    assert 80 < low < 90 and 96 < high < 100


def test_lines_are_named_at_their_ends_without_overlap():
    rows = [row(value=v, k=k, hop=v * 1e-6) for v in (1.0, 1.01, 1.02, 5.0) for k in (1, 2)]
    style = Style(units={"hop": "s"})
    fig = drawn(Lines("time", x="k", colour="hop", direct=True), rows, style=style)
    look.lay_out(fig)
    (ax,) = fig.axes
    assert [t.get_text() for t in ax.texts] == ["1 µs", "1.01 µs", "1.02 µs", "5 µs"]
    assert not fig.legends
    boxes = [text.get_window_extent() for text in ax.texts]
    assert all(a.y0 + 0.7 * a.height < b.y0 for a, b in zip(boxes, boxes[1:]))  # noqa: B905
    assert all(box.x1 <= fig.bbox.width for box in boxes)


@pytest.mark.parametrize("low", [0.013, 0.97, 2.1, 51, 600])
@pytest.mark.parametrize("factor", [1.03, 1.5, 3, 4.9, 5.1, 20, 150, 2000])
def test_logarithmic_axes_name_at_least_two_places(low, factor):
    ax = Canvas().subplots()
    ax.set_xlim(low, factor * low)
    look.scale(ax, "x", log=True)
    ax.set_xlim(low, factor * low)
    seen = [at for at in ax.xaxis.get_majorticklocs() if low <= at <= factor * low]
    names = {label for label in ax.xaxis.get_major_formatter().format_ticks(seen) if label}
    assert 2 <= len(names) == len(seen) <= 10


@pytest.mark.parametrize(
    ("places", "named"),
    [([0, 1, 3, 8], [1, 3, 8]), ([100, 103, 3000], [100, 200, 500, 1000, 2000])],
)
def test_few_places_of_a_logarithmic_axis_are_named_if_they_are_apart(places, named):
    ax = Canvas().subplots()
    ax.set_xlim(0.9 * min(filter(None, places)), 1.1 * max(places))
    look.scale(ax, "x", True, places)
    low, high = ax.get_xlim()
    assert [at for at in ax.get_xticks() if low <= at <= high] == named


# Which rows --------------------------------------------------------------------------------------


def test_rows_are_chosen_by_coordinates():
    chart = Lines(Rows("time", {"method": "B", "k": [1, 4]}), x="k")
    assert list(drawn(chart, SPEEDS).axes[0].lines[0].get_ydata()) == [6, 24]
    fastest = Lines(Rows("time", {"method": "A", "k": max}), x="k")
    assert points(drawn(fastest, SPEEDS).axes[0]) == [(4, 8)]


def test_an_unknown_coordinate_is_named_with_the_figure():
    for chart in (
        Lines("time", x="kk"),
        Lines("time", x="k", colour="kk"),
        Lines(Rows("time", {"kk": 3}), x="k"),
        Lines("time", x="k", panels="kk"),
    ):
        with pytest.raises(ValueError, match="A race: its rows have no coordinate 'kk'; they have"):
            drawn(chart, SPEEDS)


def test_runs_that_all_failed_lack_whatever_would_tell_their_place():
    rows = [row(method=m, status="failed", reason=f"{m} is not recorded") for m in ("A", "B")]
    with pytest.raises(Missing, match="all failed: A is not recorded; B is not recorded"):
        drawn(Lines("time", x="time_s", colour="method"), rows)
    # One that did not fail shows that the coordinate is wrong.
    with pytest.raises(ValueError, match="no coordinate 'time_s'"):
        drawn(Lines("time", x="time_s", colour="method"), [*rows, row(method="C")])


def test_values_that_would_be_mixed_are_an_error():
    with pytest.raises(ValueError, match="A race: several values of metric 'time' at k 1.*method"):
        drawn(Lines("time", x="k"), SPEEDS)


def test_different_units_do_not_share_an_axis():
    rows = [row("time", 1, "s", k=1), row("sent", 1, "B", k=1)]
    with pytest.raises(ValueError, match="A race: rows of different units"):
        drawn(Lines(Rows(["time", "sent"]), x="k", colour="metric"), rows)


def test_what_is_relative_to_what_never_arrived_is_missing():
    rows = [row(method="A", status="failed", reason="not recorded"), row("time", 2, method="B")]
    with pytest.raises(Missing, match="nothing arrived that time is relative to"):
        drawn(Dots(Rows("time", relative_to={"method": "A"}), y="method"), rows)


def test_what_was_not_run_is_missing():
    with pytest.raises(Missing, match="no results of experiment 'race' with metric 'speed'"):
        drawn(Lines("speed", x="k"), SPEEDS)
    with pytest.raises(Missing, match="no results of experiment 'race' or 'heat'"):
        drawn(Lines("time", x="k"), [row(experiment="other", k=1)])
    with pytest.raises(Missing, match="no results with metric 'time' and method C"):
        drawn(Lines(Rows("time", {"method": "C"}), x="k"), SPEEDS)


def test_rows_are_prepared_before_they_are_chosen():
    def doubled(rows):
        return rows.assign(value=2 * rows["value"], half=rows["k"] / 2)

    ax = drawn(Lines(Rows("time", {"method": "A"}, prepare=doubled), x="half"), SPEEDS).axes[0]
    assert points(ax) == [(0.5, 4), (1, 8), (2, 16)]


def test_ratios_are_taken_seed_by_seed_and_averaged_as_logarithms():
    values = {"A": (1.0, 2.0, 4.0), "B": (2.0, 8.0, 64.0)}
    rows = [row(value=v, method=m, seed=s) for m, vs in values.items() for s, v in enumerate(vs)]
    chart = Dots(Rows("time", relative_to={"method": "A"}), y="method")
    fig = drawn(chart, rows)
    (ax,) = fig.axes
    # B over A is 2, 4 and 16: the geometric mean is 2 ** (7 / 3).
    assert points(ax) == [(1, 0), (pytest.approx(2 ** (7 / 3)), 1)]
    assert ax.get_xlabel() == "times that of A"
    logs = np.log([2, 4, 16])
    half = T_2 * logs.std(ddof=1) / 3**0.5
    (bar,) = (line for line in ax.collections[-1].get_segments())
    assert bar[:, 0] == pytest.approx(np.exp([logs.mean() - half, logs.mean() + half]), rel=1e-4)


def test_ratios_to_a_deterministic_value_and_to_another_metric():
    rows = [row("work", 12, "1", k=1, seed=s) for s in (0, 1)]
    rows += [row("work", 6, "1", k=0), row("time", 3, "s", k=0)]
    to_first = Dots(Rows("work", {"k": 1}, relative_to={"k": 0}), y="k")
    assert points(drawn(to_first, rows).axes[0]) == [(2, 0)]
    speed = Dots(Rows("work", {"k": 0}, relative_to={"metric": "time"}), y="k", label="work")
    ax = drawn(speed, rows).axes[0]
    assert points(ax) == [(2, 0)] and ax.get_xlabel() == "work, 1/s"


# Late and failed ---------------------------------------------------------------------------------


def late(seed, method="A", status="late", reason="did not arrive within 9 s"):
    return row(method=method, seed=seed, status=status, reason=reason)


def test_no_mean_is_drawn_of_those_that_arrived_and_the_others_are_counted():
    rows = [row(value=v, method="A", seed=s) for s, v in enumerate((1, 2))] + [late(2)]
    rows += [row(value=v, method="B", seed=s) for s, v in enumerate((1, 2, 3))]
    rows += [late(s, "C", "failed", "out of memory") for s in range(3)]
    fig = drawn(Dots("time", y="method", seeds=True), rows)
    (ax,) = fig.axes
    means = [line for line in ax.lines if line.get_markersize() > 6]
    assert [tuple(line.get_xydata()[0]) for line in means] == [(2, 1)]
    assert {t.get_text(): t.get_position()[1] for t in ax.texts} == {
        "→ 1 of 3 never": 0,
        "→ failed": 2,
    }
    assert note(fig) == "Not drawn: 3 failed (out of memory), 1 late (did not arrive within 9 s)"


def test_lines_and_heat_maps_say_what_they_leave_out():
    rows = [*SPEEDS, row(method="A", k=8, status="failed", reason="needs more memory")]
    fig = drawn(Lines("time", x="k", colour="method"), rows)
    assert [len(line.get_xdata()) for line in fig.axes[0].lines] == [3, 3]
    assert note(fig) == "Not drawn: 1 failed (needs more memory)"
    fig = drawn(Heat("time", x="k", y="method"), rows)
    assert [t.get_text() for t in fig.axes[0].texts] == ["2", "4", "8", "–", "6", "12", "24", "–"]
    assert "needs more memory" in note(fig)


def test_a_run_that_failed_in_another_metric_is_told_too():
    rows = [*SPEEDS, row("whole", method="C", k=1, status="failed", reason="refused")]
    rows += [row("whole", method="A", k=1, status="failed", reason="of no matter here")]
    assert (
        note(drawn(Lines("time", x="k", colour="method"), rows)) == "Not drawn: 1 failed (refused)"
    )
    assert note(drawn(Lines("time", x="k", colour="method"), SPEEDS)) == ""


# What stands beside ------------------------------------------------------------------------------


def test_printed_numbers_are_lines_at_their_values():
    claims = [claim("M-1", "0.0050"), claim("M-2", "12", unit="ms")]
    lines = [Line("M-1", name="printed: {}"), Line("M-2", text="{} printed"), Line("M-3", "no")]
    fig = drawn(Lines("time", x="k", colour="method", lines=lines), SPEEDS, claims)
    (ax,) = fig.axes
    flat = [line.get_ydata()[0] for line in ax.lines if len(set(line.get_ydata())) == 1]
    assert flat == pytest.approx([5, 12])
    assert texts(fig) == ["A", "B", "printed: 5"] and ax.texts[0].get_text() == "12 printed"


def test_a_part_of_a_claim_is_found_by_its_label():
    parts = [dict(label=n, printed=p, quantity="ratio", value="{race/A/1/time}")
             for n, p in (("least", "1.5"), ("largest", "2.5"))]  # fmt: skip
    both = Claim(id="M-4", where="§1", kind="derived", setting="", metric="", printed="",
                 parts=parts, axes={"race": ("method", "k")})  # fmt: skip
    rows = [row("ratio", v, "1", method="A") for v in (2,)]
    ax = drawn(Dots("ratio", y="method", lines=[Line("M-4/largest")]), rows, [both]).axes[0]
    assert ax.lines[-1].get_xdata()[0] == 2.5


def test_printed_cells_stand_in_the_rows_that_they_are_about():
    claims = [claim("M-1", "7", "race/A/4/time", unit="ms"), claim("M-2", "30", "race/B/4/time",
              unit="ms"), claim("M-3", "1", "race/A/4/time", where="Table 2")]  # fmt: skip
    chart = Dots(Rows("time", {"k": 4}), y="method", also=[
        Layer(Printed("Table 1", "time"), "D", "printed")])  # fmt: skip
    fig = drawn(chart, SPEEDS, claims)
    assert points(fig.axes[0], "D") == [(7, 0), (30, 1)]
    assert points(fig.axes[0]) == [(8, 0), (24, 1)]
    assert texts(fig) == ["ours", "printed"]


def test_printed_cells_are_divided_like_ours():
    claims = [claim(f"M-{m}", v, f"race/{m}/4/time") for m, v in (("A", "2"), ("B", "8"))]
    to = {"method": "A"}
    also = [Layer(Printed("Table 1", "time", relative_to=to), "D", "printed")]
    chart = Dots(Rows("time", {"k": 4}, relative_to=to), y="method", also=also)
    ax = drawn(chart, SPEEDS, claims).axes[0]
    assert points(ax, "D") == [(1, 0), (4, 1)] and points(ax) == [(1, 0), (3, 1)]


def test_printed_cells_are_chosen_after_they_are_divided():
    """Each method's cell at k = 4 over its own at k = 1."""
    cells = {("A", 1): "2", ("A", 4): "6", ("B", 1): "5", ("B", 4): "40"}
    claims = [claim(f"M-{m}{k}", v, f"race/{m}/{k}/time") for (m, k), v in cells.items()]
    where, to = {"k": 4}, {"k": 1}
    also = [Layer(Printed("Table 1", "time", where=where, relative_to=to), "D", "printed")]
    chart = Dots(Rows("time", where, relative_to=to), y="method", also=also)
    assert points(drawn(chart, SPEEDS, claims).axes[0], "D") == [(3, 0), (8, 1)]


def test_printed_numbers_by_id_are_placed_by_hand():
    ids = {"M-1": {"method": "B"}}
    chart = Dots(Rows("time", {"k": 4}), y="method", also=[Layer(Printed(ids=ids), "D")])
    assert points(drawn(chart, SPEEDS, [claim("M-1", "9", unit="ms")]).axes[0], "D") == [
        (pytest.approx(9), 1)]  # fmt: skip
    assert not points(drawn(chart, SPEEDS).axes[0], "D")


def test_printed_percents_stand_beside_shares():
    rows, ids = [row("share", 0.4, "1", method="A")], {"M-1": {"method": "A"}}
    also = [Layer(Printed(ids=ids, times=0.01), "D")]
    fig = drawn(Dots("share", y="method", also=also), rows, [claim("M-1", "35", unit="%")])
    assert points(fig.axes[0], "D") == [(pytest.approx(0.35), 0)]


def test_lanes_of_two_coordinates_keep_the_order_of_the_first():
    lanes = ["A x", "A y", "B y", "C x"]
    rows = [row(method=lane[0], way=lane[2]) for lane in lanes]
    (ax,) = drawn(Dots("time", y=("method", "way")), rows).axes
    assert [text.get_text() for text in ax.get_yticklabels()] == lanes


def test_layers_without_rows_are_left_out():
    chart = Dots(Rows("time", {"k": 4}), y="method", also=[Layer(Rows("bound"), "|", "bound")])
    fig = drawn(chart, SPEEDS)
    assert not fig.legends
    bounded = [*SPEEDS, row("bound", 0.001, method="A")]
    fig = drawn(chart, bounded)
    assert points(fig.axes[0], "|") == [(1, 0)] and texts(fig) == ["ours", "bound"]


def test_a_printed_ratio_may_count_from_our_mean():
    rows = [row("time", v, method="A", seed=s) for s, v in enumerate((1, 3))]
    claims = [claim("M-1", "1.5", unit="")]
    line = Line(Printed(ids={"M-1": {}}), times=Rows("time", {"method": "A"}))
    assert drawn(Dots("time", y="method", lines=[line]), rows, claims).axes[0].lines[
        -1].get_xdata()[0] == 3  # fmt: skip
    late_too = [*rows, late(2)]
    (dots,) = drawn(Dots("time", y="method", lines=[line]), late_too, claims).axes
    assert not dots.lines  # of those that arrived a mean would flatter


def test_lines_of_rows_differ_by_panel_and_bands_have_names():
    rows = [*SPEEDS, row("limit", 0.003, method="A"), row("limit", 0.005, method="B")]
    chart = Lines("time", x="k", panels="method", lines=[Line(Rows("limit"), name="limit"),
                  Band(0.001, 0.002, "near")])  # fmt: skip
    fig = drawn(chart, rows)
    assert [ax.lines[-1].get_ydata()[0] for ax in fig.axes] == [3, 5]
    assert texts(fig) == ["limit", "near"]
    assert fig.axes[0].patches[0].get_height() == pytest.approx(1)


def test_printed_ratios_count_from_the_mean_of_our_rows():
    ratios = Printed(ids={"M-1": {"k": 1}, "M-2": {"k": 2}})
    rows = [row(value=v, method=m, k=k, seed=seed) for m, v in (("A", 2), ("B", 5))
            for k in (1, 2) for seed in (1, 2, 3)]  # fmt: skip
    claims = [claim("M-1", "2.5", unit="1"), claim("M-2", "3", unit="1")]
    chart = Dots("time", y="method", panels="k",
                 lines=[Line(ratios, times=Rows("time", {"method": "A"}))])  # fmt: skip

    def upright(rows):
        axes = drawn(chart, rows, claims).axes
        return [[x for x, other in (line.get_xdata() for line in ax.lines if len(
            line.get_xdata()) == 2) if x == other] for ax in axes]  # fmt: skip

    assert upright(rows) == [[5], [6]]
    # Where one of ours never arrived there is no mean to count from.
    late = rows[0].model_copy(update=dict(status="late", reason="never", value=np.nan))
    assert upright([late, *rows[1:]]) == [[], [6]]


def test_what_stands_beside_may_lack_coordinates_of_the_chart():
    spans = [row(name, value, worker="w1", activity="compute")
             for name, value in (("begin", 0.0), ("end", 3.0))]  # fmt: skip
    meetings = [row("decided", value, meeting=number) for number, value in ((1, 1.0), (2, 2.0))]
    chart = Timeline(y="worker", colour="activity", lines=[Line(Rows("decided"), "decided")])
    (ax,) = drawn(chart, [*spans, *meetings]).axes
    (bars,) = ax.collections
    assert [line.get_xdata()[0] for line in ax.lines] == [1, 2] and len(bars.get_paths()) == 1


def test_a_panel_of_which_nothing_arrived_says_so():
    rows = [row(method=m, k=k, seed=1, status="late", reason="never reached 9 %")
            for m in "AB" for k in (1, 2)]  # fmt: skip
    axes = drawn(Dots("time", y="method", panels="k", limits=(0, None)), rows).axes
    assert [[text.get_text() for text in ax.texts] for ax in axes] == [["→ never"] * 2] * 2


# Kinds -------------------------------------------------------------------------------------------


def test_a_place_of_several_coordinates_that_only_failed_has_a_row_of_its_own():
    failed = row(value=np.nan, method="B", k=2, status="failed", reason="broke")
    rows = [row(method="A", k=1), failed]
    (ax,) = drawn(Dots("time", y=("method", "k")), rows).axes
    assert ticks(ax.yaxis) == ["A 1", "B 2"]
    assert [(text.get_text(), text.get_position()[1]) for text in ax.texts] == [("→ failed", 1)]


def test_dots_are_in_the_declared_order_or_by_value():
    rows = [row(value=v, method=m) for m, v in (("A", 3), ("B", 1), ("C", 2))]
    named = Style(order={"method": ["C", "A"]}, names={"C": "the third"})
    assert ticks(drawn(Dots("time", y="method"), rows, style=named).axes[0].yaxis) == [
        "the third", "A", "B"]  # fmt: skip
    assert ticks(drawn(Dots("time", y="method", order="value"), rows).axes[0].yaxis) == list("BCA")
    assert ticks(drawn(Dots("time", y="method", order="-value"), rows).axes[0].yaxis) == list("ACB")
    ax = drawn(Dots("time", y="method"), rows).axes[0]
    assert ax.yaxis_inverted()  # the first on top


def test_colours_are_moved_apart_within_a_row():
    ax = drawn(Dots("time", y="k", colour="method"), SPEEDS).axes[0]
    (first,) = [y for x, y in points(ax, "o") if x == 2]
    (second,) = [y for x, y in points(ax, "s") if x == 6]
    assert first < 0 < second and abs(first + second) < 1e-12


def test_a_row_may_be_several_coordinates():
    style = Style(forms={"k": "{}:1"})
    ax = drawn(Dots("time", y=("method", "k")), SPEEDS, style=style).axes[0]
    assert ticks(ax.yaxis) == ["A 1:1", "A 2:1", "A 4:1", "B 1:1", "B 2:1", "B 4:1"]
    assert [x for x, _ in points(ax)] == [2, 4, 8, 6, 12, 24]


def test_panels_may_have_their_own_rows():
    rows = [row(value=1, method=m, k=k) for m, k in (("A", 1), ("B", 1), ("C", 2))]
    shared = drawn(Dots("time", y="method", panels="k"), rows)
    assert [len(ax.get_yticks()) for ax in shared.axes] == [3, 3]
    own = drawn(Dots("time", y="method", panels="k", share="x"), rows)
    assert [ticks(ax.yaxis) for ax in own.axes] == [["A", "B"], ["C"]]


def test_panels_that_share_no_rows_have_them_in_their_own_order():
    times = {("A", 1): 3, ("B", 1): 1, ("A", 2): 10, ("B", 2): 90}
    rows = [row(value=v, method=m, k=k) for (m, k), v in times.items()]
    fig = drawn(Bars("time", y="method", panels="k", order="value", share=""), rows)
    assert [ticks(ax.yaxis) for ax in fig.axes] == [["B", "A"], ["A", "B"]]
    for ax, ends in zip(fig.axes, ([1, 3], [10, 90]), strict=True):
        assert [p.get_width() for p in sorted(ax.patches, key=lambda p: p.get_y())] == ends


def test_tiles_say_who_stands_where():
    standing = {(1, 10): "BA", (2, 10): "A", (1, 20): "ABC", (2, 20): "B", (3, 10): ""}
    rows = [row("first", 1, "1", method=m, k=k, d=d) for (k, d), ms in standing.items() for m in ms]
    rows += [row("first", 1, "1", status="failed", reason="none can", method="", k=3, d=10)]
    fig = drawn(Tiles("first", x="k", y="d", colour="method"), rows)
    (ax,) = fig.axes
    found = {tuple(t.get_position()): t.get_text() for t in ax.texts}
    # In the order of rows; the third has no look, for it is nowhere among the first two.
    assert found == {
        (0, 0): "B\n= A", (1, 0): "A", (2, 0): "–", (0, 1): "A\n= B +", (1, 1): "B", (2, 1): "–",
    }  # fmt: skip
    assert texts(fig) == ["A", "B"] and note(fig) == "Not drawn: 1 failed (none can)"
    assert ticks(ax.xaxis) == ["1", "2", "3"] and ticks(ax.yaxis) == ["10", "20"]
    inks = {to_rgb(look.PALETTE[name]) for name in ("blue", "orange")}
    assert len(ax.patches) == 4 + 2 and {p.get_facecolor()[:3] for p in ax.patches} == inks


def test_a_tile_that_is_not_sure_is_pale_and_asks():
    rows = [row("first", sure, "1", method="A", k=k, d=0) for k, sure in ((1, 1.0), (2, 0.0))]
    (ax,) = drawn(Tiles("first", x="k", y="d", colour="method"), rows).axes
    assert [t.get_text() for t in ax.texts] == ["A", "A ?"]
    clear, pale = (patch.get_facecolor() for patch in ax.patches)
    assert clear[:3] == pale[:3] and clear[3] > 2 * pale[3]


def test_tiles_of_more_winners_than_colours_are_hatched():
    rows = [row("first", 1, "1", method=f"{i}", k=i, d=0) for i in range(13)]
    patches = drawn(Tiles("first", x="k", y="d", colour="method"), rows).axes[0].patches
    looks = {(p.get_facecolor(), p.get_hatch()) for p in patches}
    assert len(looks) == 13


def test_the_legend_says_what_our_own_marks_are_where_only_the_others_have_names():
    also = [Layer(Rows("least"), "s", "least")]
    chart = Dots("time", y="method", colour="method", name="as run", also=also)
    rows = [*SPEEDS[::3], row("least", 1e-3, method="A")]
    assert texts(drawn(chart, rows)) == ["as run", "least"]


@pytest.mark.parametrize("panels", ["", "k"])
def test_an_axis_from_a_limit_on_has_room_behind_the_largest(panels):
    """In the share of the whole axis, however little the values differ."""
    rows = [
        row(value=v, method=m, k=k) for m, k, v in (("A", 1, 1.0), ("B", 1, 1.01), ("A", 2, 0.9))
    ]
    rows = rows if panels else rows[:2]
    fig = drawn(Dots("time", y="method", colour="method", panels=panels, limits=(0, None)), rows)
    assert all(ax.get_xlim() == pytest.approx((0, 1.05 * 1.01)) for ax in fig.axes)


def test_a_span_goes_from_the_least_to_the_largest():
    rows = [row(value=v, method="A", variant=m) for m, v in (("main", 2), ("a", 1), ("b", 5))]
    chart = Dots(Rows("time", {"variant": "main"}), y="method", also=[
        Layer(Rows("time"), "span", "modelled otherwise")])  # fmt: skip
    ax = drawn(chart, rows).axes[0]
    (span,) = (line for line in ax.lines if line.get_linewidth() == 4)
    assert list(span.get_xdata()) == [1, 5] and points(ax) == [(2, 0)]


def test_bars_stack_and_stand_side_by_side():
    parts = [row(m, v, "s", method="A") for m, v in (("compute", 2), ("wait", 3))]
    parts += [row(m, v, "s", method="B") for m, v in (("compute", 1), ("wait", 100))]
    both = Rows(["compute", "wait"])
    fig = drawn(
        Bars(both, y="method", colour="metric", stacked=True, written=True, label="time"), parts
    )
    (ax,) = fig.axes
    ends = {(round(p.get_y() + p.get_height() / 2), p.get_x() + p.get_width()) for p in ax.patches}
    assert ends == {(0, 2), (0, 5), (1, 1), (1, 101)}
    assert [t.get_text() for t in ax.texts] == ["5", "101"] and texts(fig) == ["compute", "wait"]
    ax = drawn(Bars(both, y="method", colour="metric", label="time"), parts).axes[0]
    assert {p.get_width() for p in ax.patches} == {2, 3, 1, 100} and {
        p.get_x() for p in ax.patches
    } == {0}
    assert len({round(p.get_y(), 6) for p in ax.patches}) == 4
    cut = Bars(both, y="method", colour="metric", stacked=True, written=True, cut=1.5, label="time")
    ax = drawn(cut, parts).axes[0]
    assert max(p.get_x() + p.get_width() for p in ax.patches) == 1.5 * 53
    assert ax.texts[-1].get_text() == "101 →"
    # What begins behind the cut is not drawn, and nothing is drawn backwards.
    parts += [row("exchange", 99, "s", method="B"), row("exchange", 9, "s", method="A")]
    three = replace(cut, rows=Rows(["compute", "exchange", "wait"]), cut=1.0)
    ax = drawn(three, parts).axes[0]
    assert max(p.get_x() + p.get_width() for p in ax.patches) == (14 + 200) / 2
    assert all(p.get_width() >= 0 for p in ax.patches)


def test_a_heat_map_writes_its_values_and_outlines_what_is_near_a_printed_one():
    claims = [claim("M-1", "8", unit="ms"), claim("M-2", "12", unit="ms")]
    near = [Outline("M-1", 0.3, "orange"), Outline("M-2", 0.01, "green", "near {} ms")]
    chart = Heat("time", x="k", y="method", outlines=near, unit="ms")
    fig = drawn(chart, SPEEDS, claims)
    (ax,) = fig.axes
    assert [t.get_text() for t in ax.texts] == ["2", "4", "8", "6", "12", "24"]
    orange = [line for line in ax.lines if line.get_color() == look.PALETTE["orange"]]
    inside = {tuple(np.floor(np.mean(line.get_xydata(), axis=0))) for line in orange}
    assert inside == {(2, 0), (0, 1)}  # 8 and 6 ms are within 30 % of 8
    assert ticks(ax.xaxis) == ["1", "2", "4"] and ax.get_xlabel() == "k"


def test_a_heat_map_of_both_signs_has_a_colour_for_each_and_none_for_zero():
    rows = [row("error", value, "%", method="A", k=k) for k, value in enumerate((-8, -4, 0, 4))]
    fig = drawn(Heat(Rows("error"), x="k", y="method"), rows)
    mesh = fig.axes[0].collections[0]
    below, half_below, zero, half_above = mesh.to_rgba(mesh.get_array().ravel())
    assert below[3] == pytest.approx(0.54, abs=0.01) and zero[3] == pytest.approx(0, abs=0.01)
    # As far from zero is as strong, and colours of the two signs differ most.
    assert half_below[3] == pytest.approx(half_above[3], abs=0.01) and half_below[3] < below[3]
    assert half_below[0] > half_below[2] and half_above[2] > half_above[0]


def test_the_outline_runs_between_cells_inside_and_outside():
    ax = Canvas().subplots()
    inside = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 1]], bool)
    outline(ax, inside, "red")
    edges = {tuple(sorted(zip(*line.get_data(), strict=True))) for line in ax.lines}
    assert len(edges) == len(ax.lines) == 8 + 4
    for (x0, y0), (x1, y1) in edges:
        x, y = (x0 + x1) / 2, (y0 + y1) / 2
        step = (0.5, 0) if x0 == x1 else (0, 0.5)
        sides = [(x + s * step[0], y + s * step[1]) for s in (-1, 1)]
        within = [bool(0 <= b < 3 and 0 <= a < 3 and inside[int(b), int(a)]) for a, b in sides]
        assert sum(within) == 1


def test_an_inset_outline_is_closed():
    ax = Canvas().subplots()
    outline(ax, np.array([[0, 1], [1, 1]], bool), "red", inset=0.1)
    ends = [tuple(np.round(p, 9)) for line in ax.lines for p in line.get_xydata()]
    assert all(ends.count(end) == 2 for end in ends)


def test_cells_can_be_marked():
    rows = [*SPEEDS, row("best", 1, "1", "heat", method="B", k=2)]
    chart = Heat(Rows("time", experiment="race"), x="k", y="method",
                 mark=Layer(Rows("best", experiment="heat"), "s", "the best"))  # fmt: skip
    fig = drawn(chart, rows)
    assert points(fig.axes[0], "s") == [(1.5, 1.5)] and texts(fig) == ["the best"]


def test_a_timeline_has_a_bar_for_everything_done():
    rows = []
    for i, (worker, kind, begin, end) in enumerate(
        [("w1", "compute", 0.0, 2.0), ("w1", "wait", 2.0, 3.0), ("w2", "compute", 0.0, 3.0)]
    ):
        for name, value in (("begin", begin), ("end", end)):
            rows.append(row(name, value, worker=worker, activity=kind, number=i))
    fig = drawn(Timeline(y="worker", colour="activity"), rows)
    (ax,) = fig.axes
    boxes = [path.get_extents() for kind in ax.collections for path in kind.get_paths()]
    bars = {(round(box.y0 + box.height / 2), box.x0, box.width) for box in boxes}
    assert len(boxes) == 3 and bars == {(0, 0, 2), (0, 2, 1), (1, 0, 3)}
    assert ax.get_xlabel() == "time, s" and texts(fig) == ["compute", "wait"]
    assert ticks(ax.yaxis) == ["w1", "w2"]


def test_a_scatter_places_points_and_names_some():
    rows = []
    for method, time, accuracy in (("A", 0.01, 90), ("B", 0.02, 95), ("C", 0.04, 92)):
        rows += [row("time", time, method=method, front=str(method != "C"))]
        rows += [row("accuracy", accuracy, "%", method=method, front=str(method != "C"))]
    chart = Scatter("accuracy", x="time", y="method", colour="front", named={"front": "True"})
    (ax,) = drawn(chart, rows).axes
    at = {tuple(p) for one in ax.collections for p in np.asarray(one.get_offsets()).tolist()}
    assert {(10, 90), (20, 95), (40, 92)} <= at
    assert ax.get_xlabel() == "time, ms" and ax.get_ylabel() == "accuracy, %"
    assert [t.get_text() for t in ax.texts] == ["B", "A"]


def test_a_scatter_of_one_quantity_shows_where_both_are_equal():
    """Predicted 10 and 100 s, measured 20 and 90; the line goes a tenth beyond both ends."""
    rows = []
    for method, predicted, measured in (("A", 10, 20), ("B", 100, 90)):
        rows += [row("predicted", predicted, method=method), row("time", measured, method=method)]
    chart = Scatter("time", x="predicted", y="method", log="xy", equal=0.1)
    fig = drawn(chart, rows)
    (ax,) = fig.axes
    (line,) = [line for line in ax.lines if len(line.get_xdata()) == 2]
    assert line.get_xdata() == pytest.approx([9, 110])
    assert line.get_ydata() == pytest.approx([9, 110])
    (band,) = [one for one in ax.collections if isinstance(one, FillBetweenPolyCollection)]
    (path,) = band.get_paths()
    corners = {(round(x, 3), round(y, 3)) for x, y in path.vertices}
    assert {(9, 8.1), (9, 9.9), (110, 99), (110, 121)} <= corners
    assert texts(fig) == ["equal, ± 10 %"]


def test_titles_may_be_computed():
    chart = Lines("time", x="k", panels="method", title=lambda rows: f"{len(rows)} points")
    fig = drawn(chart, SPEEDS)
    assert [ax.get_title("left") for ax in fig.axes] == ["3 points"] * 2


def test_panels_wrap_and_charts_stand_in_lines():
    rows = [row(value=k, k=k, case_=f"c{c}") for k in (1, 2) for c in range(5)]
    fig = drawn(Lines("time", x="k", panels="case_", columns=2), rows)
    spots = [ax.get_subplotspec() for ax in fig.axes]
    assert [(s.rowspan.start, s.colspan.start) for s in spots] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]  # fmt: skip
    one = Lines(Rows("time", {"case_": "c1"}), x="k")
    fig = drawn([[one, one], [one, one]], rows)
    assert [ax.get_subplotspec().rowspan.start for ax in fig.axes] == [0, 0, 1, 1]
    wrapped = Lines("time", x="k", panels="case_", columns=3)
    spots = [ax.get_subplotspec() for ax in drawn([[wrapped], [wrapped]], rows).axes]
    assert [(s.rowspan.start, s.colspan.start) for s in spots] == [
        (y, x) for y in range(4) for x in range(2 + (y % 2 == 0))
    ]


# Looks -------------------------------------------------------------------------------------------


def test_a_value_has_one_colour_and_marker_in_all_charts_of_a_figure():
    style = Style(looks={"B": "blue"})
    left = Lines("time", x="k", colour="method")
    right = Dots(Rows("time", {"k": 4}), y="method", colour="method")
    fig = drawn([left, right], SPEEDS, style=style)
    lines = {line.get_ydata()[0]: line.get_color() for line in fig.axes[0].lines}
    assert lines[6] == look.PALETTE["blue"] != lines[2]
    dots = {line.get_xdata()[0]: line.get_color() for line in fig.axes[1].lines}
    assert dots == {8: lines[2], 24: lines[6]}
    assert texts(fig) == ["A", "B"]


def test_more_values_than_colours_differ_in_dashes():
    rows = [row(value=1, k=k, method=m) for m in "ABCDEFGH" for k in (1, 2)]
    ax = drawn(Lines("time", x="k", colour="method"), rows).axes[0]
    assert len({(line.get_color(), str(line._dash_pattern)) for line in ax.lines}) == 8


def test_as_many_colours_as_the_palette_has_are_different():
    rows = [row(value=1, k=1, method=m) for m in "ABCDEF"]
    style = Style(looks={"Z": "blue", "A": Look("green", "X")})
    ax = drawn(Lines("time", x="k", colour="method"), rows, style=style).axes[0]
    assert len({line.get_color() for line in ax.lines}) == 6
    assert len({line.get_marker() for line in ax.lines}) == 6
    assert (ax.lines[0].get_color(), ax.lines[0].get_marker()) == (look.PALETTE["green"], "X")


WIDE = [
    Lines("time", x="k", colour="method", log="xy", lines=[Line(0.003, "limit")]),
    Dots("time", y="k", colour="method", lines=[Band(0.001, 0.002, "near")]),
    Bars("time", y="k", colour="method"),
    Heat("time", x="k", y="method"),
    [Lines("time", x="k", colour="method"), Dots(Rows("time", {"k": 1}), y="method")],
]


@pytest.mark.parametrize("chart", WIDE, ids=lambda chart: type(chart).__name__)
def test_the_file_is_deterministic_and_reads_on_any_background(chart, tmp_path):
    failed = row(method="A", k=8, status="failed", reason="a long reason, " * 20)
    one, two = (
        look.save(drawn(chart, [*SPEEDS, failed]), tmp_path / name).read_bytes() for name in "ab"
    )
    assert one == two
    text = one.decode()
    assert ET.fromstring(one).findall(f".//{SVG}text"), "text must stay text"
    assert set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", text)) <= {
        look.INK, *look.PALETTE.values(), "#000000"}  # fmt: skip
    assert len(one) < 40_000


@pytest.mark.parametrize("chart", WIDE, ids=lambda chart: type(chart).__name__)
def test_legends_and_notes_hide_nothing(chart):
    reason = "a long reason that goes on for some more words, and more"
    failed = row(method="A", k=8, status="failed", reason=reason)
    fig = drawn(chart, [*SPEEDS, failed])
    with look.style():
        look.lay_out(fig)
        (box,) = (one.get_window_extent() for one in fig.legends)
        assert not any(box.overlaps(ax.get_tightbbox()) for ax in fig.axes)
    assert box.x0 >= 0 and box.x1 <= fig.bbox.width and box.y0 >= 0


# Pages -------------------------------------------------------------------------------------------


def test_a_page_is_its_figures_and_tables_in_order():
    @table(title="T", shows="", of=[RACE])
    def second(rows, verdicts):
        """Its words."""
        return rows

    page = SimpleNamespace(first=figure(WIDE[0]), second=second, helper=3, third=figure(WIDE[1]))
    assert list(items(page)) == ["first", "second", "third"]
    assert [one.kind for one in items(page).values()] == ["figure", "table", "figure"]
    assert second.experiments == ["race", "heat"]


@pytest.fixture
def folders(tmp_path):
    made, report = tmp_path / "results", tmp_path / "report"
    for folder in (made / "figures", made / "tables", report):
        folder.mkdir(parents=True)
    return made, report


def test_the_page_shows_the_file_of_the_target(folders):
    made, report = folders
    one = figure(WIDE[0])
    assert artifacts.write_figure(one, frame(SPEEDS), [], made / "figures" / "speed.svg") == ""
    entry = artifacts.entry("made", "speed", one, frame(SPEEDS), made, report)
    copy = report / entry["files"]["SVG"]
    assert copy.read_bytes() == (made / "figures" / "speed.svg").read_bytes()
    assert "currentColor" in entry["svg"] and look.INK not in entry["svg"]
    assert f"var(--blue, {look.PALETTE['blue']})" in entry["svg"]
    assert entry["id"] == "made-speed" and entry["basis"] == "deterministic: no seeds, no intervals"
    assert entry["command"] == "snakemake --cores 2 made_speed"
    behind = pd.read_csv(report / entry["files"]["CSV race"])
    assert set(behind.columns) == {"method", "k", "time (s)"} and len(behind) == 6


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ({"A": [1, 2, 3], "B": [1, 2, 3]}, "3 seeds, intervals are 95 %"),
        # That a rate was tried with seed 0 does not make four of three.
        ({"A": [1, 2, 3], "B": [0]}, "1 to 3 seeds, intervals are 95 %"),
        ({"A": [1], "B": [0]}, "1 seed: too few for intervals"),
    ],
)
def test_the_seeds_of_a_place_are_counted(folders, seeds, said):
    made, report = folders
    rows = frame([row(value=s + 1, method=m, k=1, seed=s) for m, its in seeds.items() for s in its])
    one = figure(WIDE[0])
    artifacts.write_figure(one, rows, [], made / "figures" / "speed.svg")
    assert artifacts.entry("made", "speed", one, rows, made, report)["basis"].startswith(said)


def test_a_table_keeps_its_digits_and_its_numbers(folders):
    made, report = folders

    @table(title="T", shows="", of=[RACE])
    def numbers(rows, verdicts):
        return pd.DataFrame({"method": ["A", "B"], "s": [0.25, np.nan], "printed": ["6.70", ""]})

    artifacts.write_table(numbers, frame(SPEEDS), None, made / "tables" / "numbers.csv")
    entry = artifacts.entry("made", "numbers", numbers, frame(SPEEDS), made, report)
    assert entry["plain"]["columns"] == [("method", False), ("s", True), ("printed", False)]
    assert entry["plain"]["rows"][0] == ["A", 0.25, "6.70"]
    assert np.isnan(entry["plain"]["rows"][1][1])
    assert (report / entry["files"]["CSV"]).is_file()


def test_a_printed_table_is_shown_cell_by_cell(folders):
    made, report = folders
    cells = [["MXNET", "time", "6.70", 1.5, "1.2 [1, 1.4]", 0.2, "s", "fails", "why; so", "M-1"],
             ["MXNET", "up", "3", np.nan, "", np.nan, "MB", "holds", "", "M-2"]]  # fmt: skip

    @table(title="T", shows="", of=[RACE])
    def printed(rows, verdicts):
        return pd.DataFrame(cells, columns=tables.COLUMNS)

    artifacts.write_table(printed, frame(SPEEDS), None, made / "tables" / "printed.csv")
    entry = artifacts.entry("made", "printed", printed, frame(SPEEDS), made, report)
    assert entry["matrix"]["columns"] == [("time", "s"), ("up", "MB")]
    ((name, (first, second)),) = entry["matrix"]["rows"]
    assert name == "MXNET" and (first["printed"], first["bound"]) == ("6.70", 1.5)
    assert first["ours"] == "1.2 [1, 1.4]" and second["verdict"] == "holds" and second["ours"] == ""


def test_what_was_not_run_says_so_in_its_file_and_on_the_page(folders):
    made, report = folders
    one = figure(Lines("speed", x="k"))

    @table(title="T", shows="", of=[SimpleNamespace(name="other")])
    def nothing(rows, verdicts):
        raise AssertionError("there are no rows to make it of")

    why = "no results of experiment 'race' with metric 'speed'"
    assert artifacts.write_figure(one, frame(SPEEDS), [], made / "figures" / "a.svg") == why
    ET.parse(made / "figures" / "a.svg")
    entry = artifacts.entry("made", "a", one, frame(SPEEDS), made, report)
    assert entry["missing"] == why and "svg" not in entry and "files" not in entry
    artifacts.write_table(nothing, frame(SPEEDS), None, made / "tables" / "b.csv")
    entry = artifacts.entry("made", "b", nothing, frame(SPEEDS), made, report)
    assert entry["missing"] == "no results of experiment 'other'" and "plain" not in entry


def test_a_wrong_declaration_is_not_taken_for_a_missing_run(folders):
    with pytest.raises(ValueError, match="no coordinate 'kk'"):
        artifacts.write_figure(
            figure(Lines("time", x="kk")), frame(SPEEDS), [], folders[0] / "a.svg"
        )
