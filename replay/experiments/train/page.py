"""Training steps as a page: one scheme, or several side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwmodel.units import BYTES_PER_MIB
from replay.experiments.train.experiment import EXPERIMENT
from replay.experiments.train.result import TrainComparison
from replay.experiments.train.tables import (
    PARTS,
    causes_of,
    causes_table,
    heading,
    memory_table,
    notes,
    stages_table,
    unit_of,
    worth_table,
)
from replay.report.command import command, scheme_words
from replay.report.comparisons import (
    built,
    described,
    filled_page,
    identities_table,
    label,
    versions,
)
from replay.report.machines import preset
from replay.report.provenance import assumptions, provenance
from replay.report.tables import GB
from replay.report.words import schemes_text
from replay.schemes import supported
from tracegen.shared.display.content import Bars, Heat, Page, Part, Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replay.experiments.train.result import TrainResult

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
    "jitter": "jitter",
}
"""Columns of causes as legends name them."""
NOTHING_COMPUTED = ("exch", "peers", "pipe", "end", "jitter")
MOST_GPUS = 64
"""Columns of a heat map by GPU."""


def page(result: TrainResult | TrainComparison) -> Page:
    """Make the page of a step or of a comparison, the fastest first."""
    if isinstance(result, TrainComparison):
        compared = result
        title = f"Training {result.results[0].model['name']}: {schemes_text(len(result.results))}"
    else:
        compared = TrainComparison(baseline=result.scheme.name, results=[result])
        title = f"Training {result.model['name']}: {result.scheme.name}"
    words = compare_command(compared)
    return filled_page(title, summary(compared), _sections(compared, words), words)


def compare_command(compared: TrainComparison) -> str:
    """Command that makes a step or a comparison again."""
    spec = compared.results[0].spec
    system = preset(compared.results[0].system.name, spec.overrides)
    usual = [] if system is None else supported(system)
    words = scheme_words(
        compared.results,
        EXPERIMENT,
        baseline=compared.baseline,
        usual=[one for one in usual if one not in compared.left_out],
    )
    return command(["moereplay", "train"], spec, leave_out=("scheme", "options"), more=words)


def summary(compared: TrainComparison) -> str:
    """Say which scheme is the fastest, what it is worth, and where its step goes."""
    results = compared.ranking
    first, base = results[0], compared.base
    unit, unit_us = unit_of(results)
    of = f" is the fastest of {len(results)} schemes" if results[1:] else ""
    lines = [f"{label(first)}{of}: a step takes {first.step_us / unit_us:,.1f} {unit}"]
    if first is not base:
        gain = compared.speed_up(first.name)
        lines[0] += f", {gain:.3f} times as fast as under {compared.baseline}"
    worth = first.efficiency
    lines.append(
        f"That is {worth.tokens_per_s:,.0f} tokens/s, {worth.mfu:.1%} of what the GPUs could do "
        f"(MFU); {first.moe_share:.0%} of the step goes by with experts, exchange and waiting for "
        f"peers, {first.bubble_share:.0%} with waiting for other stages"
    )
    starred, without = built(compared)
    if without is not None:
        starred += f"; without, {without.name} is the fastest"
    return ". ".join([*lines, *([starred] if starred else [])]) + "."


def _sections(compared: TrainComparison, words: str) -> Iterator[Section]:
    results = compared.ranking
    first = results[0]
    yield Section(
        "Where the step goes",
        [
            heading(first),
            cause_bars(results),
            causes_table(results),
            worth_table(compared),
            *([speed_up_bars(compared)] if results[1:] else []),
            *notes(compared),
        ],
    )
    yield Section(
        "By stage",
        [stage_bars(first), *peers_heats(first), *(stages_table(one) for one in results)],
        is_open=not results[1:],
    )
    if first.memory:
        yield Section("Memory", [memory_bars(first), memory_table(first)])
    yield assumptions(first.system, described(results))
    plan = ", ".join(f"{key} {value}" for key, value in first.plan.items())
    yield provenance(
        {
            "model": str(first.model["name"]),
            "machine": first.system.name,
            "GPUs": first.num_gpus,
            "plan": plan,
            "schedule": str(first.schedule["name"]),
            "tokens of a step": f"{first.tokens_per_step:,}",
            "numbers": f"{first.precision}; kept: {first.recipe}",
            "routing": first.spec.trace or first.spec.routing,
            "moereplay": versions(results),
        },
        command=words,
        more=[identities_table([label(one) for one in results], results)],
    )


def cause_bars(results: Sequence[TrainResult]) -> Bars:
    """Step by cause, mean over the GPUs: the parts add up to the step."""
    unit, unit_us = unit_of(results)
    columns = causes_of(results)
    return Bars(
        name="step",
        title=f"Step by cause, mean over the GPUs, {unit}",
        labels=[label(one) for one in results],
        parts=[
            Part(
                CAUSES[what],
                [sum(map(one.mean_us, causes)) / unit_us for one in results],
                is_hatched=what in NOTHING_COMPUTED,
            )
            for what, causes in columns.items()
        ],
        unit=unit,
        says="Hatched: nothing of the model is computed.",
    )


def speed_up_bars(compared: TrainComparison) -> Bars:
    """How many steps each scheme makes while the baseline makes one."""
    results = compared.ranking
    return Bars(
        name="speed-up",
        title=f"Steps while {compared.baseline} makes one",
        labels=[label(one) for one in results],
        parts=[Part("steps", [compared.speed_up(one.name) for one in results])],
        unit="",
        marks=[1.0] * len(results),
        mark_name=compared.baseline,
    )


def stage_bars(result: TrainResult) -> Bars:
    """Causes by stage of one result, mean over the GPUs of the stage."""
    unit, unit_us = unit_of([result])
    stages = range(len(result.spent_us["peers"]))
    return Bars(
        name="stages",
        title=f"{label(result)}: step by stage, {unit}",
        labels=[f"stage {stage}" for stage in stages],
        parts=[
            Part(
                CAUSES[what],
                [
                    sum(sum(result.spent_us[cause][stage]) for cause in causes)
                    / len(result.spent_us["peers"][stage])
                    / unit_us
                    for stage in stages
                ],
                is_hatched=what in NOTHING_COMPUTED,
            )
            for what, causes in causes_of([result]).items()
        ],
        unit=unit,
    )


def peers_heats(result: TrainResult) -> Iterator[Heat]:
    """Waiting for peers, by stage and GPU; nothing where there are too many GPUs to draw."""
    unit, unit_us = unit_of([result])
    stages = result.spent_us["peers"]
    if not 1 < len(stages[0]) <= MOST_GPUS:
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
    parts = [part for part in result.memory[0] if any(one[part] for one in result.memory)]
    capacity = result.system.values["hbm.capacity_MiB"]
    assert isinstance(capacity, int | float)
    return Bars(
        name="memory",
        title="Memory of a GPU of each stage, GB",
        labels=[f"stage {stage}" for stage in range(len(result.memory))],
        parts=[
            Part(PARTS.get(part, part), [one[part] / GB for one in result.memory]) for part in parts
        ],
        unit="GB",
        marks=[capacity * BYTES_PER_MIB / GB] * len(result.memory),
        mark_name="what the GPU has",
        says="With even routing, and without a scheme's buffers.",
    )
