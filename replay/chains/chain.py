"""Layers as a graph: one body for a layer and for a whole model.

In a chain, a GPU goes on to the next layer when its own tokens are combined and its SMs have done
what they do for others, with the kernels of that layer that are not routed experts. Nothing else
holds it back, so a GPU with little work runs ahead until it needs rows of one that is late:
stragglers propagate through the schemes' own dependencies.
A layer by itself is a chain of one layer, with nothing before it. `replay.chains.interleave` builds
chains in which two micro-batches alternate, `replay.chains.chain_results` replays either.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.chains.memory import largest, memory_of
from replay.chains.summaries import mean_routing
from replay.engine import GraphBuilder
from replay.errors import UserError
from replay.model.compute.gradient_reduction import reduce_gradients
from replay.model.compute.replication import replicate
from replay.model.compute.shared import PLACED
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine, Time
from replay.model.machine.times import NO_TIME
from replay.schemes.ep.base import LayerRefusedError
from replay.schemes.outside import BuildFailed

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.occupied import Span
    from replay.engine import TaskGraph
    from replay.engine.taskgraph import Int32s
    from replay.measure.parts import Memory, Routing
    from replay.model.compute.dense import Between
    from replay.model.machine.host import Launch
    from replay.model.machine.machine import Ints
    from replay.model.work.context import Context
    from replay.model.work.layer import LayerWork
    from replay.schemes import Scheme


@dataclass(frozen=True)
class ChainLink:
    """One layer of one step.

    Attributes
    ----------
    work
        Makes the layer's work; called when its tasks are added, so that only one is in memory.
    step, layer_index, decoder_layer
        Which layer it is: step, position among the MoE layers, number in the model.
    is_backward
        Whether it is the backward pass.
    trace_rows
        (token,): the tokens' rows in the trace, where they are known.
    between
        What lies before the layer (forward) or behind it (backward), done before it in both. None
        where the layer begins at once.
    context
        What the tokens attend to, for `between`.
    micro_batches
        The parts that alternate, where the batch is cut.
    delays_ps
        (rank,): how long each GPU is held up when the layer begins; None for not at all.
    """

    work: Callable[[], LayerWork]
    step: int = 0
    layer_index: int = 0
    decoder_layer: int = 0
    is_backward: bool = False
    trace_rows: Ints | None = None
    between: Between | None = None
    context: Context | None = None
    micro_batches: tuple[MicroBatch, ...] = ()
    delays_ps: Ints | None = None

    def before(self, machine: Machine, after: Ints) -> Ints:
        """Add what lies before the layer: (rank,) tasks; `after` where it begins at once."""
        if self.between is None:
            return after
        assert self.context is not None
        return self.between.before_layer(machine, self.decoder_layer, self.context, after)

    def is_with(self, other: ChainLink) -> bool:
        """Whether both are of one pass of one step."""
        return (self.step, self.is_backward) == (other.step, other.is_backward)

    def which(self) -> dict[str, int]:
        """Which layer it is, as results say it."""
        return {
            "step": self.step,
            "layer_index": self.layer_index,
            "decoder_layer": self.decoder_layer,
        }

    def alone(self) -> ChainLink:
        """Leave out what lies before the layer."""
        return dataclasses.replace(self, between=None)


@dataclass(frozen=True)
class MicroBatch:
    """Some of the tokens of a layer, in order.

    Attributes
    ----------
    tokens
        (token,): their places among those of the layer.
    context
        What they attend to, where anything lies before the layer.
    """

    tokens: Ints
    context: Context | None = None


class Built(NamedTuple):
    """Layers as one graph.

    Attributes
    ----------
    graph
        The tasks.
    ends
        (rank,): the task after which each rank's tokens of the last layer are combined, and its SMs
        free.
    machine
        Resources, and what was remembered of the tokens.
    """

    graph: TaskGraph
    ends: Ints
    machine: Machine


class Pieces(NamedTuple):
    """Tasks by layer.

    Attributes
    ----------
    bounds
        (piece + 1,): tasks of piece p are ``[bounds[p], bounds[p + 1])``.
    layer
        (piece,): the layer that they are of.
    """

    bounds: Ints
    layer: Ints

    def layer_of_task(self, past: int, first: int = 0) -> Int32s:
        """(task,): the layer of each from ``first`` to ``past - 1``, -1 where it is of none."""
        of_task = np.full(past - first, -1, np.int32)
        low, high = self.bounds[[0, -1]] - first
        of_task[low:high] = np.repeat(self.layer, np.diff(self.bounds))
        return of_task


@dataclass(frozen=True)
class Chain:
    """Layers as one graph, and where each of them lies in it.

    Attributes
    ----------
    built
        The graph.
    reached, starts, finishes
        (layer, rank): the task at which each rank comes to what lies before a layer, that at which
        its part of the layer begins, and that after which its tokens are combined and its SMs free.
        Of two micro-batches, reached and begun by the first, finished by both.
    pieces
        Where the tasks of each layer lie.
    routing
        What the routing asks for, mean over the layers.
    last_work
        The work of the last layer.
    memory
        Device memory of the layer that takes most.
    spans
        See `Added`.
    """

    built: Built
    reached: list[Ints]
    starts: list[Ints]
    finishes: list[Ints]
    pieces: Pieces
    routing: Routing
    last_work: LayerWork
    memory: Memory
    spans: Sequence[tuple[Span, ...]]


def build(
    links: Sequence[ChainLink],
    system: System,
    scheme: Scheme,
    launch: Launch | None = None,
    *,
    lead: Time = NO_TIME,
    meets: bool = False,
    progress: Callable[[], object] | None = None,
) -> Chain:
    """Let a scheme describe the work of layers that each GPU goes through one after the other.

    Parameters
    ----------
    links
        At least one layer, in order.
    launch
        How hosts launch kernels, see `Host`.
    lead
        (rank,): by how much each host begins before its GPU.
    meets
        Whether all ranks wait for each other after each layer.
    progress
        Called after every layer's tasks were added.
    """
    builder = GraphBuilder(KIND_NAMES)
    described = layers(links, system, scheme, builder, launch, lead=lead, meets=meets)
    return joined(described, builder, progress)


def joined(
    described: Iterable[Added], builder: GraphBuilder, progress: Callable[[], object] | None = None
) -> Chain:
    """Put what is added, layer after layer, together to one graph."""
    added = []
    for one in described:
        added.append(one)
        if progress is not None:
            progress()

    def by_layer(name: str) -> list[Ints]:
        known = {layer: tasks for one in added for layer, tasks in getattr(one, name).items()}
        return [known[layer] for layer in range(len(known))]

    bounds = [added[0].pieces.bounds[:1], *(one.pieces.bounds[1:] for one in added)]
    return Chain(
        built=Built(builder.build(), added[-1].through, added[-1].machine),
        reached=by_layer("reached"),
        starts=by_layer("starts"),
        finishes=by_layer("finishes"),
        pieces=Pieces(np.concatenate(bounds), np.concatenate([one.pieces.layer for one in added])),
        routing=mean_routing([one.summary for one in added]),
        last_work=added[-1].work,
        memory=largest([one.memory for one in added]),
        spans=[one.spans for one in added],
    )


class Added(NamedTuple):
    """What has been added to a graph up to the end of a layer.

    Attributes
    ----------
    reached, starts, finishes
        (rank,) tasks by layer, see `Chain`: those that are known now, and were not before. Tasks
        that were added earlier are among the `ends` of then.
    ends
        (task,): all that is added later, but for what hosts do, waits for one of these.
    pieces
        Where the tasks of each layer lie, of those that were added.
    machine
        Resources, and what was remembered of the tokens.
    work
        The layer's work.
    summary
        What its routing asks for.
    memory
        Device memory that it takes.
    through
        (rank,): the task after which each rank is through with all of it.
    spans
        What streams are busy with, where a forward runs beside a backward pass.
    """

    reached: dict[int, Ints]
    starts: dict[int, Ints]
    finishes: dict[int, Ints]
    ends: Ints
    pieces: Pieces
    machine: Machine
    work: LayerWork
    summary: dict[str, float]
    memory: Memory
    through: Ints
    spans: tuple[Span, ...] = ()


def layers(
    links: Sequence[ChainLink],
    system: System,
    scheme: Scheme,
    builder: GraphBuilder,
    launch: Launch | None = None,
    *,
    lead: Time = NO_TIME,
    meets: bool = False,
) -> Iterator[Added]:
    """Add layers to a graph, one each time that the next one is asked for.

    Parameters are those of `build`.
    """
    work = links[0].work()
    machine = Machine(
        system, builder, work.num_ranks, scheme.uplinks, launch, lead, sample=work.sample
    )
    ends = machine.mark(machine.ranks)
    reached = {0: ends}
    for number, link in enumerate(links):
        first_task, one_before = builder.num_tasks, links[number - 1] if number else None
        machine.notes.layer = number
        machine.host.next_layer(same_graph=one_before is not None and link.is_with(one_before))
        start = link.before(machine, machine.meet(ends) if meets else ends)
        if number:
            work = link.work()
        late = link.delays_ps
        begun = start if late is None else machine.delay(Kind.DELAY, Time(late), start)
        ends, taken = _described(scheme, work, machine, replicate(machine, work, begun))
        ends = reduce_gradients(machine, work, ends)
        pieces = Pieces(np.array([first_task, builder.num_tasks]), np.array([number]))
        if number + 1 < len(links):
            reached[number + 1] = ends
        yield Added(
            reached, {number: start}, {number: ends}, ends, pieces, machine, work, work.summary(),
            taken, ends,
        )  # fmt: skip
        reached = {}


def _described(
    scheme: Scheme, work: LayerWork, machine: Machine, start: Ints
) -> tuple[Ints, Memory]:
    """Let a scheme add a layer's tasks, and state its memory: (rank,) ends, and the memory.

    Raises
    ------
    LayerRefusedError
        If the scheme has no code for the layer.
    UserError
        If its options do not fit the machine, or it leaves out the layer's shared experts.
    BuildFailed
        If a scheme from outside raises anything else.
    """
    with faults_of(scheme):
        check_code_for(scheme, work, machine.system)
        placed = _shared_rows(machine)
        ends = scheme.build(work, machine, start)
        if work.shared is not None and _shared_rows(machine) - placed != work.num_tokens:
            message = (
                f"scheme {scheme.name!r} has no place for shared experts beside its dispatch; run "
                "it with --shared-experts between"
            )
            raise UserError(message)
        return ends, memory_of(work, machine.system, scheme)


def check_code_for(scheme: Scheme, work: LayerWork, system: System) -> None:
    """Refuse a layer that a scheme has no code for, or none on this system.

    Raises
    ------
    LayerRefusedError
        Saying why.
    """
    if reason := scheme.refuses(work) or scheme.refuses_on(work, system):
        message = f"scheme {scheme.name!r}: {reason}"
        raise LayerRefusedError(message)


@contextmanager
def faults_of(scheme: Scheme) -> Iterator[None]:
    """Tell what goes wrong in the code of a scheme from outside from the user's other mistakes."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not scheme.code:
            raise
        raise BuildFailed(scheme, error) from error


def _shared_rows(machine: Machine) -> int:
    """Rows of shared experts that were placed beside a dispatch."""
    return int(np.sum(machine.notes.counters.get(PLACED, 0)))
