"""Weight gradients of replicas, added to those of the expert's home after the backward pass.

A persistent kernel on the home loads tiles of FP32 gradients out of the replicas' slots, adds them
to its own by atomics in device memory, and clears the slots, which the next layer uses too: UltraEP
by stores from the home, MoonEP on the GPU that has the slot. UltraEP runs the kernel on 24 SMs
beside the backward pass of attention and router. Here it is behind the layer, since nothing else
here shares SMs with it: what it adds to a chain of layers is an upper limit.

Sources: Dots-Infra/UltraEP, ``csrc/kernels/grad_reduce.cu`` (the default, which adds by atomics),
``ultra_ep/config.py``; MoonEP, README (`reduce_grad`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.gemm import Gemm
from replay.model.compute.weight_gradients import ACCUMULATOR_BYTES
from replay.model.machine.kinds import WEIGHTS, Kind
from replay.model.machine.times import MemoryTraffic

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

TILE_BYTES = 64 * 1024  # kGradReduceTileSizeBytes
NUM_SMS = {"ultraep": 24, "moonep": 32}  # ULTRA_EP_GRAD_REDUCE_NUM_SMS; num_sms of MoonEP's Buffer


def gradient_bytes(work: LayerWork) -> tuple[int, ...]:
    """Bytes of the FP32 gradient of each matrix of an expert."""
    return tuple(ACCUMULATOR_BYTES * gemm.n * gemm.k for gemm in Gemm.of_matrices(work))


def reduce_gradients(machine: Machine, work: LayerWork, ends: Ints) -> Tasks:
    """Add the gradients of replicas to those at home: (rank,) tasks.

    Parameters
    ----------
    ends
        (rank,): the backward pass of the layer; given back where no replica was planned for it.
    """
    plan = work.step_plan
    if plan is None or not work.is_backward:
        return ends
    if plan.planner == "moonep":
        begun = machine.kernel(machine.sync.barrier(WEIGHTS, ends, stored="nothing"), "gradient reduction")
    else:
        listed = machine.small_kernels(Kind.PLAN, 0, ends, "gradient list")
        listed = machine.small_kernels(Kind.PLAN, 0, listed, "gradient counter")
        begun = machine.kernel(listed, "gradient reduction")
    if not plan.copies:
        return begun
    homes = plan.placement.expert_rank[plan.homes]
    tiles = [_tiles(nbytes) for nbytes in gradient_bytes(work)]
    size = np.tile(np.concatenate(tiles), len(plan.copies))
    per_copy = len(size) // len(plan.copies)
    home = np.repeat([int(homes[one.expert]) for one in plan.copies], per_copy).astype(np.int64)
    slot = np.repeat([one.dst for one in plan.copies], per_copy).astype(np.int64)
    return _reduce(machine, home, slot, size, begun, ends, plan.planner)


def _tiles(nbytes: int) -> Ints:
    begins = np.arange(0, nbytes, TILE_BYTES)
    return np.minimum(TILE_BYTES, nbytes - begins).astype(np.int64)


def _reduce(machine: Machine, home: Ints, slot: Ints, size: Ints, begun: Tasks, ends: Ints, planner: str) -> Tasks:
    """Load, add and clear tiles of GPUs `slot` for GPUs `home` (tile,): (rank,) tasks."""
    pool = machine.sms.pool("gradient reduction", NUM_SMS[planner])
    # The replica's gradients are complete: an exchange of the layer lies behind them.
    ready = machine.mark(home, begun[home])
    machine.order(ends[slot], ready)
    clears = planner == "ultraep"
    time = machine.costs.sm_load(size)
    if clears:
        time += machine.costs.sm_store(size)
    taken = machine.serve(pool[home], time, kind=WEIGHTS.send, rank=home, after=ready)
    read = machine.stream(WEIGHTS.memory, size, slot, taken)
    loaded = machine.transfers.load(WEIGHTS, home, slot, size, read).arrived
    added = machine.stream(WEIGHTS.memory, MemoryTraffic(size, size), home, loaded)
    cleared = added
    if clears:
        cleared = machine.transfers.store(WEIGHTS, home, slot, 0, added, meta_bytes=size).arrived
    written = machine.stream(WEIGHTS.memory, MemoryTraffic(0, size), slot, cleared)
    return machine.gather(written, slot, machine.gather(cleared, home, begun))
