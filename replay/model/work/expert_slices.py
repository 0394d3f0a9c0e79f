"""Experts that several GPUs share: tensor parallelism inside experts, beside expert parallelism.

The ranks are groups of N neighbours. An expert that is placed on a group is cut by its inner width:
each GPU of the group has the columns of the first projections and the rows of the last one that
belong to a 1/N of it. Every token of the expert goes to all N, each multiplies it with its slice,
and what they give are partial sums, which the combine adds up as it adds results of several
experts, with the gate weight of the expert for each.

For a scheme a slice is therefore an expert of width I / N on one GPU, and a token that chose k
experts chose k N slices. Slices are numbered by rank. That is how Megatron-LM has DeepEP dispatch
under expert tensor parallelism (`MoEFlexTokenDispatcher`, token_dispatcher.py: N times as many
experts and choices, the routing repeated for the ranks of a group), and how Tutel sends rows of
experts that several GPUs share (`adaptive_degree`: rows repeated before one all-to-all, summed
after the one back). Neighbours make a group as in Megatron-LM's order of parallelism
(parallel_state.py: tp-cp-ep-dp-pp).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay.errors import UserError
from replay.model.work.layer import ExpertShape
from replay.model.work.placement import PER_STEP, Placement


def num_groups(num_slices: int, num_ranks: int, intermediate: int, placement: str) -> int:
    """Groups of ranks that experts are placed on.

    Parameters
    ----------
    num_slices
        GPUs that share an expert.
    intermediate
        Width between the two GEMMs of a whole expert.
    placement
        See `replay.model.work.placement.place`.

    Raises
    ------
    UserError
        If ranks or width cannot be cut so, or the placement is planned for each step.
    """
    asked = f"--expert-tp {num_slices}"
    if num_slices > 1 and placement.partition(":")[0] in PER_STEP:
        message = f"{asked} does not go with --placement {placement}, which copies whole experts"
        raise UserError(message)
    possible = [number for number in range(1, num_ranks + 1) if num_ranks % number == 0 and intermediate % number == 0]
    if num_slices not in possible:
        message = (
            f"{asked}: {num_ranks} ranks and experts of width {intermediate} are cut into equal "
            f"parts by {', '.join(map(str, possible))}"
        )
        raise UserError(message)
    return num_ranks // num_slices


def slice_experts(
    ids: npt.NDArray[np.int32], groups: Placement, shape: ExpertShape, num_slices: int
) -> tuple[npt.NDArray[np.int32], Placement, ExpertShape]:
    """Cut the experts of a layer.

    Parameters
    ----------
    ids
        (token, k): experts of each token; -1 for an empty slot.
    groups
        The group of ranks that has each expert, in place of the rank.
    shape
        Shape of a whole expert.
    num_slices
        Ranks of a group, N.

    Returns
    -------
    (token, k N): slices of each token, those of an expert side by side; the rank of each slice; and
    the shape of one.

    Raises
    ------
    UserError
        If experts have replicas.
    """
    if groups.has_replicas:
        message = (
            f"--expert-tp {num_slices} does not go with --placement {groups.description}, under "
            "which experts have replicas: choose one without"
        )
        raise UserError(message)
    slices = np.arange(num_slices)
    rank = (groups.expert_rank[:, None].astype(np.int64) * num_slices + slices).ravel()
    order = np.argsort(rank, kind="stable")
    number = np.empty((groups.num_experts, num_slices), np.int32)
    number.ravel()[order] = np.arange(len(order))
    chosen = np.where(ids[:, :, None] < 0, -1, number[ids])
    return (
        chosen.reshape(len(ids), ids.shape[1] * num_slices).astype(np.int32),
        Placement(rank[order].astype(np.int32), groups.num_ranks * num_slices, groups.description),
        ExpertShape(shape.hidden, shape.intermediate // num_slices, shape.gated),
    )
