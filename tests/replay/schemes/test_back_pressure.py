"""Who pays for a switch without room: every scheme, up to the SMs that push."""

from __future__ import annotations

import numpy as np
from loops import every
from round_machine import ROUND

import hwmodel
from replay.chains.chain import LayerGraph
from replay.chains.layer import build_layer
from replay.engine import Timeline, schedule
from replay.model.machine.kinds import KINDS, Kind
from replay.model.machine.resources import ResourceClass
from replay.schemes import SCHEMES, find
from replay.schemes.contract import layers as small_layers

TIGHT = {"switch.virtual_channels": 2, "switch.flits_per_channel": 1}  # 128 bytes
WIRED = sorted({*SCHEMES, "plain"} - {"ideal"})


# Schemes whose SMs push rows, the tasks that do, and the messages that they issue.
PUSHES = {
    "flux": [(Kind.COMBINE_SEND, Kind.COMBINE_UP)],
    "comet": [(Kind.COMBINE_SEND, Kind.COMBINE_UP)],
    "ccfuser": [(Kind.COMBINE_SEND, Kind.COMBINE_UP)],
    "deepep": [(Kind.DISPATCH_SEND, Kind.DISPATCH_UP), (Kind.COMBINE_SEND, Kind.COMBINE_UP)],
    "dysharp-fusion-only": [(Kind.DISPATCH_SEND, Kind.DISPATCH_UP)],
    "flashdmoe": [(Kind.DISPATCH_SEND, Kind.DISPATCH_UP), (Kind.GEMM2, Kind.COMBINE_UP)],
    "nvls": [(Kind.DISPATCH_SEND, Kind.DISPATCH_UP)],
    "plain": [(Kind.DISPATCH_SEND, Kind.DISPATCH_UP), (Kind.COMBINE_SEND, Kind.COMBINE_UP)],
}


def _built(name: str, changed: dict[str, object]) -> tuple[LayerGraph, Timeline]:
    system = hwmodel.load("dgx-h100", {**ROUND, **changed})
    layer = small_layers.ALL["zipf 8 ranks"]()
    built = build_layer(layer, system, find(name))
    return built, schedule(built.graph)


@every("name", WIRED)
def test_every_message_of_every_scheme_takes_room_on_its_uplink(name: str) -> None:
    built, _ = _built(name, {})
    graph = built.graph
    classes = built.machine.resources.classes(graph)
    out = (graph.resource >= 0) & (classes[graph.resource] == ResourceClass.UPLINK)
    pools = np.array(["switch input buffer" in pool for pool in graph.pools.names])
    takers = graph.takes.task[pools[graph.takes.pool]]
    assert set(takers.tolist()) == set(np.flatnonzero(out).tolist())
    names = np.array(graph.pools.names)[graph.takes.pool]
    # Rows that are pushed are requests; acknowledgements, and what answers requests, responses.
    for task, pool in zip(graph.takes.task.tolist(), names.tolist(), strict=True):
        if "switch input buffer" in pool:
            on_wire = KINDS[Kind(graph.kind[task])].on_wire
            assert on_wire not in ("acks",) or "responses" in pool
            assert on_wire not in ("requests", "signals") or "requests" in pool


@every("name", WIRED)
def test_no_scheme_is_stuck_with_next_to_no_room(name: str) -> None:
    roomy, tight = (_built(name, changed)[1].makespan_ps for changed in ({}, TIGHT))
    # A ring's chunks go to one neighbour, one after the other: none waits for another's room.
    assert tight == roomy if name == "megatron-allgather" else tight > roomy


@every("name", PUSHES)
def test_sms_that_push_hold_on_until_their_rows_have_left(name: str) -> None:
    graph = _built(name, {})[0].graph
    src, dst = graph.edges()
    outboxes = np.array(["outbox" in pool for pool in graph.pools.names])
    takes = np.flatnonzero(outboxes[graph.takes.pool])
    held = set(zip(graph.takes.task[takes].tolist(), graph.takes.released_by[takes].tolist(), strict=True))
    assert (graph.takes.units[takes] == 1).all()
    for push, message in PUSHES[name]:
        issues = (graph.kind[src] == push) & (graph.kind[dst] == message)
        assert issues.any()
        assert set(zip(src[issues].tolist(), dst[issues].tolist(), strict=True)) <= held
