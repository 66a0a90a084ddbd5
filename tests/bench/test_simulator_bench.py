"""Speed of the fluid simulator. No time is asserted: ``extra_info`` has transfers a second.

``SLOWLINK_BENCH_WORKERS`` sets how many workers exchange (256 send 130,000 messages; the largest
case has four times as many, which send 16 times as much). A transfer is one piece of a message.
"""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest

from slowlink.methods.exchange import load
from slowlink.testbed.network import (
    Faults,
    Network,
    Paths,
    bound,
    geo_sites,
    leaf_spine,
    random_pauses,
    star,
)

WORKERS = int(os.environ.get("SLOWLINK_BENCH_WORKERS", 64))
NBYTES, RATE = 97e6, 40e9


def planned(name, topology, **options):
    if name == "parameter_server":
        options |= dict(shards="colocated")
    return load(name, **options)(topology)


def play(benchmark, plan, topology, faults=None, ready=None, rounds=3, **options):
    """Start ``plan`` on a fresh network and let it run, several times."""
    benchmark.group = "simulator"
    moves = int((plan.src != plan.dst).sum()) * plan.chunks

    def run(network):
        result = network.start(plan, NBYTES, ready=ready)
        network.advance()
        return result

    def fresh():
        return (Network(topology, faults, **options),), {}

    result = benchmark.pedantic(run, setup=fresh, rounds=rounds, warmup_rounds=1)
    benchmark.extra_info |= {"workers": len(topology.workers), "transfers": moves}
    if benchmark.stats is not None:
        benchmark.extra_info["transfers_per_s"] = moves / benchmark.stats["mean"]
    return result


@pytest.mark.parametrize("case", ["symmetric", "windowed", "paused"])
def test_sharded_parameter_server(benchmark, case):
    topology = star(WORKERS, RATE)
    plan = planned("parameter_server", topology)
    plan = dataclasses.replace(plan, window=4 if case == "windowed" else 0)
    faults = None
    if case == "paused":  # so that transfers no longer end together
        paused = range(0, WORKERS, 16)
        faults = Faults([(i, 1e-3 * (i % 30), 1e-3 * (i % 30) + 5e-3) for i in paused])
    result = play(benchmark, plan, topology, faults)
    least = bound(plan, topology, NBYTES)
    if case == "paused":
        assert result.completion_s > least * 1.01
    else:
        assert result.completion_s == pytest.approx(least)


@pytest.mark.parametrize("exchange", ["parameter_server", "ring", "rat"])
def test_jittered_starts_and_hashed_paths(benchmark, exchange):
    topology = leaf_spine(4, WORKERS // 4, RATE)
    late = np.random.default_rng(0).uniform(0, 1e-3, WORKERS)
    ready = dict(zip(topology.workers.tolist(), late.tolist(), strict=True))
    plan, paths = planned(exchange, topology), Paths("ecmp")
    result = play(benchmark, plan, topology, ready=ready, rounds=1, paths=paths)
    assert result.completion_s > bound(plan, topology, NBYTES, paths=paths)


@pytest.mark.parametrize("exchange", ["ring", "rat"])
def test_four_times_the_workers(benchmark, exchange):
    topology = leaf_spine(16, WORKERS // 4, RATE)
    plan = planned(exchange, topology)
    result = play(benchmark, plan, topology, rounds=1)
    assert result.completion_s >= bound(plan, topology, NBYTES) * (1 - 1e-9)


@pytest.mark.parametrize("exchange", ["parameter_server", "ring", "rat"])
def test_64_workers_in_16_pieces_with_random_pauses(benchmark, exchange):
    topology = leaf_spine(2, 32, RATE, uplink=16 * RATE)
    plan = planned(exchange, topology, chunks=16)
    faults = random_pauses(topology.workers.tolist(), 8, 3e-3, 1.0, seed=0)
    result = play(benchmark, plan, topology, faults)
    assert result.completion_s > bound(plan, topology, NBYTES)


@pytest.mark.parametrize("chunks", [1, 100])
def test_hips(benchmark, chunks):
    topology = geo_sites([6, 6])
    plan = load("hips", chunks=chunks)(topology)
    result = play(benchmark, plan, topology)
    assert result.completion_s >= bound(plan, topology, NBYTES)
