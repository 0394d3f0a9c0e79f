"""All-reduce, all-gather and reduce-scatter whose threads address all GPUs at once.

A rank works on its share of the buffer: it loads sums that the switch makes
(``multimem.ld_reduce``) and stores once what the switch copies to all (``multimem.st``). An
all-reduce does both with every 16 bytes, which fills both directions of a port; an all-gather has
the stores alone, which fill the way in, and a reduce-scatter the loads, which fill the way out.

Sources: PyTorch ``torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu``
(``multimem_all_reduce_kernel``, ``multimem_all_gather_kernel``: 8 blocks of 1024 threads, ranks
meet before and after; vLLM's and SGLang's communicators call them); NVIDIA/nccl
``contrib/custom_algos/allreduce`` (``twoshot_mc_simple``, ``twoshot_mc_poison``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from replay.collectives import grids
from replay.collectives.grids import Grid, Items, Style, Walked, Work
from replay.machine import multimem

if TYPE_CHECKING:
    from replay.machine.kinds import PhaseKinds
    from replay.machine.machine import Ints, Machine

TORCH = Style(Grid(blocks=8, threads=1024))
SAMPLE = Style(Grid(blocks=4, threads=1024), meets_before=False)
"""NVIDIA's samples of NCCL's device API, as they were measured: who calls sees to it that all
buffers are written before."""


def all_reduce(
    machine: Machine,
    kinds: PhaseKinds,
    nbytes: int,
    begun: Ints,
    style: Style = TORCH,
    *,
    payload: bool = False,
) -> Ints:
    """Sums of a share, stored to all: (rank,) the last tasks; see `one_shot.by_loads`."""
    met = grids.meet_before(machine, kinds, style, begun)
    walked = _reduce_and_spread(machine, kinds, style.grid, nbytes, met, payload=payload)
    return grids.meet_after(machine, kinds, style, walked, stored=True)


def all_reduce_with_flags(
    machine: Machine,
    kinds: PhaseKinds,
    nbytes: int,
    begun: Ints,
    grid: Grid = SAMPLE.grid,
    *,
    payload: bool = False,
) -> Ints:
    """The same with flags in the data in place of a barrier: (rank,) the last tasks.

    A buffer is full of a value that no sum has. The blocks read it until everything has come, and
    make one that was used before ready for the next call.
    """
    share = -(-nbytes // machine.num_ranks)
    walked = _reduce_and_spread(machine, kinds, grid, nbytes, begun, payload=payload)
    used = grid.used(share)
    looking = machine.costs.poll() + machine.costs.sm_load(-(-nbytes // used))
    clearing = machine.costs.sm_copy(-(-share // used))
    all_here = machine.gather(walked.arrived, machine.ranks, walked.left)
    return machine.delay(kinds.receive, looking + clearing, all_here)


def all_gather(
    machine: Machine,
    kinds: PhaseKinds,
    nbytes: int,
    begun: Ints,
    style: Style = TORCH,
    *,
    payload: bool = False,
) -> Ints:
    """Store a share to all: (rank,) the last tasks; `nbytes` is what every rank gets."""
    spread = _Spread(machine, kinds, payload)
    work = Work(None, machine.costs.sm_store, kinds.send, spread.store, trips=0)
    met = grids.meet_before(machine, kinds, style, begun)
    share = -(-nbytes // machine.num_ranks)
    walked = grids.walk(machine, kinds, style.grid, share, met, work)
    return grids.meet_after(machine, kinds, style, spread.received(walked), stored=True)


def reduce_scatter(
    machine: Machine,
    kinds: PhaseKinds,
    nbytes: int,
    begun: Ints,
    style: Style = TORCH,
    *,
    payload: bool = False,
) -> Ints:
    """Load the sums of a share: (rank,) the last tasks; `nbytes` is what every rank brings."""
    sums = partial(load_sums, machine, kinds, payload=payload)
    work = Work(sums, machine.costs.sm_load, kinds.receive)
    met = grids.meet_before(machine, kinds, style, begun)
    share = -(-nbytes // machine.num_ranks)
    walked = grids.walk(machine, kinds, style.grid, share, met, work)
    return grids.meet_after(machine, kinds, style, walked, stored=False)


def load_sums(machine: Machine, kinds: PhaseKinds, items: Items, *, payload: bool) -> Ints:
    """Load sums that the switch makes: (item,) tasks, visible in the SMs."""
    return multimem.reduce(
        machine, kinds, items.rank, items.nbytes, items.after,
        payload=payload, requests_first=True,
    )  # fmt: skip


def _reduce_and_spread(
    machine: Machine, kinds: PhaseKinds, grid: Grid, nbytes: int, met: Ints, *, payload: bool
) -> Walked:
    spread = _Spread(machine, kinds, payload)
    sums = partial(load_sums, machine, kinds, payload=payload)
    work = Work(sums, machine.costs.sm_store, kinds.send, spread.store)
    share = -(-nbytes // machine.num_ranks)
    return spread.received(grids.walk(machine, kinds, grid, share, met, work))


class _Spread:
    """Stores that the switch copies to all ranks, and what comes of them to each."""

    def __init__(self, machine: Machine, kinds: PhaseKinds, payload: bool) -> None:
        self._machine, self._kinds, self._payload = machine, kinds, payload
        self._arrived: list[Ints] = []
        self._member: list[Ints] = []

    def store(self, items: Items, after: Ints) -> Ints:
        """Store the items' bytes to all: (item,) marks behind all copies of each."""
        machine = self._machine
        spread = multimem.multicast(
            machine, self._kinds, items.rank, items.nbytes * self._payload, after,
            meta_bytes=items.nbytes * (not self._payload),
        )  # fmt: skip
        self._arrived.append(spread.arrived)
        self._member.append(spread.member)
        marks = machine.mark(items.rank, after)
        machine.graph.edges(spread.arrived, marks.repeat(len(spread.arrived) // len(marks)))
        return marks

    def received(self, walked: Walked) -> Walked:
        """A walk whose ranks wait for what comes to them, beside what they sent."""
        arrived, member = np.concatenate(self._arrived), np.concatenate(self._member)
        return walked._replace(arrived=self._machine.gather(arrived, member, walked.arrived))
