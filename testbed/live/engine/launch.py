"""Starts a live run: all members as processes of this machine, or one of them.

On shaped links every member is a process in the network of its own host, which this process cannot
reach; so the coordinator is one there, too, beside the central server.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slowlink.testbed import files
from slowlink.testbed.live import fork_server
from slowlink.testbed.live.engine.coordinator import Coordinator, Ended, Failed, written
from slowlink.testbed.live.engine.node import FAILURES, Node, fail
from slowlink.testbed.live.engine.settings import COORDINATOR, Dds, LiveSettings
from slowlink.testbed.live.identity import Keys
from slowlink.testbed.live.wire import FLUSH_S, Wire, ZmqWire

if TYPE_CHECKING:
    from slowlink.testbed.network.emulated import Measured

PACKAGE = "slowlink.testbed.live.engine"
PORT = 5570
"""The coordinator listens here on shaped links, where its host has all ports to itself."""
POLL_S = 0.1
"""So often a coordinator in another process is looked at."""
RESTARTS = "restarts.txt"
"""In the output folder: whom such a coordinator wants to be started again, a line each."""

LOCK = ".lock"
"""In the folders of a run, held while it lasts; the system frees it with its holder."""
LOCKED = fcntl.LOCK_EX | fcntl.LOCK_NB

Say = Callable[[str], None]

log = logging.getLogger(__name__)


@contextlib.contextmanager
def alone(settings: LiveSettings) -> Iterator[None]:
    """Meanwhile, no other run writes to the folders of this one, which are made.

    Raises
    ------
    ValueError: one does already, or there can be no such folder; names the field.
    """
    fields = dict(output=settings.output, state=settings.state)
    folders = {path.resolve(): field for field, path in fields.items() if path is not None}
    with contextlib.ExitStack() as held:
        for folder, field in folders.items():
            try:
                folder.mkdir(parents=True, exist_ok=True)
                file = held.enter_context(open(folder / LOCK, "w"))
            except OSError as error:
                why = f"{fields[field]} is no folder to write to: {error}"
                raise ValueError(f"{field}: {why}") from None
            try:
                fcntl.flock(file, LOCKED)
            except BlockingIOError:
                raise ValueError(
                    f"{field}: another run is going on in {fields[field]}; wait for its end, or "
                    "name another folder"
                ) from None
            except OSError as error:  # some file systems of clusters have no locks
                log.warning("%s: who else writes to it goes unnoticed: %s", field, error)
        yield


def run_node(settings: LiveSettings, name: str) -> None:
    """Be the worker or server ``name`` until the run is over.

    Raises
    ------
    ValueError: no such member, nobody told where the coordinator is, keys that cannot be read.
    RuntimeError, OSError: the run ended with an error; this member's address cannot be listened at.
    """
    if name not in settings.members:
        raise ValueError(f"no member {name!r}; there are: {', '.join(settings.members)}")
    wire = _wire(settings, name)
    try:
        wire.connect({COORDINATOR: settings.addresses.get(COORDINATOR, wire.address)})
        try:
            node = Node(settings, name, wire)
        except FAILURES as error:
            fail(wire, error)
            raise
        node.run()
    finally:
        wire.close(FLUSH_S)


def run_coordinator(settings: LiveSettings, say: Say = print) -> Ended:
    """Be the coordinator; raises Failed where the run ends with an error."""

    def restart(name: str) -> None:
        if settings.network is not None:  # else whoever started it by hand starts another
            files.append(settings.output / RESTARTS, f"{name}\n")

    with contextlib.closing(_wire(settings, COORDINATOR)) as wire:
        return Coordinator(settings, wire, say, restart=restart).run()


class Launched:
    """``with Launched(settings) as run``: all members but the coordinator, on shaped links all of
    them, started; killed at the end.

    Parameters
    ----------
    pairs: of nodes, between which shaped links are measured before any member starts.
    measured_s: seconds a pair.
    environment: what members have in it besides ours, by name.

    Attributes
    ----------
    links: the shaped links, None without.
    measured: what they carried, a pair each.
    host: where the coordinator listens, if the settings do not say.

    Raises
    ------
    RuntimeError: links cannot be shaped here; says why.
    ValueError: another run is going on in its folders; names the field.
    """

    here = True
    """Whether all members run on this machine."""

    def __init__(
        self,
        settings: LiveSettings,
        pairs: Sequence[tuple[int, int]] = (),
        measured_s: float = 0.5,
        environment: Mapping[str, Mapping[str, str]] = {},
    ) -> None:
        self.given, self.environment = settings, environment
        self.pairs, self.measured_s = pairs, measured_s
        self.links, self.host = None, "127.0.0.1"
        self.measured: Sequence[Measured] = ()
        self.processes: dict[str, fork_server.Child] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Launched:
        output = self.given.output
        try:
            self._stack.enter_context(alone(self.given))
            if self.given.network is not None:
                self._shape()
            self.settings = self._placed()
            if self.links is None:
                self.wire = _wire(self.settings, COORDINATOR)
                # Nobody is left to hear anything when it is closed.
                self._stack.callback(self.wire.close, 0.0)
                if not self.settings.dds:
                    self.settings = self._at(self.wire.address)
            self.file = output / "run.json"
            hidden = {"training": {"networks"}}
            self.file.write_text(self.settings.model_dump_json(indent=1, exclude=hidden) + "\n")
            (output / RESTARTS).write_text("")
            for name in self.settings.members:
                if name != COORDINATOR or self.links is not None:
                    self._log(name).write_text("")
                    self.start(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            self._end(process)
        self._stack.close()

    def start(self, name: str) -> None:
        """Start a member."""
        said = self._log(name)
        self.processes[name] = fork_server.shared().start(
            name,
            f"{PACKAGE}.__main__",
            [str(self.file), "--node", name, "--attached"],
            said,
            namespaces=() if self.links is None else self.links.namespaces(self._host(name)),
            environment=self.environment.get(name),
            warm=self._warm,
        )

    def restart(self, name: str) -> None:
        """End a member's process, if it has not, and start another."""
        self._end(self.processes[name])
        self.start(name)

    def run(self, say: Say = lambda line: None, recorded: bool = False) -> Ended:
        """Coordinate the run, or see to the coordinator; raises Failed.

        recorded: whether the record is wanted, which a run that goes on from snapshots lacks.
        """
        if self.links is None:
            watches = dict(check=self._check, restart=self.restart, here=self.here)
            watches |= dict(recorded=recorded)
            return Coordinator(self.settings, self.wire, say, **watches).run()
        self._await(say)
        return Ended(None, {}, written(self.settings.output), self.measured)

    def said(self, name: str) -> str:
        """The log of a member."""
        return self._log(name).read_text(errors="replace")

    @staticmethod
    def _end(process: fork_server.Child) -> None:
        process.kill()
        process.wait()
        process.stdin.close()

    @property
    def _warm(self) -> list[str]:
        """What takes long to import and is needed by every member."""
        names = ["slowlink.testbed.live.warm"]
        if self.given.own:
            names.append("torch._dynamo")  # torch imports it when it makes its first optimizer
        if self.given.dds:
            names.append("slowlink.testbed.live.dds.wire")
        return names

    def _check(self) -> None:
        for name, process in self.processes.items():
            if process.poll() is not None:
                why = process.told() or self._last(name)
                raise Failed(f"{name} ended before the start: {why.removeprefix(f'{name}: ')}")

    def _last(self, name: str) -> str:
        return self.said(name).strip().split("\n")[-1]

    def _placed(self) -> LiveSettings:
        """The settings with a place to meet at, where they leave it open."""
        if (dds := self.given.dds) is not None:
            from slowlink.testbed.live.dds.domain import draw

            domain = draw() if dds.domain is None else dds.domain
            drawn = dict(domain=domain, run=dds.run or secrets.token_hex())
            return self.given.model_copy(update=dict(dds=dds.model_copy(update=drawn)))
        if self.links is not None:
            return self._at(f"tcp://{self.links.address(self._host(COORDINATOR))}:{PORT}")
        return self._at(self.given.addresses.get(COORDINATOR, f"tcp://{self.host}:0"))

    def _at(self, address: str) -> LiveSettings:
        """The settings with this address of the coordinator."""
        addresses = self.given.addresses | {COORDINATOR: address}
        return self.given.model_copy(update=dict(addresses=addresses))

    def _shape(self) -> None:
        from slowlink.testbed.network.emulated import Emulated  # only here: most runs need none

        self.links = self._stack.enter_context(Emulated(self.given.topology))
        self.measured = self.links.measure(self.pairs, self.measured_s) if self.pairs else ()

    def _host(self, name: str) -> int:
        """The node of the topology in whose network ``name`` is."""
        if name == COORDINATOR:
            return (*self.given.servers, *self.given.workers)[0]
        return self.given.topology.node_names.index(name)

    def _await(self, say: Say) -> None:
        """Wait for the coordinator's process, and pass on what it says."""
        coordinator, told, restarted, alone_s = self.processes[COORDINATOR], 0, 0, 0.0
        over = False
        while not over:
            with contextlib.suppress(subprocess.TimeoutExpired):
                coordinator.wait(POLL_S)
            over = coordinator.poll() is not None
            *lines, _ = self.said(COORDINATOR).split("\n")
            for line in lines[told:]:
                say(line)
            told = len(lines)
            *names, _ = (self.settings.output / RESTARTS).read_text().split("\n")
            for name in names[restarted:]:
                self.restart(name)
            restarted = len(names)
            if not over and not told:
                self._check()
            # It ends with the others, which end on their own where it falls silent; but it may
            # still wait for who is gone to hear that it is over.
            others = (its for name, its in self.processes.items() if name != COORDINATOR)
            if all(its.poll() is not None for its in others):
                alone_s += POLL_S
            if not over and alone_s > self.given.limits.silence_s + 2 * FLUSH_S:
                raise Failed(f"{COORDINATOR} goes on without anybody: {self._last(COORDINATOR)}")
        if coordinator.returncode < 0:
            raise Failed(f"{COORDINATOR} died of signal {-coordinator.returncode}")
        if coordinator.returncode:
            told = coordinator.told() or self._last(COORDINATOR)
            raise Failed(told.removeprefix(f"{COORDINATOR}: "))

    def _log(self, name: str) -> Path:
        return self.given.output / f"{name.replace('/', '-')}.log"


def run_all(
    settings: LiveSettings,
    say: Say = lambda line: None,
    pairs: Sequence[tuple[int, int]] = (),
    measured_s: float = 0.5,
    recorded: bool = False,
) -> Ended:
    """Run all members on this machine; see :class:`Launched`. Raises Failed."""
    with Launched(settings, pairs, measured_s) as launched:
        say(f"{len(launched.processes)} nodes started, logs in {settings.output}")
        return launched.run(say, recorded)


def set_up_logs() -> None:
    """Log time and text to standard error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)


def _wire(settings: LiveSettings, name: str) -> Wire:
    limits = settings.limits
    options: dict[str, Any] = dict(
        keys=settings.keys and Keys(settings.keys, name),
        watches=name == COORDINATOR,
        above=COORDINATOR,
        heartbeat_s=limits.silence_s / 5,
        stall_s=max(limits.compute_s, limits.evaluate_s, limits.meeting_s),
        limit_bytes=2 * limits.tensor_bytes,
        queue_bytes=limits.queue_bytes,
    )
    if settings.dds:
        return _on_dds(settings, name, settings.dds, options)
    if (above := settings.addresses.get(COORDINATOR)) is None:
        raise ValueError(f"addresses: give that of the {COORDINATOR}, as tcp://host:port")
    bind = settings.addresses.get(name) or f"tcp://{_own_host(above)}:0"
    return ZmqWire(name, bind, settings.members, timeout_s=limits.silence_s, **options)


def _on_dds(settings: LiveSettings, name: str, dds: Dds, options: dict[str, Any]) -> Wire:
    from slowlink.testbed.live.dds.domain import LOOPBACK, DomainConfig  # Cyclone is slow to load
    from slowlink.testbed.live.dds.wire import DdsWire

    if dds.domain is None or not dds.run:
        raise ValueError("dds: give domain and run, alike for members that start one by one")
    network = DomainConfig(dds.interface or LOOPBACK, dds.peers, settings.limits.silence_s)
    return DdsWire(name, dds.domain, network, dds.run, settings.members, **options)


def _own_host(address: str) -> str:
    """This machine's address on the way to ``address``."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return probe.getsockname()[0]
