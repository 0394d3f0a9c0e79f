"""Scene of a training step; see `replay.engine.export.scene`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from replay.engine.export.scene import Scene
from replay.experiments.train.strides import PASSES

if TYPE_CHECKING:
    from replay.engine import Timeline


def scene(timeline: Timeline) -> Scene:
    """Say what is known of a step: each GPU's stage, and its passes over micro-batches as spans.

    A pass over a chunk of the model is many tasks, one part of a layer after the other; a span
    holds those of a GPU that follow one another.

    Parameters
    ----------
    timeline
        The schedule of `replay.experiments.train.composition.compose`.
    """
    graph = timeline.graph
    tasks = np.flatnonzero(graph.kind < 2 * len(PASSES))
    tasks = tasks[np.lexsort((tasks, timeline.start_ps[tasks], graph.rank[tasks]))]
    rank, tag = graph.rank[tasks].astype(np.int64), graph.tag[tasks].astype(np.int64)
    made = graph.kind[tasks].astype(np.int64) % len(PASSES)
    is_new = np.ones(tasks.size, np.bool_)
    is_new[1:] = np.any([np.diff(one) != 0 for one in (rank, tag, made)], axis=0)
    # Passes over several chunks have one name, and are told apart by how often it came before.
    known: dict[tuple[str, int], int] = {}
    before: Counter[tuple[int, str]] = Counter()
    runs = []
    for gpu, micro_batch, number in zip(
        rank[is_new].tolist(), tag[is_new].tolist(), made[is_new].tolist(), strict=True
    ):
        name = f"{PASSES[number]} {micro_batch}"
        runs.append(known.setdefault((name, before[gpu, name]), len(known)))
        before[gpu, name] += 1
    layer = np.full(graph.num_tasks, -1, np.int32)
    layer[tasks] = np.array(runs, np.int32)[np.cumsum(is_new) - 1]
    resources = graph.resources
    stages = {
        owner: f"GPU {owner}, {name.partition('.')[0].replace('stage', 'stage ')}"
        for name, owner in zip(resources.names, resources.owner.tolist(), strict=True)
    }
    return dataclasses.replace(
        Scene.plain(timeline),
        layers=tuple(name for name, _ in known),
        layer=layer,
        row="passes",
        processes=stages,
    )
