"""From start and end times to a layer's result: everything here is derived."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from replay.graph import critical_path, longest_chain_ps, union_length
from replay.machine.kinds import KIND_NAMES, KINDS, PHASES, Kind, phase_index
from replay.machine.resources import PORTS, Ints, ResourceClass
from replay.measure.exposure import exposed, sm_times
from replay.measure.mechanisms import mechanisms
from replay.measure.parts import (
    Bounds,
    BusiestResource,
    CriticalPath,
    PhaseTimes,
    SlowToken,
    TokenLatency,
    Utilisation,
    UtilisationOverTime,
)
from replay.measure.pools import SMS, Pools
from replay.measure.ports import COMMUNICATION, PortSums
from replay.measure.result import Measures

if TYPE_CHECKING:
    from replay.graph import TaskGraph, Timeline
    from replay.machine.machine import Machine
    from replay.work.layer import LayerWork

NUM_WINDOWS = 64  # of the utilisation over time
BLOCK = 2**16  # services at a time, so that what is found out about them stays in a CPU's cache
NUM_SLOWEST = 8  # tokens listed one by one
CAUSES = ("compute", "serialisation", "copying", "overhead", "queueing", "latency", "credits")


def us(ps: int | np.integer) -> float:
    """Microseconds of whole picoseconds."""
    return int(ps) / 1e6


def measures(
    graph: TaskGraph, ends: Ints, machine: Machine, timeline: Timeline, *, phases_separated: bool
) -> Measures:
    """Derive what is measured on a schedule, of one layer or of many.

    Parameters
    ----------
    graph
        The tasks.
    ends
        (rank,) task after which the rank's tokens are combined.
    machine
        The machine that made the graph.
    timeline
        When each task ran.
    phases_separated
        Whether a barrier over all ranks lies between all of the dispatch and all of the combine.
    """
    classes = machine.resources.classes(graph)
    ports = PortSums.of(timeline, machine)
    rank_end = timeline.visible_ps[ends]
    pools = Pools.of(graph, machine)
    share = pools.shares(timeline)
    alone = exposed(timeline, pools, classes, rank_end, machine.notes.held_up)
    return Measures(
        makespan_us=us(timeline.makespan_ps),
        rank_end_us=[us(end) for end in rank_end],
        phases=_phases(graph, timeline),
        payload_bytes={phase: ports.bytes(phase, "payload") for phase in COMMUNICATION},
        wire_bytes={phase: ports.bytes(phase, "wire") for phase in COMMUNICATION},
        busiest_port={phase: ports.busiest(phase) for phase in (*COMMUNICATION, "both")},
        utilisation=_utilisation(pools, share),
        utilisation_over_time=_over_time(pools, timeline),
        busiest_resource=_busiest_resource(pools, share),
        exposed_communication_us=us(int(alone.ps.sum())) / max(len(ends), 1),
        exposed_communication_us_per_gpu=[us(time) for time in alone.ps],
        exposure=alone.parts,
        sm_time_us=sm_times(timeline, pools, classes),
        bounds_us=_bounds(graph, pools, classes, ports, phases_separated),
        critical_path=_critical_path(timeline),
        mechanisms=mechanisms(timeline, machine, ports),
        num_tasks=graph.num_tasks,
        num_edges=graph.num_edges,
    )


def phases_by_layer(
    graph: TaskGraph, timeline: Timeline, layer: Ints, num_layers: int
) -> list[dict[str, tuple[float, float]]]:
    """First start and last end of each phase of each layer, in microseconds.

    Parameters
    ----------
    layer
        (task,): the layer each task belongs to, -1 for none.
    """
    phase = phase_index(graph.kind)
    chosen = np.flatnonzero((phase >= 0) & (layer >= 0))
    key = layer[chosen] * len(PHASES) + phase[chosen]
    never = np.iinfo(np.int64).max
    first = np.full(num_layers * len(PHASES), never)
    last = np.full(num_layers * len(PHASES), -1, np.int64)
    np.minimum.at(first, key, timeline.start_ps[chosen])
    np.maximum.at(last, key, timeline.visible_ps[chosen])
    times: list[dict[str, tuple[float, float]]] = [{} for _ in range(num_layers)]
    for index in np.flatnonzero(last >= 0).tolist():
        times[index // len(PHASES)][PHASES[index % len(PHASES)]] = (
            us(first[index]),
            us(last[index]),
        )
    return times


def _phases(graph: TaskGraph, timeline: Timeline) -> dict[str, PhaseTimes]:
    phase = phase_index(graph.kind)
    times = {}
    for index, name in enumerate(PHASES):
        chosen = np.flatnonzero(phase == index)
        if not len(chosen):
            continue
        start, end = timeline.start_ps[chosen], timeline.end_ps[chosen]
        times[name] = PhaseTimes(
            start_us=us(start.min()),
            end_us=us(timeline.visible_ps[chosen].max()),
            busy_us=us(union_length(start, end)),
        )
    return times


def _utilisation(pools: Pools, share: npt.NDArray[np.float64]) -> dict[str, Utilisation]:
    groups = np.array(pools.groups)
    return {
        str(group): Utilisation(
            mean=float(share[groups == group].mean()), max=float(share[groups == group].max())
        )
        for group in np.unique(groups)
    }


def _over_time(pools: Pools, timeline: Timeline) -> UtilisationOverTime:
    graph, window = timeline.graph, max(1, -(-timeline.makespan_ps // NUM_WINDOWS))
    names = sorted(set(pools.groups))
    group = np.array([names.index(name) for name in pools.groups], np.int64)
    servers = np.bincount(group, weights=pools.capacity, minlength=len(names))
    row_of = np.append(group[pools.pool] * (NUM_WINDOWS + 1), len(names) * (NUM_WINDOWS + 1))
    of_server = np.append(pools.whole // pools.parts, 0)
    busy = np.zeros((len(names) + 1) * (NUM_WINDOWS + 1), np.int64)  # the null resource's last
    inside = np.zeros_like(busy)

    def add(resource: npt.NDArray[np.signedinteger], start: Ints, end: Ints) -> None:
        """Add services: most lie in one window, others fill the windows between two whole."""
        row, weight = row_of[resource], of_server[resource]
        first, last = start // window, end // window
        np.add.at(busy, row + first, weight * (end - start))
        over = np.flatnonzero(last > first)
        row, weight, first, last, end = (of[over] for of in (row, weight, first, last, end))
        np.subtract.at(busy, row + first, weight * (end - (first + 1) * window))
        np.add.at(busy, row + last, weight * (end - last * window))
        np.add.at(inside, row + first + 1, weight)
        np.subtract.at(inside, row + last, weight)

    for low in range(0, graph.num_tasks, BLOCK):
        some = slice(low, low + BLOCK)
        add(graph.resource[some], timeline.start_ps[some], timeline.end_ps[some])
    for low in range(0, len(timeline.drawn.resource), BLOCK):
        some, drawn = slice(low, low + BLOCK), timeline.drawn
        add(drawn.resource[some], drawn.start_ps[some], drawn.end_ps[some])
    busy, inside = (of.reshape(-1, NUM_WINDOWS + 1)[:-1] for of in (busy, inside))
    busy += window * np.cumsum(inside, axis=1)
    share = busy[:, :NUM_WINDOWS] / (servers[:, None] * window * pools.whole)
    return UtilisationOverTime(
        window_us=us(window),
        groups={name: np.round(share[i], 6).tolist() for i, name in enumerate(names)},
    )


class TokenTimes(NamedTuple):
    """Time of the tokens until they are combined.

    Attributes
    ----------
    from_dispatch, from_start
        Over the tokens, from the start of their dispatch and from that of the layer.
    slowest
        Those that took longest from their dispatch.
    """

    from_dispatch: TokenLatency
    from_start: TokenLatency
    slowest: list[SlowToken]


def token_latency(
    timeline: Timeline, machine: Machine, work: LayerWork, trace_rows: Ints | None
) -> TokenTimes:
    """Time of the tokens from dispatch to combine, and the tokens that took longest.

    Parameters
    ----------
    timeline
        The schedule of one layer, which begins at 0.
    machine
        The machine that made the graph; it remembers the tasks of each token.
    work
        The work that the graph was made from.
    trace_rows
        (token,): the tokens' rows in the trace, where they are known.
    """
    never = np.iinfo(np.int64).max
    begin = np.full(work.num_tokens, never)
    finish = np.full(work.num_tokens, -1, np.int64)
    tokens, tasks = machine.notes.followed("sent")
    np.minimum.at(begin, tokens, timeline.start_ps[tasks])
    tokens, tasks = machine.notes.followed("combined")
    np.maximum.at(finish, tokens, timeline.visible_ps[tasks])
    travelled = np.flatnonzero((work.expert_ids >= 0).any(axis=1) & (begin < never))
    latency = finish[travelled] - begin[travelled]
    slowest = travelled[np.lexsort((travelled, -latency))[:NUM_SLOWEST]]
    return TokenTimes(
        _quantiles(latency),
        _quantiles(finish[travelled]),
        [
            SlowToken(
                token=int(token),
                trace_row=None if trace_rows is None else int(trace_rows[token]),
                rank=int(work.source_rank[token]),
                experts=[int(expert) for expert in work.expert_ids[token] if expert >= 0],
                sent_us=us(begin[token]),
                combined_us=us(finish[token]),
                latency_us=us(finish[token] - begin[token]),
            )
            for token in slowest
        ],
    )


def _quantiles(latency: Ints) -> TokenLatency:
    """Of the tokens' latencies (token,)."""
    if not len(latency):
        return TokenLatency(num_tokens=0, mean_us=0, p50_us=0, p90_us=0, p99_us=0, max_us=0)
    ordered = np.sort(latency)

    def quantile(share: float) -> float:
        return us(ordered[min(len(ordered) - 1, int(share * len(ordered)))])

    return TokenLatency(
        num_tokens=len(latency),
        mean_us=int(latency.sum()) / len(latency) / 1e6,
        p50_us=quantile(0.5),
        p90_us=quantile(0.9),
        p99_us=quantile(0.99),
        max_us=us(ordered[-1]),
    )


def _busiest_resource(pools: Pools, share: npt.NDArray[np.float64]) -> BusiestResource:
    index = int(share.argmax())
    return BusiestResource(
        name=pools.names[index], group=pools.groups[index], utilisation=float(share[index])
    )


def _bounds(
    graph: TaskGraph, pools: Pools, classes: Ints, ports: PortSums, phases_separated: bool
) -> Bounds:
    least = pools.busiest_ps(graph)
    of_sms = np.array(pools.groups) == SMS

    def busiest(of: tuple[ResourceClass, ...]) -> int:
        return int(least[pools.pool[np.isin(classes, of)]].max(initial=0))

    port = busiest(PORTS)
    phases = sum(ports.bound_ps(phase) for phase in COMMUNICATION) if phases_separated else None
    memory = busiest((ResourceClass.HBM, ResourceClass.L2))
    sm = int(least[of_sms].max(initial=0))
    chain = longest_chain_ps(graph)
    return Bounds(
        port_us=us(port),
        phases_us=None if phases is None else us(phases),
        sm_us=us(sm),
        memory_us=us(memory),
        chain_us=us(chain),
        largest_us=us(max(port, phases or 0, sm, memory, chain)),
    )


def _critical_path(timeline: Timeline) -> CriticalPath:
    path = critical_path(timeline)
    by_kind = path.by_kind()
    causes = dict.fromkeys(CAUSES, 0)
    for name, times in by_kind.items():
        causes[KINDS[Kind(KIND_NAMES.index(name))].role] += times["service"]
        for cause in ("queueing", "latency", "credits"):
            causes[cause] += times[cause]
    return CriticalPath(
        num_tasks=len(path.task),
        by_cause_us={cause: us(time) for cause, time in causes.items()},
        by_kind_us={
            name: {cause: us(time) for cause, time in times.items()}
            for name, times in by_kind.items()
        },
        by_resource_us={
            group: {cause: us(time) for cause, time in times.items()}
            for group, times in path.by_group().items()
        },
        queueing_behind_us={name: us(time) for name, time in path.behind_ps.items()},
    )
