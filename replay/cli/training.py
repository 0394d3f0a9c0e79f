"""``moereplay train``: training steps under several schemes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
) -> None:
    """Replay a step of training a whole model under several schemes, the fastest first."""
    from replay.experiments.train.scene import scene

    exports = parse_exports(trace_events, (), None, None, is_one_graph=True)
    if exports is None:
        call.carry_out()
        return
    if len(call.wanted().schemes or ()) != 1:
        message = "--trace-events holds one step: name one --scheme"
        raise UserError(message)

    def observe(timeline: Timeline) -> None:
        exports(timeline, scene(timeline))

    call.carry_out(observe=observe)
    for line in exports.report:
        print(line, file=sys.stderr)
