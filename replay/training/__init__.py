"""Training steps: schedules of pipelines, and steps composed of the times of layers.

>>> from replay import training
>>> sorted(training.__all__)  # doctest: +NORMALIZE_WHITESPACE
['SCHEDULES', 'TrainComparison', 'TrainResult', 'TrainSpec', 'compare', 'load_result', 'run']
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay.training.load import load_result
    from replay.training.replays import compare, run
    from replay.training.result import TrainComparison, TrainResult
    from replay.training.schedules.registry import SCHEDULES
    from replay.training.spec import TrainSpec

__all__ = [
    "SCHEDULES",
    "TrainComparison",
    "TrainResult",
    "TrainSpec",
    "compare",
    "load_result",
    "run",
]

# Loaded on first use: a command's --help should not wait for numba.
_HOMES = {
    "SCHEDULES": "schedules.registry",
    "TrainComparison": "result",
    "TrainResult": "result",
    "TrainSpec": "spec",
    "compare": "replays",
    "load_result": "load",
    "run": "replays",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(f"replay.training.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
