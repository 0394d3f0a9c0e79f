"""Replay of routing traces on modelled machines, under every communication scheme.

>>> import replay
>>> sorted(replay.__all__)
['Comparison', 'Result', 'SCHEMES', 'Scheme', 'UserError', 'compare', 'run', 'sweep']
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# The one eager import, of a module that imports nothing itself: `replay.run` is the function, and
# importing the package of that name first would bind the package to it for good.
from replay.run import run

if TYPE_CHECKING:
    from replay.errors import UserError
    from replay.measure.result import Comparison, Result
    from replay.run.replayer import compare
    from replay.schemes import SCHEMES, Scheme
    from replay.sweeps.run import sweep

__all__ = ["SCHEMES", "Comparison", "Result", "Scheme", "UserError", "compare", "run", "sweep"]

# Loaded on first use: a command's --help should not wait for numba.
_HOMES = {
    "Comparison": "measure.result",
    "Result": "measure.result",
    "SCHEMES": "schemes",
    "Scheme": "schemes",
    "UserError": "errors",
    "compare": "run.replayer",
    "sweep": "sweeps.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(f"replay.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
