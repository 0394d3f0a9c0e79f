"""What pages of whole models and of dense layers have alike: schemes by value, words of commands.

Their results hold a scheme as plain values, as its ``describe()`` gave them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from replay.experiments.base.names import LACKING
from replay.report.command import value_text
from replay.report.proposed import lacking_of, starred
from replay.report.provenance import options_text
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic import JsonValue


class Described(NamedTuple):
    """A result's name in tables, its scheme, and its identity."""

    name: str
    scheme: Mapping[str, JsonValue]
    run_id: str


def schemes_table(found: Iterable[Described]) -> Table:
    """What each scheme assumes and proposes, and where it is described."""
    rows, is_lacking = {}, False
    for one in found:
        lacking, name = lacking_of(one.scheme), starred(str(one.scheme["name"]), one.scheme)
        proposes = [
            f"{what} {LACKING}" if what in lacking else what
            for what in _listed(one.scheme.get("proposes"))
        ]
        is_lacking |= bool(lacking)
        source, assumes = (str(one.scheme.get(key) or "") or None for key in ("source", "assumes"))
        rows[name] = (name, ", ".join(proposes) or None, assumes, source)
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
    rows = []
    for one in found:
        options = one.scheme.get("options")
        text = options_text(options) if isinstance(options, dict) else "none"
        rows.append((one.name, text, one.run_id))
    columns = [Column("scheme"), Column("options"), Column("identity", rank=1)]
    return Table("identities", "Each result: equal identities are equal", columns, rows)


def _listed(value: JsonValue) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else []


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
