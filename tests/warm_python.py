"""A ``python`` for tests that run many short programs: each in a fork of one process that has
imported torch and other packages that take seconds.

:class:`WarmPython` makes the command. It stands in for ``python FILE`` and ``python -m MODULE``,
with ``-u`` or without; whatever else it is asked for, the interpreter itself does. The process that
forks has loaded no file of this repository and runs one thread, so that a fork finds what a fresh
interpreter in its folder and with its environment would find.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

# What stands at the command's place on the path. It hands its files, folder, environment and
# arguments to the process that forks, and ends as the fork does; if it is killed, so is the fork.
CLIENT = """#!{python} -IS
import os, socket, sys
given = sys.argv[1:]
if given[:1] == ["-u"]:
    given = given[1:]
if not given or (given[0].startswith("-") and given[0] != "-m"):
    os.execv({python!r}, [{python!r}, *given])
import json
line = socket.socket(socket.AF_UNIX)
line.connect({address!r})
told = dict(given=given, folder=os.getcwd(), environment=dict(os.environ))
socket.send_fds(line, [b"."], [0, 1, 2])
line.sendall(json.dumps(told).encode() + b"\\n")
status = int(line.makefile().readline() or 1)
if status < 0:
    import signal
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""

SERVER = """
import ctypes, gc, json, os, runpy, select, signal, socket, sys

base = [path for path in sys.path if path]
gc.disable()
import numba, numpy, pandas, pyarrow.parquet, pydantic, scipy.sparse, scipy.stats, torch, yaml
import snakemake.cli, torch._dynamo, torch.distributed, torch.nn.parallel

gc.freeze()
gc.enable()
listener = socket.socket(fileno=int(sys.argv[1]))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def serve(line):
    "In a fork: another one, which is to run the program, and here its end; returns in that alone."
    _, files, *_ = socket.recv_fds(line, 1, 3)
    told = json.loads(line.makefile().readline())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if not child:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        line.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        return told
    for file in files:
        os.close(file)
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended, line], [], [])
    if ended not in ready:  # the command was killed
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        line.sendall(f"{status}\\n".encode())
    finally:
        os._exit(0)


while True:
    line, _ = listener.accept()
    if not os.fork():
        listener.close()
        told = serve(line)
        break
    line.close()

os.chdir(told["folder"])
os.environ.clear()
os.environ.update(told["environment"])
given = told["given"]
added = told["environment"].get("PYTHONPATH", "").split(os.pathsep)
sys.path[:] = [path for path in added if path] + base
if given[0] == "-m":
    sys.argv[:] = given[1:]
    sys.path.insert(0, told["folder"])
    run = lambda: runpy.run_module(given[1], run_name="__main__", alter_sys=True)
else:
    sys.argv[:] = given
    sys.path.insert(0, os.path.dirname(os.path.realpath(given[0])))
    run = lambda: runpy.run_path(given[0], run_name="__main__")
run()
"""


class WarmPython:
    """The process that forks, and in ``folder`` the command ``python``; to be closed.

    Attributes
    ----------
    command: the file of the command.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.command, address = folder / "python", str(folder / "line")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(16)
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVER, str(listener.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(listener.fileno(),),
                env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
                start_new_session=True,
            )
        self.command.write_text(CLIENT.format(python=sys.executable, address=address))
        self.command.chmod(0o755)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
