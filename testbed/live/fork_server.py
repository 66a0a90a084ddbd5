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
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path

STDERR = 2
NAME = "python forks"
"""Of a process that was forked to be the fork server, and is no member as its parent may be."""
LARGEST = 2**16
"""Bytes of a request that are read at a time."""


class ForkServer:
    """The launcher's end; to be closed, after its children have ended.

    Parameters
    ----------
    forked: the fork server is a fork of this process, which must have one thread and all imports;
        else a new interpreter.
    """

    def __init__(self, forked: bool = False) -> None:
        self._lock = threading.Lock()
        self._line, theirs = socket.socketpair()
        # Its own session: the launcher alone handles an interrupt from the terminal.
        with theirs:
            if forked:
                self.pid = os.fork()
                if not self.pid:
                    self._line.close()
                    os.setsid()
                    _call(NAME)
                    serve(theirs.detach())
                self._wait = partial(os.waitpid, self.pid, 0)
            else:
                code = f"from {__name__} import serve; serve({theirs.fileno()})"
                started = subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env=environment() | {"OPENBLAS_NUM_THREADS": "1"},
                    start_new_session=True,
                )
                self.pid, self._wait = started.pid, started.wait

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet: else its line is at its end."""
        with self._lock:
            return not wait([self._line], 0)

    def start(
        self,
        name: str,
        module: str,
        argv: Sequence[str],
        said: Path | None = None,
        *,
        namespaces: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        warm: Sequence[str] = (),
    ) -> Child:
        """A process that calls ``main(argv)`` of a module and ends with what that returns; it finds
        modules, files and the environment as this one does now, and is there on return.

        Parameters
        ----------
        name: under which process lists show it.
        said: file to which its output is appended; None shows its errors where ours go.
        namespaces: files of those that it enters, a user's before the network's.
        environment: what is added to ours.
        warm: what the fork server imports before the fork, besides the module, since it takes long.

        Raises
        ------
        RuntimeError
            The fork server has died; it has said why on standard error.
        """
        wanted = dict(name=name, module=module, argv=list(argv), said=said and str(said))
        wanted |= dict(namespaces=list(namespaces), warm=list(warm), path=sys.path)
        wanted |= dict(folder=os.getcwd())
        wanted |= dict(environment={**os.environ, **(environment or {})})
        line, theirs = socket.socketpair()
        try:
            with theirs:
                pid = self._ask(wanted, [theirs.fileno(), STDERR])
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
        os.kill(self.pid, signal.SIGKILL)
        self._wait()

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


def shared() -> ForkServer:
    """The fork server of this process, with which it ends; another one where that has died."""
    with _LOCK:
        found = _SHARED.get(os.getpid())
        if found is None or not found.alive:
            found = _SHARED[os.getpid()] = ForkServer()
        return found


def there() -> bool:
    """Whether this process has a fork server already."""
    return os.getpid() in _SHARED


def one_thread() -> bool:
    """Whether this process has one thread, those of libraries counted; False where nobody tells."""
    with contextlib.suppress(OSError):
        return len(os.listdir("/proc/self/task")) == 1
    return False


@contextlib.contextmanager
def forked() -> Iterator[None]:
    """Meanwhile, the fork server of this process is a fork of it, as it is now."""
    _SHARED[os.getpid()] = its = ForkServer(forked=True)
    try:
        yield
    finally:
        del _SHARED[os.getpid()]
        its.close()


_SHARED: dict[int, ForkServer] = {}
"""By process: a fork of one that has a fork server cannot use its line."""
_LOCK = threading.Lock()


class Child:
    """A process, under the names of :class:`subprocess.Popen`.

    ``stdin`` is its standard input, a socket; it ends with the process, since nobody else has the
    other end. A process that says something on it is waited for only when it has been killed, or
    its end has been read.
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

    def told(self) -> str:
        """What it has said on its standard input, by :func:`tell`."""
        with contextlib.suppress(OSError):
            return self.stdin.recv(LARGEST, socket.MSG_DONTWAIT).decode(errors="replace")
        return ""

    def send_signal(self, number: int) -> None:
        # The process id stays reserved until somebody has asked for the status.
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def environment() -> dict[str, str]:
    """The environment of a new interpreter that finds the same modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


# In children -------------------------------------------------------------------------------------


def attach() -> None:
    """From now on, end when standard input does, as when whoever holds the other end dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts for all
    threading.Thread(target=_end_with_parent, daemon=True).start()


def tell(what: str) -> None:
    """Say something to whoever holds the other end of standard input, even where the disk is full;
    the last thing that a process does."""
    with contextlib.suppress(OSError):
        os.write(0, what.encode())


def _end_with_parent() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    os._exit(3)


def _call(name: str) -> None:
    """Name this process."""
    with contextlib.suppress(OSError):  # only Linux has it
        Path("/proc/self/comm").write_text(name)


# In the fork server ------------------------------------------------------------------------------


def serve(fd: int) -> None:
    """Fork a child, or tell how one ended, for every request; until the launcher is gone."""
    born = _serve(socket.socket(fileno=fd))
    ended = 0
    if born:
        wanted, files = born
        # Nothing goes up from here: if this is a fork of a process at work, its work is not ours.
        try:
            _settle(wanted, *files)
            ended = importlib.import_module(wanted["module"]).main(wanted["argv"]) or 0
        except SystemExit as error:
            ended = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            traceback.print_exc()
            ended = 1
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(ended)  # an ordinary exit would spend half a second on taking torch apart


def _serve(line: socket.socket) -> tuple[dict, list[int]] | None:
    """Serve requests; return only in a child, with its request, standard input and error."""
    with line:
        while True:
            data, files, *_ = socket.recv_fds(line, LARGEST, 2)
            while data and not data.endswith(b"\n"):
                more = line.recv(LARGEST)
                data = data + more if more else b""
            if not data:
                return None
            asked = json.loads(data)
            if files:
                _warm([asked["module"], *asked["warm"]])
                answer = os.fork()
                if answer == 0:
                    return asked, files
                for file in files:
                    os.close(file)
            else:
                answer = os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1])
            line.sendall(json.dumps(answer).encode())


def _warm(names: Sequence[str]) -> None:
    if all(name in sys.modules for name in names):
        return
    gc.disable()  # looking for garbage in what stays takes a quarter of the time
    for name in names:
        with contextlib.suppress(Exception):  # the child meets the same error, and says it
            importlib.import_module(name)
    gc.freeze()  # a garbage collection would touch, and so copy, all pages in every child
    gc.enable()


def _settle(wanted: dict, stdin: int, stderr: int) -> None:
    """Give this process its surroundings, files, name and namespaces."""
    os.chdir(wanted["folder"])  # the fork server's own is where the launcher once started it
    sys.path[:] = wanted["path"]
    os.environ.clear()
    os.environ.update(wanted["environment"])
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    said = os.open(wanted["said"] or os.devnull, flags, 0o666)
    for old, new in ((stdin, 0), (said, 1), (said if wanted["said"] else stderr, 2)):
        os.dup2(old, new)
    for file in (stdin, stderr, said):
        os.close(file)
    _call(wanted["name"])
    # Who has entered a user's namespace may not find the files of others any more.
    entries = [open(file) for file in wanted["namespaces"]]  # noqa: SIM115
    for entry in entries:
        with entry:
            if ctypes.CDLL(None, use_errno=True).setns(entry.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), "cannot enter", entry.name)
    threads, torch = os.environ.get("OMP_NUM_THREADS"), sys.modules.get("torch")
    if threads and torch:  # OpenMP read the variable when torch was imported
        torch.set_num_threads(int(threads))
