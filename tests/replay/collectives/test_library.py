"""The library of collectives: what can be asked for, bytes on the ports, SMs, blocks."""

from __future__ import annotations

import numpy as np
import pytest
from machine_alone import machine_of
from round_machine import round_machine

import hwmodel
from replay.collectives.algorithm import COLLECTIVES, Collective
from replay.collectives.library import ALGORITHMS, find
from replay.errors import UserError
from replay.graph import TaskGraph, Timeline, schedule
from replay.machine.kinds import DISPATCH, Kind
from replay.machine.machine import Machine

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


@pytest.mark.parametrize(
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
        find(name).build(
            machine, DISPATCH, "all_reduce", MIB, machine.mark(machine.ranks), blocks=blocks
        )


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


@pytest.mark.parametrize(("name", "collective"), CLOSED)
@pytest.mark.parametrize("blocks", [None, 2])
def test_payload_of_a_port_is_the_closed_form(
    name: str, collective: Collective, blocks: int | None
) -> None:
    machine = machine_of(round_machine(), N)
    graph = replayed(machine, name, collective, S, blocks=blocks, payload=True).graph
    up, down = CLOSED[name, collective]
    assert payload_of(graph, UP) == [up] * N
    assert payload_of(graph, DOWN) == [down] * N


@pytest.mark.parametrize(("name", "collective"), CLOSED)
def test_whether_bytes_are_payload_changes_no_time(name: str, collective: Collective) -> None:
    spans = {
        replayed(machine_of(round_machine(), N), name, collective, S, payload=payload).makespan_ps
        for payload in (False, True)
    }
    assert len(spans) == 1
