"""Payloads between real processes: the rounds of a codec over ``torch.distributed`` (gloo)."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from methods.compression import (
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


def combine(
    payload: Payload, how: Combine, codec: Compressor, key: Key = None, ordered: bool = False
) -> Payload | list[Payload]:
    """Combine every rank's ``payload``; all ranks get the same.

    Sums of :data:`NATIVE` elements go through all-reduce, which adds in an order of its own; with
    ``ordered``, and for everything else, payloads are gathered and combined in the order of ranks,
    bit-equal to :func:`methods.compression.combine_payloads`. ``codec`` merges them.

    Raises
    ------
    ConnectionError
        Another rank is gone or too late.
    ValueError
        Ranks that send different codecs, shapes, forms or dtypes; an all-reduce does not look.
    """
    if how == "sum" and payload.dtype in NATIVE and not ordered:
        return _all_reduce(payload)
    return combine_payloads(codec, _all_gather(payload, key), how, key)


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
    """Call ``collective``; what keeps it from the other ranks is a ConnectionError."""
    try:
        collective(*tensors)
    except RuntimeError as error:
        raise ConnectionError(f"{collective.__name__}: {error}") from error


@dataclass
class Message:
    """One tensor on its way, and what was seen of it.

    Attributes
    ----------
    total: resolves to the sum over all ranks, as the codec decodes it.
    sent: payload bytes that this rank put in, a number a round.
    launched_at: ``time.perf_counter()`` when it was encoded and handed over.
    busy_s: seconds that combining and decoding took, waiting for slower ranks included.
    done_at: as ``launched_at``, when ``total`` was there.
    """

    total: Future[torch.Tensor] = field(default_factory=Future)
    sent: list[int] = field(default_factory=list)
    launched_at: float = 0.0
    busy_s: float = 0.0
    done_at: float = 0.0


class Messenger:
    """Sends messages while the caller goes on computing.

    A message is encoded by the caller and travels on one thread, in the order of launches, which
    must be the same on every rank. So compression delays backward and communication overlaps it,
    as fusion's cost model has it.

    Parameters
    ----------
    codec: this rank's; several rounds are welcome.
    centre: what an aggregator holds, alike on every rank; ``codec`` if None.
    ordered: see :func:`combine`.
    """

    def __init__(
        self, codec: Compressor, centre: Compressor | None = None, ordered: bool = False
    ) -> None:
        self.codec, self.centre, self.ordered = codec, centre or codec, ordered
        self._thread = ThreadPoolExecutor(1, "messenger")

    def launch(self, tensor: torch.Tensor, key: Key) -> Message:
        """Encode ``tensor`` now and send it off."""
        rounds = self.codec.encode(tensor, key)
        payload, how = next(rounds)
        message = Message(launched_at=time.perf_counter())
        self._thread.submit(self._deliver, message, rounds, payload, how, key)
        return message

    def close(self) -> None:
        """End the thread, once what was launched has been delivered."""
        self._thread.shutdown()

    def _deliver(
        self, message: Message, rounds: Encoding, payload: Payload, how: Combine, key: Key
    ) -> None:
        start = time.perf_counter()
        try:
            while True:
                message.sent.append(payload.nbytes)
                combined = combine(payload, how, self.centre, key, self.ordered)
                try:
                    payload, how = rounds.send(combined)
                except StopIteration as stop:
                    total = stop.value
                    break
        except BaseException as error:
            message.total.set_exception(error)
            return
        message.done_at = time.perf_counter()
        message.busy_s = message.done_at - start
        message.total.set_result(total)
