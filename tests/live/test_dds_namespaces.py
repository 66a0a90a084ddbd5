"""Two hosts, each a network namespace with an address of its own, and the cable between them."""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True)


@pytest.fixture(scope="module")
def hosts():
    name = f"sl{os.getpid() % 10**6}"
    names = [f"{name}a", f"{name}b"]
    try:
        for host in names:
            made = ip("netns", "add", host)
            if made.returncode:
                pytest.skip(f"cannot make network namespaces here: {made.stderr.strip()}")
        ip("link", "add", names[0], "netns", names[0], "type", "veth", "peer", "name", names[1])
        moved = ip("link", "set", names[1], "netns", names[1])
        if moved.returncode:
            pytest.skip(f"cannot lay a cable between namespaces here: {moved.stderr.strip()}")
        for number, host in enumerate(names, 1):
            ip("-n", host, "address", "add", f"10.77.0.{number}/24", "dev", host)
            ip("-n", host, "link", "set", host, "up")
        yield names
    except FileNotFoundError:
        pytest.skip("cannot make network namespaces here: no ip command")
    finally:
        with contextlib.suppress(FileNotFoundError):
            for host in names:
                ip("netns", "delete", host)


@contextlib.contextmanager
def two(hosts, interfaces, peers, task):
    """A process on each host that runs ``dds_peers.<task>(domain, rank)`` and prints JSON."""
    domain = random.SystemRandom().randrange(1, 233)
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    code = f"import dds_peers, json; print(json.dumps(dds_peers.{task}({domain}, %d)), flush=True)"
    started = []
    try:
        for rank, (host, interface) in enumerate(zip(hosts, interfaces, strict=True)):
            started.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", host, sys.executable, "-c", code % rank],
                    env={
                        **os.environ,
                        "PYTHONPATH": paths,
                        "SLOWLINK_INTERFACE": interface,
                        "SLOWLINK_PEERS": peers,
                        "SLOWLINK_LEASE_S": "3",
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


def answers(started):
    return [json.loads(process.stdout.readlines()[-1]) for process in started]


@pytest.mark.parametrize(
    "interfaces, peers",
    [("names", ""), (("10.77.0.1", "10.77.0.2"), ""), ("names", "10.77.0.1,10.77.0.2")],
    ids=["interface", "address", "peers"],
)
def test_hosts_find_each_other(hosts, interfaces, peers):
    interfaces = hosts if interfaces == "names" else interfaces
    with two(hosts, interfaces, peers, "gather_between_hosts") as started:
        assert answers(started) == [True, True]


@pytest.mark.parametrize("heals", [True, False])
def test_partition(hosts, heals):
    with two(hosts, hosts, "", "talk") as started:
        for process in started:
            assert process.stdout.readline() == b"talking\n"
        ip("-n", hosts[0], "link", "set", hosts[0], "down")
        if heals:
            time.sleep(1.0)  # the lease is 3 s
            ip("-n", hosts[0], "link", "set", hosts[0], "up")
        first, second = answers(started)
        ip("-n", hosts[0], "link", "set", hosts[0], "up")
    if heals:
        assert first == second == []
    else:
        assert (first, second) == ([1], [0])  # who each of them misses
