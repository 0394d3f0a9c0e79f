"""Slots of a stage, one after another: each pass takes the next micro-batch of its chunk."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from replay.experiments.train.schedules.base import Kind, Op, Slot


class StageLine:
    """Slots of a stage, in the order in which they are added.

    Parameters
    ----------
    micro_batches
        By chunk of the stage, the micro-batches that pass it, in order.
    """

    def __init__(self, micro_batches: Mapping[int, Sequence[int]]) -> None:
        self._ahead = {chunk: iter(numbers) for chunk, numbers in micro_batches.items()}
        self._back = {chunk: iter(numbers) for chunk, numbers in micro_batches.items()}
        self._put_off: deque[Op] = deque()
        self.slots: list[Slot] = []

    def forward(self, chunk: int) -> None:
        """Make the next forward pass over a chunk."""
        self.slots.append((self._forward(chunk),))

    def backward(self, chunk: int) -> None:
        """Make the next backward pass over a chunk, whole."""
        self.slots.append((self._backward("B", chunk),))

    def beside(self, ahead: int, back: int) -> None:
        """Make the next forward pass over one chunk beside the next backward pass over another."""
        self.slots.append((self._forward(ahead), self._backward("B", back)))

    def inputs(self, chunk: int) -> None:
        """Make gradients of inputs alone; those of weights are put off."""
        op = self._backward("I", chunk)
        self._put_off.append(op._replace(kind="W"))
        self.slots.append((op,))

    def weights(self) -> None:
        """Make the gradients of weights that were put off first."""
        self.slots.append((self._put_off.popleft(),))

    def rest(self) -> None:
        """Make all gradients of weights that were put off."""
        while self._put_off:
            self.weights()

    def _forward(self, chunk: int) -> Op:
        return Op("F", chunk, next(self._ahead[chunk]))

    def _backward(self, kind: Kind, chunk: int) -> Op:
        return Op(kind, chunk, next(self._back[chunk]))
