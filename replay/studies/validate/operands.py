"""One product by each path of operands, in Triton, H100 and H200.

What was measured is described in measurements/MEASURED.md; instruction and path were seen in the
compiled code. Kernels go through groups of eight row tiles. How warps share a tile under
``mma.sync`` is Triton's rule (triton-lang/triton, AccelerateMatmul.cpp, ``warpsPerTileV2``). As
many blocks share an SM as their stages have room in its shared memory.

*Three or four stages are few.* A block of 128 x 128 alone on its SM has 98 KB under way with
three, and takes 1.4 times as long as its products.

*Neighbouring tiles share loads without clusters.* Wherever ``wgmma`` multiplies tiles of 128 x 128,
operands come at 10.2 to 10.8 TB/s with bulk copies on an H100, whatever their type, and at 9.5 to
9.7 with ``cp.async``: more than the 8.7 TB/s that its SMs get of lines that each reads at its own
time. The cache's request coalescer joins reads of the same line before they reach it (Nsight
Compute documentation, LRC). If it joins those of two SMs, as a cluster does, 8.1 and 7.2 are left.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_tasks
from replay.model.compute.operands import PATHS, OperandPath
from replay.model.compute.row_tiles import row_tiles
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape
from replay.studies.validate.bench import Bench, one_rank
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, WorkKind, has

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.machine.machine import Machine

TYPES = {"bf16": "bf16", "tf32": "fp32", "fp8": "fp8"}
VALUE_BYTES = {"bf16": 2, "tf32": 4, "fp8": 1}
WARPS = {(128, 128, 4): (2, 2), (128, 128, 8): (4, 2), (128, 256, 8): (2, 4)}
SHARED_BYTES = 227 << 10  # of an SM, for blocks (CUDA C++ programming guide, capability 9.0)
# Fitted to the twelve rows of both GPUs with wgmma, TMA, tiles of 128 x 128 and four stages, whose
# block is alone on its SM: 2.1 % in the mean, and as much for a type that the fit leaves out. The H100
# alone says 1.20 us, the H200 1.12. Checked on the tiles of 128 x 128 of tile_order, which the H200 alone has.
STAGE_WAIT_PS = 1_160_000


def path_of(row: MeasurementRow) -> OperandPath:
    """Path of the operands of a kernel."""
    height, width, _ = tile_of(row)
    path = PATHS[f"{row['instruction']}+{row['path'].lower()}"]
    return replace(
        path,
        warps=WARPS[height, width, row["warps"]],
        stages=row["stages"] * blocks_on_sm(row),
        stage_wait_ps=STAGE_WAIT_PS,
    )


def blocks_on_sm(row: MeasurementRow) -> int:
    """Count the blocks whose stages have room in an SM's shared memory."""
    height, width, depth = tile_of(row)
    stages: int = row["stages"]
    return SHARED_BYTES // (stages * (height + width) * depth * VALUE_BYTES[row["dtype"]])


def tile_of(row: MeasurementRow) -> tuple[int, int, int]:
    """Rows and columns of a tile, and values of a step."""
    height, width, depth = (int(side) for side in row["tile"].split("x"))
    return height, width, depth


def predict(bench: Bench, row: MeasurementRow) -> float:
    """Predict a time in microseconds."""
    dtype = TYPES[row["dtype"]]
    height, width, _ = tile_of(row)
    m, n, k = row["m"], row["n"], row["k"]
    system = bench.system(row["system"])
    work = one_rank([m], ExpertShape(k, n), dtype)

    def build(machine: Machine, start: Ints) -> None:
        gemm = Gemm(n, k, Kind.GEMM1, 2 * n)
        sms = machine.sms.count
        tiles = row_tiles(machine, work, gemm, sms, height, "matrix")
        tiles.block_n[:] = width
        gemm_tasks(
            machine,
            work,
            gemm,
            tiles,
            machine.sms.pool("sm", sms),
            start[tiles.rank],
            raster="groups",
            resident_blocks=blocks_on_sm(row),
            path=path_of(row),
        )

    return bench.time_us(system, 1, build)


TABLE = MeasurementTable(
    name="operand_gemms",
    title="One product by each path of operands (Triton), H100 and H200",
    kind=WorkKind.PRODUCTS,
    size="warps",
    bounds=(
        Bound("mma.sync, TMA", 8, has(instruction="mma.sync", path="TMA")),
        Bound("mma.sync, cp.async", 10, has(instruction="mma.sync", path="cp.async")),
        Bound("wgmma, TMA", 14, has(instruction="wgmma", path="TMA")),
        Bound("wgmma, cp.async", 20, has(instruction="wgmma", path="cp.async")),
    ),
    predict=predict,
    others=("low_us", "high_us", "error"),
    systems=("dgx-h100", "hgx-h200"),
)
