"""MegaMoE's kernel for Blackwell, whose sums lie in tensor memory.

Warps that take no part in the products activate, quantise and send what the tensor cores have left
in tensor memory, beside the products of the next tile. Clusters of two blocks draw tasks in turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.footprints import staged_block
from replay.model.machine.block_scheduler import BlockScheduler
from replay.schemes.ep.megamoe.kernel import MegaKernel, places_by_rank
from replay.schemes.ep.megamoe.tasks import CLUSTER, TILE_COLUMNS, turns

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.compute.footprints import BlockFootprint
    from replay.model.compute.gemm import Gemm
    from replay.model.compute.gemm_tiles import TileTasks
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.megamoe.kernel import TileMessages


def clusters_of(work: LayerWork) -> tuple[int, int]:
    """Tasks of a row tile in GEMM-1 and in GEMM-2: pairs of neighbouring column tiles."""
    width = TILE_COLUMNS * CLUSTER
    return -(-work.shape.gemm1_columns // width), -(-work.shape.hidden // width)


# Of a block, and registers of each: what `__launch_bounds__(threads, 1)` leaves it.
THREADS = (512, 128)
PULLING_WARPS, STORING_WARPGROUPS, RESULT_BYTES = 4, 2, 2
STORED = ((16, 8), (64, 16), (192, 32))  # height of a tile up to which so many rows are stored together
MOST_STORED = 40


def block(height: int, pull_bytes: int) -> BlockFootprint:
    """Footprint of a block with tiles of this height: stages, results, and the rows that its warps pull."""
    stored = next((rows for most, rows in STORED if height <= most), MOST_STORED)
    results = STORING_WARPGROUPS * stored * TILE_COLUMNS * RESULT_BYTES
    lines = height // CLUSTER + TILE_COLUMNS  # a cluster loads rows once
    return staged_block(*THREADS, lines, results + PULLING_WARPS * pull_bytes)


@dataclass(frozen=True)
class BlackwellKernel(MegaKernel):
    """Clusters that draw tasks from two counters."""

    warps = PULLING_WARPS
    cluster = CLUSTER
    stores_beside = True

    def gemms(self) -> tuple[Gemm, Gemm]:
        """Both GEMMs, the first without the activation, which other warps do."""
        first, second = super().gemms()
        return replace(first, activated=0), second

    def _assign(self, first: TileTasks, second: TileTasks, met: Ints, sent: TileMessages) -> None:
        machine, tiles = self.machine, self.tiles
        clusters = max(self.num_blocks // CLUSTER, 1)
        counts = np.bincount(tiles.rank, minlength=self.work.num_ranks)
        drawn = [turns(int(count), clusters, *clusters_of(self.work)) for count in counts]
        number, blocks = places_by_rank(tiles), BlockScheduler(machine, machine.sms.count, self.resident)
        for gemm, tasks in enumerate((first, second)):
            turn = np.empty(len(tasks.columns), np.int64)
            rank = tiles.rank[tasks.column_tile]
            for one, of_rank in enumerate(drawn):
                mine = np.flatnonzero(rank == one)
                tile, column = number[tasks.column_tile[mine]], tasks.column_index[mine] // CLUSTER
                turn[mine] = of_rank[gemm][tile, column]
            blocks.hold(tasks.begins, tasks.columns, rank, met[rank], priority=turn)
