"""Memory of a GPU whose kernels run side by side: who waits for whom, and for how long."""

from __future__ import annotations

import numpy as np
import pytest
from round_machine import NS, US, round_machine

import hwmodel
from replay.engine import GraphBuilder, schedule
from replay.model.machine.kinds import COMBINE, DISPATCH, KIND_NAMES, Kind
from replay.model.machine.machine import WAVE_BYTES, Machine, MemoryTraffic, Time
from replay.model.work.layer import ExpertShape
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers

WAVE = 100 * WAVE_BYTES  # of the 100 SMs of the round machine, which streams 5 bytes a picosecond


def make(num_ranks: int = 2, *, is_shared: bool = True) -> Machine:
    return Machine(round_machine(), GraphBuilder(KIND_NAMES), num_ranks, is_shared=is_shared)


@pytest.mark.parametrize("waves", [1, 2, 7])
@pytest.mark.parametrize("nbytes", [WAVE, WAVE - 3, MemoryTraffic(WAVE // 3 + 5, WAVE - WAVE // 3 - 5, 11)])
def test_a_kernel_that_shares_with_nobody_takes_its_time(waves: int, nbytes) -> None:
    ends = []
    for is_shared in (True, False):
        machine = make(is_shared=is_shared)
        if isinstance(nbytes, MemoryTraffic):
            given = MemoryTraffic(waves * nbytes.read, waves * nbytes.written, nbytes.rows)
        else:
            given = np.array([waves * nbytes, nbytes])
        ended = machine.memory_kernel(Kind.BETWEEN, given, machine.mark(machine.ranks))
        timeline = schedule(machine.graph.build())
        ends.append(timeline.visible_ps[ended].tolist())
        served = int((timeline.graph.resource == machine.resources.hbm[0]).sum())
        assert served == (waves if is_shared else 1)
    assert ends[0] == ends[1]


def test_who_asks_beside_a_kernel_waits_for_a_wave_and_the_kernel_for_him() -> None:
    machine = make()
    start = machine.mark(machine.ranks)
    asked = machine.delay(Kind.MARK, Time(3 * US), start)
    kernel = machine.memory_kernel(Kind.BETWEEN, np.full(2, 6 * WAVE), start)
    beside = machine.stream(Kind.DISPATCH_MEMORY, np.array([5000, 0]), machine.ranks, asked)
    visible = schedule(machine.graph.build()).visible_ps
    begun, wave = 2 * US, WAVE // 5  # behind the gap before a kernel
    second = begun + -(-(3 * US - begun) // wave) * wave
    assert visible[beside[0]] == second + 1000
    assert visible[kernel].tolist() == [
        begun + 6 * wave + 1000 + 300 * NS,
        begun + 6 * wave + 300 * NS,
    ]


def test_what_is_copied_counts_only_where_somebody_runs_beside() -> None:
    for is_shared in (True, False):
        machine = make(is_shared=is_shared)
        start = machine.mark(machine.ranks)
        machine.charge_copy(DISPATCH, np.full(2, 5000), machine.ranks, start)
        graph = machine.graph.build()
        served = graph.duration_ps[graph.kind == Kind.DISPATCH_MEMORY]
        assert served.tolist() == [1000] * 2 * is_shared


def test_nobody_waits_for_memory_that_messages_occupy() -> None:
    arrived = []
    for is_shared in (True, False):
        machine = make(is_shared=is_shared)
        start = machine.mark(machine.ranks)
        machine.stream(Kind.BETWEEN, np.full(2, 5_000_000), machine.ranks, start)
        there = machine.transfers.store(DISPATCH, np.array([0]), np.array([1]), 4096, start[:1]).arrived
        timeline = schedule(machine.graph.build())
        arrived.append(timeline.visible_ps[there].tolist())
        of = timeline.graph.kind == Kind.DISPATCH_MEMORY
        assert of.sum() == is_shared
        assert (timeline.start_ps[of] == 1_000_000).all()  # behind what was asked for first
    assert arrived[0] == arrived[1]


# ---- the exchanges -------------------------------------------------------------------------------

HIDDEN = 512
HBM = 5  # bytes a picosecond


def memory_bytes(phase: str, expert: int, *, is_shared: bool, gpus: int = 16) -> list[int]:
    """(rank,): bytes that memory serves while rows of GPU 0 go to an expert and back.

    The expert is on the GPU of its number; 8 GPUs are a node.
    """
    system = hwmodel.load("hgx-h800-x8", {"hbm.peak_GB_per_s": 10000.0, "hbm.stream_efficiency": 0.5})
    graph = GraphBuilder(KIND_NAMES)
    work = small_layers.work(
        np.array([[expert, -1]] * ROWS, np.int32),
        gpus,
        gpus,
        tokens_of_rank=[ROWS] + [0] * (gpus - 1),
        shape=ExpertShape(HIDDEN, 64),
    )
    machine = Machine(system, graph, gpus, is_shared=is_shared)
    scheme = SCHEMES["deepep"].with_options({"num_sms": 8, "dispatch_chunk": 10, "combine_chunk": 10})
    getattr(scheme, f"{phase}_kernel")(work, machine, machine.mark(machine.ranks))
    built = graph.build()
    kind = DISPATCH.memory if phase == "dispatch" else COMBINE.memory
    busy = np.zeros(gpus, np.int64)
    of = built.kind == kind
    np.add.at(busy, built.rank[of], built.duration_ps[of])
    return (busy * HBM).tolist()


ROWS = 40
OUT, BACK, SUM = 2 * HIDDEN + 32, 2 * HIDDEN + 16, 2 * HIDDEN  # bytes of rows with what travels


def test_a_dispatched_row_passes_memory_eight_times_between_nodes_and_six_within() -> None:
    # Read, written into the buffer of the card, read by it; written there, read by the forwarder;
    # written into the ring, read from it, written to its place.
    away = memory_bytes("dispatch", 13, is_shared=True)
    assert {0: away[0], 8: away[8], 13: away[13]} == {0: 3 * ROWS * OUT, 8: 2 * ROWS * OUT, 13: 3 * ROWS * OUT}
    # Within, into its own buffer.
    near = memory_bytes("dispatch", 3, is_shared=True)
    assert (near[0], near[3], sum(near)) == (3 * ROWS * OUT, 3 * ROWS * OUT, 6 * ROWS * OUT)
    alone = memory_bytes("dispatch", 13, is_shared=False)
    assert sum(alone) == alone[13] == 2 * ROWS * OUT


def test_a_returned_row_passes_memory_once_more_for_each_sum() -> None:
    away = memory_bytes("combine", 13, is_shared=True)
    # Read at its expert's GPU; written into the ring of the forwarder, read from it, the sum
    # written, read by the card; written there, read without what travels beside it, and the sum.
    assert away[13] == ROWS * BACK
    assert away[8] == 4 * ROWS * BACK
    assert away[0] == ROWS * (BACK + SUM + sums(SUM))
    assert sum(memory_bytes("combine", 13, is_shared=False)) == ROWS * sums(SUM)


def test_rows_inside_a_node_pass_no_buffer_of_a_card() -> None:
    out = memory_bytes("dispatch", 3, is_shared=True, gpus=8)
    row = 2 * HIDDEN + 4 + 2 * 12  # source; ids of 8 and weights of 4
    assert (out[0], out[3], sum(out)) == (ROWS * row, 3 * ROWS * row, 4 * ROWS * row)
    back = memory_bytes("combine", 3, is_shared=True, gpus=8)
    row = 2 * HIDDEN + 4 + 2 * 4
    assert (back[3], back[0]) == (ROWS * row, ROWS * (2 * row + sums(SUM)))


def sums(nbytes: int) -> int:
    """Bytes of a stream that take as long as a sum that a kernel writes."""
    system = hwmodel.load("hgx-h800-x8", {"hbm.peak_GB_per_s": 10000.0, "hbm.stream_efficiency": 0.5})
    return HBM * int(system.hbm.elementwise_ps(0, nbytes))
