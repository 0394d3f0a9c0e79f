"""``moereplay run`` and ``moereplay compare``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.chains.settings import PASSES
from replay.cli.exports import claim_exports
from replay.cli.options import (
    AllowCodeOption,
    DryRunOption,
    JsonOption,
    MaxMemoryOption,
    options_of,
    settings_of,
    takes_settings,
)
from replay.cli.screen import progress, show, tell
from replay.experiments.layer.spec import RunSpec
from replay.files import read_text
from tracegen.cli.delivery import Delivery, delivers
from tracegen.cli.outputs import file_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.experiments.layer.result import Result
    from replay.schemes.outside import AllowCode
    from tracegen import RoutingTrace
    from tracegen.shared.display.content import Table

MANY_LAYERS = 96
SCHEME_HELP = str(RunSpec.model_fields["scheme"].description)
PLACEMENT_HELP = str(RunSpec.model_fields["placement"].description)
WHAT_IT_TAKES = ("tasks", "memory", "time")
ENTERING = ("trace", "system", "scheme", "batch", "placement", "precision")
"""Parts of a result that say what entered."""


@takes_settings(defaults={"compare_barrier": True})
@delivers
def run(
    given: Mapping[str, Any],
    spec: Annotated[
        Path | None,
        typer.Option(
            "--spec",
            help="Run again what this file says, the JSON of a result or a TOML file of settings; "
            "options that are given beside it override it.",
        ),
    ] = None,
    json_: JsonOption = None,
    trace_events: Annotated[
        Path | None,
        file_option(
            "--trace-events", help="Write the schedule for Perfetto to this file (.gz too)."
        ),
    ] = None,
    export: Annotated[
        list[str] | None,
        typer.Option(
            "--export",
            help="FORMAT:FILE, repeatable; formats are chrome, chakra, goal, networkx.",
            callback=claim_exports,
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option("--window", help="START:END in us that chrome and networkx show."),
    ] = None,
    max_events: Annotated[
        int | None,
        typer.Option("--max-events", help="Above so many tasks, chrome gets none [1000000]."),
    ] = None,
    trace_token: Annotated[
        int | None,
        typer.Option(
            "--trace-token",
            help="The token whose way --trace-events draws, by its place in the batch [the slowest "
            "one, which the result names].",
        ),
    ] = None,
    max_memory: MaxMemoryOption = None,
    allow_code: AllowCodeOption = False,
    dry_run: DryRunOption = False,
    *,
    deliver: Delivery,
) -> None:
    """Replay a trace under one scheme."""
    import replay
    from replay.cli.exports import check_token, parse_exports
    from replay.experiments.base.host_memory import parse_size
    from replay.experiments.layer.experiment import EXPERIMENT
    from replay.experiments.layer.setup import TracedSetup, allowed_by, load_trace, set_up
    from replay.report.pages import page
    from replay.report.text import summary_tables

    made, before = _spec_of_run(spec, given)
    is_again = (
        before is not None
        and not given.keys() - {"trace"}
        and made.content_id == before.spec.content_id  # None where another trace is asked for
    )
    exports = parse_exports(
        trace_events,
        export or [],
        window,
        max_events,
        is_one_graph=made.makes_one_graph,
        token=trace_token,
    )
    limit = None if max_memory is None else parse_size(max_memory)
    allowed: AllowCode
    if before is None or "scheme" in given:
        allowed = allow_code or "scheme" in given
    else:
        allowed = allowed_by(before, allow_code=allow_code)
    # Refuses what does not exist before the trace is read. A file is executed here and not again.
    setup = set_up(made, {}, allow_code=allowed)
    loaded, made = load_trace(None, made)
    if trace_token is not None:
        batch = setup.chain_settings.batch(loaded, setup.system, made.step)
        check_token(trace_token, batch.source_rank.size)
    if dry_run:
        print(EXPERIMENT.estimate(TracedSetup.on(setup, loaded)).text())
        return
    with progress(num_layers(made, loaded), "layer") as bar:
        result = replay.run(
            loaded,
            made,
            progress=bar.update,
            observe=exports,
            max_memory=limit,
            report=tell,
        )
    for line in exports.report if exports else []:
        print(line, file=sys.stderr)
    if json_ is not None:
        result.save(json_)
    deliver(lambda: page(result))
    show(summary_tables(result))
    _show_tuned([result], name_all=bool(made.tune))
    if before is not None and is_again and result.run_id != before.run_id:
        print(f"note: {spec} was made from {_what_differs(before, result)}", file=sys.stderr)


def _spec_of_run(path: Path | None, given: Mapping[str, Any]) -> tuple[RunSpec, Result | None]:
    """The spec of a run, and the result that it comes from, if it is one."""
    settings = settings_of(given)
    if path is None:
        return RunSpec(compare_barrier=True).changed(**settings), None
    base, before = _read_spec(path)
    if settings.get("scheme", base.scheme) == base.scheme and "options" in settings:
        settings["options"] = {**base.options, **settings["options"]}
    if "overrides" in settings:
        settings["overrides"] = {**base.overrides, **settings["overrides"]}
    if base.trace is not None and settings.get("trace", base.trace) != base.trace:
        settings.setdefault("content_id", None)  # another trace is asked for
    return base.changed(**settings), before


def _read_spec(path: Path) -> tuple[RunSpec, Result | None]:
    """The spec in a file, and the result that it is part of, if it is."""
    from replay.errors import UserError
    from replay.experiments.layer.experiment import EXPERIMENT

    if path.suffix != ".toml":
        result: Result = EXPERIMENT.load_one(path)
        return result.spec, result
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        message = f"cannot read the spec {path}: {reason}"
        raise UserError(message) from None
    return RunSpec.from_toml(text, str(path)), None


def _what_differs(before: Result, after: Result) -> str:
    """The parts in which two runs of one spec differ."""
    parts = [part for part in ENTERING if getattr(before, part) != getattr(after, part)]
    if not parts:
        return "the same values by other code; this is what the present code gives"
    return f"another {', another '.join(parts)} than its references lead to now"


@takes_settings(leave_out=("scheme", "options", "placement"))
@delivers
def compare(
    given: Mapping[str, Any],
    scheme: Annotated[
        list[str] | None,
        typer.Option("--scheme", help=f"{SCHEME_HELP} Repeatable [all supported]."),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            help="Speed-ups are over this scheme [deepep-ll for decode, deepep otherwise].",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="Option of one scheme: SCHEME.K=V, repeatable."),
    ] = None,
    placement: Annotated[
        list[str] | None,
        typer.Option(
            "--placement", help=f"{PLACEMENT_HELP} Repeatable: a row for each [contiguous]."
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", help="Processes that share the schemes [2 if there is much to do]."),
    ] = None,
    max_memory: MaxMemoryOption = None,
    dry_run: DryRunOption = False,
    details: Annotated[
        bool,
        typer.Option(
            "--details",
            help="Also what each scheme waits for, moves, launches and keeps in memory.",
        ),
    ] = False,
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
    json_: JsonOption = None,
    *,
    deliver: Delivery,
) -> None:
    """Replay a trace under several schemes and compare them, the fastest first."""
    import hwmodel
    import replay
    from replay.experiments.base.host_memory import parse_size
    from replay.experiments.layer.setup import load_trace
    from replay.report.pages import page
    from replay.report.text import comparison_tables, ranking
    from replay.schemes import find, supported

    drawn = _drawn(uncertainty, uncertainty_of, uncertainty_seed)
    spec = RunSpec(**settings_of(given))
    schemes = scheme or supported(hwmodel.load(spec.system, spec.overrides))
    options: dict[str, dict[str, str]] = {}
    for name, key, value in options_of(
        option or [], [find(one, allow_code=True).name for one in schemes]
    ):
        options.setdefault(name, {})[key] = value
    limit = None if max_memory is None else parse_size(max_memory)
    loaded, spec = load_trace(None, spec)
    if dry_run:
        show(_estimates(loaded, spec, schemes, options, scheme is not None))
        return
    replays = len(schemes) * len(set(placement or [""]))
    with progress(replays * num_layers(spec, loaded), "layer") as bar:
        compared = replay.compare(
            loaded,
            scheme or None,
            spec,
            baseline=baseline,
            options=options,
            placements=placement or None,
            jobs=jobs if jobs is not None else _worth_two(spec, loaded),
            progress=bar.update,
            max_memory=limit,
            report=tell,
        )
    if drawn is not None:
        with progress(drawn["draws"] * len(compared.results), "replay") as bar:
            compared = replay.assess(compared, loaded, progress=bar.update, **drawn)
    if json_ is not None:
        compared.save(json_)
    deliver(lambda: page(compared))
    show(comparison_tables(compared) if details else ranking(compared))
    _show_tuned(compared.results, name_all=bool(spec.tune))


def _drawn(draws: int | None, of: str | None, seed: int | None) -> dict[str, Any] | None:
    """What `replay.assess` is asked for; None where it is not asked.

    Raises
    ------
    UserError
        If a draw is described and none is asked for.
    """
    from replay.errors import UserError
    from replay.studies.uncertainty.assess import EVERYTHING, check

    if draws is None:
        if of is not None or seed is not None:
            message = "--uncertainty N is missing: it says how many draws are replayed"
            raise UserError(message)
        return None
    names = EVERYTHING if of is None else [name.strip() for name in of.split(",")]
    check(draws, seed or 0, names)
    return {"draws": draws, "seed": seed or 0, "of": names}


def _estimates(
    trace: RoutingTrace,
    spec: RunSpec,
    schemes: Sequence[str],
    options: Mapping[str, Mapping[str, str]],
    are_named: bool,
) -> Table:
    """What the replay under each scheme takes; those without code for it are left out."""
    from replay.experiments.base.experiment import Given
    from replay.experiments.layer.experiment import EXPERIMENT
    from replay.schemes import find
    from replay.schemes.ep.base import LayerRefusedError
    from tracegen.shared.display.content import Column, Table

    rows = []
    for scheme in schemes:
        own = options.get(find(scheme, allow_code=False).name, {})
        try:
            made = spec.changed(scheme=scheme, options=dict(own))
            found = EXPERIMENT.estimate(EXPERIMENT.setup(made, Given({"trace": trace})))
        except LayerRefusedError:
            if are_named:
                raise
            continue
        rows.append((found.scheme, found.number, *found.cells()))
    columns = [Column("scheme"), Column("layers", form=",d", rank=1)]
    columns += [Column(what, form="s") for what in WHAT_IT_TAKES]
    return Table("estimates", "What each replay takes, about", columns, rows)


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
