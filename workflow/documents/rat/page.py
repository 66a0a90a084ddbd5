"""RAT's figures and tables, and their words.

The document's Figures 6 and 7 are lost in the stored text, so what its text says of them is marked.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from slowlink.reports.charts import (
    Band,
    Dots,
    Figure,
    Heat,
    Layer,
    Line,
    Lines,
    Look,
    Outline,
    Rows,
    Style,
    table,
)
from slowlink.workflow.documents.rat import experiments
from slowlink.workflow.experiment import PLANNING

if not PLANNING or TYPE_CHECKING:
    import pandas as pd

    from slowlink.reports import tables

STYLE = Style(
    looks={
        "PS": Look("vermillion", "s"),
        # Ring and RAT often coincide: one is drawn broad, the other fine upon it.
        "Ring": Look("blue", "o", width=3.6),
        "RAT": Look("green", "^", width=1.4),
        "RAT barrier": Look("orange", "D"),
        "balanced": Look(style="solid"),
        "ecmp": Look(style="dotted", width=1.2),
    },
    names={
        "balanced": "balanced paths",
        "ecmp": "hashed paths (ECMP)",
        "k": "nodes paused, k",
        "d": "between draws, d",
        "free": "no faults",
        "paused": "nodes pausing",
        "normalised_time": "time, vector / card's rate",
        "none": "no cost",
    },
    units={"d": "s", "hop": "s"},
    forms={"oversubscription": "{}:1"},
    order={"method": ["PS", "Ring", "RAT", "RAT barrier"]},
)


@table(
    title="Table 1: traffic between regions and chains, counted",
    shows="Counted on the plans of every exchange, in vectors out of the busiest rack, pod and "
    "zone (reduction and broadcast together) and in dependent transfers of the reduction, beside "
    "formulas inferred from the text. A shape is workers a rack x racks a pod x …; the whole "
    "chain is there and back, and a card is the busiest worker's. The formula of an oblivious "
    "ring is the mean over orders, of which one is counted.",
    says="Only Ring, BlueConnect and RAT minimise the traffic between regions, and only PS has a "
    "shorter chain than RAT. The table itself is lost in the stored text.",
    of=[experiments.table1],
)
def table1(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Table 1 as counted on the plans, beside the inferred formulas, for every shape."""
    found = tables.wide(rows, ["shape", "method"])
    layers = [layer for layer in ("rack", "pod", "zone") if f"egress_{layer}" in found]
    counted = {layer: f"egress_{layer}" for layer in layers} | {"chain": "chain"}
    lines = []
    for shape, here in found.groupby(level="shape", sort=False):
        least = {layer: here[f"least_{layer}"].max() for layer in layers}
        lines.append({"exchange": "least possible", "shape": shape} | least)
        for (_, method), one in here.iterrows():
            line, differs = {"exchange": method, "shape": shape}, []
            for name, metric in counted.items():
                line[name], formula = one[metric], one.get(f"{metric}_formula", math.nan)
                line[f"{name} formula"] = formula
                if math.isfinite(formula) and not math.isclose(line[name], formula, rel_tol=1e-6):
                    differs.append(name)
            line |= {"whole chain": one["chain_whole"], "card": one["node_egress"]}
            lines.append(line | {"differs": ", ".join(differs) or "no"})
    pairs = [column for name in counted for column in (name, f"{name} formula")]
    columns = ["exchange", "shape", *pairs, "whole chain", "card", "differs"]
    return pd.DataFrame(lines, columns=columns).fillna({"differs": ""})


figure6 = Figure(
    title="Figure 6: oversubscription",
    shows="Completion time of one exchange of 97 MB on 4 racks under 2 spines, from 4 to 64 "
    "workers a rack. Right, the same relative to RAT at the higher rate, with the printed ratios.",
    says="PS is about 25 times worse than RAT, on average over all bandwidths; Ring is 1.16 times "
    "worse in many. The figure itself is lost in the stored text.",
    of=[experiments.figure6],
    style=STYLE,
    chart=[
        Lines(
            rows=Rows("completion_time", {"variant": ["balanced", "ecmp"]}),
            x="oversubscription",
            colour="method",
            style="variant",
            panels="bandwidth",
            log="xy",
        ),
        Lines(
            rows=Rows(
                "completion_time",
                {"variant": "balanced", "bandwidth": max},
                relative_to={"method": "RAT"},
            ),
            x="oversubscription",
            colour="method",
            log="xy",
            limits=(0.8, 40),
            lines=[
                Line("RAT-F6a", text="{}\nprinted,\non average", colour="vermillion"),
                Line("RAT-F6b", text="{}\nprinted", colour="blue"),
            ],
        ),
    ],
)


@table(
    title="Ring against RAT where the text is silent",
    shows="Over all settings of Figure 6: how many times as long as RAT Ring takes, in the mean, "
    "at the least and at the most, and PS as Ring at the least. 10 µs a cable are in place of 1, "
    "pieces of 1/64 of the vector in place of 1/512; a ring's messages, 1/n, go in those or whole.",
    says="Ring takes 1.16 times as long as RAT in many settings, and never less; PS much longer.",
    of=[experiments.silent],
)
def silent(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """What the ratios of Figure 6 become where what it leaves open is taken otherwise."""
    named = {
        "taken": "taken",
        "ring_over_rat": "Ring to RAT, mean",
        "least_ring_over_rat": "Ring to RAT, least",
        "largest_ring_over_rat": "Ring to RAT, most",
        "least_ps_over_ring": "PS to Ring, least",
    }
    return tables.wide(rows, ["taken"]).reset_index()[list(named)].rename(columns=named)


latency = Figure(
    title="How slow must a message be for 1.16?",
    shows="Left, the latency of every message at which Ring takes 1.16 times as long as RAT, on "
    "the network of Figure 6. Right, Ring to RAT at the latencies written beside the lines. They "
    "are those of a message wherever it goes; Figure 6 has its latency at every cable.",
    says="Ring's long chain is thought to add a delay at every hop.",
    of=[experiments.latency],
    style=STYLE,
    chart=[
        Lines(
            rows="needed_latency",
            x="workers",
            colour="bandwidth",
            log="xy",
            label="latency of a message",
        ),
        Lines(
            rows=Rows("ring_over_rat", {"bandwidth": max}),
            x="workers",
            shade="hop",
            direct=True,
            log="x",
            label="Ring, times RAT's",
            lines=[Line("RAT-F6b", name="printed: {}")],
        ),
    ],
)

pipelining = Figure(
    title="RAT in chunks",
    shows="Completion time of RAT against the number of chunks in which a message travels, so "
    "that its levels overlap; one chunk waits for every level.",
    of=[experiments.pipelining],
    style=STYLE,
    chart=Lines(
        rows="normalised_time",
        x="chunks",
        colour="oversubscription",
        marks=True,
        log="x",
        width=1,
        also=[
            Layer(Rows("fill_formula"), "line", "with the pipeline's filling", "ink", "dashed"),
            Layer(Rows("limit"), "line", "the most loaded link", style="dotted"),
        ],
    ),
)

granularity = Figure(
    title="How finely messages are cut, and what they cost",
    shows="Completion time at 8:1, in units of vector over a card's rate, where no message goes "
    "in pieces larger than so many parts of the vector. Everywhere else all exchanges have the "
    "finest, and messages and sums cost nothing. A host's software does one message after another, "
    "while those before leave, and adds as fast as any other's: a box that sums for a rack does so "
    "for all of its cards.",
    of=[experiments.granularity],
    style=STYLE,
    chart=Heat(rows="normalised_time", x="pieces", y="method", panels="cost", order="value"),
)

exchanges = Figure(
    title="All exchanges against oversubscription",
    shows="Completion time in units of vector over a card's rate, on the network of Figure 6 at "
    "40 Gbit/s. A dash: the exchange refuses that network. On such a network some are the same "
    "transfers in other words: RAT, PLink and HiPS PS; BlueConnect and HiPS ring; and halving and "
    "doubling takes their time by other ways.",
    of=[experiments.exchanges],
    style=STYLE,
    chart=Heat(rows="normalised_time", x="oversubscription", y="method", order="value"),
)

_PAUSED = {"experiment": "figure7", "where": {"method": "Ring"}}
_SLOWER = Rows("slowdown", geometric=True, **_PAUSED)
_BESIDE = Rows("completion_time", relative_to={"method": "RAT"}, **_PAUSED)
_NEAR = [
    Outline("RAT-F7a", 0.1, "orange", "Ring's slowdown within 10 % of {}", _SLOWER),
    Outline("RAT-F7b", 0.1, "vermillion", "Ring to RAT within 10 % of {}", _BESIDE),
]


def _nearest(rows: pd.DataFrame) -> pd.DataFrame:
    """The k and d that are nearest to both ratios, as coordinates of one row."""
    k, d = (rows[rows["metric"] == name] for name in ("paused_nodes", "redraw_period"))
    return k.assign(k=k["value"].to_numpy(), d=d["value"].to_numpy())


_NEAREST = Layer(Rows("paused_nodes", experiment="joint", prepare=_nearest), "s", "nearest to both")

figure7 = Figure(
    title="Figure 7: pausing nodes",
    shows="64 servers in 2 racks at 40 Gbit/s; from the start k random nodes stop sending, "
    "redrawn every d. Left, Ring relative to itself without pauses. Right, Ring relative to RAT "
    "under the same pauses. Means over draws. Outlined is what agrees with a printed ratio, which "
    "no verdict rests on: claims are judged by the worst cell and by the mean of the whole grid.",
    says="Ring is 12 times slower on average in the worst case, RAT 5.7 times as fast as Ring. It "
    "prints neither k nor d, and the figure itself is lost in the stored text.",
    of=[experiments.figure7, experiments.joint],
    style=STYLE,
    chart=[
        Heat(rows=rows, x="k", y="d", title=title, outlines=_NEAR, mark=_NEAREST)
        for title, rows in (("Ring's slowdown", _SLOWER), ("Ring to RAT", _BESIDE))
    ],
)

survival = Figure(
    title="All exchanges with pausing nodes",
    shows="Slowdown of every exchange on the network of Figure 7 for one k and d of its grid (see "
    "the recipe under Parameters), each against itself without pauses: what is slow anyway, as "
    "a full mix and k-nomial trees, has less to lose. Only workers pause, ParameterHub's boxes "
    "do not. Bars are 95 % intervals over draws.",
    says="A chain blocks everyone behind the paused node; PS and RAT have short ones.",
    of=[experiments.survival],
    style=STYLE,
    chart=Dots(
        rows=Rows("slowdown", geometric=True),
        y="method",
        order="value",
        log="x",
        label="times its own time without pauses",
    ),
)

disturbances = Figure(
    title="Failed links, bursts and priorities",
    shows="Slowdown when, for a while, a cable between a rack and a spine fails, bursts of "
    "background flows fill a rack's uplinks, or traffic of higher priority takes most of them "
    "(see the recipe). Means over which cable, or which rack, it is, with 95 % intervals; a "
    "failed cable is not routed around. Flows share links evenly, so many flows of an exchange "
    "leave little to a burst; a slowdown just under 1 is another order of sharing.",
    says="All three are named as what goes wrong in data centres; none is simulated.",
    of=[experiments.disturbances],
    style=STYLE,
    chart=Dots(
        rows=Rows("slowdown", geometric=True),
        y="method",
        colour="kind",
        label="times its own time without",
        lines=[Line(1, style="solid")],
    ),
)

asymmetric = Figure(
    title="Uneven networks, uneven loads",
    shows="RAT with its vector spread over the trees evenly, and as a linear program does that "
    "unloads the slowest link. Ticks are the least time that each spread allows.",
    says="Left to future work.",
    of=[experiments.asymmetric],
    style=STYLE,
    chart=Dots(
        rows="completion_time",
        y="scenario",
        colour="split",
        limits=(0, None),
        also=[Layer(Rows("bound_time"), "|", "least for these loads")],
    ),
)


@table(
    title="Packets and fluid",
    shows="The same plan on the same network of 16 and of 64 hosts in ns-3 and in the fluid "
    "simulator, and the time that each needs, compiled and asked for the first time. Transport, "
    "buffers and message size are in the recipe. A reason stands where they differ by more than "
    "10 %, if a further run established it. With 16 hosts above 2:1 an uplink is slower than a "
    "card, and Ring, with its one connection from rack to rack, uses one of two: RAT is ahead.",
    says="Everything in it was simulated with ns-3; no transport is named.",
    of=[experiments.packet, experiments.packet_large],
)
def packet_table(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Fluid simulation beside ns-3, with the reason where they differ, and what each costs."""
    cell = ["workers", "method", "oversubscription", "faults"]
    times = rows[(rows["metric"] == "completion_time") & (rows["status"] == "ok")]
    kinds = {kind: one.set_index([*cell, "seed"]) for kind, one in times.groupby("evidence")}
    if not {"simulated", "packet"} <= kinds.keys():
        raise tables.Missing("no cell that both ns-3 and the fluid simulator ran")
    fluid, packets = kinds["simulated"], kinds["packet"]
    ratio = packets["value"] / fluid["value"]
    wall = tables.wide(rows[rows["metric"] == "wall_time"], cell, "variant")
    made = pd.DataFrame(
        {
            "fluid, s": tables.mean(fluid["value"], cell),
            "ns-3, s": tables.mean(packets["value"], cell),
            "ns-3 / fluid": tables.mean(ratio, cell, "ratio"),
            "reason": packets.groupby(cell)["reason"].agg(tables.distinct),
            "fluid takes, s": wall["fluid"],
            "ns-3 takes, s": wall["ns-3"],
            "times faster": wall["ns-3"] / wall["fluid"],
        }
    ).dropna(subset="ns-3 / fluid")
    made = made.reindex(fluid.droplevel("seed").index.unique().intersection(made.index))
    made = made.reset_index().rename(columns={"method": "exchange", "workers": "hosts"})
    return made.assign(oversubscription=made["oversubscription"].map("{:g}:1".format))


packet = Figure(
    title="Packets and fluid, cell by cell",
    shows="Completion time in ns-3 relative to the fluid simulation. The grey band is 10 %.",
    of=[experiments.packet],
    style=STYLE,
    chart=Dots(
        rows=Rows("completion_time", {"evidence": "packet"}, relative_to={"evidence": "simulated"}),
        y=("method", "oversubscription"),
        colour="method",
        panels="faults",
        share="x",
        label="ns-3 / fluid",
        lines=[Band(0.9, 1.1, "within 10 %"), Line(1, style="solid")],
    ),
)

scale = Figure(
    title="What the simulator costs",
    shows="One symmetric exchange, after compilation, in a process of its own on the machine named "
    "under Provenance. Every message is one transfer.",
    of=[experiments.scale],
    style=STYLE,
    chart=[
        Lines(rows="wall_time", x="workers", colour="method", log="xy", label="time to simulate"),
        Lines(
            rows=Rows("transfers", relative_to={"metric": "wall_time", "evidence": "measured"}),
            x="workers",
            colour="method",
            log="xy",
            label="transfers",
        ),
    ],
)


@table(
    title="What the simulator costs, in numbers",
    shows="Memory is what the process held at most, beyond what it held before.",
    of=[experiments.scale],
)
def scale_table(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """What simulating one exchange costs."""
    found = tables.wide(rows, ["method", "workers"])
    found["speed"] = found["transfers"] / found["wall_time"]
    named = {
        "transfers": "transfers",
        "plan_time": "to plan, s",
        "wall_time": "to simulate, s",
        "speed": "transfers a second",
        "peak_memory": "memory, MB",
    }
    made = found[[name for name in named if name in found]].rename(columns=named)
    return made.reset_index().rename(columns={"method": "exchange"})
