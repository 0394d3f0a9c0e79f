"""The documents' tables of schemes as Markdown, from the registry.

A table stands between two comments, such as ``<!-- schemes -->`` and ``<!-- /schemes -->``;
``python scripts/tables.py`` writes it anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from replay.schemes import SCHEMES
from replay.schemes.traffic import TRAFFIC, way_back


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def scheme_table() -> str:
    """Table of the schemes: what each is, moves, overlaps and proposes."""
    return _markdown(
        ("scheme", "what it does", "what moves", "overlap", "proposed hardware"),
        [
            (
                f"`{scheme.name}`",
                scheme.summary,
                TRAFFIC[scheme.traffic].moves,
                scheme.overlap,
                ", ".join(sorted(scheme.proposes)) or "-",
            )
            for scheme in SCHEMES.values()
        ],
    )


def traffic_table() -> str:
    """Payload rows over the ports of rank g in closed form, by class of traffic."""
    return _markdown(
        ("class", "schemes", "dispatch up", "dispatch down", "combine up", "combine down"),
        [
            (
                name,
                ", ".join(f"`{key}`" for key, scheme in SCHEMES.items() if scheme.traffic == name),
                traffic.up,
                traffic.down,
                TRAFFIC[way_back(name)].down,
                TRAFFIC[way_back(name)].up,
            )
            for name, traffic in TRAFFIC.items()
        ],
    )


TABLES = {"schemes": scheme_table, "traffic": traffic_table}


def with_tables(text: str) -> str:
    """A document with every marked table as it should be."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, found, rest = text.partition(begin)
        if found:
            text = f"{before}{begin}{table()}\n{end}{rest.partition(end)[2]}"
    return text
