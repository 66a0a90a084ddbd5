"""Ray places the members of a live run, and starts others; skipped where Ray is not installed."""

import os
import signal
from pathlib import Path

import pytest
import torch

from slowlink.methods.synchronization import Left
from slowlink.testbed.live.engine import on_ray, settings
from slowlink.testbed.live.engine.coordinator import Failed
from slowlink.testbed.live.replay import Record, again, replayed, summary
from tests.live import own_training
from tests.live.run_documents import document, functions, part
from tests.live.waiting import all_end, descendants

pytestmark = pytest.mark.slow

pytest.importorskip("ray", reason="workers that Ray places: python .ci/install.py ray")

OWN = functions(own_training, model="make_model", data="named_batches", optimizer="make_optimizer")
OWN |= functions(own_training, evaluate="accuracy") | {"loss": "torch.nn.functional:cross_entropy"}


@pytest.fixture(scope="module", autouse=True)
def data(tmp_path_factory):
    """A file of data for each site, which processes find by their environment."""
    folder = tmp_path_factory.mktemp("data")
    for number, site in enumerate(("site1", "site2")):
        torch.save(own_training.drawn(number), folder / f"{site}.pt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OWN_TRAINING", str(folder))
        patch.setattr(own_training, "FOLDER", folder)
        yield


@pytest.fixture(scope="module")
def cluster(data):
    """Ray on two nodes of this machine."""
    on_ray.prepare(None)
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args=dict(num_cpus=2))
    nodes.add_node(num_cpus=2)
    with on_ray.cluster(nodes.address, 4) as ray:
        yield ray
    nodes.shutdown()


def described(folder, policy, workers=(2, 1), rounds=60, **changes):
    training = dict(synchronization=part(policy), workers=workers, rounds=rounds)
    limits = dict(silence_s=3)
    its = document(folder, OWN, training | dict(evaluate_every=4), limits=limits, **changes)
    return settings.parse(its)


def signalled(number):
    """Send the worker of site2 a signal."""
    os.kill(int((own_training.FOLDER / "site2-0.pid").read_text()), number)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
def test_a_worker_that_is_killed_leaves_and_nothing_stays_behind(tmp_path):
    """On a Ray of its own, which starts and ends with the run."""
    before, seen, said = descendants(os.getpid()), {}, []
    # The run lasts longer than it takes to see that a process is gone.
    given = described(tmp_path, "lpsp", on_loss="continue", iteration_s=[[0.06]] * 3)
    with on_ray.cluster(None, 3) as ray, on_ray.Placed(given, ray) as placed:

        def act(line):
            said.append(line)
            # A meeting may bring several rounds, so that none ends with the fourth.
            if not seen and line.startswith("round ") and not line.startswith("round 0 "):
                seen.update(descendants(os.getpid()))
                signalled(signal.SIGKILL)

        ended = placed.run(act)
    (left,) = [told.event for told in ended.record.told if isinstance(told.event, Left)]
    assert left.worker == 2 and replayed(ended.record) == 100
    assert any("goes on without site2/worker0: its process is gone" in line for line in said)
    started = seen.keys() - before
    assert len(started) > 4
    all_end(started, 10)


def test_policies_train_and_their_runs_replay(cluster, tmp_path):
    given = described(tmp_path, "lpsp", workers=(1, 1), rounds=80)
    with on_ray.Placed(given, cluster) as placed:
        ended = placed.run()
    scores = [row.value for row in ended.rows if row.metric == "accuracy"]
    assert len(scores) > 10 and scores[-1] > 0.7 > scores[0]
    ended.record.save(tmp_path / "run.json")
    log = again(Record.load(tmp_path / "run.json"))
    assert log.told == ended.record.told and sum(log.iterations) >= 160
    told = summary(ended.record)
    assert told["iterations_per_s"] == pytest.approx(sum(log.iterations) / ended.record.end)
    assert 0 < told["waited_share"] < 1


class Enough(Exception):
    pass


def test_ray_starts_another_where_a_worker_hangs(cluster, tmp_path):
    paced = dict(workers=(1, 1), iteration_s=[[0.1]] * 2)  # so that the others leave it a processor
    given = described(tmp_path, "asp", rounds=10**6, on_loss="replace", **paced)
    said = []

    def act(line):
        said.append(line)
        if line.startswith("round 4 "):
            signalled(signal.SIGSTOP)
        if line == "goes on with site2/worker0 again":
            raise Enough

    with on_ray.Placed(given, cluster) as placed, pytest.raises(Enough):
        placed.run(act)
    assert any(line.startswith("goes on without site2/worker0: silent for") for line in said)


def test_a_member_that_cannot_begin_is_named_with_its_reason(cluster, tmp_path):
    given = described(tmp_path, "asp", workers=(1,), own=dict(data="nowhere.py:batches"))
    with (
        on_ray.Placed(given, cluster) as placed,
        pytest.raises(Failed, match="site1/worker0.* nowhere.py cannot be imported"),
    ):
        placed.run()


def test_a_cluster_too_small_is_refused(cluster, tmp_path):
    given = described(tmp_path, "asp", workers=(3, 2))
    with pytest.raises(ValueError, match="5 workers need as many processors; Ray has 4"):
        on_ray.run_all(given)
