"""HiPS as real processes: whole runs, and runs in which nodes are killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slowlink.testbed.live.hips import launch, settings
from slowlink.testbed.live.hips.launch import Failed, Launched, run_all
from slowlink.testbed.live.identity import make
from slowlink.testbed.network import emulated
from slowlink.testbed.results import frame, read
from slowlink.testbed.training import trainer
from slowlink.testbed.training.device import FREE, Device
from slowlink.testbed.training.fetch import DataUnavailable, fetch

pytestmark = pytest.mark.slow

ENOUGH_S = 280
"""Far more than a run takes; where it hangs, the test fails by this."""


@pytest.fixture(scope="module", autouse=True)
def data():
    try:
        fetch("fashion_mnist")
    except DataUnavailable as error:
        pytest.skip(f"needs Fashion-MNIST: {error}")


def document(folder, workers, rounds, **changes):
    training = dict(
        exchange={"name": "hips", "overlap": False},
        levels=[
            {"up": {"name": "identity"}},
            {"up": {"name": "dgc", "ratio": 0.05, "lower_bound": 100, "parties": len(workers)}},
        ],
        synchronization={"name": "bsp"},
        model={"name": "lenet5", "hidden": [20, 16]},
        dataset="fashion_mnist",
        limit=400,
        test_limit=100,
        workers=workers,
        batch=8,
        lr=0.05,
        momentum=0.9,
        rounds=rounds,
        evaluate_every=20,
        seed=7,
        compute_s=0.0,
    )
    return dict(training=training, output=str(folder / "out")) | changes


def in_virtual_time(cluster, monkeypatch):
    """By metric and round, what the trainer gets for the same recipe."""
    device = Device(title="test", source="", flops=1e9, round_overhead_s=0.0, work=FREE)
    monkeypatch.setattr(trainer, "profile", lambda name: device)
    return curve(frame(trainer.train(cluster.training)))


def curve(table):
    table = table[table["metric"].isin(["test_accuracy", "test_loss"])]
    return {(row.metric, row.round): row.value for row in table.itertuples()}


def result(cluster):
    return curve(read([cluster.output / "rows.parquet"]))


def wait_for_round(cluster, node, number):
    """Until the latest snapshot of ``node`` is of this round or a later one."""
    prefix, end = node.replace("/", "-"), time.monotonic() + ENOUGH_S
    while time.monotonic() < end:
        rounds = [int(path.name.split(".")[-2]) for path in cluster.state.glob(f"{prefix}.*.pt")]
        if max(rounds, default=-1) >= number:
            return
        time.sleep(0.01)
    pytest.fail(f"{node} did not come to round {number}")


def wait_for_words(launched, node, words):
    end = time.monotonic() + ENOUGH_S
    while not re.search(words, launched.said(node)):
        assert time.monotonic() < end, f"{node} did not say {words!r}: {launched.said(node)}"
        time.sleep(0.02)


def test_killed_nodes_and_a_killed_site_come_back_and_change_nothing(tmp_path, monkeypatch):
    given = document(
        tmp_path, [2, 2], 60, on_loss="wait", rejoin_s=ENOUGH_S, state=str(tmp_path / "state")
    )
    cluster = settings.parse(given | dict(keys=str(tmp_path / "keys")))
    make(cluster.keys, cluster.everybody)
    with Launched(cluster) as launched:
        for number, *victims in (
            (3, "site1/worker0"),
            (15, "site2/server"),
            (27, "site1/server", "site1/scheduler", "site1/worker0", "site1/worker1"),
        ):
            wait_for_round(cluster, "central/server", number)
            launched.kill(*victims)
            for victim in victims:
                launched.start(victim)
        launched.wait(ENOUGH_S)
        assert "epoch 4, round" in launched.said("central/server")
    assert result(cluster) == in_virtual_time(cluster, monkeypatch)


@pytest.mark.parametrize(
    "workers, changes",
    [
        ([2], dict(exchange={"name": "parameter_server"}, levels=[{"up": {"name": "fp16"}}])),
        ([3, 3], {}),
    ],
    ids=["parameter server", "three workers a site"],
)
def test_other_shapes_of_the_same_code(tmp_path, monkeypatch, workers, changes):
    given = document(tmp_path, workers, 20)
    given["training"] |= changes
    cluster = settings.parse(given)
    run_all(cluster, ENOUGH_S)
    assert result(cluster) == in_virtual_time(cluster, monkeypatch)


def test_mixed_mode(tmp_path):
    given = document(tmp_path, [1, 1], 40)
    given["training"] |= dict(synchronization={"name": "mixed"}, optimizer_at="server")
    cluster = settings.parse(given)
    run_all(cluster, ENOUGH_S)
    assert {number for metric, number in result(cluster)} == {0, 20, 40}


def test_a_run_goes_on_without_a_lost_worker_and_takes_it_back(tmp_path):
    given = document(tmp_path, [2, 1], 2000, on_loss="continue", state=str(tmp_path / "state"))
    given["training"] |= dict(evaluate_every=2000, limit=100)
    cluster = settings.parse(given)
    with Launched(cluster) as launched:
        wait_for_round(cluster, "central/server", 3)
        launched.kill("site1/worker0")
        wait_for_words(launched, "central/server", r"epoch 2, .*site1/server', 'site1/worker1'\]")
        launched.start("site1/worker0")
        wait_for_words(launched, "central/server", r"epoch 3, .*'site1/worker0', 'site1/worker1'")
        launched.processes["site2/worker0"].send_signal(signal.SIGTERM)  # leaves, and so its site
        assert launched.processes["site2/worker0"].wait(ENOUGH_S) == 0
        wait_for_words(launched, "central/server", r"epoch 4, (?!.*site2)")


def test_a_late_worker_joins_a_run_that_began_without_it(tmp_path):
    given = document(tmp_path, [3, 3], 2000, on_loss="continue", late=["site2/worker2"])
    given["training"] |= dict(evaluate_every=2000)
    with Launched(settings.parse(given)) as launched:
        wait_for_words(launched, "central/server", r"epoch 1, (?!.*site2/worker2).*site2/worker1")
        assert "site2/worker2" not in launched.processes
        launched.start("site2/worker2")
        wait_for_words(launched, "central/server", r"epoch 2, round \d+: .*site2/worker2")
        wait_for_words(launched, "site2/worker2", r"epoch 2, round \d+: ")


def test_a_worker_that_is_stopped_ends_the_run_within_the_timeout(tmp_path):
    """Its connections stay open: only that it is silent tells."""
    timeout_s, margin_s = 2, 60
    given = document(tmp_path, [2], 100_000, heartbeat_timeout_s=timeout_s)
    victim, lost = "site1/worker0", "lost site1/worker0: silent for 2 s"
    with Launched(settings.parse(given)) as launched:
        wait_for_words(launched, victim, "epoch 1")
        end = time.monotonic() + timeout_s + margin_s
        launched.processes[victim].send_signal(signal.SIGSTOP)
        with pytest.raises(Failed, match=lost):
            launched.wait(timeout_s + margin_s)
        for name in set(launched.processes) - {victim}:
            assert launched.processes[name].wait(max(0, end - time.monotonic())) == 1
            assert lost in launched.said(name)
        assert launched.processes[victim].poll() is None


def test_a_worker_that_hangs_ends_the_run_though_its_transport_goes_on(tmp_path):
    """Its own thread opens a pipe that nobody reads, in place of a snapshot."""
    state = tmp_path / "state"
    given = document(tmp_path, [2], 100_000, heartbeat_timeout_s=2, state=str(state), stall_s=5)
    state.mkdir()
    os.mkfifo(state / ".site1-worker0.3.pt.part")
    with Launched(settings.parse(given)) as launched:
        with pytest.raises(Failed, match="lost site1/worker0: silent for 2 s"):
            launched.wait(ENOUGH_S)
        assert launched.processes["site1/worker0"].poll() is None


def test_nodes_may_be_slow_to_write_their_logs(tmp_path, monkeypatch):
    class Slow:
        """Starts nodes that have not come to their logs yet."""

        def start(self, name, argv, said, namespace):
            return subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE)

        def close(self):
            pass

    monkeypatch.setattr(launch, "ForkServer", lambda *_: Slow())
    with (
        Launched(settings.parse(document(tmp_path, [1], 1))) as launched,
        pytest.raises(Failed, match="not done in 0.2 s"),
    ):
        launched.wait(0.2)


def test_a_loss_stops_the_run_with_the_name(tmp_path):
    given = document(tmp_path, [1], 100_000, state=str(tmp_path / "state"))
    cluster = settings.parse(given)
    with Launched(cluster) as launched:
        wait_for_round(cluster, "central/server", 2)
        launched.kill("site1/server")
        with pytest.raises(Failed, match="lost site1/server: its process is gone"):
            launched.wait(ENOUGH_S)
        for name, process in launched.processes.items():
            assert process.wait(ENOUGH_S) == (-signal.SIGKILL if name == "site1/server" else 1)
            if name != "site1/server":
                assert "lost site1/server: its process is gone" in launched.said(name)
    assert not (cluster.output / "rows.parquet").exists()


@pytest.mark.skipif(bool(emulated.available()), reason=emulated.available())
def test_over_emulated_links_a_site_that_is_cut_off_comes_back(tmp_path, monkeypatch):
    given = document(
        tmp_path,
        [1, 1],
        60,
        on_loss="wait",
        rejoin_s=ENOUGH_S,
        state=str(tmp_path / "state"),
        network=dict(lan=1e9, wan=50e6),
        heartbeat_timeout_s=2,
    )
    cluster = settings.parse(given)
    with Launched(cluster) as launched:
        names = launched.links.topology.node_names
        cable = names.index("site2/switch"), names.index("core")
        wait_for_round(cluster, "central/server", 3)
        launched.links.cut(*cable)
        time.sleep(4)
        launched.links.mend(*cable)
        launched.wait(ENOUGH_S)
        assert "epoch 2, round" in launched.said("central/server")
    assert result(cluster) == in_virtual_time(cluster, monkeypatch)


@pytest.mark.skipif(bool(emulated.available()), reason=emulated.available())
def test_links_are_measured_before_the_run(tmp_path):
    cluster = settings.parse(document(tmp_path, [1], 1, network=dict(lan=1e9, wan=50e6)))
    names = trainer.topology(cluster.training.workers, cluster.network).node_names
    pair = names.index("site1/server"), names.index("central/server")
    (one,) = run_all(cluster, ENOUGH_S, pairs=[pair], measured_s=0.1)
    assert (one.src, one.dst) == pair and one.expected == pytest.approx(50e6, rel=0.1)
    assert one.rate > 0 and one.rtt_s > 0


def test_the_command_ends_with_0_where_the_run_does(tmp_path):
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(document(tmp_path, [1], 2)))
    argv = [sys.executable, "-m", "slowlink.testbed.live.hips", str(file)]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=ENOUGH_S)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert {number for _, number in result(settings.read(file))} == {0, 2}


@pytest.mark.parametrize(
    "number, status, network",
    [
        (signal.SIGINT, 130, None),
        (signal.SIGKILL, -signal.SIGKILL, None),
        (signal.SIGINT, 130, dict(lan=1e9, wan=50e6)),
    ],
    ids=["interrupted", "killed", "interrupted with links"],
)
def test_nothing_outlives_the_command(tmp_path, number, status, network):
    if network and emulated.available():
        pytest.skip(emulated.available())
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(document(tmp_path, [1], 100_000, network=network)))
    argv = [sys.executable, "-m", "slowlink.testbed.live.hips", str(file)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout.readline().startswith("7 nodes started")
        begun = time.monotonic()
        while "site1/worker0" not in (names := descendants(command.pid)).values():
            assert time.monotonic() < begun + ENOUGH_S, names
            time.sleep(0.02)
        command.send_signal(number)
        assert command.wait(ENOUGH_S) == status
    assert len(names) == 8 + bool(network)  # the fork server; the holder of namespaces
    while left := [pid for pid in names if runs(pid)]:
        assert time.monotonic() < begun + ENOUGH_S, [names[pid] for pid in left]
        time.sleep(0.05)


def descendants(pid) -> dict[int, str]:
    """Names of processes that this one has started, and those, by number."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found |= {int(child): Path(f"/proc/{child}/comm").read_text().strip()}
        found |= descendants(child)
    return found


def runs(pid) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_nodes_share_no_sockets(tmp_path):
    with Launched(settings.parse(document(tmp_path, [1], 100_000))) as launched:
        for name in launched.cluster.nodes:
            wait_for_words(launched, name, "epoch 1")
        numbers = [process.pid for process in launched.processes.values()]
        held = [handles(pid) for pid in (*numbers, launched._fork_server.process.pid)]
    assert all(held)
    assert len(set().union(*held)) == sum(map(len, held))


def handles(pid) -> set[str]:
    """Sockets and pipes that a process has open."""
    found = {os.readlink(at) for at in Path(f"/proc/{pid}/fd").iterdir()}
    return {name for name in found if name.startswith(("socket:", "pipe:"))}
