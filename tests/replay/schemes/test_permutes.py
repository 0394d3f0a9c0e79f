"""Kernels that copy rows and add them up: reads and writes by hand, each at a rate of its own."""

from __future__ import annotations

import numpy as np
import pytest

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import TaskGraph
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape
from replay.model.work.precision import Precision
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.registry import EXAMPLES

HIDDEN = 256
FP8, BF16 = HIDDEN + 2 * 4, 2 * HIDDEN  # bytes of a row
IDS = [[0, 1], [0, 1], [0, 2], [2, 3], [1, 3], [0, 3]]  # experts 0 and 1 on rank 0, 2 and 3 on 1
PAIRS = np.array([7, 5])  # (token, expert) of each rank
COPIES = np.array([5, 4])  # (token, rank)
TOKENS = np.array([3, 3])  # of each owner
SENT = np.array([6, 6])  # (token, expert) of each owner
ALL = 6

EXACT = {
    "hbm.peak_GB_per_s": 1000.0,
    "hbm.stream_efficiency": 0.01,
    "hbm.read_efficiency": 1.0,  # a byte takes a picosecond
    "hbm.write_efficiency": 0.5,  # two
    "overheads.small_kernel_us": 0.1,
    "overheads.row_copy_ns": 7.0,
}


def graph_of(name: str, *, is_backward: bool = False, **options: str) -> TaskGraph:
    layer = small_layers.work(
        np.array(IDS, np.int32),
        2,
        4,
        shape=ExpertShape(HIDDEN, 64),
        precision=Precision("fp8"),
        is_backward=is_backward,
    )
    scheme = (SCHEMES | EXAMPLES)[name].with_options(options)
    return build_layer(layer, hwmodel.load("dgx-h100", EXACT), scheme)[0]


def times(graph: TaskGraph, kind: Kind) -> list[list[tuple[int, int]]]:
    """Picoseconds that the kernels of a kind occupy the memory, and until they end after that.

    One list for each rank, in the order of the kernels.
    """
    return [
        list(
            zip(
                graph.duration_ps[(graph.kind == kind) & (graph.rank == rank)].tolist(),
                graph.latency_ps[(graph.kind == kind) & (graph.rank == rank)].tolist(),
                strict=True,
            )
        )
        for rank in (0, 1)
    ]


def copied(read: np.ndarray, written: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.stack((read + 2 * written, 100_000 + 7_000 * rows), axis=1)


def added(read: np.ndarray, written: np.ndarray) -> np.ndarray:
    return copied(read, written, 0 * read)


def per_rank(*kernels: np.ndarray) -> list[list[tuple[int, int]]]:
    return [[tuple(kernel[rank].tolist()) for kernel in kernels] for rank in (0, 1)]


@pytest.mark.parametrize("is_backward", [False, True])
def test_nccl_expands_sorts_unsorts_and_adds(is_backward: bool) -> None:
    graph = graph_of("nccl-alltoall", is_backward=is_backward)
    # Rows cost their bytes. Blocks of a token walk through its two rows: 1100 + 2 x 730 ns, unless
    # they only copy, as the permute does backward.
    walk = 2_560_000
    # Gate weights of four bytes are sorted with the rows, their gradients on the way back; there
    # the sum writes one for each of a token's four experts, zeroes first.
    out, back = PAIRS * 4 * (not is_backward), PAIRS * 4 * is_backward
    summed, sums = SENT * (BF16 + 4 * is_backward), TOKENS * BF16 + 4 * is_backward * (4 * TOKENS + SENT)
    read, added_up = TOKENS * FP8, summed + 2 * sums
    permuted = added(read, SENT * FP8)
    if not is_backward:
        permuted[:, 1] += walk - (read + 2 * SENT * FP8)
    result = added(summed, sums)
    result[:, 1] += walk - added_up
    assert times(graph, Kind.PERMUTE) == per_rank(permuted, added(PAIRS * FP8 + out, PAIRS * FP8 + out))
    assert times(graph, Kind.UNPERMUTE) == per_rank(added(PAIRS * BF16 + back, PAIRS * BF16 + back), result)


@pytest.mark.parametrize(
    ("name", "flags", "chunks"),
    # The row map over all four experts of its own three tokens, and a chunk map of the pairs before
    # and behind the experts; over the two own experts of all six tokens.
    [("megatron", np.array([12, 12]), PAIRS), ("megatron-allgather", np.array([12, 12]), None)],
)
def test_maps_take_what_their_rows_and_experts_do(name: str, flags: np.ndarray, chunks: np.ndarray | None) -> None:
    types = Precision("bf16")
    layer = small_layers.work(np.array(IDS, np.int32), 2, 4, shape=ExpertShape(HIDDEN, 64), precision=types)
    fast = {"hbm.peak_GB_per_s": 1e6, "overheads.small_kernel_us": 0.1}  # bytes are no matter
    graph = build_layer(layer, hwmodel.load("dgx-h100", fast), SCHEMES[name])[0]
    tokens, blocks = (3, 4) if name == "megatron" else (6, 2)
    passes = 37.4 * flags[0] + 1.95 * blocks * (blocks - 1) / 2
    each = round(passes + tokens * 90_000 / 132)
    found = [sum(kernel) for rank in times(graph, Kind.LAYOUT) for kernel in rank]
    assert found.count(each + 100_000) == 2
    if chunks is not None:
        for rows in chunks.tolist():
            assert found.count(round(rows * 80_000 / 132) + 100_000) == 2


@pytest.mark.parametrize("is_backward", [False, True])
def test_deepep_expands_copies_and_adds_the_rows_of_a_copy(is_backward: bool) -> None:
    graph = graph_of("deepep", is_backward=is_backward, stack="bare")
    assert times(graph, Kind.PERMUTE) == per_rank(copied(COPIES * FP8, PAIRS * FP8, PAIRS))
    assert times(graph, Kind.UNPERMUTE) == per_rank(added(PAIRS * BF16, COPIES * BF16))


def test_nvls_picks_rows_out_and_adds_into_a_buffer_that_it_clears() -> None:
    graph = graph_of("nvls")
    ids = (8 + 4) * ALL * 2  # and weights, of two experts of all tokens, on every rank
    assert times(graph, Kind.PERMUTE) == per_rank(copied(ids + COPIES * FP8, PAIRS * FP8, PAIRS))
    # Of the dense buffer the rows with own experts are read and written once more.
    assert times(graph, Kind.UNPERMUTE) == per_rank(
        added(0 * COPIES, ALL * BF16 + 0 * COPIES), added((PAIRS + COPIES) * BF16, COPIES * BF16)
    )


def test_plain_adds_what_came_back() -> None:
    graph = graph_of("plain")
    assert times(graph, Kind.UNPERMUTE) == per_rank(added(SENT * BF16, TOKENS * BF16))
