"""Stages in turns: while rows of the one micro-batch travel, the other computes.

The tokens of every GPU are cut in two. One host thread per GPU launches stages of the two in turns,
in the order of an engine's list; a kernel waits for the one before it in its stream, and for what
its micro-batch needs. Kernels that compute have one stream. Those that move rows have another, with
SMs of their own from the first to the last layer, so that kernels that compute have the rest; or,
where the scheme has hooks, they are in the first stream too, and rows travel while no kernel holds
an SM for them. Nobody says what overlaps: that follows from the order of launches and from who
waits for whom.

With one micro-batch (SGLang's single-batch overlap) shared experts run between the kernel that
sends rows and the one that receives them, and the scheme sends results while its second GEMM runs.

The lists are in `replay.chains.strategies`. Source of how they are run: sgl-project/sglang,
``batch_overlap/operations.py``.

Left out: that GPUs agree to cut their batches, which is once for a step and without which they
agree on sizes anyway; and vLLM's padding of batches to the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from replay.chains.chain import (
    Added,
    Chain,
    ChainLink,
    Pieces,
    check_code_for,
    faults_of,
    joined,
)
from replay.chains.memory import beside, memory_of
from replay.chains.strategies import staged
from replay.chains.streams import Streams, set_aside
from replay.engine import GraphBuilder
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.machine.times import NO_TIME, Time
from replay.schemes.ep.staged import STAGES

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.chain import MicroBatch
    from replay.chains.strategies import Part, Strategy
    from replay.measure.parts import Memory
    from replay.model.machine.host import Launch
    from replay.model.machine.machine import Ints
    from replay.model.work.layer import LayerWork
    from replay.schemes import Scheme
    from replay.schemes.ep.staged import Stage, StagedScheme, Stages


_Turns = Iterator[tuple[int, bool]]
"""Layer of what was added, and whether it is the other micro-batch's turn; piece by piece."""


class _Program:
    """What a host launches for one micro-batch.

    Attributes
    ----------
    ends
        (rank,): what its last part ended with.
    starts, finishes, memories
        By layer: (rank,) tasks where the scheme begins and ends; the work, and its memory.
    """

    def __init__(
        self,
        number: int,
        links: Sequence[ChainLink],
        machine: Machine,
        scheme: StagedScheme,
        streams: Streams,
        strategy: Strategy,
        start: Ints,
    ) -> None:
        self._number, self._links, self._machine = number, links, machine
        self._scheme, self._streams, self._strategy = scheme, streams, strategy
        self.ends = start
        self.starts: list[Ints] = []
        self.finishes: list[Ints] = []
        self.memories: list[Memory] = []
        self._stages: Stages | None = None
        self._ready = start

    def run(self, whole: Callable[[int], LayerWork]) -> _Turns:
        """Add the tasks of all layers, stage by stage."""
        last_layer, last_stage = len(self._links) - 1, len(self._strategy.stages)
        for index, link in enumerate(self._links):
            micro_batch = link.micro_batches[self._number]
            if not self._number:
                follows = index > 0 and link.is_with(self._links[index - 1])
                self._machine.host.next_layer(same_graph=follows)
            for number, stage in enumerate(self._strategy.stages, 1):
                for part in stage:
                    self._machine.notes.tokens = micro_batch.tokens
                    self._machine.notes.layer = index
                    if part == "send":
                        self._begin(whole(index).of_tokens(micro_batch.tokens))
                    self._add(part, link, micro_batch)
                self._machine.notes.tokens = None
                if number == last_stage:
                    self.finishes.append(self.ends)
                goes_on = number == last_stage and self._strategy.joins and index < last_layer
                yield index, not goes_on

    def _begin(self, work: LayerWork) -> None:
        """Come to the scheme."""
        with faults_of(self._scheme):
            check_code_for(self._scheme, work, self._machine.system)
            self.memories.append(memory_of(work, self._machine.system, self._scheme))
            self.starts.append(self.ends)
            begun = self._streams.of("send").next(self.ends)
            self._stages = self._scheme.stages(work, self._machine, begun)

    def _add(self, part: Part, link: ChainLink, micro_batch: MicroBatch) -> None:
        """Add the kernels of a part, behind those of its stream."""
        if part in STAGES:
            self._stage(part)
            return
        if link.between is None:
            return
        context, machine, compute = micro_batch.context, self._machine, self._streams.compute
        assert context is not None
        if part == "shared":  # beside what the micro-batch's rows do
            ready = compute.next(self._ready)
            compute.ended(link.between.shared_experts(machine, context, ready))
            return
        ready = compute.next(self.ends)
        if part == "prepare":
            self.ends = link.between.prepare(machine, link.decoder_layer, context, ready)
        else:
            self.ends = self._ready = link.between.attend(machine, context, ready)
        compute.ended(self.ends)

    def _stage(self, stage: Stage) -> None:
        """Add the kernels of one stage of the scheme."""
        assert self._stages is not None
        with faults_of(self._scheme):
            self.ends = self._streams.run(self._stages, stage, self.ends).ended


def build(
    links: Sequence[ChainLink],
    system: System,
    scheme: Scheme,
    strategy: Strategy,
    launch: Launch | None = None,
    *,
    lead: Time = NO_TIME,
    progress: Callable[[], object] | None = None,
) -> Chain:
    """Let a scheme describe layers that micro-batches go through in turns.

    Parameters
    ----------
    links
        At least one layer, each with one or two micro-batches.
    strategy
        Who is launched when.
    launch, lead, progress
        As in `replay.chains.chain.build`.
    """
    builder = GraphBuilder(KIND_NAMES)
    return joined(
        layers(links, system, scheme, strategy, builder, launch, lead=lead), builder, progress
    )


def layers(
    links: Sequence[ChainLink],
    system: System,
    scheme: Scheme,
    strategy: Strategy,
    builder: GraphBuilder,
    launch: Launch | None = None,
    *,
    lead: Time = NO_TIME,
) -> Iterator[Added]:
    """Add layers to a graph, until all micro-batches are through one each time that is asked for.

    Of the next layer there are the stages by which micro-batches are ahead. Parameters are those of
    `build`.

    Raises
    ------
    UserError
        If the scheme cannot be interleaved, or leaves no SM to the kernels that compute.
    LayerRefusedError
        If the scheme has no code for a layer.
    """
    able = staged(scheme, strategy.kind)
    works = _Works(links)
    whole = works(0)
    machine = Machine(
        system, builder, whole.num_ranks, able.uplinks, launch, lead,
        set_aside(able, whole, system),
    )  # fmt: skip
    begin = machine.mark(machine.ranks)
    streams = Streams(machine, able.releases)
    bounds, of_piece = [builder.num_tasks], []
    programs = [
        _Program(number, links, machine, able, streams, strategy, begin)
        for number in range(len(links[0].micro_batches))
    ]
    first, last = programs[0], programs[-1]
    turns = first.run(works)
    if last is not first:
        turns = _in_turns(turns, last.run(works), strategy.shift)
    reached, begun = {0: begin}, 0
    for layer, _ in turns:
        done = len(last.finishes) - 1
        if layer == done:
            ended = machine.gather(first.finishes[done], machine.ranks, last.finishes[done])
        bounds.append(builder.num_tasks)
        of_piece.append(layer)
        if layer != done:
            continue
        if done + 1 < len(links):
            reached[done + 1] = first.finishes[done]
        taken = first.memories[done]
        yield Added(
            reached=reached,
            starts=dict(enumerate(first.starts[begun:], begun)),
            finishes={done: ended},
            ends=np.unique(np.concatenate([first.ends, last.ends])),
            pieces=Pieces(np.array(bounds), np.array(of_piece)),
            machine=machine,
            work=works(done),
            summary=works.summaries[done],
            memory=taken if last is first else beside(taken, last.memories[done]),
            through=ended,
        )
        reached, begun = {}, len(first.starts)
        bounds, of_piece = [builder.num_tasks], []


class _Works:
    """The work of every layer for all tokens: few are in memory at a time."""

    def __init__(self, links: Sequence[ChainLink]) -> None:
        self._links = links
        self._known: dict[int, LayerWork] = {}
        self.summaries: list[dict[str, float]] = []

    def __call__(self, layer: int) -> LayerWork:
        """That of one layer; micro-batches are at most one layer apart."""
        if layer not in self._known:
            self._known.pop(layer - 2, None)
            self._known[layer] = self._links[layer].work()
            self.summaries.append(self._known[layer].summary())
        return self._known[layer]


def _in_turns(first: _Turns, second: _Turns, shift: int) -> _Turns:
    """Run two programs turn by turn, the first ahead by `shift` turns."""
    for _ in range(shift):
        yield from _turn(first)
    for layer, is_over in first:
        yield layer, is_over
        if is_over:
            yield from _turn(second)
    yield from second


def _turn(program: _Turns) -> _Turns:
    """Run a program until it is the other's turn."""
    for layer, is_over in program:
        yield layer, is_over
        if is_over:
            return
