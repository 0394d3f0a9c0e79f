"""The library of collectives: what can be asked for, bytes on the ports, SMs, blocks."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every
from machine_alone import machine_of
from round_machine import round_machine

import hwmodel
from replay.engine import TaskGraph, Timeline, schedule
from replay.errors import UserError
from replay.model.collectives.algorithm import COLLECTIVES, Collective
from replay.model.collectives.library import ALGORITHMS, find
from replay.model.machine.kinds import DISPATCH, Kind
from replay.model.machine.machine import Machine

MIB = 1 << 20
UP, DOWN = int(Kind.DISPATCH_UP), int(Kind.DISPATCH_DOWN)


def replayed(
    machine: Machine,
    name: str,
    collective: Collective,
    nbytes: int,
    *,
    blocks: int | None = None,
    payload: bool = False,
) -> Timeline:
    begun = machine.mark(machine.ranks)
    find(name).build(machine, DISPATCH, collective, nbytes, begun, blocks=blocks, payload=payload)
    return schedule(machine.graph.build())


def payload_of(graph: TaskGraph, kind: int) -> list[int]:
    """(rank,) payload bytes on the ports of one direction."""
    chosen = graph.kind == kind
    return np.bincount(graph.rank[chosen], graph.payload_bytes[chosen]).astype(int).tolist()


# ---- what can be asked for ---------------------------------------------------------------------


def test_every_algorithm_is_listed_under_its_name() -> None:
    assert list(ALGORITHMS)[:1] == ["nccl"]
    for name, algorithm in ALGORITHMS.items():
        assert algorithm.name == name
        assert algorithm.summary and algorithm.source
        assert set(algorithm.collectives) <= set(COLLECTIVES)


def test_an_unknown_algorithm_is_named_with_what_is_possible() -> None:
    with pytest.raises(UserError, match=r"unknown algorithm 'rings'.*known: .*ring"):
        find("rings")


@every(
    ("system", "ranks", "name", "blocks", "message"),
    [
        ("dgx-a100", 8, "nvls", None, "nvls needs multicast and reduction, which dgx-a100"),
        ("dgx-h100", 2, "nvls", None, "nvls needs 3 ranks or more, not 2"),
        ("dgx-h100-x2", 16, "ring", None, "ring has no all_reduce over several NVLink domains"),
        ("dgx-h100", 8, "ring", 133, "133 thread blocks; possible: 1 to 132"),
        ("dgx-h100", 8, "ring", 0, "0 thread blocks; possible: 1 to 132"),
        ("dgx-h100-x2", 16, "nccl", 8, "as many blocks as network cards say"),
    ],
)
def test_what_it_has_no_kernel_for_is_refused(
    system: str, ranks: int, name: str, blocks: int | None, message: str
) -> None:
    machine = machine_of(hwmodel.load(system), ranks)
    with pytest.raises(UserError, match=message):
        find(name).build(machine, DISPATCH, "all_reduce", MIB, machine.mark(machine.ranks), blocks=blocks)


# ---- bytes on the ports ------------------------------------------------------------------------

N, S = 8, 8 * MIB
PART = S // N
CLOSED = {
    ("ring", "all_gather"): (S - PART, S - PART),
    ("ring", "reduce_scatter"): (S - PART, S - PART),
    ("ring", "all_reduce"): (2 * (S - PART), 2 * (S - PART)),
    ("nvls", "all_gather"): (PART, S),
    ("nvls", "reduce_scatter"): (S, PART),
    ("nvls", "all_reduce"): (S + PART, S + PART),
}
"""Payload that leaves and enters each GPU."""


@every(("name", "collective"), CLOSED)
@every("blocks", [None, 2])
def test_payload_of_a_port_is_the_closed_form(name: str, collective: Collective, blocks: int | None) -> None:
    machine = machine_of(round_machine(), N)
    graph = replayed(machine, name, collective, S, blocks=blocks, payload=True).graph
    up, down = CLOSED[name, collective]
    assert payload_of(graph, UP) == [up] * N
    assert payload_of(graph, DOWN) == [down] * N


@every(("name", "collective"), CLOSED)
def test_whether_bytes_are_payload_changes_no_time(name: str, collective: Collective) -> None:
    spans = {
        replayed(machine_of(round_machine(), N), name, collective, S, payload=payload).makespan_ps
        for payload in (False, True)
    }
    assert len(spans) == 1


# ---- thread blocks -----------------------------------------------------------------------------


def bus_GB_per_s(name: str, collective: Collective, nbytes: int, blocks: int | None) -> float:
    machine = machine_of(hwmodel.load("dgx-h100"), N)
    span = replayed(machine, name, collective, nbytes, blocks=blocks).makespan_ps
    factor = (2 if collective == "all_reduce" else 1) * (N - 1) / N
    return nbytes * factor / span * 1e3


@every(("name", "collective"), [*CLOSED, ("tree", "all_reduce"), ("nccl", "all_reduce")])
def test_few_blocks_are_slow_and_more_than_enough_change_nothing(name: str, collective: Collective) -> None:
    nbytes = 64 * MIB
    few, usual = (bus_GB_per_s(name, collective, nbytes, blocks) for blocks in (2, None))
    assert few < usual / 2
    if name in ("nvls", "nccl"):  # rings and trees cut chunks by their channels
        assert bus_GB_per_s(name, collective, nbytes, 48) == usual


@every("collective", COLLECTIVES)
def test_two_blocks_of_a_ring_store_as_fast_as_two_sms(collective: Collective) -> None:
    # Every link byte is stored by a block; what follows the last chunk of a loop comes on top.
    of_sms = 2 * 39
    found = bus_GB_per_s("ring", collective, 512 * MIB, 2)
    assert 0.75 * of_sms < found < of_sms


def test_two_blocks_in_the_switch_copy_the_buffer_in_and_out() -> None:
    # In and out at 50 GB/s, a share loaded and one stored: 0.04 + 0.0075 ns a byte, of two blocks.
    machine = machine_of(hwmodel.load("dgx-h100"), N)
    costs = machine.costs
    nbytes = 512 * MIB
    each = 2 * int(costs.sm_copy(nbytes).ps)
    each += int((costs.sm_load(nbytes // N) + costs.sm_store(nbytes // N)).ps)
    span = replayed(machine, "nvls", "all_reduce", nbytes, blocks=2).makespan_ps
    assert each / 2 < span < 1.05 * each / 2


@every(
    ("nbytes", "chunk"),
    # Of 16 channels and 8 shares: 64 chunks of 128 KiB, 8 of 64 KiB, 2 of 32 KiB.
    [(1 << 30, 128), (1023 * MIB, 64), (64 * MIB, 64), (63 * MIB, 32), (8 * MIB, 32), (MIB, 16)],
)
def test_chunks_in_the_switch_are_smaller_where_there_are_few(nbytes: int, chunk: int) -> None:
    machine = machine_of(hwmodel.load("dgx-h100"), N)
    graph = replayed(machine, "nvls", "all_gather", nbytes, payload=True).graph
    sent = graph.payload_bytes[graph.kind == UP]
    share = nbytes // N  # is modelled as 64 messages, or as more of 128 KiB
    most = max(64, share // (128 * 1024))
    assert int(sent.max()) == max(chunk * 1024, -(-share // most))


# ---- beside other kernels ----------------------------------------------------------------------


def beside(
    machine: Machine, name: str, collective: Collective, nbytes: int, blocks: int | None
) -> tuple[Timeline, np.ndarray]:
    """One kernel beside others, and its last tasks."""
    split = machine.sms.split("a test", {}, rest="compute")
    ends = find(name).build(
        machine,
        DISPATCH,
        collective,
        nbytes,
        machine.mark(machine.ranks),
        blocks=blocks,
        beside=split,
    )
    return schedule(machine.graph.build()), ends


@every(("name", "collective"), [*CLOSED, ("tree", "all_reduce")])
def test_a_kernel_beside_others_is_hardly_slower_while_nobody_is_there(name: str, collective: Collective) -> None:
    nbytes = 64 * MIB
    system = hwmodel.load("dgx-h100")
    alone = replayed(machine_of(system, N), name, collective, nbytes).makespan_ps
    there, _ = beside(machine_of(system, N), name, collective, nbytes, None)
    # A ring waits for its own copies in every step; in the switch the first slice is copied
    # before anything moves, and the last one afterwards.
    assert 0.9 * alone < there.makespan_ps < 1.35 * alone


MEMORY = {
    # Reads and writes of the whole buffer S, or of a part of it.
    ("ring", "all_gather"): PART + (N - 1) * 2 * PART,
    ("ring", "reduce_scatter"): PART + (N - 2) * 2 * PART + 3 * PART,
    ("ring", "all_reduce"): PART + (N - 2) * 2 * PART + 3 * PART + (N - 1) * 2 * PART,
    # Copied to NVLS memory and read by the switch; written by the switch and copied from there.
    ("nvls", "all_gather"): PART + 3 * S,
    ("nvls", "reduce_scatter"): 3 * S + PART,
    ("nvls", "all_reduce"): 6 * S,
}


@every(("name", "collective"), MEMORY)
def test_memory_is_read_and_written_beside_others(name: str, collective: Collective) -> None:
    machine = machine_of(round_machine(), N)
    timeline, _ = beside(machine, name, collective, S, None)
    graph = timeline.graph
    on_memory = np.isin(graph.resource, machine.resources.hbm)
    busy = np.bincount(graph.rank[on_memory], graph.duration_ps[on_memory])
    expected = MEMORY[name, collective] / 5  # 5000 GB/s
    assert busy == pytest.approx([expected] * N, rel=0.01)


@every("name", ["ring", "tree", "nvls"])
def test_kernels_on_the_same_sms_follow_one_another(name: str) -> None:
    machine = machine_of(round_machine(), N)
    split = machine.sms.split("a test", {}, rest="compute")
    begun = machine.mark(machine.ranks)
    ends = [find(name).build(machine, DISPATCH, "all_reduce", S, begun, blocks=8, beside=split) for _ in range(2)]
    timeline = schedule(machine.graph.build())
    first, second = (timeline.visible_ps[each].max() for each in ends)
    alone = beside(machine_of(round_machine(), N), name, "all_reduce", S, 8)[0].makespan_ps
    assert first <= 1.01 * alone
    assert second > 1.8 * alone


def test_a_gather_and_a_scatter_in_the_switch_fill_both_directions_together() -> None:
    """Alone, each leaves one direction idle; together they take little longer than one."""
    nbytes = 256 * MIB
    system = hwmodel.load("dgx-h100")
    alone = [
        beside(machine_of(system, N), "nvls", collective, nbytes, None)[0].makespan_ps
        for collective in ("all_gather", "reduce_scatter")
    ]
    machine = machine_of(system, N)
    split = machine.sms.split("a test", {}, rest="compute")
    begun = machine.mark(machine.ranks)
    for collective in ("all_gather", "reduce_scatter"):
        find("nvls").build(machine, DISPATCH, collective, nbytes, begun, beside=split)
    timeline = schedule(machine.graph.build())
    assert max(alone) < timeline.makespan_ps < 0.66 * sum(alone)
    graph = timeline.graph
    for ports in (machine.resources.uplink, machine.resources.downlink):
        busy = graph.duration_ps[np.isin(graph.resource, ports)].sum()
        assert busy > 0.8 * N * timeline.makespan_ps


def test_sms_that_are_held_are_missing_elsewhere() -> None:
    machine = machine_of(round_machine(), N)  # 100 SMs
    split = machine.sms.split("a test", {})
    split.pool("product", 90)
    with pytest.raises(UserError, match="take 106"):
        find("nvls").build(machine, DISPATCH, "all_reduce", S, machine.mark(machine.ranks), beside=split)
