"""Operands of a grouped GEMM on a GPU, launches of its kernel on lists of tiles, and a check."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tile_kernels import grouped_tiles
from torch.nn import functional
from triton.tools.tensor_descriptor import TensorDescriptor

from replay.studies.validate.tile_lists import BLOCK_M, ELEMENT_BYTES, SEED, GroupedShape, tile_list

BLOCK_K_BYTES = 128  # of a step: 64 values of BF16, 128 of FP8


class Problem:
    """Operands of one shape and type on the GPU, and launches of the kernel on them."""

    def __init__(self, shape: GroupedShape, dtype: str, *, device: str = "cuda") -> None:
        self.shape, self.dtype = shape, dtype
        block_k = BLOCK_K_BYTES // ELEMENT_BYTES[dtype]
        generator = torch.Generator(device).manual_seed(SEED)
        kind = torch.bfloat16 if dtype == "bf16" else torch.float8_e4m3fn

        def drawn(rows: int, width: int) -> Any:
            parts = [
                torch.randn(min(4096, rows - first), width, generator=generator, device=device)
                for first in range(0, rows, 4096)
            ]
            return torch.cat([part.to(kind) for part in parts])

        num_rows = shape.experts * shape.row_tiles * BLOCK_M
        self.activations = drawn(num_rows, shape.k)
        self.weights = drawn(shape.experts * shape.n, shape.k)
        self.results = torch.full((num_rows, shape.n), torch.nan, device=device, dtype=torch.bfloat16)
        self._described = [
            TensorDescriptor.from_tensor(self.activations, [BLOCK_M, block_k]),
            TensorDescriptor.from_tensor(self.weights, [shape.block_n, block_k]),
            TensorDescriptor.from_tensor(self.results, [BLOCK_M, shape.block_n]),
        ]
        self._block_k = block_k
        self._device = device

    def listed(self, order: str) -> Any:
        """(tile, 3) list of an order on the GPU."""
        tiles = np.stack(tile_list(self.shape, order), axis=1).astype(np.int32)
        return torch.from_numpy(np.ascontiguousarray(tiles)).to(self._device)

    def launch(self, listed: Any, programs: int, *, flatten: bool) -> None:
        """Launch the kernel on a list of tiles."""
        grouped_tiles[(programs,)](
            *self._described,
            listed,
            len(listed),
            self.shape.k,
            self.shape.n,
            block_m=BLOCK_M,
            block_n=self.shape.block_n,
            block_k=self._block_k,
            flatten=flatten,
            num_warps=8,
            num_stages=3,
        )

    def by_library(self) -> dict[str, Any]:
        """Calls of PyTorch's own kernels for the same GEMM: name to call."""
        shape = self.shape
        found: dict[str, Any] = {}
        weights = self.weights.view(shape.experts, shape.n, shape.k).transpose(1, 2)
        ends = torch.arange(1, shape.experts + 1, device="cuda", dtype=torch.int32)
        ends = ends * (shape.row_tiles * BLOCK_M)
        if self.dtype == "bf16":
            rows = self.activations.view(shape.experts, -1, shape.k)
            found["bmm"] = lambda: torch.bmm(rows, weights)
            grouped = getattr(functional, "grouped_mm", None) or torch._grouped_mm
            if shape.experts > 1:
                found["grouped_mm"] = lambda: grouped(self.activations, weights, offs=ends)
            return found
        row_scales = torch.ones(len(self.activations), device="cuda")
        if shape.experts > 1:
            column_scales = torch.ones(shape.experts, shape.n, device="cuda")
            found["scaled_grouped_mm"] = lambda: torch._scaled_grouped_mm(
                self.activations,
                weights,
                row_scales,
                column_scales,
                ends,
                out_dtype=torch.bfloat16,
                use_fast_accum=True,
            )
        else:
            one = torch.ones((), device="cuda")
            found["scaled_mm"] = lambda: torch._scaled_mm(
                self.activations,
                weights[0],
                one,
                one,
                out_dtype=torch.bfloat16,
                use_fast_accum=True,
            )
        return found


def errors(problem: Problem) -> float:
    """Relative error of the results against a product in float32 of a sample of rows."""
    shape = problem.shape
    worst = 0.0
    for expert in {0, shape.experts - 1}:
        first = expert * shape.row_tiles * BLOCK_M
        rows = slice(first, first + BLOCK_M)
        weights = problem.weights[expert * shape.n : (expert + 1) * shape.n].float()
        right = problem.activations[rows].float() @ weights.T
        worst = max(worst, float((problem.results[rows].float() - right).norm() / right.norm()))
    return worst
