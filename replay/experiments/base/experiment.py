"""An experiment: a question of users, from its settings to its result; and all there are.

Whatever can be done with one question can be done with each of them, because it is written once:
here, and in `replay.experiments.base.scheme_experiment` for those that several schemes answer.

The module is long because it is the one interface of experiments, most of it docstrings.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from replay.errors import RefusedError, UserError, check_kind, unknown
from replay.experiments.base.documents import Converter, DocumentKind, read_one_of, written_format
from replay.experiments.base.estimate import LONG_SECONDS, Need, UnfitError, sum_text
from replay.experiments.base.host_memory import limit_of
from replay.experiments.base.result import AnyResult, Document
from replay.experiments.base.rooms import ROOMS
from replay.experiments.base.spec import Spec

if TYPE_CHECKING:
    from hwmodel import System
    from replay.schemes.outside import AllowCode

AnySpec = TypeVar("AnySpec", bound=Spec)
AnySetup = TypeVar("AnySetup")

Older = Mapping[str, Converter]
Words = Mapping[str, str]
Progress = Callable[[], object]
Report = Callable[[str], object]
Observer = Callable[..., object]
"""Called with what was replayed; with which arguments each experiment says."""


@dataclass(frozen=True)
class SpecInputs(Generic[AnySetup]):
    """Inputs beside a spec.

    Attributes
    ----------
    objects
        Objects that stand for what settings refer to, by name of the setting.
    like
        A setup that differs in the scheme alone, of which what is the same may be taken.
    allow_code
        Whether a scheme's file that the spec names may be executed.
    """

    objects: Mapping[str, Any] = field(default_factory=dict)
    like: AnySetup | None = None
    allow_code: AllowCode = False


NOTHING: SpecInputs[Any] = SpecInputs()


def _nobody() -> None:
    """Be told of a step that nobody asks about."""


@dataclass(frozen=True)
class ReplayWatcher:
    """Watcher of a replay.

    Attributes
    ----------
    progress
        Called for each step that is done; `Experiment.steps` counts them.
    observer
        Called with what was replayed; None where nobody looks.
    """

    progress: Progress = _nobody
    observer: Observer | None = None

    def saw(self, *what: Any) -> None:
        """Show what was replayed."""
        if self.observer is not None:
            self.observer(*what)


class Experiment(ABC, Generic[AnySpec, AnySetup, AnyResult]):
    """One question of users.

    Attributes
    ----------
    name
        Of its folder, and of its function in `replay`.
    command
        Of the command line.
    title
        The question as a noun phrase, such as ``"training step"``.
    spec, result
        Classes of its settings and of its result.
    headline
        Path of `TimedResult.headline_us` in the JSON of a result; empty where it has no one time.
    objects
        Settings in whose place an object may be given, such as a trace that is in memory.
    code
        Rooms whose source enters the identity of a result beside those of every replay, as
        ``"experiments/train"`` names a folder of the package.
    lacking
        Features that it cannot offer, with the reason for each: ``compare``, ``diff``,
        ``explain``, ``uncertainty``, ``dry-run``, ``max-memory``.
    phases
        Its words for phases of `replay.model.machine.kinds`, where it has others.
    older
        How a result of an older schema becomes one of the present, by its ``format``.
    """

    name: ClassVar[str]
    command: ClassVar[str]
    title: ClassVar[str]
    spec: ClassVar[type[Spec]]
    result: ClassVar[type[Any]]
    headline: ClassVar[str] = ""
    objects: ClassVar[Sequence[str]] = ()
    code: ClassVar[Sequence[str]] = ()
    lacking: ClassVar[Words] = {}
    phases: ClassVar[Words] = {}
    older: ClassVar[Older] = {}

    # ---- what each says of itself ----------------------------------------------------------------

    @abstractmethod
    def setup(self, spec: AnySpec, given: SpecInputs[AnySetup] = NOTHING) -> AnySetup:
        """Follow the references of a spec, and refuse what does not fit together.

        Raises
        ------
        RefusedError
            If the scheme cannot do it, which others may.
        UserError
            If a reference leads nowhere, or settings do not fit together.
        """

    @abstractmethod
    def replay(self, setup: AnySetup, watch: ReplayWatcher) -> AnyResult:
        """Carry out what was set up; steps that it does not report are reported at its end."""

    def steps(self, setup: AnySetup) -> int:
        """Count the steps that progress is told of."""
        return 1

    def fits_surely(self, setup: AnySetup, room: float, *, told: float, is_observed: bool) -> bool:
        """Tell whether a replay surely fits, so that nothing has to be found out.

        Parameters
        ----------
        room
            Bytes that it may take.
        told
            Such replays per process, where an estimate of long ones is to be reported; else 0.
        is_observed
            Whether somebody looks at what was replayed, so that it is kept.

        Raises
        ------
        UnfitError
            If it surely does not.
        """
        return True

    def estimate(self, setup: AnySetup, *, is_observed: bool = False) -> Need:
        """Find out what a replay takes, before it is made.

        Raises
        ------
        UserError
            If nothing says so, with the reason.
        """
        self.check_offers("dry-run")
        message = f"moereplay {self.command} has no dry-run: nothing says what a replay takes"
        raise UserError(message)

    def documents(self) -> tuple[type[Document], ...]:
        """Give the classes of what is saved and shown."""
        return (self.result,)

    def screen_tables(self, result: Any, *, details: bool) -> Any:
        """Tables of a result, or of a comparison, for the screen: those that its page opens with.

        Parameters
        ----------
        details
            Whether all of these are wanted, or what was asked for first.
        """
        from rich.console import Group

        from tracegen.shared.display.content import Table
        from tracegen.shared.display.exhibit import page_of

        sections = [section for section in page_of(result).sections if not section.is_detail]
        items = [item for section in sections for item in section.items]
        tables = [item for item in items if isinstance(item, Table)]
        return Group(*(tables if details else tables[:1]))

    def machine(self, setup: AnySetup) -> System:
        """The machine of what was set up, whose values the ``overrides`` of a spec change."""
        found: System = setup.system  # type: ignore[attr-defined]  # of those with one
        return found

    def times_us(self, result: Any) -> Mapping[tuple[str, str], float]:
        """Times of a result in microseconds, by what was asked for and by who answers.

        Results that answer the same are rivals. A result without a time has none.
        """
        return {("", result.name): result.headline_us}

    # ---- what all can ----------------------------------------------------------------------------

    def run(
        self,
        spec: AnySpec | None = None,
        *,
        given: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        observe: Observer | None = None,
        max_memory: float | None = None,
        report: Report | None = None,
        allow_code: AllowCode = False,
        **settings: Any,
    ) -> AnyResult:
        """Find the answer, under one scheme where schemes answer.

        Parameters
        ----------
        spec
            The settings; None takes the defaults.
        given
            Objects that stand for what settings refer to, by name of the setting.
        progress, observe
            As of `ReplayWatcher`.
        max_memory
            Bytes that it may take; None takes what the machine has left.
        report
            Told in a line what a long replay takes.
        allow_code
            Whether a scheme's file that the spec names may be executed; one of `settings` is.
        settings
            Fields of the spec by name, in place of the spec's.

        Raises
        ------
        UserError
            If something asked for does not exist or does not fit together, or not into memory.
        """
        made = self.spec_of(spec, settings)
        execute((settings[name] for name in made.OPTIONS_OF if name in settings), allow_code=True)
        objects = given or {}
        self.check_given(objects)
        setup = self.setup(made, SpecInputs(objects, allow_code=allow_code))
        return self.carry_out(setup, progress=progress, observe=observe, max_memory=max_memory, report=report)

    def carry_out(
        self,
        setup: AnySetup,
        *,
        progress: Progress | None = None,
        observe: Observer | None = None,
        max_memory: float | None = None,
        report: Report | None = None,
    ) -> AnyResult:
        """Carry out what was set up, if it fits into memory; parameters as of `run`."""
        is_observed = observe is not None
        self.check_fit({"": setup}, max_memory, report, is_observed=is_observed)
        return self.watch(setup, progress, observe)

    def watch(self, setup: AnySetup, progress: Progress | None, observe: Observer | None) -> AnyResult:
        """Replay what fits, and tell of every step."""
        left = self.steps(setup)

        def step() -> None:
            nonlocal left
            left -= 1
            if progress is not None:
                progress()

        result = self.replay(setup, ReplayWatcher(step, observe))
        for _ in range(left):
            step()
        return result

    def check_fit(
        self,
        setups: Mapping[str, AnySetup],
        max_memory: float | None = None,
        report: Report | None = None,
        *,
        jobs: int = 1,
        replays: float = 1,
        is_observed: bool = False,
    ) -> None:
        """Refuse replays of which one needs more memory than there is, before the first begins.

        Parameters
        ----------
        setups
            By name of the scheme.
        max_memory
            Bytes that all processes together may take; None takes what the machine has left.
        report
            Told in a line what long replays take.
        jobs
            Processes that share the replays, and the memory.
        replays
            Replays of each.
        is_observed
            As of `fits_surely`.

        Raises
        ------
        UnfitError
            Saying what it needs, what is there and what would fit.
        UserError
            If bytes are given and nothing says how many a replay takes, with the reason.
        """
        if max_memory is not None:
            self.check_offers("max-memory")
        room = limit_of(max_memory) / jobs
        told = 0.0 if report is None else replays * len(setups) / jobs
        needs, unfit = [], {}
        for name, setup in setups.items():
            try:
                if not self.fits_surely(setup, room, told=told, is_observed=is_observed):
                    need = self.estimate(setup, is_observed=is_observed)
                    need.check(room)
                    needs.append(need)
            except UnfitError as error:
                unfit[name] = error
            except RefusedError:
                continue  # what cannot run takes nothing; its replay says why
        if unfit:
            fit = [name for name in setups if name not in unfit]
            shared = f" for each of {jobs} processes" if jobs > 1 else ""
            others = f"; with --scheme, these fit: {', '.join(fit)}" if fit else ""
            message = f"{next(iter(unfit.values()))}{shared}{others}"
            raise UnfitError(message)
        if report and replays * sum(need.seconds for need in needs) >= LONG_SECONDS * jobs:
            report(sum_text(needs, replays, jobs))

    def load_result(self, path: str | Path) -> Any:
        """Read a result or a comparison of this kind; errors are those of `replay.load_result`."""
        return read_one_of(self.document_kinds(), path)

    def load_one(self, path: str | Path) -> AnyResult:
        """Read the result of one replay; errors as those of `load_result`.

        Raises
        ------
        UserError
            Also if the file holds a comparison.
        """
        loaded = self.load_result(path)
        if hasattr(loaded, "results"):
            message = f"{path} holds a comparison of {len(loaded.results)} results, not one result"
            raise UserError(message)
        found: AnyResult = loaded
        return found

    def document_kinds(self) -> list[DocumentKind]:
        """Kinds of what is saved and shown, which are read."""
        return [DocumentKind(made, self.older) for made in self.documents()]

    def spec_of(self, spec: AnySpec | None, settings: Mapping[str, Any]) -> AnySpec:
        """Put a spec and further settings together; None is the defaults.

        Raises
        ------
        UserError
            If a setting does not exist or a value is not possible.
        """
        kind: Any = self.spec
        if spec is not None:
            possible = f"a {kind.__name__}; write scheme=..., system=... for the rest"
            check_kind("spec", spec, kind, possible)
            return spec.changed(**settings) if settings else spec
        made: AnySpec = kind(**settings)
        return made

    def check_given(self, objects: Mapping[str, Any]) -> None:
        """Refuse objects that stand for no setting.

        Raises
        ------
        UserError
            With the settings for which objects may be given.
        """
        for name in objects:
            if name not in self.objects:
                raise unknown("object", name, self.objects)

    def check_offers(self, feature: str) -> None:
        """Refuse a feature that the experiment cannot offer.

        Parameters
        ----------
        feature
            A key of `lacking`, or any other.

        Raises
        ------
        UserError
            With the reason, where `lacking` has one.
        """
        if feature in self.lacking:
            message = f"moereplay {self.command} has no {feature}: {self.lacking[feature]}"
            raise UserError(message)


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


AnyExperiment = Experiment[Any, Any, Any]


class Registry(Mapping[str, AnyExperiment]):
    """All experiments by name, each imported when it is first asked for."""

    def __init__(self, rooms: Sequence[str]) -> None:
        self._rooms = {room.rpartition(".")[2]: room for room in rooms}

    def __getitem__(self, name: str) -> AnyExperiment:
        if name not in self._rooms:
            raise KeyError(name)
        module = importlib.import_module(f"replay.experiments.{self._rooms[name]}.experiment")
        found: AnyExperiment = module.EXPERIMENT
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._rooms)

    def __len__(self) -> int:
        return len(self._rooms)

    def find(self, name: str) -> AnyExperiment:
        """Look up an experiment.

        Raises
        ------
        UserError
            If there is none of the name, with those there are.
        """
        if name not in self._rooms:
            raise unknown("experiment", name, self._rooms)
        return self[name]

    def of(self, given: object) -> AnyExperiment:
        """Give the experiment that something is a result or a comparison of.

        Raises
        ------
        UserError
            If it is of none.
        """
        for one in self.values():
            if isinstance(given, one.documents()):
                return one
        kind = written_format(given) or type(given).__name__
        message = f"{kind} is no result or comparison of an experiment"
        raise UserError(message)


EXPERIMENTS = Registry(ROOMS)
"""Every experiment."""
