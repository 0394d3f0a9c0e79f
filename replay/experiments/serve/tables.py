"""Results of serving as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.serve.engines import engine_of
from replay.experiments.serve.result import InferComparison
from replay.model.work.stacks import pays_hosts
from replay.report.comparisons import beside, label, labels, outside_notes, tables_group
from replay.report.tables import GB, US_PER_MS, named_table, table, time_unit, word_column
from replay.report.words import WORDS
from tracegen.shared.display.content import Column

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Group

    from replay.experiments.serve.engines import EngineHost
    from replay.experiments.serve.result import InferResult, PhaseResult
    from tracegen.shared.display.content import Table

CAUSES = {
    "attention": "attention",
    "dense": "dense",
    "experts": "experts",
    "exchange": "rows",
    "head": "head",
    "launches": "gaps",
    "host": "host",
}
"""Columns, by what time is spent on; the last where an engine's host is heeded."""


def tables(result: InferResult | InferComparison, *, details: bool) -> Group:
    """Times of the phases, the fastest decoding first, by cause, and memory; there are no more."""
    compared = beside(result, InferComparison)
    shown = [
        times_table(compared),
        batch_table(compared),
        causes_table(compared, "decode"),
        causes_table(compared, "prefill"),
        memory_table(compared),
    ]
    return tables_group(heading(compared.base), shown, notes(compared))


def heading(result: InferResult) -> str:
    """Heading that names the replay."""
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
    if spec.expert_tp > 1:
        sliced += f", each expert over {spec.expert_tp}"
    requests = f"{spec.requests:,} requests per GPU"
    return f"{result.model['name']}, {requests}, {lengths}, on {where}{sliced}"


def by_time(compared: InferComparison) -> list[InferResult]:
    """Results, those that decode fastest first."""
    return sorted(compared.results, key=lambda one: one.tpot.mean_us)


def times_table(compared: InferComparison) -> Table:
    """Table of a batch's main times."""
    base, results = compared.base, by_time(compared)
    return table(
        "times",
        f"Times of a batch; speed-up over {compared.baseline}",
        results,
        (word_column("TTFT", "ms", ",.1f"), lambda one: one.ttft.mean_us / US_PER_MS),
        (
            word_column("TTFT speed-up", "", ".2f", 1, "speed-up"),
            lambda one: base.ttft.mean_us / one.ttft.mean_us,
        ),
        (word_column("input/s", "", ",.0f", 2), lambda one: one.prefill.tokens_per_s_per_gpu),
        (word_column("TPOT", "ms", ",.2f"), lambda one: one.tpot.mean_us / US_PER_MS),
        (
            Column("TPOT speed-up", "", ".2f", rank=1),
            lambda one: base.tpot.mean_us / one.tpot.mean_us,
        ),
        (word_column("output/s", "", ",.0f", 2), lambda one: one.decode.tokens_per_s_per_gpu),
        labels=labels(results),
    )


def batch_table(compared: InferComparison) -> Table:
    """Table of times by length of the cache, and of the whole batch."""
    results = by_time(compared)
    unit, unit_us = time_unit(max(one.time_us for one in results))
    return table(
        "batch",
        "TPOT as caches grow, first tokens, and the whole batch",
        results,
        (Column("TPOT at start", "ms", ",.2f"), lambda one: one.tpot.start_us / US_PER_MS),
        (Column("TPOT at end", "ms", ",.2f"), lambda one: one.tpot.end_us / US_PER_MS),
        (Column("steps", "", ",d", 1), lambda one: one.decode.iterations),
        (Column("first token", unit, ",.2f", 1), lambda one: one.ttft.first_us / unit_us),
        (Column("last first token", unit, ",.2f", 1), lambda one: one.ttft.last_us / unit_us),
        (Column("whole batch", unit, ",.2f"), lambda one: one.time_us / unit_us),
        labels=labels(results),
    )


def causes_table(compared: InferComparison, phase: str) -> Table:
    """Table of the causes of an iteration's time, mean over those of a phase."""
    words = spent_ms(compared.base, phase)
    columns = [Column(word, "ms", ",.2f", says=WORDS.get(word, "")) for word in words]
    spent = [(label(one), spent_ms(one, phase).values()) for one in by_time(compared)]
    rows = [(name, [*times, sum(times)]) for name, times in spent]
    all_of_it = Column("all", "ms", ",.2f")
    return named_table(phase, f"An iteration of {phase}, mean", [*columns, all_of_it], rows)


def spent_ms(result: InferResult, phase: str) -> dict[str, float]:
    """Time of a mean iteration of a phase by column, in the order of `CAUSES`."""
    found: PhaseResult = getattr(result, phase)
    return {
        word: found.spent_us[cause] / found.iterations / US_PER_MS
        for cause, word in CAUSES.items()
        if cause in found.spent_us
    }


def memory_table(compared: InferComparison) -> Table:
    """Memory of a GPU that decodes."""
    results = by_time(compared)
    return table(
        "memory",
        "Memory of a GPU that decodes",
        [one.decode.memory for one in results],
        (Column("weights", "GB", ",.1f"), lambda one: one.weight_bytes / GB),
        (Column("buffers, rows", "GB", ",.1f"), lambda one: one.iteration_bytes / GB),
        (Column("cache", "GB", ",.1f"), lambda one: one.cache_positions * one.position_bytes / GB),
        (word_column("capacity", "GB", ",.1f", 1), lambda one: one.capacity_bytes / GB),
        (word_column("positions", "", ",d", 2), lambda one: one.cache_positions),
        (word_column("room for", "", ",d", 2), lambda one: max(one.positions_fit, 0)),
        labels=labels(results),
    )


def said_of(engine: EngineHost, name: str | None) -> str:
    """Line on the settings of an engine that count."""
    how = "while GPUs run the one before" if engine.overlaps else "in turn with its GPUs"
    sizes = "any batch has a graph"
    if engine.captured:
        padding = "" if engine.pads_travel else ", whose rows choose no experts"
        sizes = f"batches are padded{padding}, to graphs of up to {engine.captured[-1]}"
    return f"Engine ({name or 'as given'}): its host takes {engine.host_us:,.0f} us a step, {how}; {sizes}."


def launch_notes(compared: InferComparison) -> Iterator[str]:
    """Notes on what launches kernels, and which schemes its list does not know."""
    stack = compared.results[0].spec.stack
    if not pays_hosts(stack):
        yield "Launched bare; --stack sglang, vllm, tensorrt-llm or megatron-inference pays an engine's calls."
        return
    yield f"Launched by hosts of {stack}, whose calls are paid where no graph holds them."
    if not all(one.decode.replayed.listed for one in compared.results):
        yield "Its list has no such attention, so that decoding has the kernels of the bare list."
    phases = [phase for one in compared.results for phase in (one.prefill, one.decode)]
    strange = [one.scheme.name for one in phases if one.replayed.stack is not None and not one.replayed.stack.knows]
    if strange:
        names = ", ".join(dict.fromkeys(strange))
        yield f"Not in its list, so that kernels for rows are calls of an extension: {names}."


def notes(compared: InferComparison) -> Iterator[str]:
    """Notes on the replay, on what it leaves out, and on schemes that are missing."""
    first = compared.results[0]
    layers = first.decode.replayed.moe_layers
    worst = max(phase.replayed.largest_error for one in compared.results for phase in (one.prefill, one.decode))
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
    yield from launch_notes(compared)
    if (engine := engine_of(*first.spec.of_engine)) is not None:
        yield said_of(engine, first.spec.of_engine[0])
    if first.tpot.tokens_per_step != 1:
        yield f"Speculative decoding: {first.tpot.tokens_per_step:.2f} tokens per step."
    if first.left_out:
        yield f"No time is charged for: {', '.join(first.left_out)}."
    phases = [phase for one in compared.results for phase in (one.prefill, one.decode)]
    systems = " or ".join(dict.fromkeys(one.system.name for one in phases))
    yield from outside_notes(systems, compared)
