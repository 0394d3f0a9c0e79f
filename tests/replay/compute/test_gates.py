"""Experts with and without gate: operations and bytes of every kernel, counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import schedule
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers

HIDDEN, INNER = 256, 128
ROWS = [64, 0, 128]  # of each expert; tiles share weights without a rest
TWO, FOUR = 2, 4  # bytes of a BF16 value and of a gradient's accumulator
SMS = 132

EXACT: dict[str, Any] = {
    "compute.mma_rows": 1,
    "compute.operand_bytes_per_clock": 1e6,
    "compute.tile_overhead_ns": 0.0,
    "compute.bf16_peak_TFLOP_per_s": float(SMS),
    "compute.bf16_efficiency": 1.0,
    "compute.bf16_grouped_efficiency": 1.0,
    "compute.bf16_grouped_whole_tiles": False,
    "hbm.peak_GB_per_s": 1000.0,
    "hbm.stream_efficiency": 1.0,
    "hbm.write_efficiency": 1.0,
}
"""An operation of a tile and a byte of memory take a picosecond."""


def spent(kind: Kind, *, gated: bool, is_backward: bool = False) -> int:
    """Picoseconds of all tasks of a kind, on one GPU."""
    ids = np.repeat(np.arange(3, dtype=np.int32), ROWS)[:, None]
    layer = small_layers.work(ids, 1, 3, shape=ExpertShape(HIDDEN, INNER, gated), is_backward=is_backward)
    graph, _, _ = build_layer(
        layer, hwmodel.load("dgx-h100", EXACT), SCHEMES["ideal"].with_options({"form": "kernels"})
    )
    return int(graph.duration_ps[graph.kind == kind].sum())


def moved(kind: Kind, *, gated: bool, is_backward: bool = False) -> int:
    """Bytes that tasks of a kind read from and write to memory, on one GPU."""
    ids = np.repeat(np.arange(3, dtype=np.int32), ROWS)[:, None]
    layer = small_layers.work(ids, 1, 3, shape=ExpertShape(HIDDEN, INNER, gated), is_backward=is_backward)
    graph, _, _ = build_layer(
        layer, hwmodel.load("dgx-h100", EXACT), SCHEMES["ideal"].with_options({"form": "kernels"})
    )
    drawn = schedule(graph).drawn
    of_memory = np.array([name == "hbm 0" for name in graph.resources.names])[drawn.resource]
    of_kind = graph.kind[graph.touches.task[drawn.touch]] == kind
    return int((drawn.end_ps - drawn.start_ps)[of_memory & of_kind].sum())


@pytest.mark.parametrize(("gated", "columns"), [(True, 2 * INNER), (False, INNER)])
class TestGate:
    """`columns` are those of the first GEMM: gate and up projection, or up alone."""

    def test_forward(self, gated: bool, columns: int) -> None:
        rows, experts = sum(ROWS), 2  # one has no row and reads no weights
        assert spent(Kind.GEMM1, gated=gated) == 2 * rows * columns * HIDDEN
        assert spent(Kind.GEMM2, gated=gated) == 2 * rows * INNER * HIDDEN
        first = experts * columns * HIDDEN + rows * (HIDDEN + columns)
        assert moved(Kind.GEMM1, gated=gated) == TWO * first
        second = experts * INNER * HIDDEN + rows * (INNER + HIDDEN)
        assert moved(Kind.GEMM2, gated=gated) == TWO * second
        assert spent(Kind.ACTIVATION, gated=gated) == TWO * rows * (columns + INNER)

    def test_backward(self, gated: bool, columns: int) -> None:
        rows, experts = sum(ROWS), 2

        def back(kind: Kind) -> int:
            return spent(kind, gated=gated, is_backward=True)

        # The gradient of what the first GEMM wrote is multiplied by all its columns.
        assert back(Kind.GEMM1) == 2 * rows * columns * HIDDEN
        assert back(Kind.GEMM2) == 2 * rows * INNER * HIDDEN
        down = experts * INNER * HIDDEN + rows * (HIDDEN + INNER)
        assert moved(Kind.GEMM2, gated=gated, is_backward=True) == TWO * down
        up = experts * columns * HIDDEN + rows * (columns + HIDDEN)
        assert moved(Kind.GEMM1, gated=gated, is_backward=True) == TWO * up
        # Read: gradient of the activation, what the first GEMM wrote. Written: its gradient, and
        # the activation once more, for the weight gradient.
        assert back(Kind.ACTIVATION) == TWO * rows * 2 * (columns + INNER)
        accumulated = 2 * FOUR * experts * (columns + INNER) * HIDDEN
        gradients = accumulated + TWO * rows * (columns + INNER + 2 * HIDDEN)
        # The shares of the SMs are rounded up.
        got = moved(Kind.WGRAD, gated=gated, is_backward=True)
        assert gradients <= got < gradients + 2 * experts * SMS

    def test_weight_gradients_multiply_all_columns(self, gated: bool, columns: int) -> None:
        got = spent(Kind.WGRAD, gated=gated, is_backward=True)
        wanted = 2 * sum(ROWS) * (columns + INNER) * HIDDEN
        # Sums that no product hides, of two experts, by SMs that share memory.
        wanted += SMS * 2 * (2 * FOUR - TWO) * (columns + INNER) * HIDDEN
        assert wanted <= got <= wanted + SMS * 4  # shares of the SMs are rounded up
