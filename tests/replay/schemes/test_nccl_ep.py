"""NCCL EP against DeepEP, whose low-latency kernels it has, and what it refuses and allocates."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every
from round_machine import round_machine

from replay.chains.layer import build_layer
from replay.engine import TaskGraph, schedule
from replay.model.work.layer import ExpertShape, LayerWork
from replay.model.work.precision import Precision
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.ep.nccl_ep import WORKSPACE_BYTES

NCCL, DEEPEP = SCHEMES["nccl-ep"], SCHEMES["deepep-ll"]


def layer(topk: int = 2, hidden: int = 256, num_experts: int = 16, **more: object) -> LayerWork:
    ids = small_layers.draw(32, num_experts, topk)
    return small_layers.work(ids, 4, num_experts, shape=ExpertShape(hidden, 64), **more)


@pytest.mark.parametrize("types", [Precision("bf16"), Precision("fp8", dispatch="bf16")], ids=str)
def test_its_tasks_are_those_of_deepep(types: Precision) -> None:
    work = layer(precision=types)

    def tasks(name: str) -> tuple[TaskGraph, list[int]]:
        graph, ends, _ = build_layer(work, round_machine(), SCHEMES[name])
        return graph, schedule(graph).visible_ps[ends].tolist()

    (graph, ends), (other, others) = tasks("nccl-ep"), tasks("deepep-ll")
    for column in ("kind", "rank", "duration_ps", "payload_bytes", "wire_bytes", "tag"):
        assert np.array_equal(getattr(graph, column), getattr(other, column)), column
    assert ends == others


def test_rows_travel_in_bf16() -> None:
    assert "rows to the experts are bf16, not fp8" in NCCL.refuses(layer(precision="fp8"))
    assert not DEEPEP.refuses(layer(precision="fp8"))


@every(
    ("work", "said"),
    [
        (layer(topk=10), "take 9 experts per token at most, not 10"),
        (layer(hidden=2880), "compiled for rows of 2560 and of 4096 values, not 2880"),
        (layer(num_experts=18), "equally many experts"),
        (layer(is_backward=True), "no backward pass"),
    ],
    ids=["top-10", "gpt-oss", "uneven", "backward"],
)
def test_layers_that_its_kernels_do_not_take(work: LayerWork, said: str) -> None:
    assert said in NCCL.refuses(work)


@every("work", [layer(topk=9), layer(hidden=2560), layer(hidden=3073)])
def test_layers_that_they_just_take(work: LayerWork) -> None:
    assert not NCCL.refuses(work)


def test_sixty_four_gpus_at_most() -> None:
    ids = np.zeros((65, 1), np.int32)
    work = small_layers.work(ids, 65, 65, shape=ExpertShape(256, 64))
    assert "its code takes 64 ranks at most, not 65" in NCCL.refuses(work)


def test_buffers_are_deepeps_and_a_workspace() -> None:
    first, workspace, *others = NCCL.buffers(layer(), round_machine())
    theirs = DEEPEP.buffers(layer(), round_machine())
    assert [(one.name, one.nbytes.tolist()) for one in (first, *others)] == [
        (one.name, one.nbytes.tolist()) for one in theirs
    ]
    assert workspace.stays
    assert workspace.nbytes.tolist() == [WORKSPACE_BYTES] * 4 == [33_554_432] * 4
