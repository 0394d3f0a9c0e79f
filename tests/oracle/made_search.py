"""A search for models and plans that nobody ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay.experiments.choose.cost import Cost
from replay.experiments.choose.result import CandidateRow, SearchResult, SystemFindings
from replay.experiments.choose.spec import ChooseSpec

COST: dict[str, Any] = {"tokens_per_s": 1e6, "mfu": 0.3, "flop_per_token": 1, "memory_gib": 10.0}
ROW: dict[str, Any] = {
    "plan": "pp=2,ep=4",
    "schedule": "1f1b",
    "total_parameters": 10**9,
    "active_parameters": 10**9,
    "least_us": 1000.0,
}


def made_cost(step_us: float, spent_us: Mapping[str, float], **given: Any) -> Cost:
    """Cost of a step, with `COST` for what is not given."""
    return Cost(step_us=step_us, spent_us=dict(spent_us), **COST | given)


def made_row(cost: Cost, sizes: dict[str, int], **given: Any) -> CandidateRow:
    """A candidate that was simulated, with `ROW` for what is not given."""
    return CandidateRow(cost=cost, sizes=sizes, **ROW | given)


def made_search(rows: list[CandidateRow], by: str, **given: Any) -> SearchResult:
    """A search on one system."""
    usual = {"system": "dgx-h100", "scheme": "deepep", "looked_at": len(rows), "left_out": {"no": 1}, "pruned": 0}
    found = SystemFindings(rows=rows, refused={}, failed={}, skipped=0, **usual | given)
    return SearchResult(
        run_id="", version="", spec=ChooseSpec(), space={"model": "pangu"}, by=by, top=2, systems=[found]
    )
