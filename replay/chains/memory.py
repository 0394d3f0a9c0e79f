"""Device memory of a layer: buffers, tokens, weights, and whether a GPU has room for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from replay.measure.parts import BufferBytes, Memory, Room
from replay.model.compute import replication
from replay.schemes.ep import memory
from replay.schemes.ep.facts import Buffer

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.work.layer import LayerWork
    from replay.schemes import Scheme


def memory_of(work: LayerWork, system: System, scheme: Scheme) -> Memory:
    """Count the memory of one layer, every buffer as if it were there until the layer ends."""
    shape, types, compute = work.shape, work.precision, system.compute
    planned = replication.memory(work, system).items()
    slots = (Buffer(name, nbytes, stays=True) for name, nbytes in planned)
    buffers = (*scheme.buffers(work, system), *scheme.intermediates(work), *slots)
    each = compute.weight_bytes(shape.gemm1_columns, shape.hidden, types.operands)
    each += compute.weight_bytes(shape.hidden, shape.intermediate, types.operands)
    experts = np.array([len(local) for local in work.experts_of_rank], np.int64)
    if work.step_plan is not None:  # whose slots for replicas all layers share
        experts -= work.step_plan.replica_slots
    weights, tokens = experts * each, memory.tokens(work)
    tokens = tokens * (work.token_row_bytes + work.result_row_bytes)
    total = sum((one.nbytes for one in buffers), weights + tokens)
    return Memory(
        buffers=[
            BufferBytes(name=one.name, bytes=one.nbytes.tolist(), stays=one.stays, source=one.source) for one in buffers
        ],
        token_bytes=tokens.tolist(),
        weight_bytes=weights.tolist(),
        total_bytes=total.tolist(),
    )


def beside(first: Memory, second: Memory) -> Memory:
    """Memory of two micro-batches of a layer, which share the weights and what stays."""
    mine, other = ({one.name: one for one in of.buffers} for of in (first, second))
    buffers = []
    for name in dict.fromkeys((*mine, *other)):
        one, two = mine.get(name), other.get(name)
        if one is None or two is None:
            kept = one or two
            assert kept is not None
            buffers.append(kept)
            continue
        join = max if one.stays else int.__add__
        nbytes = [join(a, b) for a, b in zip(one.bytes, two.bytes, strict=True)]
        buffers.append(one.model_copy(update={"bytes": nbytes}))
    tokens = [a + b for a, b in zip(first.token_bytes, second.token_bytes, strict=True)]
    rest = (one.bytes for one in buffers)
    return Memory(
        buffers=buffers,
        token_bytes=tokens,
        weight_bytes=first.weight_bytes,
        total_bytes=[sum(each) for each in zip(tokens, first.weight_bytes, *rest, strict=True)],
    )


def largest(found: Iterable[Memory]) -> Memory:
    """Memory of the layer in which some GPU needs most, the first of several."""
    return max(found, key=lambda one: max(one.total_bytes))


def room(found: Iterable[Memory], system: System, num_layers: int) -> Room:
    """Compare what GPUs need, with the weights of so many MoE layers, with what they have."""
    needed = (
        total + (num_layers - 1) * weights
        for one in found
        for total, weights in zip(one.total_bytes, one.weight_bytes, strict=True)
    )
    return Room(capacity_bytes=system.hbm.num_bytes, num_layers=num_layers, needed_bytes=max(needed))
