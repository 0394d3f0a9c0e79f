"""FasterMoE by hand: its steps, streams, sub-batches, bytes, kernels and waits.

The layer is that of `five_tokens`; GPUs are in groups of one.
"""

from __future__ import annotations

import numpy as np
import pytest
from five_tokens import HIDDEN, INTERMEDIATE, PAIRS, TOKENS, about, build, layer, memory_bytes
from loops import every
from moments import begin, finish
from round_machine import ROUND

import hwmodel
from replay.chains.host_program import program
from replay.engine import TaskGraph, schedule
from replay.model.machine.kinds import Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.ep.fastermoe.steps import steps_of

GATED, OWNED = 2 * INTERMEDIATE, (6, 4)
PARTS = {  # rows of each GPU's calls, by step and expert
    0: [[2, 1], [1, 2]],
    1: [[0, 1], [2, 1]],
}
ROW, WIDE = 2 * HIDDEN, 4 * HIDDEN
CHANNELS = 8


def replay(work: LayerWork, **options: object) -> tuple[TaskGraph, Machine]:
    return build(work, SCHEMES["fastermoe"].with_options({"group_size": 1, "channels": CHANNELS, **options}))


def drawn(num_ranks: int, per_rank: int = 2, **more: object) -> LayerWork:
    experts = num_ranks * per_rank
    ids = small_layers.draw(16 * num_ranks, experts, 4)
    return small_layers.work(ids, num_ranks, experts, shape=ExpertShape(64, 16), **more)


# ---- steps ---------------------------------------------------------------------------------------


@every(("ranks", "steps"), [(2, 1), (4, 1), (8, 2), (16, 4), (64, 16)])
def test_eight_gpus_have_two_steps(ranks: int, steps: int) -> None:
    scheme = SCHEMES["fastermoe"]
    work = drawn(ranks)
    assert len(steps_of(work, work, scheme.options.group_size)) == steps
    listed = program(scheme, work, hwmodel.load("dgx-h100", {"fabric.num_gpus": ranks}))
    assert [one.launches for one in listed if one.name == "sends and receives of rows"] == [
        2 * steps,
        2 * steps,
    ]


def test_a_step_brings_rows_to_the_group_so_many_behind() -> None:
    work = drawn(8)
    rows = np.zeros((8, 8), np.int64)
    for step, parts in enumerate(steps_of(work, work, 2)):
        for place, part in enumerate(parts):
            assert part.call.expert.tolist() == [2 * rank + place for rank in range(8)]
            src, dst = np.nonzero(part.pairs)
            assert ((src // 2 + step) % 4 == dst // 2).all()
            assert part.call.rows.tolist() == part.pairs.sum(axis=0).tolist()
            rows += part.pairs
    assert rows.tolist() == work.matrix("pairs").tolist()


def test_groups_are_no_larger_than_all_gpus() -> None:
    work = drawn(2)
    assert len(steps_of(work, work, 4)) == 1
    assert not SCHEMES["fastermoe"].refuses(work)


def test_calls_have_the_rows_of_their_step() -> None:
    for step, parts in enumerate(steps_of(layer(), layer(), 1)):
        rows = [part.call.rows.tolist() for part in parts]
        assert [list(of_rank) for of_rank in zip(*rows, strict=True)] == [PARTS[step][rank] for rank in range(2)]


def test_an_expert_is_multiplied_once_a_step() -> None:
    graph, machine = replay(layer())
    on_sm = np.isin(graph.resource, machine.sms.resources)
    width = 2 * (GATED + INTERMEDIATE)
    for rank in range(2):
        rows = [n for step in PARTS.values() for n in step[rank] if n]
        assert memory_bytes(graph, machine, Kind.ACTIVATION, rank) == about([n * width for n in rows])
    of_rank_1 = graph.tag[on_sm & (graph.kind == Kind.GEMM2) & (graph.rank == 1)]
    assert set(of_rank_1.tolist()) == {2, 3}


# ---- streams -------------------------------------------------------------------------------------


def two_rows_here_many_there() -> LayerWork:
    """GPU 0 has all rows of step 0 long before those of step 1 have left."""
    ids = np.array([[0]] * 2 + [[1]] * 4000, np.int32)
    return small_layers.work(ids, 2, 2, tokens_of_rank=[4002, 0], shape=ExpertShape(1024, 64), precision="bf16")


def test_experts_of_a_step_run_beside_the_next_dispatch() -> None:
    graph, _ = replay(two_rows_here_many_there())
    timeline = schedule(graph)
    sent = finish(timeline, Kind.DISPATCH_UP, 0)
    assert finish(timeline, Kind.GEMM2, 0) < sent
    assert begin(timeline, Kind.COMBINE_SEND, 0) > sent
    graph, _ = replay(two_rows_here_many_there(), group_size=2)
    timeline = schedule(graph)
    assert begin(timeline, Kind.GEMM1, 0) > begin(timeline, Kind.DISPATCH_DOWN, 1)


@pytest.mark.parametrize("is_backward", [False, True])
def test_a_combine_follows_the_experts_of_its_step(is_backward: bool) -> None:
    # Experts take longer than the host takes to launch what follows them.
    ids = np.repeat(np.arange(2, dtype=np.int32), 2000)[:, None]
    work = small_layers.work(
        ids,
        2,
        2,
        tokens_of_rank=[2000, 2000],
        shape=ExpertShape(1024, 1024),
        precision="bf16",
        is_backward=is_backward,
    )
    graph, _ = replay(work, group_size=2)
    timeline = schedule(graph)
    for rank in range(2):
        combined = begin(timeline, Kind.COMBINE_SEND, rank)
        assert combined > finish(timeline, Kind.GEMM1, rank)
        assert combined > finish(timeline, Kind.GEMM2, rank)


def test_experts_have_the_sms_that_nccl_leaves() -> None:
    graph, machine = replay(layer())
    on = np.isin(graph.resource, machine.sms.resources)
    gemm = set(graph.resource[on & (graph.kind == Kind.GEMM1)].tolist())
    sends = set(graph.resource[graph.kind == Kind.DISPATCH_SEND].tolist())
    assert gemm
    assert not gemm & sends
    assert graph.resources.servers[sorted(gemm)].tolist() == [100 - CHANNELS] * 2


# ---- bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rank", "back"), [(0, [2, 1, 2, 1]), (1, [1, 2, 1])])
def test_rows_of_the_own_experts_go_through_nccl_too(rank: int, back: list[int]) -> None:
    # Read and written where they stay, in step 0, as where they come out of a FIFO, in step 1.
    graph, machine = replay(layer())
    counts = [2 * 2 * 8] * 2  # of two experts, to itself and from the other
    rows = [n for step in PARTS.values() for n in step[rank] if n]
    assert memory_bytes(graph, machine, Kind.DISPATCH_MEMORY, rank) == about([*counts, *(2 * n * ROW for n in rows)])
    assert memory_bytes(graph, machine, Kind.COMBINE_MEMORY, rank) == about([2 * n * ROW for n in back])


@every("precision", ["bf16", "fp32"])
@every("rank", [0, 1])
def test_kernels_around_the_steps_forward(precision: str, rank: int) -> None:
    row = ROW if precision == "bf16" else WIDE
    graph, machine = replay(layer(precision))
    owned, got, tokens = OWNED[rank], PAIRS[rank], TOKENS[rank]
    assert memory_bytes(graph, machine, Kind.LAYOUT, rank) == about([8 * owned, 0, 16 * owned, 0, 16 * owned])
    assert memory_bytes(graph, machine, Kind.PERMUTE, rank) == about([2 * owned * row, (2 * got + owned) * row])
    copies = [2 * n * row for step in PARTS.values() for n in step[rank] if n]
    around = [owned * row, 2 * owned * row, (owned + tokens) * row]
    assert memory_bytes(graph, machine, Kind.UNPERMUTE, rank) == about([*copies, *around])


@pytest.mark.parametrize("rank", [0, 1])
def test_kernels_around_the_steps_backward(rank: int) -> None:
    graph, machine = replay(layer(is_backward=True))
    owned, got, tokens = OWNED[rank], PAIRS[rank], TOKENS[rank]
    assert memory_bytes(graph, machine, Kind.LAYOUT, rank) == []
    both = (owned + tokens) * ROW
    assert memory_bytes(graph, machine, Kind.PERMUTE, rank) == about(
        [both, both + 4 * owned, 2 * owned * ROW, (2 * got + owned) * ROW]
    )
    copies = [2 * n * ROW for step in PARTS.values() for n in step[rank] if n]
    around = [tokens * ROW, (owned + 2 * tokens) * ROW]
    assert memory_bytes(graph, machine, Kind.UNPERMUTE, rank) == about([*copies, *around])


def test_counts_of_all_experts_are_exchanged() -> None:
    graph, _ = replay(layer())
    stored = graph.wire_bytes[graph.kind == Kind.COUNT_UP]
    assert len(stored)
    graph, _ = replay(layer(is_backward=True))
    assert not (graph.kind == Kind.COUNT_UP).any()


# ---- kernels and waits ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_backward", "launches", "waits"),
    [
        # Counts, exchange, offsets, positions, rows, tokens; scatter, zeroes; four parts each way
        # and four calls; zeroes, gather, sum.
        (False, 3 + 1 + 2 + 1 + 2 + 1 + 1 + 3 + 2 * 4 + 4 * 4 + 3, 1 + 1 + 3 + 1 + 1),
        # Gradients, scatter, zeroes; parts; calls with two gradients more; zeroes, gather.
        (True, 2 + 1 + 3 + 2 * 4 + 4 * 6 + 2, 2),
    ],
)
def test_kernels_and_waits_of_the_host(is_backward: bool, launches: int, waits: int) -> None:
    _, machine = replay(layer(is_backward=is_backward))
    program = machine.host.program
    assert sum(one.launches for one in program) == launches
    assert sum(not one.launches for one in program) == waits


@every(("size", "kernels"), [(1, 2 * 8 * 2), (2, 2 * 4 * 2), (8, 2 * 2)])
def test_smaller_groups_launch_more_kernels(size: int, kernels: int) -> None:
    work = drawn(8)
    _, machine = replay(work, group_size=size)
    sends = [one for one in machine.host.program if one.name == "sends and receives of rows"]
    assert sum(one.launches for one in sends) == kernels


def test_a_gpu_without_rows_of_a_part_launches_nothing_for_it() -> None:
    ids = np.array([[0], [0]], np.int32)
    work = small_layers.work(ids, 2, 2, tokens_of_rank=[2, 0], shape=ExpertShape(64, 16), precision="bf16")
    graph, _ = replay(work)
    gaps = graph.duration_ps[(graph.kind == Kind.LAUNCH) & (graph.rank == 1)]
    more = graph.duration_ps[(graph.kind == Kind.LAUNCH) & (graph.rank == 0)]
    assert len(more) - len(gaps) == 1 + 4 + 1  # rows, GEMM, activation, GEMM, copy, rows


# ---- what is refused, and what is held -----------------------------------------------------------


def test_groups_have_one_size() -> None:
    scheme = SCHEMES["fastermoe"]
    assert "groups have 4 GPUs each" in scheme.refuses(drawn(6))
    assert not scheme.with_options({"group_size": 2}).refuses(drawn(6))


@pytest.mark.parametrize("other", [{"dispatch": "fp32"}, {"combine": "fp32"}], ids=str)
def test_rows_have_the_type_of_the_gemms(other: dict[str, str]) -> None:
    work = drawn(2, precision=Precision("bf16", **other))
    assert "the type of its GEMMs" in SCHEMES["fastermoe"].refuses(work)


def test_buffers_are_five_tensors_and_nccls() -> None:
    system = hwmodel.load("dgx-h100", ROUND)
    fifos, *tensors = SCHEMES["fastermoe"].buffers(layer(), system)
    assert fifos.stays
    assert [one.nbytes.tolist() for one in tensors] == [
        [rows * ROW for rows in of_ranks] for of_ranks in (OWNED, PAIRS, PAIRS, OWNED, OWNED)
    ]
    assert SCHEMES["fastermoe"].communication_sms(system) == 32
