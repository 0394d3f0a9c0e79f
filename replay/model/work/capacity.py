"""Layers of fixed capacity: as many rows for every (source rank, expert), padded or dropped.

Libraries that multiply in batches give each expert room for the same number of rows of each rank.
What a rank has fewer of is filled up with rows of zeros, which travel and are multiplied like any
others; what it has more of is dropped. The layer that is carried out so is a layer itself
(`CarriedLayer`): every row of zeros is a token of its rank that goes to one expert, and dropped slots
are empty.

So is a layer with shadowed experts, whose weights every rank has for a layer. A row for such an
expert stays on its rank, which multiplies it by its own copy of the weights: each (shadowed expert,
rank) is an expert of its own behind those of the layer, and gets the rank's rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replay.model.arrays import Ints
from replay.model.work.layer import LayerWork
from replay.model.work.placement import Placement
from replay.model.work.ragged import places


class CarriedLayer(NamedTuple):
    """A layer as a scheme carries it out.

    Attributes
    ----------
    work
        Its rows: those of the layer's tokens that are not dropped, and rows of zeros.
    token
        (token,): where each token of the layer is among the tokens of `work`.
    location
        (pair of `work`,): place of its row among those of its source rank for its expert.
    expert
        (expert of `work`,): expert of the layer whose weights it has, -1 for none; None where they
        are the layer's experts.
    """

    work: LayerWork
    token: Ints
    location: Ints
    expert: Ints | None = None

    def experts_of_layer(self) -> Ints:
        """(token of the layer, slot): experts of the layer that are carried out, -1 for none."""
        ids = self.work.expert_ids[self.token].astype(np.int64)
        return ids if self.expert is None else np.where(ids >= 0, self.expert[ids], -1)

    @property
    def padding(self) -> Ints:
        """(rank,): rows of zeros that each rank sends, its own ones among them."""
        is_real = np.zeros(self.work.num_tokens, np.bool_)
        is_real[self.token] = True
        return np.bincount(self.work.source_rank[~is_real], minlength=self.work.num_ranks)

    def dropped_pairs(self, work: LayerWork) -> Ints:
        """(rank,): (token, expert) of a rank's tokens in `work` that are not carried out."""
        lost = (work.expert_ids >= 0) & (self.experts_of_layer() < 0)
        return np.bincount(work.source_rank, lost.sum(axis=1), work.num_ranks).astype(np.int64)


def as_it_is(work: LayerWork) -> CarriedLayer:
    """A layer without padding."""
    return CarriedLayer(work, np.arange(work.num_tokens, dtype=np.int64), _locations(work))


def largest_load(work: LayerWork) -> int:
    """Most rows that one rank has for one expert."""
    key = work.pair_source * work.num_experts + work.pair_expert
    return int(np.bincount(key).max(initial=0))


def with_capacity(work: LayerWork, capacity: int) -> CarriedLayer:
    """Give every expert room for so many rows of each rank; of more, the first are kept.

    All tokens' first experts come before all tokens' second experts, as locations are counted
    slot by slot.
    """
    num_experts, num_ranks = work.num_experts, work.num_ranks
    location = np.zeros(work.expert_ids.shape, np.int64)
    location[work.expert_ids >= 0] = _locations(work)
    kept = np.where(location < capacity, work.expert_ids, -1)
    key = work.pair_source * num_experts + work.pair_expert
    count = np.bincount(key, minlength=num_ranks * num_experts)
    missing = np.maximum(0, capacity - count)
    group = np.repeat(np.arange(len(missing)), missing)

    rows = np.full((len(group), max(work.expert_ids.shape[1], 1)), -1, np.int32)
    rows[:, 0] = group % num_experts
    where = np.zeros(rows.shape, np.int64)
    where[:, 0] = count[group] + places(missing)
    owner = np.concatenate((work.source_rank, group // num_experts))
    order = np.argsort(owner, kind="stable")
    ids = np.concatenate((kept.reshape(-1, rows.shape[1]), rows))[order]
    located = np.concatenate((location.reshape(-1, rows.shape[1]), where))[order]
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    made = work.with_tokens(ids, owner[order])
    return CarriedLayer(made, place[: work.num_tokens], located[ids >= 0])


def with_equal_tokens(work: LayerWork) -> CarriedLayer:
    """Add tokens without experts to ranks that have fewer than the most."""
    tokens = np.diff(work.tokens_of_rank)
    missing = tokens.max(initial=0) - tokens
    owner = np.concatenate((work.source_rank, np.repeat(np.arange(work.num_ranks), missing)))
    nobody = np.full((int(missing.sum()), work.expert_ids.shape[1]), -1, np.int32)
    order = np.argsort(owner, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    ids = np.concatenate((work.expert_ids, nobody))[order]
    made = work.with_tokens(ids, owner[order])
    return CarriedLayer(made, place[: work.num_tokens], _locations(made))


def cut(carried: CarriedLayer, parts: int, capacity: int) -> list[LayerWork]:
    """Cut a layer of that capacity into parts of equal capacity, by the places of its rows."""
    work, size = carried.work, capacity // parts
    part = np.full(work.expert_ids.shape, -1, np.int64)
    part[work.expert_ids >= 0] = carried.location // max(size, 1)
    made = []
    for index in range(parts):
        has = (part == index).any(axis=1)
        ids = np.where(part[has] == index, work.expert_ids[has], -1)
        made.append(work.with_tokens(ids, work.source_rank[has]))
    return made


def _locations(work: LayerWork) -> Ints:
    """(pair,): place of each among its rank's pairs for the same expert, slot by slot."""
    slot = np.nonzero(work.expert_ids >= 0)[1]
    key = work.pair_source * work.num_experts + work.pair_expert
    order = np.argsort(key * work.expert_ids.shape[1] + slot, kind="stable")  # pairs are in the order of their tokens
    location = np.empty(len(order), np.int64)
    location[order] = places(np.bincount(key))
    return location


# ---- shadowed experts ----------------------------------------------------------------------------


def with_shadows(work: LayerWork, shadowed: Ints) -> CarriedLayer:
    """Give every rank a copy of some experts.

    Parameters
    ----------
    shadowed
        (shadow,): the experts, ascending.

    Returns
    -------
    The layer whose rows for shadow s of rank r go to expert ``first + s N + r`` of N ranks, `first`
    being the number behind those of the layer, its shared experts among them.
    """
    if not len(shadowed):
        return as_it_is(work)
    n, first = work.num_ranks, first_shadow(work)
    at = np.full(work.num_experts, -1, np.int64)
    at[shadowed] = first + n * np.arange(len(shadowed))
    is_copied = np.where(work.expert_ids >= 0, at[work.expert_ids], -1)
    ids = np.where(is_copied >= 0, is_copied + work.source_rank[:, None], work.expert_ids)
    beyond = np.arange(first - work.num_experts)  # shared experts, to which no routed rows go
    copies = np.tile(np.arange(n), len(shadowed))
    ranks = np.concatenate((work.placement.expert_rank, beyond, copies)).astype(np.int32)
    held = np.concatenate((np.arange(work.num_experts), 0 * beyond - 1, np.repeat(shadowed, n)))
    placement = Placement(ranks, n, f"{work.placement.description}, {len(shadowed)} shadowed")
    made = work.with_changes(expert_ids=ids.astype(np.int32), placement=placement, step_plan=None, sample=None)
    return as_it_is(made)._replace(expert=held)


def first_shadow(work: LayerWork) -> int:
    """Number of the first rank's copy of the first shadowed expert."""
    return work.num_experts + (work.num_ranks if work.shared is not None else 0)
