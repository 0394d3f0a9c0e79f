"""Random task graphs that can be built at once or in parts, full of ties."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from replay.engine import NULL_RESOURCE, GraphBuilder

#: Called when a part is complete.
AtEnd = Callable[[GraphBuilder], object]


@dataclass(frozen=True)
class PartsRecipe:
    """What a random graph in parts may contain."""

    seed: int
    num_parts: int = 3
    most_tasks: int = 14
    pools: bool = False
    tables: bool = False
    gates: bool = False
    #: Tasks of no duration and latency, so that an instant has several rounds.
    instants: bool = False


def build_in_parts(recipe: PartsRecipe, at_end: AtEnd = lambda _: None) -> GraphBuilder:
    """Build a graph; every task of a later part waits for one of the part before."""
    rng = random.Random(recipe.seed)
    builder = GraphBuilder(["a", "b", "c"])
    where = [NULL_RESOURCE] + [
        builder.resource(
            f"r{number}",
            "r",
            servers=rng.choice([1, 1, 2, 3]),
            discipline=rng.choice(["fifo", "voq", "turns"]),
        )
        for number in range(rng.randint(1, 4))
    ]
    lines = [builder.resource(f"l{n}", "l", discipline="line") for n in range(rng.randint(0, 2))]
    sizes = [rng.randint(1, 4) for _ in range(rng.randint(0, 3) if recipe.pools else 0)]
    pools = [(builder.credit_pool(f"p{n}", size), size) for n, size in enumerate(sizes)]
    tables = [_table(builder, rng, lines, f"t{n}") for n in range(rng.randint(0, 2) if recipe.tables else 0)]
    durations = rng.choice([[1, 2, 2, 3], [0, 1, 2]]) if recipe.instants else [1, 2, 2, 3]
    latencies = [0, 2] if recipe.instants else [1, 2]
    priorities = rng.choice([[0], [0], [0, 1]])
    before: list[int] = []
    for part in range(recipe.num_parts):
        count = rng.randint(1, recipe.most_tasks)
        resource = [rng.choice(where + lines) for _ in range(count)]
        ids = builder.add(
            count,
            resource=resource,
            duration_ps=[rng.choice(durations) for _ in range(count)],
            latency_ps=[rng.choice(latencies) for _ in range(count)],
            priority=[0 if one in lines else rng.choice(priorities) for one in resource],
            kind=[rng.randrange(3) for _ in range(count)],
        ).tolist()
        for place, task in enumerate(ids):
            for source in rng.sample(ids[:place], min(place, rng.choice([0, 1, 1, 2]))):
                builder.edges(source, task)
        awaited = rng.sample(before, min(len(before), rng.randint(1, 3)))
        for task in ids if awaited else []:
            builder.edges(rng.choice(awaited), task)
        in_queues = [task for task, one in zip(ids, resource, strict=True) if one not in lines]
        for pool, size in pools:
            _takes(builder, rng, in_queues, pool, size)
        servers = [task for task in in_queues if resource[task - ids[0]] >= 0]
        for table in tables:
            for task in servers:
                if rng.random() < 0.6:
                    _touch(builder, rng, task, table, 100 * part)
        if recipe.gates and len(ids) >= 4 and rng.random() < 0.6:
            _gate(builder, rng, ids)
        at_end(builder)
        before = ids
    return builder


def _table(builder: GraphBuilder, rng: random.Random, lines: list[int], name: str) -> int:
    policy = rng.choice(["lru", "fifo"])
    if lines and rng.random() < 0.5:
        backing, port = (rng.choice([None, *lines]) for _ in range(2))
        room = rng.randint(1, 6)
        return builder.table(name, room, policy=policy, backing=backing, port=port)
    return builder.table(name, rng.randint(1, 4), policy=policy, patience_ps=rng.choice([0, 0, 3]))


def _takes(builder: GraphBuilder, rng: random.Random, tasks: list[int], pool: int, size: int) -> None:
    """Take units that the task itself or a follower gives back, or several followers together."""
    for task in tasks:
        if rng.random() >= 0.35:
            continue
        units = rng.randint(1, size) if rng.random() < 0.4 else 1
        later = [other for other in tasks if other > task]
        givers = rng.sample(later, min(len(later), rng.choice([0, 0, 1, 2])))
        for giver in givers:
            builder.edges(task, giver)
        if len(givers) > 1:
            of = np.zeros(len(givers), np.int64)
            builder.take_until_last([task], [pool], [units], of, givers)
        else:
            builder.take(task, pool, units, givers[0] if givers else task)


def _touch(builder: GraphBuilder, rng: random.Random, task: int, table: int, first_key: int) -> None:
    builder.touch(
        task,
        table,
        first_key + rng.randrange(4),
        miss_latency_ps=rng.choice([0, 0, 2]),
        miss_duration_ps=rng.choice([0, 1, 2]),
        evict_duration_ps=rng.choice([0, 1]),
        port_duration_ps=rng.choice([0, 1]),
        lag_ps=rng.choice([0, 1, 3]),
        drops=rng.random() < 0.15,
    )


def _gate(builder: GraphBuilder, rng: random.Random, ids: list[int]) -> None:
    """The first tasks take slots of tiles that are the next ones; one more may wait for these."""
    count = rng.randint(1, len(ids) // 2)
    members, others = ids[:count], ids[count:]
    cut = rng.randint(1, count)
    slots = [cut, count - cut] if count > cut else [cut]
    tiles = [others[min(place, len(others) - 1)] for place in range(len(slots))]
    after = max(tiles) + 1
    waits = rng.random() < 0.5 and after <= ids[-1]
    builder.gate(members, [after if waits else -1] * count, slots, tiles, tiles)
