"""A forward pass beside a backward pass: a layer of the one with a layer of the other.

Two micro-batches of a training step run side by side, the one forward from the first layer to the
last, the other backward from the last to the first; each has all tokens of its batch and a routing
of its own. One host thread per GPU launches parts of the two in the order that an engine has for a
pair of layers (`ORDERS`). Kernels that compute have one stream, those that move rows another with
SMs of their own. What overlaps follows from who waits for whom: rows of the one travel while the
other computes, if it has enough to compute.

The backward pass makes gradients of inputs first, which others wait for; those of weights are parts
of their own, which nothing waits for. The gradients' way to the experts is what the combine's
backward pass moves, and their way back the dispatch's.

Sources of the orders: the profile that DeepSeek publishes of DualPipe (deepseek-ai/profile-data,
train.json); NVIDIA/Megatron-LM, ``core/models/common/model_chunk_schedule_plan.py`` (what runs in
which order) and ``core/models/gpt/fine_grained_callables.py`` (what belongs to which part).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.chains.chain import LayerTasks, TaskRanges, mean_of
from replay.chains.kernel_streams import (
    COMPUTE,
    StageStreams,
    StreamUse,
    as_staged,
    set_aside,
    stream_use,
)
from replay.chains.launch_program import LaunchProgram
from replay.chains.listed_pairs import ListedProgram, PassesInTurn
from replay.chains.memory import beside
from replay.chains.replay import ONE_BATCH, Strategy
from replay.chains.results import Moments
from replay.engine import schedule
from replay.errors import UserError
from replay.measure.activity import Activity, activity_of
from replay.measure.result import Pairs
from replay.measure.token_latency import us
from replay.model.machine.machine import Machine
from replay.schemes.ep.staged_schemes import ListedExchanges

if TYPE_CHECKING:
    from replay.chains.kernel_streams import Occupation
    from replay.chains.launch_program import PairPart
    from replay.chains.replay import Replay
    from replay.chains.results import ChainMeasures
    from replay.engine import GraphBuilder
    from replay.model.arrays import Ints, Picoseconds
    from replay.model.work.stacks import Stack
    from replay.schemes import Scheme
    from replay.schemes.ep.staged_schemes import Interleave, StagedScheme


@dataclass(frozen=True)
class PassPairs(Strategy):
    """Layers of a forward pass and of the backward pass beside it, which are links in turn.

    Attributes
    ----------
    kind
        Name of the order.
    launches
        Launches in order: whether each is of the backward pass, and its parts.
    """

    kind: Interleave
    launches: tuple[tuple[bool, tuple[PairPart, ...]], ...]

    def sequence(
        self, num_batches: int, passes: Sequence[bool], positions: Sequence[int]
    ) -> list[tuple[int, bool, int]]:
        """Put each step's backward pass beside the next step's forward pass; see `Strategy`.

        A step alone is beside itself.
        """
        del passes
        ahead = int(num_batches > 1)
        return [
            layer
            for batch in range(num_batches - ahead)
            for forward, backward in zip(positions, reversed(positions), strict=True)
            for layer in ((batch + ahead, False, forward), (batch, True, backward))
        ]

    def trial(self, replay: Replay) -> Replay:
        """Give the first pair, which has what lies between layers in it."""
        return dataclasses.replace(replay, links=replay.links[:2])

    def pairs(self, replay: Replay, measures: ChainMeasures) -> Pairs:
        """Times of a pair, and of the same layers one pass after the other."""
        forward, backward = replay.links[::2], replay.links[1::2]
        number, moments = len(forward), Moments()
        links = [*forward, *backward]
        in_turn = PassesInTurn() if _kernel_list(replay.scheme) else ONE_BATCH
        dataclasses.replace(replay, links=links, strategy=in_turn).stream(moments)
        use = stream_use(measures.spans, len(measures.through_ps))

        def each(times: Ints) -> list[float]:
            return [us(one) / number for one in times.tolist()]

        return Pairs(
            pair_us=each(measures.through_ps),
            sequence_us=each(moments.through),
            forward_us=each(moments.finishes[number - 1]),
            busy_us={of: each(times) for of, times in use.busy_ps.items()},
            both_us=each(use.both_ps),
        )

    def layers(self, replay: Replay, builder: GraphBuilder) -> Iterator[LayerTasks]:
        """Add layers to a graph, pair by pair; see `Strategy`."""
        links, system, able = replay.links, replay.system, as_staged(replay.scheme, self.kind)
        work = links[0].work()
        machine = replay.machine(builder, work, set_aside=set_aside(able, work, system), is_shared=True)
        start = machine.mark(machine.ranks)
        streams = StageStreams(machine, able.releases)
        passes = [self._program(machine, able, streams, start, replay.stack) for _ in range(2)]
        num_pairs = len(links) // 2
        for number in range(num_pairs):
            machine.host.next_layer(same_graph=number > 0)
            works = []
            for one, link in zip(passes, links[2 * number :][:2], strict=True):
                work = link.work()
                works.append(work.putting_off_weights() if link.is_backward else work)
                one.come_to(link, link.context, works[-1])
            bounds, of_range = [builder.num_tasks], []
            for is_backward, parts in self.launches:
                machine.notes.layer = 2 * number + is_backward
                for part in parts:
                    passes[is_backward].add(part)
                bounds.append(builder.num_tasks)
                of_range.append(2 * number + is_backward)
            through = machine.gather(passes[0].through, machine.ranks, passes[1].through)
            bounds[-1] = builder.num_tasks
            ends = [one.ends for one in passes]
            lasts = (streams.compute.last, streams.moving.last)
            yield LayerTasks(
                reached={place: one.reached for place, one in enumerate(passes, 2 * number)},
                starts={place: one.started for place, one in enumerate(passes, 2 * number)},
                finishes={place: one.through for place, one in enumerate(passes, 2 * number)},
                ends=np.unique(np.concatenate([through, *ends, *(of for of in lasts if of is not None)])),
                ranges=TaskRanges(np.array(bounds), np.array(of_range)),
                machine=machine,
                work=works[1],
                summary=mean_of([one.summary() for one in works]),
                memory=beside(passes[0].memory, passes[1].memory),
                through=through,
                spans=(*passes[0].spans, *passes[1].spans),
            )

    def _program(
        self,
        machine: Machine,
        scheme: StagedScheme,
        streams: StageStreams,
        start: Ints,
        stack: Stack | None,
    ) -> LaunchProgram:
        if not (name := _kernel_list(scheme)):
            return LaunchProgram(machine, scheme, streams, start)
        if self.kind != "dualpipe":
            raise UserError(f"stack {name!r} launches pairs in the order dualpipe, and {self.kind} was asked for")
        assert isinstance(scheme, ListedExchanges)
        return ListedProgram(machine, scheme, streams, start, stack)


def _kernel_list(scheme: Scheme) -> str:
    """Name of the list that has the kernels around a scheme's exchanges; empty if none has."""
    return scheme.kernel_list if isinstance(scheme, ListedExchanges) else ""


FORWARD, BACKWARD = False, True
ORDERS: Mapping[str, PassPairs] = {
    "dualpipe": PassPairs(
        "dualpipe",
        (
            (BACKWARD, ("send", "receive")),  # combine(B): the gradients' way to the experts
            (FORWARD, ("prepare", "attend", "send")),  # attn(F)
            (BACKWARD, ("shared", "experts")),  # mlp(B)
            (FORWARD, ("receive",)),  # dispatch(F)
            (BACKWARD, ("combine",)),  # dispatch(B): their way back
            (BACKWARD, ("weights", "shared weights")),  # mlp(W)
            (FORWARD, ("shared", "experts")),  # mlp(F)
            (BACKWARD, ("finish", "attend", "prepare")),  # attn(B)
            (BACKWARD, ("attention weights",)),  # attn(W)
            (FORWARD, ("combine", "finish")),  # combine(F)
        ),
    ),
    "megatron": PassPairs(
        "megatron",
        (
            (BACKWARD, ("send", "receive")),  # combine_bwd
            (FORWARD, ("prepare", "attend", "shared", "send")),  # attn_fwd
            (BACKWARD, ("experts",)),  # mlp_bwd
            (FORWARD, ("receive",)),  # dispatch_fwd
            (BACKWARD, ("weights",)),  # mlp_bwd_dw
            (BACKWARD, ("combine",)),  # dispatch_bwd
            (FORWARD, ("experts",)),  # mlp_fwd
            (FORWARD, ("combine",)),  # combine_fwd
            (BACKWARD, ("finish", "shared", "attend", "prepare")),  # attn_bwd
            (BACKWARD, ("attention weights", "shared weights")),
            (FORWARD, ("finish",)),
        ),
    ),
}
"""Orders of a layer pair. DualPipe's is that of its profile, in which where shared experts run is
not told apart: they are taken for a part of mlp. Megatron-LM has them with attention, and its
``delay_wgrad_compute`` is on. Sums behind a combine are of the next part that computes."""


class PairTimes(NamedTuple):
    """Times of a layer of a forward pass beside one of a backward pass, from a common start.

    Attributes
    ----------
    ends_ps
        (rank,): when each GPU has done both, gradients of weights included; in picoseconds.
    use
        What its streams were busy with until then.
    activity
        Kernels that ran.
    """

    ends_ps: Picoseconds
    use: StreamUse
    activity: Activity

    @property
    def busy_ps(self) -> dict[Occupation, Ints]:
        """(rank,): time of the stream that computes, by what it is busy with."""
        return {one: self.use.busy_ps[one] for one in COMPUTE}

    @property
    def exposed_ps(self) -> Picoseconds:
        """(rank,): time in which nothing computes."""
        return self.ends_ps - self.use.computing_ps


def pair_times(replay: Replay) -> PairTimes:
    """Replay a pair of layers by itself: those of a replay whose strategy is one of `ORDERS`.

    Raises
    ------
    UserError, LayerRefusedError
        As `Strategy.layers` does.
    """
    graph = replay.build()
    timeline = schedule(graph.built.graph)
    visible = timeline.visible_ps
    spans = [one.at(visible) for one in graph.spans[0]]
    ends = visible[graph.built.ends]
    activity = activity_of(graph.built.machine, ends, timeline)
    return PairTimes(ends, stream_use(spans, len(ends)), activity)
