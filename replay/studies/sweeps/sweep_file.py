"""A study with its numbers as its file has it (`moereplay-sweep/1`), read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from replay.studies.sweeps.study import Scalar
from tracegen.shared.display.exhibit import Exhibit
from tracegen.shared.display.frames import flat


class _SavedPart(BaseModel):
    """A part of the document; what is not shown is not read."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class SavedCell(_SavedPart):
    """A quantity over the seeds that have it."""

    mean: float
    min: float
    max: float
    count: int


class SavedChoice(_SavedPart):
    """One value of an axis."""

    label: str
    settings: dict[str, Any] = {}


class SavedColumn(_SavedPart):
    """A quantity: its heading, and digits behind the point."""

    header: str
    digits: int = Field(1, ge=0, le=9)
    path: str | list[str] = ""

    @property
    def is_time(self) -> bool:
        """Tell whether it is a time."""
        paths = [self.path] if isinstance(self.path, str) else self.path
        return all(path.endswith("_us") for path in paths)


class SavedClaim(_SavedPart):
    """A published number beside the one that was replayed."""

    says: str
    published: float
    column: str
    replayed: float | None
    num_found: int
    num_wanted: int


class FreeInput(_SavedPart):
    """An input that a paper leaves open, with its values in words."""

    input: str
    stated: str
    others: list[str]
    why: str


class ClaimValue(_SavedPart):
    """Value of a claim with some values of free inputs; no inputs stand for the stated values.

    It has none where the points that can run are not those of the stated values; `num_missing`
    counts them.
    """

    inputs: dict[str, str]
    value: float | None
    num_missing: int


def inputs_text(inputs: Mapping[str, str]) -> str:
    """Values of free inputs in one line; empty for those that are stated."""
    return "; ".join(f"{name}: {label}" for name, label in inputs.items())


class SweptClaim(_SavedPart):
    """A published number beside those that are replayed over all values of free inputs."""

    says: str
    published: float
    digits: int = Field(ge=0, le=9)
    found: list[ClaimValue]

    @property
    def stated_value(self) -> ClaimValue | None:
        """Value with all inputs as stated."""
        return next((one for one in self._there() if not one.inputs), None)

    @property
    def lowest(self) -> ClaimValue | None:
        """The least of all as they are shown, of equals the first."""
        return min(self._there(), key=self._as_written, default=None)

    @property
    def highest(self) -> ClaimValue | None:
        """The largest of all as they are shown, of equals the first."""
        return max(self._there(), key=self._as_written, default=None)

    @property
    def decides(self) -> str:
        """The input that alone moves the number most, and its range; a dash where none does."""
        spans: dict[str, list[float]] = {}
        for one in self._there():
            if len(one.inputs) == 1:
                spans.setdefault(next(iter(one.inputs)), []).append(self._as_written(one))
        if self.stated_value is None or not spans:
            return "-"
        ranges = {name: _edges([*found, self._as_written(self.stated_value)]) for name, found in spans.items()}
        name = max(ranges, key=lambda name: ranges[name][1] - ranges[name][0])
        low, high = ranges[name]
        if low == high:
            return "-"
        return f"{name} ({low:,.{self.digits}f} to {high:,.{self.digits}f})"

    def text(self, found: ClaimValue | None, *, of: bool = False) -> str:
        """Write a number; with `of`, the values of free inputs that it is for."""
        if found is None:
            return "-"
        values = f" ({inputs_text(found.inputs)})" if of and found.inputs else ""
        return f"{found.value:,.{self.digits}f}{values}"

    def _as_written(self, found: ClaimValue) -> float:
        """A number as it is written: what differs by less decides nothing."""
        return round(found.value or 0.0, self.digits)

    def _there(self) -> list[ClaimValue]:
        return [one for one in self.found if one.value is not None]


def _edges(values: list[float]) -> tuple[float, float]:
    """The least and the largest."""
    return min(values), max(values)


class SavedFree(_SavedPart):
    """Free inputs, and the claims over them."""

    inputs: list[FreeInput] = []
    claims: list[SweptClaim] = []


class SavedError(_SavedPart):
    """Error of a point's time: the share by which it may be off, and the parts of validation it is of."""

    share: float = Field(ge=0)
    parts: list[str]


class SavedRow(_SavedPart):
    """One point: its labels by axis, its cells by heading, and why it has none."""

    labels: dict[str, str]
    cells: dict[str, SavedCell | None]
    refused: str | None = None
    failed: str | None = None
    error: SavedError | None = None
    assumes: str = ""


class SavedPoint(_SavedPart):
    """One replay of a row: its seed, and its value in every column before any baseline."""

    seed: int | None
    values: list[float | None] | None


class SavedAnswer(_SavedPart):
    """The race that decides the question; see `replay.studies.sweeps.study.Rivalry`."""

    rivals: str
    column: str
    base: str | None = None
    most: bool
    along: str | None
    assumed: list[str]
    under: str | None = None
    errors: list[str]
    families: dict[str, list[str]] = {}


class SavedGrid(_SavedPart):
    """One table of a study."""

    title: str
    notes: str
    experiment: str = "layer"
    fixed: dict[str, Any]
    seeds: list[int]
    axes: dict[str, list[SavedChoice]]
    columns: list[SavedColumn]
    claims: list[SavedClaim]
    inputs: dict[str, str] | None = None
    rows: list[SavedRow]
    points: list[SavedPoint] = []
    answer: SavedAnswer | None = None

    @model_validator(mode="before")
    @classmethod
    def _in_order(cls, given: Any) -> Any:
        """The same with its axes in the study's order, which files lose: the last varies fastest."""
        if not isinstance(given, dict) or not isinstance(given.get("axes"), dict):
            return given
        rows = given.get("rows") or []
        labels: list[Any] = [
            row.get("labels") if isinstance(row, dict) else getattr(row, "labels", None) for row in rows
        ]
        if not all(isinstance(one, dict) for one in labels):
            return given  # refused as damaged

        def first_change(axis: str) -> int:
            return next((n for n, one in enumerate(labels) if one.get(axis) != labels[0].get(axis)), len(labels))

        ordered = sorted(given["axes"], key=first_change, reverse=True)
        return {**given, "axes": {axis: given["axes"][axis] for axis in ordered}}

    @model_validator(mode="after")
    def _is_whole(self) -> SavedGrid:
        """Refuse a row without a label for an axis or a cell for a column, and an answer without its axes."""
        named = [] if self.answer is None else [self.answer.rivals, *self.answer.assumed]
        if self.answer is not None and self.answer.along is not None:
            named.append(self.answer.along)
        if not self.axes.keys() >= set(named):
            message = f"an answer is about {', '.join(named)}, which are not all axes of its grid"
            raise ValueError(message)
        headers = {column.header for column in self.columns}
        for row in self.rows:
            if row.labels.keys() != self.axes.keys() or row.cells.keys() != headers:
                message = "a row has other axes or columns than its grid"
                raise ValueError(message)
        return self


class SavedSweep(_SavedPart, Exhibit):
    """A study: what it asks, and its tables."""

    format: Literal["moereplay-sweep/1"]
    name: str
    title: str
    question: str
    notes: str
    grids: list[SavedGrid]
    free: SavedFree = SavedFree()
    held: dict[str, Scalar] = {}

    @property
    def shown_grids(self) -> list[SavedGrid]:
        """Grids without those that vary free inputs, of which there is one table."""
        return [grid for grid in self.grids if grid.inputs is None]

    def _rows(self) -> list[dict[str, Any]]:
        """One for each point: its grid, its labels by axis, and its quantities with their range."""
        return [
            {
                "grid": number,
                **{axis: row.labels[axis] for axis in grid.axes},
                **flat(row.model_dump(include={"cells"})["cells"]),
            }
            for number, grid in enumerate(self.grids)
            for row in grid.rows
        ]
