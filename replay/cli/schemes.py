"""``moereplay schemes``: the list of schemes, a description of one, and the check of its contract."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.cli.screen import announce_compiling, show
from replay.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from replay.schemes import Scheme
    from replay.schemes.base import AnyScheme, SchemeKind
    from replay.schemes.options import OptionFacts
    from replay.schemes.tp.base import TensorScheme
    from tracegen.shared.display.content import Table

SHOWN = 3  # findings of one check; more say the same of other GPUs and layers
WIDTH = 80

SchemeArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[SCHEME]",
        help="Scheme to describe: a name, or FILE.py:NAME, which executes the file. Or a verb: list, show, check.",
    ),
]
NamedArgument = Annotated[str | None, typer.Argument(metavar="[SCHEME]", help="With show or check: the scheme.")]


def schemes(
    scheme: SchemeArgument = None,
    named: NamedArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the schemes, describe one, or check one.

    `moereplay schemes check SCHEME` tests the contract, rules that every scheme must keep: that all
    rows arrive, say. It ends with exit code 0 if the scheme keeps them, else with 1.
    """
    from replay.schemes import find

    if scheme in ("check", "show") and named is None:
        message = f"{scheme} what? Expected `moereplay schemes {scheme} SCHEME`"
        raise UserError(message)
    if scheme not in ("check", "show") and named is not None:
        message = f"unexpected {named!r} after {scheme!r}; only check and show take a second word"
        raise UserError(message)
    if scheme in (None, "list"):
        list_experts(as_json)
    elif scheme == "check":
        if not _keeps_the_contract(find(str(named), None, allow_code=True), as_json):
            raise typer.Exit(1)
    else:
        explain(find(str(named or scheme), None, allow_code=True), as_json)


# ---- the list ------------------------------------------------------------------------------------


def list_experts(as_json: bool) -> None:
    """List all schemes: those of experts by what they do, move and have; the others by name."""
    from replay.report.scheme_tables import ABOUT_NUMBERS
    from replay.schemes.registry import COMPARED, EXAMPLES, TENSOR_EXAMPLES
    from replay.schemes.registry import TENSOR_SCHEMES as OF_TENSOR

    found, broken = [*COMPARED.values(), *_usable("ep")], [*_broken_plugins()]
    others = [*OF_TENSOR.values(), *_usable("tp")]
    if as_json:
        _print_json([to_json(one) for one in (*found, *others)])
    else:
        show(*_tables(found), tensor_table(others), "")
        print(indent(ABOUT_NUMBERS, "", ""))
        bound = ", ".join(one.name for one in found if not one.network)
        print(indent(f"Only for ranks within one NVLink domain: {bound}.", "", ""))
        for line in _interleaving_lines(found):
            print(line)
        print("moereplay schemes SCHEME explains one: options, assumptions, source.")
        named = ", ".join((*EXAMPLES, *TENSOR_EXAMPLES))
        print(indent(f"Found by name, not compared unless asked for: {named}.", "", ""))
    for line in broken:
        print(line, file=sys.stderr)


def list_tensor(as_json: bool) -> None:
    """List the schemes of tensor parallelism."""
    from replay.schemes.registry import TENSOR_EXAMPLES, TENSOR_SCHEMES

    found = [*TENSOR_SCHEMES.values(), *_usable("tp")]
    if as_json:
        _print_json([to_json(one) for one in found])
    else:
        show(tensor_table(found), "")
        print("moereplay tensor schemes SCHEME explains one: options, assumptions, source.")
        print(f"Found by name, not compared unless asked for: {', '.join(TENSOR_EXAMPLES)}.")
    for line in _broken_plugins():
        print(line, file=sys.stderr)


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=1, sort_keys=True))


def tensor_table(found: Iterable[AnyScheme]) -> Table:
    """Table of schemes of tensor parallelism: what each does, and its hardware."""
    from tracegen.shared.display.content import Column, Table

    columns = [Column("scheme"), Column("what it does"), Column("hardware", rank=1)]
    rows = [(one.name, one.summary, hardware(one) or "-") for one in found]
    return Table("tensor", "Schemes of tensor parallelism", columns, rows)


def _tables(found: Sequence[Scheme]) -> tuple[Table, Table, Table]:
    """Tables of schemes' mechanisms, of their traffic and buffers, and of their code."""
    from replay.report.scheme_tables import facts_of
    from tracegen.shared.display.content import Column, Table

    facts = [(one, facts_of(one)) for one in found]
    return (
        Table(
            "schemes",
            "Schemes",
            [Column("scheme"), Column("what it does"), Column("hardware", rank=1)],
            [(one.name, one.summary, hardware(one) or "-") for one in found],
        ),
        Table(
            "work",
            "What they move and take",
            [
                Column("scheme"),
                Column("rows"),
                Column("overlap"),
                Column("SMs", form="s", rank=1),
                Column("kernels", form="s", rank=1),
                Column("graph", rank=1),
            ],
            [(one.name, one.traffic, one.overlap, each.sms, each.kernels, each.graph) for one, each in facts],
        ),
        Table(
            "limits",
            "What their code has",
            [
                Column("scheme"),
                Column("number types"),
                Column("gradients", rank=1),
                Column("written for, or measured on"),
            ],
            [(one.name, each.types, each.gradients, each.limits) for one, each in facts],
        ),
    )


def _interleaving_lines(found: Iterable[Scheme]) -> Iterable[str]:
    """Lines on the schemes that offer each value of ``--interleave``."""
    from replay.schemes.ep.staged_schemes import StagedScheme

    names: dict[str, list[str]] = {}
    for one in found:
        if isinstance(one, StagedScheme) and one.interleaves:
            names.setdefault(", ".join(sorted(one.interleaves)), []).append(one.name)
    for kinds, able in sorted(names.items()):
        yield indent(f"--interleave {kinds}: {', '.join(able)}.", "", "")


def _usable(kind: SchemeKind) -> Iterable[Any]:
    """Schemes of a kind that plug-ins have."""
    from replay.schemes.registry import usable_plugins

    return (one for one in usable_plugins(kind) if not isinstance(one, str))


def _broken_plugins() -> Iterable[str]:
    """A line of text for each plug-in that cannot be used."""
    from replay.schemes.registry import usable_plugins

    return (one for one in usable_plugins() if isinstance(one, str))


def hardware(scheme: AnyScheme) -> str:
    """Hardware that a scheme needs of a system, and hardware that it adds to it."""
    parts = []
    if needs := sorted(scheme.needs | {scheme.platform} - {""}):
        parts.append(f"needs {', '.join(needs)}")
    if scheme.proposes:
        parts.append(f"proposes {', '.join(sorted(scheme.proposes))}")
    return "; ".join(parts)


# ---- one scheme ----------------------------------------------------------------------------------


def to_json(scheme: AnyScheme) -> dict[str, Any]:
    """Everything about a scheme as plain values."""
    from replay.schemes import Scheme
    from replay.schemes.modules import modules_of
    from replay.schemes.options import about

    return {
        **scheme.describe(),
        "kind": scheme.kind,
        "summary": scheme.summary,
        "modelled_in": modules_of(scheme),
        "needs": sorted(scheme.needs),
        "candidates": {name: list(values) for name, values in scheme.candidates.items()},
        "about_options": [one.to_json() for one in about(scheme.options)],
        **(_of_experts(scheme) if isinstance(scheme, Scheme) else {}),
    }


def _of_experts(scheme: Scheme) -> dict[str, Any]:
    from replay.chains import host_program
    from replay.report.scheme_tables import SYSTEM, communicating_sms

    outlines = {
        name: host_program.typical_outline(scheme, is_backward=name == "backward") for name in ("forward", "backward")
    }
    listed = {name: None if one is None else host_program.program_of(one) for name, one in outlines.items()}
    forward, outline = listed["forward"], outlines["forward"]
    return {
        "overlap": scheme.overlap,
        "network": scheme.network,
        "gemm_types": sorted(scheme.gemm_types),
        "dispatch_types": sorted(scheme.dispatch_types),
        "combine_types": sorted(scheme.combine_types),
        "passes": sorted(scheme.passes),
        "most_ranks": scheme.most_ranks,
        "validity": scheme.validity,
        "wins": scheme.wins,
        "loses": scheme.loses,
        "spares": dict(scheme.spares),
        "communication_sms": {SYSTEM: communicating_sms(scheme)},
        "kernels": None if forward is None else host_program.num_kernels(forward),
        "captured": host_program.can_be_captured(forward),
        "waits": None if outline is None else host_program.waits_of(outline)._asdict(),
        "operations": {name: [one._asdict() for one in operations or ()] for name, operations in listed.items()},
    }


def explain(scheme: AnyScheme, as_json: bool) -> None:
    """Print everything about a scheme."""
    from replay.schemes import Scheme
    from replay.schemes.modules import modules_of
    from replay.schemes.options import about
    from replay.schemes.tp.base import TensorScheme

    if as_json:
        _print_json(to_json(scheme))
        return
    facts: dict[str, str] = {}
    if isinstance(scheme, TensorScheme):
        facts = _facts_of_tensor(scheme)
    elif isinstance(scheme, Scheme):
        facts = _facts_of_experts(scheme)
    facts |= {
        "needs": ", ".join(sorted(scheme.needs | {scheme.platform} - {""})) or "nothing special",
        "proposes": ", ".join(sorted(scheme.proposes)) or "no new hardware",
        "assumes": scheme.assumes or "nothing beyond its source",
        "source": scheme.source,
        "modelled in": ", ".join(modules_of(scheme)),
        **({"code": f"SHA-256 {scheme.code}"} if scheme.code else {}),
    }
    print(f"{scheme.name}: {scheme.summary}\n")
    for name, text in facts.items():
        print(indent(text, f"  {name:<9} ", " " * 12))
    if isinstance(scheme, TensorScheme):
        print("\n  A share is the rows that one of N GPUs owns: tokens / N.")
    elif isinstance(scheme, Scheme):
        _operations(scheme)
    options = about(scheme.options)
    print("\noptions" if options else "\nno options")
    for one in options:
        print(f"\n  {one.name} = {option_text(one)}")
        print(indent(one.help, " " * 6, " " * 6))
        print(indent(f"Values: {one.values}.", " " * 6, " " * 6))
        if one.name in scheme.candidates:
            tried = ", ".join(map(str, scheme.candidates[one.name]))
            when = "Tuned unless --no-tune; tries" if scheme.tuned_by_default else "--tune tries"
            print(indent(f"{when}: {tried}.", " " * 6, " " * 6))
        if one.source:
            print(indent(f"Default from: {one.source}.", " " * 6, " " * 6))


def _facts_of_tensor(scheme: TensorScheme) -> dict[str, str]:
    from replay.schemes.tp.traffic import GATHERS, REDUCES

    gather, reduce = GATHERS[scheme.traffic.gather], REDUCES[scheme.traffic.reduce]
    return {
        name: f"{of.moves}: {of.up} shares up, {of.down} down"
        for name, of in (("gathers", gather), ("reduces", reduce))
    }


def _facts_of_experts(scheme: Scheme) -> dict[str, str]:
    from replay.report.scheme_tables import SYSTEM, facts_of
    from replay.schemes.ep.traffic import NETWORK, TRAFFIC

    found = facts_of(scheme)
    return {
        "moves": TRAFFIC[scheme.traffic].moves if scheme.traffic in TRAFFIC else scheme.traffic,
        "network": NETWORK[scheme.network].moves if scheme.network in NETWORK else scheme.network,
        "overlap": scheme.overlap,
        "SMs": "no number of those that only communicate is stated"
        if found.sms == "-"
        else f"{found.sms} that only communicate, on {SYSTEM}",
        "types": found.types,
        "weights": ", ".join(["as the GEMMs' rows", *sorted(scheme.weight_types)]),
        "gradients": found.gradients,
        "valid for": found.limits if found.limits != "-" else "any set-up",
        **({"wins": scheme.wins, "loses": scheme.loses} if scheme.wins else {}),
    }


def _operations(scheme: Scheme) -> None:
    """Print a host's operations for a layer of a forward pass, and whether a graph can hold them."""
    from replay.chains import host_program

    outline = host_program.typical_outline(scheme)
    listed = () if outline is None else host_program.program_of(outline)
    if outline is None or not listed:
        return
    count = host_program.num_kernels(listed)
    print(f"\nsoftware: kernels of a layer on each GPU, if it has several experts: {count}")
    print(indent(f"({host_program.about_typical(scheme)})", "  ", "  "))
    for one in listed:
        what = f"{one.launches:>5} x {one.name}" if one.launches else f"   wait: {one.name}"
        more = "; ".join(text for text in (one.moves, one.source) if text)
        print(indent(f"{what} ({more})" if more else what, "", " " * 10))
    ends = "the first wait of the host ends what a CUDA graph can hold"
    every = "a CUDA graph can hold all of it"
    print(indent(every if host_program.can_be_captured(listed) else ends, "  ", "  "))
    waits = host_program.waits_of(outline)
    counts = (
        f"host waits {waits.host_waits}, meetings of all GPUs {waits.meetings}, "
        f"fences before meetings or flags {waits.fences}, rounds of flags {waits.flags}"
    )
    print(indent(counts, "  ", "  "))


def option_text(one: OptionFacts) -> str:
    """Give the default of an option with its unit."""
    default = str(one.default).lower() if isinstance(one.default, bool) else str(one.default)
    return f"{default} {one.unit}".rstrip()


def indent(text: str, first: str, others: str) -> str:
    """Break text at the width of the screen, behind margins of the first line and the others."""
    import textwrap

    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_on_hyphens=False,
        break_long_words=False,
    )


# ---- the contract --------------------------------------------------------------------------------


def _keeps_the_contract(scheme: AnyScheme, as_json: bool) -> bool:
    from replay.schemes.contract import checks_of, examine

    announce_compiling()
    findings = list(examine(scheme))
    if as_json:
        print(json.dumps([one._asdict() for one in findings], indent=1))
        return not findings
    print(f"{scheme.name}: {scheme.summary}\n")
    abouts = {"declared": "name, source, summary and traffic are stated"}
    abouts |= {name: check.about for name, check in checks_of(scheme).items()}
    for name, about in abouts.items():
        found = [one for one in findings if one.check == name]
        # A layer that cannot be built stops all checks behind the one that found it.
        stopped = any(one.stops for one in findings)
        state = "wrong" if found else "open" if stopped and name != "declared" else "ok"
        print(f"  {state:<6} {about}")
        for one in found[:SHOWN]:
            where = f'layer "{one.layer}": ' if one.layer else ""
            print(indent(where + one.sentence, " " * 9, " " * 11))
        if len(found) > SHOWN:
            layers = len({one.layer for one in found})
            print(f"{' ' * 9}and {len(found) - SHOWN:,} more on {layers} layers")
    if any(one.stops for one in findings):
        print("\nopen: not checked on every layer, since a check before it could not go on.")
    verdict = "breaks" if findings else "keeps"
    print(f"\n{scheme.name} {verdict} the contract of schemes.")
    return not findings
