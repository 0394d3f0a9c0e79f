"""MoonEP's planner: every GPU gets as many rows as every other.

Home GPUs with more rows than their part hand whole deficits to GPUs with fewer, the fullest to the
emptiest; a GPU therefore gets rows from one other home only, and as many slots for replicas as it
has experts hold them all.

Source: MoonshotAI's MoonEP, ``moonep/planning.py`` (``builtin_greedy_step3``) and the reference of
its tests (``tests/planning_reference.py`` there); README for uneven batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from replay.model.arrays import Counts, Ints


@dataclass(frozen=True)
class EvenPlan:
    """Rows of every expert on every GPU.

    Attributes
    ----------
    rows
        (expert, rank).
    rounds
        Steps that the planner took one after the other.
    """

    rows: Counts
    rounds: int = field(compare=False)


def plan(rows: Counts, num_ranks: int) -> EvenPlan:
    """Divide the rows of experts so that all GPUs have equal parts.

    Parameters
    ----------
    rows
        (expert,): rows of each expert; expert e is at home on GPU floor(e N / E), and N divides E.
    num_ranks
        GPUs, which reach each other's memory. Where the rows do not divide, the first get one more.
    """
    per_rank = rows.reshape(num_ranks, -1).astype(np.int64)
    part, rest = divmod(int(per_rank.sum()), num_ranks)
    balance = per_rank.sum(axis=1) - part - (np.arange(num_ranks) < rest)
    moved = np.zeros((num_ranks, num_ranks), np.int64)
    rounds = 0
    while balance.max(initial=0) > 0:
        full, empty = int(np.argmax(balance)), int(np.argmin(balance))
        moved[full, empty] -= balance[empty]
        balance[full] += balance[empty]
        balance[empty] = 0
        rounds += 1
    held = np.zeros((rows.size, num_ranks), np.int64)
    longest = 0
    for home in range(num_ranks):
        longest = max(longest, _hand_out(per_rank[home], moved[home], held, home))
    return EvenPlan(held, rounds + longest)


def _hand_out(rows: Counts, quotas: Ints, held: Ints, home: int) -> int:
    """Say which rows of a home's experts leave it; steps that this takes."""
    first, left, quotas = home * len(rows), rows.copy(), quotas.copy()
    steps = 0
    while quotas.max(initial=0) > 0:
        rank, local = int(np.argmax(quotas)), int(np.argmax(left))
        taken = min(int(left[local]), int(quotas[rank]))
        held[first + local, rank] += taken
        left[local] -= taken
        quotas[rank] -= taken
        steps += 1
    held[first : first + len(rows), home] += left
    return steps
