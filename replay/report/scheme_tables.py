"""Facts of schemes, and the documents' tables of them as Markdown, from the registry.

A table stands between two comments, such as ``<!-- schemes -->`` and ``<!-- /schemes -->``;
``python scripts/tables.py`` writes it anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from replay.chains import host_program
from replay.model.work.precision import NUMBER_TYPES, VALUE_TYPES
from replay.schemes.ep.staged_schemes import StagedScheme
from replay.schemes.ep.traffic import NETWORK, TRAFFIC, way_back
from replay.schemes.registry import COMPARED, EXAMPLES

if TYPE_CHECKING:
    from replay.schemes import Scheme

SYSTEM = host_program.SYSTEMS["cuda"]  # whose SMs are counted
ABOUT_NUMBERS = (
    f"SMs: those that only communicate, on {SYSTEM}. Kernels: launches of a forward layer on 8 "
    "GPUs with 256 experts, in FP8 if it can. Graph: whether a CUDA graph can hold all of them."
)


class Facts(NamedTuple):
    """Facts of a scheme beside its text, as short words.

    Attributes
    ----------
    sms, kernels, graph
        See `ABOUT_NUMBERS`; "-" where nothing is stated.
    types
        Number types that its code has.
    gradients
        Whether it has a backward pass.
    interleave
        How micro-batches of it overlap, by the words of ``--interleave``; "-" where they cannot.
    limits
        Set-ups that it was written for, or measured on; "-" for any.
    """

    sms: str
    kernels: str
    graph: str
    types: str
    gradients: str
    interleave: str
    limits: str


def facts_of(scheme: Scheme) -> Facts:
    """Look up what a scheme states."""
    sms, listed = communicating_sms(scheme), host_program.typical_program(scheme)
    ranks = [] if scheme.most_ranks is None else [f"at most {scheme.most_ranks:,} GPUs"]
    return Facts(
        sms="-" if sms is None else str(sms),
        kernels="-" if listed is None else str(host_program.num_kernels(listed)),
        graph="-" if listed is None else "yes" if host_program.can_be_captured(listed) else "no",
        types=_types(scheme),
        gradients="yes" if "backward" in scheme.passes else "no",
        interleave=(", ".join(sorted(scheme.interleaves)) if isinstance(scheme, StagedScheme) else "") or "-",
        limits="; ".join([*ranks, *([scheme.validity] if scheme.validity else [])]) or "-",
    )


def communicating_sms(scheme: Scheme) -> int | None:
    """SMs that only communicate, on the system for which they are counted."""
    return scheme.communication_sms(host_program.preset(SYSTEM))


def _types(scheme: Scheme) -> str:
    gemm, out, back = (
        "any"
        if types >= set(VALUE_TYPES)
        else "any but FP4"
        if types == set(NUMBER_TYPES)
        else ", ".join(sorted(types))
        for types in (scheme.gemm_types, scheme.dispatch_types, scheme.combine_types)
    )
    there = gemm if gemm == out else f"GEMMs {gemm}; rows {out}"
    return there if there == back else f"{there}; back {back}"


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def scheme_table() -> str:
    """Table of the schemes: what each is, moves, overlaps, takes and proposes; and who is found by name alone."""
    others = ", ".join(f"`{name}`" for name in EXAMPLES)
    return f"{_compared_schemes()}\n\nFound by name, and not compared unless asked for: {others}."


def _compared_schemes() -> str:
    return _markdown(
        ("scheme", "what it does", "what moves", "overlap", "SMs", "graph", "proposed hardware"),
        [
            (
                f"`{scheme.name}`",
                scheme.summary,
                TRAFFIC[scheme.traffic].moves,
                scheme.overlap,
                facts.sms,
                facts.graph,
                ", ".join(sorted(scheme.proposes)) or "-",
            )
            for scheme in COMPARED.values()
            for facts in [facts_of(scheme)]
        ],
    )


def _schemes_of(kind: str, name: str) -> str:
    """Schemes of a class of traffic or network."""
    return ", ".join(f"`{key}`" for key, one in COMPARED.items() if getattr(one, kind) == name)


def traffic_table() -> str:
    """Payload rows over the ports of rank g in closed form, by class of traffic."""
    rows = []
    for name, way in TRAFFIC.items():
        back = TRAFFIC[way_back(name)]
        rows.append((name, _schemes_of("traffic", name), way.up, way.down, back.down, back.up))
    head = ("class", "schemes", "dispatch up", "dispatch down", "combine up", "combine down")
    return _markdown(head, rows)


def network_table() -> str:
    """Payload rows over the NIC of rank g in closed form, by class of network."""
    head = ("class", "schemes", "what moves between domains", "dispatch out", "dispatch in")
    rows = [
        (name, _schemes_of("network", name), network.moves, network.out, network.in_)
        for name, network in NETWORK.items()
        if name
    ]
    return _markdown(head, rows)


def cost_table() -> str:
    """Matrix of schemes and costs: a mark where a layer of the scheme pays."""
    from replay.report.scheme_costs import COSTS, cost_rows  # builds layers, which other tables do not

    return _markdown(("scheme", *(cost.name for cost in COSTS)), cost_rows())


def wait_table() -> str:
    """Kernels of a layer, and what its GPUs and hosts wait for, by scheme."""
    from replay.report.scheme_costs import wait_rows

    return _markdown(("scheme", "kernels", "host waits", "meetings", "fences", "rounds of flags"), wait_rows())


def spared_list() -> str:
    """List of the costs, and of who goes without each for which reason."""
    from replay.report import scheme_costs

    return scheme_costs.spared_list()


TABLES = {
    "schemes": scheme_table,
    "traffic": traffic_table,
    "network": network_table,
    "costs": cost_table,
    "spared": spared_list,
    "waits": wait_table,
}


def with_tables(text: str) -> str:
    """A document with every marked table as it should be."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, found, rest = text.partition(begin)
        if found:
            text = f"{before}{begin}{table()}\n{end}{rest.partition(end)[2]}"
    return text
