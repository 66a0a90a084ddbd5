"""Seconds that compressors take on this machine, and what to hold them against."""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import torch

from slowlink.methods import compression
from slowlink.methods.compression import Compressor, Payload

FEW, MANY = 2**4, 2**10
"""Rows of the square matrices on which :func:`done` times codecs: no cache of one core's own holds
the larger, so that machines with larger and smaller ones agree."""

KERNEL_S = 4e-6
"""Seconds of a kernel where the codecs of this project were timed."""


@dataclass(frozen=True)
class CodingTimes:
    """Seconds until the first payload, from there until the last one, and after it."""

    first_s: float
    further_s: float
    decode_s: float

    @property
    def encode_s(self) -> float:
        return self.first_s + self.further_s

    @property
    def total_s(self) -> float:
        return self.encode_s + self.decode_s


def coding(
    make: Callable[[], Compressor],
    tensors: Sequence[torch.Tensor],
    repeats: int,
    clock: Callable[[], float] | None = None,
) -> CodingTimes:
    """One party's encoding and decoding of ``tensors``, one after the other.

    Medians of ``repeats`` steps after one that is not counted: residuals are then in use, and
    kernels compiled. The party is alone, so what it sent is what comes back; combining payloads is
    not timed. ``clock`` stands in for ``time.perf_counter``.
    """
    made = runs(make, tensors, repeats, clock)
    columns = zip(*map(dataclasses.astuple, made), strict=True)
    return CodingTimes(*(statistics.median(column) for column in columns))


def runs(
    make: Callable[[], Compressor],
    tensors: Sequence[torch.Tensor],
    repeats: int,
    clock: Callable[[], float] | None = None,
) -> list[CodingTimes]:
    """The steps of which :func:`coding` tells the medians; by another ``clock`` if one is given."""
    codec, clock = make(), clock or time.perf_counter
    return [CodingTimes(*_once(codec, tensors, clock)) for _ in range(repeats + 1)][1:]


def _once(
    codec: Compressor, tensors: Sequence[torch.Tensor], clock: Callable[[], float]
) -> tuple[float, float, float]:
    first = further = decode = 0.0
    for key, tensor in enumerate(tensors):
        encoding = codec.encode(tensor, key)
        start = clock()
        asked = next(encoding)
        now = clock()
        first += now - start
        while asked is not None:
            payload, how = asked
            start = clock()
            asked = _send(encoding, [payload] if how == "gather" else payload)
            spent = clock() - start
            if asked is None:
                decode += spent
            else:
                further += spent
    return first, further, decode


def _send(encoding, answer: Payload | list[Payload]):
    try:
        return encoding.send(answer)
    except StopIteration:
        return None


@dataclass(frozen=True)
class Done:
    """Seconds of coding a tensor of FEW rows and one of MANY, and of copying the latter."""

    few_s: float
    many_s: float
    copy_s: float

    @property
    def copies(self) -> float:
        """What grows with the tensor, in copies of it."""
        return (self.many_s - self.few_s) / self.copy_s

    def least(self, other: Done) -> Done:
        """The least of each, of two measurements of one codec."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Done(*map(min, pairs))


def done(make: Callable[[], Compressor], repeats: int = 15) -> tuple[Done, Done]:
    """What encoding and decoding take beside copying, to be held against what a codec declares.

    The least of ``repeats`` runs on one thread, sizes and copies by turns. The clock is this
    thread's processor time, which stands still while others have the processor.
    """
    clock, threads = time.thread_time, torch.get_num_threads()
    torch.set_num_threads(1)
    # Freed once, a large block lets the C library take later ones from memory that it has.
    torch.empty(31 << 20, dtype=torch.uint8).fill_(1)
    seeded = torch.Generator().manual_seed(0)
    few, many = (torch.randn(n, n, generator=seeded) for n in (FEW, MANY))
    target, found = many.clone(), []
    small, large = make(), make()
    try:
        for _ in range(repeats + 3):
            _once(small, [few], clock)  # what the larger drove out of the caches comes back
            parts = [_once(small, [few], clock), _once(large, [many], clock)]
            start = clock()
            target.copy_(many)
            copy_s = clock() - start
            ways = zip(*((first + further, last) for first, further, last in parts), strict=True)
            found.append([Done(*both, copy_s) for both in ways])
    finally:
        torch.set_num_threads(threads)
    encoding, decoding = zip(*found[3:], strict=True)  # the first runs fill caches
    return reduce(Done.least, encoding), reduce(Done.least, decoding)


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def median_s(function: Callable[[], object], repeats: int) -> float:
    """The median of ``repeats`` calls after one that is not counted."""
    return statistics.median([_seconds(function) for _ in range(repeats + 1)][1:])


def copy_s(tensor: torch.Tensor, repeats: int) -> float:
    """Seconds of a plain copy into memory that is already there."""
    return median_s(partial(tensor.clone().copy_, tensor), repeats)


def torch_topk_s(tensor: torch.Tensor, k: int, repeats: int) -> float:
    """Seconds in which torch finds the ``k`` largest magnitudes and their values."""

    def find() -> torch.Tensor:
        return tensor[torch.topk(tensor.abs(), k, sorted=False).indices]

    return median_s(find, repeats)


def torch_power_sgd_s(tensors: Sequence[torch.Tensor], rank: int, repeats: int) -> float:
    """Seconds of torch's own PowerSGD hook on ``tensors``, in a process group of one.

    In a process of its own: where its last callback outlives a group, gloo ends the process.
    """
    from slowlink.testbed.live.processes import run_ranks

    shapes = [tuple(tensor.shape) for tensor in tensors]
    arguments = (shapes, rank, repeats, torch.get_num_threads())
    (seconds,) = run_ranks(_hook_s, 1, *arguments, timeout_s=600)
    return seconds


def _hook_s(
    shapes: Sequence[tuple[int, ...]], rank: int, repeats: int, threads: int, *_: object
) -> float:
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hooks

    torch.set_num_threads(threads)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    state = hooks.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
    state.iter = 2
    bucket = _Bucket([torch.randn(shape) for shape in shapes])
    return median_s(lambda: hooks.powerSGD_hook(state, bucket).wait(), repeats)


class _Bucket:
    """What a communication hook sees of a bucket that holds all gradients."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        pieces = self._flat.split([tensor.numel() for tensor in tensors])
        self._views = [piece.view_as(t) for piece, t in zip(pieces, tensors, strict=True)]

    def buffer(self) -> torch.Tensor:
        return self._flat

    def gradients(self) -> list[torch.Tensor]:
        return self._views

    def parameters(self) -> list[torch.Tensor]:
        return self._views

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


def main(arguments: Sequence[str]) -> None:
    """Print what work the codecs named do here, for their files to declare."""
    for name in arguments:
        for way, spent in zip(
            ("encode", "decode"), done(partial(compression.load, name)), strict=True
        ):
            kernels = max(1, round(spent.few_s / KERNEL_S))
            print(f"{name}: {way}_work = Work(passes={spent.copies:.2g}, kernels={kernels})")


if __name__ == "__main__":
    main(sys.argv[1:])
