"""NCCL's rings within an NVLink domain: all-gather, reduce-scatter and all-reduce.

A channel is one thread block of each rank. It works through its steps one after another: wait for
a chunk from the ring's predecessor, add or copy, store it to the successor; it goes on when the
link has taken the chunk. The protocols (`hwmodel.nccl`) differ in what a chunk costs on the wire
and in how its arrival is signalled.

Under LL and LL128 data pass the registers of a block at the protocol's own rate. Under Simple a
block stores as fast as an SM does; where the blocks of a rank are slower than its link together,
pieces of a chunk leave at their pace, and elsewhere the link holds the blocks up.

Sources: NVIDIA/nccl (``src/device/all_gather.h`` and its neighbours; 4 MiB buffers in 8 steps,
channels); nccl-tests' definition of sizes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from replay.model.collectives.algorithm import (
    COLLECTIVES,
    Algorithm,
    Collective,
    CollectiveCall,
    Way,
)
from replay.model.collectives.blocks import HELD, KernelBlocks, PipelinedKernel, held_by
from replay.model.collectives.ring_chunks import (
    LARGEST_PIECE,
    block_times,
    cut,
    message_ps,
    most_channels,
    notice_time,
    pieces_of,
    share_of,
)
from replay.model.machine.times import Time

if TYPE_CHECKING:
    from hwmodel.nccl import Protocol
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine


def steps_of(collective: Collective, num_ranks: int) -> int:
    """Steps of a ring in which a rank sends."""
    return (2 if collective == "all_reduce" else 1) * (num_ranks - 1)


def ways(call: CollectiveCall) -> list[Way]:
    """The ring under every protocol."""
    machine, part = call.machine, part_of(call)
    steps = steps_of(call.collective, machine.num_ranks)
    channels = call.blocks or most_channels(machine)
    return [
        Way(
            f"ring {protocol.name}",
            cut(part, channels)[0],
            _estimate_ps(machine, part, protocol, steps, channels),
            partial(ring, call, protocol=protocol, channels=channels),
        )
        for protocol in machine.system.nccl.protocols
    ]


def part_of(call: CollectiveCall) -> int:
    """Bytes that a rank sends in each step."""
    return max(1, call.nbytes // call.machine.num_ranks)


def ring(call: CollectiveCall, begun: Tasks, *, protocol: Protocol, channels: int) -> Tasks:
    """Pass chunks round a ring: (rank,) the last task of every rank.

    A rank's channels do the same at the same time and share its ports evenly, so that they are
    one chain of tasks. Beside other kernels, memory is charged where blocks read and write their
    own: the chunk that came and its own one or the copy, as in `replay.model.collectives.chains`.

    Parameters
    ----------
    channels
        Channels at most.
    """
    machine, kinds, nbytes = call.machine, call.kinds, part_of(call)
    used, loops, _ = cut(nbytes, channels)
    blocks = KernelBlocks(machine, kinds, used, call.beside, name=held_by(call.collective))
    at = machine.delay(kinds.sync, machine.costs.library_start(protocol), blocks.begin(begun))
    at = _pass_round(
        machine,
        kinds,
        blocks,
        at,
        collective=call.collective,
        nbytes=nbytes,
        loops=loops,
        protocol=protocol,
        payload=call.carries_payload,
    ).ends
    return blocks.end(at)


def rounds_of(machine: Machine, nbytes: int, channels: int) -> int:
    """Loops of the channels round the ring for a buffer of so many bytes: loops of `cut`."""
    return cut(max(1, nbytes // machine.num_ranks), channels)[1]


def chunk_pipeline(
    call: CollectiveCall, begun: Tasks, *, channels: int, parts: int, ready: Tasks | None = None
) -> PipelinedKernel:
    """Pass chunks round a ring as a kernel beside makes them; say when each is there.

    In every round a rank's channels share the chunk of each owner evenly, in `parts` groups of as
    many channels as there are, or one more. Each group waits for its own part of a chunk, and goes
    on alone. The kernel holds all its channels' SMs, whether or not so many bytes need them all.

    Parameters
    ----------
    channels
        Thread blocks of each rank, at least `parts`.
    ready
        (rank, owner, round, part): task at which a rank has its own summand of the part; None for
        an all-gather, whose own rows are in place when the kernel begins. Rounds: `rounds_of`.

    See Also
    --------
    ring : the other parameters. The bytes are payload.
    """
    machine, kinds, collective = call.machine, call.kinds, call.collective
    share, loops = part_of(call), rounds_of(machine, call.nbytes, channels)
    steps = steps_of(collective, machine.num_ranks)
    protocol = min(
        machine.system.nccl.protocols,
        key=lambda one: _estimate_ps(machine, share, one, steps, channels),
    )
    passed = []
    for part in range(parts):
        of_part = share_of(share, part, parts)
        held = share_of(channels, part, parts)
        used = cut(of_part, held)[0]
        blocks = KernelBlocks(machine, kinds, used, call.beside, held=held, name=f"{HELD}, part {part}")
        at = machine.delay(kinds.sync, machine.costs.library_start(protocol), blocks.begin(begun))
        own = None if ready is None else ready[..., part]
        one = _pass_round(
            machine,
            kinds,
            blocks,
            at,
            collective=collective,
            nbytes=of_part,
            loops=loops,
            protocol=protocol,
            payload=True,
            ready=own,
        )
        passed.append(PipelinedKernel(blocks.end(one.ends), one.known))
    ends = machine.mark(machine.ranks, begun)
    for one in passed:
        machine.order(one.ends, ends)
    return PipelinedKernel(ends, np.stack([one.known for one in passed], axis=-1))


def _pass_round(
    machine: Machine,
    kinds: PhaseKinds,
    blocks: KernelBlocks,
    at: Ints,
    *,
    collective: Collective,
    nbytes: int,
    loops: int,
    protocol: Protocol,
    payload: bool,
    ready: Tasks | None = None,
) -> PipelinedKernel:
    """Let blocks that have begun, `at` (rank,), pass chunks round; see `ring` and `chunk_pipeline`.

    What is known of chunks is (rank, owner, round), -1 for what a rank never has.

    In the first of its steps a rank sends the chunk of the rank before it, or its own of an
    all-gather, and in each further one that of the rank before.
    """
    n, ranks = machine.num_ranks, machine.ranks
    steps, chunk = steps_of(collective, n), max(1, -(-nbytes // loops))
    passing, copying = block_times(machine, protocol, chunk, blocks.count)
    complete = 0 if collective == "all_gather" else n - 1  # step in which it has its own chunk
    known = np.full((n, n, loops), -1, np.int64)
    # All steps between the first and the last of a kernel alone do the same.
    alike = range(2, steps) if blocks.alone and ready is None else range(0)
    for loop in range(loops):
        rows = share_of(nbytes, loop, loops) if payload else 0
        awaited: tuple[Ints, ...] = ()
        for step in (one for one in range(steps + 1) if one not in alike):
            is_last, begin = step == steps, machine.graph.position
            if ready is not None and step < n:
                awaited = (*awaited, ready[ranks, (ranks - 1 - step) % n, loop])
            kind, time = (kinds.receive, copying) if is_last else (kinds.send, passing)
            block = blocks.work(kind, time, at, *awaited)
            touched = blocks.touch(chunk * _touches(collective, step, n), at, *awaited)
            if step >= complete and not blocks.alone:
                owner = (ranks - step + complete) % n
                known[ranks, owner, loop] = blocks.both(block, touched)
            at = block
            if not is_last:
                at, received = _store(machine, kinds, blocks, protocol, chunk, rows, block)
                awaited = (received,)
            at = blocks.both(at, touched)
            if alike and step == alike.start - 1:
                later = machine.repeat(begin, len(alike))
                at, awaited = at + later, (received + later,)
    return PipelinedKernel(at, known)


def _touches(collective: Collective, step: int, num_ranks: int) -> int:
    """Times that the bytes of a chunk are read from, or written to, a rank's memory in a step.

    The first step reads its own chunk. One that copies reads what came and writes it; one that
    adds reads what came and its own summand. Whoever has the sum first writes it, too.
    """
    if step == 0:
        return 1
    ends_sum = step == num_ranks - 1 and collective != "all_gather"
    return 3 if ends_sum else 2


def _store(
    machine: Machine,
    kinds: PhaseKinds,
    blocks: KernelBlocks,
    protocol: Protocol,
    chunk: int,
    rows: int,
    after: Tasks,
) -> tuple[Ints, Ints]:
    """Store a chunk, of which `rows` bytes are payload, from each rank to its successor.

    Returns
    -------
    (rank,): task that stores the last piece; when each rank knows of its predecessor's chunk.
    """
    src, n = machine.ranks, machine.num_ranks
    dst = (src + 1) % n
    pieces, each = pieces_of(protocol.stored_bytes(chunk), LARGEST_PIECE)
    carried = np.repeat([share_of(rows, piece, pieces) for piece in range(pieces)], n)
    ready = _of_each(after, pieces)
    slow = paces(machine, protocol, each, blocks.count)
    if slow:
        storing = machine.costs.sm_store(each).shared_by(blocks.count)
        for piece in range(pieces):
            after = ready[piece * n : (piece + 1) * n] = blocks.work(kinds.send, storing, after)
    sent, landed = machine.transfers.store(
        kinds,
        _of_each(src, pieces),
        _of_each(dst, pieces),
        carried,
        ready,
        meta_bytes=each - carried,
    )
    last_sent = sent[-n:]
    if not blocks.alone and protocol.channel_rate is None and not slow:
        # The link holds the blocks up, which store meanwhile.
        storing = machine.costs.sm_store(chunk).shared_by(blocks.count)
        last_sent = blocks.both(last_sent, blocks.work(kinds.send, storing, after))
    # What a rank needs for its next step was sent by its predecessor. Ports keep the order of
    # pieces; with edges, all rows are waited for.
    last, before = landed[-n:], landed[:-n] if rows else landed[:0]
    known = machine.delay(kinds.sync, notice_time(machine, protocol), last, dst)
    if len(before):
        machine.order(before, _of_each(known, len(before) // n))
    return last_sent, known[(src - 1) % n]


def _of_each(values: Ints, pieces: int) -> Ints:
    """Values (rank,) of each piece: (piece * rank,); as `numpy.tile`, which takes ten times as long."""
    return np.concatenate([values] * pieces)


def paces(machine: Machine, protocol: Protocol, nbytes: int, blocks: int) -> bool:
    """Tell whether blocks of protocol Simple store so many bytes later than their link takes them."""
    if protocol.channel_rate is not None:
        return False
    storing = machine.costs.sm_store(nbytes).shared_by(blocks)
    return bool(storing.ps > message_ps(machine, nbytes)[0])


def _estimate_ps(machine: Machine, nbytes: int, protocol: Protocol, steps: int, channels: int) -> int:
    """Time of a ring on idle ports: steps one after the other, each a chunk on its way."""
    used, loops, chunk = cut(nbytes, channels)
    passing, copying = block_times(machine, protocol, chunk, used)
    pieces, each = pieces_of(protocol.stored_bytes(chunk), LARGEST_PIECE)
    of_piece, way = message_ps(machine, each)
    if paces(machine, protocol, each, used):
        of_piece = int(machine.costs.sm_store(each).shared_by(used).ps)
    step = passing + Time((pieces + 1) * of_piece + way) + notice_time(machine, protocol)
    return protocol.start_ps + loops * int((steps * step + copying).ps)


RING = Algorithm(
    ways=ways,
    name="ring",
    collectives=COLLECTIVES,
    summary="NCCL's rings, under the quickest of its protocols",
    needs=("cuda",),
    source="NVIDIA/nccl src/device/all_reduce.h and its neighbours",
)
