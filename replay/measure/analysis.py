"""From start and end times to a layer's result: everything here is derived."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay.graph import busiest_ps, critical_path, longest_chain_ps, union_length
from replay.machine.kinds import COMPUTE, KIND_NAMES, KINDS, PHASES, Kind, phase_index
from replay.machine.resources import PORTS, Ints, ResourceClass
from replay.measure.mechanisms import evicted_wire_bytes, mechanisms
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
from replay.measure.ports import COMMUNICATION, PortSums
from replay.measure.result import Measures

if TYPE_CHECKING:
    from replay.graph import TaskGraph, Timeline
    from replay.machine.machine import Machine
    from replay.work.layer import LayerWork

NUM_WINDOWS = 64  # of the utilisation over time
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
    evicted = evicted_wire_bytes(timeline, machine)
    classes = machine.resources.classes(graph)
    ports = PortSums(graph, classes, len(ends), timeline.service_ps, extra_wire=evicted)
    rank_end = timeline.visible_ps[ends]
    exposed = _exposed_ps(graph, timeline, rank_end)
    share = _shares(graph, timeline)
    return Measures(
        makespan_us=us(timeline.makespan_ps),
        rank_end_us=[us(end) for end in rank_end],
        phases=_phases(graph, timeline),
        payload_bytes={phase: ports.bytes(phase, "payload") for phase in COMMUNICATION},
        wire_bytes={phase: ports.bytes(phase, "wire") for phase in COMMUNICATION},
        busiest_port={phase: ports.busiest(phase) for phase in (*COMMUNICATION, "both")},
        utilisation=_utilisation(graph, share),
        utilisation_over_time=_over_time(graph, timeline),
        busiest_resource=_busiest_resource(graph, share),
        exposed_communication_us=us(int(exposed.sum())) / max(len(exposed), 1),
        exposed_communication_us_per_gpu=[us(time) for time in exposed],
        bounds_us=_bounds(graph, classes, ports, phases_separated),
        critical_path=_critical_path(timeline),
        mechanisms=mechanisms(timeline, machine, evicted),
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


def union_ps(owner: Ints, start: Ints, end: Ints, num_owners: int) -> Ints:
    """Length of the union of intervals, for each owner apart.

    Parameters
    ----------
    owner, start, end
        (interval,): whose it is, in ``[0, num_owners)``, and its two ends.

    Returns
    -------
    (owner,) lengths, in the unit of the ends.
    """
    order = np.lexsort((start, owner))
    owner, start, end = owner[order], start[order], end[order]
    # Each owner's intervals are moved past those of the owner before, so that one running maximum
    # serves all.
    span = int(end.max(initial=0)) + 1
    start, end = start + owner * span, end + owner * span
    reached = np.maximum.accumulate(np.concatenate(([-1], end)))[:-1] if len(end) else end
    covered = np.maximum(0, end - np.maximum(start, reached))
    union: Ints = np.bincount(owner, weights=covered, minlength=num_owners).astype(np.int64)
    return union


def _exposed_ps(graph: TaskGraph, timeline: Timeline, rank_end: Ints) -> Ints:
    """See `Measures.exposed_communication_us`."""
    hidden = np.isin(graph.kind, np.array(sorted({*COMPUTE, Kind.LAUNCH})))
    chosen = np.flatnonzero(hidden & (graph.rank >= 0))
    rank = graph.rank[chosen].astype(np.int64)
    start = timeline.start_ps[chosen]
    end = np.minimum(timeline.visible_ps[chosen], rank_end[rank])
    return rank_end - union_ps(rank, start, np.maximum(start, end), len(rank_end))


def _shares(graph: TaskGraph, timeline: Timeline) -> npt.NDArray[np.float64]:
    """(resource,): time in service over what its servers offered."""
    offered = graph.resources.servers.astype(np.int64) * max(timeline.makespan_ps, 1)
    shares: npt.NDArray[np.float64] = timeline.busy_ps() / offered
    return shares


def _utilisation(graph: TaskGraph, share: npt.NDArray[np.float64]) -> dict[str, Utilisation]:
    groups = np.array(graph.resources.groups)
    return {
        str(group): Utilisation(
            mean=float(share[groups == group].mean()), max=float(share[groups == group].max())
        )
        for group in np.unique(groups)
    }


def _over_time(graph: TaskGraph, timeline: Timeline) -> UtilisationOverTime:
    window = max(1, -(-timeline.makespan_ps // NUM_WINDOWS))
    names = sorted(set(graph.resources.groups))
    index = np.array([names.index(group) for group in graph.resources.groups], np.int64)
    servers = np.bincount(index, weights=graph.resources.servers, minlength=len(names))
    served = np.flatnonzero((graph.resource >= 0) & (timeline.service_ps > 0))
    row = index[graph.resource[served]] * (NUM_WINDOWS + 1)
    start, end = timeline.start_ps[served], timeline.end_ps[served]
    first, last = start // window, end // window
    size = len(names) * (NUM_WINDOWS + 1)
    # A task fills what is left of its first window and part of its last, less one window where the
    # two are one; windows between them it fills whole.
    busy = np.bincount(row + first, weights=(first + 1) * window - start, minlength=size)
    busy += np.bincount(row + last, weights=end - last * window, minlength=size)
    busy -= window * np.bincount(row[first == last] + first[first == last], minlength=size)
    inside = last > first + 1
    whole = np.bincount(row[inside] + first[inside] + 1, minlength=size)
    whole = whole - np.bincount(row[inside] + last[inside], minlength=size)
    busy = busy.reshape(len(names), -1) + window * np.cumsum(whole.reshape(len(names), -1), axis=1)
    share = busy[:, :NUM_WINDOWS] / (servers[:, None] * window)
    return UtilisationOverTime(
        window_us=us(window),
        groups={name: np.round(share[i], 6).tolist() for i, name in enumerate(names)},
    )


def token_latency(
    timeline: Timeline, machine: Machine, work: LayerWork, trace_rows: Ints | None
) -> tuple[TokenLatency, list[SlowToken]]:
    """Time of the tokens from dispatch to combine, and the tokens that took longest.

    Parameters
    ----------
    timeline
        The schedule of one layer.
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
    if not len(travelled):
        return TokenLatency(num_tokens=0, mean_us=0, p50_us=0, p90_us=0, p99_us=0, max_us=0), []
    ordered = np.sort(latency)

    def quantile(share: float) -> float:
        return us(ordered[min(len(ordered) - 1, int(share * len(ordered)))])

    slowest = travelled[np.lexsort((travelled, -latency))[:NUM_SLOWEST]]
    return TokenLatency(
        num_tokens=len(travelled),
        mean_us=int(latency.sum()) / len(latency) / 1e6,
        p50_us=quantile(0.5),
        p90_us=quantile(0.9),
        p99_us=quantile(0.99),
        max_us=us(ordered[-1]),
    ), [
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
    ]


def _busiest_resource(graph: TaskGraph, share: npt.NDArray[np.float64]) -> BusiestResource:
    index = int(share.argmax())
    return BusiestResource(
        name=graph.resources.names[index],
        group=graph.resources.groups[index],
        utilisation=float(share[index]),
    )


def _bounds(graph: TaskGraph, classes: Ints, ports: PortSums, phases_separated: bool) -> Bounds:
    least = busiest_ps(graph)

    def busiest(of: npt.NDArray[np.bool_]) -> int:
        return int(least[of].max(initial=0))

    port = busiest(np.isin(classes, PORTS))
    phases = sum(ports.bound_ps(phase) for phase in COMMUNICATION) if phases_separated else None
    memory = busiest(classes == ResourceClass.HBM)
    sm = busiest(classes == ResourceClass.SM)
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
