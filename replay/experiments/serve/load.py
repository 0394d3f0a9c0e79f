"""Reading results of serving back."""

from __future__ import annotations

from pathlib import Path

from replay.experiments.base.load import read_one_of
from replay.experiments.serve.result import InferComparison, InferResult


def load_result(path: str | Path) -> InferResult | InferComparison:
    """Read a result or a comparison of serving.

    Parameters
    ----------
    path
        A JSON file that ``--json`` or `InferResult.save` wrote.

    Raises
    ------
    UserError
        If the file cannot be read, is damaged or is something else.
    """
    return read_one_of(path, InferResult, InferComparison)
