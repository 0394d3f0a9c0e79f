"""A batch of requests served by a whole model as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replay.experiments.serve import tables
from replay.experiments.serve.experiment import EXPERIMENT
from replay.experiments.serve.result import InferComparison
from replay.report.charts import parts_of
from replay.report.comparisons import beside, compare_command, label, labels, rests_on
from replay.report.pages import filled_page
from replay.report.tables import GB, US_PER_MS
from replay.report.words import schemes_text
from tracegen.shared.display.content import BarPart, Bars, Page, Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from replay.experiments.base.result import ComparisonBase
    from replay.experiments.base.scheme_experiment import AnySchemeExperiment
    from replay.experiments.serve.result import InferResult
    from tracegen.shared.display.content import Cell

PARTS = {
    "attention": "attention",
    "dense": "dense layers, shared experts",
    "experts": "experts",
    "rows": "rows travel",
    "head": "embedding, output head",
    "gaps": "gaps between kernels",
    "host": "waiting for the engine's host",
}
"""Columns of causes as legends name them."""
LEFT_OUT = ("scheme", "options", "prefill_scheme", "prefill_options")
"""Settings that are no options of the command."""
NOTHING_COMPUTED = ("rows", "gaps", "host")


def page(result: InferResult | InferComparison) -> Page:
    """Make the page of a batch or of a comparison, those that decode fastest first."""
    compared = beside(result, InferComparison)
    what = compared.base.name if compared is not result else schemes_text(len(compared.results))
    words = serving_command(compared, EXPERIMENT)
    title = f"Serving {compared.results[0].model['name']}: {what}"
    return filled_page(title, summary(compared), _sections(compared, words), words)


def serving_command(
    compared: ComparisonBase[Any], experiment: AnySchemeExperiment, defaults: Mapping[str, Any] = {}
) -> str:
    """Command that serves again what was served.

    Parameters
    ----------
    experiment
        Whose comparison it is.
    defaults
        Values that the command takes in place of a field's default.
    """
    usual = [experiment.reference(experiment.spec())]
    words = ["moereplay", "infer"]
    return compare_command(words, compared, experiment, usual, leave_out=LEFT_OUT, defaults=defaults)


def summary(compared: InferComparison) -> str:
    """Say which schemes decode fastest, and when the first tokens come."""
    results = tables.by_time(compared)
    first, base = results[0], compared.base
    of = f" decodes fastest of {len(results)} schemes" if results[1:] else ""
    text = f"{label(first)}{of}: {first.tpot.mean_us / US_PER_MS:,.2f} ms per token of a request"
    if first is not base:
        text += f", {base.tpot.mean_us / first.tpot.mean_us:.2f} times as fast as {base.name}"
    text += (
        f", {first.decode.tokens_per_s_per_gpu:,.0f} tokens per second and GPU. First tokens come "
        f"after {first.ttft.mean_us / US_PER_MS:,.1f} ms in the mean"
    )
    soonest = min(results, key=lambda one: one.ttft.mean_us)
    if soonest is not first:
        text += f"; soonest under {label(soonest)}: {soonest.ttft.mean_us / US_PER_MS:,.1f} ms"
    spent = tables.spent_ms(first, "decode")
    share = spent["rows"] / max(sum(spent.values()), 1e-12)
    text += f". In {share:.1%} of an iteration of decode rows travel and nothing computes."
    if label(first) != first.name:
        text += " It needs proposed hardware, which the machine lacks (*)."
    return text


def _sections(compared: InferComparison, words: str) -> Iterator[Section]:
    results = tables.by_time(compared)
    first = results[0]
    yield Section(
        "When do tokens come?",
        [
            tables.heading(first),
            tpot_bars(results),
            ttft_bars(results),
            *tables.notes(compared),
        ],
    )
    yield Section("What are the times and rates?", [tables.times_table(compared), tables.batch_table(compared)])
    yield Section(
        "Where does an iteration go?",
        [
            cause_bars(results, "decode"),
            tables.causes_table(compared, "decode"),
            cause_bars(results, "prefill"),
            tables.causes_table(compared, "prefill"),
        ],
    )
    yield Section("How full are memories?", [memory_bars(results), tables.memory_table(compared)])
    gpus = f"{first.decode.gpus}"
    if first.handover is not None:
        gpus += f" decode, {first.prefill.gpus} of {first.prefill.system.name} prefill"
    entries: dict[str, Cell] = {
        "model": str(first.model["name"]),
        "machine": first.decode.system.name,
        "GPUs": gpus,
        "requests": first.requests,
    }
    yield from rests_on(first.decode.system, results, entries, words)


def tpot_bars(results: Sequence[InferResult]) -> Bars:
    """Time per output token; what it is in the end, with full caches, is marked."""
    return Bars(
        name="tpot",
        title="TPOT: time per output token of a request, ms",
        labels=labels(results),
        parts=[BarPart("mean of the requests", [one.tpot.mean_us / US_PER_MS for one in results])],
        unit="ms",
        marks=[one.tpot.end_us / US_PER_MS for one in results],
        mark_name="in the last iteration, with full caches",
    )


def ttft_bars(results: Sequence[InferResult]) -> Bars:
    """Time to the first token; that of the last request is marked."""
    return Bars(
        name="ttft",
        title="TTFT: time to the first token, from the beginning of the batch, ms",
        labels=labels(results),
        parts=[BarPart("mean of the requests", [one.ttft.mean_us / US_PER_MS for one in results])],
        unit="ms",
        marks=[one.ttft.last_us / US_PER_MS for one in results],
        mark_name="the last request",
    )


def cause_bars(results: Sequence[InferResult], phase: str) -> Bars:
    """A mean iteration of a phase by what it is spent on."""
    return Bars(
        name=f"iteration-{phase}",
        title=f"A mean iteration of {phase}, ms",
        labels=labels(results),
        parts=parts_of([tables.spent_ms(one, phase) for one in results], hatched=NOTHING_COMPUTED, names=PARTS),
        unit="ms",
        says="Hatched: nothing is computed.",
    )


def memory_bars(results: Sequence[InferResult]) -> Bars:
    """Memory of a GPU that decodes by what holds it; what the GPU has is marked."""
    found = [one.decode.memory for one in results]
    held = [
        {
            "weights": one.weight_bytes,
            "buffers, rows": one.iteration_bytes,
            "cache": one.cache_positions * one.position_bytes,
        }
        for one in found
    ]
    return Bars(
        name="memory",
        title="Memory of a GPU that decodes, GB",
        labels=labels(results),
        parts=parts_of(held, per=GB, keeps_empty=True),
        unit="GB",
        marks=[one.capacity_bytes / GB for one in found],
        mark_name="what the GPU has",
    )
