"""Graphs without lines, large keys and joint releases have the schedules of before these existed.

The digests were taken with the engine as it was before tables could draw from lines, keys take
several units of room, and units go back when the last of several tasks has left (commit 08b5af9).
Takes from a pool are of one size: a lane of a resource that serves in turns had takes of one size,
and now has those of any.
"""

from __future__ import annotations

import hashlib
import random

import pytest

from replay.engine import NULL_RESOURCE, EngineError, GraphBuilder, TaskGraph, schedule

NUM_GRAPHS = 300

BEFORE = {
    "streams": "4a3bce6b224aae392c6f3828572b8a526f9a93d8beda047424c49435788dcdad",
    "credits": "d0566accef052ecbee528b34a5e6a5aeeb6a58f6d2bcef95199a49be471cde5d",
    "tables": "a4dbb4142ba67e1a98878492a68678245482d45cd0f17098209cdd1c6d76bf52",
    "everything": "58d55425798137f6bb71c29bbc845c1c2184852c5c5779378e9b9d73ca553b6c",
}


def graph_with(parts: str, seed: int) -> TaskGraph:
    """Ten to sixty tasks full of ties, with the parts of the engine that are asked for."""
    rng = random.Random(seed)
    everything = parts == "everything"
    builder = GraphBuilder(["a"])
    servers = 1 if parts == "streams" else 2
    where = [NULL_RESOURCE] + [
        builder.resource(
            f"r{number}", "r", servers=rng.randint(1, servers),
            discipline=rng.choice(["fifo", "voq", "turns"]), owner=number,
        )
        for number in range(4)
    ]  # fmt: skip
    count = rng.randint(10, 60)
    resource = [rng.choice(where) for _ in range(count)]
    tasks = builder.add(
        resource=resource,
        duration_ps=[rng.choice([0, 1, 1, 2, 5]) for _ in range(count)],
        latency_ps=[rng.choice([0, 0, 2]) for _ in range(count)],
        priority=[rng.choice([0, 0, 1]) if everything else 0 for _ in range(count)],
    ).tolist()
    for task in tasks[1:]:
        for _ in range(rng.choice([0, 1, 1, 2])):
            builder.edges(rng.randrange(task), task)
    if parts in ("credits", "everything"):
        for number in range(2):
            pool = builder.credit_pool(f"p{number}", 4)
            for task in tasks[:-1]:
                if rng.random() < 0.3:
                    giver = rng.choice([task, task, task, rng.randrange(task + 1, count)])
                    if giver != task:
                        builder.edges(task, giver)
                    builder.take(task, pool, 1 + number, released_by=giver)
    if parts in ("tables", "everything"):
        table = builder.table(
            "t", rng.randint(1, 3), policy=rng.choice(["lru", "fifo"]),
            patience_ps=rng.choice([0, 3]),
        )  # fmt: skip
        for task in tasks:
            if resource[task] != NULL_RESOURCE and rng.random() < 0.7:
                builder.touch(
                    task, table, rng.randrange(5), miss_latency_ps=rng.choice([0, 4]),
                    miss_duration_ps=rng.choice([0, 2]), evict_duration_ps=rng.choice([0, 3]),
                    drops=rng.random() < 0.1,
                )  # fmt: skip
    if everything:
        members, rest = tasks[: count // 3], tasks[count // 3 :]
        half = len(rest) // 2
        builder.gate(
            members, [rng.choice([-1, *rest[half:]]) for _ in members],
            [len(members) - 1, 1], rest[:2], [rest[half - 1]] * 2,
        )  # fmt: skip
    return builder.build()


@pytest.mark.parametrize("parts", BEFORE)
def test_graphs_without_the_later_parts_are_scheduled_as_before(parts: str) -> None:
    digest, finished = hashlib.sha256(), 0
    for seed in range(NUM_GRAPHS):
        try:
            timeline = schedule(graph_with(parts, seed))
        except EngineError:
            digest.update(b"stuck")
            continue
        finished += 1
        for times in (timeline.start_ps, timeline.end_ps, timeline.visible_ps):
            digest.update(times.astype("<i8").tobytes())
        digest.update(timeline.landed_tile.astype("<i8").tobytes())
    assert finished > NUM_GRAPHS // 4
    assert digest.hexdigest() == BEFORE[parts]
