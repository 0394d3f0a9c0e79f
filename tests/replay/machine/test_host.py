"""Launches, gaps and host waits, added up by hand.

On the round machine a launch takes the host 3 us, a graph's 2.5 us; the gap between kernels is 2 us
in a stream and 1.5 us in a graph. A kernel is a delay here.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import cached_property

import numpy as np
import pytest
from loops import every
from round_machine import US, round_machine

from replay.engine import GraphBuilder, Timeline, critical_path, schedule
from replay.measure.origins import critical_path_of
from replay.measure.parts import CriticalPathTimes
from replay.model.arrays import Ints
from replay.model.machine.host import FREE_HOSTS, AddedRow, Calls, Launch, Operation, StageCalls
from replay.model.machine.kinds import DISPATCH, KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.machine.times import Time


class Stream:
    """Kernels of given microseconds, one after the other."""

    def __init__(self, launch: Launch | None, num_ranks: int = 1, lead_us: float | list[float] = 0) -> None:
        graph, lead = GraphBuilder(KIND_NAMES), Time(np.asarray(lead_us, np.int64) * US)
        self.machine = Machine(round_machine(), graph, num_ranks, launch=launch, lead=lead)
        self.end = self.machine.mark(self.machine.ranks)
        self.begun: list[Ints] = []

    def kernel(self, us: float, *, has_gap: bool = True) -> Ints:
        self.begun.append(self.machine.kernel(self.end, "kernel", has_gap=has_gap))
        self.end = self.machine.delay(Kind.BETWEEN, Time(round(us * US)), self.begun[-1])
        return self.end

    def row(self, times_us: list[float]) -> None:
        times = Time(np.round(np.array(times_us) * US).astype(np.int64))
        self.end = self.machine.host.row(Kind.BETWEEN, times, self.end, "row")

    @cached_property
    def schedule(self) -> Timeline:
        return schedule(self.machine.graph.build())

    def begins_us(self) -> list[float]:
        return [float(self.schedule.visible_ps[begun[0]]) / US for begun in self.begun]

    @property
    def path(self) -> CriticalPathTimes:
        notes = self.machine.notes
        return critical_path_of(critical_path(self.schedule), notes.places, notes.spent)

    def ends_us(self) -> list[float]:
        return [float(end) / US for end in self.schedule.visible_ps[self.end]]


def test_short_kernels_are_as_slow_as_their_launches() -> None:
    stream = Stream("eager")
    for _ in range(4):
        stream.kernel(0.5)
    assert stream.begins_us() == [3, 6, 9, 12]  # 0.5 + 2 us would let them follow sooner


def test_long_kernels_let_the_host_run_ahead() -> None:
    stream = Stream("eager")
    for _ in range(3):
        stream.kernel(10)
    assert stream.begins_us() == [3, 3 + 10 + 2, 3 + 10 + 2 + 10 + 2]


def test_a_lead_is_used_up_by_short_kernels() -> None:
    # Launches arrive at 3, 6, 9, 12, 15. The first kernel ends at 7; the next three take 0.5 + 2 us
    # each until the launches are what they wait for.
    stream = Stream("eager")
    for us in (4, 0.5, 0.5, 0.5, 0.5):
        stream.kernel(us)
    assert stream.begins_us() == [3, 9, 11.5, 14, 16.5]
    stream = Stream("eager")
    for us in (1, 0.1, 0.1, 0.1, 0.1):
        stream.kernel(us)
    assert stream.begins_us() == [3, 6, 9, 12, 15]


@pytest.mark.parametrize(("wait", "blocked_us"), [("wait", 9), ("poll", 4)], ids=["synchronise", "poll"])
def test_a_wait_of_the_host_takes_its_lead(wait: str, blocked_us: float) -> None:
    stream = Stream("eager")
    stream.kernel(20)  # 3 .. 23; the second is launched at 6 and runs 25 .. 45
    counted = stream.kernel(20)
    getattr(stream.machine.host, wait)(DISPATCH, counted)
    stream.kernel(20)
    stream.kernel(0.5)
    third = 45 + blocked_us + 3
    assert stream.begins_us() == [3, 25, third, third + 20 + 2]


def test_what_is_launched_before_a_wait_runs_beside_it() -> None:
    stream = Stream("eager")
    counted = stream.kernel(5)  # 3 .. 8
    stream.kernel(30)  # launched at 6: 10 .. 40
    stream.machine.host.wait(DISPATCH, counted)  # 8 .. 17
    stream.kernel(1)  # launched at 20, long before 40 + 2
    assert stream.begins_us() == [3, 10, 42]


def test_a_graph_is_launched_once_and_has_the_smaller_gap() -> None:
    stream = Stream("graph")
    for _ in range(4):
        stream.kernel(0.5)
    assert stream.begins_us() == [4, 6, 8, 10]  # 2.5 + 1.5, then every 0.5 + 1.5


def test_a_wait_ends_what_is_captured_until_the_next_layer() -> None:
    stream = Stream("graph")
    counted = stream.kernel(1)  # 2.5 + 1.5 = 4 .. 5
    stream.machine.host.poll(DISPATCH, counted)  # .. 9
    stream.kernel(1)  # one by one: launched at 12
    stream.kernel(1)  # 15 is later than 13 + 2
    stream.machine.host.next_layer()
    stream.kernel(1)  # graph launched 15 .. 17.5; the kernel before ends at 16
    stream.kernel(1)  # 19 + 1 + 1.5
    assert stream.begins_us() == [4, 12, 15, 19, 21.5]


def test_a_graph_goes_on_through_layers_of_a_step_and_not_beyond() -> None:
    stream = Stream("graph")
    stream.kernel(0.1)
    for same_graph in (True, False):
        stream.machine.host.next_layer(same_graph=same_graph)
        stream.kernel(0.1)
    assert stream.begins_us() == pytest.approx([4, 5.6, 7.2])
    host = stream.machine.resources.host[0]
    launches = stream.schedule.graph.resource == host
    assert launches.sum() == 2  # the second went ahead while the first graph ran


def test_launches_of_long_ago_cost_nothing_before_the_first_wait() -> None:
    stream = Stream(None)
    for _ in range(3):
        stream.kernel(0.5)
    stream.machine.host.poll(DISPATCH, stream.end)  # at 7.5
    stream.kernel(0.5)
    stream.kernel(0.5)
    assert stream.begins_us() == [2, 4.5, 7, 7.5 + 4 + 3, 7.5 + 4 + 6]


def test_a_lead_is_launches_of_before() -> None:
    # Of the launches at 3, 6, 9, 12, 15 the first 7 us are over when the GPU begins.
    stream = Stream("eager", lead_us=7)
    for _ in range(5):
        stream.kernel(0.1)
    assert stream.begins_us() == pytest.approx([2, 4.1, 6.2, 8.3, 10.4])
    stream = Stream("eager", lead_us=4)
    for _ in range(5):
        stream.kernel(0.1)
    assert stream.begins_us() == pytest.approx([2, 4.1, 6.2, 8.3, 11])
    graph = Stream("graph", lead_us=1)
    graph.kernel(1)
    assert graph.begins_us() == [1.5 + 1.5]


def test_a_wait_takes_a_lead_of_before() -> None:
    stream = Stream("eager", lead_us=100)
    stream.kernel(1)  # 2 .. 3
    stream.machine.host.poll(DISPATCH, stream.end)
    stream.kernel(1)
    assert stream.begins_us() == [2, 3 + 4 + 3]


@every("lead_us", [0, 2, 4, 7, 100])
@every("times_us", [[0.5] * 6, [10, 0.1, 0.1, 0.1, 0.1, 0.1]])
def test_a_row_has_the_lead_that_its_kernels_have(lead_us: float, times_us: list[float]) -> None:
    apart, together = Stream("eager", 1, lead_us), Stream("eager", 1, lead_us)
    for us in times_us:
        apart.kernel(us)
    together.row(times_us)
    for stream in (apart, together):
        stream.kernel(0.1)
    assert together.ends_us() == pytest.approx(apart.ends_us())


def test_ranks_have_leads_of_their_own() -> None:
    stream = Stream("eager", 2, [0, 9])
    stream.row([0.5] * 4)
    assert stream.ends_us() == [12.5, 10]  # launches, or 4 x (2 + 0.5)


def test_an_early_kernel_has_no_gap_and_still_its_launch() -> None:
    stream = Stream("eager")
    stream.kernel(1)
    stream.kernel(10, has_gap=False)
    stream.kernel(10, has_gap=False)
    assert stream.begins_us() == [3, 6, 16]


@every("launch", ["eager", "graph", None])
@every(
    "times_us",
    [[0.5] * 6, [10] * 6, [10, 0.1, 0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 12, 0.1, 0.1], [0.2], []],
    ids=["short", "long", "long first", "long between", "one", "none"],
)
def test_a_row_ends_as_its_kernels_one_by_one(launch: Launch | None, times_us: list[float]) -> None:
    apart, together = Stream(launch), Stream(launch)
    for stream in (apart, together):
        stream.kernel(0.7)
    for us in times_us:
        apart.kernel(us)
    together.row(times_us)
    for stream in (apart, together):
        stream.kernel(0.1)
        stream.kernel(0.1)
    assert together.ends_us() == apart.ends_us()


def test_a_row_has_times_of_each_rank() -> None:
    stream = Stream("eager", num_ranks=2)
    times = np.array([[1, 20], [1, 20]]) * US  # (kernel, rank)
    stream.end = stream.machine.host.row(Kind.BETWEEN, Time(times), stream.end, "row")
    assert stream.ends_us() == [3 + 3 + 1, 3 + 20 + 2 + 20]


def booked(path: CriticalPathTimes) -> list[tuple[str, float, int]]:
    """Launches, gaps and kernels of a path: kind, length and number."""
    rows = [*(path.overhead or ()), *(path.latencies or ())]
    return [(one.kind, one.each_us, one.count) for one in rows]


ROWS: list[tuple[Launch | None, list[float], list[tuple[str, float, int]]]] = [
    ("eager", [0.5] * 6, [("host", 3, 6), ("between", 0.5, 1)]),
    ("eager", [10] * 6, [("host", 3, 1), ("launch", 2, 5), ("between", 10, 6)]),
    ("eager", [0.5] * 3 + [12] * 2, [("host", 3, 4), ("launch", 2, 1), ("between", 24, 1)]),
    ("graph", [0.5] * 6, [("host", 2.5, 1), ("launch", 1.5, 6), ("between", 0.5, 6)]),
    (None, [0.5] * 6, [("launch", 2, 6), ("between", 0.5, 6)]),
]


@every(("launch", "times_us", "found"), ROWS)
def test_a_chain_of_kernels_books_each_launch_gap_and_kernel(
    launch: Launch | None, times_us: list[float], found: list[tuple[str, float, int]]
) -> None:
    """Those on the path alone. Kernels that do not take the same are told together."""
    stream = Stream(launch)
    stream.row(times_us)
    assert booked(stream.path) == found
    assert sum(each * count for _, each, count in found) == stream.ends_us()[0]


def test_a_lead_hides_launches_of_a_row_and_one_in_part() -> None:
    stream = Stream("eager", lead_us=4)
    stream.row([0.125] * 5)  # launched at 15 - 4
    assert booked(stream.path) == [("host", 3, 3), ("host", 2, 1), ("between", 0.125, 1)]


def test_launches_that_cost_nothing_book_none() -> None:
    stream = Stream("eager", lead_us=FREE_HOSTS.ps // US)
    stream.row([0.5] * 6)
    assert booked(stream.path) == [("launch", 2, 6), ("between", 0.5, 6)]


def test_kernels_of_a_row_name_their_values() -> None:
    stream = Stream("graph")
    stream.machine.small_kernels(Kind.LAYOUT, 0, stream.end, Operation("small", 4))
    counts: Counter[tuple[str, ...]] = Counter()
    for one in [*(stream.path.overhead or ()), *(stream.path.latencies or ())]:
        counts[one.kind, *(one.values or ())] += one.count
    assert counts == {
        ("host", "overheads.graph_launch_us"): 1,
        ("launch", "overheads.kernel_gap_graph_us"): 4,
        ("layout", "overheads.small_kernel_us"): 4,
    }


def test_small_kernels_in_a_row_move_their_bytes_in_the_last() -> None:
    # 0.3 us each beside the bytes; 5 bytes a picosecond: 50 MB take 10 us.
    stream = Stream("eager")
    end = stream.machine.small_kernels(Kind.LAYOUT, 50_000_000, stream.end, Operation("small", 3))
    assert stream.schedule.visible_ps[end].tolist() == [9 * US + 10 * US + 300_000]
    assert stream.machine.host.program == [Operation("small", 2), Operation("small", 1)]


def test_hosts_of_two_gpus_do_not_wait_for_each_other() -> None:
    stream = Stream("eager", num_ranks=2)
    late = stream.machine.delay(Kind.BETWEEN, Time(np.array([0, 50 * US])), stream.end)
    stream.machine.host.poll(DISPATCH, late)
    stream.kernel(1)
    assert stream.ends_us() == [4 + 3 + 1, 50 + 4 + 3 + 1]


def test_a_script_is_of_one_layer() -> None:
    stream = Stream("eager")
    stream.kernel(1)
    stream.machine.host.next_layer()
    stream.row([1, 1])
    assert [(one.name, one.launches) for one in stream.machine.host.program] == [("row", 2)]


# ---- what a stack does around launches -----------------------------------------------------------


def _under(stages: dict[tuple[str, bool], StageCalls]) -> Stream:
    """A stream whose host does what a stack does, stage by stage."""
    stream = Stream("eager")
    stream.machine.host._calls = Calls(stages)
    return stream


def test_a_launch_costs_what_its_call_costs() -> None:
    stream = Stream("eager")
    for us in (3, 7, 5):
        begun = stream.machine.kernel(stream.end, Operation("kernel", host_ps=us * US))
        stream.begun.append(begun)
        stream.end = stream.machine.delay(Kind.BETWEEN, Time(US), begun)
    assert stream.begins_us() == [3, 10, 15]


def test_a_row_of_calls_costs_each_of_them() -> None:
    stream = Stream("eager")
    times = Time(np.full(3, US))
    row = Operation("row", host_ps=10 * US)
    stream.end = stream.machine.host.row(Kind.BETWEEN, times, stream.end, row)
    assert stream.machine.host.counts.launched == {("", False): 3}
    assert stream.ends_us() == [31]  # the last is launched at 30


def test_a_stage_has_costs_of_its_own_and_leaves_them_behind() -> None:
    calls = {("send", False): StageCalls(8 * US), ("send", True): StageCalls(20 * US)}
    stream = _under(calls)
    for stage in ("send", "receive"):
        stream.end = stream.machine.enter(stage, stream.end, is_backward=False)
        stream.kernel(1)
    assert stream.begins_us() == [8, 11]  # "receive" is a bare launch


def _added(name: str, kernels: int, nbytes: int = 0, late_ps: int = 0, **fields: int) -> AddedRow:
    """Kernels of a stack."""
    return AddedRow(Operation(name, kernels), nbytes, late_ps, **fields)


def _runs(stream: Stream) -> list[tuple[str, int, int, int]]:
    """Names, kernels, bytes and late picoseconds of what was launched in stage "experts"."""
    found = stream.machine.host.script.runs([("experts", False)])
    return [(run.name, run.kernels, run.nbytes, run.late_ps) for run in found]


def test_a_stack_adds_kernels_bytes_and_waits() -> None:
    rows = (_added("first", 2, 4_000, waits=1), _added("second", 2, 4_000))
    stream = _under({("experts", False): StageCalls(10 * US, rows)})
    stream.kernel(1)  # a bare launch, at 3
    stream.end = stream.machine.enter("experts", stream.end, is_backward=False)
    stream.kernel(1)
    machine = stream.machine
    host = machine.host
    assert _runs(stream) == [("first", 2, 4_000, 0), ("second", 2, 4_000, 0), ("kernel", 1, 0, 0)]
    assert host.counts.waited == {("experts", False): 1}
    assert [one.name for one in host.program if not one.launches] == ["first"]
    # Two small kernels end when the second, launched at 3 + 2 x 10, has moved its 4,000 bytes; the
    # host waits for it, launches two more and the last one.
    half = machine.system.overheads.small_kernel_ps + int(machine.system.hbm.stream_ps(4_000))
    waited_us = 9
    begun_us = 23 + half / US + waited_us + 3 * 10
    assert stream.begins_us()[-1] == pytest.approx(begun_us, abs=1e-6)


def test_a_stack_launches_between_kernels_of_a_scheme_and_behind_them() -> None:
    """A run is kernels of one name, however many; what another layer or stage launches is not told apart."""
    rows = (_added("before", 1), _added("between", 1, behind=1), _added("behind", 1, behind=7))
    stream = _under({("experts", False): StageCalls(10 * US, rows)})
    stream.end = stream.machine.enter("experts", stream.end, is_backward=False)
    for name in ("gemm1", "gemm1", "activation", "gemm2"):
        stream.end = stream.machine.kernel(stream.end, name)
    ended = stream.machine.leave(stream.end)
    names = ["before", "gemm1", "between", "activation", "gemm2", "behind"]
    assert [name for name, *_ in _runs(stream)] == names
    assert (ended > stream.end).all()
    places = [place for _, place in stream.machine.notes.places if place.startswith("kernel list")]
    assert list(dict.fromkeys(places)) == ["kernel list: before", "kernel list: between", "kernel list: behind"]
    assert (stream.machine.leave(ended) == ended).all()
    stream.kernel(1)
    assert not stream.machine.notes.places[-1][1].startswith("kernel list"), "of the scheme again"


def test_a_stack_moves_more_bytes_than_a_scheme_s_kernels() -> None:
    """No kernel more: 50 MB at 5 bytes a picosecond before those that the scheme has."""
    stream = _under({("experts", False): StageCalls(3 * US, (_added("kernel", 0, 50_000_000),))})
    stream.end = stream.machine.enter("experts", stream.end, is_backward=False)
    stream.kernel(1)
    assert stream.begins_us() == [10 + 2]
    assert stream.machine.host.counts.launched == {("experts", False): 1}


def test_a_stack_takes_longer_than_its_bytes_by_laws_of_its_kernels() -> None:
    """Behind the bytes: of kernels that it adds, or of those that the scheme has."""
    laws = _under({("experts", False): StageCalls(3 * US, (_added("kernel", 0, 50_000_000, 6 * US),))})
    laws.end = laws.machine.enter("experts", laws.end, is_backward=False)
    laws.kernel(1)
    assert laws.begins_us() == [10 + 6 + 2]
    added = _under({("experts", False): StageCalls(3 * US, (_added("rows", 3, 50_000_000, 6 * US),))})
    added.machine.enter("experts", added.end, is_backward=False)
    added.machine.leave(added.end)
    assert _runs(added) == [("rows", 3, 50_000_000, 6 * US)]


def test_kernels_in_a_row_are_in_the_queue() -> None:
    """It takes two; the row's, which begin behind a kernel of 3 .. 53 us, fill it."""
    stream = Stream("eager")
    stream.machine.host._ahead = deque(maxlen=2)
    stream.kernel(50)
    stream.row([1, 1])
    stream.machine.host.spend(Operation("call", host_ps=US))
    last = stream.machine.host.last
    assert last is not None
    assert stream.schedule.visible_ps[last[0]] == (53 + 1) * US


def test_a_graph_within_that_of_the_layer_is_part_of_it() -> None:
    stream = Stream("graph")
    stream.kernel(1)
    stream.machine.host.begin_graph()
    stream.kernel(1)
    stream.machine.host.end_graph()
    stream.kernel(1)
    assert stream.begins_us() == [4, 6.5, 9]


def test_no_more_launches_are_ahead_than_the_queue_takes() -> None:
    stream = Stream("eager")
    stream.machine.host._ahead = deque(maxlen=2)
    for _ in range(4):
        stream.kernel(50)
    stream.machine.host.wait(DISPATCH, stream.machine.mark(stream.machine.ranks))
    last = stream.machine.host.last
    assert last is not None
    # Launches 3 and 4 wait until kernels 1 and 2 have begun, at 3 and 55 us: the fourth is made at
    # 58, and the host is free 9 us behind it.
    assert stream.schedule.visible_ps[last[0]] == (55 + 3 + 9) * US


def test_hosts_of_gpus_have_paces_of_their_own() -> None:
    graph, calls = GraphBuilder(KIND_NAMES), Calls({}, spread=0.5, seed=3)
    machine = Machine(round_machine(), graph, 8, launch="eager", calls=calls)
    machine.host.enter("send")
    begun = machine.kernel(machine.mark(machine.ranks), Operation("kernel", host_ps=100 * US))
    paces = calls.paces("send", 8, is_backward=False)
    assert schedule(graph.build()).visible_ps[begun] == pytest.approx(100 * US * paces, abs=1)
    assert len(set(paces)) == 8


def test_paces_have_the_mean_and_the_spread_that_are_asked_for() -> None:
    paces = Calls({}, spread=0.4).paces("send", 100_000, is_backward=True)
    assert paces.mean() == pytest.approx(1, rel=0.01)
    assert np.log(paces).std() == pytest.approx(0.4, rel=0.02)
