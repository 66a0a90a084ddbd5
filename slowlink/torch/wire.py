"""What carries payloads between ranks, and how a process group of torch.distributed does."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from slowlink.methods.compression import LARGEST_HALF, Combine, Compressor, Key, Payload
from slowlink.methods.compression.pieces import buffers, packing

NATIVE = ("float32", "float64", "int8", "int32", "int64")
"""Element types that all-reduce adds as :func:`slowlink.methods.compression.add_payloads` does.

Halves, which it would round at every hop, are added here."""

all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""All-gather of one tensor, by its name since torch 2.13, and before."""

Arrived = Payload | list[Payload]
"""Every rank's payload, in the order of ranks, or their sum where the wire added them."""


@dataclass
class Flight:
    """A message under way.

    Attributes
    ----------
    framed: bytes that this rank puts in, with what the wire puts around its payloads; the headers
        of the network protocols are not counted.
    wait: returns what arrived of each payload, and how many bytes of the other ranks that was, with
        what is around them; what an all-reduce receives it does not tell. Raises ConnectionError
        where another rank is gone, too late or out of step, ValueError where ranks send different
        codecs, shapes, forms or dtypes.
    """

    framed: int
    wait: Callable[[], tuple[list[Arrived], int]]


class Wire(Protocol):
    """What joins the ranks. All of them begin the same messages in the same order.

    Attributes
    ----------
    rank, size: this one, and how many there are.
    """

    rank: int
    size: int

    def begin(
        self,
        payloads: Sequence[Payload],
        ways: Sequence[Combine],
        keys: Sequence[Key],
        *,
        early: bool = False,
        ordered: bool = False,
        exact: bool = False,
    ) -> Flight:
        """Send one message: this rank's payloads of several tensors.

        Parameters
        ----------
        ways: how the payloads of each tensor will combine; the wire may add up sums.
        early: begun by the caller of a messenger, not by its thread; see :meth:`early`.
        ordered: gather sums, too, to be added in the order of ranks.
        exact: payloads of these keys have the same sizes on all ranks, each time.
        """

    def early(self, codec: Compressor) -> bool:
        """Whether first rounds may begin beside what else a messenger's thread has under way."""

    def barrier(self) -> None:
        """Return when every rank is here. Raises ConnectionError."""


class ProcessGroup:
    """A process group: gloo, NCCL or MPI.

    Payloads that add up go through all-reduce as the tensors they are, one for all of a message.
    Halves are cut into a part a rank, which adds it in float32 in the order of ranks and rounds
    once. All others are gathered, joined to one body.

    Parameters
    ----------
    group: the default one if None.
    timeout: of what follows on what a message began with; the group's own if None.
    """

    def __init__(
        self, group: dist.ProcessGroup | None = None, timeout: timedelta | None = None
    ) -> None:
        self.group = dist.group.WORLD if group is None else group
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.device = device_of(self.group)
        # What the caller begins and what a messenger's thread does each keep an order of their own,
        # alike on all ranks; between the two there is none, so the second has a group of its own.
        # NCCL's communicators had better not run beside each other: there, all is the thread's.
        self._later = self.group
        if self.device.type == "cpu":
            self._later = beside(self.group, timeout)
        self._known: set[int] = set()

    def early(self, codec: Compressor) -> bool:
        return self._later is not self.group

    def barrier(self) -> None:
        reach(dist.barrier, group=self.group)

    def begin(
        self,
        payloads: Sequence[Payload],
        ways: Sequence[Combine],
        keys: Sequence[Key],
        *,
        early: bool = False,
        ordered: bool = False,
        exact: bool = False,
    ) -> Flight:
        group = self.group if early else self._later
        apart: dict[str, list[int]] = {}
        for index, (payload, how) in enumerate(zip(payloads, ways, strict=True)):
            added = how == "sum" and payload.dtype in (*NATIVE, "float16") and not ordered
            apart.setdefault(payload.dtype if added else "", []).append(index)
        flights = []
        for kind, indices in sorted(apart.items()):
            some = [payloads[i] for i in indices]
            if kind == "":
                flight = self._gather(group, some, [keys[i] for i in indices], exact)
            elif kind == "float16":
                flight = self._add_halves(group, some)
            else:
                flight = self._add(group, some)
            flights.append((indices, flight))

        def wait() -> tuple[list[Arrived], int]:
            arrived: list[Any] = [None] * len(payloads)
            received = 0
            for indices, flight in flights:
                some, more = flight.wait()
                received += more
                for i, one in zip(indices, some, strict=True):
                    arrived[i] = one
            return arrived, received

        return Flight(sum(flight.framed for _, flight in flights), wait)

    def _add(self, group: dist.ProcessGroup, payloads: Sequence[Payload]) -> Flight:
        total = self._joined(payloads)
        work = reach(dist.all_reduce, total, group=group, async_op=True) if len(total) else None

        def wait() -> tuple[list[Arrived], int]:
            if work:
                reach(work.wait)
            if total.dtype == torch.float16:  # all were finite, so what is not overflowed
                packing.saturate(total, LARGEST_HALF)
            return _pieces(payloads, total), 0

        return Flight(sum(payload.nbytes for payload in payloads), wait)

    def _add_halves(self, group: dist.ProcessGroup, payloads: Sequence[Payload]) -> Flight:
        if self.size == 2:  # one sum of two is rounded once, whoever adds
            return self._add(group, payloads)
        given = torch.cat([self._elements(payload) for payload in payloads])
        n, part = len(given), -(-len(given) // self.size)
        if n < part * self.size:
            given = torch.nn.functional.pad(given, (0, part * self.size - n))
        parts = torch.empty_like(given)
        work = reach(
            dist.all_to_all_single, *map(_bytes, (parts, given)), group=group, async_op=True
        )
        framed = 2 * 2 * part * (self.size - 1)

        def wait() -> tuple[list[Arrived], int]:
            reach(work.wait)
            total = torch.zeros(part, device=parts.device)
            for one in parts.view(self.size, part):
                total.add_(one.float())
            total = total.clamp_(-LARGEST_HALF, LARGEST_HALF).half()
            reach(all_gather, *map(_bytes, (parts, total)), group=self._later)
            return _pieces(payloads, parts[:n]), framed

        return Flight(framed, wait)

    def _gather(
        self,
        group: dist.ProcessGroup,
        payloads: Sequence[Payload],
        keys: Sequence[Key],
        exact: bool,
    ) -> Flight:
        lengths = [payload.nbytes for payload in payloads]
        kind = zlib.crc32(repr([replace(payload, body=b"") for payload in payloads]).encode())
        body = torch.cat([_bytes(self._elements(payload)) for payload in payloads])
        # Once all ranks were seen to send alike, what has fixed sizes needs no head any more.
        whole = zlib.crc32(repr((kind, keys, lengths)).encode())
        if exact and whole in self._known:
            heads, framed = None, 0
            bodies, work = self._all_gather(group, body)
        else:
            head = torch.tensor([kind, *lengths], device=self.device)
            heads, work = self._all_gather(group, head)
            framed = head.nbytes

        def wait() -> tuple[list[Arrived], int]:
            nonlocal bodies, work
            reach(work.wait)
            of_ranks = [lengths] * self.size
            if heads is not None:
                kinds, *of_payloads = heads.T.tolist()
                self._check(kinds, kind, payloads, keys)
                of_ranks = list(zip(*of_payloads, strict=True))
                most = max(map(sum, of_ranks))
                padded = torch.nn.functional.pad(body, (0, most - len(body)))
                bodies, work = self._all_gather(self._later, padded)
                reach(work.wait)
                self._known.add(whole)
            gathered = [
                _split(payloads, one, sizes) for one, sizes in zip(bodies, of_ranks, strict=True)
            ]
            received = framed * (self.size - 1)
            received += sum(sum(n) for rank, n in enumerate(of_ranks) if rank != self.rank)
            return [list(one) for one in zip(*gathered, strict=True)], received

        return Flight(sum(lengths) + framed, wait)

    def _all_gather(
        self, group: dist.ProcessGroup, own: torch.Tensor
    ) -> tuple[torch.Tensor, dist.Work]:
        """(ranks, n) of every rank's (n,), and what to wait for."""
        every = own.new_empty(self.size, len(own))
        work = reach(all_gather, every.view(-1), own, group=group, async_op=True)
        return every, work

    def _check(
        self, kinds: Sequence[int], kind: int, payloads: Sequence[Payload], keys: Sequence[Key]
    ) -> None:
        other = next((rank for rank in range(self.size) if kinds[rank] != kind), None)
        if other is not None:
            mine = "; ".join(f"{p.codec} {p.shape} {p.form} {p.dtype}" for p in payloads)
            what = ", ".join(map(repr, keys))
            raise ValueError(
                f"message {what}: rank {other} sends another codec, shape, form or dtype than "
                f"{mine}; all need the same"
            )

    def _joined(self, payloads: Sequence[Payload]) -> torch.Tensor:
        """The elements of all payloads, in memory of the message's own."""
        if len(payloads) == 1:
            elements = self._elements(payloads[0])
            # A tensor was made for this payload, and nobody reads it before the answer comes.
            own = isinstance(payloads[0].content, torch.Tensor)
            return elements if own else elements.clone()
        return torch.cat([self._elements(payload) for payload in payloads])

    def _elements(self, payload: Payload) -> torch.Tensor:
        """The elements of a payload's body, which nobody may write, where the group wants them."""
        content = payload.content
        if not isinstance(content, torch.Tensor):
            array = buffers.alias(content).view(
                np.dtype(payload.dtype or "uint8").newbyteorder("<")
            )
            content = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
        return content if self.device.type == "cpu" else content.to(self.device)


def beside(
    group: dist.ProcessGroup, timeout: timedelta | None, backend: str | None = None
) -> dist.ProcessGroup:
    """Another group of the same ranks, which all of them ask for, with as long a timeout.

    Where these are some of all ranks, the others need not ask; torch then names the group by how
    many groups a rank knows, so members must have joined equally many before, or they wait in vain.
    """
    ranks = dist.get_process_group_ranks(group)
    backend = backend or dist.get_backend(group)
    backend = None if backend == dist.Backend.UNDEFINED else backend
    if timeout is None:
        timeout = timeout_of(group)
    some = len(ranks) < dist.get_world_size() and backend != "mpi"
    return dist.new_group(ranks, timeout, backend, use_local_synchronization=some)


def device_of(group: dist.ProcessGroup) -> torch.device:
    """Where a group's messages lie: on the GPU if NCCL carries them, also as one backend of several
    (torch's default has gloo for processors, too), else in the processor's memory."""
    nccl = "nccl" in dist.get_backend_config(group) and torch.cuda.is_available()
    return torch.device("cuda" if nccl else "cpu")


def timeout_of(group: dist.ProcessGroup) -> timedelta | None:
    """How long a group waits; None where its backend does not tell."""
    try:
        return group._get_backend(device_of(group)).options._timeout
    except (AttributeError, RuntimeError):  # no public way to ask
        return None


def check_alike(wire: ProcessGroup, what: str, *given: Any) -> None:
    """Raises ValueError on all ranks unless they have given the same; ``what`` it is."""
    own = torch.tensor([zlib.crc32(repr(given).encode())], device=wire.device)
    every = own.new_empty(wire.size)
    reach(all_gather, every, own, group=wire.group)
    if other := [rank for rank, one in enumerate(every.tolist()) if one != int(every[0])]:
        raise ValueError(f"rank {other[0]} has {what} than rank 0; all need the same")


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def _pieces(payloads: Sequence[Payload], total: torch.Tensor) -> list[Payload]:
    """Payloads whose bodies are successive parts of ``total``."""
    sizes = [payload.nbytes // total.element_size() for payload in payloads]
    parts = total.split(sizes)
    return [replace(p, body=part) for p, part in zip(payloads, parts, strict=True)]


def _split(
    payloads: Sequence[Payload], body: torch.Tensor, lengths: Sequence[int]
) -> list[Payload]:
    """Payloads of another rank, whose bodies lie in ``body`` one after another."""
    parts = body[: sum(lengths)].split(list(lengths))
    if body.device.type == "cpu":
        parts = [part.numpy().tobytes() for part in parts]
    return [replace(p, body=part) for p, part in zip(payloads, parts, strict=True)]


def reach(collective: Callable[..., Any], *tensors: Any, **options: Any) -> Any:
    """Call ``collective``; raise ConnectionError where it does not reach the other ranks."""
    try:
        return collective(*tensors, **options)
    except RuntimeError as error:
        raise ConnectionError(f"{collective.__name__}: {error}") from error
