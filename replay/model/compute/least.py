"""The least work that experts are: what no kernels do with less, however they are cut and ordered.

Of each product the tensor cores' time alone, divided evenly over the SMs; of device memory the
weights once, and backward also the accumulated gradients, read and written. Left out is what some
kernel hides or keeps on the chip: filling a tile's pipeline, loads of operands into SMs, reading
rows, intermediates and results, and activations. The order of tiles, which can make a schedule of
any given tiles longer or shorter, has no part in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.gemm import Gemm
from replay.model.compute.weight_gradients import ACCUMULATOR_BYTES
from replay.model.machine.kinds import Kind
from replay.model.work.ragged import places

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Pools, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork


def least_experts(machine: Machine, work: LayerWork, pool: Pools, begun: Tasks) -> Ints:
    """Add the least work of a layer's experts: (rank,) marks of its end.

    Parameters
    ----------
    pool
        (rank,): resource of all SMs.
    begun
        (rank,): what each rank's work waits for.
    """
    rank_of = work.placement.expert_rank.astype(np.int64)
    compute, number_type = machine.system.compute, work.precision.operands
    ends, done = begun, begun[rank_of]
    for gemm in (Gemm.first(work, fused_activation=True), Gemm.second(work)):
        rows = work.rows_of_expert
        needed = compute.least_ps(rows, gemm.n, gemm.k, number_type)
        done = _on_every_sm(machine, rank_of, pool, needed, gemm.kind, done)
        nbytes = compute.weight_bytes(gemm.n, gemm.k, number_type)
        if work.is_backward:
            nbytes += 2 * ACCUMULATOR_BYTES * gemm.n * gemm.k
            # Those of an (inner, hidden) matrix are products over the expert's rows.
            inner, hidden = np.array([gemm.n + gemm.k - work.shape.hidden]), work.shape.hidden
            needed = np.concatenate([compute.least_ps(inner, hidden, int(count), number_type) for count in rows])
            added = _on_every_sm(machine, rank_of, pool, needed, Kind.WGRAD, begun[rank_of])
            ends = machine.gather(added, rank_of, ends)
        of_rank = np.bincount(rank_of, nbytes * (rows > 0), machine.num_ranks).astype(np.int64)
        moved = machine.stream(gemm.kind, of_rank, machine.ranks, begun)
        ends = machine.gather(moved, machine.ranks, ends)
    return machine.gather(done, rank_of, ends)


def _on_every_sm(machine: Machine, rank_of: Ints, pool: Pools, needed: Ints, kind: Kind, after: Tasks) -> Ints:
    """Work of every expert in as many equal parts as its GPU has SMs: (expert,) marks of the ends.

    Parameters
    ----------
    needed
        (expert,): SM time in picoseconds.
    after
        (expert,): what each waits for.
    """
    count = np.where(needed > 0, machine.sms.count, 0)
    expert = np.repeat(np.arange(len(needed), dtype=np.int64), count)
    quotient, rest = np.divmod(needed, machine.sms.count)
    parts = machine.graph.add(
        len(expert),
        resource=pool[rank_of[expert]],
        duration_ps=quotient[expert] + (places(count) < rest[expert]),
        kind=kind,
        rank=rank_of[expert],
        tag=expert,
        after=after[expert],
    )
    return machine.join(parts, expert, rank_of, after)
