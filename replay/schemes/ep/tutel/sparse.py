"""Tutel's kernels around its all-to-alls: locations, encoding and decoding.

Rows lie in a buffer with the same room for each (expert, source rank). It is filled, and read, by a
kernel for each of a token's experts in turn, in FP32 whatever the model's type: casts stand before
and behind. What PyTorch launches for the one-hot masks and for the places of rows is listed as its
code has it; the gate's own kernels (scores, losses, weights) are left out, as for every scheme.

Sources: microsoft/tutel ``tutel/impls/fast_dispatch.py`` (``extract_critical``, ``GatingEncoder``,
``GatingDecoder``, ``TutelMoeFastDispatcher``), ``tutel/jit_kernels/gating.py`` and ``sparse.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.kinds import Kind
from replay.model.machine.times import MemoryTraffic
from replay.schemes.ep.software import Listed, Outline

if TYPE_CHECKING:
    from replay.model.machine.machine import Ints, Machine
    from replay.model.work.capacity import Carried
    from replay.model.work.layer import LayerWork

ID, INT, WIDE = 4, 4, 8  # bytes: int32, FP32 or int32 in a buffer, int64
FP32 = 4
MASKS = Listed("one-hot masks", moves="an int64 for each (token, expert) and choice")
LOCATIONS = Listed("locations", moves="masks cast, summed up, multiplied and reduced")
INDICES = Listed("indices", moves="ids of experts")
LARGEST = Listed("largest location", 3, "a 4-byte location for each (token, choice)")
TOKENS_FP32, ZEROES, ENCODE = "tokens in FP32", "zeroes", "encode"
BUFFER_CAST, GATE_GRADIENTS = "buffer as it travels", "gradients of gate weights"
BUFFER_FP32, DECODE, SUMS, SUMS_CAST = "buffer in FP32", "decode", "sums", "sums as tokens are"


def location_kernels(top_k: int) -> int:
    """Kernels that count places: cast, running sum, product, sum and cast for each choice.

    From the second choice on, a sum of the masks before and its addition come on top, from the
    third on the sum of sums.
    """
    return sum(5 + (2 if choice else 0) + (choice > 1) for choice in range(top_k))


def location_bytes(top_k: int) -> int:
    """Bytes of those kernels for each (token, expert)."""
    each = (WIDE + INT) + 2 * INT + (INT + 2 * WIDE) + WIDE  # cast, running sum, product, sum
    return top_k * each + (top_k - 1) * (WIDE + 2 * INT)


def locate(machine: Machine, work: LayerWork, after: Ints) -> Ints:
    """Count the place of every row among those of its rank for its expert: (rank,) tasks."""
    tokens, top_k = np.diff(work.tokens_of_rank), work.expert_ids.shape[1]
    flags = tokens * work.num_experts
    done = after
    for listed, nbytes in (
        (replace(MASKS, launches=2 * top_k), top_k * (flags + 2 * tokens) * WIDE),
        (replace(LOCATIONS, launches=location_kernels(top_k)), flags * location_bytes(top_k)),
        (replace(INDICES, launches=top_k), top_k * tokens * (WIDE + ID)),
    ):
        done = machine.small_kernels(Kind.LAYOUT, nbytes, done, listed.name, listed.launches)
    return done


def located(layer: Outline) -> tuple[Listed, ...]:
    """Kernels of `locate`."""
    k = layer.top_k
    return (
        replace(MASKS, launches=2 * k),
        replace(LOCATIONS, launches=location_kernels(k)),
        replace(INDICES, launches=k),
    )


def encode(machine: Machine, work: LayerWork, carried: Carried, after: Ints) -> Ints:
    """Put the rows of tokens into the buffer: (rank,) tasks.

    Backward, these are the gradients of results, and the gradients of gate weights are made of
    them and of the results that the forward pass has kept.
    """
    tokens, top_k = np.diff(work.tokens_of_rank), work.expert_ids.shape[1]
    row, buffer, kept = FP32 * work.shape.hidden, _buffer_rows(carried), _kept(work, carried)
    moved = {
        TOKENS_FP32: MemoryTraffic(tokens * work.token_row_bytes, tokens * row),
        ZEROES: MemoryTraffic(0 * buffer, buffer * row),
        ENCODE: MemoryTraffic(kept * row, kept * row, kept),
        BUFFER_CAST: MemoryTraffic(buffer * row, buffer * work.dispatch_row_bytes),
        GATE_GRADIENTS: MemoryTraffic((top_k * tokens + kept) * row, top_k * tokens * FP32),
    }
    return _run(machine, Kind.PERMUTE, encoded(Outline.of(work)), moved, after)


def encoded(layer: Outline) -> tuple[Listed, ...]:
    """Kernels of `encode`."""
    listed = [Listed(ZEROES), Listed(ENCODE, layer.top_k, "a row for each choice")]
    if layer.precision.dispatch != "fp32":
        listed = [Listed(TOKENS_FP32), *listed, Listed(BUFFER_CAST)]
    if layer.is_backward:
        listed.append(Listed(GATE_GRADIENTS, layer.top_k, "gradients and results of each choice"))
    return tuple(listed)


def decode(machine: Machine, work: LayerWork, carried: Carried, after: Ints) -> Ints:
    """Add the weighted results of every token up: (rank,) tasks."""
    tokens, top_k = np.diff(work.tokens_of_rank), work.expert_ids.shape[1]
    row, buffer, kept = FP32 * work.shape.hidden, _buffer_rows(carried), _kept(work, carried)
    sums = (top_k - 1) * tokens * row
    moved = {
        BUFFER_FP32: MemoryTraffic(buffer * work.combine_row_bytes, buffer * row),
        DECODE: MemoryTraffic(kept * row, top_k * tokens * row),
        SUMS: MemoryTraffic(2 * sums, sums),
        SUMS_CAST: MemoryTraffic(tokens * row, tokens * work.result_row_bytes),
    }
    return _run(machine, Kind.UNPERMUTE, decoded(Outline.of(work)), moved, after)


def decoded(layer: Outline) -> tuple[Listed, ...]:
    """Kernels of `decode`."""
    listed = [Listed(DECODE, layer.top_k, "a row for each choice")]
    if layer.top_k > 1:
        listed.append(Listed(SUMS, layer.top_k - 1, "sums so far, the next choice"))
    if layer.precision.combine != "fp32":
        listed = [Listed(BUFFER_FP32), *listed, Listed(SUMS_CAST)]
    return tuple(listed)


def _run(
    machine: Machine,
    kind: Kind,
    listed: tuple[Listed, ...],
    moved: dict[str, MemoryTraffic],
    after: Ints,
) -> Ints:
    """Run kernels as they are listed: (rank,) tasks."""
    for one in listed:
        after = machine.small_kernels(kind, moved[one.name], after, one.name, one.launches)
    return after


def _buffer_rows(carried: Carried) -> Ints:
    """(rank,): rows of the buffer of a rank's tokens."""
    rows: Ints = carried.work.matrix("pairs").sum(axis=1)
    return rows


def _kept(work: LayerWork, carried: Carried) -> Ints:
    """(rank,): rows of a rank's tokens in it."""
    owned: Ints = work.matrix("pairs").sum(axis=1)
    kept: Ints = owned - carried.dropped(work)
    return kept
