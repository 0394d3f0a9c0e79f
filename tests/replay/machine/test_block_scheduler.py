"""Blocks on SMs: several at a time, of which one multiplies."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from round_machine import round_machine
from slow_blocks import Block, run

from replay.engine import GraphBuilder, schedule
from replay.model.machine.block_scheduler import BlockScheduler
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.machine.times import Time


def schedule_blocks(blocks: list[Block], num_sms: int, resident: int) -> list[Block]:
    """Blocks of one GPU as tasks; with their times."""
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(round_machine(), graph, 1)
    pool, ranks = machine.sms.pool("sm", num_sms), np.zeros(len(blocks), np.int64)

    def at(times: list[int]) -> np.ndarray:
        return machine.delay(Kind.LAUNCH, Time(np.array(times)), machine.mark(ranks), ranks)

    steps = []
    for step in range(len(blocks[0].data)):
        duration = np.array([block.duration[step] for block in blocks])
        tasks = machine.serve(
            pool[ranks],
            Time(duration),
            kind=Kind.GEMM1,
            rank=ranks,
            after=at([block.data[step] for block in blocks]),
        )
        if steps:
            machine.order(steps[-1], tasks)
        steps.append(tasks)
    offered = at([block.offered for block in blocks])
    scheduler = BlockScheduler(machine, num_sms, resident)
    assert scheduler.slots == num_sms * resident
    claims = scheduler.hold(steps[0], steps[-1], ranks, offered)
    start = schedule(graph.build()).start_ps
    for number, block in enumerate(blocks):
        block.claimed = int(start[claims[number]])
        block.started = [int(start[tasks[number]]) for tasks in steps]
    return blocks


@st.composite
def some_blocks(draw: st.DrawFn) -> list[Block]:
    """A few blocks of as many steps each."""
    steps, short = draw(st.integers(1, 3)), st.integers(0, 12)
    return [
        Block(
            draw(short),
            draw(st.lists(short, min_size=steps, max_size=steps)),
            draw(st.lists(st.integers(1, 6), min_size=steps, max_size=steps)),
        )
        for _ in range(draw(st.integers(1, 7)))
    ]


@given(some_blocks(), st.integers(1, 3), st.integers(1, 4))
def test_blocks_start_as_in_the_slow_twin(blocks: list[Block], num_sms: int, resident: int) -> None:
    expected = copy.deepcopy(blocks)
    run(expected, num_sms, resident)
    assert schedule_blocks(blocks, num_sms, resident) == [
        Block(b.offered, b.data, b.duration, a.sm, b.claimed, b.started) for a, b in zip(blocks, expected, strict=True)
    ]


@given(some_blocks(), st.integers(1, 3))
def test_a_block_alone_on_its_sm_multiplies_when_its_data_are_there(blocks: list[Block], num_sms: int) -> None:
    """And then it makes no difference whether it stays on one SM."""
    for block in schedule_blocks(blocks, num_sms, 1):
        assert block.started == [block.ready(step) for step in range(len(block.data))]
    bound = copy.deepcopy(blocks)
    for block in bound:
        block.claimed, block.started = -1, []
    run(bound, num_sms, 1, bound=True)
    assert [block.started for block in bound] == [block.started for block in blocks]


def test_an_sm_has_room_for_two_that_wait_in_turn() -> None:
    """Two steps of 5, the second of which waits for data until 20; by hand."""
    blocks = [Block(0, [0, 20], [5, 5]) for _ in range(3)]
    alone = schedule_blocks(copy.deepcopy(blocks), 1, 1)
    assert [block.started for block in alone] == [[0, 20], [25, 30], [35, 40]]
    together = schedule_blocks(blocks, 1, 2)
    assert [block.claimed for block in together] == [0, 0, 25]
    # At 25 the second has waited since 20; the third, which comes then, waits until 30.
    assert [block.started for block in together] == [[0, 20], [5, 25], [30, 35]]


def test_blocks_of_several_kernels_keep_each_other_from_the_sms() -> None:
    machine = Machine(round_machine(), GraphBuilder(KIND_NAMES), 1)
    pool, ranks = machine.sms.pool("sm", 1), np.zeros(2, np.int64)
    begun = machine.mark(ranks)
    starts = []
    for _ in range(2):
        tasks = machine.serve(pool[ranks], Time(np.full(2, 5)), kind=Kind.GEMM1, rank=ranks)
        starts.append(BlockScheduler(machine, 1, 2).hold(tasks, tasks, ranks, begun))
    claimed = schedule(machine.graph.build()).start_ps[np.concatenate(starts)]
    assert claimed.tolist() == [0, 0, 5, 10]


@pytest.mark.parametrize("resident", [1, 3])
def test_resident_blocks_limit_a_kernel_beside_the_slots(resident: int) -> None:
    """A kernel of which two may be on SMs has no more there, whatever there is room for."""
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(round_machine(), graph, 1)
    ranks = np.zeros(4, np.int64)
    held = machine.serve(machine.sms.pool("sm", 4)[ranks], Time(np.full(4, 7)), kind=Kind.GEMM1, rank=ranks)
    claims = BlockScheduler(machine, 2, resident).hold(
        held, held, ranks, machine.mark(ranks), resident=machine.buffers.pools("two", 2)[ranks]
    )
    assert schedule(graph.build()).start_ps[claims].tolist() == [0, 0, 7, 7]
