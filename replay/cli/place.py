"""``moereplay place``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replay.cli.options import JsonOption
from replay.cli.screen import show
from replay.run.spec import RunSpec
from tracegen.cli.common import tell_assumed
from tracegen.cli.delivery import Delivery, delivers
from tracegen.cli.outputs import file_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replay.run.placing import Imbalance, Placing
    from tracegen.display.content import Cell, Table


@delivers
def place(
    trace: Annotated[str, typer.Argument(help=str(RunSpec.model_fields["trace"].description))],
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
    model: Annotated[
        str | None,
        typer.Option("--model", help=str(RunSpec.model_fields["model"].description)),
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
        str, typer.Option("--replicas", help=str(RunSpec.model_fields["replicas"].description))
    ] = "same-gpu",
    out: Annotated[Path | None, file_option("--out", help="Write the map to this file.")] = None,
    form: Annotated[
        str,
        typer.Option("--format", help="Of that file: sglang, vllm, vllm-ascend or tensorrt."),
    ] = "sglang",
    json_: JsonOption = None,
    *,
    deliver: Delivery,
) -> None:
    """Place experts by the loads of a trace, and say how long that lasts.

    The map is a file for --placement file:PATH, and for the engine whose format it has.
    """
    import tracegen
    from replay.errors import UserError, unknown
    from replay.files import write_text
    from replay.report.pages.place import page
    from replay.run.placing import fit
    from replay.work.expert_maps import FORMATS, to_text

    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    if (source is None) == (algorithm == "file"):
        message = "--algorithm file and --from PATH go together"
        raise UserError(message)
    settings = {"tokens_per_rank": tokens_per_rank, "phase": phase, "replicas": replicas}
    spec = RunSpec(placement="contiguous" if source is None else f"file:{source}", **settings)
    loaded = tracegen.load(trace)
    tell_assumed(model)
    if model is not None:
        loaded = loaded.with_shape(tracegen.models.load(model))
    shape = loaded.model_shape
    placing = fit(
        loaded,
        spec,
        num_ranks=ranks or loaded.num_ranks or 8,
        num_slots=slots or loaded.model.num_ffn_experts,
        algorithm=algorithm or ("eplb" if source is None else "file"),
        num_groups=shape.n_group if groups is None else groups,
        num_nodes=nodes,
        fitted_on=_steps(steps),
        num_windows=windows,
    )
    if out is not None:
        import numpy as np

        held, decoder = np.array(placing.slot_expert), loaded.moe_layer_index.tolist()
        write_text(out, to_text(form, held, placing.num_ranks, decoder, shape.num_layers))
    if json_ is not None:
        write_text(json_, placing.model_dump_json(indent=1) + "\n")
    asked = {
        "--slots": slots, "--algorithm": algorithm, "--from": source, "--ranks": ranks,
        "--nodes": None if nodes == 1 else nodes, "--groups": groups, "--fit": steps,
        "--windows": windows, "--model": model, "--tokens-per-rank": tokens_per_rank,
        "--phase": phase, "--replicas": None if replicas == "same-gpu" else replicas,
    }  # fmt: skip
    deliver(lambda: page(placing, _command(trace, asked)))
    print(
        f"{placing.num_experts} experts in {placing.num_slots} slots on {placing.num_ranks} GPUs: "
        f"{placing.algorithm}" + _fitted_on(placing)
    )
    show(_table(placing))
    if nodes > 1:
        show(_table_of_rows(placing, nodes))


def _command(trace: str, asked: Mapping[str, object]) -> str:
    """The command line that was given, as far as it decides the placement."""
    from replay.report.command import command_words

    options = [word for name, value in asked.items() if value is not None
               for word in (name, str(value))]  # fmt: skip
    return command_words(["moereplay", "place", trace, *options])


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
        return ", fitted on all tokens of the trace"
    first, behind = placing.fitted_on
    return f", fitted on steps {first} to {behind - 1}"


def _table(placing: Placing) -> Table:
    from tracegen.display.content import Column, Table

    words = ("contiguous", placing.algorithm, "fitted on these")
    columns = [Column("steps")]
    for rank, word in enumerate(words):
        columns.append(Column(word, form=".2f", rank=rank // 2))
        columns.append(Column(f"{word}, worst", form=".2f", rank=1 + rank // 2))
    columns.append(Column("stale by", form="+.1%"))
    title = "Rows of the busiest GPU over the mean: mean of the layers, and the worst layer"
    return Table("imbalance", title, columns, [_cells(window) for window in placing.windows])


def _table_of_rows(placing: Placing, nodes: int) -> Table:
    from tracegen.display.content import Column, Table

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
