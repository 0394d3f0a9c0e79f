"""MegaMoE: one persistent kernel whose spare warps pull rows while its blocks multiply.

Source: deepseek-ai/DeepGEMM 0274ad7, ``impls/sm100_fp8_fp4_mega_moe.cuh`` (its kernels for
BF16 and for Hopper alike), its scheduler and heuristics (`replay.schemes.ep.megamoe.tasks`). In the
kernel (`kernel.py`), one after the other:

- Warps of each SM count its tokens' experts, add them up in memory, and store the number of each
  (token, expert) to its expert's GPU. The grid meets, counts go to all GPUs, all GPUs meet.
- These warps pull rows, one each at a time: the row's number, then its values from device memory of
  their owner through shared memory in pieces of at most 8 KiB, beside its scales and, behind these,
  its gate weight. A row comes for every (token, expert), from one source after the other. They wait
  for room in a ring of row tiles.
- Blocks take tasks in a fixed order and hold their SM while they wait for rows. GEMM-1's epilogue
  activates and quantises; GEMM-2's stores each row in BF16 to the place of (expert's rank among k,
  token) of its owner.
- The grid meets, and a flag goes to every GPU. A token is added up when the GPUs of its experts
  have flagged, by warps that read k rows from memory and write one. All GPUs meet beside that.

Warps of the pull wait for two round trips of a few bytes a row, in ports behind what others store.
GEMM-2's blocks hold on to a tile until the part of its last owner has left. The library's FP8 kernel
has FP4 weights (``--weight-type mxfp4``): half the bytes from memory, at FP8's rate. It sends a row
for each expert of a token, also where several share a GPU. Not modelled: GEMM-2 beginning when a part
of its inner dimension is there. ThunderKittens' ``moe_dispatch_gemm`` ends with GEMM-1 and is no
variant of it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.casts import cast_before_dispatch
from replay.model.compute.footprints import lacks_room, resident_blocks
from replay.model.compute.row_tiles import RowTiles
from replay.model.machine.host import Operation
from replay.model.machine.kinds import DISPATCH
from replay.model.machine.times import MemoryTraffic
from replay.model.work.ragged import places
from replay.schemes.ep.base import Scheme
from replay.schemes.ep.facts import FORWARD, Buffer
from replay.schemes.ep.megamoe import blackwell, hopper, kernel
from replay.schemes.ep.megamoe.tasks import TILE_COLUMNS, ring_tiles, tile_rows
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Tasks
    from replay.model.compute.footprints import BlockFootprint
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.megamoe.kernel import MegaKernel

CODE = "deepseek-ai/DeepGEMM 0274ad7"
HOPPER_CODE = "sgl-project/DeepGEMM, pull request 36, 3f9268b"
LAG_CODE = "sgl-project/DeepGEMM, pull request 88, a21e2e5"
FILL = Operation("rows to the buffer", moves="own tokens, read and written")


@dataclass(frozen=True)
class MegaMoeOptions(Options):
    """Options of the kernel."""

    pull_bytes: int = option(
        8192,
        "Largest piece of a row that a warp pulls at a time; a row is halved until its pieces are no larger.",
        f"{CODE}, mega_moe.hpp: num_max_pull_bytes of FP8",
        least=16,
    )
    tile_rows: int = option(
        0,
        "Rows of a tile. 0 takes 16, 32, 64, 128, 192 or 240 by the rows that an expert is expected to have.",
        f"{CODE}, mega_moe.hpp: get_block_config_for_mega_moe",
    )
    ring_tiles: int = option(
        0,
        "Row tiles that the ring of received rows has room for. 0: as many as the kernel can have in use at a time.",
        f"{CODE}, scheduler/mega_moe.cuh: get_num_max_live_pool_blocks",
    )


@dataclass(frozen=True)
class HopperOptions(Options):
    """Options of the kernel for Hopper."""

    schedule: str = option(
        "lag",
        "Version of the kernel, by its order of tasks. lag: in units of up to 8 row tiles of an "
        "expert, GEMM-2 of a unit behind GEMM-1 of a later one, from 1024 tokens on and where rows "
        "can be more than the ring has room for. waves: GEMM-1 of all row tiles, then GEMM-2 of "
        "all; its warps rescale sums up to four times for each 128 values, and once in lag.",
        f"lag: {LAG_CODE}, scheduler/sm90_mega_moe.cuh; waves: {HOPPER_CODE}, scheduler/mega_moe.cuh",
        choices=("lag", "waves"),
    )
    lag_units: int = option(
        0,
        "Units by which GEMM-2 is behind GEMM-1. 0: 0.45 of the units that a GPU is expected to "
        "have, at least 8 and at most 64.",
        LAG_CODE,
        unit="units",
    )
    pad_tiles: bool = option(
        True,
        "Whether a partial tile is multiplied and scaled as if all of its 128 rows were there.",
        f"{LAG_CODE}; {HOPPER_CODE}: warpgroups without rows leave out what follows the products",
    )


class MegaMoeBase(Scheme):
    """One kernel of dispatch, both GEMMs and combine."""

    spares = MappingProxyType(
        {
            "host waits": "the kernel schedules itself",
            "permutes": "rows are pulled by number to their places",
            "copies in memory": "rows are pulled from where they lie",
            "kernels for sums": "warps of the owner add",
            "SMs send back": "the tile's epilogue stores its rows",
        }
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

    def refuses(self, work: LayerWork) -> str:
        """Say if rows would need a cast before GEMMs."""
        types = work.precision
        if types.gemm in self.gemm_types and types.dispatch != types.gemm:
            return f"its {types.gemm} GEMMs read rows as they come, which are {types.dispatch}"
        return super().refuses(work)

    def refuses_on(self, work: LayerWork, system: System) -> str:
        """Say if shared memory, unlike that of Hopper and Blackwell, has no room for a block."""
        return lacks_room(system, self._block(work)) or super().refuses_on(work, system)

    def communication_sms(self, system: System) -> int:
        """None: warps of the SMs that multiply pull rows."""
        return 0

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """Buffers registered for peers: tokens, the ring, a place for each row that comes back."""
        ranks = work.num_ranks
        most, topk = int(np.diff(work.tokens_of_rank).max(initial=0)), work.expert_ids.shape[1]
        tiles = self._tiles(work)
        ring = self._rings(tiles, system.sm.num_sms * system.resident_blocks(self._block(work)), work)
        each = work.dispatch_row_bytes + work.precision.operand_row_bytes(work.shape.intermediate)
        back = work.combine_row_bytes
        tokens = most * (work.dispatch_row_bytes + topk * (kernel.ID_BYTES + kernel.WEIGHT_BYTES))
        numbers = work.num_experts * most * kernel.NUMBER_BYTES
        return (
            Buffer("tokens, ids and weights", np.full(ranks, tokens), stays=True),
            Buffer("ring of row tiles", ring * tiles.block_m * each, stays=True),
            Buffer("rows that come back", np.full(ranks, most * topk * back), stays=True),
            Buffer("numbers of rows", np.full(ranks, numbers), stays=True),
        )

    def intermediates(self, work: LayerWork) -> tuple[Buffer, ...]:
        """Results of GEMM-1 are in the ring, those of GEMM-2 with their owners."""
        return ()

    def build(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Add the kernel behind what makes its tokens."""
        if work.precision.casts_tokens:
            filled = cast_before_dispatch(machine, work, start)
        else:
            own = np.diff(work.tokens_of_rank) * work.dispatch_row_bytes
            filled = machine.memory_kernel(DISPATCH.memory, MemoryTraffic(own, own), start, FILL)
        return self.kernel(work, machine, machine.kernel(filled, "layer"))

    def kernel(self, work: LayerWork, machine: Machine, begun: Tasks) -> Tasks:
        """Add the kernel by itself, which runs from (rank,) tasks on: (rank,) marks of its end."""
        pool = self.split(machine).pool("sm", machine.sms.count)
        tiles = self._tiles(work)
        machine.notes.tile(tiles.rank, tiles.rows, int(tiles.block_m[0]))
        resident = resident_blocks(machine, self._block(work))
        rings = self._rings(tiles, machine.sms.count * resident, work)
        return self._kernel(work, machine, tiles, rings, resident).add(pool, begun)

    def _tiles(self, work: LayerWork) -> RowTiles:
        """Row tiles of all experts; the last of each may be partial."""
        (height, width), rows = self._shape(work), work.rows_of_expert
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
            block_n=np.full(work.num_ranks, width, np.int64),
        )

    @abstractmethod
    def _shape(self, work: LayerWork) -> tuple[int, int]:
        """Rows and columns of a full tile."""

    @abstractmethod
    def _block(self, work: LayerWork) -> BlockFootprint:
        """Footprint of a block."""

    @abstractmethod
    def _rings(self, tiles: RowTiles, num_blocks: int, work: LayerWork) -> Ints:
        """(rank,): row tiles of the ring."""

    @abstractmethod
    def _kernel(self, work: LayerWork, machine: Machine, tiles: RowTiles, rings: Ints, resident: int) -> MegaKernel:
        """The kernel of one layer."""


def _expected_rows(work: LayerWork) -> float:
    """Rows that an expert is expected to have, for the tokens of the GPU that has most."""
    most, topk = int(np.diff(work.tokens_of_rank).max(initial=0)), work.expert_ids.shape[1]
    return float(most * work.num_ranks * topk / work.num_experts)


class MegaMoe(MegaMoeBase):
    """The kernel for Blackwell."""

    name = "megamoe"
    summary = "DeepGEMM's MegaMoE: warps pull rows beside the tiles of one kernel"
    source = f"{CODE}, impls/sm100_fp8_fp4_mega_moe.cuh, scheduler/mega_moe.cuh"
    assumes = (
        "the gate writes ids and weights where peers read them; GEMM-2 begins a row tile when GEMM-1 has all of it"
    )
    wins = "many tokens: row tile after row tile, so that weights are read once, no kernel for rows, one launch"
    loses = "few tokens, where three meetings and counters cost what it saves; skew against `megamoe-hopper`"
    weight_types = frozenset({"mxfp4"})
    validity = "Blackwell, one NVLink domain, widths that are multiples of 256; on Hopper it runs as megamoe-hopper"
    options: MegaMoeOptions = MegaMoeOptions()

    def _shape(self, work: LayerWork) -> tuple[int, int]:
        height = self.options.tile_rows or tile_rows(_expected_rows(work), work.num_experts // work.num_ranks)
        return height, TILE_COLUMNS

    def _block(self, work: LayerWork) -> BlockFootprint:
        height, _ = self._shape(work)
        return blackwell.block(height, min(self.options.pull_bytes, work.dispatch_row_bytes))

    def _rings(self, tiles: RowTiles, num_blocks: int, work: LayerWork) -> Ints:
        clusters, shape = max(num_blocks // 2, 1), blackwell.clusters_of(work)
        return np.array(
            [
                self.options.ring_tiles or ring_tiles(count, clusters, *shape)
                for count in np.bincount(tiles.rank, minlength=work.num_ranks).tolist()
            ]
        )

    def _kernel(self, work: LayerWork, machine: Machine, tiles: RowTiles, rings: Ints, resident: int) -> MegaKernel:
        return blackwell.BlackwellKernel(work, machine, tiles, rings, self.options.pull_bytes, resident)


class MegaMoeHopper(MegaMoeBase):
    """The kernel for Hopper."""

    name = "megamoe-hopper"
    summary = "MegaMoE for Hopper: its warps multiply, scale, activate, store"
    source = f"{LAG_CODE}, impls/sm90_fp8_mega_moe.cuh; schedule=waves: {HOPPER_CODE}"
    assumes = (
        "the gate writes ids and weights where peers read them; GEMM-2 begins a row tile when "
        "GEMM-1 has all of it; the order's lag and its ring are for the layer's own tokens, and "
        "not for the most that buffers were made for; a row's owner is looked up in the L2 cache"
    )
    wins = (
        "many tokens in BF16, under skew too, if a BF16 kernel did all but scale, which nobody has written: pairs of "
        "tiles load weights once"
    )
    loses = (
        "FP8, whose sums its warps scale while tensor cores wait, most with `schedule=waves`; few tokens, as `megamoe`"
    )
    validity = "FP8 (BF16 as if sums had no scales); Hopper, one NVLink domain, widths that are multiples of 256"
    unpadded = MappingProxyType({"pad_tiles": False})
    options: HopperOptions = HopperOptions()

    def _version(self, work: LayerWork) -> hopper.Version:
        shape = work.shape
        return hopper.version_of(self.options.schedule, shape.hidden, shape.gemm1_columns)

    def _shape(self, work: LayerWork) -> tuple[int, int]:
        return hopper.tile_shape(_expected_rows(work), self._version(work))

    def _block(self, work: LayerWork) -> BlockFootprint:
        return self._version(work).block(self._shape(work) == hopper.HIGH, work.dispatch_row_bytes)

    def _rings(self, tiles: RowTiles, num_blocks: int, work: LayerWork) -> Ints:
        lag = self._lag(work)
        counts = np.bincount(tiles.rank, minlength=work.num_ranks)
        return np.minimum(counts, hopper.ring_of(lag)) if lag else counts

    def _lag(self, work: LayerWork) -> int:
        """Units by which GEMM-2 is behind; 0 in waves, which need no ring."""
        if self.options.schedule == "waves":
            return 0
        height, _ = self._shape(work)
        experts = work.num_experts // work.num_ranks
        tiles = math.ceil(_expected_rows(work) / height)
        lag = self.options.lag_units or hopper.lag_of(experts * math.ceil(tiles / hopper.UNIT_TILES))
        most, topk = int(np.diff(work.tokens_of_rank).max(initial=0)), work.expert_ids.shape[1]
        rows = work.num_ranks * most * min(topk, experts) + experts * (height - 1)
        needs_ring = most >= hopper.LAG_TOKENS and rows > hopper.ring_of(lag) * height
        return lag if needs_ring else 0

    def _kernel(self, work: LayerWork, machine: Machine, tiles: RowTiles, rings: Ints, resident: int) -> MegaKernel:
        version = self._version(work)
        pairs = version.shares_weights and self._shape(work) == hopper.HIGH
        order = hopper.TaskOrder(self._lag(work), by_columns=pairs)
        return hopper.HopperKernel(
            work,
            machine,
            tiles,
            rings,
            work.dispatch_row_bytes,
            resident,
            version,
            order,
            self.options.pad_tiles,
        )


MEGAMOE, MEGAMOE_HOPPER = MegaMoe(), MegaMoeHopper()
