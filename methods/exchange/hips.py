"""HiPS, the hierarchical parameter server: one inside every site, one between sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from slowlink.methods.exchange import COPY, REDUCE, Exchange, Plan, PlanBuilder, PlanPart, Topology
from slowlink.methods.exchange._members import central_server, check_part, participants


@dataclass(frozen=True)
class Hips(Exchange):
    """Two levels of push and pull.

    Workers push to their site's server, site servers push their sums to the global server, which
    only aggregates; the sum comes back the same way. Sites are the regions of the topology's
    innermost layer; a site's server is the first of its servers besides the global one. Sites
    without members take no part.

    Its closed form: where the central uplink limits, a vector a site into it and a vector a site
    out of it, whatever the sites' sizes (GeoMX, section 3).

    A site that is done goes on, however large the others are: the description has no barrier
    between sites. Without ``overlap`` a server passes on only what has arrived in full, so that
    messages are not cut into ``chunks``.
    """

    summary: ClassVar[str] = "a parameter server in every site, and one between the sites"
    source: ClassVar[str] = "GeoMX [@li2020geomx], section 3 (HiPS; figures 2 and 3)"
    combines: ClassVar[frozenset[str]] = frozenset({"sum", "merge", "gather"})

    def __call__(
        self, topology: Topology, members: Sequence[int] | None = None, part: PlanPart = "all"
    ) -> Plan:
        check_part("hips", part)
        top, sites = self._sites(topology, members)
        builder = PlanBuilder("hips", 1, ("push/0", "push/1", "pull/1", "pull/0"))
        summed: list[int] = []
        if part != "pull":
            pushes = {
                server: [builder.add(node, server, "push/0", REDUCE, phase=0) for node in nodes]
                for server, nodes in sites.items()
            }
            tops = [
                builder.add(server, top, "push/1", REDUCE, arrived, phase=1)
                for server, arrived in pushes.items()
            ]
            summed = [builder.join(top, "pull/1", tops, phase=2)] if part == "all" else []
        if part != "push":
            pulls = {
                server: builder.add(top, server, "pull/1", COPY, summed, phase=2)
                for server in sites
            }
            for server, nodes in sites.items():
                for node in nodes:
                    builder.add(server, node, "pull/0", COPY, [pulls[server]], phase=3)
        workers = [node for nodes in sites.values() for node in nodes]
        return builder.build(
            contributors=[top] if part == "pull" else workers,
            receivers=[top] if part == "push" else workers,
            chunks=self.chunks if self.overlap else 1,
        )

    def groups(
        self, topology: Topology, members: Sequence[int] | None = None
    ) -> list[list[list[int]]]:
        """Level 0: the workers of each site; level 1: the site servers that take part."""
        _, sites = self._sites(topology, members)
        return [list(sites.values()), [list(sites)]]

    def _sites(
        self, topology: Topology, members: Sequence[int] | None
    ) -> tuple[int, dict[int, list[int]]]:
        """The global server, and the workers that take part by their site's server."""
        top = central_server("hips", topology)
        if not topology.regions:
            raise ValueError(f"hips: {topology.name} has no sites; use a topology with regions")
        region = topology.regions[0]
        server_of: dict[int, int] = {}
        for server in topology.servers[1:]:
            server_of.setdefault(int(region[server]), int(server))
        sites: dict[int, list[int]] = {}
        for node in participants("hips", topology, members):
            site = int(region[node])
            if site not in server_of:
                raise ValueError(
                    f"hips: {topology.node_names[node]} is in region {site} of layer "
                    f"{topology.layers[0]!r}, which has no server besides the global one"
                )
            sites.setdefault(server_of[site], []).append(node)
        return top, sites
