"""Results as plain text, as a terminal shows them."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.text import Text

from replay.errors import check_kind
from replay.experiments.dense import tables as tensor
from replay.experiments.dense.result import TensorComparison, TensorResult
from replay.experiments.layer.result import Comparison, Result
from replay.experiments.train import tables as training
from replay.experiments.train.result import TrainComparison, TrainResult
from replay.measure.result import LayerResult
from replay.report.bands import bands_table
from replay.report.layers import layers_table, part_name, path_table, phases_table, slowest_part
from replay.report.mechanisms import mechanism_table, overhead_table
from replay.report.memory import buffers_table, memory_table, room_notes
from replay.report.network import network_table
from replay.report.notes import (
    chain_note,
    heading,
    launch_notes,
    outside_notes,
    pairs_note,
    token_note,
)
from replay.report.payload import payload_tables
from replay.report.times import count, time_us, times_table
from replay.report.waiting import waiting_tables
from replay.report.words import explained
from tracegen.shared.screen import PIPED_WIDTH, plain

if TYPE_CHECKING:
    from rich.console import RenderableType


def render(content: RenderableType, width: int = PIPED_WIDTH) -> str:
    """Draw anything that rich can as plain text, in lines of at most so many characters."""
    out = StringIO()
    console = Console(file=out, width=width, color_system=None, markup=False)
    console.print(content, highlight=False)
    return "\n".join(line.rstrip() for line in plain(out.getvalue()).splitlines()) + "\n"


def summary(
    result: Result | Comparison | TensorResult | TensorComparison | TrainResult | TrainComparison,
) -> str:
    """Give a result or a comparison as tables of plain text.

    Parameters
    ----------
    result
        What `replay.run`, `replay.compare` or `replay.load_result` gave, or those of
        `replay.experiments.dense` and `replay.experiments.train`.

    Raises
    ------
    UserError
        If it is something else.
    """
    if isinstance(result, TrainComparison):
        return render(training.comparison_tables(result))
    if isinstance(result, TrainResult):
        return render(training.result_tables(result))
    if isinstance(result, TensorComparison):
        return render(tensor.comparison_tables(result))
    if isinstance(result, TensorResult):
        return render(tensor.result_tables(result))
    check_kind("result", result, (Result, Comparison), "a Result or a Comparison")
    if isinstance(result, Comparison):
        return render(comparison_tables(result))
    return render(summary_tables(result))


def ranking(compared: Comparison) -> Group:
    """What a comparison is asked for first: times, the fastest first, and what they rest on."""
    results = sorted(compared.results, key=time_us)
    times = times_table(compared, results)
    bands = bands_table(compared)
    notes = [
        *explained([times]),
        *outside_notes(compared),
        "What each scheme waits for, moves, launches and keeps in memory: --details.",
    ]
    return Group(Text(heading(*results)), times, Text(), Text("\n".join(notes)), *bands)


def comparison_tables(compared: Comparison) -> Group:
    """Tables of a comparison: times, payload, bytes by purpose, memory, mechanisms; notes."""
    results = compared.results
    unit = "layer" if results[0].chain is None else "step"
    number = count(results[0])
    tables = [
        times_table(compared, results),
        *waiting_tables(results, number, unit),
        *payload_tables(results),
        network_table(results, number, unit),
        overhead_table(results, number, unit),
        memory_table(results),
        mechanism_table(results),
    ]
    shown = [table for table in tables if table is not None]
    notes = [
        *explained(shown),
        *launch_notes(results),
        *room_notes(results),
        *outside_notes(compared),
    ]
    return Group(
        Text(heading(*results)),
        *shown,
        Text(),
        Text("\n".join(notes)),
        *bands_table(compared),
    )


def summary_tables(result: Result) -> Group:
    """Tables of one run: layers, phases, critical path, bytes, memory, mechanisms."""
    slowest = slowest_part(result)
    measures, name = slowest.measures, part_name(slowest)
    number, unit = count(result), "layer" if result.chain is None else "step"
    tables = [
        layers_table(result),
        phases_table(measures, name),
        network_table([result], number, unit),
        *waiting_tables([result], number, unit),
        path_table(measures, name),
        overhead_table([result], number, unit),
        buffers_table(result),
        mechanism_table([result]),
    ]
    shown = [table for table in tables if table is not None]
    notes = [*explained(shown), *launch_notes([result]), *room_notes([result])]
    if isinstance(slowest, LayerResult):
        notes.append(token_note(slowest))
    if result.chain is not None:
        notes.append(chain_note(result.chain))
        if result.chain.pairs is not None:
            notes.append(pairs_note(result.chain.pairs))
    return Group(Text(heading(result)), *shown, Text(), Text("\n".join(notes)))
