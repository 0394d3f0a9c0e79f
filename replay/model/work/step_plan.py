"""Placement per step: replicas that are planned for the very rows of a layer.

Every GPU keeps its experts, neighbours as with ``contiguous``, and has reserved slots behind them.
After the gate a plan says which replicas lie in those slots for this layer, and how many rows every
replica takes from every GPU. `replay.model.compute.replication` has what it costs.

Sources: Dots-Infra/UltraEP, ``csrc/solvers/placement_quota_gpu.cu`` (division of quotas among GPUs)
and ``csrc/kernels/task_build.cu`` (relays); MoonEP, ``tests/planning_reference.py`` there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replay.model.arrays import Counts, Ints
from replay.model.work import even_plan, quota_plan
from replay.model.work.placement import Placement, homes, with_reserved
from replay.model.work.quota_plan import Effort

RELAY_LEAST, MOST_RELAYS, RELAY_GAIN = 6, 8, 2
"""Replicas from which an expert may be relayed, relays at most, sends that it must save
(``ultra_ep/config.py``)."""


class Copy(NamedTuple):
    """Weights of one expert on their way to one slot.

    Attributes
    ----------
    expert, slot
        What is copied, and where to.
    src, dst
        GPUs between which it goes.
    via
        Slot that it is read from; -1 for the expert's home.
    """

    expert: int
    slot: int
    src: int
    dst: int
    via: int = -1


@dataclass(frozen=True)
class StepPlan:
    """A plan for one layer.

    Attributes
    ----------
    planner
        Whose rules it follows, ``"ultraep"`` or ``"moonep"``.
    placement
        Slots; those of a GPU are its experts in order, then the reserved ones.
    quota
        (slot,): rows that each slot is to have.
    share
        (slot, rank): rows that each slot has from each GPU.
    slots_of_expert
        Slots of each expert, in the order in which rows fill them.
    effort
        Of UltraEP's planner.
    rounds
        Of MoonEP's.
    """

    planner: str
    placement: Placement
    quota: Ints
    share: Ints
    slots_of_expert: list[list[int]]
    effort: Effort
    rounds: int = 0

    @property
    def num_ranks(self) -> int:
        """GPUs of the group."""
        return self.placement.num_ranks

    @property
    def num_experts(self) -> int:
        """Experts, replicas not counted."""
        return len(self.slots_of_expert)

    @property
    def replica_slots(self) -> int:
        """Slots for replicas on each GPU."""
        return (self.placement.num_experts - self.num_experts) // self.num_ranks

    @property
    def homes(self) -> Ints:
        """(expert,): slot of each expert at home."""
        return homes(self.placement.num_experts, self.num_experts, self.num_ranks)

    @cached_property
    def copies(self) -> list[Copy]:
        """Weights that are copied; those of relays come before what they pass on."""
        sends = np.zeros(self.num_ranks, np.int64)
        found: list[Copy] = []
        ranks = self.placement.expert_rank
        for expert, home in enumerate(self.homes.tolist()):
            direct = [
                Copy(expert, slot, int(ranks[home]), int(ranks[slot]))
                for slot in self.slots_of_expert[expert]
                if slot != home
            ]
            relays = num_relays(len(direct)) if self.planner == "ultraep" else 0
            if relays:
                found += _relay(direct, relays, sends)
            else:
                sends[ranks[home]] += len(direct)
                found += direct
        return found

    def reroute(self, expert_ids: npt.NDArray[np.int32], source_rank: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Replace experts by the slots that their rows go to.

        The first rows of a GPU for an expert go to the expert's first slot, the next to its second.

        Parameters
        ----------
        expert_ids
            (token, k): experts; -1 for an empty slot of the top-k.
        source_rank
            (token,): the rank that owns each token, ascending.
        """
        token, place = np.nonzero(expert_ids >= 0)
        key = expert_ids[token, place].astype(np.int64) * self.num_ranks + source_rank[token]
        order = np.argsort(key, kind="stable")
        slots = np.array([slot for held in self.slots_of_expert for slot in held], np.int64)
        expert = np.repeat(np.arange(self.num_experts), list(map(len, self.slots_of_expert)))
        # Slots of an expert one after the other, for every GPU: the order of the sorted rows.
        slot = np.repeat(np.arange(len(slots)), self.num_ranks)
        rank = np.tile(np.arange(self.num_ranks), len(slots))
        runs = np.lexsort((slot, rank, expert[slot]))
        to = np.repeat(slots[slot[runs]], self.share[slots].ravel()[runs])
        chosen = np.full_like(expert_ids, -1)
        chosen[token[order], place[order]] = to
        return chosen


def plan_step(
    spec: str,
    expert_ids: npt.NDArray[np.int32],
    source_rank: npt.NDArray[np.int32],
    num_experts: int,
    num_ranks: int,
) -> StepPlan:
    """Plan one layer.

    Parameters
    ----------
    spec
        A placement that is planned per step; see `with_reserved`.
    expert_ids, source_rank
        See `StepPlan.reroute`.

    Raises
    ------
    UserError
        See `with_reserved`.
    """
    before = with_reserved(spec, num_experts, num_ranks)
    token, place = np.nonzero(expert_ids >= 0)
    key = expert_ids[token, place].astype(np.int64) * num_ranks + source_rank[token]
    counts = np.bincount(key, minlength=num_experts * num_ranks).astype(np.int64)
    rows = counts.reshape(num_experts, num_ranks)
    if spec == "moonep":
        return _moonep(before, rows, even_plan.plan(rows.sum(axis=1), num_ranks))
    reserved = (before.num_experts - num_experts) // num_ranks
    return _ultraep(before, rows, quota_plan.plan(rows.sum(axis=1), num_ranks, reserved))


# ---- UltraEP -------------------------------------------------------------------------------------


def _ultraep(before: Placement, rows: Counts, plan: quota_plan.QuotaPlan) -> StepPlan:
    num_experts, num_ranks = rows.shape
    assert before.logical is not None
    logical, quota = before.logical.copy(), np.zeros(before.num_experts, np.int64)
    home = homes(before.num_experts, num_experts, num_ranks)
    quota[home] = rows.sum(axis=1)
    slots_of_expert = [[slot] for slot in home.tolist()]
    free = _first_reserved(before, num_experts)
    for expert, rank, number in plan.exports:
        slot = int(free[rank])
        free[rank] += 1
        logical[slot], quota[slot] = expert, number
        quota[home[expert]] -= number
        slots_of_expert[expert].append(slot)
    share = np.zeros((before.num_experts, num_ranks), np.int64)
    share[home] = rows
    for expert, slots in enumerate(slots_of_expert):
        if len(slots) > 1:
            share[slots] = divide(rows[expert], quota[slots], before.expert_rank[slots])
    placed = Placement(before.expert_rank, num_ranks, before.description, logical)
    return StepPlan("ultraep", placed, quota, share, slots_of_expert, plan.effort)


def divide(rows: Counts, quota: Ints, host: npt.NDArray[np.int32]) -> Ints:
    """Divide the rows of one expert among its slots, own rows first.

    What a GPU cannot keep goes to the other slots in proportion to the room that their own GPUs
    leave there; of what does not divide, the largest remainders get a row each. Every GPU does so
    by itself, so that a slot may get a few rows more than its quota.

    Parameters
    ----------
    rows
        (rank,): rows of each GPU.
    quota, host
        (slot,): rows that each slot is to have, and its GPU.

    Returns
    -------
    (slot, rank) rows.
    """
    own = np.minimum(quota, rows[host])
    room = quota - own
    share = np.zeros((len(quota), len(rows)), np.int64)
    share[np.arange(len(quota)), host] = own
    left = rows - share.sum(axis=0)
    for rank in np.flatnonzero(left).tolist():
        part, remainder = np.divmod(left[rank] * room, int(room.sum()))
        first = np.lexsort((host, -np.where(room > 0, remainder, -1)))
        part[first[: left[rank] - part.sum()]] += 1
        share[:, rank] += part
    return share


def num_relays(replicas: int) -> int:
    """Replicas that pass an expert on to the others; 0 where its home sends it to all."""
    relays = min(int(replicas**0.5), MOST_RELAYS, replicas - 1)
    if replicas < RELAY_LEAST or relays < 1:
        return 0
    most_sends = max(relays, -(-(replicas - relays) // relays))
    return relays if replicas - most_sends >= RELAY_GAIN else 0


def _relay(direct: list[Copy], num: int, sends: Ints) -> list[Copy]:
    """Let replicas on the GPUs that send least pass an expert on to the others.

    Parameters
    ----------
    sends
        (rank,): experts that each GPU sends so far; what is added here is counted.
    """
    relays: list[Copy] = []
    for _ in range(num):
        left = [one for one in direct if one not in relays]
        relays.append(min(left, key=lambda one: (sends[one.dst], one.dst)))
    passed_on: list[list[Copy]] = [[] for _ in relays]
    load = [int(sends[one.dst]) for one in relays]
    for order, one in enumerate(leaf for leaf in direct if leaf not in relays):
        at = order
        if order >= num:  # every relay has one
            at = min(range(num), key=lambda i: (load[i], len(passed_on[i]), relays[i].dst))
        passed_on[at].append(one._replace(src=relays[at].dst, via=relays[at].slot))
        load[at] += 1
    sends[direct[0].src] += num
    for relay, leaves in zip(relays, passed_on, strict=True):
        sends[relay.dst] += len(leaves)
    return relays + [one for leaves in passed_on for one in leaves]


# ---- MoonEP --------------------------------------------------------------------------------------


def _moonep(before: Placement, rows: Counts, plan: even_plan.EvenPlan) -> StepPlan:
    num_experts, num_ranks = rows.shape
    assert before.logical is not None
    logical, quota = before.logical.copy(), np.zeros(before.num_experts, np.int64)
    slot_of = np.full((num_experts, num_ranks), -1, np.int64)
    home = homes(before.num_experts, num_experts, num_ranks)
    slot_of[np.arange(num_experts), before.expert_rank[home]] = home
    free = _first_reserved(before, num_experts)
    for rank in range(num_ranks):
        guests = np.flatnonzero((plan.rows[:, rank] > 0) & (slot_of[:, rank] < 0))
        guests = guests[np.lexsort((-guests, -plan.rows[guests, rank]))]
        slot_of[guests, rank] = free[rank] + np.arange(len(guests))
        logical[slot_of[guests, rank]] = guests
    # Rows of an expert are in order of their GPUs, and go to its slots in order of theirs.
    ends, until = rows.cumsum(axis=1), plan.rows.cumsum(axis=1)
    begins, since = ends - rows, until - plan.rows
    share = np.zeros((before.num_experts, num_ranks), np.int64)
    slots_of_expert: list[list[int]] = [[] for _ in range(num_experts)]
    for expert, rank in np.argwhere(slot_of >= 0).tolist():
        slot = int(slot_of[expert, rank])
        slots_of_expert[expert].append(slot)
        low = np.maximum(begins[expert], since[expert, rank])
        high = np.minimum(ends[expert], until[expert, rank])
        share[slot], quota[slot] = np.maximum(high - low, 0), plan.rows[expert, rank]
    placed = Placement(before.expert_rank, num_ranks, before.description, logical)
    return StepPlan("moonep", placed, quota, share, slots_of_expert, Effort(), plan.rounds)


def _first_reserved(before: Placement, num_experts: int) -> Ints:
    """(rank,): first reserved slot of each."""
    per_rank = before.num_experts // before.num_ranks
    first: Ints = np.arange(before.num_ranks) * per_rank + num_experts // before.num_ranks
    return first
