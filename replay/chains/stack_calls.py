"""Calls of a software stack's host in each stage of a scheme's layer.

A scheme launches the kernels that move rows and compute, bare. Around them a stack has kernels of
its own, allocations, copies and waits, and Python: its kernel list (`replay.model.work.stacks`) has
all of a layer. Rows of the list belong to stages of the scheme's layer; their time on the host is
spread evenly over what is launched in the stage. A kernel of the scheme is the row of its name
(`tests/replay/run/test_scheme_kernels.py` holds both to that). Kernels that the scheme does not
have are launched where the list has them: before the scheme's next kernel that is a row of the list,
or at the end of the stage. Kernels of other names that the scheme has there stand in for them, or for
the last of others, so that there are no more than the list has. They move the bytes of their rows, and
take what laws of theirs take beside these. What the scheme's elementwise kernels lack of their rows'
bytes comes before them.

A list that does not know a scheme as a dispatcher says nothing of how the scheme moves rows: kernels
that move rows are then calls of an extension. So are the scheme's experts, unless they are a stage of
their own and the host knows their rows: then they are the list's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from replay.chains.host_program import can_be_captured, outline_layer, typical_program
from replay.engine import GraphBuilder
from replay.model.compute import laws
from replay.model.machine.host import OUTSIDE, UNSTAGED, AddedRow, Calls, Operation, StageCalls
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.schemes.ep.staged_schemes import STAGES, StagedScheme

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.machine.host_script import HostScript, KernelRun, StageKey
    from replay.model.work.kernel_lists import KernelSizes, ListedOperation
    from replay.model.work.kernel_lists.lists import Pass
    from replay.model.work.layer import LayerWork
    from replay.model.work.stacks import CallCosts, Stack
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
    stack
        With the scheme as its dispatcher, if its list knows that.
    sizes
        Sizes of a GPU's work.
    scripts
        What hosts do in a layer of each pass when they launch it bare, of which launches are
        counted.
    """
    found: dict[tuple[str, bool], StageCalls] = {}
    is_known, costs = stack.knows(scheme.name), stack.costs.of(scheme.name)
    has_experts = brings_experts(stack, scheme, system)
    for direction, script in scripts.items():
        is_backward = direction == "backward"
        found[OUTSIDE, is_backward] = StageCalls(stack.costs.call_ps("torch", direction))
        extension = StageCalls(stack.costs.call_ps("library", direction))
        found |= {(stage, is_backward): extension for stage in (UNSTAGED, *STAGES)}
        if costs.kernels and not is_known and direction in scheme.passes:
            found |= _of_library(costs, direction, script)
        if is_known:
            groups = _groups(stack, sizes, direction)
        elif has_experts:
            groups = {EXPERTS: stack.experts(sizes, direction, shared=False)}
        else:
            continue
        every = script()
        machine = Machine(system, GraphBuilder(KIND_NAMES), 1)  # for laws of rows
        for stages, rows in groups.items():
            if rows:  # else kernels there are the scheme's own
                keys = [(stage, is_backward) for stage in stages]
                found |= _spread(stack, keys, rows, every, machine)
    return Calls(found)


def brings_experts(stack: Stack, scheme: Scheme, system: System) -> bool:
    """Tell whether a scheme that a list does not know leaves the experts to the stack.

    In stacks that train, the host tells the experts' kernels how many rows each has. Under a scheme
    whose host never waits, it does not know.
    """
    if stack.knows(scheme.name) or not stack.kernels.trains or not isinstance(scheme, StagedScheme):
        return False
    return not can_be_captured(typical_program(scheme, is_backward=False, system=system))


def _of_library(costs: CallCosts, direction: Pass, script: Callable[[], HostScript]) -> dict[StageKey, StageCalls]:
    """Host time of each launch of a scheme's stages, the mean of all there, where its kernels' calls are known."""
    whole: Counter[StageKey] = Counter()
    done = script()
    launched = done.counts.launched
    for run in done.runs(launched):
        whole[run.stage] += run.kernels * costs.kernel_ps(run.name, direction)
    return {stage: StageCalls(whole[stage] // launched[stage]) for stage in whole}


def script_of(scheme: Scheme, system: System, work: Callable[[], LayerWork]) -> HostScript:
    """Outline of a layer that hosts launch bare: acts of theirs, in order."""
    return outline_layer(scheme, work(), system).host.script


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
    stack: Stack, stages: Sequence[StageKey], rows: Listed, script: HostScript, machine: Machine
) -> dict[StageKey, StageCalls]:
    """Spread what the host does for rows over what is launched in their stages."""
    runs, waits = script.runs(stages), sum(script.counts.waited[stage] for stage in stages)
    added: dict[StageKey, list[AddedRow]] = {stage: [] for stage in stages}
    remainder, place, strange = _Remainder(runs, waits, machine), 0, 0
    names = {row.name for row in rows}
    coming: list[AddedRow] = []  # before the next row that the scheme has
    for row in rows:
        at = next((i for i in range(place, len(runs)) if _is_of(runs[i], row)), None)
        if at is not None:
            coming, beyond = _without(coming, _strange(runs[place:at], names))
            strange += beyond
        if (one := remainder.of(row)) is not None:
            coming.append(one)
        if at is not None:
            place, run = at + 1, runs[at]
            added[run.stage] += [one._replace(behind=run.behind) for one in coming]
            coming = []
    added[stages[-1]] += [one._replace(behind=len(runs)) for one in coming]
    strange += _strange(runs[place:], names)
    for stage in reversed(stages):
        last, strange = _without(added[stage][::-1], strange)
        added[stage] = last[::-1]
    launches = sum(run.kernels for run in runs) + sum(one.what.launches for of in added.values() for one in of)
    each = sum(stack.costs.ps(row) for row in rows) // max(1, launches)
    return {stage: StageCalls(each, tuple(found)) for stage, found in added.items()}


def _is_of(run: KernelRun, row: ListedOperation) -> bool:
    """Tell whether kernels of a scheme are a row: products of rows or of weights, or of its name."""
    if row.kind == "gemm":
        return run.is_product and row.weights == (run.name == KIND_NAMES[Kind.WGRAD])
    return run.name == row.name and not run.is_product


def _strange(runs: Sequence[KernelRun], names: Collection[str]) -> int:
    """Kernels that are no rows of a list."""
    return sum(run.kernels for run in runs if not run.is_product and run.name not in names)


def _without(rows: Iterable[AddedRow], kernels: int) -> tuple[list[AddedRow], int]:
    """Leave out kernels of rows, the first of them, for which so many others stand in; give what is left of both."""
    left: list[AddedRow] = []
    for row in rows:
        one, launches = row, row.what.launches
        if launches and kernels:
            stays = launches - min(launches, kernels)
            kernels -= launches - stays
            nbytes, late_ps = (each * stays // launches for each in (row.nbytes, row.late_ps))
            one = row._replace(what=row.what._replace(launches=stays), nbytes=nbytes, late_ps=late_ps)
        if one.what.launches or one.nbytes or one.late_ps or one.waits:
            left.append(one)
    return left, kernels


class _Remainder:
    """Parts of a list's rows that a scheme leaves to the stack; rows are asked for in their order.

    It launches kernels of their names. Its waits stand for those of rows, the first of them.
    """

    def __init__(self, runs: Sequence[KernelRun], waits: int, machine: Machine) -> None:
        self._machine, self._waits = machine, Counter(waits=waits)
        self._kernels, self._bytes, self._late_ps = Counter[str](), Counter[str](), Counter[str]()
        for run in runs:
            self._kernels[run.name] += run.kernels
            self._bytes[run.name] += run.nbytes
            self._late_ps[run.name] += run.late_ps
        self._own = set(self._kernels)

    def of(self, row: ListedOperation) -> AddedRow | None:
        """Kernels, bytes and waits of a row that are left; None if there are none."""
        is_own = row.kind == "gemm" or row.name in self._own
        launches = 0 if row.kind == "gemm" else row.kernels - _take(self._kernels, row.name, row.kernels)
        nbytes, late_ps = row.moves, _late_ps(self._machine, row)
        if is_own and row.kind == "memory":
            nbytes -= _take(self._bytes, row.name, nbytes)
            late_ps -= _take(self._late_ps, row.name, late_ps)
        elif is_own:  # who moves rows says of how many bytes
            nbytes, late_ps = (each * launches // max(1, row.kernels) for each in (nbytes, late_ps))
        waits = row.waits - _take(self._waits, "waits", row.waits)
        found = AddedRow(Operation(row.name, launches, source=row.source), nbytes, late_ps, waits)
        return found if launches or nbytes or late_ps or waits else None


def _take(of: Counter[str], name: str, wanted: int) -> int:
    """Take so many, or what there is."""
    taken = min(wanted, of[name])
    of[name] -= taken
    return taken


def _late_ps(machine: Machine, row: ListedOperation) -> int:
    """Time of a row beyond its bytes, by a law of its own, in picoseconds."""
    late = machine.costs.beside_bytes(row.moves, laws.least(machine, row.law))
    return int(np.max(late.ps))
