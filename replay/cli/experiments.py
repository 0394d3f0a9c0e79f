"""Commands that compare schemes in an experiment, made from the experiment."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.cli.options import (
    AllowCodeOption,
    DryRunOption,
    JsonOption,
    MaxMemoryOption,
    entries_of,
    options_of,
    takes_settings,
)
from replay.cli.screen import progress, show, tell
from replay.errors import UserError
from replay.experiments.base.experiment import EXPERIMENTS, Given, execute
from replay.experiments.base.schemed import AnySchemeExperiment, with_schemes
from tracegen.cli.delivery import Delivery, delivers

if TYPE_CHECKING:
    from replay.experiments.base.spec import Spec
    from replay.schemes.outside import AllowCode

SPEC_HELP = (
    "Run again what this file says, the JSON of a result or of a comparison, or a TOML file of "
    "settings; options that are given beside it override it."
)
COMMON = (
    "scheme", "baseline", "option", "spec", "jobs", "max_memory", "dry_run", "details",
    "allow_code", "json_",
)  # fmt: skip
"""Options of every command that compares, beside the settings and those of `Delivery`."""


@dataclass(frozen=True)
class Wanted:
    """What a comparison was asked for.

    Attributes
    ----------
    spec
        The settings that all schemes have.
    schemes
        References to them; None for all that can do it.
    options
        Options by name, by name of the scheme.
    baseline
        Name of the result that speed-ups are given over; None for the usual one.
    run_ids
        Of the results of the file that this was read from, by name.
    """

    spec: Spec
    schemes: Sequence[str] | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    baseline: str | None = None
    run_ids: Mapping[str, str] = field(default_factory=dict)


def read_again(
    experiment: AnySchemeExperiment, path: Path, *, allow_code: AllowCode = False
) -> Wanted:
    """Read what made a result or a comparison, or settings as TOML.

    Parameters
    ----------
    allow_code
        Whether files of schemes that it names may be executed.

    Raises
    ------
    UserError
        If the file cannot be read, or is of another experiment.
    """
    from replay.files import read_text

    if path.suffix == ".toml":
        try:
            text = read_text(path)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            message = f"cannot read the spec {path}: {reason}"
            raise UserError(message) from None
        spec = experiment.spec.from_toml(text, str(path))
        return _of_specs(experiment, [("", spec)], allow_code)
    loaded = experiment.load_result(path)
    results = getattr(loaded, "results", None) or [loaded]
    wanted = _of_specs(experiment, [(one.name, one.spec) for one in results], allow_code)
    ids = {one.name: one.run_id for one in results}
    return Wanted(
        wanted.spec, wanted.schemes, wanted.options, getattr(loaded, "baseline", None), ids
    )


def _of_specs(
    experiment: AnySchemeExperiment, named: Sequence[tuple[str, Spec]], allow_code: AllowCode
) -> Wanted:
    """Schemes and their options apart from what all have."""
    given = [(name, spec) for name, spec in named if name or "scheme" in spec.settings()]
    schemes = [experiment.reference(spec) for _, spec in given]
    execute(schemes, allow_code=allow_code)
    options: dict[str, Mapping[str, Any]] = {}
    for _, spec in given:
        options |= {name: one for name, one in experiment.options_in(spec).items() if one}
    shared = named[0][1].changed(**{name: {} for name in experiment.spec.OPTIONS_OF.values()})
    return Wanted(shared, schemes or None, options)


@dataclass(frozen=True)
class ComparisonCall:
    """A command line that asks for a comparison.

    Attributes
    ----------
    experiment
        Whose it is.
    given
        Settings by name of the field, as texts and numbers.
    words
        The options of `COMMON` by name.
    deliver
        Where else the result is shown.
    """

    experiment: AnySchemeExperiment
    given: Mapping[str, Any]
    words: Mapping[str, Any]
    deliver: Delivery

    def wanted(self) -> Wanted:
        """Put the file of ``--spec`` and what is given beside it together.

        Raises
        ------
        UserError
            If something does not exist or a value is not possible.
        """
        settings = dict(self.given)
        if "overrides" in settings:
            settings["overrides"] = entries_of(settings["overrides"])
        path = self.words["spec"]
        before = None
        if path is not None:
            before = read_again(self.experiment, path, allow_code=self.words["allow_code"])
        if before is None:
            spec = self.experiment.spec(**settings)
        else:
            spec = before.spec.changed(**settings)
        execute(self.words["scheme"] or (), allow_code=True)
        named = self.words["scheme"]
        if not named and before is not None:
            named = before.schemes
        options = dict({} if before is None else before.options)
        for name, key, value in options_of(self.words["option"] or (), self._names(spec, named)):
            options[name] = {**options.get(name, {}), key: value}
        is_changed = bool(settings or self.words["scheme"] or self.words["option"])
        known_baseline = None if before is None or self.words["scheme"] else before.baseline
        return Wanted(
            spec,
            named,
            options,
            self.words["baseline"] or known_baseline,
            {} if before is None or is_changed else before.run_ids,
        )

    def _names(self, spec: Spec, named: Sequence[str] | None) -> list[str]:
        """Names of schemes that options may be of."""
        experiment = self.experiment
        found: dict[str, None] = {}
        for reference in named or experiment.usual_schemes(spec, {}):
            name, one = experiment.under(spec, reference, {})
            found |= dict.fromkeys(experiment.schemes_in(name, one))
        return list(found)

    def carry_out(self, **more: Any) -> Any:
        """Compare, save, deliver and show; the comparison, or None of a dry run.

        Parameters
        ----------
        more
            Further parameters of `SchemeExperiment.compare`.
        """
        from replay.experiments.base.host_memory import parse_size
        from replay.report.pages import page

        experiment, wanted = self.experiment, self.wanted()
        if self.words["dry_run"]:
            show(estimates_table(experiment, wanted))
            return None
        memory = self.words["max_memory"]
        count = len(wanted.schemes or experiment.usual_schemes(wanted.spec, {}))
        with progress(count, "scheme") as bar:
            compared = experiment.compare(
                wanted.spec,
                wanted.schemes,
                baseline=wanted.baseline,
                options=wanted.options,
                jobs=self.words["jobs"] or 1,
                max_memory=None if memory is None else parse_size(memory),
                progress=bar.update,
                report=tell,
                allow_code=self.words["allow_code"],
                **more,
            )
        if self.words["json_"] is not None:
            compared.save(self.words["json_"])
        self.deliver(lambda: page(compared))
        show(experiment.shown(compared, details=self.words["details"]))
        self._tell_differences(wanted, compared)
        return compared

    def _tell_differences(self, wanted: Wanted, compared: Any) -> None:
        """Say where the file that this was run again from has other results."""
        now = {one.name: one.run_id for one in compared.results}
        names = [name for name, run_id in wanted.run_ids.items() if now.get(name, run_id) != run_id]
        if names:
            tell(
                f"note: {self.words['spec']} was made by other code, or from other values than its "
                f"references lead to now: {', '.join(names)}"
            )


def estimates_table(experiment: AnySchemeExperiment, wanted: Wanted) -> Any:
    """Table of what each replay takes, found out without carrying it out.

    Raises
    ------
    UserError
        If the experiment cannot say, with the reason.
    """
    from replay.errors import RefusedError
    from tracegen.shared.display.content import Column, Table

    if "dry-run" in experiment.lacking:
        message = f"--dry-run: {experiment.lacking['dry-run']}"
        raise UserError(message)
    schemes = wanted.schemes or experiment.usual_schemes(wanted.spec, {})
    rows, like = [], None
    for one in experiment.asked_of(wanted.spec, schemes, wanted.options):
        try:
            like = experiment.setup(one.spec, Given(like=like))
        except RefusedError:
            if wanted.schemes:
                raise
            continue
        rows.append((one.name, *experiment.estimate(like).cells()))
    columns = [Column("scheme"), *(Column(what, form="s") for what in ("tasks", "memory", "time"))]
    return Table("estimates", "What each replay takes, about", columns, rows)


def compares(
    name: str, *, defaults: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options by which an experiment's schemes are compared.

    The command's first parameter receives the `ComparisonCall`; its others are options of its own.

    Parameters
    ----------
    name
        Of the experiment.
    defaults
        Values that the command takes in place of a field's default, for the help text.
    """
    experiment = with_schemes(EXPERIMENTS[name])
    schemes = (*experiment.spec.OPTIONS_OF, *experiment.spec.OPTIONS_OF.values())

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

        def filled(given: Mapping[str, Any], **values: Any) -> None:
            deliver = values.pop("deliver")
            words = {key: values.pop(key) for key in COMMON}
            command(ComparisonCall(experiment, given, words, deliver), **values)

        taken = [
            inspect.Parameter("given", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own),
            *_common_options(experiment),
            inspect.Parameter("deliver", inspect.Parameter.KEYWORD_ONLY, annotation=Delivery),
        ]
        filled.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]  # read by the next
        filled.__name__, filled.__doc__ = command.__name__, command.__doc__
        makes = takes_settings(spec=experiment.spec, leave_out=schemes, defaults=defaults)
        return makes(delivers(filled))

    return decorate


def _common_options(experiment: AnySchemeExperiment) -> list[inspect.Parameter]:
    """Options of `COMMON`, in the words of an experiment."""
    baselines = ", or ".join([*experiment.baselines, "the first"])
    texts: dict[str, tuple[Any, Any]] = {
        "scheme": (
            list[str] | None,
            f"{experiment.scheme_help} Repeatable [{experiment.usual}].",
        ),
        "baseline": (str | None, f"Speed-ups are over this one [{baselines}]."),
        "option": (list[str] | None, "Option of one scheme: SCHEME.K=V, repeatable."),
        "spec": (
            Path | None,
            SPEC_HELP,
        ),
        "jobs": (int | None, "Processes that share the schemes [1]."),
    }
    annotated: dict[str, Any] = {
        name: Annotated[kind, typer.Option(f"--{name}", help=text)]
        for name, (kind, text) in texts.items()
    }
    annotated |= {
        "max_memory": MaxMemoryOption,
        "dry_run": DryRunOption,
        "details": Annotated[bool, typer.Option("--details", help=f"Also {experiment.details}.")],
        "allow_code": AllowCodeOption,
        "json_": JsonOption,
    }
    flags = ("dry_run", "details", "allow_code")
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if name in flags else None,
            annotation=annotated[name],
        )
        for name in COMMON
    ]
