"""Training steps: schedules of pipelines, and steps composed of the times of layers.

>>> from replay import training
>>> sorted(training.__all__)  # doctest: +NORMALIZE_WHITESPACE
['SCHEDULES', 'TrainComparison', 'TrainResult', 'TrainSpec', 'compare', 'load_result', 'run']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracegen.shared.lazy import loader

if TYPE_CHECKING:
    from replay.experiments.train.experiment import compare, load_result, run
    from replay.experiments.train.result import TrainComparison, TrainResult
    from replay.experiments.train.schedules.registry import SCHEDULES
    from replay.experiments.train.spec import TrainSpec

__all__ = [
    "SCHEDULES",
    "TrainComparison",
    "TrainResult",
    "TrainSpec",
    "compare",
    "load_result",
    "run",
]

# Loaded on first use: a command's --help should not wait for what it does not need.
_HOMES = {
    "SCHEDULES": "replay.experiments.train.schedules.registry",
    "TrainComparison": "replay.experiments.train.result",
    "TrainResult": "replay.experiments.train.result",
    "TrainSpec": "replay.experiments.train.spec",
    "compare": "replay.experiments.train.experiment",
    "load_result": "replay.experiments.train.experiment",
    "run": "replay.experiments.train.experiment",
}

__getattr__ = loader(__name__, _HOMES)
