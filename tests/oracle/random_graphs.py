"""Random task graphs full of ties, for comparing the engine with its twin."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from replay.engine import NULL_RESOURCE, GraphBuilder, TaskGraph


@dataclass(frozen=True)
class Recipe:
    """What a random graph may contain."""

    seed: int
    num_tasks: int = 40
    max_resources: int = 5
    max_servers: int = 3
    max_pools: int = 0
    max_gates: int = 0
    max_tables: int = 0
    #: Keys a table is asked for; few, so that they come back.
    num_keys: int = 5
    #: Share of tables that draw from lines, and the most units that a key of theirs takes.
    lines: float = 0.0
    most_units: int = 1
    #: Share of touches that charge just anybody, perhaps somebody who has started already.
    careless_charges: float = 0.0
    disciplines: tuple[str, ...] = ("fifo", "voq", "turns")
    durations: tuple[int, ...] = (1, 2, 2, 3)
    latencies: tuple[int, ...] = (0, 2)
    priorities: tuple[int, ...] = (0,)
    #: Number tasks at random instead of in the order of their edges.
    is_shuffled: bool = False


def random_graph(recipe: Recipe) -> TaskGraph:
    """A graph of a recipe; the same recipe gives the same graph.

    Tasks are made in an order that every edge, gate and late release follows, so that there is
    no cycle and nothing is given back before it is taken; ids may be shuffled all the same.
    """
    rng = random.Random(recipe.seed)
    builder = GraphBuilder(["a", "b", "c"])
    resources = [NULL_RESOURCE] + [
        builder.resource(
            f"r{index}",
            f"group{index % 2}",
            servers=rng.randint(1, recipe.max_servers),
            discipline=rng.choice(recipe.disciplines),
            owner=index,
        )
        for index in range(rng.randint(1, recipe.max_resources))
    ]
    capacities = [rng.randint(1, 4) for _ in range(rng.randint(0, recipe.max_pools))]
    pools = [builder.credit_pool(f"p{i}", capacity) for i, capacity in enumerate(capacities)]
    lines = []
    if rng.random() < recipe.lines:
        lines = [
            builder.resource(f"l{index}", "line", discipline="line", owner=index) for index in range(rng.randint(1, 2))
        ]
    count = rng.randint(1, recipe.num_tasks)
    ids = list(range(count))
    if recipe.is_shuffled:
        rng.shuffle(ids)
    place = {task: index for index, task in enumerate(ids)}
    by_id = [place[task] for task in range(count)]
    where = [rng.choice(resources + lines) for _ in range(count)]
    level = [0 if place in lines else rng.choice(recipe.priorities) for place in where]
    builder.add(
        resource=[where[index] for index in by_id],
        duration_ps=[rng.choice(recipe.durations) for _ in range(count)],
        latency_ps=[rng.choice(recipe.latencies) for _ in range(count)],
        priority=[level[index] for index in by_id],
        kind=[rng.randrange(3) for _ in range(count)],
        payload_bytes=[rng.randrange(100) for _ in range(count)],
        rank=[rng.randrange(4) for _ in range(count)],
    )
    for later in range(1, count):
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            builder.edges(ids[rng.randrange(later)], ids[later])
    for pool, capacity in zip(pools, capacities, strict=True):
        for index in range(count):
            if rng.random() < 0.4 and where[index] not in lines:
                later = [at for at in range(index + 1, count) if where[at] not in lines]
                _take(builder, rng, ids, index, later, pool, capacity)
    real = [index for index in range(count) if where[index] not in (NULL_RESOURCE, *lines)]
    for number in range(rng.randint(0, recipe.max_tables)):
        _table(builder, rng, ids, real, f"t{number}", recipe, lines)
    low = 0
    for _ in range(rng.randint(0, recipe.max_gates)):
        low = _gate(builder, rng, ids, low)
    return builder.build()


def _take(
    builder: GraphBuilder,
    rng: random.Random,
    ids: list[int],
    index: int,
    followers: list[int],
    pool: int,
    capacity: int,
) -> None:
    """Let a task take units of a pool, perhaps twice, given back by itself or by followers."""
    rest = capacity
    for _ in range(rng.choice((1, 1, 2))):
        units = rng.randint(1, rest)
        if rng.random() < 0.2 and followers:
            last = [ids[rng.choice(followers)] for _ in range(rng.randint(1, 3))]
            for follower in last:
                builder.edges(ids[index], follower)
            builder.take_until_last(ids[index], pool, units, np.zeros(len(last), int), last)
            rest -= units
            if rest == 0:
                return
            continue
        released_by = None
        if rng.random() < 0.3 and followers:
            later = ids[rng.choice(followers)]
            builder.edges(ids[index], later)
            released_by = later
        builder.take(ids[index], pool, units, released_by)
        rest -= units
        if rest == 0:
            return


def _table(
    builder: GraphBuilder,
    rng: random.Random,
    ids: list[int],
    real: list[int],
    name: str,
    recipe: Recipe,
    lines: list[int],
) -> None:
    """Add a table; let some of the tasks at places ``real`` touch it, perhaps several times."""
    backing = rng.choice([None, *lines])
    room = rng.randint(recipe.most_units, 2 + recipe.most_units)
    table = builder.table(
        name,
        room,
        group=rng.choice(["", "tlb"]),
        policy=rng.choice(["lru", "fifo"]),
        patience_ps=0 if backing is not None else rng.choice([0, 0, 3, 9]),
        backing=backing,
        port=rng.choice([None, *lines]),
    )
    drop_share = rng.choice([0.0, 0.0, 0.2])
    cost = rng.choice([0, 1, 1, 4])
    for index in real:
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            charged = None
            if rng.random() < 0.3:
                later = rng.choice([place for place in real if place >= index])
                if later > index:
                    builder.edges(ids[index], ids[later])
                charged = ids[later]
            if rng.random() < recipe.careless_charges:
                charged = ids[rng.choice(real)]
            builder.touch(
                ids[index],
                table,
                rng.randrange(recipe.num_keys),
                units=rng.randint(1, recipe.most_units),
                port_duration_ps=rng.choice((0, 1, 2)) if lines else 0,
                lag_ps=rng.choice([0, 0, 1, 3]) if lines else 0,
                miss_latency_ps=rng.choice((0, 1, 5)),
                miss_duration_ps=rng.choice((0, 2)),
                evict_duration_ps=cost,
                charged=charged,
                drops=rng.random() < drop_share,
            )


def _gate(builder: GraphBuilder, rng: random.Random, ids: list[int], low: int) -> int:
    """Put a gate somewhere behind place ``low``; returns where the next one may begin."""
    room = len(ids) - low
    if room < 4:
        return low
    first_cut = low + rng.randint(1, room - 3)
    second_cut = first_cut + rng.randint(1, len(ids) - first_cut - 2)
    third_cut = second_cut + rng.randint(1, len(ids) - second_cut - 1)
    members = rng.choices(ids[low:first_cut], k=rng.randint(1, 8))
    slots, left = [], len(members)
    while left:
        slots.append(rng.randint(0 if slots else 1, left))
        left -= slots[-1]
    firsts = rng.choices(ids[first_cut:second_cut], k=len(slots))
    lasts = rng.choices(ids[second_cut:third_cut], k=len(slots))
    waiters = [rng.choice([-1, *ids[third_cut:]]) for _ in members]
    builder.gate(members, waiters, slots, firsts, lasts)
    # Two gates may share tasks, as long as all that the second waits for is not behind the first.
    return rng.choice([first_cut, second_cut, third_cut])
