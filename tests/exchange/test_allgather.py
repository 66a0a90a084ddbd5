"""All-gather: sums, sizes, traffic and the time of a star in closed form."""

from __future__ import annotations

import numpy as np
import pytest
from exact import total_is_exact

from slowlink.methods.exchange import REDUCE, load
from slowlink.testbed.network import (
    bound,
    leaf_spine,
    link_traffic,
    longest_chain,
    node_traffic,
    simulate,
    star,
    verify,
)


def test_exact_sums_for_any_members():
    topology = leaf_spine(4, [5, 1, 4, 6], 1e9)
    rng = np.random.default_rng(3)
    for n in range(1, 17):
        members = rng.choice(topology.workers, n, replace=False).tolist()
        plan = load("allgather")(topology, members)
        assert sorted(plan.contributors) == sorted(plan.receivers) == sorted(members)
        total_is_exact(plan, seed=n)


def test_everybody_sends_its_own_value_once_to_each_other_a_different_one_in_each_step():
    plan = load("allgather", overlap=False)(star(7, 1e9))
    verify(plan)
    assert len(plan) == 7 * 6 and longest_chain(plan) == 1
    assert set(plan.op) == {REDUCE} and not len(plan.dep_idx)
    assert {plan.slots[slot] for slot in plan.slot} == {"push/0"}
    pairs = set(zip(plan.src.tolist(), plan.dst.tolist(), strict=True))
    assert pairs == {(a, b) for a in range(7) for b in range(7) if a != b}
    for step in range(6):
        for side in (plan.src, plan.dst):
            assert sorted(side[plan.phase == step]) == list(range(7))


@pytest.mark.parametrize("n", [2, 3, 8, 16])
@pytest.mark.parametrize("overlap", [True, False])
def test_star_in_closed_form(n, overlap):
    rate, latency, nbytes = 8e9, 1e-3, 3e6
    topology = star(n, rate, latency=latency)
    plan = load("allgather", overlap=overlap)(topology)
    carried = link_traffic(plan, topology, nbytes)
    cards = np.isin(topology.link_src, topology.workers) | np.isin(
        topology.link_dst, topology.workers
    )
    assert carried[cards] == pytest.approx([(n - 1) * nbytes] * (2 * n))
    # Two cards on the way: once where all is sent at once, in every step where steps wait.
    waits = 1 if overlap else n - 1
    took = (n - 1) * nbytes * 8 / rate + waits * 2 * latency
    assert simulate(plan, topology, nbytes).completion_s == pytest.approx(took)


def test_unequal_payloads_go_out_as_large_as_their_sender_made_them():
    topology = star(4, 8e9)
    nbytes = dict(zip(topology.workers.tolist(), [1e6, 2e6, 5e6, 0.0], strict=True))
    plan = load("allgather")(topology)
    moved = node_traffic(plan, topology, {"push/0": nbytes})
    total = sum(nbytes.values())
    for node, own in nbytes.items():
        assert moved.egress[node] == 3 * own
        assert moved.ingress[node] == total - own
    # The largest sender's card is busy from start to end, and nobody else's is longer.
    took = simulate(plan, topology, {"push/0": nbytes}).completion_s
    assert took == pytest.approx(bound(plan, topology, {"push/0": nbytes})) == 3 * 5e6 / 1e9


def test_there_are_no_fragments():
    for part in ("push", "pull"):
        with pytest.raises(ValueError, match=f"allgather: there is no {part} fragment"):
            load("allgather")(star(3, 1e9), part=part)
