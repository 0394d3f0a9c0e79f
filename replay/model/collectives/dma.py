"""Grouped sends and receives that no SM makes: engines copy inside a node, network cards between.

Huawei's HCCL hands its copies to DMA engines (inside a node) and network cards (between nodes), and
its flags to the device's task scheduler, so that the cores go on computing. For each pair the
receiver first tells the sender that its buffer is free, the sender copies into it, and a flag
behind the last byte says so.

Source: CANN's documentation of HCCL (``HCCL_OP_EXPANSION_MODE``, notify and SDMA/RDMA tasks); what
a task costs the scheduler is not published and left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.collectives.pair_rules import PIECE_BYTES, Parcels, cut
from replay.model.collectives.point_to_point import ExchangeTasks

if TYPE_CHECKING:
    from replay.model.arrays import Bytes, Ints, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine


def all_to_all(machine: Machine, kinds: PhaseKinds, nbytes: Bytes, begun: Tasks, *, payload: bool) -> ExchangeTasks:
    """Send to, and receive from, every peer at once.

    Parameters
    ----------
    nbytes
        (source, destination): bytes that go from rank to rank; of its own rank, what is copied.
    begun
        (rank,): when each rank may send, and its buffers are free.
    payload
        Whether the bytes are token rows.
    """
    parcels = _parcels(nbytes * ~np.eye(machine.num_ranks, dtype=bool))
    src, dst, flag = parcels.src, parcels.dst, machine.costs.flag()
    free = machine.delay(kinds.sync, flag, begun[dst], dst)
    ready = machine.mark(src, begun[src])
    machine.order(free, ready)
    lane, each = parcels.lane_of_piece, parcels.piece_bytes
    rows = each if payload else 0 * each
    sent, landed = machine.transfers.store(
        kinds,
        src[lane],
        dst[lane],
        rows,
        ready[lane],
        meta_bytes=each - rows,
        engine="copy_engine",
    )
    known = machine.delay(kinds.sync, flag, ready, dst)
    machine.order(landed, known[lane])
    whole = parcels.chunk_bytes
    read = machine.stream(kinds.memory, whole, src, ready)
    written = machine.stream(kinds.memory, whole, dst, known)
    own = np.flatnonzero(np.diagonal(nbytes))
    copied = machine.stream(kinds.memory, 2 * np.diagonal(nbytes)[own], own, begun[own])
    done = machine.gather(
        np.concatenate((sent, read, written, copied)),
        np.concatenate((src[lane], src, dst, own)),
        begun,
    )
    begins = begun.copy()
    begins[own] = copied
    return ExchangeTasks(done, begins, sent, parcels)


def _parcels(away: Ints) -> Parcels:
    """Everything that a pair sends as one lane and one chunk, cut into messages."""
    src, dst = np.nonzero(away)
    order = np.argsort((dst - src) % len(away), kind="stable")  # everybody's next neighbour first
    src, dst = src[order], dst[order]
    whole = away[src, dst]
    piece, offset, size = cut(whole, np.full(len(whole), PIECE_BYTES))
    pair = np.arange(len(whole))
    none = np.zeros(len(whole), np.int64)
    no = none.astype(bool)
    return Parcels(src, dst, none, no, no, pair, whole, piece, size, offset)
