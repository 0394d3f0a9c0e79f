"""Shared experts beside the dispatch, for stacks that run them there.

Every rank has the shared experts and gives them its own tokens, whose rows need not travel. They
begin when the layer does. A scheme whose experts are kernels of their own runs the shared ones as
kernels of a second stream, on the SMs that its dispatch leaves; the routed experts' first kernel
wants all SMs and begins behind them. A scheme that fuses the layer takes their tiles for its own:
they share the kernel's SMs with the tiles of the rows that arrive.

Either way their operands and results go through the same HBM as everything else. Sources:
sgl-project/sglang (shared experts on a second stream while DeepEP's dispatch holds its SMs);
NVIDIA/Megatron-LM ``--moe-shared-expert-overlap``, which leaves the second GEMM until the combine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.experts import separate_kernels
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import TileTasks, gemm_tasks
from replay.model.compute.operands import WGMMA_TMA
from replay.model.compute.row_tiles import RowTiles, row_tiles
from replay.model.compute.weight_gradients import join, weight_gradients_beside
from replay.model.machine.kinds import Kind
from replay.model.machine.times import MemoryTraffic

if TYPE_CHECKING:
    from collections.abc import Callable

    from replay.model.arrays import Ints, Pools, Tasks
    from replay.model.compute.operands import OperandPath
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split
    from replay.model.work.layer import LayerWork

BF16 = 2  # bytes of a value before it is cast to FP8
PLACED = "rows of shared experts beside the dispatch"


def shared_kernels(machine: Machine, work: LayerWork, sms: Split, start: Tasks, after: Tasks) -> Tasks:
    """Run the shared experts as kernels beside the dispatch, if the layer has them there.

    Parameters
    ----------
    sms
        The SMs that the dispatch takes; the shared experts have those that are left, or run behind
        the dispatch if none is.
    start
        (rank,): start of the layer.
    after
        (rank,): what the routed experts wait for besides.

    Returns
    -------
    (rank,) tasks that the routed experts wait for.
    """
    if work.shared is None:
        return after
    left = sms.left
    begun = _cast(machine, work.shared, start if left else after)
    pool = sms.pool("sm-shared", left) if left else machine.sms.pool("sm", machine.sms.count)
    num_sms = left or machine.sms.count
    done = separate_kernels(machine, work.shared, pool, begun, num_sms=num_sms)
    return machine.gather(done, machine.ranks, after)


def shared_before_wait(machine: Machine, work: LayerWork, sms: Split, start: Tasks) -> Callable[[Ints], Ints]:
    """Launch the shared experts' kernels before the host waits for the dispatch's counts.

    Returns
    -------
    Turns what the routed experts wait for into what they wait for with these kernels; parameters
    and result of `shared_kernels`.
    """
    if work.shared is None or not sms.left:
        return lambda after: shared_kernels(machine, work, sms, start, after)
    done = shared_kernels(machine, work, sms, start, start)
    return lambda after: machine.gather(done, machine.ranks, after)


def shared_tiles(
    machine: Machine,
    work: LayerWork,
    pool: Pools,
    num_sms: int,
    begun: Tasks,
    *,
    tile_rows: int | None = None,
    tile_columns: int = 0,
    priority: int = 0,
    resident_blocks: int = 1,
    clusters: bool = True,
    path: OperandPath = WGMMA_TMA,
    hold: Callable[[RowTiles, TileTasks, Ints], object] | None = None,
) -> tuple[Ints, Ints]:
    """Run the shared experts as tiles of a fused kernel, if the layer has them beside the dispatch.

    Parameters
    ----------
    pool, num_sms
        (rank,): resource of the kernel's SMs that multiply, and how many they are.
    begun
        (rank,): the kernel has begun.
    tile_rows, tile_columns, resident_blocks, clusters, path
        Shape of a tile, where the kernel prescribes it, and how its blocks run: see `gemm_tasks`.
    priority
        Order among other work on the same SMs, smaller first.
    hold
        Called for each GEMM with its tiles, its tasks, and (tile,) what they wait for.

    Returns
    -------
    Tasks that the kernel ends with, and the rank of each: two (task,), empty if there are none.
    """
    shared = work.shared
    if shared is None:
        return join([])
    ready = _cast(machine, shared, begun)
    first, second = Gemm.first(shared, fused_activation=True), Gemm.second(shared)
    tiles = row_tiles(machine, shared, first, num_sms, tile_rows)
    if tile_columns:
        tiles.block_n[:] = tile_columns
    done, inputs = ready[tiles.rank], None
    order = np.full(len(tiles), priority, np.int64)
    for gemm in (first, second):
        tasks = gemm_tasks(
            machine,
            shared,
            gemm,
            tiles,
            pool,
            done,
            inputs=inputs,
            priority=order,
            resident_blocks=resident_blocks,
            clusters=clusters,
            routed=False,
            path=path,
        )
        if hold is not None:
            hold(tiles, tasks, done)
        done, inputs = tasks.done, tasks.outputs
    beside = weight_gradients_beside(machine, shared, pool, done, tiles.expert, priority=priority, begun=ready)
    return join([(done, tiles.rank), *beside])


def _cast(machine: Machine, shared: LayerWork, after: Tasks) -> Tasks:
    """Make the operand of the first GEMM: (rank,) tasks when it is there."""
    tokens = np.diff(shared.tokens_of_rank)
    machine.notes.count(PLACED, machine.ranks, tokens)
    if not shared.precision.has_scales:
        return after
    moved = MemoryTraffic(tokens * shared.shape.hidden * BF16, tokens * shared.operand_row_bytes)
    return machine.memory_kernel(Kind.CAST, moved, after)
