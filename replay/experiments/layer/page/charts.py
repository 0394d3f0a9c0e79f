"""Charts of bounds, traffic, times of layers and tokens, memory, and draws."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.experiments.layer.tables.memory import buffer_bytes, fullest, memory_rows
from replay.experiments.layer.tables.times import BOUNDS, bounds_us, count, time_us, unit_of
from replay.experiments.layer.tables.tokens import slowest_layer
from replay.experiments.layer.tables.wires import wire_bytes
from replay.model.machine.kinds import WIRE_ROLES
from replay.report.charts import parts_of
from replay.report.tables import MB
from tracegen.shared.display.content import Axis, Bars, Heat, Line, Plot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from replay.experiments.layer.result import Result
    from replay.measure.result import ChainedLayer, LayerResult, Measures

CLASSES = {
    "sm": "SMs",
    "hbm": "Memory",
    "l2": "L2",
    "uplink": "Uplinks",
    "downlink": "Downlinks",
    "nic-out": "NICs out",
    "nic-in": "NICs in",
    "host": "Hosts",
}
"""Name of each class of resources that reports show, by the result's name of it."""

OVER_TIME = ("sm", "uplink", "downlink", "hbm", "nic-out")
"""Classes of resources that are drawn over time."""


def bounds_heat(results: Sequence[Result]) -> Heat:
    """Share of each scheme's time that each of its bounds explains."""
    found = [bounds_us(one) for one in results]
    columns = [name for name in BOUNDS.values() if any(name in one for one in found)]
    return Heat(
        name="bounds",
        title="Each bound over the scheme's time",
        rows=row_names(results),
        columns=columns,
        values=[
            [100 * bounds[name] / time_us(one) if name in bounds and time_us(one) else None for name in columns]
            for one, bounds in zip(results, found, strict=True)
        ],
        unit="%",
        form=".0f",
        says="100 %: the time is as short as this bound lets it be. Low everywhere: waiting, not work, makes it long. "
        "Empty: the scheme has no such bound.",
    )


def use_heat(results: Sequence[Result]) -> Heat:
    """Heat map of the use of each part of the machine, mean over its servers and the time."""
    there = {name for one in results for each in one.schedules for name in each.utilisation}
    classes = [name for name in CLASSES if name in there]
    return Heat(
        name="use",
        title="Parts of the machine in use, mean over all of a kind and over the time",
        rows=row_names(results),
        columns=[CLASSES[name] for name in classes],
        values=[[_use(one, name) for name in classes] for one in results],
        unit="%",
        form=".0f",
    )


def _use(result: Result, name: str) -> float | None:
    """Mean over the parts of a result, each with the weight of its time."""
    total = sum(one.makespan_us for one in result.schedules)
    busy = sum(one.utilisation[name].mean * one.makespan_us for one in result.schedules if name in one.utilisation)
    return 100 * busy / total if total else None


def use_plots(results: Mapping[str, Result]) -> Iterator[Plot]:
    """Share of each kind of resource in service, window by window.

    Parameters
    ----------
    results
        By the name of their line; of several layers the one that takes longest is drawn.
    """
    slowest = {name: max(one.schedules, key=lambda each: each.makespan_us) for name, one in results.items()}
    for group in OVER_TIME:
        lines = [_line(name, one, group) for name, one in slowest.items() if group in one.utilisation_over_time.groups]
        if lines:
            yield Plot(
                name=f"use-{group}",
                title=f"{CLASSES[group]} in use over time",
                x=Axis("time, us"),
                y=Axis("in use, %"),
                lines=lines,
            )


def _line(name: str, measures: Measures, group: str) -> Line:
    over = measures.utilisation_over_time
    shares = over.groups[group]
    x = [place * over.window_us for place in range(len(shares))]
    y = [100 * share for share in shares]
    if x:  # the last window ends with the schedule
        x.append(max(measures.makespan_us, x[-1]))
        y.append(y[-1])
    return Line(name, x, y, form="steps")


# ---- what crosses the wires ----------------------------------------------------------------------

PHASES = ("dispatch", "combine")
WAYS = {"uplink": "out of", "downlink": "into"}
ROLES = (*WIRE_ROLES, "evictions")
MOST_COLUMNS = 24
"""Columns of a heat map; GPUs that are more are put together, neighbours with neighbours."""


def traffic_heats(results: Sequence[Result]) -> Iterator[Heat]:
    """Bytes over each GPU's port, in a map for each phase and direction; one scale in all of them."""
    maps: list[Heat] = []
    for phase in PHASES:
        for way, words in WAYS.items():
            title = f"{phase.capitalize()}: MB {words} each GPU, per {unit_of(results[0])}"
            values = [_bytes(one, phase, way) for one in results]
            what = "All bytes on the wire"
            maps += _heat(f"{phase}-{way}", title, row_names(results), values, results, what)
    over_mean = [one for each in maps for row in each.shades().values for one in row if one is not None]
    strongest = max((abs(one - 1) for one in over_mean), default=0.0)
    for one in maps:
        yield dataclasses.replace(one, strongest=strongest)


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
        says=" ".join(
            [*says, f"Shades compare the GPUs of a row with their mean{', alike in all maps' * bool(what)}."]
        ),
        by_row=True,
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
    ports = [getattr(one.wire_bytes[phase], way) for one in result.schedules]
    return [sum(of) / MB / count(result) for of in zip(*ports, strict=True)]


def purpose_bars(results: Sequence[Result]) -> Bars:
    """Bytes that leave and reach a GPU in the mean, by what they are for."""
    return Bars(
        name="purpose",
        title=f"Bytes on the wire by purpose, MB per GPU and {unit_of(results[0])}",
        labels=row_names(results),
        parts=parts_of(
            [{role: wire_bytes(one, role, "uplink", "downlink") / MB for role in ROLES} for one in results],
            hatched=set(ROLES) - {"payload"},
        ),
        unit="MB",
        says="Out of a GPU and into it, mean over the GPUs. Hatched: what is no row of a token.",
    )


# ---- layers and tokens ---------------------------------------------------------------------------

MOST_LINES = 6
"""Lines in one picture that can still be told apart."""

MOST_CHAINED = 512
"""Layers of a chain that are drawn, the last ones."""

SHARES = {"p50_us": 50.0, "p90_us": 90.0, "p99_us": 99.0, "max_us": 100.0}


def layers_plot(result: Result) -> Plot | None:
    """Time of each layer, isolated or in a chain; None where there is only one."""
    times: list[tuple[LayerResult | ChainedLayer, int, float]]
    if result.chain is None:
        times = [(one, one.decoder_layer, one.measures.makespan_us) for one in result.layers]
    else:
        chained = result.chain.layers[-MOST_CHAINED:]
        times = [(each, each.layer_index, each.mean_us) for each in chained]
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for layer, place, us in times:
        name = f"step {layer.step}, {'backward' if layer.is_backward else 'forward'}"
        x, y = lines.setdefault(name, ([], []))
        x.append(place)
        y.append(us)
    if max((len(x) for x, _ in lines.values()), default=0) < 2:
        return None
    return Plot(
        name="layers",
        title="Time of each layer",
        x=Axis("layer of the model" if result.chain is None else "MoE layer", from_zero=False),
        y=Axis("time, us"),
        lines=[Line(name, x, y, form="points") for name, (x, y) in lines.items()][-MOST_LINES:],
        says="" if result.chain is None else "From its beginning on a GPU to its end there, mean.",
    )


def latency_plot(results: Mapping[str, Result]) -> Plot | None:
    """Distribution of the tokens' time from dispatch to combine; None where no result has any.

    Parameters
    ----------
    results
        By the name of their line.
    """
    lines = []
    for name, layer in zip(results, map(slowest_layer, results.values()), strict=True):
        if layer is not None and layer.token_latency_us.num_tokens:
            y = [getattr(layer.token_latency_us, field) for field in SHARES]
            lines.append(Line(name, list(SHARES.values()), y))
    if not lines:
        return None
    return Plot(
        name="latency",
        title="Tokens: time from dispatch to combine",
        x=Axis("share of the tokens, %", from_zero=False),
        y=Axis("time, us", log=all(min(line.y) > 0 for line in lines)),
        lines=lines,
        says="Quantiles: so many of a hundred tokens take no longer.",
    )


# ---- memory --------------------------------------------------------------------------------------


def memory_bars(results: Sequence[Result]) -> Bars | None:
    """Device memory by what holds it, of the GPU that needs most."""
    names, found = memory_rows(results)
    if not found:
        return None
    sizes = [
        {
            "weights": one.weight_bytes[fullest(one)],
            "tokens": one.token_bytes[fullest(one)],
            "kept buffers": buffer_bytes(one, stays=True),
            "buffers of a layer": buffer_bytes(one, stays=False),
        }
        for one in found
    ]
    return Bars(
        name="memory",
        title="Device memory of the GPU that needs most, MB",
        labels=names,
        parts=parts_of(sizes, per=MB, keeps_empty=True),
        unit="MB",
        says="Of a layer; weights are those of its routed experts.",
    )
