"""``moereplay train``: training steps under several schemes."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.cli.experiments import ComparisonCall, compares
from replay.cli.exports import parse_exports
from replay.errors import UserError
from tracegen.cli.outputs import file_option

if TYPE_CHECKING:
    from replay.engine import Timeline


@compares("train")
def train(
    call: ComparisonCall,
    trace_events: Annotated[
        Path | None,
        file_option(
            "--trace-events",
            help="Write the step of the one scheme for Perfetto to this file (.gz too).",
        ),
    ] = None,
    of_trace: Annotated[str | None, typer.Option("--trace", hidden=True, help="TRACE, as it was once given.")] = None,
) -> None:
    """Replay a model's training step under several schemes.

    The fastest scheme is the first row.
    """
    from replay.experiments.train.scene import scene
    from replay.experiments.train.spec import TrainSpec

    if of_trace is not None:
        call = dataclasses.replace(call, given={"trace": of_trace, **call.given})
    exports = parse_exports(trace_events, (), None, None, is_one_graph=True)
    spec = call.request().spec
    assert isinstance(spec, TrainSpec)
    steps: dict[str, Any] = {"steps": spec.samples * spec.layers_sampled, "unit": "layer"}
    if exports is None:
        call.carry_out(**steps)
        return
    if len(call.request().schemes or ()) != 1:
        message = "--trace-events holds one step: name one --scheme"
        raise UserError(message)

    def observe(timeline: Timeline) -> None:
        exports(timeline, scene(timeline))

    call.carry_out(observe=observe, **steps)
    for line in exports.report:
        print(line, file=sys.stderr)
