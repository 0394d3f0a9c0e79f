"""``moereplay trace graph``: the token-expert graph of a window, counted and written."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from tracegen.cli.common import AsJson, Force, TraceName, refuse_existing, user_errors
from tracegen.cli.outputs import file_option
from tracegen.shared.errors import UserError


def graph(
    trace: TraceName,
    layers: Annotated[str | None, typer.Option(help="Positions among the MoE layers, A:B [all].")] = None,
    steps: Annotated[str | None, typer.Option(help="Positions of steps, A:B [all].")] = None,
    tokens: Annotated[str | None, typer.Option(help="Token rows, A:B [all].")] = None,
    out: Annotated[Path | None, file_option("--out", help="GraphML file to write.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Count and write the token-expert graph of part of a trace."""
    with user_errors():
        from tracegen import library
        from tracegen.trace.graph import count_graph, expert_graph
        from tracegen.trace.graphml import check_size, write_graphml

        if out is not None:
            refuse_existing(out, force)
        window = {
            name: None if text is None else _range(name, text)
            for name, text in (("layers", layers), ("steps", steps), ("tokens", tokens))
        }
        loaded = library.load(trace)
        counts = count_graph(loaded, **window)
        if out is not None:
            check_size(counts.edges)
            write_graphml(loaded, expert_graph(loaded, **window), out)
        numbers = {**dataclasses.asdict(counts), "nodes": counts.nodes, "edges": counts.edges}
        if as_json:
            print(json.dumps(numbers, indent=2))
            return
        for name, number in numbers.items():
            print(f"{name.replace('_', ' '):<17}{number:>16,}")


def _range(name: str, text: str) -> tuple[int | None, int | None]:
    """``A:B`` as a range; either may be left out."""
    try:
        start, stop = (int(part) if part.strip() else None for part in text.split(":"))
    except ValueError as error:
        msg = f"--{name} {text}: write A:B, such as 0:2"
        raise UserError(msg) from error
    return start, stop
