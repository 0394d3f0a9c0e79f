"""Routes of Pangu's rows: the GPU that gathers a token in a node, the expert's GPU there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.model.work.ragged import places

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.machine.domains import Domains
    from replay.model.work.layer import LayerWork


@dataclass(frozen=True)
class TokenPart:
    """Tokens that travel together.

    Attributes
    ----------
    tokens
        How many each rank has of its own; all ranks have equally many.
    token
        (own,): the tokens.
    inside
        (rank, rank): (token, expert) rows from the GPU that has gathered them to the experts' GPU
        of the same node.
    wanted
        (rank,): gathered tokens that have an expert in the node.
    pair, place
        (row,): the pair of each row, and its place in what its first GPU sends its second.
    """

    tokens: int
    token: Ints
    inside: Ints
    wanted: Ints
    pair: Ints
    place: Ints


class Routes:
    """The ways of one layer's rows.

    Parameters
    ----------
    work
        A layer whose ranks have equally many tokens.
    domains
        Nodes: who is in one, and who is whose peer in another.
    num_parts
        Parts in which tokens travel.

    Attributes
    ----------
    gatherer
        (pair,): the GPU in the expert's node that has the index of the token's owner.
    """

    def __init__(self, work: LayerWork, domains: Domains, num_parts: int) -> None:
        self._work, self._domains = work, domains
        self.gatherer = domains.peer(work.pair_source, domains.of(work.pair_rank))
        tokens = np.diff(work.tokens_of_rank)
        self._each = int(tokens.max(initial=0))
        place = places(tokens)
        bounds = np.arange(num_parts + 1) * self._each // num_parts
        self._part_of_token = np.searchsorted(bounds, place, "right") - 1
        self._bounds = bounds

    @property
    def parts(self) -> list[TokenPart]:
        """The parts, in order."""
        return [self._part(index) for index in range(len(self._bounds) - 1)]

    @property
    def whole(self) -> TokenPart:
        """All of the layer as one part."""
        return Routes(self._work, self._domains, 1)._part(0)

    def rails(self, nbytes: int, *, back: bool = False) -> Ints:
        """Bytes (source, destination) where every GPU sends `nbytes` to its peers in other nodes.

        Parameters
        ----------
        back
            Whether sums go back, of which its own are added where they are. Of what is gathered, a
            GPU copies its own part to the others.
        """
        n, domains = self._work.num_ranks, self._domains
        sizes = np.zeros((n, n), np.int64)
        if domains.num > 1:
            local = domains.local(np.arange(n))
            sizes[local[:, None] == local] = nbytes
            if back:
                np.fill_diagonal(sizes, 0)
        return sizes

    def _part(self, index: int) -> TokenPart:
        work, n = self._work, self._work.num_ranks
        pair = np.flatnonzero(self._part_of_token[work.pair_token] == index)
        way = self.gatherer[pair] * n + work.pair_rank[pair]
        order = np.argsort(way * work.num_experts + work.pair_expert[pair], kind="stable")  # of one way, by token
        pair, way = pair[order], way[order]
        inside = np.bincount(way, minlength=n * n)
        tokens = int(self._bounds[index + 1] - self._bounds[index])
        token = np.flatnonzero(self._part_of_token == index)
        copies = np.unique(self.gatherer[pair] * work.num_tokens + work.pair_token[pair])
        wanted = np.bincount(copies // max(work.num_tokens, 1), minlength=n)
        return TokenPart(tokens, token, inside.reshape(n, n), wanted, pair, places(inside))
