"""Advice that is checked: the record, and what figures and tables say of it."""

import dataclasses
import json

import numpy as np
import pytest

from slowlink.reports import artifacts
from slowlink.reports.charts import Missing, items
from slowlink.reports.charts.drawing import draw
from slowlink.testbed.live import checked as live
from slowlink.workflow import settings
from slowlink.workflow.matrix import checked, practice
from slowlink.workflow.matrix.experiments import Bench
from tests.matrix import checked_results

SHOWN = items(practice)
FIGURES = [name for name, one in SHOWN.items() if one.kind == "figure"]


@pytest.fixture(scope="module")
def recipe():
    return settings.load({"scale": "desk"}).recipes["matrix"]


@pytest.fixture
def bench(recipe, monkeypatch, tmp_path):
    """A bench whose record lies in a folder of its own."""
    monkeypatch.setattr(checked, "RECORD", str(tmp_path / "record"))
    return Bench("matrix", "checked", recipe, "desk", say=lambda line: None)


def small(recipe, **changes):
    """Two methods on two networks."""
    section = recipe.checked
    methods = dict(list(section.methods.items())[:2])
    networks = dict(list(section.networks.items())[:2])
    return section.model_copy(update=dict(methods=methods, networks=networks) | changes)


@pytest.fixture
def run_of_none(monkeypatch):
    """Cells come from nowhere; which were asked for is kept."""
    asked = []

    def check_all(cases, network, *, done, **options):
        asked.append([case.recipe.system for case in cases])
        found = [checked_results.cell(10 * number, 20) for number in range(1, len(cases) + 1)]
        for case, one in zip(cases, found, strict=True):
            done(case, one)
        return found

    monkeypatch.setattr(live, "check_all", check_all)
    monkeypatch.setattr(live, "paces", lambda recipe: [0.1])
    return asked


def recorded(bench, section):
    return list(checked.checked_recorded(bench, section))


def test_twelve_methods_on_six_networks_and_more(recipe):
    section = recipe.checked
    assert len({one.codec.name for one in section.methods.values()}) >= 12
    assert len(section.networks) >= 6
    assert {one.workers for one in section.networks.values()} == {2, 4}
    assert any(one.up for one in section.networks.values())


def test_every_recorded_cell_is_of_todays_settings(recipe):
    bench = Bench("matrix", "checked", recipe, "desk")
    rows = recorded(bench, recipe.checked)
    assert {row.reason for row in rows if row.status == "failed"} == set()
    steps = [row for row in rows if (row.metric, row.variant) == ("step_time", "measured")]
    assert len(steps) == len(recipe.checked.methods) * len(recipe.checked.networks)


def test_parts_add_up_to_the_step_and_reasons_are_there_where_they_must(recipe):
    bench = Bench("matrix", "checked", recipe, "desk")
    places = {}
    for row in recorded(bench, recipe.checked):
        places.setdefault((row.case, row.variant), {})[row.metric] = row
    for (case, variant), found in places.items():
        if variant:
            parts = ("compute_time", "compress_time", "exchange_time")
            total = sum(found[name].value for name in parts)
            assert total == pytest.approx(found["step_time"].value, rel=1e-4)
            continue
        predicted = places[case, "predicted"]["step_time"].value
        error = 100 * (predicted / places[case, "measured"]["step_time"].value - 1)
        assert found["step_error"].value == pytest.approx(error, abs=0.01)
        assert bool(found["step_error"].reason) == (abs(error) > 10)


def test_what_is_not_recorded_says_which_command_does(bench, recipe):
    rows = recorded(bench, small(recipe))
    assert {(row.status, row.reason) for row in rows} == {
        ("failed", "not recorded yet; make record-checked does")
    }
    assert len(rows) == 4


def test_a_record_goes_on_where_it_was_and_comes_back_as_rows(bench, recipe, run_of_none):
    section = small(recipe)
    first, second = section.networks
    label, other = section.methods
    one = small(recipe, methods={label: section.methods[label]})
    checked._record(bench, one, first, {})
    checked._record(bench, section, first, checked._kept(first))
    checked._record(bench, section, first, checked._kept(first))
    assert run_of_none == [[label], [other]]
    rows = [row for row in recorded(bench, section) if row.at["network"] == first]
    assert {row.evidence for row in rows} == {"recorded", "simulated", "computed"}
    (error,) = (r for r in rows if r.metric == "step_error" and r.at["method"] == label)
    assert error.value == pytest.approx(100 * (0.11 / 0.12 - 1), abs=1e-3)
    told = json.loads(checked._file(first).read_text())
    assert told["command"] == "make record-checked" and list(told["cells"]) == [label, other]
    assert not checked._file(second).exists()


def test_the_steadier_of_two_runs_is_kept(bench, recipe, monkeypatch):
    """The first of two methods varies by 20 %, then by 15 %; the second is steady at once."""
    section, asked = small(recipe), []
    first, second = section.methods
    spreads = {first: [0.2, 0.15], second: [0.05]}

    def check_all(cases, network, *, done, **options):
        found = []
        for case in cases:
            one, spread = checked_results.cell(10, 20), spreads[case.recipe.system].pop(0)
            low = one.measured.step_s
            found.append(dataclasses.replace(one, quartiles=(low, (1 + spread) * low)))
            done(case, found[-1])
        asked.append(len(cases))
        return found

    monkeypatch.setattr(live, "check_all", check_all)
    monkeypatch.setattr(live, "paces", lambda recipe: [0.1])
    name = next(iter(section.networks))
    checked._record(bench, section, name, {})
    cells = checked._kept(name)["cells"]
    kept = {label: live.cell_of(one["found"]).spread for label, one in cells.items()}
    assert asked == [2, 1] and kept == pytest.approx({first: 0.15, second: 0.05}, rel=1e-4)


def test_other_settings_make_a_record_stale(bench, recipe, run_of_none):
    section = small(recipe)
    (name, *_), (label, *_) = section.networks, section.methods
    checked._record(bench, section, name, {})
    method = section.methods[label].model_copy(
        update=dict(fusion=section.methods[label].fusion.model_copy(update=dict(name="buckets")))
    )
    for changed, stale in (
        (dict(batch=section.batch + 1), 2),
        (dict(methods=section.methods | {label: method}), 1),
    ):
        rows = recorded(bench, small(recipe, **changed))
        reasons = [r.reason for r in rows if r.status == "failed" and r.at["network"] == name]
        assert reasons == ["recorded with other settings; make record-checked does it anew"] * stale


def test_a_file_that_is_no_record_is_named(bench, recipe):
    section = small(recipe)
    file = checked._file(next(iter(section.networks)))
    file.parent.mkdir()
    file.write_text("{}")
    with pytest.raises(ValueError, match=f"{file.name}: not a record of cells"):
        recorded(bench, section)


def test_cells_run_here_are_rows_of_the_same_places(bench, recipe, run_of_none):
    section = small(recipe)
    chosen = section.chosen.model_copy(
        update=dict(networks=list(section.networks)[:1], methods=list(section.methods))
    )
    rows = list(checked.checked(bench, section.model_copy(update=dict(chosen=chosen))))
    assert run_of_none == [list(section.methods)]
    steps = {row.at["method"]: row for row in rows if row.metric == "predicted_time"}
    assert [row.value for row in steps.values()] == pytest.approx([0.11, 0.12])
    assert {row.at["run"] for row in rows} == {"live"}


def test_links_that_cannot_be_had_are_failed_rows(bench, recipe, monkeypatch):
    def check_all(*_, **__):
        raise RuntimeError("cannot emulate links: no tc")

    monkeypatch.setattr(live, "check_all", check_all)
    monkeypatch.setattr(live, "paces", lambda recipe: [0.1])
    rows = list(checked.checked(bench, recipe.checked))
    chosen = recipe.checked.chosen
    assert [row.at["method"] for row in rows] == chosen.methods
    assert {(row.status, row.reason) for row in rows} == {("failed", "cannot emulate links: no tc")}


# What is shown ------------------------------------------------------------------------------------


def test_the_threshold_is_that_of_the_reasons():
    assert practice.NEAR == live.NEAR


def test_a_wrong_pick_and_what_it_cost():
    """On the fast network the sparse one is predicted to be 1 ms ahead, and is 38 ms behind."""
    found = practice.picks.make(checked_results.condensed("recorded"), None)
    slow, fast, both = found.to_dict("records")
    assert (slow["ranked first"], slow["was first"]) == ("sparse", "sparse")
    assert slow["pick took longer by, %"] == 0
    assert (fast["ranked first"], fast["was first"]) == ("sparse", "values")
    assert fast["pick took longer by, %"] == pytest.approx(100 * (150 / 112 - 1), rel=1e-2)
    assert both["network"] == "all 2" and both["was first"] == "the pick, 1 of 2 times"
    # slow: the same order. fast: one pair of three is in the other order twice.
    assert slow["Kendall's τ"] == 1 and fast["Kendall's τ"] == pytest.approx(-1 / 3, rel=1e-2)
    assert (slow["within 10 %"], fast["within 10 %"], both["cells"]) == (2, 2, 6)


def test_orders_agree_as_pairs_do():
    assert practice.tau(np.array([1, 2, 3]), np.array([4, 5, 6])) == 1
    assert practice.tau(np.array([1, 2, 3]), np.array([6, 5, 4])) == -1
    assert practice.tau(np.array([1, 2, 3]), np.array([5, 4, 6])) == pytest.approx(1 / 3)


def test_all_cells_are_told_with_their_parts_and_reasons():
    found = practice.predicted_table.make(checked_results.condensed("recorded"), None)
    assert len(found) == 7
    one = found[(found["network"] == "fast") & (found["method"] == "sparse")].iloc[0]
    assert one["step"] == "109.0 → 150.0" and one["exchange"] == "9.0 → 50.0"
    assert one["error, %"] == "-27.3"
    assert one["reason"] == "exchange 50 ms, not 9 ms (100 % of the difference)"
    lost = found[found["method"] == "lost"].iloc[0]
    assert lost["reason"] == "no links here" and lost["step"] == ""


def test_cells_within_an_error_are_counted():
    rows = practice._within(checked_results.condensed("recorded"))
    off, share = rows["off"].to_numpy(), rows["value"].to_numpy()
    assert (np.diff(off) >= 0).all() and share == pytest.approx(100 * np.arange(1, 7) / 6)


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_drawn(name, tmp_path):
    rows = checked_results.condensed("recorded", "live")
    assert artifacts.write_figure(SHOWN[name], rows, [], tmp_path / "one.svg") == ""


def test_nothing_run_is_said():
    rows = checked_results.condensed("recorded")
    with pytest.raises(Missing, match="make record-checked"):
        practice.picks.make(rows[rows["status"] != "ok"], None)
    left = rows[rows["metric"] != "step_error"]
    with pytest.raises(Missing):
        draw(practice.predicted_errors, left)


def test_a_cell_is_kept_as_plain_data():
    one = checked_results.cell(10, 20)
    assert live.cell_of(checked._plain(dataclasses.asdict(one))).told == one.told
