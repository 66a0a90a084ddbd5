"""The matrix: who is fastest where, with ties; profiles, fronts and ranks.

A *cell* is a model on a network (``flat`` or ``sites``, with even or uneven speeds), a number of
workers and a bandwidth; its contenders are the methods that can run there. Round times are
deterministic, and those within ``TIE`` of each other are a tie. Times to a target are means over
seeds, and one is before another only where the 95 % interval of their difference, seed by seed,
does not reach zero and the means are more than ``TIE`` apart.

Results are tables of the rows that :func:`condense` makes, with a column a coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd

from slowlink.reports.charts import Missing
from slowlink.reports.evidence import MIN_SEEDS, Estimate
from slowlink.testbed.results import Row, coordinates, row_of
from slowlink.testbed.units import said_rate

TIE = 0.02
duration = partial(Estimate.of, quantity="duration")
"""The estimate of rounds or seconds of a training, of one value a seed."""
FACTORS = np.geomspace(1, 10, 61)
"""Times the best over which a method's profile is averaged: that is its score."""
CELL = ["model", "network", "speeds", "workers", "bandwidth"]
Place = tuple[str, str, float]
"""Network, speeds and bandwidth (bit/s)."""
EVEN = "even"
"""Speeds of workers that are all alike."""
ARRIVED = ["chosen_lr", "final_accuracy", "target_accuracy", "rounds_to_target", "held_accuracy"]
SURELY = 0.05
"""The p below which a target counts as met."""
ROOMS = ["exchange", "compression", "synchronization", "fusion"]
FASTEST = "the fastest there"
"""The exchange of methods that every cell carries as is best there."""
GROUPS = {
    "system": "systems of the documents",
    "baseline": "what people run today",
    "combination": "combinations",
    "codec": "codecs",
    "sites": "codecs between sites",
    "local": "local steps",
    "exchange": "exchanges",
    "policy": "policies",
    "fusion": "fusion",
}
MODELS = {
    "lenet5": "LeNet-5",
    "cnn3": "3-conv CNN",
    "resnet8": "ResNet-8",
    "resnet20": "ResNet-20",
    "resnet18_v1": "ResNet-18",
    "resnet50": "ResNet-50",
    "vgg16": "VGG-16",
    "lstm": "LSTM",
}
_CLOSE = {"model": "resnet50", "workers": 16}
_BANDWIDTH = {"flat": 1e9, "sites": 155e6}


# What the pages need of all results --------------------------------------------------------------


def condense(
    rows: pd.DataFrame,
    groups: Mapping[str, str],
    trained_as: Mapping[str, str],
    residual_as: Mapping[str, str],
    trained_at: Mapping[str, tuple[str, str]],
    dense: Collection[str],
    rounds: int,
    most_rounds: int,
    grid: Sequence[float],
    steady: Collection[str],
) -> Iterator[Row]:
    """The rows that pages, figures and tables are made from, a sixth of all.

    By experiment. ``round_times``: of every cell. ``closeup``: other metrics, in :func:`closeups`.
    ``arrived``: what the training of every method arrives at, under its own name, with the
    network and speeds with which alone that holds and whose training it is as ``trained_as``; first
    of the model that is trained, then of the one whose training is recorded. ``tried``: the
    learning rates. ``methods``: in how many cells each method runs, with its ``group``, and which
    are dense, or code at a guessed price. ``lengths``: ``rounds`` and ``most_rounds``.
    ``cannot_run``: how many cells by method, network and reason.

    Parameters
    ----------
    rows: results of the experiments ``cells``, ``training``, ``tuning`` and ``residual``.
    groups: the group of every method.
    trained_as, residual_as: by method, the one whose training is its own; and the same of what is
        recorded of a residual network.
    trained_at: by method, the network and speeds with which alone its rounds hold; empty for all.
    dense: methods that send everything, uncompressed, in every round.
    rounds, most_rounds: after how many accuracies are compared, and by when the target may come.
    grid: the learning rates that every method was to be tried with.
    steady: methods that meet in every round, and so can be judged at any.

    Raises
    ------
    ValueError
        No cell could run, or not all training is of one recipe.
    """
    at = coordinates(rows)
    at = at.assign(lr=at.get("lr", math.nan))
    _one_recipe(at, steady, grid)
    cells = at[at["experiment"] == "cells"]
    good = cells[cells["status"] == "ok"]
    guesses = set(good.loc[good["metric"] == "guessed_price", "method"])
    times = good[good["metric"] == "round_time"]
    if times.empty:
        raise ValueError("no cell of the matrix could run")
    learned = at[at["experiment"].isin(["training", "residual"])]
    near = closeups(cells[cells["metric"] == "round_time"], learned)
    close = pd.concat([good[of_cell(good, cell)] for cell in near])
    other = ~close["metric"].isin(["round_time", "guessed_price"])
    close = close[other].drop_duplicates([*CELL, "method", "metric"])
    yield from _rows(rows.loc[times.index], experiment="round_times")
    yield from _rows(rows.loc[close.index], experiment="closeup")
    tried = rows["experiment"].isin(["tuning", "residual_rates"])
    yield from _rows(rows[tried & (rows["metric"] == "final_accuracy")], experiment="tried")

    answers = times.groupby("method")[ROOMS].agg(_one)
    some = row_of(rows.loc[times.index[0]], model="", workers=0, bandwidth=math.nan)
    blank = some.model_copy(update=dict.fromkeys(ROOMS, "") | dict(at={}))
    for label, group in groups.items():
        told = dict(experiment="methods", unit="1", case=label, at=dict(method=label, group=group))
        four = answers.loc[label].to_dict() if label in answers.index else {}
        runs = float((times["method"] == label).sum())
        yield blank.model_copy(update=told | four | dict(metric="cells", value=runs))
        if label in guesses:
            yield blank.model_copy(update=told | dict(metric="guessed", value=1.0))
        if label in dense:
            yield blank.model_copy(update=told | dict(metric="dense", value=1.0))
    for name, value in (("rounds", rounds), ("most_rounds", most_rounds)):
        told = dict(experiment="lengths", case="training", metric=name, value=value, unit="rounds")
        yield blank.model_copy(update=told)
    failed = cells[cells["status"] == "failed"]
    for (label, where, why), some in failed.groupby(["method", "network", "reason"], sort=False):
        told = dict(experiment="cannot_run", metric="cells", unit="1", case=label)
        told |= dict(at=dict(method=label, network=where), value=float(len(some)), reason=why)
        yield blank.model_copy(update=told)

    ends = learned[learned["metric"].isin(ARRIVED)]
    for source, shared in (("training", trained_as), ("residual", residual_as)):
        mine = ends[ends["experiment"] == source]
        for label, trained in shared.items():
            network, speeds = trained_at[label]
            at = dict(method=label, trained_as=trained, network=network, speeds=speeds)
            told = dict(experiment="arrived", case=label, at=at)
            yield from _rows(rows.loc[mine.index[mine["method"] == trained]], **told)


def _one(names: pd.Series) -> str:
    """What all cells have in common."""
    found = names.unique()
    return found[0] if len(found) == 1 else FASTEST


def _one_recipe(results: pd.DataFrame, steady: Collection[str], grid: Sequence[float]) -> None:
    """Results that were there before may be of another recipe, and do not compare."""
    again = "make all training again (snakemake matrix), or remove the files of what is old"
    wanted = ", ".join(f"{lr:g}" for lr in sorted(grid))
    for label, some in results[results["experiment"] == "tuning"].groupby("method"):
        tried = ", ".join(f"{lr:g}" for lr in sorted(set(some["lr"])))
        if tried != wanted:
            raise ValueError(f"{label} was tried with rates {tried}, not {wanted}: {again}")
    done = results[(results["experiment"] == "training") & (results["status"] == "ok")]
    targets = done[done["metric"] == "target_accuracy"].groupby("value")["method"].first()
    met = done[(done["metric"] == "final_accuracy") & done["method"].isin(steady)]
    for what, found in (
        ("target (%)", targets),
        ("rounds", met.groupby("round")["method"].first()),
    ):
        if len(found) > 1:
            told = ", ".join(f"{label}: {value:g}" for value, label in found.items())
            raise ValueError(f"training differs in its {what} ({told}): {again}")


def _rows(table: pd.DataFrame, **changes: Any) -> Iterator[Row]:
    yield from (row_of(record, **changes) for record in table.to_dict("records"))


def of_cell(table: pd.DataFrame, cell: Mapping[str, Any]) -> pd.Series:
    """Which rows are of a cell; what it does not name may be anything."""
    return (table[list(cell)] == pd.Series(cell)).all(axis=1)


def closeups(cells: pd.DataFrame, training: pd.DataFrame) -> list[dict[str, Any]]:
    """The cells that are shown in parts, by model, network and bandwidth, with any workers.

    First those of ResNet-50, or the last of other models; then those of the model trained, if any.

    Parameters
    ----------
    cells: rows of round times. training: rows of what was trained.
    """
    return [
        {
            "model": model,
            "network": network,
            "speeds": speeds,
            "bandwidth": _nearest(cells["bandwidth"], _BANDWIDTH[network]),
        }
        for model in dict.fromkeys([close_model(cells), *training["model"]])
        for network, speeds in sorted(set(zip(cells["network"], cells["speeds"], strict=True)))
    ]


def close_model(cells: pd.DataFrame) -> str:
    """The model that figures of one model show."""
    models = list(cells["model"].unique())
    return _CLOSE["model"] if _CLOSE["model"] in models else models[-1]


def close_workers(cells: pd.DataFrame) -> int:
    """The cluster size that figures of one size show."""
    return int(_nearest(cells["workers"], _CLOSE["workers"]))


def _nearest(values: pd.Series, wanted: float) -> float:
    return min(values.dropna().unique(), key=lambda value: abs(math.log(value / wanted)))


# Who is how fast ---------------------------------------------------------------------------------


def of(results: pd.DataFrame, experiment: str, metric: str = "") -> pd.DataFrame:
    """The rows of an experiment, of all metrics or of one."""
    rows = results[results["experiment"] == experiment]
    return rows[rows["metric"] == metric] if metric else rows


def metric(results: pd.DataFrame, name: str) -> pd.DataFrame:
    """A metric of the cells: a row a cell, a column a method, NaN where it cannot run.

    Raises
    ------
    Missing
        There are no such results.
    """
    experiment = "round_times" if name == "round_time" else "closeup"
    rows = of(results, experiment, name)
    if rows.empty:
        raise Missing(f"no {name} of any cell of the matrix")
    table = rows.pivot(index=CELL, columns="method", values="value")
    return table[rows["method"].unique()]


def ratios(times: pd.DataFrame, among: pd.DataFrame | None = None) -> pd.DataFrame:
    """Times over the best of their cell, or over the best ``among`` other times."""
    known = times if among is None else among
    return times.div(known.min(axis=1), axis=0)


def best(times: pd.DataFrame) -> pd.DataFrame:
    """Which methods are first in each cell: within ``TIE`` of the best, which ties them."""
    return ratios(times) <= 1 + TIE


def profile(
    times: pd.DataFrame, factors: Sequence[float], among: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Performance profiles (Dolan, Moré 2002): by factor, the share of all cells in which a method
    takes at most so many times the best (``among`` other times). A cell in which it cannot run
    counts as one it loses."""
    over = ratios(times, among).to_numpy()
    shares = [(over <= factor).mean(axis=0) for factor in factors]
    return pd.DataFrame(shares, index=list(factors), columns=times.columns)


def score(times: pd.DataFrame, among: pd.DataFrame | None = None) -> pd.Series:
    """The mean of a profile from 1 to 10 times the best: all methods are judged on all cells, which
    ratios over those that a method can run in would not do."""
    return profile(times, FACTORS, among).mean()


def front(points: pd.DataFrame) -> pd.Series:
    """Which rows are on the Pareto front: no other is as small in all columns and smaller in one.

    Rows that lack a value are not.
    """
    values = points.to_numpy(dtype=float)
    below = (values[:, None] <= values[None]).all(axis=2) & (values[:, None] < values[None]).any(
        axis=2
    )
    return pd.Series(~below.any(axis=0) & np.isfinite(values).all(axis=1), index=points.index)


def first(times: Mapping[str, Estimate], doubtful: Collection[str] = ()) -> list[str]:
    """The methods than which none is surely faster, of the least mean first, of equal ones as they
    come; several are a tie.

    What a seed never reached has no mean, and is not first; nor is who is ``doubtful``, or has so
    few seeds that nobody could be surely faster.
    """
    there = [
        label
        for label, one in times.items()
        if not (one.never or 0 < one.seeds < MIN_SEEDS or label in doubtful)
    ]
    ordered = sorted(((times[label].mean, label) for label in there), key=itemgetter(0))

    def beaten(mean: float, label: str) -> bool:
        mine = times[label]
        faster = (times[other] for least, other in ordered if least < mean)
        return any(one.below(mine) and not one.near(mine, TIE) for one in faster)

    return [label for mean, label in ordered if not beaten(mean, label)]


# What training says ------------------------------------------------------------------------------


def rounds(results: pd.DataFrame) -> tuple[int, int]:
    """Rounds after which accuracies are compared, and by which the target may be reached."""
    told = of(results, "lengths").set_index("metric")["value"]
    return int(told["rounds"]), int(told["most_rounds"])


def trained_models(results: pd.DataFrame) -> list[str]:
    """Models that were trained: first the one that every run trains."""
    return list(of(results, "arrived")["model"].unique())


def trainings(results: pd.DataFrame, model: str | None = None, name: str = "") -> pd.DataFrame:
    """What training a model arrived at, the first of :func:`trained_models` if None; of all metrics
    or of one."""
    rows = of(results, "arrived", name)
    model = model or next(iter(trained_models(results)), "")
    return rows[rows["model"] == model]


def arrived(results: pd.DataFrame, name: str, model: str | None = None) -> dict[str, Estimate]:
    """``final_accuracy`` (%) or ``rounds_to_target`` of every method that was trained, of a model
    as in :func:`trainings`. Runs that diverged have no accuracy, those that never reached the
    target no rounds: infinite."""
    quantity = {"rounds_to_target": "duration", "final_accuracy": "share"}.get(name, "")
    return {
        label: Estimate.of(middle(some).set_index("seed")["value"].fillna(math.inf), quantity)
        for label, some in trainings(results, model, name).groupby("method", sort=False)
    }


def middle(some: pd.DataFrame) -> pd.DataFrame:
    """Of what was trained at several bandwidths, the rows of the middle one."""
    trained = sorted(some["bandwidth"].unique())
    return some[some["bandwidth"] == trained[len(trained) // 2]] if len(trained) > 1 else some


def rounds_at(
    results: pd.DataFrame, label: str, bandwidth: float, model: str | None = None
) -> Estimate:
    """Rounds to the target at a bandwidth. Of methods whose training holds only at those where it
    was made, interpolated seed by seed over their logarithm, which is a guess; infinite where a
    neighbour never arrives."""
    rows = trainings(results, model, "rounds_to_target")
    rows = rows[rows["method"] == label]
    found = rows.assign(value=rows["value"].fillna(math.inf)).pivot(
        index="seed", columns="bandwidth", values="value"
    )
    known = np.array(found.columns, dtype=float)
    if len(known) == 1 or not (rows["network"] != "").any():
        return duration(middle(rows).set_index("seed")["value"].fillna(math.inf))
    right = min(max(int(np.searchsorted(known, bandwidth)), 1), len(known) - 1)
    low, high = known[right - 1 : right + 1]
    share = math.log(bandwidth / low) / math.log(high / low)
    if share in (0.0, 1.0):
        return duration((found[low] if share == 0 else found[high]).dropna())
    both = found[[low, high]].dropna()  # a seed may be recorded at one of them alone
    return duration((1 - share) * both[low] + share * both[high])


def guesses(
    results: pd.DataFrame, network: str, speeds: str, bandwidth: float, model: str
) -> set[str]:
    """Methods that hold on a network only by :func:`rounds_at` between where they were trained."""
    rows = trainings(results, model, "rounds_to_target")
    there = rows[(rows["network"] == network) & (rows["speeds"] == speeds)]
    exact = set(there.loc[there["bandwidth"] == bandwidth, "method"])
    return (holding(results, network, speeds, bandwidth, model) & set(there["method"])) - exact


def target(results: pd.DataFrame, model: str | None = None) -> float:
    """Accuracy (%) that counts as trained; NaN without training."""
    rows = trainings(results, model, "target_accuracy")
    return float(rows["value"].iloc[0]) if len(rows) else math.nan


def met(results: pd.DataFrame, model: str | None = None) -> dict[str, float]:
    """By method, the p of a one-sided t-test over seeds that the accuracy lies above the target
    after it was first reached; NaN of fewer than three seeds that were evaluated then."""
    wanted = target(results, model)
    return {
        label: Estimate.of(pd.Series(wanted, one.by_seed.index)).chance(one)
        for label, one in arrived(results, "held_accuracy", model).items()
    }


def holds_not(results: pd.DataFrame, model: str | None = None) -> set[str]:
    """Methods that reached the target with three seeds or more, and do not surely hold it: by
    :func:`met`, what they reached may have been one good moment."""
    return {label for label, p in met(results, model).items() if p >= SURELY}


def arrives(taught: Mapping[str, bool], model: str, trained: Collection[str]) -> bool:
    """Whether a method is worth its rounds with a model.

    Parameters
    ----------
    taught: by model that it was trained with, whether it reached the target there and holds it.
    model: counts alone, if it is one of those that were ``trained``; of another nobody knows, so
        that the method must have arrived with every one of them.
    """
    asked = [model] if model in trained else trained
    return bool(asked) and all(taught.get(one, False) for one in asked)


def arriving(results: pd.DataFrame) -> dict[str, dict[str, bool]]:
    """By method and model that it was trained with, whether it reached the target with every seed,
    and holds it."""
    made: dict[str, dict[str, bool]] = {}
    for model in trained_models(results):
        doubtful = holds_not(results, model)
        for label, one in arrived(results, "rounds_to_target", model).items():
            made.setdefault(label, {})[model] = not one.never and label not in doubtful
    return made


def qualified(results: pd.DataFrame, model: str) -> list[str]:
    """Methods that :func:`arrives` says are worth their rounds with a model.

    Only these are compared by the times of rounds alone, for a round is soon over that teaches
    little. Where none is, as in runs of a few rounds, all methods there are.
    """
    return _qualified(results, metric(results, "round_time").columns, [model])[model]


def _qualified(
    results: pd.DataFrame, run: Iterable[str], models: Iterable[str]
) -> dict[str, list[str]]:
    """By model, those of the methods that ``run`` that are :func:`qualified`."""
    known, trained, run = arriving(results), trained_models(results), list(run)
    return {
        model: [one for one in run if arrives(known.get(one, {}), model, trained)] or run
        for model in models
    }


def comparable(results: pd.DataFrame) -> pd.DataFrame:
    """The times of rounds, a row a cell, of the methods that are :func:`qualified` for some model;
    NaN in cells of models for which they are not."""
    times = metric(results, "round_time")
    models = times.index.get_level_values("model")
    known = _qualified(results, times.columns, models.unique())
    some = [label for label in times if any(label in labels for labels in known.values())]
    there = [[label in known[model] for label in some] for model in models]
    return times[some].where(np.array(there))


def holding(
    results: pd.DataFrame, network: str, speeds: str, bandwidth: float, model: str | None = None
) -> set[str]:
    """Methods whose training holds on a network. Training that names its network, as of policies
    that look at the clock, holds there alone, and from the least to the highest bandwidth at which
    it was made."""
    known = trainings(results, model).groupby("method", sort=False)
    made_in, made_at = known[["network", "speeds"]].first(), known["bandwidth"]
    there = (made_in["network"] == network) & (made_in["speeds"] == speeds)
    there &= (made_at.min() <= bandwidth) & (bandwidth <= made_at.max())
    return set(made_in.index[there | (made_in["network"] == "")])


def times_to_target(
    results: pd.DataFrame, workers: int | None = None, model: str | None = None
) -> dict[Place, dict[str, Estimate]]:
    """By place, the seconds of a trained model, with every method whose training holds there and
    that can run there; infinite for seeds that never reached the target.

    Parameters
    ----------
    workers: as many as were trained if None; with others, rounds are taken to be the same.
    """
    trained = trainings(results, model)
    if trained.empty:
        return {}
    rounds = arrived(results, "rounds_to_target", model)
    clock = set(trained.loc[trained["network"] != "", "method"])
    model, there = trained[["model", "workers"]].iloc[0]
    workers = there if workers is None else workers
    times = metric(results, "round_time").query("model == @model and workers == @workers")
    made = {}
    for (_, network, speeds, _, bandwidth), row in times.iterrows():
        where = (network, speeds) if workers == there else ("", "")
        holds = holding(trained, *where, bandwidth, model)
        made[network, speeds, bandwidth] = {}
        for label in times:
            if label in holds and label in rounds and math.isfinite(row[label]):
                needed = rounds[label]
                if label in clock:
                    needed = rounds_at(trained, label, bandwidth, model)
                made[network, speeds, bandwidth][label] = duration(needed.by_seed * row[label])
    return made


# Everything of a method in one row ---------------------------------------------------------------


def info(results: pd.DataFrame) -> pd.DataFrame:
    """A row a method: its group, its four answers, in how many cells it runs."""
    return of(results, "methods", "cells").set_index("method")


def ranked(results: pd.DataFrame) -> pd.DataFrame:
    """All methods, those first that reach the target and have the highest :func:`score`.

    Wins and scores are among the :func:`comparable` rounds; ratios, and scores of methods that have
    none, are over the best of those. Ratios are over the cells in which a method runs, scores over
    all, so that those are lost in which it does not count. A win that others share is a tie.
    """
    times = metric(results, "round_time")
    known = comparable(results)
    over = ratios(times, known)
    scores = score(known).combine_first(score(times, known))
    won = best(known).reindex(columns=times.columns, fill_value=False)
    shared = won.sum(axis=1) > 1
    groups = info(results)["group"]
    accuracy = arrived(results, "final_accuracy")
    needed = arrived(results, "rounds_to_target")
    rows = []
    for label, group in groups.items():
        mine = over[label].dropna() if label in over else pd.Series(dtype=float)
        rows.append(
            {
                "method": label,
                "group": group,
                "cells": len(mine),
                "score": scores.get(label, 0.0),
                "wins alone": int((won[label] & ~shared).sum()) if label in won else 0,
                "ties for first": int((won[label] & shared).sum()) if label in won else 0,
                "times the best": float(np.exp(np.log(mine).mean())) if len(mine) else math.nan,
                "worst": float(mine.max()) if len(mine) else math.nan,
                "qualified": label in known,
                "accuracy": accuracy.get(label),
                "rounds": needed.get(label),
            }
        )
    table = pd.DataFrame(rows)
    order = ["qualified", "score"]
    return table.sort_values(order, ascending=False, kind="stable", ignore_index=True)


def carried(results: pd.DataFrame) -> dict[str, str]:
    """By method, the exchange that most often carried it fastest, and in how many of its cells."""
    found = of(results, "round_times").groupby("method", sort=False)["exchange"]
    made = {}
    for label, names in found:
        counts = names.value_counts()
        made[label] = counts.index[0]
        if len(counts) > 1:
            made[label] += f" in {counts.iloc[0]} of {len(names)} cells"
    return made


def regret(results: pd.DataFrame, labels: Sequence[str]) -> pd.DataFrame:
    """What one loses who always picks one of these methods: a row a method, from the least.

    Its round over the best that is :func:`comparable` there, in the geometric mean and at
    ``worst``, over the cells in which it runs, and ``where`` that is, a key of the cell.
    """
    times = metric(results, "round_time")
    best_there = comparable(results).min(axis=1)
    rows = []
    for label in labels:
        over = (times[label] / best_there).dropna() if label in times else pd.Series(dtype=float)
        if over.empty:
            continue
        mean, worst, where = float(np.exp(np.log(over).mean())), float(over.max()), over.idxmax()
        cannot = int(best_there.notna().sum() - len(over))
        rows.append(dict(method=label, mean=mean, worst=worst, where=where, cannot=cannot))
    columns = ["method", "mean", "worst", "where", "cannot"]
    return pd.DataFrame(rows, columns=columns).sort_values("mean", ignore_index=True)


def strongholds(results: pd.DataFrame) -> dict[str, str]:
    """Where each method that is ever first, alone or tied, most often is: network,
    speeds and bandwidth, with how many of the cells there."""
    won = best(comparable(results))
    places = won.groupby(level=["network", "speeds", "bandwidth"], sort=False)
    wins, cells = places.sum(), places.size()
    made = {}
    for label in wins:
        place, most = wins[label].idxmax(), wins[label].max()
        if most:
            made[label] = f"{said_place(*place)}: {most} of {cells[place]} cells"
    return made


def shaky(results: pd.DataFrame, by: str) -> set[tuple]:
    """The cells whose first is another if some price is off: of ``round`` times, or of those to the
    ``target``. It is asked with even speeds alone."""
    rows = of(results, "robust")
    if rows.empty:
        return set()
    other = rows[(rows["by"] == by) & (rows["first"] != rows["method"])]
    return set(other[CELL].itertuples(index=False, name=None))


def dense(results: pd.DataFrame) -> list[str]:
    """Methods that send everything, uncompressed, in every round."""
    return list(of(results, "methods", "dense")["method"])


def guessed(results: pd.DataFrame) -> set[str]:
    """Methods for which some price of coding is a guess by what a codec does."""
    return set(of(results, "methods", "guessed")["method"])


def headline(results: pd.DataFrame) -> str:
    """The main finding in words, computed."""
    times = comparable(results)
    compared, most = rounds(results)
    model = next(iter(trained_models(results)), "")
    known, places = qualified(results, model), times_to_target(results)
    text, doubtful = f"Of {len(known)} methods", holds_not(results)
    times = times.loc[:, ~times.T.duplicated()]  # one method by two names is named once
    ahead = [[one for one in first(place, doubtful) if one in known] for place in places.values()]
    ahead = [names for names in ahead if names]
    if ahead:
        # Whoever varies much between seeds ties everywhere, so that the least means are counted.
        names, count = _leaders(pd.Series([one[0] for one in ahead]).value_counts(sort=False))
        ties = int(np.median([len(one) - 1 for one in ahead]))
        text += (
            f" that bring {model_name(model)} to {target(results):g} % with "
            f"every seed within {most} rounds and hold it, {_listed(names)} "
            f"{'are each' if names[1:] else 'is'} first there in the mean on {count} of "
            f"{len(places)} networks; on the median one, {_others(ties)} may be as fast, by the "
            f"seeds.{apart(results)} By the time of a round alone"
        )
    always = best(times)[times.notna().any(axis=1)].all().any()
    text += f", {'one' if always else 'none'} is fastest everywhere."
    for kind, name in (("flat", "On flat clusters"), ("sites", "Between sites")):
        here = times[times.index.get_level_values("network") == kind]
        here = here.dropna(how="all")
        if len(here):
            names, wins = _leaders(best(here).sum())
            text += (
                f" {name}, {_listed(names)} {'each have' if names[1:] else 'has'} the shortest "
                f"round in {100 * wins / len(here):.0f} % of {len(here)} cells, alone or tied."
            )
    plain = [label for label in dense(results) if label in times]
    if plain:
        gain = (times[plain].min(axis=1) / times.min(axis=1)).groupby(level="bandwidth").median()
        text += (
            f" To send everything in every round costs most at {said_rate(gain.idxmax())}, "
            f"{gain.max():.3g} times the shortest round in the median cell, and least at "
            f"{said_rate(gain.idxmin())}, {gain.min():.3g} times."
        )
    if ahead:
        text += f" Accuracies are compared after {compared} rounds."
    return text


def apart(results: pd.DataFrame) -> str:
    """In a sentence, on how many networks the first on the way to the target differ between the two
    models that were trained, among methods trained with both; empty without a second one."""
    two = trained_models(results)[:2]
    made = {model: times_to_target(results, model=model) for model in two}
    if len(made) < 2 or not all(made.values()):
        return ""
    one, other = two
    doubtful = {model: holds_not(results, model) for model in made}
    named = {model: classes(results, model) for model in made}
    differ, seen = [], 0
    for place in made[one].keys() & made[other].keys():
        shared = made[one][place].keys() & made[other][place].keys()
        pair = []
        for model, times in made.items():
            there = {k: v for k, v in times[place].items() if k in shared}
            ahead = first(there, doubtful[model])
            # Of several that do the same to the model, the first on the way is named.
            pair.append({named[model][label]: label for label in reversed(ahead)})
        seen += bool(pair[0] and pair[1])
        if pair[0] and pair[1] and not pair[0].keys() & pair[1].keys():
            differ.append((place, *([*reversed(one.values())] for one in pair)))
    if not seen:
        return ""
    names = f"the methods trained with both {model_name(one)} and {model_name(other)}"
    if not differ:
        return (
            f" Among {names}, the first to their targets differ surely on none of {seen} networks."
        )
    place, here, there = min(differ)
    return (
        f" Among {names}, the first to their targets differ on {len(differ)} of {seen} networks: "
        f"with {said_place(*place)}, {_listed(here)} for "
        f"{model_name(one)}, {_listed(there)} for {model_name(other)}."
    )


def classes(results: pd.DataFrame, model: str | None = None) -> dict[str, str]:
    """By method, the first one of its class, which does the same to the model."""
    rows = trainings(results, model).drop_duplicates("method")
    first_of = rows.drop_duplicates("trained_as").set_index("trained_as")["method"]
    return dict(zip(rows["method"], first_of[rows["trained_as"]], strict=True))


def _leaders(counts: pd.Series) -> tuple[list[str], int]:
    """All that have the highest count, and that."""
    return list(counts.index[counts == counts.max()]), int(counts.max())


def _others(count: int) -> str:
    return {0: "no other", 1: "one other"}.get(count, f"{count} others")


def _listed(names: Sequence[str], most: int = 4) -> str:
    more = [f"{len(names) - most} more"] if len(names) > most else []
    *others, last = [*names[:most], *more]
    return f"{', '.join(others)} and {last}" if others else last


def rounded(value: float) -> float:
    """To three digits."""
    return float(f"{value:.3g}")


def said_network(network: str, speeds: str) -> str:
    """A network and the speeds of its workers in words."""
    return f"{network}, {speeds} speeds"


def said_place(network: str, speeds: str, bandwidth: float) -> str:
    """The same with what its links carry."""
    return f"{said_network(network, speeds)}, {said_rate(bandwidth)}"


def model_name(model: str) -> str:
    """A model as documents write it."""
    return MODELS.get(model, model)
