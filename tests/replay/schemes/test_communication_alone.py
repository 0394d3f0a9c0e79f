"""The communication alone: that of the whole layer to the byte, without what experts do."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import cache
from itertools import islice

import numpy as np
import pytest
from tiers import KINDS as KINDS_OF_SCHEMES

from replay.chains.replay import Replay
from replay.engine import TaskGraph, schedule
from replay.errors import UserError
from replay.model.machine.kinds import KINDS, Kind
from replay.schemes import SCHEMES, find
from replay.schemes.contract import layers
from replay.schemes.contract.case import Case, system_for
from replay.schemes.registry import EXAMPLES

OF_EXPERTS = [
    kind for kind in Kind if KINDS[kind].phase in ("gemm1", "activation", "gemm2", "wgrad") or kind == Kind.CAST
]
SCHEMES_OF_ROWS = [*(name for name in SCHEMES if name != "ideal"), *EXAMPLES]


FEW = (
    *("uniform 8 ranks fp8", "experts in two slices", "backward, uneven ranks", "one gpu"),
    *("all to one expert", "some slots empty", "16 ranks", "shared experts fp8"),
)
"""Layers of the default tier, each special in another way."""


def cases(scheme: str, names: Iterable[str]) -> list[Case]:
    """Those of some layers that a scheme takes."""
    every = (Case(find(scheme), name, layers.ALL[name]()) for name in names)
    return [case for case in every if not case.refusal]


def replays(case: Case) -> tuple[TaskGraph, TaskGraph]:
    """Graph of the whole layer, and that of its communication."""
    whole = Replay([case.link], case.system, case.scheme)
    alone = dataclasses.replace(whole, communication_only=True)
    return whole.build().built.graph, alone.build().built.graph


def on_ports(graph: TaskGraph) -> dict[tuple[int, int], tuple[int, int]]:
    """Bytes on the wire and payload, by kind of message and resource."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for task in np.flatnonzero(graph.wire_bytes):
        key = int(graph.kind[task]), int(graph.resource[task])
        wire, payload = found.get(key, (0, 0))
        found[key] = wire + int(graph.wire_bytes[task]), payload + int(graph.payload_bytes[task])
    return found


@cache
def ideal_ps(layer: str, platform: str, form: str, rows: str) -> int:
    """Time of an ideal on a layer, whatever scheme of the platform is compared with it."""
    ideal = SCHEMES["ideal"].with_options({"form": form, "rows": rows})
    case = Case(ideal, layer, layers.ALL[layer]())
    replay = Replay([case.link], system_for(case.num_ranks, platform=platform), ideal)
    return schedule(replay.build().built.graph).makespan_ps


def examine(scheme: str, names: Iterable[str]) -> int:
    """Look at layers: traffic and time beside those of the whole layer, and above the ideals.

    A switch that copies and adds up sends less than the ideal of GPUs that do it. Returns how many
    of the layers the scheme takes.
    """
    in_switch = SCHEMES[scheme].traffic == "switch" if scheme in SCHEMES else False
    seen = 0
    for case in cases(scheme, names):
        try:
            whole, alone = replays(case)
        except UserError:  # shared experts that have no place
            continue
        assert not np.isin(alone.kind, OF_EXPERTS).any(), case.name
        assert on_ports(alone) == on_ports(whole), case.name
        times = [schedule(graph).makespan_ps for graph in (whole, alone)]
        assert times[1] <= times[0], case.name
        for rows in ["switch"] if in_switch else ["copy", "switch"]:
            for form, time in zip(("busiest", "communication"), times, strict=True):
                assert ideal_ps(case.name, case.scheme.platform, form, rows) <= time, (case.name, form, rows)
        seen += 1
    return seen


@pytest.mark.parametrize("scheme", KINDS_OF_SCHEMES)
def test_it_is_the_communication_of_a_few_layers(scheme: str) -> None:
    assert examine(scheme, FEW) >= len(FEW) - 2


@pytest.mark.extended
@pytest.mark.parametrize("scheme", SCHEMES_OF_ROWS)
def test_it_is_the_communication_of_every_layer(scheme: str) -> None:
    """Of a sixth of the layers: schemes take them by turns."""
    assert examine(scheme, islice(layers.ALL, SCHEMES_OF_ROWS.index(scheme) % 6, None, 6)) >= 2


def test_the_ideal_of_it_is_the_ports() -> None:
    case = Case(SCHEMES["ideal"], "uniform 4 ranks", layers.ALL["uniform 4 ranks"]())
    _, alone = replays(case)
    form = SCHEMES["ideal"].with_options({"form": "communication"})
    ports = Replay([case.link], case.system, form).build().built.graph
    assert schedule(alone).makespan_ps == schedule(ports).makespan_ps > 0
    moved = {Kind.DISPATCH_UP, Kind.DISPATCH_DOWN, Kind.COMBINE_UP, Kind.COMBINE_DOWN}
    assert set(alone.kind.tolist()) == {Kind.MARK, *moved}


@pytest.mark.parametrize("form", ["fused", "kernels"])
def test_forms_of_experts_are_refused_without_experts(form: str) -> None:
    scheme = SCHEMES["ideal"].with_options({"form": form})
    with pytest.raises(UserError, match=f"form={form} is the experts alone"):
        replays(Case(scheme, "one gpu", layers.ALL["one gpu"]()))
