"""``moereplay explain``: the difference between two schemes, by phase and cause."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.cli.options import ExplainWordsOption, JsonOption, options_of, settings_of, takes_settings
from replay.cli.screen import progress, show, tell
from replay.experiments.layer.spec import RunSpec
from tracegen.cli.delivery import Delivery, delivers

if TYPE_CHECKING:
    from replay.experiments.layer.result import Result


DETAILS = "All tables: fixed times, values, code, GPUs, phases, what else is measured."


@takes_settings(leave_out=("trace", "scheme", "options"))
@delivers
def explain(
    given: Mapping[str, Any],
    one: Annotated[
        str,
        typer.Argument(
            help="A scheme, the JSON file of a result, or the name of a row as a comparison prints it.",
            show_default=False,
        ),
    ],
    other: Annotated[str, typer.Argument(help="Scheme, file or row to set beside it.", show_default=False)],
    trace: Annotated[
        str | None,
        typer.Argument(
            help="With two schemes: a trace to replay them on. With two schemes or rows: the JSON file of a "
            "comparison, or of `collective`, that has both.",
            show_default=False,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="Option of one scheme: SCHEME.K=V, repeatable."),
    ] = None,
    json_: JsonOption = None,
    explain_words: ExplainWordsOption = False,
    *,
    details: Annotated[bool, typer.Option("--details", help=DETAILS)] = False,
    deliver: Delivery,
) -> None:
    """Split the difference between two schemes by phase and cause.

    The parts add up to the difference.
    """
    from replay.report.command import command, repeat_option
    from replay.report.words import words_in_full
    from replay.studies.differences.explanation import explain as explained
    from replay.studies.differences.explanation_page import explanation_tables, page

    settings = settings_of(given)
    found = explained(*_results(one, other, trace, settings, option or []))
    if json_ is not None:
        found.save(json_)
    words = ["moereplay", "explain", one, other, *([] if trace is None else [trace])]
    more = repeat_option("--option", option or [])
    deliver(lambda: page(found, command(words, RunSpec(**settings), more=more)))
    with words_in_full(explain_words):
        show(explanation_tables(found, details=details))


def _results(
    one: str, other: str, trace: str | None, settings: dict[str, Any], option: list[str]
) -> tuple[Result | str, Result | str]:
    """The two results: files, or out of a file of a comparison, or replayed."""
    from replay.errors import UserError
    from replay.studies.differences.explanation import results_of_file

    # A row may end with the name of a placement's file: "deepep-ll, map.json".
    are_files = [_is_file(name) and ", " not in name for name in (one, other)]
    if trace is not None and not any(are_files) and not _is_file(trace):
        return _replay(one, other, trace, settings, option)
    if settings or option:
        message = "results of files are finished replays: further options need two schemes and a trace"
        raise UserError(message)
    if all(are_files) and trace is None:
        return one, other
    if any(are_files):
        message = f"{one} {other}: give two files, or two schemes and a trace or a comparison"
        raise UserError(message)
    if trace is None:
        message = f"which trace? Such as `moereplay explain {one} {other} gpt-oss-20b-decode --layer 12`"
        raise UserError(message)
    return results_of_file(trace, one, other)


def _is_file(name: str) -> bool:
    return Path(name).suffix == ".json"


def _replay(one: str, other: str, trace: str, settings: dict[str, Any], option: list[str]) -> tuple[Result, Result]:
    import replay
    from replay.cli.replays import num_layers
    from replay.errors import UserError
    from replay.experiments.base.names import LACKING
    from replay.experiments.layer.setup import load_trace
    from replay.schemes import find
    from replay.studies.differences.explanation import pick

    for row in (one, other):
        if ", " in row:
            message = f"{row!r} is a row: in the place of {trace}, give the JSON of its `compare`"
            raise UserError(message)
    one, other = one.removesuffix(LACKING), other.removesuffix(LACKING)
    names = [find(name, allow_code=True).name for name in (one, other)]
    options = options_of(option, names)
    loaded, spec = load_trace(None, RunSpec(**settings, trace=trace))
    with progress(2 * num_layers(spec, loaded), "layer") as bar:
        compared = replay.compare(loaded, [one, other], spec, options=options, progress=bar.update, report=tell)
    return pick(compared, names[0]), pick(compared, names[1])
