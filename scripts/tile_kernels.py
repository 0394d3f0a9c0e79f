"""The Triton kernel that `measure_tile_order.py` measures."""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def grouped_tiles(
    activations,
    weights,
    results,
    order,
    num_tiles,
    k,
    n,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    flatten: tl.constexpr,
):
    """Multiply the tiles of a list: program p of P takes the tiles p, p + P, p + 2 P, ..."""
    for tile in tl.range(tl.program_id(0), num_tiles, tl.num_programs(0), flatten=flatten):
        expert = tl.load(order + 3 * tile)
        row = tl.load(order + 3 * tile + 1) * block_m
        column = tl.load(order + 3 * tile + 2) * block_n
        total = tl.zeros((block_m, block_n), dtype=tl.float32)
        for inner in range(0, k, block_k):
            left = activations.load([row, inner])
            right = weights.load([expert * n + column, inner])
            total = tl.dot(left, right.T, total)
        results.store([row, column], total.to(tl.bfloat16))


@triton.jit
def tiles_by_pointers(
    left,
    right,
    results,
    m,
    n,
    k,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    precision: tl.constexpr,
):
    """Multiply (m, k) by (n, k) transposed, both loaded by pointers: by cp.async where staged."""
    group: tl.constexpr = 8
    num_rows, num_columns = m // block_m, n // block_n
    first = tl.program_id(0) // (group * num_columns) * group
    height = min(num_rows - first, group)
    row = first + tl.program_id(0) % (group * num_columns) % height
    column = tl.program_id(0) % (group * num_columns) // height
    rows = row * block_m + tl.arange(0, block_m)
    columns = column * block_n + tl.arange(0, block_n)
    inner = tl.arange(0, block_k)
    at_left = left + rows[:, None] * k + inner[None, :]
    at_right = right + columns[None, :] * k + inner[:, None]
    total = tl.zeros((block_m, block_n), dtype=tl.float32)
    for _ in range(0, k, block_k):
        total = tl.dot(tl.load(at_left), tl.load(at_right), total, input_precision=precision)
        at_left += block_k
        at_right += block_k
    at = results + rows[:, None] * n + columns[None, :]
    tl.store(at, total.to(results.dtype.element_ty))


@triton.jit
def tiles_by_descriptors(
    left,
    right,
    results,
    m,
    n,
    k,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    precision: tl.constexpr,
):
    """As `tiles_by_pointers`, with tensor descriptors: loaded by the bulk tensor copy engine."""
    group: tl.constexpr = 8
    num_rows, num_columns = m // block_m, n // block_n
    first = tl.program_id(0) // (group * num_columns) * group
    height = min(num_rows - first, group)
    row = first + tl.program_id(0) % (group * num_columns) % height
    column = tl.program_id(0) % (group * num_columns) // height
    total = tl.zeros((block_m, block_n), dtype=tl.float32)
    for inner in range(0, k, block_k):
        one = left.load([row * block_m, inner])
        other = right.load([column * block_n, inner])
        total = tl.dot(one, other.T, total, input_precision=precision)
    rows = row * block_m + tl.arange(0, block_m)
    columns = column * block_n + tl.arange(0, block_n)
    at = results + rows[:, None] * n + columns[None, :]
    tl.store(at, total.to(results.dtype.element_ty))


@triton.jit
def held_copy(source, target, steps, rounds, block: tl.constexpr):
    """Copy `steps` blocks of 4-byte words for each program, side by side, and all that again."""
    for step in range(steps * rounds):
        at = ((step % steps).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * block
        at += tl.arange(0, block)
        tl.store(target + at, tl.load(source + at))


@triton.jit
def quantised(values, results, scales, width, block: tl.constexpr):
    """Cast a row's blocks of `block` values to FP8 with one scale for each."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * block * 8 + tl.arange(0, 8)[:, None] * block + tl.arange(0, block)[None, :]
    mask = at < width
    found = tl.load(values + row * width + at, mask=mask, other=0.0).to(tl.float32)
    most = tl.maximum(tl.max(tl.abs(found), axis=1), 1e-4)
    scale = most / 448.0
    cast = (found / scale[:, None]).to(tl.float8e4nv)
    tl.store(results + row * width + at, cast, mask=mask)
    where = part * 8 + tl.arange(0, 8)
    tl.store(scales + row * (width // block) + where, scale, mask=where < width // block)
