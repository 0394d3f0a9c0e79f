"""Two schemes side by side: where the difference of their times comes from.

The schema is ``moereplay-explanation/1``.

The module is long because its documents, which describe each field, stand beside what fills them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from replay.errors import UserError, quote_names, unknown
from replay.experiments.base.names import LACKING
from replay.experiments.base.result import ComparisonBase, Document, TimedResult
from replay.experiments.collective.result import CollectiveResult
from replay.experiments.collective.spec import size_text
from replay.experiments.layer.experiment import EXPERIMENT as LAYER
from replay.experiments.layer.result import Comparison
from replay.experiments.layer.tables.notes import around_note, heading, launch_notes, tuned_notes
from replay.schemes import Scheme
from replay.schemes.ep.traffic import TRAFFIC
from replay.schemes.modules import modules_of
from replay.schemes.registry import EVERY
from replay.studies.differences import any_experiment as of_any
from replay.studies.differences.inputs import changes_of
from replay.studies.differences.outcome import compare_quantities
from replay.studies.differences.pairs import alike, names_of
from replay.studies.differences.parts import Change, QuantityDifference
from replay.studies.differences.path import ps
from replay.studies.differences.sides import Side, side_of
from replay.studies.differences.trust import Trust, trusts
from replay.studies.uncertainty.parts import parts_of
from replay.studies.uncertainty.residuals import UNVALIDATED
from tracegen.shared.display.frames import flat
from tracegen.shared.strict import Strict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replay.experiments.base.result import ResultBase
    from replay.experiments.collective.result import CollectiveRow
    from replay.experiments.layer.result import Result

DESCRIBED = ("scheme", "option")
"""Parts of the names of inputs that are of the scheme."""
WAITS_OF_HOSTS = frozenset({"overheads.host_sync_us", "overheads.poll_pinned_us"})
"""Values of waits of hosts, which a scheme may pay where its GPUs are busy."""
OF_THE_SCHEME = ("sequence_parallel", "is_paired")
"""Other inputs that are not the same because the schemes are not."""


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
    """Begin and end of a phase in both, and time in which something of it is in service; None without it."""

    phase: str
    one_us: tuple[float, float] | None
    other_us: tuple[float, float] | None
    one_busy_us: float | None = None
    other_busy_us: float | None = None


class OverheadCount(Strict):
    """Tasks of the critical paths that are overhead, or latencies of kernels: those of one length.

    Attributes
    ----------
    where, what
        The part of the path that they add up to.
    each_us
        Time of each.
    key
        Values of the system that it is made of, with commas; empty for constants of software.
    one, other
        How many the first's path has, and the second's.
    """

    where: str
    what: str
    each_us: float
    key: str = ""
    one: int
    other: int


class ValueShare(Strict):
    """Time on both critical paths that one value of the system accounts for.

    Attributes
    ----------
    key
        The value, such as ``overheads.fence_us``; several with commas, where one task costs all of them.
    says
        Its confidence and its spread as ``hardware show`` has them, of several the confidence of each with
        commas; empty where that is not known.
    one_us, other_us, difference_us
        The first's time, the second's, and by how much the second's is longer.
    low, high, value
        What it may be in nine cases of ten, and what it is; None where no range is known.
    """

    key: str
    says: str = ""
    one_us: float
    other_us: float
    difference_us: float
    low: float | None = None
    high: float | None = None
    value: float | None = None

    def at(self, value: float, difference_us: float) -> float:
        """Difference of the times with another value, as long as both paths stay."""
        assert self.value
        return difference_us + self.difference_us * (value / self.value - 1)


class CodeShare(Strict):
    """Time of the tasks on one critical path that one function asked for.

    Attributes
    ----------
    scheme, place
        The scheme, and the file and function.
    time_us
        Time of all these tasks.
    where, what, part_us
        The phase and the cause with most of it, and their time.
    """

    scheme: str
    place: str
    time_us: float
    where: str
    what: str
    part_us: float


class GpuTimes(Strict):
    """Time of one GPU under a scheme by what it does, in microseconds; it adds up to the time of all."""

    scheme: str
    gpu: int
    parts_us: dict[str, float]


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
        What a GPU does in the mean, in the same time: it computes, is between kernels or waits for a launch, waits
        for SMs that copy, for messages, for other GPUs, for what no GPU is busy with, and at the end for the last GPU.
        They add up likewise; nothing of what has no schedule of its own.
    each_gpu
        The same of every GPU.
    phases
        When phases begin and end, where both are of one layer by itself.
    quantities
        What else is measured or counted and is not the same; ``before`` is the first.
    inputs
        What entered otherwise beside the scheme and its options.
    about
        A line on each scheme: what it is, what it moves, where it loses, and what its replay counted.
    sure
        Lines on what nobody measured, and on how to ask how sure the order is.
    heading, notes
        Lines on what was replayed and how it was launched, as the comparison of layers has them.
    overhead
        Tasks that overhead on the paths consists of; launches, gaps and small kernels in a row one by one.
    values
        The same by value of the system, the longest first.
    places
        Code that asked for the tasks of each path, the longest first.
    beside
        Values that tasks of a scheme cost and none of its path, by its name: those of the other's
        path, and those of waits of hosts.
    code
        Files of each scheme of moereplay's own, by its name: those of `places`, or where an older
        result does not tell them, all (`modules_of`).
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
    about: list[str] = Field(default_factory=list)
    sure: list[str] = Field(default_factory=list)
    heading: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    overhead: list[OverheadCount] = Field(default_factory=list)
    values: list[ValueShare] = Field(default_factory=list)
    places: list[CodeShare] = Field(default_factory=list)
    beside: dict[str, dict[str, float]] = Field(default_factory=dict)
    code: dict[str, list[str]] = Field(default_factory=dict)
    each_gpu: list[GpuTimes] = Field(default_factory=list)

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
    before, after = of_any.load(one), of_any.load(other)
    experiment = of_any.experiment_of(before, after, "explain")
    _check_single(one, before)
    _check_single(other, after)
    before, after = alike(before, after)
    first, second = side_of(experiment, before), side_of(experiment, after)
    described: dict[str, Any] = {
        "values": _values(first, second, trusts(before, after)),
        "about": _about(before, after),
    }
    if experiment is LAYER:
        _check_layers(before, after)
        results = [before, after]
        names = _apart(names_of(results), [one.system.name for one in results], [one.hosts for one in results])
        described |= {"heading": _heading(before, after), "notes": _notes(results), "sure": _sure(before, after)}
        first, second = first._replace(name=names[0]), second._replace(name=names[1])
        return _explain(first, second, code=_code(first, second, before, after), **described)
    names = _apart([first.name, second.name])
    first, second = first._replace(name=names[0]), second._replace(name=names[1])
    code = _code(first, second, before, after)
    return _explain(first, second, experiment=experiment.name, code=code, **described)


def _apart(names: list[str], *more: list[str]) -> list[str]:
    """Names of two results, with the first that tells them apart behind them, or a number."""
    if names[0] != names[1]:
        return names
    behind = next((each for each in more if each[0] != each[1]), ["1", "2"])
    return [f"{name} ({what})" for name, what in zip(names, behind, strict=True)]


def _notes(results: list[Result]) -> list[str]:
    return [*launch_notes(results), around_note(results), *tuned_notes(results)]


def _about(*results: ResultBase) -> list[str]:
    """Lines on the schemes of moereplay's own that results are of."""
    found: dict[str, str] = {}
    for result in results:
        if not isinstance(result, TimedResult):
            continue
        for scheme in (EVERY[one.name] for one in result.schemes if one.name in EVERY):
            text = f"{scheme.name}: {scheme.summary}"
            if isinstance(scheme, Scheme):
                text += f"; moves {TRAFFIC[scheme.traffic].moves}"
                text += f". It loses with {scheme.loses}" if scheme.loses else ""
            counted = _count_text(result)
            found[scheme.name] = f"{text}. Counted: {counted}." if counted else f"{text}."
    return [*found.values(), *([f"More: `moereplay schemes {list(found)[-1]}`."] if found else [])]


def _count_text(result: TimedResult) -> str:
    """Counts of the mechanisms of a result, in words; empty where all are zero."""
    counts: Counter[str] = Counter()
    for one in result.schedules:
        counts.update({name: sum(of) for name, of in one.mechanisms.counters.items()})
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)


def _sure(*results: Result) -> list[str]:
    """Lines on what nobody measured of results' schemes, and on who draws what is not certain."""
    names = list(dict.fromkeys(one.scheme.name for one in results))
    vague = [name for name, one in zip(names, results, strict=False) if _is_unmeasured(one)]
    lines = [
        f"{one.scheme.name} proposes hardware that {one.system.name} lacks: {', '.join(one.scheme.lacking)}."
        for one in results
        if one.scheme.lacking
    ]
    lines = list(dict.fromkeys(lines))
    if vague:
        lines.append(
            f"Little or nothing was measured of how {quote_names(vague)} "
            f"{'communicate' if vague[1:] else 'communicates'} (`moereplay validate`)."
        )
    if names[1:]:
        asked = " ".join(f"--scheme {name}" for name in names)
        lines.append(f"How sure is the order? Ask `moereplay compare` with `{asked} --uncertainty 20`.")
    return lines


def _is_unmeasured(result: Result) -> bool:
    parts = parts_of(result)
    return any(parts.get(phase, "").startswith(UNVALIDATED) for phase in ("dispatch", "combine"))


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


def _explain(one: Side, other: Side, **described: Any) -> Explanation:
    spans = one.spans_us if one.spans_us and other.spans_us else {}
    return Explanation(
        one=one.name,
        other=other.name,
        one_us=one.time_ps / 1e6,
        other_us=other.time_ps / 1e6,
        difference_us=(other.time_ps - one.time_ps) / 1e6,
        path=_shares(one.path, other.path),
        gpus=_shares(one.gpus, other.gpus, in_order=True),
        each_gpu=[
            GpuTimes(scheme=side.name, gpu=gpu, parts_us={what: time / 1e6 for what, time in parts.items()})
            for side in (one, other)
            for gpu, parts in enumerate(side.each)
        ],
        phases=[
            PhaseSpan(
                phase=phase,
                one_us=one.spans_us.get(phase),
                other_us=other.spans_us.get(phase),
                one_busy_us=one.busy_us.get(phase),
                other_busy_us=other.busy_us.get(phase),
            )
            for phase in ({**spans, **other.spans_us} if spans else ())
        ],
        quantities=compare_quantities(one.numbers, other.numbers),
        inputs=[each for each in changes_of([("", one.inputs, other.inputs)]) if not _is_of_the_scheme(each.what)],
        overhead=_overhead(one, other),
        places=[share for side in (one, other) for share in _places(side)],
        beside={side.name: keys for side, its in ((one, other), (other, one)) if (keys := _beside(side, its))},
        **described,
    )


def _heading(first: Result, second: Result) -> list[str]:
    """Lines on what both replays are of, or on each where they differ in more than scheme and placement."""
    alike = ("trace", "system", "batch", "types")
    if all(getattr(first, name) == getattr(second, name) for name in alike):
        return heading(first, second).splitlines()
    return [*dict.fromkeys(line for one in (first, second) for line in heading(one).splitlines())]


def _code(one: Side, other: Side, *results: ResultBase) -> dict[str, list[str]]:
    """Files of the schemes of some results: of their paths, or all of a scheme that is no other file's or plug-in's."""
    found: dict[str, list[str]] = {}
    for side, result in zip((one, other), results, strict=True):
        files = [share.place.partition(": ")[0] for share in _places(side)]
        names = [each.name for each in result.schemes] if isinstance(result, TimedResult) and not files else []
        found |= {name: modules_of(EVERY[name]) for name in names if name in EVERY}
        if files:
            found[side.name] = list(dict.fromkeys(files))
    return found


def _places(side: Side) -> list[CodeShare]:
    """Code that asked for tasks of a path, the longest first."""
    parts: dict[str, Counter[tuple[str, str]]] = {}
    for (place, where, what), time in side.places.items():
        if time:
            parts.setdefault(place, Counter())[where, what] += time
    found = []
    for place, times in parts.items():
        ((where, what), most), *_ = times.most_common(1)
        share = {"where": where, "what": what, "part_us": most / 1e6}
        found.append(CodeShare(scheme=side.name, place=place, time_us=times.total() / 1e6, **share))
    return sorted(found, key=lambda share: -share.time_us)


def _beside(side: Side, other: Side) -> dict[str, float]:
    """Values that a side pays off its path and the other has on its own, or that are a wait of its host."""
    paid = {value for *_, values in other.overhead for value in values}
    return {key: side.inputs[f"system.{key}"] for key in sorted(side.beside & (paid | WAITS_OF_HOSTS))}


def _overhead(one: Side, other: Side) -> list[OverheadCount]:
    """Tasks that either path has, the longest time of all of a length first."""
    found = [
        OverheadCount(
            where=where,
            what=what,
            each_us=each_us,
            key=", ".join(values),
            one=one.overhead.get((where, what, each_us, values), 0),
            other=other.overhead.get((where, what, each_us, values), 0),
        )
        for where, what, each_us, values in {**one.overhead, **other.overhead}
    ]
    return sorted(found, key=lambda each: -each.each_us * max(each.one, each.other))


def _values(one: Side, other: Side, trusted: Mapping[str, Trust]) -> list[ValueShare]:
    """Time of both paths by the values that tasks are made of."""
    times: dict[tuple[str, ...], list[int]] = {}
    for place, side in enumerate((one, other)):
        for (_, _, each_us, values), count in side.overhead.items():
            if values:
                times.setdefault(values, [0, 0])[place] += count * ps(each_us)
    found = []
    for values, (first, second) in times.items():
        known = [trusted[value] for value in values if value in trusted]
        levels = (trusted[value].says.partition(";")[0] if value in trusted else "-" for value in values)
        said: dict[str, Any] = {"says": ", ".join(levels)} if known else {}
        if len(values) == 1 and known:
            said = known[0]._asdict()
        shares = {"one_us": first / 1e6, "other_us": second / 1e6, "difference_us": (second - first) / 1e6}
        found.append(ValueShare(key=", ".join(values), **shares, **said))
    return sorted(found, key=lambda share: -max(share.one_us, share.other_us))


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
    compared = of_any.load(path)
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
    message = f"{given} holds a comparison; name two of its schemes: {quote_names(names)}"
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
