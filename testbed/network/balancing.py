"""How much of the vector each tree of an exchange should carry, where the network is uneven.

Trees that share the vector evenly finish together on a symmetric network. Where a rack has slower
uplinks, a cable is missing or racks differ in size, the loads that they put on the slowest links
decide; RAT leaves their weighting to future work (section 3.2). It is a linear program.

The weights are best for the bound, which pipelining in enough chunks approaches. Without chunks a
tree's broadcast waits for its reduction: where a slow rack only reduces over its uplinks, and then
only receives, weights for the pipelined bound can be slower than even ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slowlink.methods.exchange import Plan, Topology
from slowlink.testbed.network.counting import plan_routes
from slowlink.testbed.network.routing import Paths

if TYPE_CHECKING:  # SciPy is slow to import, and few processes balance anything
    from scipy import sparse

SLACK = 1e-9
"""The share of the optimum by which the evenest shares may miss it: solvers round."""
ROUNDING = 1e-6
"""The share by which they do; where it is more, the solver's own shares are better."""


def tree_loads(plan: Plan, topology: Topology, paths: Paths = Paths()) -> sparse.csr_array:
    """Times that each unit of the vector crosses each directed link, (n_links, units).

    In a plan with a unit for each tree, column ``t`` is what tree ``t`` puts on the links, in bytes
    for each byte that the tree carries.
    """
    return _loads(plan, topology, paths, np.zeros(len(plan), dtype=np.int64), 1)


def tree_weights(plan: Plan, topology: Topology, paths: Paths = Paths()) -> np.ndarray:
    """Shares of the vector that minimise what :func:`.bounds.bound` gives, (units,), of sum 1.

    That is the time of the most loaded link or, if the plan's phases do not overlap, the sum over
    phases of each one's most loaded link. Of all shares that keep to the best times, the nearest
    to even ones by least squares, so that no tree idles without need.

    Parameters
    ----------
    plan: the exchange with even shares, one unit a tree.
    paths: as the weighted plan will take them. Where they are ``balanced`` and a tree is left with
        nothing, its pairs no longer take their turns, so that a few others may move.

    Raises
    ------
    RuntimeError
        The linear program's solver gave up.
    """
    n, phase = plan.units, np.zeros(len(plan), dtype=np.int64)
    even = np.full(n, 1 / n)
    if not plan.overlap:
        phase = np.unique(plan.phase, return_inverse=True)[1]
    n_phases = phase.max(initial=0) + 1
    loads = _loads(plan, topology, paths, phase, n_phases)
    rate = np.tile(topology.link_rate, n_phases)
    used = np.flatnonzero((loads.sum(axis=1) > 0) & np.isfinite(rate))
    if not len(used):
        return even
    seconds = loads[used].toarray() / rate[used, None]
    seconds /= seconds.max()
    # Variables: the shares, and for each phase the time of its most loaded link.
    in_phase = np.eye(n_phases)[used // topology.n_links]
    from scipy.optimize import linprog

    solution = linprog(
        np.append(np.zeros(n), np.ones(n_phases)),
        A_ub=np.column_stack([seconds, -in_phase]),
        b_ub=np.zeros(len(used)),
        A_eq=np.append(np.ones(n), np.zeros(n_phases))[None],
        b_eq=[1.0],
    )
    if not solution.success:
        raise RuntimeError(f"{plan.name}: no tree weights: {solution.message}")
    of_even = (in_phase * (seconds @ even)[:, None]).max(axis=0).sum()
    if of_even <= solution.fun * (1 + SLACK):
        return even
    most = in_phase @ solution.x[n:]
    shares = _evenest(seconds, most * (1 + SLACK))
    if (seconds @ shares <= most * (1 + ROUNDING)).all():
        return shares
    shares = np.maximum(solution.x[:n], 0.0)  # the program is too ill-conditioned to even out
    return shares / shares.sum()


def _loads(
    plan: Plan, topology: Topology, paths: Paths, phase: np.ndarray, n_phases: int
) -> sparse.csr_array:
    """:func:`tree_loads` with the links once for each phase, (n_phases * n_links, units)."""
    ptr, links = plan_routes(plan, topology, paths)
    rows = np.repeat(phase * topology.n_links, np.diff(ptr)) + links
    first, count = (np.repeat(column, np.diff(ptr)) for column in (plan.lo, plan.hi - plan.lo))
    ends = np.cumsum(count, dtype=np.int64)
    units = np.repeat(first - ends + count, count) + np.arange(ends[-1] if len(ends) else 0)
    crossings = np.ones(len(units)), (np.repeat(rows, count), units)
    shape = n_phases * topology.n_links, plan.units
    from scipy import sparse

    return sparse.coo_array(crossings, shape=shape).tocsr()


def _evenest(seconds: np.ndarray, most: np.ndarray) -> np.ndarray:
    """The shares ``w >= 0`` of sum 1 with ``seconds @ w <= most`` that are nearest to even ones.

    As a deviation ``x`` from even, the least one with ``G x >= h``: a least-distance program,
    solved as non-negative least squares (Lawson and Hanson, 1974, chapter 23).
    """
    n = seconds.shape[1]
    G = np.concatenate([-seconds, np.eye(n)])
    h = np.concatenate([seconds.mean(axis=1) - most, np.full(n, -1 / n)])
    G -= G.mean(axis=1, keepdims=True)  # the deviations must sum to 0
    E, f = np.vstack([G.T, h]), np.append(np.zeros(n), 1.0)
    from scipy.optimize import nnls

    residual = E @ nnls(E, f)[0] - f
    shares = np.maximum(1 / n - residual[:n] / residual[n], 0.0)
    return shares / shares.sum()
