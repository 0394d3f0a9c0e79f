"""Common base of all schemes: what they state of themselves, their options, their description.

There are two kinds. A `replay.schemes.ep.base.Scheme` carries out layers of experts, a
`replay.schemes.tp.base.TensorScheme` layers whose weights are sliced. Either is an object without
clock, randomness or I/O that adds the tasks of one layer to a graph.
"""

from __future__ import annotations

import dataclasses
from abc import ABC
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from replay.schemes.options import Options, check, convert

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmodel import System
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split

SchemeKind = Literal["ep", "tp"]
KINDS: dict[SchemeKind, str] = {"ep": "expert parallelism", "tp": "tensor parallelism"}
"""Kinds of schemes, and what each kind carries out."""


def capabilities(system: System) -> frozenset[str]:
    """Names of what a system offers to schemes."""
    return frozenset(capability.value for capability in system.capabilities)


class AnyScheme(ABC):
    """Scheme of either kind.

    The attributes are set in the class or, where one class has several variants, by its
    ``__init__``.

    Parameters
    ----------
    options
        Options of the scheme's own class; None takes the defaults.

    Attributes
    ----------
    kind
        Kind of the scheme, a key of `KINDS`.
    name
        Name by which the scheme is asked for; no two schemes of any kind share one.
    summary
        What the scheme does, in at most 70 characters.
    source
        Paper and section, or repository and file, that the model follows.
    assumes
        What the model takes for granted where its source leaves something open.
    needs
        Capabilities of a system without which the scheme cannot run.
    platform
        What its code is written for, "cuda" or "cann"; empty for any, such as a definition.
    proposes
        Capabilities that the scheme adds to a system that lacks them: hardware that is proposed.
    candidates
        Values of options among which `replay.chains.tuning` may choose, such as splits of the SMs.
    tuned_by_default
        Whether what the scheme models chooses among them by itself, since it profiles them.
    options
        Values of the options.

    Raises
    ------
    UserError
        If the value of an option is not possible.
    """

    kind: ClassVar[SchemeKind]
    name: str
    summary: str
    source: str
    assumes: str = ""
    needs: frozenset[str] = frozenset()
    platform: str = "cuda"
    proposes: frozenset[str] = frozenset()
    candidates: Mapping[str, tuple[int | str, ...]] = MappingProxyType({})
    tuned_by_default: bool = False
    options: Any = Options()
    code: str = ""
    """SHA-256 of the source of a scheme from outside; empty for one of moereplay's own."""
    origin: str = ""
    """``path/to/file.py:Name`` of a scheme from a file; empty for any other."""

    def __init__(self, options: Options | None = None) -> None:
        if options is not None:
            self.options = options
        check(self.name, self.options)

    def lacks(self, system: System) -> frozenset[str]:
        """Capabilities that it needs and a system does not have, its platform included."""
        return frozenset({self.platform} - {""} | self.needs) - capabilities(system)

    def is_tuned(self, asked: bool | None) -> bool:
        """Tell whether some of its options are chosen by replay.

        Parameters
        ----------
        asked
            Whether that is asked for; None leaves it to what the scheme models.
        """
        return bool(self.candidates) and (self.tuned_by_default if asked is None else asked)

    def describe(self, system: System | None = None, trials: Sequence[Any] = ()) -> dict[str, Any]:
        """Describe the scheme by plain values, for a result.

        Parameters
        ----------
        system
            The machine of the result, which ``lacking`` compares with what is proposed.
        trials
            What tuning tried, in order.

        Returns
        -------
        ``name``, ``source``, ``assumes``, ``proposes``, ``traffic`` and all ``options``. Beside
        them: ``lacking`` on a system, the proposed hardware that it does not have; ``code`` of a
        scheme from outside; ``tuned`` where something was tried; what only one kind states.
        """
        described = {
            "name": self.name,
            "source": self.source,
            "assumes": self.assumes,
            "proposes": sorted(self.proposes),
            "options": dataclasses.asdict(self.options),
        }
        if system is not None:
            described["lacking"] = sorted(self.proposes - capabilities(system))
        if self.code:
            described["code"] = self.code
        if trials:
            described["tuned"] = list(trials)
        return described

    def split(self, machine: Machine, *options: str, rest: str = "", **held: int) -> Split:
        """Declare SMs that a kernel of the scheme holds, beside those that it leaves.

        Parameters
        ----------
        options
            Options that give numbers of SMs.
        rest
            What at least one further SM must do, such as ``"compute"``; nothing if empty.
        held
            Further numbers of SMs, by the name of what gives them.

        Raises
        ------
        UserError
            If the GPU has fewer.
        """
        shares = {name: getattr(self.options, name) for name in options} | held
        return machine.sms.split(f"scheme {self.name!r}", shares, rest=rest)

    def with_options(self, given: Mapping[str, Any]) -> Self:
        """Replace some options by name; text is converted to the option's type.

        Raises
        ------
        UserError
            If an option is unknown, or its value is not of its type or not possible.
        """
        changed = object.__new__(type(self))
        vars(changed).update(vars(self), options=convert(self.name, self.options, given))
        check(self.name, changed.options)
        return changed
