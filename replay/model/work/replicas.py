"""Choice of a replica of its expert for each row.

Engines choose by different rules, which need no communication but for the last:

=========== ========================================================================================
rule        the replica of a row
=========== ========================================================================================
same-gpu    the first on the row's own GPU; where there is none, one that is fixed for the GPU, such
            that the GPUs without one share the replicas evenly at random (SGLang, ``static``, where
            every GPU is a node of its own)
nearest     the first on the row's own GPU; where there is none, the first of all, which leaves
            the others to their own GPUs (SGLang 0.5.10 on one node)
random      any, each as likely (SGLang, ``dynamic``)
round-robin the next for every row of the expert on a GPU, beginning with the GPU's number; counted
            anew for every 1024 rows of the GPU (TensorRT-LLM)
position    p modulo their number, p being the row's place among those of its GPU (earlier vLLM)
hash        h modulo their number, h being the token's number on its GPU times 2^32 / golden ratio,
            modulo 2^32, so that all rows of a token have one replica (vLLM 0.33)
load        such that the busiest GPU has as few rows as the replicas allow; rows stay on their
            own GPU if they can. It knows the rows of all GPUs, as a planner of every step does
            (UltraEP, arXiv 2606.04101)
=========== ========================================================================================

Rows of a GPU are counted token by token and slot by slot of the top-k. Random numbers come from
one seed and the number of the layer. Sources: sglang/srt/eplb/expert_location.py and
expert_location_dispatch.py (seed 42); TensorRT-LLM moeLoadBalanceKernels.cu,
`moeComputeRouteKernel`; vLLM `eplb_map_to_physical_and_record`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt

from replay.model.arrays import Counts, Ints
from replay.model.work.ragged import firsts, places

if TYPE_CHECKING:
    from replay.model.work.placement import Placement

ReplicaRule = Literal["same-gpu", "nearest", "random", "round-robin", "position", "hash", "load"]
RULES: tuple[str, ...] = get_args(ReplicaRule)
SEED = 42
HASH = 2654435769  # floor(2^32 / golden ratio)
BLOCK = 1024  # rows of a thread block of TensorRT-LLM's kernel: 256 threads, 4 each


def choose(
    expert_ids: npt.NDArray[np.int32],
    source_rank: npt.NDArray[np.int32],
    placement: Placement,
    rule: str = "same-gpu",
    layer: int = 0,
) -> npt.NDArray[np.int32]:
    """Replace experts by the slots that their rows go to.

    Parameters
    ----------
    expert_ids
        (token, k): experts of the model; -1 for an empty slot of the top-k.
    source_rank
        (token,): the rank that owns each token, ascending.
    placement
        Slots of every expert.
    rule
        One of `RULES`.
    layer
        Position of the layer, which enters the random numbers.

    Returns
    -------
    (token, k): slots, -1 where there was no expert.
    """
    if placement.logical is None:
        return expert_ids
    token, place = np.nonzero(expert_ids >= 0)
    expert = expert_ids[token, place].astype(np.int64)
    source = source_rank[token].astype(np.int64)
    held = ExpertSlots(placement)
    if rule == "hash":
        number = token - np.searchsorted(source_rank, source)
        slot = held.slot[held.first[expert] + number * HASH % 2**32 % held.count[expert]]
    elif rule == "load":
        slot = _by_load(expert, source, held)
    else:
        slot = held.slot[held.first[expert] + _index(rule, expert, source, held, layer)]
    chosen = np.full_like(expert_ids, -1)
    chosen[token, place] = slot
    return chosen


class ExpertSlots:
    """Slots by the expert that they hold.

    Attributes
    ----------
    slot
        (slot,): slots ordered by expert.
    rank
        (slot,): rank of each of `slot`.
    first, count
        (expert,): where the slots of an expert begin in `slot`, and how many there are.
    num_ranks
        Ranks of the group.
    """

    def __init__(self, placement: Placement) -> None:
        assert placement.logical is not None
        self.slot = np.argsort(placement.logical, kind="stable")
        self.rank = placement.expert_rank[self.slot].astype(np.int64)
        self.count = np.bincount(placement.logical).astype(np.int64)
        self.first = firsts(self.count)
        self.num_ranks = placement.num_ranks


def _index(rule: str, expert: Ints, source: Ints, held: ExpertSlots, layer: int) -> Ints:
    """(row,): number of the replica among those of its expert."""
    if rule in ("same-gpu", "nearest"):
        return _fixed_replicas(held, layer if rule == "same-gpu" else None)[expert, source]
    if rule == "random":
        return _generator(layer).integers(held.count[expert])
    begins = np.searchsorted(source, np.arange(held.num_ranks + 1))
    place = np.arange(len(source), dtype=np.int64) - begins[source]
    if rule == "position":
        return place % held.count[expert]
    group = (source * (int(place.max(initial=0)) // BLOCK + 1) + place // BLOCK) * len(held.count)
    return (_places_of_equals(group + expert) + place // BLOCK + source) % held.count[expert]


def _fixed_replicas(held: ExpertSlots, layer: int | None) -> Ints:
    """(expert, rank): replica that rows of each rank go to, without knowing any load.

    Ranks without one share the replicas by the layer's random numbers; without a layer they all
    take the first.
    """
    rng = None if layer is None else _generator(layer)
    found = np.zeros((len(held.count), held.num_ranks), np.int64)
    for expert in np.flatnonzero(held.count > 1).tolist():
        count = int(held.count[expert])
        ranks = held.rank[held.first[expert] : held.first[expert] + count]
        found[expert] = 0 if rng is None else -1
        for index in reversed(range(count)):
            found[expert, ranks[index]] = index
        if rng is None:
            continue
        others = np.flatnonzero(found[expert] < 0)
        whole = np.tile(np.arange(count), len(others) // count)
        rest = rng.permutation(count)[: len(others) % count]
        found[expert, others] = rng.permutation(np.concatenate((whole, rest)))
    return found


def _by_load(expert: Ints, source: Ints, held: ExpertSlots) -> Ints:
    """(row,): slot of each, so that the busiest rank has as few rows as possible."""
    rows = np.bincount(expert, minlength=len(held.count))
    slot_of = np.full((len(rows), held.num_ranks), -1, np.int64)  # two on one GPU are as one
    of_slot = np.repeat(np.arange(len(rows)), held.count)
    slot_of[of_slot[::-1], held.rank[::-1]] = held.slot[::-1]
    shares = plan_rows(rows, slot_of >= 0)
    slot = held.slot[held.first[expert]]
    order, begins = np.argsort(expert, kind="stable"), firsts(rows)
    for one in np.flatnonzero(held.count > 1).tolist():
        members = order[begins[one] : begins[one] + rows[one]]
        slot[members] = slot_of[one, _own_first(source[members], shares[one])]
    return slot


def plan_rows(rows: Counts, hosts: npt.NDArray[np.bool_]) -> Ints:
    """Divide the rows of experts among the ranks that host them.

    Parameters
    ----------
    rows
        (expert,): rows of each.
    hosts
        (expert, rank): whether the rank has the expert; one does at least.

    Returns
    -------
    (expert, rank): rows that each rank takes. No other division has a smaller largest sum over the
    experts: whatever rows the busiest ranks could pass on, directly or by way of others, they have.
    """
    shares = np.zeros(hosts.shape, np.int64)
    shares[np.arange(len(rows)), hosts.argmax(axis=1)] = rows
    load = shares.sum(axis=0)
    several = np.flatnonzero(hosts.sum(axis=1) > 1)
    several = several[np.argsort(-rows[several], kind="stable")]
    is_better = True
    while is_better:  # large steps: each expert by itself levels the loads of its ranks
        is_better = False
        for one in several.tolist():
            on, others = hosts[one], load - shares[one]
            level = _level(others[on], int(rows[one]))
            if ((others[on] + level) ** 2).sum() < (load[on] ** 2).sum():
                shares[one, on], is_better = level, True
                load = others + shares[one]
    while _passed_on(shares, hosts, load):  # last rows, which go by way of several experts
        pass
    return shares


def _level(load: Ints, rows: int) -> Ints:
    """(rank,): parts of `rows` after which the largest load is as small as it can be."""
    low, high = 0, int(load.max(initial=0)) + rows
    while low < high:  # the least level that all rows fit below
        level = (low + high) // 2
        if np.maximum(level - load, 0).sum() >= rows:
            high = level
        else:
            low = level + 1
    shares = np.maximum(low - load, 0)
    excess = int(shares.sum()) - rows  # fewer than there are ranks with a share
    shares[np.flatnonzero(shares)[::-1][:excess]] -= 1
    return shares.astype(np.int64)


def _passed_on(shares: Ints, hosts: npt.NDArray[np.bool_], load: Ints) -> bool:
    """Move a row away from the busiest rank, along ranks that pass one on; False if none can go."""
    busiest = int(np.argmax(load))
    came_by: dict[int, tuple[int, int]] = {busiest: (-1, -1)}  # expert, and rank before
    waiting = [busiest]
    for rank in waiting:
        if load[rank] <= load[busiest] - 2:
            while rank != busiest:
                expert, before = came_by[rank]
                shares[expert, rank] += 1
                shares[expert, before] -= 1
                rank = before
            load[:] = shares.sum(axis=0)
            return True
        for expert in np.flatnonzero(shares[:, rank]).tolist():
            for other in np.flatnonzero(hosts[expert]).tolist():
                if other not in came_by:
                    came_by[other] = (expert, rank)
                    waiting.append(other)
    return False


def _own_first(source: Ints, shares: Ints) -> Ints:
    """(row,): rank of each row's replica, `shares` (rank,) of them; own ranks first."""
    found = np.full(len(source), -1, np.int64)
    left = shares.copy()
    for rank in np.flatnonzero(shares).tolist():
        own = np.flatnonzero(source == rank)[: left[rank]]
        found[own] = rank
        left[rank] -= len(own)
    found[found < 0] = np.repeat(np.arange(len(shares)), left)
    return found


def _places_of_equals(key: Ints) -> Ints:
    """(item,): how many items before it have the same key."""
    order = np.argsort(key, kind="stable")
    _, counts = np.unique(key, return_counts=True)
    found = np.empty(len(key), np.int64)
    found[order] = places(counts)
    return found


def _generator(layer: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(SEED, spawn_key=(layer,)))
