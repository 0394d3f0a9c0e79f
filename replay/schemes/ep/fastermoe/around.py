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

from replay.model.collectives import point_to_point
from replay.model.machine.kinds import COMBINE, COUNTS, Kind
from replay.model.machine.times import MemoryTraffic
from replay.schemes.ep.software import Listed

if TYPE_CHECKING:
    from replay.model.collectives.pair_rules import PairRules
    from replay.model.machine.machine import Ints, Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.software import Outline

NUMBER_BYTES = 8  # ids, counts and positions are int64
WEIGHT_BYTES = 4

COUNT = Listed("counts of experts", 3, "ids of experts")
EXCHANGE = Listed("exchange of counts", moves="a count for each expert")
OFFSETS = Listed("offsets of experts", 2)
OFFSETS_KNOWN = Listed("offsets to the host", 0)
POSITIONS = Listed("positions", moves="ids of experts, a position for each")
TO_RECEIVE = Listed("rows to receive", 2)
RECEIVED_KNOWN = Listed("rows to the host", 0)
COUNTS_KNOWN = Listed("counts to the host", 0)
NUM_COPIES = 3  # counts to send, to receive, and by expert, one after the other

TOKENS_OF = Listed("tokens of positions", moves="positions")
SCATTER = Listed("scatter", moves="a token's row for each of its experts")
ZEROES = Listed("buffers of zeroes", 3, "rows to receive, results of them, rows that come back")
SCATTERED = Listed("rows are scattered", 0)
COME_BACK = Listed("results are back", 0)
GATHER_ZEROES = Listed("zeroes", moves="what rows are gathered into")
GATHER = Listed("gather", moves="every row, into the order of tokens")
WEIGHTED = Listed("weighted sum", moves="rows of a token's experts, their sum")
GRADIENTS = Listed("gradients of results", moves="a gradient for each of a token's experts")
GATE_GRADIENTS = Listed("gradients of gate weights", moves="gradients and results of all rows")


def count(machine: Machine, work: LayerWork, rules: PairRules, channels: Ints, start: Ints) -> Ints:
    """Count rows and learn where they go: (rank,) tasks. A backward pass knows.

    Parameters
    ----------
    rules, channels
        Those of NCCL's kernels; unused by a rank alone.
    """
    if work.is_backward:
        return start
    n, pairs = work.num_ranks, work.matrix("pairs").sum(axis=1)
    counted = _layout(machine, COUNT, pairs * NUMBER_BYTES, start)
    if n > 1:
        begun = machine.kernel(counted, EXCHANGE.name)
        sizes = np.full((n, n), work.num_experts // n * NUMBER_BYTES)
        counted = point_to_point.all_to_all(
            machine, COUNTS, channels, rules, sizes, begun, payload=False
        ).done
    offsets = _layout(machine, OFFSETS, 0 * pairs, counted)
    machine.host.wait(COUNTS, offsets, OFFSETS_KNOWN.name)
    placed = _layout(machine, POSITIONS, 2 * pairs * NUMBER_BYTES, offsets)
    received = _layout(machine, TO_RECEIVE, 0 * pairs, placed)
    for name in (RECEIVED_KNOWN.name, *[COUNTS_KNOWN.name] * NUM_COPIES):
        machine.host.wait(COUNTS, received, name)
    return received


def tokens_of(machine: Machine, work: LayerWork, after: Ints) -> Ints:
    """Find the token of each row: (rank,) tasks. A backward pass knows."""
    pairs = work.matrix("pairs").sum(axis=1)
    return (
        after if work.is_backward else _layout(machine, TOKENS_OF, 2 * pairs * NUMBER_BYTES, after)
    )


def counted(layer: Outline) -> tuple[Listed, ...]:
    """Operations of `count`."""
    if layer.is_backward:
        return ()
    exchange = (EXCHANGE,) if layer.num_ranks > 1 else ()
    waits = (RECEIVED_KNOWN, *(COUNTS_KNOWN,) * NUM_COPIES)
    return COUNT, *exchange, OFFSETS, OFFSETS_KNOWN, POSITIONS, TO_RECEIVE, *waits


def scatter(machine: Machine, work: LayerWork, after: Ints) -> Ints:
    """Bring rows into the order of their experts: (rank,) tasks. The host has to know of it."""
    tokens, pairs = np.diff(work.tokens_of_rank), work.matrix("pairs")
    owned, got, row = pairs.sum(axis=1), pairs.sum(axis=0), work.dispatch_row_bytes
    if work.is_backward:
        each = MemoryTraffic(tokens * work.token_row_bytes, owned * row)
        after = _run(machine, Kind.PERMUTE, GRADIENTS, each, after)
        read = owned * work.combine_row_bytes + tokens * work.token_row_bytes
        each = MemoryTraffic(read, owned * WEIGHT_BYTES)
        after = _run(machine, Kind.PERMUTE, GATE_GRADIENTS, each, after)
    moved = MemoryTraffic(owned * row, owned * row, owned)
    scattered = _run(machine, Kind.PERMUTE, SCATTER, moved, after)
    empty = MemoryTraffic(0 * got, 2 * got * row + owned * row)
    return _run(machine, Kind.PERMUTE, ZEROES, empty, scattered)


def scattered(layer: Outline) -> tuple[Listed, ...]:
    """Operations of `scatter`."""
    gradients = (GRADIENTS, GATE_GRADIENTS) if layer.is_backward else ()
    return *gradients, SCATTER, ZEROES


def gather(machine: Machine, work: LayerWork, back: Ints, after: Ints | None = None) -> Ints:
    """Bring rows into the order of tokens and add them up: (rank,) tasks.

    Forward, they are copied and then added with their weights; backward, added as they are.

    Parameters
    ----------
    back, after
        (rank,): results have come back, for which the host waits; what else precedes, if anything.
    """
    tokens, owned = np.diff(work.tokens_of_rank), work.matrix("pairs").sum(axis=1)
    row, result = work.combine_row_bytes, work.result_row_bytes
    machine.host.wait(COMBINE, back, COME_BACK.name)
    after = back if after is None else machine.gather(back, machine.ranks, after)
    into = tokens * result if work.is_backward else owned * row
    emptied = _run(machine, Kind.UNPERMUTE, GATHER_ZEROES, MemoryTraffic(0 * into, into), after)
    if work.is_backward:
        added = MemoryTraffic(owned * row + into, into)
        return _run(machine, Kind.UNPERMUTE, GATHER, added, emptied)
    moved = MemoryTraffic(owned * row, owned * row, owned)
    moved_there = _run(machine, Kind.UNPERMUTE, GATHER, moved, emptied)
    summed = MemoryTraffic(owned * row, tokens * result)
    return _run(machine, Kind.UNPERMUTE, WEIGHTED, summed, moved_there)


def gathered(layer: Outline) -> tuple[Listed, ...]:
    """Operations of `gather`."""
    return COME_BACK, GATHER_ZEROES, GATHER, *(() if layer.is_backward else (WEIGHTED,))


def _layout(machine: Machine, listed: Listed, nbytes: Ints, after: Ints) -> Ints:
    return machine.small_kernels(Kind.LAYOUT, nbytes, after, listed.name, listed.launches)


def _run(machine: Machine, kind: Kind, listed: Listed, moved: MemoryTraffic, after: Ints) -> Ints:
    return machine.small_kernels(kind, moved, after, listed.name, listed.launches)
