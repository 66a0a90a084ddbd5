"""Policies drive real processes, Ray actors; skipped where Ray is not installed."""

import dataclasses
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from slowlink.methods import synchronization
from slowlink.methods.synchronization import Finished, Left
from slowlink.testbed.live.actors import run
from slowlink.testbed.live.replay import Record, again, summary
from slowlink.testbed.training.datasets import Dataset, channel_statistics
from slowlink.testbed.training.learner import Diverged

pytestmark = pytest.mark.slow

pytest.importorskip("ray", reason="workers as Ray actors: python .ci/install.py ray")

load = synchronization.load


@pytest.fixture(scope="module")
def blobs():
    """Ten classes of grey images, each around a pattern of its own."""
    generator = torch.Generator().manual_seed(3)
    patterns = torch.randint(0, 200, (10, 1, 8, 8), generator=generator)

    def draw(n):
        labels = torch.arange(n) % 10
        noise = torch.randint(-60, 60, (n, 1, 8, 8), generator=generator)
        return (patterns[labels] + noise).clamp(0, 255).to(torch.uint8), labels

    (train_x, train_y), (test_x, test_y) = draw(1200), draw(300)
    moments = channel_statistics(train_x)
    return Dataset("blobs", train_x, train_y, test_x, test_y, 10, (1, 8, 8), *moments)


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10))


class Killing(type(load("lpsp"))):
    """LPSP; when worker 0 has done 10 iterations it kills another, and notes who is running."""

    def on(self, event):
        if isinstance(event, Finished) and (event.worker, event.iteration) == (0, 10):
            self.seen = [(pid, started) for pid, started, _ in below(os.getpid())]
            workers = [p for p, _, name in below(os.getpid()) if name.startswith("ray::Worker")]
            os.kill(workers[-1], signal.SIGKILL)
        return super().on(event)


def below(ancestor):
    """(pid, start time, command) of all descendants of a process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            name = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        found[int(path.name)] = int(fields[1]), fields[19], fields[0], name
    ancestors, size = {ancestor}, 0
    while len(ancestors) > size:
        size = len(ancestors)
        ancestors |= {pid for pid, (parent, *_) in found.items() if parent in ancestors}
    return [(p, found[p][1], found[p][3]) for p in ancestors - {ancestor} if p in found]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
def test_a_worker_that_is_killed_leaves_and_nothing_stays_behind(blobs):
    """On a Ray of its own: ``run`` starts it and ends it."""
    before = below(os.getpid())
    policy = Killing()
    options = dict(slow=[10.0, 14.0, 20.0], lr=0.02, batch=200, iterations=60)
    record = run(policy, network(), blobs, **options)
    (left,) = [told.event for told in record.told if isinstance(told.event, Left)]
    after = {t.event.worker for t in record.told if isinstance(t.event, Finished) and t.t > left.t}
    assert after == {0, 1, 2} - {left.worker}
    assert sum(map(len, record.iterations)) >= 60
    assert again(dataclasses.replace(record, policy="lpsp")).told == record.told
    started = [p for p in policy.seen if p not in [(pid, since) for pid, since, _ in before]]
    until = time.monotonic() + 10
    while (alive := [p for p in started if running(*p)]) and time.monotonic() < until:
        time.sleep(0.1)
    assert len(started) > 4 and not alive


def running(pid, started):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[19] == started and fields[0] != "Z"


@pytest.fixture(scope="module")
def cluster():
    """The address of two nodes on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args=dict(num_cpus=2))
    nodes.add_node(num_cpus=2)
    yield nodes.address
    nodes.shutdown()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("lpsp", {}),
        ("ssp", dict(local_iterations=3, staleness=1)),
    ],
)
def test_policies_train_and_their_runs_replay(cluster, blobs, tmp_path, name, parameters):
    model = network()
    before = loss_of(model, blobs)
    record = run(
        load(name, **parameters),
        model,
        blobs,
        slow=[4.0, 6.0, 10.0],
        lr=0.02,
        momentum=0.5,
        batch=50,
        iterations=240,
        address=cluster,
    )
    assert loss_of(model, blobs) < before / 4 and record.accuracy > 90
    record.save(tmp_path / "run.json")
    log = again(Record.load(tmp_path / "run.json"))
    assert log.told == record.told
    assert sum(log.iterations) >= 240
    assert log.iterations[0] >= log.iterations[2]
    told = summary(record)
    assert told["iterations_per_s"] == pytest.approx(sum(log.iterations) / record.end)
    assert 0 < told["waited_share"] < 1 and told["accuracy"] == record.accuracy


def loss_of(model, data):
    with torch.no_grad():
        scores = model(data.prepare(data.test_x))
        return float(nn.functional.cross_entropy(scores, data.test_y))


def test_an_error_of_a_worker_names_it_and_ends_the_run(cluster, blobs):
    with pytest.raises(Diverged, match="loss is nan; lower lr") as raised:
        options = dict(slow=[1], lr=1e30, batch=10, iterations=10**6)
        run(load("asp"), network(), blobs, **options, address=cluster)
    assert "raised by worker 0" in raised.value.__notes__


def test_a_cluster_too_small_is_refused(cluster, blobs):
    options = dict(slow=[1] * 5, lr=0.1, batch=10, iterations=1)
    with pytest.raises(ValueError, match="5 workers need as many processors; Ray has 4"):
        run(load("asp"), network(), blobs, **options, address=cluster)
