"""From a search that was set up to its result."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from replay.experiments.base.result import package_version
from replay.experiments.choose.result import Found, SearchResult, Sensitivity
from replay.experiments.choose.search import search
from replay.experiments.choose.sensitivity import turns

if TYPE_CHECKING:
    from replay.experiments.base.crews.crew import Crew
    from replay.experiments.base.experiment import Report
    from replay.experiments.choose.ranking import Ranked
    from replay.experiments.choose.search import Possible, Simulator
    from replay.experiments.choose.setup import ChooseSetup


def carry_out(
    setup: ChooseSetup,
    folder: str | Path,
    *,
    crew: AbstractContextManager[Crew] | None = None,
    report: Report = lambda _: None,
) -> SearchResult:
    """Simulate what may be among the first, and rank it.

    Parameters
    ----------
    folder, crew, report
        As of `replay.experiments.choose.search.search`.
    """
    spec = setup.spec
    varied: dict[str, Sensitivity] = {}

    def vary(one: Possible, ranked: Ranked, simulator: Simulator) -> None:
        first = [row for row, _ in ranked.rows[: spec.again]]
        if spec.share is not None and len(first) > 1:
            made = turns(first, simulator, spec.share, spec.by)
            varied[one.where.system] = Sensitivity.of(spec.share, len(first), made)

    ranked = search(
        setup.possible, folder, top=spec.top, by=spec.by, most=spec.most, crew=crew, then=vary,
        report=report,
    )  # fmt: skip
    return SearchResult(
        run_id=setup.run_id,
        version=package_version(),
        spec=spec,
        space=setup.space.model_dump(mode="json"),
        by=spec.by,
        top=spec.top,
        systems=[
            Found.of(one, of, varied.get(one.where.system))
            for one, of in zip(setup.possible, ranked, strict=True)
        ],
    )
