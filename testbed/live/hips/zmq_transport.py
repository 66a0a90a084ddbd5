"""The messages of HiPS over the wire: a payload travels as its frame."""

from __future__ import annotations

from typing import Any

from slowlink.testbed.live.hips.messages import CONTROL, DATA, Message
from slowlink.testbed.live.wire import Received, ZmqWire, whole

NUMBERS = ("epoch", "round", "key", "step")


class ZmqTransport(ZmqWire):
    """A :class:`testbed.live.wire.ZmqWire` that sends and receives :class:`Message`.

    ``limit_bytes`` bounds the largest tensor, in bytes of float32.
    """

    _encoded: tuple[Any, bytes] = (None, b"")

    def send(self, destination: str, message: Message) -> None:
        """Send once, in order; raises ValueError where the message is too large."""
        payload, frame = message.payload, b""
        if payload is not None:
            if max(payload.nbytes, 4 * payload.numel) > self.limit_bytes:
                raise ValueError(
                    f"{message.kind} to {destination}: payload of {payload.nbytes} bytes and shape "
                    f"{payload.shape}, at most {self.limit_bytes} bytes fit; raise limit_bytes"
                )
            if payload is not self._encoded[0]:  # one answer goes to many nodes
                from slowlink.methods.compression import Frame

                self._encoded = payload, Frame(payload).to_bytes()
            frame = self._encoded[1]
        names = ("kind", *NUMBERS, "body")
        super().send(destination, {name: getattr(message, name) for name in names}, frame)

    def receive(self, timeout_s: float) -> Message | None:
        """The next message, None if there is none in time; raises as :meth:`ZmqWire.receive`."""
        received = super().receive(timeout_s)
        if received is None:
            return None
        try:
            return self._message(received)
        except ValueError as error:
            raise ValueError(f"message of {received.sender} refused: {error}") from None

    def _message(self, received: Received) -> Message:
        head, sender, kind = dict(received.head), received.sender, received.kind
        if kind in ("heartbeat", "left") and "body" not in head:  # the wire's own
            return Message(head.pop("kind"), sender, body=head)
        body = head.get("body")
        if kind not in (*DATA, *CONTROL) or not isinstance(body, dict):
            raise ValueError(f"kind {kind!r} with body {type(body).__name__}")
        numbers = {name: whole(head, name, -1) for name in NUMBERS}
        payload = None
        if received.body:
            from slowlink.methods.compression import Frame

            payload = Frame.from_bytes(received.body, limit=self.limit_bytes).payload
        return Message(kind, sender, **numbers, payload=payload, body=body)
