"""RAT's figures and tables: exchanges on simulated networks, with faults and beside ns-3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from slowlink.testbed.results import Row
from slowlink.testbed.training.recipe import Of
from slowlink.workflow import experiment as declarations
from slowlink.workflow.experiment import PLANNING, Section, Seeds, Sizes, experiment

if TYPE_CHECKING:
    from slowlink.workflow.settings import Check

if not PLANNING:
    import dataclasses
    import functools
    import math
    import resource
    import time
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    import numpy as np
    import pandas as pd
    from scipy.optimize import brentq

    from slowlink.methods import exchange
    from slowlink.methods.exchange import Plan, Topology
    from slowlink.testbed.network import (
        Faults,
        Network,
        Paths,
        balancing,
        bound,
        closed_forms,
        counting,
        faults,
        longest_chain,
        node_traffic,
        region_traffic,
        simulate,
        topology,
    )
    from slowlink.testbed.network import packet as ns3
    from slowlink.testbed.results import coordinates

AGREES = 0.1
"""Share within which two simulators agree."""


class Method(BaseModel):
    """An exchange by name; every other key is an option of it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    exchange: Annotated[str, Of("exchange")]

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Settings(declarations.Settings):
    """What all experiments share: the vector, the choice of paths, and the exchanges.

    ``pieces``: no message goes in pieces larger than 1/``pieces`` of the vector.
    """

    model: str
    nbytes: PositiveFloat
    pieces: PositiveInt
    synchronization: Annotated[str, Of("synchronization")]
    paths: Literal["first", "ecmp", "balanced"]
    seed: int
    latency: NonNegativeFloat
    methods: dict[str, Method]

    def check(self, check: Check) -> None:
        for label in ("PS", "Ring", "RAT"):
            check.need("methods", label, self.methods)
        for name in ("figure6", "figure7", "packet", "packet_large", "disturbances", "scale"):
            for label in getattr(self, name).methods:
                check.need(f"{name}.methods", label, self.methods)
        racks = self.figure7.racks * self.figure7.per_rack
        if self.survival.paused >= racks:
            check.fail("survival.paused", _too_many(self.survival.paused, racks))


def _too_many(paused: int, workers: int) -> str:
    return f"of {workers} workers at least one must go on, not pause {paused}"


Bench = declarations.Bench[Settings]


# What experiments share ---------------------------------------------------------------------------


def _plan(
    bench: Bench, label: str, network: Topology, pieces: int | None = None, **changes: object
) -> Plan:
    """A method's plan, in ``pieces`` as all are if none are given."""
    chosen = bench.settings.methods[label]
    plan = exchange.load(chosen.exchange, **(chosen.options | changes))(network)
    return exchange.in_pieces(plan, pieces or bench.settings.pieces)


def _paths(bench: Bench) -> Paths:
    return Paths(bench.settings.paths, bench.settings.seed)


def _leaves(bench: Bench, racks: int, per_rack: object, rate: float, spines: int, **options):
    options = {"latency": bench.settings.latency, "helpers": True} | options
    return topology.leaf_spine(racks, per_rack, rate, spines=spines, **options)


def _completion(bench: Bench, plan: Plan, network: Topology, **options) -> float:
    options = {"paths": _paths(bench)} | options
    return simulate(plan, network, bench.settings.nbytes, **options).completion_s


def _row(
    bench: Bench, metric: str, value: float, unit: str, network: Topology | None = None, **fields
) -> Row:
    """A row whose coordinate ``method`` names its exchange, on a network with so many workers."""
    at = fields.get("at", {})
    method = bench.settings.methods.get(at.get("method", ""))
    if network is not None:
        fields.setdefault("workers", len(network.workers))
    mine = dict(
        case=" ".join(str(value) for value in at.values()),
        exchange=method.exchange if method else "",
        compression="identity",
        synchronization=bench.settings.synchronization,
        model=bench.settings.model,
        evidence="simulated",
    )
    return bench.row(metric, value, unit, **mine | fields)


def _refused(bench: Bench, metric: str, unit: str, error: ValueError, **fields) -> Row:
    """The row of an exchange that this network does not suit."""
    failed = _row(bench, metric, 0.0, unit, **fields)
    return failed.model_copy(update=dict(value=math.nan, status="failed", reason=str(error)))


def _times(bench: Bench, seconds: float, rate: float, **fields) -> Iterator[Row]:
    """Completion in seconds, and in times that a card needs for the vector."""
    yield _row(bench, "completion_time", seconds, "s", **fields)
    normalised = seconds * rate / (8 * bench.settings.nbytes)
    yield _row(bench, "normalised_time", normalised, "1", **fields)


def _uplinks(network: Topology, rack: int, spine: int) -> list[int]:
    """The cable between a rack and a spine: the link up, and the link down."""
    ends = f"rack{rack}/switch", f"spine{spine}"
    return [int(topology.links_between(network, *way)[0]) for way in (ends, ends[::-1])]


# Without faults -----------------------------------------------------------------------------------


class Figure6(Section):
    """Racks of so many workers under spines; every uplink has a card's rate."""

    racks: PositiveInt
    spines: PositiveInt
    per_rack: Sizes
    rates: list[PositiveFloat]
    methods: list[str]


@experiment()
def figure6(bench: Bench, figure6: Figure6) -> Iterator[Row]:
    """Completion time against oversubscription."""
    for rate in figure6.rates:
        for per_rack in figure6.per_rack:
            network = _leaves(bench, figure6.racks, per_rack, rate, figure6.spines)
            for method in figure6.methods:
                at = dict(method=method, oversubscription=per_rack / figure6.spines)
                bench.say(f"figure 6: {method}, {per_rack} workers a rack at {rate:g} bit/s")
                plan = _plan(bench, method, network)
                same = dict(at=at, network=network, bandwidth=rate)
                for choice in ("balanced", "ecmp"):
                    paths = Paths(choice, bench.settings.seed)
                    seconds = _completion(bench, plan, network, paths=paths)
                    yield from _times(bench, seconds, rate, variant=choice, **same)
                least = bound(plan, network, bench.settings.nbytes, paths=_paths(bench))
                yield _row(bench, "bound_time", least, "s", evidence="computed", **same)


@experiment(after=[figure6], methods=(), minutes=5, memory_mb=1000)
def gains(bench: Bench, rows: pd.DataFrame, figure6: Figure6) -> Iterator[Row]:
    """How many times RAT's time PS takes, by what the document may average over.

    Its text says on average over all bandwidth settings, its English abstract on average, and its
    title at most.
    """
    found = coordinates(
        rows[(rows["metric"] == "completion_time") & (rows["variant"] == "balanced")]
    )
    times = found.set_index(["method", "oversubscription", "bandwidth"])["value"]
    ratio = times["PS"] / times["RAT"]
    over = {
        "all settings": ratio.mean(),
        "bandwidths, at the highest oversubscription": ratio.loc[ratio.index.max()[0]].mean(),
        "the largest": ratio.max(),
    }
    for what, value in over.items():
        yield _row(bench, "ps_over_rat", value, "1", at=dict(over=what))


class Taken(Section):
    """What the document does not say, where it is otherwise than in the rest of the recipe: pieces
    of the vector in which a method's messages go, and seconds a cable."""

    pieces: dict[str, PositiveInt] = {}
    latency: NonNegativeFloat | None = None


class Silent(Section):
    """Figure 6 taken otherwise, by what a reader calls that."""

    taken: dict[str, Taken]


HERE = "as in Figure 6"


@experiment(after=[figure6], methods=("PS", "Ring", "RAT"))
def silent(bench: Bench, rows: pd.DataFrame, figure6: Figure6, silent: Silent) -> Iterator[Row]:
    """Ring to RAT and PS to Ring in Figure 6, and where what its text leaves open is otherwise."""
    found = coordinates(rows[rows["metric"] == "completion_time"])
    axes = ["variant", "method", "oversubscription", "bandwidth"]
    times = found.set_index(axes)["value"].sort_index()
    balanced, hashed = times["balanced"], times["ecmp"]
    taken = {
        HERE: balanced,
        "paths by hashing": hashed,
        "RAT waits at every level": balanced.drop("RAT").rename({"RAT barrier": "RAT"}),
    }
    for name, one in silent.taken.items():
        latency = bench.settings.latency if one.latency is None else one.latency
        spent = {}
        for rate in figure6.rates:
            for per_rack in figure6.per_rack:
                bench.say(f"figure 6 {name}: {per_rack} workers a rack at {rate:g} bit/s")
                network = _leaves(
                    bench, figure6.racks, per_rack, rate, figure6.spines, latency=latency
                )
                for method in ("PS", "Ring", "RAT"):
                    plan = _plan(bench, method, network, one.pieces.get(method))
                    at = method, per_rack / figure6.spines, rate
                    spent[at] = _completion(bench, plan, network)
        taken[name] = pd.Series(spent)
    for name, seconds in taken.items():
        ring = seconds["Ring"] / seconds["RAT"]
        told = {
            "ring_over_rat": ring.mean(),
            "largest_ring_over_rat": ring.max(),
            "least_ring_over_rat": ring.min(),
            "least_ps_over_ring": (seconds["PS"] / seconds["Ring"]).min(),
        }
        for metric, value in told.items():
            yield _row(bench, metric, value, "1", at=dict(taken=name))


class LatencyNeeded(Section):
    """The ratio of Ring to RAT that a latency must explain, and latencies (s) that are tried."""

    ratio: Annotated[float, Field(gt=1)]
    hops: list[NonNegativeFloat]


@experiment(methods=("Ring", "RAT"))
def latency(bench: Bench, figure6: Figure6, latency_needed: LatencyNeeded) -> Iterator[Row]:
    """The latency of a message at which Ring takes so much longer than RAT."""
    for rate in figure6.rates:
        for per_rack in figure6.per_rack:
            bench.say(f"latency: {per_rack} workers a rack at {rate:g} bit/s")
            plans: dict[str, Plan] = {}

            @functools.cache
            def ratio(hop: float, per_rack=per_rack, rate=rate, plans=plans) -> float:
                # A message crosses two cards whether it stays in its rack or not.
                network = _leaves(
                    bench, figure6.racks, per_rack, rate, figure6.spines, latency=(hop / 2, 0.0)
                )
                for method in ("Ring", "RAT"):
                    plans.setdefault(method, _plan(bench, method, network))
                ring, rat = (_completion(bench, plans[m], network) for m in ("Ring", "RAT"))
                return ring / rat

            at = dict(oversubscription=per_rack / figure6.spines)
            same = dict(workers=figure6.racks * per_rack, bandwidth=rate)
            for hop in latency_needed.hops:
                yield _row(bench, "ring_over_rat", ratio(hop), "1", at=at | dict(hop=hop), **same)
            # A ring hides latencies up to the time of a message, for it goes in pieces.
            high = 2 * 8 * bench.settings.nbytes / rate / (figure6.racks * per_rack)
            needed = brentq(lambda hop: ratio(hop) - latency_needed.ratio, 0.0, high, rtol=1e-3)
            yield _row(bench, "needed_latency", needed, "s", at=at, **same)


class Pipelining(Section):
    """``uplinks``: rate of an uplink over that of a card."""

    per_rack: PositiveInt
    uplinks: list[PositiveFloat]
    chunks: Sizes


@experiment(methods=("RAT",))
def pipelining(bench: Bench, figure6: Figure6, pipelining: Pipelining) -> Iterator[Row]:
    """RAT in more and more chunks, where cards limit and where uplinks do."""
    rate, w = figure6.rates[-1], pipelining.per_rack
    for share in pipelining.uplinks:
        network = _leaves(
            bench, figure6.racks, w, rate, figure6.spines, uplink=share * rate, latency=0.0
        )
        uplinks = share * figure6.spines
        for chunks in pipelining.chunks:
            plan = dataclasses.replace(_plan(bench, "RAT", network), chunks=chunks)
            at = dict(method="RAT", oversubscription=w / uplinks, chunks=chunks)
            same = dict(at=at, network=network, bandwidth=rate)
            yield from _times(bench, _completion(bench, plan, network), rate, **same)
            formula = closed_forms.pipelined_rat(w, figure6.racks, uplinks, chunks)
            yield _row(bench, "fill_formula", formula, "1", evidence="computed", **same)
            least = bound(plan, network, bench.settings.nbytes, paths=_paths(bench))
            limit = least * rate / (8 * bench.settings.nbytes)
            yield _row(bench, "limit", limit, "1", evidence="computed", **same)


class Costs(Section):
    """What a message costs its sender (s), and payload bytes/s that a host adds up."""

    message_s: NonNegativeFloat = 0.0
    sum_rate: PositiveFloat | None = None

    @property
    def options(self) -> dict[str, float]:
        """The same as options of :class:`testbed.network.Network`."""
        return {"message_s": self.message_s, "sum_rate": self.sum_rate or math.inf}


class Granularity(Section):
    """How finely messages are cut, and by name what they cost besides their bytes."""

    per_rack: PositiveInt
    rate: PositiveFloat
    pieces: Sizes
    costs: dict[str, Costs]


@experiment()
def granularity(bench: Bench, figure6: Figure6, granularity: Granularity) -> Iterator[Row]:
    """Every method in coarser and finer pieces, where messages and sums cost nothing, or some."""
    chosen = granularity
    network = _leaves(bench, figure6.racks, chosen.per_rack, chosen.rate, figure6.spines)
    for method in bench.settings.methods:
        bench.say(f"granularity: {method}")
        for cost, costs in chosen.costs.items():
            for count in chosen.pieces:
                plan = _plan(bench, method, network, pieces=count)
                seconds = _completion(bench, plan, network, **costs.options)
                at = dict(method=method, pieces=count, cost=cost)
                same = dict(at=at, network=network, bandwidth=chosen.rate)
                yield from _times(bench, seconds, chosen.rate, **same)


class Exchanges(Section):
    per_rack: Sizes
    rate: PositiveFloat


@experiment()
def exchanges(bench: Bench, figure6: Figure6, exchanges: Exchanges) -> Iterator[Row]:
    """Every method against oversubscription."""
    for per_rack in exchanges.per_rack:
        network = _leaves(bench, figure6.racks, per_rack, exchanges.rate, figure6.spines)
        for method in bench.settings.methods:
            bench.say(f"exchanges: {method}, {per_rack} workers a rack")
            at = dict(method=method, oversubscription=per_rack / figure6.spines)
            same = dict(at=at, network=network, bandwidth=exchanges.rate)
            try:
                plan = _plan(bench, method, network)
            except ValueError as error:
                yield _refused(bench, "completion_time", "s", error, **same)
                continue
            seconds = _completion(bench, plan, network)
            yield from _times(bench, seconds, exchanges.rate, variant="balanced", **same)


# Pausing nodes ------------------------------------------------------------------------------------


class Figure7(Section):
    """``paused`` and ``periods`` are the document's k and d (seconds)."""

    racks: PositiveInt
    per_rack: PositiveInt
    rate: PositiveFloat
    oversubscription: PositiveFloat
    paused: Sizes
    periods: list[PositiveFloat]
    begin: NonNegativeFloat
    draws: Seeds
    methods: list[str]
    ring: PositiveFloat
    rat: PositiveFloat

    @model_validator(mode="after")
    def _some_go_on(self) -> Figure7:
        if max(self.paused) >= self.racks * self.per_rack:
            raise ValueError(f"paused: {_too_many(max(self.paused), self.racks * self.per_rack)}")
        return self


def _two_racks(bench: Bench, figure7: Figure7) -> Topology:
    uplink = figure7.rate * figure7.per_rack / (2 * figure7.oversubscription)
    return _leaves(bench, figure7.racks, figure7.per_rack, figure7.rate, 2, uplink=uplink)


def _paused_completion(
    bench: Bench,
    plan: Plan,
    network: Topology,
    pauses: tuple[int, float],
    draw: int,
    begin: float,
    free: float,
) -> float:
    """Completion while random nodes pause, redrawn for as long as it takes."""
    paused, period = pauses
    until = begin + 4 * free + 2 * period
    while True:
        drawn = faults.random_pauses(network.workers, paused, period, until, draw, begin)
        seconds = _completion(bench, plan, network, faults=drawn)
        if seconds <= until:
            return seconds
        until = 2 * until


@experiment(parts=lambda recipe: recipe.figure7.methods)
def figure7(bench: Bench, part: str, figure7: Figure7) -> Iterator[Row]:
    """One method while k random nodes pause, redrawn every d."""
    network = _two_racks(bench, figure7)
    plan = _plan(bench, part, network)
    free = _completion(bench, plan, network)
    same = dict(network=network, bandwidth=figure7.rate)
    yield _row(bench, "completion_time", free, "s", at=dict(method=part, k=0), **same)
    for paused in figure7.paused:
        for period in figure7.periods:
            at = dict(method=part, k=paused, d=period)
            bench.say(f"figure 7: {part}, k = {paused}, d = {period:g} s")
            for draw in figure7.draws:
                seconds = _paused_completion(
                    bench, plan, network, (paused, period), draw, figure7.begin, free
                )
                here = dict(at=at, seed=draw, **same)
                yield _row(bench, "completion_time", seconds, "s", **here)
                yield _row(bench, "slowdown", seconds / free, "1", **here)


@experiment(after=[figure7], methods=(), minutes=5, memory_mb=1000)
def joint(bench: Bench, rows: pd.DataFrame, figure7: Figure7) -> Iterator[Row]:
    """What the grid of Figure 7 says as a whole: its mean and its worst cell, draw by draw.

    The document prints neither k nor d, so no cell is the document's. Which is nearest to both
    printed ratios, and how many are near (10 %), is noted for the figure; nothing is judged by it.
    Distances are those of logarithms.
    """
    times = coordinates(rows[rows["metric"] == "completion_time"])
    paused = times.dropna(subset="d").set_index(["method", "k", "d", "seed"])["value"].sort_index()
    free = times[times["k"] == 0].set_index("method")["value"]
    grid = [(float(k), d) for k in figure7.paused for d in figure7.periods]

    def over(ours: str, theirs: str = "") -> pd.DataFrame:
        """Ratios of two methods' times, a row a cell and a column a draw; without the second, to
        what the first takes without pauses."""
        cells = {
            cell: paused.loc[ours, *cell] / (paused.loc[theirs, *cell] if theirs else free[ours])
            for cell in grid
        }
        return pd.DataFrame(cells).T

    ring = {
        name: over("Ring", "" if name == "itself" else name) for name in ("PS", "RAT", "itself")
    }
    for against, ratios in ring.items():
        yield from _over_the_grid(bench, "ring_over", ratios, against, figure7)
    yield from _over_the_grid(bench, "rat_over", over("RAT", "PS"), "PS", figure7)

    mean = np.exp(np.log(pd.concat(ring, axis=1)).T.groupby(level=0).mean().T)
    off = np.abs(np.log(mean[["itself", "RAT"]] / [figure7.ring, figure7.rat]))
    best = mean.index[np.hypot(*off.to_numpy().T).argmin()]
    at = dict(over="nearest")
    yield _row(bench, "paused_nodes", best[0], "1", at=at)
    yield _row(bench, "redraw_period", best[1], "s", at=at)
    near = off < np.log(1.1)
    for against, inside in {**near, "both": near.all(axis=1)}.items():
        yield _row(bench, "near", 100 * inside.mean(), "%", at=dict(against=against, over="share"))


def _over_the_grid(
    bench: Bench, metric: str, ratios: pd.DataFrame, against: str, figure7: Figure7
) -> Iterator[Row]:
    """The mean of every draw over the grid and over halves of it, and the cell that is worst on
    average over draws, with its place."""
    k, d = (ratios.index.get_level_values(level) for level in (0, 1))
    few, short = k <= np.median(figure7.paused), d <= np.median(figure7.periods)
    parts = {
        "mean": np.ones(len(ratios), bool),
        "mean of few paused": few,
        "mean of many paused": ~few,
        "mean of short periods": short,
        "mean of long periods": ~short,
        "worst": np.arange(len(ratios)) == np.log(ratios).mean(axis=1).to_numpy().argmax(),
    }
    for part, cells in parts.items():
        at = dict(against=against, over=part)
        for draw, value in ratios[cells].mean().items():
            yield _row(bench, metric, value, "1", at=at, seed=draw)
    ((worst_k, worst_d),) = ratios.index[parts["worst"]]
    yield _row(bench, f"{metric}_paused", worst_k, "1", at=at)
    yield _row(bench, f"{metric}_period", worst_d, "s", at=at)


class Pauses(Section):
    paused: PositiveInt
    period: PositiveFloat
    draws: Seeds


@experiment()
def survival(bench: Bench, figure7: Figure7, survival: Pauses) -> Iterator[Row]:
    """Every method while nodes pause."""
    network = _two_racks(bench, figure7)
    for method in bench.settings.methods:
        bench.say(f"survival: {method}")
        at = dict(method=method, faults="free")
        same = dict(network=network, bandwidth=figure7.rate)
        try:
            plan = _plan(bench, method, network)
        except ValueError as error:
            yield _refused(bench, "completion_time", "s", error, at=at, **same)
            continue
        free = _completion(bench, plan, network)
        yield _row(bench, "completion_time", free, "s", at=at, **same)
        at = dict(method=method, faults="paused")
        for draw in survival.draws:
            seconds = _paused_completion(
                bench, plan, network, (survival.paused, survival.period), draw, 0.0, free
            )
            here = dict(at=at, seed=draw, **same)
            yield _row(bench, "completion_time", seconds, "s", **here)
            yield _row(bench, "slowdown", seconds / free, "1", **here)


# Counted ------------------------------------------------------------------------------------------


class Table1(Section):
    """Shapes of networks: workers a rack, racks a pod, pods a zone, zones."""

    shapes: Annotated[list[Sizes], Field(min_length=1)]


@experiment()
def table1(bench: Bench, table1: Table1) -> Iterator[Row]:
    """Traffic out of every oversubscribed region and the longest chain, counted on plans."""
    for shape in table1.shapes:
        network = topology.tree(tuple(shape), 1e9, helpers=True)
        for method, chosen in bench.settings.methods.items():
            at = dict(method=method, shape="x".join(map(str, shape)))
            same = dict(at=at, network=network, evidence="computed")
            try:
                plan = _plan(bench, method, network, pieces=1)
            except ValueError as error:
                yield _refused(bench, "chain", "1", error, **same)
                continue
            found = {
                f"egress_{layer}": traffic.egress.max()
                for layer, traffic in region_traffic(plan, network).items()
            }
            found["chain"] = longest_chain(plan, part="push")
            found["chain_whole"] = longest_chain(plan)
            found["node_egress"] = node_traffic(plan, network).egress[network.workers].max()
            formula = closed_forms.table1(chosen.exchange, chosen.options, tuple(shape))
            found |= {f"{name}_formula": value for name, value in formula.items()}
            least = counting.least_egress(network)
            found |= {f"least_{layer}": value for layer, value in least.items()}
            for metric, value in found.items():
                yield _row(bench, metric, value, "1", **same)


class ChainBlocking(Section):
    workers: Sizes


@experiment(methods=("Ring",), minutes=5)
def chain_blocking(bench: Bench, chain_blocking: ChainBlocking) -> Iterator[Row]:
    """§2.2, Figure 4: what a ring still sends while its first node is blocked."""
    for n in chain_blocking.workers:
        network = topology.star(n, 1e9)
        first = int(network.workers[0])
        blocked = Network(network, Faults(pauses=((first, 0.0, 1e6),)))
        blocked.start(exchange.load("ring")(network), bench.settings.nbytes)
        blocked.advance(1e5)
        sent = np.bincount(network.link_src, blocked.link_bytes) / bench.settings.nbytes
        shares = sent[network.workers]
        full = n - 1  # vectors that all nodes together send in the first half
        for node, share in enumerate(shares, start=1):
            at = dict(method="Ring", node=node)
            yield _row(bench, "sent_share", share, "1", at=at, network=network)
        lost = 1 - shares.sum() / full
        yield _row(bench, "utilisation_loss", lost, "1", at=dict(method="Ring"), network=network)


class CrossLoad(Section):
    racks: PositiveInt
    per_rack: PositiveInt


@experiment(methods=("PS",), minutes=5)
def cross_load(bench: Bench, cross_load: CrossLoad) -> Iterator[Row]:
    """§2.1, Figure 3a: flows of a parameter server over a rack's uplink and over a card."""
    network = topology.leaf_spine(cross_load.racks, cross_load.per_rack, 1e9, spines=1)
    plan = _plan(bench, "PS", network, pieces=1)
    push = (plan.op == exchange.REDUCE).astype(float)
    ptr, links = counting.plan_routes(plan, network)
    flows = counting.spread(network, ptr, links, push)
    cards = np.isin(network.link_src, network.workers)
    racks = network.regions[0][network.link_src] >= 0
    cross = flows[racks & ~cards & (network.regions[0][network.link_dst] < 0)].max()
    inside = flows[cards].max()
    figures = {"cross_flows": cross, "in_rack_flows": inside, "extra_load": cross / inside - 1}
    at = dict(method="PS", racks=cross_load.racks, per_rack=cross_load.per_rack)
    for metric, value in figures.items():
        yield _row(bench, metric, value, "1", at=at, network=network, evidence="computed")


# Packets ------------------------------------------------------------------------------------------


class Packet(Section):
    """The plans that ns-3 repeats, and its transport (``testbed.network.packet.Tcp``)."""

    nbytes: PositiveFloat
    rate: PositiveFloat
    racks: PositiveInt
    per_rack: PositiveInt
    spines: PositiveInt
    latency: NonNegativeFloat
    oversubscription: list[PositiveFloat]
    paused_oversubscription: list[PositiveFloat]
    methods: list[str]
    pauses: Pauses
    tcp: dict[str, Any]

    @model_validator(mode="after")
    def _fits(self) -> Packet:
        for ratio in self.paused_oversubscription:
            if ratio not in self.oversubscription:
                raise ValueError(f"paused_oversubscription: {ratio:g} is not in oversubscription")
        if self.pauses.paused >= self.racks * self.per_rack:
            hosts = self.racks * self.per_rack
            raise ValueError(f"pauses.paused: {_too_many(self.pauses.paused, hosts)}")
        return self


class PacketLarge(Section):
    """The same with more hosts, at one oversubscription and without pauses."""

    per_rack: PositiveInt
    oversubscription: PositiveFloat
    nbytes: PositiveFloat
    methods: list[str]


def _packet_network(bench: Bench, packet: Packet, per_rack: int, oversubscription: float):
    uplink = packet.rate * per_rack / (packet.spines * oversubscription)
    options = dict(uplink=uplink, latency=packet.latency)
    return _leaves(bench, packet.racks, per_rack, packet.rate, packet.spines, **options)


@experiment(parts=lambda recipe: recipe.packet.methods)
def packet(bench: Bench, part: str, packet: Packet) -> Iterator[Row]:
    """The same plan in ns-3 and in the fluid simulator."""
    cells = [(o, None) for o in packet.oversubscription]
    cells += [(o, draw) for o in packet.paused_oversubscription for draw in packet.pauses.draws]
    free: dict[float, float] = {}
    for oversubscription, draw in cells:
        network = _packet_network(bench, packet, packet.per_rack, oversubscription)
        at = dict(method=part, oversubscription=oversubscription)
        at["faults"] = "free" if draw is None else "paused"
        same = dict(at=at, network=network, bandwidth=packet.rate)
        paused = None
        if draw is not None:
            same["seed"] = draw
            chosen = packet.pauses
            until = 40 * free[oversubscription]
            paused = faults.random_pauses(
                network.workers, chosen.paused, chosen.period, until, draw
            )
        bench.say(f"packet: {part}, {oversubscription:g}:1, {at['faults']}")
        # Pieces of as many bytes as elsewhere: smaller ones would fit whole into what a paused node
        # has written and still leaves, so that packets would not pause where the fluid does.
        count = max(1, round(bench.settings.pieces * packet.nbytes / bench.settings.nbytes))
        plan = _plan(bench, part, network, pieces=count)
        for row in _side_by_side(bench, plan, network, packet.nbytes, packet.tcp, paused, same):
            if row.evidence == "simulated":
                free.setdefault(oversubscription, row.value)
            yield row


@experiment(parts=lambda recipe: recipe.packet_large.methods)
def packet_large(
    bench: Bench, part: str, packet: Packet, packet_large: PacketLarge
) -> Iterator[Row]:
    """As many hosts as Figure 6 has, in ns-3 and in the fluid simulator."""
    chosen = packet_large
    network = _packet_network(bench, packet, chosen.per_rack, chosen.oversubscription)
    at = dict(method=part, oversubscription=chosen.oversubscription, faults="free")
    same = dict(at=at, network=network, bandwidth=packet.rate)
    bench.say(f"packet: {part}, {len(network.workers)} hosts")
    plan = _plan(bench, part, network)
    yield from _side_by_side(bench, plan, network, chosen.nbytes, packet.tcp, None, same)


def _side_by_side(
    bench: Bench,
    plan: Plan,
    network: Topology,
    nbytes: float,
    settings: dict[str, Any],
    paused: Faults | None,
    same: dict[str, Any],
) -> Iterator[Row]:
    """A plan in both simulators, and what each cost; where they differ, what made them."""
    tcp, options = ns3.Tcp(**settings), dict(paths=_paths(bench), faults=paused)
    small = _leaves(bench, 2, 1, same["bandwidth"], 2)
    _completion(bench, exchange.load("ring")(small), small)  # compiles
    # A process of its own remembers no routes of the cells before.
    with ProcessPoolExecutor(1, get_context("fork")) as fresh:
        first = fresh.submit(_timed, plan, network, nbytes, efficiency=tcp.efficiency, **options)
        completion_s, fluid_s = first.result()
    yield _row(bench, "completion_time", completion_s, "s", **same)
    if why := ns3.available():
        yield _refused(bench, "completion_time", "s", ValueError(why), evidence="packet", **same)
        return

    def run(tcp: ns3.Tcp) -> ns3.PacketResult:
        return ns3.packet_simulate(plan, network, nbytes, tcp=tcp, progress=bench.say, **options)

    packets = run(tcp)
    why = _difference(packets, completion_s, tcp, run, paused is not None)
    counted = dict(evidence="packet", **same)
    yield _row(bench, "completion_time", packets.completion_s, "s", reason=why, **counted)
    for metric in ("drops", "timeouts", "recoveries"):
        yield _row(bench, metric, getattr(packets, metric), "1", **counted)
    for simulator, seconds in (("fluid", fluid_s), ("ns-3", packets.wall_s)):
        timed = dict(variant=simulator, evidence="measured", **same)
        yield _row(bench, "wall_time", seconds, "s", **timed)


def _timed(plan: Plan, network: Topology, nbytes: float, **options) -> tuple[float, float]:
    """When a plan completes, and how long simulating that takes."""
    # What came from another process may be written to, for which all would be compiled anew.
    plan, network = dataclasses.replace(plan), dataclasses.replace(network)
    begin = time.perf_counter()
    completion_s = simulate(plan, network, nbytes, **options).completion_s
    return completion_s, time.perf_counter() - begin


def _difference(
    packets: ns3.PacketResult,
    fluid_s: float,
    tcp: ns3.Tcp,
    run: Callable[[ns3.Tcp], ns3.PacketResult],
    pauses: bool = False,
) -> str:
    """Why packets took another time, where that is more than 10 %: the suspect without which a
    further run is within 10 % and has lost half of the difference; none, where no run is."""

    def off(result: ns3.PacketResult) -> float:
        return abs(result.completion_s / fluid_s - 1)

    if off(packets) <= AGREES:
        return ""
    suspects = []
    if packets.drops:
        larger = dataclasses.replace(tcp, queue_bytes=16 * tcp.queue_bytes)
        suspects.append((f"{packets.drops} packets dropped: with 16 times the queue", larger))
    if packets.timeouts:
        sooner = dataclasses.replace(tcp, min_rto_s=tcp.min_rto_s / 20)
        suspects.append(
            (f"{packets.timeouts} timeouts: with a twentieth of the least timeout", sooner)
        )
    if pauses:
        less = dataclasses.replace(tcp, unsent_bytes=tcp.unsent_bytes // 8)
        suspects.append(("what paused nodes had written still left: with an eighth of that", less))
    one = dataclasses.replace(tcp, initial_window=1)
    suspects.append(("windows that are large at first: with one segment", one))
    for what, other in suspects:
        again = run(other)
        if off(again) <= min(AGREES, off(packets) / 2):
            return f"{what} it takes {again.completion_s / fluid_s:.2f} times the fluid's time"
    return (
        f"not established: {packets.drops} packets dropped, {packets.timeouts} timeouts, and no "
        "other run agrees"
    )


# What else goes wrong -----------------------------------------------------------------------------


class Disturbance(Section):
    """``share``: of the links' rate that higher-priority traffic takes; ``flows``: of a burst."""

    kind: Literal["failed", "burst", "priority"]
    begin: NonNegativeFloat
    end: PositiveFloat
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    flows: PositiveInt = 1


class Disturbances(Section):
    per_rack: PositiveInt
    rate: PositiveFloat
    methods: list[str]
    kinds: dict[str, Disturbance]


@experiment()
def disturbances(bench: Bench, figure6: Figure6, disturbances: Disturbances) -> Iterator[Row]:
    """A failed cable, each in turn; a burst and higher-priority traffic at each rack's uplinks.

    The seed of a row is which cable or rack it was. Nothing is routed anew around a failed cable.
    """
    chosen = disturbances
    network = _leaves(bench, figure6.racks, chosen.per_rack, chosen.rate, figure6.spines)
    cables = [
        [_uplinks(network, rack, spine) for spine in range(figure6.spines)]
        for rack in range(figure6.racks)
    ]
    for method in chosen.methods:
        bench.say(f"disturbances: {method}")
        plan = _plan(bench, method, network)
        free = _completion(bench, plan, network)
        for name, kind in chosen.kinds.items():
            places = [[up for up, _ in rack] for rack in cables]
            if kind.kind == "failed":
                places = [cable for rack in cables for cable in rack]
            for place, links in enumerate(places):
                disturbed = _disturbed(kind, network, links)
                seconds = _completion(bench, plan, network, faults=disturbed)
                at = dict(method=method, kind=name)
                same = dict(at=at, network=network, bandwidth=chosen.rate, seed=place)
                yield _row(bench, "completion_time", seconds, "s", **same)
                yield _row(bench, "slowdown", seconds / free, "1", **same)


def _disturbed(kind: Disturbance, network: Topology, links: list[int]) -> Faults:
    span = (kind.begin, kind.end)
    if kind.kind == "failed":
        return faults.failed_links(links, *span)
    if kind.kind == "priority":
        rate = kind.share * network.link_rate[links[0]]
        return faults.priority(network, links, rate, *span)
    return Faults(bursts=[(link, *span, kind.flows) for link in links])


class Scenario(Section):
    """Racks by size and by the share of its uplinks' rate that each has; failed uplinks."""

    per_rack: Sizes
    uplinks: list[PositiveFloat]
    failed: list[tuple[int, int]] = []

    @model_validator(mode="after")
    def _a_share_each(self) -> Scenario:
        if len(self.per_rack) != len(self.uplinks):
            raise ValueError("uplinks: give one share a rack")
        return self


class Asymmetric(Section):
    rate: PositiveFloat
    spines: PositiveInt
    scenarios: dict[str, Scenario]


@experiment(methods=("RAT",))
def asymmetric(bench: Bench, asymmetric: Asymmetric) -> Iterator[Row]:
    """Loads over the trees that make the slowest link finish first, against the even split."""
    chosen = asymmetric
    for name, scenario in chosen.scenarios.items():
        shares = zip(scenario.uplinks, scenario.per_rack, strict=True)
        network = _leaves(
            bench,
            len(scenario.per_rack),
            scenario.per_rack,
            chosen.rate,
            chosen.spines,
            uplink=[share * chosen.rate * workers / chosen.spines for share, workers in shares],
        )
        failed = [link for cable in scenario.failed for link in _uplinks(network, *cable)]
        network = topology.without(network, failed)
        even = _plan(bench, "RAT", network)
        weights = balancing.tree_weights(even, network, _paths(bench))
        weighted = _plan(bench, "RAT", network, weights=tuple(weights))
        for split, plan in (("even", even), ("weighted", weighted)):
            at = dict(method="RAT", split=split, scenario=name)
            same = dict(at=at, network=network, bandwidth=chosen.rate)
            yield _row(bench, "completion_time", _completion(bench, plan, network), "s", **same)
            least = bound(plan, network, bench.settings.nbytes, paths=_paths(bench))
            yield _row(bench, "bound_time", least, "s", evidence="computed", **same)


# What simulating costs ----------------------------------------------------------------------------


class Scaling(Section):
    racks: PositiveInt
    spines: PositiveInt
    rate: PositiveFloat
    workers: Sizes
    methods: list[str]


@experiment(alone=True, memory_mb=8000)
def scale(bench: Bench, scale: Scaling) -> Iterator[Row]:
    """What simulating one exchange costs, each in a process of its own."""
    for method in scale.methods:
        for workers in scale.workers:
            bench.say(f"scale: {method}, {workers} workers")
            with ProcessPoolExecutor(1, get_context("fork")) as fresh:
                cost = fresh.submit(_cost, bench.settings, scale, method, workers).result()
            same = dict(at=dict(method=method), workers=workers, bandwidth=scale.rate)
            for metric, (value, unit) in cost.items():
                evidence = "computed" if metric == "transfers" else "measured"
                yield _row(bench, metric, value, unit, evidence=evidence, **same)


def _cost(
    settings: Settings, chosen: Scaling, method: str, workers: int
) -> dict[str, tuple[float, str]]:
    bench = declarations.Bench("rat", "scale", settings, "desk")
    small = _leaves(bench, chosen.racks, 1, chosen.rate, chosen.spines)
    _completion(bench, _plan(bench, method, small, pieces=1), small)  # compiles
    network = _leaves(bench, chosen.racks, workers // chosen.racks, chosen.rate, chosen.spines)
    held_mb, begin = _most_held_mb(), time.perf_counter()
    plan = _plan(bench, method, network, pieces=1)
    built = time.perf_counter()
    _completion(bench, plan, network)
    done = time.perf_counter()
    return {
        "plan_time": (built - begin, "s"),
        "wall_time": (done - built, "s"),
        "transfers": (int((plan.src != plan.dst).sum()), "1"),
        "peak_memory": (_most_held_mb() - held_mb, "MB"),
    }


def _most_held_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
