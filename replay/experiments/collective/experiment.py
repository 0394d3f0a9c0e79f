"""Collectives alone as an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from replay.experiments.base.experiment import NOTHING, Experiment, Older, ReplayWatcher, SpecInputs, Words
from replay.experiments.collective.result import CollectiveResult, result_of_old
from replay.experiments.collective.spec import CODE, CollectiveSpec, size_text

if TYPE_CHECKING:
    from replay.experiments.collective.setup import CollectiveSetup

NO_SCHEMES = "a collective is one kernel, without a scheme of layers"


class CollectiveExperiment(Experiment[CollectiveSpec, "CollectiveSetup", CollectiveResult]):
    """One collective at several sizes, by one algorithm or several."""

    name = "collective"
    command = "collective"
    title = "collective alone"
    spec = CollectiveSpec
    result = CollectiveResult
    code = CODE
    lacking: ClassVar[Words] = {
        "compare": "algorithms are rows of one result: give several with --algorithm",
        "diff": NO_SCHEMES,
        "dry-run": "it takes seconds",
        "max-memory": "one kernel at a time is replayed, whose graph is small",
    }
    older: ClassVar[Older] = {"moereplay-collective/1": result_of_old}

    def setup(self, spec: CollectiveSpec, given: SpecInputs[CollectiveSetup] = NOTHING) -> CollectiveSetup:
        """Follow the references of a spec; no objects may be given."""
        from replay.experiments.collective.setup import CollectiveSetup

        return CollectiveSetup.of(spec)

    def steps(self, setup: CollectiveSetup) -> int:
        """Count the rows."""
        return len(setup.spec.num_bytes) * len(setup.algorithms)

    def times_us(self, result: CollectiveResult) -> Mapping[tuple[str, str], float]:
        """Times by size, at each of which algorithms are rivals."""
        return {(size_text(row.bytes), row.algorithm): row.time_us for row in result.rows}

    def replay(self, setup: CollectiveSetup, watch: ReplayWatcher) -> CollectiveResult:
        """Time each row; an observer is called with its schedule and machine."""
        from replay.experiments.collective.replay import carry_out

        return carry_out(setup, watch)


EXPERIMENT = CollectiveExperiment()
