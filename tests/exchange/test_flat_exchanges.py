"""Exchanges among ranks, blind to the network or in its order: sums, shapes and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from exact import total_is_exact

from slowlink.methods.exchange import COPY, REDUCE, load
from slowlink.testbed.network import (
    bound,
    execute,
    leaf_spine,
    longest_chain,
    node_traffic,
    region_traffic,
    simulate,
    tree,
    verify,
)

GBIT = 1e9
ANY_NUMBER = [
    ("parameter_server", {"shards": "colocated"}),
    ("ring", {}),
    ("ring", {"order": "oblivious"}),
    ("k_nomial_tree", {}),
    ("k_nomial_tree", {"k": 3}),
    ("halving_doubling", {}),
    ("halving_doubling", {"first": "far"}),
]
POWERS_ONLY = [("butterfly", {})]


@pytest.mark.parametrize(("name", "options"), ANY_NUMBER + POWERS_ONLY)
def test_exact_sums_for_any_members(name, options):
    topology = leaf_spine(4, [5, 1, 4, 6], GBIT)
    rng = np.random.default_rng(3)
    for n in [1, 2, 4, 8, 16] if (name, options) in POWERS_ONLY else range(1, 17):
        members = rng.choice(topology.workers, n, replace=False).tolist()
        plan = load(name, **options)(topology, members)
        assert sorted(plan.contributors) == sorted(plan.receivers) == sorted(members)
        total_is_exact(plan, seed=n)


@pytest.mark.parametrize(("name", "options"), ANY_NUMBER + POWERS_ONLY)
def test_one_worker_moves_nothing(name, options):
    plan = load(name, **options)(leaf_spine(1, 1, GBIT))
    verify(plan)
    assert not np.any(plan.src != plan.dst)


@pytest.mark.parametrize("n", [2, 3, 8, 15, 16])
def test_chains(n):
    topology, steps = leaf_spine(1, n, GBIT), math.log2(n)
    assert longest_chain(load("ring")(topology)) == 2 * (n - 1)
    assert longest_chain(load("parameter_server", shards="colocated")(topology)) == 2
    # The most non-zero digits that a rank below n has; log_k n for powers of k.
    ones = max(bin(rank).count("1") for rank in range(n))
    assert longest_chain(load("k_nomial_tree")(topology)) == 2 * ones
    for first in ("far", "near"):
        halving = load("halving_doubling", first=first)(topology)
        assert longest_chain(halving) == 2 * math.floor(steps)
    if steps == int(steps):
        assert ones == steps
        assert longest_chain(load("butterfly")(topology)) == steps


@pytest.mark.parametrize("k", [2, 3, 4])
def test_k_nomial_tree_of_a_full_power(k):
    topology = leaf_spine(1, k**3, GBIT)
    plan = load("k_nomial_tree", k=k)(topology)
    assert longest_chain(plan) == 6
    moved = node_traffic(plan, topology)
    # The root receives from k - 1 children a digit; everybody else sends up once.
    root = topology.workers[0]
    assert moved.ingress[root] == moved.egress[root] == 3 * (k - 1)
    up = plan.slot == plan.slots.index("push/0")
    assert sorted(plan.src[up].tolist()) == topology.workers[1:].tolist()
    assert set(plan.phase[up]) == {0, 1, 2}
    with pytest.raises(ValueError, match="k must be at least 2, not 1"):
        load("k_nomial_tree", k=1)


def test_k_nomial_fragments_compose():
    topology = leaf_spine(2, 3, GBIT)
    exchange = load("k_nomial_tree")
    push, pull = exchange(topology, part="push"), exchange(topology, part="pull")
    arrays = [np.arange(5) * 10**rank for rank in range(6)]
    summed = execute(push, arrays)
    assert list(summed) == pull.contributors.tolist() == topology.workers[:1].tolist()
    assert all(np.array_equal(got, sum(arrays)) for got in execute(pull, summed).values())


# Bytes out of a rack, in units of the vector; r racks of w. RAT, section 2 and table 1.
@pytest.mark.parametrize(("r", "w"), [(2, 4), (4, 4), (4, 2), (8, 2)])
def test_traffic_out_of_a_rack(r, w):
    topology, n = leaf_spine(r, w, GBIT), r * w

    def egress(name, **options):
        plan = load(name, **options)(topology)
        return region_traffic(plan, topology)["rack"].egress

    least = 2 * (r - 1) / r
    assert egress("ring") == pytest.approx([2 * (n - 1) / n] * r)
    assert egress("parameter_server", shards="colocated") == pytest.approx([w * least] * r)
    assert egress("halving_doubling", first="far") == pytest.approx([w * least] * r)
    assert egress("halving_doubling", first="near") == pytest.approx([least] * r)
    assert egress("butterfly") == pytest.approx([w * math.log2(r)] * r)
    assert egress("k_nomial_tree").sum() == pytest.approx(2 * (r - 1))


@pytest.mark.parametrize("name", ["ring", "parameter_server", "halving_doubling"])
def test_bandwidth_optimal_at_every_card(name):
    topology = tree((2, 4, 2), GBIT)
    options = {"shards": "colocated"} if name == "parameter_server" else {}
    moved = node_traffic(load(name, **options)(topology), topology)
    for side in (moved.egress, moved.ingress):
        assert side[topology.workers] == pytest.approx([2 * 15 / 16] * 16)


def test_an_oblivious_ring_is_a_ring_that_its_seed_draws():
    topology = leaf_spine(4, 8, GBIT)
    plans = [load("ring", order="oblivious", seed=seed)(topology) for seed in (1, 1, 2)]
    edges = [set(zip(plan.src.tolist(), plan.dst.tolist(), strict=True)) for plan in plans]
    assert edges[0] == edges[1] != edges[2]
    assert all(len(one) == 32 for one in edges)
    out = [region_traffic(plan, topology)["rack"].egress.sum() for plan in plans]
    assert min(out) > region_traffic(load("ring")(topology), topology)["rack"].egress.sum()


def test_phases_are_steps_of_one_kind():
    topology = leaf_spine(2, 4, GBIT)
    phases = {"ring": 2, "parameter_server": 2, "butterfly": 3, "halving_doubling": 6}
    for name, count in phases.items():
        options = {"shards": "colocated"} if name == "parameter_server" else {}
        plan = load(name, overlap=False, chunks=3, **options)(topology)
        verify(plan)
        assert set(plan.phase[plan.src != plan.dst]) == set(range(count)), name
        assert (plan.overlap, plan.chunks) == (False, 3)


def swaps(plan, n):
    """Moving transfers as (step, sender, receiver, parts, op) among ranks 0 … n - 1."""
    columns = (plan.phase, plan.src, plan.dst, plan.lo, plan.hi, plan.op)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {(p, a, b, hi - lo, op) for p, a, b, lo, hi, op in rows if a != b}


def test_halving_begins_with_the_largest_halves_between_neighbours():
    """The worked example of Gloo's docs/algorithms.md: 0 and 1, 2 and 3, … swap halves first."""
    plan = load("halving_doubling")(leaf_spine(1, 8, GBIT))
    expected = set()
    for step in range(3):
        for rank in range(8):
            partner = rank ^ (1 << step)  # the distance doubles, the message halves
            expected.add((step, rank, partner, 4 >> step, REDUCE))
            expected.add((5 - step, rank, partner, 4 >> step, COPY))
    assert swaps(plan, 8) == expected
    # Gloo's comment on reversed bits: ranks 0 to 7 end with parts A, E, C, G, B, F, D, H.
    local = plan.src == plan.dst
    own = dict(zip(plan.src[local].tolist(), plan.lo[local].tolist(), strict=True))
    assert "".join("ABCDEFGH"[own[rank]] for rank in range(8)) == "AECGBFDH"


def test_binary_blocks_hand_over_as_in_the_worked_example():
    """Gloo's example of 8 and 2: rank 8 sends quarters of its half to 0, 4, 2, 6, rank 9 to 1, 5,
    3, 7, in the order of the vector; and what comes back comes from the same."""
    plan = load("halving_doubling")(leaf_spine(1, 10, GBIT))
    for smaller, larger in [(8, [0, 4, 2, 6]), (9, [1, 5, 3, 7])]:
        up = (plan.src == smaller) & (plan.dst < 8)
        order = np.argsort(plan.lo[up])
        assert plan.dst[up][order].tolist() == larger
        assert set(plan.hi[up] - plan.lo[up]) == {1} and plan.units == 8
        down = (plan.dst == smaller) & (plan.src < 8)
        assert plan.src[down][np.argsort(plan.lo[down])].tolist() == larger
        assert sorted(plan.lo[up]) == sorted(plan.lo[down])
    # 7 = 4 + 2 + 1: a middle block passes on what the smallest gave it, and its answer.
    plan = load("halving_doubling")(leaf_spine(1, 7, GBIT))
    crossing = sorted((a, b) for _, a, b, _, _ in swaps(plan, 7) if (a < 4) != (b < 4) or a == 6)
    assert crossing == sorted(
        [(4, 0), (4, 2), (5, 1), (5, 3), (0, 4), (2, 4), (1, 5), (3, 5), (6, 4), (6, 5)]
    )


def test_near_first_is_as_fast_as_the_cards_and_far_first_as_slow_as_direct_sends():
    """Four racks of 16 at 8:1, in times of vector over card: 2(n - 1)/n against 3w/4 + ..."""
    topology, nbytes = leaf_spine(4, 16, 8e9), 1e9
    took = {
        first: simulate(load("halving_doubling", first=first)(topology), topology, nbytes)
        for first in ("near", "far")
    }
    # Steps in racks take 1/2 + … + 1/16 of a vector; those between, 1/32 and 1/64 over a share of
    # 2 uplinks among 16 workers, 8 times as long. Both ways.
    inside = sum(0.5**step for step in range(1, 5))
    assert took["near"].completion_s == pytest.approx(2 * (inside + 8 * (1 / 32 + 1 / 64)))
    assert took["far"].completion_s == pytest.approx(
        2 * (8 * (1 / 2 + 1 / 4) + sum(0.5**step for step in range(3, 7)))
    )


# Four racks, two uplinks each of a card's rate: times in units of vector over card rate.
@pytest.mark.parametrize("w", [4, 8, 16, 32, 64])
def test_closed_form_times_on_four_racks(w):
    topology, n, nbytes = leaf_spine(4, w, 8e9), 4 * w, 1e9
    cards, uplinks = 2 * (n - 1) / n, 0.75 * w
    ring = load("ring")(topology)
    assert simulate(ring, topology, nbytes).completion_s == pytest.approx(cards, rel=1e-6)
    server = load("parameter_server", shards="colocated")(topology)
    took = simulate(server, topology, nbytes).completion_s
    assert took == pytest.approx(max(cards, uplinks), rel=1e-6)
    assert took == pytest.approx(bound(server, topology, nbytes), rel=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: load("ring", order="random"), "ring: order must be rack or oblivious"),
        (lambda: load("halving_doubling", first="last"), "first must be near or far"),
        (lambda: load("ring")(leaf_spine(1, 3, GBIT), part="pull"), "ring: there is no pull"),
        (lambda: load("butterfly")(leaf_spine(2, 3, GBIT)), "butterfly: needs a power of 2"),
        (lambda: load("k_nomial_tree")(leaf_spine(1, 3, GBIT), []), "nobody takes part"),
    ],
)
def test_clear_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
