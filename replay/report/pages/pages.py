"""From a result of any kind to its page."""

from __future__ import annotations

import importlib
from typing import Any

from replay.errors import UserError, shown
from tracegen.shared.display.content import Page

MAKERS: dict[str, str] = {
    "Comparison": "replay.report.pages.comparison",
    "Result": "replay.report.pages.run",
    "Difference": "replay.report.pages.difference",
    "PlacementResult": "replay.experiments.place.page",
    "SavedSweep": "replay.studies.sweeps.page",
    "SavedValidation": "replay.studies.validate.page",
    "SweepResult": "replay.studies.sweeps.page",
    "TensorComparison": "replay.experiments.dense.page",
    "TensorResult": "replay.experiments.dense.page",
    "CollectiveResult": "replay.experiments.collective.page",
    "TrainComparison": "replay.experiments.train.page",
    "TrainResult": "replay.experiments.train.page",
    "InferComparison": "replay.experiments.serve.page",
    "InferResult": "replay.experiments.serve.page",
    "ArrivalComparison": "replay.experiments.serve.arrivals.page",
    "ArrivalResult": "replay.experiments.serve.arrivals.page",
    "SearchResult": "replay.experiments.choose.page",
    "Explanation": "replay.report.pages.explanation",
}
"""Module whose `page` shows a kind of result, by the name of its class."""


def page(result: Any) -> Page:
    """Make the page of a result.

    Parameters
    ----------
    result
        What a replay, a study or a validation gave.

    Raises
    ------
    UserError
        If there is no page for such a thing.
    """
    for kind in type(result).__mro__:
        if kind.__name__ in MAKERS:
            made: Page = importlib.import_module(MAKERS[kind.__name__]).page(result)
            return made
    message = f"there is no report of {shown(result)}; of these there is: {', '.join(MAKERS)}"
    raise UserError(message)
