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
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

Tell = Callable[[str], None]
"""Says what this rank does now; the parent prints it where the rank fails or falls silent."""

Command = Callable[[int, list[str]], Sequence[str]]
"""The command that runs a rank, given the command of its interpreter."""

Hear = Callable[[int, Any], Mapping[int, Any]]
"""Takes a rank and what it posted; returns what to send, by the rank that shall receive it."""

GRACE_S = 2.0
"""A rank that lost contact is seldom to blame, so the parent waits this long for a better cause."""


class Line:
    """A rank's line to its parent; calling it says what the rank does now, as :data:`Tell`."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def __call__(self, what: str) -> None:
        self.say("doing", what)

    def post(self, value: Any) -> None:
        """Let the parent hear ``value``; its answers, if any, are received."""
        self.say("post", value)

    def receive(self) -> Any:
        """Wait for what the parent sends, and return it. Raises BrokenPipeError if it is gone."""
        try:
            return pickle.loads(self.connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            raise BrokenPipeError("the parent is gone") from None

    def fileno(self) -> int:
        """Readable when there is something to receive."""
        return self.connection.fileno()

    def say(self, kind: str, value: Any) -> None:
        self.connection.send_bytes(pickle.dumps((kind, value)))


class RankFailed(RuntimeError):
    """A rank failed, died or fell silent; names it and the cause."""


def run_ranks(
    function: Callable[..., Any],
    ranks: int,
    *arguments: Any,
    timeout_s: float,
    environment: dict[str, str] | None = None,
    command: Command = lambda rank, argv: argv,
    each: Sequence[Any] | None = None,
    hear: Hear | None = None,
) -> list[Any]:
    """Call ``function(*arguments, rank, tell)`` in ``ranks`` processes and return the results.

    Nothing is left running, however this ends. ``function`` must be importable by name; it should
    raise ConnectionError where another rank is out of reach.

    Parameters
    ----------
    command: what to run for a rank whose interpreter would be ``argv``; its process has to become
        ``argv`` in the end, and pass on the files that are open.
    each: an argument for each rank alone, after the others.
    hear: called with what a rank posts (:class:`Line`).

    Raises
    ------
    RankFailed
        A rank raised, died, or none of them said anything for ``timeout_s``.
    """
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
                main = f"from {__name__} import _child; _child({fd}, {rank})"
                processes.append(
                    subprocess.Popen(
                        command(rank, [sys.executable, "-c", main]),
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        env=environment,
                        pass_fds=(fd,),
                    )
                )
        for rank, line in enumerate(lines):
            own = arguments if each is None else (*arguments, each[rank])
            _send(line, pickle.dumps((function, own)))
        return _collect(lines, processes, timeout_s, hear)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        for line in lines:
            line.close()


def _collect(
    lines: Sequence[Connection],
    processes: Sequence[subprocess.Popen],
    timeout_s: float,
    hear: Hear | None,
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
            elif kind == "post":
                for other, answer in hear(rank, value).items():
                    _send(lines[other], pickle.dumps(answer))
            elif kind == "result":
                results[rank] = value
            elif kind == "lost":
                lost[rank] = value
            else:
                cause, trace = value
                failure = RankFailed(f"rank {rank} failed ({doing[rank]}): {cause}")
                failure.add_note(trace)
                raise failure
        # Once a rank lost contact, what the others say gains them no more time.
        latest = time.monotonic() + (GRACE_S if lost else timeout_s)
        deadline = min(deadline, latest) if lost else latest
    return [results[rank] for rank in range(len(lines))]


def _send(line: Connection, data: bytes) -> None:
    # Not Connection.send: torch teaches it to share tensors, which only works within a family.
    with contextlib.suppress(BrokenPipeError):  # the reader of this end learns of the death
        line.send_bytes(data)


def _child(fd: int, rank: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts for all ranks
    line = Line(Connection(fd))
    try:
        function, arguments = line.receive()
        line.say("result", function(*arguments, rank, line))
    except BrokenPipeError:
        pass  # the parent is gone
    except ConnectionError as error:
        line.say("lost", str(error))
    except BaseException as error:
        line.say("failed", (f"{type(error).__name__}: {error}", traceback.format_exc()))
    os._exit(0)  # an ordinary exit would wait for threads that wait for other ranks
