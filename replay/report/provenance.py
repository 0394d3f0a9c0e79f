"""What entered a result: trace, model, machine, scheme, versions; and what makes it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.report.comparisons import identities_table, schemes_table
from replay.report.machines import changes_table, machine_table
from tracegen.shared.display.content import Column, Section, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from replay.experiments.base.result import SystemDescription
    from replay.experiments.layer.result import Result
    from tracegen.shared.display.content import Cell, Item

NO_COMMAND = "No command makes it again: "
IN_MEMORY = f"{NO_COMMAND}the trace was in memory, or its reference was not recorded."
SEVERAL = f"{NO_COMMAND}these results were asked for by several."


def entered_table(entries: Mapping[str, Cell]) -> Table:
    """Name and value of each thing that entered; what is None or empty is left out."""
    rows = [(name, str(value)) for name, value in entries.items() if value not in (None, "")]
    return Table("entered", "What entered", [Column("what"), Column("is")], rows)


def provenance(
    entries: Mapping[str, Cell],
    *,
    command: str,
    more: Sequence[Item] = (),
    why_none: str = IN_MEMORY,
) -> Section:
    """Make the last section of a page: what entered, and the command that makes it again.

    Parameters
    ----------
    entries
        Name and value of each thing: trace, content id, model, machine, versions.
    command
        The command line, empty for none; `why_none` is said then.
    more
        Further tables, such as one of the identities of several results.
    """
    says = [] if command else [why_none]
    return Section("Where it comes from", [*says, entered_table(entries), *more], is_open=False)


def assumptions(system: SystemDescription, *first: Item) -> Section:
    """Make the section of what is taken to be so: of the schemes, and of the machine.

    Parameters
    ----------
    first
        What stands before the machine's values, such as a table of what schemes assume.
    """
    changes = changes_table(system)
    items = [*first, *([changes] if changes else []), machine_table(system)]
    return Section("Assumptions", items, is_open=False)


def replay_entries(results: Sequence[Result]) -> dict[str, Cell]:
    """What entered all of some results alike."""
    one = results[0]
    trace, spec, types = one.trace, one.spec, one.types
    versions = sorted({each.version for each in results})
    return {
        "trace": trace.title or "without a title",
        "reference": spec.trace,
        "content id": trace.content_id,
        "model": trace.model,
        "experts": f"{trace.num_experts}, top-{trace.topk}",
        "widths": f"hidden {trace.hidden}, experts {trace.moe_intermediate}",
        "machine": one.system.name,
        "GPUs": one.batch.num_ranks,
        "batch": f"{one.batch.phase}, step {one.batch.step}: {one.batch.batching}",
        "layers": _layers(one),
        "numbers": f"{types.gemm} GEMMs, {types.dispatch_rows} rows out, "
        f"{types.combine_rows} rows back",
        "moereplay": ", ".join(versions),
    }


def _layers(result: Result) -> str:
    if result.chain is not None:
        return f"{result.chain.num_layers} chained, {result.chain.num_steps} steps"
    numbers = [str(layer.decoder_layer) for layer in result.layers]
    return f"{', '.join(numbers[:12])}{', ...' if numbers[12:] else ''} of the model"


def replay_identities(results: Sequence[Result]) -> Table:
    """Identity, placement and options of each replay of layers."""
    more: dict[str, Sequence[Cell]] = {
        "placement": [one.placement for one in results],
        "launch": [one.launch for one in results],
    }
    return identities_table(row_names(results), results, more)


def replay_schemes(results: Sequence[Result]) -> Table:
    """What the scheme of each replay of layers assumes and proposes."""
    schemes = [one.scheme for one in results]
    return schemes_table(zip(row_names(results), schemes, strict=True))
