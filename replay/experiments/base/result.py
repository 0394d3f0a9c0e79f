"""The base of results and comparisons: their JSON, their files, their rows and their ranking.

Times are microseconds (exact multiples of a picosecond), bytes are whole numbers, and lists have
one entry per GPU. Nothing depends on the clock or the machine that computed it: the same input
gives the same bytes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from pydantic import Field, JsonValue, model_validator

from replay.chains.tuning import Trial
from replay.experiments.base.documents import json_text
from replay.experiments.base.names import check_baseline
from replay.experiments.base.rows import result_row
from replay.files import write_text
from tracegen.shared.display.exhibit import Exhibit
from tracegen.shared.strict import Strict

if TYPE_CHECKING:
    from hwmodel import System
    from replay.measure.result import Measures
    from replay.schemes.base import AnyScheme
    from replay.schemes.outside import AllowCode


class SystemDescription(Strict):
    """The machine by value.

    Attributes
    ----------
    name, num_gpus
        Of the preset or file, and GPUs in use.
    values
        Every value by dotted key, such as ``link.links_per_gpu``.
    """

    name: str
    num_gpus: int
    values: dict[str, JsonValue]

    @classmethod
    def of(cls, system: System, num_gpus: int | None = None) -> Self:
        """Describe a system, of which `num_gpus` are in use; None is all."""
        values = system.describe()
        name, every = values.pop("name"), values.pop("num_gpus")
        return cls(name=name, num_gpus=every if num_gpus is None else num_gpus, values=values)


class SchemeDescription(Strict):
    """The scheme, its source, and all its options by value.

    Attributes
    ----------
    assumes
        Assumptions of the scheme's model, in words; empty in files of versions that did not say.
    proposes, lacking
        Hardware that the scheme adds to a system, and what of it the system lacks.
    options
        The options that the result was made with, those that tuning chose included.
    code
        SHA-256 of the source of a scheme from outside; empty for one of moereplay's own.
    tuned
        What tuning tried, in order; the first entry is what it began with.
    """

    name: str
    source: str
    assumes: str = ""
    proposes: list[str]
    traffic: str | dict[str, str] = ""
    options: dict[str, bool | int | float | str]
    lacking: list[str] = Field(default_factory=list)
    code: str = ""
    tuned: list[Trial] = Field(default_factory=list)

    @classmethod
    def of(cls, scheme: AnyScheme, system: System, trials: Sequence[Trial] = ()) -> Self:
        """Describe a scheme with its options, as it runs on a system.

        Parameters
        ----------
        scheme
            With the options that the result was made with.
        system
            The machine, which may lack what the scheme proposes.
        trials
            What tuning tried.
        """
        described = scheme.describe(system, trials)
        return cls(**{name: described[name] for name in cls.model_fields if name in described})


def package_version() -> str:
    """Version of the installed product."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("moereplay")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"


__version__ = package_version()
"""Version of moereplay that is installed."""


class Document(Strict, Exhibit):
    """Anything that a command writes as JSON with a ``format``."""

    LEFT_OUT_IF_NONE: ClassVar[frozenset[str]] = frozenset()
    """Fields that the JSON has only where something asked for them."""

    def to_json(self) -> str:
        """JSON text: sorted keys, ends with a newline, the same bytes for the same input."""
        absent = {name for name in self.LEFT_OUT_IF_NONE if getattr(self, name) is None}
        return json_text(self.model_dump(mode="json", by_alias=True, exclude=absent))

    def save(self, path: str | Path) -> None:
        """Write the JSON, all of it or nothing.

        Raises
        ------
        UserError
            If the file cannot be written.
        """
        write_text(path, self.to_json())


class ResultBase(Document):
    """One result: its identity, who made it, and, in each experiment, its spec and measures.

    Attributes
    ----------
    run_id
        SHA-256 of everything that decides the result; see `replay.experiments.base.identity`.
    version
        Of moereplay.
    """

    ENTERED: ClassVar[frozenset[str]] = frozenset({"model"})
    """Fields that say what entered, beside the spec and descriptions of systems and schemes."""

    run_id: str
    version: str

    @property
    @abstractmethod
    def name(self) -> str:
        """Name that tables and charts give it."""

    def _rows(self) -> list[dict[str, Any]]:
        """One."""
        return [result_row(self.name, self)]


class TimedResult(ResultBase):
    """A result of schemes with a time, by which it can be compared."""

    @property
    def name(self) -> str:
        """Name among the results of a comparison: that of the scheme."""
        return self.schemes[0].name

    @property
    def schemes(self) -> list[SchemeDescription]:
        """Schemes that it was made with, each once."""
        return [self.scheme]  # type: ignore[attr-defined]  # of those with one

    @property
    def asked_options(self) -> dict[str, Mapping[str, Any]]:
        """Options that were asked for, by name of the scheme."""
        return {self.name: self.spec.options}  # type: ignore[attr-defined]  # of those with one

    @property
    @abstractmethod
    def headline_us(self) -> float:
        """Time that speed-ups are ratios of, in microseconds."""

    @property
    def schedules(self) -> list[Measures]:
        """Measures of each schedule that the time is the sum of; none where it is composed."""
        return []

    @property
    def composed_us(self) -> dict[tuple[str, str], float]:
        """Parts of a time that is composed, by where and what it was spent on; they add up."""
        return {}


AnyResult = TypeVar("AnyResult", bound=ResultBase)
AnyTimed = TypeVar("AnyTimed", bound=TimedResult)


class ComparisonBase(Document, Generic[AnyTimed]):
    """Several results that differ in the scheme.

    Attributes
    ----------
    baseline
        Name of the result that speed-ups are given over.
    left_out
        By name, why a scheme was not replayed.
    """

    baseline: str
    results: list[AnyTimed] = Field(min_length=1)
    left_out: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_its_baseline(self) -> Self:
        check_baseline(self.baseline, self._known_names())
        return self

    def _known_names(self) -> Sequence[str]:
        """Names that a baseline may have."""
        return [one.name for one in self.results]

    @property
    def base(self) -> AnyTimed:
        """The baseline's result."""
        return self[self.baseline]

    def __getitem__(self, name: str) -> AnyTimed:
        """Result by its name."""
        for result in self.results:
            if result.name == name:
                return result
        raise self.missing(name, name)

    def missing(self, name: str, otherwise: str) -> KeyError:
        """Error for a result that is not there, with the reason where it was left out."""
        reason = self.left_out.get(name)
        return KeyError(otherwise if reason is None else f"{name} is left out: {reason}")

    def speed_up(self, name: str) -> float:
        """Ratio of the baseline's time to a result's."""
        return self.base.headline_us / self[name].headline_us

    @property
    def ranking(self) -> list[AnyTimed]:
        """The results, the fastest first; equal ones in their order."""
        return sorted(self.results, key=lambda one: one.headline_us)

    def _rows(self) -> list[dict[str, Any]]:
        """One for each result."""
        return [row for one in self.results for row in one._rows()]


def allowed_by(results: Iterable[TimedResult], *, allow_code: AllowCode) -> AllowCode:
    """Files that results may have executed: where that is allowed, those they were made with."""
    made_with = frozenset(scheme.code for one in results for scheme in one.schemes if scheme.code)
    return made_with if allow_code and made_with else allow_code


def scheme_of_old(scheme: Mapping[str, Any]) -> dict[str, Any]:
    """Make the description of a scheme of a file whose schema had it as free JSON.

    It did not say what the machine lacked: all that the scheme proposes counts.
    """
    known = SchemeDescription.model_fields
    kept = {name: value for name, value in scheme.items() if name in known}
    return {"lacking": scheme["proposes"], **kept}
