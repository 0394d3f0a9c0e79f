"""Reading results of tensor parallelism back."""

from __future__ import annotations

from pathlib import Path

from replay.experiments.base.load import read_one_of
from replay.experiments.dense.result import TensorComparison, TensorResult


def load_result(path: str | Path) -> TensorResult | TensorComparison:
    """Read a result or a comparison of layers under tensor parallelism.

    Parameters
    ----------
    path
        A JSON file that ``--json`` or `TensorResult.save` wrote.

    Raises
    ------
    UserError
        If the file cannot be read, is damaged or is something else.
    """
    return read_one_of(path, TensorResult, TensorComparison)
