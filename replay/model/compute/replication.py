"""Placement per step as tasks: loads, plan, weights of replicas, rerouted rows.

It lies between the gate and the scheme's own tasks, in the order of UltraEP's streams:

1. loads: a histogram of the GPU's expert ids, gathered on all GPUs (NVSHMEM's fcollect, one warp
   per peer, protocol LL), added up;
2. plan: every GPU solves the same plan in one thread block;
3. weights: a kernel lists what is copied; a persistent kernel on all SMs then reads tiles of
   weights and stores each to every replica, while a second one on the same SMs passes on what
   reached a relay, chunk by chunk;
4. beside the weights, the expert ids are replaced by slots.

A backward pass remembers the plan and the rows; it copies the weights again, since all layers share
the slots, and ends with `replay.model.compute.gradient_reduction`.

A GPU goes on when its own copies are done, the weights of its slots have arrived and its rows are
rerouted. No kernel waits for a host, so that a CUDA graph can hold all of it. MoonEP has one kernel
for all of 1, 2 and 4, which plans on GPU 0, and a prefetch that ends with a barrier.

Sources: Dots-Infra/UltraEP, ``csrc/ultra_ep.cpp`` (`update_placement_sparse`, `weight_sync`,
`reroute_sparse`), ``csrc/kernels``, ``docs/blog_v1.md`` (what is exposed and what is beside what);
MoonEP, ``moonep/planning.py`` and ``moonep/prefetch.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.errors import UserError
from replay.model.compute.gradient_reduction import gradient_bytes
from replay.model.compute.weight_copies import (
    CHUNK_BYTES,
    FLAG_BYTES,
    copy_weights,
    expert_bytes,
)
from replay.model.machine.host import Operation
from replay.model.machine.kinds import WEIGHTS, Kind
from replay.model.machine.times import MemoryTraffic, Time

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Bytes, Ints, Ranks, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.model.work.step_plan import StepPlan

ID_BYTES, COUNT_BYTES = 8, 4
LL_FACTOR = 2  # protocol LL stores a flag of four bytes with every four bytes of data
TABLES = 6  # p2l, l2p, counts, quotas, their sums, their sums for this GPU: cleared before a plan

# Latencies of an H100 at 1.755 GHz, recalled from published microbenchmarks: 23 cycles for a
# shuffle, 29 for a load from shared memory, 4 for an instruction that waits for the one before.
SHUFFLE_NS = 20  # and three instructions that compare or add
SHARED_NS = 17
DIVISION_NS = 40  # of 32 bits, some 18 instructions
LONG_DIVISION_NS = 100  # of 64 bits
PLAN_THREADS, LANES = 128, 32
SEARCH_SHUFFLES = 12  # sum of the GPUs that could, the roomiest of them, its room, its rows

MOONEP_SMS = 32  # num_sms of its Buffer
MOONEP_GRID_BARRIERS = 10
MOONEP_ROUND_SHUFFLES = 4  # largest and smallest of a register each, found by redux


def memory(work: LayerWork, system: System) -> dict[str, Ints]:
    """Device memory for replicas, in slots that all layers share; nothing where none are planned.

    A backward pass has their FP32 gradients besides.

    Returns
    -------
    By what lies in it, (rank,) bytes on each GPU.
    """
    plan = work.step_plan
    if plan is None:
        return {}
    one, n, num_experts = np.ones(work.num_ranks, np.int64), work.num_ranks, plan.num_experts
    matrices = expert_bytes(work, system)
    slots = plan.replica_slots * sum(matrices)
    flags = plan.replica_slots * len(matrices) * -(-max(matrices) // CHUNK_BYTES) * FLAG_BYTES
    tables = COUNT_BYTES * (work.num_experts + num_experts + 4 * num_experts * n)
    loads = COUNT_BYTES * num_experts * (n + 2)
    found = {"weights of replicas": slots * one}
    if work.is_backward:
        found["gradients of replicas"] = plan.replica_slots * sum(gradient_bytes(work)) * one
    return {**found, "flags, plans and loads": (flags + tables + loads) * one}


def replicate(machine: Machine, work: LayerWork, start: Tasks) -> Tasks:
    """Place experts for the rows of a layer: (rank,) tasks; `start` where nothing is planned.

    Parameters
    ----------
    start
        (rank,): the gate has chosen the experts of each rank's tokens.

    Raises
    ------
    UserError
        If the GPUs are in several NVLink domains, between which no weights are copied.
    """
    plan = work.step_plan
    if plan is None:
        return start
    if machine.num_domains > 1:
        message = (
            f"placement {plan.placement.description!r}: weights are copied within an NVLink "
            f"domain, and the GPUs are in {machine.num_domains}"
        )
        raise UserError(message)
    reached = np.array([one.dst for one in plan.copies], np.int64)
    machine.notes.count("replicas planned", reached)
    if plan.planner == "moonep":
        planned = start if work.is_backward else _planned_by_moonep(machine, work, plan, start)
        begun = machine.kernel(planned, "weight prefetch")
        copied = copy_weights(machine, work, plan.copies, begun, begun, num_sms=MOONEP_SMS)
        return machine.sync.barrier(WEIGHTS, copied, stored="each")
    planned = start if work.is_backward else _plan(machine, work, plan, start)
    listed = _small(machine, 0, planned, "copy list")
    listed = _small(machine, 0, listed, "copy counters", 2)
    begun = machine.kernel(listed, "weight copies")
    relaying = machine.kernel(listed, "weight relays") if machine.num_ranks > 2 else begun
    copied = copy_weights(machine, work, plan.copies, begun, relaying)
    if work.is_backward:
        return copied
    return machine.gather(_reroute(machine, work, planned), machine.ranks, copied)


# ---- plan ----------------------------------------------------------------------------------------


def _plan(machine: Machine, work: LayerWork, plan: StepPlan, start: Tasks) -> Tasks:
    """Gather the loads of all experts and solve the plan: (rank,) tasks."""
    num_experts, n = plan.num_experts, machine.num_ranks
    cleared = _small(machine, COUNT_BYTES * num_experts, start, "loads cleared")
    counted = _small(machine, _ids(work), cleared, "loads counted")
    copied = _small(machine, 2 * COUNT_BYTES * num_experts, counted, "loads copied")
    begun = machine.kernel(copied, "loads gathered")
    sent = LL_FACTOR * COUNT_BYTES * num_experts
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    gathered = _tell(machine, src, dst, sent, begun)
    summed = _small(machine, COUNT_BYTES * num_experts * (n + 1), gathered, "loads added up")
    tables = COUNT_BYTES * (work.num_experts + num_experts + 4 * num_experts * n)
    cleared = _small(machine, tables, summed, "plan cleared", TABLES)
    begun = machine.kernel(cleared, "plan")
    return machine.delay(Kind.PLAN, _solving(machine, plan), begun)


def _solving(machine: Machine, plan: StepPlan) -> Time:
    """Time of the thread block that solves a plan, by what it does one after the other."""
    effort, ns = plan.effort, machine.costs.ns
    local, each = plan.num_experts // plan.num_ranks, -(-plan.num_experts // PLAN_THREADS)
    replicas = [len(slots) for slots in plan.slots_of_expert]
    num_copies, most = sum(replicas) - plan.num_experts, max(replicas, default=0)
    begin = 2 * each * machine.costs.cache_load() + ns(SHARED_NS * (local + 2 * effort.moves))
    # An attempt clears what it knows of every expert and GPU, a lane at a time.
    clearing = -(-plan.num_experts // LANES) + -(-plan.num_ranks // LANES)
    search = SEARCH_SHUFFLES * SHUFFLE_NS + DIVISION_NS
    searching = ns(effort.attempts * clearing * SHARED_NS + effort.visits * 2 * SHARED_NS + effort.searches * search)
    # One thread gives out slots; then a thread for each expert divides its rows.
    giving = ns(num_copies * 4 * SHARED_NS)
    dividing = 2 * most * machine.costs.cache_load() + ns(2 * most * LONG_DIVISION_NS)
    return begin + searching + giving + each * dividing


def _planned_by_moonep(machine: Machine, work: LayerWork, plan: StepPlan, start: Tasks) -> Tasks:
    """Plan on GPU 0, and find every row's place: (rank,) tasks."""
    begun, n, costs = machine.kernel(start, "plan"), machine.num_ranks, machine.costs
    rank = machine.ranks[1:]
    zero = np.zeros_like(rank)
    told = _tell(machine, rank, zero, COUNT_BYTES * plan.num_experts, begun)
    met = machine.sync.barrier(WEIGHTS, told, stored="each")
    rounds = costs.ns(plan.rounds * MOONEP_ROUND_SHUFFLES * SHUFFLE_NS)
    solved = machine.delay(Kind.PLAN, rounds + MOONEP_GRID_BARRIERS * costs.grid_barrier(), met)
    nbytes = COUNT_BYTES * (3 * plan.num_experts * n + 4 * n * work.num_experts)
    told = _tell(machine, zero, rank, nbytes, solved)
    met = machine.sync.barrier(WEIGHTS, told, stored="each")
    # Sorted by expert, twice read, and its place written.
    moved = MemoryTraffic(2 * _ids(work), _ids(work))
    return machine.stream(Kind.PLAN, moved, machine.ranks, met)


def _reroute(machine: Machine, work: LayerWork, planned: Ints) -> Tasks:
    """Replace expert ids by slots in place: (rank,) tasks."""
    num_experts = work.step_plan.num_experts if work.step_plan else 0
    cleared = _small(machine, COUNT_BYTES * num_experts, planned, "reroute cleared")
    return _small(machine, 2 * _ids(work), cleared, "reroute")


def _ids(work: LayerWork) -> Ints:
    """(rank,): bytes of the expert ids of a GPU's tokens."""
    ids: Ints = np.diff(work.tokens_of_rank) * work.expert_ids.shape[1] * ID_BYTES
    return ids


def _small(machine: Machine, nbytes: Bytes | int, after: Tasks, name: str, count: int = 1) -> Ints:
    return machine.small_kernels(Kind.PLAN, nbytes, after, Operation(name, count))


def _tell(machine: Machine, src: Ranks, dst: Ranks, nbytes: int, after: Tasks) -> Tasks:
    """Store a few bytes into other GPUs, which poll for them: (rank,) tasks."""
    kinds = (Kind.LOADS_UP, Kind.LOADS_DOWN)
    arrived = machine.sync.flag(src, dst, nbytes, after[src], stored="nothing", kinds=kinds)
    return machine.gather(arrived, dst, after)
