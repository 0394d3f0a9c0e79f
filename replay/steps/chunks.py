"""Layers of each chunk of a model.

A pipeline cuts a model into ``pp * vpp`` chunks of successive layers. The embedding stands before
the first chunk's layers and the output head behind the last one's. Layers for multi-token
prediction follow the decoder's layers and are numbered on from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.errors import UserError

if TYPE_CHECKING:
    from replay.steps.plan import ParallelPlan
    from tracegen.models import ModelShape


def chunks_of(shape: ModelShape, plan: ParallelPlan) -> list[range]:
    """Give the layers of every chunk, in the model's order.

    Layers and the output head, which counts as one more, are spread evenly, and what does not
    divide goes to the first chunks, one each. For 61 layers and one of multi-token prediction this
    gives what Megatron-Bridge's recipes of DeepSeek-V3 have on 4, 8 and 16 stages: 16 + 16 + 16 +
    13, 7 x 8 + 5, and 15 x 4 + 1 layers of the decoder. `ParallelPlan.layers` says it otherwise.

    Returns
    -------
    (pp * vpp,) layer numbers; those from ``shape.num_layers`` on are for multi-token prediction.
    The last one, which has the head, may have no layers, and where `ParallelPlan.layers` says so
    the first, which has the embedding.

    Raises
    ------
    UserError
        If there are not enough layers, or `ParallelPlan.layers` does not fit them.
    """
    chunks, layers = plan.pp * plan.vpp, shape.num_layers + plan.mtp
    counts = plan.layers or _evenly(layers, chunks)
    if len(counts) != chunks:
        message = f"plan: layers has {len(counts)} chunks; pp {plan.pp} x vpp {plan.vpp} = {chunks}"
        raise UserError(message)
    if sum(counts) != layers:
        behind = f" and {plan.mtp} of multi-token prediction" if plan.mtp else ""
        message = f"plan: layers gives {sum(counts)} to its chunks; {shape.name} has {shape.num_layers}{behind}"
        raise UserError(message)
    if not all(counts[1:-1]):
        message = (
            f"plan: pp {plan.pp} x vpp {plan.vpp} = {chunks} chunks, some without layers: "
            f"{shape.name} has {layers}, so at most {layers + 1} chunks"
        )
        raise UserError(message)
    starts = [sum(counts[:chunk]) for chunk in range(chunks)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]


def _evenly(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk, where the last one also has the head."""
    each, more = divmod(layers + 1, chunks)
    counts = [each + (chunk < more) for chunk in range(chunks)]
    counts[-1] -= 1
    return tuple(counts)
