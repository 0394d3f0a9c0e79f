"""All tables: one dict."""

from __future__ import annotations

from replay.validate import (
    compute,
    custom_allreduce,
    deepep,
    deepgemm,
    links,
    low_latency,
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
        low_latency.LOW_LATENCY,
        low_latency.INTERNODE,
        low_latency.LOW_LATENCY_INTERNODE,
        compute.GEMM,
        compute.MOE,
        deepgemm.TABLE,
    )
}
