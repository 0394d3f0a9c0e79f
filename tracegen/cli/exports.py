"""``moereplay trace export``: routing that an engine can be made to follow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracegen.cli.common import Force, TraceName, refuse_existing, user_errors
from tracegen.cli.outputs import file_option


def export_trace(
    trace: TraceName,
    to: Annotated[str, typer.Option("--to", help="Format: vllm, sglang, sglang-counts (.pt) or slime (.pt).")],
    out: Annotated[Path, file_option("--out", help="File to write: .npz, or .pt.")],
    force: Force = False,
) -> None:
    """Write a trace as routing that an engine can follow."""
    with user_errors():
        from tracegen.library import load
        from tracegen.serving.exports import export

        refuse_existing(out, force)
        loaded = load(trace)
        for sentence in export(loaded, to, out):
            typer.echo(f"note: {sentence}", err=True)
        requests = len(set(loaded.tokens.request.tolist()))
        typer.echo(f"{out}: {loaded.num_layers} layers x {loaded.num_tokens} tokens of {requests} requests, for {to}")
