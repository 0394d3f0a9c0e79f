"""Which of several is told: of three, neither the first nor the last, and of equals the first."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import hwmodel
from replay.chains.memory import largest
from replay.errors import UserError
from replay.experiments.layer.tables import memory as shown_memory
from replay.experiments.layer.tables.times import slowest_part
from replay.experiments.layer.tables.wires import _network_cells
from replay.experiments.serve.serving import _Route
from replay.measure.measures import _busiest_resource
from replay.measure.network import network_of
from replay.measure.parts import NetworkPort
from replay.steps.memory import GIB, StageMemory, require
from replay.steps.plan import ParallelPlan
from tracegen import models


def some(**fields: Any) -> Any:
    """An object that has these fields and no others."""
    return SimpleNamespace(**fields)


def memories(*per_gpu: list[int]) -> list[Any]:
    return [some(total_bytes=each) for each in per_gpu]


def test_the_layer_whose_fullest_gpu_needs_most() -> None:
    """Not that of most bytes in all, and not that whose first or last GPU needs most."""
    found = memories([6, 5, 6], [1, 9, 1], [8, 2, 8], [2, 9, 2])
    assert largest(found) is found[1]
    result = some(parts=[some(memory=one) for one in (None, *found)])
    assert shown_memory.memory_of(result) is found[1]


def test_the_slowest_layer() -> None:
    parts = [some(measures=some(makespan_us=time)) for time in (3.0, 7.0, 5.0, 7.0)]
    assert slowest_part(some(parts=parts)) is parts[1]


def test_the_resource_that_is_busy_longest() -> None:
    pools = some(names=["nvlink 0", "sm 1", "hbm 1"], groups=["nvlink", "sm", "hbm"])
    found = _busiest_resource(pools, np.array([0.25, 0.75, 0.5]))
    assert (found.name, found.group, found.utilisation) == ("sm 1", "sm", 0.75)


def card(name: str, leaf: int, nbytes: int, utilisation: float) -> NetworkPort:
    wire = {"dispatch": nbytes, "combine": 10}
    return NetworkPort(name=name, leaf=leaf, payload_bytes=wire, wire_bytes=wire, utilisation=utilisation)


def network() -> Any:
    """Three cards on three leaves: the second carries most, the third receives longest."""
    return network_of(
        {
            "nic-out": [card("nic-out 0", 4, 100, 0.3), card("nic-out 1", 5, 300, 0.5), card("nic-out 2", 6, 200, 0.2)],
            "nic-in": [card("nic-in 0", 4, 400, 0.4), card("nic-in 1", 5, 300, 0.6), card("nic-in 2", 6, 100, 0.7)],
            "leaf-up": [card("leaf-up 4", 4, 0, 0.1), card("leaf-up 5", 5, 0, 0.9), card("leaf-up 6", 6, 0, 0.2)],
        }
    )


def test_the_rail_that_carries_most_both_ways() -> None:
    found = network()
    assert [(rail.leaf, rail.sent_bytes, rail.received_bytes) for rail in found.rails] == [
        (4, 110, 410),
        (5, 310, 310),
        (6, 210, 110),
    ]
    assert [rail.utilisation for rail in found.rails] == [0.4, 0.6, 0.7]
    assert found.busiest_rail == 1


def test_the_network_table_tells_the_busiest_card_rail_and_uplink() -> None:
    mb = 1e6
    cells = _network_cells([network()], 1)
    assert cells[:4] == [pytest.approx(one / mb) for one in (630 / 3, 310, 830 / 3, 410)]
    assert cells[4:7] == ["nic-in 2", 0.7, "leaf 5"]
    assert cells[7:] == [pytest.approx(620 / mb), 0.6, 0.9]


def test_the_stage_that_needs_most_is_refused() -> None:
    def needs(_: ParallelPlan) -> list[StageMemory]:
        return [StageMemory(weights * GIB, 3 * GIB, 2 * GIB, 7 * GIB, 0, GIB, 0, 0) for weights in (70, 90, 80)]

    with pytest.raises(UserError) as refused:
        require(models.load("mixtral-8x7b"), ParallelPlan(pp=3), hwmodel.load("dgx-h100"), needs)
    assert str(refused.value).startswith(
        "plan: stage 1 needs 103.0 GiB on each GPU, dgx-h100 has 79.6; most for weights 90.0, "
        "activations 7.0, gradients 3.0\n"
    )


@pytest.mark.parametrize(
    ("router", "waiting", "queued", "running", "chosen"),
    [
        ("least-requests", (2, 0, 1), (0, 1, 0), (3, 2, 2), 1),  # 5, 3, 3: the first of equals
        ("least-requests", (0, 0, 0), (0, 0, 0), (4, 2, 3), 1),
        ("least-waiting", (1, 0, 0), (0, 1, 0), (0, 1, 7), 0),  # 4, 5, 7: four of one that waits
        ("least-waiting", (1, 0, 0), (0, 0, 1), (3, 6, 2), 1),  # 7, 6, 6
    ],
)
def test_the_worker_to_which_a_request_goes(
    router: str,
    waiting: tuple[int, ...],
    queued: tuple[int, ...],
    running: tuple[int, ...],
    chosen: int,
) -> None:
    workers = [some(waiting=[None] * count, running=busy) for count, busy in zip(waiting, running, strict=True)]
    route = _Route(router, cast("Any", workers), [deque(range(count)) for count in queued])
    assert [route.choose(), route.choose()] == [chosen] * 2


def test_requests_go_round_three_workers() -> None:
    workers = [some(waiting=[], running=0)] * 3
    route = _Route("round-robin", cast("Any", workers), [deque(), deque(), deque()])
    assert [route.choose() for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
