"""NCCL's collectives of whole groups: rings under three protocols, all-reduce in the switch.

A channel is one thread block of each rank. In a ring it works through its steps one after another:
wait for a chunk from the ring's predecessor, add or copy, store it to the successor; it goes on
when the link has taken the chunk. The protocols (`hwmodel.nccl`) differ in what a chunk costs on
the wire and in how its arrival is signalled. NCCL takes the algorithm and protocol that its own
formulas say are the quickest; here the formulas are ours (`quickest`). Several nodes have a ring
for each rail (`replay.collectives.node_rings`), and trees for sums
(`replay.collectives.node_trees`).

Grouped sends and receives are `replay.collectives.point_to_point`.

Sources: NVIDIA/nccl (``src/device/all_gather.h`` and its neighbours; 4 MiB buffers in 8 steps,
channels; ``src/graph/tuning.cc`` for the choice); nccl-tests' definition of sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from replay.collectives import node_rings, node_trees
from replay.collectives.ring_chunks import block_times, cut, pieces_of, share_of, told
from replay.machine import multimem
from replay.machine.times import Time

if TYPE_CHECKING:
    from hwmodel.nccl import Protocol
    from replay.machine.kinds import PhaseKinds
    from replay.machine.machine import Ints, Machine

Collective = Literal["all_gather", "reduce_scatter", "all_reduce"]

NVLS_CHUNK = 128 * 1024
NVLS_CHANNELS = 16
NVLS_SLICES = 64  # most messages that one rank's share is modelled as
LEAST_NVLS_RANKS = 3  # two reduce without the switch


@dataclass(frozen=True)
class Way:
    """One way to run a collective.

    Attributes
    ----------
    name
        Algorithm and protocol.
    estimate_ps
        Its time by formula, from the start of the kernel.
    build
        Adds its tasks from (rank,) begins: (rank,) the last task of every rank.
    """

    name: str
    estimate_ps: int
    build: Callable[..., Ints]


def run(
    machine: Machine,
    kinds: PhaseKinds,
    collective: Collective,
    nbytes: int,
    begun: Ints,
    *,
    payload: bool = False,
) -> Ints:
    """Run a collective: (rank,) the last task of every rank.

    Parameters
    ----------
    nbytes
        As nccl-tests counts them: the larger of a rank's two buffers.
    begun
        (rank,): when each rank's kernel begins.
    payload
        Whether the bytes are token rows; only rings carry them.
    """
    way = quickest(machine, kinds, collective, nbytes, payload=payload)
    return way.build(begun, payload=True) if payload and nbytes else way.build(begun)


def quickest(
    machine: Machine,
    kinds: PhaseKinds,
    collective: Collective,
    nbytes: int,
    *,
    payload: bool = False,
) -> Way:
    """Choose an algorithm and a protocol as NCCL does: by formulas, from the size alone."""
    found = ways(machine, kinds, collective, nbytes, payload=payload)
    return min(found, key=lambda way: way.estimate_ps)


def ways(
    machine: Machine,
    kinds: PhaseKinds,
    collective: Collective,
    nbytes: int,
    *,
    payload: bool = False,
) -> list[Way]:
    """Every algorithm and protocol of a collective; see `run`."""
    n = machine.num_ranks
    steps = 2 * (n - 1) if collective == "all_reduce" else n - 1
    part = max(1, nbytes // n)
    if machine.num_domains > 1:
        found = [
            Way(
                f"ring {protocol.name}",
                node_rings.ring_ps(machine, part, protocol, steps, payload=payload),
                partial(
                    node_rings.ring, machine, kinds, nbytes=part, protocol=protocol, steps=steps
                ),
            )
            for protocol in machine.system.nccl.protocols
        ]
        if collective == "all_reduce":
            found += [
                Way(
                    f"tree {protocol.name}",
                    node_trees.all_reduce_ps(machine, nbytes, protocol),
                    partial(
                        node_trees.all_reduce, machine, kinds, nbytes=nbytes, protocol=protocol
                    ),
                )
                for protocol in machine.system.nccl.protocols
            ]
        return found
    found = [
        Way(
            f"ring {protocol.name}",
            _ring_ps(machine, part, protocol, steps),
            partial(ring, machine, kinds, nbytes=part, protocol=protocol, steps=steps),
        )
        for protocol in machine.system.nccl.protocols
    ]
    if collective == "all_reduce" and n >= LEAST_NVLS_RANKS and machine.system.switch.reduction:
        found.append(
            Way(
                "nvls",
                _nvls_ps(machine, nbytes),
                partial(nvls_all_reduce, machine, kinds, nbytes=nbytes),
            )
        )
    return found


# ---- rings -------------------------------------------------------------------------------------


def ring(
    machine: Machine,
    kinds: PhaseKinds,
    begun: Ints,
    *,
    nbytes: int,
    protocol: Protocol,
    steps: int,
    payload: bool = False,
) -> Ints:
    """Pass chunks round a ring: (rank,) the last task of every rank.

    A rank's channels do the same at the same time and share its ports evenly, so that they are
    one chain of tasks.

    Parameters
    ----------
    nbytes
        What a rank sends in each step.
    steps
        Steps that send: n - 1 for all-gather and reduce-scatter, 2 (n - 1) for all-reduce.
    payload
        Whether the bytes are token rows.
    """
    n, rank = machine.num_ranks, machine.ranks
    peer = (rank + 1) % n
    used, loops, chunk = cut(nbytes, machine.system.nccl.ring_channels)
    passing, copying = block_times(machine, protocol, chunk, used)
    at = machine.delay(kinds.sync, Time(protocol.start_ps), begun)
    for loop in range(loops):
        rows = share_of(nbytes, loop, loops) if payload else 0
        received = None
        for step in range(steps + 1):
            is_last = step == steps
            block = machine.delay(
                kinds.receive if is_last else kinds.send, copying if is_last else passing, at
            )
            if received is not None:
                machine.graph.edges(received, block)
            at = block
            if not is_last:
                nstored = protocol.stored_bytes(chunk)
                at, landed = _store(machine, kinds, peer, nstored, rows, block)
                # What a rank needs for its next step was sent by its predecessor.
                last, before = landed[-n:], landed[:-n] if payload else landed[:0]
                received = machine.delay(kinds.sync, told(machine, protocol), last, peer)
                # Ports keep the order of pieces; with edges, all rows are waited for.
                machine.graph.edges(before, np.tile(received, len(before) // n))
                received = received[(rank - 1) % n]
    return at


def _store(
    machine: Machine, kinds: PhaseKinds, dst: Ints, nbytes: int, rows: int, after: Ints
) -> tuple[Ints, Ints]:
    """Store a chunk, of which `rows` bytes are payload, from each rank to its `dst`.

    Returns
    -------
    (rank,): task that stores the last piece. (piece x rank,): tasks of all arrivals.
    """
    src, (pieces, each) = machine.ranks, pieces_of(nbytes)
    carried = np.repeat([share_of(rows, piece, pieces) for piece in range(pieces)], len(src))
    sent, landed = machine.transfers.store(
        kinds, np.tile(src, pieces), np.tile(dst, pieces), carried, np.tile(after, pieces),
        machine.transfers.fan_out(src, dst), meta_bytes=each - carried,
    )  # fmt: skip
    return sent[-len(src) :], landed


def _ring_ps(machine: Machine, nbytes: int, protocol: Protocol, steps: int) -> int:
    """Time of a ring on idle ports: steps one after the other, each a chunk on its way."""
    link, fabric = machine.system.link, machine.system.fabric
    used, loops, chunk = cut(nbytes, machine.system.nccl.ring_channels)
    passing, copying = block_times(machine, protocol, chunk, used)
    pieces, each = pieces_of(protocol.stored_bytes(chunk))
    of_piece = link.port_duration_ps(link.write_wire_bytes(each))
    way = fabric.uplink_latency_ps + fabric.downlink_latency_ps + fabric.write_visibility_ps
    step = passing + Time((pieces + 1) * of_piece + way) + told(machine, protocol)
    return protocol.start_ps + loops * int((steps * step + copying).ps)


# ---- in the switch -----------------------------------------------------------------------------


def nvls_all_reduce(machine: Machine, kinds: PhaseKinds, begun: Ints, *, nbytes: int) -> Ints:
    """Sum in the switch by load, spread by multicast store: (rank,) the last task of every rank.

    Each rank does so for its share of the buffer. Buffers that are not registered are copied to and
    from NVLS memory.
    """
    n = machine.num_ranks
    started = machine.delay(kinds.sync, Time(machine.system.nccl.nvls_start_ps), begun)
    share = -(-nbytes // n)
    slices = max(1, min(NVLS_SLICES, share // NVLS_CHUNK))
    owner = np.repeat(machine.ranks, slices)
    size = np.full(len(owner), -(-share // slices))
    staged = machine.stream(kinds.memory, 2 * _staged_bytes(nbytes), machine.ranks, started)
    met = machine.sync.barrier(kinds, staged)
    total = multimem.reduce(machine, kinds, owner, size, met[owner], payload=False)
    spread = multimem.multicast(machine, kinds, owner, 0, total, meta_bytes=size)
    return machine.sync.barrier(kinds, machine.gather(spread.arrived, spread.member, met))


def _staged_bytes(nbytes: int) -> int:
    """Bytes copied before the first access; the rest is copied meanwhile."""
    return min(nbytes, 4 * NVLS_CHUNK * NVLS_CHANNELS)


def _nvls_ps(machine: Machine, nbytes: int) -> int:
    """Time of the all-reduce on idle ports: either direction has all parts and a share of sums."""
    system, n = machine.system, machine.num_ranks
    share = -(-nbytes // n)
    wire = system.link.response_wire_bytes(nbytes) + system.link.write_wire_bytes(share)
    return (
        system.nccl.nvls_start_ps
        + int(machine.costs.stream(2 * _staged_bytes(nbytes)).ps)
        + 2 * system.overheads.barrier_ps(n)
        + system.switch.multimem_duration_ps(wire)
    )
