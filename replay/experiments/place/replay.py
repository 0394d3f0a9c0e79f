"""Placements fitted to demand: experts by slot for every layer, and how well they last.

A placement is fitted on the loads that some steps have, or on all there are, and looked at on later
steps, beside one that is fitted on those very steps: the difference is how stale it has become.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from replay.errors import UserError
from replay.experiments.base.result import package_version
from replay.experiments.place.result import PlacementResult, WindowImbalance
from replay.experiments.place.setup import WINDOWS
from replay.model.work.placement import Placement, fit_placement, place

if TYPE_CHECKING:
    from replay.experiments.base.experiment import ReplayWatcher
    from replay.experiments.place.setup import PlaceSetup
    from replay.model.arrays import Ints


def carry_out(setup: PlaceSetup, watch: ReplayWatcher) -> PlacementResult:
    """Compute or read a placement, and follow it through later steps.

    Parameters
    ----------
    watch
        Its observer is called with the demand and the placement of each layer.

    Raises
    ------
    UserError
        If steps do not exist, or the placement cannot be made.
    """
    spec, demand = setup.spec, setup.demand
    windows = _windows(setup)
    found = _place(setup, None if spec.fitted_on is None else windows[0][1])
    watch.saw(demand, found)
    contiguous = [place("contiguous", demand.num_experts, setup.num_ranks)] * demand.num_layers
    followed = []
    for steps, window in windows:
        fresh = found if setup.map_file else _place(setup, window)
        followed.append(
            WindowImbalance(
                steps=steps,
                before=demand.imbalance(window, contiguous),
                fitted=demand.imbalance(window, found),
                fresh=demand.imbalance(window, fresh),
                rows_before=demand.rows_between(window, contiguous, spec.nodes),
                rows_fitted=demand.rows_between(window, found, spec.nodes),
            )
        )
    return PlacementResult(
        run_id=setup.run_id,
        version=package_version(),
        spec=spec,
        trace=demand.title,
        content_id=demand.content_id,
        algorithm=spec.algorithm,
        fitted_on=spec.fitted_on,
        num_ranks=setup.num_ranks,
        num_experts=demand.num_experts,
        num_slots=found[0].num_experts,
        slot_expert=[experts_in_order(one).tolist() for one in found],
        windows=followed,
    )


def _windows(setup: PlaceSetup) -> list[tuple[tuple[int, int], Any]]:
    """Steps and demand of each window of as many steps, from the fitted one on.

    Where their number was not asked for, there are fewer where the recording ends.
    """
    first, behind = setup.spec.fitted_on or (0, 1)
    length = behind - first
    windows: list[tuple[tuple[int, int], Any]] = []
    for index in range(setup.spec.windows or WINDOWS):
        steps = (first + index * length, behind + index * length)
        try:
            windows.append((steps, setup.demand.window(*steps)))
        except UserError:
            if setup.spec.windows is not None or index == 0:
                raise
            break  # there are no such steps
    return windows


def _place(setup: PlaceSetup, window: Any) -> list[Placement]:
    """Placement of every layer for what a window demands, or for all; or that of the file."""
    spec, demand = setup.spec, setup.demand
    if setup.map_file:
        return [
            place(setup.map_file, demand.num_experts, setup.num_ranks, demand.which(layer))
            for layer in range(demand.num_layers)
        ]
    return [
        fit_placement(
            spec.algorithm,
            demand.loads(window, layer),
            setup.num_slots,
            setup.num_ranks,
            num_nodes=spec.nodes,
            num_groups=setup.num_groups,
            together=demand.together(window, layer) if spec.algorithm == "affinity" else None,
        )
        for layer in range(demand.num_layers)
    ]


def experts_in_order(placement: Placement) -> Ints:
    """(slot,): experts rank by rank.

    Raises
    ------
    UserError
        If ranks have different numbers of slots, which no format can say.
    """
    counts = np.bincount(placement.expert_rank, minlength=placement.num_ranks)
    if (counts != counts[0]).any():
        message = f"ranks have {counts.min()} to {counts.max()} slots; formats of maps need as many on every rank"
        raise UserError(message)
    order = np.argsort(placement.expert_rank, kind="stable")
    return order if placement.logical is None else placement.logical[order]
