"""A training step composed of the times of its parts, on the engine.

GPUs are the stages of a pipeline times one group of GPUs that meet (`ParallelPlan.peers`); the
other groups of a stage do alike. Each GPU makes the strides of its stage in the order of the
schedule: what it does by itself, then, when all GPUs of its stage have come as far, what they do
together. The rows of a micro-batch go to the next stage over the GPU's one sending port, which
carries both directions, while the GPU goes on. When the last backward pass over a chunk has been
made wherever it is held, its gradients are added up, beside what the stage still does; then weights
are updated.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from replay.chains.jitter import Jitter
from replay.engine import NULL_RESOURCE, GraphBuilder, Timeline, schedule
from replay.experiments.train.schedules.base import Schedule, ScheduleShape
from replay.experiments.train.strides import PASSES, Strides
from replay.measure.activity import Activity
from replay.model.arrays import Ints, Picoseconds
from replay.steps.times import Cause, StepParts

Spent = Literal[
    "attention",
    "dense",
    "experts",
    "exchange",
    "host",
    "peers",
    "pipeline",
    "jitter",
    "head",
    "synchronise",
    "optimiser",
]
"""What a GPU's time goes by with, in a step. The causes of `replay.steps.times`, and *peers*:
waiting for GPUs of its stage that come later; *pipeline*: waiting for another stage, and for the
others when it is done; *jitter*: what random delays add; *synchronise*: gradients are added up, and
nothing else is left to do."""

SPENT: tuple[Spent, ...] = get_args(Spent)

KINDS = (*PASSES, *(f"{name}, together" for name in PASSES), "meet", "hop", "synchronise", "update")
_MEET, _HOP, _SYNCHRONISE, _UPDATE = range(2 * len(PASSES), len(KINDS))


@dataclass(frozen=True, eq=False)
class StepComposition:
    """A step.

    Attributes
    ----------
    step_ps
        From its start until all GPUs may begin the next.
    spent
        (stage, rank) by cause, in picoseconds; on every GPU they add up to the step.
    activity
        Kernels that run on each GPU, (stage, rank). Waiting for peers is waiting inside a kernel
        that communicates, if there is one. Gradients are added up beside kernels that compute, but
        for what is its own cause. Messages between stages count as nothing.
    timeline
        The schedule.
    is_paired
        Whether any layer was made forward beside another one backward.
    """

    step_ps: int
    spent: Mapping[Spent, Ints]
    activity: Activity
    timeline: Timeline
    is_paired: bool

    def longer(self, host_ps: int) -> StepComposition:
        """The step with a longer wait of every GPU for its host, at the end."""
        spent = {**self.spent, "host": self.spent["host"] + host_ps}
        return dataclasses.replace(self, step_ps=self.step_ps + host_ps, spent=spent)


def compose(
    order: Schedule,
    shape: ScheduleShape,
    times: StepParts,
    chunks: Sequence[range],
    jitter: Jitter | None = None,
) -> StepComposition:
    """Compose a training step of the times of its parts.

    Parameters
    ----------
    order
        Schedule of the pipeline: the passes of each stage, in order.
    shape
        Numbers of stages, chunks and micro-batches.
    times
        Times of layers, ends and messages.
    chunks
        (chunk,) layers of each chunk of the model (`replay.steps.chunks.chunks_of`).
    jitter
        Random delays of each GPU before each layer in which GPUs meet, as of MODELS.md; None for
        none. All GPUs of a stage wait there for the last one. A scheme that waits for rows alone
        loses less in an exact replay, if it does not need rows of the one that is late.

    Raises
    ------
    UserError
        If the schedule cannot be made for these sizes or times.
    """
    return _Composition(Strides(order, shape, times, chunks), shape, times, jitter).result()


class _Composition:
    """Tasks of a step, in arrays by stride and rank."""

    def __init__(self, laid: Strides, shape: ScheduleShape, times: StepParts, jitter: Jitter | None) -> None:
        self.laid, self.shape, self.times = laid, shape, times
        self.stage = np.array([one.stage for one in laid.strides], np.int64)
        self.timed = np.array([one.timed for one in laid.strides], np.int64)
        self.own_ps = np.stack([one.own for one in laid.timed])[self.timed]
        self.met_ps = np.stack([one.met for one in laid.timed])[self.timed]
        self.meets = np.array([one.meets for one in laid.timed])[self.timed]
        self.jitter = np.zeros(self.grid, np.int64)
        if jitter is not None:
            self._delay(jitter)
        self._build()

    @property
    def grid(self) -> tuple[int, int]:
        """Stages, and GPUs of each."""
        return self.shape.stages, self.times.num_ranks

    def by_stage(self, values: Ints) -> Ints:
        """Sums (stage, rank) of values (stride, rank)."""
        total = np.zeros(self.grid, np.int64)
        np.add.at(total, self.stage, values)
        return total

    def _delay(self, jitter: Jitter) -> None:
        """Hold GPUs up; a stage has delays of its own, whatever the other stages do."""
        late, seen = np.zeros_like(self.own_ps), [0] * self.shape.stages
        for stride in np.flatnonzero(self.meets).tolist():
            stage = int(self.stage[stride])
            late[stride] = jitter.delays_ps(self.times.num_ranks, (stage, seen[stage]))
            seen[stage] += 1
        self.own_ps = self.own_ps + late
        self.jitter = self.by_stage(late)

    # ---- graph -----------------------------------------------------------------------------------

    def _build(self) -> None:
        self.graph = GraphBuilder(KINDS)
        self.compute, port, reducing = (self._resources(name) for name in ("compute", "port", "gradients"))
        strides = len(self.laid.strides)
        name = np.array([PASSES.index(one.name) for one in self.laid.strides])
        tag = np.array([one.micro_batch for one in self.laid.strides])
        every, together = np.arange(strides), np.flatnonzero(self.meets)
        self.own = self._add(every, self.compute, self.own_ps, kind=name, tag=tag)
        self.done = self.own.copy()
        meeting = self.graph.add(together.size, resource=NULL_RESOURCE, kind=_MEET)
        if together.size:
            self.graph.edges(self.own[together].ravel(), np.repeat(meeting, self.grid[1]))
            self.done[together] = self._add(
                together,
                self.compute,
                self.met_ps[together],
                kind=name[together] + len(PASSES),
                tag=tag[together],
                after=np.repeat(meeting, self.grid[1]),
            )
        in_turn = np.flatnonzero(self.stage[1:] == self.stage[:-1])
        self.graph.edges(self.done[in_turn].ravel(), self.own[in_turn + 1].ravel())
        self._add_waits(port)
        self._add_end(reducing)

    def _resources(self, group: str) -> Ints:
        """(stage, rank): one of each GPU."""
        stages, ranks = self.grid
        found = [
            self.graph.resource(f"stage{stage}.gpu{rank}.{group}", group, owner=stage * ranks + rank)
            for stage in range(stages)
            for rank in range(ranks)
        ]
        return np.array(found, np.int64).reshape(self.grid)

    def _add(
        self,
        which: Ints,
        resources: Ints,
        duration_ps: Picoseconds,
        *,
        kind: Ints,
        tag: Ints,
        after: Ints | None = None,
    ) -> Ints:
        """Tasks (stride, rank) of some strides."""
        stage, ranks = self.stage[which], self.grid[1]
        return self.graph.add(
            which.size * ranks,
            resource=resources[stage].ravel(),
            duration_ps=duration_ps.ravel(),
            kind=np.repeat(kind, ranks),
            tag=np.repeat(tag, ranks),
            rank=(stage[:, None] * ranks + np.arange(ranks)).ravel(),
            after=after,
        ).reshape(which.size, ranks)

    def _add_waits(self, port: Ints) -> None:
        """Add what strides wait for beside the one before: another stride of the same stage, or a message."""
        here = [(one.earlier, one.later) for one in self.laid.waits if not one.crosses]
        if here:
            earlier, later = np.array(here).T
            self.graph.edges(self.done[earlier].ravel(), self.own[later].ravel())
        sent = [(one.earlier, one.later) for one in self.laid.waits if one.crosses]
        if sent:
            # Two messages that are ready at once leave in the order in which they were made.
            earlier, later = np.array(sorted(sent)).T
            hops = self.graph.add(
                earlier.size * self.grid[1],
                resource=port[self.stage[earlier]].ravel(),
                duration_ps=self.times.hop.duration_ps,
                latency_ps=self.times.hop.latency_ps,
                kind=_HOP,
                after=self.done[earlier].ravel(),
            )
            self.graph.edges(hops, self.own[later].ravel())

    def _add_end(self, reducing: Ints) -> None:
        """Sums of gradients by chunk, and one update of each GPU's weights."""
        ranks = self.grid[1]
        by_chunk: dict[int, list[int]] = {}
        for chunk, stage in sorted(self.laid.last):
            by_chunk.setdefault(chunk, []).append(stage)
        update_ps, self.hand_out_ps = np.zeros((2, self.shape.stages), np.int64)
        reduced: list[tuple[int, Ints]] = []
        for chunk, stages in by_chunk.items():
            layers = self.laid.chunks[chunk].start, self.laid.chunks[chunk].stop
            ends = [self.done[self.laid.last[chunk, stage]] for stage in stages]
            ready = self.graph.join(np.concatenate(ends), kind=_MEET)
            for stage in stages:
                tasks = self.graph.add(
                    ranks,
                    resource=reducing[stage],
                    duration_ps=self.times.synchronise.get(layers, 0),
                    kind=_SYNCHRONISE,
                    after=ready,
                )
                reduced.append((stage, tasks))
                update_ps[stage] += self.times.update.get(layers, 0)
                self.hand_out_ps[stage] += self.times.hand_out.get(layers, 0)
        self.update = self.graph.add(
            self.compute.size,
            resource=self.compute.ravel(),
            duration_ps=np.repeat(update_ps, ranks),
            kind=_UPDATE,
        ).reshape(self.grid)
        for stage, tasks in reduced:
            self.graph.edges(tasks, self.update[stage])
        self.reduced = reduced

    # ---- result ----------------------------------------------------------------------------------

    def result(self) -> StepComposition:
        """Schedule, and share the step out."""
        timeline = schedule(self.graph.build())
        start, end = timeline.start_ps, timeline.end_ps
        step_ps = timeline.makespan_ps
        spent = self._causes()
        spent["jitter"] = self.jitter
        # Waiting for what was there before a stride began, and for the others in the middle.
        before = np.zeros_like(self.own_ps)
        in_turn = np.flatnonzero(self.stage[1:] == self.stage[:-1])
        before[in_turn + 1] = end[self.done[in_turn]]
        spent["pipeline"] = self.by_stage(start[self.own] - before)
        apart = np.where(self.meets[:, None], start[self.done] - end[self.own], 0)
        spent["peers"] = meeting = self.by_stage(apart)
        self._share_out_end(spent, start, end, step_ps)
        is_paired = any(one.name == "beside" for one in self.laid.strides)
        in_order = {name: spent[name] for name in SPENT}
        activity = self._activity(spent, meeting, end - start)
        return StepComposition(step_ps, in_order, activity, timeline, is_paired)

    @functools.cached_property
    def _times_made(self) -> Ints:
        """(stage, part): how often a stage makes each."""
        made = np.zeros((self.shape.stages, len(self.laid.timed)), np.int64)
        np.add.at(made, (self.stage, self.timed), 1)
        return made

    def _activity(self, spent: Mapping[Spent, Ints], meeting: Ints, lasted: Ints) -> Activity:
        """Kernels of the parts, as often as each is made, and those at the end.

        Parameters
        ----------
        meeting
            (stage, rank): waiting for peers in the middle of strides.
        lasted
            (task,): how long each took.
        """
        summing = np.zeros(self.grid, np.int64)
        for stage, tasks in self.reduced:
            summing[stage] += lasted[tasks]
        hidden = summing - spent["synchronise"]
        apart = [one.activity for one in self.laid.timed]
        computing, communicating, both, streaming = (
            self._times_made @ np.stack([np.broadcast_to(getattr(one, what), self.grid[1]) for one in apart])
            for what in ("computing", "communicating", "both", "streaming")
        )
        # Whoever comes first waits in the kernel that others have not launched: of an exchange, or
        # of the sums at the end.
        waited = np.where(summing > 0, spent["peers"], meeting)
        hidden, handed = np.minimum(hidden, computing - both), self.hand_out_ps[:, None]
        alone = waited + spent["synchronise"] + handed
        return Activity(
            computing + spent["optimiser"] - handed,
            communicating + alone + hidden,
            both + hidden,
            streaming,
        )

    def _causes(self) -> dict[Spent, Ints]:
        """Causes of time as the parts state them."""
        none = np.zeros(self.times.num_ranks, np.int64)
        spent: dict[Spent, Ints] = {name: np.zeros(self.grid, np.int64) for name in SPENT}
        cause: Cause
        for cause in get_args(Cause):
            of_part = np.stack([one.causes.get(cause, none) for one in self.laid.timed])
            spent[cause] = self._times_made @ of_part
        return spent

    def _share_out_end(self, spent: dict[Spent, Ints], start: Ints, end: Ints, step_ps: int) -> None:
        """Share out the time after each GPU's last stride."""
        last = np.searchsorted(self.stage, np.arange(self.shape.stages), side="right") - 1
        over = end[self.done[last]]
        summing = np.zeros(self.grid, np.int64)
        for stage, tasks in self.reduced:
            summing[stage] += np.maximum(end[tasks] - np.maximum(start[tasks], over[stage]), 0)
        idle = start[self.update] - over - summing
        peers = np.minimum(idle, over.max(axis=1, keepdims=True) - over)
        spent["synchronise"] += summing
        spent["peers"] = spent["peers"] + peers
        spent["optimiser"] += end[self.update] - start[self.update]
        spent["pipeline"] += idle - peers + step_ps - end[self.update]
