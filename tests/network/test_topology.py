"""Topologies, routes and faults: data that can be read off, and errors that say what is wrong."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from methods.exchange import Topology
from testbed.network import Faults, Network, geo_sites, route, routes, star


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


def grid(side, extra=()):
    """Switches in a grid with a host at each, and ``extra`` cables."""
    at = {xy: i for i, xy in enumerate(itertools.product(range(side), repeat=2))}
    n = side * side
    cables = [(at[x, y], at[x + 1, y]) for x, y in at if (x + 1, y) in at]
    cables += [(at[x, y], at[x, y + 1]) for x, y in at if (x, y + 1) in at]
    cables += [(n + i, i) for i in range(n)] + list(extra)
    src, dst = np.array([pair for a, b in cables for pair in ((a, b), (b, a))]).T
    names = [f"{i}" for i in range(2 * n)]
    ones = np.ones(len(src))
    return Topology(names, range(n, 2 * n), [], src, dst, ones, 0 * ones), at


def test_routes_are_shortest_connected_and_repeatable():
    topology, at = grid(4)
    n = len(at)
    pairs = [(n + a, n + b) for a in range(n) for b in range(n)]
    ptr, links = routes(topology, pairs)
    cells = list(at)
    for i, (a, b) in enumerate(pairs):
        path = links[ptr[i] : ptr[i + 1]]
        if a == b:
            assert len(path) == 0
            continue
        (ax, ay), (bx, by) = cells[a - n], cells[b - n]
        assert len(path) == abs(ax - bx) + abs(ay - by) + 2
        assert topology.link_src[path[0]] == a
        assert topology.link_dst[path[-1]] == b
        assert np.array_equal(topology.link_dst[path[:-1]], topology.link_src[path[1:]])
        assert path.tolist() == route(topology, a, b)


def test_hosts_do_not_forward():
    topology, at = grid(3, extra=[(9, 8)])  # the first host has a second card, far away
    assert len(route(topology, 10, 17)) == 5  # not through host 9
    assert len(route(topology, 9, 17)) == 2  # which itself may use it


def test_no_such_node_and_no_path():
    topology = star(2, 1e9)
    with pytest.raises(ValueError, match="there is no node 9"):
        route(topology, 0, 9)
    apart = Topology(("a", "b", "c"), [0, 1], [], [0, 1], [2, 2], [1, 1], [0, 0])
    with pytest.raises(ValueError, match="no path from a to b"):
        route(apart, 0, 1)


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
