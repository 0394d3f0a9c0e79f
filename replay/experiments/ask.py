"""Asking a question of several schemes: the one `compare` of users."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from replay.errors import UserError
from replay.experiments.base import compare as base
from replay.experiments.base.experiment import EXPERIMENTS, AnyExperiment
from replay.experiments.base.spec import Spec

if TYPE_CHECKING:
    from replay.experiments.dense.result import TensorComparison
    from replay.experiments.dense.spec import TensorSpec
    from replay.experiments.layer.result import Comparison
    from replay.experiments.layer.spec import RunSpec
    from replay.experiments.serve.result import InferComparison
    from replay.experiments.serve.spec import InferSpec
    from replay.experiments.train.result import TrainComparison
    from replay.experiments.train.spec import TrainSpec
    from replay.schemes import Scheme
    from tracegen import RoutingTrace

    Several = str | Scheme | Sequence[str | Scheme] | None


def experiment_of(spec: Spec) -> AnyExperiment:
    """Find the experiment whose settings a spec has.

    Raises
    ------
    UserError
        If it is of none.
    """
    for one in EXPERIMENTS.values():
        if type(spec) is one.spec:
            return one
    message = f"{type(spec).__name__} is the spec of no experiment; of: {', '.join(EXPERIMENTS)}"
    raise UserError(message)


@overload
def compare(
    trace: RoutingTrace | RunSpec | str | Path | None = None,
    schemes: Several = None,
    spec: RunSpec | None = None,
    **settings: Any,
) -> Comparison: ...
@overload
def compare(trace: TensorSpec, schemes: Several = None, **settings: Any) -> TensorComparison: ...
@overload
def compare(trace: TrainSpec, schemes: Several = None, **settings: Any) -> TrainComparison: ...
@overload
def compare(trace: InferSpec, schemes: Several = None, **settings: Any) -> InferComparison: ...
def compare(
    trace: Any = None, schemes: Several = None, spec: Spec | None = None, **settings: Any
) -> Any:
    """Ask a question of several schemes.

    Parameters
    ----------
    trace
        A spec, which says what is asked; or a trace, whose layers are replayed.
    schemes
        Names or schemes, or one; None takes all that can do it.
    spec
        Settings of layers, where a trace is given.
    settings
        Fields of the spec by name, and ``baseline``, ``options``, ``jobs``, ``progress``,
        ``max_memory``, ``report``; of layers also ``placements``. See
        `replay.experiments.base.compare.compare` and `replay.experiments.layer.comparison.compare`.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together, or not into memory.
    """
    from replay.experiments.layer.comparison import compare as compare_layers
    from replay.experiments.layer.spec import RunSpec

    if isinstance(trace, Spec):
        trace, spec = None, trace
    if spec is None or isinstance(spec, RunSpec) or trace is not None:
        return compare_layers(trace, schemes, spec, **settings)  # type: ignore[arg-type]  # it checks
    return base.compare(experiment_of(spec), spec, schemes, **settings)  # type: ignore[arg-type]
