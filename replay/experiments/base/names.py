"""Names of results that stand beside each other: what tables print, and what commands take."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from replay.errors import UserError, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from replay.experiments.layer.spec import RunSpec

LACKING = "*"
"""What follows the name of a scheme where the system lacks what the scheme proposes."""


UNREAL = frozenset({"ideal"})
"""Schemes that are bounds and model no kernels."""


class NamedScheme(Protocol):
    """Facts of a result's scheme from which names are made."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Its options by name."""

    @property
    def lacking(self) -> Sequence[str]:
        """Hardware that the scheme proposes and the system lacks."""


class NamedRow(Protocol):
    """A result, as far as names are made of it."""

    @property
    def scheme(self) -> NamedScheme:
        """Its scheme."""

    @property
    def placement(self) -> str:
        """Its placement."""

    @property
    def spec(self) -> RunSpec:
        """Spec that was asked for."""


AnyRow = TypeVar("AnyRow", bound=NamedRow)


def row_names(results: Sequence[NamedRow], *, marked: bool = True) -> list[str]:
    """Name each result by its scheme, by its placement where there are several, and by options.

    Parameters
    ----------
    results
        In the order of the names.
    marked
        Whether a star says that the system lacks what a scheme proposes.

    Returns
    -------
    Such as ``deepep-ll, eplb:40``. Options are named where nothing else tells two results apart,
    those that are not the same; two names are one if the results are.
    """
    names = [one.scheme.name + (LACKING if marked and one.scheme.lacking else "") for one in results]
    if len({one.placement for one in results}) > 1:
        placed = [one.spec.placement for one in results]
        short = {spec: short_placement(spec) for spec in placed}
        if len(set(short.values())) < len(short):  # files of one name in several folders
            short = {spec: spec for spec in placed}
        names = [f"{name}, {short[spec]}" for name, spec in zip(names, placed, strict=True)]
    options = [one.scheme.options for one in results]
    told = [_told_apart(own, _like(name, names, options)) for name, own in zip(names, options, strict=True)]
    return [f"{name} ({more})" if more else name for name, more in zip(names, told, strict=True)]


def short_placement(spec: str) -> str:
    """A placement's specification without the folder of its file."""
    kind, _, argument = spec.partition(":")
    return PurePath(argument).name if kind == "file" else spec


def find_one(results: Sequence[AnyRow], name: str) -> AnyRow:
    """Find the one result that a name means.

    Parameters
    ----------
    results
        Of a comparison.
    name
        As its tables print it, with or without the star; or that of a scheme which has one row.

    Raises
    ------
    UserError
        If there is none, or a scheme has several rows; with the names that there are.
    """
    names, bare = row_names(results, marked=False), [one.scheme.name for one in results]
    fitting = {at for at, known in enumerate(names) if known == name}
    fitting = fitting or {at for at, known in enumerate(row_names(results)) if known == name}
    fitting = fitting or {at for at, known in enumerate(bare) if known == name.removesuffix(LACKING)}
    if not fitting:
        raise unknown("scheme", name, names)
    if len({names[at] for at in fitting}) > 1:
        rows = " or ".join(repr(names[at]) for at in sorted(fitting))
        message = f"{name!r} is the name of {len(fitting)} rows: write {rows}"
        raise UserError(message)
    return results[min(fitting)]


def check_baseline(baseline: str, names: Sequence[str]) -> None:
    """Refuse a comparison whose baseline is none of its results.

    Raises
    ------
    ValueError
        With the names that there are.
    """
    if baseline not in names:
        message = f"the baseline {baseline!r} is none of {', '.join(names)}"
        raise ValueError(message)


def _like(name: str, names: Sequence[str], options: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Options of all results of a name."""
    return [each for known, each in zip(names, options, strict=True) if known == name]


def _told_apart(own: Mapping[str, object], others: Sequence[Mapping[str, object]]) -> str:
    """Options that are not the same in all of these."""
    return ", ".join(f"{key}={value}" for key, value in own.items() if any(other.get(key) != value for other in others))
