"""Reading results of training steps back."""

from __future__ import annotations

from pathlib import Path

from replay.experiments.base.load import read_one_of
from replay.experiments.train.result import TrainComparison, TrainResult


def load_result(path: str | Path) -> TrainResult | TrainComparison:
    """Read a result or a comparison of training steps.

    Parameters
    ----------
    path
        A JSON file that ``--json`` or `TrainResult.save` wrote.

    Raises
    ------
    UserError
        If the file cannot be read, is damaged or is something else.
    """
    return read_one_of(path, TrainResult, TrainComparison)
