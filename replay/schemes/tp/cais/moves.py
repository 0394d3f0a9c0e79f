"""Rows and sums on their way between computing kernels, merged by the switch or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.machine.machine import MemoryTraffic
from replay.model.machine.merging import Pieces
from replay.schemes.tp.base import GATHER, REDUCE

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Ranks, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.machine.merging import MergeUnit
    from replay.schemes.tp.cais.options import CaisOptions
    from replay.schemes.tp.cais.rows import Cut


class RowArrivals(NamedTuple):
    """Rows that have arrived: (task,).

    Attributes
    ----------
    tasks, rank
        The tasks, and the GPU that waits.
    part, slice
        The part whose rows have arrived, and the slice of these rows.
    """

    tasks: Tasks
    rank: Ranks
    part: Ints
    slice: Ints


class SumTasks(NamedTuple):
    """Sums that have been added up: (task,).

    Attributes
    ----------
    tasks, rank
        The tasks, and the GPU that has the sum.
    piece
        The piece of the cut that each belongs to.
    """

    tasks: Tasks
    rank: Ranks
    piece: Ints


class SumPushes(NamedTuple):
    """Tasks of sums.

    Attributes
    ----------
    left
        (rank, part, column) marks: all that a block pushes has left its GPU.
    added
        Sums are in the memory of their homes.
    """

    left: Ints
    added: SumTasks


class Moves:
    """Loads and reductions of one machine."""

    def __init__(self, machine: Machine, options: CaisOptions) -> None:
        self._machine, self._options = machine, options

    def _unit(self) -> MergeUnit:
        machine, options = self._machine, self._options
        timeout = machine.costs.ns(round(options.timeout_us * 1000))
        return machine.merging.unit(
            options.table_bytes,
            timeout,
            at_line_rate=options.port_rate == "line",
            requests_first=options.traffic_control,
        )

    def load(self, cut: Cut, widths: Ints, opened: Ints) -> RowArrivals:
        """Load rows of other GPUs, slice by slice.

        Parameters
        ----------
        widths
            (slice,): bytes of each slice of a row.
        opened
            (rank, part): tasks after which a block of each GPU loads the rows of a part, so many at
            a time.
        """
        machine = self._machine
        which, piece = (each.ravel() for each in np.indices((len(widths), len(cut.home))))
        pieces = Pieces(cut.home[piece], cut.rows[piece], widths[which])
        of, reader = np.nonzero(pieces.home[:, None] != machine.ranks)
        part = cut.part[piece[of]]
        issued = machine.mark(reader, opened[reader, part])
        if self._options.merge:
            merged = machine.merging.load(GATHER, self._unit(), pieces, of, reader, issued)
            arrived = there = merged.arrived
        else:
            home = pieces.home[of]
            loaded = machine.transfers.load(
                GATHER,
                reader,
                home,
                pieces.row_bytes[of],
                issued,
                rows=pieces.rows[of],
                requests_first=self._options.traffic_control,
            )
            arrived = loaded.arrived
            there = machine.mark(reader, arrived)
            machine.order(machine.stream(GATHER.memory, pieces.nbytes[of], home, loaded.asked), there)
        self._keep_window(reader, part, issued, arrived, int(pieces.nbytes.max()))
        address = machine.caches.new_keys(len(pieces)) + of
        machine.notes.access(self._kernel_name("loads"), address, issued)
        return RowArrivals(there, reader, part, which[of])

    def _keep_window(self, reader: Ranks, part: Ints, issued: Ints, arrived: Tasks, piece_bytes: int) -> None:
        """Let a block ask for a piece (request,) only when one so many before has come."""
        window = max(1, self._options.window_bytes // piece_bytes)
        order = np.lexsort((part, reader))  # stable: pieces of a part stay in their order
        flow = (reader * (int(part.max(initial=0)) + 1) + part)[order]
        later = np.arange(window, len(order))
        later = later[flow[later] == flow[later - window]]
        self._machine.order(arrived[order[later - window]], issued[order[later]])

    def push(self, cut: Cut, widths: Ints, sent: Ints) -> SumPushes:
        """Push partial sums to their homes, which add them to their own.

        Parameters
        ----------
        widths
            (column,): bytes of a row in each column of tiles.
        sent
            (rank, part, column): tasks after which the SM of a block has issued its sums.
        """
        machine, num = self._machine, len(widths)
        piece, column = (each.ravel() for each in np.indices((len(cut.home), num)))
        pieces = Pieces(cut.home[piece], cut.rows[piece], widths[column])
        of, src = np.nonzero(pieces.home[:, None] != machine.ranks)
        after = sent[src, cut.part[piece[of]], column[of]]
        if self._options.merge:
            sums = machine.merging.reduce(REDUCE, self._unit(), pieces, of, src, after)
            left, arrived, which = sums.pushed, sums.written, np.arange(len(pieces))
        else:
            home = pieces.home[of]
            stored = machine.transfers.store(
                REDUCE,
                src,
                home,
                pieces.row_bytes[of],
                after,
                rows=pieces.rows[of],
            )
            left, arrived, which = stored.left, stored.arrived, of
        home, nbytes = pieces.home[which], pieces.nbytes[which]
        added = machine.stream(REDUCE.memory, MemoryTraffic(nbytes, nbytes), home, arrived)
        ends = machine.mark(np.repeat(machine.ranks, sent[0].size), sent.ravel())
        ends = ends.reshape(sent.shape)
        machine.order(left, ends[src, cut.part[piece[of]], column[of]])
        address = machine.caches.new_keys(len(pieces)) + of
        machine.notes.access(self._kernel_name("reductions"), address, left)
        return SumPushes(ends, SumTasks(added, home, piece[which]))

    def _kernel_name(self, what: str) -> str:
        return f"merged {what}" if self._options.merge else what
