"""Program of a host: launches of the parts of layers, for one micro-batch or one pass."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from replay.chains.chain import check_code_for, faults_of
from replay.chains.kernel_streams import KernelSpan
from replay.chains.memory import memory_of
from replay.model.machine.host import OUTSIDE
from replay.model.machine.kinds import Kind
from replay.model.machine.times import Time
from replay.schemes.ep.staged_schemes import STAGES, Stage

if TYPE_CHECKING:
    from replay.chains.chain import ChainLink
    from replay.chains.kernel_streams import Occupation, StageStreams
    from replay.measure.parts import Memory
    from replay.model.arrays import Ints
    from replay.model.compute.dense import Between
    from replay.model.compute.dense_kernels import Weights
    from replay.model.machine.machine import Machine
    from replay.model.work.context import Context
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.staged_schemes import StagedScheme, Stages

Part = Stage | Literal["prepare", "attend", "shared"]
"""A stage of a scheme, or a part of `replay.model.compute.dense.Between`, which lies before it."""

PairPart = Part | Literal["weights", "shared weights", "attention weights"]
"""A part of a pass; the last three are gradients of weights that a backward pass has put off."""


class LaunchProgram:
    """Launches for one micro-batch or pass, layer after layer, behind those of their streams.

    Attributes
    ----------
    machine
        Resources of the GPUs.
    ends
        (rank,): tasks that end its last part, for which later parts wait.
    reached, arrived, started, through
        (rank,): tasks of the layer at which each GPU comes to it, behind which its tokens are ready
        for the scheme, at which its first stage begins, and after which all parts so far are over.
    memory
        Device memory of the layer.
    spans
        Kernels of the layer.
    """

    def __init__(self, machine: Machine, scheme: StagedScheme, streams: StageStreams, start: Ints) -> None:
        self.machine, self._scheme, self._streams = machine, scheme, streams
        self.ends = self.reached = self.arrived = self.started = self.through = start
        self.memory: Memory
        self.spans: list[KernelSpan] = []
        self._link: ChainLink
        self._context: Context | None
        self._work: LayerWork
        self._stages: Stages
        self._ready = start  # when shared experts have what they read
        self._computed = start  # when weights have theirs
        self._between: dict[Weights, Between] = {}

    def come_to(self, link: ChainLink, context: Context | None, work: LayerWork) -> None:
        """Go on to the next layer; a GPU that is held up launches nothing of it meanwhile.

        Parameters
        ----------
        context, work
            Of the micro-batch.
        """
        self._link, self._context, self._work, self.spans = link, context, work, []
        self.reached = self.ends
        if link.delays_ps is not None:
            self.ends = self.machine.delay(Kind.DELAY, Time(link.delays_ps), self.ends)
        self._ready = self.ends
        with faults_of(self._scheme):
            check_code_for(self._scheme, work, self.machine.system)
            self.memory = memory_of(work, self.machine.system, self._scheme)
        if (between := link.between) is not None:
            put_off: tuple[Weights, ...] = ("put off", "alone") if link.is_backward else ()
            self._between = {one: dataclasses.replace(between, weights=one) for one in put_off}
            self._between["with"] = between

    def add(self, part: PairPart) -> None:
        """Add the kernels of a part."""
        if part in STAGES:
            self._stage(part)
        elif part == "weights":
            begun = self._streams.compute.next(self._computed)
            self.machine.host.enter("experts", is_backward=True)
            with faults_of(self._scheme):
                ended = self._scheme.weight_gradients(self._work, self.machine, begun)
            self._end("experts", begun, ended)
        elif self._between:
            self._dense(part)

    def _stage(self, stage: Stage) -> None:
        ready = self.ends
        with faults_of(self._scheme):
            if stage == STAGES[0]:
                self.arrived, stream = ready, self._streams.of(stage)
                self.started = ready = self.machine.enter(stage, stream.next(ready), is_backward=self._link.is_backward)
                self._stages = self._scheme.stages(self._work, self.machine, ready)
            ran = self._streams.run(self._stages, stage, ready, is_backward=self._link.is_backward)
        self.ends = self.through = ran.ended
        if stage == "experts":
            self._computed = ran.ended
        self.spans.append(ran)

    def _dense(self, part: PairPart) -> None:
        """Add a part of what lies between MoE layers."""
        link, machine, context = self._link, self.machine, self._context
        machine.host.enter(OUTSIDE, is_backward=link.is_backward)
        between = self._between["alone" if part.endswith("weights") else self._main]
        assert context is not None
        is_shared = part.startswith("shared")
        begun = self._streams.compute.next(self._ready if is_shared else self.ends)
        if is_shared:  # beside what the rows do
            self._end("dense", begun, between.shared_experts(machine, context, begun))
            return
        ended = begun
        if part != "attend":
            ended = between.prepare(machine, link.decoder_layer, context, ended)
        if part != "prepare":
            ended = between.attend(machine, context, ended)
        self._end("attention", begun, ended)
        self.ends = ended
        if part == "attend" and not link.is_backward:
            self._ready = ended

    @property
    def _main(self) -> Weights:
        return "put off" if self._link.is_backward else "with"

    def _end(self, of: Occupation, begun: Ints, ended: Ints) -> None:
        """Remember kernels of the stream that computes."""
        self.spans.append(KernelSpan(of, begun, ended))
        self.through = self._streams.compute.remember_ends(ended)
