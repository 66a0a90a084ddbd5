from __future__ import annotations

import lpsp_results
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from scipy import stats

from reports import html
from reports.figures import PALETTE
from reports.papers import lpsp
from reports.verdicts import detail
from testbed.results import Row, frame
from workflow.experiments.lpsp import PRINTED

DASHED, DOTTED = lpsp._DASHED, lpsp._DOTTED


def row(experiment: str, case: str, metric: str, value: float = np.nan, **more) -> Row:
    base = dict(unit="s", scale="desk", evidence="simulated")
    return Row(paper="lpsp", experiment=experiment, case=case, metric=metric, value=value,
               **(base | more))  # fmt: skip


def upright(ax, style) -> list[float]:
    """Where vertical lines of one style stand."""
    lines = [line for line in ax.lines if line._unscaled_dash_pattern == (style[0], style[1])]
    return sorted(x[0] for x in (line.get_xdata() for line in lines) if x[0] == x[-1])


def means(ax) -> dict[float, float]:
    """The large dots: row -> value."""
    dots = [line for line in ax.lines if line.get_marker() == "o" and line.get_markersize() > 6]
    return {line.get_ydata()[0]: line.get_xdata()[0] for line in dots}


def notes(fig: Figure) -> list[str]:
    return [text.get_text() for ax in fig.axes for text in ax.texts if "→" in text.get_text()]


@pytest.fixture
def arrivals():
    """Times to the target of three seeds, GSSP's second and all of BSP's never."""
    times = {"LPSP": (100, 110, 120), "SSP": (90, 95, 115), "GSSP": (200, None, 240)}
    times["BSP"] = (None,) * 3
    rows = []
    for label, values in times.items():
        for seed, value in enumerate(values, 1):
            case = f"{label} on 12"
            rows.append(row("mnist", case, "target_accuracy", 98.0, seed=seed, unit="%"))
            rows.append(row("mnist", case, "test_accuracy", 97.0, seed=seed, unit="%", time_s=500))
            given = {"status": "failed", "reason": "never reached"} if value is None else {}
            rows.append(row("mnist", case, "time_to_target", value or np.nan, seed=seed, **given))
    return frame(rows)


def test_what_the_text_prints_is_what_the_claims_say(lpsp_claims):
    told = {
        claim.id: " ".join([claim.printed, *(part.printed for part in claim.parts)])
        for claim in lpsp_claims
    }
    names = {("mnist", 12): "F3a", ("mnist", 16): "F3b", ("cifar10", 12): "F5a"}
    names[("cifar10", 16)] = "F5b"
    # What the bound is counted against, and held against, too.
    assert sorted(PRINTED) == sorted(round(1 + x, 2) for x in lpsp.SAID["speed-up"].values())
    used = {lookup.variant for claim in lpsp_claims for lookup in claim.lookups.values()}
    assert {f"at least {ratio}" for ratio in PRINTED} == {v for v in used if "at least" in str(v)}
    for key, value in lpsp.SAID["speed-up"].items():
        assert f"{1 + value:.2f}" in told[f"LPSP-{names[key]}"]
        assert f"{value:.2f} times" in told[f"LPSP-{names[key]}"]
    for data, name in (("mnist", "T3a"), ("cifar10", "T4a")):
        for number in (lpsp.SAID["highest accuracy"][data], lpsp.SAID["largest gap"][data]):
            assert f"{number:.2f}" in told[f"LPSP-{name}"]
    example = {"BSP": ["X02"], "drawn": ["X05", "X06", "X07"]}
    for name, ids in example.items():
        for claim, point in zip(ids, lpsp.SAID["example points"][name], strict=True):
            assert f"{point:g}" in told[f"LPSP-{claim}"]
    for claim, wait in zip(example["drawn"], lpsp.SAID["example waits"]["drawn"], strict=True):
        assert f"{wait:g}" in told[f"LPSP-{claim}"]
    assert float(told["LPSP-X03"]) == lpsp.SAID["example total"]["BSP"]
    assert float(told["LPSP-X08"]) == pytest.approx(sum(lpsp.SAID["example waits"]["drawn"]))


def test_printed_speed_ups_are_drawn_in_both_conventions(arrivals):
    (ax,) = lpsp.figure3(arrivals).axes
    assert upright(ax, DASHED) == [pytest.approx(110 * 2.17)]
    assert upright(ax, DOTTED) == [pytest.approx(110 * 1.17)]
    # Where LPSP's own time is not known there is nothing to multiply.
    late = arrivals.copy()
    never = (late["case"] == "LPSP on 12") & (late["metric"] == "time_to_target")
    late.loc[never & (late["seed"] == 1), ["status", "reason", "value"]] = ["failed", "no", np.nan]
    (ax,) = lpsp.figure3(late).axes
    assert not upright(ax, DASHED) and not upright(ax, DOTTED)


def test_runs_that_never_arrive_are_told_and_give_no_mean(arrivals):
    fig = lpsp.figure3(arrivals)
    (ax,) = fig.axes
    methods = [label.get_text() for label in ax.get_yticklabels()]
    assert methods == ["BSP", "SSP", "GSSP", "LPSP"]
    assert sorted(notes(fig)) == ["→ 1 of 3 never", "→ never"]
    assert means(ax) == {1: 100.0, 3: 110.0}
    seeds = [line for line in ax.lines if line.get_marker() == "o" and line.get_markersize() < 6]
    assert [sorted(dots.get_xdata()) for dots in seeds if 2 in dots.get_ydata()] == [[200, 240]]
    assert ax.get_xlim() == (0, 500)  # to the end of training


def test_curves_of_runs_that_are_evaluated_at_other_times_are_averaged_in_time():
    # Straight lines, which interpolation does not change: 10 + t, 20 + 2 t, 30 + 3 t.
    times = {1: (0, 7, 20, 40), 2: (1, 9, 39), 3: (2, 3, 30, 38)}
    curves = pd.DataFrame(
        {"label": "LPSP", "seed": seed, "time_s": float(t), "value": seed * (10.0 + t)}
        for seed, at in times.items()
        for t in at
    )
    ax = Figure().subplots()
    lpsp._curves(ax, curves, {"LPSP": ("blue", "-")})
    t, mean = ax.lines[0].get_data()
    assert (t[0], t[-1]) == (2, 38)  # where all have values
    assert mean == pytest.approx(2 * (10 + t))
    half = stats.t.ppf(0.975, 2) * (10 + 38) / np.sqrt(3)
    band = ax.collections[0].get_paths()[0].vertices
    end = band[band[:, 0] == 38][:, 1]
    assert (end.min(), end.max()) == pytest.approx((96 - half, 96 + half))
    ax = Figure().subplots()
    lpsp._curves(ax, curves[curves["seed"] < 3], {"LPSP": ("blue", "-")})
    assert not ax.collections


def test_bars_of_the_worked_example_are_its_spans(lpsp_desk):
    fig = lpsp.example(lpsp_desk)
    spans = lpsp._spans(lpsp_desk, "example")
    for ax, name in zip(fig.axes, ["BSP", "drawn", "Algorithm 1", "on arrival"], strict=True):
        assert lpsp._SCHEDULE[name] in ax.get_title("left")
        mine = spans[spans["label"] == name]
        for kind, colour in lpsp._DOING.items():
            drawn = sorted(
                (round(bar.get_y() + bar.get_height() / 2), bar.get_x(), bar.get_width())
                for bar in ax.patches
                if to_hex(bar.get_facecolor()) == PALETTE[colour]
            )
            one = mine[mine["kind"] == kind]
            rows = one["worker"].str[1:].astype(int) - 1
            wanted = sorted(zip(rows, one["begin"], one["end"] - one["begin"], strict=True))
            assert np.allclose(np.array(drawn), np.array(wanted))
    assert [upright(ax, DASHED) for ax in fig.axes] == [[10.8]] + 3 * [[3.6, 5, 8]]


def test_the_worked_example_in_numbers(lpsp_desk):
    table = lpsp.TABLES["example"](None, lpsp_desk).set_index(["schedule", "meeting"])
    drawn = table.loc[lpsp._SCHEDULE["drawn"]]
    single = drawn.drop(index="all")
    assert list(single["printed"]) == [3.6, 5, 8]
    assert list(single["the last arrives, s"]) == pytest.approx([3.6, 5, 8])
    assert list(single["waits for the last, s"]) == pytest.approx([0, 0.5, 0.6])
    assert drawn.loc["all", "waits for the last, s"] == pytest.approx(1.1)
    assert drawn.loc["all", "waits printed"] == 1.1
    letter = table.loc[lpsp._SCHEDULE["Algorithm 1"]]
    assert list(letter["decided, s"][:2]) == pytest.approx([4.5, 8.6])
    assert letter["printed"].isna().all()


def test_the_bound_stands_beside_every_printed_speed_up(lpsp_desk):
    (ax,) = lpsp.bound(lpsp_desk).axes
    assert upright(ax, DASHED) == pytest.approx([1.75, 1.87, 2.17, 2.26])
    assert upright(ax, DOTTED) == [pytest.approx(2.5 * np.log(2.5) / 1.5)]
    sizes = [int(label.get_text().split()[0]) for label in ax.get_yticklabels()]
    squares = [line.get_xdata()[0] for line in ax.lines if line.get_marker() == "s"]
    assert squares == pytest.approx([1 / n + 2.5 * (n - 1) / n for n in sizes])
    table = lpsp.TABLES["bound"](None, lpsp_desk)
    assert list(table["workers"]) == sizes and list(table["no draw exceeds"]) == squares
    assert (table["draws used, largest"] <= table["no draw exceeds"]).all()
    trained = lpsp_desk.query("experiment == 'bound' and variant == 'trained'")
    diamonds = [x for line in ax.lines if line.get_marker() == "D" for x in line.get_xdata()]
    assert sorted(diamonds) == sorted(trained["value"])
    most = trained.groupby("workers")["value"].max()
    assert list(table["draws of training, largest"]) == list(most.loc[sizes])
    assert [name for name in table if "at least" in name] == [
        f"% of draws at least {ratio}" for ratio in ("1.75", "1.87", "2.17", "2.26")
    ]


def test_histograms_of_staleness_tell_their_mean(lpsp_desk):
    fig = lpsp.staleness(lpsp_desk)
    methods = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    assert methods == ["BSP", "ASP", "SSP", "GSSP", "GSSP static", "MLL-SGD", "LPSP"]
    for ax in fig.axes:
        size = ax.get_title("left").split()[0]
        for method, text in zip(methods, ax.texts, strict=True):
            one = lpsp_desk.query(
                f"experiment == 'staleness' and metric == 'share' and case == '{method} on {size}'"
            )
            mean = np.average(one["variant"].astype(float), weights=one["value"])
            assert float(text.get_text().split()[1]) == pytest.approx(mean, rel=5e-3, abs=5e-3)


def test_throughput_is_the_geometric_mean_over_draws(lpsp_desk):
    fig = lpsp.throughput(lpsp_desk)
    ax = fig.axes[0]
    assert ax.get_title("left") == "fixed speeds" and {ax.get_xlabel() for ax in fig.axes}
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert "BSP" not in labels and labels[:3] == ["ASP", "SSP", "GSSP"]
    assert labels[3:6] == ["GSSP static", "MLL-SGD", "LPSP"]
    assert {"p_min=1", "s=0", "mean-normalised, cap 6", "decided on arrival"} <= set(labels)
    rows = lpsp_desk.query(
        "experiment == 'waiting' and metric == 'over_bsp' and variant == 'fixed'"
    )
    wanted = [
        np.exp(np.log(one["value"]).mean())
        for case, one in rows.groupby("case")
        if not case.startswith("BSP")
    ]
    drawn = [line.get_xdata()[0] for line in ax.lines if line.get_marker() == "o"]
    assert sorted(drawn) == pytest.approx(sorted(wanted))


@pytest.mark.parametrize(("name", "experiment"), [("table3", "mnist"), ("table4", "cifar10")])
def test_accuracies_and_what_lpsp_is_above_them(name, experiment, lpsp_desk):
    table = lpsp.TABLES[name](None, lpsp_desk)
    final = lpsp_desk.query(
        f"experiment == '{experiment}' and metric == 'final_accuracy' and status == 'ok'"
    )
    assert len(table) == final["case"].nunique()
    assert not table.duplicated(["workers", "method"]).any()
    for line in table.itertuples(index=False):
        one, best = (
            final[final["case"] == f"{label} on {line.workers}"].set_index("seed")["value"]
            for label in (line.method, "LPSP")
        )
        assert float(line[2].split()[0]) == pytest.approx(one.mean(), abs=0.06)
        if line.method == "LPSP":
            assert line[3] == "" and "at most" in line.printed
        else:
            assert float(line[3].split()[0]) == pytest.approx((best - one).mean(), abs=0.06)
    assert set(table.loc[table["method"] == "ASP", "printed"]) <= {""}  # it is not in the document


def test_a_failed_run_is_told_in_tables(arrivals):
    never = lpsp._summary(arrivals, "mnist", "time_to_target")
    told = {label: lpsp._told(one, "never") for label, one in never.groupby("label")}
    assert told["BSP"] == "never" and told["GSSP"] == "200, 240; 1 of 3 never"
    assert told["LPSP"].startswith("110 [")


def test_ablations_are_named_by_their_values(lpsp_desk):
    six, seven = lpsp.figure6(lpsp_desk), lpsp.figure7(lpsp_desk)
    for fig, names in (
        (six, ["p_min=1", "p_min=2 (LPSP)", "p_min=3"]),
        (seven, ["s=0", "s=0.2 (LPSP)", "s=0.4", "s=10", "ASP", "BSP", "SSP"]),
    ):
        assert [label.get_text() for label in fig.axes[1].get_yticklabels()] == names
        shown = [text.get_text() for text in fig.legends[0].get_texts()]
        assert [name for name in shown if name != "target"] == names
    plain = lpsp_desk[~lpsp_desk["case"].str.startswith("p_min=")]
    with pytest.raises(ValueError, match="'cifar10' with p_min=1 or p_min=3"):
        lpsp.figure6(plain)


def test_controls_stand_beside_the_same_cases():
    rows = []
    for experiment, cases, value in (
        ("mnist", ["BSP on 12", "SSP on 12", "LPSP on 12", "LPSP on 16"], 98.0),
        ("control", ["SSP on 12", "LPSP on 12"], 97.0),
        ("control_rate", ["BSP on 12", "LPSP on 12"], 96.0),
        ("control_static", ["GSSP static on 12"], 95.0),
    ):
        for case in cases:
            for metric in ("time_to_target", "final_accuracy", "oscillation"):
                for seed in (1, 2, 3):
                    rows.append(row(experiment, case, metric, value + seed, seed=seed))
    fig = lpsp.control(frame(rows))
    names = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    assert names == ["BSP", "SSP", "GSSP static", "LPSP"]
    for ax in fig.axes:
        # LPSP on 16 has no control; what was not run in one is left out.
        assert {round(y, 2): x for y, x in means(ax).items()} == {
            -0.24: 100, 0.76: 100, 1.76: 97, 2.76: 100, 1: 99, 3: 99, 0.24: 98, 3.24: 98
        }  # fmt: skip
    assert not notes(fig)
    few = frame(one for one in rows if one.experiment != "control_rate")
    assert len(lpsp.control(few).legends[0].get_texts()) == 2


def test_waiting_is_the_mean_over_draws(lpsp_desk):
    table = lpsp.TABLES["waiting"](None, lpsp_desk).set_index(["workers", "method"])
    assert not table.index.duplicated().any()
    assert np.allclose(table.xs("BSP", level="method")["iterations/s over BSP's"], 1)
    size = table.index[0][0]
    one = lpsp_desk.query(
        f"experiment == 'waiting' and case == 'LPSP on {size}' and variant == 'fixed'"
    )
    ratio = one.loc[one["metric"] == "over_bsp", "value"]
    shown = table.loc[(size, "LPSP"), "iterations/s over BSP's"]
    assert shown == pytest.approx(np.exp(np.log(ratio).mean()))  # as the figure
    for metric, name in (("delay", "wait for the decision, s"), ("waiting_share", "waiting, %")):
        mean = one.loc[one["metric"] == metric, "value"].mean()
        assert table.loc[(size, "LPSP"), name] == pytest.approx(mean)
    assert "over BSP's, no communication" in table and "over BSP's, constant 0.5 s" in table
    other = lpsp_desk.replace({"variant": {"constant 0.5 s": "constant 2 s"}})
    assert "over BSP's, constant 2 s" in lpsp.TABLES["waiting"](None, other)


def test_charts_of_who_waits_count_iterations_in_one_time():
    rows = []
    # Of three iterations of 2 s the last is cut off at the end of all, 5 s.
    spans = {"BSP w1": [(0, 2), (2, 4), (4, 5)], "LPSP w1": [(0, 1), (1, 4)], "LPSP w2": [(0, 3)]}
    for case, ends in spans.items():
        for number, (begin, end) in enumerate(ends, 1):
            for metric, value in (("begin", begin), ("end", end)):
                rows.append(row("gantt", case, metric, value, variant=f"compute {number}"))
    axes = lpsp.gantt(frame(rows)).axes
    assert [ax.get_title("left") for ax in axes] == ["BSP: 2 iterations", "LPSP: 3 iterations"]
    assert all(ax.get_xlim() == (0, 5) for ax in axes)


def test_rows_are_split_whatever_their_index(arrivals):
    twice = pd.concat([arrivals, arrivals.assign(case="LPSP on 16")])
    assert len(lpsp._split(twice, lpsp._ON)) == len(twice)


def test_batching_gains_are_ratios(lpsp_desk):
    table = lpsp.TABLES["batching"](None, lpsp_desk)
    for way in ("channels last", "vmap"):
        ratio = table["one by one, ms"] / table[f"{way}, ms"]
        assert np.allclose(ratio, table[f"gain of {way}"], rtol=1e-6)
    assert not table.duplicated(["model", "workers", "batch"]).any()


def test_missing_results_are_named(lpsp_desk):
    for experiment, names in {
        "example": ["example"],
        "gantt": ["gantt"],
        "waiting": ["throughput"],
        "staleness": ["staleness"],
        "bound": ["bound"],
        "mnist": ["figure3", "figure4", "control"],
        "cifar10": ["figure5", "figure6", "figure7"],
        "control": ["control"],
    }.items():
        few = lpsp_desk[lpsp_desk["experiment"] != experiment]
        for name in names:
            with pytest.raises(ValueError, match=f"no results of experiment '{experiment}'"):
                lpsp.FIGURES[name](few)


def test_lpsp_fills_its_page(lpsp_claims, lpsp_rows, tmp_path, monkeypatch):
    # What is drawn is tested with the figures of all documents.
    monkeypatch.setattr(lpsp, "FIGURES", {name: lambda *_: Figure() for name in lpsp.FIGURES})
    recipe = lpsp_results.RECIPE
    judged = detail(lpsp_claims, lpsp_rows, recipe, "paper", {})
    provenance = {"scale": "paper", "seeds": [1, 2, 3], "versions": {}, "durations": {}}
    path = html.build(lpsp_rows, judged, {"lpsp": recipe}, provenance, tmp_path / "r")
    text = (path.parent / "papers" / "lpsp.html").read_text(encoding="utf-8")
    assert text.count("<svg") == len(lpsp.FIGURES)
    assert "Not drawn" not in text and "Not made" not in text
    for name in lpsp.TABLES:
        assert f"tables/lpsp_{name}.csv" in text
    assert "snakemake --cores 2 lpsp_figure3<" in text
