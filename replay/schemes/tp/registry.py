"""Schemes of tensor parallelism by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.errors import unknown
from replay.schemes.tp.cais.scheme import Cais
from replay.schemes.tp.coconet import CoCoNet
from replay.schemes.tp.collectives import Collectives
from replay.schemes.tp.fuselib import FuseLib
from replay.schemes.tp.ladm import Ladm
from replay.schemes.tp.t3.scheme import T3, T3Switch

if TYPE_CHECKING:
    from hwmodel import System
    from replay.schemes.tp.base import TensorScheme

SCHEMES: dict[str, TensorScheme] = {
    scheme.name: scheme
    for scheme in (
        Collectives("nvls", sequence_parallel=False),
        Collectives("nvls", sequence_parallel=True),
        Collectives("ring", sequence_parallel=False),
        Collectives("ring", sequence_parallel=True),
        CoCoNet("ring"),
        CoCoNet("nvls"),
        FuseLib(in_switch=False),
        FuseLib(in_switch=True),
        Cais(),
        T3(),
        T3Switch(),
        Ladm(),
    )
}
"""Every scheme of tensor parallelism, with its default options, in the order of reports."""


def find(name: str) -> TensorScheme:
    """Look a scheme up.

    Raises
    ------
    UserError
        If there is none, naming those there are.
    """
    if name not in SCHEMES:
        raise unknown("scheme of tensor parallelism", name, SCHEMES)
    return SCHEMES[name]


def supported(system: System) -> list[str]:
    """Names of the schemes that a system can run."""
    return [name for name, scheme in SCHEMES.items() if not scheme.lacks(system)]
