"""Parts of a pass by exact replay: stretches of a GPU's own time, and what GPUs do together.

A *stretch* are kernels one after the other, launched by the GPU's host. Every GPU goes through them
by itself. What they exchange with others who come at the same time is a kernel of known length
(`replay.model.compute.slices`). In the *MoE part* of a layer all GPUs begin at once, as after
waiting for the last one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.chains.replay import Replay
from replay.engine import GraphBuilder, schedule
from replay.measure.alone import exposed_ps
from replay.model.machine.host import OUTSIDE
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.machine.times import NO_TIME, Time

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.chain import ChainLink
    from replay.engine import Timeline
    from replay.model.machine.host import Calls, Launch
    from replay.schemes import Scheme
    from replay.steps.times import Cause, Ints

Add = Callable[[Machine, "Ints"], "Mapping[Cause, Ints]"]
"""Adds kernels behind (rank,) tasks; gives the (rank,) tasks that end each cause, in order."""


@dataclass(frozen=True)
class Stretch:
    """What a stretch takes.

    Attributes
    ----------
    causes
        (rank,) picoseconds by cause.
    lead
        (rank,): how long before its GPU each host is through with it.
    """

    causes: Mapping[Cause, Ints]
    lead: Time


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
    visible = schedule(builder.build()).visible_ps
    causes: dict[Cause, Ints] = {}
    before = np.zeros(num_ranks, np.int64)
    for cause, tasks in ends.items():
        causes[cause], before = visible[tasks] - before, visible[tasks]
    return Stretch(causes, lead_after(machine, visible, before))


def lead_after(machine: Machine, visible_ps: Ints, ended_ps: Ints) -> Time:
    """How long before its GPU each host is through.

    Parameters
    ----------
    visible_ps
        (task,): when each task of the graph is over.
    ended_ps
        (rank,): when each GPU is through.
    """
    host = machine.host
    launched = 0 if host.last is None else visible_ps[host.last]
    return NO_TIME if host.lead is None else host.lead + Time(ended_ps - launched)


@dataclass(frozen=True)
class MoePart:
    """What the MoE part of a pass takes, from when all GPUs have come.

    Attributes
    ----------
    met, exchange
        (rank,) picoseconds: all of it, and of it those in which nothing computes.
    lead
        (rank,): how long before its GPU each host is through with it.
    is_held_up
        Whether a kernel waits for its launch before the host first waits for its GPU: a longer lead
        would make the part shorter.
    """

    met: Ints
    exchange: Ints
    lead: Time
    is_held_up: bool


def replay_moe(
    link: ChainLink,
    system: System,
    scheme: Scheme,
    launch: Launch | None,
    lead: Time = NO_TIME,
    calls: Calls | None = None,
) -> MoePart:
    """Replay the MoE part of a layer exactly.

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
    timeline = schedule(graph.built.graph)
    met, exchange = timeline.visible_ps[ends], exposed_ps(machine, ends, timeline)
    after = lead_after(machine, timeline.visible_ps, met)
    held_up, sample = _is_held_up(machine, timeline), graph.last_work.sample
    if sample is None:
        return MoePart(met, exchange, after, held_up)
    of = sample.models
    return MoePart(met[of], exchange[of], Time((after.ps + 0 * met)[of]), held_up)


def _is_held_up(machine: Machine, timeline: Timeline) -> bool:
    """Whether a launch holds a kernel up before the host first waits."""
    program, noted = machine.host.program, machine.notes.held_up
    first = next((at for at, one in enumerate(program) if not one.launches), len(program))
    visible = timeline.visible_ps
    return any((visible[late] > visible[ready]).any() for ready, late, _ in noted[:first])
