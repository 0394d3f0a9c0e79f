"""A question that several schemes answer: one result each, beside each other."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from replay.errors import RefusedError, UserError, check_jobs, check_kind, unknown, value_text
from replay.experiments.base.experiment import AnySetup, AnySpec, Experiment, execute
from replay.experiments.base.outcomes import Outcome, ResultRequest, carried_out
from replay.experiments.base.result import AnyTimed, ComparisonBase, Document

if TYPE_CHECKING:
    from replay.experiments.base.experiment import AnyExperiment, Observer, Progress, Report
    from replay.schemes.base import SchemeKind
    from replay.schemes.outside import AllowCode

AnyCompared = TypeVar("AnyCompared", bound=ComparisonBase[Any])

SCHEMES = "the name of a scheme, or a list of them"


class SchemeExperiment(
    Experiment[AnySpec, AnySetup, AnyTimed],
    Generic[AnySpec, AnySetup, AnyTimed, AnyCompared],
):
    """One question that several schemes answer, whose results can be compared.

    Attributes
    ----------
    comparison
        Class of several results beside each other.
    kind_of_scheme
        Kind that its schemes have.
    baselines
        Names of results that speed-ups are given over where nothing is asked for, by preference.
    scheme_help, usual, usual_jobs, details
        Words of the command: what names a scheme, which are compared where none is named, how many
        processes share them, and what ``--details`` shows.
    """

    comparison: ClassVar[type[Any]]
    kind_of_scheme: ClassVar[SchemeKind] = "ep"
    baselines: ClassVar[Sequence[str]] = ()
    scheme_help: ClassVar[str] = "A name of `moereplay schemes`, or FILE.py:NAME, which executes the file."
    usual: ClassVar[str] = "all that can"
    usual_jobs: ClassVar[str] = "1"
    details: ClassVar[str] = "Show all tables"

    # ---- what each says of itself ----------------------------------------------------------------

    @abstractmethod
    def usual_schemes(self, shared: AnySpec, given: Mapping[str, Any]) -> Sequence[str]:
        """Give the names of all that are compared where none are named.

        Parameters
        ----------
        shared
            The settings that all have.
        given
            Objects that stand for what settings refer to, by name of the setting.
        """

    def under(self, shared: AnySpec, reference: str, options: Mapping[str, Mapping[str, Any]]) -> tuple[str, AnySpec]:
        """Give the name and the spec of one result of a comparison: its scheme alone is another.

        Parameters
        ----------
        shared
            The settings that all have.
        reference
            To the scheme; a file of it was executed, or the caller refused.
        options
            Options by name, by name of the scheme.

        Raises
        ------
        UserError
            If there is no such scheme, or an option is not possible.
        """
        from replay.schemes import find

        scheme = find(reference, self.kind_of_scheme, allow_code=False)
        own = dict(options.get(scheme.name, {}))
        scheme.with_options(own)  # what is not possible is refused before anything is set up
        return scheme.name, shared.changed(scheme=reference, options=own)

    def schemes_in(self, name: str, spec: AnySpec) -> Sequence[str]:
        """Names of the schemes of one result of a comparison, which may have options."""
        return [name]

    def schemes_of(self, reference: str) -> Sequence[str]:
        """References to each scheme that one reference, as `under` takes it, is made of."""
        return [reference]

    def reference(self, spec: AnySpec) -> str:
        """Reference to the schemes of a spec, as `under` takes it."""
        return str(getattr(spec, "scheme"))  # noqa: B009 - not every spec has one

    def options_in(self, spec: AnySpec) -> Mapping[str, Mapping[str, Any]]:
        """Options of the schemes of a spec, by the name of each."""
        from replay.schemes import find

        values = spec.model_dump()
        return {
            find(str(values[scheme]), None, allow_code=False).name: values[options]
            for scheme, options in spec.OPTIONS_OF.items()
            if values.get(options)
        }

    def screen_tables(self, result: Any, *, details: bool) -> Any:
        """Tables of a result, or of a comparison, for the screen: those of its `tables.py`."""
        home = type(self).__module__.rpartition(".")[0]
        return importlib.import_module(f"{home}.tables").tables(result, details=details)

    def outcomes(self, asked: Sequence[ResultRequest], given: Mapping[str, Any], **how: Any) -> Sequence[Outcome]:
        """Carry out each of what is asked for; parameters as of `carried_out`."""
        return carried_out(self, asked, given, **how)

    def documents(self) -> tuple[type[Document], ...]:
        """Give the classes of a result and of several."""
        return (self.result, self.comparison)

    def baseline(self, results: Sequence[AnyTimed]) -> str:
        """Name of the result that speed-ups are given over where nothing is asked for."""
        ran = [one.name for one in results]
        return next((name for name in self.baselines if name in ran), ran[0])

    @property
    def usual_baseline(self) -> str:
        """Word of the command: what speed-ups are given over where nothing is asked for."""
        return ", or ".join([*self.baselines, "the first"])

    # ---- what all can ----------------------------------------------------------------------------

    def compare(
        self,
        spec: AnySpec | None = None,
        schemes: str | Sequence[str] | None = None,
        *,
        given: Mapping[str, Any] | None = None,
        baseline: str | None = None,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        allow_code: AllowCode = False,
        **settings: Any,
    ) -> AnyCompared:
        """Find the answer under several schemes.

        Parameters
        ----------
        spec
            The settings; its scheme and options are not heeded.
        schemes
            Names, or one; None takes all that can do it.
        given
            Objects that stand for what settings refer to, by name of the setting.
        baseline
            Name of the result that speed-ups are given over; None takes the experiment's usual one.
        options
            Options by name, by name of the scheme.
        allow_code
            Whether a scheme's file that the spec names may be executed; one of `schemes` is.
        settings
            Fields of the spec by name, in place of the spec's; and ``jobs``, ``progress``,
            ``observe``, ``max_memory`` and ``report``, as of `carry_out_all`.

        Raises
        ------
        UserError
            If something asked for does not exist or does not fit together, or not into memory.
        """
        how = {name: settings.pop(name) for name in HOW if name in settings}
        objects = given or {}
        self.check_given(objects)
        if "scheme" in settings:
            message = f"scheme = {value_text(settings['scheme'])}: compare takes schemes=[...]"
            raise UserError(message)
        shared = self.spec_of(spec, settings)
        named = None if schemes is None else several("schemes", schemes, (str,), SCHEMES)
        references = named or self.usual_schemes(shared, objects)
        execute(references, allow_code=allow_code or named is not None)
        asked = self.asked_of(shared, references, options or {})
        names = [one.name for one in asked]
        if isinstance(baseline, str) and baseline not in names:
            try:
                baseline, _ = self.under(shared, baseline, {})
            except UserError:
                raise unknown("baseline", baseline, names) from None
        return self.carry_out_all(asked, objects, baseline=baseline, allow_code=allow_code, **how)

    def asked_of(
        self, shared: AnySpec, schemes: Sequence[str], options: Mapping[str, Mapping[str, Any]]
    ) -> list[ResultRequest]:
        """Give name and spec of each result of a comparison.

        Parameters
        ----------
        schemes
            References to them.
        options
            Options by name, by name of the scheme.

        Raises
        ------
        UserError
            If a scheme does not exist or stands twice, or options are of none of them.
        """
        check_options(options)
        asked = [self.under(shared, one, options) for one in schemes]
        check_once([name for name, _ in asked])
        known = {part for name, spec in asked for part in self.schemes_in(name, spec)}
        check_known(options, sorted(known))
        return [ResultRequest(name, spec) for name, spec in asked]

    def carry_out_all(
        self,
        asked: Sequence[ResultRequest],
        given: Mapping[str, Any],
        *,
        baseline: str | None = None,
        jobs: int = 1,
        progress: Progress | None = None,
        observe: Observer | None = None,
        max_memory: float | None = None,
        report: Report | None = None,
        allow_code: AllowCode = False,
        **more: Any,
    ) -> AnyCompared:
        """Carry out what is asked for and put it beside each other.

        Parameters
        ----------
        given, baseline, allow_code
            As of `compare`.
        jobs, progress, observe, max_memory, report
            As of `replay.experiments.base.outcomes.carried_out`.
        more
            What `outcomes` of the experiment takes beside.
        """
        check_jobs(jobs)
        if baseline is not None:
            check_kind("baseline", baseline, str, "the name of one of the schemes")
            if not any(baseline in (one.name, one.scheme) for one in asked):
                raise unknown("baseline", baseline, [one.name for one in asked])
        outcomes = self.outcomes(
            asked,
            given,
            jobs=jobs,
            progress=progress,
            observe=observe,
            max_memory=max_memory,
            report=report,
            allow_code=allow_code,
            **more,
        )
        results: list[Any] = []
        left_out = {}
        for one, outcome in zip(asked, outcomes, strict=True):
            if not isinstance(outcome, RefusedError):
                results.append(outcome)
            elif baseline in (one.name, one.scheme) or len(asked) == 1:
                raise outcome
            else:
                left_out[one.scheme] = outcome.reason
        if not results:
            raise UserError(f"no scheme can run this; {_reasons(left_out)}")
        made: AnyCompared = self.comparison(
            baseline=baseline or self.baseline(results), results=results, left_out=left_out
        )
        return made


def _reasons(left_out: Mapping[str, str]) -> str:
    """Reasons of schemes that cannot run, those of fewest schemes first, each with one of its schemes."""
    names: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        names.setdefault(reason.removeprefix(f"scheme {name!r}").lstrip(": "), []).append(name)
    told = []
    for reason, of in sorted(names.items(), key=lambda each: len(each[1]))[:MOST_REASONS]:
        others = f" and {len(of) - 1} more" if of[1:] else ""
        told.append(f"{of[0]}{others}: {reason}")
    return "; ".join(told)


MOST_REASONS = 3
"""Reasons that are told where no scheme can run."""

HOW = ("jobs", "progress", "observe", "max_memory", "report")
"""Parameters of a comparison that do not decide what is asked."""

AnySchemeExperiment = SchemeExperiment[Any, Any, Any, Any]


def with_schemes(experiment: AnyExperiment) -> AnySchemeExperiment:
    """Give an experiment as one whose results can be compared.

    Raises
    ------
    UserError
        If they cannot, with the reason.
    """
    experiment.check_offers("compare")
    assert isinstance(experiment, SchemeExperiment)  # any other says why not
    return experiment


def several(what: str, given: object, kinds: tuple[type, ...], possible: str) -> list[Any]:
    """Take what may be several, where one is a list of one.

    Raises
    ------
    UserError
        If it is neither, or empty.
    """
    ones: Any = [given] if isinstance(given, kinds) else given
    check_kind(what, ones, Iterable, possible)
    found = list(ones)
    for one in found:
        check_kind(what, one, kinds, possible)
    if not found:
        message = f"{what} is empty; leave it out for the default"
        raise UserError(message)
    return found


def check_once(names: Sequence[str]) -> None:
    """Refuse a scheme that is listed twice.

    Raises
    ------
    UserError
        With all that are listed.
    """
    if len(set(names)) != len(names):
        message = f"a scheme is listed twice: {', '.join(names)}"
        raise UserError(message)


def check_options(options: object) -> None:
    """Refuse what is no table of options for each of some schemes.

    Raises
    ------
    UserError
        Saying what is possible.
    """
    check_kind("options", options, Mapping, "a table of options for each scheme's name")
    assert isinstance(options, Mapping)
    for name, table in options.items():
        check_kind(f"options of {name}", table, Mapping, "a table of options")


def check_known(options: Iterable[str], schemes: Sequence[str]) -> None:
    """Refuse options of a scheme that is not asked for.

    Raises
    ------
    UserError
        With the schemes that are.
    """
    for name in options:
        if name not in schemes:
            raise unknown("scheme with options", name, schemes)
