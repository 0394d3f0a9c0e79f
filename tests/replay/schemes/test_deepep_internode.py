"""DeepEP between nodes: what goes through the NICs, and the fence within a node."""

from __future__ import annotations

import numpy as np
import pytest

import hwmodel
from replay.contract import layers as small_layers
from replay.graph import GraphBuilder, TaskGraph, schedule
from replay.machine.kinds import KIND_NAMES, Kind
from replay.machine.machine import Machine
from replay.machine.resources import ResourceClass
from replay.run.layer import replay_layer
from replay.schemes import SCHEMES
from replay.schemes.deepep.internode import internode
from replay.work.layer import ExpertShape, LayerWork


def nodes(count: int, **changes: float) -> hwmodel.System:
    return hwmodel.load("dgx-h100", {"fabric.num_domains": count, **changes})


def built(work: LayerWork, phase: str, system: hwmodel.System) -> tuple[TaskGraph, Machine]:
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(system, graph, work.num_ranks)
    internode(work, phase, 8, machine, machine.mark(machine.ranks))
    return graph.build(), machine


@pytest.mark.parametrize(
    ("phase", "kind"), [("dispatch", Kind.DISPATCH_UP), ("combine", Kind.COMBINE_UP)]
)
@pytest.mark.parametrize("num_nodes", [2, 3])
def test_a_token_crosses_to_a_node_once_however_many_of_its_gpus_want_it(
    phase: str, kind: Kind, num_nodes: int
) -> None:
    n = 8 * num_nodes
    ids = small_layers.draw(40 * n, 2 * n, 6, skew=0.7)
    work = small_layers.work(ids, n, 2 * n, shape=ExpertShape(512, 64))
    row_bytes = work.dispatch_row_bytes if phase == "dispatch" else work.combine_row_bytes
    # Counted apart: pairs of (token, other node), by the GPU whose NIC sends them.
    sent = np.zeros(n, np.int64)
    for token, experts in enumerate(ids.tolist()):
        owner = token // 40
        for node in {expert // 2 // 8 for expert in experts} - {owner // 8}:
            sent[owner if phase == "dispatch" else node * 8 + owner % 8] += row_bytes
    graph, machine = built(work, phase, nodes(num_nodes))
    of_nic = machine.resources.classes(graph)[graph.resource] == ResourceClass.NIC_OUT
    chosen = of_nic & (graph.resource >= 0) & (graph.kind == kind)
    payload = np.bincount(graph.rank[chosen], graph.payload_bytes[chosen], minlength=n)
    assert payload.tolist() == sent.tolist()


@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_rows_for_the_own_node_wait_for_a_fence_and_those_for_the_other_do_not(phase: str) -> None:
    times = {}
    for expert in (1, 9):  # on the owner's node, on the other
        work = small_layers.work(
            np.array([[expert]], np.int32), 16, 16, tokens_of_rank=[1] + [0] * 15,
            shape=ExpertShape(1024, 64),
        )  # fmt: skip
        times[expert] = [
            schedule(built(work, phase, nodes(2, **{"overheads.fence_us": us}))[0]).makespan_ps
            for us in (0.0, 7.0)
        ]
    assert times[1][1] - times[1][0] == 7_000_000
    assert times[9][1] == times[9][0]


def test_the_sum_of_every_token_is_written_by_its_owner() -> None:
    system = nodes(2, **{"hbm.peak_GB_per_s": 1000.0, "hbm.write_efficiency": 0.5})
    work = small_layers.work(small_layers.draw(80, 32, 4), 16, 32, shape=ExpertShape(512, 64))
    graph, _ = built(work, "combine", system)
    written = graph.kind == Kind.COMBINE_MEMORY
    spent = np.bincount(graph.rank[written], graph.duration_ps[written], minlength=16)
    assert spent.tolist() == [5 * 2 * 512 * 2] * 16


def one_row(expert: int) -> LayerWork:
    """A token of GPU 0, of 16, whose expert is on the GPU of its number."""
    return small_layers.work(
        np.array([[expert]], np.int32), 16, 16, tokens_of_rank=[1] + [0] * 15,
        shape=ExpertShape(1024, 64),
    )  # fmt: skip


@pytest.mark.parametrize("phase", ["dispatch", "combine"])
@pytest.mark.parametrize("expert", [1, 9])
def test_the_last_who_take_a_row_within_a_node_poll_for_it(phase: str, expert: int) -> None:
    fast, slow = (
        schedule(
            built(one_row(expert), phase, nodes(2, **{"overheads.poll_ns": ns}))[0]
        ).makespan_ps
        for ns in (0.0, 1000.0)
    )
    assert slow - fast == 1_000_000


def test_rows_are_forwarded_as_they_were_sent_and_copied_out_of_memory() -> None:
    graph, machine = built(one_row(9), "dispatch", nodes(2))
    passed = graph.kind == Kind.DISPATCH_SEND
    owner, forwarder = (graph.duration_ps[passed & (graph.rank == rank)] for rank in (0, 8))
    assert owner.tolist() == forwarder.tolist() and owner.min() > 0
    copied = graph.duration_ps[graph.kind == Kind.DISPATCH_MEMORY]
    assert copied.tolist() == [machine.costs.stream(2 * 2048).ps]


def test_a_domain_larger_than_the_kernels_know_is_said_to_be_extrapolated() -> None:
    assert "8 GPUs" in SCHEMES["deepep"].assumes
    work = small_layers.work(small_layers.draw(64, 32, 4), 16, 32, precision="fp8")
    system = hwmodel.load("gh200-nvl32", {"fabric.num_gpus": 16})
    counters = replay_layer(work, system, SCHEMES["deepep"]).measures.mechanisms.counters
    beyond = {name: sums for name, sums in counters.items() if "extrapolated" in name}
    assert list(beyond.values()) == [[8] * 16]
    small = small_layers.work(small_layers.draw(64, 32, 4), 8, 32, precision="fp8")
    counters = replay_layer(
        small, hwmodel.load("dgx-h100"), SCHEMES["deepep"]
    ).measures.mechanisms.counters
    assert not [name for name in counters if "extrapolated" in name]
