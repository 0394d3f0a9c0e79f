"""Tables measured on 8 x B200: the same benchmarks, through the same predictions."""

from __future__ import annotations

from dataclasses import replace

from replay.studies.validate import deepep, nccl
from replay.studies.validate.table import Bound, has

NCCL = replace(
    nccl.TABLE,
    name="nccl_collectives_b200",
    title="NCCL collectives, 2, 4 and 8 x B200",
    systems=("hgx-b200",),
    bounds=(
        Bound("1 MB and more", 10, lambda row: row["bytes"] >= nccl.MEGABYTE),
        Bound("less than 1 MB", 10, lambda row: row["bytes"] < nccl.MEGABYTE),
    ),
)
DEEPEP = replace(
    deepep.TABLE,
    name="deepep_normal_b200",
    title="DeepEP V1 normal kernels, 8 x B200",
    systems=("hgx-b200",),
    bounds=(
        Bound("dispatch", 10, has(phase="dispatch")),
        Bound("combine", 10, has(phase="combine")),
    ),
)
LOW_LATENCY = replace(
    deepep.LOW_LATENCY,
    name="deepep_low_latency_b200",
    title="DeepEP V1 low-latency kernels, 8 x B200",
    systems=("hgx-b200",),
    bounds=(Bound("all", 10, has()),),
)
