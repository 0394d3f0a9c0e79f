"""Tutel's kernels around its all-to-alls: locations, encoding and decoding.

Rows lie in a buffer with the same room for each (expert, source rank). It is filled, and read, by a
kernel for each of a token's experts in turn, in FP32 whatever the model's type: casts stand before
and behind. What PyTorch launches for the one-hot masks and for the places of rows is listed as its
code has it; the gate's own kernels (scores, losses, weights) are left out, as for every scheme.

Sources: microsoft/tutel ``tutel/impls/fast_dispatch.py`` (``extract_critical``, ``GatingEncoder``,
``GatingDecoder``, ``TutelMoeFastDispatcher``), ``tutel/jit_kernels/gating.py`` and ``sparse.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.host import Operation
from replay.model.machine.kinds import Kind
from replay.model.machine.times import MemoryTraffic

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.capacity import CarriedLayer
    from replay.model.work.layer import LayerWork

ID, INT, WIDE = 4, 4, 8  # bytes: int32, FP32 or int32 in a buffer, int64
FP32 = 4
MASKS = Operation("one-hot masks", moves="an int64 for each (token, expert) and choice")
LOCATIONS = Operation("locations", moves="masks cast, summed up, multiplied and reduced")
INDICES = Operation("indices", moves="ids of experts")
LARGEST = Operation("largest location", 3, "a 4-byte location for each (token, choice)")
GATE_GRADIENTS = Operation("gradients of gate weights", moves="gradients and results of each choice")
SUMS = Operation("sums", moves="sums so far, the next choice")


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


def locate(machine: Machine, work: LayerWork, after: Tasks) -> Tasks:
    """Count the place of every row among those of its rank for its expert: (rank,) tasks."""
    tokens, top_k = np.diff(work.tokens_of_rank), work.expert_ids.shape[1]
    flags = tokens * work.num_experts
    done = after
    for what, nbytes in (
        (MASKS._replace(launches=2 * top_k), top_k * (flags + 2 * tokens) * WIDE),
        (LOCATIONS._replace(launches=location_kernels(top_k)), flags * location_bytes(top_k)),
        (INDICES._replace(launches=top_k), top_k * tokens * (WIDE + ID)),
    ):
        done = machine.small_kernels(Kind.LAYOUT, nbytes, done, what)
    return done


def encode(machine: Machine, work: LayerWork, carried: CarriedLayer, after: Tasks) -> Tasks:
    """Put the rows of tokens into the buffer: (rank,) tasks.

    Backward, these are the gradients of results, and the gradients of gate weights are made of
    them and of the results that the forward pass has kept.
    """
    tokens, top_k = np.diff(work.tokens_of_rank), work.expert_ids.shape[1]
    row, buffer, kept = FP32 * work.shape.hidden, _buffer_rows(carried), _rows_kept(work, carried)
    fp32 = MemoryTraffic(tokens * work.token_row_bytes, tokens * row)
    encoded = MemoryTraffic(kept * row, kept * row, kept)
    travels = MemoryTraffic(buffer * row, buffer * work.dispatch_row_bytes)
    gradients = MemoryTraffic((top_k * tokens + kept) * row, top_k * tokens * FP32)
    casts = work.precision.dispatch != "fp32"
    for is_there, what, moved in (
        (casts, Operation("tokens in FP32"), fp32),
        (True, Operation("zeroes"), MemoryTraffic(0 * buffer, buffer * row)),
        (True, Operation("encode", top_k, "a row for each choice"), encoded),
        (casts, Operation("buffer as it travels"), travels),
        (work.is_backward, GATE_GRADIENTS._replace(launches=top_k), gradients),
    ):
        if is_there:
            after = machine.small_kernels(Kind.PERMUTE, moved, after, what)
    return after


def decode(machine: Machine, work: LayerWork, carried: CarriedLayer, after: Tasks) -> Tasks:
    """Add the weighted results of every token up: (rank,) tasks."""
    tokens, top_k = np.diff(work.tokens_of_rank), work.expert_ids.shape[1]
    row, buffer, kept = FP32 * work.shape.hidden, _buffer_rows(carried), _rows_kept(work, carried)
    sums = (top_k - 1) * tokens * row
    fp32 = MemoryTraffic(buffer * work.combine_row_bytes, buffer * row)
    decoded = MemoryTraffic(kept * row, top_k * tokens * row)
    results = MemoryTraffic(tokens * row, tokens * work.result_row_bytes)
    casts = work.precision.combine != "fp32"
    for is_there, what, moved in (
        (casts, Operation("buffer in FP32"), fp32),
        (True, Operation("decode", top_k, "a row for each choice"), decoded),
        (top_k > 1, SUMS._replace(launches=top_k - 1), MemoryTraffic(2 * sums, sums)),
        (casts, Operation("sums as tokens are"), results),
    ):
        if is_there:
            after = machine.small_kernels(Kind.UNPERMUTE, moved, after, what)
    return after


def _buffer_rows(carried: CarriedLayer) -> Ints:
    """(rank,): rows of the buffer of a rank's tokens."""
    rows: Counts = carried.work.matrix("pairs").sum(axis=1)
    return rows


def _rows_kept(work: LayerWork, carried: CarriedLayer) -> Ints:
    """(rank,): rows of a rank's tokens in it."""
    owned: Ints = work.matrix("pairs").sum(axis=1)
    kept: Ints = owned - carried.dropped_pairs(work)
    return kept
