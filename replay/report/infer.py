"""Results of serving as tables of text, none wider than 80 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from replay.report.tables import text_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from replay.inference.result import InferComparison, InferResult, PhaseResult

WIDTH = 80
NAME_WIDTH = 12
US_PER_MS = 1e3
GB = 1e9
CAUSES = {
    "attention": "attention",
    "dense": "dense",
    "experts": "experts",
    "exchange": "rows",
    "head": "head",
    "launches": "gaps",
}
"""Columns, by what time is spent on."""

LEGEND = """\
TTFT: from the begin of the batch until a request has its first token, mean.
TPOT: time per token and request while it is decoded.
experts: something of the MoE layers computes; rows: they travel or are waited
for, and nothing computes; gaps: between all other kernels, with the launch of
an iteration."""


def tables(compared: InferComparison) -> Group:
    """Times of the phases, the fastest decoding first, by cause, and memory."""
    first = compared.results[0]
    return Group(
        Text(_heading(first)),
        Text(),
        _phases(compared),
        _decoding(compared),
        _causes(compared, "decode"),
        _causes(compared, "prefill"),
        _memory(compared),
        Text(LEGEND),
        *(Text(_filled(line)) for line in _notes(compared)),
    )


def _heading(result: InferResult) -> str:
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
    return _filled(
        f"{result.model['name']}, {spec.requests:,} requests per GPU, {lengths}, on {where}{sliced}"
    )


def _filled(text: str) -> str:
    """Text in lines, names in one piece."""
    return textwrap.fill(text, WIDTH, break_on_hyphens=False)


def _by_time(compared: InferComparison) -> list[InferResult]:
    return sorted(compared.results, key=lambda one: one.tpot.mean_us)


def _name(result: InferResult) -> str:
    """Names of the schemes; a star says that one needs hardware that is proposed."""
    needs = any(one.scheme["proposes"] for one in (result.prefill, result.decode))
    return result.name.replace("+", "+\n") + ("*" if needs else "")


def _table(title: str, columns: tuple[str, ...]) -> Table:
    """A table with names of schemes in front, long ones on two lines."""
    table = text_table(title, columns)
    table.columns[0].no_wrap, table.columns[0].max_width = False, NAME_WIDTH
    table.columns[0].overflow = "fold"
    return table


def _phases(compared: InferComparison) -> Table:
    """What a batch is asked for first."""
    table = _table(
        f"Speed-up over {compared.baseline}; tokens/s are per GPU",
        ("scheme", "TTFT ms", "speed-up", "input/s", "TPOT ms", "speed-up", "output/s"),
    )
    base = compared[compared.baseline]
    for one in _by_time(compared):
        table.add_row(
            _name(one),
            f"{one.ttft.mean_us / US_PER_MS:,.1f}",
            f"{base.ttft.mean_us / one.ttft.mean_us:.2f}x",
            f"{one.prefill.tokens_per_s_per_gpu:,.0f}",
            f"{one.tpot.mean_us / US_PER_MS:,.2f}",
            f"{base.tpot.mean_us / one.tpot.mean_us:.2f}x",
            f"{one.decode.tokens_per_s_per_gpu:,.0f}",
        )
    return table


def _decoding(compared: InferComparison) -> Table:
    """How times grow with the cache, and what the whole batch takes."""
    table = _table(
        "TPOT as caches grow, first tokens, and the whole batch",
        ("scheme", "start ms", "end ms", "steps", "first s", "last s", "batch s"),
    )
    for one in _by_time(compared):
        table.add_row(
            _name(one),
            f"{one.tpot.start_us / US_PER_MS:,.2f}",
            f"{one.tpot.end_us / US_PER_MS:,.2f}",
            f"{one.decode.iterations:,}",
            f"{one.ttft.first_us / 1e6:,.2f}",
            f"{one.ttft.last_us / 1e6:,.2f}",
            f"{one.time_us / 1e6:,.2f}",
        )
    return table


def _causes(compared: InferComparison, phase: str) -> Table:
    """What an iteration is spent on, mean over those of a phase."""
    table = _table(f"An iteration of {phase}, mean (ms)", ("scheme", *CAUSES.values(), "all"))
    for one in _by_time(compared):
        found: PhaseResult = getattr(one, phase)
        each = [found.spent_us[cause] / found.iterations / US_PER_MS for cause in CAUSES]
        table.add_row(_name(one), *(f"{time:,.2f}" for time in each), f"{sum(each):,.2f}")
    return table


def _memory(compared: InferComparison) -> Table:
    """Memory of a GPU that decodes."""
    table = _table(
        "Memory of a GPU that decodes (GB), and positions of its requests",
        ("scheme", "weights", "buffers, rows", "cache", "of", "positions", "room for"),
    )
    for one in _by_time(compared):
        found = one.decode.memory
        cache = found.cache_positions * found.position_bytes
        table.add_row(
            _name(one),
            f"{found.weight_bytes / GB:,.1f}",
            f"{found.iteration_bytes / GB:,.1f}",
            f"{cache / GB:,.1f}",
            f"{found.capacity_bytes / GB:,.1f}",
            f"{found.cache_positions:,}",
            f"{max(found.positions_fit, 0):,}",
        )
    return table


def _notes(compared: InferComparison) -> Iterator[str]:
    """How it was replayed, what is not among it, and who was left out."""
    first = compared.results[0]
    layers = first.decode.replayed.moe_layers
    worst = max(
        phase.replayed.largest_error
        for one in compared.results
        for phase in (one.prefill, one.decode)
    )
    for one in compared.results:
        prompts = str(one.prefill.scheme["name"])
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
        yield f"Left out: {', '.join(first.left_out)}."
    lacking = sorted(
        {
            str(need)
            for one in compared.results
            for phase in (one.prefill, one.decode)
            for need in _list(phase.scheme["proposes"])
        }
    )
    if lacking:
        yield f"* needs hardware that is proposed: {', '.join(lacking)}."
    for name, reason in compared.left_out.items():
        yield f"Left out: {name}: {reason}."


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []
