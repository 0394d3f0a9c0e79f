"""All tables of measurements, by name."""

from __future__ import annotations

from replay.validate import (
    compute,
    custom_allreduce,
    deepep,
    deepgemm,
    links,
    nccl,
)
from replay.validate.table import Table

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        links.TABLE,
        nccl.TABLE,
        custom_allreduce.TABLE,
        deepep.TABLE,
        deepep.LOW_LATENCY,
        deepep.INTERNODE,
        deepep.LOW_LATENCY_INTERNODE,
        compute.GEMM,
        compute.MOE,
        deepgemm.TABLE,
    )
}
