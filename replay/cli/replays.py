"""``moereplay run`` and ``moereplay compare``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.cli.options import (
    DEFAULT_SYSTEM,
    BarrierOption,
    ExportOption,
    JobsOption,
    JsonOption,
    LayerOption,
    MaxEventsOption,
    PassOption,
    PhaseOption,
    PlacementOption,
    PrecisionOption,
    RanksOption,
    SetOption,
    StepOption,
    StepsOption,
    SystemOption,
    TokensOption,
    TraceArgument,
    TraceEventsOption,
    TuneOption,
    WindowOption,
    load_both,
    options_of,
    settings_of,
)
from replay.cli.screen import show
from replay.errors import unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replay.measure.result import Result
    from tracegen import RoutingTrace

MANY_LAYERS = 96
SCHEME_HELP = "A name of `moereplay schemes`, or FILE.py:NAME, which executes the file."


def run(
    trace: TraceArgument,
    scheme: Annotated[str, typer.Option("--scheme", help=SCHEME_HELP)],
    system: SystemOption = DEFAULT_SYSTEM,
    ranks: RanksOption = None,
    tokens_per_rank: TokensOption = None,
    layer: LayerOption = "all",
    phase: PhaseOption = None,
    step: StepOption = 0,
    steps: StepsOption = 1,
    pass_: PassOption = "forward",
    barrier: BarrierOption = False,
    placement: PlacementOption = "contiguous",
    precision: PrecisionOption = None,
    tune: TuneOption = False,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="Option of the scheme: K=V, repeatable.")
    ] = None,
    set_: SetOption = None,
    json_: JsonOption = None,
    trace_events: TraceEventsOption = None,
    export: ExportOption = None,
    window: WindowOption = None,
    max_events: MaxEventsOption = None,
) -> None:
    """Replay a trace under one scheme."""
    import replay
    import replay.measure.result as result_file
    from replay.cli.exports import parse_exports
    from replay.report.text import summary_tables
    from replay.schemes import find

    is_one_graph = not barrier or (layer != "all" and steps == 1 and pass_ != "training")
    exports = parse_exports(
        trace_events, export or [], window, max_events, is_one_graph=is_one_graph
    )
    if json_ is not None:
        result_file.check_target(json_)
    settings = settings_of(
        ranks, tokens_per_rank, layer, phase, step, steps, pass_, barrier, placement, precision,
        tune,
    )  # fmt: skip
    options = {}
    own = find(scheme).name
    for name, key, value in options_of(option, [own]):
        if name != own:
            raise unknown("scheme with options", name, [own])
        options[key] = value
    loaded, machine = load_both(trace, system, set_)
    with _Progress(1, loaded, settings) as advance:
        result = replay.run(
            loaded,
            machine,
            scheme,
            options=options,
            compare_barrier=True,
            progress=advance,
            observe=exports,
            **settings,
        )
    for line in exports.report if exports else []:
        print(line, file=sys.stderr)
    if json_ is not None:
        result.save(json_)
    show(summary_tables(result))
    if tune:
        _show_tuned([result])


def compare(
    trace: TraceArgument,
    scheme: Annotated[
        list[str] | None,
        typer.Option("--scheme", help=f"{SCHEME_HELP} Repeatable [all supported]."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="Speed-ups are over this scheme [deepep].")
    ] = None,
    system: SystemOption = DEFAULT_SYSTEM,
    ranks: RanksOption = None,
    tokens_per_rank: TokensOption = None,
    layer: LayerOption = "all",
    phase: PhaseOption = None,
    step: StepOption = 0,
    steps: StepsOption = 1,
    pass_: PassOption = "forward",
    barrier: BarrierOption = False,
    placement: PlacementOption = "contiguous",
    precision: PrecisionOption = None,
    tune: TuneOption = False,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="Option of one scheme: SCHEME.K=V, repeatable."),
    ] = None,
    set_: SetOption = None,
    jobs: JobsOption = None,
    json_: JsonOption = None,
) -> None:
    """Replay a trace under several schemes and compare them."""
    import replay
    import replay.measure.result as result_file
    from replay.report.text import comparison_tables
    from replay.schemes import find, supported

    if json_ is not None:
        result_file.check_target(json_)
    settings = settings_of(
        ranks, tokens_per_rank, layer, phase, step, steps, pass_, barrier, placement, precision,
        tune,
    )  # fmt: skip
    loaded, machine = load_both(trace, system, set_)
    schemes = scheme or supported(machine)
    options: dict[str, dict[str, str]] = {}
    for name, key, value in options_of(option, [find(one).name for one in schemes]):
        options.setdefault(name, {})[key] = value
    with _Progress(len(schemes), loaded, settings) as advance:
        compared = replay.compare(
            loaded,
            machine,
            schemes,
            baseline=baseline,
            options=options,
            jobs=jobs if jobs is not None else _worth_two(settings, loaded),
            progress=advance,
            **settings,
        )
    if json_ is not None:
        compared.save(json_)
    show(comparison_tables(compared))
    if tune:
        _show_tuned(compared.results)


def _num_layers(settings: dict[str, Any], trace: RoutingTrace) -> int:
    """Layers that one scheme replays, over all steps and passes."""
    layers = trace.num_layers if settings["layer"] == "all" else 1
    passes = 2 if settings["direction"] == "training" else 1
    return int(layers * passes * settings["steps"])


def _worth_two(settings: dict[str, Any], trace: RoutingTrace) -> int:
    """Two processes where starting them takes less time than they save."""
    return 2 if _num_layers(settings, trace) >= MANY_LAYERS else 1


class _Progress:
    """A bar over layers and schemes, if someone is watching and it takes longer than a second."""

    def __init__(self, num_schemes: int, trace: RoutingTrace, settings: dict[str, Any]) -> None:
        from tqdm import tqdm

        self._bar = tqdm(
            total=num_schemes * _num_layers(settings, trace),
            unit="layer",
            delay=1,
            leave=False,
            disable=not sys.stderr.isatty(),
        )

    def __enter__(self) -> Callable[[], object]:
        return lambda: self._bar.update()

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def _show_tuned(results: Sequence[Result]) -> None:
    """What `--tune` chose."""
    for result in results:
        name, tried = result.scheme["name"], result.scheme.get("tuned")
        if tried:
            chosen = ", ".join(
                f"{option}={result.scheme['options'][option]}" for option in tried[0]["options"]
            )
            print(f"{name}: chose {chosen} out of {len(tried)} tried.")
        else:
            print(f"{name}: has nothing to choose.")
