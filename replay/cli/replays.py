"""``moereplay run`` and ``moereplay compare``: layers of a trace under one scheme, or several."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from replay.chains.settings import PASSES
from replay.cli.crews import going_on_later
from replay.cli.experiments import ComparisonCall, compares
from replay.cli.exports import (
    ExportOption,
    MaxEventsOption,
    TraceEventsOption,
    WindowOption,
    check_token,
    parse_exports,
)
from replay.cli.options import MOST_DIGITS
from replay.cli.results import ExperimentCommand, ResultCall, asks
from replay.cli.screen import progress, show
from replay.errors import UserError
from replay.experiments.layer.experiment import EXPERIMENT as LAYER
from replay.experiments.layer.spec import RunSpec
from replay.experiments.trace.experiment import EXPERIMENT as TRACE
from tracegen.cli.outputs import folder_option
from tracegen.shared.processors import num_processors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from replay.experiments.layer.result import Result
    from tracegen import RoutingTrace

MANY_REPLAYS = 100
"""Replays of one layer from which on two processes save time, whose start takes some: on two cores 2, 4 and 8 layers of
the trace that ships take 8, 13 and 21 s under all 26 schemes by one, and 9, 11 and 15 s by two
(``time moereplay compare gpt-oss-20b-decode --layer 0,1,2,3 --jobs 2``)."""

PLACEMENT_HELP = str(RunSpec.model_fields["placement"].description)


ONE_BY_ONE = "steps one by one, as --steps all asks for them"
OutOption = Annotated[
    Path | None,
    folder_option(
        "-o", "--out", help="With several --steps, each by itself: folder in which finished ones stay for the next run."
    ),
]


@asks("trace", defaults={"compare_barrier": True, "steps": "1"})
def run(
    call: ResultCall,
    trace_events: TraceEventsOption = None,
    export: ExportOption = None,
    window: WindowOption = None,
    max_events: MaxEventsOption = None,
    trace_token: Annotated[
        int | None,
        typer.Option(
            "--trace-token",
            help="The token whose way --trace-events draws, by its place in the batch [the slowest "
            "one, which the result names].",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", help="With several --steps, each by itself: processes that share them [the cores]."),
    ] = None,
    out: OutOption = None,
) -> None:
    """Replay a trace under one scheme."""
    from replay.experiments.layer.tables import tables

    is_whole, call = _call_by_steps(call, out, jobs)
    if is_whole:
        given = {
            "trace-events": trace_events,
            "export": export,
            "window": window,
            "max-events": max_events,
            "trace-token": trace_token,
        }
        _refuse_with_steps(given)
        setup = call.setup()
        if not call.is_dry(setup):
            with _kept_in(out):
                result = call.carry_out(setup, unit="step", folder=out, jobs=num_processors() if jobs is None else jobs)
            show(call.experiment.screen_tables(result, details=True))
            call.tell_difference(result)
        return
    one_graph = call.spec.makes_one_graph
    exports = parse_exports(trace_events, export or [], window, max_events, is_one_graph=one_graph, token=trace_token)
    setup = call.setup()
    if trace_token is not None:
        check_token(trace_token, setup.first.source_rank.size)
    if call.is_dry(setup):
        return
    result = call.carry_out(setup, observe=exports, unit="layer")
    show(tables(result, details=True))
    _show_tuned([result], name_all=bool(call.spec.tune))
    call.tell_difference(result)


@compares("trace", leave_out=["placement"], defaults={"steps": "1"})
def compare(
    call: ComparisonCall,
    placement: Annotated[
        list[str] | None,
        typer.Option("--placement", help=f"{PLACEMENT_HELP} Repeatable: a row for each [contiguous]."),
    ] = None,
    uncertainty: Annotated[
        int | None,
        typer.Option(
            "--uncertainty",
            help="Also replay so many draws of what is uncertain: a band for each scheme, and the "
            "share of draws in which the order holds.",
        ),
    ] = None,
    uncertainty_of: Annotated[
        str | None,
        typer.Option(
            "--uncertainty-of",
            help="What is drawn, of hardware, software, model and routing [all of them].",
        ),
    ] = None,
    uncertainty_seed: Annotated[int | None, typer.Option("--uncertainty-seed", help="Seed of the draws [0].")] = None,
    out: OutOption = None,
) -> None:
    """Replay a trace under several schemes, the fastest first."""
    from replay.experiments.ask import compare as compared
    from replay.experiments.layer.setup import load_trace

    drawn = _draw_arguments(uncertainty, uncertainty_of, uncertainty_seed)
    is_whole, call = _call_by_steps(call, out)
    if is_whole:
        _refuse_with_steps({"uncertainty": uncertainty})
    wanted = call.request()
    asked: Any = wanted.spec
    trace, spec = load_trace(None, asked)
    if placement is None and call.before is not None:
        specs: Sequence[Any] = call.before.specs
        placement = list(dict.fromkeys(one.placement for one in specs))
    more = {"folder": out} if is_whole else {}
    rows = len(set(placement or [""]))  # of each scheme
    layers = _num_steps(spec, trace) if is_whole else num_layers(spec, trace)
    schemes = wanted.schemes or LAYER.usual_schemes(spec, {})
    with _kept_in(out):
        found = call.carry_out(
            dataclasses.replace(wanted, spec=spec),
            compare=partial(compared, trace, placements=placement or None),
            then=lambda one: one if drawn is None else _assess(one, trace, drawn),
            objects={"trace": trace},
            steps=rows * layers,
            unit="step" if is_whole else "layer" if layers > 1 else "scheme",
            jobs=num_processors() if is_whole else usual_jobs(len(schemes) * rows * layers),
            **more,
        )
    if found is not None and not is_whole:
        _show_tuned(found.results, name_all=bool(spec.tune))


AnyCall = TypeVar("AnyCall", bound=ExperimentCommand)


def _call_by_steps(call: AnyCall, out: Path | None, jobs: int | None = None) -> tuple[bool, AnyCall]:
    """Tell whether steps are replayed one by one, and give the call of the experiment that does it.

    Raises
    ------
    UserError
        If nothing is replayed that could be kept in a folder.
    """
    steps = call.given.get("steps")
    is_number = steps is not None and steps.isdecimal() and len(steps) <= MOST_DIGITS
    if (steps is not None and not is_number) or (
        steps is None and call.runs_again("moereplay-trace", lambda settings: isinstance(settings.get("steps"), str))
    ):
        defaults = {name: one for name, one in call.defaults.items() if name not in ONE_GRAPH}
        return True, dataclasses.replace(call, experiment=TRACE, defaults=defaults)
    for name, one in (("out", out), ("jobs", jobs)):
        if one is not None:
            message = f"--{name} can only be given with {ONE_BY_ONE}"
            raise UserError(message)
    given = {**call.given, "steps": int(steps)} if steps is not None else call.given
    defaults = {name: one for name, one in call.defaults.items() if name != "steps"}
    return False, dataclasses.replace(call, experiment=LAYER, given=given, defaults=defaults)


ONE_GRAPH = ("steps", "compare_barrier")
"""Defaults that steps one by one do not have."""


def _refuse_with_steps(given: Mapping[str, Any]) -> None:
    """Refuse what is of one replay.

    Raises
    ------
    UserError
        Saying what, and how one step is replayed.
    """
    for name, one in given.items():
        if one is not None:
            message = f"--{name} does not go with {ONE_BY_ONE}; --step N replays one"
            raise UserError(message)


def _kept_in(out: Path | None) -> AbstractContextManager[None]:
    """Sentence for a replay that is interrupted and keeps steps in a folder."""
    return nullcontext() if out is None else going_on_later(out)


def _num_steps(spec: Any, trace: RoutingTrace) -> int:
    """Steps that one scheme replays."""
    import hwmodel
    from replay.chains.settings import ChainSettings
    from replay.experiments.trace.steps import step_numbers
    from replay.model.work.batch import steps_in

    system = hwmodel.load(spec.system, spec.overrides)
    first = ChainSettings.of(spec.of_step(0)).batch(trace, system, 0)
    return len(step_numbers(spec.steps, steps_in(trace, first))[0])


def _draw_arguments(draws: int | None, of: str | None, seed: int | None) -> dict[str, Any] | None:
    """Arguments of `replay.assess`; None where no uncertainty is asked for.

    Raises
    ------
    UserError
        If a draw is described and none is asked for.
    """
    from replay.studies.uncertainty.assess import EVERYTHING
    from replay.studies.uncertainty.bands import check

    if draws is None:
        if of is not None or seed is not None:
            message = "--uncertainty N is missing: it says how many draws are replayed"
            raise UserError(message)
        return None
    names = EVERYTHING if of is None else [name.strip() for name in of.split(",")]
    check(draws, seed or 0, names, EVERYTHING)
    return {"draws": draws, "seed": seed or 0, "of": names}


def _assess(compared: Any, trace: RoutingTrace, drawn: dict[str, Any]) -> Any:
    """The comparison with its draws."""
    import replay

    with progress(drawn["draws"] * len(compared.results), "replay") as bar:
        return replay.assess(compared, trace, progress=bar.update, **drawn)


def num_layers(spec: RunSpec, trace: RoutingTrace) -> int:
    """Layers that one scheme replays, over all steps and passes."""
    chosen = [spec.layer] if isinstance(spec.layer, int | str) else spec.layer
    layers = trace.num_layers if spec.layer == "all" else len(chosen)
    number = layers * len(PASSES[spec.direction]) * spec.steps
    return number if spec.sample_layers is None else min(number, spec.sample_layers)


def usual_jobs(num_replays: int) -> int:
    """Processes that share so many replays of a layer: two, of `MANY_REPLAYS` on two processors."""
    return 2 if num_replays >= MANY_REPLAYS and num_processors() > 1 else 1


def _show_tuned(results: Sequence[Result], *, name_all: bool) -> None:
    """Say what was chosen by replay, and if asked for also who had no choice."""
    from replay.experiments.layer.tables.notes import tuned_notes

    for line in tuned_notes(results, name_all=name_all):
        print(line)
