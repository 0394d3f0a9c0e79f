"""Layers with shadowed experts: experts whose weights every rank has for a layer.

A row for such an expert stays on its rank, which multiplies it by its own copy of the weights. The
layer that is carried out so is a layer itself: each (shadowed expert, rank) is an expert of its own
behind those of the layer, and gets the rank's rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.work.capacity import Carried, as_it_is
from replay.model.work.layer import LayerWork
from replay.model.work.placement import Placement

if TYPE_CHECKING:
    from replay.model.work.ragged import Ints


def with_shadows(work: LayerWork, shadowed: Ints) -> Carried:
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
    made = work.replaced(
        expert_ids=ids.astype(np.int32), placement=placement, step_plan=None, sample=None
    )
    return as_it_is(made)._replace(expert=held)


def first_shadow(work: LayerWork) -> int:
    """Number of the first rank's copy of the first shadowed expert."""
    return work.num_experts + (work.num_ranks if work.shared is not None else 0)
