"""What every exchange promises, whichever files are there."""

import re

import pytest

from slowlink.methods import exchange
from slowlink.testbed.network import bcube, bound, geo_sites, leaf_spine, simulate, tree, verify

NETWORKS = {f"sites {sites}": geo_sites(sites) for sites in ([1], [3], [2, 2], [4, 1, 2])} | {
    "racks 4x4": leaf_spine(4, 4, 1e9, helpers=True),
    "racks 2x8": leaf_spine(2, 8, 1e9, uplink=2e9, helpers=True),
    "racks 3+2+2": leaf_spine(3, [3, 2, 2], 1e9, helpers=True),
    "tree 2x2x2": tree((2, 2, 2), 1e9, oversubscription=2.0, helpers=True),
    "tree 2x2x2x2": tree((2, 2, 2, 2), 1e9, spines=2, helpers=True),
    "bcube 2^3": bcube(2, 3, 1e9),
}
VARIANTS = {
    "parameter_server": [dict(shards="central"), dict(shards="colocated")],
    "ring": [dict(order="rack"), dict(order="oblivious")],
    "halving_doubling": [dict(first="far"), dict(first="near")],
    "geng_hips": [dict(mode="ps"), dict(mode="ring")],
    "k_nomial_tree": [dict(k=2), dict(k=3)],
}
METHODS = {
    " ".join([name, *map(str, options.values())]): (name, options)
    for name in exchange.names()
    for options in VARIANTS.get(name, [{}])
}

# Who may refuse what, and must. An exchange that is not named here must refuse nothing.
NO_POWER_OF_2 = {"sites [3]", "sites [4, 1, 2]", "racks 3+2+2"}
UNEQUAL = {"sites [4, 1, 2]", "racks 3+2+2"}
REFUSES = {
    "blue_connect": UNEQUAL,
    "butterfly": NO_POWER_OF_2,
    "geng_hips ps": UNEQUAL,
    "geng_hips ring": UNEQUAL,
    "hips": {name for name in NETWORKS if not name.startswith("sites")},  # one server too few
    "parameter_hub": {"bcube 2^3"},
    "parameter_server central": {"bcube 2^3"},
}
CASES = [(method, network) for method in METHODS for network in NETWORKS]
WORKS = [(m, network) for m, network in CASES if network not in REFUSES.get(m, ())]


def make(method, **common):
    name, options = METHODS[method]
    return exchange.load(name, **options, **common)


def test_nobody_refuses_the_plainest_racks_but_who_needs_a_central_server():
    assert {m for m, refused in REFUSES.items() if "racks 4x4" in refused} <= {"hips"}
    assert not any("sites [2, 2]" in refused for refused in REFUSES.values())


@pytest.mark.parametrize(("method", "network"), sorted(set(CASES) - set(WORKS)))
def test_a_refusal_names_the_exchange_and_what_it_needs(method, network):
    name = METHODS[method][0]
    with pytest.raises(ValueError, match=rf"^{name}: .*(needs|has no)"):
        make(method)(NETWORKS[network])


@pytest.mark.parametrize(("method", "network"), WORKS)
def test_every_worker_ends_with_the_sum_and_every_level_has_its_slots(method, network):
    topology, asked = NETWORKS[network], make(method)
    everybody = topology.workers.tolist()
    for members in (everybody, sorted({everybody[0], everybody[-1]})):
        plan = asked(topology, members)
        verify(plan)
        assert sorted(plan.receivers.tolist()) == sorted(plan.contributors.tolist()) == members
        levels = asked.groups(topology, members)
        assert sorted(n for group in levels[0] for n in group) == members
        for level, groups in enumerate(levels):
            assert {f"push/{level}", f"pull/{level}"} <= set(plan.slots)
            if level:
                assert sum(map(len, groups)) == len(levels[level - 1])
        assert {slot.split("/")[0] for slot in plan.slots} == {"push", "pull"}
        assert max(int(slot.split("/")[1]) for slot in plan.slots) == len(levels) - 1


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("method", "network"), WORKS)
def test_simulated_time_keeps_to_the_bound_and_the_seed_free_clock(method, network, overlap):
    topology = NETWORKS[network]
    plan = make(method, overlap=overlap, chunks=4)(topology)
    # Without overlap, phases wait for each other, or what is passed on has arrived in full.
    assert (plan.overlap, plan.chunks) in {(overlap, 4), (True, 4 if overlap else 1)}
    verify(plan)  # with barriers, that no transfer waits for a later phase
    first = simulate(plan, topology, 1e6).completion_s
    assert first == simulate(plan, topology, 1e6).completion_s
    assert first >= bound(plan, topology, 1e6, duplex=plan.overlap) * (1 - 1e-9)
    assert simulate(plan, topology, 2e6).completion_s == pytest.approx(2 * first)


@pytest.mark.parametrize("method", METHODS)
def test_fragments_are_given_or_refused_with_the_reason(method):
    topology = NETWORKS["sites [2, 2]"]
    with pytest.raises(ValueError, match="part must be all, push or pull, not 'up'"):
        make(method)(topology, part="up")
    for part in ("push", "pull"):
        try:
            verify(make(method)(topology, part=part))
            assert not make(method).whole
        except ValueError as error:
            assert make(method).whole
            assert re.search(f"{METHODS[method][0]}: there is no {part} fragment", str(error))
