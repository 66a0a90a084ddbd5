"""The fluid simulator against SimGrid in its ideal setting, where it is installed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from slowlink.methods.exchange import PlanBuilder, Topology, load
from slowlink.testbed.network import Network, geo_sites, route, simulate, star

PYTHON = "/usr/bin/python3"
IDEAL = ["model:CM02", "crosstraffic:0", "TCP-gamma:0"]


def _installed() -> bool:
    try:
        found = subprocess.run([PYTHON, "-c", "import simgrid"], capture_output=True, timeout=60)
    except OSError:
        return False
    return found.returncode == 0


pytestmark = pytest.mark.skipif(
    not _installed(), reason=f"{PYTHON} has no module simgrid (Debian: python3-simgrid)"
)


def simgrid_ends(topology, transfers):
    """Arrival of each of ``transfers``: (source, destination, bytes, start, after)."""
    pairs = sorted({(src, dst) for src, dst, *_ in transfers if src != dst})
    rates = np.minimum(topology.link_rate, 1e15) / 8
    scene = dict(
        links=list(zip(rates.tolist(), topology.link_latency.tolist(), strict=True)),
        hosts=sorted({node for src, dst, *_ in transfers for node in (src, dst)}),
        routes=[(src, dst, route(topology, src, dst)) for src, dst in pairs],
        transfers=transfers,
    )
    command = [PYTHON, str(Path(__file__).parent / "simgrid_plan.py")]
    command += [f"--cfg=network/{option}" for option in IDEAL] + ["--log=root.thres:critical"]
    played = subprocess.run(
        command, input=json.dumps(scene), capture_output=True, text=True, timeout=120
    )
    assert played.returncode == 0, played.stderr
    return np.array(json.loads(played.stdout))


@pytest.mark.parametrize("exchange", ["parameter_server", "hips"])
@pytest.mark.parametrize("latency", [0.0, 0.01])
def test_exchanges(exchange, latency):
    # SimGrid favours flows of short round trips; only zero or equal latencies share as we do.
    topology = geo_sites([3, 5], lan_latency=latency, wan_latency=0.0)
    if exchange == "parameter_server" and latency:
        topology = star(7, 1e9, server_rate=3e8, latency=latency)
    plan = load(exchange)(topology)
    transfers = [
        (int(plan.src[t]), int(plan.dst[t]), 10_000_000, 0.0, plan.dependencies(t).tolist())
        for t in range(len(plan))
    ]
    result = simulate(plan, topology, 10_000_000)
    assert result.transfers["end_s"] == pytest.approx(simgrid_ends(topology, transfers), rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_random_flows_with_staggered_starts(seed):
    rng = np.random.default_rng(seed)
    hosts, switches = 8, 3
    ends = [(host, hosts + int(rng.integers(switches))) for host in range(hosts)]
    ends += [(hosts, hosts + 1), (hosts + 1, hosts + 2)]
    src, dst = np.array([pair for a, b in ends for pair in ((a, b), (b, a))]).T
    names = [f"n{i}" for i in range(hosts + switches)]
    rates = rng.uniform(1e8, 1e9, len(src))
    topology = Topology(names, range(hosts), [], src, dst, rates, np.zeros(len(src)))
    transfers = []
    for _ in range(40):
        a, b = rng.choice(hosts, 2, replace=False).tolist()
        transfers.append((a, b, int(rng.integers(1e6, 1e8)), float(rng.uniform(0, 1)), []))
    network = Network(topology)
    results = []
    for a, b, nbytes, start, _ in transfers:
        builder = PlanBuilder("flow", 1, ["s"])
        builder.add(a, b, "s", 0)
        results.append(network.start(builder.build([a], []), nbytes, at=start))
    while network.advance():
        pass
    ours = [result.completion_s for result in results]
    assert ours == pytest.approx(simgrid_ends(topology, transfers), rel=1e-6)
