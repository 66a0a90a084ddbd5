"""What plans run on: topologies, exact execution, the fluid simulator, counts and bounds."""

from __future__ import annotations

from slowlink.testbed.network.balancing import tree_loads, tree_weights
from slowlink.testbed.network.bounds import bound
from slowlink.testbed.network.counting import (
    RegionTraffic,
    least_egress,
    link_traffic,
    longest_chain,
    node_traffic,
    region_traffic,
    transfer_bytes,
)
from slowlink.testbed.network.execution import execute, verify
from slowlink.testbed.network.faults import Faults, failed_links, priority, random_pauses
from slowlink.testbed.network.fluid import Alone, Network, Result, simulate, tcp_efficiency
from slowlink.testbed.network.routing import Paths, route, routes
from slowlink.testbed.network.topology import (
    bcube,
    geo_sites,
    leaf_spine,
    links_between,
    star,
    tree,
    without,
)

__all__ = [
    "Alone",
    "Faults",
    "Network",
    "Paths",
    "Result",
    "RegionTraffic",
    "bcube",
    "bound",
    "execute",
    "failed_links",
    "geo_sites",
    "leaf_spine",
    "least_egress",
    "link_traffic",
    "links_between",
    "longest_chain",
    "node_traffic",
    "priority",
    "random_pauses",
    "region_traffic",
    "route",
    "routes",
    "simulate",
    "star",
    "tcp_efficiency",
    "transfer_bytes",
    "tree",
    "tree_loads",
    "tree_weights",
    "verify",
    "without",
]
