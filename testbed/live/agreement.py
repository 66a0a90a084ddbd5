"""A plan on real processes over emulated links, beside the fluid simulation of the same plan."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slowlink.methods.exchange import Plan, Topology
from slowlink.testbed.live.engine.plan_run import run_plan
from slowlink.testbed.live.processor_load import LoadMonitor
from slowlink.testbed.network import simulate
from slowlink.testbed.network.counting import Sizes
from slowlink.testbed.network.emulated import Emulated, Measured

AGREES = 0.1
"""Share within which links that are emulated agree with links that are simulated."""
BUSY = 0.75
"""Share of all processors above which they may set the pace: the rest is hard to use."""
HELD = 0.02
"""Share of the processors' time above which a quota that holds threads back is told."""
SHORT = 0.95
"""Share of their rate below which links are not what they should be."""


@dataclass(frozen=True)
class Comparison:
    """The times of one plan, simulated and emulated.

    Attributes
    ----------
    simulated_s, emulated_s: completion, seconds; emulated that of the middle one of the
        repeats, as all that follows.
    cpu_share: processor time of the node processes over time and processors, 0 to 1.
    links: what the links carried before the plan ran, a pair of nodes each.
    uneven: of the messages that are sent first, emulated over simulated time of the one that does
        worst, over that of the one that does best.
    busy_share: of the processors' time, in which they did anything for anyone, the kernel's work
        for links included; nan where the kernel does not tell.
    held_share: of the processors' time, in which a control group's quota held threads back; nan
        likewise.
    """

    simulated_s: float
    emulated_s: float
    cpu_share: float
    links: Sequence[Measured]
    uneven: float = 1.0
    busy_share: float = math.nan
    held_share: float = math.nan

    @property
    def ratio(self) -> float:
        return self.emulated_s / self.simulated_s

    @property
    def why(self) -> str:
        """What may explain a difference between the two times; empty if nothing was unusual."""
        if abs(self.ratio - 1) <= AGREES:
            return ""
        busy, nodes = np.fmax(self.busy_share, self.cpu_share), self.cpu_share
        told = f"processors {100 * busy:.0f} % busy ({100 * nodes:.0f} % with the exchange)"
        least = min((one.rate / one.expected for one in self.links), default=1.0)
        found = [told] if busy > BUSY else []
        if self.held_share > HELD:
            found.append(f"a quota held threads back for {100 * self.held_share:.0f} % of the time")
        if least < SHORT:
            found.append(f"before the round links carried {100 * least:.0f} % of their rate")
        if self.uneven >= self.ratio > 1:
            found.append(
                f"against simulation, the slowest of the first messages took {self.uneven:.2f} "
                "times as long as the fastest"
            )
        return "measured: " + ", ".join(found or [told, "links carried their rate: not explained"])


def compare(
    plan: Plan,
    topology: Topology,
    sizes: Sizes,
    *,
    efficiency: float,
    bodies: Mapping[str, Mapping[int, bytes]] | None = None,
    fair: bool = True,
    repeats: int = 1,
    measured_s: float = 0.5,
    timeout_s: float = 600.0,
    say: Callable[[str], None] = print,
) -> Comparison:
    """Simulate ``plan`` on ``topology``, then emulate its links, measure them and run the plan.

    Parameters
    ----------
    sizes: what is sent, for the simulation, and to be drawn where there are no ``bodies``.
    bodies: the bytes to send, by slot and sender, of these sizes.
    efficiency: payload share of what links carry, for the simulation.
    fair: see :class:`testbed.network.emulated.Emulated`.
    measured_s: seconds to measure each of a few pairs of nodes that the plan uses.
    timeout_s: seconds without any progress after which the run has failed.

    Raises
    ------
    RuntimeError, OSError
        Links that do not come up, a process that fails, is lost or falls silent.
    """
    ideal = simulate(plan, topology, sizes, efficiency=efficiency)
    ends: list[float] = []

    def ended(line: str) -> None:
        ends.append(time.monotonic())
        say(line)

    with Emulated(topology, fair=fair) as links:
        measured = links.measure(pairs(plan), measured_s)
        for one in measured:
            src, dst = (topology.node_names[node] for node in (one.src, one.dst))
            say(f"{src} to {dst}: {one.rate / 1e6:.1f} of {one.expected / 1e6:.1f} Mbit/s")
        with LoadMonitor() as monitor:
            ran = run_plan(
                plan,
                topology,
                None if bodies else sizes,
                links,
                bodies=bodies,
                repeats=repeats,
                timeout_s=timeout_s,
                say=ended,
            )
    by_time = sorted(zip(ran, ends, strict=True), key=lambda run: run[0].completion_s)
    middle, end = by_time[len(ran) // 2]
    busy, held = monitor.over(end - middle.completion_s, end)
    return Comparison(
        ideal.completion_s,
        middle.completion_s,
        middle.cpu_s / middle.completion_s / len(os.sched_getaffinity(0)),
        measured,
        _uneven(ideal.transfers, middle.transfers),
        busy,
        held,
    )


def _uneven(simulated: np.ndarray, emulated: np.ndarray) -> float:
    first = (simulated["start_s"] == 0) & (simulated["end_s"] > 0)
    longer = emulated["end_s"][first] / simulated["end_s"][first]
    return float(longer.max() / longer.min()) if len(longer) else 1.0


def pairs(plan: Plan) -> list[tuple[int, int]]:
    """One pair of nodes for each message slot: that of its last transfer."""
    moves = plan.src != plan.dst
    last = (np.flatnonzero(moves & (plan.slot == slot))[-1:] for slot in range(len(plan.slots)))
    found = [(int(plan.src[t]), int(plan.dst[t])) for ts in last for t in ts]
    return list(dict.fromkeys(found))
