"""Commands made from their experiment that compare schemes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.cli.options import options_of, settings_of
from replay.cli.results import COMMON, ExperimentCommand, ResultCall, asks, beside, command_with, hide
from replay.cli.screen import progress, show, tell
from replay.errors import RefusedError
from replay.experiments.base.estimate import UnfitError
from replay.experiments.base.experiment import EXPERIMENTS, SpecInputs, execute
from replay.experiments.base.result import allowed_by
from replay.experiments.base.scheme_experiment import AnySchemeExperiment, SchemeExperiment, with_schemes

if TYPE_CHECKING:
    from replay.experiments.base.spec import Spec

SOME_REFUSED = 3
"""Exit code where a scheme that was named, or a point of a study, cannot run."""


@dataclass(frozen=True)
class ComparisonRequest:
    """Arguments of a comparison.

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


class ComparisonCall(ExperimentCommand):
    """A command line that asks for a comparison."""

    experiment: AnySchemeExperiment

    def again(self) -> ComparisonRequest:
        """Give what the file of ``--spec`` asked for, schemes with their options apart.

        Raises
        ------
        UserError
            If the file cannot be read, is of another experiment, or names code that may not run.
        """
        if self.before is None:
            return ComparisonRequest(self.experiment.spec())
        experiment, (specs, results, baseline) = self.experiment, self.before
        named = [one for one in specs if results or "scheme" in one.settings()]
        schemes = list(dict.fromkeys(experiment.reference(one) for one in named))
        execute(schemes, allow_code=allowed_by(results, allow_code=self.words["allow_code"]))
        options: dict[str, Mapping[str, Any]] = {}
        for one in named:
            options |= {name: own for name, own in experiment.options_in(one).items() if own}
        shared = specs[0].changed(**{name: {} for name in experiment.spec.OPTIONS_OF.values()})
        ids = {one.name: one.run_id for one in results}
        return ComparisonRequest(shared, schemes or None, options, baseline, ids)

    def request(self) -> ComparisonRequest:
        """Put the file of ``--spec`` and what is given beside it together.

        Raises
        ------
        UserError
            If something does not exist or a value is not possible.
        """
        before, settings = self.again(), settings_of(self.given)
        spec = beside(before.spec, settings)
        chosen, asked, baseline = (self.words[name] for name in ("scheme", "option", "baseline"))
        execute(chosen or (), allow_code=True)
        named = chosen or before.schemes
        options = dict(before.options)
        for name, own in options_of(asked or (), self._names(spec, named)).items():
            options[name] = {**options.get(name, {}), **own}
        return ComparisonRequest(
            spec,
            named,
            options,
            baseline or (None if chosen else before.baseline),
            {} if settings or chosen or asked else before.run_ids,
        )

    def _names(self, spec: Spec, named: Sequence[str] | None) -> list[str]:
        """Names of schemes that options may be of."""
        experiment = self.experiment
        found: dict[str, None] = {}
        for reference in named or experiment.usual_schemes(spec, {}):
            name, one = experiment.under(spec, reference, {})
            found |= dict.fromkeys(experiment.schemes_in(name, one))
        return list(found)

    def carry_out(
        self,
        wanted: ComparisonRequest | None = None,
        *,
        compare: Callable[..., Any] | None = None,
        then: Callable[[Any], Any] = lambda compared: compared,
        objects: Mapping[str, Any] | None = None,
        steps: int = 1,
        unit: str = "scheme",
        jobs: int = 1,
        **more: Any,
    ) -> Any:
        """Compare, save, deliver and show; the comparison, or None of a dry run.

        Parameters
        ----------
        wanted
            In place of `request`.
        compare
            Who compares, in place of the experiment.
        then
            What is made of the comparison before it is saved.
        objects
            Objects that stand for what settings refer to, of a dry run.
        steps, unit
            What progress counts, and how many each scheme has.
        jobs
            Processes where none are asked for, if their memory together is there; else one.
        more
            Further parameters of `SchemeExperiment.compare`.

        Raises
        ------
        Exit
            With `SOME_REFUSED` if a scheme that was named cannot run; the others are shown.
        """
        experiment, wanted = self.experiment, wanted or self.request()
        if self.words["dry_run"]:
            show(estimates_table(experiment, wanted, objects or {}))
            return None
        count = len(wanted.schemes or experiment.usual_schemes(wanted.spec, {}))
        with progress(count * steps, unit) as bar:
            if "folder" in more:
                more["found"] = bar.resume
            comparing = partial(
                compare or experiment.compare,
                spec=wanted.spec,
                schemes=wanted.schemes,
                baseline=wanted.baseline,
                options=wanted.options,
                max_memory=self.max_memory,
                progress=bar.update,
                report=tell,
                **more,
            )
            asked = self.words["jobs"]
            try:
                compared = comparing(jobs=jobs if asked is None else asked)
            except UnfitError:
                if asked is not None or jobs == 1:
                    raise
                compared = comparing(jobs=1)  # which has all the memory
        compared = then(compared)
        self.finish(compared)
        show(experiment.screen_tables(compared, details=self.words["details"]))
        self._tell_differences(wanted, compared)
        if wanted.schemes and compared.left_out:
            raise typer.Exit(SOME_REFUSED)
        return compared

    def _tell_differences(self, wanted: ComparisonRequest, compared: Any) -> None:
        """Say where the file that this was run again from has other results."""
        now = {one.name: one.run_id for one in compared.results}
        names = [name for name, run_id in wanted.run_ids.items() if now.get(name, run_id) != run_id]
        if names:
            tell(
                f"note: {self.words['spec']} was made by other code, or from other values than its "
                f"references lead to now: {', '.join(names)}"
            )


def estimates_table(experiment: AnySchemeExperiment, wanted: ComparisonRequest, objects: Mapping[str, Any]) -> Any:
    """Table of what each replay takes, found out without carrying it out.

    Parameters
    ----------
    objects
        Objects that stand for what settings refer to.

    Raises
    ------
    UserError
        If the experiment cannot say, with the reason.
    """
    from tracegen.shared.display.content import Column, Table

    experiment.check_offers("dry-run")
    schemes = wanted.schemes or experiment.usual_schemes(wanted.spec, {})
    rows, like, unit = [], None, ""
    for one in experiment.asked_of(wanted.spec, schemes, wanted.options):
        try:
            like = experiment.setup(one.spec, SpecInputs(objects, like))
            need = experiment.estimate(like)
        except RefusedError:
            if wanted.schemes:
                raise
            continue
        rows.append((one.name, need.number, *need.cells()))
        unit = need.unit
    columns = [Column("scheme"), Column(unit, form=",d", rank=1)]
    columns += [Column(what, form="s") for what in ("tasks", "memory", "time")]
    return Table("estimates", "What each replay takes, about", columns, rows)


def compares(
    name: str, *, leave_out: Sequence[str] = (), defaults: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options by which an experiment's schemes are compared.

    The command's first parameter receives the `ComparisonCall`; its others are options of its own.

    Parameters
    ----------
    name
        Of the experiment.
    leave_out
        Settings without an option, beside the scheme and its options.
    defaults
        Values that the command takes in place of a field's default, for the help text.
    """
    experiment = with_schemes(EXPERIMENTS[name])
    schemes = (*experiment.spec.OPTIONS_OF, *experiment.spec.OPTIONS_OF.values())
    return command_with(
        experiment,
        ComparisonCall,
        _options(experiment),
        leave_out=(*schemes, *leave_out),
        defaults=defaults or {},
    )


def _options(experiment: AnySchemeExperiment) -> dict[str, tuple[Any, Any]]:
    """Options of every command that compares, in the words of an experiment."""
    named = f"{experiment.scheme_help} Repeatable [{experiment.usual}]."
    baselines = f"Speed-ups are over this one [{experiment.usual_baseline}]."
    texts: dict[str, tuple[Any, str]] = {
        "scheme": (list[str] | None, named),
        "baseline": (str | None, baselines),
        "option": (list[str] | None, "Option of one scheme: SCHEME.K=V, repeatable."),
        "jobs": (int | None, f"Processes that share the schemes [{experiment.usual_jobs}]."),
    }
    made: dict[str, tuple[Any, Any]] = {
        name: (Annotated[kind, typer.Option(f"--{name}", help=text)], None) for name, (kind, text) in texts.items()
    }
    details = typer.Option("--details", help=f"{experiment.details}.")
    common = {
        key: (hide(kind) if key.replace("_", "-") in experiment.lacking else kind, default)
        for key, (kind, default) in COMMON.items()
    }
    return {**made, "details": (Annotated[bool, details], False), **common}


def command_of(name: str) -> Callable[..., None]:
    """Make the command of an experiment that has none of its own.

    Parameters
    ----------
    name
        Of the experiment.
    """
    experiment = EXPERIMENTS[name]
    if isinstance(experiment, SchemeExperiment):

        @compares(name)
        def command(call: ComparisonCall) -> None:
            call.carry_out()

    else:

        @asks(name)
        def command(call: ResultCall) -> None:
            setup = call.setup()
            if not call.is_dry(setup):
                show(experiment.screen_tables(call.carry_out(setup), details=True))

    command.__doc__ = f"Find out: {experiment.title}."
    return command
