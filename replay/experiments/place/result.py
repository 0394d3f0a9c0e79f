"""A placement, and how even it is over time: schema ``moereplay-placing/2``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from replay.experiments.base.result import ResultBase
from replay.experiments.place.spec import PlaceSpec
from tracegen.shared.strict import Strict


class WindowImbalance(Strict):
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
        experts and with the placement. Zero where there is one node, and for loads.
    """

    steps: tuple[int, int]
    before: list[float]
    fitted: list[float]
    fresh: list[float]
    rows_before: list[float]
    rows_fitted: list[float]


BY_LAYER = ("before", "fitted", "fresh", "rows_before", "rows_fitted")
"""Lists of `WindowImbalance` with a value for each layer."""


class PlacementResult(ResultBase):
    """A placement and what it does; of a file of the first schema, which had none, without run id.

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

    format: Literal["moereplay-placing/2"] = "moereplay-placing/2"
    spec: PlaceSpec
    trace: str = ""
    content_id: str = ""
    algorithm: str
    fitted_on: tuple[int, int] | None
    num_ranks: int
    num_experts: int
    num_slots: int
    slot_expert: list[list[int]]
    windows: list[WindowImbalance] = Field(min_length=1)

    @property
    def name(self) -> str:
        """The algorithm."""
        return self.algorithm

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


def result_of_old(document: Mapping[str, Any]) -> dict[str, Any]:
    """Make a result of ``moereplay-placing/1`` one of the present schema.

    It did not say what it was asked for, such as the file of a trace: the spec has the rest.
    """
    steps, algorithm = document["fitted_on"], document["algorithm"]
    spec = {
        "algorithm": algorithm,
        "from": "" if algorithm == "file" else None,
        "ranks": document["num_ranks"],
        "slots": document["num_slots"],
        "fit": None if steps is None else f"{steps[0]}:{steps[1]}",
    }
    head = {"format": "moereplay-placing/2", "run_id": "", "version": "", "spec": spec}
    return {**document, **head}
