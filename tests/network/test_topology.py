"""Topologies, routes and faults: data that can be read off, and errors that say what is wrong."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from slowlink.testbed.network import (
    Faults,
    Network,
    bcube,
    geo_sites,
    leaf_spine,
    links_between,
    route,
    star,
    tree,
    without,
)


def crossed(topology, src, dst):
    """Names along the route, and the rates of its links."""
    links = route(topology, src, dst)
    names = [topology.node_names[src]] + [topology.node_names[topology.link_dst[k]] for k in links]
    return names, topology.link_rate[links].tolist()


def test_geo_sites_layout():
    topology = geo_sites([2, 3], lan=1e9, wan=155e6)
    region, servers = topology.regions[0], topology.servers
    assert topology.layers == ("site",)
    assert region[servers].tolist() == [0, 1, 2]  # servers[1 + i] serves region i + 1
    assert region[topology.workers].tolist() == [1, 1, 2, 2, 2]
    assert crossed(topology, topology.workers[0], servers[1])[1] == [1e9, 1e9]
    names, rates = crossed(topology, servers[2], servers[0])
    assert names == [
        *("site2/server", "site2/switch", "core"),
        *("central/switch", "central/server"),
    ]
    assert rates == [1e9, math.inf, 155e6, 1e9]
    assert crossed(topology, servers[0], servers[2])[1] == [1e9, 155e6, math.inf, 1e9]
    limited = geo_sites([2, 3], site_wan=50e6)
    assert crossed(limited, servers[2], servers[0])[1] == [1e9, 50e6, 155e6, 1e9]


def test_colocated_workers_share_the_servers_card():
    topology = geo_sites([3, 2], colocated=1)
    near, far = topology.workers[:2]
    server = topology.servers[1]
    assert crossed(topology, near, server)[1] == [math.inf, math.inf]
    assert crossed(topology, far, server)[1] == [1e9, 1e9, math.inf]
    card = set(route(topology, server, topology.servers[0])) & set(route(topology, near, far))
    assert [topology.link_rate[link] for link in card] == [1e9]
    alone = geo_sites([2], colocated=2)
    assert all(math.inf in crossed(alone, w, alone.servers[1])[1] for w in alone.workers)


def test_latency_of_a_route_adds_up():
    topology = geo_sites([2, 2], lan_latency=1e-3, wan_latency=20e-3)
    path = route(topology, topology.workers[0], topology.workers[2])
    assert topology.link_latency[path].sum() == pytest.approx(2e-3 + 40e-3)
    path = route(topology, topology.workers[0], topology.workers[1])
    assert topology.link_latency[path].sum() == pytest.approx(2e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(workers=[]), "positive counts"),
        (dict(workers=[3, 0]), "positive counts"),
        (dict(workers=[2.5]), "positive counts"),
        (dict(workers=[3, 2], colocated=3), "colocated is 3, but a site has 2 workers"),
        (dict(colocated=-1), "colocated is -1"),
        (dict(lan=0), "rates must be > 0"),
        (dict(wan=math.nan), "rates must be > 0"),
        (dict(wan_latency=-1), "latencies >= 0"),
    ],
)
def test_bad_sites(arguments, message):
    with pytest.raises(ValueError, match=message):
        geo_sites(**arguments)


def test_star_needs_a_worker():
    with pytest.raises(ValueError, match="at least one worker"):
        star(0, 1e9)


def capacity(topology, layer):
    """For each region of a layer: bit/s of all links that leave it, and of all that enter it."""
    region = topology.regions[layer]
    here, there = region[topology.link_src], region[topology.link_dst]
    n = region.max() + 1
    out, into = (here >= 0) & (here != there), (there >= 0) & (here != there)
    return (
        np.bincount(here[out], topology.link_rate[out], minlength=n),
        np.bincount(there[into], topology.link_rate[into], minlength=n),
    )


@pytest.mark.parametrize(
    ("shape", "ratios", "spines"),
    [
        ((4, 4), 4.0, 2),
        ((3, 2, 5), (2.0, 1.5), (2, 3)),
        ((2, 3, 2, 2), (1.0, 4.0, 8.0), (1, 2, 3)),
        ((2, 2, 2, 2, 2), 2.0, 1),
    ],
)
def test_oversubscription_of_a_tree_is_what_its_links_have(shape, ratios, spines):
    topology = tree(shape, 10e9, oversubscription=ratios, spines=spines, helpers=True)
    layers = len(shape) - 1
    assert topology.layers == ("rack", "pod", "zone", "layer3")[:layers]
    below = np.full(math.prod(shape[1:]), shape[0] * 10e9)
    for layer, ratio in enumerate([ratios] * layers if isinstance(ratios, float) else ratios):
        out, into = capacity(topology, layer)
        assert out == pytest.approx(below / ratio)
        assert into == pytest.approx(out)
        if layer + 1 < layers:
            below = out.reshape(-1, shape[layer + 1]).sum(axis=1)


def test_ranks_and_regions_of_a_tree():
    topology = tree((2, 3, 2), 1e9, spines=(2, 1), helpers=True, helper_nics=4)
    rack, pod = topology.regions
    assert topology.workers.tolist() == list(range(12))
    assert rack[:12].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert pod[:12].tolist() == [0] * 6 + [1] * 6
    assert rack[topology.servers].tolist() == [0, 1, 2, 3, 4, 5]
    assert pod[topology.servers].tolist() == [0, 0, 0, 1, 1, 1]
    (link,) = links_between(topology, "rack3/helper", "rack3/switch")
    assert topology.link_rate[link] == 4e9  # four cards as one
    at = {name: (rack[i], pod[i]) for i, name in enumerate(topology.node_names)}
    assert at["rack4/switch"] == (4, 1)
    assert at["pod1/switch1"] == (-1, 1)
    assert at["spine0"] == (-1, -1)
    names, rates = crossed(topology, 0, 11)
    assert [name.rstrip("01") for name in names] == [
        *("rack0/worker", "rack0/switch", "pod0/switch", "spine"),
        *("pod1/switch", "rack5/switch", "rack5/worker"),
    ]
    assert rates == [1e9, 1e9, 3e9, 3e9, 1e9, 1e9]  # 3 racks of 2 workers, 2 cables


def test_rates_and_latencies_a_layer():
    topology = tree((2, 2, 2), 1e9, rates=(3e8, 7e8), latency=(1e-6, 2e-6, 5e-6))
    path = route(topology, 0, 7)
    assert topology.link_rate[path].tolist() == [1e9, 3e8, 7e8, 7e8, 3e8, 1e9]
    assert topology.link_latency[path].tolist() == [1e-6, 2e-6, 5e-6, 5e-6, 2e-6, 1e-6]
    flat = tree((5,), 1e9)
    assert flat.layers == flat.regions == ()
    assert crossed(flat, 0, 4)[1] == [1e9, 1e9]


def test_leaf_spine_is_a_tree_of_one_layer():
    """The RAT document's: two spines at the workers' rate, so w / 2 to 1."""
    ours = leaf_spine(4, 8, 1e9, latency=1e-6, helpers=True)
    same = tree((8, 4), 1e9, oversubscription=4, spines=2, latency=1e-6, helpers=True)
    assert ours.node_names == same.node_names
    for a, b in [(ours.regions[0], same.regions[0]), (ours.link_src, same.link_src)]:
        assert np.array_equal(a, b)
    for column in ("link_dst", "link_rate", "link_latency", "workers", "servers"):
        assert np.array_equal(getattr(ours, column), getattr(same, column))


def test_racks_may_differ():
    topology = leaf_spine(3, [1, 4, 2], 1e9, spines=3, uplink=[1e9, 2e8, 4e8], latency=(1e-6, 9e-6))
    assert np.bincount(topology.regions[0][topology.workers]).tolist() == [1, 4, 2]
    out, into = capacity(topology, 0)
    assert out.tolist() == into.tolist() == [3e9, 6e8, 12e8]
    path = route(topology, 0, 1)
    assert topology.link_rate[path].tolist() == [1e9, 1e9, 2e8, 1e9]
    assert topology.link_latency[path].tolist() == [1e-6, 9e-6, 9e-6, 1e-6]


@pytest.mark.parametrize(("ports", "levels"), [(2, 1), (2, 3), (3, 2), (4, 2)])
def test_bcube_joins_what_differs_in_one_digit(ports, levels):
    topology = bcube(ports, levels, 1e9, latency=1e-6)
    n = ports**levels
    digits = np.array(list(itertools.product(range(ports), repeat=levels)))[:, ::-1]
    assert topology.workers.tolist() == list(range(n))
    for a, b in itertools.product(range(n), repeat=2):
        differ = np.flatnonzero(digits[a] != digits[b])
        for j, region in enumerate(topology.regions):
            assert (region[a] == region[b]) == set(differ).issubset({j})
        path = route(topology, a, b)
        assert topology.link_latency[path].sum() == pytest.approx(2e-6 * len(differ))
    host = [name.startswith("host") for name in topology.node_names]
    cards = np.bincount(topology.link_src[np.isfinite(topology.link_rate)])
    assert set(cards[: len(host)][host]) == {levels}
    switches = [name.startswith("level") for name in topology.node_names]
    assert sum(switches) == levels * ports ** (levels - 1)
    assert set(cards[switches]) == {ports}


def test_links_can_be_named_and_taken_away():
    plain = leaf_spine(2, 2, 1e9, helpers=True)
    twice = {  # every cable a second time
        name: np.tile(getattr(plain, name), 2)
        for name in ("link_src", "link_dst", "link_rate", "link_latency")
    }
    topology = replace(plain, **twice)
    for a, b in [("rack0/switch", "spine1"), ("rack1/helper", "rack1/switch")]:
        for link in links_between(topology, a, b):
            assert topology.node_names[topology.link_src[link]] == a
            assert topology.node_names[topology.link_dst[link]] == b
    gone = links_between(topology, "rack1/helper", "rack1/switch")[:1]
    rest = without(topology, gone)
    assert rest.n_links == topology.n_links - 1
    assert len(links_between(rest, "rack1/helper", "rack1/switch")) == 1
    assert len(links_between(rest, "rack1/switch", "rack1/helper")) == 2
    assert without(topology, []).n_links == topology.n_links
    with pytest.raises(ValueError, match="no node 'rack9/switch'"):
        links_between(topology, "rack9/switch", "spine0")
    with pytest.raises(ValueError, match="no link from rack0/worker0 to spine0"):
        links_between(topology, "rack0/worker0", "spine0")
    for links in ([topology.n_links], [-1]):
        with pytest.raises(ValueError, match=f"links are 0 to {topology.n_links - 1}"):
            without(topology, links)


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        (tree, dict(shape=()), "tree: shape needs at least"),
        (tree, dict(shape=(4, 0)), "tree: shape must be positive whole numbers"),
        (tree, dict(shape=(4, 2.5)), "tree: shape must be positive whole numbers"),
        (tree, dict(shape=(4, 4), spines=0), "tree: spines must be positive whole numbers"),
        (tree, dict(shape=(4, 4), spines=(1, 2)), "spines must be a number or 1 of them"),
        (tree, dict(shape=(4, 4), latency=(1e-6,)), "latency must be a number or 2 of them"),
        (tree, dict(shape=(4, 4), oversubscription=0), "oversubscription must be above 0"),
        (tree, dict(shape=(4, 4), rates=[1e9, 1e9]), "rates must be a number or 1 of them"),
        (tree, dict(shape=(4, 4), rates=[1e9], oversubscription=2), "not both"),
        (tree, dict(shape=(4, 4), rates=[0]), "link rates must be > 0"),
        (tree, dict(shape=(4, 4), helpers=3), "helpers is whether racks have one, not 3"),
        (tree, dict(shape=(4, 4), helpers=True, helper_nics=0), "helper_nics must be positive"),
        (leaf_spine, dict(racks=0, per_rack=2), "racks must be positive"),
        (leaf_spine, dict(racks=2, per_rack=[2, 2, 2]), "per_rack must be a number or 2 of them"),
        (leaf_spine, dict(racks=2, per_rack=[2, 0]), "per_rack must be positive"),
        (leaf_spine, dict(racks=2, per_rack=2, uplink=[1e9]), "uplink must be a number or 2"),
        (leaf_spine, dict(racks=2, per_rack=2, spines=0), "spines must be positive"),
        (bcube, dict(ports=0, levels=2), "ports and levels must be positive"),
        (bcube, dict(ports=2, levels=1.5), "ports and levels must be positive"),
    ],
)
def test_bad_data_centres(build, arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments, rate=1e9)


def test_pauses_are_sorted_and_merged():
    faults = Faults([(2, 5, 6), (1, 3, 4), (2, 1, 3), (1, 1, 3), (2, 2, 2.5)])
    assert faults.pauses == ((1, 1, 4), (2, 1, 3), (2, 5, 6))
    assert Faults() == Faults([])


@pytest.mark.parametrize("pause", [(0, 2, 1), (0, 1, 1), (0, -1, 1), (0, 0, math.inf)])
def test_bad_pauses(pause):
    with pytest.raises(ValueError, match="pause of node 0"):
        Faults([pause])


def test_pause_of_a_node_that_is_not_there():
    with pytest.raises(ValueError, match="no node 44"):
        Network(star(2, 1e9), Faults([(44, 0, 1)]))
