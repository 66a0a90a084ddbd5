"""Ranks as processes of their own, which all end when one fails.

Each rank is a fresh interpreter: ``multiprocessing`` would run the caller's main module again,
which for a Snakemake script is the job itself.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

Tell = Callable[[str], None]
"""Says what this rank does now; the parent prints it where the rank fails or falls silent."""

GRACE_S = 2.0
"""Who lost contact is seldom to blame: so long the parent waits for a better cause."""


class RankFailed(RuntimeError):
    """A rank failed, died or fell silent; names it and the cause."""


def run_ranks(
    function: Callable[..., Any],
    ranks: int,
    *arguments: Any,
    timeout_s: float,
    environment: dict[str, str] | None = None,
) -> list[Any]:
    """Call ``function(*arguments, rank, tell)`` in ``ranks`` processes and return the results.

    Nothing is left running, however this ends. ``function`` must be importable by name; it should
    raise ConnectionError where another rank is out of reach.

    Raises
    ------
    RankFailed
        A rank raised, died, or none of them said anything for ``timeout_s``.
    """
    job = pickle.dumps((function, arguments))
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, **(environment or {}), "PYTHONPATH": paths}
    processes: list[subprocess.Popen] = []
    lines: list[Connection] = []
    try:
        for rank in range(ranks):
            ours, theirs = Pipe()
            lines.append(ours)
            with theirs:
                fd = theirs.fileno()
                main = f"from testbed.live.processes import _child; _child({fd}, {rank})"
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-c", main],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        env=environment,
                        pass_fds=(fd,),
                    )
                )
            _send(ours, job)
        return _collect(lines, processes, timeout_s)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        for line in lines:
            line.close()


def _collect(
    lines: Sequence[Connection], processes: Sequence[subprocess.Popen], timeout_s: float
) -> list[Any]:
    doing = ["starting"] * len(lines)
    results: dict[int, Any] = {}
    lost: dict[int, str] = {}
    deadline = time.monotonic() + timeout_s

    def others() -> str:
        return "; ".join(f"rank {rank} was {what}" for rank, what in enumerate(doing))

    while len(results) < len(lines):
        silent = [line for rank, line in enumerate(lines) if rank not in results | lost]
        ready = wait(silent, max(0.0, deadline - time.monotonic())) if silent else []
        if not ready:
            if lost:
                rank, cause = next(iter(lost.items()))
                raise RankFailed(f"rank {rank} lost contact: {cause}; {others()}")
            raise RankFailed(f"no rank said anything for {timeout_s:g} s; {others()}")
        for line in ready:
            rank = lines.index(line)
            try:
                kind, value = pickle.loads(line.recv_bytes())
            except (EOFError, ConnectionError):
                code = processes[rank].wait()
                raise RankFailed(
                    f"rank {rank} died with exit code {code} ({doing[rank]})"
                ) from None
            if kind == "doing":
                doing[rank] = value
            elif kind == "result":
                results[rank] = value
            elif kind == "lost":
                lost[rank] = value
            else:
                cause, trace = value
                failure = RankFailed(f"rank {rank} failed ({doing[rank]}): {cause}")
                failure.add_note(trace)
                raise failure
        deadline = time.monotonic() + (GRACE_S if lost else timeout_s)
    return [results[rank] for rank in range(len(lines))]


def _send(line: Connection, data: bytes) -> None:
    # Not Connection.send: torch teaches it to share tensors, which only works within a family.
    with contextlib.suppress(BrokenPipeError):  # whoever reads this end hears of the death
        line.send_bytes(data)


def _child(fd: int, rank: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    line = Connection(fd)

    def say(kind: str, value: Any) -> None:
        line.send_bytes(pickle.dumps((kind, value)))

    try:
        function, arguments = pickle.loads(line.recv_bytes())
        say("result", function(*arguments, rank, lambda what: say("doing", what)))
    except BrokenPipeError:
        pass  # the parent is gone
    except ConnectionError as error:
        say("lost", str(error))
    except BaseException as error:
        say("failed", (f"{type(error).__name__}: {error}", traceback.format_exc()))
    os._exit(0)  # threads that wait for other ranks hold nobody up
