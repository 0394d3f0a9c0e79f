"""FasterMoE's shadowed experts by hand: the policy, rows that stay, weights, gradients, kernels.

Two GPUs with two experts each; expert 2, of GPU 1, has five rows, the others have two at most:

=====  =====  =======
token  owner  experts
=====  =====  =======
0      0      0, 2
1      0      2, 1
2      0      2, 3
3      1      2, 0
4      1      2, 3
=====  =====  =======
"""

from __future__ import annotations

import five_tokens
import numpy as np
import pytest
from five_tokens import HIDDEN, INTERMEDIATE, about, build, memory_bytes
from loops import every
from moments import begin, finish
from round_machine import ROUND

import hwmodel
from replay.engine import TaskGraph, schedule
from replay.model.compute import shadows
from replay.model.compute.shadows import Rates
from replay.model.machine.kinds import Kind
from replay.model.machine.machine import Machine
from replay.model.machine.resources import ResourceClass
from replay.model.work.capacity import CarriedLayer, with_shadows
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.contract.case import Case
from replay.schemes.contract.examine import examine_case
from replay.schemes.contract.graph_facts import Dependencies

MATRICES = (2 * HIDDEN * 2 * INTERMEDIATE, 2 * HIDDEN * INTERMEDIATE)  # BF16, gate and up as one
WEIGHTS = sum(MATRICES)
ROW = 2 * HIDDEN
HOME, OWN_ROWS = 1, (3, 2)
SLOW = {"shadowing": True, "gemm_TFLOP_per_s": 1e-6}  # every row saved is worth its weights


def layer(*, is_backward: bool = False, precision: str = "bf16") -> LayerWork:
    return five_tokens.layer(precision, is_backward=is_backward, ids=((0, 2), (2, 1), (2, 3), (2, 0), (2, 3)))


def replay(work: LayerWork, **options: object) -> tuple[TaskGraph, Machine]:
    return build(work, SCHEMES["fastermoe"].with_options({"group_size": 1, **SLOW, **options}))


def num_shadowed(carried: CarriedLayer) -> int:
    """Experts of the layer whose weights every rank has."""
    held = np.zeros(0, np.int64) if carried.expert is None else carried.expert[carried.expert >= 0]
    return int((np.bincount(held) > 1).sum())


# ---- policy --------------------------------------------------------------------------------------


def loaded(*rows: int) -> LayerWork:
    ids = np.repeat(np.arange(len(rows)), rows)[:, None].astype(np.int32)
    return small_layers.work(ids, 2, len(rows), shape=ExpertShape(HIDDEN, INTERMEDIATE))


VALUES = 3 * HIDDEN * INTERMEDIATE


@every(
    ("rows_of_weights", "chosen"),
    [
        # Rows that cost as much as the weights; of 20, 90, 50 and 40 rows.
        (39, [1]),  # 90 > 50 + 39 < 40 + 78
        (41, []),  # 90 < 50 + 41
        (15, [1]),  # 40 + 30 is no less than 50 + 15
        (9, [1, 2, 3]),  # 90 > 59 > 58 > 47, and there is no fifth
        (11, [1]),  # 61, 62: the policy stops, though 20 + 33 were less
    ],
)
def test_experts_of_most_rows_until_it_gains_nothing(rows_of_weights: int, chosen: list[int]) -> None:
    # All that a row costs is its way, four times its bytes.
    bandwidth, free = 1e9, 1e30
    shape = ExpertShape(HIDDEN, 4 * HIDDEN * rows_of_weights // (3 * HIDDEN))
    work = loaded(20, 90, 50, 40)
    work = LayerWork(work.expert_ids, work.source_rank.astype(np.int32), work.placement, shape, work.precision)
    exact = 3 * shape.hidden * shape.intermediate / (4 * shape.hidden)
    assert abs(exact - rows_of_weights) < 1
    assert shadows.choose(work, Rates(bandwidth, free)).tolist() == chosen


def test_a_row_costs_its_gemms_three_times_and_its_way_four_times() -> None:
    work, network = loaded(50, 0), 1e9
    # Rates at which 50 rows cost a little less, or more, than the weights of an expert.
    way, gemms = 4 * 4 * HIDDEN, 3 * 2 * VALUES
    for factor, chosen in ((0.99, []), (1.01, [0])):
        in_gemms = 4 * VALUES / network / 50 * factor - way / network
        assert shadows.choose(work, Rates(network, gemms / in_gemms)).tolist() == chosen


def test_rates_are_the_machines_own_unless_given() -> None:
    system, work = hwmodel.load("dgx-h100"), layer()
    rates = shadows.rates_on(system, work)
    assert rates.network == system.link.payload_bytes_per_s(both_ways=True)
    assert rates.gemm == system.compute.peak_flop_per_s("bf16")
    assert shadows.rates_on(system, work, 6.25, 11.5) == Rates(6.25e9, 11.5e12)


def test_off_by_default() -> None:
    scheme = SCHEMES["fastermoe"]
    assert not scheme.options.shadowing
    work = layer()
    assert scheme.carries_on(work, hwmodel.load("dgx-h100", ROUND)).work is work
    on = scheme.with_options({"shadowing": True})
    assert not num_shadowed(on.carries_on(work, hwmodel.load("dgx-h100", ROUND)))  # as few rows
    slow = scheme.with_options(SLOW)
    assert num_shadowed(slow.carries_on(work, hwmodel.load("dgx-h100"))) == 1


# ---- rows ----------------------------------------------------------------------------------------


def test_rows_of_shadowed_experts_stay() -> None:
    carried = with_shadows(layer(), np.array([2]))
    assert carried.work.matrix("pairs").tolist() == [[5, 1], [1, 3]]
    assert carried.work.rows_of_expert.tolist() == [2, 1, 0, 2, *OWN_ROWS]
    assert carried.experts_of_layer().tolist() == layer().expert_ids.tolist()
    assert num_shadowed(carried) == 1


@pytest.mark.extended
@every(
    "name",
    [
        "backward, shared experts",
        "uneven ranks",
        "all to one expert",
        "tiny, two ranks",
        "tiny, backward",
        "wide rows",
    ],
)
def test_the_contract_with_shadows(name: str) -> None:
    scheme = SCHEMES["fastermoe"].with_options({**SLOW, "group_size": 2})
    case = Case(scheme, name, small_layers.LAYERS[name]())
    assert num_shadowed(case.carried_layer)
    assert not list(examine_case(case))


def test_gpus_multiply_their_own_rows() -> None:
    graph, machine = replay(layer())
    width = 2 * 3 * INTERMEDIATE
    for rank, rows in enumerate(OWN_ROWS):
        assert memory_bytes(graph, machine, Kind.ACTIVATION, rank)[-1:] == about([rows * width])
    sent = graph.kind == Kind.DISPATCH_UP
    assert [int(graph.payload_bytes[sent & (graph.rank == rank)].sum()) for rank in range(2)] == [
        ROW,
        ROW,
    ]


# ---- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_weights_in_memory(rank: int) -> None:
    graph, machine = replay(layer())
    told = [8 * 4, 5 * 2 * 8 * 4]  # loads to the GPU; copied, stacked, summed up
    fetched = [2 * one for one in MATRICES] if rank == HOME else []
    stashed = [2 * one for one in MATRICES for _ in range(2)]
    restored = [2 * one for one in MATRICES]
    assert memory_bytes(graph, machine, Kind.PLAN, rank) == about(told + fetched + stashed + restored)
    passed = [] if rank == HOME else [2 * WEIGHTS]
    assert memory_bytes(graph, machine, Kind.WEIGHTS_MEMORY, rank) == about(passed)


@pytest.mark.parametrize("rank", [0, 1])
def test_gradients_in_memory(rank: int) -> None:
    graph, machine = replay(layer(is_backward=True))
    each = [
        *(2 * one for one in MATRICES[::-1] for _ in range(2)),
        *(2 * one for one in MATRICES[::-1]),
        *(2 * one for one in MATRICES[::-1]),
        *(3 * one for one in MATRICES[::-1] if rank == HOME),
    ]
    assert memory_bytes(graph, machine, Kind.PLAN, rank) == about(each)
    passed = [3 * WEIGHTS] if rank == HOME else []
    assert memory_bytes(graph, machine, Kind.WEIGHTS_MEMORY, rank) == about(passed)


def test_gradients_of_nothing_are_zeroes() -> None:
    ids = np.array([[0]] * 4, np.int32)
    work = small_layers.work(
        ids, 2, 2, tokens_of_rank=[4, 0], shape=ExpertShape(HIDDEN, INTERMEDIATE), is_backward=True
    )
    graph, machine = replay(work)
    collected = [memory_bytes(graph, machine, Kind.PLAN, rank)[4:6] for rank in range(2)]
    assert collected == [about([2 * one for one in MATRICES[::-1]]), about([*MATRICES[::-1]])]


def test_weights_leave_their_home_once_and_gradients_come_back_to_it() -> None:
    for is_backward, source in ((False, HOME), (True, 1 - HOME)):
        graph, _ = replay(layer(is_backward=is_backward))
        up = graph.kind == Kind.WEIGHTS_UP
        assert int(graph.wire_bytes[up].sum()) >= WEIGHTS
        assert set(graph.rank[up].tolist()) == {source}


def test_buffers_hold_the_weights_and_those_that_made_room() -> None:
    system = hwmodel.load("dgx-h100", ROUND)
    scheme = SCHEMES["fastermoe"].with_options(SLOW)
    _, held, scattered, *_ = scheme.buffers(layer(), system)
    assert held.name == "weights of shadowed experts"
    assert held.nbytes.tolist() == [2 * WEIGHTS] * 2
    assert scattered.nbytes.tolist() == [6 * ROW, 4 * ROW]


# ---- kernels and streams -------------------------------------------------------------------------


@pytest.mark.parametrize("is_backward", [False, True])
def test_kernels_and_waits_of_the_host(is_backward: bool) -> None:
    work = layer(is_backward=is_backward)
    _, machine = replay(work)
    _, without = replay(work, shadowing=False)
    more = sum(one.launches for one in machine.host.program)
    more -= sum(one.launches for one in without.host.program)
    waits = sum(not one.launches for one in machine.host.program)
    waits -= sum(not one.launches for one in without.host.program)
    if is_backward:
        # Exchange, call with two gradients, collect, reduce; restore, add.
        assert (more, waits) == (4 + 6 + 2 + 1 + 2 + 2, 0)
    else:
        # Copy, gather, copies of two GPUs, stack, sum; fetch, broadcast, exchange, call, restore.
        assert (more, waits) == (1 + 1 + 2 + 2 + 2 + 1 + 4 + 4 + 2, 1)


def tasks(graph: TaskGraph, kind: Kind, rank: int, *, tag: int | None = None) -> list[int]:
    mine = (graph.kind == kind) & (graph.rank == rank)
    return np.flatnonzero(mine if tag is None else mine & (graph.tag == tag)).tolist()


def test_weights_follow_the_dispatches_and_precede_their_rows() -> None:
    graph, _ = replay(layer())
    timeline = schedule(graph)
    assert begin(timeline, Kind.WEIGHTS_UP, HOME) > finish(timeline, Kind.DISPATCH_DOWN, HOME)
    before = Dependencies(timeline).before(tasks(graph, Kind.GEMM1, 0, tag=4))
    assert before >= {
        *tasks(graph, Kind.WEIGHTS_SEND, 0),
        *tasks(graph, Kind.WEIGHTS_MEMORY, 0),
        *tasks(graph, Kind.GEMM2, 0, tag=0),
        *tasks(graph, Kind.GEMM2, 0, tag=1),
    }


@pytest.mark.parametrize("is_backward", [False, True])
def test_combines_follow_weights_and_gradients_on_nccls_stream(is_backward: bool) -> None:
    graph, _ = replay(layer(is_backward=is_backward))
    waits = Dependencies(schedule(graph))
    for rank in range(2):
        before = waits.before(tasks(graph, Kind.COMBINE_SEND, rank)[:1])
        assert before >= {*tasks(graph, Kind.WEIGHTS_SEND, rank)}
        assert before >= {*tasks(graph, Kind.WEIGHTS_MEMORY, rank)}
        assert before & {*tasks(graph, Kind.WEIGHTS_SEND, rank)}


def test_shadows_run_first_backward_and_their_gradients_are_added_when_reduced() -> None:
    graph, machine = replay(layer(is_backward=True))
    waits = Dependencies(schedule(graph))
    before = waits.before(tasks(graph, Kind.GEMM2, 0, tag=4))
    assert not before & {*tasks(graph, Kind.DISPATCH_UP, 0)}
    others = waits.before(tasks(graph, Kind.GEMM2, 0, tag=0))
    assert others >= {*tasks(graph, Kind.GEMM1, 0, tag=4)}
    stream = machine.resources.classes(graph)[graph.resource] == ResourceClass.HBM
    added = [task for task in tasks(graph, Kind.PLAN, HOME) if stream[task]][-2:]
    assert waits.before(added[:1]) >= {*tasks(graph, Kind.WEIGHTS_MEMORY, HOME)}


def test_all_gpus_are_told_the_loads_of_all() -> None:
    with_policy, _ = replay(layer(), gemm_TFLOP_per_s=1e9)
    without, _ = replay(layer(), shadowing=False)
    told = [int(graph.wire_bytes[graph.kind == Kind.COUNT_UP].sum()) for graph in (with_policy, without)]
    assert told[0] > told[1]
    assert not (with_policy.kind == Kind.WEIGHTS_UP).any()
