"""Kernels of lists by what bounds them, and what their hosts take: closed forms by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hwmodel
from replay.engine import GraphBuilder, schedule
from replay.model.compute.laws import ATOMIC_CLOCKS, STRIDED_CLOCKS
from replay.model.compute.listed_kernels import ListedKernels
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.work.kernel_lists import KernelList, KernelSizes
from replay.model.work.stacks import Stack, load_costs

US = 1_000_000
SYSTEM = hwmodel.load("dgx-h100")
SMS = 132
START_PS = SYSTEM.overheads.kernel_gap_ps("stream") + SYSTEM.overheads.small_kernel_ps


def ran(*rows: dict[str, Any], graphs: str = "", launch: Any = None) -> int:
    """Picoseconds of rows on an idle GPU; with `launch`, from when its host begins."""
    full = tuple({"name": "x", "source": "s 1", **row} for row in rows)
    part = {"name": "p", "direction": "backward", "graph": graphs, "rows": full}
    choices = ("none", "all")
    option = {"meaning": "", "default": graphs or "none", "choices": choices, "source": ""}
    kernels = KernelList(name="n", title="t", sources={"s": "by hand"}, options={"graphs": option}, parts=(part,))
    stack = Stack("n", kernels, kernels.option_values(), load_costs("n"))
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(SYSTEM, graph, 1, launch=launch)
    machine.host.end_graph()
    found = ListedKernels(
        machine,
        "bf16",
        machine.mark(machine.ranks),
        is_backward=True,
        known={},
        stack=stack,
        collective_ps=lambda *_: 0,
    )
    found.run(stack.operations(KernelSizes(), ["p"], "backward"))
    return schedule(graph.build()).makespan_ps


@pytest.mark.parametrize(("kind", "clocks"), [("strided", STRIDED_CLOCKS), ("atomic", ATOMIC_CLOCKS)])
def test_values_one_by_one_take_their_clocks_or_their_bytes(kind: str, clocks: float) -> None:
    values = 1_000_000
    of_values = values * clocks / SYSTEM.spec.gpu.clock_GHz.value * 1000 / SMS
    few = ran({"law": (kind, 1, values), "moves": 1000})
    assert few == pytest.approx(START_PS + of_values, abs=2)
    moves = 1 << 30
    of_bytes = int(SYSTEM.hbm.stream_ps(moves))
    assert of_bytes > of_values
    assert ran({"law": (kind, 1, values), "moves": moves}) == START_PS + of_bytes


def test_loads_in_a_chain_wait_for_each_other() -> None:
    found = ran({"law": ("chain", 1, 16)})
    assert found == START_PS + 16 * int(SYSTEM.hbm.latency_ps)


def test_blocks_that_leave_sms_without_one_take_as_long_as_a_whole_round() -> None:
    each = 1 << 20

    def of(blocks: int) -> int:
        return ran({"law": ("blocks", blocks, each), "moves": blocks * each})

    def rounds(count: int) -> int:
        return START_PS + int(SYSTEM.hbm.stream_ps(count * SMS * each))

    assert of(SMS) == of(1) == rounds(1)
    assert of(2 * SMS) == of(SMS + 1) == rounds(2)


def test_groups_have_weights_of_their_own() -> None:
    one: dict[str, Any] = {"kind": "gemm", "gemm": (128, 1024, 1024)}
    gap = SYSTEM.overheads.kernel_gap_ps("stream")
    compute = SYSTEM.compute
    assert ran(one) == gap + compute.gemm_time_ps(128, 1024, 1024, "bf16", SMS)
    grouped = compute.gemm_time_ps(np.full(16, 128), 1024, 1024, "bf16", SMS)
    assert ran({**one, "groups": 16}) == gap + grouped
    assert grouped > int(SYSTEM.hbm.stream_ps(16 * 1024 * 1024 * 2))


def test_an_operator_takes_its_own_host_time_whatever_it_launches() -> None:
    """A view has no kernel; the third operator's launch is behind all their host time."""
    costs = load_costs("n")
    us = [costs.operators[name].us("backward") for name in ("view", "mul", "linear")]
    found = ran(
        {"operator": "view", "calls": 3, "kernels": 0, "kind": "tiny"},
        {"operator": "mul", "kind": "tiny"},
        {"operator": "linear", "kind": "tiny"},
        {"call": "launch", "kind": "tiny"},
        launch="eager",
    )
    launch = costs.calls["launch"].us("backward")
    host = 3 * us[0] + us[1] + us[2] + launch
    assert found == pytest.approx(host * US + SYSTEM.overheads.small_kernel_ps, rel=1e-6)


def test_a_graph_takes_one_launch_and_no_operators() -> None:
    row = {"operator": "linear", "kind": "tiny"}
    gap, small = SYSTEM.overheads.kernel_gap_ps("graph"), SYSTEM.overheads.small_kernel_ps
    found = ran(*[row] * 20, graphs="all", launch="eager")
    launched = SYSTEM.overheads.graph_launch_ps
    assert launched + 19 * (gap + small) < found <= launched + 20 * (gap + small)
