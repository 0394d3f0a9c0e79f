"""FuseLib: order of tiles, flags, sums at owners, who pays for stores, and what overlaps."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from loops import every
from one_step import OneStep, product_ps

from replay.errors import UserError
from replay.model.arrays import Ints
from replay.model.machine.kinds import Kind
from replay.model.machine.machine import MemoryTraffic
from replay.model.work.transformer_layer import Enter, Leave
from replay.schemes.contract.graph_facts import Dependencies
from replay.schemes.registry import find

N, TOKENS, HIDDEN, INNER = 8, 2048, 2048, 2048
SMS = 132


@cache
def leave(scheme: str = "fuselib", **options: Any) -> OneStep:
    return OneStep(scheme, Leave, k=INNER, tokens=TOKENS, hidden=HIDDEN, **options)


@cache
def enter(scheme: str = "fuselib", **options: Any) -> OneStep:
    options["sequence_parallel"] = True
    return OneStep(scheme, Enter, k=0, n=4096, tokens=TOKENS, hidden=HIDDEN, **options)


def starts(step: OneStep, kind: Kind, rank: int) -> Ints:
    return step.timeline.start_ps[step.tasks(kind, rank)]


# ---- what overlaps -------------------------------------------------------------------------------


@every("sequence_parallel", [False, True])
@every("scheme", ["fuselib", "fuselib-nvls"])
def test_tiles_travel_while_others_are_multiplied(scheme: str, sequence_parallel: bool) -> None:
    """Faster than one kernel after the other; never than the product, or than the ports."""
    step, apart = (
        OneStep(
            scheme,
            Leave,
            k=2048,
            tokens=4096,
            hidden=4096,
            apart=apart,
            sequence_parallel=sequence_parallel,
        )
        for apart in (False, True)
    )
    product = product_ps(step, Kind.GEMM2, SMS)
    shares = (N - 1) / N if scheme == "fuselib" else 1
    if not sequence_parallel:
        shares = 2 * shares if scheme == "fuselib" else shares + 1 / N
    wire = step.wire_ps(int(shares * step.buffer_bytes))
    assert max(product, wire) < step.time_ps
    of_sums = step.wire_ps(step.buffer_bytes * (N - 1) // N)
    assert step.time_ps < apart.time_ps - min(product, of_sums) // 2


@pytest.mark.parametrize("scheme", ["fuselib", "fuselib-nvls"])
def test_rows_are_multiplied_as_they_come(scheme: str) -> None:
    step, apart = (
        OneStep(
            scheme,
            Enter,
            k=0,
            n=4096,
            tokens=4096,
            hidden=4096,
            apart=apart,
            sequence_parallel=True,
        )
        for apart in (False, True)
    )
    product = product_ps(step, Kind.GEMM1, SMS)
    wire = step.wire_ps(step.buffer_bytes * (N - 1) // N)
    assert max(product, wire) < step.time_ps < apart.time_ps - min(product, wire) // 2


# ---- order and flags -----------------------------------------------------------------------------


def in_order(step: OneStep, place: Ints, tasks: Ints) -> bool:
    order = np.lexsort((place, step.timeline.start_ps[tasks]))
    assert len(np.unique(place)) > 1
    return bool((np.diff(place[order]) >= 0).all())


@cache
def long_leave(scheme: str) -> OneStep:
    """More tiles than SMs."""
    return OneStep(scheme, Leave, k=1024, tokens=8192, hidden=2048)


@pytest.mark.parametrize("rank", [0, 3])
def test_tiles_of_others_come_first_and_own_ones_last(rank: int) -> None:
    step = long_leave("fuselib")
    tasks, first, _ = step.rows(Kind.GEMM2, rank, SMS)
    assert len(tasks) > 2 * SMS
    assert in_order(step, (first // step.layer.own_rows - rank - 1) % N, tasks)


@pytest.mark.parametrize("rank", [0, 3])
def test_in_the_switch_owners_have_their_tiles_in_turn(rank: int) -> None:
    step = long_leave("fuselib-nvls")
    tasks, first, rows = step.rows(Kind.GEMM2, rank, SMS)
    assert in_order(step, first % step.layer.own_rows // rows.max(), tasks)


def test_a_sum_leaves_when_it_is_made() -> None:
    step = leave()
    waits = Dependencies(step.timeline)
    for rank in range(N):
        sums = step.tasks(Kind.COMBINE_RECEIVE, rank).tolist()
        behind = waits.after(sums) & set(step.tasks(Kind.COMBINE_SEND, rank).tolist())
        assert len(behind) == (N - 1) * len(sums)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_sum_waits_for_the_flag_of_every_other_gpu(sequence_parallel: bool) -> None:
    step = leave(sequence_parallel=sequence_parallel)
    waits = Dependencies(step.timeline)
    flags = set(step.tasks(Kind.NOTIFY_DOWN).tolist())
    graph = step.graph
    for rank in range(N):
        for sum_ in step.tasks(Kind.COMBINE_RECEIVE, rank)[::7].tolist():
            before = waits.before([sum_])
            assert len(before & flags) == N - 1
            tiles = [task for task in before if graph.kind[task] == Kind.GEMM2]
            assert sorted(graph.rank[tiles].tolist()) == list(range(N))


def test_the_switch_sums_when_all_gpus_have_flagged() -> None:
    step = leave("fuselib-nvls")
    waits, graph = Dependencies(step.timeline), step.graph
    flags = set(step.tasks(Kind.NOTIFY_DOWN).tolist())
    for rank in range(N):
        for asked in step.tasks(Kind.COMBINE_REQUEST_UP, rank)[::7].tolist():
            before = waits.before([asked])
            assert len(before & flags) == N - 1
            tiles = [task for task in before if graph.kind[task] == Kind.GEMM2]
            assert sorted(graph.rank[tiles].tolist()) == list(range(N))


@pytest.mark.parametrize("scheme", ["fuselib", "fuselib-nvls"])
def test_flags_take_their_time(scheme: str) -> None:
    """A poll behind the last partial sum, and one behind the last sum that was spread."""
    quick, slow = (leave(scheme, overrides=(("overheads.poll_ns", ns),)) for ns in (200.0, 50200.0))
    later = slow.time_ps - quick.time_ps
    # Polls of the stores are hidden behind tiles that follow; that behind a copy is not.
    least = 50_000_000 if scheme == "fuselib" else 100_000_000
    assert later >= least


@pytest.mark.parametrize(
    ("scheme", "ways_of_rows", "ways_of_sums"),
    [
        # Data, acknowledgement, flag; for an all-reduce, twice.
        ("fuselib", 3, 6),
        # Flags of the partial sums, request, answers, then copies, acknowledgement, flag.
        ("fuselib-nvls", 3, 6),
    ],
)
def test_flags_follow_the_acknowledgement_of_what_they_tell_of(
    scheme: str, ways_of_rows: int, ways_of_sums: int
) -> None:
    """Links that are slower by 10 us: twice that for each way to a switch and on.

    Few bytes, so that they do not wait for one another.
    """
    for step, ways in ((Enter, ways_of_rows), (Leave, ways_of_sums)):
        quick, slow = (
            OneStep(
                scheme,
                step,
                k=128,
                n=128,
                tokens=128,
                hidden=128,
                sequence_parallel=step is Enter,
                overrides=(("link.propagation_ns", ns),),
            ).time_ps
            for ns in (100.0, 10100.0)
        )
        assert slow - quick == pytest.approx(ways * 20_000_000, rel=0.01)


@pytest.mark.parametrize("scheme", ["fuselib", "fuselib-nvls"])
def test_rows_wait_for_their_flag(scheme: str) -> None:
    quick, slow = (enter(scheme, overrides=(("overheads.poll_ns", ns),)) for ns in (200.0, 50200.0))
    rank = 2
    for step, polls in ((quick, 200_000), (slow, 50_200_000)):
        tasks, first, rows = step.rows(Kind.GEMM1, rank, SMS)
        own = (first >= rank * step.layer.own_rows) & (first + rows <= (rank + 1) * step.layer.own_rows)
        begun = step.timeline.start_ps[tasks]
        arrived = step.timeline.end_ps[step.tasks(Kind.DISPATCH_DOWN, rank)].min()
        assert begun[own].min() < arrived
        assert begun[~own].min() > arrived + polls
    assert slow.time_ps - quick.time_ps > 40_000_000


def test_a_tile_waits_for_all_its_rows_and_no_others() -> None:
    step = enter()
    waits, graph, rank = Dependencies(step.timeline), step.graph, 3
    ports = step.tasks(Kind.DISPATCH_DOWN, rank)
    rows_in = set(ports[graph.payload_bytes[ports] > 0].tolist())
    tasks, first, rows = step.rows(Kind.GEMM1, rank, SMS)
    share = step.layer.own_rows
    for tile in range(0, len(tasks), 17):
        last = first[tile] + rows[tile]
        own = max(0, min(last, (rank + 1) * share) - max(first[tile], rank * share))
        came = list(waits.before([int(tasks[tile])]) & rows_in)
        assert graph.payload_bytes[came].sum() == (rows[tile] - own) * HIDDEN * 2


# ---- who pays ------------------------------------------------------------------------------------


def test_sms_store_every_partial_sum_and_every_sum() -> None:
    for sequence_parallel in (False, True):
        step = leave(sequence_parallel=sequence_parallel)
        share = step.buffer_bytes // N
        stored = (1 if sequence_parallel else 2) * (N - 1) * share
        expected = int(step.machine.costs.sm_store(stored).ps)
        for rank in range(N):
            assert step.spent_ps(Kind.COMBINE_SEND, rank) == pytest.approx(expected, rel=1e-3)


def test_sms_add_the_sums_of_their_share_up() -> None:
    step = leave()
    share = step.buffer_bytes // N
    expected = int(step.machine.costs.sm_add((N - 1) * share, share).ps)
    for rank in range(N):
        assert step.spent_ps(Kind.COMBINE_RECEIVE, rank) == pytest.approx(expected, rel=1e-3)


def test_device_memory_takes_partial_sums_in_and_gives_them_back() -> None:
    """N - 1 shares come in and are read again, a sum is written; then the others' sums come."""
    for sequence_parallel in (False, True):
        step = leave(sequence_parallel=sequence_parallel)
        share, stream = step.buffer_bytes // N, step.machine.costs.stream
        come = (1 if sequence_parallel else 2) * (N - 1) * share
        expected = int(stream(MemoryTraffic((N - 1) * share, come + share)).ps)
        for rank in range(N):
            assert step.spent_ps(Kind.COMBINE_MEMORY, rank) == pytest.approx(expected, rel=1e-2)


def test_no_partial_sum_is_written_at_home() -> None:
    """A product alone writes its result back; here nothing but sums is written."""
    step, kept = leave(), leave("fuselib-nvls")
    written = [_results_ps(each) for each in (step, kept)]
    assert written[0] == 0
    expected = int(kept.machine.system.hbm.write_ps(kept.buffer_bytes)) * N
    assert written[1] == pytest.approx(expected, rel=1e-2)


def _results_ps(step: OneStep) -> int:
    touched = np.r_[tuple(step.machine.notes.reads["results"])]
    return int(step.graph.touches.miss_duration_ps[touched].sum())


def test_in_the_switch_owners_load_and_members_are_read() -> None:
    for sequence_parallel in (False, True):
        step = leave("fuselib-nvls", sequence_parallel=sequence_parallel)
        costs, share = step.machine.costs, step.buffer_bytes // N
        busy = int(costs.sm_load(share).ps)
        written = share
        if not sequence_parallel:
            busy += int(costs.sm_store(share).ps)
            written = step.buffer_bytes
        memory = int(costs.stream(MemoryTraffic(step.buffer_bytes, written)).ps)
        for rank in range(N):
            assert step.spent_ps(Kind.COMBINE_SEND, rank) == pytest.approx(busy, rel=1e-2)
            assert step.spent_ps(Kind.COMBINE_MEMORY, rank) == pytest.approx(memory, rel=1e-2)


@pytest.mark.parametrize("scheme", ["fuselib", "fuselib-nvls"])
def test_pushing_takes_sms_and_memory(scheme: str) -> None:
    step = enter(scheme)
    share = step.buffer_bytes // N
    times, come = (1, N) if scheme == "fuselib-nvls" else (N - 1, N - 1)
    stored = int(step.machine.costs.sm_store(times * share).ps)
    memory = int(step.machine.costs.stream(MemoryTraffic(share, come * share)).ps)
    for rank in range(N):
        assert step.spent_ps(Kind.DISPATCH_SEND, rank) == pytest.approx(stored, rel=1e-3)
        assert step.spent_ps(Kind.DISPATCH_MEMORY, rank) == pytest.approx(memory, rel=1e-2)


def test_blocks_that_push_do_not_multiply_until_their_rows_have_left() -> None:
    """With all blocks pushing, no tile begins before the first of them has nothing left to send."""
    some, every = enter(pushing_blocks=16), enter(pushing_blocks=16, message_rows=16)
    assert some.time_ps == every.time_ps
    every = enter(pushing_blocks=SMS, message_rows=1)
    for rank in range(N):
        first = starts(every, Kind.GEMM1, rank).min()
        left = every.timeline.end_ps[every.tasks(Kind.DISPATCH_UP, rank)]
        payload = every.graph.payload_bytes[every.tasks(Kind.DISPATCH_UP, rank)] > 0
        assert np.sort(left[payload])[0] < first
        busy = starts(some, Kind.GEMM1, rank).min()
        assert busy < first
    assert starts(every, Kind.GEMM1, 0).min() > 2 * starts(some, Kind.GEMM1, 0).min()


def test_a_block_pushes_one_message_while_another_waits_to_leave() -> None:
    step = enter(pushing_blocks=1)
    for rank in range(N):
        issued = np.sort(starts(step, Kind.DISPATCH_SEND, rank))
        ports = step.tasks(Kind.DISPATCH_UP, rank)
        rows = ports[step.graph.payload_bytes[ports] > 0]
        left = np.sort(step.timeline.end_ps[rows])
        assert len(issued) == len(left) == (N - 1) * TOKENS // N // 16
        assert (issued[2:] >= left[:-2]).all()
        assert (np.diff(issued) >= int(step.machine.costs.sm_store(16 * HIDDEN * 2).ps)).all()


def test_every_message_is_pushed_by_a_block_that_has_an_sm() -> None:
    step = enter()
    groups = np.array([*step.graph.resources.groups, ""])[step.graph.resource]
    claims = np.flatnonzero((groups == "block scheduler") & (step.graph.rank == 2))
    pushed = step.tasks(Kind.DISPATCH_SEND, 2)
    waits = Dependencies(step.timeline)
    assert all(len(waits.before([task]) & set(claims.tolist())) == 1 for task in pushed.tolist())


def test_blocks_wait_for_the_link() -> None:
    """Sixteen blocks store faster than their link takes; each has two messages under way."""
    step = enter(pushing_blocks=16, message_rows=4)
    for rank in range(N):
        ports = step.tasks(Kind.DISPATCH_UP, rank)
        left = step.timeline.end_ps[ports[step.graph.payload_bytes[ports] > 0]]
        issued = starts(step, Kind.DISPATCH_SEND, rank)
        under_way = [(issued <= now).sum() - (left <= now).sum() for now in issued]
        assert 16 < max(under_way) <= 2 * 16


def test_few_pushing_blocks_are_the_limit() -> None:
    slow, fast = enter(pushing_blocks=1), enter(pushing_blocks=16)
    share = slow.buffer_bytes // N
    assert slow.time_ps > int(slow.machine.costs.sm_store((N - 1) * share).ps)
    assert fast.time_ps < slow.time_ps


def test_one_kernel_is_launched_where_others_have_two() -> None:
    for step in (leave(), enter(), leave("fuselib-nvls"), enter("fuselib-nvls")):
        gap = step.graph.duration_ps[
            (step.graph.kind == Kind.LAUNCH) & (step.graph.resource < 0) & (step.graph.rank == 0)
        ]
        assert len(gap) == 1


@pytest.mark.parametrize("scheme", ["fuselib", "fuselib-nvls"])
def test_no_sm_only_communicates(scheme: str) -> None:
    assert find(scheme, "tp").communication_sms(leave(scheme).machine) == 0


def test_options_that_are_not_possible_are_refused_in_one_line() -> None:
    for option in ({"pushing_blocks": 0}, {"message_rows": 0}, {"sequence_parallel": "perhaps"}):
        with pytest.raises(UserError) as refusal:
            find("fuselib", "tp").with_options(option)
        assert "\n" not in str(refusal.value)
    with pytest.raises(UserError, match=r"pushing_blocks=133 .*the GPU has 132 SMs"):
        enter(pushing_blocks=133)
