"""Helpers of several kernels: exact rounding and guarded look-ups.

Triton's interpreter truncates where a GPU rounds (bfloat16), and rounds fp8 its own way. Values are therefore rounded
here, in float32 and integers, to one that the narrow type holds exactly: compiled, interpreted and torch then agree.
"""

import triton
import triton.language as tl

INTEGERS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}
"""Integer type to move bytes with, by size in bytes."""


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """Return float32 `x` as `dtype`, rounded to nearest even; fp8 (e4m3) saturates at 448. NaN stays NaN."""
    bits = x.to(tl.int32, bitcast=True)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    if dtype == tl.bfloat16:  # its bits are the upper half; the interpreter's own cast loses subnormals
        up = tl.where(is_nan, 0x7FC00000, bits + 0x7FFF + ((bits >> 16) & 1))
        return (up >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    if dtype == tl.float8e4nv:
        magnitude = tl.minimum(tl.abs(x), 448.0)
        kept = magnitude.to(tl.int32, bitcast=True)
        normal = (kept + 0x7FFFF + ((kept >> 20) & 1)) & -0x100000
        # Below 2**-6 the steps are 2**-9, which is the step of float32 at 2**14.
        small = ((magnitude + 16384.0) - 16384.0).to(tl.int32, bitcast=True)
        sign = (bits >> 31) << 31
        up = tl.where(magnitude < 0.015625, small, normal) | sign
        x = tl.where(is_nan, float("nan"), up.to(tl.float32, bitcast=True))
    return x.to(dtype)


@triton.jit
def exists(block, blocks):
    """Return True if an id names a block of a pool of `blocks`: not null, not negative, not beyond it."""
    return (block > 0) & (block < blocks)


@triton.jit
def column_block(table, row, column, columns, row_stride, column_stride):
    """Return table[row, column] of an existing row, null for a missing column; `table` has at least one column."""
    inside = (column >= 0) & (column < columns)
    at = tl.where(inside, column, 0)
    block = tl.load(table + row.to(tl.int64) * row_stride + at * column_stride)
    return tl.where(inside, block, 0)
