"""Results of layers and chains: read off whole schedules, or layer by layer by observers.

What is over of a chain that is replayed layer by layer is measured and forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from replay.chains.chain import by_layer, mean_routing
from replay.chains.kernel_streams import DENSE, KernelSpan
from replay.chains.memory import largest
from replay.measure.gpu_sample import of_gpus
from replay.measure.measures import PiecewiseMeasures, measures, measures_by_layer
from replay.measure.result import ChainedLayer, ChainResult, LayerResult, Pairs
from replay.measure.schedule import ReplayedSchedule
from replay.measure.token_latency import token_latency, travelling_tokens, us

if TYPE_CHECKING:
    from replay.chains.chain import ChainGraph, ChainLink, LayerTasks
    from replay.engine import Timeline
    from replay.engine.piece import Piece
    from replay.engine.taskgraph import GraphPart
    from replay.measure.by_layer import OfLayer
    from replay.measure.parts import Memory, Routing
    from replay.measure.result import Measures
    from replay.model.arrays import Ints, Picoseconds
    from replay.schemes import Scheme


# ---- observers -----------------------------------------------------------------------------------


class Observer(Protocol):
    """Follows a chain part by part."""

    def begin(self, layer: LayerTasks, part: GraphPart) -> None:
        """Note that a layer is added."""

    def add(self, piece: Piece) -> None:
        """Note what has become of tasks."""


class Makespan:
    """Time at which the last task of a chain is visible.

    Attributes
    ----------
    ps
        Of what is over so far.
    """

    def __init__(self) -> None:
        self.ps = 0

    def begin(self, layer: LayerTasks, part: GraphPart) -> None:
        """Note nothing."""

    def add(self, piece: Piece) -> None:
        """Note what has become of tasks."""
        self.ps = int(piece.timeline.visible_ps.max(initial=self.ps, where=piece.is_done))


class Moments:
    """Times at which GPUs enter layers and leave them.

    Attributes
    ----------
    reached, starts, finishes
        (rank,) by layer: see `replay.chains.chain.ChainGraph`; in picoseconds.
    through
        (rank,): when each GPU is through with everything so far.
    spans
        When kernels of the streams ran, where a forward runs beside a backward pass.
    """

    def __init__(self) -> None:
        self.reached: dict[int, Ints] = {}
        self.starts: dict[int, Ints] = {}
        self.finishes: dict[int, Ints] = {}
        self.through = np.zeros(0, np.int64)
        self.spans: list[KernelSpan] = []
        self._open: list[tuple[Ints, Ints]] = []  # tasks, and their times: two of one shape each
        # Those that later layers may begin with.
        self._ends = self._times = np.zeros(0, np.int64)

    def begin(self, layer: LayerTasks, part: GraphPart) -> None:
        """Look out for the tasks at which layers begin and end."""
        del part
        known = dict(zip(self._ends.tolist(), self._times.tolist(), strict=True))

        def look_out(tasks: Ints) -> Ints:
            times = np.array([known.get(task, -1) for task in tasks.tolist()], np.int64)
            self._open.append((tasks, times))
            return times

        for moments, found in (
            (self.reached, layer.reached),
            (self.starts, layer.starts),
            (self.finishes, layer.finishes),
        ):
            moments |= {number: look_out(tasks) for number, tasks in found.items()}
        self.through = look_out(layer.through)
        self.spans += [KernelSpan(one.of, look_out(one.begun), look_out(one.ended)) for one in layer.spans]
        self._ends, self._times = layer.ends, look_out(layer.ends)

    def add(self, piece: Piece) -> None:
        """Note what has become of tasks."""
        for tasks, times in self._open if piece.is_done.any() else []:
            rows = np.minimum(piece.find(tasks), piece.ids.size - 1)
            found = (piece.ids[rows] == tasks) & piece.is_done[rows]
            times[found] = piece.timeline.visible_ps[rows[found]]
        self._open = [(tasks, times) for tasks, times in self._open if times.min() < 0]


class ChainMeasures(NamedTuple):
    """Measures of a chain of layers.

    Attributes
    ----------
    reached_ps, starts_ps, finishes_ps
        (layer, rank): when each rank comes to what lies before a layer, begins its part of it, and
        has its tokens combined and its SMs free.
    through_ps
        (rank,): when each rank is through with everything.
    spans
        When kernels of the streams ran, where a forward runs beside a backward pass.
    measures
        Of the whole.
    layers
        Of each layer.
    routing
        What the routing asks for, mean over the layers.
    memory
        Device memory of the layer that takes most.
    """

    reached_ps: list[Picoseconds]
    starts_ps: list[Picoseconds]
    finishes_ps: list[Picoseconds]
    through_ps: Picoseconds
    spans: list[KernelSpan]
    measures: Measures
    layers: list[OfLayer]
    routing: Routing
    memory: Memory

    @property
    def between_ps(self) -> int:
        """Time of all GPUs in what lies between MoE layers."""
        if self.spans:
            dense = [one for one in self.spans if one.of in DENSE]
            return sum(int((one.ended - one.begun).sum()) for one in dense)
        return int(np.sum(self.starts_ps) - np.sum(self.reached_ps))


class ChainMeter:
    """Measures a chain layer by layer."""

    def __init__(self) -> None:
        self._moments = Moments()
        self._measured: PiecewiseMeasures | None = None
        self._summaries: list[dict[str, float]] = []
        self._memories: list[Memory] = []

    def begin(self, layer: LayerTasks, part: GraphPart) -> None:
        """Note what is known of a layer before it runs."""
        self._moments.begin(layer, part)
        if self._measured is None:
            self._measured = PiecewiseMeasures(layer.machine, phases_separated=False)
        past = part.first_task + part.graph.num_tasks
        of_layer = layer.ranges.layer_of_task(past, part.first_task)
        self._measured.begin(part, layer.machine.notes.take(), of_layer)
        self._summaries.append(layer.summary)
        self._memories.append(layer.memory)

    def add(self, piece: Piece) -> None:
        """Note what has become of tasks."""
        self._moments.add(piece)
        assert self._measured is not None
        self._measured.add(piece)

    def result(self) -> ChainMeasures:
        """Give the measures, once everything is over."""
        assert self._measured is not None
        moments = self._moments
        return ChainMeasures(
            reached_ps=by_layer([moments.reached]),
            starts_ps=by_layer([moments.starts]),
            finishes_ps=by_layer([moments.finishes]),
            through_ps=moments.through,
            spans=moments.spans,
            measures=self._measured.result(moments.through),
            layers=self._measured.layers.result(),
            routing=mean_routing(self._summaries),
            memory=largest(self._memories),
        )


# ---- results -------------------------------------------------------------------------------------


def replayed_of(links: Sequence[ChainLink], graph: ChainGraph, timeline: Timeline) -> ReplayedSchedule:
    """Put together what an observer of a whole schedule is given."""
    passes, steps = {link.is_backward for link in links}, {link.step for link in links}
    names = [
        f"step {link.step}, " * (len(steps) > 1)
        + f"layer {link.decoder_layer}"
        + ", backward" * (link.is_backward and len(passes) > 1)
        for link in links
    ]
    layer = graph.ranges.layer_of_task(timeline.graph.num_tasks)
    travels = travelling_tokens(graph.last_work) if len(links) == 1 else None
    return ReplayedSchedule.of(timeline, graph.built.machine, tuple(names), layer, travels)


def layer_result(link: ChainLink, graph: ChainGraph, timeline: Timeline, scheme: Scheme) -> LayerResult:
    """Read the result of a layer off the schedule of a chain that is this layer alone."""
    tokens = token_latency(timeline, graph.built.machine, graph.last_work, link.trace_rows)
    in_turn = scheme.phases_separated and not link.micro_batches
    sample = graph.last_work.sample
    measured = measures(*graph.built, timeline, phases_separated=in_turn)
    if sample is not None:
        ranks = np.flatnonzero(sample.holds)
        cards = graph.built.machine.domains.gpu[ranks]
        measured = of_gpus(measured, ranks.tolist(), cards.tolist())
    return LayerResult(
        **link.which(),
        is_backward=link.is_backward,
        routing=graph.routing,
        measures=measured,
        token_latency_us=tokens.from_dispatch,
        token_latency_from_start_us=tokens.from_start,
        slowest_tokens=tokens.slowest,
        memory=graph.memory,
        sampled_nodes=None if sample is None else list(sample.nodes),
    )


def measures_at_once(graph: ChainGraph, timeline: Timeline) -> ChainMeasures:
    """Read the measures of a chain off its whole schedule."""
    layer = graph.ranges.layer_of_task(graph.built.graph.num_tasks)
    found, layers = measures_by_layer(*graph.built, timeline, phases_separated=False, layer=layer)
    visible = timeline.visible_ps
    return ChainMeasures(
        reached_ps=[visible[tasks] for tasks in graph.reached],
        starts_ps=[visible[tasks] for tasks in graph.starts],
        finishes_ps=[visible[tasks] for tasks in graph.finishes],
        through_ps=visible[graph.built.ends],
        spans=[one.at(visible) for spans in graph.spans for one in spans],
        measures=found,
        layers=layers,
        routing=graph.routing,
        memory=graph.memory,
    )


def chain_result(
    links: Sequence[ChainLink],
    measures: ChainMeasures,
    *,
    barrier_us: float | None,
    pairs: Pairs | None,
) -> ChainResult:
    """Put the result of a chain together."""
    # Of passes side by side, the forward one is a step ahead.
    num_steps = len({link.step for link in links if link.is_backward == links[-1].is_backward})
    num_passes = len({link.is_backward for link in links})
    between = links[0].between
    return ChainResult(
        num_steps=num_steps,
        num_layers=len(links) // (num_steps * num_passes),
        layers=[_chained_layer(link, measures, index) for index, link in enumerate(links)],
        between_us=us(measures.between_ps) / measures.starts_ps[0].size,
        left_out=[] if between is None else between.left_out,
        barrier_us=barrier_us,
        routing=measures.routing,
        measures=measures.measures,
        memory=measures.memory,
        pairs=pairs,
    )


def _chained_layer(link: ChainLink, measures: ChainMeasures, index: int) -> ChainedLayer:
    start, end = measures.starts_ps[index], measures.finishes_ps[index]
    layer = measures.layers[index]
    return ChainedLayer(
        step=link.step,
        layer_index=link.layer_index,
        is_backward=link.is_backward,
        start_us=(us(start.min()), us(start.max())),
        end_us=(us(end.min()), us(end.max())),
        mean_us=us(int((end - start).sum())) / len(start),
        phases_us=layer.phases_us,
        payload_bytes=layer.payload_bytes,
        wire_bytes=layer.wire_bytes,
    )
