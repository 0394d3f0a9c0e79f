"""Replay of routing traces on modelled machines, under every communication scheme.

>>> import replay
>>> sorted(replay.__all__)
['Comparison', 'Result', 'SCHEMES', 'Scheme', 'UserError', 'compare', 'run', 'sweep']
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay.errors import UserError
    from replay.replayer import compare, run
    from replay.result import Comparison, Result
    from replay.schemes import SCHEMES, Scheme
    from replay.sweeps.run import sweep

__all__ = ["SCHEMES", "Comparison", "Result", "Scheme", "UserError", "compare", "run", "sweep"]

# Loaded on first use: a command's --help should not wait for numba.
_HOMES = {
    "Comparison": "result",
    "Result": "result",
    "SCHEMES": "schemes",
    "Scheme": "schemes",
    "UserError": "errors",
    "compare": "replayer",
    "run": "replayer",
    "sweep": "sweeps.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(f"replay.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
