"""Transfers built by arrays are those built one by one; members group by the regions they share."""

from __future__ import annotations

import numpy as np
import pytest

from slowlink.methods.exchange import COPY, REDUCE, PlanBuilder, Topology, in_pieces, load, names
from slowlink.methods.exchange._regions import equal, hierarchy, parties, power_of
from slowlink.testbed.network import geo_sites, leaf_spine, tree

ARRAYS = ("src", "dst", "lo", "hi", "slot", "op", "phase", "dep_ptr", "dep_idx")


def same(one, other):
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ARRAYS)


def test_arrays_and_single_transfers_make_the_same_plan():
    single, block = (PlanBuilder("both", 4, ("up", "down")) for _ in range(2))
    for step in range(2):
        for rank in range(3):
            after = [3 * step - 3 + rank] if step else []
            parts = (rank, rank + 1)
            single.add(rank, (rank + 1) % 3, "up", REDUCE, after, parts=parts, phase=step)
    for rank in range(3):
        single.join(rank, "down", range(rank + 1))

    step, rank = np.ogrid[:2, :3]
    after = np.where(step, 3 * step - 3 + rank, -1)
    up = block.extend(rank, (rank + 1) % 3, "up", REDUCE, after, rank, rank + 1, phase=step)
    assert up.tolist() == [[0, 1, 2], [3, 4, 5]]
    block.join(0, "down", [0])  # single ones in between keep their place
    down = block.extend([1, 2], [1, 2], "down", COPY, after=([0, 2, 5], [0, 1, 0, 1, 2]))
    assert down.tolist() == [7, 8]
    assert same(single.build([0], [0]), block.build([0], [0]))


def test_dependencies_may_be_a_table_with_gaps_or_none():
    builder = PlanBuilder("gaps", 1, ("x",))
    first = builder.extend([0, 1], [2, 2], "x", REDUCE)
    builder.extend(2, [3, 4, 5], "x", REDUCE, [[-1, 0], [0, 1], [-1, -1]])
    assert builder.extend([], [], "x", REDUCE).size == 0
    plan = builder.build([0, 1], [2])
    assert [plan.dependencies(t).tolist() for t in range(5)] == [[], [], [0], [0, 1], []]
    assert first.tolist() == [0, 1]
    with pytest.raises(ValueError, match="dependencies do not fit 2 transfers"):
        builder.extend([0, 1], [2, 2], "x", REDUCE, ([0, 1], [0]))


def test_hierarchy_nests_and_keeps_rank_order():
    workers = tree((2, 3, 2), 1e9).workers.tolist()
    racks, pods, everybody = hierarchy("x", tree((2, 3, 2), 1e9), None)
    assert racks == [workers[i : i + 2] for i in range(0, 12, 2)]
    assert (pods, everybody) == ([workers[:6], workers[6:]], [workers])
    levels = parties([racks, pods, everybody])
    assert levels == [racks, [workers[0:6:2], workers[6:12:2]], [[workers[0], workers[6]]]]
    # Members only, whatever order they are named in; empty racks drop out.
    some = [workers[i] for i in (11, 2, 3, 0)]
    assert hierarchy("x", tree((2, 3, 2), 1e9), some) == [
        [[workers[0]], [workers[2], workers[3]], [workers[11]]],
        [[workers[0], workers[2], workers[3]], [workers[11]]],
        [[workers[0], workers[2], workers[3], workers[11]]],
    ]


def test_hierarchy_without_regions_and_with_interleaved_ones():
    links = dict(link_src=[], link_dst=[], link_rate=[], link_latency=[], servers=[])
    flat = Topology(tuple("abcd"), workers=[0, 1, 2, 3], **links)
    assert hierarchy("x", flat, None) == [[[0, 1, 2, 3]]]
    mixed = dict(regions=([0, 1, 0, 1], [0, 0, 0, 1]), layers=("rack", "pod"))
    crossed = Topology(tuple("abcd"), workers=[0, 1, 2, 3], **links, **mixed)
    assert hierarchy("x", crossed, None) == [[[0, 2], [1], [3]], [[0, 2, 1], [3]], [[0, 2, 1, 3]]]


@pytest.mark.parametrize("k", [2, 3, 10])
def test_powers(k):
    assert [power_of("x", k**e, k) for e in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=rf"x: needs a power of {k} .* {k} or {k * k}, and not"):
        power_of("x", k + 1, k)


def test_clear_errors():
    assert equal("x", hierarchy("x", leaf_spine(3, 2, 1e9), None)[0]) == 2
    with pytest.raises(ValueError, match=r"x: needs equally many .* these 2 have 3, 1"):
        equal("x", hierarchy("x", geo_sites([3, 1]), None)[0])
    with pytest.raises(ValueError, match="x: node 0 is not a worker"):
        hierarchy("x", geo_sites([3, 1]), [0])


@pytest.mark.parametrize(
    ("name", "options", "share"),
    [
        ("parameter_server", {"shards": "central"}, 1),
        ("parameter_server", {"shards": "colocated"}, 1 / 16),
        ("ring", {}, 1 / 16),
        ("halving_doubling", {}, 1 / 2),
        ("k_nomial_tree", {}, 1),
        ("parameter_hub", {}, 1),
        ("rat", {}, 4 / 16),  # of the trees of a position in four racks
    ],
)
@pytest.mark.parametrize("pieces", [1, 5, 64, 512])
def test_no_piece_is_larger_than_the_rule_says_and_no_message_is_cut_finer(
    name, options, share, pieces
):
    network = leaf_spine(4, 4, 1e9, helpers=True)
    plan = in_pieces(load(name, **options)(network), pieces)
    moves = plan.src != plan.dst
    largest = ((plan.hi - plan.lo)[moves] / plan.units).max()
    assert largest == share
    assert largest / plan.chunks <= 1 / pieces
    assert plan.chunks == 1 or largest / (plan.chunks - 1) > 1 / pieces


def test_plans_that_wait_for_whole_phases_are_not_cut():
    network = leaf_spine(4, 4, 1e9)
    assert in_pieces(load("rat", overlap=False)(network), 512).chunks == 1
    assert in_pieces(load("allgather")(network), 512).chunks == 1  # nobody passes anything on
    nothing = in_pieces(load("ring")(leaf_spine(1, 1, 1e9)), 512)
    assert nothing.chunks == 1 and not len(nothing)
    with pytest.raises(ValueError, match="ring: pieces must be at least 1, not 0"):
        in_pieces(load("ring")(network), 0)


@pytest.mark.parametrize("name", names())
def test_a_pair_of_nodes_has_one_connection(name):
    for network in (geo_sites([2, 2]), leaf_spine(4, 4, 1e9, helpers=True)):
        try:
            assert load(name)(network).window == 1
        except ValueError as error:
            assert "hips" in str(error)
