"""The contract over every scheme of tensor parallelism: one is under test when it is listed.

Planted defects, each with the check that finds it: `test_broken_tensor_schemes.py`.
"""

from __future__ import annotations

import pytest

from replay.measure.measures import measures
from replay.model.work.transformer_layer import Leave
from replay.schemes.base import AnyScheme
from replay.schemes.contract.examine import case_of, check_declaration, examine_case
from replay.schemes.contract.tensor_checks import TENSOR_CHECKS
from replay.schemes.contract.tensor_layers import BY_ROWS, TENSOR_LAYERS, payload_row_by_row
from replay.schemes.registry import EVERY, TENSOR_EXAMPLES, TENSOR_SCHEMES
from replay.schemes.tp.base import TensorScheme
from replay.schemes.tp.traffic import GATHERS, REDUCES, TensorTraffic, gathers_of

FEWER = {"chunks": 2}
"""Options whose defaults make many tasks of a small layer."""


def small(scheme: TensorScheme, **options: object) -> TensorScheme:
    """The scheme with some options, and fewer tasks."""
    fewer = {name: value for name, value in FEWER.items() if hasattr(scheme.options, name)}
    return scheme.with_options({**fewer, **options})


LISTED = TENSOR_SCHEMES | TENSOR_EXAMPLES
SCHEMES = {
    **{name: small(scheme) for name, scheme in LISTED.items()},
    **{
        f"{name}, sequence parallel": small(scheme, sequence_parallel=True)
        for name, scheme in LISTED.items()
        if hasattr(scheme.options, "sequence_parallel")
    },
}
"""Every scheme as it is, and with sequence parallelism where that is an option."""
DEALT = ("attention to mlp, backward", "mlp to attention, 3 GPUs", "decode", "experts", "one GPU")
"""Layers that schemes have by turns in the default tier, beside those by rows; all others are extended."""


def every_time(scheme: str, layer: str) -> bool:
    """Whether a pair is in the default tier: every other of the layers that are dealt out."""
    return layer in BY_ROWS or (layer in DEALT and (DEALT.index(layer) + [*SCHEMES].index(scheme)) % 2 == 0)


def examined(scheme: str, layer: str) -> bool:
    """Whether a pair is in one of both tiers: every fourth of the layers that are extended."""
    turn = [*TENSOR_LAYERS].index(layer) + [*SCHEMES].index(scheme)
    return every_time(scheme, layer) or layer in DEALT or turn % 4 == 0


CASES = [
    pytest.param(scheme, layer, marks=() if every_time(scheme, layer) else pytest.mark.extended)
    for scheme in SCHEMES
    for layer in TENSOR_LAYERS
    if examined(scheme, layer) and not SCHEMES[scheme].refuses(TENSOR_LAYERS[layer].make())
]


@pytest.mark.parametrize(("scheme", "layer"), CASES)
def test_the_contract(scheme: str, layer: str) -> None:
    """All that is read from one graph and schedule: a test of its own each would be 2,000."""
    case = case_of(SCHEMES[scheme], layer)
    assert not list(examine_case(case))
    built, timeline = case.built, case.timeline
    found = measures(built.graph, built.ends, built.machine, timeline, phases_separated=False)
    assert found.bounds_us.largest_us <= found.makespan_us
    assert 0 <= found.exposed_communication_us <= found.makespan_us


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_declares_what_users_are_told_and_runs_both_passes(name: str) -> None:
    scheme = SCHEMES[name]
    assert not list(check_declaration(scheme))
    assert "\n" not in scheme.summary + scheme.source
    for layer in ("forward", "backward"):
        assert not scheme.refuses(TENSOR_LAYERS[layer].make())


def test_every_check_is_carried_out() -> None:
    layers = {layer for _, layer in (case.values for case in CASES)}
    assert len(TENSOR_CHECKS) == 15
    for check in TENSOR_CHECKS.values():
        assert set(check.layers) & layers


def test_names_are_unique_across_kinds() -> None:
    """One registry finds schemes of both kinds, so that no name may stand for two."""
    each: list[AnyScheme] = [*EVERY.values()]
    assert len({one.name for one in each}) == len(each)
    assert {one.kind for one in each} == {"ep", "tp"}


@pytest.mark.parametrize("layer", TENSOR_LAYERS)
def test_closed_forms_are_those_of_rows(layer: str) -> None:
    work = TENSOR_LAYERS[layer].make()
    share = work.own_rows * work.row_bytes * (work.num_ranks > 1)
    num = {"gather": gathers_of(work), "reduce": work.num(Leave)}
    classes = {"gather": GATHERS, "reduce": REDUCES}
    for gather, reduce in [(one, "none") for one in GATHERS] + [("none", one) for one in REDUCES]:
        traffic = TensorTraffic(gather, reduce)
        rows = payload_row_by_row(work, traffic)
        for phase, name in traffic._asdict().items():
            one = classes[phase][name]
            for port, form in (("uplink", one.up), ("downlink", one.down)):
                expected = num[phase] * share * shares(form, work.num_ranks)
                assert {rows[phase][port, gpu] for gpu in range(work.num_ranks)} == {expected}


def shares(form: str, num_ranks: int) -> int:
    """Value of a form such as ``2 (N - 1)``."""
    return int(eval(form.replace(" (", " * ("), {"N": num_ranks}))
