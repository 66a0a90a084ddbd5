"""Controller and clients on two hosts, each a network namespace with an address of its own."""

import subprocess
import sys
from contextlib import ExitStack

import dds_domains
import pytest
import torch
from federated_peers import write_images
from test_dds_namespaces import ADDRESSES, hosts  # noqa: F401

from slowlink.testbed.live import identity
from slowlink.testbed.live.dds.federated import checkpoint, simulate
from slowlink.testbed.live.dds.federated.controller import read_log
from slowlink.testbed.live.dds.federated.live import SHARED
from slowlink.testbed.live.dds.federated.settings import (
    ClientSettings,
    ControllerSettings,
    Data,
    Task,
)
from slowlink.testbed.training.recipe import Part

pytestmark = pytest.mark.slow


def sent_bytes(hosts, host):  # noqa: F811
    """What has left a host by its card."""
    argv = hosts.command(host, ["cat", "/proc/net/dev"])
    lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    (line,) = (line for line in lines if line.strip().startswith(f"{hosts.card(host)}:"))
    return int(line.split(":")[1].split()[8])


def test_between_hosts_is_what_is_simulated(hosts, tmp_path):  # noqa: F811
    """And one datagram carries a part of the model to all clients on the other host."""
    write_images(tmp_path / "images")
    identity.make(tmp_path / "keys", ["controller", "client-0", "client-1", "client-2"])
    task = Task(
        model=Part(name="lenet5"),
        data=Data(name="mnist", directory=tmp_path / "images"),
        clients=3,
        batch=16,
        codec=Part(name="sparse_int8"),
    )
    settings = ControllerSettings(
        task=task,
        domain=dds_domains.fresh(),
        run="between hosts",
        keys=tmp_path / "keys",
        interface=ADDRESSES[0],
        rounds=8,
        lr=0.05,
        min_clients=3,
        state=tmp_path / "state",
        log=tmp_path / "log",
    )
    shared = {name: getattr(settings, name) for name in SHARED} | {"interface": ADDRESSES[1]}
    before = sent_bytes(hosts, 0)
    with ExitStack() as stack:

        def start(host, role, its, name):
            file = tmp_path / f"{name}.json"
            file.write_text(its.model_dump_json())
            argv = [sys.executable, "-m", "slowlink.testbed.live.dds.federated", role, str(file)]
            running = stack.enter_context(subprocess.Popen(hosts.command(host, argv)))
            stack.callback(running.kill)
            return running

        running = [start(0, "controller", settings, "controller")]
        for client in range(task.clients):
            its = ClientSettings(client=client, **shared)
            running.append(start(1, "client", its, f"client {client}"))
        assert [one.wait(120) for one in running] == [0] * 4
    # The first and the last model go out once a client, the others once; some may go out again.
    model, said = 4 * task.values, sent_bytes(hosts, 0) - before
    once, each = 2 * 3 + 7, 2 * 3 + 7 * 3
    assert once < said / model < (once + each) / 2
    expected, simulated = simulate(settings)
    assert torch.equal(checkpoint.load(settings.state, task)[1], simulated)
    assert [r.accuracy for r in read_log(settings.log)] == [r.accuracy for r in expected]
