"""Tables of a result or a comparison, in the order in which a terminal shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.experiments.layer.result import Comparison, Result
from replay.experiments.layer.tables import bands, memory, notes, times, wires
from replay.measure.result import LayerResult
from replay.report.comparisons import tables_group
from replay.report.mechanisms import expert_table, mechanism_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Group

    from tracegen.shared.display.content import Table


def tables(result: Result | Comparison, *, details: bool) -> Group:
    """Tables of one replay, or of a comparison.

    Parameters
    ----------
    details
        Of a comparison, whether all are wanted, or times alone, the fastest first.
    """
    if isinstance(result, Result):
        return result_tables(result)
    return comparison_tables(result) if details else ranking(result)


def ranking(compared: Comparison) -> Group:
    """First tables of a comparison: times, the fastest first, and what they rest on."""
    results = times.fastest(compared.results)
    more = "What each scheme waits for, reads, moves, launches and keeps in memory: --details."
    return tables_group(
        notes.heading(*results),
        [times.times_table(compared, results)],
        [*notes.launch_notes(results), *notes.outside_notes(compared), more],
        *bands.bands_table(compared),
    )


def comparison_tables(compared: Comparison) -> Group:
    """Times, payload, bytes by purpose, memory, mechanisms; notes."""
    results = compared.results
    return tables_group(
        notes.heading(*results),
        [
            times.times_table(compared, results),
            experts_table(results),
            *times.waiting_tables(results),
            *wires.payload_tables(results),
            wires.network_table(results),
            wires.overhead_table(results),
            memory.memory_table(results),
            mechanisms_table(results),
        ],
        [*notes.launch_notes(results), *memory.room_notes(results), *notes.outside_notes(compared)],
        *bands.bands_table(compared),
    )


def result_tables(result: Result) -> Group:
    """Tables of one run: layers, phases, critical path, bytes, memory, mechanisms."""
    slowest, results = times.slowest_part(result), [result]
    measures, name = slowest.measures, times.part_name(slowest)
    of_tokens = [notes.token_note(slowest)] if isinstance(slowest, LayerResult) else []
    return tables_group(
        notes.heading(result),
        [
            times.layers_table(result),
            times.phases_table(measures, name),
            wires.network_table(results),
            *times.waiting_tables(results),
            times.path_table(measures, name),
            wires.overhead_table(results),
            memory.buffers_table(result),
            experts_table(results),
            mechanisms_table(results),
        ],
        [
            *notes.launch_notes(results),
            *memory.room_notes(results),
            *of_tokens,
            *notes.chain_notes(result),
        ],
    )


def experts_table(results: Sequence[Result]) -> Table | None:
    """Reads of weights and row tiles of each result; None in results of older versions."""
    return expert_table([one.schedules for one in results], row_names(results))


def mechanisms_table(results: Sequence[Result]) -> Table | None:
    """Use of every mechanism of each result; None if no scheme reports any."""
    return mechanism_table(
        "Use of the mechanisms, all layers together",
        [one.schedules for one in results],
        row_names(results),
    )
