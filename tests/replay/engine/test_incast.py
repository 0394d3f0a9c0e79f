"""A switch with finite buffers under incast: who is slowed by a port that is not their own.

Seven GPUs send to GPU 0 all at once; the first of them also sends every other message to GPU 7,
whose port is idle otherwise. A message needs room in the switch, in the queue for its output
(credits), before it can leave its GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import pytest
from loops import every

from replay.engine import GraphBuilder, schedule

sys.path.insert(0, str(Path(__file__).parents[2] / "oracle"))

SERIALISATION_PS = 36_000  # a row of 14,336 bytes at about 400 GB/s
HOP_PS = 250_000
MESSAGES = 64

Discipline = Literal["fifo", "voq"]


def finish_of_the_bystander_us(depth: int | None, discipline: Discipline) -> float:
    """When the last message to the idle port has arrived.

    Parameters
    ----------
    depth
        Messages that the switch holds for one (input, output); None for any number.
    discipline
        Whether a message that must wait holds up those behind it.
    """
    graph = GraphBuilder(["send"])
    downlink = [graph.resource(f"down {gpu}", "downlink") for gpu in range(8)]
    bystanders = []
    for src in range(1, 8):
        uplink = graph.resource(f"up {src}", "uplink", discipline=discipline)
        rooms = {dst: graph.credit_pool(f"{src} to {dst}", depth or 1) for dst in (0, 7)}
        for message in range(2 * MESSAGES if src == 1 else MESSAGES):
            is_bystander = src == 1 and message % 2 == 1
            dst = 7 if is_bystander else 0
            up = graph.add_one(resource=uplink, duration_ps=SERIALISATION_PS, latency_ps=HOP_PS)
            down = graph.add_one(resource=downlink[dst], duration_ps=SERIALISATION_PS, latency_ps=HOP_PS, after=up)
            if depth is not None:
                graph.take(up, rooms[dst], released_by=down)
            if is_bystander:
                bystanders.append(down)
    return int(schedule(graph.build()).visible_ps[bystanders].max()) / 1e6


@every("depth", [8, 16, 32])
def test_back_pressure_reaches_others_only_behind_a_blocked_head(depth: int) -> None:
    free = finish_of_the_bystander_us(None, "fifo")
    blocked = finish_of_the_bystander_us(depth, "fifo")
    queued_apart = finish_of_the_bystander_us(depth, "voq")
    # Without limits, and with a queue for each output, the bystander has its uplink half to itself
    # or better: 128 messages in all leave it, 64 of them its own.
    assert free <= (2 * MESSAGES + 1) * SERIALISATION_PS / 1e6 + 2 * HOP_PS / 1e6
    assert queued_apart <= free
    # With one queue it advances at the pace of the incast: its share of port 0 is a seventh.
    turns = MESSAGES - 1 - depth
    assert blocked >= turns * 7 * SERIALISATION_PS / 1e6
    assert blocked > 1.5 * free


def test_more_room_hides_the_incast_longer() -> None:
    finishes = [finish_of_the_bystander_us(depth, "fifo") for depth in (8, 16, 32, MESSAGES)]
    assert finishes == sorted(finishes, reverse=True)
    assert finishes[-1] == finish_of_the_bystander_us(None, "fifo")


@pytest.mark.parametrize("discipline", ["fifo", "voq"])
def test_the_twin_agrees(discipline: Discipline) -> None:
    import engine_oracle

    graph = GraphBuilder(["send"])
    down = graph.resource("down", "downlink")
    room = [graph.credit_pool(f"room {src}", 2) for src in range(3)]
    for src in range(3):
        up = graph.resource(f"up {src}", "uplink", discipline=discipline)
        for _ in range(8):
            sent = graph.add_one(resource=up, duration_ps=5, latency_ps=3)
            arrived = graph.add_one(resource=down, duration_ps=5, latency_ps=3, after=sent)
            graph.take(sent, room[src], released_by=arrived)
    built = graph.build()
    timeline = schedule(built)
    slow = engine_oracle.simulate(built)
    assert dict(enumerate(timeline.start_ps.tolist())) == slow.start
    assert dict(enumerate(timeline.end_ps.tolist())) == slow.end
