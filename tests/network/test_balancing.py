"""Tree weights against closed forms, brute force and the linear program's dual."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import brentq, linprog

from slowlink.methods.exchange import COPY, REDUCE, PlanBuilder, Topology, load
from slowlink.testbed.network import (
    Paths,
    bound,
    leaf_spine,
    link_traffic,
    links_between,
    simulate,
    star,
    tree,
    tree_loads,
    tree_weights,
    without,
)

RATE = 1e9


def cable(topology, a, b):
    return np.concatenate([links_between(topology, a, b), links_between(topology, b, a)])


def failed_cable(topology):
    return without(topology, cable(topology, "rack0/switch", "spine1"))


NETWORKS = {
    "slow rack": lambda: leaf_spine(4, 4, RATE, uplink=[0.2e9, 1e9, 1e9, 1e9]),
    "failed cable": lambda: failed_cable(leaf_spine(4, 4, RATE, uplink=0.4e9)),
    "failed cable of two racks": lambda: failed_cable(leaf_spine(2, 4, RATE, uplink=0.4e9)),
    "sizes differ": lambda: leaf_spine(3, [8, 2, 4], RATE),
    "sizes and rates": lambda: leaf_spine(3, [5, 3, 1], RATE, uplink=[0.3e9, 0.5e9, 1e9]),
    "slow pod": lambda: slowed(tree((2, 2, 3), RATE), "pod1/switch0", "spine0", 0.3),
}


def slowed(topology, a, b, factor):
    rate = topology.link_rate.copy()
    rate[cable(topology, a, b)] *= factor
    columns = ("link_src", "link_dst", "link_latency", "regions", "layers", "name")
    return Topology(
        topology.node_names,
        topology.workers,
        topology.servers,
        link_rate=rate,
        **{column: getattr(topology, column) for column in columns},
    )


def most(plan, topology, weights, paths=None):
    """Seconds of the most loaded link for each byte of the vector."""
    loads = tree_loads(plan, topology, paths or Paths())
    return (8 * (loads @ weights) / topology.link_rate).max()


@pytest.mark.parametrize("name", ["rat", "ring", "k_nomial_tree", "parameter_server"])
def test_loads_of_even_trees_are_the_plans_traffic(name):
    topology = leaf_spine(3, [2, 3, 4], RATE)
    plan = load(name, **{"shards": "colocated"} if name == "parameter_server" else {})(topology)
    loads = tree_loads(plan, topology)
    assert loads.shape == (topology.n_links, plan.units)
    assert loads.sum(axis=1) / plan.units == pytest.approx(link_traffic(plan, topology))


def test_loads_count_every_unit_of_a_transfer_and_every_link():
    topology = star(3, RATE)
    builder = PlanBuilder("parts", 4, ["push/0", "pull/0"])
    first = builder.add(0, 1, "push/0", REDUCE, parts=(0, 3))
    joined = builder.join(1, "push/0", [first], parts=(0, 3))
    builder.add(1, 2, "pull/0", COPY, [joined], parts=(2, 4))
    loads = tree_loads(builder.build([0, 1], [2]), topology).toarray()
    expected = {
        ("worker0", "switch"): [1, 1, 1, 0],
        ("switch", "worker1"): [1, 1, 1, 0],
        ("worker1", "switch"): [0, 0, 1, 1],
        ("switch", "worker2"): [0, 0, 1, 1],
    }
    for ends, counts in expected.items():
        (link,) = links_between(topology, *ends)
        assert loads[link].tolist() == counts
    assert loads.sum() == sum(map(sum, expected.values()))


@pytest.mark.parametrize(
    "topology",
    [
        star(5, RATE),
        leaf_spine(4, 4, RATE),
        leaf_spine(4, 8, RATE, uplink=0.25e9),
        tree((2, 2, 2), RATE, oversubscription=4, spines=2),
    ],
    ids=lambda topology: f"{topology.name} {len(topology.workers)}",
)
def test_even_shares_are_best_where_all_is_symmetric(topology):
    plan = load("rat")(topology)
    weights = tree_weights(plan, topology)
    n = len(topology.workers)
    assert weights == pytest.approx(np.full(n, 1 / n))


@pytest.mark.parametrize("uplinks", [(0.1, 1, 0.4, 0.4), (0.3, 0.3, 0.3, 0.1), (0.5, 0.4, 0.3)])
def test_racks_with_uplinks_of_different_speed(uplinks):
    """A tree rooted in a rack sends r - 1 copies out of it, and one sum out of each other rack.

    So a rack that has the roots of a share s of the vector sends (1 - s) + (r - 1) s of it; the
    optimum fills the racks up to a common time, those too slow for it with nothing.
    """
    racks = len(uplinks)
    capacity = np.array(uplinks) * 1e9
    topology = leaf_spine(racks, 8, 8e9, spines=1, uplink=capacity.tolist())
    plan = load("rat")(topology)
    weights = tree_weights(plan, topology)

    def shares(seconds):
        return np.maximum((seconds * capacity / 8 - 1) / (racks - 2), 0)

    least = brentq(lambda seconds: shares(seconds).sum() - 1, 0, 1e-6, xtol=1e-22)
    least = max(least, 8 / capacity.min())  # each rack sends its sum whatever the shares
    assert most(plan, topology, weights) == pytest.approx(least, rel=1e-6)
    if least > 8 / capacity.min():
        assert weights.reshape(8, racks).sum(axis=0) == pytest.approx(shares(least), abs=1e-6)
    # Trees rooted in one rack load the uplinks alike, so the evenest shares give them the same.
    assert np.ptp(weights.reshape(8, racks), axis=0).max() < 1e-6


@pytest.mark.parametrize("paths", [Paths("first"), Paths("ecmp", 1)], ids=lambda p: p.choice)
def test_brute_force_over_a_grid_of_shares(paths):
    """Four trees on racks of three and one: no shares in steps of 1/40 do better."""
    topology = leaf_spine(2, [3, 1], RATE, uplink=[0.3e9, 0.7e9])
    plan = load("rat")(topology)
    weights = tree_weights(plan, topology, paths)
    steps = 40
    grid = [
        (*head, steps - sum(head))
        for head in itertools.product(range(steps + 1), repeat=3)
        if sum(head) <= steps
    ]
    loads = tree_loads(plan, topology, paths).toarray() / topology.link_rate[:, None]
    best = (8 * loads @ np.array(grid).T / steps).max(axis=0).min()
    ours = most(plan, topology, weights, paths)
    assert ours <= best * (1 + 1e-6)
    assert ours >= best * (1 - 4 / steps)  # the grid has a point as near as that


@pytest.mark.parametrize("network", NETWORKS)
def test_optimal_by_duality_and_never_worse_than_even(network):
    """Prices on links under which no tree is cheaper than the bound prove that it is the least."""
    topology = NETWORKS[network]()
    plan = load("rat")(topology)
    weights = tree_weights(plan, topology)
    n = len(weights)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1, rel=1e-12)
    ours = most(plan, topology, weights)
    assert ours <= most(plan, topology, np.full(n, 1 / n)) * (1 + 1e-6)

    seconds = 8 * tree_loads(plan, topology).toarray() / topology.link_rate[:, None]
    seconds, scale = seconds / seconds.max(), seconds.max()
    links = topology.n_links
    # The dual, solved by itself: prices of sum 1 that make the cheapest tree as dear as possible.
    dual = linprog(
        np.append(np.zeros(links), -1.0),
        A_ub=np.column_stack([-seconds.T, np.ones(n)]),
        b_ub=np.zeros(n),
        A_eq=np.append(np.ones(links), 0.0)[None],
        b_eq=[1.0],
    )
    prices = np.maximum(dual.x[:links], 0)
    assert ours == pytest.approx((prices @ seconds).min() / prices.sum() * scale, rel=1e-6)


@pytest.mark.parametrize("network", ["slow rack", "failed cable", "sizes differ"])
def test_weighted_plans_keep_the_promise_and_save_time(network):
    """RAT rounds shares to 1 / 10,000 of the vector; in chunks it comes near its bound."""
    topology = NETWORKS[network]()
    even = load("rat", chunks=16)(topology)
    weights = tree_weights(even, topology)
    weighted = load("rat", chunks=16, weights=weights.tolist())(topology)
    promised, n = most(even, topology, weights), len(weights)
    assert bound(weighted, topology, 1.0) == pytest.approx(promised, rel=n / 10_000 + 1e-6)
    assert promised < 0.8 * bound(even, topology, 1.0)
    seconds = [simulate(plan, topology, 1e8).completion_s for plan in (weighted, even)]
    assert 1e8 * promised < seconds[0] < 0.85 * seconds[1]


@pytest.mark.parametrize("uplinks", [(0.3, 1, 1, 1), (0.6, 0.5, 0.3, 0.3), (0.2, 0.7, 0.6)])
def test_phases_that_do_not_overlap(uplinks):
    """Rack i sends 1 - s_i on the way up, gets (r - 1) s_i, and on the way down the reverse.

    Both must fit in time z over its uplink: 1 - z c_i <= s_i <= z c_i / (r - 1), of sum 1. The
    slowest rack is best off with s_i = 1 / r, so no shares beat even ones.
    """
    racks, capacity = len(uplinks), np.array(uplinks) * 1e9 / 8
    topology = leaf_spine(racks, 4, float("inf"), spines=1, uplink=(8 * capacity).tolist())
    plan = load("rat", overlap=False)(topology)
    weights = tree_weights(plan, topology)
    weighted = load("rat", overlap=False, weights=weights.tolist())(topology)

    def missing(z):
        low, high = np.maximum(1 - z * capacity, 0), z * capacity / (racks - 1)
        return max((low - high).max(), low.sum() - 1, 1 - high.sum())

    least = 2 * brentq(missing, 0, 1e-6, xtol=1e-22)
    ours = bound(weighted, topology, 1.0, duplex=False)
    assert ours == pytest.approx(least, rel=16 / 10_000)
    assert simulate(weighted, topology, 1.0).completion_s == pytest.approx(ours)
    assert bound(plan, topology, 1.0, duplex=False) == pytest.approx(least)


@pytest.mark.parametrize("network", NETWORKS)
def test_phases_are_never_worse_than_even(network):
    topology = NETWORKS[network]()
    plan = load("rat", overlap=False)(topology)
    weights = tree_weights(plan, topology)
    weighted = load("rat", overlap=False, weights=weights.tolist())(topology)
    ours, even = (bound(each, topology, 1.0, duplex=False) for each in (weighted, plan))
    assert ours <= even * (1 + len(weights) / 10_000)


def test_links_without_a_limit_leave_the_shares_even():
    free = leaf_spine(2, [1, 3], float("inf"))
    assert tree_weights(load("rat")(free), free).tolist() == [1 / 4] * 4


def test_an_ill_conditioned_network_still_gets_the_optimum():
    """Rates over four decades, where evening shares out is beyond the precision of doubles."""
    rates = 10e9 * np.array([3.03456788e-05, 3.73215896e-02, 3.07296228e-02, 8.37775569e-02])
    topology = leaf_spine(4, [4, 2, 7, 1], 10e9, spines=3, uplink=rates.tolist())
    plan = load("rat")(topology)
    loads = tree_loads(plan, topology).toarray() / topology.link_rate[:, None]
    loads /= loads.max()
    n = plan.units
    least = linprog(
        np.append(np.zeros(n), 1.0),
        A_ub=np.column_stack([loads, -np.ones(len(loads))]),
        b_ub=np.zeros(len(loads)),
        A_eq=[np.append(np.ones(n), 0.0)],
        b_eq=[1.0],
    ).fun
    weights = tree_weights(plan, topology)
    assert weights.sum() == pytest.approx(1) and weights.min() >= 0
    assert (loads @ weights).max() == pytest.approx(least, rel=1e-5)
