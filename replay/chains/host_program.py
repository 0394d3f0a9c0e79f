"""Host program of a layer: the launches of a scheme's software, in the order they were built.

A scheme names its kernels where it launches them, by verbs of the machine that take a name or an
`Operation`. The list is read off a layer that is built for it, on a machine that is like others.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import hwmodel
from replay.chains.chain import check_code_for, faults_of
from replay.engine import GraphBuilder
from replay.errors import UserError
from replay.model.machine.host import UNSTAGED, Operation
from replay.model.machine.host_script import HostScript, ScriptLine
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork
from replay.model.work.placement import place
from replay.model.work.precision import Precision

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hwmodel import System
    from replay.model.arrays import Ints
    from replay.model.machine.host import Calls, Launch
    from replay.schemes import Scheme

Program = tuple[Operation, ...]

SYSTEMS = {"cuda": "dgx-h100", "cann": "atlas-800t-a2"}
"""Machines of a typical layer, by platform."""

RANKS, EXPERTS, TOP_K = 8, 256, 8
FEW_EXPERTS = RANKS * TOP_K
"""Experts where only the order of kernels and waits is asked for: a token for each GPU."""

TYPES = (
    Precision("fp8"),
    Precision("fp8", combine="fp8"),
    Precision("bf16", gemm="fp8"),
    Precision("bf16"),
    Precision("fp32"),
)
"""Number types of a typical layer: the first that a scheme takes."""


@cache
def typical_layer(types: Precision, is_backward: bool, num_experts: int = EXPERTS) -> LayerWork:
    """A layer in which every expert has a row."""
    tokens = num_experts // TOP_K
    ids = np.arange(num_experts, dtype=np.int32).reshape(tokens, TOP_K)
    owner = (np.arange(tokens) * RANKS // tokens).astype(np.int32)
    placed = place("contiguous", num_experts, RANKS)
    shape = ExpertShape(hidden=256, intermediate=128)
    return LayerWork(ids, owner, placed, shape, types, is_backward=is_backward)


@cache
def preset(name: str) -> System:
    """Load a system, once for all schemes."""
    return hwmodel.load(name)


def typical_outline(
    scheme: Scheme,
    *,
    is_backward: bool = False,
    system: System | None = None,
    num_experts: int = EXPERTS,
    until_wait: bool = False,
) -> Machine | None:
    """Build a typical layer for its hosts alone; see `outline_layer`.

    Parameters
    ----------
    system
        Machine that the layer is built for, since options may ask for more SMs than others have.
        None, or one of fewer GPUs than the layer has, takes one of the scheme's platform.
    num_experts
        Experts of the layer, as many as `FEW_EXPERTS` at least.
    until_wait
        See `program`.

    Returns
    -------
    None if the scheme builds none.
    """
    if system is None or system.fabric.num_gpus < RANKS:
        system = preset(SYSTEMS[scheme.platform or "cuda"])
    for types in TYPES:
        with suppress(UserError):
            work = typical_layer(types, is_backward, num_experts)
            return outline_layer(scheme, work, system, until_wait=until_wait)
    return None


def typical_program(scheme: Scheme, **settings: Any) -> Program | None:
    """List the kernels of a typical layer and the waits of its host, in their order.

    Parameters
    ----------
    settings
        As of `typical_outline`.

    Returns
    -------
    None if the scheme builds none.
    """
    outline = typical_outline(scheme, **settings)
    return None if outline is None else program_of(outline)


def about_typical(scheme: Scheme) -> str:
    """Say which layer `typical_program` lists the kernels of."""
    return (
        f"of a reference layer, not of yours: {RANKS} GPUs of {SYSTEMS[scheme.platform or 'cuda']} in one NVLink "
        f"domain, {EXPERTS} experts of which every one has a row, top-{TOP_K}, in the first types that it takes of "
        "FP8, BF16, FP32"
    )


class _Outline(GraphBuilder):
    """A graph of which nothing but the number of tasks is kept: hosts launch without the rest."""

    def add(self, count: int | None = None, **fields: Any) -> Ints:
        """Number tasks; see `GraphBuilder.add`."""
        if count is None:
            count = max((len(one) for one in fields.values() if np.ndim(one)), default=1)
        first = self._num_tasks
        self._num_tasks += count
        return np.arange(first, first + count, dtype=np.int64)

    def _leave_out(self, *given: Any, **named: Any) -> None:
        """Keep nothing."""

    edges = take = take_until_last = touch = _leave_out

    def gate(self, *given: Any, **named: Any) -> int:
        """Keep nothing; see `GraphBuilder.gate`."""
        return 0


class _WaitError(Exception):
    """A host waits, and nobody asks for what it does behind that."""


class _UntilWait(HostScript):
    """A script that is not read beyond its first wait."""

    def append(self, one: ScriptLine) -> None:
        """Note what a host does next."""
        super().append(one)
        if one.act == "wait":
            raise _WaitError


def program(scheme: Scheme, work: LayerWork, system: System, *, until_wait: bool = False) -> Program:
    """Build a layer and read its program, kernels of one name in a row as one entry.

    Parameters
    ----------
    until_wait
        Whether to stop at the first wait of the host, which is then the last entry.

    Raises
    ------
    UserError
        If the scheme refuses the layer, or its code fails.
    """
    return program_of(outline_layer(scheme, work, system, until_wait=until_wait))


def program_of(outline: Machine) -> Program:
    """Read the program of what `outline_layer` builds, kernels of one name in a row as one entry."""
    found: list[Operation] = []
    for one in outline.host.program:
        if found and found[-1].name == one.name and one.launches and found[-1].launches:
            found[-1] = found[-1]._replace(launches=found[-1].launches + one.launches)
        else:
            found.append(one)
    return tuple(found)


def outline_layer(
    scheme: Scheme,
    work: LayerWork,
    system: System,
    launch: Launch | None = None,
    calls: Calls | None = None,
    *,
    until_wait: bool = False,
) -> Machine:
    """Build a layer for its hosts alone, which note what they do; no schedule can be made of it.

    Parameters
    ----------
    launch, calls
        As of `replay.model.machine.host.Host`.
    until_wait
        See `program`.

    Raises
    ------
    UserError
        If the scheme refuses the layer, or its code fails.
    """
    check_code_for(scheme, work, system)
    outline = _Outline(KIND_NAMES)
    machine = Machine(system, outline, work.num_ranks, scheme.uplinks, launch, sample=work.sample, calls=calls)
    if until_wait:
        machine.host.script = _UntilWait()
    with suppress(_WaitError), faults_of(scheme, _WaitError):
        begun = machine.enter(UNSTAGED, machine.mark(machine.ranks), is_backward=work.is_backward)
        scheme.build(work, machine, begun)
    return machine


class LayerWaits(NamedTuple):
    """Counts of kernels, waits and meetings of a layer, per GPU.

    Attributes
    ----------
    kernels
        Kernels launched.
    host_waits
        Times that the host waits for a number from its GPU.
    meetings
        Times that all GPUs meet.
    fences
        Waits for stores, or for all that was written, before others are told. Those of single
        chunks in rings and in NCCL's kernels are not among them.
    flags
        Rounds in which GPUs tell one another by counts or flags of their own.
    """

    kernels: int
    host_waits: int
    meetings: int
    fences: int
    flags: int


def waits_of(outline: Machine) -> LayerWaits:
    """Count the kernels of a layer of `outline_layer`, and what its GPUs wait for."""
    done, met = outline.host.program, outline.notes.meetings
    waits = sum(not one.launches for one in done)
    return LayerWaits(num_kernels(done), waits, met["meetings"], met["fences"], met["rounds of flags"])


def num_kernels(operations: Iterable[Operation]) -> int:
    """Kernels of a program."""
    return sum(one.launches for one in operations)


def is_captured(scheme: Scheme, passes: Iterable[bool], system: System) -> bool:
    """Tell whether a CUDA graph can hold a scheme's layers: no host waits in any of the passes.

    The number of experts does not change where hosts wait: a layer with few stands for all, where a
    scheme takes so few.
    """

    def program(is_backward: bool, num_experts: int) -> Program | None:
        return typical_program(scheme, is_backward=is_backward, system=system, num_experts=num_experts, until_wait=True)

    return all(can_be_captured(program(one, FEW_EXPERTS) or program(one, EXPERTS)) for one in passes)


def can_be_captured(operations: Program | None) -> bool:
    """Tell whether a CUDA graph can hold a program: it is known, and no host waits in it."""
    return operations is not None and all(one.launches for one in operations)
