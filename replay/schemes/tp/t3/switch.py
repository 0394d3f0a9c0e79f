"""T3 in the switch: engines load sums and store copies through addresses of all GPUs.

To add a piece up, its owner's engine loads what the switch adds up of all GPUs' parts. It may when
all have made their part: each tracker tells the owner's by a flag. All GPUs make their tiles in the
same order, since a sum needs all of them, and in turn for all owners, whose ports then share them.

Source: CAIS (arXiv 2605.05628), IV-A: T3 with NVLS by engines, as in Klenk et al. (ISCA 2020).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine import multimem
from replay.model.machine.kinds import flags_of
from replay.model.machine.sync import FLAG_BYTES
from replay.model.machine.transfers import REQUESTS_FIRST
from replay.schemes.tp.base import GATHER, REDUCE

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Tasks
    from replay.schemes.tp.overlap.pieces import RowPieces
    from replay.schemes.tp.t3.engines import Engines


def reduce(engines: Engines, pieces: RowPieces, made: Ints) -> tuple[Ints, Ints, Ints]:
    """Load the sums of all GPUs' pieces: (piece,) tasks, they are in their owners' memory.

    Parameters
    ----------
    made
        (rank, piece): the GPU's own sum of a piece is in its memory.

    Returns
    -------
    The tasks; and (part,) tasks that read the parts, and their GPUs.
    """
    machine, n, owner = engines.machine, engines.machine.num_ranks, pieces.chunk
    each, part = np.arange(len(pieces)), np.tile(np.arange(len(pieces)), n)
    member = np.repeat(machine.ranks, len(pieces))
    ready = machine.mark(owner, made[owner, each])
    far = member != owner[part]
    told = machine.sync.notify(
        member[far],
        owner[part[far]],
        FLAG_BYTES,
        made[member[far], part[far]],
        kinds=flags_of(REDUCE.sync),
        waiting=engines.trigger,
        priority=REQUESTS_FIRST,
    )
    machine.order(told, ready[part[far]])
    started = engines.start_commands(REDUCE, owner, ready)
    sums = machine.caches.new_keys(len(pieces))
    machine.notes.access("sums", sums + part, made[member, part])
    read = machine.stream(REDUCE.memory, pieces.nbytes[part], member, started[part])
    total = multimem.reduce(machine, REDUCE, owner, pieces.row_bytes, started, rows=pieces.rows, requests_first=True)
    return machine.stream(REDUCE.memory, pieces.nbytes, owner, total), read, member


def gather(engines: Engines, pieces: RowPieces, after: Tasks) -> Tasks:
    """Copy rows to all GPUs: (rank, piece) tasks, the piece is in the GPU's memory.

    Parameters
    ----------
    after
        (rank,): the rows that a GPU owns are there. Its own copy comes back like any other.
    """
    machine, owner = engines.machine, pieces.chunk
    read = engines.read(GATHER, owner, pieces.nbytes, after[owner])
    spread = multimem.multicast(machine, GATHER, owner, pieces.row_bytes, read, rows=pieces.rows)
    nbytes = np.repeat(pieces.nbytes, machine.num_ranks)
    written = machine.stream(GATHER.memory, nbytes, spread.member, spread.arrived)
    there = np.empty((machine.num_ranks, len(pieces)), np.int64)
    there[spread.member, np.repeat(np.arange(len(pieces)), machine.num_ranks)] = written
    return there
