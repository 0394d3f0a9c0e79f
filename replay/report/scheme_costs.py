"""Costs that schemes pay, found in the graph of a small layer, and declared reasons for those that they do not.

A cost is paid where a graph has tasks of its kinds. Where it has none, the scheme says why
(`Scheme.spares`), or the reason follows from what it states besides.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.chains.host_program import typical_outline, waits_of
from replay.chains.layer import build_layer
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape
from replay.model.work.precision import Precision
from replay.schemes.contract import layers
from replay.schemes.contract.case import system_for
from replay.schemes.modules import modules_of
from replay.schemes.registry import COMPARED, EXAMPLES

if TYPE_CHECKING:
    from replay.model.work.layer import LayerWork
    from replay.schemes import Scheme

RANKS, EXPERTS = 2, 4
PAID, SPARED = "x", ""


class SchemeCost(NamedTuple):
    """One cost of a layer.

    Attributes
    ----------
    name
        Name over its column.
    about
        The work that is paid for.
    kinds
        Kinds of task that stand for it.
    group
        Group of resources that these tasks must occupy; empty for any.
    is_choice
        Whether going without is another way to do the same, for which no reason is asked.
    """

    name: str
    about: str
    kinds: frozenset[Kind]
    group: str = ""
    is_choice: bool = False


COSTS = (
    SchemeCost("routing kernels", "kernels, or warps of one, that look at the routing only", frozenset({Kind.LAYOUT})),
    SchemeCost(
        "counts",
        "messages that say how many rows will come, before them or as their flag",
        frozenset({Kind.COUNT_UP, Kind.SIGNAL_UP}),
    ),
    SchemeCost(
        "host waits",
        "a host that reads a number before it launches what follows",
        frozenset({Kind.DISPATCH_SYNC, Kind.COMBINE_SYNC}),
        "host",
    ),
    SchemeCost(
        "tokens cast", "a pass over tokens that makes the rows that travel in FP8", frozenset({Kind.TOKEN_CAST})
    ),
    SchemeCost(
        "permutes", "kernels that copy rows into another order, before they leave or behind", frozenset({Kind.PERMUTE})
    ),
    SchemeCost(
        "rows pulled",
        "requests for rows by the GPU that wants them; else their owner stores them",
        frozenset({Kind.DISPATCH_REQUEST_UP}),
        is_choice=True,
    ),
    SchemeCost(
        "copies in memory",
        "rows written to memory and read again on their way: staging, rings, packing",
        frozenset({Kind.DISPATCH_MEMORY}),
    ),
    SchemeCost("activation kernel", "a kernel between the GEMMs", frozenset({Kind.ACTIVATION})),
    SchemeCost(
        "kernels for sums",
        "kernels that add up, or bring back into order, what experts made",
        frozenset({Kind.UNPERMUTE}),
    ),
    SchemeCost("SMs send back", "SMs that read results and store or serve them", frozenset({Kind.COMBINE_SEND})),
    SchemeCost(
        "results pulled",
        "requests for results by the owner of a token; else their GPU stores them",
        frozenset({Kind.COMBINE_REQUEST_UP}),
        is_choice=True,
    ),
    SchemeCost(
        "SMs add",
        "SMs of the owner that add up rows as they come; else a kernel does behind them",
        frozenset({Kind.COMBINE_RECEIVE}),
        is_choice=True,
    ),
    SchemeCost(
        "flags back",
        "flags or notices that results are there; else a barrier says so, or NCCL's own steps",
        frozenset({Kind.NOTIFY_UP}),
        is_choice=True,
    ),
    SchemeCost("switch adds", "adders in the switch", frozenset(Kind), "switch-merge", is_choice=True),
)


def schemes() -> dict[str, Scheme]:
    """Every scheme of layers with experts, by name."""
    return {**COMPARED, **EXAMPLES}


def small_layer(scheme: Scheme) -> LayerWork:
    """A layer of six tokens with rows in FP8, or in BF16 where a scheme has no FP8."""
    gemm, rows = ("fp8" if "fp8" in of else "bf16" for of in (scheme.gemm_types, scheme.dispatch_types))
    ids = np.array([[0, 1], [0, 1], [0, 2], [2, 3], [1, 3], [0, 3]], np.int32)
    for back in ("bf16", "fp8"):
        types = Precision(gemm, dispatch=rows, combine=back)
        work = layers.work(ids, RANKS, EXPERTS, shape=ExpertShape(256, 128), precision=types)
        if not scheme.refuses(work):
            break
    return work


def paid_costs(scheme: Scheme) -> frozenset[str]:
    """Names of the costs that a small layer under a scheme pays."""
    graph = build_layer(small_layer(scheme), system_for(RANKS, platform=scheme.platform), scheme).graph
    groups = np.array([*graph.resources.groups, ""])[graph.resource]
    return frozenset(
        cost.name
        for cost in COSTS
        if (np.isin(graph.kind, sorted(cost.kinds)) & ((groups == cost.group) if cost.group else True)).any()
    )


def reason(scheme: Scheme, cost: SchemeCost) -> str:
    """Say why a scheme does not pay a cost; empty where nobody has said it."""
    if scheme.traffic == "none":
        return "rows are where they should be: a bound"
    if cost.name == "activation kernel" and scheme.fuses_activation:
        return "GEMM-1's epilogue activates"
    if cost.name == "tokens cast" and "fp8" not in scheme.dispatch_types:
        return "rows travel in the type of the tokens"
    return scheme.spares.get(cost.name, "")


@cache
def _paid_by_name() -> dict[str, frozenset[str]]:
    return {name: paid_costs(scheme) for name, scheme in schemes().items()}


def costs_of(scheme: Scheme) -> list[tuple[SchemeCost, bool, str]]:
    """List every cost of a scheme: whether it is paid, and why not."""
    known = _paid_by_name().get(scheme.name) if schemes().get(scheme.name) is scheme else None
    found = paid_costs(scheme) if known is None else known
    return [(cost, cost.name in found, "" if cost.name in found else reason(scheme, cost)) for cost in COSTS]


def _link(name: str, scheme: Scheme) -> str:
    """Name of a scheme with a link to its file, from the folder of all schemes."""
    return f"[`{name}`]({modules_of(scheme)[0].removeprefix('replay/schemes/')})"


def wait_rows() -> list[tuple[str, ...]]:
    """Rows of the table of kernels and meetings: a scheme, and its numbers in a forward pass."""
    found = ((name, scheme, typical_outline(scheme)) for name, scheme in schemes().items())
    return [(_link(name, scheme), *map(str, waits_of(one))) for name, scheme, one in found if one is not None]


def cost_rows() -> list[tuple[str, ...]]:
    """Rows of the matrix: a scheme, and a mark for each cost."""
    return [
        (_link(name, scheme), *(PAID if is_paid else SPARED for _, is_paid, _ in costs_of(scheme)))
        for name, scheme in schemes().items()
    ]


def spared_list() -> str:
    """Markdown list of the costs, what each is, and who goes without it for which reason."""
    lines = ["`ideal` pays nothing of this: it is a bound.", ""]
    for place, cost in enumerate(COSTS):
        lines.append(f"- *{cost.name}*: {cost.about}.")
        if cost.is_choice:
            continue
        without: dict[str, list[str]] = {}
        for name, scheme in schemes().items():
            _, is_paid, why = costs_of(scheme)[place]
            if not is_paid and scheme.traffic != "none":
                without.setdefault(why, []).append(f"`{name}`")
        said = "; ".join(f"{', '.join(names)} ({why})" for why, names in without.items())
        lines.append(f"  Not {said}.")
    return "\n".join(lines)
