"""Calls of a software stack's host in each stage of a scheme's layer.

A scheme launches the kernels that move rows and compute, bare. Around them a stack has kernels of
its own, allocations, copies and waits, and Python: its kernel list (`replay.model.work.stacks`) has
all of a layer. Rows of the list belong to stages of the scheme's layer; their time on the host is
spread evenly over what is launched in the stage. A kernel of the scheme is the row of its name
(`tests/replay/run/test_scheme_kernels.py` holds both to that). Kernels that the scheme does not
have are small ones at the beginning of the stage, with the bytes that the scheme's own kernels lack
and the time that laws of theirs take beside these. A list that does not know a scheme as a dispatcher says
nothing of how the scheme moves rows: kernels that move rows are then calls of an extension. So are
the scheme's experts, unless they are a stage of their own and the host knows their rows: then they
are the list's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from replay.chains.host_program import can_be_captured, typical_program
from replay.engine import GraphBuilder
from replay.model.compute import laws
from replay.model.machine.host import OUTSIDE, UNSTAGED, Calls, StageCalls
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.schemes.ep.staged_schemes import STAGES, StagedScheme

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.machine.host_script import HostScript, StageCounts
    from replay.model.work.kernel_lists import KernelSizes, ListedOperation
    from replay.model.work.kernel_lists.lists import Pass
    from replay.model.work.stacks import Stack
    from replay.schemes import Scheme

Listed = Sequence["ListedOperation"]

Stages = tuple[str, ...]
ARRIVING, EXPERTS, LEAVING, FINISH = ("send", "receive"), ("experts",), ("combine",), ("finish",)
"""Stages that rows of a list are told apart by."""


def stage_calls(
    stack: Stack,
    scheme: Scheme,
    sizes: KernelSizes,
    scripts: Mapping[Pass, Callable[[], HostScript]],
    system: System,
) -> Calls:
    """Give what a stack does in each stage of a scheme's layer, in both passes.

    Parameters
    ----------
    sizes
        Sizes of a GPU's work.
    scripts
        What hosts do in a layer of each pass when they launch it bare, of which launches are
        counted.
    """
    found: dict[tuple[str, bool], StageCalls] = {}
    known = stack.with_dispatcher(scheme.name)
    has_experts = brings_experts(stack, scheme, system)
    for direction, script in scripts.items():
        is_backward = direction == "backward"
        found[OUTSIDE, is_backward] = StageCalls(stack.costs.call_ps("torch", direction))
        extension = StageCalls(stack.costs.call_ps("library", direction))
        found |= {(stage, is_backward): extension for stage in (UNSTAGED, *STAGES)}
        if known is not None:
            groups = _groups(known, sizes, direction)
        elif has_experts:
            groups = {EXPERTS: stack.experts(sizes, direction, shared=False)}
        else:
            continue
        counts = script().counts
        machine = Machine(system, GraphBuilder(KIND_NAMES), 1)  # for laws of rows
        for stages, rows in groups.items():
            if not rows:  # kernels there are the scheme's own
                continue
            found |= _spread(stack, stages, rows, counts, machine, is_backward=is_backward)
    return Calls(found)


def brings_experts(stack: Stack, scheme: Scheme, system: System) -> bool:
    """Tell whether a scheme that a list does not know leaves the experts to the stack.

    In stacks that train, the host tells the experts' kernels how many rows each has. Under a scheme
    whose host never waits, it does not know.
    """
    known = stack.with_dispatcher(scheme.name) is not None
    if known or not stack.kernels.trains or not isinstance(scheme, StagedScheme):
        return False
    return not can_be_captured(typical_program(scheme, is_backward=False, system=system))


def _groups(stack: Stack, sizes: KernelSizes, direction: Pass) -> dict[Stages, Listed]:
    """Rows of the list by their stages.

    Gradients go the way of the results first, and that of the rows behind the experts.
    """
    there, back = ("dispatch", "combine") if direction == "forward" else ("combine", "dispatch")
    first, last = (stack.operations(sizes, [part], direction) for part in (there, back))
    experts = stack.experts(sizes, direction, shared=False)
    arrived = 1 + max((i for i, row in enumerate(first) if row.kind == "exchange"), default=-1)
    leaves = next((i for i, row in enumerate(last) if row.kind == "exchange"), 0)
    past = 1 + max((i for i, row in enumerate(last) if row.kind == "exchange"), default=-1)
    between = (*first[arrived:], *experts, *last[:leaves])
    return {
        ARRIVING: first[:arrived],
        EXPERTS: between,
        LEAVING: last[leaves:past],
        FINISH: last[past:],
    }


def _spread(
    stack: Stack,
    stages: Sequence[str],
    rows: Listed,
    counts: StageCounts,
    machine: Machine,
    *,
    is_backward: bool,
) -> dict[tuple[str, bool], StageCalls]:
    """Spread what the host does for rows over what is launched in their stages."""
    own = sum(counts.launched[stage, is_backward] for stage in stages)
    waited = sum(counts.waited[stage, is_backward] for stage in stages)
    moved = sum(counts.moved[stage, is_backward] for stage in stages)
    late_ps = sum(counts.late_ps[stage, is_backward] for stage in stages)
    small = [row for row in rows if row.kind != "gemm"]
    others = _beyond(small, sum((counts.named[stage, is_backward] for stage in stages), Counter()))
    nbytes = max(0, sum(row.moves for row in small) - moved)
    late_ps = max(0, sum(_late_ps(machine, row) for row in small) - late_ps)
    waits = max(0, sum(row.waits for row in rows) - waited)
    each = sum(stack.costs.ps(row) for row in rows) // max(1, own + others)
    first, *rest = stages
    return {
        (first, is_backward): StageCalls(each, others, nbytes, waits, late_ps),
        **{(stage, is_backward): StageCalls(each) for stage in rest},
    }


def _beyond(rows: Listed, launched: Counter[str]) -> int:
    """Kernels of rows that a scheme does not launch.

    It launches those of their names. Kernels of other names stand in for rows that it has not.
    """
    listed: Counter[str] = Counter()
    for row in rows:
        listed[row.name] += row.kernels  # none of memsets, and of copies to the host
    strange = sum(count for name, count in launched.items() if name not in listed)
    return max(0, (listed - launched).total() - strange)


def _late_ps(machine: Machine, row: ListedOperation) -> int:
    """Time of a row beyond its bytes, by a law of its own, in picoseconds."""
    late = machine.costs.beside_bytes(row.moves, laws.least(machine, row.law))
    return int(np.max(late.ps))
