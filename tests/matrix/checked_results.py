"""Cells of advice that was checked, made up so that who is first is known."""

from __future__ import annotations

import pandas as pd

from slowlink.testbed.live.checked import Checked, Parts, Prediction
from slowlink.testbed.results import Row, coordinates, frame
from slowlink.workflow.matrix.checked import rows_of

STEPS = {
    # network: method: (predicted, measured) ms of exchange beside 100 of computing
    "slow": {"values": (400, 420), "sparse": (20, 25), "signs": (30, 90)},
    "fast": {"values": (10, 12), "sparse": (9, 50), "signs": (30, 31)},
}


def cell(predicted_ms: float, measured_ms: float) -> Checked:
    expected, found = (Parts(0.1, 0.0, ms / 1e3, 0.02) for ms in (predicted_ms, measured_ms))
    foretold = Prediction("ring", [[0], [1, 2]], expected, expected.step_s, 4e6, 0.9)
    step_s = found.step_s
    quartiles = (0.98 * step_s, 1.02 * step_s)
    return Checked(foretold, found, quartiles, 4e6, 0.8, 0.3, 0.001, 0.99)


def rows(run: str = "recorded") -> pd.DataFrame:
    evidence = dict(recorded="recorded", live="emulated")[run]
    made = []
    for network, methods in STEPS.items():
        for method, times in methods.items():
            at = dict(network=network, method=method, computing="replayed", run=run)
            fields = dict(document="matrix", experiment="checked", workers=2, scale="desk")
            fields |= dict(bandwidth=25e6 if network == "slow" else 1e9)
            place = Row(**fields, at=at, metric="any", value=0, unit="s", evidence=evidence)
            made += rows_of(place, cell(*times))
    lost = dict(value=float("nan"), status="failed", reason="no links here", metric="step_time")
    at = dict(network="fast", method="lost", computing="replayed", run=run)
    return frame([*made, place.model_copy(update=lost | dict(at=at, variant="measured"))])


def condensed(*runs: str) -> pd.DataFrame:
    """The same of these runs, with a column a coordinate."""
    return coordinates(pd.concat([rows(run) for run in runs], ignore_index=True))
