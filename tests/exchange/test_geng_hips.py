"""HiPS by stages is an all-reduce on grids, and keeps every card of a BCube busy."""

from __future__ import annotations

import numpy as np
import pytest
from exact import total_is_exact

from slowlink.methods.exchange import load
from slowlink.testbed.network import (
    bcube,
    leaf_spine,
    link_traffic,
    longest_chain,
    node_traffic,
    simulate,
    tree,
)

NETWORKS = {
    **{f"tree {shape}": tree(shape, 8e9) for shape in [(5,), (1, 1), (2, 3), (4, 4), (3, 2, 2)]},
    **{f"bcube {size}": bcube(*size, 8e9) for size in [(1, 1), (4, 1), (2, 2), (3, 2), (2, 4)]},
}


@pytest.mark.parametrize("mode", ["ps", "ring"])
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("overlap", [False, True])
def test_exact_sums_and_even_cards(mode, network, overlap):
    plan = load("geng_hips", mode=mode, overlap=overlap, chunks=2)(network)
    total_is_exact(plan)
    n = len(network.workers)
    sent = node_traffic(plan, network)
    assert sent.egress[network.workers] == pytest.approx(2 * (n - 1) / n)
    assert sent.ingress[network.workers] == pytest.approx(2 * (n - 1) / n)


def transfers(plan):
    return sorted(
        zip(*(x.tolist() for x in (plan.src, plan.dst, plan.lo, plan.hi, plan.op)), strict=True)
    )


def test_in_ring_mode_on_a_tree_it_is_blue_connect():
    network = tree((4, 3, 2), 1e9)
    ring = load("geng_hips", mode="ring")(network)
    assert transfers(ring) == transfers(load("blue_connect")(network))
    assert longest_chain(ring, "push") == 3 + 2 + 1
    assert longest_chain(load("geng_hips", mode="ps")(network), "push") == 3


def test_with_one_layer_in_ps_mode_it_is_a_colocated_parameter_server():
    network = bcube(5, 1, 1e9)
    plan, server = load("geng_hips")(network), load("parameter_server", shards="colocated")(network)
    assert transfers(plan) == transfers(server)


@pytest.mark.parametrize("mode", ["ps", "ring"])
@pytest.mark.parametrize(("ports", "levels"), [(4, 2), (2, 3), (3, 3)])
def test_all_cards_of_a_bcube_work_at_once(mode, ports, levels):
    """A flat exchange's time over the number of cards: the published gain, of stages alone."""
    network = bcube(ports, levels, 8e9)
    n = ports**levels
    plan = load("geng_hips", mode=mode, overlap=False)(network)
    load_of = link_traffic(plan, network)[np.isfinite(network.link_rate)]
    assert load_of == pytest.approx(2 * (n - 1) / n / levels)
    assert simulate(plan, network, 1e9).completion_s == pytest.approx(2 * (n - 1) / n / levels)


def test_groups_follow_the_dimensions():
    network = bcube(2, 2, 1e9)
    w = network.workers
    assert load("geng_hips").groups(network) == [[[w[0], w[1]], [w[2], w[3]]], [[w[0], w[2]]]]


def test_members_may_be_any_part_of_the_grid_that_is_a_grid():
    network = bcube(3, 3, 1e9)
    digits = np.stack([network.workers // 3**j % 3 for j in range(3)])
    plane = network.workers[digits[1] == 2]
    corners = network.workers[(digits != 1).all(axis=0)]
    line = network.workers[(digits[0] == 1) & (digits[2] == 0)]
    for mode in ("ps", "ring"):
        for members in (plane, corners, line, network.workers[:1]):
            total_is_exact(load("geng_hips", mode=mode)(network, members))
            groups = load("geng_hips", mode=mode).groups(network, members)
            assert sorted(sum(groups[0], [])) == members.tolist()
    total_is_exact(load("geng_hips")(leaf_spine(3, [4, 2, 3], 1e9), [0, 3, 4, 5, 6, 8]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: load("geng_hips", mode="mesh"), "mode must be ps or ring, not 'mesh'"),
        (lambda: load("geng_hips")(leaf_spine(3, [3, 2, 2], 1e9)), "these 3 have 3, 2, 2"),
        (lambda: load("geng_hips")(bcube(2, 2, 1e9), [0, 1, 2]), "equally many workers"),
        # Equal lines, but a diagonal of squares is no grid.
        (lambda: load("geng_hips")(bcube(4, 2, 1e9), [0, 1, 4, 5, 10, 11, 14, 15]), "fill a grid"),
        (lambda: load("geng_hips")(bcube(2, 2, 1e9), part="pull"), "no pull fragment"),
    ],
)
def test_clear_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
