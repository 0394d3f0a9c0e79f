"""``moereplay trace imitate``: fit, imitate, and say how near the imitation is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replay.cli.screen import progress, show
from replay.errors import UserError
from replay.files import write_text
from tracegen.cli.common import refuse_existing
from tracegen.cli.outputs import file_option

if TYPE_CHECKING:
    from tracegen import RoutingTrace
    from tracegen.imitate.resemblance import Row


def imitate(
    trace: Annotated[str, typer.Argument(help="A file, or a name of `moereplay trace list`.")],
    out: Annotated[Path, file_option("--out", help="Synthetic trace to write.")],
    parameters: Annotated[
        Path, file_option("--parameters", help="Parameter file (TOML) to write.")
    ],
    report: Annotated[
        Path | None, file_option("--report", help="Also write the report to this JSON file.")
    ] = None,
    system: Annotated[
        str, typer.Option("--system", help="Replay on this system; 'none' leaves it out.")
    ] = "dgx-h100",
    seed: Annotated[int, typer.Option(help="The same seed gives the same files.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
) -> None:
    """Fit a small parameter file to a real trace, and make a synthetic trace from it.

    The report sets the real trace beside the synthetic one, and beside tokens that choose
    independently by a Zipf law of the same skew.
    """
    import tracegen
    from tracegen.file.writer import write
    from tracegen.generate.latent_model import dumps
    from tracegen.imitate import fit as fitting
    from tracegen.imitate.resemblance import compare_statistics, independent_zipf
    from tracegen.stats.statistics import statistics

    for path in (out, parameters, report):
        if path is not None:
            refuse_existing(path, force)
    if seed < 0:
        message = f"--seed is {seed}; it must be at least 0"
        raise UserError(message)
    real = tracegen.load(trace)
    with progress(fitting.ITERATIONS, "iteration") as bar:
        model = fitting.fit(real, seed=seed, progress=bar.update)
    text = dumps(model)
    write_text(parameters, text)
    typer.echo(f"{parameters}: {model.num_numbers} numbers, {len(text) / 1e3:.0f} kB")
    imitated = fitting.synthesise(model, real, seed=seed)
    digest = write(imitated, out, overwrite=force)
    typer.echo(f"{out}: {imitated.num_tokens} tokens, content {digest[:12]}")
    independent = independent_zipf(real, seed)
    rows = compare_statistics(statistics(real), statistics(imitated), statistics(independent))
    if system != "none":
        rows += _times(real, imitated, independent, system)
    if report is not None:
        document = {
            "real": real.content_id,
            "imitated": digest,
            "seed": seed,
            "rows": [row.to_json() for row in rows],
        }
        write_text(report, json.dumps(document, indent=1))
    _show(rows)


def _times(
    real: RoutingTrace, imitated: RoutingTrace, independent: RoutingTrace, system: str
) -> list[Row]:
    """Rows of replayed times."""
    import hwmodel
    from replay.validate.imitation import SCHEMES, compare_times

    with progress(len(SCHEMES), "scheme") as bar:
        return compare_times(real, imitated, independent, hwmodel.load(system), progress=bar.update)


def _show(rows: list[Row]) -> None:
    """Print the report as a table."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("statistic", no_wrap=True)
    for heading in ("real", "+-", "imitated", "differs", "independent", "differs"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        apart = row.independent / row.real - 1 if row.real else 0.0
        table.add_row(
            row.label,
            f"{row.real:.3f}",
            f"{row.real_error:.3f}" if row.real_error else "",
            f"{row.imitated:.3f}",
            f"{row.difference:+.1%}",
            f"{row.independent:.3f}",
            f"{apart:+.1%}",
        )
    show(table)
