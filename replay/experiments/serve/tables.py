"""Results of serving as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.report.comparisons import label, outside_notes, tables_group
from replay.report.tables import GB
from replay.report.words import WORDS, says
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Group

    from replay.experiments.serve.result import InferComparison, InferResult, PhaseResult
    from tracegen.shared.display.content import Cell

US_PER_MS = 1e3
CAUSES = {
    "attention": "attention",
    "dense": "dense",
    "experts": "experts",
    "exchange": "rows",
    "head": "head",
    "launches": "gaps",
}
"""Columns, by what time is spent on."""


def tables(compared: InferComparison) -> Group:
    """Times of the phases, the fastest decoding first, by cause, and memory."""
    return tables_group(heading(compared.base), list(all_tables(compared)), notes(compared))


def all_tables(compared: InferComparison) -> Iterator[Table]:
    """Every table."""
    yield times_table(compared)
    yield batch_table(compared)
    yield causes_table(compared, "decode")
    yield causes_table(compared, "prefill")
    yield memory_table(compared)


def heading(result: InferResult) -> str:
    """What was replayed."""
    spec, decode, prefill = result.spec, result.decode, result.prefill
    lengths = (
        f"{spec.prompt:,} tokens of prompt and {spec.output:,} decoded"
        if spec.lengths == "even"
        else "lengths of the trace's requests"
    )
    where = f"{decode.gpus} GPUs of {decode.system.name}"
    if result.handover is not None:
        where += f", prefill on {prefill.gpus} of {prefill.system.name}"
    sliced = f", attention over {spec.tp} GPUs" if spec.tp > 1 else ""
    return (
        f"{result.model['name']}, {spec.requests:,} requests per GPU, {lengths}, on {where}{sliced}"
    )


def by_time(compared: InferComparison) -> list[InferResult]:
    """Results, those that decode fastest first."""
    return sorted(compared.results, key=lambda one: one.tpot.mean_us)


def times_table(compared: InferComparison) -> Table:
    """What a batch is asked for first."""
    columns = [
        Column("scheme"),
        Column("TTFT", "ms", ",.1f", says=says("TTFT")),
        Column("TTFT speed-up", "", ".2f", rank=1, says=says("speed-up")),
        Column("input/s", "", ",.0f", rank=2, says=says("input/s")),
        Column("TPOT", "ms", ",.2f", says=says("TPOT")),
        Column("TPOT speed-up", "", ".2f", rank=1),
        Column("output/s", "", ",.0f", rank=2, says=says("output/s")),
    ]
    base = compared[compared.baseline]
    rows = [
        (
            label(one),
            one.ttft.mean_us / US_PER_MS,
            base.ttft.mean_us / one.ttft.mean_us,
            one.prefill.tokens_per_s_per_gpu,
            one.tpot.mean_us / US_PER_MS,
            base.tpot.mean_us / one.tpot.mean_us,
            one.decode.tokens_per_s_per_gpu,
        )
        for one in by_time(compared)
    ]
    return Table("times", f"Times of a batch; speed-up over {compared.baseline}", columns, rows)


def batch_table(compared: InferComparison) -> Table:
    """How times grow with the cache, and what the whole batch takes."""
    longest_us = max(one.time_us for one in compared.results)
    unit, unit_us = ("s", 1e6) if longest_us >= 1e6 else ("ms", US_PER_MS)
    columns = [
        Column("scheme"),
        Column("TPOT at start", "ms", ",.2f"),
        Column("at end", "ms", ",.2f"),
        Column("steps", form=",d", rank=1),
        Column("first token", unit, ",.2f", rank=1),
        Column("last first token", unit, ",.2f", rank=1),
        Column("batch", unit, ",.2f"),
    ]
    rows = [
        (
            label(one),
            one.tpot.start_us / US_PER_MS,
            one.tpot.end_us / US_PER_MS,
            one.decode.iterations,
            one.ttft.first_us / unit_us,
            one.ttft.last_us / unit_us,
            one.time_us / unit_us,
        )
        for one in by_time(compared)
    ]
    title = "TPOT as caches grow, first tokens, and the whole batch"
    return Table("batch", title, columns, rows)


def causes_table(compared: InferComparison, phase: str) -> Table:
    """What an iteration is spent on, mean over those of a phase."""
    columns = [
        Column("scheme"),
        *(Column(word, "ms", ",.2f", says=WORDS.get(word, "")) for word in CAUSES.values()),
        Column("all", "ms", ",.2f"),
    ]
    rows: list[tuple[Cell, ...]] = []
    for one in by_time(compared):
        each = spent_ms(one, phase)
        rows.append((label(one), *each, sum(each)))
    return Table(phase, f"An iteration of {phase}, mean", columns, rows)


def spent_ms(result: InferResult, phase: str) -> list[float]:
    """Time of a mean iteration of a phase by what it is spent on, in the order of `CAUSES`."""
    found: PhaseResult = getattr(result, phase)
    return [found.spent_us[cause] / found.iterations / US_PER_MS for cause in CAUSES]


def memory_table(compared: InferComparison) -> Table:
    """Memory of a GPU that decodes."""
    columns = [
        Column("scheme"),
        Column("weights", "GB", ",.1f"),
        Column("buffers, rows", "GB", ",.1f"),
        Column("cache", "GB", ",.1f"),
        Column("of", "GB", ",.1f", rank=1, says=says("of")),
        Column("positions", form=",d", rank=2, says=says("positions")),
        Column("room for", form=",d", rank=2, says=says("room for")),
    ]
    rows: list[tuple[Cell, ...]] = []
    for one in by_time(compared):
        found = one.decode.memory
        sizes = (
            found.weight_bytes, found.iteration_bytes,
            found.cache_positions * found.position_bytes, found.capacity_bytes,
        )  # fmt: skip
        rows.append(
            (
                label(one),
                *(size / GB for size in sizes),
                found.cache_positions,
                max(found.positions_fit, 0),
            )
        )
    return Table("memory", "Memory of a GPU that decodes", columns, rows)


def notes(compared: InferComparison) -> Iterator[str]:
    """How it was replayed, what is not among it, and who was left out."""
    first = compared.results[0]
    layers = first.decode.replayed.moe_layers
    worst = max(
        phase.replayed.largest_error
        for one in compared.results
        for phase in (one.prefill, one.decode)
    )
    for one in compared.results:
        prompts = one.prefill.scheme.name
        if prompts not in one.name.split("+"):
            yield f"{one.name}: prompts run under {prompts}."
    line = f"MoE layers: {layers} replayed as a chain stand for all"
    if worst:
        line += f"; between replayed numbers of tokens they are off by {worst:.1%} at most"
    yield line + "."
    for one in compared.results:
        if one.handover is not None:
            yield (
                f"{one.name}: each GPU that prefills hands over "
                f"{one.handover.bytes_per_gpu / GB:,.2f} GB of cache; "
                f"{one.handover.exposed_us / US_PER_MS:,.2f} ms of it are behind the prefill."
            )
    if first.tpot.tokens_per_step != 1:
        yield f"Speculative decoding: {first.tpot.tokens_per_step:.2f} tokens per step."
    if first.left_out:
        yield f"No time is charged for: {', '.join(first.left_out)}."
    phases = [phase for one in compared.results for phase in (one.prefill, one.decode)]
    systems = " or ".join(dict.fromkeys(one.system.name for one in phases))
    yield from outside_notes(systems, compared)
