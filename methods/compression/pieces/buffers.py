"""Memory for what codecs make: bytes that kernels write in place, tensors in memory used before.

A page that the system hands out fresh costs more than writing it. So bodies lie in huge pages where
there are some, and the memory of a large tensor that nobody holds any more serves the next one.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
import weakref

import numpy as np
import torch

LARGE = 2**22
"""Bytes from which memory is worth the trouble."""

KEPT = 2**28
"""Bytes that wait for another use, at most."""

_new = ctypes.pythonapi.PyBytes_FromStringAndSize
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t)
_address = ctypes.pythonapi.PyBytes_AsString
_address.restype, _address.argtypes = ctypes.c_void_p, (ctypes.py_object,)
_advise = None
if sys.platform == "linux":
    _advise = ctypes.CDLL(None).madvise
    _advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_free: list[np.ndarray] = []
_lock = threading.RLock()  # a finaliser may run wherever memory is asked for, here too


def body(nbytes: int) -> tuple[bytes, np.ndarray]:
    """Bytes whose values are not set yet, and the (nbytes,) uint8 array to set them by.

    CPython's own way to make bytes: they may be written until somebody else has seen them.
    """
    if not nbytes:
        return b"", np.empty(0, np.uint8)
    made = _new(None, nbytes)
    start = _address(made)
    if nbytes >= LARGE and _advise:  # advice: where it is not taken, pages are small
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        whole = (start + nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
        _advise(first, whole, mmap.MADV_HUGEPAGE)
    view = (ctypes.c_ubyte * nbytes).from_address(start)
    view.owner = made  # the array keeps what it points into
    return made, np.frombuffer(view, np.uint8)


def alias(body: bytes | memoryview) -> np.ndarray:
    """The bytes as a (n,) uint8 array that torch takes as its own; nobody must write it."""
    array = np.frombuffer(body, np.uint8)
    if not array.size:
        return np.empty(0, np.uint8)
    view = (ctypes.c_ubyte * array.size).from_address(array.ctypes.data)
    view.owner = array
    return np.frombuffer(view, np.uint8)


def empty(n: int, dtype: str, device: torch.device | str = "cpu") -> torch.Tensor:
    """(n,) uninitialised tensor."""
    if torch.device(device).type != "cpu":
        return torch.empty(n, dtype=getattr(torch, dtype), device=device)
    nbytes = n * np.dtype(dtype).itemsize
    if nbytes < LARGE:
        return torch.from_numpy(np.empty(n, dtype))
    memory = _reuse(nbytes)
    array = memory[:nbytes].view(dtype)
    # A tensor holds this array and nothing else does: where it goes, the memory is free. Arrays
    # that a caller makes of the tensor hold the tensor.
    weakref.finalize(array, _give_back, memory).atexit = False
    return torch.from_numpy(array)


def zeros(n: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """(n,) float32 zeros."""
    if torch.device(device).type != "cpu":
        return torch.zeros(n, device=device)
    if 4 * n < LARGE:
        return torch.from_numpy(np.zeros(n, np.float32))
    return empty(n, "float32").zero_()


def _reuse(nbytes: int) -> np.ndarray:
    """The smallest memory that waits and is not twice as large as needed, or new one."""
    with _lock:
        fitting = [at for at, one in enumerate(_free) if nbytes <= one.nbytes <= 2 * nbytes]
        if fitting:
            return _free.pop(min(fitting, key=lambda at: _free[at].nbytes))
    return np.empty(nbytes, np.uint8)  # numpy asks the system for huge pages


def _give_back(memory: np.ndarray) -> None:
    with _lock:
        _free.append(memory)
        while sum(one.nbytes for one in _free) > KEPT:
            _free.pop(0)
