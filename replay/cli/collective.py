"""``moereplay collective``: collectives alone, as nccl-tests times them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from replay.cli.options import JsonOption, settings_of, takes_settings
from replay.cli.screen import progress, show
from replay.experiments.collective.spec import CollectiveSpec
from tracegen.cli.delivery import Delivery, delivers


@takes_settings(spec=CollectiveSpec)
@delivers
def collective(
    given: Mapping[str, Any],
    list_: Annotated[bool, typer.Option("--list", help="List the algorithms and stop.")] = False,
    json_: JsonOption = None,
    *,
    deliver: Delivery,
) -> None:
    """Time a collective by itself: bus bandwidth by size, as nccl-tests prints it."""
    from replay.experiments.collective.experiment import EXPERIMENT
    from replay.experiments.collective.tables import table
    from replay.model.collectives.library import ALGORITHMS
    from replay.report.pages import page

    if list_:
        for one in ALGORITHMS.values():
            runs = ", ".join(each.replace("_", "") for each in one.collectives)
            print(f"{one.name}: {one.summary} ({runs})")
        return
    setup = EXPERIMENT.setup(CollectiveSpec(**settings_of(given)), {})
    with progress(EXPERIMENT.steps(setup), "row") as bar:
        result = EXPERIMENT.replay(setup, progress=bar.update)
    if json_ is not None:
        result.save(json_)
    deliver(lambda: page(result))
    show(table(result))
