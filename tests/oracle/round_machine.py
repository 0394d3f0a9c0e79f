"""A machine of round numbers, on which times can be added up by hand."""

from __future__ import annotations

from functools import cache

import numpy as np

import hwmodel
from hwmodel import System
from replay.engine import GraphBuilder, Timeline, schedule
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.machine.times import Time
from replay.model.work.layer import LayerWork
from replay.schemes import Scheme

NS = 1000  # picoseconds
US = 1_000_000

# A cache of which no more than its size is known: a tile reads its operands whole, as one task.
WHOLE_BLOCKS = {"cache.kept_share": 1.0, "cache.slices": 1}
# One byte a picosecond is 1000 GB/s.
ROUND = {
    **WHOLE_BLOCKS,
    "link.bandwidth_GB_per_s": 125.0,
    "link.efficiency": 1.0,
    "link.links_per_gpu": 8,
    "link.propagation_ns": 100.0,
    "link.sm_write_ack_flits": 0.0,
    "switch.traversal_ns": 50.0,
    "switch.merge_ns": 7.0,
    "switch.multimem_efficiency": 0.5,
    "switch.multicast_release_ns": 9.0,
    "switch.flits_per_channel": 4096,  # 2 MB per class: more than any port has under way
    "gpu.num_sms": 100,
    "gpu.sm_push_GB_per_s": 100.0,
    "gpu.sm_read_GB_per_s": 200.0,
    "gpu.sm_write_GB_per_s": 50.0,
    "gpu.write_visibility_ns": 30.0,
    "gpu.remote_read_access_ns": 20.0,
    "gpu.l2_latency_ns": 20.0,
    "hbm.latency_ns": 60.0,
    "gpu.l2_bytes_per_clock": 1e9,
    "warp.scan_ns": 3.0,
    "warp.row_ns": 40.0,
    "warp.round_ns": 100.0,
    "hbm.peak_GB_per_s": 10000.0,
    "hbm.stream_efficiency": 0.5,
    "hbm.read_efficiency": 0.8,
    "hbm.write_efficiency": 0.4,
    "compute.bf16_peak_TFLOP_per_s": 100.0,
    "compute.bf16_efficiency": 1.0,
    "compute.bf16_grouped_efficiency": 1.0,
    "compute.bf16_grouped_whole_tiles": False,
    "compute.mma_rows": 64,
    "compute.tile_overhead_ns": 11.0,
    "compute.operand_bytes_per_clock": 1e6,
    "compute.shared_bytes_per_clock": 1000.0,
    "compute.multiplication_clocks": 0.0,
    "compute.special_function_clocks": 0.0,
    "compute.register_bytes_per_clock": 1e6,
    "compute.mma_sync_efficiency": 1.0,
    "compute.bf16_blocks": [[64, 64]],
    "compute.bf16_grouped_blocks": [[64, 64]],
    "overheads.launch_us": 3.0,
    "overheads.graph_launch_us": 2.5,
    "overheads.kernel_gap_stream_us": 2.0,
    "overheads.kernel_gap_graph_us": 1.5,
    "overheads.host_sync_us": 9.0,
    "overheads.poll_pinned_us": 4.0,
    "overheads.poll_ns": 5.0,
    "overheads.small_kernel_us": 0.3,
    "overheads.barrier_base_ns": 1000.0,
    "overheads.barrier_per_peer_ns": 10.0,
    "nccl.ll_start_us": 1.0,
    "nccl.ll128_start_us": 50.0,
    "nccl.simple_start_us": 8.0,
    "nccl.ll_channel_GB_per_s": 10.0,
    "nccl.copy_GB_per_s": 25.0,
    "nccl.nvls_start_us": 20.0,
    "nccl.pair_ll_start_us": 2.0,
    "nccl.pair_simple_start_us": 4.0,
    "nccl.pair_channels": 32,
}


@cache
def round_machine() -> System:
    """Eight GPUs: ports of one byte a picosecond, SMs that push a tenth of that."""
    return hwmodel.load("dgx-h100", ROUND)


def memory_ps(nbytes: int) -> int:
    """Streams, operands, and bytes that are not told apart: 5000 GB/s."""
    return -(-nbytes // 5)


def elementwise_ps(read: int, written: int) -> int:
    """Kernels that copy and add: 8000 GB/s of reads, then 4000 GB/s of writes."""
    return -(-read // 8) + -(-written // 4)


def late_rank(layer: LayerWork, scheme: Scheme) -> Timeline:
    """A layer of two ranks, of which the second begins 500 us late."""
    machine = Machine(round_machine(), GraphBuilder(KIND_NAMES), 2)
    late = Time(np.array([0, 500 * US]))
    scheme.build(layer, machine, machine.delay(Kind.MARK, late, machine.mark(machine.ranks)))
    return schedule(machine.graph.build())
