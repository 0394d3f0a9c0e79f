"""Layers under tensor parallelism: their work from sizes, schemes, replays, results.

>>> from replay import tensor
>>> compared = tensor.compare(
...     schemes=["tp-ring", "sp-ring"], model="llama-2-7b", tp=4, tokens=4096, baseline="tp-ring"
... )
>>> [result.scheme["name"] for result in compared.results]
['tp-ring', 'sp-ring']
>>> compared["tp-ring"].up.reduce_bytes[0] == 2 * 2 * 3 * 1024 * 4096 * 2  # halves x 2 (N - 1) T/N
True
>>> sorted(tensor.__all__)  # doctest: +NORMALIZE_WHITESPACE
['SCHEMES', 'TensorComparison', 'TensorResult', 'TensorSpec', 'compare', 'load_result', 'run']
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay.tensor.load import load_result
    from replay.tensor.registry import SCHEMES
    from replay.tensor.replays import compare, run
    from replay.tensor.result import TensorComparison, TensorResult
    from replay.tensor.spec import TensorSpec

__all__ = [
    "SCHEMES",
    "TensorComparison",
    "TensorResult",
    "TensorSpec",
    "compare",
    "load_result",
    "run",
]

# Loaded on first use: a command's --help should not wait for numba.
_HOMES = {
    "SCHEMES": "registry",
    "TensorComparison": "result",
    "TensorResult": "result",
    "TensorSpec": "spec",
    "compare": "replays",
    "load_result": "load",
    "run": "replays",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(f"replay.tensor.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
