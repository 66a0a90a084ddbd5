"""Keep freed memory in the process.

Every step frees what the next one asks for again. The C library of Linux gives large blocks back to
the system, which clears each page anew: hundreds of pages a step of a small residual network,
thousands of a small language model.
"""

from __future__ import annotations

import ctypes
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_LARGEST = 32 * 2**20
"""Bytes of the largest block that every glibc can be told to keep (HEAP_MAX_SIZE / 2)."""


@cache
def keep_freed_memory() -> None:
    """Let this process keep what it frees; where the C library is another one, do nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
