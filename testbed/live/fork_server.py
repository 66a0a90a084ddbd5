"""Starts processes from one that has imported torch for all of them.

A new interpreter needs seconds for that, a fork of one that has done it milliseconds. The fork
server has one thread and no socket but its line to the launcher, so its children inherit neither.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path

CLONE_NEWNET = 0x40000000
LARGEST = 2**16
"""Bytes of a request that are read at a time."""


class ForkServer:
    """The launcher's end; to be closed, after its children have ended.

    Parameters
    ----------
    package: whose command, ``python -m package``, its children run.
    modules: what they import besides, and takes long.
    """

    def __init__(self, package: str, modules: Sequence[str] = ()) -> None:
        self._lock = threading.Lock()
        self._line, theirs = socket.socketpair()
        with theirs:
            names = [f"{package}.__main__", *modules]
            main = f"from {__name__} import serve; serve({theirs.fileno()}, {names})"
            self.process = subprocess.Popen(
                [sys.executable, "-c", main],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=environment() | {"OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,  # the launcher alone handles an interrupt from the terminal
            )

    def start(self, name: str, argv: Sequence[str], said: Path, namespace: str = "") -> Child:
        """A process that runs the command with ``argv``, and finds modules and the environment as
        this one does now; is there on return.

        Parameters
        ----------
        name: under which process lists show it.
        said: file to which its output is appended.
        namespace: file of the network namespace it is in; empty for the launcher's own.

        Raises
        ------
        RuntimeError
            The fork server has died; it has said why on standard error.
        """
        wanted = dict(name=name, argv=list(argv), said=str(said), namespace=namespace)
        wanted |= dict(path=sys.path, environment=dict(os.environ))
        line, theirs = socket.socketpair()
        try:
            with theirs:
                pid = self._ask(wanted, [theirs.fileno()])
            if pid is None:
                raise RuntimeError(f"cannot start {name}: the process that starts others has died")
        except BaseException:
            line.close()
            raise
        return Child(pid, line, self)

    def status(self, pid: int) -> int:
        """How a child ended, once it has."""
        found = self._ask(pid)
        return -signal.SIGKILL if found is None else found

    def close(self) -> None:
        self._line.close()
        self.process.kill()
        self.process.wait()

    def _ask(self, what: object, fds: Sequence[int] = ()) -> int | None:
        """The fork server's answer, None if it has died."""
        try:
            with self._lock:
                socket.send_fds(self._line, [json.dumps(what).encode() + b"\n"], fds)
                answer = self._line.recv(LARGEST)
        except OSError:
            return None
        except BaseException:  # after an interrupt, the next answer would belong to this question
            self._line.close()
            raise
        return json.loads(answer) if answer else None


class Child:
    """A process, under the names of :class:`subprocess.Popen`.

    ``stdin`` is its standard input; it ends with the process, since nobody else has the other end.
    """

    def __init__(self, pid: int, stdin: socket.socket, fork_server: ForkServer) -> None:
        self.pid, self.stdin, self._fork_server = pid, stdin, fork_server
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not wait([self.stdin], None if timeout == math.inf else timeout):
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self.returncode = self._fork_server.status(self.pid)
        return self.returncode

    def send_signal(self, number: int) -> None:
        # The process id stays reserved until somebody has asked for the status.
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def environment() -> dict[str, str]:
    """The environment of a new interpreter that finds the same modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


# In the fork server ------------------------------------------------------------------------------


def serve(fd: int, names: Sequence[str]) -> None:
    """Fork a child, or tell how one ended, for every request; until the launcher is gone."""
    command, *_ = map(importlib.import_module, names)
    gc.freeze()  # a garbage collection would touch, and so copy, all pages in every child
    ended, born = 0, _serve(socket.socket(fileno=fd))
    if born:
        wanted, stdin = born
        _settle(wanted, stdin)
        ended = command.main(wanted["argv"])
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(ended)  # an ordinary exit would spend half a second on taking torch apart


def _serve(line: socket.socket) -> tuple[dict, int] | None:
    """Serve requests; return only in a child, with its request and its standard input."""
    with line:
        while True:
            data, fds, *_ = socket.recv_fds(line, LARGEST, 1)
            while data and not data.endswith(b"\n"):
                more = line.recv(LARGEST)
                data = data + more if more else b""
            if not data:
                return None
            asked = json.loads(data)
            if fds:
                answer = os.fork()
                if answer == 0:
                    return asked, fds[0]
                os.close(fds[0])
            else:
                answer = os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1])
            line.sendall(json.dumps(answer).encode())


def _settle(wanted: dict, stdin: int) -> None:
    """Give this process its surroundings, files, name and network."""
    sys.path[:] = wanted["path"]
    os.environ.clear()
    os.environ.update(wanted["environment"])
    said = os.open(wanted["said"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for old, new in ((stdin, 0), (said, 1), (said, 2)):
        os.dup2(old, new)
    os.close(stdin)
    os.close(said)
    with contextlib.suppress(OSError):  # only Linux has it
        Path("/proc/self/comm").write_text(wanted["name"])
    if wanted["namespace"]:
        with open(wanted["namespace"]) as entry:
            if ctypes.CDLL(None, use_errno=True).setns(entry.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "cannot enter", wanted["namespace"])
