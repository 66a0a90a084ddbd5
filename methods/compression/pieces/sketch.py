"""Count-sketch: a small table of signed sums from which large values can be read back.

Charikar, Chen and Farach-Colton 2002; in training: Ivkin et al. 2019, §2. Each of r rows adds every
value, times a random sign, to one of its c cells. A row's estimate of a value is its cell times the
sign, the sketch's estimate the median over the rows. A sketch is linear: sketches add.

Hashing. Values are hashed a block of w ≤ c/2 neighbours at a time. In each row a block b has a
start a(b), uniform on 0 … c-1, and a sign s(b); each place o in a block has a sign t(o). The value
at place o of block b goes to cell (a(b) + o) mod c with sign s(b)·t(o). Starts and signs are drawn
and kept, not computed: they are independent, and no product can overflow. A sketch then is w
neighbouring sums at a time, yet as good as one that hashes each value by itself:

- Values of one block never meet, any two others meet with probability 1/c. The signs of two values
  that meet are independent of each other and of where values go.
- So a row's estimate of g_i has mean g_i and variance Σ_j g_j²/c ≤ ‖g‖²/c, over the j of other
  blocks, and rows are independent: the median is off by more than 3‖g‖/√c with a probability that
  falls exponentially with r.
- A row's sum of squares has mean ‖g‖² and variance at most 4‖g‖⁴/c. Its off-diagonal part is a sum
  over pairs of blocks, uncorrelated by their signs, of twice the two blocks' correlation at a
  uniform shift. Its second moment is that of independent signs, Σ g_i²g_j²/c over the places that
  meet, except at shift 0: there the place signs cancel and leave ⟨g_b, g_b'⟩²/c.
  (Independent signs throughout give 2‖g‖⁴/c.)

What differs is that two blocks which meet do so at all their places, so errors within a block
depend on each other; none of the bounds above needs that they do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import torch

from slowlink.methods.compression.pieces import buffers
from slowlink.methods.compression.pieces.threads import BLOCK, each_block

WIDEST = 256
"""Values hashed at once at most (w): enough to fill vector units, few beside the columns."""

PARTS = 2
"""Tables that parts of the values go to, added in order; fixed, so that threads do not matter."""


@dataclass(frozen=True)
class Hashing:
    """Where each value goes in each row, and with which sign.

    Attributes
    ----------
    columns: c.
    starts: (rows, blocks) int64, cell of each block's first value.
    signs: (rows, blocks) float32 of ±1, a block's.
    flips: (rows, w) float32 of ±1, a place's in its block.
    """

    columns: int
    starts: np.ndarray
    signs: np.ndarray
    flips: np.ndarray


def draw(n: int, rows: int, columns: int, seed: int) -> Hashing:
    """A hashing of ``n`` values, that depends on the arguments only.

    Raises
    ------
    ValueError
        Rows not odd, or no columns.
    """
    if rows < 1 or rows % 2 == 0 or columns < 1:
        raise ValueError(
            f"a sketch needs an odd number of rows and at least 1 column, not {rows} × {columns}: "
            f"of an even number, either middle row is biased as a median"
        )
    random = np.random.default_rng(seed)
    width = min(WIDEST, 1 << max(0, columns.bit_length() - 2))
    blocks = -(-n // width)
    return Hashing(
        columns,
        random.integers(columns, size=(rows, blocks)),
        _random_signs(random, rows, blocks),
        _random_signs(random, rows, width),
    )


def cells(
    hashing: Hashing, row: int, device: torch.device | str, indices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cells (int64) and signs (float32) of the values at ``indices`` in one row."""
    starts, signs, flips = (
        torch.from_numpy(part[row]).to(device)
        for part in (hashing.starts, hashing.signs, hashing.flips)
    )
    block, place = indices // len(flips), indices % len(flips)
    return (starts[block] + place) % hashing.columns, signs[block] * flips[place]


def sketch(values: torch.Tensor, hashing: Hashing) -> torch.Tensor:
    """(rows, columns) float32 table of flat float32 ``values``; sums in a fixed order on a CPU."""
    rows, width = hashing.flips.shape
    if values.device.type != "cpu":
        return _sketch_by_torch(values, hashing)
    array, blocks = values.numpy(), hashing.starts.shape[1]
    edges = [blocks * part // PARTS for part in range(PARTS + 1)]
    table = np.zeros((PARTS, rows, hashing.columns + width), np.float32)

    def add(first: int, last: int) -> None:
        for task in range(first, last):
            row, part = divmod(task, PARTS)
            of = slice(edges[part], edges[part + 1])
            piece = array[of.start * width : of.stop * width]
            starts, signs = hashing.starts[row, of], hashing.signs[row, of]
            _add(piece, starts, signs, hashing.flips[row], table[part, row])

    tasks = rows * PARTS
    each_block(tasks, add, 1 if len(array) > BLOCK else tasks)
    total = table[0]
    for part in table[1:]:
        total += part
    total[:, :width] += total[:, hashing.columns :]  # blocks that ran over the last column
    return torch.from_numpy(np.ascontiguousarray(total[:, : hashing.columns]))


def estimates(table: torch.Tensor, hashing: Hashing, n: int) -> torch.Tensor:
    """(n,) float32 medians over the rows, of all values that ``table`` sketches. No rounding."""
    if table.device.type != "cpu":
        return _estimates_by_torch(table, hashing, n)
    width = hashing.flips.shape[1]
    cyclic = torch.cat((table, table[:, :width]), 1).numpy()
    medians = buffers.empty(n, "float32")
    result = medians.numpy()

    medians_of = _medians_of_five if len(table) == 5 else _medians

    def read(start: int, stop: int) -> None:
        of = slice(start // width, -(-stop // width))
        starts, signs = hashing.starts[:, of], hashing.signs[:, of]
        medians_of(cyclic, starts, signs, hashing.flips, result[start:stop])

    each_block(n, read, BLOCK)
    return medians


def norm(table: torch.Tensor) -> float:
    """Estimate of the sketched values' 2-norm: root of the median of the rows' sums of squares."""
    squares = np.empty(table.shape[1])
    sums = [np.square(row, out=squares, dtype=np.float64).sum() for row in table.cpu().numpy()]
    return float(np.sqrt(np.median(sums)))


def _random_signs(random: np.random.Generator, rows: int, count: int) -> np.ndarray:
    return random.integers(2, size=(rows, count), dtype=np.uint8) * np.float32(2) - np.float32(1)


def _sketch_by_torch(values: torch.Tensor, hashing: Hashing) -> torch.Tensor:
    """The simple form of :func:`sketch`, for any device; adds in any order."""
    everything = torch.arange(values.numel(), device=values.device)
    table = values.new_zeros(len(hashing.flips), hashing.columns)
    for row, sums in enumerate(table):
        at, signs = cells(hashing, row, values.device, everything)
        sums.index_add_(0, at, signs * values)
    return table


def _estimates_by_torch(table: torch.Tensor, hashing: Hashing, n: int) -> torch.Tensor:
    """The simple form of :func:`estimates`, for any device; bit-equal."""
    everything = torch.arange(n, device=table.device)
    each = table.new_empty(len(table), n)
    for row, sums in enumerate(table):
        at, signs = cells(hashing, row, table.device, everything)
        torch.mul(sums[at], signs, out=each[row])
    return each.median(0).values


@numba.njit(nogil=True, cache=True)
def _add(
    values: np.ndarray, starts: np.ndarray, signs: np.ndarray, flips: np.ndarray, sums: np.ndarray
) -> None:
    """Add blocks of values to one row of a table that is w cells longer than its columns."""
    width = len(flips)
    for block in range(len(starts)):
        piece = values[block * width : (block + 1) * width]
        into = sums[starts[block] : starts[block] + len(piece)]
        sign = signs[block]
        for o in range(len(piece)):
            into[o] += sign * flips[o] * piece[o]


@numba.njit(nogil=True, cache=True)
def _medians(
    table: np.ndarray, starts: np.ndarray, signs: np.ndarray, flips: np.ndarray, out: np.ndarray
) -> None:
    """Medians over the rows for blocks of values, of a table with its first w columns repeated."""
    rows, width = flips.shape
    each = np.empty((rows, width), np.float32)
    for block in range(starts.shape[1]):
        result = out[block * width : (block + 1) * width]
        for row in range(rows):
            start, sign = starts[row, block], signs[row, block]
            read, into, flip = table[row, start : start + width], each[row], flips[row]
            for o in range(width):
                into[o] = sign * flip[o] * read[o]
        # A sorting network, all places at once, that stops when the middle row is in order.
        for last in range(rows - 1, rows // 2 - 1, -1):
            for row in range(last):
                _order(each[row], each[row + 1])
        result[:] = each[rows // 2, : len(result)]


@numba.njit(nogil=True, cache=True)
def _medians_of_five(
    table: np.ndarray, starts: np.ndarray, signs: np.ndarray, flips: np.ndarray, out: np.ndarray
) -> None:
    """:func:`_medians` of five rows, in registers."""
    width = flips.shape[1]
    for block in range(starts.shape[1]):
        result = out[block * width : (block + 1) * width]
        a, b, c = (
            table[0, starts[0, block] :],
            table[1, starts[1, block] :],
            table[2, starts[2, block] :],
        )
        d, e = table[3, starts[3, block] :], table[4, starts[4, block] :]
        # Signs are not read in the loop, because what is written there might be them.
        sa, sb, sc = signs[0, block], signs[1, block], signs[2, block]
        sd, se = signs[3, block], signs[4, block]
        for o in range(len(result)):
            v, w = sa * flips[0, o] * a[o], sb * flips[1, o] * b[o]
            x, y, z = sc * flips[2, o] * c[o], sd * flips[3, o] * d[o], se * flips[4, o] * e[o]
            # The network of _medians, and its signs of zeros: what is last is in order.
            v, w = _ordered(v, w)
            w, x = _ordered(w, x)
            x, y = _ordered(x, y)
            y, z = _ordered(y, z)
            v, w = _ordered(v, w)
            w, x = _ordered(w, x)
            x, y = _ordered(x, y)
            v, w = _ordered(v, w)
            w, x = _ordered(w, x)
            result[o] = x


@numba.njit(nogil=True, cache=True)
def _ordered(a: np.float32, b: np.float32) -> tuple[np.float32, np.float32]:
    return (a, b) if a < b else (b, a)


@numba.njit(nogil=True, cache=True)
def _order(low: np.ndarray, high: np.ndarray) -> None:
    for o in range(len(low)):
        a, b = low[o], high[o]
        low[o] = a if a < b else b
        high[o] = b if a < b else a
