"""``moereplay place``: maps of experts to slots, and their imbalance over time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replay.cli.results import ResultCall, asks
from replay.cli.screen import show
from tracegen.cli.outputs import file_option

if TYPE_CHECKING:
    from replay.experiments.place.result import PlacementResult
    from replay.experiments.place.setup import PlaceSetup


@asks("place")
def place(
    call: ResultCall,
    out: Annotated[Path | None, file_option("--out", help="Write the map of experts to slots to this file.")] = None,
    form: Annotated[
        str,
        typer.Option("--format", help="Format of --out: sglang, vllm, vllm-ascend or tensorrt."),
    ] = "sglang",
) -> None:
    """Place experts by loads, and measure imbalance in later steps.

    Loads are those of a trace, or of the files of --loads.

    The map of --out is read by --placement file:PATH, and by the engine of --format.
    """
    from replay.errors import unknown
    from replay.experiments.place.tables import fitted_on, imbalance_table, rows_table
    from replay.files import write_text
    from replay.model.work.expert_maps import FORMATS

    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    setup = call.setup()
    for note in setup.notes:
        print(f"note: {note}", file=sys.stderr)
    result = call.carry_out(setup)
    if out is not None:
        write_text(out, _map_text(form, result, setup))
    on = fitted_on(result)
    print(
        f"{result.num_experts} experts in {result.num_slots} slots on {result.num_ranks} GPUs: "
        f"{result.algorithm}" + (f", fitted on {on}" if on else "")
    )
    show(imbalance_table(result))
    if result.spec.nodes > 1 and setup.demand.has_tokens:
        show(rows_table(result))


def _map_text(form: str, result: PlacementResult, setup: PlaceSetup) -> str:
    import numpy as np

    from replay.model.work.expert_maps import to_text

    slots = np.array(result.slot_expert)
    return to_text(form, slots, result.num_ranks, setup.decoder_layers, setup.num_decoder_layers)
