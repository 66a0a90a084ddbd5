"""Pooling of 2×2 windows as fast as memory, which torch's on a processor is far from.

Of 32 images in six channels of 28×28, with channels innermost, torch takes three times as long.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor, nn


class MaxPool(nn.MaxPool2d):
    """``nn.MaxPool2d(2)`` to the bit, which on a processor leaves channels innermost in memory."""

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x.dtype != torch.float32:
            return super().forward(x)
        return _Largest.apply(x)[0]


class _Largest(torch.autograd.Function):
    """(N, C, H, W) to the largest of each window, and where in it that lies."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        shape = (*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2)
        values, places = (
            torch.empty(shape, dtype=dtype, memory_format=torch.channels_last)
            for dtype in (torch.float32, torch.uint8)
        )
        _pool(_innermost(x), _innermost(values), _innermost(places))
        return values, places

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx, gradient: Tensor, _: None) -> Tensor:
        (places,) = ctx.saved_tensors
        found = torch.empty(ctx.shape, memory_format=torch.channels_last)
        if ctx.shape[2] % 2 or ctx.shape[3] % 2:
            found.zero_()  # no window reaches the last row or column
        _spread(_innermost(gradient), _innermost(places), _innermost(found))
        return found

    @staticmethod
    def vmap(info, in_dims: tuple[int], x: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        x = x.movedim(in_dims[0], 0)
        pooled = _Largest.apply(x.flatten(0, 1))
        return tuple(one.unflatten(0, x.shape[:2]) for one in pooled), (0, 0)


def _innermost(x: Tensor) -> np.ndarray:
    """``x`` as a contiguous (N, H, W, C) array; shares memory where it lies so."""
    return x.detach().permute(0, 2, 3, 1).contiguous().numpy()


@numba.njit(nogil=True, cache=True)
def _pool(x: np.ndarray, values: np.ndarray, places: np.ndarray) -> None:
    # Without branches and over long rows, so that the compiler takes many values at once.
    height, width, channels = values.shape[1:]
    corners = np.empty((4, width * channels), np.float32)
    for n in range(values.shape[0]):
        for i in range(height):
            if channels % 8:  # of few channels, all of a row's windows are laid side by side
                for corner in range(4):
                    row = x[n, 2 * i + corner // 2].ravel()
                    for j in range(width):
                        begin = (2 * j + corner % 2) * channels
                        for c in range(channels):
                            corners[corner, j * channels + c] = row[begin + c]
                _choose(corners, values[n, i].ravel(), places[n, i].ravel())
            else:
                for j in range(width):
                    top, below = x[n, 2 * i, 2 * j :], x[n, 2 * i + 1, 2 * j :]
                    four = top[0], top[1], below[0], below[1]
                    _choose(four, values[n, i, j], places[n, i, j])


@numba.njit(inline="always")
def _choose(corners, values, places):
    """The largest of four by four, and which of the four it is."""
    for k in range(values.size):
        top, place = corners[0][k], np.uint8(0)
        top, place = _larger(top, place, corners[1][k], np.uint8(1))
        top, place = _larger(top, place, corners[2][k], np.uint8(2))
        top, place = _larger(top, place, corners[3][k], np.uint8(3))
        values[k] = top
        places[k] = place


@numba.njit(inline="always")
def _larger(top, place, value, there):
    # As torch has it: the first of equal ones, and NaN wherever one of the four is.
    larger = (value > top) | (value != value)
    return value if larger else top, there if larger else place


@numba.njit(nogil=True, cache=True)
def _spread(gradient: np.ndarray, places: np.ndarray, found: np.ndarray) -> None:
    zero = np.float32(0)
    height, width, channels = gradient.shape[1:]
    wide = 2 * width * channels
    values, rows = np.empty(wide, np.float32), np.empty(wide, np.uint8)
    for n in range(gradient.shape[0]):
        for i in range(height):
            for j in range(width):
                for c in range(channels):
                    value, place = gradient[n, i, j, c], places[n, i, j, c]
                    left, right = 2 * j * channels + c, (2 * j + 1) * channels + c
                    values[left], values[right] = value, value
                    # 0 in the upper of its two rows, 2 in the lower, odd in another column.
                    rows[left], rows[right] = place, place ^ 1
            top, below = found[n, 2 * i].ravel(), found[n, 2 * i + 1].ravel()
            for k in range(wide):
                top[k] = values[k] if rows[k] == 0 else zero
                below[k] = values[k] if rows[k] == 2 else zero
