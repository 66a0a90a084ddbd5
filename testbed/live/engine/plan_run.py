"""A plan alone on real processes: its fourth executor, beside arrays, fluid and packets.

Every node that takes part is a process, in its own network namespace where links are emulated. They
run the engine's flow over its wire, whose connections are open before the clock starts. Nodes tell
the parent, past the network, which phases are over.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slowlink.methods.exchange import Plan, Topology
from slowlink.testbed.live.engine.flow import Part
from slowlink.testbed.live.engine.plan_node import Job, Outcome, take_part
from slowlink.testbed.live.processes import run_ranks
from slowlink.testbed.network.counting import Sizes, transfer_bytes
from slowlink.testbed.network.execution import verify
from slowlink.testbed.network.fluid import TIMELINE

if TYPE_CHECKING:
    from slowlink.testbed.network.emulated import Emulated

LOOPBACK = "127.0.0.1"
SLICE_BYTES = 1 << 20
"""Of the largest transfer, about so many bytes are a message."""
MARGIN_S = 0.05
"""From when all are told of the common start until it: so that it reaches them in time."""


@dataclass(frozen=True, eq=False)
class Ran:
    """One run of a plan on real processes; all times from the common start on.

    Attributes
    ----------
    completion_s: when the last node had all that it shall end with.
    transfers: a record a transfer, as :class:`testbed.network.fluid.Result` has: ``nbytes`` is
        payload; ``start_s`` is when its first piece was handed to its connection, ``end_s`` when
        its last had arrived.
    sent_bytes: payload that each node sent, by node id.
    cpu_s: processor time of all nodes, kernel included as far as it is charged to them.
    """

    completion_s: float
    transfers: np.ndarray
    sent_bytes: dict[int, int]
    cpu_s: float


def run_plan(
    plan: Plan,
    topology: Topology,
    nbytes: Sizes | None,
    links: Emulated | None,
    *,
    bodies: Mapping[str, Mapping[int, bytes]] | None = None,
    repeats: int = 1,
    timeout_s: float = 60.0,
    say: Callable[[str], None] = lambda line: None,
) -> list[Ran]:
    """Run ``plan`` alone, ``repeats`` times by the same processes, and check what arrives.

    Give ``nbytes`` or ``bodies``. Where all messages have the size of one vector, float32 vectors
    are really added up and copied, and every receiver must end with exactly the sum. Where sizes
    differ, opaque bytes travel and each transfer must arrive unchanged.

    Parameters
    ----------
    nbytes: payload as for :func:`testbed.network.fluid.simulate`; contents are drawn. A vector is
        rounded up to whole elements.
    links: emulated links of ``topology``; without them all nodes share the loopback interface, as
        fast as it is.
    bodies: by slot and sending node, the bytes that stand for the whole vector.
    timeout_s: longest time without any progress.
    say: called with a line for each run.

    Raises
    ------
    ValueError
        A plan that is none or that the wire cannot carry, or contents that do not fit it.
    RankFailed
        A node died, fell silent or ended with something else; names it, and what it waited for.
    """
    if (nbytes is None) == (bodies is None):
        raise ValueError(f"{plan.name}: give nbytes or bodies")
    if repeats < 1:
        raise ValueError(f"{plan.name}: repeats must be at least 1, not {repeats}")
    if plan.window != 1:
        raise ValueError(f"{plan.name}: window must be 1, as nodes keep one connection a pair")
    if links is not None and links.topology is not topology:
        raise ValueError(f"{plan.name}: links emulate another topology than {topology.name}")
    verify(plan)
    taking_part = np.unique(np.concatenate([plan.src, plan.dst, plan.contributors, plan.receivers]))
    nodes = tuple(taking_part.tolist())
    if nodes[-1] >= topology.n_nodes:
        raise ValueError(f"{plan.name}: {topology.name} has no node {nodes[-1]}")
    size = None if nbytes is None else _vector_bytes(plan, nbytes)
    if bodies is None and size is None:
        bodies = _drawn_bodies(plan, nbytes)
    sizes = nbytes if bodies is None else _lengths(bodies)
    largest = transfer_bytes(plan, sizes).max(initial=0) / plan.chunks
    job = Job(
        plan,
        nodes,
        tuple(topology.node_names[node] for node in nodes),
        tuple(links.address(node) if links else LOOPBACK for node in nodes),
        repeats,
        timeout_s,
        None if size is None else math.ceil(size / 4),
        max(1, round(largest / SLICE_BYTES)),
    )
    results = run_ranks(
        take_part,
        len(nodes),
        job,
        timeout_s=timeout_s,
        namespaces=lambda rank: links.namespaces(nodes[rank]) if links else (),
        warm=(),  # torch is not needed
        each=[None] * len(nodes) if bodies is None else _parcels(job, bodies),
        hear=_Meetings(job, say),
    )
    return [_ran(job, outcomes) for outcomes in zip(*results, strict=True)]


class _Meetings:
    """Answers the nodes: when all of them are somewhere, and which phases are over everywhere."""

    def __init__(self, job: Job, say: Callable[[str], None]) -> None:
        self.job, self.say = job, say
        self.ranks = range(len(job.nodes))
        self.here: dict[int, Any] = {}
        self.over = [0] * len(self.ranks)
        self.told = self.met = 0

    def __call__(self, rank: int, message: tuple[str, Any]) -> dict[int, Any]:
        kind, value = message
        return self._phase(rank, value) if kind == "phase" else self._meet(rank, value)

    def _meet(self, rank: int, value: Any) -> dict[int, Any]:
        self.here[rank] = value
        if len(self.here) < len(self.ranks):
            return {}
        values = [self.here[rank] for rank in self.ranks]
        self.here, self.over, self.told = {}, [0] * len(self.ranks), 0
        # The nodes meet to exchange addresses, before and after each run, and at the end.
        run, after = divmod(self.met, 2)
        if run and not after:
            self.say(
                f"{self.job.plan.name}, {len(self.ranks)} nodes: run {run} of "
                f"{self.job.repeats} took {max(values):.3f} s"
            )
        self.met += 1
        answer = ("all here", values, time.monotonic() + MARGIN_S)
        return dict.fromkeys(self.ranks, answer)

    def _phase(self, rank: int, over: int) -> dict[int, Any]:
        self.over[rank] = over
        everywhere = min(self.over)
        if everywhere <= self.told:
            return {}
        self.told = everywhere
        return dict.fromkeys(self.ranks, ("phase", everywhere))


def _vector_bytes(plan: Plan, nbytes: Sizes) -> float | None:
    """The size of the whole vector, or None where messages differ in it."""
    moves = plan.src != plan.dst
    share = ((plan.hi - plan.lo) / plan.units)[moves]
    whole = transfer_bytes(plan, nbytes)[moves] / share
    if not len(whole):
        return 0.0
    return float(whole[0]) if np.allclose(whole, whole[0], rtol=1e-12, atol=0) else None


def _drawn_bodies(plan: Plan, nbytes: Sizes) -> dict[str, dict[int, bytes]]:
    """Random bytes for each slot and sender, of whole bytes."""
    sizes = transfer_bytes(plan, nbytes) * plan.units / (plan.hi - plan.lo)
    bodies: dict[str, dict[int, bytes]] = {}
    for t in np.flatnonzero(plan.src != plan.dst).tolist():
        by_sender, node = bodies.setdefault(plan.slots[plan.slot[t]], {}), int(plan.src[t])
        if node not in by_sender:
            random = np.random.default_rng([node, int(plan.slot[t])])
            by_sender[node] = random.bytes(round(sizes[t]))
    return bodies


def _parcels(
    job: Job, bodies: Mapping[str, Mapping[int, bytes]]
) -> list[tuple[dict[int, bytes], dict[tuple[int, int], int]]]:
    """For each node its own bodies by slot number, and the check sum of each slice it gets."""
    plan, nodes = job.plan, job.nodes
    own: dict[int, dict[int, bytes]] = {node: {} for node in nodes}
    due: dict[int, dict[tuple[int, int], int]] = {node: {} for node in nodes}
    known: dict[tuple[int, int, int, int], int] = {}
    for node in nodes:
        part = Part(plan, node)
        for t in part.leaving:
            if (to := part.dst[t]) == node:
                continue
            slot = part.slots[t]
            body = own[node][slot] = bodies[plan.slots[slot]][node]
            for number, (begin, end) in enumerate(job.shares(len(body))):
                cuts, segments = part.cuts(end - begin), part.segments[t]
                a, b = begin + cuts[segments.start], begin + cuts[segments.stop]
                if (slot, node, a, b) not in known:
                    known[slot, node, a, b] = zlib.crc32(memoryview(body)[a:b])
                due[to][t, number] = known[slot, node, a, b]
    return [(own[node], due[node]) for node in nodes]


def _lengths(bodies: Mapping[str, Mapping[int, bytes]]) -> dict[str, dict[int, int]]:
    return {slot: {node: len(body) for node, body in its.items()} for slot, its in bodies.items()}


def _ran(job: Job, outcomes: Sequence[Outcome]) -> Ran:
    plan = job.plan
    transfers = np.zeros(len(plan), TIMELINE)
    for column in ("src", "dst", "slot"):
        transfers[column] = getattr(plan, column)
    for outcome in outcomes:
        for column, seen in [
            ("start_s", outcome.starts),
            ("end_s", outcome.ends),
            ("nbytes", outcome.received),
        ]:
            transfers[column][list(seen)] = list(seen.values())
    return Ran(
        completion_s=max(outcome.done_s for outcome in outcomes),
        transfers=transfers,
        sent_bytes={
            node: outcome.sent_bytes for node, outcome in zip(job.nodes, outcomes, strict=True)
        },
        cpu_s=sum(outcome.cpu_s for outcome in outcomes),
    )
