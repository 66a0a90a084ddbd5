"""Comparisons of 64 float32 values at a time, which numba's own loops do one by one.

A comparison of LLVM vectors, of whatever registers the processor has, leaves a bit a value: those
bits are the signs' body as it is, and to visit what is large costs a step a hit, not a value.
Values are taken by their bits as int32: magnitudes order as these do, NaN above infinity.
"""

from __future__ import annotations

import llvmlite.ir as ir
import numba
import numpy as np
from numba import types
from numba.extending import intrinsic
from numba.np import arrayobj

LANES = 64
"""Values of one comparison, a bit each."""

INFINITE = np.int32(0x7F800000)
"""The bits of infinity: no finite magnitude reaches them."""

MAGNITUDE = np.int32(0x7FFFFFFF)
"""The bits of a magnitude, without the sign's."""

_WORD, _LANE = ir.IntType(LANES), ir.IntType(32)
_VECTOR = ir.VectorType(_LANE, LANES)


def _load(context, builder, kind, array, at):
    """LANES values of ``array`` from index ``at``, wherever they lie."""
    start = builder.gep(arrayobj.make_array(kind)(context, builder, array).data, [at])
    vector = builder.load(builder.bitcast(start, _VECTOR.as_pointer()))
    vector.align = 4
    return vector


def _all(builder, value):
    """A vector of equal lanes."""
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_LANE, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_VECTOR, [0] * LANES))


@intrinsic
def reaching(_, bits, at, least):
    """64 bits, the i-th from below set where the magnitude of value ``at`` + i is ``least``'s."""

    def generate(context, builder, signature, arguments):
        values = _load(context, builder, signature.args[0], *arguments[:2])
        magnitudes = builder.and_(values, ir.Constant(_VECTOR, [int(MAGNITUDE)] * LANES))
        hits = builder.icmp_signed(">=", magnitudes, _all(builder, arguments[2]))
        return builder.bitcast(hits, _WORD)

    return types.uint64(bits, types.intp, types.int32), generate


@intrinsic
def negative(_, bits, at):
    """64 bits, the i-th from below set where value ``at`` + i is below 0; -0 is not."""

    def generate(context, builder, signature, arguments):
        values = _load(context, builder, signature.args[0], *arguments)
        hits = builder.icmp_unsigned(">", values, ir.Constant(_VECTOR, [1 << 31] * LANES))
        return builder.bitcast(hits, _WORD)

    return types.uint64(bits, types.intp), generate


@intrinsic
def lowest(_, word):
    """The place of the lowest bit that is set, of a word that is not 0."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@numba.njit(nogil=True, cache=True)
def first_highest(word: np.uint64) -> np.uint64:
    """``word`` with the bits of each byte in the opposite order."""
    for shift, low in (
        (np.uint64(1), np.uint64(0x5555555555555555)),
        (np.uint64(2), np.uint64(0x3333333333333333)),
        (np.uint64(4), np.uint64(0x0F0F0F0F0F0F0F0F)),
    ):
        word = ((word >> shift) & low) | ((word & low) << shift)
    return word


@numba.njit(nogil=True, cache=True)
def largest(bits: np.ndarray) -> np.int32:
    """The bits of the largest magnitude, 0 of no values."""
    found = np.int32(0)
    for i in range(bits.size):
        found = max(found, bits[i] & MAGNITUDE)
    return found
