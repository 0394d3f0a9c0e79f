"""What crosses the wires: by GPU and direction, and by what bytes are for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.model.machine.kinds import WIRE_ROLES
from replay.report.spent import unit_of
from replay.report.times import count
from tracegen.shared.display.content import Bars, Heat, Part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replay.experiments.layer.result import Result

PHASES = ("dispatch", "combine")
WAYS = {"uplink": "out of", "downlink": "into"}
ROLES = (*WIRE_ROLES, "evictions")
MOST_COLUMNS = 24
"""Columns of a heat map; GPUs that are more are put together, neighbours with neighbours."""

BYTES_PER_MB = 1e6


def traffic_heats(results: Sequence[Result]) -> Iterator[Heat]:
    """Bytes over each GPU's port, in a map for each phase and direction."""
    widths = {len(_bytes(one, "dispatch", "uplink")) for one in results}
    if len(widths) != 1 or not widths - {0}:  # samples of different nodes, or no GPU
        return
    (num_gpus,) = widths
    blocks = _blocks(num_gpus)
    neighbours = ", mean of neighbours" if len(blocks) < num_gpus else ""
    for phase in PHASES:
        for way, words in WAYS.items():
            yield Heat(
                name=f"{phase}-{way}",
                title=f"{phase.capitalize()}: MB {words} each GPU, per {unit_of(results[0])}",
                rows=row_names(results),
                columns=[_gpus(*one) for one in blocks],
                values=[_means(_bytes(one, phase, way), blocks) for one in results],
                unit="MB",
                form=",.2f",
                says=f"All bytes on the wire{neighbours}.{_sampled(results)}",
            )


def gpus_heat(result: Result) -> Heat | None:
    """Bytes over each GPU's port under one scheme, a row for each phase and direction."""
    found = {
        f"{phase}, {words} the GPU": _bytes(result, phase, way)
        for phase in PHASES
        for way, words in WAYS.items()
    }
    num_gpus = max(map(len, found.values()), default=0)
    if not num_gpus:
        return None
    blocks = _blocks(num_gpus)
    return Heat(
        name="traffic",
        title=f"MB on the wire of each GPU, per {unit_of(result)}",
        rows=list(found),
        columns=[_gpus(*one) for one in blocks],
        values=[_means(of, blocks) for of in found.values()],
        unit="MB",
        form=",.2f",
        says=_sampled([result]).strip(),
    )


def _sampled(results: Sequence[Result]) -> str:
    """A sentence on which GPUs there are, where not all were replayed in full."""
    are_some = any(layer.sampled_nodes is not None for one in results for layer in one.layers)
    return " GPUs are those of the nodes that were replayed in full, in order." if are_some else ""


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
    return [sum(of) / BYTES_PER_MB / count(result) for of in zip(*ports, strict=True)]


def purpose_bars(results: Sequence[Result]) -> Bars:
    """Bytes that leave and reach a GPU in the mean, by what they are for."""
    parts = []
    for role in ROLES:
        values = [_purpose(one, role) for one in results]
        if any(values):
            parts.append(Part(role, values, is_hatched=role != "payload"))
    return Bars(
        name="purpose",
        title=f"Bytes on the wire by purpose, MB per GPU and {unit_of(results[0])}",
        labels=row_names(results),
        parts=parts,
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
    return carried / gpus / count(result) / BYTES_PER_MB
