"""From training curves to the numbers that tables print."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from slowlink.testbed.results import Row, row_of

TAIL = 10
"""Evaluations averaged for a final accuracy."""
WINDOW = 5
"""Evaluations averaged before a curve is held against the target: one lucky point is no arrival."""

METRICS = {
    "final_accuracy": "%",
    "rounds_to_target": "rounds",
    "time_to_target": "h",
    "bytes_to_target": "B",
}
LEAST_RESIDUALS = 5
"""Points around the running mean that an oscillation needs."""

IN_TIME = {
    "final_accuracy": "%",
    "oscillation": "%",
    "rounds": "rounds",
    "time_to_target": "s",
    "evaluations_to_target": "1",
}


def summarise(curves: pd.DataFrame, below_dense: float) -> Iterator[Row]:
    """Final accuracy and the cost of reaching the target, a row a case and seed.

    The target of an experiment is the mean final accuracy of its uncompressed, fully synchronous
    runs less ``below_dense`` points (GeoMX, Figure 6: 90.4 % under 90.8 %). Arrival is the first
    time the mean of five evaluations reaches it, all of a model that has trained, interpolated
    between evaluations. A run that never arrives gives rows that say so: late in rounds, which are
    all that it had, and failed in all else; so do all runs where every one that would set the
    target failed.
    """
    for experiment, table in curves.groupby("experiment", sort=True):
        accuracy = table[table["metric"] == "test_accuracy"]
        keys = ["case", "seed"]
        broken = accuracy[accuracy["status"] == "failed"].set_index(keys)["reason"].to_dict()
        final = {
            key: curve.sort_values("round")["value"].tail(TAIL).mean()
            for key, curve in accuracy.groupby(keys, sort=True)
            if key not in broken
        }
        dense = accuracy[
            (accuracy["compression"] == "identity") & (accuracy["synchronization"] == "bsp")
        ]
        if dense.empty:
            raise ValueError(f"{experiment}: no uncompressed synchronous run to set the target")
        # Cases that differ only in their links share a run, which counts once; of others the first.
        runs = dense.drop_duplicates(["exchange", "seed"])
        references = set(runs[keys].itertuples(index=False, name=None)) & set(final)
        ends = [final[key] for key in references]
        target = float(np.mean(ends)) - below_dense if ends else math.nan
        sent = table[table["metric"] == "bytes_sent"].set_index([*keys, "round"])["value"]
        sent = sent.sort_index()
        for (case, seed), curve in accuracy.groupby(keys, sort=True):
            curve = curve.sort_values("round")
            base = row_of(curve.iloc[0], round=-1, time_s=math.nan)
            if (case, seed) in broken:
                failed = dict(status="failed", reason=broken[case, seed])
                for metric, unit in METRICS.items():
                    yield _make(base, metric, float("nan"), unit, "measured", **failed)
                continue
            yield _make(base, "final_accuracy", final[case, seed], "%", "measured")
            if not ends:
                failed = dict(status="failed", reason="no uncompressed run set the target")
                for metric, unit in list(METRICS.items())[1:]:
                    yield _make(base, metric, math.nan, unit, "measured", **failed)
                continue
            yield _make(base, "target_accuracy", target, "%", "measured")
            costs = {
                "rounds_to_target": curve["round"].to_numpy(float),
                "time_to_target": curve["time_s"].to_numpy() / 3600,
                "bytes_to_target": sent.loc[case, seed].to_numpy(),
            }
            trained = curve["round"].to_numpy() > 0
            for metric, axis in costs.items():
                unit = METRICS[metric]
                value = reached(axis[trained], curve["value"][trained], target)
                if value is None:
                    reason = (
                        f"never reached {target:.2f} % within {int(curve['round'].max())} rounds"
                    )
                    # The runs had as many rounds each, so that only in rounds the end tells more
                    # than that the target was not reached.
                    status = "late" if unit == "rounds" else "failed"
                    end = axis.max() if status == "late" else math.nan
                    missed = dict(status=status, reason=reason)
                    yield _make(base, metric, end, unit, "simulated", **missed)
                else:
                    yield _make(base, metric, value, unit, "simulated")


def summarise_in_time(curves: pd.DataFrame, target: float, window: int) -> Iterator[Row]:
    """What runs to a given time arrive at, a row a case and seed (LPSP §4.1).

    ``final_accuracy`` is the mean of the last ``window`` evaluations; ``time_to_target`` (s) when
    the mean of so many of a model that has trained first reaches ``target`` (%), interpolated
    between evaluations; ``evaluations_to_target`` how many there were by then, of which
    ``least_evaluations``, as many as the mean has, are the fewest that there can be;
    ``oscillation`` the standard deviation, in points, of the accuracy around its centred mean of
    five evaluations, in the second half of the run; ``rounds`` all that were done. A run that never
    arrives is late, with all its time; runs that fail or have too few evaluations give failed rows.
    """
    accuracy = curves[curves["metric"] == "test_accuracy"]
    for _, curve in accuracy.groupby(["case", "seed"], sort=True):
        curve = curve.sort_values("round")
        place = dict(round=-1, time_s=math.nan, status="ok", reason="", value=0.0)
        base = row_of(curve.iloc[0], **place)
        yield _make(base, "target_accuracy", target, "%", "computed")
        yield _make(base, "least_evaluations", window, "1", "computed")
        broken = curve[curve["status"] == "failed"]
        if len(broken):
            failed = dict(status="failed", reason=broken["reason"].iloc[0])
            for metric, unit in IN_TIME.items():
                yield _make(base, metric, math.nan, unit, "measured", **failed)
            continue
        values, times = curve["value"].to_numpy(), curve["time_s"].to_numpy()
        yield _make(base, "final_accuracy", values[-window:].mean(), "%", "measured")
        swing = oscillation(times, values)
        reason = f"fewer than {LEAST_RESIDUALS + WINDOW // 2} evaluations in the second half"
        failed = dict(status="failed", reason=reason) if math.isnan(swing) else {}
        yield _make(base, "oscillation", swing, "%", "measured", **failed)
        yield _make(base, "rounds", curve["round"].max(), "rounds", "measured")
        trained = curve["round"].to_numpy() > 0
        seen, at = times[trained], arrival(values[trained], target, window)
        late = {}
        if at is None:
            reason = f"never reached {target:g} % within {times[-1]:.0f} s"
            late = dict(status="late", reason=reason)
        needed = len(seen) if at is None else math.ceil(at) + 1
        when = times[-1] if at is None else np.interp(at, np.arange(len(seen)), seen)
        yield _make(base, "time_to_target", when, "s", "simulated", **late)
        yield _make(base, "evaluations_to_target", needed, "1", "measured", **late)


def oscillation(times: np.ndarray, accuracy: np.ndarray) -> float:
    """Standard deviation of ``accuracy`` around its centred mean of five, in the second half; NaN
    where that mean exists too seldom."""
    residual = accuracy - pd.Series(accuracy).rolling(WINDOW, center=True).mean().to_numpy()
    residual = residual[(times >= times[-1] / 2) & np.isfinite(residual)]
    enough = len(residual) >= LEAST_RESIDUALS
    return float(np.sqrt(np.mean(residual**2))) if enough else math.nan


def arrival(
    accuracy: np.ndarray, target: float, window: int = WINDOW, least: int | None = None
) -> float | None:
    """Position (in evaluations, fractional) where the smoothed curve first reaches ``target``.

    What is smoothed is the mean of ``window`` evaluations; with ``least``, in the beginning of so
    many, too.
    """
    smooth = pd.Series(accuracy).rolling(window, min_periods=least or window).mean().to_numpy()
    reached = np.flatnonzero(smooth >= target)
    if not len(reached):
        return None
    after = int(reached[0])
    if after == 0 or math.isnan(smooth[after - 1]):
        return float(after)
    low, high = smooth[after - 1], smooth[after]
    return after - 1 + (target - low) / (high - low)


def reached(
    axis: Sequence[float],
    accuracy: Sequence[float],
    target: float,
    window: int = WINDOW,
    least: int | None = None,
) -> float | None:
    """Where on ``axis``, of which every evaluation has a point, the smoothed curve first reaches
    ``target``, interpolated between evaluations, as :func:`arrival`; None where it never does."""
    at = arrival(np.asarray(accuracy), target, window, least)
    return None if at is None else float(np.interp(at, np.arange(len(axis)), axis))


def _make(base: Row, metric: str, value: float, unit: str, evidence: str, **fields) -> Row:
    """A row beside the curve's; what comes from a record stays recorded."""
    evidence = base.evidence if base.evidence == "recorded" else evidence
    update = dict(metric=metric, value=float(value), unit=unit, evidence=evidence)
    return base.model_copy(update=update | fields)
