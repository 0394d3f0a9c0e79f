"""All checks on all layers, with one graph and one schedule per layer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from replay.model.work.precision import NUMBER_TYPES
from replay.schemes.contract.case import Case
from replay.schemes.contract.checks import CHECKS
from replay.schemes.contract.layers import ACROSS, LAYERS
from replay.schemes.ep.facts import BOTH_PASSES
from replay.schemes.ep.traffic import NETWORK, TRAFFIC
from replay.schemes.outside import failure

if TYPE_CHECKING:
    from replay.schemes import Scheme

NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
LONGEST_SUMMARY = 70
RESERVED = "check"  # `moereplay schemes check NAME`


class Finding(NamedTuple):
    """Something that is wrong.

    Attributes
    ----------
    check, layer
        Names of the check that found it, and of the layer; no layer for what a scheme declares.
    sentence
        What is wrong.
    stops
        Whether the checks behind it were left out on this layer.
    """

    check: str
    layer: str
    sentence: str
    stops: bool = False


def examine(scheme: Scheme) -> Iterator[Finding]:
    """Check a scheme against the whole contract.

    Parameters
    ----------
    scheme
        Any scheme, with the options that are to be checked.

    Returns
    -------
    What is wrong, layer by layer; nothing for a scheme that keeps the contract.
    """
    wrong = list(declared(scheme))
    known = scheme.traffic in TRAFFIC and scheme.network in NETWORK
    yield from (Finding("declared", "", sentence, stops=not known) for sentence in wrong)
    if not known:
        return  # nothing can be counted
    for name in (*LAYERS, *ACROSS):
        yield from examine_layer(scheme, name)


def examine_layer(scheme: Scheme, name: str) -> Iterator[Finding]:
    """Check a scheme on one layer of `replay.schemes.contract.layers`, by name."""
    return examine_case(case_of(scheme, name))


def case_of(scheme: Scheme, name: str) -> Case:
    """A scheme on one layer of `replay.schemes.contract.layers`, by name."""
    if name in ACROSS:
        return Case(scheme, name, ACROSS[name].make(), ACROSS[name].domain_size)
    return Case(scheme, name, LAYERS[name]())


def examine_case(case: Case) -> Iterator[Finding]:
    """Check a scheme on a layer, whose graph and schedule the case keeps for others to read."""
    if case.refused:
        return  # nothing is promised of it; `replay.chains.chain` does not let it be built
    for key, check in CHECKS.items():
        if case.name not in check.layers:
            continue
        try:
            for sentence in check.find(case):
                yield Finding(key, case.name, sentence, stops=key == "ends")
                if key == "ends":
                    return  # nothing can be said without the ends
        except Exception as error:  # whatever a scheme's own code does wrong is a finding
            yield Finding(key, case.name, failure(case.scheme, error), stops=True)
            return  # the checks that follow would fail in the same place


def declared(scheme: Scheme) -> Iterator[str]:
    """Faults in what a scheme says about itself, in sentences."""
    if not NAME.fullmatch(scheme.name) or scheme.name == RESERVED:
        yield (
            f"name {scheme.name!r}: expected lower-case words and digits joined by '-', and not "
            f"{RESERVED!r}"
        )
    if not scheme.source:
        yield "source is empty: say which paper or code the model follows"
    if not 0 < len(scheme.summary) <= LONGEST_SUMMARY:
        yield f"summary has {len(scheme.summary)} characters: expected 1 to {LONGEST_SUMMARY}"
    for name, possible in (
        ("gemm_types", NUMBER_TYPES),
        ("dispatch_types", NUMBER_TYPES),
        ("combine_types", NUMBER_TYPES),
        ("passes", BOTH_PASSES),
    ):
        stated = getattr(scheme, name)
        if not stated or not stated <= set(possible):
            yield (
                f"{name} are {', '.join(sorted(stated)) or 'none'}: expected some of "
                f"{', '.join(sorted(possible))}"
            )
    if scheme.network not in NETWORK:
        yield f"network {scheme.network!r} is no class of it; known: {', '.join(NETWORK)}"
    if scheme.traffic not in TRAFFIC:
        yield f"traffic {scheme.traffic!r} is no class of traffic; known: {', '.join(TRAFFIC)}"
