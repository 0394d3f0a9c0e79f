"""Wire bytes of rows, packet by packet."""

from __future__ import annotations


def write_packets(nbytes: int, extra_flits: int = 0) -> int:
    """Wire bytes of one row of stores, packet by packet: 128 B of data, flits of 16 B."""
    wire = 0
    while nbytes > 0:
        data = min(nbytes, 128)
        flits, rest = divmod(data, 16)
        wire += 16 * (1 + extra_flits + flits + (2 if rest else 0))  # a partial flit has enables
        nbytes -= data
    return wire


def response_packets(nbytes: int) -> int:
    """Wire bytes of the answer to one row of loads: whole flits, no byte enables."""
    wire = 0
    while nbytes > 0:
        data = min(nbytes, 128)
        wire += 16 * (1 + -(-data // 16))
        nbytes -= data
    return wire
