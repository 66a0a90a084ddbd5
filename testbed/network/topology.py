"""Networks that the testbed knows how to build."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from methods.exchange import Topology

CENTRAL = 0
"""Region of the central site in :func:`geo_sites`; participant site ``i`` is region ``i + 1``."""


class _Cables:
    """Nodes and full-duplex cables, collected by name."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.regions: list[int] = []
        self.links: list[tuple[int, int, float, float]] = []

    def node(self, name: str, region: int = -1) -> int:
        self.names.append(name)
        self.regions.append(region)
        return len(self.names) - 1

    def join(self, a: int, b: int, rate: float, latency: float = 0.0) -> None:
        self.links += [(a, b, rate, latency), (b, a, rate, latency)]

    def build(self, workers: Sequence[int], servers: Sequence[int], **options) -> Topology:
        src, dst, rate, latency = np.array(self.links, dtype=np.float64).reshape(-1, 4).T
        return Topology(tuple(self.names), workers, servers, src, dst, rate, latency, **options)


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
    cables = _Cables()
    sites = range(1, len(counts) + 1)
    servers = [cables.node("central/server", CENTRAL)]
    servers += [cables.node(f"site{site}/server", site) for site in sites]
    members = [
        [cables.node(f"site{site}/worker{rank}", site) for rank in range(count)]
        for site, count in zip(sites, counts, strict=True)
    ]
    core = cables.node("core")

    hub = cables.node("central/switch", CENTRAL)
    cables.join(servers[0], hub, lan, lan_latency)
    cables.join(hub, core, wan, wan_latency)
    for site, ranks in zip(sites, members, strict=True):
        switch = cables.node(f"site{site}/switch", site)
        cables.join(switch, core, site_wan, wan_latency)
        if colocated:
            host = cables.node(f"site{site}/host", site)
            cables.join(host, switch, lan, lan_latency)
            for node in (servers[site], *ranks[:colocated]):
                cables.join(node, host, math.inf)
        for node in ranks[colocated:] if colocated else (servers[site], *ranks):
            cables.join(node, switch, lan, lan_latency)
    return cables.build(
        workers=sum(members, []),
        servers=servers,
        regions=(np.array(cables.regions),),
        layers=("site",),
        name="geo_sites",
    )


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
    cables = _Cables()
    ranks = [cables.node(f"worker{rank}") for rank in range(workers)]
    server = cables.node("server")
    switch = cables.node("switch")
    for node in ranks:
        cables.join(node, switch, rate, latency)
    cables.join(server, switch, rate if server_rate is None else server_rate, latency)
    return cables.build(workers=ranks, servers=[server], name="star")
