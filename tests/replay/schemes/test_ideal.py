"""`ideal` is a bound: nothing beats it, whatever the layer, the options and the machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
import pytest
from loops import every
from tiers import KINDS

import hwmodel
from hwmodel import System
from replay.chains.layer import build_layer
from replay.engine import schedule
from replay.errors import UserError
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES, Scheme, find
from replay.schemes.contract import layers as small_layers
from replay.schemes.options import about
from replay.schemes.registry import EXAMPLES

OTHERS = [name for name in SCHEMES if name != "ideal"]
RIVALS = [*OTHERS, *EXAMPLES]
PEAKS = [f"compute.{dtype}_peak_TFLOP_per_s" for dtype in ("bf16", "fp8", "fp32")]
MACHINES = {
    "as it is": {},
    "with slow tensor cores": {**dict.fromkeys(PEAKS, 0.2), "compute.tile_overhead_ns": 0.0},
    "with slow memory": {"hbm.peak_GB_per_s": 0.5},
}
"""Where products or weights take much longer than all else, little lies between a scheme and it."""
OUT_OF_BALANCE = list(MACHINES)[1:]


def in_its_turn(schemes: Iterable[str], turns: tuple[int, ...]) -> list[object]:
    """Schemes with the turn in which each takes the layers and both machines: a share of the pairs."""
    return [
        pytest.param(
            scheme, turns[RIVALS.index(scheme) // 2 % len(turns)], marks=() if scheme in KINDS else pytest.mark.extended
        )
        for scheme in schemes
    ]


FEW = ("zipf 8 ranks", "several tiles", "bf16 rows into fp8 GEMMs, fp32 rows back", "backward")


@cache
def machine(name: str, num_ranks: int) -> System:
    return hwmodel.load("dgx-h100" if num_ranks <= 8 else "gh200-nvl32", MACHINES[name])


@cache
def least_ps(machine_name: str, layer: str) -> int:
    work = small_layers.ALL[layer]()
    graph, _, _ = build_layer(work, machine(machine_name, work.num_ranks), SCHEMES["ideal"])
    return schedule(graph).makespan_ps


def takes_ps(machine_name: str, work: LayerWork, scheme: Scheme) -> int | None:
    """Time of a layer, None where a scheme or its options refuse it."""
    if scheme.refuses(work):
        return None
    try:
        graph, _, _ = build_layer(work, machine(machine_name, work.num_ranks), scheme)
    except UserError:
        return None
    return schedule(graph).makespan_ps


def due(place: int, turn: int) -> str | None:
    """Machine of the layer at a place in a turn: every other layer, all in two turns."""
    if (place + turn) % 2:
        return None
    return OUT_OF_BALANCE[(place // 2 + turn // 2) % 2]


@pytest.mark.parametrize(("scheme", "turn"), in_its_turn(RIVALS, (0, 1)))
def test_no_scheme_beats_it_on_a_machine_out_of_balance(scheme: str, turn: int) -> None:
    """On the machine as it is: test_scheme_contract.py."""
    replayed = 0
    for place, (layer, make) in enumerate(small_layers.ALL.items(), RIVALS.index(scheme)):
        machine_name = due(place, turn)
        if machine_name is None:
            continue
        time = takes_ps(machine_name, make(), find(scheme))
        if time is not None:
            assert time >= least_ps(machine_name, layer), layer
            replayed += 1
    assert replayed >= 10  # some take few types of rows


def variants(scheme: Scheme) -> Iterator[dict[str, object]]:
    """Every other value of each option that it names, one option at a time."""
    for one in about(scheme.options):
        values: list[object] = [*one.choices, *scheme.candidates.get(one.name, ())]
        if isinstance(one.default, bool):
            values = [True, False]
        elif one.least is not None:
            values += [type(one.default)(one.least), 2 * one.default]
        yield from ({one.name: value} for value in dict.fromkeys(values) if value != one.default)


@pytest.mark.parametrize(
    ("scheme", "turn"),
    # In the other turn another layer, and the other machine.
    in_its_turn([name for name in OTHERS if about(SCHEMES[name].options)], (0, len(FEW) + 1)),
)
def test_no_option_beats_it(scheme: str, turn: int) -> None:
    taken = [name for name in FEW if not SCHEMES[scheme].refuses(small_layers.ALL[name]())]
    replayed = 0
    for number, changed in enumerate(variants(SCHEMES[scheme])):
        try:
            other = SCHEMES[scheme].with_options(changed)
        except UserError:
            continue
        layer = taken[(number + turn) % len(taken)]
        machine_name = OUT_OF_BALANCE[(number + turn // (len(FEW) + 1)) % 2]
        time = takes_ps(machine_name, small_layers.ALL[layer](), other)
        if time is not None:
            assert time >= least_ps(machine_name, layer), (changed, machine_name, layer)
            replayed += 1
    assert replayed


@pytest.mark.parametrize("layers", [FEW, pytest.param((*small_layers.ALL,), marks=pytest.mark.extended)], ids=len)
@every("form", ["fused", "kernels"])
@every("machine_name", MACHINES)
def test_neither_form_beats_it(machine_name: str, form: str, layers: tuple[str, ...]) -> None:
    scheme = SCHEMES["ideal"].with_options({"form": form})
    for layer in layers:
        time = takes_ps(machine_name, small_layers.ALL[layer](), scheme)
        assert time is not None
        assert time >= least_ps(machine_name, layer), layer


@pytest.mark.parametrize("machine_name", list(MACHINES)[1:])
def test_little_lies_between_it_and_the_experts_in_one_kernel(machine_name: str) -> None:
    """64 tiles high and one wide for each of 2 x 66 SMs, in each GEMM: nothing is left over."""
    shape = ExpertShape(hidden=33 * 256, intermediate=33 * 128)
    work = small_layers.work(np.repeat(np.arange(2, dtype=np.int32), 256)[:, None], 2, 2, shape=shape)
    fused, least = (
        takes_ps(machine_name, work, SCHEMES["ideal"].with_options({"form": form})) for form in ("fused", "least")
    )
    assert fused is not None and least is not None
    assert least <= fused < 1.1 * least
