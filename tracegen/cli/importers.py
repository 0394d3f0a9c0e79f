"""``moereplay trace import``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tracegen.cli.common import Force, refuse_existing, tell_assumed, user_errors
from tracegen.cli.outputs import file_option
from tracegen.shared.errors import UserError


def import_dump(
    files: Annotated[list[Path], typer.Argument(help="Files of the dump, or its folder.")],
    format: Annotated[
        str,
        typer.Option(
            "--format",
            help="Format of the dump: vllm, sglang, megatron, rollout, tensorrt-llm, counts, llama.cpp, "
            "gpt-oss, flame or arrays.",
        ),
    ],
    out: Annotated[Path, file_option("--out", help="Trace file to write.")],
    model: Annotated[str | None, typer.Option(help="Model shape: a name, a TOML file, or a config.json.")] = None,
    num_experts: Annotated[int | None, typer.Option(help="Experts per layer, zero experts included.")] = None,
    zero_experts: Annotated[
        int | None, typer.Option(help="Zero experts (they compute nothing), which have the last ids.")
    ] = None,
    topk: Annotated[int | None, typer.Option(help="Experts per token.")] = None,
    hidden_size: Annotated[
        int | None,
        typer.Option(min=1, max=2**31 - 1, help="Elements of a token's hidden state."),
    ] = None,
    moe_layers: Annotated[str | None, typer.Option(help="Decoder layers with experts, such as 1,2,3 or 3-60.")] = None,
    num_layers: Annotated[int | None, typer.Option(help="Decoder layers in all, dense ones too.")] = None,
    prompt_len: Annotated[int | None, typer.Option(help="Tokens of every prompt, if the dump does not say.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="File of the requests' prompts, lengths or token ids: .npy, .json or .jsonl."),
    ] = None,
    start_len: Annotated[
        int | None,
        typer.Option(min=0, help="Position of the first row of each request [0]."),
    ] = None,
    ranks: Annotated[int | None, typer.Option(help="Ranks of the run, those without tokens included.")] = None,
    tp: Annotated[
        int | None,
        typer.Option(
            help="Size of tensor parallelism: neighbouring ranks that saw the same tokens [found from the rows]."
        ),
    ] = None,
    pp: Annotated[
        int | None,
        typer.Option(help="Pipeline stages, which hold different layers of the model [found from the rows]."),
    ] = None,
    mask: Annotated[Path | None, typer.Option(help="File of the attention mask of a padded tensor.")] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Names of the arrays in the files, such as ids=top_indices,position=token."),
    ] = None,
    drop_repeats: Annotated[
        bool,
        typer.Option(
            "--drop-repeats",
            help="Leave out rows equal to the row before in every layer, and passes that were only recomputed.",
        ),
    ] = False,
    max_tokens: Annotated[int | None, typer.Option(help="Most rows to read or draw [2,000,000].")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of rows that are drawn from counts [0].")] = None,
    title: Annotated[str, typer.Option(help="Title of the trace.")] = "",
    license: Annotated[str, typer.Option(help="SPDX identifier of the dump's licence.")] = "",
    dataset: Annotated[str, typer.Option(help="Origin of the prompts.")] = "",
    source: Annotated[str, typer.Option(help="Origin of the dump: a URL and commit.")] = "",
    force: Force = False,
) -> None:
    """Make a trace of another tool's routing dump, and check it."""
    with user_errors():
        from tracegen.file.writer import write
        from tracegen.importers import read_as_typed

        refuse_existing(out, force)
        options: dict[str, Any] = {
            "model": model,
            "num_experts": num_experts,
            "zero_experts": zero_experts,
            "topk": topk,
            "hidden_size": hidden_size,
            "moe_layers": None if moe_layers is None else layer_numbers(moe_layers),
            "num_layers": num_layers,
            "prompt_len": prompt_len,
            "prompts": prompts,
            "start_len": start_len,
            "ranks": ranks,
            "tp": tp,
            "pp": pp,
            "mask": mask,
            "columns": None if columns is None else names_of(columns),
            "drop_repeats": drop_repeats,
            "max_tokens": max_tokens,
            "seed": seed,
            "title": title,
            "license": license,
            "dataset": dataset,
            "source": source,
        }
        tell_assumed(model)
        made = read_as_typed(files, format, options)
        digest = write(made.trace, out, overwrite=force)
        for notice in made.notices:
            typer.echo(f"note: {notice}", err=True)
        trace = made.trace
        typer.echo(
            f"{out}: {trace.num_layers} layers x {trace.num_tokens} tokens x top-{trace.topk} "
            f"of {trace.num_experts}, content {digest[:12]}"
        )


def layer_numbers(text: str) -> tuple[int, ...]:
    """Numbers and ranges as a user writes them.

    Parameters
    ----------
    text
        Such as ``1,2,5-7``.

    Raises
    ------
    UserError
        If it is anything else.

    Examples
    --------
    >>> layer_numbers("1,3-5")
    (1, 3, 4, 5)
    """
    from tracegen.importers.layers import MOST_LAYERS

    found: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            if not numbers or numbers[-1] >= MOST_LAYERS:
                raise ValueError(part)  # said below, with what is possible
            found += numbers
    except ValueError as error:
        msg = f"--moe-layers {text!r}: write numbers and ranges below {MOST_LAYERS}, such as 1,2,5-7"
        raise UserError(msg) from error
    return tuple(found)


def names_of(text: str) -> dict[str, str]:
    """Names of arrays as a user writes them.

    Parameters
    ----------
    text
        Such as ``ids=top_indices,position=token``.

    Raises
    ------
    UserError
        If it is anything else.

    Examples
    --------
    >>> names_of("ids=top_indices,position=token")
    {'ids': 'top_indices', 'position': 'token'}
    """
    pairs = [part.partition("=") for part in text.split(",")]
    names = {what.strip(): name.strip() for what, _, name in pairs}
    if len(names) < len(pairs) or not all(names) or not all(names.values()):
        msg = f"--columns {text!r}: write what an array is and its name, such as ids=top_indices"
        raise UserError(msg)
    return names
