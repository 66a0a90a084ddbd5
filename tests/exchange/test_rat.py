"""RAT: its trees are those of the document, its loads even, its times those of closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from exact import total_is_exact

from slowlink.methods.exchange import COPY, REDUCE, load
from slowlink.testbed.network import (
    Paths,
    bcube,
    bound,
    closed_forms,
    geo_sites,
    leaf_spine,
    link_traffic,
    longest_chain,
    node_traffic,
    region_traffic,
    route,
    simulate,
    tree,
    verify,
)

GBIT, VECTOR, CARD = 1e9, 1e9, 8e9  # VECTOR / CARD is one second: times are in M/B
SHAPES = [(4,), (1, 3), (4, 2), (3, 4), (2, 2, 2), (3, 2, 4), (2, 3, 2, 2)]
NETWORKS = [
    *(tree(shape, GBIT) for shape in SHAPES),
    leaf_spine(1, 1, GBIT),
    leaf_spine(3, [3, 2, 2], GBIT),
    leaf_spine(4, [1, 5, 2, 4], GBIT),
    geo_sites([2, 5, 1]),
    bcube(2, 3, GBIT),
]


def by_tree(plan):
    """The edges of every tree, by the parts that it carries: (src, dst, slot, op).

    A tree's parts are those that its root sums in one local step; messages carry several trees'.
    """
    here = plan.src == plan.dst
    trees = sorted(zip(plan.lo[here].tolist(), plan.hi[here].tolist(), strict=True))
    found = {parts: [] for parts in trees}
    columns = (plan.src, plan.dst, np.array(plan.slots)[plan.slot], plan.op, plan.lo, plan.hi)
    for src, dst, slot, op, lo, hi in zip(*(c[~here].tolist() for c in columns), strict=True):
        carried = [parts for parts in trees if lo <= parts[0] and parts[1] <= hi]
        assert [carried[0][0], carried[-1][1]] == [lo, hi]  # whole trees only
        for parts in carried:
            found[parts].append((src, dst, slot, op))
    return found


def described(topology):
    """Edges towards every root, (src, dst, level) by root, from the words of section 3.1.

    Aggregators stand where the root does: at its place among the workers of its rack, among the
    racks of its pod, and so on. Written without arrays, for regions that nest.
    """
    layers = [*topology.regions, np.zeros(topology.n_nodes, int)]

    def parties(layer, node):
        """The regions of the layer below inside of a region, by their first worker."""
        inside = [w for w in topology.workers.tolist() if layers[layer][w] == layers[layer][node]]
        if layer == 0:
            return [[w] for w in inside]
        found = {}
        for w in inside:
            found.setdefault(layers[layer - 1][w], []).append(w)
        return list(found.values())

    def aggregator(layer, node, root):
        """Of the region of ``node`` on a layer, in the tree of ``root``; below layer 0 itself."""
        if layer < 0:
            return node
        groups, own = parties(layer, node), parties(layer, root)
        (place,) = (i for i, group in enumerate(own) if root in group)
        return aggregator(layer - 1, groups[place % len(groups)][0], root)

    edges = {}
    for root in topology.workers.tolist():
        edges[root] = set()
        for layer in range(len(layers)):
            for node in topology.workers.tolist():
                src, dst = aggregator(layer - 1, node, root), aggregator(layer, node, root)
                if src != dst:
                    edges[root].add((src, dst, layer))
    return edges


NESTED = [topology for topology in NETWORKS if topology.name != "bcube"]


@pytest.mark.parametrize("topology", NESTED, ids=lambda t: f"{t.name}{len(t.workers)}")
def test_edges_and_loads_are_those_of_a_message_a_tree(topology):
    """Bundling messages changes neither trees nor what any link carries."""
    plan, expected = load("rat")(topology), described(topology)
    here = plan.src == plan.dst
    root_of = dict(zip(plan.lo[here].tolist(), plan.src[here].tolist(), strict=True))
    assert sorted(root_of.values()) == sorted(expected)
    for (lo, _), rows in by_tree(plan).items():
        up = {(a, b, int(slot.split("/")[1])) for a, b, slot, op in rows if op == REDUCE}
        down = {(b, a, int(slot.split("/")[1])) for a, b, slot, op in rows if op == COPY}
        assert up == down == expected[root_of[lo]]
    for paths in (Paths("first"), Paths("ecmp", 3)):
        before = np.zeros(topology.n_links)
        for edges in expected.values():
            for a, b, _ in edges:
                for way in ((a, b), (b, a)):
                    before[route(topology, *way, paths)] += 1 / len(expected)
        assert link_traffic(plan, topology, paths=paths) == pytest.approx(before)


@pytest.mark.parametrize("shape", [(16, 16), (8, 8, 4), (4, 16), (2, 3, 2, 2), (5,)])
def test_a_message_for_all_trees_that_share_an_edge(shape):
    """16 racks of 16: 15,360 messages, where one a tree and edge would be 130,560."""
    topology = tree(shape, GBIT)
    n, plan = len(topology.workers), load("rat")(topology)
    messages = int((plan.src != plan.dst).sum())
    assert messages == 2 * n * sum(size - 1 for size in shape)
    assert shape != (16, 16) or messages == 15_360
    trees = zip(plan.lo.tolist(), plan.hi.tolist(), plan.src == plan.dst, strict=True)
    assert shape != (16, 16) or sum(hi - lo for lo, hi, here in trees if not here) == 130_560


@pytest.mark.parametrize("shape", [(4,), (4, 4), (3, 2, 4), (2, 3, 2, 2)])
def test_on_equal_regions_these_are_the_stages_of_hips(shape):
    """Geng's HiPS in ps mode, a program that shares no line with this one, up to which parts of the
    vector a worker sums."""
    topology = tree(shape, GBIT, oversubscription=4.0)

    def sent(plan):
        moves = plan.src != plan.dst
        columns = (plan.src, plan.dst, plan.hi - plan.lo, plan.op, plan.phase)
        return sorted(zip(*(column[moves].tolist() for column in columns), strict=True))

    ours, theirs = (load(name, chunks=4)(topology) for name in ("rat", "geng_hips"))
    assert sent(ours) == sent(theirs)
    took = [simulate(plan, topology, VECTOR).completion_s for plan in (ours, theirs)]
    assert took[0] == pytest.approx(took[1], rel=1e-9)


@pytest.mark.parametrize("topology", NETWORKS, ids=lambda t: f"{t.name}{len(t.workers)}")
def test_exact_sums_for_everybody_and_any_members(topology):
    rng = np.random.default_rng(0)
    n = len(topology.workers)
    total_is_exact(load("rat")(topology))
    verify(load("rat", overlap=False, chunks=3)(topology))
    for count in rng.integers(1, n + 1, 4):
        members = rng.choice(topology.workers, count, replace=False).tolist()
        plan = load("rat")(topology, members)
        assert sorted(plan.contributors) == sorted(plan.receivers) == sorted(members)
        total_is_exact(plan)


@pytest.mark.parametrize("topology", NETWORKS[:-1], ids=lambda t: f"{t.name}{len(t.workers)}")
def test_trees_are_those_of_the_document(topology):
    """Section 3.1: a leaf for everybody, an aggregator for every region, one root; reversed."""
    workers, trees = topology.workers.tolist(), by_tree(load("rat")(topology))
    roots = []
    for rows in trees.values():
        up = {src: (dst, slot) for src, dst, slot, op in rows if op == REDUCE}
        down = {dst: (src, slot.replace("pull", "push")) for src, dst, slot, op in rows if op}
        assert len(rows) == 2 * len(up) and up == down
        (root,) = set(workers) - set(up)
        roots.append(root)
        region = [np.zeros(topology.n_nodes, int), *topology.regions[::-1]][::-1]
        for src, (dst, slot) in up.items():
            level = int(slot.removeprefix("push/"))
            assert region[level][src] == region[level][dst]
            assert level == 0 or region[level - 1][src] != region[level - 1][dst]
        for layer in topology.regions:  # one way out of every region without the root
            leaving = [layer[src] for src, (dst, _) in up.items() if layer[src] != layer[dst]]
            assert sorted(leaving) == sorted(set(layer[workers]) - {layer[root]})
    assert len(workers) == 1 or sorted(roots) == workers


@pytest.mark.parametrize("shape", SHAPES)
def test_loads_are_even_and_the_least_possible(shape):
    topology = tree(shape, GBIT)
    n, plan = len(topology.workers), load("rat")(topology)
    moved = node_traffic(plan, topology)
    for side in (moved.egress, moved.ingress):
        assert side[topology.workers] == pytest.approx([2 * (n - 1) / n] * n)
    for layer, traffic in region_traffic(plan, topology).items():
        regions = len(traffic.egress)
        for side in (traffic.egress, traffic.ingress):
            assert side == pytest.approx([2 * (regions - 1) / regions] * regions), layer
    # Everybody aggregates equally often, at every level.
    for slot in range(len(plan.slots)):
        into = plan.dst[(plan.slot == slot) & (plan.op == REDUCE)]
        assert len({*np.bincount(into, minlength=topology.n_nodes)[topology.workers]}) == 1
    depth = sum(size > 1 for size in shape)  # layers + 1, where every region has several parties
    assert (longest_chain(plan, "push"), longest_chain(plan)) == (depth, 2 * depth)


@pytest.mark.parametrize("shape", [(4, 2), (3, 4), (2, 3, 2), (2, 2, 2, 2)])
def test_issue_order_lets_no_two_begin_with_one_receiver(shape):
    """In equal regions, the k-th transfers of all workers in a slot have n different receivers."""
    topology = tree(shape, GBIT)
    n, plan = len(topology.workers), load("rat")(topology)
    for slot in range(len(plan.slots)):
        mine = (plan.slot == slot) & (plan.src != plan.dst)
        for nodes in (plan.src[mine], plan.dst[mine]):
            rounds = nodes.reshape(-1, n)
            assert all(len(set(row)) == n for row in rounds.tolist())


def test_groups_are_racks_then_regions():
    topology = tree((2, 2, 2), GBIT)
    a, b, c, d, e, f, g, h = topology.workers.tolist()
    levels = load("rat").groups(topology)
    assert levels == [[[a, b], [c, d], [e, f], [g, h]], [[a, c], [e, g]], [[a, e]]]
    plan = load("rat", overlap=False)(topology)
    assert plan.slots == ("push/0", "push/1", "push/2", "pull/0", "pull/1", "pull/2")
    phases = [(plan.slots[slot], phase) for slot, phase in zip(plan.slot, plan.phase, strict=True)]
    # The sums at the roots are steps of the phase in which the broadcast begins.
    assert sorted(set(phases), key=lambda pair: pair[1]) == [
        *((f"push/{level}", level) for level in range(3)),
        *((f"pull/{level}", 5 - level) for level in (2, 1, 0)),
    ]


def test_weights_share_out_the_vector():
    topology = leaf_spine(3, [2, 3, 2], GBIT)
    workers = topology.workers.tolist()
    weights = [1, 0, 3, 2, 0, 1e-9, 4]
    plan = load("rat", weights=weights)(topology)
    verify(plan)
    trees = by_tree(plan)
    spans = sorted(trees)
    assert [lo for lo, _ in spans] == [0, *(hi for _, hi in spans[:-1])]  # no gap, no overlap
    assert spans[-1][1] == plan.units == 1_000 * len(weights)
    load_of = {}
    for (lo, hi), rows in trees.items():
        (root,) = set(workers) - {src for src, _, _, op in rows if op == REDUCE}
        load_of[root] = (hi - lo) / plan.units
    # Trees in order: roots that are first in their racks of 2, 3 and 2, then the second, the third.
    # Weights too small for a part carry nothing; the others are met to a part.
    assert [load_of.get(workers[rank], 0) for rank in [0, 2, 5, 1, 3, 6, 4]] == pytest.approx(
        [weight / 10 for weight in weights], abs=1e-4
    )
    even, none = load("rat", weights=[5] * 7)(topology), load("rat")(topology)
    assert np.array_equal(even.src, none.src) and np.array_equal(even.dep_idx, none.dep_idx)


@pytest.mark.parametrize("tree", range(3))
def test_weights_are_of_the_trees_of_members(tree):
    topology = leaf_spine(2, 3, GBIT)
    members = topology.workers[[4, 0, 5]].tolist()
    plan = load("rat", weights=np.eye(3)[tree])(topology, members)
    total_is_exact(plan)
    root = topology.workers[[0, 4, 5][tree]]  # first in their racks, then the second in its own
    assert root not in plan.src[plan.op == REDUCE]
    assert np.all(plan.dst[(plan.op == COPY) & (plan.src == plan.dst)] == root)


def barrier_time(w, r, uplinks):
    """Four levels one after the other: cards in racks, the slower of card and uplinks between."""
    n = r * w
    return 2 * ((1 - 1 / w) + max((r - 1) / n, (r - 1) / (r * uplinks)))


@pytest.mark.parametrize(
    ("w", "printed"), [(4, 2.25), (8, 2.5), (16, 2.62), (32, 2.69), (64, 2.72)]
)
def test_time_with_barriers_on_four_racks(w, printed):
    topology = leaf_spine(4, w, CARD)
    plan = load("rat", overlap=False)(topology)
    took = simulate(plan, topology, VECTOR).completion_s
    assert took == pytest.approx(barrier_time(w, 4, 2), rel=1e-6)
    assert took == pytest.approx(printed, rel=0.005)


@pytest.mark.parametrize("chunks", [1, 2, 4, 16])
@pytest.mark.parametrize("w", [4, 16])
def test_pipelined_time_is_that_of_the_cards_from_two_chunks_on(w, chunks):
    topology, n = leaf_spine(4, w, CARD), 4 * w
    plan = load("rat", chunks=chunks)(topology)
    took = simulate(plan, topology, VECTOR).completion_s
    assert took == pytest.approx(closed_forms.pipelined_rat(w, 4, 2, chunks), rel=1e-6)
    expected = 2 * (n - 1) / n if chunks > 1 else barrier_time(w, 4, 2)
    assert took == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("r", "w"), [(4, 4), (3, 5), (4, 16)])
def test_fill_term_where_uplinks_limit(r, w):
    topology = leaf_spine(r, w, CARD, spines=1, uplink=CARD / 4)
    for chunks in (1, 2, 3, 8, 32):
        plan = load("rat", chunks=chunks)(topology)
        took, least = simulate(plan, topology, VECTOR).completion_s, 8 * (r - 1) / r
        assert bound(plan, topology, VECTOR) == pytest.approx(least)
        assert took == pytest.approx(closed_forms.pipelined_rat(w, r, 1 / 4, chunks), rel=1e-6)
        assert took - least == pytest.approx(2 * (1 - 1 / w) / chunks, rel=1e-6)


@pytest.mark.parametrize("uplinks", [0.2, 0.75, 0.8, 0.9, 1.0, 1.5, 5.0])
@pytest.mark.parametrize(("r", "w"), [(4, 4), (3, 5), (2, 8), (5, 2)])
def test_the_form_is_a_lower_bound_that_is_near(r, w, uplinks):
    topology = leaf_spine(r, w, CARD, spines=1, uplink=uplinks * CARD)
    for chunks in (1, 2, 3, 5, 8, 16):
        plan = load("rat", chunks=chunks)(topology)
        took = simulate(plan, topology, VECTOR).completion_s
        least = closed_forms.pipelined_rat(w, r, uplinks, chunks)
        assert least * (1 - 1e-9) <= took < (1 + 0.6 / chunks) * least


@pytest.mark.parametrize("layers", [dict(oversubscription=(4, 3)), dict(oversubscription=(8, 4))])
def test_fill_vanishes_as_chunks_grow_over_two_layers(layers):
    topology = tree((4, 3, 2), CARD, **layers)
    barred = load("rat", overlap=False)(topology)
    least = bound(barred, topology, VECTOR)
    barrier = simulate(barred, topology, VECTOR).completion_s - least
    for chunks in (8, 16, 64, 256):
        plan = load("rat", chunks=chunks)(topology)
        fill = simulate(plan, topology, VECTOR).completion_s - least
        assert -1e-9 < fill * chunks < barrier


@pytest.mark.parametrize("window", [0, 1, 2, 5])
def test_with_send_windows_it_completes(window):
    for topology in (leaf_spine(4, 4, CARD), leaf_spine(3, [4, 2, 3], CARD)):
        plan = replace(load("rat", chunks=4)(topology), window=window)
        took = simulate(plan, topology, VECTOR).completion_s
        assert took >= bound(plan, topology, VECTOR) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: load("rat", weights=[1, -1]), "rat: weights must be finite, >= 0"),
        (lambda: load("rat", weights=[0, 0]), "not all 0"),
        (
            lambda: load("rat", weights=[1, 2])(leaf_spine(1, 3, GBIT)),
            "rat: needs one weight for each of the 3 members, not 2",
        ),
        (lambda: load("rat")(leaf_spine(1, 3, GBIT), part="push"), "rat: there is no push"),
        (lambda: load("rat")(leaf_spine(1, 3, GBIT), [99]), "node 99 is not a worker"),
    ],
)
def test_clear_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
