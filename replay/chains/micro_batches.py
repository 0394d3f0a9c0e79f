"""Micro-batches in turns: while rows of the one travel, the other computes.

The tokens of every GPU are cut in two. One host thread per GPU launches stages of the two in turns,
in the order of an engine's list; a kernel waits for the one before it in its stream, and for what
its micro-batch needs. Kernels that compute have one stream. Those that move rows have another, with
SMs of their own from the first to the last layer, so that kernels that compute have the rest; or,
where the scheme has hooks, they are in the first stream too, and rows travel while no kernel holds
an SM for them. Nobody says what overlaps: that follows from the order of launches and from who
waits for whom.

With one micro-batch (SGLang's single-batch overlap) shared experts run between the kernel that
sends rows and the one that receives them, and the scheme sends results while its second GEMM runs.

Sources of the lists: sgl-project/sglang, ``batch_overlap/operations_strategy.py`` (tbo) and
``batch_overlap/single_batch_overlap.py`` (sbo); vllm-project/vllm, ``docs/design/dbo.md`` and
``v1/worker/ubatching.py`` (dbo). How they are run: SGLang's ``batch_overlap/operations.py``.

Left out: the GPUs' agreement to cut their batches, once a step, since they agree on sizes anyway;
and vLLM's padding of batches to the longest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.chains.chain import LayerTasks, TaskRanges
from replay.chains.kernel_streams import StageStreams, as_staged, set_aside
from replay.chains.launch_program import LaunchProgram
from replay.chains.memory import beside
from replay.chains.replay import Strategy
from replay.model.machine.machine import Machine

if TYPE_CHECKING:
    from replay.chains.chain import ChainLink
    from replay.chains.launch_program import Part
    from replay.chains.replay import Replay
    from replay.engine import GraphBuilder
    from replay.measure.parts import Memory
    from replay.model.arrays import Ints
    from replay.model.work.batch import Batch
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.staged_schemes import Interleave, Releases, StagedScheme

_Turns = Iterator[tuple[int, bool]]
"""Layer of what was added, and whether it is the other micro-batch's turn; piece by piece."""


@dataclass(frozen=True)
class MicroBatchTurns(Strategy):
    """Micro-batches whose stages are launched in turns.

    Attributes
    ----------
    kind
        Name of the engine's list.
    stages
        Parts of a layer that are launched together. The micro-batches take turns stage by stage.
    shift
        Turns that the first micro-batch is ahead of the second.
    joins
        Whether a micro-batch goes on from the last stage of a layer to the first of the next
        without the other's turn between them.
    """

    kind: Interleave
    stages: tuple[tuple[Part, ...], ...]
    shift: int = 0
    joins: bool = False

    @classmethod
    def tbo(cls, phase: str, releases: Releases) -> MicroBatchTurns:
        """Give the list of SGLang's two-batch overlap.

        Parameters
        ----------
        phase
            "prefill" or "decode", which have lists of their own.
        releases
            See `StagedScheme`. The second half of a combine launches kernels of a stream of their
            own, while of kernels with a hook the first half has launched the one that sends. SGLang
            concatenates the lists of all layers before it cuts them at their yields, and they end
            with none: what is behind the last one is launched with the next layer's first stage.
        """
        stages: tuple[tuple[Part, ...], ...]
        first: tuple[Part, ...] = ("combine",) if releases == "hook" else ()
        second: tuple[Part, ...] = ("finish",) if releases == "hook" else ("combine", "finish")
        if phase == "prefill":
            stages = (
                ("prepare", "attend", "send"),
                ("receive", "experts", *first),
                ("shared", *second),
            )
            return cls("tbo", stages, joins=True)
        stages = (  # the sum with the shared experts is the first kernel of the next "prepare" here
            ("prepare",),
            ("attend",),
            ("send", "shared"),
            ("receive", "experts", *first),
            second,
        )
        return cls("tbo", stages, shift=2)

    def parts(self, batch: Batch) -> Sequence[Ints]:
        """Cut a batch in two."""
        return batch.halves()

    def layers(self, replay: Replay, builder: GraphBuilder) -> Iterator[LayerTasks]:
        """Add stages until all micro-batches are through the next layer; see `Strategy`.

        A micro-batch that is ahead has stages of the layer after it by then.
        """
        links, system, able = replay.links, replay.system, as_staged(replay.scheme, self.kind)
        works = _LayerWorks(links)
        whole = works(0)
        machine = replay.machine(builder, whole, set_aside=set_aside(able, whole, system), is_shared=True)
        begin = machine.mark(machine.ranks)
        streams = StageStreams(machine, able.releases)
        bounds, of_range = [builder.num_tasks], []
        programs = [_BatchProgram(machine, able, streams, begin) for _ in links[0].micro_batches]
        first, last = programs[0], programs[-1]
        turns = first.run(0, works, self)
        if last is not first:
            turns = _in_turns(turns, last.run(1, works, self), self.shift)
        reached, begun = {0: begin}, 0
        for layer, _ in turns:
            done = len(last.finishes) - 1
            if layer == done:
                ended = machine.gather(first.finishes[done], machine.ranks, last.finishes[done])
            bounds.append(builder.num_tasks)
            of_range.append(layer)
            if layer != done:
                continue
            if done + 1 < len(links):
                reached[done + 1] = first.finishes[done]
            taken = first.memories[done]
            yield LayerTasks(
                reached=reached,
                starts=dict(enumerate(first.starts[begun:], begun)),
                finishes={done: ended},
                ends=np.unique(np.concatenate([first.ends, last.ends])),
                ranges=TaskRanges(np.array(bounds), np.array(of_range)),
                machine=machine,
                work=works(done),
                summary=works.summaries[done],
                memory=taken if last is first else beside(taken, last.memories[done]),
                through=ended,
            )
            reached, begun = {}, len(first.starts)
            bounds, of_range = [builder.num_tasks], []


class SelfOverlap(MicroBatchTurns):
    """One micro-batch of all tokens, which overlaps with itself."""

    def parts(self, batch: Batch) -> Sequence[Ints]:
        """Leave the batch whole."""
        return (np.arange(batch.num_tokens),)


DBO = MicroBatchTurns(
    "dbo",
    (
        ("prepare", "attend"),
        ("send",),
        ("receive",),
        ("experts",),
        ("combine", "shared"),
        ("finish",),
    ),
    shift=1,
)
"""vLLM's dual-batch overlap."""

SBO = SelfOverlap(
    "sbo",
    (("prepare", "attend", "send", "shared", "receive", "experts", "combine", "finish"),),
)
"""SGLang's single-batch overlap."""


class _BatchProgram(LaunchProgram):
    """Launches for one micro-batch.

    Attributes
    ----------
    starts, finishes, memories
        By layer: (rank,) tasks where the scheme begins and ends, and its memory.
    """

    def __init__(self, machine: Machine, scheme: StagedScheme, streams: StageStreams, start: Ints) -> None:
        super().__init__(machine, scheme, streams, start)
        self.starts: list[Ints] = []
        self.finishes: list[Ints] = []
        self.memories: list[Memory] = []

    def run(self, number: int, works: _LayerWorks, strategy: MicroBatchTurns) -> _Turns:
        """Add the tasks of all layers for one of the micro-batches, stage by stage."""
        notes, links = self.machine.notes, works.links
        for index, link in enumerate(links):
            batch = link.micro_batches[number]
            if not number:
                follows = index > 0 and link.is_with(links[index - 1])
                self.machine.host.next_layer(same_graph=follows)
            self.come_to(link, batch.context, works(index).of_tokens(batch.tokens))
            self.memories.append(self.memory)
            for place, stage in enumerate(strategy.stages, 1):
                notes.tokens, notes.layer = batch.tokens, index
                for part in stage:
                    self.add(part)
                    if part == "send":
                        self.starts.append(self.arrived)
                notes.tokens = None
                is_last = place == len(strategy.stages)
                if is_last:
                    self.finishes.append(self.ends)
                yield index, not (is_last and strategy.joins and index < len(links) - 1)


class _LayerWorks:
    """Work of every layer for all tokens: few are in memory at a time."""

    def __init__(self, links: Sequence[ChainLink]) -> None:
        self.links = links
        self._known: dict[int, LayerWork] = {}
        self.summaries: list[dict[str, float]] = []

    def __call__(self, layer: int) -> LayerWork:
        """Give that of one layer; micro-batches are at most one layer apart."""
        if layer not in self._known:
            self._known.pop(layer - 2, None)
            self._known[layer] = self.links[layer].work()
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
