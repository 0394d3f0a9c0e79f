"""Registry of the schemes of both kinds, which finds one by name, file or plug-in."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Literal, overload

from replay.errors import UserError, unknown
from replay.schemes import outside
from replay.schemes.base import KINDS
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
from replay.schemes.ep.megamoe.scheme import MEGAMOE, MEGAMOE_HOPPER
from replay.schemes.ep.megatron.allgather import MegatronAllGather
from replay.schemes.ep.megatron.alltoall import Megatron
from replay.schemes.ep.moe_hub.scheme import MoeHub
from replay.schemes.ep.mok import MixtureOfKittens
from replay.schemes.ep.nccl_allgather import NcclAllGather
from replay.schemes.ep.nccl_alltoall import NcclAllToAll
from replay.schemes.ep.nccl_ep import NcclEp
from replay.schemes.ep.nccl_ep_ht import NcclEpHt
from replay.schemes.ep.nvls import Nvls
from replay.schemes.ep.pangu.scheme import Pangu
from replay.schemes.ep.plain import Plain
from replay.schemes.ep.trtllm.scheme import TrtLlmAllToAll
from replay.schemes.ep.tutel.scheme import Tutel
from replay.schemes.tp.cais.scheme import Cais
from replay.schemes.tp.coconet import CoCoNet
from replay.schemes.tp.collectives import Collectives
from replay.schemes.tp.direct import Direct
from replay.schemes.tp.fuselib import FuseLib
from replay.schemes.tp.ladm import Ladm
from replay.schemes.tp.t3.scheme import T3, T3Switch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hwmodel import System
    from replay.schemes.base import AnyScheme, SchemeKind
    from replay.schemes.ep.base import Scheme
    from replay.schemes.outside import AllowCode
    from replay.schemes.tp.base import TensorScheme

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
        TrtLlmAllToAll(),
        NcclEpHt(),
        Nvls(),
        Pangu(),
        Comet(),
        Flux(),
        CcFuser(),
        FlashDMoe(),
        MEGAMOE,
        MEGAMOE_HOPPER,
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

EXAMPLES: dict[str, Scheme] = {scheme.name: scheme for scheme in (Plain(), NcclAllGather(), MixtureOfKittens())}
"""Schemes that are found by name and left out of comparisons that name none."""


TENSOR_SCHEMES: dict[str, TensorScheme] = {
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
"""Schemes of tensor parallelism, with their default options, in the order of reports."""

TENSOR_EXAMPLES: dict[str, TensorScheme] = {scheme.name: scheme for scheme in (Direct(),)}
"""Schemes of tensor parallelism that are found by name, as `EXAMPLES` are."""

LISTED: dict[SchemeKind, Mapping[str, AnyScheme]] = {"ep": COMPARED, "tp": TENSOR_SCHEMES}
"""Schemes of each kind that are listed, and compared by default on a system that they run on."""

EVERY: dict[str, AnyScheme] = {**COMPARED, **EXAMPLES, **TENSOR_SCHEMES, **TENSOR_EXAMPLES}
"""Schemes of both kinds by name."""

COMMANDS: dict[SchemeKind, str] = {"ep": "moereplay compare", "tp": "moereplay tensor compare"}
"""Command that compares schemes of a kind."""


_USABLE = re.compile(r"[^\s*+=,]+")
"""Names of schemes: others are taken for several, for options or for a mark of a table."""


def supporting_schemes(system: System, kind: SchemeKind = "ep") -> list[str]:
    """Names of the schemes of a kind whose needs the system meets, in the order of reports."""
    return [name for name, scheme in LISTED[kind].items() if not scheme.lacks(system)]


@overload
def find(reference: str, kind: Literal["ep"] = "ep", *, allow_code: AllowCode = True) -> Scheme: ...
@overload
def find(reference: str, kind: Literal["tp"], *, allow_code: AllowCode = True) -> TensorScheme: ...
@overload
def find(reference: str, kind: None, *, allow_code: AllowCode = True) -> AnyScheme: ...
def find(reference: str, kind: SchemeKind | None = "ep", *, allow_code: AllowCode = True) -> AnyScheme:
    """Find a scheme, with its default options.

    Parameters
    ----------
    reference
        A name of `EVERY`, the name of a plug-in's entry point in the group ``moereplay.schemes``,
        or ``path/to/file.py:Name``. A file that is named is executed.
    kind
        Kind that the scheme must have; None for either.
    allow_code
        Whether it may be: not where a document names the scheme and not the user. False allows
        what this process has executed already, a set of SHA-256s files that have one of them.

    Raises
    ------
    CodeRefusedError
        If the scheme is that of a file that may not be executed.
    UserError
        If there is no such scheme, it is of the other kind, or its file or plug-in cannot be used.
    """
    if reference in EVERY:
        scheme = EVERY[reference]
    elif outside.is_file(reference):
        scheme = outside.from_file(reference, allow_code=allow_code)
    else:
        plugins = outside.plugins()
        if reference not in plugins:
            raise _not_found(reference, kind, [*plugins])
        scheme = outside.from_plugin(plugins[reference])
    if scheme.name in EVERY and scheme is not EVERY[scheme.name]:
        message = (
            f"{reference}: the scheme calls itself {scheme.name!r}, which is a scheme of "
            "moereplay: give it another name"
        )
        raise UserError(message)
    if not _USABLE.fullmatch(scheme.name):
        message = (
            f"{reference}: the scheme calls itself {scheme.name!r}: expected a name without spaces "
            "and signs that mean something beside it (* + = ,)"
        )
        raise UserError(message)
    if kind not in (None, scheme.kind):
        raise UserError(f"{reference!r} {_belongs(scheme.kind)}")
    return scheme


def _belongs(kind: SchemeKind) -> str:
    return f"is a scheme of {KINDS[kind]}: use `{COMMANDS[kind]}`"


def _not_found(reference: str, kind: SchemeKind | None, plugins: list[str]) -> UserError:
    """Error for a name that nothing has; a name of the other kind may be meant."""
    near = difflib.get_close_matches(reference, [*EVERY, *plugins], n=1)
    if near and near[0] in EVERY and kind not in (None, EVERY[near[0]].kind):
        return UserError(f"unknown scheme {reference!r}; {near[0]!r} {_belongs(EVERY[near[0]].kind)}")
    what = f"scheme of {KINDS[kind]}" if kind == "tp" else "scheme"
    return unknown(what, reference, [*names(kind), *plugins])


def names(kind: SchemeKind | None = None) -> list[str]:
    """Names of all schemes of a kind, or of both, that come with the package, sorted."""
    return sorted(name for name, scheme in EVERY.items() if kind in (None, scheme.kind))


def usable_plugins(kind: SchemeKind | None = None) -> Iterator[AnyScheme | str]:
    """Schemes of plug-ins, of one kind or of both; a line of text for each that cannot be used."""
    for name in outside.plugins():
        if name in EVERY:
            yield f"plug-in {name!r} is not used: moereplay has a scheme of this name"
            continue
        try:
            scheme = find(name, None, allow_code=False)
        except UserError as error:
            yield str(error)
        else:
            if kind in (None, scheme.kind):
                yield scheme
