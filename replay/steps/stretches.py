"""Parts of a pass by exact replay: stretches of a GPU's own time, and what GPUs do together.

A *stretch* are kernels one after the other, launched by the GPU's host. Every GPU goes through them
by itself. What they exchange with others who come at the same time is a kernel of known length
(`replay.model.compute.slices`). In the *MoE part* of a layer all GPUs begin at once, as after
waiting for the last one.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.chains.replay import Replay
from replay.engine import GraphBuilder, schedule
from replay.engine.columns import stored_rows
from replay.measure.activity import Activity, activity_of
from replay.measure.alone import exposed_ps
from replay.model.machine.host import OUTSIDE
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.machine.times import NO_TIME, Time

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.chain import ChainLink
    from replay.engine import TaskGraph, Timeline
    from replay.model.arrays import Ints, Picoseconds
    from replay.model.machine.host import Calls, Launch
    from replay.schemes import Scheme
    from replay.steps.times import Cause

Add = Callable[[Machine, "Ints"], "Mapping[Cause, Ints]"]
"""Adds kernels behind (rank,) tasks; gives the (rank,) tasks that end each cause, in order."""


@dataclass(frozen=True)
class Stretch:
    """Times of a stretch.

    Attributes
    ----------
    causes
        (rank,) picoseconds by cause.
    lead
        (rank,): how long before its GPU each host is through with it.
    activity
        Kernels that run meanwhile.
    pays_host
        Whether a kernel waits for its launch. If none does, hosts that cost nothing change nothing.
    """

    causes: Mapping[Cause, Ints]
    lead: Time
    activity: Activity
    pays_host: bool


def replay_stretch(
    system: System,
    num_ranks: int,
    add: Add,
    launch: Launch | None = None,
    lead: Time = NO_TIME,
    calls: Calls | None = None,
) -> Stretch:
    """Replay a stretch.

    Parameters
    ----------
    launch, lead, calls
        See `replay.model.machine.host.Host`.
    """
    builder = GraphBuilder(KIND_NAMES)
    machine = Machine(system, builder, num_ranks, launch=launch, lead=lead, calls=calls)
    if calls is not None:
        machine.host.enter(OUTSIDE)
    ends = add(machine, machine.mark(machine.ranks))
    timeline = schedule(builder.build())
    visible = timeline.visible_ps
    causes: dict[Cause, Ints] = {}
    before = np.zeros(num_ranks, np.int64)
    for cause, tasks in ends.items():
        causes[cause], before = visible[tasks] - before, visible[tasks]
    return Stretch(
        causes,
        lead_after(machine, timeline, before),
        activity_of(machine, before, timeline),
        _holds_up(machine, timeline),
    )


def lead_after(machine: Machine, timeline: Timeline, ended_ps: Picoseconds) -> Time:
    """Lead of each host over its GPU at the end.

    Parameters
    ----------
    ended_ps
        (rank,): when each GPU is through.
    """
    return lead_behind(machine, _launched_ps(machine, timeline), ended_ps)


def _launched_ps(machine: Machine, timeline: Timeline) -> Ints | int:
    """(rank,): when each host is through, and has made up for all that it stands still later."""
    last, visible = machine.host.last, timeline.visible_ps
    launched = 0 if last is None else visible[last]
    if not machine.host.halts:
        return launched
    halted, rank = (np.concatenate(blocks) for blocks in zip(*machine.host.halts, strict=True))
    through = np.broadcast_to(launched, machine.num_ranks)
    later = visible[halted] > through[rank]
    lost = np.zeros(machine.num_ranks, np.int64)
    np.add.at(lost, rank[later], timeline.graph.duration_ps[halted[later]])
    return through + lost


def lead_behind(machine: Machine, launched_ps: Picoseconds | int, ended_ps: Picoseconds) -> Time:
    """Lead of each host over its GPU, from when both are through."""
    lead = machine.host.lead
    return NO_TIME if lead is None else lead + Time(ended_ps - launched_ps)


@dataclass(frozen=True)
class MoePart:
    """Times of the MoE part of a pass, from when all GPUs have come.

    Attributes
    ----------
    met, exchange
        (rank,) picoseconds: the whole part, and those of it in which nothing computes.
    lead
        (rank,): how long before its GPU each host is through with it.
    is_held_up
        Whether a kernel waits for its launch before the host first waits for its GPU: a longer lead
        would make the part shorter.
    activity, pays_host
        As of `Stretch`.
    """

    met: Ints
    exchange: Ints
    lead: Time
    is_held_up: bool
    activity: Activity
    pays_host: bool

    @property
    def causes(self) -> dict[Cause, Ints]:
        """(rank,) picoseconds by cause."""
        return {"experts": self.met - self.exchange, "exchange": self.exchange}


class MetPart(NamedTuple):
    """Components of a `MoePart`, by rank of the graph.

    The link is kept so that no later one gets the same `id`.
    """

    link: ChainLink
    met: Ints
    exchange: Ints
    launched_ps: Picoseconds | int
    is_held_up: bool
    activity: Activity
    pays_host: bool


def replay_moe(
    link: ChainLink,
    system: System,
    scheme: Scheme,
    launch: Launch | None,
    lead: Time = NO_TIME,
    calls: Calls | None = None,
    known: dict[tuple[int, bytes], MetPart] | None = None,
) -> MoePart:
    """Replay the MoE part of a layer exactly.

    Where hosts are so far ahead that it does not matter how far, layers with more before them, such
    as those of multi-token prediction, have the same tasks. `known` keeps what these took, of one
    system, scheme, launch and calls.

    GPUs of nodes that are not replayed in full, where a sample of the nodes is, take the times of
    those that stand for them (`replay.model.work.node_sample.NodeSample.models`).

    Raises
    ------
    LayerRefusedError
        If the scheme has no code for it.
    """
    alone = dataclasses.replace(link, between=None, micro_batches=())
    graph = Replay([alone], system, scheme, launch, lead=lead, calls=calls).build()
    machine, ends = graph.built.machine, graph.built.ends
    key = id(link), fingerprint(graph.built.graph)
    found = None if known is None else known.get(key)
    if found is None:
        timeline = schedule(graph.built.graph)
        met = timeline.visible_ps[ends]
        found = MetPart(
            link,
            met,
            exposed_ps(machine, ends, timeline),
            _launched_ps(machine, timeline),
            _is_held_up(machine, timeline),
            activity_of(machine, met, timeline),
            _holds_up(machine, timeline),
        )
        if known is not None:
            known[key] = found
    after = lead_behind(machine, found.launched_ps, found.met)
    sample = graph.last_work.sample
    of = np.arange(len(found.met)) if sample is None else sample.models
    return MoePart(
        found.met[of],
        found.exchange[of],
        Time((after.ps + 0 * found.met)[of]),
        found.is_held_up,
        found.activity.of(of),
        found.pays_host,
    )


def fingerprint(graph: TaskGraph) -> bytes:
    """Digest that tells graphs of one link apart: their tasks and edges."""
    hashed = hashlib.blake2b(digest_size=16)
    for column in (
        graph.resource,
        graph.duration_ps,
        graph.latency_ps,
        graph.priority,
        graph.indptr,
        graph.successors,
    ):
        kept = np.ascontiguousarray(stored_rows(column))
        hashed.update(f"{kept.dtype} {kept.shape} {column.shape}".encode())
        hashed.update(kept.view(np.uint8).data)
    return hashed.digest()


def _is_held_up(machine: Machine, timeline: Timeline) -> bool:
    """Tell whether a launch holds a kernel up before the host first waits."""
    program = machine.host.program
    first = next((at for at, one in enumerate(program) if not one.launches), len(program))
    return _holds_up(machine, timeline, first)


def _holds_up(machine: Machine, timeline: Timeline, first: int | None = None) -> bool:
    """Tell whether a launch holds a kernel up, of the first so many or of all."""
    visible, noted = timeline.visible_ps, machine.notes.held_up[:first]
    return any((visible[late] > visible[ready]).any() for ready, late, _ in noted)
