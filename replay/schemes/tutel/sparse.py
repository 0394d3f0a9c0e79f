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

from replay.machine.kinds import Kind
from replay.machine.times import MemoryTraffic
from replay.schemes.software import Listed, Outline

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine
    from replay.work.capacity import Carried
    from replay.work.layer import LayerWork

ID, INT, WIDE = 4, 4, 8  # bytes: int32, FP32 or int32 in a buffer, int64
FP32 = 4
MASKS = Listed("one-hot masks", moves="an int64 for each (token, expert) and choice")
LOCATIONS = Listed("locations", moves="masks cast, summed up, multiplied and reduced")
INDICES = Listed("indices", moves="ids of experts")
LARGEST = Listed("largest location", 3, "a 4-byte location for each (token, choice)")
ENCODE, DECODE = "encode", "decode"
GATE_GRADIENTS = "gradients of gate weights"


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
    tokens, hidden = np.diff(work.tokens_of_rank), work.shape.hidden
    row, buffer, kept = FP32 * hidden, _buffer_rows(carried), _kept(work, carried)
    top_k, casts = work.expert_ids.shape[1], work.dispatch_row_bytes != row
    steps = [(0 * buffer, buffer * row, 0 * buffer, 1), (kept * row, kept * row, kept, top_k)]
    if casts:
        steps.insert(0, (tokens * work.token_row_bytes, tokens * row, 0 * tokens, 1))
        steps.append((buffer * row, buffer * work.dispatch_row_bytes, 0 * buffer, 1))
    done = after
    for read, written, rows, count in steps:
        moved = MemoryTraffic(read, written, rows)
        done = machine.small_kernels(Kind.PERMUTE, moved, done, ENCODE, count)
    if work.is_backward:
        moved = MemoryTraffic(top_k * tokens * row + kept * row, top_k * tokens * FP32)
        done = machine.small_kernels(Kind.PERMUTE, moved, done, GATE_GRADIENTS, top_k)
    return done


def encoded(layer: Outline) -> tuple[Listed, ...]:
    """Kernels of `encode`."""
    casts = 0 if layer.precision.dispatch == "fp32" else 2
    listed = (Listed(ENCODE, 1 + layer.top_k + casts, "tokens, the buffer and its zeroes in FP32"),)
    gradients = (Listed(GATE_GRADIENTS, layer.top_k, "gradients and results of each choice"),)
    return listed + (gradients if layer.is_backward else ())


def decode(machine: Machine, work: LayerWork, carried: Carried, after: Ints) -> Ints:
    """Add the weighted results of every token up: (rank,) tasks."""
    tokens, hidden = np.diff(work.tokens_of_rank), work.shape.hidden
    row, buffer, kept = FP32 * hidden, _buffer_rows(carried), _kept(work, carried)
    top_k = work.expert_ids.shape[1]
    steps = [(kept * row, top_k * tokens * row, top_k)]
    if top_k > 1:
        steps.append((2 * (top_k - 1) * tokens * row, (top_k - 1) * tokens * row, top_k - 1))
    if work.combine_row_bytes != row:
        steps.insert(0, (buffer * work.combine_row_bytes, buffer * row, 1))
    if work.result_row_bytes != row:
        steps.append((tokens * row, tokens * work.result_row_bytes, 1))
    done = after
    for read, written, count in steps:
        moved = MemoryTraffic(read, written)
        done = machine.small_kernels(Kind.UNPERMUTE, moved, done, DECODE, count)
    return done


def decoded(layer: Outline) -> tuple[Listed, ...]:
    """Kernels of `decode`."""
    casts = 0 if layer.precision.combine == "fp32" else 2
    return (Listed(DECODE, 2 * layer.top_k - 1 + casts, "the buffer, a row for each choice, sums"),)


def _buffer_rows(carried: Carried) -> Ints:
    """(rank,): rows of the buffer of a rank's tokens."""
    return carried.work.matrix("pairs").sum(axis=1)


def _kept(work: LayerWork, carried: Carried) -> Ints:
    """(rank,): rows of a rank's tokens in it."""
    owned: Ints = work.matrix("pairs").sum(axis=1)
    kept: Ints = owned - carried.dropped(work)
    return kept
