"""Contexts of a batch's tokens: counts for the attention between the layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hwmodel.attention import Scores
from replay.model.arrays import Counts, Ints, Ranks
from replay.model.work.ragged import pieces_from, places_in_runs

if TYPE_CHECKING:
    from replay.model.work.batch import Batch
    from tracegen import RoutingTrace


@dataclass(frozen=True)
class Context:
    """Queries, keys and their pairs on every rank.

    A token attends to all positions of its request up to its own. In prefill the tokens of one
    request on one rank are a *sequence*, whose keys and values are read once; in decode every token
    reads the cache of its own request.

    Attributes
    ----------
    tokens
        (rank,): tokens of each rank, which are its queries.
    positions
        (rank,): positions whose keys and values are read.
    pairs
        (rank,): pairs of a query and a key whose product is computed.
    blocks, longest
        (rank,): tiles of queries of a prefill kernel, and pairs of the longest; nothing in decode.
    requests
        (rank,): requests that are decoded, each with as many queries; nothing in prefill.
    """

    tokens: Counts
    positions: Ints
    pairs: Ints
    blocks: Ints | int = 0
    longest: Ints | int = 0
    requests: Ints | int = 0

    def __getitem__(self, ranks: slice) -> Context:
        """Context of some ranks."""
        some = (self.blocks, self.longest, self.requests)
        blocks, longest, requests = (each if isinstance(each, int) else each[ranks] for each in some)
        return Context(self.tokens[ranks], self.positions[ranks], self.pairs[ranks], blocks, longest, requests)

    def scores(self, heads: int) -> Scores[Ints]:
        """Scores that a prefill kernel of so many heads computes."""
        return Scores(heads * self.pairs, heads * self.blocks, self.longest)

    @classmethod
    def of(cls, trace: RoutingTrace, batch: Batch, tile: tuple[int, int]) -> Context:
        """Count what a batch attends to.

        Parameters
        ----------
        tile
            Queries and keys of a tile of a prefill kernel. A tile is computed in full unless the
            causal mask hides all of it; the last tile of a sequence may lack queries and keys.
        """
        rank, n = batch.source_rank.astype(np.int64), batch.num_ranks
        reach = trace.tokens.position[batch.rows].astype(np.int64) + 1
        tokens = np.bincount(rank, minlength=n)
        if batch.phase == "decode":
            attended = _sum(rank, reach, n)
            return cls(tokens, attended, attended, requests=tokens)
        order = np.lexsort((reach, trace.tokens.request[batch.rows], rank))
        rank, reach = rank[order], reach[order]
        request = trace.tokens.request[batch.rows].astype(np.int64)[order]
        sequence = rank * (int(request.max(initial=0)) + 1) + request
        rows, keys = tile
        tiles = pieces_from(places_in_runs(sequence) % rows == 0)
        last = reach[tiles.first + tiles.size - 1]  # the latest query of a tile sees most keys
        computed = rows * (-(-last // keys) * keys)
        is_last = np.diff(sequence, append=-1) != 0
        of = rank[tiles.first]
        longest = np.zeros(n, np.int64)
        np.maximum.at(longest, of, computed)
        return cls(
            tokens=tokens,
            positions=_sum(rank[is_last], reach[is_last], n),
            pairs=_sum(of, computed, n),
            blocks=np.bincount(of, minlength=n),
            longest=longest,
        )


def _sum(rank: Ranks, values: Ints, num_ranks: int) -> Ints:
    """(rank,): sum of the values of each rank."""
    total = np.zeros(num_ranks, np.int64)
    np.add.at(total, rank, values)
    return total
