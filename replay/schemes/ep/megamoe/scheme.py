"""MegaMoE: one persistent kernel whose spare warps pull rows while its blocks multiply.

Source: deepseek-ai/DeepGEMM 0274ad7, ``impls/sm100_fp8_fp4_mega_moe.cuh`` (its kernels for
BF16 and for Hopper alike), its scheduler and heuristics (`replay.schemes.ep.megamoe.tasks`). In the
kernel, one after the other:

- Four warps of each SM count its tokens' experts, add them up in memory, and store the number of
  each (token, expert) to its expert's GPU. The grid meets, counts go to all GPUs, all GPUs meet.
- These warps pull rows, one each at a time: from device memory of their owner through shared memory
  in pieces of at most 8 KiB. A row comes for every (token, expert), from one source after the
  other. They wait for room in a ring of row tiles, which GEMM-1 gives back.
- Blocks draw tasks in a fixed order and hold their SM while they wait for rows
  (`tasks.turns`). GEMM-1's epilogue activates and quantises; GEMM-2's stores each row in BF16 to
  the place of (expert's rank among k, token) of its owner.
- The grid meets, and a flag goes to every GPU. A token is added up when the GPUs of its experts
  have flagged, by warps that read k rows from memory and write one. All GPUs meet beside that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.casts import cast_before_dispatch
from replay.model.compute.row_tiles import RowTiles
from replay.model.machine.host import Operation
from replay.model.machine.kinds import DISPATCH
from replay.model.machine.times import MemoryTraffic
from replay.model.work.ragged import places
from replay.schemes.ep.base import Scheme
from replay.schemes.ep.facts import FORWARD, Buffer
from replay.schemes.ep.megamoe import kernel
from replay.schemes.ep.megamoe.tasks import TILE_COLUMNS, ring_tiles, tile_rows
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.machine.machine import Ints, Machine
    from replay.model.work.layer import LayerWork

CODE = "deepseek-ai/DeepGEMM 0274ad7"
FILL = Operation("rows to the buffer", moves="own tokens, read and written")


@dataclass(frozen=True)
class MegaMoeOptions(Options):
    """Options of the kernel."""

    pull_bytes: int = option(
        8192,
        "Most bytes of a piece in which a warp pulls a row; a row is halved until it is no larger.",
        f"{CODE}, mega_moe.hpp: num_max_pull_bytes of FP8",
        least=16,
    )
    tile_rows: int = option(
        0,
        "Rows of a tile. 0 takes 16, 32, 64, 128, 192 or 240 by the rows that an expert is "
        "expected to have.",
        f"{CODE}, mega_moe.hpp: get_block_config_for_mega_moe",
    )
    ring_tiles: int = option(
        0,
        "Row tiles that the ring of received rows has room for. 0 takes as many as the order of "
        "tasks can have in use.",
        f"{CODE}, scheduler/mega_moe.cuh: get_num_max_live_pool_blocks",
    )


class MegaMoe(Scheme):
    """One kernel of dispatch, both GEMMs and combine."""

    name = "megamoe"
    summary = "DeepGEMM's MegaMoE: warps pull rows beside the tiles of one kernel"
    source = f"{CODE}, impls/sm100_fp8_fp4_mega_moe.cuh, scheduler/mega_moe.cuh"
    assumes = (
        "the gate writes ids and weights where peers read them; a row's gate weight travels for "
        "nothing; weights are of the GEMMs' type, not FP4; GEMM-2 begins a row tile when GEMM-1 "
        "has all of it"
    )
    traffic = "pair"
    overlap = "whole layer, in one kernel"
    phases_separated = False
    gemm_types = frozenset({"bf16", "fp8"})
    dispatch_types = frozenset({"bf16", "fp8"})
    combine_types = frozenset({"bf16"})
    passes = FORWARD
    fuses_activation = True
    keeps_results = False
    validity = (
        "Blackwell, one NVLink domain, widths that are multiples of 256; its port to Hopper is two "
        "kernels with tiles of 64 or 128 rows"
    )
    options: MegaMoeOptions = MegaMoeOptions()

    def refuses(self, work: LayerWork) -> str:
        """Rows are multiplied as they come."""
        types = work.precision
        if types.gemm in self.gemm_types and types.dispatch != types.gemm:
            return f"its {types.gemm} GEMMs read rows as they come, which are {types.dispatch}"
        return super().refuses(work)

    def communication_sms(self, system: System) -> int:
        """None: warps of the SMs that multiply pull rows."""
        return 0

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """What is registered for peers: tokens, the ring, a place for each row that comes back."""
        ranks = work.num_ranks
        most, topk = int(np.diff(work.tokens_of_rank).max(initial=0)), work.expert_ids.shape[1]
        rows, tiles = self._height(work), self._tiles(work)
        ring = [
            self._ring(int(count), system.sm.num_sms, work)
            for count in np.bincount(tiles.rank, minlength=ranks)
        ]
        each = work.dispatch_row_bytes + work.precision.operand_row_bytes(work.shape.intermediate)
        back = work.combine_row_bytes
        tokens = most * (work.dispatch_row_bytes + topk * (kernel.ID_BYTES + 4))  # and weights
        numbers = work.num_experts * most * kernel.NUMBER_BYTES
        return (
            Buffer("tokens, ids and weights", np.full(ranks, tokens), stays=True),
            Buffer("ring of row tiles", np.array(ring) * rows * each, stays=True),
            Buffer("rows that come back", np.full(ranks, most * topk * back), stays=True),
            Buffer("numbers of rows", np.full(ranks, numbers), stays=True),
        )

    def intermediates(self, work: LayerWork) -> tuple[Buffer, ...]:
        """Results of GEMM-1 are in the ring, those of GEMM-2 with their owners."""
        return ()

    def build(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        """Add the kernel behind what makes its tokens."""
        if work.precision.casts_tokens:
            filled = cast_before_dispatch(machine, work, start)
        else:
            own = np.diff(work.tokens_of_rank) * work.dispatch_row_bytes
            filled = machine.memory_kernel(DISPATCH.memory, MemoryTraffic(own, own), start, FILL)
        begun = machine.kernel(filled, "layer")
        sms = self.split(machine)
        pool = sms.pool("sm", machine.sms.count)
        tiles = self._tiles(work)
        machine.notes.tile(tiles.rank, tiles.rows, self._height(work))
        counts = np.bincount(tiles.rank, minlength=work.num_ranks)
        rings = [self._ring(int(count), machine.sms.count, work) for count in counts]
        return kernel.add(
            work, machine, tiles, pool, begun,
            rings=np.array(rings, np.int64), pull_bytes=self.options.pull_bytes,
        )  # fmt: skip

    def _height(self, work: LayerWork) -> int:
        """Rows of a full tile."""
        if self.options.tile_rows:
            return self.options.tile_rows
        most, topk = int(np.diff(work.tokens_of_rank).max(initial=0)), work.expert_ids.shape[1]
        expected = most * work.num_ranks * topk / work.num_experts
        return tile_rows(expected, work.num_experts // work.num_ranks)

    def _tiles(self, work: LayerWork) -> RowTiles:
        """Row tiles of all experts; the last of each may be partial."""
        height, rows = self._height(work), work.rows_of_expert
        counts = -(-rows // height)
        expert = np.repeat(np.arange(work.num_experts, dtype=np.int64), counts)
        filled = np.minimum(rows[expert] - places(counts) * height, height)
        return RowTiles(
            expert=expert,
            rank=work.placement.expert_rank.astype(np.int64)[expert],
            rows=filled,
            moved_rows=filled,
            first_of_expert=np.searchsorted(expert, np.arange(work.num_experts + 1)),
            block_m=np.full(work.num_ranks, height, np.int64),
            block_n=np.full(work.num_ranks, TILE_COLUMNS, np.int64),
        )

    def _ring(self, num_tiles: int, num_sms: int, work: LayerWork) -> int:
        """Row tiles of the ring."""
        first, second = kernel.clusters_of(work)
        return self.options.ring_tiles or ring_tiles(num_tiles, max(num_sms // 2, 1), first, second)


MEGAMOE = MegaMoe()
