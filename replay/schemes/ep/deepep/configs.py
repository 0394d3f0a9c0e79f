"""Chunks and rings of DeepEP's normal kernels, as shipped by number of ranks.

Source: deepseek-ai/DeepEP at dd758ca, ``get_dispatch_config`` and ``get_combine_config`` of the
legacy buffer; ``Config`` in ``csrc/config.hpp`` rounds rings of the network up to whole chunks.
Between the listed numbers of ranks, for which the library has nothing, the next larger is taken.
"""

from __future__ import annotations

from typing import NamedTuple

from replay.errors import UserError


class Config(NamedTuple):
    """Sizes in tokens.

    Attributes
    ----------
    chunk, ring
        Of NVLink: rows stored before the receiver is told, and rows of a ring.
    rdma_chunk, rdma_ring
        The same between nodes; 0 inside one.
    """

    chunk: int
    ring: int
    rdma_chunk: int = 0
    rdma_ring: int = 0


# (up to ranks, dispatch, combine)
INSIDE = (
    (2, Config(24, 256), Config(24, 256)),
    (8, Config(6, 256), Config(4, 256)),
    (16, Config(36, 288), Config(4, 288)),
    (64, Config(32, 288), Config(1, 288)),
)
BETWEEN = (
    (16, Config(36, 288, 20, 128), Config(4, 288, 12, 128)),
    (64, Config(32, 288, 8, 128), Config(1, 288, 8, 128)),
    (96, Config(20, 480, 12, 128), Config(1, 480, 8, 128)),
    (128, Config(20, 560, 12, 128), Config(1, 560, 8, 128)),
    (144, Config(32, 720, 12, 128), Config(2, 720, 8, 128)),
    (160, Config(28, 720, 12, 128), Config(2, 720, 8, 128)),
)
UCCL = (
    (16, Config(36, 288, 20, 512), Config(4, 288, 12, 512)),
    (24, Config(8, 288, 32, 128), Config(1, 288, 8, 128)),
    (32, Config(32, 288, 32, 512), Config(1, 288, 8, 512)),
    (64, Config(20, 288, 28, 128), Config(1, 288, 20, 128)),
    (128, Config(20, 560, 32, 128), Config(1, 560, 12, 128)),
    (144, Config(32, 720, 12, 128), Config(2, 720, 8, 128)),
    (160, Config(28, 720, 12, 128), Config(2, 720, 8, 128)),
)
"""Between nodes, uccl-project/uccl at 0dc87eb, ``ep/deep_ep_wrapper/deep_ep/buffer.py``, on EFA."""
NODES = (2, 3, 4, 6, 8, 12, 16, 18, 20)  # SWITCH_RDMA_RANKS: numbers of nodes compiled for


def default_config(num_ranks: int, num_nodes: int, is_combine: bool, transport: str = "warps") -> Config:
    """Settings that the library ships for a group of ranks."""
    table = INSIDE if num_nodes == 1 else UCCL if transport == "uccl" else BETWEEN
    row = next((row for row in table if num_ranks <= row[0]), table[-1])
    return row[2] if is_combine else row[1]


def full_config(given: Config, default: Config, num_nodes: int) -> Config:
    """Configuration of given values, of `default` where they are 0; rings hold at least a chunk.

    Raises
    ------
    UserError
        If the kernels between nodes would not take it.
    """
    chunk, ring, rdma_chunk, rdma_ring = (one or other for one, other in zip(given, default, strict=True))
    if num_nodes == 1:
        return Config(chunk, max(ring, chunk))
    rdma_ring = -(-rdma_ring // rdma_chunk) * rdma_chunk
    if 2 * rdma_chunk > rdma_ring:
        message = (
            f"scheme 'deepep': chunks of {rdma_chunk} tokens between nodes need a ring of at least "
            f"{2 * rdma_chunk}, not {rdma_ring} (rdma_ring_tokens)"
        )
        raise UserError(message)
    if chunk >= ring or chunk > ring // num_nodes:
        message = (
            f"scheme 'deepep': chunks of {chunk} tokens within {num_nodes} nodes need a ring of at "
            f"least {max(chunk + 1, chunk * num_nodes)}, not {ring} (ring_tokens)"
        )
        raise UserError(message)
    return Config(chunk, ring, rdma_chunk, rdma_ring)
