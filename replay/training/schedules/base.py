"""What a schedule of a pipeline is: who holds which layers, and in which order passes are made.

A schedule knows no time. Where a pass is made, and after which other pass of the same stage, is all
that it says; the engine decides when.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

Kind = Literal["F", "B", "I", "W"]
"""A pass over a chunk: forward (F), backward (B), or the backward pass in two: gradients of inputs
(I) and, later, gradients of weights (W)."""


class Op(NamedTuple):
    """One pass of one micro-batch over one chunk of the model; chunk 0 has the first layers."""

    kind: Kind
    chunk: int
    micro_batch: int


Slot = tuple[Op, ...]
"""Passes that a stage makes at a time: one, or a forward beside a backward pass (F before B)."""


class Shape(NamedTuple):
    """Sizes that a schedule is made for.

    Attributes
    ----------
    stages
        Stages of the pipeline.
    chunks
        Chunks of the model that each stage holds (`Plan.vpp`); for a bidirectional schedule, of
        each direction.
    micro_batches
        Of a step.
    """

    stages: int
    chunks: int
    micro_batches: int

    @property
    def model_chunks(self) -> int:
        """Chunks that the model is cut into."""
        return self.stages * self.chunks


class Schedule(ABC):
    """An order of passes.

    Attributes
    ----------
    name, summary, source
        What it is called, does, and is taken from.
    splits_backward
        Whether gradients of weights are passes of their own (I and W in place of B).
    copies
        Stages that hold each chunk, with its weights.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    splits_backward: ClassVar[bool] = False
    copies: ClassVar[int] = 1

    @abstractmethod
    def stage_of(self, shape: Shape, chunk: int, micro_batch: int) -> int:
        """Stage that makes a micro-batch's passes over a chunk."""

    @abstractmethod
    def order(self, shape: Shape) -> list[list[Slot]]:
        """Give the slots of every stage, in order: every pass of every micro-batch once."""

    def refuses(self, shape: Shape) -> str:
        """Why it cannot be made for these sizes, and what is possible; nothing where it can."""
        del shape
        return ""

    @abstractmethod
    def in_flight(self, shape: Shape, stage: int) -> float:
        """Chunks' activations that a stage keeps at most, in activations of one chunk of it."""
