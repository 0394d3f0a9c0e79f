"""``moereplay run`` and ``moereplay compare``."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.chains.settings import PASSES
from replay.cli.experiments import ComparisonCall, compares
from replay.cli.exports import (
    ExportOption,
    MaxEventsOption,
    TraceEventsOption,
    WindowOption,
    check_token,
    parse_exports,
)
from replay.cli.results import ResultCall, asks
from replay.cli.screen import progress, show
from replay.experiments.layer.spec import RunSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.experiments.layer.result import Result
    from tracegen import RoutingTrace

MANY_LAYERS = 96
PLACEMENT_HELP = str(RunSpec.model_fields["placement"].description)


@asks("layer", defaults={"compare_barrier": True})
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
) -> None:
    """Replay a trace under one scheme."""
    from replay.experiments.layer.tables import tables

    one_graph = call.spec.makes_one_graph
    exports = parse_exports(
        trace_events, export or [], window, max_events, is_one_graph=one_graph, token=trace_token
    )
    setup = call.setup()
    if trace_token is not None:
        check_token(trace_token, setup.first.source_rank.size)
    if call.is_dry(setup):
        return
    result = call.carry_out(setup, observe=exports, unit="layer")
    show(tables(result, details=True))
    _show_tuned([result], name_all=bool(call.spec.tune))
    call.tell_difference(result)


@compares("layer", leave_out=["placement"])
def compare(
    call: ComparisonCall,
    placement: Annotated[
        list[str] | None,
        typer.Option(
            "--placement", help=f"{PLACEMENT_HELP} Repeatable: a row for each [contiguous]."
        ),
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
            help="What is drawn, of hardware, model and routing [hardware,model,routing].",
        ),
    ] = None,
    uncertainty_seed: Annotated[
        int | None, typer.Option("--uncertainty-seed", help="What the draws come from [0].")
    ] = None,
) -> None:
    """Replay a trace under several schemes and compare them, the fastest first."""
    from replay.experiments.ask import compare as compared
    from replay.experiments.layer.setup import load_trace

    drawn = _drawn(uncertainty, uncertainty_of, uncertainty_seed)
    wanted = call.wanted()
    asked: Any = wanted.spec
    trace, spec = load_trace(None, asked)
    if placement is None and call.before is not None:
        specs: Sequence[Any] = call.before.specs
        placement = list(dict.fromkeys(one.placement for one in specs))
    found = call.carry_out(
        dataclasses.replace(wanted, spec=spec),
        compare=partial(compared, trace, placements=placement or None),
        then=lambda one: one if drawn is None else _assessed(one, trace, drawn),
        objects={"trace": trace},
        steps=len(set(placement or [""])) * num_layers(spec, trace),
        unit="layer",
        jobs=_worth_two(spec, trace),
    )
    if found is not None:
        _show_tuned(found.results, name_all=bool(spec.tune))


def _drawn(draws: int | None, of: str | None, seed: int | None) -> dict[str, Any] | None:
    """What `replay.assess` is asked for; None where it is not asked.

    Raises
    ------
    UserError
        If a draw is described and none is asked for.
    """
    from replay.errors import UserError
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


def _assessed(compared: Any, trace: RoutingTrace, drawn: dict[str, Any]) -> Any:
    """The comparison with its draws."""
    import replay

    with progress(drawn["draws"] * len(compared.results), "replay") as bar:
        return replay.assess(compared, trace, progress=bar.update, **drawn)


def num_layers(spec: RunSpec, trace: RoutingTrace) -> int:
    """Layers that one scheme replays, over all steps and passes."""
    if spec.layer == "all":
        layers = trace.num_layers
    else:
        layers = 1 if isinstance(spec.layer, int) else len(spec.layer)
    number = layers * len(PASSES[spec.direction]) * spec.steps
    return number if spec.sample_layers is None else min(number, spec.sample_layers)


def _worth_two(spec: RunSpec, trace: RoutingTrace) -> int:
    """Two processes where starting them takes less time than they save."""
    return 2 if num_layers(spec, trace) >= MANY_LAYERS else 1


def _show_tuned(results: Sequence[Result], *, name_all: bool) -> None:
    """Say what was chosen by replay, and if asked for also who had no choice."""
    for result in results:
        scheme = result.scheme
        if scheme.tuned:
            chosen = ", ".join(
                f"{option}={scheme.options[option]}" for option in scheme.tuned[0].options
            )
            print(f"{scheme.name}: chose {chosen} out of {len(scheme.tuned)} tried.")
        elif name_all:
            print(f"{scheme.name}: has nothing to choose.")
