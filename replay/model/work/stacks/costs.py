"""Costs of each kind of call on the host: microseconds with their sources."""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

from pydantic import Field

from hwmodel.draws import Uncertain, range_of
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
LIBRARY = "library"
DRAWN: Mapping[str, str] = {"stated": "call", "operators": "operator", "parts": "part"}
"""Tables of costs that are drawn, and the word for each before a cost's name."""


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

    @property
    def entries(self) -> Mapping[str, Quantity[NonNegative]]:
        """Values that are not zero, by their fields."""
        ways = ("forward_us", "backward_us", "around_forward_us", "around_backward_us")
        return {way: entry for way in ways if (entry := getattr(self, way)) is not None and entry.value}

    def us(self, direction: Pass, calls: int = 1, rows: int = 1) -> float:
        """Microseconds of calls and what is around them in a pass."""
        back = direction == "backward"
        each = self.backward_us if back else self.forward_us
        around = self.around_backward_us if back else self.around_forward_us
        return calls * each.value + (0.0 if around is None else rows * around.value)


class LibraryCall(StrictDocument):
    """A kernel's share of a call into an extension: how many of each part.

    Attributes
    ----------
    about
        The call, and which share of it.
    parts
        Of each kernel, in both passes.
    backward
        Of each kernel in the backward pass, with all around it, where that calls something else.
    trained
        Of each row of a list under autograd.
    source
        Where they were counted.
    """

    about: str
    parts: dict[str, int]
    backward: dict[str, int] | None = None
    trained: dict[str, int] = Field(default_factory=dict)
    source: str

    def cost(self, costs: Mapping[str, CallCost], *, trains: bool) -> CallCost:
        """Add up the parts, whose costs are given by name."""

        def total(parts: Mapping[str, int], direction: Pass) -> Quantity[NonNegative]:
            us = sum(count * costs[part].us(direction) for part, count in parts.items())
            return Quantity(value=us, source=f"the sum of its parts: {self.source}", confidence="medium")

        around = self.trained if trains else {}
        back, beside = (self.parts, around) if self.backward is None else (self.backward, {})
        return CallCost(
            about=self.about,
            forward_us=total(self.parts, "forward"),
            backward_us=total(back, "backward"),
            around_forward_us=total(around, "forward"),
            around_backward_us=total(beside, "backward"),
        )


@dataclass(frozen=True)
class CallCosts:
    """Costs of calls by their kind, on a host of some speed.

    Attributes
    ----------
    stated
        By the names of `replay.model.work.kernel_lists.lists.Call` but for *library*, and
        *te_gemm*, *tensor*, *event* and *peer*.
    speed
        How many times as fast the host is as the one they were measured on.
    operators
        Those of PyTorch's operators by name, for rows that name one.
    parts
        Of what calls into libraries are made of.
    libraries
        Calls into libraries by the scheme whose they are, and by its kernels.
    trains
        Whether there is autograd around calls.
    given
        Costs by kind that replace all others.
    scheme
        Whose kernels the calls into libraries are.
    """

    stated: Mapping[str, CallCost]
    speed: float = 1.0
    operators: Mapping[str, CallCost] = field(default_factory=dict)
    parts: Mapping[str, CallCost] = field(default_factory=dict)
    libraries: Mapping[str, Mapping[str, LibraryCall]] = field(default_factory=dict)
    trains: bool = True
    given: Mapping[str, CallCost] = field(default_factory=dict)
    scheme: str = ""

    @functools.cached_property
    def calls(self) -> Mapping[str, CallCost]:
        """Cost by kind of call."""
        made = {LIBRARY: self._library_cost("engines", "operator")} if self.libraries else {}
        return {**self.stated, **made, **self.given}

    @functools.cached_property
    def kernels(self) -> Mapping[str, CallCost]:
        """Cost of the scheme's kernels that are calls into a library, by name; none where that of all is given."""
        names = () if LIBRARY in self.given else self.libraries.get(self.scheme, ())
        return {name: self._library_cost(self.scheme, name) for name in names}

    def _library_cost(self, scheme: str, kernel: str) -> CallCost:
        return self.libraries[scheme][kernel].cost({**self.stated, **self.parts}, trains=self.trains)

    @property
    def settings(self) -> Mapping[str, str]:
        """Kind of call by the setting that replaces its cost, such as ``library_us``."""
        return {f"{name}_us": name for name in self.calls}

    def of(self, scheme: str) -> CallCosts:
        """Give those in which a scheme's kernels are known."""
        return dataclasses.replace(self, scheme=scheme)

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
        given = dict(self.given)
        for setting, value in us.items():
            if isinstance(value, bool) or not isinstance(value, int) or value > MOST_US:
                message = f"{setting} is {value_text(value)}; possible are whole microseconds, from 0 to {MOST_US:,}"
                raise UserError(message)
            name = self.settings[setting]
            each: Quantity[NonNegative] = Quantity(value=float(value), source=f"given: {setting}", confidence="user")
            given[name] = CallCost(about=self.calls[name].about, forward_us=each, backward_us=each)
        return dataclasses.replace(self, given=given)

    def draw(self, deviation: Callable[[str], float]) -> CallCosts:
        """Draw each cost within its spread, or that of its confidence; those that are given stay.

        Parameters
        ----------
        deviation
            Gives for each of `uncertain` how many standard deviations its logarithm is off.
        """
        tables: dict[str, Any] = {
            name: {key: _draw_cost(key, getattr(self, name), word, deviation) for key in getattr(self, name)}
            for name, word in DRAWN.items()
        }
        return dataclasses.replace(self, **tables)

    @property
    def uncertain(self) -> list[str]:
        """Keys that costs are drawn by, such as ``call.torch``, each once."""
        tables = ((word, getattr(self, name)) for name, word in DRAWN.items())
        keys = (
            _key(word, name, entry)
            for word, costs in tables
            for name, cost in costs.items()
            for entry in cost.entries.values()
        )
        return list(dict.fromkeys(keys))

    def call_ps(self, call: str, direction: Pass) -> int:
        """Host time of one call of a kind."""
        return ps_from_us(self.calls[call].us(direction) / self.speed)

    def kernel_ps(self, kernel: str, direction: Pass) -> int:
        """Host time of a kernel of the scheme, by its name, where no list has it: a call into a library."""
        return ps_from_us(self._kernel(kernel).us(direction) / self.speed)

    def _kernel(self, name: str) -> CallCost:
        return self.kernels.get(name, self.calls[LIBRARY])

    def ps(self, operation: ListedOperation) -> int:
        """Host time of an operation: its calls, allocations, copies and events, but no waiting."""
        one, direction = operation, operation.direction
        if one.operator:
            each = self.operators[one.operator].us(direction)
            return ps_from_us(one.calls * each / self.speed)
        is_named = one.name in self.libraries.get(self.scheme, ())
        if one.call == LIBRARY and (is_named or LIBRARY in self.given):  # with its tensors and events
            count = max(one.calls, one.kernels) if is_named else one.kernels  # named ones may launch no kernel
            return ps_from_us(self._kernel(one.name).us(direction, count, bool(count)) / self.speed)
        call = f"{one.call}_{one.kind}"
        calls = self.calls.get(call, self.calls[one.call])
        us = calls.us(direction, one.kernels, bool(one.kernels))
        # An operator of PyTorch makes its result itself, and so does one of an extension.
        tensors = max(0, one.tensors - one.kernels) if one.call in ("torch", LIBRARY) else one.tensors
        copies = max(0, one.copies - one.waits)  # what is waited for is in overheads.host_sync_us
        for count, what in (
            (tensors, "tensor"),
            (copies, "copy"),
            (one.events, "event"),
            (one.peers, "peer"),
        ):
            us += count * self.calls[what].us(direction)
        return ps_from_us(us / self.speed)


def _leader(entry: Quantity[NonNegative]) -> str:
    """Name of the cost of the same table that a value keeps its ratio to; nothing if it is drawn by itself."""
    spread = entry.spread if isinstance(entry.spread, str) else ""
    return spread.partition(".")[2] if spread.startswith("as ") else ""


def _draw_cost(name: str, costs: Mapping[str, CallCost], word: str, deviation: Callable[[str], float]) -> CallCost:
    """Draw a cost of a table; its values are off alike, but for those that keep their ratio to another cost."""
    changes = {}
    for way, entry in costs[name].entries.items():
        led, key = _leader(entry), _key(word, name, entry)
        by = costs[led].forward_us if led else entry
        times = Uncertain(key, by.value, *range_of(by)).at(deviation(key)) / by.value
        changes[way] = entry.model_copy(update={"value": entry.value * times})
    return costs[name].model_copy(update=changes)


def _key(word: str, name: str, entry: Quantity[NonNegative]) -> str:
    """Key that a value of a cost is drawn by: of the cost, or of the one that it keeps its ratio to."""
    return f"{word}.{_leader(entry) or name}"


@functools.cache
def load_costs(kernels: str, speed: float = 1.0) -> CallCosts:
    """Give the costs that ship under a kernel list, on a host of some speed.

    Lists without a backward pass serve, and have no autograd around their calls.
    """
    tables = _read("costs.toml")
    serves = kernels in names() and not load(kernels).trains
    serving = tables["serving"] if serves else {}
    calls = {**tables["any"], **serving, **tables.get(kernels, {})}
    libraries = dict(_read("libraries.toml"))
    parts = _costs(libraries.pop("parts"))
    made = {scheme: {name: LibraryCall(**one) for name, one in of.items()} for scheme, of in libraries.items()}
    return CallCosts(_costs(calls), speed, _costs(_read("operators.toml")), parts, made, trains=not serves)


def _costs(read: Mapping[str, Any]) -> dict[str, CallCost]:
    return {name: CallCost(**entry) for name, entry in read.items()}


@functools.cache
def _read(file: str) -> Mapping[str, Any]:
    """Every table of a file."""
    return tomllib.loads(resources.files(__package__).joinpath(file).read_text("utf-8"))
