"""Gradients of the experts' weights, shared by every scheme.

The gradient of an (n, m) weight matrix is a product over the expert's rows. It is cut into tiles
like any GEMM. Each SM takes an equal share of the tiles one after the other, as the blocks of a
persistent kernel do.

A tile reads and writes its sums when its products are done, and its SM multiplies nothing meanwhile.
On an H200 results in FP32 take cuBLASLt longer than results in BF16 by 0.9 of what the further bytes
take at the memory's peak rate (0.65 at its streams' rate, which is charged here), in the mean of 63
products whose results are 29 MB and more, however long the inner dimension (``fp8.csv`` of
replay/studies/validate/measurements). Sums that are added to take less than is charged where the L2
cache holds them: 0.2 to 0.9 of it with 34 and 42 MB, hardly anything below 13 MB (``launches.csv``).
On an H100, whose streams reach 0.9 of the peak, the charge is about a fifth too much for large sums.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from hwmodel.compute import gradient_type
from replay.model.machine.host import Operation
from replay.model.machine.kinds import Kind
from replay.model.work.kernel_lists.lists import ACCUMULATOR_BYTES as ACCUMULATOR_BYTES

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints, Pools, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

Projection = Literal["up", "down"]
UP: Projection = "up"
DOWN: Projection = "down"
WGRAD = Operation("wgrad", moves="operands; the FP32 gradient, read and written")
RESULT_BYTES = 2
"""A value in BF16, which rates of products contain: they are of kernels that write it."""


def exposed_sum_bytes(adds: int = ACCUMULATOR_BYTES) -> int:
    """Bytes of a value's sum that are read and written while nothing multiplies.

    Parameters
    ----------
    adds
        Bytes of the value in memory.
    """
    return 2 * adds - RESULT_BYTES


def weight_gradient_tasks(
    machine: Machine,
    work: LayerWork,
    projection: Projection,
    pool: Pools,
    after: Tasks,
    *,
    priority: int = 0,
    num_sms: int = 0,
    rows: Counts | None = None,
) -> tuple[Ints, Ints]:
    """Add the weight gradients of one projection.

    Parameters
    ----------
    pool
        (rank,): resource of the SMs that compute.
    after
        (expert,): task after which all of an expert's rows and gradients are complete.
    priority
        Order among other work on the same SMs, smaller first.
    num_sms
        SMs of the pool; 0 if it has all that compute.
    rows
        (expert,): rows that are multiplied; none for an expert that has no part in it. By default
        those of the layer.

    Returns
    -------
    (task,) tasks, and (task,) ranks of them.
    """
    shape, compute = work.shape, machine.system.compute
    number_type = gradient_type(work.precision.gemm)
    inner = shape.gemm1_columns if projection == UP else shape.intermediate
    pool_sms = num_sms or machine.sms.compute
    # Sums pass at memory's rate, of which each SM of the pool has an equal share, also where tiles are
    # fewer than SMs, of which each could draw more.
    sums_ps = int(machine.system.hbm.stream_ps(exposed_sum_bytes() * inner * shape.hidden)) * pool_sms
    rows_of_expert = work.rows_of_expert if rows is None else rows
    experts = np.flatnonzero(rows_of_expert)
    rank_of = work.placement.expert_rank.astype(np.int64)

    @cache
    def of_rows(depth: int) -> tuple[int, int, int]:
        """Tasks of an expert with so many rows, duration of each, and bytes of all its loads."""
        grid = compute.gemm_tiles(np.array([inner]), shape.hidden, depth, number_type)
        heights = grid.rows_in_tile
        work_ps = sum(
            alike * int(np.sum(compute.tile_ps(heights, width, depth, number_type)))
            for width, alike in Counter(grid.columns_in_tile.tolist()).items()
        )
        count = min(grid.num_tiles, pool_sms)
        height, width = heights[:, None], grid.columns_in_tile
        # As in `replay.model.compute.gemm_tiles`, neighbouring tiles load the larger operand once.
        shared = np.maximum(height, width) - np.maximum(height, width) // compute.cluster_tiles
        loads = int((height + width - shared).sum()) * depth * work.precision.operand_bytes
        return count, -(-(work_ps + sums_ps) // count), loads

    found = [of_rows(depth) for depth in rows_of_expert[experts].tolist()]
    count, duration, drawn = np.array(found, np.int64).reshape(-1, 3).T
    which = np.repeat(experts, count)
    columns = machine.graph.add(
        len(which),
        resource=pool[rank_of[which]],
        duration_ps=np.repeat(duration, count),
        priority=priority,
        kind=Kind.WGRAD,
        rank=rank_of[which],
        tag=which,
        after=after[which],
    )
    # Both operands are read, each SM its share; the accumulated gradient is read and written.
    read = rows_of_expert[experts] * (inner + shape.hidden) * work.precision.operand_bytes
    read += 2 * ACCUMULATOR_BYTES * inner * shape.hidden
    machine.l2.read(
        "gradients",
        columns,
        rank_of[which],
        machine.l2.new_blocks(len(which)) + np.arange(len(which)),
        np.repeat(-(-read // count), count),
        drawn_bytes=np.repeat(-(-drawn // count), count),
    )
    return columns, rank_of[which]


def weight_gradients_beside(
    machine: Machine,
    work: LayerWork,
    pool: Pools,
    done: Ints,
    expert: Ints,
    *,
    priority: int,
    begun: Tasks | None = None,
) -> list[tuple[Ints, Ints]]:
    """Add both projections' weight gradients where SMs have nothing better to do.

    Parameters
    ----------
    done, expert
        (task,): what an expert's gradients wait for, and the expert.
    priority
        Order among other work on the same SMs; to be behind it, larger.
    begun
        (rank,): what they wait for besides.

    Returns
    -------
    Tasks and their ranks, two (task,), of each projection; nothing in a pass that makes none.
    """
    if not work.has_weight_gradients:
        return []
    rank_of = work.placement.expert_rank.astype(np.int64)
    complete = machine.join(done, expert, rank_of, None if begun is None else begun[rank_of])
    return [
        weight_gradient_tasks(machine, work, projection, pool, complete, priority=priority) for projection in (DOWN, UP)
    ]


def join(blocks: list[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """Tasks and ranks of several blocks as one: two (task,)."""
    nothing = np.zeros(0, np.int64)
    tasks, ranks = zip((nothing, nothing), *blocks, strict=True)
    return np.concatenate(tasks), np.concatenate(ranks)


def weight_gradient_kernels(machine: Machine, work: LayerWork, after: Tasks) -> Ints:
    """Run the weight gradients that a pass put off, a kernel each: (rank,) marks of their end."""
    pool = machine.sms.for_kernels()
    for one in (DOWN, UP):
        after = weight_gradient_kernel(machine, work, one, pool, after)
    return after


def weight_gradient_kernel(
    machine: Machine,
    work: LayerWork,
    projection: Projection,
    pool: Pools,
    after: Tasks,
    num_sms: int = 0,
) -> Ints:
    """Run the weight gradients of one projection as a kernel: (rank,) marks of its end."""
    begun = machine.kernel(after, WGRAD, kind=Kind.WGRAD)
    of_expert = begun[work.placement.expert_rank]
    tasks, rank = weight_gradient_tasks(machine, work, projection, pool, of_expert, num_sms=num_sms)
    return machine.gather(tasks, rank, begun)
