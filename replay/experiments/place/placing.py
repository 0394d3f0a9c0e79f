"""Placements fitted to a trace: experts by slot for every layer, and how well they last.

A placement is fitted on the loads that some steps of a replay have, or all tokens of the trace, and
looked at on later steps, beside one that is fitted on those very steps: the difference is how stale
it has become.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from replay.chains.layer import experts_of, loads_of, together_of, which_layer
from replay.errors import UserError, unknown
from replay.experiments.base.spec import MOST
from replay.model.work import replicas
from replay.model.work.batch import form_batch
from replay.model.work.placement import Placement, fitted, place
from tracegen.shared.display.shown import Shown
from tracegen.stats.sample import distinct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.experiments.layer.spec import RunSpec
    from replay.model.work.batch import Batch
    from replay.model.work.ragged import Ints
    from tracegen import RoutingTrace

Algorithm = Literal["eplb", "greedy", "affinity", "file"]
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
WINDOWS = 4
MOST_STEPS = 10_000  # some take a minute and 100 MB already


class Imbalance(BaseModel):
    """Rows of the busiest GPU over the mean of the GPUs, in one window of steps.

    Attributes
    ----------
    steps
        First step and the step behind the last.
    before, fitted, fresh
        (layer,): with contiguous experts; with the placement; with one that is fitted on this
        window by the same algorithm. Means over the steps.
    rows_before, rows_fitted
        (layer,): rows that a token sends to other nodes, one per (token, node), with contiguous
        experts and with the placement. Zero where there is one node.
    """

    model_config = ConfigDict(frozen=True)

    steps: tuple[int, int]
    before: list[float]
    fitted: list[float]
    fresh: list[float]
    rows_before: list[float]
    rows_fitted: list[float]


BY_LAYER = ("before", "fitted", "fresh", "rows_before", "rows_fitted")
"""Lists of `Imbalance` with a value for each layer."""


class Placing(BaseModel, Shown):
    """A placement and what it does; schema ``moereplay-placing/1``.

    Attributes
    ----------
    trace, content_id
        Title and content of the trace that it was computed from, or looked at with; empty where an
        older version did not say.
    algorithm
        What computed it, or ``"file"``.
    fitted_on
        Steps that it was fitted on; None for all tokens of the trace.
    num_ranks, num_experts, num_slots
        GPUs, experts of a layer, slots of all GPUs.
    slot_expert
        (layer, slot): expert of each slot.
    windows
        How it does, window after window.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal["moereplay-placing/1"] = "moereplay-placing/1"
    trace: str = ""
    content_id: str = ""
    algorithm: str
    fitted_on: tuple[int, int] | None
    num_ranks: int
    num_experts: int
    num_slots: int
    slot_expert: list[list[int]]
    windows: list[Imbalance] = Field(min_length=1)

    def _rows(self) -> list[dict[str, Any]]:
        """One for each layer in each window."""
        return [
            {
                "first_step": window.steps[0],
                "num_steps": window.steps[1] - window.steps[0],
                "layer_index": layer,
                **{name: getattr(window, name)[layer] for name in BY_LAYER},
            }
            for window in self.windows
            for layer in range(len(window.before))
        ]


def fit(
    trace: RoutingTrace,
    spec: RunSpec,
    *,
    num_ranks: int,
    num_slots: int,
    algorithm: str = "eplb",
    num_groups: int = 1,
    num_nodes: int = 1,
    fitted_on: tuple[int, int] | None = None,
    num_windows: int | None = None,
) -> Placing:
    """Compute a placement from a trace, and follow it through later steps.

    Parameters
    ----------
    spec
        Its `tokens_per_rank` and `phase` form the batches, its `replicas` chooses among replicas,
        and of its placement the file is taken for algorithm ``"file"``.
    num_ranks, num_slots, num_groups, num_nodes
        See `replay.model.work.eplb.rebalance_experts`.
    algorithm
        One of `ALGORITHMS`.
    fitted_on
        First step and the step behind the last whose loads are fitted; None takes all tokens.
    num_windows
        Windows of as many steps each that are looked at, from the fitted one on; from step 0 on,
        of one step each, where all tokens were fitted. None takes 4, or fewer where the trace ends.

    Raises
    ------
    UserError
        If the algorithm or steps do not exist, or the placement cannot be made.
    """
    if algorithm not in ALGORITHMS:
        raise unknown("algorithm", algorithm, ALGORITHMS)
    first, behind = fitted_on or (0, 1)
    if not 0 <= first < behind:
        message = f"steps {first}:{behind}: expected FIRST:BEHIND, such as 0:4 for steps 0 to 3"
        raise UserError(message)
    length = behind - first
    if behind > MOST or length * (num_windows or WINDOWS) > MOST_STEPS:
        message = (
            f"steps {first}:{behind} in {num_windows or WINDOWS} windows: at most {MOST_STEPS} "
            f"steps are looked at, up to step {MOST}"
        )
        raise UserError(message)
    makes = _Fit(algorithm, num_ranks, num_slots, num_groups, num_nodes)
    batches: list[list[Batch]] = []
    for window in range(num_windows or WINDOWS):
        steps = range(first + window * length, first + (window + 1) * length)
        try:
            batches.append([_batch(trace, spec, num_ranks, step) for step in steps])
        except UserError:
            if num_windows is not None or window == 0:
                raise
            break  # the trace has no such steps
    if algorithm == "file":
        found = _of_file(trace, spec.placement, num_ranks)
    else:
        found = makes.placed(trace, batches[0] if fitted_on else None)
    contiguous = [place("contiguous", makes.num_experts(trace), num_ranks)] * trace.num_layers
    windows = []
    for index, batch in enumerate(batches):
        fresh = found if algorithm == "file" else makes.placed(trace, batch)
        windows.append(
            Imbalance(
                steps=(first + index * length, first + (index + 1) * length),
                before=_imbalance(trace, batch, contiguous, spec.replicas),
                fitted=_imbalance(trace, batch, found, spec.replicas),
                fresh=_imbalance(trace, batch, fresh, spec.replicas),
                rows_before=_rows_between(trace, batch, contiguous, spec.replicas, num_nodes),
                rows_fitted=_rows_between(trace, batch, found, spec.replicas, num_nodes),
            )
        )
    return Placing(
        trace=trace.info.title,
        content_id=trace.content_id,
        algorithm=algorithm,
        fitted_on=fitted_on,
        num_ranks=num_ranks,
        num_experts=makes.num_experts(trace),
        num_slots=found[0].num_experts,
        slot_expert=[experts_in_order(one).tolist() for one in found],
        windows=windows,
    )


def _batch(trace: RoutingTrace, spec: RunSpec, num_ranks: int, step: int) -> Batch:
    return form_batch(
        trace,
        num_ranks=num_ranks,
        tokens_per_rank=spec.tokens_per_rank,
        phase=spec.phase,
        step=step,
    )


class _Fit:
    """What placements of one study have in common."""

    def __init__(
        self, algorithm: str, num_ranks: int, num_slots: int, num_groups: int, num_nodes: int
    ) -> None:
        self.algorithm, self.num_ranks, self.num_slots = algorithm, num_ranks, num_slots
        self.num_groups, self.num_nodes = num_groups, num_nodes

    def num_experts(self, trace: RoutingTrace) -> int:
        return trace.model.num_ffn_experts

    def placed(self, trace: RoutingTrace, batches: Sequence[Batch] | None) -> list[Placement]:
        """Placement of every layer for the tokens of some batches, or of the whole trace."""
        rows = slice(None) if batches is None else np.concatenate([one.rows for one in batches])
        return [
            fitted(
                self.algorithm, loads_of(trace, layer, rows), self.num_slots, self.num_ranks,
                num_nodes=self.num_nodes, num_groups=self.num_groups,
                together=together_of(trace, layer, rows) if self.algorithm == "affinity" else None,
            )
            for layer in range(trace.num_layers)
        ]  # fmt: skip


def _of_file(trace: RoutingTrace, placement: str, num_ranks: int) -> list[Placement]:
    return [
        place(placement, trace.model.num_ffn_experts, num_ranks, which_layer(trace, layer))
        for layer in range(trace.num_layers)
    ]


def _imbalance(
    trace: RoutingTrace, batches: Sequence[Batch], placed: Sequence[Placement], rule: str
) -> list[float]:
    """(layer,): rows of the busiest GPU over the mean, averaged over the batches."""
    found = []
    for layer, placement in enumerate(placed):
        ratios = []
        for batch in batches:
            ids = experts_of(trace, layer, batch.rows)
            slots = replicas.choose(ids, batch.source_rank, placement, rule, layer)
            ranks = placement.expert_rank[slots[slots >= 0]]
            rows = np.bincount(ranks, minlength=placement.num_ranks)
            ratios.append(float(rows.max()) / max(float(rows.mean()), 1e-300) if len(ranks) else 1)
        found.append(float(np.mean(ratios)))
    return found


def _rows_between(
    trace: RoutingTrace,
    batches: Sequence[Batch],
    placed: Sequence[Placement],
    rule: str,
    num_nodes: int,
) -> list[float]:
    """(layer,): distinct other nodes that have experts of a token, in the mean of all tokens."""
    found = []
    for layer, placement in enumerate(placed):
        counts = []
        for batch in batches:
            ids = experts_of(trace, layer, batch.rows)
            slots = replicas.choose(ids, batch.source_rank, placement, rule, layer)
            nodes = placement.expert_rank[slots] * num_nodes // placement.num_ranks
            own = batch.source_rank * num_nodes // placement.num_ranks
            is_away = (slots >= 0) & (nodes != own[:, None])
            counts.append(distinct(np.where(is_away, nodes, num_nodes), num_nodes))
        found.append(float(np.concatenate(counts).mean()) if counts else 0.0)
    return found


def experts_in_order(placement: Placement) -> Ints:
    """(slot,): experts rank by rank.

    Raises
    ------
    UserError
        If ranks have different numbers of slots, which no format can say.
    """
    counts = np.bincount(placement.expert_rank, minlength=placement.num_ranks)
    if (counts != counts[0]).any():
        message = (
            f"ranks have {counts.min()} to {counts.max()} slots; formats of maps need as many on "
            "every rank"
        )
        raise UserError(message)
    order = np.argsort(placement.expert_rank, kind="stable")
    return order if placement.logical is None else placement.logical[order]
