"""Chunks of NCCL's rings: how many, what blocks take for them, when a receiver knows of them.

Sources, all of NVIDIA/nccl: ``src/device/all_gather.h`` and its neighbours; 4 MiB buffers in 8
steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.model.machine.times import Time

if TYPE_CHECKING:
    from hwmodel.nccl import Protocol
    from replay.model.machine.machine import Machine

STEP_BYTES = 2 << 20
"""Largest chunk of a channel: half of its 4 MiB buffer (NCCL_STEPS / 2 steps)."""
LEAST_BYTES = 1024  # of a channel
STEP_OF_BUFFER = {"LL": 32 * 1024, "LL128": 600 * 1024 * 15 // 16, "Simple": 512 * 1024}
"""Data of a channel's chunk: a step of the buffers of 512 KiB (half of it flags), 4800 KiB (a 16th
of it flags) and 4 MiB."""
PIECES, LEAST_PIECE = 16, 4096
"""A chunk's stores are modelled as so many messages, so that it enters the target while it is
still leaving the source."""
LARGEST_PIECE = 512 * 1024
"""Of rings, whose steps wait for all of a chunk: the last piece enters the target alone, which is
not to count beside latencies."""


def most_channels(machine: Machine) -> int:
    """Channels that NCCL opens for rings in a domain, each a block on an SM."""
    return machine.system.nccl.ring_channels


def cut(nbytes: int, channels: int) -> tuple[int, int, int]:
    """Channels used, loops of each, and bytes of a loop of all of them."""
    used = max(1, min(channels, nbytes // LEAST_BYTES))
    loops = max(1, -(-nbytes // (used * STEP_BYTES)))
    return used, loops, max(1, -(-nbytes // loops))


def block_times(machine: Machine, protocol: Protocol, chunk: int, channels: int) -> tuple[Time, Time]:
    """Times of the blocks for a chunk of all channels: to pass it on, to copy it at the end."""
    passing = protocol.pass_ps(chunk, channels)
    # The last chunk of a loop is copied from the buffer to where it is wanted.
    copying = passing or machine.system.nccl.copy_rate.duration_ps(-(-chunk // channels))
    return Time(passing), Time(copying)


def notice_time(machine: Machine, protocol: Protocol) -> Time:
    """Time from the arrival of a chunk until its receiver knows of it."""
    return machine.costs.flag() if protocol.fenced else machine.costs.poll()


def message_ps(machine: Machine, nbytes: int) -> tuple[int, int]:
    """Times of a message on an idle port, and from there until it is visible at its target."""
    link, fabric = machine.system.link, machine.system.fabric
    way = fabric.uplink_latency_ps + fabric.downlink_latency_ps + fabric.write_visibility_ps
    return link.port_duration_ps(link.write_wire_bytes(nbytes)), way


def pieces_of(nbytes: int, largest: int | None = None) -> tuple[int, int]:
    """Messages that a chunk is stored as, and bytes of each, `largest` at most."""
    pieces = max(1, min(PIECES, nbytes // LEAST_PIECE))
    if largest is not None:
        pieces = max(pieces, -(-nbytes // largest))
    return pieces, -(-nbytes // pieces)


def share_of(nbytes: int, part: int, parts: int) -> int:
    """Bytes of one of several parts that are as equal as whole bytes allow."""
    return nbytes * (part + 1) // parts - nbytes * part // parts
