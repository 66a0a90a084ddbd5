"""Hard lower bounds on an exchange's time, from the topology, the plan and sizes only.

No schedule beats them: a link that must carry so many bytes is busy for bytes over rate.
"""

from __future__ import annotations

import numpy as np

from slowlink.methods.exchange import Plan, Topology
from slowlink.testbed.network.counting import Sizes, plan_routes, spread, transfer_bytes
from slowlink.testbed.network.routing import Paths


def bound(
    plan: Plan, topology: Topology, sizes: Sizes, duplex: bool = True, paths: Paths = Paths()
) -> float:
    """Seconds below which ``plan`` cannot complete.

    Parameters
    ----------
    duplex: True for perfect pipelining on full-duplex links: the most loaded directed link. False
        for phases that nowhere overlap: the sum over phases of each one's most loaded link. Where a
        plan has no barrier between phases, that holds for sites of one size only.
    paths: as the plan will take them.
    """
    ptr, links = plan_routes(plan, topology, paths)
    nbytes = transfer_bytes(plan, sizes)
    phases = [np.ones(len(plan), dtype=bool)]
    if not duplex:
        phases = [plan.phase == phase for phase in np.unique(plan.phase)]
    loads = [spread(topology, ptr, links, np.where(phase, nbytes, 0.0)) for phase in phases]
    return float(sum((8 * load / topology.link_rate).max(initial=0.0) for load in loads))
