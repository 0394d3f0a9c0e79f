"""Replay of routing traces on modelled machines, under every communication scheme.

>>> import replay
>>> sorted(replay.__all__)  # doctest: +NORMALIZE_WHITESPACE
['Comparison', 'Result', 'RunSpec', 'SCHEMES', 'Scheme', 'UserError', 'assess', 'compare',
 'diff', 'explain', 'load_result', 'run', 'summary', 'sweep']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracegen.shared.lazy import loader

if TYPE_CHECKING:
    from replay.errors import UserError
    from replay.experiments.base.load import load_result
    from replay.experiments.layer.comparison import compare
    from replay.experiments.layer.replay import run
    from replay.experiments.layer.result import Comparison, Result
    from replay.experiments.layer.spec import RunSpec
    from replay.report.text import summary
    from replay.schemes import SCHEMES, Scheme
    from replay.studies.differences.diff import diff
    from replay.studies.differences.explanation import explain
    from replay.studies.sweeps.run import sweep
    from replay.studies.uncertainty.assess import assess

__all__ = [
    "SCHEMES",
    "Comparison",
    "Result",
    "RunSpec",
    "Scheme",
    "UserError",
    "assess",
    "compare",
    "diff",
    "explain",
    "load_result",
    "run",
    "summary",
    "sweep",
]

# Loaded on first use: a command's --help should not wait for what it does not need.
_HOMES = {
    "Comparison": "replay.experiments.layer.result",
    "Result": "replay.experiments.layer.result",
    "RunSpec": "replay.experiments.layer.spec",
    "SCHEMES": "replay.schemes",
    "Scheme": "replay.schemes",
    "UserError": "replay.errors",
    "assess": "replay.studies.uncertainty.assess",
    "compare": "replay.experiments.layer.comparison",
    "diff": "replay.studies.differences.diff",
    "explain": "replay.studies.differences.explanation",
    "load_result": "replay.experiments.base.load",
    "run": "replay.experiments.layer.replay",
    "summary": "replay.report.text",
    "sweep": "replay.studies.sweeps.run",
    "tensor": "replay.experiments.dense:",
    "training": "replay.experiments.train:",
}

__getattr__ = loader(__name__, _HOMES)
