"""Replay of routing traces on modelled machines, under every communication scheme.

>>> import replay
>>> sorted(replay.__all__)  # doctest: +NORMALIZE_WHITESPACE
['Comparison', 'Result', 'RunSpec', 'SCHEMES', 'Scheme', 'UserError', 'assess', 'compare',
 'diff', 'explain', 'load_result', 'run', 'summary', 'sweep']
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# The one eager import, of a module that imports nothing itself: `replay.run` is the function, and
# importing the package of that name first would bind the package to it for good.
from replay.run import run

if TYPE_CHECKING:
    from replay.differences.diff import diff
    from replay.differences.explanation import explain
    from replay.errors import UserError
    from replay.report.text import summary
    from replay.run.comparison import compare
    from replay.run.load import load_result
    from replay.run.result import Comparison, Result
    from replay.run.spec import RunSpec
    from replay.schemes import SCHEMES, Scheme
    from replay.sweeps.run import sweep
    from replay.uncertainty.assess import assess

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

# Loaded on first use: a command's --help should not wait for numba.
_HOMES = {
    "Comparison": "run.result",
    "Result": "run.result",
    "RunSpec": "run.spec",
    "SCHEMES": "schemes",
    "Scheme": "schemes",
    "UserError": "errors",
    "assess": "uncertainty.assess",
    "compare": "run.comparison",
    "diff": "differences.diff",
    "explain": "differences.explanation",
    "load_result": "run.load",
    "summary": "report.text",
    "sweep": "sweeps.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(f"replay.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
