"""PLink is an all-reduce of two levels, evenly spread, whatever layers the network has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from exact import total_is_exact

from slowlink.methods.exchange import COPY, REDUCE, load
from slowlink.testbed.network import (
    bcube,
    bound,
    geo_sites,
    leaf_spine,
    longest_chain,
    node_traffic,
    region_traffic,
    simulate,
    star,
    tree,
)

NETWORKS = {
    "star": star(5, 8e9),
    "one worker": star(1, 8e9),
    "sites": geo_sites([4, 1, 2]),
    "racks": leaf_spine(4, 4, 8e9),
    "uneven": leaf_spine(3, [3, 2, 1], 8e9),
    "pods": tree((2, 3, 2), 8e9),
    "zones": tree((2, 2, 2, 2), 8e9),
    "bcube": bcube(3, 2, 8e9),
}


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("overlap", [False, True])
def test_exact_sums(network, overlap):
    plan = load("plink", overlap=overlap, chunks=3)(network)
    total_is_exact(plan)
    for window in (1, 2):
        least = bound(plan, network, 1e6)
        took = simulate(replace(plan, window=window), network, 1e6).completion_s
        assert took >= least * (1 - 1e-9)


def edges(plan):
    """What every part of the vector travels: (part, src, dst, op)."""
    rows = zip(*(c.tolist() for c in (plan.lo, plan.hi, plan.src, plan.dst, plan.op)), strict=True)
    return sorted((p, a, b, op) for lo, hi, a, b, op in rows for p in range(lo, hi) if a != b)


@pytest.mark.parametrize(
    "network", [*(one for name, one in NETWORKS.items() if name != "bcube")], ids=lambda t: t.name
)
def test_masters_are_those_of_the_description(network):
    """Each part has one master a rack, at the place of the part's own worker, who sums all."""
    workers = network.workers.tolist()
    rack_of = network.regions[0] if network.regions else np.zeros(network.n_nodes, int)
    racks = {}
    for worker in workers:
        racks.setdefault(int(rack_of[worker]), []).append(worker)
    places = {worker: rack.index(worker) for rack in racks.values() for worker in rack}
    expected = []
    for part, root in enumerate(sorted(workers, key=lambda worker: (places[worker], worker))):
        masters = {r: rack[places[root] % len(rack)] for r, rack in racks.items()}
        for r, rack in racks.items():
            ways = [(worker, masters[r]) for worker in rack if worker != masters[r]]
            ways += [(masters[r], root)] if masters[r] != root else []
            for a, b in ways:
                expected += [(part, a, b, REDUCE), (part, b, a, COPY)]
    assert edges(load("plink")(network)) == sorted(expected)


@pytest.mark.parametrize("per_rack", [[4], [1, 1], [3, 3], [4, 4, 4, 4], [3, 1, 2], [1, 5]])
def test_on_one_layer_these_are_the_trees_of_rat(per_rack):
    network = leaf_spine(len(per_rack), per_rack, 1e9)
    assert edges(load("plink")(network)) == edges(load("rat")(network))


def test_cards_are_even_and_pods_are_not_looked_at():
    network = tree((2, 3, 2), 1e9)
    plan = load("plink")(network)
    assert node_traffic(plan, network).egress[network.workers] == pytest.approx(2 * 11 / 12)
    traffic = region_traffic(plan, network)
    assert traffic["rack"].egress == pytest.approx(2 * 5 / 6)
    assert traffic["pod"].egress == pytest.approx(3 * 2 / 2)
    assert longest_chain(plan, "push") == 2


def test_time_with_barriers():
    """Push and pull levels between equal workers: a card sends its share of each, evenly."""
    network = tree((4, 4), 8e9)
    # Leaves of 12 in 16 chunks; masters of the other 3/16; the same back.
    plan = load("plink", overlap=False)(network)
    assert simulate(plan, network, 1e9).completion_s == pytest.approx(2 * (12 / 16 + 3 / 16))


def test_groups_and_members():
    network = leaf_spine(3, [3, 2, 2], 1e9)
    w = network.workers.tolist()
    some = [w[1], w[2], w[5]]
    assert load("plink").groups(network, some) == [[w[1:3], w[5:6]], [[w[1], w[5]]]]
    plan = load("plink")(network, some)
    assert plan.contributors.tolist() == plan.receivers.tolist() == some
    rng = np.random.default_rng(0)
    for seed in range(20):
        total_is_exact(load("plink")(network, rng.choice(w, rng.integers(1, 8), False)), seed)


def test_there_are_no_fragments():
    with pytest.raises(ValueError, match="plink: there is no push fragment"):
        load("plink")(star(4, 1e9), part="push")
