"""LPSP's figures and tables, and their words.

Tables 1 to 4 and every picture are lost in the stored text: what its words say of them is marked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slowlink.reports.charts import (
    Dots,
    Figure,
    Layer,
    Line,
    Lines,
    Look,
    Missing,
    Printed,
    Rows,
    Style,
    Timeline,
    table,
)
from slowlink.workflow.documents.lpsp import experiments, training
from slowlink.workflow.experiment import PLANNING

if not PLANNING or TYPE_CHECKING:
    import pandas as pd

    from slowlink.reports import tables
    from slowlink.reports.evidence import Estimate, number

RIVALS = ["BSP", "ASP", "SSP", "GSSP", "GSSP breaks", "GSSP static", "MLL-SGD", "MLL-SGD barrier"]
READINGS = ["LPSP", "LPSP on arrival", "LPSP by the clock", "LPSP computing on"]
METHODS = [*RIVALS, *READINGS]
STYLE = Style(
    looks={
        "BSP": Look("vermillion", "s"),
        "ASP": Look("sky", "v"),
        "SSP": Look("orange", "D"),
        "GSSP": Look("purple", "P"),
        "GSSP breaks": Look("purple", "d", "dashed"),
        "GSSP static": Look("purple", "X", "dotted"),
        "MLL-SGD": Look("green", "^"),
        "MLL-SGD barrier": Look("green", "<", "dashed"),
        "LPSP": Look("blue", "o"),
        "LPSP on arrival": Look("blue", "*", "dashed"),
        "LPSP by the clock": Look("blue", "h", "dotted"),
        "LPSP computing on": Look("blue", ">", "dashdot"),
        "compute": "sky",
        "wait": "vermillion",
        "push": "orange",
        "pull": "green",
    },
    names={
        "mnist_12": "over all workers",
        "control": "over a meeting's members",
        "control_rate": "over members, at a lower rate",
        "fixed": "fixed speeds",
        "varying": "varying speeds",
        "trace": "recorded speeds",
        "drawn": "drawn, own range",
        "alike": "drawn, one range",
        "waiting": "draws used here",
        "trained": "draws of training",
        "time_s": "simulated time",
        "staleness": "updates missed",
        "share": "share of contributions",
        "test_accuracy": "test accuracy",
    },
    forms={"workers": "{} workers", "worker": "w{}"},
    order={
        "method": METHODS
        + ["p_min=1", "p_min=3", "s=0", "s=0.4", "s=10"]
        + ["p_min=1, on arrival", "p_min=3, on arrival"]
        + ["s=0, on arrival", "s=0.4, on arrival", "s=10, on arrival"]
        + ["mean-normalised", "mean-normalised, cap 6", "limit over all"],
        "reading": READINGS,
        "activity": ["compute", "wait", "push", "pull"],
        "variant": ["fixed", "drawn", "alike", "jitter", "varying", "trace"],
    },
)
SCHEDULES = {
    "BSP": "BSP, three iterations each",
    "drawn": "as the document draws it",
    "LPSP": "Algorithm 1 to the letter",
    "LPSP on arrival": "Algorithm 1, deciding on arrival",
    "LPSP by the clock": "Algorithm 1, deciding by the clock",
    "LPSP computing on": "Algorithm 1, candidates computing on",
}
_TRAINED = (
    "Trained for real, with data and gradients of every worker; time is simulated, with the speeds "
    "of the seed's draw and the network of the recipe. "
)
_RECORDED = (
    "Recorded, at the document's length, every method at the rate of the same few that was most "
    f"accurate in a short search with one seed, by {training.COMMAND}. "
)
_CIFAR10 = _TRAINED + (
    "At desk scale recorded, by python -m slowlink.workflow.recorded lpsp cifar10_recorded. All "
    "methods have one rate, there BSP's best by test loss at the end of seed 1, which is among "
    "those judged; others may have better ones. "
)
_RULE = (
    "A small dot is one seed, a large one their mean with its 95 % interval. Where a run did not "
    "get there, the note at the right says so and no mean is drawn: that of the others would "
    "flatter. "
)
_SPEEDS = "Means over draws of speeds, iterations of 1 to 2.5 times the shortest, evenly. "
# What the document prints of LPSP's speed: claims.
_MNIST_12, _MNIST_16 = "LPSP-F3a-x", "LPSP-F3b-x"
_CIFAR10_12, _CIFAR10_16 = "LPSP-F5a-x", "LPSP-F5b-x"

# The worked example -------------------------------------------------------------------------------

_POINTS = {
    "BSP": ["LPSP-X02"],
    **dict.fromkeys(
        ["drawn", *READINGS],
        ["LPSP-X05/point", "LPSP-X06/point", "LPSP-X07/point"],
    ),
}

example = Figure(
    title="Figure 1: the worked example",
    shows="Four workers with iterations of 1.8, 3.6, 2.5 and 1.5 s; a meeting takes 0.5 s. "
    "Algorithm 1 as printed learns that a meeting is complete only from the next candidate, so its "
    "members wait until that comes. Three other readings: the server foresees the next candidate; "
    "it decides when the mean wait reaches its limit; candidates go on computing, so that only the "
    "forced wait.",
    says="Partial synchronisation meets at 3.6, 5 and 8 s with 1.1 s of waiting, BSP at 10.8 s "
    "with 15 s. Its waits end when the last member arrives, not when it is decided that it is the "
    "last.",
    of=[experiments.example],
    style=replace(STYLE, names=STYLE.names | SCHEDULES, order=STYLE.order | {"method": SCHEDULES}),
    chart=Timeline(
        y="worker",
        colour="activity",
        panels="method",
        columns=1,
        limits=(0, 16),
        lines=[
            Line(Rows("decided"), "decided", style="solid"),
            *(
                Line(
                    Printed(ids={claim: {"method": method} for claim in claims}),
                    "printed points",
                    colour="purple",
                )
                for method, claims in _POINTS.items()
            ),
        ],
    ),
)


@table(
    title="Figure 1 in numbers",
    shows="The last arrives when a meeting's last member has finished; waits are summed over its "
    "members, until then and until it is decided. All: of BSP's first meeting, and of the first "
    "three of the others.",
    says="Meetings at 3.6, 5 and 8 s with waits of 0, 0.5 and 0.6 s; BSP at 10.8 s with 15 s.",
    of=[experiments.example],
)
def example_table(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """When the last arrives, when it is decided, what members wait."""
    single = tables.wide(rows.dropna(subset="meeting"), ["method", "meeting"]).reset_index()
    named = {
        "members": "members",
        "sync_point": "the last arrives, s",
        "decided": "decided, s",
        "sync_wait": "waits for the last, s",
        "delay": "waits until decided, s",
    }
    whole = tables.wide(rows[rows["metric"].isin(["total_wait", "total_delay"])], ["method"])
    whole = whole.reset_index().rename(columns={"total_wait": "sync_wait", "total_delay": "delay"})
    claims = {("BSP", 1): "X02", ("BSP", "all"): "X03", ("drawn", 1): "X05", ("drawn", 2): "X06"}
    claims |= {("drawn", 3): "X07", ("drawn", "all"): "X08"}
    printed = verdicts.set_index("id")["printed"]
    lines = pd.concat([single, whole.assign(meeting="all")])
    lines["printed"] = [
        printed.get(f"LPSP-{claims.get(place)}", "")
        for place in zip(lines["method"], lines["meeting"], strict=True)
    ]
    lines["meeting"] = lines["meeting"].map(lambda one: one if one == "all" else f"{one:g}")
    lines = lines.sort_values("method", key=lambda c: c.map(list(SCHEDULES).index), kind="stable")
    lines["schedule"] = lines["method"].map(SCHEDULES)
    made = lines.rename(columns=named)
    return made[["schedule", "meeting", *named.values(), "printed"]].reset_index(drop=True)


# Who waits for whom -------------------------------------------------------------------------------


def _done(spans: pd.DataFrame) -> str:
    """How many iterations end before the chart does."""
    done = (spans["activity"] == "compute") & (spans["until"] < spans["until"].max())
    return f"{spans['method'].iloc[0]}: {done.sum()} iterations"


gantt = Figure(
    title="Who waits for whom",
    shows="Every method on the same eight workers with one draw of speeds, for the same time: the "
    "fewer bars of waiting, the more iterations, which titles count over all workers.",
    says="LPSP divides workers into sets that synchronise so as to minimise the wait.",
    of=[experiments.gantt],
    style=STYLE,
    chart=Timeline(
        y="worker", colour="activity", panels="method", columns=2, height=1.9, title=_done
    ),
)


@table(
    title="What synchronising costs",
    shows=_SPEEDS + "No model is trained. The wait for the last is the document's measure, a "
    "member and meeting; the wait for the decision adds what Algorithm 1 needs to know that it was "
    "the last. Staleness is how many updates of the server's model a contribution missed; one by a "
    "single worker counts as much as BSP's by all of them. GSSP groups in fours by "
    "iteration time, GSSP breaks by natural breaks of it, as its authors do, GSSP static in fours "
    "by rank. MLL-SGD has its authors' time slots, MLL-SGD barrier waits for all. The last columns "
    "are iterations a second over BSP's with other speeds and networks; trace has the durations of "
    "the recorded runs on Ray. Means of ratios are geometric.",
    says="LPSP minimises the wait and keeps parameters from becoming stale. It grants that a "
    "decision takes additional waiting, more in larger clusters.",
    of=[experiments.waiting],
)
def waiting(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Means over draws at fixed speeds, and ratios to BSP on other speeds and networks."""
    rows = rows[(rows["experiment"] == "waiting") & (rows["status"] == "ok")]
    place = ["workers", "method"]
    ratios = rows[rows["metric"] == "over_bsp"]
    beside = tables.mean(
        ratios.set_index([*place, "variant"])["value"], [*place, "variant"], "ratio"
    )
    beside = beside.unstack("variant", sort=False)
    made = tables.wide(rows[rows["variant"] == "fixed"], place)
    made["over_bsp"] = beside.pop("fixed")
    named = {
        "over_bsp": "iterations/s over BSP's",
        "waiting_share": "waiting, %",
        "sync_wait": "wait for the last, s",
        "delay": "wait for the decision, s",
        "staleness": "staleness",
        "staleness_max": "largest staleness",
        "local_iterations": "local iterations",
        "meeting_size": "members",
        "sync_interval": "s between meetings",
    }
    made = made[list(named)].rename(columns=named)
    made = made.join(beside.add_prefix("over BSP's, ")).reset_index()
    return _sorted(made, ["workers", "method"])


def _sorted(made: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Lines with methods in the page's order."""
    rank = {method: place for place, method in enumerate(STYLE.order["method"])}
    made = made.sort_values(by, key=lambda c: c.map(rank) if c.name == "method" else c)
    return made.reset_index(drop=True)


def _others(methods: list[str]) -> list[str]:
    return [method for method in methods if method != "BSP"]


def _over_bsp(
    y: str = "method", colour: str = "workers", panels: str = "variant", **rows: Any
) -> Dots:
    """Iterations a second over BSP's, geometric means over draws."""
    return Dots(
        rows=Rows("over_bsp", geometric=True, **rows),
        y=y,
        colour=colour,
        panels=panels,
        label="times BSP's",
        lines=[Line(1, style="solid")],
    )


throughput = Figure(
    title="Iterations a second over BSP's",
    shows=_SPEEDS + "Dots are geometric means with 95 % intervals. After LPSP, by Algorithm 1 to "
    "the letter, other forms of the formulas that are lost. This counts iterations, not what they "
    "are worth.",
    says="LPSP minimises the wait and converges faster than the others.",
    of=[experiments.waiting],
    style=STYLE,
    chart=_over_bsp(
        where={"variant": ["fixed", "jitter", "varying", "trace"], "method": _others},
        experiment="waiting",
    ),
)

readings = Figure(
    title="How LPSP can be read",
    shows="Iterations a second over BSP's, without communication. The document leaves open when "
    "the server decides, what candidates do meanwhile, and how speeds behave: each worker's "
    "constant; every iteration drawn anew, from the shortest to the worker's own or alike for all; "
    "the durations of the recorded runs on Ray. Dots are geometric means over draws with 95 % "
    "intervals. ASP never waits, so that there is no more to gain.",
    says="The server waits for the next worker that does not fit, an additional wait (§4.2.1); the "
    "worked example meets when the last of a set arrives; a worker is forced after many iterations "
    "without a synchronisation (§2.2).",
    of=[experiments.by_reading],
    style=STYLE,
    chart=_over_bsp(where={"method": ["ASP", "SSP", *READINGS]}),
)

PRINTED = "p_min=2, s=0.2"
"""LPSP's options as printed."""


def _options(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of LPSP with and without options changed, on the workers on which they are."""
    read = rows.dropna(subset="option")
    sizes = read.loc[read["option"] != "", "workers"]
    read = read[read["workers"].isin(sizes)]
    return read.assign(option=read["option"].replace("", PRINTED))


OPTIONS = ["p_min=1", PRINTED, "p_min=3", "s=0", "s=0.4", "s=10"]

options = Figure(
    title="Figures 6 and 7 in iterations a second",
    shows="LPSP with other values of p_min and s, in each reading and with each model of speed, 12 "
    "workers, without communication: geometric means over draws with 95 % intervals. The document "
    "compares times to 60 %, which also depend on what an iteration is worth.",
    says="p_min = 2 is fastest, then 1, then 3; s of 0.2 and 0 are, then 0.4, then 10.",
    of=[experiments.by_reading],
    style=replace(STYLE, order=STYLE.order | {"option": OPTIONS}),
    chart=_over_bsp("option", "variant", "reading", prepare=_options),
)

_TEXT = {
    "LPSP": (
        "lines c) to h) of Algorithm 1; §4.2.1 has a wait for the next worker that does not fit",
        "the points and waits of §1; Figure 7",
    ),
    "LPSP on arrival": (
        "§1 b): the server determines members and point; Algorithm 1 is given all t' and H",
        "line h) of Algorithm 1 removes one who has come; §4.2.1's wait",
    ),
    "LPSP by the clock": (
        "§3.2: Ds is the largest mean wait that is tolerated",
        "§3.1: the point is the last one's arrival; §4.2.1's wait",
    ),
    "LPSP computing on": (
        "§2.2: many iterations without a synchronisation force a worker; definition 1: progress "
        "while waiting",
        "the waits of §1 and of (4); only line e) says to go on",
    ),
}
"""What of the text speaks for a reading, and what against it."""
_POINTS_PRINTED = [3.6, 5.0, 8.0]


@table(
    title="Which reading agrees with what",
    shows="The text, the worked example and training. Points at which the first three meetings are "
    "decided, with how many are as drawn in the document. Trained: BSP's time to the target over "
    "LPSP's, a geometric mean over seeds with its 95 % interval; above 1, LPSP is faster. At "
    "constant speeds; the sizes are printed as 1.17 and 1.26 (MNIST, 12 and 16 workers) and 0.87 "
    "(CIFAR-10, 12) over the slowest method, counted as 1 more.",
    says="Meetings at 3.6, 5 and 8 s.",
    of=[experiments.example, training.mnist, training.cifar10],
)
def readings_text(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """What the text says, the worked example, and times trained over BSP's, by reading."""
    single = rows[(rows["experiment"] == "example") & (rows["metric"] == "decided")]
    times = rows[rows["metric"] == "time_to_target"]
    lines = []
    for reading in READINGS:
        points = single[single["method"] == reading].sort_values("meeting")["value"]
        agree = sum(abs(a - b) < 0.05 for a, b in zip(points, _POINTS_PRINTED, strict=True))
        line = {
            "reading": SCHEDULES[reading],
            "for it": _TEXT[reading][0],
            "against it": _TEXT[reading][1],
            "example decides at, s": ", ".join(map(number, points)),
            "as drawn": f"{agree} of {len(points)}",
        }
        places = times[["experiment", "workers"]].drop_duplicates().sort_values("workers")
        for name, workers in sorted(places.itertuples(index=False, name=None)):
            here = times[(times["experiment"] == name) & (times["workers"] == workers)]
            line[f"{name}, {workers:g} workers, trained"] = _faster(here, reading)
        lines.append(line)
    return pd.DataFrame(lines)


def _faster(times: pd.DataFrame, method: str) -> str:
    """BSP's time over a method's, seed by seed."""
    ours, bsp = (
        times[times["method"] == one].drop_duplicates("seed").set_index("seed")
        for one in (method, "BSP")
    )
    if ours.empty:
        return "not trained"
    if (ours["status"] == "failed").all():
        return "failed"
    gone = (ours["status"] != "ok").sum() + (bsp["status"] != "ok").sum()
    if gone:
        return f"{gone} of {len(ours) + len(bsp)} runs never arrived"
    return str(Estimate.of((bsp["value"] / ours["value"]).dropna(), "ratio"))


@table(
    title="Which reading agrees with Figures 6 and 7",
    shows="Iterations a second over BSP's by reading and model of speed, geometric means over "
    "draws, on every size; the largest of a draw, of all sizes, beside 1.75, the least that is "
    "printed of LPSP's speed as one more; and the values of p_min and s, the most iterations "
    "first, on 12 workers.",
    says="p_min 2, 1, 3; s of 0.2 and 0, then 0.4, then 10.",
    of=[experiments.by_reading],
)
def readings_speeds(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Iterations a second, and the orders of Figures 6 and 7, by reading and model of speed."""
    ratios = rows[(rows["metric"] == "over_bsp") & rows["method"].isin(READINGS)]
    changed = _options(rows[rows["metric"] == "over_bsp"])
    lines = []
    for reading in READINGS:
        for speeds in STYLE.order["variant"]:
            mine = ratios[(ratios["method"] == reading) & (ratios["variant"] == speeds)]
            if mine.empty:
                continue
            line = {"reading": SCHEDULES[reading], "speeds": STYLE.names.get(speeds, speeds)}
            for workers, some in mine.groupby("workers"):
                value = Estimate.of(some.set_index("seed")["value"], "ratio").mean
                line[f"{workers:g} workers"] = value
            line["largest of a draw"] = mine["value"].max()
            here = changed[(changed["reading"] == reading) & (changed["variant"] == speeds)]
            means = tables.mean(here.set_index("option")["value"], ["option"], "ratio")
            line |= _orders(means)
            lines.append(line)
    return pd.DataFrame(lines)


def _orders(means: pd.Series) -> dict[str, str]:
    """The values of p_min and s, the most iterations first, and whether they are in the order of
    Figures 6 and 7; s of 0.2 and 0 share the first place there."""
    p_min = {"1": means["p_min=1"], "2": means[PRINTED], "3": means["p_min=3"]}
    s = {"0": means["s=0"], "0.2": means[PRINTED], "0.4": means["s=0.4"], "10": means["s=10"]}
    six, seven = (sorted(one, key=one.get, reverse=True) for one in (p_min, s))
    right = six == ["2", "1", "3"], set(seven[:2]) == {"0", "0.2"} and seven[2:] == ["0.4", "10"]
    return {
        "p_min": ", ".join(six),
        "Figure 6": "as printed" if right[0] else "otherwise",
        "s": ", ".join(seven),
        "Figure 7": "as printed" if right[1] else "otherwise",
    }


staleness = Figure(
    title="How stale contributions are",
    shows="Updates of the server's model between a worker's pull and the moment its contribution "
    "is applied, over all contributions of all draws, with fixed speeds. An update by one worker "
    "counts as much as one by all. MLL-SGD's meetings inside groups do not touch the server's "
    "model.",
    says="SSP and GSSP are more stale than LPSP, MLL-SGD and BSP, which is why they oscillate.",
    of=[experiments.waiting],
    style=STYLE,
    chart=Lines(
        rows=Rows("share", {"method": METHODS}, experiment="staleness"),
        x="staleness",
        colour="workers",
        panels="method",
        columns=4,
        height=1.9,
        label="contributions",
    ),
)

bound = Figure(
    title="What removing all waiting can give",
    shows="Iterations a second without any waiting or communication over BSP's, max(t) times "
    "mean(1/t), over draws of speeds. Small dots are the draws used here and those of training, "
    "large ones their means. Dashed: one more than the printed speed-ups, for 0.87 and 0.75 times "
    "can only be faster if they are time saved, over LPSP's own. They are over the slowest method, "
    "by the document's orders BSP for 2.17 and GSSP for 2.26 and 1.87. To be that much faster than "
    "the draw allows, an iteration must be worth more than one of BSP's.",
    says="LPSP is up to 1.17 and 1.26 times faster on MNIST, 0.87 and 0.75 on CIFAR-10.",
    of=[experiments.bound],
    style=STYLE,
    chart=Dots(
        rows=Rows("removable", {"draws": ["waiting", "trained"]}),
        y="workers",
        colour="draws",
        seeds=True,
        height=3.2,
        label="iterations a second over BSP's",
        also=[
            Layer(Rows("removable", {"quantile": [0.05, 0.95]}), "span", "5 to 95 % of draws"),
            Layer(Rows("removable", {"quantile": 0.5}), "|", "median"),
            Layer(Rows("removable", {"quantile": 0.999}), "d", "99.9 % of draws are below"),
            Layer(Rows("removable", {"quantile": 1.0}), "x", "the highest drawn"),
            Layer(Rows("removable_supremum"), "s", "no draw exceeds"),
        ],
        lines=[
            Line(Rows("removable_limit"), "many workers", style="dotted"),
            Line(_CIFAR10_16, "1 + printed speed-up", "{}\nCIFAR\n16"),
            Line(_CIFAR10_12, text="{}\nCIFAR\n12"),
            Line(_MNIST_12, text="{}\nMNIST\n12"),
            Line(_MNIST_16, text="{}\nMNIST\n16"),
        ],
    ),
)


@table(
    title="What removing all waiting can give, in numbers",
    shows="Over BSP and without communication: the draws used here and those of training, "
    "quantiles over many draws, the highest seen, and what no draw can exceed: one straggler among "
    "workers as fast as can be. Last, the share of draws that reach one more than each printed "
    "speed-up.",
    of=[experiments.bound],
)
def bound_table(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Draws, quantiles, and how many reach the printed speed-ups, by size."""
    removable = rows[rows["metric"] == "removable"]
    drawn = removable.groupby(["workers", "draws"])["value"].agg(["min", "max"]).unstack()
    quantiles = removable.pivot_table("value", "workers", "quantile")
    supremum = rows[rows["metric"] == "removable_supremum"].set_index("workers")["value"]
    shares = rows[rows["metric"] == "share"].pivot_table("value", "workers", "ratio")
    made = {
        f"{STYLE.names[draws]}, {name}": drawn[end, draws]
        for draws in ("waiting", "trained")
        for name, end in (("least", "min"), ("largest", "max"))
    }
    made |= {"highest" if one == 1 else f"{100 * one:g} %": quantiles[one] for one in quantiles}
    made |= {"no draw exceeds": supremum}
    made |= {f"% of draws at least {ratio:g}": shares[ratio] for ratio in shares}
    return pd.DataFrame(made).rename_axis("workers").reset_index()


# Training -----------------------------------------------------------------------------------------


def _arrivals(experiment: str, printed: dict[str, int]) -> Dots:
    """Time to the target, a panel a size, and where the slowest should be by the claims
    ``printed`` (claim -> workers)."""
    return Dots(
        rows=Rows("time_to_target", {"method": METHODS}, experiment),
        y="method",
        colour="method",
        panels="workers",
        seeds=True,
        limits=(0, None),
        label="time to the target",
        lines=[
            Line(
                Printed(ids={claim: {"workers": size} for claim, size in printed.items()}),
                name="LPSP's time × (1 + printed)",
                times=Rows("time_to_target", {"method": "LPSP"}, experiment),
            )
        ],
    )


_ARRIVED = [
    ("time_to_target", "time to the target", (0, None)),
    ("final_accuracy", "accuracy at the end", (None, None)),
    ("oscillation", "oscillation", (None, None)),
]
"""What runs are compared by: metric, how it is written, limits of its axis."""


def _arrived(y: str, colour: str, most: int = 2, **rows: Any) -> list[Dots]:
    """A chart for each of the first of these metrics, with every seed."""
    return [
        Dots(rows=Rows(metric, **rows), y=y, colour=colour, seeds=True, limits=limits, label=label)
        for metric, label, limits in _ARRIVED[:most]
    ]


figure3 = Figure(
    title="Figure 3: time to learn MNIST",
    shows=_TRAINED
    + _RECORDED
    + _RULE
    + "The vertical lines say where the slowest method should be by the "
    "printed speed-up, counted as time saved over LPSP's. What must reach the target is the mean "
    "of the last evaluations, one an epoch; Table 3 says how many runs had it in the fewest that "
    "there can be: what their times differ by is how long an epoch takes.",
    says="On 12 workers LPSP and SSP are fastest, then MLL-SGD, GSSP and BSP; up to 1.17 times. On "
    "16, LPSP is slightly slower than SSP, before MLL-SGD, BSP and GSSP; up to 1.26 times.",
    of=[training.mnist],
    style=STYLE,
    chart=_arrivals("mnist", {_MNIST_12: 12, _MNIST_16: 16}),
)


def _curves(experiment: str, where: dict, **options) -> Lines:
    """Accuracy over time; the end of training is what is compared."""
    target = {name: value for name, value in where.items() if name == "workers"}
    line = Line(Rows("target_accuracy", target, experiment), "target", style="dotted")
    return Lines(
        rows=Rows("test_accuracy", where, experiment, prepare=options.pop("prepare", None)),
        x="time_s",
        colour="method",
        after=0.25,
        **dict(lines=[line]) | options,
    )


figure4 = Figure(
    title="Figure 4: training on MNIST",
    shows=_TRAINED
    + _RECORDED
    + "Left, means over seeds; Table 3 has the intervals at the end. Middle, one run of each. "
    "Right, oscillation: the standard deviation of accuracy around its centred mean of five "
    "evaluations, over the second half of a run.",
    says="LPSP, MLL-SGD and BSP are smooth, SSP and GSSP oscillate strongly. ASP is not shown "
    "there.",
    of=[training.mnist],
    style=STYLE,
    chart=[
        # The target lies below what is compared.
        _curves("mnist", {"workers": 12}, title="12 workers, mean", bands=False, lines=[]),
        Lines(
            rows=Rows(
                "test_accuracy",
                {"workers": 12, "seed": min, "time_s": lambda t: [x for x in t if x >= t[-1] / 2]},
                "mnist",
            ),
            x="time_s",
            colour="method",
            title="one run, second half",
            width=1.2,
        ),
        Dots(
            rows=Rows("oscillation", {"workers": 12}, "mnist"),
            y="method",
            colour="method",
            seeds=True,
        ),
    ],
)


def _told(rows: pd.DataFrame) -> str:
    """Mean and interval over seeds; where runs were late or failed, those that were not, and how
    many were."""
    good, gone = rows[rows["status"] == "ok"], rows[rows["status"] != "ok"]
    if gone.empty:
        return str(Estimate.of(good.set_index("seed")["value"]))
    word = "never" if (gone["status"] == "late").all() else "failed"
    values = ", ".join(number(value) for value in sorted(good["value"]))
    return f"{values}; {len(gone)} of {len(rows)} {word}" if values else word


def _accuracies(rows: pd.DataFrame) -> pd.DataFrame:
    """Accuracy by size and method, what LPSP is above it, and what else a run comes to."""
    target = rows.loc[rows["metric"] == "target_accuracy", "value"].iloc[0]
    cell, final = ["workers", "method"], rows[rows["metric"] == "final_accuracy"]
    seeds = final.pivot_table("value", ["workers", "seed"], "method")
    above = seeds.rsub(seeds["LPSP"], axis=0) if "LPSP" in seeds else seeds[:0]
    gaps = {
        place: str(Estimate.of(one.droplevel("workers")))
        for place, one in above.drop(columns="LPSP", errors="ignore").stack().dropna().groupby(cell)
    }
    told = {
        name: rows[rows["metric"] == metric].groupby(cell)[["seed", "value", "status"]].apply(_told)
        for metric, name in (
            ("final_accuracy", "accuracy, %"),
            ("time_to_target", f"to {target:g} %, s"),
            ("oscillation", "oscillation, points"),
            ("rounds", "rounds"),
            ("evaluations_to_target", f"evaluations to {target:g} %"),
        )
    }
    least = rows.loc[rows["metric"] == "least_evaluations", "value"].iloc[0]
    needed = rows[rows["metric"] == "evaluations_to_target"]
    at_least = (needed["value"].eq(least) & needed["status"].eq("ok")).groupby(
        [needed[name] for name in cell]
    )
    told[f"in the least, {least:g}"] = at_least.agg(lambda one: f"{one.sum()} of {len(one)} runs")
    made = pd.DataFrame(told).reset_index()
    gaps = [gaps.get(place, "") for place in zip(made["workers"], made["method"], strict=True)]
    made.insert(3, "LPSP is higher by", gaps)
    return _sorted(made, cell)


@table(
    title="Table 3: accuracy on MNIST",
    shows=_TRAINED
    + _RECORDED
    + "Means with 95 % intervals over seeds; differences are taken seed by seed. "
    "Where runs did not get to the target, the times of those that did are listed. Evaluations to "
    "the target are at least as many as the mean has that must reach it; the last column counts "
    "the runs that needed no more.",
    says="The table is lost. LPSP is highest at all three sizes, at most 99.06 %, then BSP, "
    "MLL-SGD, GSSP and SSP, with a largest gap of 0.54 points.",
    of=[training.mnist],
)
def table3(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """What MNIST is learnt to, by size and method."""
    return _accuracies(rows[rows["experiment"] == "mnist"])


@table(
    title="Learning rates tried on MNIST",
    shows="Accuracy (%) at the end on training images held out of training, on 12 workers with one "
    "seed that nothing else is trained with, by learning rate; the best, by which the method is "
    "then trained on all sizes. Then the seconds of these runs to the target that times are "
    "compared by, on the same images, and the rate that is fastest to it. Where the two rates "
    "differ, the times of Figure 3 are not the shortest that the method may have; no method was "
    "trained by the other. Recorded.",
    says="The rates are lost with Table 2.",
    of=[training.mnist],
)
def rates(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """How every rate ended and when it got to the target, and the best of either, by method."""
    tried = rows[rows["experiment"] == training.RATES]
    good = tried[tried["status"] == "ok"]
    ends, times = (
        good[good["metric"] == metric].pivot_table("value", "method", "lr", sort=False)
        for metric in ("final_accuracy", "time_to_target")
    )
    if ends.empty:
        raise Missing(f"nothing is recorded; {training.COMMAND} does")
    target = tried.loc[tried["metric"] == "target_accuracy", "value"].iloc[0]
    times = times.reindex_like(ends)
    made = ends.rename(columns=lambda lr: f"at {lr:g}")
    made["best"] = ends.idxmax(axis=1)
    shown = times.map(lambda value: "never" if pd.isna(value) else number(value))
    made = made.join(shown.rename(columns=lambda lr: f"to {target:g} % at {lr:g}, s"))
    there = times.dropna(how="all").idxmin(axis=1)
    made["fastest"] = there.reindex(made.index)
    made["differ"] = [
        "yes" if one in there and there[one] != best else "" for one, best in made["best"].items()
    ]
    return _sorted(made.reset_index(), ["method"])


figure5 = Figure(
    title="Figure 5: time to learn CIFAR-10",
    shows=_CIFAR10 + _RULE + "Lines as in Figure 3; counted as a plain ratio, LPSP would be slower "
    "than what it is said to be faster than.",
    says="On 12 workers LPSP is fastest, then MLL-SGD, SSP, BSP and GSSP; up to 0.87 times. On 16, "
    "up to 0.75 times; all others gain by more workers, LPSP loses slightly.",
    of=[training.cifar10],
    style=STYLE,
    chart=_arrivals("cifar10", {_CIFAR10_12: 12, _CIFAR10_16: 16}),
)


@table(
    title="Table 4: accuracy on CIFAR-10",
    shows=_CIFAR10 + "Columns as in Table 3's; below the methods, LPSP with one option changed.",
    says="The table is lost. LPSP is highest, at most 65.25 %, with a largest gap of 5.14 points.",
    of=[training.cifar10],
)
def table4(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """What CIFAR-10 is learnt to, by size and method."""
    return _accuracies(rows)


def _ablated(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the clusters on which LPSP's options were changed."""
    sizes = rows.loc[~rows["method"].isin(METHODS), "workers"]
    return rows[rows["workers"].isin(sizes)]


def _ablation(methods: dict[str, Look], name: str, **words: str) -> Figure:
    """LPSP with other values of one option: curves, times to the target, accuracies."""
    where = {"method": list(methods)}
    return Figure(
        of=[training.cifar10],
        style=replace(
            STYLE,
            looks=STYLE.looks | methods,
            names=STYLE.names | {"LPSP": name},
            order=STYLE.order | where,
        ),
        chart=[
            _curves("cifar10", where, prepare=_ablated, width=1.7),
            *_arrived("method", "method", where=where, prepare=_ablated),
        ],
        **words,
    )


figure6 = _ablation(
    {"p_min=1": Look("green", "^"), "LPSP": Look("blue", "o"), "p_min=3": Look("purple", "P")},
    "p_min=2 (LPSP)",
    title="Figure 6: p_min",
    shows=_CIFAR10 + _RULE,
    says="p_min=2 is fastest and most accurate, then 1, then 3.",
)

figure7 = _ablation(
    {
        "s=0": Look("green", "^"),
        "LPSP": Look("blue", "o"),
        "s=0.4": Look("purple", "P"),
        "s=10": Look("vermillion", "D"),
        "ASP": Look("sky", "v", "dotted"),
        "BSP": Look("vermillion", "s", "dotted"),
        "SSP": Look("orange", "X", "dotted"),
    },
    "s=0.2 (LPSP)",
    title="Figure 7: s",
    shows=_CIFAR10 + _RULE + "Dotted, the methods that s=0 and s=10 are likened to, and SSP.",
    says="s=0.2 and s=0 are fastest, then 0.4 and 10. s=0 is faster than SSP.",
)

options_trained = Figure(
    title="Figures 6 and 7, trained in three readings",
    shows=_CIFAR10 + _RULE + "Algorithm 1 to the letter, decided on arrival, and with candidates "
    "that compute on.",
    says="p_min = 2 is fastest and most accurate, then 1, then 3; s of 0.2 and 0 are fastest, then "
    "0.4 and 10.",
    of=[training.cifar10],
    style=replace(
        STYLE,
        looks=STYLE.looks
        | {"LPSP on arrival": Look("orange", "s"), "LPSP computing on": Look("green", "^")},
        order=STYLE.order | {"option": OPTIONS},
    ),
    chart=_arrived("option", "reading", prepare=_options),
)


def _controls(rows: pd.DataFrame) -> pd.DataFrame:
    """Rivals built otherwise differ from the runs that are controlled in themselves, not in how the
    server averages."""
    return rows.assign(experiment=rows["experiment"].replace("control_rivals", "mnist_12"))


control = Figure(
    title="Whom the server averages over",
    shows="MNIST on 12 workers, recorded with one rate for all methods, on fewer images and to a "
    "lower target than at the document's length. No verdict rests on it. How the server weighs "
    "what a part of the workers sends is not printed. Everywhere else it is their sum over the "
    "number of all workers, so that an iteration weighs the same under every method; here also "
    "their mean over the members of a meeting, with the same learning rate and with a lower one. "
    "GSSP breaks groups by natural breaks in place of fours by time, MLL-SGD barrier waits for all "
    "in place of time slots. " + _RULE,
    of=[training.mnist_12, training.control, training.control_rivals, training.control_rate],
    style=STYLE,
    chart=_arrived("method", "experiment", most=3, prepare=_controls),
)

# Real workers -------------------------------------------------------------------------------------


@table(
    title="Real workers",
    shows="The same policies on processes of their own, which Ray places; they train LeNet-5 on "
    "MNIST and are slowed on purpose. Recorded runs are kept in the repository, measured ones were "
    "made here by make reproduce-ray. Workers are not equally fast in all runs, as they share "
    "processors and pauses are multiples of what an iteration takes, so that iterations a second "
    "do not compare policies; capacity is what the workers of a run would do together if they only "
    "computed, and what was used of it says what waiting and meeting take. Virtual time, given the "
    "recorded durations, repeats so much of the events, at their times, and of the decisions.",
    says="The document's experiments ran on Ray.",
    of=[experiments.ray],
)
def actors(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """The policies on real workers, and how much of each run virtual time repeats."""
    named = {
        "iterations_per_s": "iterations a second",
        "capacity": "capacity, iterations a second",
        "capacity_used": "used of it, %",
        "waiting_share": "time waited, %",
        "staleness": "mean staleness",
        "final_accuracy": "accuracy at the end, %",
        "target_accuracy": "target, %",
        "time_to_target": "seconds to the target",
        "events": "events",
        "replayed": "repeated in virtual time, %",
    }
    found = tables.wide(rows, ["evidence", "method", "workers"])
    found = found[[metric for metric in named if metric in found]]  # records tell of the end alone
    return _sorted(found.rename(columns=named).reset_index(), ["evidence", "method"])


@table(
    title="The workers' gradients in one batch",
    shows="Time for one iteration of all workers on this machine: one by one, one by one with the "
    "images' channels innermost in memory, and together by vectorising over workers (vmap). Gains "
    "are over one by one.",
    of=[experiments.batching],
)
def batching(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """What computing the gradients of several workers in one batch saves on this machine."""
    found = tables.wide(rows, ["model", "workers", "batch"]).sort_index().reset_index()
    times = {"one_by_one": "one by one", "channels_last": "channels last", "vmap": "vmap"}
    made = found[["model", "workers", "batch"]]
    made = made.assign(**{f"{name}, ms": 1e3 * found[how] for how, name in times.items()})
    made["gain of channels last"] = found["one_by_one"] / found["channels_last"]
    return made.assign(**{"gain of vmap": found["gain"]})
