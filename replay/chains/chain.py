"""Layers as one graph: what goes into it, layer after layer, and where each layer lies in it.

In a chain, a GPU goes on to the next layer when its own tokens are combined and its SMs have done
what they do for others, with the kernels of that layer that are not routed experts. Nothing else
holds it back, so a GPU with little work runs ahead until it needs rows of one that is late:
stragglers propagate through the schemes' own dependencies.
A layer by itself is a chain of one layer, with nothing before it. `replay.chains.replay` describes
and replays chains.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from replay.chains.memory import largest
from replay.errors import UserError
from replay.measure.parts import Routing
from replay.model.work.layer import MADE_FROM, LayerWork
from replay.schemes.ep.base import LayerRefusedError
from replay.schemes.outside import SchemeFailure

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.kernel_streams import KernelSpan
    from replay.engine import GraphBuilder, TaskGraph
    from replay.engine.taskgraph import Int32s
    from replay.measure.parts import Memory
    from replay.model.arrays import Counts, Ints, Picoseconds
    from replay.model.compute.dense import Between
    from replay.model.machine.machine import Machine
    from replay.model.machine.times import Time
    from replay.model.work.context import Context
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
        Work between MoE layers, such as attention: before this layer (forward) or behind it
        (backward), but launched before it in both. None where the layer begins at once.
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
    delays_ps: Picoseconds | None = None

    def before(self, machine: Machine, after: Ints) -> Ints:
        """Add the work of `between`: (rank,) its last tasks; `after` where there is none."""
        if self.between is None:
            return after
        assert self.context is not None
        return self.between.before_layer(machine, self.decoder_layer, self.context, after)

    def is_with(self, other: ChainLink) -> bool:
        """Tell whether both layers are of the same pass of the same step."""
        return (self.step, self.is_backward) == (other.step, other.is_backward)

    def which(self) -> dict[str, int]:
        """Give the numbers of the layer, as results hold them."""
        return {
            "step": self.step,
            "layer_index": self.layer_index,
            "decoder_layer": self.decoder_layer,
        }

    def alone(self) -> ChainLink:
        """Leave out `between`, and make the layer's work now, once for all callers."""
        work = self.work()
        return dataclasses.replace(self, between=None, work=lambda: work)


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

    tokens: Counts
    context: Context | None = None


class LayerGraph(NamedTuple):
    """Graph of layers.

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


class TaskRanges(NamedTuple):
    """Ranges of tasks, and the layer that each is of.

    Attributes
    ----------
    bounds
        (range + 1,): tasks of range r are ``[bounds[r], bounds[r + 1])``.
    layer
        (range,): the layer.
    """

    bounds: Ints
    layer: Ints

    def layer_of_task(self, past: int, first: int = 0) -> Int32s:
        """(task,): the layer of each from ``first`` to ``past - 1``, -1 where it is of none."""
        of_task = np.full(past - first, -1, np.int32)
        low, high = self.bounds[[0, -1]] - first
        of_task[low:high] = np.repeat(self.layer, np.diff(self.bounds))
        return of_task


class LayerTasks(NamedTuple):
    """Tasks that were added to a graph for a layer, or for a pair of them.

    Attributes
    ----------
    reached, starts, finishes
        (rank,) tasks by layer, see `ChainGraph`: those that were not known before. Tasks that were
        added earlier are among the `ends` given then.
    ends
        (task,): barrier tasks. Every task that is added later waits for one of these; host tasks
        do not.
    ranges
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
        (rank,): the task after which each rank is through with the layer, or the pair.
    spans
        Kernels of the streams, where a forward runs beside a backward pass.
    """

    reached: dict[int, Ints]
    starts: dict[int, Ints]
    finishes: dict[int, Ints]
    ends: Ints
    ranges: TaskRanges
    machine: Machine
    work: LayerWork
    summary: dict[str, float]
    memory: Memory
    through: Ints
    spans: tuple[KernelSpan, ...] = ()


@dataclass(frozen=True)
class ChainGraph:
    """Layers as one graph, and where each of them lies in it.

    Attributes
    ----------
    built
        The graph.
    reached, starts, finishes
        (layer, rank): the task at which each rank comes to what lies before a layer, that at which
        its part of the layer begins, and that after which its tokens are combined and its SMs free.
        Of two micro-batches, reached and begun by the first, finished by both.
    ranges
        Where the tasks of each layer lie.
    routing
        What the routing asks for, mean over the layers.
    last_work
        The work of the last layer.
    memory
        Device memory of the layer that takes most.
    spans
        Kernels of the streams by pair of layers, see `LayerTasks`.
    """

    built: LayerGraph
    reached: list[Ints]
    starts: list[Ints]
    finishes: list[Ints]
    ranges: TaskRanges
    routing: Routing
    last_work: LayerWork
    memory: Memory
    spans: Sequence[tuple[KernelSpan, ...]]

    @classmethod
    def of(
        cls,
        described: Iterable[LayerTasks],
        builder: GraphBuilder,
        progress: Callable[[], object] | None = None,
    ) -> ChainGraph:
        """Put layers together while they are added to a builder; `progress` is called for each."""
        added = []
        for one in described:
            added.append(one)
            if progress is not None:
                progress()
        ranges = [one.ranges for one in added]
        bounds = [ranges[0].bounds[:1], *(one.bounds[1:] for one in ranges)]
        return cls(
            built=LayerGraph(builder.build(), added[-1].through, added[-1].machine),
            reached=by_layer(one.reached for one in added),
            starts=by_layer(one.starts for one in added),
            finishes=by_layer(one.finishes for one in added),
            ranges=TaskRanges(np.concatenate(bounds), np.concatenate([one.layer for one in ranges])),
            routing=mean_routing([one.summary for one in added]),
            last_work=added[-1].work,
            memory=largest([one.memory for one in added]),
            spans=[one.spans for one in added],
        )


def by_layer(known: Iterable[dict[int, Ints]]) -> list[Ints]:
    """Put parts of a table by number of the layer together: one entry per layer, in order."""
    found = {layer: values for part in known for layer, values in part.items()}
    return [found[layer] for layer in range(len(found))]


def mean_of(summaries: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean of each count of several layers."""
    if len(summaries) == 1:  # as most are asked for
        return {name: float(count) for name, count in summaries[0].items()}
    return {name: float(np.mean([one[name] for one in summaries])) for name in summaries[0]}


def mean_routing(summaries: Sequence[dict[str, float]]) -> Routing:
    """Mean of what the routing asks for, over layers."""
    mean = mean_of(summaries)
    return Routing(**{name: mean[name] for name in Routing.model_fields})


def check_code_for(scheme: Scheme, work: LayerWork, system: System) -> None:
    """Refuse a layer that a scheme has no code for, or none on this system.

    Raises
    ------
    LayerRefusedError
        Saying why.
    """
    lacking = system.compute.lacks(work.precision.operands)
    lacking = lacking and f"on {system.name} {lacking}"
    if reason := scheme.refuses(work) or lacking or scheme.refuses_on(work, system):
        message = f"scheme {scheme.name!r}: {reason}"
        raise LayerRefusedError(message)


@contextmanager
def faults_of(scheme: Scheme, *others: type[Exception]) -> Iterator[None]:
    """Raise what goes wrong in the code of a scheme from outside as a `SchemeFailure`.

    Parameters
    ----------
    others
        Errors that are no fault and pass as they are, as `UserError` does.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (UserError, *others)):
            raise
        if not scheme.code:
            raise
        raise SchemeFailure(scheme, error) from error


# ---- layers that are the same work ---------------------------------------------------------------


def digest_of(link: ChainLink, lead: Time) -> str:
    """SHA-256 of everything that decides what the replay of a layer by itself gives.

    Of layers with equal digests, one replay stands for all.

    Parameters
    ----------
    link
        The layer; which one it is does not count.
    lead
        Time by which each host begins before its GPU.
    """
    digest = hashlib.sha256()
    parts = [batch.tokens for batch in link.micro_batches]
    for value in (link.work(), lead, link.trace_rows, parts, link.delays_ps):
        _add(digest, value)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    """Add a value with its type and length, so that no two values look alike."""
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, LayerWork):
        for name in MADE_FROM:
            _add(digest, getattr(value, name))
    elif dataclasses.is_dataclass(value):
        digest.update(type(value).__name__.encode())
        for field in dataclasses.fields(value):
            _add(digest, getattr(value, field.name))
    elif isinstance(value, list | tuple):
        digest.update(f"{type(value).__name__}{len(value)}".encode())
        for one in value:
            _add(digest, one)
    else:
        text = repr(value).encode()
        digest.update(f"{type(value).__name__}{len(text)}".encode() + text)
