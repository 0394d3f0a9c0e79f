"""``moereplay hardware``: the machines there are, and every number of one with its source."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, NoReturn

import typer

from hwmodel.errors import UserError
from tracegen.shared import screen

app = typer.Typer(no_args_is_help=True, help="Machines that a replay can run on.")


def _fail(error: UserError) -> NoReturn:
    print(screen.error_line(str(error)), file=sys.stderr)
    raise typer.Exit(2)


def _overrides(pairs: list[str]) -> dict[str, str]:
    """Split ``K=V`` texts.

    Raises
    ------
    UserError
        If one has no equals sign.
    """
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            message = f"--set {pair}: write KEY=VALUE, such as link.links_per_gpu=8"
            raise UserError(message)
        found[key.strip()] = value.strip()
    return found


def _plain(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


@app.command("list")
def list_systems(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the machines that come with the package."""
    import hwmodel

    systems = [hwmodel.load(name) for name in hwmodel.names()]
    rows: list[dict[str, Any]] = [
        {
            "name": system.name,
            "num_gpus": system.num_gpus,
            "links_per_gpu": system.link.links_per_gpu,
            "num_planes": system.fabric.num_planes,
            "sm_write_GB_per_s": round(system.link.payload_bytes_per_s() / 1e9, 1),
            "hbm_GB_per_s": round(system.hbm.rate.units_per_second / 1e9),
            "capabilities": sorted(c.value for c in system.capabilities),
            "summary": system.summary,
        }
        for system in systems
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    from rich.text import Text

    from tracegen.shared.display.content import Column, Table

    columns = [
        Column("name"),
        Column("GPUs", form="d"),
        Column("links", form="d", rank=1),
        Column("planes", form="d", rank=2),
        Column("store", "GB/s", ",.1f", says="payload of stores by SMs, in one direction"),
        Column("memory", "GB/s", ",.0f"),
    ]
    cells = [[row[field] for field in list(row)[: len(columns)]] for row in rows]
    table = Table("machines", "Machines; links and rates are per GPU", columns, cells)
    screen.show(table, "", *table.explanations(), "", sep="\n")
    for row in rows:
        screen.show(Text.assemble((row["name"], "bold"), f": {row['summary']}"))
        screen.show(f"  capabilities: {', '.join(row['capabilities'])}", style="dim")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A name of `moereplay hardware list`, or a TOML file.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="K=V", help="Change a value; repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show every value of a machine with unit, source, confidence."""
    import hwmodel
    from hwmodel.draws import spreads

    try:
        system = hwmodel.load(name, _overrides(settings or []))
    except UserError as error:
        _fail(error)
    fields = ("key", "value", "unit", "source", "confidence")
    stated = spreads(system.spec)
    rows = [{**dict(zip(fields, row, strict=True)), "spread": stated[row[0]]} for row in system.spec.rows()]
    if as_json:
        document = {"name": system.name, "summary": system.summary, "values": rows}
        print(json.dumps(document, indent=2))
        return
    from rich.padding import Padding
    from rich.text import Text

    screen.show(Text.assemble((system.name, "bold"), f"  {system.summary}"))
    section = ""
    for row in rows:
        if row["key"].partition(".")[0] != section:
            section = row["key"].partition(".")[0]
            screen.show()
        value = f"{_plain(row['value'])} {row['unit']}".strip()
        trust = f" ({row['confidence']}; {row['spread']})"
        screen.show(Text.assemble((row["key"], "bold"), f" = {value}", (trust, "dim")))
        screen.show(Padding(row["source"], (0, 0, 0, 4)), style="dim")


@app.command()
def diff(
    first: Annotated[str, typer.Argument(help="A name of `moereplay hardware list`, or a TOML file.")],
    second: Annotated[str, typer.Argument(help="Another name of `moereplay hardware list`, or a TOML file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the values in which two machines differ."""
    import hwmodel

    try:
        one, other = ({row[0]: row for row in hwmodel.load(name).spec.rows()} for name in (first, second))
    except UserError as error:
        _fail(error)
    rows: list[dict[str, Any]] = []
    for key in sorted(one.keys() | other.keys()):
        # A table that one of them does not have has no values there.
        left, right = (table.get(key, (key, None, "", "", None)) for table in (one, other))
        if left[1] != right[1]:
            rows.append(
                {
                    "key": key,
                    "unit": left[2] or right[2],
                    "first": left[1],
                    "second": right[1],
                    "first_confidence": left[4],
                    "second_confidence": right[4],
                }
            )
    if as_json:
        document = {"first": first, "second": second, "values": rows}
        print(json.dumps(document, indent=2))
        return
    from tracegen.shared.display.content import Column, Table

    if not rows:
        screen.show(f"{first} and {second} do not differ")
        return
    columns = [Column("value"), Column("unit", rank=1), Column(first), Column(second)]
    cells = [(row["key"], row["unit"], *(_plain(row[side]) for side in ("first", "second"))) for row in rows]
    screen.show(Table("differences", "Values that differ", columns, cells))
