"""Device memory that a layer takes under any scheme: what stands beside its GEMMs, and casts.

Buffers of a layer are counted as if each were there until the layer ends. A framework that frees
some of them earlier, or puts two in one place, gets by with less. Copies of scales are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.weight_gradients import ACCUMULATOR_BYTES
from replay.schemes.ep.facts import Buffer

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints
    from replay.model.work.layer import LayerWork


def received_rows(work: LayerWork) -> Ints:
    """(rank,): rows that are routed to the experts of each GPU, its own tokens' included."""
    rows: Counts = work.matrix("pairs").sum(axis=0)
    return rows


def returned_rows(work: LayerWork) -> Ints:
    """(rank,): rows that the experts send back for each GPU's tokens, its own experts' included."""
    rows: Counts = work.matrix("pairs").sum(axis=1)
    return rows


def tokens(work: LayerWork) -> Ints:
    """(rank,): tokens of each GPU."""
    return np.diff(work.tokens_of_rank)


def on_each(work: LayerWork, nbytes: int) -> Ints:
    """(rank,): the same number of bytes on each GPU."""
    return np.full(work.num_ranks, nbytes, np.int64)


def expert_weights(work: LayerWork) -> Ints:
    """(rank,): values of the weights of each GPU's experts in this layer."""
    experts = np.array([len(local) for local in work.experts_of_rank], np.int64)
    each: Ints = experts * work.shape.hidden * (work.shape.gemm1_columns + work.shape.intermediate)
    return each


def cast_tokens(work: LayerWork) -> tuple[Buffer, ...]:
    """Buffers of a kernel that casts a GPU's tokens before they travel; empty where it casts none."""
    if not work.precision.casts_tokens:
        return ()
    return (Buffer("cast tokens", tokens(work) * work.dispatch_row_bytes),)


def cast_received(work: LayerWork, rows: Counts) -> tuple[Buffer, ...]:
    """Buffers made of received (rank,) rows for the GEMMs; empty where they read them as such."""
    if not work.precision.casts_dispatched:
        return ()
    return (Buffer("cast rows", rows * work.operand_row_bytes),)


def cast_results(work: LayerWork, rows: Counts) -> tuple[Buffer, ...]:
    """Buffers of a kernel that casts (rank,) results before they travel; empty where it casts none."""
    if not work.precision.casts_results:
        return ()
    return (Buffer("cast results", rows * work.combine_row_bytes),)


def intermediates(
    work: LayerWork,
    rows: Counts,
    *,
    fuses_activation: bool = False,
    quantises_apart: bool = False,
    keeps_results: bool = True,
) -> tuple[Buffer, ...]:
    """Outputs of the experts, beside the rows that they are given.

    A backward pass has what the forward pass kept for it, and gradients of the weights, which stay.

    Parameters
    ----------
    rows
        (rank,): rows that there is room for, padding included.
    fuses_activation
        Whether GEMM-1 writes what GEMM-2 reads.
    quantises_apart
        Whether FP8 operands of GEMM-2 are made of what the activation wrote by another kernel.
    keeps_results
        Whether GEMM-2 writes to the memory of its own GPU.
    """
    shape, types = work.shape, work.precision
    written, read = shape.gemm1_columns, shape.intermediate
    if work.is_backward:
        written, read = read, written
    found = []
    if not fuses_activation:
        found.append(Buffer("results of the first GEMM", rows * types.token_row_bytes(written)))
    if quantises_apart and types.has_scales:
        found.append(Buffer("activations to quantise", rows * types.token_row_bytes(read)))
    found.append(Buffer("operands of the second GEMM", rows * types.operand_row_bytes(read)))
    if keeps_results:
        found.append(Buffer("results of the experts", rows * work.result_row_bytes))
    if work.is_backward:
        kept = work.operand_row_bytes + types.token_row_bytes(shape.gemm1_columns)
        kept += types.operand_row_bytes(shape.intermediate)  # made once more of what was kept
        found.append(Buffer("kept by the forward pass", rows * kept))
        gradients = ACCUMULATOR_BYTES * expert_weights(work)
        found.append(Buffer("gradients of the weights", gradients, stays=True))
    return tuple(found)
