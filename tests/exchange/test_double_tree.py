"""Two trees: everybody is a leaf of one, and with many pieces cards carry about one vector."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slowlink.methods.exchange import in_pieces, load
from slowlink.testbed.network import leaf_spine, node_traffic, simulate, star
from slowlink.testbed.network.counting import longest_chain

RATE = 1e9


def edges(plan, unit):
    """Pairs of child and parent in the tree of one half."""
    up = (plan.slot == plan.slots.index("push/0")) & (plan.lo == unit) & (plan.src != plan.dst)
    return list(zip(plan.src[up].tolist(), plan.dst[up].tolist(), strict=True))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 12, 13, 16, 31, 64, 100])
def test_each_half_has_a_binary_tree_and_nobody_two_loads(n):
    topology = star(n, RATE)
    plan = load("double_tree")(topology)
    interior = []
    for unit in (0, 1):
        pairs = edges(plan, unit)
        children = [child for child, _ in pairs]
        assert len(children) == len(set(children)) == n - 1
        parents = [parent for _, parent in pairs]
        assert max(parents.count(node) for node in parents) <= 2
        interior.append(set(parents))
        up = dict(pairs)
        (root,) = set(up.values()) - set(up)
        for node in up:  # everybody comes to the root, in few steps
            steps = 0
            while node != root:
                node, steps = up[node], steps + 1
            assert steps <= math.floor(math.log2(n)) + 1
    assert len(interior[0] & interior[1]) <= n % 2
    assert longest_chain(plan) <= 2 * (math.floor(math.log2(n)) + 1)


@pytest.mark.parametrize("n", [4, 8, 16, 64])
def test_cards_carry_at_most_a_vector_and_a_half(n):
    """Of its half, who has two children gets two and hands on one each way; of the other, a leaf
    sends one and gets one."""
    topology = star(n, RATE)
    moved = node_traffic(load("double_tree")(topology), topology)
    for side in (moved.egress, moved.ingress):
        assert side[topology.workers].max() <= 2.0
        assert side[topology.workers].sum() == pytest.approx(2 * (n - 1))


def test_in_many_pieces_it_takes_two_vectors_through_a_card_and_not_a_rings_steps():
    """A pipelined pair of trees takes near 2 vectors, whatever the number of workers; a single
    binomial tree's root gets log2 n of them."""
    n, nbytes = 64, 1e8
    topology = star(n, RATE)
    seconds = {
        name: simulate(in_pieces(load(name)(topology), 256), topology, nbytes).completion_s
        for name in ("double_tree", "k_nomial_tree")
    }
    vector = 8 * nbytes / RATE
    assert 2 * vector * 0.99 <= seconds["double_tree"] <= 2.3 * vector
    assert seconds["k_nomial_tree"] > 2 * seconds["double_tree"]
    # Small messages: its chain is 2 log2 n, a ring's 2 (n - 1).
    late = star(n, RATE, latency=1e-3)
    small = {
        name: simulate(load(name)(late), late, 64.0).completion_s
        for name in ("double_tree", "ring")
    }
    assert small["double_tree"] < 0.15 * small["ring"]


@pytest.mark.parametrize(("racks", "each"), [(4, 4), (8, 4), (2, 16)])
def test_most_edges_stay_inside_of_racks(racks, each):
    topology = leaf_spine(racks, each, RATE)
    plan = load("double_tree")(topology)
    (region,) = topology.regions
    for unit in (0, 1):
        across = sum(region[a] != region[b] for a, b in edges(plan, unit))
        # One edge less than there are racks is the fewest; a search tree cuts some racks in two.
        assert racks - 1 <= across <= 2 * racks
    assert np.array_equal(plan.contributors, plan.receivers)
