"""Comparisons of 64 float32 values at a time, which numba's own loops do one by one.

A comparison of LLVM vectors, of whatever registers the processor has, leaves a bit a value: those
bits are the signs' body as it is, and to visit what is large costs a step a hit, not a value.
Values are taken by their bits as int32: magnitudes order as these do, NaN above infinity. So are
float16 read and written, scaled and checked in the same pass, by processors that convert them.
"""

from __future__ import annotations

import platform

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

LANES = 64
"""Values of one comparison, a bit each."""

INFINITE = np.int32(0x7F800000)
"""The bits of infinity: no finite magnitude reaches them."""

MAGNITUDE = np.int32(0x7FFFFFFF)
"""The bits of a magnitude, without the sign's."""

HALVES = numba.config.CPU_NAME is None and (
    llvm.get_host_cpu_features().get("f16c", False) or platform.machine() in ("aarch64", "arm64")
)
"""Whether the processor converts float16, so that LLVM asks no library for it."""

_WORD, _LANE = ir.IntType(LANES), ir.IntType(32)
_VECTOR = ir.VectorType(_LANE, LANES)
_FLOATS, _HALVES = (ir.VectorType(kind(), LANES) for kind in (ir.FloatType, ir.HalfType))


def _place(context, builder, kind, array, at, vector):
    """The address of a ``vector`` in ``array`` from index ``at``."""
    start = builder.gep(arrayobj.make_array(kind)(context, builder, array).data, [at])
    return builder.bitcast(start, vector.as_pointer())


def _load(context, builder, kind, array, at, vector=_VECTOR):
    """LANES values of ``array`` from index ``at``, wherever they lie."""
    found = builder.load(_place(context, builder, kind, array, at, vector))
    found.align = 1
    return found


def _store(context, builder, kind, array, at, values):
    stored = builder.store(values, _place(context, builder, kind, array, at, values.type))
    stored.align = 1


def _all(builder, value, vector=_VECTOR):
    """A vector of equal lanes."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_LANE, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_VECTOR, [0] * LANES))


def _largest(builder, floats):
    """The bits of the largest magnitude of a vector."""
    bits = builder.bitcast(floats, _VECTOR)
    magnitudes = builder.and_(bits, ir.Constant(_VECTOR, [int(MAGNITUDE)] * LANES))
    name = f"llvm.vector.reduce.smax.v{LANES}i32"
    reduce = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_LANE, [_VECTOR]), name)
    return builder.call(reduce, [magnitudes])


@intrinsic
def largest_of(_, bits, at):
    """The bits of the largest magnitude of the 64 values from ``at`` on."""

    def generate(context, builder, signature, arguments):
        return _largest(builder, _load(context, builder, signature.args[0], *arguments))

    return types.int32(bits, types.intp), generate


@intrinsic
def _to_halves(_, bits, at, factor, halves):
    def generate(context, builder, signature, arguments):
        its, start, times, into = arguments
        floats = builder.bitcast(_load(context, builder, signature.args[0], its, start), _FLOATS)
        products = builder.fmul(floats, _all(builder, times, _FLOATS))
        rounded = builder.fptrunc(products, _HALVES)
        _store(context, builder, signature.args[3], into, start, rounded)
        return _largest(builder, products)

    return types.int32(bits, types.intp, types.float32, halves), generate


@intrinsic
def _to_floats(_, halves, at, bits):
    def generate(context, builder, signature, arguments):
        its, start, into = arguments
        given = _load(context, builder, signature.args[0], its, start, _HALVES)
        floats = builder.fpext(given, _FLOATS)
        _store(context, builder, signature.args[2], into, start, builder.bitcast(floats, _VECTOR))
        return _largest(builder, floats)

    return types.int32(halves, types.intp, bits), generate


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
    """64 bits, set where a value is below 0; -0 is not. The first eight values are those of the
    lowest byte, the first of them its highest bit, and so on."""

    def generate(context, builder, signature, arguments):
        values = _load(context, builder, signature.args[0], *arguments, vector=_FLOATS)
        hits = builder.fcmp_ordered("<", values, ir.Constant(_FLOATS, [0.0] * LANES))
        order = ir.Constant(_VECTOR, [i ^ 7 for i in range(LANES)])
        hits = builder.shuffle_vector(hits, ir.Constant(hits.type, ir.Undefined), order)
        return builder.bitcast(hits, _WORD)

    return types.uint64(bits, types.intp), generate


@intrinsic
def lowest(_, word):
    """The place of the lowest bit that is set, of a word that is not 0."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@numba.njit(nogil=True, cache=True)
def largest(bits: np.ndarray) -> np.int32:
    """The bits of the largest magnitude, 0 of no values."""
    found, whole = np.int32(0), bits.size // LANES * LANES
    for at in range(0, whole, LANES):
        found = max(found, largest_of(bits, at))
    for i in range(whole, bits.size):
        found = max(found, bits[i] & MAGNITUDE)
    return found


@numba.njit(nogil=True, cache=True)
def to_halves(bits: np.ndarray, factor: np.float32, halves: np.ndarray) -> np.int32:
    """Write ``factor`` times the values as float16, given as uint16; the bits of the largest
    product's magnitude. Of as many values as fill vectors, where :data:`HALVES`."""
    found = np.int32(0)
    for at in range(0, bits.size // LANES * LANES, LANES):
        found = max(found, _to_halves(bits, at, factor, halves))
    return found


@numba.njit(nogil=True, cache=True)
def to_floats(halves: np.ndarray, bits: np.ndarray) -> np.int32:
    """Write float16, given as uint16, as float32; as :func:`to_halves`."""
    found = np.int32(0)
    for at in range(0, bits.size // LANES * LANES, LANES):
        found = max(found, _to_floats(halves, at, bits))
    return found
