"""Two schemes side by side: where the difference of their times comes from.

The schema is ``moereplay-explanation/1``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from replay.errors import UserError, listed
from replay.experiments.base.names import row_names
from replay.experiments.layer.result import Comparison, Result
from replay.studies.differences.diff import loaded
from replay.studies.differences.gpus import of_gpus
from replay.studies.differences.inputs import changes
from replay.studies.differences.outcome import quantities
from replay.studies.differences.pairs import Pair
from replay.studies.differences.parts import Change, Document, Quantity
from replay.studies.differences.path import by_phase_and_cause, ps
from tracegen.shared.display.frames import flat
from tracegen.shared.strict import Strict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EXPLANATION_FORMAT: Literal["moereplay-explanation/1"] = "moereplay-explanation/1"

OF_THE_SCHEME = ("scheme.", "option.")
"""Inputs that are not the same because the schemes are not."""


class Share(Strict):
    """A part of both times, in microseconds.

    Attributes
    ----------
    where, what
        The phase of the layer, or what the GPUs do; and the cause, empty where there is none.
    one_us, other_us, difference_us
        The first's part, the second's, and by how much the second's is longer.
    """

    where: str
    what: str = ""
    one_us: float
    other_us: float
    difference_us: float


class PhaseSpan(Strict):
    """When a phase of both begins and ends; None for one that has no such phase."""

    phase: str
    one_us: tuple[float, float] | None
    other_us: tuple[float, float] | None


class Explanation(Document):
    """Where the difference between the times of two results comes from.

    Attributes
    ----------
    one, other
        Their schemes.
    one_us, other_us, difference_us
        Time of all layers, and by how much the second's is longer.
    path
        Parts of the critical paths by phase and cause, the largest difference first. They add up
        to both times and to the difference, to the picosecond.
    gpus
        What a GPU does in the mean, in the same time: it computes or launches kernels, waits for
        wires, for other GPUs, for latencies, and at the end for the last GPU. They add up likewise.
    phases
        When phases begin and end, where both are of one layer by itself.
    quantities
        What else is measured or counted and is not the same; ``before`` is the first.
    inputs
        What entered otherwise beside the scheme and its options.
    """

    format: Literal["moereplay-explanation/1"] = EXPLANATION_FORMAT
    one: str
    other: str
    one_us: float
    other_us: float
    difference_us: float
    path: list[Share]
    gpus: list[Share]
    phases: list[PhaseSpan]
    quantities: list[Quantity]
    inputs: list[Change]

    def _rows(self) -> list[dict[str, Any]]:
        """One for each part of the critical paths."""
        return [flat(share.model_dump(mode="json")) for share in self.path]


def explain(one: Result | str | Path, other: Result | str | Path) -> Explanation:
    """Say where the difference between the times of two results comes from.

    Parameters
    ----------
    one, other
        Results of the same layers under two schemes, or files of them.

    Raises
    ------
    UserError
        If a file cannot be read, holds no single result, or another number of layers.
    """
    first, second = _single(one), _single(other)
    numbers = first.totals.num_layers, second.totals.num_layers
    if numbers[0] != numbers[1]:
        message = f"the results are of {numbers[0]} and {numbers[1]} layers: explain takes the same"
        raise UserError(message)
    pair = Pair("", first, second)
    names = row_names([first, second], marked=False)
    times = ps(first.totals.makespan_us), ps(second.totals.makespan_us)
    return Explanation(
        one=names[0],
        other=names[1],
        one_us=times[0] / 1e6,
        other_us=times[1] / 1e6,
        difference_us=(times[1] - times[0]) / 1e6,
        path=_shares(by_phase_and_cause(first), by_phase_and_cause(second)),
        gpus=_shares(of_gpus(first), of_gpus(second), in_order=True),
        phases=list(_phases(first, second)),
        quantities=list(quantities(first, second)),
        inputs=[each for each in changes([pair]) if not each.what.startswith(OF_THE_SCHEME)],
    )


def pick(compared: Comparison, scheme: str) -> Result:
    """Take one result out of a comparison.

    Parameters
    ----------
    scheme
        Its name, as `Comparison.row` takes it.

    Raises
    ------
    UserError
        If there is none or are several, or why it was left out.
    """
    if scheme in compared.left_out:
        raise UserError(compared.left_out[scheme])
    return compared.row(scheme)


def picked(path: str | Path, one: str, other: str) -> tuple[Result, Result]:
    """Take two results out of the file of a comparison.

    Parameters
    ----------
    path
        What `compare --json` wrote.
    one, other
        Their names, as its tables print them.

    Raises
    ------
    UserError
        If the file cannot be read, holds one result alone, or :func:`pick` refuses a name.
    """
    compared = loaded(path)
    if not isinstance(compared, Comparison):
        message = f"{path} holds one result, not a comparison of {one} and {other}"
        raise UserError(message)
    return pick(compared, one), pick(compared, other)


def _single(given: Result | str | Path) -> Result:
    found = loaded(given)
    if isinstance(found, Comparison):
        rows = listed(row_names(found.results, marked=False))
        message = f"{given} holds a comparison; name two of its schemes: {rows}"
        raise UserError(message)
    return found


Parts = dict[tuple[str, str], int]


def _shares(one: Mapping[tuple[str, str], int], other: Mapping[tuple[str, str], int],
            *, in_order: bool = False) -> list[Share]:  # fmt: skip
    """Parts that either has, the largest difference first unless they have an order."""
    found = [
        Share(
            where=where,
            what=what,
            one_us=one.get((where, what), 0) / 1e6,
            other_us=other.get((where, what), 0) / 1e6,
            difference_us=(other.get((where, what), 0) - one.get((where, what), 0)) / 1e6,
        )
        for where, what in {**one, **other}
        if one.get((where, what)) or other.get((where, what))
    ]
    return found if in_order else sorted(found, key=lambda share: -abs(share.difference_us))


def _phases(one: Result, other: Result) -> Iterator[PhaseSpan]:
    if any(result.chain is not None or len(result.layers) > 1 for result in (one, other)):
        return
    spans = [result.layers[0].measures.phases for result in (one, other)]
    for phase in {**spans[0], **spans[1]}:
        first, second = (
            (each[phase].start_us, each[phase].end_us) if phase in each else None for each in spans
        )
        yield PhaseSpan(phase=phase, one_us=first, other_us=second)
