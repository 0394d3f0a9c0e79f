"""Buffers that DeepEP's first version allocates once, by the formulas of its library.

Source: deepseek-ai/DeepEP at dd758ca, ``config.hpp`` (`Config.get_nvl_buffer_size_hint`,
`Config.get_rdma_buffer_size_hint`,
`LowLatencyLayout`, `get_low_latency_rdma_size_hint`).
"""

from __future__ import annotations

from replay.model.work.precision import SCALE_BLOCK
from replay.schemes.ep.deepep.grid import padded_bytes

ALIGNMENT = 128
INT_BYTES = 4
BF16_BYTES = 2

# Of the rings: beside each row where it is from, and room for 128 experts with their weights and
# 128 scales; of each ring heads and tails, and for each node offsets and ends.
RING_META_BYTES, RING_HEADS, RING_HEADS_OF_NODE = 8 + 128 * (8 + 4) + 128 * 4, 3, 2
VLLM_BYTES = 1 << 30  # whatever is needed: VLLM_DEEPEP_BUFFER_SIZE_MB, of either buffer

# Of the rings between nodes: counts before the rows, 16 bytes more for a row, a MiB to be safe.
COUNTS_BEFORE, RDMA_ROW_BYTES, RDMA_SPARE_BYTES = 2 * 8 + 2, 16, 1 << 20

HEADER_BYTES = 16  # of a low-latency row: index of the token at its source, and room for more


def ring_bytes(num_channels: int, num_ranks: int, num_tokens: int, hidden: int, num_nodes: int = 1) -> int:
    """Bytes of a GPU's rings: one of `num_tokens` for each channel and GPU of its node."""
    heads = RING_HEADS + RING_HEADS_OF_NODE * num_nodes
    row = BF16_BYTES * hidden + RING_META_BYTES
    of_node = num_ranks // num_nodes
    return _align(num_channels * of_node * (heads * INT_BYTES + num_tokens * row))


def rdma_ring_bytes(num_channels: int, num_nodes: int, num_tokens: int, hidden: int) -> int:
    """Bytes of a GPU's rings between nodes: two for each channel and node, to send and to receive."""
    row = BF16_BYTES * hidden + RING_META_BYTES + RDMA_ROW_BYTES
    each = COUNTS_BEFORE * INT_BYTES + num_tokens * row
    return _align(2 * num_channels * num_nodes * each + RDMA_SPARE_BYTES)


def low_latency_bytes(num_tokens: int, hidden: int, num_experts: int) -> int:
    """Bytes of the symmetric buffer with room for `num_tokens` of each rank; all is doubled."""
    hidden = padded_bytes(hidden, hidden)
    scales = hidden // SCALE_BLOCK * 4  # out an FP32, back the smallest and the largest value
    out = HEADER_BYTES + max(BF16_BYTES * hidden, hidden + scales)
    back = BF16_BYTES * hidden + scales
    messages = num_experts * num_tokens
    send, receive = max(num_tokens * out, messages * back), messages * max(out, back)
    both = 2 * (send + receive + _align(INT_BYTES * num_experts))
    return _align(both + 1)  # the library adds 128 bytes to what is aligned


def _align(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
