"""What plans run on: topologies, exact execution, the fluid simulator, counts and bounds."""

from __future__ import annotations

from testbed.network.bounds import bound
from testbed.network.counting import (
    Traffic,
    link_traffic,
    longest_chain,
    node_traffic,
    region_traffic,
    transfer_bytes,
)
from testbed.network.execution import execute, verify
from testbed.network.faults import Faults
from testbed.network.fluid import Network, Result, simulate, tcp_efficiency
from testbed.network.routing import route, routes
from testbed.network.topology import geo_sites, star

__all__ = [
    "Faults",
    "Network",
    "Result",
    "Traffic",
    "bound",
    "execute",
    "geo_sites",
    "link_traffic",
    "longest_chain",
    "node_traffic",
    "region_traffic",
    "route",
    "routes",
    "simulate",
    "star",
    "tcp_efficiency",
    "transfer_bytes",
    "verify",
]
