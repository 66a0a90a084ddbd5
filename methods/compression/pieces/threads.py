"""Work on a large CPU tensor block by block, on as many threads as torch may use.

Kernels that release the interpreter's lock (numba's with ``nogil``) run side by side. Results must
not depend on the number of threads: a block writes only its own part, and whoever adds blocks up
does so in their order.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")

ONE_CALL = 2**18
"""Values up to which one kernel for a whole step is faster here: calls take longer than work."""

BLOCK = 2**18
"""Values handled at once, so that a block stays in cache between passes over it."""

NEAR = 2**9
"""Values of a piece that a kernel loops over several times: the nearest cache keeps so many, and
the next ones arrive meanwhile."""


def each_block(n: int, work: Callable[[int, int], T], block: int = BLOCK) -> list[T]:
    """``work(start, stop)`` for every block of ``0 … n``; the results in the blocks' order."""
    if 0 < n <= block:
        return [work(0, n)]
    starts = range(0, n, block)
    if len(starts) < 2 or torch.get_num_threads() < 2:
        return [work(start, min(start + block, n)) for start in starts]
    pool = _pool(torch.get_num_threads())
    return list(pool.map(lambda start: work(start, min(start + block, n)), starts))


def one_call(tensor: torch.Tensor) -> bool:
    """Whether one kernel for a whole step is faster for ``tensor`` than one for each of its parts;
    never on a GPU."""
    return tensor.device.type == "cpu" and tensor.numel() <= ONE_CALL


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="codec")


# The pool's threads do not come along into a forked process.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
