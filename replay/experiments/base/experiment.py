"""An experiment: a question of users, from its settings to its result; and all there are.

Whatever can be done with one question can be done with each of them, because it is written once
against this class: run and compare, in processes, within memory, from a spec or from a result,
found again by `load`, shown as a page. `replay.experiments.base.compare` does what all share.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from replay.errors import UserError, unknown
from replay.experiments.base.result import AnyResult, AnyTimed, ComparisonBase, Document
from replay.experiments.base.spec import Spec

if TYPE_CHECKING:
    from hwmodel import System
    from replay.schemes.outside import AllowCode

AnySpec = TypeVar("AnySpec", bound=Spec)
AnySetup = TypeVar("AnySetup")

Progress = Callable[[], object]
Report = Callable[[str], object]
Observer = Callable[..., object]
"""Called with what was replayed; with which arguments each experiment says."""


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
        Path of `ResultBase.headline_us` in the JSON of a result; empty where it has no one time.
    objects
        Settings in whose place an object may be given, such as a trace that is in memory.
    code
        Rooms whose source enters the identity of a result beside those of every replay, as
        ``"experiments/train"`` names a folder of the package.
    lacking
        Features that it cannot offer, with the reason for each: ``compare``, ``diff``,
        ``explain``, ``uncertainty``, ``dry-run``, ``max-memory``.
    """

    name: ClassVar[str]
    command: ClassVar[str]
    title: ClassVar[str]
    spec: ClassVar[type[Spec]]
    result: ClassVar[type[Any]]
    headline: ClassVar[str] = ""
    objects: ClassVar[Sequence[str]] = ()
    code: ClassVar[Sequence[str]] = ()
    lacking: ClassVar[Mapping[str, str]] = {}
    phases: ClassVar[Mapping[str, str]] = {}
    """Its words for phases of `replay.model.machine.kinds`, where it has others."""
    older: ClassVar[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {}
    """How a result of an older schema becomes one of the present, by its ``format``."""

    @abstractmethod
    def setup(
        self,
        spec: AnySpec,
        given: Mapping[str, Any],
        *,
        like: AnySetup | None = None,
        allow_code: AllowCode = False,
    ) -> AnySetup:
        """Follow the references of a spec, and refuse what does not fit together.

        Parameters
        ----------
        given
            Objects that stand for what settings refer to, by name of the setting.
        like
            A setup that differs in the scheme alone, of which what is the same may be taken.
        allow_code
            Whether a scheme's file that the spec names may be executed.

        Raises
        ------
        RefusedError
            If the scheme cannot do it, which others may.
        UserError
            If a reference leads nowhere, or settings do not fit together.
        """

    @abstractmethod
    def replay(
        self, setup: AnySetup, *, progress: Progress | None = None, observe: Observer | None = None
    ) -> AnyResult:
        """Carry out what was set up.

        Parameters
        ----------
        progress
            Called now and then; how often `steps` says.
        observe
            Called with what was replayed.
        """

    def steps(self, setup: AnySetup) -> int:
        """Count how often `replay` calls its progress."""
        return 1

    def check_fit(
        self,
        setups: Sequence[AnySetup],
        max_memory: float,
        report: Report | None = None,
        jobs: int = 1,
    ) -> None:
        """Refuse replays of which one needs more memory than there is, before the first begins.

        Parameters
        ----------
        max_memory
            Bytes that all processes together may take.
        report
            Told in a line what long replays take.
        jobs
            Processes that share the replays, and the memory.

        Raises
        ------
        UnfitError
            Saying what it needs, what is there and what would fit.
        """

    def documents(self) -> tuple[type[Document], ...]:
        """Give the classes of what is saved and shown."""
        return (self.result,)

    def shown(self, result: Any, *, details: bool) -> Any:
        """Tables of a result, or of a comparison, for the screen: those of its page.

        Parameters
        ----------
        details
            Whether all are wanted, or what was asked for first.
        """
        from rich.console import Group

        from tracegen.shared.display.content import Table
        from tracegen.shared.display.shown import page_of

        items = [item for section in page_of(result).sections for item in section.items]
        tables = [item for item in items if isinstance(item, Table)]
        return Group(*(tables if details else tables[:1]))

    def machine(self, setup: AnySetup) -> System:
        """The machine of what was set up, whose values the ``overrides`` of a spec change."""
        found: System = setup.system  # type: ignore[attr-defined]  # of those with one
        return found

    def times_us(self, result: Any) -> Mapping[tuple[str, str], float]:
        """Times of a result, by what is asked for and by who does it.

        Those of several results that do the same are rivals. A result without a time has none.
        """
        return {("", result.name): result.headline_us}

    def check_given(self, given: Mapping[str, Any]) -> None:
        """Refuse objects that stand for no setting.

        Raises
        ------
        UserError
            With the settings for which objects may be given.
        """
        for name in given:
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


class SchemeExperiment(Experiment[AnySpec, AnySetup, AnyTimed]):
    """One question that several schemes answer, whose results can be compared.

    Attributes
    ----------
    comparison
        Class of several results beside each other.
    baselines
        Names of results that speed-ups are given over where nothing is asked for, by preference.
    scheme_help, usual, details
        Words of the command: what names a scheme, which are compared where none is named, and what
        ``--details`` shows.
    """

    comparison: ClassVar[type[Any]]
    baselines: ClassVar[Sequence[str]] = ()
    scheme_help: ClassVar[str] = (
        "A name of `moereplay schemes`, or FILE.py:NAME, which executes the file."
    )
    usual: ClassVar[str] = "all that can"
    details: ClassVar[str] = "all tables"

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

    @abstractmethod
    def under(
        self, shared: AnySpec, reference: str, options: Mapping[str, Mapping[str, Any]]
    ) -> tuple[str, AnySpec]:
        """Give the name and the spec of one result of a comparison.

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

    def schemes_in(self, name: str, spec: AnySpec) -> Sequence[str]:
        """Names of the schemes of one result of a comparison, which may have options."""
        return [name]

    def schemes_of(self, reference: str) -> Sequence[str]:
        """References to each scheme that one reference, as `under` takes it, is made of."""
        return [reference]

    def estimate(self, setup: AnySetup) -> tuple[str, str, str]:
        """Tasks, memory and time that a replay takes, in words, found out before it is made.

        Raises
        ------
        UserError
            If nothing says so.
        """
        message = f"moereplay {self.command} has no dry-run: nothing says what a replay takes"
        raise UserError(message)

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

    def shown(self, result: Any, *, details: bool) -> Any:
        """Tables of a result, or of a comparison, for the screen: those of its `tables.py`."""
        home = type(self).__module__.rpartition(".")[0]
        return importlib.import_module(f"{home}.tables").tables(result, details=details)

    def documents(self) -> tuple[type[Document], ...]:
        """Give the classes of a result and of several."""
        return (self.result, self.comparison)

    def baseline(self, results: Sequence[AnyTimed]) -> str:
        """Name of the result that speed-ups are given over where nothing is asked for."""
        ran = [one.name for one in results]
        return next((name for name in self.baselines if name in ran), ran[0])

    def compared(
        self, baseline: str, results: Sequence[AnyTimed], left_out: Mapping[str, str]
    ) -> ComparisonBase[AnyTimed]:
        """Put results beside each other."""
        made: ComparisonBase[AnyTimed] = self.comparison(
            baseline=baseline, results=list(results), left_out=dict(left_out)
        )
        return made


AnyExperiment = Experiment[Any, Any, Any]
AnySchemeExperiment = SchemeExperiment[Any, Any, Any]


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
        message = f"{type(given).__name__}: it is no result or comparison of an experiment"
        raise UserError(message)


EXPERIMENTS = Registry(
    ("layer", "dense", "collective", "place", "train", "serve", "serve.arrivals", "choose")
)
"""Every experiment: a folder below `replay.experiments` each, whose ``experiment.py`` has it."""
