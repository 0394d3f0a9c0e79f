"""Layers under tensor parallelism: their work from sizes, schemes, replays, results.

>>> from replay import tensor
>>> compared = tensor.compare(
...     schemes=["tp-ring", "sp-ring"], model="llama-2-7b", tp=4, tokens=4096, baseline="tp-ring"
... )
>>> [result.scheme.name for result in compared.results]
['tp-ring', 'sp-ring']
>>> compared["tp-ring"].up.reduce_bytes[0] == 2 * 2 * 3 * 1024 * 4096 * 2  # halves x 2 (N - 1) T/N
True
>>> sorted(tensor.__all__)  # doctest: +NORMALIZE_WHITESPACE
['SCHEMES', 'TensorComparison', 'TensorResult', 'TensorSpec', 'compare', 'load_result', 'run']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracegen.shared.lazy import loader

if TYPE_CHECKING:
    from replay.experiments.dense.experiment import compare, load_result, run
    from replay.experiments.dense.result import TensorComparison, TensorResult
    from replay.experiments.dense.spec import TensorSpec
    from replay.schemes.registry import TENSOR_SCHEMES as SCHEMES

__all__ = [
    "SCHEMES",
    "TensorComparison",
    "TensorResult",
    "TensorSpec",
    "compare",
    "load_result",
    "run",
]

# Loaded on first use: a command's --help should not wait for what it does not need.
_HOMES = {
    "SCHEMES": "replay.schemes.registry:TENSOR_SCHEMES",
    "TensorComparison": "replay.experiments.dense.result",
    "TensorResult": "replay.experiments.dense.result",
    "TensorSpec": "replay.experiments.dense.spec",
    "compare": "replay.experiments.dense.experiment",
    "load_result": "replay.experiments.dense.experiment",
    "run": "replay.experiments.dense.experiment",
}

__getattr__ = loader(__name__, _HOMES)
