"""Parameter server and HiPS are all-reduces, whoever takes part; and say so when they cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from slowlink.methods.exchange import COPY, REDUCE, Topology, load
from slowlink.testbed.network import execute, geo_sites, longest_chain, star, verify

SHAPES = [
    [1 + (per - 1 + 5 * site * uneven) % 13 for site in range(sites)]
    for sites in range(1, 6)
    for per in range(1, 14)
    for uneven in (False, True)
]
EXCHANGES = [
    ("parameter_server", {}),
    ("parameter_server", {"shards": "colocated"}),
    ("hips", {}),
]


def total_is_exact(plan, seed=0):
    """Integers, so that a contribution missing or doubled cannot hide in rounding."""
    rng = np.random.default_rng(seed)
    arrays = {int(node): rng.integers(-1000, 1000, (3, 7)) for node in plan.contributors}
    copies = {node: array.copy() for node, array in arrays.items()}
    got = execute(plan, arrays)
    assert sorted(got) == sorted(plan.receivers.tolist())
    for result in got.values():
        assert np.array_equal(result, sum(arrays.values()))
    assert all(np.array_equal(arrays[node], copies[node]) for node in arrays)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), EXCHANGES)
@pytest.mark.parametrize("sites", range(1, 6))
def test_exact_sums_for_any_sites_and_workers(name, options, sites):
    for shape in (shape for shape in SHAPES if len(shape) == sites):
        total_is_exact(load(name, **options)(geo_sites(shape)))


@pytest.mark.parametrize(("name", "options"), EXCHANGES)
def test_exact_sums_for_any_members(name, options):
    topology = geo_sites([3, 1, 4], colocated=1)
    rng = np.random.default_rng(1)
    for seed in range(40):
        count = rng.integers(1, 9)
        members = rng.choice(topology.workers, count, replace=False).tolist()
        plan = load(name, **options)(topology, members)
        assert sorted(plan.contributors.tolist()) == sorted(members)
        total_is_exact(plan, seed)


@pytest.mark.parametrize("name", ["parameter_server", "hips"])
def test_fragments_compose_to_the_whole(name):
    topology = geo_sites([2, 5, 1])
    exchange = load(name)
    members = topology.workers[[0, 3, 4, 7]].tolist()
    push = exchange(topology, members, part="push")
    pull = exchange(topology, members, part="pull")
    arrays = [np.arange(6) * 10**rank for rank in range(4)]
    summed = execute(push, arrays)
    assert list(summed) == pull.contributors.tolist() == topology.servers[:1].tolist()
    received = execute(pull, summed)
    assert sorted(received) == sorted(members)
    assert all(np.array_equal(value, sum(arrays)) for value in received.values())
    whole = exchange(topology, members)
    assert sum(whole.src != whole.dst) == len(push) + len(pull)


def test_hips_levels_slots_and_phases():
    topology = geo_sites([2, 3])
    plan = load("hips")(topology)
    servers, workers = topology.servers.tolist(), topology.workers.tolist()
    kinds = {
        "push/0": (0, REDUCE, set(workers), set(servers[1:]), 5),
        "push/1": (1, REDUCE, set(servers[1:]), {servers[0]}, 2),
        "pull/1": (2, COPY, {servers[0]}, set(servers[1:]), 2),
        "pull/0": (3, COPY, set(servers[1:]), set(workers), 5),
    }
    assert set(plan.slots) == set(kinds)
    for slot, (phase, op, src, dst, count) in kinds.items():
        mine = (plan.slot == plan.slots.index(slot)) & (plan.src != plan.dst)
        assert mine.sum() == count
        assert set(plan.phase[mine]) == {phase}
        assert set(plan.op[mine]) == {op}
        assert (set(plan.src[mine]), set(plan.dst[mine])) == (src, dst)
    assert longest_chain(plan) == 4
    assert longest_chain(load("parameter_server")(topology)) == 2


def test_hips_groups_are_sites_then_their_servers():
    topology = geo_sites([2, 3, 1])
    workers, servers = topology.workers.tolist(), topology.servers.tolist()
    sites, parties = load("hips").groups(topology)
    assert sites == [workers[:2], workers[2:5], workers[5:]]
    assert parties == [servers[1:]]
    # A site without members drops out; ranks keep their order.
    sites, parties = load("hips").groups(topology, [workers[5], workers[1], workers[0]])
    assert sites == [workers[:2], workers[5:]]
    assert parties == [[servers[1], servers[3]]]


def test_pushing_to_shards_needs_no_server_and_spreads_targets():
    topology = star(4, 1e9)
    plan = load("parameter_server", shards="colocated")(topology)
    assert plan.units == 4
    assert set(plan.src) | set(plan.dst) == set(topology.workers.tolist())
    for first in range(0, 12, 4):  # no two of four consecutive pushes have one target
        assert len(set(plan.dst[first : first + 4])) == 4


def test_options_reach_the_plan():
    for name, options in EXCHANGES:
        assert load(name, chunks=5, **options)(geo_sites()).chunks == 5
        plan = load(name, overlap=False, chunks=5, **options)(geo_sites())
        # A server of HiPS passes on what is there in full; no site waits for another's phase.
        assert (plan.overlap, plan.chunks) == ((True, 1) if name == "hips" else (False, 5))
        verify(plan)


def _serverless(**changes):
    fields = dict(workers=[0, 1], servers=[], regions=([1, 1, -1],), layers=("site",)) | changes
    links = dict(link_src=[0, 2, 1, 2], link_dst=[2, 0, 2, 1], link_rate=[8] * 4)
    return Topology(("a", "b", "c"), **fields, **links, link_latency=[0] * 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: load("parameter_server")(_serverless()), "has no server"),
        (lambda: load("hips")(_serverless()), "has no server"),
        (lambda: load("hips")(star(3, 1e9)), "has no sites"),
        (lambda: load("hips")(_serverless(servers=[2])), "no server besides the global one"),
        (lambda: load("hips")(geo_sites([2]), [0]), "node 0 is not a worker"),
        (lambda: load("hips")(geo_sites([2]), [2, 2]), "named twice"),
        (lambda: load("parameter_server")(geo_sites([2]), []), "nobody takes part"),
        (lambda: load("parameter_server")(geo_sites([2]), part="up"), "all, push or pull"),
        (lambda: load("parameter_server", shards="many"), "central or colocated"),
        (
            lambda: load("parameter_server", shards="colocated")(star(3, 1e9), part="push"),
            "no push fragment",
        ),
        (lambda: load("hips", chunks=0)(geo_sites([2])), "chunks must be at least 1"),
        (lambda: load("hips", levels=2), "unknown parameter 'levels'"),
    ],
)
def test_clear_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
