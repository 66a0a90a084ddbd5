"""Counts on plans against formulas, and bounds against the physics of the paper's own table."""

from __future__ import annotations

import numpy as np
import pytest

from methods.exchange import COPY, REDUCE, PlanBuilder, load
from testbed.network import (
    bound,
    geo_sites,
    link_traffic,
    longest_chain,
    node_traffic,
    region_traffic,
    simulate,
    star,
    transfer_bytes,
)

PARAMETERS = {
    "ResNet-18": 11.17e6,
    "ResNet-34": 21.27e6,
    "ResNet-50": 23.49e6,
    "ResNet-101": 42.46e6,
}

# Seconds, worked out by hand from S = 4 bytes a parameter, for 12 workers in two sites: perfectly
# pipelined full duplex and no overlap, without and with two workers on each server's host.
TABLE_1 = {
    ("ResNet-18", "hips", 1e9): (2.50, 5.72, 1.79, 4.29),
    ("ResNet-18", "hips", 155e6): (4.61, 13.51, 4.61, 12.08),
    ("ResNet-18", "parameter_server", 1e9): (4.29, 8.58),
    ("ResNet-18", "parameter_server", 155e6): (27.67, 55.35),
    ("ResNet-34", "hips", 1e9): (4.76, 10.89, 3.40, 8.17),
    ("ResNet-34", "hips", 155e6): (8.78, 25.73, 8.78, 23.01),
    ("ResNet-34", "parameter_server", 1e9): (8.17, 16.34),
    ("ResNet-34", "parameter_server", 155e6): (52.69, 105.39),
    ("ResNet-50", "hips", 1e9): (5.26, 12.03, 3.76, 9.02),
    ("ResNet-50", "hips", 155e6): (9.70, 28.42, 9.70, 25.41),
    ("ResNet-50", "parameter_server", 1e9): (9.02, 18.04),
    ("ResNet-50", "parameter_server", 155e6): (58.19, 116.39),
    ("ResNet-101", "hips", 1e9): (9.51, 21.74, 6.79, 16.30),
    ("ResNet-101", "hips", 155e6): (17.53, 51.37, 17.53, 45.93),
    ("ResNet-101", "parameter_server", 1e9): (16.30, 32.61),
    ("ResNet-101", "parameter_server", 155e6): (105.19, 210.38),
}


@pytest.mark.parametrize("cell", TABLE_1, ids=lambda cell: f"{cell[0]}-{cell[1]}-{cell[2]:.0f}")
def test_bounds_of_table_1(cell):
    model, exchange, wan = cell
    printed = iter(TABLE_1[cell])
    for colocated in (0, 2) if exchange == "hips" else (0,):
        topology = geo_sites([6, 6], wan=wan, colocated=colocated)
        plan = load(exchange)(topology)
        for duplex in (True, False):
            ours = bound(plan, topology, 4 * PARAMETERS[model], duplex)
            assert ours == pytest.approx(next(printed), abs=0.00501)


@pytest.mark.parametrize("name", ["parameter_server", "hips"])
def test_nothing_beats_the_bounds(name):
    topology = geo_sites([2, 5, 3], colocated=1, lan_latency=1e-3)
    for chunks in (1, 8, 64):
        pipelined = load(name, chunks=chunks)(topology)
        serial = load(name, chunks=chunks, overlap=False)(topology)
        assert simulate(pipelined, topology, 1e8).completion_s >= bound(pipelined, topology, 1e8)
        assert simulate(serial, topology, 1e8).completion_s >= bound(serial, topology, 1e8, False)


@pytest.mark.parametrize("sites", [[6, 6], [1], [3, 1, 8]])
def test_traffic_between_sites(sites):
    topology = geo_sites(sites)
    flat = region_traffic(load("parameter_server")(topology), topology, 1.0)["site"]
    assert flat.egress.tolist() == [sum(sites), *sites]
    assert flat.ingress.tolist() == [sum(sites), *sites]
    tiered = region_traffic(load("hips")(topology), topology, 1.0)["site"]
    assert tiered.egress.tolist() == [len(sites)] + [1] * len(sites)
    assert tiered.ingress.tolist() == tiered.egress.tolist()


def test_traffic_of_nodes_and_links():
    topology = geo_sites([2, 3])
    plan = load("hips")(topology)
    traffic = node_traffic(plan, topology, 10.0)
    assert traffic.egress[topology.servers].tolist() == [20, 30, 40]  # two down, 2 + 1, 3 + 1
    assert traffic.ingress[topology.servers].tolist() == [20, 30, 40]
    assert set(traffic.egress[topology.workers]) == set(traffic.ingress[topology.workers]) == {10}
    links = link_traffic(plan, topology, 10.0)
    for node in [*topology.workers, *topology.servers]:
        assert links[topology.link_src == node].sum() == traffic.egress[node]
        assert links[topology.link_dst == node].sum() == traffic.ingress[node]
    assert links == pytest.approx(simulate(plan, topology, 10.0).link_bytes)


@pytest.mark.parametrize("n", [2, 4, 7])
def test_sharded_server_moves_what_the_formula_says(n):
    topology = star(n, 1e9)
    plan = load("parameter_server", shards="colocated")(topology)
    traffic = node_traffic(plan, topology)
    assert traffic.egress[topology.workers] == pytest.approx(np.full(n, 2 * (n - 1) / n))
    assert traffic.ingress[topology.servers].sum() == 0


def test_transfers_move_their_share():
    builder = PlanBuilder("parts", 8, ["a", "b"])
    first = builder.add(0, 1, "a", REDUCE, parts=(0, 2))
    joined = builder.join(1, "a", [first], parts=(0, 2))
    builder.add(1, 0, "b", COPY, [joined], parts=(1, 8))
    plan = builder.build([0], [])
    assert transfer_bytes(plan, 80.0).tolist() == [20, 0, 70]
    assert transfer_bytes(plan, {"a": 8.0, "b": {1: 16.0}}).tolist() == [2, 0, 14]


def test_longest_chain_counts_moves_only():
    builder = PlanBuilder("chain", 1, ["x"])
    a = builder.add(0, 1, "x", REDUCE)
    b = builder.join(1, "x", [a])
    c = builder.add(1, 2, "x", COPY, [b])
    d = builder.join(2, "x", [c])
    builder.add(3, 2, "x", COPY)
    builder.add(2, 0, "x", COPY, [d])
    assert longest_chain(builder.build([0], [])) == 3
    assert longest_chain(PlanBuilder("none", 1, ["x"]).build([0], [])) == 0
