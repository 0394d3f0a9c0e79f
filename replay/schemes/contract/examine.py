"""All checks on all layers, with one graph and one schedule per layer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, overload

from replay.model.work.precision import NUMBER_TYPES, VALUE_TYPES
from replay.schemes.contract.case import Case
from replay.schemes.contract.checks import CHECKS
from replay.schemes.contract.layers import ACROSS, LAYERS
from replay.schemes.contract.tensor_checks import TENSOR_CHECKS, TensorCase
from replay.schemes.contract.tensor_layers import TENSOR_LAYERS
from replay.schemes.ep.base import Scheme
from replay.schemes.ep.facts import BOTH_PASSES
from replay.schemes.ep.traffic import NETWORK, TRAFFIC
from replay.schemes.outside import failure
from replay.schemes.tp.base import TensorScheme
from replay.schemes.tp.traffic import GATHERS, REDUCES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replay.schemes.base import AnyScheme
    from replay.schemes.contract.basics import Check
    from replay.schemes.contract.case import AnyCase

NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
LONGEST_SUMMARY = 70
RESERVED = ("check", "list", "show")  # words of `moereplay schemes`


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


def checks_of(scheme: AnyScheme) -> Mapping[str, Check]:
    """Look up what a scheme of its kind must keep, by name."""
    return TENSOR_CHECKS if isinstance(scheme, TensorScheme) else CHECKS


def examine(scheme: AnyScheme) -> Iterator[Finding]:
    """Check a scheme against the whole contract.

    Parameters
    ----------
    scheme
        Any scheme, with the options that are to be checked.

    Returns
    -------
    What is wrong, layer by layer; nothing for a scheme that keeps the contract.
    """
    wrong, known = list(check_declaration(scheme)), _is_counted(scheme)
    yield from (Finding("declared", "", sentence, stops=not known) for sentence in wrong)
    if not known:
        return  # nothing can be counted
    names = TENSOR_LAYERS if isinstance(scheme, TensorScheme) else (*LAYERS, *ACROSS)
    refused = 0
    for name in names:
        case = case_of(scheme, name)
        yield from examine_case(case)
        refused += bool(case.refusal)
    if refused == len(names):
        yield Finding("declared", "", "it refuses every layer of the contract", stops=True)


@overload
def case_of(scheme: Scheme, name: str) -> Case: ...
@overload
def case_of(scheme: TensorScheme, name: str) -> TensorCase: ...
@overload
def case_of(scheme: AnyScheme, name: str) -> AnyCase: ...
def case_of(scheme: AnyScheme, name: str) -> AnyCase:
    """A scheme on one layer, by name: of `TENSOR_LAYERS`, or of `LAYERS` and `ACROSS`."""
    if isinstance(scheme, TensorScheme):
        return TensorCase(scheme, name, TENSOR_LAYERS[name].make())
    assert isinstance(scheme, Scheme)
    if name in ACROSS:
        return Case(scheme, name, ACROSS[name].make(), ACROSS[name].domain_size)
    return Case(scheme, name, LAYERS[name]())


def examine_case(case: AnyCase) -> Iterator[Finding]:
    """Check a scheme on a layer, whose graph and schedule the case keeps for others to read."""
    if case.refusal:
        if "\n" in case.refusal:
            yield Finding("declared", case.name, f"it refuses in several lines: {case.refusal!r}")
        return  # nothing is promised of it; `replay.chains.chain` does not let it be built
    for key, check in checks_of(case.scheme).items():
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


def _is_counted(scheme: AnyScheme) -> bool:
    """Tell whether its classes of traffic are known, so that bytes can be counted."""
    if isinstance(scheme, TensorScheme):
        return scheme.traffic.gather in GATHERS and scheme.traffic.reduce in REDUCES
    return isinstance(scheme, Scheme) and scheme.traffic in TRAFFIC and scheme.network in NETWORK


def check_declaration(scheme: AnyScheme) -> Iterator[str]:
    """Faults in what a scheme says about itself, in sentences."""
    if not NAME.fullmatch(scheme.name) or scheme.name in RESERVED:
        yield (
            f"name {scheme.name!r}: expected lower-case words and digits joined by '-', and not "
            f"{' or '.join(map(repr, RESERVED))}"
        )
    if not scheme.source:
        yield "source is empty: say which paper or code the model follows"
    if not 0 < len(scheme.summary) <= LONGEST_SUMMARY:
        yield f"summary has {len(scheme.summary)} characters: expected 1 to {LONGEST_SUMMARY}"
    if isinstance(scheme, TensorScheme):
        yield from _declared_of_tensor(scheme)
    elif isinstance(scheme, Scheme):
        yield from _declared_of_experts(scheme)


def _declared_of_experts(scheme: Scheme) -> Iterator[str]:
    for name, possible in (
        ("gemm_types", VALUE_TYPES),
        ("dispatch_types", VALUE_TYPES),
        ("combine_types", NUMBER_TYPES),
        ("passes", BOTH_PASSES),
    ):
        stated = getattr(scheme, name)
        if not stated or not stated <= set(possible):
            yield (f"{name} are {', '.join(sorted(stated)) or 'none'}: expected some of {', '.join(sorted(possible))}")
    if scheme.network not in NETWORK:
        yield f"network {scheme.network!r} is no class of it; known: {', '.join(NETWORK)}"
    if scheme.traffic not in TRAFFIC:
        yield f"traffic {scheme.traffic!r} is no class of traffic; known: {', '.join(TRAFFIC)}"


def _declared_of_tensor(scheme: TensorScheme) -> Iterator[str]:
    for what, name, classes in (
        ("gather", scheme.traffic.gather, GATHERS),
        ("reduce", scheme.traffic.reduce, REDUCES),
    ):
        if name not in classes:
            yield f"traffic.{what} {name!r} is no class of it; known: {', '.join(classes)}"
    owns = scheme.sequence_parallel
    if owns == scheme.traffic.reduce.endswith("-all") or owns == (scheme.traffic.gather == "none"):
        yield (
            f"sequence_parallel is {owns}, its classes of traffic are {scheme.traffic.gather!r} "
            f"and {scheme.traffic.reduce!r}: rows are gathered, and sums come to their owner "
            "alone, where GPUs own rows, and nowhere else"
        )
    if scheme.proposes and not scheme.assumes:
        yield "assumes is empty: say what the proposed hardware is taken to do"
