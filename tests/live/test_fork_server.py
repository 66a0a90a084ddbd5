"""The process that starts nodes: its children are as if they had been started afresh."""

import contextlib
import math
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from slowlink.testbed.live import fork_server as fork_server_module
from slowlink.testbed.live.engine import launch
from slowlink.testbed.live.fork_server import ForkServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fork_server():
    with contextlib.closing(launch.fork_server()) as its:
        yield its


def test_output_and_status_are_those_of_the_command(fork_server, tmp_path):
    said = tmp_path / "said"
    assert fork_server.start("a", ["--help"], said).wait(math.inf) == 0
    assert fork_server.start("b", [str(tmp_path / "none.yaml")], said).wait(60) == 2
    text = said.read_text()
    assert text.startswith(f"usage: python -m {launch.PACKAGE}")
    assert "No such file or directory" in text.splitlines()[-1]


def test_the_fork_server_has_one_thread_and_children_one_by_one_end(fork_server, tmp_path):
    waits = waiting(tmp_path)
    both = [fork_server.start(f"site1/w{i}", [str(waits)], tmp_path / "said") for i in range(2)]
    assert len(list(Path(f"/proc/{fork_server.process.pid}/task").iterdir())) == 1
    assert len({child.pid for child in both} | {fork_server.process.pid}) == 3
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
    assert fork_server.start("a", ["--help"], said, str(tmp_path / "none")).wait(60) == 1
    assert "FileNotFoundError" in said.read_text()


def test_children_find_what_the_launcher_does_now(tmp_path, monkeypatch):
    package = tmp_path / "asked"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import os, sys\n"
        "def main(argv):\n"
        "    print(*argv, os.environ.get('OLD'), len(os.environ['NEW']), sys.path[0])\n"
        "    return 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OLD", "old")
    with contextlib.closing(ForkServer("asked")) as fork_server:
        monkeypatch.delenv("OLD")
        monkeypatch.setenv("NEW", "n" * 100_000)  # more than is read at a time
        monkeypatch.syspath_prepend("elsewhere")
        assert fork_server.start("a", ["x", "y"], tmp_path / "said").wait(60) == 3
    assert (tmp_path / "said").read_text() == "x y None 100000 elsewhere\n"


@pytest.mark.timeout(30)
def test_a_launcher_that_dies_in_mid_request_ends_the_fork_server():
    launcher, line = socket.socketpair()
    launcher.sendall(b'{"name": "ha')
    launcher.close()
    assert fork_server_module._serve(line) is None


def test_a_dead_nursery_is_named(tmp_path):
    waits = waiting(tmp_path)
    with contextlib.closing(launch.fork_server()) as fork_server:
        child = fork_server.start("a", [str(waits)], tmp_path / "said")
        fork_server.process.kill()
        with pytest.raises(RuntimeError, match="cannot start b: .* has died"):
            fork_server.start("b", ["--help"], tmp_path / "said")
        assert child.poll() is None
        child.kill()
        assert child.wait(60) == -signal.SIGKILL


def waiting(folder) -> Path:
    """A configuration that is never read to its end."""
    fifo = folder / "run.json"
    os.mkfifo(fifo)
    return fifo
