"""Routes against breadth-first search by brute force, and how the choices spread them."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chisquare

from slowlink.methods.exchange import Topology, load
from slowlink.testbed.network import (
    Paths,
    bcube,
    bound,
    leaf_spine,
    link_traffic,
    links_between,
    route,
    routes,
    simulate,
    star,
    tree,
    without,
)

CHOICES = ("first", "ecmp", "balanced")


def all_shortest(topology, src, dst):
    """Every shortest path, as tuples of links: all paths of each length, until some arrive."""
    ends = set(topology.workers.tolist()) | set(topology.servers.tolist())
    paths = [((), src)]
    while paths and not any(node == dst for _, node in paths):
        paths = [
            ((*path, link), int(topology.link_dst[link]))
            for path, node in paths
            if node == src or node not in ends
            for link in np.flatnonzero(topology.link_src == node).tolist()
            if topology.link_dst[link] not in {topology.link_src[k] for k in path}
        ]
    return {path for path, node in paths if node == dst}


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
    return Topology(names, range(n, 2 * n), [], src, dst, ones, 0 * ones)


def random_network(seed):
    """Hosts with one to three cables to switches that are joined at random, some twice."""
    rng = np.random.default_rng(seed)
    hosts, switches = 6, 7
    n = hosts + switches
    ring = [(hosts + i, hosts + (i + 1) % switches) for i in range(switches)]
    more = [(hosts + int(a), hosts + int(b)) for a, b in rng.integers(switches, size=(6, 2))]
    cards = [(h, int(s)) for h in range(hosts) for s in rng.integers(hosts, n, rng.integers(1, 4))]
    src, dst = np.array([pair for a, b in ring + more + cards for pair in ((a, b), (b, a))]).T
    ones = np.ones(len(src))
    return Topology([f"{i}" for i in range(n)], range(hosts), [], src, dst, ones, 0 * ones)


def twice(topology, cables=2):
    """Every cable so many times."""
    columns = ("link_src", "link_dst", "link_rate", "link_latency")
    return replace(topology, **{name: np.tile(getattr(topology, name), cables) for name in columns})


NETWORKS = {
    "grid": lambda: grid(3),
    "helpers": lambda: leaf_spine(3, [1, 2, 3], 1e9, spines=3, helpers=True),
    "cables twice": lambda: twice(leaf_spine(3, [1, 2, 3], 1e9, spines=2, helpers=True)),
    "three layers": lambda: tree((2, 2, 2), 1e9, spines=(2, 3)),
    "bcube": lambda: bcube(2, 3, 1e9),
    "random 1": lambda: random_network(1),
    "random 2": lambda: random_network(2),
    "random 3": lambda: random_network(3),
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("network", NETWORKS)
def test_every_route_is_a_shortest_one(network, choice):
    topology = NETWORKS[network]()
    pairs = np.array(list(itertools.product(range(topology.n_nodes), repeat=2)))
    reachable = np.array([bool(all_shortest(topology, a, b)) for a, b in pairs])
    ptr, links = routes(topology, pairs[reachable], Paths(choice, 3))
    for i, (a, b) in enumerate(pairs[reachable].tolist()):
        path = tuple(links[ptr[i] : ptr[i + 1]].tolist())
        expected = all_shortest(topology, a, b) if a != b else {()}
        assert path in expected
        if choice == "first":
            assert path == min(expected)
    for a, b in pairs[~reachable].tolist():
        with pytest.raises(ValueError, match="no path"):
            route(topology, a, b)


@pytest.mark.parametrize("choice", CHOICES)
def test_a_pair_keeps_its_path(choice):
    topology = leaf_spine(4, 4, 1e9, spines=3)
    rng = np.random.default_rng(0)
    pairs = rng.integers(16, size=(500, 2))
    ptr, links = routes(topology, pairs, Paths(choice))
    taken = {}
    for i, pair in enumerate(map(tuple, pairs.tolist())):
        path = links[ptr[i] : ptr[i + 1]].tolist()
        assert taken.setdefault(pair, path) == path
    if choice != "balanced":  # which alone depends on the other pairs
        assert all(route(topology, *pair, Paths(choice)) == path for pair, path in taken.items())
    again = routes(topology, pairs, Paths(choice))
    assert np.array_equal(links, again[1])


def uplink_counts(topology, pairs, paths):
    """How many of the pairs cross each link from a rack's switch upwards, and each one down."""
    _, links = routes(topology, pairs, paths)
    counts = np.bincount(links, minlength=topology.n_links)
    names = topology.node_names
    top = [name.startswith("spine") for name in names]
    up = [a for a in range(topology.n_links) if top[topology.link_dst[a]]]
    down = [a for a in range(topology.n_links) if top[topology.link_src[a]]]
    return counts[up], counts[down]


@pytest.mark.parametrize("per_rack", [2, 4, 6])
@pytest.mark.parametrize(
    ("exchange", "parameters"), [("parameter_server", {"shards": "colocated"}), ("rat", {})]
)
def test_turns_load_all_uplinks_alike(exchange, parameters, per_rack):
    topology = leaf_spine(4, per_rack, 1e9)
    load_of = link_traffic(load(exchange, **parameters)(topology), topology)
    between = [(f"rack{r}/switch", f"spine{s}") for r in range(4) for s in range(2)]
    for pairs in (between, [pair[::-1] for pair in between]):
        loads = [load_of[links_between(topology, *pair)].sum() for pair in pairs]
        assert loads == pytest.approx([np.mean(loads)] * 8, rel=1e-12)


@pytest.mark.parametrize(("per_rack", "spines"), [(3, 2), (4, 3), (5, 4), ([1, 2, 3, 5], 2)])
def test_turns_differ_by_one_at_most_for_each_other_rack(per_rack, spines):
    topology = leaf_spine(4, per_rack, 1e9, spines=spines)
    n = len(topology.workers)
    pairs = np.random.default_rng(1).permutation(list(itertools.permutations(range(n), 2)))
    for counts in uplink_counts(topology, pairs, Paths("balanced")):
        assert np.ptp(counts.reshape(4, spines), axis=1).max() <= 3


@pytest.mark.parametrize(
    ("shape", "spines", "differ"),
    [((4, 3, 2, 2), (2, 3, 4), 0), ((8, 4, 2), (2, 4), 0), ((2, 2, 2, 2), 2, 0), ((3, 3, 3), 2, 9)],
)
def test_turns_at_every_branching_of_a_deeper_tree(shape, spines, differ):
    """Equal where the spines divide the pairs, else within one for each rack bound for."""
    topology = tree(shape, 1e9, spines=spines)
    pairs = list(itertools.permutations(range(len(topology.workers)), 2))
    _, links = routes(topology, np.random.default_rng(2).permutation(pairs))
    counts = np.bincount(links, minlength=topology.n_links)
    stems = [name.rstrip("0123456789") for name in topology.node_names]  # parallel switches agree
    parallel = {}
    for a, b, count in zip(topology.link_src, topology.link_dst, counts.tolist(), strict=True):
        parallel.setdefault((stems[a], stems[b]), []).append(count)
    cables = [group for ends, group in parallel.items() if "worker" not in "".join(ends)]
    assert len(cables) > 2
    assert max(np.ptp(group) for group in cables) <= differ


def test_parallel_cables_take_turns():
    topology = twice(leaf_spine(2, 20, 1e9, helpers=True), 10)
    helper = topology.servers[0]
    pairs = [(w, helper) for w in range(20)] + [(helper, w) for w in range(20)]
    _, links = routes(topology, pairs)
    counts = Counter(links.tolist())
    for a, b in itertools.permutations(["rack0/helper", "rack0/switch"]):
        assert [counts[k] for k in links_between(topology, a, b)] == [2] * 10


@pytest.mark.parametrize("seed", range(3))
def test_hashes_are_uniform_and_independent(seed):
    topology = tree((12, 2, 4), 1e9, spines=(2, 3))
    regions = np.array(topology.regions)
    pairs = [
        (a, b)
        for a, b in itertools.permutations(topology.workers.tolist(), 2)
        if regions[1, a] != regions[1, b]
    ]
    ptr, links = routes(topology, pairs, Paths("ecmp", seed))
    up, over, down = (topology.link_dst[links.reshape(len(pairs), 6)[:, k]] for k in (1, 2, 3))
    names = [name[-1] for name in topology.node_names]
    joint = Counter((names[a], names[b], names[c]) for a, b, c in zip(up, over, down, strict=True))
    assert len(joint) == 2 * 3 * 2
    assert chisquare(list(joint.values())).pvalue > 1e-3
    each = Counter(links.reshape(len(pairs), 6)[:, 2].tolist())  # pod switch to spine, 8 x 3 links
    assert chisquare(list(each.values())).pvalue > 1e-3


def test_hashes_of_two_seeds_are_independent():
    topology = leaf_spine(2, 40, 1e9, spines=4)
    pairs = list(itertools.product(range(40), range(40, 80)))
    one, two = (
        topology.link_dst[routes(topology, pairs, Paths("ecmp", seed))[1].reshape(-1, 4)[:, 1]]
        for seed in (0, 1)
    )
    joint = Counter(zip(one.tolist(), two.tolist(), strict=True))
    assert chisquare([joint[a, b] for a in set(one) for b in set(two)]).pvalue > 1e-3


def test_paths_reach_counts_bounds_and_simulation():
    """All cross-rack traffic of the first choice takes one of two uplinks: twice as long."""
    topology = leaf_spine(4, 8, 1e9, spines=2, uplink=0.5e9)
    plan = load("parameter_server", shards="colocated")(topology)
    seconds = {
        choice: [
            bound(plan, topology, 1e6, paths=Paths(choice)),
            simulate(plan, topology, 1e6, paths=Paths(choice)).completion_s,
        ]
        for choice in ("first", "balanced")
    }
    assert seconds["balanced"] == pytest.approx([8e6 * 2 * 8 * 24 / 32 / 1e9] * 2)
    assert seconds["first"] == pytest.approx([2 * seconds["balanced"][0]] * 2)


def test_hosts_do_not_forward():
    topology = grid(3, extra=[(9, 8)])  # the first host has a second card, far away
    assert len(route(topology, 10, 17)) == 5  # not through host 9
    assert len(route(topology, 9, 17)) == 2  # which itself may use it


def test_routes_avoid_what_is_gone():
    topology = leaf_spine(3, 4, 1e9)
    names = topology.node_names
    gone = links_between(topology, "rack0/switch", "spine1")
    failed = without(topology, gone)
    pairs = list(itertools.permutations(range(12), 2))
    ptr, links = routes(failed, pairs)
    for i, (a, _) in enumerate(pairs):
        through = {names[failed.link_dst[k]] for k in links[ptr[i] : ptr[i + 1]]}
        assert not (a < 4 and "spine1" in through)
    back = [(a, b) for a, b in pairs if a >= 4 and b < 4]  # that direction is whole
    up, _ = uplink_counts(failed, back, Paths())
    assert up.tolist() == [0, 8, 8, 8, 8]
    alone = without(failed, links_between(failed, "rack0/switch", "spine0"))
    with pytest.raises(ValueError, match="no path from rack0/worker0 to rack1/worker0"):
        routes(alone, [(0, 1), (0, 4)])


def test_no_such_node_no_path_and_no_such_choice():
    topology = star(2, 1e9)
    with pytest.raises(ValueError, match="there is no node 9"):
        route(topology, 0, 9)
    apart = Topology(("a", "b", "c"), [0, 1], [], [0, 1], [2, 2], [1, 1], [0, 0])
    with pytest.raises(ValueError, match="no path from a to b"):
        route(apart, 0, 1)
    with pytest.raises(ValueError, match="first.*ecmp.*balanced.*not 'best'"):
        Paths("best")


def test_no_pairs():
    ptr, links = routes(star(2, 1e9), [])
    assert ptr.tolist() == [0]
    assert len(links) == 0
