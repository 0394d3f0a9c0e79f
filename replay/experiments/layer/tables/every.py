"""A result or a comparison as a terminal shows it: which tables, in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.experiments.layer.result import Comparison, Result
from replay.experiments.layer.tables.bands import bands_table
from replay.experiments.layer.tables.layers import (
    layers_table,
    part_name,
    path_table,
    phases_table,
    slowest_part,
)
from replay.experiments.layer.tables.memory import buffers_table, memory_table, room_notes
from replay.experiments.layer.tables.notes import (
    chain_notes,
    heading,
    launch_notes,
    outside_notes,
    token_note,
)
from replay.experiments.layer.tables.times import fastest, times_table, waiting_tables
from replay.experiments.layer.tables.wires import (
    network_table,
    overhead_table,
    payload_tables,
)
from replay.measure.result import LayerResult
from replay.report.comparisons import tables_group
from replay.report.mechanisms import mechanism_table

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
    """What a comparison is asked for first: times, the fastest first, and what they rest on."""
    results = fastest(compared.results)
    more = "What each scheme waits for, moves, launches and keeps in memory: --details."
    return tables_group(
        heading(*results),
        [times_table(compared, results)],
        [*outside_notes(compared), more],
        *bands_table(compared),
    )


def comparison_tables(compared: Comparison) -> Group:
    """Times, payload, bytes by purpose, memory, mechanisms; notes."""
    results = compared.results
    return tables_group(
        heading(*results),
        [
            times_table(compared, results),
            *waiting_tables(results),
            *payload_tables(results),
            network_table(results),
            overhead_table(results),
            memory_table(results),
            mechanisms_table(results),
        ],
        [*launch_notes(results), *room_notes(results), *outside_notes(compared)],
        *bands_table(compared),
    )


def result_tables(result: Result) -> Group:
    """Tables of one run: layers, phases, critical path, bytes, memory, mechanisms."""
    slowest, results = slowest_part(result), [result]
    measures, name = slowest.measures, part_name(slowest)
    tokens = [token_note(slowest)] if isinstance(slowest, LayerResult) else []
    return tables_group(
        heading(result),
        [
            layers_table(result),
            phases_table(measures, name),
            network_table(results),
            *waiting_tables(results),
            path_table(measures, name),
            overhead_table(results),
            buffers_table(result),
            mechanisms_table(results),
        ],
        [*launch_notes(results), *room_notes(results), *tokens, *chain_notes(result)],
    )


def mechanisms_table(results: Sequence[Result]) -> Table | None:
    """Use of every mechanism of each result; None if no scheme reports any."""
    return mechanism_table(
        "Use of the mechanisms, all layers together",
        [one.measured for one in results],
        row_names(results),
    )
