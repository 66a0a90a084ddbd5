"""Products of a large matrix with a few long rows.

Libraries of linear algebra read the matrix anew for every row or two, and take several times as
long as a copy of it where two to seven are multiplied. Here it is read once, and what stands before
or after a product is done while a part of it is in cache.
"""

from __future__ import annotations

import numba
import numpy as np
import torch

from slowlink.methods.compression.pieces import buffers
from slowlink.methods.compression.pieces.threads import BLOCK, each_block

LINE = 1024
"""Columns at least of a block, so that rows are read in long runs."""


def add_and_project(residual: torch.Tensor, values: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Add ``values`` to the first of ``residual``'s, and return ``q·residualᵀ``.

    residual: (rows, columns). values: at most as many, of one dimension. q: (rank, columns), all
    float32, contiguous and on one device. Returns (rank, rows).
    """
    if residual.device.type != "cpu":
        residual.view(-1)[: len(values)] += values
        return q @ residual.T
    made = torch.empty(len(q), len(residual))
    arrays = [one.numpy() for one in (residual, values, q, made)]
    part = max(1, BLOCK // residual.shape[1])
    each_block(len(residual), lambda start, stop: _add_and_project(*arrays, start, stop), part)
    return made


def collapse(p: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """``p·residual``: (rank, rows) by (rows, columns), float32, contiguous and on one device."""
    if residual.device.type != "cpu":
        return p @ residual
    made = torch.zeros(len(p), residual.shape[1])
    arrays = [one.numpy() for one in (p, residual, made)]
    part = max(LINE, BLOCK // len(residual))
    each_block(made.shape[1], lambda start, stop: _collapse(*arrays, start, stop), part)
    return made


def expand(
    p: torch.Tensor, q: torch.Tensor, total: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    """Subtract ``pᵀ·q`` from ``residual``, and return ``pᵀ·total``.

    p: (rank, rows). q, total: (rank, columns). residual: (rows, columns), all float32, contiguous
    and on one device.
    """
    result = buffers.empty(residual.numel(), "float32", residual.device).view_as(residual)
    if residual.device.type != "cpu" or len(p) == 1:  # libraries are fast with a single row
        residual.addmm_(p.T, q, alpha=-1)
        return torch.mm(p.T, total, out=result)
    by = np.ascontiguousarray(p.numpy().T)
    less, more, left, made = -q.numpy(), *(one.numpy() for one in (total, residual, result))

    def some(start: int, stop: int) -> None:
        made[start:stop] = 0
        _add_products(by[start:stop], less, left[start:stop])
        _add_products(by[start:stop], more, made[start:stop])

    each_block(len(left), some, max(1, BLOCK // left.shape[1]))
    return result


_kernel = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
_sum_kernel = numba.njit(
    nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc"}
)


@_sum_kernel
def _add_and_project(
    left: np.ndarray, more: np.ndarray, by: np.ndarray, into: np.ndarray, start: int, stop: int
) -> None:
    """``left += more``, ``into = by·leftᵀ`` of some rows, two of them and four of ``by``'s at once.

    Of an odd number the last is handled as a pair of itself, which adds to it once.
    """
    columns, rank, fours = left.shape[1], len(by), len(by) // 4 * 4
    for one in range(start, stop, 2):
        two = min(one + 1, stop - 1)
        first, second = left[one], left[two]
        for row in range(one, two + 1):
            added, to = more[row * columns : (row + 1) * columns], left[row]
            for i in range(added.size):
                to[i] += added[i]
        for k in range(0, fours, 4):
            ra, rb, rc, rd = by[k], by[k + 1], by[k + 2], by[k + 3]
            a = b = c = d = e = f = g = h = np.float32(0)
            for i in range(columns):
                a += first[i] * ra[i]
                b += first[i] * rb[i]
                c += first[i] * rc[i]
                d += first[i] * rd[i]
                e += second[i] * ra[i]
                f += second[i] * rb[i]
                g += second[i] * rc[i]
                h += second[i] * rd[i]
            into[k, one], into[k + 1, one], into[k + 2, one], into[k + 3, one] = a, b, c, d
            into[k, two], into[k + 1, two], into[k + 2, two], into[k + 3, two] = e, f, g, h
        for k in range(fours, rank):
            ra = by[k]
            a = e = np.float32(0)
            for i in range(columns):
                a += first[i] * ra[i]
                e += second[i] * ra[i]
            into[k, one], into[k, two] = a, e


@_kernel
def _collapse(by: np.ndarray, rows: np.ndarray, into: np.ndarray, start: int, stop: int) -> None:
    """``into += by·rows`` of some columns, four of the rows and two of ``by``'s at once."""
    fours, twos = len(rows) // 4 * 4, len(by) // 2 * 2
    for one in range(0, fours, 4):
        ra, rb = rows[one, start:stop], rows[one + 1, start:stop]
        rc, rd = rows[one + 2, start:stop], rows[one + 3, start:stop]
        for k in range(0, twos, 2):
            a, b, c, d = by[k, one], by[k, one + 1], by[k, one + 2], by[k, one + 3]
            e, f, g, h = by[k + 1, one], by[k + 1, one + 1], by[k + 1, one + 2], by[k + 1, one + 3]
            first, second = into[k, start:stop], into[k + 1, start:stop]
            for i in range(first.size):
                first[i] += a * ra[i] + b * rb[i] + c * rc[i] + d * rd[i]
                second[i] += e * ra[i] + f * rb[i] + g * rc[i] + h * rd[i]
        for k in range(twos, len(by)):
            a, b, c, d = by[k, one], by[k, one + 1], by[k, one + 2], by[k, one + 3]
            first = into[k, start:stop]
            for i in range(first.size):
                first[i] += a * ra[i] + b * rb[i] + c * rc[i] + d * rd[i]
    for one in range(fours, len(rows)):
        ra = rows[one, start:stop]
        for k in range(len(by)):
            a, first = by[k, one], into[k, start:stop]
            for i in range(first.size):
                first[i] += a * ra[i]


@_kernel
def _add_products(factors: np.ndarray, rows: np.ndarray, into: np.ndarray) -> None:
    """``into += factors·rows``, four of the rows at once."""
    rank, fours = len(rows), len(rows) // 4 * 4
    for one in range(len(into)):
        row, by = into[one], factors[one]
        for k in range(0, fours, 4):
            a, b, c, d = by[k], by[k + 1], by[k + 2], by[k + 3]
            ra, rb, rc, rd = rows[k], rows[k + 1], rows[k + 2], rows[k + 3]
            for i in range(row.size):
                row[i] += a * ra[i] + b * rb[i] + c * rc[i] + d * rd[i]
        for k in range(fours, rank):
            a, ra = by[k], rows[k]
            for i in range(row.size):
                row[i] += a * ra[i]
