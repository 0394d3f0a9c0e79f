"""Kernels as a profiler sees them: closed forms, and a twin that looks at every moment."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import hwmodel
from replay.engine import GraphBuilder, schedule
from replay.measure.activity import Activity, activity_of, waiting
from replay.model.arrays import Ints
from replay.model.compute.dense_kernels import DenseKernels
from replay.model.machine.kinds import DISPATCH, KIND_NAMES, Kind
from replay.model.machine.machine import Machine, Time

H100 = hwmodel.load("dgx-h100")
GAP = H100.overheads.kernel_gap_ps("stream")
US = 1_000_000


def machine_of(ranks: int = 1, **host: object) -> Machine:
    return Machine(H100, GraphBuilder(KIND_NAMES), ranks, **host)  # type: ignore[arg-type]  # words


def found(machine: Machine, ends: Ints) -> tuple[Activity, Ints]:
    """What runs up to some tasks, and when these are over."""
    timeline = schedule(machine.graph.build())
    ends_ps = timeline.visible_ps[ends]
    return activity_of(machine, ends_ps, timeline), ends_ps


def ran(one: Activity) -> list[list[int]]:
    return [one.active.tolist(), one.computing.tolist(), one.communicating.tolist(), one.both.tolist()]


def kernel(machine: Machine, after: Ints, *work: tuple[Kind, int]) -> Ints:
    """A kernel that does things one after the other."""
    ended = machine.kernel(after, "kernel")
    for kind, ps in work:
        ended = machine.delay(kind, Time(ps), ended)
    return ended


def test_two_kernels_with_a_gap() -> None:
    machine = machine_of()
    first = kernel(machine, machine.mark(machine.ranks), (Kind.GEMM1, 30))
    ends = kernel(machine, first, (Kind.ACTIVATION, 12))
    activity, ends_ps = found(machine, ends)
    assert ends_ps.tolist() == [GAP + 30 + GAP + 12]
    assert ran(activity) == [[42], [42], [0], [0]]


def test_an_exchange_beside_a_product_is_hidden_as_long_as_that_runs() -> None:
    machine = machine_of()
    start = machine.mark(machine.ranks)
    product = kernel(machine, start, (Kind.GEMM1, 100))
    moved = kernel(machine, start, (Kind.DISPATCH_SEND, 130))
    activity, _ = found(machine, machine.gather(product, machine.ranks, moved))
    assert ran(activity) == [[130], [100], [130], [100]]


def test_a_kernel_that_waits_inside_is_active_and_one_that_has_not_begun_is_not() -> None:
    machine = machine_of(2)
    late = machine.delay(Kind.DELAY, Time(np.array([0, 50 * US])), machine.mark(machine.ranks))
    met = machine.sync.barrier(DISPATCH, machine.kernel(late, "meet"), stored="nothing")
    activity, ends_ps = found(machine, met)
    barrier = H100.overheads.barrier_ps(2)
    assert ends_ps.tolist() == 2 * [50 * US + GAP + barrier]
    assert activity.communicating.tolist() == [50 * US + barrier, barrier]
    assert activity.active.tolist() == activity.communicating.tolist()


def test_what_a_fused_kernel_does_it_does_all_the_time() -> None:
    machine = machine_of()
    start = machine.mark(machine.ranks)
    ends = kernel(machine, start, (Kind.DISPATCH_SYNC, 20), (Kind.GEMM1, 100))
    assert ran(found(machine, ends)[0]) == [[120], [120], [120], [120]]


def test_looking_at_the_routing_makes_no_exchange_a_computation() -> None:
    machine = machine_of()
    start = machine.mark(machine.ranks)
    ends = kernel(machine, start, (Kind.LAYOUT, 20), (Kind.DISPATCH_SEND, 100))
    assert ran(found(machine, ends)[0]) == [[120], [0], [120], [0]]


def test_a_collective_of_known_time_communicates() -> None:
    machine = machine_of()
    kernels = DenseKernels(machine, "bf16", machine.mark(machine.ranks), is_backward=False, known={})
    kernels.exchange("all-gather", 70)
    assert ran(found(machine, kernels.end)[0]) == [[70], [0], [70], [0]]


def test_gaps_of_a_row_are_idle_and_so_is_waiting_for_launches() -> None:
    each = Time(np.array([US, 2 * US]))
    for launch, late in ((None, 0), ("eager", 100 * US)):
        slow = hwmodel.load("dgx-h100", {"overheads.launch_us": 50.0})
        machine = Machine(slow, GraphBuilder(KIND_NAMES), 1, launch=launch)  # type: ignore[arg-type]
        ends = machine.host.row(Kind.LAYOUT, each, machine.mark(machine.ranks), "row")
        activity, ends_ps = found(machine, ends)
        # The second launch arrives at 100 us, with its kernel behind it.
        assert ends_ps.tolist() == [late + 2 * US if late else 3 * US + 2 * GAP]
        assert ran(activity) == [[3 * US], [3 * US], [0], [0]]


def test_waiting_for_the_host_is_idle() -> None:
    machine = machine_of(launch="eager")
    first = kernel(machine, machine.mark(machine.ranks), (Kind.GEMM1, 100 * US))
    machine.host.wait(DISPATCH, first)
    activity, ends_ps = found(machine, kernel(machine, first, (Kind.GEMM2, 5 * US)))
    overheads = H100.overheads
    wait = overheads.host_sync_ps + overheads.launch_ps
    assert ends_ps.tolist() == [overheads.launch_ps + 105 * US + wait]
    assert activity.active.tolist() == [105 * US]


def test_no_kernel_is_active_behind_a_gpu_s_end() -> None:
    machine = machine_of()
    first = kernel(machine, machine.mark(machine.ranks), (Kind.GEMM1, 30))
    kernel(machine, first, (Kind.GEMM1, 30))
    assert found(machine, first)[0].active.tolist() == [30]


def test_without_kernels_nothing_runs() -> None:
    machine = machine_of(2)
    assert ran(found(machine, machine.mark(machine.ranks))[0]) == 4 * [[0, 0]]


def test_bytes_of_kernels_stream_from_memory() -> None:
    machine = machine_of(2)
    nbytes = np.array([10**6, 3 * 10**6])
    ends = machine.memory_kernel(Kind.BETWEEN, nbytes, machine.mark(machine.ranks))
    ends = kernel(machine, ends, (Kind.GEMM1, 30))
    activity = found(machine, ends)[0]
    streaming = H100.hbm.stream_ps(nbytes).tolist()
    assert np.asarray(activity.streaming).tolist() == streaming
    both = activity * 3 + Activity(*np.ones((4, 2), np.int64))
    assert np.asarray(both.of(np.array([1])).streaming).tolist() == [3 * streaming[1] + 1]


def test_activities_add_up() -> None:
    one = Activity(*np.array([[5, 6], [3, 4], [1, 2]]))
    assert ran(one + waiting(np.array([10, 20]))) == [[17, 28], [5, 6], [13, 24], [1, 2]]
    assert ran(one * 2) == [[14, 16], [10, 12], [6, 8], [2, 4]]
    assert ran(one.of(np.array([1, 1, 0]))) == [[8, 8, 7], [6, 6, 5], [4, 4, 3], [2, 2, 1]]


# ---- a twin --------------------------------------------------------------------------------------


class Drawn(NamedTuple):
    """A kernel behind an earlier one, -1 for the begin: how long it multiplies, and moves rows."""

    behind: int
    multiplies: int
    moves: int


@st.composite
def programs(draw: st.DrawFn) -> list[Drawn]:
    count = draw(st.integers(1, 7))
    times = st.sampled_from([0, 1, 3 * GAP, 4 * GAP + 7])
    return [Drawn(draw(st.integers(-1, k - 1)), draw(times), draw(times)) for k in range(count)]


@settings(max_examples=60, deadline=None)
@given(programs())
def test_every_moment_is_counted_as_what_runs_then(program: list[Drawn]) -> None:
    """Kernels on streams as many as there are; the twin asks at each moment between two changes."""
    machine = machine_of()
    tasks, spans, ends = [machine.mark(machine.ranks)], [], [0]
    for behind, multiplies, moves in program:
        work = ((Kind.GEMM1, multiplies), (Kind.COMBINE_SEND, moves))
        done = [(kind, ps) for kind, ps in work if ps] or [(Kind.ACTIVATION, 0)]
        tasks.append(kernel(machine, tasks[behind + 1], *done))
        begin = ends[behind + 1] + GAP
        ends.append(begin + multiplies + moves)
        spans.append((begin, ends[-1], multiplies > 0 or not moves, moves > 0))
    activity, ends_ps = found(machine, machine.join(np.concatenate(tasks), 0 * np.arange(len(tasks)), machine.ranks))
    assert ends_ps.tolist() == [max(ends)]
    moments = sorted({0, *(time for span in spans for time in span[:2])})
    expected = [0, 0, 0, 0]
    for since, until in itertools.pairwise(moments):
        running = [span[2:] for span in spans if span[0] <= since and until <= span[1]]
        computes, moves_rows = (any(one[what] for one in running) for what in range(2))
        flags = (bool(running), computes, moves_rows, computes and moves_rows)
        expected = [total + flag * (until - since) for total, flag in zip(expected, flags, strict=True)]
    assert ran(activity) == [[one] for one in expected]
