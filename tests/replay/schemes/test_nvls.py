"""The dense exchange in the switch, by hand on a machine of round numbers."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from packets import response_packets, write_packets
from round_machine import NS, US, elementwise_ps, memory_ps, round_machine

import hwmodel
import replay
from replay.chains.layer import build_layer
from replay.engine import GraphBuilder, Timeline, schedule
from replay.model.collectives.nvls import NVLS
from replay.model.machine.kinds import DISPATCH, KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from tracegen.generate import generate
from tracegen.models import load

UP, DOWN = 150 * NS, 100 * NS
VISIBLE, ACCESS, MERGE = 30 * NS, 20 * NS, 7 * NS
GAP, SMALL_KERNEL, BARRIER = 2 * US, 300 * NS, 1000 * NS + 7 * 10 * NS
ACK = 2 * (100 + 25) * NS  # of stores, before the flags of a barrier leave
RELEASE = 9 * NS  # a fence behind stores that the switch copied
PUSH, PULL = 10, 20  # ps a byte
ROW = 2048  # bytes of 1024 BF16 values
RANKS, EXPERTS = 8, 16


@cache
def one_token(**options: bool) -> Timeline:
    """One token of rank 0 for both experts of rank 1 and one of rank 2."""
    layer = small_layers.work(
        np.array([[2, 3, 4]], np.int32),
        RANKS,
        EXPERTS,
        tokens_of_rank=[1] + [0] * (RANKS - 1),
        shape=ExpertShape(1024, 64),
    )
    graph, _, _ = build_layer(layer, round_machine(), SCHEMES["nvls"].with_options(options))
    return schedule(graph)


def durations(kind: Kind, group: str, rank: int) -> list[int]:
    graph = one_token().graph
    groups = np.array([*graph.resources.groups, "nothing"])[graph.resource]
    chosen = (graph.kind == kind) & (groups == group) & (graph.rank == rank)
    return graph.duration_ps[chosen].tolist()


def test_rows_ids_and_weights_are_gathered_one_after_the_other() -> None:
    timeline = one_token()
    graph = timeline.graph
    ends = 0
    sends = np.flatnonzero(graph.kind == Kind.DISPATCH_SEND)
    downs = np.flatnonzero(graph.kind == Kind.DISPATCH_DOWN).reshape(3, RANKS)
    for index, nbytes in enumerate((ROW, 3 * 8, 3 * 4)):
        begun = ends + GAP
        assert timeline.start_ps[sends[index]] == begun
        wire = 2 * write_packets(nbytes)  # half the rate of the port
        arrived = begun + nbytes * PUSH + wire + UP + wire + DOWN + VISIBLE
        # The owner's own copy passes the switch like all others.
        assert graph.rank[downs[index]].tolist() == list(range(RANKS))
        assert timeline.visible_ps[downs[index]].tolist() == [arrived] * RANKS
        ends = arrived + ACK + RELEASE + BARRIER
    layout = np.flatnonzero(graph.kind == Kind.LAYOUT)
    assert timeline.start_ps[layout].min() == ends + GAP


def test_a_sum_takes_a_part_of_every_rank() -> None:
    timeline = one_token()
    graph = timeline.graph
    kernels = np.flatnonzero(graph.kind == Kind.UNPERMUTE)
    begun = int(timeline.visible_ps[kernels].max()) + GAP + BARRIER
    send = np.flatnonzero(graph.kind == Kind.COMBINE_SEND)
    assert timeline.start_ps[send].tolist() == [begun]
    ups = np.flatnonzero(graph.kind == Kind.COMBINE_UP)
    assert graph.rank[ups].tolist() == list(range(RANKS))
    request, answer = 2 * 16 * 16, 2 * response_packets(ROW)
    asked = begun + ROW * PULL + request + UP + request + DOWN + ACCESS
    # Eight parts are seven additions, at 800 GB/s.
    adding = RANKS * -(-(ROW * (RANKS - 1) // RANKS) * 10 // 8)
    summed = asked + answer + UP + MERGE + adding + answer + DOWN
    down = np.flatnonzero(graph.kind == Kind.COMBINE_DOWN)
    assert timeline.visible_ps[down].tolist() == [summed]
    assert timeline.makespan_ps == summed + elementwise_ps(0, ROW)


def test_memory_is_read_and_written_for_all_tokens_on_all_ranks() -> None:
    rows, copies = [0, 2, 1, 0, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0, 0, 0]
    for rank in range(RANKS):
        # All ids are looked through; then the counts of its own experts are added up.
        assert durations(Kind.LAYOUT, "hbm", rank) == [memory_ps(3 * 8), memory_ps(2 * 4 * 2)]
        assert durations(Kind.PERMUTE, "hbm", rank) == [
            elementwise_ps(3 * (8 + 4) + copies[rank] * ROW, rows[rank] * ROW)
        ]
        # One dense row is set to zero; its own rows are read, and added where it is.
        assert durations(Kind.UNPERMUTE, "hbm", rank) == [
            elementwise_ps(0, ROW),
            elementwise_ps((rows[rank] + copies[rank]) * ROW, copies[rank] * ROW),
        ]
        assert durations(Kind.COMBINE_MEMORY, "hbm", rank) == ([elementwise_ps(0, ROW)] * (rank == 0))


def test_kernels_and_barriers() -> None:
    for rank in range(RANKS):
        # Three gathers, count, sum, permute, GEMM, activation, GEMM, zero, add, reduce-scatter.
        assert durations(Kind.LAUNCH, "nothing", rank) == [GAP] * 12
        assert durations(Kind.DISPATCH_SYNC, "nothing", rank) == [BARRIER + ACK + RELEASE] * 3
        assert durations(Kind.COMBINE_SYNC, "nothing", rank) == [BARRIER]
        assert durations(Kind.DISPATCH_SYNC, "host", rank) == []
    assert durations(Kind.DISPATCH_SEND, "nvls-sm", 0) == [nbytes * PUSH for nbytes in (ROW, 3 * 8, 3 * 4)]
    assert durations(Kind.COMBINE_SEND, "nvls-sm", 0) == [ROW * PULL]


def test_one_kernel_can_gather_all_three_with_one_barrier() -> None:
    at_once = one_token(gathers_at_once=True)

    def of(kind: Kind, group: str) -> list[int]:
        groups = np.array([*at_once.graph.resources.groups, "nothing"])[at_once.graph.resource]
        chosen = (at_once.graph.kind == kind) & (groups == group) & (at_once.graph.rank == 0)
        return at_once.graph.duration_ps[chosen].tolist()

    assert of(Kind.LAUNCH, "nothing") == [GAP] * 10  # two less
    assert of(Kind.DISPATCH_SYNC, "nothing") == [BARRIER + ACK + RELEASE]
    assert of(Kind.DISPATCH_SEND, "nvls-sm") == [(ROW + 3 * 8 + 3 * 4) * PUSH]
    assert at_once.makespan_ps < one_token().makespan_ps


def test_without_the_loop_the_owner_adds_its_own_row() -> None:
    looped, apart = one_token(), one_token(loopback=False)
    for kind in (Kind.DISPATCH_DOWN, Kind.COMBINE_UP):
        assert (looped.graph.kind == kind).sum() % RANKS == 0
        assert (apart.graph.rank[apart.graph.kind == kind] > 0).all()
    memory = apart.graph.duration_ps[apart.graph.kind == Kind.COMBINE_MEMORY]
    assert memory.tolist() == [elementwise_ps(ROW, ROW)]


def test_gradients_need_no_ids_and_no_counts() -> None:
    layer = small_layers.ALL["backward"]()
    graph, _, _ = build_layer(layer, hwmodel.load("dgx-h100"), SCHEMES["nvls"])
    assert not (graph.kind == Kind.LAYOUT).any()
    assert (graph.payload_bytes[graph.kind == Kind.DISPATCH_UP] > 0).all()


def test_the_all_reduce_moves_a_share_more_than_its_bytes_each_way() -> None:
    """S (1 + 1/n) in each direction, as byte counters show for NVLS (hardware: own part loops)."""
    nbytes = 8 << 20
    machine = Machine(round_machine(), GraphBuilder(KIND_NAMES), RANKS)
    NVLS.build(machine, DISPATCH, "all_reduce", nbytes, machine.mark(machine.ranks))
    graph = machine.graph.build()
    for kind in (Kind.DISPATCH_UP, Kind.DISPATCH_DOWN):
        of_kind = graph.kind == kind
        carried = np.bincount(graph.rank[of_kind], graph.wire_bytes[of_kind])
        # A header of 16 bytes comes with every 128; none of it are token rows.
        assert carried.tolist() == [(nbytes + nbytes // RANKS) * 144 // 128] * RANKS
        assert not graph.payload_bytes[of_kind].any()


def test_the_jump_near_128_rows_an_expert_is_a_second_wave_of_tiles() -> None:
    """A second expert of a GPU with more rows than a tile is high; the exchange has no part in it.

    23 column tiles for each of six row tiles are more than 132 SMs, those for each of five are not.
    """
    took: dict[tuple[int, bool], float] = {}
    for tokens in (112, 116):
        trace = generate("uniform", load("gpt-oss-20b"), ranks=8, tokens_per_rank=tokens, layers=1, seed=1)
        loads = np.bincount(trace.expert_ids[0].ravel(), minlength=32).reshape(8, 4)
        fullest = loads[np.argmax((loads > 128).sum(axis=1))]
        grid = hwmodel.load("dgx-h100").compute.gemm_tiles(fullest, 5760, 2880, "bf16")
        assert (grid.num_tiles > 132) == (tokens == 116)
        for is_left_out in (False, True):
            result = replay.run(
                trace,
                scheme="nvls",
                system="dgx-h100",
                tokens_per_rank=tokens,
                communication_only=is_left_out,
                stack="bare",
            )
            took[tokens, is_left_out] = result.totals.makespan_us
    whole, exchange = (took[116, left_out] - took[112, left_out] for left_out in (False, True))
    assert whole > 9 and exchange < 1.5


@pytest.mark.parametrize("system", ["dgx-h100", "hgx-b200"])
def test_ports_and_not_sms_bind_from_eight_to_those_of_megatron(system: str) -> None:
    trace = generate("uniform", load("gpt-oss-20b"), ranks=8, tokens_per_rank=256, layers=1, seed=1)
    times = [
        replay.run(trace, system=hwmodel.load(system), scheme="nvls", options={"num_sms": sms}, tune=False)
        for sms in (8, 16, 128)
    ]
    assert max(one.totals.makespan_us for one in times) < 1.005 * min(one.totals.makespan_us for one in times)
