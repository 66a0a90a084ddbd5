"""Two hosts, each a network namespace with an address of its own, and cables to one switch."""

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slowlink.testbed.live import identity
from slowlink.testbed.live.dds.domain import draw
from slowlink.testbed.network import star

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ADDRESSES = "10.77.0.1", "10.77.0.2"


@pytest.fixture(scope="module")
def hosts(shaped):
    """Links whose nodes 0 and 1 are the hosts; they carry what the machine can."""
    with shaped(star(2, math.inf)) as links:
        assert tuple(links.address(host) for host in range(2)) == ADDRESSES
        yield links


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Identities, which processes on several hosts need."""
    folder = tmp_path_factory.mktemp("keys")
    identity.make(folder, ["rank-0", "rank-1"])
    return folder


@contextlib.contextmanager
def two(hosts, interfaces, peers, task, keys):
    """A process on each host that runs ``dds_peers.<task>(domain, rank)`` and prints JSON."""
    domain = draw()
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    code = f"import dds_peers, json; print(json.dumps(dds_peers.{task}({domain}, %d)), flush=True)"
    started = []
    try:
        for host, interface in enumerate(interfaces):
            started.append(
                subprocess.Popen(
                    hosts.command(host, [sys.executable, "-c", code % host]),
                    env={
                        **os.environ,
                        "PYTHONPATH": paths,
                        "SLOWLINK_INTERFACE": interface,
                        "SLOWLINK_PEERS": peers,
                        "SLOWLINK_LEASE_S": "3",
                        "SLOWLINK_KEYS": str(keys),
                    },
                    stdout=subprocess.PIPE,
                )
            )
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()
            process.stdout.close()


def cards(hosts):
    return [hosts.card(host) for host in range(2)]


def answers(started):
    return [json.loads(process.stdout.readlines()[-1]) for process in started]


@pytest.mark.parametrize(
    "interfaces, peers",
    [("names", ""), (ADDRESSES, ""), ("names", ",".join(ADDRESSES))],
    ids=["interface", "address", "peers"],
)
def test_hosts_find_each_other(hosts, keys, interfaces, peers):
    interfaces = cards(hosts) if interfaces == "names" else interfaces
    with two(hosts, interfaces, peers, "gather_between_hosts", keys) as started:
        assert answers(started) == [True, True]


@pytest.mark.parametrize("heals", [True, False])
def test_partition(hosts, keys, heals):
    cable = 0, hosts.topology.node_names.index("switch")
    with two(hosts, cards(hosts), "", "talk", keys) as started:
        for process in started:
            assert process.stdout.readline() == b"talking\n"
        hosts.cut(*cable)
        try:
            if heals:
                time.sleep(1.0)  # the lease is 3 s
                hosts.mend(*cable)
            first, second = answers(started)
        finally:
            hosts.mend(*cable)
    if heals:
        assert first == second == []
    else:
        assert (first, second) == ([1], [0])  # who each of them misses
