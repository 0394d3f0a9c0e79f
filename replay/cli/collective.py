"""``moereplay collective``: collectives alone, as nccl-tests times them."""

from __future__ import annotations

from typing import Annotated

import typer

from replay.cli.results import ResultCall, asks
from replay.cli.screen import show


@asks("collective")
def collective(
    call: ResultCall,
    list_: Annotated[bool, typer.Option("--list", help="List the algorithms and stop.")] = False,
) -> None:
    """Time a collective by itself, as nccl-tests does.

    Printed is the bus bandwidth by size.
    """
    from replay.experiments.collective.tables import table
    from replay.model.collectives.library import ALGORITHMS

    if list_:
        for one in ALGORITHMS.values():
            runs = ", ".join(each.replace("_", "") for each in one.collectives)
            print(f"{one.name}: {one.summary} ({runs})")
        return
    show(table(call.carry_out(call.setup())))
