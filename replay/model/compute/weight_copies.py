"""Weights of experts on their way to replicas: a persistent kernel that streams tiles.

A tile of an expert is read once from device memory and stored to all replicas that its GPU serves.
A relay reads what has reached its own slot, chunk by chunk, and stores it on; it is told of a chunk
by a flag, which its source stores when the chunk's stores have been acknowledged.

Source: Dots-Infra/UltraEP, ``csrc/kernels/weight_sync.cu`` and ``constants``: tiles of 32 KiB,
chunks of 8 tiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.compute.gemm import Gemm
from replay.model.machine.kinds import WEIGHTS, Kind
from replay.model.machine.times import MemoryTraffic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwmodel import System
    from replay.model.arrays import Bytes, Ints, Pools, Ranks, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.model.work.step_plan import Copy

TILE_BYTES = 32 * 1024  # kWeightSyncTileSizeBytes
CHUNK_BYTES = 8 * TILE_BYTES  # kWeightSyncRelayChunkTiles: what a relay waits for
MESSAGE_BYTES = 2 * TILE_BYTES  # grain of the model; of an SM it is the time of 1.7 us
FLAG_BYTES = 8


class WeightMessages(NamedTuple):
    """Stores of weights, in the order in which the kernels take the tiles: (message,) arrays.

    Attributes
    ----------
    src, dst, nbytes
        GPUs, and the size.
    read
        Which messages store what was read once, numbered from 0.
    chunk, source_chunk
        Chunk of the slot that it is part of, and, for what is passed on, of the slot that it is
        read from; numbers of all slots and chunks.
    """

    src: Ranks
    dst: Ranks
    nbytes: Bytes
    read: Ints
    chunk: Ints
    source_chunk: Ints


class SentWeights(NamedTuple):
    """(message,) tasks: it is visible in the slot's memory; it has been written there."""

    arrived: Tasks
    written: Ints


def expert_bytes(work: LayerWork, system: System) -> tuple[int, ...]:
    """Bytes of each matrix of an expert as the GEMMs read it, scales included."""
    number_type, gemms = work.precision.operands, Gemm.of_matrices(work)
    return tuple(int(system.compute.weight_bytes(gemm.n, gemm.k, number_type)) for gemm in gemms)


def copy_weights(
    machine: Machine,
    work: LayerWork,
    copies: Sequence[Copy],
    begun: Tasks,
    relaying: Ints,
    *,
    num_sms: int = 0,
) -> Tasks:
    """Copy experts to slots: (rank,) tasks; a GPU's slots are filled, and its own copies done.

    Parameters
    ----------
    copies
        What goes where.
    begun, relaying
        (rank,): kernels that copy from homes, and from relays.
    num_sms
        SMs of the kernels, which share them; 0 if they have all.
    """
    matrices = expert_bytes(work, machine.system)
    pool = machine.sms.pool("weight copies", num_sms or machine.sms.count)
    direct = messages_of([one for one in copies if one.via < 0], matrices)
    sent = _send(machine, direct, pool, begun[direct.src])
    done = _wait_for_copies(machine, direct, sent, begun)
    relayed = messages_of([one for one in copies if one.via >= 0], matrices)
    if not len(relayed.src):
        return done
    told = _chunks_told(machine, direct, sent.arrived)
    ready = machine.mark(relayed.src, relaying[relayed.src])
    machine.order(told[relayed.source_chunk], ready)
    return _wait_for_copies(machine, relayed, _send(machine, relayed, pool, ready), done)


def messages_of(copies: Sequence[Copy], matrices: tuple[int, ...]) -> WeightMessages:
    """Cut experts into messages: tile after tile of one expert after the other.

    Parameters
    ----------
    matrices
        Bytes of each matrix of an expert. A tile is of one matrix, and so is a chunk.
    """
    begins = [np.arange(0, nbytes, MESSAGE_BYTES) for nbytes in matrices]
    sizes = [np.minimum(MESSAGE_BYTES, n - begin) for n, begin in zip(matrices, begins, strict=True)]
    chunks = np.cumsum([0, *(-(-nbytes // CHUNK_BYTES) for nbytes in matrices)])
    numbers = [begin // CHUNK_BYTES + chunks[place] for place, begin in enumerate(begins)]
    size, of_chunk = np.concatenate(sizes), np.concatenate(numbers)
    num_chunks = int(chunks[-1])
    columns = np.array([tuple(one) for one in copies], np.int64).reshape(-1, 5).T
    _, slot, src, dst, via = columns
    # Copies that are read together stand together; the kernels of a GPU go through them in turn.
    _, group = np.unique(columns[[2, 0, 4]], axis=1, return_inverse=True)
    copy, piece = np.divmod(np.arange(len(slot) * len(size)), len(size))
    order = np.lexsort((copy, piece, group[copy]))
    copy, piece = copy[order], piece[order]
    return WeightMessages(
        src=src[copy],
        dst=dst[copy],
        nbytes=size[piece],
        read=group[copy] * len(size) + piece,
        chunk=slot[copy] * num_chunks + of_chunk[piece],
        source_chunk=via[copy] * num_chunks + of_chunk[piece],
    )


def _send(machine: Machine, messages: WeightMessages, pool: Pools, after: Tasks) -> SentWeights:
    """Read tiles and store them; `after` (message,) are tasks that the reads wait for."""
    src, dst, nbytes = messages.src, messages.dst, messages.nbytes
    _, first, of_read = np.unique(messages.read, return_index=True, return_inverse=True)
    read = machine.stream(WEIGHTS.memory, nbytes[first], src[first], after[first])
    stored = machine.serve(
        pool[src],
        machine.costs.sm_store(nbytes),
        kind=WEIGHTS.send,
        rank=src,
        after=read[of_read],
    )
    arrived = machine.transfers.store(
        WEIGHTS,
        src,
        dst,
        0,
        stored,
        meta_bytes=nbytes,
        on=pool[src],
    ).arrived
    written = machine.stream(WEIGHTS.memory, MemoryTraffic(0, nbytes), dst, arrived)
    return SentWeights(arrived, written)


def _wait_for_copies(machine: Machine, messages: WeightMessages, sent: SentWeights, after: Tasks) -> Ints:
    """(rank,): what a GPU receives is written, and what it sent has been acknowledged."""
    left = machine.gather(sent.arrived, messages.src, after)
    sends = np.bincount(messages.src, minlength=len(after)) > 0
    if sends.any():
        rank = np.flatnonzero(sends)
        known = machine.sync.fence(WEIGHTS, left[rank], rank, stored="each")
        left = machine.gather(known, rank, left)
    return machine.gather(sent.written, messages.dst, left)


def _chunks_told(machine: Machine, messages: WeightMessages, arrived: Tasks) -> Ints:
    """(chunk of any slot,): tasks in which the slot's GPU learns that the chunk is there."""
    chunk, first, of = np.unique(messages.chunk, return_index=True, return_inverse=True)
    src, dst = messages.src[first], messages.dst[first]
    whole = machine.join(arrived, of, src)
    # Packets of all SMs interleave, so that a flag does not wait for tiles that others have begun.
    told = np.full(int(chunk[-1]) + 1, -1, np.int64)
    told[chunk] = machine.sync.flag(
        src,
        dst,
        FLAG_BYTES,
        whole,
        stored="each",
        kinds=(Kind.LOADS_UP, Kind.LOADS_DOWN),
        priority=-1,
    )
    return told
