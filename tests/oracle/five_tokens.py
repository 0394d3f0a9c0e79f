"""A layer small enough to count it by hand, on a machine of round numbers.

The layer has two GPUs with two experts each, and five tokens with two experts each:

=====  =====  =======  ==========
token  owner  experts  GPUs
=====  =====  =======  ==========
0      0      0, 1     0
1      0      0, 2     0, 1
2      0      2, 3     1
3      1      3, 2     1
4      1      1, 3     0, 1
=====  =====  =======  ==========

so that GPU 0 receives three tokens for four pairs, and GPU 1 four tokens for six pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from round_machine import ROUND

import hwmodel
from replay.engine import GraphBuilder, TaskGraph
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.machine.resources import ResourceClass
from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.schemes import Scheme
from replay.schemes.contract import layers as small_layers

HIDDEN, INTERMEDIATE, TOPK = 1024, 128, 2
TOKENS, COPIES, PAIRS = (3, 2), (3, 4), (4, 6)
"""Of each GPU: its tokens, (token, GPU) to it, (token, expert) of its experts."""
RATE = 5
"""Bytes of memory in a picosecond."""
IDS = ((0, 1), (0, 2), (2, 3), (3, 2), (1, 3))


def layer(
    precision: str | Precision = "bf16", *, is_backward: bool = False, ids: Sequence[Sequence[int]] = IDS
) -> LayerWork:
    """The layer above, or one of as many tokens with experts `ids` (token, choice)."""
    return small_layers.work(
        np.array(ids, np.int32),
        2,
        4,
        tokens_of_rank=list(TOKENS),
        precision=precision,
        shape=ExpertShape(HIDDEN, INTERMEDIATE),
        is_backward=is_backward,
    )


def build(
    work: LayerWork, scheme: Scheme, changes: Mapping[str, object] | None = None, system: hwmodel.System | None = None
) -> tuple[TaskGraph, Machine]:
    """The tasks of a layer by itself, and their machine: `system`, or that of round numbers with `changes`."""
    memory = {"hbm.read_efficiency": 0.5, "hbm.write_efficiency": 0.5, "overheads.row_copy_ns": 0.0}
    system = system or hwmodel.load("dgx-h100", {**ROUND, **memory, **(changes or {})})
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(system, graph, work.num_ranks)
    scheme.build(work, machine, machine.mark(machine.ranks))
    return graph.build(), machine


def in_class(graph: TaskGraph, machine: Machine, wanted: ResourceClass) -> np.ndarray:
    """(task,): whether it occupies a resource of the class."""
    return (graph.resource >= 0) & (machine.resources.classes(graph)[graph.resource] == wanted)


def memory_ps(graph: TaskGraph, machine: Machine, kind: Kind, rank: int) -> list[int]:
    """Times for which kernels of a kind on a GPU occupy its memory."""
    chosen = in_class(graph, machine, ResourceClass.HBM) & (graph.kind == kind)
    return graph.duration_ps[chosen & (graph.rank == rank)].tolist()


def memory_bytes(graph: TaskGraph, machine: Machine, kind: Kind, rank: int) -> list[int]:
    """Bytes that kernels of a kind on a GPU move to and from its memory, up to `RATE` more."""
    return [RATE * ps for ps in memory_ps(graph, machine, kind, rank)]


def about(numbers: list[int]) -> object:
    """Bytes of memory of which the last picosecond's are not known."""
    return pytest.approx(numbers, abs=RATE)


def on_sms(graph: TaskGraph, machine: Machine, kind: Kind, rank: int) -> int:
    """Picoseconds that kernels of a kind take of a GPU's SMs, all together."""
    mine = np.isin(graph.resource, machine.sms.resources) & (graph.kind == kind)
    return int(graph.duration_ps[mine & (graph.rank == rank)].sum())
