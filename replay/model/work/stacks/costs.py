"""What each kind of call takes the host: microseconds with their sources."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from hwmodel.quantity import NonNegative, Positive, Quantity
from hwmodel.units import ps_from_us
from tracegen.shared.strict import StrictDocument

if TYPE_CHECKING:
    from replay.model.work.kernel_lists import ListedOperation
    from replay.model.work.kernel_lists.lists import Pass


class CallCost(StrictDocument):
    """Host time of a call.

    Attributes
    ----------
    about
        What it is a call of.
    forward_us, backward_us
        Microseconds in each pass.
    """

    about: str
    forward_us: Quantity[NonNegative]
    backward_us: Quantity[NonNegative]

    def us(self, direction: Pass) -> float:
        """Microseconds in a pass."""
        return (self.backward_us if direction == "backward" else self.forward_us).value


class Slowdown(StrictDocument):
    """How many times its time by itself an operator takes a host among others.

    Attributes
    ----------
    about
        Why.
    forward, backward
        In each pass.
    """

    about: str
    forward: Quantity[Positive]
    backward: Quantity[Positive]

    def of(self, direction: Pass) -> float:
        """In a pass."""
        return (self.backward if direction == "backward" else self.forward).value


@dataclass(frozen=True)
class CallCosts:
    """Costs of calls by their kind, on a host of some speed.

    Attributes
    ----------
    calls
        By the names of `replay.model.work.kernel_lists.lists.Call`, and *tensor* and *event*.
    operators
        Those of PyTorch's operators by name, each by itself, for rows that name one.
    among_others
        What they take in a model, over that.
    speed
        How many times as fast the host is as the one they were measured on.
    """

    calls: Mapping[str, CallCost]
    operators: Mapping[str, CallCost]
    among_others: Slowdown
    speed: float = 1.0

    def call_ps(self, call: str, direction: Pass) -> int:
        """Host time of one call of a kind."""
        return ps_from_us(self.calls[call].us(direction) / self.speed)

    def ps(self, operation: ListedOperation) -> int:
        """Host time of an operation: its calls, allocations, copies and events, but no waiting."""
        one = operation
        if one.operator:
            each = self.operators[one.operator].us(one.direction)
            slower = self.among_others.of(one.direction) / self.speed
            return ps_from_us(one.calls * each * slower)
        # An operator of PyTorch makes its result itself.
        tensors = max(0, one.tensors - one.kernels) if one.call == "torch" else one.tensors
        parts = (
            (one.kernels, one.call),
            (tensors, "tensor"),
            (one.copies, "copy"),
            (one.events, "event"),
        )
        us = sum(count * self.calls[call].us(one.direction) for count, call in parts if count)
        return ps_from_us(us / self.speed)


@functools.cache
def load_costs(speed: float = 1.0) -> CallCosts:
    """Give the costs that ship, on a host of some speed."""
    operators = _read("operators.toml")
    slowdown = Slowdown(**operators.pop("among_others"))
    return CallCosts(_costs(_read("costs.toml")), _costs(operators), slowdown, speed)


def _costs(read: Mapping[str, Any]) -> dict[str, CallCost]:
    return {name: CallCost(**entry) for name, entry in read.items()}


def _read(file: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(file).read_text("utf-8"))
