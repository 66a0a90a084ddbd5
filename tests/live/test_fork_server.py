"""The process that starts nodes: its children are as if they had been started afresh."""

import ast
import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from slowlink.testbed.live import fork_server as fork_server_module
from slowlink.testbed.live.engine import launch
from slowlink.testbed.live.fork_server import ForkServer
from tests.live.waiting import until

pytestmark = pytest.mark.slow


MAIN = f"{launch.PACKAGE}.__main__"


@pytest.fixture(scope="module")
def fork_server():
    with contextlib.closing(ForkServer()) as its:
        yield its


def test_output_and_status_are_those_of_the_command(fork_server, tmp_path):
    said = tmp_path / "said"
    assert fork_server.start("a", MAIN, ["--help"], said).wait(math.inf) == 0
    assert fork_server.start("b", MAIN, [str(tmp_path / "none.yaml")], said).wait(60) == 2
    text = said.read_text()
    assert text.startswith(f"usage: python -m {launch.PACKAGE}")
    assert "No such file or directory" in text.splitlines()[-1]


def test_the_fork_server_has_one_thread_and_children_one_by_one_end(fork_server, tmp_path):
    waits = waiting(tmp_path)
    options = dict(said=tmp_path / "said", warm=["torch._dynamo"])
    both = [fork_server.start(f"site1/w{i}", MAIN, [str(waits)], **options) for i in range(2)]
    assert len(list(Path(f"/proc/{fork_server.pid}/task").iterdir())) == 1
    assert len({child.pid for child in both} | {fork_server.pid}) == 3
    both[0].kill()
    assert both[0].wait(60) == both[0].poll() == -signal.SIGKILL
    both[0].kill()  # nothing more
    assert both[1].poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        both[1].wait(0.05)
    both[1].send_signal(signal.SIGTERM)
    assert both[1].wait(60) == -signal.SIGTERM


def test_a_network_that_is_not_there(fork_server, tmp_path):
    said = tmp_path / "said"
    missing = [str(tmp_path / "none")]
    assert fork_server.start("a", MAIN, ["--help"], said, namespaces=missing).wait(60) == 1
    assert "FileNotFoundError" in said.read_text()


def test_children_find_what_the_launcher_does_now(tmp_path, monkeypatch):
    (tmp_path / "asked.py").write_text(
        "import os, sys\n"
        "def main(argv):\n"
        "    names = os.environ.get('OLD'), os.environ['ADDED'], len(os.environ['NEW'])\n"
        "    print(*argv, *names, sys.path[0], os.getcwd())\n"
        "    return 3\n"
    )
    monkeypatch.setenv("OLD", "old")
    said = tmp_path / "said"
    with contextlib.closing(ForkServer()) as fork_server:
        monkeypatch.delenv("OLD")
        monkeypatch.setenv("NEW", "n" * 100_000)  # more than is read at a time
        assert fork_server.start("a", MAIN, ["--help"], said).wait(60) == 0
        said.unlink()
        monkeypatch.chdir(tmp_path)
        # The fork server does not find the module; its child does.
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.syspath_prepend("elsewhere")
        added = {"ADDED": "added"}
        assert fork_server.start("a", "asked", ["x", "y"], said, environment=added).wait(60) == 3
        assert fork_server.start("a", "missing", [], said).wait(60) == 1
    first, *_, last = said.read_text().splitlines()
    assert first == f"x y None added 100000 elsewhere {tmp_path}"
    assert last == "ModuleNotFoundError: No module named 'missing'"


def test_threads_are_what_the_environment_says(fork_server, tmp_path, monkeypatch):
    """OpenMP has read the variable before the fork, when torch was imported."""
    (tmp_path / "counted.py").write_text(
        "import torch\ndef main(argv):\n    print(torch.get_num_threads())\n    return 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for threads in "12":
        options = dict(environment={"OMP_NUM_THREADS": threads}, warm=["torch"])
        child = fork_server.start("a", "counted", [], tmp_path / "said", **options)
        assert child.wait(60) == 0
    assert (tmp_path / "said").read_text() == "1\n2\n"


def test_a_fork_of_this_process_serves_as_well(tmp_path):
    """A test's own process has many threads, so that another one makes the fork."""
    (tmp_path / "launcher.py").write_text(
        "from slowlink.testbed.live import fork_server\n"
        "from slowlink.testbed.live.processes import run_ranks\n"
        "import warm\n"
        "with fork_server.forked():\n"
        "    print(run_ranks(warm.place, 2, timeout_s=60, warm=()))\n"
    )
    (tmp_path / "warm.py").write_text(
        "import os\nimported = os.getpid()\ndef place(rank, tell):\n    return imported, rank\n"
    )
    command = [sys.executable, str(tmp_path / "launcher.py")]
    options = dict(env=fork_server_module.environment(), text=True, check=True)
    said = subprocess.run(command, stdout=subprocess.PIPE, **options).stdout
    (here, first), (there, second) = ast.literal_eval(said)
    assert here == there and (first, second) == (0, 1)


def test_a_process_has_one_fork_server_and_another_when_that_has_died(monkeypatch):
    monkeypatch.setattr(fork_server_module, "_SHARED", {})
    first = fork_server_module.shared()
    try:
        assert fork_server_module.shared() is first
        os.kill(first.pid, signal.SIGKILL)
        until(lambda: not first.alive)
        second = fork_server_module.shared()
        second.close()
        assert second is not first
    finally:
        first.close()


@pytest.mark.timeout(30)
def test_a_launcher_that_dies_in_mid_request_ends_the_fork_server():
    launcher, line = socket.socketpair()
    launcher.sendall(b'{"name": "ha')
    launcher.close()
    assert fork_server_module._serve(line) is None


def test_a_dead_fork_server_is_named(tmp_path):
    waits = waiting(tmp_path)
    with contextlib.closing(ForkServer()) as fork_server:
        child = fork_server.start("a", MAIN, [str(waits)], tmp_path / "said")
        os.kill(fork_server.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="cannot start b: .* has died"):
            fork_server.start("b", MAIN, ["--help"], tmp_path / "said")
        assert child.poll() is None
        child.kill()
        assert child.wait(60) == -signal.SIGKILL


def waiting(folder) -> Path:
    """A configuration that is never read to its end."""
    fifo = folder / "run.json"
    os.mkfifo(fifo)
    return fifo


def test_last_words_need_no_file(fork_server):
    say = f"from {fork_server_module.__name__} import tell; tell('why')"
    child = fork_server.start("a", "timeit", ["-n1", "-r1", say])
    assert child.wait(60) == 0 and child.told() == "why" and child.told() == ""
