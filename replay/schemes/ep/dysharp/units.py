"""Units of messages to the switch: the copies of a token in one NVLink domain.

In its owner's domain the owner's GPU pushes the token and pulls the sum. In every other domain that
has experts of it the GPU of the owner's index does: the owner sends it the row by network card, it
pushes the row on to the GPUs of its domain, pulls their sum, and sends that back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.work.ragged import places

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Ranks
    from replay.model.machine.domains import Domains
    from replay.model.work.layer import LayerWork


class Units:
    """(token, domain) of one layer: every token in its own domain, then those in others.

    Attributes
    ----------
    token, place
        (unit,): the token, and the GPU that pushes it and pulls its sum in the domain. The first
        units are the tokens in their owners' domains.
    owner
        (unit,): the GPU that has the token.
    of_copy
        (copy,): the unit that brings the token to the GPU.
    abroad
        Units in other domains than their owners'.
    in_place
        (copy,): whether the copy stays on the GPU that pushes it.
    """

    def __init__(self, work: LayerWork, domains: Domains) -> None:
        owner, num = work.source_rank, work.num_tokens
        there = domains.of(work.copy_rank)
        away = np.flatnonzero(there != domains.of(work.copy_source))
        key = work.copy_token[away] * domains.num + there[away]
        known, unit = np.unique(key, return_inverse=True)
        token, domain = known // domains.num, known % domains.num
        self.token: Ints = np.concatenate((np.arange(num), token))
        self.owner: Ranks = owner[self.token]
        self.place: Ints = np.concatenate((owner, domains.peer(owner[token], domain)))
        self.of_copy: Ints = work.copy_token.copy()
        self.of_copy[away] = num + unit
        self.abroad: Ints = np.arange(num, len(self.token))
        self.in_place = self.place[self.of_copy] == work.copy_rank
        order = np.argsort(self.place[self.abroad], kind="stable")
        turn = np.empty(len(self.abroad), np.int64)
        turn[order] = places(np.bincount(self.place[self.abroad]))
        own = np.arange(num) - work.tokens_of_rank[owner]
        self._turn: Ints = np.concatenate((own, turn))

    def __len__(self) -> int:
        return len(self.token)

    def lane(self, unit: Ints, num_sms: int) -> Ints:
        """SM of each unit's GPU that serves it (unit,): dealt out in turn."""
        lane: Ints = self._turn[unit] % num_sms
        return lane
