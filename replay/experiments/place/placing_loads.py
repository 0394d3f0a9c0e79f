"""Placements fitted to loads alone: counts of layers and experts, without tokens.

The rows of an expert are divided evenly among its replicas, as EPLB assumes: which replica a row
finds depends on its GPU, which counts do not tell. Nor do they tell which experts a token has
together, so rows between nodes are not known, and no placement can be fitted to them.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from replay.errors import UserError, unknown
from replay.experiments.place.placing import (
    ALGORITHMS,
    WINDOWS,
    Imbalance,
    Placing,
    experts_in_order,
)
from replay.model.work.map_arrays import WhichLayer
from replay.model.work.placement import Placement, fitted, place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.model.work.ragged import Ints


def fit_loads(
    counts: Ints,
    *,
    num_ranks: int,
    num_slots: int,
    title: str = "",
    algorithm: str = "eplb",
    source: str = "",
    layers: Sequence[WhichLayer] | None = None,
    num_groups: int = 1,
    num_nodes: int = 1,
    fitted_on: tuple[int, int] | None = None,
    num_windows: int | None = None,
) -> Placing:
    """Compute a placement from loads, and follow it through the steps that were counted.

    Parameters
    ----------
    counts
        (step, layer, expert): tokens of each expert.
    num_ranks, num_slots, num_groups, num_nodes
        See `replay.model.work.eplb.rebalance_experts`.
    title
        Origin of the loads, for the page.
    algorithm
        One of `ALGORITHMS`; not ``"affinity"``, which looks at tokens.
    source
        Placement ``file:PATH`` for algorithm ``"file"``.
    layers
        Numbers of each layer, for maps in files.
    fitted_on
        First step and the step behind the last whose loads are fitted; None takes all.
    num_windows
        Windows of as many steps that are looked at; None takes 4, or as many as there are.

    Raises
    ------
    UserError
        If the algorithm or steps do not exist, or the placement cannot be made.
    """
    if algorithm not in ALGORITHMS:
        raise unknown("algorithm", algorithm, ALGORITHMS)
    if algorithm == "affinity":
        message = (
            "affinity places experts that tokens choose together, which loads do not tell; "
            "eplb and greedy are fitted to loads"
        )
        raise UserError(message)
    num_steps, num_layers, num_experts = counts.shape
    steps = _windows(num_steps, fitted_on, num_windows)

    def placed(part: Ints) -> list[Placement]:
        if algorithm == "file":
            which = layers or [WhichLayer(place, place) for place in range(num_layers)]
            return [place(source, num_experts, num_ranks, one) for one in which]
        return [
            fitted(algorithm, loads, num_slots, num_ranks,
                   num_nodes=num_nodes, num_groups=num_groups)
            for loads in part.sum(axis=0)
        ]  # fmt: skip

    found = placed(counts[slice(*fitted_on)] if fitted_on else counts)
    contiguous = [place("contiguous", num_experts, num_ranks)] * num_layers
    windows = []
    for first, behind in steps:
        part = counts[first:behind]
        fresh = found if algorithm == "file" else placed(part)
        windows.append(
            Imbalance(
                steps=(first, behind),
                before=_imbalance(part, contiguous),
                fitted=_imbalance(part, found),
                fresh=_imbalance(part, fresh),
                rows_before=[0.0] * num_layers,
                rows_fitted=[0.0] * num_layers,
            )
        )
    return Placing(
        trace=title,
        content_id=_content_id(counts),
        algorithm=algorithm,
        fitted_on=fitted_on,
        num_ranks=num_ranks,
        num_experts=num_experts,
        num_slots=found[0].num_experts,
        slot_expert=[experts_in_order(one).tolist() for one in found],
        windows=windows,
    )


def _windows(
    num_steps: int, fitted_on: tuple[int, int] | None, num_windows: int | None
) -> list[tuple[int, int]]:
    """Windows of as many steps each, from the fitted one on."""
    first, behind = fitted_on or (0, 1)
    length = behind - first
    if not 0 <= first < behind:
        message = f"steps {first}:{behind}: expected FIRST:BEHIND, such as 0:4 for steps 0 to 3"
        raise UserError(message)
    last = first + (num_windows or 1) * length
    if last > num_steps:
        message = f"the loads have {num_steps} steps; steps {first} to {last - 1} were asked for"
        raise UserError(message)
    most = min(num_windows or WINDOWS, (num_steps - first) // length)
    return [(first + place * length, behind + place * length) for place in range(most)]


def _imbalance(counts: Ints, placed: Sequence[Placement]) -> list[float]:
    """(layer,): rows of the busiest GPU over the mean, averaged over the steps."""
    found = []
    for layer, placement in enumerate(placed):
        experts = placement.logical
        if experts is None:
            experts = np.arange(placement.num_experts)
        replicas = np.bincount(experts, minlength=counts.shape[2])
        rows = counts[:, layer, experts] / replicas[experts]
        of_rank = np.zeros((len(rows), placement.num_ranks))
        for step, one in enumerate(rows):
            of_rank[step] = np.bincount(
                placement.expert_rank, weights=one, minlength=placement.num_ranks
            )
        mean = of_rank.mean(axis=1)
        # A step in which nothing was counted is as even as any.
        ratio = np.where(mean > 0, of_rank.max(axis=1) / np.where(mean > 0, mean, 1), 1)
        found.append(float(ratio.mean()))
    return found


def _content_id(counts: Ints) -> str:
    """SHA-256 of the counts and their shape."""
    shape = ",".join(map(str, counts.shape))
    return hashlib.sha256(shape.encode() + counts.astype("<i8").tobytes()).hexdigest()
