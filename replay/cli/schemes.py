"""``moereplay schemes``: the list, everything about one scheme, the contract."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.cli.screen import announce_compiling, show
from replay.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from replay.schemes import Scheme
    from replay.schemes.options import About
    from tracegen.shared.display.content import Table

SHOWN = 3  # findings of one check; more say the same of other GPUs and layers
WIDTH = 80

SchemeArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[SCHEME]",
        help="A name, or FILE.py:NAME, which executes the file; or the word check.",
    ),
]
CheckedArgument = Annotated[
    str | None, typer.Argument(metavar="[SCHEME]", help="After check: the scheme to check.")
]


def schemes(
    scheme: SchemeArgument = None,
    checked: CheckedArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the schemes; explain SCHEME; `check SCHEME` runs the contract on it.

    A check ends with exit code 0 if the scheme keeps the contract and with 1 if it does not.
    """
    from replay.schemes import find
    from replay.schemes.registry import COMPARED

    if scheme is None:
        _list(COMPARED.values(), as_json)
    elif scheme == "check":
        if checked is None:
            message = "check what? Expected `moereplay schemes check SCHEME`"
            raise UserError(message)
        if not _keeps_the_contract(find(checked, allow_code=True), as_json):
            raise typer.Exit(1)
    elif checked is not None:
        message = f"unexpected {checked!r} after {scheme!r}; only check takes a second word"
        raise UserError(message)
    else:
        _explain(find(scheme, allow_code=True), as_json)


# ---- the list ------------------------------------------------------------------------------------


def _list(schemes: Iterable[Scheme], as_json: bool) -> None:
    from replay.report.scheme_tables import ABOUT_NUMBERS
    from replay.schemes.registry import EXAMPLES

    found = [*schemes]
    broken = []
    for point in _plugins():
        if isinstance(point, str):
            broken.append(point)
        else:
            found.append(point)
    if as_json:
        print(json.dumps([to_json(one) for one in found], indent=1, sort_keys=True))
    else:
        show(*_tables(found), "")
        print(indented(ABOUT_NUMBERS, "", ""))
        bound = ", ".join(one.name for one in found if not one.network)
        print(indented(f"Only for ranks within one NVLink domain: {bound}.", "", ""))
        for line in _interleaved(found):
            print(line)
        print("moereplay schemes SCHEME explains one: options, assumptions, source.")
        print(f"Found by name, not compared unless asked for: {', '.join(EXAMPLES)}.")
    for line in broken:
        print(line, file=sys.stderr)


def _tables(found: Sequence[Scheme]) -> tuple[Table, Table, Table]:
    """What schemes do, what they move and take, and what their code has."""
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
            [
                (one.name, one.traffic, one.overlap, each.sms, each.kernels, each.graph)
                for one, each in facts
            ],
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


def _interleaved(found: Iterable[Scheme]) -> Iterable[str]:
    """Which schemes each value of ``--interleave`` has, in lines."""
    from replay.schemes.ep.staged import StagedScheme

    names: dict[str, list[str]] = {}
    for one in found:
        if isinstance(one, StagedScheme):
            names.setdefault(", ".join(sorted(one.interleaves)), []).append(one.name)
    for kinds, able in sorted(names.items()):
        yield indented(f"--interleave {kinds}: {', '.join(able)}.", "", "")


def _plugins() -> Iterable[Scheme | str]:
    """Schemes of plug-ins; a line of text for each that cannot be used."""
    from replay.schemes import find
    from replay.schemes.outside import plugins
    from replay.schemes.registry import COMPARED, EXAMPLES

    for name in plugins():
        if name in COMPARED or name in EXAMPLES:
            yield f"plug-in {name!r} is not used: moereplay has a scheme of this name"
            continue
        try:
            yield find(name, allow_code=False)
        except UserError as error:
            yield str(error)


def hardware(scheme: Scheme) -> str:
    """Hardware that a scheme needs of a system, and hardware that it adds to it."""
    parts = []
    if needs := sorted(scheme.needs | {scheme.platform} - {"", "cuda"}):
        parts.append(f"needs {', '.join(needs)}")
    if scheme.proposes:
        parts.append(f"proposes {', '.join(sorted(scheme.proposes))}")
    return "; ".join(parts)


# ---- one scheme ----------------------------------------------------------------------------------


def to_json(scheme: Scheme) -> dict[str, Any]:
    """Everything about a scheme as plain values."""
    from replay.report.scheme_tables import SYSTEM, communicating_sms, num_kernels
    from replay.schemes.ep.software import TYPICAL
    from replay.schemes.options import about

    return {
        **scheme.describe(),
        "summary": scheme.summary,
        "overlap": scheme.overlap,
        "needs": sorted(scheme.needs),
        "network": scheme.network,
        "gemm_types": sorted(scheme.gemm_types),
        "dispatch_types": sorted(scheme.dispatch_types),
        "combine_types": sorted(scheme.combine_types),
        "passes": sorted(scheme.passes),
        "most_ranks": scheme.most_ranks,
        "validity": scheme.validity,
        "communication_sms": {SYSTEM: communicating_sms(scheme)},
        "kernels": num_kernels(scheme),
        "captured": scheme.can_be_captured(),
        "operations": {
            name: [dataclasses.asdict(one) for one in scheme.operations(layer)]
            for name, layer in (
                ("forward", TYPICAL),
                ("backward", TYPICAL._replace(is_backward=True)),
            )
        },
        "candidates": {name: list(values) for name, values in scheme.candidates.items()},
        "about_options": [one.to_json() for one in about(scheme.options)],
    }


def _explain(scheme: Scheme, as_json: bool) -> None:
    from replay.report.scheme_tables import SYSTEM, facts_of
    from replay.schemes.ep.traffic import NETWORK, TRAFFIC
    from replay.schemes.options import about

    if as_json:
        print(json.dumps(to_json(scheme), indent=1, sort_keys=True))
        return
    found = facts_of(scheme)
    facts = {
        "moves": TRAFFIC[scheme.traffic].moves if scheme.traffic in TRAFFIC else scheme.traffic,
        "network": NETWORK[scheme.network].moves if scheme.network in NETWORK else scheme.network,
        "overlap": scheme.overlap,
        "needs": ", ".join(sorted(scheme.needs | {scheme.platform} - {""})) or "nothing special",
        "proposes": ", ".join(sorted(scheme.proposes)) or "no new hardware",
        "SMs": "no number of those that only communicate is stated"
        if found.sms == "-"
        else f"{found.sms} that only communicate, on {SYSTEM}",
        "types": found.types,
        "gradients": found.gradients,
        "valid for": found.limits if found.limits != "-" else "any set-up",
        "assumes": scheme.assumes or "nothing beyond its source",
        "source": scheme.source,
        **({"code": f"SHA-256 {scheme.code}"} if scheme.code else {}),
    }
    print(f"{scheme.name}: {scheme.summary}\n")
    for name, text in facts.items():
        print(indented(text, f"  {name:<10}", " " * 12))
    _operations(scheme)
    options = about(scheme.options)
    print("\noptions" if options else "\nno options")
    for one in options:
        print(f"\n  {one.name} = {shown(one)}")
        print(indented(one.help, " " * 6, " " * 6))
        print(indented(f"Values: {one.values}.", " " * 6, " " * 6))
        if one.name in scheme.candidates:
            tried = ", ".join(map(str, scheme.candidates[one.name]))
            when = "Tuned unless --no-tune; tries" if scheme.tuned_by_default else "--tune tries"
            print(indented(f"{when}: {tried}.", " " * 6, " " * 6))
        if one.source:
            print(indented(f"Default from: {one.source}.", " " * 6, " " * 6))


def _operations(scheme: Scheme) -> None:
    """What a host does for a layer of a forward pass, and whether a graph can hold it."""
    from replay.schemes.ep.software import as_program

    listed = scheme.operations()
    if not listed:
        return
    count = sum(one.launches for one in as_program(listed))
    waits = sum(not one.launches for one in listed)
    print(f"\nsoftware: kernels of a layer on each GPU, if it has several experts: {count}")
    for one in listed:
        what = f"{one.launches:>5} x {one.name}" if one.launches else f"   wait: {one.name}"
        more = "; ".join(text for text in (one.moves, one.source) if text)
        print(indented(f"{what} ({more})" if more else what, "", " " * 10))
    ends = "the first wait of the host ends what a CUDA graph can hold"
    print(indented(ends if waits else "a CUDA graph can hold all of it", "  ", "  "))


def shown(one: About) -> str:
    """Give the default of an option with its unit."""
    default = str(one.default).lower() if isinstance(one.default, bool) else str(one.default)
    return f"{default} {one.unit}".rstrip()


def indented(text: str, first: str, others: str) -> str:
    """Break text at the width of the screen, behind margins of the first line and the others."""
    import textwrap

    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=others,
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip


# ---- the contract --------------------------------------------------------------------------------


def _keeps_the_contract(scheme: Scheme, as_json: bool) -> bool:
    from replay.schemes.contract import CHECKS, examine

    announce_compiling()
    findings = list(examine(scheme))
    if as_json:
        print(json.dumps([one._asdict() for one in findings], indent=1))
        return not findings
    print(f"{scheme.name}: {scheme.summary}\n")
    abouts = {"declared": "name, source, summary and traffic are stated"}
    abouts |= {name: check.about for name, check in CHECKS.items()}
    for name, about in abouts.items():
        found = [one for one in findings if one.check == name]
        # A layer that cannot be built stops all checks behind the one that found it.
        stopped = any(one.stops for one in findings)
        state = "wrong" if found else "open" if stopped and name != "declared" else "ok"
        print(f"  {state:<6} {about}")
        for one in found[:SHOWN]:
            where = f'layer "{one.layer}": ' if one.layer else ""
            print(indented(where + one.sentence, " " * 9, " " * 11))
        if len(found) > SHOWN:
            layers = len({one.layer for one in found})
            print(f"{' ' * 9}and {len(found) - SHOWN:,} more on {layers} layers")
    if any(one.stops for one in findings):
        print("\nopen: not checked on every layer, since a check before it could not go on.")
    verdict = "breaks" if findings else "keeps"
    print(f"\n{scheme.name} {verdict} the contract of schemes.")
    return not findings
