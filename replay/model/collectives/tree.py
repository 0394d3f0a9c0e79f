"""NCCL's tree within an NVLink domain: an all-reduce along a chain of ranks.

Within a node NCCL's trees have one child each, so that they are a chain from rank 0, the root, to
the last; all channels have the same. Sums go up, from the last rank to the root; the whole sum
comes down again. Warps of a block are divided between both ways, so that chunks that follow one
another go up and down at the same time. A rank in the middle sends and receives the whole buffer
twice, which a ring of n ranks does 2 (n - 1) / n times.

Sources: NVIDIA/nccl ``src/graph/connect.cc`` (``ncclTopoPreset``: the chain),
``src/device/all_reduce.h`` (``runTreeSplit``), ``src/enqueue.cc`` (chunks of LL128 are halved until
there are enough). Several nodes: `replay.model.collectives.node_trees`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from replay.model.collectives.algorithm import Algorithm, CollectiveCall, Way
from replay.model.collectives.blocks import KernelBlocks, held_by
from replay.model.collectives.ring import paces
from replay.model.collectives.ring_chunks import (
    LEAST_BYTES,
    STEP_OF_BUFFER,
    block_times,
    message_ps,
    most_channels,
    notice_time,
    pieces_of,
)
from replay.model.machine.times import Time

if TYPE_CHECKING:
    from hwmodel.nccl import Protocol
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine

LARGEST_HALVED = 128 * 1024, 32 * 1024
"""Chunks of LL128 that are halved where there are fewer than 64, and than 16, steps' worth."""


def ways(call: CollectiveCall) -> list[Way]:
    """The chain under every protocol."""
    machine, nbytes = call.machine, call.nbytes
    most = call.blocks or most_channels(machine)
    used = max(1, min(most, nbytes // LEAST_BYTES))
    return [
        Way(
            f"tree {protocol.name}",
            used,
            _estimate_ps(machine, nbytes, protocol, used),
            partial(all_reduce, call, protocol=protocol, channels=used),
        )
        for protocol in machine.system.nccl.protocols
    ]


def all_reduce(call: CollectiveCall, begun: Tasks, *, protocol: Protocol, channels: int) -> Tasks:
    """Sum the bytes of every rank up the chain and down again: (rank,) the last tasks.

    A rank's channels do the same at the same time, so that they are one chain of tasks. Beside
    other kernels, memory is charged as of rings: what came and its own summand are read on the way
    up, what came is copied on the way down.

    Parameters
    ----------
    channels
        Thread blocks of each rank.
    """
    machine, kinds = call.machine, call.kinds
    n, ranks = machine.num_ranks, machine.ranks
    blocks = KernelBlocks(machine, kinds, channels, call.beside, name=held_by("all_reduce"))
    chunks = _chunks(machine, call.nbytes, protocol, channels)
    begins = machine.delay(kinds.sync, machine.costs.library_start(protocol), blocks.begin(begun))
    chain = _Chain(machine, kinds, blocks, protocol, chunks, payload=call.carries_payload)
    came = np.repeat(begins[-1:], len(chunks))
    done = begins
    for rank in range(n - 1, 0, -1):
        touches = 1 if rank == n - 1 else 2
        left, came = chain.pass_on(rank, rank - 1, touches, came, begins[rank])
        done = machine.gather(left, np.full(len(left), rank), done)
    for rank in range(n - 1):
        touches = 3 if rank == 0 else 2
        left, came = chain.pass_on(rank, rank + 1, touches, came, begins[rank])
        done = machine.gather(left, np.full(len(left), rank), done)
    last = ranks[-1:]
    copied = blocks.work(kinds.receive, chain.copying, came[-1:], rank=last)
    touched = blocks.touch(2 * chunks, came, rank=np.repeat(last, len(chunks)))
    ends = copied if touched is None else np.append(copied, touched)
    return blocks.end(machine.gather(ends, np.repeat(last, len(ends)), done))


class _Chain:
    """Chunks of one all-reduce that ranks pass to their neighbours.

    Parameters
    ----------
    chunks
        (chunk,): bytes of what all channels pass together.
    """

    def __init__(
        self,
        machine: Machine,
        kinds: PhaseKinds,
        blocks: KernelBlocks,
        protocol: Protocol,
        chunks: Ints,
        *,
        payload: bool,
    ) -> None:
        self._machine, self._kinds, self._blocks = machine, kinds, blocks
        self._protocol, self._chunks, self._payload = protocol, chunks, payload
        self._passing, self.copying = block_times(machine, protocol, int(chunks[0]), blocks.count)

    def pass_on(self, rank: int, peer: int, touches: int, came: Ints, begins: Ints) -> tuple[Ints, Ints]:
        """Pass all chunks on: (chunk,) tasks of the last stores, and when `peer` knows of each.

        Parameters
        ----------
        touches
            How often the rank reads or writes memory for each byte.
        came
            (chunk,): when the rank knows of the chunks.
        begins
            Its kernel's beginning.
        """
        machine, kinds, blocks, chunks = self._machine, self._kinds, self._blocks, self._chunks
        of = np.full(len(chunks), rank)
        stored = np.asarray(self._protocol.stored_bytes(chunks), np.int64)
        pieces, each = pieces_of(int(stored[0]))
        begun = machine.mark(of, came)
        machine.order(np.full(len(of), begins), begun)
        block = blocks.work(kinds.send, self._passing, begun, rank=of)
        ready = blocks.both(block, blocks.touch(touches * chunks, begun, rank=of), of)
        # Half of a block's warps store up, half down.
        storing = machine.costs.sm_store(each).shared_by(blocks.count) * 2
        slow = paces(machine, self._protocol, each, blocks.count)
        issued = ready[:, None]
        if slow:
            for _ in range(pieces):
                ready = blocks.work(kinds.send, storing, ready, rank=of)
                issued = np.column_stack((issued, ready))
            issued = issued[:, 1:]
        piece = np.arange(pieces * len(chunks)) % pieces
        at = np.repeat(np.arange(len(chunks)), pieces)
        carried = chunks[at] * (piece + 1) // pieces - chunks[at] * piece // pieces
        carried = carried * self._payload
        size = np.maximum(-(-stored[at] // pieces), carried)
        src, dst = np.full(len(at), rank), np.full(len(at), peer)
        sent, landed = machine.transfers.store(
            kinds,
            src,
            dst,
            carried,
            issued[at, piece * slow],
            meta_bytes=size - carried,
        )
        last = np.arange(1, len(chunks) + 1) * pieces - 1
        left = sent[last]
        if not blocks.alone and self._protocol.channel_rate is None and not slow:
            # The link holds the blocks up, which store meanwhile.
            left = blocks.both(left, blocks.work(kinds.send, storing * pieces, ready, rank=of), of)
        # A chunk's turn comes when the one before has been stored.
        machine.order(left[:-1], begun[1:])
        known = machine.delay(kinds.sync, notice_time(machine, self._protocol), landed[last], dst[last])
        machine.order(landed, known[at])
        return left, known


def _chunks(machine: Machine, nbytes: int, protocol: Protocol, channels: int) -> Ints:
    """(chunk,): bytes of what all channels pass together, the largest first."""
    step = STEP_OF_BUFFER[protocol.name]
    if protocol.name == "LL128":
        # NCCL counts what a chunk has with its flags; steps of one node.
        step = step * 16 // 15
        n = machine.num_ranks
        steps = 1 + n / 10
        for wanted, least in zip((64, 16), LARGEST_HALVED, strict=True):
            while nbytes // (channels * step) < steps * wanted / n and step > least:
                step //= 2
        step = step * 15 // 16
    count = max(1, -(-nbytes // (channels * step)))
    return np.maximum(1, np.diff(np.arange(count + 1) * nbytes // count)[::-1])


def _estimate_ps(machine: Machine, nbytes: int, protocol: Protocol, channels: int) -> int:
    """Time on idle ports: the last chunk on its way up and down, behind all others.

    A port in the middle has every chunk twice.
    """
    chunks = _chunks(machine, nbytes, protocol, channels)
    chunk = int(chunks[0])
    passing, copying = block_times(machine, protocol, chunk, channels)
    stored = int(protocol.stored_bytes(chunk))
    pieces, each = pieces_of(stored)
    storing, (of_piece, way) = Time(0), message_ps(machine, each)
    if paces(machine, protocol, each, channels):
        storing = machine.costs.sm_store(chunk).shared_by(channels) * 2
    on_port = pieces * of_piece
    hop = passing + storing + Time(on_port + of_piece + way) + notice_time(machine, protocol)
    hops = 2 * (machine.num_ranks - 1)
    shared = 2 if machine.num_ranks > 2 else 1
    behind = max(shared * on_port, int((passing + storing).ps) + on_port)
    return protocol.start_ps + int((hops * hop + copying).ps) + (len(chunks) - 1) * behind


TREE = Algorithm(
    ways=ways,
    name="tree",
    collectives=("all_reduce",),
    summary="NCCL's tree, within a domain a chain, under the quickest protocol",
    needs=("cuda",),
    source="NVIDIA/nccl src/graph/connect.cc, src/device/all_reduce.h",
)
