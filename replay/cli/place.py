"""``moereplay place``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.cli.options import JsonOption
from replay.cli.screen import show
from replay.experiments.layer.spec import RunSpec
from tracegen.cli.common import tell_assumed
from tracegen.cli.delivery import Delivery, delivers
from tracegen.cli.outputs import file_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replay.cli.placing_loads import Numbered
    from replay.experiments.place.placing import Imbalance, Placing
    from tracegen.shared.display.content import Cell, Table


@delivers
def place(
    trace: Annotated[
        str | None, typer.Argument(help=str(RunSpec.model_fields["trace"].description))
    ] = None,
    loads: Annotated[
        list[Path] | None,
        typer.Option(
            "--loads",
            help="File of loads instead of a trace: counts of layers and experts (.json, .csv, "
            ".npy, .pt, .parquet, TensorRT-LLM's folder); once for each rank's file.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help=f"{RunSpec.model_fields['model'].description} It numbers the layers of --loads.",
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option("--slots", min=1, help="Room for experts on all GPUs [as many as experts]."),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--algorithm",
            help="eplb (DeepSeek's), greedy, affinity (experts that tokens choose together on one "
            "of --nodes), or file, which takes --from [eplb].",
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Map of slots to look at, in any format that is read."),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", min=1, help="GPUs in the group [the trace's own, or 8]."),
    ] = None,
    nodes: Annotated[
        int,
        typer.Option(
            "--nodes", min=1, help="Servers, for affinity and eplb's hierarchical policy."
        ),
    ] = 1,
    groups: Annotated[
        int | None,
        typer.Option("--groups", help="Groups of experts of that policy [the model's]."),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option("--fit", help="FIRST:BEHIND, steps whose loads are fitted [all tokens]."),
    ] = None,
    windows: Annotated[
        int | None,
        typer.Option(
            "--windows",
            min=1,
            help="Windows of steps that it is looked at, the first fitted [up to 4].",
        ),
    ] = None,
    tokens_per_rank: Annotated[
        int | None,
        typer.Option(
            "--tokens-per-rank",
            help=str(RunSpec.model_fields["tokens_per_rank"].description),
        ),
    ] = None,
    phase: Annotated[
        str | None,
        typer.Option("--phase", help=str(RunSpec.model_fields["phase"].description)),
    ] = None,
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas",
            help=f"{RunSpec.model_fields['replicas'].description} [same-gpu; even with --loads].",
        ),
    ] = None,
    out: Annotated[Path | None, file_option("--out", help="Write the map to this file.")] = None,
    form: Annotated[
        str,
        typer.Option("--format", help="Of that file: sglang, vllm, vllm-ascend or tensorrt."),
    ] = "sglang",
    json_: JsonOption = None,
    *,
    deliver: Delivery,
) -> None:
    """Place experts by the loads of a trace, or by loads alone, and say how long that lasts.

    The map is a file for --placement file:PATH, and for the engine whose format it has.
    """
    from replay.cli.placing_loads import placed_by_loads, refuse_with_loads
    from replay.errors import UserError, unknown
    from replay.files import write_text
    from replay.model.work.expert_maps import FORMATS, to_text
    from replay.report.pages.place import page

    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    if (source is None) == (algorithm == "file"):
        message = "--algorithm file and --from PATH go together"
        raise UserError(message)
    if (trace is None) == (not loads):
        message = "name a trace, or give --loads FILE: counts of layers and experts without tokens"
        raise UserError(message)
    of_tokens = {"--tokens-per-rank": tokens_per_rank, "--phase": phase, "--replicas": replicas}
    common: dict[str, Any] = {
        "num_ranks": ranks,
        "num_slots": slots,
        "algorithm": algorithm or ("eplb" if source is None else "file"),
        "num_groups": groups,
        "num_nodes": nodes,
        "fitted_on": _steps(steps),
        "num_windows": windows,
    }
    tell_assumed(model)
    if trace is None:
        refuse_with_loads(of_tokens)
        placing, numbered = placed_by_loads(loads or [], model, source, common)
    else:
        placing, numbered = _placed(trace, model, source, of_tokens, common)
    if out is not None:
        import numpy as np

        held = np.array(placing.slot_expert)
        text = to_text(form, held, placing.num_ranks, numbered.decoder_layers, numbered.total)
        write_text(out, text)
    if json_ is not None:
        write_text(json_, placing.model_dump_json(indent=1) + "\n")
    asked = {
        "--loads": loads or None, "--model": model,
        "--slots": slots, "--algorithm": algorithm, "--from": source, "--ranks": ranks,
        "--nodes": None if nodes == 1 else nodes, "--groups": groups, "--fit": steps,
        "--windows": windows, **of_tokens,
    }  # fmt: skip
    deliver(lambda: page(placing, _command(trace, asked)))
    print(
        f"{placing.num_experts} experts in {placing.num_slots} slots on {placing.num_ranks} GPUs: "
        f"{placing.algorithm}" + _fitted_on(placing)
    )
    show(_table(placing))
    if nodes > 1 and trace is not None:
        show(_table_of_rows(placing, nodes))


def _placed(
    trace: str,
    model: str | None,
    source: Path | None,
    of_tokens: Mapping[str, Any],
    common: dict[str, Any],
) -> tuple[Placing, Numbered]:
    """Placement fitted to a trace, and the numbers of its layers."""
    import tracegen
    from replay.cli.placing_loads import Numbered
    from replay.experiments.place.placing import fit

    settings: dict[str, Any] = {
        name[2:].replace("-", "_"): value for name, value in of_tokens.items()
    }
    settings["replicas"] = settings["replicas"] or "same-gpu"
    spec = RunSpec(placement="contiguous" if source is None else f"file:{source}", **settings)
    loaded = tracegen.load(trace)
    if model is not None:
        loaded = loaded.with_shape(tracegen.models.load(model))
    shape = loaded.model_shape
    common["num_ranks"] = common["num_ranks"] or loaded.num_ranks or 8
    common["num_slots"] = common["num_slots"] or loaded.model.num_ffn_experts
    if common["num_groups"] is None:
        common["num_groups"] = shape.n_group
    placing = fit(loaded, spec, **common)
    return placing, Numbered(loaded.moe_layer_index.tolist(), shape.num_layers)


def _command(trace: str | None, asked: Mapping[str, object]) -> str:
    """The command line that was given, as far as it decides the placement."""
    from replay.report.command import command_words

    options = [word for name, value in asked.items() if value is not None
               for one in (value if isinstance(value, list) else [value])
               for word in (name, str(one))]  # fmt: skip
    named = [] if trace is None else [trace]
    return command_words(["moereplay", "place", *named, *options])


def _steps(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, colon, behind = text.partition(":")
    if not (colon and first.isdecimal() and behind.isdecimal()):
        from replay.errors import UserError

        message = f"--fit {text}: expected FIRST:BEHIND, such as 0:4 for steps 0 to 3"
        raise UserError(message)
    return int(first), int(behind)


def _fitted_on(placing: Placing) -> str:
    if placing.algorithm == "file":
        return ""
    if placing.fitted_on is None:
        return ", fitted on all tokens"
    first, behind = placing.fitted_on
    return f", fitted on steps {first} to {behind - 1}"


def _table(placing: Placing) -> Table:
    from tracegen.shared.display.content import Column, Table

    words = ("contiguous", placing.algorithm, "fitted on these")
    columns = [Column("steps")]
    for rank, word in enumerate(words):
        columns.append(Column(word, form=".2f", rank=rank // 2))
        columns.append(Column(f"{word}, worst", form=".2f", rank=1 + rank // 2))
    columns.append(Column("stale by", form="+.1%"))
    title = "Rows of the busiest GPU over the mean: mean of the layers, and the worst layer"
    return Table("imbalance", title, columns, [_cells(window) for window in placing.windows])


def _table_of_rows(placing: Placing, nodes: int) -> Table:
    from tracegen.shared.display.content import Column, Table

    found: list[tuple[Cell, ...]] = []
    for window in placing.windows:
        means = [sum(rows) / len(rows) for rows in (window.rows_before, window.rows_fitted)]
        found.append((_steps_of(window), *means))
    return Table(
        "rows",
        f"Rows per token to others of {nodes} nodes, one per (token, node): mean of the layers",
        [
            Column("steps"),
            *(Column(word, form=".3f") for word in ("contiguous", placing.algorithm)),
        ],
        found,
    )


def _steps_of(window: Imbalance) -> str:
    first, behind = window.steps
    return f"{first}" if behind == first + 1 else f"{first} to {behind - 1}"


def _cells(window: Imbalance) -> tuple[Cell, ...]:
    means = [sum(of) / len(of) for of in (window.before, window.fitted, window.fresh)]
    worst = [max(of) for of in (window.before, window.fitted, window.fresh)]
    both = (value for pair in zip(means, worst, strict=True) for value in pair)
    return (_steps_of(window), *both, means[1] / means[2] - 1)
