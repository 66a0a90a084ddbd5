"""One transfer of each kind stands for all: times are those of simulating every one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from slowlink.methods import exchange
from slowlink.methods.exchange import in_pieces, load
from slowlink.testbed.network import Alone, Network, geo_sites, leaf_spine, simulate, star

NETWORKS = {
    "star": lambda: star(12, 1e9, latency=1e-5),
    "even sites": lambda: geo_sites([4, 4, 4], lan=1e10, wan=1e8, lan_latency=1e-5),
    "uneven sites": lambda: geo_sites([2, 5, 3], lan=1e10, wan=1e8, wan_latency=0.005),
    "racks": lambda: leaf_spine(4, 4, 1e9, spines=2, uplink=1e9),
}
OPTIONS = {
    "plain": {},
    "costs": dict(message_s=1e-4, sum_rate=2e8),
    "capped": dict(flow_cap=3e7, efficiency=0.95),
}


def every_one(plan, topology, sizes, **options):
    """The plan with each of its transfers simulated, as in a network that may hold others too."""
    network = Network(topology, **options)
    result = network.start(plan, sizes)
    network.advance()
    return result


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", sorted(exchange.names()))
def test_times_are_those_of_simulating_all(name, network, options):
    topology = NETWORKS[network]()
    try:
        plan = load(name)(topology)
    except ValueError as error:
        pytest.skip(str(error))
    shapes = [
        in_pieces(plan, 8),
        dataclasses.replace(plan, overlap=False),
        dataclasses.replace(plan, window=0),
        dataclasses.replace(plan, window=2, chunks=5),
    ]
    for shape in shapes:
        sizes = {slot: 3e6 / (1 + number) for number, slot in enumerate(plan.slots)}
        one_each = simulate(shape, topology, sizes, **OPTIONS[options])
        all_of_them = every_one(shape, topology, sizes, **OPTIONS[options])
        for column in ("src", "dst", "slot", "nbytes"):
            assert (one_each.transfers[column] == all_of_them.transfers[column]).all()
        for column in ("start_s", "end_s"):
            expected = all_of_them.transfers[column]
            assert one_each.transfers[column] == pytest.approx(expected, rel=1e-9)
        assert one_each.completion_s == pytest.approx(all_of_them.completion_s, rel=1e-9)
        assert one_each.link_bytes == pytest.approx(all_of_them.link_bytes, rel=1e-9)
        # And so they are of a network that is set up once, whatever it was asked before.
        alone = Alone(shape, topology, **OPTIONS[options])
        for factor in (0.0, 100.0, 1.0):
            others = {slot: factor * nbytes for slot, nbytes in sizes.items()}
            expected = simulate(shape, topology, others, **OPTIONS[options]).completion_s
            assert alone.completion_s(others) == expected


@pytest.mark.parametrize("nbytes", [-1.0, float("nan"), float("inf")])
def test_a_size_that_is_none_is_refused(nbytes):
    topology = star(3, 1e9)
    plan = load("ring")(topology)
    with pytest.raises(ValueError, match="sizes must be bytes, finite and >= 0"):
        Alone(plan, topology).completion_s(dict.fromkeys(plan.slots, nbytes))


@pytest.mark.parametrize(
    ("name", "kinds"), [("ring", 2 * 15), ("allgather", 1), ("halving_doubling", 4 + 1 + 4)]
)
def test_a_step_around_one_switch_is_one_kind(name, kinds):
    result = simulate(load(name)(star(16, 1e9)), star(16, 1e9), 1e6)
    assert len(np.unique(result._static.kind)) == kinds


def test_what_one_slow_link_touches_is_told_apart():
    topology = star(16, 1e9)
    rates = topology.link_rate.copy()
    rates[3] /= 2
    slower = dataclasses.replace(topology, link_rate=rates)
    plan = load("ring")(slower)
    assert len(np.unique(simulate(plan, slower, 1e6)._static.kind)) > 2 * 15
    found, expected = simulate(plan, slower, 1e6), every_one(plan, slower, 1e6)
    assert found.transfers["end_s"] == pytest.approx(expected.transfers["end_s"], rel=1e-9)


def test_sizes_by_sender_are_told_apart():
    topology = star(4, 1e9)
    plan = load("allgather")(topology)
    sizes = {plan.slots[0]: {node: 1e6 * (1 + node) for node in topology.workers.tolist()}}
    found, expected = simulate(plan, topology, sizes), every_one(plan, topology, sizes)
    assert found.transfers["end_s"] == pytest.approx(expected.transfers["end_s"], rel=1e-12)
    assert len(np.unique(found.transfers["end_s"])) > 1
