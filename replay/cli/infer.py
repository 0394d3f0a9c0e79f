"""``moereplay infer``: whole models that serve requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.cli.options import JsonOption, entries_of, options_of, takes_settings
from replay.cli.screen import progress, show
from replay.inference.spec import InferSpec

if TYPE_CHECKING:
    from replay.inference.result import InferComparison

LEFT_OUT = ("scheme", "options", "prefill_scheme", "prefill_options")


@takes_settings(spec=InferSpec, leave_out=LEFT_OUT)
def infer(
    given: Mapping[str, Any],
    scheme: Annotated[
        list[str] | None,
        typer.Option(
            "--scheme",
            help="A name of `moereplay schemes`, or PREFILL+DECODE, repeatable "
            "[deepep+deepep-ll, which is what deepep-ll stands for].",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline", help="Speed-ups are over these schemes [deepep-ll, or the first]."
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="Option of one scheme: SCHEME.K=V, repeatable."),
    ] = None,
    json_: JsonOption = None,
) -> None:
    """Serve a batch of requests with a whole model: first tokens, time per token, tokens/s."""
    from replay.inference.replays import compare
    from replay.report.infer import tables

    settings = dict(given)
    if "overrides" in settings:
        settings["overrides"] = entries_of(settings["overrides"])
    names = list(scheme or (InferSpec().scheme,))
    with progress(len(names), "scheme") as bar:
        compared: InferComparison = compare(
            InferSpec(**settings), names, baseline=baseline, options=_options(option or (), names),
            progress=bar.update,
        )  # fmt: skip
    if json_ is not None:
        compared.save(json_)
    show(tables(compared))


def _options(given: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Options by scheme; `compare` refuses those of schemes that do not run."""
    schemes = list(dict.fromkeys(one for name in names for one in name.split("+")))
    options: dict[str, dict[str, str]] = {}
    for name, key, value in options_of(given, schemes):
        options.setdefault(name, {})[key] = value
    return options
