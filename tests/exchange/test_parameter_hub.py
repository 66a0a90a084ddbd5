"""Parameter Hub is an all-reduce through one helper a rack, if every rack has one."""

from __future__ import annotations

import pytest
from exact import total_is_exact

from slowlink.methods.exchange import load
from slowlink.testbed.network import (
    bcube,
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
    "sites": geo_sites([4, 1, 2]),
    "one rack": leaf_spine(1, 4, 8e9, helpers=True),
    "racks": leaf_spine(4, 4, 8e9, helpers=True),
    "uneven": leaf_spine(3, [3, 2, 1], 8e9, helpers=True),
    "pods": tree((2, 3, 2), 8e9, helpers=True),
}


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("overlap", [False, True])
def test_exact_sums_and_what_nodes_send(network, overlap):
    plan = load("parameter_hub", overlap=overlap, chunks=3)(network)
    total_is_exact(plan)
    sent = node_traffic(plan, network).egress
    assert sent[network.workers] == pytest.approx(1)
    racks, helpers = load("parameter_hub").groups(network)
    r = len(racks)
    for rack, helper in zip(racks, helpers[0], strict=True):
        assert sent[helper] == pytest.approx(2 * (r - 1) / r + len(rack))
    assert longest_chain(plan, "push") == (2 if r > 1 else 1)


def test_racks_send_the_least_and_pods_more():
    network = tree((2, 3, 2), 1e9, helpers=True)
    traffic = region_traffic(load("parameter_hub")(network), network)
    assert traffic["rack"].egress == pytest.approx(2 * 5 / 6)
    assert traffic["pod"].egress == pytest.approx(3 * 2 / 2)  # of 3 racks, each with half outside


@pytest.mark.parametrize("workers", [4, 10, 15, 20])
@pytest.mark.parametrize("nics", [1, 4, 10])
def test_a_rack_takes_as_long_as_its_box_has_too_few_cards(workers, nics):
    """With barriers: a push, two steps between helpers at an uplink's rate, a pull.

    Striping shares 15 workers' messages evenly over 10 cards: 1.5 times a card's time for the
    vector, and not 2 as where each worker had one card to itself.
    """
    seconds = 1 + 2 * max(1, workers / nics)
    network = leaf_spine(2, workers, 8e9, helpers=True, helper_nics=nics, spines=1)
    plan = load("parameter_hub", overlap=False)(network)
    assert simulate(plan, network, 1e9).completion_s == pytest.approx(seconds)


@pytest.mark.parametrize("per_rack", [4, 8, 16, 32, 64])
def test_in_fine_chunks_it_takes_what_its_fullest_card_does(per_rack):
    """Four racks with boxes of ten cards. A box gets w vectors from its rack and 3/4 twice from the
    other boxes; a worker sends and gets the vector once, and not 2(n - 1)/n times as in a ring."""
    network = leaf_spine(4, per_rack, 8e9, helpers=True)
    took = simulate(load("parameter_hub", chunks=512)(network), network, 1e9).completion_s
    seconds = max(1, (per_rack + 2 * 3 / 4) / 10)
    assert seconds * (1 - 1e-9) <= took < seconds * 1.01


def test_groups_and_members():
    network = leaf_spine(3, [3, 2, 2], 1e9, helpers=True)
    w, helpers = network.workers.tolist(), network.servers.tolist()
    some = [w[1], w[2], w[5]]
    assert load("parameter_hub").groups(network, some) == [[w[1:3], w[5:6]], [helpers[::2]]]
    plan = load("parameter_hub")(network, some)
    assert plan.contributors.tolist() == plan.receivers.tolist() == some
    total_is_exact(plan)


@pytest.mark.parametrize("network", [tree((2, 2), 1e9), bcube(2, 2, 1e9)], ids=["tree", "bcube"])
def test_racks_without_helpers_are_refused(network):
    for ask in (load("parameter_hub"), load("parameter_hub").groups):
        with pytest.raises(ValueError, match="parameter_hub: .*worker0 has no helper server"):
            ask(network)


def test_there_are_no_fragments():
    with pytest.raises(ValueError, match="parameter_hub: there is no pull fragment"):
        load("parameter_hub")(star(4, 1e9), part="pull")
