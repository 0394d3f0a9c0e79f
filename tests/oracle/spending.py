"""What a replay spends on each GPU beside the wire, and a layer small enough to count it by hand.

The layer has three GPUs with two experts each, and six tokens:

=====  =====  =======  =======
token  owner  experts  GPUs
=====  =====  =======  =======
0      0      0, 1, 2  0, 1
1      0      2, 3, 4  1, 2
2      0      0, 2, 4  0, 1, 2
3      1      2, 3     1
4      1      0, 1, 5  0, 2
5      2      4, 5     2
=====  =====  =======  =======
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from round_machine import ROUND, US

import hwmodel
from replay.engine import GraphBuilder, Timeline, schedule
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.machine.resources import ResourceClass
from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.schemes import find
from replay.schemes.contract import layers as small_layers

GPUS = 3
HIDDEN, INTERMEDIATE = 768, 128  # a row is divided by two and by three
COLUMNS = 2 * INTERMEDIATE  # gate and up projection

TOKENS = (3, 2, 1)
PAIRS = (5, 6, 5)
"""(token, expert) by the expert's GPU."""
OWNED = (9, 5, 2)
"""(token, expert) by the token's owner."""
COPIES_OUT, COPIES_IN = (5, 2, 0), (2, 1, 1)
"""(token, GPU) by the token's owner: other GPUs, and its own."""
HELD = (3, 4, 4)
"""(token, GPU) by the GPU."""
STAYED = (3, 2, 2)
"""(token, expert) whose token is the expert's GPU's own."""
SENT = (3, 1, 0)
"""Tokens with experts on other GPUs, by owner."""

Each = tuple[int, int, int]
"""One number for each GPU."""


def layer(precision: str | Precision = "bf16", *, is_backward: bool = False) -> LayerWork:
    """The layer above."""
    ids = [[0, 1, 2], [2, 3, 4], [0, 2, 4], [2, 3, -1], [0, 1, 5], [4, 5, -1]]
    return small_layers.work(
        np.array(ids, np.int32),
        GPUS,
        2 * GPUS,
        tokens_of_rank=list(TOKENS),
        precision=precision,
        shape=ExpertShape(HIDDEN, INTERMEDIATE),
        is_backward=is_backward,
    )


def each(*terms: tuple[int, Each]) -> Each:
    """Sums of so much for each of so many."""
    first, second, third = (sum(much * many[gpu] for much, many in terms) for gpu in range(GPUS))
    return first, second, third


@dataclass(frozen=True)
class Spent:
    """A replay on the machine of round numbers, as counts for each GPU.

    A byte of memory takes a picosecond, one that an elementwise kernel writes takes two. The L2
    cache has room for all; a byte that tiles draw from it takes a picosecond.
    """

    timeline: Timeline
    machine: Machine
    ends: np.ndarray

    @property
    def memory(self) -> dict[tuple[Kind, str], Each]:
        """Picoseconds of memory by kind of task, and by what its tiles read; "" for streams."""
        graph, drawn = self.timeline.graph, self.timeline.drawn
        found: Counter[tuple[Kind, str, int]] = Counter()
        for task in np.flatnonzero(self._of(ResourceClass.HBM)).tolist():
            found[Kind(graph.kind[task]), "", graph.rank[task]] += int(graph.duration_ps[task])
        what = self._what_is_read()
        of_memory = self._classes[drawn.resource] == ResourceClass.HBM
        for touch, spent in zip(
            drawn.touch[of_memory].tolist(),
            (drawn.end_ps - drawn.start_ps)[of_memory].tolist(),
            strict=True,
        ):
            task = graph.touches.task[touch]
            found[Kind(graph.kind[task]), what[touch], graph.rank[task]] += spent
        return self._by_gpu({key: spent for key, spent in found.items() if spent})

    @property
    def cache(self) -> dict[tuple[Kind, str], Each]:
        """Picoseconds of the L2 cache's port by kind of task, and by what its tiles read."""
        touches, found = self.timeline.graph.touches, Counter[tuple[Kind, str, int]]()
        graph, what = self.timeline.graph, self._what_is_read()
        for touch in np.flatnonzero(touches.port_duration_ps).tolist():
            task = touches.task[touch]
            key = Kind(graph.kind[task]), what[touch], graph.rank[task]
            found[key] += int(touches.port_duration_ps[touch])
        return self._by_gpu(found)

    @property
    def sms(self) -> dict[tuple[Kind, str], Each]:
        """Picoseconds on SMs by kind of task."""
        graph, is_sm = self.timeline.graph, self._of(ResourceClass.SM)
        found: Counter[tuple[Kind, str, int]] = Counter()
        for task in np.flatnonzero(is_sm & (graph.duration_ps > 0)).tolist():
            found[Kind(graph.kind[task]), "", graph.rank[task]] += int(graph.duration_ps[task])
        return self._by_gpu(found)

    @property
    def works(self) -> list[np.ndarray]:
        """When the tasks on each GPU's SMs and memory are done."""
        of_gpu = self._of(ResourceClass.SM) | self._of(ResourceClass.HBM)
        graph, visible = self.timeline.graph, self.timeline.visible_ps
        return [visible[of_gpu & (graph.rank == gpu)] for gpu in range(GPUS)]

    @property
    def kernels(self) -> Each:
        """Gaps between kernels. Those of small ones in a row are one task."""
        graph = self.timeline.graph
        gaps, rest = np.divmod(graph.duration_ps, 2 * US)
        return self._count((graph.resource < 0) * (graph.kind == Kind.LAUNCH) * (rest == 0) * gaps)

    @property
    def host_waits(self) -> Each:
        """Waits of the host for its GPU."""
        return self._count(self._of(ResourceClass.HOST) & (self.timeline.graph.kind != Kind.HOST))

    @property
    def _classes(self) -> np.ndarray:
        return self.machine.resources.classes(self.timeline.graph)

    def _what_is_read(self) -> np.ndarray:
        """(touch,): names of what tiles read."""
        what = np.full(len(self.timeline.graph.touches), "?", object)
        for name, blocks in self.machine.notes.reads.items():
            for block in blocks:
                what[block] = name
        return what

    def _of(self, wanted: ResourceClass) -> np.ndarray:
        resource = self.timeline.graph.resource
        return (resource >= 0) & (self._classes[resource] == wanted)

    def _count(self, of_task: np.ndarray) -> Each:
        counted = np.flatnonzero(of_task)
        rank = self.timeline.graph.rank[counted]
        first, second, third = np.bincount(rank, of_task[counted], minlength=GPUS)
        return int(first), int(second), int(third)

    def _by_gpu(self, found: dict[tuple[Kind, str, int], int]) -> dict[tuple[Kind, str], Each]:
        keys = {(kind, what) for kind, what, _ in found}
        return {(kind, what): tuple(found.get((kind, what, gpu), 0) for gpu in range(GPUS)) for kind, what in keys}  # type: ignore[return-value]  # three GPUs


def replay(work: LayerWork, scheme: str, **options: object) -> Spent:
    """Replay the layer on its own."""
    exact = {
        "hbm.peak_GB_per_s": 1000.0,
        "hbm.stream_efficiency": 1.0,
        "hbm.read_efficiency": 1.0,
        "hbm.write_efficiency": 0.5,
        "gpu.l2_bytes": 1 << 40,
        "gpu.clock_GHz": 1.0,
        "gpu.l2_bytes_per_clock": 1000.0,
        "compute.cluster_tiles": 2,
        "warp.reduce_step_ns": 10.0,
        "warp.reduce_source_ns": 2.0,
        "warp.reduce_wait_ns": 4.0,
    }
    graph = GraphBuilder(KIND_NAMES)
    if scheme == "ideal":  # its least work is counted in test_ideal_by_hand.py
        options = {"form": "kernels", **options}
    described = find(scheme).with_options(options)
    system = hwmodel.load("dgx-h100", {**ROUND, **exact})
    machine = Machine(system, graph, work.num_ranks, described.uplinks)
    ends = described.build(work, machine, machine.mark(machine.ranks))
    return Spent(schedule(graph.build()), machine, ends)
