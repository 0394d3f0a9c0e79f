"""One iteration of a serving engine: the tokens that its GPUs run together.

The engine's GPUs are *workers*: groups of GPUs with requests of their own (data-parallel
attention), which meet in every MoE layer, so that an iteration of all of them ends together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class PromptPiece(NamedTuple):
    """Tokens of one prompt that are prefilled in an iteration.

    Attributes
    ----------
    tokens
        How many.
    before
        Positions of the same request that are in the cache already.
    """

    tokens: int
    before: int


@dataclass(frozen=True)
class Load:
    """Requests of a worker's iteration.

    Attributes
    ----------
    decoding
        Requests that are decoded.
    queries
        Tokens that each of them brings: 1, or with speculative decoding as many as are verified.
    positions
        Positions of their caches, of all together.
    prefill
        Pieces of prompts.
    idle
        Requests among those decoded that are none: padding up to a captured size.
    """

    decoding: int = 0
    queries: int = 1
    positions: int = 0
    prefill: tuple[PromptPiece, ...] = ()
    idle: int = 0

    @property
    def padding(self) -> int:
        """Rows of padding."""
        return self.idle * self.queries

    @property
    def tokens(self) -> int:
        """Rows that enter the layers."""
        return self.decoding * self.queries + sum(piece.tokens for piece in self.prefill)
