"""Ranks as processes of their own, which all end when one fails.

Each rank is a child of the fork server: ``multiprocessing`` would run the caller's main module
again, which for a user's script is the training itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from slowlink.testbed.live import fork_server
from slowlink.testbed.live.fork_server import Child

Tell = Callable[[str], None]
"""Says what this rank does now; the parent prints it where the rank fails or falls silent."""

Hear = Callable[[int, Any], Mapping[int, Any]]
"""Takes a rank and what it posted; returns what to send, by the rank that shall receive it."""

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
"""Among ranks of one machine: else gloo looks for its interface by the machine's name."""

PR_SET_PDEATHSIG = 1
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

    def say(self, kind: str, value: Any) -> None:
        self.connection.send_bytes(pickle.dumps((kind, value)))


class RankFailed(RuntimeError):
    """A rank failed, died or fell silent; names it and the cause."""


def run_ranks(
    function: Callable[..., Any],
    ranks: int,
    *arguments: Any,
    timeout_s: float,
    environment: Callable[[int], Mapping[str, str]] = lambda rank: {},
    namespaces: Callable[[int], Sequence[str]] = lambda rank: (),
    warm: Sequence[str] = ("torch._dynamo", "slowlink.testbed.live.warm"),
    each: Sequence[Any] | None = None,
    hear: Hear | None = None,
) -> list[Any]:
    """Call ``function(*arguments, rank, tell)`` in ``ranks`` processes and return the results.

    Nothing is left running, however this ends. ``function`` must be importable by name; it should
    raise ConnectionError where another rank is out of reach.

    Parameters
    ----------
    environment: what is added to ours for a rank.
    namespaces: files of those that a rank enters.
    warm: modules that are imported once for all ranks, besides that of ``function``; by default
        torch, what it imports when it makes its first optimizer, and numba.
    each: an argument for each rank alone, after the others.
    hear: called with what a rank posts (:class:`Line`).

    Raises
    ------
    RankFailed
        A rank raised, died, or none of them said anything for ``timeout_s``.
    """
    processes: list[Child] = []
    lines: list[Connection] = []
    warm = [getattr(function, "func", function).__module__, *warm]
    try:
        for rank in range(ranks):
            child = fork_server.shared().start(
                f"rank {rank}",
                __name__,
                [str(rank)],
                namespaces=namespaces(rank),
                environment=environment(rank),
                warm=warm,
            )
            processes.append(child)
            lines.append(Connection(os.dup(child.stdin.fileno())))
        for rank, line in enumerate(lines):
            own = arguments if each is None else (*arguments, each[rank])
            _send(line, pickle.dumps((function, own)))
        return _collect(lines, processes, timeout_s, hear)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
            process.stdin.close()
        for line in lines:
            line.close()


def _collect(
    lines: Sequence[Connection],
    processes: Sequence[Child],
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


def main(argv: Sequence[str]) -> None:
    """Be the rank ``argv[0]``, whose line to the parent is its standard input."""
    rank = int(argv[0])
    # The fork server ends with the parent, and so does this rank, be it silent.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts for all ranks
    line = Line(Connection(os.dup(0)))
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
