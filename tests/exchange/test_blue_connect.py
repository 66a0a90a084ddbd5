"""BlueConnect is an all-reduce of rings inside rings, for equal regions of any sizes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from exact import total_is_exact

from slowlink.methods.exchange import load
from slowlink.testbed.network import geo_sites, leaf_spine, node_traffic, simulate, star, tree

SHAPES = [(1,), (5,), (1, 1), (2, 3), (4, 4), (5, 2), (3, 1, 2), (2, 3, 4), (2, 3, 1, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("overlap", [False, True])
def test_exact_sums_and_even_cards(shape, overlap):
    network = tree(shape, 1e9)
    plan = load("blue_connect", overlap=overlap, chunks=3)(network)
    total_is_exact(plan)
    n = len(network.workers)
    sent = node_traffic(plan, network)
    assert sent.egress[network.workers] == pytest.approx(2 * (n - 1) / n)
    assert sent.ingress[network.workers] == pytest.approx(2 * (n - 1) / n)


def test_everybody_sends_to_one_neighbour_a_layer():
    network = tree((4, 3, 2), 1e9)
    plan = load("blue_connect")(network)
    moves = plan.src != plan.dst
    receivers = {(int(a), int(b)) for a, b in zip(plan.src[moves], plan.dst[moves], strict=True)}
    assert set(Counter(a for a, _ in receivers).values()) == {3}
    rack, pod = network.regions
    for a, b in receivers:  # the first ring is of a rack, the second of a pod, the third leaves it
        same = (rack[a] == rack[b], pod[a] == pod[b])
        level = {(True, True): 0, (False, True): 1, (False, False): 2}[same]
        slots = plan.slot[(plan.src == a) & (plan.dst == b)]
        assert {plan.slots[slot] for slot in slots} == {f"push/{level}", f"pull/{level}"}


def test_time_with_barriers_is_the_sum_over_rings():
    """Each ring of g sends (g - 1)/g of its share at the rate of a card, both ways."""
    network = tree((4, 4), 8e9, oversubscription=2.0)
    plan = load("blue_connect", overlap=False)(network)
    # Uplinks of racks carry half of what four cards do, so the rings between racks take twice.
    seconds = 2 * (3 / 4 + 2 * 3 / 4 / 4)
    assert simulate(plan, network, 1e9).completion_s == pytest.approx(seconds)


def test_groups_are_the_regions():
    network = tree((2, 2, 2), 1e9)
    w = network.workers
    assert load("blue_connect").groups(network) == [
        [[w[0], w[1]], [w[2], w[3]], [w[4], w[5]], [w[6], w[7]]],
        [[w[0], w[2]], [w[4], w[6]]],
        [[w[0], w[4]]],
    ]


def test_members_that_are_equal_in_every_rack_may_be_few():
    network = leaf_spine(3, [4, 2, 3], 1e9)
    w, rack = network.workers, network.regions[0]
    two = np.concatenate([w[rack[w] == r][-2:] for r in range(3)])
    total_is_exact(load("blue_connect")(network, two))
    total_is_exact(load("blue_connect")(network, w[[4, 5]]))
    total_is_exact(load("blue_connect")(network, w[[1]]))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (geo_sites([4, 1, 2]), "blue_connect: needs equally many workers .* have 4, 1, 2"),
        (leaf_spine(3, [3, 2, 2], 1e9), "these 3 have 3, 2, 2"),
    ],
)
def test_unequal_racks_are_refused(network, message):
    for ask in (load("blue_connect"), load("blue_connect").groups):
        with pytest.raises(ValueError, match=message):
            ask(network)


def test_there_are_no_fragments():
    with pytest.raises(ValueError, match="blue_connect: there is no push fragment"):
        load("blue_connect")(star(4, 1e9), part="push")
