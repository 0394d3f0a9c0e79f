"""All schemes: one file each, one dict of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.schemes.base import Scheme
from replay.schemes.comet import Comet
from replay.schemes.deepep.normal import DeepEp
from replay.schemes.dysharp.scheme import DySharp, DySharpBasic, DySharpComet, DySharpFusionOnly
from replay.schemes.flashdmoe.scheme import FlashDMoe
from replay.schemes.ideal import Ideal
from replay.schemes.moe_hub.scheme import MoeHub
from replay.schemes.nccl_alltoall import NcclAllToAll
from replay.schemes.nvls import Nvls

if TYPE_CHECKING:
    from hwmodel import System

__all__ = ["SCHEMES", "Scheme", "supported"]

SCHEMES: dict[str, type[Scheme]] = {
    scheme.name: scheme
    for scheme in (
        Ideal,
        NcclAllToAll,
        DeepEp,
        Nvls,
        Comet,
        FlashDMoe,
        DySharpBasic,
        DySharpFusionOnly,
        DySharpComet,
        DySharp,
        MoeHub,
    )
}


def supported(system: System) -> list[str]:
    """Names of the schemes whose needs the system meets, in the order of `SCHEMES`."""
    has = {capability.value for capability in system.capabilities}
    return [name for name, scheme in SCHEMES.items() if scheme.needs <= has]
