"""What each kind of call takes the host: microseconds with their sources."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from hwmodel.quantity import NonNegative, Quantity
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


@dataclass(frozen=True)
class CallCosts:
    """Costs of calls by their kind, on a host of some speed.

    Attributes
    ----------
    calls
        By the names of `replay.model.work.kernel_lists.lists.Call`, and *tensor* and *event*.
    speed
        How many times as fast the host is as the one they were measured on.
    """

    calls: Mapping[str, CallCost]
    speed: float = 1.0

    def call_ps(self, call: str, direction: Pass) -> int:
        """Host time of one call of a kind."""
        return ps_from_us(self.calls[call].us(direction) / self.speed)

    def ps(self, operation: ListedOperation) -> int:
        """Host time of an operation: its calls, allocations, copies and events, but no waiting."""
        one = operation
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
    text = resources.files(__package__).joinpath("costs.toml").read_text("utf-8")
    found = {name: CallCost(**entry) for name, entry in tomllib.loads(text).items()}
    return CallCosts(found, speed)
