"""What is left of a port's rate where packets go to, or come from, several peers in turn."""

from __future__ import annotations

import numpy as np
from loops import every
from round_machine import ROUND

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import TaskGraph
from replay.model.machine.kinds import COMBINE, DISPATCH, Kind, PhaseKinds
from replay.model.work.layer import ExpertShape
from replay.schemes import SCHEMES, find
from replay.schemes.contract import layers as small_layers

# Of one byte a picosecond.
FAN_OUT, SCATTER, BULK, MULTIMEM = 0.5, 0.25, 0.2, 0.125
SYSTEM = hwmodel.load(
    "dgx-h100",
    {
        **ROUND,
        "link.fan_out_efficiency": FAN_OUT,
        "link.scatter_efficiency": SCATTER,
        "link.bulk_scatter_efficiency": BULK,
        "switch.multimem_efficiency": MULTIMEM,
    },
)

Rates = tuple[float, float]
"""On the way out of a GPU and on the way in."""

STORED, LOADED = (FAN_OUT, 1.0), (1.0, FAN_OUT)  # whoever makes the packets alternates
IN_SWITCH = (MULTIMEM, MULTIMEM)
ONE_PEER = (1.0, 1.0)  # in a ring
ALTERNATING: dict[str, tuple[Rates, Rates]] = {
    "plain": (STORED, STORED),
    "nccl-alltoall": (STORED, STORED),
    "megatron": (STORED, STORED),
    "tutel": (STORED, STORED),
    "fastermoe": (STORED, STORED),
    "pangu": (STORED, STORED),
    "megatron-allgather": (ONE_PEER, ONE_PEER),
    "deepep": (STORED, STORED),
    "deepep-ll": ((SCATTER, 1.0), (BULK, 1.0)),
    "nccl-ep": ((SCATTER, 1.0), (BULK, 1.0)),
    "deepep-v2": (STORED, STORED),
    "hybrid-ep": (STORED, LOADED),
    "trtllm-alltoall": (STORED, LOADED),
    "nccl-ep-ht": (STORED, LOADED),
    "nvls": (IN_SWITCH, IN_SWITCH),
    "flux": (LOADED, STORED),
    "comet": (LOADED, STORED),
    "ccfuser": (LOADED, STORED),
    "megamoe": (LOADED, (SCATTER, 1.0)),
    "megamoe-hopper": (LOADED, (SCATTER, 1.0)),
    "flashinfer-push": (STORED, STORED),
    "flashdmoe": ((SCATTER, 1.0), (SCATTER, 1.0)),
    "dysharp-basic": (IN_SWITCH, IN_SWITCH),
    "dysharp-fusion-only": (STORED, LOADED),
    "dysharp-comet": (IN_SWITCH, IN_SWITCH),
    "dysharp": (IN_SWITCH, IN_SWITCH),
    "moe-hub": (STORED, STORED),
}
"""Rates of the dispatch and of the combine."""


def built(label: str, experts: int) -> TaskGraph:
    """Four GPUs, each of whose tokens have experts on so many of the GPUs behind it."""
    owner = np.repeat(np.arange(4), 8)
    ids = (owner[:, None] + 1 + np.arange(experts)) % 4
    layer = small_layers.work(ids.astype(np.int32), 4, 4, shape=ExpertShape(2048, 64))
    return build_layer(layer, SYSTEM, find(label))[0]


def rates(graph: TaskGraph, kind: Kind) -> np.ndarray:
    """Bytes a picosecond of every message with rows."""
    rows = (graph.kind == kind) & (graph.payload_bytes > 0)
    assert rows.any()
    found: np.ndarray = graph.wire_bytes[rows] / graph.duration_ps[rows]
    return found


def phases() -> list[tuple[PhaseKinds, int]]:
    return [(DISPATCH, 0), (COMBINE, 1)]


def test_every_scheme_with_wires_is_here() -> None:
    assert set(ALTERNATING) == {*SCHEMES, "plain"} - {"ideal"}


@every("label", ALTERNATING)
def test_a_port_with_several_peers_is_slower(label: str) -> None:
    graph = built(label, 2)
    for kinds, phase in phases():
        out, back = ALTERNATING[label][phase]
        np.testing.assert_allclose(rates(graph, kinds.up), out, rtol=1e-3)
        np.testing.assert_allclose(rates(graph, kinds.down), back, rtol=1e-3)


@every(
    "label",
    # Tutel has something for everybody.
    [label for label, (out, _) in ALTERNATING.items() if out != IN_SWITCH and label != "tutel"],
)
def test_a_port_with_one_peer_has_its_rate(label: str) -> None:
    graph = built(label, 1)
    for kinds, _ in phases():
        for kind in (kinds.up, kinds.down):
            np.testing.assert_allclose(rates(graph, kind), 1.0, rtol=1e-3)
