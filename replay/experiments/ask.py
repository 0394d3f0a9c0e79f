"""Functions of the Python interface: one for each question, and `compare` for several schemes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from replay.errors import UserError, check_kind, value_text
from replay.experiments.base.experiment import EXPERIMENTS, AnyExperiment, SpecInputs
from replay.experiments.base.names import short_placement
from replay.experiments.base.outcomes import ResultRequest
from replay.experiments.base.scheme_experiment import (
    HOW,
    check_known,
    check_once,
    check_options,
    several,
    with_schemes,
)
from replay.experiments.base.spec import Spec
from replay.experiments.layer.experiment import EXPERIMENT as LAYER
from replay.experiments.layer.setup import SCHEME_KINDS, SPEC_KINDS, spec_of
from replay.experiments.layer.spec import RunSpec
from replay.experiments.trace.experiment import EXPERIMENT as TRACE
from replay.experiments.trace.spec import TraceSpec
from replay.model.work.placement import PLACEMENTS, placement_name
from replay.schemes import Scheme, find

if TYPE_CHECKING:
    from replay.experiments.choose.result import SearchResult
    from replay.experiments.choose.spec import ChooseSpec
    from replay.experiments.collective.result import CollectiveResult
    from replay.experiments.collective.spec import CollectiveSpec
    from replay.experiments.dense.result import TensorComparison, TensorResult
    from replay.experiments.dense.spec import TensorSpec
    from replay.experiments.layer.result import Comparison, Result
    from replay.experiments.place.result import PlacementResult
    from replay.experiments.place.spec import PlaceSpec
    from replay.experiments.serve.arrivals.result import ArrivalComparison, ArrivalResult
    from replay.experiments.serve.arrivals.spec import ArrivalSpec
    from replay.experiments.serve.result import InferComparison, InferResult
    from replay.experiments.serve.spec import InferSpec
    from replay.experiments.trace.result import TraceComparison, TraceResult
    from replay.experiments.train.result import TrainComparison, TrainResult
    from replay.experiments.train.spec import TrainSpec
    from replay.measure.schedule import ReplayedSchedule
    from replay.schemes.outside import AllowCode
    from tracegen import RoutingTrace

    Several = str | Scheme | Sequence[str | Scheme] | None

MORE_SCHEMES = f"{SCHEME_KINDS}, or a list of them; a system is given as system=..."


@overload
def run(trace: RoutingTrace | str | Path | None = None, *, steps: str, **settings: Any) -> TraceResult: ...
@overload
def run(trace: RoutingTrace | str | Path | None, spec: TraceSpec, **settings: Any) -> TraceResult: ...
@overload
def run(trace: RoutingTrace | str | Path | None = None, spec: RunSpec | None = None, **settings: Any) -> Result: ...
def run(
    trace: RoutingTrace | str | Path | None = None,
    spec: RunSpec | None = None,
    *,
    progress: Callable[[], object] | None = None,
    observe: Callable[[ReplayedSchedule], object] | None = None,
    max_memory: float | None = None,
    report: Callable[[str], object] | None = None,
    allow_code: AllowCode = False,
    **settings: Any,
) -> Result | TraceResult:
    """Replay a trace under one scheme.

    One layer of one step is replayed by itself. Several are chained: each GPU goes on when its own
    tokens are combined, after the attention, norms, gate and shared experts of the next layer.

    With ``steps="all"``, or what else `TraceSpec` has for them, each of many steps is replayed by
    itself, and the result is a `TraceResult`.

    Parameters
    ----------
    trace
        A trace, or a reference to one; None takes the spec's.
    spec
        The settings; None takes the defaults.
    progress
        Called for every layer.
    observe
        Called with the schedule of each graph that the result is made from: one for a chain, one
        per layer otherwise. It knows the machine that made it; see `replay.engine.export` and
        `replay.measure.scene` for what to do with it.
    max_memory
        Bytes that it may take; None takes what the machine has left.
    report
        Called with a line that says what a long replay takes, before it starts.
    allow_code
        Whether a scheme's file that the spec names may be executed: a spec may be somebody else's.
        A set of SHA-256s allows files that have one of them. One that `settings` name is executed.
    settings
        Fields of `RunSpec` by name, in place of the spec's: ``scheme="deepep"``, ``ranks=8``. A
        system may also be a `hwmodel.System`, and a scheme a `replay.Scheme`. Of a whole trace
        also ``jobs``, ``folder`` and ``found``, as of `replay.experiments.trace.replay.carry_out`.
        A script that asks for more than one process must keep its own work behind
        ``if __name__ == "__main__":``, as for any use of `multiprocessing`.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together.
    UnfitError
        If it takes more memory than there is.
    """
    spec = _of_whole_trace(spec, settings)
    more = {name: settings.pop(name) for name in OF_WHOLE_TRACES if name in settings}
    made, system, scheme = spec_of(spec, settings)
    given = {"trace": trace, "system": system, "scheme": scheme}
    allow_code = allow_code or "scheme" in settings
    if isinstance(made, TraceSpec):
        setup = TRACE.setup(made, SpecInputs(given, allow_code=allow_code))
        return TRACE.carry_out(setup, progress=progress, observe=observe, max_memory=max_memory, report=report, **more)
    _check_one_step(more)
    return LAYER.run(
        made,
        given=given,
        progress=progress,
        observe=observe,
        max_memory=max_memory,
        report=report,
        allow_code=allow_code,
    )


OF_FOLDERS = ("folder", "found")
OF_WHOLE_TRACES = ("jobs", *OF_FOLDERS)
"""What a replay of a whole trace takes beside its settings."""


def _of_whole_trace(spec: RunSpec | None, settings: Mapping[str, Any]) -> RunSpec | None:
    """A spec of a whole trace where its steps are asked for in words."""
    if not isinstance(settings.get("steps"), str) or isinstance(spec, TraceSpec):
        return spec
    if spec is None:
        return TraceSpec()
    check_kind("spec", spec, RunSpec, SPEC_KINDS)
    own = {name: getattr(spec, name) for name in type(spec).model_fields if name != "steps"}
    return TraceSpec(**own)


def _check_one_step(more: Mapping[str, Any]) -> None:
    for name in more:
        message = f'{name} goes with a whole trace only, such as steps="all"'
        raise UserError(message)


def dense(spec: TensorSpec | None = None, **settings: Any) -> TensorResult:
    """Replay a layer under one scheme of tensor parallelism.

    Parameters
    ----------
    spec
        The settings; None takes the defaults.
    settings
        Fields of the spec by name, and parameters of `Experiment.run`, as of all that follow.

    >>> dense(model="llama-2-7b", tp=4, tokens=256, scheme="sp-ring").scheme.name
    'sp-ring'
    """
    from replay.experiments.dense.experiment import EXPERIMENT

    return EXPERIMENT.run(spec, **settings)


def train(spec: TrainSpec | None = None, **settings: Any) -> TrainResult:
    """Replay a step of training a whole model under one scheme; parameters are those of `dense`."""
    from replay.experiments.train.experiment import EXPERIMENT

    return EXPERIMENT.run(spec, **settings)


@overload
def serve(spec: ArrivalSpec, **settings: Any) -> ArrivalResult: ...
@overload
def serve(spec: InferSpec | None = None, **settings: Any) -> InferResult: ...
def serve(spec: InferSpec | None = None, **settings: Any) -> Any:
    """Serve under one scheme of prompts and decoding; parameters are those of `dense`.

    An `ArrivalSpec` asks for requests that arrive, anything else for a batch.
    """
    from replay.experiments.serve.arrivals.experiment import EXPERIMENT as ARRIVALS
    from replay.experiments.serve.arrivals.spec import ArrivalSpec
    from replay.experiments.serve.experiment import EXPERIMENT

    if isinstance(spec, ArrivalSpec):
        return ARRIVALS.run(spec, **settings)
    return EXPERIMENT.run(spec, **settings)


def collective(spec: CollectiveSpec | None = None, **settings: Any) -> CollectiveResult:
    """Time a collective by itself; parameters are those of `dense`.

    >>> collective(op="allgather", bytes="64K", ranks=2, algorithm="ring").rows[0].blocks
    24
    """
    from replay.experiments.collective.experiment import EXPERIMENT

    return EXPERIMENT.run(spec, **settings)


def place(spec: PlaceSpec | None = None, **settings: Any) -> PlacementResult:
    """Place experts on GPUs by the loads of a trace; parameters are those of `dense`.

    >>> place(trace="toy-zipf", slots=72, windows=1).num_slots
    72
    """
    from replay.experiments.place.experiment import EXPERIMENT

    return EXPERIMENT.run(spec, **settings)


def choose(spec: ChooseSpec | None = None, **settings: Any) -> SearchResult:
    """Search model shapes and parallel plans; parameters are those of `dense`."""
    from replay.experiments.choose.experiment import EXPERIMENT

    return EXPERIMENT.run(spec, **settings)


# ---- of several schemes --------------------------------------------------------------------------


@overload
def compare(
    trace: TraceSpec | RoutingTrace | str | Path | None = None,
    schemes: Several = None,
    *,
    steps: str,
    **settings: Any,
) -> TraceComparison: ...
@overload
def compare(trace: TraceSpec, schemes: Several = None, **settings: Any) -> TraceComparison: ...
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
def compare(trace: ArrivalSpec, schemes: Several = None, **settings: Any) -> ArrivalComparison: ...
@overload
def compare(trace: InferSpec, schemes: Several = None, **settings: Any) -> InferComparison: ...
def compare(trace: Any = None, schemes: Several = None, spec: Spec | None = None, **settings: Any) -> Any:
    """Ask a question of several schemes.

    Parameters
    ----------
    trace
        A spec, which says what is asked; or a trace, whose layers are replayed.
    schemes
        Names or schemes, or one; None takes all that can do it.
    spec
        Settings of layers, where a trace or nothing is given.
    settings
        Fields of the spec by name, and ``baseline``, ``options``, ``jobs``, ``progress``,
        ``max_memory``, ``report``, as of `SchemeExperiment.carry_out_all`; of layers also
        ``placements``, see `compare_layers`.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together, or not into memory.
    """
    if isinstance(trace, Spec):
        if spec is not None:
            message = f"spec = {type(spec).__name__}: a {type(trace).__name__} was given before it"
            raise UserError(message)
        trace, spec = None, trace
    if spec is None or isinstance(spec, RunSpec) or trace is not None:
        return compare_layers(trace, schemes, spec, **settings)  # type: ignore[arg-type]  # it checks
    return with_schemes(experiment_of(spec)).compare(spec, schemes, **settings)  # type: ignore[arg-type]


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
    message = f"{type(spec).__name__} is the spec of no experiment; experiments are: {', '.join(EXPERIMENTS)}"
    raise UserError(message)


def compare_layers(
    trace: RoutingTrace | str | Path | None = None,
    schemes: str | Scheme | Sequence[str | Scheme] | None = None,
    spec: RunSpec | None = None,
    *,
    baseline: str | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    placements: str | Path | Sequence[str | Path] | None = None,
    **settings: Any,
) -> Comparison | TraceComparison:
    """Replay a trace under several schemes, and with several placements.

    Parameters
    ----------
    trace
        A trace, or a reference to one; None takes the spec's.
    schemes
        Names or schemes, or one; None takes every scheme that the system supports and that has
        code for the batch. `Comparison.left_out` says which have not.
    spec
        The settings; its scheme and options are not heeded.
    baseline
        Scheme that speed-ups are given over, or a row as tables print it, such as ``"deepep,
        eplb:40"``; None takes the first of `Layer.BASELINES` that is compared,
        else the first scheme: deepep for prefill, deepep-ll for decode.
    options
        Options by name, by name of the scheme.
    placements
        Placements of the experts, or one, with each of which every scheme is replayed; a `Path` is
        that of a map. None takes the spec's alone. Speed-ups are over the baseline with the first.
    settings
        Fields of `RunSpec` by name, in place of the spec's, see `run`; and ``jobs``, ``progress``,
        ``max_memory`` and ``report``, as of `SchemeExperiment.carry_out_all`. A script that asks for
        more than one process must keep its own work behind ``if __name__ == "__main__":``, as for
        any use of `multiprocessing`.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together.
    UnfitError
        If a replay takes more memory than there is; nothing is replayed then.
    """
    how = {name: settings.pop(name) for name in (*HOW, *OF_FOLDERS) if name in settings}
    spec = _of_whole_trace(spec, settings)
    named = None if schemes is None else several("schemes", schemes, (str, Scheme), MORE_SCHEMES)
    if "scheme" in settings:
        message = f"scheme = {value_text(settings['scheme'])}: compare takes schemes=[...]"
        raise UserError(message)
    shared, given_system, _ = spec_of(spec, {**settings, "scheme": None, "options": {}})
    placed = [shared.placement]
    if placements is not None:
        placed = several("placements", placements, (str, Path), PLACEMENTS)
        placed = list(dict.fromkeys(map(placement_name, placed)))
    given = {} if given_system is None else {"system": given_system}
    rows = [
        _row(shared, one, dict(table), placement, is_one=len(placed) == 1)
        for one, table in _each_with_options(named or LAYER.usual_schemes(shared, given), options or {})
        for placement in placed
    ]
    objects = {**given, "trace": trace}
    if isinstance(shared, TraceSpec):
        return TRACE.carry_out_all(rows, objects, baseline=baseline, **how)
    _check_one_step({name: how[name] for name in OF_FOLDERS if name in how})
    return LAYER.carry_out_all(rows, objects, baseline=baseline, **how)


def _row(
    shared: RunSpec, scheme: str | Scheme, options: dict[str, Any], placement: str, *, is_one: bool
) -> ResultRequest:
    """One result: a scheme with a placement, which is named where there are several."""
    made, _, given = spec_of(shared, {"scheme": scheme, "options": options, "placement": placement})
    own = find(scheme, allow_code=True).name if isinstance(scheme, str) else scheme.name
    name = own if is_one else f"{own}, {short_placement(placement)}"
    return ResultRequest(name, made, {} if given is None else {"scheme": given}, of=own)


def _each_with_options(
    schemes: Sequence[str | Scheme], options: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str | Scheme, Mapping[str, Any]]]:
    """Give each scheme and its options."""
    names = [one.name if isinstance(one, Scheme) else find(one, allow_code=True).name for one in schemes]
    check_once(names)
    check_options(options)
    check_known(options, names)
    return [(scheme, options.get(name, {})) for scheme, name in zip(schemes, names, strict=True)]
