"""Networks that the testbed knows how to build."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from numbers import Integral, Real

import numpy as np

from slowlink.methods.exchange import Topology

CENTRAL = 0
"""Region of the central site in :func:`geo_sites`; participant site ``i`` is region ``i + 1``."""


LAYERS = ("rack", "pod", "zone")
"""Names of the oversubscribed layers of a tree, innermost first; more are ``layer3`` …"""


class Cables:
    """Nodes, their region at every layer, and full-duplex cables."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.regions: list[Sequence[int]] = []
        self.links: list[tuple[int, int, float, float]] = []

    def node(self, name: str, regions: Sequence[int] = ()) -> int:
        self.names.append(name)
        self.regions.append(regions)
        return len(self.names) - 1

    def join(
        self, a: int, b: int, rate: float, latency: float = 0.0, back: float | None = None
    ) -> None:
        """A cable with ``rate`` from ``a`` to ``b``, and ``back`` the other way if that differs."""
        self.links += [(a, b, rate, latency), (b, a, rate if back is None else back, latency)]

    def build(
        self, name: str, workers: Sequence[int], servers: Sequence[int], layers: Sequence[str] = ()
    ) -> Topology:
        src, dst, rate, latency = np.array(self.links, dtype=np.float64).reshape(-1, 4).T
        regions = np.array(self.regions).reshape(len(self.names), len(layers)).T
        names, layers = tuple(self.names), tuple(layers)
        return Topology(
            names, workers, servers, src, dst, rate, latency, tuple(regions), layers, name
        )


def geo_sites(
    workers: Sequence[int] = (6, 6),
    lan: float = 1e9,
    wan: float = 155e6,
    *,
    lan_latency: float = 0.0,
    wan_latency: float = 0.0,
    colocated: int = 0,
    site_wan: float = math.inf,
) -> Topology:
    """One central site with the global server, and participant sites with workers.

    Every node has a full-duplex network card to its site's switch, and every switch an uplink and
    a downlink to a wide-area core. ``servers[0]`` is the global server; ``servers[1 + i]`` is the
    local server of participant site ``i``, which is region ``i + 1`` of the layer ``site``.
    A message between sites crosses two cards and two wide-area links.

    Parameters
    ----------
    workers: workers of each participant site.
    lan: rate of every network card, bit/s.
    wan: rate of the central site's uplink and of its downlink, bit/s: the interface that is
        shaped.
    lan_latency, wan_latency: seconds on each card and on each wide-area link.
    colocated: so many of each site's workers live on the host of the site's server: they share
        its card, and reach it without one.
    site_wan: rate of the participants' uplinks and downlinks, bit/s.

    Source: GeoMX, section 3 (one server at the centre, participants B and C of six workers,
    1 Gbit/s Ethernet, the central interface shaped to 155 Mbit/s).
    """
    counts = [int(n) for n in workers]
    if not counts or min(counts) < 1 or counts != list(workers):
        raise ValueError(f"geo_sites: workers must be positive counts, one a site, not {workers}")
    if not 0 <= colocated <= min(counts):
        raise ValueError(
            f"geo_sites: colocated is {colocated}, but a site has {min(counts)} workers"
        )
    cables = Cables()
    sites = range(1, len(counts) + 1)
    servers = [cables.node("central/server", [CENTRAL])]
    servers += [cables.node(f"site{site}/server", [site]) for site in sites]
    members = [
        [cables.node(f"site{site}/worker{rank}", [site]) for rank in range(count)]
        for site, count in zip(sites, counts, strict=True)
    ]
    core = cables.node("core", [-1])

    hub = cables.node("central/switch", [CENTRAL])
    cables.join(servers[0], hub, lan, lan_latency)
    cables.join(hub, core, wan, wan_latency)
    for site, ranks in zip(sites, members, strict=True):
        switch = cables.node(f"site{site}/switch", [site])
        cables.join(switch, core, site_wan, wan_latency)
        if colocated:
            host = cables.node(f"site{site}/host", [site])
            cables.join(host, switch, lan, lan_latency)
            for node in (servers[site], *ranks[:colocated]):
                cables.join(node, host, math.inf)
        for node in ranks[colocated:] if colocated else (servers[site], *ranks):
            cables.join(node, switch, lan, lan_latency)
    return cables.build("geo_sites", sum(members, []), servers, ("site",))


def star(
    workers: int, rate: float, *, server_rate: float | None = None, latency: float = 0.0
) -> Topology:
    """A flat cluster: workers and one server around one switch.

    Parameters
    ----------
    workers: how many.
    rate, server_rate: of every worker's and of the server's full-duplex card, bit/s (the server
        has a worker's card if None).
    latency: seconds on each card.
    """
    if workers < 1:
        raise ValueError(f"star: needs at least one worker, not {workers}")
    cables = Cables()
    ranks = [cables.node(f"worker{rank}") for rank in range(workers)]
    server = cables.node("server")
    switch = cables.node("switch")
    for node in ranks:
        cables.join(node, switch, rate, latency)
    cables.join(server, switch, rate if server_rate is None else server_rate, latency)
    return cables.build("star", ranks, [server])


def tree(
    shape: Sequence[int],
    rate: float,
    *,
    oversubscription: float | Sequence[float] = 1.0,
    spines: int | Sequence[int] = 1,
    rates: Sequence[float] | None = None,
    latency: float | Sequence[float] = 0.0,
    helpers: bool = False,
    helper_nics: int = 10,
) -> Topology:
    """A data centre: workers in racks, racks in pods, and so on; every layer oversubscribed.

    Layer 0 of the regions is the racks, layer 1 the pods, …; the whole is no region. Ranks go
    rack by rack. A rack has one switch, ``rack0/switch``; above it every region has parallel
    switches, ``pod0/switch0`` …, and the whole has ``spine0`` …. Each switch of a region is joined
    to each one of the region above: these cables are the region's uplinks.

    Parameters
    ----------
    shape: workers of a rack, racks of a pod, pods of a zone, … of the whole: ``(4, 4)`` is four
        racks of four.
    rate: of every worker's full-duplex card, bit/s.
    oversubscription: what workers or regions send into a region's switches over what its uplinks
        carry, a number or one a layer; helpers do not count.
    spines: parallel switches in the region above, a number or one a layer.
    rates: of one uplink, bit/s, one a layer; instead of ``oversubscription``.
    latency: seconds on a cable, a number or one a layer, the workers' own cables first.
    helpers: whether each rack has a server with ``helper_nics`` cards like a worker's:
        ``servers[i]`` is that of rack ``i``. Its cards are one cable of their common rate: what it
        sends and gets is striped over them, as ParameterHub's box gives every card its share of
        each message's chunks.

    Source: RAT, sections 1.1 and 3.2 (layers and regions); 2.3 (helpers: ParameterHub's PBox).
    """
    counts = _counts("tree", "shape", shape)
    if not counts:
        raise ValueError("tree: shape needs at least the number of workers in a rack")
    layers = len(counts) - 1
    ratios = [float(ratio) for ratio in _each("tree", "oversubscription", oversubscription, layers)]
    if not all(0 < ratio < math.inf for ratio in ratios):
        raise ValueError(f"tree: oversubscription must be above 0, not {oversubscription}")
    if rates is not None and oversubscription != 1.0:
        raise ValueError("tree: give oversubscription or rates, not both")
    spines = _counts("tree", "spines", _each("tree", "spines", spines, layers))
    uplinks = None if rates is None else _each("tree", "rates", tuple(rates), layers)
    latencies = _each("tree", "latency", latency, layers + 1)
    names = [LAYERS[j] if j < len(LAYERS) else f"layer{j}" for j in range(layers)]

    # The regions that a region of layer j is in, itself among them; -1 for the layers below.
    def regions(j: int, index: int) -> list[int]:
        return [-1] * j + [index // math.prod(counts[j + 1 : k + 1]) for k in range(j, layers)]

    cables = Cables()
    racks = [regions(0, rack) for rack in range(math.prod(counts[1:]))]
    sizes = [counts[0]] * len(racks)
    nics = _nics("tree", helpers, helper_nics)
    workers, servers, switches = _racks(cables, racks, sizes, rate, latencies[0], nics)
    below, incoming = [[switch] for switch in switches], counts[0] * rate
    for j in range(layers):
        parallel, top = len(below[0]) * spines[j], j + 1 == layers
        uplink = uplinks[j] if uplinks else incoming / (ratios[j] * parallel)
        above = []
        for index in range(len(below) // counts[j + 1]):
            stem = "spine" if top else f"{names[j + 1]}{index}/switch"
            parents = [cables.node(f"{stem}{k}", regions(j + 1, index)) for k in range(spines[j])]
            children = sum(below[index * counts[j + 1] : (index + 1) * counts[j + 1]], [])
            for child, parent in product(children, parents):
                cables.join(child, parent, uplink, latencies[j + 1])
            above.append(parents)
        below, incoming = above, counts[j + 1] * parallel * uplink
    return cables.build("tree", workers, servers, names)


def leaf_spine(
    racks: int,
    per_rack: int | Sequence[int],
    rate: float,
    *,
    spines: int = 2,
    uplink: float | Sequence[float] | None = None,
    latency: float | Sequence[float] = 0.0,
    helpers: bool = False,
    helper_nics: int = 10,
) -> Topology:
    """Racks under parallel spine switches, one cable from every rack to every spine.

    Names, regions and ranks are those of a :func:`tree` of one oversubscribed layer, but racks
    may differ. Oversubscription of a rack is ``per_rack * rate / (spines * uplink)``.

    Parameters
    ----------
    per_rack: workers of a rack, a number or one a rack.
    rate: of every worker's full-duplex card, bit/s.
    uplink: of the cable from a rack to one spine, bit/s, a number or one a rack; ``rate`` if None.
    latency: seconds on a cable, a number or two: the workers' own and the uplinks'.
    helpers, helper_nics: as in :func:`tree`.

    Source: RAT, section 4.1 (4 leaves, 2 spines, workers a rack set the oversubscription).
    """
    (racks,) = _counts("leaf_spine", "racks", [racks])
    (spines,) = _counts("leaf_spine", "spines", [spines])
    sizes = _counts("leaf_spine", "per_rack", _each("leaf_spine", "per_rack", per_rack, racks))
    uplinks = _each("leaf_spine", "uplink", rate if uplink is None else uplink, racks)
    near, far = _each("leaf_spine", "latency", latency, 2)
    cables = Cables()
    nics = _nics("leaf_spine", helpers, helper_nics)
    regions = [[rack] for rack in range(racks)]
    workers, servers, leaves = _racks(cables, regions, sizes, rate, near, nics)
    tops = [cables.node(f"spine{k}", [-1]) for k in range(spines)]
    for leaf, up in zip(leaves, uplinks, strict=True):
        for spine in tops:
            cables.join(leaf, spine, up, far)
    return cables.build("leaf_spine", workers, servers, LAYERS[:1])


def bcube(ports: int, levels: int, rate: float, *, latency: float = 0.0) -> Topology:
    """BCube: a server-centric network of ``ports ** levels`` workers, each with ``levels`` cards.

    A worker's rank has ``levels`` digits in base ``ports``, digit 0 the lowest. A switch of level
    ``j`` joins the workers that differ only in digit ``j``; those are a region of layer ``j``, so
    regions of different layers cross and do not nest. Servers forward in this network: a worker
    sits behind a host node, without a limit between them, and its host has the cards.

    Parameters
    ----------
    rate: of every card, bit/s.
    latency: seconds on a cable between host and switch.

    Source: Guo et al., SIGCOMM 2009 [@guo2009bcube]; RAT, section 2.3 (server-centric networks of
    HiPS).
    """
    ports, levels = _counts("bcube", "ports and levels", [ports, levels])
    ranks = np.arange(ports**levels)
    # Without digit j, ranks that share a switch of level j are the same number.
    switch_of = np.array(
        [ranks // ports ** (j + 1) * ports**j + ranks % ports**j for j in range(levels)]
    )
    cables = Cables()
    workers = [cables.node(f"worker{rank}", switch_of[:, rank].tolist()) for rank in ranks]
    for rank, worker in enumerate(workers):
        host = cables.node(f"host{rank}", switch_of[:, rank].tolist())
        cables.join(worker, host, math.inf)
    for j in range(levels):
        own = [[-1] * j + [k] + [-1] * (levels - j - 1) for k in range(ports ** (levels - 1))]
        switches = [cables.node(f"level{j}/switch{k}", region) for k, region in enumerate(own)]
        for rank in ranks:
            cables.join(len(ranks) + int(rank), switches[switch_of[j, rank]], rate, latency)
    return cables.build("bcube", workers, [], [f"level{j}" for j in range(levels)])


def links_between(topology: Topology, a: str, b: str) -> np.ndarray:
    """Directed links from node ``a`` to node ``b``, by name, ascending.

    Raises
    ------
    ValueError
        A name that no node has, or nodes that no link joins.
    """
    for name in (a, b):
        if name not in topology.node_names:
            raise ValueError(f"{topology.name}: no node {name!r}; see its node_names")
    src, dst = topology.node_names.index(a), topology.node_names.index(b)
    links = np.flatnonzero((topology.link_src == src) & (topology.link_dst == dst))
    if not len(links):
        raise ValueError(f"{topology.name}: no link from {a} to {b}")
    return links


def without(topology: Topology, links: Sequence[int] | np.ndarray) -> Topology:
    """The topology with those directed links gone; those that remain are numbered anew.

    Raises
    ------
    ValueError
        A link that the topology does not have.
    """
    gone = np.unique(np.asarray(links, dtype=np.int64))
    if len(gone) and not 0 <= gone[0] <= gone[-1] < topology.n_links:
        raise ValueError(f"{topology.name}: links are 0 to {topology.n_links - 1}, not {links}")
    columns = ("link_src", "link_dst", "link_rate", "link_latency")
    return replace(topology, **{name: np.delete(getattr(topology, name), gone) for name in columns})


def _racks(
    cables: Cables,
    racks: Sequence[Sequence[int]],
    sizes: Sequence[int],
    rate: float,
    latency: float,
    nics: int,
) -> tuple[list[int], list[int], list[int]]:
    """Workers, helpers (none for 0 ``nics``) and switches of racks, given the regions of each."""
    members = [
        [cables.node(f"rack{rack}/worker{rank}", regions) for rank in range(size)]
        for rack, (regions, size) in enumerate(zip(racks, sizes, strict=True))
    ]
    helpers = [
        cables.node(f"rack{rack}/helper", regions) for rack, regions in enumerate(racks) if nics
    ]
    switches = [cables.node(f"rack{rack}/switch", regions) for rack, regions in enumerate(racks)]
    for rack, switch in enumerate(switches):
        for worker in members[rack]:
            cables.join(worker, switch, rate, latency)
        if nics:
            cables.join(helpers[rack], switch, nics * rate, latency)
    return sum(members, []), helpers, switches


def _nics(topology: str, helpers: bool, helper_nics: int) -> int:
    if helpers not in (False, True):
        raise ValueError(f"{topology}: helpers is whether racks have one, not {helpers!r}")
    return _counts(topology, "helper_nics", [helper_nics])[0] if helpers else 0


def _each(topology: str, what: str, value: float | Sequence[float], count: int) -> list:
    """``value`` itself if it has ``count`` entries, so many times it if it is a number."""
    if isinstance(value, Real):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{topology}: {what} must be a number or {count} of them, not {value}")
    return list(value)


def _counts(topology: str, what: str, values: Sequence[int]) -> list[int]:
    if not all(isinstance(n, Integral) and n > 0 for n in values):
        raise ValueError(f"{topology}: {what} must be positive whole numbers, not {values}")
    return [int(n) for n in values]
