"""``moereplay trace generate | info | validate``: make, describe and check routing traces."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from tracegen.cli.common import AsJson, Force, TraceName, refuse_existing, tell_assumed, user_errors
from tracegen.cli.outputs import file_option
from tracegen.shared import screen
from tracegen.shared.errors import UserError

PROGRESS_FROM_IDS = 20_000_000
"""Ids to draw from which a progress bar is worth its line (about a second)."""


def _options(pairs: list[str]) -> dict[str, Any]:
    """``K=V`` texts as generator parameters; numbers become numbers."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            msg = f"--option {pair}: write KEY=VALUE, such as share_std_e8=0.032"
            raise UserError(msg)
        try:
            found[key.strip()] = float(text)
        except ValueError:
            found[key.strip()] = text.strip()
    return found


def _tokens(text: str) -> int | list[int]:
    """A number, or one for each GPU."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        msg = f"--tokens-per-rank {text}: write a number, or one for each GPU, such as 512,128,0,64"
        raise UserError(msg) from None
    return found if len(found) > 1 else found[0]


def _groups(text: str | None) -> tuple[int, int] | None:
    """``N:M`` as numbers."""
    if text is None:
        return None
    number, colon, most = text.partition(":")
    if not (colon and number.isdecimal() and most.isdecimal()):
        msg = f"--groups {text}: write N:M, such as 8:4 for 4 of 8 groups"
        raise UserError(msg)
    return int(number), int(most)


@contextlib.contextmanager
def _progress(layers: int, num_ids: int) -> Iterator[Callable[[int], None]]:
    """Progress over layers, on a terminal and only when there is something to wait for."""
    from tqdm import tqdm

    file = screen.terminal(sys.stderr)
    hidden = num_ids < PROGRESS_FROM_IDS or not file.isatty()
    with tqdm(total=layers, unit="layer", disable=hidden, leave=False, file=file) as bar:
        yield lambda _finished: (bar.update(), None)[1]


def generate(
    kind: Annotated[
        str,
        typer.Argument(
            help="Kind of routing: uniform, zipf, normal, remote, histogram, latent, balancedness (of GPUs) or "
            "token-imbalance (workloads W0 to W7 of Megatron-LM's pull request 7488)."
        ),
    ],
    model: Annotated[str, typer.Option(help="Model shape: a name, a TOML file, or a config.json.")],
    out: Annotated[Path, file_option("--out", help="Trace file to write.")],
    ranks: Annotated[int, typer.Option(help="GPUs that the tokens are on.")] = 8,
    tokens_per_rank: Annotated[
        str,
        typer.Option(
            metavar="T[,T...]",
            help="Tokens per GPU and step: one number, or one for each GPU, such as 512,128,0,64.",
        ),
    ] = "4096",
    layers: Annotated[int | None, typer.Option(help="MoE layers [all of the model].")] = None,
    skew: Annotated[
        float | None,
        typer.Option(
            help="Skew of the experts' loads: the exponent of zipf, or the coefficient of variation of normal."
        ),
    ] = None,
    topk: Annotated[int | None, typer.Option(help="Experts per token [the model's].")] = None,
    seed: Annotated[int, typer.Option(help="Seed; the same one gives the same trace.")] = 0,
    steps: Annotated[int, typer.Option(help="Forward passes.")] = 1,
    phase: Annotated[str, typer.Option(help="Phase of the steps: prefill, decode, training or encoder.")] = "prefill",
    group_limited: Annotated[
        bool,
        typer.Option(
            "--group-limited", help="Choose each token's experts within as many groups as the model's gate allows."
        ),
    ] = False,
    groups: Annotated[
        str | None,
        typer.Option(metavar="N:M", help="Choose each token's experts within M of N equal groups."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V",
            help="Another parameter of the kind, such as load=FILE: a trace, or counts of layers "
            "and experts (.json, .csv, .npy, .pt, .parquet, TensorRT-LLM's folder).",
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Make a synthetic trace with a source GPU for every token."""
    with user_errors():
        from tracegen import generate as generators
        from tracegen import models
        from tracegen.file.writer import write

        refuse_existing(out, force)
        params = _options(option or [])
        if skew is not None:
            known = getattr(generators.GENERATORS.get(kind), "model_fields", {"skew": None})
            if "skew" not in known:
                others = f"; its parameters, by --option: {', '.join(known)}" if known else ""
                msg = f"{kind} has no --skew{others}"
                raise UserError(msg)
            params["skew"] = skew
        shape = models.load(model)
        tell_assumed(model)
        num_layers = layers or shape.num_moe_layers
        of_rank = _tokens(tokens_per_rank)
        total = sum(of_rank) if isinstance(of_rank, list) else ranks * of_rank
        num_ids = num_layers * steps * total * shape.num_experts
        with _progress(num_layers, num_ids) as on_layer:
            trace = generators.generate(
                kind,
                shape,
                ranks=ranks,
                tokens_per_rank=of_rank,
                layers=layers,
                seed=seed,
                steps=steps,
                phase=phase,
                topk=topk,
                group_limited=group_limited,
                groups=_groups(groups),
                on_layer=on_layer,
                **params,
            )
        digest = write(trace, out, overwrite=force)
        if notes := trace.info.provenance.get("notes"):
            typer.echo(f"note: {notes}", err=True)
        print(
            f"{out}: {trace.num_layers} layers x {trace.num_tokens} tokens x top-{trace.topk} "
            f"of {trace.num_experts}, content {digest[:12]}"
        )


def info(
    trace: TraceName,
    as_json: AsJson = False,
) -> None:
    """Describe a trace by its header and summary alone."""
    with user_errors():
        described = _describe(trace)
        if as_json:
            print(json.dumps(described, indent=2))
            return
        from rich.table import Table

        from tracegen.shared.display.escape import line

        table = Table(show_header=False, box=None)
        table.add_column(no_wrap=True, style="bold")
        table.add_column(overflow="fold")
        for key, value in described.items():
            if isinstance(value, list):
                value = " ".join(map(str, value))
            parts = [f"{k}: {v}" for k, v in value.items()] if isinstance(value, dict) else [value]
            table.add_row(key.replace("_", " "), "\n".join(line(str(part)) for part in parts))
        screen.show(table)


def _describe(name: str) -> dict[str, Any]:
    """Everything :func:`info` shows, JSON-ready."""
    import numpy as np

    from tracegen.library import open_trace

    with open_trace(name) as file:
        load = file.load_per_expert.astype(np.float64)
        mean = np.maximum(load.mean(axis=1), 1e-300)
        model = file.model
        return {
            "file": file.name,
            "file_bytes": file.file_bytes,
            "title": file.info.title,
            "kind": file.info.kind,
            "license": file.info.license,
            "content_id": file.content_id,
            "trace_id": file.info.trace_id,
            "created_utc": file.info.created_utc,
            "model": model.shape.name if model.shape else model.model_id,
            "hidden_size": model.hidden_size,
            "num_experts": file.num_experts,
            "num_zero_experts": model.num_zero_experts,
            "topk": file.topk,
            "num_layers": file.num_layers,
            "moe_layer_index": file.moe_layer_index.tolist(),
            "num_tokens": file.num_tokens,
            "num_steps": file.num_steps,
            "has_gate_weights": file.has_gate_weights,
            "has_rank": file.has_rank,
            "num_ranks": file.num_ranks,
            "slot_order": file.info.slot_order,
            "load_max_over_mean": [round(v, 3) for v in (load.max(axis=1) / mean).tolist()],
            "load_min_over_mean": [round(v, 3) for v in (load.min(axis=1) / mean).tolist()],
            "provenance": file.info.provenance,
        }


def validate(
    traces: Annotated[list[str], typer.Argument(help="Names of `moereplay trace list`, or files.")],
) -> None:
    """Check every value of traces, and their content by its hash."""
    with user_errors():
        from tracegen.library import verify

        for name in traces:
            print(f"{name}: valid, content {verify(name)}")
