"""Counts on plans against formulas, and bounds against the physics of the paper's own table."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from slowlink.methods.exchange import COPY, REDUCE, PlanBuilder, load
from slowlink.testbed.network import (
    bound,
    geo_sites,
    leaf_spine,
    least_egress,
    link_traffic,
    longest_chain,
    node_traffic,
    region_traffic,
    simulate,
    star,
    transfer_bytes,
    tree,
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
        serial = replace(pipelined, overlap=False)
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


def test_longest_chain_of_each_half():
    """Two reductions in a row, then three copies, past a longer reduce chain that leads nowhere."""
    builder = PlanBuilder("halves", 1, ["push/0", "push/1", "pull/0"])
    a = builder.add(0, 1, "push/0", REDUCE)
    b = builder.add(1, 2, "push/1", REDUCE, [builder.join(1, "push/1", [a])])
    c = builder.add(2, 1, "pull/0", COPY, [builder.join(2, "pull/0", [b])])
    d = builder.add(1, 0, "pull/0", COPY, [c])
    builder.add(0, 3, "pull/0", COPY, [d])
    side = builder.add(4, 5, "push/0", REDUCE)
    side = builder.add(5, 6, "push/0", REDUCE, [side])
    builder.add(6, 7, "push/0", REDUCE, [side])
    plan = builder.build([0], [])
    assert [longest_chain(plan, part) for part in ("all", "push", "pull")] == [5, 3, 3]
    with pytest.raises(ValueError, match="part must be one of .*not 'reduce'"):
        longest_chain(plan, "reduce")


@pytest.mark.parametrize("seed", range(5))
def test_longest_chain_against_all_chains(seed):
    rng = np.random.default_rng(seed)
    builder = PlanBuilder("random", 1, ["push/0", "pull/0"])
    after, n = [], 40
    for t in range(n):
        after.append(np.unique(rng.integers(0, t, rng.integers(0, 3))).tolist() if t else [])
        node, slot = rng.integers(4, size=2), ["push/0", "pull/0"][rng.integers(2)]
        builder.add(*node, slot, COPY, after[t])
    plan = builder.build([0], [])

    def chains(t):
        yield [t]
        for before in after[t]:
            for chain in chains(before):
                yield [*chain, t]

    moves = plan.src != plan.dst
    for part, slots in [("all", (0, 1)), ("push", (0,)), ("pull", (1,))]:
        counted = moves & np.isin(plan.slot, slots)
        expected = max(sum(counted[chain]) for t in range(n) for chain in chains(t))
        assert longest_chain(plan, part) == expected


@pytest.mark.parametrize("regions", [1, 2, 3, 4])
def test_least_egress_by_search(regions):
    """The fewest one-way messages after which every region knows of every other: 2 (R - 1)."""
    everything = (1 << regions) - 1
    states, messages = {tuple(1 << i for i in range(regions))}, 0
    while not any(all(known == everything for known in state) for state in states):
        states = {
            tuple(known | (state[a] if i == b else 0) for i, known in enumerate(state))
            for state in states
            for a, b in itertools.permutations(range(regions), 2)
        }
        messages += 1
    topology = leaf_spine(regions, 2, 1e9)
    assert least_egress(topology)["rack"] == pytest.approx(messages / regions)


def test_least_egress_counts_regions_with_members():
    topology = tree((2, 3, 2), 1e9)
    assert least_egress(topology) == pytest.approx({"rack": 2 * 5 / 6, "pod": 2 * 1 / 2})
    assert least_egress(topology, [0, 1, 2]) == {"rack": 1.0, "pod": 0.0}
    assert least_egress(star(3, 1e9)) == {}


@pytest.mark.parametrize("name", ["rat", "ring", "halving_doubling", "parameter_server"])
@pytest.mark.parametrize("shape", [(4, 4), (2, 4, 2), (2, 2, 2, 2)])
def test_no_exchange_sends_less_than_the_least(name, shape):
    topology = tree(shape, 1e9)
    parameters = {"shards": "colocated"} if name == "parameter_server" else {}
    traffic = region_traffic(load(name, **parameters)(topology), topology)
    for layer, least in least_egress(topology).items():
        assert traffic[layer].egress.max() >= least * (1 - 1e-12)
        if name == "rat":
            assert traffic[layer].egress == pytest.approx(
                np.full(len(traffic[layer].egress), least)
            )
