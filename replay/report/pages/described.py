"""What pages of whole models and of dense layers have alike: schemes, words of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from replay.report.command import value_text
from replay.report.proposed import proposed_text, starred
from replay.report.provenance import options_text
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from replay.experiments.base.result import SchemeDescription


class Described(NamedTuple):
    """A result's name in tables, its scheme, and its identity."""

    name: str
    scheme: SchemeDescription
    run_id: str


def schemes_table(found: Iterable[Described]) -> Table:
    """What each scheme assumes and proposes, and where it is described."""
    rows, is_lacking = {}, False
    for one in found:
        scheme = one.scheme
        is_lacking |= bool(scheme.lacking)
        name = starred(scheme.name, scheme)
        rows[name] = (
            name,
            proposed_text(scheme) or None,
            scheme.assumes or None,
            scheme.source or None,
        )
    columns = [
        Column("scheme"),
        Column("proposed hardware"),
        Column("assumes"),
        Column("source", rank=1),
    ]
    notes = ["* proposed hardware, which the machine lacks."] if is_lacking else []
    title = "What each scheme assumes and proposes"
    return Table("schemes", title, columns, list(rows.values()), notes)


def identities_table(found: Iterable[Described]) -> Table:
    """Options and identity of each result."""
    rows = [(one.name, options_text(one.scheme.options), one.run_id) for one in found]
    columns = [Column("scheme"), Column("options"), Column("identity", rank=1)]
    return Table("identities", "Each result: equal identities are equal", columns, rows)


def schemes_words(
    given: Mapping[str, tuple[str, Mapping[str, object]]],
    *,
    usual: Sequence[str],
    baseline: str,
    usual_baseline: str,
) -> list[str]:
    """Words of a command line that ask for some schemes.

    Parameters
    ----------
    given
        Name and options of each scheme by the word that asks for it, such as its name.
    usual
        Schemes that run where none is named.
    baseline, usual_baseline
        What speed-ups are over, and what they are over where nobody says.
    """
    words = [] if list(given) == list(usual) else twice("--scheme", given)
    words += [] if baseline == usual_baseline else ["--baseline", baseline]
    settings = [
        f"{name}.{key}={value_text(value)}"
        for name, options in given.values()
        for key, value in options.items()
    ]
    return words + twice("--option", settings)


def twice(option: str, values: Iterable[str]) -> list[str]:
    """Words of an option that is repeated, once before each value."""
    return [word for value in values for word in (option, value)]
