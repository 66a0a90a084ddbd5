"""What LPSP's page says of results, beside what the claims print."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from lpsp_results import RECIPE, SEEDS

from slowlink.reports.charts.drawing import draw
from slowlink.reports.verdicts import judge
from slowlink.testbed.results import coordinates
from slowlink.workflow import documents
from slowlink.workflow.documents.lpsp import page

SHOWN = documents.load("lpsp").shown


@pytest.fixture(scope="module")
def judged(lpsp_claims, lpsp_desk):
    return judge(lpsp_claims, lpsp_desk, RECIPE, "desk")


@pytest.fixture
def drawn(lpsp_desk, lpsp_claims):
    return lambda name, changed=None: draw(
        SHOWN[name], lpsp_desk if changed is None else changed, lpsp_claims
    )


@pytest.fixture
def made(lpsp_desk, judged):
    """A table of the page, from the rows of its experiments."""
    return lambda name: SHOWN[name].make(
        coordinates(lpsp_desk[lpsp_desk["experiment"].isin(SHOWN[name].experiments)]), judged
    )


def of(rows, experiment, metric, **where) -> pd.DataFrame:
    """Rows by their coordinates."""
    found = coordinates(rows[(rows["experiment"] == experiment) & (rows["metric"] == metric)])
    for name, value in where.items():
        found = found[found[name] == value]
    return found


def upright(ax, style: str = "--") -> list[float]:
    """Where vertical lines stand: solid ones, or dashed and dotted ones."""
    lines = [line for line in ax.lines if line.get_linestyle() == style]
    return sorted(x[0] for x in (line.get_xdata() for line in lines) if len(x) and x[0] == x[-1])


def lanes(ax) -> list[str]:
    return [label.get_text() for label in ax.get_yticklabels()]


def numbers(column: pd.Series) -> list[float]:
    """The means of cells such as "98.9 [98.7, 99.1]"."""
    return [float(text.split()[0]) for text in column]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_all_results_fill_the_page(name, drawn, made):
    if SHOWN[name].kind == "figure":
        assert all(ax.has_data() or not ax.get_visible() for ax in drawn(name).axes)
    else:
        table = made(name)
        assert len(table) and not table.isna().all().any() and not table.duplicated().any()


def test_ratios_that_are_counted_are_those_that_the_claims_print(lpsp_claims):
    printed = {
        float(claim.printed)
        for claim in lpsp_claims
        if claim.kind == "derived" and "the slowest to LPSP" in claim.metric
    }
    assert sorted(printed) == RECIPE["bound"]["ratios"]


@pytest.mark.parametrize(
    ("figure", "experiment", "ratios"),
    [("figure3", "mnist", {12: 2.17, 16: 2.26}), ("figure5", "cifar10", {12: 1.87, 16: 1.75})],
)
def test_printed_speed_ups_count_from_our_time(figure, experiment, ratios, lpsp_desk, drawn):
    ours = of(lpsp_desk, experiment, "time_to_target", method="LPSP")
    by_size = ours.groupby("workers")["value"].mean()
    for ax, (workers, mean) in zip(drawn(figure).axes, by_size.items(), strict=True):
        here = [ratios[workers]] if workers in ratios else []  # nothing is printed of 8
        assert upright(ax) == pytest.approx([ratio * mean for ratio in here])


def test_without_our_time_nothing_counts_from_it(lpsp_desk, drawn):
    late = lpsp_desk.copy()
    index = of(lpsp_desk, "mnist", "time_to_target", method="LPSP", workers=12, seed=1).index
    late.loc[index, ["status", "reason", "value"]] = ["late", "never reached", np.nan]
    _, twelve, sixteen = drawn("figure3", late).axes
    assert not upright(twelve) and upright(sixteen)


def test_the_worked_example_stands_beside_its_printed_points(drawn):
    axes = drawn("example").axes
    assert [ax.get_title("left") for ax in axes] == list(page.SCHEDULES.values())
    assert [upright(ax) for ax in axes] == [[10.8]] + 5 * [[3.6, 5, 8]]
    decided = [[x for x in upright(ax, "-") if x <= 14] for ax in axes]
    assert [list(np.round(points, 3)) for points in decided] == [
        [10.8], [3.6, 5, 8], [4.5, 8.6, 13.6], [3.6, 5, 7.7], [4.14, 4.8, 5.5], [4.5, 7.2, 10]
    ]  # fmt: skip


def test_the_worked_example_in_numbers(made):
    table = made("example_table").set_index(["schedule", "meeting"])
    drawn = table.loc[page.SCHEDULES["drawn"]]
    single = drawn.drop(index="all")
    assert list(single["the last arrives, s"]) == pytest.approx([3.6, 5, 8])
    assert list(single["waits for the last, s"]) == pytest.approx([0, 0.5, 0.6])
    assert drawn.loc["all", "waits for the last, s"] == pytest.approx(1.1)
    assert list(drawn["printed"]) == ["at 3.6, wait 0", "at 5, wait 0.5", "at 8, wait 0.6", "1.1"]
    letter = table.loc[page.SCHEDULES["LPSP"]]
    assert list(letter["decided, s"][:2]) == pytest.approx([4.5, 8.6])
    assert set(letter["printed"]) == {""}


def test_the_bound_stands_beside_every_printed_speed_up(lpsp_desk, drawn, made):
    (ax,) = drawn("bound").axes
    limit = 2.5 * np.log(2.5) / 1.5  # of many workers
    assert upright(ax) == pytest.approx([limit, 1.75, 1.87, 2.17, 2.26])
    table = made("bound_table").set_index("workers")
    assert lanes(ax) == [f"{size} workers" for size in table.index]
    for size, line in table.iterrows():
        assert line["no draw exceeds"] == pytest.approx((1 + 2.5 * (size - 1)) / size)
        assert line["draws used here, largest"] <= line["no draw exceeds"]
        trained = of(lpsp_desk, "bound", "removable", draws="trained", workers=size)["value"]
        assert line["draws of training, largest"] == trained.max()
    shares = [name for name in table if "at least" in name]
    assert shares == [f"% of draws at least {ratio}" for ratio in RECIPE["bound"]["ratios"]]


def test_waiting_is_the_mean_over_draws(lpsp_desk, made):
    table = made("waiting").set_index(["workers", "method"])
    assert not table.index.duplicated().any()
    assert np.allclose(table.xs("BSP", level="method")["iterations/s over BSP's"], 1)
    ours = table.loc[(12, "LPSP")]
    for name, variant in (("iterations/s", "fixed"), ("jitter", "jitter"), ("trace", "trace")):
        shown = ours[[column for column in table if name in column][0]]
        ratios = of(lpsp_desk, "waiting", "over_bsp", method="LPSP", workers=12, variant=variant)
        assert len(ratios) == len(SEEDS)
        assert shown == pytest.approx(np.exp(np.log(ratios["value"]).mean()))
    delays = of(lpsp_desk, "waiting", "delay", method="LPSP", workers=12, variant="fixed")["value"]
    assert ours["wait for the decision, s"] == pytest.approx(delays.mean())


@pytest.mark.parametrize(("name", "experiment"), [("table3", "mnist"), ("table4", "cifar10")])
def test_accuracies_and_what_lpsp_is_above_them(name, experiment, lpsp_desk, made):
    table = made(name)
    final = of(lpsp_desk, experiment, "final_accuracy").set_index(["workers", "method", "seed"])[
        "value"
    ]
    means = final.groupby(level=["workers", "method"]).mean()
    places = list(zip(table["workers"], table["method"], strict=True))
    assert sorted(places) == sorted(means.index)
    assert numbers(table["accuracy, %"]) == pytest.approx(list(means[places]), abs=0.06)
    others = table[table["method"] != "LPSP"]
    above = [means[w, "LPSP"] - means[w, m] for w, m in places if m != "LPSP"]
    assert numbers(others["LPSP is higher by"]) == pytest.approx(above, abs=0.06)
    assert set(table.loc[table["method"] == "LPSP", "LPSP is higher by"]) == {""}
    assert list(table["method"][:2]) == ["BSP", "ASP"]
    assert set(table[f"in the least, {RECIPE[experiment]['window']}"]) == {"2 of 3 runs"}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([3.0, 3.0, 3.0], "3"),
        ([200, None, 240], "200, 240; 1 of 3 never"),
        ([None, None, None], "never"),
    ],
)
def test_runs_that_never_arrived_give_no_mean(values, told):
    status = ["ok" if value else "late" for value in values]
    table = pd.DataFrame({"seed": [1, 2, 3], "value": values, "status": status})
    assert page._told(table) == told
    assert page._told(table.replace("late", "failed")) == told.replace("never", "failed")


def test_ablations_are_named_by_their_values(drawn):
    six = ["p_min=1", "p_min=2 (LPSP)", "p_min=3"]
    assert lanes(drawn("figure6").axes[1]) == six
    seven = ["s=0", "s=0.2 (LPSP)", "s=0.4", "s=10", "ASP", "BSP", "SSP"]
    assert lanes(drawn("figure7").axes[1]) == seven


def test_controls_stand_beside_the_same_methods(drawn):
    times, *_ = drawn("control").axes
    rivals = ["GSSP", "GSSP breaks", "MLL-SGD", "MLL-SGD barrier"]
    assert lanes(times) == ["BSP", "ASP", "SSP", *rivals, *page.READINGS]
    # Three runs of LPSP and SSP, two of GSSP and BSP, one of all else.
    assert len([bar for bar in times.containers if bar.has_xerr]) == 17


def test_charts_of_who_waits_count_iterations_that_end_in_time():
    spans = pd.DataFrame(
        {
            "method": "LPSP",
            "activity": ["compute", "wait", "compute", "compute"],
            "until": [2.0, 3.0, 4.0, 5.0],  # the last is cut off at the end of all
        }
    )
    assert page._done(spans) == "LPSP: 2 iterations"


def test_gains_of_batching_are_over_one_by_one(made):
    (line,) = made("batching").to_dict("records")
    assert line["one by one, ms"] == 80 and line["gain of channels last"] == pytest.approx(1.6)
    assert line["gain of vmap"] == 2


def test_every_rate_that_was_tried_and_the_best(made):
    table = made("rates")
    assert list(table["method"]) == [name for name in page.METHODS if name in set(table["method"])]
    assert set(table["at 0.05"]) == {97.05} and set(table["best"]) == {0.1}
    by_method = table.set_index("method")
    # 500 s less 1,000 s of the rate, of SSP more.
    assert by_method.loc["SSP", ["to 98 % at 0.05, s", "fastest", "differ"]].tolist() == [
        "550", 0.05, "yes"
    ]  # fmt: skip
    assert by_method.loc["BSP", ["to 98 % at 0.1, s", "fastest", "differ"]].tolist() == [
        "400", 0.1, ""
    ]  # fmt: skip
    assert by_method["to 98 % at 0.1, s"]["LPSP"] == "never" and not by_method["differ"]["LPSP"]
    assert np.isnan(by_method["fastest"]["LPSP"])


def test_which_reading_agrees_with_what(made):
    text = made("readings_text").set_index("reading")
    assert list(text.index) == [page.SCHEDULES[reading] for reading in page.READINGS]
    # The document draws 3.6, 5 and 8; on arrival the third comes at 7.7.
    assert list(text["as drawn"]) == ["0 of 3", "2 of 3", "0 of 3", "0 of 3"]
    trained = text["mnist, 12 workers, trained"]
    assert float(trained.iloc[0].split()[0]) == pytest.approx(2.17, abs=0.02)
    assert list(text["cifar10, 12 workers, trained"]) != ["not trained"] * 4


def test_orders_of_options_are_held_against_the_printed_ones():
    options = ["p_min=1", page.PRINTED, "p_min=3", "s=0", "s=0.4", "s=10"]
    means = pd.Series(dict(zip(options, [2, 3, 1, 4, 2, 1], strict=True)))
    assert page._orders(means) == {
        "p_min": "2, 1, 3",
        "Figure 6": "as printed",
        "s": "0, 0.2, 0.4, 10",
        "Figure 7": "as printed",
    }
    other = page._orders(means.replace({1: 9}))
    assert (other["Figure 6"], other["Figure 7"]) == ("otherwise", "otherwise")


def test_a_reading_that_did_not_arrive_has_no_ratio():
    times = pd.DataFrame(
        {
            "method": ["BSP", "LPSP"] * 3,
            "seed": [1, 1, 2, 2, 3, 3],
            "value": [2.0, 1.0] * 3,
            "status": ["ok"] * 6,
        }
    )
    assert page._faster(times, "LPSP") == "2"
    assert page._faster(times, "LPSP on arrival") == "not trained"
    times.loc[1, "status"] = "late"
    assert page._faster(times, "LPSP") == "1 of 6 runs never arrived"
    times.loc[[1, 3, 5], "status"] = "failed"
    assert page._faster(times, "LPSP") == "failed"
