"""Training steps as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwmodel.units import BYTES_PER_MIB
from replay.experiments.train.result import TrainComparison
from replay.experiments.train.schedules.registry import SCHEDULES
from replay.report.comparisons import beside, label, labels, outside_notes, tables_group
from replay.report.tables import GB, named_table, table, time_unit, word_column
from replay.report.words import WORDS
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import Group

    from replay.experiments.train.result import Efficiency, TrainResult

COLUMNS = {
    "attn": ("attention",),
    "dense": ("dense",),
    "experts": ("experts",),
    "exch": ("exchange",),
    "peers": ("peers",),
    "pipe": ("pipeline",),
    "head": ("head",),
    "end": ("synchronise", "optimiser"),
}
"""Columns of the first table, and the causes that each adds up."""
AT_TIMES = ("host", "jitter")
"""Causes that have a column where there is something of them; head and end then are one."""
RANKS = {"head": 2, "end": 2, "other": 2, "jitter": 1}
"""Columns of causes that leave a narrow screen."""
PARTS = {"activations": "kept", "at_work": "at work"}
"""Shorter names of parts of memory."""


def tables(result: TrainResult | TrainComparison, *, details: bool) -> Group:
    """Tables of one step, which are all, or of a comparison.

    Parameters
    ----------
    details
        Of a comparison, whether causes by stage and memory are wanted, too.
    """
    compared = beside(result, TrainComparison)
    results, lines = compared.ranking, list(notes(compared))
    kernels = [one for one in results if one.activity_us]
    shown = [
        causes_table(results),
        *([kernels_table(kernels)] if kernels else []),
        worth_table(compared),
    ]
    if details or compared is not result:
        shown += map(stages_table, results)
        shown += [memory_table(results[0])] if results[0].memory else []
    else:
        lines.append("By stage, and memory: --details.")
    return tables_group(heading(compared.base), shown, lines)


def heading(result: TrainResult) -> str:
    """Heading that names the replay."""
    plan = result.plan
    sizes = ", ".join(f"{name} {plan[name]}" for name in ("tp", "cp", "pp", "vpp", "dp", "ep") if plan[name] != 1)
    count = plan["micro_batches"]
    batches = "micro-batch" if count == 1 else "micro-batches"
    batch = f"{count} {batches} of {plan['micro_batch']} x {result.sequence:,}"
    return (
        f"{result.model['name']}, a training step, {result.schedule['name']}, {batch} tokens, "
        f"{sizes or 'no parallelism'}, {result.precision}, on {result.num_gpus} GPUs of "
        f"{result.system.name}"
    )


def unit_of(results: Sequence[TrainResult]) -> tuple[str, float]:
    """Unit in which steps have few digits, and its microseconds."""
    return time_unit(max(one.step_us for one in results))


def causes_of(results: Sequence[TrainResult]) -> dict[str, tuple[str, ...]]:
    """Columns of causes; those of `AT_TIMES` only where there are some."""
    more = [one for one in AT_TIMES if any(result.mean_us(one) for result in results)]
    if not more:
        return COLUMNS
    columns = {name: causes for name, causes in COLUMNS.items() if name not in ("head", "end")}
    columns["other"] = (*COLUMNS["head"], *COLUMNS["end"])
    return columns | {one: (one,) for one in more}


def _form(results: Sequence[TrainResult]) -> str:
    """Form of times in a unit in which the longest step has five characters."""
    longest = max(one.step_us for one in results) / unit_of(results)[1]
    decimals = next((n for n in (3, 2, 1) if longest < 10 ** (4 - n)), 0)
    return f".{decimals}f"


def spent_us(result: TrainResult, columns: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Step by column, mean over GPUs."""
    return {what: sum(map(result.mean_us, causes)) for what, causes in columns.items()}


def by_stage_us(result: TrainResult) -> list[dict[str, float]]:
    """Step by column for each stage, mean over its GPUs."""
    return [
        {
            what: sum(sum(result.spent_us[cause][stage]) for cause in causes) / len(peers)
            for what, causes in causes_of([result]).items()
        }
        for stage, peers in enumerate(result.spent_us["peers"])
    ]


def causes_table(results: Sequence[TrainResult]) -> Table:
    """Step by cause, mean over GPUs, in the order of the results."""
    (unit, unit_us), form, columns = unit_of(results), _form(results), causes_of(results)
    rows = [
        (label(one), [time / unit_us for time in (one.step_us, *spent_us(one, columns).values())]) for one in results
    ]
    heads = [Column("step", unit, form), *_cause_columns(columns, unit, form)]
    return named_table("causes", "Step by cause, mean over GPUs", heads, rows)


def kernels_table(results: Sequence[TrainResult]) -> Table:
    """Time in which kernels run, mean over GPUs, in the order of the results."""
    (unit, unit_us), form = unit_of(results), _form(results)
    rows = []
    for one in results:
        found = one.kernels_us
        times = [found[name] / unit_us for name in ("active", "idle", "computing", "communicating")]
        rows.append((label(one), [*times, one.hidden_share]))
    heads = [
        word_column("active", unit, form, word="active of a GPU"),
        word_column("idle", unit, form, word="idle of a GPU"),
        word_column("computing", unit, form, 1),
        word_column("comm", unit, form),
        word_column("hidden", "", ".1%"),
    ]
    return named_table("kernels", "Kernels as a profiler sees them, mean over GPUs", heads, rows)


def _cause_columns(causes: Iterable[str], unit: str, form: str) -> Iterator[Column]:
    for cause in causes:
        yield Column(cause, unit, form, RANKS.get(cause, 0), WORDS.get(cause, ""))


def worth_table(compared: TrainComparison) -> Table:
    """Speed-up, tokens per second, utilisation, shares; the fastest first."""
    results = compared.ranking
    return table(
        "worth",
        f"What it is worth; speed-up over {compared.baseline}",
        results,
        (word_column("speed-up", "", ".3f"), lambda one: compared.speed_up(one.name)),
        (Column("tokens/s", "", ",.0f"), lambda one: one.efficiency.tokens_per_s),
        (Column("per GPU", "", ",.0f", 2), lambda one: one.efficiency.tokens_per_s_per_gpu),
        (Column("TFLOP/s per GPU", "", ",.1f", 3), lambda one: one.efficiency.tflop_per_s_per_gpu),
        (
            Column("MFU", "", ".1%", says=_count_text(results[0].efficiency)),
            lambda one: one.efficiency.mfu,
        ),
        (word_column("MoE", "", ".1%", 1), lambda one: one.moe_share),
        (word_column("bubble", "", ".1%", 1), lambda one: one.bubble_share),
        labels=labels(results),
    )


def _count_text(worth: Efficiency) -> str:
    """Sentence on how MFU is counted."""
    return (
        f"{worth.flop_per_token / 1e9:,.1f} GFLOP per token, forward and backward, causal "
        f"attention, nothing twice, of {worth.peak_tflop_per_s:,.0f} TFLOP/s {worth.peak} dense"
    )


# ---- details -------------------------------------------------------------------------------------


def stages_table(result: TrainResult) -> Table:
    """Causes by stage, mean over its GPUs, and the least and most that one of them waits."""
    (unit, unit_us), form, columns = unit_of([result]), _form([result]), causes_of([result])
    waits = [(min(peers), max(peers)) for peers in result.spent_us["peers"]]
    rows = [
        [stage, *(time / unit_us for time in (*times.values(), *waits[stage]))]
        for stage, times in enumerate(by_stage_us(result))
    ]
    return Table(
        f"stages-{result.scheme.name}",
        f"{label(result)} by stage",
        [
            Column("stage", form="d"),
            *_cause_columns(columns, unit, form),
            word_column("peers from", unit, form, 2),
            word_column("to", unit, form, 2),
        ],
        rows,
    )


def memory_table(result: TrainResult) -> Table:
    """Memory of the fullest GPU of each stage."""
    parts = [part for part in result.memory[0] if any(one[part] for one in result.memory)]
    columns = [
        Column("stage", form="d"),
        *(Column(PARTS.get(part, part), "GB", ".2f", rank=1) for part in parts),
        Column("all", "GB", ".2f"),
    ]
    rows = [
        [stage, *(one[part] / GB for part in parts), sum(one.values()) / GB] for stage, one in enumerate(result.memory)
    ]
    return Table("memory", f"Memory of a GPU of each stage, {result.recipe}", columns, rows)


# ---- notes ---------------------------------------------------------------------------------------


def notes(compared: TrainComparison) -> Iterator[str]:
    """Notes on the replay, and on stars and missing rows."""
    result = compared.results[0]
    if result.num_gpus > result.peers * len(result.spent_us["peers"]):
        groups = result.num_gpus // (result.peers * len(result.spent_us["peers"]))
        yield f"One of {groups} groups of {result.peers} GPUs per stage; all do alike."
    yield from _misfit(result)
    facts = result.replayed
    sampled = [len(_list(one)) for one in _list(facts["replayed_layers"])]
    yield (
        f"Replayed: {' + '.join(map(str, sampled))} of {facts['moe_layers']} MoE layers, routing "
        f"{result.spec.trace or result.spec.routing}, {facts['tokens_per_gpu']:,} tokens per GPU."
    )
    if result.spec.stack is not None:
        spread = result.spec.host_spread
        pace = f", each at its own pace (spread {spread:g})" if spread else ""
        yield f"Kernels are launched by hosts of {result.spec.stack}{pace}."
        stacks = [(one, one.replayed.get("stack")) for one in compared.results]
        if strange := [label(one) for one, of in stacks if isinstance(of, dict) and of.get("knows") is False]:
            yield (
                f"Not in the list of {result.spec.stack}, so that kernels for rows are calls of "
                f"an extension: {', '.join(strange)}."
            )
    yield from _clock_lines(compared.results)
    if left_out := _list(facts["left_out"]):
        yield f"No time is charged for: {', '.join(map(str, left_out))}."
    apart = [label(one) for one in compared.results if not one.is_paired]
    schedule = SCHEDULES.get(str(result.schedule["name"]))
    if apart and schedule is not None and schedule.beside:
        yield (
            "No joint replay, so a forward pass comes before a backward pass where the schedule "
            f"has both at once: {', '.join(apart)}."
        )
    yield from outside_notes(result.system.name, compared)


def _clock_lines(results: Sequence[TrainResult]) -> Iterator[str]:
    """Power of GPUs at each clock: from the scheme that draws least to the one that draws most."""
    at: dict[tuple[float, float], dict[float, str]] = {}
    for one in results:
        if one.clock is not None:
            at.setdefault((one.clock.GHz, one.clock.limit_W), {}).setdefault(one.clock.W, label(one))
    for (clock, limit), drawn in at.items():
        watts = [f"{drawing:,.0f}" for drawing in (min(drawn), max(drawn))]
        if watts[0] == watts[1]:
            yield f"GPUs at {clock:g} GHz draw {watts[0]} of {limit:,.0f} W."
        else:
            least, most = drawn[min(drawn)], drawn[max(drawn)]
            yield f"GPUs at {clock:g} GHz draw {watts[0]} ({least}) to {watts[1]} ({most}) of {limit:,.0f} W."


def capacity_bytes(result: TrainResult) -> float:
    """Memory that a GPU has."""
    capacity = result.system.values["hbm.capacity_MiB"]
    assert isinstance(capacity, int | float)
    return capacity * BYTES_PER_MIB


def _misfit(result: TrainResult) -> Iterator[str]:
    """The stage that needs most, where that is more than a GPU has."""
    needs = [sum(one.values()) for one in result.memory]
    most, room = max(needs, default=0), capacity_bytes(result)
    if most > room:
        yield (
            f"Does not fit: stage {needs.index(most)} needs {most / GB:,.1f} GB on each GPU, "
            f"which has {room / GB:,.1f}. Times are as if it did."
        )


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []
