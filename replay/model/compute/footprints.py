"""Footprints of kernels that multiply: what a block takes of an SM, by its tile.

How many of them are on an SM at a time follows from what an SM has (`resident_blocks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwmodel.residency import BlockFootprint
from replay.errors import UserError

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.machine.machine import Machine

__all__ = ["BlockFootprint", "lacks_room", "mma_sync_block", "resident_blocks", "staged_block"]

WARP_TILE = 64
"""Rows and columns of sums that a warp has in its registers."""
LEAST_WARPS = 4
STEP_VALUES = 32  # of the inner dimension
VALUE_BYTES = 2  # BF16
STAGES_BYTES = 80 << 10
OTHER_REGISTERS = 102  # beside the sums
BLOCK_BYTES = 227 << 10  # `smem_capacity` of DeepGEMM's sm90.hpp and sm100.hpp
LINE_BYTES = 128  # of each row and column in a stage


def mma_sync_block(rows: int, columns: int) -> BlockFootprint:
    """Footprint of a block of CUTLASS's BF16 kernels that multiply by ``mma.sync``.

    A warp has 64 x 64 sums or less: a block has 4 warps, 8 for 128 x 256. As many stages of 32
    values as 80 KB hold are under way. (NVIDIA/cutlass, ``python/cutlass_library/generator.py``,
    ``GenerateSM80_TensorOp_16816``: 128 x 256 with 3, 64 x 256 with 4, 128 x 128 with 5, 128 x 64
    with 6, 64 x 64 with 10. Tiles of 192 columns are not in it, and taken alike.) Beside the sums a
    thread has 102 registers with 64 x 256, 230 in all as Nsight Systems has it, and with 128 x 256
    94; 102 is assumed for all.
    """
    warps = max(LEAST_WARPS, -(-rows // WARP_TILE) * -(-columns // WARP_TILE))
    sums = -(-rows * columns // (warps * 32))
    stage_bytes = (rows + columns) * STEP_VALUES * VALUE_BYTES
    return BlockFootprint(
        threads=warps * 32,
        registers=OTHER_REGISTERS + sums,
        shared_bytes=STAGES_BYTES // stage_bytes * stage_bytes,
    )


def staged_block(threads: int, registers: int, lines: int, other_bytes: int) -> BlockFootprint:
    """Footprint of a block whose operands come by TMA: as many stages as shared memory has room for.

    (deepseek-ai/DeepGEMM 0274ad7, ``heuristics/mega_moe.hpp``, and sgl-project/DeepGEMM a21e2e5,
    ``heuristics/sm90_mega_moe.hpp``: ``get_pipeline_config``; CUTLASS's ``StageCountAuto`` for Hopper alike.
    Scales, barriers and tables, a few KB, are left out.)

    Parameters
    ----------
    registers
        Of a thread at launch; warps give them to one another later.
    lines
        Rows and columns of a stage.
    other_bytes
        Shared memory beside the stages.
    """
    stage = lines * LINE_BYTES
    return BlockFootprint(threads, registers, other_bytes + (BLOCK_BYTES - other_bytes) // stage * stage)


def lacks_room(system: System, block: BlockFootprint) -> str:
    """Say why an SM has no room for a block; empty if it has."""
    try:
        system.resident_blocks(block)
    except UserError as error:
        return str(error)
    return ""


def resident_blocks(machine: Machine, block: BlockFootprint) -> int:
    """Count the blocks of a kernel that an SM has room for at a time; at least one."""
    return machine.system.resident_blocks(block)
