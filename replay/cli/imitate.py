"""``moereplay trace imitate``: a synthetic trace fitted to a real one, and its errors."""

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
    from hwmodel import System
    from tracegen import RoutingTrace
    from tracegen.imitate.floors import Measure
    from tracegen.imitate.resemblance import StatisticRow

UNFIT = 5
"""Exit code where a statistic or a time of the imitation is outside what is allowed."""


def imitate(
    trace: Annotated[str, typer.Argument(help="A file, or a name of `moereplay trace list`.")],
    out: Annotated[Path, file_option("--out", help="Synthetic trace to write.")],
    parameters: Annotated[Path, file_option("--parameters", help="Parameter file (TOML) to write.")],
    report: Annotated[Path | None, file_option("--report", help="Also write the report to this JSON file.")] = None,
    system: Annotated[
        str, typer.Option("--system", help="Machine on which the traces are replayed; 'none' leaves the replay out.")
    ] = "dgx-h100",
    seed: Annotated[int, typer.Option(help="Seed; the same one gives the same files.")] = 0,
    splits: Annotated[
        int,
        typer.Option(help="Random halvings of the real trace that give the floors; 0 leaves them out."),
    ] = 20,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
) -> None:
    """Fit parameters to a real trace, and make a synthetic one.

    The report sets the real trace beside the synthetic one, and beside tokens that choose
    independently by a Zipf law of the same skew. The floor of a statistic is the mean difference
    between halves of the real trace, split at random by request. A statistic that differs by more
    than its floor and more than 5 % is marked, and the exit code is then 5: files are written,
    but the imitation does not stand for the real trace.
    """
    import hwmodel
    import tracegen
    from tracegen.file.writer import write
    from tracegen.generate.kind_file import dumps
    from tracegen.imitate import fit as fitting
    from tracegen.imitate.resemblance import TOLERANCE, independent_zipf
    from tracegen.imitate.synthesis import synthesise

    for path in (out, parameters, report):
        if path is not None:
            refuse_existing(path, force)
    for name, value in (("--seed", seed), ("--splits", splits)):
        if value < 0:
            message = f"{name} is {value}; it must be at least 0"
            raise UserError(message)
    machine = None if system == "none" else hwmodel.load(system)
    real = tracegen.load(trace)
    with progress(fitting.ROUNDS, "simulation") as bar:
        model = fitting.fit(real, seed=seed, progress=bar.update)
    text = dumps(model)
    write_text(parameters, text)
    typer.echo(f"{parameters}: {model.num_numbers} numbers, {len(text) / 1e3:.0f} kB")
    imitated = synthesise(model, real, seed=seed)
    digest = write(imitated, out, overwrite=force)
    typer.echo(f"{out}: {imitated.num_tokens} tokens, content {digest[:12]}")
    rows = _rows(real, imitated, independent_zipf(real, seed), machine, splits)
    outside = [row for row in rows if row.outside]
    if report is not None:
        document = {
            "real": real.content_id,
            "imitated": digest,
            "seed": seed,
            "splits": splits,
            "fit": not outside,
            "rows": [row.to_json() for row in rows],
        }
        write_text(report, json.dumps(document, indent=1))
    _show(rows)
    if outside:
        typer.echo(
            f"unfit: {len(outside)} of {len(rows)} rows differ by more than their floor and "
            f"{TOLERANCE:.0%}, marked ! above; exit code {UNFIT}",
            err=True,
        )
        raise typer.Exit(UNFIT)
    typer.echo(f"fit: all {len(rows)} rows differ by no more than their floor, or {TOLERANCE:.0%}")


def _rows(
    real: RoutingTrace,
    imitated: RoutingTrace,
    independent: RoutingTrace,
    machine: System | None,
    splits: int,
) -> list[StatisticRow]:
    """Statistics, and times on a machine if one is given, of three traces."""
    from replay.studies.validate.imitation import compare_times, mean_times_us
    from tracegen.imitate.floors import floors
    from tracegen.imitate.resemblance import compare_statistics
    from tracegen.stats.statistics import statistics

    traces = real, imitated, independent
    with progress(splits if machine is None else 2 * splits, "halving") as bar:

        def floor_of(measure: Measure) -> dict[str, float]:
            return floors(real, measure, splits=splits, progress=bar.update)

        floor = floor_of(lambda half: statistics(half).summary())
        one, two, three = (statistics(trace) for trace in traces)
        rows = compare_statistics(one, two, three, floor)
        if machine is None:
            return rows
        try:
            first, second, third = (mean_times_us(trace, machine) for trace in traces)
        except UserError as error:
            typer.echo(f"layer times are left out: {error}", err=True)
            return rows
        floor = floor_of(lambda half: mean_times_us(half, machine))
    return rows + compare_times(first, second, third, floor)


def _show(rows: list[StatisticRow]) -> None:
    """Print the report as a table."""
    from tracegen.shared.display.content import Column, Table

    columns = [
        Column("statistic"),
        Column("real", form=".3f"),
        Column("floor", form=".1%", rank=1, says="by which halves of the real trace differ"),
        Column("imitated", form=".3f"),
        Column("differs", form="+.1%"),
        Column(""),
        Column("independent", form=".3f", rank=2, says="tokens choose by a Zipf law of the same skew"),
        Column("it differs", form="+.1%", rank=2),
    ]
    found = [
        (
            row.label,
            row.real,
            row.floor,
            row.imitated,
            row.difference,
            "!" if row.outside else "",
            row.independent,
            row.independent / row.real - 1 if row.real else None,
        )
        for row in rows
    ]
    show(Table("resemblance", "Real and imitated", columns, found))
