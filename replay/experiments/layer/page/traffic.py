"""What crosses the wires: by GPU and direction, and by what bytes are for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.experiments.layer.tables.times import count, unit_of
from replay.model.machine.kinds import WIRE_ROLES
from replay.report.charts import parts_of
from replay.report.tables import MB
from tracegen.shared.display.content import Bars, Heat

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replay.experiments.layer.result import Result

PHASES = ("dispatch", "combine")
WAYS = {"uplink": "out of", "downlink": "into"}
ROLES = (*WIRE_ROLES, "evictions")
MOST_COLUMNS = 24
"""Columns of a heat map; GPUs that are more are put together, neighbours with neighbours."""


def traffic_heats(results: Sequence[Result]) -> Iterator[Heat]:
    """Bytes over each GPU's port, in a map for each phase and direction."""
    for phase in PHASES:
        for way, words in WAYS.items():
            title = f"{phase.capitalize()}: MB {words} each GPU, per {unit_of(results[0])}"
            values = [_bytes(one, phase, way) for one in results]
            what = "All bytes on the wire"
            yield from _heat(f"{phase}-{way}", title, row_names(results), values, results, what)


def gpus_heat(result: Result) -> Iterator[Heat]:
    """Bytes over each GPU's port under one scheme, a row for each phase and direction."""
    each = [(phase, way) for phase in PHASES for way in WAYS]
    title = f"MB on the wire of each GPU, per {unit_of(result)}"
    rows = [f"{phase}, {WAYS[way]} the GPU" for phase, way in each]
    yield from _heat("traffic", title, rows, [_bytes(result, *one) for one in each], [result])


def _heat(
    name: str,
    title: str,
    rows: Sequence[str],
    values: Sequence[Sequence[float]],
    results: Sequence[Result],
    what: str = "",
) -> Iterator[Heat]:
    """Megabytes by GPU; nothing for samples of different nodes, or without GPUs."""
    widths = set(map(len, values))
    if len(widths) != 1 or not widths - {0}:
        return
    (num_gpus,) = widths
    blocks = _blocks(num_gpus)
    neighbours = ", mean of neighbours" if len(blocks) < num_gpus else ""
    says = [f"{what}{neighbours}."] if what else []
    if any(layer.sampled_nodes is not None for one in results for layer in one.layers):
        says.append("GPUs are those of the nodes that were replayed in full, in order.")
    yield Heat(
        name=name,
        title=title,
        rows=rows,
        columns=[_gpus(*one) for one in blocks],
        values=[_means(of, blocks) for of in values],
        unit="MB",
        form=",.2f",
        says=" ".join(says),
    )


def _blocks(num_gpus: int) -> list[tuple[int, int]]:
    """First GPU of each column, and the one behind its last."""
    each = -(-num_gpus // MOST_COLUMNS)
    return [(first, min(first + each, num_gpus)) for first in range(0, num_gpus, each)]


def _means(values: Sequence[float], blocks: Sequence[tuple[int, int]]) -> list[float]:
    return [sum(values[first:behind]) / (behind - first) for first, behind in blocks]


def _gpus(first: int, behind: int) -> str:
    return f"GPU {first}" if behind == first + 1 else f"{first}-{behind - 1}"


def _bytes(result: Result, phase: str, way: str) -> list[float]:
    """(gpu,) megabytes on the wire for each layer or step."""
    ports = [getattr(one.wire_bytes[phase], way) for one in result.measured]
    return [sum(of) / MB / count(result) for of in zip(*ports, strict=True)]


def purpose_bars(results: Sequence[Result]) -> Bars:
    """Bytes that leave and reach a GPU in the mean, by what they are for."""
    return Bars(
        name="purpose",
        title=f"Bytes on the wire by purpose, MB per GPU and {unit_of(results[0])}",
        labels=row_names(results),
        parts=parts_of(
            [{role: _purpose(one, role) for role in ROLES} for one in results],
            hatched=set(ROLES) - {"payload"},
        ),
        unit="MB",
        says="Out of a GPU and into it, mean over the GPUs. Hatched: what is no row of a token.",
    )


def _purpose(result: Result, role: str) -> float:
    ports = [
        one.mechanisms.wire_bytes[role]
        for one in result.measured
        if role in one.mechanisms.wire_bytes
    ]
    gpus = max((len(one.uplink) for one in ports), default=1) or 1
    carried = sum(sum(one.uplink) + sum(one.downlink) for one in ports)
    return carried / gpus / count(result) / MB
