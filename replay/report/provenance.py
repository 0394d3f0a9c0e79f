"""What entered a result: trace, model, machine, scheme, versions; and what makes it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.report.machines import changes_table, machine_table
from replay.report.proposed import proposed_text
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


def identities_table(results: Sequence[Result]) -> Table:
    """Identity, placement and options of each result."""
    rows = [
        (name, one.placement, options_text(one.scheme.options), one.launch, one.run_id)
        for name, one in zip(row_names(results), results, strict=True)
    ]
    columns = [
        Column("scheme"),
        Column("placement", rank=1),
        Column("options"),
        Column("launch", rank=1),
        Column("identity", rank=2),
    ]
    title = "Each replay: equal identities have equal results"
    return Table("identities", title, columns, rows)


def options_text(options: Mapping[str, object]) -> str:
    """All options of a scheme in a line."""
    return ", ".join(f"{name}={_value(value)}" for name, value in sorted(options.items())) or "none"


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def schemes_table(results: Sequence[Result]) -> Table:
    """What each scheme assumes and proposes; a star marks hardware that the machine lacks."""
    rows = []
    for name, one in zip(row_names(results), results, strict=True):
        scheme = one.scheme
        rows.append((name, proposed_text(scheme) or None, scheme.assumes or None, scheme.source))
    columns = [
        Column("scheme"),
        Column("proposed hardware"),
        Column("assumes"),
        Column("source", rank=1),
    ]
    notes = ["* proposed hardware, which the machine lacks."] if _lacks(results) else []
    return Table("schemes", "What each scheme assumes and proposes", columns, rows, notes)


def _lacks(results: Sequence[Result]) -> bool:
    return any(one.scheme.lacking for one in results)
