"""The rows of each expert cut into tiles, by the layout that they have in memory.

A *row tile* is up to `block_m` rows of one expert. The layout of the rows of a rank's experts in
memory decides what a kernel does with a partial tile:

- ``"plain"``: experts follow one another without gaps, and a tile works on the rows it has.
- ``"contiguous"``: each expert is padded to the height of a tile, which is fixed. Serving engines
  mark padding as rows of the expert (the scatter kernel of SGLang fills ``m_indices`` to the end),
  so that it is read, multiplied and written like any other row.
- ``"skipped"``: the same padding, marked as nobody's rows (vLLM fills the indices with -1 first).
  It is read and written, but a warp group (64 rows) that begins in it does not multiply.
- ``"received"``: tiles are those of the same padding, all of whose rows are multiplied, and the
  buffer has one row for each token that arrived (DeepGEMM's own comparison with DeepEP's first
  version). What tiles ask for beyond it is neither read nor written; TMA hands out zeros.
- ``"masked"``: a buffer of fixed size has a count for each expert. Row tiles beyond the count are
  skipped, and so, in FP8, is the multiplication of a warp group (64 rows) that begins beyond it; all
  other tiles are read and written whole. The host does not know the counts and chooses the tile for
  an expected number of rows (`masked_tiles`). The scheduler of every SM walks through the counts of
  all experts.
- ``"matrix"``: the rank has one expert, whose rows end with the buffer, so that loads of a partial
  tile ask for rows that do not exist. This is the layout of dense layers.

Source of the contiguous and the masked layout: deepseek-ai/DeepGEMM,
``csrc/jit_kernels/heuristics`` and, under ``deep_gemm/include/deep_gemm``,
``common/scheduler.cuh`` and ``impls/sm90_fp8_gemm_1d2d.cuh``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.masked_tiles import MASKED_ROWS, MOST_COLUMNS, masked_tile
from replay.model.work.ragged import places

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints, Ranks
    from replay.model.compute.gemm import Gemm
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork


LAYOUTS = ("plain", "contiguous", "skipped", "received", "masked", "matrix")
PADDED = ("contiguous", "skipped")  # each expert fills whole tiles
WHOLE = ("contiguous", "received")  # padding is multiplied
CONTIGUOUS_ROWS = 128  # DeepGEMM's alignment of a contiguous layout, which is also its tile height


@dataclass(frozen=True)
class RowTiles:
    """Row tiles of a layer, ordered by expert.

    Attributes
    ----------
    expert, rank, rows
        (tile,): expert, its rank, and number of rows that are multiplied.
    moved_rows
        (tile,): number of rows that are read and written; above `rows` where a layout has padding.
    first_of_expert
        (matrix + 1,): offsets; the tiles of matrix e are ``[first[e], first[e + 1])``.
    block_m, block_n
        (kernel,): rows and columns of the full tiles that run on an SM.
    absent_rows
        (tile,): rows of the tile's loads beyond the end of the buffer; None if there are none.
    call
        (tile,): the call of a library that multiplies it, ascending, where each matrix has a kernel
        of its own; None where a rank has one kernel for all its experts.
    """

    expert: Ints
    rank: Ranks
    rows: Counts
    moved_rows: Ints
    first_of_expert: Ints
    block_m: Ints
    block_n: Ints
    absent_rows: Ints | None = None
    call: Ints | None = None

    def __len__(self) -> int:
        return len(self.expert)

    @property
    def kernel(self) -> Ints:
        """(tile,): the kernel that multiplies it: that of its rank, or its call."""
        return self.rank if self.call is None else self.call

    @property
    def matrix(self) -> Ints:
        """(tile,): the matrix of weights that it is multiplied by: its expert's, or its call's."""
        return self.expert if self.call is None else self.call

    def only(self, tiles: Ints) -> RowTiles:
        """Some of the tiles, in their order."""
        expert = self.expert[tiles]
        return replace(
            self,
            expert=expert,
            rank=self.rank[tiles],
            rows=self.rows[tiles],
            moved_rows=self.moved_rows[tiles],
            first_of_expert=np.searchsorted(expert, np.arange(len(self.first_of_expert))),
            absent_rows=None if self.absent_rows is None else self.absent_rows[tiles],
        )


def row_tiles(
    machine: Machine,
    work: LayerWork,
    gemm: Gemm,
    num_sms: int,
    tile_rows: int | None = None,
    layout: str = "plain",
    tuned_rows: Counts | int | None = None,
) -> RowTiles:
    """Cut every expert's rows into tiles; the last one of an expert may be partial.

    Parameters
    ----------
    num_sms
        Number of SMs per GPU that compute; each rank takes the tile shape that suits its rows best
        on them.
    tile_rows
        Height of a tile, if the scheme prescribes it.
    layout
        Layout of the rows of a rank's experts in memory, one of `LAYOUTS`.
    tuned_rows
        Number of rows per expert that the tile shape is chosen for, of all ranks or (rank,). By
        default it is their mean on the rank, since the host does not know their counts; a matrix
        has the rows that it has.
    """
    assert layout in LAYOUTS, layout
    compute, number_type = machine.system.compute, work.precision.operands
    rows, grouped = work.rows_of_expert, layout != "matrix"
    rank_of = work.placement.expert_rank.astype(np.int64)
    if layout in (*PADDED, "received"):
        tile_rows = CONTIGUOUS_ROWS
    tuned = None if tuned_rows is None else np.broadcast_to(tuned_rows, work.num_ranks)
    # Hopper alone has clusters of blocks and sums in registers, and DeepGEMM's masked kernels for it a rule.
    is_hopper = compute.cluster_tiles > 1 and compute.accumulators == 1
    has_rule = layout == "masked" and is_hopper and work.precision.operand_bytes in MOST_COLUMNS
    shapes = []
    for rank, experts in enumerate(work.experts_of_rank):
        known = rows[experts]
        if tuned is not None:
            known = np.full(len(experts), tuned[rank], np.int64)
        elif grouped:  # what the host expects: their mean, rounded up
            mean = -(-int(known.sum()) // max(len(experts), 1))
            known = np.full(len(experts), mean, np.int64)
        height, most = tile_rows, int(known.max(initial=0))
        if has_rule:
            tile = masked_tile(most, gemm.n, gemm.k, len(experts), work.precision.operand_bytes, num_sms)
            shapes.append((tile.rows, tile.columns))
            continue
        if layout == "masked":  # the lower one where it holds an expert's expected rows
            low, high = MASKED_ROWS
            height = low if most <= low else high
        grid = compute.gemm_tiles(
            known,
            gemm.n,
            gemm.k,
            number_type,
            block_m=height,
            num_sms=num_sms,
            grouped=grouped,
        )
        shapes.append((grid.block_m, grid.block_n))
    height_of_rank, width_of_rank = np.array(shapes, dtype=np.int64).T
    block_m = height_of_rank[rank_of]
    tiles = -(-rows // block_m)
    first = np.concatenate(([0], tiles.cumsum()))
    expert = np.arange(work.num_experts, dtype=np.int64).repeat(tiles)
    filled = np.minimum(block_m[expert], rows[expert] - places(tiles) * block_m[expert])
    moved = block_m[expert] if layout in (*PADDED, "masked") else filled
    if layout == "received":
        moved = _rows_there(rank_of[expert], padded_rows(work, layout), CONTIGUOUS_ROWS)
    return RowTiles(
        expert=expert,
        rank=rank_of[expert],
        rows=block_m[expert] if layout in WHOLE else filled,
        moved_rows=moved,
        first_of_expert=first,
        block_m=height_of_rank,
        block_n=width_of_rank,
        absent_rows=compute.absent_rows(filled, int(block_m[0]), gemm.n) if layout == "matrix" else None,
    )


def _rows_there(rank: Ranks, rows: Counts, height: int) -> Ints:
    """(tile,): how many of the rows of each rank's tiles, one below the other, its buffer has.

    Parameters
    ----------
    rank
        (tile,): of each tile.
    rows
        (rank,): rows of the buffer.
    height
        Rows of a tile.
    """
    counts = np.bincount(rank, minlength=len(rows))
    order = np.argsort(rank, kind="stable")
    begin = np.empty(len(rank), np.int64)
    begin[order] = places(counts) * height
    there: Ints = np.clip(rows[rank] - begin, 0, height)
    return there


def padded_rows(work: LayerWork, layout: str) -> Ints:
    """(rank,): rows that a kernel between the GEMMs works on, including a layout's padding."""
    if layout == "received":
        received: Ints = work.matrix("copies").sum(axis=0)
        return received
    rows = work.rows_of_expert
    if layout in PADDED:
        rows = -(-rows // CONTIGUOUS_ROWS) * CONTIGUOUS_ROWS
    return np.bincount(work.placement.expert_rank, rows, work.num_ranks).astype(np.int64)
