"""Casts of rows before and behind the wire, shared by every scheme.

Rows that travel as FP8 are cast where they leave: a layer is given its tokens in BF16, and the
largest of 128 values decides their scale. Where kernels follow one another that is a kernel of its
own over the tokens (``per_token_group_quant`` of vLLM and SGLang; Megatron-LM's permute takes what
TransformerEngine has cast). A kernel that sends rows by its own SMs casts as it reads them, as
DeepEP's low-latency dispatch does.

Rows whose type on the wire is not that of the GEMMs are cast where they arrive. Where kernels
follow one another that is a kernel of its own, behind the dispatch and before rows are copied to
their experts (vLLM, ``deepep_ht_prepare_finalize.py``: what travelled as BF16 is quantised once it
is received; its low-latency sibling makes BF16 of FP8 there). No fused kernel that casts is
published. Here one of the SMs that multiply casts each row tile, once, when its rows are there. FP8
rows back are made by a kernel at the experts and read as they are by the kernel that adds them up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.host import Operation
from replay.model.machine.kinds import Kind
from replay.model.machine.times import NO_TIME, MemoryTraffic
from replay.model.work.ragged import places

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints, Pools, Ranks, Tasks
    from replay.model.machine.machine import IntsLike, Machine, Time
    from replay.model.work.layer import LayerWork

CAST_TOKENS = Operation("cast of tokens", moves="tokens in BF16, rows that travel")
READS = 64  # tasks, per rank, in which a kernel that casts as it sends reads all tokens


def cast_before_dispatch(machine: Machine, work: LayerWork, after: Tasks) -> Tasks:
    """Make the rows that travel of a rank's own tokens, in a kernel: (rank,) tasks.

    Parameters
    ----------
    after
        (rank,): the tokens are there; returned as it is where there is nothing to cast.
    """
    if not work.precision.casts_tokens:
        return after
    tokens = np.diff(work.tokens_of_rank)
    moved = MemoryTraffic(tokens * work.token_row_bytes, tokens * work.dispatch_row_bytes)
    return machine.memory_kernel(Kind.TOKEN_CAST, moved, after, CAST_TOKENS)


def tokens_read(machine: Machine, work: LayerWork, begun: Tasks) -> Tasks:
    """Read tokens from memory in a kernel that casts as it sends: (token,) tasks.

    However often a token is sent, memory is read once: it is in the cache then.

    Parameters
    ----------
    begun
        (rank,): start of the kernel; of each token's rank where there is nothing to cast.
    """
    if not work.precision.casts_tokens:
        return begun[work.source_rank]
    tokens = np.diff(work.tokens_of_rank)
    each = np.maximum(-(-tokens // READS), 1)  # tokens that one task reads
    read = work.source_rank * READS + places(tokens) // each[work.source_rank]
    used, of_token, count = np.unique(read, return_inverse=True, return_counts=True)
    rank, none = used // READS, np.zeros_like(used)
    moved = MemoryTraffic(count * work.token_row_bytes, none)
    done: Ints = machine.stream(Kind.TOKEN_CAST, moved, rank, begun[rank])[of_token]
    return done


def casting(machine: Machine, work: LayerWork, sent_bytes: IntsLike) -> Time:
    """Time in which an SM that casts as it sends reads tokens, before it stores them.

    Parameters
    ----------
    sent_bytes
        (task,): bytes of the rows, or parts of rows, that each task makes.
    """
    if not work.precision.casts_tokens:
        return NO_TIME
    read = -(-sent_bytes * work.token_row_bytes // work.dispatch_row_bytes)
    return machine.costs.sm_add(read, 0)


def cast_received(machine: Machine, work: LayerWork, rows: Counts, after: Tasks) -> Tasks:
    """Make operands of rows that were received, in a kernel: (rank,) tasks.

    Parameters
    ----------
    rows
        (rank,): rows in the type that travels; each is read once and written once.
    after
        (rank,): end of the dispatch; returned as it is where there is nothing to cast.
    """
    if not work.precision.casts_dispatched:
        return after
    moved = MemoryTraffic(rows * work.dispatch_row_bytes, rows * work.operand_row_bytes)
    return machine.memory_kernel(Kind.CAST, moved, after)


def cast_results(machine: Machine, work: LayerWork, rows: Counts, after: Tasks) -> Tasks:
    """Make rows for the way back of results, in a kernel: (rank,) tasks; as `cast_received`."""
    if not work.precision.casts_results:
        return after
    moved = MemoryTraffic(rows * work.result_row_bytes, rows * work.combine_row_bytes)
    return machine.memory_kernel(Kind.UNPERMUTE, moved, after)


@dataclass(frozen=True)
class TileCasts:
    """Casts of row tiles inside a fused kernel.

    Attributes
    ----------
    on_sm
        (tile,): tasks on the SMs; those that were waited for where there is nothing to cast.
    done
        (tile,): tasks after which the first GEMM may read the tile.
    """

    on_sm: Ints
    done: Ints


def cast_tiles(
    machine: Machine,
    work: LayerWork,
    rank: Ranks,
    rows: Counts,
    pool: Pools,
    ready: Tasks,
    priority: Ints,
) -> TileCasts:
    """Cast every row tile on one of the SMs that multiply.

    Parameters
    ----------
    rank, rows
        (tile,): whose it is, and the rows that are read and written, padding included.
    pool
        (rank,): resource of the SMs.
    ready
        (tile,): task after which the tile's rows are there.
    priority
        (tile,): order among ready tiles, smaller first.
    """
    if not work.precision.casts_dispatched:
        return TileCasts(ready, ready)
    read = rows * work.dispatch_row_bytes
    written = rows * work.operand_row_bytes
    on_sm = machine.serve(
        pool[rank],
        machine.costs.sm_add(read, written),
        priority=priority,
        kind=Kind.CAST,
        rank=rank,
        after=ready,
    )
    streamed = machine.stream(Kind.CAST, MemoryTraffic(read, written), rank, ready)
    done = machine.mark(rank, on_sm)
    machine.order(streamed, done)
    return TileCasts(on_sm, done)
