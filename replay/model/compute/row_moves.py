"""Index maps, permutes and casts of Transformer Engine, whose times their bytes do not give.

Its Triton kernels (``common/triton/permutation.py``) are grids of thread blocks of four warps:

* A map of rows is made in three passes. The first two have a block for each expert and 1024 tokens,
  and find each of its flags and indices in another sector of memory, since they lie token by token;
  the second besides reads what every earlier block has counted. The third has a block for each
  token, which sorts the token's indices of all experts, padded to a power of two.
* A map of chunks has a block for each row, which reads and adds up the sizes of all splits.
* A permute has blocks for each token. One walks through the rows of its token, and each step waits
  for an index and then for what lies there. Many blocks hide that, and bytes bind; few do not.

A cast that makes FP8 operands with a scale for 128 values both by rows and by columns
(``common/transpose/quantize_transpose_vector_blockwise.cu``) passes tiles through shared memory and
looks for the largest value twice.

Constants of maps and permutes are fitted to one half of the settings of ``permutation.csv`` (an
H200, Transformer Engine 2.18, Triton; ``replay/studies/validate/measurements``) and hold for the
other: passes of the map of rows within 8 % in the mean, the third one and maps of chunks within 3 %
from 8192 tokens on, permutes of 512 to 65,536 tokens within 4 %; unpermutes are 9 % too fast. Work
is in the time of an SM, and more SMs do it sooner; that another clock changes nothing is an
assumption. Rows of 4 KB cost permutes nothing beside their bytes (``overheads.row_copy_ns`` is of
other kernels). The constant of casts is that of a kernel of our own (``cast_both`` of
``scripts/training_kernels.py``; ``fp8.csv``, from 8192 rows on), which stands in: 1.53 ps a value,
where bytes take 1.00.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from replay.model.machine.times import Time

if TYPE_CHECKING:
    from replay.model.machine.machine import IntsLike, Machine

BLOCK_TOKENS = 1024  # of a block of the first two passes (pytorch/triton/permutation.py)
FIRST_PASS_PS = 18.6  # for each (token, expert): read and written once, a sector each
SECOND_PASS_PS = 18.8  # likewise
COUNT_PS = 1.95  # for each count that a block of the second pass reads
# SM nanoseconds of a token in the third pass, by the power of two of its experts. Measured at 8,
# 32, 128 and 512; at those between, geometric means.
SORT_NS = {8: 90, 16: 129, 32: 185, 64: 296, 128: 475, 256: 1960, 512: 8100}
SORTED_BEYOND = 2.44  # for each doubling beyond: twice as many, in 55 in place of 45 stages
# SM nanoseconds of a row in a map of chunks: up to as many splits, and for each one beyond.
CHUNK_NS = ((32, 80.0), (256, 168.0), (1024, 296.0))
BLOCKS_PER_SM = 16  # 64 warps of an SM, four of a block (CUDA programming guide, capability 9.0)
ENTRY_NS, STEP_NS = 1100, 730  # of a block that walks, beside its rows, and of each row
CAST_PS = 202  # SM time of a value that is cast by rows and by columns


def row_map(machine: Machine, tokens: IntsLike, experts: IntsLike) -> Time:
    """Time of the three passes that make a map of rows of the flags of all (token, expert).

    Parameters
    ----------
    tokens, experts
        (rank,): tokens, and experts that each has a flag for.
    """
    tokens, experts = np.asarray(tokens, np.int64), np.asarray(experts, np.int64)
    flags, blocks = tokens * experts, -(-tokens // BLOCK_TOKENS) * experts
    passes = (FIRST_PASS_PS + SECOND_PASS_PS) * flags + COUNT_PS * (blocks * (blocks - 1) // 2)
    sort = np.vectorize(_sort_ns, otypes=[float])(experts)
    return _round(passes + tokens * sort * 1000 / machine.system.compute.num_sms)


def chunk_map(machine: Machine, rows: IntsLike, splits: int) -> Time:
    """Time of a map of rows that change their place in chunks.

    Parameters
    ----------
    rows
        (rank,): rows that are there.
    splits
        Chunks.
    """
    *_, (before, some), (high, most) = CHUNK_NS
    counts, times = np.array(CHUNK_NS).T
    each = float(np.interp(splits, counts, times))
    each += max(0, splits - high) * (most - some) / (high - before)
    return _round(np.asarray(rows, np.int64) * each * 1000 / machine.system.compute.num_sms)


def row_walk(machine: Machine, blocks: IntsLike, steps: int) -> Time:
    """Time of a permute whose blocks walk through rows, apart from its bytes.

    Parameters
    ----------
    blocks
        (rank,): thread blocks: tokens times blocks of their columns.
    steps
        Rows that one walks through.
    """
    blocks = np.asarray(blocks, np.int64)
    waves = np.maximum(blocks / (BLOCKS_PER_SM * machine.system.compute.num_sms), np.minimum(blocks, 1))
    return _round(waves * (ENTRY_NS + STEP_NS * steps) * 1000)


def cast_twice(machine: Machine, casts: IntsLike, values: IntsLike) -> Time:
    """Time of casts that write FP8 operands by rows and by columns, each with scales of its own.

    Parameters
    ----------
    casts, values
        (rank,): casts, and values of each.
    """
    every = np.asarray(casts, np.int64) * np.asarray(values, np.int64)
    return _round(every * (CAST_PS / machine.system.compute.num_sms))


def _sort_ns(experts: int) -> float:
    """SM nanoseconds in which a block sorts a token's indices."""
    padded = 1 << max(int(experts) - 1, 7).bit_length()
    most = max(SORT_NS)
    if padded in SORT_NS:
        return SORT_NS[padded]
    return SORT_NS[most] * SORTED_BEYOND ** ((padded // most).bit_length() - 1)


def _round(time_ps: npt.NDArray[np.floating[Any]]) -> Time:
    return Time(np.rint(time_ps).astype(np.int64))
