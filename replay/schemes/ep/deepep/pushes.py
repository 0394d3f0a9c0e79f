"""Rows that SMs push to fixed slots of other GPUs, in the order in which their warps take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.machine import rings
from replay.model.work.ragged import places_in_runs

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints, Ranks, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine, Time

TOGETHER = 4  # rows of an SM to one peer that travel together in the model


class Pushes(NamedTuple):
    """Groups of rows of one SM to one GPU, in the order in which SMs push them.

    Attributes
    ----------
    src, dst, sm, rows
        (group,): ranks, SM of the source, number of rows.
    of_row
        (row,): the group each row is in, in the order in which the rows were given.
    """

    src: Ranks
    dst: Ranks
    sm: Ints
    rows: Counts
    of_row: Ints

    @classmethod
    def of(cls, src: Ranks, dst: Ranks, sm: Ints, num_ranks: int) -> Pushes:
        """Group rows (row,); an SM alternates between peers, each rank beginning with another."""
        cut = rings.cut(src, dst, sm, TOGETHER)
        turn = places_in_runs(cut.lane)
        order = np.lexsort(((cut.dst - cut.src) % num_ranks, turn))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        return cls(cut.src[order], cut.dst[order], cut.channel[order], cut.rows[order], place[cut.of_row])

    def in_order(self, of_sms: Ints) -> Pushes:
        """The same groups, sorted by a number of each (group,); equal ones keep their order."""
        order = np.argsort(of_sms, kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        src, dst, sm, rows = (each[order] for each in self[:4])
        return Pushes(src, dst, sm, rows, place[self.of_row])

    def total(self, of_rows: Ints) -> Ints:
        """(group,): sum over its rows of a number (row,)."""
        return np.bincount(self.of_row, of_rows, len(self.src)).astype(np.int64)

    def push(
        self,
        machine: Machine,
        kinds: PhaseKinds,
        sms: Ints,
        busy: Time,
        row_bytes: int,
        begun: Tasks,
        *,
        meta_bytes: int = 0,
        behind: Ints | None = None,
    ) -> tuple[Ints, Ints]:
        """Load rows into shared memory and store them: (group,) tasks of the SMs, and arrivals.

        A GPU's rows for itself are stored into its memory.

        Parameters
        ----------
        sms
            (rank, SM) resources.
        busy
            (group,): how long each occupies its SM.
        row_bytes, meta_bytes
            Payload of a row, and what travels with it.
        begun
            (rank,): when rows can be pushed.
        behind
            (group,): the same of each group, where rows of a rank are not there from the start.
        """
        server = sms[self.src, self.sm]
        pushed = machine.serve(
            server,
            busy,
            late=machine.costs.memory_load(),
            kind=kinds.send,
            rank=self.src,
            after=begun[self.src] if behind is None else behind,
        )
        arrived, remote = pushed.copy(), self.src != self.dst
        src, dst = self.src[remote], self.dst[remote]
        arrived[remote] = machine.transfers.store(
            kinds,
            src,
            dst,
            row_bytes,
            pushed[remote],
            rows=self.rows[remote],
            meta_bytes=meta_bytes,
            on=server[remote],
        ).arrived
        return pushed, arrived
