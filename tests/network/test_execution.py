"""``execute`` follows the plan's data flow, and ``verify`` refuses plans that are no exchange."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from slowlink.methods.exchange import COPY, REDUCE, PlanBuilder, load
from slowlink.testbed.network import execute, geo_sites, star, verify


def ring(n):
    """Reduce-scatter and all-gather around a ring: what each sends depends on what arrived."""
    builder = PlanBuilder("ring", n, ["x"])
    last = {}
    for step in range(2 * (n - 1)):
        op = REDUCE if step < n - 1 else COPY
        now = {}
        for node in range(n):
            part = (node - step) % n  # n - 1 steps back around, its sum is whole
            after = [last[node]] if step else []
            target = (node + 1) % n
            now[target] = builder.add(node, target, "x", op, after, (part, part + 1), step)
        last = now
    return builder.build(range(n), range(n))


def tree():
    """0 and 1 push to 2; 2 pushes the sum of all three to 3; 3 sends the whole to everyone."""
    builder = PlanBuilder("tree", 2, ["up", "down"])
    a = builder.add(0, 2, "up", REDUCE)
    b = builder.add(1, 2, "up", REDUCE)
    c = builder.add(2, 3, "up", REDUCE, [a, b])
    whole = builder.join(3, "down", [c])
    for node in range(3):
        builder.add(3, node, "down", COPY, [whole])
    return builder.build([0, 1, 2, 3], [0, 1, 2, 3])


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_ring_is_exact(n):
    arrays = [np.arange(11) + 100**rank for rank in range(n)]  # 11 values in n uneven parts
    for value in execute(ring(n), arrays).values():
        assert np.array_equal(value, sum(arrays))


def test_worked_example_of_a_tree():
    one, two, three, four = np.array([1.0, 5.0]), np.array([2.0, 6.0]), [3.0, 7.0], [4.0, 8.0]
    got = execute(tree(), {3: np.array(four), 0: one, 2: np.array(three), 1: two})
    assert {node: value.tolist() for node, value in got.items()} == {
        node: [10.0, 26.0] for node in range(4)
    }


def test_chunks_overlap_and_window_do_not_change_values():
    plan = load("hips")(geo_sites([3, 2]))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(1000).astype(np.float32) for _ in plan.contributors]
    want = execute(plan, arrays)
    for changes in (dict(chunks=7), dict(overlap=False), dict(window=1)):
        got = execute(dataclasses.replace(plan, **changes), arrays)
        assert all(np.array_equal(got[node], want[node]) for node in want)


def test_any_order_of_arrivals_gives_the_same_sum():
    # Renumber the pushes: integers must add to the same, whichever is listed first.
    topology = geo_sites([4, 2])
    rng = np.random.default_rng(0)
    for _ in range(5):
        members = rng.permutation(topology.workers).tolist()
        arrays = {node: np.full(3, 2**rank) for rank, node in enumerate(topology.workers.tolist())}
        for value in execute(load("hips")(topology, members), arrays).values():
            assert np.array_equal(value, np.full(3, 2**6 - 1))


def test_sharded_plan_of_many_workers_is_verified():
    verify(load("parameter_server", shards="colocated")(star(48, 1e9)))


def changed(plan, **columns):
    """``plan`` with single entries replaced: ``column={index: value}``."""
    arrays = {}
    for name, entries in columns.items():
        arrays[name] = np.array(getattr(plan, name))
        for index, value in entries.items():
            arrays[name][index] = value
    return dataclasses.replace(plan, **arrays)


def without(plan, dependency):
    """``plan`` with one entry of ``dep_idx`` taken out."""
    ptr = np.array(plan.dep_ptr)
    ptr[ptr > dependency] -= 1
    return dataclasses.replace(plan, dep_idx=np.delete(plan.dep_idx, dependency), dep_ptr=ptr)


def two_copies(same):
    """0 copies to 1 directly, and through 2, which adds its own if the copies are to differ."""
    builder = PlanBuilder("two copies", 1, ["x"])
    builder.add(0, 1, "x", COPY)
    first = builder.add(0, 2, "x", COPY if same else REDUCE)
    builder.add(2, 1, "x", COPY, [first])
    return builder.build([0] if same else [0, 2], [1])


def two_copies_in_one(same):
    builder = PlanBuilder("two copies in one", 1, ["x"])
    relay = builder.add(0, 2, "x", COPY if same else REDUCE)
    direct, indirect = builder.add(0, 1, "x", COPY), builder.add(2, 1, "x", COPY, [relay])
    builder.add(1, 3, "x", COPY, [direct, indirect])
    return builder.build([0] if same else [0, 2], [3])


def mixed():
    builder = PlanBuilder("mixed", 1, ["x"])
    copy, reduction = builder.add(0, 2, "x", COPY), builder.add(1, 2, "x", REDUCE)
    builder.add(2, 3, "x", COPY, [copy, reduction])
    return builder.build([0, 1], [3])


INVALID = [
    # tree: 0: 0>2, 1: 1>2, 2: 2>3 after 0, 1; 3: join after 2; 4, 5, 6: copies after 3
    (lambda: changed(tree(), dep_idx={1: 2}), "transfer 2 depends on a transfer that is not befo"),
    (lambda: changed(tree(), dep_idx={1: 5}), "transfer 2 depends on a transfer that is not befo"),
    (lambda: changed(tree(), dst={1: 0}), "transfer 2 depends on one that arrives elsewhere"),
    (lambda: changed(tree(), src={2: 1}), "transfer 2 depends on one that arrives elsewhere"),
    (lambda: changed(tree(), dep_idx={1: 0}), "receiver 0 has 2 times .* node 0 in part 0"),
    (lambda: without(tree(), 1), "receiver 0 has 0 times the contribution of node 1"),
    (lambda: without(tree(), 4), "receiver 1 has 0 times"),
    (lambda: changed(tree(), hi={0: 1}), "receiver 0 has 0 times .* node 0 in part 1"),
    (lambda: changed(tree(), lo={6: 1}), "receiver 2 has 0 times .* node 3 in part 0"),
    (lambda: changed(tree(), receivers={0: 4}), "receiver 4 has 0 times"),
    (lambda: changed(tree(), op={4: REDUCE}), "receiver 0 has 2 times .* node 0 in part 0"),
    (lambda: changed(tree(), contributors={3: 9}), "receiver 0 has 0 times .* node 9"),
    (lambda: changed(tree(), hi={0: 3}), "transfer 0 has no valid parts"),
    (lambda: changed(tree(), slot={3: 2}), "transfer 3 names no slot"),
    (lambda: changed(tree(), op={3: REDUCE}), "transfer 3 reduces a node into itself"),
    (lambda: changed(tree(), op={3: 2}), "transfer 3 neither reduces nor copies"),
    (
        lambda: dataclasses.replace(changed(tree(), phase={1: 5}), overlap=False),
        "transfer 2 depends on a later phase",
    ),
    (lambda: dataclasses.replace(tree(), contributors=[]), "has no contributors"),
    (lambda: two_copies(same=False), "transfer 2 copies another value to node 1"),
    (lambda: two_copies_in_one(same=False), "transfer 3 depends on two copies of part 0"),
    (mixed, "transfer 2 depends on a copy and a reduction of the same parts"),
]


@pytest.mark.parametrize(("make", "message"), INVALID)
def test_invalid_plans_are_refused(make, message):
    plan = make()
    with pytest.raises(ValueError, match=message):
        verify(plan)
    with pytest.raises(ValueError, match=message):
        execute(plan, [np.ones(4)] * len(plan.contributors))


def test_equal_copies_are_fine():
    verify(tree())
    verify(two_copies(same=True))
    verify(two_copies_in_one(same=True))


def test_every_single_damage_to_the_dependencies_of_hips_is_found():
    plan = load("hips")(geo_sites([2, 1]))
    for index in range(len(plan.dep_idx)):
        with pytest.raises(ValueError):
            verify(without(plan, index))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([np.ones(2)] * 3, "3 arrays for 4 contributors"),
        ({n: np.ones(2) for n in (0, 1, 2, 7)}, "node 3 is missing"),
        ([np.ones(2)] * 3 + [np.ones(3)], "differ in shape"),
        ([np.ones(2)] * 3 + [np.ones(2, np.float32)], "dtype"),
    ],
)
def test_arrays_that_do_not_fit(arrays, message):
    with pytest.raises(ValueError, match=message):
        execute(tree(), arrays)
