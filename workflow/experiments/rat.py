"""RAT's figures and tables, from its recipe: exchanges on simulated networks."""

from __future__ import annotations

import functools
import math
import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from methods import exchange
from methods.exchange import Plan, Topology
from testbed.network import (
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
    packet,
    region_traffic,
    simulate,
    topology,
)
from testbed.results import Row, Scale
from workflow.experiments._bench import Bench, Say
from workflow.recipes.rat import Rat

AGREES = 0.1
"""Share within which two simulators agree."""


class _Bench(Bench[Rat]):
    """Makes plans, too."""

    def plan(self, method: str, network: Topology, **changes: object) -> Plan:
        chosen = self.recipe.methods[method]
        return exchange.load(chosen.exchange, **(chosen.options | changes))(network)

    @property
    def paths(self) -> Paths:
        return Paths(self.recipe.paths, self.recipe.seed)

    def leaves(self, racks: int, per_rack: object, rate: float, spines: int, **options) -> Topology:
        options = {"latency": self.recipe.latency, "helpers": True} | options
        return topology.leaf_spine(racks, per_rack, rate, spines=spines, **options)

    def completion(self, plan: Plan, network: Topology, **options) -> float:
        options = {"paths": self.paths} | options
        return simulate(plan, network, self.recipe.nbytes, **options).completion_s

    def row(self, case: str, metric: str, value: float, unit: str, **fields) -> Row:
        """``method`` and ``network``: of the exchange."""
        method = self.recipe.methods.get(fields.pop("method", ""))
        network = fields.pop("network", None)
        if network is not None:
            fields.setdefault("workers", len(network.workers))
        mine = dict(
            exchange=method.exchange if method else "",
            compression="identity",
            synchronization=self.recipe.synchronization,
            model=self.recipe.model,
            evidence="simulated",
        )
        return super().row(case, metric, value, unit, **mine | fields)

    def refused(self, case: str, metric: str, unit: str, error: ValueError, **fields) -> Row:
        """The row of an exchange that this network does not suit."""
        failed = self.row(case, metric, 0.0, unit, **fields)
        return failed.model_copy(update=dict(value=math.nan, status="failed", reason=str(error)))


def rows(recipe: Rat, scale: Scale, experiment: str, say: Say = print) -> Iterator[Row]:
    """Rows of one job: an experiment, or of those that run a job a method ``experiment-method``."""
    name, _, method = experiment.partition("-")
    bench = _Bench(recipe, scale, name, say)
    if method:
        yield from _PARTS[name](bench, recipe.parts(name)[experiment])
    else:
        yield from _WHOLE[name](bench)


def _figure6(bench: _Bench) -> Iterator[Row]:
    """Completion time against oversubscription."""
    recipe, figure = bench.recipe, bench.recipe.figure6
    for rate in figure.rates:
        for per_rack in figure.per_rack:
            network = bench.leaves(figure.racks, per_rack, rate, figure.spines)
            for method in figure.methods:
                case = f"{method} {_ratio(per_rack, figure.spines)} {_gigabits(rate)}"
                bench.say(f"figure 6: {case}")
                plan = bench.plan(method, network)
                same = dict(method=method, network=network, bandwidth=rate)
                # Without latencies to speak of, rates only scale times: hash paths at one of them.
                for choice in ("balanced", "ecmp") if rate == figure.rates[-1] else ("balanced",):
                    seconds = bench.completion(plan, network, paths=Paths(choice, recipe.seed))
                    yield from _times(bench, case, seconds, rate, variant=choice, **same)
                least = bound(plan, network, recipe.nbytes, paths=bench.paths)
                yield bench.row(case, "bound_time", least, "s", evidence="computed", **same)


def _times(bench: _Bench, case: str, seconds: float, rate: float, **fields) -> Iterator[Row]:
    """Completion in seconds, and in times that a card needs for the vector."""
    yield bench.row(case, "completion_time", seconds, "s", **fields)
    yield bench.row(
        case, "normalised_time", seconds * rate / (8 * bench.recipe.nbytes), "1", **fields
    )


def _latency(bench: _Bench) -> Iterator[Row]:
    """The latency of a message at which Ring takes so much longer than RAT."""
    figure, wanted = bench.recipe.figure6, bench.recipe.latency_needed
    for rate in figure.rates:
        for per_rack in figure.per_rack:
            case = f"{_ratio(per_rack, figure.spines)} {_gigabits(rate)}"
            bench.say(f"latency: {case}")
            plans: dict[str, Plan] = {}

            @functools.cache
            def ratio(hop: float, per_rack=per_rack, rate=rate, plans=plans) -> float:
                # A message crosses two cards whether it stays in its rack or not.
                latency = (hop / 2, 0.0)
                network = bench.leaves(figure.racks, per_rack, rate, figure.spines, latency=latency)
                for method in ("Ring", "RAT"):
                    plans.setdefault(method, bench.plan(method, network))
                ring, rat = (bench.completion(plans[m], network) for m in ("Ring", "RAT"))
                return ring / rat

            same = dict(workers=figure.racks * per_rack, bandwidth=rate)
            for hop in wanted.hops:
                variant = f"hop={hop * 1e6:g}us"
                yield bench.row(case, "ring_over_rat", ratio(hop), "1", variant=variant, **same)
            high = 8 * bench.recipe.nbytes / rate / (figure.racks * per_rack)
            needed = brentq(lambda hop: ratio(hop) - wanted.ratio, 0.0, high, rtol=1e-3)
            yield bench.row(case, "needed_latency", needed, "s", **same)


def _pipelining(bench: _Bench) -> Iterator[Row]:
    """RAT in more and more chunks, where cards limit and where uplinks do."""
    figure, chosen = bench.recipe.figure6, bench.recipe.pipelining
    rate, w = figure.rates[-1], chosen.per_rack
    for share in chosen.uplinks:
        network = bench.leaves(
            figure.racks, w, rate, figure.spines, uplink=share * rate, latency=0.0
        )
        uplinks = share * figure.spines
        for chunks in chosen.chunks:
            case = f"RAT chunks={chunks}"
            plan = bench.plan("RAT", network, chunks=chunks)
            same = dict(method="RAT", network=network, bandwidth=rate)
            same["variant"] = _ratio(w, uplinks)
            yield from _times(bench, case, bench.completion(plan, network), rate, **same)
            formula = closed_forms.pipelined_rat(w, figure.racks, uplinks, chunks)
            yield bench.row(case, "fill_formula", formula, "1", evidence="computed", **same)
            least = bound(plan, network, bench.recipe.nbytes, paths=bench.paths)
            limit = least * rate / (8 * bench.recipe.nbytes)
            yield bench.row(case, "limit", limit, "1", evidence="computed", **same)


def _exchanges(bench: _Bench) -> Iterator[Row]:
    """Every method against oversubscription."""
    figure, chosen = bench.recipe.figure6, bench.recipe.exchanges
    for per_rack in chosen.per_rack:
        network = bench.leaves(figure.racks, per_rack, chosen.rate, figure.spines)
        for method in bench.recipe.methods:
            case = f"{method} {_ratio(per_rack, figure.spines)}"
            bench.say(f"exchanges: {case}")
            same = dict(method=method, network=network, bandwidth=chosen.rate)
            try:
                plan = bench.plan(method, network)
            except ValueError as error:
                yield bench.refused(case, "completion_time", "s", error, **same)
                continue
            seconds = bench.completion(plan, network)
            yield from _times(bench, case, seconds, chosen.rate, variant="balanced", **same)


def _two_racks(bench: _Bench) -> Topology:
    figure = bench.recipe.figure7
    uplink = figure.rate * figure.per_rack / (2 * figure.oversubscription)
    return bench.leaves(figure.racks, figure.per_rack, figure.rate, 2, uplink=uplink)


def _paused_completion(
    bench: _Bench,
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
        seconds = bench.completion(plan, network, faults=drawn)
        if seconds <= until:
            return seconds
        until = 2 * until


def _survival(bench: _Bench) -> Iterator[Row]:
    """Every method while nodes pause."""
    chosen, network = bench.recipe.survival, _two_racks(bench)
    rate = bench.recipe.figure7.rate
    for method in bench.recipe.methods:
        bench.say(f"survival: {method}")
        same = dict(method=method, network=network, bandwidth=rate)
        try:
            plan = bench.plan(method, network)
        except ValueError as error:
            yield bench.refused(method, "completion_time", "s", error, **same)
            continue
        free = bench.completion(plan, network)
        yield bench.row(method, "completion_time", free, "s", variant="free", **same)
        for draw in chosen.draws:
            seconds = _paused_completion(
                bench, plan, network, (chosen.paused, chosen.period), draw, 0.0, free
            )
            same_draw = same | dict(variant="paused", seed=draw)
            yield bench.row(method, "completion_time", seconds, "s", **same_draw)
            yield bench.row(method, "slowdown", seconds / free, "1", **same_draw)


def _figure7(bench: _Bench, method: str) -> Iterator[Row]:
    """One method while k random nodes pause, redrawn every d."""
    figure, network = bench.recipe.figure7, _two_racks(bench)
    plan = bench.plan(method, network)
    free = bench.completion(plan, network)
    same = dict(method=method, network=network, bandwidth=figure.rate)
    yield bench.row(f"{method} k=0", "completion_time", free, "s", **same)
    for paused in figure.paused:
        for period in figure.periods:
            case = f"{method} k={paused} d={_milliseconds(period)}"
            bench.say(f"figure 7: {case}")
            for draw in figure.draws:
                seconds = _paused_completion(
                    bench, plan, network, (paused, period), draw, figure.begin, free
                )
                yield bench.row(case, "completion_time", seconds, "s", seed=draw, **same)
                yield bench.row(case, "slowdown", seconds / free, "1", seed=draw, **same)


def joint(recipe: Rat, scale: Scale, results: pd.DataFrame) -> Iterator[Row]:
    """Where in the grid of Figure 7 both printed ratios fit best, and how much of it fits at all.

    The document prints neither k nor d. Distances are those of logarithms; a ratio fits within
    10 %.
    """
    bench = _Bench(recipe, scale, "figure7_joint", print)
    figure = recipe.figure7
    times = results[results["metric"] == "completion_time"].set_index(["case", "seed"])["value"]

    def seconds(method: str, paused: int, period: float) -> pd.Series:
        return times.loc[f"{method} k={paused} d={_milliseconds(period)}"].sort_index()

    cells = {}
    for paused in figure.paused:
        for period in figure.periods:
            ring, rat, ps = (seconds(name, paused, period) for name in ("Ring", "RAT", "PS"))
            cells[paused, period] = {
                "ring_slowdown": ring / times.loc["Ring k=0"].iloc[0],
                "ring_over_rat": ring / rat,
                "rat_over_ps": rat / ps,
                "ring_over_ps": ring / ps,
            }
    mean = pd.DataFrame(
        {
            cell: {name: np.exp(np.log(v).mean()) for name, v in c.items()}
            for cell, c in cells.items()
        }
    ).T
    off = np.abs(np.log(mean[["ring_slowdown", "ring_over_rat"]] / [figure.ring, figure.rat]))
    best = np.hypot(*off.to_numpy().T).argmin()
    paused, period = mean.index[best]
    yield bench.row("joint", "paused_nodes", paused, "1")
    yield bench.row("joint", "redraw_period", period, "s")
    for name, values in cells[paused, period].items():
        for draw, value in values.items():
            yield bench.row("joint", name, value, "1", seed=draw)
    fits = off < np.log(1.1)
    share = {"share_ring": fits["ring_slowdown"], "share_rat": fits["ring_over_rat"]}
    share["share_joint"] = fits.all(axis=1)
    for name, inside in share.items():
        yield bench.row("grid", name, 100 * inside.mean(), "%")
    yield bench.row("grid", "ring_over_rat_mean", mean["ring_over_rat"].mean(), "1")
    yield bench.row("grid", "ring_slowdown_max", mean["ring_slowdown"].max(), "1")
    for name in ("ring_over_rat", "ring_over_ps"):
        yield bench.row("grid", f"{name}_max", mean[name].max(), "1")


def _table1(bench: _Bench) -> Iterator[Row]:
    """Traffic out of every oversubscribed region and the longest chain, counted on plans."""
    recipe = bench.recipe
    for shape in recipe.table1.shapes:
        network = topology.tree(tuple(shape), 1e9, helpers=True)
        for method in recipe.methods:
            same = dict(method=method, network=network, variant="x".join(map(str, shape)))
            same["evidence"] = "computed"
            try:
                plan = bench.plan(method, network, chunks=1)
            except ValueError as error:
                yield bench.refused(method, "chain", "1", error, **same)
                continue
            found = {
                f"egress_{layer}": traffic.egress.max()
                for layer, traffic in region_traffic(plan, network).items()
            }
            found["chain"] = longest_chain(plan, part="push")
            found["chain_whole"] = longest_chain(plan)
            found["node_egress"] = node_traffic(plan, network).egress[network.workers].max()
            chosen = recipe.methods[method]
            formula = closed_forms.table1(chosen.exchange, chosen.options, tuple(shape))
            found |= {f"{name}_formula": value for name, value in formula.items()}
            least = counting.least_egress(network)
            found |= {f"least_{layer}": value for layer, value in least.items()}
            for metric, value in found.items():
                yield bench.row(method, metric, value, "1", **same)
    yield from _chain_blocking(bench)
    yield from _cross_load(bench)


def _chain_blocking(bench: _Bench) -> Iterator[Row]:
    """§2.2, Figure 4: what a ring still sends while its first node is blocked."""
    for n in bench.recipe.chain_blocking.workers:
        network = topology.star(n, 1e9)
        first = int(network.workers[0])
        blocked = Network(network, Faults(pauses=((first, 0.0, 1e6),)))
        blocked.start(exchange.load("ring")(network), bench.recipe.nbytes)
        blocked.advance(1e5)
        sent = np.bincount(network.link_src, blocked.link_bytes) / bench.recipe.nbytes
        shares = sent[network.workers]
        full = n - 1  # vectors that all nodes together send in the first half
        for j, share in enumerate(shares, start=1):
            yield bench.row(
                f"n={n} node {j}", "sent_share", share, "1",
                experiment="chain_blocking", method="Ring", network=network,
            )  # fmt: skip
        yield bench.row(
            f"n={n}", "utilisation_loss", 1 - shares.sum() / full, "1",
            experiment="chain_blocking", method="Ring", network=network,
        )  # fmt: skip


def _cross_load(bench: _Bench) -> Iterator[Row]:
    """§2.1, Figure 3a: flows of a parameter server over a rack's uplink and over a card."""
    chosen = bench.recipe.cross_load
    network = topology.leaf_spine(chosen.racks, chosen.per_rack, 1e9, spines=1)
    plan = bench.plan("PS", network, chunks=1)
    push = (plan.op == exchange.REDUCE).astype(float)
    ptr, links = counting.plan_routes(plan, network)
    flows = counting.spread(network, ptr, links, push)
    cards = np.isin(network.link_src, network.workers)
    racks = network.regions[0][network.link_src] >= 0
    cross = flows[racks & ~cards & (network.regions[0][network.link_dst] < 0)].max()
    inside = flows[cards].max()
    figures = {"cross_flows": cross, "in_rack_flows": inside, "extra_load": cross / inside - 1}
    for metric, value in figures.items():
        yield bench.row(
            f"{chosen.racks} racks x {chosen.per_rack}", metric, value, "1",
            experiment="cross_load", method="PS", network=network, evidence="computed",
        )  # fmt: skip


def _packet(bench: _Bench, method: str) -> Iterator[Row]:
    """The same plan in ns-3 and in the fluid simulator."""
    chosen = bench.recipe.packet
    tcp = packet.Tcp(**chosen.tcp)
    cells = [(o, None) for o in chosen.oversubscription]
    cells += [(o, draw) for o in chosen.paused_oversubscription for draw in chosen.pauses.draws]
    free: dict[float, float] = {}
    for oversubscription, draw in cells:
        network = bench.leaves(
            chosen.racks,
            chosen.per_rack,
            chosen.rate,
            chosen.spines,
            uplink=chosen.rate * chosen.per_rack / (chosen.spines * oversubscription),
            latency=chosen.latency,
        )
        case = f"{method} {oversubscription:g}:1 {'free' if draw is None else 'paused'}"
        plan = bench.plan(method, network)
        same = dict(method=method, network=network, bandwidth=chosen.rate)
        if draw is not None:
            same["seed"] = draw
        if why := packet.available():
            yield bench.refused(
                case, "completion_time", "s", ValueError(why), evidence="packet", **same
            )
            continue
        bench.say(f"packet: {case}")
        options = dict(paths=bench.paths)
        if draw is not None:
            options["faults"] = faults.random_pauses(
                network.workers,
                chosen.pauses.paused,
                chosen.pauses.period,
                40 * free[oversubscription],
                draw,
            )
        options["efficiency"] = tcp.efficiency
        simulate(plan, network, chosen.nbytes, **options)  # compiles, the first time
        begin = time.perf_counter()
        fluid = simulate(plan, network, chosen.nbytes, **options)
        fluid_s = time.perf_counter() - begin
        del options["efficiency"]
        free.setdefault(oversubscription, fluid.completion_s)
        packets = packet.packet_simulate(
            plan, network, chosen.nbytes, tcp=tcp, progress=bench.say, **options
        )
        yield bench.row(case, "completion_time", fluid.completion_s, "s", **same)
        why = _difference(packets, fluid.completion_s)
        yield bench.row(
            case, "completion_time", packets.completion_s, "s",
            evidence="packet", reason=why, **same,
        )  # fmt: skip
        for metric in ("drops", "timeouts", "recoveries"):
            count = getattr(packets, metric)
            yield bench.row(case, metric, count, "1", evidence="packet", **same)
        for simulator, seconds in (("fluid", fluid_s), ("ns-3", packets.wall_s)):
            yield bench.row(
                case, "wall_time", seconds, "s", variant=simulator, evidence="measured", **same
            )


def _difference(packets: packet.PacketResult, fluid_s: float) -> str:
    """Why packets took another time, where that is more than 10 %, from what ns-3 counted."""
    if abs(packets.completion_s / fluid_s - 1) <= AGREES:
        return ""
    if packets.drops or packets.timeouts:
        return (
            f"{packets.drops} packets dropped, {packets.timeouts} retransmission timeouts: even "
            "smallest windows of so many connections keep queues longer than buffers or timeouts"
        )
    return (
        "no packet dropped, no timeout; probably TCP's shares of a full link, which are not even "
        "at every moment, and an exchange waits for its last message"
    )


def _disturbances(bench: _Bench) -> Iterator[Row]:
    """A failed uplink, a burst and higher-priority traffic at the uplinks of one rack."""
    figure, chosen = bench.recipe.figure6, bench.recipe.disturbances
    network = bench.leaves(figure.racks, chosen.per_rack, chosen.rate, figure.spines)
    uplinks = [_uplinks(network, 0, spine)[0] for spine in range(figure.spines)]
    for method in chosen.methods:
        plan = bench.plan(method, network)
        free = bench.completion(plan, network)
        for name, kind in chosen.kinds.items():
            span = (kind.begin, kind.end)
            if kind.kind == "failed":
                disturbed = faults.failed_links(uplinks[:1], *span)
            elif kind.kind == "priority":
                rate = kind.share * network.link_rate[uplinks[0]]
                disturbed = faults.priority(network, uplinks, rate, *span)
            else:
                disturbed = Faults(bursts=[(int(link), *span, kind.flows) for link in uplinks])
            seconds = bench.completion(plan, network, faults=disturbed)
            same = dict(method=method, network=network, bandwidth=chosen.rate)
            yield bench.row(f"{method} {name}", "completion_time", seconds, "s", **same)
            yield bench.row(f"{method} {name}", "slowdown", seconds / free, "1", **same)


def _asymmetric(bench: _Bench) -> Iterator[Row]:
    """Loads over the trees that make the slowest link finish first, against the even split."""
    chosen = bench.recipe.asymmetric
    for name, scenario in chosen.scenarios.items():
        network = bench.leaves(
            len(scenario.per_rack),
            scenario.per_rack,
            chosen.rate,
            chosen.spines,
            uplink=[
                share * chosen.rate * workers / chosen.spines
                for share, workers in zip(scenario.uplinks, scenario.per_rack, strict=True)
            ],
        )
        failed = [link for cable in scenario.failed for link in _uplinks(network, *cable)]
        network = topology.without(network, failed)
        even = bench.plan("RAT", network, chunks=chosen.chunks)
        weights = balancing.tree_weights(even, network, bench.paths)
        weighted = bench.plan("RAT", network, chunks=chosen.chunks, weights=tuple(weights))
        for kind, plan in (("even", even), ("weighted", weighted)):
            case = f"{kind} {name}"
            same = dict(method="RAT", network=network, bandwidth=chosen.rate)
            yield bench.row(case, "completion_time", bench.completion(plan, network), "s", **same)
            least = bound(plan, network, bench.recipe.nbytes, paths=bench.paths)
            yield bench.row(case, "bound_time", least, "s", evidence="computed", **same)


def _scaling(bench: _Bench) -> Iterator[Row]:
    """What simulating one exchange costs, each in a process of its own."""
    chosen = bench.recipe.scale
    context = multiprocessing.get_context("spawn")
    for method in chosen.methods:
        for workers in chosen.workers:
            bench.say(f"scale: {method}, {workers} workers")
            with context.Pool(1) as pool:
                cost = pool.apply(_cost, (bench.recipe, method, workers))
            same = dict(method=method, workers=workers, bandwidth=chosen.rate)
            for metric, (value, unit) in cost.items():
                evidence = "computed" if metric == "transfers" else "measured"
                case = f"{method} n={workers}"
                yield bench.row(case, metric, value, unit, evidence=evidence, **same)


def _cost(recipe: Rat, method: str, workers: int) -> dict[str, tuple[float, str]]:
    chosen = recipe.scale
    bench = _Bench(recipe, "desk", "scale", print)
    small = bench.leaves(chosen.racks, 1, chosen.rate, chosen.spines)
    bench.completion(bench.plan(method, small, chunks=1), small)  # compiles
    network = bench.leaves(chosen.racks, workers // chosen.racks, chosen.rate, chosen.spines)
    begin = time.perf_counter()
    plan = bench.plan(method, network, chunks=1)
    built = time.perf_counter()
    bench.completion(plan, network)
    done = time.perf_counter()
    return {
        "plan_time": (built - begin, "s"),
        "wall_time": (done - built, "s"),
        "transfers": (int((plan.src != plan.dst).sum()), "1"),
        "peak_memory": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, "MB"),
    }


_WHOLE: dict[str, Callable[[_Bench], Iterator[Row]]] = {
    "figure6": _figure6,
    "latency": _latency,
    "pipelining": _pipelining,
    "exchanges": _exchanges,
    "survival": _survival,
    "table1": _table1,
    "disturbances": _disturbances,
    "asymmetric": _asymmetric,
    "scale": _scaling,
}
_PARTS: dict[str, Callable[[_Bench, str], Iterator[Row]]] = {
    "figure7": _figure7,
    "packet": _packet,
}


def _uplinks(network: Topology, rack: int, spine: int) -> list[int]:
    """The cable between a rack and a spine: the link up, and the link down."""
    ends = f"rack{rack}/switch", f"spine{spine}"
    return [int(topology.links_between(network, *way)[0]) for way in (ends, ends[::-1])]


def _ratio(per_rack: int, spines: float) -> str:
    return f"{per_rack / spines:g}:1"


def _gigabits(rate: float) -> str:
    return f"{rate / 1e9:g}G"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:g}ms"
