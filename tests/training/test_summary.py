"""Arrival at a target on curves whose answer is known."""

import numpy as np
import pandas as pd
import pytest

from testbed.results import Row, frame
from testbed.training.summary import METRICS, arrival, converged, summarise


def curve(case, seed, accuracies, compression="identity", round_s=2.0):
    for index, accuracy in enumerate(accuracies):
        common = dict(
            paper="p",
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
    # Means of up to five: 0, 10, 20, 30, 40, 60: 45 is a quarter of the way to the last.
    assert arrival(np.array([0.0, 20, 40, 60, 80, 100]), 45.0) == pytest.approx(4.25)
    assert arrival(np.array([50.0, 60]), 45.0) == 0
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


def test_a_run_that_never_arrives_is_a_failed_row_with_its_reason():
    rows = [*curve("dense", 1, [0] + [90] * 10), *curve("lost", 1, [1] * 6, "bisparse")]
    summary = frame(summarise(frame(rows), below_dense=1.0))
    lost = summary.query("case == 'lost' and metric == 'time_to_target'").iloc[0]
    assert lost["status"] == "failed" and "never reached 89.00 % within 50 rounds" in lost["reason"]
    assert pd.isna(lost["value"])


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


def test_the_table_prints_the_same_numbers_under_its_own_names():
    rows = list(summarise(frame(curve("dense", 1, [0] + [90] * 10)), below_dense=1.0))
    table = {row.metric: row.value for row in converged(rows, "table2")}
    ours = {row.metric: row.value for row in rows}
    assert table["converged_accuracy"] == ours["final_accuracy"]
    assert table["rounds_to_converge"] == ours["rounds_to_target"]
    assert table["convergence_time"] == ours["time_to_target"]
