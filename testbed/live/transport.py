"""Payloads between real processes: the rounds of a codec over what joins them (:class:`Wire`)."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from slowlink.methods.compression import (
    Combine,
    Compressor,
    Encoding,
    Key,
    Payload,
    combine_payloads,
)

NATIVE = ("float32", "float64", "int8", "int32", "int64")
"""Element types that gloo adds as :func:`methods.compression.add_payloads` does.

The others (half precision, which would be rounded at every hop) are gathered and added here.
"""

Arrived = Payload | list[Payload]
"""Every rank's payload, in the order of ranks, or their sum where the wire added them."""


class Wire(Protocol):
    """What joins the ranks. All of them call the same operations in the same order.

    Attributes
    ----------
    rank, size: this one, and how many there are.
    received_bytes: of the other ranks' payloads that were gathered so far, counted as
        :meth:`frame_bytes`; what an all-reduce receives it does not tell.
    all_reduce: adds every rank's payload of :data:`NATIVE` elements in an order of its own; None
        where the wire only gathers.
    """

    rank: int
    size: int
    received_bytes: int
    all_reduce: Callable[[Payload], Payload] | None

    def gather(self, payload: Payload, key: Key) -> Callable[[], list[Payload]]:
        """Begin to gather every rank's payload; what is returned waits for them.

        Raises
        ------
        ConnectionError
            Another rank is gone, too late or out of step.
        ValueError
            Ranks that send different codecs, shapes, forms or dtypes.
        """

    def frame_bytes(self, payload: Payload, key: Key) -> int:
        """Bytes that this rank's payload has with what the wire puts around it; the headers of
        the network protocols are not counted."""

    def barrier(self) -> None:
        """Return when every rank is here. Raises ConnectionError."""


def begin(
    wire: Wire, payload: Payload, how: Combine, key: Key = None, ordered: bool = False
) -> Callable[[], Arrived]:
    """Send this rank's ``payload``; what is returned waits for the others.

    Sums of :data:`NATIVE` elements go through all-reduce, where the wire has one, which adds in an
    order of its own; with ``ordered``, and everything else, payloads are gathered. Raises as
    :meth:`Wire.gather`; an all-reduce does not look whether payloads are alike.
    """
    if how == "sum" and payload.dtype in NATIVE and wire.all_reduce and not ordered:
        return partial(wire.all_reduce, payload)
    return wire.gather(payload, key)


def combine(arrived: Arrived, how: Combine, codec: Compressor, key: Key = None) -> Arrived:
    """What every rank goes on with; ``codec`` merges. Gathered payloads combine in the order of
    ranks, bit-equal to :func:`methods.compression.combine_payloads` in one process."""
    if isinstance(arrived, Payload):
        return arrived
    return combine_payloads(codec, arrived, how, key)


class Gloo:
    """The default process group of ``torch.distributed``, which has to be there."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.received_bytes = 0
        self.all_reduce = _all_reduce

    def gather(self, payload: Payload, key: Key) -> Callable[[], list[Payload]]:
        """Gather lazily: nothing is sent until the returned function is called."""

        def finish() -> list[Payload]:
            gathered = _all_gather(payload, key)
            others = (p for rank, p in enumerate(gathered) if rank != self.rank)
            self.received_bytes += sum(self.frame_bytes(other, key) for other in others)
            return gathered

        return finish

    def frame_bytes(self, payload: Payload, key: Key) -> int:
        """Bytes of a gathered payload with its head; an all-reduced payload has no head."""
        return payload.nbytes + HEAD_BYTES

    def barrier(self) -> None:
        reach(dist.barrier)


HEAD_BYTES = 16
"""Length and kind of a gathered payload, int64 each."""


def _all_reduce(payload: Payload) -> Payload:
    wire = np.dtype(payload.dtype).newbyteorder("<")
    total = torch.from_numpy(np.frombuffer(payload.body, wire).astype(payload.dtype))
    if len(total):
        reach(dist.all_reduce, total)
    return replace(payload, body=total.numpy().astype(wire, copy=False).tobytes())


def _all_gather(payload: Payload, key: Key) -> list[Payload]:
    ranks = range(dist.get_world_size())
    kind = zlib.crc32(repr(replace(payload, body=b"")).encode())
    head = torch.tensor([payload.nbytes, kind])
    heads = [torch.empty_like(head) for _ in ranks]
    reach(dist.all_gather, heads, head)
    lengths, kinds = torch.stack(heads).T.tolist()
    other = next((rank for rank in ranks if kinds[rank] != kind), None)
    if other is not None:
        raise ValueError(
            f"message {key!r}: rank {other} sends another codec, shape, form or dtype than "
            f"{payload.codec} {payload.shape} {payload.form} {payload.dtype}; all need the same"
        )
    body = torch.zeros(max(lengths), dtype=torch.uint8)
    bodies = [torch.empty_like(body) for _ in ranks]
    if len(body):
        body.numpy()[: payload.nbytes] = np.frombuffer(payload.body, np.uint8)
        reach(dist.all_gather, bodies, body)
    return [
        replace(payload, body=padded.numpy()[:length].tobytes())
        for padded, length in zip(bodies, lengths, strict=True)
    ]


def reach(collective: Callable[..., Any], *tensors: Any) -> None:
    """Call ``collective``; raise ConnectionError where it does not reach the other ranks."""
    try:
        collective(*tensors)
    except RuntimeError as error:
        raise ConnectionError(f"{collective.__name__}: {error}") from error


@dataclass
class Aggregation:
    """The aggregation of one tensor that is under way, with its measurements.

    Attributes
    ----------
    total: resolves to the sum over all ranks, as the codec decodes it.
    sent, framed: payload bytes that this rank put in, and with their frames; a number a round.
    received: see :attr:`Wire.received_bytes`; a number a round.
    encode_s: seconds that the first round's encoding took, on the caller's time.
    launched_at: ``time.perf_counter()`` when it was encoded and handed over.
    waits: from when to when, by the same clock, it waited for other ranks; a pair a round.
    busy_s: seconds that combining and decoding took, waiting for slower ranks included.
    done_at: as ``launched_at``, when ``total`` was there.
    """

    total: Future[torch.Tensor] = field(default_factory=Future)
    sent: list[int] = field(default_factory=list)
    framed: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    encode_s: float = 0.0
    launched_at: float = 0.0
    waits: list[tuple[float, float]] = field(default_factory=list)
    busy_s: float = 0.0
    done_at: float = 0.0

    def waited_s(self, since: float, until: float = math.inf) -> float:
        """Seconds of ``waits`` between two times."""
        return sum(max(0.0, min(end, until) - max(start, since)) for start, end in self.waits)


class Messenger:
    """Sends messages while the caller goes on computing.

    A message is encoded by the caller; combining and decoding follow on one thread, in the order
    of launches, which must be the same on every rank. So compression delays backward and
    communication overlaps it, as fusion's cost model has it. Messages of one round are begun by
    the caller, so that several are under way on a wire that takes them.

    Parameters
    ----------
    wire: to the other ranks; all of a run's messages go through one messenger.
    codec: this rank's; several rounds are welcome.
    centre: what an aggregator holds, alike on every rank; ``codec`` if None.
    ordered: see :func:`begin`.
    """

    def __init__(
        self,
        wire: Wire,
        codec: Compressor,
        centre: Compressor | None = None,
        ordered: bool = False,
    ) -> None:
        self.wire, self.codec, self.centre = wire, codec, centre or codec
        self.ordered = ordered
        self._thread = ThreadPoolExecutor(1, "messenger")

    def launch(self, tensor: torch.Tensor, key: Key) -> Aggregation:
        """Encode ``tensor`` now and send it off."""
        start = time.perf_counter()
        rounds = self.codec.encode(tensor, key)
        payload, how = next(rounds)
        message = Aggregation(launched_at=time.perf_counter())
        message.encode_s = message.launched_at - start
        # Second rounds start on the thread: first ones beside them would mix up their order.
        begun = self._begin(payload, how, key) if self.codec.one_shot else None
        self._thread.submit(self._deliver, message, rounds, payload, how, key, begun)
        return message

    def close(self) -> None:
        """End the thread, once what was launched has been delivered."""
        self._thread.shutdown()

    def _begin(self, payload: Payload, how: Combine, key: Key) -> Callable[[], Arrived]:
        return begin(self.wire, payload, how, key, self.ordered)

    def _deliver(
        self,
        message: Aggregation,
        rounds: Encoding,
        payload: Payload,
        how: Combine,
        key: Key,
        begun: Callable[[], Arrived] | None,
    ) -> None:
        start = time.perf_counter()
        try:
            while True:
                message.sent.append(payload.nbytes)
                message.framed.append(self.wire.frame_bytes(payload, key))
                finish = begun or self._begin(payload, how, key)
                before, waiting = self.wire.received_bytes, time.perf_counter()
                arrived = finish()
                message.waits.append((waiting, time.perf_counter()))
                message.received.append(self.wire.received_bytes - before)
                try:
                    payload, how = rounds.send(combine(arrived, how, self.centre, key))
                except StopIteration as stop:
                    total = stop.value
                    break
        except BaseException as error:
            message.total.set_exception(error)
            return
        message.done_at = time.perf_counter()
        message.busy_s = message.done_at - start
        message.total.set_result(total)
