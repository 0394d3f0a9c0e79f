"""The kernels of a DeepEP layer run in the order of their launch, and the document lists them."""

from __future__ import annotations

from importlib import resources

import numpy as np
import pytest

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import schedule
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.ep.deepep.stack import STACKS, StackKernel, StackSizes
from replay.studies.validate import deepep_layer

ORDER = (
    Kind.TOKEN_CAST,
    Kind.LAYOUT,
    Kind.DISPATCH_SEND,
    Kind.PERMUTE,
    Kind.GEMM1,
    Kind.ACTIVATION,
    Kind.GEMM2,
    Kind.UNPERMUTE,
    Kind.COMBINE_SYNC,
)


@pytest.mark.parametrize("stack", ["sglang", "vllm"])
def test_each_kernel_waits_for_the_one_before(stack: str) -> None:
    work = small_layers.work(small_layers.draw(64, 8, 2), 2, 8, precision="fp8", shape=ExpertShape(1024, 256))
    # A host that launches at once: kernels wait for each other and for nothing else.
    system = hwmodel.load("dgx-h100", {"overheads.launch_us": 0.0})
    graph, _, _ = build_layer(work, system, SCHEMES["deepep"].with_options({"stack": stack}))
    timeline = schedule(graph)
    gap = system.overheads.kernel_gap_ps("stream")
    busy = (graph.duration_ps > 0) & (graph.rank == 0)
    sent, returned = (
        timeline.start_ps[busy & (graph.kind == kind)].min() for kind in (Kind.DISPATCH_SEND, Kind.COMBINE_SEND)
    )
    until = -gap
    for kind in ORDER:
        chosen = busy & (graph.kind == kind)
        if kind == Kind.PERMUTE:
            chosen &= timeline.start_ps > sent
        if kind == Kind.UNPERMUTE:
            chosen &= timeline.start_ps < returned
        assert chosen.any(), kind
        assert timeline.start_ps[chosen].min() >= until + gap, kind
        until = int(np.max(timeline.visible_ps[chosen]))


def test_the_document_has_the_tables_of_today() -> None:
    """Where this fails, ``python -m`` of `deepep_layer` prints them for LAYER.md."""
    text = (resources.files("replay.schemes.ep.deepep") / "LAYER.md").read_text("utf-8")
    made = deepep_layer.tables()
    for name in ("vllm", "backward"):
        table = made[name]
        documented = text.partition(f"<!-- {name} -->\n")[2].partition(f"\n<!-- /{name} -->")[0]
        for line, today in zip(documented.splitlines(), table.splitlines(), strict=True):
            found, wanted = ([cell.strip() for cell in row.split("|")] for row in (line, today))
            time, exact = 4, (1, 2, 3, 5)
            assert [found[i] for i in exact] == [wanted[i] for i in exact]
            if wanted[time][0].isdigit():
                # A constant that is fitted again may move a time without a new document.
                numbers = [float(cells[time].replace(",", "")) for cells in (found, wanted)]
                assert numbers[0] == pytest.approx(numbers[1], rel=0.03), wanted[1]


@pytest.mark.parametrize("name", STACKS)
def test_every_word_of_a_list_is_a_size(name: str) -> None:
    work = small_layers.work(small_layers.draw(64, 8, 2), 2, 8, precision="fp8")
    engine, sizes = STACKS[name], StackSizes.of(work)
    for part in (value for value in vars(engine).values() if isinstance(value, tuple)):
        for kernel in map(StackKernel, part):
            assert kernel.nbytes(sizes).shape == (2,)
            assert (kernel.nbytes(sizes) > 0).all(), kernel.name
