"""Megatron-LM's experts behind its dispatchers: kernels, padding, what refuses a layer, memory."""

from __future__ import annotations

import numpy as np
from loops import every
from round_machine import NS, US, round_machine

import hwmodel
from replay.chains.host_program import num_kernels, program
from replay.chains.layer import build_layer
from replay.engine import Timeline, schedule
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.ep.base import Scheme

SYSTEM = hwmodel.load("dgx-h100")
GAP, LAUNCH, SMALL, TILE_OVERHEAD = 2 * US, 3 * US, 300 * NS, 11 * NS
FP8 = Precision("fp8", dispatch="bf16")


def megatron(experts: str = "te", **options: int) -> Scheme:
    return SCHEMES["megatron"].with_options({"experts": experts, **options})


def one_gpu(rows: list[int], *, precision: str | Precision = "bf16", is_backward: bool = False) -> LayerWork:
    """Tokens of one expert each, rows of 256 values, one column of tiles in the first GEMM."""
    ids = np.repeat(np.arange(len(rows), dtype=np.int32), rows)[:, None]
    return small_layers.work(
        ids,
        1,
        len(rows),
        shape=ExpertShape(256, 64, gated=False),
        precision=precision,
        is_backward=is_backward,
    )


def run(work: LayerWork, scheme: Scheme) -> Timeline:
    graph, _, _ = build_layer(work, round_machine(), scheme, launch="eager")
    return schedule(graph)


def spent(timeline: Timeline, kind: Kind) -> list[int]:
    """Picoseconds of memory of each kernel of a kind."""
    graph = timeline.graph
    groups = np.array([*graph.resources.groups, "nothing"])[graph.resource]
    return graph.duration_ps[(graph.kind == kind) & (groups == "hbm")].tolist()


def since_sort(timeline: Timeline) -> int:
    """From the launch of the sort by expert to the end of the experts."""
    graph, end = timeline.graph, timeline.visible_ps
    sort = np.flatnonzero(graph.kind == Kind.PERMUTE)[-1]
    return int(end[graph.kind == Kind.GEMM2].max() - timeline.start_ps[sort])


def test_experts_are_a_kernel_each_or_one_with_its_arguments() -> None:
    """32 experts on each of two GPUs, as in table 1 of arXiv 2506.04667, which has 261 and 85."""
    work = small_layers.work(np.arange(64, dtype=np.int32).reshape(8, 8), 2, 64)
    te, cutlass, grouped = (
        num_kernels(program(scheme, work, SYSTEM))
        for scheme in (megatron(), megatron("cutlass"), SCHEMES["nccl-alltoall"])
    )
    assert te == grouped + 2 * (32 - 1)
    assert cutlass == grouped + 2 * 7
    # What is published differs by more: there, something else is launched expert by expert, too.
    assert te - cutlass == 48 < 261 - 85


def test_many_experts_with_few_tokens_are_bound_by_their_launches() -> None:
    work = one_gpu([3] * 24)
    calls, grouped = (since_sort(run(work, scheme)) for scheme in (megatron(), megatron("cutlass")))
    tile = 2 * 64 * 64 * 64 + TILE_OVERHEAD  # of the second GEMM
    # Each of two GEMMs has a launch for each expert, or eight; the activation has one.
    assert calls == (24 + 1 + 24) * LAUNCH + tile
    assert grouped == (8 + 1 + 8) * LAUNCH + tile


def test_few_experts_with_many_tokens_do_not_notice_their_launches() -> None:
    """Calls of two experts run side by side; copies of arguments follow one another."""
    work = one_gpu([3000] * 2)
    calls, grouped = (since_sort(run(work, scheme)) for scheme in (megatron(), megatron("cutlass")))
    assert calls < grouped


def test_fp8_operands_are_padded_and_quantised_expert_by_expert() -> None:
    rows, hidden = np.array([10, 0, 16, 17]), 256
    padded = 16 + 0 + 16 + 32
    work = one_gpu(rows.tolist(), precision=FP8)
    timeline = run(work, megatron())
    row, result = 2 * hidden, 2 * hidden
    *_, sort, pad, pad_weights = spent(timeline, Kind.PERMUTE)
    total = int(rows.sum())
    assert sort == -(-total * (row + 4) // 8) + -(-total * (row + 4) // 4)  # gate weights, too
    assert pad == -(-total * row // 8) + -(-padded * row // 4)
    assert pad_weights == -(-total * 4 // 8) + -(-padded * 4 // 4)
    unpad, *_ = spent(timeline, Kind.UNPERMUTE)
    assert unpad == -(-padded * result // 8) + -(-total * result // 4)
    # Three experts have rows; scales of four bytes for 128 values, by rows and by columns.
    assert spent(timeline, Kind.CAST) == [
        -(-count * 2 * width // 8) + -(-2 * count * (width + 4 * -(-width // 128)) // 4)
        for width in (hidden, 64)
        for count in (10, 16, 17)
    ]
    names = {one.name: one.launches for one in program(megatron(), work, SYSTEM)}
    assert names["rows padded"] == names["gate weights padded"] == names["padding dropped"] == 1
    assert names["rows of experts, cast"] == names["activated rows, cast"] == names["gemm1"] == names["gemm2"] == 3


def test_gradients_lose_their_padding_twice() -> None:
    work = one_gpu([10, 16], precision=FP8, is_backward=True)
    timeline = run(work, megatron())
    names = {one.name: one.launches for one in program(megatron(), work, SYSTEM)}
    assert names["gradients padded"] == names["padding of gradients dropped"] == 1
    assert names["padding of gate weights' gradients dropped"] == 1
    # Gradients of results are padded, those of inputs and of gate weights are not any more.
    assert spent(timeline, Kind.PERMUTE)[-1] == -(-26 * 512 // 8) + -(-32 * 512 // 4)
    first, second, *_ = spent(timeline, Kind.UNPERMUTE)
    assert first == -(-32 * 512 // 8) + -(-26 * 512 // 4)
    assert second == -(-32 * 4 // 8) + -(-26 * 4 // 4)


@every(
    ("precision", "experts", "reason"),
    [
        (Precision("fp8"), "te", "rows to the experts are bf16 or fp32, not fp8"),
        (Precision("bf16", dispatch="fp32"), "te", "in the type of the tokens, bf16, not fp32"),
        (Precision("fp32", dispatch="bf16"), "te", "in the type of the tokens, fp32, not bf16"),
        (FP8, "cutlass", "experts=cutlass) multiplies bf16, not fp8"),
        (Precision("fp32"), "cutlass", "multiplies bf16, not fp32"),
    ],
    ids=str,
)
def test_what_it_has_no_code_for_it_refuses(precision: Precision, experts: str, reason: str) -> None:
    assert reason in megatron(experts).refuses(one_gpu([4], precision=precision))


def test_what_it_has_code_for_it_takes() -> None:
    for precision in (Precision("bf16"), FP8, Precision("fp32")):
        assert not megatron().refuses(one_gpu([4], precision=precision))
    assert not megatron("cutlass").refuses(one_gpu([4], is_backward=True))


def test_memory_is_a_tensor_for_each_place_of_the_rows_and_fifos() -> None:
    ids = np.array([[0, 1], [0, 2], [2, 3], [1, 3]], np.int32)
    work = small_layers.work(ids, 2, 4, tokens_of_rank=[3, 1], shape=ExpertShape(1024, 64))
    buffers = {one.name: one for one in megatron().buffers(work, round_machine())}
    fifos = buffers.pop("FIFOs of NCCL")
    # 32 channels to the other GPU: 2 MiB for what goes, 10 MiB for what comes.
    assert fifos.stays
    assert fifos.nbytes.tolist() == [32 * 12 * 2**20] * 2
    assert megatron().communication_sms(round_machine()) == 32
    assert megatron(channels=5).communication_sms(round_machine()) == 8  # a power of two
    row = 2048
    assert {name: one.nbytes.tolist() for name, one in buffers.items()} == {
        "permuted rows": [6 * row, 2 * row],
        "received rows": [4 * row, 4 * row],
        "rows by expert": [4 * row, 4 * row],
        "results by source": [4 * row, 4 * row],
        "returned rows": [6 * row, 2 * row],
    }
    assert not any(one.stays for one in buffers.values())
