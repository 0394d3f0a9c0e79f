"""Rows of tokens over the ports, as tables of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.report.tables import MB
from replay.report.times import count, per
from replay.report.words import says
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replay.experiments.layer.result import Result
    from replay.measure.result import Measures


def payload_tables(results: Sequence[Result]) -> list[Table]:
    """Payload over the ports of a GPU, and over the busiest port with the time it takes there."""
    unit = "layer" if results[0].chain is None else "step"
    ports, busiest = [], []
    for name, result in zip(row_names(results), results, strict=True):
        number = count(result)
        up = [value / number / MB for value in result.totals.uplink_payload_bytes]
        down = [value / number / MB for value in result.totals.downlink_payload_bytes]
        ports.append((name, sum(up) / len(up), max(up), sum(down) / len(down), max(down)))
        phases = (("dispatch",), ("combine",), ("dispatch", "combine"))
        most = (per(result, _most(*some)) / MB for some in phases)
        apart = result.measured[0].bounds_us.phases_us is not None
        bound_us = per(result, lambda one: one.bounds_us.phases_us or one.bounds_us.port_us)
        busiest.append((name, *most, bound_us, "apart" if apart else "shared"))
    ways = [
        Column(f"{way} {what}", "MB", ",.2f") for way in ("up", "down") for what in ("mean", "max")
    ]
    columns = [
        Column("scheme"),
        Column("dispatch", "MB", ",.2f", says=says("dispatch")),
        Column("combine", "MB", ",.2f", says=says("combine")),
        Column("both", "MB", ",.2f", rank=1, says=says("both")),
        Column("wire bound", "us", ",.1f", says=says("wire bound")),
        Column("phases", rank=2),
    ]
    return [
        Table(
            "payload", f"Payload over the ports of a GPU per {unit}",
            [Column("scheme"), *ways], ports,
        ),
        Table("busiest-port", f"Payload of the busiest port per {unit}", columns, busiest),
    ]  # fmt: skip


def _most(*phases: str) -> Callable[[Measures], float]:
    """Payload of the port that carries most in these phases together."""

    def of(one: Measures) -> float:
        carried = [one.payload_bytes[phase] for phase in phases]
        up = map(sum, zip(*(ports.uplink for ports in carried), strict=True))
        down = map(sum, zip(*(ports.downlink for ports in carried), strict=True))
        return max((*up, *down))

    return of
