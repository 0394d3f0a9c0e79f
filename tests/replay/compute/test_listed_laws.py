"""Rows of kernel lists whose kernels take a time that their bytes do not give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from round_machine import NS, ROUND, US

import hwmodel
from replay.engine import GraphBuilder, schedule
from replay.model.compute.listed_kernels import ListedKernels
from replay.model.compute.row_moves import chunk_map
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.kernel_lists import KernelSizes, ListedOperation, load
from replay.model.work.stacks import Stack

GAP, SMALL = 2 * US, 300 * NS
FP8 = {
    "compute.fp8_peak_TFLOP_per_s": 100.0,
    "compute.fp8_matrix_blocks": [[64, 64]],
    "compute.fp8_blocks": [[64, 64]],
    "compute.fp8_step_ns": 0.0,
    "compute.fp8_efficiency": 1.0,
    "compute.fp8_rows_efficiency": 0.25,
    "compute.fp8_tensor_efficiency": 0.5,
}
MACHINE = hwmodel.load("dgx-h100", ROUND | FP8)


def row(**facts: Any) -> ListedOperation:
    plain: dict[str, Any] = {
        "name": "kernel",
        "part": "experts",
        "direction": "forward",
        "graph": "",
        "call": "triton",
        "kind": "memory",
        "ground": "source",
        "stream": "compute",
        "kernels": 1,
        "moves": 0,
        "gemm": None,
        "tensors": 0,
        "copies": 0,
        "waits": 0,
        "events": 0,
        "peers": 0,
        "source": "by hand",
    }
    return ListedOperation(**(plain | facts))


def run(*rows: ListedOperation, stack: str = "megatron-tuned", precision: str = "fp8") -> Any:
    """End of the kernels, and services of products."""
    builder = GraphBuilder(KIND_NAMES)
    machine = Machine(MACHINE, builder, 1)
    kernels = ListedKernels(
        machine,
        precision,
        machine.mark(machine.ranks),
        is_backward=False,
        known={},
        stack=Stack.of(stack, MACHINE),
        collective_ps=lambda *_: 0,
    )
    kernels.run(rows)
    graph = builder.build()
    timeline = schedule(graph)
    products = timeline.service_ps[graph.kind == int(Kind.DENSE_GEMM)]
    return int(timeline.visible_ps[kernels.end[0]]), products.tolist()


def test_a_map_takes_its_law_and_not_its_bytes() -> None:
    law = int(chunk_map(Machine(MACHINE, GraphBuilder(KIND_NAMES), 1), np.array([5000]), 64).ps[0])
    assert law == pytest.approx(5000 * (80 + 32 / 224 * 88) * 1000 / 100)
    moves = 20_000  # 4 us at 5000 bytes a nanosecond: less
    mapped = row(kind="map", law=("chunk map", 5000, 64), moves=moves)
    assert run(mapped)[0] == GAP + law + SMALL
    assert run(mapped._replace(law=None))[0] == GAP + moves // 5 + SMALL
    # Bytes bind where there are more of them.
    more = mapped._replace(moves=50 * law)
    assert run(more)[0] == GAP + 10 * law + SMALL
    # Kernels before the last start besides.
    assert run(mapped._replace(kernels=3))[0] == 3 * (GAP + SMALL) + law


@pytest.mark.parametrize(
    ("stack", "forward", "gradient"),
    [("fp8=blockwise", 1, 4), ("fp8=tensorwise", 2, 2), ("fp8=delayed", 2, 2)],
)
def test_products_are_as_fast_as_their_scales_let_them(stack: str, forward: int, gradient: int) -> None:
    product = row(kind="gemm", call="te", gemm=(64, 64, 640))
    weights = product._replace(adds=4, weights=True, gemm=(64, 64, 6400))
    _, products = run(product, weights, stack=f"megatron-tuned:{stack}")
    each = 2 * 64 * 64 * 640  # of one SM that does an operation in a picosecond
    sums = -(-6 * 64 * 64 // 5)  # read and written, of which the rate has two bytes
    assert products == [forward * each + 11 * NS, gradient * 10 * each + 11 * NS + sums]


def test_lists_name_laws_by_their_sizes() -> None:
    megatron, sizes = (
        load("megatron"),
        KernelSizes(
            tokens=100,
            hidden=2048,
            experts=64,
            topk=4,
            local=8,
            ranks=8,
            rows=300,
            copies=200,
            heads=4,
            kv_heads=4,
            width=64,
            inner=64,
        ),
    )
    found = {
        (one.name, one.law)
        for one in megatron.operations(sizes, megatron.option_values(), parts=["dispatch", "combine"])
        if one.law
    }
    assert found == {
        ("row map", ("row map", 100, 64)),
        ("permute", ("row walk", 100, 4)),
        ("unpermute", ("row walk", 200, 4)),
        ("chunk map", ("chunk map", 300, 64)),
    }


@pytest.mark.parametrize(("fp8", "casts"), [("blockwise", 1), ("tensorwise", 0)])
def test_casts_by_rows_and_columns_have_a_law_where_blocks_have_scales(fp8: str, casts: int) -> None:
    megatron, sizes = load("megatron"), KernelSizes(tokens=100, hidden=256, rows=300, local=2)
    rows = megatron.operations(sizes, megatron.option_values(fp8=fp8), parts=["experts"])
    laws = {one.name: one.law for one in rows if one.law}
    assert laws["rows of experts, cast"] == ("cast twice", casts, 300 * 256)
    assert not any(name.startswith("weights") for name in laws)


def test_sizes_of_laws_are_checked() -> None:
    text = load("megatron").model_dump()
    text["parts"][0]["rows"][0]["law"] = ("row map", "tokens", "expert")
    with pytest.raises(ValueError, match="speaks of expert,"):
        type(load("megatron"))(**text)
