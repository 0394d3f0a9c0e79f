"""The MoE part of a layer by itself: all GPUs begin at once, as after waiting for the last one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from replay.graph import schedule
from replay.machine.times import NO_TIME, Time
from replay.measure.alone import exposed_ps
from replay.run.chain import build
from replay.steps.stretches import lead_after

if TYPE_CHECKING:
    from hwmodel import System
    from replay.machine.host import Launch
    from replay.run.chain import ChainLink
    from replay.schemes import Scheme
    from replay.steps.times import Ints


@dataclass(frozen=True)
class MoePart:
    """What the MoE part of a pass takes, from when all GPUs have come.

    Attributes
    ----------
    met, exchange
        (rank,) picoseconds: all of it, and of it those in which nothing computes.
    lead
        (rank,): how long before its GPU each host is through with it.
    """

    met: Ints
    exchange: Ints
    lead: Time


def replay_moe(
    link: ChainLink, system: System, scheme: Scheme, launch: Launch | None, lead: Time = NO_TIME
) -> MoePart:
    """Replay the MoE part of a layer exactly.

    GPUs of nodes that are not replayed in full, where a sample of the nodes is, take the times of
    those that stand for them (`replay.work.node_sample.NodeSample.models`).

    Raises
    ------
    LayerRefusedError
        If the scheme has no code for it.
    """
    alone = dataclasses.replace(link, between=None, micro_batches=())
    chain = build([alone], system, scheme, launch, lead=lead)
    machine, ends = chain.built.machine, chain.built.ends
    timeline = schedule(chain.built.graph)
    met, exchange = timeline.visible_ps[ends], exposed_ps(machine, ends, timeline)
    after = lead_after(machine, timeline.visible_ps, met)
    sample = chain.last_work.sample
    if sample is None:
        return MoePart(met, exchange, after)
    of = sample.models
    return MoePart(met[of], exchange[of], Time((after.ps + 0 * met)[of]))
