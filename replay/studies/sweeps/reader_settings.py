"""A study with settings of the reader's in place of its own: another model, machine or number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replay.errors import UserError, value_text
from replay.files import parse_toml
from replay.studies.sweeps.free import left_out
from replay.studies.sweeps.points import LABEL, Choice, axes_of, check_setting, place, show
from replay.studies.sweeps.study import Grid, QuantityColumn, Rivalry, Scalar, Study


def parse_held(pairs: Sequence[str]) -> dict[str, Scalar]:
    """Settings of the form ``KEY=VALUE``; a value that TOML does not read as a scalar is a text.

    Raises
    ------
    UserError
        If one has no key or no value, or is given twice.
    """
    found: dict[str, Scalar] = {}
    for pair in pairs:
        key, _, text = pair.partition("=")
        if not key or not text:
            message = f"--fix {value_text(pair)}: expected KEY=VALUE, such as trace.model=olmoe-1b-7b"
            raise UserError(message)
        if key in found:
            message = f"--fix {value_text(pair)}: {value_text(key)} is given twice"
            raise UserError(message)
        try:
            document = parse_toml(f"value = {text}")
        except ValueError:
            document = {}
        value = document.get("value") if len(document) == 1 else None
        found[key] = value if isinstance(value, bool | int | float | str) else text
    return found


def hold(study: Study, held: Mapping[str, Scalar]) -> Study:
    """Hold settings at other values in all grids.

    An axis that varies a held setting keeps only its first value that sets it, now to the held
    value. Grids without such a setting are left out, and so is what is said of the study's own
    settings: notes, what papers publish, and columns over a value that is no longer there.

    Raises
    ------
    UserError
        If no grid has all settings, rivals differ by one of them, or no value of an axis sets all that it varies
        of them.
    """
    grids, problem = [], None
    for number, grid in enumerate(study.grids):
        where = place(study, number)
        try:
            for key, value in held.items():
                check_setting(grid.experiment, key, value, where)
        except UserError as error:
            problem = problem or error
        else:
            grids.append(_hold(grid, held, where))
    if not grids:
        assert problem is not None
        raise problem
    said = ", ".join(f"{key} = {show(value)}" for key, value in held.items())
    changed = {"grids": grids, "notes": "", "held": dict(held), "title": f"{study.title}; {said}"}
    return study.model_copy(update=changed)


def _hold(grid: Grid, held: Mapping[str, Scalar], where: str) -> Grid:
    rivals = (grid.answer or Rivalry(rivals=grid.across or "scheme")).rivals
    axes: dict[str, list[dict[str, Scalar]]] = {}
    varied: set[str] = set()
    own_settings = grid.model_copy(update={"fixed": {**grid.fixed, **held}})
    for axis, choices in axes_of(own_settings, where).items():
        keys = [key for key in held if any(key in one.settings for one in choices)]
        if keys and axis == rivals:
            message = f"{where}: {keys[0]} cannot be fixed: values of {axis!r}, which compete, differ by it"
            raise UserError(message)
        varied |= set(keys)
        if keys and not any(set(keys) <= one.settings.keys() for one in choices):
            message = f"{where}: {' and '.join(keys)} cannot be fixed together: no value of {axis!r} has both"
            raise UserError(message)
        axes[axis] = [_with(choices, keys, held)] if keys else [{LABEL: one.label, **one.settings} for one in choices]
    answer = grid.answer and grid.answer.model_copy(update={"under": None})  # it may be what is held
    seeds = [held["trace.seed"]] if grid.seeds and "trace.seed" in held else grid.seeds
    over = {column.header: _lost_baseline(column, axes) for column in grid.columns}
    told = [f"Without the column {header!r}, over {lost}." for header, lost in over.items() if lost]
    own = {
        "answer": answer,
        "columns": [column for column in grid.columns if not over[column.header]],
        "seeds": seeds,
        "notes": "\n".join(told),
        "claims": [],
        "free": [],
        "corners": [],
        "leave_out": left_out(grid.leave_out, axes),
    }
    fixed = grid.fixed | {key: value for key, value in held.items() if key not in varied}
    return grid.model_copy(update={"fixed": fixed, "axes": axes, **own})


def _lost_baseline(column: QuantityColumn, axes: Mapping[str, Sequence[Mapping[str, Scalar]]]) -> str:
    """Name the baseline of a column that its grid no longer has; empty where it has one or needs none."""
    for axis, value in (column.baseline or {}).items():
        if axis in axes and show(value) not in [show(one[LABEL]) for one in axes[axis]]:
            return f"{axis} {show(value)}"
    return ""


def _with(choices: Sequence[Choice], keys: Sequence[str], held: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The first value of an axis that has a setting, with other values of these."""
    first = next(one for one in choices if set(keys) <= one.settings.keys())
    return {**first.settings, **{key: held[key] for key in keys}, LABEL: ", ".join(show(held[key]) for key in keys)}
