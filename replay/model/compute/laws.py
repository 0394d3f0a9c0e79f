"""Laws by which kernels take longer than their bytes, by the names that lists of kernels have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.row_moves import cast_twice, chunk_map, row_map, row_walk
from replay.model.machine.times import NO_TIME, Time

if TYPE_CHECKING:
    from collections.abc import Callable

    from replay.model.machine.machine import IntsLike, Machine

STRIDED_CLOCKS = 0.60
"""Clocks of an SM for a value of an elementwise kernel that finds each address by itself, since its
operands are strided or of several types: SwiGLU of 65,536 x 7168 from halves of rows takes 2429 us
in two kernels, 132 SMs at 1.755 GHz (small_kernels.csv, H200; 7 % more on an H100)."""
ATOMIC_CLOCKS = 1.83
"""The same for a BF16 value that is added up atomically: ``index_add_`` of 65,536 x 7168 values
takes 3712 us (the same table; 3709 on an H100)."""


def strided_time(machine: Machine, kernels: IntsLike, values: int) -> Time:
    """Time of elementwise kernels that find the address of each value by itself.

    Parameters
    ----------
    kernels, values
        (rank,): kernels, or rows of one; and values of each.
    """
    return _clocks(machine, np.multiply(kernels, values), STRIDED_CLOCKS)


def atomic(machine: Machine, kernels: IntsLike, values: int) -> Time:
    """Time of kernels that add values up atomically; parameters as those of `strided_time`."""
    return _clocks(machine, np.multiply(kernels, values), ATOMIC_CLOCKS)


def chain(machine: Machine, kernels: IntsLike, loads: int) -> Time:
    """Time of kernels whose loads wait for each other: digits of a sort, rows of a single block.

    Parameters
    ----------
    kernels, loads
        (rank,): kernels, and loads from memory that each makes one after the other.
    """
    return machine.costs.memory_load() * np.multiply(kernels, loads)


def blocks(machine: Machine, count: IntsLike, nbytes: int) -> Time:
    """Time of a kernel with a block on each SM at a time, of which the last leave some without one.

    Parameters
    ----------
    count, nbytes
        (rank,): blocks, and bytes that each reads and writes at its share of memory.
    """
    sms = machine.system.compute.num_sms
    rounds = -(-np.asarray(count, np.int64) // sms)
    return Time(machine.system.hbm.stream_ps(rounds * sms * nbytes))


def _clocks(machine: Machine, values: IntsLike, clocks: float) -> Time:
    system = machine.system
    each = clocks * 1000 / system.spec.gpu.clock_GHz.value / system.compute.num_sms
    return Time(np.rint(np.asarray(values, np.int64) * each).astype(np.int64))


LAWS: dict[str, Callable[[Machine, IntsLike, int], Time]] = {
    "row map": row_map,
    "chunk map": chunk_map,
    "row walk": row_walk,
    "cast twice": cast_twice,
    "strided": strided_time,
    "atomic": atomic,
    "chain": chain,
    "blocks": blocks,
}


def least(machine: Machine, law: tuple[str, IntsLike, int] | None) -> Time:
    """Time of a row's kernels by their law, whatever their bytes; none where it has no law.

    Parameters
    ----------
    law
        Its name and two sizes, the first of them a number or (rank,).
    """
    if law is None:
        return NO_TIME
    name, first, second = law
    return LAWS[name](machine, first, second)
