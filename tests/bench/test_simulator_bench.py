"""Speed of the fluid simulator. No time is asserted: ``extra_info`` has transfers a second."""

from __future__ import annotations

import dataclasses

import pytest

from methods.exchange import load
from testbed.network import Faults, Network, bound, geo_sites, star

NBYTES = 97e6


def play(benchmark, plan, topology, faults=None):
    """Start ``plan`` on a fresh network and let it run, several times."""
    moves = int((plan.src != plan.dst).sum()) * plan.chunks

    def run(network):
        result = network.start(plan, NBYTES)
        network.advance()
        return result

    def fresh():
        return (Network(topology, faults),), {}

    result = benchmark.pedantic(run, setup=fresh, rounds=3, warmup_rounds=1)
    benchmark.extra_info["transfers"] = moves
    if benchmark.stats is not None:
        benchmark.extra_info["transfers_per_s"] = moves / benchmark.stats["mean"]
    return result


@pytest.mark.parametrize("case", ["symmetric", "windowed", "paused"])
def test_sharded_parameter_server_of_256_workers(benchmark, case):
    benchmark.group = "simulator"
    topology = star(256, 40e9)
    plan = load("parameter_server", shards="colocated")(topology)
    plan = dataclasses.replace(plan, window=4 if case == "windowed" else 0)
    assert (plan.src != plan.dst).sum() == 130_560
    faults = None
    if case == "paused":  # so that transfers no longer end together
        faults = Faults([(i, 1e-3 * (i % 30), 1e-3 * (i % 30) + 5e-3) for i in range(0, 256, 16)])
    result = play(benchmark, plan, topology, faults)
    least = bound(plan, topology, NBYTES)
    if case == "paused":
        assert result.completion_s > least * 1.01
    else:
        assert result.completion_s == pytest.approx(least)


@pytest.mark.parametrize("chunks", [1, 100])
def test_hips(benchmark, chunks):
    benchmark.group = "simulator"
    topology = geo_sites([6, 6])
    plan = load("hips", chunks=chunks)(topology)
    result = play(benchmark, plan, topology)
    assert result.completion_s >= bound(plan, topology, NBYTES)
