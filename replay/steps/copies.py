"""Weights that several GPUs have: gradients added up once per step, update, weights handed out.

Each copy of the weights has met other tokens. Their gradients are added up in FP32 and scattered
(reduce-scatter), every GPU updates the part that it got, whose optimiser states it has alone, and
the new weights are gathered in BF16 (all-gather): Megatron-LM's distributed optimiser, ZeRO's
first stage (arXiv 1910.02054). What all GPUs of an attention group slice has ``dp * cp`` copies,
each `tp` GPUs from the next; routed experts have `ParallelPlan.expert_dp`, each `ep` from the next.
Both collectives follow one another, since they share the network cards.

The update is Adam's, bound by device memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from replay.model.machine.kinds import Kind
from replay.model.machine.machine import Machine, MemoryTraffic
from replay.steps.parameters import of_embedding, of_head, of_layer
from replay.steps.stretches import replay_stretch

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints
    from replay.model.collectives.algorithm import Collective
    from replay.steps.groups import GroupTimes
    from replay.steps.plan import ParallelPlan
    from replay.steps.times import Cause
    from tracegen import ModelShape

GRADIENT_BYTES = 4  # FP32, as they are added up over micro-batches
WEIGHT_BYTES = 2  # BF16
READ_BYTES = 4 + 4 + 4 + 8
"""Per parameter: gradient, for its norm and for the update, master weight, two moments, FP32."""
WRITTEN_BYTES = 4 + 8 + WEIGHT_BYTES
"""Per parameter: master weight, two moments, the weight itself."""


class ChunkParameters(NamedTuple):
    """Parameters of a GPU: those that attention groups have, and those of routed experts."""

    dense: int
    experts: int


def chunk_parameters(
    shape: ModelShape, plan: ParallelPlan, layers: range, *, first: bool, last: bool
) -> ChunkParameters:
    """Count the parameters of a chunk on a GPU.

    Parameters
    ----------
    layers
        Of the chunk.
    first, last
        Whether it has the embedding, and the output head.
    """
    counted = [of_layer(shape, number, plan.tp, plan.ep) for number in layers]
    dense = sum(one.without_experts for one in counted)
    dense += of_embedding(shape, plan.tp) if first else 0
    # A head that is tied to the embedding is one more copy of its gradients.
    tied = of_embedding(shape, plan.tp) if shape.tied_embeddings and not first else 0
    dense += of_head(shape, plan.tp) + tied if last else 0
    return ChunkParameters(dense, sum(one.experts for one in counted))


def synchronise_ps(groups: GroupTimes, plan: ParallelPlan, of: ChunkParameters) -> int:
    """Time in which gradients are added up over the copies of the weights."""
    return _over_copies(groups, plan, "reduce_scatter", of, GRADIENT_BYTES)


def update_ps(groups: GroupTimes, plan: ParallelPlan, of: ChunkParameters, launched_ps: int = 0) -> int:
    """Time in which the optimiser updates weights, and copies get them.

    Parameters
    ----------
    launched_ps
        Time in which a stack launches the kernels; bytes move meanwhile.
    """
    own = -(-of.dense // (plan.dp * plan.cp)) - (-of.experts // plan.expert_dp)
    return max(_adam_ps(groups.system, own), launched_ps) + hand_out_ps(groups, plan, of)


def hand_out_ps(groups: GroupTimes, plan: ParallelPlan, of: ChunkParameters) -> int:
    """Time in which copies get updated weights."""
    return _over_copies(groups, plan, "all_gather", of, WEIGHT_BYTES)


def _over_copies(groups: GroupTimes, plan: ParallelPlan, what: Collective, of: ChunkParameters, nbytes: int) -> int:
    dense = groups.collective_ps(what, of.dense * nbytes, plan.dp * plan.cp, plan.tp)
    return dense + groups.collective_ps(what, of.experts * nbytes, plan.expert_dp, plan.ep)


def _adam_ps(system: System, parameters: int) -> int:
    traffic = MemoryTraffic(READ_BYTES * parameters, WRITTEN_BYTES * parameters)

    def add(machine: Machine, after: Ints) -> dict[Cause, Ints]:
        return {"optimiser": machine.memory_kernel(Kind.BETWEEN, traffic, after)}

    return int(replay_stretch(system, 1, add).causes["optimiser"][0])
