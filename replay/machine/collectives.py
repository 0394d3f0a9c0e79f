"""NCCL's algorithms as task graphs: rings, all-to-all and in-switch all-reduce, three protocols.

A channel is one thread block of each rank. It works through its steps one after another: wait for
a chunk from the ring's predecessor, add or copy, store it to the successor; it goes on when the
link has taken the chunk. The protocols differ in what a chunk costs on the wire and in how its
arrival is signalled: LL puts a flag beside every 4 bytes, LL128 one into every 128 bytes, Simple
stores plain data, waits for it with a fence and then sets a flag. NCCL takes the quickest by its
own estimate; here it is the quickest by ours.

Sources: NVIDIA/nccl (primitives, 4 MiB buffers in 8 steps, channels); nccl-tests' definition of
sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.machine.kinds import DISPATCH, Kind
from replay.machine.times import Time

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine

CHANNELS = 16
STEP_BYTES = 2 << 20
"""Largest chunk of a channel: half of its 4 MiB buffer (NCCL_STEPS / 2 steps)."""
LEAST_BYTES = 1024  # of a channel


@dataclass(frozen=True)
class Protocol:
    """A way of carrying chunks.

    Attributes
    ----------
    name
        As NCCL calls it.
    wire_factor
        Bytes stored per byte of data.
    fenced
        Whether a chunk is fenced and its flag stored afterwards.
    start_ps
        From the launch until the first chunk can leave.
    step_ps
        Work of a block for each chunk, beside its bytes.
    channel_GB_per_s
        Rate at which data pass a block's registers, in or out; 0 where its SM's copying is the
        limit.
    """

    name: str
    wire_factor: float
    fenced: bool
    start_ps: int
    step_ps: int
    channel_GB_per_s: float

    def pass_ps(self, nbytes: int, channels: int) -> int:
        """Time that blocks need to pass so many bytes, together."""
        if not self.channel_GB_per_s:
            return 0
        return round(nbytes * 1e3 / (self.channel_GB_per_s * channels))


# Fitted to NCCL 2.29.2 on 2 to 8 x H100 (nccl_collectives); steps and starts read off the times
# of small collectives by their number of steps, channel rates off the growth of 1 to 2 MB.
PROTOCOLS = (
    Protocol("LL", 2.0, False, start_ps=4_400_000, step_ps=0, channel_GB_per_s=6.0),
    Protocol("LL128", 16 / 15, False, start_ps=5_200_000, step_ps=350_000, channel_GB_per_s=20.0),
    Protocol("Simple", 1.0, True, start_ps=15_000_000, step_ps=0, channel_GB_per_s=0.0),
)
NVLS_START_PS = 25_000_000  # NVIDIA/nccl tuning: base latency of NVLS


def _cut(nbytes: int, channels: int, step_bytes: int = STEP_BYTES) -> tuple[int, int, int]:
    """Channels used, loops of each, and bytes of a loop of all of them."""
    used = max(1, min(channels, nbytes // LEAST_BYTES))
    loops = max(1, -(-nbytes // (used * step_bytes)))
    return used, loops, max(1, -(-nbytes // loops))


def ring(machine: Machine, start: Ints, nbytes: int, protocol: Protocol, *, steps: int) -> Ints:
    """Pass chunks round a ring: (rank,) the last task of every rank.

    A rank's channels do the same at the same time and share its ports evenly, so that they are
    one chain of tasks.

    Parameters
    ----------
    nbytes
        What a rank sends in each step.
    steps
        Steps that send: n - 1 for all-gather and reduce-scatter, 2 (n - 1) for all-reduce.
    """
    n, graph = machine.num_ranks, machine.graph
    used, loops, chunk = _cut(nbytes, CHANNELS)
    rank = machine.ranks
    peer = (rank + 1) % n
    passing = protocol.step_ps + protocol.pass_ps(chunk, used)
    # The last chunk of a loop is copied from the buffer to where it is wanted.
    copying = protocol.pass_ps(chunk, used) or machine.system.sm.copy_out_ps(-(-chunk // used))
    at = machine.delay(Kind.LAUNCH, Time(protocol.start_ps), start)
    for _ in range(loops):
        received = None
        for step in range(steps + 1):
            is_last = step == steps
            block = graph.add(
                n, resource=-1, duration_ps=copying if is_last else passing,
                kind=Kind.DISPATCH_RECEIVE if is_last else Kind.DISPATCH_SEND, rank=rank, after=at,
            )  # fmt: skip
            if received is not None:
                graph.edges(received, block)
            at = block
            if not is_last:
                at, landed = _store(machine, rank, peer, int(chunk * protocol.wire_factor), block)
                # What a rank needs for its next step was sent by its predecessor.
                received = _noticed(machine, protocol, peer, landed)[(rank - 1) % n]
    return at


PIECES, LEAST_PIECE = 16, 4096
"""A chunk's stores are modelled as so many messages, so that it enters the target while it is
still leaving the source."""


def _store(machine: Machine, src: Ints, dst: Ints, nbytes: int, after: Ints) -> tuple[Ints, Ints]:
    """Store a chunk from each `src` to its `dst`: (message,) tasks of its last piece."""
    pieces = max(1, min(PIECES, nbytes // LEAST_PIECE))
    each = -(-nbytes // pieces)
    sent, landed = machine.transfers.store(
        DISPATCH, np.tile(src, pieces), np.tile(dst, pieces), each, np.tile(after, pieces),
        machine.transfers.fan_out(src, dst),
    )  # fmt: skip
    return sent[-len(src) :], landed[-len(src) :]


def _noticed(machine: Machine, protocol: Protocol, peer: Ints, landed: Ints) -> Ints:
    """Tasks after which the receiver knows of a chunk."""
    wait = machine.costs.flag() if protocol.fenced else machine.costs.poll()
    return machine.delay(Kind.DISPATCH_SYNC, wait, landed, peer)


def all_to_all(machine: Machine, start: Ints, nbytes: int, protocol: Protocol) -> Ints:
    """Send and receive with every peer at once, `nbytes` in all: (task,) the last ones.

    Parameters
    ----------
    nbytes
        A rank's whole buffer, of which its own share is copied in memory.
    """
    n, graph = machine.num_ranks, machine.graph
    share = max(1, nbytes // n)
    used, loops, chunk = _cut(share, max(1, PAIR_CHANNELS // max(n - 1, 1)), PAIR_STEP_BYTES)
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    begun = machine.delay(Kind.LAUNCH, Time(protocol.start_ps + PAIR_START_PS), start)
    at, received, ends = begun[src], begun[dst], []
    passing = protocol.step_ps + protocol.pass_ps(chunk, used)
    copying = protocol.pass_ps(chunk, used) or machine.system.sm.copy_out_ps(-(-chunk // used))
    for _ in range(loops):
        block = graph.add(
            len(src), resource=-1, duration_ps=passing, kind=Kind.DISPATCH_SEND,
            rank=src, after=at,
        )  # fmt: skip
        at, landed = _store(machine, src, dst, int(chunk * protocol.wire_factor), block)
        noticed = _noticed(machine, protocol, dst, landed)
        copied = graph.add(
            len(src), resource=-1, duration_ps=copying, kind=Kind.DISPATCH_RECEIVE,
            rank=dst, after=noticed,
        )  # fmt: skip
        graph.edges(received, copied)
        received = copied
    ends += [at, received]
    # The own share goes through the channels, too, after what is for others.
    done = machine.gather(at, src, begun)
    own = machine.stream(Kind.DISPATCH_MEMORY, 2 * share, machine.ranks, done)
    return np.concatenate((*ends, own))


PAIR_CHANNELS, PAIR_STEP_BYTES = 32, 256 * 1024
PAIR_START_PS = 1_000_000  # looking up each peer's work; alltoall against all_gather of 512 bytes
NVLS_CHUNK = 128 * 1024
MULTIMEM_SMS = 16
NVLS_SLICES = 64  # most messages that one rank's share is modelled as


def nvls_all_reduce(machine: Machine, start: Ints, nbytes: int) -> Ints:
    """Sum in the switch by load, spread by multicast store: (task,) the last ones.

    Each rank does so for its share of the buffer. The caller's own part passes the switch, too.
    Buffers that are not registered are copied to and from NVLS memory.
    """
    n = machine.num_ranks
    begun = machine.delay(Kind.LAUNCH, Time(NVLS_START_PS), start)
    share = -(-nbytes // n)
    slices = max(1, min(NVLS_SLICES, share // NVLS_CHUNK))
    size = -(-share // slices)
    owner = np.repeat(np.arange(n), slices)
    of = np.repeat(np.arange(n * slices), n)
    member = np.tile(np.arange(n), n * slices)
    staging = min(nbytes, 4 * NVLS_CHUNK * MULTIMEM_SMS)  # the rest overlaps
    staged = machine.stream(Kind.DISPATCH_MEMORY, 2 * staging, machine.ranks, begun)
    met = machine.sync.barrier(DISPATCH, staged)
    pulled = machine.switch.reduce(DISPATCH, owner, of, member, size, met[owner], fixed_group=True)
    spread = machine.switch.multicast(
        DISPATCH, owner, of, member, size, pulled.total, fixed_group=True
    )
    return machine.sync.barrier(DISPATCH, machine.gather(spread.arrived, member, met))
