"""What a scheme is.

A scheme is a class with a one-line summary, its source, what it assumes, the capabilities it
needs, a frozen dataclass of options, and one method that adds the tasks of one layer to a graph.
It has no clock, no randomness and does no I/O; it never asks how long anything takes. To add one,
write one file and list the class in ``replay/schemes/__init__.py``: the contract suite then tests
it.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from replay.errors import UserError, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replay.machine.machine import Ints, Machine
    from replay.machine.resources import Discipline
    from replay.work.layer import LayerWork

MOST = 2**31 - 1
"""Of any option that is a whole number: products of it with a layer's sizes fit 64 bits."""


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """Options of a scheme that has none."""

    def check(self) -> None:
        """Refuse impossible values.

        Raises
        ------
        UserError
            Naming the option, its value and what is possible.
        """


class Scheme(ABC):
    """One way to carry out dispatch, expert computation and combine.

    Parameters
    ----------
    options
        The scheme's own `Options`; None takes the defaults.

    Raises
    ------
    UserError
        If a value is not possible.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    assumes: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = frozenset()
    """Capabilities of a system without which the scheme cannot run."""
    proposes: ClassVar[frozenset[str]] = frozenset()
    """Capabilities that the scheme adds to a system that lacks them: hardware that is proposed."""
    traffic: ClassVar[str]
    """Class of the payload traffic: none, pair, copy, dense or switch (MECHANISMS.md, "Traffic")."""
    phases_separated: ClassVar[bool] = True
    """Whether a barrier over all ranks lies between dispatch and combine, so that the busiest ports
    of the two phases bound the layer one after the other."""
    candidates: ClassVar[Mapping[str, tuple[int, ...]]] = MappingProxyType({})
    """Values of its options among which `replay.run.tune` may choose, such as splits of the SMs."""
    Options: ClassVar[type[NoOptions]] = NoOptions

    def __init__(self, options: NoOptions | None = None) -> None:
        self.options: Any = self.Options() if options is None else options
        for name, value in dataclasses.asdict(self.options).items():
            if isinstance(value, int) and value > MOST:
                message = f"option {name}={value} of scheme {self.name!r}: must be at most {MOST}"
                raise UserError(message)
        self.options.check()

    @property
    def uplinks(self) -> Discipline:
        """How a GPU's uplink chooses among what waits (see `GraphBuilder.resource`)."""
        return "voq"

    @abstractmethod
    def build(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        """Add the tasks of one layer.

        Parameters
        ----------
        work
            Routing, placement, shape and precision.
        machine
            Resources and transfers; its `graph` receives the tasks.
        start
            (rank,) tasks: rank r's tokens are routed and in its memory.

        Returns
        -------
        (rank,) tasks: rank r's tokens are combined.
        """

    def describe(self) -> dict[str, Any]:
        """Name, source, assumptions and all options, for a result's provenance."""
        return {
            "name": self.name,
            "source": self.source,
            "assumes": self.assumes,
            "proposes": sorted(self.proposes),
            "traffic": self.traffic,
            "options": dataclasses.asdict(self.options),
        }

    @classmethod
    def with_options(cls, given: Mapping[str, Any]) -> Scheme:
        """Make the scheme with options by name; text is converted to the option's type.

        Raises
        ------
        UserError
            If an option is unknown or its value is not of its type.
        """
        fields = {field.name: field for field in dataclasses.fields(cls.Options)}
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in fields:
                if not fields:
                    message = f"scheme {cls.name!r} has no options; {name!r} was given"
                    raise UserError(message)
                raise unknown(f"option of scheme {cls.name!r}", name, fields)
            values[name] = _convert(cls.name, name, value, type(fields[name].default))
        return cls(cls.Options(**values))


def _convert(scheme: str, name: str, value: Any, wanted: type) -> Any:
    """Turn an option's text into the type of its default."""
    if not isinstance(value, str):
        if type(value) is wanted:
            return value
    elif wanted is str:
        return value
    elif wanted is bool:
        if value.lower() in ("true", "false"):
            return value.lower() == "true"
    else:
        try:
            return wanted(value)
        except ValueError:
            pass
    expected = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    message = f"option {name}={value!r} of scheme {scheme!r}: expected {expected[wanted]}"
    raise UserError(message)


def at_least(scheme: str, least: int, **values: int) -> None:
    """Refuse options below a least value.

    Raises
    ------
    UserError
        Naming the first option that is too small.
    """
    for name, value in values.items():
        if value < least:
            message = f"option {name}={value} of scheme {scheme!r}: must be at least {least}"
            raise UserError(message)
