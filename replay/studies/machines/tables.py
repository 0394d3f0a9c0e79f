"""Tables by which lines of logs are predicted, and the constants that they may determine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hwmodel.units import PS_PER_US
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_kernel
from replay.model.machine.kinds import Kind
from replay.model.machine.times import MemoryTraffic
from replay.model.work.layer import ExpertShape
from replay.studies.validate.bench import Bench, one_rank
from replay.studies.validate.catalog import TABLES as PUBLISHED
from replay.studies.validate.compute import DEEPGEMM_DENSE, one_matrix
from replay.studies.validate.table import EVERY, Bound, MeasurementRow, MeasurementTable, WorkKind

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.machine.machine import Machine

STREAM = "cublas stream"
"""Library of a product in a stream of others, whose time has the gap before its kernel."""


def predict_matrix(bench: Bench, row: MeasurementRow) -> float:
    """Predict a product's time in microseconds, that of its kernel alone except in a stream."""
    groups, m, n, k = (row[key] for key in ("groups", "m", "n", "k"))
    dense = DEEPGEMM_DENSE if row["library"] == "deepgemm" and groups == 1 else {}
    system = bench.system(row["system"], **dense)
    build = one_matrix(m, n, k, row["dtype"], system.spec.gpu.num_sms.value)
    if groups > 1:

        def build(machine: Machine, start: Ints) -> None:
            rows = [m // groups + (at < m % groups) for at in range(groups)]
            work = one_rank(rows, ExpertShape(k, n), row["dtype"])
            pool = machine.sms.pool("sm", machine.sms.count)
            gemm_kernel(machine, work, Gemm(n, k, Kind.GEMM1, 2 * n), pool, start)

    gap = 0 if row["library"] == STREAM else system.overheads.kernel_gap_ps() / PS_PER_US
    return bench.time_us(system, 1, build) - gap


def predict_stream(bench: Bench, row: MeasurementRow) -> float:
    """Predict the time of an elementwise kernel behind another, in microseconds."""

    def build(machine: Machine, start: Ints) -> None:
        moved = MemoryTraffic(np.array([row["read"]]), np.array([row["written"]]))
        machine.memory_kernel(Kind.PERMUTE, moved, start)

    return bench.time_us(bench.system(row["system"]), 1, build)


def predict_value(bench: Bench, row: MeasurementRow) -> float:
    """Give the machine's value of a constant that was measured directly."""
    return float(bench.system(row["system"]).spec.entry(row["key"]).value)


OWN = (
    MeasurementTable(
        "values",
        "Values that a program measures by themselves",
        "key",
        (Bound("all", 10, EVERY),),
        predict_value,
    ),
    MeasurementTable(
        "streams",
        "Kernels that copy, read and write memory",
        "read",
        (Bound("all", 10, EVERY),),
        predict_stream,
    ),
    MeasurementTable(
        "matrices",
        "Products by libraries",
        "m",
        (Bound("all", 10, EVERY),),
        predict_matrix,
        kind=WorkKind.PRODUCTS,
    ),
)

CONSTANTS: Mapping[str, tuple[str, ...]] = {
    "values": (
        "overheads.launch_us",
        "overheads.host_sync_us",
        "overheads.kernel_gap_stream_us",
        "overheads.kernel_gap_graph_us",
        "pcie.bandwidth_GB_per_s",
    ),
    "streams": ("hbm.read_efficiency", "hbm.write_efficiency", "overheads.small_kernel_us"),
    "matrices": (
        "compute.bf16_efficiency",
        "compute.fp8_efficiency",
        "compute.tile_overhead_ns",
    ),
    "links": ("link.efficiency", "link.fan_out_efficiency"),
    "nccl_collectives": (
        "nccl.ll_start_us",
        "nccl.ll128_start_us",
        "nccl.simple_start_us",
        "nccl.ll_channel_GB_per_s",
        "nccl.ll128_channel_GB_per_s",
        "nccl.copy_GB_per_s",
        "nccl.pair_ll_start_us",
        "nccl.pair_simple_start_us",
        "nccl.nvls_start_us",
        "switch.multimem_efficiency",
    ),
    "deepep_normal": (
        "warp.scan_ns",
        "warp.row_ns",
        "warp.round_ns",
        "warp.reduce_step_ns",
        "warp.reduce_source_ns",
        "warp.reduce_wait_ns",
        "overheads.fence_us",
    ),
    "deepep_low_latency": (
        "link.scatter_efficiency",
        "link.bulk_scatter_efficiency",
        "overheads.grid_barrier_us",
    ),
    # Before its notify kernels, which wait for the ends of these: both post, and their constants move those ends.
    "deepep_internode": ("warp.bulk_ns", "nic.efficiency", "nic.post_ns"),
    "deepep_internode_notify": ("nic.post_ns",),
    "deepep_v2": ("link.fan_out_efficiency", "gpu.sm_push_GB_per_s"),
}
"""By table, in the order in which they are fitted: what is found stands in the fits behind it.

Kernels of which a constant is most come first: a notify shows what a put takes, which transfers
have as well.
"""

TABLES: Mapping[str, MeasurementTable] = {table.name: table for table in OWN} | {
    name: replace(PUBLISHED[name], is_outlier=None) for name in CONSTANTS if name in PUBLISHED
}
TOOLS: Mapping[str, str] = {
    "values": "moereplay hardware measure, nvbandwidth",
    "streams": "moereplay hardware measure",
    "matrices": "moereplay hardware measure, DeepGEMM's tests, cublasMatmulBench",
    "links": "nvbandwidth, moereplay hardware measure",
    "nccl_collectives": "nccl-tests (all_reduce_perf, alltoall_perf, ...)",
    "deepep_normal": "DeepEP's test_intranode.py",
    "deepep_low_latency": "DeepEP's test_low_latency.py, CollectiveX",
    "deepep_internode": "DeepEP's test_internode.py",
    "deepep_internode_notify": "DeepEP's test_internode.py",
    "deepep_v2": "DeepEP's test_ep.py",
}
"""Programs whose logs say something of a table's constants."""
