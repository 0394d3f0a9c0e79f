"""FlashInfer's push MegaMoE by hand: bytes, SM time, flags and kernels of a round of `five_tokens`."""

from __future__ import annotations

import five_tokens
import numpy as np
import pytest
from five_tokens import COPIES, HIDDEN, INTERMEDIATE, PAIRS, RATE, TOKENS, about, build, memory_bytes, on_sms
from packets import write_packets
from round_machine import NS, US

import hwmodel
from replay.engine import TaskGraph, schedule
from replay.model.machine.kinds import Kind
from replay.model.machine.machine import Machine
from replay.model.machine.resources import ResourceClass
from replay.model.work.layer import ExpertShape, LayerWork
from replay.model.work.precision import Precision
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.contract.case import Case
from replay.schemes.contract.examine import examine_case
from replay.schemes.contract.graph_facts import Dependencies

PUSH = SCHEMES["flashinfer-push"]
MOST = 3
OWNED = (4, 3)  # (token, GPU) of each GPU's tokens
SCALES = 4 * HIDDEN // 128
ROW = {"fp8": HIDDEN + SCALES, "bf16": 2 * HIDDEN}
TYPES = {"fp8": Precision("fp8", combine="fp8"), "bf16": Precision("bf16")}
each = pytest.mark.parametrize
both = each("types", ["fp8", "bf16"])


def layer(types: str) -> LayerWork:
    return five_tokens.layer(TYPES[types])


def replay(work: LayerWork) -> tuple[TaskGraph, Machine]:
    return build(work, PUSH)


def tasks(graph: TaskGraph, kind: Kind, rank: int) -> list[int]:
    return np.flatnonzero((graph.kind == kind) & (graph.rank == rank)).tolist()


# ---- bytes ---------------------------------------------------------------------------------------


@both
@each("rank", [0, 1])
def test_memory_of_the_kernels(types: str, rank: int) -> None:
    graph, machine = replay(layer(types))
    row, got, tokens = ROW[types], PAIRS[rank], TOKENS[rank]
    inbox = MOST * 2 * (SCALES if types == "fp8" else row)
    # The inbox, the round, counts of two choices a token, the acknowledgement.
    assert memory_bytes(graph, machine, Kind.LAYOUT, rank) == about([inbox, 0, 3 * 4 * 2 * tokens, 0])
    assert memory_bytes(graph, machine, Kind.PERMUTE, rank) == about([2 * got * (row + 16)])
    assert sum(memory_bytes(graph, machine, Kind.COMBINE_MEMORY, rank)) == pytest.approx(got * 2 * HIDDEN, abs=4 * RATE)
    back = OWNED[rank] * row if types == "fp8" else tokens * 2 * row
    assert memory_bytes(graph, machine, Kind.UNPERMUTE, rank) == about(
        [4 * MOST * 2, got * (16 + 2 * 4), back + tokens * 2 * HIDDEN]
    )
    assert memory_bytes(graph, machine, Kind.TOKEN_CAST, rank) == (
        about([2 * HIDDEN] * tokens) if types == "fp8" else []
    )


@both
def test_a_row_goes_once_to_a_gpu_with_a_record_for_each_expert(types: str) -> None:
    graph, _ = replay(layer(types))
    for rank, (rows, records) in enumerate([(2, 3), (1, 1)]):
        up = (graph.kind == Kind.DISPATCH_UP) & (graph.rank == rank)
        assert int(graph.payload_bytes[up].sum()) == rows * ROW[types]
        stored = rows * write_packets(ROW[types])
        # Records of one message are stored together.
        assert stored < int(graph.wire_bytes[up].sum()) <= stored + records * write_packets(16)
        back = (graph.kind == Kind.COMBINE_UP) & (graph.rank == 1 - rank)
        assert int(graph.payload_bytes[back].sum()) == rows * ROW[types]


@both
@each("rank", [0, 1])
def test_time_of_sms(types: str, rank: int) -> None:
    graph, machine = replay(layer(types))
    row, push, read = ROW[types], 10, 5  # picoseconds a byte
    copies = OWNED[rank]
    records = 2 * TOKENS[rank]
    sent = push * (copies * row + 16 * records)
    cast = read * 2 * HIDDEN * TOKENS[rank] if types == "fp8" else 0
    assert on_sms(graph, machine, Kind.DISPATCH_SEND, rank) == pytest.approx(sent + cast, rel=0.001)
    added = read * PAIRS[rank] * 2 * HIDDEN + push * COPIES[rank] * row
    assert on_sms(graph, machine, Kind.COMBINE_SEND, rank) == pytest.approx(added, rel=0.001)


def test_rows_in_bf16_are_cast_where_they_are_expanded() -> None:
    ids = np.array([[0, 1]] * 4, np.int32)
    work = small_layers.work(
        ids,
        2,
        2,
        shape=ExpertShape(HIDDEN, INTERMEDIATE),
        precision=Precision("fp8", dispatch="bf16", combine="fp8"),
    )
    graph, machine = replay(work)
    moved = 4 * (ROW["bf16"] + ROW["fp8"] + 2 * 16)
    assert memory_bytes(graph, machine, Kind.PERMUTE, 0) == about([moved])
    assert not (graph.kind == Kind.CAST).any()


# ---- waiting -------------------------------------------------------------------------------------


@both
def test_rows_are_flagged_by_expert_and_results_by_gpu(types: str) -> None:
    graph, _ = replay(layer(types))
    # GPU 0 has rows for experts 2 and 3 of GPU 1, which has one for expert 1.
    assert [len(tasks(graph, Kind.SIGNAL_UP, rank)) for rank in range(2)] == [2, 1]
    assert [len(tasks(graph, Kind.NOTIFY_UP, rank)) for rank in range(2)] == [1, 1]
    assert [len(tasks(graph, Kind.COUNT_UP, rank)) for rank in range(2)] == [1, 1]
    assert (graph.payload_bytes[graph.kind == Kind.SIGNAL_UP] == 0).all()


@both
def test_expansion_waits_for_all_flags_and_sums_for_all_sums(types: str) -> None:
    graph, machine = replay(layer(types))
    waits = Dependencies(schedule(graph))
    hbm = machine.resources.classes(graph)[graph.resource] == ResourceClass.HBM
    read: set[int] = set()
    for rank in range(2):
        (expanded,) = tasks(graph, Kind.PERMUTE, rank)
        before = waits.before([expanded])
        for kind in (Kind.SIGNAL_DOWN, Kind.COUNT_DOWN, Kind.DISPATCH_DOWN):
            assert before >= {*tasks(graph, kind, rank)}
        summed = [task for task in tasks(graph, Kind.UNPERMUTE, rank) if hbm[task]][-1]
        before = waits.before([summed])
        for kind in (Kind.NOTIFY_DOWN, Kind.COMBINE_DOWN):
            assert before >= {*tasks(graph, kind, rank)}
        read |= before & {*np.flatnonzero(graph.kind == Kind.COMBINE_MEMORY).tolist()}
    assert len(read) == (graph.kind == Kind.COMBINE_MEMORY).sum()


def test_reservations_go_there_and_back_before_rows_leave() -> None:
    graph, _ = replay(layer("bf16"))
    timeline = schedule(graph)
    waits = Dependencies(timeline)
    remote = 2 * (150 + 100) * NS + 20 * NS
    for rank in range(2):
        before = waits.before(tasks(graph, Kind.DISPATCH_SEND, rank)[:1])
        delays = [
            int(graph.latency_ps[task] + graph.duration_ps[task])
            for task in before
            if graph.kind[task] == Kind.DISPATCH_SYNC and graph.rank[task] == rank
        ]
        assert 2 * 20 * NS + remote in delays


def test_counts_are_added_up_by_one_thread() -> None:
    graph, _ = replay(layer("bf16"))
    delays = graph.latency_ps + graph.duration_ps
    assert (delays[graph.kind == Kind.DISPATCH_SYNC] == 4 * 17 * NS).sum() == 2


@both
def test_kernels_of_a_round(types: str) -> None:
    work = layer(types)
    _, machine = replay(work)
    program = machine.host.program
    # Three before, three of the dispatch, two behind it; experts; four clears, groups, combine,
    # wait, sums, acknowledgement.
    assert sum(one.launches for one in program) == 3 + 3 + 2 + 3 + 4 + 5
    assert all(one.launches for one in program)


def test_small_layers_are_launches() -> None:
    ids = np.array([[0]], np.int32)
    work = small_layers.work(ids, 1, 1, shape=ExpertShape(128, 64), precision="bf16")
    graph, _ = replay(work)
    assert schedule(graph).makespan_ps > 20 * 2 * US


# ---- what is taken, and what is held -------------------------------------------------------------


@pytest.mark.extended
@each("name", ["uniform 8 ranks fp8", "tiny, two ranks", "32 ranks fp8", "shared experts fp8"])
def test_the_contract_with_rows_in_fp8_both_ways(name: str) -> None:
    made = small_layers.LAYERS[name]()
    work = LayerWork(
        made.expert_ids,
        made.source_rank.astype(np.int32),
        made.placement,
        made.shape,
        TYPES["fp8"],
        shared=made.shared,
    )
    assert not PUSH.refuses(work)
    assert not list(examine_case(Case(PUSH, name, work)))


@each(
    ("work", "said"),
    [
        (Precision("fp8"), "its rows back are fp8 like its GEMMs, not bf16"),
        (Precision("bf16", combine="fp8"), "its rows back are bf16 like its GEMMs, not fp8"),
        (Precision("bf16", dispatch="fp8"), "its bf16 GEMMs read rows as they come"),
        (Precision("fp32"), "its GEMMs are bf16 or fp8, not fp32"),
    ],
    ids=str,
)
def test_types_that_its_kernels_do_not_have(work: Precision, said: str) -> None:
    ids = np.array([[0, 1]], np.int32)
    made = small_layers.work(ids, 2, 2, tokens_of_rank=[1, 0], precision=work)
    assert said in PUSH.refuses(made)


def test_layers_that_its_kernels_do_not_take() -> None:
    many = small_layers.work(small_layers.draw(4, 10, 9), 2, 10)
    assert "8 experts per token at most, not 9" in PUSH.refuses(many)
    assert not PUSH.refuses(small_layers.work(small_layers.draw(4, 10, 8), 2, 10))
    uneven = small_layers.work(small_layers.draw(4, 3, 2), 2, 3)
    assert "equally many experts" in PUSH.refuses(uneven)
    assert "no backward pass" in PUSH.refuses(five_tokens.layer(is_backward=True))
    wide = small_layers.work(np.zeros((33, 1), np.int32), 33, 33)
    assert "32 ranks at most" in PUSH.refuses(wide)


@both
def test_buffers_have_room_for_the_worst_case(types: str) -> None:
    window, rows, records = PUSH.buffers(layer(types), hwmodel.load("dgx-h100"))
    row = ROW[types]
    assert window.nbytes.tolist() == [MOST * 2 * (row + 2 * 16 + row)] * 2
    assert rows.nbytes.tolist() == [MOST * 2 * 2 * row] * 2
    assert records.nbytes.tolist() == [MOST * 2 * 2 * 16] * 2
    assert window.stays and rows.stays and records.stays
    found = PUSH.intermediates(layer(types))
    assert found[0].nbytes.tolist() == [MOST * 2 * 2 * 2 * 2 * INTERMEDIATE] * 2
