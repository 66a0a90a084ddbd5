"""Plans on real processes end with what exact execution ends with, and take the time that the
fluid simulator says over emulated links."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from slowlink.methods import exchange
from slowlink.methods.exchange import REDUCE, PlanBuilder
from slowlink.testbed.live.engine import plan_node, plan_run
from slowlink.testbed.live.engine.plan_run import run_plan
from slowlink.testbed.live.processes import RankFailed
from slowlink.testbed.network import (
    execute,
    geo_sites,
    simulate,
    star,
    tcp_efficiency,
    transfer_bytes,
)
from tests.live.waiting import all_end, children

ROOT = Path(__file__).parents[2]
SITES = geo_sites([2, 2], lan=200e6, wan=50e6)
FLAT = star(4, 100e6)


def delivered(works):
    """What every node's travels end with, all in one process, by node; messages arrive in a random
    order, but those between two nodes in theirs."""
    random = np.random.default_rng(0)
    deliveries = {node: work.deliver() for node, work in works.items()}
    flying = {}

    def go_on(node, which, arrival=None):
        for tag, sent in deliveries[node].go_on(which, arrival):
            flying.setdefault((node, sent.to), []).append((tag, sent))

    for node, delivery in deliveries.items():
        for which in list(delivery.running):
            go_on(node, which)
    while flying:
        pair = sorted(flying)[random.integers(len(flying))]
        # What is on its way is read only now: it must not have changed since it left.
        tag, sent = flying[pair].pop(0)
        if not flying[pair]:
            del flying[pair]
        arrival = sent.t, sent.head, bytes(sent.body)
        which = deliveries[sent.to].take(tag, arrival)
        if which is not None:
            go_on(sent.to, which, arrival)
    assert not any(delivery.running for delivery in deliveries.values())
    return {node: delivery.results for node, delivery in deliveries.items()}


def job_of(plan, size=None, slices=1):
    nodes = np.unique(np.concatenate([plan.src, plan.dst, plan.receivers])).tolist()
    return plan_node.Job(plan, tuple(nodes), (), (), 1, 60.0, size, slices)


def works_of(plan, size, slices=1):
    job = job_of(plan, size, slices)
    return {node: plan_node.Vectors(job, node) for node in job.nodes}


def ended(result):
    """The vector of all slices' segments."""
    pieces = [value[segment] for _, value in sorted(result.items()) for segment in sorted(value)]
    return np.concatenate(pieces)


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("name", exchange.names())
def test_any_order_of_arrivals_ends_as_execution_does(name, chunks):
    """Sums of whole numbers: the bits of :func:`execute`, whatever came first."""
    topology, size = geo_sites([4, 4]), 2 * plan_node.BLOCK + 101
    plan = exchange.load(name, chunks=chunks)(topology)
    works = works_of(plan, size, slices=2)
    results = delivered(works)
    arrays = [np.resize(plan_node.drawn(node), size) for node in plan.contributors.tolist()]
    for node, expected in execute(plan, arrays).items():
        np.testing.assert_array_equal(ended(results[node]), expected)
        works[node].check(results[node])


def test_a_wrong_sum_is_found():
    plan = exchange.load("k_nomial_tree", chunks=2)(FLAT)
    works = works_of(plan, 1000)
    results = delivered(works)
    (segment,) = results[3][1]
    spoilt = results[3][1][segment].copy()
    spoilt[-1] += 1
    for value, message in [
        ({segment: spoilt}, "another sum than expected, slice 1"),
        ({segment: spoilt[:-3]}, "without the last 3 elements of slice 1"),
        ({}, "without the last 500 elements of slice 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            works[3].check(results[3] | {1: value})


PLANS = [
    ("ring", FLAT, dict(chunks=3)),
    ("rat", FLAT, dict()),
    ("parameter_server", FLAT, dict(shards="colocated", overlap=False)),
    ("hips", SITES, dict(chunks=2, overlap=False)),
    ("halving_doubling", FLAT, dict(chunks=2)),
    ("k_nomial_tree", FLAT, dict()),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "topology", "parameters"), PLANS, ids=[p[0] for p in PLANS])
def test_processes_do_what_the_plan_says(started, monkeypatch, name, topology, parameters):
    plan = exchange.load(name, **parameters)(topology)
    monkeypatch.setattr(plan_run, "SLICE_BYTES", 1 << 17)
    size = 300_001
    largest = transfer_bytes(plan, 4.0 * size).max() / plan.chunks
    slices = max(1, round(largest / plan_run.SLICE_BYTES))
    lines = []
    runs = run_plan(plan, topology, 4.0 * size, None, repeats=2, timeout_s=30, say=lines.append)
    assert len(runs) == len(lines) == 2
    for ran in runs:
        transfers = ran.transfers
        moves = plan.src != plan.dst
        expected = transfer_bytes(plan, 4.0 * size)
        # Parts of every slice end at whole elements.
        np.testing.assert_allclose(transfers["nbytes"], expected, atol=4 * plan.chunks * slices)
        assert not transfers["nbytes"][~moves].any()
        sent = np.bincount(plan.src, transfers["nbytes"], minlength=topology.n_nodes)
        assert ran.sent_bytes == {node: sent[node] for node in ran.sent_bytes}
        assert sum(ran.sent_bytes.values()) == transfers["nbytes"].sum()
        assert ran.completion_s >= transfers["end_s"].max() and ran.cpu_s > 0
        assert np.all(transfers["start_s"] >= 0) and np.all(
            transfers["end_s"] >= transfers["start_s"]
        )
        assert_in_order(plan, transfers)


def assert_in_order(plan, transfers):
    """Nothing ends before what it needs; where it is sent whole, it does not begin before either;
    phases that do not overlap wait for all of the earlier ones."""
    when = "start_s" if plan.chunks == 1 else "end_s"
    needed = {}
    moves = plan.src != plan.dst
    for t in range(len(plan)):
        # A local transfer takes no time, and stands for all that it joins.
        needed[t] = {
            d
            for other in plan.dependencies(t).tolist()
            for d in ([other] if moves[other] else needed[other])
        }
        if not moves[t]:
            continue
        assert np.all(transfers["end_s"][list(needed[t])] <= transfers[when][t])
        if not plan.overlap:
            earlier = moves & (plan.phase < plan.phase[t])
            assert np.all(transfers["end_s"][earlier] <= transfers["start_s"][t])


@pytest.mark.slow
def test_given_bodies(started):
    """Each transfer carries its sender's for its slot, some of no bytes."""
    plan, random = exchange.load("hips")(SITES), np.random.default_rng(2)
    bodies = {}
    for t in np.flatnonzero(plan.src != plan.dst).tolist():
        slot = bodies.setdefault(plan.slots[plan.slot[t]], {})
        slot.setdefault(int(plan.src[t]), random.bytes(int(random.integers(0, 5000))))
    bodies["push/1"] = dict.fromkeys(bodies["push/1"], b"")
    (ran,) = run_plan(plan, SITES, None, None, bodies=bodies, timeout_s=30)
    for t, row in enumerate(ran.transfers):
        if plan.src[t] != plan.dst[t]:
            assert row["nbytes"] == len(bodies[plan.slots[plan.slot[t]]][int(plan.src[t])])


@pytest.mark.slow
def test_sizes_that_differ_move_bytes(started):
    plan = exchange.load("ring", chunks=2)(FLAT)
    sizes = {"push/0": 2e6, "pull/0": 1e5}
    for ran in run_plan(plan, FLAT, sizes, None, repeats=2, timeout_s=30):
        np.testing.assert_array_equal(ran.transfers["nbytes"], transfer_bytes(plan, sizes))


def test_what_arrives_changed_is_found():
    plan = exchange.load("parameter_server", chunks=2)(FLAT)
    bodies = {"push/0": {n: bytes(range(9)) for n in range(4)}, "pull/0": {4: b"sum"}}
    job = job_of(plan)
    works, expected = {}, {}
    for node, (own, due) in zip(job.nodes, plan_run._parcels(job, bodies), strict=True):
        works[node], expected[node] = plan_node.Bodies(job, node, own), due
    for spoilt in (None, 6):
        ended = delivered(works)
        came = works[4].given[1].came
        assert [len(came[t]) for t in range(4)] == [5] * 4  # of nine bytes, the second half
        if spoilt is None:
            for node in job.nodes:
                works[node].check(ended[node], expected[node])
            assert not came
        else:
            came[2] = came[2][:-1] + b"x"
            with pytest.raises(ValueError, match="transfer 2 from node 2 arrived changed"):
                works[4].check(ended[4], expected[4])


@pytest.mark.slow
def test_a_killed_node_is_named(started):
    plan = exchange.load("ring")(FLAT)
    runs = []

    def kill(line):
        runs.append(line)
        if len(runs) == 2:
            threading.Timer(0.02, os.kill, (started[2].pid, signal.SIGKILL)).start()

    pattern = r"rank 2 died with exit code -9 \(node 2 \(worker2\), "
    with pytest.raises(RankFailed, match=pattern):
        run_plan(plan, FLAT, 4e7, None, repeats=500, timeout_s=30, say=kill)


@pytest.mark.slow
def test_a_silent_node_is_named(started):
    plan = exchange.load("ring")(FLAT)
    stopped = []

    def stop(line):
        if not stopped:
            stopped.append(os.kill(started[1].pid, signal.SIGSTOP))

    pattern = r"said anything for 2 s; .*waiting for \d+ of \d+ slices of transfer \d+ from node"
    with pytest.raises(RankFailed, match=pattern):
        run_plan(plan, FLAT, 4e7, None, repeats=500, timeout_s=2, say=stop)


def test_refused():
    plan = exchange.load("ring")(FLAT)
    one = {"push/0": {0: b"1"}}
    for keywords, message in [
        (dict(nbytes=None), "give nbytes or bodies"),
        (dict(nbytes=1.0, bodies=one), "give nbytes or bodies"),
        (dict(nbytes=1.0, repeats=0), "repeats must be at least 1"),
        (dict(nbytes=-1.0), "must be bytes"),
        (dict(nbytes=None, bodies=one), "has no size for sender 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            run_plan(plan, FLAT, links=None, **keywords)
    with pytest.raises(ValueError, match="window must be 1"):
        run_plan(dataclasses.replace(plan, window=2), FLAT, 1.0, None)
    with pytest.raises(ValueError, match="star has no node"):
        run_plan(exchange.load("ring")(star(9, 1e9)), FLAT, 1.0, None)
    builder = PlanBuilder("half", 1, ("push/0",))
    builder.add(0, 1, "push/0", REDUCE)
    with pytest.raises(ValueError, match="receiver 0 has 0 times"):
        run_plan(builder.build([0, 1], [0, 1]), FLAT, 1.0, None)


SLOW = star(3, 20e6)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("name", "topology", "nbytes", "parameters"),
    [
        ("hips", SITES, 2e6, dict()),
        ("ring", SLOW, 1.5e6, dict()),
        ("rat", star(4, 20e6), 1e6, dict()),
        ("parameter_server", SLOW, 6e5, dict(overlap=False)),
        ("parameter_server", SLOW, 1.5e6, dict(shards="colocated")),
    ],
    ids=["hips", "ring", "rat", "central", "colocated"],
)
def test_emulated_links_take_the_simulated_time(shaped, name, topology, nbytes, parameters):
    """The best of several runs: a busy processor makes everybody late."""
    plan = exchange.load(name, **parameters)(topology)
    simulated = simulate(plan, topology, nbytes, efficiency=tcp_efficiency()).completion_s
    with shaped(topology) as links:
        ran = run_plan(plan, topology, nbytes, links, repeats=3)
    assert min(run.completion_s for run in ran) == pytest.approx(simulated, rel=0.1)


USER = """
import os
from slowlink.methods import exchange
from slowlink.testbed.live.engine.plan_run import run_plan
from slowlink.testbed.network import star
from slowlink.testbed.network.emulated import Emulated

topology = star(3, 50e6)
with Emulated(topology) as links:
    say = lambda line: print(os.getpid(), links._holder.pid, flush=True)
    run_plan(exchange.load("ring")(topology), topology, 1e6, links, repeats=10_000, say=say)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_nothing_is_left_of_a_run_that_is_ended(shaped, end):
    """Neither nodes nor links, which end when the process that holds them does."""
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(
        [sys.executable, "-c", USER], cwd=ROOT, start_new_session=True, **pipes
    ) as user:
        parent, holder = map(int, user.stdout.readline().split())
        nodes = [node for child in children(parent) if child != holder for node in children(child)]
        assert len(nodes) == 3
        if end == signal.SIGINT:
            os.killpg(parent, end)  # as a terminal does it
        else:
            os.kill(parent, end)
        said = user.communicate(timeout=30)[1]
    assert user.returncode in (-end, 1)
    assert (end == signal.SIGKILL) != ("KeyboardInterrupt" in said)
    all_end([*nodes, holder], 10)
