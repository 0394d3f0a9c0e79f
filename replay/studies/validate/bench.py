"""A benchmark's setting through the same machine, schemes and engine as a replay."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hwmodel.units import PS_PER_US
from replay.engine import GraphBuilder, Timeline, schedule
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.model.work.placement import Placement, place
from replay.schemes.ep.deepep.messages import NODE_GPUS
from tracegen.shared.least import least

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Counts, Ints

Value = TypeVar("Value")
Build = Callable[[Machine, "Ints"], Any]
"""Adds tasks to a machine; the second argument is (rank,) marks of the start."""

POOL = 4096  # tokens that an evenly spread routing is drawn from
SEED = 20260821  # of the routing
MOST_GROUPS = 4  # groups of experts that a token keeps to


class Bench:
    """Systems that benchmarks ran on, and the time of tasks on them.

    Parameters
    ----------
    overrides
        Hardware values by dotted key, such as those of a calibration. They replace every system's
        own values, and a benchmark's settings replace them.
    """

    def __init__(self, overrides: Mapping[str, Any] | None = None) -> None:
        self.overrides = dict(overrides or {})
        self._systems: dict[tuple[str, str], System] = {}
        self._made: dict[Hashable, Any] = {}

    def system(self, name: str, **settings: Any) -> System:
        """Load a system; `settings` are dotted keys with two underscores for the dot."""
        identity = (name, repr(sorted(settings.items())))
        if identity not in self._systems:
            import hwmodel

            dotted = {key.replace("__", "."): value for key, value in settings.items()}
            self._systems[identity] = hwmodel.load(name, {**self.overrides, **dotted})
        return self._systems[identity]

    def in_graphs(self, name: str, **settings: Any) -> System:
        """Load a system whose kernels follow one another as in a CUDA graph; `settings` as of `system`."""
        gap_us = self.system(name).spec.overheads.kernel_gap_graph_us.value
        return self.system(name, overheads__kernel_gap_stream_us=gap_us, **settings)

    def of_nodes(self, name: str, num_gpus: int) -> System:
        """Load a system with as many nodes as GPUs need; tables mark several nodes by the suffix ``-ib``."""
        return self.system(name.removesuffix("-ib"), fabric__num_domains=-(-num_gpus // NODE_GPUS))

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Make something the first time that it is asked for, such as what several rows take."""
        if key not in self._made:
            self._made[key] = make()
        made: Value = self._made[key]
        return made

    def time_us(self, system: System, num_ranks: int, build: Build) -> float:
        """Makespan of the tasks that `build` adds, in microseconds.

        Parameters
        ----------
        system
            The hardware.
        num_ranks
            GPUs that take part.
        build
            Adds tasks to the machine.
        """
        return self.timeline(system, num_ranks, build).makespan_ps / PS_PER_US

    def timeline(self, system: System, num_ranks: int, build: Build) -> Timeline:
        """Timeline of the tasks that `build` adds; parameters as those of `time_us`."""
        graph = GraphBuilder(KIND_NAMES)
        machine = Machine(system, graph, num_ranks)
        build(machine, machine.mark(machine.ranks))
        return schedule(graph.build())


def one_rank(rows: Counts | list[int], shape: ExpertShape, precision: str, *, is_backward: bool = False) -> LayerWork:
    """Work of one rank's experts alone; `rows` of each, (local expert,)."""
    expert = np.repeat(np.arange(len(rows), dtype=np.int32), rows)
    return LayerWork(
        expert[:, None],
        np.zeros(len(expert), np.int32),
        Placement(np.zeros(len(rows), np.int32), 1, "one rank"),
        shape,
        Precision(precision),
        is_backward=is_backward,
    )


@lru_cache(maxsize=32)
def uniform_work(
    num_ranks: int,
    tokens: int,
    num_experts: int,
    topk: int,
    hidden: int,
    precision: str = "fp8",
    groups: int = 1,
) -> LayerWork:
    """Uniform random routing: `tokens` per rank, each to the `topk` experts of least score.

    Parameters
    ----------
    groups
        Groups of experts, such as those of a node: of more than four, each token keeps to the four
        that have its best experts (``num_topk_groups`` of DeepEP's test between nodes).
    """
    ids = _draw(num_ranks * tokens, num_experts, topk, groups)
    return _work(ids, num_ranks, hidden, precision, num_experts)


@lru_cache(maxsize=32)
def even_work(
    num_ranks: int,
    tokens: int,
    num_experts: int,
    topk: int,
    hidden: int,
    precision: str = "fp8",
    groups: int = 1,
) -> LayerWork:
    """Uniform routing spread evenly over ranks and tokens; parameters as of `uniform_work`.

    It is for tokens that each stand for many. Few tokens drawn at random would vary as those of a
    small batch do. Tokens come in groups of `num_ranks` that differ by a rotation of the ranks, and
    the groups walk through the distribution of distinct ranks at equal steps.
    """
    per_rank = num_experts // num_ranks
    pool = _draw(POOL, num_experts, topk, groups)
    is_rank_of = np.zeros((POOL, num_ranks), bool)  # (token, rank)
    np.put_along_axis(is_rank_of, pool // per_rank, True, axis=1)
    pool = pool[np.argsort(is_rank_of.sum(axis=1), kind="stable")]
    rounds = -(-tokens // num_ranks)
    base = pool[(_van_der_corput(rounds * num_ranks) * POOL).astype(np.int64)]
    base = base.reshape(num_ranks, rounds, 1, topk)
    rank = np.arange(num_ranks)[None, None, :, None]
    if groups > MOST_GROUPS:  # rotated among groups, and within them, so that they stay together
        of_group = num_experts // groups
        group, place = np.divmod(base, of_group)
        ranks_of = num_ranks // groups
        place = (place + rank % ranks_of * per_rank) % of_group
        ids = (group + rank // ranks_of) % groups * of_group + place
    else:
        ids = (base + rank * per_rank) % num_experts
    ids = ids.reshape(num_ranks, rounds * num_ranks, topk)[:, :tokens].reshape(-1, topk)
    return _work(ids.astype(np.int32), num_ranks, hidden, precision, num_experts)


def _work(ids: Any, num_ranks: int, hidden: int, precision: str, num_experts: int) -> LayerWork:
    return LayerWork(
        ids,
        np.repeat(np.arange(num_ranks, dtype=np.int32), len(ids) // num_ranks),
        place("contiguous", num_experts, num_ranks),
        ExpertShape(hidden, hidden),  # the second size plays no part in communication
        Precision(precision),
    )


@lru_cache(maxsize=128)  # tables, and machines to compare, ask for the same ones again
def _draw(tokens: int, num_experts: int, topk: int, groups: int = 1) -> Any:
    scores = np.random.default_rng(SEED).random((tokens, num_experts), dtype=np.float32)
    if groups > MOST_GROUPS:
        best = scores.reshape(tokens, groups, -1).min(axis=2)
        closed = best > np.partition(best, MOST_GROUPS - 1, axis=1)[:, [MOST_GROUPS - 1]]
        scores[np.repeat(closed, num_experts // groups, axis=1)] = 2.0
    ids = least(scores, topk).astype(np.int32)
    ids.flags.writeable = False
    return ids


def _van_der_corput(count: int) -> Any:
    """The first numbers of the base-2 sequence: every window is spread evenly over [0, 1)."""
    index, value, step = np.arange(count), np.zeros(count), 0.5
    while index.any():
        value += step * (index & 1)
        index >>= 1
        step /= 2
    return value
