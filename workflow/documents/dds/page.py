"""DDS's figures and tables, and their words.

All eight pictures are lost in the stored text; their numbers, from the plotting scripts and logs of
the document's public repository, stand beside ours as diamonds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slowlink.reports.charts import (
    Bars,
    Chart,
    Dots,
    Figure,
    Layer,
    Lines,
    Look,
    Missing,
    Printed,
    Rows,
    Style,
    table,
)
from slowlink.workflow.documents.dds import data_parallel, federated, recorded
from slowlink.workflow.experiment import PLANNING

if not PLANNING or TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from slowlink.reports import tables
    from slowlink.reports.evidence import Estimate, number

MODES = ["fp32_dense", "int8_dense", "fp32_sparse", "int8_sparse"]
"""Those of the document; ours follow."""
OURS = [f"{mode}{end}" for end in (" from model", " EF") for mode in MODES[2:]]
METHODS = ["fp32", "baseline", "DGC", "DGC momentum", "centralised"]
RULES = ["mean", "median", "trimmed mean", "Krum", "Multi-Krum", "norm bound"]
TARGET = 0.7
"""The share of raw DDS writes' throughput that ours should reach."""
MIB, MS = 2.0**-20, 1e3

_COLOURS = dict(zip(MODES, ["vermillion", "orange", "blue", "green"], strict=True))
_COLOURS |= dict(zip(OURS, ["blue", "green", "blue", "green"], strict=True))
_COLOURS |= dict(zip(METHODS, ["orange", "vermillion", "blue", "green", "purple"], strict=True))
_COLOURS |= dict(
    zip(RULES, ["vermillion", "blue", "sky", "green", "orange", "purple"], strict=True)
)
STYLE = Style(
    looks={label: Look(colour, "o") for label, colour in _COLOURS.items()}
    | {"raw dds": "vermillion", "dds": "blue", "gloo": "purple"}
    | {"compute_time": "sky", "compress_time": "orange", "wait_time": "vermillion"}
    | {"mean_wait": Look("blue", "o"), "max_wait": Look("vermillion", "^")}
    | {"warm_max_wait": Look("orange", "s")}
    | {"indices": "purple", "values": "blue", "scales and head": "orange"}
    | {"uplink_bytes": "green", "downlink_bytes": "sky", "other_time": "purple"},
    names={
        "compute_time": "compute",
        "compress_time": "compress",
        "wait_time": "wait",
        "other_time": "other",
        "mean_wait": "mean wait",
        "max_wait": "longest wait",
        "warm_max_wait": "longest after 100 steps",
        "uplink_bytes": "up",
        "downlink_bytes": "down, always fp32",
    },
    units={"nbytes": "B"},
    forms={"client": "client{}", "workers": "{} processes"},
    order={
        "mode": MODES + OURS,
        "method": METHODS,
        "metric": ["compute_time", "compress_time", "wait_time", "mean_wait", "max_wait"],
        "split": ["alike"],
        "rule": RULES,
        "attack": [federated.NOBODY],
    },
)

_RECOVERED = (
    "The picture is lost in the stored text; diamonds are the numbers of the plotting script in "
    "the document's public repository, one run each. "
)
_LIVE = (
    "Real processes of this machine over Cyclone DDS, encrypted, each member with an identity of "
    "its own; absolute times are this machine's. "
)
_LIVE_RUN = _LIVE + "One run a row. "
_SEEDS = "each seed small, their mean large with its 95 % interval if there are three. "
_DOTS = "A small dot is one run, a large one the mean with its 95 % interval if there are three. "
_RECORDED = (
    f"Recorded (“{recorded.COMMAND}”): real processes of one machine over Cyclone DDS, encrypted, "
    "each member with an identity of its own; absolute times are that machine's. " + _DOTS
)
_HERE = "Triangles are the shorter run of this report. "


def _rows(metric: str | list[str], experiment: str) -> Rows:
    """Rows of the document's modes, or of the methods of several processes: one alone sends nothing
    and waits for nobody."""
    where = {"mode": MODES} if "federated" in experiment else {"workers": max}
    return Rows(metric, where, experiment)


def _printed(ids: dict[str, dict[str, Any]]) -> Layer:
    return Layer(Printed(ids=ids), "D", "recovered from the document's logs", "ink")


def _of_figure(number: int) -> Layer:
    """The numbers of a data-parallel figure."""
    cases = {"base": "baseline", "dgc": "DGC"}
    return _printed({f"DDS-F0{number}-{end}": {"method": one} for end, one in cases.items()})


def _of_modes(column: str, **at: float) -> dict[str, dict[str, Any]]:
    """The numbers of a federated figure."""
    return {f"DDS-FL-{mode}-{column}": {"mode": mode} | at for mode in MODES}


def _live(experiment: str, metric: str, label: str, *also: Layer, **options: Any) -> Dots:
    """What was measured on real processes, by mode or method."""
    by = "mode" if "federated" in experiment else "method"
    rows = _rows(metric, experiment)
    return Dots(rows=rows, y=by, colour=by, label=label, also=also, **options)


def _learning(experiment: str, by: str, end: Rows, *also: Layer, **options: Any) -> list[Chart]:
    """Accuracy of recorded runs on real processes as they go on, and over seeds at the ``end``."""
    rows = Rows("test_accuracy", experiment=experiment)
    at_end = dict(y=by, colour=by, label="test accuracy", seeds=True, also=also)
    return [
        Lines(rows=rows, x="round", colour=by, title="on real processes", after=0.3),
        Dots(rows=end, **at_end | options),
    ]


def _numbers(
    rows: pd.DataFrame, verdicts: pd.DataFrame, by: str, columns: dict[str, tuple]
) -> pd.DataFrame:
    """A line for every mode or method, in order.

    ``columns``: by heading the experiment, metric and factor, and, if it prints such numbers, the
    row or column of the document's table.
    """
    ok = rows[(rows["status"] == "ok") & rows[by].isin(STYLE.order[by])]
    across = "row" if by == "mode" else "column"
    made = {}
    for heading, (experiment, metric, times, *there) in columns.items():
        mine = ok[(ok["experiment"] == experiment) & (ok["metric"] == metric)]
        made[heading] = {
            label: str(_estimate(times * one.set_index("seed")["value"]))
            for label, one in mine.groupby(by)
        }
        for name in there:
            here = verdicts[(verdicts[["row", "column"]] == name).any(axis=1)]
            made[f"{heading}: there"] = here.set_index(across)["printed"].to_dict()
    found = pd.DataFrame(made).fillna("")
    return found.reindex([one for one in STYLE.order[by] if one in found.index])


def _estimate(values: pd.Series) -> Estimate:
    return Estimate.of(values.iloc[0] if list(values.index) == [-1] else values)


# Data-parallel training ---------------------------------------------------------------------------

ddp_figure1 = Figure(
    title="Data parallel, Figure 1: bytes a step",
    shows=_LIVE_RUN + "Counted as the document counts: what a worker sends, and what both deliver "
    "to it, its own included, all with the heads of its messages, which is computed. Squares: the "
    "payloads that it sends, once. After the warm-up. "
    "The baseline that is plotted sends eight bits a value, so fp32 stands beside it.",
    says=_RECOVERED + "Baseline 1.165 MiB, DGC 0.010 MiB. What the baseline sends is not said.",
    of=[data_parallel.ddp],
    style=STYLE,
    chart=_live(
        "ddp",
        "bytes_counted_as_printed",
        "bytes a step",
        Layer(_rows("bytes_per_step", "ddp"), "s", "one way"),
        _of_figure(1),
        unit="MiB",
        log="x",
        name="counted as there",
    ),
)

ddp_figure2 = Figure(
    title="Data parallel, Figure 2: accuracy",
    shows=_RECORDED
    + "MNIST; at the end, after 2,700 steps as there. Lines are means over runs. The two workers "
    "train on disjoint halves of 36,000 images; in the document's code both draw from all of them. "
    "DGC is the plotted one, whose memory has no momentum; DGC momentum corrects the momentum, as "
    "the text describes. Centralised is one process with the batches of both workers.",
    says=_RECOVERED + "Baseline 98.07 %, DGC 98.11 %, at step 2699 counted from 0.",
    of=[data_parallel.ddp_recorded],
    style=STYLE,
    chart=_learning(
        "ddp_recorded",
        "method",
        Rows("judged_accuracy", experiment="ddp_recorded"),
        _of_figure(2),
        title="at the end",
    ),
)


def _waits(metric: str, label: str, number: int) -> Dots:
    also = [
        Layer(_rows(f"warm_{metric}", "ddp_recorded"), "s", "ours without the first 100 steps"),
        Layer(_rows(metric, "ddp"), "^", "in this report's run"),
        _of_figure(number),
    ]
    return _live("ddp_recorded", metric, label, *also, unit="ms", log="x", seeds=True)


ddp_figure3 = Figure(
    title="Data parallel, Figure 3: the longest wait",
    shows=_RECORDED + "The longest wait for other workers' gradients in any step; squares without "
    "the first 100 steps. Before each run its processes take some steps that do not count. The "
    "longest wait is one event of a run, whose cause is not recorded. " + _HERE,
    says=_RECOVERED + "Baseline 3025 ms, DGC 414 ms, of 2,810 steps.",
    of=[data_parallel.ddp_recorded, data_parallel.ddp],
    style=STYLE,
    chart=_waits("max_wait", "longest wait", 3),
)

ddp_figure4 = Figure(
    title="Data parallel, Figure 4: the mean wait",
    shows=_RECORDED + "Waiting for other workers' gradients, the mean over steps and workers; "
    "squares without the first 100 steps. " + _HERE,
    says=_RECOVERED + "Baseline 25.5 ms, DGC 20.8 ms: the bandwidth is not used up.",
    of=[data_parallel.ddp_recorded, data_parallel.ddp],
    style=STYLE,
    chart=_waits("mean_wait", "mean wait", 4),
)

_DOING = dict(compute_time="compute_time", compress_time="compress_time", mean_wait="wait_time")


def _made_of(rows: pd.DataFrame) -> pd.DataFrame:
    """What a step is made of, with what is none of these."""
    place = ["method", "seed"]
    parts = rows[rows["metric"].isin(_DOING)].replace({"metric": _DOING})
    told = parts.groupby(place)["value"].sum()
    step = rows[rows["metric"] == "step_time"].set_index(place)
    rest = step.assign(metric="other_time", value=(step["value"] - told).clip(lower=0))
    return pd.concat([parts, rest.reset_index()])


profile = Figure(
    title="What a data-parallel step is made of",
    shows=_RECORDED + "Left, means over steps and workers; waiting is only what is left after "
    "computing. Right, mean and longest waits.",
    of=[data_parallel.ddp_recorded],
    style=STYLE,
    chart=[
        Bars(
            rows=Rows(
                [*_DOING.values(), "other_time"], experiment="ddp_recorded", prepare=_made_of
            ),
            y="method",
            colour="metric",
            stacked=True,
            title="a step, in the mean",
            label="a step",
            unit="ms",
        ),
        Dots(
            rows=_rows(["mean_wait", "max_wait", "warm_max_wait"], "ddp_recorded"),
            y="method",
            colour="metric",
            dodge=False,
            seeds=True,
            title="waiting",
            label="a wait",
            unit="ms",
            log="x",
        ),
    ],
)


@table(
    title="Data parallel in numbers",
    shows=_LIVE + "Accuracies, after 2,700 steps, and times are of recorded runs of ten epochs. "
    "Apart: the largest difference of a parameter "
    "when the first steps are repeated in one process, past the first epoch where DGC warms up; "
    "anything but 0 stops the run. Columns "
    '"there" are recovered from the document\'s repository.',
    of=[data_parallel.ddp_recorded, data_parallel.ddp],
)
def ddp_table(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """The data-parallel methods on real processes."""
    columns = {
        "one way, B": ("ddp", "bytes_per_step", 1),
        "received in frames, B": ("ddp", "received_bytes", 1),
        "counted as there, MiB": ("ddp", "bytes_counted_as_printed", MIB, "F01"),
        "accuracy, %": ("ddp_recorded", "judged_accuracy", 1, "F02"),
        "apart from one process": ("ddp", "live_difference", 1),
        "longest wait, ms": ("ddp_recorded", "max_wait", MS, "F03"),
        "the same after 100 steps, ms": ("ddp_recorded", "warm_max_wait", MS),
        "mean wait, ms": ("ddp_recorded", "mean_wait", MS, "F04"),
        "mean after 100 steps, ms": ("ddp_recorded", "warm_mean_wait", MS),
        "step, ms": ("ddp_recorded", "step_time", MS),
        "computing, ms": ("ddp_recorded", "compute_time", MS),
        "compressing, ms": ("ddp_recorded", "compress_time", MS),
    }
    return _numbers(rows, verdicts, "method", columns).rename_axis("method").reset_index()


# Federated training -------------------------------------------------------------------------------

fl_figure1 = Figure(
    title="Federated, Figure 1: bytes a round",
    shows=_LIVE_RUN + "Payloads really sent; squares add the heads of messages, DDS, UDP, IP and "
    "Ethernet, which are computed. This is the way up alone.",
    says=_RECOVERED + "4.58, 1.15, 0.92 and 0.57 MiB.",
    of=[federated.federated],
    style=STYLE,
    chart=_live(
        "federated",
        "uplink_bytes",
        "a client and round",
        Layer(_rows("link_bytes", "federated"), "s", "with all heads, on the link"),
        _printed(_of_modes("MB")),
        unit="MiB",
        limits=(0, None),
        name="payload",
    ),
)


def _parts(rows: pd.DataFrame) -> pd.DataFrame:
    """The parts of each mode's payload by its layout; D and k follow from what is sent."""
    up = rows[(rows["metric"] == "uplink_bytes") & rows["mode"].isin(MODES)].set_index("mode")
    if len(up) < len(MODES):
        raise Missing(f"no results of all of {', '.join(MODES)}")
    d, k = up.loc["fp32_dense", "value"] / 4, (up.loc["fp32_sparse", "value"] - 12) / 8
    values, indices = ([4 * d, d, 4 * k, k], [0, 0, 4 * k, 4 * k])
    parts = pd.DataFrame({"indices": indices, "values": values}, index=MODES)
    parts["scales and head"] = up["value"] - parts.sum(axis=1)
    return pd.concat([up.assign(part=part, value=one) for part, one in parts.items()]).reset_index()


def _bytes(rows: Rows, colour: str, title: str) -> Bars:
    return Bars(
        rows=rows,
        y="mode",
        colour=colour,
        stacked=True,
        written=True,
        title=title,
        label="a client and round",
        unit="MiB",
    )


federated_bytes = Figure(
    title="What is in a payload, and what compression leaves",
    shows="Left, payloads by their layout. Sparse modes still send four bytes of index a value, so "
    "int8_sparse is 12.5 % of fp32 and not a quarter of 20 %. Right, the server answers with "
    "the whole model in fp32 in every mode, published once for all clients.",
    says="About 1/4 for eight bits, 20 % for the largest tenth; for both together nothing is said.",
    of=[federated.federated_bytes],
    style=STYLE,
    chart=[
        _bytes(Rows("uplink_bytes", prepare=_parts), "part", "up: the payload"),
        _bytes(
            _rows(["uplink_bytes", "downlink_bytes"], "federated_bytes"), "metric", "up and down"
        ),
    ],
)

_LAYOUT = {
    "identity": "4 D",
    "int8_blocks": "20 + D + 4 ⌈D / C⌉",
    "sparse_fp32": "12 + 8 k",
    "sparse_int8": "20 + 5 k + 4 ⌈k / C⌉",
}
"""Bytes of a payload, by codec."""


@table(
    title="Bytes in numbers",
    shows="D = 1,199,882 values, k = ⌊D / 10⌋, chunks of C = 1,024 unless said otherwise. Payloads "
    'are encoded for this; "there" is what the logs of the document\'s repository have.',
    says="C = 8,192 by the text. The logged bytes need 1,024.",
    of=[federated.federated_bytes],
)
def federated_bytes_table(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Bytes by mode and chunk: payload, what the wire adds, and shares of fp32's."""
    found = tables.wide(rows, ["mode", "compression"]).reset_index("compression")
    printed = verdicts[verdicts["column"] == "bytes"].set_index("row")["printed"]
    made = {
        "layout, B": found["compression"].map(_LAYOUT),
        "payload, B": found["uplink_bytes"].map(number),
        "there": printed.reindex(found.index).fillna(""),
        "in segments, B": found["frame_bytes"].map(number),
        "on the link, B": found["link_bytes"].map(number),
        "answer, B": found["downlink_bytes"].map(number),
        "up, of fp32": found["uplink_bytes"] / found.loc["fp32_dense", "uplink_bytes"],
        "up and down, of fp32": found["up_and_down_ratio"],
    }
    return pd.DataFrame(made).reset_index()


fl_figure2 = Figure(
    title="Federated, Figure 2: communication time",
    shows=_RECORDED + "From a client's beginning to send its update until the server has "
    "all of it, by one clock; the mean over ten rounds. " + _HERE,
    says=_RECOVERED + "Two machines, whose clocks its code subtracts; Client0 takes some 420 ms "
    "whatever it sends.",
    of=[federated.federated_recorded, federated.federated],
    style=STYLE,
    chart=_live(
        "federated_recorded",
        "communication_time",
        "communication",
        Layer(_rows("communication_time", "federated"), "^", "in this report's run"),
        _printed(_of_modes("c0", client=0.0) | _of_modes("c1", client=1.0)),
        panels="client",
        unit="ms",
        log="x",
        seeds=True,
    ),
)

fl_figure3 = Figure(
    title="Federated, Figure 3: round time",
    shows=_RECORDED
    + "From the command to train until the server has the next model, the mean over "
    "ten rounds; squares are the training in it, which is the same work in all modes: verdicts "
    "compare rounds with all modes' mean of it in the place of their own. " + _HERE,
    says=_RECOVERED + "10.5, 10.0, 9.4 and 9.6 s. By the logs rounds vary by 0.5 to 0.8 s "
    "(standard deviation), more than most of these differ.",
    of=[federated.federated_recorded, federated.federated],
    style=STYLE,
    chart=_live(
        "federated_recorded",
        "round_time",
        "a round",
        Layer(_rows("train_time", "federated_recorded"), "s", "of which a client trains"),
        Layer(_rows("round_time", "federated"), "^", "in this report's run"),
        _printed(_of_modes("rt")),
        limits=(0, None),
        seeds=True,
    ),
)

fl_figure4 = Figure(
    title="Federated, Figure 4: accuracy",
    shows="MNIST. Lines and squares are recorded runs on real processes, lines the mean over five, "
    "tested on 500 images; dots are recorded runs of the trainer, "
    + _SEEDS
    + "Its first rounds equal those of the real processes to the bit, with feedback and without, "
    "which each run of the report checks. When a round ends is up to the policy (fedavg). EF feeds "
    "back what was not sent, which the document does not; from model is the same without it. Both "
    "send in round 1 what changed from the model, where the document's sparse modes send a tenth "
    "of the weights themselves.",
    says=_RECOVERED + "98.31, 98.21, 98.12 and 98.17 % after ten rounds. The log has the 98.12 % "
    "of fp32_sparse after nine, and 98.05 % after ten.",
    of=[federated.federated_seeds, federated.federated_recorded],
    style=STYLE,
    chart=_learning(
        "federated_recorded",
        "mode",
        Rows("final_accuracy", experiment="federated_seeds"),
        Layer(Rows("final_accuracy", experiment="federated_recorded"), "s", "on real processes"),
        _printed(_of_modes("acc")),
        title=lambda rows: f"at the end; seeds: {', '.join(sorted(set(rows['model'])))}",
        name="seeds, recorded",
    ),
)


@table(
    title="Federated in numbers",
    shows=_LIVE
    + "Payloads are of this report's run; times, of ten rounds, and accuracies on real processes "
    "are of recorded ones; accuracies of a named model are of recorded runs of the trainer. More "
    "by feedback: EF less from model, seed by seed. Apart: the largest difference of a parameter "
    "when a few rounds on real processes are repeated by the trainer, in one process; anything but "
    '0 stops the run. Columns "there" are recovered from the document\'s repository.',
    of=[federated.federated_recorded, federated.federated, federated.federated_seeds],
)
def federated_table(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """The modes on real processes, and their accuracy over seeds."""
    clients = rows["client"].map("client{:g}".format, na_action="ignore")
    rows = rows.assign(metric=clients.fillna(rows["metric"]))
    final = rows[(rows["experiment"] == "federated_seeds") & (rows["metric"] == "final_accuracy")]
    columns = {
        "payload, B": ("federated", "uplink_bytes", 1, "bytes"),
        "client0, ms": ("federated_recorded", "client0", MS, "c0"),
        "client1, ms": ("federated_recorded", "client1", MS, "c1"),
        "round, ms": ("federated_recorded", "round_time", MS, "rt"),
        "training, ms": ("federated_recorded", "train_time", MS),
        f"accuracy of {', '.join(sorted(set(final['model'])))}, %": (
            "federated_seeds",
            "final_accuracy",
            1,
            "acc",
        ),
        "on real processes, %": ("federated_recorded", "final_accuracy", 1),
    }
    made = _numbers(rows, verdicts, "mode", columns)
    more = {
        "more by feedback, points": _gained(final),
        "apart from one process": _apart(rows[rows["metric"] == "live_difference"]),
    }
    return made.join(pd.DataFrame(more)).fillna("").rename_axis("mode").reset_index()


def _gained(final: pd.DataFrame) -> dict[str, str]:
    """What error feedback adds to a mode that is else the same, seed by seed."""
    alike = ["compression", "sends", "seed"]
    without = final[final["feedback"] == "off"].set_index(alike)["value"]
    with_it = final[final["feedback"] == "on"]
    return {
        mode: str(Estimate.of(gain.droplevel(alike[:2])))
        for mode, one in with_it.groupby("mode")
        if len(gain := (one.set_index(alike)["value"] - without).dropna())
    }


def _apart(checks: pd.DataFrame) -> dict[str, str]:
    """A difference with the model and the rounds that it is of, which are not the accuracy's."""
    return {
        mode: "; ".join(f"{number(v)} ({model} after round {n})" for v, model, n in one.to_numpy())
        for mode, one in checks.set_index("mode")[["value", "model", "round"]].groupby("mode")
    }


non_iid = Figure(
    title="Clients with unlike data",
    shows=_DOTS + "Accuracy after the last round where each client has some labels only, or labels "
    "in shares drawn from a Dirichlet distribution; alike, they draw from all data. From model and "
    "EF: without and with error feedback.",
    says="Data of clients is not alike, the document says, and tries none.",
    of=[federated.non_iid],
    style=STYLE,
    chart=Dots(
        rows=Rows("final_accuracy", experiment="non_iid"),
        y="mode",
        colour="mode",
        panels="split",
        label="test accuracy",
        seeds=True,
    ),
)

attack = Figure(
    title="Some clients send poison",
    shows="MNIST, a small model, all in one process. After training as all do, a few clients send "
    "other changes of the model than they learned: turned around, that and ten times as long, or "
    "noise alone, a hundred times as long. The server takes the mean of all, as the "
    "document's does, or one of five rules that a few cannot spoil. " + _DOTS,
    says="Nothing: the document has no such rule and no trial of it.",
    of=[federated.attack],
    style=STYLE,
    chart=Dots(
        rows=Rows("final_accuracy", experiment="attack"),
        y="rule",
        colour="rule",
        panels="attack",
        label="test accuracy",
        seeds=True,
    ),
)


@table(
    title="Under attack in numbers",
    shows="Test accuracy after the last round, the mean over seeds, by rule and by what the "
    "attackers send; without attackers the same rule shows what it costs.",
    of=[federated.attack],
)
def attack_table(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Accuracy of every rule under every attack."""
    final = rows[(rows["status"] == "ok") & (rows["metric"] == "final_accuracy")]
    cells = {
        (rule, name): str(_estimate(one.set_index("seed")["value"]))
        for (rule, name), one in final.groupby(["rule", "attack"], sort=False)
    }
    made = pd.Series(cells).unstack(sort=False).fillna("")
    return made.rename_axis("rule").add_suffix(", %").reset_index()


# The transport ------------------------------------------------------------------------------------


def _target(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(value=TARGET * rows["value"])


transport = Figure(
    title="The transport beside others",
    shows="Every process sends the same payload to all others on one machine; medians. Raw DDS is "
    "Cyclone writing samples of the same size, which are counted and dropped, from Python and with "
    "our own copying of bytes: what C would reach is not measured. Ours encrypts everything and "
    "authenticates every segment for each receiver, with identities or without. It is to reach "
    "70 % of raw; the table says where it does. Gloo neither encrypts nor authenticates nor finds "
    "its peers.",
    of=[data_parallel.transport],
    style=STYLE,
    chart=Dots(
        rows="throughput",
        y="nbytes",
        colour="way",
        panels="workers",
        dodge=False,
        label="put in by all",
        limits=(0, None),
        also=[
            Layer(
                Rows("throughput", {"way": "raw dds"}, prepare=_target), "|", "70 % of raw", "ink"
            )
        ],
    ),
)


@table(
    title="The transport in numbers",
    shows="Medians; shares of raw DDS are of throughput, for ours, which is encrypted, held "
    "against the target of 70 %.",
    of=[data_parallel.transport],
)
def transport_table(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """An all-gather of the same payload over DDS, as raw writes and over gloo."""
    cells = tables.wide(rows, ["workers", "nbytes", "way"]).reset_index()
    reached = np.where(cells["share_of_raw"] >= TARGET, "reached", "missed")
    return pd.DataFrame(
        {
            "processes": cells["workers"],
            "of each, MiB": MIB * cells["nbytes"],
            "over": cells["way"],
            "ms": MS * cells["time"],
            "GB/s": cells["throughput"],
            "of raw DDS": cells["share_of_raw"],
            f"target, {TARGET:.0%} of raw": np.where(cells["way"] == "dds", reached, ""),
        }
    )
