"""What a hook's messages cost a training step."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields

from slowlink.torch.messenger import Aggregation


@dataclass(frozen=True)
class Report:
    """What a training step costs this rank: medians over steps. Printed, it is a table.

    Attributes
    ----------
    method: name of the codec.
    steps: that the medians are over. messages: of a step.
    dense_bytes: of the gradients as float32.
    payload_bytes: that this rank put in; frame_bytes: with what the wire puts around them.
    encode_ms: on the time of backward. decode_ms: beside it, combining included.
    wait_ms: for other ranks, after the last gradient was there.
    busy_ms: of messages, from when they are taken up until they are decoded.
    hidden_ms: of these, behind backward; exposed_ms: the rest, after the last gradient.
    """

    method: str
    steps: int
    messages: float = 0.0
    dense_bytes: float = 0.0
    payload_bytes: float = 0.0
    frame_bytes: float = 0.0
    encode_ms: float = 0.0
    decode_ms: float = 0.0
    wait_ms: float = 0.0
    busy_ms: float = 0.0
    hidden_ms: float = 0.0
    exposed_ms: float = 0.0

    @classmethod
    def of(cls, method: str, steps: Sequence[Step]) -> Report:
        """The medians over ``steps``; all are 0 where there are none yet."""
        if not steps:
            return cls(method, 0)
        names = [one.name for one in fields(Step)]
        medians = {name: statistics.median(getattr(s, name) for s in steps) for name in names}
        return cls(method, len(steps), **medians)

    def as_dict(self) -> dict[str, str | int | float]:
        """The fields by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def json(self) -> str:
        """One line for a log."""
        return json.dumps(self.as_dict())

    def __str__(self) -> str:
        share = f" ({self.payload_bytes / self.dense_bytes:.2%} of float32)" if self.steps else ""
        lines = [
            ("messages", f"{self.messages:g}"),
            ("payload", f"{self.payload_bytes:,.0f} B{share}"),
            ("with frames", f"{self.frame_bytes:,.0f} B"),
            ("encoding", f"{self.encode_ms:.2f} ms"),
            ("decoding", f"{self.decode_ms:.2f} ms"),
            ("waiting at the end", f"{self.wait_ms:.2f} ms"),
            ("hidden behind backward", f"{self.hidden_ms:.2f} ms"),
            ("not hidden", f"{self.exposed_ms:.2f} ms"),
        ]
        head = f"{self.method}: medians over {self.steps} steps, this rank"
        return "\n".join([head, *(f"  {name:<24}{value:>34}" for name, value in lines)])


@dataclass(frozen=True)
class Step:
    """One step's share of a :class:`Report`."""

    messages: float
    dense_bytes: float
    payload_bytes: float
    frame_bytes: float
    encode_ms: float
    decode_ms: float
    wait_ms: float
    busy_ms: float
    hidden_ms: float
    exposed_ms: float

    @classmethod
    def of(cls, messages: Sequence[Aggregation], values: int) -> Step:
        """The record of one step's messages, which stand for so many values."""
        ended = messages[-1].launched_at  # the last gradient was there
        busy = sum(one.busy_s for one in messages)
        exposed = max(0.0, max(one.done_at for one in messages) - ended)
        waited = sum(one.waited_s(-float("inf")) for one in messages)
        return cls(
            messages=len(messages),
            dense_bytes=4 * values,
            payload_bytes=sum(sum(one.sent) for one in messages),
            frame_bytes=sum(sum(one.framed) for one in messages),
            encode_ms=1e3 * sum(one.encode_s for one in messages),
            decode_ms=1e3 * (busy - waited),
            wait_ms=1e3 * sum(one.waited_s(ended) for one in messages),
            busy_ms=1e3 * busy,
            hidden_ms=1e3 * max(0.0, busy - exposed),
            exposed_ms=1e3 * exposed,
        )
