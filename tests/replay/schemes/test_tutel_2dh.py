"""Tutel's hierarchical all-to-all: its four kernels, what each sends, and when tokens leave."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every
from machine_alone import carried, machine_of
from round_machine import US
from round_nodes import two_nodes

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import Timeline, schedule
from replay.model.arrays import Ints
from replay.model.collectives.pair_rules import PairRules
from replay.model.collectives.point_to_point import ExchangeTasks, all_to_all
from replay.model.machine.kinds import DISPATCH, Kind
from replay.model.machine.machine import Machine
from replay.schemes import SCHEMES
from replay.schemes.contract.case import Case
from replay.schemes.contract.checks import CHECKS
from replay.schemes.contract.layers import ACROSS, draw, work
from replay.schemes.ep.tutel import hierarchical

PORTS = ("uplink", "downlink", "pcie-out", "nic-out", "nic-in", "pcie-in")
SMALL = [name for name in ACROSS if ("tiny" in name or " of 2" in name) and "fp8" not in name]
TWO_DH = SCHEMES["tutel"].with_options({"use_2dh": True})


@pytest.mark.extended
@every("layer", SMALL)
def test_the_contract_holds(layer: str) -> None:
    case = Case(TWO_DH, layer, ACROSS[layer].make(), ACROSS[layer].domain_size)
    assert not case.refusal
    for name, check in CHECKS.items():
        if layer in check.layers:
            assert not list(check.find(case)), name


def exchanged(part: int = 1000) -> tuple[Machine, list[Ints], hierarchical.Hierarchical, Timeline]:
    """Two nodes of two GPUs, `part` bytes from each rank to each."""
    machine, asked = machine_of(two_nodes(), 4), []
    rules = PairRules(4)
    channels = machine.sms.channels("nccl", rules.num_channels)

    def exchange(sizes: Ints, begun: Ints) -> ExchangeTasks:
        asked.append(sizes)
        return all_to_all(machine, DISPATCH, channels, rules, sizes, begun, payload=True)

    found = hierarchical.all_to_all(machine, DISPATCH, np.full((4, 4), part), machine.mark(machine.ranks), exchange)
    return machine, asked, found, schedule(machine.graph.build())


def test_messages_have_a_part_for_each_node_and_then_for_each_gpu() -> None:
    machine, (inside, between), _, timeline = exchanged()
    two = 2 * 1000
    assert inside.tolist() == [
        [two, two, 0, 0],
        [two, two, 0, 0],
        [0, 0, two, two],
        [0, 0, two, two],
    ]
    assert between.tolist() == [[two, 0, two, 0], [0, two, 0, two]] * 2
    sent = carried(timeline.graph, "payload_bytes")
    assert sent == {(port, rank): two for port in PORTS for rank in range(4)}
    program = [one.name for one in machine.host.program]
    assert program == [
        "order of local ranks",
        "all-to-all inside nodes",
        "order of nodes",
        "all-to-all between nodes",
    ]


def test_the_whole_buffer_is_copied_before_each_exchange() -> None:
    _, _, _, timeline = exchanged()
    copies = np.flatnonzero(timeline.graph.kind == Kind.PERMUTE)
    read, written = 8, 4  # bytes a picosecond that memory reads, and writes
    assert timeline.graph.duration_ps[copies].tolist() == [4 * 1000 // read + 4 * 1000 // written] * 8


def test_exchanges_follow_one_another() -> None:
    _, _, found, timeline = exchanged()
    graph = timeline.graph
    rows = graph.payload_bytes > 0
    groups = np.array([*graph.resources.groups, ""])[graph.resource]
    inside = timeline.visible_ps[rows & (groups == "downlink")]
    between = timeline.start_ps[rows & (groups == "nic-out")]
    copies = timeline.start_ps[graph.kind == Kind.PERMUTE]
    assert copies.max() > inside.max()  # the second copy, of all that has come
    assert between.min() > copies.max()
    assert timeline.visible_ps[found.done].min() > between.max()


def test_bytes_leave_in_the_first_exchange() -> None:
    _, _, found, timeline = exchanged(200_000)
    src, dst = np.zeros(3, np.int64), np.array([2, 3, 1])
    tasks = found.leaves(src, dst, np.array([199_999, 0, 0]))
    graph = timeline.graph
    assert (graph.kind[tasks] == Kind.DISPATCH_SEND).sum() == 2  # its own share is copied
    assert (graph.rank[tasks][1:] == 0).all()
    # To rank 3 by way of rank 1, behind what rank 1 itself gets.
    assert timeline.start_ps[tasks[1]] > timeline.start_ps[tasks[2]]
    assert timeline.visible_ps[tasks].max() < timeline.visible_ps[found.done].min() - US


def test_one_node_has_one_exchange() -> None:
    layer, system = work(draw(40, 16, 4), 4, 16), hwmodel.load("dgx-h100-x2")
    one, other = (schedule(build_layer(layer, system, scheme)[0]) for scheme in (TWO_DH, SCHEMES["tutel"]))
    assert np.array_equal(one.visible_ps, other.visible_ps)


def test_what_it_refuses_and_how_rows_travel() -> None:
    layer, system = work(draw(24, 12, 2), 12, 12), hwmodel.load("dgx-h100-x2")
    scheme = TWO_DH.with_options({"pxn": False})
    assert scheme.refuses_on(layer, system) == (
        "12 ranks do not fill nodes of 8: 2DH exchanges rows between GPUs of one index"
    )
    assert "PXN wants" in TWO_DH.refuses_on(layer, system)
    plain = SCHEMES["tutel"].with_options({"pxn": False})
    assert not plain.refuses_on(layer, system)
    assert [one.network for one in (scheme, plain, SCHEMES["tutel"])] == ["rail", "direct", "rail"]
