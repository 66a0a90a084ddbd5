"""Arrival at a target on curves whose answer is known."""

import math

import numpy as np
import pandas as pd
import pytest

from slowlink.testbed.results import Row, frame
from slowlink.testbed.training.summary import (
    METRICS,
    arrival,
    oscillation,
    summarise,
    summarise_in_time,
)


def curve(case, seed, accuracies, compression="identity", round_s=2.0):
    for index, accuracy in enumerate(accuracies):
        common = dict(
            document="p",
            experiment="e",
            case=case,
            compression=compression,
            synchronization="bsp",
            seed=seed,
            scale="smoke",
            round=index * 10,
            time_s=index * 10 * round_s,
        )
        yield Row(metric="test_accuracy", value=accuracy, unit="%", evidence="measured", **common)
        yield Row(metric="bytes_sent", value=index * 500.0, unit="B", evidence="computed", **common)


def test_arrival_interpolates_the_mean_of_five_evaluations():
    # The first two means of five are 40 and 60: 45 is a quarter of the way to the last.
    assert arrival(np.array([0.0, 20, 40, 60, 80, 100]), 45.0) == pytest.approx(4.25)
    # Fewer than five are no mean of five, unless fewer are asked for; no time is before the first.
    assert arrival(np.array([50.0, 60]), 45.0) is None
    assert arrival(np.array([50.0, 60]), 45.0, least=1) == 0
    assert arrival(np.array([50.0, 60, 70, 80, 90]), 45.0) == 4
    # One lucky point is no arrival.
    assert arrival(np.array([0.0, 0, 90, 0, 0, 0]), 45.0) is None


def test_summary_of_a_known_curve():
    dense = [0] * 4 + [90] * 10
    slow = [0] * 7 + [60] * 7
    rows = [*curve("dense", 1, dense), *curve("sparse", 1, slow, "bisparse", 1.0)]
    summary = frame(summarise(frame(rows), below_dense=30.0))
    value = summary.set_index(["case", "metric"])["value"]
    assert value["dense", "final_accuracy"] == 90
    assert value["dense", "target_accuracy"] == value["sparse", "target_accuracy"] == 60
    # The mean of five is 54 at round 60 and 72 at round 70.
    assert value["dense", "rounds_to_target"] == pytest.approx(60 + 10 / 3)
    assert value["dense", "time_to_target"] == pytest.approx(2 * (60 + 10 / 3) / 3600)
    assert value["dense", "bytes_to_target"] == pytest.approx(50 * (60 + 10 / 3))
    assert value["sparse", "rounds_to_target"] == pytest.approx(110)
    assert value["sparse", "time_to_target"] == pytest.approx(110 / 3600)


def test_a_run_that_never_arrives_says_so_and_is_late_in_rounds():
    rows = [*curve("dense", 1, [0] + [90] * 10), *curve("lost", 1, [1] * 6, "bisparse")]
    summary = frame(summarise(frame(rows), below_dense=1.0))
    lost = summary[summary["case"] == "lost"].set_index("metric")
    status = dict(rounds_to_target="late", time_to_target="failed", bytes_to_target="failed")
    assert lost["value"]["rounds_to_target"] == 50
    for metric, expected in status.items():
        assert lost["status"][metric] == expected
        assert "never reached 89.00 % within 50 rounds" in lost["reason"][metric]
        assert expected == "late" or pd.isna(lost["value"][metric])


def test_where_every_run_that_sets_the_target_failed_nothing_arrives():
    lost = [row.model_copy(update=dict(status="failed", reason="not recorded", value=math.nan))
            for row in curve("dense", 1, [0] * 3)]  # fmt: skip
    rows = [*lost, *curve("sparse", 1, [90] * 11, "bisparse")]
    summary = frame(summarise(frame(rows), below_dense=1.0)).set_index(["case", "metric"])
    assert summary["value"]["sparse", "final_accuracy"] == 90
    for metric in ("rounds_to_target", "time_to_target", "bytes_to_target"):
        assert summary["reason"]["sparse", metric] == "no uncompressed run set the target"
        assert summary["reason"]["dense", metric] == "not recorded"
    assert (summary["status"] == "failed").sum() == 4 + 3


def test_no_dense_run_no_target():
    with pytest.raises(ValueError, match="e: no uncompressed synchronous run"):
        list(summarise(frame(curve("c", 1, [1, 2], "bisparse")), 0.4))


def test_a_run_that_diverged_fails_in_every_metric():
    broken = [
        Row(**{**row.model_dump(), "status": "failed", "reason": "diverged", "value": float("nan")})
        for row in curve("lost", 1, [1], "bisparse")
        if row.metric == "test_accuracy"
    ]
    rows = [*curve("dense", 1, [0] + [90] * 10), *broken]
    summary = frame(summarise(frame(rows), below_dense=1.0)).query("case == 'lost'")
    assert set(summary["metric"]) == set(METRICS)
    assert set(summary["reason"]) == {"diverged"}


def in_time(*curves, **changes):
    """Rows of runs: (seed, accuracies at 0, 10, 20, … s)."""
    base = dict(
        document="p", experiment="e", case="c", scale="smoke", evidence="measured",
        metric="test_accuracy", unit="%",
    )  # fmt: skip
    rows = [
        Row(**base | dict(seed=seed, value=value, round=3 * k, time_s=10.0 * k) | changes)
        for seed, values in curves
        for k, value in enumerate(values)
    ]
    return frame(rows)


def test_in_time_by_hand():
    curve = [10, 20, 40, 60, 80, 90, 92, 90, 92, 90, 92, 90]
    rows = list(summarise_in_time(in_time((1, curve)), target=50.0, window=1))
    found = {row.metric: row for row in rows}
    assert found["target_accuracy"].value == 50 and found["final_accuracy"].value == 90
    assert found["time_to_target"].value == pytest.approx(25.0)  # halfway from 40 to 60
    assert found["rounds"].value == 33
    # With a window of three: means 10, 15, 23.3, 40, 60, so 50 is met at 35 s.
    rows = list(summarise_in_time(in_time((1, curve)), target=50.0, window=3))
    found = {row.metric: row.value for row in rows}
    assert found["time_to_target"] == pytest.approx(35.0)
    assert found["final_accuracy"] == pytest.approx((90 + 92 + 90) / 3)


def test_the_untrained_model_is_no_evaluation_of_a_run():
    # A mean of three with what was not trained would be there at the third evaluation's 20 s.
    rows = list(summarise_in_time(in_time((1, [60, 60, 60, 60, 60])), target=50.0, window=3))
    found = {row.metric: row.value for row in rows}
    assert found["time_to_target"] == 30
    assert found["evaluations_to_target"] == found["least_evaluations"] == 3
    # Means of three are 40, 50 and 60: 55 is halfway from the second to the third.
    later = list(summarise_in_time(in_time((1, [90, 30, 40, 50, 60, 70])), target=55.0, window=3))
    found = {row.metric: row.value for row in later}
    assert found["time_to_target"] == 45 and found["evaluations_to_target"] == 5
    rows = [*curve("dense", 1, [90] * 7)]
    summary = frame(summarise(frame(rows), below_dense=1.0)).set_index("metric")["value"]
    assert summary["rounds_to_target"] == 50  # the fifth evaluation of a model that has trained


def test_oscillation_is_what_is_left_around_the_running_mean():
    times = 10.0 * np.arange(20)
    assert oscillation(times, 3 * times) == pytest.approx(0, abs=1e-9)  # a straight rise has none
    # ±a in turns: around means of five of them (±a/5), the rest is 4/5 a.
    swinging = 50 + 2.0 * (-1) ** np.arange(20)
    assert oscillation(times, swinging) == pytest.approx(0.8 * 2)
    assert math.isnan(oscillation(times[:8], swinging[:8]))


def test_runs_that_never_arrive_or_fail_say_so():
    never = {r.metric: r for r in summarise_in_time(in_time((1, [10, 11, 12])), 50.0, 2)}
    assert never["time_to_target"].reason == "never reached 50 % within 20 s"
    assert "evaluations" in never["oscillation"].reason
    assert never["final_accuracy"].value == 11.5
    failed = in_time((1, [math.nan]), status="failed", reason="diverged", round=-1)
    broken = {r.metric: r for r in summarise_in_time(failed, 50.0, 2)}
    assert broken["target_accuracy"].status == "ok"
    assert {broken[m].reason for m in ("final_accuracy", "oscillation", "time_to_target")} == {
        "diverged"
    }
