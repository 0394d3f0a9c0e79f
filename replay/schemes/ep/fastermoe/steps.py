"""FasterMoE's steps: which group sends to which, for one expert of each GPU after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.compute.calls import ExpertCall

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.work.layer import LayerWork


class StepPart(NamedTuple):
    """Part of a step that goes to one expert of every GPU.

    Attributes
    ----------
    pairs
        (source, destination): rows.
    call
        Those that each GPU multiplies by its expert's weights.
    """

    pairs: Ints
    call: ExpertCall


def num_steps(num_ranks: int, group_size: int) -> int:
    """Steps of a layer: as many as groups."""
    return num_ranks // min(group_size, num_ranks)


def steps_of(work: LayerWork, carried: LayerWork, group_size: int) -> list[list[StepPart]]:
    """Parts of every step; in step s a GPU sends to the group s behind its own, cyclically.

    Parameters
    ----------
    work, carried
        The layer whose experts have parts, and what is carried out, which may keep rows from them.
    """
    n, steps = work.num_ranks, num_steps(work.num_ranks, group_size)
    rows = rows_by_source(carried)
    group = np.arange(n) // (n // steps)
    apart = (group[None, :] - group[:, None]) % steps
    parts: list[list[StepPart]] = []
    for step in range(steps):
        parts.append([])
        for expert in np.array(work.experts_of_rank).T:
            pairs = np.where(apart == step, rows[:, expert], 0)
            parts[-1].append(StepPart(pairs, ExpertCall(expert, pairs.sum(axis=0))))
    return parts


def rows_by_source(work: LayerWork) -> Ints:
    """(source, expert): rows."""
    place = work.pair_source.astype(np.int64) * work.num_experts + work.pair_expert
    counted = np.bincount(place, minlength=work.num_ranks * work.num_experts)
    return counted.reshape(work.num_ranks, work.num_experts)
