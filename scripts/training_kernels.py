"""The Triton kernels that `measure_training.py` measures: casts to FP8, and two streams."""

# mypy: ignore-errors

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

LARGEST = tl.constexpr(448.0)  # of E4M3


@triton.jit
def cast_both(
    values,
    by_rows,
    row_scales,
    by_columns,
    column_scales,
    rows,
    width,
    square: tl.constexpr,
    transposed: tl.constexpr,
    side: tl.constexpr,
):
    """Cast a tile of BF16 to FP8 with a scale for each row, and again transposed by its columns.

    With `square` the tile has one scale for both. Without `transposed` only the first is written.
    """
    top, left = tl.program_id(0) * side, tl.program_id(1) * side
    row, column = top + tl.arange(0, side), left + tl.arange(0, side)
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    found = tl.load(values + at).to(tl.float32)
    size = tl.abs(found)
    if square:
        scale = tl.maximum(tl.max(tl.max(size, axis=1), axis=0), 1e-12) / LARGEST
        cast = (found / scale).to(tl.float8e4nv)
        tl.store(by_rows + at, cast)
        tl.store(row_scales + tl.program_id(0) * (width // side) + tl.program_id(1), scale)
        if transposed:
            there = column.to(tl.int64)[:, None] * rows + row[None, :]
            tl.store(by_columns + there, tl.trans(cast))
    else:
        scale = tl.maximum(tl.max(size, axis=1), 1e-12) / LARGEST
        tl.store(by_rows + at, (found / scale[:, None]).to(tl.float8e4nv))
        tl.store(row_scales + tl.program_id(1).to(tl.int64) * rows + row, scale)
        if transposed:
            other = tl.maximum(tl.max(size, axis=0), 1e-12) / LARGEST
            turned = tl.trans((found / other[None, :]).to(tl.float8e4nv))
            there = column.to(tl.int64)[:, None] * rows + row[None, :]
            tl.store(by_columns + there, turned)
            tl.store(column_scales + tl.program_id(0).to(tl.int64) * width + column, other)


@triton.jit
def transposed_bytes(values, results, rows, width, side: tl.constexpr):
    """Transpose a matrix of bytes in tiles."""
    row = tl.program_id(0) * side + tl.arange(0, side)
    column = tl.program_id(1) * side + tl.arange(0, side)
    found = tl.load(values + row.to(tl.int64)[:, None] * width + column[None, :])
    tl.store(results + column.to(tl.int64)[:, None] * rows + row[None, :], tl.trans(found))


@triton.jit
def largest(values, most, count, block: tl.constexpr):
    """Keep the largest size of values in `most`."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    found = tl.load(values + at, mask=at < count, other=0.0).to(tl.float32)
    tl.atomic_max(most, tl.max(tl.abs(found), axis=0))


@triton.jit
def scale_of(most, scale):
    """Give the scale of a largest size."""
    tl.store(scale, LARGEST / tl.maximum(tl.load(most), 1e-12))


@triton.jit
def cast_by_one(values, results, scale, count, block: tl.constexpr):
    """Cast BF16 to FP8 with one scale."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    found = tl.load(values + at, mask=at < count, other=0.0).to(tl.float32)
    tl.store(results + at, (found * tl.load(scale)).to(tl.float8e4nv), mask=at < count)


@triton.jit
def paced_copy(source, target, flag, done, begun, ended, steps, pace, limit, block: tl.constexpr):
    """Copy 4-byte words block by block, one each `pace` nanoseconds, until the flag is set.

    Each program counts its blocks and keeps its time; none runs longer than `limit` nanoseconds.
    """
    program = tl.program_id(0)
    first = globaltimer()
    count = tl.full((), 0, tl.int64)
    now = first
    while (tl.load(flag, volatile=True) == 0) & (now - first < limit):
        step = (count % steps) * tl.num_programs(0) + program
        at = step * block + tl.arange(0, block)
        tl.store(target + at, tl.load(source + at))
        count += 1
        now = globaltimer()
        while now - first < count * pace:
            now = globaltimer()
    tl.store(done + program, count)
    tl.store(begun + program, first)
    tl.store(ended + program, now)


@triton.jit
def spin(begun, ended, nanoseconds):
    """Run for some time in each program, and keep begin and end."""
    first = globaltimer()
    now = first
    while now - first < nanoseconds:
        now = globaltimer()
    tl.store(begun + tl.program_id(0), first)
    tl.store(ended + tl.program_id(0), now)
