"""Training steps as tables of text, narrower than 80 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from hwmodel.units import BYTES_PER_MIB
from replay.report.tables import text_table
from replay.training.result import TrainComparison
from replay.training.schedules.registry import SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from replay.training.result import TrainResult

WIDTH = 79
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
PARTS = {"activations": "kept", "at_work": "at work"}
"""Shorter names of parts of memory."""

LEGEND = """\
attn: attention, norms, gate; dense: layers without experts, shared experts;
exch: exchange of rows while nothing computes; peers: waiting for GPUs of the
stage that come later (imbalance); pipe: waiting for another stage (bubble,
messages between stages); head: embedding, output head, loss; end: gradients
added up and weights updated when nothing else is left."""


def ranking(compared: TrainComparison) -> Group:
    """What a comparison is asked for first: where the step goes, and what it is worth."""
    results = _by_time(compared)
    return Group(
        Text(_heading(results[0])),
        Text(),
        _causes_table(results),
        _worth_table(compared, results),
        Text(LEGEND),
        *_notes(compared),
        Text("By stage, and memory: --details."),
    )


def comparison_tables(compared: TrainComparison) -> Group:
    """Everything: also causes by stage, GPUs that wait most and least, memory."""
    results = _by_time(compared)
    return Group(
        Text(_heading(results[0])),
        Text(),
        _causes_table(results),
        _worth_table(compared, results),
        *_details(results),
        Text(LEGEND),
        *_notes(compared),
    )


def result_tables(result: TrainResult) -> Group:
    """Tables of one step."""
    alone = TrainComparison(baseline=str(result.scheme["name"]), results=[result])
    return comparison_tables(alone)


def _by_time(compared: TrainComparison) -> list[TrainResult]:
    return sorted(compared.results, key=lambda one: one.step_us)


def _heading(result: TrainResult) -> str:
    """What was replayed."""
    plan = result.plan
    sizes = ", ".join(
        f"{name} {plan[name]}" for name in ("tp", "cp", "pp", "vpp", "dp", "ep") if plan[name] != 1
    )
    count = plan["micro_batches"]
    batches = "micro-batch" if count == 1 else "micro-batches"
    batch = f"{count} {batches} of {plan['micro_batch']} x {result.sequence:,}"
    return _filled(
        f"{result.model['name']}, a training step, {result.schedule['name']}, {batch} tokens, "
        f"{sizes or 'no parallelism'}, {result.precision}, on {result.num_gpus} GPUs of "
        f"{result.system.name}"
    )


def _filled(text: str) -> str:
    """Text in lines, names in one piece."""
    return textwrap.fill(text, WIDTH, break_on_hyphens=False)


def _name(result: TrainResult) -> str:
    """Name of the scheme; a star says that it needs hardware that is proposed."""
    return str(result.scheme["name"]) + ("*" if result.scheme["proposes"] else "")


def _unit(results: Sequence[TrainResult]) -> tuple[str, float]:
    """Unit in which steps have few digits, and its microseconds."""
    return ("s", 1e6) if max(one.step_us for one in results) >= 1e6 else ("ms", 1e3)


def _shown(results: Sequence[TrainResult]) -> dict[str, tuple[str, ...]]:
    """Columns of causes; random delays only where there are some."""
    return WITH_JITTER if any(result.mean_us("jitter") for result in results) else COLUMNS


def _cells(results: Sequence[TrainResult], times_us: Iterable[float]) -> list[str]:
    """Times in a unit of which the longest step has five characters."""
    _, unit_us = _unit(results)
    longest = max(one.step_us for one in results) / unit_us
    decimals = next((n for n in (3, 2, 1) if longest < 10 ** (4 - n)), 0)
    return [f"{time_us / unit_us:.{decimals}f}" for time_us in times_us]


def _tight(table: Table) -> Table:
    """One space between columns, for tables of many."""
    table.padding = (0, 0)
    return table


def _causes_table(results: Sequence[TrainResult]) -> Table:
    """Step by cause, mean over GPUs, the fastest scheme first."""
    unit, columns = _unit(results)[0], _shown(results)
    table = _tight(
        text_table(f"Step by cause, mean over GPUs ({unit})", ("scheme", "step", *columns))
    )
    for result in results:
        times = [sum(map(result.mean_us, causes)) for causes in columns.values()]
        table.add_row(_name(result), *_cells(results, (result.step_us, *times)))
    return table


def _worth_table(compared: TrainComparison, results: Sequence[TrainResult]) -> Table:
    """Speed-up, tokens per second, utilisation, shares."""
    table = _tight(
        text_table(
            f"What it is worth; speed-up over {compared.baseline}",
            ("scheme", "speed-up", "tokens/s", "per GPU", "TFLOP/s", "MFU", "MoE", "bubble"),
        )
    )
    over = compared[compared.baseline].step_us
    for result in results:
        worth = result.efficiency
        table.add_row(
            _name(result), f"{over / result.step_us:.3f}x", f"{worth.tokens_per_s:,.0f}",
            f"{worth.tokens_per_s_per_gpu:,.0f}", f"{worth.tflop_per_s_per_gpu:,.1f}",
            f"{worth.mfu:.1%}", f"{result.moe_share:.1%}", f"{result.bubble_share:.1%}",
        )  # fmt: skip
    return table


# ---- details -------------------------------------------------------------------------------------


def _details(results: Sequence[TrainResult]) -> Iterator[RenderableType]:
    for result in results:
        yield _stages_table(result)
    if results[0].memory:
        yield _memory_table(results[0])


def _stages_table(result: TrainResult) -> Table:
    """Causes by stage, mean over its GPUs, and the least and most that one of them waits."""
    unit, columns = _unit([result])[0], _shown([result])
    table = _tight(
        text_table(
            f"{_name(result)} by stage ({unit}); from, to: peers of one GPU",
            ("stage", *columns, "from", "to"),
        )
    )
    for stage, peers in enumerate(result.spent_us["peers"]):
        times = [
            sum(sum(result.spent_us[cause][stage]) for cause in causes) / len(peers)
            for causes in columns.values()
        ]
        table.add_row(str(stage), *_cells([result], (*times, min(peers), max(peers))))
    return table


def _memory_table(result: TrainResult) -> Table:
    """Memory of the fullest GPU of each stage."""
    parts = {
        PARTS.get(part, part): part
        for part in result.memory[0]
        if any(one[part] for one in result.memory)
    }
    title = f"Memory of a GPU of each stage (GB), {result.recipe}"
    table = _tight(text_table(title, ("stage", *parts, "all")))
    for stage, one in enumerate(result.memory):
        sizes = [*(one[part] for part in parts.values()), sum(one.values())]
        table.add_row(str(stage), *(f"{size / 1e9:.2f}" for size in sizes))
    return table


# ---- notes ---------------------------------------------------------------------------------------


def _notes(compared: TrainComparison) -> Iterator[Text]:
    """How MFU is counted, what was replayed, what stars and missing rows mean."""
    result = compared.results[0]
    worth = result.efficiency
    counted = (
        f"MFU: {worth.flop_per_token / 1e9:,.1f} GFLOP per token, forward and backward, causal "
        f"attention, nothing twice, of {worth.peak_tflop_per_s:,.0f} TFLOP/s {worth.peak} dense."
    )
    lines = [counted, "MoE: experts, exchange and peers. Bubble: pipe."]
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
    apart = [_name(one) for one in compared.results if not one.is_paired]
    schedule = SCHEDULES.get(str(result.schedule["name"]))
    if apart and schedule is not None and schedule.beside:
        lines.append(
            "No joint replay, so a forward pass comes before a backward pass where the schedule "
            f"has both at once: {', '.join(apart)}."
        )
    lacking = sorted(
        {str(one) for each in compared.results for one in _list(each.scheme["proposes"])}
    )
    if lacking:
        lines.append(f"* needs hardware that is proposed: {', '.join(lacking)}.")
    reasons: dict[str, list[str]] = {}
    for name, reason in compared.left_out.items():
        reasons.setdefault(reason.removeprefix(f"scheme {name!r}: "), []).append(name)
    lines += [f"Left out: {', '.join(names)}: {reason}." for reason, names in reasons.items()]
    yield from (Text(_filled(line)) for line in lines)


def _misfit(result: TrainResult) -> Iterator[str]:
    """The stage that needs most, where that is more than a GPU has."""
    needs = [sum(one.values()) for one in result.memory]
    capacity = result.system.values["hbm.capacity_MiB"]
    assert isinstance(capacity, int | float)
    most, room = max(needs, default=0), capacity * BYTES_PER_MIB
    if most > room:
        yield (
            f"Does not fit: stage {needs.index(most)} needs {most / 1e9:,.1f} GB on each GPU, "
            f"which has {room / 1e9:,.1f}. Times are as if it did."
        )


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []
