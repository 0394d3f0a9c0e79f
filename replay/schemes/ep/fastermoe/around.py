"""FasterMoE's kernels around its steps: counts, the scatter of rows, and their gathering.

Whatever the gate does before is left out, as for every scheme; what a backward pass does to the
gate's weights is in.

Sources: laekov/fastmoe ``fmoe/functions.py`` (``count_by_gate``, ``prepare_forward``,
``_local_scatter``, ``_local_gather``), ``fmoe/fastermoe/schedule.py``, ``fmoe/layers.py``,
``cuda/fastermoe/smart_schedule.cpp`` (buffers of zeroes; the host waits for the stream before the
first send and behind the last one).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.host import Operation
from replay.model.machine.kinds import COMBINE, COUNTS, Kind
from replay.model.machine.times import MemoryTraffic

if TYPE_CHECKING:
    from collections.abc import Callable

    from replay.model.arrays import Ints, Tasks
    from replay.model.collectives.point_to_point import ExchangeTasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

NUMBER_BYTES = 8  # ids, counts and positions are int64
WEIGHT_BYTES = 4

COUNT = Operation("counts of experts", 3, "ids of experts")
EXCHANGE = Operation("exchange of counts", moves="a count for each expert")
OFFSETS = Operation("offsets of experts", 2)
OFFSETS_KNOWN, RECEIVED_KNOWN = "offsets to the host", "rows to the host"
COUNTS_KNOWN = "counts to the host"
POSITIONS = Operation("positions", moves="ids of experts, a position for each")
TO_RECEIVE = Operation("rows to receive", 2)
NUM_COPIES = 3  # counts to send, to receive, and by expert, one after the other

TOKENS_OF = Operation("tokens of positions", moves="positions")
SCATTER = Operation("scatter", moves="a token's row for each of its experts")
ZEROES = Operation("buffers of zeroes", 3, "rows to receive, results of them, rows that come back")
SCATTERED, COME_BACK = "rows are scattered", "results are back"
GATHER_ZEROES = Operation("zeroes", moves="what rows are gathered into")
GATHER = Operation("gather", moves="every row, into the order of tokens")
WEIGHTED = Operation("weighted sum", moves="rows of a token's experts, their sum")
GRADIENTS = Operation("gradients of results", moves="a gradient for each of a token's experts")
GATE_GRADIENTS = Operation("gradients of gate weights", moves="gradients and results of all rows")


def count(machine: Machine, work: LayerWork, start: Tasks, exchange: Callable[..., ExchangeTasks]) -> Tasks:
    """Count rows and learn where they go: (rank,) tasks. A backward pass knows.

    Parameters
    ----------
    exchange
        Sends bytes (source, destination) in a kernel of NCCL's from (rank,) tasks on.
    """
    if work.is_backward:
        return start
    n, pairs = work.num_ranks, work.matrix("pairs").sum(axis=1)
    counted = machine.small_kernels(Kind.LAYOUT, pairs * NUMBER_BYTES, start, COUNT)
    if n > 1:
        begun = machine.kernel(counted, EXCHANGE)
        sizes = np.full((n, n), work.num_experts // n * NUMBER_BYTES)
        counted = exchange(sizes, begun, payload=False).done
    offsets = machine.small_kernels(Kind.LAYOUT, 0 * pairs, counted, OFFSETS)
    machine.host.wait(COUNTS, offsets, OFFSETS_KNOWN)
    placed = machine.small_kernels(Kind.LAYOUT, 2 * pairs * NUMBER_BYTES, offsets, POSITIONS)
    received = machine.small_kernels(Kind.LAYOUT, 0 * pairs, placed, TO_RECEIVE)
    for name in (RECEIVED_KNOWN, *[COUNTS_KNOWN] * NUM_COPIES):
        machine.host.wait(COUNTS, received, name)
    return received


def tokens_of(machine: Machine, work: LayerWork, after: Tasks) -> Tasks:
    """Find the token of each row: (rank,) tasks. A backward pass knows."""
    if work.is_backward:
        return after
    nbytes = 2 * work.matrix("pairs").sum(axis=1) * NUMBER_BYTES
    return machine.small_kernels(Kind.LAYOUT, nbytes, after, TOKENS_OF)


def scatter(machine: Machine, work: LayerWork, after: Tasks) -> Tasks:
    """Bring rows into the order of their experts: (rank,) tasks. The host has to know of it."""
    tokens, pairs = np.diff(work.tokens_of_rank), work.matrix("pairs")
    owned, got, row = pairs.sum(axis=1), pairs.sum(axis=0), work.dispatch_row_bytes
    if work.is_backward:
        each = MemoryTraffic(tokens * work.token_row_bytes, owned * row)
        after = machine.small_kernels(Kind.PERMUTE, each, after, GRADIENTS)
        read = owned * work.combine_row_bytes + tokens * work.token_row_bytes
        each = MemoryTraffic(read, owned * WEIGHT_BYTES)
        after = machine.small_kernels(Kind.PERMUTE, each, after, GATE_GRADIENTS)
    moved = MemoryTraffic(owned * row, owned * row, owned)
    scattered = machine.small_kernels(Kind.PERMUTE, moved, after, SCATTER)
    empty = MemoryTraffic(0 * got, 2 * got * row + owned * row)
    return machine.small_kernels(Kind.PERMUTE, empty, scattered, ZEROES)


def gather(machine: Machine, work: LayerWork, back: Ints, after: Tasks | None = None) -> Tasks:
    """Bring rows into the order of tokens and add them up: (rank,) tasks.

    Forward, they are copied and then added with their weights; backward, added as they are.

    Parameters
    ----------
    back, after
        (rank,): results have come back, for which the host waits; what else precedes, if anything.
    """
    tokens, owned = np.diff(work.tokens_of_rank), work.matrix("pairs").sum(axis=1)
    row, result = work.combine_row_bytes, work.result_row_bytes
    machine.host.wait(COMBINE, back, COME_BACK)
    after = back if after is None else machine.gather(back, machine.ranks, after)
    into = tokens * result if work.is_backward else owned * row
    emptied = machine.small_kernels(Kind.UNPERMUTE, MemoryTraffic(0 * into, into), after, GATHER_ZEROES)
    if work.is_backward:
        added = MemoryTraffic(owned * row + into, into)
        return machine.small_kernels(Kind.UNPERMUTE, added, emptied, GATHER)
    moved = MemoryTraffic(owned * row, owned * row, owned)
    moved_there = machine.small_kernels(Kind.UNPERMUTE, moved, emptied, GATHER)
    summed = MemoryTraffic(owned * row, tokens * result)
    return machine.small_kernels(Kind.UNPERMUTE, summed, moved_there, WEIGHTED)
