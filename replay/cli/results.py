"""Commands made from their experiment: options of all, and commands for one result."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args

import typer

from replay.cli.options import (
    AllowCodeOption,
    DryRunOption,
    ExplainWordsOption,
    JsonOption,
    MaxMemoryOption,
    settings_of,
    takes_settings,
)
from replay.cli.screen import progress, tell
from replay.experiments.base.experiment import EXPERIMENTS, Experiment, SpecInputs
from replay.experiments.base.host_memory import parse_size
from replay.experiments.base.result import allowed_by
from replay.report.words import words_in_full
from tracegen.cli.delivery import Delivery, delivers, with_parameters

if TYPE_CHECKING:
    from replay.experiments.base.experiment import AnyExperiment, Observer
    from replay.experiments.base.spec import Spec
    from replay.schemes.outside import AllowCode

ENTERING = ("trace", "system", "scheme", "batch", "placement", "precision")
"""Parts of a result that say what entered."""

SpecOption = Annotated[
    Path | None,
    typer.Option(
        "--spec",
        help="File to run again: JSON of an earlier result of this command, or a TOML file of settings. "
        "Options of the command line override it.",
    ),
]
COMMON: Mapping[str, tuple[Any, Any]] = {
    "spec": (SpecOption, None),
    "max_memory": (MaxMemoryOption, None),
    "dry_run": (DryRunOption, False),
    "allow_code": (AllowCodeOption, False),
    "json_": (JsonOption, None),
    "explain_words": (ExplainWordsOption, False),
}
"""Options that commands share, with their defaults, beside the settings and those of `Delivery`."""


def hide(option: Any) -> Any:
    """Make an option that help does not list; whoever gives it reads why the command has none."""
    kind, info = get_args(option)
    found = copy.copy(info)
    found.hidden = True
    return Annotated[kind, found]


class Before(NamedTuple):
    """A file that is run again.

    Attributes
    ----------
    specs
        Its settings: of each result, or of a TOML file.
    results
        None where it is TOML.
    baseline
        Of a comparison.
    """

    specs: Sequence[Spec]
    results: Sequence[Any] = ()
    baseline: str | None = None


@dataclass(frozen=True)
class ExperimentCommand:
    """A command line that asks an experiment.

    Attributes
    ----------
    experiment
        The experiment that it asks.
    given
        Settings by name of the field, as texts and numbers.
    words
        Values of the options that `command_with` takes as `common`, by name.
    deliver
        Where else the result is shown.
    defaults
        Settings that the command takes in place of the spec's defaults.
    """

    experiment: AnyExperiment
    given: Mapping[str, Any]
    words: Mapping[str, Any]
    deliver: Delivery
    defaults: Mapping[str, Any]

    @cached_property
    def before(self) -> Before | None:
        """Result that is run again; None if there is none.

        Raises
        ------
        UserError
            If the file cannot be read, or is of another experiment.
        """
        from replay.files import read_input

        path = self.words["spec"]
        if path is None:
            return None
        if path.suffix != ".toml":
            loaded = self.experiment.load_result(path)
            results = getattr(loaded, "results", None) or [loaded]
            baseline = getattr(loaded, "baseline", None)
            return Before([one.spec for one in results], results, baseline)
        text = read_input(path, "the spec")
        return Before([self.experiment.spec.from_toml(text, str(path))])

    def runs_again(self, made: str, settings: Callable[[Mapping[str, Any]], bool]) -> bool:
        """Tell whether the file of ``--spec`` is of a certain experiment, of those of one command.

        Parameters
        ----------
        made
            Begin of the formats of its results.
        settings
            Tells whether settings of a TOML file are its own.
        """
        from replay.experiments.base.documents import format_of, read_document
        from replay.files import parse_toml, read_text

        path = self.words["spec"]
        if path is None:
            return False
        if path.suffix != ".toml":
            return format_of(read_document(path)[1]).startswith(made)
        try:
            return settings(parse_toml(read_text(path)))
        except (OSError, ValueError):
            return False  # which reading the spec says

    @property
    def max_memory(self) -> int | None:
        """Bytes that may be taken; None for what the machine has left."""
        given = self.words.get("max_memory")
        return None if given is None else parse_size(given)

    def finish(self, result: Any) -> None:
        """Save a result and deliver it."""
        from replay.report.pages import page

        if self.words["json_"] is not None:
            result.save(self.words["json_"])
        self.deliver(lambda: page(result))


class ResultCall(ExperimentCommand):
    """A command line that asks for one result."""

    @cached_property
    def spec(self) -> Any:
        """The settings.

        Raises
        ------
        UserError
            If one does not exist or a value is not possible.
        """
        if self.before is None:
            usual = self.experiment.spec(**self.defaults)
            scheme = getattr(usual, "scheme", None)
            return usual.changed(**settings_of(self.given, scheme=scheme))
        if len(self.before.results) > 1:
            self.experiment.load_one(self.words["spec"])  # refuses it
        return beside(self.before.specs[0], settings_of(self.given))

    def setup(self, *, allow_code: bool = False) -> Any:
        """Follow the references of what is asked for.

        Parameters
        ----------
        allow_code
            Whether files of schemes may be executed, where no option of all says so.

        Raises
        ------
        UserError
            If something does not exist or does not fit together.
        """
        allowed: AllowCode = self.words.get("allow_code", allow_code)
        if self.before is None or "scheme" in self.given:
            allowed = allowed or "scheme" in self.given  # the command line names it
        elif "allow_code" in self.words:
            allowed = allowed_by(self.before.results, allow_code=allowed)
        return self.experiment.setup(self.spec, SpecInputs(allow_code=allowed))

    def is_dry(self, setup: Any) -> bool:
        """Tell whether nothing is replayed; says what it would take then."""
        if self.words.get("dry_run", False):
            print(self.experiment.estimate(setup).text())
            return True
        return False

    def carry_out(self, setup: Any, *, observe: Observer | None = None, unit: str = "row", **more: Any) -> Any:
        """Carry out what was set up, save it and deliver it.

        Parameters
        ----------
        observe
            As of `replay.experiments.base.experiment.ReplayWatcher`.
        unit
            What progress counts.
        more
            Further parameters of `Experiment.carry_out`.
        """
        with progress(self.experiment.steps(setup), unit) as bar:
            if "folder" in more:
                more["found"] = bar.resume
            result = self.experiment.carry_out(
                setup,
                progress=bar.update,
                observe=observe,
                max_memory=self.max_memory,
                report=tell,
                **more,
            )
        for line in getattr(observe, "report", ()):
            print(line, file=sys.stderr)
        self.finish(result)
        return result

    def tell_difference(self, result: Any) -> None:
        """Say what differs if the file that was run again holds another result."""
        if self.before is None or not self.before.results or self.given.keys() - {"trace"}:
            return
        (before,) = self.before.results
        known, now = (getattr(one, "content_id", None) for one in (before.spec, self.spec))
        if known == now and result.run_id != before.run_id:  # else another trace is asked for
            tell(f"note: {self.words['spec']} was made from {_what_differs(before, result)}")


def _what_differs(before: Any, after: Any) -> str:
    """The parts in which two runs of one spec differ."""
    parts = [part for part in ENTERING if getattr(before, part, None) != getattr(after, part, None)]
    if not parts:
        return "the same values by other code; this is what the present code gives"
    return f"another {', another '.join(parts)} than its references lead to now"


def beside(spec: Any, settings: Mapping[str, Any]) -> Any:
    """Put settings in place of those of a spec; entries of a table join those that it has."""
    made = dict(settings)
    of_scheme = {table: made.get(name) for name, table in spec.OPTIONS_OF.items()}
    for name, value in settings.items():
        known = getattr(spec, name)
        is_same = of_scheme.get(name) in (None, getattr(spec, "scheme", None))
        if isinstance(value, Mapping) and is_same:
            made[name] = {**known, **value}
    is_other = settings.get("trace") not in (None, getattr(spec, "trace", None))
    if is_other and "content_id" in spec.words():  # which was of the trace before
        made.setdefault("content_id", None)
    return spec.changed(**made)


def asks(
    name: str, *, defaults: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the settings of an experiment, ``--spec``, and where its result goes.

    The command's first parameter receives the `ResultCall`; its others are options of its own.

    Parameters
    ----------
    name
        Of the experiment.
    defaults
        Values that the command takes in place of the spec's defaults.
    """
    experiment = EXPERIMENTS[name]
    left_out = set() if "scheme" in experiment.spec.model_fields else {"allow_code"}
    if type(experiment).estimate is Experiment.estimate:
        left_out |= {"dry_run", "max_memory"}
    common = {key: option for key, option in COMMON.items() if key not in left_out}
    return command_with(experiment, ResultCall, common, defaults=defaults or {})


def command_with(
    experiment: AnyExperiment,
    kind: type[ExperimentCommand],
    common: Mapping[str, tuple[Any, Any]],
    *,
    leave_out: Sequence[str] = (),
    defaults: Mapping[str, Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the settings of an experiment and further options, and hand it one call.

    Parameters
    ----------
    kind
        Of the call.
    common
        Annotations and defaults of the options that go into its words; a command that has one of
        its own by the same name receives it itself.
    leave_out
        Settings without an option.
    defaults
        As of `asks`.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        taken = {one.name for one in own}
        words = {key: option for key, option in common.items() if key not in taken}

        @functools.wraps(command)
        def wrapper(given: Mapping[str, Any], **values: Any) -> None:
            deliver = values.pop("deliver")
            found = {key: values.pop(key) for key in words}
            with words_in_full(found["explain_words"]):
                command(kind(experiment, given, found, deliver, defaults), **values)

        only = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("given", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *(one.replace(kind=only) for one in own),
            *(
                inspect.Parameter(key, only, default=default, annotation=annotation)
                for key, (annotation, default) in words.items()
            ),
            inspect.Parameter("deliver", only, annotation=Delivery),
        ]
        makes = takes_settings(spec=experiment.spec, leave_out=leave_out, defaults=defaults)
        return makes(delivers(with_parameters(wrapper, parameters)))

    return decorate
