"""``moereplay schemes``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from replay.cli.screen import show


def schemes(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the schemes, where each is from, and what is assumed."""
    from dataclasses import asdict

    from rich import box
    from rich.table import Table

    from replay.schemes import SCHEMES

    if as_json:
        rows = [
            {**scheme.describe(), "summary": scheme.summary, "needs": sorted(scheme.needs)}
            for scheme in SCHEMES.values()
        ]
        print(json.dumps(rows, indent=1, sort_keys=True))
        return
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("scheme", "what it does", "source", "assumes", "options"):
        table.add_column(column)
    for scheme in SCHEMES.values():
        options = "\n".join(f"{k}={v}" for k, v in asdict(scheme.options).items())
        needs = f"needs {', '.join(sorted(scheme.needs))}" if scheme.needs else ""
        assumed = "; ".join(part for part in (scheme.assumes, needs) if part)
        table.add_row(scheme.name, scheme.summary, scheme.source, assumed, options)
    show(table)
