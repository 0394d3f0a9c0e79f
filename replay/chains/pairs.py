"""A forward pass beside a backward pass: a layer of the one with a layer of the other.

Two micro-batches of a training step run side by side, the one forward from the first layer to the
last, the other backward from the last to the first; each has all tokens of its batch and a routing
of its own. One host thread per GPU launches parts of the two in the order that an engine has for a
pair of layers (`replay.chains.strategies.ORDERS`). Kernels that compute have one stream, those that
move rows another with SMs of their own. What overlaps follows from who waits for whom: rows of the
one travel while the other computes, if it has enough to compute.

The backward pass makes gradients of inputs first, which others wait for; those of weights are parts
of their own, which nothing waits for. The gradients' way to the experts is what the combine's
backward pass moves, and their way back the dispatch's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.chains.chain import Added, Chain, Pieces, check_code_for, faults_of, joined
from replay.chains.memory import beside as memory_beside
from replay.chains.memory import memory_of
from replay.chains.occupied import COMPUTE, Occupied, Span, Timed, occupied
from replay.chains.strategies import ORDERS, staged
from replay.chains.streams import Streams, set_aside
from replay.chains.summaries import mean_of
from replay.engine import GraphBuilder, schedule
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.machine.times import NO_TIME, Time
from replay.schemes.ep.staged import MOVING, STAGES

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.chain import ChainLink
    from replay.chains.occupied import Occupation
    from replay.chains.strategies import PairOrder, PairPart
    from replay.measure.parts import Memory
    from replay.model.compute.dense import Between
    from replay.model.compute.dense_kernels import Weights
    from replay.model.machine.host import Launch
    from replay.model.machine.machine import Ints
    from replay.model.work.layer import LayerWork
    from replay.schemes import Scheme
    from replay.schemes.ep.staged import Interleave, Stage, StagedScheme, Stages


class _Pass:
    """One of the two passes, layer after layer.

    Attributes
    ----------
    ends
        (rank,): what its last part ended with that later ones need.
    reached, started, through
        (rank,): tasks of the layer at which each GPU comes to it, at which its first stage begins,
        and after which all parts so far are over.
    memory
        Of the layer.
    spans
        Kernels that were added since the layer before.
    """

    def __init__(
        self, machine: Machine, scheme: StagedScheme, streams: Streams, start: Ints
    ) -> None:
        self._machine, self._scheme, self._streams = machine, scheme, streams
        self.ends = self.reached = self.started = self.through = start
        self.memory: Memory
        self.spans: list[Span] = []
        self._link: ChainLink
        self._work: LayerWork
        self._stages: Stages
        self._ready = start  # when shared experts have what they read
        self._computed = start  # when weights have theirs
        self._between: dict[Weights, Between] = {}

    def come_to(self, link: ChainLink, work: LayerWork) -> None:
        """Go on to the next layer."""
        self._link, self._work, self.spans = link, work, []
        self.reached = self._ready = self.ends
        with faults_of(self._scheme):
            check_code_for(self._scheme, work, self._machine.system)
            self.memory = memory_of(work, self._machine.system, self._scheme)
        if (between := link.between) is not None:
            ways: tuple[Weights, ...] = ("put off", "alone") if link.is_backward else ("with",)
            self._between = {one: dataclasses.replace(between, weights=one) for one in ways}

    def add(self, part: PairPart) -> None:
        """Add the kernels of a part behind those of its stream."""
        if part in STAGES:
            self._stage(part)
        elif part == "weights":
            begun = self._streams.compute.next(self._computed)
            with faults_of(self._scheme):
                ended = self._scheme.weight_gradients(self._work, self._machine, begun)
            self._end("experts", begun, ended)
        elif self._between:
            self._dense(part)

    def _stage(self, stage: Stage) -> None:
        with faults_of(self._scheme):
            if stage == STAGES[0]:
                self.started = self._streams.of(stage).next(self.ends)
                self._stages = self._scheme.stages(self._work, self._machine, self.started)
                ran = self._streams.run(self._stages, stage, self.started)
            else:
                ran = self._streams.run(self._stages, stage, self.ends)
        self.ends = self.through = ran.ended
        if stage == "experts":
            self._computed = ran.ended
        self.spans.append(Span("rows" if stage in MOVING else "experts", *ran))

    def _dense(self, part: PairPart) -> None:
        """Add a part of what lies between MoE layers."""
        link, machine, compute = self._link, self._machine, self._streams.compute
        between = self._between["alone" if part.endswith("weights") else self._main]
        assert link.context is not None
        is_shared = part.startswith("shared")
        begun = compute.next(self._ready if is_shared else self.ends)
        if is_shared:
            self._end("dense", begun, between.shared_experts(machine, link.context, begun))
            return
        ended = begun
        if part != "attend":
            ended = between.prepare(machine, link.decoder_layer, link.context, ended)
        if part != "prepare":
            ended = between.attend(machine, link.context, ended)
        self._end("attention", begun, ended)
        self.ends = ended
        if part == "attend" and not link.is_backward:
            self._ready = ended

    @property
    def _main(self) -> Weights:
        return "put off" if self._link.is_backward else "with"

    def _end(self, of: Occupation, begun: Ints, ended: Ints) -> None:
        """Remember kernels of the stream that computes."""
        self.spans.append(Span(of, begun, ended))
        self.through = self._streams.compute.ended(ended)


def build(
    links: Sequence[ChainLink],
    system: System,
    scheme: Scheme,
    order: PairOrder,
    launch: Launch | None = None,
    *,
    lead: Time = NO_TIME,
    progress: Callable[[], object] | None = None,
) -> Chain:
    """Let a scheme describe pairs of layers; parameters are those of `layers`."""
    builder = GraphBuilder(KIND_NAMES)
    return joined(
        layers(links, system, scheme, order, builder, launch, lead=lead), builder, progress
    )


def layers(
    links: Sequence[ChainLink],
    system: System,
    scheme: Scheme,
    order: PairOrder,
    builder: GraphBuilder,
    launch: Launch | None = None,
    *,
    lead: Time = NO_TIME,
) -> Iterator[Added]:
    """Add layers to a graph, a pair each time that the next one is asked for.

    Parameters
    ----------
    links
        A layer of the forward pass and the layer of the backward pass beside it, in turn.
    order
        In which order parts of a pair are launched.
    launch, lead
        As in `replay.chains.chain.build`.

    Raises
    ------
    UserError
        If the scheme leaves no SM to the kernels that compute.
    LayerRefusedError
        If it has no stages, no stream of its own for rows, or no code for a layer.
    """
    able = staged(scheme, order.kind)
    work = links[0].work()
    machine = Machine(
        system, builder, work.num_ranks, able.uplinks, launch, lead,
        set_aside(able, work, system), work.sample,
    )  # fmt: skip
    start = machine.mark(machine.ranks)
    streams = Streams(machine, able.releases)
    passes = [_Pass(machine, able, streams, start) for _ in range(2)]
    num_pairs = len(links) // 2
    for number in range(num_pairs):
        machine.host.next_layer(same_graph=number > 0)
        works = []
        for one, link in zip(passes, links[2 * number :][:2], strict=True):
            work = link.work()
            works.append(work.putting_off_weights() if link.is_backward else work)
            one.come_to(link, works[-1])
        bounds, of_piece = [builder.num_tasks], []
        for is_backward, parts in order.launches:
            machine.notes.layer = 2 * number + is_backward
            for part in parts:
                passes[is_backward].add(part)
            bounds.append(builder.num_tasks)
            of_piece.append(2 * number + is_backward)
        through = machine.gather(passes[0].through, machine.ranks, passes[1].through)
        bounds[-1] = builder.num_tasks
        lasts = (streams.compute.last, streams.moving.last)
        yield Added(
            reached={2 * number + place: one.reached for place, one in enumerate(passes)},
            starts={2 * number + place: one.started for place, one in enumerate(passes)},
            finishes={2 * number + place: one.through for place, one in enumerate(passes)},
            ends=np.unique(
                np.concatenate(
                    [
                        through,
                        *(one.ends for one in passes),
                        *(of for of in lasts if of is not None),
                    ]
                )
            ),
            pieces=Pieces(np.array(bounds), np.array(of_piece)),
            machine=machine,
            work=works[1],
            summary=mean_of([one.summary() for one in works]),
            memory=memory_beside(passes[0].memory, passes[1].memory),
            through=through,
            spans=(*passes[0].spans, *passes[1].spans),
        )


class Beside(NamedTuple):
    """A layer of a forward pass beside one of a backward pass, from a common start.

    Attributes
    ----------
    ends_ps
        (rank,): when each GPU has done both, gradients of weights included; in picoseconds.
    occupied
        What its streams were busy with until then.
    """

    ends_ps: Ints
    occupied: Occupied

    @property
    def busy_ps(self) -> dict[Occupation, Ints]:
        """(rank,): what the stream that computes is busy with."""
        return {one: self.occupied.busy_ps[one] for one in COMPUTE}

    @property
    def exposed_ps(self) -> Ints:
        """(rank,): time in which nothing computes."""
        return self.ends_ps - self.occupied.computing_ps


def beside(
    forward: ChainLink,
    backward: ChainLink,
    system: System,
    scheme: Scheme,
    kind: Interleave,
    launch: Launch | None = None,
) -> Beside:
    """Replay a pair of layers by itself.

    Parameters
    ----------
    forward, backward
        A layer of each pass, with what lies before or behind it.
    kind
        Order of launches, a key of `replay.chains.strategies.ORDERS`.
    launch
        How hosts launch kernels, see `Host`.

    Raises
    ------
    UserError
        As `layers` does.
    """
    chain = build([forward, backward], system, scheme, ORDERS[kind], launch)
    visible = schedule(chain.built.graph).visible_ps
    spans = [Timed(one.of, visible[one.begun], visible[one.ended]) for one in chain.spans[0]]
    ends = visible[chain.built.ends]
    return Beside(ends, occupied(spans, len(ends)))
