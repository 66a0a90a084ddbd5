"""GeoMX's figures and tables, and their words.

Colour says what is sent, dashes say over which bandwidth.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slowlink.reports.charts import (
    Band,
    Dots,
    Figure,
    Layer,
    Line,
    Lines,
    Look,
    Printed,
    Rows,
    Style,
    table,
)
from slowlink.workflow.documents.geomx import experiments, links
from slowlink.workflow.experiment import PLANNING

if not PLANNING or TYPE_CHECKING:
    import pandas as pd

    from slowlink.reports import tables

MAIN = {"variant": "testbed", "evidence": "simulated"}
"""The way of modelling communication whose numbers are ours; results hold others beside it."""
TIME = experiments.TIME
CELL = ["table", "model", "system", "bandwidth"]
STYLE = Style(
    looks={
        "MXNET": "vermillion",
        "GeoMX": "blue",
        "GeoMX FP16": "green",
        "GeoMX BiSparse": "purple",
        "GeoMX BiSparse+FP16": "orange",
        "GeoMX, momentum": Look("sky", style="dashed"),
        "GeoMX BiSparse, no momentum": Look("purple", style="dashed"),
        "bsp": "blue",
        "mixed": "orange",
        1e9: Look(style="solid"),
        155e6: Look(style="dashed"),
        100e6: Look(style="dashdot"),
        50e6: Look(style="dotted"),
        10e6: Look(style="dashdotdot"),
        "emulated": Look("blue", "o"),
        "recorded": Look("orange", "D"),
    },
    names={
        "bsp": "full synchronisation",
        "mixed": "mixed synchronisation",
        "emulated": "emulated here",
        "resnet18_v1": "ResNet-18",
        "resnet34_v1": "ResNet-34",
        "resnet50_v1": "ResNet-50",
        "resnet101_v1": "ResNet-101",
        "table1": "T1",
        "table2": "T2",
        "time_s": "simulated time",
        "bytes_sent": "sent and received by a node, whole training so far",
        "compute_s": "computing",
        "host_s_per_gb": "merging a GB",
        "slowest": "slowest site to fastest",
    },
    units={"compute_s": "s", "host_s_per_gb": "s"},
    order={
        "bandwidth": [1e9, 155e6, 100e6, 50e6, 10e6],
        "system": ["GeoMX", "GeoMX FP16", "GeoMX BiSparse", "GeoMX BiSparse+FP16", "MXNET"],
    },
)


@table(
    title="Table 1: communication time of a round",
    shows="Least possible: full-duplex links used without pause. Ours: the fluid simulation of "
    "push, then pull, on the machines and links of the document.",
    says="GeoMX at 155 Mbit/s takes 78 to 87 % of MXNET's time at 1 Gbit/s.",
    of=[experiments.table1],
)
def table1(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Table 1, one row a cell: ``row`` is the model, ``quantity`` the column."""
    cells = tables.cells(verdicts, "Table 1")
    return cells.assign(quantity=cells["column"])[tables.COLUMNS]


_SHORT = {
    "converged accuracy": "accuracy",
    "convergence time": "time",
    "rounds to converge": "rounds",
    "communication time of a round": "a round's latency",
    "raw upload of a node and round": "raw up",
    "raw download of a node and round": "raw down",
    "compressed upload of a node and round": "sent up",
    "compressed download of a node and round": "sent down",
}


@table(
    title="Table 2: compression and bandwidth",
    shows="Bytes are those of the real tensors; times are simulated; accuracy, rounds and hours "
    "come from training (below paper scale of the recorded residual network), with 95 % intervals "
    "in brackets.",
    says="BiSparse with FP16 converges in 5.8 h over the WAN, MXNET in 22.8 h in the LAN.",
    of=[experiments.table2, experiments.convergence, experiments.figure6],
)
def table2(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Table 2, one row a cell: ``row`` is the setting, ``quantity`` the column."""
    cells = tables.cells(verdicts, "Table 2")
    return cells.assign(quantity=cells["metric"].replace(_SHORT))[tables.COLUMNS]


table1_picture = Figure(
    title="Table 1 as a picture",
    shows="Time a round communicates, by model, system and bandwidth. Diamonds are printed, red "
    "ticks the least that full-duplex links allow, dots ours; the pale bar spans our other "
    "ways of modelling: phases overlapped or not, ideal links, servers on their own hosts.",
    says="GeoMX at 155 Mbit/s communicates faster than MXNET at 1 Gbit/s for every model.",
    of=[experiments.table1],
    style=STYLE,
    chart=Dots(
        rows=Rows(TIME, MAIN, experiment="table1"),
        y=("system", "bandwidth"),
        panels="model",
        columns=2,
        log="x",
        also=[
            Layer(
                Rows(TIME, {"evidence": "simulated"}, experiment="table1"),
                "span",
                "ours, modelled in other ways",
                "blue",
            ),
            Layer(
                Rows("bound_time", {"variant": "duplex"}),
                "|",
                "least possible (full duplex)",
                "vermillion",
            ),
            Layer(Printed("Table 1", TIME), "D", "printed"),
        ],
    ),
)


def _race(
    experiment: str, reference: dict[str, Any], printed: Printed, nearest: str = ""
) -> list[Lines | Dots]:
    """Accuracy against time, and beside it the time to the target relative to one system's; first
    that of the ``nearest`` network to the document's, if it is another experiment's."""
    trained = Rows("time_to_target", experiment=experiment, relative_to=reference)
    also = [Layer(printed, "D", f"printed ({printed.place})")]
    if nearest:
        also.append(Layer(trained, "x", "trained as left"))
    return [
        Lines(
            rows=Rows("test_accuracy", experiment=experiment),
            x="time_s",
            colour="system",
            style="bandwidth",
            smooth=5,
            after=0.05,
            log="x",
            width=1.5,
            title="accuracy over time",
            lines=[
                Line(Rows("target_accuracy", experiment=experiment), name="target", style="dotted")
            ],
        ),
        Dots(
            rows=replace(trained, experiment=nearest) if nearest else trained,
            y=("system", "bandwidth"),
            colour="system",
            log="x",
            title="time to the target",
            lines=[Line(1, style="solid")],
            also=also,
        ),
    ]


_MXNET, _GEOMX = ({"system": system, "bandwidth": 1e9} for system in ("MXNET", "GeoMX"))

figure4 = Figure(
    title="Figure 4: GeoMX and MXNET",
    shows="Left, test accuracy over simulated time (mean of five evaluations). Right, time to "
    "the target accuracy relative to MXNET at 1 Gbit/s; diamonds are the printed round times in "
    "the same proportion.",
    says="GeoMX is faster at equal bandwidth, and slightly faster over the WAN than MXNET in "
    "the LAN. The printed curves are not available as numbers.",
    of=[experiments.figure4],
    style=STYLE,
    chart=_race(
        "figure4",
        _MXNET,
        Printed("Table 1", TIME, where={"model": "resnet50_v1"}, relative_to=_MXNET),
    ),
)

figure6 = Figure(
    title="Figure 6: compression and bandwidth",
    shows="Left, test accuracy over simulated time (mean of five evaluations), below paper scale of"
    " a small network that trains briefly. Right, time to the target accuracy relative to GeoMX at "
    "1 Gbit/s: dots are of the nearest network to the document's (below paper scale the recorded "
    "residual one), crosses of that on the left; diamonds are the printed convergence times in "
    "the same proportion.",
    says="Sparsification and half precision each shorten training, sparsification more; both "
    "together take another 40 % off.",
    of=[experiments.figure6, experiments.convergence],
    style=STYLE,
    chart=_race(
        "figure6",
        _GEOMX,
        Printed("Table 2", "time_to_target", relative_to=_GEOMX),
        nearest="convergence",
    ),
)

accuracy_bytes = Figure(
    title="Accuracy against bytes",
    shows="Test accuracy (mean of five evaluations) over what one node has sent and received "
    "since training began. The same bytes travel whatever the bandwidth.",
    says="BiSparse saves 90 % of the data and BiSparse with FP16 nearly 95 %, with at most "
    "0.2 points of accuracy lost.",
    of=[experiments.figure6],
    style=STYLE,
    chart=Lines(
        rows=Rows("test_accuracy", {"bandwidth": 155e6}),
        x="bytes_sent",
        colour="system",
        smooth=5,
        after=0.05,
        log="x",
    ),
)

host = Figure(
    title="How fast must hosts merge for Table 1?",
    shows="Time a round communicates relative to MXNET's at 1 Gbit/s, for ResNet-50, against what "
    "a server spends on a GB of gradients that it merges. Where our line crosses the dashed one of "
    "its system and bandwidth, that host explains what is printed; one host should explain all.",
    says="GeoMX at 155 Mbit/s takes 78 to 87 % of MXNET's time at 1 Gbit/s. By links alone it "
    "takes longer.",
    of=[experiments.table1],
    style=STYLE,
    chart=Lines(
        rows=Rows(TIME, {"model": "resnet50_v1"}, experiment="host", relative_to=_MXNET),
        x="host_s_per_gb",
        colour="system",
        panels="bandwidth",
        log="y",
        lines=[
            Line(
                Printed("Table 1", TIME, where={"model": "resnet50_v1"}, relative_to=_MXNET),
                name="printed in Table 1",
                colour="",
            )
        ],
    ),
)

sensitivity = Figure(
    title="How much of a round is computing?",
    shows="Time of a round against the computing time it contains, for each row of Table 2. "
    "Where our line crosses the dashed one of its colour, that computing time explains what is "
    "printed.",
    says="Table 2 prints one time a round and calls it communication.",
    of=[experiments.table2],
    style=STYLE,
    chart=Lines(
        rows=Rows("round_time", experiment="sensitivity"),
        x="compute_s",
        colour="system",
        panels="bandwidth",
        columns=3,
        limits=(0, None),
        lines=[Line(Printed("Table 2", "round_time"), name="printed in Table 2", colour="")],
    ),
)


def _curves(experiment: str, title: str) -> Lines:
    return Lines(
        rows=Rows("test_accuracy", {"bandwidth": 155e6}, experiment=experiment),
        x="round",
        colour="system",
        smooth=5,
        after=0.05,
        title=title,
    )


residual = Figure(
    title="On a residual network",
    shows="Test accuracy over rounds (mean of five evaluations): ResNet-8 with BatchNorm, recorded "
    "once in 5,400 rounds, and the small network without BatchNorm that other figures of this "
    "scale train. Below, rounds to the target relative to uncompressed ones, recorded; among them "
    "an optimizer with BiSparse's momentum that sparsifies nothing, and BiSparse without momentum.",
    says="BiSparse converges in 4,720 rounds, uncompressed training in 5,270, to as much; momentum "
    "belongs to BiSparse, and nothing is printed without it.",
    of=[experiments.residual, experiments.figure6],
    style=STYLE,
    chart=[
        [_curves("residual", "ResNet-8, recorded"), _curves("figure6", "stand-in of this scale")],
        [
            Dots(
                rows=Rows(
                    "rounds_to_target", experiment="residual", relative_to={"system": "GeoMX"}
                ),
                y="system",
                colour="system",
                log="x",
                seeds=True,
                title="rounds to the target, ResNet-8",
                lines=[Line(1, style="solid")],
            ),
        ],
    ],
)

mixed = Figure(
    title="Full and mixed synchronisation",
    shows="Time to the target accuracy relative to full synchronisation on the same sites: both "
    "alike, and one whose machines take three times as long. Right, accuracy over simulated time "
    "(mean of five evaluations) on the uneven sites.",
    says="Mixed synchronisation is offered for uneven clusters; no numbers are printed.",
    of=[experiments.mixed],
    style=STYLE,
    chart=[
        Dots(
            rows=Rows("time_to_target", relative_to={"synchronization": "bsp"}),
            y="slowest",
            colour="synchronization",
            log="x",
            seeds=True,
            title="time to the target",
            lines=[Line(1, style="solid")],
        ),
        Lines(
            rows=Rows("test_accuracy", {"slowest": 3.0}),
            x="time_s",
            colour="synchronization",
            smooth=5,
            after=0.05,
            log="x",
            title="one site three times as slow",
            lines=[Line(Rows("target_accuracy", {"slowest": 3.0}), name="target", style="dotted")],
        ),
    ],
)


def _record() -> str:
    """Which cells are recorded, in words."""
    record = json.loads((Path(__file__).parents[3] / links.RECORD).read_text())
    cores = f"{record['cores']} core{'s' * (record['cores'] > 1)}"
    return (
        f"Recorded cells ran once, at full size, by “{record['command']}” on {cores} of "
        f"{record['processor']}, and are kept in the repository; a record is stale where the "
        "simulation has changed by more than 1 % since."
    )


def _compared(rows: pd.DataFrame, by: list[str], metric: str) -> pd.DataFrame:
    """A line for every place ``by``: seconds simulated, emulated and recorded, ratios of the
    latter to the first, the exchange's share of the processors' time, how busy they were, the
    least link rate (%), and why it did not run or what was measured where times differ."""
    shown = {
        (metric, "simulated"): "simulated, s",
        (metric, "emulated"): "emulated, s",
        ("emulated_over_simulated", "emulated"): "emulated / simulated",
        ("cpu_share", "emulated"): "exchange, %",
        ("busy_share", "emulated"): "processors, %",
        "links": "links, %",
        (metric, "recorded"): "recorded, s",
        ("emulated_over_simulated", "recorded"): "recorded / simulated",
        "remark": "remark",
    }
    ends = rows.get("ends", pd.Series(math.nan, rows.index))  # none was measured
    cells, pairs = rows[ends.isna()], rows[ends.notna()]
    # A cell that failed has no values, but a line.
    made = cells.groupby(by, sort=False)["value"].first().to_frame("any")
    for what, values in cells.groupby(["metric", "evidence"]):
        made[[what]] = values.set_index(by)[["value"]]
    if len(pairs):
        carried = pairs.pivot_table("value", [*by, "ends"], "metric")
        share = 100 * carried["link_rate"] / carried["link_rate_expected"]
        made["links"] = share.groupby(by).min()
    recorded = cells["evidence"] == "recorded"
    told = cells["reason"].where(~recorded, "recorded: " + cells["reason"])
    told = cells.assign(remark=told)[cells["reason"] != ""]
    made["remark"] = told.groupby(by)["remark"].agg(tables.distinct)
    return made.reindex(columns=list(shown)).rename(columns=shown).fillna({"remark": ""})


_NEAR = Band(0.9, 1.1, "within 10 %")


@table(
    title="Real links: Tables 1 and 2",
    shows="One round of a cell with a process a node, its real bytes over real sockets and through "
    "links that the kernel shapes, beside the simulation of the same messages: dense vectors "
    "of full size that are really added, or the payloads of real gradients. Exchange is the "
    "share of all processors' time that its processes took, processors how busy these were "
    "with anything, the kernel's work for links included; links the least share of its rate "
    "that a link carried before the round. Computing and compressing are not in these times. "
    "Part of the agreement is built in: pairs of nodes that wait for a link take turns, which "
    "is the simulator's max-min sharing. Windows are held to what queues can take, so that TCP "
    "loses nothing, as in the simulator; the exchanges below also have cells without either. "
    + _record(),
    says="The document shaped its testbed's links with Wondershaper.",
    of=[experiments.table1, experiments.table2, links.emulated],
)
def emulated_table(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Tables 1 and 2 printed, simulated and emulated, one row a cell."""
    mine = rows[rows["experiment"].isin(["table1", "table2"]) & (rows["metric"] == TIME)]
    mine = mine[(mine["variant"] == MAIN["variant"]) & (mine["evidence"] == MAIN["evidence"])]
    cells = mine.assign(table=mine["experiment"]).set_index(CELL)
    values = verdicts[verdicts["kind"] == "value"]
    # A table of the document has its settings over the columns (Table 1) or before the rows.
    printed = {
        (place, one["model"], one[where]): float(one["printed"])
        for place, where in (("Table 1", "column"), ("Table 2", "row"))
        for one in values[values["where"] == place].to_dict("records")
        if one["metric"] == "communication time of a round"
    }
    places = cells.index.get_level_values("table").str.replace("table", "Table ")
    keys = list(zip(places, cells.index.get_level_values("model"), cells["case"], strict=True))
    named = pd.DataFrame(
        {
            "table": places,
            "model": [STYLE.names[model] for _, model, _ in keys],
            "setting": cells["case"].to_numpy(),
            "printed, s": [printed[key] for key in keys],
        },
        cells.index,
    )
    real = _compared(rows[rows["experiment"] == "emulated"], CELL, TIME).reindex(cells.index)
    real = real.assign(**{"simulated, s": cells["value"]}).fillna({"remark": ""})
    return named.join(real).reset_index(drop=True)


emulated = Figure(
    title="Real links: emulated over simulated",
    shows="Emulated to simulated time of the cells of Tables 1 and 2 (T1, T2).",
    of=[links.emulated],
    style=STYLE,
    chart=Dots(
        rows=Rows("emulated_over_simulated", experiment="emulated"),
        y=tuple(CELL),
        colour="evidence",
        dodge=False,
        lines=[_NEAR, Line(1, style="solid")],
    ),
)


@table(
    title="Real links: other exchanges",
    shows="Exchanges on real processes over shaped links, whose sums were checked, beside the "
    "simulation of the same plans. Emulated is the median of the repeats. “One queue a link” "
    "is TCP as it comes: nothing shares a link evenly or limits windows, and full queues drop.",
    of=[links.agreement],
)
def agreement_table(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Exchanges on real processes beside their simulation."""
    real = _compared(rows, ["setting", "workers"], "completion_time").reset_index("workers")
    size = rows[rows["metric"] == "vector"].set_index("setting")["value"]
    real.insert(0, "MB", size)
    real = real[[name for name in real if not name.startswith("recorded")]]
    return real.rename_axis("exchange").reset_index()


agreement = Figure(
    title="Real links: other exchanges, emulated over simulated",
    shows="Emulated to simulated time of other exchanges.",
    of=[links.agreement],
    style=STYLE,
    chart=Dots(rows="emulated_over_simulated", y="setting", lines=[_NEAR, Line(1, style="solid")]),
)

system = Figure(
    title="Real links: the system trains",
    shows="Test loss of one small model without BatchNorm, trained by workers, site servers, a "
    "global server and a coordinator as processes over shaped links (diamonds), and by the trainer "
    "in virtual time (lines) with the same seeds.",
    of=[links.system],
    style=STYLE,
    chart=Lines(
        rows=Rows("test_loss", {"variant": "virtual"}),
        x="round",
        colour="system",
        also=[Layer(Rows("test_loss", {"variant": "live"}), "D", "real processes")],
    ),
)


@table(
    title="Real links: the system beside virtual time",
    shows="Losses differ by is the largest difference between test losses of the same round. "
    "A live round takes this machine's processors for computing and compressing, a virtual one "
    "those that the document names. Rounds that wait for an evaluation do not count.",
    of=[links.system],
)
def system_table(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """The system as processes beside the trainer in virtual time, one row a system."""
    last = rows.sort_values("round").groupby(["system", "variant", "metric"])["value"].last()
    found = last.unstack(["variant", "metric"])
    shown = {
        ("live", "test_accuracy"): "accuracy live, %",
        ("virtual", "test_accuracy"): "accuracy virtual, %",
        ("live", "live_difference"): "losses differ by",
        ("live", "mean_round_time"): "a round live, s",
        ("virtual", "mean_round_time"): "a round virtual, s",
    }
    by_system = rows.groupby("system", sort=False)
    made = by_system["round"].max().to_frame("rounds")
    for key, name in shown.items():
        made[name] = found.get(key, math.nan)
    failed = rows["reason"].where(rows["status"] == "failed", "")
    made["remark"] = failed.groupby(rows["system"]).agg(tables.distinct)
    return made.reset_index()
