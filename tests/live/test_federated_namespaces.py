"""Controller and clients on two hosts, each a network namespace with an address of its own."""

import random
import sys
from contextlib import ExitStack
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from federated_peers import process, write_images  # noqa: E402
from test_dds_namespaces import hosts  # noqa: E402, F401

from testbed.live.dds.federated import simulate, store
from testbed.live.dds.federated.controller import read_log
from testbed.live.dds.federated.live import SHARED
from testbed.live.dds.federated.settings import ClientSettings, ControllerSettings, Data, Task
from testbed.training.recipe import Part


def test_between_hosts_is_what_is_simulated(hosts, tmp_path):  # noqa: F811
    write_images(tmp_path / "images")
    task = Task(
        model=Part(name="lenet5", hidden=[20, 10]),
        data=Data(name="mnist", directory=tmp_path / "images"),
        clients=2,
        batch=16,
        codec=Part(name="sparse_int8"),
    )
    settings = ControllerSettings(
        task=task,
        domain=random.SystemRandom().randrange(1, 233),
        run="between hosts",
        interface="10.77.0.1",
        rounds=3,
        lr=0.05,
        min_clients=2,
        state=tmp_path / "state",
        log=tmp_path / "log",
    )
    shared = {name: getattr(settings, name) for name in SHARED} | {"interface": "10.77.0.2"}
    with ExitStack() as stack:
        running = [stack.enter_context(process(settings, tmp_path, namespace=hosts[0]))]
        for client in range(task.clients):
            its = ClientSettings(client=client, **shared)
            running.append(stack.enter_context(process(its, tmp_path, namespace=hosts[1])))
        assert [one.wait(60) for one in running] == [0, 0, 0]
    expected, simulated = simulate(settings)
    assert torch.equal(store.load(settings.state, task)[1], simulated)
    assert [r.accuracy for r in read_log(settings.log)] == [r.accuracy for r in expected]
