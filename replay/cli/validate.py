"""``moereplay validate``: predictions beside published measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replay.cli.options import entries_of
from replay.cli.screen import progress, show, tell
from tracegen.cli.delivery import Delivery, delivers
from tracegen.cli.outputs import file_option

if TYPE_CHECKING:
    from replay.studies.validate.table import Outcome


@delivers
def validate(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE ...]", help="Names of `moereplay validate --list` [all tables]."),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Predict only tables of this machine, such as hgx-b200. With --log: machine of the logs, or its file.",
        ),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(
            "--log",
            metavar="LOG",
            help="Output of a benchmark to predict, in place of the tables; repeatable.",
        ),
    ] = None,
    hold_out: Annotated[
        float,
        typer.Option(
            min=0,
            max=0.9,
            help="With --log: predict only the share of the lines that `hardware fit --hold-out` left out.",
        ),
    ] = 0.0,
    list_: Annotated[bool, typer.Option("--list", help="List the tables and stop.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="K=V", help="Change a hardware value; repeatable."),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at",
            metavar="COLUMN=V[,V...]",
            help="Predict a table's rows with other values of a column, such as ep_size=32,64; repeatable.",
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print only the errors, as Markdown tables.")] = False,
    json_: Annotated[Path | None, file_option("--json", help="Write every row to this file.")] = None,
    *,
    deliver: Delivery,
) -> None:
    """Predict published measurements, and print the errors.

    Exit code 1: an error exceeds its bound.
    """
    from replay.cli.machines import outcomes_of
    from replay.errors import UserError, unknown
    from replay.studies.validate import validate
    from replay.studies.validate.catalog import TABLES, of_system

    for name in tables or []:
        if name not in TABLES:
            raise unknown("table", name, TABLES)
    if log:
        if tables or list_ or at or set_:
            raise UserError("--log takes --system and --hold-out only: leave out tables, --at, --set and --list")
        if system is None:
            raise UserError("--log needs --system: the machine of the logs, a name or a file")
        outcomes = outcomes_of(log, system, hold_out)
        _deliver(outcomes, json_, deliver, markdown=markdown)
        return
    if hold_out:
        raise UserError("--hold-out is of lines of logs: give --log as well")
    if system is not None and system.endswith(".toml"):
        raise UserError(f"{system} has no published tables; give the logs of its benchmarks: --log LOG")
    names = of_system(tables or list(TABLES), system)
    if list_:
        for name in names:
            table, rows = TABLES[name], TABLES[name].rows()
            kinds = sorted({f"; {cell[1]}" for row in rows if (cell := table.cell(row))})
            print(f"{name}: {table.title} ({len(rows)} rows{''.join(kinds)})")
        return
    overrides = entries_of(set_ or [])
    if at:
        _print_at(names, at, overrides, markdown=markdown)
        return
    if len(names) == len(TABLES):  # some take seconds, and some a minute
        tell(f"{len(names)} tables: several minutes; less with names (--list) or --system")
    with progress(len(names), "table") as bar:
        outcomes = validate(names, overrides=overrides, progress=bar.update)
    _deliver(outcomes, json_, deliver, markdown=markdown)


def _deliver(outcomes: list[Outcome], json_: Path | None, deliver: Delivery, *, markdown: bool) -> None:
    """Write and print the errors, and exit with 1 if a bound is missed."""
    from replay.files import write_text
    from replay.studies.validate import report
    from replay.studies.validate.page import page

    if json_ is not None:
        write_text(json_, json.dumps(report.as_json(outcomes), indent=1))
    deliver(lambda: page(outcomes))
    if markdown:
        print(report.markdown_tables(outcomes), end="")
    else:
        found = report.error_tables(outcomes)
        show(*found, "", *(line for table in found for line in table.explanations()))
    if not report.all_hold(outcomes):
        raise typer.Exit(1)


def _print_at(names: list[str], at: list[str], overrides: dict[str, str], *, markdown: bool) -> None:
    """Print predictions of settings that are asked for."""
    from replay.errors import UserError
    from replay.studies.sweeps.table import markdown as as_markdown
    from replay.studies.validate import predictions
    from replay.studies.validate.bench import Bench
    from replay.studies.validate.catalog import TABLES

    changes = {}
    for one in at:
        column, equals, values = one.partition("=")
        if not equals or not values:
            raise UserError(f"--at {one}: expected COLUMN=VALUE[,VALUE...], such as ep_size=32,64")
        changes[column] = values.split(",")
    for name in names:
        lines = predictions.lines(TABLES[name], changes, Bench(overrides))
        if markdown:
            print("\n".join(as_markdown(lines[0], lines[1:], labels=len(lines[0]) - 1)))
        else:
            show(predictions.terminal_table(TABLES[name], lines))
