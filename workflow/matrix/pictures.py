"""The rows that the matrix's figures show, made of what is condensed of its results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slowlink.reports.charts import Missing
from slowlink.workflow.experiment import PLANNING

if not PLANNING or TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from slowlink.reports.evidence import MIN_SEEDS, Estimate
    from slowlink.testbed.units import said_rate
    from slowlink.workflow.matrix.ranking import (
        CELL,
        EVEN,
        GROUPS,
        MODELS,
        Place,
        arrived,
        best,
        classes,
        close_model,
        close_workers,
        closeups,
        comparable,
        first,
        front,
        holding,
        holds_not,
        info,
        metric,
        middle,
        model_name,
        of,
        of_cell,
        profile,
        said_network,
        score,
        shaky,
        target,
        times_to_target,
        trained_models,
        trainings,
    )

ON_FRONT = "on the front of time, accuracy and bytes"
BEHIND = "another is as good in all three and better in one"
UNTRAINED = "no method of the matrix was trained"
MOST = 8
"""Lines in one panel."""
AS_FAST = 1e-3

Cell = tuple[dict[str, Any], dict[str, float]]
"""Coordinates, and the seconds of those who are first there."""


def _computed(lines: list[dict[str, Any]] | pd.DataFrame, metric: str) -> pd.DataFrame:
    """Lines of coordinates as rows of a metric; what a line does not tell is as usual."""
    usual = dict(value=1.0, unit="1", seed=-1, status="ok", reason="", experiment="computed")
    made = pd.DataFrame(lines)
    told = {name: made[name].fillna(value) for name, value in usual.items() if name in made}
    return made.assign(**usual | told, metric=metric)


def _place(model: str, network: str, speeds: str) -> str:
    return f"{model_name(model)}, {said_network(network, speeds)}"


def first_rounds(rows: pd.DataFrame) -> pd.DataFrame:
    """Who has the shortest round: a row a cell and method, by panel. The value is 0 where it is
    another if a price is off."""
    times = comparable(rows)
    models = [*MODELS, *sorted(set(times.index.get_level_values("model")))]
    cells: list[Cell] = []
    alike, doubtful = classes(rows), shaky(rows, "round")
    for cell, won in best(times).iterrows():
        at = dict(zip(times.index.names, cell, strict=True))
        at["panel"] = _place(at["model"], at["network"], at["speeds"])
        at["value"] = 0.0 if cell in doubtful else 1.0
        cells.append((at, _once(times.loc[cell][won].to_dict(), alike)))
    cells.sort(key=lambda one: (models.index(one[0]["model"]), one[0]["panel"]))
    nobody = dict(method="", status="failed", reason="no method can run there")
    return _computed(_in_order(cells, nobody), "first")


def _in_order(cells: Sequence[Cell], nobody: dict[str, Any]) -> list[dict[str, Any]]:
    """A line for everyone who is first in a cell, the fastest first. Of those who are as fast, but
    for :data:`AS_FAST`, whoever is first in most cells comes first."""
    often = Counter(label for _, seconds in cells for label in seconds)
    lines = []
    for at, seconds in cells:
        least = min(seconds.values(), default=0.0)
        order = {
            label: (0.0 if took <= least * (1 + AS_FAST) else took, -often[label], label)
            for label, took in seconds.items()
        }
        lines += [at | dict(method=label) for label in sorted(order, key=order.get)]
        lines += [] if seconds else [at | nobody]
    return lines


def _once(seconds: dict[str, float], alike: Mapping[str, str]) -> dict[str, float]:
    """Methods of one class that take exactly as long are one by several names: the first of
    them."""
    named = {}
    for label, took in seconds.items():
        named.setdefault((alike.get(label, label), took), label)
    return {label: seconds[label] for label in named.values()}


def first_close(rows: pd.DataFrame) -> pd.DataFrame:
    """The same of one model."""
    made = first_rounds(rows)
    return made[made["model"] == close_model(of(rows, "round_times"))]


def first_there(rows: pd.DataFrame) -> pd.DataFrame:
    """Who reaches the target accuracy first: a row a cell of a trained model and method. Its value
    is 0 where those who reach it have too few seeds for any difference to be sure, or it is another
    if a price is off."""
    found: list[Cell] = []
    places(rows)
    cells, doubted = of(rows, "round_times"), shaky(rows, "target")
    for model in trained_models(rows):
        doubtful, alike = holds_not(rows, model), classes(rows, model)
        goal = f"{model_name(model)} to {target(rows, model):.4g} %"
        for workers in sorted(set(cells.loc[cells["model"] == model, "workers"])):
            for (*where, bandwidth), times in times_to_target(rows, workers, model).items():
                panel = f"{goal}, {said_network(*where)}"
                at = dict(panel=panel, workers=workers, bandwidth=bandwidth)
                few = any(0 < one.seeds < MIN_SEEDS for one in times.values() if not one.never)
                shaken = (model, *where, workers, bandwidth) in doubted
                at["value"] = 0.0 if few or shaken else 1.0
                ahead = first(times, doubtful)
                found.append((at, _once({label: times[label].mean for label in ahead}, alike)))
    nobody = dict(method="", status="late", reason="no method reached and held the target")
    return _computed(_in_order(found, nobody), "first")


def places(rows: pd.DataFrame) -> dict[tuple[str, *Place], dict[str, Estimate]]:
    """Times to the target by trained model and place."""
    found = {
        (model, *place): times
        for model in trained_models(rows)
        for place, times in times_to_target(rows, model=model).items()
    }
    if not found:
        raise Missing(UNTRAINED)
    return found


def profile_lines(rows: pd.DataFrame) -> pd.DataFrame:
    """Profiles of the methods that reach the target over all cells, by group."""
    times = comparable(rows)
    shares = profile(times, np.geomspace(1, 100, 121))
    lines = [
        dict(panel=panel, method=label, factor=factor, value=share)
        for panel, labels in panels(rows, score(times))
        for label in labels
        for factor, share in shares[label].items()
    ]
    return _computed(lines, "share of cells")


def panels(rows: pd.DataFrame, score: pd.Series) -> list[tuple[str, list[str]]]:
    """Groups of methods, best first, in as many panels as it takes for few lines in each."""
    groups = info(rows)["group"]
    made = []
    for group, title in GROUPS.items():
        labels = [name for name in groups.index[groups == group] if name in score]
        labels.sort(key=lambda name: -score[name])
        pieces = math.ceil(len(labels) / MOST)
        size = math.ceil(len(labels) / max(pieces, 1))
        for i in range(pieces):
            some = f" ({i + 1} of {pieces})" if pieces > 1 else ""
            made.append((title + some, labels[i * size : (i + 1) * size]))
    return made


def points(rows: pd.DataFrame) -> pd.DataFrame:
    """Accuracies of every method whose training holds on a network, with the time and the bytes of
    a round there, and whether they are on the front: on networks of even speeds and where policies
    were trained. Between sites, bytes are what leaves them."""
    made = []
    for model in trained_models(rows):
        made += _points(rows, model)
    if not trained_models(rows):
        raise Missing(UNTRAINED)
    if not made:
        raise Missing("no round was timed on as many workers as were trained")
    return pd.concat(made)


def _points(rows: pd.DataFrame, model: str) -> Iterator[pd.DataFrame]:
    accuracy = arrived(rows, "final_accuracy", model)
    accuracy = {label: one.mean for label, one in accuracy.items() if not one.never}
    trained, times = trainings(rows, model), metric(rows, "round_time")
    for cell in closeups(of(rows, "round_times"), trained):
        there, network, speeds, bandwidth = cell.values()
        key = (model, network, speeds, trained["workers"].iloc[0], bandwidth)
        holds = holding(rows, network, speeds, bandwidth, model)
        named = trained["method"].isin(holds) & (trained["network"] == network)
        named &= trained["speeds"] == speeds
        if there != model or key not in times.index:
            continue
        if speeds != EVEN and not named.any():
            continue
        row = times.loc[key].dropna()
        labels = [label for label in accuracy if label in row and label in holds]
        if not labels:
            continue
        sites = network == "sites"
        sent = metric(rows, "wan_bytes" if sites else "bytes_per_round").loc[key]
        at = pd.DataFrame({"time": row[labels], "bytes": sent.reindex(labels)})
        lost = at.assign(lost=[-accuracy[label] for label in labels])
        at["front"] = front(lost).map({True: ON_FRONT, False: BEHIND})
        at["panel"] = f"{_place(model, network, speeds)}, {said_rate(bandwidth)}"
        who = "between sites" if sites else "of a worker"
        at["sent"] = f"{model_name(model)}, {network}, {speeds}: {who}"
        ends = trainings(rows, model, "final_accuracy")
        ends = pd.concat(middle(some) for _, some in ends.groupby("method", sort=False))
        yield ends.merge(at, left_on="method", right_index=True)


def close_up(rows: pd.DataFrame) -> tuple[str, int]:
    """The model and the number of workers that are shown from near."""
    cells = of(rows, "round_times")
    return close_model(cells), close_workers(cells)


def _cells(rows: pd.DataFrame) -> dict[tuple, str]:
    """The cells that figures of one model and size show, with how they are called."""
    model, workers = close_up(rows)
    times = metric(rows, "round_time")
    cells = closeups(of(rows, "round_times"), of(rows, "arrived"))
    keys = [c | dict(workers=workers) for c in cells if c["model"] == model]
    keys = {tuple(c[name] for name in CELL) for c in keys}
    if not keys & set(times.index):
        raise Missing(f"no round of {model_name(model)} on {workers} workers could be timed")
    return {key: f"{_place(*key[:3])}, {said_rate(key[-1])}" for key in times.index if key in keys}


def parts_of_rounds(rows: pd.DataFrame) -> pd.DataFrame:
    """What a round is made of: systems, baselines and combinations, and the fastest of the other
    groups."""
    times, groups = metric(rows, "round_time"), info(rows)["group"]
    made = []
    for key, name in _cells(rows).items():
        ordered = times.loc[key].dropna().sort_values(kind="stable").index
        place = groups[ordered].groupby(groups[ordered]).cumcount()
        ours = groups[ordered].isin(["system", "baseline", "combination"]) | (place < 3)
        one = _at(rows, key)
        one = one[one["method"].isin(ordered[ours])]
        made.append(one.assign(panel=name.replace(", ", f", {key[3]} workers\n", 1)))
    return pd.concat(made)


def _at(rows: pd.DataFrame, key: tuple) -> pd.DataFrame:
    """Rows of one cell from near."""
    close = of(rows, "closeup")
    return close[of_cell(close, dict(zip(CELL, key, strict=True)))]


def scaling_lines(rows: pd.DataFrame) -> pd.DataFrame:
    """Scaling efficiency: the systems, the baselines, and the fastest of every other group."""
    made, groups = metric(rows, "scaling_efficiency"), info(rows)["group"]
    close = of(rows, "closeup", "scaling_efficiency")
    found = []
    for key, name in _cells(rows).items():
        if key[2] != EVEN:
            continue
        ordered = made.loc[key].dropna().sort_values(ascending=False, kind="stable").index
        systems = [label for label in ordered if groups[label] == "system"][:MOST]
        baselines = [label for label in ordered if groups[label] == "baseline"]
        others = [label for label in ordered if groups[label] not in ("system", "baseline")]
        others = list(groups[others].drop_duplicates().index)
        there = dict(zip(CELL, key, strict=True))
        kind = there["network"]
        del there["workers"]
        here = close[of_cell(close, there)]
        panels = {
            name: systems,
            f"{kind}: {GROUPS['baseline']}": baselines,
            f"{kind}: fastest of each other group": others,
        }
        for panel, labels in panels.items():
            found += [here[here["method"] == label].assign(panel=panel) for label in labels]
    return pd.concat(found)
