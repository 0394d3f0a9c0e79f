"""FlashAttention-2's kernels: blocks of four warps that multiply by ``mma.sync``, two on each SM.

The four warps of a block have its rows among them, so that each reads all keys and values of a tile from shared
memory. Scores, their exponentials and their products with values wait for each other: a block is at one unit of its
SM at a time, at the load/store units, at the tensor cores or where exponentials are made. Two blocks share an SM. As
one comes to a unit, it finds the other there with the share of time that that one spends there by itself, and waits
for its turn to end (mean value analysis of a closed queue, Reiser and Lavenberg 1980, for two customers).

A decode kernel has the queries of a head of keys for rows, padded to 64, and multiplies all 64. So it often takes
longer than the cache takes to be read. With several tokens a request, rows are those of a head of queries. Rates are
those of the machine's products and operand paths; one constant is fitted. Check: heads of 128 reach 0.67 of an A100's
peak by this; published are up to 0.73 (arXiv 2307.08691).

Sources, Dao-AILab/flash-attention v2.7.4, csrc/flash_attn/src: tiles and warps in flash_fwd_launch_template.h, loads
in flash_fwd_kernel.h, rows and splits in ../flash_api.cpp (seqlenq_ngroups_swapped, num_splits_heuristic).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hwmodel.operands import OperandPath
from hwmodel.units import Rate, exact, ps_from_ns
from replay.errors import UserError
from replay.model.compute.dense_kernels import BF16

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints
    from replay.model.machine.resources import IntsLike

PATH = OperandPath("mma.sync", "cp.async", "cp.async", warps=(4, 1))
RESIDENT = 2
"""Blocks on an SM at once: 128 threads have up to 255 registers each, and tiles at most 96 KB."""
BLOCK_NS = 2250.0
"""Start and end of a block. Fitted to forward kernels with heads of 128 values (attention.csv, library ``flash``, an
H200), 3.4 % off then; checked on other widths there, and on decode_ledger.csv (replay/studies/validate)."""
TILES: dict[str, dict[int, tuple[int, int]]] = {
    "forward": {64: (128, 128), 96: (128, 64), 128: (128, 64), 256: (64, 64)},
    "decode": {64: (64, 256), 128: (64, 128), 256: (64, 64)},
}
"""Rows and keys of a tile by kernel and by the widest heads that have it, forward as on an H100."""


def tile(kernel: str, width: int) -> tuple[int, int]:
    """Rows and keys of a tile of a kernel, ``"forward"`` or ``"decode"``, for heads of `width` values.

    Raises
    ------
    UserError
        If heads are wider than any kernel's.
    """
    tiles = TILES[kernel]
    if width > max(tiles):
        raise UserError(f"FlashAttention-2 has heads of {max(tiles)} values at most, not of {width}")
    return tiles[min(most for most in tiles if most >= width)]


def turns_ps(system: System, rows: int, keys: int, width: int) -> tuple[int, int]:
    """Time of a tile for a block that is alone on its SM, and for one of two.

    Parameters
    ----------
    rows, keys
        Of the tile, which is multiplied in full.
    width
        Values of a head.
    """
    compute, spec = system.compute, system.spec.compute
    peak = exact(spec.bf16_peak_TFLOP_per_s.value) * 10**12 / compute.num_sms
    products = Rate.per_second(peak).times(compute.mma_sync_efficiency)
    passed = (2 * PATH.passes(0, keys) + rows) * width * BF16  # keys and values; queries are there already
    units = (
        compute.shared_rate.duration_ps(passed),
        products.duration_ps(4 * rows * keys * width),
        compute.special_rate.duration_ps(rows * keys),
    )
    alone = sum(units)
    return alone, alone + sum(unit * unit for unit in units) // alone


def decode_ps(
    system: System, blocks: IntsLike, keys: IntsLike, rows: IntsLike, width: int, nbytes: IntsLike, *, is_split: bool
) -> Ints:
    """Time of a kernel over the cache: of its SMs, or of reading it.

    Parameters
    ----------
    blocks, keys
        (rank,) or one: heads of all requests, and keys of all of them, taken as equally many each.
    rows
        (rank,) or one: queries of each head; every 64 are a block of their own.
    width
        Values of a head.
    nbytes
        (rank,) or one: bytes read plus bytes written.
    is_split
        Whether keys of a block are spread so that all SMs hold two, as far as tiles go.

    Raises
    ------
    UserError
        If heads are wider than any kernel's.
    """
    sms = system.compute.num_sms
    tile_rows, tile_keys = tile("decode", width)
    alone, beside = turns_ps(system, tile_rows, tile_keys, width)
    heads, moved, held = np.asarray(blocks, np.int64), np.asarray(nbytes, np.int64), RESIDENT * sms
    tiles = -(-np.asarray(keys, np.int64) // (np.maximum(heads, 1) * tile_keys))
    count = heads * -(-np.asarray(rows, np.int64) // tile_rows)
    if is_split:
        pieces = np.minimum(np.maximum(held, count), count * tiles)
        tiles = -(-count * tiles // np.maximum(pieces, 1))
        count = pieces
    full, left = np.divmod(count, held)
    last = np.where(left > sms, beside, alone)
    start = ps_from_ns(BLOCK_NS)
    time: Ints = full * (tiles * beside + start) + (left > 0) * (tiles * last + start)
    return np.maximum(time, system.attention.decode_ps(0 * moved, moved))
