"""Commands that ask for one result of an experiment, made from the experiment."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from replay.cli.experiments import SPEC_HELP, ComparisonCall, compares
from replay.cli.options import JsonOption, settings_of, takes_settings
from replay.cli.screen import progress, show, tell
from replay.experiments.base.experiment import EXPERIMENTS, AnyExperiment
from replay.experiments.base.schemed import SchemeExperiment
from tracegen.cli.delivery import Delivery, delivers


@dataclass(frozen=True)
class ResultCall:
    """A command line that asks for one result of an experiment.

    Attributes
    ----------
    experiment
        Whose it is.
    given
        Settings by name of the field, as texts and numbers.
    before
        Result, or TOML, whose settings are taken where none are given; None for the defaults.
    json
        Where the result is written; None for nowhere.
    deliver
        Where else it is shown.
    """

    experiment: AnyExperiment
    given: Mapping[str, Any]
    before: Path | None
    json: Path | None
    deliver: Delivery

    def setup(self) -> Any:
        """Follow the references of what is asked for.

        Raises
        ------
        UserError
            If something does not exist or does not fit together.
        """
        from replay.files import read_text

        kind, settings = self.experiment.spec, settings_of(self.given)
        if self.before is None:
            spec = kind(**settings)
        elif self.before.suffix == ".toml":
            spec = kind.from_toml(read_text(self.before), str(self.before)).changed(**settings)
        else:
            spec = self.experiment.load_one(self.before).spec.changed(**settings)
        return self.experiment.setup(spec)

    def carry_out(self, setup: Any) -> Any:
        """Carry out what was set up, save it and deliver it."""
        from replay.report.pages import page

        with progress(self.experiment.steps(setup), "row") as bar:
            result = self.experiment.carry_out(setup, progress=bar.update, report=tell)
        if self.json is not None:
            result.save(self.json)
        self.deliver(lambda: page(result))
        return result


def asks(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the settings of an experiment, ``--spec``, and where its result goes.

    The command's first parameter receives the `ResultCall`; its others are options of its own.

    Parameters
    ----------
    name
        Of the experiment.
    """
    experiment = EXPERIMENTS[name]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

        def filled(given: Mapping[str, Any], **values: Any) -> None:
            call = ResultCall(
                experiment, given, values.pop("spec"), values.pop("json_"), values.pop("deliver")
            )
            command(call, **values)

        taken = [
            inspect.Parameter("given", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own),
            _keyword("spec", Annotated[Path | None, typer.Option("--spec", help=SPEC_HELP)]),
            _keyword("json_", JsonOption),
            inspect.Parameter("deliver", inspect.Parameter.KEYWORD_ONLY, annotation=Delivery),
        ]
        filled.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]  # read by the next
        filled.__name__, filled.__doc__ = command.__name__, command.__doc__
        return takes_settings(spec=experiment.spec)(delivers(filled))

    return decorate


def command_of(name: str) -> Callable[..., None]:
    """Make the command of an experiment that has none of its own.

    Parameters
    ----------
    name
        Of the experiment.
    """
    experiment = EXPERIMENTS[name]

    if isinstance(experiment, SchemeExperiment):

        def command(call: ComparisonCall) -> None:
            call.carry_out()

        made = compares(name)
    else:

        def command(call: ResultCall) -> None:  # type: ignore[misc]  # the one or the other
            show(experiment.shown(call.carry_out(call.setup()), details=True))

        made = asks(name)
    command.__doc__ = f"Find out: {experiment.title}."
    return made(command)


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )
