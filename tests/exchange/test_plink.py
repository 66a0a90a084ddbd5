"""PLink is an all-reduce of two levels, evenly spread, whatever layers the network has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from exact import total_is_exact

from methods.exchange import load
from testbed.network import (
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


def described(plan):
    """Transfers by what they carry and what they include, whatever their numbers are."""
    rows = list(zip(plan.src, plan.dst, plan.lo, plan.hi, plan.op, plan.phase, strict=True))
    return sorted(
        (row, sorted(rows[d] for d in plan.dependencies(t))) for t, row in enumerate(rows)
    )


@pytest.mark.parametrize("per_rack", [[4], [1, 1], [3, 3], [4, 4, 4, 4], [3, 1, 2], [1, 5]])
def test_on_one_layer_these_are_the_trees_of_rat(per_rack):
    """Two programs that share no line: so this tests RAT, too."""
    network = leaf_spine(len(per_rack), per_rack, 1e9)
    assert described(load("plink")(network)) == described(load("rat")(network))


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
