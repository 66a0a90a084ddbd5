"""Who lets workers meet in parts: a thread of the first rank that asks the policy."""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from slowlink.methods.compression import Compressor, Frame, combine_payloads
from slowlink.methods.synchronization import (
    Continue,
    Decision,
    Event,
    Finished,
    Left,
    Policy,
    SetTimer,
    Sync,
    Synced,
    Timer,
)
from slowlink.torch.wire import beside, reach

KINDS = ("continue", "give", "take", "last", "finished", "left", "frame", "failed")

EVENTS, WORDS, VALUES = range(3)
"""Tags: what workers tell, what they are told, and tensors both ways."""

LATER = 3
"""Added to the tags of what goes to a worker, so that both ways keep apart."""


class Line:
    """A worker's line to the coordinator; on the first rank also the other end of all lines.

    The first rank's worker is no neighbour over a network, so queues join it.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout: timedelta | None) -> None:
        outer = dist.group.WORLD if group is None else group
        ranks = dist.get_process_group_ranks(outer)
        self.group = beside(outer, timeout, "gloo")
        self.rank, self.size = dist.get_rank(self.group), len(ranks)
        self._global = ranks
        self.told: queue.Queue = queue.Queue()
        self._own: dict[int, queue.Queue] = {tag: queue.Queue() for tag in range(2 * LATER)}
        self.reason = ""

    # The worker's end.

    def say(self, kind: str, number: int) -> None:
        """Tell the coordinator that something happened."""
        if self.rank == 0:
            self.told.put((0, kind, number))
        else:
            self._put(0, EVENTS, _word(kind, number))

    def announce(self, length: int) -> None:
        """Say how long the next frame is."""
        self._put(0, WORDS, _word("frame", length))

    def hear(self) -> tuple[str, int]:
        return _read(self._get(0, WORDS + LATER, torch.empty(2, dtype=torch.int64)))

    def send(self, values: Tensor) -> None:
        self._put(0, VALUES, values)

    def receive(self, count: int) -> Tensor:
        return self._get(0, VALUES + LATER, torch.empty(count))

    @property
    def failure(self) -> str:
        why = self.reason or "what it printed there says why"
        return f"the coordinator on the first rank failed: {why}"

    # The coordinator's end.

    def order(self, rank: int, kind: str, number: int = 0) -> None:
        self._put(rank, WORDS + LATER, _word(kind, number))

    def hand(self, rank: int, values: Tensor) -> None:
        self._put(rank, VALUES + LATER, values)

    def length(self, rank: int) -> int:
        return _read(self._get(rank, WORDS, torch.empty(2, dtype=torch.int64)))[1]

    def take(self, rank: int, values: Tensor) -> Tensor:
        return self._get(rank, VALUES, values)

    def listen(self) -> None:
        """Pass on what the other workers tell, until all of them have left."""
        word, here = torch.empty(2, dtype=torch.int64), self.size - 1
        while here:
            try:
                sender = dist.recv(word, group=self.group, tag=EVENTS)
            except RuntimeError as error:
                self.told.put((-1, "failed", str(error)))
                return
            kind, number = _read(word)
            here -= kind == "left"
            self.told.put((self._global.index(sender), kind, number))

    def _put(self, rank: int, tag: int, values: Tensor) -> None:
        if rank == self.rank:
            self._own[tag].put(values.clone())
        else:
            reach(dist.send, values, dst=self._global[rank], group=self.group, tag=tag)

    def _get(self, rank: int, tag: int, values: Tensor) -> Tensor:
        if rank == self.rank:
            return self._own[tag].get()
        reach(dist.recv, values, src=self._global[rank], group=self.group, tag=tag)
        return values


def _word(kind: str, number: int) -> Tensor:
    return torch.tensor([KINDS.index(kind), number])


def _read(word: Tensor) -> tuple[str, int]:
    kind, number = word.tolist()
    return KINDS[kind], number


class Coordinator(threading.Thread):
    """Keeps the global model, and lets the policy decide who meets.

    A meeting changes the global model by the mean of what its members changed, weighted as the
    policy says; members of an inner level only take the mean of their models.

    Parameters
    ----------
    model: (n,) float32, which all workers begin with.
    sites: of each rank.
    averaged_over: see :func:`slowlink.torch.local_steps`.
    """

    def __init__(
        self,
        policy: Policy,
        line: Line,
        codec: Compressor,
        model: Tensor,
        sites: Sequence[int],
        averaged_over: Literal["members", "all"],
    ) -> None:
        super().__init__(name="coordinator", daemon=True)
        self.policy, self.line, self.codec, self.model = policy, line, codec, model
        self.sites, self.averaged_over = tuple(sites), averaged_over
        self._timers: list[tuple[float, str]] = []

    def run(self) -> None:
        torch.set_grad_enabled(False)  # each thread has its own
        listener = threading.Thread(target=self.line.listen, name="listener", daemon=True)
        if self.line.size > 1:
            listener.start()
        try:
            self._run()
        except BaseException as error:
            self.line.reason = f"{type(error).__name__}: {error}"
            for rank in range(self.line.size):
                self.line.order(rank, "failed")
            raise

    def _run(self) -> None:
        self._zero = time.perf_counter()
        self._carry_out(self.policy.begin(self.sites))
        here = set(range(self.line.size))
        while here:
            rank, kind, number = self._told()
            if kind == "timer":
                self._tell(Timer(number, self._now()))
            elif kind == "finished":
                self._tell(Finished(rank, number, self._now()))
            elif kind == "left":
                here.discard(rank)
                self._tell(Left(rank, self._now()))
            else:
                raise ConnectionError(number)
        for rank in range(self.line.size):
            self.line.order(rank, "last")
            self.line.hand(rank, self.model)

    def _told(self) -> tuple[int, str, int | str]:
        """What a worker tells next, or a timer that is due before."""
        try:
            patience = max(0.0, self._timers[0][0] - self._now()) if self._timers else None
            return self.line.told.get(timeout=patience)
        except queue.Empty:
            return -1, "timer", heapq.heappop(self._timers)[1]

    def _now(self) -> float:
        return time.perf_counter() - self._zero

    def _tell(self, event: Event) -> None:
        self._carry_out(self.policy.on(event))

    def _carry_out(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Continue(worker=rank):
                    self.line.order(rank, "continue")
                case SetTimer(name=name, t=t):
                    heapq.heappush(self._timers, (t, name))
                case Sync():
                    self._meet(decision)
                    self._tell(Synced(decision.members, self._now()))

    def _meet(self, sync: Sync) -> None:
        weights = dict(zip(sync.members, sync.weights or (1.0,) * len(sync.members), strict=True))
        bringing, inner = sync.bringing, sync.level != -1
        for rank in bringing:
            self.line.order(rank, "give", sync.level)
        result = self.model
        if bringing:
            whole = sum(weights[rank] for rank in bringing)
            shares = [weights[rank] / whole for rank in bringing]
            mean = self._models(bringing, shares) if inner else self._changes(bringing, shares)
            if inner:
                result = mean
            else:
                if self.averaged_over == "all" and sync.weights is None:
                    mean *= len(bringing) / self.line.size
                self.model += mean
        for rank in sync.members:
            self.line.order(rank, "take", sync.level)
            self.line.hand(rank, result)

    def _models(self, ranks: Sequence[int], shares: Sequence[float]) -> Tensor:
        mean = torch.zeros_like(self.model)
        for rank, share in zip(ranks, shares, strict=True):
            mean.add_(self.line.take(rank, torch.empty_like(self.model)), alpha=share)
        return mean

    def _changes(self, ranks: Sequence[int], shares: Sequence[float]) -> Tensor:
        """The weighted mean of what members changed, each decoded as the codec has it."""
        mean = torch.zeros_like(self.model)
        for rank, share in zip(ranks, shares, strict=True):
            frame = self.line.take(rank, torch.empty(self.line.length(rank), dtype=torch.uint8))
            payload = Frame.from_bytes(
                frame.numpy(), limit=max(2**20, 8 * self.model.nbytes)
            ).payload
            combined = combine_payloads(self.codec, [payload], self.codec.combine, "model")
            one = combined if not isinstance(combined, list) else combined[0]
            mean.add_(self.codec.decompress(one).view(-1), alpha=share)
        return mean
