"""What a fusion wants to know of a training under way: measured on its codec and its wire."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from slowlink.methods.fusion import Costs
from slowlink.torch.messenger import Messenger

TRIES = 3
"""Messages of each shape; the fastest counts, since the first ones compile kernels."""


def measured(
    messenger: Messenger, shapes: Sequence[torch.Size], backward_s: Sequence[float]
) -> Costs:
    """Costs of tensors of these shapes, coded one by one; the first rank's, alike on all ranks.

    Sends some messages of random values through the messenger's wire, with a codec as its own and
    no memory; nothing else may be under way.

    Parameters
    ----------
    backward_s: seconds of backward that end with each tensor, in the order of ``shapes``.
    """
    twin = Messenger(
        messenger.wire, dataclasses.replace(messenger.codec), ordered=messenger.ordered
    )
    device = messenger.wire.device
    coding: dict[torch.Size, tuple[float, float]] = {}
    sent: list[tuple[int, float]] = []
    for shape in dict.fromkeys(shapes):
        values = torch.randn(shape, device=device)
        messages = []
        for _ in range(TRIES):
            messages.append(twin.launch([(str(shape), values)]))
            messages[-1].totals.result()
        waits = [message.waited_s(0.0) for message in messages]
        decode = min(m.busy_s - waited for m, waited in zip(messages, waits, strict=True))
        coding[shape] = min(message.encode_s for message in messages), decode
        sent.append((sum(messages[-1].sent), min(waits)))
    twin.close()
    latency, per_byte = _line(sent)
    nbytes = [sum(messenger.codec.payload_bytes(shape)) for shape in shapes]
    table = torch.tensor(
        [
            backward_s,
            *zip(*(coding[s] for s in shapes), strict=True),
            [b * per_byte for b in nbytes],
        ],
        dtype=torch.float64,
    )
    table = torch.cat([table.flatten(), torch.tensor([latency], dtype=torch.float64)]).to(device)
    dist.broadcast(table, dist.get_global_rank(messenger.wire.group, 0), group=messenger.wire.group)
    *rows, latency = table.tolist()
    backward, encode, decode, carry = (
        rows[i * len(shapes) : (i + 1) * len(shapes)] for i in range(4)
    )
    so_far = {
        name: list(itertools.accumulate(of_tensors, initial=0.0))
        for name, of_tensors in (("encode", encode), ("decode", decode), ("carry", carry))
    }

    def total(name: str, begin: int, end: int) -> float:
        return max(0.0, so_far[name][end] - so_far[name][begin])

    return Costs(
        backward,
        encode=lambda begin, end: total("encode", begin, end),
        communicate=lambda begin, end: latency + total("carry", begin, end),
        decode=lambda begin, end: total("decode", begin, end),
    )


def _line(sent: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Seconds of a message and of each byte, both at least 0, by least squares."""
    nbytes, seconds = np.array(sent, dtype=float).T
    spread = nbytes - nbytes.mean()
    slope = float(spread @ seconds / (spread @ spread)) if spread.any() else 0.0
    slope = max(slope, 0.0)
    return max(float((seconds - slope * nbytes).mean()), 0.0), slope
