"""Two schemes side by side: where the difference of their times comes from.

The schema is ``moereplay-explanation/1``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from replay.errors import UserError, listed, unknown
from replay.experiments.base.names import LACKING
from replay.experiments.base.result import ComparisonBase, Document, TimedResult
from replay.experiments.collective.result import CollectiveResult
from replay.experiments.collective.spec import size_text
from replay.experiments.layer.experiment import EXPERIMENT as LAYER
from replay.experiments.layer.result import Comparison
from replay.experiments.layer.tables.notes import heading, launch_notes, tuned_notes
from replay.schemes.modules import modules_of
from replay.schemes.registry import EVERY
from replay.studies.differences import any_experiment as of_any
from replay.studies.differences.inputs import changes_of
from replay.studies.differences.outcome import changed
from replay.studies.differences.pairs import alike, names_of
from replay.studies.differences.parts import Change, QuantityDifference
from replay.studies.differences.path import BARRIERS, GAPS, HOST_WAITS, LAUNCHES
from replay.studies.differences.sides import Side, side_of
from tracegen.shared.display.frames import flat
from tracegen.shared.strict import Strict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replay.experiments.base.result import ResultBase
    from replay.experiments.collective.result import CollectiveRow
    from replay.experiments.layer.result import Result

DESCRIBED = ("scheme", "option")
"""Parts of the names of inputs that are of the scheme."""
OF_THE_SCHEME = ("sequence_parallel", "is_paired")
"""Other inputs that are not the same because the schemes are not."""


VALUES = {
    GAPS: ("kernel_gap_stream_us", "kernel_gap_graph_us"),
    LAUNCHES: ("launch_us", "graph_launch_us"),
    BARRIERS: ("fence_us", "grid_barrier_us"),
    HOST_WAITS: ("host_sync_us",),
}
"""Overheads of a system that parts of a path may consist of."""


class Share(Strict):
    """A part of both times, in microseconds.

    Attributes
    ----------
    where, what
        The phase of the layer, or what the GPUs do; and the cause, empty where there is none.
    one_us, other_us, difference_us
        The first's part, the second's, and by how much the second's is longer.
    """

    where: str
    what: str = ""
    one_us: float
    other_us: float
    difference_us: float


class PhaseSpan(Strict):
    """Begin and end of a phase in both; None for one that has no such phase."""

    phase: str
    one_us: tuple[float, float] | None
    other_us: tuple[float, float] | None


class OverheadCount(Strict):
    """Tasks of the critical paths that are overhead: those of one length, and how many each path has.

    Attributes
    ----------
    where, what
        The part of the path that they add up to.
    each_us
        Time of each.
    key
        Value of the system that it is; empty where it is a constant of software or a sum.
    one, other
        How many the first's path has, and the second's.
    """

    where: str
    what: str
    each_us: float
    key: str = ""
    one: int
    other: int


class Explanation(Document):
    """Sources of the difference between the times of two results.

    Attributes
    ----------
    experiment
        Name of what both are results of; None for layers.
    one, other
        Their schemes.
    one_us, other_us, difference_us
        Time of all of it, and by how much the second's is longer.
    path
        Parts of the critical paths by phase and cause, the largest difference first. They add up
        to both times and to the difference, to the picosecond. Of a step or a batch, which is
        composed of many replays, parts that it is composed of: of a step the mean over its GPUs,
        which add up to within rounding.
    gpus
        What a GPU does in the mean, in the same time: it computes or launches kernels, waits for
        wires, for other GPUs, for latencies, and at the end for the last GPU. They add up likewise;
        nothing of what has no schedule of its own.
    phases
        When phases begin and end, where both are of one layer by itself.
    quantities
        What else is measured or counted and is not the same; ``before`` is the first.
    inputs
        What entered otherwise beside the scheme and its options.
    heading, notes
        Lines on what was replayed and how it was launched, as the comparison of layers has them.
    overhead
        Tasks that overhead on the paths consists of.
    code
        Files of each scheme of moereplay's own, by its name (`modules_of`).
    """

    LEFT_OUT_IF_NONE: ClassVar[frozenset[str]] = frozenset({"experiment"})

    format: Literal["moereplay-explanation/1"] = "moereplay-explanation/1"
    experiment: str | None = None
    one: str
    other: str
    one_us: float
    other_us: float
    difference_us: float
    path: list[Share]
    gpus: list[Share]
    phases: list[PhaseSpan]
    quantities: list[QuantityDifference]
    inputs: list[Change]
    heading: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    overhead: list[OverheadCount] = Field(default_factory=list)
    code: dict[str, list[str]] = Field(default_factory=dict)

    def _rows(self) -> list[dict[str, Any]]:
        """One for each part of the critical paths."""
        return [flat(share.model_dump(mode="json")) for share in self.path]


def explain(one: ResultBase | str | Path, other: ResultBase | str | Path) -> Explanation:
    """Say where the difference between the times of two results comes from.

    Parameters
    ----------
    one, other
        Results of one experiment under two schemes, or files of them; layers are the same ones.
        A collective that has several rows is one of `pick`.

    Raises
    ------
    UserError
        If a file cannot be read, holds no single result, or another number of layers; or if the
        results are of two experiments, or of one without parts of a time, with the reason.
    """
    before, after = of_any.loaded(one), of_any.loaded(other)
    experiment = of_any.experiment_of(before, after, "explain")
    _check_single(one, before)
    _check_single(other, after)
    before, after = alike(before, after)
    first, second = side_of(experiment, before), side_of(experiment, after)
    described = {"overhead": _overhead(first, second), "code": _code(before, after)}
    if experiment is LAYER:
        _check_layers(before, after)
        results = [before, after]
        names = names_of(results)
        described |= {"heading": _heading(before, after), "notes": [*launch_notes(results), *tuned_notes(results)]}
        return _explained(first._replace(name=names[0]), second._replace(name=names[1]), **described)
    if first.name == second.name:
        first = first._replace(name=f"{first.name} (1)")
        second = second._replace(name=f"{second.name} (2)")
    return _explained(first, second, experiment=experiment.name, **described)


def _check_layers(first: Result, second: Result) -> None:
    """Refuse results of another number of layers.

    Raises
    ------
    UserError
        With both numbers.
    """
    numbers = first.totals.num_layers, second.totals.num_layers
    if numbers[0] != numbers[1]:
        message = f"the results are of {numbers[0]} and {numbers[1]} layers: explain takes the same"
        raise UserError(message)


def _explained(one: Side, other: Side, **described: Any) -> Explanation:
    spans = one.spans_us if one.spans_us and other.spans_us else {}
    return Explanation(
        one=one.name,
        other=other.name,
        one_us=one.time_ps / 1e6,
        other_us=other.time_ps / 1e6,
        difference_us=(other.time_ps - one.time_ps) / 1e6,
        path=_shares(one.path, other.path),
        gpus=_shares(one.gpus, other.gpus, in_order=True),
        phases=[
            PhaseSpan(phase=phase, one_us=one.spans_us.get(phase), other_us=other.spans_us.get(phase))
            for phase in ({**spans, **other.spans_us} if spans else ())
        ],
        quantities=changed(one.numbers, other.numbers),
        inputs=[each for each in changes_of([("", one.inputs, other.inputs)]) if not _is_of_the_scheme(each.what)],
        **described,
    )


def _heading(first: Result, second: Result) -> list[str]:
    """Lines on what both replays are of, or on each where they differ in more than scheme and placement."""
    alike = ("trace", "system", "batch", "types")
    if all(getattr(first, name) == getattr(second, name) for name in alike):
        return heading(first, second).splitlines()
    return [*dict.fromkeys(line for one in (first, second) for line in heading(one).splitlines())]


def _code(*results: ResultBase) -> dict[str, list[str]]:
    """Files of the schemes of some results, those of other files and plug-ins left out."""
    names = [each.name for one in results if isinstance(one, TimedResult) for each in one.schemes]
    return {name: modules_of(EVERY[name]) for name in names if name in EVERY}


def _overhead(one: Side, other: Side) -> list[OverheadCount]:
    """Tasks that either path has, the longest time of all of a length first."""
    found = [
        OverheadCount(
            where=where,
            what=what,
            each_us=each_us,
            key=_key(what, each_us, one, other),
            one=one.overhead.get((where, what, each_us), 0),
            other=other.overhead.get((where, what, each_us), 0),
        )
        for where, what, each_us in {**one.overhead, **other.overhead}
    ]
    return sorted(found, key=lambda each: -each.each_us * max(each.one, each.other))


def _key(what: str, each_us: float, *sides: Side) -> str:
    """Value of the system that tasks of a length are of; empty for none."""
    found = (
        key for key in VALUES.get(what, ()) for side in sides if side.inputs.get(f"system.overheads.{key}") == each_us
    )
    return next((f"overheads.{key}" for key in found), "")


def _is_of_the_scheme(what: str) -> bool:
    """Tell whether an input is not the same because the schemes are not."""
    return what in OF_THE_SCHEME or any(f".{part}." in f".{what}" for part in DESCRIBED)


def pick(compared: ComparisonBase[Any] | CollectiveResult, name: str) -> Any:
    """Take one result out of several.

    Parameters
    ----------
    compared
        A comparison; or a collective, whose rows are results too.
    name
        Its name, as `Comparison.row` takes it; that of an algorithm, or ``"ring, 64K"``.

    Raises
    ------
    UserError
        If there is none or are several, or why it was left out.
    """
    if isinstance(compared, CollectiveResult):
        return compared.model_copy(update={"rows": [_row(compared, name)]})
    if name in compared.left_out:
        raise UserError(compared.left_out[name])
    if isinstance(compared, Comparison):
        return compared.row(name)
    names = {one.name: one for one in compared.results}
    if name.removesuffix(LACKING) not in names:
        raise unknown("scheme", name, names)
    return names[name.removesuffix(LACKING)]


def _row(found: CollectiveResult, name: str) -> CollectiveRow:
    """A row by its algorithm, and its size where there are several."""
    several = len({row.bytes for row in found.rows}) > 1
    rows = {f"{row.algorithm}, {size_text(row.bytes)}" if several else row.algorithm: row for row in found.rows}
    if name not in rows:
        raise unknown("row", name, rows)
    return rows[name]


def results_of_file(path: str | Path, one: str, other: str) -> tuple[Any, Any]:
    """Take two results out of one file.

    Parameters
    ----------
    path
        What `compare --json` wrote, or another command that compares; or `collective --json`.
    one, other
        Their names, as its tables print them.

    Raises
    ------
    UserError
        If the file cannot be read, holds one result alone, or :func:`pick` refuses a name.
    """
    compared = of_any.loaded(path)
    if not isinstance(compared, ComparisonBase | CollectiveResult):
        message = f"{path} holds one result, not a comparison of {one} and {other}"
        raise UserError(message)
    return pick(compared, one), pick(compared, other)


def _check_single(given: object, found: Any) -> None:
    """Refuse several results where one is explained.

    Raises
    ------
    UserError
        With the names that there are.
    """
    if isinstance(found, ComparisonBase):
        names = names_of(found.results)
    elif isinstance(found, CollectiveResult) and len(found.rows) > 1:
        names = [f"{row.algorithm}, {size_text(row.bytes)}" for row in found.rows]
    else:
        return
    message = f"{given} holds a comparison; name two of its schemes: {listed(names)}"
    raise UserError(message)


def _shares(
    one: Mapping[tuple[str, str], int], other: Mapping[tuple[str, str], int], *, in_order: bool = False
) -> list[Share]:
    """Parts that either has, the largest difference first unless they have an order."""
    found = [
        Share(
            where=where,
            what=what,
            one_us=one.get((where, what), 0) / 1e6,
            other_us=other.get((where, what), 0) / 1e6,
            difference_us=(other.get((where, what), 0) - one.get((where, what), 0)) / 1e6,
        )
        for where, what in {**one, **other}
        if one.get((where, what)) or other.get((where, what))
    ]
    return found if in_order else sorted(found, key=lambda share: -abs(share.difference_us))
