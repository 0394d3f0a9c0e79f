"""``moereplay infer``: whole models that serve requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.cli.options import JsonOption, entries_of, options_of, takes_settings
from replay.cli.screen import progress, show
from replay.errors import UserError
from replay.experiments.serve.arrival_spec import ArrivalSpec
from replay.experiments.serve.spec import InferSpec
from tracegen.cli.delivery import Delivery, delivers

if TYPE_CHECKING:
    from replay.experiments.serve.arrivals import ArrivedComparison
    from replay.experiments.serve.result import InferComparison

LEFT_OUT = ("scheme", "options", "prefill_scheme", "prefill_options")


class _Flags(ArrivalSpec, InferSpec):  # the fields of the latter come first
    """Fields that are options of the command."""


@takes_settings(spec=_Flags, leave_out=LEFT_OUT, defaults={"arrivals": "all there from the start"})
@delivers
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
    *,
    deliver: Delivery,
) -> None:
    """Serve a batch of requests with a whole model: first tokens, time per token, tokens/s.

    With --arrivals, requests come one by one, and iterations are made of what is there.
    """
    from replay.experiments.serve.experiment import compare
    from replay.report.infer import tables
    from replay.report.pages import page

    settings = {key: value for key, value in given.items() if key in InferSpec.model_fields}
    arriving = {key: value for key, value in given.items() if key not in settings}
    if "overrides" in settings:
        settings["overrides"] = entries_of(settings["overrides"])
    names = list(scheme or (InferSpec().scheme,))
    if arriving:
        if "arrivals" not in arriving or baseline is not None:
            one = "--baseline" if "arrivals" in arriving else _flag(next(iter(arriving)))
            given_with = "without" if "arrivals" in arriving else "with"
            message = f"{one} can only be given {given_with} --arrivals"
            raise UserError(message)
        spec, asked = InferSpec(**settings), ArrivalSpec(**arriving)
        arrived = _arrive(spec, asked, names, option or (), json_)
        deliver(lambda: page(arrived))
        return
    with progress(len(names), "scheme") as bar:
        compared: InferComparison = compare(
            InferSpec(**settings), names, baseline=baseline, options=_options(option or (), names),
            progress=bar.update,
        )  # fmt: skip
    if json_ is not None:
        compared.save(json_)
    deliver(lambda: page(compared))
    show(tables(compared))


def _arrive(
    spec: InferSpec,
    asked: ArrivalSpec,
    names: Sequence[str],
    option: Sequence[str],
    json_: JsonOption,
) -> ArrivedComparison:
    from replay.experiments.serve.arrivals import compare
    from replay.report.arrivals import tables

    with progress(len(names), "scheme") as bar:
        compared = compare(spec, asked, names, options=_options(option, names), progress=bar.update)
    if json_ is not None:
        compared.save(json_)
    show(tables(compared))
    return compared


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _options(given: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Options by scheme; `compare` refuses those of schemes that do not run."""
    schemes = list(dict.fromkeys(one for name in names for one in name.split("+")))
    options: dict[str, dict[str, str]] = {}
    for name, key, value in options_of(given, schemes):
        options.setdefault(name, {})[key] = value
    return options
