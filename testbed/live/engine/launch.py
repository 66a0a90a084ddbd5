"""Starts a live run: all members as processes of this machine, or one of them."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from slowlink.testbed.live.engine.coordinator import Coordinator, Ended, Failed
from slowlink.testbed.live.engine.node import Node
from slowlink.testbed.live.engine.settings import COORDINATOR, LiveSettings
from slowlink.testbed.live.fork_server import Child, ForkServer
from slowlink.testbed.live.identity import Keys
from slowlink.testbed.live.wire import FLUSH_S, ZmqWire

PACKAGE = "slowlink.testbed.live.engine"

Say = Callable[[str], None]


def fork_server(own: bool = False) -> ForkServer:
    """A process that has imported all that nodes need; several runs may share one.

    Parameters
    ----------
    own: also what torch imports when it makes its first optimizer, which takes seconds.
    """
    return ForkServer(PACKAGE, ["torch._dynamo"] if own else [])


def run_node(settings: LiveSettings, name: str, attached: bool = False) -> None:
    """Be the worker or server ``name`` until the run is over.

    Parameters
    ----------
    attached: end when standard input does, as when whoever holds the other end dies.

    Raises
    ------
    ValueError: no such member, no address of the coordinator, keys that cannot be read.
    RuntimeError, OSError: the run ended with an error; this member's address cannot be listened at.
    """
    _check_member(settings, name)
    if COORDINATOR not in settings.addresses:
        raise ValueError(f"addresses: give that of the {COORDINATOR}, as tcp://host:port")
    if attached:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts for all
        threading.Thread(target=_end_with_parent, daemon=True).start()
    above = settings.addresses[COORDINATOR]
    wire = _wire(settings, name, settings.addresses.get(name) or f"tcp://{_own_host(above)}:0")
    try:
        wire.connect({COORDINATOR: above})
        try:
            node = Node(settings, name, wire)
        except Exception as error:
            wire.send(COORDINATOR, dict(kind="failed", reason=f"{type(error).__name__}: {error}"))
            raise
        node.run()
    finally:
        wire.close(FLUSH_S)


def run_coordinator(
    settings: LiveSettings, say: Say = print, check: Callable[[], None] = lambda: None
) -> Ended:
    """Be the coordinator; raises Failed where the run ends with an error."""
    if COORDINATOR not in settings.addresses:
        raise ValueError(f"addresses: give that of the {COORDINATOR}, as tcp://host:port")
    with contextlib.closing(_wire(settings, COORDINATOR, settings.addresses[COORDINATOR])) as wire:
        return Coordinator(settings, wire, say, check).run()


class Launched:
    """``with Launched(settings) as run``: all members but the coordinator, started; killed at the
    end.

    Parameters
    ----------
    server: starts the processes; one is made for this run if None.
    """

    def __init__(self, settings: LiveSettings, server: ForkServer | None = None) -> None:
        self.given, self.server = settings, server
        self.processes: dict[str, Child] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Launched:
        output = self.given.output
        output.mkdir(parents=True, exist_ok=True)
        try:
            if self.server is None:
                self.server = self._stack.enter_context(
                    contextlib.closing(fork_server(self.given.own is not None))
                )
            bind = self.given.addresses.get(COORDINATOR, "tcp://127.0.0.1:0")
            self.wire = self._stack.enter_context(
                contextlib.closing(_wire(self.given, COORDINATOR, bind))
            )
            addresses = self.given.addresses | {COORDINATOR: self.wire.address}
            self.settings = self.given.model_copy(update={"addresses": addresses})
            self.file = output / "run.json"
            hidden = {"training": {"networks"}}
            self.file.write_text(self.settings.model_dump_json(indent=1, exclude=hidden) + "\n")
            for name in self.settings.members:
                if name != COORDINATOR:
                    self.start(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
            process.stdin.close()
        self._stack.close()

    def start(self, name: str) -> None:
        """Start a member."""
        said = self._log(name)
        said.write_text("")
        argv = [str(self.file), "--node", name, "--attached"]
        self.processes[name] = self.server.start(name, argv, said)

    def run(self, say: Say = lambda line: None) -> Ended:
        """Coordinate the run; raises Failed."""
        return Coordinator(self.settings, self.wire, say, self._check).run()

    def said(self, name: str) -> str:
        """The log of a member."""
        return self._log(name).read_text(errors="replace")

    def _check(self) -> None:
        for name, process in self.processes.items():
            if process.poll() is not None:
                last = self.said(name).strip().split("\n")[-1]
                raise Failed(f"{name} ended before the start: {last}")

    def _log(self, name: str) -> Path:
        return self.given.output / f"{name.replace('/', '-')}.log"


def run_all(
    settings: LiveSettings, say: Say = lambda line: None, server: ForkServer | None = None
) -> Ended:
    """Run all members on this machine; see :class:`Launched`. Raises Failed."""
    with Launched(settings, server) as launched:
        say(f"{len(launched.processes)} nodes started, logs in {settings.output}")
        return launched.run(say)


def set_up_logs() -> None:
    """Log time and text to standard error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)


def _wire(settings: LiveSettings, name: str, bind: str) -> ZmqWire:
    limits = settings.limits
    return ZmqWire(
        name,
        bind,
        settings.members,
        keys=settings.keys and Keys(settings.keys, name),
        watches=name == COORDINATOR,
        above=COORDINATOR,
        heartbeat_s=limits.silence_s / 5,
        timeout_s=limits.silence_s,
        stall_s=max(limits.compute_s, limits.meeting_s),
        limit_bytes=2 * limits.tensor_bytes,
        queue_bytes=limits.queue_bytes,
    )


def _check_member(settings: LiveSettings, name: str) -> None:
    if name not in settings.members:
        raise ValueError(f"no member {name!r}; there are: {', '.join(settings.members)}")


def _end_with_parent() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    os._exit(3)


def _own_host(address: str) -> str:
    """This machine's address on the way to ``address``."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return probe.getsockname()[0]
