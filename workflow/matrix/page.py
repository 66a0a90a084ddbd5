"""The matrix's figures and tables, and their words. No document prints them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from slowlink.reports.charts import (
    Bars,
    Figure,
    Lines,
    Look,
    Missing,
    Rows,
    Scatter,
    Style,
    Tiles,
    table,
)
from slowlink.workflow.experiment import PLANNING
from slowlink.workflow.matrix.experiments import answers, condensed, effort, robust
from slowlink.workflow.matrix.pictures import (
    BEHIND,
    ON_FRONT,
    UNTRAINED,
    close_up,
    first_close,
    first_rounds,
    first_there,
    parts_of_rounds,
    places,
    points,
    profile_lines,
    scaling_lines,
)

if TYPE_CHECKING:
    from slowlink.reports import html

if not PLANNING or TYPE_CHECKING:
    import pandas as pd

    from slowlink.reports.evidence import Estimate, number
    from slowlink.testbed.results import coordinates
    from slowlink.testbed.units import said_rate
    from slowlink.workflow.matrix import advice
    from slowlink.workflow.matrix.ranking import (
        CELL,
        EVEN,
        ROOMS,
        TIE,
        arrived,
        carried,
        closeups,
        comparable,
        dense,
        duration,
        first,
        guessed,
        guesses,
        headline,
        holds_not,
        info,
        met,
        metric,
        model_name,
        of,
        of_cell,
        ranked,
        ratios,
        regret,
        rounded,
        rounds,
        said_network,
        said_place,
        strongholds,
        trained_models,
        trainings,
    )
    from slowlink.workflow.matrix.ranking import target as target_of
    from slowlink.workflow.matrix.worth import Choice, slower

STYLE = Style(
    looks={
        "compute_time": "sky",
        "compress_time": "orange",
        "exchange_time": "blue",
        "wait_time": "purple",
        ON_FRONT: Look("blue", "o"),
        BEHIND: Look("ink", "."),
    },
    names={
        "compute_time": "compute",
        "compress_time": "compress",
        "exchange_time": "exchange",
        "wait_time": "wait",
        "factor": "times the best of the cell",
        "time": "time of a round",
        "bytes": "bytes of a round",
    },
    units={"time": "s", "bytes": "B"},
    order={"metric": ["compute_time", "compress_time", "exchange_time", "wait_time"]},
)

_FIXED = "3 ms"
_QUALIFIED = (
    "Compared are the methods that brought the model to the target accuracy with every seed, and "
    "held it, for a short round may teach little; where the model was not trained, those that did "
    "so with every model that was. "
)
_TILES = (
    "A cell names the first. Where several tie, the two fastest are named, and the corner has the "
    "second's colour; + marks further ones, – a cell without any. A pale tile with a question "
    "mark: another is first if coding or latency takes twice or half as long, or bandwidth is 20 % "
    "higher or lower, one at a time; it is asked with even speeds. "
)
_FOOTING = (
    "One device profile computes and compresses for all, a V100 as Sketch-Fusion's numbers imply "
    f"it; an iteration costs {_FIXED} besides its samples, an assumption. Codecs that Table 1 does "
    "not print are priced by what they do to memory, which is a guess and marked as one in the "
    "ranking. A codec, the same between sites (with plain values inside) and the same every few "
    "iterations (on what these have changed) travel by whichever exchange carries them fastest in "
    "the cell; all other methods name theirs. Messages are passed on in pieces, by one rule for "
    "all exchanges. Unless a method names its own fusion, LayerFusion says which layers' payloads "
    "travel in one message. Codecs see one layer at a time, in training too; only Sketch-Fusion's "
    "sees a whole group as one vector, as its document has it. The global batch is the same on "
    "every cluster. torch's PowerSGD hook sends plain values for 1,000 rounds first unless told "
    "otherwise; it is trained and priced as if it began at once, and a table of its own has what "
    "its default leaves. LPSP is its algorithm to the letter, where the coming of the next "
    "candidate decides; readings in which the server decides on arrival or by the clock, or "
    "candidates compute on, are on LPSP's own page, where the first and the last are trained. "
)
HOOK, PLAIN_DDP, WARM_UP = "torch DDP + PowerSGD", "torch DDP", 1000
"""torch's hook, what it is in its first rounds, and how many (``start_powerSGD_iter``)."""
_POLICIES = (
    "Policies that look at the clock send whole models, grouped by no fusion, and a round of "
    "theirs is as many iterations as there are workers; of local steps, it is one iteration with "
    "its share of the meeting. All of a policy's workers meet at one server, which nobody shards: "
    "on flat clusters, more servers would be faster. "
)
_NORM = (
    "qsgd rounds to levels of the l2 norm of a bucket, as its theory has it; with the largest "
    "value in the norm's place (norm: max), whose errors are smaller, it is not trained here. "
)
_TRAINED = (
    "Every method was trained with the same data order and initial weights, at the best learning "
    "rate of one grid, tried on images that no run trains on; methods of the same arithmetic "
    "share a run. Accuracies are compared after the same number of rounds, or at the first "
    "evaluation after it; methods that have not reached the target by then train on, up to a "
    "most, and may reach it later (both numbers head the table of all methods). Where all workers"
    " meet, whatever the clock says, the rounds that are needed are the same on any network, but "
    "for codecs that see layers grouped by LayerFusion as one (Sketch-Fusion, RAT + sketch): the "
    "groups are others elsewhere, and rounds are those with the groups of the trained network. "
    "Those of policies that look at the clock are not: they were trained with uneven speeds at "
    "three ratios of communication to computing, and are compared there and in between, where "
    "their rounds are interpolated, a guess; never beyond. Codecs of local steps and between "
    "sites are trained where the recipe says so; of the others, only rounds are known, and they "
    "are not ranked. " + _NORM + "Intervals are 95 % of the mean over seeds. "
)


# Who is first -----------------------------------------------------------------------------------


def _map(prepare: Callable[[pd.DataFrame], pd.DataFrame], height: float, **where: Any) -> Tiles:
    """Who is first, by workers and bandwidth."""
    rows = Rows("first", where, prepare=prepare)
    at = dict(x="workers", y="bandwidth", colour="method", panels="panel")
    return Tiles(rows, **at, columns=2, height=height)


winners_target = Figure(
    title="Who reaches the target accuracy first",
    shows="The rounds that training needs to the target accuracy, times the seconds of a round on "
    "that network. "
    + _TILES
    + "Methods tie whose difference, seed by seed, may be zero, or is below 2 %; with fewer than "
    "three seeds, no difference is sure, and the tile is pale, too. Rounds were "
    "counted with the number of workers that was trained; with fewer or more they are taken to be "
    "the same, which is a guess. Uneven: the slowest worker takes twice as long as the fastest, "
    "others in between. " + _TRAINED,
    of=[condensed, robust],
    style=STYLE,
    chart=_map(first_there, 2.9),
)


@table(
    title="Time to the target accuracy",
    shows="The same in seconds, on as many workers as were trained. Next is the first that is "
    "surely later; ≈ marks rounds that are interpolated. Methods that did not get there with every "
    "seed are counted, and come last in the list of all. Methods that got there and do not surely "
    "hold it, by the test of what training arrives at, are neither first nor next.",
    of=[condensed],
)
def target(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Who reaches the target first on every network, and when the others do."""
    plain = set(dense(rows))
    doubtful = {model: holds_not(rows, model) for model in trained_models(rows)}
    lines = []
    for (model, network, speeds, bandwidth), times in places(rows).items():
        guess = dict.fromkeys(guesses(rows, network, speeds, bandwidth, model), " ≈")
        unsure = [label + guess.get(label, "") for label in doubtful[model]]
        times = {label + guess.get(label, ""): one for label, one in times.items()}
        ahead = first(times, unsure)
        ordered = sorted(times, key=lambda label: times[label].mean)
        later = [name for name in ordered if name not in ahead and not times[name].never]
        later = [name for name in later if name not in unsure]
        whole = min((times[label].mean for label in times if label in plain), default=math.inf)
        least = min((times[label].mean for label in ahead), default=math.nan)
        lines.append(
            {
                "model": model_name(model),
                "network": said_network(network, speeds),
                "bandwidth": said_rate(bandwidth),
                "first": ", ".join(ahead[:4]) + f" and {len(ahead) - 4} more" * (len(ahead) > 4),
                "seconds": _told(times[ahead[0]]) if ahead else "never",
                "next": f"{later[0]}: {_told(times[later[0]])}" if later else "",
                "sending everything takes": _times(whole / least),
                "never got there": sum(one.never > 0 for one in times.values()),
                "may not hold it": ", ".join(name for name in ordered if name in unsure),
                "seconds of all": "; ".join(f"{name}: {_told(times[name])}" for name in ordered),
            }
        )
    return pd.DataFrame(lines)


@table(
    title="torch's PowerSGD hook as it comes",
    shows=f"By default it sends plain values for {WARM_UP:,} rounds, and only then factors of rank "
    "1. Seconds to the target accuracy with even speeds, on as many workers as were trained: of "
    "torch DDP, of the hook if it is told to begin at once, and of its default. A target that "
    f"plain values reach within {WARM_UP:,} rounds is reached as soon by the default; where they "
    "need more, it is not trained here, and cannot be there before those rounds are over.",
    of=[condensed],
)
def warm_up(rows: pd.DataFrame, verdicts: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row a network and model."""
    lines, round_s = [], metric(rows, "round_time")
    needs = {model: arrived(rows, "rounds_to_target", model) for model in trained_models(rows)}
    for (model, network, speeds, bandwidth), times in places(rows).items():
        if speeds != EVEN or not {HOOK, PLAIN_DDP} <= times.keys():
            continue
        workers = trainings(rows, model)["workers"].iloc[0]
        one = round_s.loc[(model, network, speeds, workers, bandwidth), PLAIN_DDP]
        needed = needs[model][PLAIN_DDP].by_seed
        least = duration(needed.clip(upper=WARM_UP) * one)
        lines.append(
            {
                "model": model_name(model),
                "network": network,
                "bandwidth": said_rate(bandwidth),
                PLAIN_DDP: _told(times[PLAIN_DDP]),
                "hook, at once": _told(times[HOOK]),
                "hook, by default": "at least " * bool((needed > WARM_UP).any()) + _told(least),
            }
        )
    if not lines:
        raise Missing(f"{PLAIN_DDP} and {HOOK} are not among the methods that were trained")
    return pd.DataFrame(lines)


@table(
    title="What training arrives at",
    shows="Of every class that was trained, with each model: accuracy, rounds to the target, and "
    "the p of a one-sided t-test over seeds that the accuracy lies above the target in the "
    "evaluations after it was first reached (below 0.05, it is met surely; it takes three "
    "seeds, each with evaluations left). LeNet-5 is trained by every run. ResNet-8, with "
    "BatchNorm on CIFAR-10, is recorded. Rates are chosen by successive halving, the same for "
    "each method, on images that no run trains on. The target of ResNet-8 is a "
    "share, set before any run, of what plain values reach on these images with a seed of "
    "their own. Seeds that are missing are not recorded yet; python -m "
    "slowlink.workflow.recorded matrix residual goes on with them. Classes that were not "
    "trained are priced by round only. " + _NORM,
    of=[condensed],
)
def trained(rows: pd.DataFrame, verdicts: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row a class and a column a model and number."""
    models = trained_models(rows)
    if not models:
        raise Missing(UNTRAINED)
    every = of(rows, "arrived").drop_duplicates(["model", "trained_as"])
    # A class has the label of one of its methods, and may have another with the other model.
    labels = list(every["method"].unique())
    made: dict[str, list] = {"method": labels}
    for model in models:
        name, wanted, chances = model_name(model), target_of(rows, model), met(rows, model)
        accuracy = arrived(rows, "final_accuracy", model)
        needed = arrived(rows, "rounds_to_target", model)
        made[f"{name}: accuracy (%)"] = [_told(accuracy.get(one), "diverged") for one in labels]
        made[f"{name}: rounds to {number(wanted)} %"] = [_told(needed.get(one)) for one in labels]
        made[f"{name}: p of target met"] = [
            f"{chances[one]:.2g}" if math.isfinite(chances.get(one, math.nan)) else ""
            for one in labels
        ]
    return pd.DataFrame(made)


winners = Figure(
    title="Who has the shortest round",
    shows=_QUALIFIED
    + _TILES
    + "Rounds within 2 % tie. What a round teaches still differs; time to the target, above, "
    "counts that too. " + _FOOTING,
    of=[condensed, robust],
    style=STYLE,
    chart=_map(first_close, 2.9),
)

winners_models = Figure(
    title="Who has the shortest round, by model",
    shows="As above with even speeds. " + _QUALIFIED + "No method can run where a round has fewer "
    "samples than there are workers.",
    of=[condensed, robust],
    style=STYLE,
    chart=_map(first_rounds, 2.4, speeds="even"),
)


@table(
    title="All methods",
    shows="In the order of the score: the share of all cells in which a method's round takes at "
    "most so many times the shortest, in the mean over 1 to 10 times (evenly on a log scale); "
    "cells in which it cannot run are lost. Over the cells in which it runs: how often its round "
    "is the shortest, alone or within 2 % of the best, and how many times the best it takes, in "
    "the geometric mean and at worst. "
    + _QUALIFIED
    + "The others come last, held against the best of those. Bytes are payload, exactly as the "
    "formats have it: what a worker sends and receives, and what leaves all sites together. "
    "Accuracies are compared after the same number of rounds for all; what has not reached "
    "the target by then trains on. " + _FOOTING,
    of=[condensed],
)
def ranking(rows: pd.DataFrame, verdicts: pd.DataFrame | None = None) -> pd.DataFrame:
    """All methods, from the best."""
    found, over = ranked(rows), carried(rows)
    compared, most = rounds(rows)
    made = {
        "method": found["method"],
        "group": found["group"],
        "carried fastest by": [over.get(label, "") for label in found["method"]],
        "cells": found["cells"],
        "score (%)": [round(100 * one, 1) for one in found["score"]],
        "fastest alone": found["wins alone"],
        "tied for fastest": found["ties for first"],
        "times the best (mean)": found["times the best"].map(rounded),
        "times the best (worst)": found["worst"].map(rounded),
        f"accuracy after {compared} rounds (%)": [_told(a, "diverged") for a in found["accuracy"]],
        f"rounds to target (at most {most})": [_told(one) for one in found["rounds"]],
    }
    if guesses := guessed(rows):
        made["price of coding"] = ["guessed" if m in guesses else "" for m in found["method"]]
    for name, what, network in (
        ("bytes_per_round", "bytes a round and worker", "flat"),
        ("wan_bytes", "bytes a round between sites", "sites"),
    ):
        place, sent = _sent(rows, name, network)
        made[f"{what} ({place})"] = [
            f"{sent[label]:.0f}" if label in sent else "" for label in found["method"]
        ]
    return pd.DataFrame(made)


def _sent(rows: pd.DataFrame, name: str, network: str) -> tuple[str, dict[str, float]]:
    """Bytes by method in one cell, and that in words."""
    model, workers = close_up(rows)
    found = of(rows, "closeup", name)
    here = dict(model=model, network=network, speeds=EVEN, workers=workers)
    found = found[of_cell(found, here)]
    at = f", {said_rate(found['bandwidth'].iloc[0])}" if len(found) else ""
    place = f"{model_name(model)}, {workers} workers, {network}{at}"
    return place, found.set_index("method")["value"].to_dict()


def _times(longer: float) -> str:
    if not math.isfinite(longer):
        return ""
    return "as long" if longer == 1 else f"{number(rounded(longer))} times as long"


def _told(one: Estimate | None, lost: str = "never") -> str:
    """An estimate in words; ``lost`` is what seeds did that have no value."""
    if not isinstance(one, Estimate):
        return "not trained"
    return f"{one.never} of {one.seeds} seeds {lost}" if one.never else str(one)


def standing(rows: pd.DataFrame) -> pd.DataFrame:
    """How each method came out, for its card: its label, its four answers, and where it wins."""
    found = ranking.make(rows, None).rename(columns={"method": "label"})
    there = strongholds(rows)
    answers = info(rows).loc[found["label"], ROOMS].reset_index(drop=True)
    most = pd.Series([there.get(label, "nowhere") for label in found["label"]])
    return pd.concat([found, answers, most.rename("most often fastest")], axis=1)


def beside(rows: pd.DataFrame) -> html.Matrix:
    """What the report says of the matrix besides its figures and tables."""
    from slowlink.reports import html  # slow to import, and advice does without

    told = coordinates(rows)
    return html.Matrix(headline(told), standing(told), advice.page(told))


# What it is worth ---------------------------------------------------------------------------------


_ONE_AT_A_TIME = (
    "with one of its answers changed at a time and the other three as they are: the next best "
    "answer, and the plain one (a ring, plain values, a message a layer, a meeting in every round)"
)


@table(
    title="What each answer is worth on the way to the target",
    shows=f"The method that reaches the target first, {_ONE_AT_A_TIME}. Only answers count that "
    "were trained so, and reach the target and hold it.",
    of=[answers],
)
def worth_to_target(rows: pd.DataFrame, verdicts: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row a cell of a trained model and question."""
    return _worth(of(rows, "worth", "time_to_target"), "first")


@table(
    title="What each answer is worth",
    shows="The method with the shortest round of those that reach the target, "
    f"{_ONE_AT_A_TIME}. A round may be shorter (-) with an answer that was not trained so, or does "
    "not reach the target.",
    of=[answers],
)
def worth(rows: pd.DataFrame, verdicts: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row a cell and question: what was answered, and by how much other answers are slower."""
    return _worth(of(rows, "worth", "round_time"), "fastest")


def _worth(found: pd.DataFrame, leader: str) -> pd.DataFrame:
    made = []
    if found.empty:
        raise Missing("no answers of the matrix were changed")
    for (*key, question), some in found.groupby([*CELL, "question"], sort=False):
        times = some.set_index("answer")["value"]
        chosen = some["chosen"].iloc[0]
        choice = Choice(question, chosen, times[chosen], times.drop(chosen).to_dict())
        made.append(
            {
                "cell": _cell(*key),
                leader: some["method"].iloc[0],
                "question": question,
                "answer": chosen,
                "next best": slower(choice.next),
                "plain": "the same" if choice.plain == choice.next else slower(choice.plain),
            }
        )
    return pd.DataFrame(made)


@table(
    title="Does the first stay first?",
    shows="All cells with even speeds: in how many the one with the shortest round, and of trained "
    "models the first at the target, stays so (or ties) whichever price is off, and in how many "
    "another is first if one is: the most frequent one, and how many times as long the former "
    "first then takes, at most. " + _QUALIFIED,
    of=[robust],
)
def steadiness(rows: pd.DataFrame, verdicts: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row a model, network and question; a column a price that is off."""
    found = of(rows, "robust")
    if found.empty:
        raise Missing("no price of the matrix was changed")
    moved = found["first"] != found["method"]
    made = []
    for (model, network, by), some in found.groupby(["model", "network", "by"], sort=False):
        cells, shaken = some.groupby(CELL), moved[some.index]
        line: dict[str, object] = {
            "model": model_name(model),
            "network": network,
            "first in": "time to the target" if by == "target" else "round time",
            "cells": cells.ngroups,
            "stays": cells.ngroups - int(shaken.groupby([some[name] for name in CELL]).any().sum()),
        }
        for change, of_it in some.groupby("change", sort=False):
            other = of_it[shaken[of_it.index]]
            line[change] = ""
            if len(other):
                most = other["first"].value_counts().index[0]
                line[change] = f"{len(other)}: {most} ({other['value'].max():.3g} times)"
        made.append(line)
    return pd.DataFrame(made)


@table(
    title="What is no row of the matrix",
    shows="Policies with every codec, by one server and by sites, and every pair of codecs inside "
    "of sites and between them: the fastest of them in each cell, and its round in times of that "
    "of the fastest row that reaches the target. None of these was trained; which of them a cell "
    "can run at all is a rule that training them in small confirms. ",
    of=[answers],
)
def beyond(rows: pd.DataFrame, verdicts: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row a cell and group."""
    found = of(rows, "beyond")
    if found.empty:
        raise Missing("nothing was timed besides the rows of the matrix")
    return pd.DataFrame(
        {
            "cell": _cell(*(getattr(one, name) for name in CELL)),
            "group": {"policy": "policies with codecs", "sites": "pairs of codecs"}[one.group],
            "systems": int(one.systems),
            "the fastest of them": one.best,
            "the fastest row": one.method,
            "times its round": rounded(one.value),
        }
        for one in found.itertuples()
    )


@table(
    title="What always picking one thing costs",
    shows="Regret: the round of a document's system, or of what people run today, in times of the "
    "shortest of the cell, in the geometric mean over all cells in which it can run, and at worst. "
    + _QUALIFIED,
    of=[condensed],
)
def regrets(rows: pd.DataFrame, verdicts: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row a named system, from the least regret."""
    groups, needed = info(rows)["group"], arrived(rows, "rounds_to_target")
    doubtful = holds_not(rows)
    found = regret(rows, list(groups.index[groups.isin(["system", "baseline"])]))
    return pd.DataFrame(
        {
            "always": found["method"],
            "times the best (mean)": found["mean"].map(rounded),
            "at worst": found["worst"].map(rounded),
            "where": [_cell(*key) for key in found["where"]],
            "cells that cannot run it": found["cannot"],
            "reaches the target": [
                "may not hold it" if label in doubtful else _reaches(needed.get(label))
                for label in found["method"]
            ],
        }
    )


def _reaches(one: Estimate | None) -> str:
    if one is None:
        return "not trained"
    return f"not with {one.never} of {one.seeds} seeds" if one.never else "yes"


@table(
    title="What never has the shortest round",
    shows="Methods that are in no cell within 2 % of the fastest, by how near they come. "
    + _QUALIFIED,
    of=[condensed],
)
def never(rows: pd.DataFrame, verdicts: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row a method that never wins."""
    over = ratios(comparable(rows)).dropna(axis="columns", how="all")
    nearest = over.min()[over.min() > 1 + TIE].sort_values(kind="stable")
    return pd.DataFrame(
        {
            "method": nearest.index,
            "nearest to the best (times)": nearest.map(rounded).to_list(),
            "where": [_cell(*over[label].idxmin()) for label in nearest.index],
        }
    )


@table(
    title="The fastest, and what carries it",
    shows="The shortest round in the cells that are shown from near, by which exchange, and the "
    "runners-up: those within 2 %, and the next. " + _QUALIFIED,
    of=[condensed],
)
def fastest(rows: pd.DataFrame, verdicts: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row a cell shown from near."""
    times, made = comparable(rows), []
    over = of(rows, "round_times").set_index([*CELL, "method"])["exchange"]
    near = closeups(of(rows, "round_times"), of(rows, "arrived"))
    places = {tuple(one.values()) for one in near}
    for key, row in times.iterrows():
        ahead = row.dropna().sort_values(kind="stable")
        if (*key[:3], key[4]) not in places or ahead.empty:
            continue
        tied = list(ahead.index[(ahead <= (1 + TIE) * ahead.iloc[0])])
        rest = ahead.index.difference(tied, sort=False)
        label, longer = ahead.index[0], ahead / ahead.iloc[0]
        made.append(
            {
                "cell": _cell(*key),
                "fastest": label,
                "carried by": over.loc[(*key, label)],
                "round (s)": rounded(ahead.iloc[0]),
                "within 2 %": ", ".join(tied[1:]),
                "next": "; ".join(f"{name}: {longer[name]:.3g} times" for name in rest[:1]),
            }
        )
    return pd.DataFrame(made)


def _cell(model: str, network: str, speeds: str, workers: int, bandwidth: float) -> str:
    """A cell in words."""
    place = said_place(network, speeds, bandwidth)
    return f"{model_name(model)}, {workers} workers, {place}"


# All cells, and one of them -----------------------------------------------------------------------


profiles = Figure(
    title="Performance profiles",
    shows="The share of all cells in which a method's round takes at most so many times the "
    "shortest (Dolan and Moré, 2002). Where a line ends below one, the method cannot run in "
    "the rest of the cells: HiPS needs sites. " + _QUALIFIED,
    of=[condensed],
    style=STYLE,
    chart=Lines(
        Rows("share of cells", prepare=profile_lines),
        x="factor",
        colour="method",
        panels="panel",
        columns=2,
        log="x",
        limits=(0, 1),
        steps=True,
        direct=True,
        height=2.75,
    ),
)


pareto = Figure(
    title="Time, accuracy and bytes",
    shows="Each point is a method; bars are 95 % intervals of its accuracy. On the front are means "
    "that no other method equals in all three and betters in one. Bytes between sites are those "
    "that leave all of them together. " + _TRAINED,
    of=[condensed],
    style=STYLE,
    chart=[
        [
            Scatter(
                Rows("final_accuracy", prepare=points),
                x=x,
                y="method",
                colour="front",
                panels=panels,
                columns=2,
                named={"front": ON_FRONT},
                log="x",
                limits=(0, 103),
                share="y",
            )
        ]
        for x, panels in (("time", "panel"), ("bytes", "sent"))
    ],
)


parts = Figure(
    title="What a round is made of",
    shows="All systems, baselines and combinations and the three fastest of every other group. "
    "Compressing and exchanging count where they are not hidden behind computing. "
    + _POLICIES
    + "An arrow marks bars that are cut off.",
    of=[condensed],
    style=STYLE,
    chart=Bars(
        Rows(
            ["compute_time", "compress_time", "exchange_time", "wait_time"], prepare=parts_of_rounds
        ),
        y="method",
        colour="metric",
        panels="panel",
        columns=2,
        order="value",
        share="",
        stacked=True,
        written=True,
        cut=4,
        label="time of a round",
    ),
)


scaling = Figure(
    title="Scaling efficiency",
    shows="Speed over that of one worker with the whole batch, times the number of workers. The "
    f"batch is shared, so that workers compute less, the more they are; the {_FIXED} that an "
    "iteration costs besides its samples do not shrink with it, so that efficiency falls with "
    "more workers even where nobody communicates or waits.",
    of=[condensed],
    style=STYLE,
    chart=Lines(
        Rows("scaling_efficiency", prepare=scaling_lines),
        x="workers",
        colour="method",
        panels="panel",
        columns=2,
        log="xy",
        direct=True,
    ),
)


@table(
    title="How many systems, trainings and cells",
    shows="A method is a row of the matrix; a system is one with one of the exchanges that may "
    "carry it; methods of one class do the same to the model, and share a training. A cell is a "
    "method with a model on a cluster. Processor time is that of timing all methods on one "
    "cluster, without the start of Python: at first, and when that is asked again.",
    of=[condensed, effort],
)
def extent(rows: pd.DataFrame, verdicts: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row a number."""
    told = of(rows, "effort")
    counts, spent = told.set_index("metric")["value"], told.set_index("cache")
    made = {"methods": len(info(rows))}
    made |= {
        words: int(counts[name])
        for name, words in (
            ("systems", "systems"),
            ("systems_beyond", "systems besides, timed only beside the fastest and by advice"),
            ("classes", "classes"),
        )
    }
    for model in trained_models(rows):
        name, needed = model_name(model), trainings(rows, model, "rounds_to_target")
        runs = needed.drop_duplicates(["trained_as", "seed", "bandwidth"])
        made[f"classes trained with {name}"] = runs["trained_as"].nunique()
        made[f"trainings of {name}"] = len(runs)
        tried = of(rows, "tried")
        made[f"trainings of {name} that tried a rate"] = int((tried["model"] == model).sum())
    made["cells"] = int(info(rows).query("metric == 'cells'")["value"].sum())
    made["cells that cannot run"] = int(of(rows, "cannot_run")["value"].sum())
    for cache, when in (("cold", "at first"), ("warm", "asked again")):
        one = spent.loc[cache]
        place = f"{model_name(one['model'])}, {one['workers']:.0f} workers between sites"
        made[f"processor seconds, {place}, {when}"] = rounded(one["value"])
    return pd.DataFrame({"what": list(made), "how many": map(number, made.values())})


# What is behind it --------------------------------------------------------------------------------


@table(
    title="Learning rates",
    shows="Accuracy after the tuning rounds, one seed, with the rates that all methods of a model "
    "were given, on images that no run trains on; the best one trains with every seed. The better "
    "half of the rates is tried for longer, and that counts here. It is the last evaluation that "
    "decides: where rates lie within a point of each other, chance does.",
    of=[condensed],
)
def learning_rates(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Final accuracies of the grid of learning rates, and which was chosen."""
    tried = of(rows, "tried")
    if tried.empty:
        raise Missing("no learning rate of the matrix was tried")
    told = tried["value"].map("{:.2f}".format).where(tried["status"] == "ok", "diverged")
    tried = tried.assign(told=told)
    if "rung" in tried:  # of a rate that went on, the last rung counts
        tried = tried.sort_values("rung", kind="stable").drop_duplicates(
            ["model", "method", "lr"], keep="last"
        ).sort_index()  # fmt: skip
    found = tried.pivot(index=["model", "method"], columns="lr", values="told")
    chosen = of(rows, "arrived", "chosen_lr").drop_duplicates(["model", "method"])  # at any ratio
    chosen = chosen.set_index(["model", "method"])["value"]
    shown = found.loc[list(dict.fromkeys(zip(tried["model"], tried["method"], strict=True)))]
    made = {
        "model": [model_name(model) for model, _ in shown.index],
        "method": [label for _, label in shown.index],
    }
    made |= {f"lr {lr:g}: accuracy (%)": list(shown[lr].fillna("–")) for lr in shown}
    made["chosen"] = [f"{chosen[key]:g}" if key in chosen.index else "" for key in shown.index]
    return pd.DataFrame(made)


@table(
    title="Cells that cannot run",
    shows="Counted by reason, over models, bandwidths, cluster sizes and speeds. A codec cannot "
    "run where none of its exchanges can: RAT and the ring only sum, so that they are not among "
    "those of a codec whose payloads are gathered, such as EFSignSGD.",
    of=[condensed],
)
def cannot_run(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Cells that cannot run, counted by reason."""
    made = [
        {
            "reason": reason,
            "methods": ", ".join(dict.fromkeys(some["method"])),
            "networks": ", ".join(dict.fromkeys(some["network"])),
            "cells": int(some["value"].sum()),
        }
        for reason, some in of(rows, "cannot_run").groupby("reason", sort=False)
    ]
    found = pd.DataFrame(made, columns=["reason", "methods", "networks", "cells"])
    return found.sort_values("cells", ascending=False, kind="stable", ignore_index=True)
