"""Replay of routing traces on modelled machines, under every communication scheme.

Each question has a function that gives its result; `compare` asks it of several schemes. What is
stable, and how it changes, is said in ``replay/STABILITY.md``.

>>> import replay
>>> step = replay.dense(model="llama-2-7b", tp=4, tokens=256, scheme="sp-ring")
>>> step.scheme.name, step.headline_us > 0
('sp-ring', True)
>>> both = replay.compare(replay.TensorSpec(model="llama-2-7b", tp=4, tokens=256),
...                       ["sp-ring", "tp-ring"], baseline="sp-ring")
>>> both.speed_up("sp-ring")
1.0
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracegen.shared.lazy import loader

if TYPE_CHECKING:
    from replay.errors import UserError
    from replay.experiments.ask import (
        choose,
        collective,
        compare,
        dense,
        place,
        run,
        serve,
        train,
    )
    from replay.experiments.base.experiment import EXPERIMENTS
    from replay.experiments.base.load import load_result
    from replay.experiments.base.result import __version__
    from replay.experiments.dense.result import TensorComparison, TensorResult
    from replay.experiments.dense.spec import TensorSpec
    from replay.experiments.layer.result import Comparison, Result
    from replay.experiments.layer.spec import RunSpec
    from replay.experiments.serve.arrivals.result import ArrivalResult
    from replay.experiments.serve.arrivals.spec import ArrivalSpec
    from replay.experiments.serve.result import InferComparison, InferResult
    from replay.experiments.serve.spec import InferSpec
    from replay.experiments.trace.result import TraceComparison, TraceResult
    from replay.experiments.trace.spec import TraceSpec
    from replay.experiments.train.result import TrainComparison, TrainResult
    from replay.experiments.train.spec import TrainSpec
    from replay.report.text import summary
    from replay.schemes import SCHEMES, Scheme
    from replay.studies.differences.diff import diff
    from replay.studies.differences.explanation import explain
    from replay.studies.sweeps.run import sweep
    from replay.studies.uncertainty.any_experiment import sureness
    from replay.studies.uncertainty.assess import assess

__all__ = [
    "EXPERIMENTS",
    "SCHEMES",
    "ArrivalResult",
    "ArrivalSpec",
    "Comparison",
    "InferComparison",
    "InferResult",
    "InferSpec",
    "Result",
    "RunSpec",
    "Scheme",
    "TensorComparison",
    "TensorResult",
    "TensorSpec",
    "TraceComparison",
    "TraceResult",
    "TraceSpec",
    "TrainComparison",
    "TrainResult",
    "TrainSpec",
    "UserError",
    "__version__",
    "assess",
    "choose",
    "collective",
    "compare",
    "dense",
    "diff",
    "explain",
    "load_result",
    "place",
    "run",
    "serve",
    "summary",
    "sureness",
    "sweep",
    "train",
]

# Loaded on first use: a command's --help should not wait for what it does not need.
_HOMES = {
    "EXPERIMENTS": "replay.experiments.base.experiment",
    "SCHEMES": "replay.schemes",
    "ArrivalResult": "replay.experiments.serve.arrivals.result",
    "ArrivalSpec": "replay.experiments.serve.arrivals.spec",
    "Comparison": "replay.experiments.layer.result",
    "InferComparison": "replay.experiments.serve.result",
    "InferResult": "replay.experiments.serve.result",
    "InferSpec": "replay.experiments.serve.spec",
    "Result": "replay.experiments.layer.result",
    "RunSpec": "replay.experiments.layer.spec",
    "Scheme": "replay.schemes",
    "TensorComparison": "replay.experiments.dense.result",
    "TensorResult": "replay.experiments.dense.result",
    "TensorSpec": "replay.experiments.dense.spec",
    "TraceComparison": "replay.experiments.trace.result",
    "TraceResult": "replay.experiments.trace.result",
    "TraceSpec": "replay.experiments.trace.spec",
    "TrainComparison": "replay.experiments.train.result",
    "TrainResult": "replay.experiments.train.result",
    "TrainSpec": "replay.experiments.train.spec",
    "UserError": "replay.errors",
    "__version__": "replay.experiments.base.result",
    "assess": "replay.studies.uncertainty.assess",
    "choose": "replay.experiments.ask",
    "collective": "replay.experiments.ask",
    "compare": "replay.experiments.ask",
    "dense": "replay.experiments.ask",
    "diff": "replay.studies.differences.diff",
    "explain": "replay.studies.differences.explanation",
    "load_result": "replay.experiments.base.load",
    "place": "replay.experiments.ask",
    "run": "replay.experiments.ask",
    "serve": "replay.experiments.ask",
    "summary": "replay.report.text",
    "sureness": "replay.studies.uncertainty.any_experiment",
    "sweep": "replay.studies.sweeps.run",
    "tensor": "replay.experiments.dense:",
    "train": "replay.experiments.ask",
    "training": "replay.experiments.train:",
}

__getattr__ = loader(__name__, _HOMES)
