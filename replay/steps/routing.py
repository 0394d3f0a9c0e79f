"""Routing of tokens where no trace is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from replay.errors import UserError, unknown
from tracegen.generate import GENERATORS


@dataclass(frozen=True)
class DrawnRouting:
    """Routing that is generated.

    Attributes
    ----------
    kind, parameters
        As of `tracegen.generate`.
    """

    kind: str = "uniform"
    parameters: Mapping[str, Any] = field(default_factory=dict)


def parse(text: str) -> DrawnRouting:
    """Read a kind of routing with its parameters: ``zipf:skew=0.6``, or ``zipf:0.6`` for short.

    Raises
    ------
    UserError
        If there is no such kind or parameter, or a value is no number.
    """
    kind, colon, rest = text.partition(":")
    if kind not in GENERATORS:
        raise unknown("kind of routing", kind, GENERATORS)
    fields = GENERATORS[kind].model_fields
    parameters: dict[str, float] = {}
    for part in rest.split(",") if colon else []:
        name, _, value = part.rpartition("=")
        name = name or "skew"
        if name not in fields:
            raise unknown(f"parameter of {kind}", name, fields)
        try:
            parameters[name] = float(value)
        except ValueError:
            message = f"routing {text}: expected a kind with numbers, such as zipf:skew=0.6, or zipf:0.6"
            raise UserError(message) from None
    return DrawnRouting(kind, parameters)
