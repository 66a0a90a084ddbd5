"""Products of matrices that are much longer than wide.

Some libraries of linear algebra take several times as long as copying the large result where two to
seven rows are multiplied. Here a row of it stays in cache until it is whole.
"""

from __future__ import annotations

import numba
import numpy as np
import torch

from slowlink.methods.compression.pieces import buffers
from slowlink.methods.compression.pieces.threads import BLOCK, each_block


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


@numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
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
