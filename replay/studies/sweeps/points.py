"""The settings of every point that a study spans, by name.

Of any experiment:

==========================  =======================================================================
setting                     is
==========================  =======================================================================
``scheme``                  a scheme, or what else `SchemeExperiment.under` takes for one
``SCHEME.OPTION``           an option of a scheme, heeded where ``scheme`` is that scheme
``system``                  a preset or a TOML file, where the experiment has a machine
``system.SECTION.KEY``      a hardware value, such as ``system.link.links_per_gpu``
others                      fields of the experiment's spec (`Spec.words`) that are no table or list
==========================  =======================================================================

Layers of a trace have no field for the trace, but groups for what it is made from:

==========================  =======================================================================
setting                     is
==========================  =======================================================================
``trace.file``              a recorded trace: a name of the library, or a file; ``trace.model``
                            gives the shape of its model, where it has none
``trace.KEY``               what a trace is generated from: ``kind``, ``model``, ``layers`` (1
                            unless given), ``seed``, ``group_limited``, parameters of the kind
``shape.KEY``               a size in place of the model's, such as ``shape.topk``
``total_tokens``            tokens of all ranks, in place of ``tokens_per_rank``
==========================  =======================================================================

Ranks, tokens and phase of a generated trace are those of the run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from replay.errors import UserError, unknown, value_text
from replay.experiments.base.experiment import EXPERIMENTS
from replay.experiments.base.scheme_experiment import SchemeExperiment
from replay.experiments.base.spec import present_words
from replay.schemes.registry import COMPARED, EVERY
from replay.studies.sweeps.study import LAYER

if TYPE_CHECKING:
    from replay.experiments.base.experiment import AnyExperiment
    from replay.studies.sweeps.study import Grid, Scalar, Study

OF_THE_TRACE = frozenset({"trace", "content_id", "model"})
"""Settings of layers in place of which a study gives what a trace is made from."""
TRACE_SETTINGS: dict[str, tuple[type, ...]] = {
    "file": (str,),
    "kind": (str,),
    "model": (str,),
    "layers": (int,),
    "seed": (int,),
    "group_limited": (bool,),
}
LEAST: dict[str, int] = {"total_tokens": 1, "trace.layers": 1, "trace.seed": 0}
GROUPS = ("trace", "shape")
"""Groups of settings that layers of a trace alone have."""
LABEL = "label"
MOST_POINTS = 100_000  # planning takes about a millisecond per point, and a replay far longer


@dataclass(frozen=True)
class Choice:
    """One value of an axis: what it is called and what it sets."""

    label: str
    settings: Mapping[str, Scalar]


@dataclass(frozen=True)
class Point:
    """One replay that a study asks for.

    Attributes
    ----------
    grid
        Position of its grid in the study.
    labels
        Label of its value on every axis, in the order of the axes.
    seed
        Seed of the trace, where the grid has several.
    settings
        Everything the study says about it, by dotted name.
    experiment
        Name of what is replayed.
    """

    grid: int
    labels: tuple[str, ...]
    seed: int | None
    settings: Mapping[str, Scalar] = field(hash=False)
    experiment: str = LAYER


def axes_of(grid: Grid, where: str) -> dict[str, list[Choice]]:
    """Choices of every axis.

    Parameters
    ----------
    where
        What to call the grid in errors.

    Raises
    ------
    UserError
        If a setting or a label is not possible.
    """
    axes: dict[str, list[Choice]] = {}
    for name, values in grid.axes.items():
        if not values:
            message = f"{where}: axis {name!r} is empty; give at least one value"
            raise UserError(message)
        choices = []
        for value in values:
            if isinstance(value, dict):
                settings = {key: fill(entry, grid.fixed) for key, entry in value.items() if key != LABEL}
                label = fill(value.get(LABEL, _label(settings)), grid.fixed)
            else:
                settings, label = present_words({name: value}), show(value)
            if not settings:
                message = f"{where}: axis {name!r}: {label!r} sets nothing"
                raise UserError(message)
            for key, entry in settings.items():
                check_setting(grid.experiment, key, entry, f"{where}: axis {name!r}")
            if not str(label).isprintable():
                message = f"{where}: axis {name!r}: label {label!r} must be one line of text"
                raise UserError(message)
            choices.append(Choice(str(label), settings))
        labels = [choice.label for choice in choices]
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice is not None:
            message = f"{where}: axis {name!r} has two values called {twice!r}; give each a label"
            raise UserError(message)
        axes[name] = choices
    for one in grid.leave_out:
        check_labels(one, axes, f"{where}: leave_out")
    for name in grid.geomean:
        if name not in axes or name == grid.across:
            possible = [one for one in axes if one != grid.across]
            message = f"{where}: geomean: {unknown('axis of rows', name, possible)}"
            raise UserError(message)
    if grid.across is not None and grid.across not in axes:
        message = f"{where}: across: {unknown('axis', grid.across, axes)}"
        raise UserError(message)
    return axes


def fill(value: Scalar, fixed: Mapping[str, Scalar]) -> Scalar:
    """Put settings that all points share where a text names them in braces, such as ``"EP{ranks}"``.

    A text that is nothing else gives the setting itself.
    """
    if not isinstance(value, str):
        return value
    for name, one in fixed.items():
        if value == f"{{{name}}}":
            return one
        value = value.replace(f"{{{name}}}", show(one))
    return value


def is_meant(where: Mapping[str, Scalar | list[Scalar]], axes: Iterable[str], labels: Sequence[str]) -> bool:
    """Tell whether values of axes select a point.

    Parameters
    ----------
    where
        Value or values of each axis that selects.
    axes, labels
        Names of the axes of its grid, and the label of the point's value on each.
    """
    chosen = dict(zip(axes, labels, strict=True))
    return all(
        chosen[name] in [show(one) for one in (value if isinstance(value, list) else [value])]
        for name, value in where.items()
    )


def check_labels(where: Mapping[str, Scalar | list[Scalar]], axes: Mapping[str, Sequence[Choice]], place: str) -> None:
    """Refuse values of axes that a grid has not.

    Parameters
    ----------
    place
        What to call them in errors.

    Raises
    ------
    UserError
        Saying what the grid has.
    """
    for name, value in where.items():
        if name not in axes:
            message = f"{place}: {unknown('axis', name, axes)}"
            raise UserError(message)
        known = [choice.label for choice in axes[name]]
        for one in value if isinstance(value, list) else [value]:
            if show(one) not in known:
                message = f"{place}: {unknown(f'value of axis {name!r}', show(one), known)}"
                raise UserError(message)


def points_of(study: Study) -> list[Point]:
    """Every point of every grid, the last axis varying fastest, seeds within.

    Raises
    ------
    UserError
        If a setting is not possible, or is given twice, or there are more than `MOST_POINTS`.
    """
    sizes = [math.prod(len(values) for values in grid.axes.values()) * max(1, len(grid.seeds)) for grid in study.grids]
    if sum(sizes) > MOST_POINTS:
        largest = sizes.index(max(sizes))
        message = (
            f"study {study.name!r} has {sum(sizes):,} points; at most {MOST_POINTS:,} are possible "
            f"(grid {largest} alone has {sizes[largest]:,})"
        )
        raise UserError(message)
    points: list[Point] = []
    for number, grid in enumerate(study.grids):
        points += _points_of_grid(grid, number, place(study, number))
    return points


def place(study: Study, number: int) -> str:
    """Name of a grid in errors."""
    title = study.grids[number].title
    return f"study {study.name!r}: grid {number}" + (f" ({title})" if title else "")


def _points_of_grid(grid: Grid, number: int, where: str) -> Iterator[Point]:
    for key, value in grid.fixed.items():
        check_setting(grid.experiment, key, value, f"{where}: fixed")
    axes = axes_of(grid, where)
    if len(set(grid.seeds)) < len(grid.seeds):
        message = f"{where}: seeds = {grid.seeds}: each must be there once"
        raise UserError(message)
    seen: dict[str, str] = {}
    if grid.seeds:
        seed_setting = seed_of(grid.experiment, where)
        seen[seed_setting] = "seeds"
    for name, choices in axes.items():
        for key in dict.fromkeys(key for choice in choices for key in choice.settings):
            if key in seen:
                message = f"{where}: {key} is varied by {seen[key]!r} and by {name!r}"
                raise UserError(message)
            seen[key] = name
    for combination in itertools.product(*axes.values()):
        labels = tuple(choice.label for choice in combination)
        if any(is_meant(one, axes, labels) for one in grid.leave_out):
            continue
        for seed in (*grid.seeds,) or (None,):
            settings = dict(grid.fixed)
            for choice in combination:
                settings |= choice.settings
            if seed is not None:
                settings[seed_setting] = seed
            yield Point(number, labels, seed, settings, grid.experiment)


def seed_of(experiment: str, where: str) -> str:
    """Name of the setting that a grid's seeds are values of.

    Raises
    ------
    UserError
        If the experiment draws nothing.
    """
    if experiment == LAYER:
        return "trace.seed"
    if "seed" not in EXPERIMENTS[experiment].spec.words():
        message = f"{where}: seeds: a {EXPERIMENTS[experiment].title} draws nothing from a seed"
        raise UserError(message)
    return "seed"


def check_setting(experiment: str, key: str, value: Scalar, where: str) -> None:
    """Refuse a setting that does not exist, or a value that is not of its type.

    Values of hardware, options and generators are checked by those who know them.

    Parameters
    ----------
    experiment
        Name of what is replayed.

    Raises
    ------
    UserError
        Saying what is possible.
    """
    if type(value) is int and abs(value) >= 2**63:  # a column of the data set has no more
        message = f"{where}: {key} = {value_text(value)}: expected a number below 2**63"
        raise UserError(message)
    if isinstance(value, float) and not math.isfinite(value):
        message = f"{where}: {key} = {value}: expected a finite number"
        raise UserError(message)
    try:
        asked = EXPERIMENTS.find(experiment)
        if key in plain_settings(asked):
            asked.spec.check_setting(key, value)
        else:
            _check_own_setting(asked, key, value)
    except UserError as error:
        message = f"{where}: {error}"
        raise UserError(message) from None


def split_groups(settings: Mapping[str, Scalar]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Settings without a group, and those of each group that there is, by name."""
    plain: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        group, dot, name = key.partition(".")
        if dot:
            groups.setdefault(group, {})[name] = value
        else:
            plain[key] = value
    return plain, groups


def plain_settings(experiment: AnyExperiment) -> list[str]:
    """Words of a spec's fields that a study may set: neither tables nor what traces are made of."""
    words = experiment.spec.words()
    tables = {"overrides", *experiment.spec.OPTIONS_OF.values()}
    apart = OF_THE_TRACE if experiment.name == LAYER else frozenset()
    return [word for word, name in words.items() if name not in tables and word not in apart]


def groups_of(experiment: AnyExperiment) -> list[str]:
    """Groups of settings that a study of an experiment has, schemes with their options apart."""
    machine = ["system"] if "overrides" in experiment.spec.model_fields else []
    return [*(GROUPS if experiment.name == LAYER else ()), *machine]


def schemes_of(experiment: AnyExperiment) -> list[str]:
    """Names of schemes whose options a study of an experiment may set."""
    if experiment.name == LAYER:
        return list(COMPARED)
    return list(EVERY) if isinstance(experiment, SchemeExperiment) else []


def _check_own_setting(experiment: AnyExperiment, key: str, value: Scalar) -> None:
    """Refuse what `check_setting` refuses, of settings that are no fields of the spec."""
    of_layers = {"total_tokens": (int,)} if experiment.name == LAYER else {}
    wanted: tuple[type, ...] | None = of_layers.get(key)
    group, dot, name = key.partition(".")
    prefixes, schemes = groups_of(experiment), schemes_of(experiment)
    is_group = group in prefixes or group in schemes
    if wanted is None and group == "trace" and dot and is_group:
        wanted = TRACE_SETTINGS.get(name, (bool, int, float, str))
    if wanted is None and dot and is_group and not name:
        message = f"{key!r} lacks the name of a setting behind {group!r} and its dot"
        raise UserError(message)
    if wanted is None and dot and not is_group:
        raise unknown("group of settings", group, [*prefixes, *schemes])
    if wanted is None and not dot:
        forms = [f"{prefix}.KEY" for prefix in prefixes] + ["SCHEME.OPTION"] * bool(schemes)
        raise unknown("setting", key, [*plain_settings(experiment), *of_layers, *forms])
    if wanted is not None and type(value) not in wanted:
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        message = f"{key} = {value!r}: expected {' or '.join(names[t] for t in wanted)}"
        raise UserError(message)
    if key in LEAST and isinstance(value, int) and value < LEAST[key]:
        message = f"{key} must be at least {LEAST[key]}, not {value}"
        raise UserError(message)


def _label(settings: Mapping[str, Scalar]) -> str:
    """Settings that vary together, the scheme by its name alone."""
    return ", ".join(
        show(value) if key == "scheme" else f"{key.rpartition('.')[2]}={show(value)}" for key, value in settings.items()
    )


def show(value: Scalar) -> str:
    """A value as a label."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
