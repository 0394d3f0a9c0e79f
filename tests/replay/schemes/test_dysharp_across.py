"""DySHARP between domains: a row crosses once, and the GPU that it comes to pays for the rest."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from loops import every
from round_machine import NS, ROUND

import hwmodel
from hwmodel import System
from replay.chains.layer import build_layer
from replay.engine import TaskGraph, schedule
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.contract.examine import case_of, examine_case
from replay.schemes.contract.graph_facts import port_bytes

HIDDEN = 256
ROW = 2 * HIDDEN
PUSH, READ, WRITE = 10, 5, 20  # ps a byte: an SM stores to a peer, reads and writes its own memory
VARIANTS = ("dysharp", "dysharp-comet", "dysharp-basic", "dysharp-fusion-only")

# Two experts on each of four GPUs, two domains: GPUs 0 and 1, GPUs 2 and 3. All tokens are GPU 0's,
# so that GPU 2 passes rows on. Token 0 has experts on GPUs 2 and 3, token 1 on 0, 1 and 3, token 2
# on 1, token 3 on 2 alone.
IDS = [[4, 6, 7], [0, 2, 6], [2, 3, -1], [5, -1, -1]]


@cache
def domains(num: int, size: int) -> System:
    """So many domains of so many GPUs, of round numbers."""
    across = {"fabric.num_gpus": size, "fabric.num_domains": num}
    return hwmodel.load("dgx-h100", {**ROUND, **across})


def layer(**given: Any) -> LayerWork:
    ids = np.array(IDS, np.int32)
    return small_layers.work(ids, 4, 8, tokens_of_rank=[4, 0, 0, 0], shape=ExpertShape(HIDDEN, 64), **given)


def graph_of(name: str, **options: Any) -> TaskGraph:
    scheme = SCHEMES[name].with_options(options)
    return build_layer(layer(), domains(2, 2), scheme)[0]


def on_sms(graph: TaskGraph, kind: Kind, gpu: int) -> list[int]:
    """Times of tasks of SMs."""
    sms = np.array([*graph.resources.groups, ""])[graph.resource]
    chosen = (graph.kind == kind) & (graph.rank == gpu) & np.char.startswith(sms, "dysharp")
    return sorted(graph.duration_ps[chosen].tolist())


@every("name", VARIANTS)
def test_a_row_crosses_once_for_each_domain(name: str) -> None:
    carried = port_bytes(graph_of(name))
    # Tokens 0, 1 and 3 have experts in the other domain.
    for phase, out, into in (("dispatch", 0, 2), ("combine", 2, 0)):
        ports = {port: rows for port, rows in carried[phase].items() if rows and "nic" in port[0]}
        assert ports == {("nic-out", out): 3 * ROW, ("nic-in", into): 3 * ROW}
    # In the other domain tokens 0 and 1 go on to GPU 3; in its own one 1 and 2 go to GPU 1.
    assert carried["dispatch"]["uplink", 2] == carried["dispatch"]["downlink", 3] == 2 * ROW
    assert carried["dispatch"]["uplink", 0] == carried["combine"]["downlink", 0] == 2 * ROW
    assert carried["combine"]["uplink", 3] == 2 * ROW


@every("name", VARIANTS)
def test_the_gpu_that_rows_come_to_stores_adds_and_asks(name: str) -> None:
    graph = graph_of(name)
    # Rows of tokens 0 and 1 on to GPU 3, those of tokens 0 and 3 into its own memory.
    assert on_sms(graph, Kind.DISPATCH_SEND, 2) == [PUSH * ROW] * 4
    # Of GPU 0: three rows to the network card, two to GPU 1, token 1 into its own memory.
    assert on_sms(graph, Kind.DISPATCH_SEND, 0) == [PUSH * ROW] * 6
    # It asks for the sums of tokens 0 and 1, and adds its own rows: two rows, one, one.
    assert len(on_sms(graph, Kind.COMBINE_SEND, 2)) == 2
    adds = [rows * READ * ROW + WRITE * ROW for rows in (1, 1, 2)]
    assert on_sms(graph, Kind.COMBINE_RECEIVE, 2) == adds
    # At the owner: a sum from abroad; that, its own row and GPU 1's; GPU 1's; a sum from abroad.
    owner = [rows * READ * ROW + WRITE * ROW for rows in (1, 1, 1, 3)]
    assert on_sms(graph, Kind.COMBINE_RECEIVE, 0) == owner


@pytest.mark.parametrize(("gate_weights", "each"), [("packets", 6), ("free", 2)])
def test_ids_and_weights_of_the_domains_experts_cross_with_the_row(gate_weights: str, each: int) -> None:
    graph = graph_of("dysharp", gate_weights=gate_weights)
    names = np.array([*graph.resources.names, ""])[graph.resource]
    out = (names == "nic-out 0") & (graph.kind == Kind.DISPATCH_UP)
    # Three experts, one and one.
    assert graph.wire_bytes[out].sum() == 3 * ROW + each * (3 + 1 + 1)


def test_notices_stay_in_the_domain() -> None:
    graph = graph_of("dysharp")
    names = np.array([*graph.resources.names, ""])[graph.resource]
    told = names[graph.kind == Kind.NOTIFY_DOWN]
    # GPU 3 tells GPU 2 of tokens 0 and 1, GPU 1 tells GPU 0 of tokens 1 and 2.
    assert sorted(told) == ["downlink 0"] * 2 + ["downlink 2"] * 2


def test_rows_are_passed_on_when_they_have_come_and_seen() -> None:
    timeline = schedule(graph_of("dysharp"))
    graph = timeline.graph
    names = np.array([*graph.resources.names, ""])[graph.resource]
    came = (names == "nic-in 2") & (graph.kind == Kind.DISPATCH_DOWN) & (graph.payload_bytes > 0)
    passed = (graph.kind == Kind.DISPATCH_SEND) & (graph.rank == 2)
    poll = 5 * NS
    first = timeline.visible_ps[came].min() + poll
    assert timeline.start_ps[passed].min() == first
    back = (names == "nic-in 0") & (graph.kind == Kind.COMBINE_DOWN) & (graph.payload_bytes > 0)
    added = (graph.kind == Kind.COMBINE_RECEIVE) & (graph.rank == 0)
    assert timeline.start_ps[added].max() == timeline.visible_ps[back].max() + poll


def test_a_token_is_in_the_owners_table_until_the_last_sum_has_come() -> None:
    built = build_layer(layer(), domains(2, 2), SCHEMES["dysharp"])
    notes = built.machine.notes.touches["output readiness"]
    touch = np.r_[tuple(one.touch for one in notes)]
    # Copies that are ready, sums that come back, and what is forgotten: four tokens at the owner,
    # three in the other domain.
    assert len(touch) == 7 + 3 + (4 + 3)
    touches, start_ps = built.graph.touches, schedule(built.graph).start_ps
    for key in np.unique(touches.key[touch]):
        of_key = touch[touches.key[touch] == key]
        drops = touches.drops[of_key]
        assert drops.sum() == 1
        when = start_ps[touches.task[of_key]]
        assert when[drops] >= when[~drops].max(initial=0)


@every("name", VARIANTS)
def test_rows_come_in_at_the_gpu_of_the_owners_index(name: str) -> None:
    assert not list(examine_case(case_of(SCHEMES[name], "3 domains of 2, zipf fp8")))


@every("name", VARIANTS)
def test_one_domain_of_several_is_a_domain_alone(name: str) -> None:
    work = small_layers.ALL["zipf 8 ranks"]()
    alone, one = (
        schedule(build_layer(work, hwmodel.load(preset), SCHEMES[name])[0]) for preset in ("dgx-h100", "dgx-h100-x2")
    )
    assert np.array_equal(alone.start_ps, one.start_ps)
    assert np.array_equal(alone.visible_ps, one.visible_ps)


def test_memory_has_room_for_rows_of_others() -> None:
    buffers = {one.name: one.nbytes.tolist() for one in SCHEMES["dysharp"].buffers(layer(), domains(2, 2))}
    rows = [0, 0, 3 * ROW, 0]
    assert buffers["rows for others of the domain"] == buffers["sums of the domain"] == rows


def test_a_domain_that_is_not_full_is_refused() -> None:
    work = small_layers.work(small_layers.draw(12, 12, 2), 3, 12)
    assert SCHEMES["dysharp"].refuses_on(work, domains(2, 2)) == (
        "3 ranks do not fill nodes of 2: rows go to the GPU of the same index in others"
    )
