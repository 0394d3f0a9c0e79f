"""Costs of each kind of call on the host: microseconds with their sources."""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

from hwmodel.quantity import NonNegative, Quantity
from hwmodel.units import ps_from_us
from replay.errors import UserError, value_text
from replay.model.work.kernel_lists import load, names
from tracegen.shared.strict import StrictDocument

if TYPE_CHECKING:
    from replay.model.work.kernel_lists import ListedOperation
    from replay.model.work.kernel_lists.lists import Pass


MOST_US = 1_000_000
"""Of one call."""


class CallCost(StrictDocument):
    """Host time of a call.

    Attributes
    ----------
    about
        The work that the call asks for.
    forward_us, backward_us
        Microseconds for each kernel in each pass.
    around_forward_us, around_backward_us
        Microseconds for each row of a list, however many kernels it has: the module around them.
    """

    about: str
    forward_us: Quantity[NonNegative]
    backward_us: Quantity[NonNegative]
    around_forward_us: Quantity[NonNegative] | None = None
    around_backward_us: Quantity[NonNegative] | None = None

    def us(self, direction: Pass, calls: int = 1, rows: int = 1) -> float:
        """Microseconds of calls and what is around them in a pass."""
        back = direction == "backward"
        each = self.backward_us if back else self.forward_us
        around = self.around_backward_us if back else self.around_forward_us
        return calls * each.value + (0.0 if around is None else rows * around.value)


@dataclass(frozen=True)
class CallCosts:
    """Costs of calls by their kind, on a host of some speed.

    Attributes
    ----------
    calls
        By the names of `replay.model.work.kernel_lists.lists.Call`, and *te_gemm*, *tensor*,
        *event* and *peer*.
    operators
        Those of PyTorch's operators by name, for rows that name one.
    speed
        How many times as fast the host is as the one they were measured on.
    """

    calls: Mapping[str, CallCost]
    speed: float = 1.0
    operators: Mapping[str, CallCost] = field(default_factory=dict)

    @property
    def settings(self) -> Mapping[str, str]:
        """Kind of call by the setting that replaces its cost, such as ``library_us``."""
        return {f"{name}_us": name for name in self.calls}

    def replace(self, us: Mapping[str, object]) -> CallCosts:
        """Replace costs of calls: one time for both passes, the module around them included.

        Parameters
        ----------
        us
            Whole microseconds by setting.

        Raises
        ------
        UserError
            If a time is no whole number, or more than `MOST_US`.
        """
        calls = dict(self.calls)
        for setting, value in us.items():
            if isinstance(value, bool) or not isinstance(value, int) or value > MOST_US:
                message = f"{setting} is {value_text(value)}; possible are whole microseconds, from 0 to {MOST_US:,}"
                raise UserError(message)
            name = self.settings[setting]
            each: Quantity[NonNegative] = Quantity(value=float(value), source=f"given: {setting}", confidence="user")
            calls[name] = CallCost(about=calls[name].about, forward_us=each, backward_us=each)
        return dataclasses.replace(self, calls=calls)

    def call_ps(self, call: str, direction: Pass) -> int:
        """Host time of one call of a kind."""
        return ps_from_us(self.calls[call].us(direction) / self.speed)

    def ps(self, operation: ListedOperation) -> int:
        """Host time of an operation: its calls, allocations, copies and events, but no waiting."""
        one, direction = operation, operation.direction
        if one.operator:
            each = self.operators[one.operator].us(direction)
            return ps_from_us(one.calls * each / self.speed)
        call = f"{one.call}_{one.kind}"
        calls = self.calls.get(call, self.calls[one.call])
        us = calls.us(direction, one.kernels, bool(one.kernels))
        # An operator of PyTorch makes its result itself.
        tensors = max(0, one.tensors - one.kernels) if one.call == "torch" else one.tensors
        copies = max(0, one.copies - one.waits)  # what is waited for is in overheads.host_sync_us
        for count, what in (
            (tensors, "tensor"),
            (copies, "copy"),
            (one.events, "event"),
            (one.peers, "peer"),
        ):
            us += count * self.calls[what].us(direction)
        return ps_from_us(us / self.speed)


@functools.cache
def load_costs(kernels: str, speed: float = 1.0) -> CallCosts:
    """Give the costs that ship under a kernel list, on a host of some speed.

    Lists without a backward pass serve, and have no autograd around their calls.
    """
    tables = _read("costs.toml")
    serves = kernels in names() and not load(kernels).trains
    serving = tables["serving"] if serves else {}
    calls = {**tables["any"], **serving, **tables.get(kernels, {})}
    return CallCosts(_costs(calls), speed, _costs(_read("operators.toml")))


def _costs(read: Mapping[str, Any]) -> dict[str, CallCost]:
    return {name: CallCost(**entry) for name, entry in read.items()}


@functools.cache
def _read(file: str) -> Mapping[str, Any]:
    """Every table of a file."""
    return tomllib.loads(resources.files(__package__).joinpath(file).read_text("utf-8"))
