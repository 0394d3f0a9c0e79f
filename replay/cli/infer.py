"""``moereplay infer``: whole models that serve requests."""

from __future__ import annotations

import dataclasses

from replay.cli.experiments import ComparisonCall, compares
from replay.errors import UserError
from replay.experiments.serve.arrivals.spec import OF_ARRIVALS
from replay.experiments.serve.experiment import EXPERIMENT


@compares("arrivals", defaults={"arrivals": "all there from the start"})
def infer(call: ComparisonCall) -> None:
    """Serve a batch of requests with a whole model.

    Printed are the time to the first token, the time per token, and tokens per second.

    With --arrivals, requests come one by one, and iterations are made of what is there.
    """
    if not _arrive(call):
        if alone := [name for name in call.given if name in OF_ARRIVALS]:
            message = f"--{alone[0].replace('_', '-')} can only be given with --arrivals"
            raise UserError(message)
        call = dataclasses.replace(call, experiment=EXPERIMENT)
    call.carry_out()


def _arrive(call: ComparisonCall) -> bool:
    """Tell whether requests arrive: as the command line says, or the file that is run again."""
    return "arrivals" in call.given or call.runs_again(
        "moereplay-arrivals", lambda settings: bool(set(OF_ARRIVALS) & set(settings))
    )
