"""Memory as bars, the draws of a comparison as points, and where results come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.experiments.layer.tables.memory import buffer_bytes, fullest, held
from replay.experiments.layer.tables.times import count, fastest
from replay.report.charts import parts_of
from replay.report.comparisons import identities_table, versions
from replay.report.provenance import IN_MEMORY, SEVERAL, provenance
from replay.report.tables import MB
from tracegen.shared.display.content import Axis, Bars, Column, Line, Plot, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.experiments.layer.result import Comparison, Result
    from tracegen.shared.display.content import Cell, Section


def memory_bars(results: Sequence[Result]) -> Bars | None:
    """Device memory by what holds it, of the GPU that needs most."""
    names, found = held(results)
    if not found:
        return None
    sizes = [
        {
            "weights": one.weight_bytes[fullest(one)],
            "tokens": one.token_bytes[fullest(one)],
            "kept buffers": buffer_bytes(one, stays=True),
            "buffers of a layer": buffer_bytes(one, stays=False),
        }
        for one in found
    ]
    return Bars(
        name="memory",
        title="Device memory of the GPU that needs most, MB",
        labels=names,
        parts=parts_of(sizes, per=MB, keeps_empty=True),
        unit="MB",
        says="Of a layer; weights are those of its routed experts.",
    )


def bands_plot(compared: Comparison) -> Plot | None:
    """Times in the draws over the times of the comparison; None where there are no draws."""
    found = compared.uncertainty
    if found is None:
        return None
    ordered = fastest(compared.results)
    per = count(ordered[0])
    x = [one.nominal_us / per for one in found.bands]
    ends = [min(x), max(x)]
    return Plot(
        name="bands",
        title=f"Times in {found.draws} draws of {', '.join(found.drawn)}",
        x=Axis("time of the comparison, us", log=True),
        y=Axis("time in the draws, us", log=True),
        lines=[
            Line("the same time", ends, ends, form="guide"),
            Line(
                "median, 5 % and 95 %",
                x,
                [one.median_us / per for one in found.bands],
                [one.low_us / per for one in found.bands],
                [one.high_us / per for one in found.bands],
                form="points",
                labels=row_names(ordered),
            ),
        ],
    )


def provenance_of(results: Sequence[Result], command: str, *tables: Table) -> Section:
    """What entered all of some results alike, and the identity of each."""
    one = results[0]
    trace, spec, types = one.trace, one.spec, one.types
    more: dict[str, Sequence[Cell]] = {
        "placement": [each.placement for each in results],
        "launch": [each.launch for each in results],
    }
    return provenance(
        {
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
            "moereplay": versions(results),
        },
        command=command,
        more=[identities_table(row_names(results), results, more), *tables],
        why_none=IN_MEMORY if spec.trace is None else SEVERAL,
    )


def _layers(result: Result) -> str:
    if result.chain is not None:
        return f"{result.chain.num_layers} chained, {result.chain.num_steps} steps"
    numbers = [str(layer.decoder_layer) for layer in result.layers]
    return f"{', '.join(numbers[:12])}{', ...' if numbers[12:] else ''} of the model"


def tuned_tables(result: Result) -> list[Table]:
    """What tuning tried, in its order; nothing where it tried nothing."""
    tuned = result.scheme.tuned
    if not tuned:
        return []
    names = list(tuned[0].options)
    columns = [*(Column(name, "", ",d") for name in names), Column("layer", "us", ",.1f")]
    rows = [(*(one.options.get(name) for name in names), one.makespan_us) for one in tuned]
    return [Table("tuned", "Options that were tried", columns, rows)]
