"""One result, or several beside each other, of any experiment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from replay.errors import RefusedError, UserError, check_jobs, check_kind, shown, unknown
from replay.experiments.base.experiment import EXPERIMENTS, with_schemes
from replay.experiments.base.host_memory import limit_of
from replay.experiments.base.result import ResultBase
from replay.experiments.base.spec import Spec
from replay.processes import answers

if TYPE_CHECKING:
    from replay.experiments.base.experiment import (
        AnyExperiment,
        AnySchemeExperiment,
        Observer,
        Progress,
        Report,
    )
    from replay.schemes.outside import AllowCode

SCHEMES = "the name of a scheme, or a list of them"


@dataclass(frozen=True)
class Asked:
    """One result of a comparison.

    Attributes
    ----------
    name, spec
        Its name and its settings.
    given
        Objects that stand for what its settings refer to, by name of the setting.
    of
        Name of its scheme, where that is not the name of the result.
    """

    name: str
    spec: Spec
    given: Mapping[str, Any] = field(default_factory=dict)
    of: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Names by which a baseline may mean it."""
        return (self.name, self.of) if self.of else (self.name,)


def several(what: str, given: object, kinds: tuple[type, ...], possible: str) -> list[Any]:
    """Take what may be several, where one is a list of one.

    Raises
    ------
    UserError
        If it is neither, or empty.
    """
    ones = [given] if isinstance(given, kinds) else given
    check_kind(what, ones, Iterable, possible)
    found: list[Any] = list(ones)  # type: ignore[call-overload] # checked just now
    for one in found:
        check_kind(what, one, kinds, possible)
    if not found:
        message = f"{what} is empty; leave it out for the default"
        raise UserError(message)
    return found


def spec_of(experiment: AnyExperiment, spec: Spec | None, settings: Mapping[str, Any]) -> Spec:
    """Put a spec and further settings together; None is the defaults.

    Raises
    ------
    UserError
        If a setting does not exist or a value is not possible.
    """
    kind = experiment.spec
    if spec is None:
        return kind(**settings)
    check_kind("spec", spec, kind, f"a {kind.__name__}; write scheme=..., system=... for the rest")
    return spec.changed(**settings)


def run(
    experiment: AnyExperiment,
    spec: Spec | None = None,
    *,
    given: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    observe: Observer | None = None,
    max_memory: float | None = None,
    report: Report | None = None,
    allow_code: AllowCode = False,
    **settings: Any,
) -> Any:
    """Carry out an experiment under one scheme.

    Parameters
    ----------
    spec
        The settings; None takes the defaults.
    given
        Objects that stand for what settings refer to, by name of the setting.
    progress, observe
        As of `Experiment.replay`.
    max_memory
        Bytes that all processes together may take; None takes what the machine has left.
    report
        Told in a line what long replays take.
    allow_code
        Whether a scheme's file that the spec names may be executed; one of `settings` is.
    settings
        Fields of the spec by name, in place of the spec's.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together, or not into memory.
    """
    made = spec_of(experiment, spec, settings)
    execute((settings[name] for name in made.OPTIONS_OF if name in settings), allow_code=True)
    experiment.check_given(given or {})
    setup = experiment.setup(made, given or {}, allow_code=allow_code)
    experiment.check_fit([setup], limit_of(max_memory), report)
    return experiment.replay(setup, progress=progress, observe=observe)


def execute(references: Iterable[object], *, allow_code: AllowCode) -> None:
    """Execute files of schemes: what this process has executed may be found in it from then on.

    Parameters
    ----------
    references
        To schemes, or to pairs of them as ``PREFILL+DECODE``.
    allow_code
        Whether files may be executed: True for what the caller named himself.

    Raises
    ------
    CodeRefusedError
        If one may not.
    """
    from replay.schemes import outside

    for one in references:
        for part in str(one).split("+"):
            if outside.is_file(part):
                outside.from_file(part, allow_code=allow_code)


def asked_of(
    experiment: AnySchemeExperiment,
    shared: Spec,
    schemes: Sequence[str],
    options: Mapping[str, Mapping[str, Any]],
) -> list[Asked]:
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
    check_kind("options", options, Mapping, "a table of options for each scheme's name")
    asked = [Asked(*experiment.under(shared, one, options)) for one in schemes]
    names = [one.name for one in asked]
    if len(set(names)) != len(names):
        message = f"a scheme is listed twice: {', '.join(names)}"
        raise UserError(message)
    known = sorted({part for one in asked for part in experiment.schemes_in(one.name, one.spec)})
    for name, table in options.items():
        if name not in known:
            raise unknown("scheme with options", name, known)
        check_kind(f"options of {name}", table, Mapping, "a table of options")
    return asked


def compare(
    experiment: AnyExperiment,
    spec: Spec | None = None,
    schemes: str | Sequence[str] | None = None,
    *,
    given: Mapping[str, Any] | None = None,
    baseline: str | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
    observe: Observer | None = None,
    max_memory: float | None = None,
    report: Report | None = None,
    allow_code: AllowCode = False,
    **settings: Any,
) -> Any:
    """Carry out an experiment under several schemes.

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
    jobs
        Processes that share the schemes; the result is the same.
    progress
        Called for each step of every scheme, see `Experiment.steps`.
    observe
        As of `Experiment.replay`; only with one process.
    max_memory
        Bytes that all processes together may take; None takes what the machine has left.
    report
        Told in a line what long replays take.
    allow_code
        Whether a scheme's file that the spec names may be executed; one of `schemes` is.
    settings
        Fields of the spec by name, in place of the spec's.

    Raises
    ------
    UserError
        If something asked for does not exist or does not fit together, or not into memory.
    """
    kind = with_schemes(experiment)
    kind.check_given(given or {})
    if "scheme" in settings:
        message = f"scheme = {shown(settings['scheme'])}: compare takes schemes=[...]"
        raise UserError(message)
    objects = given or {}
    shared = spec_of(kind, spec, settings)
    named = None if schemes is None else several("schemes", schemes, (str,), SCHEMES)
    references = named or kind.usual_schemes(shared, objects)
    execute(references, allow_code=allow_code or named is not None)
    asked = asked_of(kind, shared, references, options or {})
    names = [one.name for one in asked]
    if isinstance(baseline, str) and baseline not in names:
        try:
            baseline, _ = kind.under(shared, baseline, {})
        except UserError:
            raise unknown("baseline", baseline, names) from None
    return compared(
        kind, asked, objects,
        must=named is not None, baseline=baseline, jobs=jobs, progress=progress,
        observe=observe, max_memory=max_memory, report=report, allow_code=allow_code,
    )  # fmt: skip


def compared(
    experiment: AnySchemeExperiment,
    asked: Sequence[Asked],
    given: Mapping[str, Any],
    *,
    must: bool,
    baseline: str | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
    observe: Observer | None = None,
    max_memory: float | None = None,
    report: Report | None = None,
    allow_code: AllowCode = False,
) -> Any:
    """Carry out what is asked for and put it beside each other; see `compare`.

    Parameters
    ----------
    must
        Whether none may be refused, because all were named.
    """
    check_jobs(jobs)
    if baseline is not None:
        check_kind("baseline", baseline, str, "the name of one of the schemes")
        if not any(baseline in one.names for one in asked):
            raise unknown("baseline", baseline, [one.name for one in asked])
    outcomes = carried_out(
        experiment, asked, given, jobs=jobs, progress=progress, observe=observe,
        most=limit_of(max_memory), report=report, must=must, allow_code=allow_code,
    )  # fmt: skip
    results, left_out = [], {}
    for one, outcome in zip(asked, outcomes, strict=True):
        if isinstance(outcome, ResultBase):
            results.append(outcome)
        elif must or baseline in one.names or len(asked) == 1:
            raise outcome
        else:
            left_out[one.of or one.name] = outcome.reason
    if not results:
        first = next(iter(left_out))
        message = f"no scheme can run this; {first}: {left_out[first]}"
        raise UserError(message)
    return experiment.compared(baseline or experiment.baseline(results), results, left_out)


def carried_out(
    experiment: AnyExperiment,
    asked: Sequence[Asked],
    given: Mapping[str, Any],
    *,
    jobs: int,
    progress: Progress | None,
    observe: Observer | None,
    most: float,
    report: Report | None,
    must: bool,
    allow_code: AllowCode,
) -> list[ResultBase | RefusedError]:
    """Carry out each of what is asked for, here or in processes; outcomes in order.

    Everything that can be refused is refused before the first replay.

    Parameters
    ----------
    most
        Bytes that all processes together may take.
    must
        Whether none may be refused.
    """
    found: dict[int, ResultBase | RefusedError] = {}
    setups: dict[int, Any] = {}
    for at, one in enumerate(asked):
        try:
            like = next(iter(setups.values()), None)
            setups[at] = experiment.setup(
                one.spec, {**given, **one.given}, like=like, allow_code=allow_code
            )
        except RefusedError as error:
            if must:
                raise
            found[at] = error
    jobs = max(min(jobs, len(setups)), 1)
    experiment.check_fit(list(setups.values()), most, report, jobs)
    if jobs > 1 and observe is None:
        requests = [
            (experiment.name, asked[at].spec, {**given, **asked[at].given}) for at in setups
        ]
        where = list(setups)
        with closing(answers(_answer, requests, jobs)) as answered:
            for position, outcome in answered:
                found[where[position]] = outcome
                if progress is not None:
                    for _ in range(experiment.steps(setups[where[position]])):
                        progress()
        return [found[at] for at in range(len(asked))]
    for at, setup in setups.items():
        try:
            found[at] = experiment.replay(setup, progress=progress, observe=observe)
        except RefusedError as error:
            found[at] = error
    return [found[at] for at in range(len(asked))]


def _answer(request: tuple[str, Spec, dict[str, Any]]) -> ResultBase | RefusedError:
    """Carry out one of a comparison in a process of its own; its files were allowed before."""
    name, spec, given = request
    experiment = EXPERIMENTS[name]
    try:
        result: ResultBase = experiment.replay(experiment.setup(spec, given, allow_code=True))
    except RefusedError as error:
        return error
    return result
