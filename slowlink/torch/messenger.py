"""Aggregation beside computation: messages that are encoded now and decoded when they arrive."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from slowlink.methods.compression import (
    Combine,
    Compressor,
    Encoding,
    Key,
    Payload,
    combine_payloads,
)
from slowlink.torch.wire import Arrived, Flight, Wire

Parts = Sequence[tuple[Key, torch.Tensor]]
"""The tensors of one message, each with its codec's key."""


FINITE = "finite"
"""Key of what a tolerant message says beside its tensors."""


@dataclass
class Aggregation:
    """The aggregation of one message that is under way, with its measurements.

    Attributes
    ----------
    totals: resolves to the sums over all ranks, as the codec decodes them, a tensor a part.
    sent: payload bytes that this rank put in; a number a round.
    framed, received: bytes of payloads with what the wire puts around them, see
        :class:`slowlink.torch.wire.Flight`; a number a round.
    encode_s: seconds that the first round's encoding took, on the caller's time.
    launched_at: ``time.perf_counter()`` when it was encoded and handed over.
    waits: from when to when, by the same clock, it waited for other ranks; a pair a round.
    busy_s: seconds that combining and decoding took, waiting for slower ranks included.
    done_at: as ``launched_at``, when ``totals`` were there.
    finite: false where a rank had to leave out its tensors, see :meth:`Messenger.launch`.
    """

    totals: Future[list[torch.Tensor]] = field(default_factory=Future)
    sent: list[int] = field(default_factory=list)
    framed: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    encode_s: float = 0.0
    launched_at: float = 0.0
    waits: list[tuple[float, float]] = field(default_factory=list)
    busy_s: float = 0.0
    done_at: float = 0.0
    finite: bool = True

    def waited_s(self, since: float, until: float = math.inf) -> float:
        """Seconds of ``waits`` between two times."""
        return sum(max(0.0, min(end, until) - max(start, since)) for start, end in self.waits)


Finish = Callable[[Aggregation, list[torch.Tensor]], Callable[[], None]]


class Messenger:
    """Sends messages while the caller goes on computing.

    A message is encoded by the caller; combining and decoding follow on one thread, in the order
    of launches, which must be the same on every rank. So compression delays backward and
    communication overlaps it, as fusion's cost model has it. Where the wire allows, first rounds
    are begun by the caller, so that several are under way.

    Parameters
    ----------
    wire: to the other ranks; all of a run's messages go through one messenger.
    codec: this rank's; several rounds are welcome.
    centre: what an aggregator holds, alike on every rank; ``codec`` if None.
    ordered: add payloads in the order of ranks, bit-equal to one process that has all of them.
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

    def launch(
        self,
        parts: Parts,
        finish: Finish | None = None,
        *,
        tolerant: bool = False,
        **factor: float,
    ) -> Aggregation:
        """Encode ``parts`` now and send them off as one message.

        Parameters
        ----------
        finish: called with the message and its sums, on the thread; what it returns is called when
            the message has been counted and ``totals`` resolved.
        factor: code so many times the values, which elementwise codecs can.
        tolerant: where values are not finite, send zeros and let all ranks know; else ValueError.
        """
        start = time.perf_counter()
        keys, rounds, asked = [key for key, _ in parts], [], []
        finite = True
        for key, tensor in parts:
            one = self.codec.encode(tensor, key, **factor)
            try:
                asked.append(next(one))
            except ValueError:
                if not tolerant or bool(tensor.isfinite().all()):
                    raise
                finite = False
                one = self.codec.encode(torch.zeros_like(tensor), key)
                asked.append(next(one))
            rounds.append(one)
        if tolerant:
            keys.append(FINITE)
            rounds.append(_said(finite, asked[0]))
            asked.append(next(rounds[-1]))
        message = Aggregation(launched_at=time.perf_counter())
        message.encode_s = message.launched_at - start
        ready, device = None, parts[0][1].device
        if device.type == "cuda":
            ready = torch.cuda.Event()
            ready.record(torch.cuda.current_stream(device))
        flight = self._begin(asked, keys, True) if self.wire.early(self.codec) else None
        self._thread.submit(
            self._deliver, message, rounds, asked, keys, flight, device, ready, finish
        )
        return message

    def close(self) -> None:
        """End the thread, once what was launched has been delivered."""
        self._thread.shutdown()

    def _begin(
        self, asked: Sequence[tuple[Payload, Combine]], keys: Sequence[Key], early: bool
    ) -> Flight:
        payloads, ways = [one for one, _ in asked], [how for _, how in asked]
        exact = self.codec.exact_bytes
        return self.wire.begin(payloads, ways, keys, early=early, ordered=self.ordered, exact=exact)

    def _deliver(
        self,
        message: Aggregation,
        rounds: list[Encoding],
        asked: list[tuple[Payload, Combine]],
        keys: list[Key],
        flight: Flight | None,
        device: torch.device,
        ready: torch.cuda.Event | None,
        finish: Finish | None,
    ) -> None:
        start = time.perf_counter()
        try:
            if ready is not None:  # this thread has a device and a stream of its own
                torch.cuda.set_device(device)
                torch.cuda.current_stream().wait_event(ready)
            totals: list[torch.Tensor | None] = [None] * len(rounds)
            going = list(range(len(rounds)))
            while going:
                message.sent.append(sum(payload.nbytes for payload, _ in asked))
                of_round = [keys[i] for i in going]
                flight = flight or self._begin(asked, of_round, False)
                message.framed.append(flight.framed)
                waiting = time.perf_counter()
                arrived, received = flight.wait()
                message.waits.append((waiting, time.perf_counter()))
                message.received.append(received)
                ways, still, asked, flight = [how for _, how in asked], [], [], None
                for i, one, how in zip(going, arrived, ways, strict=True):
                    try:
                        asked.append(rounds[i].send(combine(one, how, self.centre, keys[i])))
                        still.append(i)
                    except StopIteration as stop:
                        totals[i] = stop.value
                going = still
            if keys[-1] is FINITE:
                message.finite = bool(totals.pop())
            then = finish(message, totals) if finish else None
        except BaseException as error:
            message.totals.set_exception(error)
            return
        message.done_at = time.perf_counter()
        message.busy_s = message.done_at - start
        message.totals.set_result(totals)
        if then:
            then()


def _said(finite: bool, beside: tuple[Payload, Combine]) -> Encoding:
    """Tell all ranks whether everybody's values are ``finite``, in the same way as ``beside``."""
    first, how = beside
    device = first.content.device if isinstance(first.content, torch.Tensor) else "cpu"
    bad = torch.tensor([0.0 if finite else 1.0], device=device)
    how = "sum" if how == "sum" else "gather"
    arrived = yield Payload(bad, FINITE, (1,), "dense", "float32"), how
    payloads = [arrived] if isinstance(arrived, Payload) else arrived
    return not any(any(payload.body) for payload in payloads)


def combine(arrived: Arrived, how: Combine, codec: Compressor, key: Key = None) -> Arrived:
    """What every rank goes on with; ``codec`` merges. Gathered payloads combine in the order of
    ranks, bit-equal to :func:`slowlink.methods.compression.combine_payloads` in one process."""
    if isinstance(arrived, Payload):
        return arrived
    return combine_payloads(codec, arrived, how, key)
