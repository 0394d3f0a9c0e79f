"""Kernels that push rows through shared memory, by bandwidth: DeepEP V2 and HybridEP.

The published bandwidth is what a GPU receives, own rows included, over the time of the kernel
alone, in one NVLink domain under uniform routing. HybridEP's time is from the first row pushed or
asked for to the last that has arrived or is added: the barriers around it are kernels of their own.
DeepEP V2's is from the kernel's begin to its last barrier, without the epilogue; a row's expert ids
(8 bytes) and gate weights (4 bytes) count. One constant was fitted to a row of HybridEP
(`between.LOOK_NS`), nothing to DeepEP V2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.kinds import Kind
from replay.schemes.ep.deepep import elastic_kernels
from replay.schemes.ep.deepep.messages import NODE_GPUS
from replay.schemes.ep.hybrid_ep import kernels as hybrid
from replay.schemes.ep.hybrid_ep.scheme import HybridEpOptions
from replay.studies.validate.bench import Bench
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, WorkKind, has

if TYPE_CHECKING:
    from replay.engine import Timeline
    from replay.model.arrays import Ints
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

BETWEEN = "-ib"  # of the name of a machine of several nodes
NAMED_BYTES = 12  # an expert's id and weight, per choice, as DeepEP's test counts them
FEWEST_SMS = 4

Replayed = Callable[[Bench, MeasurementRow, "LayerWork"], float]


def _bandwidth(bench: Bench, row: MeasurementRow, replayed: Replayed) -> float:
    """GB/s that the GPUs receive in the mean; `replayed` gives microseconds.

    Between nodes a row counts once for each (token, node), its own one included.
    """
    work, gpus = row.work(row["row_type"]), row["num_gpus"]
    is_dispatch = row["phase"] == "dispatch"
    each = work.dispatch_row_bytes if is_dispatch else work.combine_row_bytes
    if is_dispatch and row.table == "deepep_v2":
        each += NAMED_BYTES * row["topk"]
    if row["system"].endswith(BETWEEN):
        nodes = gpus // NODE_GPUS
        crossed = np.unique(work.copy_token * nodes + work.copy_rank // NODE_GPUS)
        received = len(crossed) / gpus * each
    else:
        received = work.matrix("copies").sum() / gpus * each
    return float(received) / replayed(bench, row, work) / 1000


def _hybrid_us(bench: Bench, row: MeasurementRow, work: LayerWork) -> float:
    """From the first row that leaves, or is asked for, to the last that has come."""
    add = hybrid.dispatch if row["phase"] == "dispatch" else hybrid.combine

    def build(machine: Machine, start: Ints) -> None:
        split = machine.sms.split("hybrid-ep", {"num_sms": row["num_sms"]})
        add(work, machine, split, row["num_sms"], HybridEpOptions().chunk_tokens, start)

    name, gpus = row["system"], row["num_gpus"]
    system = bench.of_nodes(name, gpus) if name.endswith(BETWEEN) else bench.system(name)
    timeline = bench.timeline(system, gpus, build)
    if row["phase"] == "dispatch":
        return _span_us(timeline, Kind.DISPATCH_SEND, Kind.DISPATCH_DOWN)
    return _span_us(timeline, Kind.COMBINE_SEND, Kind.COMBINE_RECEIVE)


def _elastic_us(bench: Bench, row: MeasurementRow, work: LayerWork) -> float:
    """From the kernel's begin to the end of its last barrier."""
    is_dispatch = row["phase"] == "dispatch"

    def build(machine: Machine, start: Ints) -> None:
        sms = machine.sms.channels("elastic", row["num_sms"])
        if is_dispatch:
            elastic_kernels.dispatch(work, machine, sms, start, is_cached=False, expands=False, host_waits=False)
        else:
            elastic_kernels.combine(work, machine, sms, start, expands=False)

    timeline = bench.timeline(bench.system(row["system"]), row["num_gpus"], build)
    return _span_us(timeline, Kind.LAUNCH, Kind.DISPATCH_SYNC if is_dispatch else Kind.COMBINE_SYNC)


def _span_us(timeline: Timeline, first: Kind, last: Kind) -> float:
    """From the first start of one kind, behind the gap of a launch, to the last end of another."""
    kind = timeline.graph.kind
    begins = timeline.end_ps if first == Kind.LAUNCH else timeline.start_ps
    span = timeline.visible_ps[kind == last].max() - begins[kind == first].min()
    return float(span) / 1e6


HYBRID_EP = MeasurementTable(
    name="hybrid_ep",
    title="HybridEP's kernels alone, 8 x B200, 8 to 36 x GB200",
    kind=WorkKind.ROWS,
    size="num_gpus",
    bounds=(
        Bound("dispatch, FP8", 15, has(row_type="fp8")),
        Bound("dispatch, BF16", 15, has(row_type="bf16", phase="dispatch")),
        Bound("combine", 20, has(phase="combine")),
    ),
    predict=partial(_bandwidth, replayed=_hybrid_us),
    measured="bandwidth_GB_per_s",
    systems=("hgx-b200", "gb200-nvl72"),
    schemes=("hybrid-ep",),
)

HYBRID_EP_INTERNODE = MeasurementTable(
    name="hybrid_ep_internode",
    title="HybridEP's kernels alone, 16 to 64 x H100 on two to eight nodes",
    kind=WorkKind.ROWS_BETWEEN,
    size="num_gpus",
    bounds=(
        Bound("4 SMs", 20, has(num_sms=FEWEST_SMS)),
        Bound("8 and 16 SMs", 10, lambda row: row["num_sms"] > FEWEST_SMS),
    ),
    predict=partial(_bandwidth, replayed=_hybrid_us),
    measured="bandwidth_GB_per_s",
    schemes=("hybrid-ep",),
)

DEEPEP_V2 = MeasurementTable(
    name="deepep_v2",
    title="DeepEP V2's kernels without epilogue, 8 x B200",
    kind=WorkKind.ROWS,
    size="num_sms",
    bounds=(Bound("all", 20, has()),),
    predict=partial(_bandwidth, replayed=_elastic_us),
    measured="bandwidth_GB_per_s",
    systems=("hgx-b200",),
    schemes=("deepep-v2",),
)
