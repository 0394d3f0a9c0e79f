"""Comparisons of schemes of tensor parallelism as tables of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.report.tables import text_table

if TYPE_CHECKING:
    from rich.table import Table

    from replay.tensor.result import TensorComparison, TensorResult


def tables(compared: TensorComparison) -> list[Table]:
    """Times, what is exposed, and both directions of the links, the fastest scheme first."""
    first = compared.results[0]
    spec = first.spec
    title = (
        f"{first.model['name']}, {spec.part}, {spec.direction}: {first.tokens} tokens on "
        f"{first.tp} x {first.system.name}"
    )
    columns = ("scheme", "us", "speed-up", "exposed us", "up MB", "up", "down MB", "down", "SMs")
    table = text_table(title, columns)
    over = compared[compared.baseline].time_us
    for result in sorted(compared.results, key=lambda one: one.time_us):
        table.add_row(*_row(result, over))
    return [table, *_skew(compared)]


def _row(result: TensorResult, over: float) -> tuple[str, ...]:
    return (
        str(result.scheme["name"]) + ("*" if result.scheme["proposes"] else ""),
        f"{result.time_us:.1f}",
        f"{over / result.time_us:.2f}x",
        f"{result.exposed_us:.1f}",
        f"{_mean(result.up.wire_bytes) / 1e6:.1f}",
        f"{result.up.utilisation:.0%}",
        f"{_mean(result.down.wire_bytes) / 1e6:.1f}",
        f"{result.down.utilisation:.0%}",
        str(result.communication_sms),
    )


def _mean(values: list[int]) -> float:
    return sum(values) / len(values)


def _skew(compared: TensorComparison) -> list[Table]:
    """Accesses of several GPUs to one address, where a scheme has some."""
    columns = ("scheme", "accesses", "addresses", "mean us", "p50 us", "p99 us", "max us")
    table = text_table("From the first GPU's access to an address until the last's", columns)
    for result in compared.results:
        for what, found in result.skew.between_gpus.items():
            table.add_row(
                str(result.scheme["name"]), what, str(found.count), f"{found.mean_us:.2f}",
                f"{found.p50_us:.2f}", f"{found.p99_us:.2f}", f"{found.max_us:.2f}",
            )  # fmt: skip
    return [table] if table.row_count else []
