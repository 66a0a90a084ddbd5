"""Buckets of so many bytes, as DistributedDataParallel fills them."""

from __future__ import annotations

from dataclasses import dataclass

from slowlink.methods.fusion import Fusion, between

BYTES = 4
"""Bytes of a value: gradients wait in their bucket as float32."""


@dataclass(frozen=True)
class Buckets(Fusion):
    """Tensors fill a bucket in the order of backward, until it holds ``megabytes`` or more; then it
    is sent. Backward's first bucket is smaller, so that sending begins early.

    This is what torch does from its second iteration on, when it knows the order of backward; its
    parameters are ``bucket_cap_mb`` and 1 MB, both in units of 2^20 bytes.

    Parameters
    ----------
    megabytes, first: bytes / 2^20 from which on a bucket, and the first one, is full.
    """

    summary = "Buckets of 25 MB in the order of backward, the first of 1 MB"
    source = "Li et al., VLDB 2020 [@li2020pytorch]: torch's DistributedDataParallel"

    megabytes: float = 25.0
    first: float = 1.0

    def __post_init__(self) -> None:
        for name in ("megabytes", "first"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"buckets: {name} must be above 0, not {getattr(self, name)}")

    def __call__(self, sizes, costs=None):
        ends, held = [], 0
        for i, size in enumerate(sizes, start=1):
            held += BYTES * size
            full = 2**20 * (self.megabytes if ends else self.first)
            if held >= full or i == len(sizes):
                ends.append(i)
                held = 0
        return between(ends)
