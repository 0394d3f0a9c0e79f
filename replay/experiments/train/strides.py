"""Strides of each stage in a step: one pass over a part of the model after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Literal, NamedTuple

from replay.errors import RefusedError
from replay.experiments.train.schedules.base import Op, Schedule, ScheduleShape, Slot
from replay.steps.times import PassTime, PassTimes, StepParts

Pass = Literal["forward", "backward", "inputs", "weights", "beside"]

PASSES: tuple[Pass, ...] = ("forward", "backward", "inputs", "weights", "beside")
_OF_KIND: dict[str, Pass] = {"F": "forward", "B": "backward", "I": "inputs", "W": "weights"}


class Stride(NamedTuple):
    """A pass over one part, on all GPUs of a stage.

    Attributes
    ----------
    stage
        Where.
    name
        Which pass.
    timed
        Row of `Strides.timed`.
    micro_batch
        Of the pass; where two are made beside each other, of the forward one.
    """

    stage: int
    name: Pass
    timed: int
    micro_batch: int


class Wait(NamedTuple):
    """Wait of stride `later` for stride `earlier`, and for a message where it `crosses` stages."""

    earlier: int
    later: int
    crosses: bool


class Strides:
    """All strides of a step, laid out as a schedule orders its passes.

    Parameters
    ----------
    chunks
        (chunk,) layers of each chunk of the model.

    Attributes
    ----------
    strides
        By stage, and those of a stage in the order in which it makes them.
    timed
        Times of what strides do.
    waits
        Who waits for whom beside the stride before it on its stage.
    last
        By chunk and stage, the last stride over the chunk.

    Raises
    ------
    UserError
        If the schedule cannot be made for these sizes, or needs gradients of weights that can be
        put off and a layer's cannot.
    """

    def __init__(self, schedule: Schedule, shape: ScheduleShape, times: StepParts, chunks: Sequence[range]) -> None:
        schedule.check(shape)
        self.times, self.chunks = times, chunks
        self.num_layers = len(times.layers[0])
        self.strides: list[Stride] = []
        self.timed: list[PassTime] = []
        self.last: dict[tuple[int, int], int] = {}
        self._rows: dict[tuple[int, int, Pass], int] = {}
        self._slots: dict[Op, tuple[int, int]] = {}  # first and last stride of each pass's slot
        for stage, slots in enumerate(schedule.order(shape)):
            for slot in slots:
                self._add(stage, slot)
        self.waits = [
            Wait(self._slots[one][1], first, self._stage_of(one) != self._stage_of(op))
            for op, (first, _) in self._slots.items()
            for one in self._needs(op)
        ]

    def _stage_of(self, op: Op) -> int:
        return self.strides[self._slots[op][0]].stage

    def _add(self, stage: int, slot: Slot) -> None:
        """Lay out a slot: its passes wait for the inputs of all, and go on when all have ended."""
        first = len(self.strides)
        if [op.kind for op in slot] == ["F", "B"] and self._pairs(*slot):
            self._add_beside(stage, *slot)
        else:
            for op in slot:
                for part in self._parts(op):
                    self._add_alone(stage, op, part)
        last = len(self.strides) - 1
        if last < first:
            return  # gradients of weights that the other half of the pass had already
        for op in slot:
            self._slots[op] = first, last
            self.last[op.chunk, stage] = last

    def _needs(self, op: Op) -> Iterator[Op]:
        """Passes that a pass waits for: the chunk before it, or behind it, and its own other half."""
        _, chunk, micro_batch = op
        if op.kind == "W":
            yield Op("I", chunk, micro_batch)
        elif op.kind == "F":
            if chunk:
                yield Op("F", chunk - 1, micro_batch)
        else:
            yield Op("F", chunk, micro_batch)
            if chunk + 1 < len(self.chunks):
                whole = Op("B", chunk + 1, micro_batch)
                yield whole if whole in self._slots else whole._replace(kind="I")

    # ---- strides ---------------------------------------------------------------------------------

    def _add_alone(self, stage: int, op: Op, part: int) -> None:
        name = _OF_KIND[op.kind]
        if name in ("inputs", "weights") and self._part(part, op.micro_batch).inputs is None:
            if 0 <= part < self.num_layers:
                message = (
                    "the schedule puts gradients of weights off, and this scheme makes them "
                    "together with those of inputs"
                )
                raise RefusedError(message)
            if name == "weights":
                return  # the other half had all of it
            name = "backward"
        self._append(stage, name, part, op.micro_batch)

    def _add_beside(self, stage: int, forward: Op, backward: Op) -> None:
        """Layers in pairs where two can be made beside each other; what has no partner, alone."""
        both = self._layers(forward), self._layers(backward)
        for turn, op in enumerate((forward, backward)):  # embedding of one, head of the other
            if self._parts(op)[0] not in both[turn]:
                self._add_alone(stage, op, self._parts(op)[0])
        for one, other in zip_longest(*both):
            if one is not None and other is not None and self._fit(one, forward, other, backward):
                self._append(stage, "beside", one, forward.micro_batch)
                continue
            if one is not None:
                self._add_alone(stage, forward, one)
            if other is not None:
                self._add_alone(stage, backward, other)
        for turn, op in enumerate((forward, backward)):
            if both[turn] and self._parts(op)[-1] not in both[turn]:
                self._add_alone(stage, op, self._parts(op)[-1])

    def _append(self, stage: int, name: Pass, part: int, micro_batch: int) -> None:
        is_layer = 0 <= part < self.num_layers
        key = (micro_batch % len(self.times.layers) if is_layer else 0, part, name)
        if key not in self._rows:
            timed = getattr(self._part(part, micro_batch), name)
            assert timed is not None
            self._rows[key] = len(self.timed)
            self.timed.append(timed)
        self.strides.append(Stride(stage, name, self._rows[key], micro_batch))

    # ---- parts -----------------------------------------------------------------------------------

    def _layers(self, op: Op) -> list[int]:
        """Layers of a pass, in the order in which it comes to them."""
        layers = list(self.chunks[op.chunk])
        return layers if op.kind == "F" else layers[::-1]

    def _parts(self, op: Op) -> list[int]:
        """The same with the embedding, as part -1, and the head, as the one past all layers."""
        parts = list(self.chunks[op.chunk])
        if op.chunk == 0:
            parts.insert(0, -1)
        if op.chunk == len(self.chunks) - 1:
            parts.append(self.num_layers)
        return parts if op.kind == "F" else parts[::-1]

    def _part(self, part: int, micro_batch: int) -> PassTimes:
        if part < 0:
            return self.times.embedding
        if part == self.num_layers:
            return self.times.head
        return self.times.layers[micro_batch % len(self.times.layers)][part]

    def _fit(self, one: int, forward: Op, other: int, backward: Op) -> bool:
        """Tell whether a layer can be made forward beside another one backward."""
        ahead = self._part(one, forward.micro_batch)
        back = self._part(other, backward.micro_batch)
        return ahead.beside is not None and back.beside is not None

    def _pairs(self, forward: Op, backward: Op) -> bool:
        """Tell whether any layers of two passes can be made beside each other."""
        both = zip(self._layers(forward), self._layers(backward), strict=False)
        return any(self._fit(one, forward, other, backward) for one, other in both)
