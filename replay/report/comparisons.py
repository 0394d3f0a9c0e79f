"""Parts that tables and pages of all questions share; a question's own tables are in its experiment."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Group
from rich.text import Text

from replay.experiments.base.names import LACKING, UNREAL
from replay.experiments.base.result import AnyTimed, ComparisonBase, TimedResult
from replay.report.command import command, repeat_option, value_text
from replay.report.provenance import assumptions, preset, provenance
from replay.report.words import explain_words
from replay.schemes import supporting_schemes
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pydantic import BaseModel
    from rich.console import RenderableType

    from replay.experiments.base.result import SchemeDescription, SystemDescription
    from replay.experiments.base.scheme_experiment import AnySchemeExperiment
    from tracegen.shared.display.content import Cell, Section

AnyComparison = ComparisonBase[Any]
Comparison = TypeVar("Comparison", bound=AnyComparison)


def star(name: str, *schemes: SchemeDescription) -> str:
    """Put a star behind the name of what needs hardware that its machine lacks."""
    return name + (LACKING if any(one.lacking for one in schemes) else "")


def star_notes(system: str, schemes: Iterable[SchemeDescription]) -> list[str]:
    """Say what the star means, in one line; none where nothing is lacking."""
    found = sorted({what for one in schemes for what in one.lacking})
    return [f"* proposed hardware, which {system} lacks: {', '.join(found)}."] if found else []


def proposed_text(scheme: SchemeDescription) -> str:
    """List what a scheme proposes, with a star behind each that the machine lacks."""
    marks = (f"{what} {LACKING}" if what in scheme.lacking else what for what in scheme.proposes)
    return ", ".join(marks)


def label(result: TimedResult) -> str:
    """Name of a result as tables and charts print it."""
    return star(result.name, *result.schemes)


def labels(results: Iterable[TimedResult]) -> list[str]:
    """Names of several."""
    return [label(one) for one in results]


def beside(result: TimedResult | AnyComparison, kind: type[Comparison]) -> Comparison:
    """Give a comparison as it is, and a result alone as a comparison of one."""
    if isinstance(result, kind):
        return result
    assert isinstance(result, TimedResult)
    return kind(baseline=result.name, results=[result])


def tables_group(head: str, tables: Iterable[Table | None], lines: Iterable[str], *more: RenderableType) -> Group:
    """A heading, the tables that are not None, lines that explain them, and what follows."""
    shown = [table for table in tables if table is not None]
    text = "\n".join([*explain_words(shown), *lines])
    return Group(Text(head), *shown, Text(), Text(text), *more)


def outside_notes(system: str, compared: AnyComparison) -> Iterator[str]:
    """Lines on hardware that the machine lacks, and on schemes that were left out, one for each reason."""
    yield from star_notes(system, [one for each in compared.results for one in each.schemes])
    for reason, names in left_out_alike(compared, "scheme {!r}: ").items():
        yield f"Left out: {', '.join(names)}: {reason}."


def left_out_alike(compared: AnyComparison, head: str) -> dict[str, list[str]]:
    """Names of schemes that are left out, by reason; `head`, which has the name, is cut off."""
    reasons: dict[str, list[str]] = {}
    for name, reason in compared.left_out.items():
        reasons.setdefault(reason.removeprefix(head.format(name)), []).append(name)
    return reasons


def rivals(ranking: Sequence[AnyTimed]) -> Sequence[AnyTimed]:
    """All results but bounds, which nobody can build; bounds where there is nothing else."""
    return [one for one in ranking if one.name not in UNREAL] or ranking


def built_words(compared: AnyComparison) -> tuple[str, TimedResult | None]:
    """Sentence on the proposed hardware of the first of a ranking, and the fastest that needs none.

    Returns
    -------
    Empty text and None where the first needs none; None in second place where all do.
    """
    ranking = rivals(compared.ranking)
    if label(ranking[0]) == ranking[0].name:
        return "", None
    without = next((one for one in ranking if label(one) == one.name), None)
    return "It needs proposed hardware, which the machine lacks (*)", without


def schemes_table(named: Iterable[tuple[str, SchemeDescription]]) -> Table:
    """Table of what each scheme assumes and proposes, and where it is described; each name once.

    Parameters
    ----------
    named
        Schemes, and their names as they are printed.
    """
    rows: dict[str, tuple[Cell, ...]] = {}
    notes: list[str] = []
    for name, scheme in named:
        if scheme.lacking:
            notes = ["* proposed hardware, which the machine lacks."]
        rows[name] = (name, proposed_text(scheme) or None, scheme.assumes or None, scheme.source)
    columns = [
        Column("scheme"),
        Column("proposed hardware"),
        Column("assumes"),
        Column("source", rank=1),
    ]
    title = "What each scheme assumes and proposes"
    return Table("schemes", title, columns, list(rows.values()), notes)


def scheme_table(results: Iterable[TimedResult]) -> Table:
    """The same table of all schemes of some results."""
    return schemes_table((star(one.name, one), one) for each in results for one in each.schemes)


def identities_table(
    names: Sequence[str],
    results: Sequence[TimedResult],
    more: Mapping[str, Sequence[Cell]] | None = None,
) -> Table:
    """Options and identity of each result, and further columns behind its name."""
    extra = more or {}
    rows = [
        (name, *(of[at] for of in extra.values()), options_of(one), one.run_id)
        for at, (name, one) in enumerate(zip(names, results, strict=True))
    ]
    columns = [
        Column("scheme"),
        *(Column(what, rank=1) for what in extra),
        Column("options"),
        Column("identity", rank=2),
    ]
    return Table("identities", "Each result: equal identities have equal results", columns, rows)


def options_of(result: TimedResult) -> str:
    """All options of a result's schemes in a line, each with its scheme where there are several."""
    found = {one.name: options_text(one.options) for one in result.schemes}
    if len(found) == 1:
        return next(iter(found.values()))
    return "; ".join(f"{name}: {text}" for name, text in found.items())


def options_text(options: Mapping[str, object]) -> str:
    """All options of a scheme in a line."""
    return ", ".join(f"{name}={_value(value)}" for name, value in sorted(options.items())) or "none"


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def versions(results: Iterable[TimedResult]) -> str:
    """Versions of moereplay that made some results."""
    return ", ".join(sorted({one.version for one in results}))


def rests_on(
    system: SystemDescription | None,
    results: Sequence[TimedResult],
    entries: Mapping[str, Cell],
    command: str,
    ranking: Sequence[TimedResult] = (),
) -> Iterator[Section]:
    """Make the last sections of a page: what is taken to be so, and what entered some results.

    Parameters
    ----------
    system
        Their machine; None where they do not say.
    ranking
        The results in the order of their schemes, where that is another.
    entries, command
        As `provenance` takes them; versions and identities are added.
    """
    if system is not None:
        yield assumptions(system, scheme_table(ranking or results))
    yield provenance(
        {**entries, "moereplay": versions(results)},
        command=command,
        more=[identities_table(labels(results), results)],
    )


def compare_command(
    words: Sequence[str],
    compared: AnyComparison,
    experiment: AnySchemeExperiment,
    usual: Iterable[str],
    *,
    spec: BaseModel | None = None,
    leave_out: Sequence[str] = ("scheme", "options"),
    defaults: Mapping[str, Any] | None = None,
    further: Sequence[str] = (),
) -> str:
    """Command that makes a comparison again.

    Parameters
    ----------
    words, leave_out, defaults
        As `command` takes them.
    spec
        What all have; None for that of the first.
    further
        Words behind those that ask for schemes.
    usual
        References to schemes that run where none is named.
    """
    results = compared.results
    asked = list(dict.fromkeys(experiment.reference(one.spec) for one in results))
    ran = [one for one in usual if one not in compared.left_out]
    more = [] if asked == ran else repeat_option("--scheme", asked)
    if compared.baseline != experiment.baseline(results):
        more += ["--baseline", compared.baseline]
    options: dict[str, None] = {}
    for one in results:
        for name, own in one.asked_options.items():
            options |= dict.fromkeys(f"{name}.{key}={value_text(own[key])}" for key in own)
    more += [*repeat_option("--option", options), *further]
    common = results[0].spec if spec is None else spec
    return command(words, common, leave_out=leave_out, defaults=defaults, more=more)


def placed_command(
    compared: AnyComparison,
    experiment: AnySchemeExperiment,
    common: Sequence[Any],
    *,
    defaults: Mapping[str, Any] | None = None,
    further: Sequence[str] = (),
) -> str:
    """Command of a comparison of layers or steps; empty where no single one makes it again.

    Parameters
    ----------
    common
        Specs of the results without what schemes and placements differ by.
    defaults, further
        As `compare_command` takes them.
    """
    specs = [one.spec for one in compared.results]
    schemes = list(dict.fromkeys(one.scheme for one in specs))
    placements = list(dict.fromkeys(one.placement for one in specs))
    is_whole = [(one.scheme, one.placement) for one in specs] == list(product(schemes, placements))
    if common[0].trace is None or any(one != common[0] for one in common) or not is_whole:
        return ""
    placed = [] if placements == ["contiguous"] else repeat_option("--placement", placements)
    system = preset(specs[0].system, specs[0].overrides)
    return compare_command(
        ["moereplay", "compare"],
        compared,
        experiment,
        [] if system is None else supporting_schemes(system),
        spec=common[0],
        leave_out=("scheme", "options", "placement"),
        defaults=defaults,
        further=[*placed, *further],
    )
