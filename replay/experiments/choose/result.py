"""Result of a search: schema ``moereplay-choice/2``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import JsonValue

from replay.experiments.base.result import ResultBase
from replay.experiments.choose.cost import Cost
from replay.experiments.choose.spec import ChooseSpec
from tracegen.shared.display.frames import flat
from tracegen.shared.strict import Strict

if TYPE_CHECKING:
    from replay.experiments.choose.ranking import BoundedCandidate, SearchRanking
    from replay.experiments.choose.search import Possible


class CandidateRow(Strict):
    """A simulated candidate.

    Attributes
    ----------
    sizes
        What its model has otherwise than the one it comes from.
    total_parameters, active_parameters
        The latter without the embedding.
    least_us
        The bound on the step.
    cost
        The simulated step.
    """

    sizes: dict[str, int]
    plan: str
    schedule: str
    total_parameters: int
    active_parameters: int
    least_us: float
    cost: Cost


class RankingChange(Strict):
    """The first candidates' order with one hardware value changed.

    Attributes
    ----------
    order
        (candidate,): their places, the best first.
    lead
        What the first is worth over the best of the others.
    """

    key: str
    value: float
    order: list[int]
    lead: float


class Sensitivity(Strict):
    """Rankings under changed hardware values.

    Attributes
    ----------
    share
        By how much each uncertain value was lower and higher.
    candidates
        How many of the first were ranked again.
    changed
        For every changed value.
    """

    share: float
    candidates: int
    changed: list[RankingChange]


class SystemFindings(Strict):
    """Outcome of a search on one system.

    Attributes
    ----------
    rows
        Simulated candidates, the best first.
    looked_at, left_out
        Pairs of a model and a plan; counts of impossible shapes, plans and pairs by reason.
    refused, failed
        Candidates whose simulation was not possible or went wrong, by reason.
    pruned, skipped
        Candidates whose bound shows that they are not among the first, and those beyond the number
        that was to be simulated.
    """

    system: str
    scheme: str
    rows: list[CandidateRow]
    looked_at: int
    left_out: dict[str, int]
    refused: dict[str, int]
    failed: dict[str, int]
    pruned: int
    skipped: int
    sensitivity: Sensitivity | None = None

    @classmethod
    def of(cls, possible: Possible, ranked: SearchRanking, sensitivity: Sensitivity | None) -> SystemFindings:
        """Put a search's parts together."""
        return cls(
            system=possible.where.system,
            scheme=possible.where.scheme,
            rows=[_row(one, cost) for one, cost in ranked.rows],
            looked_at=possible.looked_at,
            left_out=dict(sorted(possible.left_out.items())),
            refused=_count(ranked.refused),
            failed=_count(ranked.failed),
            pruned=ranked.pruned,
            skipped=ranked.skipped,
            sensitivity=sensitivity,
        )


class SearchResult(ResultBase):
    """Result of a search; a file of the first schema, which had none, has no run id.

    Attributes
    ----------
    space
        What was searched.
    by
        What candidates are ranked by: tokens per second, or MFU.
    top
        Rows that are exact: those that simulating all candidates would give.
    """

    format: Literal["moereplay-choice/2"] = "moereplay-choice/2"
    spec: ChooseSpec
    space: dict[str, JsonValue]
    by: str
    top: int
    systems: list[SystemFindings]

    @property
    def name(self) -> str:
        """Title of the space, or its model."""
        return str(self.space.get("title") or self.space["model"])

    def _rows(self) -> list[dict[str, Any]]:
        """One for each candidate that was simulated, the best of a system first."""
        return [
            {"system": found.system, "scheme": found.scheme, **flat(row.model_dump(mode="json"))}
            for found in self.systems
            for row in found.rows
        ]

    def text(self) -> str:
        """A table for every system, and why its first row is the best."""
        from replay.report.text import summary

        return summary(self)


def result_of_old(document: Mapping[str, Any]) -> dict[str, Any]:
    """Make a result of ``moereplay-choice/1`` one of the present schema.

    It held the space by value, and did not say which file it was, nor whether a number of
    simulations was asked for.
    """
    varied = [found["sensitivity"] for found in document["systems"] if found.get("sensitivity")]
    spec: dict[str, Any] = {
        "system": [f"{found['system']}:{found['scheme']}" for found in document["systems"]],
        "top": document["top"],
        "by": document["by"],
    }
    if varied:
        spec |= {"sensitivity": repr(varied[0]["share"]), "again": varied[0]["candidates"]}
    head = {"format": "moereplay-choice/2", "run_id": "", "version": "", "spec": spec}
    return {**document, **head}


def _row(one: BoundedCandidate, cost: Cost) -> CandidateRow:
    return CandidateRow(
        sizes=dict(one.candidate.sizes),
        plan=one.candidate.spec.plan,
        schedule=str(one.candidate.spec.schedule),
        total_parameters=one.total,
        active_parameters=one.active,
        least_us=one.least_us,
        cost=cost,
    )


def _count(reasons: list[tuple[BoundedCandidate, str]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for _, reason in reasons:
        first = reason.splitlines()[0] if reason else "no reason given"
        counts[first] = counts.get(first, 0) + 1
    return counts
