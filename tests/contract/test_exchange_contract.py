"""What every exchange promises, whichever files are there."""

import pytest

from methods import exchange
from testbed.network import bound, geo_sites, simulate, verify

SITES = [[1], [3], [2, 2], [4, 1, 2]]


@pytest.mark.parametrize("workers", SITES, ids=str)
@pytest.mark.parametrize("name", exchange.names())
def test_every_worker_ends_with_the_sum_and_every_level_has_its_slots(name, workers):
    topology = geo_sites(workers)
    method = exchange.load(name)
    plan = method(topology)
    verify(plan)
    assert sorted(plan.receivers.tolist()) == sorted(topology.workers.tolist())
    levels = method.groups(topology)
    assert sorted(n for group in levels[0] for n in group) == sorted(topology.workers.tolist())
    for level, groups in enumerate(levels):
        assert {f"push/{level}", f"pull/{level}"} <= set(plan.slots)
        if level:
            assert sum(map(len, groups)) == len(levels[level - 1])


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", exchange.names())
def test_simulated_time_keeps_to_the_bound_and_the_seed_free_clock(name, overlap):
    topology = geo_sites([3, 2], wan=2e7)
    plan = exchange.load(name, overlap=overlap, chunks=4)(topology)
    first = simulate(plan, topology, 1e6).completion_s
    assert first == simulate(plan, topology, 1e6).completion_s
    assert first >= bound(plan, topology, 1e6, duplex=overlap) * (1 - 1e-9)
    assert simulate(plan, topology, 2e6).completion_s == pytest.approx(2 * first)
