"""A batch of requests served by a whole model as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replay.experiments.serve.experiment import EXPERIMENT
from replay.experiments.serve.result import InferComparison
from replay.experiments.serve.tables import (
    CAUSES,
    US_PER_MS,
    batch_table,
    by_time,
    causes_table,
    heading,
    memory_table,
    notes,
    spent_ms,
    times_table,
)
from replay.report.command import command, scheme_words
from replay.report.comparisons import described, filled_page, identities_table, label, versions
from replay.report.provenance import assumptions, provenance
from replay.report.tables import GB
from replay.report.words import schemes_text
from tracegen.shared.display.content import Bars, Page, Part, Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from replay.experiments.base.result import ComparisonBase
    from replay.experiments.base.schemed import AnySchemeExperiment
    from replay.experiments.serve.result import InferResult

PARTS = {
    "attention": "attention",
    "dense": "dense layers, shared experts",
    "experts": "experts",
    "rows": "rows travel",
    "head": "embedding, output head",
    "gaps": "gaps between kernels",
}
"""Columns of causes as legends name them."""
LEFT_OUT = ("scheme", "options", "prefill_scheme", "prefill_options")
"""Settings that are no options of the command."""
NOTHING_COMPUTED = ("rows", "gaps")


def page(result: InferResult | InferComparison) -> Page:
    """Make the page of a batch or of a comparison, those that decode fastest first."""
    if isinstance(result, InferComparison):
        compared = result
        title = f"Serving {result.results[0].model['name']}: {schemes_text(len(result.results))}"
    else:
        compared = InferComparison(baseline=result.name, results=[result])
        title = f"Serving {result.model['name']}: {result.name}"
    words = compare_command(compared)
    return filled_page(title, summary(compared), _sections(compared, words), words)


def compare_command(compared: InferComparison) -> str:
    """Command that makes a batch or a comparison again."""
    return serving_command(compared, EXPERIMENT)


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
    words = scheme_words(compared.results, experiment, baseline=compared.baseline, usual=usual)
    spec = compared.results[0].spec
    return command(["moereplay", "infer"], spec, leave_out=LEFT_OUT, defaults=defaults, more=words)


def summary(compared: InferComparison) -> str:
    """Say which schemes decode fastest, and when the first tokens come."""
    results = by_time(compared)
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
    rows = spent_ms(first, "decode")[list(CAUSES.values()).index("rows")]
    share = rows / max(sum(spent_ms(first, "decode")), 1e-12)
    text += f". In {share:.0%} of an iteration of decode rows travel and nothing computes."
    if label(first) != first.name:
        text += " It needs proposed hardware, which the machine lacks (*)."
    return text


def _sections(compared: InferComparison, words: str) -> Iterator[Section]:
    results = by_time(compared)
    first = results[0]
    yield Section(
        "First tokens, and each token",
        [
            heading(first),
            times_table(compared),
            tpot_bars(results),
            ttft_bars(results),
            batch_table(compared),
            *notes(compared),
        ],
    )
    yield Section(
        "What an iteration is spent on",
        [
            cause_bars(results, "decode"),
            causes_table(compared, "decode"),
            cause_bars(results, "prefill"),
            causes_table(compared, "prefill"),
        ],
    )
    yield Section("Memory", [memory_bars(results), memory_table(compared)])
    yield assumptions(first.decode.system, described(results))
    gpus = f"{first.decode.gpus}"
    if first.handover is not None:
        gpus += f" decode, {first.prefill.gpus} of {first.prefill.system.name} prefill"
    yield provenance(
        {
            "model": str(first.model["name"]),
            "machine": first.decode.system.name,
            "GPUs": gpus,
            "requests": first.requests,
            "moereplay": versions(results),
        },
        command=words,
        more=[identities_table([label(one) for one in results], results)],
    )


def tpot_bars(results: Sequence[InferResult]) -> Bars:
    """Time per output token; what it is in the end, with full caches, is marked."""
    return Bars(
        name="tpot",
        title="TPOT: time per output token of a request, ms",
        labels=[label(one) for one in results],
        parts=[Part("mean of the requests", [one.tpot.mean_us / US_PER_MS for one in results])],
        unit="ms",
        marks=[one.tpot.end_us / US_PER_MS for one in results],
        mark_name="in the last iteration, with full caches",
    )


def ttft_bars(results: Sequence[InferResult]) -> Bars:
    """Time to the first token; that of the last request is marked."""
    return Bars(
        name="ttft",
        title="TTFT: time to the first token, from the beginning of the batch, ms",
        labels=[label(one) for one in results],
        parts=[Part("mean of the requests", [one.ttft.mean_us / US_PER_MS for one in results])],
        unit="ms",
        marks=[one.ttft.last_us / US_PER_MS for one in results],
        mark_name="the last request",
    )


def cause_bars(results: Sequence[InferResult], phase: str) -> Bars:
    """A mean iteration of a phase by what it is spent on."""
    spent = [spent_ms(one, phase) for one in results]
    return Bars(
        name=f"iteration-{phase}",
        title=f"A mean iteration of {phase}, ms",
        labels=[label(one) for one in results],
        parts=[
            Part(PARTS[word], [one[place] for one in spent], is_hatched=word in NOTHING_COMPUTED)
            for place, word in enumerate(CAUSES.values())
            if any(one[place] for one in spent)
        ],
        unit="ms",
        says="Hatched: nothing is computed.",
    )


def memory_bars(results: Sequence[InferResult]) -> Bars:
    """Memory of a GPU that decodes by what holds it; what the GPU has is marked."""
    found = [one.decode.memory for one in results]
    held = {
        "weights": [one.weight_bytes for one in found],
        "buffers, rows": [one.iteration_bytes for one in found],
        "cache": [one.cache_positions * one.position_bytes for one in found],
    }
    return Bars(
        name="memory",
        title="Memory of a GPU that decodes, GB",
        labels=[label(one) for one in results],
        parts=[Part(what, [size / GB for size in sizes]) for what, sizes in held.items()],
        unit="GB",
        marks=[one.capacity_bytes / GB for one in found],
        mark_name="what the GPU has",
    )
