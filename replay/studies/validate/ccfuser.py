"""CCFuser's two kernels by themselves, 4 x A100.

The measured setting is ``mix_moe/kernel_evaluation.py`` of WongHuLin/CCFuser: 16,384 tokens on each
of four GPUs, top-1, a hundred launches in a row and their mean on rank 0. Rows of an (expert,
source) are multiples of 64; how many tiles rank 0 had, and how many of them were remote, follows
from the printed share, whose fraction is unique. Here they are spread evenly over experts and
sources, and all ranks are like rank 0.

*The GPUs were not connected by NVLink*, though the file is called so. The same benchmark times
FastMoE's all-to-all of the same rows: the extra time of more remote rows amounts to 8 GB/s per GPU,
where the links of an A100 carry 240. The released code itself sends only between GPUs 0 and 1 or 2
and 3 by loads and stores (``layers.py``), as one does where bridges connect pairs. The ports are
given that rate, and nothing else of the benchmark is used.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.model.work.placement import place
from replay.schemes.ep.ccfuser.blocks import TILE_ROWS, BlockPairs
from replay.schemes.ep.ccfuser.kernels import gemm2_and_put, get_and_gemm1
from replay.studies.validate.bench import Bench
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, WorkKind, has

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.machine.machine import Machine

SYSTEM, GPUS = "dgx-a100", 4
TOKENS, ROW_BYTES = 16384, 2048  # of each GPU; FP16

# Milliseconds of the all-to-all before GEMM-1 and of that behind GEMM-2, by the share of remote
# rows (mix_moe/ae/output_data/kernel_eval_nvlink.csv).
SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)
ALL_TO_ALL_MS = (
    (1.3, 1.6, 1.8, 2.0, 2.4, 2.5, 2.6, 2.8, 3.0, 3.4),
    (1.3, 1.6, 1.9, 2.1, 2.2, 2.4, 2.6, 2.8, 3.0, 3.4),
)


def exchanged_GB_per_s() -> float:
    """Rate at which a GPU sends, and receives, in the all-to-all: a slope by least squares."""
    ms_per_share = np.polyfit(SHARES * 2, np.concatenate(ALL_TO_ALL_MS), 1)[0]
    return float(TOKENS * ROW_BYTES / ms_per_share / 1e6)


def predict(bench: Bench, row: MeasurementRow) -> float:
    """Predict a time in microseconds."""
    plain = bench.system(SYSTEM)
    link = plain.link
    mbytes = 1 << 20
    wire = link.write_wire_bytes(mbytes, 1)
    alternating = mbytes / int(link.fan_out_duration_ps(wire)) * 1000  # GB/s
    efficiency = plain.spec.link.efficiency.value * exchanged_GB_per_s() / alternating
    system = bench.system(SYSTEM, link__efficiency=efficiency)
    return bench.time_us(system, GPUS, partial(_kernel, work_of(row), row))


def work_of(row: MeasurementRow) -> LayerWork:
    """Routing in which every rank has the row's tiles, and as many of them of other ranks."""
    local, remote, experts = row["tiles"] - row["remote_tiles"], row["remote_tiles"], _experts(row)
    expert, source = [], []
    for rank in range(GPUS):
        for count, first, others in ((local, rank, 1), (remote, rank + 1, GPUS - 1)):
            tile = np.arange(count)
            expert.append(rank * experts + tile * experts // max(count, 1))
            source.append((first + tile % others) % GPUS)
    ids, owner = (np.repeat(np.concatenate(each), TILE_ROWS) for each in (expert, source))
    order = np.argsort(owner, kind="stable")
    return LayerWork(
        ids[order].astype(np.int32)[:, None],
        owner[order].astype(np.int32),
        place("contiguous", GPUS * experts, GPUS),
        ExpertShape(row["hidden"], row["intermediate"], gated=False),
        Precision("bf16"),
    )


def _experts(row: MeasurementRow) -> int:
    return int(row["experts_per_gpu"])


def _kernel(work: LayerWork, row: MeasurementRow, machine: Machine, start: Ints) -> Ints:
    """Add one kernel; as released, kernel 2 multiplies the tiles of a paired block twice."""
    blocks = BlockPairs.of(work, padded=True)
    pool = machine.sms.pool("sm", machine.sms.count)
    if row["kernel"] == "get_gemm1":
        return get_and_gemm1(work, machine, blocks, pool, start, does_wait=True)
    return gemm2_and_put(work, machine, blocks, pool, start, repeats=True)


TABLE = MeasurementTable(
    name="ccfuser",
    title="CCFuser's two fused kernels, 4 x A100 whose GPUs exchange 8 GB/s",
    kind=WorkKind.ROWS,
    size="remote_tiles",
    bounds=(
        Bound("get and GEMM-1", 15, has(kernel="get_gemm1")),
        Bound("GEMM-2 and put", 15, has(kernel="gemm2_put")),
    ),
    predict=predict,
    systems=(SYSTEM,),
    schemes=("ccfuser",),
)
