"""The registry: one dict of all schemes, and the finding of a scheme by name or file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.errors import UserError, unknown
from replay.schemes import outside
from replay.schemes.ep.cann_ep import CannEp
from replay.schemes.ep.ccfuser.scheme import CcFuser
from replay.schemes.ep.comet.flux import Flux
from replay.schemes.ep.comet.paper import Comet
from replay.schemes.ep.deepep.elastic import ElasticDeepEp
from replay.schemes.ep.deepep.low_latency import LowLatencyDeepEp
from replay.schemes.ep.deepep.normal import DeepEp
from replay.schemes.ep.dysharp.scheme import (
    DYSHARP,
    DYSHARP_BASIC,
    DYSHARP_COMET,
    DYSHARP_FUSION_ONLY,
)
from replay.schemes.ep.fastermoe.scheme import FasterMoe
from replay.schemes.ep.flashdmoe.scheme import FlashDMoe
from replay.schemes.ep.flashinfer_push import FlashInferPush
from replay.schemes.ep.hybrid_ep.scheme import HybridEp
from replay.schemes.ep.ideal import Ideal
from replay.schemes.ep.megamoe.scheme import MEGAMOE
from replay.schemes.ep.megatron.allgather import MegatronAllGather
from replay.schemes.ep.megatron.alltoall import Megatron
from replay.schemes.ep.moe_hub.scheme import MoeHub
from replay.schemes.ep.nccl_alltoall import NcclAllToAll
from replay.schemes.ep.nccl_ep import NcclEp
from replay.schemes.ep.nvls import Nvls
from replay.schemes.ep.pangu.scheme import Pangu
from replay.schemes.ep.plain import Plain
from replay.schemes.ep.tutel.scheme import Tutel

if TYPE_CHECKING:
    from hwmodel import System
    from replay.schemes.ep.base import Scheme
    from replay.schemes.outside import AllowCode

SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Ideal(),
        NcclAllToAll(),
        Megatron(),
        MegatronAllGather(),
        Tutel(),
        FasterMoe(),
        DeepEp(),
        LowLatencyDeepEp(),
        NcclEp(),
        ElasticDeepEp(),
        HybridEp(),
        Nvls(),
        Pangu(),
        Comet(),
        Flux(),
        CcFuser(),
        FlashDMoe(),
        MEGAMOE,
        FlashInferPush(),
        DYSHARP_BASIC,
        DYSHARP_FUSION_ONLY,
        DYSHARP_COMET,
        DYSHARP,
        MoeHub(),
    )
}
"""Schemes that GPUs with CUDA have, with their default options, in the order of reports."""

ELSEWHERE: dict[str, Scheme] = {scheme.name: scheme for scheme in (CannEp(),)}
"""Schemes of other platforms."""

COMPARED: dict[str, Scheme] = SCHEMES | ELSEWHERE
"""Schemes that are compared by default on a system that they run on."""

EXAMPLES: dict[str, Scheme] = {scheme.name: scheme for scheme in (Plain(),)}
"""Schemes that are found by name and left out of comparisons that name none."""


def supported(system: System) -> list[str]:
    """Names of the schemes whose needs the system meets, in the order of `COMPARED`."""
    return [name for name, scheme in COMPARED.items() if not scheme.lacks(system)]


def capabilities(system: System) -> set[str]:
    """Names of what a system offers to schemes."""
    return {capability.value for capability in system.capabilities}


def find(reference: str, *, allow_code: AllowCode = True) -> Scheme:
    """Find a scheme, with its default options.

    Parameters
    ----------
    reference
        A name of `COMPARED` or `EXAMPLES`, the name of a plug-in's entry point in the group
        ``moereplay.schemes``, or ``path/to/file.py:Name``. A file that is named is executed.
    allow_code
        Whether it may be: not where a document names the scheme and not the user. False allows
        what this process has executed already, a set of SHA-256s files that have one of them.

    Raises
    ------
    CodeRefusedError
        If the scheme is that of a file that may not be executed.
    UserError
        If there is no such scheme, or its file or plug-in cannot be used.
    """
    own = COMPARED | EXAMPLES
    if reference in own:
        return own[reference]
    if outside.is_file(reference):
        scheme = outside.from_file(reference, allow_code=allow_code)
    else:
        plugins = outside.plugins()
        if reference not in plugins:
            raise unknown("scheme", reference, [*own, *plugins])
        scheme = outside.from_plugin(plugins[reference])
    if scheme.name in own:
        message = (
            f"{reference}: the scheme calls itself {scheme.name!r}, which is a scheme of "
            "moereplay: give it another name"
        )
        raise UserError(message)
    return scheme
