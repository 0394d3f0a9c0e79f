"""Training steps as a page: one scheme, or several side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.train import tables
from replay.experiments.train.experiment import EXPERIMENT
from replay.experiments.train.result import TrainComparison
from replay.report.charts import parts_of
from replay.report.comparisons import beside, built_words, compare_command, label, labels, rests_on, rivals
from replay.report.pages import filled_page
from replay.report.provenance import preset
from replay.report.tables import GB
from replay.report.words import schemes_text
from replay.schemes import supporting_schemes
from tracegen.shared.display.content import BarPart, Bars, Heat, Page, Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replay.experiments.train.result import TrainResult
    from tracegen.shared.display.content import Cell

CAUSES = {
    "attn": "attention, norms, gate",
    "dense": "dense layers, shared experts",
    "experts": "experts",
    "exch": "exchange",
    "peers": "waiting for peers",
    "pipe": "waiting for a stage",
    "head": "embedding, output head",
    "end": "gradients, optimiser",
    "other": "head, gradients, optimiser",
    "host": "launches, waits of hosts",
    "jitter": "jitter",
}
"""Columns of causes as legends name them."""
NOTHING_COMPUTED = ("exch", "host", "peers", "pipe", "end", "jitter")
MOST_GPUS = 64
"""Columns of a heat map by GPU."""


def page(result: TrainResult | TrainComparison) -> Page:
    """Make the page of a step or of a comparison, the fastest first."""
    compared = beside(result, TrainComparison)
    first = compared.results[0]
    what = compared.base.name if compared is not result else schemes_text(len(compared.results))
    system = preset(first.system.name, first.spec.overrides)
    usual = [] if system is None else supporting_schemes(system)
    words = compare_command(["moereplay", "train"], compared, EXPERIMENT, usual)
    title = f"Training {first.model['name']}: {what}"
    return filled_page(title, summary(compared), _sections(compared, words), words)


def summary(compared: TrainComparison) -> str:
    """Say which scheme is the fastest, what it is worth, and where its step goes."""
    results = rivals(compared.ranking)
    first, base = results[0], compared.base
    unit, unit_us = tables.unit_of(results)
    of = f" is the fastest of {len(results)} schemes" if results[1:] else ""
    lines = [f"{label(first)}{of}: a step takes {first.step_us / unit_us:,.1f} {unit}"]
    if first is not base:
        gain = compared.speed_up(first.name)
        lines[0] += f", {gain:.3f} times as fast as under {compared.baseline}"
    worth = first.efficiency
    lines.append(
        f"That is {worth.tokens_per_s:,.0f} tokens/s, {worth.mfu:.1%} of what the GPUs could do "
        f"(MFU); {first.moe_share:.1%} of the step goes by with experts, exchange and waiting for "
        f"peers, {first.bubble_share:.1%} with waiting for other stages"
    )
    starred, without = built_words(compared)
    if without is not None:
        starred += f"; without, {without.name} is the fastest"
    return ". ".join([*lines, *([starred] if starred else [])]) + "."


def _sections(compared: TrainComparison, words: str) -> Iterator[Section]:
    results = compared.ranking
    first, kernels = results[0], [one for one in results if one.activity_us]
    yield Section(
        "Where does the step go?",
        [
            tables.heading(first),
            cause_bars(results),
            *tables.notes(compared),
        ],
    )
    yield Section(
        "What is a step worth?",
        [tables.worth_table(compared), *([speed_up_bars(compared)] if results[1:] else [])],
    )
    yield Section(
        "What are the times of its parts?",
        [tables.causes_table(results), *([tables.kernels_table(kernels)] if kernels else [])],
    )
    yield Section(
        "How do stages differ?",
        [stage_bars(first), *peers_heats(first), *(tables.stages_table(one) for one in results)],
        is_detail=len(results) > 1,
    )
    if first.memory:
        yield Section("How full are memories?", [memory_bars(first), tables.memory_table(first)])
    entries: dict[str, Cell] = {
        "model": str(first.model["name"]),
        "machine": first.system.name,
        "GPUs": first.num_gpus,
        "plan": ", ".join(f"{key} {value}" for key, value in first.plan.items()),
        "schedule": str(first.schedule["name"]),
        "tokens of a step": f"{first.tokens_per_step:,}",
        "numbers": f"{first.precision}; kept: {first.recipe}",
        "routing": first.spec.trace or first.spec.routing,
    }
    yield from rests_on(first.system, results, entries, words)


def cause_bars(results: Sequence[TrainResult]) -> Bars:
    """Step by cause, mean over the GPUs: the parts add up to the step."""
    unit, unit_us = tables.unit_of(results)
    spent = [tables.spent_us(one, tables.causes_of(results)) for one in results]
    return Bars(
        name="step",
        title=f"Step by cause, mean over the GPUs, {unit}",
        labels=labels(results),
        parts=parts_of(spent, hatched=NOTHING_COMPUTED, names=CAUSES, per=unit_us, keeps_empty=True),
        unit=unit,
        says="Hatched: nothing of the model is computed.",
    )


def speed_up_bars(compared: TrainComparison) -> Bars:
    """Bars of the steps that each scheme makes while the baseline makes one."""
    results = compared.ranking
    return Bars(
        name="speed-up",
        title=f"Steps while {compared.baseline} makes one",
        labels=labels(results),
        parts=[BarPart("steps", [compared.speed_up(one.name) for one in results])],
        unit="",
        marks=[1.0] * len(results),
        mark_name=compared.baseline,
    )


def stage_bars(result: TrainResult) -> Bars:
    """Causes by stage of one result, mean over the GPUs of the stage."""
    (unit, unit_us), spent = tables.unit_of([result]), tables.by_stage_us(result)
    return Bars(
        name="stages",
        title=f"{label(result)}: step by stage, {unit}",
        labels=[f"stage {stage}" for stage in range(len(spent))],
        parts=parts_of(spent, hatched=NOTHING_COMPUTED, names=CAUSES, per=unit_us, keeps_empty=True),
        unit=unit,
    )


def peers_heats(result: TrainResult) -> Iterator[Heat]:
    """Waiting for peers, by stage and GPU; nothing where nobody waits, or there are too many GPUs to draw."""
    unit, unit_us = tables.unit_of([result])
    stages = result.spent_us["peers"]
    if not 1 < len(stages[0]) <= MOST_GPUS or not any(map(any, stages)):
        return
    yield Heat(
        name="peers",
        title=f"{label(result)}: time in which a GPU waits for those of its stage that come later",
        rows=[f"stage {stage}" for stage in range(len(stages))],
        columns=[str(gpu) for gpu in range(len(stages[0]))],
        values=[[time / unit_us for time in gpus] for gpus in stages],
        unit=unit,
        form=",.1f",
        says="GPUs of a stage: routing decides which of them are early.",
    )


def memory_bars(result: TrainResult) -> Bars:
    """Memory of a GPU of each stage by what holds it; what the GPU has is marked."""
    return Bars(
        name="memory",
        title="Memory of a GPU of each stage, GB",
        labels=[f"stage {stage}" for stage in range(len(result.memory))],
        parts=parts_of(result.memory, names=tables.PARTS, per=GB),
        unit="GB",
        marks=[tables.capacity_bytes(result) / GB] * len(result.memory),
        mark_name="what the GPU has",
        says="With even routing, and without a scheme's buffers.",
    )
