"""A template: copy it to ``methods/compression/<name>.py`` and make it your method.

The file's name is the method's name; there is nothing to register. ``snakemake --cores 2 matrix
--config only=<name>`` then ranks it beside the others. A codec is the most common addition; an
exchange, a policy or a fusion derives from the base of its own room in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from slowlink.methods.compression import Combine, Compressor, Key, Payload, Work
from slowlink.methods.compression.pieces import packing


@dataclass
class BlockMean(Compressor):
    """Sends the mean of each block of ``block`` values, the last block shorter: 4⌈n/block⌉ bytes.

    Parameters
    ----------
    block: values that share one mean, at least 1.
    """

    summary: ClassVar[str] = "means of blocks of values"
    source: ClassVar[str] = "a template, from no document"
    # "sum" where bodies of one dtype add value by value, "merge" with a merge() of your own, or
    # "gather" where everyone needs everyone's payload.
    combine: ClassVar[Combine] = "sum"

    # What coding does to memory, as ``python -m slowlink.testbed.measuring <name>`` prints it:
    # devices price that, and a test holds it against the clock. A codec that sends small tensors as
    # they are says so in its own work(values).
    encode_work: ClassVar[Work] = Work(passes=15, kernels=7)
    decode_work: ClassVar[Work] = Work(passes=8, kernels=6)

    block: int = 4  # parameters are fields with defaults; recipes set them by name

    def __post_init__(self) -> None:
        self._require("block", int, "a whole number >= 1", lambda x: x >= 1)

    def payload_bytes(self, shape: Sequence[int]) -> tuple[int, ...]:
        # A number a round of communication. Tests hold it against the bodies.
        return (4 * -(-math.prod(shape) // self.block),)

    def compress(self, tensor: torch.Tensor, key: Key) -> Payload:
        # What must be kept until the next call lives in self._memory(key, flat, "residual").
        flat = self._flat(tensor, key)
        whole = flat.numel() // self.block * self.block
        means = [flat[:whole].view(-1, self.block).mean(dim=1)]
        if whole < flat.numel():
            means.append(flat[whole:].mean().view(1))
        body = packing.to_bytes(torch.cat(means), "float32")
        return self._payload(body, tensor.shape, "means", "float32")

    def decompress(self, payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
        n = self._expect(payload, {"means": ("float32",)})
        blocks = -(-n // self.block)
        means = packing.from_bytes(payload.body, "float32", blocks, f"{self.name} means", device)
        return means.repeat_interleave(self.block)[:n].view(payload.shape)
