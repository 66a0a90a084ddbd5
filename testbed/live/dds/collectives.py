"""All-gather, all-reduce and barrier among ranks that know how many they are.

Source: DDS document, the part on data-parallel training (all-gather with handles, barrier), with
one change: its receiver takes a payload for complete when one segment of every rank is there,
this one when every segment of every rank is.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import numpy as np

from slowlink.testbed.live.dds import segments
from slowlink.testbed.live.dds.channel import Channel, Delivery
from slowlink.testbed.live.dds.domain import DomainConfig, connect, keys_folder
from slowlink.testbed.live.dds.sessions import Access
from slowlink.testbed.live.identity import Keys

TOPIC = "slowlink_group"
RANK = "rank-{}"
"""The name of a rank among the members, see :mod:`testbed.live.identity`."""
BARRIER = "barrier"
"""The label of barriers; the document keeps a round's number for them, which here cannot collide
as messages are told apart by labels."""

IN_FLIGHT = 256
"""All-gathers that one rank may have under way, and no more than its limit in bytes, which bounds
the memory of the others."""


class RankLost(ConnectionError):
    """Ranks are gone, late or out of step; names them in the text and in ``ranks``."""

    def __init__(self, ranks: Iterable[int], why: str) -> None:
        self.ranks = sorted(ranks)
        who = ", ".join(map(str, self.ranks))
        super().__init__(f"{'rank' if len(self.ranks) == 1 else 'ranks'} {who}: {why}")


class Handle:
    """An all-gather under way.

    Attributes
    ----------
    number: of the all-gather, counted from 0.
    label: what the caller calls it.
    payload_bytes: length of this rank's payload.
    sent_bytes: bytes of this rank's segments, once however many ranks receive them; without those
        of DDS and UDP.
    received_bytes: the same of the other ranks' payloads that are complete.
    wait_s: seconds spent in :meth:`wait`.
    """

    def __init__(self, number: int, label: str, payload: bytes, rank: int, size: int) -> None:
        self.number, self.label = number, label
        self.payload_bytes = len(payload)
        self.sent_bytes = segments.wire_bytes(len(payload), label, size - 1)
        self.received_bytes = 0
        self.wait_s = 0.0
        self._payloads: dict[int, bytes | memoryview] = {rank: payload}
        self._ranks = range(size)
        self._error: BaseException | None = None
        self._ended = threading.Event()
        if size == 1:
            self._ended.set()

    @property
    def done(self) -> bool:
        """Whether every rank's payload is here, or it is certain that one never will be."""
        return self._ended.is_set()

    @property
    def missing(self) -> list[int]:
        """Ranks whose payloads are not complete yet."""
        return [rank for rank in self._ranks if rank not in self._payloads]

    def wait(self, timeout_s: float) -> None:
        """Wait for every rank's payload; may be called again after it timed out.

        Raises
        ------
        RankLost
            Ranks died, closed, are out of step, or did not deliver within ``timeout_s``.
        TimeoutError
            This rank's payload finds no room at a reader for half the group's timeout.
        ConnectionError
            This rank receives no more, or the group was closed.
        """
        start = time.perf_counter()
        self._ended.wait(timeout_s)
        self.wait_s += time.perf_counter() - start
        if not self.done:
            raise RankLost(self.missing, f"nothing for {self} within {timeout_s:g} s")
        if self._error is not None:
            raise self._error

    def collect(self) -> list[bytes | memoryview]:
        """The payloads by rank, read only; :meth:`wait` first.

        Raises
        ------
        RuntimeError
            They are not all here.
        RankLost
            See :meth:`wait`.
        """
        if not self.done:
            raise RuntimeError(f"{self}: wait() first, ranks {self.missing} are missing")
        if self._error is not None:
            raise self._error
        return [self._payloads[rank] for rank in self._ranks]

    def __str__(self) -> str:
        return f"all-gather {self.number} {self.label!r}"

    # The group calls these and holds its lock meanwhile.
    def _add(self, message: Delivery) -> None:
        self._payloads[message.sender] = message.payload
        self.received_bytes += message.frame_bytes
        if len(self._payloads) == len(self._ranks):
            self._ended.set()

    def _fail(self, error: BaseException) -> None:
        if not self.done:
            self._error = error
            self._ended.set()


class Reduction:
    """An all-reduce under way: the sum of every rank's values, added in the order of ranks."""

    def __init__(self, handle: Handle, shape: tuple[int, ...]) -> None:
        self.handle, self._shape = handle, shape

    def wait(self, timeout_s: float) -> None:
        """As :meth:`Handle.wait`."""
        self.handle.wait(timeout_s)

    def collect(self) -> np.ndarray:
        """The sum, float32, the same bits on every rank; raises as :meth:`Handle.collect`.

        Raises
        ------
        ValueError
            Ranks that put in another number of values.
        """
        total = np.zeros(self._shape, np.float32)
        for rank, payload in enumerate(self.handle.collect()):
            if len(payload) != total.nbytes:
                raise ValueError(
                    f"{self.handle}: {len(payload)} bytes from rank {rank}, {total.nbytes} needed"
                )
            total += np.frombuffer(payload, "<f4").reshape(self._shape)
        return total


class Group:
    """Ranks 0 to ``size`` - 1 of one run, each a process.

    Every rank calls the same operations in the same order; a rank may be ahead of the others by
    :data:`IN_FLIGHT` of them. Messages leave on a thread, so operations return at once, and arrive
    on another. Made when every rank has been heard.

    Parameters
    ----------
    rank, size: this one and how many there are.
    run: name that no other run has meanwhile; all ranks of the run know it.
    domain: DDS domain, 0 to 232; runs in different domains never meet.
    network: where to look for the others; by default as the environment says.
    keys: folder of identities, see :func:`testbed.live.dds.domain.keys_folder`.
    limit: longest payload taken, bytes.
    timeout_s: how long to wait for the others to come, for room in :meth:`all_gather`, and, half
        of it, for readers to take anything.

    Raises
    ------
    ValueError
        A rank, size or keys that cannot be.
    RankLost
        Ranks that did not come in time.
    ConnectionError
        This rank receives no more; or see :func:`testbed.live.dds.domain.connect`.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        run: str,
        domain: int,
        *,
        network: DomainConfig | None = None,
        keys: str | Path | None = None,
        limit: int = segments.LIMIT,
        timeout_s: float = 30.0,
    ) -> None:
        if not 0 <= rank < size:
            raise ValueError(f"rank: {rank} of {size}, must be from 0 to {size - 1}")
        self.rank, self.size = rank, size
        self.limit, self.timeout_s = limit, timeout_s
        self.network = network or DomainConfig.from_environment()
        folder = keys_folder(keys, self.network)
        own = Keys(folder, RANK.format(rank)) if folder else None
        access = Access(run, {other: RANK.format(other) for other in range(size)}, own)
        self._others = set(range(size)) - {rank}
        self._changed = threading.Condition()
        self._pending: deque[Handle] = deque()
        self._next = 0
        self._heard = [0] * size
        self._early: list[deque[Delivery]] = [deque() for _ in range(size)]
        self._lives: dict[int, int] = {}
        self._lost: dict[int, str] = {}
        self._broken: ConnectionError | None = None
        self._participant = connect(domain, self.network, run)
        try:
            told = self._deliver, self._left, self._fail
            self._channel = Channel(self._participant, TOPIC, rank, access, *told, limit=limit)
        except BaseException:
            self._participant = None  # so that this process may enter the domain again
            raise
        self._sender = ThreadPoolExecutor(1, "group sender")
        try:
            self.barrier(timeout_s)
        except BaseException:
            self.close(0.0)
            raise

    @property
    def refused(self) -> Counter[str]:
        """Segments that were dropped, by reason: stranger, reflection, proof, tag, key, version,
        form, length, parts, replay, rank."""
        return self._channel.refused

    def all_gather(self, payload: bytes, label: str = "") -> Handle:
        """Send ``payload`` to every rank and gather theirs; lengths may differ.

        Waits only while :data:`IN_FLIGHT` earlier ones are under way, for the group's timeout.

        Parameters
        ----------
        payload: must not change before the handle is done.
        label: what this is; the same on all ranks, which makes sure they mean the same.

        Raises
        ------
        ValueError
            A payload longer than the limit, or a label that does not fit.
        RankLost
            Earlier ones do not end in time. A rank that is gone shows in the handle.
        ConnectionError
            This rank receives no more.
        """
        if len(payload) > self.limit:
            raise ValueError(f"payload {label!r}: {len(payload)} bytes, at most {self.limit} fit")
        segments.check_label(label)
        with self._changed:
            if not self._changed.wait_for(self._room, self.timeout_s):
                first = self._pending[0]
                raise RankLost(first.missing, f"nothing for {first} within {self.timeout_s:g} s")
            if self._broken is not None:
                raise self._broken
            handle = Handle(self._next, label, payload, self.rank, self.size)
            self._next += 1
            self._pending.append(handle)
            self._heard[self.rank] = self._next
            for rank, early in enumerate(self._early):
                if early:
                    self._match(handle, early.popleft())
                elif rank in self._lost:
                    handle._fail(RankLost([rank], f"{self._lost[rank]}, needed for {handle}"))
            self._retire()
        self._sender.submit(self._send, handle, payload)
        return handle

    def all_reduce(self, values: np.ndarray, label: str = "") -> Reduction:
        """Sum ``values`` (any shape, float32) over the ranks; raises as :meth:`all_gather`."""
        values = np.asarray(values, np.float32)
        return Reduction(self.all_gather(values.astype("<f4").tobytes(), label), values.shape)

    def barrier(self, timeout_s: float) -> None:
        """Return when every rank is here: first both ways of DDS, then a message of each.

        Raises
        ------
        RankLost
            Names the ranks that did not come within ``timeout_s``, or died.
        """
        deadline = time.monotonic() + timeout_s
        missing = self._channel.wait_for(self._others - self._lost.keys(), timeout_s)
        if missing:
            why = f"not found in the domain within {timeout_s:g} s{_note(self.refused)}"
            raise RankLost(missing, why)
        handle = self.all_gather(b"", BARRIER)
        try:
            handle.wait(max(0.0, deadline - time.monotonic()))
        except RankLost as error:
            if handle.done:
                raise
            late = f"not at the barrier within {timeout_s:g} s{_note(self.refused)}"
            raise RankLost(error.ranks, late) from None

    def close(self, linger_s: float | None = None) -> None:
        """Leave. All-gathers under way fail here; what was sent still arrives.

        Parameters
        ----------
        linger_s: how long to wait for the others to have it; the lease unless told.
        """
        linger_s = self.network.lease_s if linger_s is None else linger_s
        with contextlib.suppress(TimeoutError):
            self._sender.submit(int).result(linger_s)
        self._channel.close(linger_s)
        self._sender.shutdown(cancel_futures=True)
        self._participant = None  # so that this process may enter the domain again
        with self._changed:
            for handle in self._pending:
                handle._fail(ConnectionError(f"{handle}: the group was closed"))
            self._retire()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind, *_) -> None:
        self.close(None if kind is None else 0.0)

    def _send(self, handle: Handle, payload: bytes) -> None:
        try:
            # Half of the time-out, so that the reason is known before the waiting ranks give up.
            self._channel.send(payload, handle.label, self.timeout_s / 2)
        except BaseException as error:
            with self._changed:
                handle._fail(error)
                self._retire()

    # On the channel's thread ----------------------------------------------------------------

    def _deliver(self, message: Delivery) -> None:
        rank = message.sender
        with self._changed:
            if rank not in self._others:
                raise segments.Refused("rank", f"rank {rank} of {self.size}")
            number, self._heard[rank] = self._heard[rank], self._heard[rank] + 1
            life = self._lives.setdefault(rank, message.life)
            if message.number != number or message.life != life:
                self._lose(rank, "restarted, or a message of it was lost")
            elif number >= self._next:
                ahead = sum(len(early.payload) for early in self._early[rank])
                if number < self._next + IN_FLIGHT and ahead <= self.limit:
                    self._early[rank].append(message)
                else:
                    self._lose(rank, f"ahead by {number - self._next} messages, {ahead} bytes")
            else:
                first = self._pending[0].number if self._pending else self._next
                if number >= first:
                    self._match(self._pending[number - first], message)
            self._retire()

    def _left(self, rank: int) -> None:
        with self._changed:
            if rank < self.size:
                self._lose(rank, "died or left")
                self._retire()

    def _fail(self, error: ConnectionError) -> None:
        with self._changed:
            self._broken = error
            for handle in self._pending:
                handle._fail(error)
            self._retire()

    # With the lock held -----------------------------------------------------------------------

    def _match(self, handle: Handle, message: Delivery) -> None:
        if message.label == handle.label:
            handle._add(message)
        else:
            why = f"sends {message.label!r} where rank {self.rank} is at {handle}"
            handle._fail(RankLost([message.sender], why))

    def _lose(self, rank: int, why: str) -> None:
        self._lost.setdefault(rank, why)
        for handle in self._pending:
            if rank in handle.missing:
                handle._fail(RankLost([rank], f"{self._lost[rank]}, needed for {handle}"))

    def _room(self) -> bool:
        mine = sum(handle.payload_bytes for handle in self._pending)
        return len(self._pending) < IN_FLIGHT and mine <= self.limit

    def _retire(self) -> None:
        while self._pending and self._pending[0].done:
            self._pending.popleft()
        self._changed.notify_all()


def _note(refused: Counter[str]) -> str:
    count = sum(refused.values())
    kinds = ", ".join(f"{kind} {refused[kind]}" for kind in sorted(refused))
    return f"; {count} segments were refused ({kinds})" if count else ""
