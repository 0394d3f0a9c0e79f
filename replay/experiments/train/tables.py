"""Training steps as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwmodel.units import BYTES_PER_MIB
from replay.experiments.train.result import TrainComparison
from replay.experiments.train.schedules.registry import SCHEDULES
from replay.report.comparisons import label, outside_notes, tables_group
from replay.report.tables import GB
from replay.report.words import WORDS, says
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Group

    from replay.experiments.train.result import Efficiency, TrainResult
    from tracegen.shared.display.content import Cell

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
WITH_JITTER = {
    **{name: causes for name, causes in COLUMNS.items() if name not in ("head", "end")},
    "other": (*COLUMNS["head"], *COLUMNS["end"]),
    "jitter": ("jitter",),
}
"""The same where random delays are a cause."""
RANKS = {"head": 2, "end": 2, "other": 2, "jitter": 1}
"""Columns of causes that leave a narrow screen."""
PARTS = {"activations": "kept", "at_work": "at work"}
"""Shorter names of parts of memory."""


def ranking(compared: TrainComparison) -> Group:
    """What a comparison is asked for first: where the step goes, and what it is worth."""
    tables = [causes_table(compared.ranking), worth_table(compared)]
    more = "By stage, and memory: --details."
    return tables_group(heading(compared.base), tables, [*notes(compared), more])


def comparison_tables(compared: TrainComparison) -> Group:
    """Everything: also causes by stage, GPUs that wait most and least, memory."""
    results = compared.ranking
    tables = [causes_table(results), worth_table(compared), *details(results)]
    return tables_group(heading(compared.base), tables, notes(compared))


def result_tables(result: TrainResult) -> Group:
    """Tables of one step."""
    alone = TrainComparison(baseline=result.scheme.name, results=[result])
    return comparison_tables(alone)


def heading(result: TrainResult) -> str:
    """What was replayed."""
    plan = result.plan
    sizes = ", ".join(
        f"{name} {plan[name]}" for name in ("tp", "cp", "pp", "vpp", "dp", "ep") if plan[name] != 1
    )
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
    return ("s", 1e6) if max(one.step_us for one in results) >= 1e6 else ("ms", 1e3)


def causes_of(results: Sequence[TrainResult]) -> dict[str, tuple[str, ...]]:
    """Columns of causes; random delays only where there are some."""
    return WITH_JITTER if any(result.mean_us("jitter") for result in results) else COLUMNS


def _form(results: Sequence[TrainResult]) -> str:
    """Form of times in a unit in which the longest step has five characters."""
    longest = max(one.step_us for one in results) / unit_of(results)[1]
    decimals = next((n for n in (3, 2, 1) if longest < 10 ** (4 - n)), 0)
    return f".{decimals}f"


def causes_table(results: Sequence[TrainResult]) -> Table:
    """Step by cause, mean over GPUs, in the order of the results."""
    (unit, unit_us), form, columns = unit_of(results), _form(results), causes_of(results)
    rows: list[tuple[Cell, ...]] = []
    for result in results:
        times = [sum(map(result.mean_us, causes)) / unit_us for causes in columns.values()]
        rows.append((label(result), result.step_us / unit_us, *times))
    return Table(
        "causes",
        "Step by cause, mean over GPUs",
        [Column("scheme"), Column("step", unit, form), *_cause_columns(columns, unit, form)],
        rows,
    )


def _cause_columns(causes: Iterable[str], unit: str, form: str) -> Iterator[Column]:
    for cause in causes:
        yield Column(cause, unit, form, RANKS.get(cause, 0), WORDS.get(cause, ""))


def worth_table(compared: TrainComparison) -> Table:
    """Speed-up, tokens per second, utilisation, shares; the fastest first."""
    results = compared.ranking
    worth = [result.efficiency for result in results]
    columns = [
        Column("scheme"),
        Column("speed-up", "", ".3f", says=says("speed-up")),
        Column("tokens/s", "", ",.0f"),
        Column("per GPU", "", ",.0f", rank=2),
        Column("TFLOP/s per GPU", "", ",.1f", rank=3),
        Column("MFU", "", ".1%", says=_counted(worth[0])),
        Column("MoE", "", ".1%", rank=1, says=says("MoE")),
        Column("bubble", "", ".1%", rank=1, says=says("bubble")),
    ]
    rows = [
        (
            label(result), compared.speed_up(result.name), one.tokens_per_s,
            one.tokens_per_s_per_gpu, one.tflop_per_s_per_gpu, one.mfu, result.moe_share,
            result.bubble_share,
        )
        for result, one in zip(results, worth, strict=True)
    ]  # fmt: skip
    return Table("worth", f"What it is worth; speed-up over {compared.baseline}", columns, rows)


def _counted(worth: Efficiency) -> str:
    """How MFU is counted."""
    return (
        f"{worth.flop_per_token / 1e9:,.1f} GFLOP per token, forward and backward, causal "
        f"attention, nothing twice, of {worth.peak_tflop_per_s:,.0f} TFLOP/s {worth.peak} dense"
    )


# ---- details -------------------------------------------------------------------------------------


def details(results: Sequence[TrainResult]) -> Iterator[Table]:
    """Causes by stage of each result, and memory by stage."""
    for result in results:
        yield stages_table(result)
    if results[0].memory:
        yield memory_table(results[0])


def stages_table(result: TrainResult) -> Table:
    """Causes by stage, mean over its GPUs, and the least and most that one of them waits."""
    (unit, unit_us), form, columns = unit_of([result]), _form([result]), causes_of([result])
    rows: list[tuple[Cell, ...]] = []
    for stage, peers in enumerate(result.spent_us["peers"]):
        times = [
            sum(sum(result.spent_us[cause][stage]) for cause in causes) / len(peers)
            for causes in columns.values()
        ]
        rows.append((stage, *(time / unit_us for time in (*times, min(peers), max(peers)))))
    return Table(
        f"stages-{result.scheme.name}",
        f"{label(result)} by stage",
        [
            Column("stage", form="d"),
            *_cause_columns(columns, unit, form),
            Column("peers from", unit, form, rank=2, says=says("peers from")),
            Column("to", unit, form, rank=2, says=says("to")),
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
    rows: list[tuple[Cell, ...]] = [
        (stage, *(one[part] / GB for part in parts), sum(one.values()) / GB)
        for stage, one in enumerate(result.memory)
    ]
    return Table("memory", f"Memory of a GPU of each stage, {result.recipe}", columns, rows)


# ---- notes ---------------------------------------------------------------------------------------


def notes(compared: TrainComparison) -> Iterator[str]:
    """What was replayed, what stars and missing rows mean."""
    result = compared.results[0]
    lines = []
    if result.num_gpus > result.peers * len(result.spent_us["peers"]):
        groups = result.num_gpus // (result.peers * len(result.spent_us["peers"]))
        lines.append(f"One of {groups} groups of {result.peers} GPUs per stage; all do alike.")
    lines += _misfit(result)
    facts = result.replayed
    sampled = [len(_list(one)) for one in _list(facts["replayed_layers"])]
    lines.append(
        f"Replayed: {' + '.join(map(str, sampled))} of {facts['moe_layers']} MoE layers, routing "
        f"{result.spec.trace or result.spec.routing}, {facts['tokens_per_gpu']:,} tokens per GPU."
    )
    if left_out := _list(facts["left_out"]):
        lines.append(f"No time is charged for: {', '.join(map(str, left_out))}.")
    apart = [label(one) for one in compared.results if not one.is_paired]
    schedule = SCHEDULES.get(str(result.schedule["name"]))
    if apart and schedule is not None and schedule.beside:
        lines.append(
            "No joint replay, so a forward pass comes before a backward pass where the schedule "
            f"has both at once: {', '.join(apart)}."
        )
    yield from lines
    yield from outside_notes(result.system.name, compared)


def _misfit(result: TrainResult) -> Iterator[str]:
    """The stage that needs most, where that is more than a GPU has."""
    needs = [sum(one.values()) for one in result.memory]
    capacity = result.system.values["hbm.capacity_MiB"]
    assert isinstance(capacity, int | float)
    most, room = max(needs, default=0), capacity * BYTES_PER_MIB
    if most > room:
        yield (
            f"Does not fit: stage {needs.index(most)} needs {most / GB:,.1f} GB on each GPU, "
            f"which has {room / GB:,.1f}. Times are as if it did."
        )


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []
