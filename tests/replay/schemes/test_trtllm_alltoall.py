"""TensorRT-LLM's all-to-all by hand: bytes, places, flags and kernels of both strategies, of `five_tokens`."""

from __future__ import annotations

import numpy as np
import pytest
from five_tokens import COPIES, HIDDEN, PAIRS, RATE, TOKENS, build, layer, memory_bytes, on_sms
from packets import response_packets, write_packets
from round_machine import NS, ROUND

import hwmodel
from replay.engine import GraphBuilder, TaskGraph, schedule
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork
from replay.model.work.precision import Precision
from replay.schemes import SCHEMES, Scheme
from replay.schemes.contract import layers as small_layers
from replay.schemes.contract.case import Case
from replay.schemes.contract.examine import examine_case
from replay.schemes.contract.graph_facts import Dependencies
from replay.schemes.ep.trtllm import one_sided, two_sided

ONE = SCHEMES["trtllm-alltoall"]
TWO = ONE.with_options({"side": "two"})
MOST, OWNED = 3, (4, 3)  # copies of a GPU's tokens
AWAY = (2, 1)  # copies of a GPU's tokens to the other
ROW = 2 * HIDDEN
each = pytest.mark.parametrize
sides = each("scheme", [ONE, TWO], ids=["one", "two"])


def replay(work: LayerWork, scheme: Scheme = ONE, system: str = "") -> tuple[TaskGraph, Machine]:
    return build(work, scheme, {"warp.release_ns": 40.0}, hwmodel.load(system) if system else None)


def wire(graph: TaskGraph, kind: Kind, rank: int) -> int:
    return int(graph.wire_bytes[(graph.kind == kind) & (graph.rank == rank)].sum())


def delays(graph: TaskGraph, kind: Kind, rank: int) -> list[int]:
    """Of tasks that occupy nothing."""
    mine = (graph.kind == kind) & (graph.rank == rank) & (graph.resource < 0)
    return (graph.latency_ps + graph.duration_ps)[mine].tolist()


def about(numbers: list[int]) -> object:
    return pytest.approx(numbers, abs=2 * RATE)


# ---- one-sided -----------------------------------------------------------------------------------


@each("rank", [0, 1])
def test_a_row_is_put_once_to_a_gpu_and_its_fields_beside_it(rank: int) -> None:
    graph, machine = replay(layer())
    # Ids and gate weights of two experts, four bytes each, are packets of their own.
    row = write_packets(ROW) + 2 * write_packets(8)
    assert wire(graph, Kind.DISPATCH_UP, rank) == AWAY[rank] * row
    # Results are got: data goes up at the GPU of the experts.
    assert wire(graph, Kind.COMBINE_UP, rank) == AWAY[1 - rank] * response_packets(ROW)
    stored, added = 10 * OWNED[rank] * (ROW + 16), 5 * OWNED[rank] * ROW + 20 * TOKENS[rank] * ROW
    assert on_sms(graph, machine, Kind.DISPATCH_SEND, rank) == stored
    assert on_sms(graph, machine, Kind.COMBINE_RECEIVE, rank) <= added
    assert on_sms(graph, machine, Kind.COMBINE_RECEIVE, rank) >= added // 2


@each("rank", [0, 1])
def test_memory_of_the_kernels(rank: int) -> None:
    graph, machine = replay(layer())
    empty = 2 * MOST - COPIES[rank]
    # Counters of two GPUs; ids of places without a token; the round of the combine.
    assert memory_bytes(graph, machine, Kind.LAYOUT, rank) == about([2 * 4, empty * 2 * 4, 4])
    assert memory_bytes(graph, machine, Kind.PERMUTE, rank) == about([(COPIES[rank] + PAIRS[rank]) * ROW])
    # A sum for each place, with a token or without.
    assert memory_bytes(graph, machine, Kind.UNPERMUTE, rank) == about([(PAIRS[rank] + 2 * MOST) * ROW])
    assert memory_bytes(graph, machine, Kind.COMBINE_MEMORY, rank) == about([ROW] * TOKENS[rank])
    staged, machine = replay(layer(), ONE.with_options({"payload_in_workspace": False}))
    assert memory_bytes(staged, machine, Kind.UNPERMUTE, rank)[1:] == about([2 * COPIES[rank] * ROW])


def test_places_are_reserved_one_after_the_other() -> None:
    graph, _ = replay(layer())
    # A load of the ids, an atomic for each GPU of the token, behind those of the tokens before.
    found = delays(graph, Kind.DISPATCH_SEND, 0)
    served = (1, 3, 4)
    assert found == [
        60 * NS + 20 * NS * own + 2 * NS * all_before for own, all_before in zip((1, 2, 1), served, strict=True)
    ]
    assert delays(graph, Kind.DISPATCH_SEND, 1) == [(60 + 20 + 2) * NS, (60 + 40 + 6) * NS]


def test_flags_follow_all_rows_and_every_block_waits_for_them() -> None:
    graph, _ = replay(layer())
    timeline = schedule(graph)
    waits = Dependencies(timeline)
    for rank in (0, 1):
        (flag,) = np.flatnonzero((graph.kind == Kind.SIGNAL_UP) & (graph.rank == rank)).tolist()
        mine = (graph.kind == Kind.DISPATCH_SEND) & (graph.rank == rank)
        assert waits.before([flag]) >= {*np.flatnonzero(mine).tolist()}
        # Behind the release of the last block: one peer.
        assert 40 * NS in delays(graph, Kind.DISPATCH_SYNC, rank)
        expanded = np.flatnonzero((graph.kind == Kind.PERMUTE) & (graph.rank == rank)).tolist()
        flags = np.flatnonzero(graph.kind == Kind.SIGNAL_DOWN).tolist()
        assert {*flags} & waits.before(expanded)
        assert delays(graph, Kind.COMBINE_SEND, rank) == [15_000 * NS + 20 * NS] * TOKENS[rank]
        told = {*np.flatnonzero((graph.kind == Kind.NOTIFY_DOWN) & (graph.rank == rank)).tolist()}
        begins = (graph.kind == Kind.COMBINE_SEND) & (graph.rank == rank)
        assert all(told <= waits.before([one]) for one in np.flatnonzero(begins).tolist())


def test_an_sm_has_room_for_eight_blocks() -> None:
    ids = np.tile(np.array([[0, 2]], np.int32), (2 * 900, 1))
    graph, _ = replay(small_layers.work(ids, 2, 4, shape=ExpertShape(128, 64), precision="bf16"))
    timeline = schedule(graph)
    begins = (graph.kind == Kind.COMBINE_SEND) & (graph.rank == 0)
    ends = timeline.end_ps[begins]
    assert len(ends) == 900
    # 100 SMs: the first 800 blocks acquire at once, the others behind one of them.
    assert (ends == ends.min()).sum() == 800
    assert (np.sort(ends)[800:] >= ends.min() + 15_000 * NS).all()


# ---- two-sided -----------------------------------------------------------------------------------


def test_lines_of_a_row() -> None:
    assert two_sided.line_bytes(2 * 7168 + 64) == 15_488  # 113 lines and eight
    assert two_sided.line_bytes(15 * 128) == 16 * 128
    assert two_sided.line_bytes(15 * 128 + 1) == 18 * 128


@each(
    ("ranks", "sms", "grid"),
    [(4, 148, (37, 1)), (8, 148, (37, 1)), (9, 148, (18, 2)), (72, 148, (4, 9)), (8, 132, (33, 1))],
)
def test_half_of_the_sms_send_and_receive(ranks: int, sms: int, grid: tuple[int, int]) -> None:
    found = two_sided.QueueGrid.of(ranks, sms)
    assert found == grid
    assert found.num_sms == 2 * grid[0] * grid[1] <= sms // 2


@each("rank", [0, 1])
def test_rows_pass_queues_as_lines(rank: int) -> None:
    graph, machine = replay(layer(), TWO)
    out, back = two_sided.line_bytes(ROW + 16), two_sided.line_bytes(ROW)
    assert (out, back) == (19 * 128, 18 * 128)
    assert wire(graph, Kind.DISPATCH_UP, rank) == AWAY[rank] * write_packets(out)
    assert wire(graph, Kind.COMBINE_UP, rank) == AWAY[1 - rank] * write_packets(back)
    # Rows of its own GPU pass a queue, too; a warp of two waits for its row before it stores it.
    warp = (60 * NS + 1300 * NS + 10 * out) // 2
    assert on_sms(graph, machine, Kind.DISPATCH_SEND, rank) == pytest.approx(
        OWNED[rank] * max(10 * out, warp), rel=1e-5
    )
    assert on_sms(graph, machine, Kind.DISPATCH_RECEIVE, rank) == COPIES[rank] * 20 * out
    zeroes, sums = TOKENS[rank] * 2 * ROW, TOKENS[rank] * 3 * ROW
    assert memory_bytes(graph, machine, Kind.UNPERMUTE, rank)[1:] == about([zeroes, sums])


def test_a_block_counts_all_tokens_for_each_peer() -> None:
    graph = GraphBuilder(KIND_NAMES)
    ids = np.tile(np.array([[0, 2]], np.int32), (2 * 1200, 1))
    work = small_layers.work(ids, 2, 4, precision="bf16")
    machine = Machine(hwmodel.load("dgx-h100", ROUND), graph, 2)
    two_sided.prepare(work, machine, machine.mark(machine.ranks))
    built = graph.build()
    # Groups of two threads, 512 tokens at a time; places are moved 512 at a time.
    assert delays(built, Kind.LAYOUT, 0) == [3 * (60 + 500) * NS, 20 * NS, 3 * 20 * NS]
    assert (built.kind == Kind.COUNT_UP).sum() == 2


# ---- both ----------------------------------------------------------------------------------------


@each(("scheme", "precision", "kernels"), [(ONE, "bf16", 10), (ONE, "fp8", 11), (TWO, "bf16", 13)])
def test_kernels_of_a_layer(scheme: Scheme, precision: str, kernels: int) -> None:
    _, machine = replay(layer(precision), scheme)
    program = machine.host.program
    assert sum(one.launches for one in program) == kernels
    assert all(one.launches for one in program)


@sides
def test_rows_in_fp4_have_scales_of_sixteen_values(scheme: Scheme) -> None:
    work = layer(Precision("nvfp4"))
    graph, _ = replay(work, scheme, "gb200-nvl72")
    row = HIDDEN // 2 + HIDDEN // 16
    for rank in (0, 1):
        up = (graph.kind == Kind.DISPATCH_UP) & (graph.rank == rank)
        assert int(graph.payload_bytes[up].sum()) == AWAY[rank] * row
        back = (graph.kind == Kind.COMBINE_UP) & (graph.rank == rank)
        assert int(graph.payload_bytes[back].sum()) == AWAY[1 - rank] * ROW
    # Tokens in BF16 are read, rows written, by a kernel.
    assert (graph.kind == Kind.TOKEN_CAST).any()
    assert "fp4" not in scheme.refuses(work)
    mixed = layer(Precision("fp8", weights="mxfp4"))
    assert not scheme.refuses(mixed)


@each("name", ["uniform 8 ranks fp8", "tiny, two ranks", "shared experts fp8"])
def test_the_contract_through_queues(name: str) -> None:
    work = small_layers.LAYERS[name]()
    assert not TWO.refuses(work)
    assert not list(examine_case(Case(TWO, name, work)))


def test_memory_that_peers_reach() -> None:
    system = hwmodel.load("gb200-nvl72")
    (workspace,) = ONE.buffers(layer(), system)
    field = 2 * MOST * 2 * 4  # four bytes for each choice of each place
    room = 2 * (2 * MOST * ROW) + 2 * (-(-field // 128) * 128)
    assert workspace.nbytes.tolist() == [room, room]
    queues, *_ = TWO.buffers(layer(), system)
    assert queues.nbytes.tolist() == [2 * 37 * (4 * 256 * 1024 + 512)] * 2
    assert one_sided.beside_bytes(layer()) == 16


def test_what_its_kernels_do_not_take() -> None:
    def of(topk: int) -> LayerWork:
        return small_layers.work(small_layers.draw(4, 34, topk), 2, 34)

    says = "its kernels take 1, 2, 4, 6, 8, 10, 16 experts per token, not"
    assert f"{says} 3" in ONE.refuses(of(3))
    assert not TWO.refuses(of(3))
    assert not ONE.refuses(of(10))
    assert "32 experts per token at most, not 33" in TWO.refuses(of(33))
    other = layer(Precision("bf16", dispatch="fp8"))
    assert "its bf16 GEMMs read rows as they come, which are fp8" in ONE.refuses(other)
    assert "rows back are bf16, not fp32" in ONE.refuses(layer(Precision("bf16", combine="fp32")))
    assert "no backward pass" in ONE.refuses(layer(is_backward=True))
