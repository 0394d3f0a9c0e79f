"""A study: one question, the grids of replays that answer it, the columns to show.

A study is a TOML file::

    title = "..."
    question = "..."

    [fixed]                        # settings that all points share
    system = "gh200-nvl32"
    trace.kind = "normal"
    trace.model = "dysharp-s"
    tokens_per_rank = 1024

    [axes]                         # every combination is one point
    scheme = ["deepep", "dysharp"]
    ranks = [4, 8, 16]

    [[columns]]
    header = "layer us"
    path = "totals.mean_layer_us"

What is replayed is the `experiment` that the file names, layers of a trace unless it says another,
such as ``experiment = "train"``. Several tables take ``[[grid]]`` with ``experiment``, ``fixed``,
``axes``, ``columns`` of their own; what stands at the top holds for each.
`replay.studies.sweeps.points` says which settings there are. A grid that repeats what a paper
measured has ``[[grid.claims]]``, see `Claim`, and ``[[free]]`` for what the paper leaves open, see
`Free`. What decides the question is ``[grid.answer]``, see `Rivalry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from replay.errors import UserError, unknown
from replay.experiments.base.spec import present_words
from replay.files import is_file, parse_toml, read_input
from tracegen.shared.strict import StrictDocument

PACKAGE = "replay.studies"
LAYER = "layer"
"""The experiment of a grid that names none."""

Scalar = bool | int | float | str
Text = Annotated[str, Field(min_length=1)]
Line = Annotated[str, Field(min_length=1, pattern=r"^[^\r\n]+$")]


Labels = dict[str, Scalar | list[Scalar]]
"""Values of axes, one or several of each."""


class QuantityColumn(StrictDocument):
    """One quantity of the result, as a column.

    Attributes
    ----------
    header
        Heading, with the unit.
    path
        Where it stands in the JSON of a result: names and positions joined by dots, ``*`` for all
        entries of a list or of a table, such as ``layers.0.measures.wire_bytes.dispatch.uplink``.
        Of several paths the values are added, each reduced before.
    reduce
        What to make of a list: its ``min``, ``mean``, ``max`` or ``sum``.
    per
        Another path; the value is divided by what stands there.
    scale
        The value is multiplied by this positive number, such as 1e-6 for MB.
    digits
        Digits after the decimal point.
    speedup_over, relative_to
        Values of axes that make this point the baseline, such as ``{ scheme = "deepep" }``: the
        column shows the baseline's value over this one, or this one over the baseline's.
    """

    header: Line
    path: Text | Annotated[list[Text], Field(min_length=1)]
    reduce: Literal["min", "mean", "max", "sum"] | None = None
    per: Text | None = None
    scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    digits: int = Field(default=1, ge=0, le=9)
    speedup_over: dict[str, Scalar] | None = Field(default=None, min_length=1)
    relative_to: dict[str, Scalar] | None = Field(default=None, min_length=1)

    @property
    def baseline(self) -> dict[str, Scalar] | None:
        """Values of axes of the baseline point, which divides this one or is divided by it."""
        return self.speedup_over if self.relative_to is None else self.relative_to


class Claim(StrictDocument):
    """A number that a paper publishes, to stand beside the one that is replayed.

    Attributes
    ----------
    says
        What the number is, in words, and where it is published.
    published
        The number.
    column
        Header of the column of the grid that it is compared with.
    where
        Values of axes of the points that it is about, one or a list; all where it says nothing.
    reduce
        What the paper makes of the points: their ``min``, ``max``, ``mean`` or ``geomean``.
    """

    says: Line
    published: float = Field(allow_inf_nan=False)
    column: Line
    where: Labels = Field(default_factory=dict)
    reduce: Literal["min", "max", "mean", "geomean"] = "geomean"


class Rivalry(StrictDocument):
    """The race that answers the question: values of one axis that do the same, by one column.

    A study none of whose grids has one is a race in each: of its schemes, or of what `across` names,
    by its first column that is a time. Where some have one, the others are evidence, and no answer.

    Attributes
    ----------
    rivals
        The axis whose values compete.
    column
        Header of the column that decides [the first that is a time].
    base
        Value that the others are told against, where the question is what something costs or is
        worth; without it the question is who is first.
    most
        Whether the largest value wins, as of a rate.
    along
        The axis along which the lead may change, which has numbers [the longest such].
    assumed
        Axes whose first value is assumed and whose others are what it may be instead: the answer is
        of the first, and says which others turn it.
    under
        Words for an assumption that decides and that no axis varies.
    errors
        Where the experiment is not layers, parts of validation whose errors apply, as in
        ``residuals.csv``.
    families
        Rivals by the family that they belong to: of each family the best competes, at each place.
    """

    rivals: Line
    column: Line | None = None
    base: Line | None = None
    most: bool = False
    along: Line | None = None
    assumed: list[Line] = Field(default_factory=list)
    under: Line | None = None
    errors: list[Line] = Field(default_factory=list)
    families: dict[Line, list[Line]] = Field(default_factory=dict)


class Free(StrictDocument):
    """An input that a paper leaves open: claims are replayed with each of its values.

    Attributes
    ----------
    input
        What it is.
    why
        Why it is free: what the paper says of it, and what it does not.
    stated
        The value that the grid has, in words: the assumption.
    others
        The other values it may have had: tables of settings, each with a ``label``.
    at
        Values of one axis of the points that it changes, one or a list; all points where it says
        nothing. Grids without these values are left as they are.
    """

    input: Line
    why: Line
    stated: Line
    others: list[dict[str, Scalar]] = Field(min_length=1)
    at: Labels = Field(default_factory=dict, max_length=1)


class Grid(StrictDocument):
    """Every combination of some axes, shown as one table.

    Attributes
    ----------
    title, notes
        Heading and remarks of the table.
    experiment
        Name of what is replayed, one of `replay.experiments.base.experiment.EXPERIMENTS`.
    fixed
        Settings of all its points, by dotted name.
    axes
        Values by the name of a setting; or tables of settings that vary together, each with a
        ``label`` if it should have one, under any name.
    across
        An axis whose values become columns instead of rows. On a page a quantity then stands for a
        baseline alone where the others have their ratio to it.
    seeds
        Seeds of the synthetic trace, or of what else an experiment draws; the table shows mean,
        least and largest over them.
    leave_out
        Combinations that are not asked for: values of axes, one or a list, each.
    geomean
        Axes over whose values a last row has geometric means, of columns that are ratios: with a
        baseline, or `per` something.
    columns
        What to show.
    answer
        What decides the study's question.
    claims
        Published numbers, shown in a table of their own beside the replayed ones.
    free
        Inputs that the paper leaves open: each alone takes all its values, and the claims are
        replayed with each.
    corners
        Values of several free inputs at a time, by label: ``{ gated = "not gated" }``.
    """

    title: str = ""
    notes: str = ""
    experiment: str = LAYER
    fixed: dict[str, Scalar] = Field(default_factory=dict)
    axes: dict[str, list[Scalar | dict[str, Scalar]]] = Field(default_factory=dict)
    across: str | None = None
    seeds: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    leave_out: list[Labels] = Field(default_factory=list)
    geomean: list[str] = Field(default_factory=list)
    columns: list[QuantityColumn] = Field(default_factory=list)
    answer: Rivalry | None = None
    claims: list[Claim] = Field(default_factory=list)
    free: list[Free] = Field(default_factory=list)
    corners: list[dict[str, Line]] = Field(default_factory=list)


class Study(StrictDocument):
    """A question and the grids that answer it.

    Attributes
    ----------
    name
        Of the file, or of the study that comes with the package.
    title, question, notes
        For people.
    grids
        Complete: what the file gives for all of them is in each.
    held
        Settings that a reader gave in place of the file's.
    """

    name: Text
    title: Line
    question: Text
    notes: str = ""
    grids: list[Grid] = Field(min_length=1)
    held: dict[str, Scalar] = Field(default_factory=dict)

    @property
    def fixes(self) -> list[str]:
        """Words of the command line that hold these settings."""
        return fix_words(self.held)


def fix_words(held: Mapping[str, Scalar]) -> list[str]:
    """Words of a command line that hold settings at these values."""
    texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in held.items()}
    return [word for key, text in texts.items() for word in ("--fix", f"{key}={text}")]


def study_names() -> list[str]:
    """Names of the studies that come with the package, sorted."""
    return sorted(
        entry.name.removesuffix(".toml") for entry in resources.files(PACKAGE).iterdir() if entry.name.endswith(".toml")
    )


def load_study(name_or_path: str | Path) -> Study:
    """Read a study.

    Parameters
    ----------
    name_or_path
        A name of `study_names`, or a TOML file.

    Raises
    ------
    UserError
        If there is no such study, or the file says something that is not possible.
    """
    given = str(name_or_path)
    if given in study_names():
        return parse_study(study_text(given), given, f"study {given!r}")
    return parse_study(study_text(given), Path(given).stem, given)


def study_text(name_or_path: str | Path) -> str:
    """Text of a study's file; parameters as those of `load_study`, and its errors of reading."""
    given = str(name_or_path)
    if given in study_names():
        return (resources.files(PACKAGE) / f"{given}.toml").read_text("utf-8")
    path = Path(given)
    if path.suffix != ".toml" and not is_file(path):
        problem = unknown("study", given, study_names())
        message = f"{problem}; or the path of a .toml file"
        raise UserError(message)
    return read_input(given, "the study", encoding="utf-8-sig")


def parse_study(text: str, name: str, where: str) -> Study:
    """Read the text of a study.

    Parameters
    ----------
    text
        TOML.
    name
        What to call the study.
    where
        What to call the file in errors.

    Raises
    ------
    UserError
        If it is not TOML, or a key or value is not what is possible.
    """
    try:
        document = parse_toml(text)
    except ValueError as error:
        message = f"{where}: not valid TOML: {error}"
        raise UserError(message) from None
    shared = {key: document.pop(key) for key in Grid.model_fields if key in _SHARED & set(document)}
    grids = document.pop("grid", None)
    if grids is None:
        grids = [{key: document.pop(key) for key in _OF_ONE_GRID if key in document}]
    elif not isinstance(grids, list) or not all(isinstance(grid, dict) for grid in grids):
        message = f"{where}: grid: write [[grid]], once for each table"
        raise UserError(message)
    for key in _OF_ONE_GRID:
        if key in document:
            message = f"{where}: {key} stands beside [[grid]]; write it in the grid it is for"
            raise UserError(message)
    _check_known(document, {"title", "question", "notes"}, {"grid", *_SHARED, *_OF_ONE_GRID}, where)
    complete = []
    for number, grid in enumerate(grids):
        place = f"{where}: grid {number}"
        _check_known(grid, set(Grid.model_fields), set(), place)
        complete.append(_complete(shared, grid, place))
    try:
        return Study.model_validate({**document, "name": name, "grids": complete})
    except ValidationError as error:
        message = f"{where}: {_first_problem(error)}"
        raise UserError(message) from None


_OF_ONE_GRID = ("axes", "across", "answer", "leave_out")
_SHARED = {
    "experiment",
    "fixed",
    "seeds",
    "columns",
    "free",
    "corners",
}  # they hold for every grid


def _check_known(given: dict[str, Any], here: set[str], also: set[str], where: str) -> None:
    for key in given:
        if key not in here:
            message = f"{where}: {unknown('key', key, here | also)}"
            raise UserError(message)


def _complete(shared: dict[str, Any], grid: dict[str, Any], where: str) -> dict[str, Any]:
    """A grid with what the file gives for all of them, and dotted names in place of tables."""
    flat = dict(grid)
    for key in ("experiment", "seeds", "columns"):
        if key in shared:
            flat.setdefault(key, shared[key])
    for key in ("free", "corners"):
        given = [one.get(key, []) for one in (shared, grid)]
        if not all(isinstance(one, list) for one in given):
            message = f"{where}: {key} must be a list of tables"
            raise UserError(message)
        flat[key] = [*given[0], *given[1]]
    for source in (shared, grid):
        if not isinstance(source.get("fixed", {}), dict):
            message = f"{where}: fixed must be a table of settings"
            raise UserError(message)
    flat["fixed"] = _flat_settings(shared.get("fixed", {})) | _flat_settings(grid.get("fixed", {}))
    axes = grid.get("axes", {})
    if not isinstance(axes, dict):
        message = f"{where}: axes must be a table of lists"
        raise UserError(message)
    flat["axes"] = {
        name: [_flat_settings(value) if isinstance(value, dict) else value for value in values]
        if isinstance(values, list)
        else values
        for name, values in flatten(axes).items()
    }
    flat["free"] = [_flat_others(one) for one in flat["free"]]
    return flat


def _flat_others(free: Any) -> Any:
    """A free input with dotted names in its other values."""
    if not isinstance(free, dict) or not isinstance(free.get("others"), list):
        return free
    others = [_flat_settings(one) if isinstance(one, dict) else one for one in free["others"]]
    return {**free, "others": others}


def _flat_settings(table: dict[str, Any]) -> dict[str, Any]:
    """Settings by dotted, present names."""
    return present_words(flatten(table))


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted names in place of nested tables.

    Examples
    --------
    >>> flatten({"trace": {"kind": "zipf"}, "system": "dgx-h100"})
    {'trace.kind': 'zipf', 'system': 'dgx-h100'}
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a table",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "a table",
    "string_pattern_mismatch": "one line of text",
    "string_too_short": "text",
    "string_type": "text",
    "too_short": "at least one entry",
}


def _first_problem(error: ValidationError) -> str:
    """The first mistake that pydantic found, in one line."""
    first = error.errors(include_url=False)[0]
    parts = [str(part) for part in first["loc"]]
    for group, is_value in (("axes", "a value, or a table of settings"), ("fixed", "a value")):
        if group in parts[:3] and first["type"] != "list_type":
            # Pydantic complains of the first type that a value might have had; say all.
            end = parts.index(group) + (3 if group == "axes" else 2)
            return f"{_place(parts[:end])}: expected {is_value}; got {first['input']!r}"
    place = _place(parts)
    if first["type"] in _EXPECTED:
        return f"{place}: expected {_EXPECTED[first['type']]}; got {first['input']!r}"
    if first["type"] == "extra_forbidden":
        return f"{place}: unknown key; known: {', '.join(sorted(QuantityColumn.model_fields))}"
    if first["type"] == "missing":
        return f"{place} is missing"
    return f"{place}: {first['msg'].lower()}; got {first['input']!r}"


def _place(parts: list[str]) -> str:
    """Place of a setting in the file, grids named as in other messages."""
    if parts[0] == "grids" and len(parts) > 1:
        return f"grid {parts[1]}" + (f": {'.'.join(parts[2:])}" if parts[2:] else "")
    return ".".join(parts).replace("grids", "grid")
