"""Options of FlashDMoE; see `replay.schemes.ep.flashdmoe.scheme`."""

from __future__ import annotations

from dataclasses import dataclass

from replay.model.compute.operands import PATHS
from replay.model.compute.tile_order import TILE_ORDERS
from replay.schemes.options import Options, option


@dataclass(frozen=True)
class FlashDMoeOptions(Options):
    """Options of the persistent kernel."""

    capacity_factor: float = option(
        0.0,
        "Each expert takes ceil(tokens / experts) x k x capacity_factor rows of each source, the "
        "first in token order, and the others are dropped. 0 drops none.",
        "chosen: nothing is dropped",
        least=0.0,
    )
    tile_rows: int = option(128, "Rows of a tile.", "osayamenja/FlashMoE 1a77aed, types.cuh")
    tile_columns: int = option(
        0,
        "Columns of a tile. 0 takes 128, and 64 for values of four bytes; the paper's kernel has 64.",
        "osayamenja/FlashMoE v0.1 (541e73e), tests/flashmoe.cu; 1a77aed, types.cuh",
        least=0,
    )
    operand_path: str = option(
        "mma.sync+cp.async",
        "Instruction of the products, and what brings their operands into shared memory.",
        "osayamenja/FlashMoE 1a77aed, os/processor/gemm.cuh: MainloopSm80CpAsyncUnpredicated, "
        "clamped to the instructions of Ampere; v0.1 (3349895, tile.cuh) copies by cublasdx::copy "
        "and has no pipeline, without which cuBLASDx takes no wgmma (its guide for Hopper)",
        choices=tuple(PATHS),
    )
    step_bytes: int = option(
        128,
        "Bytes of each row and column that a step of the main loop asks for; the paper's kernel "
        "asks for 32, 8 values of TF32.",
        "osayamenja/FlashMoE v0.1 (541e73e), tests/flashmoe.cu: 64 values; 1a77aed, arch.cuh",
        least=1,
    )
    blocks_per_sm: int = option(
        2,
        "Thread blocks that are on an SM at a time.",
        "osayamenja/FlashMoE: a thread has 255 registers, so that two blocks fit",
    )
    dispatch_group_blocks: int = option(
        0,
        "Thread blocks that send the rows of one expert together; all groups send at once. 0: 256 "
        "over the number of experts, at least two.",
        "osayamenja/FlashMoE, ACC::SBZ",
    )
    pad_tiles: bool = option(
        True,
        "Whether a partial tile is multiplied, and moved through memory, as if it were full.",
        "osayamenja/FlashMoE: the main loop has no predicates",
    )
    send_padding: bool = option(
        False,
        "Whether the padding of a partial tile is stored to the owner as well. The epilogue of the "
        "repository stores all rows of a tile.",
        "arXiv 2506.04667v3: padding never travels",
    )
    packet_bytes: int = option(
        128,
        "Payload of a packet on the link. The store of a warp is 128 bytes in FP32, as each lane "
        "stores one value; in BF16 it is 64 unless the hardware joins two.",
        "assumed: the hardware joins stores",
        least=16,
    )
    tile_order: str = option(
        "arrival",
        "Which ready task goes first. arrival takes tasks as the scheduler's queues do; expert "
        "keeps the tiles of an expert together; unit:N goes through units of N row tiles of an "
        "expert column by column; unit:8+2 starts GEMM-2 of a unit of 8 behind GEMM-1 of the "
        "unit 2 later; waves:N takes N experts at a time, GEMM-1 of all of them and then GEMM-2.",
        "osayamenja/FlashMoE, os/scheduler.cuh",
        choices=TILE_ORDERS,
    )
