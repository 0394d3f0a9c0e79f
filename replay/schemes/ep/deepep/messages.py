"""Rows between ranks in blocks of tokens, as the low-latency kernels send them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.work.ragged import places

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Ranks
    from replay.model.work.layer import LayerWork

NODE_GPUS = 8  # GPUs of a node that DeepEP is compiled for (NUM_MAX_NVL_PEERS)


class TokenMessages:
    """Rows between ranks, cut into blocks of consecutive tokens of their owner.

    Attributes
    ----------
    owner, other, block, rows
        (message,): owner of the tokens, rank of the experts, block of the owner, rows in it.
    tokens
        (rank x block,): tokens of each block.
    """

    def __init__(self, work: LayerWork, tokens: Ints, ranks: Ranks, block_of_token: Ints) -> None:
        n = work.num_ranks
        self.num_blocks = int(block_of_token.max(initial=0)) + 1
        key = (work.source_rank[tokens] * self.num_blocks + block_of_token[tokens]) * n + ranks
        unique, count = np.unique(key, return_counts=True)
        owner, rest = np.divmod(unique, self.num_blocks * n)
        block, other = np.divmod(rest, n)
        # Blocks in turn, and each rank begins with another peer, as the kernels do.
        order = np.lexsort((owner, (other - owner) % n, block))
        self.owner, self.other, self.block = owner[order], other[order], block[order]
        self.rows = count[order]
        self.tokens = np.bincount(work.source_rank * self.num_blocks + block_of_token, minlength=n * self.num_blocks)


def blocks_of_tokens(work: LayerWork, most: int) -> Ints:
    """(token,): block of the token within its rank."""
    tokens = np.diff(work.tokens_of_rank)
    blocks: Ints = places(tokens) // -(-int(tokens.max()) // most)
    return blocks
