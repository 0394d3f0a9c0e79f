"""All tables of measurements, by name."""

from __future__ import annotations

from collections.abc import Sequence

from replay.errors import unknown
from replay.studies.validate import (
    ascend,
    attention,
    ccfuser,
    compute,
    custom_allreduce,
    decode_ledger,
    deepep,
    deepgemm,
    fused_layers,
    links,
    mori,
    nccl,
    nccl_ep,
    one_gpu,
    operands,
    pushed_rows,
    symmetric_memory,
    tile_order,
    trtllm_alltoall,
)
from replay.studies.validate.table import MeasurementTable

TABLES: dict[str, MeasurementTable] = {
    table.name: table
    for table in (
        links.TABLE,
        nccl.TABLE,
        nccl.BUS,
        nccl.B200,
        custom_allreduce.TABLE,
        symmetric_memory.TABLE,
        symmetric_memory.GB200,
        deepep.TABLE,
        deepep.B200,
        deepep.LOW_LATENCY,
        deepep.LOW_LATENCY_B200,
        pushed_rows.DEEPEP_V2,
        pushed_rows.HYBRID_EP,
        pushed_rows.HYBRID_EP_INTERNODE,
        deepep.INTERNODE,
        deepep.INTERNODE_NOTIFY,
        deepep.LOW_LATENCY_INTERNODE,
        nccl_ep.TABLE,
        trtllm_alltoall.TABLE,
        compute.GEMM,
        compute.GEMM_FEW_TILES,
        compute.GEMM_SHORT_K,
        compute.GEMM_MACHINES,
        compute.MOE,
        compute.MOE_SKEWED,
        compute.MOE_MACHINES,
        compute.MOE_UNGATED,
        deepgemm.TABLE,
        operands.TABLE,
        one_gpu.TABLE,
        attention.TABLE,
        tile_order.TIME,
        tile_order.READ,
        tile_order.TILEOPS,
        tile_order.TILEOPS_BYTES,
        ccfuser.TABLE,
        fused_layers.TABLE,
        fused_layers.ALONE,
        decode_ledger.TABLE,
        ascend.CANN_EP,
        ascend.CANN_EP_NORMAL,
        ascend.GEMM,
        mori.TABLE,
    )
}


def of_system(names: Sequence[str], system: str | None) -> list[str]:
    """Tables of some that were measured on a system; all of them if it is None.

    Raises
    ------
    UserError
        If none of them was.
    """
    if system is None:
        return list(names)
    chosen = [name for name in names if system in TABLES[name].systems]
    if not chosen:
        measured = sorted({each for name in names for each in TABLES[name].systems})
        raise unknown("system with measurements", system, measured)
    return chosen
