"""Collectives alone as an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from replay.experiments.base import compare as base
from replay.experiments.base.experiment import Experiment
from replay.experiments.collective.replay import carry_out
from replay.experiments.collective.result import CollectiveResult, result_of_old
from replay.experiments.collective.setup import CODE, CollectiveSetup
from replay.experiments.collective.spec import CollectiveSpec, size_text

if TYPE_CHECKING:
    from replay.experiments.base.experiment import Observer, Progress
    from replay.schemes.outside import AllowCode

NO_SCHEMES = "a collective is one kernel, without a scheme of layers"


class CollectiveAlone(Experiment[CollectiveSpec, CollectiveSetup, CollectiveResult]):
    """One collective at several sizes, by one algorithm or several."""

    name = "collective"
    command = "collective"
    title = "collective alone"
    spec = CollectiveSpec
    result = CollectiveResult
    code = CODE
    lacking: ClassVar[Mapping[str, str]] = {
        "compare": "algorithms are rows of one result: give several with --algorithm",
        "diff": NO_SCHEMES,
        "dry-run": "it takes seconds",
        "max-memory": "one kernel at a time is replayed, whose graph is small",
    }
    older: ClassVar[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
        "moereplay-collective/1": result_of_old
    }

    def setup(
        self,
        spec: CollectiveSpec,
        given: Mapping[str, Any],
        *,
        like: CollectiveSetup | None = None,
        allow_code: AllowCode = False,
    ) -> CollectiveSetup:
        """Nothing is given beside the spec."""
        return CollectiveSetup.of(spec)

    def steps(self, setup: CollectiveSetup) -> int:
        """One for each row."""
        return len(setup.spec.num_bytes) * len(setup.algorithms)

    def times_us(self, result: CollectiveResult) -> Mapping[tuple[str, str], float]:
        """Algorithms are rivals at each size."""
        return {(size_text(row.bytes), row.algorithm): row.time_us for row in result.rows}

    def replay(
        self,
        setup: CollectiveSetup,
        *,
        progress: Progress | None = None,
        observe: Observer | None = None,
    ) -> CollectiveResult:
        """An observer is called with the schedule and the machine of each row."""
        return carry_out(setup, progress=progress, observe=observe)


EXPERIMENT = CollectiveAlone()


def run(spec: CollectiveSpec | None = None, **settings: Any) -> CollectiveResult:
    """Time a collective; parameters and errors are those of `base.compare.run`.

    >>> run(op="allgather", bytes="64K", ranks=2, algorithm="ring").rows[0].blocks
    24
    """
    result: CollectiveResult = base.run(EXPERIMENT, spec, **settings)
    return result
